//! `taut experiment replicate-all`: runs reference experiments, and compares published figures with the results.

use super::time;
use crate::exit::{self, Failure};
use crate::terminal::print;
use std::path::Path;
use std::sync::atomic::Ordering;
use taut_experiment::Changes;
use taut_experiment::folder::Folder;
use taut_results::Completion;

/// Runs reference experiments, those with the fewest runs first, and writes the comparison with published results.
pub fn run(
    names: &[String],
    out: &Path,
    quick: bool,
    report_only: bool,
    json: bool,
) -> Result<(), Failure> {
    let asked = experiments_of(names)?;
    std::fs::create_dir_all(out).map_err(|e| unwritable(out, &e))?;
    let stop = exit::stop_flag()?;
    let all = asked.len();
    for (number, name) in asked.into_iter().enumerate().filter(|_| !report_only) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let title = format!("{} of {all}  {name}", number + 1);
        complete(name, &title, out, quick)?;
    }
    let report = taut_experiment::ReplicationReport::gather(out)?;
    let page = report.write(out)?;
    match json {
        true => print::json(&report),
        false => {
            print::line(report.lead());
            print::line(format!("report: {}", page.display()));
        }
    }
    match stop.load(Ordering::Relaxed) {
        true => Err(Failure::Interrupted(
            "interrupted; the same command continues".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Returns the reference experiments with the given names, or all if there are no names; those with the fewest runs
/// first.
fn experiments_of(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    let mut asked = Vec::new();
    for name in taut_experiment::reference() {
        if names.is_empty() || names.iter().any(|it| it == name) {
            let runs = taut_experiment::open(name, &Changes::default())?
                .plan()
                .len();
            asked.push((runs, name));
        }
    }
    let known = |name: &String| taut_experiment::reference().any(|it| it == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        return Err(Failure::Input(format!(
            "{unknown} is no reference experiment; list them with: taut experiment list --reference"
        )));
    }
    asked.sort_unstable();
    Ok(asked.into_iter().map(|(_, name)| name).collect())
}

/// Runs or resumes an experiment in another process, whose output is written to a file, unless the experiment is
/// finished.
fn complete(name: &str, title: &str, out: &Path, quick: bool) -> Result<(), Failure> {
    let (folder, log) = (out.join(name), out.join(format!("{name}.log")));
    let there = Folder::open(&folder).and_then(|it| it.state()).ok();
    let mut command = std::process::Command::new(exit::own_program()?);
    command.arg("experiment");
    match there.map(|state| state.completion) {
        Some(Completion::Finished) => {
            print::note(format_args!("{title}: already finished"));
            return Ok(());
        }
        Some(_) => command.arg("resume").arg(&folder),
        None => {
            command.arg("run").arg(name).arg("--out").arg(&folder);
            if quick {
                command.args(["--repetitions", "1"]);
            }
            &mut command
        }
    };
    taut_experiment::check_machine_is_free()?;
    print::note(title);
    let begun = std::time::Instant::now();
    let cannot = |e: std::io::Error| unwritable(out, &e);
    let said = std::fs::File::create(&log).map_err(cannot)?;
    command
        .stdin(std::process::Stdio::null())
        .stderr(said.try_clone().map_err(cannot)?)
        .stdout(said);
    // A failed experiment does not end the replication: its errors are in the report.
    let ended = command.status().map_err(cannot)?;
    let seconds = begun.elapsed().as_secs_f64();
    let how = if ended.success() {
        "done"
    } else {
        "incomplete"
    };
    print::note(format_args!("        {how} after {}", time(seconds)));
    Ok(())
}

fn unwritable(out: &Path, e: &std::io::Error) -> Failure {
    Failure::Input(format!("{}: {e}", out.display()))
}
