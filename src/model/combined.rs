//! `taut model combined`: rate and latency of a switch before a server that gets a share of the packets.

use super::positive;
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use taut_forecast::Latencies;
use taut_measure::LatencyHistogram;
use taut_measure::quantity::share;
use taut_model::combined::{Combined, Effort, Limit, quantile_of_mixture};
use taut_model::estimate::Estimate;
use taut_model::queueing::QueueingError;
use taut_traffic::Rate;

/// Names and fractions of the quantiles that are reported.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Size of the simulations of queues.
const EFFORT: Effort = Effort {
    packets: 100_000,
    runs: 6,
    seed: 1,
};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model combined --front 10M --server 500k --share 0 --share 5% --share 20% --share 100%
  taut model combined --front 10M --server 500k --share 5% --rate 4M --front-latency 2us --server-latency 30us
  taut model combined --front 10M --server 500k --share 5% --rate 4M --front-latency front --server-latency server

The front handles every packet, the server behind it a share of them: T = min(T_front, T_server / share). A latency
is that of a packet that does not wait, and queues are simulated; or a folder of taut generate --out with packets that
take that way, at the rate that they have in the combined system. Packets through the server pass the front too:
--server-latency holds both.")]
pub struct Arguments {
    /// Highest rate of the front alone, as in `taut generate`: 400k, '1Gbit/s L1'
    #[arg(long)]
    front: Rate,
    /// Highest rate of the server alone
    #[arg(long)]
    server: Rate,
    /// Fraction of the packets that the server gets; may be repeated
    #[arg(long, value_name = "SHARE", required = true, value_parser = quantity::share)]
    share: Vec<f64>,
    /// One core does the work of front and server, so that their times add
    #[arg(long)]
    one_core: bool,
    /// Frame size in bytes, frame check sequence included, for rates in bits
    #[arg(long, value_name = "BYTES", default_value_t = 64.0, value_parser = positive)]
    size: f64,
    /// Predict latency too, at this rate of all packets
    #[arg(long, requires_all = ["front_latency", "server_latency"])]
    rate: Option<Rate>,
    /// Latency of packets that only the front handles
    #[arg(long, value_name = "TIME|FOLDER", requires = "rate")]
    front_latency: Option<String>,
    /// Latency of packets through the server
    #[arg(long, value_name = "TIME|FOLDER", requires = "rate")]
    server_latency: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The latency of the packets that only the front handles, or of those through the server: a single value, or a
/// measured distribution.
enum Known {
    /// The latency of a packet that does not wait in a queue, ns.
    Alone(f64),
    Measured(LatencyHistogram),
}

/// The JSON output of `taut model combined`.
#[derive(Serialize, JsonSchema)]
pub struct Answer {
    /// The highest rate of the front (the switch before the server) alone, packets per second.
    front_pps: f64,
    /// The highest rate of the server alone, packets per second.
    server_pps: f64,
    /// True if one core does the work of front and server.
    one_core: bool,
    /// The fraction of the packets through the server at which front and server are both busy.
    balanced_share: f64,
    /// The predictions, in the order of the options `--share`.
    rows: Vec<Row>,
}

/// The prediction for a fraction of packets through the server.
#[derive(Serialize, JsonSchema)]
struct Row {
    /// The fraction of the packets that the server gets.
    share: f64,
    /// The highest rate of the system, packets per second.
    highest_pps: f64,
    /// The part of the system that limits the rate.
    limit: Limit,
    /// The latency; null without `--rate`, and if the system cannot carry that rate.
    latency: Option<Vec<Quantile>>,
}

/// A quantile of the latency.
#[derive(Serialize, JsonSchema)]
struct Quantile {
    /// Name of the latency quantile, such as `p99`.
    name: &'static str,
    /// The latency at the quantile, ns.
    ns: u64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let pps = |name: &str, rate: &Rate| {
        let found = rate.packets_per_second(arguments.size);
        found.map_err(|e| Failure::Input(format!("--{name}: {e}")))
    };
    let (front_pps, server_pps) = (
        pps("front", &arguments.front)?,
        pps("server", &arguments.server)?,
    );
    let rate = arguments
        .rate
        .as_ref()
        .map(|rate| pps("rate", rate))
        .transpose()?;
    let ways = match (rate, &arguments.front_latency, &arguments.server_latency) {
        (Some(rate), Some(front), Some(server)) => Some((rate, known(front)?, known(server)?)),
        _ => None,
    };
    let simulated = |way: &Known| matches!(way, Known::Alone(_));
    if arguments.one_core
        && ways
            .as_ref()
            .is_some_and(|(_, front, server)| simulated(front) || simulated(server))
    {
        return Err(Failure::Input(
            "--one-core: its queue is not simulated: expected folders of measured latencies"
                .to_owned(),
        ));
    }
    let (front, server) = (Estimate::given(front_pps)?, Estimate::given(server_pps)?);
    let systems = arguments
        .share
        .iter()
        .map(|share| Combined::new(front, server, *share, arguments.one_core));
    let systems: Vec<Combined> = systems.collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for (share, system) in arguments.share.iter().zip(&systems) {
        let (highest, limit) = system.highest();
        let carried = ways.as_ref().filter(|(rate, ..)| *rate < highest.value);
        let latency =
            carried.map(|(rate, front, server)| latency(system, *share, *rate, [front, server]));
        rows.push(Row {
            share: *share,
            highest_pps: highest.value,
            limit,
            latency: latency.transpose()?,
        });
    }
    let answer = Answer {
        front_pps,
        server_pps,
        one_core: arguments.one_core,
        balanced_share: systems.first().map_or(0.0, Combined::balanced_share),
        rows,
    };
    if arguments.json {
        print::json(&answer);
    } else {
        show(&answer, rate);
    }
    Ok(())
}

/// Reads the latency of packets on one path from the option `way`: the time of a packet that does not wait, or a folder
/// of measured latencies.
fn known(way: &str) -> Result<Known, Failure> {
    Ok(match quantity::duration(way) {
        Ok(time) => Known::Alone(time.as_nanos() as f64),
        Err(_) => Known::Measured(Latencies::of_runs(&[way])?.histogram().clone()),
    })
}

/// Returns the quantiles of the latency at a rate, from the latencies of front and server, in this order.
fn latency(
    system: &Combined,
    share: f64,
    rate_pps: f64,
    ways: [&Known; 2],
) -> Result<Vec<Quantile>, QueueingError> {
    let none = LatencyHistogram::new;
    let front = match ways[0] {
        Known::Measured(measured) => measured.clone(),
        Known::Alone(_) if share >= 1.0 => none(),
        Known::Alone(ns) => system.front_latency(rate_pps, *ns, EFFORT)?,
    };
    let server = match ways[1] {
        Known::Measured(measured) => measured.clone(),
        Known::Alone(_) if share <= 0.0 => none(),
        Known::Alone(ns) => system.server_latency(rate_pps, *ns, EFFORT)?,
    };
    let quantiles = QUANTILES.iter().filter_map(|(name, q)| {
        let ns = quantile_of_mixture(&front, &server, share, *q)?;
        Some(Quantile { name, ns })
    });
    Ok(quantiles.collect())
}

fn show(answer: &Answer, rate: Option<f64>) {
    print::line(format!(
        "front {}, server {}: both are busy at a share of {}",
        quantity::rate(answer.front_pps),
        quantity::rate(answer.server_pps),
        share(answer.balanced_share)
    ));
    for row in &answer.rows {
        let limit = match row.limit {
            Limit::Front => "front",
            Limit::Server => "server",
            Limit::Core => "core of both",
        };
        let latency = match (&row.latency, rate) {
            (Some(quantiles), Some(rate)) => {
                let each = quantiles
                    .iter()
                    .map(|it| format!("{} {}", it.name, quantity::time(it.ns as f64)));
                format!(
                    "; at {} {}",
                    quantity::rate(rate),
                    each.collect::<Vec<_>>().join(", ")
                )
            }
            (None, Some(rate)) => format!("; {} is more than it carries", quantity::rate(rate)),
            _ => String::new(),
        };
        print::line(format!(
            "share {:<8} {}, limited by the {limit}{latency}",
            share(row.share),
            quantity::rate(row.highest_pps)
        ));
    }
}
