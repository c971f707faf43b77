//! Tests of placements: against all placements tried one by one, and against the limits of nodes and budgets.
#![allow(clippy::unwrap_used)]

use super::Strategy;
use super::*;
use proptest::prelude::*;
use proptest::strategy::Strategy as Values;

fn node(cores: u32, ghz: f64, wire_us: f64) -> Node {
    Node {
        name: format!("{cores} cores"),
        cores,
        hz: ghz * 1e9,
        wire_ns: wire_us * 1e3,
    }
}

fn demand(rate_pps: f64, cycles: &[f64], budget_us: Option<f64>) -> Demand {
    let work = |cycles: &f64| Work {
        name: format!("burn {cycles}"),
        cycles: *cycles,
    };
    Demand {
        name: "chain".to_string(),
        rate_pps,
        functions: cycles.iter().map(work).collect(),
        io_cycles: 100.0,
        budget_ns: budget_us.map(|it| it * 1e3),
    }
}

#[test]
fn successive_functions_share_a_core_if_their_load_allows() {
    let nodes = [node(4, 1.0, 10.0), node(4, 1.0, 5.0)];
    let light = demand(1e5, &[1000.0, 1000.0, 1000.0], None);
    let placed = cost(&light, &nodes, &[0, 0, 0], Limits::default()).unwrap();
    // The load is 0.31, so the wait is 0.31 / (2 * 0.69) of the service time.
    assert_eq!(placed.cores, [(0, 1)]);
    assert!((placed.delay_ns - 3100.0 * (1.0 + 0.31 / 1.38)).abs() < 1e-6);
    let heavy = demand(3e5, &[1000.0, 1000.0, 1000.0], None);
    let placed = cost(&heavy, &nodes, &[0, 0, 0], Limits::default()).unwrap();
    assert_eq!(placed.cores, [(0, 2)]);
    let over = cost(&light, &nodes, &[0, 1, 1], Limits::default()).unwrap();
    assert_eq!(over.cores, [(0, 1), (1, 1)]);
    assert!(over.delay_ns > 15_000.0);
}

#[test]
fn fill_one_uses_few_nodes_and_spread_uses_all() {
    let nodes = vec![node(4, 2.0, 5.0); 4];
    let demands = vec![demand(1e5, &[1000.0, 2000.0], Some(100.0)); 4];
    let nodes_used = |strategy| {
        let all = place(strategy, &demands, &nodes, Limits::default());
        (all.score().unplaced, all.score().nodes)
    };
    assert_eq!(nodes_used(Strategy::FillOne), (0, 1));
    assert_eq!(nodes_used(Strategy::Spread), (0, 4));
}

#[test]
fn a_chain_too_large_for_a_node_is_split() {
    let nodes = vec![node(2, 1.0, 5.0); 3];
    let large = demand(3e5, &[2000.0; 5], None);
    for strategy in Strategy::ALL {
        let all = place(
            strategy,
            std::slice::from_ref(&large),
            &nodes,
            Limits::default(),
        );
        let placed = all.chains[0].as_ref().unwrap();
        assert_eq!(placed.nodes, [0, 0, 1, 1, 2], "{}", strategy.name());
    }
}

#[test]
fn the_error_names_the_limit_that_no_placement_meets() {
    let nodes = [node(1, 1.0, 5.0), node(2, 1.0, 5.0)];
    let reason = |demands: &[Demand]| {
        let all = place(Strategy::FillOne, demands, &nodes, Limits::default());
        all.chains.last().unwrap().clone().unwrap_err().to_string()
    };
    let heavy = reason(&[demand(1e6, &[1000.0], None)]);
    assert!(
        heavy.starts_with("function \"burn 1000\" needs 1.10 of a core"),
        "{heavy}"
    );
    let late = reason(&[demand(1e4, &[10_000.0], Some(5.0))]);
    assert!(late.contains("the budget is 5.0 us"), "{late}");
    let full = reason(&vec![demand(5e5, &[1000.0, 1000.0], None); 2]);
    assert_eq!(
        full,
        "the chain needs 2 cores; at most 1 are free on one node, and 1 on all nodes"
    );
    let apart = [
        demand(5e5, &[1000.0], None),
        demand(5e5, &[1000.0], None),
        demand(5e5, &[1000.0, 1000.0], Some(9.0)),
    ];
    assert!(reason(&apart).contains("1 are free"), "{}", reason(&apart));
}

#[test]
fn a_hundred_chains_are_placed_on_fifty_nodes() {
    let nodes: Vec<_> = (0..50)
        .map(|n| node(2 + n % 7, 2.0, f64::from(n % 5)))
        .collect();
    let demands: Vec<_> = (0..100)
        .map(|n| {
            demand(
                1e5 * f64::from(1 + n % 4),
                &vec![900.0; 1 + n as usize % 8],
                Some(60.0),
            )
        })
        .collect();
    for strategy in Strategy::ALL {
        let all = place(strategy, &demands, &nodes, Limits::default());
        check(&all, &demands, &nodes);
        assert_eq!(all.score().unplaced, 0, "{}", strategy.name());
    }
    assert_eq!(exact(&demands, &nodes, Limits::default()), None);
}

/// Checks that no node has more work than cores, and that all budgets hold.
fn check(all: &Placement, demands: &[Demand], nodes: &[Node]) {
    let mut taken = vec![0; nodes.len()];
    for (placed, demand) in all.chains.iter().zip(demands) {
        let Ok(placed) = placed else { continue };
        let again = cost(demand, nodes, &placed.nodes, Limits::default());
        assert_eq!(again.as_ref(), Some(placed));
        assert!(demand.budget_ns.is_none_or(|it| placed.delay_ns <= it));
        for (node, cores) in &placed.cores {
            taken[*node] += cores;
        }
    }
    for (taken, node) in taken.iter().zip(nodes) {
        assert!(*taken <= node.cores);
    }
}

/// Returns the best score of all placements, without any pruning.
fn brute_force(demands: &[Demand], nodes: &[Node]) -> Score {
    fn each(
        demands: &[Demand],
        nodes: &[Node],
        chosen: &mut Vec<Option<Placed>>,
        best: &mut Option<Score>,
    ) {
        let chain = chosen.len();
        if chain == demands.len() {
            let mut taken = vec![0; nodes.len()];
            for (node, cores) in chosen.iter().flatten().flat_map(|it| &it.cores) {
                taken[*node] += cores;
            }
            if taken
                .iter()
                .zip(nodes)
                .any(|(taken, node)| *taken > node.cores)
            {
                return;
            }
            let late = chosen.iter().zip(demands).any(|(placed, demand)| {
                placed
                    .as_ref()
                    .zip(demand.budget_ns)
                    .is_some_and(|(it, budget)| it.delay_ns > budget)
            });
            let unplaced = Misfit::Cores {
                cores: 0,
                free: 0,
                all: 0,
            };
            let chains = chosen.iter().cloned().map(|it| it.ok_or(unplaced.clone()));
            let score = Placement {
                chains: chains.collect(),
            }
            .score();
            if !late && best.is_none_or(|best| score < best) {
                *best = Some(score);
            }
            return;
        }
        chosen.push(None);
        each(demands, nodes, chosen, best);
        chosen.pop();
        let length = demands[chain].functions.len();
        for number in 0..nodes.len().pow(length as u32) {
            let digit = |at: usize| number / nodes.len().pow(at as u32) % nodes.len();
            let on: Vec<usize> = (0..length).map(digit).collect();
            if let Some(placed) = cost(&demands[chain], nodes, &on, Limits::default()) {
                chosen.push(Some(placed));
                each(demands, nodes, chosen, best);
                chosen.pop();
            }
        }
    }
    let mut best = None;
    each(demands, nodes, &mut Vec::new(), &mut best);
    best.unwrap()
}

fn demands() -> impl Values<Value = Vec<Demand>> {
    let chain = (
        prop::sample::select(vec![1e5, 3e5, 6e5]),
        prop::collection::vec(prop::sample::select(vec![200.0, 900.0, 2000.0]), 1..4),
        prop::option::of(prop::sample::select(vec![4.0, 20.0, 60.0])),
    );
    let chain = chain.prop_map(|(rate, cycles, budget)| demand(rate, &cycles, budget));
    prop::collection::vec(chain, 1..4)
}

fn nodes() -> impl Values<Value = Vec<Node>> {
    let node = (
        0_u32..4,
        prop::sample::select(vec![1.0, 2.5]),
        prop::sample::select(vec![0.0, 6.0]),
    )
        .prop_map(|(cores, ghz, wire)| node(cores, ghz, wire));
    prop::collection::vec(node, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_exact_search_agrees_with_all_placements_tried(demands in demands(), nodes in nodes()) {
        let found = exact(&demands, &nodes, Limits::default()).unwrap();
        check(&found, &demands, &nodes);
        let (found, best) = (found.score(), brute_force(&demands, &nodes));
        prop_assert_eq!((found.unplaced, found.nodes, found.cores), (best.unplaced, best.nodes, best.cores));
        prop_assert!((found.delay_ns - best.delay_ns).abs() < 1e-3);
        for strategy in Strategy::ALL {
            let all = place(strategy, &demands, &nodes, Limits::default());
            check(&all, &demands, &nodes);
            let unplaced = all.score().unplaced;
            prop_assert!(unplaced >= best.unplaced);
        }
    }
}
