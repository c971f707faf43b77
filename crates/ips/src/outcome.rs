//! The outcomes of packets in the inspection.

use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::says_dropped;

/// The outcome of a packet; every packet is counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The rules were evaluated, and it passed.
    Passed,
    /// A rule dropped it.
    DroppedByRule,
    /// A rule rejected it.
    Rejected,
    /// A rule dropped an earlier packet and the rest of its flow.
    DroppedWithFlow,
    /// A rule passed an earlier packet and the rest of its flow.
    PassedWithFlow,
    /// It passed without inspection because of overload.
    Bypassed,
    /// It was dropped because of overload.
    DroppedOverload,
    /// It passed before all rules were evaluated, because its inspection time was used up.
    PassedOverTime,
    /// It was dropped because its inspection time was used up.
    DroppedOverTime,
    /// It repeats bytes of its stream with different content.
    DroppedOverlap,
    /// It repeats unacknowledged bytes of its stream that were discarded for lack of memory.
    DroppedUnknown,
    /// There was no memory for its stream data.
    DroppedNoMemory,
    /// It is a fragment, which waits for its datagram or passes, as configured.
    Fragment,
    /// It is a fragment that contradicts others, repeats one, or does not fit.
    DroppedFragment,
    /// A header is truncated or has a wrong length.
    Malformed,
    /// A checksum is wrong.
    DroppedChecksum,
    /// No TCP sends these flags together, or data without an acknowledgement.
    DroppedFlags,
    /// It is outside the window that its receiver has offered.
    DroppedWindow,
    /// It acknowledges bytes that were never sent.
    DroppedAcknowledgement,
    /// It continues a connection whose opening had no reply, or opens one with data although there is a connection.
    DroppedOpening,
    /// It belongs to a connection without an observed opening, and those are dropped.
    DroppedMidstream,
    /// It belongs to a connection without an observed opening, and those pass.
    PassedMidstream,
    /// It has data after the end of its connection.
    DroppedOver,
    /// It ends a request in the middle of its header.
    DroppedUnfinished,
    /// It completes a message that rules need and that cannot be parsed, for example because its segments are too
    /// small.
    DroppedUnread,
    /// It arrived at the port of the other end of its flow.
    DroppedWrongSide,
    /// It has urgent data, which is dropped, or its flag cannot be cleared.
    DroppedUrgent,
    /// It is not IP; it passed.
    NotIp,
}

pub(super) const OUTCOMES: [&str; 28] = [
    "passed",
    "dropped_by_rule",
    "rejected",
    "dropped_with_flow",
    "passed_with_flow",
    "bypassed",
    "dropped_overload",
    "passed_over_time",
    "dropped_over_time",
    "dropped_overlap",
    "dropped_unknown",
    "dropped_no_memory",
    "fragments",
    "dropped_fragment",
    "dropped_malformed",
    "dropped_checksum",
    "dropped_flags",
    "dropped_window",
    "dropped_acknowledgement",
    "dropped_opening",
    "dropped_midstream",
    "passed_midstream",
    "dropped_over",
    "dropped_unfinished",
    "dropped_unread",
    "dropped_wrong_side",
    "dropped_urgent",
    "not_ip",
];

/// Returns true if packets with the outcome of that name go no further.
pub(super) fn drops(name: &str) -> bool {
    says_dropped(name) || name == OUTCOMES[Outcome::Rejected as usize]
}

/// The counted events that are not an outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Recorded matches.
    Alerts,
    /// New flows.
    Flows,
    /// Flows that were evicted before their timeout.
    FlowsForcedOut,
    /// Messages without a free parser.
    NoParser,
    /// Flows that lost their parser to others, because they were idle for longest.
    ParsersTaken,
    /// Segments that arrived out of order and were stored.
    OutOfOrder,
    /// Positions in streams at which bytes are missing for good.
    Gaps,
    /// Early segments without memory: the missing bytes before them were given up.
    NoMemory,
    /// Flows without a detected protocol.
    Unrecognised,
    /// Segments with a cleared URG flag.
    UrgentCleared,
    /// Faults in messages of HTTP, DNS and TLS.
    Faults,
    /// HTTP messages that reached a limit on storage or decompression.
    LimitsReached,
    /// Messages that were not inspected, because there were too many in one segment.
    MessagesLeftOut,
    /// Rules that needed too many steps for a packet, or had to transform a buffer above the length limit.
    GivenUp,
    /// Flow bits that were not set, because the flow's table of bits was full.
    BitsFull,
    /// Fragments that passed with their datagram.
    FragmentsPassed,
    /// Fragments that were dropped, by themselves or with their datagram.
    FragmentsDropped,
}

pub(super) const NOTES: [&str; 17] = [
    "alerts",
    "flows",
    "flows_forced_out",
    "no_parser",
    "parsers_taken",
    "out_of_order",
    "gaps",
    "no_memory",
    "unrecognised",
    "urgent_cleared",
    "faults",
    "limits_reached",
    "messages_left_out",
    "given_up",
    "bits_full",
    "fragments_passed",
    "fragments_dropped",
];

/// The counters of one worker; others may read them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    outcomes: [AtomicU64; OUTCOMES.len()],
    notes: [AtomicU64; NOTES.len()],
}

impl Counters {
    #[inline]
    pub fn count(&self, outcome: Outcome) {
        add(&self.outcomes[outcome as usize], 1);
    }

    #[inline]
    pub fn note(&self, note: Note, more: u64) {
        if more > 0 {
            add(&self.notes[note as usize], more);
        }
    }

    /// Adds to an event counter that several threads write.
    pub fn note_elsewhere(&self, note: Note, more: u64) {
        self.notes[note as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub fn set(&self, note: Note, count: u64) {
        self.notes[note as usize].store(count, Ordering::Relaxed);
    }

    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        OUTCOMES
            .into_iter()
            .zip(self.outcomes.iter().map(|it| it.load(Ordering::Relaxed)))
    }

    pub fn notes(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NOTES
            .into_iter()
            .zip(self.notes.iter().map(|it| it.load(Ordering::Relaxed)))
    }
}

/// Adds to a counter that only one thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// The outcome of a packet that must not pass, and the reason.
pub(super) type Refused = (Outcome, &'static str);
