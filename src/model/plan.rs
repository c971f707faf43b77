//! `taut model plan`: cores, batch size and flush policy for a rate and a latency, on this machine or on one that a
//! file describes.

use super::{Io, not_negative, vacations};
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use crate::tune::aliasing::Ticking;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_deploy::{Settings, estimate};
use taut_engine::Chain;
use taut_figure::table;
use taut_forecast::{Bound, Choice, Demand, Described, Plan, load, plan};
use taut_functions::FUNCTIONS;
use taut_measure::quantity::share;
use taut_model::estimate::Estimate;
use taut_model::model_file::Variables;
use taut_model::resource::{Costs, Packets};
use taut_model::scale::{self, Bound as Bounded, Row};
use taut_traffic::{Rate, Sizes};

/// Maximum number of choices (cores, batch size, flush policy) that are shown.
const SHOWN: usize = 6;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model plan --rate 2M --chain chain.toml --latency 'p99.9<50us'
  taut model plan --rate '10Gbit/s L1' --sizes imix --io 100 --task 400 --ghz 3 --machine-line 10G
  taut model plan --rate 200M --io 100 --task 300 --ghz 3 --machines 1,10,100 --entries 1e8 --entry-bytes 64 --memory-gb 8

With --chain the functions are measured on this machine for some milliseconds, ports too where they can be. Packets are taken to
spread evenly over cores and to come at random times. Exit code 1: no choice keeps the latency.")]
pub struct Arguments {
    /// Rate, as in `taut generate`: 2M, '10Gbit/s L1'
    #[arg(long)]
    rate: Rate,
    /// Frame sizes, as in `taut generate`
    #[arg(long, default_value = "64")]
    sizes: String,
    /// Chain file (TOML) whose functions are measured here; not with --io or --model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["io", "model"])]
    chain: Option<PathBuf>,
    /// Model file of cycles per packet, as `taut model fit` writes it; not with --io
    #[arg(long, value_name = "FILE", conflicts_with = "io")]
    model: Option<PathBuf>,
    /// Cycles of receiving and sending a packet, or a port whose costs are in the machine file
    #[arg(long, value_name = "CYCLES|PORT", value_parser = super::io)]
    io: Option<Io>,
    /// Cycles of processing a packet
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0, value_parser = not_negative)]
    task: f64,
    /// Cycles of each batch
    #[arg(long, value_name = "CYCLES", default_value_t = 0.0, value_parser = not_negative)]
    batch_cost: f64,
    /// Latency that must be kept, such as 'p99.9<50us'
    #[arg(long, value_name = "BOUND")]
    latency: Option<Bound>,
    /// Machine file (TOML), with the costs of ports if `taut bench io` wrote it (default: this machine)
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Clock of the cores in GHz (default: the time-stamp counter of this machine)
    #[arg(long, value_parser = super::positive)]
    ghz: Option<f64>,
    /// Line that packets leave through: 10G, 2x25G (default: unknown)
    #[arg(long, value_name = "RATE")]
    machine_line: Option<String>,
    /// Interrupts of the cores and their length, such as 250/s:6us; may be repeated
    #[arg(long, value_name = "RATE/s:TIME")]
    interrupt: Vec<Ticking>,
    /// Slots of the receive ring, 1 to 1048576
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    ring: u32,
    /// Seed of the simulation
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Numbers of machines over which the load is spread, such as 1,10,100: a row of the table for each number
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    machines: Vec<u32>,
    /// With --machines: number of state entries, such as bearers, over all machines
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = not_negative, requires = "machines")]
    entries: f64,
    /// With --machines: memory of an entry in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64.0, value_parser = not_negative, requires = "machines")]
    entry_bytes: f64,
    /// With --machines: memory of a machine for state in GB
    #[arg(long, value_name = "GB", default_value_t = 8.0, value_parser = super::positive, requires = "machines")]
    memory_gb: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON output of `taut model plan`.
#[derive(Serialize, JsonSchema)]
pub struct Answer {
    frame_bytes: f64,
    basis: String,
    notes: Vec<String>,
    plan: Plan,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let sizes: Sizes = arguments
        .sizes
        .parse()
        .map_err(|e| Failure::Input(format!("--sizes: {e}")))?;
    let frame_bytes = sizes.average_bytes();
    let rate_pps = arguments
        .rate
        .packets_per_second(frame_bytes)
        .map_err(|e| Failure::Input(format!("--rate: {e}")))?;
    let mut machine = match &arguments.machine {
        Some(path) => Described::load(path)?,
        None => Described::here(),
    };
    machine = machine.with(Described {
        ghz: arguments.ghz,
        line: arguments.machine_line.clone(),
        ..Described::default()
    });
    let Found {
        costs,
        basis,
        notes,
    } = costs(arguments, &machine, frame_bytes)?;
    if !arguments.machines.is_empty() {
        return spread(arguments, &machine, &costs, frame_bytes, rate_pps);
    }
    let demand = Demand {
        rate_pps,
        frame_bytes,
        costs,
        bound: arguments.latency.clone(),
        ring: arguments.ring as usize,
        vacations: vacations(&arguments.interrupt)?,
        seed: arguments.seed,
    };
    let answer = Answer {
        frame_bytes,
        basis,
        notes,
        plan: plan(&demand, &machine)?,
    };
    if arguments.json {
        print::json(&answer);
    } else {
        show(&answer, arguments);
    }
    match (answer.plan.best, &arguments.latency) {
        (None, Some(bound)) => Err(Failure::Limit(format!(
            "no configuration meets {} < {} at that rate; the best are above",
            bound.quantile,
            quantity::time(bound.ns)
        ))),
        _ => Ok(()),
    }
}

/// The cycles per packet, their source, and notes for the user.
struct Found {
    costs: Costs,
    basis: String,
    notes: Vec<String>,
}

fn costs(arguments: &Arguments, machine: &Described, frame_bytes: f64) -> Result<Found, Failure> {
    if let Some(path) = &arguments.chain {
        return costs_of_chain(path, machine, frame_bytes);
    }
    if let Some(path) = &arguments.model {
        return costs_of_model(path, frame_bytes);
    }
    let (costs, origin) = match (&arguments.io, &machine.costs) {
        (Some(io), _) => {
            let (io_cycles, origin) = io.cycles(machine)?;
            let costs = Costs {
                io_cycles,
                task_cycles: Estimate::given(arguments.task)?,
                byte_cycles: Estimate::ZERO,
                batch_cycles: Estimate::given(arguments.batch_cost)?,
            };
            (costs, origin)
        }
        (None, Some(costs)) => (costs.exact()?, None),
        (None, None) => {
            return Err(Failure::Input(
                "the cost of a packet is unknown: give --chain FILE, --model FILE, --io and --task (cycles), or a \
                machine file with [costs]".to_owned(),
            ));
        }
    };
    Ok(Found {
        costs,
        basis: "as given".to_owned(),
        notes: origin.into_iter().collect(),
    })
}

/// Measures the functions of a chain on this machine.
fn costs_of_chain(path: &Path, machine: &Described, frame_bytes: f64) -> Result<Found, Failure> {
    let chain = Chain::load(path, FUNCTIONS)?;
    // A frame has 46 bytes around its payload: the headers of Ethernet, IPv4 and UDP, and the check sequence.
    let payload = (frame_bytes as usize).saturating_sub(46).clamp(18, 1472);
    let settings = Settings {
        payloads_bytes: vec![payload],
        io: machine.io.clone(),
        ..Settings::default()
    };
    let measured = estimate(&chain, &settings)?;
    let Some(rate) = measured.rates.first() else {
        return Err(Failure::Missing(
            "the chain could not be measured on this machine".to_owned(),
        ));
    };
    let cycles = rate.one_way.map(|pps| measured.tsc_hz / pps);
    let basis = format!(
        "measured here in full batches, one way: {:.0} ({:.0} to {:.0}) per packet on the busiest core ({})",
        cycles.value, cycles.low, cycles.high, rate.busiest
    );
    Ok(Found {
        costs: Costs::per_packet(Estimate::ZERO, cycles),
        basis,
        notes: measured.notes,
    })
}

/// Returns the cost that a model predicts at full batches, with all other variables at the low end of their ranges.
fn costs_of_model(path: &Path, frame_bytes: f64) -> Result<Found, Failure> {
    let model = load(path)?;
    let at = |range: &taut_model::model_file::Range| match range.variable.as_str() {
        "frame_bytes" => frame_bytes,
        "batch" => 32.0_f64.clamp(range.min, range.max),
        _ => range.min,
    };
    let at: Variables = model
        .file()
        .ranges
        .iter()
        .map(|range| (range.variable.clone(), at(range)))
        .collect();
    let cycles = model.predict(&at)?;
    let asked: Vec<String> = at
        .iter()
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    Ok(Found {
        costs: Costs::per_packet(Estimate::ZERO, cycles.estimate),
        basis: format!("{} at {}", path.display(), asked.join(", ")),
        notes: Vec::new(),
    })
}

fn show(answer: &Answer, arguments: &Arguments) {
    let found = &answer.plan;
    print::line(format!(
        "{} of {:.0}-byte frames; cycles {}",
        quantity::rate(found.rate_pps),
        answer.frame_bytes,
        answer.basis
    ));
    match found.links_pps {
        Some(links) if links < found.rate_pps => print::line(format!(
            "note: the links carry only {}, regardless of the cores",
            quantity::rate(links)
        )),
        Some(links) => print::line(format!("the links carry {}", quantity::rate(links))),
        None => print::line("the rate of the links is unknown (--machine-line)"),
    }
    if let Some(best) = found.best.map(|best| &found.options[best]) {
        print::line(format!(
            "{} core{}, batches of up to {}, flush {}: each core has {} spare",
            best.cores,
            if best.cores == 1 { "" } else { "s" },
            best.burst,
            best.flush,
            share(1.0 - best.latency.load)
        ));
        if let Some(there) = found.cores_there.filter(|there| *there < best.cores) {
            print::line(format!("note: cores of this machine: {there}"));
        }
    }
    print_choices(found, arguments);
    for note in &answer.notes {
        print::line(format!("note: {note}"));
    }
    print::line("note: assumes random arrivals, spread evenly over cores");
    print::line("note: latency excludes ports, cables and the end hosts' own time");
}

fn print_choices(found: &Plan, arguments: &Arguments) {
    let has_bound = arguments.latency.is_some();
    let all = found.options.iter().map(|it| cells(it, has_bound));
    let rows = merged(all);
    let mut choices = table::plain();
    choices.set_header([
        "cores", "batch", "flush", "load", "p50", "p99", "p99.9", "lost", "", "alike",
    ]);
    for (cells, alike) in rows.iter().take(SHOWN) {
        let mut row = cells.to_vec();
        row.push(alike.to_string());
        choices.add_row(row);
    }
    let least = [(9, "alike"), (7, "lost"), (4, "p50")];
    print::line(table::text(choices, &least, table::terminal_width()).trim_end());
    if rows.iter().any(|(_, alike)| *alike > 1) {
        print::line("note: alike counts the choices with the figures of a row; --json has all");
    }
}

/// Returns the cells of a row about a choice: cores, batch size and flush policy, then the predicted values.
fn cells(option: &Choice, has_bound: bool) -> [String; 9] {
    let time = |name: &str| {
        let found = option.latency.quantile(name);
        found.map_or_else(|| "-".to_owned(), |quantile| quantity::time(quantile.ns))
    };
    let verdict = match (has_bound, option.keeps) {
        (true, true) => "met",
        (true, false) => "missed",
        (false, _) => "",
    };
    [
        option.cores.to_string(),
        option.burst.to_string(),
        option.flush.clone(),
        share(option.latency.load),
        time("p50"),
        time("p99"),
        time("p99.9"),
        share(option.latency.loss),
        verdict.to_owned(),
    ]
}

/// Merges rows with equal figures into the first of them. Returns each row with the number of rows that were merged
/// into it.
fn merged(rows: impl Iterator<Item = [String; 9]>) -> Vec<([String; 9], usize)> {
    let mut out: Vec<([String; 9], usize)> = Vec::new();
    for row in rows {
        match out.iter_mut().find(|(first, _)| first[3..] == row[3..]) {
            Some((_, alike)) => *alike += 1,
            None => out.push((row, 1)),
        }
    }
    out
}

/// Divides the load between several machines, and prints a row for each number of machines.
fn spread(
    arguments: &Arguments,
    machine: &Described,
    costs: &Costs,
    frame_bytes: f64,
    rate_pps: f64,
) -> Result<(), Failure> {
    let demand = scale::Demand {
        entries: arguments.entries,
        entry_bytes: arguments.entry_bytes,
        offered_pps: rate_pps,
    };
    let packets = Packets::new(frame_bytes, 32.0)?;
    let cycles = costs.cycles(&packets);
    let hierarchy = machine.hierarchy()?;
    // A packet finds its entry with one access to the state on its machine.
    let with_state = |bytes: f64| {
        let access = hierarchy
            .as_ref()
            .filter(|_| bytes >= 1.0)
            .and_then(|caches| caches.cycles(bytes).ok());
        let access = access.and_then(|cycles| Estimate::given(cycles).ok());
        access.map_or(cycles, |access| cycles.plus(access))
    };
    let rows = scale::table(
        &demand,
        &machine.machine()?,
        arguments.memory_gb * 1e9,
        &packets,
        with_state,
        &arguments.machines,
    );
    let rows: Vec<Row> = rows?;
    if arguments.json {
        print::json(&rows);
        return Ok(());
    }
    print_rows(&rows);
    Ok(())
}

fn print_rows(rows: &[Row]) {
    let mut shown = table::plain();
    shown.set_header([
        "machines",
        "each gets",
        "entries",
        "state",
        "a core carries",
        "cores",
        "bottleneck",
        "in use",
    ]);
    for row in rows {
        shown.add_row([
            row.machines.to_string(),
            quantity::rate(row.offered_pps),
            format!("{:.0}", row.entries),
            format!("{:.1} MB", row.state_bytes / 1e6),
            quantity::rate(row.core_pps.value),
            row.cores
                .map_or_else(|| "too much".to_owned(), |cores| cores.to_string()),
            match row.bound {
                Bounded::State => "memory".to_owned(),
                Bounded::Rate(resource) => format!("{resource:?}").to_lowercase(),
            },
            share(row.used),
        ]);
    }
    table::set_columns(&mut shown, None);
    print::line(table::text(shown, &[(3, "state")], table::terminal_width()).trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_choices_with_equal_predictions_share_a_row() {
        let row = |batch: &str, flush: &str, p50: &str| {
            ["1", batch, flush, "5 %", p50, "2 us", "3 us", "0 %", ""].map(str::to_owned)
        };
        let rows = [
            row("8", "idle", "1 us"),
            row("32", "idle", "1 us"),
            row("32", "batch", "4 us"),
            row("64", "idle", "1 us"),
        ];
        let found = merged(rows.into_iter());
        let batches: Vec<(&str, usize)> = found
            .iter()
            .map(|(row, alike)| (row[1].as_str(), *alike))
            .collect();
        assert_eq!(batches, [("8", 3), ("32", 1)]);
    }
}
