//! OTLP export requests -> flat columns, in one pass over the bytes and without the GIL.
//!
//! Everything but `python` is free of Python and links alone. The scanner trusts no number that the
//! sender wrote: each length is checked against the bytes that are left before it is used, and
//! nothing is reserved from a number alone.

mod attributes;
mod columns;
mod counts;
mod decoder;
mod dictionary;
mod envelope;
mod explicit;
mod exponential;
mod histograms;
mod inflate;
mod keys;
mod lanes;
mod logs;
mod memo;
mod metrics;
mod points;
mod profiles;
mod refusal;
mod samples;
mod sizes;
mod spans;
mod strings;
mod text;
mod values;
mod wire;

#[cfg(feature = "python")]
mod python;

pub use columns::Attributes;
pub use counts::Counts;
pub use decoder::{Decoder, Encoding, KeyLists};
pub use dictionary::Dictionary;
pub use histograms::HistogramTable;
pub use keys::{KeyKind, KeyList};
pub use logs::LogColumns;
pub use metrics::MetricTable;
pub use points::PointColumns;
pub use refusal::Refusal;
pub use spans::SpanColumns;
