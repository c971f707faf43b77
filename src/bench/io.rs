//! `taut bench io`: the cost of receiving and sending a packet.

use super::InTurns;
use crate::exit::Failure;
use taut_benchmarks::io_cost::IoCost;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench io                     some minutes
  taut bench io --quick             under a minute
  taut bench io --only null --only memif --out results/shared-memory

For every kind of port on this machine (null, memif, af-packet, af-xdp, ...), compared with dpdk-testpmd. The cycles burnt
per packet are raised until the throughput declines, which gives the cost of input and output. Then follow batch sizes,
latency just below saturation, and a walk through lists of many sizes. A trial takes 0.1 s, with --quick 0.03 s. Ends with a table,
report.html and figures.")]
pub struct Arguments {
    #[command(flatten)]
    common: InTurns,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.common.run(IoCost::new(), 0.001)
}
