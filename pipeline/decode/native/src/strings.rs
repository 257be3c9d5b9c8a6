//! Strings of one request -> small ids, equal strings equal ids.
//!
//! A string is a slice of the request; only what the request does not hold (numbers as text,
//! replaced UTF-8) is kept in a buffer of its own. The hash behind the table is seeded at random: a
//! sender cannot make strings collide.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// The id of an absent string.
pub const NO_STRING: i32 = -1;

/// More slots than this are given back after a request.
const KEPT_SLOTS: usize = 65_536;

#[derive(Clone, Copy)]
enum Text<'a> {
    /// As the sender wrote it.
    Sent(&'a [u8]),
    /// `made[start..end]`.
    Made(u32, u32),
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    text: Text<'a>,
    hash: u64,
    /// The id of the text after replacement of invalid UTF-8; its own for almost all.
    id: i32,
    invalid: bool,
}

/// A string's id, and whether its UTF-8 had to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interned {
    pub id: i32,
    pub invalid: bool,
}

/// What outlives a request: memory and the seed.
#[derive(Default)]
pub struct StringTable {
    table: HashTable<u32>,
    made: Vec<u8>,
    hasher: RandomState,
    last_size: usize,
}

impl Interned {
    /// No string.
    pub const NONE: Self = Self {
        id: NO_STRING,
        invalid: false,
    };
}

impl StringTable {
    /// Starts a request whose body lives for `'a`.
    pub fn start<'a>(&mut self) -> Strings<'a> {
        Strings {
            table: std::mem::take(&mut self.table),
            made: std::mem::take(&mut self.made),
            hasher: self.hasher.clone(),
            entries: Vec::with_capacity(self.last_size),
        }
    }

    /// Takes the memory of a finished request back, unless it is out of proportion.
    pub fn finish(&mut self, strings: Strings<'_>) {
        let Strings {
            mut table,
            mut made,
            entries,
            ..
        } = strings;
        self.last_size = entries.len().min(KEPT_SLOTS);
        if table.capacity() <= KEPT_SLOTS {
            table.clear();
            self.table = table;
        }
        if made.capacity() <= 8 * KEPT_SLOTS {
            made.clear();
            self.made = made;
        }
    }
}

/// The strings of one request.
pub struct Strings<'a> {
    table: HashTable<u32>,
    made: Vec<u8>,
    hasher: RandomState,
    entries: Vec<Entry<'a>>,
}

impl<'a> Strings<'a> {
    /// How many ids there are; all are below it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The bytes behind an id.
    pub fn text(&self, id: i32) -> &[u8] {
        resolve(&self.made, self.entries[id as usize].text)
    }

    /// The id of a string that the request holds.
    #[inline]
    pub fn sent(&mut self, raw: &'a [u8]) -> Interned {
        let hash = hash_of(&self.hasher, raw);
        match self.find(hash, raw) {
            Some(found) => found,
            None => self.learn(hash, raw),
        }
    }

    /// As `sent`, but an empty string is an absent one, as proto3 has it for fields.
    #[inline]
    pub fn field(&mut self, raw: &'a [u8]) -> Interned {
        if raw.is_empty() {
            return Interned::NONE;
        }
        self.sent(raw)
    }

    /// The id of a text that was made here; it must be UTF-8.
    pub fn made(&mut self, text: &[u8]) -> i32 {
        let hash = hash_of(&self.hasher, text);
        if let Some(found) = self.find(hash, text) {
            return found.id;
        }
        let start = self.made.len() as u32;
        self.made.extend_from_slice(text);
        let id = self.entries.len() as i32;
        self.add(Entry {
            text: Text::Made(start, self.made.len() as u32),
            hash,
            id,
            invalid: false,
        });
        id
    }

    #[inline]
    fn find(&self, hash: u64, raw: &[u8]) -> Option<Interned> {
        let place = self.table.find(hash, |&i| {
            let entry = &self.entries[i as usize];
            entry.hash == hash && is_same(resolve(&self.made, entry.text), raw)
        })?;
        let entry = &self.entries[*place as usize];
        Some(Interned {
            id: entry.id,
            invalid: entry.invalid,
        })
    }

    fn learn(&mut self, hash: u64, raw: &'a [u8]) -> Interned {
        let invalid = !raw.is_ascii() && std::str::from_utf8(raw).is_err();
        let id = if invalid {
            self.made(String::from_utf8_lossy(raw).as_bytes())
        } else {
            self.entries.len() as i32
        };
        self.add(Entry {
            text: Text::Sent(raw),
            hash,
            id,
            invalid,
        });
        Interned { id, invalid }
    }

    fn add(&mut self, entry: Entry<'a>) {
        let place = self.entries.len() as u32;
        let (hash, entries) = (entry.hash, &self.entries);
        self.table
            .insert_unique(hash, place, |&i| entries[i as usize].hash);
        self.entries.push(entry);
    }
}

/// The seeded hash of a byte string.
#[inline(always)]
pub fn hash_of(hasher: &RandomState, bytes: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(bytes);
    state.finish()
}

/// Equality of byte strings that are mostly short, without a call.
#[inline(always)]
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() || a.len() > 64 {
        return a == b;
    }
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(a_tail), Some(b_tail)) => {
            a_tail == b_tail
                && a.chunks_exact(8)
                    .zip(b.chunks_exact(8))
                    .all(|(a, b)| a == b)
        }
        _ => a.iter().zip(b).all(|(a, b)| a == b),
    }
}

#[inline(always)]
fn resolve<'b>(made: &'b [u8], text: Text<'b>) -> &'b [u8] {
    match text {
        Text::Sent(raw) => raw,
        Text::Made(start, end) => &made[start as usize..end as usize],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_have_equal_ids_whoever_made_them() {
        let mut strings = StringTable::default().start();
        let sent = strings.sent(b"8000").id;
        assert_eq!(strings.made(b"8000"), sent);
        assert_eq!(strings.sent(&b"x8000"[1..]).id, sent);
        assert_ne!(strings.sent(b"").id, NO_STRING);
        assert_eq!(strings.field(b"").id, NO_STRING);
    }

    #[test]
    fn invalid_utf8_is_the_string_that_replaces_it_and_tells_so_each_time() {
        let mut strings = StringTable::default().start();
        for _ in 0..2 {
            let found = strings.sent(b"a\xffb");
            assert!(found.invalid);
            assert_eq!(strings.text(found.id), "a\u{fffd}b".as_bytes());
            assert_eq!(strings.made("a\u{fffd}b".as_bytes()), found.id);
        }
    }
}
