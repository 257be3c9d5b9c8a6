//! The binding: columns handed to Python as numpy arrays, without copying, the scan without the GIL.

use std::panic::{catch_unwind, AssertUnwindSafe};

use numpy::{Element, IntoPyArray, PyArrayMethods};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::columns::Attributes;
use crate::decoder::{Decoder as Core, Encoding, KeyLists};
use crate::dictionary::Dictionary;
use crate::histograms::HistogramTable;
use crate::keys::{KeyKind, KeyList};
use crate::metrics::MetricTable;
use crate::refusal::{Refusal, Scan};
use crate::sizes::{MAX_ATTRIBUTES, MAX_ITEMS};

create_exception!(
    _native,
    Refused,
    PyException,
    "A request that is refused as a whole; `args` are the reason and a description."
);

/// Names of a key list as Python strings, made once.
struct Names(Vec<Py<PyString>>);

/// Decodes the requests of one thread.
#[pyclass(module = "pipeline.decode._native")]
struct Decoder {
    core: Core,
    resource: Names,
    span: Names,
    point: Names,
    log: Names,
}

/// Keys as Python gives them: the name, and whether its values are numbers.
type GivenKeys = Vec<(String, bool)>;

#[pymethods]
impl Decoder {
    #[new]
    fn new(
        py: Python<'_>,
        resource: GivenKeys,
        span: GivenKeys,
        point: GivenKeys,
        log: GivenKeys,
    ) -> Self {
        Self {
            core: Core::new(KeyLists {
                resource: key_list(&resource),
                span: key_list(&span),
                point: key_list(&point),
                log: key_list(&log),
            }),
            resource: names(py, &resource),
            span: names(py, &span),
            point: names(py, &point),
            log: names(py, &log),
        }
    }

    /// How many bytes the last request had, inflated.
    #[getter]
    fn inflated_bytes(&self) -> usize {
        self.core.inflated_bytes()
    }

    fn spans<'py>(
        &mut self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        is_gzip: bool,
        max_bytes: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = self.run(py, body, |core, body| {
            core.spans(body, encoding(is_gzip), max_bytes)
        })?;
        let out = PyDict::new(py);
        out.set_item("n", found.n)?;
        out.set_item("strings", dictionary(py, found.strings)?)?;
        out.set_item(
            "resources",
            attributes(py, &self.resource, found.resources)?,
        )?;
        out.set_item("attributes", attributes(py, &self.span, found.attributes)?)?;
        array(&out, "resource", found.resource)?;
        array(&out, "scope", found.scope)?;
        array(&out, "name", found.name)?;
        array(&out, "trace_state", found.trace_state)?;
        array(&out, "kind", found.kind)?;
        array(&out, "status", found.status)?;
        array(&out, "flags", found.flags)?;
        array(&out, "start_ns", found.start_ns)?;
        array(&out, "end_ns", found.end_ns)?;
        grid(&out, "trace_id", found.trace_id, [found.n, 16])?;
        grid(&out, "span_id", found.span_id, [found.n, 8])?;
        grid(&out, "parent_span_id", found.parent_span_id, [found.n, 8])?;
        out.set_item("dropped", dropped(py, &found.dropped)?)?;
        Ok(out)
    }

    fn points<'py>(
        &mut self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        is_gzip: bool,
        max_bytes: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = self.run(py, body, |core, body| {
            core.points(body, encoding(is_gzip), max_bytes)
        })?;
        let out = PyDict::new(py);
        out.set_item("n", found.n)?;
        out.set_item("strings", dictionary(py, found.strings)?)?;
        out.set_item(
            "resources",
            attributes(py, &self.resource, found.resources)?,
        )?;
        out.set_item("attributes", attributes(py, &self.point, found.attributes)?)?;
        out.set_item("metrics", metrics(py, found.metrics)?)?;
        out.set_item("histograms", histograms(py, found.histograms)?)?;
        array(&out, "resource", found.resource)?;
        array(&out, "scope", found.scope)?;
        array(&out, "metric", found.metric)?;
        grid(&out, "series", found.series, [found.n, 2])?;
        array(&out, "start_ns", found.start_ns)?;
        array(&out, "time_ns", found.time_ns)?;
        array(&out, "value", found.value)?;
        array(&out, "count", found.count)?;
        array(&out, "flags", found.flags)?;
        array(&out, "histogram", found.histogram)?;
        out.set_item("dropped", dropped(py, &found.dropped)?)?;
        out.set_item("rejected", found.rejected)?;
        Ok(out)
    }

    fn logs<'py>(
        &mut self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        is_gzip: bool,
        max_bytes: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = self.run(py, body, |core, body| {
            core.logs(body, encoding(is_gzip), max_bytes)
        })?;
        let out = PyDict::new(py);
        out.set_item("n", found.n)?;
        out.set_item("strings", dictionary(py, found.strings)?)?;
        out.set_item(
            "resources",
            attributes(py, &self.resource, found.resources)?,
        )?;
        out.set_item("attributes", attributes(py, &self.log, found.attributes)?)?;
        array(&out, "resource", found.resource)?;
        array(&out, "scope", found.scope)?;
        array(&out, "time_ns", found.time_ns)?;
        array(&out, "observed_ns", found.observed_ns)?;
        array(&out, "severity", found.severity)?;
        grid(&out, "trace_id", found.trace_id, [found.n, 16])?;
        out.set_item("dropped", dropped(py, &found.dropped)?)?;
        Ok(out)
    }

    fn profiles(
        &mut self,
        py: Python<'_>,
        body: &Bound<'_, PyBytes>,
        is_gzip: bool,
        max_bytes: usize,
    ) -> PyResult<usize> {
        self.run(py, body, |core, body| {
            core.profiles(body, encoding(is_gzip), max_bytes)
        })
    }
}

impl Decoder {
    /// Runs a scan without the GIL. A panic, which would be a bug, costs the request and what the
    /// decoder had set aside, not the process.
    fn run<T: Send>(
        &mut self,
        py: Python<'_>,
        body: &Bound<'_, PyBytes>,
        scan: impl FnOnce(&mut Core, &[u8]) -> Scan<T> + Send,
    ) -> PyResult<T> {
        let body = body.as_bytes();
        let core = &mut self.core;
        let found = py.detach(move || {
            catch_unwind(AssertUnwindSafe(|| scan(core, body))).map_err(|_| {
                *core = Core::new(core.keys().clone());
            })
        });
        match found {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(refusal)) => Err(Refused::new_err(described(refusal))),
            Err(()) => Err(PyRuntimeError::new_err("the native decoder failed")),
        }
    }
}

fn encoding(is_gzip: bool) -> Encoding {
    if is_gzip {
        Encoding::Gzip
    } else {
        Encoding::Identity
    }
}

fn described(refusal: Refusal) -> (&'static str, String) {
    match refusal {
        Refusal::Malformed => ("malformed", String::new()),
        Refusal::TooManyItems => (
            "too_many_items",
            format!("more than {MAX_ITEMS} items in one request"),
        ),
        Refusal::TooManyAttributes => (
            "too_many_items",
            format!("more than {MAX_ATTRIBUTES} attributes in one request"),
        ),
        Refusal::TooLarge => ("too_large", String::new()),
        Refusal::CorruptEncoding => ("corrupt_encoding", String::new()),
    }
}

fn key_list(given: &GivenKeys) -> KeyList {
    KeyList::new(given.iter().map(|(name, is_number)| {
        let kind = if *is_number {
            KeyKind::Number
        } else {
            KeyKind::Text
        };
        (name.as_str(), kind)
    }))
}

fn names(py: Python<'_>, given: &GivenKeys) -> Names {
    Names(
        given
            .iter()
            .map(|(name, _)| PyString::intern(py, name).unbind())
            .collect(),
    )
}

fn array<T: Element>(out: &Bound<'_, PyDict>, name: &str, column: Vec<T>) -> PyResult<()> {
    let py = out.py();
    out.set_item(PyString::intern(py, name), column.into_pyarray(py))
}

fn grid<T: Element>(
    out: &Bound<'_, PyDict>,
    name: &str,
    column: Vec<T>,
    shape: [usize; 2],
) -> PyResult<()> {
    let py = out.py();
    out.set_item(
        PyString::intern(py, name),
        column.into_pyarray(py).reshape(shape)?,
    )
}

/// (data, offsets, hashes)
fn dictionary(py: Python<'_>, found: Dictionary) -> PyResult<Bound<'_, PyTuple>> {
    (
        PyBytes::new(py, &found.data),
        found.offsets.into_pyarray(py),
        found.hashes.into_pyarray(py),
    )
        .into_pyobject(py)
}

/// (n, names of text columns, int32[k, n], names of number columns, float64[k, n])
fn attributes<'py>(
    py: Python<'py>,
    names: &Names,
    found: Attributes,
) -> PyResult<Bound<'py, PyTuple>> {
    let name = |keys: &[u16]| PyTuple::new(py, keys.iter().map(|&key| &names.0[usize::from(key)]));
    let n = found.n;
    let text = found.text.into_pyarray(py);
    let numbers = found.numbers.into_pyarray(py);
    (
        n,
        name(&found.text_keys)?,
        text.reshape([found.text_keys.len(), n])?,
        name(&found.number_keys)?,
        numbers.reshape([found.number_keys.len(), n])?,
    )
        .into_pyobject(py)
}

fn metrics(py: Python<'_>, found: MetricTable) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    array(&out, "name", found.name)?;
    array(&out, "unit", found.unit)?;
    array(&out, "description", found.description)?;
    array(&out, "kind", found.kind)?;
    array(&out, "temporality", found.temporality)?;
    array(&out, "monotonic", found.monotonic)?;
    Ok(out)
}

fn histograms(py: Python<'_>, found: HistogramTable) -> PyResult<Bound<'_, PyDict>> {
    let bounds = found.bounds.into_iter().map(|edges| edges.into_pyarray(py));
    let out = PyDict::new(py);
    out.set_item("bounds", PyTuple::new(py, bounds.collect::<Vec<_>>())?)?;
    array(&out, "starts", found.starts)?;
    array(&out, "counts", found.counts)?;
    array(&out, "bounds_id", found.bounds_id)?;
    array(&out, "scale", found.scale)?;
    array(&out, "offset", found.offset)?;
    array(&out, "zero_count", found.zero_count)?;
    array(&out, "count", found.count)?;
    array(&out, "sum", found.sum)?;
    Ok(out)
}

fn dropped<'py>(py: Python<'py>, counts: &crate::counts::Counts) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (reason, n) in counts.by_reason() {
        if n > 0 {
            out.set_item(PyString::intern(py, reason), n)?;
        }
    }
    Ok(out)
}

/// OTLP export requests -> flat columns.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Decoder>()?;
    module.add("Refused", module.py().get_type::<Refused>())
}
