//! Generators as devices under test, seen by an independent receiver: how many packets they send, how near
//! the rate they are asked for, and how evenly. (Gallenmüller 2021, section 3.3.)

mod contender;
mod evaluate;
mod lengths;
mod report;
mod results;
mod trial;

pub use contender::{Contender, Program};
pub use evaluate::{Evaluation, RateRow, Row, render_text_table};
pub use report::{is_generators, write as write_report};
pub use results::{Head, Rates, Results};
pub use trial::{Part, Trial};

use crate::comparison::{self, Observer, scratch};
use crate::io_cost::{Transport, in_short};
use crate::results::{LeftOut, Mode, PartsFolder, ResultsError, Stage};
use lengths::Lengths;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use taut_host::{Machine, Snapshot, choose_cores};
use taut_sys::Clock;
use trial::{Failed, Place};

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long and how often.
    pub mode: Mode,
    /// Order of the generators in each repetition.
    pub seed: u64,
    /// The results folder, which must not hold an experiment yet.
    pub folder: PathBuf,
    /// The `taut` program, run as one of the generators.
    pub program: PathBuf,
    /// The command that repeats all this.
    pub command_line: String,
    /// Ids of the generators to measure; all that are possible if empty.
    pub only: Vec<String>,
    /// Length of each trial, if not the mode's.
    pub trial: Option<Duration>,
    /// Rates to ask for, packets per second; chosen by what the slowest can send if empty.
    pub rates_pps: Vec<f64>,
}

/// Why there is no result at all.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorsError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A generator was asked for that is not there.
    #[error("no generator \"{asked}\" here; there are {there}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// What there is.
        there: String,
    },
    /// One was asked for that the machine lacks something for.
    #[error("{0}")]
    Missing(String),
    /// Nothing could be measured.
    #[error("no generator could be measured; the first said: {0}")]
    Nothing(String),
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
}

/// Measures everything: what each can send first, from which the rates follow, then precision. Ends early,
/// with complete trials kept and the folder marked as interrupted, when `stop` is set.
///
/// # Errors
/// When results cannot be written, or nothing could be measured. A generator that fails is left out with
/// its reason instead.
pub fn run(
    plan: &Plan,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<PathBuf, GeneratorsError> {
    scratch::sweep_stale();
    let cores = choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let machine = Machine::read();
    let mut lengths = Lengths::of(plan.mode);
    lengths.trial = plan.trial.unwrap_or(lengths.trial);
    let (generators, left_out) = choose(&plan.only)?;
    for missing in &left_out {
        observer.left_out(missing);
    }
    let mut head = Head {
        schema: Head::SCHEMA,
        title: "Bandwidth, accuracy and precision of packet generators".to_string(),
        taut_version: env!("CARGO_PKG_VERSION").to_string(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command_line: plan.command_line.clone(),
        stage: Stage::Running,
        mode: plan.mode,
        seed: plan.seed,
        repetitions: lengths.repetitions,
        trial_seconds: lengths.trial.as_secs_f64(),
        rates: Vec::new(),
        machine: serde_json::to_value(&machine).unwrap_or_default(),
        core_plan: cores.note.clone(),
        noise: comparison::noise(&cores, None),
        left_out,
        generators,
        tsc_hz: clock.hz,
        tsc_error_ppm: clock.error_ppm,
    };
    let taken = comparison::measure_interruptions(&clock, &cores)?;
    head.noise.extend(taken.clone());
    let folder = PartsFolder::create(&plan.folder, (results::HEAD, &head), results::PARTS)?;
    let before = Snapshot::take();
    let mut session = Session {
        place: Place {
            program: &plan.program,
            cores: &cores,
            clock,
            length: lengths.trial,
        },
        generators: head.generators.clone(),
        lengths: &lengths,
        folder: &folder,
        random: fastrand::Rng::with_seed(plan.seed),
        measured: Vec::new(),
        failures: Vec::new(),
        done: Duration::ZERO,
        total: Duration::ZERO,
        observer,
        stop,
    };
    let bandwidth = session.units(|c| match c.paces() {
        true => vec![Part::Unpaced, Part::Paced],
        false => vec![Part::Unpaced],
    });
    // Which rates follow is not known yet, how many is.
    let some = vec![
        1.0;
        if plan.rates_pps.is_empty() {
            3
        } else {
            plan.rates_pps.len()
        }
    ];
    let later =
        session.units_of_rates(&[Transport::Memif, Transport::Veth].map(|t| (t, some.clone())));
    session.total = session.estimate(&bandwidth) + session.estimate(&later);
    session.measure(bandwidth)?;
    head.rates = choose_rates(&session.generators, &session.measured, &plan.rates_pps);
    folder.update(&head)?;
    let rates: Vec<_> = head
        .rates
        .iter()
        .map(|rates| (rates.transport, rates.pps.clone()))
        .collect();
    let precision = session.units_of_rates(&rates);
    session.total = session.done + session.estimate(&precision);
    session.measure(precision)?;
    let Session {
        measured, failures, ..
    } = session;
    let first_failure = failures.first().map(|missing| missing.why.clone());
    head.left_out.extend(failures);
    let activity =
        Snapshot::difference(&before, &Snapshot::take(), &[cores.generator, cores.device]);
    head.noise = comparison::noise(&cores, Some(&activity));
    head.noise.extend(taken);
    head.stage = if stop.load(Ordering::Relaxed) {
        Stage::Interrupted
    } else {
        Stage::Finished
    };
    folder.update(&head)?;
    match first_failure {
        Some(why) if measured.is_empty() => Err(GeneratorsError::Nothing(why)),
        _ => Ok(plan.folder.clone()),
    }
}

/// A trial still to be measured.
struct Unit {
    generator: usize,
    part: Part,
    repetition: u32,
}

struct Session<'a> {
    place: Place<'a>,
    generators: Vec<Contender>,
    lengths: &'a Lengths,
    folder: &'a PartsFolder,
    random: fastrand::Rng,
    measured: Vec<Trial>,
    failures: Vec<LeftOut>,
    done: Duration,
    total: Duration,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
}

impl Session<'_> {
    /// All units: generators take turns in each repetition, in an order of its own.
    fn units(&mut self, parts: impl Fn(&Contender) -> Vec<Part>) -> Vec<Unit> {
        let mut units = Vec::new();
        for repetition in 1..=self.lengths.repetitions {
            let mut turn: Vec<Unit> = Vec::new();
            for (generator, contender) in self.generators.iter().enumerate() {
                turn.extend(parts(contender).into_iter().map(|part| Unit {
                    generator,
                    part,
                    repetition,
                }));
            }
            self.random.shuffle(&mut turn);
            units.extend(turn);
        }
        units
    }

    fn units_of_rates(&mut self, rates: &[(Transport, Vec<f64>)]) -> Vec<Unit> {
        self.units(|contender| {
            let of = rates.iter().find(|(t, _)| *t == contender.transport);
            match of {
                Some((_, pps)) if contender.paces() => {
                    pps.iter().copied().map(Part::Rate).collect()
                }
                _ => Vec::new(),
            }
        })
    }

    fn estimate(&self, units: &[Unit]) -> Duration {
        let each = units.iter().map(|unit| &self.generators[unit.generator]);
        each.map(|c| self.lengths.estimate(c.transport)).sum()
    }

    fn measure(&mut self, units: Vec<Unit>) -> Result<(), ResultsError> {
        let mut given_up: Vec<(usize, Part)> = Vec::new();
        for unit in units {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let contender = &self.generators[unit.generator];
            let estimate = self.lengths.estimate(contender.transport);
            if given_up.contains(&(unit.generator, unit.part)) {
                self.total = self.total.saturating_sub(estimate);
                continue;
            }
            let what = format!(
                "{} over {} {}",
                contender.label,
                contender.transport.name(),
                unit.part.name()
            );
            self.observer.progress(self.done, self.total, &what);
            let attempt =
                || trial::measure(self.place, contender, unit.part, unit.repetition, self.stop);
            // A stall of a shared machine spoils one attempt, what is broken both.
            let result = match attempt() {
                Err(Failed::Broken(_)) => attempt(),
                other => other,
            };
            match result {
                Ok(trial) => {
                    self.folder.write(&trial.name(), &trial)?;
                    self.measured.push(trial);
                }
                Err(Failed::Stopped) => break,
                Err(Failed::Broken(why)) => {
                    let missing = LeftOut {
                        what: format!("{what}, from repetition {} on", unit.repetition),
                        why: in_short(&why),
                        how: "see what the program says when it is run by hand".to_string(),
                    };
                    self.observer.left_out(&missing);
                    self.failures.push(missing);
                    given_up.push((unit.generator, unit.part));
                }
            }
            self.done += estimate;
        }
        Ok(())
    }
}

fn choose(only: &[String]) -> Result<(Vec<Contender>, Vec<LeftOut>), GeneratorsError> {
    let (mut found, left_out) = contender::possible();
    if only.is_empty() {
        return Ok((found, left_out));
    }
    let all = contender::ids();
    for asked in only {
        if !all.contains(asked) {
            return Err(GeneratorsError::Unknown {
                asked: asked.clone(),
                there: all.join(", "),
            });
        }
        if !found.iter().any(|contender| contender.id == *asked) {
            let why = left_out
                .iter()
                .map(|l| format!("{}: {} ({})", l.what, l.why, l.how));
            return Err(GeneratorsError::Missing(format!(
                "\"{asked}\" cannot be had here; missing: {}",
                why.collect::<Vec<_>>().join("; ")
            )));
        }
    }
    found.retain(|contender| only.contains(&contender.id));
    Ok((found, Vec::new()))
}

/// For each transport, the rates that all its generators can hold.
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
        // A generator of which nothing was measured says nothing.
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
                "the slowest that can be asked for a rate, {}, sends {} at most",
                slowest.label,
                crate::quantity::rate(pps)
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
    fn rates_follow_from_the_slowest_that_paces_over_the_same_transport() {
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
        assert!(rates[1].why.contains("d, sends 140 kpkt/s"), "{rates:?}");
        let asked = choose_rates(&generators, &measured, &[5e3]);
        assert!(asked.iter().all(|r| r.pps == [5e3]));
    }
}
