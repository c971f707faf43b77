//! The exact search for the best placement of few chains on few nodes.

use super::{
    Demand, Limits, Node, Placed, Placement, Score, cost, has_cores, is_in_time, misfit, take,
};

/// The limit on the steps of the search.
pub const MOST_STEPS: u64 = 2_000_000;

/// The limit on the number of placements of one chain that the search considers.
const MOST_OPTIONS: usize = 20_000;

/// Returns the placement with the best [`Score`]; none if the case is too large for the search.
pub fn exact(demands: &[Demand], nodes: &[Node], limits: Limits) -> Option<Placement> {
    let options: Option<Vec<_>> = demands
        .iter()
        .map(|demand| options(demand, nodes, limits))
        .collect();
    let mut search = Search {
        options: options?,
        steps: 0,
        best: None,
        chosen: Vec::new(),
    };
    let mut free: Vec<u32> = nodes.iter().map(|node| node.cores).collect();
    let start = Score {
        unplaced: 0,
        nodes: 0,
        cores: 0,
        delay_ns: 0.0,
    };
    let mut used = vec![0; nodes.len()];
    if !search.descend(&mut free, &mut used, start) {
        return None;
    }
    let (_, chosen) = search.best?;
    for placed in chosen.iter().flatten() {
        for (node, cores) in &placed.cores {
            free[*node] -= cores;
        }
    }
    let each = demands.iter().zip(chosen);
    let chains =
        each.map(|(demand, placed)| placed.ok_or_else(|| misfit(demand, nodes, &free, limits)));
    Some(Placement {
        chains: chains.collect(),
    })
}

/// Returns all placements of a chain that meet its budget on empty nodes; none if there are too many.
fn options(demand: &Demand, nodes: &[Node], limits: Limits) -> Option<Vec<Placed>> {
    let count = u32::try_from(demand.functions.len()).ok()?;
    let all = nodes.len().checked_pow(count)?;
    if all > MOST_OPTIONS {
        return None;
    }
    let empty: Vec<u32> = nodes.iter().map(|node| node.cores).collect();
    let mut options: Vec<Placed> = (0..all)
        .filter_map(|mut number| {
            let digit = |_| {
                let node = number % nodes.len();
                number /= nodes.len();
                node
            };
            let on: Vec<usize> = (0..count).map(digit).collect();
            cost(demand, nodes, &on, limits)
        })
        .filter(|placed| has_cores(&empty, placed) && is_in_time(demand, placed))
        .collect();
    // Good placements are tried first, so that the search soon has a bound.
    options.sort_by(|one, other| {
        let cores = |it: &Placed| it.cores.iter().map(|(_, cores)| cores).sum::<u32>();
        let key = |it: &Placed| (it.cores.len(), cores(it));
        key(one)
            .cmp(&key(other))
            .then(one.delay_ns.total_cmp(&other.delay_ns))
    });
    Some(options)
}

struct Search {
    options: Vec<Vec<Placed>>,
    steps: u64,
    best: Option<(Score, Vec<Option<Placed>>)>,
    chosen: Vec<Option<Placed>>,
}

impl Search {
    /// Tries all placements of the next chains. Returns false if the search has too many steps. A score only grows with
    /// further chains, so a partial score that is not better than the best ends a branch.
    fn descend(&mut self, free: &mut Vec<u32>, used: &mut Vec<u32>, score: Score) -> bool {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return false;
        }
        if self.best.as_ref().is_some_and(|(best, _)| score >= *best) {
            return true;
        }
        let chain = self.chosen.len();
        if chain == self.options.len() {
            self.best = Some((score, self.chosen.clone()));
            return true;
        }
        for at in 0..self.options[chain].len() {
            let placed = &self.options[chain][at];
            if !has_cores(free, placed) {
                continue;
            }
            let placed = placed.clone();
            take(free, &placed);
            let mut next = score;
            next.delay_ns += placed.delay_ns;
            for (node, cores) in &placed.cores {
                next.cores += cores;
                next.nodes += usize::from(used[*node] == 0);
                used[*node] += 1;
            }
            let cores = placed.cores.clone();
            self.chosen.push(Some(placed));
            let goes_on = self.descend(free, used, next);
            self.chosen.pop();
            for (node, count) in cores {
                free[node] += count;
                used[node] -= 1;
            }
            if !goes_on {
                return false;
            }
        }
        let mut next = score;
        next.unplaced += 1;
        self.chosen.push(None);
        let goes_on = self.descend(free, used, next);
        self.chosen.pop();
        goes_on
    }
}
