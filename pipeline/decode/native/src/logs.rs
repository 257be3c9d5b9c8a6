//! ExportLogsServiceRequest -> columns of log records.

use crate::attributes::Kept;
use crate::columns::{Attributes, Columns};
use crate::counts::{small, Counts};
use crate::dictionary::{Dictionary, Numbering};
use crate::envelope::{Envelope, Items};
use crate::keys::KeyList;
use crate::refusal::Scan;
use crate::spans::{push_id, scope_columns};
use crate::values::{each_element, merge, Runs, Value};
use crate::wire::{fixed64, length, varint, Reader};

const TIME: u32 = fixed64(1);
const SEVERITY: u32 = varint(2);
const BODY: u32 = length(5);
const ATTRIBUTES: u32 = length(6);
const TRACE_ID: u32 = length(9);
const OBSERVED: u32 = fixed64(11);

/// Log records in wire order; all columns have one entry a record.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct LogColumns {
    pub n: usize,
    pub strings: Dictionary,
    pub resources: Attributes,
    pub attributes: Attributes,
    pub resource: Vec<i32>,
    pub scope: Vec<i32>,
    pub time_ns: Vec<i64>,
    pub observed_ns: Vec<i64>,
    pub severity: Vec<u8>,
    /// 16 bytes a record.
    pub trace_id: Vec<u8>,
    pub dropped: Counts,
}

/// The scan of a request's log records.
pub struct Logs<'a, 'd> {
    kept: Kept<'a, 'd>,
    body: Runs<'a>,
    out: LogColumns,
}

impl<'a, 'd> Logs<'a, 'd> {
    /// Starts with no records.
    pub fn new(keys: &'d KeyList, columns: &'d mut Columns) -> Self {
        Self {
            kept: Kept::new(keys, columns),
            body: Runs::new(),
            out: LogColumns::default(),
        }
    }

    /// The finished columns.
    pub fn finish(self, envelope: &Envelope<'_, '_>) -> Scan<LogColumns> {
        let mut out = self.out;
        let mut numbering = Numbering::new(&envelope.strings);
        (out.scope, out.resource) = scope_columns(envelope, out.n, &mut numbering);
        out.resources = envelope.resources(&mut numbering);
        out.attributes = self.kept.finish(out.n, &mut numbering);
        out.strings = numbering.dictionary(&envelope.strings)?;
        out.dropped = envelope.counts;
        Ok(out)
    }

    fn attribute(&mut self, envelope: &mut Envelope<'a, '_>, raw: &'a [u8]) {
        if envelope.count_item_attribute() {
            self.kept.add(
                self.out.n,
                raw,
                &mut envelope.strings,
                &mut envelope.buffers,
                &mut envelope.counts,
            );
        }
    }
}

impl<'a> Items<'a> for Logs<'a, '_> {
    fn item(&mut self, envelope: &mut Envelope<'a, '_>, raw: &'a [u8]) -> Scan<()> {
        let (mut time, mut observed, mut severity) = (0, 0, 0);
        let mut trace_id: &[u8] = &[];
        let mut body = Value::None;
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                TIME => time = reader.fixed64()?,
                SEVERITY => severity = reader.varint()?,
                BODY => merge(&mut body, reader.bytes()?, &mut self.body, 4)?,
                ATTRIBUTES => self.attribute(envelope, reader.bytes()?),
                TRACE_ID => trace_id = reader.bytes()?,
                OBSERVED => observed = reader.fixed64()?,
                _ => reader.skip(tag, 3)?,
            }
        }
        if body == Value::Pairs {
            // After the record's own attributes, so that these win.
            let runs = std::mem::take(&mut self.body);
            each_element(&runs, |pair| self.attribute(envelope, pair))?;
            self.body = runs;
        }
        let out = &mut self.out;
        out.time_ns.push(envelope.counts.time(time));
        out.observed_ns.push(envelope.counts.time(observed));
        out.severity.push(small(severity));
        let valid = push_id::<16>(&mut out.trace_id, trace_id) || trace_id.is_empty();
        envelope.counts.invalid_ids += u64::from(!valid);
        out.n += 1;
        Ok(())
    }

    fn kept(&self) -> usize {
        self.out.n
    }
}
