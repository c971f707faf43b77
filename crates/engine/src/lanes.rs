//! Lanes through which a worker exchanges packets beside its ports: to its slow path, and to other workers of the same
//! chain.

use crate::handoff::Handoff;
use crate::slow::SlowPath;
use taut_sys::Alarm;

#[derive(Default)]
pub(crate) struct Lanes {
    /// Slow path, which gets punted packets; none where no function wants any.
    pub(crate) slow: Option<SlowPath>,
    /// Lanes to the other workers; none where there are none.
    pub(crate) handoff: Option<Handoff>,
}

impl Lanes {
    /// Returns whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        self.slow.is_some() || self.handoff.is_some()
    }

    /// Arms `alarm` as [`taut_port::Port::arm`] does.
    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let slow = self.slow.as_mut().is_none_or(|slow| slow.arm(alarm));
        slow && self.handoff.as_mut().is_none_or(|to| to.arm(alarm))
    }

    /// Disarms as [`taut_port::Port::disarm`] does.
    pub(crate) fn disarm(&mut self) {
        self.slow.iter_mut().for_each(SlowPath::disarm);
        self.handoff.iter_mut().for_each(Handoff::disarm);
    }
}
