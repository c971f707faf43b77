//! `taut bench comparison`: one measurement of one device, with the method of a repetition of `taut demo`.

use crate::exit::{self, Failure};
use crate::terminal::measure_alone;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::fresh_folder;
use taut_bench::device::Device;
use taut_comparison::{ComparisonError, Plan};
use taut_results::{Mode, Settings};
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench comparison --device memif-idle
  taut bench comparison --device 'memif,flush=full(32, 100us)' --rate 500k --seconds 10
  taut bench comparison --device veth-bridge --quick --json

64-byte frames at a constant rate, every packet measured, then a sweep up to saturation: what each device gets in each repetition of
taut demo. Ends with a table, report.html and the figures as SVG.")]
pub struct Arguments {
    /// Device: an id of `taut demo --list-devices`, also with options as in `taut generate --device`
    #[arg(long, value_name = "ID")]
    pub device: String,
    #[command(flatten)]
    pub load: Load,
    /// Results folder, which must not hold an experiment yet (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print summary.json instead of the table
    #[arg(long)]
    json: bool,
}

/// The load of a device, as in `taut demo`.
#[derive(clap::Args)]
pub struct Load {
    /// Measure for a short time only (`taut demo`: under a minute)
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// A minute at the constant rate and trials of 5 s: `taut demo` makes ten repetitions and takes hours
    #[arg(long)]
    full: bool,
    /// Constant rate, as in `taut generate` (default: 100k)
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Seconds at the constant rate, in each repetition (default: 0.4; --quick 0.3; --full 60)
    #[arg(long, value_name = "S", value_parser = measured_seconds)]
    pub seconds: Option<f64>,
}

/// Parses a duration of 0.01 to 3600 seconds. A shorter repetition might send no packet and thus have no latency.
fn measured_seconds(text: &str) -> Result<f64, String> {
    crate::terminal::quantity::seconds(text)
        .ok()
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .ok_or_else(|| "expected 0.01 to 3600 seconds, such as 10 or 0.5".to_string())
}

impl Load {
    /// Returns the settings of one repetition of the comparison.
    ///
    /// # Errors
    /// The device cannot be measured with these options.
    pub fn settings(&self, seed: u64) -> Result<Settings, Failure> {
        let mode = match (self.quick, self.full) {
            (true, _) => Mode::Quick,
            (_, true) => Mode::Full,
            _ => Mode::Default,
        };
        Ok(taut_comparison::settings(
            mode,
            self.rate,
            self.seconds,
            seed,
        )?)
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let fresh = || fresh_folder(Path::new("results"), "comparison");
    let plan = Plan {
        settings: arguments.load.settings(0)?,
        device: Device::named(&arguments.device)?,
        folder: arguments.out.clone().unwrap_or_else(fresh),
        program: exit::own_program()?,
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
    };
    measure_alone(arguments.json, |_, stop| taut_comparison::run(&plan, stop))
}

impl From<ComparisonError> for Failure {
    fn from(e: ComparisonError) -> Self {
        match e {
            ComparisonError::Device { .. } => Self::Missing(e.to_string()),
            ComparisonError::Results(e) => e.into(),
            ComparisonError::Asked(_) | ComparisonError::Affinity(_) => Self::Input(e.to_string()),
        }
    }
}
