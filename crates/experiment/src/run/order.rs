//! Order of the runs: chooses the next run, retries failed runs, and decides when repetitions end.

use super::{Driver, Failed};
use crate::compare::words;
use crate::error::ExperimentError;
use crate::folder::State;
use crate::metrics;
use crate::plan::PlannedRun;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;
use taut_measure::{Progress, StopRule};

impl Driver<'_> {
    /// Makes all missing runs, and then the runs that `plan.until` adds, until it adds none or a stop is requested.
    pub(super) fn all_runs(&mut self, state: &mut State) -> Result<(), ExperimentError> {
        self.began = self.time.now();
        let experiment = &self.request.experiment;
        let mut planned = experiment.plan();
        let mut repetition = experiment.definition.plan.repetitions;
        loop {
            state.planned = planned.len();
            let made: BTreeSet<String> = self.done.iter().map(|run| run.id.clone()).collect();
            let missing: Vec<&PlannedRun> = planned
                .iter()
                .filter(|run| !made.contains(&run.id))
                .collect();
            if experiment.is_on_slurm() {
                self.on_slurm(&missing, state)?;
            } else {
                self.here(&missing, state)?;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            repetition += 1;
            let more = self.until(repetition);
            if more.is_empty() {
                return Ok(());
            }
            planned.extend(more);
        }
    }

    /// Makes the runs in `missing` one after the other, in this process.
    fn here(&mut self, missing: &[&PlannedRun], state: &mut State) -> Result<(), ExperimentError> {
        for (index, run) in missing.iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let at_most = self.request.at_most;
            if let Some(most) = at_most.filter(|most| self.time.since(self.began) >= *most) {
                let left = missing.len() - index;
                self.notes.push(format!(
                    "{left} runs are missing: the limit of {} s for all runs was reached",
                    most.as_secs()
                ));
                return Ok(());
            }
            self.tell(run, missing.len() - index);
            self.attempts(run)?;
            state.done = self.done.len();
            state.failed = self.failed.len();
            self.request.folder.write_state(state)?;
        }
        Ok(())
    }

    /// Returns the runs of repetition `repetition` for those combinations whose metric does not yet satisfy
    /// `plan.until`; none if the file has no such condition.
    fn until(&self, repetition: u32) -> Vec<PlannedRun> {
        let experiment = &self.request.experiment;
        let Some(until) = &experiment.definition.plan.until else {
            return Vec::new();
        };
        if repetition > until.at_most {
            return Vec::new();
        }
        let wanted = |run: &PlannedRun| {
            let values: Vec<f64> = self
                .done
                .iter()
                .filter(|done| done.variant == run.variant + 1 && !done.warm_up)
                .filter_map(|done| metrics::find(&done.metrics, &until.metric))
                .collect();
            let rule = StopRule {
                within: until.within,
                confidence: 0.95,
                min_runs: u64::from(experiment.definition.plan.repetitions),
                max_runs: u64::from(until.at_most),
            };
            matches!(rule.judge(&values), Progress::GoOn(_))
        };
        experiment
            .round(repetition, false)
            .into_iter()
            .filter(wanted)
            .collect()
    }

    /// Reports the progress to the user, with a forecast of the remaining time from the durations of earlier runs.
    fn tell(&mut self, next: &PlannedRun, left: usize) {
        let took: f64 = self.done.iter().map(|run| run.seconds).sum();
        let each = if self.done.is_empty() {
            self.request
                .experiment
                .expected()
                .unwrap_or(Duration::from_secs(1))
                .as_secs_f64()
        } else {
            took / self.done.len() as f64
        };
        let variant = &self.request.experiment.variants[next.variant];
        let what = format!("{}  {}", next.id, words(&variant.loops));
        let total = took + each * left as f64;
        self.observer.progress(
            Duration::from_secs_f64(took),
            Duration::from_secs_f64(total),
            &what,
        );
    }

    /// Makes a run, and retries it if it fails. Returns the reason if all attempts failed.
    pub(super) fn attempts(
        &mut self,
        planned: &PlannedRun,
    ) -> Result<Option<String>, ExperimentError> {
        let mut failure = None;
        let attempts = self.request.experiment.definition.plan.attempts;
        for attempt in 1..=attempts {
            let mut making = self.begin(planned, attempt)?;
            let mut outcome = self.one_run(planned, &mut making);
            if outcome.is_err() && self.stop.load(Ordering::Relaxed) {
                outcome = Err(Failed::Stopped);
            }
            // The running commands of the run are ended in any case.
            let ended = self.end(&mut making, &outcome);
            for file in self.secrets.scrub(&making.folder)? {
                making
                    .record
                    .notes
                    .push(format!("a secret was removed from {file}"));
            }
            let outcome = outcome
                .and(ended)
                .and_then(|()| self.gather(&mut making).map_err(Failed::Run));
            making.record.seconds = self.time.since(making.began).as_secs_f64();
            match outcome {
                Ok(()) => {
                    let entry = self.request.folder.finish(&making.folder, making.record)?;
                    if !self.allocated {
                        self.request.folder.append(&entry)?;
                    }
                    self.failed.remove(&planned.id);
                    self.done.push(entry);
                    return Ok(None);
                }
                Err(Failed::Stopped) => {
                    let _ = fs::remove_dir_all(&making.folder);
                    return Ok(failure);
                }
                Err(Failed::Fatal(e)) => return Err(e),
                Err(Failed::Run(reason)) => {
                    let reason = self.secrets.text(&reason);
                    self.observer.note(&format!("{}: {reason}", planned.id));
                    failure = Some(reason.clone());
                    making.record.failure = Some(reason);
                    self.failed.insert(planned.id.clone());
                    self.request
                        .folder
                        .put_aside(&making.folder, making.record)?;
                }
            }
        }
        Ok(failure)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run::fake::{Course, Trial, World, begun};
    use taut_results::Completion;

    const TWO_LOADS: &str = r#"
title = "t"
[loop]
load = [1, 2]
[plan]
repetitions = 2
attempts = 2
[[step]]
name = "measure"
run = "measure {{ load }}"
"#;

    #[test]
    fn runs_execute_sequentially_in_the_order_of_the_plan() {
        let trial = Trial::new(TWO_LOADS);
        let came = trial.run(World::new(|_| Course::ends(30, 0)));
        let mut expected = Vec::new();
        for run in trial.planned() {
            expected.push(format!("begin {run}"));
            expected.push(format!("measure {}", &run[1..2]));
            expected.push(format!("collect {run}"));
        }
        assert_eq!(came.happened, expected);
        assert_eq!(came.state.completion, Completion::Finished);
        assert_eq!((came.state.planned, came.state.done), (4, 4));
        assert_eq!(came.took, Duration::from_secs(4 * 30));
        let index = trial.folder().index().unwrap();
        assert!(index.iter().all(|run| run.seconds == 30.0), "{index:?}");
        // Before the first run the time per run is unknown. After it, the time is estimated from the completed runs.
        let told: Vec<(u64, u64)> = came
            .told
            .progress
            .iter()
            .map(|(done, total, _)| (done.as_secs(), total.as_secs()))
            .collect();
        assert_eq!(told, [(0, 4), (30, 120), (60, 120), (90, 120)]);
    }

    #[test]
    fn a_failed_run_is_stored_separately_and_repeated() {
        let trial = Trial::new(TWO_LOADS);
        let came = trial.run(World::new(|asked| {
            let fails = asked.run == "v1-r1" && asked.attempt == 1;
            Course::ends(1, i32::from(fails)).prints(Duration::ZERO, "no port")
        }));
        assert_eq!(came.state.completion, Completion::Finished);
        assert_eq!((came.state.done, came.state.failed), (4, 0));
        let first = begun(&came.happened)
            .iter()
            .filter(|run| **run == "v1-r1")
            .count();
        assert_eq!(first, 2);
        let failures = trial.folder().failures().unwrap();
        let why = "measure on node local ended with code 1: no port";
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].failure.as_deref(), Some(why));
        assert_eq!(came.told.notes, [format!("v1-r1: {why}")]);
        assert_eq!(trial.folder().run("v1-r1").unwrap().attempt, 2);
    }

    #[test]
    fn an_experiment_continues_when_one_run_always_fails() {
        let trial = Trial::new(TWO_LOADS);
        let came = trial.run(World::new(|asked| {
            Course::ends(1, i32::from(asked.run == "v2-r1"))
        }));
        assert_eq!(came.state.completion, Completion::Incomplete);
        assert_eq!((came.state.done, came.state.failed), (3, 1));
        assert_eq!(trial.folder().failures().unwrap().len(), 2);
        // The next call retries only the missing runs.
        let came = trial.run(World::new(|_| Course::ends(1, 0)));
        assert_eq!(begun(&came.happened), ["v2-r1"]);
        assert_eq!(came.state.completion, Completion::Finished);
    }

    #[test]
    fn a_stopped_experiment_stores_complete_runs_and_resumes_later() {
        let trial = Trial::new(TWO_LOADS);
        let planned = trial.planned();
        let mut world = World::new(|_| Course::ends(30, 0));
        world.ctrl_c_at = Some(crate::run::time::made_up::passed() + Duration::from_secs(45));
        let came = trial.run(world);
        assert_eq!(came.state.completion, Completion::Interrupted);
        assert_eq!((came.state.done, came.state.failed), (1, 0));
        assert_eq!(begun(&came.happened), planned[..2]);
        // The experiment ends soon after the stop request, and no files of the current run remain.
        assert!(came.took < Duration::from_secs(46), "{:?}", came.took);
        let second = &trial.folder().run_folder(&planned[1]);
        assert!(!second.exists() && !second.with_extension("partial").exists());
        assert!(trial.folder().failures().unwrap().is_empty());
        let came = trial.run(World::new(|_| Course::ends(30, 0)));
        assert_eq!(begun(&came.happened), planned[1..]);
        assert_eq!(came.state.completion, Completion::Finished);
        assert_eq!(trial.folder().index().unwrap().len(), 4);
    }

    #[test]
    fn repetitions_are_added_until_the_confidence_interval_is_narrow_enough() {
        let text = TWO_LOADS.replace(
            "attempts = 2",
            "until = { metric = \"rate\", within = 0.1, at_most = 20 }",
        );
        let text = format!("{text}[step.extract]\nrate = 'rate (\\d+)'\n");
        let trial = Trial::new(&text);
        let came = trial.run(World::new(|asked| {
            // The rate of the second load jumps, so its interval never becomes narrow enough.
            let jumps =
                asked.run.starts_with("v2") && asked.run.ends_with(['0', '2', '4', '6', '8']);
            let rate = if jumps { 900 } else { 100 };
            Course::ends(1, 0).prints(Duration::ZERO, &format!("rate {rate}"))
        }));
        assert_eq!(came.state.completion, Completion::Finished);
        let index = trial.folder().index().unwrap();
        let count = |variant| index.iter().filter(|run| run.variant == variant).count();
        assert!((3..20).contains(&count(1)), "{}", count(1));
        assert_eq!(count(2), 20);
        assert_eq!(came.state.planned, index.len());
    }
}
