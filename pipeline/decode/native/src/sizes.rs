//! How many items a request holds, layer by layer with everything inside opaque.
//!
//! Asked only when a scan failed or met too many of something, to say which refusal it is: an
//! absurd number of items is told before broken framing further inside.

use crate::refusal::{Refusal, Scan};
use crate::wire::each_field;

/// Spans, data points, log records or profiles of a request; also of its metrics, scopes, ...
pub const MAX_ITEMS: usize = 262_144;

/// Attributes of all items of a request.
pub const MAX_ATTRIBUTES: usize = 4_194_304;

/// Field numbers from a request to resources, scopes, items.
const PATH: [&[u32]; 3] = [&[1], &[2], &[2]];

/// ... and on to a Metric's data and its points.
const METRICS_PATH: [&[u32]; 5] = [&[1], &[2], &[2], &[5, 7, 9, 10, 11], &[1]];

/// `TooManyItems` for a request with more than `MAX_ITEMS` of anything. Broken framing is left to
/// the scan.
pub fn check_items(body: &[u8], is_metrics: bool) -> Scan<()> {
    // Every item needs a tag of its own: field 1 or 2 with a length, short or overlong.
    let tags = body
        .iter()
        .filter(|byte| matches!(byte, 0x0a | 0x8a | 0x12 | 0x92))
        .count();
    if tags <= MAX_ITEMS {
        return Ok(());
    }
    let path: &[&[u32]] = if is_metrics { &METRICS_PATH } else { &PATH };
    let mut layer = vec![body];
    for numbers in path {
        match open(&layer, numbers) {
            Err(Refusal::TooManyItems) => return Err(Refusal::TooManyItems),
            Err(_) => return Ok(()),
            Ok(inner) => layer = inner,
        }
    }
    Ok(())
}

fn open<'a>(layer: &[&'a [u8]], numbers: &[u32]) -> Scan<Vec<&'a [u8]>> {
    let mut inner = Vec::new();
    for message in layer {
        for &number in numbers {
            let mut found = inner.len();
            each_field(message, number, 0, |bytes| {
                found += 1;
                if found <= MAX_ITEMS {
                    inner.push(bytes);
                }
                Ok(())
            })?;
            if found > MAX_ITEMS {
                return Err(Refusal::TooManyItems);
            }
        }
    }
    Ok(inner)
}
