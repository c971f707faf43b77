//! The senders that a receiver accepts: known ones, and new ones that cannot be replays and do not arrive too fast.
//!
//! A one-way link has no handshake, so a receiver that has just started cannot know which packets an earlier one
//! accepted. It therefore refuses all packets sent before it began, by the time in the header. An earlier receiver
//! accepted only packets with a send time of at most `clock_error` after its own time. This receiver accepts only send
//! times later than `clock_error` after its start. No packet is thus accepted twice, whatever the sender's clock shows.

use super::cipher::Cipher;
use super::clock::UNITS_PER_S;
use super::header::{Header, Mode};
use super::key::Master;
use super::window::Window;
use taut_function::budget::Budget;

/// The number of sessions with keys that a receiver stores.
pub(super) const MOST_SESSIONS: usize = 64;

/// The limit on keys that are derived for new senders: per second, and as a burst. Any sender can cause such a
/// derivation.
const NEW_PER_S: u64 = 1024;
pub(super) const NEW_AT_ONCE: u64 = 64;

/// The encryption state of one sender's packets with one key.
pub(super) struct Session {
    pub(super) id: [u8; 9],
    /// The upper half of the 64-bit numbers of the packets that are encrypted with this key.
    pub(super) epoch: u32,
    pub(super) cipher: Cipher,
    pub(super) window: Window,
    /// The time at which the session's latest packet arrived, by the receiver's clock.
    heard: u64,
    /// The latest send time of the session's packets, by the sender's clock.
    newest: u64,
    /// True if the session with the key of the next epoch has been created.
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

/// The result of a lookup for the session of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionLookup {
    Known(usize),
    /// The session is new: its key was derived, and it is stored with its first decrypted packet.
    New,
}

/// The error that there are too many senders, or that too many new senders appear at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The result of comparing a packet's send time with the earliest and the latest accepted time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    InTime,
    /// The packet was sent before this receiver began, or no later than the latest packet of a forgotten sender.
    TooEarly,
    /// The packet was sent by a clock that is ahead by more than the allowed error.
    Ahead,
}

pub(super) struct Senders {
    master: Master,
    mode: Mode,
    byte_wise: bool,
    /// The allowed difference between clocks, in the header's units of time.
    clock_error: u64,
    /// The send time up to which packets are refused because they may be replays.
    barrier: u64,
    known: Vec<Session>,
    new: Option<Session>,
    /// The budget for deriving keys of new senders, at most [`NEW_PER_S`] per second.
    budget: Budget,
}

impl Senders {
    pub(super) fn new(master: Master, mode: Mode, byte_wise: bool, clock_error: u64) -> Self {
        Self {
            master,
            mode,
            byte_wise,
            clock_error,
            // The receiver accepts no packet before `begin` sets another barrier.
            barrier: u64::MAX,
            known: Vec::with_capacity(MOST_SESSIONS),
            new: None,
            budget: Budget::new(NEW_AT_ONCE, UNITS_PER_S / NEW_PER_S, 0),
        }
    }

    /// Begins to accept packets: those with a send time later than `now` plus the clock error.
    pub(super) fn begin(&mut self, now: u64) {
        self.barrier = now + self.clock_error;
    }

    /// Compares the send time with the last clock reading; only a time that seems ahead causes another reading.
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

    /// Returns the session of a packet. An unknown session costs the derivation of a key, so the rate of derivations is
    /// limited.
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

    /// Records that a packet was decrypted, and stores its session. In GCM only a sender with the key can cause this.
    #[inline]
    pub(super) fn accept(&mut self, place: SessionLookup, header: &Header, now: u64) {
        let Some(session) = self.at(place) else {
            return;
        };
        session.window.see(header.number);
        session.heard = now;
        session.newest = session.newest.max(header.sent);
        // The next key is derived long before its first packet, so that this packet does not count as that of a new
        // sender.
        let follows = header.number as u32 >= 1 << 31 && !session.is_followed;
        session.is_followed |= follows;
        if place == SessionLookup::New || follows {
            self.remember_new(place, header, follows, now);
        }
    }

    #[cold]
    fn remember_new(&mut self, place: SessionLookup, header: &Header, follows: bool, now: u64) {
        // `new` may contain a session derived for a forged packet. It is stored only if the session of this packet is
        // new.
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

    /// Stores a session, if necessary in place of one that was idle for long enough. The receiver then refuses all
    /// packets sent no later than the last one of the removed session.
    fn remember(&mut self, session: Session, now: u64) {
        if self.known.len() < MOST_SESSIONS {
            self.known.push(session);
        } else if let Some(at) = self.unheard(now) {
            self.barrier = self.barrier.max(self.known[at].newest);
            self.known[at] = session;
        }
    }

    /// Returns the session that was idle for longest, if it may be replaced. The idle time must be so long that every
    /// packet sent now has a later send time than the session's last packet, for any clock error within the limit.
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
