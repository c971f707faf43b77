//! A medium that both directions share: a radio channel, time slots, or gates. It carries one packet after the other as
//! its settings file describes.
//!
//! [`SharedMedium`] decides whether packets arrive, and when; this file has the packets and the clock. A packet leaves
//! at the decided time, or at the worker's next iteration. Packets that leave more than a microsecond after their time
//! are counted.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, KernelVersion, Needs, SettingsError,
    says_dropped, settings,
};
use taut_model::link::medium::{Fate, MediumSettings, SharedMedium};
use taut_port::{BATCH_CAPACITY, Batch, Marks, Packet, PoolHandle, PortError};
use taut_settings::SettingsFileError;

pub(crate) const ENTRY: Entry = Entry {
    name: "medium",
    summary: "makes both directions share a channel: 802.11, slots of 5G, gates of Ethernet",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |settings| taut_function::file_names(settings, "file"),
    build: |table| Ok(Box::new(Medium::new(&read(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::No("it keeps packets back, which an XDP program cannot"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    ("file", "the keys below", "medium file with the keys below"),
    ("seed", "1", "of random numbers"),
    (
        "queue",
        "64",
        "packets per direction; further ones are lost",
    ),
    (
        "loss",
        "no loss",
        "table: loss ratios of a good and a bad channel, and a trace",
    ),
    (
        "wlan, slots, gates",
        "one of them required",
        "table: contention of 802.11, time slots, or gates that open at set times",
    ),
];

/// The name of the counter of packets that the medium loses.
const LOST: &str = "lost on the medium";
/// The length of the longest frame that a pool's buffer holds, in bytes.
const LONGEST: usize = 2_048;
/// The time after which a departing packet counts as late, ns.
const LATE_NS: u64 = 1_000;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    file: PathBuf,
}

/// Parses the settings. They describe a medium, or name a file that describes it.
fn read(table: toml::Table) -> Result<MediumSettings, SettingsError> {
    if !table.contains_key("file") {
        return settings(table);
    }
    let File { file } = settings(table)?;
    SettingsFileError::read_toml(&file).map_err(|e| SettingsError(format!("file: {e}")))
}

struct Held {
    packet: Packet,
    marks: Marks,
    to_port: usize,
}

/// A packet whose transmission on the medium has ended: its identifier, the time of the end, and whether it arrives.
#[derive(Clone, Copy)]
struct Ready {
    id: u32,
    at_ns: u64,
    fate: Fate,
}

struct Medium {
    medium: SharedMedium,
    pool: PoolHandle,
    begun: Instant,
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    ready: VecDeque<Ready>,
    out: Batch,
    arrived: u64,
    arrived_late: u64,
    lost: u64,
    full: u64,
    no_memory: u64,
    /// The number of copies, requested by an earlier function for further egress ports, that were not made because
    /// there were too many.
    crowded: u64,
}

impl Medium {
    fn new(settings: &MediumSettings) -> Result<Self, SettingsError> {
        let medium = SharedMedium::new(settings).map_err(|e| SettingsError(e.to_string()))?;
        // The pool covers both queues, and due packets that do not fit into a batch.
        let slots = 2 * settings.queue + 2 * BATCH_CAPACITY as u32;
        Ok(Self {
            medium,
            pool: PoolHandle::new(slots, false).map_err(|e| SettingsError(e.to_string()))?,
            begun: Instant::now(),
            held: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            ready: VecDeque::with_capacity(slots as usize),
            out: Batch::new(),
            arrived: 0,
            arrived_late: 0,
            lost: 0,
            full: 0,
            no_memory: 0,
            crowded: 0,
        })
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn push(&mut self, packet: Packet, marks: &Marks) {
        self.crowded += self.out.push_marked(packet, marks) as u64;
    }

    fn push_dropped(&mut self, packet: Packet, marks: &Marks) {
        self.push(packet, marks);
        self.out.mark_dropped(self.out.len() - 1);
    }

    /// Passes a packet for port `to_port` to the medium; drops the packet if there is no buffer for it.
    fn offer(&mut self, packet: Packet, marks: Marks, to_port: usize) {
        let bytes = packet.bytes();
        let copied = (bytes.len() <= LONGEST)
            .then(|| self.pool.take(bytes.len() as u16))
            .flatten();
        let (Some(mut copy), Some(id)) = (copied, self.free.last().copied()) else {
            self.no_memory += 1;
            return self.push_dropped(packet, &marks);
        };
        // The first port's packets leave through the second, which has an odd number.
        let way = (to_port & 1) ^ 1;
        let now_ns = self.now_ns();
        if !self.medium.offer(now_ns, way, id, bytes.len() as u32) {
            self.full += 1;
            return self.push_dropped(packet, &marks);
        }
        self.free.pop();
        copy.bytes_mut().copy_from_slice(bytes);
        self.held[id as usize] = Some(Held {
            packet: copy,
            marks,
            to_port,
        });
    }

    /// Returns true if a buffered packet is due. Each iteration checks this, so the iteration time limits how late a
    /// packet leaves.
    fn is_due(&self) -> bool {
        let next_ns = self.medium.next_ns();
        !self.ready.is_empty() || next_ns.is_some_and(|ns| ns <= self.now_ns())
    }

    /// Releases packets for port `to_port` that are due, until `most` packets leave in this batch.
    fn release(&mut self, to_port: usize, most: usize) {
        let now_ns = self.now_ns();
        while let Some(ended) = self.medium.take(now_ns) {
            self.ready.push_back(Ready {
                id: ended.id,
                at_ns: ended.at_ns,
                fate: ended.fate,
            });
        }
        let mut index = 0;
        while index < self.ready.len() && self.out.len() < most {
            let Ready { id, at_ns, fate } = self.ready[index];
            let place = id as usize;
            if self.held[place]
                .as_ref()
                .is_some_and(|it| it.to_port != to_port)
            {
                index += 1;
                continue;
            }
            self.ready.remove(index);
            let Some(held) = self.held[place].take() else {
                continue;
            };
            self.free.push(id);
            if fate == Fate::Lost {
                self.lost += 1;
                self.push_dropped(held.packet, &held.marks);
                continue;
            }
            if now_ns - at_ns > LATE_NS {
                self.arrived_late += 1;
            } else {
                self.arrived += 1;
            }
            self.push(held.packet, &held.marks);
        }
    }
}

impl Function for Medium {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let is_idle = self.free.len() == self.held.len();
        if batch.is_empty() && (is_idle || !self.is_due()) {
            return;
        }
        self.out.clear();
        // A worker's batches contain at most as many packets as its burst size.
        let limit = batch.len() + batch.room();
        batch.take_marked(|packet, marks| {
            if marks.is_kept() {
                self.offer(packet, marks, context.to_port);
            } else {
                self.push(packet, &marks);
            }
        });
        self.release(context.to_port, limit);
        self.out.take_marked(|packet, marks| {
            // Because of the limit above, the batch has space for these copies.
            batch.push_marked(packet, &marks);
        });
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.begun = Instant::now();
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs {
            empty_batches: EmptyBatches::Polls,
            ..Needs::default()
        }
    }

    fn held(&self) -> usize {
        self.held.len() - self.free.len()
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("arrived within 1 us of their time", self.arrived),
            (
                "arrived later than that, as the worker was held up",
                self.arrived_late,
            ),
            (LOST, self.lost),
            ("dropped: queue of the medium full", self.full),
            (
                "dropped: no memory, or longer than 2,048 bytes",
                self.no_memory,
            ),
        ]
    }

    fn drops(&self, outcome: &str) -> bool {
        says_dropped(outcome) || outcome == LOST
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn medium(text: &str) -> Medium {
        let mut medium = Medium::new(&read(toml::from_str(text).unwrap()).unwrap()).unwrap();
        medium.prepare().unwrap();
        medium
    }

    /// Passes `count` packets for port `to_port` to the medium, then runs the medium until it is empty; returns the
    /// counts of passed and dropped packets.
    fn through(medium: &mut Medium, count: usize, to_port: usize) -> (usize, usize) {
        let pool = PoolHandle::new(256, false).unwrap();
        let (mut kept, mut dropped) = (0, 0);
        let context = Context {
            to_port,
            ports: 2,
            ..Context::default()
        };
        let mut batch = Batch::new();
        pool.fill(&mut batch, count, 60);
        loop {
            medium.process(&mut batch, &context);
            kept += (0..batch.len()).filter(|it| batch.is_kept(*it)).count();
            dropped += (0..batch.len()).filter(|it| !batch.is_kept(*it)).count();
            batch.clear();
            if medium.held() == 0 {
                return (kept, dropped);
            }
        }
    }

    #[test]
    fn packets_occupy_the_medium_one_after_another() {
        let mut radio = medium("[wlan]");
        let begun = Instant::now();
        assert_eq!(through(&mut radio, 20, 1), (20, 0));
        // A packet of 46 bytes at 54 Mbit/s takes 169 us, of which 67.5 are the mean of the random backoff.
        let took_us = begun.elapsed().as_micros();
        assert!(took_us > 20 * 100, "{took_us}");
        let outcomes = radio.outcomes();
        assert_eq!(outcomes[0].1 + outcomes[1].1, 20);
        assert_eq!(radio.pool.outstanding(), 0);
    }

    #[test]
    fn lost_and_overflowing_packets_are_dropped_and_counted() {
        let mut radio = medium("queue = 4\n[loss]\ngood = 1.0\n[wlan]\nattempts = 2");
        assert_eq!(through(&mut radio, 10, 0), (0, 10));
        let counts: Vec<u64> = radio.outcomes().iter().map(|it| it.1).collect();
        assert_eq!(counts, [0, 0, 4, 6, 0]);
    }

    #[test]
    fn packets_leave_the_medium_only_through_their_own_egress_port() {
        let mut radio = medium("[wlan]");
        let pool = PoolHandle::new(64, false).unwrap();
        let context = |to_port| Context {
            to_port,
            ports: 2,
            ..Context::default()
        };
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 60);
        radio.process(&mut batch, &context(1));
        batch.clear();
        let begun = Instant::now();
        while begun.elapsed().as_millis() < 3 {
            radio.process(&mut batch, &context(0));
            assert!(batch.is_empty());
        }
        radio.process(&mut batch, &context(1));
        assert_eq!((batch.len(), radio.held()), (3, 0));
    }

    #[test]
    fn errors_in_a_medium_file_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("radio.toml");
        let build = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let table = format!("file = \"{}\"", file.display());
            crate::build("medium", table.parse().unwrap())
                .map(|_| ())
                .map_err(|e| e.0)
        };
        assert_eq!(build("[wlan]\n"), Ok(()));
        let error = build("[wlan]\nspeed = 5\n").unwrap_err();
        assert!(
            error.contains("radio.toml:2") && error.contains("speed"),
            "{error}"
        );
        let error = build("queue = -3\n[wlan]\n").unwrap_err();
        assert!(error.contains("radio.toml:1"), "{error}");
        let error = crate::build("medium", "file = \"nowhere.toml\"".parse().unwrap())
            .err()
            .unwrap()
            .0;
        assert!(error.contains("nowhere.toml"), "{error}");
        let error = crate::build("medium", "file = \"x\"\nqueue = 3".parse().unwrap())
            .err()
            .unwrap()
            .0;
        assert!(error.contains("queue"), "{error}");
    }
}
