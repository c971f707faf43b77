//! The controller's side of a control loop: replies to each report immediately with a command.

use super::{Datagrams, LOOK_NS, complain, follow_notices, next};
use crate::messages::{Messages, now_ns, open};
use crate::probe::Over;
use rustix::thread::set_current_timer_slack;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_control::controller::{LatePlan, Settings, Switch};
use taut_control::protocol::{MOST_BYTES, ProtocolError};
use taut_control::{Controller, Format, Message, Model, ModelError, Report, Shape, Stage};
use taut_transport::{Demand, Notice};

/// Idle time after which a sequence number that starts again counts as a new run of the plant, ns.
const NEW_RUN_NS: u64 = 500_000_000;

/// Times at which a report arrived and the command for it was sent, ns of this machine's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Sequence number of the report.
    pub sequence: u64,
    /// Time at which the report arrived (point `S,SRX` of the control protocol).
    pub received_ns: u64,
    /// Time at which the command was sent (point `A,STX` of the control protocol).
    pub sent_ns: u64,
}

/// The result of a run.
#[derive(Debug)]
pub struct ControllerRun {
    /// The reports of the last plant that got a command as reply.
    pub heard: Vec<Heard>,
    /// Counters of the messages at the controller's socket.
    pub datagrams: Datagrams,
    /// The error of the first datagram that was not a valid message.
    pub complaint: Option<ProtocolError>,
}

/// The controller's endpoint of a control loop: its socket, and the settings for notices of the transport.
#[derive(Debug)]
pub struct ControllerSide {
    messages: Box<dyn Messages>,
    /// Delay that the controller assumes while the transport cannot meet its target delay, ns: twice the target delay.
    worst_ns: u64,
    usual_ns: u64,
    late: Option<LatePlan>,
}

impl ControllerSide {
    /// Opens a socket that receives reports at `bind`.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub fn open(bind: SocketAddr, over: &Over) -> io::Result<Self> {
        Ok(Self {
            messages: open(over.transport, bind, &over.deadline)?,
            worst_ns: 2 * over.deadline.settings.target_ns,
            usual_ns: over.deadline.settings.target_ns,
            late: None,
        })
    }

    /// Sets the target delay and the strategy to use while the transport reports that its usual target delay cannot be
    /// met. With `None`, the controller then only assumes a delay of twice the target delay.
    #[must_use]
    pub fn with_late(mut self, late: Option<LatePlan>) -> Self {
        self.late = late;
        self
    }

    /// Returns the address at which the controller receives reports.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.messages.address()
    }

    /// Replies with commands to the first plant that sends reports, until `stop` is set; then sends a farewell to that
    /// plant. Commands go to `answer_port` at the plant's address, or else to the source of the reports. A plant that
    /// restarts after an idle time counts as a new plant.
    ///
    /// # Errors
    /// The controller does not support this plant.
    pub fn run(
        &mut self,
        model: &Model,
        settings: Settings,
        format: Format,
        answer_port: Option<u16>,
        stop: &AtomicBool,
    ) -> Result<ControllerRun, ModelError> {
        // A smaller timer slack avoids late wakeups; without it they are only less precise.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut exchange = Exchange::new(model, settings, format)?;
        let mut is_out_of_reach = false;
        let mut demand = self.late.map(|it| Demand::new(self.usual_ns, it.target_ns));
        let mut switch = self.late.map(|late| Switch::new(&settings, late));
        let mut bytes = [0; MOST_BYTES + 1];
        while !stop.load(Ordering::Relaxed) {
            follow_notices(
                &mut *self.messages,
                demand.as_mut(),
                |notice| match notice {
                    Notice::OutOfReach(_) => is_out_of_reach = true,
                    Notice::InReach(_) => is_out_of_reach = false,
                    _ => {}
                },
            );
            let Some((length, from)) = next(&mut *self.messages, &mut bytes) else {
                self.messages.wait(Duration::from_nanos(LOOK_NS));
                continue;
            };
            let received_ns = now_ns();
            let message = format.parse(&bytes[..length], exchange.shape, model.period_ns());
            let Some(report) = exchange.report_of(message) else {
                continue;
            };
            let to = SocketAddr::new(from.ip(), answer_port.unwrap_or(from.port()));
            if !exchange.accepts(report.sequence, received_ns, to) {
                continue;
            }
            if let (Some(demand), Some(switch)) = (&demand, &mut switch) {
                switch.follow(&mut exchange.controller, demand.is_late());
            } else if is_out_of_reach {
                exchange.controller.reckon_with(self.worst_ns);
            }
            exchange.reply(&mut *self.messages, &report, received_ns, to);
        }
        exchange.say_farewell(&mut *self.messages);
        self.messages.leave();
        Ok(exchange.run)
    }
}

/// The exchange of messages with the plant that is controlled.
struct Exchange {
    format: Format,
    shape: Shape,
    /// The controller before its first report.
    fresh: Controller,
    controller: Controller,
    /// Address to which commands are sent; `None` before the first report.
    plant: Option<SocketAddr>,
    /// Sequence number of the last accepted report, and the time at which it arrived, ns.
    last: (u64, u64),
    command_bytes: [u8; MOST_BYTES],
    run: ControllerRun,
}

impl Exchange {
    fn new(model: &Model, settings: Settings, format: Format) -> Result<Self, ModelError> {
        let shape = Shape {
            sensors: model.parts().sensors.len(),
            inputs: model.inputs(),
        };
        let fresh = Controller::new(model, settings)?;
        Ok(Self {
            format,
            shape,
            controller: fresh.clone(),
            fresh,
            plant: None,
            last: (0, 0),
            command_bytes: [0; MOST_BYTES],
            run: ControllerRun {
                heard: Vec::new(),
                datagrams: Datagrams::default(),
                complaint: None,
            },
        })
    }

    /// Returns the report in a received message. Counts any other message and any error, and returns none.
    fn report_of(&mut self, message: Result<Message, ProtocolError>) -> Option<Report> {
        match message {
            Ok(Message::Report(report)) => Some(report),
            Ok(_) => {
                self.run.datagrams.not_asked += 1;
                None
            }
            Err(error) => {
                complain(&mut self.run.datagrams, &mut self.run.complaint, error);
                None
            }
        }
    }

    /// Returns true if a report gets a reply, which is sent to the address `to`. Reports get a reply if they are newer
    /// than the last report and from the same plant, or if the plant has restarted.
    fn accepts(&mut self, report_sequence: u64, received_ns: u64, to: SocketAddr) -> bool {
        let (sequence, heard_ns) = self.last;
        let silent_ns = received_ns.saturating_sub(heard_ns);
        if report_sequence <= sequence && silent_ns > NEW_RUN_NS {
            self.controller = self.fresh.clone();
            self.plant = None;
            self.run.heard.clear();
        } else if report_sequence <= sequence {
            self.run.datagrams.not_asked += 1;
            return false;
        }
        if *self.plant.get_or_insert(to) != to {
            self.run.datagrams.strangers += 1;
            return false;
        }
        self.last = (report_sequence, received_ns);
        self.run.datagrams.taken += 1;
        true
    }

    /// Sends the controller's command for a report, if there is one.
    fn reply(
        &mut self,
        messages: &mut dyn Messages,
        report: &Report,
        received_ns: u64,
        to: SocketAddr,
    ) {
        let Some(mut command) = self.controller.command(report) else {
            return;
        };
        let sent_ns = now_ns();
        command.time_ns = sent_ns;
        let mut stamps = report.stamps;
        stamps.set(Stage::ReportReceived, received_ns);
        stamps.set(Stage::CommandSent, sent_ns);
        let (format, shape, bytes) = (self.format, self.shape, &mut self.command_bytes);
        let length = format.emit_command(&command, &stamps, shape, bytes);
        match messages.send_to(&bytes[..length], to) {
            Ok(()) => self.run.datagrams.sent += 1,
            Err(_) => self.run.datagrams.not_sent += 1,
        }
        self.run.heard.push(Heard {
            sequence: report.sequence,
            received_ns,
            sent_ns,
        });
    }

    /// Sends a farewell to the plant, if the format has one.
    fn say_farewell(&mut self, messages: &mut dyn Messages) {
        let bytes = &mut self.command_bytes;
        let length = self.format.emit_farewell(self.shape, bytes);
        if let Some(to) = self.plant
            && length > 0
        {
            let _ = messages.send_to(&bytes[..length], to);
        }
    }
}
