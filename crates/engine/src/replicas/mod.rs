//! A function with replicas (instances on threads of their own): packets are spread over the threads, and leave in the
//! order in which they came. (The load balancer and merger of Xiang et al., JSAC 2019, section IV.B.2c.)
//!
//! A pair of rings ([`Lane`]) joins the worker with each replica. A packet is copied into the ring to a replica and
//! back into the other ring. A note accompanies the packet; it contains the packet's number among the packets of its
//! ingress port, and its context. The number therefore needs no bytes in the frame, and the function sees the frame as
//! it is. Packets that return early wait in the ring, without a further copy, until the earlier ones have returned
//! ([`taut_function::reorder`]). A replica returns dropped packets too, so that no packet waits for them. At most
//! [`SLOTS`] packets are at a replica; a packet that finds no replica with space is dropped and counted.
//!
//! The number of replicas can change while packets flow. A new replica gets packets once its instance is prepared, and
//! a removed one gets no more, but returns those that it has.

mod note;
mod replica;
#[cfg(test)]
mod tests;

use crate::chain::{ChainError, Replication, SpreadBy, Stage};
use crate::outcomes::add_outcomes;
use note::Note;
use replica::{Replica, SLOTS};
use std::collections::VecDeque;
use std::time::Duration;
use taut_function::reorder::{Arrival, Reorder, ReorderCounts};
use taut_function::tuple::Seen;
use taut_function::{Context, EmptyBatches, Function, Needs, Spread};
use taut_port::pair::Lane;
use taut_port::{BATCH_CAPACITY, Batch, Marks, Packet, PortError};
use taut_sys::{Alarm, Clock};

/// The duration of the clock's calibration.
const CALIBRATION: Duration = Duration::from_millis(2);

/// The seed of the hash that selects a flow's replica.
const SEED: u64 = 0x5245_504c;

/// A packet that has returned from a replica, with its note and the index of the replica.
struct Returned {
    packet: Packet,
    note: Note,
    replica: usize,
}

/// The packets of one ingress port on their way through the replicas.
struct Direction {
    /// The number of the next packet that goes to a replica.
    next: u16,
    order: Reorder<Returned>,
    /// The packets that have returned and may leave, in order, until a batch has space.
    ready: VecDeque<Returned>,
}

/// The counts of packets that were lost or late between worker and replicas. Packets that a replica's function dropped
/// or passed are in the counts of that function.
#[derive(Default)]
struct Counts {
    busy: u64,
    waited: u64,
    late: u64,
    too_long: u64,
}

/// A function with replicas (instances on threads of their own), which acts as one function of its worker.
pub(crate) struct Replicas {
    stage: Stage,
    replication: Replication,
    /// The replicas by index; none for an index whose replica has ended.
    replicas: Vec<Option<Replica>>,
    /// The indices of the replicas that get packets.
    active: Vec<usize>,
    /// The index in `active` that gets the next packet.
    turn: usize,
    directions: Vec<Direction>,
    arrived: Batch,
    out: Batch,
    wait_ticks: u64,
    counts: Counts,
    /// The numbers of packets by outcome in the functions of ended replicas.
    past: Vec<(&'static str, u64)>,
}

impl Direction {
    fn new(wait_ticks: u64) -> Self {
        let window = SLOTS as usize * crate::chain::MOST_REPLICAS;
        Self {
            next: 0,
            order: Reorder::new(window, wait_ticks).starting_at(0),
            ready: VecDeque::with_capacity(window),
        }
    }
}

impl Replicas {
    /// Makes the function of a stage with replicas, without threads yet.
    pub(crate) fn new(stage: &Stage, replication: &Replication) -> Self {
        Self {
            stage: Stage {
                replicas: None,
                ..stage.clone()
            },
            replication: replication.clone(),
            replicas: Vec::new(),
            active: Vec::new(),
            turn: 0,
            directions: Vec::new(),
            arrived: Batch::new(),
            out: Batch::new(),
            wait_ticks: u64::MAX,
            counts: Counts::default(),
            past: Vec::new(),
        }
    }

    /// Checks that the function can have replicas.
    pub(crate) fn check(made: &dyn Function) -> Result<(), String> {
        let needs = made.needs();
        let reason = if needs.spread != Spread::Any {
            "it keeps state of packets or flows"
        } else if needs.empty_batches != EmptyBatches::No {
            "it creates or delays packets"
        } else if needs.chooses_ports {
            "it selects egress ports"
        } else {
            return Ok(());
        };
        Err(format!(
            "replicas: {reason}, so only one instance may process the packets: leave it out"
        ))
    }

    /// Starts a replica, which gets packets when it is ready.
    fn start(&mut self) -> Result<(), ChainError> {
        let at = match self.replicas.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.replicas.push(None);
                self.replicas.len() - 1
            }
        };
        let core = self.replication.cores.get(at).copied();
        self.replicas[at] = Some(Replica::start(&self.stage, core)?);
        Ok(())
    }

    /// Starts or retires replicas until their number is the configured one.
    fn adjust(&mut self) -> Result<(), ChainError> {
        let wanted = self.replication.count;
        while self.present() < wanted {
            self.start()?;
        }
        // The replicas with the highest indices are retired first.
        let present = self.replicas.iter_mut().flatten().filter(|it| !it.retires);
        let surplus = present.skip(wanted);
        surplus.for_each(|it| it.retires = true);
        self.note_active();
        Ok(())
    }

    /// Returns the number of replicas that are not retired.
    fn present(&self) -> usize {
        let present = self.replicas.iter().flatten();
        present.filter(|it| !it.retires).count()
    }

    /// Updates the list of replicas that get packets.
    fn note_active(&mut self) {
        self.active.clear();
        let is_active = |it: &Replica| it.is_ready && !it.retires;
        for (at, replica) in self.replicas.iter().enumerate() {
            if replica.as_ref().is_some_and(is_active) {
                self.active.push(at);
            }
        }
        self.turn = 0;
    }

    /// Lets ready replicas get packets, and ends retired ones that have returned all packets.
    #[inline]
    fn look_after(&mut self) {
        let changes = |it: &Replica| (!it.is_ready && it.has_begun()) || it.is_over();
        if self.replicas.iter().flatten().any(changes) {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        for replica in &mut self.replicas {
            if let Some(it) = replica {
                it.is_ready = it.has_begun();
                if it.is_over() {
                    add_outcomes(&mut self.past, it.outcomes());
                    *replica = None;
                }
            }
        }
        self.note_active();
    }

    fn direction(&mut self, port: usize) -> &mut Direction {
        while self.directions.len() <= port {
            self.directions.push(Direction::new(self.wait_ticks));
        }
        &mut self.directions[port]
    }

    /// Receives the packets that replicas have returned, at most a batch of each.
    #[inline]
    fn collect(&mut self, now_ticks: u64) {
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            let Some(replica) = replica else { continue };
            if replica.lane.receive(&mut self.arrived) == 0 {
                continue;
            }
            let (directions, counts) = (&mut self.directions, &mut self.counts);
            let (lane, mut index) = (&replica.lane, 0);
            let all = self.arrived.len();
            self.arrived.take_front(all, |packet| {
                let note = Note::of(lane.note(index));
                index += 1;
                let Some(direction) = directions.get_mut(usize::from(note.from_port)) else {
                    return;
                };
                let (order, ready) = (&mut direction.order, &mut direction.ready);
                let returned = Returned {
                    packet,
                    note,
                    replica: at,
                };
                let (arrival, back) =
                    order.arrive(note.number, returned, now_ticks, Ok, &mut |it| {
                        ready.push_back(it)
                    });
                match arrival {
                    Arrival::Early => counts.waited += 1,
                    Arrival::InOrder => {}
                    Arrival::Late | Arrival::Duplicate => counts.late += 1,
                }
                ready.extend(back);
            });
        }
        for direction in &mut self.directions {
            let ready = &mut direction.ready;
            direction
                .order
                .expire(now_ticks, &mut |it| ready.push_back(it));
        }
    }

    /// Sends the packets of a batch to replicas; marked packets and those without a replica stay.
    #[inline]
    fn spread(&mut self, batch: &mut Batch, context: &Context) {
        if batch.is_empty() {
            return;
        }
        let by_flow = self.replication.spread == SpreadBy::Flow;
        if by_flow {
            batch.read_headers();
        }
        let mut hashes = [0_u64; BATCH_CAPACITY];
        if by_flow {
            for index in 0..batch.len() {
                let headers = batch.headers(index);
                if let Seen::Tuple(tuple) = Seen::of(&headers, batch.packets()[index].bytes()) {
                    hashes[index & (BATCH_CAPACITY - 1)] = tuple.flow_hash(SEED);
                }
            }
        }
        self.out.clear();
        let mut index = 0;
        batch.take_marked(|packet, marks| {
            let hash = by_flow.then_some(hashes[index & (BATCH_CAPACITY - 1)]);
            index += 1;
            let is_sent = marks.is_kept() && self.send(&packet, &marks, hash, context);
            if !is_sent {
                let is_new = marks.is_kept();
                self.out.push_marked(packet, &marks);
                if is_new {
                    self.out.mark_dropped(self.out.len() - 1);
                }
            }
        });
        for replica in self.replicas.iter_mut().flatten() {
            replica.lane.publish();
        }
        self.out.take_marked(|packet, marks| {
            batch.push_marked(packet, &marks);
        });
    }

    /// Sends one packet to a replica; `hash` is that of its flow if packets are spread by flow. Returns false, and
    /// counts the packet, if no replica has space.
    #[inline]
    fn send(
        &mut self,
        packet: &Packet,
        marks: &Marks,
        hash: Option<u64>,
        context: &Context,
    ) -> bool {
        let note = Note {
            number: self.direction(context.from_port).next,
            from_port: context.from_port as u8,
            to_port: context.to_port as u8,
            ports: context.ports as u8,
            priority: marks.priority(),
            is_dropped: false,
        };
        let count = self.active.len();
        let (first, tries) = match hash {
            Some(hash) => ((hash % count.max(1) as u64) as usize, 1),
            None => (self.turn, count),
        };
        for step in 0..tries.min(count) {
            let at = (first + step) % count;
            let Some(replica) = &mut self.replicas[self.active[at]] else {
                continue;
            };
            if replica.outstanding < SLOTS && replica.lane.push(packet.bytes(), note.bits()) {
                replica.outstanding += 1;
                self.turn = (at + 1) % count;
                let next = &mut self.direction(context.from_port).next;
                *next = next.wrapping_add(1);
                return true;
            }
        }
        match packet.len() > Lane::LONGEST_FRAME_BYTES {
            true => self.counts.too_long += 1,
            false => self.counts.busy += 1,
        }
        false
    }

    /// Appends the packets that may leave to a batch of their ingress port.
    #[inline]
    fn emit(&mut self, batch: &mut Batch, from_port: usize) {
        let Some(direction) = self.directions.get_mut(from_port) else {
            return;
        };
        let fits = batch.room().min(direction.ready.len());
        for returned in direction.ready.drain(..fits) {
            if let Some(replica) = &mut self.replicas[returned.replica] {
                replica.outstanding -= 1;
            }
            let index = batch.len();
            batch.push(returned.packet);
            if returned.note.is_dropped {
                batch.mark_dropped(index);
            } else if let Some(priority) = returned.note.priority {
                batch.set_priority(index, priority);
            }
        }
    }

    /// Returns the number of reorder timeouts, summed over all directions, and the longest wait of a packet for an
    /// earlier one.
    fn sums(&self) -> ReorderCounts {
        let mut sums = ReorderCounts::default();
        for counts in self.directions.iter().map(|it| it.order.counts()) {
            sums.timeouts += counts.timeouts;
            sums.longest_ticks = sums.longest_ticks.max(counts.longest_ticks);
        }
        sums
    }
}

impl Function for Replicas {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            empty_batches: EmptyBatches::Wakes,
            forgets_ports: true,
            ..Needs::default()
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let clock = Clock::calibrate(CALIBRATION);
        let wait = self.replication.wait.as_nanos() as f64;
        self.wait_ticks = clock.to_ticks(wait) as u64;
        // Most chains have two ports; further ports are added at their first packet.
        self.direction(1);
        self.adjust().map_err(as_port_error)?;
        for replica in self.replicas.iter_mut().flatten() {
            replica.wait_until_ready().map_err(as_port_error)?;
        }
        self.note_active();
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.look_after();
        self.collect(context.now_ticks);
        self.spread(batch, context);
        self.emit(batch, context.from_port);
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let is_ready = self.directions.iter().any(|it| !it.ready.is_empty());
        let mut lanes = self.replicas.iter_mut().flatten();
        !is_ready && lanes.all(|it| it.lane.arm(alarm))
    }

    fn disarm(&mut self) {
        for replica in self.replicas.iter_mut().flatten() {
            replica.lane.disarm();
        }
    }

    fn held(&self) -> usize {
        let each = self.replicas.iter().flatten();
        each.map(|it| it.outstanding as usize).sum()
    }

    fn set_replicas(&mut self, settings: &dyn std::any::Any) -> bool {
        let Some(replication) = settings.downcast_ref::<Replication>() else {
            return false;
        };
        let before = std::mem::replace(&mut self.replication, replication.clone());
        if self.adjust().is_err() {
            // With the earlier settings, the additional replicas that did start are retired.
            self.replication = before;
            let _ = self.adjust();
            return false;
        }
        true
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let mut sums = self.past.clone();
        for replica in self.replicas.iter().flatten() {
            add_outcomes(&mut sums, replica.outcomes());
        }
        sums.extend([
            ("dropped: all replicas busy", self.counts.busy),
            ("dropped: too long for a replica", self.counts.too_long),
            ("waited for another replica", self.counts.waited),
            ("late, sent out of order", self.counts.late),
            ("waits that timed out", self.sums().timeouts),
        ]);
        sums
    }
}

/// Converts an error of a replica, such as a failed thread, to an error of a port.
fn as_port_error(e: ChainError) -> PortError {
    match e {
        ChainError::Port(e) => e,
        other => PortError::system("a replica", std::io::Error::other(other.to_string())),
    }
}
