//! Loss on the links of a segment while its process is dead: packets that its neighbours sent to the segment during
//! that time, or could not send.

use super::drain::side;
use taut_port::PortCounters;

/// The outage of the link between a dead segment and one of its neighbours.
#[derive(Debug)]
pub(super) struct Gap {
    /// Index of the dead segment.
    pub segment: usize,
    /// Index of the neighbouring segment.
    pub neighbour: usize,
    /// Number of packets that the neighbour had sent towards the dead segment when the outage was detected; none until
    /// the neighbour reports that number.
    before: Option<u64>,
    /// True when the segment is running again: the next report of the neighbour ends the outage.
    closing: bool,
}

impl Gap {
    pub(super) fn new(segment: usize, neighbour: usize) -> Self {
        Self {
            segment,
            neighbour,
            before: None,
            closing: false,
        }
    }

    /// Marks the segment as running again; returns true the first time.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// Marks the segment as dead again before the neighbour's final report: the outage continues.
    pub(super) fn reopen(&mut self) {
        self.closing = false;
    }

    /// Processes the neighbour's counters; returns the number of lost packets once the outage is over.
    pub(super) fn hear(&mut self, ports: &[PortCounters]) -> Option<u64> {
        let sent = self.sent(ports);
        let before = *self.before.get_or_insert(sent);
        self.closing.then(|| sent.saturating_sub(before))
    }

    /// Returns the number of packets that the neighbour sent towards the dead segment, or dropped because it could not
    /// send them.
    fn sent(&self, ports: &[PortCounters]) -> u64 {
        let eastward = self.neighbour < self.segment;
        let ports = side(ports, eastward).iter();
        ports
            .map(|port| port.tx_packets + port.tx_full + port.tx_failed)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_sent_to_a_failed_segment_count_as_lost() {
        let counted = |tx_packets, first_tx_packets, tx_full| {
            [first_tx_packets, tx_packets - first_tx_packets].map(|tx_packets| PortCounters {
                tx_packets,
                tx_full,
                ..PortCounters::default()
            })
        };
        let (mut west, mut east) = (Gap::new(1, 0), Gap::new(1, 2));
        for gap in [&mut west, &mut east] {
            assert_eq!(gap.hear(&counted(100, 40, 1)), None);
            assert_eq!(gap.hear(&counted(120, 45, 1)), None);
            assert!(gap.close());
            assert!(!gap.close());
        }
        // Since then the neighbour has sent 50 packets, 10 of them through its first (west) port; it could not send 3
        // more.
        let after = counted(150, 50, 4);
        assert_eq!(west.hear(&after), Some(43));
        assert_eq!(east.hear(&after), Some(13));
        // The segment dies again before the neighbour's report: both outages are one gap with all losses.
        let mut twice = Gap::new(1, 2);
        assert_eq!(twice.hear(&counted(100, 40, 1)), None);
        assert!(twice.close());
        twice.reopen();
        assert_eq!(twice.hear(&counted(120, 45, 1)), None);
        assert!(twice.close());
        assert_eq!(twice.hear(&after), Some(13));
    }
}
