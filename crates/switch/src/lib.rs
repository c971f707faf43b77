//! SWITCH: a learning bridge over all ports of the chain, or an OpenFlow switch with rules: match, actions, groups,
//! meters, tables. (IEEE 802.1D-2004; OpenFlow Switch Specification 1.3.5; the device under test and the amplifier
//! of FLOWer: Gallenmüller 2021, section 3.4.)
//!
//! Without rules, the bridge learns the port of each frame's source (`address_table.rs`). A frame leaves through the
//! port of its destination; while that port is unknown, the frame leaves through all other ports. With rules, the
//! worker (`pass.rs`) makes a key of each packet (`key.rs`), finds the rule of highest priority (`table.rs`), and
//! executes its steps (`action.rs`). The control plane stores the rules and changes them while packets pass
//! (`control.rs`). `text.rs` parses the rules that people write.

#![forbid(unsafe_code)]

mod action;
mod address_table;
mod at_work;
mod bridge;
mod control;
mod count;
mod facts;
mod group;
mod in_kernel;
mod key;
mod meter;
mod openflow;
mod packet_in;
mod pass;
mod refusal;
mod scope;
mod sctp;
mod server;
mod set;
mod settings;
mod shape;
mod step;
mod table;
mod text;

use at_work::Worker;
use bridge::{Bridge, Bridged};
use control::Control;
use count::Count;
use facts::Facts;
use in_kernel::Kernel;
use key::Key;
use packet_in::Shows;
use pass::{Between, Counts, Pass, Tables, others, places, send};
use server::Server;
use set::ActionSet;
use settings::{Checked, Controllers, Miss, Settings};
use shape::Shape;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::{Found, Memory, Scratch};
use taut_function::table_swap::InUse;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, Handler, KernelVersion, Member, Needs,
    SettingsError, Shared, settings,
};
use taut_port::{BATCH_CAPACITY, Batch, PoolHandle, PortError};
use taut_sys::{Clock, prefetch};

/// The entry of function SWITCH in the list of functions.
pub const ENTRY: Entry = Entry {
    name: "switch",
    summary: "is a learning bridge over any number of ports, or follows flow entries",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| Ok(Box::new(Switch::new(settings(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::Upcall(in_kernel::UPCALL),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "addresses",
        "4096",
        "maximum number of MAC addresses, 4 to 1048576; a new one replaces the one idle for longest",
    ),
    (
        "age",
        "`\"300s\"`",
        "idle time after which an address is forgotten",
    ),
    ("rules", "none", "file of flow entries, groups and meters"),
    (
        "rule, group, meter",
        "none",
        "the same here, as lists of tables",
    ),
    (
        "miss",
        "`\"drop\"` with flow entries, else `\"normal\"`",
        "for a packet that no entry of a table matches: `\"normal\"`, `\"drop\"` or `\"controller\"`",
    ),
    (
        "openflow",
        "none",
        "address on which it listens for controllers, such as `\"127.0.0.1:6653\"`: OpenFlow",
    ),
    (
        "controller",
        "none",
        "address of a controller to connect to, tried once a second",
    ),
    (
        "datapath_id",
        "1",
        "number by which controllers know the switch",
    ),
    (
        "most_rules",
        "16384, or twice the configured ones",
        "maximum number of flow entries, up to 2097152: about 240 bytes each for the worker",
    ),
];

/// The number of buffers in the worker's pool. A packet that gets a VLAN tag but has no headroom for the tag is copied
/// into such a buffer.
const SLOTS_FOR_TAGS: u32 = 2048;

/// The worker's state for a switch with rules.
struct Plane {
    memory: Arc<Memory>,
    counts: Arc<Vec<Count>>,
    shape: InUse<Shape>,
    worker: Worker,
    miss: Miss,
    keys: Box<[Key; BATCH_CAPACITY]>,
    found: Box<[Found; BATCH_CAPACITY]>,
    scratch: Box<Scratch>,
    sets: Box<[ActionSet; BATCH_CAPACITY]>,
    pool: Option<PoolHandle>,
    clock: Clock,
    facts: Arc<Facts>,
    /// The server thread, which serves controllers and removes expired rules; none without controllers and without
    /// rules that have timeouts.
    server: Option<Server>,
}

struct Switch {
    age: Duration,
    bridge: Bridge,
    /// The control plane with the initial rules; none for a bridge, and after `prepare` has passed it on.
    control: Option<Control>,
    miss: Miss,
    controllers: Controllers,
    plane: Option<Plane>,
    facts: Arc<Facts>,
    counts: Counts,
    /// The XDP programs that apply the switch's rules in the kernel; none if frames do not pass in the kernel.
    kernel: Kernel,
}

impl Switch {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Checked {
            addresses,
            age,
            miss,
            controllers,
            control,
        } = settings.check()?;
        Ok(Self {
            age,
            bridge: Bridge::new(addresses),
            control,
            miss,
            controllers,
            plane: None,
            facts: Arc::new(Facts::new()),
            counts: Counts::default(),
            kernel: None,
        })
    }

    /// Returns true for a switch with rules, false for a learning bridge.
    fn has_rules(&self) -> bool {
        self.control.is_some() || self.plane.is_some()
    }
}

impl Function for Switch {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        match &mut self.plane {
            None => {
                for index in 0..batch.len() {
                    if !batch.is_kept(index) {
                        continue;
                    }
                    match self.bridge.pass(batch.packets()[index].bytes(), context) {
                        Bridged::To(port) => {
                            let port = std::iter::once(port);
                            send(batch, index, context.to_port, false, port, |_| ());
                        }
                        Bridged::ToAllOthers => {
                            self.counts.crowded += send(
                                batch,
                                index,
                                context.to_port,
                                false,
                                others(context),
                                |_| (),
                            );
                        }
                        Bridged::Nowhere => batch.mark_dropped(index),
                    }
                }
            }
            Some(plane) => {
                // Relaxed: no other memory depends on the number.
                plane.facts.ports.store(context.ports, Ordering::Relaxed);
                plane.process(batch, context, &mut self.bridge, &mut self.counts);
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            // A switch with rules is called without packets, so that the control plane learns the number of ports.
            empty_batches: match self.has_rules() {
                true => EmptyBatches::Wakes,
                false => EmptyBatches::No,
            },
            chooses_ports: true,
            ..Needs::default()
        }
    }

    fn link_changed(&mut self, port: usize, is_up: bool) {
        if let Some(state) = self.facts.is_up.get(port) {
            // Relaxed: no other memory depends on the state.
            state.store(is_up, Ordering::Relaxed);
        }
    }

    fn join(&mut self, _: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.kernel = shared.lock(|kernel: &mut Kernel| kernel.clone());
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let clock = Clock::calibrate(Duration::from_millis(2));
        self.bridge.learned.age_ticks = clock.to_ticks(self.age.as_nanos() as f64) as u64;
        let Some(mut control) = self.control.take() else {
            return Ok(());
        };
        let (shape, worker) = control.follow();
        let is_controlled = self.controllers.listen.is_some() || self.controllers.call.is_some();
        let has_tags = is_controlled || control.makes_packets();
        let pool = has_tags.then(|| PoolHandle::new(SLOTS_FOR_TAGS, false));
        let (memory, rule_counts) = (Arc::clone(control.memory()), Arc::clone(control.counts()));
        let changes_by_itself = is_controlled || control.is_timed();
        let control = Arc::new(Mutex::new(control));
        let server = changes_by_itself
            .then(|| Server::start(&control, &self.controllers, &self.facts, &clock));
        self.plane = Some(Plane {
            server: server.transpose()?,
            memory,
            counts: rule_counts,
            shape,
            worker,
            miss: self.miss,
            keys: Box::new([Key::default(); BATCH_CAPACITY]),
            found: Box::new([Found::NOTHING; BATCH_CAPACITY]),
            scratch: Box::default(),
            sets: Box::new([ActionSet::EMPTY; BATCH_CAPACITY]),
            pool: pool.transpose()?,
            clock,
            facts: Arc::clone(&self.facts),
        });
        Ok(())
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.plane.as_mut()?.server.as_mut()?.handler()
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let (bridge, counts) = (&self.bridge, &self.counts);
        let mut outcomes = vec![
            ("sent to one port", bridge.switched),
            ("sent to all other ports", bridge.flooded),
            (
                "copies not made: too many in a burst, beside the above",
                counts.crowded,
            ),
            ("dropped: it came from there", bridge.same_port),
            ("dropped: reserved for bridges", bridge.reserved),
            ("dropped: malformed", bridge.malformed),
        ];
        let in_kernel = self.kernel.as_ref().map(|kernel| kernel.counts());
        let in_kernel = in_kernel.unwrap_or_default();
        if self.kernel.is_some() {
            outcomes.push(("dropped: too much for the process", in_kernel.too_much));
        }
        if self.has_rules() {
            // Relaxed: the numbers are statistics.
            let facts = &self.facts;
            outcomes.extend([
                (
                    "connections of controllers ended, beside packets",
                    facts.ended.load(Ordering::Relaxed),
                ),
                (
                    "frames from and for controllers lost, beside packets",
                    facts.lost.load(Ordering::Relaxed),
                ),
                ("sent by a rule", counts.sent + in_kernel.sent),
                ("shown to the controller", counts.shown),
                (
                    "shown to the controller, and counted above as well",
                    counts.shown_beside,
                ),
                ("dropped by a rule", counts.dropped + in_kernel.stopped),
                ("dropped: no rule for it", counts.missed + in_kernel.missed),
                ("dropped by a meter", counts.metered),
                ("dropped: no more hops", counts.too_far),
                ("dropped: too short to be changed", counts.too_short),
                ("dropped: no memory for a VLAN tag", counts.no_tag),
                ("dropped: no port of its group is up", counts.dead),
            ]);
        }
        outcomes
    }
}

/// Returns the replies of a switch of four ports to a controller's bytes, which arrive in the given pieces. Pieces
/// after an error that closes the connection have no effect.
pub fn heard(pieces: &[&[u8]]) -> Vec<u8> {
    let mut control = Control::new(64);
    let (mut generation, mut sent, mut removed, mut deposed) =
        (None, Vec::new(), Vec::new(), false);
    let (now, facts) = (std::time::Instant::now(), Facts::new());
    let mut session = openflow::Session::new(control.room(), now);
    let mut answers = Vec::new();
    let mut pieces = pieces.iter();
    loop {
        let piece = match session.goes_on() {
            true => &[][..],
            false => match pieces.next() {
                Some(piece) => piece,
                None => break,
            },
        };
        let mut plant = openflow::Plant {
            control: &mut control,
            ports: 4,
            facts: &facts,
            datapath: 1,
            generation: &mut generation,
            sent: &mut sent,
            removed: &mut removed,
            deposed: &mut deposed,
        };
        let heard = session.take(piece, now, &mut plant);
        if heard.is_ok() {
            for (id, kept, why) in removed.drain(..) {
                session.flow_removed(&kept, control.count(id), why);
            }
        }
        answers.extend_from_slice(session.output());
        session.was_sent(session.output().len(), now);
        if heard.is_err() {
            break;
        }
    }
    answers
}

impl Plane {
    #[inline]
    fn process(
        &mut self,
        batch: &mut Batch,
        context: &Context,
        bridge: &mut Bridge,
        counts: &mut Counts,
    ) {
        let kept = (0..batch.len()).filter(|index| batch.is_kept(*index));
        let wanted = kept.fold(0_u64, |bits, index| bits | 1 << index);
        if wanted == 0 {
            return;
        }
        let mut bytes = 0;
        for index in places(wanted) {
            let packet = &batch.packets()[index];
            bytes += packet.len() as u64;
            if let Some(byte) = packet.bytes().first() {
                prefetch(byte);
            }
        }
        if let Some(counts) = self.facts.port_counts.get(context.from_port) {
            let packets = u64::from(wanted.count_ones());
            counts.received.add_some(packets, bytes, context.now_ticks);
        }
        let shape = &mut self.shape;
        self.worker.in_batch(|| {
            let tables = Tables {
                context,
                shape: shape.get(),
                memory: &self.memory,
                rule_counts: &self.counts,
                miss: self.miss,
                pool: self.pool.as_ref(),
                clock: &self.clock,
                facts: &self.facts,
                is_worker: true,
            };
            let shows = self.server.as_mut().map_or(Shows::Nobody, Server::shows);
            let mut pass = Pass::new(&tables, bridge, counts, &mut self.sets, shows);
            let between = Between {
                keys: &mut self.keys,
                found: &mut self.found,
                scratch: &mut self.scratch,
            };
            tables.pass(batch, wanted, between, &mut pass);
            pass.count_sent();
            pass.shows.publish();
        });
    }
}

#[cfg(test)]
mod tests;
