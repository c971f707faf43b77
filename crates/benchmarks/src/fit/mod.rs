//! The maximum bulk load that may run next to a latency-critical forwarder while a percentile of its latency stays
//! within a bound, and the cause of the limit. The load is confined in several ways, whose searches are interleaved.
//!
//! The search and its decisions are in `decide.rs` (no I/O), the control groups in `taut_host::tune::bulk`.

mod decide;
mod report;

pub use decide::{Held, LEVELS, Limit};
pub use report::Summary;

use crate::tail::{self, Load, PERCENTILES, Percentile, Tail};
use decide::{Level, Seen};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit,
};
use taut_bench::device::Device;
use taut_bench::report::ReportError;
use taut_host::DeviceProcess;
use taut_host::tune::bulk::{Confined, Way, confine};
use taut_host::tune::{self, Outcome as Changed, Root};
use taut_results::{LeftOut, Mode};

/// A results folder that was read back.
pub type Results = taut_bench::benchmark::Results<Fit>;

/// Estimated duration of the set-up and removal of a device.
const AROUND: Duration = Duration::from_millis(1_500);
/// Length of a trial, first in a usual run and then in a quick run.
const TRIAL: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(500)];
/// The time that bulk load gets to reach its full size before a trial.
const RAMP: Duration = Duration::from_millis(200);

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The name of the latency-critical device.
    pub device: String,
    /// The offered rate, packets per second.
    pub rate_pps: f64,
    /// The bound on the latency percentile, ns.
    pub bound_ns: f64,
    /// The name of the requested latency percentile.
    pub asked: String,
    /// The name of the percentile that is compared with the bound: the requested one, or the highest for which the
    /// trials have enough packets.
    pub percentile: String,
    /// The command line of the bulk load.
    pub bulk: Vec<String>,
    /// The CPUs of bulk load that may also run on the forwarder's CPU.
    pub cpus: BTreeSet<usize>,
    /// The CPU of the forwarder.
    pub forwarder_cpu: usize,
    /// The methods that confine the bulk load.
    pub ways: Vec<Way>,
}

impl Facts {
    /// Returns the CPUs of the bulk load that the method `way` confines.
    fn cpus_of(&self, way: Way) -> BTreeSet<usize> {
        let mut cpus = self.cpus.clone();
        if way.spares_forwarder() {
            cpus.remove(&self.forwarder_cpu);
        }
        cpus
    }

    fn percentile(&self) -> Option<Percentile> {
        PERCENTILES
            .into_iter()
            .find(|it| it.name == self.percentile)
    }
}

/// The result of a trial during which bulk load ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The method that confined the bulk load.
    pub way: Way,
    /// The level of the bulk load, 0 to [`LEVELS`].
    pub level: u32,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Processor time of the bulk load, CPUs.
    pub bulk_cpus: f64,
    /// The measured latency, interruptions and energy of the forwarder.
    pub tail: Tail,
}

/// The settings of a search for the most bulk load.
#[derive(Debug, Clone)]
pub struct Request {
    /// The latency-critical device.
    pub device: Device,
    /// The offered rate, packets per second.
    pub rate_pps: f64,
    /// The name of the latency percentile, such as `p99.999`.
    pub percentile: String,
    /// The bound on the latency percentile.
    pub bound: Duration,
    /// The command line of the bulk load; empty for the built-in worker.
    pub bulk: Vec<String>,
    /// CPUs of the bulk load; none for all CPUs, except that of the generator if there are more than two.
    pub cpus: Option<BTreeSet<usize>>,
    /// Number of trials of each level of bulk load.
    pub repetitions: u32,
}

/// The benchmark `taut tune fit`.
#[derive(Debug)]
pub struct Fit {
    request: Request,
    trial: Duration,
    facts: Facts,
    /// The level that is measured for each way in this phase; none if the search of that way has ended.
    turns: Vec<Option<u32>>,
}

impl Fit {
    /// Makes the benchmark from its settings.
    pub fn new(request: Request) -> Self {
        Self {
            request,
            trial: TRIAL[0],
            facts: Facts::default(),
            turns: Vec::new(),
        }
    }

    /// Chooses the requested methods of confining bulk load that this machine supports, and returns the others.
    fn choose_ways(&mut self, only: &[String]) -> Result<Vec<LeftOut>, BenchmarkError> {
        let known = Way::ALL.map(Way::id);
        if let Some(asked) = only.iter().find(|id| !known.contains(&id.as_str())) {
            return Err(BenchmarkError::Unknown {
                what: "way",
                asked: asked.clone(),
                there: known.join(", "),
            });
        }
        let mut left_out = Vec::new();
        for way in Way::ALL {
            if !only.is_empty() && !only.iter().any(|id| id == way.id()) {
                continue;
            }
            let missing = match confine(&Root::machine(), way, None) {
                Err(missing) => Some((missing.what, missing.how)),
                Ok(_) if self.facts.cpus_of(way).is_empty() => Some((
                    "the bulk load has only the forwarder's CPU",
                    "give it another",
                )),
                Ok(_) => None,
            };
            match missing {
                None => self.facts.ways.push(way),
                Some((why, how)) => left_out.push(LeftOut {
                    what: format!("way {}", way.id()),
                    why: why.to_string(),
                    how: how.to_string(),
                }),
            }
        }
        match (self.facts.ways.as_slice(), left_out.first()) {
            ([], Some(first)) => Err(BenchmarkError::Missing(format!(
                "{}: {}; {}",
                first.what, first.why, first.how
            ))),
            _ => Ok(left_out),
        }
    }

    /// Measures one trial while bulk load runs, confined as `confined` describes.
    fn beside(
        &self,
        rig: &Rig<'_>,
        way: Way,
        confined: &Confined,
        stop: &AtomicBool,
    ) -> Result<(Tail, f64), Failed> {
        let root = Root::machine();
        let folder = taut_host::private::scratch()?;
        let cpus = self.facts.cpus_of(way);
        let command = confined.command(&cpus, &self.facts.bulk);
        let any = cpus.first().copied().unwrap_or_default();
        let mut bulk = DeviceProcess::start("bulk load", command, any, folder.path())?;
        std::thread::sleep(RAMP);
        bulk.check()?;
        let (began, before) = (Instant::now(), confined.cpu_s(&root));
        let tail = self.alone(rig, stop)?;
        let used = confined.cpu_s(&root) - before;
        let cpus = used / began.elapsed().as_secs_f64();
        // A load that ends by itself would be measured as one that does no harm.
        bulk.check()?;
        bulk.stop()?;
        Ok((tail, cpus.max(0.0)))
    }

    fn alone(&self, rig: &Rig<'_>, stop: &AtomicBool) -> Result<Tail, Failed> {
        let load = Load {
            device: self.request.device.clone(),
            rate_pps: self.request.rate_pps,
            trial: self.trial,
        };
        tail::measure(rig, &load, stop)
    }
}

impl Benchmark for Fit {
    type Part = u32;
    type Outcome = Outcome;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "tune fit",
        title: "Bulk load beside a latency-critical forwarder",
        head: "fit.json",
        schema: 1,
        outcomes: "trials",
        subject: "way",
        advice: "see what the bulk load says when it is run by hand",
        phases: decide::PHASES,
    };

    fn prepare(&mut self, plan: &Plan, rig: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        self.trial = plan
            .trial
            .unwrap_or(TRIAL[usize::from(plan.mode == Mode::Quick)]);
        let request = &self.request;
        let packets = (request.rate_pps * self.trial.as_secs_f64()) as u64;
        let asked = PERCENTILES.iter().find(|it| it.name == request.percentile);
        let reached = PERCENTILES.iter().find(|it| {
            it.packets_needed() <= packets && asked.is_none_or(|ask| it.quantile <= ask.quantile)
        });
        let Some(percentile) = reached else {
            return Err(BenchmarkError::Missing(format!(
                "a trial of {packets} packets reaches no percentile; give a longer --trial or a higher --rate"
            )));
        };
        let mut cpus = request.cpus.clone().unwrap_or_else(|| {
            let mut all = taut_host::topology::allowed_cpus();
            if all.len() > 2 {
                all.remove(&rig.cores.generator);
            }
            all
        });
        cpus.retain(|cpu| taut_host::topology::allowed_cpus().contains(cpu));
        let own = || {
            let threads = cpus.len().to_string();
            let program = plan.program.display().to_string();
            vec![program, "tune".into(), "bulk".into(), threads]
        };
        self.facts = Facts {
            device: request.device.full_name(),
            rate_pps: request.rate_pps,
            bound_ns: request.bound.as_secs_f64() * 1e9,
            asked: request.percentile.clone(),
            percentile: percentile.name.to_string(),
            bulk: match request.bulk.is_empty() {
                true => own(),
                false => request.bulk.clone(),
            },
            cpus,
            forwarder_cpu: rig.cores.device,
            ways: Vec::new(),
        };
        let left_out = self.choose_ways(&plan.only)?;
        self.begin_phase(0, &[]);
        Ok(left_out)
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: self.request.repetitions,
            trial: self.trial,
            facts: self.facts.clone(),
        }
    }

    fn begin_phase(&mut self, phase: u32, outcomes: &[Outcome]) {
        let facts = &self.facts;
        let next = |way: &Way| decide::next(&levels(facts, outcomes, *way), facts.bound_ns);
        self.turns = facts.ways.iter().map(next).collect();
        if phase == 0 {
            // All ways share the level without load.
            self.turns.iter_mut().skip(1).for_each(|turn| *turn = None);
        }
    }

    fn turns(&self, _: u32, _: u32) -> Vec<(usize, u32)> {
        let turns = self.turns.iter().enumerate();
        turns
            .filter_map(|(way, level)| Some((way, (*level)?)))
            .collect()
    }

    fn describe(&self, subject: usize, level: u32) -> Described {
        let way = self.facts.ways[subject].id();
        Described {
            file_name: format!("{way}-{level}"),
            label: match level {
                0 => "no bulk load".to_string(),
                level => format!("{way}, level {level} of {LEVELS}"),
            },
            estimate: self.trial + AROUND,
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<u32>,
        stop: &AtomicBool,
    ) -> Result<Outcome, Failed> {
        let way = self.facts.ways[unit.subject];
        let (tail, bulk_cpus) = match unit.part {
            0 => (self.alone(rig, stop)?, 0.0),
            level => {
                let most = self.facts.cpus_of(way).len() as f64;
                let quota = most * f64::from(level) / f64::from(LEVELS);
                let quota = (level < LEVELS).then_some(quota);
                let confined = confine(&Root::machine(), way, quota);
                let confined = confined.map_err(|e| Failed::Broken(e.to_string()))?;
                let forwarder = BTreeSet::from([self.facts.forwarder_cpu]);
                with_steps(&Root::machine(), &forwarder, &confined, || {
                    self.beside(rig, way, &confined, stop)
                })?
            }
        };
        Ok(Outcome {
            way,
            level: unit.part,
            repetition: unit.repetition,
            bulk_cpus,
            tail,
        })
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        report::write(dir, results, width)
    }
}

/// Makes the changes of `confined` through the journal, calls `measure`, and reverts the changes however it ends.
fn with_steps<T>(
    root: &Root,
    cpus: &BTreeSet<usize>,
    confined: &Confined,
    measure: impl FnOnce() -> Result<T, Failed>,
) -> Result<T, Failed> {
    let reverted = tune::Reverting::new(root);
    let changed = tune::enact(root, cpus, "bulk load", confined.steps.clone());
    if let Changed::Refused(why) = changed.map_err(|e| Failed::Broken(e.to_string()))? {
        return Err(Failed::Broken(format!("not changed: {why}")));
    }
    let measured = measure()?;
    reverted.end().map_err(|e| Failed::Broken(e.to_string()))?;
    Ok(measured)
}

/// Returns the measured levels of bulk load for a way, with the level without load, which all ways share.
fn levels(facts: &Facts, outcomes: &[Outcome], way: Way) -> Vec<Level> {
    let Some(percentile) = facts.percentile() else {
        return Vec::new();
    };
    let of_level = |level: u32| {
        let trials = outcomes
            .iter()
            .filter(|it| it.level == level && (it.way == way || level == 0));
        let seen = |it: &Outcome| {
            Some(Seen {
                latency_ns: it.tail.latency_of_all_ns(percentile)?,
                forwarder_gap_ns: it.tail.longest_gap_ns.map(|ns| ns as f64),
                generator_gap_ns: it.tail.generator_gap_ns as f64,
                bulk_cpus: it.bulk_cpus,
            })
        };
        Level {
            level,
            trials: trials.filter_map(seen).collect(),
        }
    };
    let levels = (0..=LEVELS).map(of_level);
    levels.filter(|level| !level.trials.is_empty()).collect()
}

#[cfg(test)]
mod tests;
