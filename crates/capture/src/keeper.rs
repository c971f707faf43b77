//! Keeper: the thread that writes the packets of the ring in memory to the ring on disk, and queries of the ring on
//! disk by filters.

use crate::clock::PacketClock;
use crate::disk::{self, DiskError, Key, Query, Writer};
use crate::filter::{Endpoints, Filter};
use crate::lock;
use crate::pcapng::Section;
use crate::record::Record;
use crate::ring::{Ring, Start};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::{Clock, spawn_background};

/// Maximum number of packets that one call reads from the ring in memory.
const AT_ONCE: usize = 4096;
const PAUSE: Duration = Duration::from_millis(1);
/// Time limit for a query to wait until pending packets have been written to disk.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time from the arrival of a packet until the thread reads it. The delay lets the thread write the packets of several
/// producers in the order of time.
const BEHIND: Duration = Duration::from_millis(2);

/// The settings of the ring on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Folder of the ring on disk.
    pub folder: PathBuf,
    /// Maximum size of the ring on disk in bytes, including indexes.
    pub bytes: u64,
    /// True if the files of the ring on disk are compressed by zstd.
    pub zstd: bool,
}

/// The status of the ring on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Folder of the ring on disk.
    pub folder: PathBuf,
    /// Packets that were written.
    pub packets: u64,
    /// Packets that could not be written.
    pub lost: u64,
    /// Packets that were overwritten in memory before they could be written.
    pub missed: u64,
    /// Segment files that were removed because of the size limit.
    pub removed: u64,
    /// Reason why packets cannot be written currently; none while writing succeeds.
    pub error: Option<String>,
}

/// The thread that stores packets on disk. Dropping it writes all pending packets.
#[derive(Debug)]
pub struct Keeper {
    folder: PathBuf,
    status: Arc<Mutex<Status>>,
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

/// The requests of other threads to the thread that writes.
#[derive(Debug, Default)]
struct Asked {
    stop: AtomicBool,
    flush: AtomicBool,
    /// Number of times that the thread has written all packets that it had read before.
    flushed: AtomicU64,
}

impl Keeper {
    /// Starts the thread, which stores the packets that arrive after this call.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, or the size is too small.
    pub fn start(
        settings: Settings,
        ring: &Arc<Ring>,
        clock: Clock,
        ports: &[String],
        times: &str,
        snap_bytes: u32,
    ) -> Result<Self, DiskError> {
        let Settings {
            folder,
            bytes,
            zstd,
        } = settings;
        let writer = Writer::open(disk::Settings {
            snap_bytes,
            zstd,
            texts: Section::ours(times),
            ..disk::Settings::new(&folder, bytes, ports.to_vec())
        })?;
        let status = Arc::new(Mutex::new(Status {
            folder: folder.clone(),
            ..Status::default()
        }));
        let asked = Arc::new(Asked::default());
        let reader = ring.reader(Start::Now);
        let keeping = Keeping {
            writer,
            reader,
            clock: PacketClock::new(clock),
            status: Arc::clone(&status),
            asked: Arc::clone(&asked),
        };
        let thread = spawn_background("capture-keep", move || keeping.run());
        let thread = thread.map_err(|e| DiskError::Folder {
            path: folder.clone(),
            why: std::io::Error::other(e.to_string()),
        })?;
        Ok(Self {
            folder,
            status,
            asked,
            thread: Some(thread),
        })
    }

    /// Returns the folder of the ring on disk.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes all packets that have arrived, so that queries find them. Waits until they are written, but at most two
    /// seconds.
    pub fn flush(&self) {
        let before = self.asked.flushed.load(Ordering::Acquire);
        self.asked.flush.store(true, Ordering::Release);
        let deadline = Instant::now() + PATIENCE;
        while self.asked.flushed.load(Ordering::Acquire) == before && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the status of the ring on disk.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Writes all pending packets, and ends the thread; returns the last status.
    pub fn finish(mut self) -> Status {
        self.end();
        self.status()
    }

    fn end(&mut self) {
        self.asked.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

struct Keeping {
    writer: Writer,
    reader: crate::ring::Reader,
    clock: PacketClock,
    status: Arc<Mutex<Status>>,
    asked: Arc<Asked>,
}

impl Keeping {
    fn run(mut self) {
        loop {
            let is_over = self.asked.stop.load(Ordering::Acquire);
            let until_ns = match is_over {
                true => u64::MAX,
                false => self.clock.now().saturating_sub(BEHIND.as_nanos() as u64),
            };
            let writer = &mut self.writer;
            let mut trouble = None;
            let read = self.reader.read(until_ns, AT_ONCE, |record| {
                if let Err(e) = writer.append(record) {
                    trouble = Some(e.to_string());
                }
            });
            let is_asked = read < AT_ONCE && self.asked.flush.swap(false, Ordering::AcqRel);
            let written = match is_asked {
                true => writer.flush(),
                false => writer.tick(Instant::now()),
            };
            if let Err(e) = written {
                trouble = Some(e.to_string());
            }
            if is_asked {
                self.asked.flushed.fetch_add(1, Ordering::Release);
            }
            self.tell(trouble);
            if read == 0 {
                if is_over {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        // Packets that cannot be written any more are counted.
        let ended = self.writer.close();
        self.tell(ended.err().map(|e| e.to_string()));
    }

    fn tell(&mut self, trouble: Option<String>) {
        let counts = self.writer.counts();
        let mut status = lock(&self.status);
        status.packets = counts.packets;
        status.lost = counts.lost;
        status.removed = counts.removed;
        status.missed = self.reader.missed();
        if trouble.is_some() {
            status.error = trouble;
        } else if !self.writer.is_failing() {
            status.error = None;
        }
    }
}

/// Calls `each` for the packets on disk that match a filter, with timestamps within a range, in the order of the files.
///
/// # Errors
/// Returns an error if the folder cannot be read, or the error with which `each` stops.
pub fn query<E>(
    folder: &Path,
    filter: &Filter,
    from_ns: u64,
    to_ns: u64,
    mut each: impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(disk::Found, Result<(), E>), DiskError> {
    let stop = AtomicBool::new(false);
    let mut ended = Ok(());
    let mut matches = |record: &Record<'_>| {
        let is_one = filter.matches(record.frame, record.facts.wire_bytes);
        if is_one && let Err(e) = each(record) {
            ended = Err(e);
            stop.store(true, Ordering::Relaxed);
        }
        is_one
    };
    let found = disk::query(
        folder,
        Query {
            from_ns,
            to_ns,
            wanted: wanted(filter),
            matches: &mut matches,
            stop: &stop,
        },
    )?;
    Ok((found, ended))
}

/// Returns the keys that a filter requires, as lists: a matching packet has all keys of at least one list.
fn wanted(filter: &Filter) -> Vec<Vec<Key>> {
    let alternatives = filter.needs().addresses();
    alternatives
        .iter()
        .map(|it| it.as_ref().map(keys).unwrap_or_default())
        .collect()
}

fn keys(ends: &Endpoints) -> Vec<Key> {
    let mut keys = Vec::new();
    if let (Some(source), Some(destination), Some(protocol), Some(from), Some(to)) = (
        ends.source,
        ends.destination,
        ends.protocol,
        ends.source_port,
        ends.destination_port,
    ) {
        keys.push(Key::Flow {
            one: (source, from),
            other: (destination, to),
            protocol,
        });
    }
    keys.extend(
        [ends.source, ends.destination]
            .into_iter()
            .flatten()
            .map(Key::Address),
    );
    if let Some(protocol) = ends.protocol {
        let ports = [ends.source_port, ends.destination_port]
            .into_iter()
            .flatten();
        keys.extend(ports.map(|port| Key::Port { protocol, port }));
        keys.push(Key::Protocol(protocol));
    }
    keys.extend(ends.ethertype.map(Key::EtherType));
    keys
}
