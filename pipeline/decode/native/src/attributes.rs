//! One attribute -> what it means for a key list: a text, a number, nothing, or a fault.

use crate::columns::{Attributes, Columns};
use crate::counts::Counts;
use crate::dictionary::Numbering;
use crate::keys::{KeyKind, KeyList};
use crate::strings::{is_same, Interned, Strings};
use crate::text::{NumberText, Said};
use crate::values::{
    any_pair, plain_integer, plain_pair, plain_text, to_number, to_text, AsText, Runs, Value,
};

/// What an attribute means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Meaning {
    /// A key that nobody asked for, or no value.
    #[default]
    Nothing,
    /// Not a message, or a value that its key's kind cannot take.
    Bad,
    /// A string id for a column; `invalid` = its UTF-8 was replaced.
    Text { column: u16, id: i32, invalid: bool },
    /// A number for a column.
    Number { column: u16, number: f64 },
}

/// Buffers that reading attributes needs.
#[derive(Default)]
pub struct Buffers<'a> {
    pub runs: Runs<'a>,
    pub number: NumberText,
}

/// The text that each column got last: very often it is the next one too.
#[derive(Default)]
struct Recent<'a> {
    texts: Vec<(&'a [u8], Interned)>,
}

impl<'a> Recent<'a> {
    /// Nothing yet, for the columns of a key list.
    fn new(keys: &KeyList) -> Self {
        let empty: (&[u8], Interned) = (&[], Interned::NONE);
        Self {
            texts: vec![empty; keys.columns()],
        }
    }

    #[inline(always)]
    fn intern(&mut self, column: usize, text: &'a [u8], strings: &mut Strings<'a>) -> Interned {
        let (last, found) = &mut self.texts[column];
        if *found == Interned::NONE || !is_same(last, text) {
            *last = text;
            *found = strings.sent(text);
        }
        *found
    }
}

/// What `key = value` means; the elements of a list value are in `buffers.runs`.
#[inline]
pub fn meaning<'a>(
    keys: &KeyList,
    key: &[u8],
    value: Value<'a>,
    strings: &mut Strings<'a>,
    buffers: &mut Buffers<'a>,
) -> Meaning {
    match keys.find(key) {
        Some(column) => meaning_in(keys, column, value, strings, buffers),
        None => Meaning::Nothing,
    }
}

fn meaning_in<'a>(
    keys: &KeyList,
    column: usize,
    value: Value<'a>,
    strings: &mut Strings<'a>,
    buffers: &mut Buffers<'a>,
) -> Meaning {
    if keys.kind(column) == KeyKind::Number {
        return match to_number(value) {
            Said::Number(number) => Meaning::Number {
                column: column as u16,
                number,
            },
            Said::Nothing => Meaning::Nothing,
            Said::Other => Meaning::Bad,
        };
    }
    let (id, invalid) = match to_text(value, &buffers.runs, &mut buffers.number) {
        AsText::Sent(text) => {
            let found = strings.sent(text);
            (found.id, found.invalid)
        }
        AsText::Made(text) => (strings.made(text), false),
        AsText::Nothing => return Meaning::Nothing,
        AsText::NotCoercible => return Meaning::Bad,
    };
    Meaning::Text {
        column: column as u16,
        id,
        invalid,
    }
}

/// The columns of a kind of items, and what reading attributes into them needs.
pub struct Kept<'a, 'd> {
    keys: &'d KeyList,
    columns: &'d mut Columns,
    recent: Recent<'a>,
}

impl<'a, 'd> Kept<'a, 'd> {
    /// Empty columns for the keys of a list.
    pub fn new(keys: &'d KeyList, columns: &'d mut Columns) -> Self {
        columns.start(keys);
        Self {
            keys,
            columns,
            recent: Recent::new(keys),
        }
    }

    /// Reads one attribute of item `row` into its column, if it has one; faults are counted.
    #[inline(always)]
    pub fn add(
        &mut self,
        row: usize,
        raw: &'a [u8],
        strings: &mut Strings<'a>,
        buffers: &mut Buffers<'a>,
        counts: &mut Counts,
    ) {
        let Some((key, value)) = plain_pair(raw) else {
            return self.other(row, raw, strings, buffers, counts);
        };
        match self.keys.find(key) {
            Some(column) if self.keys.kind(column) == KeyKind::Text => {
                if let Some(text) = plain_text(value) {
                    let found = self.recent.intern(column, text, strings);
                    counts.invalid_utf8 += u64::from(found.invalid);
                    return self.columns.put_text(column, row, found.id);
                }
            }
            Some(column) => {
                if let Some(number) = plain_integer(value) {
                    return self.columns.put_number(column, row, number as f64);
                }
            }
            None => {
                if plain_text(value).is_some() || plain_integer(value).is_some() {
                    return;
                }
            }
        }
        self.other(row, raw, strings, buffers, counts);
    }

    #[inline(never)]
    fn other(
        &mut self,
        row: usize,
        raw: &'a [u8],
        strings: &mut Strings<'a>,
        buffers: &mut Buffers<'a>,
        counts: &mut Counts,
    ) {
        let Ok((key, value)) = any_pair(raw, &mut buffers.runs) else {
            counts.bad_attribute += 1;
            return;
        };
        let found = meaning(self.keys, key, value, strings, buffers);
        keep(self.columns, row, found, counts);
    }

    /// The columns that occur, for `n` items.
    pub fn finish(&self, n: usize, numbering: &mut Numbering) -> Attributes {
        self.columns.finish(self.keys, n, numbering)
    }
}

/// Puts a meaning where it belongs; faults are counted, whether or not the value wins.
#[inline(always)]
pub fn keep(columns: &mut Columns, row: usize, meaning: Meaning, counts: &mut Counts) {
    match meaning {
        Meaning::Nothing => {}
        Meaning::Bad => counts.bad_attribute += 1,
        Meaning::Text {
            column,
            id,
            invalid,
        } => {
            counts.invalid_utf8 += u64::from(invalid);
            columns.put_text(usize::from(column), row, id);
        }
        Meaning::Number { column, number } => {
            columns.put_number(usize::from(column), row, number);
        }
    }
}
