//! What a worker holds for one outgoing port, and when it lets go of it.

use crate::Flush;
use taut_port::{BATCH_CAPACITY, Batch, Clock, Packet, Port, ticks};

/// A [`Flush`] policy in ticks, and the packets it holds back.
pub(crate) struct Outbox {
    held: Batch,
    /// Let go by the policy, but refused by the port; only used by the patient calls.
    refused: Batch,
    policy: Policy,
    /// When a timed policy last sent.
    last_flush_ticks: u64,
}

#[derive(Clone, Copy)]
enum Policy {
    Full { n: usize, drain_ticks: u64 },
    Each,
    Every { period_ticks: u64 },
    Idle { n: usize },
}

impl Outbox {
    pub(crate) fn new(flush: Flush, clock: &Clock) -> Self {
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
            last_flush_ticks: ticks(),
        }
    }

    /// Whether everything that a receive call of `burst` brings is sent at once.
    pub(crate) fn sends_at_once(&self, burst: usize) -> bool {
        matches!(self.policy, Policy::Idle { n } if n <= burst)
    }

    /// Takes what a receive call brought and sends what the policy lets go. `ran_dry` says that the
    /// receive queue is empty now. Returns how many packets the port had no room for; they are dropped. If `patient`, nobody need
    /// lose any, and what the port has no room for stays here: only to be called when [`Outbox::catch_up`] says that nothing does.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        arrived: &mut Batch,
        ran_dry: bool,
        patient: bool,
        port: &mut dyn Port,
    ) -> usize {
        if patient {
            self.accept_patiently(arrived, ran_dry, port);
            return 0;
        }
        match self.policy {
            // The usual case holds nothing, so the whole batch goes to the port as it is.
            Policy::Idle { n } if self.held.is_empty() && (ran_dry || arrived.len() >= n) => {
                send(arrived, port)
            }
            Policy::Idle { n } => {
                let refused = self.hold(arrived, n, port);
                if ran_dry {
                    refused + send(&mut self.held, port)
                } else {
                    refused
                }
            }
            Policy::Full { n, .. } => self.hold(arrived, n, port),
            Policy::Every { .. } => self.hold(arrived, BATCH_CAPACITY, port),
            Policy::Each => {
                let mut refused = 0;
                arrived.take_front(arrived.len(), |packet| {
                    self.held.push(packet);
                    refused += send(&mut self.held, port);
                });
                refused
            }
        }
    }

    /// As soon as so many are held, they are sent.
    #[inline(always)]
    fn most(&self) -> usize {
        match self.policy {
            Policy::Each => 1,
            Policy::Full { n, .. } | Policy::Idle { n } => n,
            Policy::Every { .. } => BATCH_CAPACITY,
        }
    }

    /// Takes one packet of a batch of which others go elsewhere. Returns how many the port had no room for; they are dropped.
    #[inline(always)]
    pub(crate) fn push(&mut self, packet: Packet, port: &mut dyn Port) -> usize {
        self.held.push(packet);
        if self.held.len() < self.most() {
            return 0;
        }
        send(&mut self.held, port)
    }

    /// After the last packet of such a batch: sends what the policy does not hold any longer, if the queue has run dry.
    #[inline(always)]
    pub(crate) fn end_of_batch(&mut self, ran_dry: bool, port: &mut dyn Port) -> usize {
        match self.policy {
            Policy::Idle { .. } if ran_dry => send(&mut self.held, port),
            _ => 0,
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
        self.held.is_empty() && self.refused.is_empty()
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
            } if self.refused.is_empty() => {
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

    /// Called once a round: sends what the timer lets go, or a queue that has run dry. Returns how many packets were dropped, none if
    /// `patient`.
    #[inline(always)]
    pub(crate) fn tick(
        &mut self,
        now_ticks: u64,
        ran_dry: bool,
        patient: bool,
        port: &mut dyn Port,
    ) -> usize {
        if (patient && !self.refused.is_empty()) || !self.is_due(now_ticks, ran_dry) {
            return 0;
        }
        if patient {
            self.try_held(port);
            return 0;
        }
        send(&mut self.held, port)
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

    /// Sends whatever is held.
    pub(crate) fn flush(&mut self, port: &mut dyn Port) -> usize {
        send(&mut self.refused, port) + send(&mut self.held, port)
    }

    /// Fills the buffer and sends it each time `n` are in it.
    #[inline(always)]
    fn hold(&mut self, arrived: &mut Batch, n: usize, port: &mut dyn Port) -> usize {
        let mut refused = 0;
        while !arrived.is_empty() {
            arrived.move_up_to(n - self.held.len(), &mut self.held);
            if self.held.len() >= n {
                refused += send(&mut self.held, port);
            }
        }
        refused
    }
}

/// Sends a batch; what the port has no room for is dropped and counted.
#[inline(always)]
fn send(batch: &mut Batch, port: &mut dyn Port) -> usize {
    if batch.is_empty() {
        return 0;
    }
    port.tx(batch);
    let refused = batch.len();
    batch.clear();
    refused
}
