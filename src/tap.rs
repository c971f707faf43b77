//! `taut tap`: records each packet that enters and leaves a device, by observing the links or in line, and reports the
//! latency of the device alone.

use crate::exit::{self, Failure};
use crate::samples::Samples;
use crate::terminal::{print, quantity};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_bench::measurement::port_losses;
use taut_port::PortSpec;
use taut_tap::{
    DirectionReport, Ends, PATIENCE, RelayReport, RunningTap, Sightings, TapFolder, TapReport,
    Tapped,
};
use taut_xdp::wire_tap::{self, WireTap};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  ip netns exec device taut tap eth0 eth1             until Ctrl-C
  ip netns exec device taut tap eth0 eth1 --seconds 10 --json --out results/device-only
  taut tap --core 2 --port memif:/tmp/gen-a.sock,role=client --port memif:/tmp/dev-a.sock,role=server \\
    --port memif:/tmp/gen-b.sock,role=client --port memif:/tmp/dev-b.sock,role=server

Interfaces are the device's ends of veth pairs, in the network namespace of the command; the tap observes them.
Meanwhile send packets with taut generate (on af_packet with qdisc=yes if the device receives through
AF_XDP or XDP).
With ports the tap is inline: it relays packets between generator and device, and needs a core of its own.
Relaying adds to the generator's round trip, but not to the latency that the tap reports for the device.
Ends with code 1 if no measurement packet entered.")]
pub struct Arguments {
    /// Interfaces of the device to watch, one or two; not with --port
    #[arg(value_name = "INTERFACE", required_unless_present = "port", conflicts_with = "port", num_args = 1..=2)]
    interfaces: Vec<String>,
    /// Tap in line between these ports: the generator's and the device's of side A, then those of side B
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// CPU to relay on; with --port
    #[arg(long, value_name = "CPU", conflicts_with = "interfaces")]
    core: Option<usize>,
    /// End after this many seconds (default: at Ctrl-C)
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Write samples of every packet, latency histograms and the summary to this folder, which must be new
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Format of the samples in the folder of --out
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
}

/// Time between two reads of the kernel's ring.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of entries that fit into the ring: two (entering and leaving the device) for each packet of one [`PAUSE`] at
/// 2 million packets per second.
const RING: f64 = 4e5;

/// The number of CPUs for a measurement with an in-line wiretap: generator, device and wiretap need one CPU each.
const CPUS_IN_LINE: usize = 3;

/// Names of the two sides of a device between the ports of an in-line wiretap.
const SIDES: [&str; 2] = ["A", "B"];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    if arguments.port.is_empty() {
        let interfaces = &arguments.interfaces;
        let tap = WireTap::start(interfaces, wire_tap::ring_bytes(RING))?;
        let said = format!("watching {}", interfaces.join(" and "));
        return collect(arguments, tap, interfaces, &said, stop);
    }
    let specs = arguments.port.iter().map(|text| PortSpec::parse(text));
    let specs: Vec<_> = specs.collect::<Result<_, _>>()?;
    let names = arguments.port.clone();
    let tap = RunningTap::start(specs, arguments.core, move |port, link| {
        print::link(&names[port], link);
    })?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < CPUS_IN_LINE {
        print::note(format_args!(
            "{cpus} CPUs for generator, device and tap: on a shared core the tap adds milliseconds of scheduling \
             delay to both, and to the times inside the device"
        ));
    }
    let sides = &SIDES.map(String::from)[..arguments.port.len() / 2];
    collect(arguments, tap, sides, "in line, relaying", stop)
}

/// Collects the samples of the wiretap `tap` until the measurement ends, and reports them.
fn collect(
    arguments: &Arguments,
    tap: impl Sightings,
    sides: &[String],
    said: &str,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let format = arguments.samples.format();
    let folder = arguments.out.as_deref();
    let folder = folder
        .map(|dir| TapFolder::create(dir, format))
        .transpose()?;
    let mut tapped = Tapped::new(tap, sides, Ends::Device, folder);
    print::note(said);
    watch(&mut tapped, arguments.seconds, stop);
    let (report, written) = tapped.finish();
    if arguments.json {
        print::json(&report);
    } else {
        show(&report);
    }
    written?;
    if report.is_empty() {
        let hint = match report.relay {
            None => {
                "is the generator sending through these interfaces (on af_packet, with qdisc=yes)?"
            }
            Some(_) => {
                "is the generator at the first port of a side, the device at the second, and every link up?"
            }
        };
        let text = format!("no measurement packet entered the device: {hint}");
        return Err(Failure::Limit(text));
    }
    Ok(())
}

/// Waits until the time is over or the user stops the command, and then for the longest time that packets inside the
/// device may take.
fn watch(tapped: &mut Tapped<impl Sightings>, seconds: Option<f64>, stop: &AtomicBool) {
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
    while closed.elapsed() < PATIENCE {
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
            "{} packets were seen only as they left: they entered before the tap started, stayed longer than {} ms, \
            or entered unseen",
            report.only_left,
            PATIENCE.as_millis()
        ));
    }
    let missed = report.missed;
    if missed.ring_full > 0 {
        print::line(format!(
            "{} observations are missing because this process could not keep up: the loss counts are unreliable",
            missed.ring_full
        ));
    }
    if missed.unseen > 0 {
        print::line(format!(
            "{} frames were not seen, according to the interfaces' counters: their packets count as lost or are \
            missing from all counts",
            missed.unseen
        ));
    }
    if let Some(relay) = &report.relay {
        show_relay(relay);
    }
    if let Some(kept) = report.samples {
        print::line(format!("samples    {kept} packets written"));
    }
}

fn show_relay(relay: &RelayReport) {
    let core = match relay.core {
        Some(core) => format!("in line on core {core}"),
        None => "in line, without a core of its own (--core)".to_string(),
    };
    print::line(format!(
        "{core}: relaying adds to the generator's round trip, not to the times inside"
    ));
    if relay.refused > 0 {
        print::line(format!(
            "{} packets never entered: the device's ring was full or its link down",
            relay.refused
        ));
    }
    if relay.undelivered > 0 {
        print::line(format!(
            "{} packets left but did not return: the generator's ring was full or its link down",
            relay.undelivered
        ));
    }
    port_losses(relay.ports.iter().map(|p| (&p.port, &p.counters))).for_each(print::line);
}

fn show_direction(direction: &DirectionReport) {
    let all = &direction.all;
    if all.entered == 0 {
        print::line(format!("{}: no packet entered", direction.from));
        return;
    }
    let to = direction.to.as_deref().unwrap_or("nowhere");
    print::line(format!(
        "{} to {to}: {} entered, {} left, {} lost inside, {} duplicated, {} reordered",
        direction.from, all.entered, all.left, all.lost, all.duplicate, all.reordered
    ));
    match &all.latency_ns {
        Some(latency) => print::line(format!("inside     {}", quantity::summary(latency))),
        None => print::line("inside     no data: no packet left"),
    }
}
