//! The slow path of a worker: a thread that does with punted packets what takes time, and sends what comes of it through the
//! worker's ports. Worker and thread are joined by a pair of rings ([`Lane`]), so that neither ever waits for the other.

use crate::CountersView;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_function::{Handler, Passage, Punted};
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

/// Binary digits of a tick's number that a note leaves out, and those that it has: times up to a second, to some ten microseconds.
const AT_OMITTED: u32 = 16;
const AT_DIGITS: u32 = 16;
/// Binary digits of a cause.
const CAUSE_DIGITS: u32 = 20;
/// Stand-in for the port that a frame came in through which a function has made itself.
const MADE: u8 = u8::MAX;

/// Note that goes with a frame into the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    /// Number of the port that it came in through.
    port: u8,
    /// Reason why the worker did not forward the frame.
    cause: Punt,
    /// Number of the function that punted it.
    function: u8,
    /// Time at which the worker got the frame, as [`at`] gives it.
    at: u32,
}

impl Note {
    fn bits(self) -> u64 {
        u64::from(self.port)
            | u64::from(self.cause.bits()) << 8
            | u64::from(self.function) << (8 + CAUSE_DIGITS)
            | u64::from(self.at) << (16 + CAUSE_DIGITS)
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
            function: (bits >> (8 + CAUSE_DIGITS)) as u8,
            at: (bits >> (16 + CAUSE_DIGITS)) as u32,
        }
    }
}

/// Note that goes with a frame back to the worker: its way, and the function that has made it or let it go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) way: Passage,
    /// The worker's number for the function.
    pub(crate) function: u8,
}

impl Made {
    /// The note as a number of 41 bits; none where a port has no number.
    pub(crate) fn bits(self) -> Option<u64> {
        let port = |port: usize| u8::try_from(port).ok().filter(|port| *port != MADE);
        let from = self.way.from_port.map_or(Some(MADE), port)?;
        Some(
            u64::from(port(self.way.to_port)?)
                | u64::from(from) << 8
                | u64::from(self.function) << 16
                | u64::from(self.way.mtu.unwrap_or(0)) << 24
                | u64::from(self.way.lacks_addresses) << 40,
        )
    }

    pub(crate) fn of(bits: u64) -> Self {
        let (from, mtu) = ((bits >> 8) as u8, (bits >> 24) as u16);
        Self {
            way: Passage {
                from_port: (from != MADE).then_some(usize::from(from)),
                to_port: usize::from(bits as u8),
                mtu: (mtu != 0).then_some(mtu),
                lacks_addresses: bits >> 40 & 1 == 1,
            },
            function: (bits >> 16) as u8,
        }
    }
}

fn at(ticks: u64) -> u32 {
    (ticks >> AT_OMITTED) as u32 & ((1 << AT_DIGITS) - 1)
}

/// Lanes of this process, each of which has a name of its own.
static LANES: AtomicU64 = AtomicU64::new(0);

/// Handlers with the worker's numbers for their functions.
type Handlers = Vec<(u8, Box<dyn Handler>)>;

/// The worker's end. Dropping it ends the thread, once that has done what it has.
pub(crate) struct SlowPath {
    /// Closed before the thread is waited for.
    lane: Option<Lane>,
    register: mpsc::Sender<Handlers>,
    waited_ticks: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    /// Frames that were taken from the lane, and how many of those are with the worker already.
    arrived: Batch,
    taken: usize,
}

impl SlowPath {
    /// Adds these handlers, with the worker's numbers for their functions, to the slow path; starts one if there is none. Nothing
    /// is changed where there are no handlers.
    pub(crate) fn provide(
        slow: &mut Option<Self>,
        handlers: impl Iterator<Item = (u8, Box<dyn Handler>)>,
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
            arrived: Batch::new(),
            taken: 0,
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
                    function: punted.punter(index),
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

    /// Takes what the thread has made from the lane, a batch at most; returns how many frames that are.
    pub(crate) fn receive(&mut self) -> usize {
        let Some(lane) = &mut self.lane else { return 0 };
        self.arrived.clear();
        self.taken = 0;
        lane.receive(&mut self.arrived)
    }

    /// Moves the next frames of those that were taken into an empty batch: those that go the same way, up to its room.
    pub(crate) fn next_made(&mut self, batch: &mut Batch) -> Option<Made> {
        let lane = self.lane.as_ref()?;
        let many = self.arrived.len().min(batch.room());
        let note = |index: usize| lane.note(self.taken + index);
        let same = (0..many).take_while(|index| note(*index) == note(0));
        let (same, first) = (same.count(), note(0));
        if same == 0 {
            return None;
        }
        self.taken += self.arrived.move_up_to(same, batch);
        Some(Made::of(first))
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

/// Sends a frame of a function back to the worker.
fn send(lane: &mut Lane, function: u8, way: Passage, frame: &[u8]) -> bool {
    let note = Made { way, function }.bits();
    note.is_some_and(|note| lane.push(frame, note))
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
        handlers.retain(|(_, handler)| !handler.is_over());
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
            // The handler of the function that punted it first, and then the others: a function may punt what is for another one.
            for is_own in [true, false] {
                let mut asked = handlers
                    .iter_mut()
                    .filter(|(function, _)| (*function == note.function) == is_own);
                let is_done = asked.any(|(function, handler)| {
                    let function = *function;
                    handler.handle(&punted, &mut |way, frame| {
                        send(&mut lane, function, way, frame)
                    })
                });
                if is_done {
                    break;
                }
            }
        }
        let mut came = false;
        for (function, handler) in &mut handlers {
            let function = *function;
            came |= handler.poll(&mut |way, frame| send(&mut lane, function, way, frame));
        }
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
                .for_each(|(_, handler)| handler.arm(&mut alarm));
            if lane.arm(&mut alarm) {
                alarm.wait(LONGEST_SLEEP);
            }
            lane.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
            Punt::LastFragment,
            Punt::Made { port: 254 },
        ];
        for cause in causes {
            for now_ticks in [0, 1 << 33, u64::MAX - (1 << 20)] {
                let note = Note {
                    port: 254,
                    cause,
                    function: 255,
                    at: at(now_ticks),
                };
                // What a lane's note has room for.
                assert!(note.bits() < 1 << 52);
                assert_eq!(Note::of(note.bits()), note);
                for waited in [0, 1 << 14, 3_000_000_000] {
                    let age = note.age(now_ticks.wrapping_add(waited));
                    assert!(waited.abs_diff(age) < 1 << AT_OMITTED, "{waited} {age}");
                }
            }
        }
    }
    #[test]
    fn a_frame_that_was_made_comes_back_with_its_whole_way() {
        let between = Passage::between(253, 254);
        let long = Passage {
            mtu: Some(u16::MAX),
            lacks_addresses: true,
            ..Passage::of_own(3)
        };
        for way in [Passage::of_own(0), between, long] {
            for function in [0, 255] {
                let made = Made { way, function };
                let bits = made.bits().unwrap();
                assert!(bits < 1 << 41);
                assert_eq!(Made::of(bits), made);
            }
        }
        let nowhere = Passage::of_own(255);
        assert_eq!(
            Made {
                way: nowhere,
                function: 0
            }
            .bits(),
            None
        );
    }
}
