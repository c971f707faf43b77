//! Numbers as people write and read them: rates, times.

use taut_measure::Summary;

/// Reads a number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1e7).contains(&value) => Ok(value),
        _ => Err("want seconds, such as 10 or 0.5".to_string()),
    }
}

/// Packets per second, for people.
pub fn pps(pps: f64) -> String {
    match pps {
        p if p >= 1e6 => format!("{:.3} Mpkt/s", p / 1e6),
        p if p >= 1e3 => format!("{:.1} kpkt/s", p / 1e3),
        p => format!("{p:.0} pkt/s"),
    }
}

/// A time in the unit that suits it.
pub fn ns(ns: f64) -> String {
    match ns {
        t if t >= 1e9 => format!("{:.2} s", t / 1e9),
        t if t >= 1e6 => format!("{:.2} ms", t / 1e6),
        t if t >= 1e3 => format!("{:.2} us", t / 1e3),
        t => format!("{t:.0} ns"),
    }
}

/// The usual percentiles on one line.
pub fn summary(s: &Summary) -> String {
    let percentile = |p: Option<u64>| p.map_or("n/a".to_string(), |v| ns(v as f64));
    format!(
        "min {}  avg {}  p50 {}  p99 {}  p99.9 {}  p99.99 {}  max {}  std {}  (n = {})",
        ns(s.min_ns as f64),
        ns(s.avg_ns),
        percentile(s.p50_ns),
        percentile(s.p99_ns),
        percentile(s.p99_9_ns),
        percentile(s.p99_99_ns),
        ns(s.max_ns as f64),
        ns(s.std_ns),
        s.count
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_unit_that_suits_them() {
        assert_eq!(ns(999.0), "999 ns");
        assert_eq!(ns(56_100.0), "56.10 us");
    }
}
