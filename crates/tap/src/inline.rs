//! An inline wiretap: a thread that relays frames between two ports, or two pairs of ports, and records each packet.

use super::error::InlineError;
use super::report::{RelayPort, RelayReport};
use super::sightings::Sightings;
use super::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use taut_port::{Link, PortSpec};
use taut_sys::Clock;
use taut_traffic::{
    InlineTap, RelayAccount, SightingReader, SightingWriter, TappedWire, sightings,
};
use taut_xdp::wire_tap::{Missed, Sighting};

/// Limit on the observations between two calls of [`Sightings::take`]: 16 MiB, 0.1 s at 5 million packets a second.
const ROOM: usize = 1 << 20;

/// A running inline wiretap. Dropping it stops its thread.
pub struct RunningTap {
    specs: Vec<PortSpec>,
    core: Option<usize>,
    clock: Clock,
    reader: SightingReader,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<RelayAccount>>>,
}

impl RunningTap {
    /// Relays between the first and the second port, and between the third and the fourth, on `core` if one is given.
    /// `on_link` is called with the index of a port and the state of its link whenever the link goes up or down.
    ///
    /// # Errors
    /// The number of ports is neither two nor four, a port cannot be opened, or the core is unavailable.
    pub fn start(
        specs: Vec<PortSpec>,
        core: Option<usize>,
        on_link: impl FnMut(usize, &Link) + Send + 'static,
    ) -> Result<Self, InlineError> {
        if !matches!(specs.len(), 2 | 4) {
            return Err(InlineError::Ports(specs.len()));
        }
        let clock = Clock::calibrate(std::time::Duration::from_millis(100));
        let (writer, reader) = sightings(ROOM);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (ports, stop) = (specs.clone(), Arc::clone(&stop));
            thread::start(
                "tap",
                move || open(&ports, core, writer, &clock),
                move |tap| tap.run(&stop, on_link),
            )?
        };
        Ok(Self {
            specs,
            core,
            clock,
            reader,
            stop,
            thread: Some(thread),
        })
    }
}

fn open(
    specs: &[PortSpec],
    core: Option<usize>,
    writer: SightingWriter,
    clock: &Clock,
) -> Result<InlineTap, InlineError> {
    let why = "a file: an inline tap is between links";
    let mut ports = thread::open_links(specs, core, why)?.into_iter();
    let wires = std::iter::from_fn(|| {
        Some(TappedWire {
            generator: ports.next()?,
            device: ports.next()?,
        })
    });
    Ok(InlineTap::new(wires.collect(), writer, clock))
}

impl Sightings for RunningTap {
    fn take(&mut self, each: impl FnMut(Sighting)) {
        self.reader.take(&self.clock, each);
    }

    fn missed(&self) -> Missed {
        Missed {
            ring_full: self.reader.ring_full(),
            unseen: 0,
        }
    }

    fn end(&mut self) -> Option<RelayReport> {
        self.stop.store(true, Ordering::Relaxed);
        let account = self.thread.take()?.join().ok().flatten()?;
        let ports = self.specs.iter().zip(account.ports);
        Some(RelayReport {
            core: self.core,
            refused: account.refused,
            undelivered: account.undelivered,
            ports: ports
                .map(|(spec, counters)| RelayPort {
                    port: spec.text().to_string(),
                    counters,
                })
                .collect(),
        })
    }
}

impl Drop for RunningTap {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
