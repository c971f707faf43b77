//! A worker's part of the inspection. Each packet passes through these steps in order: normalisation (`normalise.rs`),
//! flow (`flow.rs`), TCP state and stream reassembly (`connection.rs`), protocols and rules (`ask.rs`), and verdict
//! (`verdict.rs`).

mod evaluation;
mod verdict;

use super::ask::{Asking, MOST_TOLD};
use super::connection::{self, release};
use super::event::{Ends, Event, What};
use super::events::Events;
use super::flow::{Flow, Flows, Settled};
use super::lend::Messages;
use super::normalise::{self, Facts, Look, TCP};
use super::outcome::{Counters, Note, Outcome, Refused};
use super::rules::Rules;
use super::settings::{self, Checked, Midstream, Overload, Policies, Urgent};
use super::tunnel::looked_into;
use evaluation::{Now, Questions};
use std::sync::Arc;
use taut_function::{Context, Member};
use taut_inspect::anomaly::Anomaly;
use taut_inspect::arena::Arena;
use taut_inspect::evaluate::{Packet, Vlans};
use taut_inspect::fragments::{FragmentLimits, Fragments, Outcome as Reassembled};
use taut_inspect::stream::StreamLimits;
use taut_inspect::tcp::{Change, Policy, SYN, URG};
use taut_port::{BATCH_CAPACITY, Batch, PortError, Punt};
use taut_sys::{Clock, HashKey};
use taut_wire::{EtherType, Headers, Layer3};
use verdict::{Conclusion, Fate, settled, still_settled, too_much};

/// The number of flow table slots that are checked for expired flows in each batch.
const SWEPT: usize = 4;
/// The number of bytes immediately before a segment in its stream that rules test together with the segment. The next
/// constant is the limit on stored bytes per direction.
const WINDOW: usize = 256;
const KEPT: usize = 1 << 20;
/// The maximum length of a reassembled datagram with its link header, in bytes.
const WHOLE_BYTES: usize = (1 << 16) + 128;

/// Returns the hash of a flow's two addresses, which selects the worker and is equal in both directions; none for
/// frames without a valid IP header. Ports are not included: only the first fragment of a datagram has them, and all
/// fragments and packets of a flow need the same worker.
pub(super) fn hash_of(frame: &[u8], inner: bool) -> Option<u32> {
    let (headers, frame) = looked_into(inner, &Headers::of(frame), frame);
    if headers.layer3() == Layer3::Other || headers.fault().is_some() {
        return None;
    }
    let (source, destination) = headers.addresses_in(frame);
    // All workers need the same key.
    let key = HashKey::of_process();
    let fold = |it: u128| key.hash([(it as u64, (it >> 64) as u64)]);
    let ends = fold(source).wrapping_add(fold(destination));
    Some((key.hash([(ends, 0)]) >> 32) as u32)
}

pub(super) struct Plane {
    questions: Questions,
    version: u64,
    flows: Flows,
    swept: usize,
    arena: Arena,
    fragments: Box<Fragments>,
    /// The time, in seconds, of the last check for fragments that have timed out.
    expired_s: u32,
    /// The frame of a reassembled datagram.
    whole: Vec<u8>,
    messages: Messages,
    /// The stream bytes before a segment, followed by the segment's bytes.
    joined: Vec<u8>,
    policies: Policies,
    limits: StreamLimits,
    /// The time, in ticks, for which packets may arrive without a pause before the overload policy applies.
    bound_ticks: u64,
    /// The time, in ticks, since which packets have arrived without a pause; none after a pause.
    busy_since: Option<u64>,
    ticks_per_s: f64,
}

impl Plane {
    pub fn new(
        checked: &Checked,
        member: Member,
        rules: &Rules,
        counters: Arc<Counters>,
        events: Option<Events>,
        clock: &Clock,
    ) -> Result<Self, PortError> {
        let (mut in_use, inspector) = rules.worker();
        let version = in_use.get().version;
        let ticks = |time: std::time::Duration| clock.to_ticks(time.as_nanos() as f64) as u64;
        Ok(Self {
            questions: Questions {
                in_use,
                inspector,
                told: Vec::with_capacity(MOST_TOLD),
                counters,
                events,
                max_ticks: ticks(checked.max_time),
                alert_only: checked.policies.alert_only,
            },
            version,
            flows: Flows::new(checked.flows, (member.number as u64) << 48 | 1),
            swept: 0,
            arena: Arena::new(checked.memory_bytes),
            fragments: Box::new(Fragments::new(
                FragmentLimits::default(),
                checked.overlap.counted(),
            )),
            expired_s: 0,
            whole: Vec::with_capacity(WHOLE_BYTES),
            messages: Messages::new(checked.http),
            joined: Vec::with_capacity(1 << 17),
            policies: checked.policies,
            limits: StreamLimits {
                window: WINDOW,
                kept: KEPT,
                overlap: checked.overlap.counted(),
                in_line: !checked.policies.alert_only,
            },
            bound_ticks: ticks(checked.bound),
            busy_since: None,
            ticks_per_s: clock.to_ticks(1e9),
        })
    }

    pub fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.go_by_newest();
        let now = Now {
            ticks: context.now_ticks,
            s: (context.now_ticks as f64 / self.ticks_per_s) as u32,
            is_too_much: self.is_too_much(batch.len(), context.now_ticks),
            from_port: context.from_port,
        };
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            if self.policies.min_ttl > 0 && !self.policies.alert_only {
                let frame = batch.packet_mut_but_headers(i).bytes_mut();
                normalise::raise_ttl(&headers, frame, self.policies.min_ttl);
            }
            if let Some(events) = &mut self.questions.events {
                events.begin_packet(batch.arrivals().get(i).copied().unwrap_or_default());
            }
            let frame = batch.packets()[i].bytes();
            let (outcome, fate) = self.frame(&headers, frame, now);
            self.questions.counters.count(outcome);
            self.carry_out(batch, i, &headers, fate);
        }
        self.sweep(now);
        let counters = &self.questions.counters;
        counters.set(Note::FlowsForcedOut, self.flows.forced_out);
        counters.set(Note::GivenUp, self.questions.inspector.given_up());
        counters.set(Note::BitsFull, self.questions.inspector.bits_full);
    }

    /// Applies the verdict to packet `i` of a batch.
    fn carry_out(&self, batch: &mut Batch, i: usize, headers: &Headers, fate: Fate) {
        if self.policies.alert_only {
            return;
        }
        match fate {
            Fate::Pass => {
                let is_urgent = headers.protocol().0 == TCP
                    && self.policies.urgent == Urgent::Clear
                    && batch.packets()[i]
                        .bytes()
                        .get(headers.transport() + 13)
                        .is_some_and(|flags| flags & URG != 0)
                    && headers.fault().is_none();
                if is_urgent {
                    let frame = batch.packet_mut_but_headers(i).bytes_mut();
                    normalise::clear_urgent(headers, frame);
                    self.questions.counters.note(Note::UrgentCleared, 1);
                }
            }
            Fate::Drop => batch.mark_dropped(i),
            Fate::Reject => batch.mark_punted(i, Punt::Rejected),
            Fate::Wait => batch.mark_punted(i, Punt::Fragment),
            Fate::Release => batch.mark_punted(i, Punt::LastFragment),
        }
    }

    /// Switches to the newest rule set, if the worker does not use it yet.
    fn go_by_newest(&mut self) {
        let in_force = self.questions.in_use.get();
        if in_force.version != self.version {
            self.version = in_force.version;
            in_force.change(&mut self.questions.inspector);
        }
    }

    /// Returns true if batches that are at least half full have arrived without a pause for longer than the bound of
    /// the overload policy.
    fn is_too_much(&mut self, len: usize, now_ticks: u64) -> bool {
        if self.policies.overload == Overload::Queue {
            return false;
        }
        if len < BATCH_CAPACITY / 2 {
            self.busy_since = None;
            return false;
        }
        let since = *self.busy_since.get_or_insert(now_ticks);
        now_ticks.saturating_sub(since) > self.bound_ticks
    }

    fn sweep(&mut self, now: Now) {
        let Self {
            flows,
            arena,
            messages,
            questions,
            ..
        } = self;
        let events = &mut questions.events;
        if self.expired_s != now.s {
            self.expired_s = now.s;
            self.fragments
                .expire(nanoseconds(now.ticks, self.ticks_per_s));
        }
        self.swept = flows.sweep(self.swept, SWEPT, now.s, |flow, is_gone| {
            if is_gone {
                end(flow, arena, messages, events.as_mut(), now.ticks, "timeout");
            } else {
                ease(flow, arena, messages);
            }
        });
    }

    /// Runs the first step, which classifies the frame.
    fn frame(&mut self, headers: &Headers, frame: &[u8], now: Now) -> (Outcome, Fate) {
        let (inner, inside) = &looked_into(self.policies.inner, headers, frame);
        let link = frame.get(..headers.ip()).unwrap_or_default();
        let vlans = normalise::vlans_of(link);
        let network = normalise::network_of(vlans, now.from_port);
        let mut facts = Facts::of_vlans(vlans);
        match normalise::look(inner, inside, self.policies.checks, &mut facts) {
            Look::Done(Outcome::NotIp) => (Outcome::NotIp, Fate::Pass),
            Look::Done(outcome) => (outcome, Fate::Drop),
            Look::Damaged(anomaly) => {
                self.odd(&mut facts, anomaly, network, frame, now);
                (Outcome::DroppedChecksum, Fate::Drop)
            }
            Look::Packet => self.packet(&mut facts, network, frame, now),
            Look::Fragment if self.policies.fragments == settings::Fragments::Pass => {
                (Outcome::Fragment, Fate::Pass)
            }
            Look::Fragment => self.fragment((inner, inside), (link, vlans), network, now),
        }
    }

    /// Processes a fragment. The last missing fragment completes the datagram, which is then inspected like any packet.
    /// Its outcome applies to all fragments.
    fn fragment(
        &mut self,
        (headers, frame): (&Headers, &[u8]),
        (link, vlans): (&[u8], Vlans),
        network: u32,
        now: Now,
    ) -> (Outcome, Fate) {
        let now_ns = nanoseconds(now.ticks, self.ticks_per_s);
        let packet = frame.get(headers.ip()..headers.end()).unwrap_or_default();
        let outcome = match self.fragments.push(now_ns, network, packet) {
            Reassembled::Kept => Some((Outcome::Fragment, Fate::Wait)),
            Reassembled::Duplicate | Reassembled::Dropped(_) => {
                self.questions.counters.note(Note::FragmentsDropped, 1);
                Some((Outcome::DroppedFragment, Fate::Drop))
            }
            Reassembled::Whole(packet) => {
                frame_around(&mut self.whole, link, packet);
                None
            }
        };
        let mut facts = Facts::of_vlans(vlans);
        if self.fragments.overlaps() && facts.read_fragment(headers, frame).is_some() {
            self.odd(&mut facts, Anomaly::FragmentOverlap, network, frame, now);
        }
        if let Some(outcome) = outcome {
            return outcome;
        }
        let whole = std::mem::take(&mut self.whole);
        let mut facts = Facts::of_vlans(vlans);
        let look = normalise::look(
            &Headers::of(&whole),
            &whole,
            self.policies.checks,
            &mut facts,
        );
        let (outcome, fate) = match look {
            Look::Packet if facts.segment.is_none_or(|it| it.flags & URG == 0) => {
                self.packet(&mut facts, network, &whole, now)
            }
            // Packets that can no longer be changed are dropped.
            Look::Packet => (Outcome::DroppedUrgent, Fate::Drop),
            Look::Damaged(anomaly) => {
                self.odd(&mut facts, anomaly, network, &whole, now);
                (Outcome::DroppedChecksum, Fate::Drop)
            }
            Look::Done(outcome) => (outcome, Fate::Drop),
            // The reassembled datagram is itself a fragment; only an attacker sends such datagrams.
            Look::Fragment => (Outcome::DroppedFragment, Fate::Drop),
        };
        self.whole = whole;
        match fate {
            Fate::Pass => (Outcome::Fragment, Fate::Release),
            fate => (outcome, fate),
        }
    }

    /// Evaluates the rules that test an anomaly, for a single packet or fragment with this anomaly. The state of the
    /// flow does not change.
    #[cold]
    fn odd(
        &mut self,
        facts: &mut Facts<'_>,
        anomaly: Anomaly,
        network: u32,
        frame: &[u8],
        now: Now,
    ) {
        if self.questions.in_use.held().set.anomalies() & anomaly.bit() == 0 {
            return;
        }
        let (key, from_low) = facts.key(network);
        let place = self.flows.place_of(&key);
        let mut none = Flow::default();
        let flow = match place {
            Some(place) => self.flows.at(place),
            None => {
                none.client_is_low = from_low != connection::is_of_server(facts);
                &mut none
            }
        };
        of_flow(&mut facts.packet, flow, from_low);
        facts.packet.established = match facts.segment {
            Some(_) => flow.connection.is_established(),
            None => flow.is_answered,
        };
        facts.packet.anomalies = anomaly.bit();
        let mut ask = self
            .questions
            .about(&mut facts.packet, place.unwrap_or_default(), now);
        ask.about_odd(flow, facts.payload);
        self.questions.end_of_packet(flow, facts, frame, now, None);
    }

    /// Runs the flow step: finds the flow of the packet, and returns the outcome if the packet needs no inspection.
    fn packet(
        &mut self,
        facts: &mut Facts<'_>,
        network: u32,
        frame: &[u8],
        now: Now,
    ) -> (Outcome, Fate) {
        let (key, from_low) = facts.key(network);
        let (flows, arena, messages) = (&mut self.flows, &mut self.arena, &mut self.messages);
        let events = &mut self.questions.events;
        let (place, is_new) = flows.find(&key, now.s, |flow| {
            end(flow, arena, messages, events.as_mut(), now.ticks, "forced");
        });
        let in_line = !self.policies.alert_only;
        let flow = self.flows.at(place);
        if is_new {
            flow.client_is_low = from_low != connection::is_of_server(facts);
            flow.recognition = connection::recognition_of(&facts.packet);
            self.questions.counters.note(Note::Flows, 1);
        }
        if !flow.comes_from(from_low, now.from_port as u8) && in_line {
            return (Outcome::DroppedWrongSide, Fate::Drop);
        }
        let is_from_server = from_low != flow.client_is_low;
        if is_from_server && connection::opens(facts) && flow.connection.is_unknown() {
            // The endpoint that opens the connection is the client, even if unverified packets of the other endpoint
            // came before.
            flow.turn();
        }
        let direction = usize::from(from_low != flow.client_is_low);
        flow.seen_s = now.s;
        flow.packets[direction] = flow.packets[direction].saturating_add(1);
        flow.bytes[direction] += frame.len() as u64;
        if let Some(outcome) = settled(flow, facts) {
            return outcome;
        }
        if now.is_too_much {
            return too_much(flow, self.policies.overload);
        }
        match self.judge(facts, (place, is_new), from_low, now) {
            Ok(step) => self.inspect(facts, &step, frame),
            Err(outcome) => outcome,
        }
    }

    /// Runs the connection step. Returns the part of the packet that its receiver accepts, or, if the packet needs no
    /// inspection, its outcome as the error.
    fn judge(
        &mut self,
        facts: &Facts<'_>,
        (place, is_new): (usize, bool),
        from_low: bool,
        now: Now,
    ) -> Result<Step, (Outcome, Fate)> {
        let has_forgotten = self.flows.has_forgotten(now.s);
        let in_line = !self.policies.alert_only;
        let flow = self.flows.at(place);
        let direction = usize::from(from_low != flow.client_is_low);
        let was_established = flow.connection.is_established();
        let mut change = Change::default();
        let (mut refused, mut anomalies) = (None, 0);
        if let Some(head) = &facts.segment {
            let policy = Policy {
                takes_midstream: self.policies.midstream != Midstream::Drop && !has_forgotten
                    || !in_line,
                in_line,
            };
            let is_unseen = is_new && head.flags & SYN == 0;
            if is_unseen && self.policies.midstream == Midstream::Pass && policy.takes_midstream {
                flow.settled = Settled::Passes;
                return Err((Outcome::PassedMidstream, Fate::Pass));
            }
            if head.flags & URG != 0 && self.policies.urgent == Urgent::Drop && in_line {
                return Err((Outcome::DroppedUrgent, Fate::Drop));
            }
            if self.questions.in_use.held().set.anomalies() != 0 {
                anomalies = flow.connection.oddities(direction, head, in_line);
            }
            match flow.connection.segment(direction, head, policy) {
                Ok(it) => change = it,
                // Rules about single packets are evaluated all the same: they detect scans.
                Err(refusal) => refused = Some(connection::refused(refusal)),
            }
        }
        if !connection::begin(
            flow,
            &change,
            direction,
            &mut self.arena,
            &mut self.messages,
        ) {
            return Err(still_settled(flow, facts));
        }
        Ok(Step {
            place,
            from_low,
            established: is_established(facts, flow, was_established),
            change,
            refused,
            anomalies,
            now,
        })
    }

    /// Ensures that a parser and memory for first TLS messages are free for the next flow that needs them. If none is
    /// free, the flow that has been idle for longest in the middle of a message loses its parser. Later data of that
    /// flow is dropped, because its position in the message is unknown.
    fn see_to_parsers(&mut self, step: &Step) {
        let Self {
            flows,
            messages,
            arena,
            ..
        } = self;
        let idle = |place: usize| match place == step.place {
            true => 0,
            false => step.now.s.wrapping_sub(flows.seen_s(place)) + 1,
        };
        let Some(place) = messages.idlest_owner(idle).filter(|&it| it != step.place) else {
            return;
        };
        let flow = flows.at(place);
        messages.end(flow);
        self.questions.counters.note(Note::ParsersTaken, 1);
        if !self.policies.alert_only {
            flow.streams.iter_mut().for_each(|it| it.close(arena));
            flow.settled = Settled::Drops;
        }
    }

    /// Runs the steps for streams, messages and rules, and returns the outcome.
    fn inspect(&mut self, facts: &mut Facts<'_>, step: &Step, frame: &[u8]) -> (Outcome, Fate) {
        connection::make_room(
            &mut self.flows,
            &mut self.arena,
            step.place,
            facts.payload.len(),
            !self.policies.alert_only,
        );
        self.see_to_parsers(step);
        let Self {
            questions,
            flows,
            messages,
            joined,
            arena,
            policies,
            limits,
            ..
        } = self;
        let flow = flows.at(step.place);
        let packet = &mut facts.packet;
        of_flow(packet, flow, step.from_low);
        flow.is_answered |= !packet.to_server;
        packet.established = step.established;
        packet.anomalies = step.anomalies;
        packet.stream_bytes = [0, 1].map(|at| flow.streams[at].taken());
        let mut asking = Asking {
            ask: questions.about(packet, step.place, step.now),
            messages,
            joined,
        };
        let refused = match &facts.segment {
            Some(head) if step.refused.is_none() => connection::take(
                flow,
                &mut asking,
                arena,
                limits,
                head,
                &step.change,
                facts.payload,
            ),
            _ => step.refused,
        };
        if !asking.ask.is_asked {
            asking.whole(flow, facts.payload);
        }
        let conclusion = Conclusion::new(&asking.ask, refused, policies);
        let (outcome, fate, reason) = conclusion.of(flow);
        if flow.settled != Settled::No {
            // The flow needs no memory, because it is not inspected any more.
            release(flow, arena, messages);
        }
        questions.end_of_packet(flow, facts, frame, step.now, reason);
        (outcome, fate)
    }
}

fn nanoseconds(ticks: u64, ticks_per_s: f64) -> u64 {
    (ticks as f64 / ticks_per_s * 1e9) as u64
}

/// The state of one packet that the steps of the inspection share.
struct Step {
    place: usize,
    from_low: bool,
    established: bool,
    change: Change,
    /// The reason why the receiver refuses the packet, if it does.
    refused: Option<Refused>,
    /// The anomalies of the packet.
    anomalies: u64,
    now: Now,
}

/// Returns true if a packet counts as one of an established connection. `was_established` is the state before the
/// packet.
#[inline]
fn is_established(facts: &Facts<'_>, flow: &Flow, was_established: bool) -> bool {
    let has_data = !facts.payload.is_empty();
    match facts.segment {
        // Data in a SYN, and in the packet that completes the handshake, is delivered once the connection is
        // established.
        Some(head) => {
            let is_opening = head.flags & SYN != 0;
            was_established || has_data && (is_opening || flow.connection.is_established())
        }
        None => flow.is_answered,
    }
}

/// Fills in the properties of a packet that are derived from its flow.
fn of_flow(packet: &mut Packet<'_>, flow: &Flow, from_low: bool) {
    packet.to_server = from_low == flow.client_is_low;
    packet.flow = flow.id;
    (packet.flow_packets, packet.flow_bytes) = (flow.packets, flow.bytes);
}

/// Releases everything that a flow has borrowed, and writes the event that reports the flow's end.
fn end(
    flow: &mut Flow,
    arena: &mut Arena,
    messages: &mut Messages,
    events: Option<&mut Events>,
    now_ticks: u64,
    reason: &'static str,
) {
    release(flow, arena, messages);
    if let Some(events) = events {
        let (source, destination, protocol) = flow.ends();
        events.push(Event {
            at_ticks: now_ticks,
            flow: flow.id,
            ends: Ends {
                source,
                destination,
                protocol,
            },
            application: flow.application,
            port: 0,
            what: What::Flow {
                packets: flow.packets,
                bytes: flow.bytes,
                alerts: flow.alerts,
                reason: if flow.is_over() { "closed" } else { reason },
            },
        });
    }
}

/// Releases everything that a closed flow has borrowed. The flow stays in the table, but data after its end is not
/// inspected.
fn ease(flow: &mut Flow, arena: &mut Arena, messages: &mut Messages) {
    for stream in &mut flow.streams {
        stream.forget(arena);
    }
    messages.end(flow);
}

/// Builds the frame of a reassembled datagram with the link header of its fragments. Inside a tunnel, the IP version of
/// the datagram may differ from that of the fragments' outer headers.
fn frame_around(frame: &mut Vec<u8>, link: &[u8], packet: &[u8]) {
    let kind = match packet.first() {
        Some(byte) if byte >> 4 == 6 => EtherType::IPV6,
        _ => EtherType::IPV4,
    };
    frame.clear();
    if let Some((link, _)) = link.split_last_chunk::<2>() {
        frame.extend_from_slice(link);
        frame.extend_from_slice(&kind.0.to_be_bytes());
    }
    frame.extend_from_slice(packet);
}
