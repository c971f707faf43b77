//! Strategies that place one chain after the other.

use super::{Demand, Limits, Node, Placed, Placement, cost, has_cores, is_in_time, misfit, take};

/// A rule by which chains are placed one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Each chain gets the first node with enough free cores, in the order of the nodes, so that few nodes are used.
    FillOne,
    /// Each chain gets the node with the most free cores, so that the load is even.
    Spread,
    /// Chains are placed in order of slack (budget minus delay of the fastest placement), the smallest first. Each
    /// chain gets the node on which its delay is the smallest.
    ByBudget,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 3] = [Self::FillOne, Self::Spread, Self::ByBudget];

    /// Returns the name of the strategy.
    pub fn name(self) -> &'static str {
        match self {
            Self::FillOne => "fill-one",
            Self::Spread => "spread",
            Self::ByBudget => "by-budget",
        }
    }
}

/// Places the chains by a strategy. A chain that fits on no single node is split over several, in the order in which
/// the strategy tries them.
pub fn place(strategy: Strategy, demands: &[Demand], nodes: &[Node], limits: Limits) -> Placement {
    let mut free: Vec<u32> = nodes.iter().map(|node| node.cores).collect();
    let mut order: Vec<usize> = (0..demands.len()).collect();
    if strategy == Strategy::ByBudget {
        let slack: Vec<f64> = demands
            .iter()
            .map(|demand| slack_ns(demand, nodes, limits))
            .collect();
        order.sort_by(|one, other| slack[*one].total_cmp(&slack[*other]));
    }
    let mut chains: Vec<_> = demands.iter().map(|_| None).collect();
    for chain in order {
        let demand = &demands[chain];
        let found = find(strategy, demand, nodes, &free, limits);
        if let Some(placed) = &found {
            take(&mut free, placed);
        }
        chains[chain] = Some(found.ok_or_else(|| misfit(demand, nodes, &free, limits)));
    }
    Placement {
        chains: chains.into_iter().flatten().collect(),
    }
}

/// Returns the time by which the fastest placement on one empty node is faster than the budget, ns.
fn slack_ns(demand: &Demand, nodes: &[Node], limits: Limits) -> f64 {
    let on_one = |node| cost(demand, nodes, &vec![node; demand.functions.len()], limits);
    let delays = (0..nodes.len()).filter_map(on_one).map(|it| it.delay_ns);
    let fastest = delays.fold(f64::INFINITY, f64::min);
    demand.budget_ns.map_or(f64::INFINITY, |it| it - fastest)
}

fn find(
    strategy: Strategy,
    demand: &Demand,
    nodes: &[Node],
    free: &[u32],
    limits: Limits,
) -> Option<Placed> {
    let mut order: Vec<usize> = (0..nodes.len()).filter(|node| free[*node] > 0).collect();
    if strategy == Strategy::Spread {
        order.sort_by_key(|node| std::cmp::Reverse(free[*node]));
    }
    let fits = |placed: &Placed| has_cores(free, placed) && is_in_time(demand, placed);
    let on_one = |node: &usize| cost(demand, nodes, &vec![*node; demand.functions.len()], limits);
    let mut alone = order.iter().filter_map(on_one).filter(fits);
    let found = match strategy {
        Strategy::FillOne | Strategy::Spread => alone.next(),
        // If delays are equal, the node with the fewest free cores is taken, so that large chains still find space.
        Strategy::ByBudget => alone.min_by(|one, other| {
            let left = |it: &Placed| it.cores.iter().map(|(node, _)| free[*node]).sum::<u32>();
            one.delay_ns
                .total_cmp(&other.delay_ns)
                .then(left(one).cmp(&left(other)))
        }),
    };
    found.or_else(|| {
        let over = split(demand, nodes, free, &order, limits)?;
        cost(demand, nodes, &over, limits).filter(fits)
    })
}

/// Returns the nodes of the functions if each node, in this order, gets as many of the next functions as fit.
fn split(
    demand: &Demand,
    nodes: &[Node],
    free: &[u32],
    order: &[usize],
    limits: Limits,
) -> Option<Vec<usize>> {
    let mut on: Vec<usize> = Vec::new();
    for node in order {
        while on.len() < demand.functions.len() {
            on.push(*node);
            let placed = cost(demand, nodes, &on, limits);
            if !placed.is_some_and(|placed| has_cores(free, &placed)) {
                on.pop();
                break;
            }
        }
    }
    (on.len() == demand.functions.len()).then_some(on)
}
