//! State of the TCP connection that a mapping is for, as its packets tell it (RFC 7857 section 2, after RFC 6146
//! section 3.5.2), and which of them are to be believed.
//!
//! Nothing but a RST with the expected sequence number shortens a mapping from outside (RFC 7857 section 2.2 asks for such a check
//! against attackers off the path; expected is what RFC 5961 section 3.2 lets a host reset by): who sends to an outside port need
//! not be the peer. For the same reason a RST from inside counts only with the number that the host sends next, as hosts answer
//! stray segments with a RST.

use super::seen::{ACK, FIN, RST, SYN, Segment};

/// Flags of what has been seen. Numbers as in crates/xdp/ebpf/function/nat.h.
pub(super) mod state {
    /// A packet other than a RST came from outside.
    pub const ANSWERED: u8 = 1;
    /// A packet with ACK and without SYN left.
    pub const ACKNOWLEDGED: u8 = 2;
    /// A FIN left.
    pub const FINISHED: u8 = 4;
    /// A RST passed, and no other packet left since.
    pub const RESET: u8 = 8;
    /// `next` is known.
    pub const NUMBERED: u8 = 16;
    /// Flags of an open connection, of the first four.
    pub const OPEN: u8 = ANSWERED | ACKNOWLEDGED;
    pub const PHASE: u8 = ANSWERED | ACKNOWLEDGED | FINISHED | RESET;
    /// The mapping never times out.
    pub const STATIC: u8 = 32;
}

/// The connection of a mapping: the latest, where there are several.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Connection {
    pub state: u8,
    /// The sequence number that the host sends next.
    next: u32,
    /// The one that it expects, as it said last.
    expected: u32,
}

impl Connection {
    pub fn of(state: u8) -> Self {
        Self {
            state,
            ..Self::default()
        }
    }

    pub fn is_open(&self) -> bool {
        self.state & state::PHASE == state::OPEN
    }

    pub fn is_static(&self) -> bool {
        self.state & state::STATIC != 0
    }

    /// Notes a segment from inside. Returns whether the mapping's time begins anew.
    #[inline]
    pub fn left(&mut self, it: &Segment) -> bool {
        if it.flags & RST != 0 {
            let is_its = self.state & state::NUMBERED != 0 && it.sequence == self.next;
            if is_its {
                self.state |= state::RESET;
            }
            return is_its;
        }
        if it.flags & SYN != 0 {
            // Another connection beside one that is open takes nothing from it.
            if !self.is_open() {
                self.state &= state::STATIC;
            }
            self.state |= state::NUMBERED;
            self.next = it.end;
            return true;
        }
        self.state &= !state::RESET;
        if self.state & state::NUMBERED == 0 || is_behind(self.next, it.end) {
            self.state |= state::NUMBERED;
            self.next = it.end;
        }
        if it.flags & ACK != 0 {
            if self.state & state::ACKNOWLEDGED == 0 || is_behind(self.expected, it.acknowledgement)
            {
                self.expected = it.acknowledgement;
            }
            self.state |= state::ACKNOWLEDGED;
        }
        if it.flags & FIN != 0 {
            self.state |= state::FINISHED;
        }
        true
    }

    /// Notes a segment from outside. Returns whether the mapping's time begins anew: that of a connection that is reset
    /// does, and is shorter.
    #[inline]
    pub fn came(&mut self, it: &Segment) -> bool {
        if it.flags & RST == 0 {
            self.state |= state::ANSWERED;
            return false;
        }
        let is_reset = self.is_open() && it.sequence == self.expected;
        if is_reset {
            self.state |= state::RESET;
        }
        is_reset
    }
}

/// Whether the first of two sequence numbers is before the other (RFC 9293 section 3.4).
fn is_behind(first: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(first))
}
