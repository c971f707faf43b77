//! `taut control controller`: runs the controller of a control loop as a process.

use super::options::{LoopOptions, address};
use crate::exit::{self, Failure};
use crate::forward;
use crate::terminal::print;
use crate::transport::TransportOptions;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use taut_control::protocol::{COMMAND_PORT, MOST_BYTES, REPORT_PORT};
use taut_results::write_whole;
use taut_traffic::control::{ControllerSide, Datagrams};
use taut_traffic::messages::Transport;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control controller
  taut control controller --strategy fixed --filter original --faults all     as NCSbench's

Controls the first plant that sends a report, until Ctrl-C; the plant is then notified of the end. Also controls
NCSbench's robot.")]
pub struct Arguments {
    #[command(flatten)]
    options: LoopOptions,
    #[command(flatten)]
    transport: TransportOptions,
    /// Address and port to receive reports at
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{REPORT_PORT}"))]
    bind: String,
    /// Port of the plant that commands are sent to
    #[arg(long, value_name = "PORT", default_value_t = COMMAND_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    answer_port: u16,
    /// Send commands to the source of the reports, whatever its port; not with --answer-port
    #[arg(long, conflicts_with = "answer_port")]
    answer_to_sender: bool,
    /// End when standard input closes, for programs that start taut and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Write the times of reports and commands to this file (CSV)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print JSON: one object at the start, one at the end
    #[arg(long)]
    json: bool,
}

/// A line of `taut control controller --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line {
    /// The controller has started and receives reports at `address`.
    Started { address: SocketAddr },
    /// The controller has ended; the complaint is the error in the first invalid datagram.
    Summary {
        datagrams: Datagrams,
        complaint: Option<String>,
    },
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let of = arguments.options.of_loop(false)?;
    let mut over = arguments.transport.over(MOST_BYTES)?;
    let late = arguments.options.late_plan(&mut over)?;
    let bind = address(&arguments.bind, REPORT_PORT)?;
    let signalled = exit::stop_flag()?;
    let side = ControllerSide::open(bind, &over).map_err(|e| {
        Failure::Input(format!(
            "cannot receive reports at {bind}: {e}; try another --bind"
        ))
    })?;
    let mut side = side.with_late(late);
    let at = side
        .address()
        .map_err(|e| Failure::Missing(e.to_string()))?;
    print::line(forward::json_or_text(
        arguments.json,
        || Line::Started { address: at },
        || format!("controls {} at {at}", of.model.name()),
    ));
    // Only datagrams can be sent elsewhere than to the source of reports.
    let goes_elsewhere = !arguments.answer_to_sender && over.transport == Transport::Udp;
    let answer_port = goes_elsewhere.then_some(arguments.answer_port);
    let stop = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let running =
            scope.spawn(|| side.run(&of.model, of.controller, of.format, answer_port, &stop));
        forward::wait(signalled, &[], arguments.until_stdin_closes, None);
        stop.store(true, Ordering::Relaxed);
        let found = running.join();
        found.map_err(|_| Failure::Missing("the controller's thread died".to_owned()))
    })??;
    if let Some(log) = &arguments.log {
        let mut text = "sequence,report_received_ns,command_sent_ns\n".to_owned();
        for it in &found.heard {
            let _ = writeln!(text, "{},{},{}", it.sequence, it.received_ns, it.sent_ns);
        }
        write_whole(log, text.as_bytes())?;
    }
    let datagrams = found.datagrams;
    let complaint = found.complaint.map(|it| it.to_string());
    print::line(forward::json_or_text(
        arguments.json,
        || Line::Summary {
            datagrams,
            complaint: complaint.clone(),
        },
        || {
            let complaint = complaint.as_ref();
            format!(
                "replied to {} reports; ignored {} malformed{}, {} from other senders, {} out of order",
                datagrams.sent,
                datagrams.malformed,
                complaint.map_or(String::new(), |it| format!(" ({it})")),
                datagrams.strangers,
                datagrams.not_asked
            )
        },
    ));
    Ok(())
}
