//! The rings through which a worker exchanges packets with its slow path and with the other workers of its chain.

use crate::handoff::Handoff;
use crate::slow::SlowPath;
use taut_sys::Alarm;

#[derive(Default)]
pub(crate) struct Lanes {
    /// Slow path, which receives punted packets; None if no function punts packets.
    pub(crate) slow: Option<SlowPath>,
    /// Rings to the other workers; None if the worker is the only one.
    pub(crate) handoff: Option<Handoff>,
}

impl Lanes {
    /// Returns true if the worker has rings to a slow path or to other workers.
    pub(crate) fn are_any(&self) -> bool {
        self.slow.is_some() || self.handoff.is_some()
    }

    /// Arms `alarm` for the rings to this worker; see [`taut_port::Port::arm`].
    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let slow = self.slow.as_mut().is_none_or(|slow| slow.arm(alarm));
        slow && self.handoff.as_mut().is_none_or(|to| to.arm(alarm))
    }

    /// Disarms the rings to this worker; see [`taut_port::Port::disarm`].
    pub(crate) fn disarm(&mut self) {
        self.slow.iter_mut().for_each(SlowPath::disarm);
        self.handoff.iter_mut().for_each(Handoff::disarm);
    }
}
