//! Histograms as they are stored in JSON: of each bucket its lowest value (ns) and how many.

use taut_measure::LatencyHistogram;

/// A histogram as it is stored.
pub fn buckets(histogram: &LatencyHistogram) -> Vec<(u64, u64)> {
    histogram.iter().map(|b| (b.low_ns, b.count)).collect()
}

/// A stored histogram.
pub fn histogram(buckets: &[(u64, u64)]) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for (ns, count) in buckets {
        histogram.record_many(*ns, *count);
    }
    histogram
}
