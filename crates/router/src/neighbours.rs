//! The neighbours of the router's interfaces: the requests for their MAC addresses, the addresses, and the packets that
//! wait for them. (RFC 1122 section 2.3.2, RFC 4861 section 7.3.) The caller of this module reads the clock and sends
//! the requests.
//!
//! Packets wait in a queue per neighbour, so that no packet waits because of another neighbour. All state that
//! untrusted sources can create is bounded.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taut_wire::Mac;

/// A neighbour: the number of the interface on whose link it is, and its IP address.
pub(super) type At = (u8, IpAddr);

/// A frame that waits for a neighbour's MAC address, and the number of its ingress interface.
pub(super) type Waiting = (u8, Vec<u8>);

/// The time between two requests for a neighbour's MAC address. The next constant is the number of requests before a
/// neighbour counts as unreachable.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 3;
/// The time after a neighbour's reply for which it counts as reachable; then its MAC address is requested again (RFC
/// 4861 section 10).
const REACHABLE: Duration = Duration::from_secs(30);
/// The time after which a neighbour that did not reply may get another request.
const FAILED: Duration = Duration::from_secs(1);
/// A time that never passes, for neighbours whose MAC addresses are not requested.
const EVER: Duration = Duration::from_secs(1 << 30);
/// The limit on packets that wait for one neighbour; the oldest packet is dropped first (RFC 1122 section 2.3.2.2: at
/// least one packet should wait).
pub(super) const MOST_WAITING: usize = 8;
/// The limit on unresolved neighbours, whether they are being requested or count as unreachable. It bounds the number
/// of entries that a scan of a large network creates.
const MOST_UNKNOWN: usize = 1024;
/// The limit on neighbours with known MAC addresses.
const MOST_KNOWN: usize = 16_384;

#[derive(Debug)]
enum State {
    /// The neighbour has not replied to `questions` requests for its MAC address; packets for it are in `waiting`.
    Asked {
        questions: u32,
        waiting: VecDeque<Waiting>,
    },
    /// The neighbour's MAC address is known. After [`REACHABLE`] without a message from the neighbour, its MAC address
    /// is requested again; `questions` counts these requests.
    Known { mac: Mac, questions: u32 },
    /// The neighbour did not reply to requests for its MAC address.
    Failed,
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    /// The time at which the neighbour's timer expires.
    due: Instant,
    /// True if the neighbour's MAC address is configured: the address is never requested, and replies do not change it.
    is_fixed: bool,
}

/// The result of looking up the MAC address of the neighbour to which a packet is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The neighbour's MAC address is known.
    Known(Mac),
    /// The packet waits, and the caller has to request the neighbour's MAC address.
    Ask,
    /// The packet waits, and the neighbour's MAC address has been requested already. `pushed_out` is true if the oldest
    /// waiting packet was dropped to make space.
    Waits { pushed_out: bool },
    /// The neighbour did not reply to recent requests, so the packet is not stored.
    Failed,
    /// The packet is not stored, because too many neighbours are unresolved already.
    Crowded,
}

/// An action for the caller, due because a timer has expired or a link has failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The neighbour's MAC address has to be requested: by unicast to the last known MAC address, or by multicast if
    /// that is none.
    Ask(At, Option<Mac>),
    /// The neighbour did not reply; the listed packets have waited for its MAC address.
    GivenUp(At, Vec<Waiting>),
    /// The neighbour's MAC address was known, and the neighbour no longer replies.
    Gone(At),
    /// Packets that have waited for neighbours behind an interface whose link has failed.
    Stranded(Vec<Waiting>),
}

/// The effects of recording a neighbour's MAC address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    /// True if the neighbour's MAC address is new or has changed.
    pub is_new: bool,
    /// The packets that have waited for the neighbour, in order of arrival.
    pub waited: Vec<Waiting>,
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: HashMap<At, Neighbour>,
    unknown: usize,
    /// A lower bound for the time at which the next timer of a neighbour expires; none if there is no timer.
    next_due: Option<Instant>,
}

impl Neighbours {
    /// Returns the MAC address of a known neighbour, or else stores the frame, with its ingress interface, until the
    /// neighbour is known.
    pub fn want(&mut self, at: At, (from, frame): (u8, &[u8]), now: Instant) -> Wanted {
        match self.all.get_mut(&at).map(|neighbour| &mut neighbour.state) {
            Some(State::Known { mac, .. }) => return Wanted::Known(*mac),
            Some(State::Failed) => return Wanted::Failed,
            Some(State::Asked { waiting, .. }) => {
                let pushed_out = waiting.len() >= MOST_WAITING;
                if pushed_out {
                    waiting.pop_front();
                }
                waiting.push_back((from, frame.to_vec()));
                return Wanted::Waits { pushed_out };
            }
            None => {}
        }
        if self.unknown >= MOST_UNKNOWN {
            return Wanted::Crowded;
        }
        let state = State::Asked {
            questions: 1,
            waiting: VecDeque::from([(from, frame.to_vec())]),
        };
        self.unknown += 1;
        self.put(at, state, now + BETWEEN_QUESTIONS);
        Wanted::Ask
    }

    /// Starts requests for the MAC address of an unknown neighbour for which no packet waits.
    pub fn ask(&mut self, at: At, now: Instant) {
        if self.unknown < MOST_UNKNOWN && !self.has(at) {
            let state = State::Asked {
                questions: 0,
                waiting: VecDeque::new(),
            };
            self.unknown += 1;
            self.put(at, state, now);
        }
    }

    /// Returns the MAC address of a known neighbour.
    pub fn mac(&self, at: At) -> Option<Mac> {
        match self.all.get(&at)?.state {
            State::Known { mac, .. } => Some(mac),
            _ => None,
        }
    }

    /// Returns the neighbours with known MAC addresses.
    pub fn known(&self) -> impl Iterator<Item = At> + '_ {
        let known = |neighbour: &Neighbour| matches!(neighbour.state, State::Known { .. });
        let all = self.all.iter();
        all.filter(move |(_, it)| known(it)).map(|(at, _)| *at)
    }

    /// Returns the number of known neighbours and the number of unresolved neighbours.
    pub fn count(&self) -> (usize, usize) {
        (self.all.len() - self.unknown, self.unknown)
    }

    /// Returns true if there is an entry for a neighbour.
    pub fn has(&self, at: At) -> bool {
        self.all.contains_key(&at)
    }

    /// Records a neighbour's MAC address. A neighbour without an entry (no request was sent for its address) is
    /// recorded only if `may_be_new` is true.
    pub fn learn(&mut self, at: At, mac: Mac, may_be_new: bool, now: Instant) -> Option<Learnt> {
        if self
            .all
            .get(&at)
            .is_some_and(|neighbour| neighbour.is_fixed)
        {
            return None;
        }
        let has_room = self.all.len() - self.unknown < MOST_KNOWN;
        let before = self.all.get_mut(&at).map(|neighbour| &mut neighbour.state);
        let (is_new, was_unknown, waited) = match before {
            None if !may_be_new || !has_room => return None,
            None => (true, false, Vec::new()),
            Some(State::Asked { waiting, .. }) => (true, true, waiting.drain(..).collect()),
            Some(State::Failed) => (true, true, Vec::new()),
            Some(State::Known { mac: before, .. }) => (*before != mac, false, Vec::new()),
        };
        self.unknown -= usize::from(was_unknown);
        self.put(at, State::Known { mac, questions: 0 }, now + REACHABLE);
        Some(Learnt { is_new, waited })
    }

    /// Records the configured MAC address of a neighbour, which replaces a learned one.
    pub fn fix(&mut self, at: At, mac: Mac, now: Instant) -> Option<Learnt> {
        if let Some(neighbour) = self.all.get_mut(&at) {
            neighbour.is_fixed = false;
        }
        let learnt = self.learn(at, mac, true, now)?;
        if let Some(neighbour) = self.all.get_mut(&at) {
            neighbour.is_fixed = true;
            neighbour.due = now + EVER;
        }
        Some(learnt)
    }

    /// Removes a neighbour whose MAC address is configured; returns true if there was one.
    pub fn unfix(&mut self, at: At) -> bool {
        let is_fixed = self
            .all
            .get(&at)
            .is_some_and(|neighbour| neighbour.is_fixed);
        if is_fixed {
            self.all.remove(&at);
        }
        is_fixed
    }

    /// Removes the neighbours behind the interface `port`, whose link has failed. Returns the neighbours that were
    /// known, and the frames that waited for the others. Neighbours with a configured MAC address stay.
    pub fn cut_off(&mut self, port: u8) -> (Vec<At>, Vec<Waiting>) {
        let (mut known, mut waited) = (Vec::new(), Vec::new());
        let mut gone = 0;
        self.all.retain(|at, neighbour| {
            if at.0 != port || neighbour.is_fixed {
                return true;
            }
            match &mut neighbour.state {
                State::Known { .. } => known.push(*at),
                State::Asked { waiting, .. } => {
                    waited.extend(waiting.drain(..));
                    gone += 1;
                }
                State::Failed => gone += 1,
            }
            false
        });
        self.unknown -= gone;
        (known, waited)
    }

    /// Schedules new requests to the neighbours behind the interface `port` when the link of the interface returns,
    /// because earlier requests were lost.
    pub fn join(&mut self, port: u8, now: Instant) {
        let mut gone = 0;
        self.all.retain(|at, neighbour| {
            match &mut neighbour.state {
                State::Asked { questions, .. } if at.0 == port => {
                    *questions = 0;
                    neighbour.due = now;
                }
                State::Failed if at.0 == port => {
                    gone += 1;
                    return false;
                }
                _ => {}
            }
            true
        });
        self.unknown -= gone;
        self.next_due = Some(now);
    }

    #[cfg(test)]
    pub fn forget(&mut self, at: At) {
        self.all.remove(&at);
    }

    /// Processes the expired timers of all neighbours; returns the actions for the caller.
    pub fn tick(&mut self, now: Instant) -> Vec<Due> {
        if self.next_due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let mut due = Vec::new();
        let mut gone = 0;
        self.all.retain(|at, neighbour| {
            if neighbour.due > now {
                return true;
            }
            match &mut neighbour.state {
                State::Asked { questions, .. } if *questions < QUESTIONS => {
                    *questions += 1;
                    neighbour.due = now + BETWEEN_QUESTIONS;
                    due.push(Due::Ask(*at, None));
                    true
                }
                State::Asked { waiting, .. } => {
                    due.push(Due::GivenUp(*at, waiting.drain(..).collect()));
                    neighbour.state = State::Failed;
                    neighbour.due = now + FAILED;
                    true
                }
                State::Known { mac, questions } if *questions < QUESTIONS => {
                    *questions += 1;
                    neighbour.due = now + BETWEEN_QUESTIONS;
                    due.push(Due::Ask(*at, Some(*mac)));
                    true
                }
                State::Known { .. } => {
                    due.push(Due::Gone(*at));
                    false
                }
                State::Failed => {
                    gone += 1;
                    false
                }
            }
        });
        self.unknown -= gone;
        self.next_due = self.all.values().map(|neighbour| neighbour.due).min();
        due
    }

    fn put(&mut self, at: At, state: State, due: Instant) {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        let is_fixed = false;
        self.all.insert(
            at,
            Neighbour {
                state,
                due,
                is_fixed,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    fn at(last: u8) -> At {
        (1, IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn packets_wait_for_neighbour_resolution_and_leave_in_order() {
        let mut neighbours = Neighbours::default();
        let now = Instant::now();
        assert_eq!(neighbours.want(at(1), (9, b"a"), now), Wanted::Ask);
        assert_eq!(neighbours.want(at(2), (9, b"x"), now), Wanted::Ask);
        let waits = |pushed_out| Wanted::Waits { pushed_out };
        for more in 1..MOST_WAITING {
            assert_eq!(
                neighbours.want(at(1), (9, &[more as u8]), now),
                waits(false)
            );
        }
        assert_eq!(neighbours.want(at(1), (9, b"z"), now), waits(true));
        let learnt = neighbours.learn(at(1), MAC, false, now).unwrap();
        assert!(learnt.is_new);
        assert_eq!(learnt.waited.len(), MOST_WAITING);
        assert_eq!(
            (learnt.waited[0].1[0], learnt.waited[MOST_WAITING - 1].1[0]),
            (1, b'z')
        );
        assert_eq!(neighbours.want(at(1), (9, b"a"), now), Wanted::Known(MAC));
        // The same address again is not new; a different address is.
        assert!(!neighbours.learn(at(1), MAC, false, now).unwrap().is_new);
        let other = Mac([2, 0, 0, 0, 0, 8]);
        assert!(neighbours.learn(at(1), other, false, now).unwrap().is_new);
        // This neighbour was not requested.
        assert_eq!(neighbours.learn(at(9), MAC, false, now), None);
        assert!(neighbours.learn(at(9), MAC, true, now).unwrap().is_new);
    }

    #[test]
    fn a_neighbour_without_reply_fails_and_is_requested_later() {
        let mut neighbours = Neighbours::default();
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(neighbours.want(at(1), (9, b"a"), begun), Wanted::Ask);
        assert_eq!(neighbours.tick(begun), []);
        assert_eq!(neighbours.tick(later(1)), [Due::Ask(at(1), None)]);
        assert_eq!(neighbours.tick(later(2)), [Due::Ask(at(1), None)]);
        let given_up = Due::GivenUp(at(1), vec![(9, b"a".to_vec())]);
        assert_eq!(neighbours.tick(later(3)), [given_up]);
        assert_eq!(neighbours.want(at(1), (9, b"b"), later(3)), Wanted::Failed);
        assert_eq!(neighbours.tick(later(4)), []);
        assert_eq!(neighbours.want(at(1), (9, b"c"), later(4)), Wanted::Ask);
        assert_eq!(neighbours.unknown, 1);
    }

    #[test]
    fn a_known_neighbour_is_probed_and_deleted_if_unresponsive() {
        let mut neighbours = Neighbours::default();
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        neighbours.learn(at(1), MAC, true, begun).unwrap();
        assert_eq!(neighbours.tick(later(29)), []);
        assert_eq!(neighbours.tick(later(30)), [Due::Ask(at(1), Some(MAC))]);
        // The reply comes in time.
        neighbours.learn(at(1), MAC, false, later(31)).unwrap();
        assert_eq!(neighbours.tick(later(60)), []);
        for second in [61, 62, 63] {
            assert_eq!(neighbours.tick(later(second)), [Due::Ask(at(1), Some(MAC))]);
            // The neighbour's address is still used during the requests.
            assert_eq!(
                neighbours.want(at(1), (9, b""), later(second)),
                Wanted::Known(MAC)
            );
        }
        assert_eq!(neighbours.tick(later(64)), [Due::Gone(at(1))]);
        assert!(!neighbours.has(at(1)));
    }

    #[test]
    fn unresolved_neighbours_are_requested_immediately_when_their_link_returns() {
        let mut neighbours = Neighbours::default();
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs_f64(seconds);
        let elsewhere = (2, IpAddr::from([192, 0, 2, 1]));
        for at in [at(1), at(2), elsewhere] {
            assert_eq!(neighbours.want(at, (9, b"a"), begun), Wanted::Ask);
        }
        neighbours.learn(at(2), MAC, false, begun).unwrap();
        neighbours.join(1, later(0.5));
        assert_eq!(neighbours.tick(later(0.5)), [Due::Ask(at(1), None)]);
        // From then on, the neighbour gets all its requests as usual.
        for second in [1.5, 2.5] {
            let due = neighbours.tick(later(second));
            assert!(due.contains(&Due::Ask(at(1), None)), "{due:?}");
        }
        let given_up = Due::GivenUp(at(1), vec![(9, b"a".to_vec())]);
        assert!(neighbours.tick(later(3.5)).contains(&given_up));
        // After its link has returned, a neighbour that did not reply may be requested again immediately.
        neighbours.join(1, later(3.6));
        assert_eq!(neighbours.want(at(1), (9, b"b"), later(3.6)), Wanted::Ask);
        assert_eq!(neighbours.count(), (1, 2));
    }

    #[test]
    fn neighbour_memory_stays_bounded_during_an_address_scan() {
        let mut neighbours = Neighbours::default();
        let now = Instant::now();
        let far = |n: u32| (0, IpAddr::from(n.to_be_bytes()));
        for n in 0..MOST_UNKNOWN as u32 {
            assert_eq!(neighbours.want(far(n), (9, b""), now), Wanted::Ask);
        }
        assert_eq!(
            neighbours.want(far(u32::MAX), (9, b""), now),
            Wanted::Crowded
        );
        // A neighbour that replies frees space.
        neighbours.learn(far(1), MAC, false, now).unwrap();
        assert_eq!(neighbours.want(far(u32::MAX), (9, b""), now), Wanted::Ask);
        for n in 0..2 * MOST_KNOWN as u32 {
            neighbours.learn(far(1 << 20 | n), MAC, true, now);
        }
        assert_eq!(neighbours.all.len() - neighbours.unknown, MOST_KNOWN);
    }
}
