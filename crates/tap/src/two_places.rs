//! A wiretap at two places: one thread receives at both, identifies packets by their content, and records the times.

use super::{InlineError, PlaceCounts, thread};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_capture::clock::PacketClock;
use taut_capture::filter::Filter;
use taut_capture::matching::{Identify, Identity};
use taut_port::{BATCH_CAPACITY, Batch, Link, Port, PortSpec};
use taut_sys::{Clock, StampClock, ticks};
use taut_xdp::wire_tap::Missed;

/// Limit on the observations between two calls of [`PlacedTap::take`]: 32 MiB.
const ROOM: usize = 1 << 20;
/// Time after the start during which packets are ignored: the kernel begins to timestamp packets only some milliseconds
/// after timestamps are enabled.
const SETTLING: Duration = Duration::from_millis(100);
/// Sleep of the thread during [`SETTLING`], and later while no packets arrive at ports with kernel timestamps.
const PAUSE: Duration = Duration::from_micros(100);
/// Maximum time from the timestamp of a packet until the packet can be received, ns.
const UNDER_WAY_NS: u64 = 500_000;
/// Interval at which the states of the links are checked.
const LOOK: Duration = Duration::from_millis(100);

/// The observation of a packet at one of the two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Identity of the packet, derived from its content.
    pub identity: Identity,
    /// Time at which the packet was at the place, ns since 1970.
    pub time_ns: u64,
    /// True if the packet was at the second place.
    pub at_b: bool,
}

/// State that the receiving thread publishes.
#[derive(Default)]
struct Told {
    /// Time up to which all observations are in the ring, ns since 1970.
    complete_ns: AtomicU64,
    ring_full: AtomicU64,
    filtered: AtomicU64,
    unidentified: AtomicU64,
    unseen: AtomicU64,
}

/// A running wiretap at two places. Dropping it stops its thread.
pub struct PlacedTap {
    seen: Consumer<Seen>,
    /// Observations that are not returned yet, because earlier ones may still arrive.
    pending: Vec<Seen>,
    told: Arc<Told>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<()>>>,
}

impl PlacedTap {
    /// Receives at both places, on `core` if one is given, and records packets that pass `filter`. `on_link` is called
    /// with the index of a place and the state of its link whenever the link goes up or down.
    ///
    /// # Errors
    /// A port cannot be opened or the core is unavailable.
    pub fn start(
        places: [PortSpec; 2],
        core: Option<usize>,
        identify: Identify,
        filter: Option<Filter>,
        mut on_link: impl FnMut(usize, &Link) + Send + 'static,
    ) -> Result<Self, InlineError> {
        let (writer, seen) = RingBuffer::new(ROOM);
        let told = Arc::new(Told::default());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (told, stop) = (Arc::clone(&told), Arc::clone(&stop));
            let open = move || {
                let why = "a file: give two capture files without --from and --to";
                let ports = thread::open_links(&places, core, why)?;
                let mut watcher = Watcher {
                    ports,
                    clock: PacketClock::new(Clock::calibrate(Duration::from_millis(20))),
                    identify,
                    filter,
                    writer,
                    told,
                };
                watcher.settle();
                Ok(watcher)
            };
            thread::start("match", open, move |mut watcher| {
                watcher.run(&stop, &mut on_link);
            })?
        };
        Ok(Self {
            seen,
            pending: Vec::new(),
            told,
            stop,
            thread: Some(thread),
        })
    }

    /// Calls `each` for the observations since the last call, in time order. The newest observations are returned by
    /// the next call, because earlier packets of the other place may still arrive.
    pub fn take(&mut self, mut each: impl FnMut(Seen)) {
        let complete_ns = self.complete_ns();
        let there = self.seen.slots();
        if let Ok(chunk) = self.seen.read_chunk(there) {
            self.pending.extend(chunk);
        }
        self.pending.sort_by_key(|it| it.time_ns);
        // In a flood that the thread cannot follow, the order is given up to limit the memory.
        let ready = match self.pending.len() > ROOM {
            true => self.pending.len(),
            false => self.pending.partition_point(|it| it.time_ns < complete_ns),
        };
        self.pending.drain(..ready).for_each(&mut each);
    }

    /// Returns the time before which all observations are returned by the next call of [`PlacedTap::take`], ns since
    /// 1970.
    pub fn complete_ns(&self) -> u64 {
        // Acquire: sightings up to that time are in the ring.
        self.told.complete_ns.load(Ordering::Acquire)
    }

    /// Stops the wiretap, and calls `each` for all remaining observations.
    pub fn end(&mut self, mut each: impl FnMut(Seen)) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.told.complete_ns.store(u64::MAX, Ordering::Release);
        self.take(&mut each);
    }

    /// Returns, since the start, the number of observations dropped because the wiretap's ring was full, and of frames
    /// dropped because a receive ring was full.
    pub fn missed(&self) -> Missed {
        Missed {
            ring_full: self.told.ring_full.load(Ordering::Relaxed),
            unseen: self.told.unseen.load(Ordering::Relaxed),
        }
    }

    /// Returns the counts of frames that were not matched.
    pub fn others(&self) -> PlaceCounts {
        PlaceCounts {
            filtered: self.told.filtered.load(Ordering::Relaxed),
            unidentified: self.told.unidentified.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PlacedTap {
    fn drop(&mut self) {
        self.end(|_| ());
    }
}

/// The receiving thread of a wiretap at two places. Its loop allocates nothing and takes no lock.
struct Watcher {
    /// The ports at the first and at the second place.
    ports: Vec<Box<dyn Port>>,
    clock: PacketClock,
    identify: Identify,
    filter: Option<Filter>,
    writer: Producer<Seen>,
    told: Arc<Told>,
}

impl Watcher {
    /// Discards packets until the kernel timestamps them.
    fn settle(&mut self) {
        let begun = Instant::now();
        let mut batch = Batch::new();
        while begun.elapsed() < SETTLING {
            for port in &mut self.ports {
                port.rx(&mut batch);
                batch.clear();
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn run(&mut self, stop: &AtomicBool, on_link: &mut impl FnMut(usize, &Link)) {
        let stamped = self.ports.iter().all(|it| it.stamp_clock().is_some());
        let mut links: [Option<Link>; 2] = [None, None];
        let mut look_at_ns = 0;
        let mut batch = Batch::new();
        while !stop.load(Ordering::Relaxed) {
            let begun_ns = self.clock.now();
            let got = [self.receive(0, &mut batch), self.receive(1, &mut batch)];
            if got.iter().all(|it| *it < BATCH_CAPACITY) {
                let complete_ns = begun_ns.saturating_sub(UNDER_WAY_NS);
                // Release: a reader of this time sees the sightings in the ring.
                self.told.complete_ns.store(complete_ns, Ordering::Release);
            }
            if begun_ns >= look_at_ns {
                self.look(&mut links, on_link);
                look_at_ns = begun_ns + LOOK.as_nanos() as u64;
            }
            if got == [0, 0] && stamped {
                std::thread::sleep(PAUSE);
            }
        }
        self.look(&mut links, on_link);
        self.ports.iter_mut().for_each(|port| port.close());
    }

    /// Records the packets that arrived at a place; returns the number of frames.
    #[inline]
    fn receive(&mut self, place: usize, batch: &mut Batch) -> usize {
        let port = &mut self.ports[place];
        let got = port.rx(batch);
        if got == 0 {
            return 0;
        }
        let now_ns = self.clock.at(ticks());
        let unit_ns = match port.stamp_clock() {
            Some(StampClock::Realtime { unit_ns }) => u64::from(unit_ns),
            _ => 0,
        };
        let stamps = port.arrival_stamps();
        let (mut filtered, mut unidentified, mut full) = (0, 0, 0);
        for (at, packet) in batch.packets().iter().enumerate() {
            let (frame, wire_bytes) = (packet.bytes(), packet.len() as u32);
            if let Some(filter) = &self.filter
                && !filter.matches(frame, wire_bytes)
            {
                filtered += 1;
                continue;
            }
            let Some(identity) = self.identify.of(frame, wire_bytes) else {
                unidentified += 1;
                continue;
            };
            let stamp_ns = stamps.get(at).map_or(0, |stamp| stamp * unit_ns);
            let seen = Seen {
                identity,
                time_ns: if stamp_ns == 0 { now_ns } else { stamp_ns },
                at_b: place == 1,
            };
            full += u64::from(self.writer.push(seen).is_err());
        }
        batch.clear();
        for (counter, more) in [
            (&self.told.filtered, filtered),
            (&self.told.unidentified, unidentified),
            (&self.told.ring_full, full),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        got
    }

    #[cold]
    fn look(&mut self, links: &mut [Option<Link>; 2], on_link: &mut impl FnMut(usize, &Link)) {
        let mut unseen = 0;
        for (index, (port, known)) in self.ports.iter_mut().zip(links).enumerate() {
            let link = port.link();
            if known.as_ref() != Some(&link) {
                on_link(index, &link);
                *known = Some(link);
            }
            let counters = port.counters();
            unseen += counters.rx_overrun + counters.rx_too_long + counters.rx_malformed;
        }
        self.told.unseen.store(unseen, Ordering::Relaxed);
    }
}
