//! A dashboard in the terminal while a capture runs.

use super::Capture;
use super::run::Ports;
use crate::terminal::print;
use std::time::{Duration, Instant};
use taut_capture::capture::Status;
use taut_live::{Asked, CaptureView, Dashboard};

/// Number of seconds in the history of rates: the number of columns of a wide terminal.
const SECONDS: usize = 500;

/// The dashboard, while the terminal is open.
pub struct Live {
    dashboard: Dashboard,
    title: String,
    begun: Instant,
    packets: Vec<u64>,
}

/// Reports whether the user requests a dashboard and the terminal supports it.
pub fn is_wanted(capture: &Capture) -> bool {
    capture.live && !capture.json && !capture.quiet && Dashboard::is_possible()
}

impl Live {
    /// Opens the dashboard on the terminal; `None` if the terminal does not permit that.
    pub fn open(title: String) -> Option<Self> {
        match Dashboard::open() {
            Ok(dashboard) => Some(Self {
                dashboard,
                title,
                begun: Instant::now(),
                packets: Vec::new(),
            }),
            Err(e) => {
                print::note(format_args!("no dashboard on this terminal: {e}"));
                None
            }
        }
    }

    /// Waits for keys for at most `patience`; returns true if the user requests the end, or the terminal is closed.
    pub fn wait(&mut self, patience: Duration) -> bool {
        matches!(self.dashboard.keys(patience), Ok(Asked::Quit) | Err(_))
    }

    /// Shows the packets captured between the states `before` and `now`.
    pub fn show(&mut self, before: &Status, now: &Status, ports: &Ports) {
        let (packets, bytes_per_second) = now.kept_per_second(before);
        if self.packets.len() == SECONDS {
            self.packets.remove(0);
        }
        self.packets.push(packets.round() as u64);
        let view = CaptureView {
            title: &self.title,
            elapsed_seconds: self.begun.elapsed().as_secs_f64(),
            packets: &self.packets,
            bytes_per_second,
            lost_at_ports: ports.lost(),
            status: now,
        };
        // A closed terminal is detected when keys are read.
        let _ = self.dashboard.show_capture(&view);
    }
}
