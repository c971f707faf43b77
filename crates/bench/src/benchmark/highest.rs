//! Highest rates in tables and sentences. A rate that something other than the device limited is a lower bound of what
//! the device can do.

use taut_measure::Limit;
use taut_measure::quantity::rate;

/// Returns a highest rate for a sentence, such as `at least 357 kpkt/s (the generator was the limit)`. `is_busy` is
/// true if other programs took so much of a core that the rate is uncertain.
pub fn in_words(pps: f64, limit: Limit, is_busy: bool) -> String {
    let why = match limit {
        Limit::Generator => "the generator was the limit",
        Limit::Range => "the highest rate offered was the limit",
        Limit::Device if is_busy => "the machine was busy",
        Limit::Device => return rate(pps),
    };
    format!("at least {} ({why})", rate(pps))
}

/// Returns a highest rate for a table: with `>=` before it unless the device was the limit.
pub fn in_table(rate: &str, limit: Limit) -> String {
    match limit {
        Limit::Device => rate.to_owned(),
        Limit::Generator | Limit::Range => format!(">= {rate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_the_device_did_not_limit_are_lower_bounds() {
        let words = |limit, is_busy| in_words(357e3, limit, is_busy);
        assert_eq!(words(Limit::Device, false), "357 kpkt/s");
        for (limit, is_busy, wanted) in [
            (Limit::Device, true, "the machine was busy"),
            (Limit::Generator, true, "the generator was the limit"),
            (
                Limit::Range,
                false,
                "the highest rate offered was the limit",
            ),
        ] {
            assert_eq!(
                words(limit, is_busy),
                format!("at least 357 kpkt/s ({wanted})")
            );
        }
        assert_eq!(in_table("3 Mpkt/s", Limit::Generator), ">= 3 Mpkt/s");
        assert_eq!(in_table("3 Mpkt/s", Limit::Device), "3 Mpkt/s");
    }
}
