//! What each raw attribute of data points means, remembered by its bytes from request to request.
//!
//! The same series come again with every scrape, so that most attributes cost one compare instead of
//! a parse and a digest. Bounded; what it remembers never changes a result.

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::attributes::{meaning, Buffers, Meaning};
use crate::keys::KeyList;
use crate::lanes::{canonical, Keys, Lanes};
use crate::strings::{hash_of, is_same, Strings};
use crate::values::{pair, Value};

/// Past either bound a request's new attributes are read each time, and all is forgotten after it.
const MAX_ENTRIES: usize = 32_768;
const MAX_BYTES: usize = 4 << 20;

/// A longer attribute is read each time: it is a prompt or a URL, not a label.
const MAX_RAW_BYTES: usize = 512;

/// Places within a point whose last attribute is remembered.
const MAX_PLACES: usize = 64;

/// An attribute, read.
#[derive(Clone, Copy, Default)]
pub struct Known {
    /// The number of its key; `None` = it is no attribute at all.
    pub key: Option<u32>,
    /// Its share of the series key.
    pub lanes: Lanes,
    /// With the string ids of the request numbered `request`.
    pub meaning: Meaning,
    request: u64,
    /// Where in the attribute the text is, if the value is one: from, to.
    text: Option<(u16, u16)>,
}

struct Entry {
    hash: u64,
    /// Where its bytes are in `Memo::bytes`: from, to.
    start: u32,
    end: u32,
    known: Known,
}

/// What reading an attribute needs.
pub struct Reading<'a, 'b> {
    pub keys: &'b KeyList,
    pub strings: &'b mut Strings<'a>,
    pub buffers: &'b mut Buffers<'a>,
    pub encoding: &'b mut Vec<u8>,
    pub numbers: &'b mut Keys,
}

/// Raw attributes met so far.
#[derive(Default)]
pub struct Memo {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    hasher: RandomState,
    /// By place within a point: the entry met there last, nearly always the next one too.
    recent: Vec<u32>,
    /// What is not remembered.
    passing: Known,
    request: u64,
}

impl Memo {
    /// A request begins: string ids are new.
    pub fn start(&mut self) {
        self.request += 1;
    }

    /// A request ended: forgets all if too much is known, or too many `keys`.
    pub fn trim(&mut self, keys: &mut Keys) {
        if self.is_full() || keys.is_full() {
            *self = Self {
                request: self.request,
                ..Self::default()
            };
            *keys = Keys::default();
        }
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= MAX_ENTRIES || self.bytes.len() >= MAX_BYTES
    }

    /// What `raw`, the attribute number `place` of its point, says.
    #[inline(always)]
    pub fn read<'a>(
        &mut self,
        place: usize,
        raw: &'a [u8],
        reading: &mut Reading<'a, '_>,
    ) -> &Known {
        let i = match self.recent.get(place) {
            Some(&i) if is_same(self.raw(i), raw) => i,
            _ => match self.look_up(place, raw, reading) {
                Some(i) => i,
                None => return &self.passing,
            },
        };
        let known = &mut self.entries[i as usize].known;
        if known.request != self.request {
            known.renew(raw, self.request, reading);
        }
        known
    }

    #[inline(always)]
    fn raw(&self, i: u32) -> &[u8] {
        let entry = &self.entries[i as usize];
        &self.bytes[entry.start as usize..entry.end as usize]
    }

    /// The entry of `raw`, a new one if need be; `None` = it is in `passing`.
    #[inline(never)]
    fn look_up<'a>(
        &mut self,
        place: usize,
        raw: &'a [u8],
        reading: &mut Reading<'a, '_>,
    ) -> Option<u32> {
        let hash = hash_of(&self.hasher, raw);
        let found = self
            .table
            .find(hash, |&i| {
                self.entries[i as usize].hash == hash && is_same(self.raw(i), raw)
            })
            .copied();
        let i = match found {
            Some(i) => i,
            None if raw.len() > MAX_RAW_BYTES || self.is_full() => {
                self.passing = Known::learn(raw, self.request, reading);
                return None;
            }
            None => self.keep(hash, raw, Known::learn(raw, self.request, reading)),
        };
        if place < MAX_PLACES {
            self.recent.resize(self.recent.len().max(place + 1), i);
            self.recent[place] = i;
        }
        Some(i)
    }

    fn keep(&mut self, hash: u64, raw: &[u8], known: Known) -> u32 {
        let i = self.entries.len() as u32;
        let entries = &self.entries;
        self.table
            .insert_unique(hash, i, |&i| entries[i as usize].hash);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(raw);
        self.entries.push(Entry {
            hash,
            start,
            end: self.bytes.len() as u32,
            known,
        });
        i
    }
}

impl Known {
    #[inline(never)]
    fn learn<'a>(raw: &'a [u8], request: u64, reading: &mut Reading<'a, '_>) -> Self {
        let Ok((key, value)) = pair(raw, &mut reading.buffers.runs) else {
            return Self {
                meaning: Meaning::Bad,
                request,
                ..Self::default()
            };
        };
        canonical(reading.encoding, key, value, &reading.buffers.runs);
        let text = match value {
            Value::Text(text) if raw.len() <= MAX_RAW_BYTES => {
                // Slices of one another: the distance of their first bytes is the offset.
                let start = text.as_ptr() as usize - raw.as_ptr() as usize;
                Some((start as u16, (start + text.len()) as u16))
            }
            _ => None,
        };
        Self {
            key: Some(reading.numbers.id(key)),
            lanes: Lanes::of(reading.encoding),
            meaning: meaning(reading.keys, key, value, reading.strings, reading.buffers),
            request,
            text,
        }
    }

    /// The meaning with the string ids of another request.
    #[inline(never)]
    fn renew<'a>(&mut self, raw: &'a [u8], request: u64, reading: &mut Reading<'a, '_>) {
        self.request = request;
        let Meaning::Text { id, invalid, .. } = &mut self.meaning else {
            return;
        };
        match self.text {
            Some((start, end)) => {
                let found = reading
                    .strings
                    .sent(&raw[usize::from(start)..usize::from(end)]);
                (*id, *invalid) = (found.id, found.invalid);
            }
            None => *self = Self::learn(raw, request, reading),
        }
    }
}
