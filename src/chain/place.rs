//! `taut chain plan --place`: the nodes on which the functions of several chains run, by several strategies.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use taut_deploy::{Settings, estimate};
use taut_engine::Chain;
use taut_forecast::Described;
use taut_functions::FUNCTIONS;
use taut_model::placement::{Demand, Limits, Node, Placement, Strategy, Work, exact, place};
use taut_settings::{SettingsFileError, duration};

/// The clock of a core if neither node nor machine file gives one, GHz.
const DEFAULT_GHZ: f64 = 3.0;

/// The cycles for input and output of a packet if no machine file gives them.
const DEFAULT_IO_CYCLES: f64 = 200.0;

/// The maximum number of nodes, and of chains.
const MOST: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "default_load")]
    load: f64,
    #[serde(default, rename = "node")]
    nodes: Vec<NodeText>,
    #[serde(default, rename = "chain")]
    chains: Vec<ChainText>,
}

fn default_load() -> f64 {
    Limits::default().most_load
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeText {
    name: String,
    cores: u32,
    ghz: Option<f64>,
    machine: Option<PathBuf>,
    #[serde(default)]
    wire: Option<String>,
    #[serde(default = "one")]
    count: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainText {
    name: String,
    rate: f64,
    budget: Option<String>,
    file: Option<PathBuf>,
    #[serde(default)]
    functions: Vec<FunctionText>,
    io_cycles: Option<f64>,
    #[serde(default = "one")]
    count: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionText {
    name: String,
    cycles: f64,
}

/// The result of `taut chain plan --place --json`.
#[derive(Serialize, JsonSchema)]
pub struct Placements {
    /// The placements, one for each strategy. The exact search is last, if the case is small enough for it.
    placements: Vec<OfStrategy>,
}

/// The placement of all chains that one strategy computes.
#[derive(Serialize, JsonSchema)]
struct OfStrategy {
    /// Name of the strategy.
    strategy: &'static str,
    /// Number of chains that have a placement.
    placed: usize,
    /// Number of nodes that run functions.
    nodes: usize,
    /// Number of cores that run functions.
    cores: u32,
    /// Mean delay of the placed chains, one way, ns.
    mean_delay_ns: f64,
    /// Placement of each chain.
    chains: Vec<OfChain>,
}

/// The placement of one chain.
#[derive(Serialize, JsonSchema)]
struct OfChain {
    /// Name of the chain.
    chain: String,
    /// The name of the node that runs each function; empty if the chain has no placement.
    nodes: Vec<String>,
    /// Mean delay of the chain, one way, ns.
    delay_ns: Option<f64>,
    /// Reason why the chain has no placement.
    reason: Option<String>,
}

/// Reads the file, places the chains and prints the comparison. Exit code 1: a chain has no placement by any strategy.
pub(super) fn run(path: &Path, json: bool) -> Result<(), Failure> {
    let file: File =
        SettingsFileError::read_toml(path).map_err(|e| Failure::Input(e.to_string()))?;
    let (nodes, io_cycles) = nodes(&file, path)?;
    let demands = demands(&file, path, io_cycles)?;
    if !(file.load > 0.0 && file.load < 1.0) {
        return Err(wrong(
            path,
            format!("load = {}: expected a load above 0 and below 1", file.load),
        ));
    }
    let limits = Limits {
        most_load: file.load,
    };
    let mut all: Vec<(&'static str, Placement)> = Strategy::ALL
        .iter()
        .map(|it| (it.name(), place(*it, &demands, &nodes, limits)))
        .collect();
    if let Some(best) = exact(&demands, &nodes, limits) {
        all.push(("exact", best));
    }
    let placements: Vec<OfStrategy> = all
        .iter()
        .map(|(strategy, placement)| of_strategy(strategy, placement, &demands, &nodes))
        .collect();
    let fewest = placements.iter().map(|it| demands.len() - it.placed).min();
    let result = Placements { placements };
    if json {
        print::json(&result);
    } else {
        show(&result, demands.len());
    }
    match fewest {
        None | Some(0) => Ok(()),
        Some(unplaced) => Err(Failure::Limit(format!(
            "{unplaced} of {} chains have no placement; see the reasons above",
            demands.len()
        ))),
    }
}

fn wrong(path: &Path, reason: String) -> Failure {
    Failure::Input(format!("{}: {reason}", path.display()))
}

/// Returns the nodes that the file describes, and the cycles for input and output of a packet on them.
fn nodes(file: &File, path: &Path) -> Result<(Vec<Node>, f64), Failure> {
    let mut nodes = Vec::new();
    let mut io_cycles: Option<f64> = None;
    for text in &file.nodes {
        let machine = text.machine.as_deref().map(Described::load).transpose()?;
        let ghz = text.ghz.or(machine.as_ref().and_then(|it| it.ghz));
        let ghz = ghz.unwrap_or(DEFAULT_GHZ);
        if !(ghz > 0.0 && ghz.is_finite()) {
            return Err(wrong(
                path,
                format!("node {}: ghz = {ghz}: expected a clock in GHz", text.name),
            ));
        }
        let costs = machine.and_then(|it| it.costs);
        io_cycles = costs.map(|it| it.io).or(io_cycles);
        let wire = text.wire.as_deref().unwrap_or("0ns");
        let wire = duration(wire).ok_or_else(|| {
            wrong(
                path,
                format!(
                    "node {}: wire = \"{wire}\": expected a time, such as 10us",
                    text.name
                ),
            )
        })?;
        check_count(text.count, nodes.len())
            .map_err(|reason| wrong(path, format!("node {}: {reason}", text.name)))?;
        for number in 1..=text.count {
            nodes.push(Node {
                name: numbered(&text.name, number, text.count),
                cores: text.cores,
                hz: ghz * 1e9,
                wire_ns: wire.as_nanos() as f64,
            });
        }
    }
    match nodes.len() {
        0 => Err(wrong(
            path,
            format!("no nodes: expected 1 to {MOST} ([[node]])"),
        )),
        _ => Ok((nodes, io_cycles.unwrap_or(DEFAULT_IO_CYCLES))),
    }
}

/// Checks that `count` more nodes or chains are possible after `before`.
fn check_count(count: usize, before: usize) -> Result<(), String> {
    match before.saturating_add(count) <= MOST {
        true => Ok(()),
        false => Err(format!(
            "count = {count}: the maximum of all counts together is {MOST}"
        )),
    }
}

fn numbered(name: &str, number: usize, count: usize) -> String {
    match count {
        1 => name.to_string(),
        _ => format!("{name}-{number}"),
    }
}

/// Returns the chains that the file lists, with the costs of their functions.
fn demands(file: &File, path: &Path, io_cycles: f64) -> Result<Vec<Demand>, Failure> {
    let mut demands = Vec::new();
    for text in &file.chains {
        let wrong = |reason: String| wrong(path, format!("chain {}: {reason}", text.name));
        if !(text.rate > 0.0 && text.rate.is_finite()) {
            return Err(wrong(format!(
                "rate = {}: expected packets per second",
                text.rate
            )));
        }
        let budget = text.budget.as_deref().map(|budget| {
            duration(budget).ok_or_else(|| {
                wrong(format!(
                    "budget = \"{budget}\": expected a time, such as 350us"
                ))
            })
        });
        let functions = match &text.file {
            Some(file) => measured(&path.with_file_name("").join(file))?,
            None => text
                .functions
                .iter()
                .map(|it| (it.name.clone(), it.cycles))
                .collect(),
        };
        if functions.is_empty()
            || functions
                .iter()
                .any(|(_, cycles)| !cycles.is_finite() || *cycles < 0.0)
        {
            return Err(wrong(
                "expected functions = [{ name = \"aes\", cycles = 2500 }], or a chain file = \"...\"".to_string(),
            ));
        }
        let functions: Vec<Work> = functions
            .into_iter()
            .map(|(name, cycles)| Work { name, cycles })
            .collect();
        let budget = budget.transpose()?;
        check_count(text.count, demands.len()).map_err(&wrong)?;
        for number in 1..=text.count {
            demands.push(Demand {
                name: numbered(&text.name, number, text.count),
                rate_pps: text.rate,
                functions: functions.clone(),
                io_cycles: text.io_cycles.unwrap_or(io_cycles),
                budget_ns: budget.map(|it| it.as_nanos() as f64),
            });
        }
    }
    match demands.len() {
        0 => Err(wrong(
            path,
            format!("no chains: expected 1 to {MOST} ([[chain]])"),
        )),
        _ => Ok(demands),
    }
}

/// Measures the functions of a chain file on this machine. Returns their names and cycles per packet from the first
/// port to the second, with the payload for which they cost most.
fn measured(path: &Path) -> Result<Vec<(String, f64)>, Failure> {
    let chain = Chain::load(path, FUNCTIONS)?;
    let plan = estimate(&chain, &Settings::default())?;
    let cost = |row: &taut_deploy::FunctionRow| {
        let alone = row.costs.iter().filter_map(|cost| cost.forth.alone);
        let cycles = alone.map(|it| it.median).fold(0.0, f64::max);
        (row.name.clone(), cycles)
    };
    Ok(plan.functions.iter().map(cost).collect())
}

fn of_strategy(
    strategy: &'static str,
    placement: &Placement,
    demands: &[Demand],
    nodes: &[Node],
) -> OfStrategy {
    let score = placement.score();
    let placed = demands.len() - score.unplaced;
    let each = demands.iter().zip(&placement.chains);
    let chains = each.map(|(demand, placed)| OfChain {
        chain: demand.name.clone(),
        nodes: placed.as_ref().map_or_else(
            |_| Vec::new(),
            |it| it.nodes.iter().map(|at| nodes[*at].name.clone()).collect(),
        ),
        delay_ns: placed.as_ref().ok().map(|it| it.delay_ns),
        reason: placed.as_ref().err().map(ToString::to_string),
    });
    OfStrategy {
        strategy,
        placed,
        nodes: score.nodes,
        cores: score.cores,
        mean_delay_ns: score.delay_ns / placed.max(1) as f64,
        chains: chains.collect(),
    }
}

/// Prints the comparison of the strategies, and the placement of the one that places most chains on the fewest nodes
/// and cores.
fn show(result: &Placements, chains: usize) {
    let head = ["strategy", "placed", "nodes", "cores", "mean delay"];
    let row = |it: &OfStrategy| {
        [
            it.strategy.to_string(),
            format!("{} of {chains}", it.placed),
            it.nodes.to_string(),
            it.cores.to_string(),
            quantity::time(it.mean_delay_ns),
        ]
    };
    print::table(head, result.placements.iter().map(row));
    let key = |it: &&OfStrategy| (chains - it.placed, it.nodes, it.cores);
    let Some(best) = result.placements.iter().min_by_key(key) else {
        return;
    };
    print::line(format!("\n{}:", best.strategy));
    for chain in &best.chains {
        print::line(match (&chain.reason, chain.delay_ns) {
            (Some(reason), _) => format!("  {}: no placement: {reason}", chain.chain),
            (None, delay_ns) => {
                let mut runs: Vec<(&str, usize)> = Vec::new();
                for node in &chain.nodes {
                    match runs.last_mut() {
                        Some((last, count)) if *last == node.as_str() => *count += 1,
                        _ => runs.push((node.as_str(), 1)),
                    }
                }
                let runs: Vec<_> = runs
                    .iter()
                    .map(|(node, count)| match count {
                        1 => (*node).to_string(),
                        _ => format!("{node} ({count} functions)"),
                    })
                    .collect();
                format!(
                    "  {}: {}, {}",
                    chain.chain,
                    runs.join(" > "),
                    quantity::time(delay_ns.unwrap_or_default())
                )
            }
        });
    }
}
