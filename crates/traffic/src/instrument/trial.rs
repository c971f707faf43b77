//! A trial: what is asked for, what is counted, and why there can be none.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;
use taut_port::PortError;

/// Trial: at a rate, for a while.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// Packets per second, of all streams that have no rate of their own.
    pub rate_pps: f64,
    /// Length of the sending.
    pub duration: Duration,
}

impl Trial {
    /// Packets that the trial owes, at a constant rate.
    pub fn packets(&self) -> u64 {
        (self.rate_pps * self.duration.as_secs_f64())
            .round()
            .max(1.0) as u64
    }
}

/// Counts of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets that were due in the trial.
    pub owed: u64,
    /// Packets handed over to the port.
    pub sent: u64,
    /// Packets that the port had no room for: the device's receive ring was full.
    pub refused: u64,
    /// Packets that were due, but the generator never came to them.
    pub unsent: u64,
    /// Packets that were due while the generator had no memory for them: sent late, or among the unsent.
    #[serde(default)]
    pub starved: u64,
    /// Packets that came back with a right stamp and checksum (copies included).
    pub received: u64,
    /// Packets that came back damaged: of which stream is not known, counted with the first.
    pub corrupt: u64,
    /// Packets that are not ours, or left over from an earlier trial. Nobody knows of which stream: counted with the
    /// first.
    pub foreign: u64,
    /// Questions for the MAC addresses of its stations that were answered (ARP, neighbour discovery).
    /// Counted with the first stream.
    #[serde(default)]
    pub arp_answered: u64,
    /// Filler frames handed over. Counted with the first stream.
    #[serde(default)]
    pub fillers_sent: u64,
    /// Filler frames that came back, which are dropped. Counted with the first stream.
    #[serde(default)]
    pub fillers_received: u64,
    /// Seconds from the first packet due until the port had the last one.
    pub seconds: f64,
    /// Ended early by a stop request.
    pub stopped: bool,
}

impl Tally {
    /// The rate at which packets were offered when `asked_pps` were asked for, packets per second: less where the
    /// generator came to the last of them late.
    pub fn offered_pps(&self, asked_pps: f64) -> f64 {
        let offered = (self.sent + self.refused) as f64;
        asked_pps.min(offered / self.seconds.max(1e-9))
    }

    /// True if the generator could not offer the rate: the trial says nothing about the device.
    pub fn generator_behind(&self) -> bool {
        self.unsent > 0
    }
}

/// Reason why an instrument cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The other side did not come.
    #[error("{port}: {why} (waited {waited_s:.1} s)")]
    NoLink {
        /// The port's spec.
        port: String,
        /// State of the link in words.
        why: String,
        /// Time waited, s.
        waited_s: f64,
    },
    /// A gateway does not say its MAC address.
    #[error(
        "{port}: nobody answers for gateway {gateway} (waited {waited_s:.1} s): give an address that the device has at \
         this port, and a src_ip in its network, or its MAC address as dst_mac"
    )]
    NoGateway {
        /// The port's spec.
        port: String,
        /// The address asked for.
        gateway: IpAddr,
        /// Time waited, s.
        waited_s: f64,
    },
    /// The instrument was told to stop while waiting.
    #[error("stopped")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_offered_is_the_one_at_which_packets_left() {
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
