//! Runs a benchmark. Each repetition interleaves the subjects in a new order. If a part of a subject fails twice in a
//! row, later repetitions skip that part. Complete outcomes are stored.

use super::definition::{Benchmark, Described, Head};
use super::error::BenchmarkError;
use super::plan::Plan;
use super::rig::{Failed, Repeats, Rig, Unit};
use super::surroundings::{Surroundings, watched};
use crate::device::scratch;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_host::choose_cores;
use taut_results::{FailedAttempt, LeftOut, Manifest, PartsFolder, refuse_results};
use taut_sys::Clock;

/// Receives progress reports between trials, never during a trial.
pub trait Observer {
    /// Reports that `done` of the estimated `total` time has passed, and that `what` is measured next.
    fn progress(&mut self, done: Duration, total: Duration, what: &str);
    /// Reports a subject, or a part of one, that cannot be measured.
    fn left_out(&mut self, left_out: &LeftOut);
    /// Prints a text on the terminal immediately.
    fn note(&mut self, text: &str);
    /// Prints a sentence about the results so far; an observer without a terminal ignores it.
    fn finding(&mut self, _text: &str) {}
}

/// Runs a benchmark and returns its results folder. Setting `stop` ends the run early: complete outcomes are kept, and
/// the folder is marked as interrupted.
///
/// # Errors
/// Returns an error if results cannot be written, or nothing could be measured. A subject that fails is skipped, and
/// the reason is noted.
pub fn run<B: Benchmark>(
    mut benchmark: B,
    plan: &Plan,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<PathBuf, BenchmarkError> {
    // An existing results folder is refused before any measurement takes time.
    refuse_results(&plan.folder)?;
    scratch::sweep_left_behind();
    let cores = choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let repeats = Repeats::default();
    let rig = Rig {
        repeats: &repeats,
        program: &plan.program,
        cores: &cores,
        clock,
    };
    let left_out = prepare(&mut benchmark, plan, &rig, observer)?;
    let mut head = begin_head(&benchmark, plan, &rig, left_out);
    let folder = PartsFolder::create(
        &plan.folder,
        (B::DESCRIPTION.head, &head),
        B::DESCRIPTION.outcomes,
    )?;
    let before = watched(estimate(&benchmark, 0));
    let surroundings = Surroundings::look(&mut head.manifest, &clock, &cores, before)?;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut outcomes = Vec::new();
    let mut failures = Vec::new();
    let mut done = Duration::ZERO;
    for phase in 0..B::DESCRIPTION.phases {
        benchmark.begin_phase(phase, &outcomes);
        head.own = benchmark.settings().facts;
        folder.update(&head)?;
        let later = estimate(&benchmark, phase + 1);
        let units = units(&benchmark, phase, Some(&mut random));
        let mut attempts = Attempts {
            benchmark: &benchmark,
            rig,
            folder: &folder,
            observer,
            stop,
            later,
            outcomes: &mut outcomes,
            failures: &mut failures,
            failed_attempts: &mut head.manifest.failed_attempts,
        };
        done = attempts.make(units, done)?;
    }
    let first_failure = failures.first().map(|missing| missing.why.clone());
    head.manifest.left_out.extend(failures);
    surroundings.look_again(&mut head.manifest, stop);
    folder.update(&head)?;
    match first_failure {
        Some(why) if outcomes.is_empty() => Err(BenchmarkError::Nothing {
            what: B::DESCRIPTION.subject,
            why,
        }),
        _ => Ok(plan.folder.clone()),
    }
}

/// Selects the subjects, and returns the skipped ones, which it also reports.
fn prepare<B: Benchmark>(
    benchmark: &mut B,
    plan: &Plan,
    rig: &Rig<'_>,
    observer: &mut dyn Observer,
) -> Result<Vec<LeftOut>, BenchmarkError> {
    let left_out = benchmark.prepare(plan, rig)?;
    for missing in &left_out {
        observer.left_out(missing);
    }
    Ok(left_out)
}

/// Returns the manifest as it is before the first measurement.
fn begin_head<B: Benchmark>(
    benchmark: &B,
    plan: &Plan,
    rig: &Rig<'_>,
    left_out: Vec<LeftOut>,
) -> Head<B::Facts> {
    let title = (B::DESCRIPTION.schema, B::DESCRIPTION.title.to_string());
    let settings = benchmark.settings();
    Head {
        manifest: Manifest::begin(title, &plan.command_line, rig.cores, left_out),
        mode: plan.mode,
        seed: plan.seed,
        repetitions: settings.repetitions,
        trial_seconds: settings.trial.as_secs_f64(),
        tsc_hz: rig.clock.hz,
        tsc_error_ppm: rig.clock.error_ppm,
        own: settings.facts,
    }
}

/// Estimates the duration of all measurements from phase `from_phase` on.
fn estimate<B: Benchmark>(benchmark: &B, from_phase: u32) -> Duration {
    (from_phase..B::DESCRIPTION.phases)
        .flat_map(|phase| units(benchmark, phase, None))
        .map(|unit| benchmark.describe(unit.subject, unit.part).estimate)
        .sum()
}

/// Returns all measurements ([`Unit`]) of a phase. Each repetition has its own order, drawn from `random`.
fn units<B: Benchmark>(
    benchmark: &B,
    phase: u32,
    mut random: Option<&mut fastrand::Rng>,
) -> Vec<Unit<B::Part>> {
    let mut units = Vec::new();
    for repetition in 1..=benchmark.settings().repetitions {
        let mut turns = benchmark.turns(phase, repetition);
        if let Some(random) = &mut random {
            random.shuffle(&mut turns);
        }
        units.extend(turns.into_iter().map(|(subject, part)| Unit {
            subject,
            part,
            repetition,
        }));
    }
    units
}

/// The state that is needed to measure the [`Unit`]s of a phase.
struct Attempts<'a, B: Benchmark> {
    benchmark: &'a B,
    rig: Rig<'a>,
    folder: &'a PartsFolder,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    /// Estimated duration of the phases after this one.
    later: Duration,
    outcomes: &'a mut Vec<B::Outcome>,
    failures: &'a mut Vec<LeftOut>,
    failed_attempts: &'a mut Vec<FailedAttempt>,
}

impl<B: Benchmark> Attempts<'_, B> {
    /// Measures `units`. `done` is the estimated duration of the measurements before `units`. Returns `done` plus the
    /// estimated duration of `units`.
    fn make(
        &mut self,
        units: Vec<Unit<B::Part>>,
        mut done: Duration,
    ) -> Result<Duration, BenchmarkError> {
        let mut units: VecDeque<_> = units.into();
        while let Some(unit) = units.pop_front() {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let describe = |unit: &Unit<B::Part>| self.benchmark.describe(unit.subject, unit.part);
            let Described {
                file_name,
                label: what,
                estimate: takes,
            } = describe(&unit);
            let others = units.iter().map(|unit| describe(unit).estimate);
            let left: Duration = takes + others.sum::<Duration>() + self.later;
            self.observer.progress(done, done + left, &what);
            // An interruption on a shared machine makes only one attempt fail; a real defect makes both fail.
            let outcome = match self.attempt(&unit) {
                Err(Failed::Broken(why)) => {
                    let what = format!("{what}, repetition {}", unit.repetition);
                    self.rig.repeats.note(what, in_short(&why));
                    self.attempt(&unit)
                }
                other => other,
            };
            for failed in self.rig.repeats.take() {
                let FailedAttempt { what, why } = &failed;
                self.observer
                    .note(&format!("{what}: failed and was made again: {why}"));
                self.failed_attempts.push(failed);
            }
            match outcome {
                Ok(outcome) => {
                    let name = format!("{file_name}-{}", unit.repetition);
                    self.folder.write(&name, &outcome)?;
                    self.outcomes.push(outcome);
                }
                Err(Failed::Stopped) => break,
                Err(Failed::Broken(why)) => {
                    let missing = LeftOut {
                        what: format!("{what}, from repetition {} on", unit.repetition),
                        why: in_short(&why),
                        how: B::DESCRIPTION.advice.to_string(),
                    };
                    self.observer.left_out(&missing);
                    self.failures.push(missing);
                    // Later units of the same subject and part would fail too, so they are removed.
                    units.retain(|u| (u.subject, u.part) != (unit.subject, unit.part));
                }
            }
            done += takes;
        }
        Ok(done)
    }

    /// Attempts one measurement, on a separate thread.
    fn attempt(&self, unit: &Unit<B::Part>) -> Result<B::Outcome, Failed> {
        let (benchmark, rig, stop) = (self.benchmark, self.rig, self.stop);
        let measure = move || benchmark.measure(&rig, unit, stop);
        std::thread::scope(|scope| scope.spawn(measure).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Returns the requested subjects, or all of them if none was requested. `known` contains the ids of all subjects.
///
/// # Errors
/// Returns an error if a requested subject does not exist, or this machine does not support it.
pub fn choose<S>(
    what: &'static str,
    only: &[String],
    (mut found, left_out): (Vec<S>, Vec<LeftOut>),
    id: fn(&S) -> &str,
    known: &[String],
) -> Result<(Vec<S>, Vec<LeftOut>), BenchmarkError> {
    if only.is_empty() {
        return Ok((found, left_out));
    }
    for asked in only {
        if found.iter().any(|subject| id(subject) == asked) {
            continue;
        }
        if !known.contains(asked) {
            return Err(BenchmarkError::Unknown {
                what,
                asked: asked.clone(),
                there: known.join(", "),
            });
        }
        let why = left_out
            .iter()
            .map(|l| format!("{}: {} ({})", l.what, l.why, l.how));
        return Err(BenchmarkError::Missing(format!(
            "\"{asked}\" is unavailable here; missing: {}",
            why.collect::<Vec<_>>().join("; ")
        )));
    }
    found.retain(|subject| only.iter().any(|asked| asked == id(subject)));
    Ok((found, Vec::new()))
}

/// Shortens a message of several lines to the first and the last line. In the last line a program usually names its
/// error.
pub(crate) fn in_short(message: &str) -> String {
    let lines: Vec<&str> = message.trim().lines().map(str::trim).collect();
    match lines.as_slice() {
        [first, .., last] => format!("{first} {last}"),
        _ => lines.concat(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::benchmark::definition::{Description, Results, Settings};
    use crate::benchmark::results::{read_results, show};
    use crate::benchmark::tables;
    use crate::report::error::ReportError;
    use serde::{Deserialize, Serialize};
    use std::path::Path;
    use std::sync::Mutex;
    use taut_results::{Completion, Mode};

    #[test]
    fn a_message_is_shortened_to_its_beginning_and_last_line() {
        assert_eq!(in_short("one\n"), "one");
        assert_eq!(
            in_short("exited; last output:\na\nb\n c"),
            "exited; last output: c"
        );
        assert_eq!(in_short(""), "");
    }

    /// A benchmark of three subjects in two phases; the second subject is broken.
    #[derive(Default)]
    struct MadeUp {
        attempts: Mutex<Vec<(usize, char)>>,
        seen_before_the_second: usize,
        stops_after: Option<usize>,
        /// Numbers of the attempts, counted from 1, that fail regardless of the subject.
        fails_at: Vec<usize>,
    }

    #[derive(Serialize, Deserialize)]
    struct Facts {
        seen: usize,
    }

    impl Benchmark for MadeUp {
        type Part = char;
        type Outcome = (usize, char, u32);
        type Facts = Facts;
        const DESCRIPTION: Description = Description {
            command: "bench made-up",
            title: "Made up",
            head: "made-up.json",
            schema: 3,
            outcomes: "outcomes",
            subject: "subject",
            advice: "mend it",
            phases: 2,
        };

        fn prepare(&mut self, _: &Plan, _: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError> {
            Ok(Vec::new())
        }
        fn settings(&self) -> Settings<Facts> {
            Settings {
                repetitions: 3,
                trial: Duration::from_secs(1),
                facts: Facts {
                    seen: self.seen_before_the_second,
                },
            }
        }
        fn begin_phase(&mut self, phase: u32, outcomes: &[Self::Outcome]) {
            if phase == 1 {
                self.seen_before_the_second = outcomes.len();
            }
        }
        fn turns(&self, phase: u32, _: u32) -> Vec<(usize, char)> {
            let part = if phase == 0 { 'a' } else { 'b' };
            (0..3).map(|subject| (subject, part)).collect()
        }
        fn describe(&self, subject: usize, part: char) -> Described {
            Described {
                file_name: format!("{subject}-{part}"),
                label: format!("number {subject}, {part}"),
                estimate: Duration::from_secs(1),
            }
        }
        fn measure(
            &self,
            _: &Rig<'_>,
            unit: &Unit<char>,
            stop: &AtomicBool,
        ) -> Result<Self::Outcome, Failed> {
            let mut attempts = self.attempts.lock().unwrap();
            attempts.push((unit.subject, unit.part));
            if Some(attempts.len()) == self.stops_after {
                stop.store(true, Ordering::Relaxed);
                return Err(Failed::Stopped);
            }
            if self.fails_at.contains(&attempts.len()) {
                return Err(Failed::Broken("a bad moment".to_string()));
            }
            match unit.subject {
                1 => Err(Failed::Broken("no\ngood".to_string())),
                _ => Ok((unit.subject, unit.part, unit.repetition)),
            }
        }
        fn report(
            dir: &Path,
            results: &Results<Self>,
            width: Option<usize>,
        ) -> Result<(PathBuf, String), ReportError> {
            let words = ("All is well.", "It was made up.");
            let tables = [made_up_table(results)];
            let page = tables::report(dir, results, &results.outcomes, words, &tables, &[])?;
            Ok((page, tables::text(&tables, width)))
        }
    }

    fn made_up_table(results: &Results<MadeUp>) -> tables::Table {
        let outcomes = results.outcomes.iter();
        let row = |(subject, part, repetition): &(usize, char, u32)| {
            vec![
                [format!("number {subject}"), String::new()],
                [part.to_string(), format!("in {repetition}")],
            ]
        };
        tables::Table {
            title: "Outcomes".to_string(),
            head: ["subject", "part"].map(str::to_string).to_vec(),
            rows: outcomes.map(row).collect(),
            ..tables::Table::default()
        }
    }

    #[derive(Default)]
    struct Heard {
        progress: Vec<[u64; 2]>,
        left_out: Vec<LeftOut>,
    }

    impl Observer for Heard {
        fn progress(&mut self, done: Duration, total: Duration, _: &str) {
            self.progress.push([done.as_secs(), total.as_secs()]);
        }
        fn left_out(&mut self, left_out: &LeftOut) {
            self.left_out.push(left_out.clone());
        }
        fn note(&mut self, _: &str) {}
    }

    fn run_made_up(
        made_up: MadeUp,
    ) -> (
        Heard,
        Result<Results<MadeUp>, BenchmarkError>,
        tempfile::TempDir,
    ) {
        let parent = tempfile::tempdir().unwrap();
        let plan = Plan {
            mode: Mode::Quick,
            seed: 7,
            folder: parent.path().join("results"),
            program: PathBuf::new(),
            command_line: "taut bench made-up".to_string(),
            only: Vec::new(),
            trial: None,
        };
        let mut heard = Heard::default();
        let stop = AtomicBool::new(false);
        let results = run(made_up, &plan, &mut heard, &stop)
            .and_then(|folder| Ok(read_results::<MadeUp>(&folder)?));
        (heard, results, parent)
    }

    #[test]
    fn a_failing_combination_is_skipped_after_two_attempts() {
        let (heard, results, folder) = run_made_up(MadeUp::default());
        let results = results.unwrap();
        assert_eq!(results.outcomes.len(), 2 * 2 * 3);
        assert_eq!(results.head.own.seen, 2 * 3);
        assert_eq!(results.head.manifest.completion, Completion::Finished);
        // Each part of the broken subject is tried twice and then skipped.
        let left_out = &results.head.manifest.left_out;
        assert_eq!(*left_out, heard.left_out);
        let what: Vec<&str> = left_out.iter().map(|l| l.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "number 1, a, from repetition 1 on",
                "number 1, b, from repetition 1 on"
            ]
        );
        assert_eq!(
            (left_out[0].why.as_str(), left_out[0].how.as_str()),
            ("no good", "mend it")
        );
        assert_eq!(heard.progress[0], [0, 18]);
        let [done, total] = *heard.progress.last().unwrap();
        assert_eq!((done, total), (13, 14));
        // The page and the text are made from the same tables.
        let shown = show::<MadeUp>(&folder.path().join("results"), None).unwrap();
        assert!(shown.text.contains("number 2  b (in 3)"), "{}", shown.text);
        let page = std::fs::read_to_string(&shown.page).unwrap();
        for part in [
            "All is well.",
            "<small>in 3</small>",
            "number 1, a, from repetition 1 on",
            "made-up.json",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn a_failed_attempt_is_repeated_and_reported() {
        let made_up = MadeUp {
            fails_at: vec![1],
            ..MadeUp::default()
        };
        let (_, results, folder) = run_made_up(made_up);
        let results = results.unwrap();
        assert_eq!(results.outcomes.len(), 2 * 2 * 3);
        let failed = &results.head.manifest.failed_attempts;
        assert!(
            failed.iter().any(|it| it.why == "a bad moment"),
            "{failed:?}"
        );
        assert!(failed.iter().all(|it| it.what.ends_with(", repetition 1")));
        let shown = show::<MadeUp>(&folder.path().join("results"), None).unwrap();
        let told = "failed and was made again: a bad moment";
        assert!(shown.problems.iter().any(|it| it.ends_with(told)));
        let page = std::fs::read_to_string(&shown.page).unwrap();
        assert!(page.contains("<dd>a bad moment</dd>"));
    }

    #[test]
    fn a_stopped_benchmark_keeps_complete_outcomes_and_is_marked_interrupted() {
        let made_up = MadeUp {
            stops_after: Some(4),
            ..MadeUp::default()
        };
        let (_, results, _folder) = run_made_up(made_up);
        let results = results.unwrap();
        assert!((1..4).contains(&results.outcomes.len()));
        assert_eq!(results.head.manifest.completion, Completion::Interrupted);
    }

    #[test]
    fn benchmark_subjects_are_selected_by_id_and_unknown_ids_refused() {
        let found = || (vec!["a".to_string(), "b".to_string()], Vec::new());
        let known = ["a", "b", "c"].map(str::to_string);
        let choose = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|id| (*id).to_string()).collect();
            choose("letter", &only, found(), |id: &String| id, &known)
        };
        assert_eq!(choose(&[]).unwrap().0, ["a", "b"]);
        assert_eq!(choose(&["b"]).unwrap().0, ["b"]);
        let unknown = choose(&["d"]).unwrap_err().to_string();
        assert_eq!(unknown, "unknown letter \"d\"; available: a, b, c");
        let missing = choose(&["a", "c"]).unwrap_err().to_string();
        assert!(
            missing.starts_with("\"c\" is unavailable here"),
            "{missing}"
        );
    }
}
