//! `taut chain`: starts a chain of functions on several workers, shows its status, and stops it.

mod manifest;
mod place;
mod plan;

pub use place::Placements;

use crate::exit::{self, Failure};
use crate::forward::{causes, json_or_text, passed};
use crate::terminal::watch::serve_metrics;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use taut_deploy::vm::Accelerator;
use taut_deploy::{
    Condition, Deployment, Request, SegmentStatus, Status, ask, down, name_of, run_folder, sweep,
};
use taut_engine::{Chain, Count, CountKind, CountersView};
use taut_functions::FUNCTIONS;
use taut_live::metrics::{Exposition, SegmentView, chain_metrics};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut chain plan chain.toml
  taut chain up chain.toml                  # until Ctrl-C
  taut chain up chain.toml --detach
  taut chain status
  taut chain status edge --json
  taut chain update edge.toml               # after its functions were changed
  taut chain down edge
  taut chain manifest kubernetes chain.toml

The file defines the functions, the ports between which they run, and their placement: placement = \"compact\" (one worker),
\"threads\", \"processes\" (joined by memif), \"namespaces\" (joined by veth wires, functions in the kernel where they can be) or
\"vm\" (virtual machines, joined by a switch over vhost-user).")]
pub struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Print where each function of a chain will run and why, its cost, and whether the budget holds
    Plan(plan::Arguments),
    /// Start a chain, and keep it up until Ctrl-C
    Up(Up),
    /// Print the state of running chains
    Status {
        /// Name of a chain (default: all)
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a running chain the functions of its changed file, while packets pass
    #[command(after_help = "Example:  taut chain update edge.toml")]
    Update {
        /// Chain file (TOML) with the new functions
        file: PathBuf,
    },
    /// Write files that run a chain on other machines: Kubernetes, OpenStack
    Manifest(manifest::Arguments),
    /// Take a chain down, and remove everything that it created
    #[command(override_usage = "taut chain down <NAME>\n       taut chain down --all")]
    Down {
        /// Name of the chain
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        name: Option<String>,
        /// Take down all chains, and remove what dead ones left behind
        #[arg(long)]
        all: bool,
    },
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut chain up edge.toml
  taut chain up edge.toml --detach
  taut chain up edge.toml --quiet --metrics 127.0.0.1:9100

Ctrl-C ends the chain; one that was detached is ended by `taut chain down edge`.")]
struct Up {
    /// Chain file (TOML)
    file: PathBuf,
    /// Return when the chain is up, and leave a supervisor until `taut chain down`; not with --json
    #[arg(long, conflicts_with_all = ["until_stdin_closes", "json"])]
    detach: bool,
    /// Print JSON: one object when the chain is up, one a second, one at the end
    #[arg(long)]
    json: bool,
    /// Print no counters until the end
    #[arg(long)]
    quiet: bool,
    /// Serve the state of all segments as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; with
    /// --detach the port cannot be 0
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Stop when standard input closes: for programs that start taut and must not leave it behind
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    /// Run without a controlling terminal
    #[arg(long, hide = true)]
    detached: bool,
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        Action::Plan(plan) => plan::run(&plan),
        Action::Up(up) if up.detach => detach(&up),
        Action::Up(up) => keep_up(&up),
        Action::Status { name, json } => status(name.as_deref(), json),
        Action::Update { file } => update(&file),
        Action::Manifest(arguments) => manifest::run(&arguments),
        Action::Down { name, all } => take_down(name.as_deref(), all),
    }
}

/// A line of `taut chain up --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line<'a> {
    /// The chain is running.
    Up { status: &'a Status },
    /// The state of the chain after a second, and the counters of each segment during that second.
    Second {
        second: u64,
        during: &'a [CountersView],
        status: &'a Status,
    },
    /// The chain has been stopped.
    Down { status: &'a Status },
}

fn keep_up(up: &Up) -> Result<(), Failure> {
    if up.detached {
        // An error is ignored: `setsid` fails for the leader of a process group, and a shell may have made this process
        // one.
        let _ = rustix::process::setsid();
    }
    let chain = Chain::load(&up.file, FUNCTIONS)?;
    let signalled = exit::stop_flag()?;
    let program = exit::own_program()?;
    let shown = Arc::new(Mutex::new(None::<Status>));
    let show = |status: &Status| {
        if up.metrics.is_some() {
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
        }
    };
    let given_out = Arc::clone(&shown);
    // The endpoint starts first, so that an address in use leaves nothing to stop.
    let _endpoint = serve_metrics(up.metrics.as_deref(), move || {
        let shown = given_out.lock().unwrap_or_else(PoisonError::into_inner);
        shown
            .as_ref()
            .map_or_else(|| Exposition::new().finish(), metrics)
    })?;
    let mut deployment = Deployment::up(&chain, &up.file, &program, signalled)?;
    let status = deployment.status();
    show(&status);
    print::line(json_or_text(
        up.json,
        || Line::Up { status: &status },
        || summary(&status),
    ));
    deployment.keep_up(
        signalled,
        up.until_stdin_closes,
        |second, status, during| {
            show(status);
            if !up.quiet {
                print::line(json_or_text(
                    up.json,
                    || Line::Second {
                        second,
                        during,
                        status,
                    },
                    || seconds_lines(second, status, during),
                ));
            }
        },
    )?;
    let last = deployment.down();
    print::line(json_or_text(
        up.json,
        || Line::Down { status: &last },
        || totals(&last),
    ));
    Ok(())
}

/// Returns the metrics of a chain.
fn metrics(status: &Status) -> String {
    let segments: Vec<SegmentView<'_>> = status
        .segments
        .iter()
        .map(|segment| SegmentView {
            name: &segment.name,
            is_up: segment.condition == Condition::Up,
            restarts: segment.restarts,
            lost_while_down: segment.lost_while_down,
            links_down: segment.links_down.len(),
            counters: &segment.counters,
            functions: &segment.counts,
        })
        .collect();
    chain_metrics(&status.name, &segments)
}

/// Starts a supervisor without a terminal, and returns when its chain is up.
fn detach(up: &Up) -> Result<(), Failure> {
    let chain = Chain::load(&up.file, FUNCTIONS)?;
    let name = name_of(&chain, &up.file)?;
    let failed = |what: &str, e: std::io::Error| Failure::Missing(format!("cannot {what}: {e}"));
    let folder = run_folder::make_all_chains()?;
    // The file is next to the chain's own folder, which the supervisor creates and removes.
    let words = folder.join(format!(".{name}.supervisor"));
    let log = File::create(&words).map_err(|e| failed("write the supervisor's log", e))?;
    let file = fs::canonicalize(&up.file).map_err(|e| failed("find the chain file", e))?;
    let mut supervisor = Command::new(exit::own_program()?)
        .args(["chain", "up", "--json", "--quiet", "--detached"])
        .args(up.metrics.iter().flat_map(|it| ["--metrics", it.as_str()]))
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|e| failed("start the supervisor", e))?;
    let mut line = String::new();
    if let Some(stdout) = supervisor.stdout.take() {
        // An error is ignored: the exit code shows that the supervisor ended without printing a line.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    let said = fs::read_to_string(&words).unwrap_or_default();
    // The file stays if the chain is up, as the supervisor continues to write its log to it.
    let is_kept = !line.is_empty() && run_folder::keep_as_log(&words, &name).is_ok();
    if !is_kept {
        let _ = fs::remove_file(&words);
    }
    if line.is_empty() {
        let last = said.lines().last().unwrap_or("the supervisor died");
        let last = last.strip_prefix("taut: ").unwrap_or(last).to_string();
        let code = supervisor.wait().ok().and_then(|status| status.code());
        return Err(match code {
            Some(2) => Failure::Input(last),
            Some(130) => Failure::Interrupted(last),
            _ => Failure::Missing(last),
        });
    }
    let status = ask(&name, &Request::Status)?;
    print::line(summary(&status));
    Ok(())
}

fn status(name: Option<&str>, json: bool) -> Result<(), Failure> {
    let names = match name {
        Some(name) => vec![name.to_string()],
        None => run_folder::names()?,
    };
    let mut found = Vec::new();
    for each in &names {
        match ask(each, &Request::Status) {
            Ok(status) => found.push(status),
            // The chain was listed, but has ended or died since.
            Err(e) if name.is_none() => print::note(e),
            Err(e) => return Err(e.into()),
        }
    }
    if json {
        print::line(serde_json::to_string_pretty(&found).unwrap_or_default());
    } else if found.is_empty() {
        print::line("no chain is up");
    } else {
        for status in &found {
            print::line(summary(status));
            print::line(totals(status));
        }
    }
    Ok(())
}

fn update(file: &Path) -> Result<(), Failure> {
    let chain = Chain::load(file, FUNCTIONS)?;
    let name = name_of(&chain, file)?;
    let unreadable = |e: std::io::Error| Failure::Input(format!("{}: {e}", file.display()));
    let request = Request::Update {
        file: fs::canonicalize(file)
            .map_err(unreadable)?
            .display()
            .to_string(),
        text: fs::read_to_string(file).map_err(unreadable)?,
    };
    let before = ask(&name, &Request::Status)?;
    let now = ask(&name, &request)?;
    print::line(summary(&now));
    print::line(changes(&before, &now));
    Ok(())
}

/// Describes the changes of an update, a line for each segment. Changed settings of a function do not show in its name.
fn changes(before: &Status, now: &Status) -> String {
    let functions = |segment: &SegmentStatus| match segment.functions.as_slice() {
        [] => "no function".to_string(),
        functions => functions.join(", "),
    };
    let changed = before.segments.iter().zip(&now.segments);
    let lines: Vec<String> = changed
        .filter(|(before, now)| before.functions != now.functions)
        .map(|(before, now)| {
            format!(
                "{} updated: {} instead of {}",
                now.name,
                functions(now),
                functions(before)
            )
        })
        .collect();
    if lines.is_empty() {
        format!("{} updated: same functions, settings of the file", now.name)
    } else {
        lines.join("\n")
    }
}

fn take_down(name: Option<&str>, all: bool) -> Result<(), Failure> {
    let names = match name {
        Some(name) if !all => vec![name.to_string()],
        _ => run_folder::names()?,
    };
    for name in names {
        match down(&name)? {
            Some(last) => print::line(format!("{name}: down\n{}", totals(&last))),
            None => print::line(format!("{name}: its supervisor had died; cleaned up")),
        }
    }
    if all {
        sweep();
    }
    Ok(())
}

fn summary(status: &Status) -> String {
    let mut text = format!(
        "chain {} up: {}, {}, supervisor {}",
        status.name,
        status.placement,
        quantity::counted(status.segments.len(), "segment"),
        status.supervisor
    );
    for segment in &status.segments {
        text += &format!("\n  {:<16}{:<8}", segment.name, segment.place);
        if let Some(core) = segment.core {
            text += &format!("core {core}  ");
        }
        if let Some(wait) = &segment.wait {
            text += &format!("wait {wait}  ");
        }
        if let Some(namespace) = &segment.namespace {
            text += &format!("in {namespace}  ");
        }
        if let Some(machine) = &segment.machine {
            let why = match machine.as_str() {
                "emulated" => Accelerator::why_not_the_processor(),
                _ => None,
            };
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            text += &format!("in a virtual machine ({machine}{why})  ");
        }
        text += &segment.ports.join(" - ");
    }
    text
}

fn seconds_lines(second: u64, status: &Status, during: &[CountersView]) -> String {
    let lines = status.segments.iter().zip(during).map(|(segment, c)| {
        format!(
            "{second:>5} s  {:<16}rx {:>14}  tx {:>14}  dropped {}{}",
            segment.name,
            quantity::rate(c.rx_packets as f64),
            quantity::rate(c.tx_packets as f64),
            causes(c),
            condition(segment)
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn totals(status: &Status) -> String {
    let lines = status.segments.iter().map(|segment| {
        format!(
            "  {:<16}{}; dropped {}{}{}",
            segment.name,
            passed(&segment.counters),
            causes(&segment.counters),
            condition(segment),
            dropped_by(&segment.counts)
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Lists the causes for which functions have dropped packets, with a line for each such function.
fn dropped_by(counts: &[Count]) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for count in counts {
        if count.kind != CountKind::Drop || count.count == 0 {
            continue;
        }
        let part = format!("{} {}", cause(&count.name), count.count);
        match lines.iter_mut().find(|line| line.0 == count.function) {
            Some(line) => line.1 += &format!(", {part}"),
            None => lines.push((&count.function, part)),
        }
    }
    let lines = lines.into_iter();
    lines
        .map(|(function, causes)| format!("\n      dropped by {function}: {causes}"))
        .collect()
}

/// Extracts the cause from the name of an outcome that counts dropped packets.
fn cause(outcome: &str) -> String {
    let words = outcome.replace('_', " ");
    let mut cause = words.as_str();
    for said in ["slow path: ", "dropped: ", "dropped, ", "dropped "] {
        cause = cause.strip_prefix(said).unwrap_or(cause);
    }
    cause.to_string()
}

/// Describes the anomalies of a segment, such as a link that is down.
fn condition(segment: &SegmentStatus) -> String {
    let mut text = String::new();
    if segment.restarts > 0 {
        text += &format!(
            "; restarted {} ({}), {} lost during that",
            quantity::counted(segment.restarts, "time"),
            segment.last_words,
            quantity::counted(segment.lost_while_down, "packet")
        );
    }
    text += match segment.condition {
        Condition::Starting => "; starting",
        Condition::Down => "; DOWN",
        Condition::Up | Condition::Ended => "",
    };
    for (port, why) in &segment.links_down {
        text += &format!("; {port} down: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_prints_one_line_with_its_drop_causes() {
        let count = |function: &str, kind, name: &str, count| Count {
            function: function.to_string(),
            kind,
            name: name.to_string(),
            about: String::new(),
            count,
        };
        let counts = [
            count("route", CountKind::Outcome, "forwarded", 9),
            count("route", CountKind::Drop, "dropped: malformed", 0),
            count("route", CountKind::Drop, "slow path: no route", 12),
            count("ips", CountKind::Drop, "dropped_by_rule", 1),
            count("route", CountKind::Drop, "slow path: no hops left", 3),
            count(
                "route",
                CountKind::Drop,
                "slow path: dropped, as too many wait for the neighbour",
                2,
            ),
        ];
        assert_eq!(
            dropped_by(&counts),
            "\n      dropped by route: no route 12, no hops left 3, as too many wait for the neighbour 2\
             \n      dropped by ips: by rule 1"
        );
        assert_eq!(dropped_by(&[]), "");
    }
}
