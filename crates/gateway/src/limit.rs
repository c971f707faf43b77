//! The rate limits of bearers, and the meters that enforce them: bearers that name the same meter share its rate.

use super::change::Change;
use super::policing::{METERS_PER_BEARER, Meters, UNMETERED};
use super::refusal::Refused;
use std::collections::HashMap;
use std::num::NonZeroU64;
use taut_function::meter::cost;

/// The identity of a meter: a QoS enforcement rule of a session, and a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeterName {
    /// The SEID of the rule's session.
    pub session: u64,
    /// The identifier of the rule in its session.
    pub rule: u32,
    /// True for the meter of packets from the user.
    pub is_uplink: bool,
}

/// A rate limit; all limits that name the same meter share its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The meter that limits the packets.
    pub meter: MeterName,
    /// The rate of user packets, thousands of bits per second.
    pub kbps: NonZeroU64,
}

/// The rate limits of a bearer's packets.
pub type Limits = [Option<Limit>; METERS_PER_BEARER];

/// The meters by number, the number of bearers that use each, and the meters of each bearer.
#[derive(Debug)]
pub(super) struct Limited {
    most: usize,
    numbers: HashMap<MeterName, u32>,
    /// For each meter number, at index number minus 1: the limit, and the number of bearers that use the meter. None if
    /// the number is free.
    users: Vec<Option<(Limit, u32)>>,
    free: Vec<u32>,
    bearers: HashMap<u64, Meters>,
}

/// An assigned meter, and its earlier rate if the assignment changed the rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub number: u32,
    before: Option<NonZeroU64>,
}

impl Limited {
    /// Creates the state for the meters of at most `bearers` bearers.
    pub fn new(bearers: usize) -> Self {
        Self {
            most: bearers * METERS_PER_BEARER,
            numbers: HashMap::new(),
            users: Vec::new(),
            free: Vec::new(),
            bearers: HashMap::new(),
        }
    }

    /// Returns the key and the meters of each bearer that has meters.
    pub fn bearers(&self) -> impl Iterator<Item = (u64, Meters)> {
        self.bearers.iter().map(|(key, meters)| (*key, *meters))
    }

    pub fn meters_of(&self, key: u64) -> Meters {
        self.bearers.get(&key).copied().unwrap_or(UNMETERED)
    }

    /// Assigns meters to a bearer; returns the bearer's earlier meters.
    pub fn assign(&mut self, key: u64, meters: Meters) -> Meters {
        let before = match meters {
            UNMETERED => self.bearers.remove(&key),
            meters => self.bearers.insert(key, meters),
        };
        before.unwrap_or(UNMETERED)
    }

    /// Adds one to the number of bearers that use a meter. The meter restarts if its rate has changed. Without the
    /// restart, the time that packets have used up at the old rate would still count.
    pub fn take(&mut self, limit: Limit, changes: &mut Vec<Change>) -> Result<Taken, Refused> {
        let mut begin = |number| {
            let cost = cost(limit.kbps);
            changes.push(Change::Meter { number, cost });
        };
        if let Some(number) = self.numbers.get(&limit.meter).copied()
            && let Some(Some((known, users))) = self.users.get_mut(number as usize - 1)
        {
            *users += 1;
            let before = (known.kbps != limit.kbps).then_some(known.kbps);
            if before.is_some() {
                known.kbps = limit.kbps;
                begin(number);
            }
            return Ok(Taken { number, before });
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.users.len() < self.most => {
                self.users.push(None);
                self.users.len() as u32
            }
            None => return Err(Refused::TooManyMeters(self.most)),
        };
        self.users[number as usize - 1] = Some((limit, 1));
        self.numbers.insert(limit.meter, number);
        begin(number);
        Ok(Taken {
            number,
            before: None,
        })
    }

    /// Undoes the assignment of a meter by [`Self::take`], including a changed rate.
    pub fn give_back(&mut self, taken: Taken) {
        let place = (taken.number as usize).wrapping_sub(1);
        if let Some(kbps) = taken.before
            && let Some(Some((limit, _))) = self.users.get_mut(place)
        {
            limit.kbps = kbps;
        }
        self.release(taken.number);
    }

    /// Subtracts one from the number of bearers that use the meter of this number.
    pub fn release(&mut self, number: u32) {
        let place = (number as usize).wrapping_sub(1);
        let Some(entry) = self.users.get_mut(place) else {
            return;
        };
        if let Some((limit, users)) = entry {
            *users -= 1;
            if *users == 0 {
                self.numbers.remove(&limit.meter);
                self.free.push(number);
                *entry = None;
            }
        }
    }

    /// Returns the rate limits of a bearer.
    pub fn limits_of(&self, key: u64) -> Limits {
        self.meters_of(key).map(|number| {
            let place = (number as usize).checked_sub(1)?;
            Some((*self.users.get(place)?)?.0)
        })
    }

    /// Returns the cost of a byte in the meter with the given number; none if the number has no meter.
    pub fn cost_of(&self, number: u32) -> Option<u64> {
        let place = (number as usize).checked_sub(1)?;
        let (limit, _) = (*self.users.get(place)?)?;
        Some(cost(limit.kbps))
    }

    /// Returns the number of meter names and the number of assigned meter numbers.
    pub fn in_use(&self) -> (usize, usize) {
        (self.numbers.len(), self.users.len())
    }
}
