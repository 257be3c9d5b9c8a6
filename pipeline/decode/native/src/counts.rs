//! What was left out while decoding, by reason.

/// Items or values left out; the field's name is the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub invalid_utf8: u64,
    pub bad_attribute: u64,
    pub invalid_ids: u64,
    pub time_clamped: u64,
    pub negative_buckets: u64,
    pub no_time: u64,
    pub unspecified_temporality: u64,
    pub bad_histogram: u64,
    pub no_value: u64,
    pub unknown_metric_type: u64,
}

impl Counts {
    /// Reasons and counts, those that are zero included.
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        [
            ("invalid_utf8", self.invalid_utf8),
            ("bad_attribute", self.bad_attribute),
            ("invalid_ids", self.invalid_ids),
            ("time_clamped", self.time_clamped),
            ("negative_buckets", self.negative_buckets),
            ("no_time", self.no_time),
            ("unspecified_temporality", self.unspecified_temporality),
            ("bad_histogram", self.bad_histogram),
            ("no_value", self.no_value),
            ("unknown_metric_type", self.unknown_metric_type),
        ]
    }

    /// Nanoseconds as int64; past 2 ** 63 they are clamped and counted.
    #[inline(always)]
    pub fn time(&mut self, nanoseconds: u64) -> i64 {
        i64::try_from(nanoseconds).unwrap_or_else(|_| {
            self.time_clamped += 1;
            i64::MAX
        })
    }
}

/// An enum number as a byte; one that does not fit becomes 0 (negative) or 255.
#[inline(always)]
pub fn small(number: u64) -> u8 {
    (number as i32).clamp(0, 255) as u8
}
