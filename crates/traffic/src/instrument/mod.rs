//! The instrument: one loop that sends when packets are due and receives whenever they come.
//!
//! Stamps: the send stamp is read once per burst, last before the frames are stamped and handed over;
//! the receive stamp first after packets were seen. Latency can also be had from the time a packet was
//! *due*, so that a late generator (or a device that pushes back) cannot hide waiting time.

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
use taut_port::{
    BATCH_CAPACITY, Batch, Part, PoolHandle, Port, PortCounters, PortError, PortSpec, Resources,
};
use taut_sys::{Clock, StampClock};
use taut_wire::PortRange;

/// Packets handed over together at most when several are due at once.
const BURST: usize = 32;

/// Stamps carry a trial's number above the stream's.
const STREAM_BITS: u16 = 4;

/// Opens one port.
pub type OpenPort<'a> = dyn FnMut() -> Result<Box<dyn Port>, PortError> + 'a;

/// A generator and receiver over one or two ports, on the calling thread.
pub struct Instrument {
    specs: Vec<PortSpec>,
    /// Gone before the ports are whose memory it keeps.
    return_line: Option<ReturnLine>,
    pub(crate) ports: Vec<Box<dyn Port>>,
    pub(crate) pool: PoolHandle,
    pub(crate) clock: Clock,
    pub(crate) traffic: Traffic,
    ports_of_flows: PortRange,
    stations: Stations,
    pacing: Pacing,
    /// MAC addresses that were found.
    gateways: Gateways,
    /// Answers on their way to a port; empty between two calls.
    answers: Batch,
    /// Number of the trial, carried in the stamps, so that stragglers of the last one are known. The first one is drawn, so that
    /// another generator on the same wire has others.
    trial: u16,
    /// Time at which the trial began: no stamp of its packets is older.
    begun_ticks: u64,
    /// Trials so far.
    trials: u64,
    /// Seed of the times at which packets of random patterns are due.
    seed: u64,
    /// Longest latency of the trial: what is under way may take as long, so nothing is lost before.
    longest_ticks: u64,
    /// Longest latency of the trials before: how far the path is, as long as nothing has come back in this one.
    farthest_ticks: u64,
    pub(crate) out: Batch,
    /// Facts about the packets in `out`, and what they must get when they are stamped.
    pending: [Pending; BURST],
    handed: Handed,
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
        Self::opened(specs, traffic.into(), clock, |index, resources| {
            around(index, &mut || specs[index].open(resources))
        })
    }

    /// Opens an instrument for one of several workers that send together, on its part of each of the ports `specs`
    /// ([`PortSpec::parts`]). A gateway that one of them has found is known to all that were given the same `gateways`,
    /// as the answer may come to any part.
    ///
    /// # Errors
    /// What the ports say.
    pub fn open_parts(
        specs: &[PortSpec],
        parts: Vec<Part>,
        traffic: impl Into<Traffic>,
        clock: Clock,
        gateways: Gateways,
    ) -> Result<Self, TrialError> {
        let mut parts = parts.into_iter();
        let instrument = Self::opened(specs, traffic.into(), clock, |index, resources| {
            let missing = || specs[index].error("no part of it is left for this worker");
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

    /// An instrument on ports that are open.
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
            slow: Batch::new(),
            stamps: stamp_clock.and_then(Related::to),
            stamp_clock,
            interruptions: LoopInterruptions::new(&clock),
        }
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

    /// The seed of the times at which packets of random patterns are due: drawn, unless it was set.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the seed: instruments with equal seeds and equal traffic send at equal times in their first trials from then on,
    /// their second ones, and so on.
    pub fn set_seed(&mut self, seed: u64) {
        (self.seed, self.trials) = (seed, 0);
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
        for (gateway, mac) in self.gateways.all() {
            neighbours::point_at(&mut self.traffic, &gateway, mac);
        }
        Ok(())
    }

    /// Takes no more packets than so many a second from the receiving port from now on, and gives the memory of each back only when
    /// `keep` more have come: of a ring of `n` slots the device sees `n - keep`. None: as many as come.
    pub fn set_return_line(&mut self, line: Option<(f64, usize)>) {
        self.return_line = line.map(|(pps, keep)| ReturnLine::new(pps, keep, &self.clock));
        self.arrived.set_limit(BATCH_CAPACITY);
    }

    /// Makes the schedules of a trial that begins at `start`, in ticks, one for each stream.
    fn schedules(&self, trial: Trial, start: u64) -> Vec<Running> {
        let seeds = (self.seed, self.trials);
        running::schedules(&self.traffic, trial, &self.clock, seeds, start)
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
}

/// Draws a seed for a run that states it: of few enough digits for readers of JSON that keep numbers as doubles.
pub fn drawn_seed() -> u64 {
    u64::from(fastrand::u32(..))
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
