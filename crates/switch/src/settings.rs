//! The settings of a switch: as written, and validated.

use super::address_table::WAYS;
use super::control::Control;
use super::refusal::Refused;
use super::table::MOST_RULES;
use super::text::{File, Rules};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::SettingsError;
use taut_settings::{duration, in_words};

/// The default time after which a learned MAC address expires (IEEE 802.1D-2004, table 7-5).
const DEFAULT_AGE: Duration = Duration::from_secs(300);

const MOST_ADDRESSES: usize = 1 << 20;
const DEFAULT_ROOM: usize = 16_384;

/// The action on packets without a matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Miss {
    Normal,
    Drop,
    Controller,
}

/// The addresses for connections with controllers.
#[derive(Debug, Clone, Default)]
pub(super) struct Controllers {
    /// The address at which the switch listens for controllers; none if it does not listen.
    pub listen: Option<SocketAddr>,
    /// The address of a controller to which the switch connects; none if it connects to none.
    pub call: Option<SocketAddr>,
    pub datapath: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default = "default_addresses")]
    pub addresses: usize,
    pub age: Option<String>,
    /// The path of a file with rules; none without such a file.
    pub rules: Option<PathBuf>,
    /// The limit on the number of rules in the switch; none for the default.
    pub most_rules: Option<usize>,
    pub miss: Option<Miss>,
    /// The address at which the switch listens for controllers; none if it does not listen.
    pub openflow: Option<SocketAddr>,
    /// The address of a controller to which the switch connects; none if it connects to none.
    pub controller: Option<SocketAddr>,
    /// The number that identifies the switch to controllers; the default is 1.
    pub datapath_id: Option<u64>,
    #[serde(default)]
    pub rule: Vec<toml::Table>,
    #[serde(default)]
    pub group: Vec<toml::Table>,
    #[serde(default)]
    pub meter: Vec<toml::Table>,
}

fn default_addresses() -> usize {
    4096
}

/// The validated [`Settings`].
pub(super) struct Checked {
    pub addresses: usize,
    pub age: Duration,
    pub miss: Miss,
    pub controllers: Controllers,
    /// The control plane, with the initial rules; none for a learning bridge.
    pub control: Option<Control>,
}

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let addresses = self.addresses;
        if !(WAYS..=MOST_ADDRESSES).contains(&addresses) {
            return Err(SettingsError(format!(
                "addresses: expected {WAYS} to {MOST_ADDRESSES}, not {addresses}"
            )));
        }
        let age = age(self.age)?;
        let here = File {
            rule: self.rule,
            group: self.group,
            meter: self.meter,
        };
        let file = match &self.rules {
            Some(path) => read_instead(&here, path)?,
            None => here,
        };
        let controllers = Controllers {
            listen: self.openflow,
            call: self.controller,
            datapath: self.datapath_id.unwrap_or(1),
        };
        let is_controlled = controllers.listen.is_some() || controllers.call.is_some();
        if self.miss == Some(Miss::Controller) && !is_controlled {
            return Err(SettingsError(
                "miss = \"controller\": none is configured; set openflow or controller".to_string(),
            ));
        }
        let has_rules = is_controlled || self.rules.is_some() || !file.rule.is_empty();
        let rules = file
            .read()
            .map_err(|SettingsError(why)| match &self.rules {
                Some(path) => SettingsError(format!("rules: {}: {why}", path.display())),
                None => SettingsError(why),
            })?;
        let room = self
            .most_rules
            .unwrap_or_else(|| DEFAULT_ROOM.max(2 * rules.rules.len()));
        if !(1..=MOST_RULES).contains(&room) {
            return Err(SettingsError(format!(
                "most_rules: expected 1 to {MOST_RULES}, not {room}"
            )));
        }
        Ok(Checked {
            addresses,
            age,
            miss: self.miss.unwrap_or(match has_rules {
                true => Miss::Drop,
                false => Miss::Normal,
            }),
            controllers,
            // All rules are checked before anything is opened.
            control: has_rules.then(|| decided(rules, room)).transpose()?,
        })
    }
}

/// Returns the time after which a learned MAC address expires, from its text in the settings.
fn age(written: Option<String>) -> Result<Duration, SettingsError> {
    match written {
        None => Ok(DEFAULT_AGE),
        Some(text) => duration(&text).filter(|age| !age.is_zero()).ok_or_else(|| {
            SettingsError(format!("age: expected a time such as 300s, not \"{text}\""))
        }),
    }
}

/// Reads the rules from the file at `path`. Fails if the settings `here` contain rules as well.
fn read_instead(here: &File, path: &std::path::Path) -> Result<File, SettingsError> {
    if !here.rule.is_empty() || !here.group.is_empty() || !here.meter.is_empty() {
        return Err(SettingsError(
            "rules: give them in the file or here, not in both".to_string(),
        ));
    }
    read_file(path)
}

fn read_file(path: &std::path::Path) -> Result<File, SettingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| SettingsError(format!("rules: {}: {e}", path.display())))?;
    toml::from_str(&text)
        .map_err(|e| SettingsError(format!("rules: {}: {}", path.display(), in_words(&e))))
}

/// Creates the control plane with the given initial rules, for up to `room` rules.
fn decided(rules: Rules, room: usize) -> Result<Control, SettingsError> {
    let wrong =
        |kind: &str, number: usize, why: Refused| SettingsError(format!("{kind} {number}: {why}"));
    let mut control = Control::new(room);
    for (meter, number) in rules.meters.into_iter().zip(1..) {
        control
            .add_meter(meter)
            .map_err(|why| wrong("meter", number, why))?;
    }
    for (group, number) in rules.groups.into_iter().zip(1..) {
        control
            .add_group(group)
            .map_err(|why| wrong("group", number, why))?;
    }
    for (rule, number) in rules.rules.into_iter().zip(1..) {
        control
            .add(rule)
            .map_err(|why| wrong("rule", number, why))?;
    }
    Ok(control)
}
