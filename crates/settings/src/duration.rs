//! The format of times in files and on command lines.

use std::time::Duration;

/// Longest time that settings accept, s: a day.
const LONGEST_S: f64 = 86_400.0;

/// Parses a time with its unit: `100us`, `1.5ms`, `20ns`, `1s`; µ is also accepted. Returns none for anything else, and
/// for more than a day.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(taut_settings::duration("1.5ms"), Some(Duration::from_micros(1500)));
/// assert_eq!(taut_settings::duration("5"), None);
/// ```
pub fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let value: f64 = text[..at].parse().ok()?;
    let ns = value
        * match text[at..].trim() {
            "ns" => 1.0,
            // The two characters are the micro sign and the Greek letter.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return None,
        };
    (ns <= LONGEST_S * 1e9).then(|| Duration::from_nanos(ns.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_only_with_a_unit() {
        for (text, ns) in [
            ("100us", Some(100_000)),
            (" 1.5 ms ", Some(1_500_000)),
            ("0s", Some(0)),
            ("7µs", Some(7_000)),
            ("20ns", Some(20)),
            ("86400s", Some(86_400_000_000_000)),
            ("86401s", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("5", None),
            ("s", None),
            ("", None),
            ("9e999s", None),
        ] {
            assert_eq!(duration(text), ns.map(Duration::from_nanos), "{text}");
        }
    }
}
