//! `taut node`: what an experiment runs on its nodes. Not for people.

use crate::exit::Failure;
use crate::print;
use clap::Subcommand;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use taut_experiment::agent;

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
        /// Its name
        #[arg(long)]
        name: String,
        /// Longest time, seconds
        #[arg(long)]
        limit: f64,
        /// For the shell
        #[arg(last = true)]
        script: String,
    },
    /// Print what is known of this machine
    Facts {
        /// The run's folder
        #[arg(long)]
        folder: PathBuf,
    },
    /// Print the clock and the free space
    Moment {
        /// Where runs are
        #[arg(long)]
        folder: PathBuf,
    },
    /// Keep this machine for one experiment until standard input closes
    Hold {
        /// Where runs are
        #[arg(long)]
        folder: PathBuf,
    },
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let failed = |e: std::io::Error| Failure::Missing(e.to_string());
    let json = |value: serde_json::Result<String>| {
        print::line(value.unwrap_or_default());
        Ok(ExitCode::SUCCESS)
    };
    match arguments.what {
        What::Step {
            folder,
            name,
            limit,
            script,
        } => {
            let limit = Duration::try_from_secs_f64(limit)
                .map_err(|_| Failure::Input("--limit: want seconds".to_string()))?;
            let code = agent::step(&folder, &name, limit, &script).map_err(failed)?;
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        What::Facts { .. } => json(serde_json::to_string(&agent::facts())),
        What::Moment { folder } => json(serde_json::to_string(&agent::moment(&folder))),
        What::Hold { .. } => {
            let Some(_held) = agent::Held::claim() else {
                return Err(Failure::Missing(
                    "another experiment runs on this machine; both would only measure each other: wait for it to end".to_string(),
                ));
            };
            print::line("held");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            Ok(ExitCode::SUCCESS)
        }
    }
}
