//! The placement of chains on nodes: it assigns each function to a node, by several strategies and, for small cases, by
//! an exact search. (The placement problem of service function chains; the mappings are those of Xiang et al., JSAC
//! 2019, section III.E.3.)
//!
//! A node has cores of equal speed. Successive functions of a chain on the same node form units of one core each; there
//! are as few units as the load allows. Each unit adds to the delay of a packet the cycles for input and output, and
//! the wait of an M/D/1 queue. A hop to another node adds the wire delays of both nodes.

mod exact;
mod strategy;
#[cfg(test)]
mod tests;

pub use exact::{MOST_STEPS, exact};
pub use strategy::{Strategy, place};

/// A machine that runs functions.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The name of the node, for display.
    pub name: String,
    /// The number of cores for functions.
    pub cores: u32,
    /// The clock of a core, Hz.
    pub hz: f64,
    /// The one-way delay of the wire that connects the node to the other nodes, ns.
    pub wire_ns: f64,
}

/// A function, and its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The name of the function, for display.
    pub name: String,
    /// The cycles that the function takes per packet.
    pub cycles: f64,
}

/// A chain that is to be placed.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// The name of the chain, for display.
    pub name: String,
    /// The packet rate of the chain, packets per second.
    pub rate_pps: f64,
    /// The functions of the chain, in the order in which packets pass them.
    pub functions: Vec<Work>,
    /// The cycles for receiving and sending a packet, once in each unit: the successive functions of the chain on one
    /// core.
    pub io_cycles: f64,
    /// The limit on the delay of the chain, one way, ns; none without a limit.
    pub budget_ns: Option<f64>,
}

/// The limits of a placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The highest load of a core, above 0 and below 1.
    pub most_load: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { most_load: 0.8 }
    }
}

/// The placement of one chain: the nodes and cores on which its functions run.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The index of the node of each function.
    pub nodes: Vec<usize>,
    /// The nodes that the chain uses, each once, with the number of cores that the chain takes there.
    pub cores: Vec<(usize, u32)>,
    /// The mean delay of a packet through the chain, ns.
    pub delay_ns: f64,
}

/// The reason why a chain cannot have a placement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Misfit {
    /// One function takes more than a core.
    #[error(
        "function \"{function}\" needs {load:.2} of a core at {rate_pps:.0} packets/s, and {most} is allowed: lower the rate, or replicate it"
    )]
    TooHeavy {
        /// The name of the function.
        function: String,
        /// The load that the function causes on a core of the fastest node, as a fraction of the core.
        load: f64,
        /// The packet rate of the chain, packets per second.
        rate_pps: f64,
        /// The highest allowed load of a core, as a fraction of the core.
        most: f64,
    },
    /// The delay of the chain exceeds its budget, even on the best empty node.
    #[error("the fastest placement on empty nodes takes {:.1} us, the budget is {:.1} us",
        delay_ns / 1e3, budget_ns / 1e3)]
    Budget {
        /// The delay of the chain on the best empty node, ns.
        delay_ns: f64,
        /// The delay budget of the chain, ns.
        budget_ns: f64,
    },
    /// The nodes have too few free cores.
    #[error(
        "the chain needs {cores} cores; at most {free} are free on one node, and {all} on all nodes"
    )]
    Cores {
        /// The number of cores that the chain takes on the node on which its delay is the smallest.
        cores: u32,
        /// The largest number of free cores of a node.
        free: u32,
        /// The number of free cores of all nodes.
        all: u32,
    },
    /// Cores are free, but no placement on them meets the budget.
    #[error("no placement on the free cores meets the budget of {:.1} us", budget_ns / 1e3)]
    BudgetOnFree {
        /// The delay budget of the chain, ns.
        budget_ns: f64,
    },
}

/// The placement of all chains.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The placement of each chain, in the order of the chains.
    pub chains: Vec<Result<Placed, Misfit>>,
}

/// The quality of a placement; the smallest value is the best.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Score {
    /// The number of chains without a placement.
    pub unplaced: usize,
    /// The number of nodes that run functions.
    pub nodes: usize,
    /// The number of cores that run functions.
    pub cores: u32,
    /// The sum of the delays of all chains, ns.
    pub delay_ns: f64,
}

impl Placement {
    /// Returns the quality of the placement.
    pub fn score(&self) -> Score {
        let mut nodes: Vec<usize> = Vec::new();
        let mut score = Score {
            unplaced: 0,
            nodes: 0,
            cores: 0,
            delay_ns: 0.0,
        };
        for chain in &self.chains {
            let Ok(placed) = chain else {
                score.unplaced += 1;
                continue;
            };
            score.delay_ns += placed.delay_ns;
            for (node, cores) in &placed.cores {
                score.cores += cores;
                if !nodes.contains(node) {
                    nodes.push(*node);
                }
            }
        }
        score.nodes = nodes.len();
        score
    }
}

/// Returns the cost of a chain whose functions run on these nodes, in the order of the functions. None if a function
/// alone exceeds the load limit of its node.
pub fn cost(demand: &Demand, nodes: &[Node], on: &[usize], limits: Limits) -> Option<Placed> {
    let mut placed = Placed {
        nodes: on.to_vec(),
        cores: Vec::new(),
        delay_ns: 0.0,
    };
    let mut at = 0;
    while at < on.len() {
        let node = on[at];
        if at > 0 && on[at - 1] != node {
            placed.delay_ns += nodes[on[at - 1]].wire_ns + nodes[node].wire_ns;
        }
        // The unit has as many of the next functions on this node as fit on a core.
        let (hz, first) = (nodes[node].hz, at);
        let mut cycles = demand.io_cycles;
        while at < on.len() && on[at] == node {
            let more = cycles + demand.functions[at].cycles;
            if demand.rate_pps * more / hz > limits.most_load {
                break;
            }
            cycles = more;
            at += 1;
        }
        if at == first {
            return None;
        }
        placed.delay_ns += delay_ns(demand.rate_pps, cycles, hz);
        match placed.cores.iter_mut().find(|(known, _)| *known == node) {
            Some((_, cores)) => *cores += 1,
            None => placed.cores.push((node, 1)),
        }
    }
    Some(placed)
}

/// Returns the mean time of a packet in one unit of a chain, ns: the service time plus the wait of an M/D/1 queue.
fn delay_ns(rate_pps: f64, cycles: f64, hz: f64) -> f64 {
    let load = rate_pps * cycles / hz;
    let service = 1e9 * cycles / hz;
    service * (1.0 + load / (2.0 * (1.0 - load)))
}

/// Returns true if the placement meets the budget of its chain.
fn is_in_time(demand: &Demand, placed: &Placed) -> bool {
    demand
        .budget_ns
        .is_none_or(|budget_ns| placed.delay_ns <= budget_ns)
}

/// Returns true if the nodes have the cores that a placement takes.
fn has_cores(free: &[u32], placed: &Placed) -> bool {
    let mut cores = placed.cores.iter();
    cores.all(|(node, cores)| free[*node] >= *cores)
}

/// Subtracts the cores of a placement from the free cores.
fn take(free: &mut [u32], placed: &Placed) {
    for (node, cores) in &placed.cores {
        free[*node] -= cores;
    }
}

/// Returns why a chain has no placement on the free cores.
fn misfit(demand: &Demand, nodes: &[Node], free: &[u32], limits: Limits) -> Misfit {
    let fastest = nodes.iter().map(|node| node.hz).fold(0.0, f64::max);
    for function in &demand.functions {
        let load = demand.rate_pps * (demand.io_cycles + function.cycles) / fastest;
        if load > limits.most_load {
            return Misfit::TooHeavy {
                function: function.name.clone(),
                load,
                rate_pps: demand.rate_pps,
                most: limits.most_load,
            };
        }
    }
    let on_one = |node: usize| cost(demand, nodes, &vec![node; demand.functions.len()], limits);
    let mut alone: Vec<Placed> = (0..nodes.len()).filter_map(on_one).collect();
    alone.sort_by(|one, other| one.delay_ns.total_cmp(&other.delay_ns));
    let Some(best) = alone.first() else {
        return Misfit::Cores {
            cores: 0,
            free: 0,
            all: 0,
        };
    };
    let most_free = free.iter().copied().max().unwrap_or(0);
    let cores = best.cores.first().map_or(0, |(_, cores)| *cores);
    match demand.budget_ns {
        Some(budget_ns) if best.delay_ns > budget_ns => Misfit::Budget {
            delay_ns: best.delay_ns,
            budget_ns,
        },
        Some(budget_ns) if most_free >= cores => Misfit::BudgetOnFree { budget_ns },
        _ => Misfit::Cores {
            cores,
            free: most_free,
            all: free.iter().sum(),
        },
    }
}
