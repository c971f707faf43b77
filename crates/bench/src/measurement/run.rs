//! Runs a measurement: sets the device up, connects the load generator, and measures one trial.

use super::observations::{Meanwhile, Watched, measured};
use super::summary::MeasuredDevice;
use crate::device::{DeviceUnderTest, Notes, RunError, Site};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;
use taut_host::Meter;
use taut_measure::LatencyHistogram;
use taut_port::PortCounters;
use taut_sys::{Clock, LoggedInterruptions, StampClock};
use taut_tap::{Inside, TrialTap};
use taut_traffic::{Flood, Flow, Instrument, Observed, Pacing, Summaries, Tally, Traffic, Trial};

/// The device, the traffic, and the cores and files of a measurement.
#[derive(Debug)]
pub struct Setup {
    device: DeviceUnderTest,
    traffic: Traffic,
    clock: Clock,
    program: PathBuf,
    generator_core: Option<usize>,
    device_core: usize,
    /// Timeout until the programs at the other ends of the ports are connected.
    patience: Duration,
    /// True if a wiretap must be able to observe the packets that the generator sends.
    tapped: bool,
    /// Log of the interruptions of a device that taut sets up, if the device writes a log.
    notes: Option<Notes>,
    /// File in which a device behind ports logs its interruptions; none unless the user named the file.
    device_log: Option<PathBuf>,
}

impl Setup {
    /// Selects cores, reads the clock, and creates the device's log. `core` is the generator's core, if one is
    /// requested. `device_log` is the file in which a `taut forward` behind ports logs its interruptions.
    ///
    /// # Errors
    /// Returns an error if the log cannot be created, or `device_log` is not a log.
    pub fn new(
        program: PathBuf,
        device: DeviceUnderTest,
        traffic: Traffic,
        core: Option<usize>,
        device_log: Option<PathBuf>,
    ) -> Result<Self, RunError> {
        let cores = taut_host::choose_cores().with_generator(core);
        if let Some(path) = &device_log {
            LoggedInterruptions::read(path)?;
        }
        let notes = device.notes()?;
        Ok(Self {
            // An existing device behind ports may run on any core, so the scheduler chooses the generator's core.
            generator_core: core.or(device.is_made().then_some(cores.generator)),
            device_core: cores.device,
            device,
            traffic,
            clock: Clock::calibrate(Duration::from_millis(50)),
            program,
            patience: Duration::from_secs(10),
            tapped: false,
            notes,
            device_log,
        })
    }

    /// Sets the timeout until the programs at the other ends of the ports are connected.
    #[must_use]
    pub fn patient_for(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets whether a wiretap must be able to observe the sent packets.
    #[must_use]
    pub fn tapped(mut self, tapped: bool) -> Self {
        self.tapped = tapped;
        self
    }

    /// Returns the device of the measurement.
    pub fn device(&self) -> &DeviceUnderTest {
        &self.device
    }

    /// Returns the traffic of the measurement.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the clock of all timestamps.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the timeout until the programs at the other ends of the ports are connected.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Sets the device up if needed, connects the load generator, and measures.
    fn measure<T: Send>(
        &self,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError> + Send,
    ) -> Result<T, RunError> {
        let site = Site {
            program: &self.program,
            generator_core: self.generator_core,
            device_core: self.device_core,
            clock: self.clock,
            tapped: self.tapped,
            interruptions: self.device_log(),
        };
        self.device
            .measure(&site, &self.traffic, self.patience, stop, measure)
    }

    /// Returns the file in which the device logs its interruptions, if it writes one.
    fn device_log(&self) -> Option<&Path> {
        let made = self.notes.as_ref().map(Notes::path);
        made.or(self.device_log.as_deref())
    }

    /// Returns the description and the version of the device, if taut set it up.
    pub fn made_device(&self) -> Option<MeasuredDevice> {
        match &self.device {
            DeviceUnderTest::Ports(_) => None,
            DeviceUnderTest::Made(device) => Some(MeasuredDevice {
                info: device.info(),
                found_here: device.found_here(),
            }),
        }
    }

    /// Returns the name of each of the generator's ports for readers.
    pub fn port_names(&self) -> Vec<String> {
        match &self.device {
            DeviceUnderTest::Ports(specs) => {
                specs.iter().map(|spec| spec.text().to_string()).collect()
            }
            DeviceUnderTest::Made(_) => ["first port", "second port"].map(String::from).into(),
        }
    }
}

/// Sends as many packets as the port accepts, and counts them.
///
/// # Errors
/// Returns an error if there is no connection, or the device dies.
pub fn measure_flood(setup: &Setup, flood: Flood, stop: &AtomicBool) -> Result<Flow, RunError> {
    setup.measure(stop, |instrument| {
        let mut flow = instrument.flood(flood, stop);
        flow.received_in_all += instrument.drain();
        Ok(flow)
    })
}

/// The request for a measurement.
#[derive(Debug)]
pub struct Measurement {
    /// The device, the traffic and the cores of the measurement.
    pub setup: Setup,
    /// The energy counter that is read during the measurement.
    pub meter: Meter,
    /// The method by which the generator paces packets.
    pub pacing: Pacing,
    /// The trial to run.
    pub trial: Trial,
    /// Duration of the warm-up, which brings caches, rings and peers into their steady state.
    pub warm_up: Duration,
    /// Interfaces that a wiretap observes; empty without a wiretap.
    pub tapped: Vec<String>,
    /// Latency budget of a packet; none for no limit.
    pub budget: Option<Duration>,
    /// Seed for the arrivals of random patterns; drawn at random if none.
    pub seed: Option<u64>,
}

/// The result of a measurement, by stream.
pub struct Outcome {
    /// The packet counts of each stream.
    pub tallies: Vec<Tally>,
    /// The data that were recorded about each stream's packets: latencies and inter-departure times.
    pub records: Vec<Observed>,
    /// Counters of the generator's ports.
    pub ports: Vec<PortCounters>,
    /// Events on the machine during the measurement, such as interruptions.
    pub meanwhile: Meanwhile,
    /// Bound on the error of the receiving port's own timestamps, ns; none if it has no timestamps.
    pub stamp_error_ns: Option<f64>,
    /// Seed for the arrivals of random patterns.
    pub seed: u64,
    /// True if timestamps were requested but are unusable, because their clock cannot be related to the clock of this
    /// machine.
    pub unknown_stamps: bool,
    /// Latency of the device alone, for the same packets, as a wiretap observed it; none without a wiretap.
    pub inside: Option<(Inside, LatencyHistogram)>,
}

impl Measurement {
    /// Runs the measurement. A message on `started` reports that the trial begins; the channel is closed when the trial
    /// ends, before the device is removed.
    ///
    /// # Errors
    /// Returns an error if there is no connection, or the device dies.
    pub fn run(
        &self,
        stop: &AtomicBool,
        mut records: Vec<Observed>,
        started: mpsc::Sender<()>,
    ) -> Result<Outcome, RunError> {
        let packets = self.trial.rate_pps * self.trial.duration.as_secs_f64();
        let setup = &self.setup;
        setup.measure(stop, |instrument| {
            instrument.set_pacing(self.pacing);
            if let Some(seed) = self.seed {
                instrument.set_seed(seed);
            }
            if !self.warm_up.is_zero() {
                let warm_up = Trial {
                    rate_pps: self.trial.rate_pps,
                    duration: self.warm_up,
                };
                instrument.run(warm_up, &mut Summaries::new(&setup.clock), stop);
            }
            let tap = (!self.tapped.is_empty())
                .then(|| TrialTap::start(&self.tapped, packets))
                .transpose()?;
            let watched = Watched {
                meter: &self.meter,
                device_core: setup.device.is_made().then_some(setup.device_core),
                generator_core: setup.generator_core,
                device_log: setup.device_log(),
                clock: &setup.clock,
            };
            let trial = |instrument: &mut Instrument| {
                let _ = started.send(());
                let tallies = instrument.run_streams(self.trial, &mut records, stop);
                // The thread that watches the measurement waits until this channel is closed.
                drop(started);
                tallies
            };
            let (tallies, meanwhile) = measured(watched, instrument, trial);
            Ok(Outcome {
                inside: tap.map(TrialTap::finish),
                tallies,
                records,
                ports: instrument.counters(),
                meanwhile,
                stamp_error_ns: instrument.stamp_error_ns(),
                seed: instrument.seed(),
                unknown_stamps: instrument.stamp_clock() == Some(StampClock::Unknown),
            })
        })
    }
}
