//! Events as lines of JSON, in the form that Suricata calls EVE, and the packets that alerts are about: from workers
//! through a ring each to a thread that writes. A worker never waits: what finds no room is counted.

use super::outcome::Counters;
use super::packet_file::PacketFile;
use super::rules::Rules;
use rtrb::{Consumer, Producer, RingBuffer};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::Ipv6Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use taut_inspect::buffer::Application;
use taut_inspect::rule::About;
use taut_port::PortError;
use taut_sys::{Clock, spawn_background, ticks};

/// Events of a worker that may wait, and bytes of packets.
const ROOM: usize = 4096;
const ROOM_BYTES: usize = 1 << 20;
/// Rules that are named at a packet at most.
const MOST_COMMENTS: usize = 16;
/// Rings are looked into this often.
const LOOK: Duration = Duration::from_millis(10);
/// What was written is given to the system this often.
const FLUSH: Duration = Duration::from_millis(100);
/// Statistics are written this often.
const STATISTICS: Duration = Duration::from_secs(8);
/// A socket that nobody listened at is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// Who sends to whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub source: (u128, u16),
    pub destination: (u128, u16),
    pub protocol: u8,
}

/// What has happened.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A rule fits.
    Alert {
        /// Set of rules that it is of, and its place there.
        version: u64,
        rule: u32,
        /// Whether the packet was dropped.
        is_blocked: bool,
        /// Number of the packet that it is about: the one that comes next.
        packet: u32,
    },
    /// The packet of that number, so many bytes of which are in the ring of bytes.
    Packet { number: u32, len: u32 },
    /// A packet is dropped, and by no rule that fits it.
    Drop { reason: &'static str },
    /// A flow is over.
    Flow {
        packets: [u32; 2],
        bytes: [u64; 2],
        alerts: u32,
        /// Why nobody asks for it any more.
        reason: &'static str,
    },
}

/// Event of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub at_ticks: u64,
    pub flow: u64,
    pub ends: Ends,
    pub application: Option<Application>,
    pub port: u8,
    pub what: What,
}

/// A worker's end.
pub(super) struct Events {
    ring: Producer<Event>,
    /// Bytes of packets, if they are wanted.
    bytes: Option<Producer<u8>>,
    /// Whether anybody reads what is no alert.
    has_lines: bool,
    /// Number of the packet whose alerts come next, and whether it has had one.
    packet: u32,
    is_alerted: bool,
    lost: Arc<Lost>,
}

/// What found no room in the rings of a worker.
#[derive(Default)]
struct Lost {
    events: AtomicU64,
    packets: AtomicU64,
}

impl Events {
    /// Writes it down, if there is room.
    #[inline]
    pub fn push(&mut self, event: Event) {
        let is_alert = matches!(event.what, What::Alert { .. });
        self.is_alerted |= is_alert;
        if (is_alert || self.has_lines) && self.ring.push(event).is_err() {
            one_more(&self.lost.events);
        }
    }

    /// Number of the packet whose alerts come next.
    #[inline]
    pub fn packet(&self) -> u32 {
        self.packet
    }

    /// Writes the packet down that alerts were about, if there were any, and room for all of it.
    #[inline]
    pub fn end_of_packet(&mut self, event: impl FnOnce(What) -> Event, frame: &[u8]) {
        if std::mem::take(&mut self.is_alerted) {
            self.keep(event, frame);
        }
    }

    #[cold]
    fn keep(&mut self, event: impl FnOnce(What) -> Event, frame: &[u8]) {
        let Some(bytes) = &mut self.bytes else {
            return;
        };
        let number = self.packet;
        self.packet = number.wrapping_add(1);
        // Who else pushes there is nobody, so an event finds the room that there is; it comes behind its bytes.
        if self.ring.is_full() || bytes.push_entire_slice(frame).is_err() {
            return one_more(&self.lost.packets);
        }
        let len = frame.len() as u32;
        if self.ring.push(event(What::Packet { number, len })).is_err() {
            one_more(&self.lost.packets);
        }
    }
}

/// Adds to a counter that only this thread adds to.
fn one_more(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The other end of a worker's rings.
struct Source {
    events: Consumer<Event>,
    bytes: Option<Consumer<u8>>,
    lost: Arc<Lost>,
    /// What alerts say of the packet of a number, which comes next.
    comments: Vec<String>,
    packet: u32,
    /// The packet itself.
    frame: Vec<u8>,
}

impl Source {
    /// Whether its worker is gone, and nothing is left in it.
    fn is_over(&self) -> bool {
        self.events.is_abandoned() && self.events.is_empty()
    }

    /// Takes what there is: lines, and packets with what is said about them.
    fn take(
        &mut self,
        time: &Time,
        rules: &Rules,
        lines: &mut Vec<Value>,
        mut packets: Option<&mut PacketFile>,
    ) {
        while let Ok(event) = self.events.pop() {
            match event.what {
                What::Packet { number, len } => {
                    self.frame.resize(len as usize, 0);
                    let bytes = self.bytes.as_mut();
                    let is_there =
                        bytes.is_some_and(|it| it.pop_entire_slice(&mut self.frame).is_ok());
                    if let Some(packets) = &mut packets
                        && is_there
                        && number == self.packet
                        && !self.comments.is_empty()
                    {
                        let at_ns = time.since_1970(event.at_ticks).as_nanos() as u64;
                        packets.put(event.port, at_ns, &self.frame, &self.comments);
                    }
                    self.comments.clear();
                }
                What::Alert {
                    version,
                    rule,
                    is_blocked,
                    packet,
                } if packets.is_some() => {
                    if packet != self.packet {
                        self.packet = packet;
                        self.comments.clear();
                    }
                    if self.comments.len() < MOST_COMMENTS
                        && let Some(about) = rules.about(version, rule)
                    {
                        self.comments.push(comment(&about, is_blocked));
                    }
                    lines.push(in_json(&event, time, rules));
                }
                _ => lines.push(in_json(&event, time, rules)),
            }
        }
    }
}

/// What a packet is said to be by a rule: number, revision and message of the rule.
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

/// Ends of the rings, and what is known of the workers.
#[derive(Default)]
struct Sources {
    rings: Vec<Source>,
    counters: Vec<Arc<Counters>>,
}

impl Sources {
    fn lost(&self, of: impl Fn(&Lost) -> &AtomicU64) -> u64 {
        let each = self.rings.iter().map(|it| of(&it.lost));
        each.map(|it| it.load(Ordering::Relaxed)).sum()
    }
}

/// The thread that writes. Dropping it has it write what is there, and ends it.
pub(super) struct Writer {
    sources: Arc<Mutex<Sources>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    failures: Arc<AtomicU64>,
    left_out: Arc<AtomicU64>,
    has_lines: bool,
    has_packets: bool,
}

enum Target {
    File(BufWriter<File>),
    /// A socket at that path, and since when nobody listens there.
    Socket {
        path: String,
        stream: Option<BufWriter<UnixStream>>,
        tried: Option<Instant>,
    },
}

impl Target {
    fn open(text: &str) -> io::Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Socket {
                path: path.to_string(),
                stream: None,
                tried: None,
            });
        }
        // Links are not followed: who may write into the folder must not have root write elsewhere.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .custom_flags(flags)
            .open(text)?;
        Ok(Self::File(BufWriter::with_capacity(1 << 16, file)))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(line),
            Self::Socket {
                path,
                stream,
                tried,
            } => {
                if stream.is_none() && tried.is_none_or(|tried| tried.elapsed() > AGAIN) {
                    *tried = Some(Instant::now());
                    let connected = UnixStream::connect(&*path)?;
                    connected.set_write_timeout(Some(AGAIN))?;
                    *stream = Some(BufWriter::with_capacity(1 << 16, connected));
                }
                let Some(open) = stream else {
                    return Err(io::ErrorKind::NotConnected.into());
                };
                let written = open.write_all(line);
                if written.is_err() {
                    *stream = None;
                }
                written
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Socket {
                stream: Some(open), ..
            } => open.flush(),
            Self::Socket { .. } => Ok(()),
        }
    }
}

impl Writer {
    /// Opens the files, or names the socket, and starts: lines go to `events`, packets of alerts to the file `alerts`
    /// of so many bytes at most. None if nobody wants either.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub fn start(
        events: Option<&str>,
        alerts: Option<(&str, u64)>,
        rules: &Arc<Rules>,
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
        let sources = Arc::new(Mutex::new(Sources::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (failures, left_out) = (Arc::default(), Arc::default());
        let thread = {
            let writing = Writing {
                sources: Arc::clone(&sources),
                rules: Arc::clone(rules),
                failures: Arc::clone(&failures),
                left_out: Arc::clone(&left_out),
                target,
                packets,
            };
            let stop = Arc::clone(&stop);
            spawn_background("events", move || writing.run(&stop))?
        };
        Ok(Some(Self {
            sources,
            stop,
            thread: Some(thread),
            failures,
            left_out,
            has_lines,
            has_packets,
        }))
    }

    /// Makes the end of one more worker.
    pub fn worker(&self, counters: &Arc<Counters>) -> Events {
        let (ring, events) = RingBuffer::new(ROOM);
        let (into, bytes) = match self.has_packets {
            true => {
                let (into, bytes) = RingBuffer::new(ROOM_BYTES);
                (Some(into), Some(bytes))
            }
            false => (None, None),
        };
        let lost = Arc::new(Lost::default());
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.rings.push(Source {
            events,
            bytes,
            lost: Arc::clone(&lost),
            comments: Vec::new(),
            packet: 0,
            frame: Vec::new(),
        });
        sources.counters.push(Arc::clone(counters));
        Events {
            ring,
            bytes: into,
            has_lines: self.has_lines,
            packet: 0,
            is_alerted: false,
            lost,
        }
    }

    /// Events that were not written: they found no room, or the file or socket did not take them.
    pub fn lost(&self) -> u64 {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.lost(|it| &it.events) + self.failures.load(Ordering::Relaxed)
    }

    /// Packets of alerts that are not in the file: they found no room, or the file is as large as it may be or could
    /// not be written.
    pub fn left_out(&self) -> u64 {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.lost(|it| &it.packets) + self.left_out.load(Ordering::Relaxed)
    }
}

/// What the thread has.
struct Writing {
    sources: Arc<Mutex<Sources>>,
    rules: Arc<Rules>,
    failures: Arc<AtomicU64>,
    left_out: Arc<AtomicU64>,
    target: Option<Target>,
    packets: Option<PacketFile>,
}

impl Writing {
    fn run(mut self, stop: &AtomicBool) {
        let time = Time::new();
        let (mut flushed, mut counted) = (Instant::now(), Instant::now());
        loop {
            let is_over = stop.load(Ordering::Relaxed);
            let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            let mut lines = Vec::new();
            for source in &mut sources.rings {
                source.take(&time, &self.rules, &mut lines, self.packets.as_mut());
            }
            if counted.elapsed() > STATISTICS || (is_over && !sources.counters.is_empty()) {
                counted = Instant::now();
                lines.push(statistics(&sources, &time));
            }
            sources.rings.retain(|source| !source.is_over());
            drop(sources);
            if let Some(packets) = &mut self.packets {
                packets.write();
                self.left_out.store(packets.left_out(), Ordering::Relaxed);
            }
            if let Some(target) = &mut self.target {
                for line in lines {
                    let mut bytes = line.to_string().into_bytes();
                    bytes.push(b'\n');
                    if target.write(&bytes).is_err() {
                        self.failures.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if flushed.elapsed() > FLUSH || is_over {
                    flushed = Instant::now();
                    if target.flush().is_err() {
                        self.failures.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            if is_over {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the time of day was at a number of ticks.
struct Time {
    clock: Clock,
    ticks: u64,
    wall: Duration,
}

impl Time {
    fn new() -> Self {
        let clock = Clock::calibrate(Duration::from_millis(20));
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            clock,
            ticks: ticks(),
            wall,
        }
    }

    fn since_1970(&self, ticks: u64) -> Duration {
        let since = self.clock.to_ns(ticks.abs_diff(self.ticks));
        let since = Duration::from_nanos(since as u64);
        if ticks >= self.ticks {
            self.wall + since
        } else {
            self.wall.saturating_sub(since)
        }
    }

    fn at(&self, ticks: u64) -> String {
        utc(self.since_1970(ticks))
    }
}

/// Time of day as RFC 3339 has it, with microseconds and the offset as Suricata writes it.
fn utc(since_1970: Duration) -> String {
    let text = humantime::format_rfc3339_micros(UNIX_EPOCH + since_1970).to_string();
    text.replace('Z', "+0000")
}

fn address(bits: u128) -> String {
    let address = Ipv6Addr::from(bits);
    address
        .to_ipv4_mapped()
        .map_or_else(|| address.to_string(), |it| it.to_string())
}

fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        58 => "IPv6-ICMP".into(),
        132 => "SCTP".into(),
        other => format!("{other:03}"),
    }
}

fn in_json(event: &Event, time: &Time, rules: &Rules) -> Value {
    let Ends {
        source,
        destination,
        protocol: number,
    } = event.ends;
    let kind = match event.what {
        What::Alert { .. } => "alert",
        What::Drop { .. } => "drop",
        What::Flow { .. } => "flow",
        What::Packet { .. } => "packet",
    };
    let mut line = json!({
        "timestamp": time.at(event.at_ticks),
        "flow_id": event.flow,
        "in_iface": event.port.to_string(),
        "event_type": kind,
        "src_ip": address(source.0),
        "dest_ip": address(destination.0),
        "proto": protocol(number),
    });
    if matches!(number, 6 | 17 | 132) {
        line["src_port"] = source.1.into();
        line["dest_port"] = destination.1.into();
    }
    if let Some(application) = event.application {
        line["app_proto"] = application.name().into();
    }
    match event.what {
        What::Alert {
            version,
            rule,
            is_blocked,
            ..
        } => {
            let mut alert = json!({ "action": if is_blocked { "blocked" } else { "allowed" } });
            if let Some(about) = rules.about(version, rule) {
                alert["gid"] = about.group.into();
                alert["signature_id"] = about.id.into();
                alert["rev"] = about.revision.into();
                alert["signature"] = about.message.as_str().into();
                alert["category"] = about.class.as_str().into();
                alert["severity"] = if about.priority == 0 {
                    3
                } else {
                    about.priority
                }
                .into();
            }
            line["alert"] = alert;
        }
        What::Packet { .. } => {}
        What::Drop { reason } => line["drop"] = json!({ "reason": reason }),
        What::Flow {
            packets,
            bytes,
            alerts,
            reason,
        } => {
            line["flow"] = json!({
                "pkts_toserver": packets[0],
                "pkts_toclient": packets[1],
                "bytes_toserver": bytes[0],
                "bytes_toclient": bytes[1],
                "reason": reason,
                "alerted": alerts > 0,
            });
        }
    }
    line
}

fn statistics(sources: &Sources, time: &Time) -> Value {
    let mut all = serde_json::Map::new();
    for counters in &sources.counters {
        for (name, count) in counters.outcomes() {
            let before = all.get(name).and_then(Value::as_u64).unwrap_or(0);
            all.insert(name.to_string(), (before + count).into());
        }
    }
    json!({
        "timestamp": time.at(ticks()),
        "event_type": "stats",
        "stats": { "ips": all, "events_lost": sources.lost(|it| &it.events) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00.000000+0000"),
            (951_782_400, "2000-02-29T00:00:00.000000+0000"),
            (1_796_083_199, "2026-11-30T23:59:59.000000+0000"),
            (4_107_542_400, "2100-03-01T00:00:00.000000+0000"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn addresses_are_written_in_their_family() {
        assert_eq!(address(0xffff_c000_0201), "192.0.2.1");
        assert_eq!(address(0x2001_0db8 << 96 | 1), "2001:db8::1");
    }
}
