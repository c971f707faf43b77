//! `taut experiment robust`: runs an experiment under perturbations, and lists the claims that flip.

use super::{ChangeArguments, name_now, time};
use crate::exit::{self, Failure};
use crate::report;
use crate::terminal::quantity::{counted, some_time};
use crate::terminal::{Bar, print};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use taut_experiment::folder::Folder;
use taut_experiment::{Request, RobustPlan, choose_perturbations};
use taut_results::Completion;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut experiment robust stylianopoulos-fig2
  taut experiment robust latency.toml --within 30min --seed 2 --out results/robust
  taut experiment robust latency.toml --plan

The results folder has report.html, and the table as robustness.json, .csv and .md. Ctrl-C keeps the complete runs;
`taut experiment resume` makes the missing ones, and `publish` makes an archive that others run again.")]
pub struct Arguments {
    /// Experiment file, or name of a reference experiment
    experiment: String,
    /// Time for all runs: 90s, 30min or 2h; perturbations that do not fit are left out
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = within)]
    within: Duration,
    /// Seed by which pairs of perturbations are drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    changes: ChangeArguments,
    /// Print the perturbations and the expected time, and run nothing
    #[arg(long)]
    plan: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Parses a time up to a week, also in minutes and hours.
fn within(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let factors = [("min", 60.0), ("h", 3600.0)];
    let long = factors.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number > 0.0 && number * factor <= 604_800.0).then(|| number * factor)
    });
    match long {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => some_time(text).map_err(|_| "expected a time, such as 90s, 10min or 2h".to_owned()),
    }
}

/// The output of `taut experiment robust --plan --json`.
#[derive(Serialize, JsonSchema)]
pub struct PlanOutput {
    /// Number of runs.
    runs: usize,
    /// Number of repetitions of each combination.
    repetitions: u32,
    /// Expected duration of all runs, s.
    expected_s: f64,
    /// The perturbations, single ones first.
    perturbations: Vec<String>,
    /// Perturbations that are left out, each with the reason.
    left_out: Vec<String>,
}

impl PlanOutput {
    fn of(plan: &RobustPlan) -> Self {
        let robust = plan.changes.robust.clone().unwrap_or_default();
        Self {
            runs: plan.experiment.plan().len(),
            repetitions: plan.experiment.definition().plan.repetitions,
            expected_s: plan.expected.as_secs_f64(),
            perturbations: robust.points.into_iter().map(|it| it.name).collect(),
            left_out: robust.left_out,
        }
    }

    /// Returns the plan as lines of text.
    fn lines(&self, plan: &RobustPlan) -> Vec<String> {
        let fewer = plan.shortened_from.map_or_else(String::new, |from| {
            format!(" (the file has {from}; all perturbations would take longer)")
        });
        let mut lines = vec![format!(
            "{} of {}, {} repetitions each{fewer}: about {}",
            counted(self.runs, "run"),
            counted(self.perturbations.len(), "perturbation"),
            self.repetitions,
            time(self.expected_s)
        )];
        lines.extend(self.perturbations.iter().map(|name| format!("  {name}")));
        lines.extend(self.left_out.iter().map(|line| format!("left out: {line}")));
        lines
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let what = name_now(&arguments.experiment);
    if taut_experiment::Results::open(what)?
        .is_some_and(|it| Path::new(what).is_file() || it.is_robust())
    {
        return Err(Failure::Input(format!(
            "{what}: these are results; run them again with: taut experiment run {what}"
        )));
    }
    let open = |changes: &_| taut_experiment::open(what, changes);
    let changes = arguments.changes.changes();
    let plan = choose_perturbations(&open, &changes, arguments.within, arguments.seed)?;
    let output = PlanOutput::of(&plan);
    if arguments.plan {
        match arguments.json {
            true => print::json(&output),
            false => output.lines(&plan).iter().for_each(print::line),
        }
        return Ok(());
    }
    output.lines(&plan).iter().for_each(print::note);
    let name = taut_experiment::name_of(what);
    let fresh = || taut_experiment::fresh_folder(Path::new("results"), &format!("{name}-robust"));
    let dir = arguments.out.clone().unwrap_or_else(fresh);
    let command_line = std::env::args().collect::<Vec<_>>().join(" ");
    let folder = Folder::begin(&dir, &plan.experiment, &name, &command_line, &plan.changes)?;
    folder.record_commit(env!("TAUT_COMMIT"))?;
    go_on(plan, folder, arguments)
}

/// Makes the planned runs, and shows the claims that flip.
fn go_on(plan: RobustPlan, folder: Folder, arguments: &Arguments) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    let request = Request {
        experiment: plan.experiment,
        folder,
        program: exit::own_program()?,
        holds_machine: false,
        at_most: Some(arguments.within),
    };
    let mut bar = Bar::new();
    let ended = taut_experiment::run(&request, &mut bar, stop);
    bar.clear();
    if ended.is_err() {
        request.folder.forget_if_empty();
    }
    let state = ended?;
    let dir = request.folder.path();
    report::show(dir, arguments.json)?;
    let missing = state.planned - state.done;
    let how = format!("continue with: taut experiment resume {}", dir.display());
    match state.completion {
        Completion::Finished => Ok(()),
        Completion::Interrupted if stop.load(Ordering::Relaxed) => {
            Err(Failure::Interrupted(format!("interrupted; {how}")))
        }
        _ if state.done == 0 => Err(Failure::Limit(format!(
            "no run is complete ({}/failed says why)",
            dir.display()
        ))),
        // A perturbation may be impossible, such as a size that the device refuses; the other perturbations still
        // count.
        _ => {
            print::note(format_args!(
                "{missing} of {} runs are missing, {} of them failed; {how}",
                state.planned, state.failed
            ));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_all_runs_may_be_in_minutes_or_hours() {
        assert_eq!(within("10min"), Ok(Duration::from_secs(600)));
        assert_eq!(within("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(within("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "10", "0min", "1e9h", "-1min", "nanh"] {
            assert!(within(wrong).is_err(), "{wrong}");
        }
    }
}
