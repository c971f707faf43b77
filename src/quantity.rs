//! Numbers as people write and read them: rates, times.

use taut_measure::Summary;

/// Reads a number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1e7).contains(&value) => Ok(value),
        _ => Err("want seconds, such as 10 or 0.5".to_string()),
    }
}

/// Reads a share of a whole, also in per cent: 0.05 or 5%.
pub fn share(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, factor) = text
        .strip_suffix('%')
        .map_or((text, 1.0), |number| (number.trim_end(), 0.01));
    match number.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&(value * factor)) => Ok(value * factor),
        Ok(value) if value > 1.0 && value <= 100.0 && factor == 1.0 => Err(format!(
            "want a share from 0 to 1: {number} % is {number}% or {}",
            value / 100.0
        )),
        _ => Err("want a share from 0 to 1, such as 0.05 or 5%".to_string()),
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
        t if t >= 1e3 => format!("{:.2} \u{b5}s", t / 1e3),
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
    fn shares_are_parts_of_a_whole_or_per_cent() {
        assert_eq!(share("0.05"), Ok(0.05));
        assert_eq!(share("5%"), Ok(0.05));
        assert_eq!(share("100 %"), Ok(1.0));
        for wrong in [
            "5", "NaN", "NaN%", "inf", "-1", "-0.1%", "101%", "", "%", "\u{65e5}",
        ] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert!(share("5").is_err_and(|e| e.contains("5 % is 5% or 0.05")));
    }

    #[test]
    fn times_take_the_unit_that_suits_them() {
        assert_eq!(ns(999.0), "999 ns");
        assert_eq!(ns(56_100.0), "56.10 \u{b5}s");
    }
}
