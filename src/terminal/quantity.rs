//! Quantities as users write them on the command line: times and fractions. The laboratory crate formats them for
//! output.

use std::time::Duration;
pub use taut_measure::quantity::{counted, rate, summary, time};

/// Parses a time with its unit, which may be zero: `0us`.
pub fn duration(text: &str) -> Result<Duration, String> {
    taut_settings::duration(text)
        .ok_or_else(|| "expected a time, such as 800ns, 5ms or 10s".to_string())
}

/// Parses a time above zero with its unit.
pub fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a time above 0, such as 800ns, 5ms or 10s".to_string()),
        time => Ok(time),
    }
}

/// Parses a number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1e7).contains(&value) => Ok(value),
        _ => Err("expected seconds, such as 10 or 0.5".to_string()),
    }
}

/// Parses a fraction, which may be in per cent: 0.05 or 5%.
pub fn share(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, factor) = text
        .strip_suffix('%')
        .map_or((text, 1.0), |number| (number.trim_end(), 0.01));
    match number.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&(value * factor)) => Ok(value * factor),
        Ok(value) if value > 1.0 && value <= 100.0 && factor == 1.0 => Err(format!(
            "expected a fraction from 0 to 1: {number} % is {number}% or {}",
            value / 100.0
        )),
        _ => Err("expected a fraction from 0 to 1, such as 0.05 or 5%".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_parse_as_fractions_or_percentages() {
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
    fn durations_require_a_unit_and_refuse_negative_values() {
        assert_eq!(some_time("1.5 ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("0us"), Ok(Duration::ZERO));
        assert!(some_time("0us").is_err_and(|e| e.contains("above 0")));
        for wrong in ["50", "-1us", "NaN", "inf s", "1e30s", "", "us", "\u{65e5}s"] {
            assert!(
                duration(wrong).is_err_and(|e| e.contains("such as")),
                "{wrong}"
            );
        }
    }
}
