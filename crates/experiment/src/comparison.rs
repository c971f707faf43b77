//! A comparison of devices that runs as an experiment, as in `taut demo`. In addition to the files of an experiment,
//! its results folder contains the manifest of a comparison. All runs are read as a single comparison. (This format is
//! taut's own.)

use crate::error::ExperimentError;
use crate::folder::{Folder, RunRecord, run_folder};
use crate::plan::PlannedRun;
use crate::run::{Request, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::benchmark::Observer;
use taut_comparison::report::Headline;
use taut_comparison::{Whole, sum_up};
use taut_host::ssh::quote_if_needed;
use taut_results::{
    COMPARISON_HEAD, Completion, DeviceInfo, Experiment, InsidePath, LeftOut, Results, Run, has,
    read_head, write_json,
};

/// Path of the results of a run of `what = ["comparison"]`, relative to the run's folder.
const OF_A_RUN: &str = "local/comparison";
/// Advice for a device that fails: the command line that measures only this device.
const BY_ITSELF: &str = "run it by itself to see more: taut bench comparison --device";

/// Returns whether the experiment in a folder is a comparison.
pub fn is_comparison(dir: &Path) -> bool {
    has(dir, "state.json") && has(dir, COMPARISON_HEAD)
}

/// Makes the runs of a new comparison as [`run()`] does, and reads their results. The observer gets the first sentence
/// of the finding as soon as the runs allow one.
///
/// # Errors
/// The errors of [`run()`] and [`read_comparison`].
pub fn compare_devices(
    request: &Request,
    whole: Whole,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Results, ExperimentError> {
    let dir = request.folder.path();
    let head = dir.join(COMPARISON_HEAD);
    write_json(&head, whole.head())?;
    let ended = match SoFar::begin(request, whole.head(), observer) {
        Ok(mut so_far) => run(request, &mut so_far, stop),
        Err(observer) => run(request, observer, stop),
    };
    write_json(&head, &whole.end(stop))?;
    ended?;
    read_comparison(dir)
}

/// Observer of runs that reports the first sentence of the comparison's result between two runs.
struct SoFar<'a> {
    folder: &'a Folder,
    observer: &'a mut dyn Observer,
    headline: Headline,
    /// Runs of the devices that the sentence names, each with its device; only the runs that were incomplete at the
    /// last check.
    missing: Vec<(PlannedRun, String)>,
}

impl<'a> SoFar<'a> {
    /// Prepares the reports before the first run. Returns the observer as the error if the experiment has no devices to
    /// compare.
    fn begin(
        request: &'a Request,
        head: &Experiment,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, &'a mut dyn Observer> {
        let Some(headline) = Headline::begin(head) else {
            return Err(observer);
        };
        let with_device = |run: PlannedRun| {
            let id = device_of(head, run.variant + 1)?.id.clone();
            (!run.warm_up && headline.is_about(&id)).then_some((run, id))
        };
        let planned = request.experiment.plan().into_iter();
        Ok(Self {
            folder: &request.folder,
            observer,
            missing: planned.filter_map(with_device).collect(),
            headline,
        })
    }

    /// Reads the runs that were completed since the last call, and reports the headline sentence if it is new.
    fn look(&mut self) {
        let missing = std::mem::take(&mut self.missing).into_iter();
        let (complete, missing): (Vec<_>, Vec<_>) =
            missing.partition(|(run, _)| self.folder.run_folder(&run.id).is_dir());
        self.missing = missing;
        if complete.is_empty() {
            return;
        }
        for (run, device_id) in complete {
            // A run that cannot be read is reported at the end.
            let read = read_run(self.folder.path(), &run.id).ok();
            if let Some(one) = read.and_then(|results| results.runs.into_iter().next()) {
                self.headline.add(&Run {
                    device_id,
                    repetition: run.repetition,
                    ..one
                });
            }
        }
        if let Some(sentence) = self.headline.news()
            && let Ok(state) = self.folder.state()
        {
            self.observer.finding(&format!(
                "so far, after {} of {} runs: {sentence}",
                state.done, state.planned
            ));
        }
    }
}

impl Observer for SoFar<'_> {
    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        self.look();
        self.observer.progress(done, total, what);
    }

    fn left_out(&mut self, left_out: &LeftOut) {
        self.observer.left_out(left_out);
    }

    fn note(&mut self, text: &str) {
        self.observer.note(text);
    }

    fn finding(&mut self, text: &str) {
        self.observer.finding(text);
    }
}

/// Reads the results of a run of `what = ["comparison"]`.
fn read_run(dir: &Path, id: &str) -> Result<Results, ExperimentError> {
    let below = run_folder(id)?.join(&InsidePath::new(OF_A_RUN)?)?;
    Ok(Results::load_below(dir, Some(&below))?)
}

/// Reads the results of all runs as a single comparison, and updates the manifest of the folder. A run that cannot be
/// read is reported as a problem.
///
/// # Errors
/// Files of the results folder itself are missing or damaged, or cannot be written.
pub fn read_comparison(dir: &Path) -> Result<Results, ExperimentError> {
    let folder = Folder::open(dir)?;
    let path = dir.join(COMPARISON_HEAD);
    let mut results = Results {
        dir: dir.to_owned(),
        experiment: read_head(dir, COMPARISON_HEAD, Experiment::SCHEMA)?,
        runs: Vec::new(),
        problems: Vec::new(),
    };
    let mut index = folder.index()?;
    index.retain(|run| !run.warm_up);
    index.sort_by_key(|run| (run.variant, run.repetition));
    let mut heads = Vec::new();
    for run in &index {
        let device = device_of(&results.experiment, run.variant).map(|it| it.id.clone());
        let (Some(device_id), Ok(of_run)) = (device, read_run(dir, &run.id)) else {
            results
                .problems
                .push(format!("{}: has no results of a device", run.id));
            continue;
        };
        results.problems.extend(of_run.problems);
        results
            .runs
            .extend(of_run.runs.into_iter().next().map(|one| Run {
                device_id,
                repetition: run.repetition,
                ..one
            }));
        heads.push((run.id.clone(), of_run.experiment));
    }
    let whole: BTreeSet<&str> = index.iter().map(|run| run.id.as_str()).collect();
    let mut failed = folder.failures()?;
    failed.retain(|record| !whole.contains(record.id.as_str()));
    let head = &mut results.experiment;
    sum_up(head, &heads, &results.runs);
    head.manifest.completion = match folder.state()?.completion {
        // Failed runs are skipped.
        Completion::Incomplete => Completion::Finished,
        other => other,
    };
    let left_out = &mut head.manifest.left_out;
    left_out.retain(|missing| !missing.how.starts_with(BY_ITSELF));
    let failures = left_out_of(head, &failed);
    results.problems.extend(missing(head, &results.runs));
    head.manifest.left_out.extend(failures);
    write_json(&path, &results.experiment)?;
    Ok(results)
}

/// Returns the device that combination `variant` measures; combinations are counted from 1.
fn device_of(experiment: &Experiment, variant: usize) -> Option<&DeviceInfo> {
    experiment.devices.get(variant.checked_sub(1)?)
}

/// Returns a sentence for each device with missing runs, with the number of runs that exist.
fn missing(experiment: &Experiment, runs: &[Run]) -> Vec<String> {
    let planned = experiment.settings.repetitions as usize;
    let of_device = |device: &DeviceInfo| {
        let there = runs.iter().filter(|run| run.device_id == device.id);
        let there = there.count();
        let text = format!("{}: {there} of {planned} repetitions are there", device.id);
        (there < planned).then_some(text)
    };
    experiment.devices.iter().filter_map(of_device).collect()
}

/// Returns the devices with failed runs, each with the reason of its first failure.
fn left_out_of(experiment: &Experiment, failed: &[RunRecord]) -> Vec<LeftOut> {
    let mut by_variant: BTreeMap<usize, (BTreeSet<u32>, &str)> = BTreeMap::new();
    for record in failed {
        let said = record.failure.as_deref().unwrap_or_default();
        // The message begins with the name of the command, which the reader does not need.
        let why = said.split_once(": taut: ").map_or(said, |(_, why)| why);
        let of_variant = by_variant.entry(record.variant);
        let (repetitions, _) = of_variant.or_insert_with(|| (BTreeSet::new(), why));
        repetitions.insert(record.repetition);
    }
    let of_device = |(variant, (repetitions, why)): (usize, (BTreeSet<u32>, &str))| {
        let device = device_of(experiment, variant)?;
        let repetitions: Vec<String> = repetitions.iter().map(u32::to_string).collect();
        Some(LeftOut {
            what: format!(
                "{} {}, repetition {}",
                device.transport.name(),
                device.label,
                repetitions.join(", ")
            ),
            why: why.to_owned(),
            how: format!("{BY_ITSELF} {}", quote_if_needed(&device.id)),
        })
    };
    by_variant.into_iter().filter_map(of_device).collect()
}
