//! WALK: follows `steps` links per packet through a randomly permuted list of configurable size, with one cache line
//! per element. (Gallenmüller 2021, section 5.1: SHEEP's cache loader.)

use serde::Deserialize;
use std::sync::atomic::{AtomicBool, Ordering};
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, Watcher, settings,
};
use taut_port::{Batch, PortError};
use taut_settings::Size;
use taut_sys::{LINE_BYTES, LinkedLines};

/// The size of the smallest list in bytes: one page.
const LEAST_BYTES: u64 = 4 << 10;
/// The size of the largest list in bytes.
const MOST_BYTES: u64 = 8 << 30;
/// The list size, in bytes, from which on the user is notified that the allocation takes seconds.
const LONG_BYTES: u64 = 512 << 20;
/// The number of cache lines that are linked between two checks of the stop flag: some ten milliseconds of cache
/// misses.
const LINES_PER_LOOK: usize = 1 << 16;
/// The limit on steps per packet. At this limit, a batch still ends within a second.
const MOST_STEPS: u32 = 100_000;

pub(crate) const ENTRY: Entry = Entry {
    name: "walk",
    summary: "walks through a list in memory, some steps per packet",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        settings(table).and_then(|settings: Settings| {
            Ok(Box::new(Walk::new(settings.check()?)) as Box<dyn Function>)
        })
    },
    in_kernel: KernelVersion::No("what it costs is meant for a core of its own"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    ("steps", "required", "steps per packet, 0 to 100000"),
    (
        "bytes",
        "required",
        "size of the list, `4 kB` to `8 GB` (powers of 1024), or a number of bytes",
    ),
    ("seed", "1", "of the order of the list"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    steps: u32,
    bytes: Size,
    #[serde(default = "first_seed")]
    seed: u64,
}

fn first_seed() -> u64 {
    1
}

impl Settings {
    fn check(self) -> Result<Self, SettingsError> {
        if self.steps > MOST_STEPS {
            return Err(SettingsError(format!(
                "steps: expected 0 to {MOST_STEPS} per packet"
            )));
        }
        if !(LEAST_BYTES..=MOST_BYTES).contains(&self.bytes.bytes) {
            return Err(SettingsError("bytes: expected 4 kB to 8 GB".to_string()));
        }
        Ok(self)
    }
}

struct Walk {
    settings: Settings,
    list: Option<LinkedLines>,
    /// The list position at which the walk of the last packet ended.
    at: usize,
}

impl Walk {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            list: None,
            at: 0,
        }
    }
}

impl Function for Walk {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    #[inline]
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        if let Some(list) = &self.list {
            for _ in 0..batch.len() {
                self.at = list.follow(self.at, self.settings.steps);
            }
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.prepare_watched(&Watcher {
            stop: &AtomicBool::new(false),
            tell: &|_| {},
        })
    }

    fn prepare_watched(&mut self, watcher: &Watcher<'_>) -> Result<(), PortError> {
        let bytes = self.settings.bytes.bytes;
        if bytes >= LONG_BYTES {
            (watcher.tell)(&format!(
                "walk: getting {} MB of memory ready, which takes some seconds for each GB",
                bytes >> 20
            ));
        }
        let lines = (bytes as usize).div_ceil(LINE_BYTES);
        let mut list = LinkedLines::new(lines, watcher.stop)?;
        if !make_one_cycle(&mut list, self.settings.seed, watcher.stop) {
            let stopped = std::io::Error::new(std::io::ErrorKind::Interrupted, "stopped");
            return Err(PortError::system(
                "walk: linking memory".to_string(),
                stopped,
            ));
        }
        self.list = Some(list);
        Ok(())
    }
}

/// Links all lines into one cycle in random order (Sattolo 1986): every walk visits all lines before it repeats one,
/// and no prefetcher can predict the next line. Returns false if `stop` was set before the end.
fn make_one_cycle(list: &mut LinkedLines, seed: u64, stop: &AtomicBool) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let is_stopped =
        |line: usize| line.is_multiple_of(LINES_PER_LOOK) && stop.load(Ordering::Relaxed);
    for line in 0..list.lines() {
        if is_stopped(line) {
            return false;
        }
        list.link(line, line);
    }
    for line in (1..list.lines()).rev() {
        if is_stopped(line) {
            return false;
        }
        let other = random.usize(..line);
        let (here, there) = (list.next(line), list.next(other));
        list.link(line, there);
        list.link(other, here);
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    /// Returns the number of steps from line 0 until the walk reaches line 0 again.
    fn cycle_length(list: &LinkedLines) -> usize {
        let mut at = list.next(0);
        let mut steps = 1;
        while at != 0 {
            at = list.next(at);
            steps += 1;
        }
        steps
    }

    #[test]
    fn all_cache_lines_form_one_linked_cycle_for_any_size() {
        for lines in (1..70).chain([64, 100, 1_000, 4_097, 65_536]) {
            for seed in [1, 2, 99] {
                let mut list = LinkedLines::new(lines, &AtomicBool::new(false)).unwrap();
                make_one_cycle(&mut list, seed, &AtomicBool::new(false));
                assert_eq!(cycle_length(&list), lines, "{lines} lines, seed {seed}");
            }
        }
    }

    #[test]
    fn memory_walks_repeat_for_equal_seeds_and_differ_between_seeds() {
        let walk = |seed| {
            let mut list = LinkedLines::new(1_000, &AtomicBool::new(false)).unwrap();
            make_one_cycle(&mut list, seed, &AtomicBool::new(false));
            (0..1_000).map(|line| list.next(line)).collect::<Vec<_>>()
        };
        assert_eq!(walk(1), walk(1));
        assert_ne!(walk(1), walk(2));
    }

    #[test]
    fn each_packet_continues_the_memory_walk_of_the_previous_packet() {
        let mut walk = Walk::new(Settings {
            steps: 3,
            bytes: Size { bytes: 4096 },
            seed: 1,
        });
        walk.prepare().unwrap();
        let pool = PoolHandle::new(64, false).unwrap();
        // With 64 lines and 3 steps a packet, 64 packets go around three times and end where they began.
        let mut seen = Vec::new();
        for packets in [1, 2, 29, 32] {
            let mut batch = Batch::new();
            pool.fill(&mut batch, packets, 60);
            walk.process(&mut batch, &Context::default());
            seen.push(walk.at);
        }
        let list = walk.list.as_ref().unwrap();
        let expected = [3, 9, 96, 192].map(|steps| list.follow(0, steps));
        assert_eq!(seen, expected);
        assert_eq!(seen[3], 0);
        assert!(seen[0] != seen[1]);
    }

    #[test]
    fn long_preparation_of_a_memory_walk_is_reported_and_stoppable() {
        let told = std::cell::RefCell::new(Vec::new());
        let stop = AtomicBool::new(true);
        let tell = |text: &str| told.borrow_mut().push(text.to_string());
        let mut walk = Walk::new(Settings {
            steps: 1,
            bytes: Size { bytes: 1 << 30 },
            seed: 1,
        });
        let (stop, tell) = (&stop, &tell);
        let error = walk.prepare_watched(&Watcher { stop, tell }).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        let told = told.borrow();
        assert!(told[0].contains("1024 MB of memory"), "{told:?}");
        let mut list = LinkedLines::new(1_000, &AtomicBool::new(false)).unwrap();
        assert!(!make_one_cycle(&mut list, 1, stop));
    }

    #[test]
    fn settings_out_of_range_are_refused_with_the_valid_range() {
        let message = |toml: &str| {
            let table: toml::Table = toml.parse().unwrap();
            (ENTRY.build)(table).err().map(|e| e.0).unwrap_or_default()
        };
        assert!(message("steps = 1\nbytes = \"1 kB\"").contains("4 kB to 8 GB"));
        assert!(message("steps = 1\nbytes = \"16 GB\"").contains("4 kB to 8 GB"));
        assert!(message("steps = 1\nbytes = \"much\"").contains("such as \"32 kB\""));
        assert!(message("steps = 200000\nbytes = 4096").contains("0 to 100000"));
        assert!(message("bytes = 4096").contains("steps"));
        assert_eq!(message("steps = 1\nbytes = \"8 GB\""), "");
    }
}
