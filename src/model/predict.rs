//! `taut model predict` and `explain`: the highest rate of a machine, the resource that limits it, and the latency at a
//! load.

use super::{Io, assignment, not_negative, positive, vacations};
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use crate::tune::aliasing::Ticking;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use taut_engine::Flush;
use taut_forecast::{Asked, CostsFile, Described, Latency, Recorded, bars, load};
use taut_measure::quantity::share;
use taut_model::estimate::{ErrorBasis, Errors, Estimate, Prediction};
use taut_model::model_file::{Kind, Model, Variables};
use taut_model::queueing::{Arrivals, Observer};
use taut_model::resource::{Carried, Costs, Packets};
use taut_traffic::Rate;

/// Minimum number of packets of a simulated run. A recording with more packets raises the number, up to
/// [`MOST_PACKETS`].
const PACKETS: u64 = 100_000;
const MOST_PACKETS: u64 = 10_000_000;
/// The fraction of the packets that is evaluated; the earlier packets are the warm-up.
const COUNTED: f64 = 0.9;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model predict --ghz 3.3 --io 100 --task 350 --line 10G
  taut model explain --ghz 2.6 --io 60 --task 800 --cores 4 --line 2x25G --pcie 3x8 --size 512
  taut model predict --ghz 2.6 --io 60 --task 800 --load 70% --pattern poisson --interrupt 250/s:6us
  taut model predict --ghz 2.6 --io 60 --task 5000 --rate 400k --transfer 2us --interrupted-as results/run
  taut model predict --machine results/io/machine.toml --io memif --task 350
  taut model predict costs.toml --at load_cycles=350 --at frame_bytes=64 --at batch=32 --line 10G

Without a model file or --io the costs come from a machine file (--machine). What is not known limits nothing and is told as
unknown; a clock that is not given is this machine's time-stamp counter.")]
pub struct Arguments {
    /// Model file, as `taut model fit` writes it (default: costs from --io or the machine file)
    model: Option<PathBuf>,
    /// Value of a variable of the model, once for each variable
    #[arg(long, value_name = "NAME=NUMBER", value_parser = assignment)]
    at: Vec<(String, f64)>,
    /// Machine file (TOML); options override it
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Cores that forward, 1 to 4096 (default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: Option<u32>,
    /// Clock of the cores in GHz (default: the time-stamp counter of this machine)
    #[arg(long, value_parser = positive)]
    ghz: Option<f64>,
    /// Cycles of receiving and sending a packet, or a port whose costs are in the machine file
    #[arg(long, value_name = "CYCLES|PORT", value_parser = super::io)]
    io: Option<Io>,
    /// Cycles of processing a packet
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0, value_parser = not_negative)]
    task: f64,
    /// Cycles per byte of a frame
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0, value_parser = not_negative)]
    byte: f64,
    /// Cycles of each batch, which its packets share
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0, value_parser = not_negative)]
    batch_cost: f64,
    /// Frame size in bytes, frame check sequence included
    #[arg(long, value_name = "BYTES", default_value_t = 64.0, value_parser = positive)]
    size: f64,
    /// Packets of a batch, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// Line that packets leave through: 10G, 2x25G (default: unknown)
    #[arg(long, value_name = "RATE")]
    line: Option<String>,
    /// PCI Express of the NIC, generation and lanes: 3x8 (default: unknown)
    #[arg(long, value_name = "GxL")]
    pcie: Option<String>,
    /// Memory, MT/s and channels: 3200x2 (default: unknown)
    #[arg(long, value_name = "MT/sxN")]
    memory: Option<String>,
    /// Predict latency too, at this fraction of what each core can sustain; not with --rate
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    load: Option<f64>,
    /// Predict latency too, at this rate per core, as in `taut generate`: 400k, '1Gbit/s L1'; not with --load
    #[arg(long, conflicts_with = "load")]
    rate: Option<Rate>,
    /// Arrivals: constant, poisson, burst(N) (back to back on the line), batch(N) (at the same time)
    #[arg(long, default_value = "constant", value_parser = pattern)]
    pattern: Pattern,
    /// Flush policy, as in chain files
    #[arg(long, default_value = "idle(32)")]
    flush: Flush,
    /// Slots of the receive ring, 1 to 1048576
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    ring: u32,
    /// Interrupts of the cores and their length, such as 250/s:6us; may be repeated
    #[arg(long, value_name = "RATE/s:TIME")]
    interrupt: Vec<Ticking>,
    /// Folder of `taut generate --out`: interruptions of its device's and its generator's core are simulated
    #[arg(long, value_name = "FOLDER")]
    interrupted_as: Option<PathBuf>,
    /// Time of packets on the way to the core and back, such as the median latency of a plain forwarder
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = quantity::duration)]
    transfer: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arrival process of packets.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    Constant,
    Poisson,
    Burst(u32),
    Batch(u32),
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let number = |name: &str| {
        let inside = text
            .strip_prefix(name)?
            .strip_prefix('(')?
            .strip_suffix(')')?;
        inside
            .trim()
            .parse::<u32>()
            .ok()
            .filter(|n| (1..=65_536).contains(n))
    };
    match text {
        "constant" => Ok(Pattern::Constant),
        "poisson" => Ok(Pattern::Poisson),
        _ => number("burst")
            .map(Pattern::Burst)
            .or_else(|| number("batch").map(Pattern::Batch))
            .ok_or_else(|| "expected constant, poisson, burst(N) or batch(N)".to_owned()),
    }
}

/// The JSON output of `taut model predict` and `explain`.
#[derive(Serialize, JsonSchema)]
pub struct Answer {
    frame_bytes: f64,
    rate: Carried,
    latency: Option<Latency>,
    notes: Vec<String>,
}

pub fn run(arguments: &Arguments, explain: bool) -> Result<(), Failure> {
    let machine = described(arguments)?;
    let model = arguments.model.as_deref().map(load).transpose()?;
    if let Some(model) = model
        .as_ref()
        .filter(|it| !matches!(it.file().kind, Kind::Resource | Kind::Chain))
    {
        return tell(
            arguments,
            &asked(model, arguments)?,
            &model.file().response.name,
        );
    }
    let mut notes = Vec::new();
    let known = machine.machine()?;
    let packets = Packets::new(arguments.size, f64::from(arguments.batch))?;
    let (carried, batch_cycles) = match (&model, given(arguments, &machine)?) {
        (Some(_), _) if arguments.io.is_some() => {
            return Err(Failure::Input(
                "give either a model file or --io, not both".to_owned(),
            ));
        }
        (Some(model), _) => {
            let cycles = asked(model, arguments)?;
            notes.extend(outside(&cycles));
            (known.carried_by_model(&cycles, &packets)?, 0.0)
        }
        (None, Some((costs, origin))) => {
            notes.extend(origin);
            notes.push("costs without an interval are taken as exact, and the error of the model on this machine is \
                       unknown: where it was published it was 2.8 % (7.3 predicted, 7.1 Mpkt/s measured)".to_owned());
            let batch = costs.batch_cycles.value;
            (known.carried(&costs, &packets, None)?, batch)
        }
        (None, None) => {
            return Err(Failure::Input(
                "the cost of a packet is unknown: give --io and --task (cycles), a model file, or a machine file \
                with [costs]".to_owned(),
            ));
        }
    };
    let latency = match (arguments.load, arguments.rate) {
        (None, None) => None,
        _ => Some(latency(arguments, &machine, &carried, batch_cycles)?),
    };
    let answer = Answer {
        frame_bytes: arguments.size,
        rate: carried,
        latency,
        notes,
    };
    if arguments.json {
        print::json(&answer);
        return Ok(());
    }
    show(&answer, explain);
    Ok(())
}

/// Returns the costs of a packet from the options or the machine file, and the source of the input/output cost if it
/// was measured.
fn given(
    arguments: &Arguments,
    machine: &Described,
) -> Result<Option<(Costs, Option<String>)>, Failure> {
    let Some(io) = &arguments.io else {
        let costs = machine.costs.as_ref().map(CostsFile::exact).transpose()?;
        return Ok(costs.map(|costs| (costs, None)));
    };
    let (io_cycles, origin) = io.cycles(machine)?;
    let costs = Costs {
        io_cycles,
        task_cycles: Estimate::given(arguments.task)?,
        byte_cycles: Estimate::given(arguments.byte)?,
        batch_cycles: Estimate::given(arguments.batch_cost)?,
    };
    Ok(Some((costs, origin)))
}

/// Returns the description of the machine: the clock of this machine, overridden by the values of the machine file, and
/// then by those of the options.
fn described(arguments: &Arguments) -> Result<Described, Failure> {
    let file = arguments
        .machine
        .as_deref()
        .map(Described::load)
        .transpose()?;
    let options = Described {
        cores: arguments.cores,
        ghz: arguments.ghz,
        line: arguments.line.clone(),
        pcie: arguments.pcie.clone(),
        memory: arguments.memory.clone(),
        ..Described::default()
    };
    let said = file.unwrap_or_default().with(options);
    if said.ghz.is_some() {
        return Ok(said);
    }
    let here = Described::here();
    Ok(Described {
        ghz: here.ghz,
        ..said
    })
}

fn asked(model: &Model, arguments: &Arguments) -> Result<Prediction, Failure> {
    let mut at: Variables = arguments.at.iter().cloned().collect();
    for range in &model.file().ranges {
        let usual = match range.variable.as_str() {
            "frame_bytes" => arguments.size,
            "batch" => f64::from(arguments.batch),
            _ => continue,
        };
        at.entry(range.variable.clone()).or_insert(usual);
    }
    Ok(model.predict(&at)?)
}

fn outside(prediction: &Prediction) -> Vec<String> {
    let told = prediction.outside.iter().map(|it| {
        format!(
            "{} = {} is outside the range that the model was fitted to ({} to {}): interval and errors are too optimistic",
            it.variable, it.asked, it.min, it.max
        )
    });
    told.collect()
}

fn latency(
    arguments: &Arguments,
    machine: &Described,
    carried: &Carried,
    batch_cycles: f64,
) -> Result<Latency, Failure> {
    let known = machine.machine()?;
    let batch = f64::from(arguments.batch);
    let mut asked = Asked {
        packet_cycles: carried.cycles.value - batch_cycles / batch,
        batch_cycles,
        clock_hz: known.clock_hz - known.other_cycles_per_s,
        arrivals: Arrivals::constant(1.0)?,
        burst: usize::from(arguments.batch),
        flush: arguments.flush,
        ring: arguments.ring as usize,
        vacations: vacations(&arguments.interrupt)?,
        observer: None,
        transfer_ns: arguments.transfer.as_nanos() as f64,
        packets: PACKETS,
        seed: 1,
    };
    let recorded = arguments.interrupted_as.as_deref().map(Recorded::read);
    let recorded = recorded.transpose()?;
    if let Some(recorded) = &recorded {
        asked.vacations = asked.vacations.with_all_of(&recorded.device)?;
    }
    let rate = match (arguments.load, arguments.rate) {
        (Some(load), _) => load * asked.saturation_pps()?,
        (None, Some(rate)) => rate
            .packets_per_second(arguments.size)
            .map_err(|e| Failure::Input(format!("--rate: {e}")))?,
        (None, None) => 0.0,
    };
    if rate <= 0.0 {
        return Err(Failure::Input("--load: expected more than 0".to_owned()));
    }
    let gap_ns = (arguments.size + 20.0) * 8.0 / known.ethernet_bit_s.unwrap_or(10e9) * 1e9;
    asked.arrivals = match arguments.pattern {
        Pattern::Constant => Arrivals::constant(rate),
        Pattern::Poisson => Arrivals::poisson(rate),
        Pattern::Burst(packets) => Arrivals::bursts(rate, packets, gap_ns),
        Pattern::Batch(packets) => Arrivals::batches(rate, packets),
    }?;
    if let Some(recorded) = recorded {
        let observer = Observer::new(recorded.generator);
        asked.observer = Some(match arguments.pattern {
            Pattern::Burst(_) => observer,
            _ => observer.spaced(rate)?,
        });
        asked.packets = PACKETS
            .max((rate * recorded.span_ns / 1e9 / COUNTED) as u64)
            .min(MOST_PACKETS);
    }
    Ok(asked.forecast()?)
}

fn show(answer: &Answer, explain: bool) {
    let highest = &answer.rate.highest;
    let estimate = highest.estimate;
    print::line(format!(
        "{} of {:.0}-byte frames, bound by the {}: {:.1} cycles per packet",
        quantity::rate(estimate.value),
        answer.frame_bytes,
        format!("{:?}", answer.rate.binding).to_lowercase(),
        answer.rate.cycles.value
    ));
    if estimate.low < estimate.high {
        print::line(format!(
            "interval  {} to {} ({:.0} %)",
            quantity::rate(estimate.low),
            quantity::rate(estimate.high),
            estimate.confidence * 100.0
        ));
    }
    if let Some(errors) = &highest.errors {
        print::line(format!("error     {}", words(errors)));
    }
    if explain {
        print::line(format!(
            "\nin use at that rate:\n{}",
            bars(&answer.rate).trim_end()
        ));
    }
    if let Some(latency) = &answer.latency {
        print::line(format!(
            "\nlatency of a core at {} ({} of its capacity), {} packets simulated:",
            quantity::rate(latency.rate_pps),
            share(latency.load),
            latency.packets
        ));
        for quantile in &latency.quantiles {
            print::line(format!(
                "{:<8}  {}  ({} to {})",
                quantile.name,
                quantity::time(quantile.ns),
                quantity::time(quantile.low_ns),
                quantity::time(quantile.high_ns)
            ));
        }
        print::line(format!(
            "lost {}, {:.1} packets per batch; intervals cover the simulation's error only",
            share(latency.loss),
            latency.mean_batch
        ));
    }
    for note in &answer.notes {
        print::line(format!("note: {note}"));
    }
}

/// Prints a prediction that does not depend on an offered rate; `what` names the predicted value.
fn tell(arguments: &Arguments, prediction: &Prediction, what: &str) -> Result<(), Failure> {
    if arguments.json {
        print::json(prediction);
        return Ok(());
    }
    let estimate = prediction.estimate;
    print::line(format!(
        "{what} {:.4} {} ({:.4} to {:.4}, {:.0} %)",
        estimate.value,
        prediction.unit,
        estimate.low,
        estimate.high,
        estimate.confidence * 100.0
    ));
    match &prediction.errors {
        Some(errors) => print::line(format!("error     {}", words(errors))),
        None => print::line("error     unknown: the model was not validated"),
    }
    outside(prediction)
        .iter()
        .for_each(|note| print::line(format!("note: {note}")));
    Ok(())
}

/// Describes the errors of a model's predictions in words.
pub(super) fn words(errors: &Errors) -> String {
    let basis = match errors.basis {
        ErrorBasis::HeldOut => "runs held out",
        ErrorBasis::LeaveOneOut => "runs, each held out in turn",
        ErrorBasis::InSample => "runs that the model was fitted to: too small",
        ErrorBasis::Published => "published runs, on another machine",
    };
    format!(
        "median {}, 95 % below {}, max {} (of {} {basis})",
        share(errors.median),
        share(errors.p95),
        share(errors.max),
        errors.count
    )
}
