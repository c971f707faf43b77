//! The outcomes of packets in the inspection, and the counters of outcomes and other events.

use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::says_dropped;

/// The outcome of a packet; each packet is counted under one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The rules were evaluated, and the packet passed.
    Passed,
    /// A rule dropped the packet.
    DroppedByRule,
    /// A rule rejected the packet.
    Rejected,
    /// The packet was dropped because a rule dropped an earlier packet and the rest of the flow.
    DroppedWithFlow,
    /// The packet passed because a rule passed an earlier packet and the rest of the flow.
    PassedWithFlow,
    /// The packet passed without inspection because of overload.
    Bypassed,
    /// The packet was dropped because of overload.
    DroppedOverload,
    /// The packet used up its inspection time and passed before all rules were evaluated.
    PassedOverTime,
    /// The packet used up its inspection time and was dropped.
    DroppedOverTime,
    /// The segment repeats bytes of its stream with different content.
    DroppedOverlap,
    /// The segment repeats unacknowledged bytes that were discarded for lack of memory, so that the copies cannot be
    /// compared.
    DroppedUnknown,
    /// There was no memory for the stream data of the segment.
    DroppedNoMemory,
    /// The packet is a fragment, which waits for its datagram or passes, as configured.
    Fragment,
    /// The packet is a fragment that contradicts other fragments, repeats one, or exceeds a limit.
    DroppedFragment,
    /// A header is truncated or has a wrong length.
    Malformed,
    /// A checksum of the packet is wrong.
    DroppedChecksum,
    /// The flags are a combination that no TCP sends, or the segment has data and no acknowledgement.
    DroppedFlags,
    /// The segment is outside the window that its receiver has offered.
    DroppedWindow,
    /// The segment acknowledges bytes that were never sent.
    DroppedAcknowledgement,
    /// The segment continues a connection whose opening had no reply, or is a SYN with data while a connection exists.
    DroppedOpening,
    /// The segment belongs to a connection without an observed opening, and such connections are dropped.
    DroppedMidstream,
    /// The segment belongs to a connection without an observed opening, and such connections pass.
    PassedMidstream,
    /// The segment has data after the end of its connection.
    DroppedOver,
    /// The segment ends a request in the middle of its header.
    DroppedUnfinished,
    /// The segment completes a message that rules need and that cannot be parsed, for example because its segments are
    /// too small.
    DroppedUnread,
    /// The packet arrived at the port of the opposite endpoint of its flow.
    DroppedWrongSide,
    /// The segment has urgent data and such segments are dropped, or its URG flag cannot be cleared.
    DroppedUrgent,
    /// The packet is not IP and passed.
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

/// Returns true if packets with the outcome `name` are dropped.
pub(super) fn drops(name: &str) -> bool {
    says_dropped(name) || name == OUTCOMES[Outcome::Rejected as usize]
}

/// The counted events other than the outcomes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Matches of rules that were recorded as alerts.
    Alerts,
    /// Flows that were added to the flow table.
    Flows,
    /// Flows that were evicted before their timeout.
    FlowsForcedOut,
    /// Messages that were not parsed because no parser was free.
    NoParser,
    /// Flows that lost their parser to another flow, because they had been idle for the longest time.
    ParsersTaken,
    /// Segments that arrived out of order and were stored.
    OutOfOrder,
    /// Positions in streams at which bytes are permanently missing.
    Gaps,
    /// Early segments for which there was no memory, so that the missing bytes before them were skipped.
    NoMemory,
    /// Flows whose protocol was not detected.
    Unrecognised,
    /// Segments with a cleared URG flag.
    UrgentCleared,
    /// Faults in messages of HTTP, DNS and TLS.
    Faults,
    /// HTTP messages that reached a limit on storage or decompression.
    LimitsReached,
    /// Messages that were not inspected, because there were too many in one segment.
    MessagesLeftOut,
    /// Rules that needed too many steps for a packet, or had to transform a buffer longer than the limit.
    GivenUp,
    /// Flow bits that were not set, because the flow's table of bits was full.
    BitsFull,
    /// Fragments that passed with their datagram.
    FragmentsPassed,
    /// Fragments that were dropped, alone or with their datagram.
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

/// The counters of one worker; other threads may read them.
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

    /// Adds `more` to the counter of a [`Note`] that several threads write.
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

/// Adds `more` to a counter that only one thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// The outcome of a packet that must not pass, with the reason for events.
pub(super) type Refused = (Outcome, &'static str);
