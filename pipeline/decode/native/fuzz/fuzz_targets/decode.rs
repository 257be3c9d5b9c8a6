//! One request, chosen by the first byte (bits 0-1 the signal, bit 2 gzip), decoded twice.
//!
//! Nothing panics, memory stays in proportion to the input, the columns are sound, and a decoder
//! that has seen much gives what a fresh one gives. TAILRACE_KEYS names a file of the kept keys.

#![no_main]

mod allocation;
mod sound;

use std::cell::RefCell;
use std::env;
use std::fmt::Debug;
use std::fs;
use std::sync::OnceLock;

use _native::{Decoder, Encoding, KeyKind, KeyList, KeyLists, Refusal};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// What a gzipped request may become.
const MAX_BYTES: usize = 1 << 20;

/// What a decoder takes before it sees any byte: its tables, its inflater's first buffer and window.
const BASE_BYTES: usize = 256 << 10;

/// The worst are items of two bytes each, the last of them with every key that is kept: a column a
/// key then has a row an item, in memory that doubles as it grows (740 with as many as allowed).
const BYTES_PER_BYTE: usize = 800;

/// What deflate can make of a byte, in a buffer that doubles.
const INFLATION: usize = 2 * 1032;

/// Lines of `list kind name`: list one of resource, span, point, log; kind text or number.
fn keys() -> &'static KeyLists {
    static KEYS: OnceLock<KeyLists> = OnceLock::new();
    KEYS.get_or_init(|| {
        let path = env::var("TAILRACE_KEYS").expect("TAILRACE_KEYS: `make fuzz` sets it");
        let text = fs::read_to_string(path).expect("the file of keys is readable");
        let list = |wanted: &str| {
            KeyList::new(text.lines().filter_map(|line| {
                let mut words = line.split(' ');
                let (list, kind, name) = (words.next()?, words.next()?, words.next()?);
                let kind = if kind == "number" { KeyKind::Number } else { KeyKind::Text };
                (list == wanted).then_some((name, kind))
            }))
        };
        KeyLists {
            resource: list("resource"),
            span: list("span"),
            point: list("point"),
            log: list("log"),
        }
    })
}

fn told<T: Debug>(found: Result<T, Refusal>, check: impl FnOnce(&T)) -> String {
    if let Ok(columns) = &found {
        check(columns);
    }
    format!("{found:?}")
}

/// The columns as text, after checking them, and the most memory that decoding held.
fn decode(decoder: &mut Decoder, choice: u8, body: &[u8]) -> (String, usize) {
    let encoding = if choice & 4 == 0 { Encoding::Identity } else { Encoding::Gzip };
    match choice & 3 {
        0 => {
            let (found, bytes) = allocation::peak(|| decoder.spans(body, encoding, MAX_BYTES));
            (told(found, sound::spans), bytes)
        }
        1 => {
            let (found, bytes) = allocation::peak(|| decoder.points(body, encoding, MAX_BYTES));
            (told(found, sound::points), bytes)
        }
        2 => {
            let (found, bytes) = allocation::peak(|| decoder.logs(body, encoding, MAX_BYTES));
            (told(found, sound::logs), bytes)
        }
        _ => {
            let (found, bytes) = allocation::peak(|| decoder.profiles(body, encoding, MAX_BYTES));
            (told(found, |&n| assert!(n <= sound::MAX_ITEMS)), bytes)
        }
    }
}

thread_local! {
    static USED: RefCell<Decoder> = RefCell::new(Decoder::new(keys().clone()));
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else {
        return;
    };
    let mut fresh = Decoder::new(keys().clone());
    let (first, bytes) = decode(&mut fresh, choice, body);
    let inflated = if choice & 4 == 0 {
        body.len()
    } else {
        body.len() + (body.len() * INFLATION).min(MAX_BYTES) / BYTES_PER_BYTE + fresh.inflated_bytes()
    };
    let most = BASE_BYTES + BYTES_PER_BYTE * inflated;
    assert!(bytes <= most, "{bytes} bytes of memory for a request of {} bytes", body.len());
    let (used, _) = USED.with_borrow_mut(|decoder| decode(decoder, choice, body));
    assert_eq!(first, used, "what was decoded before changes the result");
});
