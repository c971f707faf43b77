//! Settings of the inspection.

use crate::SettingsError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use taut_inspect::read::{Dialect, Options};
use taut_inspect::search;
use taut_inspect::variables::Variables;
use taut_settings::{Size, duration};

/// What is done with more packets than can be inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Overload {
    /// They wait in the ring of the port that they come from, and are lost where it is full.
    Queue,
    /// They pass without being inspected, those of the flows with most bytes first.
    Bypass,
    /// They are dropped.
    Drop,
}

/// What is done with a packet that there is no more time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OverTime {
    /// It passes, unless a rule that was asked has dropped it.
    Pass,
    /// It is dropped.
    Drop,
}

/// What is done with fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fragments {
    /// They wait until their datagram is whole, and pass if that does.
    #[default]
    Inspect,
    /// They pass without being inspected.
    Pass,
}

/// Language of rule files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Language {
    #[serde(rename = "snort3")]
    Snort3,
    #[serde(rename = "suricata")]
    Suricata,
}

/// What looks for the patterns of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Matcher {
    #[default]
    AhoCorasick,
    Vectorscan,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default)]
    rules: Vec<PathBuf>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    language: Option<Language>,
    #[serde(default)]
    lenient: bool,
    #[serde(default)]
    alert_only: bool,
    events: Option<String>,
    alerts: Option<String>,
    alerts_size: Option<Size>,
    control: Option<PathBuf>,
    flows: Option<usize>,
    memory: Option<Size>,
    overload: Option<Overload>,
    #[serde(default)]
    fragments: Fragments,
    bound: Option<String>,
    max_time: Option<String>,
    over_time: Option<OverTime>,
    #[serde(default)]
    inner: bool,
    #[serde(default)]
    matcher: Matcher,
}

/// Settings that make sense.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    /// Files of rules.
    pub rules: Vec<PathBuf>,
    /// How they are read.
    pub options: Options,
    /// What looks for their patterns.
    pub matcher: search::Matcher,
    /// Whether nothing is dropped.
    pub alert_only: bool,
    /// Where events go: a file, or a Unix socket behind `unix:`.
    pub events: Option<String>,
    /// File of the packets that alerts are about, and bytes that it may have.
    pub alerts: Option<(String, u64)>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Flows that a worker remembers at a time.
    pub flows: usize,
    /// Bytes that a worker keeps of streams.
    pub memory_bytes: usize,
    pub overload: Overload,
    pub fragments: Fragments,
    /// Time that packets may have come without a pause before something is done about it.
    pub bound: Duration,
    /// Time that rules are asked about a packet for at most; none is without end.
    pub max_time: Option<Duration>,
    pub over_time: OverTime,
    /// Whether packets in tunnels of GTP-U are looked at in the place of those that carry them.
    pub inner: bool,
}

const FLOWS: usize = 65_536;
const MOST_FLOWS: usize = 1 << 24;
const MEMORY_BYTES: usize = 64 << 20;
const ALERTS_BYTES: u64 = 100_000_000;
const LEAST_ALERTS_BYTES: u64 = 64 << 10;
const BOUND: Duration = Duration::from_millis(1);
/// Less than this is the clock's own time, more is no bound.
const LEAST_TIME: Duration = Duration::from_micros(1);
const MOST_TIME: Duration = Duration::from_secs(1);

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let error = |text: String| Err(SettingsError(text));
        let mut variables = Variables::default();
        // Those that others refer to may come behind them: all are set, then all are looked at.
        for (name, text) in &self.variables {
            let _ = variables.set(name, text);
        }
        for (name, text) in &self.variables {
            variables
                .set(name, text)
                .map_err(|reason| SettingsError(format!("variables: {name}: {reason}")))?;
        }
        let flows = self.flows.unwrap_or(FLOWS);
        if !(1024..=MOST_FLOWS).contains(&flows) {
            return error(format!("flows = {flows}: want 1024 to {MOST_FLOWS}"));
        }
        let time = |name: &str, text: Option<String>, such: &str| {
            let read = text.map(|text| {
                let wrong = || format!("{name} = \"{text}\": want a time such as \"{such}\"");
                duration(&text).ok_or_else(|| SettingsError(wrong()))
            });
            read.transpose()
        };
        let bound = time("bound", self.bound, "500us")?.unwrap_or(BOUND);
        let max_time = time("max_time", self.max_time, "50us")?;
        if max_time.is_some_and(|it| !(LEAST_TIME..=MOST_TIME).contains(&it)) {
            return error("max_time: want 1us to 1s".to_string());
        }
        if self.over_time.is_some() && max_time.is_none() {
            return error("over_time: say max_time, too".to_string());
        }
        let alerts_bytes = self.alerts_size.map(|it| it.bytes);
        if alerts_bytes.is_some_and(|it| it < LEAST_ALERTS_BYTES) {
            return error("alerts_size: want \"64 kB\" at least".to_string());
        }
        if alerts_bytes.is_some() && self.alerts.is_none() {
            return error("alerts_size: say alerts, too".to_string());
        }
        if self.rules.len() > 4096 {
            return error("rules: more than 4096 files".to_string());
        }
        let matcher = match self.matcher {
            Matcher::AhoCorasick => search::Matcher::AhoCorasick,
            Matcher::Vectorscan => search::Matcher::Vectorscan,
        };
        if let Err(reason) = matcher.check() {
            return error(format!("matcher: {reason}"));
        }
        Ok(Checked {
            rules: self.rules,
            options: Options {
                variables,
                dialect: self.language.map(|language| match language {
                    Language::Snort3 => Dialect::Snort3,
                    Language::Suricata => Dialect::Suricata,
                }),
                with_disabled: false,
                is_lenient: self.lenient,
            },
            matcher,
            alert_only: self.alert_only,
            events: self.events,
            alerts: self
                .alerts
                .map(|file| (file, alerts_bytes.unwrap_or(ALERTS_BYTES))),
            control: self.control,
            flows,
            memory_bytes: self.memory.map_or(MEMORY_BYTES, |it| it.bytes as usize),
            overload: self.overload.unwrap_or(Overload::Queue),
            fragments: self.fragments,
            bound,
            max_time,
            over_time: self.over_time.unwrap_or(OverTime::Pass),
            inner: self.inner,
        })
    }
}
