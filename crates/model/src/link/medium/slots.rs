//! Time slots, each of which belongs to one direction, and the bytes reserved in them.

use super::settings::{MOST_ATTEMPTS, MediumError, Slots, ns, wrong};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct SlotPlan {
    pub(super) slot_ns: u64,
    whose: Vec<Option<usize>>,
    pub(super) slot_bytes: u32,
    pub(super) processing_ns: u64,
    pub(super) grant_ns: u64,
    pub(super) harq_ns: u64,
    pub(super) attempts: u32,
    /// Bytes reserved in slots, as pairs of slot number and bytes, for each direction; old slots are removed.
    taken: [VecDeque<(u64, u32)>; 2],
    pub(super) last_ns: [u64; 2],
}

impl SlotPlan {
    /// Returns the first slot of direction `way` at or after `from_ns` with enough free bytes, and reserves `bytes` in
    /// it.
    pub(super) fn slot_for(&mut self, way: usize, from_ns: u64, bytes: u32) -> u64 {
        let mut slot = from_ns.div_ceil(self.slot_ns);
        let taken = &mut self.taken[way];
        while taken.front().is_some_and(|(number, _)| *number + 64 < slot) {
            taken.pop_front();
        }
        let own = |slot: u64| self.whose[(slot % self.whose.len() as u64) as usize] == Some(way);
        loop {
            if own(slot) {
                match taken.iter_mut().find(|(number, _)| *number == slot) {
                    Some((_, used)) if *used + bytes <= self.slot_bytes => {
                        *used += bytes;
                        return slot;
                    }
                    Some(_) => {}
                    None => {
                        // A packet longer than a slot takes a slot of its own; frames of such a length were refused on
                        // offer.
                        taken.push_back((slot, bytes));
                        return slot;
                    }
                }
            }
            slot += 1;
        }
    }
}

pub(super) fn slot_plan(slots: &Slots) -> Result<SlotPlan, MediumError> {
    let mut whose = Vec::new();
    for letter in slots.pattern.chars() {
        whose.push(match letter {
            'D' => Some(0),
            'U' => Some(1),
            'S' => None,
            other => {
                return wrong(format!("slots.pattern: \"{other}\" is none of D, U and S"));
            }
        });
    }
    if whose.len() > 1_000 || !whose.contains(&Some(0)) || !whose.contains(&Some(1)) {
        let pattern = &slots.pattern;
        return wrong(format!(
            "slots.pattern = \"{pattern}\": expected a slot for each direction, such as DDDSU, at most 1000"
        ));
    }
    if slots.slot_bytes < 1_514 {
        let bytes = slots.slot_bytes;
        return wrong(format!(
            "slots.slot_bytes = {bytes}: expected 1514 or more, so that every frame fits"
        ));
    }
    if !(1..=MOST_ATTEMPTS).contains(&slots.attempts) {
        return wrong(format!(
            "slots.attempts = {}: expected 1 to {MOST_ATTEMPTS}",
            slots.attempts
        ));
    }
    Ok(SlotPlan {
        slot_ns: ns("slots.slot_us", slots.slot_us, 1.0)?,
        whose,
        slot_bytes: slots.slot_bytes,
        processing_ns: ns("slots.processing_us", slots.processing_us, 0.0)?,
        grant_ns: ns("slots.grant_us", slots.grant_us, 0.0)?,
        harq_ns: ns("slots.harq_us", slots.harq_us, 0.0)?,
        attempts: slots.attempts,
        taken: [const { VecDeque::new() }; 2],
        last_ns: [0; 2],
    })
}
