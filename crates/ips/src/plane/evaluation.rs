//! The evaluation of rules for one packet: its start, and the events that are written at its end.

use crate::ask::Ask;
use crate::event::{Ends, Event, What};
use crate::events::Events;
use crate::flow::Flow;
use crate::normalise::Facts;
use crate::outcome::Counters;
use crate::rules::InForce;
use std::sync::Arc;
use taut_function::table_swap::InUse;
use taut_inspect::compile::{Inspector, Verdict};
use taut_inspect::evaluate::Packet;

/// The arrival time of a batch, and whether there is overload.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) ticks: u64,
    pub(super) s: u32,
    /// True if packets have arrived without a pause for longer than the bound of the overload policy.
    pub(super) is_too_much: bool,
    pub(super) from_port: usize,
}

/// The state of a worker for evaluating rules.
pub(super) struct Questions {
    pub(super) in_use: InUse<InForce>,
    pub(super) inspector: Inspector,
    /// The rules that were recorded for the certificates of the current packet.
    pub(super) told: Vec<u32>,
    pub(super) counters: Arc<Counters>,
    pub(super) events: Option<Events>,
    /// The limit on the time that the rules may take per packet, in ticks.
    pub(super) max_ticks: u64,
    pub(super) alert_only: bool,
}

impl Questions {
    /// Starts the evaluation of the rules for a packet of the flow in slot `place`.
    #[inline]
    pub(super) fn about<'a, 'p>(
        &'a mut self,
        packet: &'a mut Packet<'p>,
        place: usize,
        now: Now,
    ) -> Ask<'a, 'p> {
        self.inspector.begin(self.max_ticks);
        Ask {
            // The inspector belongs to this rule set, even if a newer set exists by now.
            in_force: self.in_use.held(),
            inspector: &mut self.inspector,
            counters: &self.counters,
            events: self.events.as_mut(),
            packet,
            place,
            verdict: Verdict::None,
            is_asked: false,
            is_unread: false,
            told: &mut self.told,
            now_s: now.s,
            now_ticks: now.ticks,
            port: now.from_port as u8,
            alert_only: self.alert_only,
        }
    }

    /// Writes the packet if it caused an alert, and an event with the reason if it was dropped and no rule requested
    /// the drop.
    #[inline]
    pub(super) fn end_of_packet(
        &mut self,
        flow: &Flow,
        facts: &Facts<'_>,
        frame: &[u8],
        now: Now,
        reason: Option<&'static str>,
    ) {
        let Some(events) = &mut self.events else {
            return;
        };
        let event = |what| Event {
            at_ticks: now.ticks,
            flow: flow.id,
            ends: Ends::of(&facts.packet),
            application: flow.application,
            port: now.from_port as u8,
            what,
        };
        events.end_of_packet(event, frame);
        if let Some(reason) = reason {
            events.push(event(What::Drop { reason }));
        }
    }
}
