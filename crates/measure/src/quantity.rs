//! Formats numbers for users: times, rates and fractions with a unit that fits their size.

use crate::Summary;

/// The meaning of a number on an axis, in a table or in a tooltip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A duration in nanoseconds.
    TimeNs,
    /// A point in time in seconds.
    Seconds,
    /// Packets per second.
    RatePps,
    /// A fraction of one, shown in percent.
    Share,
    /// A quantile as a fraction of one (0.999), shown as a percentile (99.9 %).
    Quantile,
    /// Cycles of the time-stamp counter.
    Cycles,
    /// A number of packets.
    Packets,
    /// A size of memory in bytes.
    Bytes,
    /// A squared duration in nanoseconds squared.
    SquaredNs,
    /// Any other number; its unit is in the title of the axis.
    Number,
}

impl Quantity {
    /// Returns the identifier of the quantity in the report's script.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::TimeNs => "time",
            Quantity::Seconds => "seconds",
            Quantity::RatePps => "rate",
            Quantity::Share => "share",
            Quantity::Quantile => "quantile",
            Quantity::Cycles => "cycles",
            Quantity::Packets => "packets",
            Quantity::Bytes => "bytes",
            Quantity::SquaredNs => "squared",
            Quantity::Number => "number",
        }
    }

    /// Returns a short label for an axis tick, without trailing zeros.
    pub fn tick(self, value: f64) -> String {
        match self {
            Quantity::TimeNs => {
                let (scaled, unit) = time_unit(value);
                format!("{} {unit}", shortest(scaled))
            }
            Quantity::Seconds => shortest(value),
            Quantity::RatePps => {
                let (scaled, unit) = rate_unit(value);
                format!("{}{unit}", shortest(scaled))
            }
            Quantity::Share => format!("{} %", shortest(value * 100.0)),
            Quantity::Quantile => format!("{}", Percentile(value)),
            Quantity::Cycles | Quantity::Packets => shortest(value),
            Quantity::Bytes => bytes(value),
            Quantity::SquaredNs => power(value),
            Quantity::Number if value != 0.0 && value.abs() < 1e-3 => format!("{value:e}"),
            Quantity::Number => {
                let (scaled, unit) = rate_unit(value);
                format!("{}{unit}", shortest(scaled))
            }
        }
    }

    /// Returns the value with its unit and three significant digits.
    pub fn text(self, value: f64) -> String {
        match self {
            Quantity::TimeNs => time(value),
            Quantity::Seconds => format!("{} s", three_digits(value)),
            Quantity::RatePps => rate(value),
            Quantity::Share => share(value),
            Quantity::Quantile => format!("p{}", Percentile(value)),
            Quantity::Cycles => format!("{} cycles", three_digits(value)),
            Quantity::Packets => format!("{} packets", three_digits(value)),
            Quantity::Bytes => bytes(value),
            Quantity::SquaredNs => format!("{} ns²", power(value)),
            Quantity::Number => plain(value),
        }
    }
}

/// Returns a time in nanoseconds with three significant digits: `812 ns`, `5.70 µs`, `1.23 ms`.
pub fn time(ns: f64) -> String {
    let (scaled, unit) = time_unit(ns);
    format!("{} {unit}", three_digits(scaled))
}

/// Returns minimum, mean, percentiles, maximum and standard deviation of times, and their number, on one line.
pub fn summary(of: &Summary) -> String {
    let percentile = |ns: Option<u64>| ns.map_or("n/a".to_owned(), |ns| time(ns as f64));
    format!(
        "min {}  avg {}  p50 {}  p99 {}  p99.9 {}  p99.99 {}  max {}  std {}  (n = {})",
        time(of.min_ns as f64),
        time(of.avg_ns),
        percentile(of.p50_ns),
        percentile(of.p99_ns),
        percentile(of.p99_9_ns),
        percentile(of.p99_99_ns),
        time(of.max_ns as f64),
        time(of.std_ns),
        of.count
    )
}

/// Returns a rate with three significant digits: `100 kpkt/s`, `14.9 Mpkt/s`.
pub fn rate(pps: f64) -> String {
    let (scaled, unit) = rate_unit(pps);
    format!("{} {unit}pkt/s", three_digits(scaled))
}

/// Returns a bit rate with three significant digits: `51.2 Mbit/s`, `9.54 Gbit/s`.
pub fn bit_rate(bits_per_s: f64) -> String {
    let (scaled, unit) = rate_unit(bits_per_s);
    format!("{} {unit}bit/s", three_digits(scaled))
}

/// Returns a fraction of one as a percentage; small fractions keep two significant digits, zero is `0 %`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a logarithm of a finite number fits, and decimals are clamped"
)]
pub fn share(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 {
        "0 %".to_owned()
    } else if percent.abs() >= 0.095 {
        format!("{} %", three_digits(percent))
    } else {
        let decimals = 1 - percent.abs().log10().floor() as i32;
        format!("{percent:.*} %", decimals.clamp(0, 12) as usize)
    }
}

/// Returns a short text for numbers that span many powers of ten: `250`, `2.9e4`.
pub fn power(value: f64) -> String {
    if value.abs() < 1e4 {
        three_digits(value)
    } else {
        let text = format!("{value:.1e}");
        text.replace(".0e", "e")
    }
}

/// Returns a size of memory, in powers of 1024 as usual for caches, with three significant digits or fewer: `32 kB`.
pub fn bytes(bytes: f64) -> String {
    // From 1023.5 of a unit on, the number would round up to 1024, which is 1 of the next unit.
    let (scaled, unit) = match bytes {
        b if b >= 1_023.5 * 1_048_576.0 => (b / 1_073_741_824.0, "GB"),
        b if b >= 1_023.5 * 1_024.0 => (b / 1_048_576.0, "MB"),
        b if b >= 1_023.5 => (b / 1_024.0, "kB"),
        b => (b, "B"),
    };
    let text = three_digits(scaled);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text} {unit}")
}

/// Returns a number without a unit: three significant digits, no trailing zeros, and an exponent only where more than
/// six zeros would be needed: `0.0505`, `2.5`, `12.3k`, `1.2e-8`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a logarithm of a finite number fits, and decimals are clamped"
)]
pub fn plain(value: f64) -> String {
    if !value.is_finite() {
        return "n/a".to_owned();
    }
    let (scaled, unit) = rate_unit(value);
    if scaled == 0.0 {
        return "0".to_owned();
    }
    // Rounding comes first: 9.996 is 10.0, with one digit fewer after the point.
    let rounded: f64 = format!("{scaled:.2e}").parse().unwrap_or(scaled);
    if rounded.abs() < 1e-7 {
        return format!("{rounded:e}");
    }
    let decimals = (2 - rounded.abs().log10().floor() as i32).max(0);
    let text = format!("{rounded:.*}", decimals as usize);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

/// Returns a ratio: `9.8x`, `1.02x`.
pub fn ratio(value: f64) -> String {
    format!("{}×", three_digits(value))
}

/// Returns a number with its noun, whose plural ends in s: `1 rule`, `2 rules`.
pub fn counted(count: impl std::fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    let end = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{end}")
}

/// Returns an integer with thin spaces between groups of three digits.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 * 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Returns a number with three significant digits and without an exponent; all integer digits are printed, even if
/// there are more than three.
pub fn three_digits(value: f64) -> String {
    if !value.is_finite() {
        return "n/a".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.0995 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// A formatter that writes 0.5 as `50`, 0.99999 as `99.999`, without binary noise.
struct Percentile(f64);

impl std::fmt::Display for Percentile {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "decimals are a small number above 0"
    )]
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rest = 1.0 - self.0;
        let decimals = if rest > 0.0 {
            (-rest.log10() - 2.0 - 1e-6).ceil().clamp(0.0, 9.0)
        } else {
            0.0
        };
        write!(out, "{:.*}", decimals as usize, self.0 * 100.0)
    }
}

fn time_unit(ns: f64) -> (f64, &'static str) {
    // From these bounds on, three digits would round up to the next unit.
    match ns.abs() {
        size if size >= 999.5e6 => (ns / 1e9, "s"),
        size if size >= 999.5e3 => (ns / 1e6, "ms"),
        size if size >= 999.5 => (ns / 1e3, "µs"),
        _ => (ns, "ns"),
    }
}

fn rate_unit(pps: f64) -> (f64, &'static str) {
    match pps.abs() {
        size if size >= 999.5e6 => (pps / 1e9, "G"),
        size if size >= 999.5e3 => (pps / 1e6, "M"),
        size if size >= 999.5 => (pps / 1e3, "k"),
        _ => (pps, ""),
    }
}

/// Returns at most six significant digits, without trailing zeros.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a logarithm of a finite number fits, and decimals are clamped"
)]
fn shortest(value: f64) -> String {
    let decimals = if value == 0.0 {
        0
    } else {
        (5 - value.abs().log10().floor() as i32).clamp(0, 9)
    };
    let text = format!("{value:.*}", decimals as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_the_unit_that_suits_their_magnitude() {
        assert_eq!(time(0.0), "0 ns");
        assert_eq!(time(812.0), "812 ns");
        assert_eq!(time(999.7), "1.00 µs");
        assert_eq!(time(5_700.0), "5.70 µs");
        assert_eq!(time(117_000.0), "117 µs");
        assert_eq!(time(3.21e9), "3.21 s");
        assert_eq!(time(f64::NAN), "n/a ns");
    }

    #[test]
    fn rates_and_ratios_are_rounded_and_counts_are_grouped() {
        assert_eq!(rate(100_000.0), "100 kpkt/s");
        assert_eq!(rate(14_880_000.0), "14.9 Mpkt/s");
        assert_eq!(bit_rate(51_200_000.0), "51.2 Mbit/s");
        assert_eq!(share(0.0), "0 %");
        assert_eq!(share(0.5), "50.0 %");
        assert_eq!(share(0.000_056), "0.0056 %");
        assert_eq!(share(0.000_001_2), "0.00012 %");
        assert_eq!(share(-0.000_3), "-0.030 %");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(12), "12");
        let nouns = [0_u64, 1, 2].map(|count| counted(count, "rule"));
        assert_eq!(nouns, ["0 rules", "1 rule", "2 rules"]);
    }

    #[test]
    fn every_quantity_is_printed_with_its_unit() {
        assert_eq!(Quantity::TimeNs.text(5_700.0), "5.70 µs");
        assert_eq!(Quantity::Share.text(0.123), "12.3 %");
        assert_eq!(Quantity::Quantile.text(0.999), "p99.9");
        assert_eq!(Quantity::Number.text(12_345.0), "12.3k");
        assert_eq!(Quantity::Number.text(0.000_123), "0.000123");
        assert_eq!(Quantity::Number.text(0.0), "0");
    }

    #[test]
    fn numbers_are_printed_with_up_to_three_significant_digits() {
        for (value, text) in [
            (0.0505, "0.0505"),
            (0.05, "0.05"),
            (-0.000_123_4, "-0.000123"),
            (0.000_000_12, "0.00000012"),
            (1.234e-8, "1.23e-8"),
            (0.099_96, "0.1"),
            (1.0, "1"),
            (2.5, "2.5"),
            (1.234, "1.23"),
            (9.996, "10"),
            (99.96, "100"),
            (120.0, "120"),
            (999.4, "999"),
            (999.6, "1k"),
            (12_345.0, "12.3k"),
            (-2e6, "-2M"),
            (4e12, "4000G"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(plain(value), text);
        }
    }

    #[test]
    fn axis_ticks_have_no_superfluous_digits() {
        assert_eq!(Quantity::TimeNs.tick(2_000.0), "2 µs");
        assert_eq!(Quantity::TimeNs.tick(1_000_000.0), "1 ms");
        assert_eq!(Quantity::RatePps.tick(200_000.0), "200k");
        assert_eq!(Quantity::Share.tick(0.3), "30 %");
        assert_eq!(Quantity::Seconds.tick(0.1 + 0.2), "0.3");
        assert_eq!(Quantity::Bytes.tick(32_768.0), "32 kB");
        assert_eq!(Quantity::Bytes.tick(1_610_612_736.0), "1.5 GB");
        assert_eq!(Quantity::Bytes.tick(2_892.0), "2.82 kB");
        assert_eq!(Quantity::Bytes.tick(1_048_575.0), "1 MB");
        assert_eq!(Quantity::Bytes.tick(0.0), "0 B");
        assert_eq!(Quantity::Share.tick(1e-5), "0.001 %");
        assert_eq!(Quantity::Share.tick(1e-8), "0.000001 %");
        assert_eq!(Quantity::Number.tick(2_500_000.0), "2.5M");
        assert_eq!(Quantity::Number.tick(-3.0), "-3");
        assert_eq!(Quantity::Number.tick(0.0001), "1e-4");
        assert_eq!(Quantity::Quantile.tick(0.5), "50");
        assert_eq!(Quantity::Quantile.tick(0.99999), "99.999");
    }
}
