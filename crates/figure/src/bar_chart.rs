//! A histogram of latencies as lines of text, for terminals.

use taut_measure::LatencyHistogram;
use taut_measure::quantity::{share, time};

/// Length of the longest bar, characters.
const LONGEST: usize = 32;
/// Maximum number of bins of equal width below p99.9.
const MOST_EQUAL: f64 = 12.0;
/// Ratio of p99.9 to the minimum latency above which the bins are logarithmic.
const MOST_LINEAR: f64 = 5.0;
/// Ends of bars, by eighths of a character.
const ENDS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Returns a line for each bin from the smallest latency to the largest: where the bin begins, a bar, and the fraction
/// of all latencies. The bins are fine up to p99.9; the last one holds the rest. Without latencies there is no line.
pub fn lines(latency: &LatencyHistogram) -> Vec<String> {
    let (Some(min), Some(high), Some(max)) =
        (latency.min_ns(), latency.quantile(0.999), latency.max_ns())
    else {
        return Vec::new();
    };
    let mut begins = begins(min as f64, high as f64);
    let mut counts = vec![0_u64; begins.len()];
    for bucket in latency.iter() {
        let middle = bucket.low_ns.midpoint(bucket.high_ns).clamp(min, max) as f64;
        let above = begins.partition_point(|begin| *begin <= middle);
        counts[above.saturating_sub(1)] += bucket.count;
    }
    let shown = counts.iter().rposition(|count| *count > 0).unwrap_or(0) + 1;
    begins.truncate(shown);
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let begins: Vec<String> = begins.into_iter().map(time).collect();
    let width = begins.iter().map(|it| it.chars().count()).max();
    let width = width.unwrap_or(0);
    let rows = begins.iter().zip(&counts);
    rows.map(|(begin, count)| {
        let bar = bar(*count, most);
        let part = share(*count as f64 / latency.count() as f64);
        format!("from {begin:>width$}  {bar:LONGEST$} {part:>9}")
    })
    .collect()
}

/// Returns where the bins begin, ns, in ascending order, the last one above `high_ns`.
fn begins(min_ns: f64, high_ns: f64) -> Vec<f64> {
    if high_ns > MOST_LINEAR * min_ns.max(1.0) {
        return logarithmic(min_ns.max(1.0), high_ns);
    }
    let step = round_step((high_ns - min_ns) / MOST_EQUAL);
    let first = (min_ns / step).floor();
    let count = (high_ns / step).floor() - first + 1.0;
    (0..=count as usize)
        .map(|number| (first + number as f64) * step)
        .collect()
}

/// Returns 1, 2 and 5 times powers of ten, from the last one that is at most `min_ns` to the first above `high_ns`.
fn logarithmic(min_ns: f64, high_ns: f64) -> Vec<f64> {
    let mut begins = Vec::new();
    let mut power = 1.0;
    loop {
        for digit in [1.0, 2.0, 5.0] {
            let begin = digit * power;
            if begin <= min_ns {
                begins.clear();
            }
            begins.push(begin);
            if begin > high_ns {
                return begins;
            }
        }
        power *= 10.0;
    }
}

/// Returns the smallest of 1, 2 and 5 times powers of ten that is at least `least_ns`.
fn round_step(least_ns: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for digit in [1.0, 2.0, 5.0] {
            if digit * power >= least_ns {
                return digit * power;
            }
        }
        power *= 10.0;
    }
}

/// Returns the bar of a count; a count above zero always has a visible bar.
fn bar(count: u64, most: f64) -> String {
    let eighths = (count as f64 / most * (8 * LONGEST) as f64).round() as usize;
    let eighths = eighths.max(usize::from(count > 0));
    "█".repeat(eighths / 8) + ENDS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Vec<String> {
        let mut latency = LatencyHistogram::new();
        for (ns, count) in values {
            latency.record_many(*ns, *count);
        }
        lines(&latency)
    }

    #[test]
    fn one_bin_holds_all_latencies_above_a_percentile() {
        let lines = of(&[(3_200, 600), (3_340, 300), (3_950, 99), (155_000, 1)]);
        assert_eq!(lines.len(), 9, "{lines:#?}");
        assert_eq!(
            lines[0],
            format!("from 3.20 µs  {} {:>9}", "█".repeat(32), "60.0 %")
        );
        assert_eq!(
            lines[1],
            format!("from 3.30 µs  {:32} {:>9}", "█".repeat(16), "30.0 %")
        );
        assert!(lines[8].starts_with("from 4.00 µs  ▏ "), "{lines:#?}");
        assert!(lines[8].ends_with(" 0.10 %"), "{lines:#?}");
    }

    #[test]
    fn latencies_of_several_powers_of_ten_have_logarithmic_bins() {
        let lines = of(&[(700, 50), (4_000, 25), (1_500_000, 25)]);
        let begins = lines.iter().filter_map(|it| it[5..].split("  ").next());
        let begins: Vec<&str> = begins.map(str::trim).collect();
        let want = [
            "500 ns", "1.00 µs", "2.00 µs", "5.00 µs", "10.0 µs", "20.0 µs", "50.0 µs", "100 µs",
            "200 µs", "500 µs", "1.00 ms",
        ];
        assert_eq!(begins, want);
    }

    #[test]
    fn a_histogram_has_few_lines_and_an_empty_one_none() {
        assert!(of(&[]).is_empty());
        for values in [
            &[(0, 1)][..],
            &[(7, 3)],
            &[(0, 1), (u64::MAX, 1)],
            &[(5, 9), (6, 9)],
        ] {
            let lines = of(values);
            assert!((1..62).contains(&lines.len()), "{lines:#?}");
        }
    }
}
