//! `taut ips capacity`: the cost of packet inspection on this machine, and the rate at which the queue in front of it
//! fills.

use super::variables;
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_engine::{Chain, DEFAULT_BURST};
use taut_forecast::{Capacity, Inspection, capacity};
use taut_functions::FUNCTIONS;
use taut_measure::quantity::share;
use taut_port::BATCH_CAPACITY;

/// The name of the inspection function, as chain files write it.
const FUNCTION: &str = "ips";
const ENDING: &str = "toml";

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut ips capacity local.rules
  taut ips capacity community.rules --variable 'HOME_NET=[10.0.0.0/8]' --io 60ns --queue 256
  taut ips capacity chain.toml --core 1 --json

No network is used: the function is given frames from memory, of datagrams to port 53 in six sizes and of mixed
DNS, HTTP and TLS (`taut ips sample --traffic FILE` writes those). R_max is what interruptions leave of a core over
the time of a packet.")]
pub struct Arguments {
    /// Files of rules, or one chain file (*.toml) with a function ips, whose settings are used
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Value of a name in rules, such as HOME_NET=[10.0.0.0/8]; may be repeated
    #[arg(long, value_name = "NAME=TEXT")]
    variable: Vec<String>,
    /// Slots of the ring in which packets wait, as `ring` of a port, 1 to 1048576
    #[arg(long, value_name = "SLOTS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    queue: u32,
    /// Maximum number of packets taken from a port at a time, 1 to 64 (default: 32, or as in the chain file)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=BATCH_CAPACITY as i64))]
    burst: Option<u8>,
    /// Time to receive and send a packet, added to the inspection, such as 60ns
    #[arg(long, value_name = "TIME", default_value = "0ns", value_parser = quantity::duration)]
    io: Duration,
    /// Seconds of measurement for each kind of traffic
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// CPU to measure on
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The longest measurement of one kind of traffic, seconds.
const MOST_SECONDS: f64 = 3600.0;

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = quantity::seconds(text)?;
    match seconds <= MOST_SECONDS {
        true => Ok(seconds),
        false => Err(format!("expected at most {MOST_SECONDS} seconds")),
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (settings, burst) = settings(arguments)?;
    if let Some(core) = arguments.core {
        taut_host::pin_current_thread(core).map_err(|e| Failure::Input(e.to_string()))?;
    }
    let asked = Inspection {
        settings,
        burst: arguments
            .burst
            .map_or(burst.min(BATCH_CAPACITY), usize::from),
        queue: arguments.queue as usize,
        io_ns: arguments.io.as_nanos() as f64,
        duration: Duration::from_secs_f64(arguments.seconds),
    };
    let found = capacity(&asked, |what| {
        if !arguments.json {
            print::note(format_args!("measuring {what}"));
        }
    })?;
    if arguments.json {
        print::json(&found);
    } else {
        show(&found);
    }
    Ok(())
}

/// Returns the settings of the function `ips`, and the number of packets in a burst.
fn settings(arguments: &Arguments) -> Result<(toml::Table, usize), Failure> {
    let is_chain = |file: &Path| file.extension() == Some(OsStr::new(ENDING));
    let Some(chain) = arguments.files.iter().find(|file| is_chain(file)) else {
        let mut settings = toml::Table::new();
        let files = arguments
            .files
            .iter()
            .map(|file| match file.to_str() {
                Some(file) => Ok(toml::Value::from(file)),
                None => Err(Failure::Input(format!(
                    "{}: expected a name in UTF-8",
                    file.display()
                ))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        settings.insert("rules".to_owned(), files.into());
        // Without strict mode, rules that cannot be loaded would be skipped, and the cost of fewer rules measured.
        settings.insert("strict".to_owned(), true.into());
        let variables = variables(&arguments.variable)?;
        let variables: toml::Table = variables
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.into()))
            .collect();
        settings.insert("variables".to_owned(), variables.into());
        return Ok((settings, DEFAULT_BURST));
    };
    if arguments.files.len() > 1 || !arguments.variable.is_empty() {
        return Err(Failure::Input(format!(
            "{}: a chain file sets rules and variables itself: give no other file and no --variable",
            chain.display()
        )));
    }
    let read = Chain::load(chain, FUNCTIONS)?;
    let function = read.functions.into_iter().find(|it| it.name == FUNCTION);
    let Some(function) = function else {
        return Err(Failure::Input(format!(
            "{}: the chain has no function {FUNCTION}",
            chain.display()
        )));
    };
    Ok((function.settings, read.burst))
}

fn show(found: &Capacity) {
    print::line(format!(
        "{} rules, batches of {}, a ring of {} slots",
        found.rules, found.burst, found.queue
    ));
    print_rates(found);
    print_latencies(found);
    let taken = found.traffic.iter().map(|of| of.interruptions.share);
    print::line(format!(
        "interruptions took up to {} of the core; beyond R_max every packet waits for a full ring, \
         unless the setting `overload` prevents that",
        share(taken.fold(0.0, f64::max))
    ));
    for note in &found.notes {
        print::line(format!("note: {note}"));
    }
}

/// Prints for each kind of traffic the time of a packet, and R_max: the rate at which the queue of packets fills.
fn print_rates(found: &Capacity) {
    let ns = quantity::time;
    let ring = format!("{} places last", found.queue);
    print::table(
        [
            "traffic",
            "bytes",
            "alone",
            "p99",
            "busy",
            "R_max",
            "from",
            "to",
            ring.as_str(),
        ],
        found.traffic.iter().map(|of| {
            let highest = &of.highest.estimate;
            [
                of.name.to_owned(),
                bytes(of.frame_bytes),
                ns(of.alone.p50_ns),
                ns(of.alone.p99_ns),
                ns(of.busy_ns.value + found.io_ns),
                quantity::rate(highest.value),
                quantity::rate(highest.low),
                quantity::rate(highest.high),
                ns(of.ring_ns),
            ]
        }),
    );
}

/// Prints the latency of each kind of traffic at each load.
fn print_latencies(found: &Capacity) {
    let ns = quantity::time;
    let rows = found.traffic.iter().flat_map(|of| {
        of.latency.iter().map(move |at| {
            [
                of.name.to_owned(),
                bytes(of.frame_bytes),
                share(at.share),
                quantity::rate(at.rate_pps),
                ns(at.p50_ns),
                ns(at.p99_ns),
                ns(at.p99_9_ns),
                share(at.loss),
            ]
        })
    });
    print::table(
        [
            "traffic", "bytes", "of R_max", "rate", "p50", "p99", "p99.9", "lost",
        ],
        rows,
    );
}

fn bytes(bytes: f64) -> String {
    format!("{bytes:.0}")
}
