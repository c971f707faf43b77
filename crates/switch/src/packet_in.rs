//! Packets that are sent to controllers: the way to them, and the note with metadata that accompanies each packet.

use super::control::{Control, Name};
use super::openflow::{Shown, Why};
use taut_port::pair::Lane;

/// The port number that means no port.
pub(super) const NOWHERE: usize = 255;
/// The lowest bit of the field in a frame's note that contains the identifier of the rule plus 1, or 0 without a rule.
const RULE_AT: u32 = 16;

/// The way by which packets for controllers leave the worker.
pub(super) enum Shows<'a> {
    /// Packets for controllers travel to the server thread in a pair of rings.
    Thread(&'a mut Lane),
    /// Packets for controllers are put into this list, each with its note, because the caller is the server thread
    /// itself.
    Here(&'a mut Vec<(u64, Vec<u8>)>),
    /// No controllers are configured, so that no packet is sent to one.
    Nobody,
}

impl Shows<'_> {
    /// Sends a frame to controllers, with its ingress port, its table and the identifier of its rule. Returns false if
    /// there is no space in the ring, or no controller.
    pub fn show(&mut self, frame: &[u8], (in_port, table, rule): (u8, u8, u32)) -> bool {
        let rule = u64::from(rule.wrapping_add(1));
        let note = u64::from(in_port) | u64::from(table) << 8 | rule << RULE_AT;
        match self {
            Self::Thread(lane) => lane.push(frame, note),
            Self::Here(shown) => {
                shown.push((note, frame.to_vec()));
                true
            }
            Self::Nobody => false,
        }
    }

    /// Publishes the packets that were sent to the server thread, and wakes the thread.
    pub fn publish(&mut self) {
        if let Self::Thread(lane) = self {
            lane.publish();
        }
    }
}

/// Decodes the note that accompanies a frame for controllers.
pub(super) fn shown(note: u64, control: &Control) -> Shown {
    let in_port = note as u8;
    let name = match (note >> RULE_AT) as u32 {
        0 => Name::NOBODY,
        rule => control.name(rule - 1),
    };
    Shown {
        in_port: (usize::from(in_port) != NOWHERE).then_some(in_port),
        table: (note >> 8) as u8,
        why: match note >> RULE_AT != 0 && !name.is_last {
            true => Why::Action,
            false => Why::NoMatch,
        },
        cookie: name.cookie,
        has_rule: note >> RULE_AT != 0,
    }
}
