//! Senders that a receiver listens to: those that it knows, and new ones as far as they can be told from recordings and
//! do not come too fast.
//!
//! A one-way link has no handshake, so a receiver that has just started cannot know what the one before it took. It
//! therefore takes nothing that was sent before it began, by the time in the header. A packet that an earlier receiver took
//! was stamped with at most `clock_error` more than that receiver's time, and this one begins at `clock_error` more than
//! its own: whatever the sender's clock shows, none is taken twice.

use super::cipher::Cipher;
use super::clock::UNITS_PER_S;
use super::header::{Header, Mode};
use super::key::Master;
use super::window::Window;
use crate::budget::Budget;

/// Sessions whose keys a receiver keeps.
pub(super) const MOST_SESSIONS: usize = 64;

/// Keys that are derived for senders not heard of before: so many a second, and at once. Anyone can ask for one.
const NEW_PER_S: u64 = 1024;
pub(super) const NEW_AT_ONCE: u64 = 64;

/// State by which one sender's packets with one key are encrypted.
pub(super) struct Session {
    pub(super) id: [u8; 9],
    /// Upper half of the packets' numbers.
    pub(super) epoch: u32,
    pub(super) cipher: Cipher,
    pub(super) window: Window,
    /// Time at which the session's latest packet came, by the receiver's clock.
    heard: u64,
    /// The latest time that one of its packets was sent at.
    newest: u64,
    /// The key of the next epoch is there.
    is_followed: bool,
}

impl Session {
    pub(super) fn new(
        master: &Master,
        mode: Mode,
        byte_wise: bool,
        id: [u8; 9],
        epoch: u32,
    ) -> Self {
        let (key, length) = master.derive(&id, epoch);
        let cipher = Cipher::new(mode, byte_wise, &key[..length]);
        Self {
            id,
            epoch,
            cipher: cipher.unwrap_or_else(|| unreachable!("keys have 16 or 32 bytes")),
            window: Window::default(),
            heard: 0,
            newest: 0,
            is_followed: false,
        }
    }
}

/// Lookup of a packet's session among those that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionLookup {
    Known(usize),
    /// The session is new: its key was derived; it is known once one of its packets was decrypted.
    New,
}

/// Error: there are too many senders, or too many new ones at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Time at which a packet was sent, as far as that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    InTime,
    /// The packet was sent before this receiver began, or no later than the latest packet of a sender that was
    /// forgotten.
    TooEarly,
    /// The packet was sent by a clock that is ahead by more than clocks may be.
    Ahead,
}

pub(super) struct Senders {
    master: Master,
    mode: Mode,
    byte_wise: bool,
    /// How far clocks may be apart, in the header's units of time.
    clock_error: u64,
    /// Latest time of sending that is not taken.
    barrier: u64,
    known: Vec<Session>,
    new: Option<Session>,
    /// Keys that may be derived.
    budget: Budget,
}

impl Senders {
    pub(super) fn new(master: Master, mode: Mode, byte_wise: bool, clock_error: u64) -> Self {
        Self {
            master,
            mode,
            byte_wise,
            clock_error,
            // Nothing before it begins.
            barrier: u64::MAX,
            known: Vec::with_capacity(MOST_SESSIONS),
            new: None,
            budget: Budget::new(NEW_AT_ONCE, UNITS_PER_S / NEW_PER_S, 0),
        }
    }

    /// The first packet may come from `now` on.
    pub(super) fn begin(&mut self, now: u64) {
        self.barrier = now + self.clock_error;
    }

    /// Compares with what the clock showed when it was read last; only what seems ahead has it read again.
    #[inline]
    pub(super) fn sent(&self, header: &Header, now: u64, read: impl FnOnce() -> u64) -> Sent {
        if header.sent <= self.barrier {
            Sent::TooEarly
        } else if header.sent > now + self.clock_error && header.sent > read() + self.clock_error {
            Sent::Ahead
        } else {
            Sent::InTime
        }
    }

    /// The session of a packet. One that is not known costs the derivation of a key, which is why they are counted.
    #[inline]
    pub(super) fn find(&mut self, header: &Header, now: u64) -> Result<SessionLookup, TooMany> {
        let (id, epoch) = (header.session, header.epoch());
        match self.position(id, epoch) {
            Some(at) => Ok(SessionLookup::Known(at)),
            None => self.derive(id, epoch, now),
        }
    }

    fn position(&self, id: [u8; 9], epoch: u32) -> Option<usize> {
        (self.known.iter()).position(|it| it.epoch == epoch && it.id == id)
    }

    #[cold]
    fn derive(&mut self, id: [u8; 9], epoch: u32, now: u64) -> Result<SessionLookup, TooMany> {
        let has_room = self.known.len() < MOST_SESSIONS || self.unheard(now).is_some();
        if !has_room || !self.budget.admits(now) {
            return Err(TooMany);
        }
        self.new = Some(self.session(id, epoch));
        Ok(SessionLookup::New)
    }

    fn session(&self, id: [u8; 9], epoch: u32) -> Session {
        Session::new(&self.master, self.mode, self.byte_wise, id, epoch)
    }

    #[inline]
    pub(super) fn at(&mut self, place: SessionLookup) -> Option<&mut Session> {
        match place {
            SessionLookup::Known(at) => self.known.get_mut(at),
            SessionLookup::New => self.new.as_mut(),
        }
    }

    /// A packet was decrypted, which in GCM only those can send who have the key. Only now its session takes a place.
    #[inline]
    pub(super) fn accept(&mut self, place: SessionLookup, header: &Header, now: u64) {
        let Some(session) = self.at(place) else {
            return;
        };
        session.window.see(header.number);
        session.heard = now;
        session.newest = session.newest.max(header.sent);
        // The next key is there long before its first packet, which then need not pass for a new sender's.
        let follows = header.number as u32 >= 1 << 31 && !session.is_followed;
        session.is_followed |= follows;
        if place == SessionLookup::New || follows {
            self.remember_new(place, header, follows, now);
        }
    }

    #[cold]
    fn remember_new(&mut self, place: SessionLookup, header: &Header, follows: bool, now: u64) {
        // One that was derived for a forged packet may still be there.
        if let Some(new) = self.new.take().filter(|_| place == SessionLookup::New) {
            self.remember(new, now);
        }
        if let Some(epoch) = header.epoch().checked_add(1).filter(|_| follows)
            && self.position(header.session, epoch).is_none()
        {
            let mut next = self.session(header.session, epoch);
            next.heard = now;
            self.remember(next, now);
        }
    }

    /// Remembers a session, in the place of one that was not heard of for long enough, if need be. As that is
    /// forgotten, nothing is taken any more that was sent no later than what it sent.
    fn remember(&mut self, session: Session, now: u64) {
        if self.known.len() < MOST_SESSIONS {
            self.known.push(session);
        } else if let Some(at) = self.unheard(now) {
            self.barrier = self.barrier.max(self.known[at].newest);
            self.known[at] = session;
        }
    }

    /// The one unheard for longest, and for so long that no packets that others send now were sent, by their own clocks,
    /// earlier than its last.
    fn unheard(&self, now: u64) -> Option<usize> {
        let silence = |at: usize| now.saturating_sub(self.known[at].heard);
        let least = 2 * self.clock_error + UNITS_PER_S;
        let at = (0..self.known.len()).max_by_key(|at| silence(*at))?;
        (silence(at) >= least).then_some(at)
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}
