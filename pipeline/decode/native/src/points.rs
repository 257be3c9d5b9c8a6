//! ExportMetricsServiceRequest -> columns of data points.
//!
//! ```text
//! series = metric + RESOURCE * resource + SCOPE * scope + POINT * point   (lanes, modulo 2 ** 64)
//! ```

use crate::attributes::keep;
use crate::columns::{Attributes, Columns};
use crate::counts::Counts;
use crate::dictionary::{Dictionary, Numbering};
use crate::envelope::{Envelope, Items, Scope};
use crate::histograms::{HistogramTable, Histograms};
use crate::keys::KeyList;
use crate::lanes::Lanes;
use crate::memo::{Memo, Reading};
use crate::metrics::{Identity, Metric, MetricTable, PointKind, Shape};
use crate::refusal::Scan;
use crate::samples::Sample;
use crate::wire::each_field;

const RESOURCE: u64 = 0x9e37_79b9_7f4a_7c15;
const SCOPE: u64 = 0xc2b2_ae3d_27d4_eb4f;
const POINT: u64 = 0x1656_67b1_9e37_79f9;

/// Data points in wire order; all columns have one entry a point, `series` two.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct PointColumns {
    pub n: usize,
    pub strings: Dictionary,
    pub resources: Attributes,
    pub attributes: Attributes,
    pub metrics: MetricTable,
    pub histograms: HistogramTable,
    pub resource: Vec<i32>,
    pub scope: Vec<i32>,
    pub metric: Vec<i32>,
    pub series: Vec<u64>,
    pub start_ns: Vec<i64>,
    pub time_ns: Vec<i64>,
    pub value: Vec<f64>,
    pub count: Vec<f64>,
    pub flags: Vec<u32>,
    pub histogram: Vec<i32>,
    pub dropped: Counts,
    pub rejected: usize,
}

impl PointColumns {
    fn with_room(n: usize) -> Self {
        Self {
            resource: Vec::with_capacity(n),
            scope: Vec::with_capacity(n),
            metric: Vec::with_capacity(n),
            series: Vec::with_capacity(2 * n),
            start_ns: Vec::with_capacity(n),
            time_ns: Vec::with_capacity(n),
            value: Vec::with_capacity(n),
            count: Vec::with_capacity(n),
            flags: Vec::with_capacity(n),
            histogram: Vec::with_capacity(n),
            ..Self::default()
        }
    }
}

/// The scan of a request's points.
pub struct Points<'a, 'd> {
    keys: &'d KeyList,
    columns: &'d mut Columns,
    memo: &'d mut Memo,
    metric: Metric<'a>,
    sample: Sample<'a>,
    histograms: Histograms<'a>,
    /// By place within its scope: the metric met there last, often the next one too.
    identities: Vec<Identity<'a>>,
    /// How many of them are of the scope that is open.
    open: usize,
    metric_lanes: Vec<Lanes>,
    metric_points: Vec<usize>,
    data_seen: usize,
    points_seen: usize,
    out: PointColumns,
}

impl<'a, 'd> Points<'a, 'd> {
    /// Starts with no points, and room for those that are `expected`.
    pub fn new(
        keys: &'d KeyList,
        columns: &'d mut Columns,
        memo: &'d mut Memo,
        expected: usize,
    ) -> Self {
        columns.start(keys);
        Self {
            keys,
            columns,
            memo,
            metric: Metric::default(),
            sample: Sample::default(),
            histograms: Histograms::default(),
            identities: Vec::new(),
            open: 0,
            metric_lanes: Vec::new(),
            metric_points: Vec::new(),
            data_seen: 0,
            points_seen: 0,
            out: PointColumns::with_room(expected),
        }
    }

    /// The finished columns.
    pub fn finish(self, envelope: &Envelope<'_, '_>) -> Scan<PointColumns> {
        let mut out = self.out;
        let mut numbering = Numbering::new(&envelope.strings);
        numbering.column(&mut out.metrics.name);
        numbering.column(&mut out.metrics.unit);
        numbering.column(&mut out.metrics.description);
        let mut rows = 0..self.metric_points.len();
        for scope in &envelope.scopes {
            let code = numbering.code(scope.name_id);
            let shared = envelope.resource_lanes[scope.resource]
                .times(RESOURCE)
                .plus(scope.lanes.times(SCOPE));
            for row in rows.by_ref().take(scope.items) {
                let end = out.metric.len() + self.metric_points[row];
                add_lanes(
                    &mut out.series[2 * out.metric.len()..2 * end],
                    self.metric_lanes[row].plus(shared),
                );
                out.metric.resize(end, row as i32);
                out.scope.resize(end, code);
                out.resource.resize(end, scope.resource as i32);
            }
        }
        out.resources = envelope.resources(&mut numbering);
        out.attributes = self.columns.finish(self.keys, out.n, &mut numbering);
        out.strings = numbering.dictionary(&envelope.strings)?;
        out.histograms = self.histograms.table;
        out.dropped = envelope.counts;
        Ok(out)
    }

    fn open_data(
        &mut self,
        envelope: &mut Envelope<'a, '_>,
        shape: Shape,
        part: &'a [u8],
    ) -> Scan<()> {
        each_field(part, 1, 4, |raw| {
            self.points_seen += 1;
            envelope.limit(self.points_seen)?;
            self.sample.read(shape.kind, raw)?;
            self.keep_point(envelope, shape);
            Ok(())
        })
    }

    fn keep_point(&mut self, envelope: &mut Envelope<'a, '_>, shape: Shape) {
        let kind = shape.kind;
        let ended = self.sample.is_end();
        let counts = &mut envelope.counts;
        let reason = if self.sample.time == 0 {
            Some(&mut counts.no_time)
        } else if shape.is_unspecified() {
            Some(&mut counts.unspecified_temporality)
        } else if !ended && !lay_out(kind, &self.sample, &mut self.histograms, counts) {
            Some(&mut counts.bad_histogram)
        } else if !ended && !self.sample.has_value {
            Some(&mut counts.no_value)
        } else {
            None
        };
        if let Some(reason) = reason {
            *reason += 1;
            self.out.rejected += 1;
            return;
        }
        let has_row =
            !ended && matches!(kind, PointKind::Histogram | PointKind::ExponentialHistogram);
        let out = &mut self.out;
        let sample = &self.sample;
        out.start_ns.push(counts.time(sample.start));
        out.time_ns.push(counts.time(sample.time));
        out.flags.push(sample.flags);
        out.value.push(if ended { f64::NAN } else { sample.value });
        out.count.push(if ended || kind < PointKind::Histogram {
            f64::NAN
        } else {
            sample.count as f64
        });
        out.histogram.push(if has_row {
            self.histograms.len() as i32 - 1
        } else {
            -1
        });
        let lanes = self.read_attributes(envelope).times(POINT);
        self.out.series.extend_from_slice(&[lanes.0, lanes.1]);
        self.out.n += 1;
    }

    /// The point's attributes into their columns; the sum of their lanes.
    fn read_attributes(&mut self, envelope: &mut Envelope<'a, '_>) -> Lanes {
        envelope.keys.next_item();
        let mut sum = Lanes::default();
        for (place, &raw) in self.sample.attributes.iter().enumerate() {
            if !envelope.count_item_attribute() {
                break;
            }
            let mut reading = Reading {
                keys: self.keys,
                strings: &mut envelope.strings,
                buffers: &mut envelope.buffers,
                encoding: &mut envelope.encoding,
                numbers: envelope.keys,
            };
            let known = self.memo.read(place, raw, &mut reading);
            if known.key.is_some_and(|key| envelope.keys.is_first(key)) {
                sum = sum.plus(known.lanes);
            }
            keep(
                self.columns,
                self.out.n,
                known.meaning,
                &mut envelope.counts,
            );
        }
        sum
    }
}

/// A row for the histogram of a point that has one; false = it contradicts itself.
fn lay_out<'a>(
    kind: PointKind,
    sample: &Sample<'a>,
    histograms: &mut Histograms<'a>,
    counts: &mut Counts,
) -> bool {
    match kind {
        PointKind::Histogram => {
            histograms.explicit(&sample.buckets, &sample.bounds, sample.count, sample.sum)
        }
        PointKind::ExponentialHistogram => {
            let found = histograms.exponential(
                &sample.positive,
                &sample.negative,
                sample.scale,
                sample.zero_count,
                sample.count,
                sample.sum,
            );
            counts.negative_buckets += u64::from(found == Some(true));
            found.is_some()
        }
        PointKind::Gauge | PointKind::Sum | PointKind::Summary => true,
    }
}

fn add_lanes(series: &mut [u64], lanes: Lanes) {
    for pair in series.chunks_exact_mut(2) {
        pair[0] = pair[0].wrapping_add(lanes.0);
        pair[1] = pair[1].wrapping_add(lanes.1);
    }
}

impl<'a> Items<'a> for Points<'a, '_> {
    fn item(&mut self, envelope: &mut Envelope<'a, '_>, raw: &'a [u8]) -> Scan<()> {
        let mut metric = std::mem::take(&mut self.metric);
        metric.read(raw, |kind, part| self.check_replaced(envelope, kind, part))?;
        if let Some(kind) = metric.kind {
            self.data_seen += metric.data.len();
            envelope.limit(self.data_seen)?;
            let shape = metric.shape(kind)?;
            let before = self.out.n;
            for part in &metric.data {
                self.open_data(envelope, shape, part)?;
            }
            self.metric_points.push(self.out.n - before);
            self.keep_metric(envelope, &metric, shape);
        } else {
            envelope.counts.unknown_metric_type += 1;
        }
        self.metric = metric;
        Ok(())
    }

    fn kept(&self) -> usize {
        self.metric_points.len()
    }

    fn scope_done(&mut self, envelope: &mut Envelope<'a, '_>, scope: &Scope<'a>) {
        for identity in &mut self.identities[..self.open] {
            let lanes = identity.lanes(scope.name, scope.version, &mut envelope.encoding);
            self.metric_lanes.push(lanes);
        }
        self.open = 0;
    }
}

impl<'a> Points<'a, '_> {
    /// Points that another member of the oneof replaced: only their framing counts.
    fn check_replaced(
        &mut self,
        envelope: &Envelope<'a, '_>,
        kind: PointKind,
        part: &'a [u8],
    ) -> Scan<()> {
        self.data_seen += 1;
        envelope.limit(self.data_seen)?;
        each_field(part, 1, 4, |raw| {
            self.points_seen += 1;
            envelope.limit(self.points_seen)?;
            self.sample.read(kind, raw)
        })
    }

    fn keep_metric(&mut self, envelope: &mut Envelope<'a, '_>, metric: &Metric<'a>, shape: Shape) {
        if self.open == self.identities.len() {
            self.identities.push(Identity::new(shape));
        }
        let identity = &mut self.identities[self.open];
        self.open += 1;
        identity.become_that_of(metric, shape, &mut envelope.strings);
        envelope.counts.invalid_utf8 += identity.invalid;
        let table = &mut self.out.metrics;
        table.name.push(identity.name_id);
        table.unit.push(identity.unit_id);
        table.description.push(identity.description_id);
        table.kind.push(shape.kind as u8);
        table.temporality.push(shape.temporality);
        table.monotonic.push(shape.monotonic);
    }
}
