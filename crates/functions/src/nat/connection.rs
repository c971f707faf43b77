//! The state of a mapping's TCP connection, learned from its packets (RFC 7857 section 2, after RFC 6146 section
//! 3.5.2), and the check whether a RST in them is valid.
//!
//! From outside, only a RST with the expected sequence number shortens a mapping. RFC 7857 section 2.2 requires such a
//! check against off-path attackers, because the sender to an outside port need not be the peer. The expected number is
//! the one with which RFC 5961 section 3.2 lets a host reset. For the same reason a RST from inside counts only with
//! the number that the host sends next, as hosts reply to stray segments with a RST.

use super::parser::{ACK, FIN, RST, SYN, Segment};

/// Flags of observed events. Their values are the same in crates/xdp/ebpf/function/nat.h.
pub(super) mod state {
    /// A packet other than a RST came from outside.
    pub const ANSWERED: u8 = 1;
    /// A packet with ACK and without SYN was sent from inside.
    pub const ACKNOWLEDGED: u8 = 2;
    /// A FIN was sent from inside.
    pub const FINISHED: u8 = 4;
    /// A RST passed, and no other packet from inside has followed.
    pub const RESET: u8 = 8;
    /// The sequence number in `next` is known.
    pub const NUMBERED: u8 = 16;
    /// The value of the first four flags while a connection is open: `ANSWERED` and `ACKNOWLEDGED` only.
    pub const OPEN: u8 = ANSWERED | ACKNOWLEDGED;
    pub const PHASE: u8 = ANSWERED | ACKNOWLEDGED | FINISHED | RESET;
    /// The mapping never times out.
    pub const STATIC: u8 = 32;
}

/// The state of a mapping's TCP connection. If the mapping has several connections, it is the state of the latest one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Connection {
    pub state: u8,
    /// The sequence number that the host sends next.
    next: u32,
    /// The sequence number that the host expects next, from its last acknowledgement.
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

    /// Records a segment that the inside host sends. Returns true if the mapping's timeout restarts.
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
            // The SYN of another connection leaves the state of an open connection unchanged.
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

    /// Records a segment that arrives from an outside host. Returns true if it resets the connection: the mapping's
    /// timeout then restarts with a shorter value.
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

/// Returns true if the first of two sequence numbers is before the other (RFC 9293 section 3.4).
fn is_behind(first: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(first))
}
