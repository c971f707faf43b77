//! How a measurement runs: the device is set up, an instrument connected with it, and one trial measured.

use super::measured::{Meanwhile, Watched, measured};
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

/// What is connected with what, and where.
#[derive(Debug)]
pub struct Setup {
    device: DeviceUnderTest,
    traffic: Traffic,
    clock: Clock,
    program: PathBuf,
    generator_core: Option<usize>,
    device_core: usize,
    /// Time to wait for the other side of ports.
    patience: Duration,
    /// Whether a tap is to see what the generator sends.
    tapped: bool,
    /// Notes of a device that is made, if it makes some.
    notes: Option<Notes>,
    /// Notes of one behind ports.
    device_log: Option<PathBuf>,
}

impl Setup {
    /// Chooses cores, reads the clock, and makes room for the device's notes. `core` is the generator's, if one is asked for;
    /// `device_log` is where a `taut forward` behind ports notes its interruptions.
    ///
    /// # Errors
    /// When there is no room for notes, or `device_log` is none.
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
            // With ports the other side may be on any core, so the scheduler knows better.
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

    /// Sets how long to wait for the other side of ports.
    #[must_use]
    pub fn patient_for(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends so that a tap can see what is sent.
    #[must_use]
    pub fn tapped(mut self, tapped: bool) -> Self {
        self.tapped = tapped;
        self
    }

    /// Returns the device.
    pub fn device(&self) -> &DeviceUnderTest {
        &self.device
    }

    /// Returns the traffic.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the clock of all stamps.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns how long to wait for the other side of ports.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Connects an instrument with the device, which is set up for it if need be, and measures.
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

    /// Returns the file in which the device notes its interruptions, if it does.
    fn device_log(&self) -> Option<&Path> {
        let made = self.notes.as_ref().map(Notes::path);
        made.or(self.device_log.as_deref())
    }

    /// Returns what the device is, if it was made.
    pub fn made_device(&self) -> Option<MeasuredDevice> {
        match &self.device {
            DeviceUnderTest::Ports(_) => None,
            DeviceUnderTest::Made(device) => Some(MeasuredDevice {
                info: device.info(),
                found_here: device.found_here(),
            }),
        }
    }

    /// Returns the name of each of the generator's ports, for people.
    pub fn port_names(&self) -> Vec<String> {
        match &self.device {
            DeviceUnderTest::Ports(specs) => {
                specs.iter().map(|spec| spec.text().to_string()).collect()
            }
            DeviceUnderTest::Made(_) => ["first port", "second port"].map(String::from).into(),
        }
    }
}

/// Sends as many packets as the port takes, and counts them.
///
/// # Errors
/// When there is no connection, or the device dies.
pub fn measure_flood(setup: &Setup, flood: Flood, stop: &AtomicBool) -> Result<Flow, RunError> {
    setup.measure(stop, |instrument| {
        let mut flow = instrument.flood(flood, stop);
        flow.received_in_all += instrument.drain();
        Ok(flow)
    })
}

/// What a generator's thread is to do.
#[derive(Debug)]
pub struct Measurement {
    /// What is connected with what.
    pub setup: Setup,
    /// Counter of joules.
    pub meter: Meter,
    /// What holds the gaps.
    pub pacing: Pacing,
    /// The trial.
    pub trial: Trial,
    /// Time of sending before the trial, so that caches, rings and peers are as they will stay.
    pub warm_up: Duration,
    /// Interfaces that a tap watches; none without one.
    pub tapped: Vec<String>,
    /// Time that a packet may take; none for any.
    pub budget: Option<Duration>,
    /// Seed of the arrivals of random patterns; drawn where none is given.
    pub seed: Option<u64>,
}

/// What a measurement found, by stream.
pub struct Outcome {
    /// Counts of each stream.
    pub tallies: Vec<Tally>,
    /// What was kept of each stream's packets.
    pub records: Vec<Observed>,
    /// Counters of the generator's ports.
    pub ports: Vec<PortCounters>,
    /// What happened while it ran.
    pub meanwhile: Meanwhile,
    /// How far the receiving port's own stamps may be off, ns; none where it has none.
    pub stamp_error_ns: Option<f64>,
    /// Seed of the arrivals of random patterns.
    pub seed: u64,
    /// Whether stamps were asked for that are of a clock of the device's own.
    pub unknown_stamps: bool,
    /// What a tap saw of the same packets.
    pub inside: Option<(Inside, LatencyHistogram)>,
}

impl Measurement {
    /// Runs it. Says through `started` that the trial begins; the channel closes when the trial ends, and not only when the
    /// device is taken down.
    ///
    /// # Errors
    /// When there is no connection, or the device dies.
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
                // The watching side waits for this.
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
