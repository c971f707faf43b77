//! The verdict on a packet: its outcome, under which it is counted, and its fate, such as pass or drop. The rules, its
//! receiver, its inspection time and overload determine both. A verdict may also settle the whole flow: later packets
//! then get the same fate without inspection.

use crate::ask::Ask;
use crate::connection;
use crate::flow::{Flow, Settled};
use crate::normalise::Facts;
use crate::outcome::{Outcome, Refused};
use crate::settings::{OverTime, Overload, Policies};
use taut_inspect::compile::Verdict;

/// The number of bytes from which a flow counts as large. Under overload, large flows are the first to bypass the
/// inspection.
const ELEPHANT_BYTES: u64 = 1 << 20;

/// The action on a packet, or on all fragments of its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Drop,
    Reject,
    /// The packet waits for the other fragments of its datagram.
    Wait,
    /// The packet and the other fragments of its datagram pass.
    Release,
}

/// The findings that determine the outcome of a packet.
pub(super) struct Conclusion {
    pub(super) verdict: Verdict,
    /// The reason why the receiver or the stream accepts no part of the packet; none if it accepts the packet.
    pub(super) refused: Option<Refused>,
    pub(super) is_over_time: bool,
    /// True if rules need a message that cannot be parsed.
    pub(super) is_unread: bool,
    /// True if a rule lets the rest of the flow bypass the inspection.
    pub(super) bypasses: bool,
    pub(super) over_time: OverTime,
    pub(super) in_line: bool,
}

impl Conclusion {
    /// Combines the findings of the rules, the receiver's reason to refuse the packet, and the policies that decide
    /// between both.
    #[inline]
    pub(super) fn new(ask: &Ask<'_, '_>, refused: Option<Refused>, policies: &Policies) -> Self {
        Self {
            verdict: ask.verdict,
            refused,
            is_over_time: ask.inspector.is_over_time(),
            is_unread: ask.is_unread,
            bypasses: ask.inspector.bypasses(),
            over_time: policies.over_time,
            in_line: !policies.alert_only,
        }
    }

    /// Returns the outcome, the fate, and, if no rule decided, the reason. Settles the flow if the verdict applies to
    /// the whole flow.
    pub(super) fn of(&self, flow: &mut Flow) -> (Outcome, Fate, Option<&'static str>) {
        match self.verdict {
            Verdict::Pass => {
                flow.settled = Settled::Passes;
                (Outcome::PassedWithFlow, Fate::Pass, None)
            }
            Verdict::Drop | Verdict::Reject => {
                // All packets without ports between two hosts are one flow, so a verdict applies only to its own
                // packet.
                if self.in_line && flow.has_ports() {
                    flow.settled = Settled::Drops;
                }
                match self.verdict {
                    Verdict::Drop => (Outcome::DroppedByRule, Fate::Drop, None),
                    _ => (Outcome::Rejected, Fate::Reject, None),
                }
            }
            // Data that the receiver refuses does not pass, so it must not settle the flow: the rest of the flow is
            // inspected.
            Verdict::None | Verdict::PassPacket if self.bypasses && self.refused.is_none() => {
                flow.settled = Settled::Passes;
                (Outcome::Passed, Fate::Pass, None)
            }
            Verdict::PassPacket if self.refused.is_none() => (Outcome::Passed, Fate::Pass, None),
            Verdict::None | Verdict::PassPacket => match (self.refused, self.over_time) {
                (Some((outcome, reason)), _) => (outcome, Fate::Drop, Some(reason)),
                (None, _) if self.is_unread && self.in_line => {
                    flow.settled = Settled::Drops;
                    let reason = "a message that is cut too small to be read";
                    (Outcome::DroppedUnread, Fate::Drop, Some(reason))
                }
                (None, _) if !self.is_over_time => (Outcome::Passed, Fate::Pass, None),
                (None, OverTime::Pass) => (Outcome::PassedOverTime, Fate::Pass, None),
                (None, OverTime::Drop) => {
                    // The stream contains uninspected data, of which a later retransmission would pass as known data.
                    // Therefore the whole flow is dropped.
                    if self.in_line && flow.is_tcp() {
                        flow.settled = Settled::Drops;
                    }
                    (Outcome::DroppedOverTime, Fate::Drop, Some("no more time"))
                }
            },
        }
    }
}

/// Returns the outcome and the fate of packets of a settled flow, whose later packets need no inspection. Returns none
/// if the flow is not settled, or if the packet may open another connection.
pub(super) fn settled(flow: &Flow, facts: &Facts<'_>) -> Option<(Outcome, Fate)> {
    // An opening is inspected, because it may begin another connection.
    let opens = connection::is_opening(facts) || connection::is_answer(facts);
    match flow.settled {
        Settled::No => None,
        _ if opens => None,
        Settled::Drops => Some((Outcome::DroppedWithFlow, Fate::Drop)),
        Settled::Passes => Some((Outcome::PassedWithFlow, Fate::Pass)),
    }
}

/// Returns the outcome and the fate of packets of a settled flow that begin no new connection.
#[inline]
pub(super) fn still_settled(flow: &Flow, facts: &Facts<'_>) -> (Outcome, Fate) {
    // In a settled flow only the opening of a new connection is inspected, and only the receiver's reply confirms it.
    match flow.settled {
        Settled::Drops if !connection::is_opening(facts) => (Outcome::DroppedWithFlow, Fate::Drop),
        Settled::Drops => (Outcome::Passed, Fate::Pass),
        _ => (Outcome::PassedWithFlow, Fate::Pass),
    }
}

/// Returns the outcome and the fate of packets under overload.
pub(super) fn too_much(flow: &mut Flow, overload: Overload) -> (Outcome, Fate) {
    if overload == Overload::Drop {
        return (Outcome::DroppedOverload, Fate::Drop);
    }
    // Large flows cause most of the overload, so they bypass the inspection for good.
    if flow.bytes[0] + flow.bytes[1] > ELEPHANT_BYTES {
        flow.settled = Settled::Passes;
    }
    flow.has_unread = true;
    (Outcome::Bypassed, Fate::Pass)
}
