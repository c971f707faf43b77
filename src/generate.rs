//! `taut generate`: sends traffic and measures the packets that come back.

use crate::exit::{self, Failure};
use crate::samples::Samples;
use crate::target::Target;
use crate::terminal::Alone;
use crate::terminal::watch::{self, Look, Watch};
use crate::terminal::{print, quantity};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use taut_bench::device::{DeviceUnderTest, RunError};
use taut_bench::measurement::{
    Account, FloodSummary, Measurement, Recorded, Setup, measure_flood, measure_flood_together,
};
use taut_host::{Meter, MeterError};
use taut_live::Dashboard;
use taut_port::{Attachment, PortSpec};
use taut_sys::Clock;
use taut_traffic::{
    Flood, FromIntended, Observed, Pacing, Pattern, Rate, RateError, Sampler, Slowest, Stream,
    StreamView, Summaries, Traffic, Trial, TrialError, WorstPackets,
};
use taut_wire::UdpFlow;

/// The offered rate if the user sets none.
const DEFAULT_RATE: Rate = Rate::Packets(100e3);

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut generate --port memif:/tmp/west.sock --port memif:/tmp/east.sock --rate 100k --seconds 10
  taut generate --port af_packet:eth1 --port af_packet:eth2 --rate '50% of 1G' --size imix --pattern poisson
  taut generate --port memif:/tmp/west.sock --port memif:/tmp/east.sock --set 'dst_ip=10.0.0.1-10.0.255.254 random'
  taut generate --port af_packet:eth1 --port af_packet:eth2 --pattern 'trace(in.pcap, 2x)' --size trace
  taut generate traffic.toml --port af_xdp:eth1 --port af_xdp:eth2 --rate 1M --json
  taut generate --device veth-bridge --rate 100k --seconds 2 --json
  taut generate --port memif:/tmp/west.sock --rate max --seconds 5
  taut generate --port memif:/tmp/west.sock --rate 20M --cores 2,3

The first port sends, the last one receives (one port does both). Every packet carries a stamp;
latency is the round trip from the stamp to the arrival. Ends with code 1 if the rate could not be
offered or more was lost than --max-loss allows.")]
pub struct Arguments {
    /// Traffic file (TOML) with streams; not with --size, --pattern or --set
    #[arg(conflicts_with_all = ["size", "pattern", "set"])]
    traffic: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Packets/s (100k), bits/s (1Gbit/s, '1Gbit/s L1'), part of a line ('50% of 10G'), or max: as many as the port
    /// takes, not measured (default: 100k, or that of the trace)
    #[arg(long)]
    rate: Option<Offer>,
    /// Frame size in bytes, frame check sequence included: 64, a mix (64:7,594:4,1518:1), a range (64-1518), imix,
    /// trace (default: 64)
    #[arg(long)]
    size: Option<String>,
    /// Spacing: constant, poisson, burst(N, GAP), on-off(ON, OFF), ramp(FROM%, TO%), steps(A%, B%, ...),
    /// trace(FILE), 'trace(FILE, 2x)'
    #[arg(long, default_value = "constant")]
    pattern: String,
    /// Set a field of the stream, also to a range: dst_port=1024-2048, 'src_ip=10.0.0.1-10.0.9.9 random', vlan=5; may
    /// be repeated
    #[arg(long, value_name = "FIELD=VALUES")]
    set: Vec<String>,
    /// Pacing that keeps the gaps: software (packets are sent when due), fill (filler frames on a full line), nic (the
    /// NIC's rate limiter)
    #[arg(long, value_enum, default_value = "software")]
    pacing: PacingKind,
    /// Speed of the line of the first port, such as 1Gbit/s; streams of a higher rate, preambles and gaps included,
    /// are exit code 2
    #[arg(long, value_name = "RATE")]
    line: Option<Rate>,
    /// Seconds to send
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    seconds: f64,
    /// CPU to run on (default: the scheduler's choice; with --device that of `taut demo`)
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// CPUs to send on, such as 2,3, with one worker each; packets are counted and not measured; not with --core,
    /// --max-loss or --device-interruptions
    #[arg(
        long,
        value_name = "CPUS",
        value_delimiter = ',',
        conflicts_with_all = ["core", "max_loss", "device_interruptions"]
    )]
    cores: Vec<usize>,
    /// Seconds to wait for the peers of the ports (with --device 5), and for each gateway; then exit code 3
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// Seconds to send at the same rate before the measurement, not counted, to fill caches and rings
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = quantity::seconds)]
    warm_up: f64,
    /// Exit with code 1 above this fraction of lost or refused packets, 0 to 1: 0.001 or 0.1%; 1 where none should
    /// come back (default: less than all)
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    max_loss: Option<f64>,
    /// Report the fraction of packets that came back within this time, such as 1ms; lost and refused packets did not
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    budget: Option<Duration>,
    /// Seed of the intended send times of random patterns (poisson): equal seeds give equal times (default: drawn,
    /// and stated in the results)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Command that prints the joules counted by an external meter, run before and after (default: RAPL counters of
    /// the processor, where it has them)
    #[arg(long, value_name = "COMMAND")]
    meter: Option<String>,
    /// Print one JSON object per second, and one at the end
    #[arg(long)]
    json: bool,
    /// Write samples of every packet, histogram, summary and a report to this folder; exit code 2 if it has them
    /// already
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Format of the samples in the folder of --out
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
    /// Write the N slowest packets, 1 to 1000, and those around them to worst.pcapng; with --out
    #[arg(long, value_name = "N", requires = "out", value_parser = clap::value_parser!(u16).range(1..=1000))]
    worst: Option<u16>,
    /// Watch the packets on the device's veth links too: latency of the device alone, `inside` in the JSON
    #[arg(long)]
    tap: bool,
    /// Show a dashboard, ended by key q, or plain lines without a terminal; not with --json
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// File of `taut forward --interruptions` behind --port, to find what the slowest packets waited for; not needed
    /// for a --device of taut's own
    #[arg(long, value_name = "FILE", requires = "port")]
    device_interruptions: Option<PathBuf>,
    /// Serve the measurements as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; port 0 takes a free
    /// port and prints it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// The method of pacing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PacingKind {
    Software,
    Fill,
    Nic,
}

/// The offered rate, or the maximum: as many packets as the port accepts.
#[derive(Debug, Clone, Copy)]
enum Offer {
    Max,
    At(Rate),
}

impl std::str::FromStr for Offer {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        match text {
            "max" => Ok(Self::Max),
            rate => rate.parse().map(Self::At),
        }
    }
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let mut device = arguments.target.device_under_test()?;
    let traffic = traffic(&arguments, &device.flow())?;
    let rate = match arguments.rate {
        Some(Offer::Max) => return flood(&arguments, device, traffic, None),
        Some(Offer::At(rate)) => rate,
        None => DEFAULT_RATE,
    };
    let rate_pps = offered_pps(&traffic, rate)?;
    let asked_pps = traffic.rates_pps(rate_pps);
    let pacing = pacing(&arguments, &traffic, rate_pps, &mut device)?;
    if !arguments.cores.is_empty() {
        return flood(&arguments, device, traffic, Some(rate_pps));
    }
    let streams = traffic.streams().iter();
    let names: Vec<String> = streams.map(|s| s.name().to_string()).collect();
    let sizes: Vec<_> = traffic.streams().iter().map(Stream::frame_sizes).collect();
    let _alone = device.is_made().then(Alone::claim).transpose()?;
    let measurement = measurement(&arguments, device, traffic, pacing, rate_pps)?;
    let clock = measurement.setup.clock();
    let stop = exit::stop_flag()?;
    let (_endpoint, metrics) = watch::endpoint(arguments.metrics.as_deref())?;
    let format = arguments.samples.format();
    let out = arguments.out.as_deref();
    let (recorded, samplers) = Recorded::start(out, format, &names, &sizes, clock)?;
    let (records, mut views) = records(&arguments, &names, &asked_pps, clock, samplers);
    let watch = Watch {
        look: look(&arguments),
        title: measurement.setup.device().name(),
        planned_seconds: arguments.seconds,
        status: None,
        metrics,
        samples: recorded.threads(),
        stop,
    };
    let (started, has_started) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let generator = scope.spawn(|| measurement.run(stop, records, started));
        watch.run(&mut views, &has_started);
        match generator.join() {
            Ok(outcome) => outcome.map_err(Failure::from),
            Err(_) => Err(Failure::Missing("the generator thread died".to_string())),
        }
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(failure) => {
            recorded.discard();
            return Err(failure);
        }
    };
    let command_line = std::env::args().collect::<Vec<_>>().join(" ");
    let account = Account::of(&measurement, &asked_pps, outcome, recorded, command_line)?;
    print_account(&account, arguments.json);
    if let Some(problem) = account.problem {
        return Err(problem.into());
    }
    account
        .verdict(arguments.max_loss)
        .map_err(|missed| Failure::Limit(missed.to_string()))
}

/// Returns the offered rate in packets per second: the sum of the streams' own rates, or `rate`.
fn offered_pps(traffic: &Traffic, rate: Rate) -> Result<f64, Failure> {
    if traffic.has_own_rates() {
        Ok(traffic.rates_pps(0.0).iter().sum())
    } else {
        let pps = rate.packets_per_second(traffic.average_bytes());
        pps.map_err(|e| Failure::Input(e.to_string()))
    }
}

fn measurement(
    arguments: &Arguments,
    device: DeviceUnderTest,
    traffic: Traffic,
    pacing: Pacing,
    rate_pps: f64,
) -> Result<Measurement, Failure> {
    Ok(Measurement {
        tapped: if arguments.tap {
            device.wires().map_err(Failure::Input)?
        } else {
            Vec::new()
        },
        meter: match &arguments.meter {
            Some(command) => Meter::command(command)?,
            None => Meter::of_this_machine(),
        },
        setup: setup(arguments, device, traffic)?,
        pacing,
        trial: Trial {
            rate_pps,
            duration: Duration::from_secs_f64(arguments.seconds),
        },
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        budget: arguments.budget,
        seed: arguments.seed,
    })
}

fn look(arguments: &Arguments) -> Look {
    match (arguments.json, arguments.live && Dashboard::is_possible()) {
        (true, _) => Look::Json,
        (_, true) => Look::Dashboard,
        _ => Look::Lines,
    }
}

fn print_account(account: &Account, json: bool) {
    if let Some(e) = &account.unexplained {
        print::note(format_args!(
            "cannot determine what delayed the slowest packets: {e}"
        ));
    }
    if json {
        print::json(&account.summary);
    } else {
        account.lines().iter().for_each(print::line);
        print::page(account.page.as_deref());
    }
}

/// Builds the setup of a measurement from the device, the traffic, and the arguments: core, interruption log, timeout
/// of the ports, and wiretap.
fn setup(
    arguments: &Arguments,
    device: DeviceUnderTest,
    traffic: Traffic,
) -> Result<Setup, Failure> {
    let log = arguments.device_interruptions.clone();
    let setup = Setup::new(exit::own_program()?, device, traffic, arguments.core, log)?;
    let patience = Duration::from_secs_f64(arguments.wait);
    Ok(setup.patient_for(patience).tapped(arguments.tap))
}

/// Sends packets at `rate_pps`, or as many as the port accepts, and counts them.
fn flood(
    arguments: &Arguments,
    device: DeviceUnderTest,
    traffic: Traffic,
    rate_pps: Option<f64>,
) -> Result<(), Failure> {
    let cores = &arguments.cores;
    let measures = arguments.out.is_some()
        || arguments.live
        || arguments.tap
        || arguments.metrics.is_some()
        || arguments.budget.is_some()
        || arguments.meter.is_some()
        || arguments.pacing != PacingKind::Software;
    if measures || traffic.streams().len() > 1 {
        let (counting, instead) = match cores.is_empty() {
            true => ("--rate max", "give a rate"),
            false => ("--cores", "send on one --core"),
        };
        return Err(Failure::Input(format!(
            "{counting} sends one stream and measures nothing: omit --out, --tap, --live, --metrics, --budget, \
             --meter and --pacing, or {instead}"
        )));
    }
    if !cores.is_empty() {
        check_together(cores, &device, &traffic)?;
    }
    let stop = exit::stop_flag()?;
    let flood = Flood {
        rate_pps,
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        duration: Duration::from_secs_f64(arguments.seconds),
        share: None,
    };
    let _alone = device.is_made().then(Alone::claim).transpose()?;
    let average_bytes = traffic.streams()[0].sizes().average_bytes();
    let setup = setup(arguments, device, traffic)?;
    let summary = if cores.is_empty() {
        let flow = measure_flood(&setup, flood, stop)?;
        FloodSummary::of(flow, setup.made_device())
    } else {
        let flows = measure_flood_together(&setup, cores, flood, stop)?;
        FloodSummary::of_workers(&flows, rate_pps)
    };
    if arguments.json {
        print::json(&summary);
    } else {
        print::line(summary.line(average_bytes));
    }
    let verdict = summary.verdict();
    verdict.map_err(|missed| Failure::Limit(missed.to_string()))
}

/// Checks that the workers on `cores` can send together.
fn check_together(
    cores: &[usize],
    device: &DeviceUnderTest,
    traffic: &Traffic,
) -> Result<(), Failure> {
    let wrong = |text: &str| Err(Failure::Input(text.to_string()));
    if device.is_made() {
        return wrong("--cores: a --device has one queue: give --port, or one --core");
    }
    if (1..cores.len()).any(|at| cores[..at].contains(&cores[at])) {
        return wrong("--cores: a CPU is listed twice, but each worker needs its own");
    }
    let is_constant = |s: &Stream| *s.pattern() == Pattern::Constant;
    if !traffic.streams().iter().all(is_constant) {
        return wrong(
            "--cores: several workers support the pattern constant only: omit --pattern, or give one --core",
        );
    }
    Ok(())
}

/// Creates the recorder of each stream, and an object by which other threads read the recorder's results during the
/// run.
fn records(
    arguments: &Arguments,
    names: &[String],
    asked_pps: &[f64],
    clock: &Clock,
    samplers: Vec<Sampler>,
) -> (Vec<Observed>, Vec<StreamView>) {
    let watched = arguments.live || arguments.metrics.is_some();
    let mut samplers = samplers.into_iter();
    let streams = names.iter().zip(asked_pps);
    streams
        .map(|(name, asked_pps)| {
            let (live, view) = taut_traffic::live(name, *asked_pps, watched.then_some(clock));
            let observed = Observed {
                summaries: Summaries::new(clock),
                intended: FromIntended::new(clock),
                slowest: Slowest::of((asked_pps * arguments.seconds) as u64),
                live,
                sampler: samplers.next(),
                worst: arguments.worst.map(|n| WorstPackets::new(usize::from(n))),
            };
            (observed, view)
        })
        .unzip()
}

/// Reads the streams of the file or of the options; unset fields are taken from `flow`.
fn traffic(arguments: &Arguments, flow: &UdpFlow) -> Result<Traffic, Failure> {
    if let Some(path) = &arguments.traffic {
        return Traffic::load(path, flow).map_err(|e| Failure::Input(e.to_string()));
    }
    let mut settings = vec![("pattern", arguments.pattern.as_str())];
    if let Some(size) = &arguments.size {
        settings.push(("size", size));
    }
    for set in &arguments.set {
        let pair = set.split_once('=').ok_or_else(|| {
            Failure::Input(format!(
                "--set {set}: expected FIELD=VALUES, such as dst_port=1024-2048"
            ))
        })?;
        settings.push(pair);
    }
    let sets = |key| settings.iter().any(|(name, _)| *name == key);
    if arguments.rate.is_some() && !sets("rate") && !sets("share") {
        // This setting makes a trace use the requested rate too, instead of the rate of its recording.
        settings.push(("share", "1"));
    }
    Traffic::of_settings_over(flow, &settings).map_err(Failure::Input)
}

/// Returns the method of pacing. For pacing by the NIC, the function also sets the rate at the port. It refuses rates
/// above the line rate.
fn pacing(
    arguments: &Arguments,
    traffic: &Traffic,
    rate_pps: f64,
    device: &mut DeviceUnderTest,
) -> Result<Pacing, Failure> {
    let wire_bits_per_s = traffic.wire_bits_per_s(rate_pps);
    let line_bits_per_s = line_bits_per_s(arguments.line)?;
    if let Some(line) = line_bits_per_s.filter(|line| wire_bits_per_s > line * 1.000_001) {
        return Err(Failure::Input(format!(
            "the requested rate is {:.4} Gbit/s on the wire, {:.0} % of the line rate of {} Gbit/s: lower --rate, \
            or the streams' rates",
            wire_bits_per_s / 1e9,
            wire_bits_per_s / line * 100.0,
            line / 1e9
        )));
    }
    match arguments.pacing {
        PacingKind::Software => Ok(Pacing::Software),
        PacingKind::Fill => line_bits_per_s
            .map(|line_bits_per_s| Pacing::Fill { line_bits_per_s })
            .ok_or_else(|| {
                let text = "--pacing fill: needs the line rate, such as --line 1Gbit/s";
                Failure::Input(text.to_string())
            }),
        PacingKind::Nic => pace_by_nic(traffic, wire_bits_per_s, device),
    }
}

/// Returns the rate of the line in the option `--line`, bits per second; `None` if no line is given.
fn line_bits_per_s(line: Option<Rate>) -> Result<Option<f64>, Failure> {
    match line {
        None => Ok(None),
        Some(Rate::Layer1Bits(bits) | Rate::Layer2Bits(bits)) => Ok(Some(bits)),
        Some(other) => Err(Failure::Input(format!(
            "--line {other}: expected a line rate, such as 1Gbit/s"
        ))),
    }
}

/// Sets the rate of the traffic at the port, so that its NIC paces the packets.
fn pace_by_nic(
    traffic: &Traffic,
    wire_bits_per_s: f64,
    device: &mut DeviceUnderTest,
) -> Result<Pacing, Failure> {
    let one_constant = matches!(traffic.streams(), [s] if *s.pattern() == Pattern::Constant);
    if !one_constant {
        let text = "--pacing nic: a network card paces one constant rate: give one stream with the pattern constant";
        return Err(Failure::Input(text.to_string()));
    }
    let port = match device {
        DeviceUnderTest::Ports(specs) => &mut specs[0],
        DeviceUnderTest::Made(_) => {
            let text = "--pacing nic: a --device has no network cards: use --pacing software";
            return Err(Failure::Missing(text.to_string()));
        }
    };
    if port.kind().attachment != Attachment::Device {
        return Err(Failure::Missing(format!(
            "port \"{port}\": {} ports cannot limit their rate: use --pacing software (or fill), or a network card \
             through a dpdk port",
            port.backend()
        )));
    }
    let mbit_per_s = (wire_bits_per_s / 1e6).round().max(1.0);
    *port = PortSpec::parse(&format!("{port},rate={mbit_per_s}"))?;
    Ok(Pacing::Nic)
}

impl From<MeterError> for Failure {
    fn from(e: MeterError) -> Self {
        Self::Input(e.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Self {
        match e {
            RunError::Stopped => TrialError::Stopped.into(),
            RunError::Results(e) => e.into(),
            RunError::Instrument(e) => e.into(),
            RunError::Core(e) => Self::Input(e.to_string()),
            RunError::Device(why) => Self::Missing(why),
        }
    }
}
