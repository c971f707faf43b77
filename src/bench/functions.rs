//! `taut bench functions`: the cost of a packet in functions, and how much it increases when many threads run functions
//! at the same time.

use crate::exit::{self, Failure};
use crate::terminal::print;
use crate::terminal::{Alone, Bar};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use taut_bench::benchmark::Observer;
use taut_benchmarks::parallel::{self, Measured, ParallelError, Plan};
use taut_engine::{Chain, Stage};
use taut_figure::table::terminal_width;
use taut_functions::FUNCTIONS;
use taut_sys::Clock;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench functions --function 'xor(key=90)'
  taut bench functions chain.toml --instances 1,2,4,9 --size 256,1400 --json

So many threads, each with a function of its own, handle one packet after the other, without input and output. Times
are on the wall: with more threads than free cores packets also wait for the other threads.")]
pub struct Arguments {
    /// Chain file with the functions to measure, whose ports are not opened; or use --function
    #[arg(required_unless_present = "function", conflicts_with = "function")]
    chain: Option<PathBuf>,
    /// Function that every packet passes: forward, 'xor(key=90)'; may be repeated
    #[arg(long, value_name = "NAME(KEY=VALUE...)")]
    function: Vec<String>,
    /// Number of threads that work side by side, 1 to 256, or a list
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    instances: Vec<u16>,
    /// UDP payload in bytes, or a list
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "256"
    )]
    size: Vec<usize>,
    /// Minimum number of packets of each thread in a repetition, 1 to 1000000000
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    packets: u64,
    /// Repetitions, 1 to 1000; six are the fewest with a 95 % interval
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Print a JSON object per number of threads and size instead of lines
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let functions = match &arguments.chain {
        Some(path) => Chain::load(path, FUNCTIONS)?.functions,
        None => arguments
            .function
            .iter()
            .map(|text| Stage::parse(text, FUNCTIONS))
            .collect::<Result<Vec<_>, _>>()?,
    };
    if functions.is_empty() {
        return Err(Failure::Input(
            "the chain has no function to measure: add a [[function]]".to_string(),
        ));
    }
    let stop = exit::stop_flag()?;
    let _alone = Alone::claim()?;
    let clock = Clock::calibrate(Duration::from_millis(20));
    let plan = |size_bytes, instances| Plan {
        functions: functions.clone(),
        instances: usize::from(instances),
        size_bytes,
        packets: arguments.packets,
        repetitions: arguments.repetitions,
    };
    let plans: Vec<Plan> = arguments
        .size
        .iter()
        .flat_map(|size| arguments.instances.iter().map(|n| plan(*size, *n)))
        .collect();
    let total: Duration = plans.iter().map(Plan::least).sum();
    let mut bar = Bar::new();
    let mut done = Duration::ZERO;
    let mut all = Vec::new();
    for plan in plans {
        if !arguments.json {
            let what = format!("{} in parallel, {} bytes", plan.instances, plan.size_bytes);
            bar.progress(done, total, &what);
        }
        done += plan.least();
        let measured = parallel::measure(&plan, &clock, stop)?;
        if stop.load(Ordering::Relaxed) {
            bar.clear();
            show(&all);
            let text = "interrupted: only complete results are shown";
            return Err(Failure::Interrupted(text.to_string()));
        }
        if arguments.json {
            let text =
                serde_json::to_string(&measured).map_err(|e| Failure::Missing(e.to_string()))?;
            print::line(text);
        } else {
            all.push(measured);
        }
    }
    bar.clear();
    show(&all);
    Ok(())
}

fn show(all: &[Measured]) {
    if let Some(first) = all.first() {
        print::line(parallel::text_table(all, terminal_width()).trim_end());
        print::line(format_args!(
            "{} repetitions on {} CPUs; with more threads than free CPUs packets also wait for the other threads",
            first.repetitions, first.cpus
        ));
    }
}

impl From<ParallelError> for Failure {
    fn from(e: ParallelError) -> Self {
        Self::Input(e.to_string())
    }
}
