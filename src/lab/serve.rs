//! `taut lab serve`: the service of a laboratory.

use crate::exit::{self, Failure};
use crate::forward;
use crate::terminal::print;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use taut_measure::quantity::counted;
use taut_testbed::{Lab, LabError, LabFile, Schedule};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut lab serve lab.toml
  taut lab serve lab.toml --listen 127.0.0.1:9300

Open the address that it prints. Ctrl-C ends the service, but no experiment: start it again to see them end. It speaks no TLS: reach it by
ssh -L 9210:127.0.0.1:9210 HOST, or through a proxy.")]
pub struct Arguments {
    /// File of the laboratory
    file: PathBuf,
    /// Address instead of the file's; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// End when standard input closes, for programs that start taut and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Print the address as JSON: `event`, `url`, `nodes` and `users`
    #[arg(long)]
    json: bool,
}

/// The line of `taut lab serve --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line<'a> {
    /// The service has started, and accepts requests at `url`.
    Started {
        url: &'a str,
        nodes: usize,
        users: usize,
    },
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut file = LabFile::read(&arguments.file).map_err(|e| Failure::Input(e.to_string()))?;
    if let Some(listen) = &arguments.listen {
        file.listen.clone_from(listen);
    }
    let (nodes, users) = (file.nodes.len(), file.users.len());
    let stop = exit::stop_flag()?;
    let lab = Arc::new(Lab::open(file, &exit::own_program()?)?);
    let schedule = Schedule::start(&lab, |e| print::note(format_args!("schedule: {e}")));
    let _schedule =
        schedule.map_err(|e| Failure::Missing(format!("cannot start a thread: {e}")))?;
    let server = taut_testbed::serve(&lab)?;
    let url = format!("http://{}/", server.address());
    if !server.address().ip().is_loopback() {
        print::note(
            "hosts on the path can read tokens and results: prefer 127.0.0.1 with ssh -L, or a proxy with TLS",
        );
    }
    print::line(forward::json_or_text(
        arguments.json,
        || Line::Started {
            url: &url,
            nodes,
            users,
        },
        || {
            let (nodes, users) = (counted(nodes, "node"), counted(users, "user"));
            format!("laboratory with {nodes} and {users} at {url}")
        },
    ));
    forward::wait(stop, &[], arguments.until_stdin_closes, None);
    Ok(())
}

impl From<LabError> for Failure {
    fn from(e: LabError) -> Self {
        Self::Missing(e.to_string())
    }
}
