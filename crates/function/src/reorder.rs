//! The restoration of the order of numbered packets after parallel paths: packets wait until the earlier ones have
//! arrived, for a bounded time and in bounded memory.
//!
//! (The packet ordering function of RFC 9550, section 4.3, with a limit on each wait; duplicates are eliminated as by
//! the vector recovery of IEEE 802.1CB, section 7.4.3.4. A restarted sender is recognised by two packets in sequence,
//! as in RFC 3550, section A.1.)

use std::collections::VecDeque;
use taut_port::BATCH_CAPACITY;

/// The number of bits of a packet's number; numbers wrap around.
pub const NUMBER_BITS: u32 = 16;

/// The largest window, packets: a quarter of the numbers, so that late and early packets can be distinguished.
pub const MOST_WINDOW: usize = 1 << (NUMBER_BITS - 2);

/// The relation of a packet that arrives to the packets that arrived before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The packet was the next in order; it was released with the packets that had waited for it.
    InOrder,
    /// The packet waits for packets with lower numbers.
    Early,
    /// The packet arrived after its number was given up; it is returned to the caller, who may send it out of order.
    Late,
    /// A packet with the same number has arrived before; this one is returned to the caller.
    Duplicate,
}

/// The counts of a stream of numbered packets that do not count single packets by what happened to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReorderCounts {
    /// The number of packet numbers that were given up, less those whose packet arrived late.
    pub missing: u64,
    /// The number of waits that ended because of the time limit.
    pub timeouts: u64,
    /// The longest wait of a packet for earlier ones, in ticks.
    pub longest_ticks: u64,
    /// The number of detected restarts of the sender.
    pub restarts: u64,
}

/// A packet that waits for earlier ones, and the time at which it arrived.
struct Slot<T> {
    packet: T,
    since_ticks: u64,
}

/// The receiver of one stream of numbered packets, which it releases in order.
pub struct Reorder<T> {
    /// The waiting packets, by number modulo the window.
    slots: Box<[Option<Slot<T>>]>,
    /// For each number in the window before `next`: true if the packet with that number has arrived.
    arrived: Box<[bool]>,
    waiting: usize,
    /// The number of the next packet in order; none before the first packet.
    next: Option<u16>,
    /// The number and arrival time (ticks) of each waiting packet, in order of arrival. Entries of packets that have
    /// left since are removed later.
    by_arrival: VecDeque<(u16, u64)>,
    wait_ticks: u64,
    /// The number after that of the last packet outside of both windows (before and after `next`). If this number
    /// arrives next, the sender has restarted.
    suspected: Option<u16>,
    counts: ReorderCounts,
}

impl<T> Reorder<T> {
    /// Makes the receiver of a stream. `window` is the number of packets from the due one to the last that may wait, a
    /// power of two up to [`MOST_WINDOW`]; `wait_ticks` is the longest wait.
    pub fn new(window: usize, wait_ticks: u64) -> Self {
        let window = window.clamp(2, MOST_WINDOW).next_power_of_two();
        Self {
            slots: (0..window).map(|_| None).collect(),
            arrived: vec![false; window].into(),
            waiting: 0,
            next: None,
            // While a packet waits, all packets that arrive and leave have numbers in its window. The entries of
            // packets that have left are removed after each batch.
            by_arrival: VecDeque::with_capacity(2 * window + BATCH_CAPACITY),
            wait_ticks,
            suspected: None,
            counts: ReorderCounts::default(),
        }
    }

    /// Makes `number` that of the first packet in order; packets before it count as late. Without this call it is the
    /// number of the first packet that arrives.
    #[must_use]
    pub fn starting_at(mut self, number: u16) -> Self {
        self.next = Some(number);
        self
    }

    /// Returns the number of packets that wait for earlier ones.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the counts of the stream.
    pub fn counts(&self) -> ReorderCounts {
        self.counts
    }

    /// Records a packet that is the next in order while no packet waits, so that it passes immediately. Returns false
    /// without a change for any other packet.
    #[inline]
    pub fn pass(&mut self, number: u16) -> bool {
        let is_due = self.waiting == 0 && self.next.is_none_or(|next| next == number);
        if is_due {
            self.advance(number, true);
        }
        is_due
    }

    /// Accepts a packet at the time `now_ticks`, and passes the packets that are next in order to `out`. Returns the
    /// packet if it is late or a duplicate.
    ///
    /// `keep` makes the packet ready to wait, for example by a copy. It returns the packet if that cannot wait; then
    /// all earlier numbers are given up, and the packet is released.
    pub fn arrive(
        &mut self,
        number: u16,
        packet: T,
        now_ticks: u64,
        keep: impl FnOnce(T) -> Result<T, T>,
        out: &mut impl FnMut(T),
    ) -> (Arrival, Option<T>) {
        let next = *self.next.get_or_insert(number);
        let ahead = distance(next, number);
        let window = self.slots.len() as i32;
        if ahead < 0 {
            return match -ahead <= window {
                true => self.behind(number, packet),
                false => self.far(number, packet, now_ticks, out),
            };
        }
        if ahead >= MOST_WINDOW as i32 {
            return self.far(number, packet, now_ticks, out);
        }
        self.suspected = None;
        if ahead == 0 {
            self.advance(number, true);
            out(packet);
            self.release(now_ticks, out);
            return (Arrival::InOrder, None);
        }
        if self.slots[self.place(number)].is_some() && ahead < window {
            return (Arrival::Duplicate, Some(packet));
        }
        // The window moves up to the packet.
        while distance(self.due(number), number) >= window {
            self.skip(now_ticks, out);
        }
        match keep(packet) {
            Ok(packet) => {
                let place = self.place(number);
                self.slots[place] = Some(Slot {
                    packet,
                    since_ticks: now_ticks,
                });
                self.waiting += 1;
                self.by_arrival.push_back((number, now_ticks));
                // If the window has moved, this packet may be due itself.
                self.release(now_ticks, out);
                (Arrival::Early, None)
            }
            Err(packet) => {
                while self.due(number) != number {
                    self.skip(now_ticks, out);
                }
                self.advance(number, true);
                out(packet);
                self.release(now_ticks, out);
                (Arrival::InOrder, None)
            }
        }
    }

    /// Gives up the numbers for which a packet has waited longer than the limit, and passes the packets after these
    /// numbers to `out`.
    pub fn expire(&mut self, now_ticks: u64, out: &mut impl FnMut(T)) {
        while let Some((number, since)) = self.by_arrival.front().copied() {
            let waits = self.slots[self.place(number)]
                .as_ref()
                .is_some_and(|slot| slot.since_ticks == since);
            if waits && self.waiting > 0 {
                if now_ticks.wrapping_sub(since) < self.wait_ticks {
                    return;
                }
                self.counts.timeouts += 1;
                while self.waiting > 0 && distance(self.due(number), number) >= 0 {
                    self.skip(now_ticks, out);
                }
                self.release(now_ticks, out);
            }
            self.by_arrival.pop_front();
        }
    }

    /// Passes all waiting packets to `out`, in order, and gives up the missing numbers between them.
    pub fn flush(&mut self, now_ticks: u64, out: &mut impl FnMut(T)) {
        while self.waiting > 0 {
            self.skip(now_ticks, out);
        }
        self.by_arrival.clear();
    }

    /// Handles a packet whose number is below that of the next packet in order.
    fn behind(&mut self, number: u16, packet: T) -> (Arrival, Option<T>) {
        self.suspected = None;
        let place = self.place(number);
        if self.arrived[place] {
            return (Arrival::Duplicate, Some(packet));
        }
        self.arrived[place] = true;
        self.counts.missing = self.counts.missing.saturating_sub(1);
        (Arrival::Late, Some(packet))
    }

    /// Handles a packet whose number is outside of both windows (before and after the next number). The second such
    /// packet in sequence shows that the sender has restarted.
    fn far(
        &mut self,
        number: u16,
        packet: T,
        now_ticks: u64,
        out: &mut impl FnMut(T),
    ) -> (Arrival, Option<T>) {
        if self.suspected != Some(number) {
            self.suspected = Some(number.wrapping_add(1));
            return (Arrival::Late, Some(packet));
        }
        self.suspected = None;
        self.flush(now_ticks, out);
        // Numbers before the restart must not look like duplicates.
        self.arrived.fill(false);
        self.counts.restarts += 1;
        self.next = None;
        self.advance(number, true);
        out(packet);
        (Arrival::InOrder, None)
    }

    /// Returns the number of the next packet in order, or `otherwise` before the first packet.
    #[inline]
    fn due(&self, otherwise: u16) -> u16 {
        self.next.unwrap_or(otherwise)
    }

    #[inline]
    fn place(&self, number: u16) -> usize {
        usize::from(number) & (self.slots.len() - 1)
    }

    /// Makes the number after `number` the next in order. `has_arrived` is false if `number` is given up.
    #[inline]
    fn advance(&mut self, number: u16, has_arrived: bool) {
        let place = self.place(number);
        self.arrived[place] = has_arrived;
        self.next = Some(number.wrapping_add(1));
    }

    /// Releases waiting packets as long as the next packet in order has arrived.
    #[inline]
    fn release(&mut self, now_ticks: u64, out: &mut impl FnMut(T)) {
        while self.waiting > 0
            && let Some(next) = self.next
            && self.slots[self.place(next)].is_some()
        {
            self.skip(now_ticks, out);
        }
        if self.waiting == 0 {
            self.by_arrival.clear();
        }
    }

    /// Releases the next packet in order, or gives its number up if it has not arrived.
    fn skip(&mut self, now_ticks: u64, out: &mut impl FnMut(T)) {
        let Some(next) = self.next else { return };
        let place = self.place(next);
        let slot = self.slots[place].take();
        self.advance(next, slot.is_some());
        match slot {
            Some(slot) => {
                self.waiting -= 1;
                let waited = now_ticks.wrapping_sub(slot.since_ticks);
                self.counts.longest_ticks = self.counts.longest_ticks.max(waited);
                out(slot.packet);
            }
            None => self.counts.missing += 1,
        }
    }
}

/// Returns how far `number` is after `from` in the wrapping sequence of numbers; negative if it is before.
#[inline]
fn distance(from: u16, number: u16) -> i32 {
    i32::from(number.wrapping_sub(from) as i16)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const WINDOW: usize = 16;
    const WAIT: u64 = 100;

    /// A receiver, the packets that it has released, and the late and duplicate packets that it has returned.
    struct Bench {
        reorder: Reorder<u16>,
        out: Vec<u16>,
        late: Vec<u16>,
        duplicates: usize,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                reorder: Reorder::new(WINDOW, WAIT),
                out: Vec::new(),
                late: Vec::new(),
                duplicates: 0,
            }
        }

        fn arrive(&mut self, number: u16, now: u64) -> Arrival {
            let Self {
                reorder,
                out,
                late,
                duplicates,
            } = self;
            reorder.expire(now, &mut |it| out.push(it));
            let (arrival, back) = reorder.arrive(number, number, now, Ok, &mut |it| out.push(it));
            match arrival {
                Arrival::Late => late.extend(back),
                Arrival::Duplicate => *duplicates += 1,
                _ => assert_eq!(back, None),
            }
            arrival
        }

        fn expire(&mut self, now: u64) {
            let out = &mut self.out;
            self.reorder.expire(now, &mut |it| out.push(it));
        }
    }

    #[test]
    fn packets_wait_for_earlier_ones_and_leave_in_order() {
        let mut bench = Bench::new();
        let arrivals = [65_534, 0, 1, 65_535, 2].map(|number| bench.arrive(number, 5));
        use Arrival::{Early, InOrder};
        assert_eq!(arrivals, [InOrder, Early, Early, InOrder, InOrder]);
        assert_eq!(bench.out, [65_534, 65_535, 0, 1, 2]);
        assert_eq!(bench.reorder.counts(), ReorderCounts::default());
        assert!(bench.reorder.pass(3) && !bench.reorder.pass(3) && !bench.reorder.pass(5));
    }

    #[test]
    fn a_missing_packet_is_given_up_after_the_wait() {
        let mut bench = Bench::new();
        for (number, now) in [(0, 0), (2, 10), (3, 20), (5, 50)] {
            bench.arrive(number, now);
        }
        bench.expire(109);
        assert_eq!(bench.out, [0]);
        bench.expire(110);
        assert_eq!(bench.out, [0, 2, 3]);
        assert_eq!(bench.arrive(1, 111), Arrival::Late);
        assert_eq!(bench.arrive(1, 112), Arrival::Duplicate);
        assert_eq!(bench.arrive(3, 112), Arrival::Duplicate);
        bench.expire(150);
        assert_eq!(
            (&bench.out[..], bench.reorder.waiting()),
            (&[0, 2, 3, 5][..], 0)
        );
        let counts = bench.reorder.counts();
        assert_eq!(
            (counts.missing, counts.timeouts, counts.longest_ticks),
            (1, 2, 100)
        );
    }

    #[test]
    fn packets_beyond_the_window_push_the_oldest_out() {
        let mut bench = Bench::new();
        bench.arrive(0, 0);
        for number in 2..=16 {
            assert_eq!(bench.arrive(number, 1), Arrival::Early);
        }
        assert_eq!(bench.reorder.waiting(), 15);
        bench.arrive(17, 1);
        assert_eq!(
            bench.out,
            [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
        );
        assert_eq!(bench.reorder.counts().missing, 1);
    }

    #[test]
    fn a_packet_that_cannot_wait_is_released_at_once() {
        let mut bench = Bench::new();
        bench.arrive(0, 0);
        bench.arrive(2, 0);
        let out = &mut bench.out;
        let (arrival, back) = bench.reorder.arrive(5, 5, 0, Err, &mut |it| out.push(it));
        assert_eq!((arrival, back), (Arrival::InOrder, None));
        assert_eq!(
            (&bench.out[..], bench.reorder.counts().missing),
            (&[0, 2, 5][..], 3)
        );
    }

    #[test]
    fn a_restarted_sender_is_recognised_by_two_packets_in_sequence() {
        let mut bench = Bench::new();
        for number in 1000..1010 {
            bench.arrive(number, 0);
        }
        bench.arrive(1012, 0);
        assert_eq!(bench.arrive(7, 1), Arrival::Late);
        assert_eq!(bench.arrive(1010, 1), Arrival::InOrder);
        assert_eq!(bench.arrive(7, 1), Arrival::Late);
        assert_eq!(bench.arrive(8, 1), Arrival::InOrder);
        assert_eq!(bench.out.last_chunk(), Some(&[1010, 1012, 8]));
        assert_eq!(bench.arrive(9, 1), Arrival::InOrder);
        assert_eq!(bench.reorder.counts().restarts, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn released_packets_are_in_order_and_all_are_accounted_for(
            start in any::<u16>(),
            fates in prop::collection::vec((0_u64..60, 0_u8..10, 0_u64..60), 1..200),
        ) {
            // Each packet has a delay; some are lost or duplicated. One is sent every 10 ticks.
            let mut events = Vec::new();
            for (number, (delay, fate, again)) in fates.iter().enumerate() {
                let sent = number as u64 * 10;
                let name = start.wrapping_add(number as u16);
                if *fate > 0 || number == 0 {
                    events.push((sent + if number == 0 { 0 } else { *delay }, name));
                }
                if *fate == 1 {
                    events.push((sent + delay + again, name));
                }
            }
            events.sort_unstable();
            let mut bench = Bench::new();
            for (now, number) in &events {
                bench.arrive(*number, *now);
                prop_assert!(bench.reorder.waiting() < WINDOW);
                prop_assert!(bench.reorder.by_arrival.len() <= 2 * WINDOW);
            }
            let end = events.last().unwrap().0;
            bench.expire(end + WAIT);
            prop_assert_eq!(bench.reorder.waiting(), 0);
            prop_assert!(bench.out.windows(2).all(|two| distance(two[0], two[1]) > 0), "{:?}", bench.out);
            // Every packet counts exactly once: as released, late or duplicate.
            prop_assert_eq!(bench.out.len() + bench.late.len() + bench.duplicates, events.len());
            let mut all = [bench.out, bench.late].concat();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|two| two[0] != two[1]));
            // Packets wait for the time limit at most, because an event checks it at least every 260 ticks.
            prop_assert!(bench.reorder.counts().longest_ticks <= WAIT + 260);
        }

        #[test]
        fn reordering_within_wait_and_window_restores_the_exact_order(
            delays in prop::collection::vec(0_u64..90, 1..300),
        ) {
            let mut events: Vec<(u64, u16)> = Vec::new();
            for (number, delay) in delays.iter().enumerate() {
                events.push((number as u64 * 10 + if number == 0 { 0 } else { *delay }, number as u16));
            }
            events.sort_unstable();
            let mut bench = Bench::new();
            for (now, number) in events {
                bench.arrive(number, now);
            }
            prop_assert!(bench.out.iter().copied().eq(0..delays.len() as u16), "{:?}", bench.out);
            prop_assert_eq!(bench.reorder.counts().missing, 0);
        }

        #[test]
        fn any_sequence_of_numbers_is_handled_in_bounded_memory(
            numbers in prop::collection::vec((any::<u16>(), 0_u64..50), 1..300),
            window in 0_usize..600,
        ) {
            let mut reorder = Reorder::new(window, WAIT);
            let (mut now, mut ended) = (0, 0);
            for (number, step) in &numbers {
                now += step;
                reorder.expire(now, &mut |_| ended += 1);
                let (_, back) = reorder.arrive(*number, (), now, Ok, &mut |()| ended += 1);
                ended += usize::from(back.is_some());
            }
            reorder.flush(now, &mut |()| ended += 1);
            prop_assert_eq!(ended, numbers.len());
        }
    }
}
