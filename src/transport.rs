//! Options of what carries messages, for the commands that send any.

use crate::exit::Failure;
use crate::terminal::quantity;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_model::link::medium::{MediumSettings, SharedMedium};
use taut_settings::{SettingsFileError, shared_key};
use taut_traffic::messages::{DeadlineSettings, Transport};
use taut_traffic::probe::Over;
use taut_transport::parity::MOST_PARITY_PAYLOAD_BYTES;
use taut_transport::{Coding, Master, Settings};

/// Messages that a repair combines.
const REPAIRED: usize = 8;
/// Parities for each message where nothing else is said.
const PARITIES: f64 = 0.25;
/// Messages that have a parity in common at most.
const MOST_WITH_PARITY: f64 = 16.0;
/// Target delay where none is given.
const TARGET: Duration = Duration::from_millis(10);

/// Redundancy, as people write it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Redundancy {
    Off,
    Auto,
    Share(f64),
}

fn redundancy(text: &str) -> Result<Redundancy, String> {
    match text {
        "off" => Ok(Redundancy::Off),
        "auto" => Ok(Redundancy::Auto),
        _ => match text.parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 1.0 => Ok(Redundancy::Share(share)),
            _ => Err("want off, auto, or repairs for each message such as 0.25".to_string()),
        },
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct TransportOptions {
    /// What carries messages: udp, fec (udp with parity), tcp, or deadline (in time and in order, or not at all)
    /// [default: udp; in virtual time deadline]
    #[arg(long, value_name = "NAME")]
    transport: Option<Transport>,
    /// With --transport deadline: how long a message may take from one side to the other [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    target: Option<Duration>,
    /// With --transport deadline: a message is delivered when so much of its time is left at most [default: the target]
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    window: Option<Duration>,
    /// With --transport deadline: repairs sent beforehand: off, auto (by the share that is lost), or a number for each
    /// message; with --transport fec: parities for each message [default: 0.25]
    #[arg(long, value_name = "SHARE", value_parser = redundancy)]
    redundancy: Option<Redundancy>,
    /// With --transport deadline: packets after which the receiver answers [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    feedback_every: Option<u32>,
    /// With --transport deadline: file with the key that both sides share: 32 or 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl TransportOptions {
    /// The same as words, for processes that are to use it too.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.push(format!("--{name}"));
                words.push(value);
            }
        };
        let time = |time: Option<Duration>| time.map(|it| format!("{}ns", it.as_nanos()));
        add("transport", self.transport.map(|it| it.name().to_owned()));
        add("target", time(self.target));
        add("window", time(self.window));
        add(
            "redundancy",
            self.redundancy.map(|it| match it {
                Redundancy::Off => "off".to_owned(),
                Redundancy::Auto => "auto".to_owned(),
                Redundancy::Share(share) => share.to_string(),
            }),
        );
        add(
            "feedback-every",
            self.feedback_every.map(|it| it.to_string()),
        );
        add(
            "key-file",
            self.key_file.as_ref().map(|it| it.display().to_string()),
        );
        words
    }

    /// As [`TransportOptions::over`], where a target delay means something to every transport, and deadline is meant where nothing
    /// is said.
    pub fn over_any(&self, payload_bytes: usize) -> Result<Over, Failure> {
        let mut options = self.clone();
        let transport = options.transport.replace(Transport::Deadline);
        let mut over = options.over(payload_bytes)?;
        over.transport = transport.unwrap_or(Transport::Deadline);
        Ok(over)
    }

    /// Groups of messages with one parity each.
    fn parity(&self, payload_bytes: usize) -> Result<Coding, Failure> {
        let wrong = |text: String| Err(Failure::Input(text));
        if payload_bytes > MOST_PARITY_PAYLOAD_BYTES {
            return wrong(format!(
                "--size {payload_bytes}: with --transport fec want at most {MOST_PARITY_PAYLOAD_BYTES}, so that all \
                 fits into a datagram"
            ));
        }
        let share = match self.redundancy {
            None => PARITIES,
            Some(Redundancy::Share(share)) => share,
            Some(Redundancy::Off | Redundancy::Auto) => {
                return wrong(
                    "--redundancy: --transport fec has parities for each message, such as 0.25"
                        .to_owned(),
                );
            }
        };
        let messages = (1.0 / share).round();
        if messages > MOST_WITH_PARITY {
            return wrong(format!(
                "--redundancy {share}: with --transport fec want one for every 16 messages at least, 0.0625"
            ));
        }
        Ok(Coding::Block {
            symbols: messages as usize,
            redundancy: share,
        })
    }

    /// What they ask for, with messages as long as fit into a datagram with everything around them.
    pub fn over_longest(&self) -> Result<Over, Failure> {
        let mut over = self.over(1)?;
        let deadline = &mut over.deadline;
        let is_keyed = deadline.master.is_some();
        deadline.settings.payload_bytes =
            Settings::most_payload_bytes(deadline.settings.coding, is_keyed);
        Ok(over)
    }

    /// What they ask for, with messages of up to so many bytes.
    pub fn over(&self, payload_bytes: usize) -> Result<Over, Failure> {
        let transport = self.transport.unwrap_or_default();
        if transport != Transport::Deadline {
            let is_fec = transport == Transport::Fec;
            let given = [
                ("--target", self.target.is_some()),
                ("--window", self.window.is_some()),
                ("--redundancy", self.redundancy.is_some() && !is_fec),
                ("--feedback-every", self.feedback_every.is_some()),
                ("--key-file", self.key_file.is_some()),
            ];
            if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::Input(format!(
                    "{name}: needs --transport deadline"
                )));
            }
            let mut deadline = DeadlineSettings::default();
            if is_fec {
                deadline.settings.coding = self.parity(payload_bytes)?;
            }
            return Ok(Over {
                transport,
                deadline,
                stamps_departures: false,
            });
        }
        let target = self.target.unwrap_or(TARGET);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let window = |redundancy| Coding::Window {
            symbols: REPAIRED,
            redundancy,
        };
        let settings = Settings {
            target_ns: nanoseconds(target),
            window_ns: nanoseconds(self.window.unwrap_or(target)),
            coding: match self.redundancy.unwrap_or(Redundancy::Auto) {
                Redundancy::Off => Coding::Off,
                Redundancy::Auto => window(None),
                Redundancy::Share(share) => window(Some(share)),
            },
            feedback_every: self
                .feedback_every
                .unwrap_or(Settings::default().feedback_every),
            payload_bytes,
            ..Settings::default()
        };
        let key = self.key_file.as_deref().map(shared_key).transpose();
        let key = key.map_err(|e| Failure::Input(format!("--key-file: {e}")))?;
        let master = key.map(|key| Master::new(&key)).transpose();
        let master = master.map_err(|e| Failure::Input(format!("--key-file: {e}")))?;
        settings
            .check(master.is_some())
            .map_err(|e| Failure::Input(e.to_string()))?;
        Ok(Over {
            transport,
            deadline: DeadlineSettings { settings, master },
            stamps_departures: false,
        })
    }
}

/// Reads a medium's file; the seed of the command is added to that of the file.
pub fn medium_of(file: &Path, seed: u64) -> Result<SharedMedium, Failure> {
    let read = SettingsFileError::read_toml(file);
    let mut settings: MediumSettings = read.map_err(|e| Failure::Input(e.to_string()))?;
    settings.seed = settings.seed.wrapping_add(seed);
    SharedMedium::new(&settings).map_err(|e| Failure::Input(format!("{}: {e}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundancy_is_read_as_written() {
        assert_eq!(redundancy("off"), Ok(Redundancy::Off));
        assert_eq!(redundancy("auto"), Ok(Redundancy::Auto));
        assert_eq!(redundancy("0.25"), Ok(Redundancy::Share(0.25)));
        for wrong in ["0", "1.5", "NaN", "much"] {
            assert!(redundancy(wrong).is_err_and(|e| e.contains("want off, auto")));
        }
    }
}
