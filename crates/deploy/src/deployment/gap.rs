//! Loss on the wires of a segment while its process is dead: what its neighbours sent to it meanwhile, and what they
//! could not send.

use super::drain::side;
use taut_port::PortCounters;

/// Side of a segment that is not there.
#[derive(Debug)]
pub(super) struct Gap {
    /// The segment, by number.
    pub segment: usize,
    /// Number of the segment beside it.
    pub neighbour: usize,
    /// Packets that the neighbour had sent this way when the gap was noticed; none until it has said so.
    before: Option<u64>,
    /// The segment is there again: the next that is heard of the neighbour is the end.
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

    /// The segment is there again; true the first time.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// The segment has died again before the end was heard: it is still the same gap.
    pub(super) fn reopen(&mut self) {
        self.closing = false;
    }

    /// Takes in what the neighbour has counted by now; returns what is lost once the gap is over.
    pub(super) fn hear(&mut self, ports: &[PortCounters]) -> Option<u64> {
        let sent = self.sent(ports);
        let before = *self.before.get_or_insert(sent);
        self.closing.then(|| sent.saturating_sub(before))
    }

    /// Packets that the neighbour sent this way, or had to drop as nobody took them.
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
    fn what_is_sent_towards_a_gap_is_lost_and_nothing_else() {
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
        // Of the 50 sent since, 10 left through the first port, which is the west one; 3 were left over.
        let after = counted(150, 50, 4);
        assert_eq!(west.hear(&after), Some(43));
        assert_eq!(east.hear(&after), Some(13));
        // Dead again before the neighbour said what it sent: one gap, nothing of it forgotten.
        let mut twice = Gap::new(1, 2);
        assert_eq!(twice.hear(&counted(100, 40, 1)), None);
        assert!(twice.close());
        twice.reopen();
        assert_eq!(twice.hear(&counted(120, 45, 1)), None);
        assert!(twice.close());
        assert_eq!(twice.hear(&after), Some(13));
    }
}
