//! What holds for all columns, whatever the bytes were: lengths agree, and no index is out of range.

use _native::{Attributes, Dictionary, HistogramTable, LogColumns, PointColumns, SpanColumns};

/// Spans, data points, log records or profiles of a request.
pub const MAX_ITEMS: usize = 262_144;

fn same(n: usize, lengths: &[usize]) {
    assert!(n <= MAX_ITEMS, "{n} items");
    assert!(lengths.iter().all(|&length| length == n), "{n} items, columns of {lengths:?}");
}

fn within(indices: &[i32], least: i32, n: usize) {
    let most = i32::try_from(n).expect("fewer than 2^31");
    assert!(indices.iter().all(|&index| (least..most).contains(&index)));
}

/// A dictionary: borders ascend over all its bytes, which are UTF-8 piece by piece.
fn dictionary(found: &Dictionary) -> usize {
    let n = found.hashes.len();
    assert_eq!(found.offsets.len(), n + 1);
    assert_eq!((found.offsets[0], found.offsets[n] as usize), (0, found.data.len()));
    for border in found.offsets.windows(2) {
        let text = &found.data[border[0] as usize..border[1] as usize];
        assert!(std::str::from_utf8(text).is_ok());
    }
    n
}

fn attributes(found: &Attributes, n: usize, codes: usize) {
    assert_eq!(found.n, n);
    assert_eq!(found.text.len(), n * found.text_keys.len());
    assert_eq!(found.numbers.len(), n * found.number_keys.len());
    assert!(found.text_keys.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(found.number_keys.windows(2).all(|pair| pair[0] < pair[1]));
    within(&found.text, -1, codes);
}

/// What spans must be.
pub fn spans(found: &SpanColumns) {
    let (n, codes) = (found.n, dictionary(&found.strings));
    attributes(&found.attributes, n, codes);
    attributes(&found.resources, found.resources.n, codes);
    same(
        n,
        &[
            found.resource.len(),
            found.scope.len(),
            found.name.len(),
            found.trace_state.len(),
            found.kind.len(),
            found.status.len(),
            found.flags.len(),
            found.start_ns.len(),
            found.end_ns.len(),
            found.trace_id.len() / 16,
            found.span_id.len() / 8,
            found.parent_span_id.len() / 8,
        ],
    );
    within(&found.resource, 0, found.resources.n);
    for column in [&found.scope, &found.name, &found.trace_state] {
        within(column, -1, codes);
    }
    assert!(found.flags.iter().all(|&flags| flags <= 0x3ff));
    assert!(found.start_ns.iter().chain(&found.end_ns).all(|&time| time >= 0));
}

/// What log records must be.
pub fn logs(found: &LogColumns) {
    let (n, codes) = (found.n, dictionary(&found.strings));
    attributes(&found.attributes, n, codes);
    attributes(&found.resources, found.resources.n, codes);
    same(
        n,
        &[
            found.resource.len(),
            found.scope.len(),
            found.time_ns.len(),
            found.observed_ns.len(),
            found.severity.len(),
            found.trace_id.len() / 16,
        ],
    );
    within(&found.resource, 0, found.resources.n);
    within(&found.scope, -1, codes);
    assert!(found.time_ns.iter().chain(&found.observed_ns).all(|&time| time >= 0));
}

/// What data points must be.
pub fn points(found: &PointColumns) {
    let (n, codes) = (found.n, dictionary(&found.strings));
    attributes(&found.attributes, n, codes);
    attributes(&found.resources, found.resources.n, codes);
    same(
        n,
        &[
            found.resource.len(),
            found.scope.len(),
            found.metric.len(),
            found.series.len() / 2,
            found.start_ns.len(),
            found.time_ns.len(),
            found.value.len(),
            found.count.len(),
            found.flags.len(),
            found.histogram.len(),
        ],
    );
    assert!(n + found.rejected <= MAX_ITEMS);
    let metrics = &found.metrics;
    let rows = metrics.name.len();
    same(
        rows,
        &[
            metrics.unit.len(),
            metrics.description.len(),
            metrics.kind.len(),
            metrics.temporality.len(),
            metrics.monotonic.len(),
        ],
    );
    within(&found.metric, 0, rows);
    within(&found.resource, 0, found.resources.n);
    within(&found.histogram, -1, found.histograms.bounds_id.len());
    for column in [&found.scope, &metrics.name, &metrics.unit, &metrics.description] {
        within(column, -1, codes);
    }
    assert!(found.time_ns.iter().all(|&time| time > 0));
    assert!(metrics.kind.iter().all(|&kind| kind <= 4));
    assert!(metrics.temporality.iter().all(|&temporality| temporality <= 2));
    histograms(&found.histograms);
}

fn histograms(found: &HistogramTable) {
    let n = found.bounds_id.len();
    same(
        n,
        &[
            found.starts.len() - 1,
            found.scale.len(),
            found.offset.len(),
            found.zero_count.len(),
            found.count.len(),
            found.sum.len(),
        ],
    );
    within(&found.bounds_id, -1, found.bounds.len());
    assert_eq!((found.starts[0], found.starts[n] as usize), (0, found.counts.len()));
    for (row, &bounds) in found.bounds_id.iter().enumerate() {
        let counts = &found.counts[found.starts[row] as usize..found.starts[row + 1] as usize];
        match usize::try_from(bounds) {
            Ok(id) => assert!(counts.is_empty() || counts.len() == found.bounds[id].len() + 1),
            Err(_) => assert!(counts.len() <= 160 && (-10..=20).contains(&found.scale[row])),
        }
    }
    for bounds in &found.bounds {
        assert!(bounds.iter().all(|bound| bound.is_finite()));
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
