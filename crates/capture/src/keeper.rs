//! Keeper: a thread that writes what comes into a ring in memory to the ring on disk, and queries to both by filters.

use crate::clock::PacketClock;
use crate::disk::{self, DiskError, Key, Query, Writer};
use crate::filter::{Endpoints, Filter};
use crate::lock;
use crate::pcapng::Section;
use crate::record::Record;
use crate::ring::{Ring, Start};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::{Clock, spawn_background};

/// Packets that are read in one go.
const AT_ONCE: usize = 4096;
const PAUSE: Duration = Duration::from_millis(1);
/// Time that a query waits for what it asks to be written.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time by which the thread is behind, so that packets of several producers stand in the order of time.
const BEHIND: Duration = Duration::from_millis(2);

/// Folder in which packets are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The folder.
    pub folder: PathBuf,
    /// Its size, indexes included, bytes.
    pub bytes: u64,
    /// Files are compressed by zstd.
    pub zstd: bool,
}

/// State of what is kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The folder.
    pub folder: PathBuf,
    /// Packets that were written.
    pub packets: u64,
    /// Packets that could not be written.
    pub lost: u64,
    /// Packets that were written over in memory before they could be written.
    pub missed: u64,
    /// Files that were removed, as others took their place.
    pub removed: u64,
    /// Why nothing is written at the moment.
    pub error: Option<String>,
}

/// The thread that keeps packets on disk. Dropping it writes all that is there.
#[derive(Debug)]
pub struct Keeper {
    folder: PathBuf,
    status: Arc<Mutex<Status>>,
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Asked {
    stop: AtomicBool,
    flush: AtomicBool,
    /// Times that all was written that had been read before.
    flushed: AtomicU64,
}

impl Keeper {
    /// Begins to keep what comes from now on.
    ///
    /// # Errors
    /// When the folder cannot be used, or is too small.
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

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Has all be written that has come, so that it can be read; waits for that, but not for a disk that takes seconds.
    pub fn flush(&self) {
        let before = self.asked.flushed.load(Ordering::Acquire);
        self.asked.flush.store(true, Ordering::Release);
        let deadline = Instant::now() + PATIENCE;
        while self.asked.flushed.load(Ordering::Acquire) == before && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
    }

    /// Its state.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Writes all that is there, and ends; its last state.
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
        // What cannot be written any more is counted.
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

/// Packets on disk that a filter lets through, stamped within a time: calls `each` for them, in the order of the files.
///
/// # Errors
/// When the folder cannot be read, or `each` says stop by an error.
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

/// Keys that the packets of a filter have: all of one of these lists.
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
