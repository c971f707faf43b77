//! `taut generate`: makes traffic and measures what comes back.

use crate::exit::{self, Failure};
use crate::samples::Samples;
use crate::target::Target;
use crate::terminal::Alone;
use crate::watch::{self, Look, Watch};
use crate::{print, quantity};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};
use taut_host::energy::Reading;
use taut_host::{EnergyUse, Meter, MeterError, Snapshot, SystemActivity};
use taut_lab::device::{DeviceUnderTest, Notes, RunError, Site};
use taut_lab::evaluate::SlowestPackets;
use taut_lab::live::Dashboard;
use taut_lab::report::{LEAST_SENT, write_recording};
use taut_lab::results::{
    MeasuredInterruptions, PacketFormat, Recording, ResultsError, SampleThread,
};
use taut_lab::tapped::{Inside, TrialTap};
use taut_measure::{LatencyHistogram, SequenceReport, Summary};
use taut_port::{PortCounters, PortSpec};
use taut_sys::{Clock, LoggedInterruptions, StampClock};
use taut_traffic::{
    Flood, Flow, FromIntended, Instrument, Observed, Pacing, Pattern, Rate, RateError, Sampler,
    SamplerAccount, Slowest, StreamView, Summaries,
};
use taut_traffic::{Tally, Traffic, Trial, TrialError, WorstPackets};
use taut_wire::UdpFlow;

/// What is sent where nothing else says how much.
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

The first port sends, the last one receives (one port does both). Every packet carries a stamp;
latency is the round trip from the stamp to the arrival. Ends with code 1 if the rate could not be
offered or more was lost than --max-loss allows.")]
pub struct Arguments {
    /// Traffic file (TOML) with streams; or make one stream with the options below
    #[arg(conflicts_with_all = ["size", "pattern", "set"])]
    traffic: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Rate: packets per second (100k, 1.5M), bits (1Gbit/s, '1Gbit/s L1') or of a line ('50% of 10G');
    /// max: as many as the port takes, without stamps, counted and not measured
    /// [default: 100k, or that of the trace]
    #[arg(long)]
    rate: Option<Offer>,
    /// Frame size in bytes, check sequence included: 64, a mix (64:7,594:4,1518:1), a range (64-1518), imix,
    /// trace [default: 64]
    #[arg(long)]
    size: Option<String>,
    /// Spacing: constant, poisson, burst(N, GAP), on-off(ON, OFF), ramp(FROM%, TO%), steps(A%, B%, ...),
    /// trace(FILE), 'trace(FILE, 2x)'
    #[arg(long, default_value = "constant")]
    pattern: String,
    /// Set a field, also to a range: dst_port=1024-2048, 'src_ip=10.0.0.1-10.0.9.9 random', vlan=5
    #[arg(long, value_name = "FIELD=VALUES")]
    set: Vec<String>,
    /// What holds the gaps: software (packets are handed over when due), fill (filler frames on a full line), nic
    /// (the card's rate limiter)
    #[arg(long, value_enum, default_value = "software")]
    pacing: PacingKind,
    /// Speed of the line that the first port sends on: 1Gbit/s; more than that is refused
    #[arg(long, value_name = "RATE")]
    line: Option<Rate>,
    /// How many seconds to send
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    seconds: f64,
    /// Core to run on
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// How many seconds to wait for the other side of the ports
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// How long to send before the measurement, so that caches, rings and peers are as they will stay
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = quantity::seconds)]
    warm_up: f64,
    /// Share of packets that may be lost or refused before the command ends with code 1: 0.001 or 0.1%
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    max_loss: Option<f64>,
    /// A command that prints the joules counted so far by a meter, asked before and after; otherwise the processor's own
    /// counters (RAPL) are read, where it has them
    #[arg(long, value_name = "COMMAND")]
    meter: Option<String>,
    /// Print one JSON object a second, and one at the end
    #[arg(long)]
    json: bool,
    /// Write every packet's sample, the latency histogram and the summary into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// How samples are written into the folder
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
    /// Write the N slowest packets and those around them to worst.pcapng in the folder
    #[arg(long, value_name = "N", requires = "out", value_parser = clap::value_parser!(u16).range(1..=1000))]
    worst: Option<u16>,
    /// Watch the packets on the device's wires too: latency of the device only, beside the generator's
    #[arg(long)]
    tap: bool,
    /// Show a dashboard while it runs (q ends it); plain lines where there is no terminal
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// File in which the `taut forward` behind the ports notes when its core was taken away (its --interruptions), to
    /// tell what the slowest packets waited for; a --device of ours needs none
    #[arg(long, value_name = "FILE", requires = "port")]
    device_interruptions: Option<PathBuf>,
    /// Give out what is measured as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// What holds the gaps between packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PacingKind {
    Software,
    Fill,
    Nic,
}

/// How much to send.
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
        Some(Offer::Max) => return flood(&arguments, device, traffic),
        Some(Offer::At(rate)) => rate,
        None => DEFAULT_RATE,
    };
    let rate_pps = if traffic.has_own_rates() {
        traffic.rates_pps(0.0).iter().sum()
    } else {
        let pps = rate.packets_per_second(traffic.average_bytes());
        pps.map_err(|e| Failure::Input(e.to_string()))?
    };
    let asked_pps = traffic.rates_pps(rate_pps);
    let pacing = pacing(&arguments, &traffic, rate_pps, &mut device)?;
    let names: Vec<String> = traffic
        .streams()
        .iter()
        .map(|s| s.name().to_string())
        .collect();
    let _alone = device.is_made().then(Alone::claim).transpose()?;
    let meter = match &arguments.meter {
        Some(command) => Meter::command(command)?,
        None => Meter::of_this_machine(),
    };
    let job = Job {
        tapped: if arguments.tap {
            device.wires().map_err(Failure::Input)?
        } else {
            Vec::new()
        },
        meter,
        bench: Bench::new(&arguments, device, traffic)?,
        pacing,
        trial: Trial {
            rate_pps,
            duration: Duration::from_secs_f64(arguments.seconds),
        },
        warm_up: Duration::from_secs_f64(arguments.warm_up),
    };
    let clock = &job.bench.clock;
    let stop = exit::stop_flag()?;
    let (_endpoint, metrics) = watch::endpoint(arguments.metrics.as_deref())?;
    let recorded = Recorded::start(&arguments, &names, clock)?;
    let (records, mut views) = records(&arguments, &names, &asked_pps, clock, recorded.1);
    let recorded = recorded.0;
    let watch = Watch {
        look: match (arguments.json, arguments.live && Dashboard::is_possible()) {
            (true, _) => Look::Json,
            (_, true) => Look::Dashboard,
            _ => Look::Lines,
        },
        title: job.bench.device.name(),
        planned_seconds: arguments.seconds,
        status: None,
        metrics,
        samples: &recorded.threads,
        stop,
    };
    let (started, has_started) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let generator = scope.spawn(|| job.run(stop, records, started));
        watch.run(&mut views, &has_started);
        generator
            .join()
            .unwrap_or_else(|_| Err(Failure::Missing("the generator thread died".to_string())))
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(failure) => {
            recorded.discard();
            return Err(failure);
        }
    };
    report(
        &arguments, &names, &asked_pps, outcome, recorded, &job.bench,
    )
}

/// Sends as many packets as the port takes and counts them.
fn flood(arguments: &Arguments, device: DeviceUnderTest, traffic: Traffic) -> Result<(), Failure> {
    let measures = arguments.out.is_some()
        || arguments.live
        || arguments.tap
        || arguments.metrics.is_some()
        || arguments.meter.is_some();
    if measures || traffic.streams().len() > 1 {
        return Err(Failure::Input(
            "--rate max sends one stream and measures nothing: leave out --out, --tap, --live, --metrics and --meter, or give a \
             rate"
                .to_string(),
        ));
    }
    let stop = exit::stop_flag()?;
    let flood = Flood {
        rate_pps: None,
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        duration: Duration::from_secs_f64(arguments.seconds),
    };
    let _alone = device.is_made().then(Alone::claim).transpose()?;
    let bench = Bench::new(arguments, device, traffic)?;
    let flow: Flow = bench.measure(stop, |instrument| {
        let mut flow = instrument.flood(flood, stop);
        flow.received_in_all += instrument.drain();
        Ok(flow)
    })?;
    if arguments.json {
        print::line(json!({"event": "summary", "asked_pps": null, "flow": flow,
            "sent_pps": flow.sent_pps(), "received_pps": flow.received_pps(),
            "device": bench.device_json(), "versions": versions()}));
    } else {
        print::line(format!(
            "sent {} packets in {:.3} s ({}), received {} ({}); without stamps, so nothing else was measured",
            flow.sent,
            flow.seconds,
            quantity::rate(flow.sent_pps()),
            flow.received,
            quantity::rate(flow.received_pps())
        ));
    }
    Ok(())
}

/// What the loop keeps of each stream, and what can be seen of it meanwhile.
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

/// The folder that is being filled, and the threads that do it; nothing without `--out`.
struct Recorded {
    folder: Option<Recording>,
    threads: Vec<SampleThread>,
}

impl Recorded {
    fn start(
        arguments: &Arguments,
        names: &[String],
        clock: &Clock,
    ) -> Result<(Self, Vec<Sampler>), Failure> {
        let mut recorded = Self {
            folder: None,
            threads: Vec::new(),
        };
        let mut samplers = Vec::new();
        if let Some(dir) = &arguments.out {
            let folder = recorded.folder.insert(Recording::create(dir, names)?);
            let format = arguments.samples.format();
            for stream in 0..format.map_or(0, |_| names.len()) {
                let format = format.unwrap_or(PacketFormat::Parquet);
                let (sampler, thread) = folder.sample(stream, format, clock)?;
                samplers.push(sampler);
                recorded.threads.push(thread);
            }
        }
        Ok((recorded, samplers))
    }

    /// Nothing was measured: leaves nothing behind. The samplers are gone, so the threads end.
    fn discard(self) {
        for thread in self.threads {
            thread.join();
        }
        if let Some(folder) = self.folder {
            folder.discard();
        }
    }
}

/// The streams of the file or of the options; what they do not say is as in `flow`.
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
                "--set {set}: want FIELD=VALUES, such as dst_port=1024-2048"
            ))
        })?;
        settings.push(pair);
    }
    let sets = |key| settings.iter().any(|(name, _)| *name == key);
    if arguments.rate.is_some() && !sets("rate") && !sets("share") {
        // So that a trace, too, is sent at the rate asked for, not at its own.
        settings.push(("share", "1"));
    }
    Traffic::of_settings_over(flow, &settings).map_err(Failure::Input)
}

/// What holds the gaps; for a network card to do it, its port is told the rate. Refuses more than the line takes.
fn pacing(
    arguments: &Arguments,
    traffic: &Traffic,
    rate_pps: f64,
    device: &mut DeviceUnderTest,
) -> Result<Pacing, Failure> {
    let wire_bits_per_s = traffic.wire_bits_per_s(rate_pps);
    let line_bits_per_s = match arguments.line {
        None => None,
        Some(Rate::Layer1Bits(bits) | Rate::Layer2Bits(bits)) => Some(bits),
        Some(other) => {
            return Err(Failure::Input(format!(
                "--line {other}: want the speed of a line, such as 1Gbit/s"
            )));
        }
    };
    if let Some(line) = line_bits_per_s.filter(|line| wire_bits_per_s > line * 1.000_001) {
        return Err(Failure::Input(format!(
            "asked for {:.4} Gbit/s on the wire, {:.0} % of the line's {} Gbit/s: lower --rate, or the streams' rates",
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
                let text = "--pacing fill: say how fast the line is, such as --line 1Gbit/s";
                Failure::Input(text.to_string())
            }),
        PacingKind::Nic => {
            let one_constant =
                matches!(traffic.streams(), [s] if *s.pattern() == Pattern::Constant);
            if !one_constant {
                let text = "--pacing nic: a network card holds one constant rate: give one stream of pattern constant";
                return Err(Failure::Input(text.to_string()));
            }
            let port = match device {
                DeviceUnderTest::Ports(specs) => &mut specs[0],
                DeviceUnderTest::Made(_) => {
                    let text = "--pacing nic: the ports to a --device are no network cards: use --pacing software";
                    return Err(Failure::Missing(text.to_string()));
                }
            };
            if port.backend() != "dpdk" {
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
    }
}

/// What is connected with what, and where.
struct Bench {
    device: DeviceUnderTest,
    traffic: Traffic,
    clock: Clock,
    program: PathBuf,
    generator_core: Option<usize>,
    device_core: usize,
    wait: Duration,
    /// What the generator sends can be seen by a tap.
    tapped: bool,
    /// Where a device that is made notes its interruptions.
    notes: Option<Notes>,
    /// Where one behind ports does.
    device_log: Option<PathBuf>,
}

impl Bench {
    fn new(
        arguments: &Arguments,
        device: DeviceUnderTest,
        traffic: Traffic,
    ) -> Result<Self, Failure> {
        let cores = taut_host::choose_cores().with_generator(arguments.core);
        if let Some(path) = &arguments.device_interruptions {
            LoggedInterruptions::read(path)?;
        }
        let notes = device.notes()?;
        Ok(Self {
            // With ports the other side may be on any core, so the scheduler knows better.
            generator_core: arguments
                .core
                .or(device.is_made().then_some(cores.generator)),
            device_core: cores.device,
            device,
            traffic,
            clock: Clock::calibrate(Duration::from_millis(50)),
            program: exit::own_program()?,
            wait: Duration::from_secs_f64(arguments.wait),
            tapped: arguments.tap,
            notes,
            device_log: arguments.device_interruptions.clone(),
        })
    }

    /// Connects an instrument with the device, which is set up for it if need be, and measures.
    fn measure<T: Send>(
        &self,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError> + Send,
    ) -> Result<T, Failure> {
        let site = Site {
            program: &self.program,
            generator_core: self.generator_core,
            device_core: self.device_core,
            clock: self.clock,
            tapped: self.tapped,
            interruptions: self.device_log(),
        };
        let measured = self
            .device
            .measure(&site, &self.traffic, self.wait, stop, measure);
        Ok(measured?)
    }

    /// The file in which the device notes its interruptions, if it does.
    fn device_log(&self) -> Option<&Path> {
        let made = self.notes.as_ref().map(Notes::path);
        made.or(self.device_log.as_deref())
    }

    /// The cores that are known to be used.
    fn cores(&self) -> Vec<usize> {
        let device_core = self.device.is_made().then_some(self.device_core);
        self.generator_core.into_iter().chain(device_core).collect()
    }

    /// What a device is that was made; null for ports.
    fn device_json(&self) -> serde_json::Value {
        match &self.device {
            DeviceUnderTest::Ports(_) => serde_json::Value::Null,
            DeviceUnderTest::Made(device) => {
                let mut json = json!(device.info());
                json["found_here"] = json!(device.found_here());
                json
            }
        }
    }

    /// The name of each port, for people.
    fn port_names(&self) -> Vec<String> {
        match &self.device {
            DeviceUnderTest::Ports(specs) => {
                specs.iter().map(|spec| spec.text().to_string()).collect()
            }
            DeviceUnderTest::Made(_) => ["first port", "second port"].map(String::from).into(),
        }
    }
}

/// What the figures depend on besides the machine's hardware.
pub fn versions() -> serde_json::Value {
    let kernel = taut_host::Machine::read().kernel_release;
    json!({"taut": env!("CARGO_PKG_VERSION"), "kernel": kernel.map(|fact| fact.value)})
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

/// What the generator thread is to do.
struct Job {
    meter: Meter,
    bench: Bench,
    pacing: Pacing,
    trial: Trial,
    warm_up: Duration,
    /// The interfaces that a tap watches; none without one.
    tapped: Vec<String>,
}

/// What it found, by stream.
struct Outcome {
    begun: SystemTime,
    tallies: Vec<Tally>,
    records: Vec<Observed>,
    ports: Vec<PortCounters>,
    activity: SystemActivity,
    energy: EnergyUse,
    /// When the cores of generator and device were taken away.
    interruptions: Result<MeasuredInterruptions, taut_sys::Error>,
    /// How far the receiving port's own stamps may be off; none where it has none.
    stamp_error_ns: Option<f64>,
    /// It was asked for stamps, but they are of a clock of its own.
    unknown_stamps: bool,
    /// What a tap saw of the same packets.
    inside: Option<(Inside, LatencyHistogram)>,
}

impl Job {
    /// Says so through `started` once the measurement begins; the channel closes when it ends.
    fn run(
        &self,
        stop: &AtomicBool,
        mut records: Vec<Observed>,
        started: mpsc::Sender<()>,
    ) -> Result<Outcome, Failure> {
        let packets = self.trial.rate_pps * self.trial.duration.as_secs_f64();
        self.bench.measure(stop, |instrument| {
            instrument.set_pacing(self.pacing);
            if !self.warm_up.is_zero() {
                let warm_up = Trial {
                    rate_pps: self.trial.rate_pps,
                    duration: self.warm_up,
                };
                instrument.run(warm_up, &mut Summaries::new(&self.bench.clock), stop);
            }
            let tap = (!self.tapped.is_empty())
                .then(|| TrialTap::start(&self.tapped, packets))
                .transpose()?;
            let device_core = self
                .bench
                .device
                .is_made()
                .then_some(self.bench.device_core);
            let energy_before = Reading::take(&self.meter, device_core);
            let (before, begun) = (Snapshot::take(), SystemTime::now());
            let _ = started.send(());
            let tallies = instrument.run_streams(self.trial, &mut records, stop);
            let energy_after = Reading::take(&self.meter, device_core);
            let activity = Snapshot::difference(&before, &Snapshot::take(), &self.bench.cores());
            // The watching side waits for this, not for the device to be taken down.
            drop(started);
            let interruptions = MeasuredInterruptions::of(
                instrument.interruptions(),
                self.bench.device_log(),
                &self.bench.clock,
            );
            Ok(Outcome {
                inside: tap.map(TrialTap::finish),
                interruptions,
                begun,
                tallies,
                records,
                ports: instrument.counters(),
                activity,
                energy: energy_after.since(&energy_before, &self.meter),
                stamp_error_ns: instrument.stamp_error_ns(),
                unknown_stamps: instrument.stamp_clock() == Some(StampClock::Unknown),
            })
        })
    }
}

/// One stream's account.
struct StreamReport<'a> {
    name: &'a str,
    asked_pps: f64,
    /// Its packets carry stamps, and are known again.
    is_measured: bool,
    tally: &'a Tally,
    lost: u64,
    account: SequenceReport,
    summaries: &'a Summaries,
    intended: &'a FromIntended,
    stamp_error_ns: Option<f64>,
    unknown_stamps: bool,
    samples: Option<Kept>,
    slowest: Option<SlowestPackets>,
}

/// What a stream's slowest packets waited for.
fn slowest(
    record: &Observed,
    found: &MeasuredInterruptions,
    clock: &Clock,
    seconds: f64,
) -> Option<SlowestPackets> {
    let usual_ns = Summary::from_histogram(&record.summaries.latency)?.p50_ns?;
    let packets = record.slowest.packets();
    let in_ns: Vec<(f64, f64)> = packets
        .iter()
        .map(|(sent, latency)| (clock.to_ns(*sent), clock.to_ns(*latency)))
        .collect();
    SlowestPackets::of(found, seconds * 1e9, usual_ns as f64, &in_ns)
}

/// What became of a stream's samples.
#[derive(Clone, Copy, serde::Serialize)]
struct Kept {
    /// Packets in the file.
    kept: u64,
    #[serde(flatten)]
    account: SamplerAccount,
}

impl StreamReport<'_> {
    fn json(&self) -> serde_json::Value {
        let s = self.summaries;
        // A stop before the first packet leaves no time that a rate could be of.
        let per_second =
            |packets: u64| (self.tally.seconds > 0.0).then(|| packets as f64 / self.tally.seconds);
        let lost_share = lost_share(self.lost, self.tally.refused, self.tally.sent);
        json!({"name": self.name, "asked_pps": self.asked_pps, "sent_pps": per_second(self.tally.sent),
            "measured": self.is_measured, "lost_share": lost_share.filter(|_| self.is_measured),
            "received_pps": per_second(self.account.received_unique), "tally": self.tally,
            "lost": self.is_measured.then_some(self.lost),
            "latency_ns": Summary::from_histogram(&s.latency),
            "latency_from_intended_ns": Summary::from_histogram(self.intended.latency()),
            "kernel_stamps": self.stamp_error_ns.map(|error_ns| json!({"error_ns": error_ns,
                "latency_ns": Summary::from_histogram(&s.stamped_latency)})), "jitter_ns": s.jitter.summary(),
            "send_slip_ns": Summary::from_histogram(&s.slip), "sequence": self.account,
            "send_gap_ns": s.gaps.summary(), "interrupted_send_gap_ns": s.interrupted_gaps.summary(),
            "samples": self.samples, "slowest": self.slowest.as_ref().map(|slowest| &slowest.summary)})
    }

    /// All that can be said of packets without stamps.
    fn print_counts(&self) {
        let tally = self.tally;
        print::line(format!(
            "{}, refused by a full ring {}, never sent {}",
            sent(tally),
            tally.refused,
            tally.unsent
        ));
        print::line(
            "they carry no stamp (only UDP has room for one) and cannot be known again: neither loss nor latency is measured",
        );
        if tally.foreign > 0 {
            print::line(format!(
                "came back without a stamp: {} packets",
                tally.foreign
            ));
        }
    }

    fn print(&self) {
        let (tally, s) = (self.tally, self.summaries);
        if !self.is_measured {
            self.print_counts();
            return;
        }
        print_text(
            tally,
            self.lost,
            Summary::from_histogram(&s.latency).as_ref(),
            Summary::from_histogram(&s.slip).as_ref(),
            s.jitter.summary().as_ref(),
            &self.account,
        );
        if let Some(error_ns) = self.stamp_error_ns {
            let stamped = Summary::from_histogram(&s.stamped_latency);
            print::line(format!(
                "to the kernel's stamp  {}  (clocks read within {})",
                stamped
                    .as_ref()
                    .map_or("no data".to_string(), quantity::summary),
                quantity::time(error_ns)
            ));
        }
        if self.unknown_stamps {
            print::line(
                "to the device's stamp  no data: its clock is its own, and cannot be related to this machine's"
                    .to_string(),
            );
        }
        if let Some(gaps) = s.gaps.summary() {
            let interrupted = s.interrupted_gaps.summary().map_or(0, |gaps| gaps.count);
            print::line(format!(
                "send gap   asked {}  mean {}  median error {}  mean squared error {:.0} ns\u{b2}  (n = {}; {interrupted} more while the machine had the core)",
                quantity::time(gaps.asked_gap_ns),
                quantity::time(gaps.mean_gap_ns),
                quantity::time(gaps.median_absolute_error_ns as f64),
                gaps.mean_squared_error_ns2,
                gaps.count
            ));
        }
        if let Some(slowest) = &self.slowest {
            print::line(format!("slowest    {}", slowest.summary.line()));
        }
        if let Some(Kept { kept, account }) = self.samples {
            print::line(format!(
                "samples    {kept} packets written, {} not (the writing side could not keep up), {} came back too late for theirs",
                account.not_kept, account.too_late
            ));
        }
    }
}

fn report(
    arguments: &Arguments,
    names: &[String],
    asked_pps: &[f64],
    mut outcome: Outcome,
    recorded: Recorded,
    bench: &Bench,
) -> Result<(), Failure> {
    if let Err(e) = &outcome.interruptions {
        print::note(format_args!(
            "what the slowest packets waited for is not known: {e}"
        ));
    }
    let (samples, mut problem) = finish_samples(&mut outcome.records, recorded.threads);
    for (index, record) in outcome.records.iter_mut().enumerate() {
        if let (Some(folder), Some(worst)) = (&recorded.folder, record.worst.take()) {
            let frames = worst.into_frames();
            let written = folder.write_worst(index, &frames, &bench.clock, outcome.begun);
            problem = problem.or(written.err());
        }
    }
    let streams: Vec<StreamReport<'_>> = names
        .iter()
        .zip(asked_pps)
        .zip(outcome.tallies.iter().zip(&outcome.records))
        .enumerate()
        .map(|(index, ((name, asked_pps), (tally, record)))| {
            // Refused packets took a sequence number but never left.
            let summaries = &record.summaries;
            let account = summaries.sequence.finish(tally.sent + tally.refused);
            StreamReport {
                name,
                asked_pps: *asked_pps,
                is_measured: bench.traffic.streams()[index].is_measured(),
                tally,
                lost: account.lost.saturating_sub(tally.refused),
                account,
                summaries,
                intended: &record.intended,
                stamp_error_ns: outcome.stamp_error_ns,
                unknown_stamps: outcome.unknown_stamps,
                samples: samples.get(index).copied(),
                slowest: outcome
                    .interruptions
                    .as_ref()
                    .ok()
                    .and_then(|found| slowest(record, found, &bench.clock, tally.seconds)),
            }
        })
        .collect();
    let all: Vec<_> = streams.iter().map(StreamReport::json).collect();
    // The first stream's account also stands at the top: most traffic is one stream.
    let mut summary = all[0].clone();
    summary["event"] = "summary".into();
    summary["started"] = taut_lab::quantity::instant(outcome.begun).into();
    summary["command_line"] = std::env::args().collect::<Vec<_>>().join(" ").into();
    summary["ports"] = json!(outcome.ports);
    summary["device"] = bench.device_json();
    summary["versions"] = versions();
    summary["activity"] = json!(outcome.activity);
    summary["energy"] = json!(outcome.energy);
    summary["streams"] = all.into();
    if let Some((inside, _)) = &outcome.inside {
        summary["inside"] = json!(inside);
    }
    if let Some(folder) = &recorded.folder {
        if let Some((_, histogram)) = &outcome.inside {
            let duration = Duration::from_secs_f64(arguments.seconds);
            let written = folder.write_inside(histogram, outcome.begun, duration);
            problem = problem.or(written.err());
        }
        let written = write_folder(folder, &streams, outcome.begun, &summary);
        problem = problem.or(written.err());
    }
    let page = match (&recorded.folder, &problem) {
        (Some(folder), None) => Some(write_recording(folder.path())?),
        _ => None,
    };
    if arguments.json {
        print::line(&summary);
    } else {
        for stream in &streams {
            if streams.len() > 1 {
                print::line(format!(
                    "{}: asked for {}",
                    stream.name,
                    quantity::rate(stream.asked_pps)
                ));
            }
            stream.print();
        }
        if let Some((inside, _)) = &outcome.inside {
            print_inside(inside);
        }
        if let Some(energy) = energy_line(&outcome.energy) {
            print::line(energy);
        }
        print_port_losses(bench.port_names().iter().zip(&outcome.ports));
        print_page(page.as_deref());
    }
    match problem {
        Some(problem) => Err(problem.into()),
        None => verdict(arguments, &streams),
    }
}

pub fn print_page(page: Option<&Path>) {
    if let Some(page) = page {
        print::line(format!("report: {}", page.display()));
    }
}

/// What a tap saw: the device alone; the rest of a packet's latency is the generator's sockets and wires.
fn print_inside(inside: &Inside) {
    match &inside.summary {
        Some(latency) => print::line(format!(
            "device     {}  (between its wires, as a tap saw {} packets enter; lost inside {})",
            quantity::summary(latency),
            inside.entered,
            inside.lost
        )),
        None => print::line("device     no data: the tap saw no packet on both wires"),
    }
    if inside.missed > 0 {
        print::line(format!(
            "device     the tap missed {} frames: its losses are not to be trusted",
            inside.missed
        ));
    }
}

/// What the traffic cost, in watts if they were counted and in processor time; nothing where neither is known.
fn energy_line(energy: &EnergyUse) -> Option<String> {
    let watts = energy.watts;
    let mut parts: Vec<String> = watts
        .map(|watts| format!("{watts:.2} W ({})", energy.source))
        .into_iter()
        .collect();
    if let (Some(share), Some(cpu)) = (energy.device_cpu_share, energy.device_cpu) {
        parts.push(format!(
            "device on the CPU {:.1} % of the time (user {:.2} s, system {:.2} s)",
            share * 100.0,
            cpu.user_s,
            cpu.system_s
        ));
    }
    if let Some(share) = energy.device_core_busy_share {
        parts.push(format!("its core busy {:.1} %", share * 100.0));
    }
    (!parts.is_empty()).then(|| format!("energy     {}", parts.join(", ")))
}

/// Has the threads write what is left: what became of each stream's samples, and the first problem.
fn finish_samples(
    records: &mut [Observed],
    threads: Vec<SampleThread>,
) -> (Vec<Kept>, Option<ResultsError>) {
    let accounts: Vec<SamplerAccount> = records
        .iter_mut()
        .filter_map(|record| record.sampler.take().map(Sampler::finish))
        .collect();
    let mut first = None;
    let finished = threads.into_iter().zip(accounts);
    let samples = finished.map(|(thread, account)| {
        let (kept, problem) = thread.join();
        first = first.take().or(problem);
        Kept { kept, account }
    });
    (samples.collect(), first)
}

/// What of the folder is written at the end; the summary last.
fn write_folder(
    folder: &Recording,
    streams: &[StreamReport<'_>],
    begun: SystemTime,
    summary: &serde_json::Value,
) -> Result<(), ResultsError> {
    for (index, stream) in streams.iter().enumerate() {
        let duration = Duration::from_secs_f64(stream.tally.seconds);
        folder.write_histogram(index, &stream.summaries.latency, begun, duration)?;
        if let Some(slowest) = &stream.slowest {
            folder.write_slowest(index, slowest)?;
        }
    }
    folder.write_summary(summary)
}

/// Packets sent over more than this multiple of the time asked for, and this much more, were not sent at the rate asked for:
/// less than [`LEAST_SENT`] of it. The constant part is what a busy machine takes at a time, which says nothing of the rate.
const MOST_LATE: f64 = 1.0 / LEAST_SENT;
const LATE_AT_LEAST_SECONDS: f64 = 0.25;

/// Packets that were lost or refused, as share of those that were offered: what the generator was too slow for was not.
fn lost_share(lost: u64, refused: u64, sent: u64) -> Option<f64> {
    let offered = sent + refused;
    (offered > 0).then(|| (lost + refused) as f64 / offered as f64)
}

/// Whether the traffic was what was asked for, and came back.
fn verdict(arguments: &Arguments, streams: &[StreamReport<'_>]) -> Result<(), Failure> {
    if streams.iter().any(|s| s.tally.stopped) {
        return Ok(());
    }
    let sum = |of: fn(&StreamReport<'_>) -> u64| streams.iter().map(of).sum::<u64>();
    let (owed, unsent) = (sum(|s| s.tally.owed), sum(|s| s.tally.unsent));
    if unsent > 0 {
        let starved = if sum(|s| s.tally.starved) > 0 {
            ", as it ran out of memory for packets: the device holds them"
        } else {
            ""
        };
        return Err(Failure::Limit(format!(
            "asked for {}, but the generator could not keep up: {unsent} of {owed} packets were never sent{starved}",
            quantity::rate(streams.iter().map(|s| s.asked_pps).sum()),
        )));
    }
    let longest = arguments.seconds * MOST_LATE + LATE_AT_LEAST_SECONDS;
    if let Some(late) = streams.iter().find(|s| s.tally.seconds > longest) {
        return Err(Failure::Limit(format!(
            "asked for {}, but the machine kept the generator from its core: {} sent; give it a core of its own (--core, taut tune \
             audit), or ask for less",
            quantity::rate(late.asked_pps),
            quantity::rate(late.tally.sent as f64 / late.tally.seconds),
        )));
    }
    let came_back = sum(|s| s.tally.received);
    let foreign = sum(|s| s.tally.foreign);
    let measured = || streams.iter().filter(|s| s.is_measured);
    let share = if measured().next().is_none() {
        // Nothing is known again, but can be counted.
        let sent = sum(|s| s.tally.sent);
        lost_share(sent.saturating_sub(foreign), sum(|s| s.tally.refused), sent)
    } else {
        lost_share(
            measured().map(|s| s.lost).sum(),
            measured().map(|s| s.tally.refused).sum(),
            measured().map(|s| s.tally.sent).sum(),
        )
    };
    match (arguments.max_loss, share) {
        (Some(limit), Some(share)) if share > limit => Err(Failure::Limit(format!(
            "{:.4} % lost, more than the {:.4} % allowed",
            share * 100.0,
            limit * 100.0
        ))),
        (None, _) if came_back + foreign == 0 => Err(Failure::Limit(
            "nothing came back, so nothing was measured (--max-loss 1 if nothing is meant to)"
                .to_string(),
        )),
        (None, _) if came_back == 0 && measured().next().is_some() => Err(Failure::Limit(format!(
            "nothing came back unchanged, so nothing was measured: {foreign} packets came back that are not as they were sent, or are \
             somebody else's (--max-loss 1 if that is meant)"
        ))),
        _ => Ok(()),
    }
}

/// Says what was lost inside the ports, where the wire is not to blame.
pub(crate) fn print_port_losses<'a>(ports: impl Iterator<Item = (&'a String, &'a PortCounters)>) {
    for (name, c) in ports {
        let losses = [
            ("received while its ring was full", c.rx_overrun),
            ("received with an impossible description", c.rx_malformed),
            ("received too long for a buffer", c.rx_too_long),
            ("too long to send on this link", c.tx_too_long),
            ("refused by the kernel or the peer", c.tx_failed),
        ];
        for (what, n) in losses.into_iter().filter(|(_, n)| *n > 0) {
            print::line(format!("{name}: {n} {what}"));
        }
    }
}

/// What was sent, and how fast.
fn sent(tally: &Tally) -> String {
    format!(
        "sent {} of {} packets in {:.3} s ({})",
        tally.sent,
        tally.owed,
        tally.seconds,
        quantity::rate(tally.sent as f64 / tally.seconds)
    )
}

fn print_text(
    tally: &Tally,
    lost: u64,
    latency: Option<&Summary>,
    slip: Option<&Summary>,
    jitter: Option<&taut_measure::JitterSummary>,
    account: &SequenceReport,
) {
    print::line(format!("{}, received {}", sent(tally), tally.received));
    print::line(format!(
        "lost {lost}, refused by a full ring {}, never sent {}, duplicate {}, reordered {}, corrupt {}, foreign {}",
        tally.refused,
        tally.unsent,
        account.duplicate,
        account.reordered,
        tally.corrupt,
        tally.foreign
    ));
    if tally.starved > 0 {
        print::line(format!(
            "out of memory for packets {} times, which is the generator's fault: they left late or never",
            tally.starved
        ));
    }
    if tally.fillers_sent > 0 {
        print::line(format!(
            "fillers    sent {}, came back and were dropped {}",
            tally.fillers_sent, tally.fillers_received
        ));
    }
    if tally.arp_answered > 0 {
        print::line(format!(
            "answered {} questions for the MAC addresses of its stations",
            tally.arp_answered
        ));
    }
    match latency {
        Some(l) => print::line(format!("latency    {}", quantity::summary(l))),
        None => print::line("latency    no data: nothing came back"),
    }
    if let Some(j) = jitter {
        print::line(format!(
            "jitter     avg {}  max {}",
            quantity::time(j.avg_ns),
            quantity::time(j.max_ns as f64)
        ));
    }
    if let Some(s) = slip {
        print::line(format!("send slip  {}", quantity::summary(s)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_a_share_of_what_was_offered() {
        assert_eq!(lost_share(10, 30, 70), Some(0.4));
        assert_eq!(lost_share(0, 5, 0), Some(1.0));
        assert_eq!(lost_share(0, 0, 0), None);
    }
}
