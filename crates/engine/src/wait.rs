//! Waiting policies: what a worker does while no packets arrive, from lowest latency to least energy.

use crate::flush::short;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;
use taut_settings::duration;

/// A waiting policy: how a worker waits for packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Wait {
    /// `poll`: polls again immediately. It has the lowest latency, and always uses the full core.
    #[default]
    Poll,
    /// `yield`: yields the core after every poll without packets (sched_yield(2)).
    Yield,
    /// `sleep(t)`: polls for [`BEFORE_SLEEP`], then alternates sleeps and polls. A packet waits at most `t` if the
    /// machine wakes up in time.
    Sleep {
        /// Maximum time from falling asleep to the next poll.
        at_most: Duration,
    },
    /// `interrupt`: polls for [`BEFORE_SLEEP`], then sleeps until a port signals packets.
    Interrupt,
}

/// The time for which a worker polls before it sleeps: about the cost of a wakeup, so that polling without packets at
/// most doubles that cost. (Karlin et al., "Empirical studies of competitive spinning", SOSP 1991.)
pub const BEFORE_SLEEP: Duration = Duration::from_micros(10);

/// The longest sleep of `interrupt`, for peers that fail to signal packets.
pub const LONGEST_INTERRUPT_SLEEP: Duration = Duration::from_millis(10);

/// The reason why the text of a waiting policy cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wait \"{text}\": {reason}")]
pub struct WaitError {
    text: String,
    reason: String,
}

impl FromStr for Wait {
    type Err = WaitError;

    fn from_str(text: &str) -> Result<Self, WaitError> {
        let error = |reason: String| WaitError {
            text: text.to_string(),
            reason,
        };
        match text.trim() {
            "poll" => return Ok(Self::Poll),
            "yield" => return Ok(Self::Yield),
            "interrupt" => return Ok(Self::Interrupt),
            _ => {}
        }
        let time = text.trim().strip_prefix("sleep");
        let time = time.and_then(|rest| rest.trim().strip_prefix('(')?.strip_suffix(')'));
        let Some(time) = time.map(str::trim) else {
            return Err(error(
                "expected poll, yield, sleep(TIME) or interrupt, such as sleep(50us)".to_string(),
            ));
        };
        let in_range = |t: &Duration| (1_000..=100_000_000).contains(&t.as_nanos());
        let at_most = duration(time).filter(in_range);
        let at_most = at_most.ok_or_else(|| {
            error(format!(
                "\"{time}\": expected a time from 1us to 100ms, such as 50us"
            ))
        })?;
        Ok(Self::Sleep { at_most })
    }
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Poll => f.write_str("poll"),
            Self::Yield => f.write_str("yield"),
            Self::Sleep { at_most } => write!(f, "sleep({})", short(*at_most)),
            Self::Interrupt => f.write_str("interrupt"),
        }
    }
}

impl TryFrom<String> for Wait {
    type Error = WaitError;

    fn try_from(text: String) -> Result<Self, WaitError> {
        text.parse()
    }
}

impl From<Wait> for String {
    fn from(wait: Wait) -> String {
        wait.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_printed_wait_policy_parses_to_the_same_policy() {
        for text in ["poll", "yield", "sleep(50us)", "sleep(1.5ms)", "interrupt"] {
            assert_eq!(text.parse::<Wait>().unwrap().to_string(), text);
        }
        let spaced: Wait = " sleep ( 50µs ) ".parse().unwrap();
        assert_eq!(spaced.to_string(), "sleep(50us)");
        assert_eq!(Wait::default(), Wait::Poll);
    }

    #[test]
    fn invalid_wait_policies_are_refused_with_the_valid_values() {
        for (text, part) in [
            ("nap", "expected poll, yield, sleep(TIME) or interrupt"),
            ("sleep", "such as sleep(50us)"),
            ("sleep(50us", "such as sleep(50us)"),
            ("interrupt(1ms)", "such as sleep(50us)"),
            ("sleep(50)", "1us to 100ms"),
            ("sleep(0us)", "1us to 100ms"),
            ("sleep(1s)", "1us to 100ms"),
        ] {
            let message = text.parse::<Wait>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
