//! `taut tune ablate`: the effect of each setting on tail latency, longest interruption and energy.

use super::ProfileName;
use super::guard::Guard;
use crate::bench::InTurns;
use crate::exit::Failure;
use taut_bench::device::Device;
use taut_benchmarks::ablation::Ablation;
use taut_host::tune::{self, Root, TuneError};
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo taut tune ablate                                  all settings that can be switched here: about an hour
  sudo taut tune ablate --only governor --only irq-affinity --only swappiness
  sudo taut tune ablate --quick --only swappiness --out results/try

Each repetition measures a forwarder with the machine as found, with each setting on alone, and in the runs of a screening
design, in random order. Settings that cannot be switched here are named with the reason. Every change is in the journal of
taut tune apply, and is reverted after its trial, on Ctrl-C, and when this process is killed.")]
pub struct Arguments {
    /// CPUs to be quiet, such as 1 or 2-3,6 (default: the CPU of the forwarder)
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Profile: the values that count as on
    #[arg(long, value_enum, default_value = "latency")]
    profile: ProfileName,
    /// Device that is measured: an id of `taut demo --list-devices`
    #[arg(long, value_name = "ID", default_value = "memif-idle")]
    device: String,
    /// Offered rate: packets/s (100k) or bits/s (1Gbit/s); p99.999 needs a million packets in a trial
    #[arg(long, default_value = "200k")]
    rate: Rate,
    /// Number of repetitions, 1 to 1000 (default: as many as a statement about a single setting needs; 2 with --quick)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    #[command(flatten)]
    common: InTurns,
}

/// Minimum length of a trial, s.
pub(super) const LEAST_TRIAL: f64 = 0.05;
/// Size of the frames, check sequence included, bytes.
pub(super) const FRAME_BYTES: f64 = 64.0;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let root = Root::machine();
    let cpus = arguments.cpus.as_deref();
    let cpus = cpus.map(|list| super::cpus_of(&root, list)).transpose()?;
    let device = Device::named(&arguments.device)?;
    let rate_pps = arguments.rate.packets_per_second(FRAME_BYTES);
    let rate_pps = rate_pps.map_err(|e| Failure::Input(e.to_string()))?;
    if !taut_host::permissions::is_root() {
        return Err(TuneError::NotRoot("ablate".to_owned()).into());
    }
    if tune::is_in_force(&root)? {
        return Err(Failure::Missing(
            "settings of taut tune apply are in force, and nothing can be compared with them; run: taut tune revert"
                .to_owned(),
        ));
    }
    let ablation = Ablation::new(
        device,
        rate_pps,
        arguments.profile.into(),
        cpus,
        arguments.repetitions,
    );
    let guard = Guard::start()?;
    let shown = arguments.common.run(ablation, LEAST_TRIAL);
    guard.end();
    shown
}
