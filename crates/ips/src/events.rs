//! Writes events, and the packets that caused alerts. Each worker has a ring to the writing thread, which all workers
//! share. A worker never waits: if its ring is full, it counts the event as lost. The thread reads a limited number of
//! events at a time and holds no lock while it writes.

use super::eve::{self, Time};
use super::event::{Arrived, Event, SAID, What};
use super::outcome::Counters;
use super::packet_file::PacketFile;
use super::rules::{Known, Rules};
use super::target::Target;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_function::PortNames;
use taut_inspect::buffer::Buffer;
use taut_inspect::evaluate::{Message, Parts};
use taut_inspect::rule::About;
use taut_port::PortError;
use taut_sys::spawn_background;

/// The capacity of a worker's ring of events, in events. The next constant is the capacity of the ring for the bytes of
/// packets and of message parts.
const ROOM: usize = 16_384;
const ROOM_BYTES: usize = 1 << 20;
/// The maximum number of events that the thread reads from one worker before it reads from the next worker.
const TURN: usize = 1024;
/// The number of bytes of lines per write call while more lines are pending.
const WRITTEN_BYTES: usize = 1 << 16;
/// The maximum number of bytes of one message part in an alert.
const SAID_BYTES: usize = 512;
/// The maximum number of rules in the comments of a packet.
const MOST_COMMENTS: usize = 16;
/// The interval at which the writing thread polls the workers' rings.
const LOOK: Duration = Duration::from_millis(10);
/// The maximum time for which a line is buffered, so that several lines are written together.
const FLUSH: Duration = Duration::from_millis(100);
/// The interval at which statistics are written.
const STATISTICS: Duration = Duration::from_secs(8);
/// The time limit for writing the remaining lines when the thread ends.
const ENDING: Duration = Duration::from_secs(2);

/// The worker's end of the rings to the thread that writes events.
pub(super) struct Events {
    ring: Producer<Arrived>,
    /// The bytes of packets and of message parts.
    bytes: Producer<u8>,
    /// True if events other than alerts are written.
    has_lines: bool,
    /// True if the packets of alerts are written.
    has_packets: bool,
    /// The ingress port's timestamp of the packet that the next events are about, in ns since 1970; 0 if there is none.
    stamp_ns: u64,
    /// The number of the packet that the next alerts are about. The next field is true if the packet has already caused
    /// an alert.
    packet: u32,
    is_alerted: bool,
    lost: Arc<Lost>,
}

/// The counters of events that were lost because a worker's ring was full.
#[derive(Default)]
struct Lost {
    events: AtomicU64,
    packets: AtomicU64,
}

impl Events {
    /// Sets the ingress port's timestamp of the packet that the next events are about, in ns since 1970; 0 if there is
    /// none.
    #[inline]
    pub fn begin_packet(&mut self, stamp_ns: u64) {
        self.stamp_ns = stamp_ns;
    }

    /// Writes an event to the ring if such events are written, or counts it as lost if the ring is full.
    #[inline]
    pub fn push(&mut self, event: Event) {
        if self.has_lines {
            self.put(event, 0);
        }
    }

    /// Writes an alert to the ring, with the parts of its message if the ring of bytes has space for all of them.
    #[cold]
    pub fn alert(&mut self, event: Event, parts: &Parts<'_>) {
        self.is_alerted = true;
        // Only this worker writes to the ring, so the space stays free until the event is written after its bytes.
        let said_bytes = match self.has_lines && !self.ring.is_full() {
            true => self.say(parts),
            false => 0,
        };
        self.put(event, said_bytes);
    }

    fn put(&mut self, event: Event, said_bytes: u32) {
        let arrived = Arrived {
            event,
            stamp_ns: self.stamp_ns,
            said_bytes,
        };
        if self.ring.push(arrived).is_err() {
            one_more(&self.lost.events);
        }
    }

    /// Writes the parts of a message to the ring of bytes: index, length and bytes of each part. Returns the number of
    /// bytes written; 0 if the ring has no space for all parts.
    fn say(&mut self, parts: &Parts<'_>) -> u32 {
        let said = SAID.map(|buffer| said_by(parts, buffer));
        let all = said.iter().flatten().map(|it| 3 + it.len()).sum();
        if self.bytes.slots() < all {
            return 0;
        }
        for (number, bytes) in said.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let [high, low] = (bytes.len() as u16).to_be_bytes();
            let _ = self.bytes.push_entire_slice(&[number as u8, high, low]);
            let _ = self.bytes.push_entire_slice(bytes);
        }
        all as u32
    }

    /// Returns the number of the packet that the next alerts are about.
    #[inline]
    pub fn packet(&self) -> u32 {
        self.packet
    }

    /// Writes the packet to the ring if the packet caused alerts and the ring has space for the complete packet.
    #[inline]
    pub fn end_of_packet(&mut self, event: impl FnOnce(What) -> Event, frame: &[u8]) {
        if std::mem::take(&mut self.is_alerted) && self.has_packets {
            self.keep(event, frame);
        }
    }

    #[cold]
    fn keep(&mut self, event: impl FnOnce(What) -> Event, frame: &[u8]) {
        let number = self.packet;
        self.packet = number.wrapping_add(1);
        if self.ring.is_full() || self.bytes.push_entire_slice(frame).is_err() {
            return one_more(&self.lost.packets);
        }
        let len = frame.len() as u32;
        self.put(event(What::Packet { number, len }), 0);
    }
}

/// Returns a part of the message for alerts. If the message is a response, some parts are taken from its request.
fn said_by<'a>(parts: &Parts<'a>, buffer: Buffer) -> Option<&'a [u8]> {
    let said = match parts.message {
        Message::Http { http, is_request } => {
            let of_request = buffer != Buffer::HttpStatusCode;
            (of_request || !is_request)
                .then(|| http.buffer_of(of_request, buffer))
                .flatten()
        }
        _ => parts.buffer(buffer),
    };
    said.map(|it| &it[..it.len().min(SAID_BYTES)])
}

/// Increments a counter that only this thread writes.
fn one_more(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The writing thread's end of a worker's rings.
struct Source {
    events: Consumer<Arrived>,
    bytes: Consumer<u8>,
    /// The comments for a packet, one for each alert that it caused, stored until the packet itself arrives. The next
    /// field is the packet's number.
    comments: Vec<String>,
    packet: u32,
    /// The bytes last read from the ring: a packet, or parts of a message.
    frame: Vec<u8>,
}

impl Source {
    /// Returns true if the worker has exited and its ring is empty.
    fn is_over(&self) -> bool {
        self.events.is_abandoned() && self.events.is_empty()
    }

    /// Reads `len` bytes from the ring of bytes into `frame`; returns true if they were available.
    fn take_bytes(&mut self, len: u32) -> bool {
        self.frame.resize(len as usize, 0);
        self.bytes.pop_entire_slice(&mut self.frame).is_ok()
    }

    /// Reads the next event and adds its line, or its packet with comments, to the pending output. Returns false if
    /// there is no event.
    fn take(&mut self, writing: &mut Writing) -> bool {
        let Ok(arrived) = self.events.pop() else {
            return false;
        };
        let is_there = match arrived.event.what {
            What::Packet { len, .. } => self.take_bytes(len),
            _ => self.take_bytes(arrived.said_bytes),
        };
        let Writing {
            time,
            ports,
            descriptions,
            packets,
            lines,
            ..
        } = writing;
        match arrived.event.what {
            What::Packet { number, .. } => {
                if let Some(packets) = packets
                    && is_there
                    && number == self.packet
                    && !self.comments.is_empty()
                {
                    let at_ns = time.of(&arrived).as_nanos() as u64;
                    packets.put(arrived.event.port, at_ns, &self.frame, &self.comments);
                }
                self.comments.clear();
            }
            What::Alert {
                version,
                rule,
                is_blocked,
                packet,
            } => {
                let known = descriptions.of(version, rule);
                if packet != self.packet {
                    self.packet = packet;
                    self.comments.clear();
                }
                if packets.is_some()
                    && self.comments.len() < MOST_COMMENTS
                    && let Some(known) = known
                {
                    let is_blocked = is_blocked && known.drops;
                    self.comments.push(comment(&known.about, is_blocked));
                }
                if writing.target.is_some() {
                    let said = if is_there { &self.frame[..] } else { &[] };
                    eve::line(lines, &arrived, time, &ports.0, known, said);
                }
            }
            What::Drop { .. } | What::Flow { .. } => {
                eve::line(lines, &arrived, time, &ports.0, None, &[]);
            }
        }
        true
    }
}

/// The descriptions of the rules in the rule set that the last alerts used.
struct Descriptions {
    rules: Arc<Rules>,
    last: Option<(u64, Arc<Vec<Known>>)>,
}

impl Descriptions {
    fn of(&mut self, version: u64, rule: u32) -> Option<&Known> {
        if self.last.as_ref().is_none_or(|it| it.0 != version) {
            self.last = self.rules.described(version).map(|it| (version, it));
        }
        self.last.as_ref()?.1.get(rule as usize)
    }
}

/// Returns a rule's comment on a packet: number, revision and message of the rule.
fn comment(about: &About, is_blocked: bool) -> String {
    let mut text = format!("{}:{}:{}", about.group, about.id, about.revision);
    for part in [&*about.message, if is_blocked { "(blocked)" } else { "" }] {
        if !part.is_empty() {
            text.push(' ');
            text.push_str(part);
        }
    }
    text
}

/// Rings of new workers that the thread does not read yet, and the counters of all workers.
#[derive(Default)]
struct Workers {
    new: Vec<Source>,
    counters: Vec<Arc<Counters>>,
    lost: Vec<Arc<Lost>>,
}

/// The state that the writing thread shares with other threads. Its lock is never held while the thread writes.
#[derive(Default)]
struct Together {
    workers: Mutex<Workers>,
    /// The number of lines and packets that could not be written.
    not_written: AtomicU64,
    left_out: AtomicU64,
    stop: AtomicBool,
}

impl Together {
    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sum of one loss counter over all workers.
    fn lost(&self, of: impl Fn(&Lost) -> &AtomicU64) -> u64 {
        let workers = self.workers();
        let each = workers.lost.iter().map(|it| of(it));
        each.map(|it| it.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of events that were not written, because a ring was full or the file or socket failed.
    fn lost_events(&self) -> u64 {
        self.lost(|it| &it.events) + self.not_written.load(Ordering::Relaxed)
    }

    /// Returns the number of packets with each outcome, summed over all workers.
    fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for counters in &self.workers().counters {
            for (name, count) in counters.outcomes() {
                *all.entry(name).or_insert(0) += count;
            }
        }
        all
    }
}

/// The handle of the writing thread. Dropping the handle writes the remaining events and ends the thread.
pub(super) struct Writer {
    together: Arc<Together>,
    thread: Option<JoinHandle<()>>,
    has_lines: bool,
    has_packets: bool,
}

impl Writer {
    /// Opens the files or the socket, and starts the thread. Lines are written to `events`. Packets of alerts are
    /// written to the file `alerts`, up to its size limit in bytes. Returns none if neither `events` nor `alerts` is
    /// set.
    ///
    /// # Errors
    /// Fails if a file cannot be opened.
    pub fn start(
        events: Option<&str>,
        alerts: Option<(&str, u64)>,
        rules: &Arc<Rules>,
        ports: PortNames,
    ) -> Result<Option<Self>, PortError> {
        let cannot = |what: &str, file: &str, e| {
            PortError::system(format!("function \"ips\": {what} = \"{file}\""), e)
        };
        let target = events.map(|text| Target::open(text).map_err(|e| cannot("events", text, e)));
        let target = target.transpose()?;
        let packets = alerts.map(|(file, most_bytes)| {
            PacketFile::open(file, most_bytes).map_err(|e| cannot("alerts", file, e))
        });
        let packets = packets.transpose()?;
        let (has_lines, has_packets) = (target.is_some(), packets.is_some());
        if !has_lines && !has_packets {
            return Ok(None);
        }
        let together = Arc::new(Together::default());
        let writing = Writing {
            together: Arc::clone(&together),
            time: Time::new(),
            ports,
            descriptions: Descriptions {
                rules: Arc::clone(rules),
                last: None,
            },
            target,
            packets,
            lines: Vec::new(),
            ending: None,
        };
        let thread = spawn_background("events", move || writing.run())?;
        Ok(Some(Self {
            together,
            thread: Some(thread),
            has_lines,
            has_packets,
        }))
    }

    /// Creates the rings of one more worker and returns the worker's end.
    pub fn worker(&self, counters: &Arc<Counters>) -> Events {
        let (ring, events) = RingBuffer::new(ROOM);
        let (into, bytes) = RingBuffer::new(ROOM_BYTES);
        let lost = Arc::new(Lost::default());
        let mut workers = self.together.workers();
        workers.new.push(Source {
            events,
            bytes,
            comments: Vec::new(),
            packet: 0,
            frame: Vec::new(),
        });
        workers.counters.push(Arc::clone(counters));
        workers.lost.push(Arc::clone(&lost));
        Events {
            ring,
            bytes: into,
            has_lines: self.has_lines,
            has_packets: self.has_packets,
            stamp_ns: 0,
            packet: 0,
            is_alerted: false,
            lost,
        }
    }

    /// Returns the number of events that were not written, because a ring was full or the file or socket failed.
    pub fn lost(&self) -> u64 {
        self.together.lost_events()
    }

    /// Returns the number of alert packets that are not in the file, because a ring was full, the file has reached its
    /// limit, or writing failed.
    pub fn left_out(&self) -> u64 {
        self.together.lost(|it| &it.packets) + self.together.left_out.load(Ordering::Relaxed)
    }
}

/// The state of the writing thread.
struct Writing {
    together: Arc<Together>,
    time: Time,
    ports: PortNames,
    descriptions: Descriptions,
    target: Option<Target>,
    packets: Option<PacketFile>,
    /// The lines that are not written yet.
    lines: Vec<u8>,
    /// The time at which the end of the thread was requested; none before.
    ending: Option<Instant>,
}

impl Writing {
    fn run(mut self) {
        let mut sources = Vec::new();
        let (mut flushed, mut counted) = (Instant::now(), Instant::now());
        loop {
            if self.ending.is_none() && self.together.stop.load(Ordering::Relaxed) {
                self.ending = Some(Instant::now());
            }
            sources.append(&mut self.together.workers().new);
            let mut has_more = false;
            for source in &mut sources {
                has_more |= self.turn(source);
            }
            sources.retain(|source| !source.is_over());
            self.write_packets();
            if flushed.elapsed() > FLUSH {
                flushed = Instant::now();
                self.write();
            }
            if counted.elapsed() > STATISTICS {
                counted = Instant::now();
                self.statistics();
            }
            match self.ending {
                Some(_) if !has_more || self.is_late() => return self.end(&sources),
                None if !has_more => std::thread::sleep(LOOK),
                _ => {}
            }
        }
    }

    /// Reads events of a worker, up to the limit per worker; returns true if there may be more.
    fn turn(&mut self, source: &mut Source) -> bool {
        for _ in 0..TURN {
            if !source.take(self) {
                return false;
            }
            if self.lines.len() >= WRITTEN_BYTES {
                self.write();
                if self.is_late() {
                    break;
                }
            }
        }
        true
    }

    /// Returns true if the time limit for the remaining lines has passed.
    fn is_late(&self) -> bool {
        self.ending.is_some_and(|it| it.elapsed() > ENDING)
    }

    /// Writes the pending lines.
    fn write(&mut self) {
        self.write_packets();
        if let Some(target) = &mut self.target
            && !self.lines.is_empty()
        {
            let lost = target.write(&self.lines);
            self.together.not_written.fetch_add(lost, Ordering::Relaxed);
        }
        self.lines.clear();
    }

    fn write_packets(&mut self) {
        if let Some(packets) = &mut self.packets {
            packets.write();
            let left_out = packets.left_out();
            self.together.left_out.store(left_out, Ordering::Relaxed);
        }
    }

    fn statistics(&mut self) {
        let (outcomes, lost) = (self.together.outcomes(), self.together.lost_events());
        eve::statistics(&mut self.lines, &outcomes, lost, &self.time);
    }

    /// Writes the remaining lines when the thread ends, and counts the lines that are lost to the time limit.
    fn end(mut self, sources: &[Source]) {
        self.write();
        let left: usize = sources.iter().map(|it| it.events.slots()).sum();
        let not_written = &self.together.not_written;
        not_written.fetch_add(left as u64, Ordering::Relaxed);
        if !self.together.workers().counters.is_empty() {
            self.statistics();
            self.write();
        }
        if let Some(target) = &mut self.target {
            let cut = target.give_up();
            self.together.not_written.fetch_add(cut, Ordering::Relaxed);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.together.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
