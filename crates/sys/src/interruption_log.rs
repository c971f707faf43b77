//! A log of a loop's interruptions in a file that other processes read while the loop runs. The file is shared memory
//! with a ring of the latest interruptions, and counts of the loop's work.
//!
//! The file has words of 64 bits in the machine's byte order. First are magic, version, cycles per second (rounded),
//! number of slots, number of interruptions, packets, batches of packets and busy cycles. Then each slot has the start
//! and the length of an interruption, in cycles. There is one writer, which never waits; a reader notices if entries
//! were overwritten.

use crate::memory::Mapping;
use crate::{Error, Interruption};
use rustix::fs::{CWD, Mode, OFlags, ftruncate, openat};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_ne_bytes(*b"tautgaps");
const VERSION: u64 = 2;
/// The number of interruptions that the log stores: at 2000 interruptions per second, the last half a minute (1 MiB).
const PLACES: usize = 1 << 16;
const COUNT_AT: usize = 4;
const WORK_AT: usize = 5;
const FIRST_AT: usize = 8;
const WORDS: usize = FIRST_AT + 2 * PLACES;

/// Counts of a loop's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of received packets.
    pub packets: u64,
    /// Number of batches with packets.
    pub batches: u64,
    /// Cycles spent in iterations with packets; the time of interruptions is not included.
    pub ticks: u64,
}

impl Work {
    /// Reads the latest counts from the log of a loop that runs or has run.
    ///
    /// # Errors
    /// The file cannot be read, or is not an interruption log.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let words = read_words(path, FIRST_AT)?;
        Ok(Self {
            packets: words[WORK_AT],
            batches: words[WORK_AT + 1],
            ticks: words[WORK_AT + 2],
        })
    }

    /// Returns the work since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            batches: self.batches.saturating_sub(earlier.batches),
            ticks: self.ticks.saturating_sub(earlier.ticks),
        }
    }
}

/// A log in which a loop records its interruptions for other processes.
#[derive(Debug)]
pub struct InterruptionLog {
    mapping: Mapping,
    count: u64,
}

impl InterruptionLog {
    /// Creates the log's file at `path`, or replaces an existing file. `hz` is the number of cycles per second.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn create(path: &Path, hz: f64) -> Result<Self, Error> {
        let system = |e: rustix::io::Errno| Error::system(path.display().to_string(), e);
        // Always a new file, because a file mapped by another writer must keep its length.
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::system(path.display().to_string(), e));
            }
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(CWD, path, flags, Mode::from_raw_mode(0o644)).map_err(system)?;
        ftruncate(&file, (WORDS * size_of::<u64>()) as u64).map_err(system)?;
        let log = Self {
            mapping: Mapping::of_file(file, WORDS * size_of::<u64>())?,
            count: 0,
        };
        // Touches every page, so that the first entries cause no page faults.
        log.words()
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        for (at, value) in [VERSION, hz.round() as u64, PLACES as u64]
            .into_iter()
            .enumerate()
        {
            log.words()[at + 1].store(value, Ordering::Relaxed);
        }
        log.words()[0].store(MAGIC, Ordering::Release);
        Ok(log)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `WORDS` words long, page-aligned and lives as long as `self`. Other processes that map
        // it may change it at any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr().cast(), WORDS) }
    }

    /// Records an interruption; it overwrites the oldest entry if the log is full.
    #[inline]
    pub fn push(&mut self, one: Interruption) {
        let at = FIRST_AT + 2 * (self.count as usize % PLACES);
        let words = self.words();
        words[at].store(one.start_ticks, Ordering::Relaxed);
        words[at + 1].store(one.length_ticks, Ordering::Relaxed);
        // Stored after the entry, so a reader that sees the count sees the full entry.
        words[COUNT_AT].store(self.count + 1, Ordering::Release);
        self.count += 1;
    }

    /// Records the counts of the loop's work since its start.
    pub fn note_work(&mut self, work: Work) {
        // The words share a cache line and change rarely, so a reader almost always gets consistent values.
        let numbers = [work.packets, work.batches, work.ticks];
        for (word, number) in self.words()[WORK_AT..].iter().zip(numbers) {
            word.store(number, Ordering::Relaxed);
        }
    }
}

/// Interruptions read from an [`InterruptionLog`].
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedInterruptions {
    /// Latest interruptions of the loop, in order of time.
    pub each: Vec<Interruption>,
    /// Number of earlier interruptions that are no longer in the file.
    pub overwritten: u64,
    /// Cycles per second of the loop's clock.
    pub hz: f64,
}

impl LoggedInterruptions {
    /// Reads the log of a loop that runs or has run.
    ///
    /// # Errors
    /// The file cannot be read, or is not an interruption log.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let words = read_words(path, WORDS)?;
        if words.len() != WORDS {
            return Err(other(path));
        }
        let count = words[COUNT_AT];
        // The count is read again, because the writer may have overwritten the oldest entries during the read.
        let later = read_words(path, FIRST_AT)?[COUNT_AT];
        let first = (later + 1).saturating_sub(PLACES as u64).min(count);
        let each = (first..count).map(|number| {
            let at = FIRST_AT + 2 * (number as usize % PLACES);
            Interruption {
                start_ticks: words[at],
                length_ticks: words[at + 1],
            }
        });
        Ok(Self {
            each: each.collect(),
            overwritten: first,
            hz: words[2] as f64,
        })
    }
}

/// Reads the first words of the file: at most `most`, and at least those before the entries.
fn read_words(path: &Path, most: usize) -> Result<Vec<u64>, Error> {
    let system = |e: std::io::Error| Error::system(path.display().to_string(), e);
    let file = fs::File::open(path).map_err(system)?;
    let mut bytes = Vec::with_capacity(8 * most);
    file.take(8 * most as u64)
        .read_to_end(&mut bytes)
        .map_err(system)?;
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    match words.get(..FIRST_AT) {
        Some([MAGIC, VERSION, _, places, ..]) if *places == PLACES as u64 => Ok(words),
        _ => Err(other(path)),
    }
}

fn other(path: &Path) -> Error {
    let text = "not a log of interruptions; taut forward --interruptions writes one";
    Error::system(path.display().to_string(), std::io::Error::other(text))
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn one(number: u64) -> Interruption {
        Interruption {
            start_ticks: number * 10,
            length_ticks: number,
        }
    }

    #[test]
    fn logged_interruptions_are_readable_while_the_writer_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gaps");
        let mut log = InterruptionLog::create(&path, 2.5e9).unwrap();
        assert_eq!(LoggedInterruptions::read(&path).unwrap().each, []);
        log.push(one(1));
        log.push(one(2));
        let read = LoggedInterruptions::read(&path).unwrap();
        assert_eq!((read.each, read.overwritten), (vec![one(1), one(2)], 0));
        assert_eq!(read.hz, 2.5e9);
        assert_eq!(Work::read(&path).unwrap(), Work::default());
        let work = Work {
            packets: 32,
            batches: 1,
            ticks: 900,
        };
        log.note_work(work);
        let read = LoggedInterruptions::read(&path).unwrap();
        assert_eq!((Work::read(&path).unwrap(), read.each.len()), (work, 2));
        let later = Work {
            ticks: 1_000,
            ..work
        };
        let since = Work {
            ticks: 100,
            ..Work::default()
        };
        assert_eq!(later.since(work), since);
    }

    #[test]
    fn the_oldest_interruptions_are_overwritten_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gaps");
        let mut log = InterruptionLog::create(&path, 1e9).unwrap();
        let count = PLACES as u64 + 10;
        (0..count).for_each(|number| log.push(one(number)));
        let read = LoggedInterruptions::read(&path).unwrap();
        assert_eq!(read.overwritten + read.each.len() as u64, count);
        assert_eq!(read.each.last(), Some(&one(count - 1)));
        assert!(read.each.is_sorted_by_key(|one| one.start_ticks));
    }

    #[test]
    fn files_other_than_interruption_logs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gaps");
        for bytes in [Vec::new(), vec![7; 100], vec![0; WORDS * 8]] {
            fs::write(&path, bytes).unwrap();
            let error = LoggedInterruptions::read(&path).unwrap_err().to_string();
            assert!(error.contains("not a log of interruptions"), "{error}");
        }
        assert!(LoggedInterruptions::read(&folder.path().join("none")).is_err());
        assert!(InterruptionLog::create(&folder.path().join("no/gaps"), 1e9).is_err());
    }
}
