//! Histograms in their JSON form: the lowest value (ns) and the count of each bucket.

use taut_measure::LatencyHistogram;

/// Converts a histogram to the lowest value (ns) and the count of each bucket.
pub fn buckets(histogram: &LatencyHistogram) -> Vec<(u64, u64)> {
    histogram.iter().map(|b| (b.low_ns, b.count)).collect()
}

/// Makes a histogram from the lowest value (ns) and the count of each bucket.
pub fn histogram(buckets: &[(u64, u64)]) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for (ns, count) in buckets {
        histogram.record_many(*ns, *count);
    }
    histogram
}
