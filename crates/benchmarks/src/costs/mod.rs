//! The cycles per packet on this machine at saturation, over load, functions, frame size, batch and kind of port. The
//! resource model is fitted to these runs and checked with them. (Gallenmüller 2021, sections 4 and 5.1.)
//!
//! The runs are at the points of a [`design`]. In each run, the generator saturates a worker of taut, which has a
//! thread of its own, and the cost is derived from the worker's counters ([`Trial`]). The report fits a model to one
//! half of each port's points and checks the model with the other half ([`Evaluation`]).

pub mod design;
mod evaluate;
mod figures;
mod lengths;
#[cfg(test)]
mod made_up;
mod page;
mod prediction;
mod report;
mod trial;

pub use evaluate::{Evaluation, PortModel};
pub use lengths::Lengths;
pub use report::Summary;
pub use trial::{Bottleneck, Trial};

use design::Point;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit, choose,
};
use taut_bench::framework::{Framework, Program, Session, Transport};
use taut_bench::report::ReportError;
use taut_port::backends;
use taut_results::{LeftOut, Mode};

/// The minimum number of points for a model with only the load: in each half, three more points than terms.
pub const FEWEST_POINTS: usize = 10;

/// The JavaScript that moves the sliders of the page.
pub const SLIDERS: &str = include_str!("sliders.js");

/// The contents of a results folder, read from disk.
pub type Results = taut_bench::benchmark::Results<Costs>;

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Number of design points for each kind of port.
    pub points: usize,
    /// Kinds of ports, in the order of the report.
    pub ports: Vec<Framework>,
}

/// The benchmark `taut bench costs`.
#[derive(Debug)]
pub struct Costs {
    points: Option<usize>,
    lengths: Lengths,
    facts: Facts,
    designs: Vec<Vec<Point>>,
}

impl Costs {
    /// Makes the benchmark with `points` points for each kind of port; `None` selects the number of the mode.
    pub fn new(points: Option<usize>) -> Self {
        Self {
            points,
            lengths: Lengths::of(Mode::Default),
            facts: Facts::default(),
            designs: Vec::new(),
        }
    }
}

impl Benchmark for Costs {
    type Part = usize;
    type Outcome = Trial;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "bench costs",
        title: "What a packet costs, measured and fitted",
        head: "costs.json",
        schema: 1,
        outcomes: "points",
        subject: "port",
        advice: "taut ports says what each port needs",
        phases: 1,
    };

    fn prepare(&mut self, plan: &Plan, _: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        self.lengths = Lengths::of(plan.mode);
        if let Some(trial) = plan.trial {
            self.lengths.set_trial(trial);
        }
        self.lengths.points = self.points.unwrap_or(self.lengths.points);
        let known: Vec<String> = all().into_iter().map(|port| port.id).collect();
        let (ports, left_out) = choose(
            Self::DESCRIPTION.subject,
            &plan.only,
            possible(),
            Framework::id,
            &known,
        )?;
        let count = self.lengths.points;
        // The index refers to the list of all kinds of ports, so that the points of one kind do not depend on which
        // other kinds are measured.
        let number = |port: &Framework| known.iter().position(|id| *id == port.id);
        self.designs = ports
            .iter()
            .map(|port| design::draw(count, plan.seed, number(port).unwrap_or(0)))
            .collect();
        self.facts = Facts {
            points: count,
            ports,
        };
        Ok(left_out)
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: 1,
            trial: self.lengths.trial(),
            facts: self.facts.clone(),
        }
    }

    fn turns(&self, _: u32, _: u32) -> Vec<(usize, usize)> {
        let points = 0..self.lengths.points;
        let turns = points.flat_map(|point| (0..self.designs.len()).map(move |port| (port, point)));
        turns.collect()
    }

    fn describe(&self, port: usize, point: usize) -> Described {
        let (id, label) = (&self.facts.ports[port].id, &self.facts.ports[port].label);
        let of = &self.designs[port][point];
        Described {
            file_name: format!("{id}-{point:04}"),
            label: format!(
                "{label} at {} cycles, {} functions, {} bytes, burst {}",
                of.load_cycles, of.functions, of.frame_bytes, of.burst
            ),
            estimate: self.lengths.estimate(),
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<usize>,
        stop: &AtomicBool,
    ) -> Result<Trial, Failed> {
        let point = self.designs[unit.subject][unit.part];
        let port = &self.facts.ports[unit.subject];
        let mut session = Session::open(*rig, port, point.frame_bytes as usize)?;
        let device = (rig.cores.device, &rig.clock);
        trial::measure(
            &mut session,
            (unit.part, point),
            &self.lengths,
            device,
            stop,
        )
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        Ok((report::write(dir, results)?, report::text(results, width)))
    }
}

/// Returns every kind of port that is measured. All workers are threads of this process, so their counters can be read
/// during a run.
fn all() -> Vec<Framework> {
    let thread =
        |id, transport, ports| Framework::new(id, id, Program::TautThread, transport, ports);
    vec![
        thread(
            "null",
            Transport::Nothing,
            ["null:source={burst},size={size}", "null:"],
        )
        .noted("no device: the worker makes its packets itself, and they vanish"),
        thread("pair", Transport::Pair, ["pair:{0}", "pair:{1}"])
            .noted("rings between threads; what is sent is copied once"),
        thread(
            "memif",
            Transport::Memif,
            ["memif:{0},role=client", "memif:{1},role=client"],
        )
        .noted("client on both links with one packet pool: frames are forwarded without a copy"),
    ]
}

/// Returns the kinds of ports that this build supports, and the skipped ones.
fn possible() -> (Vec<Framework>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let mut found = all();
    found.retain(|port| {
        let backend = backends().iter().find(|backend| backend.name == port.id);
        let why = match backend.map(|backend| (backend.probe)()) {
            Some(Ok(_)) => return true,
            Some(Err(error)) => error.to_string(),
            None => "this build has no such port".to_string(),
        };
        left_out.push(LeftOut {
            what: format!("{} ports", port.id),
            why,
            how: Costs::DESCRIPTION.advice.to_string(),
        });
        false
    });
    (found, left_out)
}
