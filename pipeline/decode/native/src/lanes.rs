//! Each attribute's share of a series key: XXH3-128 of its canonical encoding, as two lanes that add
//! up modulo 2 ** 64 over the distinct keys of an item.
//!
//! ```text
//! pair = u32(len(key)) key tag payload
//! tags = n (no value) | s bytes | b one byte 0/1 | i int64 LE | d float64 LE (any NaN: the quiet
//!        one) | y bytes | a elements | k elements; elements = (u32(len) bytes as sent)*
//! ```

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128;

use crate::strings::{hash_of, is_same};
use crate::values::{each_element, Runs, Value};

/// The low and the high half of a 128-bit digest, or a sum of such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(pub u64, pub u64);

impl Lanes {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = xxh3_128(bytes);
        Self(digest as u64, (digest >> 64) as u64)
    }

    /// Lane by lane, modulo 2 ** 64.
    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0), self.1.wrapping_add(other.1))
    }

    /// Both lanes times an odd number, modulo 2 ** 64.
    #[inline(always)]
    pub fn times(self, factor: u64) -> Self {
        Self(self.0.wrapping_mul(factor), self.1.wrapping_mul(factor))
    }
}

/// A text inside an encoding: its length as u32, its bytes.
pub fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// The canonical encoding of `key = value`.
pub fn canonical<'a>(out: &mut Vec<u8>, key: &[u8], value: Value<'a>, runs: &Runs<'a>) {
    out.clear();
    text(out, key);
    match value {
        Value::None => out.push(b'n'),
        Value::Text(text) => tagged(out, b's', text),
        Value::Bool(truth) => tagged(out, b'b', &[u8::from(truth)]),
        Value::Int(number) => tagged(out, b'i', &number.to_le_bytes()),
        Value::Double(number) if number.is_nan() => {
            tagged(out, b'd', &0x7ff8_0000_0000_0000_u64.to_le_bytes());
        }
        Value::Double(number) => tagged(out, b'd', &number.to_le_bytes()),
        Value::Bytes(bytes) => tagged(out, b'y', bytes),
        Value::Array => elements(out, b'a', runs),
        Value::Pairs => elements(out, b'k', runs),
    }
}

fn tagged(out: &mut Vec<u8>, tag: u8, payload: &[u8]) {
    out.push(tag);
    out.extend_from_slice(payload);
}

fn elements<'a>(out: &mut Vec<u8>, tag: u8, runs: &Runs<'a>) {
    out.push(tag);
    // The runs were checked when they were read.
    let _ = each_element(runs, |element| text(out, element));
}

/// Attribute keys as numbers, so that an item's repeated keys show without a search. Kept from
/// request to request.
#[derive(Default)]
pub struct Keys {
    table: HashTable<u32>,
    names: Vec<Name>,
    bytes: Vec<u8>,
    item: u64,
    hasher: RandomState,
}

struct Name {
    hash: u64,
    start: usize,
    end: usize,
    /// The last item that had the key.
    last_item: u64,
}

/// Past either bound keys are forgotten before the next request.
const MAX_KEYS: usize = 16_384;
const MAX_KEY_BYTES: usize = 1 << 20;

impl Keys {
    /// Whether there are too many to be kept for another request.
    pub fn is_full(&self) -> bool {
        self.names.len() > MAX_KEYS || self.bytes.len() > MAX_KEY_BYTES
    }

    /// The number of a key.
    pub fn id(&mut self, key: &[u8]) -> u32 {
        let hash = hash_of(&self.hasher, key);
        let Self { names, bytes, .. } = self;
        let found = self.table.find(hash, |&id| {
            let name = &names[id as usize];
            name.hash == hash && is_same(&bytes[name.start..name.end], key)
        });
        if let Some(&id) = found {
            return id;
        }
        let id = names.len() as u32;
        self.table
            .insert_unique(hash, id, |&id| names[id as usize].hash);
        let start = bytes.len();
        bytes.extend_from_slice(key);
        names.push(Name {
            hash,
            start,
            end: bytes.len(),
            last_item: 0,
        });
        id
    }

    /// The next item begins.
    #[inline(always)]
    pub fn next_item(&mut self) {
        self.item += 1;
    }

    /// Whether the item meets this key for the first time.
    #[inline(always)]
    pub fn is_first(&mut self, id: u32) -> bool {
        let last = &mut self.names[id as usize].last_item;
        let is_first = *last != self.item;
        *last = self.item;
        is_first
    }
}
