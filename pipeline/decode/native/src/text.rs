//! Numbers as text and text as numbers, the way Python writes and reads them.

use std::io::Write;

const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0; // 2 ** 53

/// A buffer for the longest number there is.
#[derive(Default)]
pub struct NumberText {
    bytes: Vec<u8>,
}

impl NumberText {
    /// An integer in decimal.
    pub fn integer(&mut self, number: i64) -> &[u8] {
        self.bytes.clear();
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, "{number}");
        &self.bytes
    }

    /// A double that is not NaN: a whole one below 2 ** 53 as an integer, else Python's `repr`, the
    /// shortest form that reads back.
    pub fn double(&mut self, number: f64) -> &[u8] {
        if number.trunc() == number && number.abs() < EXACT_INTEGERS {
            return self.integer(number as i64);
        }
        self.bytes.clear();
        if number.is_infinite() {
            self.bytes
                .extend_from_slice(if number > 0.0 { b"inf" } else { b"-inf" });
        } else {
            self.repr(number);
        }
        &self.bytes
    }

    fn repr(&mut self, number: f64) {
        let shortest = format!("{number:e}");
        let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if !(-4..16).contains(&exponent) {
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(self.bytes, "{digits}e{sign}{:02}", exponent.abs());
        } else {
            // Rust writes plain decimals with the same digits, but a whole number without ".0".
            let _ = write!(self.bytes, "{number:?}");
        }
    }
}

/// What a text says as a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// Empty or a dash: no number was given.
    Nothing,
    /// A decimal number.
    Number(f64),
    /// Anything else.
    Other,
}

/// Reads `[+-]digits[.digits][e[+-]digits]`, spaces around it allowed.
pub fn to_number(text: &[u8]) -> Said {
    let text = trimmed(text);
    if text.is_empty() || text == b"-" {
        return Said::Nothing;
    }
    if !is_decimal(text) {
        return Said::Other;
    }
    match std::str::from_utf8(text).map(str::parse) {
        Ok(Ok(number)) => Said::Number(number),
        _ => Said::Other,
    }
}

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

fn is_decimal(text: &[u8]) -> bool {
    let text = after_sign(text);
    let Some(text) = after_digits(text, 1, 40) else {
        return false;
    };
    let text = match text {
        [b'.', rest @ ..] => match after_digits(rest, 0, 40) {
            Some(rest) => rest,
            None => return false,
        },
        _ => text,
    };
    match text {
        [] => true,
        [b'e' | b'E', rest @ ..] => after_digits(after_sign(rest), 1, 3) == Some(&[]),
        _ => false,
    }
}

fn after_sign(text: &[u8]) -> &[u8] {
    match text {
        [b'+' | b'-', rest @ ..] => rest,
        _ => text,
    }
}

/// What follows the leading digits, if there are `least` to `most` of them.
fn after_digits(text: &[u8], least: usize, most: usize) -> Option<&[u8]> {
    let n = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (least..=most).contains(&n).then(|| &text[n..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_python_writes_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (8000.0, "8000"),
            (1.5, "1.5"),
            (-1.5, "-1.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (9007199254740991.0, "9007199254740991"),
            (9007199254740992.0, "9007199254740992.0"),
            (-9007199254740994.0, "-9007199254740994.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let mut buffer = NumberText::default();
            assert_eq!(buffer.double(number), text.as_bytes(), "{number}");
        }
    }

    #[test]
    fn decimal_text_is_a_number_and_nothing_else_is() {
        for (text, said) in [
            (" 7 ", Said::Number(7.0)),
            ("+1.", Said::Number(1.0)),
            ("-1.5E+3", Said::Number(-1500.0)),
            ("1e999", Said::Number(f64::INFINITY)),
            ("", Said::Nothing),
            ("  ", Said::Nothing),
            ("-", Said::Nothing),
            (".5", Said::Other),
            ("1e", Said::Other),
            ("1e1000", Said::Other),
            ("nan", Said::Other),
            ("0x10", Said::Other),
            ("1_0", Said::Other),
            ("7\n", Said::Other),
        ] {
            assert_eq!(to_number(text.as_bytes()), said, "{text:?}");
        }
        assert_eq!(to_number(&[b'1'; 41]), Said::Other);
    }
}
