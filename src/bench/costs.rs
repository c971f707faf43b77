//! `taut bench costs`: the cost of a packet by load, functions, frame size, batch size and kind of port.

use super::InTurns;
use crate::exit::Failure;
use taut_benchmarks::costs::{Costs, FEWEST_POINTS};
use taut_results::Mode;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench costs                  about 3 minutes
  taut bench costs --quick          about 30 seconds
  taut bench costs --only pair --points 100 --out results/pair

Runs at saturation over null, pair and memif, at points drawn by --seed that fill the ranges: 0 to 10,000 cycles burnt per packet,
1 to 10 forwarding functions, 64 to 1,518 bytes, batches of 1 to 256. The cost of a packet is that in the worker's counters,
without interruptions; the time of a cache line between the two cores is measured as well. For each port a model is fitted
to one half of the points and checked with the other half. Ends with tables, report.html (figures, and sliders that ask the models), runs.csv for
taut model fit, and models/PORT.toml for taut model predict.")]
pub struct Arguments {
    #[command(flatten)]
    common: InTurns,
    /// More points and longer runs: about 10 minutes; not with --quick
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Points for each kind of port (default: 36; --quick 16; --full 80)
    #[arg(long, value_name = "COUNT")]
    points: Option<usize>,
}

/// The largest number of combinations in one benchmark; this many combinations take hours.
const MOST_POINTS: usize = 2_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(points) = arguments.points
        && !(FEWEST_POINTS..=MOST_POINTS).contains(&points)
    {
        return Err(Failure::Input(format!(
            "--points: expected {FEWEST_POINTS} to {MOST_POINTS}, because half of them must suffice to fit the \
            terms of a model; got {points}"
        )));
    }
    let costs = Costs::new(arguments.points);
    match arguments.full {
        true => arguments.common.run_in(Mode::Full, costs, 0.1),
        false => arguments.common.run(costs, 0.1),
    }
}
