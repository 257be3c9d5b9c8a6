//! ExportTraceServiceRequest -> span columns.

use crate::attributes::Kept;
use crate::columns::{Attributes, Columns};
use crate::counts::{small, Counts};
use crate::dictionary::{Dictionary, Numbering};
use crate::envelope::{Envelope, Items};
use crate::keys::KeyList;
use crate::refusal::Scan;
use crate::strings::{is_same, Interned};
use crate::wire::{fixed32, fixed64, length, varint, Reader};

/// W3C trace flags and the two bits about a remote parent; the rest is reserved.
const SPAN_FLAGS: u32 = 0x3ff;

const TRACE_ID: u32 = length(1);
const SPAN_ID: u32 = length(2);
const TRACE_STATE: u32 = length(3);
const PARENT: u32 = length(4);
const NAME: u32 = length(5);
const KIND: u32 = varint(6);
const START: u32 = fixed64(7);
const END: u32 = fixed64(8);
const ATTRIBUTES: u32 = length(9);
const STATUS: u32 = length(15);
const FLAGS: u32 = fixed32(16);
const STATUS_CODE: u32 = varint(3);

/// Spans in wire order; all columns have one entry a span.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct SpanColumns {
    pub n: usize,
    pub strings: Dictionary,
    pub resources: Attributes,
    pub attributes: Attributes,
    pub resource: Vec<i32>,
    pub scope: Vec<i32>,
    pub name: Vec<i32>,
    pub trace_state: Vec<i32>,
    pub kind: Vec<u8>,
    pub status: Vec<u8>,
    pub flags: Vec<u32>,
    pub start_ns: Vec<i64>,
    pub end_ns: Vec<i64>,
    /// 16 bytes a span.
    pub trace_id: Vec<u8>,
    /// 8 bytes a span.
    pub span_id: Vec<u8>,
    /// 8 bytes a span.
    pub parent_span_id: Vec<u8>,
    pub dropped: Counts,
}

impl SpanColumns {
    fn with_room(n: usize) -> Self {
        Self {
            name: Vec::with_capacity(n),
            trace_state: Vec::with_capacity(n),
            kind: Vec::with_capacity(n),
            status: Vec::with_capacity(n),
            flags: Vec::with_capacity(n),
            start_ns: Vec::with_capacity(n),
            end_ns: Vec::with_capacity(n),
            trace_id: Vec::with_capacity(16 * n),
            span_id: Vec::with_capacity(8 * n),
            parent_span_id: Vec::with_capacity(8 * n),
            ..Self::default()
        }
    }
}

/// The scan of a request's spans.
pub struct Spans<'a, 'd> {
    kept: Kept<'a, 'd>,
    name: (&'a [u8], Interned),
    out: SpanColumns,
}

impl<'d> Spans<'_, 'd> {
    /// Starts with no spans, and room for those that are `expected`.
    pub fn new(keys: &'d KeyList, columns: &'d mut Columns, expected: usize) -> Self {
        Self {
            name: (&[], Interned::NONE),
            kept: Kept::new(keys, columns),
            out: SpanColumns::with_room(expected),
        }
    }

    /// The finished columns.
    pub fn finish(self, envelope: &Envelope<'_, '_>) -> Scan<SpanColumns> {
        let mut out = self.out;
        let mut numbering = Numbering::new(&envelope.strings);
        numbering.column(&mut out.name);
        numbering.column(&mut out.trace_state);
        (out.scope, out.resource) = scope_columns(envelope, out.n, &mut numbering);
        out.resources = envelope.resources(&mut numbering);
        out.attributes = self.kept.finish(out.n, &mut numbering);
        out.strings = numbering.dictionary(&envelope.strings)?;
        out.dropped = envelope.counts;
        Ok(out)
    }
}

/// Codes of the scopes' names and rows of their resources, one entry an item.
pub fn scope_columns(
    envelope: &Envelope<'_, '_>,
    n: usize,
    numbering: &mut Numbering,
) -> (Vec<i32>, Vec<i32>) {
    let (mut names, mut resources) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for scope in &envelope.scopes {
        let end = names.len() + scope.items;
        names.resize(end, numbering.code(scope.name_id));
        resources.resize(end, scope.resource as i32);
    }
    (names, resources)
}

/// Appends an id of `SIZE` bytes, all zero if it has another length; false = it has.
#[inline(always)]
pub fn push_id<const SIZE: usize>(column: &mut Vec<u8>, raw: &[u8]) -> bool {
    match <&[u8; SIZE]>::try_from(raw) {
        Ok(id) => {
            column.extend_from_slice(id);
            true
        }
        Err(_) => {
            column.extend_from_slice(&[0; SIZE]);
            false
        }
    }
}

impl<'a> Items<'a> for Spans<'a, '_> {
    fn item(&mut self, envelope: &mut Envelope<'a, '_>, raw: &'a [u8]) -> Scan<()> {
        let row = self.out.n;
        let (mut trace_id, mut span_id, mut parent): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let (mut name, mut trace_state): (&[u8], &[u8]) = (&[], &[]);
        let (mut kind, mut status, mut flags, mut start, mut end) = (0, 0, 0, 0, 0);
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                ATTRIBUTES => {
                    let raw = reader.bytes()?;
                    if envelope.count_item_attribute() {
                        self.kept.add(
                            row,
                            raw,
                            &mut envelope.strings,
                            &mut envelope.buffers,
                            &mut envelope.counts,
                        );
                    }
                }
                TRACE_ID => trace_id = reader.bytes()?,
                SPAN_ID => span_id = reader.bytes()?,
                TRACE_STATE => trace_state = reader.bytes()?,
                PARENT => parent = reader.bytes()?,
                NAME => name = reader.bytes()?,
                KIND => kind = reader.varint()?,
                START => start = reader.fixed64()?,
                END => end = reader.fixed64()?,
                STATUS => read_status(reader.bytes()?, &mut status)?,
                FLAGS => flags = reader.fixed32()?,
                _ => reader.skip(tag, 3)?,
            }
        }
        let out = &mut self.out;
        if !is_same(self.name.0, name) {
            self.name = (name, envelope.strings.field(name));
        }
        let (name, state) = (self.name.1, envelope.strings.field(trace_state));
        let counts = &mut envelope.counts;
        counts.invalid_utf8 += u64::from(name.invalid) + u64::from(state.invalid);
        out.name.push(name.id);
        out.trace_state.push(state.id);
        out.kind.push(small(kind));
        out.status.push(small(status));
        out.flags.push(flags & SPAN_FLAGS);
        out.start_ns.push(counts.time(start));
        out.end_ns.push(counts.time(end));
        let mut valid = push_id::<16>(&mut out.trace_id, trace_id) && is_set(trace_id);
        valid &= push_id::<8>(&mut out.span_id, span_id) && is_set(span_id);
        valid &= push_id::<8>(&mut out.parent_span_id, parent) || parent.is_empty();
        counts.invalid_ids += u64::from(!valid);
        out.n += 1;
        Ok(())
    }

    fn kept(&self) -> usize {
        self.out.n
    }
}

#[inline(always)]
fn is_set(id: &[u8]) -> bool {
    id.iter().any(|&byte| byte != 0)
}

#[inline]
fn read_status(raw: &[u8], code: &mut u64) -> Scan<()> {
    let mut reader = Reader::new(raw);
    while let Some(tag) = reader.tag()? {
        match tag {
            STATUS_CODE => *code = reader.varint()?,
            _ => reader.skip(tag, 4)?,
        }
    }
    Ok(())
}
