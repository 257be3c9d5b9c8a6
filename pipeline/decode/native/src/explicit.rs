//! The buckets and the bounds of a HistogramDataPoint, still as the sender's bytes.

use crate::refusal::{Refusal, Scan};

/// Explicit bounds of a point; real ones have 10 to 40.
pub const MAX_BOUNDS: usize = 1023;

/// A repeated field of eight-byte numbers, packed or not: slices of the request.
#[derive(Default)]
pub struct Eights<'a> {
    runs: Vec<&'a [u8]>,
    n: usize,
}

impl<'a> Eights<'a> {
    /// Forgets all.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.runs.clear();
        self.n = 0;
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.n
    }

    /// One more number, or several packed. Past the bound they are counted but not kept.
    #[inline]
    pub fn push(&mut self, raw: &'a [u8]) -> Scan<()> {
        if raw.len() % 8 != 0 {
            return Err(Refusal::Malformed);
        }
        if self.n <= MAX_BOUNDS + 1 && !raw.is_empty() {
            self.runs.push(raw);
        }
        self.n += raw.len() / 8;
        Ok(())
    }

    /// Appends the numbers, made from their bits. Whole only if there are no more than
    /// `MAX_BOUNDS + 1`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<f64>, make: impl Fn(u64) -> f64) {
        for run in &self.runs {
            out.extend(numbers(run).map(&make));
        }
    }

    /// The sum of the numbers as integers, if it fits.
    #[inline]
    pub fn total(&self) -> Option<u64> {
        let mut total = 0_u64;
        for run in &self.runs {
            for number in numbers(run) {
                total = total.checked_add(number)?;
            }
        }
        Some(total)
    }

    /// The bytes of all numbers, if they were sent in one piece.
    pub fn in_one_piece(&self) -> Option<&'a [u8]> {
        match *self.runs {
            [] => Some(&[]),
            [run] => Some(run),
            _ => None,
        }
    }
}

#[inline(always)]
fn numbers(run: &[u8]) -> impl Iterator<Item = u64> + '_ {
    run.chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_packed_or_not_and_a_torn_one_is_malformed() {
        let bytes: Vec<u8> = (0..24).collect();
        let (mut packed, mut single) = (Eights::default(), Eights::default());
        packed.push(&bytes).unwrap();
        for part in bytes.chunks(8) {
            single.push(part).unwrap();
        }
        assert_eq!(packed.total(), single.total());
        assert_eq!((packed.len(), single.len()), (3, 3));
        assert_eq!(single.push(&bytes[..7]), Err(Refusal::Malformed));
    }
}
