//! `taut probe simulate`: messages between two hosts in virtual time, by the deadline transport or as datagrams.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use crate::transport::{TransportOptions, medium_of};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use taut_measure::{LatencyHistogram, Summary};
use taut_traffic::messages::Transport;
use taut_transport::{Clocks, Counts, Delays, Scenario, Simulated, simulate, simulate_datagrams};

/// Names of the two directions.
const WAYS: [&str; 2] = ["there", "back"];

/// Names of the stages of a message.
const STAGES: [&str; 4] = ["sender", "waiting for the medium", "on the air", "receiver"];

/// The output of `taut probe simulate --json`.
#[derive(Serialize, JsonSchema)]
pub struct SimulationReport {
    transport: Transport,
    interval_ns: u64,
    size_bytes: usize,
    target_ns: u64,
    window_ns: u64,
    delivered_late: u64,
    delivered_out_of_order: u64,
    there: WayReport,
    back: WayReport,
    /// Counters of both sides; only with the deadline transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<[Counts; 2]>,
    /// Counters of the medium; only with a medium.
    #[serde(skip_serializing_if = "Option::is_none")]
    medium: Option<MediumReport>,
}

/// The results for the messages of one direction.
#[derive(Serialize, JsonSchema)]
struct WayReport {
    sent: usize,
    in_time_share: f64,
    took_ns: Option<Summary>,
    in_time_pps: f64,
    longest_gap_ns: u64,
    stages: StagesReport,
}

/// The times that messages spent in each stage; `null` for a stage without times.
#[derive(Serialize, JsonSchema)]
struct StagesReport {
    sender_ns: Option<Summary>,
    access_ns: Option<Summary>,
    air_ns: Option<Summary>,
    receiver_ns: Option<Summary>,
}

/// The counters of a medium, by direction where there are two numbers.
#[derive(Serialize, JsonSchema)]
struct MediumReport {
    arrived: [u64; 2],
    lost: [u64; 2],
    queue_full: [u64; 2],
    collisions: u64,
    busy_share: f64,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut probe simulate --medium radio.toml --interval 3.25ms --target 3.25ms --window 480us
  taut probe simulate --delay 2ms --loss 5% --burst 3 --target 20ms --redundancy 0.25
  taut probe simulate --transport udp --medium radio.toml --interval 1ms --size 1400

Seconds of messages in milliseconds, the same for the same seed. Says which share of the messages was delivered within the target
delay, in order, and how long these took.")]
pub struct Arguments {
    #[command(flatten)]
    transport: TransportOptions,
    /// Time from one message to the next, such as 5ms
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = quantity::some_time)]
    interval: Duration,
    /// Bytes of a message, 1 to 1400
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1_400))]
    size: u16,
    /// Messages of each side, 1 to 10000000
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// The other side sends a reply to each message, instead of one per interval
    #[arg(long)]
    answers: bool,
    /// The other side sends nothing; not with --answers
    #[arg(long, conflicts_with = "answers")]
    one_way: bool,
    /// Maximum difference between the clocks of both sides (default: unknown)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    clock_error: Option<Duration>,
    /// Medium file; not with --delay, --jitter, --loss or --burst (default: a path of delays and losses)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["delay", "jitter", "loss", "burst"])]
    medium: Option<PathBuf>,
    /// Delay in each direction
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = quantity::duration)]
    delay: Duration,
    /// Random addition to each delay, up to this; it reorders packets
    #[arg(long, value_name = "TIME", default_value = "0ns", value_parser = quantity::duration)]
    jitter: Duration,
    /// Fraction of packets that are lost, such as 1%
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = quantity::share)]
    loss: f64,
    /// Packets that are lost in a row each time, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    burst: u32,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let over = arguments.transport.over_any(usize::from(arguments.size))?;
    let mut settings = over.deadline.settings;
    if let Some(error) = arguments.clock_error {
        settings.clocks = Clocks::Shared(nanoseconds(error));
    }
    let scenario = Scenario {
        settings,
        interval_ns: nanoseconds(arguments.interval),
        payload_bytes: usize::from(arguments.size),
        messages: u64::from(arguments.count),
        answers: arguments.answers,
        is_one_way: arguments.one_way,
        late_target_ns: None,
        clock: (0, 0.0),
        seed: arguments.seed,
    };
    let found = match &arguments.medium {
        Some(file) => {
            let mut medium = medium_of(file, arguments.seed)?;
            let mut found = over_path(over.transport, &scenario, &mut medium)?;
            found.medium = Some(medium.counts());
            found
        }
        None => {
            let mut path = Delays::new(nanoseconds(arguments.delay), arguments.seed);
            path.jitter_ns = nanoseconds(arguments.jitter);
            // A loss starts a burst, so the probability of a start is chosen such that the requested fraction of all
            // packets is lost.
            let good = f64::from(arguments.burst) * (1.0 - arguments.loss);
            path.loss = arguments.loss / (arguments.loss + good);
            path.burst = arguments.burst;
            over_path(over.transport, &scenario, &mut path)?
        }
    };
    show(arguments, over.transport, &scenario, &found);
    Ok(())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn over_path(
    transport: Transport,
    scenario: &Scenario,
    path: &mut dyn taut_transport::Path,
) -> Result<Simulated, Failure> {
    match transport {
        Transport::Udp => Ok(simulate_datagrams(scenario, path)),
        Transport::Deadline => simulate(scenario, path).map_err(|e| Failure::Input(e.to_string())),
        Transport::Tcp | Transport::Fec => Err(Failure::Input(format!(
            "--transport {}: cannot be simulated; expected deadline or udp",
            transport.name()
        ))),
    }
}

/// Returns the times that the messages of one direction spent in each stage; `None` for a stage without times.
fn stages(found: &Simulated, way: usize) -> [Option<Summary>; 4] {
    let mut all = [(); 4].map(|()| LatencyHistogram::new());
    for it in found.messages[way].iter().filter_map(|it| it.stages) {
        let times = [it.sender_ns, it.access_ns, it.air_ns, it.receiver_ns];
        for (histogram, ns) in all.iter_mut().zip(times) {
            histogram.record(ns);
        }
    }
    all.each_ref().map(Summary::from_histogram)
}

/// Returns the number of sent messages of one direction, the fraction delivered in time, and a summary of the delivery
/// times.
fn messages(found: &Simulated, way: usize) -> (usize, f64, Option<Summary>) {
    let mut took = LatencyHistogram::new();
    for ns in found.messages[way].iter().filter_map(|it| it.took_ns) {
        took.record(ns);
    }
    (
        found.messages[way].len(),
        found.in_time(way),
        Summary::from_histogram(&took),
    )
}

fn show(arguments: &Arguments, transport: Transport, scenario: &Scenario, found: &Simulated) {
    if arguments.json {
        print::json(&report(transport, scenario, found));
        return;
    }
    for (way, name) in WAYS.iter().enumerate() {
        let (sent, in_time, took) = messages(found, way);
        // A side that only receives sends no messages, so there is no line about them.
        if sent == 0 && arguments.one_way {
            continue;
        }
        let took = took
            .as_ref()
            .map_or("no data".to_owned(), quantity::summary);
        print::line(format!(
            "{name:<6} {:.2} % of {sent} in time; {took}",
            in_time * 100.0
        ));
    }
    print_stages(found);
    if transport == Transport::Deadline {
        for (name, counts) in WAYS.iter().zip(&found.counts) {
            let sent = &counts.sent;
            print::line(format!(
                "{name:<6} {} packets, {} of messages; {} retransmitted, {} repairs, {} not sent because they would \
                have been late",
                counts.packets_sent,
                sent.data,
                sent.again + sent.asked,
                sent.repairs,
                sent.not_sent
            ));
        }
    }
    if let Some(counts) = &found.medium {
        print::line(format!(
            "medium busy {:.1} % of the time; {} collisions, {} lost, {} dropped at its full queue",
            counts.busy_ns as f64 / found.took_ns.max(1) as f64 * 100.0,
            counts.collisions,
            counts.lost.iter().sum::<u64>(),
            counts.full.iter().sum::<u64>()
        ));
    }
}

fn report(transport: Transport, scenario: &Scenario, found: &Simulated) -> SimulationReport {
    SimulationReport {
        transport,
        interval_ns: scenario.interval_ns,
        size_bytes: scenario.payload_bytes,
        target_ns: scenario.settings.target_ns,
        window_ns: scenario.settings.window_ns,
        delivered_late: found.delivered_late,
        delivered_out_of_order: found.delivered_disordered,
        there: way_report(found, 0),
        back: way_report(found, 1),
        connection: (transport == Transport::Deadline).then_some(found.counts),
        medium: found.medium.map(|counts| MediumReport {
            arrived: counts.arrived,
            lost: counts.lost,
            queue_full: counts.full,
            collisions: counts.collisions,
            busy_share: counts.busy_ns as f64 / found.took_ns.max(1) as f64,
        }),
    }
}

fn way_report(found: &Simulated, way: usize) -> WayReport {
    let (sent, in_time_share, took_ns) = messages(found, way);
    let seconds = found.took_ns.max(1) as f64 / 1e9;
    let [sender_ns, access_ns, air_ns, receiver_ns] = stages(found, way);
    WayReport {
        sent,
        in_time_share,
        took_ns,
        in_time_pps: in_time_share * sent as f64 / seconds,
        longest_gap_ns: found.longest_gap_ns(way),
        stages: StagesReport {
            sender_ns,
            access_ns,
            air_ns,
            receiver_ns,
        },
    }
}

fn print_stages(found: &Simulated) {
    for (way, name) in WAYS.iter().enumerate() {
        let means: Vec<String> = STAGES
            .iter()
            .zip(stages(found, way))
            .filter_map(|(words, summary)| {
                Some(format!("{words} {}", quantity::time(summary?.avg_ns)))
            })
            .collect();
        if !means.is_empty() {
            print::line(format!("{name:<6} on average: {}", means.join(", ")));
        }
    }
}
