//! `taut tune fit`: the maximum bulk load next to a latency-critical forwarder.

use super::ablate::{FRAME_BYTES, LEAST_TRIAL};
use super::guard::Guard;
use crate::bench::InTurns;
use crate::exit::Failure;
use crate::terminal::quantity;
use std::hint::black_box;
use std::time::Duration;
use taut_bench::device::Device;
use taut_benchmarks::fit::{Fit, Request};
use taut_host::tune::{self, Root, TuneError};
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo taut tune fit --p99.999 50us
  sudo taut tune fit --p99.99 200us --only cpus --only cpus-idle -- make -j8
  sudo taut tune fit --p99.99 1ms --quick --trial 0.5 -- podman run --cgroups=disabled IMAGE
  sudo taut tune fit --p99.999 50us --bulk-cpus 2-7 -- qemu-system-x86_64 ...

Bulk load is a process, a container or a machine: all that the command after -- starts, in a control group of its own. Ways
to confine it, by the names that --only takes:
  free       on all its CPUs
  weight     the smallest weight of a group (cpu.weight, cpu.shares)
  idle       the idle policy (cpu.idle, SCHED_IDLE)
  cpus       not on the forwarder's CPU
  cpus-idle  both
  resctrl    not on the forwarder's CPU, a quarter of the last-level cache, least memory bandwidth
For each, the search finds the greatest quota of processor time with which the percentile stays within its bound, and says
what limits it. Groups are removed at the end, on Ctrl-C, and when this process is killed.")]
pub struct Arguments {
    #[command(flatten)]
    bound: Bound,
    /// CPUs of the bulk load, such as 2-7 (default: all, without the generator's if there are more than two)
    #[arg(long, value_name = "LIST")]
    bulk_cpus: Option<String>,
    /// Latency-critical device: an id of `taut demo --list-devices`
    #[arg(long, value_name = "ID", default_value = "memif-idle")]
    device: String,
    /// Offered rate: packets/s (100k) or bits/s (1Gbit/s); p99.999 needs a million packets in a trial
    #[arg(long, default_value = "200k")]
    rate: Rate,
    /// Number of trials of each level, 6 to 1000: with fewer, no interval of their median reaches 95 %
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u32).range(6..=1000))]
    repetitions: u32,
    #[command(flatten)]
    common: InTurns,
    /// Command of the bulk load, which must not end by itself (default: a worker that keeps CPUs and memory busy)
    #[arg(last = true, value_name = "COMMAND")]
    bulk: Vec<String>,
}

/// The bound on a percentile of the latency.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Bound {
    /// Bound on the 99th percentile of the latency, such as 50us
    #[arg(long = "p99", value_name = "TIME", value_parser = quantity::some_time)]
    p99: Option<Duration>,
    /// Bound on the 99.9th percentile
    #[arg(long = "p99.9", value_name = "TIME", value_parser = quantity::some_time)]
    p99_9: Option<Duration>,
    /// Bound on the 99.99th percentile
    #[arg(long = "p99.99", value_name = "TIME", value_parser = quantity::some_time)]
    p99_99: Option<Duration>,
    /// Bound on the 99.999th percentile
    #[arg(long = "p99.999", value_name = "TIME", value_parser = quantity::some_time)]
    p99_999: Option<Duration>,
}

impl Bound {
    /// Returns the name of the percentile that an option limits, and the limit.
    fn given(&self) -> Option<(&'static str, Duration)> {
        let all = [
            ("p99", self.p99),
            ("p99.9", self.p99_9),
            ("p99.99", self.p99_99),
            ("p99.999", self.p99_999),
        ];
        all.into_iter()
            .find_map(|(name, bound)| Some((name, bound?)))
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let root = Root::machine();
    let cpus = arguments.bulk_cpus.as_deref();
    let cpus = cpus
        .map(|list| tune::online_cpus(&root, list))
        .transpose()?;
    let device = Device::named(&arguments.device)?;
    let rate_pps = arguments.rate.packets_per_second(FRAME_BYTES);
    let rate_pps = rate_pps.map_err(|e| Failure::Input(e.to_string()))?;
    let (percentile, bound) = arguments.bound.given().unwrap_or_default();
    if !taut_host::permissions::is_root() {
        return Err(TuneError::NotRoot(format!("fit --{percentile} ...")).into());
    }
    if tune::is_in_force(&root)? {
        return Err(Failure::Missing(
            "settings of taut tune apply are in force, and this search would revert them; run: taut tune revert".to_owned(),
        ));
    }
    let fit = Fit::new(Request {
        device,
        rate_pps,
        percentile: percentile.to_owned(),
        bound,
        bulk: arguments.bulk.clone(),
        cpus,
        repetitions: arguments.repetitions,
    });
    let guard = Guard::start()?;
    let shown = arguments.common.run(fit, LEAST_TRIAL);
    guard.end();
    shown
}

#[derive(clap::Args)]
pub struct BulkArguments {
    /// Number of threads
    threads: usize,
}

/// Size of the memory that each thread of the built-in load walks through: more than most caches of a core, in words.
const WORDS: usize = 1 << 20;

/// Keeps CPUs, caches and memory busy until a signal ends the process.
pub fn bulk(arguments: &BulkArguments) -> Result<(), Failure> {
    let walk = || {
        let mut words = vec![0_u64; WORDS];
        loop {
            for word in &mut words {
                *word = black_box(word.wrapping_add(1));
            }
        }
    };
    let threads: Vec<_> = (0..arguments.threads)
        .map(|_| std::thread::Builder::new().spawn(walk))
        .collect();
    for thread in threads {
        let thread = thread.map_err(|e| Failure::Missing(format!("cannot start a thread: {e}")))?;
        // The threads never end.
        let _: Result<std::convert::Infallible, _> = thread.join();
    }
    Ok(())
}
