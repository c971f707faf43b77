//! What a worker exchanges packets with beside its ports: its slow path, and other workers of the same chain.

use crate::handoff::Handoff;
use crate::slow::SlowPath;
use taut_sys::Alarm;

#[derive(Default)]
pub(crate) struct Lanes {
    /// Where punted packets go; none where no function wants any.
    pub(crate) slow: Option<SlowPath>,
    /// To the other workers; none where there are none.
    pub(crate) handoff: Option<Handoff>,
}

impl Lanes {
    /// As [`taut_port::Port::arm`].
    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let slow = self.slow.as_mut().is_none_or(|slow| slow.arm(alarm));
        slow && self.handoff.as_mut().is_none_or(|to| to.arm(alarm))
    }

    /// As [`taut_port::Port::disarm`].
    pub(crate) fn disarm(&mut self) {
        self.slow.iter_mut().for_each(SlowPath::disarm);
        self.handoff.iter_mut().for_each(Handoff::disarm);
    }
}
