//! `taut experiment`: runs and repeats experiments that files describe.

pub mod publishing;
#[cfg(feature = "whole")]
pub mod remote;
mod replicate_all;
pub mod robust;

use crate::exit::{self, Failure};
use crate::report;
use crate::terminal::Bar;
use crate::terminal::print;
use crate::terminal::quantity;
use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use taut_experiment::compare::{Kept, MetricLimit, Wanted};
use taut_experiment::folder::{Folder, State};
use taut_experiment::{Build, Changes, Experiment, ExperimentError, Request, Results};
use taut_results::Completion;

/// The JSON schema of experiment files.
const SCHEMA: &str = include_str!("../docs/reference/experiment-schema.json");

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut experiment new latency.toml          a file to begin with
  taut experiment check latency.toml        the plan, and what is missing
  taut experiment run latency.toml
  taut experiment run stylianopoulos-fig2   one of those of `taut experiment list --reference`
  taut experiment resume results/latency-1  after an interruption: the missing runs only
  taut experiment show results/latency-1
  taut experiment compare results/latency-1 results/latency-2 --worse 'latency_ns.p99_ns 10%'
  taut experiment publish results/latency-1 --out latency --author 'Lovelace, Ada' --to zenodo
  taut experiment run latency.tar.gz        published results: run again and compared")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run all reference experiments, and compare published figures with the results
    #[command(after_help = "Examples:
  taut experiment replicate-all --quick
  taut experiment replicate-all --out results/replication lange-fig3 lange-fig4

Complete experiments are kept, and interrupted ones are resumed: after Ctrl-C, repeat the command. The page is
DIR/index.html, next to replication.md, verdicts.csv, claims.csv and replication.json; NAME.log has the output of an experiment.")]
    ReplicateAll {
        /// Names of reference experiments (default: all)
        names: Vec<String>,
        /// Folder of the results
        #[arg(long, value_name = "DIR", default_value = "results/replication")]
        out: PathBuf,
        /// Run one repetition of each, to check that it works
        #[arg(long)]
        quick: bool,
        /// Run nothing, and write the pages from the results that exist; not with --quick
        #[arg(long, conflicts_with = "quick")]
        report_only: bool,
        /// Print replication.json at the end
        #[arg(long)]
        json: bool,
    },
    /// Write an experiment file to start from
    New {
        /// Experiment file to write
        file: PathBuf,
    },
    /// Show the plan of an experiment, and what is missing to run it
    Check {
        /// Experiment file, name of a reference experiment, results folder, published folder or archive
        experiment: String,
        #[command(flatten)]
        changes: ChangeArguments,
        /// Do not connect to nodes on other machines
        #[arg(long)]
        offline: bool,
        /// Print the plan as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the files with which nodes boot their images over the network
    #[command(after_help = "Example:
  taut experiment boot-files latency.toml --into /srv/tftp

The folder is that of your TFTP or HTTP server, whose iPXE says `chain ${net0/mac:hexhyp}.ipxe`, or which has pxelinux.0.")]
    BootFiles {
        /// Experiment file
        experiment: String,
        /// Folder of the server
        #[arg(long, value_name = "DIR")]
        into: PathBuf,
        /// Print the files as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment
    #[command(after_help = "Examples:
  taut experiment run latency.toml
  taut experiment run latency.toml --repetitions 6 --set seconds=10 --out results/quiet
  taut experiment run stylianopoulos-fig2   one of those of `taut experiment list --reference`
  taut experiment run latency.tar.gz        published results: run again and compared
  taut experiment run latency.toml --against ../base/target/release/taut

Ctrl-C keeps the complete runs: `taut experiment resume` makes the missing ones.")]
    Run {
        /// Experiment file, name of a reference experiment, results folder, published folder or archive
        experiment: String,
        /// Results folder (default: a new one under ./results)
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        changes: ChangeArguments,
        /// Path of another taut program, which also runs each combination: the variable `build` is `head` for this
        /// program and `base` for that one
        #[arg(long, value_name = "BUILD")]
        against: Option<PathBuf>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Perturb each variable of an experiment, one at a time and in pairs, and list the claims that flip
    Robust(robust::Arguments),
    /// Make the missing runs of a results folder
    Resume {
        /// Results folder
        folder: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// List results folders, newest last; or the reference experiments
    List {
        /// Folder with the results folders
        #[arg(default_value = "results")]
        results: PathBuf,
        /// List the reference experiments instead, and their former names, which still work
        #[arg(long)]
        reference: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Evaluate a results folder: verdicts, tables, figures and report
    Show {
        /// Results folder
        folder: PathBuf,
        /// List each run
        #[arg(long)]
        runs: bool,
        /// Compare every file with its checksum
        #[arg(long)]
        verify: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare two results folders: what differs, by how much, with which confidence
    #[command(after_help = "Examples:
  taut experiment compare results/latency-1 results/latency-2
  taut experiment compare results/latency-1 latency.tar.gz --all --out comparison
  taut experiment compare before after --worse 'latency_ns.p99_ns 10%' --worse 'received_pps 5%'

Exit code 1: a metric is worse by more than a limit of --worse.")]
    Compare {
        /// Results folder, published folder or archive: the reference of the comparison
        a: PathBuf,
        /// Results folder, published folder or archive that is compared with A
        b: PathBuf,
        /// Exit with code 1 if a metric is worse by more than this: 'latency_ns.p99_ns 10%', or 'score -5%' where
        /// less is worse; may be repeated
        #[arg(long, value_name = "LIMIT")]
        worse: Vec<MetricLimit>,
        /// Compare all metrics, not only those that the experiment file names
        #[arg(long)]
        all: bool,
        /// Write comparison.html and comparison.json to this folder
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print the comparison as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a folder and an archive that others can read in a browser and run again, and deposit the archive
    Publish(publishing::Arguments),
    /// Remove what interrupted and failed runs left behind
    Clean {
        /// Results folder
        folder: PathBuf,
    },
    /// Print the JSON schema of experiment files
    Schema,
    #[cfg(feature = "whole")]
    #[command(flatten)]
    Remote(remote::What),
}

#[derive(clap::Args)]
struct ChangeArguments {
    /// Set a variable to another value, a loop variable to a value or a list: seconds=10, 'device=["memif-idle"]';
    /// may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Runs of each combination (default: as in the file)
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
}

impl ChangeArguments {
    fn changes(&self) -> Changes {
        Changes {
            set: self.set.clone(),
            repetitions: self.repetitions,
            ..Changes::default()
        }
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.trim().to_string(), value.trim().to_string()))
        .ok_or_else(|| "expected NAME=VALUE, such as seconds=10".to_string())
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::New { file } => new(file),
        What::Check {
            experiment,
            changes,
            offline,
            json,
        } => check(name_now(experiment), &changes.changes(), *offline, *json),
        What::Run {
            experiment,
            out,
            changes,
            against,
            json,
        } => {
            let changes = Changes {
                against: against.as_deref().map(Build::of).transpose()?,
                ..changes.changes()
            };
            start(name_now(experiment), out.as_deref(), &changes, *json)
        }
        What::BootFiles {
            experiment,
            into,
            json,
        } => boot_files(experiment, into, *json),
        What::Robust(arguments) => robust::run(arguments),
        What::Resume { folder, json } => resume(folder, *json),
        What::List {
            results,
            reference,
            json,
        } => list(results, *reference, *json),
        What::Show {
            folder,
            runs,
            verify,
            json,
        } => show(folder, *runs, *verify, *json),
        What::Compare {
            a,
            b,
            worse,
            all,
            out,
            json,
        } => {
            let wanted = Wanted {
                all: *all,
                limits: worse.clone(),
            };
            compare([a, b], &wanted, out.as_deref(), *json)
        }
        What::Publish(arguments) => publishing::run(arguments),
        What::ReplicateAll {
            names,
            out,
            quick,
            report_only,
            json,
        } => replicate_all::run(names, out, *quick, *report_only, *json),
        What::Clean { folder } => clean(folder),
        What::Schema => {
            print::line(SCHEMA.trim_end());
            Ok(())
        }
        #[cfg(feature = "whole")]
        What::Remote(what) => remote::run(what),
    }
}

fn new(file: &Path) -> Result<(), Failure> {
    use std::io::Write;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .and_then(|mut out| out.write_all(taut_experiment::TEMPLATE.as_bytes()))
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::Input(format!(
                "{}: the file already exists: choose another name",
                file.display()
            )),
            _ => Failure::Input(format!("{}: {e}", file.display())),
        })?;
    print::line(format!(
        "wrote {}; see its plan with: taut experiment check {0}",
        file.display()
    ));
    Ok(())
}

/// Returns the current name of a reference experiment; if `what` is a former name, prints a note about that.
fn name_now(what: &str) -> &str {
    match taut_experiment::renamed(what) {
        Some((now, line)) => {
            print::note(line);
            now
        }
        None => what,
    }
}

/// Returns the experiment that `what` names. If `what` names results, and there are no changes, the experiment
/// replicates these results, and the function returns them as well.
fn experiment_of(what: &str, changes: &Changes) -> Result<(Experiment, Option<Results>), Failure> {
    match Results::open(what)? {
        Some(results) if *changes == Changes::default() => {
            Ok((results.experiment()?, Some(results)))
        }
        Some(_) if Path::new(what).is_file() => Err(Failure::Input(format!(
            "{what}: published results are replicated without changes; to change something, unpack the archive, run \
            its experiment.toml with --set, and compare the results with: taut experiment compare {what} RESULTS"
        ))),
        _ => Ok((taut_experiment::open(what, changes)?, None)),
    }
}

fn boot_files(experiment: &str, into: &Path, json: bool) -> Result<(), Failure> {
    let experiment = experiment_of(name_now(experiment), &Changes::default())?.0;
    let nodes = experiment.write_boot_files(into)?;
    if json {
        print::line(serde_json::to_string_pretty(&nodes).unwrap_or_default());
        return Ok(());
    }
    for files in nodes {
        let (ipxe, pxelinux) = (files.ipxe.display(), files.pxelinux.display());
        print::line(format!(
            "node {}: {ipxe}, {pxelinux} ({})",
            files.node, files.image
        ));
    }
    Ok(())
}

fn check(experiment: &str, changes: &Changes, offline: bool, json: bool) -> Result<(), Failure> {
    let experiment = experiment_of(experiment, changes)?.0;
    let mut check = experiment.check()?;
    if !offline {
        check.add_nodes(experiment.reach(&exit::own_program()?, exit::stop_flag()?));
    }
    if json {
        print::line(serde_json::to_string_pretty(&check).unwrap_or_default());
    } else {
        print::line(&check.title);
        print::line(format!("plan {}", check.fingerprint));
        print::line(format!(
            "{} runs of {} combinations{}",
            check.order.len(),
            check.variants.len(),
            if check.at_most_runs > check.order.len() {
                format!(", at most {} until the metric is known", check.at_most_runs)
            } else {
                String::new()
            }
        ));
        print::line(check.repetitions_in_words());
        let longest = time(check.longest_s);
        print::line(match check.expected_s {
            Some(expected) => format!("about {}, at most {longest}", time(expected)),
            None => format!("at most {longest}"),
        });
        print::line("each run, here the first one:");
        for command in &check.commands {
            let stays = if command.background { " &" } else { "" };
            print::line(format!(
                "  {}: {}{stays}",
                command.node,
                command.script.trim_end()
            ));
        }
        for node in check.nodes.iter().filter(|node| node.ready) {
            print::line(&node.text);
        }
        for missing in &check.missing {
            print::line(format!("missing: {missing}"));
        }
    }
    if check.missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::Missing(match check.missing.len() {
            1 => "one thing is missing; see above what it is and how to get it".to_string(),
            count => {
                format!("{count} things are missing; see above what they are and how to get them")
            }
        }))
    }
}

fn start(what: &str, out: Option<&Path>, changes: &Changes, json: bool) -> Result<(), Failure> {
    let (mut experiment, results) = experiment_of(what, changes)?;
    let (name, changes) = match &results {
        Some(results) => results.name_and_changes()?,
        None => (taut_experiment::name_of(what), changes.clone()),
    };
    let dir = out.map_or_else(
        || taut_experiment::fresh_folder(Path::new("results"), &name),
        Path::to_path_buf,
    );
    let command_line = std::env::args().collect::<Vec<_>>().join(" ");
    let folder = Folder::begin(&dir, &experiment, &name, &command_line, &changes)?;
    folder.record_commit(env!("TAUT_COMMIT"))?;
    if let Some(results) = results {
        results.keep_in(&folder)?;
        // The experiment is read from the new results folder, as the unpacked files are deleted soon.
        experiment = folder.experiment()?;
    }
    go_on(experiment, folder, json)
}

fn resume(dir: &Path, json: bool) -> Result<(), Failure> {
    let folder = Folder::open(dir)?;
    let experiment = folder.experiment()?;
    let state = folder.state()?;
    if state.published.is_some() {
        return Err(Failure::Input(format!(
            "{}: published results cannot be resumed; run them again with: taut experiment run {0}",
            dir.display()
        )));
    }
    if state.fingerprint != experiment.fingerprint() {
        return Err(Failure::Input(format!(
            "{}: the plan has changed since the existing runs; run it into a new folder",
            folder.experiment_file().display()
        )));
    }
    go_on(experiment, folder, json)
}

/// Makes the missing runs of an experiment and shows the results.
fn go_on(experiment: Experiment, folder: Folder, json: bool) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    let request = Request {
        experiment,
        folder,
        program: exit::own_program()?,
        holds_machine: false,
        at_most: None,
    };
    let mut bar = Bar::new();
    let ended = taut_experiment::run(&request, &mut bar, stop);
    bar.clear();
    if ended.is_err() {
        // If no run was started, the folder is removed: there is nothing to resume, and its name can be used again.
        request.folder.forget_if_empty();
    }
    let state = ended?;
    let dir = request.folder.path().display();
    report::show(request.folder.path(), json)?;
    match state.completion {
        Completion::Finished => evaluated(&request),
        Completion::Interrupted if stop.load(Ordering::Relaxed) => Err(Failure::Interrupted(
            format!("interrupted; continue with: taut experiment resume {dir}"),
        )),
        _ => {
            let why = match request.folder.last_failure()? {
                Some((run, reason)) => format!("{run}: {reason}; "),
                None => String::new(),
            };
            Err(Failure::Limit(format!(
                "{} of {} runs are missing: {why}{dir}/failed has the output; try them again with: taut experiment resume {dir}",
                state.planned - state.done,
                state.planned
            )))
        }
    }
}

/// Returns an error if a step of the evaluation has failed; it is reported after the results are shown.
fn evaluated(request: &Request) -> Result<(), Failure> {
    let dir = request.folder.path().display();
    match taut_experiment::evaluate::failed_step(&request.experiment, &request.folder) {
        None => Ok(()),
        Some(step) => Err(Failure::Limit(format!(
            "evaluation step {} failed with code {}: {} ({dir}/evaluation/{0}.err); all runs are complete: repeat the \
             step with: taut experiment resume {dir}",
            step.name, step.exit_code, step.failure
        ))),
    }
}

/// A reference experiment in the list.
#[derive(Serialize, JsonSchema)]
pub struct ReferenceRow {
    name: &'static str,
    title: String,
    /// Names of earlier versions, which still work.
    former_names: Vec<&'static str>,
}

impl ReferenceRow {
    fn of(name: &'static str) -> Result<Self, Failure> {
        let experiment = taut_experiment::open_reference(name, &Changes::default())?;
        let former = taut_experiment::FORMER.iter();
        Ok(Self {
            name,
            title: experiment.title().to_owned(),
            former_names: former
                .filter(|(_, now, _)| *now == name)
                .map(|(then, ..)| *then)
                .collect(),
        })
    }
}

fn list(results: &Path, reference: bool, json: bool) -> Result<(), Failure> {
    if reference {
        let rows = taut_experiment::reference().map(ReferenceRow::of);
        let rows = rows.collect::<Result<Vec<ReferenceRow>, Failure>>()?;
        if json {
            print::json(&rows);
            return Ok(());
        }
        for ReferenceRow { name, title, .. } in rows {
            print::line(format!("{name:<40}{title}"));
        }
        for (then, now, why) in taut_experiment::FORMER {
            print::line(format!("{then:<40}is now called {now}: {why}"));
        }
        return Ok(());
    }
    let listed = taut_experiment::list(results)?;
    if json {
        print::line(serde_json::to_string_pretty(&listed).unwrap_or_default());
        return Ok(());
    }
    for one in listed {
        let state = one.state;
        print::line(format!(
            "{:<36}{:<12}{:>6} of {:<6} {}  {}",
            one.folder.display(),
            word(state.completion),
            state.done,
            state.planned,
            state.started,
            state.title
        ));
    }
    Ok(())
}

fn word(completion: Completion) -> &'static str {
    match completion {
        Completion::Running => "running",
        Completion::Interrupted => "interrupted",
        Completion::Incomplete => "incomplete",
        Completion::Finished => "finished",
    }
}

/// Evaluates a folder and prints the result.
pub fn show(dir: &Path, runs: bool, verify: bool, json: bool) -> Result<(), Failure> {
    let folder = Folder::open(dir)?;
    if verify {
        verify_files(&folder, json)?;
    }
    let (evaluation, page) = taut_experiment::evaluate::evaluate(dir)?;
    if json {
        print::line(serde_json::to_string_pretty(&evaluation).unwrap_or_default());
        return Ok(());
    }
    summary(&evaluation.state);
    if let Some((_, line)) = taut_experiment::renamed(&evaluation.state.name) {
        print::line(format!("note: {line}"));
    }
    if runs {
        for run in &folder.index()? {
            let variables: Vec<String> = run
                .variables
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            print::line(format!(
                "{:<12}{:>8.1} s  {}",
                run.id,
                run.seconds,
                variables.join(" ")
            ));
        }
    }
    for warning in evaluation.behind.iter().chain(&evaluation.busy) {
        print::line(format!("warning: {warning}"));
    }
    for table in &evaluation.tables {
        print::line(table.text());
    }
    match &evaluation.robustness {
        Some(robustness) => print::line(robustness),
        None => evaluation.verdicts.iter().for_each(print::line),
    }
    if let Some(replication) = &evaluation.replication {
        for claim in &replication.claims {
            let [there, here] = claim.cells();
            print::line(format!(
                "claim: {}\n  there: {there}\n  here:  {here}",
                claim.here.text
            ));
        }
        print::line(&replication.text);
    }
    for step in &evaluation.steps {
        print::line(match step.exit_code {
            0 => format!(
                "evaluation step {}: done in {:.1} s",
                step.name, step.seconds
            ),
            code => format!(
                "evaluation step {}: failed with code {code}: {}",
                step.name, step.failure
            ),
        });
    }
    for problem in &evaluation.problems {
        print::line(format!("note: {problem}"));
    }
    print::line(format!("report: {}", page.display()));
    if let Some(builds) = &evaluation.builds {
        print::line(builds.to_string().trim_end());
    }
    Ok(())
}

fn verify_files(folder: &Folder, json: bool) -> Result<(), Failure> {
    let runs = folder.index()?;
    let mut damaged = Vec::new();
    for run in &runs {
        damaged.extend(folder.damaged(run)?);
    }
    damaged.iter().for_each(print::line);
    if !damaged.is_empty() {
        let files = match damaged.len() {
            1 => "a file has changed".to_owned(),
            n => format!("{n} files have changed"),
        };
        return Err(Failure::Limit(files));
    }
    if !json {
        print::line(format!(
            "verified: all files of {} runs are unchanged",
            runs.len()
        ));
    }
    Ok(())
}

/// Opens existing results, in a folder or an archive.
fn results_at(path: &Path) -> Result<Results, Failure> {
    Results::open(&path.display().to_string())?.ok_or_else(|| {
        let what = match path.exists() {
            true => "contains no results to compare",
            false => "no such folder or archive",
        };
        Failure::Input(format!(
            "{}: {what}; expected the folder of taut experiment run or taut demo, or an archive of taut experiment publish",
            path.display()
        ))
    })
}

fn compare(
    places: [&Path; 2],
    wanted: &Wanted,
    out: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let (a, b) = (results_at(places[0])?, results_at(places[1])?);
    let found = taut_experiment::compare::compare(&a.folder, &b.folder, wanted)?;
    if json {
        print::line(serde_json::to_string_pretty(&found).unwrap_or_default());
    } else {
        print::line(found.to_string().trim_end());
    }
    if let Some(out) = out {
        let page = taut_experiment::write_comparison(&found, out)?;
        if !json {
            print::line(format!("report: {}", page.display()));
        }
    }
    let worse = found.limits.iter().filter(|one| one.kept == Kept::No);
    match worse.count() {
        0 => Ok(()),
        count => Err(Failure::Limit(format!(
            "{count} of {} limits exceeded",
            found.limits.len()
        ))),
    }
}

fn clean(dir: &Path) -> Result<(), Failure> {
    let removed = Folder::open(dir)?.clean()?;
    print::line(format!(
        "removed {} of interrupted or failed runs",
        quantity::counted(removed, "folder")
    ));
    Ok(())
}

fn summary(state: &State) {
    print::line(format!(
        "{}: {} of {} runs",
        state.title, state.done, state.planned
    ));
    for note in &state.notes {
        print::line(format!("note: {note}"));
    }
}

fn time(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{minutes:.0} min"),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

impl From<ExperimentError> for Failure {
    fn from(e: ExperimentError) -> Self {
        match e {
            ExperimentError::Node { .. } => Self::Missing(e.to_string()),
            ExperimentError::Io { ref source, .. } => Self::of_file(source, e.to_string()),
            ExperimentError::Lab(e) => e.into(),
            other => Self::Input(other.to_string()),
        }
    }
}
