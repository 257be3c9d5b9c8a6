//! Ids -> the codes of one batch's dictionary: strings numbered by first use, column after column.

use xxhash_rust::xxh3::xxh3_64;

use crate::refusal::{Refusal, Scan};
use crate::strings::Strings;

/// The distinct strings of one batch: the bytes back to back, n + 1 borders, n XXH3-64 hashes.
#[derive(Debug, Default)]
pub struct Dictionary {
    /// UTF-8, back to back.
    pub data: Vec<u8>,
    /// Where each string begins, and the end of the last.
    pub offsets: Vec<i32>,
    /// XXH3-64 of each string.
    pub hashes: Vec<u64>,
}

/// Gives codes to ids in the order in which they are asked for.
pub struct Numbering {
    codes: Vec<i32>,
    used: Vec<i32>,
}

const NO_CODE: i32 = -1;

impl Numbering {
    /// Nothing is numbered yet.
    pub fn new(strings: &Strings<'_>) -> Self {
        Self {
            codes: vec![NO_CODE; strings.len()],
            used: Vec::with_capacity(strings.len()),
        }
    }

    /// The code of an id; absent stays absent.
    #[inline(always)]
    pub fn code(&mut self, id: i32) -> i32 {
        if id < 0 {
            return id;
        }
        let code = &mut self.codes[id as usize];
        if *code == NO_CODE {
            *code = self.used.len() as i32;
            self.used.push(id);
        }
        *code
    }

    /// The codes of a column of ids, in place.
    pub fn column(&mut self, ids: &mut [i32]) {
        for id in ids {
            *id = self.code(*id);
        }
    }

    /// The strings that were numbered.
    pub fn dictionary(self, strings: &Strings<'_>) -> Scan<Dictionary> {
        let bytes: usize = self.used.iter().map(|&id| strings.text(id).len()).sum();
        if i32::try_from(bytes).is_err() {
            return Err(Refusal::TooLarge);
        }
        let mut found = Dictionary {
            data: Vec::with_capacity(bytes),
            offsets: Vec::with_capacity(self.used.len() + 1),
            hashes: Vec::with_capacity(self.used.len()),
        };
        found.offsets.push(0);
        for id in self.used {
            let text = strings.text(id);
            found.data.extend_from_slice(text);
            found.offsets.push(found.data.len() as i32);
            found.hashes.push(xxh3_64(text));
        }
        Ok(found)
    }
}
