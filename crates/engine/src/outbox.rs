//! The transmit buffer of one egress port, which sends packets by a flush policy.

use crate::queues::Queues;
use crate::{Flush, QueueCounters};
use taut_port::{BATCH_CAPACITY, Batch, NO_PRIORITY, Packet, Port};
use taut_sys::Clock;

/// A [`Flush`] policy in cycles, and the packets in its transmit buffer. Packets that the port refuses at a flush are
/// dropped and counted, or queued if there are queues.
pub(crate) struct Outbox {
    held: Batch,
    /// Packets that the flush policy has sent but the port has refused. Only used for packets of a `patient` ingress
    /// port, such as a file, which must not be lost.
    refused: Batch,
    policy: Policy,
    /// Time, cycles, of the last flush by a policy with a timer.
    last_flush_ticks: u64,
    /// Number of packets dropped because the egress port was full.
    full: u64,
    queues: Option<Box<Queues>>,
    /// Priorities that functions assigned to the buffered packets, in the order of the packets.
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
    /// Returns an empty transmit buffer; policies with a timer count from `now_ticks`.
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

    /// Sets queues for packets that the port refuses.
    pub(crate) fn set_queues(&mut self, queues: Queues) {
        self.queues = Some(Box::new(queues));
    }

    /// Returns the number of packets dropped because the port was full and there are no queues.
    pub(crate) fn full(&self) -> u64 {
        self.full
    }

    /// Returns the counters of the port's queues; the last queue has the highest priority.
    pub(crate) fn queue_counters(&self) -> impl Iterator<Item = QueueCounters> {
        self.queues.iter().flat_map(|queues| queues.counters())
    }

    /// Accepts the packets of a receive call, and sends them by the flush policy. `ran_dry` means that the receive
    /// queue is empty now. If `patient`, packets that the port refuses stay here instead of being lost. In that case
    /// call this function only after [`Outbox::catch_up`] has returned true.
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
            // Usually the buffer is empty, so the whole batch goes to the port directly.
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

    /// Sends the buffered packets; those that the port refuses are queued, or dropped if there are no queues.
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

    /// Sends packets until the port is full, and queues the remaining packets.
    #[inline(never)]
    fn queue(&mut self, arrived: &mut Batch, port: &mut dyn Port) {
        if let Some(queues) = &mut self.queues {
            queues.offer(arrived, None, port);
        }
    }

    /// Returns the number of buffered packets at which the buffer is flushed.
    #[inline(always)]
    fn most(&self) -> usize {
        match self.policy {
            Policy::Each => 1,
            Policy::Full { n, .. } | Policy::Idle { n } => n,
            Policy::Every { .. } => BATCH_CAPACITY,
        }
    }

    /// Accepts one packet of a batch whose packets have different egress ports or priorities.
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

    /// Ends a batch after its last packet: if the receive queue is empty, sends the buffered packets unless the policy
    /// delays them further.
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
        // Together, `refused` and `held` have space for a batch in addition to the packets that they contain.
        arrived.move_up_to(BATCH_CAPACITY, &mut self.refused);
        arrived.move_up_to(BATCH_CAPACITY, &mut self.held);
        if ran_dry && matches!(self.policy, Policy::Idle { .. }) && self.refused.is_empty() {
            self.try_held(port);
        }
    }

    /// Offers the refused packets to the port again. Returns true if no refused packet is left, so that more packets
    /// may be accepted.
    pub(crate) fn catch_up(&mut self, port: &mut dyn Port) -> bool {
        if self.refused.is_empty() {
            return true;
        }
        port.tx(&mut self.refused);
        if self.refused.is_empty() {
            // The packets in `held` arrived after the refused ones and can be more than the policy would buffer, so
            // they are offered to the port next.
            std::mem::swap(&mut self.refused, &mut self.held);
        }
        self.refused.is_empty()
    }

    /// Returns true if the transmit buffer and its queues contain no packet.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.refused.is_empty() && !self.queues_hold()
    }

    /// Returns true if the queues contain packets.
    #[inline(always)]
    fn queues_hold(&self) -> bool {
        self.queues
            .as_ref()
            .is_some_and(|queues| !queues.is_empty())
    }

    /// Returns the cycles until [`Outbox::tick`] has to be called again for the buffered packets; None if no packet is
    /// buffered.
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

    /// Sends the buffered packets; those that the port refuses are kept as refused packets.
    fn try_held(&mut self, port: &mut dyn Port) {
        port.tx(&mut self.held);
        std::mem::swap(&mut self.refused, &mut self.held);
    }

    /// Sends queued packets, and the buffer if its timer expired or the receive queue is empty. Called once per
    /// iteration.
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

    /// Returns true if the policy requires that the buffered packets are sent now.
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

    /// Returns true if the flush timer sent packets in the iteration that started at `round_start_ticks`.
    pub(crate) fn timer_fired_in(&self, round_start_ticks: u64) -> bool {
        self.last_flush_ticks == round_start_ticks
    }

    /// Sends all buffered packets, and drops those that the port refuses.
    pub(crate) fn flush(&mut self, port: &mut dyn Port) {
        self.full += send(&mut self.refused, port);
        self.send_held(port);
        if let Some(queues) = &mut self.queues {
            queues.drain(port);
            queues.drop_all();
        }
    }

    /// Buffers packets, and sends the buffer each time it has `n` packets.
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

/// Sends a batch and drops the packets that the port refuses. Returns the number of dropped packets.
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

    /// A port that logs the number of packets of each send.
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

    /// A transmit buffer of a test, which calls it once per iteration of one microsecond.
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

        /// Returns the number of packets of each send in an iteration that receives `packets` packets.
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

        /// Runs `rounds` iterations without packets. Returns the first iteration that sends, and the number of packets
        /// sent; None if no iteration sends.
        fn first_sent(&mut self, rounds: usize) -> Option<(usize, usize)> {
            (1..=rounds).find_map(|round| Some((round, *self.round(0).first()?)))
        }
    }

    #[test]
    fn transmit_buffers_flush_when_full_or_on_timer_expiry() {
        let mut bench = Bench::new("full(32, 100us)");
        assert_eq!(bench.round(32), [32]);
        assert_eq!((bench.round(20), bench.round(20)), (vec![], vec![32]));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), Some(97_000));
        assert_eq!(bench.first_sent(200), Some((97, 8)));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), None);
        // The timer does not restart when the buffer is sent because it is full.
        assert_eq!(
            (bench.round(1), bench.first_sent(200)),
            (vec![], Some((99, 1)))
        );
    }

    #[test]
    fn flush_every_sends_all_buffered_packets_once_per_period() {
        let mut bench = Bench::new("every(50us)");
        assert_eq!((bench.round(3), bench.round(4)), (vec![], vec![]));
        assert_eq!(bench.first_sent(200), Some((48, 7)));
        assert_eq!(bench.first_sent(200), None);
        assert!(bench.outbox.timer_fired_in(bench.now_ticks));
        // A full buffer is sent without waiting for the timer.
        assert_eq!((bench.round(32), bench.round(32)), (vec![], vec![64]));
    }

    #[test]
    fn flush_each_sends_immediately_and_flush_idle_awaits_empty_queues() {
        let mut bench = Bench::new("each");
        assert_eq!(bench.round(3), [1, 1, 1]);
        let mut bench = Bench::new("idle(64)");
        assert_eq!((bench.round(5), bench.round(32)), (vec![5], vec![]));
        assert_eq!(bench.outbox.due_in(bench.now_ticks), Some(0));
        assert_eq!(bench.first_sent(9), Some((1, 32)));
    }
}
