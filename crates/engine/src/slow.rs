//! The slow path of a worker: a thread that handles punted packets and sends its replies through the worker's ports. A
//! pair of rings ([`Lane`]) joins worker and thread, so that neither waits for the other.

use crate::CountersView;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_function::{Handler, Passage, Punted};
use taut_port::pair::Lane;
use taut_port::{Batch, PortError, Punt};
use taut_sys::{Alarm, spawn_background, ticks};

/// The capacity of the ring in each direction between worker and slow-path thread, packets.
const SLOTS: u32 = 1024;

/// The number of polls without packets after which the thread sleeps until a wakeup. A wakeup costs the worker a system
/// call, at most one in the time of these polls.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// The longest sleep of the slow-path thread, after which it checks for new handlers.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The number of low bits of a cycle count that a note omits; `AT_DIGITS` is the number of the next bits, which the
/// note stores. A stored time covers up to a second, with a resolution of some ten microseconds.
const AT_OMITTED: u32 = 16;
const AT_DIGITS: u32 = 16;
/// The number of bits of a note that store the cause of a punt.
const CAUSE_DIGITS: u32 = 20;
/// The port index that marks a frame as made by a function. A received frame has the index of its ingress port instead.
const MADE: u8 = u8::MAX;

/// The note that accompanies a frame into the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    /// Index of the ingress port.
    port: u8,
    /// Cause of the punt: the reason why the worker did not forward the frame.
    cause: Punt,
    /// Identifier of the function that punted the frame.
    function: u8,
    /// Time at which the worker received the frame, as [`at`] encodes it.
    at: u32,
}

impl Note {
    fn bits(self) -> u64 {
        u64::from(self.port)
            | u64::from(self.cause.bits()) << 8
            | u64::from(self.function) << (8 + CAUSE_DIGITS)
            | u64::from(self.at) << (16 + CAUSE_DIGITS)
    }

    /// Returns the cycles since the worker received the frame.
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

/// The note that accompanies a frame back to the worker: the frame's path, and the function that made or released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) way: Passage,
    /// Identifier, in the worker, of the function that made or released the frame.
    pub(crate) function: u8,
}

impl Made {
    /// Encodes the note in 41 bits; None if a port index does not fit.
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

/// The number of ring pairs created in this process, which makes the name of each ring pair unique.
static LANES: AtomicU64 = AtomicU64::new(0);

/// Handlers of functions on the slow path, each with the identifier of its function in the worker.
type Handlers = Vec<(u8, Box<dyn Handler>)>;

/// The worker's handle of the slow path. Dropping it ends the thread, which first handles all packets in its ring.
pub(crate) struct SlowPath {
    /// Ring to the slow-path thread; the ring is closed before the thread is joined.
    lane: Option<Lane>,
    register: mpsc::Sender<Handlers>,
    waited_ticks: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    /// Frames received from the slow-path thread; `taken` is the number of them that the worker has already processed.
    arrived: Batch,
    taken: usize,
}

impl SlowPath {
    /// Adds handlers to the slow path, each with the identifier of its function in the worker. Starts the slow path if
    /// it does not run yet. An empty list changes nothing.
    pub(crate) fn provide(
        slow: &mut Option<Self>,
        handlers: impl Iterator<Item = (u8, Box<dyn Handler>)>,
    ) -> Result<(), PortError> {
        let handlers: Handlers = handlers.collect();
        match slow {
            _ if handlers.is_empty() => {}
            // The receiver exists as long as this side of the slow path, so sending cannot fail.
            Some(slow) => drop(slow.register.send(handlers)),
            None => *slow = Some(Self::start(handlers)?),
        }
        Ok(())
    }

    /// Starts the slow-path thread.
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
            let dead = std::io::Error::other("the thread exited while starting");
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

    /// Passes packets of one ingress port to the slow path; drops those that do not fit into the ring.
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

    /// Returns the sum, over all packets, of the time from receipt until the thread handled the packet, in cycles.
    pub(crate) fn waited_ticks(&self) -> u64 {
        self.waited_ticks.load(Ordering::Relaxed)
    }

    /// Returns true if the slow-path thread has put a frame into the ring that the worker has not received.
    #[inline(always)]
    pub(crate) fn has_made(&mut self) -> bool {
        self.lane.as_mut().is_some_and(|lane| !lane.is_empty())
    }

    /// Receives up to a batch of frames from the slow-path thread; returns their number.
    pub(crate) fn receive(&mut self) -> usize {
        let Some(lane) = &mut self.lane else { return 0 };
        self.arrived.clear();
        self.taken = 0;
        lane.receive(&mut self.arrived)
    }

    /// Moves the next received frames with the same note into an empty batch, up to its capacity. Returns their note;
    /// None if no frame is left.
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

    /// Arms `alarm` for frames from the slow-path thread; see [`taut_port::Port::arm`].
    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        self.lane.as_mut().is_none_or(|lane| lane.arm(alarm))
    }

    /// Disarms the alarm for frames from the slow-path thread; see [`taut_port::Port::disarm`].
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

/// Sends a frame of a function back to the worker. Returns false if the ring is full, or if a port index of the path
/// does not fit into the note.
fn send(lane: &mut Lane, function: u8, way: Passage, frame: &[u8]) -> bool {
    let note = Made { way, function }.bits();
    note.is_some_and(|note| lane.push(frame, note))
}

/// Passes a punted packet to handlers until one has handled it. The handler of the function that punted the packet is
/// called first. The others follow, because a function may also punt packets for another function.
#[inline]
fn hand_over(punted: &Punted<'_>, own: u8, handlers: &mut Handlers, lane: &mut Lane) {
    for is_own in [true, false] {
        let mut asked = handlers
            .iter_mut()
            .filter(|(function, _)| (*function == own) == is_own);
        let is_done = asked.any(|(function, handler)| {
            let function = *function;
            handler.handle(punted, &mut |way, frame| send(lane, function, way, frame))
        });
        if is_done {
            break;
        }
    }
}

/// Runs the slow-path thread until the worker has closed the ring pair and all packets in the ring pair are handled.
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
            hand_over(&punted, note.function, &mut handlers, &mut lane);
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
    fn a_punt_note_preserves_cause_and_age_in_52_bits() {
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
                // The number of bits that a lane's note can store.
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
    fn encoding_and_decoding_preserve_the_path_of_an_emitted_frame() {
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
