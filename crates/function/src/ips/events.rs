//! Events as lines of JSON, in the form that Suricata calls EVE: from workers through a ring each to a thread that writes. A worker
//! never waits: what finds no room is counted.

use super::outcome::Counters;
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
use taut_port::PortError;
use taut_sys::{Clock, spawn_background, ticks};

/// Events of a worker that may wait.
const ROOM: usize = 4096;
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
    },
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
    /// Events that found no room.
    lost: Arc<AtomicU64>,
}

impl Events {
    /// Writes it down, if there is room.
    #[inline]
    pub fn push(&mut self, event: Event) {
        if self.ring.push(event).is_err() {
            // Only this thread adds.
            self.lost
                .store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// Ends of the rings, and what is known of the workers.
#[derive(Default)]
struct Sources {
    rings: Vec<(Consumer<Event>, Arc<AtomicU64>)>,
    counters: Vec<Arc<Counters>>,
}

/// The thread that writes. Dropping it has it write what is there, and ends it.
pub(super) struct Writer {
    sources: Arc<Mutex<Sources>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    failures: Arc<AtomicU64>,
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
    /// Opens the file, or names the socket, and starts.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn start(target: &str, rules: &Arc<Rules>) -> Result<Self, PortError> {
        let what = || format!("function \"ips\": events = \"{target}\"");
        let mut target = Target::open(target).map_err(|e| PortError::system(what(), e))?;
        let sources = Arc::new(Mutex::new(Sources::default()));
        let (stop, failures) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let thread = {
            let (sources, stop, failures, rules) = (
                Arc::clone(&sources),
                Arc::clone(&stop),
                Arc::clone(&failures),
                Arc::clone(rules),
            );
            spawn_background("events", move || {
                let time = Time::new();
                let (mut flushed, mut counted) = (Instant::now(), Instant::now());
                loop {
                    let is_over = stop.load(Ordering::Relaxed);
                    let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
                    let mut lines = Vec::new();
                    for (ring, _) in &mut sources.rings {
                        while let Ok(event) = ring.pop() {
                            lines.push(in_json(&event, &time, &rules));
                        }
                    }
                    if counted.elapsed() > STATISTICS || (is_over && !sources.counters.is_empty()) {
                        counted = Instant::now();
                        lines.push(statistics(&sources, &time));
                    }
                    // A ring without its worker, and nothing left in it.
                    sources
                        .rings
                        .retain(|(ring, _)| !(ring.is_abandoned() && ring.is_empty()));
                    drop(sources);
                    for line in lines {
                        let mut bytes = line.to_string().into_bytes();
                        bytes.push(b'\n');
                        if target.write(&bytes).is_err() {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if flushed.elapsed() > FLUSH || is_over {
                        flushed = Instant::now();
                        if target.flush().is_err() {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if is_over {
                        return;
                    }
                    std::thread::sleep(LOOK);
                }
            })?
        };
        Ok(Self {
            sources,
            stop,
            thread: Some(thread),
            failures,
        })
    }

    /// Makes the end of one more worker.
    pub fn worker(&self, counters: &Arc<Counters>) -> Events {
        let (producer, consumer) = RingBuffer::new(ROOM);
        let lost = Arc::new(AtomicU64::new(0));
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.rings.push((consumer, Arc::clone(&lost)));
        sources.counters.push(Arc::clone(counters));
        Events {
            ring: producer,
            lost,
        }
    }

    /// Events that were not written: they found no room, or the file or socket did not take them.
    pub fn lost(&self) -> u64 {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let lost: u64 = sources
            .rings
            .iter()
            .map(|(_, lost)| lost.load(Ordering::Relaxed))
            .sum();
        lost + self.failures.load(Ordering::Relaxed)
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

    fn at(&self, ticks: u64) -> String {
        let since = self.clock.to_ns(ticks.abs_diff(self.ticks));
        let since = Duration::from_nanos(since as u64);
        let wall = if ticks >= self.ticks {
            self.wall + since
        } else {
            self.wall.saturating_sub(since)
        };
        utc(wall)
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
        line["app_proto"] = match application {
            Application::Http => "http",
            Application::Dns => "dns",
            Application::Tls => "tls",
        }
        .into();
    }
    match event.what {
        What::Alert {
            version,
            rule,
            is_blocked,
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
    let lost: u64 = sources
        .rings
        .iter()
        .map(|(_, lost)| lost.load(Ordering::Relaxed))
        .sum();
    json!({
        "timestamp": time.at(ticks()),
        "event_type": "stats",
        "stats": { "ips": all, "events_lost": lost },
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
