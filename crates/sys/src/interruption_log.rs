//! The interruptions of a loop in a file that others read while the loop runs: a ring of the latest in shared memory, and what the
//! loop has done so far.
//!
//! Words of 64 bits in the machine's byte order: magic, version, ticks per second (rounded), places, interruptions so far;
//! packets, batches of them and ticks while there were some; then per place the start and the length, in ticks. One writer, which
//! never waits; a reader that is overtaken notices.

use crate::memory::Mapping;
use crate::{Error, Interruption};
use rustix::fs::{CWD, Mode, OFlags, ftruncate, openat};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_ne_bytes(*b"tautgaps");
const VERSION: u64 = 2;
/// Interruptions kept: half a minute of 2000 a second. 1 MiB.
const PLACES: usize = 1 << 16;
const COUNT_AT: usize = 4;
const WORK_AT: usize = 5;
const FIRST_AT: usize = 8;
const WORDS: usize = FIRST_AT + 2 * PLACES;

/// What a loop has done with packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Packets that came.
    pub packets: u64,
    /// Batches in which they came.
    pub batches: u64,
    /// Ticks of rounds in which some came, without those for which the core was taken away.
    pub ticks: u64,
}

impl Work {
    /// Reads what a loop that runs or has run noted last in its log.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of these.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let words = read_words(path, FIRST_AT)?;
        Ok(Self {
            packets: words[WORK_AT],
            batches: words[WORK_AT + 1],
            ticks: words[WORK_AT + 2],
        })
    }

    /// What was done since.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            batches: self.batches.saturating_sub(earlier.batches),
            ticks: self.ticks.saturating_sub(earlier.ticks),
        }
    }
}

/// Log in which a loop notes its interruptions for others.
#[derive(Debug)]
pub struct InterruptionLog {
    mapping: Mapping,
    count: u64,
}

impl InterruptionLog {
    /// Makes the file, or empties the one that is there. `hz` are the ticks of a second.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path, hz: f64) -> Result<Self, Error> {
        let system = |e: rustix::io::Errno| Error::system(path.display().to_string(), e);
        // A new file: one that is mapped by another writer keeps its length.
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
        // Touches every page, so that the loop's first notes do not fault.
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
        // SAFETY: the mapping is `WORDS` words long, page-aligned and lives as long as `self`; whoever else maps it sees
        // it change, which atomics allow for.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr().cast(), WORDS) }
    }

    /// Notes an interruption in the place of the oldest.
    #[inline]
    pub fn push(&mut self, one: Interruption) {
        let at = FIRST_AT + 2 * (self.count as usize % PLACES);
        let words = self.words();
        words[at].store(one.start_ticks, Ordering::Relaxed);
        words[at + 1].store(one.length_ticks, Ordering::Relaxed);
        // After the entry: a reader that sees the count sees it whole.
        words[COUNT_AT].store(self.count + 1, Ordering::Release);
        self.count += 1;
    }

    /// Notes what the loop has done so far.
    pub fn note_work(&mut self, work: Work) {
        // One line of memory, and rarely: a reader gets numbers of one moment but for one time in millions.
        let numbers = [work.packets, work.batches, work.ticks];
        for (word, number) in self.words()[WORK_AT..].iter().zip(numbers) {
            word.store(number, Ordering::Relaxed);
        }
    }
}

/// Interruptions that a reader of an [`InterruptionLog`] got.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedInterruptions {
    /// The latest, in their order.
    pub each: Vec<Interruption>,
    /// Earlier ones that are no longer in the file.
    pub overwritten: u64,
    /// Ticks per second of the loop's clock.
    pub hz: f64,
}

impl LoggedInterruptions {
    /// Reads the file of a loop that runs or has run.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of these.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let words = read_words(path, WORDS)?;
        if words.len() != WORDS {
            return Err(other(path));
        }
        let count = words[COUNT_AT];
        // Read again: what came meanwhile may have overwritten the oldest while they were read.
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

/// The first words of the file, so many at most, and those in front of the entries at least.
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
    let text = "not a file of interruptions; taut forward --interruptions writes one";
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
    fn what_is_noted_is_read_while_the_writer_goes_on() {
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
    fn the_oldest_make_room_and_are_counted() {
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
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gaps");
        for bytes in [Vec::new(), vec![7; 100], vec![0; WORDS * 8]] {
            fs::write(&path, bytes).unwrap();
            let error = LoggedInterruptions::read(&path).unwrap_err().to_string();
            assert!(error.contains("not a file of interruptions"), "{error}");
        }
        assert!(LoggedInterruptions::read(&folder.path().join("none")).is_err());
        assert!(InterruptionLog::create(&folder.path().join("no/gaps"), 1e9).is_err());
    }
}
