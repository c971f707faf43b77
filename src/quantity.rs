//! Numbers as people write them on the command line. How they are printed is the laboratory's.

pub use taut_lab::quantity::{rate, summary, time};

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
}
