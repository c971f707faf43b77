//! A record of the outcome of every packet, for tests.

use crate::record::{Record, compiled_here};

/// Outcome of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The packet came back.
    Received {
        /// Time from the packet's send timestamp to its arrival, ticks.
        latency_ticks: u32,
    },
    /// The packet was sent and never came back.
    Lost,
    /// The device's receive ring had no space for the packet.
    Refused,
}

const LOST: u32 = u32::MAX;
const REFUSED: u32 = u32::MAX - 1;
const LONGEST: u32 = u32::MAX - 2;

/// Send delay and latency of every single packet, in memory allocated before the trial (8 bytes each).
#[derive(Debug)]
pub(crate) struct EveryPacket {
    send_delay_ticks: Vec<u32>,
    latency_ticks: Vec<u32>,
    highest: Option<u64>,
    /// Number of arrivals of packets that had already arrived.
    pub(crate) duplicate: u64,
    /// Number of reordered packets (RFC 4737).
    pub(crate) reordered: u64,
    /// Number of latencies that were capped at the largest value that can be stored (over a second).
    pub(crate) saturated: u64,
    /// Number of arrivals with the sequence number of a packet that was never sent.
    pub(crate) impossible: u64,
    unique: u64,
}

impl EveryPacket {
    /// Makes a record for `packets` packets. All memory is touched now, so that the trial causes no page faults.
    pub(crate) fn new(packets: usize) -> Self {
        let mut send_delay_ticks = vec![1; packets];
        send_delay_ticks.clear();
        let mut latency_ticks = vec![LOST; packets];
        latency_ticks.clear();
        Self {
            send_delay_ticks,
            latency_ticks,
            highest: None,
            duplicate: 0,
            reordered: 0,
            saturated: 0,
            impossible: 0,
            unique: 0,
        }
    }

    /// Returns send delay (ticks) and outcome of every packet, by sequence number.
    pub(crate) fn packets(&self) -> impl ExactSizeIterator<Item = (u32, Outcome)> + '_ {
        self.send_delay_ticks
            .iter()
            .zip(&self.latency_ticks)
            .map(|(send_delay, latency)| {
                let outcome = match *latency {
                    LOST => Outcome::Lost,
                    REFUSED => Outcome::Refused,
                    latency_ticks => Outcome::Received { latency_ticks },
                };
                (*send_delay, outcome)
            })
    }
}

impl Record for EveryPacket {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, sequence: u64, _: u64, send_delay_ticks: u64) {
        // Packets beyond the allocated memory are not recorded, but the trial never sends that many packets.
        if self.send_delay_ticks.len() as u64 == sequence
            && self.send_delay_ticks.len() < self.send_delay_ticks.capacity()
        {
            self.send_delay_ticks
                .push(u32::try_from(send_delay_ticks).unwrap_or(u32::MAX));
            self.latency_ticks.push(LOST);
        }
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        if let Some(latency) = self.latency_ticks.get_mut(sequence as usize) {
            *latency = REFUSED;
        }
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, _: u64) {
        match self.latency_ticks.get_mut(sequence as usize) {
            None | Some(&mut REFUSED) => self.impossible += 1,
            Some(latency) if *latency != LOST => self.duplicate += 1,
            Some(latency) => {
                self.saturated += u64::from(latency_ticks > u64::from(LONGEST));
                *latency = latency_ticks.min(u64::from(LONGEST)) as u32;
                self.unique += 1;
                match self.highest {
                    Some(highest) if sequence < highest => self.reordered += 1,
                    _ => self.highest = Some(sequence),
                }
            }
        }
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_every_packet_is_recorded() {
        let mut record = EveryPacket::new(5);
        for sequence in 0..5 {
            record.sent(sequence, 0, 10 * sequence);
        }
        record.refused(1);
        record.received(0, 100, 0);
        record.received(4, 400, 0);
        record.received(3, u64::MAX, 0);
        record.received(3, 5, 0);
        record.received(1, 5, 0);
        record.received(9, 5, 0);
        let packets: Vec<_> = record.packets().collect();
        let received = |latency_ticks| Outcome::Received { latency_ticks };
        assert_eq!(
            packets,
            [
                (0, received(100)),
                (10, Outcome::Refused),
                (20, Outcome::Lost),
                (30, received(LONGEST)),
                (40, received(400))
            ]
        );
        assert_eq!(
            (
                record.duplicate,
                record.reordered,
                record.saturated,
                record.impossible
            ),
            (1, 1, 1, 2)
        );
    }
}
