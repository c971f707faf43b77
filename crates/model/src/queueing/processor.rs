//! A polling packet processor as `simulate` knows it: ring, receive batch, costs, flush policy, cores, interruptions.
//! The flush policies are those of chain files (docs/reference/chain-file.md).

use super::arrivals::Arrivals;
use super::observer::Observer;
use super::service::ServiceTime;
use super::vacations::Vacations;
use super::{NS_PER_S, QueueingError, at_least_one};
use crate::estimate::{not_negative, positive};

/// Packets that are held for sending at most, whatever the policy, as in the worker.
pub const MOST_HELD: usize = 64;

/// When packets that are held for sending go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flush {
    /// Every packet goes by itself.
    Each,
    /// They go when so many are held, and whatever is held goes each time that a free-running timer fires.
    Full {
        /// Packets held at most.
        packets: usize,
        /// Period of the timer, ns.
        drain_ns: f64,
    },
    /// They go when the ring has run dry (a receive batch was not full), or so many are held. A receive batch of one is
    /// always full, so that packets are held as long as any waits.
    Idle {
        /// Packets held at most.
        packets: usize,
    },
    /// Whatever is held goes each time that a free-running timer fires, earlier when [`MOST_HELD`] are held.
    Every {
        /// Period of the timer, ns.
        period_ns: f64,
    },
}

impl Flush {
    /// Returns the number of held packets that makes them go.
    pub(crate) fn packets(&self) -> usize {
        match *self {
            Flush::Each => 1,
            Flush::Full { packets, .. } | Flush::Idle { packets } => packets,
            Flush::Every { .. } => MOST_HELD,
        }
    }

    /// Returns the period of the timer, ns; without one it never fires.
    pub(crate) fn timer_ns(&self) -> f64 {
        match *self {
            Flush::Each | Flush::Idle { .. } => f64::INFINITY,
            Flush::Full { drain_ns: ns, .. } | Flush::Every { period_ns: ns } => ns,
        }
    }
}

/// When packets of a receive batch are handed on to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Each one as soon as its own service is done: one queue after the other, as the closed forms have it.
    Packet,
    /// All of them when the whole receive batch is done, as functions that go through a batch together do.
    Batch,
}

/// A processor of packets, what arrives at it, and what disturbs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    pub(crate) arrivals: Arrivals,
    pub(crate) per_packet: ServiceTime,
    pub(crate) per_receive_ns: f64,
    pub(crate) per_send_ns: f64,
    pub(crate) ring: usize,
    pub(crate) receive_batch: usize,
    pub(crate) flush: Flush,
    pub(crate) release: Release,
    pub(crate) servers: usize,
    pub(crate) vacations: Vacations,
    pub(crate) poll_ns: f64,
    pub(crate) transfer_ns: f64,
    pub(crate) wire_ns: f64,
    pub(crate) observer: Option<Observer>,
}

impl Processor {
    /// Returns one core that takes one packet at a time from a ring without end, `per_packet` each, and sends each
    /// by itself. Receiving and sending cost nothing, polling takes no time, and nothing interrupts it.
    pub fn new(arrivals: Arrivals, per_packet: ServiceTime) -> Self {
        Self {
            arrivals,
            per_packet,
            per_receive_ns: 0.0,
            per_send_ns: 0.0,
            ring: usize::MAX,
            receive_batch: 1,
            flush: Flush::Each,
            release: Release::Packet,
            servers: 1,
            vacations: Vacations::none(),
            poll_ns: 0.0,
            transfer_ns: 0.0,
            wire_ns: 0.0,
            observer: None,
        }
    }

    /// Returns the processor with a fixed cost of each receive batch that brings packets, and of each send batch, ns.
    ///
    /// # Errors
    /// A cost is negative or not finite.
    pub fn with_batch_costs(
        mut self,
        per_receive_ns: f64,
        per_send_ns: f64,
    ) -> Result<Self, QueueingError> {
        self.per_receive_ns = not_negative("the cost of a receive batch", per_receive_ns)?;
        self.per_send_ns = not_negative("the cost of a send batch", per_send_ns)?;
        Ok(self)
    }

    /// Returns the processor with a ring of `packets`; a place is free again when its packet is received.
    ///
    /// # Errors
    /// The ring has no place.
    pub fn with_ring(mut self, packets: usize) -> Result<Self, QueueingError> {
        self.ring = at_least_one("places of the ring", packets)?;
        Ok(self)
    }

    /// Returns the processor that receives up to `packets` at a time.
    ///
    /// # Errors
    /// There is no packet in a batch.
    pub fn with_receive_batch(
        mut self,
        packets: usize,
        release: Release,
    ) -> Result<Self, QueueingError> {
        self.receive_batch = at_least_one("packets of a receive batch", packets)?;
        self.release = release;
        Ok(self)
    }

    /// Returns the processor with another flush policy.
    ///
    /// # Errors
    /// The policy holds no packet, or its timer is not a finite time above zero.
    pub fn with_flush(mut self, flush: Flush) -> Result<Self, QueueingError> {
        at_least_one("packets of a send batch", flush.packets())?;
        if let Flush::Full { drain_ns: ns, .. } | Flush::Every { period_ns: ns } = flush {
            positive("the period of a flush timer", ns)?;
        }
        self.flush = flush;
        Ok(self)
    }

    /// Returns the processor with several cores that take packets from the same ring.
    ///
    /// # Errors
    /// There is no core.
    pub fn with_servers(mut self, servers: usize) -> Result<Self, QueueingError> {
        self.servers = at_least_one("servers", servers)?;
        Ok(self)
    }

    /// Returns the processor each of whose cores is interrupted.
    pub fn with_vacations(mut self, vacations: Vacations) -> Self {
        self.vacations = vacations;
        self
    }

    /// Returns the processor that notices a packet only when a poll that takes `ns` has ended: polls follow each
    /// other while nothing is there.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_poll(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.poll_ns = not_negative("the time of a poll", ns)?;
        Ok(self)
    }

    /// Returns the processor whose packets spend `ns` on the way to the ring and from the core: part of the latency,
    /// but not of the core's time.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_transfer(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.transfer_ns = not_negative("the time of a transfer", ns)?;
        Ok(self)
    }

    /// Returns the processor whose cores each send through a wire of their own, which a packet occupies for `ns`:
    /// those that are sent together wait for those before them.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_wire(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.wire_ns = not_negative("the time that a packet occupies a wire", ns)?;
        Ok(self)
    }

    /// Returns the processor whose packets somebody sends and takes back who may be interrupted: arrivals are when packets are due, and
    /// latency is from sending until they are seen.
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Returns the same processor with the same pattern of arrivals at another average rate.
    ///
    /// # Errors
    /// The rate is not above zero, or too high for the pattern.
    pub fn at_rate(&self, rate_pps: f64) -> Result<Self, QueueingError> {
        Ok(Self {
            arrivals: self.arrivals.at_rate(rate_pps)?,
            ..self.clone()
        })
    }

    /// Returns the same processor with another service time.
    pub fn with_service(&self, per_packet: ServiceTime) -> Self {
        Self {
            per_packet,
            ..self.clone()
        }
    }

    /// Returns the average rate of arrivals, packets per second.
    pub fn rate_pps(&self) -> f64 {
        self.arrivals.rate_pps()
    }

    /// Returns the highest rate that the cores can sustain, packets per second: what interruptions leave of them,
    /// over the mean time of a packet in full batches, and what the wire takes. No steady state lies beyond, but
    /// overload.
    pub fn saturation_pps(&self) -> f64 {
        let receive = self.per_receive_ns / self.receive_batch as f64;
        let send = self.per_send_ns / self.flush.packets() as f64;
        let packet_ns = self.per_packet.mean_ns() + receive + send;
        let of_a_core = self.vacations.availability() * NS_PER_S / packet_ns;
        let of_a_wire = if self.wire_ns > 0.0 {
            NS_PER_S / self.wire_ns
        } else {
            f64::INFINITY
        };
        self.servers as f64 * of_a_core.min(of_a_wire)
    }
}
