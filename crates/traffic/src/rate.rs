//! Rates in options and files: packets or bits per second, or a percentage of the line rate.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Bytes on the link that are in no frame: preamble, start delimiter and shortest inter-frame gap (IEEE 802.3).
pub(crate) const WIRE_OVERHEAD_BYTES: f64 = 20.0;

/// A rate as written in an option or file, before it is converted to packets per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rate {
    /// Packets per second: `100k`, `1.5M`.
    Packets(f64),
    /// Bits per second of frames, check sequence included: `1Gbit/s`.
    Layer2Bits(f64),
    /// Bits per second on the link, preamble and gaps included: `1Gbit/s L1`.
    Layer1Bits(f64),
    /// Percentage of the line rate: `50%`, `50% of 10G`.
    Line {
        /// Fraction of the line rate, 0 to 1: 0.5 for `50%`.
        share: f64,
        /// Line rate in bit/s, if the text states it.
        bits_per_second: Option<f64>,
    },
}

/// Reason why a rate cannot be parsed or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rate \"{text}\": {reason}")]
pub struct RateError {
    text: String,
    reason: String,
}

impl Rate {
    /// Returns the rate in packets per second for frames with a mean size of `average_bytes` (check sequence included).
    ///
    /// # Errors
    /// The rate is a percentage, and the line rate is unknown.
    pub fn packets_per_second(self, average_bytes: f64) -> Result<f64, RateError> {
        let wire_bits = (average_bytes + WIRE_OVERHEAD_BYTES) * 8.0;
        match self {
            Self::Packets(pps) => Ok(pps),
            Self::Layer2Bits(bits) => Ok(bits / (average_bytes * 8.0)),
            Self::Layer1Bits(bits) => Ok(bits / wire_bits),
            Self::Line {
                share,
                bits_per_second: Some(bits),
            } => Ok(share * bits / wire_bits),
            Self::Line { .. } => Err(RateError {
                text: self.to_string(),
                reason: "name the line rate, such as 50% of 10G".to_string(),
            }),
        }
    }
}

/// Returns two bit rates of frames with a mean size of `average_bytes`, bits per second: of the frames, check sequence
/// included, and of the link, preambles and gaps included.
pub fn bits_per_second(pps: f64, average_bytes: f64) -> [f64; 2] {
    [average_bytes, average_bytes + WIRE_OVERHEAD_BYTES].map(|bytes| pps * bytes * 8.0)
}

fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let (digits, factor) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], 1e3),
        'M' => (&text[..text.len() - 1], 1e6),
        'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let value = digits.trim().parse::<f64>().ok()? * factor;
    (value.is_finite() && value > 0.0).then_some(value)
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let parse = || {
            let text = text.trim();
            if let Some((share, line)) = text.split_once('%') {
                let share = number(share)? / 100.0;
                let bits_per_second = match line.trim() {
                    "" => None,
                    line => Some(number(line.strip_prefix("of")?)?),
                };
                return (share <= 1.0).then_some(Self::Line {
                    share,
                    bits_per_second,
                });
            }
            let (amount, layer1) = match text.strip_suffix("L1") {
                Some(amount) => (amount.trim(), true),
                None => (text.strip_suffix("L2").unwrap_or(text).trim(), false),
            };
            match amount.strip_suffix("bit/s") {
                Some(bits) if layer1 => Some(Self::Layer1Bits(number(bits)?)),
                Some(bits) => Some(Self::Layer2Bits(number(bits)?)),
                None => {
                    let packets = amount.strip_suffix("pkt/s").unwrap_or(amount);
                    let pps = number(packets).filter(|pps| (1e-3..=1e9).contains(pps))?;
                    (!layer1).then_some(Self::Packets(pps))
                }
            }
        };
        parse().ok_or_else(|| RateError {
            text: text.to_string(),
            reason:
                "expected packets per second such as 100k or 1.5M (up to 1G), bits such as 1Gbit/s or \
                     \"1Gbit/s L1\", or a share of the line such as \"50% of 10G\""
                    .to_string(),
        })
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Packets(pps) => write!(f, "{pps}"),
            Self::Layer2Bits(bits) => write!(f, "{bits}bit/s"),
            Self::Layer1Bits(bits) => write!(f, "{bits}bit/s L1"),
            Self::Line {
                share,
                bits_per_second,
            } => {
                write!(f, "{}%", share * 100.0)?;
                bits_per_second.map_or(Ok(()), |bits| write!(f, " of {bits}"))
            }
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = RateError;

    fn try_from(text: String) -> Result<Self, RateError> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pps(text: &str, bytes: f64) -> f64 {
        let rate: Rate = text.parse().unwrap();
        rate.packets_per_second(bytes).unwrap()
    }

    #[test]
    fn rates_in_every_unit_convert_to_packets_per_second() {
        assert_eq!(pps("100k", 64.0), 100_000.0);
        assert_eq!(pps("1.5Mpkt/s", 64.0), 1_500_000.0);
        assert_eq!(pps("512Mbit/s", 64.0), 1_000_000.0);
        assert_eq!(pps("672Mbit/s L1", 64.0), 1_000_000.0);
        assert_eq!(bits_per_second(1e6, 64.0), [512e6, 672e6]);
        assert!((pps("100% of 10G", 64.0) - 14_880_952.4).abs() < 0.1);
    }

    #[test]
    fn errors_for_invalid_rates_name_a_valid_form() {
        for text in ["fast", "0", "-1k", "2G", "120% of 1G", "1k L1", ""] {
            let message = text.parse::<Rate>().unwrap_err().to_string();
            assert!(message.contains("expected packets per second"), "{text}");
        }
        let line: Rate = "50%".parse().unwrap();
        let message = line.packets_per_second(64.0).unwrap_err().to_string();
        assert!(message.contains("of 10G"));
    }
}
