//! The resource model: the packet rate of a machine, the resource that limits it, and the unused share of the others.
//! (Gallenmüller 2021, section 4, eqs. 4.3 to 4.6 and 5.1 to 5.5; Rizzo 2012 for costs per byte and per batch.)
//!
//! `T_max = min(Ethernet, PCIe, memory, interconnect, processor)`, where the processor carries
//! `n_max = cores * (f - c_other) / c` packets a second. `f` is a core's clock rate, `c_other` its cycles per second for
//! other work, and `c = c_IO + c_task + c_byte * bytes + c_batch / batch` the cycles per packet. At a lower rate `n` the
//! processor spends the remaining cycles on polling: `c_busy = cores * (f - c_other) / n - c` per packet.
//!
//! The model omits that cores slow each other down through shared caches and memory; use costs measured with all cores
//! busy. It also omits the headers of PCI Express, and time lost to interruptions, which `c_other` can include.

pub mod bandwidth;

use crate::estimate::{Errors, Estimate, Prediction, WrongValue, not_negative, positive};
use crate::model_file::{Factor, Shape};
use bandwidth::ethernet_pps;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of times that a packet crosses the memory bus, if packets go through memory: a write on receipt and a read on
/// sending.
const MEMORY_CROSSINGS: f64 = 2.0;

/// A resource that packets use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The links through which packets leave.
    Ethernet,
    /// The packet rate limit of the NIC.
    Card,
    /// The bus between NIC and processor, in one direction.
    Pcie,
    /// Memory, all channels together. NICs that write to the last-level cache (DDIO) do not use it.
    Memory,
    /// The links between CPU sockets.
    Interconnect,
    /// The cores that forward.
    Processor,
}

/// The known properties of a machine. An unknown resource limits nothing and is reported as unknown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Number of cores that forward.
    pub cores: u32,
    /// Clock of the cores, Hz.
    pub clock_hz: f64,
    /// Cycles per second that each core spends on work other than packets: c_other.
    #[serde(default)]
    pub other_cycles_per_s: f64,
    /// Total rate of the links through which packets leave, bit/s.
    #[serde(default)]
    pub ethernet_bit_s: Option<f64>,
    /// Packet rate limit of the NIC, packets per second, independent of packet size.
    #[serde(default)]
    pub card_pps: Option<f64>,
    /// Data rate of the bus between NIC and processor in one direction, bit/s.
    #[serde(default)]
    pub pcie_bit_s: Option<f64>,
    /// Data rate of the memory, bit/s.
    #[serde(default)]
    pub memory_bit_s: Option<f64>,
    /// The data rate between CPU sockets, bit/s.
    #[serde(default)]
    pub interconnect_bit_s: Option<f64>,
}

/// Cycles that packets cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Receiving and sending, cycles per packet: c_IO.
    pub io_cycles: Estimate,
    /// Processing in the function, cycles per packet: c_task.
    pub task_cycles: Estimate,
    /// Cycles per byte of the frame.
    pub byte_cycles: Estimate,
    /// Cycles per batch, shared by its packets.
    pub batch_cycles: Estimate,
}

impl Costs {
    /// Returns costs that depend on neither packet size nor batch.
    pub fn per_packet(io_cycles: Estimate, task_cycles: Estimate) -> Self {
        Self {
            io_cycles,
            task_cycles,
            byte_cycles: Estimate::ZERO,
            batch_cycles: Estimate::ZERO,
        }
    }

    /// Returns the cycles of one packet: c_IO, c_task, the cost of its bytes, and its share of the batch's cost.
    pub fn cycles(&self, packets: &Packets) -> Estimate {
        self.io_cycles
            .plus(self.task_cycles)
            .plus(self.byte_cycles.times(packets.frame_bytes))
            .plus(self.batch_cycles.times(1.0 / packets.batch))
    }
}

/// Frame length and batch size of packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packets {
    frame_bytes: f64,
    batch: f64,
}

impl Packets {
    /// Returns packets with this (mean) frame length, checksum included, in batches of `batch`.
    ///
    /// # Errors
    /// [`WrongValue`] unless the length is above 0 and the batch at least 1.
    pub fn new(frame_bytes: f64, batch: f64) -> Result<Self, WrongValue> {
        positive("a frame (bytes)", frame_bytes)?;
        not_negative("a batch (packets) less one", batch - 1.0)?;
        Ok(Self { frame_bytes, batch })
    }

    /// Returns the length of a frame, bytes.
    pub fn frame_bytes(&self) -> f64 {
        self.frame_bytes
    }
}

/// The limit set by one resource.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Limit {
    /// The resource that sets this limit.
    pub resource: Resource,
    /// Packet rate that the resource carries, packets per second. `None` if the resource is unknown.
    pub rate_pps: Option<Estimate>,
    /// Unused share of the resource at the machine's highest rate: 0 for the binding resource.
    pub headroom: Option<f64>,
    /// True if the resource could be the binding one, considering the intervals of all limits.
    pub may_bind: bool,
}

impl Limit {
    /// Returns true if this limit depends on the packet costs, as only that of the processor does, and may be the
    /// binding limit.
    fn is_of_costs(&self) -> bool {
        self.resource == Resource::Processor && self.may_bind
    }
}

/// The highest rate of a machine, and the limits that its resources set.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Carried {
    /// The highest rate, packets per second.
    pub highest: Prediction,
    /// The resource that limits the rate.
    pub binding: Resource,
    /// All resources, in the order of [`Resource`].
    pub limits: Vec<Limit>,
    /// Cycles that a packet costs.
    pub cycles: Estimate,
}

impl Machine {
    /// Returns the highest rate of the machine for the given packets. `errors` are the known errors of the costs; they
    /// become errors of the prediction if the processor may be the binding resource.
    ///
    /// ```
    /// use taut_model::estimate::Estimate;
    /// use taut_model::resource::{Costs, Machine, Packets, Resource};
    ///
    /// let machine = Machine { ethernet_bit_s: Some(10e9), ..Machine::new(1, 3.3e9).unwrap() };
    /// let costs = Costs::per_packet(Estimate::given(100.0).unwrap(), Estimate::given(350.0).unwrap());
    /// let carried = machine.carried(&costs, &Packets::new(64.0, 1.0).unwrap(), None).unwrap();
    /// assert_eq!(carried.binding, Resource::Processor);
    /// assert_eq!((carried.highest.estimate.value / 1e4).round(), 733.0);
    /// ```
    ///
    /// # Errors
    /// [`WrongValue`] for an invalid machine or costs.
    pub fn carried(
        &self,
        costs: &Costs,
        packets: &Packets,
        errors: Option<Errors>,
    ) -> Result<Carried, WrongValue> {
        let cycles = costs.cycles(packets);
        positive("cycles per packet", cycles.value)?;
        positive(
            "the lower end of cycles per packet, as few or disturbed runs leave it,",
            cycles.low,
        )?;
        let available = self.available_cycles_per_s()?;
        let bits = packets.frame_bytes * 8.0;
        let ethernet = self
            .ethernet_bit_s
            .map(|rate| ethernet_pps(rate, packets.frame_bytes));
        let known = |what, rate: Option<f64>, per_packet: f64| {
            rate.map(|rate| Ok(positive(what, rate)? / per_packet))
                .transpose()
        };
        let bandwidths = [
            (Resource::Ethernet, ethernet.transpose()?),
            (
                Resource::Card,
                known("a card's limit (packets/s)", self.card_pps, 1.0)?,
            ),
            (
                Resource::Pcie,
                known("PCI Express (bit/s)", self.pcie_bit_s, bits)?,
            ),
            (
                Resource::Memory,
                known("memory (bit/s)", self.memory_bit_s, bits * MEMORY_CROSSINGS)?,
            ),
            (
                Resource::Interconnect,
                known("the interconnect (bit/s)", self.interconnect_bit_s, bits)?,
            ),
        ];
        let mut rates = Vec::new();
        for (resource, rate) in bandwidths {
            rates.push((resource, rate.map(Estimate::given).transpose()?));
        }
        let processor = cycles.map(|cycles| available / cycles);
        rates.push((Resource::Processor, Some(processor)));
        Ok(carried(rates, processor, cycles, errors))
    }

    /// Returns the highest rate of the machine if a model predicts the cycles of a packet. If the processor may be the
    /// binding resource, the rate has the model's errors: to first order, cycles and their inverse have equal relative
    /// errors. The rate is outside the range of the fit if the cycles are.
    ///
    /// # Errors
    /// The errors of [`Machine::carried`].
    pub fn carried_by_model(
        &self,
        cycles: &Prediction,
        packets: &Packets,
    ) -> Result<Carried, WrongValue> {
        let costs = Costs::per_packet(Estimate::ZERO, cycles.estimate);
        let mut carried = self.carried(&costs, packets, cycles.errors)?;
        if carried.limits.iter().any(Limit::is_of_costs) {
            carried.highest.outside.clone_from(&cycles.outside);
        }
        Ok(carried)
    }

    /// Returns a machine with known cores and clock; all other properties are unknown.
    ///
    /// # Errors
    /// [`WrongValue`] without cores, and for a clock that is not above 0.
    pub fn new(cores: u32, clock_hz: f64) -> Result<Self, WrongValue> {
        positive("cores", f64::from(cores))?;
        positive("a clock (Hz)", clock_hz)?;
        Ok(Self {
            cores,
            clock_hz,
            other_cycles_per_s: 0.0,
            ethernet_bit_s: None,
            card_pps: None,
            pcie_bit_s: None,
            memory_bit_s: None,
            interconnect_bit_s: None,
        })
    }

    /// Returns the cycles per packet up to which the cores reach line rate; above this value, throughput falls below
    /// it. Returns `None` if the links are unknown. (Gallenmüller 2021, Fig. 4.5.)
    ///
    /// # Errors
    /// [`WrongValue`] for an invalid machine.
    pub fn knee_cycles(&self, packets: &Packets) -> Result<Option<f64>, WrongValue> {
        let Some(bit_s) = self.ethernet_bit_s else {
            return Ok(None);
        };
        let line_pps = ethernet_pps(bit_s, packets.frame_bytes)?;
        Ok(Some(self.available_cycles_per_s()? / line_pps))
    }

    /// Returns c_busy: the cycles per packet that the cores spend on polling without work at an offered rate. It is 0
    /// if they cannot carry the rate. (Gallenmüller 2021, eq. 5.5.)
    ///
    /// # Errors
    /// [`WrongValue`] for an invalid machine, and for a rate that is not above 0.
    pub fn busy_cycles(&self, cycles: Estimate, offered_pps: f64) -> Result<Estimate, WrongValue> {
        let offered = positive("an offered rate (packets/s)", offered_pps)?;
        let per_packet = self.available_cycles_per_s()? / offered;
        Ok(cycles.map(|cycles| (per_packet - cycles).max(0.0)))
    }

    /// Returns the cycles per second that all cores together can spend on packets.
    fn available_cycles_per_s(&self) -> Result<f64, WrongValue> {
        let cores = positive("cores", f64::from(self.cores))?;
        let other = not_negative(
            "cycles per second for other things",
            self.other_cycles_per_s,
        )?;
        let left = positive("a clock (Hz)", self.clock_hz)? - other;
        Ok(cores * positive("cycles per second left for packets", left)?)
    }
}

fn carried(
    rates: Vec<(Resource, Option<Estimate>)>,
    processor: Estimate,
    cycles: Estimate,
    errors: Option<Errors>,
) -> Carried {
    let known = || {
        rates
            .iter()
            .filter_map(|(resource, rate)| Some((*resource, (*rate)?)))
    };
    let (binding, highest) = known()
        .min_by(|(_, a), (_, b)| a.value.total_cmp(&b.value))
        .unwrap_or((Resource::Processor, processor));
    let smallest = |end: fn(&Estimate) -> f64| {
        known()
            .map(|(_, rate)| end(&rate))
            .fold(f64::INFINITY, f64::min)
    };
    let estimate = Estimate {
        value: highest.value,
        low: smallest(|rate| rate.low),
        high: smallest(|rate| rate.high),
        confidence: processor.confidence,
    };
    let limits = rates.iter().map(|(resource, rate_pps)| Limit {
        resource: *resource,
        rate_pps: *rate_pps,
        headroom: rate_pps.map(|rate| 1.0 - highest.value / rate.value),
        may_bind: rate_pps.is_some_and(|rate| rate.low <= estimate.high),
    });
    let limits: Vec<Limit> = limits.collect();
    let errors = errors.filter(|_| limits.iter().any(Limit::is_of_costs));
    let highest = Prediction {
        estimate,
        unit: "packets/s".to_owned(),
        errors,
        outside: Vec::new(),
    };
    Carried {
        highest,
        binding,
        limits,
        cycles,
    }
}

/// Returns the candidate sets of terms for a fit of cycles per packet to processor-bound runs, the simplest first. The
/// simplest set has cycles of input and output and cycles burnt (`load_cycles`). The others add bytes (`frame_bytes`),
/// batches (`batch`), or both.
pub fn shapes() -> Vec<Vec<Shape>> {
    let io = Shape::new("io", "cycles/packet", vec![]);
    let load = Shape::new(
        "load",
        "cycles/cycle",
        vec![Factor::power("load_cycles", 1.0)],
    );
    let byte = Shape::new(
        "byte",
        "cycles/byte",
        vec![Factor::power("frame_bytes", 1.0)],
    );
    let batch = Shape::new("batch", "cycles/batch", vec![Factor::power("batch", -1.0)]);
    let mut sets = vec![vec![io, load]];
    for more in [vec![byte.clone()], vec![batch.clone()], vec![byte, batch]] {
        sets.push([sets[0].clone(), more].concat());
    }
    sets
}

#[cfg(test)]
mod tests;
