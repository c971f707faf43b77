//! A complete switch, measured with only two generator ports. Cables between the switch's own ports send each packet
//! through the switch many times, and a switch that copies packets multiplies the load. (FLOWer: Gallenmüller 2021,
//! section 3.4; IFIP Networking 2016.)
//!
//! A *measurement*, such as latency over the number of cables, consists of *points*, each with one value of the varied
//! quantity. The *amplifier* is a second switch that copies packets, if the measured switch does not do so itself. The
//! points are in `part.rs`, the switches in `device.rs`, and the abilities of each switch in `ability.rs`. For each
//! point a switch is set up (`plant.rs`) with the wires from a file (`topology.rs`). Its rules are added (`keeper.rs`),
//! over OpenFlow (`openflow.rs`) or P4Runtime
//! (`p4runtime/`) if it supports that, and then it is measured (`trial.rs`, `insertion.rs`).

mod ability;
mod device;
mod evaluate;
mod figures;
mod insertion;
mod keeper;
mod openflow;
mod outcome;
mod p4runtime;
mod part;
mod plant;
mod report;
mod rules;
mod topology;
mod trial;

pub use device::Switch;
pub use outcome::{Amplified, Latency, OnWire, Seen, Trial};
pub use p4runtime::{fuzz_frames, fuzz_p4info};
pub use part::{Does, Lengths, MEASUREMENTS, Matching, Order, Part};
pub use topology::{Topology, Wires};

use schemars::{Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit,
};
use taut_bench::report::ReportError;
use taut_results::{LeftOut, Mode};

/// A results folder that was read back.
pub type Results = taut_bench::benchmark::Results<Switched>;

/// Returns the schema of `summary.json`.
pub fn summary_schema(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<evaluate::Evaluation<'_>>()
}

/// The fields of the manifest that only this benchmark has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Switches and their versions, in the order of the report.
    pub switches: Vec<(Switch, String)>,
    /// The second switch, which multiplied traffic; none if the measured switch did so itself.
    pub amplifier: Option<Switch>,
}

/// The benchmark `taut bench switch`.
#[derive(Debug)]
pub struct Switched {
    asked: Vec<Switch>,
    wires: Wires,
    lengths: Lengths,
    parts: Vec<Part>,
    facts: Facts,
}

impl Switched {
    /// Makes the benchmark of the given switches with the given wiring.
    pub fn new(asked: Vec<Switch>, wires: Wires) -> Self {
        Self {
            asked,
            wires,
            lengths: Lengths::of(Mode::Default),
            parts: Vec::new(),
            facts: Facts::default(),
        }
    }

    fn switch(&self, subject: usize) -> &Switch {
        &self.facts.switches[subject].0
    }

    /// Returns the measurements that a switch supports only in part or not at all, each with the reason.
    fn cannot(&self) -> Vec<LeftOut> {
        let mut left_out: Vec<LeftOut> = Vec::new();
        for (switch, _) in &self.facts.switches {
            for measurement in MEASUREMENTS {
                let parts = self.parts.iter();
                let parts: Vec<Part> = parts
                    .copied()
                    .filter(|part| part.measurement() == measurement)
                    .collect();
                let why = |part: &Part| switch.cannot(*part, &self.wires);
                // Points are in the order of their requirements, so the last reason is that of the point that requires
                // the most.
                let mut reasons = parts.iter().filter_map(why).filter(|why| !why.is_empty());
                let Some(reason) = reasons.next_back() else {
                    continue;
                };
                let label = switch.label();
                let what = match parts.iter().all(|part| why(part).is_some()) {
                    true => format!("{measurement} of {label}"),
                    false => format!("some points of {measurement} of {label}"),
                };
                left_out.push(LeftOut {
                    what,
                    why: reason.to_string(),
                    how: format!("taut bench switch taut --only {measurement}"),
                });
            }
        }
        left_out
    }
}

impl Benchmark for Switched {
    type Part = Part;
    type Outcome = Trial;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "bench switch",
        title: "A switch measured by two ports",
        head: "switch.json",
        schema: 2,
        outcomes: "points",
        subject: "measurement",
        advice: "see what the switch says when it is run by hand",
        phases: 1,
    };

    fn prepare(&mut self, plan: &Plan, _: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        self.lengths = Lengths::of(plan.mode);
        self.lengths.trial = plan.trial.unwrap_or(self.lengths.trial);
        let is_known = |asked: &&String| MEASUREMENTS.contains(&asked.as_str());
        if let Some(asked) = plan.only.iter().find(|asked| !is_known(asked)) {
            return Err(BenchmarkError::Unknown {
                what: Self::DESCRIPTION.subject,
                asked: asked.clone(),
                there: MEASUREMENTS.join(", "),
            });
        }
        let is_wanted = |name: &str| plan.only.is_empty() || plan.only.iter().any(|it| it == name);
        if let Some(topology) = &self.wires.topology {
            let multiplied = match self.wires.amplifier {
                Some(_) => topology.links(),
                None => topology.cables(),
            };
            self.lengths.keep_to(topology.cables(), multiplied);
        }
        self.parts = self.lengths.parts(is_wanted);
        self.facts.amplifier = self.wires.amplifier.clone();
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
        left_out.extend(self.cannot());
        let can_one = |it: &(Switch, String)| {
            let mut parts = self.parts.iter();
            parts.any(|part| it.0.cannot(*part, &self.wires).is_none())
        };
        if !self.facts.switches.iter().any(can_one) {
            let why = left_out.iter().map(|it| format!("{}: {}", it.what, it.why));
            return Err(BenchmarkError::Missing(why.collect::<Vec<_>>().join("; ")));
        }
        Ok(left_out)
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: self.lengths.repetitions,
            trial: self.lengths.trial,
            facts: self.facts.clone(),
        }
    }

    fn turns(&self, _: u32, _: u32) -> Vec<(usize, Part)> {
        let switches = self.facts.switches.iter().enumerate();
        let turns = switches.flat_map(|(subject, (switch, _))| {
            let parts = self.parts.iter();
            let parts = parts.filter(|part| switch.cannot(**part, &self.wires).is_none());
            parts.map(move |part| (subject, *part))
        });
        turns.collect()
    }

    fn describe(&self, subject: usize, part: Part) -> Described {
        let switch = self.switch(subject);
        let (measurement, point) = (part.measurement(), part.point());
        Described {
            file_name: format!("{}-{measurement}-{point}", switch.file_name()),
            label: format!("{} {measurement} {point}", switch.label()),
            estimate: self.lengths.estimate(part) + switch.starts_within(),
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Part>,
        stop: &AtomicBool,
    ) -> Result<Trial, Failed> {
        let subject = (self.switch(unit.subject), &self.wires);
        trial::measure(rig, subject, unit, &self.lengths, stop)
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        Ok((report::write(dir, results)?, report::text(results, width)))
    }
}
