//! The observations before and after every measured trial.

use std::path::Path;
use std::time::SystemTime;
use taut_host::energy::Reading;
use taut_host::{EnergyUse, Meter, Snapshot, SystemActivity};
use taut_results::MeasuredInterruptions;
use taut_sys::{Clock, Work};
use taut_traffic::Instrument;

/// The observations of the machine during a trial: activity, energy and interruptions.
#[derive(Debug)]
pub struct Meanwhile {
    /// Time at which the trial began.
    pub begun: SystemTime,
    /// Activity of the machine, with details of the cores of generator and device if these are known.
    pub activity: SystemActivity,
    /// Energy and processor time used during the trial.
    pub energy: EnergyUse,
    /// Interruptions of the cores of generator and device, or the error in reading them.
    pub interruptions: Result<MeasuredInterruptions, taut_sys::Error>,
    /// Statistics of the work of the device's worker; none for a device that does not log it.
    pub work: Option<Work>,
}

/// The cores and counters that [`measured`] observes.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    /// The energy counter that is read during the measurement.
    pub meter: &'a Meter,
    /// Core of a device that taut set up for the measurement; none for any other device.
    pub device_core: Option<usize>,
    /// Core of the generator, if it is known.
    pub generator_core: Option<usize>,
    /// File in which the device logs the interruptions of its core; none for a device without a log.
    pub device_log: Option<&'a Path>,
    /// The clock of all timestamps.
    pub clock: &'a Clock,
}

/// Runs a trial and returns its result, with the observations of the machine during the trial.
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
