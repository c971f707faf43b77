//! Load generators as devices under test. An independent receiver measures how many packets they send, how close they
//! come to the requested rate, and how evenly they send. (The reference is Gallenmüller 2021, section 3.3.)

mod contender;
mod evaluate;
mod facts;
mod lengths;
mod report;
mod trial;

pub use contender::{Contender, Program};
pub use evaluate::{Evaluation, RateRow, Row};
pub use facts::{Facts, Rates, Results};
pub use report::Summary;
pub use trial::{Part, Trial};

use lengths::Lengths;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::{
    Benchmark, BenchmarkError, Described, Description, Failed, Plan, Rig, Settings, Unit, choose,
};
use taut_bench::framework::Transport;
use taut_bench::report::ReportError;
use taut_results::{LeftOut, Mode};

/// Number of rates at which precision is compared by default.
const USUAL_RATES: usize = 3;

/// `taut bench generator`. It first measures the highest rate of each generator, derives the rates from these, and then
/// measures precision.
#[derive(Debug)]
pub struct Generators {
    asked_pps: Vec<f64>,
    lengths: Lengths,
    facts: Facts,
}

impl Generators {
    /// Makes the benchmark. It compares precision at `asked_pps` (packets per second); if that is empty, at rates that
    /// all generators of a transport reach.
    pub fn new(asked_pps: Vec<f64>) -> Self {
        Self {
            asked_pps,
            lengths: Lengths::of(Mode::Default),
            facts: Facts::default(),
        }
    }

    /// Returns the rates over a transport. Before they are known, it returns the same number of placeholders.
    fn rates(&self, transport: Transport) -> Vec<f64> {
        if self.facts.rates.is_empty() {
            let some = match self.asked_pps.len() {
                0 => USUAL_RATES,
                asked => asked,
            };
            return vec![1.0; some];
        }
        let rates = self.facts.rates.iter();
        let mut over = rates.filter(|rates| rates.transport == transport);
        over.next().map(|r| r.pps.clone()).unwrap_or_default()
    }
}

impl Benchmark for Generators {
    type Part = Part;
    type Outcome = Trial;
    type Facts = Facts;

    const DESCRIPTION: Description = Description {
        command: "bench generator",
        title: "Bandwidth, accuracy and precision of packet generators",
        head: "generators.json",
        schema: 1,
        outcomes: "trials",
        subject: "generator",
        advice: "see what the program says when it is run by hand",
        phases: 2,
    };

    fn prepare(&mut self, plan: &Plan, _: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
        self.lengths = Lengths::of(plan.mode);
        self.lengths.trial = plan.trial.unwrap_or(self.lengths.trial);
        let mut possible = contender::possible();
        if plan.only.is_empty() {
            possible
                .0
                .retain(|contender| contender.id != contender::PAIRS);
        }
        let known = contender::ids();
        let (generators, left_out) = choose(
            Self::DESCRIPTION.subject,
            &plan.only,
            possible,
            Contender::id,
            &known,
        )?;
        self.facts.generators = generators;
        Ok(left_out)
    }

    fn settings(&self) -> Settings<Facts> {
        Settings {
            repetitions: self.lengths.repetitions,
            trial: self.lengths.trial,
            facts: self.facts.clone(),
        }
    }

    fn begin_phase(&mut self, phase: u32, trials: &[Trial]) {
        if phase > 0 {
            self.facts.rates = choose_rates(&self.facts.generators, trials, &self.asked_pps);
        }
    }

    fn turns(&self, phase: u32, _: u32) -> Vec<(usize, Part)> {
        let mut turns = Vec::new();
        for (index, contender) in self.facts.generators.iter().enumerate() {
            let parts = match (phase, contender.paces()) {
                (0, true) => vec![Part::Unpaced, Part::Paced],
                (0, false) => vec![Part::Unpaced],
                (_, true) => {
                    let rates = self.rates(contender.transport);
                    rates.into_iter().map(Part::Rate).collect()
                }
                (_, false) => Vec::new(),
            };
            turns.extend(parts.into_iter().map(|part| (index, part)));
        }
        turns
    }

    fn describe(&self, subject: usize, part: Part) -> Described {
        let contender = &self.facts.generators[subject];
        let over = contender.transport.name();
        Described {
            file_name: format!("{}-{}", contender.id, part.name()),
            label: format!("{} over {over} {}", contender.label, part.name()),
            estimate: self.lengths.estimate(contender.transport),
        }
    }

    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Part>,
        stop: &AtomicBool,
    ) -> Result<Trial, Failed> {
        let contender = &self.facts.generators[unit.subject];
        trial::measure(rig, contender, unit, self.lengths.trial, stop)
    }

    fn report(
        dir: &Path,
        results: &Results,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError> {
        Ok((report::write(dir, results)?, report::text(results, width)))
    }
}

/// Returns, for each transport, the rates at which precision is compared: `asked_pps`, or if that is empty, rates that
/// all pacing generators of the transport reach.
fn choose_rates(generators: &[Contender], measured: &[Trial], asked_pps: &[f64]) -> Vec<Rates> {
    let mut all = Vec::new();
    for transport in [Transport::Memif, Transport::Veth] {
        let there: Vec<&Contender> = generators
            .iter()
            .filter(|c| c.transport == transport && c.paces())
            .collect();
        if there.is_empty() {
            continue;
        }
        if !asked_pps.is_empty() {
            all.push(Rates {
                transport,
                pps: asked_pps.to_vec(),
                why: "as asked for".to_string(),
            });
            continue;
        }
        // A generator without measurements does not limit the rates.
        let most = there.iter().filter_map(|contender| {
            let trials = measured
                .iter()
                .filter(|t| t.generator == contender.id && t.part == Part::Paced);
            let pps = taut_measure::median(&trials.map(|t| t.pps).collect::<Vec<_>>())?;
            Some((contender, pps))
        });
        let Some((slowest, pps)) = most.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            continue;
        };
        all.push(Rates {
            transport,
            pps: lengths::rates(pps).to_vec(),
            why: format!(
                "the slowest generator with a configurable rate, {}, sends at most {}",
                slowest.label,
                taut_measure::quantity::rate(pps)
            ),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_stay_below_the_slowest_paced_generator_of_each_transport() {
        let contender = |id: &str, program, transport| Contender {
            id: id.to_string(),
            label: id.to_string(),
            program,
            transport,
            port: String::new(),
            note: String::new(),
        };
        let generators = [
            contender("a", Program::Taut, Transport::Memif),
            contender("b", Program::Testpmd, Transport::Memif),
            contender("c", Program::Trafgen, Transport::Veth),
            contender("d", Program::Tcpreplay, Transport::Veth),
        ];
        let trial = |id: &str, pps| Trial {
            pps,
            ..evaluate::made_up_trial(id, Part::Paced)
        };
        let measured = [trial("a", 6e6), trial("c", 300e3), trial("d", 140e3)];
        let rates = choose_rates(&generators, &measured, &[]);
        assert_eq!(rates[0].pps, [1e6, 2e6, 4e6]);
        assert_eq!(rates[1].pps, [10e3, 50e3, 100e3]);
        assert!(
            rates[1].why.contains("d, sends at most 140 kpkt/s"),
            "{rates:?}"
        );
        let asked = choose_rates(&generators, &measured, &[5e3]);
        assert!(asked.iter().all(|r| r.pps == [5e3]));
    }
}
