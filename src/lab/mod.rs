//! `taut lab`: a laboratory that many users share. `serve` runs its service; the other subcommands are clients of the
//! service.

pub mod access;
mod serve;
pub mod wire;

use crate::exit::Failure;
use crate::terminal::print;
use access::{Access, seconds, time_of};
use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use taut_testbed::api::{
    Experiment, ExtendRequest, Node, NodeState, Reservation, ReserveRequest, SlurmJob, State,
};
use taut_testbed::{TokenHash, new_token};

pub use serve::Line;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut lab token alice --out alice.token      a secret for her, and an entry for the laboratory's file
  taut lab serve lab.toml
  taut lab nodes --to http://127.0.0.1:9210
  taut lab reserve dut generator --for 2h --to http://127.0.0.1:9210
  taut experiment submit latency.toml --to http://127.0.0.1:9210

The variable TAUT_LAB saves --to. The token is in the variable TAUT_TOKEN, or in ~/.config/taut/token.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run the service of a laboratory: nodes, calendar, queue, experiments, and a page
    Serve(serve::Arguments),
    /// Make a token for a user, and its entry for the laboratory's file
    Token {
        /// Name of the user
        user: String,
        /// File to write the token to, readable by you alone (default: print it)
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the nodes, and who has them now
    Nodes {
        #[command(flatten)]
        access: Access,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the reservations that have not ended
    Calendar {
        #[command(flatten)]
        access: Access,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the experiments that run and wait, and those that ended last
    Queue {
        #[command(flatten)]
        access: Access,
        /// List only experiments that run or wait
        #[arg(long)]
        open: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Reserve nodes; refused if somebody has one of them at that time
    #[command(after_help = "Examples:
  taut lab reserve dut generator --for 2h
  taut lab reserve dut --from '2026-12-01 09:00' --until '2026-12-01 17:00'     times are UTC
  taut lab reserve dut --from +30m --for 1h")]
    Reserve {
        /// Names of the nodes
        #[arg(required = true)]
        nodes: Vec<String>,
        /// Start, UTC, or a time from now such as +2h (default: now)
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// End, UTC
        #[arg(long, value_name = "TIME", required_unless_present = "length")]
        until: Option<String>,
        /// Length, such as 2h, instead of --until
        #[arg(long = "for", id = "length", value_name = "LENGTH", value_parser = seconds, conflicts_with = "until")]
        length: Option<u64>,
        #[command(flatten)]
        access: Access,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Move the end of a reservation
    Extend {
        /// Number of the reservation
        id: String,
        /// New end, UTC, or a time from now such as +2h
        #[arg(long, value_name = "TIME", required_unless_present = "by")]
        until: Option<String>,
        /// Time to add, such as 2h, instead of --until
        #[arg(long, value_name = "LENGTH", value_parser = seconds, conflicts_with = "until")]
        by: Option<u64>,
        #[command(flatten)]
        access: Access,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// End a reservation now
    Release {
        /// Number of the reservation
        id: String,
        #[command(flatten)]
        access: Access,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Find out which interfaces of nodes are connected by cables
    Wire(wire::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Serve(arguments) => serve::run(arguments),
        What::Wire(arguments) => wire::wire(arguments),
        What::Token { user, out, json } => token(user, out.as_deref(), *json),
        What::Nodes { access, json } => {
            let nodes = access.client()?.nodes()?;
            listed(
                &nodes,
                *json,
                ["node", "at", "state", "properties"],
                node_row,
            )
        }
        What::Calendar { access, json } => {
            let reservations = access.client()?.reservations()?;
            listed(&reservations, *json, RESERVATION, reservation_row)
        }
        What::Queue { access, open, json } => {
            let client = access.client()?;
            let mut all = client.experiments()?;
            all.retain(|it| !*open || !it.state.is_over());
            listed(&all, *json, EXPERIMENT, experiment_row)?;
            // Jobs of other users take nodes too if Slurm manages the queue.
            let jobs = if *json { Vec::new() } else { client.jobs()? };
            match jobs.is_empty() {
                true => Ok(()),
                false => listed(&jobs, false, JOB, job_row),
            }
        }
        What::Reserve {
            nodes,
            from,
            until,
            length,
            access,
            json,
        } => {
            let wish = ReserveRequest {
                nodes: nodes.iter().cloned().collect(),
                from: from.as_deref().map(time_of).transpose()?,
                until: until.as_deref().map(time_of).transpose()?,
                seconds: *length,
            };
            reservation(&access.client()?.reserve(&wish)?, *json);
            Ok(())
        }
        What::Extend {
            id,
            until,
            by,
            access,
            json,
        } => {
            let wish = ExtendRequest {
                until: until.as_deref().map(time_of).transpose()?,
                seconds: *by,
            };
            reservation(&access.client()?.extend(id, &wish)?, *json);
            Ok(())
        }
        What::Release { id, access, json } => {
            let released = access.client()?.release(id)?;
            match json {
                true => print::json(&released),
                false => print::line(format!("released {}", released.id)),
            }
            Ok(())
        }
    }
}

const RESERVATION: [&str; 5] = ["id", "from", "until", "user", "nodes"];
const JOB: [&str; 6] = ["job", "name", "user", "nodes", "state", "reason"];
const EXPERIMENT: [&str; 7] = ["id", "name", "user", "nodes", "state", "runs", "when"];

/// Prints a list as JSON, or as a table.
fn listed<T: Serialize, const N: usize>(
    all: &[T],
    json: bool,
    head: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> Result<(), Failure> {
    match json {
        true => print::json(&all),
        false => print::table(head, all.iter().map(row)),
    }
    Ok(())
}

fn reservation(it: &Reservation, json: bool) {
    match json {
        true => print::json(it),
        false => print::line(format!(
            "reservation {}: {} has {} from {} until {}",
            it.id,
            it.user,
            names(&it.nodes),
            it.from,
            it.until
        )),
    }
}

fn names<'a>(nodes: impl IntoIterator<Item = &'a String>) -> String {
    let nodes: Vec<&str> = nodes.into_iter().map(String::as_str).collect();
    nodes.join(", ")
}

fn node_row(node: &Node) -> [String; 4] {
    let state = match (node.state, &node.user, &node.until) {
        (NodeState::Free, ..) => "free".to_owned(),
        (NodeState::Running, Some(user), Some(until)) => {
            format!("runs an experiment of {user} until {until}")
        }
        (_, Some(user), Some(until)) => format!("reserved by {user} until {until}"),
        _ => "in use".to_owned(),
    };
    let cores = node.cores.map(|cores| format!("cores {cores}"));
    let properties = node.properties.iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => format!("{name} {text}"),
        value => format!("{name} {value}"),
    });
    let more: Vec<String> = cores.into_iter().chain(properties).collect();
    [node.name.clone(), node.at.clone(), state, more.join(", ")]
}

fn reservation_row(it: &Reservation) -> [String; 5] {
    let (from, until) = (it.from.clone(), it.until.clone());
    [
        it.id.clone(),
        from,
        until,
        it.user.clone(),
        names(&it.nodes),
    ]
}

fn experiment_row(it: &Experiment) -> [String; 7] {
    let runs = it.progress.as_ref();
    let runs = runs.map(|runs| format!("{} of {}", runs.done, runs.planned));
    [
        it.id.to_string(),
        it.name.clone(),
        it.user.clone(),
        names(&it.nodes),
        it.state.to_string(),
        runs.unwrap_or_default(),
        when(it).unwrap_or_default(),
    ]
}

fn job_row(it: &SlurmJob) -> [String; 6] {
    let reason = it.reason.clone().unwrap_or_default();
    let (id, state) = (it.id.clone(), it.state.clone());
    [
        id,
        it.name.clone(),
        it.user.clone(),
        it.nodes.clone(),
        state,
        reason,
    ]
}

/// Returns the time to list for an experiment: the latest start, the start or the end, depending on its state.
fn when(it: &Experiment) -> Option<String> {
    match it.state {
        State::Waiting => it.expected.as_ref().map(|at| format!("starts by {at}")),
        State::Running => it.started.as_ref().map(|at| format!("since {at}")),
        _ => it.ended.as_ref().map(|at| format!("ended {at}")),
    }
}

/// Returns a line about an experiment of the laboratory.
pub fn experiment_line(it: &Experiment) -> String {
    let runs = it.progress.as_ref();
    let runs = runs.map(|runs| format!("{} of {} runs", runs.done, runs.planned));
    let parts = [runs, when(it), it.reason.clone()];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let nodes = names(&it.nodes);
    let head = format!("experiment {} on {nodes}: {}", it.id, it.state);
    [vec![head], parts].concat().join("; ")
}

/// The output of `taut lab token --json`.
#[derive(Serialize, JsonSchema)]
pub struct Token<'a> {
    /// Name of the user.
    user: &'a str,
    /// The token; `null` if it was written to a file.
    token: Option<String>,
    /// SHA-256 of the token, for the laboratory's file.
    sha256: String,
}

fn token(user: &str, out: Option<&Path>, json: bool) -> Result<(), Failure> {
    taut_testbed::file::Name::try_from(user.to_owned())
        .map_err(|e| Failure::Input(format!("user {e}")))?;
    let token = new_token().map_err(|e| Failure::Missing(format!("cannot make a token: {e}")))?;
    let sha256 = TokenHash::of(&token).as_str().to_owned();
    if let Some(out) = out {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options
            .open(out)
            .and_then(|mut file| writeln!(file, "{token}"))
            .map_err(|e| Failure::Input(format!("{}: {e}", out.display())))?;
    }
    let kept = out.is_some();
    if json {
        print::json(&Token {
            user,
            token: (!kept).then_some(token),
            sha256,
        });
        return Ok(());
    }
    if !kept {
        print::line(format!("# token, for {user} alone: {token}"));
    }
    print::line(format!("[users.{user}]\ntoken = \"{sha256}\""));
    Ok(())
}
