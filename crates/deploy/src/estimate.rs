//! Estimates the cost of a chain before it runs. The chain model ([`taut_model::chain`]) adds the cycles of each
//! function (measured on this machine), of input and output, and of passing packets between functions. These cycles,
//! wakeups and fibre give the round trip, which is compared with the latency budget. The resource model
//! ([`taut_model::resource`]) derives the highest rate from the cycles. (Gallenmüller 2021, section 5.2.)

use crate::DeployError;
use crate::classify::{Placed, classify};
use crate::deployment::cores;
use crate::measure::{self, AROUND_BYTES, BothWays, Cost, Effort, Measured};
use crate::origin::origin;
use crate::segment::{Segment, segments, split};
use crate::wires::Wires;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taut_engine::{Chain, Place, Placement, Wait};
use taut_model::chain::{self as model, ChainCycles, Function};
use taut_model::estimate::{Estimate as Figure, WrongValue};
use taut_model::io_costs::{Cycles, IoCosts, PortCosts};
use taut_model::link::propagation::Medium;
use taut_model::resource::{Costs, Machine, Packets};
use taut_port::Backend;
use taut_sys::Clock;

/// Assumed cycles of receiving and sending a packet, for a backend that has no typical value.
const ASSUMED_IO_CYCLES: f64 = 100.0;

/// Cycles assumed for XDP programs that pass a frame from one interface to another.
const ASSUMED_KERNEL_CYCLES: f64 = 3_800.0;

/// Origin of a value in an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Measured in this run, on this machine.
    Measured,
    /// Measured in this run, by the kernel, on frames of this process.
    InKernel,
    /// Measured in this run, with the user-space version of a function that runs in the kernel in this chain.
    StandIn,
    /// Measured in an earlier run of `taut bench io`.
    Bench,
    /// Measured elsewhere, or published.
    Assumed,
    /// Derived from the waiting policy.
    Policy,
}

impl Basis {
    /// Returns the name of the origin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::InKernel => "measured in the kernel",
            Self::StandIn => "measured in user space",
            Self::Bench => "by taut bench io",
            Self::Assumed => "assumed",
            Self::Policy => "by the waiting policy",
        }
    }
}

/// Settings of an estimate.
#[derive(Debug, Clone)]
pub struct Settings {
    /// UDP payloads, bytes.
    pub payloads_bytes: Vec<usize>,
    /// Duration of each block of a measurement.
    pub block: Duration,
    /// Number of measured wakeups.
    pub wake_ups: usize,
    /// Fibre between the chain and its peer, one way, kilometres.
    pub distance_km: f64,
    /// Costs of ports from an earlier measurement. They take precedence over a measurement in this run, in which both
    /// ports of a link share one core.
    pub io: Option<IoCosts>,
}

impl Default for Settings {
    /// The defaults are the payloads of Xia et al., and a total of some tenths of a second.
    fn default() -> Self {
        Self {
            payloads_bytes: vec![256, 1400],
            block: Duration::from_millis(2),
            wake_ups: 60,
            distance_km: 0.0,
            io: None,
        }
    }
}

/// A function and its costs at each payload size.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FunctionRow {
    /// Name of the function.
    pub name: String,
    /// Place of the function, and the reason.
    #[serde(flatten)]
    pub placed: Placed,
    /// Origin of the costs.
    pub basis: Basis,
    /// Costs by payload, in the order of `Settings::payloads_bytes`.
    pub costs: Vec<BothWays>,
}

/// A part of a round trip.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Part {
    /// Name of this part of the round trip, such as a function or a wakeup.
    pub what: String,
    /// Typical time of this part, ns.
    pub typical_ns: f64,
    /// Longest time of this part, without interruptions of the machine, ns.
    pub longest_ns: f64,
    /// Origin of the typical and the longest time.
    pub basis: Basis,
}

/// Time that one packet and its reply spend in the chain, without the hosts at its ends.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RoundTrip {
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Sum of the typical times, ns.
    pub typical_ns: f64,
    /// Sum of the longest times, ns.
    pub longest_ns: f64,
    /// Parts of the round trip.
    pub parts: Vec<Part>,
}

/// Highest rate that the busiest core of the chain can process, with packets in full batches.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Rate {
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Highest rate, packets per second, with packets in one direction only.
    pub one_way_pps: f64,
    /// Highest rate, packets per second in each direction, if every packet has a reply.
    pub both_ways_pps: f64,
    /// The value of `one_way_pps` with its confidence interval, derived from the intervals of all costs.
    pub one_way: Figure,
    /// The value of `both_ways_pps` with its confidence interval.
    pub both_ways: Figure,
    /// Name of the busiest segment or port, which is the bottleneck.
    pub busiest: String,
}

/// The verdict on the latency budget in the chain file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Holds {
    /// The slowest packets meet the budget, and therefore all do.
    Yes,
    /// Most packets meet the budget, but the slowest do not.
    Mostly,
    /// No packet meets the budget.
    No,
}

/// The estimated cost of a chain.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Estimate {
    /// Name of the chain; none if the chain file sets no name.
    pub name: Option<String>,
    /// Frequency of the time-stamp counter, which counts cycles, Hz.
    pub tsc_hz: f64,
    /// Packets in a full batch.
    pub batch: usize,
    /// The functions of the chain with their costs, in the order of the chain file.
    pub functions: Vec<FunctionRow>,
    /// Round-trip times by payload size.
    pub round_trips: Vec<RoundTrip>,
    /// Highest rates, in the order of the payload sizes.
    pub rates: Vec<Rate>,
    /// Latency budget in the chain file, ns; none if the chain file sets no budget.
    pub budget_ns: Option<f64>,
    /// The verdict on the latency budget, for the payload with the slowest round trip; none without a budget.
    pub holds: Option<Holds>,
    /// Notes about the estimated values, such as which costs were assumed.
    pub notes: Vec<String>,
}

impl Estimate {
    /// Returns the slowest round trip.
    pub fn slowest(&self) -> Option<&RoundTrip> {
        let trips = self.round_trips.iter();
        trips.max_by(|a, b| a.typical_ns.total_cmp(&b.typical_ns))
    }
}

impl RoundTrip {
    /// Returns the longest part of the round trip.
    pub fn largest(&self) -> Option<&Part> {
        let parts = self.parts.iter();
        parts.max_by(|a, b| a.typical_ns.total_cmp(&b.typical_ns))
    }
}

/// Estimates the cost of a chain: measures on this machine what can be measured, and assumes the rest.
///
/// # Errors
/// The chain is invalid, or the machine lacks a requirement.
pub fn estimate(chain: &Chain, settings: &Settings) -> Result<Estimate, DeployError> {
    if chain.classification.is_some() {
        return Err(DeployError::Chain(
            "[[classifier]]: no packet passes all functions of this file: plan each chain in a file of its own"
                .to_string(),
        ));
    }
    let cores = cores(chain)?;
    // The measurement has its own thread, because that thread is pinned to a core.
    let measure = || {
        let clock = Clock::calibrate(Duration::from_millis(20));
        estimate_on(chain, settings, &cores, &clock)
    };
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn estimate_on(
    chain: &Chain,
    settings: &Settings,
    cores: &[usize],
    clock: &Clock,
) -> Result<Estimate, DeployError> {
    let batch = chain.burst.min(32);
    let effort = Effort {
        block: settings.block,
        batch,
    };
    let found = Measurements::take(chain, settings, effort, cores, clock)?;
    let sums = found.sums(chain, settings, clock.hz);
    let round_trips: Result<Vec<RoundTrip>, DeployError> =
        sums.iter().map(Sums::round_trip).collect();
    let round_trips = round_trips?;
    let rates: Result<Vec<Rate>, DeployError> = sums.iter().map(Sums::rate).collect();
    let budget_ns = chain.budget.map(|budget| budget.as_nanos() as f64);
    let holds = budget_ns.map(|budget_ns| {
        let worst = |of: fn(&RoundTrip) -> f64| round_trips.iter().map(of).fold(0.0, f64::max);
        holds(budget_ns, worst(|t| t.typical_ns), worst(|t| t.longest_ns))
    });
    let functions = found.functions(chain);
    Ok(Estimate {
        name: chain.name.clone(),
        tsc_hz: clock.hz,
        batch,
        notes: [
            notes(&functions, &found.parts, found.wake.is_some()),
            found
                .ios
                .first()
                .map(|ios| ios.notes(&found.parts))
                .unwrap_or_default(),
        ]
        .concat(),
        functions,
        rates: rates?,
        round_trips,
        budget_ns,
        holds,
    })
}

/// The measured costs of a chain.
struct Measurements<'a> {
    placed: Vec<Placed>,
    parts: Vec<Segment>,
    /// Origins of the functions' costs.
    bases: Vec<Basis>,
    /// Costs of the functions, in the order of the payload sizes.
    costs: Vec<Vec<BothWays>>,
    /// Costs of input and output, in the order of the payload sizes.
    ios: Vec<Ios<'a>>,
    /// Cost of passing a packet from one function of a worker to the next.
    hand_over: Cost,
    wake: Option<(Measured, f64)>,
}

impl<'a> Measurements<'a> {
    fn take(
        chain: &Chain,
        settings: &'a Settings,
        effort: Effort,
        cores: &[usize],
        clock: &Clock,
    ) -> Result<Self, DeployError> {
        let placed = classify(chain)?;
        let parts = segments(chain, &plan_wires(chain)?, cores)?;
        let sleeps_until_woken = parts.iter().any(|part| part.chain.wait == Wait::Interrupt);
        let wake = sleeps_until_woken.then(|| measure::wake_up(clock, settings.wake_ups));
        let wake = wake.transpose()?;
        // This thread is pinned only after wakeups are measured, because a woken thread may run on any core. Later
        // measurements run on the first worker's core.
        if let Some(first) = cores.first() {
            taut_host::pin_current_thread(*first).map_err(|e| DeployError::Chain(e.to_string()))?;
        }
        let basis = |placed: &Placed| match placed.place {
            Place::User => Basis::Measured,
            Place::Kernel => Basis::StandIn,
        };
        let mut bases: Vec<Basis> = placed.iter().map(basis).collect();
        let hands_over = parts.iter().any(|part| part.chain.functions.len() > 1);
        let hand_over = hands_over.then(|| measure::hand_over(chain, effort));
        let hand_over = hand_over.transpose()?.unwrap_or_default();
        let mut costs = Vec::new();
        let mut ios = Vec::new();
        for payload_bytes in &settings.payloads_bytes {
            let of_all = function_costs(chain, *payload_bytes, effort, clock.hz, &mut bases)?;
            costs.push(of_all);
            ios.push(Ios::measure(
                &parts,
                *payload_bytes,
                effort,
                settings.io.as_ref(),
            )?);
        }
        Ok(Self {
            placed,
            parts,
            bases,
            costs,
            ios,
            hand_over,
            wake,
        })
    }

    /// Returns the known costs of the chain, one entry per payload size.
    fn sums(&self, chain: &Chain, settings: &Settings, hz: f64) -> Vec<Sums<'_>> {
        self.costs
            .iter()
            .zip(&self.ios)
            .zip(&settings.payloads_bytes)
            .map(|((costs, ios), payload_bytes)| Sums {
                parts: &self.parts,
                bases: &self.bases,
                costs,
                ios,
                hand_over: self.hand_over,
                wake: self.wake,
                hz,
                payload_bytes: *payload_bytes,
                goes_back: chain.ports.len() > 1,
                distance_km: settings.distance_km,
            })
            .collect()
    }

    /// Returns the functions with their costs.
    fn functions(&self, chain: &Chain) -> Vec<FunctionRow> {
        let functions = chain.functions.iter().zip(&self.placed).enumerate();
        functions
            .map(|(at, (stage, placed))| FunctionRow {
                name: stage.name.clone(),
                placed: placed.clone(),
                basis: self.bases[at],
                costs: self.costs.iter().map(|costs| costs[at]).collect(),
            })
            .collect()
    }
}

/// Measures the costs of the functions at one payload size. The cost of a function in the kernel is measured in the
/// kernel if possible.
fn function_costs(
    chain: &Chain,
    payload_bytes: usize,
    effort: Effort,
    hz: f64,
    bases: &mut [Basis],
) -> Result<Vec<BothWays>, DeployError> {
    let mut of_all = measure::functions(chain, payload_bytes, effort)?;
    for (at, stage) in chain.functions.iter().enumerate() {
        if bases[at] != Basis::Measured
            && let Some(cost) = measure::in_kernel(chain, stage, payload_bytes, hz)
        {
            bases[at] = Basis::InKernel;
            of_all[at] = cost;
        }
    }
    Ok(of_all)
}

fn holds(budget_ns: f64, typical_ns: f64, longest_ns: f64) -> Holds {
    if longest_ns <= budget_ns {
        Holds::Yes
    } else if typical_ns <= budget_ns {
        Holds::Mostly
    } else {
        Holds::No
    }
}

fn notes(functions: &[FunctionRow], parts: &[Segment], was_woken: bool) -> Vec<String> {
    let mut notes = vec![
        "cycles are those of the time-stamp counter, measured in this process with warm caches and nobody else on the \
         core; interruptions of the machine are left out"
            .to_string(),
    ];
    if functions.iter().any(|row| row.basis == Basis::StandIn) {
        let text = "functions in the kernel that cannot be tried there are measured as what they are in user space";
        notes.push(text.to_string());
    }
    let comes = |row: &&FunctionRow| row.costs.iter().any(|cost| cost.forth.full.is_none());
    if let Some(row) = functions.iter().find(comes) {
        notes.push(format!(
            "no packet of the measurement came as far as \"{}\": what stands before it dropped them all, so it is missing from \
             the sums",
            row.name
        ));
    }
    let mut known: Vec<usize> = parts.iter().filter_map(|part| part.chain.core).collect();
    let workers = known.len();
    known.sort_unstable();
    known.dedup();
    if known.len() < workers {
        notes.push(format!(
            "{workers} workers share {} cores: a packet may have to wait for another worker's turn, which is in none of the \
             sums",
            known.len()
        ));
    }
    if let Some(part) = parts.iter().find(|part| part.chain.workers > 1) {
        notes.push(format!(
            "the rates are those of {0} workers: {0} times what one does, which takes flows that spread evenly over them and no \
             packet that one hands to another",
            part.chain.workers
        ));
    }
    if was_woken {
        notes
            .push("a wake-up: a thread that sleeps on a file, woken every millisecond".to_string());
    }
    notes
}

/// Returns the links that the placement needs, without creating them.
fn plan_wires(chain: &Chain) -> Result<Wires, DeployError> {
    let joint = |at: usize| match chain.placement {
        Placement::Threads => ["", ""].map(|_| format!("pair:plan{at}")),
        Placement::Namespaces | Placement::Hybrid => {
            ["w", "e"].map(|end| format!("af_xdp:plan{at}{end}"))
        }
        _ => ["server", "client"].map(|role| format!("memif:/plan{at}.sock,role={role}")),
    };
    let count = split(chain)?.len();
    Ok(Wires {
        ends: chain
            .ports
            .iter()
            .map(|port| port.text().to_string())
            .collect(),
        joints: (1..count).map(joint).collect(),
    })
}

/// Backend name of forwarding between interfaces in the kernel.
const XDP: &str = "XDP";

/// Costs of input and output, and their origin.
struct Ios<'a> {
    /// Costs from an earlier measurement.
    bench: Option<&'a IoCosts>,
    /// Costs that were measured in this run, or assumed, with their origin, by name of the backend.
    known: BTreeMap<&'static str, (Cost, Basis)>,
}

impl<'a> Ios<'a> {
    fn measure(
        parts: &[Segment],
        payload_bytes: usize,
        effort: Effort,
        bench: Option<&'a IoCosts>,
    ) -> Result<Self, DeployError> {
        let mut known = BTreeMap::new();
        let workers = parts.iter().filter(|part| part.chain.place == Place::User);
        for port in workers.flat_map(|part| &part.chain.ports) {
            let backend = port.kind();
            let is_known = bench.is_some_and(|bench| bench.of(port.text()).is_some());
            if !is_known && !known.contains_key(backend.name) {
                let measured = measure::io(backend, payload_bytes, effort)?;
                let measured = measured.map(|cost| (cost, Basis::Measured));
                known.insert(backend.name, measured.unwrap_or_else(|| assumed(backend)));
            }
        }
        Ok(Self { bench, known })
    }

    /// Returns the input and output costs of the worker of a segment, by backend: the worker receives on one port and
    /// sends on the other.
    fn of(&self, part: &Segment) -> Vec<(&'static str, Cost, Basis)> {
        if part.chain.place == Place::Kernel {
            let cost = constant(ASSUMED_KERNEL_CYCLES);
            return vec![(XDP, cost, Basis::Assumed)];
        }
        let ports = part.chain.ports.iter().take(2);
        let found = ports.filter_map(|port| {
            let before = self.bench.and_then(|bench| bench.of(port.text()));
            let before = before.map(|costs| (of_bench(costs), Basis::Bench));
            let (cost, basis) = before.or_else(|| self.known.get(port.backend()).copied())?;
            Some((port.backend(), cost, basis))
        });
        let mut found: Vec<_> = found.collect();
        found.dedup_by_key(|(backend, ..)| *backend);
        found
    }

    /// Returns notes on costs that were not measured in this run.
    fn notes(&self, parts: &[Segment]) -> Vec<String> {
        let of = |wanted: Basis| {
            let all = parts.iter().flat_map(|part| self.of(part));
            let names = all.filter_map(|(name, _, basis)| (basis == wanted).then_some(name));
            let names: BTreeSet<&str> = names.collect();
            (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
        };
        let mut notes = Vec::new();
        if let (Some(names), Some(bench)) = (of(Basis::Bench), self.bench) {
            notes.push(format!("input and output of {names}: {}", origin(bench)));
        }
        if let Some(names) = of(Basis::Assumed) {
            notes.push(format!(
                "input and output of {names}: defaults of another machine, or published; taut bench io measures ports here, and \
                 --machine takes the machine.toml of its results folder"
            ));
        }
        notes
    }
}

/// Returns costs from an earlier measurement. If the cost of a single packet was not measured, the cost of a packet in
/// a batch, which is lower, replaces it.
fn of_bench(costs: &PortCosts) -> Cost {
    let measured = |cycles: &Cycles| Measured {
        median: cycles.cycles,
        low: cycles.low,
        high: cycles.high,
        n: cycles.count as usize,
        coverage: cycles.coverage,
    };
    Cost {
        alone: Some(measured(costs.alone.as_ref().unwrap_or(&costs.batch))),
        full: Some(measured(&costs.batch)),
    }
}

fn assumed(backend: &Backend) -> (Cost, Basis) {
    let cycles = backend.typical_cycles.unwrap_or(ASSUMED_IO_CYCLES);
    (constant(cycles), Basis::Assumed)
}

fn constant(cycles: f64) -> Cost {
    let value = Measured {
        median: cycles,
        low: cycles,
        high: cycles,
        n: 0,
        coverage: 0.0,
    };
    Cost {
        alone: Some(value),
        full: Some(value),
    }
}

/// The known costs of a chain for one payload size.
struct Sums<'a> {
    parts: &'a [Segment],
    bases: &'a [Basis],
    costs: &'a [BothWays],
    ios: &'a Ios<'a>,
    /// Cost of passing a packet from one function of a worker to the next.
    hand_over: Cost,
    wake: Option<(Measured, f64)>,
    hz: f64,
    payload_bytes: usize,
    goes_back: bool,
    /// Length of fibre in one direction, km.
    distance_km: f64,
}

impl Sums<'_> {
    /// Returns each segment, with the index in the chain file of the segment's first function.
    fn numbered(&self) -> impl Iterator<Item = (&Segment, usize)> {
        let mut first = 0;
        self.parts.iter().map(move |part| {
            let here = first;
            first += part.chain.functions.len();
            (part, here)
        })
    }

    fn ways(&self) -> f64 {
        if self.goes_back { 2.0 } else { 1.0 }
    }

    /// Returns the cycles of a packet in a segment by the chain model. `first` is the index in the file of the
    /// segment's first function. Memory accesses are part of each function's measured cost, as the functions were
    /// measured together.
    fn cycles(
        &self,
        part: &Segment,
        first: usize,
        way: fn(&BothWays) -> &Cost,
        load: fn(&Cost) -> Option<Measured>,
    ) -> Result<ChainCycles, DeployError> {
        // Without packets the cost is unknown; a note reports that.
        let known = |cost: &Cost| load(cost).map_or(Ok(Figure::ZERO), Measured::estimate);
        let ios = self.ios.of(part);
        let mut io_cycles = Figure::ZERO;
        for (_, cost, _) in &ios {
            // A packet is received on one port and sent on the other, so half of each backend's cost counts. If both
            // ports have the same backend, its full cost counts.
            io_cycles = io_cycles.plus(known(cost)?.times(1.0 / ios.len() as f64));
        }
        let functions = part.chain.functions.iter().zip(&self.costs[first..]);
        let functions: Result<Vec<Function>, WrongValue> = functions
            .map(|(stage, cost)| {
                Ok(Function {
                    name: stage.name.clone(),
                    calculation_cycles: known(way(cost))?,
                    structure: None,
                })
            })
            .collect();
        let chain = model::Chain {
            io_cycles,
            hand_over_cycles: known(&self.hand_over)?,
            functions: functions?,
        };
        Ok(chain.cycles(None)?)
    }

    fn round_trip(&self) -> Result<RoundTrip, DeployError> {
        let mut parts = Vec::new();
        if self.distance_km > 0.0 {
            let way = Medium::Fibre.delay_us(self.distance_km);
            let way_ns = 2e3 * way.map_err(|e| DeployError::Chain(e.to_string()))?;
            parts.push(Part {
                what: format!("{} km of fibre, there and back", self.distance_km),
                typical_ns: way_ns,
                longest_ns: way_ns,
                basis: Basis::Assumed,
            });
        }
        let of = |what: String, cycles: Figure, basis: Basis| Part {
            what,
            typical_ns: cycles.value / self.hz * 1e9,
            longest_ns: cycles.high / self.hz * 1e9,
            basis,
        };
        for (part, first) in self.numbered() {
            let forth = self.cycles(part, first, |cost| &cost.forth, |cost| cost.alone)?;
            let back = self.cycles(part, first, |cost| &cost.back, |cost| cost.alone)?;
            for (at, (forth, back)) in forth.functions.iter().zip(&back.functions).enumerate() {
                parts.push(of(
                    format!("function {}", forth.name),
                    forth.calculation.plus(back.calculation),
                    self.bases[first + at],
                ));
            }
            let ios = self.ios.of(part);
            for (backend, cost, basis) in &ios {
                let cycles = cost.alone.map_or(Ok(Figure::ZERO), Measured::estimate)?;
                parts.push(of(
                    format!("input and output of {}: {backend}", part.name),
                    cycles.times(self.ways() / ios.len() as f64),
                    *basis,
                ));
            }
            if part.chain.functions.len() > 1 {
                parts.push(of(
                    format!("hand-over between the functions of {}", part.name),
                    forth.chain.times(self.ways()),
                    Basis::Measured,
                ));
            }
            parts.extend(self.wait(part));
        }
        Ok(RoundTrip {
            payload_bytes: self.payload_bytes,
            typical_ns: parts.iter().map(|part| part.typical_ns).sum(),
            longest_ns: parts.iter().map(|part| part.longest_ns).sum(),
            parts,
        })
    }

    /// Returns the time that a packet waits for a sleeping worker to wake up, in each direction.
    fn wait(&self, part: &Segment) -> Option<Part> {
        if part.chain.place == Place::Kernel {
            return None;
        }
        let (typical_ns, longest_ns, basis) = match part.chain.wait {
            Wait::Poll | Wait::Yield => return None,
            Wait::Sleep { at_most } => {
                let longest = at_most.as_nanos() as f64;
                (longest / 2.0, longest, Basis::Policy)
            }
            Wait::Interrupt => {
                let (typical, longest_ns) = self.wake?;
                (typical.median, longest_ns, Basis::Measured)
            }
        };
        Some(Part {
            what: format!("wake-ups of {}: wait {}", part.name, part.chain.wait),
            typical_ns: typical_ns * self.ways(),
            longest_ns: longest_ns * self.ways(),
            basis,
        })
    }

    /// Returns the rates of the busiest core, by the resource model.
    fn rate(&self) -> Result<Rate, DeployError> {
        // The costs of workers on one core add up. Programs in the kernel run on the core where packets arrive.
        let mut by_core: BTreeMap<_, (Vec<&str>, Figure, Figure)> = BTreeMap::new();
        for (at, (part, first)) in self.numbered().enumerate() {
            let key = part.chain.core.ok_or(at);
            // Each of several workers gets its fraction of the packets.
            let share = 1.0 / part.chain.workers as f64;
            let total = |way| self.cycles(part, first, way, |cost| cost.full);
            let forth = total(|cost| &cost.forth)?.total.times(share);
            let back = total(|cost| &cost.back)?.total.times(share);
            let none = (Vec::new(), Figure::ZERO, Figure::ZERO);
            let (names, one_way, both_ways) = by_core.entry(key).or_insert(none);
            names.push(&part.name);
            *one_way = one_way.plus(forth);
            *both_ways = both_ways.plus(forth);
            if self.goes_back {
                *both_ways = both_ways.plus(back);
            }
        }
        let core = Machine::new(1, self.hz)?;
        let packets = Packets::new((self.payload_bytes + AROUND_BYTES) as f64, 1.0)?;
        let carried = |cycles: Figure| -> Result<Figure, DeployError> {
            // A packet takes at least one cycle, whatever was measured.
            let cycles = cycles.map(|cycles| cycles.max(1.0));
            let costs = Costs::per_packet(Figure::ZERO, cycles);
            Ok(core.carried(&costs, &packets, None)?.highest.estimate)
        };
        let mut least: Option<(&[&str], Figure)> = None;
        let mut least_both: Option<Figure> = None;
        for (names, one_way, both_ways) in by_core.values() {
            let (rate, both) = (carried(*one_way)?, carried(*both_ways)?);
            if least.is_none_or(|(_, known)| rate.value <= known.value) {
                least = Some((names, rate));
            }
            if least_both.is_none_or(|known| both.value < known.value) {
                least_both = Some(both);
            }
        }
        let (names, one_way) = least.unwrap_or((&[], Figure::ZERO));
        let both_ways = least_both.unwrap_or(Figure::ZERO);
        Ok(Rate {
            payload_bytes: self.payload_bytes,
            one_way_pps: one_way.value,
            both_ways_pps: both_ways.value,
            one_way,
            both_ways,
            busiest: names.join(" and "),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::segment::tests::chain;

    fn quick(chain: &Chain) -> Estimate {
        let settings = Settings {
            payloads_bytes: vec![256],
            block: Duration::from_micros(200),
            wake_ups: 10,
            // A distance of 2 x 25 km takes a quarter of a millisecond ([Xia], Fig. 2).
            distance_km: 25.0,
            io: None,
        };
        estimate(chain, &settings).unwrap()
    }

    /// Makes an estimate with known costs: 1000 cycles per function and direction, at 1 GHz.
    fn known(head: &str, functions: &[&str], wake_ns: Option<f64>) -> (RoundTrip, Rate) {
        let chain = chain(head, functions);
        let parts = segments(&chain, &plan_wires(&chain).unwrap(), &[0, 1]).unwrap();
        let cost = BothWays {
            forth: constant(1000.0),
            back: constant(1000.0),
        };
        let costs = vec![cost; functions.len()];
        let backends = ["null", "memif", "pair"];
        let ios = Ios {
            bench: None,
            known: backends
                .map(|b| (b, (constant(100.0), Basis::Measured)))
                .into(),
        };
        let wake = wake_ns.map(|ns| (constant(ns).full.unwrap(), 2.0 * ns));
        let sums = Sums {
            parts: &parts,
            bases: &vec![Basis::Measured; functions.len()],
            costs: &costs,
            ios: &ios,
            // The value is that published for Snabb.
            hand_over: constant(35.0),
            wake,
            hz: 1e9,
            payload_bytes: 256,
            goes_back: true,
            distance_km: 0.0,
        };
        (sums.round_trip().unwrap(), sums.rate().unwrap())
    }

    const FORWARD: &str = "name = \"forward\"";

    #[test]
    fn a_chain_in_one_process_pays_input_and_output_once() {
        let (trip, rate) = known("", &[FORWARD; 3], None);
        // Each direction has three functions, input and output, and two steps between functions.
        assert_eq!(trip.typical_ns, 2.0 * (3000.0 + 100.0 + 70.0));
        assert_eq!(trip.longest_ns, trip.typical_ns);
        assert_eq!(rate.one_way_pps.round(), (1e9_f64 / 3170.0).round());
        assert_eq!(rate.both_ways_pps.round(), (1e9_f64 / 6340.0).round());
        assert!(trip.largest().unwrap().what.starts_with("function forward"));
    }

    #[test]
    fn two_workers_double_the_rate_and_leave_latency_unchanged() {
        let (alone, rate_alone) = known("", &[FORWARD; 3], None);
        let (trip, rate) = known("workers = 2", &[FORWARD; 3], None);
        assert_eq!(trip.typical_ns, alone.typical_ns);
        assert_eq!(rate.one_way_pps, 2.0 * rate_alone.one_way_pps);
        assert_eq!(rate.both_ways_pps, 2.0 * rate_alone.both_ways_pps);
    }

    #[test]
    fn processes_add_latency_and_the_busiest_core_limits_the_rate() {
        let head = "placement = \"processes\"";
        let (trip, rate) = known(head, &[FORWARD; 3], Some(5000.0));
        let io = 2.0 * 3.0 * 100.0;
        // The port `null` cannot wake the two outer segments, so each of them sleeps for up to 50 us.
        let waits = 2.0 * (25_000.0 + 5_000.0 + 25_000.0);
        assert_eq!(trip.typical_ns, 6000.0 + io + waits);
        assert_eq!(
            trip.longest_ns,
            6000.0 + io + 2.0 * (50_000.0 + 10_000.0 + 50_000.0)
        );
        // Two of the three segments share a core.
        assert_eq!(rate.one_way_pps.round(), (1e9_f64 / 2200.0).round());
        assert_eq!(rate.busiest, "1-forward and 3-forward");
    }

    #[test]
    fn most_packets_are_within_a_budget_between_median_and_tail() {
        assert_eq!(holds(100.0, 50.0, 90.0), Holds::Yes);
        assert_eq!(holds(100.0, 50.0, 110.0), Holds::Mostly);
        assert_eq!(holds(100.0, 101.0, 110.0), Holds::No);
    }

    #[test]
    fn a_measured_chain_is_compared_with_its_latency_budget() {
        let burn = "name = \"burn\"\ncycles = 600000";
        let tight = quick(&chain("budget = \"300us\"", &[FORWARD, burn]));
        let fibre = &tight.round_trips[0].parts[0];
        assert_eq!(fibre.what, "25 km of fibre, there and back");
        assert!(
            (244_000.0..246_000.0).contains(&fibre.typical_ns),
            "{fibre:?}"
        );
        assert_eq!(tight.holds, Some(Holds::No));
        let slowest = tight.slowest().unwrap();
        assert_eq!(slowest.largest().unwrap().what, "function burn");
        // The minimum contains the `burn` function once for each direction.
        let least_ns = 2.0 * 600_000.0 / tight.tsc_hz * 1e9;
        assert!(slowest.typical_ns > 0.95 * least_ns, "{slowest:?}");
        let loose = quick(&chain("budget = \"10s\"", &[FORWARD]));
        assert_eq!(loose.holds, Some(Holds::Yes));
        assert_eq!(quick(&chain("", &[FORWARD])).holds, None);
    }

    #[test]
    fn an_estimate_with_kernel_functions_notes_its_assumptions() {
        let estimate = quick(&chain("placement = \"namespaces\"", &[FORWARD]));
        let parts = &estimate.round_trips[0].parts;
        let basis = |what: &str| {
            parts
                .iter()
                .find(|p| p.what.contains(what))
                .map(|p| p.basis)
        };
        assert_eq!(basis("function forward"), Some(Basis::StandIn));
        assert_eq!(basis("XDP"), Some(Basis::Assumed));
        assert!(
            estimate
                .notes
                .iter()
                .any(|note| note.contains("in the kernel"))
        );
    }

    #[test]
    fn port_costs_use_earlier_measurements_and_report_their_date() {
        let cycles = |cycles| Cycles {
            cycles,
            low: cycles,
            high: 2.0 * cycles,
            coverage: 0.9,
            count: 5,
        };
        let costs = PortCosts {
            port: "null".to_owned(),
            batch: cycles(3_000_000.0),
            alone: Some(cycles(6_000_000.0)),
        };
        let plain = chain("", &[FORWARD]);
        let with = |ports: Vec<PortCosts>| {
            let settings = Settings {
                payloads_bytes: vec![256],
                block: Duration::from_micros(200),
                io: Some(IoCosts {
                    measured: "2026-11-25T03:00:00Z".to_owned(),
                    cpu: None,
                    taken: None,
                    frame_bytes: 64,
                    ports,
                }),
                ..Settings::default()
            };
            estimate(&plain, &settings).unwrap()
        };
        let found = with(vec![costs]);
        let part = |found: &Estimate| {
            let mut parts = found.round_trips[0].parts.iter();
            parts.find(|p| p.what.starts_with("input")).unwrap().clone()
        };
        assert_eq!(part(&found).basis, Basis::Bench);
        let ns = 2.0 * 6_000_000.0 / found.tsc_hz * 1e9;
        assert!((part(&found).typical_ns / ns - 1.0).abs() < 1e-9);
        assert!((part(&found).longest_ns / (2.0 * ns) - 1.0).abs() < 1e-9);
        assert!(found.rates[0].one_way_pps <= found.tsc_hz / 3_000_000.0);
        let told = |found: &Estimate, part: &str| found.notes.iter().any(|it| it.contains(part));
        assert!(told(
            &found,
            "input and output of null: measured by taut bench io"
        ));
        let other = with(Vec::new());
        assert_eq!(part(&other).basis, Basis::Measured);
        assert!(!told(&other, "bench io"), "{:?}", other.notes);
        let kernel = quick(&chain("placement = \"namespaces\"", &[FORWARD]));
        assert!(told(
            &kernel,
            "input and output of XDP: defaults of another machine"
        ));
    }

    #[test]
    fn an_estimate_notes_functions_that_no_packet_reaches() {
        let estimate = quick(&chain("", &["name = \"impair\"\nloss = 1.0", FORWARD]));
        assert!(
            estimate
                .notes
                .iter()
                .any(|note| note.contains("\"forward\""))
        );
    }
}
