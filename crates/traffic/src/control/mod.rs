//! Plant and controller of a control loop as processes over sockets, paced by absolute time.
//!
//! `taut_control` computes reports and commands and reads no clock; this module has the clock and the sockets.

mod controller;
mod plant;

pub use controller::{ControllerRun, ControllerSide, Heard};
pub use plant::{End, PlantRun, PlantSide};

use crate::messages::{Messages, now_ns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use taut_control::protocol::{MOST_BYTES, ProtocolError};
use taut_transport::{Demand, Notice};

/// Longest sleep before plant or controller checks the stop request, ns.
const LOOK_NS: u64 = 100_000_000;

/// Counters of the messages that were sent and received at one socket of a control loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Datagrams {
    /// Messages that this socket has sent.
    pub sent: u64,
    /// Messages that the kernel rejected.
    pub not_sent: u64,
    /// Messages that arrived and were accepted.
    pub taken: u64,
    /// Commands that were too late or duplicates.
    pub too_late: u64,
    /// Commands for reports that were never sent, and reports older than the last report: forged, or reordered.
    pub not_asked: u64,
    /// Datagrams that are not valid messages.
    pub malformed: u64,
    /// Datagrams from an address other than the peer's address.
    pub strangers: u64,
}

/// Returns the next message, if there is one. A datagram longer than any message is truncated, and thus invalid.
fn next(
    messages: &mut dyn Messages,
    bytes: &mut [u8; MOST_BYTES + 1],
) -> Option<(usize, SocketAddr)> {
    // The error is ignored: it reports that the peer of an earlier message was not running.
    let received = messages.receive(bytes).ok().flatten()?;
    Some((received.length, received.from))
}

/// Passes all waiting notices of a transport to `hear`, and sets the target delay that they demand.
fn follow_notices(
    messages: &mut dyn Messages,
    demand: Option<&mut Demand>,
    mut hear: impl FnMut(Notice),
) {
    let (mut demand, now) = (demand, now_ns());
    let mut is_new = false;
    while let Some(told) = messages.told() {
        hear(told.notice);
        if let Some(demand) = &mut demand {
            is_new |= demand.hear(now, told.notice);
        }
    }
    let Some(demand) = demand else {
        return;
    };
    is_new |= demand.is_due(now);
    if is_new {
        // Target delays are checked when the options are read.
        let _ = messages.set_target(demand.target_ns());
    }
}

/// Counts an invalid datagram, and stores the error if it is the first one.
fn complain(
    datagrams: &mut Datagrams,
    complaint: &mut Option<ProtocolError>,
    error: ProtocolError,
) {
    datagrams.malformed += 1;
    complaint.get_or_insert(error);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::messages::Transport;
    use crate::probe::Over;
    use std::net::UdpSocket;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use taut_control::controller::Settings;
    use taut_control::{Format, Kpis, plant, station};

    const HERE: &str = "127.0.0.1:0";

    /// Runs plant and controller on the loopback interface for a number of periods; `meanwhile` gets the addresses of
    /// both.
    fn loop_of(
        format: Format,
        over: &Over,
        periods: u64,
        meanwhile: impl FnOnce(SocketAddr, SocketAddr) + Send,
    ) -> (PlantRun, ControllerRun) {
        let model = plant::model("robot").unwrap();
        let mut controller = ControllerSide::open(HERE.parse().unwrap(), over).unwrap();
        let to = controller.address().unwrap();
        let mut side = PlantSide::open(HERE.parse().unwrap(), to, over).unwrap();
        let at = side.address().unwrap();
        let lifted = format == Format::Ncsbench;
        let settings = Settings {
            lifted,
            ..Settings::default()
        };
        let mut station = station::Settings::for_period(model.period_ns());
        station.lifted = lifted;
        station.periods = periods;
        let (stop, never) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let controls = scope.spawn(|| {
                controller
                    .run(&model, settings, format, Some(at.port()), &stop)
                    .unwrap()
            });
            scope.spawn(move || meanwhile(at, to));
            let patience = Duration::from_secs(20);
            let body = plant::plant(&model, 1);
            let seen = Mutex::default();
            let run = side.run(body, format, station, patience, &never, &seen);
            stop.store(true, Ordering::Relaxed);
            let controlled = controls.join().unwrap();
            let seen = seen.into_inner().unwrap();
            assert_eq!(seen.has_fallen, run.end == End::Fallen, "{seen:?}");
            assert!(
                seen.sequence > 0 && seen.in_time + seen.late > 0,
                "{seen:?}"
            );
            (run, controlled)
        })
    }

    #[test]
    fn the_control_loop_runs_in_both_formats_despite_malformed_datagrams() {
        for format in [Format::Ncsbench, Format::Taut] {
            let (run, controls) = loop_of(format, &Over::default(), 15, |plant, controller| {
                let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
                for to in [plant, controller] {
                    for noise in [&[0_u8; 192][..], &[0; 88], b"tCtl\x02", b"", &[7; 1400]] {
                        let _ = stranger.send_to(noise, to);
                    }
                }
            });
            let kpis = Kpis::of(&run.records, 2, true, run.fallen_ns);
            assert!(kpis.rounds > 0, "{format:?}: {run:?}");
            // On a busy machine the plant may fall, but the run must report that.
            assert!(matches!(run.end, End::Periods | End::Fallen), "{run:?}");
            assert!(
                run.datagrams.strangers + run.datagrams.malformed >= 4,
                "{run:?}"
            );
            assert!(controls.datagrams.malformed >= 4, "{controls:?}");
            assert!(!controls.heard.is_empty());
        }
    }

    #[test]
    fn the_control_loop_runs_over_every_transport() {
        for transport in Transport::ALL {
            let mut over = Over {
                transport,
                ..Over::default()
            };
            // These settings suit a busy machine as well.
            let patient = &mut over.deadline.settings;
            (patient.target_ns, patient.window_ns) = (4_000_000_000, 4_000_000_000);
            let (run, controls) = loop_of(Format::Taut, &over, 15, |_, _| ());
            let kpis = Kpis::of(&run.records, 2, true, run.fallen_ns);
            assert!(kpis.rounds > 0, "{transport:?}: {run:?}");
            assert!(matches!(run.end, End::Periods | End::Fallen), "{run:?}");
            assert!(!controls.heard.is_empty(), "{transport:?}");
        }
    }

    #[test]
    fn notices_set_the_demanded_target_of_all_connections() {
        #[derive(Debug, Default)]
        struct Noted(Vec<Notice>, Option<u64>);
        impl Messages for Noted {
            fn address(&self) -> std::io::Result<SocketAddr> {
                Ok(HERE.parse().unwrap())
            }
            fn send_to(&mut self, _: &[u8], _: SocketAddr) -> std::io::Result<()> {
                Ok(())
            }
            fn receive(
                &mut self,
                _: &mut [u8],
            ) -> std::io::Result<Option<crate::messages::Received>> {
                Ok(None)
            }
            fn wait(&mut self, _: Duration) {}
            fn told(&mut self) -> Option<crate::messages::Told> {
                let notice = self.0.pop()?;
                Some(crate::messages::Told {
                    peer: HERE.parse().unwrap(),
                    notice,
                })
            }
            fn set_target(&mut self, target_ns: u64) -> std::io::Result<()> {
                self.1 = Some(target_ns);
                Ok(())
            }
        }
        let mut demand = Demand::new(5, 50);
        let mut messages = Noted(vec![Notice::OutOfReach(0.5), Notice::Connected(1)], None);
        let mut heard = 0;
        follow_notices(&mut messages, Some(&mut demand), |_| heard += 1);
        assert_eq!((heard, messages.1), (2, Some(50)));
        messages.1 = None;
        follow_notices(&mut messages, Some(&mut demand), |_| ());
        assert_eq!(messages.1, None);
    }

    #[test]
    fn a_plant_without_a_controller_reports_the_missing_replies() {
        let model = plant::model("conveyor").unwrap();
        let nobody = UdpSocket::bind(HERE).unwrap().local_addr().unwrap();
        let mut side = PlantSide::open(HERE.parse().unwrap(), nobody, &Over::default()).unwrap();
        let station = station::Settings::for_period(model.period_ns());
        let body = plant::plant(&model, 1);
        let never = AtomicBool::new(false);
        let run = side.run(
            body,
            Format::Taut,
            station,
            Duration::from_millis(50),
            &never,
            &Mutex::default(),
        );
        assert_eq!((run.end, run.records.len()), (End::NobodyAnswered, 0));
        assert!(run.datagrams.sent >= 1);
    }
}
