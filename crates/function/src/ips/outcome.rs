//! What becomes of packets in the inspection.

use crate::says_dropped;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a packet; every packet is counted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Rules were asked, and it passed.
    Passed,
    /// A rule dropped it.
    DroppedByRule,
    /// A rule rejected it.
    Rejected,
    /// A rule dropped one of its flow before.
    DroppedWithFlow,
    /// A rule let one of its flow pass before.
    PassedWithFlow,
    /// It passed without being inspected, as there was too much.
    Bypassed,
    /// It was dropped, as there was too much.
    DroppedOverload,
    /// It passed although rules were not asked, as there was no more time for it.
    PassedOverTime,
    /// It was dropped, as there was no more time for it.
    DroppedOverTime,
    /// It repeats bytes of its stream with other content.
    DroppedOverlap,
    /// It repeats bytes of its stream that were forgotten for want of memory, and are not acknowledged.
    DroppedUnknown,
    /// There was no memory to keep what it brings to a stream.
    DroppedNoMemory,
    /// It is a fragment: it waits for the others of its datagram, or passes, as it is set.
    Fragment,
    /// It is a fragment that contradicts others, repeats one, or has no room.
    DroppedFragment,
    /// A header is cut short or lies about a length.
    Malformed,
    /// A checksum is wrong.
    DroppedChecksum,
    /// No end of TCP sends these flags together, or data without an acknowledgement.
    DroppedFlags,
    /// It lies outside of the window that its receiver has offered.
    DroppedWindow,
    /// It acknowledges what was never sent.
    DroppedAcknowledgement,
    /// It goes on with an opening that is not answered, or opens with data where there is a connection.
    DroppedOpening,
    /// It belongs to a connection whose opening was not seen, and such are dropped.
    DroppedMidstream,
    /// It belongs to a connection whose opening was not seen, and such pass.
    PassedMidstream,
    /// It brings data behind the end of its connection.
    DroppedOver,
    /// It ends a request in the middle of its head.
    DroppedUnfinished,
    /// It ends a message that rules ask about and that was cut so small that nobody could read it.
    DroppedUnread,
    /// It came in through the port of the other end of its flow.
    DroppedWrongSide,
    /// It has urgent data, and such is dropped, or its mark cannot be taken away.
    DroppedUrgent,
    /// It is no packet of IP; it passed.
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

/// Whether packets with the outcome of that name go no further.
pub(super) fn drops(name: &str) -> bool {
    says_dropped(name) || name == OUTCOMES[Outcome::Rejected as usize]
}

/// Things worth knowing that are no outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Matches that were written down.
    Alerts,
    /// Flows that were new.
    Flows,
    /// Flows that made room before their time.
    FlowsForcedOut,
    /// Messages that no parser was free for.
    NoParser,
    /// Flows that lost their parser to others, as they had brought nothing for longest.
    ParsersTaken,
    /// Segments that came out of order and were kept.
    OutOfOrder,
    /// Places of streams at which bytes are missing for good.
    Gaps,
    /// Segments that came early and found no room: what was missing in front of them was given up.
    NoMemory,
    /// Flows whose first bytes tell no protocol.
    Unrecognised,
    /// Segments whose mark of urgent data was taken away.
    UrgentCleared,
    /// Faults in messages of HTTP, DNS and TLS.
    Faults,
    /// Messages of HTTP that reached a limit of what is kept or unpacked.
    LimitsReached,
    /// Messages that were not looked at, as there were too many in one segment.
    MessagesLeftOut,
    /// Rules that needed too many steps for a packet, or wanted a buffer changed that is too long for that.
    GivenUp,
    /// Bits of flows that found no room.
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

/// Counters of one worker; others may read them.
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

    /// Adds to a note of which several threads know something.
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

/// What becomes of a packet that must not pass, and why.
pub(super) type Refused = (Outcome, &'static str);
