//! Flush policies: when a worker sends its transmit buffer to the egress port. (Stylianopoulos et al., DEBS 2020,
//! section 3.)

use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;
use taut_port::BATCH_CAPACITY;
use taut_settings::duration;

/// A flush policy: when buffered packets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Flush {
    /// `full(n, drain)`: sends the buffer when it has `n` packets, and also each time the drain timer expires, with any
    /// number of packets. DPDK's l2fwd does the same (n = 32, drain = 100 µs).
    Full {
        /// Number of packets that fill the buffer.
        n: usize,
        /// Period of the drain timer.
        drain: Duration,
    },
    /// `each`: sends every packet separately and immediately (DPDK's l2fwd with a buffer of 1).
    Each,
    /// `every(t)`: sends all buffered packets every `t`, or earlier if the buffer is full.
    Every {
        /// Period of the flush timer.
        period: Duration,
    },
    /// `idle(n)`: sends as soon as the receive queue is empty or the buffer has `n` packets. It has the latency of
    /// `each` while packets arrive one at a time, and the throughput of `full(n)` when they queue up.
    Idle {
        /// Maximum number of packets sent together.
        n: usize,
    },
}

/// The reason why the text of a flush policy cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("flush \"{text}\": {reason}")]
pub struct FlushError {
    text: String,
    reason: String,
}

const FORMS: &str =
    "expected full(N, TIME), each, every(TIME) or idle(N), such as full(32, 100us) or idle(32)";

impl FromStr for Flush {
    type Err = FlushError;

    fn from_str(text: &str) -> Result<Self, FlushError> {
        let error = |reason: String| FlushError {
            text: text.to_string(),
            reason,
        };
        let count = |s: &str| match s.parse::<usize>() {
            Ok(n) if (1..=BATCH_CAPACITY).contains(&n) => Ok(n),
            _ => Err(error(format!(
                "\"{s}\": expected a number of packets from 1 to {BATCH_CAPACITY}"
            ))),
        };
        let time = |s: &str| {
            duration(s)
                .filter(|t| (1..=1_000_000_000).contains(&t.as_nanos()))
                .ok_or_else(|| {
                    error(format!(
                        "\"{s}\": expected a time from 1ns to 1s, such as 100us"
                    ))
                })
        };
        let (name, arguments) = match text.trim().split_once('(') {
            None => (text.trim(), Vec::new()),
            Some((name, rest)) => match rest.strip_suffix(')') {
                Some(inner) => (name.trim(), inner.split(',').map(str::trim).collect()),
                None => return Err(error(FORMS.to_string())),
            },
        };
        match (name, arguments.as_slice()) {
            ("each", []) => Ok(Self::Each),
            ("full", [n, drain]) => Ok(Self::Full {
                n: count(n)?,
                drain: time(drain)?,
            }),
            ("every", [period]) => Ok(Self::Every {
                period: time(period)?,
            }),
            ("idle", [n]) => Ok(Self::Idle { n: count(n)? }),
            _ => Err(error(FORMS.to_string())),
        }
    }
}

/// Formats a duration in the syntax of chain files, which the parser accepts.
pub(crate) fn short(t: Duration) -> String {
    let ns = t.as_nanos() as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns}ns"),
        ns if ns < 1e6 => format!("{}us", ns / 1e3),
        ns if ns < 1e9 => format!("{}ms", ns / 1e6),
        ns => format!("{}s", ns / 1e9),
    }
}

impl std::fmt::Display for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full { n, drain } => write!(f, "full({n}, {})", short(*drain)),
            Self::Each => f.write_str("each"),
            Self::Every { period } => write!(f, "every({})", short(*period)),
            Self::Idle { n } => write!(f, "idle({n})"),
        }
    }
}

impl TryFrom<String> for Flush {
    type Error = FlushError;

    fn try_from(text: String) -> Result<Self, FlushError> {
        text.parse()
    }
}

impl From<Flush> for String {
    fn from(flush: Flush) -> String {
        flush.to_string()
    }
}

impl Default for Flush {
    fn default() -> Self {
        Self::Idle { n: 32 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_printed_flush_policy_parses_to_the_same_policy() {
        for text in [
            "full(32, 100us)",
            "each",
            "every(50us)",
            "idle(32)",
            "full(1, 1.5ms)",
            "every(1s)",
        ] {
            assert_eq!(text.parse::<Flush>().unwrap().to_string(), text);
        }
        assert_eq!(
            "full( 32,100µs )".parse::<Flush>().unwrap().to_string(),
            "full(32, 100us)"
        );
    }

    #[test]
    fn invalid_flush_policies_are_refused_with_the_valid_values() {
        for (text, part) in [
            ("fast", "expected full(N, TIME)"),
            ("full(32)", "expected full(N, TIME)"),
            ("idle(32", "expected full(N, TIME)"),
            ("idle(65)", "1 to 64"),
            ("idle(0)", "1 to 64"),
            ("every(5)", "such as 100us"),
            ("every(0us)", "1ns to 1s"),
            ("every(9e999s)", "1ns to 1s"),
            ("full(32, 2s)", "1ns to 1s"),
        ] {
            let message = text.parse::<Flush>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
