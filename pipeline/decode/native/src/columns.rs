//! Attribute columns while they grow: one entry an item, only as long as the last item that has the
//! key. The first usable value of a key wins.

use crate::dictionary::Numbering;
use crate::keys::{KeyKind, KeyList};
use crate::strings::NO_STRING;

/// A column with more room than this gives it back after a request.
const KEPT_ROWS: usize = 65_536;

/// Growing columns of one key list; memory is reused from request to request.
#[derive(Default)]
pub struct Columns {
    texts: Vec<Vec<i32>>,
    numbers: Vec<Vec<f64>>,
}

/// Finished columns of `n` items, those that occur one after the other.
#[derive(Debug, Default)]
pub struct Attributes {
    /// How many items there are.
    pub n: usize,
    /// The keys that have text, as places in the key list, ascending.
    pub text_keys: Vec<u16>,
    /// Codes, `n` for each of `text_keys`; -1 = absent.
    pub text: Vec<i32>,
    /// The keys that have numbers.
    pub number_keys: Vec<u16>,
    /// Numbers, `n` for each of `number_keys`; NaN = absent.
    pub numbers: Vec<f64>,
}

impl Columns {
    /// Empty, with room for every key of the list.
    pub fn start(&mut self, keys: &KeyList) {
        self.texts.resize_with(keys.columns(), Vec::new);
        self.numbers.resize_with(keys.columns(), Vec::new);
        for column in &mut self.texts {
            column.clear();
            column.shrink_to(KEPT_ROWS);
        }
        for column in &mut self.numbers {
            column.clear();
            column.shrink_to(KEPT_ROWS);
        }
    }

    /// Sets a text, unless the row has one already. Rows come in ascending order.
    #[inline(always)]
    pub fn put_text(&mut self, column: usize, row: usize, id: i32) {
        put(&mut self.texts[column], row, id, NO_STRING);
    }

    /// Sets a number, unless the row has one already. Rows come in ascending order.
    #[inline(always)]
    pub fn put_number(&mut self, column: usize, row: usize, number: f64) {
        put(&mut self.numbers[column], row, number, f64::NAN);
    }

    /// The columns that occur, filled up to `n` items, ids turned into codes.
    pub fn finish(&self, keys: &KeyList, n: usize, numbering: &mut Numbering) -> Attributes {
        let mut found = Attributes {
            n,
            ..Attributes::default()
        };
        for key in 0..keys.columns() {
            let (texts, numbers) = (&self.texts[key], &self.numbers[key]);
            if keys.kind(key) == KeyKind::Text && !texts.is_empty() {
                found.text_keys.push(key as u16);
                found
                    .text
                    .extend(texts.iter().map(|&id| numbering.code(id)));
                found.text.resize(n * found.text_keys.len(), NO_STRING);
            } else if !numbers.is_empty() {
                found.number_keys.push(key as u16);
                found.numbers.extend_from_slice(numbers);
                found.numbers.resize(n * found.number_keys.len(), f64::NAN);
            }
        }
        found
    }
}

#[inline(always)]
fn put<T: Copy>(column: &mut Vec<T>, row: usize, value: T, absent: T) {
    if column.len() <= row {
        if column.len() < row {
            column.resize(row, absent);
        }
        column.push(value);
    }
}
