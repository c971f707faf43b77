//! Experiments of a laboratory: submit, watch, cancel, retry and fetch.

use crate::exit::{self, Failure};
use crate::lab::access::Access;
use crate::lab::experiment_line;
use crate::terminal::print;
use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use taut_experiment::{Changes, fresh_folder, name_of};
use taut_testbed::Client;
use taut_testbed::api::{Experiment, State, SubmitRequest};

/// Interval between two queries of an experiment's state.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub enum What {
    /// Put an experiment into the queue of a laboratory
    #[command(after_help = "Examples:
  taut experiment submit latency.toml --to http://127.0.0.1:9210
  taut experiment submit latency.toml --node device=dut --node generator=gen1 --watch
  taut experiment submit demo --set seconds=1 --repetitions 6

Each role of the file gets the node of the laboratory at its location, or that of --node. `taut lab queue` shows when it starts.")]
    Submit {
        /// Experiment file, or name of a reference experiment
        experiment: String,
        #[command(flatten)]
        access: Access,
        /// Set a variable to another value, a loop variable to a value or a list: seconds=10, 'device=["memif-idle"]';
        /// may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = super::assignment)]
        set: Vec<(String, String)>,
        /// Runs of each combination (default: as in the file)
        #[arg(long, value_name = "N")]
        repetitions: Option<u32>,
        /// Node of the laboratory for a role of the file; may be repeated
        #[arg(long, value_name = "ROLE=NODE", value_parser = super::assignment)]
        node: Vec<(String, String)>,
        /// Run within this reservation of yours (default: the current one with all nodes of the experiment, or when the
        /// nodes are free)
        #[arg(long, value_name = "ID")]
        reservation: Option<u64>,
        /// Then follow the experiment, as `taut experiment watch` does
        #[arg(long)]
        watch: bool,
        /// Print the experiment as JSON
        #[arg(long)]
        json: bool,
    },
    /// Follow an experiment of a laboratory until it ends
    Watch {
        /// Number of the experiment
        id: u64,
        #[command(flatten)]
        access: Access,
        /// Print the latest output of the experiment's commands, and do not follow it
        #[arg(long, conflicts_with = "json")]
        log: bool,
        /// Print the experiment as JSON whenever it changes
        #[arg(long)]
        json: bool,
    },
    /// Take an experiment out of the queue of a laboratory, or end it; complete runs are kept
    Cancel {
        /// Number of the experiment
        id: u64,
        #[command(flatten)]
        access: Access,
        /// Print the experiment as JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a laboratory make the missing runs of an experiment that failed or was cancelled
    Retry {
        /// Number of the experiment
        id: u64,
        #[command(flatten)]
        access: Access,
        /// Print the experiment as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy the results of an experiment from a laboratory
    Fetch {
        /// Number of the experiment
        id: u64,
        #[command(flatten)]
        access: Access,
        /// Results folder (default: a new one under ./results)
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print the folder as JSON
        #[arg(long)]
        json: bool,
    },
}

/// The output of `taut experiment fetch --json`.
#[derive(Serialize, JsonSchema)]
pub struct Fetched {
    /// Results folder.
    folder: PathBuf,
}

pub fn run(what: &What) -> Result<(), Failure> {
    match what {
        What::Submit {
            experiment,
            access,
            set,
            repetitions,
            node,
            reservation,
            watch,
            json,
        } => {
            let client = access.client()?;
            let mut wish = submission(super::name_now(experiment), set, *repetitions)?;
            wish.nodes = node.iter().cloned().collect::<BTreeMap<_, _>>();
            wish.reservation = *reservation;
            let one = client.submit(&wish)?;
            told(&one, *json);
            match watch {
                true => follow(&client, one, *json),
                false => Ok(()),
            }
        }
        What::Watch {
            id,
            access,
            log,
            json,
        } => {
            let client = access.client()?;
            if *log {
                print::line(client.log(*id)?.trim_end());
                return Ok(());
            }
            let one = client.experiment(*id)?;
            told(&one, *json);
            follow(&client, one, *json)
        }
        What::Cancel { id, access, json } => {
            told(&access.client()?.cancel(*id)?, *json);
            Ok(())
        }
        What::Retry { id, access, json } => {
            told(&access.client()?.retry(*id)?, *json);
            Ok(())
        }
        What::Fetch {
            id,
            access,
            out,
            json,
        } => fetch(&access.client()?, *id, out.as_deref(), *json),
    }
}

/// Reads an experiment as it is submitted; its errors are found here, not in the laboratory.
fn submission(
    what: &str,
    set: &[(String, String)],
    repetitions: Option<u32>,
) -> Result<SubmitRequest, Failure> {
    let changes = Changes {
        set: set.to_vec(),
        repetitions,
        ..Changes::default()
    };
    let experiment = taut_experiment::open(what, &changes)?;
    Ok(SubmitRequest {
        name: name_of(what),
        text: experiment.text().to_owned(),
        files: experiment.attached()?,
        set: changes.set,
        repetitions,
        ..SubmitRequest::default()
    })
}

fn told(experiment: &Experiment, json: bool) {
    match json {
        true => print::line(serde_json::to_string(experiment).unwrap_or_default()),
        false => print::line(experiment_line(experiment)),
    }
}

/// Prints an experiment whenever it changes, until it has ended. The exit code says how the experiment ended.
fn follow(client: &Client, mut shown: Experiment, json: bool) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    while !shown.state.is_over() {
        std::thread::sleep(LOOK);
        if stop.load(Ordering::Relaxed) {
            let id = shown.id;
            let text = format!("experiment {id} goes on; taut experiment cancel {id} ends it");
            return Err(Failure::Interrupted(text));
        }
        let now = client.experiment(shown.id)?;
        if now != shown {
            told(&now, json);
            shown = now;
        }
    }
    let id = shown.id;
    match shown.state {
        State::Finished => {
            if !json {
                print::line(format!("copy the results with: taut experiment fetch {id}"));
            }
            Ok(())
        }
        state => Err(Failure::Limit(match shown.reason {
            Some(reason) => format!("experiment {id} {state}: {reason}"),
            None => format!("experiment {id} {state}"),
        })),
    }
}

fn fetch(client: &Client, id: u64, out: Option<&Path>, json: bool) -> Result<(), Failure> {
    let folder = match out {
        Some(out) => out.to_owned(),
        None => fresh_folder(Path::new("results"), &client.experiment(id)?.name),
    };
    client.fetch(id, &folder)?;
    match json {
        true => print::json(&Fetched { folder }),
        false => print::line(format!(
            "{0}; see it with: taut experiment show {0}",
            folder.display()
        )),
    }
    Ok(())
}
