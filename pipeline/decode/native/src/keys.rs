//! The attribute keys that are kept: which column a key belongs to, if any.
//!
//! A fixed table found by length and both ends of the key; a look-up of any key costs one or two
//! compares.

use crate::strings::is_same;

/// How a key's values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Dictionary text.
    Text,
    /// float64.
    Number,
}

/// One list of keys; the place of a key in it is its column.
#[derive(Clone, Debug)]
pub struct KeyList {
    names: Vec<Box<[u8]>>,
    kinds: Vec<KeyKind>,
    slots: Vec<Slot>,
}

/// Both ends of a key and its length: all of a key of at most 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    head: u64,
    tail: u64,
    size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    ends: Ends,
    column: Option<u16>,
}

impl Ends {
    #[inline(always)]
    fn of(key: &[u8]) -> Self {
        let (head, tail) = match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
            _ => key
                .iter()
                .fold((0, 0), |(head, _), &byte| (head << 8 | u64::from(byte), 0)),
        };
        Self {
            head,
            tail,
            size: key.len(),
        }
    }

    #[inline(always)]
    fn hash(self) -> usize {
        let mixed = (self.head ^ self.size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ self.tail.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        (mixed.wrapping_mul(0x1656_67b1_9e37_79f9) >> 40) as usize
    }
}

impl KeyList {
    /// From distinct keys in the order of their columns. At most 10,000 are taken.
    pub fn new<'k>(keys: impl IntoIterator<Item = (&'k str, KeyKind)>) -> Self {
        let (names, kinds): (Vec<Box<[u8]>>, Vec<KeyKind>) = keys
            .into_iter()
            .take(10_000)
            .map(|(name, kind)| (Box::from(name.as_bytes()), kind))
            .unzip();
        let empty = Slot {
            ends: Ends::of(b""),
            column: None,
        };
        let mut slots = vec![empty; (8 * names.len()).next_power_of_two()];
        for (column, name) in names.iter().enumerate() {
            let ends = Ends::of(name);
            let mut place = ends.hash() & (slots.len() - 1);
            while slots[place].column.is_some() {
                place = (place + 1) & (slots.len() - 1);
            }
            slots[place] = Slot {
                ends,
                column: Some(column as u16),
            };
        }
        Self {
            names,
            kinds,
            slots,
        }
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.names.len()
    }

    /// How a column's values are kept.
    #[inline(always)]
    pub fn kind(&self, column: usize) -> KeyKind {
        self.kinds[column]
    }

    /// The column of `key`.
    #[inline(always)]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let ends = Ends::of(key);
        let mask = self.slots.len() - 1;
        let mut place = ends.hash();
        loop {
            let slot = &self.slots[place & mask];
            let column = usize::from(slot.column?);
            if slot.ends == ends && (ends.size <= 16 || is_same(&self.names[column], key)) {
                return Some(column);
            }
            place += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_found_at_its_place_and_no_other_is() {
        let names = [
            "",
            "a",
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
        ];
        let list = KeyList::new(names.map(|name| (name, KeyKind::Text)));
        for (column, name) in names.iter().enumerate() {
            assert_eq!(list.find(name.as_bytes()), Some(column));
        }
        assert_eq!(list.find(b"b"), None);
        assert_eq!(list.find(b"gen_ai.usage.inpXt_tokens"), None);
        assert_eq!(KeyList::new([]).find(b"a"), None);
    }
}
