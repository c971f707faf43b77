//! The path of a batch through the rules of all tables.

use super::action::{self, ETHERNET_BYTES};
use super::bridge::{Bridge, Bridged};
use super::count::Count;
use super::facts::Facts;
use super::group::GroupKind;
use super::key::{Field, Key};
use super::openflow::PacketOut;
use super::packet_in::Shows;
use super::set::ActionSet;
use super::settings::Miss;
use super::shape::{Shape, Table};
use super::step;
use super::table::{Found, Memory, Scratch, TABLES};
use taut_function::Context;
use taut_function::mix::mix;
use taut_port::{BATCH_CAPACITY, Batch, PoolHandle};
use taut_sys::{Clock, prefetch};
use taut_wire::{EtherType, Headers};

/// The counts of packets that the worker has processed: sent, dropped, without a matching rule, and others.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub sent: u64,
    pub dropped: u64,
    pub missed: u64,
    pub shown: u64,
    pub shown_beside: u64,
    pub metered: u64,
    pub too_far: u64,
    pub too_short: u64,
    pub no_tag: u64,
    pub dead: u64,
    pub crowded: u64,
}

/// The result of a packet in one table: where the packet continues.
enum Course {
    /// The packet leaves the tables: its path ends here.
    Done,
    /// The packet continues in the table with this number.
    Goto(u8),
    /// The packet is dropped, and counted as dropped.
    Dropped,
}

/// The buffers for the state of packets between two steps: their keys, the rules found, and the state of the search.
pub(super) struct Between<'a> {
    pub keys: &'a mut [Key; BATCH_CAPACITY],
    pub found: &'a mut [Found; BATCH_CAPACITY],
    pub scratch: &'a mut Scratch,
}

/// The tables of rules, and the state that the rules need to process a batch.
pub(super) struct Tables<'a> {
    pub context: &'a Context,
    pub shape: &'a Shape,
    pub memory: &'a Memory,
    pub rule_counts: &'a [Count],
    pub miss: Miss,
    pub pool: Option<&'a PoolHandle>,
    pub clock: &'a Clock,
    pub facts: &'a Facts,
    /// True for packets of the worker, false for packets that a controller sends; they are counted separately.
    pub is_worker: bool,
}

impl Tables<'_> {
    /// Passes the packets whose bits are set in `wanted` through the tables.
    #[inline(always)]
    pub fn pass(&self, batch: &mut Batch, wanted: u64, between: Between<'_>, pass: &mut Pass<'_>) {
        let Between {
            keys,
            found,
            scratch,
        } = between;
        let empty = Table::default();
        let in_port = self.context.from_port as u16;
        let mut of_table = [0_u64; TABLES as usize];
        of_table[0] = wanted;
        // Each table is visited once, because tables lead only to tables of higher numbers.
        let mut left = 1_u64;
        while left != 0 {
            let table = left.trailing_zeros() as usize & (of_table.len() - 1);
            left &= left - 1;
            let wanted = of_table[table];
            let rules = self.shape.tables.get(table).unwrap_or(&empty);
            // Rules that compare only ports and MAC addresses do not wait for other headers.
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
            // Consecutive packets that match the same rule are counted together.
            let (mut run, mut missed) = (Run::default(), 0);
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
                    None => {
                        missed += 1;
                        pass.miss(batch, index, table as u8)
                    }
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
            if self.is_worker {
                let looked_up = u64::from(wanted.count_ones());
                self.facts.table_counts[table].add(looked_up, looked_up - missed);
            }
        }
    }

    #[inline(always)]
    fn count(&self, run: Run) {
        if let Some(count) = self.rule_counts.get(run.counter as usize) {
            count.add_some(run.packets, run.bytes, self.context.now_ticks);
        }
    }

    /// Executes the actions of a controller's message on its packet, which is the only packet of the batch.
    pub fn send(
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

/// The rule identifier for packets without a matching rule.
const NO_RULE: u32 = u32::MAX;
/// The rule identifier for the actions of a controller's message, which belong to no rule.
const BY_MESSAGE: u32 = NO_RULE - 1;

/// Consecutive packets that one rule matches, or that leave through one port, which are counted together.
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

/// One batch on its path through the rules.
pub(super) struct Pass<'a> {
    context: &'a Context,
    shape: &'a Shape,
    miss: Miss,
    pool: Option<&'a PoolHandle>,
    clock: &'a Clock,
    facts: &'a Facts,
    is_worker: bool,
    bridge: &'a mut Bridge,
    counts: &'a mut Counts,
    /// Consecutive packets to one port, which are counted together.
    row: Run,
    /// Mask of packets that were sent to a port.
    sent: u64,
    /// Mask of packets that the bridge has counted.
    bridged: u64,
    /// Mask of packets that were sent to the controller.
    shown: u64,
    /// Mask of packets with an action set, which is in `sets`.
    written: u64,
    sets: &'a mut [ActionSet; BATCH_CAPACITY],
    pub shows: Shows<'a>,
}

impl<'a> Pass<'a> {
    pub fn new(
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

    /// Handles a packet without a matching rule in a table.
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

    /// Discards the action set of a packet.
    fn forget(&mut self, index: usize) {
        self.written &= !(1 << index);
    }

    /// Executes a rule that only sends a packet through one port; returns false, without an effect, for any other step.
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

    /// Executes the steps of a rule of a table, or of a bucket of a group.
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
        // The packet was sent before its second copy was changed. The path of that copy ends here.
        if self.sent & 1 << own == 0 {
            batch.mark_dropped(own);
        }
        Course::Done
    }

    /// Executes steps on a packet. Sets `own` to the index of the packet that the steps change. That packet is a copy
    /// if the original was sent before.
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
                // Copies are made last, so a packet that was sent has to stay unchanged: the changes apply to a second
                // packet.
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
                    if self.exceeds(batch, index, argument as u32) {
                        self.counts.metered += 1;
                        return Course::Dropped;
                    }
                }
                step::SET => set_field(batch, index, word, &mut steps),
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

    /// Counts a packet in the meter with the given number; returns true if the packet exceeds the meter's rate.
    #[inline(always)]
    fn exceeds(&self, batch: &Batch, index: usize, meter: u32) -> bool {
        let now_ns = self.clock.to_ns(self.context.now_ticks) as u64;
        let bytes = batch.packets()[index].len();
        let meter = self.shape.meter(meter);
        meter.is_some_and(|it| !it.passes(now_ns, bytes, self.context.now_ticks))
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

    /// Returns the run of consecutive packets to `port`. If the current run is for another port, counts the packets of
    /// that run, and begins a new one.
    #[inline(always)]
    fn row(&mut self, port: u32) -> &mut Run {
        if self.row.counter != port {
            self.count_sent();
            self.row = Run::of(port);
        }
        &mut self.row
    }

    /// Adds the packets of the current run to the counter of their port, and ends the run.
    #[inline(always)]
    pub fn count_sent(&mut self) {
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

    /// Sends a packet, as changed by the earlier actions, to the controller.
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
                flow_of(
                    self.facts.flow_seed,
                    batch.packets()[index].bytes(),
                    headers,
                )
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

    /// Ends a packet's path through the tables: executes its action set.
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

    /// Appends a second copy of a packet to the batch, and returns the copy's index; none if the batch is full or there
    /// is no memory.
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

    /// Drops a packet at the end of its path, unless the packet was sent before. The caller has counted the packet.
    #[inline(always)]
    fn drop(&mut self, batch: &mut Batch, index: usize) {
        if self.sent & 1 << index == 0 {
            batch.mark_dropped(index);
        }
    }

    /// Drops a packet that was not sent. Counts a packet that was sent, unless the bridge has counted it.
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

/// Executes the step `word`, which sets a field. A value that does not fit into the word is in the next two words of
/// `steps`.
#[inline(always)]
fn set_field(batch: &mut Batch, index: usize, word: u64, steps: &mut impl Iterator<Item = u64>) {
    let Some(field) = step::field(word) else {
        return;
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

/// Sends a packet through several ports, and calls `left` for each port that gets the packet. If the packet was sent
/// before, all ports get copies. Returns the number of copies that were lost because the limit on copies was reached.
pub(super) fn send(
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
            // A batch in which all packets have the default egress port stays together.
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

/// Returns all ports except the ingress port.
pub(super) fn others(context: &Context) -> impl Iterator<Item = u8> + use<> {
    // A batch can send to ports up to 254.
    let ports = context.ports.min(usize::from(u8::MAX)) as u8;
    let from = context.from_port as u8;
    (0..ports).filter(move |port| *port != from)
}

/// Returns a hash that all packets of a flow share. It does not depend on tags, hop limits, ports of the chain, or the
/// fields that rules compare.
pub(super) fn flow_of(seed: u64, frame: &[u8], headers: Headers) -> u64 {
    let key = Key::of(frame, headers, 0);
    // Later fragments have no ports. Ports are ignored for all fragments, so all fragments of a datagram take the same
    // path.
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
    words.into_iter().chain(ethernet).fold(seed, mix)
}

pub(super) fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (index < BATCH_CAPACITY).then_some(index)
    })
}
