//! Simulates both endpoints of a connection in virtual time: seconds of packets in milliseconds, reproducible by the
//! seed.

use crate::demand::Demand;
use crate::endpoint::{Counts, Endpoint, EndpointError, Notice};
use crate::settings::Settings;
use crate::wire::{self, Body, MOST_DATAGRAM_BYTES};
use fastrand::Rng;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use taut_model::link::medium::{Fate, MediumCounts, SharedMedium};

/// Bytes of Ethernet, IPv4 and UDP headers around a packet.
pub const HEADERS_BYTES: u32 = 14 + 20 + 8;
/// Time at which a scenario begins, ns; not 0, because a time of 0 means unknown.
const START_NS: u64 = 1_000_000_000;
/// Limit on the packets in flight.
const MOST_UNDER_WAY: usize = 1 << 13;

/// A packet that has arrived or was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Direction of the packet: 0 from the opener, 1 to the opener.
    pub way: usize,
    /// Identifier with which the packet was sent.
    pub id: u32,
    /// True if the packet arrives now, false if it was dropped.
    pub arrives: bool,
    /// Time at which the transmission of the packet began, after waiting for the medium, ns; none if the path has no
    /// medium.
    pub begun_ns: Option<u64>,
}

/// A path that carries packets between both endpoints, in true time.
pub trait Path {
    /// Accepts a packet of `bytes` bytes, including headers, in direction `way`: 0 from the opener, 1 to the opener.
    fn send(&mut self, now_ns: u64, way: usize, id: u32, bytes: u32);
    /// Returns the time at which the next packet arrives or is dropped; none if no packet is in flight.
    fn next_ns(&self) -> Option<u64>;
    /// Returns a packet that has arrived or was dropped by now; none if there is no such packet. A packet may arrive
    /// more than once.
    fn take(&mut self, now_ns: u64) -> Option<Passed>;
}

impl Path for SharedMedium {
    fn send(&mut self, now_ns: u64, way: usize, id: u32, bytes: u32) {
        self.offer(now_ns, way, id, bytes);
    }

    fn next_ns(&self) -> Option<u64> {
        SharedMedium::next_ns(self)
    }

    fn take(&mut self, now_ns: u64) -> Option<Passed> {
        let ended = SharedMedium::take(self, now_ns)?;
        Some(Passed {
            way: ended.way,
            id: ended.id,
            arrives: ended.fate == Fate::Arrives,
            begun_ns: Some(ended.begun_ns),
        })
    }
}

/// A path with delays, bursts of losses, duplicates, and reordering.
#[derive(Debug)]
pub struct Delays {
    /// Shortest delay of each direction, ns.
    pub delay_ns: [u64; 2],
    /// Largest additional delay, ns, drawn uniformly for each packet; it also reorders packets.
    pub jitter_ns: u64,
    /// Fraction of packets at which a burst of losses begins.
    pub loss: f64,
    /// Number of consecutive packets that a burst of losses drops.
    pub burst: u32,
    /// Fraction of packets that arrive twice.
    pub copies: f64,
    random: Rng,
    left: [u32; 2],
    order: u64,
    under_way: BinaryHeap<Reverse<(u64, u64, usize, u32)>>,
}

impl Delays {
    /// Makes a path with delay `delay_ns` in both directions and no impairments.
    pub fn new(delay_ns: u64, seed: u64) -> Self {
        Self {
            delay_ns: [delay_ns; 2],
            jitter_ns: 0,
            loss: 0.0,
            burst: 1,
            copies: 0.0,
            random: Rng::with_seed(seed),
            left: [0; 2],
            order: 0,
            under_way: BinaryHeap::new(),
        }
    }

    fn leaves(&mut self, now_ns: u64, way: usize, id: u32) {
        let at_ns = now_ns + self.delay_ns[way] + self.random.u64(0..=self.jitter_ns);
        self.under_way.push(Reverse((at_ns, self.order, way, id)));
        self.order += 1;
    }
}

impl Path for Delays {
    fn send(&mut self, now_ns: u64, way: usize, id: u32, _: u32) {
        if self.left[way] == 0 && self.random.f64() < self.loss {
            self.left[way] = self.burst;
        }
        if self.left[way] > 0 {
            self.left[way] -= 1;
            return;
        }
        self.leaves(now_ns, way, id);
        if self.random.f64() < self.copies {
            self.leaves(now_ns, way, id);
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.under_way.peek().map(|Reverse((ns, ..))| *ns)
    }

    fn take(&mut self, now_ns: u64) -> Option<Passed> {
        let Reverse((_, _, way, id)) = self
            .under_way
            .peek()
            .copied()
            .filter(|Reverse((ns, ..))| *ns <= now_ns)?;
        self.under_way.pop();
        Some(Passed {
            way,
            id,
            arrives: true,
            begun_ns: None,
        })
    }
}

/// The settings of a simulation.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Settings of both endpoints.
    pub settings: Settings,
    /// Interval between messages, ns.
    pub interval_ns: u64,
    /// Length of a message, bytes.
    pub payload_bytes: usize,
    /// Number of messages that each endpoint sends.
    pub messages: u64,
    /// True if the answerer replies to each message that it receives; otherwise it sends messages at the interval as
    /// well.
    pub answers: bool,
    /// True if the answerer only receives, and sends no messages at all.
    pub is_one_way: bool,
    /// Target delay of both endpoints while the one of `settings` is out of reach, ns ([`Demand`]); `None` if the
    /// target delay does not change.
    pub late_target_ns: Option<u64>,
    /// Clock of the answerer: its offset from the opener's, ns, and its drift, parts per million.
    pub clock: (i64, f64),
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            interval_ns: 1_000_000,
            payload_bytes: 100,
            messages: 1_000,
            answers: true,
            is_one_way: false,
            late_target_ns: None,
            clock: (0, 0.0),
            seed: 1,
        }
    }
}

/// The outcome of one message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Fated {
    /// Time at which the application sent the message, ns of true time.
    pub sent_ns: u64,
    /// Time from sending to delivery, ns; none if it was not delivered.
    pub took_ns: Option<u64>,
    /// Parts of the time from sending to delivery; none if the message was not delivered, was recovered from a repair,
    /// or used a path without a medium.
    pub stages: Option<Stages>,
}

/// The parts of a message's time from sending to delivery, measured at its first packet that arrived. The timestamps
/// have the names of Gallenmüller's dissertation, section 6.3; the time in a driver (m5 - m4) is 0 here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stages {
    /// Time from the application's send call until the packet reached the medium (m2 - m1), ns.
    pub sender_ns: u64,
    /// Time from reaching the medium until the medium was free and the frame began (m3 - m2), ns.
    pub access_ns: u64,
    /// Time from the begin of the frame until the frame had arrived (m4 - m3), ns.
    pub air_ns: u64,
    /// Time from the arrival until the message was delivered, including waiting for earlier messages and for the
    /// receive window (m6 - m5), ns.
    pub receiver_ns: u64,
}

/// The times at which a packet reached the medium, began transmission, and arrived, ns.
type Seen = (u64, u64, u64);

impl Stages {
    /// Computes the stages of a message that was sent and delivered at the given times.
    fn of(sent_ns: u64, (given_ns, begun_ns, arrived_ns): Seen, delivered_ns: u64) -> Self {
        Self {
            sender_ns: given_ns.saturating_sub(sent_ns),
            access_ns: begun_ns.saturating_sub(given_ns),
            air_ns: arrived_ns.saturating_sub(begun_ns),
            receiver_ns: delivered_ns.saturating_sub(arrived_ns),
        }
    }
}

/// The results of a simulation. Index 0 of each pair is the opener, or the direction from it; index 1 is the answerer,
/// or the direction from it.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    /// Messages of each direction, in the order of sending.
    pub messages: [Vec<Fated>; 2],
    /// Messages that were delivered after their deadline, by true time; 0 unless a clock drifts more than allowed.
    pub delivered_late: u64,
    /// Messages that were delivered after a later message, or delivered twice; always 0.
    pub delivered_disordered: u64,
    /// Number of wakeups that were requested for the current time or earlier after all due work was done; close to 0.
    pub asked_for_nothing: u64,
    /// Counters of both endpoints.
    pub counts: [Counts; 2],
    /// Notices of both endpoints, with the time since the beginning, ns.
    pub notices: [Vec<(u64, Notice)>; 2],
    /// Time from sending each message to its deadline, ns, of both directions in the order of sending.
    pub targets_ns: [Vec<u64>; 2],
    /// Time from the first to the last message, ns.
    pub took_ns: u64,
    /// Counters of the medium, if the path has one.
    pub medium: Option<MediumCounts>,
}

impl Simulated {
    /// Returns the fraction of a direction's messages that were delivered in time, 0 to 1.
    pub fn in_time(&self, way: usize) -> f64 {
        let all = &self.messages[way];
        let in_time = all.iter().filter(|it| it.took_ns.is_some()).count();
        in_time as f64 / all.len().max(1) as f64
    }

    /// Returns the longest time without a delivery in a direction while messages were sent, ns. It starts at a delivery
    /// or the first sending, and ends at the next delivery or the last sending.
    pub fn longest_gap_ns(&self, way: usize) -> u64 {
        let all = &self.messages[way];
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return 0;
        };
        let delivered = all
            .iter()
            .filter_map(|it| it.took_ns.map(|ns| it.sent_ns + ns));
        let (mut before, mut longest) = (first.sent_ns, 0);
        for at_ns in delivered.chain([last.sent_ns]) {
            longest = longest.max(at_ns.saturating_sub(before));
            before = before.max(at_ns);
        }
        longest
    }
}

/// A packet in flight.
struct Packet {
    bytes: Vec<u8>,
    given_ns: u64,
}

/// A clock: its offset from true time, and its drift.
#[derive(Clone, Copy)]
struct Clock {
    offset_ns: i64,
    ppm: f64,
}

impl Clock {
    /// Returns the clock's time at a true time.
    fn at_ns(&self, true_ns: u64) -> u64 {
        let drift = (true_ns as f64 * self.ppm / 1e6) as i64;
        true_ns.saturating_add_signed(self.offset_ns + drift)
    }

    /// Returns the true time of a time of the clock.
    fn true_ns(&self, clock_ns: u64) -> u64 {
        let near = clock_ns.saturating_add_signed(-self.offset_ns);
        let drift = (near as f64 / (1.0 + self.ppm / 1e6)) as u64;
        // The drift is rounded up; otherwise the clock would be polled too early in an endless loop.
        drift + 1
    }
}

/// An endpoint and its clock.
struct Peer {
    endpoint: Endpoint,
    clock: Clock,
    demand: Option<Demand>,
}

impl Peer {
    fn new(scenario: &Scenario, endpoint: Endpoint, clock: Clock) -> Self {
        let usual_ns = scenario.settings.target_ns;
        let late_ns = scenario.late_target_ns;
        Self {
            endpoint,
            clock,
            demand: late_ns.map(|late_ns| Demand::new(usual_ns, late_ns)),
        }
    }

    /// Sets the target delay that is demanded now; `notice` is a notice that was just taken from the endpoint.
    fn demand(&mut self, now_ns: u64, notice: Option<Notice>) {
        let Some(demand) = &mut self.demand else {
            return;
        };
        let is_new = match notice {
            Some(notice) => demand.hear(now_ns, notice),
            None => demand.is_due(now_ns),
        };
        if is_new {
            // `simulate` has checked both target delays.
            let _ = self.endpoint.set_target(demand.target_ns());
        }
    }

    /// Returns the target delay that is set, ns.
    fn target_ns(&self, scenario: &Scenario) -> u64 {
        let usual_ns = scenario.settings.target_ns;
        self.demand.map_or(usual_ns, |it| it.target_ns())
    }
}

/// Sends messages over a path in virtual time.
///
/// # Errors
/// The settings are invalid.
pub fn simulate(scenario: &Scenario, path: &mut dyn Path) -> Result<Simulated, EndpointError> {
    Simulation::new(scenario, path)?.run()
}

/// The state of a simulation.
struct Simulation<'a> {
    scenario: &'a Scenario,
    path: &'a mut dyn Path,
    /// The opener, and the answerer; none for an answerer whose first packet has not arrived yet.
    peers: [Option<Peer>; 2],
    /// Random bytes of the answerer's connection.
    answerer_random: [u8; 16],
    found: Simulated,
    /// Packets in flight, by identifier; none for an unused identifier.
    packets: Vec<Option<Packet>>,
    /// Unused identifiers of packets: the indices of `packets` that are free.
    free: Vec<u32>,
    /// For each direction, by message number: the times of the first packet that arrived with the message; none before,
    /// and on a path without a medium.
    seen: [Vec<Option<Seen>>; 2],
    /// The next message for delivery in each direction.
    next_of: [u64; 2],
    /// Time at which each endpoint sends its next message at the interval; none before the endpoint knows its peer.
    due_ns: [Option<u64>; 2],
    first_ns: Option<u64>,
    /// Deadline of the last message of each direction, ns.
    deadline_ns: [u64; 2],
    now: u64,
    end_ns: u64,
    payload: Vec<u8>,
    bytes: [u8; MOST_DATAGRAM_BYTES],
}

impl<'a> Simulation<'a> {
    /// Makes a simulation that has not begun, with an opener and no answerer.
    fn new(scenario: &'a Scenario, path: &'a mut dyn Path) -> Result<Self, EndpointError> {
        let mut random = Rng::with_seed(scenario.seed);
        let mut sixteen = || {
            let mut bytes = [0; 16];
            random.fill(&mut bytes);
            bytes
        };
        if let Some(target_ns) = scenario.late_target_ns {
            let late = Settings {
                target_ns,
                ..scenario.settings
            };
            late.check(false)?;
        }
        let endpoint = Endpoint::open(scenario.settings, None, sixteen(), START_NS)?;
        let clock = Clock {
            offset_ns: 0,
            ppm: 0.0,
        };
        let opener = Peer::new(scenario, endpoint, clock);
        Ok(Self {
            scenario,
            path,
            peers: [Some(opener), None],
            answerer_random: sixteen(),
            found: Simulated::default(),
            packets: Vec::new(),
            free: Vec::new(),
            seen: [const { Vec::new() }; 2],
            next_of: [0; 2],
            due_ns: [None; 2],
            first_ns: None,
            deadline_ns: [0; 2],
            now: START_NS,
            end_ns: START_NS + 60_000_000_000,
            payload: vec![0; scenario.payload_bytes],
            bytes: [0; MOST_DATAGRAM_BYTES],
        })
    }

    /// Runs from one event to the next until nothing is left to do.
    fn run(mut self) -> Result<Simulated, EndpointError> {
        loop {
            self.receive()?;
            for side in 0..2 {
                let delivered = self.deliver(side);
                self.send(side, delivered);
                self.transmit(side);
            }
            if self.has_sent_all(0) {
                let last_ns = self.found.messages[0].last().map(|it| it.sent_ns);
                let late_ns = self.scenario.late_target_ns.unwrap_or(0);
                let target_ns = self.scenario.settings.target_ns.max(late_ns);
                let wait_ns = target_ns + self.scenario.interval_ns;
                let end_ns = last_ns.unwrap_or(self.now) + wait_ns + 1_000_000;
                self.end_ns = self.end_ns.min(end_ns);
            }
            let Some(next_ns) = self.next_ns() else {
                break;
            };
            self.found.asked_for_nothing += u64::from(next_ns <= self.now);
            self.now = next_ns.max(self.now + 1);
            if self.now > self.end_ns {
                break;
            }
        }
        self.found.took_ns = self.now - self.first_ns.unwrap_or(self.now);
        for (counts, peer) in self.found.counts.iter_mut().zip(&self.peers) {
            if let Some(peer) = peer {
                *counts = peer.endpoint.counts();
            }
        }
        Ok(self.found)
    }

    /// Passes packets that have arrived to both endpoints; the first one creates the answerer.
    fn receive(&mut self) -> Result<(), EndpointError> {
        while let Some(passed) = self.path.take(self.now) {
            // Duplicates may follow, so packets are freed by number, not by arrival.
            let Some(packet) = &self.packets[passed.id as usize] else {
                continue;
            };
            if !passed.arrives {
                continue;
            }
            if let (Some(begun_ns), Ok((_, Body::Data(data)))) =
                (passed.begun_ns, wire::parse(&packet.bytes))
                && let Some(of) = self.seen[passed.way].get_mut(data.source as usize)
            {
                of.get_or_insert((packet.given_ns, begun_ns, self.now));
            }
            let to = 1 - passed.way;
            if let Some(peer) = &mut self.peers[to] {
                let at_ns = peer.clock.at_ns(self.now);
                peer.endpoint.receive(at_ns, &packet.bytes);
            } else {
                let (offset_ns, ppm) = self.scenario.clock;
                let clock = Clock { offset_ns, ppm };
                let endpoint = Endpoint::accept(
                    self.scenario.settings,
                    None,
                    self.answerer_random,
                    clock.at_ns(self.now),
                    &packet.bytes,
                )?;
                self.peers[to] = Some(Peer::new(self.scenario, endpoint, clock));
            }
        }
        Ok(())
    }

    /// Takes the messages and notices that an endpoint delivers now, and returns the number of messages.
    fn deliver(&mut self, side: usize) -> u64 {
        let Some(peer) = &mut self.peers[side] else {
            return 0;
        };
        let at_ns = peer.clock.at_ns(self.now);
        let way = 1 - side;
        let mut delivered = 0;
        while let Some(delivery) = peer.endpoint.deliver(at_ns) {
            delivered += 1;
            let number = delivery.number;
            let Some(message) = self.found.messages[way].get_mut(number as usize) else {
                self.found.delivered_disordered += 1;
                continue;
            };
            let took_ns = self.now - message.sent_ns;
            let in_order = number >= self.next_of[way] && message.took_ns.is_none();
            let is_late = took_ns > self.found.targets_ns[way][number as usize];
            let seen = self.seen[way].get(number as usize).copied().flatten();
            message.took_ns = Some(took_ns);
            message.stages = seen.map(|seen| Stages::of(message.sent_ns, seen, self.now));
            self.found.delivered_disordered += u64::from(!in_order);
            self.found.delivered_late += u64::from(is_late);
            self.next_of[way] = number + 1;
        }
        while let Some(notice) = peer.endpoint.notice() {
            self.found.notices[side].push((self.now - START_NS, notice));
            peer.demand(at_ns, Some(notice));
        }
        peer.demand(at_ns, None);
        delivered
    }

    /// Sends the messages of an endpoint that are due. `delivered` is the number of messages that were just delivered
    /// to this endpoint, to which the answerer may reply.
    fn send(&mut self, side: usize, delivered: u64) {
        let Some(peer) = &mut self.peers[side] else {
            return;
        };
        let at_ns = peer.clock.at_ns(self.now);
        let interval_ns = self.scenario.interval_ns;
        let due_ns = &mut self.due_ns[side];
        if peer.endpoint.is_open() && due_ns.is_none() {
            // A side starts to send at the interval once the connection is open.
            *due_ns = Some(self.now + interval_ns);
        }
        let by_clock = side == 0 || !self.scenario.answers;
        let is_silent = side == 1 && self.scenario.is_one_way;
        let mut sends = if by_clock || is_silent { 0 } else { delivered };
        if by_clock && !is_silent {
            let has_more = (self.found.messages[side].len() as u64) < self.scenario.messages;
            if has_more && due_ns.is_some_and(|ns| ns <= self.now) {
                sends += 1;
                *due_ns = due_ns.map(|ns| ns + interval_ns);
            }
        }
        for _ in 0..sends {
            let number = self.found.messages[side].len();
            let filler = number as u8;
            self.payload.fill(filler);
            // A rejected message has no number, and is not evaluated.
            if peer.endpoint.send(at_ns, &self.payload).is_ok() {
                self.found.messages[side].push(Fated {
                    sent_ns: self.now,
                    ..Fated::default()
                });
                let deadline_ns = self.now + peer.target_ns(self.scenario);
                self.deadline_ns[side] = deadline_ns.max(self.deadline_ns[side]);
                self.found.targets_ns[side].push(self.deadline_ns[side] - self.now);
                self.seen[side].push(None);
                self.first_ns.get_or_insert(self.now);
            }
        }
    }

    /// Sends the pending packets of an endpoint over the path.
    fn transmit(&mut self, side: usize) {
        let Some(peer) = &mut self.peers[side] else {
            return;
        };
        let at_ns = peer.clock.at_ns(self.now);
        while let Some(length) = peer.endpoint.transmit(at_ns, &mut self.bytes) {
            let id = self.free.pop().unwrap_or_else(|| {
                self.packets.push(None);
                self.packets.len() as u32 - 1
            });
            if self.packets.len() >= MOST_UNDER_WAY && self.free.is_empty() {
                // The packets with the lower half of the indices have long arrived, so these indices are reused.
                self.free.extend(0..MOST_UNDER_WAY as u32 / 2);
            }
            self.packets[id as usize] = Some(Packet {
                bytes: self.bytes[..length].to_vec(),
                given_ns: self.now,
            });
            let bytes = length as u32 + HEADERS_BYTES;
            self.path.send(self.now, side, id, bytes);
        }
    }

    /// Returns true if an endpoint has sent all its messages.
    fn has_sent_all(&self, side: usize) -> bool {
        self.found.messages[side].len() as u64 >= self.scenario.messages
    }

    /// Returns the time of the next event (an endpoint wakes or sends, or a packet arrives); none if nothing will
    /// happen.
    fn next_ns(&self) -> Option<u64> {
        let wakes = self.peers.iter().flatten().filter_map(|peer| {
            let at_ns = peer.clock.at_ns(self.now);
            let wake_ns = peer.endpoint.wake_ns(at_ns)?;
            Some(peer.clock.true_ns(wake_ns))
        });
        let sends = (0..2).filter_map(|side| {
            let by_clock = side == 0 || !self.scenario.answers && !self.scenario.is_one_way;
            self.due_ns[side].filter(|_| by_clock && !self.has_sent_all(side))
        });
        wakes.chain(sends).chain(self.path.next_ns()).min()
    }
}

/// Sends the same messages over the same path as one datagram each, without recovery. Messages later than the target
/// delay, or after a later message, do not count as in time.
pub fn simulate_datagrams(scenario: &Scenario, path: &mut dyn Path) -> Simulated {
    let mut found = Simulated::default();
    let bytes = scenario.payload_bytes as u32 + HEADERS_BYTES;
    let target_ns = scenario.settings.target_ns;
    let mut now = START_NS;
    // For each packet in flight, by packet number: the direction and the number of its message.
    let mut numbers: Vec<(usize, usize)> = Vec::new();
    let mut next_of = [0_usize; 2];
    let mut due_ns = START_NS;
    loop {
        while let Some(passed) = path.take(now) {
            let (way, number) = numbers[passed.id as usize];
            let message = &mut found.messages[way][number];
            let took_ns = now - message.sent_ns;
            if !passed.arrives || message.took_ns.is_some() || number < next_of[way] {
                continue;
            }
            if took_ns > target_ns {
                continue;
            }
            message.took_ns = Some(took_ns);
            let seen = passed.begun_ns.map(|ns| (message.sent_ns, ns, now));
            message.stages = seen.map(|seen| Stages::of(message.sent_ns, seen, now));
            next_of[way] = number + 1;
            if way == 0 && scenario.answers && !scenario.is_one_way {
                send_datagram(&mut found, &mut numbers, path, now, 1, bytes);
            }
        }
        let is_over = found.messages[0].len() as u64 >= scenario.messages;
        if !is_over && due_ns <= now {
            send_datagram(&mut found, &mut numbers, path, now, 0, bytes);
            if !scenario.answers && !scenario.is_one_way {
                send_datagram(&mut found, &mut numbers, path, now, 1, bytes);
            }
            due_ns += scenario.interval_ns;
        }
        let due = (!is_over).then_some(due_ns);
        let Some(next_ns) = due.into_iter().chain(path.next_ns()).min() else {
            break;
        };
        now = next_ns.max(now);
    }
    found.took_ns = now - START_NS;
    found
}

fn send_datagram(
    found: &mut Simulated,
    numbers: &mut Vec<(usize, usize)>,
    path: &mut dyn Path,
    now_ns: u64,
    way: usize,
    bytes: u32,
) {
    numbers.push((way, found.messages[way].len()));
    found.messages[way].push(Fated {
        sent_ns: now_ns,
        ..Fated::default()
    });
    path.send(now_ns, way, numbers.len() as u32 - 1, bytes);
}

#[cfg(test)]
mod tests;
