//! The load generator: one loop that sends packets when they are due and polls for received packets all the time.
//!
//! The send timestamp is read once per burst, immediately before the frames are stamped and sent. The receive timestamp
//! is read immediately after packets are received. Latency is also available from the intended send time, so that a
//! late generator (or backpressure of the device) cannot hide waiting time.

mod arrival_clock;
mod handover;
mod neighbours;
mod receive;
mod return_line;
mod run;
mod running;
mod send;
mod trial;
#[cfg(test)]
mod wire;

pub use neighbours::Gateways;
pub(crate) use running::{Running, choose};
pub use trial::{Tally, Trial, TrialError};

use crate::Traffic;
use crate::hand::{Arrival, Crafted};
use crate::interruptions::LoopInterruptions;
use crate::line::Pacing;
use crate::stations::Stations;
use crate::stream::Stream;
use arrival_clock::Related;
use handover::{Handed, Pending};
use return_line::ReturnLine;
use std::time::Duration;
use taut_port::{
    BATCH_CAPACITY, Batch, Part, PoolHandle, Port, PortCounters, PortError, PortSpec, Resources,
};
use taut_sys::{Clock, StampClock};
use taut_wire::PortRange;

/// Largest number of due packets that are sent together.
const BURST: usize = 32;

/// Number of low bits in the flow field of a packet's stamp that store the index of the stream; the higher bits store
/// the number of the trial.
const STREAM_BITS: u16 = 4;

/// A function that opens one port.
pub type OpenPort<'a> = dyn FnMut() -> Result<Box<dyn Port>, PortError> + 'a;

/// A load generator on one or two ports, which runs on the calling thread.
pub struct Instrument {
    specs: Vec<PortSpec>,
    /// The return line, if there is one. This field precedes `ports`, so that the line is dropped before the ports: it
    /// retains buffers of their memory.
    return_line: Option<ReturnLine>,
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) pool: PoolHandle,
    pub(crate) clock: Clock,
    pub(crate) traffic: Traffic,
    ports_of_flows: PortRange,
    stations: Stations,
    pacing: Pacing,
    /// MAC addresses of gateways.
    gateways: Gateways,
    /// Replies that wait for sending; empty between two calls.
    answers: Batch,
    /// Number of the trial that is written into packets, by which late packets of the previous trial are identified.
    /// The first number is random, so that another generator on the same link uses other numbers.
    trial: u16,
    /// Start of the trial, ticks: no packet of the trial has an earlier timestamp.
    begun_ticks: u64,
    /// Number of trials so far.
    trials: u64,
    /// Seed of the intended send times of random patterns.
    seed: u64,
    /// Longest latency measured in the trial, ticks. Packets in flight may take as long, so none counts as lost before
    /// that time.
    longest_ticks: u64,
    /// Longest latency measured in earlier trials, ticks. It is the estimate of the path's latency until the first
    /// packet of this trial comes back.
    farthest_ticks: u64,
    pub(crate) out: Batch,
    /// For each packet in `out`, the data that is needed to write its stamp.
    pending: [Pending; BURST],
    handed: Handed,
    pub(crate) arrived: Batch,
    /// Packets that a script made in advance, one entry per stream.
    crafted: Vec<Crafted>,
    /// Stamps of the packets in `arrived`, for the script.
    arrivals: [Arrival; BATCH_CAPACITY],
    /// Batch in which packets are being made; empty between two calls.
    making: Batch,
    /// The first of the receiving port's own timestamps.
    first_port_stamp: Option<u64>,
    /// Packets that a script forwarded or returned in this trial, and for which a port had no space.
    replies_lost: u64,
    /// True if packets of earlier trials have already been discarded before the next trial.
    is_ready: bool,
    /// Time for which trials receive after they have sent everything; none if they end when all packets are back.
    listen: Option<Duration>,
    /// Relation of the clocks of arrival and send timestamps, if the receiving port timestamps arrivals with a clock
    /// that this process can read.
    stamps: Option<Related>,
    stamp_clock: Option<StampClock>,
    interruptions: LoopInterruptions,
}

impl Instrument {
    /// Opens the ports `specs`: the first port sends, the last port receives; they may be the same port.
    ///
    /// # Errors
    /// A port cannot be opened.
    pub fn open(
        specs: &[PortSpec],
        traffic: impl Into<Traffic>,
        clock: Clock,
    ) -> Result<Self, TrialError> {
        Self::open_with(specs, traffic, clock, |_, open| {
            open().map_err(TrialError::from)
        })
    }

    /// Opens a load generator like [`Instrument::open`], but opens each port inside a call of `around`. `around` gets
    /// the index of the port, and may enter the port's network namespace.
    ///
    /// # Errors
    /// `around` or a port fails.
    pub fn open_with<E: From<PortError>>(
        specs: &[PortSpec],
        traffic: impl Into<Traffic>,
        clock: Clock,
        around: impl Fn(usize, &mut OpenPort<'_>) -> Result<Box<dyn Port>, E>,
    ) -> Result<Self, E> {
        Self::opened(specs, traffic.into(), clock, |index, resources| {
            around(index, &mut || specs[index].open(resources))
        })
    }

    /// Opens the load generator of one of several workers that send together, on this worker's part of each of the
    /// ports `specs` ([`PortSpec::parts`]). All workers share MAC addresses through `gateways`, as a gateway's reply
    /// may arrive at the part of any worker.
    ///
    /// # Errors
    /// A port cannot be opened.
    pub fn open_parts(
        specs: &[PortSpec],
        parts: Vec<Part>,
        traffic: impl Into<Traffic>,
        clock: Clock,
        gateways: Gateways,
    ) -> Result<Self, TrialError> {
        let mut parts = parts.into_iter();
        let instrument = Self::opened(specs, traffic.into(), clock, |index, resources| {
            let missing =
                || specs[index].error("its packets cannot be split over this many workers");
            parts.next().ok_or_else(missing)?(resources)
        })?;
        Ok(Self {
            gateways,
            ..instrument
        })
    }

    fn opened<E: From<PortError>>(
        specs: &[PortSpec],
        traffic: Traffic,
        clock: Clock,
        mut open: impl FnMut(usize, &mut Resources) -> Result<Box<dyn Port>, E>,
    ) -> Result<Self, E> {
        let mut resources = Resources::for_ports(specs)?;
        check_room(&specs[0], &traffic, resources.pool().room())?;
        let mut ports = Vec::new();
        for index in 0..specs.len() {
            ports.push(open(index, &mut resources)?);
        }
        check_link(&specs[0], &traffic, &*ports[0])?;
        Ok(Self::on(
            specs.to_vec(),
            ports,
            resources.pool(),
            traffic,
            clock,
        ))
    }

    /// Makes a load generator on open ports.
    fn on(
        specs: Vec<PortSpec>,
        ports: Vec<Box<dyn Port>>,
        pool: PoolHandle,
        traffic: Traffic,
        clock: Clock,
    ) -> Self {
        let stamp_clock = ports.last().and_then(|port| port.stamp_clock());
        Self {
            specs,
            return_line: None,
            ports,
            pool,
            clock,
            ports_of_flows: ports_of_flows(&traffic),
            stations: Stations::of(&traffic),
            pacing: Pacing::Software,
            gateways: Gateways::default(),
            answers: Batch::new(),
            traffic,
            trial: fastrand::u16(..),
            begun_ticks: 0,
            trials: 0,
            seed: drawn_seed(),
            longest_ticks: 0,
            farthest_ticks: 0,
            out: Batch::new(),
            pending: [Pending::default(); BURST],
            handed: Handed::default(),
            arrived: Batch::new(),
            crafted: Vec::new(),
            arrivals: [Arrival::default(); BATCH_CAPACITY],
            making: Batch::new(),
            first_port_stamp: None,
            replies_lost: 0,
            is_ready: false,
            listen: None,
            stamps: stamp_clock.and_then(Related::to),
            stamp_clock,
            interruptions: LoopInterruptions::new(&clock),
        }
    }

    /// Returns the clock of the receiving port's own timestamps; none if they were not requested.
    pub fn stamp_clock(&self) -> Option<StampClock> {
        self.stamp_clock
    }

    /// Returns the largest error of arrival timestamps relative to send timestamps, ns. The error has two causes: the
    /// two clocks are read one after the other, and timestamps have a limited resolution. Returns none if the receiving
    /// port has no timestamps, or if this process cannot read their clock.
    pub fn stamp_error_ns(&self) -> Option<f64> {
        let related = self.stamps.as_ref()?;
        Some(related.error_ns)
    }

    /// Returns the traffic that the load generator sends.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the seed of the intended send times of random patterns. It is random, unless it was set.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the seed of the intended send times of random patterns. Load generators with equal seeds and equal traffic
    /// send at equal times in their first trials after this call, in their second trials, and so on.
    pub fn set_seed(&mut self, seed: u64) {
        (self.seed, self.trials) = (seed, 0);
    }

    /// Sets the method of pacing.
    pub fn set_pacing(&mut self, pacing: Pacing) {
        self.pacing = pacing;
    }

    /// Discards earlier packets for the next trial, which will get all that arrive from now on.
    pub fn make_ready(&mut self) {
        self.discard_arrived();
        self.is_ready = true;
    }

    /// Sets how long trials receive after they have sent everything, for packets that other load generators receive
    /// (the two directions of a link). None: until all packets are back.
    pub fn set_listen(&mut self, listen: Option<Duration>) {
        self.listen = listen;
    }

    /// Returns the number of packets that a script forwarded or returned in the last trial, and for which a port had no
    /// space.
    pub fn replies_lost(&self) -> u64 {
        self.replies_lost
    }

    /// Replaces the traffic; the ports stay open.
    ///
    /// # Errors
    /// Frames of the traffic do not fit into the buffers.
    pub fn set_traffic(&mut self, traffic: Traffic) -> Result<(), TrialError> {
        check_room(&self.specs[0], &traffic, self.pool.room())?;
        check_link(&self.specs[0], &traffic, &*self.ports[0])?;
        self.ports_of_flows = ports_of_flows(&traffic);
        self.stations = Stations::of(&traffic);
        self.traffic = traffic;
        for (gateway, mac) in self.gateways.all() {
            neighbours::point_at(&mut self.traffic, &gateway, mac);
        }
        Ok(())
    }

    /// Limits the rate at which packets are taken from the receiving port, and delays the release of each buffer until
    /// `keep` more packets have arrived. `line` contains the rate, packets per second, and `keep`; none removes the
    /// limit. The device then sees a ring of `n` slots as one of `n - keep`.
    pub fn set_return_line(&mut self, line: Option<(f64, usize)>) {
        self.return_line = line.map(|(pps, keep)| ReturnLine::new(pps, keep, &self.clock));
        self.arrived.set_limit(BATCH_CAPACITY);
    }

    /// Makes the schedules of a trial that begins at `start`, in ticks, one for each stream.
    fn schedules(&self, trial: Trial, start: u64) -> Vec<Running> {
        let seeds = (self.seed, self.trials);
        running::schedules(&self.traffic, trial, &self.clock, seeds, start)
    }

    /// Returns the counters of each port since it was opened.
    pub fn counters(&mut self) -> Vec<PortCounters> {
        self.ports.iter_mut().map(|p| p.counters()).collect()
    }

    /// Returns the interruptions of the last trial.
    pub fn interruptions(&self) -> &LoopInterruptions {
        &self.interruptions
    }

    /// Returns the clock of the timestamps.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Returns a random seed that is short enough for JSON parsers that store numbers as doubles.
pub fn drawn_seed() -> u64 {
    u64::from(fastrand::u32(..))
}

/// Checks that buffers of `room_bytes` are large enough for all frames of `traffic`.
fn check_room(spec: &PortSpec, traffic: &Traffic, room_bytes: usize) -> Result<(), PortError> {
    let longest = traffic.streams().iter().map(|s| s.longest_bytes()).max();
    match longest.filter(|longest| *longest > room_bytes) {
        None => Ok(()),
        Some(longest) => Err(spec.error(format!(
            "frames of {longest} bytes do not fit its buffers of {room_bytes}"
        ))),
    }
}

/// Checks that the link of a port carries all frames of `traffic`.
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

/// Returns the range of ports by which packets of any stream are identified.
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
