//! A whole switch measured by two generator ports: packets are sent through it again and again by cables from one of its ports to
//! another, and multiplied by it. (FLOWer: Gallenmüller 2021, section 3.4; IFIP Networking 2016.)
//!
//! The points are in `part.rs`. A switch is set up for each of them (`device.rs`), told its rules over OpenFlow (`openflow.rs`), whoever
//! wrote it, and measured (`trial.rs`, `insertion.rs`).

mod device;
mod evaluate;
mod figures;
mod insertion;
mod openflow;
mod part;
mod report;
mod rules;
mod trial;

pub use device::Switch;
pub use part::{Does, Lengths, MEASUREMENTS, Matching, Order, Part};
pub use trial::{Amplified, Latency, Seen, Trial};

use crate::benchmark::{self, Benchmark, BenchmarkError, Failed, Plan, Rig, Unit};
use crate::report::ReportError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_results::{LeftOut, Mode};

/// A results folder read back.
pub type Results = benchmark::Results<Switched>;

/// What only this benchmark says in its head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Switches, in the order of the report, and their versions.
    pub switches: Vec<(Switch, String)>,
}

/// `taut bench switch`.
#[derive(Debug)]
pub struct Switched {
    asked: Vec<Switch>,
    lengths: Lengths,
    parts: Vec<Part>,
    facts: Facts,
}

impl Switched {
    /// Makes the benchmark of these switches.
    pub fn new(asked: Vec<Switch>) -> Self {
        Self {
            asked,
            lengths: Lengths::of(Mode::Default),
            parts: Vec::new(),
            facts: Facts::default(),
        }
    }

    fn switch(&self, subject: usize) -> Switch {
        self.facts.switches[subject].0
    }
}

/// Whether a switch can do what a point wants.
fn can(switch: Switch, part: Part) -> bool {
    match (switch, part) {
        (Switch::Taut, _) => true,
        (Switch::OpenVSwitch, Part::Qos { .. }) => false,
        (Switch::OpenVSwitch, Part::Rules { matching, .. }) => matching != Matching::Plain,
        (Switch::OpenVSwitch, _) => true,
    }
}

impl Benchmark for Switched {
    type Part = Part;
    type Outcome = Trial;
    type Facts = Facts;

    const COMMAND: &'static str = "bench switch";
    const TITLE: &'static str = "A switch measured by two ports";
    const HEAD: &'static str = "switch.json";
    const SCHEMA: u32 = 1;
    const OUTCOMES: &'static str = "points";
    const SUBJECT: &'static str = "measurement";
    const ADVICE: &'static str = "see what the switch says when it is run by hand";

    fn prepare(&mut self, plan: &Plan, _: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        self.lengths = Lengths::of(plan.mode);
        self.lengths.trial = plan.trial.unwrap_or(self.lengths.trial);
        let is_known = |asked: &&String| MEASUREMENTS.contains(&asked.as_str());
        if let Some(asked) = plan.only.iter().find(|asked| !is_known(asked)) {
            return Err(BenchmarkError::Unknown {
                what: Self::SUBJECT,
                asked: asked.clone(),
                there: MEASUREMENTS.join(", "),
            });
        }
        let is_wanted = |name: &str| plan.only.is_empty() || plan.only.iter().any(|it| it == name);
        self.parts = self.lengths.parts(is_wanted);
        let mut left_out = Vec::new();
        for switch in std::mem::take(&mut self.asked) {
            match switch.found() {
                Ok(version) => self.facts.switches.push((switch, version)),
                Err(missing) => left_out.push(missing),
            }
        }
        if self.facts.switches.is_empty() {
            let why = left_out
                .iter()
                .map(|it| format!("{}: {} ({})", it.what, it.why, it.how));
            return Err(BenchmarkError::Missing(why.collect::<Vec<_>>().join("; ")));
        }
        let has_other = |it: &(Switch, String)| it.0 == Switch::OpenVSwitch;
        if self.facts.switches.iter().any(has_other) && is_wanted("qos") {
            left_out.push(LeftOut {
                what: "qos of Open vSwitch".to_string(),
                why: "its user-space datapath has no queues of strict priority".to_string(),
                how: "taut bench switch taut --only qos".to_string(),
            });
        }
        Ok(left_out)
    }

    fn repetitions(&self) -> u32 {
        self.lengths.repetitions
    }

    fn trial(&self) -> Duration {
        self.lengths.trial
    }

    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn turns(&self, _: u32, _: u32) -> Vec<(usize, Part)> {
        let switches = self.facts.switches.iter().enumerate();
        let turns = switches.flat_map(|(subject, (switch, _))| {
            let parts = self.parts.iter().filter(|part| can(*switch, **part));
            parts.map(move |part| (subject, *part))
        });
        turns.collect()
    }

    fn file_name(&self, subject: usize, part: Part) -> String {
        let id = self.switch(subject).id();
        format!("{id}-{}-{}", part.measurement(), part.point())
    }

    fn label(&self, subject: usize, part: Part) -> String {
        let label = self.switch(subject).label();
        format!("{label} {} {}", part.measurement(), part.point())
    }

    fn estimate(&self, subject: usize, part: Part) -> Duration {
        let set_up = match self.switch(subject) {
            Switch::Taut => 350,
            Switch::OpenVSwitch => 3_000,
        };
        self.lengths.estimate(part) + Duration::from_millis(set_up)
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Part>,
        stop: &AtomicBool,
    ) -> Result<Trial, Failed> {
        trial::measure(rig, self.switch(unit.subject), unit, &self.lengths, stop)
    }

    fn report(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
        report::write(dir, results)
    }

    fn text(results: &Results, width: Option<usize>) -> String {
        report::text(results, width)
    }
}
