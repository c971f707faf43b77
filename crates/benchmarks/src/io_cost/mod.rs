//! The cost of input and output per packet in each framework. The load per packet is raised until the throughput
//! declines. Other trials vary the burst, or make each packet *walk*: follow links through a list in memory, so that
//! the size of the list decides which cache is used. (Gallenmüller 2021, sections 4 and 5.1.)

mod evaluate;
mod facts;
mod framework;
mod knee;
mod lengths;
mod level;
mod machine_file;
mod part;
mod report;
mod trial;

pub use evaluate::{CHECKED_LOAD, Evaluation, Row};
pub use facts::{Facts, HardwareCounters, Results};
pub use knee::{Knee, KneeSearch, KneeSettings};
pub use lengths::Lengths;
pub use part::Part;
pub use report::Summary;
pub use trial::{Series, Trial};

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit, choose,
};
use taut_bench::framework::{Framework, Program, Session};
use taut_bench::report::ReportError;
use taut_functions::burn::{BurnError, measure_error};
use taut_host::{CorePlan, Machine};
use taut_results::{LeftOut, Mode};

/// Frame size in bytes, frame check sequence included.
const FRAME_SIZE_BYTES: usize = 64;

/// Loads in cycles per packet, and batch sizes, for which the deviation of the burnt from the requested cycles is
/// measured.
const CHECKED_BURNS: [u32; 9] = [10, 30, 50, 75, 100, 350, 1_000, 3_000, 10_000];
const CHECKED_BATCHES: [usize; 4] = [1, 2, 8, 32];

/// The benchmark `taut bench io`.
#[derive(Debug)]
pub struct IoCost {
    lengths: Lengths,
    facts: Facts,
}

impl IoCost {
    /// Makes the benchmark. It finds its frameworks when it runs.
    pub fn new() -> Self {
        Self {
            lengths: Lengths::of(Mode::Default, None),
            facts: Facts::default(),
        }
    }
}

impl Default for IoCost {
    fn default() -> Self {
        Self::new()
    }
}

impl Benchmark for IoCost {
    type Part = Part;
    type Outcome = Series;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "bench io",
        title: "What input and output of a packet cost",
        head: "io.json",
        schema: 2,
        outcomes: "series",
        subject: "framework",
        advice: "taut ports says what each port needs",
        phases: 1,
    };

    fn prepare(&mut self, plan: &Plan, rig: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        let machine = Machine::read();
        let memory_bytes = machine.memory_bytes.as_ref().map(|m| m.value);
        self.lengths = Lengths::of(plan.mode, memory_bytes);
        self.lengths.trial = plan.trial.unwrap_or(self.lengths.trial);
        let possible = framework::possible();
        let known: Vec<String> = possible.0.iter().map(|f| f.id.clone()).collect();
        let (frameworks, left_out) = choose(
            Self::DESCRIPTION.subject,
            &plan.only,
            possible,
            Framework::id,
            &known,
        )?;
        self.facts = Facts {
            steps: self.lengths.steps,
            frame_size_bytes: FRAME_SIZE_BYTES as u32,
            caches: machine.caches,
            frameworks,
            burn_errors: measure_burns(rig.cores)?,
            hardware_counters: HardwareCounters::probe(),
        };
        Ok(left_out)
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: self.lengths.repetitions,
            trial: self.lengths.trial,
            facts: self.facts.clone(),
        }
    }

    fn turns(&self, _: u32, repetition: u32) -> Vec<(usize, Part)> {
        let mut turns = Vec::new();
        for (index, framework) in self.facts.frameworks.iter().enumerate() {
            let walks = framework.program == Program::Taut
                && ["null", "memif"].contains(&framework.id.as_str());
            for part in [Part::Load, Part::Batch, Part::Walk] {
                if self.lengths.has_part(part, repetition) && (part != Part::Walk || walks) {
                    turns.push((index, part));
                }
            }
        }
        turns
    }

    fn describe(&self, subject: usize, part: Part) -> Described {
        let framework = &self.facts.frameworks[subject];
        Described {
            file_name: format!("{}-{}", framework.id, part.name()),
            label: format!("{} {}", framework.label, part.name()),
            estimate: self.lengths.estimate(framework, part),
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Part>,
        stop: &AtomicBool,
    ) -> Result<Series, Failed> {
        let framework = &self.facts.frameworks[unit.subject];
        let mut series = Series {
            framework: framework.id.clone(),
            part: unit.part,
            repetition: unit.repetition,
            capacity_pps: None,
            knee: None,
            trials: Vec::new(),
        };
        let mut session = Session::open(*rig, framework, FRAME_SIZE_BYTES)?;
        trial::measure(&mut session, &mut series, &self.lengths, stop)?;
        Ok(series)
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        Ok((report::write(dir, results)?, report::text(results, width)))
    }
}

/// Measures the deviation of the burnt from the requested cycles on the core that the benchmark uses.
fn measure_burns(cores: &CorePlan) -> Result<Vec<BurnError>, BenchmarkError> {
    let core = cores.device;
    let measured = std::thread::scope(|scope| {
        let watch = move || {
            taut_host::pin_current_thread(core)?;
            let errors = CHECKED_BURNS
                .iter()
                .flat_map(|cycles| CHECKED_BATCHES.map(|batch| measure_error(*cycles, batch)));
            Ok(errors.collect::<Result<_, _>>()?)
        };
        scope.spawn(watch).join()
    });
    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
