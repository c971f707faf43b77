//! `taut node`: the commands that an experiment runs on its nodes. Only taut runs it.

use crate::exit::{self, Failure};
use crate::terminal::{print, quantity};
use clap::Subcommand;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use taut_deploy::vm::{NodeMachine, dial, keep_machine};
use taut_experiment::agent::StepOrder;
use taut_experiment::folder::Folder;
use taut_experiment::{
    ClockError, ClockOrder, ClockReading, Counter, ProbeRequest, Request, agent, keep_clock,
    probe_links,
};

/// Exit code if the connection to a virtual machine breaks, the same as that of `ssh`.
const CONNECTION_BROKE: u8 = 255;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run a step in the run's folder until it ends, standard input closes, or the limit is over
    Step {
        /// The run's folder
        #[arg(long)]
        folder: PathBuf,
        /// Name of the step
        #[arg(long)]
        name: String,
        /// Time limit of the step, seconds
        #[arg(long, value_parser = quantity::seconds)]
        limit: f64,
        /// The first line of standard input holds secrets for the step's environment
        #[arg(long)]
        secrets: bool,
        /// Keep the cores of this machine from halting
        #[arg(long)]
        awake: bool,
        /// Program that the script runs as `taut` (default: this one)
        #[arg(long)]
        program: Option<PathBuf>,
        /// Quantity to count during the step; may be repeated
        #[arg(long, value_parser = counter)]
        counter: Vec<Counter>,
        /// Script that the shell runs
        #[arg(last = true)]
        script: String,
    },
    /// Make one run of an experiment on the machines that Slurm has allocated to this process
    Run {
        /// The results folder
        #[arg(long)]
        folder: PathBuf,
        /// The run's name
        #[arg(long)]
        run: String,
    },
    /// Make the run's folder, with the files of the tar stream at standard input
    Begin {
        /// The run's folder
        #[arg(long)]
        folder: PathBuf,
    },
    /// Print the files of the run's folder as a tar stream and remove them
    Collect {
        /// The run's folder
        #[arg(long)]
        folder: PathBuf,
    },
    /// Print facts about this machine
    Facts {
        /// The run's folder
        #[arg(long)]
        folder: PathBuf,
    },
    /// Print the clock and the free space
    Moment {
        /// Folder of the runs
        #[arg(long)]
        folder: PathBuf,
    },
    /// Send frames on the interfaces of this machine, and print which ones arrive
    Links {
        /// Token of the test: 32 hexadecimal digits
        #[arg(long)]
        token: String,
        /// Name of this node
        #[arg(long)]
        node: String,
        /// Seconds to send and listen
        #[arg(long, value_parser = quantity::seconds)]
        seconds: f64,
        /// Interface to prove: the test ends when each of them has received its peer's frames and its peer has received
        /// its own
        #[arg(long)]
        interface: Vec<String>,
        /// Interface to send on (default: all that are up, or those to prove)
        #[arg(long)]
        send: Vec<String>,
    },
    /// Synchronise the clock of this machine until the step ends
    Clock {
        /// Order for the clock, as JSON
        order: String,
    },
    /// Run a virtual machine until standard input closes
    Machine {
        /// Description of the machine, in JSON
        #[arg(long)]
        machine: String,
    },
    /// Run taut on a virtual machine, whose secret is in $TAUT_MACHINE_TOKEN
    Dial {
        /// Address of the machine's agent
        #[arg(long)]
        address: SocketAddr,
        /// Arguments of taut there
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Keep this machine for one experiment until standard input closes
    Hold {
        /// Folder of the runs
        #[arg(long)]
        folder: PathBuf,
    },
}

fn counter(name: &str) -> Result<Counter, String> {
    Counter::of_name(name).ok_or_else(|| format!("`{name}` is no counter"))
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let failed = |e: std::io::Error| Failure::Missing(e.to_string());
    let json = |value: serde_json::Result<String>| {
        print::line(value.unwrap_or_default());
        Ok(ExitCode::SUCCESS)
    };
    let done = |result: std::io::Result<()>| result.map(|()| ExitCode::SUCCESS).map_err(failed);
    match arguments.what {
        What::Step {
            folder,
            name,
            limit,
            secrets,
            awake,
            program,
            counter,
            script,
        } => {
            let order = StepOrder {
                folder: &folder,
                name: &name,
                limit: Duration::from_secs_f64(limit),
                script: &script,
                secrets,
                awake,
                program: program.as_deref(),
                counters: &counter,
            };
            let code = agent::step(&order).map_err(failed)?;
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        What::Facts { .. } => json(serde_json::to_string(&agent::facts())),
        What::Moment { folder } => json(serde_json::to_string(&agent::moment(&folder))),
        What::Run { folder, run } => {
            let folder = Folder::open(&folder)?;
            let request = Request {
                experiment: folder.experiment()?,
                folder,
                program: exit::own_program()?,
                holds_machine: false,
                at_most: None,
            };
            match taut_experiment::run_allocated(&request, &run, exit::stop_flag()?)? {
                None => Ok(ExitCode::SUCCESS),
                Some(reason) => Err(Failure::Limit(format!("{run}: {reason}"))),
            }
        }
        What::Links {
            token,
            node,
            seconds,
            interface,
            send,
        } => {
            let request = ProbeRequest {
                node,
                token,
                proven: interface,
                sending: send,
                time: Duration::from_secs_f64(seconds),
            };
            json(serde_json::to_string(
                &probe_links(&request).map_err(failed)?,
            ))
        }
        What::Clock { order } => {
            let order: ClockOrder =
                serde_json::from_str(&order).map_err(|e| Failure::Input(e.to_string()))?;
            let report = |reading: &ClockReading| print::json(reading);
            keep_clock(&order, exit::stop_flag()?, report).map_err(|e| match e {
                ClockError::Bound { .. } => Failure::Limit(e.to_string()),
                e => Failure::Missing(e.to_string()),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        What::Machine { machine } => {
            let machine: NodeMachine =
                serde_json::from_str(&machine).map_err(|e| Failure::Input(e.to_string()))?;
            keep_machine(&machine, &exit::own_program()?)?;
            Ok(ExitCode::SUCCESS)
        }
        What::Dial { address, words } => {
            let token = std::env::var("TAUT_MACHINE_TOKEN").unwrap_or_default();
            match dial(address, &token, words) {
                Ok(code) => Ok(ExitCode::from(code)),
                Err(e) => {
                    print::note(format_args!("taut: the machine has gone: {e}"));
                    Ok(ExitCode::from(CONNECTION_BROKE))
                }
            }
        }
        What::Begin { folder } => done(agent::begin(&folder)),
        What::Collect { folder } => done(agent::collect(&folder)),
        What::Hold { folder } => {
            let held = agent::Held::claim().map_err(Failure::Missing)?;
            done(held.keep(&folder))
        }
    }
}
