//! `taut control plant`: runs the plant of a control loop as a process.

use super::live::{Event, Live, TICK};
use super::options::{Loop, LoopOptions, address};
use super::show;
use crate::exit::{self, Failure};
use crate::forward;
use crate::terminal::{print, quantity};
use crate::transport::TransportOptions;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_control::protocol::{COMMAND_PORT, MOST_BYTES, REPORT_PORT};
use taut_control::{Kpis, Standing, plant};
use taut_folders::control_loop::{ControlReport, has_stayed_down, write_report};
use taut_results::refuse_results;
use taut_traffic::control::{End, PlantRun, PlantSide};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control plant 127.0.0.1
  taut control plant 192.0.2.2 --protocol taut --plant pendulum --live --out results/pendulum

Sends a report each period and applies what is answered, as the robot of NCSbench does: its unmodified controller balances
this one. Whatever ends it leaves the plant at 0 V. Ends with code 1 if the plant fell or nobody answered.")]
pub struct Arguments {
    /// Host or address of the controller, with a port unless that is 34543
    controller: String,
    #[command(flatten)]
    options: LoopOptions,
    #[command(flatten)]
    transport: TransportOptions,
    /// Address and port to receive commands at, and to send reports from
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{COMMAND_PORT}"))]
    bind: String,
    /// Time to wait for the first command
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::some_time)]
    patience: Duration,
    /// End when standard input closes, for programs that start taut and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Draw the plant on a terminal; with --json print an object for each reading
    #[arg(long)]
    live: bool,
    /// Write summary.json and rounds.csv to this folder, which must be new
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print JSON: one object at the start, one at the end
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let of = arguments.options.of_loop(false)?;
    let mut over = arguments.transport.over(MOST_BYTES)?;
    let late = arguments.options.late_plan(&mut over)?;
    let controller = address(&arguments.controller, REPORT_PORT)?;
    let bind = address(&arguments.bind, COMMAND_PORT)?;
    if let Some(out) = &arguments.out {
        refuse_results(out)?;
    }
    let signalled = exit::stop_flag()?;
    let side = PlantSide::open(bind, controller, &over).map_err(|e| {
        Failure::Input(format!(
            "cannot receive commands at {bind}: {e}; try another --bind"
        ))
    })?;
    let mut side = side.with_late_target(late.map(|it| it.target_ns));
    let at = side
        .address()
        .map_err(|e| Failure::Missing(e.to_string()))?;
    let words = std::env::args().collect::<Vec<_>>().join(" ");
    let mut report = ControlReport::new(words, &of.model);
    report.settings = arguments.options.as_json(&of);
    print::line(forward::json_or_text(
        arguments.json,
        || Event::Started { address: at },
        || format!("{} at {at}, controlled from {controller}", of.model.name()),
    ));
    let title = format!("{}, controlled from {controller}", of.model.name());
    let live = arguments
        .live
        .then(|| Live::open(&of, title, arguments.json));
    let found = run_plant(arguments, &of, &mut side, live, signalled)?;
    report.end = found.end;
    report.missed = found.missed;
    report.plant_datagrams = found.datagrams;
    report.complaint = found.complaint.map(|it| it.to_string());
    // The controller may use another clock, so one-way delays are not computed (`false`).
    report.kpis = Kpis::of(&found.records, of.model.inputs(), false, found.fallen_ns)
        .with_erected(&found.records, found.erected_ns);
    if let Some(out) = &arguments.out {
        report.write(out, &found.records)?;
        write_report(out)?;
    }
    show::report(&report, false, arguments.json)?;
    verdict(&report)
}

/// Runs the plant on a thread of its own until it ends or the user stops it.
fn run_plant(
    arguments: &Arguments,
    of: &Loop,
    side: &mut PlantSide,
    mut live: Option<Live>,
    signalled: &AtomicBool,
) -> Result<PlantRun, Failure> {
    let stop = AtomicBool::new(false);
    let seen = Mutex::new(Standing::default());
    let (ended, open) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    std::thread::scope(|scope| {
        let (stop, seen) = (&stop, &seen);
        let body = plant::plant(&of.model, of.seed);
        let (format, station) = (of.format, of.station);
        let running = scope.spawn(move || {
            let patience = arguments.patience;
            let found = side.run(body, format, station, patience, stop, seen);
            // Closing this end of the pipe wakes the thread that waits below.
            drop(open);
            found
        });
        loop {
            let until = live.is_some().then(|| Instant::now() + TICK);
            if forward::wait(signalled, &[&ended], arguments.until_stdin_closes, until) {
                break;
            }
            let standing = seen.lock().map(|it| *it).unwrap_or_default();
            if live.as_mut().is_some_and(|live| live.show(&standing)) {
                break;
            }
        }
        // The terminal is restored before anything is printed.
        drop(live.take());
        stop.store(true, Ordering::Relaxed);
        let found = running.join();
        found.map_err(|_| Failure::Missing("the plant's thread died".to_owned()))
    })
}

/// Returns an error unless all periods have run; the error says why the plant fell, was left at 0 or was stopped.
pub fn verdict(report: &ControlReport) -> Result<(), Failure> {
    let complaint = report.complaint.as_ref();
    let came = complaint.map_or(String::new(), |it| {
        format!("; the datagrams received were invalid: {it}")
    });
    match report.end {
        End::Periods => Ok(()),
        End::Fallen if has_stayed_down(report) => Err(Failure::Limit(format!(
            "{} did not erect itself{came}",
            report.plant
        ))),
        End::Fallen => Err(Failure::Limit(format!("{} fell{came}", report.plant))),
        End::Gone => Err(Failure::Limit(format!(
            "the controller has stopped: the plant was left at 0{came}"
        ))),
        End::NobodyAnswered if report.plant_datagrams.too_late > 0 => Err(Failure::Limit(format!(
            "all {} commands received missed their deadline (--apply arrival applies commands when they arrive){came}",
            report.plant_datagrams.too_late
        ))),
        End::NobodyAnswered => Err(Failure::Limit(format!(
            "no command arrived: does the controller run, with the same --plant and --protocol?{came}"
        ))),
        End::Stopped => Err(Failure::Interrupted(
            "stopped before all periods were over; the plant was left at 0".to_owned(),
        )),
    }
}
