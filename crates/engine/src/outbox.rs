//! Outbox: what a worker holds for one outgoing port, and when it lets go of it.

use crate::queues::Queues;
use crate::{Flush, QueueCounters};
use taut_port::{BATCH_CAPACITY, Batch, NO_PRIORITY, Packet, Port};
use taut_sys::Clock;

/// A [`Flush`] policy in ticks, and the packets it holds back. What the port has no room for when they are let go is dropped and
/// counted, or waits in queues where there are some.
pub(crate) struct Outbox {
    held: Batch,
    /// Let go by the policy, but refused by the port; only used by the patient calls.
    refused: Batch,
    policy: Policy,
    /// Time at which a timed policy last sent.
    last_flush_ticks: u64,
    /// Dropped as the port had no room.
    full: u64,
    queues: Option<Box<Queues>>,
    /// Priorities that the held packets were given.
    priorities: [u8; BATCH_CAPACITY],
}

#[derive(Clone, Copy)]
enum Policy {
    Full { n: usize, drain_ticks: u64 },
    Each,
    Every { period_ticks: u64 },
    Idle { n: usize },
}

impl Outbox {
    /// Returns an outbox that holds nothing; timed policies count from `now_ticks` on.
    pub(crate) fn new(flush: Flush, clock: &Clock, now_ticks: u64) -> Self {
        let in_ticks = |t: std::time::Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let policy = match flush {
            Flush::Full { n, drain } => Policy::Full {
                n,
                drain_ticks: in_ticks(drain),
            },
            Flush::Each => Policy::Each,
            Flush::Every { period } => Policy::Every {
                period_ticks: in_ticks(period),
            },
            Flush::Idle { n } => Policy::Idle { n },
        };
        Self {
            held: Batch::new(),
            refused: Batch::new(),
            policy,
            last_flush_ticks: now_ticks,
            full: 0,
            queues: None,
            priorities: [NO_PRIORITY; BATCH_CAPACITY],
        }
    }

    /// Puts waiting packets into these queues from now on.
    pub(crate) fn set_queues(&mut self, queues: Queues) {
        self.queues = Some(Box::new(queues));
    }

    /// Packets that were dropped as the port had no room for them, and nowhere else to wait.
    pub(crate) fn full(&self) -> u64 {
        self.full
    }

    /// The counters of its queues; the last one is of the highest priority.
    pub(crate) fn queue_counters(&self) -> impl Iterator<Item = QueueCounters> {
        self.queues.iter().flat_map(|queues| queues.counters())
    }

    /// Takes what a receive call brought and sends what the policy lets go. `ran_dry` says that the
    /// receive queue is empty now. If `patient`, nobody need
    /// lose any, and what the port has no room for stays here: only to be called when [`Outbox::catch_up`] says that nothing does.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        arrived: &mut Batch,
        ran_dry: bool,
        patient: bool,
        port: &mut dyn Port,
    ) {
        if patient {
            return self.accept_patiently(arrived, ran_dry, port);
        }
        match self.policy {
            // The usual case holds nothing, so the whole batch goes to the port as it is.
            Policy::Idle { n } if self.held.is_empty() && (ran_dry || arrived.len() >= n) => {
                if self.queues.is_some() {
                    return self.queue(arrived, port);
                }
                self.full += send(arrived, port);
            }
            Policy::Idle { n } => {
                self.hold(arrived, n, port);
                if ran_dry {
                    self.send_held(port);
                }
            }
            Policy::Full { n, .. } => self.hold(arrived, n, port),
            Policy::Every { .. } => self.hold(arrived, BATCH_CAPACITY, port),
            Policy::Each => arrived.take_front(arrived.len(), |packet| {
                self.held.push(packet);
                self.send_held(port);
            }),
        }
    }

    /// Sends what is held.
    #[inline(always)]
    fn send_held(&mut self, port: &mut dyn Port) {
        match &mut self.queues {
            None => self.full += send(&mut self.held, port),
            Some(queues) => {
                queues.offer(&mut self.held, Some(&self.priorities), port);
                self.priorities = [NO_PRIORITY; BATCH_CAPACITY];
            }
        }
    }

    /// Sends packets as far as there is room; the others wait.
    #[inline(never)]
    fn queue(&mut self, arrived: &mut Batch, port: &mut dyn Port) {
        if let Some(queues) = &mut self.queues {
            queues.offer(arrived, None, port);
        }
    }

    /// Returns how many packets are held at most: as soon as there are so many, they are sent.
    #[inline(always)]
    fn most(&self) -> usize {
        match self.policy {
            Policy::Each => 1,
            Policy::Full { n, .. } | Policy::Idle { n } => n,
            Policy::Every { .. } => BATCH_CAPACITY,
        }
    }

    /// Takes one packet of a batch of which others go elsewhere, or wait at a priority of their own.
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: Packet, priority: u8, port: &mut dyn Port) {
        if self.queues.is_some() {
            self.priorities[self.held.len() & 63] = priority;
        }
        self.held.push(packet);
        if self.held.len() >= self.most() {
            self.send_held(port);
        }
    }

    /// Ends a batch after its last packet: sends what the policy does not hold any longer, if the queue has run dry.
    #[inline(always)]
    pub(crate) fn end_of_batch(&mut self, ran_dry: bool, port: &mut dyn Port) {
        if ran_dry && matches!(self.policy, Policy::Idle { .. }) {
            self.send_held(port);
        }
    }

    fn accept_patiently(&mut self, arrived: &mut Batch, ran_dry: bool, port: &mut dyn Port) {
        let n = self.most();
        while !arrived.is_empty() && self.refused.is_empty() {
            arrived.move_up_to(n - self.held.len(), &mut self.held);
            if self.held.len() >= n {
                self.try_held(port);
            }
        }
        // Both together have room for a batch and what was held before.
        arrived.move_up_to(BATCH_CAPACITY, &mut self.refused);
        arrived.move_up_to(BATCH_CAPACITY, &mut self.held);
        if ran_dry && matches!(self.policy, Policy::Idle { .. }) && self.refused.is_empty() {
            self.try_held(port);
        }
    }

    /// Offers the port what it refused; true if it has taken all, so that more may come.
    pub(crate) fn catch_up(&mut self, port: &mut dyn Port) -> bool {
        if self.refused.is_empty() {
            return true;
        }
        port.tx(&mut self.refused);
        if self.refused.is_empty() {
            // These came later and may be more than the policy would hold.
            std::mem::swap(&mut self.refused, &mut self.held);
        }
        self.refused.is_empty()
    }

    /// True if nothing waits here.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.refused.is_empty() && !self.queues_hold()
    }

    /// True if packets wait in its queues.
    #[inline(always)]
    fn queues_hold(&self) -> bool {
        self.queues
            .as_ref()
            .is_some_and(|queues| !queues.is_empty())
    }

    /// Ticks until something that waits here has to be seen to; none if nothing does.
    pub(crate) fn due_in(&self, now_ticks: u64) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        match self.policy {
            Policy::Full {
                drain_ticks: period,
                ..
            }
            | Policy::Every {
                period_ticks: period,
            } if self.refused.is_empty() && !self.queues_hold() => {
                let held_for = now_ticks.wrapping_sub(self.last_flush_ticks);
                Some(period.saturating_sub(held_for))
            }
            _ => Some(0),
        }
    }

    /// Sends what is held; what the port has no room for is refused.
    fn try_held(&mut self, port: &mut dyn Port) {
        port.tx(&mut self.held);
        std::mem::swap(&mut self.refused, &mut self.held);
    }

    /// Sends what the timer lets go, or a queue that has run dry, and what waits for room; called once a round.
    #[inline(always)]
    pub(crate) fn tick(
        &mut self,
        now_ticks: u64,
        ran_dry: bool,
        patient: bool,
        port: &mut dyn Port,
    ) {
        if let Some(queues) = &mut self.queues
            && !queues.is_empty()
        {
            queues.drain(port);
        }
        if (patient && !self.refused.is_empty()) || !self.is_due(now_ticks, ran_dry) {
            return;
        }
        if patient {
            self.try_held(port);
        } else {
            self.send_held(port);
        }
    }

    /// Whether what is held has to go now.
    #[inline(always)]
    fn is_due(&mut self, now_ticks: u64, ran_dry: bool) -> bool {
        let period = match self.policy {
            Policy::Each => return false,
            Policy::Idle { .. } => return ran_dry && !self.held.is_empty(),
            Policy::Full {
                drain_ticks: period,
                ..
            }
            | Policy::Every {
                period_ticks: period,
            } => period,
        };
        if now_ticks.wrapping_sub(self.last_flush_ticks) < period {
            return false;
        }
        self.last_flush_ticks = now_ticks;
        true
    }

    /// Whether its timer let something go in the round that began then.
    pub(crate) fn timer_fired_in(&self, round_start_ticks: u64) -> bool {
        self.last_flush_ticks == round_start_ticks
    }

    /// Sends whatever is held; what there is no room for is dropped.
    pub(crate) fn flush(&mut self, port: &mut dyn Port) {
        self.full += send(&mut self.refused, port);
        self.send_held(port);
        if let Some(queues) = &mut self.queues {
            queues.drain(port);
            queues.drop_all();
        }
    }

    /// Fills the buffer and sends it each time `n` are in it.
    #[inline(always)]
    fn hold(&mut self, arrived: &mut Batch, n: usize, port: &mut dyn Port) {
        while !arrived.is_empty() {
            arrived.move_up_to(n - self.held.len(), &mut self.held);
            if self.held.len() >= n {
                self.send_held(port);
            }
        }
    }
}

/// Sends a batch; what the port has no room for is dropped. Returns how many those are.
#[inline(always)]
fn send(batch: &mut Batch, port: &mut dyn Port) -> u64 {
    if batch.is_empty() {
        return 0;
    }
    port.tx(batch);
    let refused = batch.len();
    batch.clear();
    refused as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::time::made_up::CLOCK;
    use taut_port::{Link, PoolHandle, PortCounters};

    /// Notes how many packets it is handed at a time.
    struct Sink(Vec<usize>);

    impl Port for Sink {
        fn rx(&mut self, _: &mut Batch) -> usize {
            0
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let sent = batch.len();
            batch.clear();
            if sent > 0 {
                self.0.push(sent);
            }
            sent
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// An outbox, and rounds of a microsecond, one after the other.
    struct Bench {
        outbox: Outbox,
        port: Sink,
        pool: PoolHandle,
        now_ticks: u64,
    }

    impl Bench {
        fn new(flush: &str) -> Self {
            Self {
                outbox: Outbox::new(flush.parse().unwrap(), &CLOCK, 0),
                port: Sink(Vec::new()),
                pool: PoolHandle::new(256, false).unwrap(),
                now_ticks: 0,
            }
        }

        /// Returns what is sent in a round that brings so many packets.
        fn round(&mut self, packets: usize) -> Vec<usize> {
            self.now_ticks += 1_000;
            let mut batch = Batch::new();
            self.pool.fill(&mut batch, packets, 60);
            let ran_dry = packets < 32;
            if packets > 0 {
                self.outbox
                    .accept(&mut batch, ran_dry, false, &mut self.port);
            }
            self.outbox
                .tick(self.now_ticks, packets == 0, false, &mut self.port);
            std::mem::take(&mut self.port.0)
        }

        /// Returns the round, of so many without a packet, in which something is sent first, and how many packets.
        fn first_sent(&mut self, rounds: usize) -> Option<(usize, usize)> {
            (1..=rounds).find_map(|round| Some((round, *self.round(0).first()?)))
        }
    }

    #[test]
    fn a_full_buffer_is_sent_at_once_and_the_rest_by_the_drain_timer() {
        let mut bench = Bench::new("full(32, 100us)");
        assert_eq!(bench.round(32), [32]);
        assert_eq!((bench.round(20), bench.round(20)), (vec![], vec![32]));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), Some(97_000));
        assert_eq!(bench.first_sent(200), Some((97, 8)));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), None);
        // The timer goes on by itself, whatever was sent when the buffer was full.
        assert_eq!(
            (bench.round(1), bench.first_sent(200)),
            (vec![], Some((99, 1)))
        );
    }

    #[test]
    fn a_period_sends_what_there_is_each_time_it_is_over() {
        let mut bench = Bench::new("every(50us)");
        assert_eq!((bench.round(3), bench.round(4)), (vec![], vec![]));
        assert_eq!(bench.first_sent(200), Some((48, 7)));
        assert_eq!(bench.first_sent(200), None);
        assert!(bench.outbox.timer_fired_in(bench.now_ticks));
        // More than a batch does not wait.
        assert_eq!((bench.round(32), bench.round(32)), (vec![], vec![64]));
    }

    #[test]
    fn without_a_buffer_each_packet_goes_by_itself_and_idle_waits_for_an_empty_queue_only() {
        let mut bench = Bench::new("each");
        assert_eq!(bench.round(3), [1, 1, 1]);
        let mut bench = Bench::new("idle(64)");
        assert_eq!((bench.round(5), bench.round(32)), (vec![5], vec![]));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), Some(0));
        assert_eq!(bench.first_sent(9), Some((1, 32)));
    }
}
