//! The buckets of an ExponentialHistogramDataPoint.

use crate::refusal::Scan;
use crate::wire::{length, varint, Reader};

/// The SDKs' default maximum.
pub const MAX_EXPONENTIAL_BUCKETS: usize = 160;

/// float64 spans 2 ** -1074 to 2 ** 1024: no bucket lies past this many powers of two.
const EXPONENT_REACH: f64 = 1100.0;

const OFFSET: u32 = varint(1);
const COUNTS_PACKED: u32 = length(2);
const COUNT: u32 = varint(2);

/// Positive or negative buckets.
#[derive(Default)]
pub struct Buckets {
    pub offset: i32,
    counts: Vec<u64>,
    n: usize,
}

impl Buckets {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.offset = 0;
        self.counts.clear();
        self.n = 0;
    }

    /// How many buckets there are.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Their counts; whole only if there are no more than `MAX_EXPONENTIAL_BUCKETS`.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The sum of all counts.
    pub fn total(&self) -> u128 {
        self.counts.iter().map(|&count| u128::from(count)).sum()
    }

    /// Merges a Buckets message, `level` messages below the root.
    pub fn read(&mut self, raw: &[u8], level: usize) -> Scan<()> {
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                OFFSET => self.offset = zigzag(reader.varint()?),
                COUNT => self.push(reader.varint()?),
                COUNTS_PACKED => {
                    let mut packed = Reader::new(reader.bytes()?);
                    while !packed.is_done() {
                        self.push(packed.varint()?);
                    }
                }
                _ => reader.skip(tag, level)?,
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn push(&mut self, count: u64) {
        self.n += 1;
        if self.n <= MAX_EXPONENTIAL_BUCKETS {
            self.counts.push(count);
        }
    }

    /// Whether these buckets, at `scale`, lie where float64 has values.
    pub fn within_reach(&self, scale: i32) -> bool {
        let first = i64::from(self.offset);
        let last = first + self.n as i64;
        let furthest = first.abs().max(last.abs());
        furthest as f64 <= EXPONENT_REACH * 2f64.powi(scale) + 1.0
    }
}

/// A sint32 from its varint.
pub fn zigzag(encoded: u64) -> i32 {
    let encoded = encoded as u32;
    (encoded >> 1) as i32 ^ -((encoded & 1) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_alternates_signs() {
        let numbers = [0, 1, 2, 3, u64::from(u32::MAX), u64::from(u32::MAX) - 1].map(zigzag);
        assert_eq!(numbers, [0, -1, 1, -2, i32::MIN, i32::MAX]);
    }

    #[test]
    fn too_many_buckets_are_counted_but_not_kept() {
        let mut buckets = Buckets::default();
        let message = [&[0x12, 0xf4, 0x03][..], &[1; 500]].concat();
        buckets.read(&message, 0).unwrap();
        assert_eq!(buckets.len(), 500);
        assert_eq!(buckets.counts().len(), MAX_EXPONENTIAL_BUCKETS);
    }
}
