//! The next hops in use. Each next hop counts the routes that use it. Its number is reused when no route and no worker
//! uses the next hop.

use super::key::{InUse, Key, key};
use super::table::Table;
use super::{Control, Retiring};
use crate::group::Group;
use crate::hop::{Hop, Hops, MOST_GROUPS, MOST_HOPS};
use crate::in_kernel::LONGEST_RUN;
use crate::neighbours::At;
use crate::refusal::Refused;
use crate::text::{Target, Way};
use std::collections::HashMap;
use std::time::Instant;
use taut_function::mix::Seeded;
use taut_lpm::NextHop;
use taut_wire::Mac;

impl Control {
    /// Returns the next hop of a route's target, and counts one more route that uses it.
    pub(super) fn take(&mut self, target: &Target) -> Result<NextHop, Refused> {
        self.take_key(key(target))
    }

    pub(super) fn take_key(&mut self, key: Key) -> Result<NextHop, Refused> {
        if let Some(in_use) = self.in_use.get_mut(&key) {
            in_use.uses += 1;
            return Ok(in_use.number);
        }
        let number = self.free.pop().ok_or(Refused::TooManyHops(MOST_HOPS - 1))?;
        let hop = match &key {
            Key::Neighbour((port, _)) => match self.known(&key) {
                Some(mac) => Hop::Forward { port: *port, mac },
                None => Hop::Unresolved,
            },
            Key::Connected => Hop::Unresolved,
            Key::Local => Hop::Local,
            Key::Blackhole => Hop::Blackhole,
            Key::Unreachable => Hop::Unreachable,
            Key::Prohibited => Hop::Prohibited,
            Key::Group(members) => match self.take_group(members) {
                Ok(group) => Hop::Group(group),
                Err(e) => {
                    self.free.push(number);
                    return Err(e);
                }
            },
        };
        self.hops.set(number, hop);
        let before = self.sent_by(number);
        self.in_use.insert(
            key,
            InUse {
                number,
                uses: 1,
                before,
            },
        );
        Ok(number)
    }

    fn known(&self, key: &Key) -> Option<Mac> {
        match key {
            Key::Neighbour(at) => self.neighbours.mac(*at),
            _ => None,
        }
    }

    fn take_group(&mut self, members: &[Way]) -> Result<u8, Refused> {
        let number = self
            .free_groups
            .pop()
            .ok_or(Refused::TooManyGroups(MOST_GROUPS))?;
        for (taken, member) in members.iter().enumerate() {
            if let Err(e) = self.take_key(Key::Neighbour(member.at)) {
                for member in &members[..taken] {
                    self.give_back_key(&Key::Neighbour(member.at));
                }
                self.free_groups.push(number);
                return Err(e);
            }
        }
        let members_of = members
            .iter()
            .map(|way| (self.neighbours.mac(way.at).is_some(), way.weight));
        let group = Group::new(members_of);
        write_group(&self.hops, number, &group, members, &self.in_use);
        self.groups.insert(members.to_vec(), (number, group));
        Ok(number)
    }

    /// Sets the treatment `hop` of packets to a neighbour, in the neighbour's own next hop and in the groups that
    /// contain the neighbour.
    pub(super) fn lead_to(&mut self, at: At, hop: Hop) {
        if let Some(in_use) = self.in_use.get(&Key::Neighbour(at)) {
            self.hops.set(in_use.number, hop);
        }
        let is_there = matches!(hop, Hop::Forward { .. });
        for (members, (number, group)) in &mut self.groups {
            if let Some(member) = members.iter().position(|member| member.at == at) {
                group.set(member, is_there);
                write_group(&self.hops, *number, group, members, &self.in_use);
            }
        }
    }

    pub(super) fn give_back(&mut self, target: &Target) {
        self.give_back_key(&key(target));
    }

    pub(super) fn give_back_key(&mut self, key: &Key) {
        let Some(in_use) = self.in_use.get_mut(key) else {
            return;
        };
        in_use.uses -= 1;
        if in_use.uses > 0 {
            return;
        }
        let number = in_use.number;
        self.in_use.remove(key);
        self.left.push(number);
        if let Key::Group(members) = key {
            for member in members {
                self.give_back_key(&Key::Neighbour(member.at));
            }
        }
    }

    /// Advances the reuse of memory after a grace period: sends a request to the workers, and checks later whether they
    /// have confirmed it.
    pub(super) fn move_on(&mut self, now: Instant) {
        self.workers.retain(|worker| !worker.is_abandoned());
        if let Some(retiring) = self.retiring.take() {
            let is_early = self.kernel.is_some() && now < retiring.since + LONGEST_RUN;
            if is_early
                || !self
                    .workers
                    .iter_mut()
                    .all(|worker| worker.settle().is_ok())
            {
                self.retiring = Some(retiring);
                return;
            }
            for (table, (v4, v6)) in self.tables.iter_mut().zip(&retiring.tables) {
                table.v4.quiesced(*v4);
                table.v6.quiesced(*v6);
            }
            self.free.extend(retiring.hops);
            self.free_unused_groups();
        }
        if self.left.is_empty() && !self.tables.iter().any(Table::has_retired) {
            return;
        }
        self.retiring = Some(Retiring {
            tables: self
                .tables
                .iter()
                .map(|table| (table.v4.generation(), table.v6.generation()))
                .collect(),
            hops: std::mem::take(&mut self.left),
            since: now,
        });
        for worker in &mut self.workers {
            worker.send(&[()]);
        }
    }

    fn free_unused_groups(&mut self) {
        let in_use = &self.in_use;
        let free = &mut self.free_groups;
        self.groups.retain(|members, (number, _)| {
            let is_used = in_use.contains_key(&Key::Group(members.clone()));
            if !is_used {
                free.push(*number);
            }
            is_used
        });
    }
}

/// Writes the next hop for each bucket into which the flows of a group are divided.
fn write_group(
    hops: &Hops,
    number: u8,
    group: &Group,
    members: &[Way],
    in_use: &HashMap<Key, InUse, Seeded>,
) {
    for (bucket, member) in group.buckets().iter().enumerate() {
        let at = members.get(usize::from(*member));
        let found = at.and_then(|way| in_use.get(&Key::Neighbour(way.at)));
        hops.set_bucket(number, bucket, found.map_or(NextHop::NONE, |it| it.number));
    }
}
