//! The neighbours of the router's ports: who is asked for, who is known, and which packets wait for an answer. (RFC 1122
//! section 2.3.2, RFC 4861 section 7.3.) It reads no clock and sends nothing: who has it does.
//!
//! Packets wait by neighbour, so that none waits for another's. All that strangers can make of it is bounded.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taut_wire::Mac;

/// A neighbour: number of the port that it is behind, and its address.
pub(super) type At = (u8, IpAddr);

/// A frame that waits, and number of the port that it came in through.
pub(super) type Waiting = (u8, Vec<u8>);

/// Time from one question to the next one, and how many there are before a neighbour is given up.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 3;
/// Time after an answer for which a neighbour is taken to be there; then it is asked again (RFC 4861 section 10).
const REACHABLE: Duration = Duration::from_secs(30);
/// Time for which nobody asks for a neighbour that did not answer.
const FAILED: Duration = Duration::from_secs(1);
/// Time that never comes, for neighbours that nobody asks for.
const EVER: Duration = Duration::from_secs(1 << 30);
/// Packets that wait for one neighbour at most; the oldest goes first (RFC 1122 section 2.3.2.2 asks for one).
pub(super) const MOST_WAITING: usize = 8;
/// Neighbours that are not known, asked for or given up, at most: a scan of a large network takes no more.
const MOST_UNKNOWN: usize = 1024;
/// Neighbours that are known at most.
const MOST_KNOWN: usize = 16_384;

#[derive(Debug)]
enum State {
    /// Asked for, so many times; packets wait.
    Asked {
        questions: u32,
        waiting: VecDeque<Waiting>,
    },
    /// There; asked once more, so many times, when it was not heard of for long.
    Known { mac: Mac, questions: u32 },
    /// Did not answer.
    Failed,
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    /// Time at which something is to be done about it.
    due: Instant,
    /// Whether somebody has set its address: nobody asks for it, and nobody else is believed.
    is_fixed: bool,
}

/// Answer to who has a packet for a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It is known.
    Known(Mac),
    /// The packet waits, and the neighbour is to be asked for.
    Ask,
    /// The packet waits, and the neighbour has been asked for. A packet that waited for longest may have gone for it.
    Waits { pushed_out: bool },
    /// It did not answer lately.
    Failed,
    /// Too many are asked for already.
    Crowded,
}

/// Something that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The neighbour is to be asked for: all, or the one that was there.
    Ask(At, Option<Mac>),
    /// The neighbour did not answer; these packets have waited for it.
    GivenUp(At, Vec<Waiting>),
    /// The neighbour that was known is no more.
    Gone(At),
    /// These packets have waited for neighbours that are cut off.
    Stranded(Vec<Waiting>),
}

/// What an answer has brought about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    /// Whether the neighbour has another MAC address than it had, or had none.
    pub is_new: bool,
    /// Packets that have waited for it, in order.
    pub waited: Vec<Waiting>,
}

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: HashMap<At, Neighbour>,
    unknown: usize,
    /// Nothing is due before; it may be earlier than it has to.
    next_due: Option<Instant>,
}

impl Neighbours {
    /// Keeps a frame until the neighbour is known, unless it is.
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

    /// Asks for a neighbour that nothing is known about, without a packet.
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

    /// The MAC address of a neighbour that is known.
    pub fn mac(&self, at: At) -> Option<Mac> {
        match self.all.get(&at)?.state {
            State::Known { mac, .. } => Some(mac),
            _ => None,
        }
    }

    /// The neighbours that are known.
    pub fn known(&self) -> impl Iterator<Item = At> + '_ {
        let known = |neighbour: &Neighbour| matches!(neighbour.state, State::Known { .. });
        let all = self.all.iter();
        all.filter(move |(_, it)| known(it)).map(|(at, _)| *at)
    }

    /// Number of neighbours that are known, and of others.
    pub fn count(&self) -> (usize, usize) {
        (self.all.len() - self.unknown, self.unknown)
    }

    /// Whether anything is known or asked about a neighbour.
    pub fn has(&self, at: At) -> bool {
        self.all.contains_key(&at)
    }

    /// Takes note of a neighbour's address. One that nobody has asked for is taken note of where `may_be_new`.
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

    /// Takes note of a neighbour's address that somebody has set.
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

    /// Forgets a neighbour whose address somebody has set; whether there was one.
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

    /// Forgets the neighbours behind a port that is cut off: those that were known, and frames that wait for others.
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

    /// Asks anew for the neighbours behind a port that is no longer cut off: questions until now were lost.
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

    /// Does what is due by now.
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
    fn packets_wait_by_neighbour_for_an_answer_and_leave_in_order() {
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
        // The same once more is nothing new; another address is.
        assert!(!neighbours.learn(at(1), MAC, false, now).unwrap().is_new);
        let other = Mac([2, 0, 0, 0, 0, 8]);
        assert!(neighbours.learn(at(1), other, false, now).unwrap().is_new);
        // Nobody has asked for this one.
        assert_eq!(neighbours.learn(at(9), MAC, false, now), None);
        assert!(neighbours.learn(at(9), MAC, true, now).unwrap().is_new);
    }

    #[test]
    fn who_does_not_answer_is_given_up_and_asked_for_again_later() {
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
    fn who_was_known_is_asked_again_and_goes_when_there_is_no_answer() {
        let mut neighbours = Neighbours::default();
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        neighbours.learn(at(1), MAC, true, begun).unwrap();
        assert_eq!(neighbours.tick(later(29)), []);
        assert_eq!(neighbours.tick(later(30)), [Due::Ask(at(1), Some(MAC))]);
        // An answer in time.
        neighbours.learn(at(1), MAC, false, later(31)).unwrap();
        assert_eq!(neighbours.tick(later(60)), []);
        for second in [61, 62, 63] {
            assert_eq!(neighbours.tick(later(second)), [Due::Ask(at(1), Some(MAC))]);
            // It is still used meanwhile.
            assert_eq!(
                neighbours.want(at(1), (9, b""), later(second)),
                Wanted::Known(MAC)
            );
        }
        assert_eq!(neighbours.tick(later(64)), [Due::Gone(at(1))]);
        assert!(!neighbours.has(at(1)));
    }

    #[test]
    fn a_port_that_is_no_longer_cut_off_has_its_neighbours_asked_for_at_once() {
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
        // From then on as ever, with all its questions.
        for second in [1.5, 2.5] {
            let due = neighbours.tick(later(second));
            assert!(due.contains(&Due::Ask(at(1), None)), "{due:?}");
        }
        let given_up = Due::GivenUp(at(1), vec![(9, b"a".to_vec())]);
        assert!(neighbours.tick(later(3.5)).contains(&given_up));
        // Nor is one that was given up passed over any longer.
        neighbours.join(1, later(3.6));
        assert_eq!(neighbours.want(at(1), (9, b"b"), later(3.6)), Wanted::Ask);
        assert_eq!(neighbours.count(), (1, 2));
    }

    #[test]
    fn a_scan_takes_bounded_memory() {
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
        // Who answers makes room.
        neighbours.learn(far(1), MAC, false, now).unwrap();
        assert_eq!(neighbours.want(far(u32::MAX), (9, b""), now), Wanted::Ask);
        for n in 0..2 * MOST_KNOWN as u32 {
            neighbours.learn(far(1 << 20 | n), MAC, true, now);
        }
        assert_eq!(neighbours.all.len() - neighbours.unknown, MOST_KNOWN);
    }
}
