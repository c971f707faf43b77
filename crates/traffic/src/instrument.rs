//! The instrument: one loop that sends when packets are due and receives whenever they come.
//!
//! Stamps: the send stamp is read once per burst, last before the frames are stamped and handed over;
//! the receive stamp first after packets were seen. Latency can also be had from the time a packet was
//! *due*, so that a late generator (or a device that pushes back) cannot hide waiting time.

use crate::hand::{Arrival, Crafted, Hand, Made, NoHand};
use crate::interruptions::LoopInterruptions;
use crate::line::{Line, Next, Pacing, is_filler};
use crate::stations::{Gateway, Stations};
use crate::{Pattern, Record, Schedule, Stream, Traffic};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_port::{
    BATCH_CAPACITY, Batch, Packet, PoolHandle, Port, PortCounters, PortError, PortSpec, Resources,
};
use taut_sys::{Clock, ClockReading, StampClock, ticks};
use taut_wire::resolution::{LONGEST_BYTES, may_be_about_neighbours};
use taut_wire::{Mac, PortRange, Received, StampLayout, Sum, claimed_stamp, classify};

/// Packets handed over together at most when several are due at once.
const BURST: usize = 32;

/// Time to wait for stragglers after the last packet that came back.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest time to go on receiving after the last packet was sent, however many still come: a device that multiplies
/// packets must not keep a trial from ending.
const ENDLESS: Duration = Duration::from_secs(2);

/// Delay with which a generator may still send what it owes, as a share of the trial (and at least 1 ms), and as a
/// multiple of the time that stalls took: these are made good, too high a rate is not.
const GRACE: f64 = 0.01;
const SHORTEST_GRACE: Duration = Duration::from_millis(1);
const STALL_GRACE: u64 = 5;

/// A round of the loop that took longer was stalled: 32 packets take a fraction of that on any port.
const STALL: Duration = Duration::from_micros(500);

/// Distance at which a stream sends what it owes after a stall, as a share of its average gap. It does not send all at
/// once: a burst would measure the generator's stall, not the device.
const CATCH_UP: f64 = 0.75;

/// Packets this far apart are a burst to no device, so that slow streams need not take long to catch up.
const WIDEST_CATCH_UP: Duration = Duration::from_micros(20);

/// Lateness that is not a stall: a round of the loop under load.
const SLACK: Duration = Duration::from_micros(2);

/// An idle round of the loop that took longer was interrupted by the machine.
const INTERRUPTION: Duration = Duration::from_micros(2);

/// Time between two looks for questions at the port that only sends, and between two questions to a gateway.
const LOOK: Duration = Duration::from_millis(1);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Packets that a hand makes ahead at most, and how many at once while nothing else is to be done.
const CRAFTED_AHEAD: usize = 64;
const CRAFTED_WHILE_IDLE: usize = 16;

/// Least time before the next packet is due in which a hand may still be asked to make some.
const AHEAD: Duration = Duration::from_micros(5);

/// Trial: at a rate, for a while.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// Packets per second, of all streams that have no rate of their own.
    pub rate_pps: f64,
    /// Length of the sending.
    pub duration: Duration,
}

impl Trial {
    /// Packets that the trial owes, at a constant rate.
    pub fn packets(&self) -> u64 {
        (self.rate_pps * self.duration.as_secs_f64())
            .round()
            .max(1.0) as u64
    }
}

/// Counts of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Packets that were due in the trial.
    pub owed: u64,
    /// Packets handed over to the port.
    pub sent: u64,
    /// Packets that the port had no room for: the device's receive ring was full.
    pub refused: u64,
    /// Packets that were due, but the generator never came to them.
    pub unsent: u64,
    /// Packets that were due while the generator had no memory for them: sent late, or among the unsent.
    #[serde(default)]
    pub starved: u64,
    /// Packets that came back with a right stamp and checksum (copies included).
    pub received: u64,
    /// Packets that came back damaged: of which stream is not known, counted with the first.
    pub corrupt: u64,
    /// Packets that are not ours, or left over from an earlier trial. Nobody knows of which stream: counted with the
    /// first.
    pub foreign: u64,
    /// Questions for the MAC addresses of its stations that were answered (ARP, neighbour discovery).
    /// Counted with the first stream.
    #[serde(default)]
    pub arp_answered: u64,
    /// Filler frames handed over. Counted with the first stream.
    #[serde(default)]
    pub fillers_sent: u64,
    /// Filler frames that came back, which are dropped. Counted with the first stream.
    #[serde(default)]
    pub fillers_received: u64,
    /// Seconds from the first packet due to the last one sent.
    pub seconds: f64,
    /// Ended early by a stop request.
    pub stopped: bool,
}

impl Tally {
    /// True if the generator could not offer the rate: the trial says nothing about the device.
    pub fn generator_behind(&self) -> bool {
        self.unsent > 0
    }
}

/// Reason why an instrument cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The other side did not come.
    #[error("{port}: {why} (waited {waited_s:.1} s)")]
    NoLink {
        /// The port's spec.
        port: String,
        /// State of the link in words.
        why: String,
        /// Time waited, s.
        waited_s: f64,
    },
    /// A gateway does not say its MAC address.
    #[error(
        "{port}: nobody answers for gateway {gateway} (waited {waited_s:.1} s): give an address that the device has at \
         this port, and a src_ip in its network, or its MAC address as dst_mac"
    )]
    NoGateway {
        /// The port's spec.
        port: String,
        /// The address asked for.
        gateway: IpAddr,
        /// Time waited, s.
        waited_s: f64,
    },
    /// The instrument was told to stop while waiting.
    #[error("stopped")]
    Stopped,
}

/// Opens one port.
pub type OpenPort<'a> = dyn FnMut() -> Result<Box<dyn Port>, PortError> + 'a;

/// A generator and receiver over one or two ports, on the calling thread.
pub struct Instrument {
    specs: Vec<PortSpec>,
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) pool: PoolHandle,
    pub(crate) clock: Clock,
    pub(crate) traffic: Traffic,
    ports_of_flows: PortRange,
    stations: Stations,
    pacing: Pacing,
    /// MAC addresses that were found.
    gateways: Vec<(Gateway, Mac)>,
    /// Answers on their way to a port; empty between two calls.
    answers: Batch,
    /// Number of the trial, carried in the stamps, so that stragglers of the last one are known.
    trial: u16,
    pub(crate) out: Batch,
    /// Facts about the packets in `out`, and what they must get when they are stamped.
    pending: [Pending; BURST],
    pub(crate) arrived: Batch,
    /// Packets that a hand made ahead, by stream.
    crafted: Vec<Crafted>,
    /// Facts about the packets in `arrived`.
    arrivals: [Arrival; BATCH_CAPACITY],
    /// Empty between two calls.
    making: Batch,
    slow: Batch,
    /// Relation of the clocks, where the receiving port stamps arrivals by a clock that can be read here.
    stamps: Option<Related>,
    stamp_clock: Option<StampClock>,
    interruptions: LoopInterruptions,
}

/// The relation of arrival stamps' clock to the ticks, kept fresh.
#[derive(Debug, Clone, Copy)]
struct Related {
    stamps: StampClock,
    now: ClockReading,
    fresh_until: u64,
    /// Error of the worst reading so far.
    error_ns: f64,
}

/// Time for which a reading is good.
const FRESH_NS: f64 = 2e6;

impl Related {
    fn to(stamps: StampClock) -> Option<Self> {
        Some(Self {
            stamps,
            now: ClockReading::now(stamps)?,
            fresh_until: 0,
            error_ns: 0.0,
        })
    }

    #[inline(always)]
    fn at(&mut self, seen: u64, clock: &Clock) -> ClockReading {
        if seen >= self.fresh_until {
            self.read(clock);
        }
        self.now
    }

    #[cold]
    fn read(&mut self, clock: &Clock) {
        self.now = ClockReading::now(self.stamps).unwrap_or(self.now);
        self.fresh_until = self.now.ticks + clock.to_ticks(FRESH_NS) as u64;
        self.error_ns = self.error_ns.max(self.now.error_ns(clock));
    }
}

/// A packet between being made and being handed over.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    stream: usize,
    template: u32,
    varied: Sum,
    sequence: u64,
    /// Time at which the packet is due; ticks.
    due: u64,
    /// Delay beyond that with which it was to leave when it was first handed over, and when that was; ticks.
    late: u64,
    first_stamp: u64,
    /// Whether the packet is a filler, which is no stream's.
    filler: bool,
    /// Whether a hand made the packet; it takes the place of the template's.
    crafted: bool,
    layout: Option<StampLayout>,
}

/// State of one stream in a trial.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) schedule: Schedule,
    /// Time at which the stream may send again while it makes a stall good.
    free_at: u64,
    /// Least distance between packets meanwhile, in ticks; 0 for patterns that are bursts on purpose.
    spacing: u64,
    /// Packets up to this one were counted as starved.
    starved_until: u64,
    priority: u8,
}

impl Running {
    #[cfg(test)]
    pub(crate) fn of(schedule: Schedule) -> Self {
        Self {
            schedule,
            free_at: 0,
            spacing: 0,
            starved_until: 0,
            priority: 0,
        }
    }

    #[inline(always)]
    fn may_send(&self, now: u64) -> bool {
        self.schedule.due_ticks() <= now && self.free_at <= now
    }

    /// Goes on to the packet after the one that was sent `late` ticks after it was due.
    #[inline(always)]
    fn sent(&mut self, now: u64, late: u64, slack: u64) {
        if late > slack {
            self.free_at = self.free_at.max(now - slack) + self.spacing;
        }
        self.schedule.advance();
    }

    /// Notes that there is no memory for the packet that is due; it stays due. Returns 1 the first time, 0 when it is
    /// tried again.
    #[cold]
    fn starve(&mut self) -> u64 {
        let until = self.schedule.next() + 1;
        let before = std::mem::replace(&mut self.starved_until, until);
        u64::from(before < until)
    }
}

/// The stream whose packet is to be sent now: of those that are due the one with the highest priority, and
/// of these the one that is due longest.
#[inline(always)]
pub(crate) fn choose(running: &[Running], now: u64) -> Option<usize> {
    if let [only] = running {
        return only.may_send(now).then_some(0);
    }
    let due = running.iter().enumerate().filter(|(_, r)| r.may_send(now));
    due.min_by_key(|(_, r)| (u8::MAX - r.priority, r.schedule.due_ticks()))
        .map(|(index, _)| index)
}

/// Stamps carry a trial's number above the stream's.
const STREAM_BITS: u16 = 4;

impl Instrument {
    /// Opens `specs` (the first sends, the last receives; they may be the same one).
    ///
    /// # Errors
    /// What the ports say.
    pub fn open(
        specs: &[PortSpec],
        traffic: impl Into<Traffic>,
        clock: Clock,
    ) -> Result<Self, TrialError> {
        Self::open_with(specs, traffic, clock, |_, open| {
            open().map_err(TrialError::from)
        })
    }

    /// Opens an instrument as [`Instrument::open`] does, but each port, by index, is opened inside `around`, which may
    /// enter the network namespace that it belongs to.
    ///
    /// # Errors
    /// What `around` says.
    pub fn open_with<E: From<PortError>>(
        specs: &[PortSpec],
        traffic: impl Into<Traffic>,
        clock: Clock,
        around: impl Fn(usize, &mut OpenPort<'_>) -> Result<Box<dyn Port>, E>,
    ) -> Result<Self, E> {
        let mut resources = Resources::for_ports(specs)?;
        let traffic = traffic.into();
        check_room(&specs[0], &traffic, resources.pool().room())?;
        let mut ports = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            ports.push(around(index, &mut || spec.open(&mut resources))?);
        }
        check_link(&specs[0], &traffic, &*ports[0])?;
        let stamp_clock = ports.last().and_then(|port| port.stamp_clock());
        Ok(Self {
            specs: specs.to_vec(),
            ports,
            pool: resources.pool(),
            clock,
            ports_of_flows: ports_of_flows(&traffic),
            stations: Stations::of(&traffic),
            pacing: Pacing::Software,
            gateways: Vec::new(),
            answers: Batch::new(),
            traffic,
            trial: 0,
            out: Batch::new(),
            pending: [Pending::default(); BURST],
            arrived: Batch::new(),
            crafted: Vec::new(),
            arrivals: [Arrival::default(); BATCH_CAPACITY],
            making: Batch::new(),
            slow: Batch::new(),
            stamps: stamp_clock.and_then(Related::to),
            stamp_clock,
            interruptions: LoopInterruptions::new(&clock),
        })
    }

    /// The clock of the receiving port's own stamps of arrival; none where it was not asked for them.
    pub fn stamp_clock(&self) -> Option<StampClock> {
        self.stamp_clock
    }

    /// Returns how far arrival stamps may be off the send stamps, as the clocks were read one after the other and
    /// stamps are cut to their unit, ns; none where the receiving port has no stamps, or by a clock that cannot be read
    /// here.
    pub fn stamp_error_ns(&self) -> Option<f64> {
        let related = self.stamps.as_ref()?;
        Some(related.error_ns)
    }

    /// Traffic that the instrument sends.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Sets what holds the gaps from now on.
    pub fn set_pacing(&mut self, pacing: Pacing) {
        self.pacing = pacing;
    }

    /// Sends `traffic` from now on, over the ports as they are.
    ///
    /// # Errors
    /// Frames that do not fit the buffers.
    pub fn set_traffic(&mut self, traffic: Traffic) -> Result<(), TrialError> {
        check_room(&self.specs[0], &traffic, self.pool.room())?;
        check_link(&self.specs[0], &traffic, &*self.ports[0])?;
        self.ports_of_flows = ports_of_flows(&traffic);
        self.stations = Stations::of(&traffic);
        self.traffic = traffic;
        for (gateway, mac) in &self.gateways {
            point_at(&mut self.traffic, gateway, *mac);
        }
        Ok(())
    }

    /// Waits until all ports' other sides are there, and the gateways of all streams have said their MAC
    /// addresses.
    ///
    /// # Errors
    /// When they are or have not after `patience` each, or `stop` is set.
    pub fn wait_for_links(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<(), TrialError> {
        let begun = std::time::Instant::now();
        loop {
            let down = self
                .ports
                .iter_mut()
                .zip(&self.specs)
                .find_map(|(port, spec)| match port.link() {
                    taut_port::Link::Up => None,
                    taut_port::Link::Down(why) => Some((spec.text().to_string(), why)),
                });
            let Some((port, why)) = down else {
                return self.find_gateways(patience, stop);
            };
            if stop.load(Ordering::Relaxed) {
                return Err(TrialError::Stopped);
            }
            if begun.elapsed() >= patience {
                return Err(TrialError::NoLink {
                    port,
                    why,
                    waited_s: patience.as_secs_f64(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks for the MAC addresses of the gateways that are not known yet, and puts them into the streams.
    fn find_gateways(&mut self, patience: Duration, stop: &AtomicBool) -> Result<(), TrialError> {
        for index in 0..self.traffic.streams().len() {
            let Some(gateway) = self.traffic.streams()[index].gateway() else {
                continue;
            };
            if self.gateways.iter().any(|(known, _)| *known == gateway) {
                continue;
            }
            let mac = self.find_gateway(&gateway, patience, stop)?;
            point_at(&mut self.traffic, &gateway, mac);
            self.gateways.push((gateway, mac));
        }
        Ok(())
    }

    fn find_gateway(
        &mut self,
        gateway: &Gateway,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<Mac, TrialError> {
        let begun = std::time::Instant::now();
        let mut asked: Option<std::time::Instant> = None;
        let mut question = [0; LONGEST_BYTES];
        let len = gateway.question(&mut question).unwrap_or_default();
        loop {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                if let Some(mut packet) = self.pool.take(len as u16) {
                    packet.bytes_mut().copy_from_slice(&question[..len]);
                    self.answers.push(packet);
                    self.ports[0].tx(&mut self.answers);
                    self.answers.clear();
                }
                asked = Some(std::time::Instant::now());
            }
            for port in 0..self.ports.len() {
                self.ports[port].rx(&mut self.arrived);
                let answer = |packet: &Packet| gateway.answer_in(packet.bytes());
                let found = self.arrived.packets().iter().find_map(answer);
                self.answer_arrived(port);
                self.arrived.clear();
                if let Some(mac) = found.filter(|_| port == 0) {
                    return Ok(mac);
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Err(TrialError::Stopped);
            }
            if begun.elapsed() >= patience {
                return Err(TrialError::NoGateway {
                    port: self.specs[0].text().to_string(),
                    gateway: gateway.ip,
                    waited_s: patience.as_secs_f64(),
                });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Answers the questions among what arrived at a port; returns how many.
    fn answer_arrived(&mut self, port: usize) -> u64 {
        let ends = (port == 0, port + 1 == self.ports.len());
        for packet in self.arrived.packets() {
            answer(
                &self.stations,
                &self.pool,
                packet.bytes(),
                ends,
                &mut self.answers,
            );
        }
        send_answers(&mut *self.ports[port], &mut self.answers)
    }

    /// Looks for questions at the first port where packets are not received there anyway.
    #[cold]
    fn look_at_first_port(&mut self) -> u64 {
        if self.ports.len() < 2 || self.ports[0].rx(&mut self.arrived) == 0 {
            return 0;
        }
        let answered = self.answer_arrived(0);
        self.arrived.clear();
        answered
    }

    /// Returns what each port counted since it was opened.
    pub fn counters(&mut self) -> Vec<PortCounters> {
        self.ports.iter_mut().map(|p| p.counters()).collect()
    }

    /// Returns when the core was taken away from the instrument in the last trial.
    pub fn interruptions(&self) -> &LoopInterruptions {
        &self.interruptions
    }

    /// The clock of its stamps.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs one trial and tells `record` about every packet of the first stream; other streams are sent
    /// besides.
    ///
    /// Sends a packet when it is due, at once if that is past, up to 32 due ones together; what a stall of
    /// the machine held up follows spaced out, at 4/3 of the stream's rate. Stops sending at the end of
    /// the trial (plus a grace of 1 %, and what stalls take to be made good), then waits until all packets are back or none came for 20 ms
    /// (2 s at most).
    pub fn run<R: Record>(&mut self, trial: Trial, record: &mut R, stop: &AtomicBool) -> Tally {
        let tallies = self.run_streams(trial, std::slice::from_mut(record), stop);
        tallies.into_iter().next().unwrap_or_default()
    }

    /// Runs a trial as [`Instrument::run`] does, with a record for each stream, in their order (streams without one are
    /// only counted); returns the tallies of all streams.
    pub fn run_streams<R: Record>(
        &mut self,
        trial: Trial,
        records: &mut [R],
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        self.run_with(trial, records, &mut NoHand, stop)
    }

    /// Runs a trial as [`Instrument::run_streams`] does, with a hand that makes packets and sees what arrives. Without
    /// streams it only receives, for as long as the trial says.
    pub fn run_with<R: Record, H: Hand>(
        &mut self,
        trial: Trial,
        records: &mut [R],
        hand: &mut H,
        stop: &AtomicBool,
    ) -> Vec<Tally> {
        self.trial = self.trial.wrapping_add(1);
        let clock = self.clock;
        let ticks_in = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let settle_ticks = ticks_in(SETTLE);
        let endless_ticks = ticks_in(ENDLESS);
        let slack_ticks = ticks_in(SLACK);
        let interruption_ticks = ticks_in(INTERRUPTION);
        let grace_ticks = ticks_in(trial.duration.mul_f64(GRACE).max(SHORTEST_GRACE));
        self.discard_arrived();

        let start = ticks() + ticks_in(Duration::from_micros(20));
        self.traffic
            .streams_mut()
            .iter_mut()
            .for_each(Stream::restart);
        self.interruptions.begin(start);
        let mut running = self.schedules(trial, start);
        // Without streams there is still one that counts what is foreign.
        let mut tallies = vec![Tally::default(); running.len().max(1)];
        let listen_until = if running.is_empty() {
            start + ticks_in(trial.duration)
        } else {
            start
        };
        self.crafted.clear();
        if H::ACTIVE {
            self.crafted.resize_with(running.len(), Crafted::default);
        }
        let ahead_ticks = ticks_in(AHEAD);
        let look_ticks = ticks_in(LOOK);
        let mut line = Line::of(self.pacing, &self.traffic, &clock, self.pool.room());
        let mut last_look = start;
        let stall_ticks = ticks_in(STALL);
        let end = start + ticks_in(trial.duration);
        let mut give_up = end + grace_ticks;
        let mut last_event = start;
        let mut last_sent = start;
        let mut last_round = start;
        let mut was_idle = false;
        let mut stopped = false;
        loop {
            let now = ticks();
            if was_idle && now.saturating_sub(last_round) > interruption_ticks {
                records.iter_mut().for_each(Record::interrupted);
            }
            let round_ticks = now.saturating_sub(last_round);
            self.interruptions.round(!was_idle, last_round, round_ticks);
            // Only in its own time: forgiveness for each stall since would never end on a busy machine.
            if round_ticks > stall_ticks && last_round < end {
                give_up += STALL_GRACE * round_ticks;
            }
            last_round = now;
            was_idle = true;
            if let Some(line) = &mut line {
                let over = running.iter().all(|r| r.schedule.is_over());
                // A line that stands still is given up, however much a busy machine is forgiven.
                let stuck = !self.out.is_empty() && now.saturating_sub(last_sent) > endless_ticks;
                if (now > give_up || stuck) && !over {
                    break;
                }
                let sent =
                    self.send_on_line(line, now, start, &mut running, records, &mut tallies, hand);
                if let Some(sent) = sent {
                    was_idle = false;
                    last_sent = sent;
                    last_event = sent;
                }
            } else if choose(&running, now).is_some() {
                if now > give_up {
                    break;
                }
                was_idle = false;
                let sent = self.send(
                    now,
                    start,
                    slack_ticks,
                    &mut running,
                    records,
                    &mut tallies,
                    hand,
                );
                if let Some(sent) = sent {
                    last_sent = sent;
                    last_event = sent;
                }
            } else if H::ACTIVE && self.craft_ahead(now + ahead_ticks, &running, hand) {
                was_idle = false;
            }
            if !H::ACTIVE && now.saturating_sub(last_look) > look_ticks {
                last_look = now;
                tallies[0].arp_answered += self.look_at_first_port();
            }
            let seen = self.receive(start, records, &mut running, &mut tallies, hand);
            if let Some(seen) = seen {
                was_idle = false;
                last_event = seen;
            }
            if running.iter().all(|r| r.schedule.is_over()) {
                let mut streams = tallies.iter().zip(&running).enumerate();
                let all_back = streams.all(|(stream, (tally, running))| {
                    let unique = records.get(stream).and_then(Record::received_unique);
                    let received = unique.unwrap_or(tally.received);
                    received + tally.corrupt + tally.refused >= running.schedule.next()
                });
                let silent = now.saturating_sub(last_event) > settle_ticks;
                let endless = now.saturating_sub(last_sent) > endless_ticks;
                let ended = seen.is_none() && (all_back || silent) || endless;
                if ended && now >= listen_until {
                    break;
                }
            }
            if stop.load(Ordering::Relaxed) || H::ACTIVE && hand.is_stopped() {
                stopped = true;
                break;
            }
        }
        // What was sent before the loop was left early may still come back.
        while running.iter().any(|r| !r.schedule.is_over()) {
            let now = ticks();
            if now.saturating_sub(last_event) > settle_ticks
                || now.saturating_sub(last_sent) > endless_ticks
            {
                break;
            }
            let seen = self.receive(start, records, &mut running, &mut tallies, hand);
            last_event = seen.unwrap_or(last_event);
        }
        // What still waits for the line.
        self.note_sent(self.out.len(), ticks(), start, records);
        self.refuse_left(self.out.len(), records, &mut tallies);
        for (tally, running) in tallies.iter_mut().zip(&running) {
            tally.unsent = running.schedule.left();
            tally.owed = running.schedule.next() + tally.unsent;
            tally.sent = running.schedule.next() - tally.refused;
            tally.seconds = clock.to_ns(last_sent.saturating_sub(start)).max(1.0) / 1e9;
            tally.stopped = stopped;
        }
        // Gives what was made ahead and never sent back to the pool.
        self.crafted.clear();
        tallies
    }

    /// While nothing is due: lets the hand make packets of a stream whose next one is not due before
    /// `until`. True if it did.
    #[inline(always)]
    fn craft_ahead<H: Hand>(&mut self, until: u64, running: &[Running], hand: &mut H) -> bool {
        for (stream, running) in running.iter().enumerate() {
            let due = running.schedule.due_ticks();
            if hand.crafts(stream)
                && self.crafted[stream].len() <= CRAFTED_AHEAD - CRAFTED_WHILE_IDLE
                && due > until
                && due != u64::MAX
            {
                self.craft(stream, CRAFTED_WHILE_IDLE, hand);
                return true;
            }
        }
        false
    }

    /// Lets the hand make up to `n` packets of a stream, as far as the pool has memory.
    fn craft<H: Hand>(&mut self, stream: usize, n: usize, hand: &mut H) {
        let maker = &mut self.traffic.streams_mut()[stream];
        let measured = maker.is_measured() && hand.stamps(stream);
        for _ in 0..n.min(self.pool.available()) {
            let (template, len) = maker.next();
            let Some(mut packet) = self.pool.take(len) else {
                break;
            };
            maker.fill(template, &mut packet);
            self.making.push(packet);
        }
        hand.craft(stream, self.making.packets_mut());
        let made = self.making.len();
        let crafted = &mut self.crafted[stream];
        self.making
            .take_front(made, |packet| crafted.push(packet, measured));
    }

    fn schedules(&self, trial: Trial, start: u64) -> Vec<Running> {
        let rates = self.traffic.rates_pps(trial.rate_pps);
        let streams = self.traffic.streams().iter().zip(rates).enumerate();
        streams
            .map(|(index, (stream, rate_pps))| {
                let pattern = stream.pattern();
                let spacing = match pattern {
                    Pattern::Burst { .. } | Pattern::Trace(_) => 0.0,
                    _ => (CATCH_UP / rate_pps).min(WIDEST_CATCH_UP.as_secs_f64()) * self.clock.hz,
                };
                let seed = u64::from(self.trial) << 8 | index as u64;
                let (duration, hz) = (trial.duration, self.clock.hz);
                Running {
                    schedule: Schedule::new(pattern, rate_pps, duration, start, hz, seed),
                    free_at: 0,
                    spacing: spacing as u64,
                    starved_until: 0,
                    priority: stream.priority(),
                }
            })
            .collect()
    }

    /// Hands over what is due, 32 packets at most; returns the stamp they got, or none without memory for any.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn send<R: Record, H: Hand>(
        &mut self,
        now: u64,
        start: u64,
        slack_ticks: u64,
        running: &mut [Running],
        records: &mut [R],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        while self.out.len() < BURST {
            let Some(stream) = choose(running, now) else {
                break;
            };
            let schedule = &running[stream].schedule;
            let (sequence, due) = (schedule.next(), schedule.due_ticks());
            let Some((packet, pending)) = self.make(stream, sequence, hand) else {
                tallies[stream].starved += running[stream].starve();
                break;
            };
            if let Some(record) = records.get_mut(stream) {
                record.sent(sequence, due - start, now - due);
            }
            running[stream].sent(now, now - due, slack_ticks);
            self.pending[self.out.len()] = pending;
            self.out.push(packet);
        }
        // Without any packet too: a port may give memory back when it is called.
        let made = self.out.len();
        let stamp = self.stamp(H::ACTIVE);
        self.ports[0].tx(&mut self.out);
        self.refuse_left(made, records, tallies);
        (made > 0).then_some(stamp)
    }

    /// Sends as [`Instrument::send`] does, ahead of a line that holds the gaps, with fillers where nothing is due. What
    /// finds no room waits for the line. None if nothing was handed over.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn send_on_line<R: Record, H: Hand>(
        &mut self,
        line: &mut Line,
        now: u64,
        start: u64,
        running: &mut [Running],
        records: &mut [R],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        if !self.out.is_empty() {
            let (stamp, taken) = self.hand_to_line(start, records, H::ACTIVE);
            return (taken > 0).then_some(stamp);
        }
        while self.out.len() < BURST {
            let (packet, pending) = match line.next(running, now) {
                Next::Nothing => break,
                Next::Filler(len) => {
                    let Some(mut packet) = self.pool.take(len as u16) else {
                        break;
                    };
                    packet.bytes_mut().copy_from_slice(line.filler(len));
                    tallies[0].fillers_sent += 1;
                    let pending = Pending {
                        filler: true,
                        ..Pending::default()
                    };
                    (packet, pending)
                }
                Next::Packet { stream, late } => {
                    let schedule = &running[stream].schedule;
                    let (sequence, due) = (schedule.next(), schedule.due_ticks());
                    let Some((packet, pending)) = self.make(stream, sequence, hand) else {
                        tallies[stream].starved += running[stream].starve();
                        break;
                    };
                    running[stream].schedule.advance();
                    (
                        packet,
                        Pending {
                            due,
                            late,
                            ..pending
                        },
                    )
                }
            };
            line.take(packet.len());
            self.pending[self.out.len()] = pending;
            self.out.push(packet);
        }
        if self.out.is_empty() {
            return None;
        }
        let (stamp, _) = self.hand_to_line(start, records, H::ACTIVE);
        Some(stamp)
    }

    /// Hands what is made to the line; the stamp, and how much it took. What it does not take is stamped anew when it
    /// is handed over again: a latency begins when a packet leaves, and what it waited for the line is slip.
    #[inline(always)]
    fn hand_to_line<R: Record>(
        &mut self,
        start: u64,
        records: &mut [R],
        hand_is_active: bool,
    ) -> (u64, usize) {
        let made = self.out.len();
        let stamp = self.stamp(hand_is_active);
        let taken = self.ports[0].tx(&mut self.out);
        self.note_sent(taken, stamp, start, records);
        self.pending.copy_within(taken..made, 0);
        (stamp, taken)
    }

    /// Tells the records of the first packets made for the line, when they leave.
    #[inline(always)]
    fn note_sent<R: Record>(&mut self, count: usize, stamp: u64, start: u64, records: &mut [R]) {
        for pending in self.pending[..count].iter().filter(|p| !p.filler) {
            if let Some(record) = records.get_mut(pending.stream) {
                let slip = pending.late + (stamp - pending.first_stamp);
                record.sent(pending.sequence, pending.due - start, slip);
            }
        }
    }

    /// Counts what is left of `made` packets, the last ones, as refused.
    #[inline(always)]
    fn refuse_left<R: Record>(&mut self, made: usize, records: &mut [R], tallies: &mut [Tally]) {
        let left = self.out.len();
        if left == 0 {
            return;
        }
        for pending in &self.pending[made - left..made] {
            if pending.filler {
                tallies[0].fillers_sent -= 1;
                continue;
            }
            tallies[pending.stream].refused += 1;
            if let Some(record) = records.get_mut(pending.stream) {
                record.refused(pending.sequence);
            }
        }
        self.out.clear();
    }

    /// Stamps what is about to be handed over; returns the stamp.
    #[inline(always)]
    fn stamp(&mut self, hand_is_active: bool) -> u64 {
        let stamp = ticks();
        for (pending, packet) in self.pending.iter_mut().zip(self.out.packets_mut()) {
            if pending.filler {
                continue;
            }
            if pending.first_stamp == 0 {
                pending.first_stamp = stamp;
            }
            let flow = self.trial << STREAM_BITS | pending.stream as u16;
            if hand_is_active && pending.crafted {
                if let Some(layout) = &pending.layout {
                    // Cannot fail: the layout was made for this very packet.
                    let _ = layout.write(packet.bytes_mut(), flow, pending.sequence, stamp);
                }
                continue;
            }
            self.traffic.streams()[pending.stream].stamp(
                pending.template,
                packet,
                pending.varied,
                flow,
                pending.sequence,
                stamp,
            );
        }
        stamp
    }

    /// The next packet of a stream, from its templates or from the hand.
    #[inline(always)]
    fn make<H: Hand>(
        &mut self,
        stream: usize,
        sequence: u64,
        hand: &mut H,
    ) -> Option<(Packet, Pending)> {
        if H::ACTIVE && hand.crafts(stream) {
            if self.crafted[stream].len() == 0 {
                self.craft(stream, BURST, hand);
            }
            let Made { packet, layout } = self.crafted[stream].pop()?;
            let pending = Pending {
                stream,
                sequence,
                crafted: true,
                layout,
                ..Pending::default()
            };
            return Some((packet, pending));
        }
        // A template is not passed over for want of memory.
        if self.pool.available() == 0 {
            return None;
        }
        let maker = &mut self.traffic.streams_mut()[stream];
        let (template, len) = maker.next();
        let mut packet = self.pool.take(len)?;
        let pending = Pending {
            stream,
            template,
            varied: maker.fill(template, &mut packet),
            sequence,
            ..Pending::default()
        };
        Some((packet, pending))
    }

    /// Makes one receive call; returns the time at which packets of the trial were seen, when some came. Foreign ones
    /// are counted and nothing else, or a source that never runs dry would keep the trial from ending.
    #[inline(always)]
    fn receive<R: Record, H: Hand>(
        &mut self,
        start: u64,
        records: &mut [R],
        running: &mut [Running],
        tallies: &mut [Tally],
        hand: &mut H,
    ) -> Option<u64> {
        let ends = (self.ports.len() == 1, true);
        let port = self.ports.last_mut()?;
        if port.rx(&mut self.arrived) == 0 {
            return None;
        }
        let seen = ticks();
        let (mut foreign, mut corrupt, mut fillers) = (0_u64, 0_u64, 0_u64);
        let stamps = self.stamps.as_mut();
        let reading = stamps.map(|stamps| stamps.at(seen, &self.clock));
        for (index, packet) in self.arrived.packets().iter().enumerate() {
            if H::ACTIVE {
                self.arrivals[index] = Arrival::default();
            }
            match classify(packet.bytes(), self.ports_of_flows) {
                Received::Stamped(stamp) => {
                    let stream = usize::from(stamp.flow & ((1 << STREAM_BITS) - 1));
                    if H::ACTIVE {
                        let latency = seen.wrapping_sub(stamp.stamp_ticks) as i64;
                        self.arrivals[index].stamp = Some((
                            stream as u16,
                            stamp.sequence,
                            latency as f64 * self.clock.to_ns(1),
                        ));
                    }
                    let of_trial =
                        stamp.flow >> STREAM_BITS == self.trial & (u16::MAX >> STREAM_BITS);
                    match running.get(stream) {
                        Some(running) if of_trial && stamp.sequence < running.schedule.next() => {
                            tallies[stream].received += 1;
                            if let Some(record) = records.get_mut(stream) {
                                if let Some(reading) = &reading
                                    && let Some(&at_ns) = port.arrival_stamps().get(index)
                                    && at_ns != 0
                                {
                                    let from = stamp.stamp_ticks;
                                    record.stamped(reading.elapsed_ns(&self.clock, from, at_ns));
                                }
                                let latency = seen.wrapping_sub(stamp.stamp_ticks);
                                record.received_frame(
                                    stamp.sequence,
                                    latency,
                                    seen.saturating_sub(start),
                                    packet.bytes(),
                                );
                            }
                        }
                        _ => foreign += 1,
                    }
                }
                Received::Corrupt => {
                    corrupt += 1;
                    tell_damaged(packet.bytes(), self.trial, running, records);
                }
                Received::Foreign => {
                    foreign += 1;
                    if is_filler(packet.bytes()) {
                        fillers += 1;
                    } else if !H::ACTIVE && may_be_about_neighbours(packet.bytes()) {
                        let (stations, pool) = (&self.stations, &self.pool);
                        answer(stations, pool, packet.bytes(), ends, &mut self.answers);
                    }
                }
            }
        }
        let ours = self.arrived.len() as u64 > foreign;
        if !self.answers.is_empty() {
            let asked = self.answers.len() as u64;
            foreign -= asked;
            tallies[0].arp_answered += send_answers(&mut **port, &mut self.answers);
        }
        tallies[0].corrupt += corrupt;
        tallies[0].fillers_received += fillers;
        tallies[0].foreign += foreign - fillers;
        if H::ACTIVE {
            let arrivals = &self.arrivals[..self.arrived.len()];
            let back = hand.arrived(self.arrived.packets_mut(), arrivals);
            if back != 0 {
                for index in 0..self.arrived.len() {
                    if back & 1 << index == 0 {
                        self.arrived.mark_dropped(index);
                    }
                }
                self.arrived.settle(&mut self.slow);
                // What finds no room is lost, as from any host that answers.
                port.tx(&mut self.arrived);
            }
        }
        self.arrived.clear();
        ours.then_some(seen)
    }

    /// Throws away what arrived before the trial, but for questions, which are answered (a bounded amount: some sources never run dry).
    pub(crate) fn discard_arrived(&mut self) {
        for port in 0..self.ports.len() {
            for _ in 0..1024 {
                if self.ports[port].rx(&mut self.arrived) == 0 {
                    break;
                }
                self.answer_arrived(port);
                self.arrived.clear();
            }
        }
    }
}

/// Sends packets for a gateway to its MAC address.
fn point_at(traffic: &mut Traffic, gateway: &Gateway, mac: Mac) {
    for stream in traffic.streams_mut() {
        if stream.gateway() == Some(*gateway) {
            stream.set_dst_mac(mac);
        }
    }
}

/// Makes the answer to a frame that asks for one of the stations, if it does; what finds no memory is asked again.
#[cold]
fn answer(
    stations: &Stations,
    pool: &PoolHandle,
    frame: &[u8],
    (first_port, last_port): (bool, bool),
    answers: &mut Batch,
) {
    let mut reply = [0; LONGEST_BYTES];
    if let Some(len) = stations.answer(frame, first_port, last_port, &mut reply)
        && let Some(mut packet) = pool.take(len as u16)
    {
        packet.bytes_mut().copy_from_slice(&reply[..len]);
        answers.push(packet);
    }
}

/// Sends the answers that there are; returns how many.
fn send_answers(port: &mut dyn Port, answers: &mut Batch) -> u64 {
    if answers.is_empty() {
        return 0;
    }
    let made = answers.len();
    port.tx(answers);
    let left = answers.len();
    answers.clear();
    (made - left) as u64
}

/// Tells the record of the stream that a damaged packet says it is of.
#[cold]
fn tell_damaged<R: Record>(frame: &[u8], trial: u16, running: &[Running], records: &mut [R]) {
    let Some((stamp, _)) = claimed_stamp(frame) else {
        return;
    };
    let stream = usize::from(stamp.flow & ((1 << STREAM_BITS) - 1));
    let of_trial = stamp.flow >> STREAM_BITS == trial & (u16::MAX >> STREAM_BITS);
    if let (Some(running), Some(record)) = (running.get(stream), records.get_mut(stream))
        && of_trial
        && stamp.sequence < running.schedule.next()
    {
        record.corrupt(stamp.sequence);
    }
}

/// Checks that buffers of `room_bytes` hold all frames of `traffic`.
fn check_room(spec: &PortSpec, traffic: &Traffic, room_bytes: usize) -> Result<(), PortError> {
    let longest = traffic.streams().iter().map(|s| s.longest_bytes()).max();
    match longest.filter(|longest| *longest > room_bytes) {
        None => Ok(()),
        Some(longest) => Err(spec.error(format!(
            "frames of {longest} bytes do not fit its buffers of {room_bytes}"
        ))),
    }
}

/// Checks that the link behind a port takes all frames of `traffic`.
fn check_link(spec: &PortSpec, traffic: &Traffic, port: &dyn Port) -> Result<(), PortError> {
    let longest = traffic.streams().iter().filter_map(Stream::longest_frame);
    match longest.filter(|frame| !port.fits(frame)).map(<[u8]>::len).max() {
        None => Ok(()),
        Some(longest) => Err(spec.error(format!(
            "frames of {longest} bytes (without check sequence) are longer than its MTU allows: a smaller size, or ip \
             link set {} mtu N",
            spec.target()
        ))),
    }
}

/// Ports by which packets of any stream are known again.
fn ports_of_flows(traffic: &Traffic) -> PortRange {
    let ports = traffic.streams().iter().map(|s| s.ports());
    let widest = |a: PortRange, b: PortRange| PortRange {
        low: a.low.min(b.low),
        high: a.high.max(b.high),
    };
    ports.reduce(widest).unwrap_or(PortRange {
        low: 0,
        high: u16::MAX,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Summaries;
    use crate::every_packet::{EveryPacket, Outcome};
    use std::collections::VecDeque;
    use taut_port::Link;
    use taut_wire::UdpFlow;

    /// A wire in a loop that does something to every packet.
    struct Loop {
        wire: VecDeque<Packet>,
        capacity: usize,
        /// Whether anything comes out of the port.
        delivers: bool,
        sent: u64,
        harm: fn(u64, &mut Packet) -> Harm,
    }

    enum Harm {
        None,
        Lose,
        Hold,
    }

    impl Port for Loop {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let there = if self.delivers { self.wire.len() } else { 0 };
            let n = there.min(batch.room());
            self.wire.drain(..n).for_each(|p| batch.push(p));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len().min(self.capacity - self.wire.len());
            batch.take_front(n, |mut packet| {
                match (self.harm)(self.sent, &mut packet) {
                    Harm::None => self.wire.push_back(packet),
                    Harm::Hold => self.wire.push_front(packet),
                    Harm::Lose => {}
                }
                self.sent += 1;
            });
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    fn instrument(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> Instrument {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        instrument_of(stream.into(), capacity, harm)
    }

    fn instrument_of(
        traffic: Traffic,
        capacity: usize,
        harm: fn(u64, &mut Packet) -> Harm,
    ) -> Instrument {
        let wire = Loop {
            wire: VecDeque::new(),
            capacity,
            delivers: true,
            sent: 0,
            harm,
        };
        instrument_on(vec![Box::new(wire)], traffic)
    }

    fn instrument_on(ports: Vec<Box<dyn Port>>, traffic: Traffic) -> Instrument {
        let clock = Clock::calibrate(Duration::from_millis(5));
        Instrument {
            specs: vec![PortSpec::parse("null:").unwrap()],
            ports,
            pool: PoolHandle::new(256, false).unwrap(),
            clock,
            ports_of_flows: ports_of_flows(&traffic),
            stations: Stations::of(&traffic),
            pacing: Pacing::Software,
            gateways: Vec::new(),
            answers: Batch::new(),
            traffic,
            trial: 0,
            out: Batch::new(),
            pending: [Pending::default(); BURST],
            arrived: Batch::new(),
            crafted: Vec::new(),
            arrivals: [Arrival::default(); BATCH_CAPACITY],
            making: Batch::new(),
            slow: Batch::new(),
            stamps: None,
            stamp_clock: None,
            interruptions: LoopInterruptions::new(&clock),
        }
    }

    const TRIAL: Trial = Trial {
        rate_pps: 100_000.0,
        duration: Duration::from_millis(20),
    };

    fn run(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> (Tally, EveryPacket) {
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument(capacity, harm).run(TRIAL, &mut record, &AtomicBool::new(false));
        (tally, record)
    }

    #[test]
    fn every_packet_of_a_good_wire_comes_back() {
        let (tally, record) = run(256, |_, _| Harm::None);
        assert_eq!(tally.owed, 2_000);
        assert_eq!(tally.received, tally.sent);
        assert_eq!(tally.sent + tally.unsent, tally.owed);
        assert_eq!((tally.refused, tally.corrupt, tally.foreign), (0, 0, 0));
        assert!(
            record
                .packets()
                .all(|(_, outcome)| matches!(outcome, Outcome::Received { .. }))
        );
    }

    #[test]
    fn loss_and_damage_are_told_apart_packet_by_packet() {
        let (tally, record) = run(256, |n, packet| match n {
            7 => Harm::Lose,
            9 => {
                packet.bytes_mut()[50] ^= 1;
                Harm::None
            }
            11 => {
                packet.bytes_mut()[12] = 0x99;
                Harm::None
            }
            _ => Harm::None,
        });
        assert_eq!(tally.sent - tally.received, 3);
        assert_eq!((tally.corrupt, tally.foreign), (1, 1));
        let lost: Vec<usize> = record
            .packets()
            .enumerate()
            .filter(|(_, (_, f))| *f == Outcome::Lost)
            .map(|(i, _)| i)
            .collect();
        assert_eq!(lost, [7, 9, 11]);
    }

    #[test]
    fn packets_that_find_a_full_ring_are_refused_not_lost() {
        // Nothing ever comes back, so the wire fills up.
        let ports = [10, 0].map(|capacity| -> Box<dyn Port> {
            Box::new(Loop {
                wire: VecDeque::new(),
                capacity,
                delivers: false,
                sent: 0,
                harm: |_, _| Harm::None,
            })
        });
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(ports.into(), stream.into());
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (10, 0));
        assert_eq!(tally.refused + tally.unsent, tally.owed - 10);
        let refused = record
            .packets()
            .filter(|(_, f)| *f == Outcome::Refused)
            .count();
        assert_eq!(refused as u64, tally.refused);
    }

    #[test]
    fn a_rate_beyond_the_generator_leaves_packets_unsent() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        let mut record = Summaries::new(instrument.clock());
        let trial = Trial {
            rate_pps: 1e10,
            duration: Duration::from_micros(500),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert!(tally.generator_behind());
        assert_eq!(tally.sent, tally.received);
        assert_eq!(record.sequence.finish(tally.sent).lost, 0);
    }

    #[test]
    fn stragglers_of_the_last_trial_are_foreign_to_the_next() {
        let mut instrument = instrument(256, |n, _| if n == 0 { Harm::Hold } else { Harm::None });
        let stream = &mut instrument.traffic.streams_mut()[0];
        let (template, len) = stream.next();
        let mut packet = instrument.pool.take(len).unwrap();
        let varied = stream.fill(template, &mut packet);
        stream.stamp(template, &mut packet, varied, 77 << STREAM_BITS, 0, ticks());
        let mut arrived = Batch::new();
        arrived.push(packet);
        instrument.ports[0].tx(&mut arrived);
        instrument.trial = 78;
        let mut running = instrument.schedules(TRIAL, 0);
        running[0].schedule.advance();
        let mut records = [EveryPacket::new(TRIAL.packets() as usize)];
        let mut tallies = [Tally::default()];
        instrument.receive(0, &mut records, &mut running, &mut tallies, &mut NoHand);
        let [tally] = tallies;
        assert_eq!((tally.foreign, tally.received), (1, 0));
    }

    #[test]
    fn a_device_that_never_stops_sending_does_not_keep_a_trial_from_ending() {
        // The source delivers frames of the pool, some of which carry stamps of this very trial.
        let specs = ["null:", "null:source=32"].map(|s| PortSpec::parse(s).unwrap());
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
        let mut record = Summaries::new(&clock);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert!(tally.sent > 0 && tally.received + tally.foreign > tally.sent);
    }

    #[test]
    fn fillers_hold_the_gaps_and_are_dropped_where_they_arrive() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        instrument.set_pacing(Pacing::Fill {
            line_bits_per_s: 100e6,
        });
        let mut record = EveryPacket::new(200);
        let trial = Trial {
            rate_pps: 10_000.0,
            duration: Duration::from_millis(20),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.owed, tally.received, tally.foreign), (200, 200, 0));
        assert_eq!(tally.fillers_received, tally.fillers_sent);
        // 1250 bytes from packet to packet, if the machine lets the loop run: two fillers, shorter and more of
        // them after it was late, and never more than there is room for frames of 84 bytes on the line.
        assert!((1..=200 * 14).contains(&tally.fillers_sent), "{tally:?}");
    }

    #[test]
    fn a_line_that_takes_no_more_is_waited_for_and_what_never_left_is_refused() {
        let ports = [40, 0].map(|capacity| -> Box<dyn Port> {
            Box::new(Loop {
                wire: VecDeque::new(),
                capacity,
                delivers: false,
                sent: 0,
                harm: |_, _| Harm::None,
            })
        });
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(ports.into(), stream.into());
        instrument.set_pacing(Pacing::Nic);
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!((tally.sent, tally.received), (40, 0));
        assert_eq!(tally.sent + tally.refused + tally.unsent, tally.owed);
        assert!(tally.unsent > 0 && tally.refused < 32, "{tally:?}");
    }

    /// A line that takes nothing for a while, and then shows what it took.
    struct Shut {
        ports_of_flows: PortRange,
        open_at: u64,
        wire: VecDeque<Packet>,
        last_refusal: u64,
        /// Least time from a refusal of the line to the stamps of what it took later, ticks.
        oldest_stamp: i64,
    }

    impl Port for Shut {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let n = self.wire.len().min(batch.room());
            self.wire.drain(..n).for_each(|p| batch.push(p));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            if ticks() < self.open_at {
                if !batch.is_empty() {
                    self.last_refusal = ticks();
                }
                return 0;
            }
            let n = batch.len();
            let (last_refusal, ports) = (self.last_refusal, self.ports_of_flows);
            let wire = &mut self.wire;
            let mut oldest = self.oldest_stamp;
            batch.take_front(n, |packet| {
                let Received::Stamped(stamp) = classify(packet.bytes(), ports) else {
                    panic!("a packet without a stamp");
                };
                oldest = oldest.min(stamp.stamp_ticks.wrapping_sub(last_refusal) as i64);
                wire.push_back(packet);
            });
            self.oldest_stamp = oldest;
            assert!(
                oldest >= 0,
                "a stamp from before the line refused its packet: {oldest}"
            );
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn what_waited_for_the_line_is_stamped_when_it_leaves_and_its_wait_is_slip() {
        let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
        let mut instrument = instrument_on(Vec::new(), stream.into());
        let shut_ticks = instrument.clock().to_ticks(2e6) as u64;
        instrument.ports.push(Box::new(Shut {
            ports_of_flows: instrument.ports_of_flows,
            open_at: ticks() + shut_ticks,
            wire: VecDeque::new(),
            last_refusal: 0,
            oldest_stamp: i64::MAX,
        }));
        instrument.set_pacing(Pacing::Nic);
        let opened = ticks();
        let mut record = EveryPacket::new(TRIAL.packets() as usize);
        let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
        assert_eq!(
            (tally.received, tally.refused),
            (tally.sent, 0),
            "{tally:?}"
        );
        // The first packet was due within the first 100 us of 2 ms in which the line was shut.
        let (slip, outcome) = record.packets().next().unwrap();
        let Outcome::Received { latency_ticks } = outcome else {
            panic!("{outcome:?}");
        };
        let since = ticks() - opened;
        assert!(u64::from(slip) + u64::from(latency_ticks) >= shut_ticks / 2);
        assert!(u64::from(slip) >= shut_ticks / 2, "{slip} of {since}");
    }

    #[test]
    fn without_memory_packets_are_the_generators_fault_and_neither_lost_nor_refused() {
        // The device keeps all that it gets, and has room for more than there are packets.
        for pacing in [Pacing::Software, Pacing::Nic] {
            let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
            let ports = [10_000, 0].map(|capacity| -> Box<dyn Port> {
                Box::new(Loop {
                    wire: VecDeque::new(),
                    capacity,
                    delivers: false,
                    sent: 0,
                    harm: |_, _| Harm::None,
                })
            });
            let mut instrument = instrument_on(ports.into(), stream.into());
            instrument.set_pacing(pacing);
            let mut record = EveryPacket::new(TRIAL.packets() as usize);
            let tally = instrument.run(TRIAL, &mut record, &AtomicBool::new(false));
            assert_eq!((tally.sent, tally.refused), (256, 0), "{tally:?}");
            assert_eq!((tally.unsent, tally.owed), (2_000 - 256, 2_000));
            // Of those that were never sent one was tried, again and again.
            assert!(tally.generator_behind() && tally.starved == 1);
        }
    }

    #[test]
    fn streams_keep_their_rates_and_records_apart() {
        let traffic = Traffic::parse(
            "[[stream]]\nrate = \"20k\"\n[[stream]]\nsize = \"imix\"\npattern = \"poisson\"\n\
             [[stream]]\nrate = \"5k\"\nprotocol = \"tcp\"\n",
            "x.toml",
        )
        .unwrap();
        let mut instrument = instrument_of(traffic, 256, |_, _| Harm::None);
        let mut records = [EveryPacket::new(400), EveryPacket::new(10_000)];
        let stop = AtomicBool::new(false);
        let tallies = instrument.run_streams(TRIAL, &mut records, &stop);
        assert_eq!((tallies[0].owed, tallies[2].owed), (400, 100));
        assert!((1_500..2_500).contains(&tallies[1].owed));
        assert_eq!(tallies[0].received, tallies[0].sent);
        assert_eq!(tallies[1].received, tallies[1].sent);
        // TCP carries no stamp.
        assert_eq!(tallies[0].foreign, tallies[2].sent);
        assert_eq!(records[0].packets().len() as u64, tallies[0].sent);
        assert_eq!(records[1].packets().len() as u64, tallies[1].sent);
    }

    #[test]
    fn what_a_stall_held_up_follows_spaced_out() {
        let pattern = Pattern::Constant;
        let schedule = Schedule::new(&pattern, 1e6, Duration::from_millis(1), 0, 1e9, 0);
        let mut running = Running {
            schedule,
            free_at: 0,
            spacing: 750,
            starved_until: 0,
            priority: 0,
        };
        // 100 packets are due at once: they leave in pairs at first, then 750 ns apart, until none is late.
        let mut sent = Vec::new();
        let mut now = 100_000;
        while running.schedule.next() < 600 {
            while running.may_send(now) {
                sent.push(now);
                let late = now - running.schedule.due_ticks();
                running.sent(now, late, 2_000);
            }
            now += 50;
        }
        let most_together = sent.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
        assert!(most_together.unwrap() <= 4, "{most_together:?}");
        assert!(sent[99] > 100_000 + 95 * 750);
        assert_eq!(*sent.last().unwrap(), 599_000);
    }

    #[test]
    fn the_higher_priority_goes_first_and_then_the_longest_due() {
        let running = |rate_pps: f64, skip: u64, priority| {
            let duration = Duration::from_secs(1);
            let mut schedule = Schedule::new(&Pattern::Constant, rate_pps, duration, 0, 1e9, 0);
            (0..skip).for_each(|_| schedule.advance());
            Running {
                schedule,
                free_at: 0,
                spacing: 0,
                starved_until: 0,
                priority,
            }
        };
        let streams = [running(1e6, 5, 0), running(1e6, 3, 0), running(1e6, 9, 1)];
        assert_eq!(choose(&streams, 2_999), None);
        assert_eq!(choose(&streams, 8_000), Some(1));
        assert_eq!(choose(&streams, 9_000), Some(2));
    }

    #[test]
    fn a_stop_request_ends_the_trial() {
        let mut instrument = instrument(256, |_, _| Harm::None);
        let mut record = Summaries::new(instrument.clock());
        let trial = Trial {
            rate_pps: 1_000.0,
            duration: Duration::from_secs(3600),
        };
        let tally = instrument.run(trial, &mut record, &AtomicBool::new(true));
        assert!(tally.stopped && tally.unsent > 0);
    }
}
