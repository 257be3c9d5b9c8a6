//! Requests -> columns, one after the other; keeps memory from request to request but no meaning:
//! equal requests give equal columns, whatever was decoded before.

use crate::columns::Columns;
use crate::envelope::{Envelope, Items};
use crate::inflate::Inflater;
use crate::keys::KeyList;
use crate::lanes::Keys;
use crate::logs::{LogColumns, Logs};
use crate::memo::Memo;
use crate::points::{PointColumns, Points};
use crate::profiles;
use crate::refusal::{Refusal, Scan};
use crate::sizes::check_items;
use crate::spans::{SpanColumns, Spans};
use crate::strings::StringTable;

/// How the bytes of a request are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    /// One gzip member.
    Gzip,
}

/// The attribute keys that are kept.
#[derive(Clone, Debug)]
pub struct KeyLists {
    /// Of resources.
    pub resource: KeyList,
    /// Of spans.
    pub span: KeyList,
    /// Of data points.
    pub point: KeyList,
    /// Of log records.
    pub log: KeyList,
}

/// What a scan works with beside the request itself.
struct Scratch {
    keys: KeyLists,
    strings: StringTable,
    resources: Columns,
    attributes: Columns,
    key_numbers: Keys,
    memo: Memo,
    expected_spans: Expected,
    expected_points: Expected,
}

/// How many items the next request probably holds: as many as the last one.
#[derive(Default)]
struct Expected(usize);

/// An item takes at least about this many bytes, if it says anything.
const ITEM_BYTES: usize = 64;

impl Expected {
    /// Never more than what the bytes of `body` can hold.
    fn of(&self, body: &[u8]) -> usize {
        self.0.min(body.len() / ITEM_BYTES)
    }

    fn learn(&mut self, found: Result<usize, &Refusal>) {
        self.0 = found.unwrap_or(0);
    }
}

/// Decodes the requests of one thread.
pub struct Decoder {
    scratch: Scratch,
    inflater: Inflater,
    inflated_bytes: usize,
}

impl Decoder {
    /// A decoder that keeps these keys.
    pub fn new(keys: KeyLists) -> Self {
        Self {
            scratch: Scratch {
                keys,
                strings: StringTable::default(),
                resources: Columns::default(),
                attributes: Columns::default(),
                key_numbers: Keys::default(),
                memo: Memo::default(),
                expected_spans: Expected::default(),
                expected_points: Expected::default(),
            },
            inflater: Inflater::default(),
            inflated_bytes: 0,
        }
    }

    /// The keys that are kept.
    pub fn keys(&self) -> &KeyLists {
        &self.scratch.keys
    }

    /// How many bytes the last request that could be inflated had.
    pub fn inflated_bytes(&self) -> usize {
        self.inflated_bytes
    }

    /// An ExportTraceServiceRequest.
    pub fn spans(&mut self, body: &[u8], encoding: Encoding, max: usize) -> Scan<SpanColumns> {
        self.run(body, encoding, max, false, |scratch, body, limited| {
            let expected = scratch.expected_spans.of(body);
            let mut items = Spans::new(&scratch.keys.span, &mut scratch.attributes, expected);
            let mut envelope = Envelope::new(
                scratch.strings.start(),
                &scratch.keys.resource,
                &mut scratch.resources,
                &mut scratch.key_numbers,
                false,
                limited,
            );
            let found =
                scan(&mut envelope, &mut items, body).and_then(|()| items.finish(&envelope));
            scratch.strings.finish(envelope.strings);
            scratch
                .expected_spans
                .learn(found.as_ref().map(|out| out.n));
            found
        })
    }

    /// An ExportLogsServiceRequest; pairs of a body that is a key-value list are attributes.
    pub fn logs(&mut self, body: &[u8], encoding: Encoding, max: usize) -> Scan<LogColumns> {
        self.run(body, encoding, max, false, |scratch, body, limited| {
            let mut items = Logs::new(&scratch.keys.log, &mut scratch.attributes);
            let mut envelope = Envelope::new(
                scratch.strings.start(),
                &scratch.keys.resource,
                &mut scratch.resources,
                &mut scratch.key_numbers,
                false,
                limited,
            );
            let found =
                scan(&mut envelope, &mut items, body).and_then(|()| items.finish(&envelope));
            scratch.strings.finish(envelope.strings);
            found
        })
    }

    /// An ExportMetricsServiceRequest.
    pub fn points(&mut self, body: &[u8], encoding: Encoding, max: usize) -> Scan<PointColumns> {
        self.run(body, encoding, max, true, |scratch, body, limited| {
            scratch.memo.start();
            let mut items = Points::new(
                &scratch.keys.point,
                &mut scratch.attributes,
                &mut scratch.memo,
                scratch.expected_points.of(body),
            );
            let mut envelope = Envelope::new(
                scratch.strings.start(),
                &scratch.keys.resource,
                &mut scratch.resources,
                &mut scratch.key_numbers,
                true,
                limited,
            );
            let found =
                scan(&mut envelope, &mut items, body).and_then(|()| items.finish(&envelope));
            scratch.strings.finish(envelope.strings);
            scratch.memo.trim(&mut scratch.key_numbers);
            scratch
                .expected_points
                .learn(found.as_ref().map(|out| out.n));
            found
        })
    }

    /// How many profiles an ExportProfilesServiceRequest holds.
    pub fn profiles(&mut self, body: &[u8], encoding: Encoding, max: usize) -> Scan<usize> {
        self.run(body, encoding, max, false, |_, body, limited| {
            profiles::count(body, limited)
        })
    }

    /// Inflates and scans. A scan that fails asks for the refusal that comes first: too many items
    /// are told before broken framing further inside. One that met too many parts of a merged
    /// message, which is no refusal, is run again without that limit.
    fn run<T>(
        &mut self,
        body: &[u8],
        encoding: Encoding,
        max: usize,
        is_metrics: bool,
        mut scan: impl FnMut(&mut Scratch, &[u8], bool) -> Scan<T>,
    ) -> Scan<T> {
        let body = match encoding {
            Encoding::Identity if body.len() > max => return Err(Refusal::TooLarge),
            Encoding::Identity => body,
            Encoding::Gzip => self.inflater.gunzip(body, max)?,
        };
        self.inflated_bytes = body.len();
        let mut found = scan(&mut self.scratch, body, true);
        if let Err(refusal @ (Refusal::Malformed | Refusal::TooManyItems)) = found {
            found = match check_items(body, is_metrics) {
                Err(first) => Err(first),
                Ok(()) if refusal == Refusal::Malformed => Err(refusal),
                Ok(()) => scan(&mut self.scratch, body, false),
            };
        }
        self.inflater.trim();
        found
    }
}

fn scan<'a>(
    envelope: &mut Envelope<'a, '_>,
    items: &mut impl Items<'a>,
    body: &'a [u8],
) -> Scan<()> {
    envelope.request(body, items)?;
    envelope.check_attributes()
}
