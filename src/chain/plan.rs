//! `taut chain plan`: where each function of a chain runs (kernel or user space) and why, the cost of the chain, and
//! the verdict on its latency budget.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use std::path::PathBuf;
use taut_deploy::{BothWays, Cost, Estimate, Holds, Measured, RoundTrip, Settings, estimate};
use taut_engine::{Chain, Place};
use taut_figure::table;
use taut_forecast::Described;
use taut_functions::FUNCTIONS;
use taut_model::estimate::Estimate as Figure;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut chain plan chain.toml
  taut chain plan chain.toml --size 64 --size 1400 --json
  taut chain plan chain.toml --distance 25
  taut chain plan chain.toml --machine results/io/machine.toml
  taut chain plan --place nodes.toml        # which node runs what

Measures each function with its settings for some milliseconds in this process, and adds input and output, hand-over and
wake-ups. Nothing is put up, nothing is sent. Exit code 1: the budget of the file cannot hold.")]
pub struct Arguments {
    /// Chain file (TOML)
    #[arg(required_unless_present = "place")]
    file: Option<PathBuf>,
    /// File (TOML) with nodes and chains: place the chains on the nodes, by several strategies
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "size", "distance", "machine"])]
    place: Option<PathBuf>,
    /// UDP payload in bytes, 18 to 1472; may be repeated (default: 256 and 1400)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(18..=1472))]
    size: Vec<u16>,
    /// Fibre between the chain and the sender, 0 to 20000 kilometres; counts in both directions with 4.9 us per
    /// kilometre
    #[arg(long, value_name = "KM", default_value_t = 0.0, value_parser = distance)]
    distance: f64,
    /// Machine file (TOML) with the costs of ports, as `taut bench io` writes it: machine.toml
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn distance(text: &str) -> Result<f64, String> {
    // The limit is half the earth's circumference.
    let km = text.parse().ok().filter(|km| (0.0..=20_000.0).contains(km));
    km.ok_or_else(|| "expected kilometres, 0 to 20000".to_string())
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(place) = &arguments.place {
        return super::place::run(place, arguments.json);
    }
    let Some(file) = &arguments.file else {
        return Err(Failure::Input(
            "name a chain file, or --place FILE".to_string(),
        ));
    };
    let chain = Chain::load(file, FUNCTIONS)?;
    let machine = arguments
        .machine
        .as_deref()
        .map(Described::load)
        .transpose()?;
    let mut settings = Settings {
        distance_km: arguments.distance,
        io: machine.and_then(|machine| machine.io),
        ..Settings::default()
    };
    if !arguments.size.is_empty() {
        settings.payloads_bytes = arguments
            .size
            .iter()
            .map(|size| usize::from(*size))
            .collect();
    }
    let plan = estimate(&chain, &settings)?;
    if arguments.json {
        print::json(&plan);
    } else {
        show(&plan, &settings);
    }
    match (plan.holds, plan.slowest()) {
        (Some(Holds::No), Some(trip)) => Err(Failure::Limit(broken(&plan, trip))),
        _ => Ok(()),
    }
}

/// Prints the verdict on the latency budget and the rates first, then the measured costs from which they are computed.
fn show(plan: &Estimate, settings: &Settings) {
    for line in answer(plan) {
        print::line(line);
    }
    print::line(format!(
        "\nmeasured cycles per packet for both directions, with intervals ({:.0} % or more):",
        (100.0 * coverage(plan)).floor()
    ));
    print_table(&functions(plan, settings));
    for trip in &plan.round_trips {
        show_round_trip(trip);
    }
    print::line("");
    show_notes(plan, settings);
}

/// Returns the lines with the verdict on the latency budget, if the chain has one, and the highest rates.
fn answer(plan: &Estimate) -> Vec<String> {
    let budget = plan.budget_ns.zip(plan.holds);
    let budget = budget.map(|(budget_ns, holds)| {
        let verdict = match holds {
            Holds::Yes => "met",
            Holds::Mostly => "met for most packets, but not for the slowest",
            Holds::No => "cannot be met",
        };
        format!("budget {}: {verdict}", quantity::time(budget_ns))
    });
    let rates = plan.rates.iter().map(|rate| {
        format!(
            "highest rate at {} B: {} one way, {} with a reply to each packet (busiest core: {})",
            rate.payload_bytes,
            with_interval(&rate.one_way),
            with_interval(&rate.both_ways),
            rate.busiest
        )
    });
    budget.into_iter().chain(rates).collect()
}

/// Returns the rows of the table of functions; the first row is the head.
fn functions(plan: &Estimate, settings: &Settings) -> Vec<Vec<String>> {
    let mut rows = vec![vec![
        "function".to_string(),
        "class".into(),
        "runs in".into(),
    ]];
    for payload in &settings.payloads_bytes {
        rows[0].push(format!("{payload} B alone"));
        rows[0].push(format!("in batches of {}", plan.batch));
        rows[0].push("alone".to_string());
    }
    rows[0].push("why there".to_string());
    for function in &plan.functions {
        let place = match function.placed.place {
            Place::Kernel => "kernel",
            Place::User => "user",
        };
        let mut row = vec![
            function.name.clone(),
            function.placed.class.name().into(),
            place.into(),
        ];
        for cost in &function.costs {
            row.push(cycles(cost, |cost| cost.alone));
            row.push(cycles(cost, |cost| cost.full));
            let alone = there_and_back(cost, |cost| cost.alone);
            row.push(alone.map_or("?".into(), |[_, m, _]| {
                quantity::time(m / plan.tsc_hz * 1e9)
            }));
        }
        row.push(function.placed.why.clone());
        rows.push(row);
    }
    rows
}

fn show_round_trip(trip: &RoundTrip) {
    print::line(format!(
        "\nround trip of {} B, without the end hosts: {}, longest {}",
        trip.payload_bytes,
        quantity::time(trip.typical_ns),
        quantity::time(trip.longest_ns)
    ));
    let rows: Vec<Vec<String>> = trip
        .parts
        .iter()
        .map(|part| {
            let longest = format!("longest {}", quantity::time(part.longest_ns));
            let typical = quantity::time(part.typical_ns);
            vec![
                format!(" {}", part.what),
                typical,
                longest,
                part.basis.name().into(),
            ]
        })
        .collect();
    print_table(&rows);
}

fn show_notes(plan: &Estimate, settings: &Settings) {
    let n = plan
        .functions
        .iter()
        .find_map(|f| Some(f.costs.first()?.forth.full?.n));
    if let Some(n) = n {
        print::line(format!(
            "note: measured figures are medians of {n} blocks of {:?}; the interval of a rate results from the \
            intervals of all costs",
            settings.block
        ));
    }
    for note in &plan.notes {
        print::line(format!("note: {note}"));
    }
}

/// Formats a rate and its interval: `2.00 Mpkt/s (1.95 to 2.07 Mpkt/s)`.
fn with_interval(rate: &Figure) -> String {
    format!(
        "{} ({} to {})",
        quantity::rate(rate.value),
        quantity::rate(rate.low),
        quantity::rate(rate.high)
    )
}

/// Names the part of the round trip that exceeds the budget.
fn broken(plan: &Estimate, trip: &RoundTrip) -> String {
    let budget = quantity::time(plan.budget_ns.unwrap_or_default());
    let largest = trip.largest().map_or_else(String::new, |part| {
        format!(
            ", of which {} for {}",
            quantity::time(part.typical_ns),
            part.what
        )
    });
    format!(
        "the budget of {budget} cannot be met: a round trip of {} B takes {}{largest}",
        trip.payload_bytes,
        quantity::time(trip.typical_ns)
    )
}

/// Returns the lowest probability, over all functions and payload sizes, that the confidence intervals of both
/// directions contain their true values. The result is a lower bound: 1 minus the error probabilities of the two
/// intervals.
fn coverage(plan: &Estimate) -> f64 {
    let missed = |both: &BothWays, of: fn(&Cost) -> Option<Measured>| -> f64 {
        let ways = [&both.forth, &both.back].into_iter().filter_map(of);
        ways.map(|measured| 1.0 - measured.coverage).sum()
    };
    let costs = plan.functions.iter().flat_map(|function| &function.costs);
    let missed = costs
        .flat_map(|both| {
            [
                missed(both, |cost| cost.alone),
                missed(both, |cost| cost.full),
            ]
        })
        .fold(0.0, f64::max);
    (1.0 - missed).max(0.0)
}

/// Returns the cost of a function, summed over both directions: lower limit, median and upper limit, in cycles per
/// packet. A direction without packets adds nothing; `None` if neither direction had packets.
fn there_and_back(both: &BothWays, of: fn(&Cost) -> Option<Measured>) -> Option<[f64; 3]> {
    let found: Vec<Measured> = [&both.forth, &both.back]
        .into_iter()
        .filter_map(of)
        .collect();
    let sum = |of: fn(&Measured) -> f64| found.iter().map(of).sum();
    (!found.is_empty()).then(|| [sum(|m| m.low), sum(|m| m.median), sum(|m| m.high)])
}

fn cycles(both: &BothWays, of: fn(&Cost) -> Option<Measured>) -> String {
    there_and_back(both, of).map_or("?".to_string(), |[low, median, high]| {
        format!("{median:.0} ({low:.0} to {high:.0})")
    })
}

fn print_table(rows: &[Vec<String>]) {
    let mut table = table::plain();
    table.add_rows(rows);
    print::line(table::text(table, &[], None).trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_deploy::Rate;

    #[test]
    fn the_verdict_on_the_budget_precedes_the_rates() {
        let rate = Rate {
            payload_bytes: 256,
            one_way_pps: 0.0,
            both_ways_pps: 0.0,
            one_way: Figure::ZERO,
            both_ways: Figure::ZERO,
            busiest: "user".to_owned(),
        };
        let plan = Estimate {
            name: None,
            tsc_hz: 1e9,
            batch: 32,
            functions: Vec::new(),
            round_trips: Vec::new(),
            rates: vec![rate],
            budget_ns: Some(1e6),
            holds: Some(Holds::Mostly),
            notes: Vec::new(),
        };
        let lines = answer(&plan);
        assert_eq!(
            lines[0],
            "budget 1.00 ms: met for most packets, but not for the slowest"
        );
        assert!(lines[1].starts_with("highest rate at 256 B: "), "{lines:?}");
    }
}
