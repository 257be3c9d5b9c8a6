//! The protobuf wire format: a cursor that reads no byte past its message.
//!
//! Limits are those of upb, so that both decoders refuse the same requests: tags and lengths of at
//! most five bytes, varints of at most ten (bits past the 64th are dropped), groups no deeper than
//! what is left of 100 levels.

use crate::refusal::{Refusal, Scan};

/// How deep messages and groups may nest.
const MAX_DEPTH: usize = 100;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const START_GROUP: u32 = 3;
const END_GROUP: u32 = 4;
const FIXED32: u32 = 5;

/// The tag of a field with a varint.
pub const fn varint(number: u32) -> u32 {
    number << 3 | VARINT
}

/// The tag of a field with eight bytes.
pub const fn fixed64(number: u32) -> u32 {
    number << 3 | FIXED64
}

/// The tag of a field with a length: bytes, strings, messages, packed numbers.
pub const fn length(number: u32) -> u32 {
    number << 3 | LENGTH
}

/// The tag of a field with four bytes.
pub const fn fixed32(number: u32) -> u32 {
    number << 3 | FIXED32
}

/// What is left of one message.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// At the start of `message`.
    #[inline(always)]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Whether nothing is left.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// The tag of the next field, if there is one.
    #[inline(always)]
    pub fn tag(&mut self) -> Scan<Option<u32>> {
        match self.rest {
            [] => Ok(None),
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(Some(u32::from(*byte)))
            }
            [low, high, rest @ ..] if *high < 0x80 => {
                self.rest = rest;
                Ok(Some(two_bytes(*low, *high)))
            }
            _ => self.long_u32(u32::MAX).map(Some),
        }
    }

    /// A varint, as unsigned.
    #[inline(always)]
    pub fn varint(&mut self) -> Scan<u64> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            [low, high, rest @ ..] if *high < 0x80 => {
                self.rest = rest;
                Ok(u64::from(two_bytes(*low, *high)))
            }
            _ => self.long_varint(),
        }
    }

    /// Eight bytes, little-endian.
    #[inline(always)]
    pub fn fixed64(&mut self) -> Scan<u64> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Refusal::Malformed)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Four bytes, little-endian.
    #[inline(always)]
    pub fn fixed32(&mut self) -> Scan<u32> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Refusal::Malformed)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*bytes))
    }

    /// A length and as many bytes.
    #[inline(always)]
    pub fn bytes(&mut self) -> Scan<&'a [u8]> {
        let size = match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                usize::from(*byte)
            }
            [low, high, rest @ ..] if *high < 0x80 => {
                self.rest = rest;
                two_bytes(*low, *high) as usize
            }
            _ => self.long_u32(i32::MAX as u32)? as usize,
        };
        self.take(size)
    }

    /// The next `size` bytes.
    #[inline(always)]
    pub fn take(&mut self, size: usize) -> Scan<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(size).ok_or(Refusal::Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Steps over an unknown field of a message that is `level` messages below the parse's root.
    #[inline(always)]
    pub fn skip(&mut self, tag: u32, level: usize) -> Scan<()> {
        if tag & 7 == LENGTH && tag > 7 {
            self.bytes().map(drop)
        } else if tag & 7 == VARINT && tag > 7 {
            self.varint().map(drop)
        } else {
            self.skip_other(tag, level)
        }
    }

    #[cold]
    #[inline(never)]
    fn skip_other(&mut self, tag: u32, level: usize) -> Scan<()> {
        if tag <= 7 {
            return Err(Refusal::Malformed); // field number 0
        }
        if tag & 7 == START_GROUP {
            return self.skip_group(tag, MAX_DEPTH.saturating_sub(level));
        }
        self.skip_value(tag)
    }

    fn skip_value(&mut self, tag: u32) -> Scan<()> {
        match tag & 7 {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed64().map(drop),
            LENGTH => self.bytes().map(drop),
            FIXED32 => self.fixed32().map(drop),
            _ => Err(Refusal::Malformed),
        }
    }

    /// A group, and all groups in it, up to its end tag.
    fn skip_group(&mut self, tag: u32, depth: usize) -> Scan<()> {
        let mut open = Vec::with_capacity(8);
        open.push(tag);
        while let Some(&innermost) = open.last() {
            if open.len() > depth {
                return Err(Refusal::Malformed);
            }
            let tag = self.tag()?.ok_or(Refusal::Malformed)?;
            match tag & 7 {
                START_GROUP => open.push(tag),
                END_GROUP if tag == innermost + 1 => {
                    open.pop();
                }
                _ => self.skip_value(tag)?,
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn long_u32(&mut self, most: u32) -> Scan<u32> {
        let before = self.rest.len();
        let value = self.long_varint()?;
        if before - self.rest.len() > 5 || value > u64::from(most) {
            return Err(Refusal::Malformed);
        }
        Ok(value as u32)
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Scan<u64> {
        let mut value = 0;
        for (i, &byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(Refusal::Malformed)
    }
}

/// A varint of two bytes.
#[inline(always)]
fn two_bytes(low: u8, high: u8) -> u32 {
    u32::from(low & 0x7f) | u32::from(high) << 7
}

/// Calls `each` with the bytes of every field `number`, and checks the framing of all others.
#[inline(always)]
pub fn each_field<'a>(
    message: &'a [u8],
    number: u32,
    level: usize,
    mut each: impl FnMut(&'a [u8]) -> Scan<()>,
) -> Scan<()> {
    let mut reader = Reader::new(message);
    while let Some(tag) = reader.tag()? {
        if tag == length(number) {
            each(reader.bytes()?)?;
        } else {
            reader.skip(tag, level)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip_all(message: &[u8], level: usize) -> Scan<()> {
        each_field(message, 1, level, |_| Ok(()))
    }

    #[test]
    fn a_varint_has_at_most_ten_bytes_and_its_excess_bits_are_dropped() {
        let mut longest = [0xff; 10];
        longest[9] = 0x7f;
        assert_eq!(Reader::new(&longest).varint(), Ok(u64::MAX));
        assert_eq!(Reader::new(&[0x80; 11]).varint(), Err(Refusal::Malformed));
        assert_eq!(Reader::new(&[0x80]).varint(), Err(Refusal::Malformed));
        assert_eq!(Reader::new(&[]).varint(), Err(Refusal::Malformed));
    }

    #[test]
    fn tags_and_lengths_have_at_most_five_bytes() {
        assert!(skip_all(&[0x8a, 0x80, 0x80, 0x80, 0x00, 0x00], 0).is_ok());
        assert!(skip_all(&[0x8a, 0x80, 0x80, 0x80, 0x80, 0x00, 0x00], 0).is_err());
        assert!(skip_all(&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x00], 0).is_ok());
        assert!(skip_all(&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 0).is_err());
        assert!(skip_all(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x07], 0).is_err());
    }

    #[test]
    fn a_length_past_the_end_field_number_zero_and_types_six_and_seven_are_malformed() {
        for message in [&[0x0a, 1][..], &[0, 0], &[2, 0], &[0x0e, 0], &[0x0f, 0]] {
            assert!(skip_all(message, 0).is_err(), "{message:?}");
        }
    }

    #[test]
    fn groups_end_with_their_own_number_and_nest_to_what_is_left_of_the_depth() {
        let nested = |n: usize| [vec![0x0b; n], vec![0x0c; n]].concat();
        assert!(skip_all(&nested(100), 0).is_ok());
        assert!(skip_all(&nested(101), 0).is_err());
        assert!(skip_all(&nested(97), 3).is_ok());
        assert!(skip_all(&nested(98), 3).is_err());
        assert!(skip_all(&[0x0b, 0x14], 0).is_err());
        assert!(skip_all(&[0x0c], 0).is_err());
        assert!(skip_all(&[0x0b], 0).is_err());
    }
}
