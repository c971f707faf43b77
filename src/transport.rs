//! Options of the message transport, for the commands that send messages.

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

/// Number of messages that one repair packet combines.
const REPAIRED: usize = 8;
/// Default number of parity packets per message.
const PARITIES: f64 = 0.25;
/// The largest number of messages that share one parity packet.
const MOST_WITH_PARITY: f64 = 16.0;
/// The default target delay of the deadline transport.
const TARGET: Duration = Duration::from_millis(10);

/// The value of `--redundancy`: off, automatic, or a number of repair or parity packets per message.
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
            _ => Err("expected off, auto, or repairs for each message such as 0.25".to_string()),
        },
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct TransportOptions {
    /// Transport of messages, the same on both sides: udp, fec (udp with parity), tcp, deadline (in time and in
    /// order, or not at all) (default: udp; in virtual time deadline)
    #[arg(long, value_name = "NAME")]
    transport: Option<Transport>,
    /// With deadline: time in one direction after which a message counts as lost (default: 10ms)
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    target: Option<Duration>,
    /// With deadline: how long before its deadline a message may be delivered (default: as --target, so immediately)
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    window: Option<Duration>,
    /// With deadline: repair packets sent in advance, off, auto (by the loss ratio) or a number per message; with
    /// fec: parities per message (default: auto; fec 0.25)
    #[arg(long, value_name = "SHARE", value_parser = redundancy)]
    redundancy: Option<Redundancy>,
    /// With deadline: packets after which the receiver sends feedback (default: 8)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    feedback_every: Option<u32>,
    /// With deadline: file with the key that both sides share, 32 or 64 hexadecimal digits (default: none)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl TransportOptions {
    /// Returns the options as command-line words, for processes that take these options too.
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

    /// Returns the transport like [`TransportOptions::over`], except that a target delay is valid for every transport,
    /// and that the default transport is `deadline`.
    pub fn over_any(&self, payload_bytes: usize) -> Result<Over, Failure> {
        let mut options = self.clone();
        let transport = options.transport.replace(Transport::Deadline);
        let mut over = options.over(payload_bytes)?;
        over.transport = transport.unwrap_or(Transport::Deadline);
        Ok(over)
    }

    /// Returns a coding in which each group of messages has one parity packet.
    fn parity(&self, payload_bytes: usize) -> Result<Coding, Failure> {
        let wrong = |text: String| Err(Failure::Input(text));
        if payload_bytes > MOST_PARITY_PAYLOAD_BYTES {
            return wrong(format!(
                "--size {payload_bytes}: with --transport fec, expected at most {MOST_PARITY_PAYLOAD_BYTES}, so that all \
                 fits into a datagram"
            ));
        }
        let share = match self.redundancy {
            None => PARITIES,
            Some(Redundancy::Share(share)) => share,
            Some(Redundancy::Off | Redundancy::Auto) => {
                return wrong(
                    "--redundancy: --transport fec needs a number of repairs for each message, such as 0.25"
                        .to_owned(),
                );
            }
        };
        let messages = (1.0 / share).round();
        if messages > MOST_WITH_PARITY {
            return wrong(format!(
                "--redundancy {share}: with --transport fec, expected at least one for every 16 messages, 0.0625"
            ));
        }
        Ok(Coding::Block {
            symbols: messages as usize,
            redundancy: share,
        })
    }

    /// Returns the transport, for the longest messages that fit into a datagram with all headers.
    pub fn over_longest(&self) -> Result<Over, Failure> {
        let mut over = self.over(1)?;
        let deadline = &mut over.deadline;
        let is_keyed = deadline.master.is_some();
        deadline.settings.payload_bytes =
            Settings::most_payload_bytes(deadline.settings.coding, is_keyed);
        Ok(over)
    }

    /// Returns the transport, for messages of up to `payload_bytes` bytes.
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

/// Reads a medium file; the command's seed is added to the seed in the file.
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
    fn redundancy_parses_as_off_auto_or_a_ratio() {
        assert_eq!(redundancy("off"), Ok(Redundancy::Off));
        assert_eq!(redundancy("auto"), Ok(Redundancy::Auto));
        assert_eq!(redundancy("0.25"), Ok(Redundancy::Share(0.25)));
        for wrong in ["0", "1.5", "NaN", "much"] {
            assert!(redundancy(wrong).is_err_and(|e| e.contains("expected off, auto")));
        }
    }
}
