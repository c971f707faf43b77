//! The plant's side of a control loop: a simulated plant that sends reports and applies commands in real time.

use super::{Datagrams, LOOK_NS, complain, follow_notices, next};
use crate::messages::{Messages, Transport, now_ns, open};
use crate::probe::Over;
use rustix::thread::{clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{ClockId, Timespec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_control::plant::Plant;
use taut_control::protocol::{MOST_BYTES, ProtocolError};
use taut_control::station::{Receipt, Settings, Standing};
use taut_control::{Format, Message, Record, Report, Shape, Stage, Station};
use taut_transport::Demand;

/// Time from the start to the first reading, ns, so that the first reading is not late.
const LEAD_NS: u64 = 5_000_000;
/// Number of periods without a command after which the controller counts as exited. The plant applies inputs of 0 long
/// before that.
const SILENT_PERIODS: u64 = 64;

/// Reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All sampling periods are over.
    Periods,
    /// The plant fell over.
    Fallen,
    /// The controller sent a farewell, or sent nothing for too long.
    Gone,
    /// No command arrived during the run.
    NobodyAnswered,
    /// The caller stopped the run.
    Stopped,
}

/// The result of a run. Timestamps are ns of this machine's monotonic clock.
#[derive(Debug)]
pub struct PlantRun {
    /// Records of the sampling periods since the first command.
    pub records: Vec<Record>,
    /// Time of the plant's fall, ns; none if the plant did not fall.
    pub fallen_ns: Option<u64>,
    /// Time at which a plant that begins down has erected itself, ns; none if it has not, or began upright.
    pub erected_ns: Option<u64>,
    /// Reason why the run ended.
    pub end: End,
    /// Counters of the messages at the plant's socket.
    pub datagrams: Datagrams,
    /// The error of the first datagram that was not a valid message.
    pub complaint: Option<ProtocolError>,
    /// Number of sampling periods without a reading, because this process was delayed.
    pub missed: u64,
}

/// The plant's endpoint of a control loop: its socket, and the settings for notices of the transport.
#[derive(Debug)]
pub struct PlantSide {
    messages: Box<dyn Messages>,
    controller: SocketAddr,
    /// True if the transport does nothing between the caller's calls.
    is_plain: bool,
    /// The target delays that notices of the transport choose from; `None` if the target delay does not change.
    demand: Option<Demand>,
    usual_ns: u64,
}

impl PlantSide {
    /// Opens a socket at the address `bind`, which receives commands and sends reports to the controller.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub fn open(bind: SocketAddr, controller: SocketAddr, over: &Over) -> io::Result<Self> {
        let messages = open(over.transport, bind, &over.deadline)?;
        Ok(Self {
            messages,
            controller,
            is_plain: over.transport == Transport::Udp,
            demand: None,
            usual_ns: over.deadline.settings.target_ns,
        })
    }

    /// Sets the target delay of reports, ns, while the transport reports that the usual one cannot be met; `None` if
    /// the target delay does not change.
    #[must_use]
    pub fn with_late_target(mut self, late_ns: Option<u64>) -> Self {
        self.demand = late_ns.map(|late_ns| Demand::new(self.usual_ns, late_ns));
        self
    }

    /// Returns the address at which the plant receives commands.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.messages.address()
    }

    /// Runs a plant until its periods are over, the plant falls, or the controller exits; then applies inputs of 0.
    /// Readings are due at absolute times, so that a late reading does not delay later readings. At each reading the
    /// plant's state is copied to `seen` for other threads, unless another thread holds the lock of `seen`.
    pub fn run(
        &mut self,
        plant: Box<dyn Plant>,
        format: Format,
        settings: Settings,
        patience: Duration,
        stop: &AtomicBool,
        seen: &Mutex<Standing>,
    ) -> PlantRun {
        // A smaller timer slack avoids late wakeups; without it they are only less precise.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let period_ns = plant.model().period_ns();
        let start_ns = now_ns() + LEAD_NS;
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 4);
        let station = Station::new(plant, settings, start_ns);
        let mut running = Running {
            format,
            shape: station.shape(),
            station,
            period_ns,
            datagrams: Datagrams::default(),
            complaint: None,
            last_ns: start_ns,
            farewell: false,
        };
        let mut bytes = [0; MOST_BYTES + 1];
        let mut report_bytes = [0; MOST_BYTES];
        let end = loop {
            self.receive(&mut running, &mut bytes);
            follow_notices(&mut *self.messages, self.demand.as_mut(), |_| ());
            let now = now_ns();
            if let Some(report) = running.station.step(now) {
                self.send(&mut running, report, &mut report_bytes);
                show(seen, &running.station);
            }
            if let Some(end) = running.end(now, patience_ns, stop) {
                break end;
            }
            self.sleep(&running.station);
        };
        self.messages.leave();
        running.station.stop(now_ns());
        show(seen, &running.station);
        PlantRun {
            fallen_ns: running.station.fallen_ns(),
            erected_ns: running.station.erected_ns(),
            missed: running.station.missed(),
            records: running.station.into_records(),
            end,
            datagrams: running.datagrams,
            complaint: running.complaint,
        }
    }

    /// Processes the messages that have arrived.
    fn receive(&mut self, running: &mut Running, bytes: &mut [u8; MOST_BYTES + 1]) {
        while let Some((length, from)) = next(&mut *self.messages, bytes) {
            let received_ns = now_ns();
            if from.ip() != self.controller.ip() {
                running.datagrams.strangers += 1;
                continue;
            }
            running.take(&bytes[..length], received_ns);
        }
    }

    /// Sends a report to the controller.
    fn send(
        &mut self,
        running: &mut Running,
        mut report: Report,
        report_bytes: &mut [u8; MOST_BYTES],
    ) {
        let sent_ns = now_ns();
        report.stamps.set(Stage::ReportSent, sent_ns);
        running.station.sent(sent_ns);
        let (format, shape) = (running.format, running.shape);
        let length = format.emit_report(&report, shape, report_bytes);
        match self
            .messages
            .send_to(&report_bytes[..length], self.controller)
        {
            Ok(()) => running.datagrams.sent += 1,
            Err(_) => running.datagrams.not_sent += 1,
        }
    }

    /// Sleeps until an action is due or a message arrives.
    fn sleep(&mut self, station: &Station) {
        let (now, due_ns) = (now_ns(), station.due_ns());
        let left_ns = due_ns.saturating_sub(now);
        if left_ns == 0 {
            return;
        }
        if self.is_plain && station.awaits_nothing() && left_ns < LOOK_NS {
            let until = Timespec {
                tv_sec: (due_ns / 1_000_000_000) as i64,
                tv_nsec: (due_ns % 1_000_000_000) as i64,
            };
            // If a signal ends the sleep early, the loop calls this function again.
            let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
            return;
        }
        self.messages
            .wait(Duration::from_nanos(left_ns.min(LOOK_NS)));
    }
}

/// The state of a run.
struct Running {
    station: Station,
    format: Format,
    shape: Shape,
    period_ns: u64,
    datagrams: Datagrams,
    complaint: Option<ProtocolError>,
    /// Time at which the last accepted command arrived, ns; before the first, the time of the first reading.
    last_ns: u64,
    /// True if the controller has sent a farewell.
    farewell: bool,
}

impl Running {
    /// Processes a message of the controller.
    fn take(&mut self, bytes: &[u8], received_ns: u64) {
        match self.format.parse(bytes, self.shape, self.period_ns) {
            Ok(Message::Command(command, stamps)) => {
                match self.station.receive(received_ns, &command, &stamps) {
                    Receipt::Taken => {
                        self.datagrams.taken += 1;
                        self.last_ns = received_ns;
                    }
                    Receipt::TooLate => self.datagrams.too_late += 1,
                    Receipt::NotAsked => self.datagrams.not_asked += 1,
                }
            }
            Ok(Message::Farewell) => self.farewell = true,
            Ok(Message::Report(_)) => self.datagrams.not_asked += 1,
            Err(error) => complain(&mut self.datagrams, &mut self.complaint, error),
        }
    }

    /// Returns the reason why the run ends now; `None` if it continues.
    fn end(&self, now: u64, patience_ns: u64, stop: &AtomicBool) -> Option<End> {
        let silent_ns = now.saturating_sub(self.last_ns);
        let station = &self.station;
        if station.is_over() {
            let fell = station.fallen_ns().is_some();
            Some(if fell { End::Fallen } else { End::Periods })
        } else if stop.load(Ordering::Relaxed) {
            Some(End::Stopped)
        } else if !station.is_controlled() {
            (silent_ns > patience_ns).then_some(End::NobodyAnswered)
        } else {
            (self.farewell || silent_ns > SILENT_PERIODS * self.period_ns).then_some(End::Gone)
        }
    }
}

/// Copies the plant's state to `seen`, without waiting for readers.
fn show(seen: &Mutex<Standing>, station: &Station) {
    if let Ok(mut seen) = seen.try_lock() {
        *seen = station.standing();
    }
}
