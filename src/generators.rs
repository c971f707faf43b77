//! `taut bench generator`: packet generators as devices under test.

use crate::bench::{measure_alone, mode, print_end};
use crate::demo::Bar;
use crate::exit::{self, Failure};
use crate::{print, quantity};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_lab::comparison;
use taut_lab::generators::{self, Evaluation, GeneratorsError, Plan, Results, render_text_table};
use taut_lab::report::ReportError;
use taut_lab::table::terminal_width;
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench generator              some minutes
  taut bench generator --quick      under a minute
  taut bench generator --only taut-memif --rate 1M --trial 10

taut, and as far as they are installed dpdk-testpmd, trafgen, tcpreplay and iperf3, each in a process of its
own over memif or a veth pair; a receiver that knows nothing of them stamps every arrival. Measured: the
highest rate with 64-byte frames, then at constant rates with 128-byte frames the average rate and the gaps
between packets. Ends with two tables, report.html and figures.")]
pub struct Arguments {
    /// Shortened: see that it works
    #[arg(long)]
    quick: bool,
    /// Only this generator, such as taut-memif, testpmd-memif-txonly, taut-af-xdp, trafgen; may be repeated
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Ask for this rate, such as 100k or 1M; may be repeated (default: three that all can hold)
    #[arg(long, value_name = "RATE")]
    rate: Vec<Rate>,
    /// Length of each trial (default: 1, with --quick 0.2)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    trial: Option<f64>,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which generators take turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the summary as JSON instead of the tables
    #[arg(long)]
    json: bool,
}

/// Frame size of the trials at a rate, for rates in bits.
const FRAME_SIZE_BYTES: f64 = 128.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.trial.is_some_and(|s| !(0.01..=60.0).contains(&s)) {
        return Err(Failure::Input(
            "--trial: want 0.01 to 60 seconds".to_string(),
        ));
    }
    let rates_pps = arguments
        .rate
        .iter()
        .map(|rate| rate.packets_per_second(FRAME_SIZE_BYTES))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Failure::Input(e.to_string()))?;
    if let Some(pps) = rates_pps.iter().find(|pps| !(100.0..=20e6).contains(*pps)) {
        return Err(Failure::Input(format!(
            "--rate: want 100 to 20M packets per second, not {pps}"
        )));
    }
    let plan = Plan {
        mode: mode(arguments.quick),
        seed: arguments.seed,
        folder: arguments
            .out
            .clone()
            .unwrap_or_else(|| comparison::fresh_folder_for(Path::new("results"), "generator")),
        program: exit::own_program()?,
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
        only: arguments.only.clone(),
        trial: arguments.trial.map(Duration::from_secs_f64),
        rates_pps,
    };
    let measure = |bar: &mut Bar, stop: &AtomicBool| generators::run(&plan, bar, stop);
    measure_alone(measure, |folder| show(folder, arguments.json))
}

/// Writes the report of a results folder of `taut bench generator` and prints its tables.
pub fn show(folder: &Path, json: bool) -> Result<(), Failure> {
    let page = generators::write_report(folder)?;
    if json {
        print::summary(folder)?;
        return Ok(());
    }
    let results = Results::load(folder).map_err(ReportError::from)?;
    let evaluation = Evaluation::of(&results);
    print::line(render_text_table(&evaluation, terminal_width()));
    for c in &evaluation.comparisons {
        print::line(format!(
            "{}: {} {:.2} times as good as {} ({})",
            c.what,
            c.taut,
            c.ratio.median.point,
            c.peer,
            c.ratio.median.words(|value| format!("{value:.2}"))
        ));
    }
    let head = &results.head;
    for rates in &head.rates {
        print::line(format!(
            "rates over {}: {}",
            rates.transport.name(),
            rates.why
        ));
    }
    print_end(&head.left_out, &results.problems, head.stage, &page);
    Ok(())
}

impl From<GeneratorsError> for Failure {
    fn from(e: GeneratorsError) -> Self {
        match e {
            GeneratorsError::Nothing(_) | GeneratorsError::Missing(_) => {
                Self::Missing(e.to_string())
            }
            GeneratorsError::Results(e) => e.into(),
            GeneratorsError::Unknown { .. } | GeneratorsError::Affinity(_) => {
                Self::Input(e.to_string())
            }
        }
    }
}
