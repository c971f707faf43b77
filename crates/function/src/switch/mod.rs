//! SWITCH: a learning bridge over all ports of the chain, or what rules make of it: match, actions, groups, meters, tables as
//! OpenFlow has them. (IEEE 802.1D-2004; OpenFlow Switch Specification 1.3.5; as device and amplifier of FLOWer: Gallenmüller 2021,
//! section 3.4.)
//!
//! Without rules a frame teaches through which port its source is reached (`learned.rs`); it leaves through the port of its
//! destination, or through all others while that is not known. With rules the worker makes a key of each packet (`key.rs`), finds
//! the rule of highest priority (`table.rs`), and takes the steps that it says (`action.rs`). One side keeps the rules and changes
//! them while packets pass (`control.rs`). `text.rs` is how people write them.

mod action;
mod at_work;
mod control;
mod in_kernel;
mod key;
mod learned;
mod openflow;
mod sctp;
mod server;
mod set;
mod shape;
mod table;
mod text;

use crate::mix::mix;
use crate::swapped::InUse;
use crate::{
    Class, Context, Entry, Function, Handler, KernelVersion, Member, SettingsError, Shared,
    settings,
};
use action::{ETHERNET_BYTES, step};
use at_work::Worker;
use control::{Control, Count, GroupKind};
use in_kernel::Kernel;
use key::{Field, Key};
use learned::{Learned, WAYS, is_reserved};
use openflow::PacketOut;
use serde::Deserialize;
use server::{Controllers, Facts, Server, Shows};
use set::ActionSet;
use shape::{Shape, Table};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::{Found, MOST_RULES, Memory, Scratch};
use taut_port::{BATCH_CAPACITY, Batch, PoolHandle, PortError};
use taut_settings::{duration, in_words};
use taut_sys::{Clock, prefetch};
use taut_wire::{EtherType, Ethernet, Headers};
use text::{File, Rules};

pub(crate) const ENTRY: Entry = Entry {
    name: "switch",
    summary: "a learning bridge, or by rules: sends, floods, changes, tags, meters and shares out frames as OpenFlow does",
    class: Class::Basic,
    ports: None,
    build: |table| Ok(Box::new(Switch::new(settings(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::Upcall(in_kernel::UPCALL),
};

/// IEEE 802.1D-2004, table 7-5.
const DEFAULT_AGE: Duration = Duration::from_secs(300);
const MOST_ADDRESSES: usize = 1 << 20;
const DEFAULT_ROOM: usize = 16_384;
/// Packets that the worker has memory of its own for, to give them a tag where there is no room before them.
const SLOTS_FOR_TAGS: u32 = 2048;
/// Ports that a chain has at most.
const MOST_PORTS: usize = 256;

/// What becomes of packets that no rule fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Miss {
    Normal,
    Drop,
    Controller,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default = "default_addresses")]
    addresses: usize,
    age: Option<String>,
    /// File of rules.
    rules: Option<PathBuf>,
    /// Rules that there is room for.
    most_rules: Option<usize>,
    miss: Option<Miss>,
    /// Address at which controllers are waited for.
    openflow: Option<SocketAddr>,
    /// Address of a controller that is called.
    controller: Option<SocketAddr>,
    /// Number by which controllers know the switch.
    datapath_id: Option<u64>,
    #[serde(default)]
    rule: Vec<toml::Table>,
    #[serde(default)]
    group: Vec<toml::Table>,
    #[serde(default)]
    meter: Vec<toml::Table>,
}

fn default_addresses() -> usize {
    4096
}

/// What the worker has of the rules.
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
    /// None where nothing changes by itself.
    server: Option<Server>,
}

struct Switch {
    age: Duration,
    bridge: Bridge,
    /// The side that decides, with rules to begin with, until it is ready; none for a bridge.
    control: Option<Control>,
    miss: Miss,
    controllers: Controllers,
    plane: Option<Plane>,
    facts: Arc<Facts>,
    counts: Counts,
    /// Programs that go by the same rules, where frames pass in the kernel.
    kernel: Kernel,
}

/// Packets, by what became of them.
#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    dropped: u64,
    missed: u64,
    shown: u64,
    shown_beside: u64,
    metered: u64,
    too_far: u64,
    too_short: u64,
    no_tag: u64,
    dead: u64,
    crowded: u64,
}

/// The learning bridge.
#[derive(Debug)]
struct Bridge {
    learned: Learned,
    switched: u64,
    flooded: u64,
    same_port: u64,
    reserved: u64,
    malformed: u64,
}

impl Switch {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let addresses = settings.addresses;
        if !(WAYS..=MOST_ADDRESSES).contains(&addresses) {
            return Err(SettingsError(format!(
                "addresses: want {WAYS} to {MOST_ADDRESSES}, not {addresses}"
            )));
        }
        let age = match settings.age {
            None => DEFAULT_AGE,
            Some(text) => duration(&text)
                .filter(|age| !age.is_zero())
                .ok_or_else(|| {
                    SettingsError(format!("age: want a time such as 300s, not \"{text}\""))
                })?,
        };
        let mut file = File {
            rule: settings.rule,
            group: settings.group,
            meter: settings.meter,
        };
        if let Some(path) = &settings.rules {
            if !file.rule.is_empty() || !file.group.is_empty() || !file.meter.is_empty() {
                return Err(SettingsError(
                    "rules: they stand in the file or here, not in both".to_string(),
                ));
            }
            file = read_file(path)?;
        }
        let controllers = Controllers {
            listen: settings.openflow,
            call: settings.controller,
            datapath: settings.datapath_id.unwrap_or(1),
        };
        let is_controlled = controllers.listen.is_some() || controllers.call.is_some();
        if settings.miss == Some(Miss::Controller) && !is_controlled {
            return Err(SettingsError(
                "miss = \"controller\": there is none; set openflow or controller".to_string(),
            ));
        }
        let has_rules = is_controlled || settings.rules.is_some() || !file.rule.is_empty();
        let rules = file
            .read()
            .map_err(|SettingsError(why)| match &settings.rules {
                Some(path) => SettingsError(format!("rules: {}: {why}", path.display())),
                None => SettingsError(why),
            })?;
        let room = settings
            .most_rules
            .unwrap_or_else(|| DEFAULT_ROOM.max(2 * rules.rules.len()));
        if !(1..=MOST_RULES).contains(&room) {
            return Err(SettingsError(format!(
                "most_rules: want 1 to {MOST_RULES}, not {room}"
            )));
        }
        Ok(Self {
            age,
            bridge: Bridge::new(addresses),
            miss: settings.miss.unwrap_or(match has_rules {
                true => Miss::Drop,
                false => Miss::Normal,
            }),
            // Whether they go together is seen before anything is opened.
            control: has_rules.then(|| decided(rules, room)).transpose()?,
            plane: None,
            controllers,
            facts: Arc::new(Facts::new()),
            counts: Counts::default(),
            kernel: None,
        })
    }
}

fn read_file(path: &std::path::Path) -> Result<File, SettingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| SettingsError(format!("rules: {}: {e}", path.display())))?;
    toml::from_str(&text)
        .map_err(|e| SettingsError(format!("rules: {}: {}", path.display(), in_words(&e))))
}

/// The side that decides, with these rules.
fn decided(rules: Rules, room: usize) -> Result<Control, SettingsError> {
    let wrong = |kind: &str, number: usize, why: control::Refused| {
        SettingsError(format!("{kind} {number}: {why}"))
    };
    let mut control = Control::new(room);
    for (meter, number) in rules.meters.into_iter().zip(1..) {
        control
            .add_meter(meter)
            .map_err(|why| wrong("meter", number, why))?;
    }
    for (group, number) in rules.groups.into_iter().zip(1..) {
        control
            .add_group(group)
            .map_err(|why| wrong("group", number, why))?;
    }
    for (rule, number) in rules.rules.into_iter().zip(1..) {
        control
            .add(rule)
            .map_err(|why| wrong("rule", number, why))?;
    }
    Ok(control)
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
                // Relaxed: nothing else is known by it.
                plane.facts.ports.store(context.ports, Ordering::Relaxed);
                plane.process(batch, context, &mut self.bridge, &mut self.counts);
            }
        }
    }

    fn sends(&self) -> bool {
        true
    }

    /// With rules it is called also without packets: so whoever decides learns how many ports there are.
    fn holds_packets(&self) -> bool {
        self.control.is_some() || self.plane.is_some()
    }

    fn wakes(&self) -> bool {
        true
    }

    fn link_changed(&mut self, port: usize, is_up: bool) {
        if let Some(state) = self.facts.is_up.get(port) {
            // Relaxed: nothing else is known by it.
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
        if self.holds_packets() {
            // Relaxed: numbers for people.
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

/// Where the bridge sends a packet.
enum Bridged {
    To(u8),
    ToAllOthers,
    Nowhere,
}

impl Bridge {
    fn new(addresses: usize) -> Self {
        Self {
            learned: Learned::new(addresses),
            switched: 0,
            flooded: 0,
            same_port: 0,
            reserved: 0,
            malformed: 0,
        }
    }

    /// Learns from a packet, and says where it goes.
    fn pass(&mut self, frame: &[u8], context: &Context) -> Bridged {
        let from = context.from_port as u8;
        let Ok(ethernet) = Ethernet::new(frame) else {
            self.malformed += 1;
            return Bridged::Nowhere;
        };
        let (source, destination) = (ethernet.source(), ethernet.destination());
        if !source.is_multicast() {
            self.learned.learn(source, from, context.now_ticks);
        }
        if is_reserved(destination) {
            self.reserved += 1;
            return Bridged::Nowhere;
        }
        let known = match destination.is_multicast() {
            true => None,
            false => self.learned.port_of(destination, context.now_ticks),
        };
        match known {
            Some(port) if port == from => {
                self.same_port += 1;
                Bridged::Nowhere
            }
            Some(port) => {
                self.switched += 1;
                Bridged::To(port)
            }
            None if context.ports < 2 => {
                self.same_port += 1;
                Bridged::Nowhere
            }
            None => {
                self.flooded += 1;
                Bridged::ToAllOthers
            }
        }
    }
}

/// Sends a packet through several ports, or copies of it where it has been sent already, and tells of each; how many copies there was
/// no room for.
fn send(
    batch: &mut Batch,
    index: usize,
    usual: usize,
    is_sent: bool,
    ports: impl Iterator<Item = u8>,
    mut left: impl FnMut(u8),
) -> u64 {
    let mut crowded = 0;
    for (port, number) in ports.zip(0..) {
        if number == 0 && !is_sent {
            // A batch of which all go the usual way goes together.
            if usize::from(port) != usual || batch.egress(index).is_some() {
                batch.send_to(index, port);
            }
        } else if !batch.copy_to(index, port) {
            crowded += 1;
            continue;
        }
        left(port);
    }
    crowded
}

/// What a switch of four ports answers to a controller that says this, in these pieces: as far as it listens.
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

/// All ports but the one that packets came in through.
fn others(context: &Context) -> impl Iterator<Item = u8> + use<> {
    // A batch sends to ports up to 254.
    let ports = context.ports.min(usize::from(u8::MAX)) as u8;
    let from = context.from_port as u8;
    (0..ports).filter(move |port| *port != from)
}

/// How a packet comes out of the rules of a table.
enum Course {
    /// They have said all there is to say.
    Done,
    /// It is up to those of another table.
    Goto(u8),
    /// It is dropped, and counted as such.
    Dropped,
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

/// What is known of packets between two steps.
struct Between<'a> {
    keys: &'a mut [Key; BATCH_CAPACITY],
    found: &'a mut [Found; BATCH_CAPACITY],
    scratch: &'a mut Scratch,
}

/// Everything that packets of a batch are held against.
struct Tables<'a> {
    context: &'a Context,
    shape: &'a Shape,
    memory: &'a Memory,
    rule_counts: &'a [Count],
    miss: Miss,
    pool: Option<&'a PoolHandle>,
    clock: &'a Clock,
    facts: &'a Facts,
    /// Whether it is the worker that asks: it has counters of its own.
    is_worker: bool,
}

impl Tables<'_> {
    /// Passes the packets whose bits are set through the tables.
    #[inline(always)]
    fn pass(&self, batch: &mut Batch, wanted: u64, between: Between<'_>, pass: &mut Pass<'_>) {
        let Between {
            keys,
            found,
            scratch,
        } = between;
        let empty = Table::default();
        let in_port = self.context.from_port as u16;
        let mut of_table = [0_u64; control::TABLES as usize];
        of_table[0] = wanted;
        // Tables lead to those of higher numbers alone.
        let mut left = 1_u64;
        while left != 0 {
            let table = left.trailing_zeros() as usize & (of_table.len() - 1);
            left &= left - 1;
            let wanted = of_table[table];
            let rules = self.shape.tables.get(table).unwrap_or(&empty);
            // Who asks only for ports and stations is not made to wait for other headers.
            if rules.asked.bits.is_outermost() {
                for index in places(wanted) {
                    keys[index] = Key::outermost(batch.packets()[index].bytes(), in_port);
                }
            } else {
                for index in places(wanted) {
                    if keys[index].read_usual(batch.packets()[index].bytes(), in_port) {
                        continue;
                    }
                    let headers = batch.headers(index);
                    keys[index] = Key::of(batch.packets()[index].bytes(), headers, in_port);
                }
            }
            self.memory
                .find((&rules.tuples, &rules.asked), keys, wanted, found, scratch);
            for index in places(wanted) {
                if let Some(count) = self.rule_counts.get(found[index].counter as usize) {
                    prefetch(count);
                }
            }
            // Packets in a row that one rule is for are counted together.
            let mut run = Run::default();
            for index in places(wanted) {
                let rule = found[index];
                let course = match rule.slot() {
                    Some(slot) => {
                        let bytes = batch.packets()[index].len() as u64;
                        if run.counter != rule.counter {
                            self.count(run);
                            run = Run::of(rule.counter);
                        }
                        run.add(bytes);
                        if pass.runs_at_once(batch, index, self.memory.only_step(slot)) {
                            continue;
                        }
                        let steps = self.memory.steps(slot);
                        pass.run(batch, index, (table as u8, rule.counter), steps)
                    }
                    None => pass.miss(batch, index, table as u8),
                };
                match course {
                    Course::Done => pass.end(batch, index, (table as u8, rule.counter)),
                    Course::Dropped => pass.drop(batch, index),
                    Course::Goto(next) => match of_table.get_mut(usize::from(next)) {
                        Some(of_next) => {
                            *of_next |= 1 << index;
                            left |= 1 << next;
                        }
                        None => pass.drop(batch, index),
                    },
                }
            }
            self.count(run);
        }
    }

    #[inline(always)]
    fn count(&self, run: Run) {
        if let Some(count) = self.rule_counts.get(run.counter as usize) {
            count.add_some(run.packets, run.bytes, self.context.now_ticks);
        }
    }

    /// Does to the one packet of a batch what a controller says.
    fn send(
        &self,
        batch: &mut Batch,
        packet: &PacketOut,
        (bridge, counts): (&mut Bridge, &mut Counts),
        shows: Shows<'_>,
    ) {
        let sets = &mut [ActionSet::EMPTY; BATCH_CAPACITY];
        let mut pass = Pass::new(self, bridge, counts, sets, shows);
        let steps = action::steps(&packet.actions, 0).unwrap_or_default();
        let course = pass.run(batch, 0, (0, BY_MESSAGE), steps);
        if packet.through_tables && matches!(course, Course::Done) {
            let between = Between {
                keys: &mut [Key::default(); BATCH_CAPACITY],
                found: &mut [Found::NOTHING; BATCH_CAPACITY],
                scratch: &mut Scratch::default(),
            };
            self.pass(batch, 1, between, &mut pass);
        } else {
            match course {
                Course::Done => pass.settle(batch, 0),
                _ => pass.drop(batch, 0),
            }
        }
        pass.count_sent();
    }
}

/// Number of no rule.
const NO_RULE: u32 = u32::MAX;
/// Number of no rule either, for what a message says.
const BY_MESSAGE: u32 = NO_RULE - 1;

/// Packets in a row that one rule is for.
#[derive(Clone, Copy)]
struct Run {
    counter: u32,
    packets: u64,
    bytes: u64,
}

impl Run {
    #[inline(always)]
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    fn of(counter: u32) -> Self {
        Self {
            counter,
            packets: 0,
            bytes: 0,
        }
    }
}

impl Default for Run {
    fn default() -> Self {
        Self::of(NO_RULE)
    }
}

/// One batch on its way through the rules.
struct Pass<'a> {
    context: &'a Context,
    shape: &'a Shape,
    miss: Miss,
    pool: Option<&'a PoolHandle>,
    clock: &'a Clock,
    facts: &'a Facts,
    is_worker: bool,
    bridge: &'a mut Bridge,
    counts: &'a mut Counts,
    /// Packets in a row that go through one port, which is the counter of them.
    row: Run,
    /// Packets that were sent somewhere.
    sent: u64,
    /// Packets that the bridge has counted.
    bridged: u64,
    /// Packets that were shown to the controller.
    shown: u64,
    /// Packets that take actions along, which are in `sets`.
    written: u64,
    sets: &'a mut [ActionSet; BATCH_CAPACITY],
    shows: Shows<'a>,
}

impl<'a> Pass<'a> {
    fn new(
        tables: &Tables<'a>,
        bridge: &'a mut Bridge,
        counts: &'a mut Counts,
        sets: &'a mut [ActionSet; BATCH_CAPACITY],
        shows: Shows<'a>,
    ) -> Self {
        Self {
            context: tables.context,
            shape: tables.shape,
            miss: tables.miss,
            pool: tables.pool,
            clock: tables.clock,
            facts: tables.facts,
            is_worker: tables.is_worker,
            bridge,
            counts,
            row: Run::default(),
            sent: 0,
            bridged: 0,
            shown: 0,
            written: 0,
            sets,
            shows,
        }
    }

    /// What becomes of a packet that no rule of a table fits.
    fn miss(&mut self, batch: &mut Batch, index: usize, table: u8) -> Course {
        match self.miss {
            Miss::Drop => {
                self.counts.missed += 1;
                Course::Dropped
            }
            Miss::Normal => {
                self.forget(index);
                self.normal(batch, index);
                Course::Done
            }
            Miss::Controller => {
                self.forget(index);
                self.show(batch, index, (table, NO_RULE));
                Course::Done
            }
        }
    }

    /// Has a packet take nothing along.
    fn forget(&mut self, index: usize) {
        self.written &= !(1 << index);
    }

    /// Does what a rule says that only sends a packet through one port; false, and nothing, if the step is another one.
    #[inline(always)]
    fn runs_at_once(&mut self, batch: &mut Batch, index: usize, step: u64) -> bool {
        let port = (step >> step::ARGUMENT_AT) as u8;
        let is_simple = step & step::KIND == step::OUTPUT
            && usize::from(port) != self.context.from_port
            && (self.sent | self.bridged | self.shown | self.written) & 1 << index == 0;
        if is_simple {
            self.sent |= 1 << index;
            self.counts.sent += 1;
            let bytes = batch.packets()[index].len() as u64;
            self.row(u32::from(port)).add(bytes);
            if usize::from(port) != self.context.to_port || batch.egress(index).is_some() {
                batch.send_to(index, port);
            }
        }
        is_simple
    }

    /// Takes the steps of a rule of a table, or of a bucket.
    fn run(
        &mut self,
        batch: &mut Batch,
        index: usize,
        rule: (u8, u32),
        steps: impl IntoIterator<Item = u64>,
    ) -> Course {
        let mut own = index;
        let course = self.take(batch, &mut own, rule, steps);
        if own == index {
            return course;
        }
        // It was sent before a second one of it was changed, and that ends here.
        if self.sent & 1 << own == 0 {
            batch.mark_dropped(own);
        }
        Course::Done
    }

    /// Takes steps, and makes `own` the number of the packet that they come to change.
    #[inline(always)]
    fn take(
        &mut self,
        batch: &mut Batch,
        own: &mut usize,
        rule: (u8, u32),
        steps: impl IntoIterator<Item = u64>,
    ) -> Course {
        let mut index = *own;
        let mut steps = steps.into_iter();
        while let Some(word) = steps.next() {
            let argument = word >> step::ARGUMENT_AT;
            if word & step::WRITTEN != 0 {
                if self.written & 1 << index == 0 {
                    self.written |= 1 << index;
                    self.sets[index] = ActionSet::EMPTY;
                }
                self.sets[index].write(word, &mut steps);
                continue;
            }
            if step::changes(word) {
                if batch.packets()[index].len() < ETHERNET_BYTES {
                    self.counts.too_short += 1;
                    return Course::Dropped;
                }
                // Copies are made last, so what was sent has to stay as it is: it is a second packet that changes.
                if self.sent & 1 << index != 0 {
                    let Some(second) = self.double(batch, index) else {
                        self.counts.crowded += 1;
                        return Course::Done;
                    };
                    (index, *own) = (second, second);
                }
            }
            match word & step::KIND {
                step::OUTPUT => {
                    let port = argument as u8;
                    if usize::from(port) != self.context.from_port {
                        self.output(batch, index, port);
                    }
                }
                step::IN_PORT => self.output(batch, index, self.context.from_port as u8),
                step::FLOOD | step::ALL => self.outputs(batch, index, others(self.context)),
                step::NORMAL => self.normal(batch, index),
                step::CONTROLLER => self.show(batch, index, rule),
                step::CLEAR => self.forget(index),
                step::QUEUE => batch.set_priority(index, argument as u8),
                step::GROUP => {
                    let course = self.group(batch, index, rule, argument as u32);
                    if !matches!(course, Course::Done) {
                        return course;
                    }
                }
                step::METER => {
                    let now_ns = self.clock.to_ns(self.context.now_ticks) as u64;
                    let bytes = batch.packets()[index].len();
                    let meter = self.shape.meter(argument as u32);
                    if meter.is_some_and(|it| !it.passes(now_ns, bytes, self.context.now_ticks)) {
                        self.counts.metered += 1;
                        return Course::Dropped;
                    }
                }
                step::SET => {
                    let Some(field) = step::field(word) else {
                        continue;
                    };
                    let value = match step::is_long(word) {
                        true => {
                            let (high, low) = (steps.next(), steps.next());
                            u128::from(high.unwrap_or(0)) << 64 | u128::from(low.unwrap_or(0))
                        }
                        false => u128::from(word >> step::VALUE_AT),
                    };
                    let headers = batch.headers(index);
                    let packet = match field {
                        Field::SourcePort | Field::DestinationPort => batch.packet_mut(index),
                        _ => batch.packet_mut_but_headers(index),
                    };
                    action::set(packet.bytes_mut(), headers, field, step::of(word), value);
                }
                step::DECREMENT_TTL => {
                    let headers = batch.headers(index);
                    let packet = batch.packet_mut_but_headers(index);
                    if !action::decrement_ttl(packet.bytes_mut(), headers) {
                        self.counts.too_far += 1;
                        return Course::Dropped;
                    }
                }
                step::PUSH_VLAN => {
                    let kind = EtherType(argument as u16);
                    let pushed = self
                        .pool
                        .is_some_and(|pool| action::push_vlan(batch.packet_mut(index), kind, pool));
                    if !pushed {
                        self.counts.no_tag += 1;
                        return Course::Dropped;
                    }
                }
                step::POP_VLAN => action::pop_vlan(batch.packet_mut(index)),
                step::GOTO => return Course::Goto(argument as u8),
                _ => break,
            }
        }
        Course::Done
    }

    fn output(&mut self, batch: &mut Batch, index: usize, port: u8) {
        self.outputs(batch, index, std::iter::once(port));
    }

    fn outputs(&mut self, batch: &mut Batch, index: usize, ports: impl Iterator<Item = u8>) {
        let is_sent = self.sent & 1 << index != 0;
        self.sent |= 1 << index;
        let bytes = batch.packets()[index].len() as u64;
        let to = self.context.to_port;
        let left = |port| self.row(u32::from(port)).add(bytes);
        self.counts.crowded += send(batch, index, to, is_sent, ports, left);
    }

    /// Packets in a row that go through a port.
    #[inline(always)]
    fn row(&mut self, port: u32) -> &mut Run {
        if self.row.counter != port {
            self.count_sent();
            self.row = Run::of(port);
        }
        &mut self.row
    }

    /// Counts packets of the last row.
    #[inline(always)]
    fn count_sent(&mut self) {
        let row = std::mem::take(&mut self.row);
        if let Some(counts) = self.facts.port_counts.get(row.counter as usize) {
            let count = match self.is_worker {
                true => &counts.sent,
                false => &counts.sent_out,
            };
            count.add_some(row.packets, row.bytes, self.context.now_ticks);
        }
    }

    fn normal(&mut self, batch: &mut Batch, index: usize) {
        self.bridged |= 1 << index;
        match self
            .bridge
            .pass(batch.packets()[index].bytes(), self.context)
        {
            Bridged::To(port) => self.output(batch, index, port),
            Bridged::ToAllOthers => self.outputs(batch, index, others(self.context)),
            Bridged::Nowhere => {}
        }
    }

    /// Shows a packet to the controller as it is now.
    #[inline(never)]
    fn show(&mut self, batch: &Batch, index: usize, (table, rule): (u8, u32)) {
        self.shown |= 1 << index;
        let from = (self.context.from_port as u8, table, rule);
        if !self.shows.show(batch.packets()[index].bytes(), from) {
            self.facts.lose();
        }
    }

    #[inline(never)]
    fn group(&mut self, batch: &mut Batch, index: usize, rule: (u8, u32), id: u32) -> Course {
        let Some(group) = self.shape.group(id) else {
            return Course::Done;
        };
        let bytes = batch.packets()[index].len();
        group.count.add(bytes, self.context.now_ticks);
        if group.kind == GroupKind::All {
            for bucket in &group.buckets {
                bucket.count.add(bytes, self.context.now_ticks);
                self.run(batch, index, rule, bucket.steps.iter().copied());
            }
            return Course::Done;
        }
        let flow = match group.kind {
            GroupKind::Select => {
                let headers = batch.headers(index);
                flow_of(batch.packets()[index].bytes(), headers)
            }
            _ => 0,
        };
        let Some(bucket) = group.pick(flow, |port| self.facts.is_up(port)) else {
            self.counts.dead += 1;
            return Course::Dropped;
        };
        bucket.count.add(bytes, self.context.now_ticks);
        self.run(batch, index, rule, bucket.steps.iter().copied())
    }

    /// Ends a packet's way through the tables: it does what it has taken along.
    #[inline(always)]
    fn end(&mut self, batch: &mut Batch, index: usize, rule: (u8, u32)) {
        if self.written & 1 << index != 0 {
            self.do_written(batch, index, rule);
        }
        self.settle(batch, index);
    }

    #[inline(never)]
    fn do_written(&mut self, batch: &mut Batch, index: usize, rule: (u8, u32)) {
        self.forget(index);
        let set = self.sets[index];
        if let Course::Dropped = self.run(batch, index, rule, set.steps()) {
            self.drop(batch, index);
        }
    }

    /// Puts a second one of a packet behind all others of the batch.
    fn double(&self, batch: &mut Batch, index: usize) -> Option<usize> {
        let bytes = batch.packets()[index].bytes();
        let length = u16::try_from(bytes.len()).ok();
        let length = length.filter(|_| batch.room() > 0)?;
        let pool = self.pool.filter(|pool| bytes.len() <= pool.room())?;
        let mut second = pool.take(length)?;
        second.bytes_mut().copy_from_slice(bytes);
        batch.push(second);
        Some(batch.len() - 1)
    }

    /// Drops a packet whose way ends, unless it was sent before; it is counted already.
    #[inline(always)]
    fn drop(&mut self, batch: &mut Batch, index: usize) {
        if self.sent & 1 << index == 0 {
            batch.mark_dropped(index);
        }
    }

    /// Drops a packet that was sent nowhere, and counts the others, unless the bridge has.
    fn settle(&mut self, batch: &mut Batch, index: usize) {
        if !batch.is_kept(index) {
            return;
        }
        let is_in = |bits: u64| bits & 1 << index != 0;
        let (is_sent, is_bridged) = (is_in(self.sent), is_in(self.bridged));
        let is_shown = is_in(self.shown);
        let is_counted = is_sent || is_bridged;
        self.counts.sent += u64::from(is_sent && !is_bridged);
        self.counts.shown += u64::from(is_shown && !is_counted);
        self.counts.shown_beside += u64::from(is_shown && is_counted);
        self.counts.dropped += u64::from(!is_counted && !is_shown);
        if !is_sent {
            batch.mark_dropped(index);
        }
    }
}

/// A number that all packets of a flow have, whatever tags, hops and ports of the chain they have, and whatever rules ask about.
fn flow_of(frame: &[u8], headers: Headers) -> u64 {
    let key = Key::of(frame, headers, 0);
    // Later fragments have no ports: all of a datagram go the same way.
    let ports = if headers.is_fragment() { 0 } else { key.0[3] };
    let words = [
        key.get(Field::IpProtocol) as u64,
        ports,
        key.0[4],
        key.0[5],
        key.0[6],
        key.0[7],
    ];
    let ethernet = [key.0[0] >> 16, key.0[1]];
    words.into_iter().chain(ethernet).fold(0, mix)
}

fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (index < BATCH_CAPACITY).then_some(index)
    })
}

#[cfg(test)]
mod tests;
