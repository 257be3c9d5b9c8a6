//! Why a whole request is refused; every other flaw costs one item or value and is counted.

/// The reasons for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Broken framing.
    Malformed,
    /// More than `sizes::MAX_ITEMS` of anything.
    TooManyItems,
    /// More than `sizes::MAX_ATTRIBUTES`.
    TooManyAttributes,
    /// Inflates to more bytes than the caller allows.
    TooLarge,
    /// Not one whole gzip member and nothing else.
    CorruptEncoding,
}

/// What scanning gives: a value, or the refusal of the whole request.
pub type Scan<T> = Result<T, Refusal>;
