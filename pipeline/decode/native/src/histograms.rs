//! Histogram points, explicit and exponential -> rows of a table; what contradicts itself is out.
//!
//! A row is laid out only after its point was found sound.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::explicit::{Eights, MAX_BOUNDS};
use crate::exponential::{Buckets, MAX_EXPONENTIAL_BUCKETS};

/// The scales that SDKs use; base = 2 ** (2 ** -scale).
const SCALES: std::ops::RangeInclusive<i32> = -10..=20;

/// From here on float64 cannot hold every count.
const EXACT_COUNTS: u64 = 1 << 53;

const EXPONENTIAL: i32 = -1;

/// Histogram points in compressed rows: row i has `counts[starts[i]..starts[i + 1]]`.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct HistogramTable {
    pub starts: Vec<i64>,
    pub counts: Vec<f64>,
    /// The distinct explicit bounds by first use.
    pub bounds: Vec<Vec<f64>>,
    /// Which of them a row has; -1 = exponential.
    pub bounds_id: Vec<i32>,
    pub scale: Vec<i32>,
    pub offset: Vec<i32>,
    pub zero_count: Vec<f64>,
    pub count: Vec<f64>,
    /// NaN where the sender gave none.
    pub sum: Vec<f64>,
}

impl Default for HistogramTable {
    fn default() -> Self {
        Self {
            starts: vec![0],
            counts: Vec::new(),
            bounds: Vec::new(),
            bounds_id: Vec::new(),
            scale: Vec::new(),
            offset: Vec::new(),
            zero_count: Vec::new(),
            count: Vec::new(),
            sum: Vec::new(),
        }
    }
}

/// The table while it grows.
#[derive(Default)]
pub struct Histograms<'a> {
    pub table: HistogramTable,
    layouts: HashTable<u32>,
    hasher: RandomState,
    edges: Vec<f64>,
    /// The bytes of the bounds met last, and which they are: nearly always the next ones too.
    last: Option<(&'a [u8], i32)>,
}

impl<'a> Histograms<'a> {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.table.bounds_id.len()
    }

    /// A row for an explicit histogram, unless it is unsound.
    pub fn explicit(
        &mut self,
        buckets: &Eights<'a>,
        bounds: &Eights<'a>,
        count: u64,
        sum: f64,
    ) -> bool {
        let (n, edges) = (buckets.len(), bounds.len());
        let fits = n == edges + 1 || (n == 0 && edges == 0);
        if !fits || n > MAX_BOUNDS + 1 || count >= EXACT_COUNTS {
            return false;
        }
        // Without any bucket OTLP lets a point carry just count and sum.
        if n != 0 && buckets.total() != Some(count) {
            return false;
        }
        let Some(layout) = self.layout(bounds) else {
            return false;
        };
        let table = &mut self.table;
        buckets.append_to(&mut table.counts, |bucket| bucket as f64);
        table.bounds_id.push(layout);
        table.scale.push(0);
        table.offset.push(0);
        table.zero_count.push(0.0);
        self.close(count, sum);
        true
    }

    /// A row for an exponential histogram, unless it is unsound. `Some(true)` = it had counts in
    /// negative buckets, which are left out.
    pub fn exponential(
        &mut self,
        positive: &Buckets,
        negative: &Buckets,
        scale: i32,
        zero_count: u64,
        count: u64,
        sum: f64,
    ) -> Option<bool> {
        if !SCALES.contains(&scale)
            || positive.len().max(negative.len()) > MAX_EXPONENTIAL_BUCKETS
            || !positive.within_reach(scale)
            || count >= EXACT_COUNTS
        {
            return None;
        }
        let below = negative.total();
        if positive.total() + below + u128::from(zero_count) != u128::from(count) {
            return None;
        }
        let table = &mut self.table;
        table
            .counts
            .extend(positive.counts().iter().map(|&bucket| bucket as f64));
        table.bounds_id.push(EXPONENTIAL);
        table.scale.push(scale);
        table.offset.push(positive.offset);
        table.zero_count.push(zero_count as f64);
        self.close(count - below as u64, sum);
        Some(below > 0)
    }

    fn close(&mut self, count: u64, sum: f64) {
        self.table.starts.push(self.table.counts.len() as i64);
        self.table.count.push(count as f64);
        self.table.sum.push(sum);
    }

    /// Which bounds these are; `None` unless they are finite and rise.
    fn layout(&mut self, bounds: &Eights<'a>) -> Option<i32> {
        let piece = bounds.in_one_piece();
        if let (Some(piece), Some((last, id))) = (piece, self.last) {
            if piece == last {
                return Some(id);
            }
        }
        self.edges.clear();
        bounds.append_to(&mut self.edges, f64::from_bits);
        let edges = &self.edges;
        let rising = edges.iter().all(|edge| edge.is_finite())
            && edges.windows(2).all(|pair| pair[1] > pair[0]);
        if !rising {
            return None;
        }
        let id = self.find_or_keep();
        self.last = piece.map(|piece| (piece, id));
        Some(id)
    }

    fn find_or_keep(&mut self) -> i32 {
        let Self {
            table: HistogramTable { bounds, .. },
            layouts,
            hasher,
            edges,
            ..
        } = self;
        // Equal as numbers is equal: -0.0 is 0.0.
        let hash_of = |edges: &[f64]| {
            let mut state = hasher.build_hasher();
            for edge in edges {
                std::hash::Hasher::write_u64(&mut state, (edge + 0.0).to_bits());
            }
            std::hash::Hasher::finish(&state)
        };
        let hash = hash_of(edges);
        if let Some(&found) = layouts.find(hash, |&i| bounds[i as usize] == *edges) {
            return found as i32;
        }
        let id = bounds.len() as u32;
        bounds.push(edges.clone());
        layouts.insert_unique(hash, id, |&i| hash_of(&bounds[i as usize]));
        id as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eights(bytes: &[u8]) -> Eights<'_> {
        let mut found = Eights::default();
        found.push(bytes).unwrap();
        found
    }

    #[test]
    fn bounds_are_laid_out_once_and_negative_zero_is_zero() {
        let one = 1_u64.to_le_bytes();
        let ones = [one, one].concat();
        let edges = [0.0_f64, 1.0, -0.0, 0.0].map(f64::to_le_bytes);
        let mut histograms = Histograms::default();
        for bound in &edges {
            assert!(histograms.explicit(&eights(&ones), &eights(bound), 2, f64::NAN));
        }
        assert_eq!(histograms.table.bounds, [[0.0], [1.0]]);
        assert_eq!(histograms.table.bounds_id, [0, 1, 0, 0]);
        assert!(!histograms.explicit(&eights(&ones), &eights(&ones), 2, 0.0));
        assert!(!histograms.explicit(&eights(&ones), &eights(&one), 3, 0.0));
    }

    #[test]
    fn sums_that_would_wrap_are_unsound() {
        let huge = [u64::MAX, 3].map(u64::to_le_bytes).concat();
        let bound = 1.0_f64.to_le_bytes();
        let mut histograms = Histograms::default();
        assert!(!histograms.explicit(&eights(&huge), &eights(&bound), 2, 0.0));
    }
}
