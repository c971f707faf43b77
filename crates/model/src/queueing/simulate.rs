//! Discrete-event simulation of a polling packet processor, packet by packet, without a heap of events. It follows the
//! loop of the worker: check the timer, receive, serve, send.

use std::collections::VecDeque;

use fastrand::Rng;
use taut_measure::LatencyHistogram;

use super::arrivals::ArrivalStream;
use super::observer::{Receiving, Sending};
use super::processor::{Flush, Processor, Release};
use super::vacations::VacationStream;
use super::{QueueingError, at_least_one};

/// The results of a simulation. Latencies are those of packets sent after the warm-up.
#[derive(Debug, Clone)]
pub struct Run {
    /// Latencies from arrival to sending, rounded to whole ns. With an observer, they are from when the observer sends
    /// a packet until it receives the packet.
    pub latency: LatencyHistogram,
    /// Mean latency, ns, not rounded.
    pub mean_latency_ns: f64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets that were sent: all that were not dropped, as a run ends only when the ring and all buffers are empty.
    pub served: u64,
    /// Packets that arrived at a full ring.
    pub dropped: u64,
    /// Fraction of the time for which the cores worked on packets, excluding interruptions, 0..1.
    pub utilisation: f64,
    /// Length of the simulated time, ns.
    pub duration_ns: f64,
    /// Mean number of packets per non-empty receive batch.
    pub mean_batch: f64,
}

impl Run {
    /// Returns the share of dropped packets, 0..1.
    pub fn loss(&self) -> f64 {
        self.dropped as f64 / self.arrived.max(1) as f64
    }
}

/// Simulates `packets` arrivals at `processor`. The first tenth is a warm-up whose latencies are not recorded. The same
/// seed always gives the same run. Runs of different processors with the same seed have the same arrivals, scaled by
/// the rate (common random numbers).
///
/// # Errors
/// There are no packets.
pub fn simulate(processor: &Processor, packets: u64, seed: u64) -> Result<Run, QueueingError> {
    at_least_one("packets of a simulation", packets)?;
    Ok(Simulation::new(processor, packets, seed).run())
}

struct Simulation<'a> {
    processor: &'a Processor,
    input: Input,
    servers: Vec<Server>,
    sent: Sent,
    rng: Rng,
    batches: u64,
    received: u64,
    /// Time at which the last server finished, ns.
    end_ns: f64,
}

impl<'a> Simulation<'a> {
    fn new(processor: &'a Processor, packets: u64, seed: u64) -> Self {
        // Separate random streams, so that a change to one source of randomness leaves the others unchanged.
        let mut seeds = Rng::with_seed(seed);
        let arrivals = processor.arrivals.stream(seeds.u64(..));
        let rng = Rng::with_seed(seeds.u64(..));
        let timer_ns = processor.flush.timer_ns();
        // All cores use the same phase, because recordings of several cores cover the same time. The phase is not drawn
        // from `seeds`, so that results of simulations without recordings do not depend on it.
        let mut apart = Rng::with_seed(!seed);
        let phase = apart.f64();
        let (sending, receiving) = processor
            .observer
            .as_ref()
            .map(|observer| observer.halves(apart.u64(..), phase))
            .unzip();
        let servers = (0..processor.servers).map(|_| Server {
            now_ns: 0.0,
            busy_ns: 0.0,
            tick_ns: if timer_ns.is_finite() {
                seeds.f64() * timer_ns
            } else {
                f64::INFINITY
            },
            held: Vec::with_capacity(processor.flush.packets().min(1 << 16)),
            batch: Vec::with_capacity(processor.receive_batch.min(1 << 16)),
            vacations: processor.vacations.stream_from(seeds.u64(..), phase),
            wire_free_ns: 0.0,
        });
        let servers = servers.collect();
        let mut input = Input {
            arrivals,
            sending,
            next_ns: 0.0,
            to_come: packets,
            ring: VecDeque::new(),
            places: processor.ring,
            arrived: 0,
            dropped: 0,
        };
        input.next_ns = input.following_ns();
        Self {
            processor,
            servers,
            sent: Sent {
                latency: LatencyHistogram::new(),
                sum_ns: 0.0,
                served: 0,
                record_from: packets / 10,
                transfer_ns: processor.transfer_ns,
                wire_ns: processor.wire_ns,
                receiving,
            },
            input,
            rng,
            batches: 0,
            received: 0,
            end_ns: 0.0,
        }
    }

    fn run(mut self) -> Run {
        // The server with the earliest clock acts next, so no other server can have taken its packets.
        loop {
            let next = match &self.servers[..] {
                [_] => 0,
                servers => earliest(servers),
            };
            if self.servers[next].now_ns.is_infinite() {
                break;
            }
            self.step(next);
        }
        let (end_ns, cores) = (self.end_ns, self.servers.len() as f64);
        let busy_ns: f64 = self.servers.iter().map(|server| server.busy_ns).sum();
        let recorded = self.sent.latency.count().max(1) as f64;
        Run {
            mean_latency_ns: self.sent.sum_ns / recorded,
            latency: self.sent.latency,
            arrived: self.input.arrived,
            served: self.sent.served,
            dropped: self.input.dropped,
            utilisation: busy_ns / (end_ns * cores),
            duration_ns: end_ns,
            mean_batch: self.received as f64 / self.batches.max(1) as f64,
        }
    }

    /// Runs one iteration of a server's loop. A server without remaining work sets its clock to infinity.
    #[inline]
    fn step(&mut self, index: usize) {
        let Self {
            processor,
            input,
            servers,
            sent,
            rng,
            ..
        } = self;
        let server = &mut servers[index];
        server.now_ns = server.vacations.available_ns(server.now_ns);
        if server.now_ns >= server.tick_ns {
            let late = ((server.now_ns - server.tick_ns) / processor.flush.timer_ns()).floor();
            server.tick_ns += (late + 1.0) * processor.flush.timer_ns();
            server.send(processor.per_send_ns, sent);
        }
        input.admit(server.now_ns);
        if input.ring.is_empty() {
            if matches!(processor.flush, Flush::Idle { .. }) && !server.held.is_empty() {
                server.send(processor.per_send_ns, sent);
                return;
            }
            let timer_ns = if server.held.is_empty() {
                f64::INFINITY
            } else {
                server.tick_ns
            };
            let event_ns = input.next_ns.min(timer_ns);
            if event_ns.is_infinite() {
                self.end_ns = self.end_ns.max(server.now_ns);
                server.now_ns = f64::INFINITY;
                return;
            }
            server.idle_until(event_ns, processor.poll_ns);
            return;
        }
        let count = input.ring.len().min(processor.receive_batch);
        self.batches += 1;
        self.received += count as u64;
        if processor.per_receive_ns > 0.0 {
            server.work(processor.per_receive_ns);
        }
        match processor.release {
            Release::Packet => {
                for arrival_ns in input.ring.drain(..count) {
                    server.work(processor.per_packet.sample_ns(rng));
                    server.accept(arrival_ns, processor, sent);
                }
            }
            Release::Batch => {
                let work_ns: f64 = (0..count)
                    .map(|_| processor.per_packet.sample_ns(rng))
                    .sum();
                server.work(work_ns);
                let mut batch = std::mem::take(&mut server.batch);
                batch.extend(input.ring.drain(..count));
                for arrival_ns in batch.drain(..) {
                    server.accept(arrival_ns, processor, sent);
                }
                server.batch = batch;
            }
        }
        let dry = count < processor.receive_batch;
        if dry && matches!(processor.flush, Flush::Idle { .. }) {
            server.send(processor.per_send_ns, sent);
        }
    }
}

/// The packets that have not arrived yet.
struct Input {
    arrivals: ArrivalStream,
    /// The sender of the observer; `None` if packets are sent at their intended send times.
    sending: Option<Sending>,
    /// Time of the next arrival, ns; infinite if there is none.
    next_ns: f64,
    to_come: u64,
    ring: VecDeque<f64>,
    places: usize,
    arrived: u64,
    dropped: u64,
}

impl Input {
    #[inline]
    fn following_ns(&mut self) -> f64 {
        let due_ns = self.arrivals.next_ns();
        match &mut self.sending {
            Some(sending) => sending.sent_ns(due_ns),
            None => due_ns,
        }
    }

    /// Moves packets that arrived by `now_ns` into the ring, and drops those for which the ring has no slot.
    #[inline]
    fn admit(&mut self, now_ns: f64) {
        while self.next_ns <= now_ns {
            if self.ring.len() < self.places {
                self.ring.push_back(self.next_ns);
            } else {
                self.dropped += 1;
            }
            self.arrived += 1;
            self.to_come -= 1;
            self.next_ns = if self.to_come > 0 {
                self.following_ns()
            } else {
                f64::INFINITY
            };
        }
    }
}

/// The state of one core.
struct Server {
    now_ns: f64,
    busy_ns: f64,
    /// Time at which the flush timer next fires, ns.
    tick_ns: f64,
    /// Arrival times of the packets buffered for sending.
    held: Vec<f64>,
    /// Memory for the current receive batch, reused by all batches.
    batch: Vec<f64>,
    vacations: VacationStream,
    /// Time at which the core's wire has finished sending, ns.
    wire_free_ns: f64,
}

impl Server {
    #[inline]
    fn work(&mut self, work_ns: f64) {
        self.busy_ns += work_ns;
        self.now_ns = self.vacations.done_ns(self.now_ns, work_ns);
    }

    #[inline]
    fn accept(&mut self, arrival_ns: f64, processor: &Processor, sent: &mut Sent) {
        self.held.push(arrival_ns);
        if self.held.len() >= processor.flush.packets() {
            self.send(processor.per_send_ns, sent);
        }
    }

    #[inline]
    fn send(&mut self, cost_ns: f64, sent: &mut Sent) {
        if self.held.is_empty() {
            return;
        }
        if cost_ns > 0.0 {
            self.work(cost_ns);
        }
        for arrival_ns in self.held.drain(..) {
            self.wire_free_ns = self.wire_free_ns.max(self.now_ns) + sent.wire_ns;
            sent.record(self.wire_free_ns, arrival_ns);
        }
    }

    /// Moves the clock to the end of the first poll that ends at `event_ns` or later.
    #[inline]
    fn idle_until(&mut self, event_ns: f64, poll_ns: f64) {
        if poll_ns > 0.0 {
            let polls = ((event_ns - self.now_ns) / poll_ns).ceil().max(1.0);
            self.now_ns += polls * poll_ns;
        } else {
            self.now_ns = self.now_ns.max(event_ns);
        }
    }
}

/// The packets sent until now.
struct Sent {
    latency: LatencyHistogram,
    sum_ns: f64,
    served: u64,
    /// Number of packets that are sent before latencies are recorded.
    record_from: u64,
    transfer_ns: f64,
    wire_ns: f64,
    receiving: Option<Receiving>,
}

impl Sent {
    #[inline]
    fn record(&mut self, left_ns: f64, arrival_ns: f64) {
        let latency_ns = match &mut self.receiving {
            Some(receiving) => receiving.seen_ns(left_ns + self.transfer_ns) - arrival_ns,
            None => left_ns - arrival_ns + self.transfer_ns,
        };
        if self.served >= self.record_from {
            self.latency.record((latency_ns + 0.5) as u64);
            self.sum_ns += latency_ns;
        }
        self.served += 1;
    }
}

fn earliest(servers: &[Server]) -> usize {
    let mut least = 0;
    for (index, server) in servers.iter().enumerate() {
        if server.now_ns < servers[least].now_ns {
            least = index;
        }
    }
    least
}

#[cfg(test)]
mod tests;
