//! What is looked at before and after every measured trial.

use std::path::Path;
use std::time::SystemTime;
use taut_host::energy::Reading;
use taut_host::{EnergyUse, Meter, Snapshot, SystemActivity};
use taut_results::MeasuredInterruptions;
use taut_sys::{Clock, Work};
use taut_traffic::Instrument;

/// What happened while a trial ran.
#[derive(Debug)]
pub struct Meanwhile {
    /// Time at which the trial began.
    pub begun: SystemTime,
    /// Activity of the machine on the cores that are known to be used.
    pub activity: SystemActivity,
    /// Energy and processor time.
    pub energy: EnergyUse,
    /// When the cores of generator and device were taken away; why that is not known.
    pub interruptions: Result<MeasuredInterruptions, taut_sys::Error>,
    /// What the device has done with packets; none of one that does not note it.
    pub work: Option<Work>,
}

/// Cores and counters that [`measured`] looks at.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    /// Counter of joules.
    pub meter: &'a Meter,
    /// Core of a device that was made for the measurement.
    pub device_core: Option<usize>,
    /// Core of the generator, if it is known.
    pub generator_core: Option<usize>,
    /// File in which the device notes when its core was taken away.
    pub device_log: Option<&'a Path>,
    /// The clock of all stamps.
    pub clock: &'a Clock,
}

/// Runs a trial and returns what came of it, with what happened meanwhile.
pub fn measured<T>(
    watched: Watched<'_>,
    instrument: &mut Instrument,
    trial: impl FnOnce(&mut Instrument) -> T,
) -> (T, Meanwhile) {
    let cores: Vec<usize> = [watched.generator_core, watched.device_core]
        .into_iter()
        .flatten()
        .collect();
    let work = || Work::read(watched.device_log?).ok();
    let work_before = work();
    let energy_before = Reading::take(watched.meter, watched.device_core);
    let (before, begun) = (Snapshot::take(), SystemTime::now());
    let outcome = trial(instrument);
    let energy_after = Reading::take(watched.meter, watched.device_core);
    let activity = Snapshot::difference(&before, &Snapshot::take(), &cores);
    let interruptions = MeasuredInterruptions::of(
        instrument.interruptions(),
        watched.device_log,
        watched.clock,
    );
    let meanwhile = Meanwhile {
        begun,
        activity,
        energy: energy_after.since(&energy_before, watched.meter),
        interruptions,
        work: work().and_then(|now| Some(now.since(work_before?))),
    };
    (outcome, meanwhile)
}
