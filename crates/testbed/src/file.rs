//! The file of a laboratory: its nodes and users, the address of its service, and the folder for its data.

use crate::error::{LONGEST_NAME, ValueError};
use crate::time::Seconds;
use crate::token::TokenHash;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use taut_host::SshAddress;
use taut_settings::SettingsFileError;

/// Location of a node that is the machine on which the service runs.
pub(crate) const LOCAL: &str = "local";
/// Location of nodes that Slurm allocates.
pub(crate) const SLURM: &str = "slurm";

/// The file of a laboratory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabFile {
    /// Address at which the service listens.
    #[serde(default = "listen")]
    pub listen: String,
    /// Folder of the database, and of the results of all experiments. A relative path is relative to the laboratory's
    /// file.
    pub folder: PathBuf,
    /// True to continue experiments whose process was killed or ended when the machine went down.
    #[serde(default)]
    pub retry: bool,
    /// Limits of the time that users can reserve.
    #[serde(default)]
    pub calendar: CalendarLimits,
    /// Users of the laboratory by name.
    #[serde(default)]
    pub users: BTreeMap<Name, User>,
    /// Nodes of the laboratory by name.
    #[serde(default)]
    pub nodes: BTreeMap<Name, NodeSettings>,
    /// Settings of a Slurm cluster. If they are present, Slurm manages the nodes, the calendar and the queue.
    pub slurm: Option<Slurm>,
}

/// The settings of the Slurm cluster that manages the nodes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Slurm partition whose nodes and jobs are listed; all partitions if it is missing.
    pub partition: Option<Name>,
}

/// Limits of the time that users can reserve.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CalendarLimits {
    /// Maximum duration of a reservation.
    pub longest: Time,
    /// Maximum time from now to the end of a reservation.
    pub ahead: Time,
}

impl Default for CalendarLimits {
    fn default() -> Self {
        Self {
            longest: Time(24 * 3600),
            ahead: Time(30 * 24 * 3600),
        }
    }
}

/// A user of the laboratory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// SHA-256 of the user's token.
    pub token: TokenHash,
    /// True if the user may change reservations and experiments of other users.
    #[serde(default)]
    pub admin: bool,
}

/// A node of the laboratory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Location of the node, which determines how it is reached.
    pub at: Location,
    /// Number of processor cores of the node.
    pub cores: Option<u32>,
    /// Further properties of the node, for people who choose a node.
    #[serde(default)]
    pub properties: BTreeMap<String, toml::Value>,
}

fn listen() -> String {
    "127.0.0.1:9210".to_owned()
}

/// The name of a node or user: letters, digits, `-`, `_` and `.`, of which the first is a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        match begins && text.len() <= LONGEST_NAME && text.chars().all(is_plain) {
            true => Ok(Self(text)),
            false => Err(ValueError::Name(text)),
        }
    }
}

/// A duration, s; written as `24h` or `30days`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Seconds);

impl TryFrom<String> for Time {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        let parsed = humantime::parse_duration(&text);
        let seconds = parsed.map(|it| it.as_secs()).unwrap_or_default();
        match seconds {
            0 => Err(ValueError::Time(text)),
            seconds => Ok(Self(seconds)),
        }
    }
}

/// The location of a node, as in experiment files.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Location(String);

impl Location {
    /// Returns the location as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Location {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        match text == LOCAL || text.parse::<SshAddress>().is_ok() {
            true => Ok(Self(text)),
            false => Err(ValueError::Location(text)),
        }
    }
}

impl LabFile {
    /// Reads the file of a laboratory.
    ///
    /// # Errors
    /// The first error in the file.
    pub fn read(path: &Path) -> Result<Self, SettingsFileError> {
        let text = SettingsFileError::read(path)?;
        let mut file = Self::parse(&text, &path.display().to_string())?;
        if let Some(parent) = path.parent() {
            file.folder = parent.join(&file.folder);
        }
        Ok(file)
    }

    /// Parses the text of a file with this name.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(text: &str, name: &str) -> Result<Self, SettingsFileError> {
        let file: Self =
            toml::from_str(text).map_err(|e| SettingsFileError::of_toml(text, name, &e))?;
        let wrong = |reason: String| Err(SettingsFileError::wrong(text, name, None, reason));
        if file.users.is_empty() {
            return wrong("users: there are none; taut lab token NAME makes an entry".to_owned());
        }
        match (&file.slurm, file.nodes.is_empty()) {
            (None, true) => return wrong("nodes: there are none, and no [slurm]".to_owned()),
            (Some(_), false) => {
                return wrong("nodes: Slurm has its own: leave out [nodes] or [slurm]".to_owned());
            }
            _ => {}
        }
        let mut tokens = BTreeMap::new();
        for (user, settings) in &file.users {
            if let Some(other) = tokens.insert(&settings.token, user) {
                return wrong(format!("users: {other} and {user} have the same token"));
            }
        }
        let mut locations = BTreeMap::new();
        for (node, settings) in &file.nodes {
            let at = settings.at.as_str();
            if let Some(other) = locations.insert(at, node) {
                return wrong(format!("nodes: {other} and {node} are both at {at}"));
            }
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn with(more: &str) -> Result<LabFile, SettingsFileError> {
        let text = format!("folder = \"state\"\n[users.alice]\ntoken = \"{TOKEN}\"\n{more}\n");
        LabFile::parse(&text, "lab.toml")
    }

    #[test]
    fn a_laboratory_has_nodes_users_limits_and_properties() {
        let file = with(
            "[nodes.dut]\nat = \"ssh://root@dut:2222\"\ncores = 16\nproperties = { nic = \"E810\", rack = 3 }\n\
             [calendar]\nlongest = \"2h\"",
        )
        .unwrap();
        let (name, node) = file.nodes.first_key_value().unwrap();
        assert_eq!(
            (name.as_str(), node.at.as_str()),
            ("dut", "ssh://root@dut:2222")
        );
        assert_eq!((node.cores, node.properties.len()), (Some(16), 2));
        assert_eq!(file.calendar.longest, Time(7200));
        assert_eq!(file.calendar.ahead, CalendarLimits::default().ahead);
        assert_eq!(file.listen, "127.0.0.1:9210");
        assert!(with("[slurm]").unwrap().nodes.is_empty());
    }

    #[test]
    fn mistakes_in_the_file_are_named_with_their_place() {
        let two = format!("[users.bob]\ntoken = \"{TOKEN}\"\n[slurm]");
        for (more, told) in [
            ("", "nodes: there are none"),
            (
                "[nodes.a]\nat = \"dut\"",
                "lab.toml:5:6: at = \"dut\": expected `local` or `ssh://",
            ),
            (
                "[nodes.\"a b\"]\nat = \"local\"",
                "\"a b\": expected a name",
            ),
            ("[nodes.a]\nat = \"local\"\ncore = 1", "unknown key `core`"),
            (
                "[nodes.a]\nat = \"local\"\n[nodes.b]\nat = \"local\"",
                "a and b are both at local",
            ),
            ("[nodes.a]\nat = \"local\"\n[slurm]", "Slurm has its own"),
            (
                "[slurm]\n[calendar]\nlongest = \"soon\"",
                "expected a time such as",
            ),
            (
                "[slurm]\n[calendar]\nlongest = \"0s\"",
                "expected a time such as",
            ),
            (
                "[users.bob]\ntoken = \"secret\"",
                "expected the SHA-256 of a token",
            ),
            (&two, "alice and bob have the same token"),
        ] {
            let error = with(more).unwrap_err().to_string();
            assert!(
                error.starts_with("lab.toml") && error.contains(told),
                "{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
        let none = LabFile::parse("folder = \"x\"\n[slurm]", "lab.toml").unwrap_err();
        assert!(none.to_string().contains("users: there are none"), "{none}");
    }
}
