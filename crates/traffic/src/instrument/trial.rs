//! A trial: its settings, its counters, and its errors.

use crate::pattern::Schedule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;
use taut_port::PortError;

/// A trial: a rate and a duration.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// Total rate of all streams that have no rate of their own, packets per second.
    pub rate_pps: f64,
    /// Time during which packets are sent.
    pub duration: Duration,
}

impl Trial {
    /// Returns the number of packets in the trial, for a constant rate.
    pub fn packets(&self) -> u64 {
        (self.rate_pps * self.duration.as_secs_f64())
            .round()
            .max(1.0) as u64
    }
}

/// Counters of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// Packets that were due in the trial.
    pub owed: u64,
    /// Packets that the port accepted.
    pub sent: u64,
    /// Packets that the port did not accept because the device's receive ring was full.
    pub refused: u64,
    /// Packets that were due but never sent by the generator.
    pub unsent: u64,
    /// Packets that became due while the generator had no memory for them; they were sent late, or are counted as
    /// unsent.
    #[serde(default)]
    pub starved: u64,
    /// Packets that came back with a valid stamp and checksum, duplicates included.
    pub received: u64,
    /// Corrupt packets that came back. Their stream is unknown, so they are counted with the first stream.
    pub corrupt: u64,
    /// Packets of another source, or of an earlier trial. Their stream is unknown, so they are counted with the first
    /// stream.
    pub foreign: u64,
    /// Replies that the load generator sent to requests for MAC addresses of its hosts (ARP, neighbour discovery). They
    /// are counted with the first stream.
    #[serde(default)]
    pub arp_answered: u64,
    /// Filler frames that were sent. They are counted with the first stream.
    #[serde(default)]
    pub fillers_sent: u64,
    /// Filler frames that came back, which are dropped. They are counted with the first stream.
    #[serde(default)]
    pub fillers_received: u64,
    /// Time from the intended send time of the first packet until the port accepted the last packet, s.
    pub seconds: f64,
    /// True if a stop request ended the trial early.
    pub stopped: bool,
}

impl Tally {
    /// Completes the counters when the stream's schedule has ended or was given up, `seconds` after its start.
    pub(super) fn finish(&mut self, schedule: &Schedule, seconds: f64, stopped: bool) {
        self.unsent = schedule.left();
        self.owed = schedule.next() + self.unsent;
        self.sent = schedule.next() - self.refused;
        (self.seconds, self.stopped) = (seconds, stopped);
    }

    /// Returns the offered rate when `asked_pps` was requested, packets per second. It is lower than requested if the
    /// generator sent the last packets late.
    pub fn offered_pps(&self, asked_pps: f64) -> f64 {
        let offered = (self.sent + self.refused) as f64;
        asked_pps.min(offered / self.seconds.max(1e-9))
    }

    /// Returns true if the generator could not offer the rate, so that the trial is no measurement of the device.
    pub fn generator_behind(&self) -> bool {
        self.unsent > 0
    }
}

/// Reason why a load generator or a trial fails.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A link did not come up within the timeout.
    #[error("{port}: {why} (waited {waited_s:.1} s)")]
    NoLink {
        /// Spec of the port.
        port: String,
        /// State of the link, as text.
        why: String,
        /// Time waited, s.
        waited_s: f64,
    },
    /// A gateway does not reply with its MAC address.
    #[error(
        "{port}: no ARP or ND reply from gateway {gateway} (waited {waited_s:.1} s): set gateway to the \
         device's address at this port and src_ip to another address of that network, or set dst_mac"
    )]
    NoGateway {
        /// Spec of the port.
        port: String,
        /// Address of the gateway.
        gateway: IpAddr,
        /// Time waited, s.
        waited_s: f64,
    },
    /// The load generator was stopped while waiting.
    #[error("the trial was stopped before it began")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offered_rate_decreases_when_sending_takes_longer_than_planned() {
        // The last of 1,000 packets is due at 0.999 s.
        let tally = |seconds| Tally {
            owed: 1_000,
            sent: 990,
            refused: 10,
            seconds,
            ..Tally::default()
        };
        assert_eq!(tally(0.999_002).offered_pps(1e3), 1e3);
        assert!((tally(1.01).offered_pps(1e3) - 1e3 / 1.01).abs() < 1e-9);
        assert_eq!(Tally::default().offered_pps(1e3), 0.0);
    }
}
