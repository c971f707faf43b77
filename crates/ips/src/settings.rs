//! Settings of the inspection.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::SettingsError;
use taut_inspect::http::HttpLimits;
use taut_inspect::overlap;
use taut_inspect::read::{Dialect, Options};
use taut_inspect::search;
use taut_inspect::variables::Variables;
use taut_settings::{Size, duration};

/// The policy for packets that arrive faster than they can be inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Overload {
    /// Packets wait in the ring of their ingress port, and are lost when the ring is full.
    Queue,
    /// Packets pass without inspection, those of the largest flows first.
    Bypass,
    /// Packets that arrive faster than they can be inspected are dropped.
    Drop,
}

/// The policy for a packet that has used up its inspection time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OverTime {
    /// A packet that has used up its inspection time passes, unless an evaluated rule has dropped it.
    Pass,
    /// A packet that has used up its inspection time is dropped.
    Drop,
}

/// The policy for fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fragments {
    /// Fragments wait until their datagram is complete, and pass if the datagram passes.
    #[default]
    Inspect,
    /// Fragments pass without inspection.
    Pass,
}

/// The policy for bytes that arrive twice with different content, in a stream or in a fragmented datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Overlap {
    /// A segment or datagram with other bytes than before is dropped.
    #[default]
    Drop,
    /// The bytes that arrive first are inspected. A later segment or fragment adds only bytes that had not arrived
    /// before.
    First,
}

impl Overlap {
    pub fn counted(self) -> overlap::Overlap {
        match self {
            Self::Drop => overlap::Overlap::Drop,
            Self::First => overlap::Overlap::First,
        }
    }
}

/// The policy for packets with wrong checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Checksums {
    /// Packets with wrong checksums are dropped, as by their receiver.
    #[default]
    Drop,
    /// Checksums are not verified. Captures made before the NIC has filled in the checksums need this.
    Ignore,
}

/// The policy for connections without an observed opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Midstream {
    /// Connections without an observed opening are inspected from their first observed packet on.
    #[default]
    Inspect,
    /// Connections without an observed opening pass without inspection.
    Pass,
    /// Connections without an observed opening are dropped.
    Drop,
}

/// The policy for segments with urgent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Urgent {
    /// The URG flag is cleared, and the data is inspected as usual.
    #[default]
    Clear,
    /// Segments with urgent data are dropped.
    Drop,
    /// Segments with urgent data pass unchanged, and the data is inspected as usual.
    Pass,
}

/// The language of rule files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Language {
    #[serde(rename = "snort3")]
    Snort3,
    #[serde(rename = "suricata")]
    Suricata,
}

/// The engine that searches for the patterns of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Matcher {
    #[default]
    AhoCorasick,
    Vectorscan,
}

impl Matcher {
    fn checked(self) -> Result<search::Matcher, SettingsError> {
        let matcher = match self {
            Self::AhoCorasick => search::Matcher::AhoCorasick,
            Self::Vectorscan => search::Matcher::Vectorscan,
        };
        if let Err(reason) = matcher.check() {
            return Err(SettingsError(format!("matcher: {reason}")));
        }
        Ok(matcher)
    }
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
    strict: Option<bool>,
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
    #[serde(default)]
    overlap: Overlap,
    #[serde(default)]
    checksums: Checksums,
    #[serde(default)]
    midstream: Midstream,
    #[serde(default)]
    urgent: Urgent,
    #[serde(default)]
    min_ttl: u8,
    head_limit: Option<Size>,
    body_limit: Option<Size>,
    bound: Option<String>,
    max_time: Option<String>,
    over_time: Option<OverTime>,
    #[serde(default)]
    inner: bool,
    #[serde(default)]
    matcher: Matcher,
}

/// The cases in which an error in one rule refuses all rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refuses {
    /// True if an error makes the chain fail when it is read.
    pub chain: bool,
    /// True if an error makes a reload fail; the rules in force then stay.
    pub reload: bool,
}

/// The validated settings.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    /// The files with the rules of the inspection.
    pub rules: Vec<PathBuf>,
    /// The options for reading the rule files.
    pub options: Options,
    /// The cases in which one error refuses all rules.
    pub refuses: Refuses,
    /// The engine that searches for the patterns of rules.
    pub matcher: search::Matcher,
    /// The destination of events: a file, or a Unix socket if the path begins with `unix:`.
    pub events: Option<String>,
    /// The file for packets that caused alerts, and its size limit in bytes; none if they are not stored.
    pub alerts: Option<(String, u64)>,
    /// Path of the control socket; none if there is none.
    pub control: Option<PathBuf>,
    /// The number of flows in a worker's flow table.
    pub flows: usize,
    /// The maximum number of bytes of stream data that a worker stores.
    pub memory_bytes: usize,
    pub overlap: Overlap,
    pub policies: Policies,
    /// The limits on stored HTTP messages.
    pub http: HttpLimits,
    /// The time for which packets may arrive without a pause before the overload policy applies.
    pub bound: Duration,
    /// The limit on the time that the rules may take per packet.
    pub max_time: Duration,
}

/// The policies that apply to each packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policies {
    /// True if the rules only cause alerts and no packet is dropped.
    pub alert_only: bool,
    pub fragments: Fragments,
    /// True if packets with wrong checksums are dropped.
    pub checks: bool,
    /// The minimum time to live of packets that leave; lower values are raised to it.
    pub min_ttl: u8,
    pub urgent: Urgent,
    pub midstream: Midstream,
    pub overload: Overload,
    pub over_time: OverTime,
    /// True if packets inside tunnels are inspected instead of the tunnel packets.
    pub inner: bool,
}

const FLOWS: usize = 65_536;
const MOST_FLOWS: usize = 1 << 24;
const MEMORY_BYTES: usize = 64 << 20;
const ALERTS_BYTES: u64 = 100_000_000;
const LEAST_ALERTS_BYTES: u64 = 64 << 10;
/// The default of `max_time`. It is far longer than the inspection of any packet that is not crafted to be slow.
/// Interruptions of the worker count as well. For a worker on two busy shared cores, none exceeded 25 ms in 20 s.
const MAX_TIME: Duration = Duration::from_millis(50);
const BOUND: Duration = Duration::from_millis(1);
/// The minimum of `max_time`; the next constant is the maximum. A shorter time is within the cost of reading the clock,
/// and a longer time is no useful limit.
const LEAST_TIME: Duration = Duration::from_micros(1);
const MOST_TIME: Duration = Duration::from_secs(1);

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let error = |text: String| Err(SettingsError(text));
        let policies = self.policies();
        let variables = self.variables.iter();
        let variables = Variables::new(variables.map(|it| (it.0.as_str(), it.1.as_str())))
            .map_err(|reason| SettingsError(format!("variables: {reason}")))?;
        let flows = self.flows.unwrap_or(FLOWS);
        if !(1024..=MOST_FLOWS).contains(&flows) {
            return error(format!("flows = {flows}: expected 1024 to {MOST_FLOWS}"));
        }
        let time = |name: &str, text: Option<String>, such: &str| {
            let read = text.map(|text| {
                let wrong = || format!("{name} = \"{text}\": expected a time such as \"{such}\"");
                duration(&text).ok_or_else(|| SettingsError(wrong()))
            });
            read.transpose()
        };
        let bound = time("bound", self.bound, "500us")?.unwrap_or(BOUND);
        let max_time = time("max_time", self.max_time, "50us")?.unwrap_or(MAX_TIME);
        if !(LEAST_TIME..=MOST_TIME).contains(&max_time) {
            return error("max_time: expected 1us to 1s".to_string());
        }
        let http = http_limits(self.head_limit, self.body_limit)?;
        let alerts_bytes = alerts_bytes(self.alerts_size, self.alerts.is_some())?;
        if self.rules.len() > 4096 {
            return error("rules: more than 4096 files".to_string());
        }
        let matcher = self.matcher.checked()?;
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
            refuses: Refuses {
                chain: self.strict.unwrap_or(false),
                reload: self.strict.unwrap_or(true),
            },
            matcher,
            events: self.events,
            alerts: self
                .alerts
                .map(|file| (file, alerts_bytes.unwrap_or(ALERTS_BYTES))),
            control: self.control,
            flows,
            memory_bytes: self.memory.map_or(MEMORY_BYTES, |it| it.bytes as usize),
            overlap: self.overlap,
            policies,
            http,
            bound,
            max_time,
        })
    }

    fn policies(&self) -> Policies {
        Policies {
            alert_only: self.alert_only,
            fragments: self.fragments,
            checks: self.checksums == Checksums::Drop,
            min_ttl: self.min_ttl,
            urgent: self.urgent,
            midstream: self.midstream,
            overload: self.overload.unwrap_or(Overload::Queue),
            over_time: self.over_time.unwrap_or(OverTime::Drop),
            inner: self.inner,
        }
    }
}

/// Returns the size limit of the file for alerts in bytes, if it is set. `is_stored` is true if there is such a file.
fn alerts_bytes(size: Option<Size>, is_stored: bool) -> Result<Option<u64>, SettingsError> {
    let bytes = size.map(|it| it.bytes);
    if bytes.is_some_and(|it| it < LEAST_ALERTS_BYTES) {
        return Err(SettingsError(
            "alerts_size: expected \"64 kB\" at least".to_string(),
        ));
    }
    if bytes.is_some() && !is_stored {
        return Err(SettingsError("alerts_size: needs alerts".to_string()));
    }
    Ok(bytes)
}

/// Returns the limits on stored HTTP messages.
fn http_limits(head: Option<Size>, body: Option<Size>) -> Result<HttpLimits, SettingsError> {
    const HEAD: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 20;
    const BODY: std::ops::RangeInclusive<u64> = 1 << 10..=16 << 20;
    let mut limits = HttpLimits::default();
    if let Some(Size { bytes }) = head {
        if !HEAD.contains(&bytes) {
            return Err(SettingsError(
                "head_limit: expected 1 KiB to 1 MiB".to_string(),
            ));
        }
        limits.head = bytes as usize;
    }
    if let Some(Size { bytes }) = body {
        if !BODY.contains(&bytes) {
            return Err(SettingsError(
                "body_limit: expected 1 KiB to 16 MiB".to_string(),
            ));
        }
        (limits.request_body, limits.response_body) = (bytes as usize, bytes as usize);
    }
    Ok(limits)
}
