//! The contention of 802.11: stations, their backoff, and the transmission on the air.

use super::packet::{Fate, Waiting};
use super::settings::{MOST_ATTEMPTS, MediumError, Wlan, ns, trace_times, traced, wrong};
use crate::estimate::{not_negative, positive};
use crate::link::LinkError;
use crate::link::phy::{Generation, Phy};
use crate::link::wlan::{Line, line_of};
use fastrand::Rng;
use std::collections::VecDeque;

/// Length of the time before a packet's arrival for which other stations are simulated, ns. In this time each station
/// transmits several times.
const MADE_UP_NS: u64 = 20_000_000;
/// Maximum number of other stations.
const MOST_STATIONS: u32 = 64;

/// A station of the contention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Station {
    /// Remaining backoff, slots.
    pub(super) backoff: u32,
    /// Upper limit of the range from which the station's current backoff was drawn, slots.
    window: u32,
    pub(super) attempts: u32,
}

/// The transmission that occupies the shared medium at present.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnAir {
    pub(super) end_ns: u64,
    pub(super) begun_ns: u64,
    /// Direction and outcome of the packet that this transmission delivers or gives up; `None` if another station
    /// sends, or if the transmission fails and is repeated.
    pub(super) done: Option<(usize, Fate)>,
}

/// A transmission that one station begins, or several at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) begun_ns: u64,
    pub(super) end_ns: u64,
    pub(super) collides: bool,
}

#[derive(Debug)]
pub(super) struct Contention {
    line: Line,
    slot_ns: u64,
    pub(super) cw_min: u32,
    cw_max: u32,
    mean_backoff_ns: u64,
    pub(super) attempts: u32,
    station_bytes: u32,
    /// The stations of both directions, then the other stations.
    pub(super) stations: Vec<Station>,
    /// Number of other stations that have frames to send, by time in ms; all of them if it is empty.
    trace: Vec<(f64, u32)>,
    pub(super) free_ns: u64,
    pub(super) current: Option<OnAir>,
}

/// Returns true if the station with index `number` has a frame to send at `at_ns`. The station of a direction has a
/// frame if a packet of the direction has arrived; of the other stations the first `active` have one.
pub(super) fn takes_part(
    number: usize,
    queues: &[VecDeque<Waiting>; 2],
    active: usize,
    at_ns: u64,
) -> bool {
    let has_come = |queue: &VecDeque<Waiting>| queue.front().is_some_and(|it| it.since_ns <= at_ns);
    let is_active = number < queues.len() + active;
    queues.get(number).map_or(is_active, has_come)
}

impl Contention {
    /// Returns the number of other stations that have frames to send at `at_ns`.
    pub(super) fn active(&self, at_ns: u64) -> usize {
        let all = self.stations.len() - 2;
        let traced = traced(&self.trace, at_ns);
        traced.map_or(if self.trace.is_empty() { all } else { 0 }, |it| {
            it as usize
        })
    }

    /// Returns the time at which stations begin to contend for the medium, and the duration for which other stations
    /// occupied the medium before, both in ns. `first_ns` is the arrival of the first queued packet. Stations whose
    /// packet waited while the medium was idle have counted down their backoff.
    pub(super) fn count_down(
        &mut self,
        first_ns: u64,
        queues: &[VecDeque<Waiting>; 2],
    ) -> (u64, u64) {
        let early_ns = self.free_ns.max(first_ns.saturating_sub(MADE_UP_NS));
        let is_never_free = self.active(early_ns) > 0;
        let from_ns = match is_never_free {
            true => early_ns,
            false => self.free_ns.max(first_ns),
        };
        let passed_ns = from_ns - self.free_ns;
        if is_never_free {
            return (from_ns, passed_ns);
        }
        let passed = passed_ns / self.slot_ns.max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        for (station, queue) in self.stations.iter_mut().zip(queues) {
            if !queue.is_empty() {
                station.backoff = station.backoff.saturating_sub(passed);
            }
        }
        (from_ns, 0)
    }

    /// Begins the transmissions of the stations with the shortest backoff, and subtracts that backoff from all stations
    /// that contend.
    pub(super) fn attempt(&mut self, from_ns: u64, queues: &[VecDeque<Waiting>; 2]) -> Attempt {
        let (count, active) = (self.stations.len(), self.active(from_ns));
        let shortest = (0..count)
            .filter(|number| takes_part(*number, queues, active, from_ns))
            .map(|number| self.stations[number].backoff)
            .min()
            .unwrap_or(0);
        let mut senders = 0_u32;
        let mut longest_bytes = 0;
        for number in 0..count {
            if !takes_part(number, queues, active, from_ns) {
                continue;
            }
            let station = &mut self.stations[number];
            station.backoff -= shortest;
            if station.backoff == 0 {
                senders += 1;
                let bytes = match queues.get(number) {
                    Some(queue) => queue.front().map_or(0, |it| it.bytes),
                    None => self.station_bytes,
                };
                longest_bytes = longest_bytes.max(bytes);
            }
        }
        Attempt {
            begun_ns: from_ns + u64::from(shortest) * self.slot_ns,
            end_ns: from_ns + self.time_ns(longest_bytes, shortest),
            collides: senders > 1,
        }
    }

    /// Draws the next backoff of a station that has sent, and returns whether the station gives up a frame that failed.
    pub(super) fn settle(&mut self, number: usize, fails: bool, rng: &mut Rng) -> bool {
        let station = &mut self.stations[number];
        station.attempts += 1;
        let gives_up = fails && station.attempts >= self.attempts;
        if fails && !gives_up {
            station.window = (2 * station.window + 1).min(self.cw_max);
        } else {
            (station.window, station.attempts) = (self.cw_min, 0);
        }
        station.backoff = rng.u32(0..=station.window);
        gives_up
    }

    /// Returns the duration of a frame's transmission after `backoff` slots, ns; `bytes` includes the Ethernet header.
    fn time_ns(&self, bytes: u32, backoff: u32) -> u64 {
        // The Ethernet header is not sent over the air, and `line` already includes the 802.11 headers that replace it.
        let payload = bytes.saturating_sub(14);
        let line_ns = (self.line.time_us(payload) * 1e3).round() as u64;
        line_ns.saturating_sub(self.mean_backoff_ns) + u64::from(backoff) * self.slot_ns
    }
}

/// Returns the timing of the standard and mode that the settings name.
fn phy_of(wlan: &Wlan) -> Result<Phy, MediumError> {
    let said = |e: LinkError| MediumError(format!("wlan.standard: {e}"));
    let rate = || {
        let rate = wlan.mbit_per_s;
        rate.ok_or_else(|| {
            MediumError(format!(
                "wlan.mbit_per_s: {} needs a rate, such as 54",
                wlan.standard
            ))
        })
    };
    let streams = |generation| {
        let (Some(mcs), Some(mhz)) = (wlan.mcs, wlan.mhz) else {
            return wrong(format!(
                "wlan.mcs, wlan.mhz: {} needs both, such as 7 and 20",
                wlan.standard
            ));
        };
        Phy::streams(generation, mcs, mhz, wlan.streams.unwrap_or(1)).map_err(said)
    };
    let phy = match wlan.standard.as_str() {
        "published" => Phy::g_without_extension(54.0).map_err(said)?,
        "b" => Phy::b(rate()?, false).map_err(said)?,
        "g" => Phy::g(rate()?).map_err(said)?,
        "n" => streams(Generation::N)?,
        "ac" => streams(Generation::Ac)?,
        "ax" => streams(Generation::Ax)?,
        other => {
            return wrong(format!(
                "wlan.standard = \"{other}\": expected published, b, g, n, ac or ax"
            ));
        }
    };
    Ok(phy)
}

/// Returns the line of time over packet length for the settings, with the implementation's time per packet.
fn line_with_implementation(wlan: &Wlan, phy: &Phy) -> Result<Line, MediumError> {
    let line = match wlan.standard.as_str() {
        "published" => Line::PUBLISHED,
        _ => line_of(phy),
    };
    ns("wlan.implementation_us", wlan.implementation_us, 0.0)?;
    let line = line
        .with_implementation(wlan.implementation_us)
        .map_err(|e| MediumError(format!("wlan.implementation_us: {e}")))?;
    not_negative("the time of a packet", line.us_per_packet)
        .and_then(|_| positive("the time of a byte", line.us_per_byte))
        .map_err(|e| MediumError(format!("wlan: {e}")))?;
    Ok(line)
}

pub(super) fn contention(wlan: &Wlan) -> Result<Contention, MediumError> {
    let phy = phy_of(wlan)?;
    let line = line_with_implementation(wlan, &phy)?;
    if !(1..=MOST_ATTEMPTS).contains(&wlan.attempts) {
        return wrong(format!(
            "wlan.attempts = {}: expected 1 to {MOST_ATTEMPTS}",
            wlan.attempts
        ));
    }
    if wlan.stations > MOST_STATIONS {
        return wrong(format!(
            "wlan.stations = {}: expected at most {MOST_STATIONS}",
            wlan.stations
        ));
    }
    trace_times("wlan.active", &wlan.active)?;
    if let Some((_, most)) = wlan.active.iter().max_by_key(|(_, active)| active)
        && *most > wlan.stations
    {
        return wrong(format!(
            "wlan.active: {most} stations: expected at most `stations`, {}",
            wlan.stations
        ));
    }
    let slot_ns = (phy.slot_us * 1e3).round() as u64;
    let station = Station {
        backoff: 0,
        window: phy.cw_min,
        attempts: 0,
    };
    Ok(Contention {
        line,
        slot_ns,
        cw_min: phy.cw_min,
        cw_max: phy.cw_max,
        mean_backoff_ns: (f64::from(phy.cw_min) / 2.0 * phy.slot_us * 1e3).round() as u64,
        attempts: wlan.attempts,
        station_bytes: wlan.station_bytes.min(1_514),
        stations: vec![station; 2 + wlan.stations as usize],
        trace: wlan.active.clone(),
        free_ns: 0,
        current: None,
    })
}
