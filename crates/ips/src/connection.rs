//! The connection step: determines the part of a segment that its receiver accepts, and the bytes that are new in the
//! stream.

use super::ask::Asking;
use super::flow::{Flow, Flows, Settled};
use super::lend::Messages;
use super::normalise::{DNS, Facts, TCP};
use super::outcome::{Note, Outcome, Refused};
use taut_inspect::anomaly::Anomaly;
use taut_inspect::arena::{Arena, CHUNK_BYTES};
use taut_inspect::buffer::Application;
use taut_inspect::evaluate::Packet;
use taut_inspect::recognise::Recognition;
use taut_inspect::stream::{Segment, StreamLimits, is_before};
use taut_inspect::tcp::{ACK, Change, RST, Refusal, SYN, SegmentHead};

/// The limit on attempts to free memory for a segment. Each attempt makes one flow release its memory.
const ASKED_FOR_ROOM: usize = 4;

/// Returns the outcome under which a segment is counted that its receiver refuses, and the reason for events.
pub(super) fn refused(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Flags => (Outcome::DroppedFlags, "flags that no end of TCP sends"),
        Refusal::Window => OUTSIDE,
        Refusal::Acknowledgement => (
            Outcome::DroppedAcknowledgement,
            "acknowledges what was never sent",
        ),
        Refusal::Timestamp => (Outcome::DroppedWindow, "segment with an old timestamp"),
        Refusal::Opening => (Outcome::DroppedOpening, "opening that nobody has answered"),
        Refusal::Midstream => (Outcome::DroppedMidstream, "connection not seen to begin"),
        Refusal::Over => (Outcome::DroppedOver, "data behind the end of a connection"),
    }
}

const OUTSIDE: Refused = (Outcome::DroppedWindow, "segment outside of the window");

/// Returns the state for recognising the protocol of a new flow by its first bytes. On the port of DNS, a TCP flow
/// without a recognised protocol is DNS.
pub(super) fn recognition_of(packet: &Packet<'_>) -> Recognition {
    let is_dns = packet.source_port == DNS || packet.destination_port == DNS;
    Recognition::new((is_dns && packet.protocol == TCP).then_some(Application::Dns))
}

/// Returns true if a packet opens a TCP connection and carries no data.
pub(super) fn is_opening(facts: &Facts<'_>) -> bool {
    let opens = |it: &SegmentHead| it.flags & (SYN | ACK) == SYN && it.len == 0;
    facts.segment.as_ref().is_some_and(opens)
}

/// Returns true if the sender of a flow's first packet is the server. The server is the endpoint that replies to the
/// handshake; without an observed handshake, the endpoint with the lower port.
pub(super) fn is_of_server(facts: &Facts<'_>) -> bool {
    match facts.segment {
        Some(head) if head.flags & SYN == 0 => {
            facts.packet.source_port < facts.packet.destination_port
        }
        _ => is_answer(facts),
    }
}

/// Returns true if a packet opens a TCP connection, with or without data.
pub(super) fn opens(facts: &Facts<'_>) -> bool {
    let opens = |it: &SegmentHead| it.flags & (SYN | ACK) == SYN;
    facts.segment.as_ref().is_some_and(opens)
}

/// Returns true if a packet replies to the opening of a TCP connection.
pub(super) fn is_answer(facts: &Facts<'_>) -> bool {
    let answers = |it: &SegmentHead| it.flags & (SYN | ACK) == SYN | ACK;
    facts.segment.as_ref().is_some_and(answers)
}

/// Releases all memory and parsers that a flow has borrowed.
pub(super) fn release(flow: &mut Flow, arena: &mut Arena, messages: &mut Messages) {
    for stream in &mut flow.streams {
        stream.close(arena);
    }
    messages.end(flow);
}

/// Starts the TCP state of a connection, or its streams, at a segment of `direction`. Returns true if the flow is
/// inspected.
pub(super) fn begin(
    flow: &mut Flow,
    change: &Change,
    direction: usize,
    arena: &mut Arena,
    messages: &mut Messages,
) -> bool {
    let mut begins = change.begins;
    let is_answered = begins.iter().all(Option::is_some);
    if is_answered && direction == 0 {
        // The endpoint that replies is the server.
        flow.turn();
        begins.swap(0, 1);
    }
    if is_answered && (change.is_new || flow.settled != Settled::No) {
        release(flow, arena, messages);
        flow.reconnect();
    }
    if flow.settled != Settled::No {
        return false;
    }
    for (at, first) in begins.into_iter().enumerate() {
        let Some(first) = first else { continue };
        let stream = &mut flow.streams[at];
        if stream.is_started() && stream.first() == first {
            continue;
        }
        if stream.taken() > 1 {
            // The bytes read before this segment belonged to an opening without a reply.
            messages.end(flow);
            flow.forget_application();
        }
        let stream = &mut flow.streams[at];
        stream.close(arena);
        stream.start(first);
    }
    true
}

/// Frees memory for a segment of `len` bytes: flows that use much memory lose their stored stream data.
pub(super) fn make_room(
    flows: &mut Flows,
    arena: &mut Arena,
    place: usize,
    len: usize,
    in_line: bool,
) {
    for _ in 0..ASKED_FOR_ROOM {
        // One byte may need a chunk before the early data, and another chunk after it.
        if arena.has(len / CHUNK_BYTES + 4) {
            return;
        }
        flows.make_room(arena, place, in_line);
    }
}

/// Processes an accepted segment: evaluates the rules for the new bytes of the stream. Returns the reason if the
/// segment is refused after all, none if it is accepted.
pub(super) fn take(
    flow: &mut Flow,
    asking: &mut Asking<'_, '_>,
    arena: &mut Arena,
    limits: &StreamLimits,
    head: &SegmentHead,
    change: &Change,
    payload: &[u8],
) -> Option<Refused> {
    let direction = usize::from(!asking.ask.packet.to_server);
    if let Some(number) = change.acknowledged {
        acknowledge(flow, asking, arena, limits, number);
    }
    let is_syn = head.flags & SYN != 0;
    // The text in a reset is not part of the stream (RFC 9293 section 3.5.3).
    let is_of_stream = head.flags & RST == 0 && (!is_syn || flow.streams[direction].is_started());
    if payload.is_empty() || !is_of_stream {
        return asking.unfinished(flow, head).filter(|_| limits.in_line);
    }
    let sequence = head.sequence.wrapping_add(u32::from(is_syn));
    // The stream is moved out of the flow while its bytes are inspected.
    let mut stream = std::mem::take(&mut flow.streams[direction]);
    let segment = stream.push(arena, sequence, payload, limits, &mut |piece| {
        asking.piece(flow, direction, &piece);
    });
    asking.ask.packet.stream_bytes[direction] = stream.taken();
    flow.streams[direction] = stream;
    let refused = |outcome, reason| limits.in_line.then_some((outcome, reason));
    match segment {
        Segment::InOrder | Segment::Old | Segment::Overlap => {
            asking.unfinished(flow, head).filter(|_| limits.in_line)
        }
        Segment::OutOfOrder(_) => {
            asking.ask.counters.note(Note::OutOfOrder, 1);
            None
        }
        Segment::Differs => {
            asking.ask.packet.anomalies |= Anomaly::Overlap.bit();
            if asking.ask.is_asked {
                asking.ask.about_odd(flow, payload);
            }
            refused(Outcome::DroppedOverlap, "stream overlap with other bytes")
                .filter(|_| limits.overlap == taut_inspect::overlap::Overlap::Drop)
        }
        Segment::Unknown => refused(
            Outcome::DroppedUnknown,
            "stream repeats bytes that were forgotten",
        ),
        Segment::NoMemory => {
            asking.ask.counters.note(Note::NoMemory, 1);
            refused(Outcome::DroppedNoMemory, "no memory for a stream")
        }
        Segment::TooFar => refused(OUTSIDE.0, OUTSIDE.1),
    }
}

/// Skips bytes of the other endpoint that the packet acknowledges and that never arrived here, and evaluates the rules
/// for the early data after them.
#[inline]
fn acknowledge(
    flow: &mut Flow,
    asking: &mut Asking<'_, '_>,
    arena: &mut Arena,
    limits: &StreamLimits,
    number: u32,
) {
    let direction = usize::from(!asking.ask.packet.to_server);
    let anomalies = std::mem::take(&mut asking.ask.packet.anomalies);
    *asking.ask.packet = turned(asking.ask.packet);
    let mut stream = std::mem::take(&mut flow.streams[1 - direction]);
    // If taut is inline, the receiver cannot have bytes that never arrived here. An acknowledgement of such bytes is
    // ignored, and taut waits for the bytes.
    let number = match limits.in_line && !flow.has_unread && is_before(stream.next(), number) {
        true => stream.next(),
        false => number,
    };
    stream.acknowledge(arena, number, limits, &mut |piece| {
        asking.piece(flow, 1 - direction, &piece);
    });
    flow.streams[1 - direction] = stream;
    if flow.connection.is_done(1 - direction) {
        asking.end_of_direction(flow);
    }
    *asking.ask.packet = turned(asking.ask.packet);
    asking.ask.packet.anomalies = anomalies;
    asking.ask.is_asked = false;
}

/// Returns the packet with the direction reversed.
fn turned<'a>(packet: &Packet<'a>) -> Packet<'a> {
    Packet {
        source: packet.destination,
        source_port: packet.destination_port,
        destination: packet.source,
        destination_port: packet.source_port,
        to_server: !packet.to_server,
        ..*packet
    }
}
