//! RECORD: stores all packets of the last seconds in memory. When a trigger fires, it writes the trigger's packets to a
//! file, including packets from before that time. (Gallenmüller 2021, section 3.5: FlowScope.)
//!
//! Each worker writes into the ring as a producer of its own. The threads that examine packets, fire triggers and write
//! files belong to `taut-capture`, and the workers share them. Analysers are scripts (`analyser.rs`). The verdicts of
//! earlier functions are recorded with a packet.

mod analyser;
mod server;
mod settings;

pub use server::{Answer, Request};

use server::Deciding;
use settings::{Checked, Settings};
use std::sync::Arc;
use taut_capture::capture::Capture;
use taut_capture::clock::PacketClock;
use taut_capture::record::{DROPPED, Facts, PUNTED};
use taut_capture::ring::Producer;
use taut_function::control_socket::ControlSocket;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, KernelVersion, Member, Needs, SettingsError,
    Shared, Spread, settings,
};
use taut_port::{Batch, Mark, PortError};

pub(crate) const ENTRY: Entry = Entry {
    name: "record",
    summary: "stores a copy of every packet in a ring in memory",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        let checked = settings::<Settings>(table)?.check()?;
        Ok(Box::new(Record::new(checked)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("it keeps packets"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "ring",
        "16 buckets",
        "memory for packets, such as `\"1 GB\"`",
    ),
    (
        "most",
        "`ring`",
        "size to which the ring can be enlarged while it runs",
    ),
    ("snap", "all", "stored bytes of each frame"),
    ("dump", "none", "folder for the files of triggers"),
    (
        "roll_size, roll_time",
        "none",
        "size or time after which a trigger begins another file",
    ),
    ("disk", "none", "folder for the ring on disk"),
    (
        "disk_size",
        "required with `disk`",
        "maximum size of the ring on disk",
    ),
    ("zstd", "`false`", "files are compressed"),
    ("flows", "0", "flows that are counted"),
    (
        "bucket",
        "`\"16 MB\"`",
        "unit of overwriting; a ring has at least two",
    ),
    ("drop", "`false`", "`true`: packets end here"),
    (
        "file",
        "none",
        "one file for all triggers instead of `dump`; `-` is standard output",
    ),
    (
        "control",
        "none",
        "path of a socket for `taut capture query`, `status` and the others",
    ),
    (
        "interfaces",
        "`port 0` and on",
        "names of the ports in files",
    ),
    ("trigger", "none", "list of triggers"),
    ("analyser", "none", "list of analysers"),
    (
        "look",
        "`\"rest\"`",
        "trigger thread when idle: `\"rest\"` looks 5,000 times a second; `\"poll\"` occupies a core, and \
         triggers fire within microseconds",
    ),
    (
        "classic",
        "none",
        "for comparison: readers see packets only in full buckets, as in FlowScope, or in buckets of this age, \
         such as `\"300ms\"`. Not with `wait = \"interrupt\"`",
    ),
];

/// The control plane and the control socket of the recording, which the `record` functions of all workers share.
#[derive(Clone)]
struct Together {
    deciding: Arc<Deciding>,
    _socket: Option<Arc<ControlSocket>>,
}

struct Record {
    checked: Checked,
    member: Member,
    shared: Shared,
    /// The producer of this worker for the capture. It is dropped before the capture, which ends when no producer is
    /// left.
    plane: Option<Plane>,
    counted: Counted,
    /// True for each port that timestamps arriving packets.
    stamped: Vec<bool>,
    together: Option<Together>,
}

/// The counters of the chain's functions that triggers observe. A trigger fires when its counter has grown.
#[derive(Default)]
struct Counted {
    names: Vec<String>,
    /// For each observed counter, the index of its trigger and its last value; the value is none before the first
    /// reading.
    before: Vec<(usize, Option<u64>)>,
    /// True if the configured counters that no function of the chain has were already reported.
    is_checked: bool,
}

impl Counted {
    fn of(capture: &Capture) -> Self {
        let (before, names) = capture
            .counts()
            .map(|(at, name)| ((at, None), name.to_string()))
            .unzip();
        Self {
            names,
            before,
            is_checked: false,
        }
    }

    /// Accepts the current counts, and reports those that have grown.
    fn take(&mut self, counts: &[Option<u64>], mut grew: impl FnMut(usize, u64)) {
        for ((at, before), now) in self.before.iter_mut().zip(counts) {
            // A count that is unavailable at the moment has not restarted.
            let Some(now) = *now else { continue };
            // A lower count belongs to a function that has replaced another one.
            let by = before.map_or(0, |before| now.saturating_sub(before));
            *before = Some(now);
            if by > 0 {
                grew(*at, by);
            }
        }
    }
}

/// The part of a recording that belongs to one worker: it writes packets into the capture's ring.
struct Plane {
    /// True for each port that timestamps arriving packets.
    stamped: Vec<bool>,
    producer: Producer,
    clock: PacketClock,
    /// The recorded time of the last packet, in nanoseconds.
    last_ns: u64,
    drops: bool,
}

impl Record {
    fn new(checked: Checked) -> Self {
        Self {
            checked,
            member: Member::default(),
            shared: Shared::default(),
            plane: None,
            counted: Counted::default(),
            stamped: Vec::new(),
            together: None,
        }
    }
}

impl Plane {
    #[inline]
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let mut facts = Facts {
            // The whole batch has one time, because it arrived together.
            time_ns: self.clock.at(context.now_ticks),
            // The number fits into a byte, because a chain has few ports.
            port: context.from_port as u8,
            ..Facts::default()
        };
        let now_ns = facts.time_ns;
        let is_marked = batch.is_marked();
        // A port that replays a capture sets arrival times as well, but its packets are recorded with the time at which
        // they come from that port.
        let is_stamped = self.stamped.get(context.from_port) == Some(&true);
        let arrivals = if is_stamped { batch.arrivals() } else { &[] };
        for (at, packet) in batch.packets().iter().enumerate() {
            facts.wire_bytes = packet.len() as u32;
            if !arrivals.is_empty() {
                // A packet without a timestamp gets its receive time. Times of a producer never run backwards.
                let time_ns = if arrivals[at] > 0 {
                    arrivals[at]
                } else {
                    now_ns
                };
                facts.time_ns = time_ns.max(self.last_ns);
                self.last_ns = facts.time_ns;
            }
            if is_marked {
                facts.flags = match batch.mark(at) {
                    None => 0,
                    Some(Mark::Dropped) => DROPPED,
                    Some(Mark::Punted(_)) => PUNTED,
                };
            }
            self.producer.put(facts, packet.bytes());
        }
        self.producer.publish();
        self.producer.hand_over(now_ns);
        if self.drops {
            for at in 0..batch.len() {
                batch.mark_dropped(at);
            }
        }
    }
}

impl Function for Record {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if let Some(plane) = &mut self.plane {
            plane.process(batch, context);
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            // Readers put the packets of all workers in order.
            spread: Spread::Any,
            // With the setting `classic`, the function needs empty batches to pass on buckets that are due.
            empty_batches: match self.checked.hands_over() {
                true => EmptyBatches::Polls,
                false => EmptyBatches::No,
            },
            counts: self.counted.names.clone(),
            ..Needs::default()
        }
    }

    fn join(&mut self, member: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.member = member;
        self.shared = shared.clone();
        Ok(())
    }

    fn stamped_ports(&mut self, stamped: &[bool]) {
        self.stamped = stamped.to_vec();
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let checked = &self.checked;
        let together = self.shared.found_or_made(|| {
            let capture = checked.start(&self.stamped)?;
            let deciding = Arc::new(Deciding { capture });
            let socket = ControlSocket::start_at("record", checked.control.as_ref(), &deciding)?;
            Ok::<_, PortError>(Together {
                deciding,
                _socket: socket.map(Arc::new),
            })
        })?;
        let capture = &together.deciding.capture;
        self.counted = Counted::of(capture);
        self.plane = Some(Plane {
            producer: capture.producer(),
            clock: capture.clock(),
            last_ns: 0,
            drops: checked.drops,
            stamped: self.stamped.clone(),
        });
        self.together = Some(together);
        Ok(())
    }

    fn hear_counts(&mut self, counts: &[Option<u64>]) {
        let Some(together) = &self.together else {
            return;
        };
        let capture = &together.deciding.capture;
        if !std::mem::replace(&mut self.counted.is_checked, true) && self.member.number == 0 {
            let unknown = self
                .counted
                .names
                .iter()
                .zip(counts)
                .filter(|it| it.1.is_none());
            unknown.for_each(|(name, _)| say_unknown(name));
        }
        self.counted.take(counts, |at, by| capture.grew(at, by));
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let Some(plane) = &self.plane else {
            return Vec::new();
        };
        let (kept, lost) = plane.producer.counts();
        vec![("recorded", kept.packets), ("not_recorded", lost.packets)]
    }
}

/// Reports that a trigger cannot fire because no function of the chain has the count `name`.
#[cold]
fn say_unknown(name: &str) {
    eprintln!(
        "taut: record: no function of this chain has a counter \"{name}\": its trigger will not fire before one does"
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    #[test]
    fn packets_pass_and_are_recorded_with_their_verdict() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "ring = \"64 MB\"\nsnap = 64\ndump = \"{}\"\n[[trigger]]\nname = \"dropped\"\nfate = \"dropped\"\nbefore = \"1s\"\n",
            folder.path().display()
        );
        let mut record = (ENTRY.build)(text.parse().unwrap()).unwrap();
        record.prepare().unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 100);
        batch.mark_dropped(1);
        let context = Context {
            now_ticks: taut_sys::ticks(),
            ..Context::default()
        };
        record.process(&mut batch, &context);
        assert_eq!((batch.len(), batch.dropped()), (3, 1));
        assert_eq!(record.outcomes(), [("recorded", 3), ("not_recorded", 0)]);
        drop(record);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let name = files[0].as_ref().unwrap().file_name();
        let name = name.to_string_lossy();
        assert!(
            name.starts_with("dropped-") && name.ends_with(".pcapng"),
            "{name}"
        );
    }

    #[test]
    fn an_increase_of_a_configured_counter_triggers_a_dump() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "ring = \"64 MB\"\ndump = \"{}\"\n[[trigger]]\nname = \"changed\"\ncounter = \"route_changes\"\n",
            folder.path().display()
        );
        let mut record = (ENTRY.build)(text.parse().unwrap()).unwrap();
        assert!(record.needs().counts.is_empty());
        record.prepare().unwrap();
        assert_eq!(record.needs().counts, ["route_changes"]);
        record.hear_counts(&[Some(7)]);
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 100);
        let context = Context {
            now_ticks: taut_sys::ticks(),
            ..Context::default()
        };
        record.process(&mut batch, &context);
        for count in [Some(7), None, Some(7), Some(3), Some(5)] {
            record.hear_counts(&[count]);
        }
        drop(record);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let bytes = std::fs::read(files[0].as_ref().unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("trigger changed: route_changes grew by 2"));
    }

    #[test]
    fn the_drop_setting_drops_all_recorded_packets() {
        let table = "ring = \"64 MB\"\ndrop = true".parse().unwrap();
        let mut record = (ENTRY.build)(table).unwrap();
        record.prepare().unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 100);
        record.process(&mut batch, &Context::default());
        assert_eq!(batch.dropped(), 3);
    }
}
