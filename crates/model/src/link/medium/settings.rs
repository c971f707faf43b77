//! The settings of a medium, as in a medium file, and the checks that are common to all ways of sharing.

use serde::Deserialize;

/// Maximum number of attempts per frame (long retry limit of 802.11: 7).
pub(super) const MOST_ATTEMPTS: u32 = 64;
/// Upper limit of all durations in a medium file, us.
const LONGEST_US: f64 = 10e6;

/// The settings of a medium: the contents of a medium file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediumSettings {
    /// Seed of all random draws.
    #[serde(default = "one")]
    pub seed: u64,
    /// Queue length in each direction, packets; a packet that arrives at a full queue is lost.
    #[serde(default = "default_queue")]
    pub queue: u32,
    /// Loss of single transmissions.
    #[serde(default)]
    pub loss: Loss,
    /// Contention of 802.11; `None` for another way of sharing. Exactly one of `wlan`, `slots` and `gates` must be
    /// present.
    pub wlan: Option<Wlan>,
    /// Time slots that each belong to one direction; `None` for another way of sharing.
    pub slots: Option<Slots>,
    /// Gates that open at set times; `None` for another way of sharing.
    pub gates: Option<Gates>,
}

/// Losses in bursts. The channel is either good or bad, and may change after each transmission (E. N. Gilbert, Bell
/// System Technical Journal 39, 1960; E. O. Elliott, same journal 42, 1963).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Loss {
    /// Fraction of the transmissions that is lost while the channel is good.
    pub good: f64,
    /// Fraction of the transmissions that is lost while the channel is bad.
    pub bad: f64,
    /// Probability that a good channel becomes bad after a transmission.
    pub worsens: f64,
    /// Probability that a bad channel becomes good after a transmission.
    pub recovers: f64,
    /// Additional loss by time: pairs of a time in ms and the fraction of transmissions that is lost from then on.
    /// After its last pair the trace starts again.
    pub trace: Vec<(f64, f64)>,
}

/// Longest trace, ms: a day.
const LONGEST_TRACE_MS: f64 = 86_400_000.0;

/// Returns the value of a trace at the given time; `None` before its first pair, and of an empty trace.
pub(super) fn traced<T: Copy>(trace: &[(f64, T)], at_ns: u64) -> Option<T> {
    let (first, last) = (trace.first()?, trace.last()?);
    // No later time ends the last step of the trace, so it lasts as long as the step before it.
    let before = trace.len().checked_sub(2).map_or(first.0, |at| trace[at].0);
    let cycle_ms = last.0 + (last.0 - before).max(1.0);
    let at_ms = (at_ns as f64 / 1e6) % cycle_ms;
    let step = trace.iter().rev().find(|(from, _)| *from <= at_ms);
    step.map(|(_, value)| *value)
}

/// Checks that the times of a trace are in range and increase.
pub(super) fn trace_times<T>(key: &str, trace: &[(f64, T)]) -> Result<(), MediumError> {
    for (number, (at_ms, _)) in trace.iter().enumerate() {
        if !(0.0..=LONGEST_TRACE_MS).contains(at_ms) {
            return wrong(format!(
                "{key}: {at_ms} ms: expected 0 to {LONGEST_TRACE_MS} ms"
            ));
        }
        if number > 0 && *at_ms <= trace[number - 1].0 {
            return wrong(format!(
                "{key}: {at_ms} ms is not later than the entry before it"
            ));
        }
    }
    Ok(())
}

/// The contention of 802.11 between both directions, and with other stations that always have frames to send.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wlan {
    /// Generation of 802.11: `b`, `g`, `n`, `ac` or `ax`; `published` is the line for 802.11g that Gallenmüller's
    /// dissertation fits.
    #[serde(default = "published")]
    pub standard: String,
    /// Data rate for b and g, Mbit/s; `None` for other generations.
    pub mbit_per_s: Option<f64>,
    /// Index of modulation and coding (MCS) for n, ac and ax; `None` for other generations.
    pub mcs: Option<usize>,
    /// Channel width for n, ac and ax, MHz; `None` for other generations.
    pub mhz: Option<u32>,
    /// Number of spatial streams for n, ac and ax; `None` is one stream.
    pub streams: Option<usize>,
    /// Additional time of the implementation per packet, us.
    #[serde(default)]
    pub implementation_us: f64,
    /// Maximum number of transmissions of a frame.
    #[serde(default = "seven")]
    pub attempts: u32,
    /// Number of other stations, which always have frames to send.
    #[serde(default)]
    pub stations: u32,
    /// Number of the other stations that have frames to send, by time: pairs of a time in ms and the number from then
    /// on. After its last pair the trace starts again. All of them if it is empty.
    #[serde(default)]
    pub active: Vec<(f64, u32)>,
    /// Length of the other stations' frames, bytes.
    #[serde(default = "full_frame")]
    pub station_bytes: u32,
}

/// Time slots, each of which belongs to one direction, as in 5G time-division duplex (TDD).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// The owner of each slot of a cycle: `D` for the first direction, `U` for the second, `S` for neither.
    pub pattern: String,
    /// Length of a slot, us.
    #[serde(default = "slot_us")]
    pub slot_us: f64,
    /// Capacity of a slot, bytes.
    #[serde(default = "slot_bytes")]
    pub slot_bytes: u32,
    /// Time from the end of a slot to the delivery of its packets, us.
    #[serde(default)]
    pub processing_us: f64,
    /// Time from a request for a slot of the second direction to the grant, us; 0 if slots are granted in advance
    /// (configured grant).
    #[serde(default)]
    pub grant_us: f64,
    /// Time from a failed transmission to the next transmission of the same packet, us (HARQ).
    #[serde(default = "harq_us")]
    pub harq_us: f64,
    /// Maximum number of transmissions of a packet.
    #[serde(default = "four")]
    pub attempts: u32,
}

/// Gates that open for each direction at set times within a cycle; each direction has a link of its own.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gates {
    /// Length of the cycle, us.
    pub cycle_us: f64,
    /// Open periods of the first direction's gate: pairs of start and end within the cycle, us.
    pub first: Vec<(f64, f64)>,
    /// Open periods of the second direction's gate, as pairs of begin and end, us.
    pub second: Vec<(f64, f64)>,
    /// Rate of the link, Mbit/s.
    #[serde(default = "gigabit")]
    pub mbit_per_s: f64,
    /// Propagation delay of the link, us; 0 by default.
    #[serde(default)]
    pub delay_us: f64,
}

fn one() -> u64 {
    1
}
fn default_queue() -> u32 {
    64
}
fn published() -> String {
    "published".to_string()
}
fn seven() -> u32 {
    7
}
fn four() -> u32 {
    4
}
fn full_frame() -> u32 {
    1_500
}
fn slot_us() -> f64 {
    500.0
}
fn slot_bytes() -> u32 {
    3_000
}
fn harq_us() -> f64 {
    2_000.0
}
fn gigabit() -> f64 {
    1_000.0
}

/// An invalid setting of a medium; the text begins with the key of the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MediumError(pub String);

pub(super) fn wrong<T>(text: impl Into<String>) -> Result<T, MediumError> {
    Err(MediumError(text.into()))
}

pub(super) fn ns(key: &str, us: f64, least_us: f64) -> Result<u64, MediumError> {
    if !(least_us..=LONGEST_US).contains(&us) {
        return wrong(format!("{key} = {us}: expected {least_us} us to 10 s"));
    }
    Ok((us * 1e3).round() as u64)
}

pub(super) fn share(key: &str, share: f64) -> Result<f64, MediumError> {
    if !(0.0..=1.0).contains(&share) {
        return wrong(format!("{key} = {share}: expected a share, 0 to 1"));
    }
    Ok(share)
}
