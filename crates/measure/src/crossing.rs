//! The passage of each packet through a device, derived from observations on the device's links: when the packet
//! entered and when it left. A side is the index of one of these links.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::LatencyHistogram;

/// A matcher of the two observations of each packet, by flow and sequence number.
///
/// Each packet is stored for `patience_ns` after it entered. It counts as lost if it has not left by then; if it leaves
/// several times, all departures within that time are counted.
#[derive(Debug)]
pub struct Crossings {
    patience_ns: u64,
    /// Packets in the device, by flow and by the index of their ingress link.
    tracks: BTreeMap<(u16, usize), Track>,
    /// Number of departures without a matching arrival: the packet was not observed entering the device, or entered it
    /// longer ago than the timeout.
    pub only_left: u64,
}

/// The passage of a packet through the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    /// Number of the packet's flow.
    pub flow: u16,
    /// Sequence number of the packet in its flow.
    pub sequence: u64,
    /// Index of the link through which the packet entered.
    pub side: usize,
    /// Time at which the packet entered, on the wiretap's clock.
    pub entered_ns: u64,
    /// Index of the link through which the packet first left, and the time from entering to leaving, ns; `None` if the
    /// packet did not leave within the timeout.
    pub left: Option<(usize, u64)>,
    /// Number of times that the packet entered before it first left, at most 255.
    pub arrivals: u8,
    /// Number of times that the packet left within the timeout, at most 255; 0 if it did not leave.
    pub departures: u8,
    /// True if this packet was overtaken: a packet of the same flow and ingress link that entered later left earlier
    /// (RFC 4737).
    pub reordered: bool,
}

/// The packets of one flow that entered through one link, in the order in which they entered.
#[derive(Debug, Default)]
struct Track {
    /// Packets whose result has not been reported yet.
    packets: VecDeque<Crossed>,
    /// Number of packets that were reported and removed from `packets`.
    settled: u64,
    /// For each sequence number, the position of its packet, counted from the first packet of the track.
    places: HashMap<u64, u64>,
    /// Highest position among the packets that have left; `None` before the first packet leaves.
    highest_left: Option<u64>,
}

impl Track {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "usize has 64 bits wherever this runs"
    )]
    fn find(&mut self, sequence: u64) -> Option<(u64, &mut Crossed)> {
        let place = *self.places.get(&sequence)?;
        let index = place.checked_sub(self.settled)?;
        Some((place, self.packets.get_mut(index as usize)?))
    }

    fn settle(&mut self, until_ns: u64, each: &mut impl FnMut(Crossed)) {
        while let Some(packet) = self.packets.front().filter(|p| p.entered_ns <= until_ns) {
            if self.places.get(&packet.sequence) == Some(&self.settled) {
                self.places.remove(&packet.sequence);
            }
            each(*packet);
            self.packets.pop_front();
            self.settled += 1;
        }
    }
}

impl Crossings {
    /// Creates a matcher without observations; a packet that has not left `patience_ns` after it entered counts as
    /// lost.
    pub fn new(patience_ns: u64) -> Self {
        Self {
            patience_ns,
            tracks: BTreeMap::new(),
            only_left: 0,
        }
    }

    /// Handles a packet that entered the device through the link with index `side` at `time_ns`.
    pub fn entered(&mut self, side: usize, flow: u16, sequence: u64, time_ns: u64) {
        let track = self.tracks.entry((flow, side)).or_default();
        if let Some((_, packet)) = track.find(sequence)
            && packet.left.is_none()
        {
            packet.arrivals = packet.arrivals.saturating_add(1);
            return;
        }
        let place = track.settled + track.packets.len() as u64;
        track.places.insert(sequence, place);
        track.packets.push_back(Crossed {
            flow,
            sequence,
            side,
            entered_ns: time_ns,
            left: None,
            arrivals: 1,
            departures: 0,
            reordered: false,
        });
    }

    /// Handles a packet that left the device through the link with index `side` at `time_ns`.
    pub fn left(&mut self, side: usize, flow: u16, sequence: u64, time_ns: u64) {
        // A packet that passes the device in both directions is on two tracks: the departure belongs to the track on
        // which the packet has not left yet.
        let mut best: Option<(u8, usize)> = None;
        for ((_, entry), track) in self.tracks.range_mut((flow, 0)..=(flow, usize::MAX)) {
            if let Some((_, packet)) = track.find(sequence) {
                let rank = u8::from(packet.left.is_none()) * 2 + u8::from(*entry != side);
                if best.is_none_or(|(other, _)| rank > other) {
                    best = Some((rank, *entry));
                }
            }
        }
        let track = best.and_then(|(_, entry)| self.tracks.get_mut(&(flow, entry)));
        let Some(track) = track else {
            self.only_left += 1;
            return;
        };
        let highest_left = track.highest_left;
        let Some((place, packet)) = track.find(sequence) else {
            return;
        };
        packet.departures = packet.departures.saturating_add(1);
        if packet.left.is_some() {
            return;
        }
        packet.left = Some((side, time_ns.saturating_sub(packet.entered_ns)));
        packet.reordered = highest_left.is_some_and(|highest| place < highest);
        track.highest_left = highest_left.max(Some(place));
    }

    /// Reports the packets whose timeout has passed at `now_ns`. Packets of one flow and ingress link are reported in
    /// the order in which they entered.
    pub fn settle(&mut self, now_ns: u64, mut each: impl FnMut(Crossed)) {
        let until_ns = now_ns.saturating_sub(self.patience_ns);
        for track in self.tracks.values_mut() {
            track.settle(until_ns, &mut each);
        }
    }

    /// Reports all remaining packets: no more observations will arrive.
    pub fn finish(&mut self, mut each: impl FnMut(Crossed)) {
        for track in self.tracks.values_mut() {
            track.settle(u64::MAX, &mut each);
        }
    }
}

/// The statistics of the packets that entered a device through one link.
#[derive(Debug, Clone, Default)]
pub struct CrossingAccount {
    /// Number of packets that entered the device through the link.
    pub entered: u64,
    /// Number of packets that did not leave the device within the timeout.
    pub lost: u64,
    /// Number of packets that left the device more often than they entered it.
    pub duplicate: u64,
    /// Number of packets that the device reordered (RFC 4737).
    pub reordered: u64,
    /// Time that packets spent in the device, ns.
    pub latency: LatencyHistogram,
}

impl CrossingAccount {
    /// Counts a packet that [`Crossings`] reported.
    pub fn add(&mut self, packet: &Crossed) {
        self.entered += 1;
        self.duplicate += u64::from(packet.departures > packet.arrivals);
        self.reordered += u64::from(packet.reordered);
        match packet.left {
            Some((_, latency_ns)) => self.latency.record(latency_ns),
            None => self.lost += 1,
        }
    }

    /// Returns the number of packets that entered the device and left it within the timeout.
    pub fn left(&self) -> u64 {
        self.entered - self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(crossings: &mut Crossings) -> Vec<Crossed> {
        let mut packets = Vec::new();
        crossings.finish(|packet| packets.push(packet));
        packets
    }

    fn sum(packets: &[Crossed]) -> CrossingAccount {
        let mut account = CrossingAccount::default();
        packets.iter().for_each(|packet| account.add(packet));
        account
    }

    #[test]
    fn each_packet_has_the_latency_of_its_own_two_timestamps() {
        let mut crossings = Crossings::new(1_000);
        crossings.entered(0, 7, 1, 100);
        crossings.entered(0, 7, 2, 110);
        crossings.entered(0, 8, 1, 120);
        crossings.left(1, 7, 1, 150);
        crossings.left(1, 8, 1, 420);
        let packets = all(&mut crossings);
        let ways: Vec<_> = packets
            .iter()
            .map(|p| (p.flow, p.sequence, p.left))
            .collect();
        assert_eq!(
            ways,
            [(7, 1, Some((1, 50))), (7, 2, None), (8, 1, Some((1, 300)))]
        );
        let account = sum(&packets);
        assert_eq!((account.entered, account.left(), account.lost), (3, 2, 1));
        assert_eq!(account.latency.max_ns(), Some(300));
    }

    #[test]
    fn reordering_and_duplicates_are_attributed_to_the_device() {
        let mut crossings = Crossings::new(1_000);
        for sequence in [5, 3, 4] {
            // Reordering depends on the order in which packets entered, not on their sequence numbers.
            crossings.entered(0, 1, sequence, sequence);
        }
        crossings.entered(0, 1, 4, 10);
        for sequence in [5, 4, 3, 3, 4] {
            crossings.left(1, 1, sequence, 20);
        }
        let packets = all(&mut crossings);
        let odd: Vec<_> = packets
            .iter()
            .map(|p| (p.sequence, p.reordered, p.arrivals, p.departures))
            .collect();
        assert_eq!(odd, [(5, false, 1, 1), (3, true, 1, 2), (4, false, 2, 2)]);
        let account = sum(&packets);
        assert_eq!((account.duplicate, account.reordered), (1, 1));
    }

    #[test]
    fn a_packet_crossing_the_device_twice_counts_as_two_crossings() {
        let mut crossings = Crossings::new(1_000);
        crossings.entered(0, 1, 1, 0);
        crossings.left(1, 1, 1, 10);
        crossings.entered(1, 1, 1, 20);
        crossings.left(0, 1, 1, 50);
        let packets = all(&mut crossings);
        let ways: Vec<_> = packets.iter().map(|p| (p.side, p.left)).collect();
        assert_eq!(ways, [(0, Some((1, 10))), (1, Some((0, 30)))]);
    }

    #[test]
    fn packets_that_leave_after_the_timeout_are_counted_separately() {
        let mut crossings = Crossings::new(1_000);
        crossings.entered(0, 1, 1, 0);
        crossings.entered(0, 1, 2, 500);
        let mut settled = Vec::new();
        crossings.settle(1_200, |packet| settled.push(packet));
        assert_eq!(settled.len(), 1);
        assert_eq!((settled[0].sequence, settled[0].left), (1, None));
        crossings.left(1, 1, 1, 1_300);
        crossings.left(1, 9, 1, 1_300);
        assert_eq!(crossings.only_left, 2);
        // The earlier packet with this sequence number has been reported, so a new packet may have the same number.
        crossings.entered(0, 1, 1, 1_400);
        crossings.left(1, 1, 1, 1_450);
        let packets = all(&mut crossings);
        let ways: Vec<_> = packets.iter().map(|p| (p.sequence, p.left)).collect();
        assert_eq!(ways, [(2, None), (1, Some((1, 50)))]);
    }
}
