//! The controller's side of a control loop: replies to each report immediately with a command.

use super::{Datagrams, LOOK_NS, complain, next};
use crate::messages::{Messages, now_ns, open};
use crate::probe::Over;
use rustix::thread::set_current_timer_slack;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_control::controller::Settings;
use taut_control::protocol::{MOST_BYTES, ProtocolError};
use taut_control::{Controller, Format, Message, Model, ModelError, Shape, Stage};
use taut_transport::Notice;

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
    /// Counters of the socket.
    pub datagrams: Datagrams,
    /// The error of the first datagram that was not a valid message.
    pub complaint: Option<ProtocolError>,
}

/// The controller's socket.
#[derive(Debug)]
pub struct ControllerSide {
    messages: Box<dyn Messages>,
    /// Delay that the controller assumes while the transport cannot meet its target delay, ns: twice the target delay.
    worst_ns: u64,
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
        })
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
        let shape = Shape {
            sensors: model.parts().sensors.len(),
            inputs: model.inputs(),
        };
        let fresh = Controller::new(model, settings)?;
        let mut controller = fresh.clone();
        let mut plant: Option<SocketAddr> = None;
        let mut last = (0, 0);
        let mut run = ControllerRun {
            heard: Vec::new(),
            datagrams: Datagrams::default(),
            complaint: None,
        };
        let datagrams = &mut run.datagrams;
        let mut is_out_of_reach = false;
        let mut bytes = [0; MOST_BYTES + 1];
        let mut command_bytes = [0; MOST_BYTES];
        while !stop.load(Ordering::Relaxed) {
            while let Some(told) = self.messages.told() {
                match told.notice {
                    Notice::OutOfReach(_) => is_out_of_reach = true,
                    Notice::InReach(_) => is_out_of_reach = false,
                    _ => {}
                }
            }
            let Some((length, from)) = next(&mut *self.messages, &mut bytes) else {
                self.messages.wait(Duration::from_nanos(LOOK_NS));
                continue;
            };
            let received_ns = now_ns();
            let report = match format.parse(&bytes[..length], shape, model.period_ns()) {
                Ok(Message::Report(report)) => report,
                Ok(_) => {
                    datagrams.not_asked += 1;
                    continue;
                }
                Err(error) => {
                    complain(datagrams, &mut run.complaint, error);
                    continue;
                }
            };
            let (sequence, heard_ns) = last;
            let silent_ns = received_ns.saturating_sub(heard_ns);
            if report.sequence <= sequence && silent_ns > NEW_RUN_NS {
                controller = fresh.clone();
                plant = None;
                run.heard.clear();
            } else if report.sequence <= sequence {
                datagrams.not_asked += 1;
                continue;
            }
            let to = SocketAddr::new(from.ip(), answer_port.unwrap_or(from.port()));
            if *plant.get_or_insert(to) != to {
                datagrams.strangers += 1;
                continue;
            }
            last = (report.sequence, received_ns);
            datagrams.taken += 1;
            if is_out_of_reach {
                controller.reckon_with(self.worst_ns);
            }
            let Some(mut command) = controller.command(&report) else {
                continue;
            };
            let sent_ns = now_ns();
            command.time_ns = sent_ns;
            let mut stamps = report.stamps;
            stamps.set(Stage::ReportReceived, received_ns);
            stamps.set(Stage::CommandSent, sent_ns);
            let length = format.emit_command(&command, &stamps, shape, &mut command_bytes);
            match self.messages.send_to(&command_bytes[..length], to) {
                Ok(()) => datagrams.sent += 1,
                Err(_) => datagrams.not_sent += 1,
            }
            run.heard.push(Heard {
                sequence: report.sequence,
                received_ns,
                sent_ns,
            });
        }
        let length = format.emit_farewell(shape, &mut command_bytes);
        if let Some(to) = plant
            && length > 0
        {
            let _ = self.messages.send_to(&command_bytes[..length], to);
        }
        self.messages.leave();
        Ok(run)
    }
}
