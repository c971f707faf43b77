//! `taut bench`: measures a device after RFC 2544, what things cost on this machine (`io`, `functions`), and generators
//! (`generator`).

use crate::demo::{Alone, Bar};
use crate::exit::{self, Failure};
use crate::{functions, generators, print, quantity, rfc2544};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_lab::comparison;
use taut_lab::io_cost::{self, Evaluation, IoCostError, Plan, Results, render_text_table};
use taut_lab::report::ReportError;
use taut_lab::results::{LeftOut, Mode, Stage};
use taut_lab::table::terminal_width;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The highest rate without loss, by frame size (RFC 2544 section 26.1)
    Throughput(rfc2544::ThroughputArguments),
    /// The distribution of latency at shares of the throughput, or at a rate (section 26.2)
    Latency(rfc2544::LatencyArguments),
    /// Loss over the offered rate (section 26.3)
    Loss(rfc2544::LossArguments),
    /// The longest burst without loss, and the buffer it implies (section 26.4, RFC 9004)
    BackToBack(rfc2544::BackToBackArguments),
    /// One rate for hours: drift of latency and loss
    Soak(rfc2544::SoakArguments),
    /// Throughput, latency, loss and back-to-back frames in one report
    Rfc2544(rfc2544::AllArguments),
    /// What a packet's input and output cost in each I/O framework, by raising the load per packet
    Io(Io),
    /// Bandwidth, accuracy and precision of packet generators, seen by an independent receiver
    Generator(generators::Arguments),
    /// What a packet takes in functions when several work side by side
    Functions(functions::Arguments),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench io                     some minutes
  taut bench io --quick             under a minute
  taut bench io --only null --only memif --out results/shared-memory

For every port that this machine can have, with dpdk-testpmd beside it: cycles burnt per packet are raised
until the throughput declines, which tells what input and output cost; then batch sizes, latency just
below saturation, and a walk through lists of many sizes. Ends with a table, report.html and figures.")]
struct Io {
    /// Shortened: see that it works
    #[arg(long)]
    quick: bool,
    /// Only this framework, such as null, memif, af-packet, af-xdp, testpmd-memif; may be repeated
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Length of each trial (default: 0.1, with --quick 0.03)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    trial: Option<f64>,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which frameworks take turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the summary as JSON instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Throughput(arguments) => rfc2544::throughput(arguments),
        What::Latency(arguments) => rfc2544::latency(arguments),
        What::Loss(arguments) => rfc2544::loss(arguments),
        What::BackToBack(arguments) => rfc2544::back_to_back(arguments),
        What::Soak(arguments) => rfc2544::soak(arguments),
        What::Rfc2544(arguments) => rfc2544::all(arguments),
        What::Io(arguments) => run_io(arguments),
        What::Generator(arguments) => generators::run(arguments),
        What::Functions(arguments) => functions::run(arguments),
    }
}

fn run_io(arguments: &Io) -> Result<(), Failure> {
    if arguments
        .trial
        .is_some_and(|s| !(0.001..=60.0).contains(&s))
    {
        return Err(Failure::Input(
            "--trial: want 0.001 to 60 seconds".to_string(),
        ));
    }
    let plan = Plan {
        mode: mode(arguments.quick),
        seed: arguments.seed,
        folder: arguments
            .out
            .clone()
            .unwrap_or_else(|| comparison::fresh_folder_for(Path::new("results"), "io")),
        program: exit::own_program()?,
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
        only: arguments.only.clone(),
        trial: arguments.trial.map(Duration::from_secs_f64),
    };
    let measure = |bar: &mut Bar, stop: &AtomicBool| io_cost::run(&plan, bar, stop);
    measure_alone(measure, |folder| show(folder, arguments.json))
}

/// Quick or not.
pub(crate) fn mode(quick: bool) -> Mode {
    if quick { Mode::Quick } else { Mode::Default }
}

/// Measures while nothing else does, under a progress bar, and shows the folder that comes of it: also after
/// Ctrl-C, when it has what was complete.
pub(crate) fn measure_alone<E: Into<Failure>>(
    measure: impl FnOnce(&mut Bar, &AtomicBool) -> Result<PathBuf, E>,
    show: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let _alone = Alone::claim()?;
    let stop = exit::stop_flag()?;
    let mut bar = Bar::new();
    let measured = measure(&mut bar, stop);
    bar.clear();
    show(&measured.map_err(Into::into)?)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted(
            "interrupted: only what was complete is shown".to_string(),
        ));
    }
    Ok(())
}

/// The last lines of every comparison: what is missing, what is wrong, and where the report is.
pub(crate) fn print_end(left_out: &[LeftOut], problems: &[String], stage: Stage, page: &Path) {
    for missing in left_out {
        print::line(format!(
            "left out: {}: {} ({})",
            missing.what, missing.why, missing.how
        ));
    }
    for problem in problems {
        print::line(format!("note: {problem}"));
    }
    if stage != Stage::Finished {
        print::line("note: this experiment did not go to its end");
    }
    print::line(format!("report: {}", page.display()));
}

/// Writes the report of a results folder of `taut bench io` and prints its table.
pub fn show(folder: &Path, json: bool) -> Result<(), Failure> {
    let page = io_cost::write_report(folder)?;
    if json {
        print::summary(folder)?;
        return Ok(());
    }
    let results = Results::load(folder).map_err(ReportError::from)?;
    let evaluation = Evaluation::of(&results);
    print::line(render_text_table(&evaluation.rows, terminal_width()));
    for row in &evaluation.rows {
        if let Some([predicted, measured]) = row.check_pps {
            print::line(format!(
                "{}: {} predicted with {} cycles of load, {} measured (published: 7.3 and 7.1 Mpkt/s)",
                row.label,
                quantity::rate(predicted),
                io_cost::CHECKED_LOAD,
                quantity::rate(measured)
            ));
        }
    }
    print::line(
        "published c_IO: DPDK about 100 cycles, PF_RING ZC close, netmap more, Linux about 900",
    );
    let head = &results.head;
    for error in head.burn_errors.iter().filter(|e| !e.is_within_bounds()) {
        print::line(format!(
            "note: a burn of {} cycles was off by {:+.1} cycles on average at batches of {}",
            error.cycles, error.mean_cycles, error.batch
        ));
    }
    print::line(format!(
        "hardware counters: {}",
        head.hardware_counters.in_words()
    ));
    print_end(&head.left_out, &results.problems, head.stage, &page);
    Ok(())
}

impl From<IoCostError> for Failure {
    fn from(e: IoCostError) -> Self {
        match e {
            IoCostError::Nothing(_) => Self::Missing(e.to_string()),
            IoCostError::Port(e) => e.into(),
            IoCostError::Results(e) => e.into(),
            IoCostError::Unknown { .. } | IoCostError::Affinity(_) => Self::Input(e.to_string()),
        }
    }
}
