//! The slow path of a worker: a thread that does with punted packets what takes time, and sends what comes of it through the
//! worker's ports. Worker and thread are joined by a pair of rings ([`Lane`]), so that neither ever waits for the other.

use crate::CountersView;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_function::{Handler, Punted};
use taut_port::pair::Lane;
use taut_port::{Batch, PortError, Punt};
use taut_sys::{Alarm, spawn_background, ticks};

/// Packets that may wait in each direction.
const SLOTS: u32 = 1024;

/// Number of looks of the thread after its last packet, before it asks to be woken. To wake it costs the worker a
/// system call, which is at most one in this time.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Longest sleep of the thread: until it hears of new handlers.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Binary digits of a tick's number that a note leaves out, and those that it has: times up to some seconds, to some microseconds.
const AT_OMITTED: u32 = 13;
const AT_DIGITS: u32 = 20;
/// Binary digits of a cause.
const CAUSE_DIGITS: u32 = 20;

/// Note that goes with a frame into the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    /// Number of the port that it came in through.
    port: u8,
    /// Reason why the worker did not forward the frame.
    cause: Punt,
    /// Time at which the worker got the frame, as [`at`] gives it.
    at: u32,
}

impl Note {
    fn bits(self) -> u64 {
        u64::from(self.port)
            | u64::from(self.cause.bits()) << 8
            | u64::from(self.at) << (8 + CAUSE_DIGITS)
    }

    /// Ticks since then.
    fn age(self, now_ticks: u64) -> u64 {
        let age = at(now_ticks).wrapping_sub(self.at) & ((1 << AT_DIGITS) - 1);
        u64::from(age) << AT_OMITTED
    }

    fn of(bits: u64) -> Self {
        Self {
            port: bits as u8,
            cause: Punt::of_bits((bits >> 8) as u32 & ((1 << CAUSE_DIGITS) - 1)),
            at: (bits >> (8 + CAUSE_DIGITS)) as u32,
        }
    }
}

fn at(ticks: u64) -> u32 {
    (ticks >> AT_OMITTED) as u32 & ((1 << AT_DIGITS) - 1)
}

/// Lanes of this process, each of which has a name of its own.
static LANES: AtomicU64 = AtomicU64::new(0);

type Handlers = Vec<Box<dyn Handler>>;

/// The worker's end. Dropping it ends the thread, once that has done what it has.
pub(crate) struct SlowPath {
    /// Closed before the thread is waited for.
    lane: Option<Lane>,
    register: mpsc::Sender<Handlers>,
    waited_ticks: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl SlowPath {
    /// Adds these handlers to the slow path; starts one if there is none. Nothing is changed where there are no
    /// handlers.
    pub(crate) fn provide(
        slow: &mut Option<Self>,
        handlers: impl Iterator<Item = Box<dyn Handler>>,
    ) -> Result<(), PortError> {
        let handlers: Handlers = handlers.collect();
        match slow {
            _ if handlers.is_empty() => {}
            // The thread ends with this end only.
            Some(slow) => drop(slow.register.send(handlers)),
            None => *slow = Some(Self::start(handlers)?),
        }
        Ok(())
    }

    /// Starts the thread.
    fn start(handlers: Handlers) -> Result<Self, PortError> {
        let name = format!("slow path {}", LANES.fetch_add(1, Ordering::Relaxed));
        let lane = Lane::open(&name, SLOTS)?;
        let (register, registered) = mpsc::channel();
        let (tell, started) = mpsc::channel();
        let waited_ticks = Arc::new(AtomicU64::new(0));
        let waited = Arc::clone(&waited_ticks);
        let thread = spawn_background("slow-path", move || match Lane::open(&name, SLOTS) {
            Ok(lane) => {
                let _ = tell.send(Ok(()));
                run(lane, handlers, &registered, &waited);
            }
            Err(e) => drop(tell.send(Err(e))),
        })?;
        let died = |_| {
            let dead = std::io::Error::other("the thread died while it started");
            PortError::system("the slow path", dead)
        };
        started.recv().map_err(died)??;
        Ok(Self {
            lane: Some(lane),
            register,
            waited_ticks,
            thread: Some(thread),
        })
    }

    /// Hands packets over that came in through a port; those that there is no room for are dropped.
    pub(crate) fn punt(
        &mut self,
        from: usize,
        now_ticks: u64,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        if let Some(lane) = &mut self.lane {
            for (index, packet) in punted.packets().iter().enumerate() {
                let note = Note {
                    port: from as u8,
                    cause: punted.cause(index),
                    at: at(now_ticks),
                };
                if lane.push(packet.bytes(), note.bits()) {
                    own.punted += 1;
                } else {
                    own.dropped_punted += 1;
                }
            }
            lane.publish();
        }
        punted.clear();
    }

    /// Time that all packets together had been in this process when the thread came to them.
    pub(crate) fn waited_ticks(&self) -> u64 {
        self.waited_ticks.load(Ordering::Relaxed)
    }

    /// Whether the thread has made something.
    #[inline(always)]
    pub(crate) fn has_made(&mut self) -> bool {
        self.lane.as_mut().is_some_and(|lane| !lane.is_empty())
    }

    /// Takes what the thread has made into an empty batch, each marked for the port that it is to leave through.
    pub(crate) fn receive(&mut self, batch: &mut Batch) -> usize {
        let Some(lane) = &mut self.lane else { return 0 };
        let received = lane.receive(batch);
        for index in 0..received {
            batch.send_to(index, lane.note(index) as u8);
        }
        received
    }

    /// Arms `alarm` as [`taut_port::Port::arm`] does.
    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        self.lane.as_mut().is_none_or(|lane| lane.arm(alarm))
    }

    /// Disarms as [`taut_port::Port::disarm`] does.
    pub(crate) fn disarm(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.disarm();
        }
    }
}

impl Drop for SlowPath {
    fn drop(&mut self) {
        self.lane = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends a frame through a port: its number is the note.
fn send(lane: &mut Lane, port: usize, frame: &[u8]) -> bool {
    u8::try_from(port).is_ok_and(|port| lane.push(frame, u64::from(port)))
}

/// The thread: until the worker's end is closed and all it sent is done.
fn run(
    mut lane: Lane,
    mut handlers: Handlers,
    registered: &mpsc::Receiver<Handlers>,
    waited_ticks: &AtomicU64,
) {
    let (mut batch, mut alarm, mut looks) = (Batch::new(), Alarm::default(), 0);
    loop {
        handlers.retain(|handler| !handler.is_over());
        while let Ok(more) = registered.try_recv() {
            handlers.extend(more);
        }
        let received = lane.receive(&mut batch);
        for (index, packet) in batch.packets().iter().enumerate() {
            let note = Note::of(lane.note(index));
            waited_ticks.fetch_add(note.age(ticks()), Ordering::Relaxed);
            let punted = Punted {
                frame: packet.bytes(),
                from_port: usize::from(note.port),
                cause: note.cause,
            };
            let mut send = |port, frame: &[u8]| send(&mut lane, port, frame);
            handlers
                .iter_mut()
                .any(|handler| handler.handle(&punted, &mut send));
        }
        let mut send = |port, frame: &[u8]| send(&mut lane, port, frame);
        let came = handlers
            .iter_mut()
            .fold(false, |came, handler| handler.poll(&mut send) | came);
        lane.publish();
        if received > 0 {
            batch.clear();
            looks = 0;
        } else if !lane.is_open() {
            return;
        } else if came {
            looks = 0;
        } else if looks < LOOKS {
            looks += 1;
            std::thread::sleep(BETWEEN_LOOKS);
        } else {
            alarm.clear();
            handlers
                .iter_mut()
                .for_each(|handler| handler.arm(&mut alarm));
            if lane.arm(&mut alarm) {
                alarm.wait(LONGEST_SLEEP);
            }
            lane.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_fits_and_says_all_and_how_old_it_is() {
        let causes = [
            Punt::Neighbour,
            Punt::Local,
            Punt::Unknown,
            Punt::TooBig(u16::MAX),
            Punt::TimeExceeded,
            Punt::Unresolved,
            Punt::Unreachable,
            Punt::Prohibited,
            Punt::Rejected,
            Punt::Fragment,
            Punt::Shown {
                table: u8::MAX,
                by_rule: true,
            },
        ];
        for cause in causes {
            for now_ticks in [0, 1 << 33, u64::MAX - (1 << 20)] {
                let note = Note {
                    port: 254,
                    cause,
                    at: at(now_ticks),
                };
                // What a lane's note has room for.
                assert!(note.bits() < 1 << 48);
                assert_eq!(Note::of(note.bits()), note);
                for waited in [0, 1 << 14, 3_000_000_000] {
                    let age = note.age(now_ticks.wrapping_add(waited));
                    assert!(waited.abs_diff(age) < 1 << AT_OMITTED, "{waited} {age}");
                }
            }
        }
    }
}
