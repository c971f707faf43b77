//! Settings of the queues for packets at a full port: number of packets, number of queues and drop policy.

use crate::flush::short;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;
use taut_settings::{Size, duration};

/// The maximum number of packets in one queue.
const MOST_PACKETS: usize = 65_536;
/// The maximum number of queues per port.
const MOST_PRIORITIES: usize = 8;
/// The length in bytes of the shortest frame, without frame check sequence.
const SHORTEST_FRAME_BYTES: u64 = 60;

/// Settings of the queues of each egress port. In a chain file they are a number, the packets per queue, or a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Queueing {
    /// Maximum number of packets in one queue.
    pub packets: usize,
    /// Maximum number of bytes of the frames in one queue, without frame check sequences; None for no limit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of queues per port. A packet of a higher priority leaves before all packets of lower ones.
    pub priorities: usize,
    /// Drop policy of each queue.
    pub drop: DropPolicy,
}

/// The drop policy of a queue: which packets it drops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DropPolicy {
    /// Drops packets that arrive when the queue is full.
    #[default]
    Tail,
    /// CoDel (RFC 8289): also drops packets at the front, at an increasing rate, as long as packets wait too long.
    Codel {
        /// Waiting time of packets that CoDel accepts.
        target: Duration,
        /// Time for which waiting times may exceed the target before CoDel drops the first packet.
        interval: Duration,
    },
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of packets, or a table of packets, bytes, priorities and drop"
)]
enum Written {
    Packets(u64),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    packets: Option<u64>,
    bytes: Option<Size>,
    #[serde(default = "one")]
    priorities: u64,
    #[serde(default)]
    drop: DropPolicy,
}

fn one() -> u64 {
    1
}

impl TryFrom<Written> for Queueing {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Table {
            packets,
            bytes,
            priorities,
            drop,
        } = match written {
            Written::Table(table) => table,
            Written::Packets(packets) => Table {
                packets: Some(packets),
                bytes: None,
                priorities: 1,
                drop: DropPolicy::Tail,
            },
        };
        let bytes = bytes.map(|size| size.bytes);
        let by_bytes = bytes.map(|bytes| bytes.div_ceil(SHORTEST_FRAME_BYTES));
        let packets = packets
            .or(by_bytes.map(|most| most.clamp(1, MOST_PACKETS as u64)))
            .ok_or("queue: expected packets, bytes or both")?;
        let within =
            |n: u64, most: usize| usize::try_from(n).ok().filter(|n| (1..=most).contains(n));
        if bytes == Some(0) {
            return Err(
                "queue: bytes = 0: no packet could be queued; leave queue out for that".to_string(),
            );
        }
        Ok(Self {
            packets: within(packets, MOST_PACKETS)
                .ok_or_else(|| format!("queue: {packets} packets: expected 1 to {MOST_PACKETS}"))?,
            bytes,
            priorities: within(priorities, MOST_PRIORITIES).ok_or_else(|| {
                format!("queue: priorities = {priorities}: expected 1 to {MOST_PRIORITIES}")
            })?,
            drop,
        })
    }
}

const FORMS: &str = "expected tail, codel or codel(TIME, TIME), such as codel(5ms, 100ms)";

impl FromStr for DropPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("drop \"{text}\": {FORMS}");
        let time = |text: &str| {
            duration(text)
                .filter(|t| (1..=60_000_000).contains(&t.as_micros()))
                .ok_or_else(|| {
                    format!(
                        "drop: \"{}\": expected a time from 1us to 60s, such as 5ms",
                        text.trim()
                    )
                })
        };
        match text.trim() {
            "tail" => Ok(Self::Tail),
            // The defaults of RFC 8289 (sections 4.3, 4.4).
            "codel" => Ok(Self::Codel {
                target: Duration::from_millis(5),
                interval: Duration::from_millis(100),
            }),
            text => {
                let inside = text
                    .strip_prefix("codel(")
                    .and_then(|it| it.strip_suffix(')'));
                let (target, interval) =
                    inside.and_then(|it| it.split_once(',')).ok_or_else(wrong)?;
                let (target, interval) = (time(target)?, time(interval)?);
                if target >= interval {
                    return Err(format!(
                        "drop \"{text}\": expected a target that is shorter than the interval"
                    ));
                }
                Ok(Self::Codel { target, interval })
            }
        }
    }
}

impl Display for DropPolicy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tail => f.write_str("tail"),
            Self::Codel { target, interval } => {
                write!(f, "codel({}, {})", short(*target), short(*interval))
            }
        }
    }
}

impl TryFrom<String> for DropPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DropPolicy> for String {
    fn from(drop: DropPolicy) -> Self {
        drop.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct File {
        queue: Queueing,
    }

    fn read(text: &str) -> Result<Queueing, String> {
        let file: Result<File, _> = toml::from_str(text);
        file.map(|it| it.queue).map_err(|e| e.message().to_string())
    }

    #[test]
    fn queue_settings_from_numbers_or_tables_parse_and_serialise_unchanged() {
        let tail = Queueing {
            packets: 64,
            bytes: None,
            priorities: 1,
            drop: DropPolicy::Tail,
        };
        assert_eq!(read("queue = 64"), Ok(tail));
        let (target, interval) = (Duration::from_micros(50), Duration::from_millis(1));
        let all = Queueing {
            packets: 1000,
            bytes: Some(64 << 10),
            priorities: 4,
            drop: DropPolicy::Codel { target, interval },
        };
        let text = "[queue]\npackets = 1000\nbytes = \"64 kB\"\npriorities = 4\ndrop = \"codel(50us, 1ms)\"";
        assert_eq!(read(text), Ok(all));
        let few = read("queue = { bytes = 1000 }").unwrap();
        assert_eq!((few.packets, few.bytes), (17, Some(1000)));
        for queue in [
            tail,
            all,
            few,
            read("queue = { packets = 2, drop = \"codel\" }").unwrap(),
        ] {
            assert_eq!(read(&toml::to_string(&File { queue }).unwrap()), Ok(queue));
        }
    }

    #[test]
    fn invalid_queue_settings_are_refused_with_the_valid_range() {
        for (text, part) in [
            ("queue = 0", "expected 1 to 65536"),
            ("queue = 70000", "expected 1 to 65536"),
            ("queue = -1", "expected a number of packets"),
            ("queue = \"many\"", "expected a number of packets"),
            ("queue = {}", "expected packets, bytes or both"),
            ("queue = { bytes = 0 }", "no packet could be queued"),
            ("queue = { packets = 9, priorities = 9 }", "expected 1 to 8"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
        for (text, part) in [
            ("red", "expected tail, codel"),
            ("codel(5ms)", "expected tail, codel"),
            ("codel(100ms, 5ms)", "shorter than the interval"),
            ("codel(0us, 5ms)", "from 1us to 60s"),
            ("codel(NaN, 5ms)", "from 1us to 60s"),
        ] {
            let message = text.parse::<DropPolicy>().unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
