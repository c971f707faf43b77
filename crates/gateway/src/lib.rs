//! GTPU: the user plane of a mobile gateway (3GPP TS 29.281). It relays between tunnels as a serving gateway does
//! (Lange et al., CNSM 2015), and ends tunnels as a UPF or PDN gateway does.
//!
//! Each batch goes through three passes: read the headers, look all of them up, act. The bearers change between
//! batches, by a few changes at a time that come through a ring (`change`).
//!
//! A session of a 5G core may also need flow filters, usage reports, buffering and QFI marks. A **sorting** implements
//! these for the packets of one tunnel or user. The bearer names its sorting. The first matching rule of the sorting
//! names a bearer, so every rule has a path, an action and rates like any bearer. A bearer without rules is looked up
//! and applied as if sortings did not exist. Packets with a sorting leave the fast path where others are dropped
//! (`left_out`), take a second lookup, and come back. Sortings are immutable. The control plane makes them and sends
//! them to the workers through the ring of changes. All workers share the usage counters (`usage`) and the buffered
//! packets (`buffer`). Workers notify the control plane through a ring (`event`), from which PFCP's thread makes reports
//! (`pfcp`).
//!
//! # Design
//!
//! The gateway keeps a table of 16-byte entries per worker, four to a cache line, and looks up a whole batch at once, so
//! that the cache misses overlap. The control plane (`control.rs`) has a table of the same form. It checks a set of
//! changes as a whole and sends it through a ring (`change.rs`). The control socket (`server.rs`) and PFCP (`pfcp/`)
//! both call it. A pure function computes the bearers of a PFCP session from its rules (`session.rs`), so a
//! modification is the difference of two results. The slow path sends replies (`answer.rs`); the worker sends end
//! markers, because they follow the last packet of their path.
//!
//! A meter stores a time and the cost of a byte (`meter.rs`). A bit in a bearer's entry says that the bearer has
//! meters, so other bearers cost nothing more. Meters are looked up last (`policing.rs`), and a packet above the rate
//! counts as dropped only. All workers share the meters, which the control plane creates (`limit.rs`).

#![forbid(unsafe_code)]

mod answer;
mod bearer;
mod buffer;
mod change;
mod churn;
mod control;
mod event;
mod flow;
mod in_kernel;
mod kernel;
mod known_paths;
mod limit;
mod outcome;
mod parser;
mod peers;
mod pfcp;
mod policing;
mod refusal;
mod rewrite;
mod rules;
#[cfg(test)]
mod scapy;
mod server;
mod settings;
mod slot;
mod sorting;
mod standalone;
mod state;
mod table;
mod usage;

pub use bearer::{Action, Bearer, BearerText, CSV_HEADER, Match, Path, read_csv};
pub use churn::{Churned, bearers_of, churn};
pub use control::{Control, Wish};
pub use flow::FlowFilter;
pub use limit::{Limit, Limits, MeterName};
pub use outcome::{OUTCOMES, Outcome};
pub use policing::METERS_PER_BEARER;
pub use refusal::Refused;
pub use server::{Answer, Request};
pub use sorting::Sorting;
pub use standalone::Detached;
pub use table::{BYTES_PER_BEARER, Matching};
pub use taut_function::control_socket::MOST_FILE_BYTES;

use answer::{Answering, Messages, Way};
use bearer::{Kind, is_of_rule};
use buffer::HeldPackets;
use change::{Change, Receiver, changes};
use event::Event;
use flow::Looked;
use kernel::Kernel;
use known_paths::KnownPaths;
use outcome::Counts;
use parser::{Own, Seen, Tunnelled};
use peers::Peers;
use policing::{Policing, SharedMeters};
use rules::Asked;
use server::Served;
use settings::{Checked, Others, Settings};
use slot::Slot;
use sorting::Unsorted;
use state::Together;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use table::Table;
use taut_function::control_socket::ControlSocket;
use taut_function::macs::Macs;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, Handler, KernelVersion, Member, Needs,
    SettingsError, Shared, Spread, settings,
};
use taut_port::{BATCH_CAPACITY, Batch, Marks, Packet, PoolHandle, PortError, Punt};
use taut_sys::Alarm;
use taut_wire::gtpu::MessageType;
use taut_wire::{Ethernet, Gtpu, Headers, resolution};
use taut_xdp::gateway::KernelGateway;

/// The entry of the function.
pub const ENTRY: Entry = Entry {
    name: "gtpu",
    summary: "a mobile gateway: relays between GTP-U tunnels and is the end of them",
    class: Class::Basic,
    ports: Some("tunnels"),
    build: |table| {
        let settings: Settings = settings(table)?;
        Ok(Box::new(Gateway::new(settings.check()?)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Upcall(in_kernel::UPCALL),
};

/// The number of buffers in the gateway's own pool, for end markers and for frames that grow beyond a port's headroom.
const POOL_SLOTS: u32 = 2048;

/// The gateway function, complete after `prepare`.
struct Gateway {
    checked: Checked,
    kernel: Kernel,
    plane: Option<Plane>,
    /// The state of all workers, which includes [`Deciding`].
    shared: Shared,
    /// The replies of the slow path that were lost because its ring was full.
    lost_answers: Arc<AtomicU64>,
}

/// The control plane and its sockets, shared by the gateways of all workers. The sockets close with the last gateway.
struct Deciding {
    control: Arc<Mutex<Control>>,
    _server: Option<ControlSocket>,
    _pfcp: Option<pfcp::Server>,
}

impl Gateway {
    fn new(checked: Checked) -> Self {
        Self {
            checked,
            kernel: None,
            plane: None,
            shared: Shared::default(),
            lost_answers: Arc::default(),
        }
    }

    fn start(&mut self) -> Result<Control, PortError> {
        let Checked { own, settings, .. } = &self.checked;
        let (sender, receiver) = changes(self.kernel.clone())?;
        let meters = SharedMeters::new(settings.metered_bearers());
        let kernel = self.kernel.clone();
        let all = Together {
            meters,
            held: settings.held(),
            peers: Peers::new(),
        };
        let mut plane = Plane::new(&self.checked, receiver, kernel, all.clone())?;
        let mut control = Control::new(own.clone(), settings.bearers, sender, all);
        if let Some(file) = &settings.load {
            let wrong = |line: Option<usize>, what: String| {
                let line = line.map_or(String::new(), |line| format!("{line}: "));
                let spec = format!("function \"gtpu\": load {}:{line}", file.display());
                PortError::system(
                    spec.trim_end().trim_end_matches(':').to_string(),
                    std::io::Error::other(what),
                )
            };
            let text = std::fs::read_to_string(file).map_err(|e| wrong(None, e.to_string()))?;
            let bearers = read_csv(&text, own).map_err(|(line, e)| wrong(Some(line), e))?;
            // The worker does not run yet, so its changes are applied here.
            plane
                .load(&mut control, &bearers)
                .map_err(|(line, e)| wrong(Some(line), e))?;
        }
        self.plane = Some(plane);
        Ok(control)
    }

    /// Prepares the first worker's gateway, which creates the shared state.
    fn begin(&mut self) -> Result<Deciding, PortError> {
        let control = Arc::new(Mutex::new(self.start()?));
        let settings = &self.checked.settings;
        let served = Arc::new(Served(Arc::clone(&control)));
        let server = ControlSocket::start_at("gtpu", settings.control.as_ref(), &served)?;
        let pfcp = self.checked.pfcp.as_ref();
        let pfcp = pfcp
            .map(|terms| pfcp::Server::start(terms, &control))
            .transpose()?;
        Ok(Deciding {
            control,
            _server: server,
            _pfcp: pfcp,
        })
    }

    /// Prepares the data plane of another worker, with a copy of the table.
    fn follow(&mut self, deciding: &Deciding) -> Result<(), PortError> {
        let (sender, receiver) = changes(None)?;
        let control = deciding.control.lock();
        let mut control = control.unwrap_or_else(PoisonError::into_inner);
        let mut plane = Plane::new(&self.checked, receiver, None, control.together())?;
        control.add_worker(sender, |change| plane.copy(change));
        self.plane = Some(plane);
        Ok(())
    }
}

impl Function for Gateway {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            empty_batches: EmptyBatches::Wakes,
            ..Needs::default()
        }
    }

    fn join(&mut self, _: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.shared = shared.clone();
        self.kernel = shared.lock(|kernel: &mut Option<Arc<KernelGateway>>| kernel.clone());
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if let Some(plane) = &mut self.plane {
            plane.process(batch, context);
        }
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let Some(plane) = &mut self.plane else {
            return true;
        };
        plane.held_back() == 0 && plane.receiver.ring.arm(alarm)
    }

    fn disarm(&mut self) {
        if let Some(plane) = &mut self.plane {
            plane.receiver.ring.disarm();
        }
    }

    fn held(&self) -> usize {
        self.plane.as_ref().map_or(0, Plane::held_back)
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let shared = self.shared.clone();
        shared.lock(|deciding| match deciding {
            Some(deciding) => self.follow(deciding),
            None => {
                *deciding = Some(self.begin()?);
                Ok(())
            }
        })
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        let own = Own::new(&self.checked.own);
        let macs = self.checked.macs.clone();
        let answering = Answering::new(own, macs, Arc::clone(&self.lost_answers));
        Some(Box::new(answering))
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let counts = self
            .plane
            .as_ref()
            .map_or([0; OUTCOMES.len()], |p| p.counts);
        let mut outcomes = outcome::all(counts, &self.kernel);
        outcomes.push((
            "answers lost, beside the above",
            self.lost_answers.load(Ordering::Relaxed),
        ));
        outcomes
    }

    fn drops(&self, outcome: &str) -> bool {
        outcome::drops(outcome)
    }
}

/// The data plane of a worker.
struct Plane {
    table: Table,
    paths: KnownPaths,
    policing: Policing,
    own: Own,
    /// The addresses to which no user packet is forwarded.
    closed: Own,
    /// The ports for tunnel packets; all ports if none.
    tunnels: Option<Vec<usize>>,
    /// The MAC address of each port, for replies to ARP requests for the port's own addresses.
    macs: Macs,
    mtu: usize,
    others: Others,
    pool: PoolHandle,
    /// The messages that wait for the slow path, which sends them.
    messages: Messages,
    receiver: Receiver,
    counts: Counts,
    kernel: Kernel,
    /// The sortings, indexed by number minus 1.
    sortings: Vec<Option<Arc<Sorting>>>,
    held: HeldPackets,
    /// True while released packets pass, which must not be buffered again.
    is_draining: bool,
    /// Packets that are temporarily taken out of their batch.
    aside: Batch,
    /// The count of batches, which selects one packet per batch to learn its peer's location.
    batches: usize,
}

/// The remaining steps for a packet after its bearer's action.
#[derive(Debug, Clone, Copy, Default)]
struct Behind {
    is_metered: bool,
    /// True if usage rules count the packet.
    is_used: bool,
    /// True if a copy of the packet is buffered and the packet leaves the batch.
    is_held: bool,
}

impl Plane {
    fn new(
        checked: &Checked,
        receiver: Receiver,
        kernel: Kernel,
        Together {
            meters,
            held,
            peers,
        }: Together,
    ) -> Result<Self, PortError> {
        let settings = &checked.settings;
        let own = Own::new(&checked.own);
        Ok(Self {
            sortings: vec![None; settings.metered_bearers()],
            held: HeldPackets::new(held)?,
            is_draining: false,
            aside: Batch::new(),
            batches: 0,
            table: Table::of_gateway(settings.matching, settings.bearers, &checked.own),
            paths: KnownPaths::new(&own, peers),
            policing: Policing::new(settings.metered_bearers(), meters),
            own,
            closed: Own::new(&checked.closed),
            tunnels: settings.tunnels.clone(),
            macs: checked.macs.clone(),
            mtu: settings.mtu,
            others: settings.others,
            pool: PoolHandle::new(POOL_SLOTS, false)?,
            messages: Messages::new(),
            receiver,
            counts: [0; OUTCOMES.len()],
            kernel,
        })
    }

    /// Loads the bearers of a file, all or none; errors name the line.
    fn load(
        &mut self,
        control: &mut Control,
        bearers: &[(usize, Bearer)],
    ) -> Result<(), (usize, String)> {
        /// This many changes fit into the ring, even if each bearer needs a new path.
        const AT_A_TIME: usize = 1024;
        for part in bearers.chunks(AT_A_TIME) {
            let wishes: Vec<_> = part.iter().map(|(_, bearer)| Wish::Add(*bearer)).collect();
            let granted = control.grant(&wishes);
            granted.map_err(|(number, e)| (part[number].0, e.to_string()))?;
            while self.take_changes() {}
        }
        Ok(())
    }

    /// Applies a change copied from another worker's state.
    fn copy(&mut self, change: Change) {
        match change {
            Change::Set(slot) => drop(self.table.set(slot)),
            Change::Path(number, path) => self.paths.set(number, path),
            Change::Police { key, meters } => self.policing.assign(key, meters),
            Change::Sorting { number, sorting } => set_sorting(&mut self.sortings, number, sorting),
            // These changes are no part of a table's state.
            Change::Remove(_)
            | Change::Meter { .. }
            | Change::EndMarker { .. }
            | Change::Echo { .. }
            | Change::Forget(_) => {}
        }
    }

    /// Returns the number of created messages and released packets, which wait only for a batch.
    fn held_back(&self) -> usize {
        self.messages.len() + self.held.due()
    }

    /// Applies a few of the pending changes; returns true if there were any.
    #[inline(always)]
    fn take_changes(&mut self) -> bool {
        let mut any = false;
        let (table, paths) = (&mut self.table, &mut self.paths);
        let policing = &mut self.policing;
        let (messages, pool) = (&mut self.messages, &self.pool);
        let (kernel, tunnels) = (&self.kernel, self.tunnels.as_deref());
        let (sortings, held) = (&mut self.sortings, &mut self.held);
        let mut in_vain = 0;
        self.receiver.ring.take(|change| {
            any = true;
            match change {
                Change::Set(slot) => {
                    let has_room = table.set(slot);
                    debug_assert!(has_room, "whoever decides has counted");
                    if is_of_rule(slot.key) && held.len() != 0 {
                        match slot.kind() {
                            Kind::Hold => {}
                            Kind::Encapsulate | Kind::Relay | Kind::Decapsulate => {
                                held.release(slot.key);
                            }
                            _ => in_vain += held.forget(slot.key),
                        }
                    }
                }
                Change::Remove(key) => {
                    table.remove(key);
                    if is_of_rule(key) && held.len() != 0 {
                        in_vain += held.forget(key);
                    }
                }
                Change::Forget(key) => in_vain += held.forget(key),
                Change::Sorting { number, sorting } => set_sorting(sortings, number, sorting),
                Change::Echo { path, sequence } => {
                    paths.peers.ask(path, sequence);
                    if let Some(way) = way_to(path, paths, kernel, tunnels) {
                        messages.add_echo(pool, &way, sequence);
                    }
                }
                Change::Path(number, path) => paths.set(number, path),
                // The control plane has applied it.
                Change::Meter { .. } => {}
                Change::Police { key, meters } => policing.assign(key, meters),
                Change::EndMarker { path, teid } => {
                    if let Some(way) = way_to(path, paths, kernel, tunnels) {
                        messages.add_end_marker(pool, &way, teid);
                    }
                }
            }
        });
        if in_vain != 0 {
            self.counts[Outcome::HeldInVain as usize] += in_vain as u64;
            self.receiver.outcomes.publish(&self.counts);
        }
        any
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.take_changes();
        if !batch.is_empty() {
            self.pass(batch, context);
            self.receiver.outcomes.publish(&self.counts);
        }
        if self.held.is_due(context.to_port) {
            self.drain(batch, context);
        }
        self.messages.release(batch);
    }

    fn pass(&mut self, batch: &mut Batch, context: &Context) {
        let len = batch.len().min(BATCH_CAPACITY);
        let mut seen = [Seen::Gone; BATCH_CAPACITY];
        let mut keys = [0; BATCH_CAPACITY];
        let mut found = [Slot::default(); BATCH_CAPACITY];
        for (i, packet) in batch.packets().iter().enumerate().take(len) {
            if batch.is_kept(i) {
                seen[i] = Seen::of(packet.bytes(), &self.own);
                keys[i] = seen[i].key();
            }
        }
        if self.table.has_rules() {
            self.ask_rules(batch, &seen[..len], &mut found[..len]);
        } else {
            self.table.look_up(&keys[..len], &mut found[..len]);
        }
        let tunnels = self.tunnels.as_ref();
        let takes_tunnels = tunnels.is_none_or(|ports| ports.contains(&context.from_port));
        // One packet of each batch updates its peer's location. Over time this covers every peer, and costs the others
        // nothing.
        self.batches = self.batches.wrapping_add(1);
        if takes_tunnels
            && let Some(shown) = self.batches.checked_rem(len)
            && let Seen::Tunnelled(tunnelled) = &seen[shown]
            && found[shown].key != 0
        {
            self.hear(&batch.packets()[shown], tunnelled, context);
        }
        // Separate variables stay in registers while no packet is sorted.
        let (mut metered, mut used, mut held): (u64, u64, u64) = (0, 0, 0);
        for i in 0..len {
            let packet = &mut batch.packets_mut()[i];
            let outcome = match &seen[i] {
                Seen::Gone => continue,
                Seen::Settled(outcome) => *outcome,
                Seen::Tunnelled(_) if !takes_tunnels => Outcome::WrongPort,
                Seen::Tunnelled(tunnelled) => self.tunnelled(packet, tunnelled, &found[i], context),
                Seen::Plain { ip, .. } => self.plain(packet, usize::from(*ip), &found[i], context),
            };
            if matches!(
                outcome,
                Outcome::Relayed | Outcome::Encapsulated | Outcome::Decapsulated
            ) {
                self.counts[outcome as usize] += 1;
                metered |= u64::from(found[i].is_metered()) << i;
            } else if outcome == Outcome::ToldToDrop && found[i].kind() == Kind::Sort {
                let behind = self.sort(batch, i, &seen[i], &mut found[i], context);
                metered |= u64::from(behind.is_metered) << i;
                used |= u64::from(behind.is_used) << i;
                held |= u64::from(behind.is_held) << i;
            } else {
                self.left_out(batch, i, outcome, &found[i], context);
            }
        }
        if metered != 0 {
            self.police(batch, metered, &seen, &found, context.now_ticks);
        }
        if used != 0 {
            self.count_usage(batch, used, &seen, &found, context.now_ticks);
        }
        if held != 0 {
            self.take_out(batch, held);
        }
    }

    /// Looks packets up in a table of rules.
    #[inline(never)]
    fn ask_rules(&self, batch: &Batch, seen: &[Seen], found: &mut [Slot]) {
        for ((packet, seen), found) in batch.packets().iter().zip(seen).zip(found) {
            if let Some(asked) = Asked::of(packet.bytes(), seen) {
                *found = self.table.taker(&asked);
            }
        }
    }

    /// Applies the sorting of a tunnel or user to a packet. On entry `slot` is the bearer of the tunnel or user,
    /// afterwards the bearer of the matching rule.
    #[inline(never)]
    fn sort(
        &mut self,
        batch: &mut Batch,
        index: usize,
        seen: &Seen,
        slot: &mut Slot,
        context: &Context,
    ) -> Behind {
        let number = slot.teid;
        let place = (number as usize).wrapping_sub(1);
        let Some(sorting) = self.sortings.get(place).and_then(Option::as_ref) else {
            self.left_out(batch, index, Outcome::ToldToDrop, slot, context);
            return Behind::default();
        };
        let chosen = match seen {
            // An end marker belongs to no flow: it takes the path of the last rule.
            Seen::Tunnelled(it) if it.message != MessageType::G_PDU => {
                sorting.0.len().checked_sub(1).ok_or(Unsorted::NoRule)
            }
            Seen::Tunnelled(it) => {
                let frame = batch.packets()[index].bytes();
                let headers = || Headers::inside(frame, usize::from(it.payload));
                sorting.choose(
                    || Looked::of(&headers(), frame, true),
                    || {
                        Gtpu::new(frame.get(usize::from(it.gtpu)..)?)
                            .ok()?
                            .pdu_session()
                            .map(|it| it.qfi)
                    },
                )
            }
            _ => {
                let is_asked = !sorting.0.first().is_some_and(sorting::Choice::takes_all);
                let headers = match is_asked {
                    true => batch.headers(index),
                    false => Headers::default(),
                };
                let frame = batch.packets()[index].bytes();
                sorting.choose(|| Looked::of(&headers, frame, false), || None)
            }
        };
        let choice = match chosen {
            Ok(place) => &sorting.0[place],
            Err(unsorted) => {
                let outcome = match unsorted {
                    Unsorted::NoRule => Outcome::NoRule,
                    Unsorted::WrongFlow => Outcome::WrongFlow,
                };
                self.left_out(batch, index, outcome, slot, context);
                return Behind::default();
            }
        };
        let key = Sorting::match_of(number, choice.place).key();
        *slot = self.table.get(key).unwrap_or_default();
        let is_counted = !choice.usages.is_empty();
        if is_counted && choice.usages.iter().any(|usage| usage.is_spent()) {
            self.left_out(batch, index, Outcome::OverQuota, slot, context);
            return Behind::default();
        }
        let is_behind = !self.is_draining && self.held.is_key_due(key);
        if slot.kind() == Kind::Hold || is_behind {
            let held = choice.held.clone().or_else(|| self.held.held_of(key));
            let frame = batch.packets()[index].bytes();
            let is_kept = held.is_some_and(|held| {
                if held.is_to_tell() {
                    let (session, rule) = (held.session, held.rule);
                    let told = self.receiver.events.push(Event::Held { session, rule });
                    if told.is_err() {
                        held.tell_again();
                    }
                }
                self.held.hold(key, frame, &held, context.to_port)
            });
            if is_kept {
                return Behind {
                    is_held: true,
                    ..Behind::default()
                };
            }
            self.left_out(batch, index, Outcome::NoRoomToHold, slot, context);
            return Behind::default();
        }
        let packet = &mut batch.packets_mut()[index];
        let outcome = match seen {
            Seen::Tunnelled(tunnelled) => self.tunnelled(packet, tunnelled, slot, context),
            Seen::Plain { ip, .. } => self.plain(packet, usize::from(*ip), slot, context),
            _ => Outcome::ToldToDrop,
        };
        if matches!(
            outcome,
            Outcome::Relayed | Outcome::Encapsulated | Outcome::Decapsulated
        ) {
            self.counts[outcome as usize] += 1;
            return Behind {
                is_metered: slot.is_metered(),
                is_used: is_counted,
                is_held: false,
            };
        }
        self.left_out(batch, index, outcome, slot, context);
        Behind::default()
    }

    /// Counts the departing packets, one bit each, in the usage counters of their rules.
    #[inline(never)]
    fn count_usage(
        &mut self,
        batch: &Batch,
        mut used: u64,
        seen: &[Seen],
        bearers: &[Slot],
        now_ticks: u64,
    ) {
        while used != 0 {
            let index = used.trailing_zeros() as usize;
            used &= used - 1;
            let Match::Rule { number, place } = Match::of_key(bearers[index].key) else {
                continue;
            };
            let bytes = self.user_bytes(&batch.packets()[index], &seen[index], &bearers[index]);
            let Some((bytes, _)) = bytes.filter(|_| batch.is_kept(index)) else {
                continue;
            };
            let sorting = self.sortings.get((number as usize).wrapping_sub(1));
            let choices = sorting.and_then(Option::as_ref).map(|it| &it.0[..]);
            let choice = choices.and_then(|all| all.iter().find(|it| it.place == place));
            let Some(choice) = choice else {
                continue;
            };
            for usage in &choice.usages {
                if usage.count(choice.is_uplink, bytes.into(), now_ticks) {
                    let (session, rule) = (usage.session, usage.rule);
                    let told = self.receiver.events.push(Event::Used { session, rule });
                    if told.is_err() {
                        usage.tell_again();
                    }
                }
            }
        }
    }

    /// Removes packets, one bit each, from the batch and frees them.
    #[inline(never)]
    fn take_out(&mut self, batch: &mut Batch, gone: u64) {
        let length = batch.len();
        let mut marks: [Marks; BATCH_CAPACITY] =
            std::array::from_fn(|index| match index < length {
                true => batch.marks(index),
                false => Marks::default(),
            });
        let (aside, mut index) = (&mut self.aside, 0);
        batch.take_front(length, |packet| {
            if gone >> index & 1 == 0 {
                aside.push_marked(packet, &std::mem::take(&mut marks[index]));
            }
            index += 1;
        });
        // The marks belonged to packets that have moved.
        batch.clear();
        pour(aside, batch);
    }

    /// Passes released packets to the batch's egress port, after the batch. Later packets of the same rule stay in
    /// order, because they are buffered until then.
    #[inline(never)]
    fn drain(&mut self, batch: &mut Batch, context: &Context) {
        let mut due = std::mem::take(&mut self.aside);
        let room = batch.room();
        self.held
            .take_due(context.to_port, room, |packet| due.push(packet));
        self.is_draining = true;
        self.pass(&mut due, context);
        self.is_draining = false;
        pour(&mut due, batch);
        self.aside = due;
        self.receiver.outcomes.publish(&self.counts);
    }

    /// Returns the number of user bytes of a departing packet, and the outcome that it is counted as.
    #[inline(always)]
    fn user_bytes(&self, packet: &Packet, seen: &Seen, bearer: &Slot) -> Option<(u16, Outcome)> {
        match (seen, bearer.kind()) {
            (Seen::Tunnelled(seen), Kind::Relay) if seen.message != MessageType::G_PDU => None,
            (Seen::Tunnelled(seen), Kind::Relay) => {
                Some((seen.end - seen.payload, Outcome::Relayed))
            }
            (Seen::Tunnelled(seen), _) => {
                Some((packet.len() as u16 - seen.ip, Outcome::Decapsulated))
            }
            (Seen::Plain { ip, .. }, _) => {
                let path = self.paths.get(bearer.path);
                let added = path.map_or(0, |path| rewrite::overhead(bearer, &path));
                let bytes = packet.len() as u16 - ip - added as u16;
                Some((bytes, Outcome::Encapsulated))
            }
            _ => None,
        }
    }

    /// Returns the outcome of a packet that no bearer forwards.
    #[inline(never)]
    fn left_out(
        &mut self,
        batch: &mut Batch,
        index: usize,
        outcome: Outcome,
        slot: &Slot,
        context: &Context,
    ) {
        let packet = &batch.packets()[index];
        let outcome = match (outcome, self.others) {
            (Outcome::Other | Outcome::UnknownUser, _) if self.is_asked(packet, context) => {
                Outcome::NeighbourAnswered
            }
            (Outcome::Other | Outcome::UnknownUser, Others::Forward) => Outcome::Passed,
            (outcome, _) => outcome,
        };
        self.counts[outcome as usize] += 1;
        if let Some(cause) = self.answered_as(outcome, slot) {
            batch.mark_punted(index, cause);
        } else if outcome != Outcome::Passed {
            batch.mark_dropped(index);
        }
    }

    /// Drops the departing packets, one bit each, that exceed a rate of their bearer. Only packets that would leave
    /// count.
    #[inline(never)]
    fn police(
        &mut self,
        batch: &mut Batch,
        mut metered: u64,
        seen: &[Seen],
        bearers: &[Slot],
        now_ticks: u64,
    ) {
        let now = self.policing.moment(now_ticks);
        let mut keys = [0; BATCH_CAPACITY];
        let mut places = [0; BATCH_CAPACITY];
        let mut found = [Slot::default(); BATCH_CAPACITY];
        let mut count = 0;
        while metered != 0 {
            let place = metered.trailing_zeros() as usize;
            metered &= metered - 1;
            (keys[count], places[count]) = (bearers[place].key, place);
            count += 1;
        }
        self.policing.look_up(&keys[..count], &mut found[..count]);
        for (place, found) in places.into_iter().zip(&found).take(count) {
            let bearer = &bearers[place];
            let packet = &batch.packets()[place];
            let Some((bytes, left_as)) = self.user_bytes(packet, &seen[place], bearer) else {
                continue;
            };
            if !self.policing.admits(found, now, bytes) {
                self.counts[left_as as usize] -= 1;
                self.counts[Outcome::OverRate as usize] += 1;
                batch.mark_dropped(place);
            }
        }
    }

    /// Processes a packet from a tunnel.
    #[inline(always)]
    fn tunnelled(
        &mut self,
        packet: &mut Packet,
        seen: &Tunnelled,
        slot: &Slot,
        context: &Context,
    ) -> Outcome {
        let is_user_packet = seen.message == MessageType::G_PDU;
        if !is_user_packet && seen.message != MessageType::END_MARKER {
            return self.message(packet, seen, context);
        }
        if slot.key == 0 {
            // A late end marker is legitimate (TS 29.281 section 7.3.2).
            return match is_user_packet {
                true => Outcome::UnknownTeid,
                false => Outcome::UnknownTeidUntold,
            };
        }
        match slot.kind() {
            Kind::Relay => match self.paths.take(slot.path, context.to_port) {
                Some(path) => match rewrite::relay(packet, seen, slot, &path, &self.pool) {
                    Ok(()) => Outcome::Relayed,
                    Err(outcome) => outcome,
                },
                None => Outcome::ToldToDrop,
            },
            Kind::Decapsulate if !is_user_packet => Outcome::Consumed,
            Kind::Decapsulate => match rewrite::decapsulate(packet, seen, &self.closed) {
                Ok(()) => Outcome::Decapsulated,
                Err(outcome) => outcome,
            },
            Kind::Hold => Outcome::NotHeld,
            Kind::Block => Outcome::GateClosed,
            // Packets to be sorted are handled by the sorting step.
            Kind::Drop | Kind::Encapsulate | Kind::Sort => Outcome::ToldToDrop,
        }
    }

    /// Processes a packet to a user.
    #[inline(always)]
    fn plain(&mut self, packet: &mut Packet, ip: usize, slot: &Slot, context: &Context) -> Outcome {
        if slot.key == 0 {
            return Outcome::UnknownUser;
        }
        match slot.kind() {
            Kind::Encapsulate => {}
            Kind::Hold => return Outcome::NotHeld,
            Kind::Block => return Outcome::GateClosed,
            _ => return Outcome::ToldToDrop,
        }
        let Some(path) = self.paths.take(slot.path, context.to_port) else {
            return Outcome::ToldToDrop;
        };
        match rewrite::encapsulate(packet, ip, slot, &path, self.mtu, &self.pool) {
            Ok(()) => Outcome::Encapsulated,
            Err(outcome) => outcome,
        }
    }

    /// Processes a message without a user packet.
    #[cold]
    fn message(&mut self, packet: &Packet, seen: &Tunnelled, context: &Context) -> Outcome {
        match seen.message {
            MessageType::ECHO_REQUEST => {
                self.hear(packet, seen, context);
                Outcome::EchoAnswered
            }
            MessageType::ECHO_RESPONSE => {
                let number = self.hear(packet, seen, context);
                let message = packet.bytes().get(usize::from(seen.gtpu)..);
                let sequence = message.and_then(|it| Gtpu::new(it).ok()?.sequence());
                let is_answer = number
                    .zip(sequence)
                    .is_some_and(|(number, sequence)| self.paths.peers.is_answer(number, sequence));
                if is_answer && let Some((remote, _)) = answer::ends(packet.bytes(), seen) {
                    // If the ring is full, the event is lost and the peer is asked again.
                    let _ = self.receiver.events.push(Event::Echoed { remote });
                }
                match is_answer {
                    true => Outcome::Consumed,
                    false => Outcome::EchoUnasked,
                }
            }
            MessageType::ERROR_INDICATION => Outcome::ErrorIndication,
            _ => Outcome::UnknownMessage,
        }
    }

    /// Records the location of the frame's sender, learned at a tunnel port. Returns the path number if there is a
    /// tunnel to the sender.
    #[inline(never)]
    fn hear(&self, packet: &Packet, seen: &Tunnelled, context: &Context) -> Option<u16> {
        let frame = packet.bytes();
        let (remote, local) = answer::ends(frame, seen)?;
        let number = self.paths.number(&Path { local, remote })?;
        let ethernet = Ethernet::new(frame).ok()?;
        let macs = (ethernet.source(), ethernet.destination());
        self.paths.peers.hear(number, context.from_port, macs);
        Some(number)
    }

    /// Returns true if the frame asks for the MAC address of one of the gateway's addresses, at a port with a known MAC
    /// address.
    #[inline]
    fn is_asked(&self, packet: &Packet, context: &Context) -> bool {
        self.macs.of(context.from_port).is_some()
            && resolution::may_be_about_neighbours(packet.bytes())
            && resolution::asked(packet.bytes()).is_some_and(|address| self.own.has(address))
    }

    /// Returns the punt cause for a packet of that outcome if the slow path replies to it.
    #[inline]
    fn answered_as(&self, outcome: Outcome, slot: &Slot) -> Option<Punt> {
        match outcome {
            Outcome::EchoAnswered => Some(Punt::Local),
            Outcome::NeighbourAnswered => Some(Punt::Neighbour),
            Outcome::UnknownTeid => Some(Punt::Unknown),
            Outcome::TooBig => {
                let path = self.paths.get(slot.path)?;
                let fits = self.mtu - rewrite::overhead(slot, &path);
                Some(Punt::TooBig(fits as u16))
            }
            _ => None,
        }
    }
}

/// Returns the egress port and MAC addresses for a frame that the gateway sends to a path's peer. The port is the one
/// where the peer was last received. Otherwise it is the one that packets to the peer last used, or the first; it is
/// always a tunnel port. The MAC addresses are known if the peer was received at that port.
#[cold]
fn way_to(
    number: u16,
    paths: &KnownPaths,
    kernel: &Kernel,
    tunnels: Option<&[usize]>,
) -> Option<Way> {
    let path = paths.get(number)?;
    let is_of_tunnels = |port: &usize| tunnels.is_none_or(|ports| ports.contains(port));
    let first = tunnels
        .and_then(|ports| ports.first().copied())
        .unwrap_or(0);
    let heard = paths.peers.heard(number);
    let heard = heard.filter(|it| is_of_tunnels(&it.port));
    let left = || {
        let in_kernel = kernel.as_ref().and_then(|it| it.port_of(number));
        let left = in_kernel.or_else(|| paths.peers.left(number));
        left.filter(is_of_tunnels)
    };
    let port = heard.map(|it| it.port).or_else(left).unwrap_or(first);
    Some(Way {
        port: u8::try_from(port).ok()?,
        path,
        macs: heard.map_or_else(Default::default, |it| (it.own, it.mac)),
    })
}

/// Stores a sorting under its number, or removes it.
fn set_sorting(sortings: &mut [Option<Arc<Sorting>>], number: u32, sorting: Option<Arc<Sorting>>) {
    if let Some(place) = sortings.get_mut((number as usize).wrapping_sub(1)) {
        *place = sorting;
    }
}

/// Moves all packets, with their metadata, to the end of another batch, which has space for them.
fn pour(from: &mut Batch, to: &mut Batch) {
    let length = from.len();
    let mut marks: [Marks; BATCH_CAPACITY] = std::array::from_fn(|index| match index < length {
        true => from.marks(index),
        false => Marks::default(),
    });
    let mut index = 0;
    from.take_front(length, |packet| {
        to.push_marked(packet, &std::mem::take(&mut marks[index]));
        index += 1;
    });
    from.clear();
}

#[cfg(test)]
mod tests;
