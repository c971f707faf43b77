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
mod server;
mod shape;
mod table;
mod text;

use crate::mix::mix;
use crate::swapped::InUse;
use crate::{
    Class, Context, Entry, Function, Handler, KernelVersion, Member, SettingsError, Shared,
    settings,
};
use action::step;
use at_work::Worker;
use control::{Control, Count, GroupKind};
use in_kernel::Kernel;
use key::{Field, Key};
use learned::{Learned, WAYS, is_reserved};
use openflow::PacketOut;
use serde::Deserialize;
use server::{Controllers, Facts, Server};
use shape::{Shape, Table};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::{Found, MOST_RULES, Memory, Scratch};
use taut_port::{BATCH_CAPACITY, Batch, PoolHandle, PortError, Punt};
use taut_settings::{duration, in_words};
use taut_sys::{Clock, prefetch};
use taut_wire::{EtherType, Ethernet};
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
    metered: u64,
    too_far: u64,
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
            facts: Arc::new(Facts {
                ports: AtomicUsize::new(0),
                is_up: (0..MOST_PORTS).map(|_| AtomicBool::new(true)).collect(),
            }),
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
                            send(batch, index, context.to_port, false, std::iter::once(port));
                        }
                        Bridged::ToAllOthers => {
                            self.counts.crowded +=
                                send(batch, index, context.to_port, false, others(context));
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
        let has_tags = is_controlled || control.pushes_tags();
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
            outcomes.extend([
                ("sent by a rule", counts.sent + in_kernel.sent),
                ("shown to the controller", counts.shown),
                ("dropped by a rule", counts.dropped + in_kernel.stopped),
                ("dropped: no rule for it", counts.missed + in_kernel.missed),
                ("dropped by a meter", counts.metered),
                ("dropped: no more hops", counts.too_far),
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

/// Sends a packet through several ports, or copies of it where it has been sent already; how many copies there was no room for.
fn send(
    batch: &mut Batch,
    index: usize,
    usual: usize,
    is_sent: bool,
    ports: impl Iterator<Item = u8>,
) -> u64 {
    let mut crowded = 0;
    for (port, number) in ports.zip(0..) {
        if number == 0 && !is_sent {
            // A batch of which all go the usual way goes together.
            if usize::from(port) != usual || batch.egress(index).is_some() {
                batch.send_to(index, port);
            }
        } else {
            crowded += u64::from(!batch.copy_to(index, port));
        }
    }
    crowded
}

/// What a switch of four ports answers to a controller that says this, in these pieces: as far as it listens.
pub fn heard(pieces: &[&[u8]]) -> Vec<u8> {
    let mut control = Control::new(64);
    let (mut generation, mut sent, mut removed, mut deposed) =
        (None, Vec::new(), Vec::new(), false);
    let mut session = openflow::Session::new();
    for piece in pieces {
        let mut plant = openflow::Plant {
            control: &mut control,
            ports: 4,
            is_up: &|_| true,
            datapath: 1,
            generation: &mut generation,
            sent: &mut sent,
            removed: &mut removed,
            deposed: &mut deposed,
        };
        if session.take(piece, &mut plant).is_err() {
            break;
        }
        for (id, kept, why) in removed.drain(..) {
            session.flow_removed(&kept, control.count(id), why);
        }
    }
    std::mem::take(session.output())
}

/// All ports but the one that packets came in through.
fn others(context: &Context) -> impl Iterator<Item = u8> + use<> {
    let (ports, from) = (context.ports as u8, context.from_port as u8);
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
        let wanted = kept.fold(0, |bits, index| bits | 1 << index);
        if wanted == 0 {
            return;
        }
        for packet in batch.packets() {
            if let Some(byte) = packet.bytes().first() {
                prefetch(byte);
            }
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
            };
            let mut pass = Pass::new(&tables, bridge, counts);
            let between = Between {
                keys: &mut self.keys,
                found: &mut self.found,
                scratch: &mut self.scratch,
            };
            tables.pass(batch, wanted, between, &mut pass);
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
                        run.packets += 1;
                        run.bytes += bytes;
                        if pass.runs_at_once(batch, index, self.memory.only_step(slot)) {
                            continue;
                        }
                        let steps = self.memory.steps(slot);
                        pass.run(batch, index, &keys[index], table as u8, steps)
                    }
                    None => pass.miss(batch, index, table as u8),
                };
                match course {
                    Course::Done => pass.settle(batch, index),
                    Course::Dropped => batch.mark_dropped(index),
                    Course::Goto(next) => match of_table.get_mut(usize::from(next)) {
                        Some(of_next) => {
                            *of_next |= 1 << index;
                            left |= 1 << next;
                        }
                        None => batch.mark_dropped(index),
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
        bridge: &mut Bridge,
        counts: &mut Counts,
    ) {
        let mut pass = Pass::new(self, bridge, counts);
        let steps = action::steps(&packet.actions, 0).unwrap_or_default();
        let key = Key::of(
            batch.packets()[0].bytes(),
            batch
                .packets()
                .first()
                .map_or_else(Default::default, |it| taut_wire::Headers::of(it.bytes())),
            self.context.from_port as u16,
        );
        let course = pass.run(batch, 0, &key, 0, steps);
        if packet.through_tables && matches!(course, Course::Done) {
            let between = Between {
                keys: &mut [Key::default(); BATCH_CAPACITY],
                found: &mut [Found::NOTHING; BATCH_CAPACITY],
                scratch: &mut Scratch::default(),
            };
            self.pass(batch, 1, between, &mut pass);
            return;
        }
        match course {
            Course::Done => pass.settle(batch, 0),
            _ => batch.mark_dropped(0),
        }
    }
}

/// Packets in a row that one rule is for.
#[derive(Clone, Copy)]
struct Run {
    counter: u32,
    packets: u64,
    bytes: u64,
}

impl Run {
    fn of(counter: u32) -> Self {
        Self {
            counter,
            packets: 0,
            bytes: 0,
        }
    }
}

impl Default for Run {
    /// Of no rule.
    fn default() -> Self {
        Self::of(u32::MAX)
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
    bridge: &'a mut Bridge,
    counts: &'a mut Counts,
    /// Packets that were sent somewhere.
    sent: u64,
    /// Packets that the bridge has counted.
    bridged: u64,
}

impl<'a> Pass<'a> {
    fn new(tables: &Tables<'a>, bridge: &'a mut Bridge, counts: &'a mut Counts) -> Self {
        Self {
            context: tables.context,
            shape: tables.shape,
            miss: tables.miss,
            pool: tables.pool,
            clock: tables.clock,
            facts: tables.facts,
            bridge,
            counts,
            sent: 0,
            bridged: 0,
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
                self.normal(batch, index);
                Course::Done
            }
            Miss::Controller => {
                self.show(batch, index, table, false);
                Course::Done
            }
        }
    }

    /// Does what a rule says that only sends a packet through one port; false, and nothing, if the step is another one.
    #[inline(always)]
    fn runs_at_once(&mut self, batch: &mut Batch, index: usize, step: u64) -> bool {
        let port = (step >> step::ARGUMENT_AT) as u8;
        let is_simple = step & step::KIND == step::OUTPUT
            && usize::from(port) != self.context.from_port
            && (self.sent | self.bridged) & 1 << index == 0;
        if is_simple {
            self.sent |= 1 << index;
            self.counts.sent += 1;
            if usize::from(port) != self.context.to_port || batch.egress(index).is_some() {
                batch.send_to(index, port);
            }
        }
        is_simple
    }

    /// Takes the steps of a rule, or of a bucket.
    fn run(
        &mut self,
        batch: &mut Batch,
        index: usize,
        key: &Key,
        table: u8,
        steps: impl IntoIterator<Item = u64>,
    ) -> Course {
        let mut steps = steps.into_iter();
        while let Some(word) = steps.next() {
            let argument = word >> step::ARGUMENT_AT;
            match word & step::KIND {
                step::OUTPUT => {
                    let port = argument as u8;
                    if usize::from(port) != self.context.from_port {
                        self.output(batch, index, port);
                    }
                }
                step::IN_PORT => self.output(batch, index, self.context.from_port as u8),
                step::FLOOD => self.outputs(batch, index, others(self.context)),
                step::NORMAL => self.normal(batch, index),
                step::CONTROLLER => self.show(batch, index, table, true),
                step::QUEUE => batch.set_priority(index, argument as u8),
                step::GROUP => {
                    let course = self.group(batch, index, key, argument as u32);
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
                    let place = argument as usize & 0xff;
                    let Some(field) = Field::ALL.get(place).copied() else {
                        continue;
                    };
                    let value = match field.bits() {
                        128 => {
                            let (high, low) = (steps.next(), steps.next());
                            u128::from(high.unwrap_or(0)) << 64 | u128::from(low.unwrap_or(0))
                        }
                        _ => u128::from(word >> step::VALUE_AT),
                    };
                    let headers = batch.headers(index);
                    let packet = match field {
                        Field::SourcePort | Field::DestinationPort => batch.packet_mut(index),
                        _ => batch.packet_mut_but_headers(index),
                    };
                    action::set(packet.bytes_mut(), headers, field, value);
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
        self.counts.crowded += send(batch, index, self.context.to_port, is_sent, ports);
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

    fn show(&mut self, batch: &mut Batch, index: usize, table: u8, by_rule: bool) {
        batch.mark_punted(index, Punt::Shown { table, by_rule });
        self.counts.shown += 1;
    }

    fn group(&mut self, batch: &mut Batch, index: usize, key: &Key, id: u32) -> Course {
        let Some(group) = self.shape.group(id) else {
            return Course::Done;
        };
        let bytes = batch.packets()[index].len();
        group.count.add(bytes, self.context.now_ticks);
        if group.kind == GroupKind::All {
            for bucket in &group.buckets {
                bucket.count.add(bytes, self.context.now_ticks);
                self.run(batch, index, key, 0, bucket.steps.iter().copied());
            }
            return Course::Done;
        }
        let Some(bucket) = group.pick(flow_of(key), |port| self.facts.is_up(port)) else {
            self.counts.dead += 1;
            return Course::Dropped;
        };
        bucket.count.add(bytes, self.context.now_ticks);
        self.run(batch, index, key, 0, bucket.steps.iter().copied())
    }

    /// Drops a packet that was sent nowhere, and counts the others, unless the bridge has.
    fn settle(&mut self, batch: &mut Batch, index: usize) {
        if !batch.is_kept(index) {
            return;
        }
        let (is_sent, is_bridged) = (self.sent & 1 << index != 0, self.bridged & 1 << index != 0);
        self.counts.sent += u64::from(is_sent && !is_bridged);
        self.counts.dropped += u64::from(!is_sent && !is_bridged);
        if !is_sent {
            batch.mark_dropped(index);
        }
    }
}

/// A number that all packets of a flow have, whatever tags, hops and ports of the chain they have.
fn flow_of(key: &Key) -> u64 {
    let words = [
        key.get(Field::IpProtocol) as u64,
        key.0[3],
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
