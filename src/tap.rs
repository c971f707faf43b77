//! `taut tap`: sees each packet enter and leave a device, and says what the device itself took.

use crate::exit::Failure;
use crate::{print, quantity};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_lab::results::PacketFormat;
use taut_lab::tapped::{self, DirectionReport, Ends, TapFolder, TapReport, Tapped};
use taut_port::wire_tap::{self, WireTap};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  ip netns exec device taut tap eth0 eth1             until Ctrl-C
  ip netns exec device taut tap eth0 eth1 --seconds 10 --json --out results/device-only

The interfaces are the device's ends of veth pairs, in the network namespace of the command. Meanwhile send
packets with taut generate (on af_packet with qdisc=yes where the device receives through AF_XDP or XDP).
Ends with code 1 if no measurement packet entered.")]
pub struct Arguments {
    /// Interfaces of the device: one or two
    #[arg(value_name = "INTERFACE", required = true, num_args = 1..=2)]
    interfaces: Vec<String>,
    /// End after this time (default: at Ctrl-C)
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Write every packet's sample, the latency histograms and the summary into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// How samples are written into the folder
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
}

/// How samples are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Samples {
    Parquet,
    Csv,
    None,
}

/// How often sightings are taken out of the kernel's ring.
const PAUSE: Duration = Duration::from_millis(100);

/// Sightings that the ring has room for: a pause at 2 million packets a second.
const RING: f64 = 4e5;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = taut_host::stop_flag()
        .map_err(|e| Failure::Missing(format!("cannot watch for Ctrl-C: {e}")))?;
    let tap = WireTap::start(&arguments.interfaces, wire_tap::ring_bytes(RING))?;
    let format = match arguments.samples {
        Samples::Parquet => Some(PacketFormat::Parquet),
        Samples::Csv => Some(PacketFormat::Csv),
        Samples::None => None,
    };
    let folder = arguments.out.as_deref();
    let folder = folder
        .map(|dir| TapFolder::create(dir, format))
        .transpose()?;
    let mut tapped = Tapped::new(tap, &arguments.interfaces, Ends::Device, folder);
    eprintln!("taut: watching {}", arguments.interfaces.join(" and "));
    watch(&mut tapped, arguments.seconds, stop);
    let (report, written) = tapped.finish();
    if arguments.json {
        let text = serde_json::to_string(&report).map_err(|e| Failure::Missing(e.to_string()))?;
        print::line(text);
    } else {
        show(&report);
    }
    written?;
    if report.is_empty() {
        return Err(Failure::Limit(
            "no measurement packet was seen entering: is the generator sending through these interfaces (on \
             af_packet, with qdisc=yes)?"
                .to_string(),
        ));
    }
    Ok(())
}

/// Until the time is over or somebody stops it, and then as long as packets inside may take.
fn watch(tapped: &mut Tapped, seconds: Option<f64>, stop: &AtomicBool) {
    let begun = Instant::now();
    let is_over = || {
        stop.load(Ordering::Relaxed)
            || seconds.is_some_and(|s| begun.elapsed() >= Duration::from_secs_f64(s))
    };
    while !is_over() {
        std::thread::sleep(PAUSE);
        tapped.collect();
    }
    tapped.close_entrance();
    let closed = Instant::now();
    while closed.elapsed() < tapped::PATIENCE {
        std::thread::sleep(PAUSE);
        tapped.collect();
    }
}

fn show(report: &TapReport) {
    for direction in &report.directions {
        show_direction(direction);
    }
    if report.only_left > 0 {
        print::line(format!(
            "{} packets were seen leaving only: inside before the tap was there, for over {} ms, or let in unseen",
            report.only_left,
            tapped::PATIENCE.as_millis()
        ));
    }
    let missed = report.missed;
    if missed.ring_full > 0 {
        print::line(format!(
            "{} sightings are missing, as this process could not keep up: losses are not to be trusted",
            missed.ring_full
        ));
    }
    if missed.unseen > 0 {
        print::line(format!(
            "{} frames crossed unseen by the interfaces' own counters: packets among them count as lost, or not at all",
            missed.unseen
        ));
    }
    if let Some(kept) = report.samples {
        print::line(format!("samples    {kept} packets written"));
    }
}

fn show_direction(direction: &DirectionReport) {
    let all = &direction.all;
    if all.entered == 0 {
        print::line(format!("{}: nothing entered", direction.from));
        return;
    }
    let to = direction.to.as_deref().unwrap_or("nowhere");
    print::line(format!(
        "{} to {to}: {} entered, {} left, {} lost inside, {} duplicated, {} reordered",
        direction.from, all.entered, all.left, all.lost, all.duplicate, all.reordered
    ));
    match &all.latency_ns {
        Some(latency) => print::line(format!("inside     {}", quantity::summary(latency))),
        None => print::line("inside     no data: nothing left"),
    }
}
