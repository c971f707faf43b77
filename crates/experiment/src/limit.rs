//! Limit on the deterioration of a metric, for a gate and for a comparison.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The largest change of a metric for the worse that counts as no change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Fraction of the reference's value, such as 0.03; at least 0.
    pub share: f64,
    /// True if a lower value is worse, as for rates.
    pub less_is_worse: bool,
}

impl Limit {
    /// Parses a limit such as `3%` or `0.03`; its sign states which direction is worse, as in `-5%`. Without a sign, a
    /// lower value is worse if `less_is_worse` is true.
    ///
    /// # Errors
    /// The text is not a valid change, or is a decrease by 100 % or more.
    pub fn parse(text: &str, less_is_worse: bool) -> Result<Self, String> {
        let (less_is_worse, digits) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (less_is_worse, text),
        };
        // Without a percent sign, 3 may mean 3 % or 300 %, so only fractions are accepted.
        let (number, unit, highest) = match digits.strip_suffix('%') {
            Some(percent) if !less_is_worse => (percent.trim(), 100.0, f64::INFINITY),
            Some(percent) => (percent.trim(), 100.0, 1.0),
            None => (digits, 1.0, 1.0),
        };
        let share = number.parse::<f64>().map(|number| number / unit);
        match share {
            Ok(share) if (0.0..highest).contains(&share) => Ok(Self {
                share,
                less_is_worse,
            }),
            _ => Err(format!(
                "`{text}` is not a limit: give a change such as 3%, or -5% where a lower value is worse"
            )),
        }
    }

    /// Returns the largest (or, for `less_is_worse`, the smallest) allowed ratio of the new value to the reference.
    pub fn ratio(self) -> f64 {
        if self.less_is_worse {
            1.0 - self.share
        } else {
            1.0 + self.share
        }
    }
}

impl std::str::FromStr for Limit {
    type Err = String;

    /// Parses a limit such as `3%`, or `-5%` if a lower value is worse.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, false)
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.less_is_worse { "-" } else { "+" };
        write!(f, "{sign}{} %", rounded(self.share * 100.0))
    }
}

/// Returns a number with at most two decimals, without trailing zeros.
pub(crate) fn rounded(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_sign_of_a_limit_is_the_worse_direction() {
        let limit: Limit = "-5%".parse().unwrap();
        assert!(limit.less_is_worse && limit.ratio() == 0.95 && limit.to_string() == "-5 %");
        for text in ["3%", "+3%", "3 %", "0.03"] {
            assert_eq!(text.parse::<Limit>().unwrap().ratio(), 1.03, "{text}");
        }
        assert_eq!("150%".parse::<Limit>().unwrap().share, 1.5);
        for wrong in [
            "", "3", "1", "x%", "-100%", "-1", "nan%", "nan", "--3%", "+-3%", "1e999%", "3%%", "%",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_sign_overrides_the_usual_direction_of_a_limit() {
        assert!(Limit::parse("5%", true).unwrap().less_is_worse);
        assert!(!Limit::parse("+5%", true).unwrap().less_is_worse);
        assert!(Limit::parse("-5%", false).unwrap().less_is_worse);
        assert!(Limit::parse("100%", true).is_err() && Limit::parse("100%", false).is_ok());
    }
}
