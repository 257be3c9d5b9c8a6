//! `KeyValue` and `AnyValue`: which key, and which member of the oneof, the last one winning.
//!
//! Parts of a message that is sent several times merge, as protobuf has it. Elements of arrays and
//! key-value lists stay opaque: nesting costs nothing.

use crate::refusal::Scan;
use crate::text::{self, NumberText, Said};
use crate::wire::{each_field, fixed64, length, varint, Reader};

/// An AnyValue. The elements of a list are in the `Runs` it was read with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// No member is set.
    None,
    Text(&'a [u8]),
    Bool(bool),
    Int(i64),
    Double(f64),
    Bytes(&'a [u8]),
    /// An array; its ArrayValue messages are the runs.
    Array,
    /// A key-value list; its KeyValueList messages are the runs.
    Pairs,
}

/// The messages of a list value, one after the other; each is checked already.
pub type Runs<'a> = Vec<&'a [u8]>;

const KEY: u32 = length(1);
const VALUE: u32 = length(2);
const TEXT: u32 = length(1);
const BOOL: u32 = varint(2);
const INT: u32 = varint(3);
const DOUBLE: u32 = fixed64(4);
const ARRAY: u32 = length(5);
const PAIRS: u32 = length(6);
const BYTES: u32 = length(7);

/// A KeyValue: its key and its value.
#[inline(always)]
pub fn pair<'a>(raw: &'a [u8], runs: &mut Runs<'a>) -> Scan<(&'a [u8], Value<'a>)> {
    if let Some((key, value)) = plain_pair(raw) {
        if let Some(text) = plain_text(value) {
            return Ok((key, Value::Text(text)));
        }
        if let Some(number) = plain_integer(value) {
            return Ok((key, Value::Int(number)));
        }
    }
    any_pair(raw, runs)
}

/// A KeyValue as nearly all senders write it: a key, then the bytes of a value, and nothing else.
///
/// Plain parts come one by one, as slices: a `Value` made here would go through memory.
#[inline(always)]
pub fn plain_pair(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let [0x0a, size @ 0..=0x7f, rest @ ..] = raw else {
        return None;
    };
    let (key, rest) = rest.split_at_checked(usize::from(*size))?;
    match rest {
        [0x12, size @ 0..=0x7f, value @ ..] if value.len() == usize::from(*size) => {
            Some((key, value))
        }
        [0x12, low @ 0x80..=0xff, high @ 0..=0x7f, value @ ..]
            if value.len() == usize::from(*low & 0x7f) | usize::from(*high) << 7 =>
        {
            Some((key, value))
        }
        _ => None,
    }
}

/// An AnyValue that is a short text and nothing else.
#[inline(always)]
pub fn plain_text(value: &[u8]) -> Option<&[u8]> {
    match value {
        [0x0a, size @ 0..=0x7f, text @ ..] if text.len() == usize::from(*size) => Some(text),
        _ => None,
    }
}

/// An AnyValue that is a small integer and nothing else.
#[inline(always)]
pub fn plain_integer(value: &[u8]) -> Option<i64> {
    match value {
        [0x18, byte @ 0..=0x7f] => Some(i64::from(*byte)),
        [0x18, low @ 0x80..=0xff, high @ 0..=0x7f] => {
            Some(i64::from(*low & 0x7f) | i64::from(*high) << 7)
        }
        _ => None,
    }
}

/// Any KeyValue.
#[inline(never)]
pub fn any_pair<'a>(raw: &'a [u8], runs: &mut Runs<'a>) -> Scan<(&'a [u8], Value<'a>)> {
    let mut key: &[u8] = &[];
    let mut value = Value::None;
    let mut reader = Reader::new(raw);
    while let Some(tag) = reader.tag()? {
        match tag {
            KEY => key = reader.bytes()?,
            VALUE => merge(&mut value, reader.bytes()?, runs, 1)?,
            _ => reader.skip(tag, 0)?,
        }
    }
    Ok((key, value))
}

/// Merges one more part of an AnyValue, `level` messages below the parse's root, into `value`.
#[inline]
pub fn merge<'a>(
    value: &mut Value<'a>,
    part: &'a [u8],
    runs: &mut Runs<'a>,
    level: usize,
) -> Scan<()> {
    let mut reader = Reader::new(part);
    while let Some(tag) = reader.tag()? {
        match tag {
            TEXT => *value = Value::Text(reader.bytes()?),
            BOOL => *value = Value::Bool(reader.varint()? != 0),
            INT => *value = Value::Int(reader.varint()? as i64),
            DOUBLE => *value = Value::Double(f64::from_bits(reader.fixed64()?)),
            BYTES => *value = Value::Bytes(reader.bytes()?),
            ARRAY => list(value, Value::Array, reader.bytes()?, runs, level)?,
            PAIRS => list(value, Value::Pairs, reader.bytes()?, runs, level)?,
            _ => reader.skip(tag, level)?,
        }
    }
    Ok(())
}

fn list<'a>(
    value: &mut Value<'a>,
    kind: Value<'a>,
    part: &'a [u8],
    runs: &mut Runs<'a>,
    level: usize,
) -> Scan<()> {
    each_field(part, 1, level + 1, |_| Ok(()))?;
    if *value != kind {
        runs.clear();
        *value = kind;
    }
    runs.push(part);
    Ok(())
}

/// Calls `each` with the opaque elements of a list value.
pub fn each_element<'a>(runs: &[&'a [u8]], mut each: impl FnMut(&'a [u8])) -> Scan<()> {
    for run in runs {
        each_field(run, 1, 0, |element| {
            each(element);
            Ok(())
        })?;
    }
    Ok(())
}

/// A value coerced to text.
pub enum AsText<'a, 'b> {
    /// No value was given.
    Nothing,
    /// As the sender wrote it.
    Sent(&'a [u8]),
    /// A number or a truth value, written out.
    Made(&'b [u8]),
    /// Bytes, key-value lists, nested arrays, NaN, broken elements.
    NotCoercible,
}

/// A value as text; an array gives its first element.
pub fn to_text<'a, 'b>(
    value: Value<'a>,
    runs: &[&'a [u8]],
    buffer: &'b mut NumberText,
) -> AsText<'a, 'b> {
    match value {
        Value::Array => match first_element(runs) {
            Ok(None) => AsText::Nothing,
            Ok(Some(Value::Array)) | Err(_) => AsText::NotCoercible,
            Ok(Some(element)) => to_text(element, &[], buffer),
        },
        Value::Text(text) => AsText::Sent(text),
        Value::Int(number) => AsText::Made(buffer.integer(number)),
        Value::Bool(truth) => AsText::Made(if truth { b"true" } else { b"false" }),
        Value::Double(number) if !number.is_nan() => AsText::Made(buffer.double(number)),
        Value::None => AsText::Nothing,
        Value::Double(_) | Value::Bytes(_) | Value::Pairs => AsText::NotCoercible,
    }
}

fn first_element<'a>(runs: &[&'a [u8]]) -> Scan<Option<Value<'a>>> {
    let mut first = None;
    each_element(runs, |element| first = first.or(Some(element)))?;
    let Some(element) = first else {
        return Ok(None);
    };
    let mut value = Value::None;
    merge(&mut value, element, &mut Runs::new(), 0)?;
    Ok(Some(value))
}

/// A value coerced to float64: int, double, bool (0, 1) or decimal text.
pub fn to_number(value: Value<'_>) -> Said {
    match value {
        Value::Int(number) => Said::Number(number as f64),
        Value::Double(number) => Said::Number(number),
        Value::Bool(truth) => Said::Number(f64::from(u8::from(truth))),
        Value::Text(text) => text::to_number(text),
        Value::None => Said::Nothing,
        Value::Bytes(_) | Value::Array | Value::Pairs => Said::Other,
    }
}
