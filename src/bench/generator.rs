//! `taut bench generator`: packet generators as devices under test.

use super::InTurns;
use crate::exit::Failure;
use taut_benchmarks::generators::Generators;
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench generator              some minutes
  taut bench generator --quick      under a minute
  taut bench generator --only taut-memif --rate 1M --trial 10

taut (taut-memif, taut-af-packet, taut-af-xdp), and as far as they are installed dpdk-testpmd (testpmd-memif-txonly, ...), trafgen,
tcpreplay and iperf3, each in a process of its own over memif or a veth pair; a receiver that knows nothing of them stamps
every arrival. Measured: the highest rate with 64-byte frames, then at constant rates with 128-byte frames the average
rate and the gaps between packets. A trial takes 1 s, with --quick 0.2 s. Ends with two tables, report.html and figures.")]
pub struct Arguments {
    #[command(flatten)]
    common: InTurns,
    /// Measure at this rate, 100 to 20M packets per second, such as 1M; may be repeated (default: three that all
    /// generators can offer)
    #[arg(long, value_name = "RATE")]
    rate: Vec<Rate>,
}

/// Frame size with which a rate in bits per second is converted to packets, bytes.
const FRAME_SIZE_BYTES: f64 = 128.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rates_pps = arguments
        .rate
        .iter()
        .map(|rate| rate.packets_per_second(FRAME_SIZE_BYTES))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Failure::Input(e.to_string()))?;
    if let Some(pps) = rates_pps.iter().find(|pps| !(100.0..=20e6).contains(*pps)) {
        return Err(Failure::Input(format!(
            "--rate: expected 100 to 20M packets per second, got {pps}"
        )));
    }
    arguments.common.run(Generators::new(rates_pps), 0.01)
}
