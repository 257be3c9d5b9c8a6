//! gzip, inflated into a buffer that is reused and never grows past the caller's cap.

use flate2::{Decompress, FlushDecompress, Status};

use crate::refusal::{Refusal, Scan};

/// The window of RFC 1952: 32 KiB.
const WINDOW_BITS: u8 = 15;

/// The buffer starts with this and doubles when it is full.
const FIRST_BYTES: usize = 64 << 10;

/// A larger buffer is given back after its request.
const KEPT_BYTES: usize = 8 << 20;

/// Inflates one request at a time.
#[derive(Default)]
pub struct Inflater {
    buffer: Vec<u8>,
}

impl Inflater {
    /// The content of `body`, which must be one whole gzip member and nothing else, of at most
    /// `max_bytes`.
    pub fn gunzip(&mut self, body: &[u8], max_bytes: usize) -> Scan<&[u8]> {
        // One byte more shows that there is more than the cap.
        let most = max_bytes.saturating_add(1);
        let mut stream = Decompress::new_gzip(WINDOW_BITS);
        let (mut read, mut written) = (0, 0);
        loop {
            if written == self.buffer.len() {
                self.grow(most);
            }
            let end = self.buffer.len().min(most);
            let status = stream
                .decompress(
                    &body[read..],
                    &mut self.buffer[written..end],
                    FlushDecompress::None,
                )
                .map_err(|_| Refusal::CorruptEncoding)?;
            let before = (read, written);
            read = stream.total_in() as usize;
            written = stream.total_out() as usize;
            if written > max_bytes {
                return Err(Refusal::TooLarge);
            }
            match status {
                Status::StreamEnd if read == body.len() => return Ok(&self.buffer[..written]),
                Status::StreamEnd => return Err(Refusal::CorruptEncoding),
                Status::Ok | Status::BufError if before == (read, written) => {
                    return Err(Refusal::CorruptEncoding); // cut short
                }
                Status::Ok | Status::BufError => {}
            }
        }
    }

    /// Gives back what only an unusually large request needed.
    pub fn trim(&mut self) {
        if self.buffer.len() > KEPT_BYTES {
            self.buffer = Vec::new();
        }
    }

    fn grow(&mut self, most: usize) {
        let size = (2 * self.buffer.len()).max(FIRST_BYTES).min(most);
        self.buffer.reserve_exact(size - self.buffer.len());
        self.buffer.resize(size, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{write::GzEncoder, Compression};

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn content_comes_back_up_to_the_cap_and_not_a_byte_past_it() {
        let content = vec![7; 300_000];
        let mut inflater = Inflater::default();
        for _ in 0..2 {
            assert_eq!(inflater.gunzip(&gzip(&content), 300_000), Ok(&content[..]));
            assert_eq!(
                inflater.gunzip(&gzip(&content), 299_999),
                Err(Refusal::TooLarge)
            );
        }
        assert_eq!(inflater.gunzip(&gzip(b""), 0), Ok(&b""[..]));
    }

    #[test]
    fn a_bomb_takes_no_more_memory_than_the_cap() {
        let bomb = gzip(&vec![0; 30 << 20]);
        let mut inflater = Inflater::default();
        assert_eq!(inflater.gunzip(&bomb, 1 << 20), Err(Refusal::TooLarge));
        assert!(inflater.buffer.capacity() <= (1 << 20) + 1);
    }

    #[test]
    fn anything_but_one_whole_member_is_corrupt() {
        let whole = gzip(b"some text, some text, some text");
        let mut inflater = Inflater::default();
        for n in 0..whole.len() {
            assert_eq!(
                inflater.gunzip(&whole[..n], 100),
                Err(Refusal::CorruptEncoding),
                "{n}"
            );
        }
        for tail in [&b"x"[..], &whole] {
            let more = [&whole[..], tail].concat();
            assert_eq!(inflater.gunzip(&more, 100), Err(Refusal::CorruptEncoding));
        }
        let mut flipped = whole.clone();
        let checksum = whole.len() - 6;
        flipped[checksum] ^= 1;
        assert_eq!(
            inflater.gunzip(&flipped, 100),
            Err(Refusal::CorruptEncoding)
        );
    }
}
