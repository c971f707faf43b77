//! The description of a polling packet processor for `simulate`: ring, receive batch, costs, flush policy, cores,
//! interruptions. The flush policies are those of chain files (docs/reference/chain-file.md).

use super::arrivals::Arrivals;
use super::observer::Observer;
use super::service::ServiceTime;
use super::vacations::Vacations;
use super::{NS_PER_S, QueueingError, at_least_one};
use crate::estimate::{not_negative, positive};

/// Maximum number of packets buffered for sending under any policy; the worker has the same limit.
pub const MOST_HELD: usize = 64;

/// The policy by which buffered packets are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flush {
    /// Every packet is sent immediately, alone.
    Each,
    /// Packets are sent when `packets` are buffered, and whenever a free-running timer fires.
    Full {
        /// Maximum number of buffered packets.
        packets: usize,
        /// Period of the timer, ns.
        drain_ns: f64,
    },
    /// Packets are sent when the ring is empty (a receive batch was not full), or when `packets` are buffered. With
    /// receive batches of one packet every batch is full, so only a receive call without a packet shows that the ring
    /// is empty.
    Idle {
        /// Maximum number of buffered packets.
        packets: usize,
    },
    /// Packets are sent whenever a free-running timer fires, or earlier if [`MOST_HELD`] are buffered.
    Every {
        /// Period of the timer, ns.
        period_ns: f64,
    },
}

impl Flush {
    /// Returns the number of buffered packets that causes the policy to send them.
    pub(crate) fn packets(&self) -> usize {
        match *self {
            Flush::Each => 1,
            Flush::Full { packets, .. } | Flush::Idle { packets } => packets,
            Flush::Every { .. } => MOST_HELD,
        }
    }

    /// Returns the period of the timer, ns; infinity for policies without a timer.
    pub(crate) fn timer_ns(&self) -> f64 {
        match *self {
            Flush::Each | Flush::Idle { .. } => f64::INFINITY,
            Flush::Full { drain_ns: ns, .. } | Flush::Every { period_ns: ns } => ns,
        }
    }
}

/// The moment at which packets of a receive batch become available for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Each packet is released when its own service ends, as in the closed forms.
    Packet,
    /// All packets are released when the receive batch is complete, as by functions that process a batch together.
    Batch,
}

/// A processor of packets, its arrivals, and its disturbances.
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
    /// Returns a processor with one core that receives one packet at a time from an unbounded ring, needs `per_packet`
    /// for each, and sends each alone. Receiving, polling and sending take no time, and nothing interrupts the core.
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

    /// Returns the processor with a fixed cost for each non-empty receive batch and for each send batch, ns.
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

    /// Returns the processor with a ring of `packets`; a slot becomes free when its packet is received.
    ///
    /// # Errors
    /// The ring has no slot.
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
    /// The policy buffers no packet, or its timer is not a finite time above zero.
    pub fn with_flush(mut self, flush: Flush) -> Result<Self, QueueingError> {
        at_least_one("packets of a send batch", flush.packets())?;
        if let Flush::Full { drain_ns: ns, .. } | Flush::Every { period_ns: ns } = flush {
            positive("the period of a flush timer", ns)?;
        }
        self.flush = flush;
        Ok(self)
    }

    /// Returns the processor with several cores that receive from the same ring.
    ///
    /// # Errors
    /// There is no core.
    pub fn with_servers(mut self, servers: usize) -> Result<Self, QueueingError> {
        self.servers = at_least_one("servers", servers)?;
        Ok(self)
    }

    /// Returns the processor with `vacations` as the interruptions of each core.
    pub fn with_vacations(mut self, vacations: Vacations) -> Self {
        self.vacations = vacations;
        self
    }

    /// Returns the processor with a poll time. While the ring is empty, polls of `ns` follow each other, and a core
    /// notices a packet only at the end of a poll.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_poll(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.poll_ns = not_negative("the time of a poll", ns)?;
        Ok(self)
    }

    /// Returns the processor with a transfer time: packets spend `ns` in total on the way to the ring and from the
    /// core. The time is part of the latency, but not of the core's time.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_transfer(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.transfer_ns = not_negative("the time of a transfer", ns)?;
        Ok(self)
    }

    /// Returns the processor with a wire for each core, which a packet occupies for `ns`. Packets sent together leave
    /// one after the other.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_wire(mut self, ns: f64) -> Result<Self, QueueingError> {
        self.wire_ns = not_negative("the time that a packet occupies a wire", ns)?;
        Ok(self)
    }

    /// Returns the processor with an observer that sends and receives its packets and may be interrupted. Arrivals are
    /// then the intended send times of packets, and latency counts from sending to receiving.
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Returns the same processor with its arrival pattern at another average rate.
    ///
    /// # Errors
    /// The rate is not above zero, or too high for the gaps within the pattern.
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

    /// Returns the average arrival rate, packets per second.
    pub fn rate_pps(&self) -> f64 {
        self.arrivals.rate_pps()
    }

    /// Returns the highest rate that the cores can sustain, packets per second. It is their time without interruptions,
    /// divided by the mean time of a packet in full batches; the wire may limit it further. At higher rates there is no
    /// steady state.
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
