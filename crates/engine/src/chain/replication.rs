//! The replicas of a function (several instances on threads of their own), as a chain file sets them.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taut_settings::duration;

/// The maximum number of replicas (instances on threads of their own) of a function.
pub const MOST_REPLICAS: usize = 16;

/// The default of [`Replication::wait`], the longest time for which a packet waits for earlier packets of other
/// replicas.
const DEFAULT_WAIT: &str = "10ms";

/// The maximum value of [`Replication::wait`] that a chain file may set.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The rule by which packets are spread over the replicas of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpreadBy {
    /// Each packet goes to the next replica.
    #[default]
    Packet,
    /// All packets of a flow go to the same replica.
    Flow,
}

/// The replicas of a function: `replicas = 3`, or a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct Replication {
    /// The number of replicas, 1 to [`MOST_REPLICAS`].
    pub count: usize,
    /// The rule by which packets are spread.
    pub spread: SpreadBy,
    /// The longest time for which a packet waits until earlier packets have returned from other replicas.
    pub wait: Duration,
    /// The cores of the replicas; empty if the scheduler decides.
    pub cores: Vec<usize>,
}

/// The forms of the key `replicas`.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of replicas, or { count = 3, spread = \"flow\" }"
)]
enum Text {
    Count(usize),
    Table(Table),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    count: usize,
    #[serde(default)]
    spread: SpreadBy,
    #[serde(default = "default_wait")]
    wait: String,
    #[serde(default)]
    cores: Vec<usize>,
}

fn default_wait() -> String {
    DEFAULT_WAIT.to_string()
}

impl TryFrom<Text> for Replication {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        let table = match text {
            Text::Table(table) => table,
            Text::Count(count) => Table {
                count,
                spread: SpreadBy::default(),
                wait: default_wait(),
                cores: Vec::new(),
            },
        };
        let Table {
            count,
            spread,
            wait,
            cores,
        } = table;
        if !(1..=MOST_REPLICAS).contains(&count) {
            return Err(format!("{count} replicas: expected 1 to {MOST_REPLICAS}"));
        }
        if !cores.is_empty() && cores.len() < count {
            return Err(format!(
                "cores: {} for {count} replicas; give one per replica",
                cores.len()
            ));
        }
        let limit = duration(&wait).filter(|it| !it.is_zero() && *it <= LONGEST_WAIT);
        let wait = limit
            .ok_or_else(|| format!("wait = \"{wait}\": expected a time up to 1s, such as 5ms"))?;
        Ok(Self {
            count,
            spread,
            wait,
            cores,
        })
    }
}

impl From<Replication> for Text {
    fn from(it: Replication) -> Self {
        Self::Table(Table {
            count: it.count,
            spread: it.spread,
            wait: format!("{}ns", it.wait.as_nanos()),
            cores: it.cores,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::Stage;

    fn stage(text: &str) -> Result<Stage, String> {
        toml::from_str(&format!("name = \"forward\"\n{text}")).map_err(|e| e.message().to_string())
    }

    #[test]
    fn replicas_are_a_number_or_a_table_and_survive_writing() {
        for text in [
            "replicas = 3",
            "replicas = { count = 2, spread = \"flow\", wait = \"1500ns\", cores = [4, 2, 3] }",
        ] {
            let read = stage(text).unwrap();
            let table = toml::to_string(&read).unwrap();
            assert_eq!(toml::from_str::<Stage>(&table).unwrap(), read, "{table}");
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(
                serde_json::from_str::<Stage>(&json).unwrap(),
                read,
                "{json}"
            );
        }
        assert_eq!(stage("").unwrap().replicas, None);
    }

    #[test]
    fn replicas_out_of_range_are_refused() {
        for text in [
            "replicas = 0",
            "replicas = 17",
            "replicas = { count = 2, cores = [1] }",
            "replicas = { count = 2, wait = \"2s\" }",
            "replicas = { count = 2, spread = \"none\" }",
            "replicas = { spread = \"flow\" }",
        ] {
            assert!(stage(text).is_err(), "{text}");
        }
    }
}
