//! The derivation of a session's bearers from its rules, and the changes that put the bearers into the table.
//!
//! A bearer is made for each tunnel and for each user's address. Its packets are classified if several detection rules
//! apply to that tunnel or address, or if a rule has filters, QoS flows, usage or buffering. The matching rule of the
//! lowest precedence value decides, and has a bearer of its own.

use super::super::filter::Filters;
use super::super::refusal::Refusal;
use super::super::settings::{Applications, Terms};
use super::Session;
use super::bearers::{Detection, Detections, Followed, Limited};
use super::rules::{ACCESS, APPLY_BUFFER, APPLY_FORWARD, Far, Pdr};
use crate::classifier::Choice;
use crate::{Action, Bearer, FlowFilter, Limit, Limits, Match, MeterName, Path, Sources, Wish};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use taut_wire::pfcp::{Cause, FailedRule, OuterHeaderCreation};

impl Session {
    /// Returns the bearers derived from the rules, at most `most_bearers`; `number` chooses unused numbers for
    /// classifiers.
    pub fn follow(
        &self,
        own: &[IpAddr],
        terms: &Terms,
        most_bearers: usize,
        mut number: impl FnMut(&[u32]) -> Option<u32>,
    ) -> Result<Followed, Refusal> {
        let detections = self.detections(own, terms, most_bearers)?;
        let mut followed = Followed::default();
        let mut taken: Vec<u32> = Vec::new();
        for (matched, list) in detections {
            if let [(_, choice, limited)] = &list[..]
                && !choice.is_more_than_a_bearer()
            {
                followed.bearers.insert(matched, *limited);
                continue;
            }
            let before = self.followed.classified.get(&matched);
            let number = match before {
                Some(before) => before.number,
                None => {
                    let number = number(&taken).ok_or(Refusal::new(Cause::NO_RESOURCES))?;
                    taken.push(number);
                    number
                }
            };
            followed.classify(matched, number, list, before)?;
        }
        Ok(followed)
    }

    /// Returns the session's detection rules of each tunnel and user in order of evaluation. They need at most
    /// `most_bearers` bearers.
    fn detections(
        &self,
        own: &[IpAddr],
        terms: &Terms,
        most_bearers: usize,
    ) -> Result<BTreeMap<Match, Vec<Detection>>, Refusal> {
        let known = self
            .pdrs
            .values()
            .flat_map(|pdr| pdr.filters.numbered())
            .collect();
        let (all_users, all_tunnels) = (self.users(), self.tunnels());
        let mut rules: Vec<_> = self.pdrs.iter().collect();
        // Applications are not detected, so rules for an application come last.
        rules.sort_by_key(|(id, pdr)| (pdr.filters.has_application, pdr.precedence, **id));
        let mut detections = Detections {
            of_match: BTreeMap::new(),
            bearers: 0,
            most_bearers,
        };
        for (id, pdr) in rules {
            let failed = Refusal::rule(FailedRule::Pdr(*id));
            if pdr.filters.has_application && terms.applications == Applications::Refuse {
                return Err(failed);
            }
            let its_matches = pdr.matches();
            // A rule for some flows may name neither a tunnel nor a user; it then applies to all tunnels and users of
            // its session.
            let matches = match &its_matches[..] {
                [] if pdr.is_from_network() => &all_users,
                [] if pdr.filters != Filters::default() => &all_tunnels,
                _ => &its_matches,
            };
            let is_tunnel = matches.iter().any(|m| matches!(m, Match::Teid(_)));
            let action = match self.action(*id, pdr, is_tunnel, own)? {
                Action::Decapsulate if terms.checks_sources && pdr.source == ACCESS => {
                    self.decapsulation()
                }
                action => action,
            };
            let limits = self.limits(*id, pdr)?;
            let choice = self.choice(pdr, &known).ok_or(failed)?;
            let its_users: Vec<_> = pdr.users().collect();
            for matched in matches.iter().copied() {
                let bearer = Bearer { matched, action };
                detections.add(*id, Limited { bearer, limits }, &choice, &its_users)?;
            }
        }
        Ok(detections.of_match)
    }

    /// Returns the matches of the session's user addresses, at most one per IP version.
    fn users(&self) -> Vec<Match> {
        let user = |of: fn(&Pdr) -> Option<IpAddr>| self.pdrs.values().find_map(of);
        let users = [
            user(|pdr| pdr.v4.map(IpAddr::V4)),
            user(|pdr| pdr.v6.map(IpAddr::V6)),
        ];
        users.into_iter().flatten().map(Match::User).collect()
    }

    /// Returns the action on packets that leave a tunnel of the user: only those from the session's own addresses pass,
    /// if the session has any.
    fn decapsulation(&self) -> Action {
        let mut sources = Sources::default();
        for user in self.users() {
            match user {
                Match::User(IpAddr::V4(address)) => sources.v4 = address.to_bits(),
                Match::User(IpAddr::V6(address)) => sources.v6 = (address.to_bits() >> 64) as u64,
                Match::Teid(_) | Match::Rule { .. } => {}
            }
        }
        match sources == Sources::default() {
            true => Action::Decapsulate,
            false => Action::DecapsulateFrom(sources),
        }
    }

    /// Returns the matches of the session's tunnels from the access side (the base station).
    fn tunnels(&self) -> Vec<Match> {
        let access = self.pdrs.values().filter(|pdr| pdr.source == ACCESS);
        let tunnels: BTreeSet<u32> = access.filter_map(|pdr| pdr.teid).collect();
        tunnels.into_iter().map(Match::Teid).collect()
    }

    /// Returns a detection rule as one entry of a classifier; none if it names an unknown filter or usage rule.
    fn choice(&self, pdr: &Pdr, known: &BTreeMap<u32, &FlowFilter>) -> Option<Choice> {
        let usages = pdr
            .urrs
            .iter()
            .map(|id| Some(Arc::clone(&self.urrs.get(id)?.usage)));
        Some(Choice {
            place: 0,
            is_uplink: pdr.source == ACCESS,
            filters: pdr.filters.resolved(known)?,
            flows: pdr.flows,
            usages: usages.collect::<Option<_>>()?,
            held: pdr.far.and_then(|far| self.held.get(&far).cloned()),
        })
    }

    fn action(
        &self,
        id: u16,
        pdr: &Pdr,
        is_tunnel: bool,
        own: &[IpAddr],
    ) -> Result<Action, Refusal> {
        let failed = Refusal::rule(FailedRule::Pdr(id));
        let far_id = pdr.far.ok_or(failed)?;
        let far = self.fars.get(&far_id).ok_or(failed)?;
        if far.bar.is_some_and(|bar| !self.bars.contains_key(&bar)) {
            return Err(Refusal::rule(FailedRule::Far(far_id)));
        }
        let (mut qfi, mut is_closed) = (None, false);
        for qer in &pdr.qers {
            let qer = self.qers.get(qer).ok_or(failed)?;
            is_closed |= if pdr.source == ACCESS {
                qer.uplink_closed
            } else {
                qer.downlink_closed
            };
            // An enforcement rule without a mark has the value 0; the mark of another rule takes precedence.
            qfi = qfi.filter(|qfi| *qfi != 0).or(qer.qfi).or(qfi);
        }
        let action = Self::forwarding(far_id, far, qfi, is_tunnel, own)?;
        Ok(if is_closed { Action::Block } else { action })
    }

    /// Returns the rate limits of a detection rule's packets, from the QoS enforcement rules that it names.
    fn limits(&self, id: u16, pdr: &Pdr) -> Result<Limits, Refusal> {
        let is_uplink = pdr.source == ACCESS;
        let mut limits = Limits::default();
        let mut free = limits.iter_mut();
        for rule in &pdr.qers {
            let kbps = self.qers.get(rule).and_then(|qer| match is_uplink {
                true => qer.uplink_kbps,
                false => qer.downlink_kbps,
            });
            if let Some(kbps) = kbps {
                let free = free.next().ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
                let meter = MeterName {
                    session: self.up_seid,
                    rule: *rule,
                    is_uplink,
                };
                *free = Some(Limit { meter, kbps });
            }
        }
        Ok(limits)
    }

    /// Returns the action of a forwarding rule on packets from a tunnel or to a user.
    fn forwarding(
        far_id: u32,
        far: &Far,
        qfi: Option<u8>,
        is_tunnel: bool,
        own: &[IpAddr],
    ) -> Result<Action, Refusal> {
        if far.action & APPLY_FORWARD == 0 {
            return Ok(if far.action & APPLY_BUFFER != 0 {
                Action::Hold
            } else {
                Action::Drop
            });
        }
        match (far.creation, is_tunnel) {
            (None, true) => Ok(Action::Decapsulate),
            // The packet goes to the user, and no tunnel exists yet.
            (None, false) => Ok(Action::Drop),
            (Some(creation), relays) => {
                let path = path(&creation, own);
                let path = path.ok_or(Refusal::rule(FailedRule::Far(far_id)))?;
                let teid = creation.teid;
                Ok(if relays {
                    Action::Relay { teid, path }
                } else {
                    Action::Encapsulate { teid, qfi, path }
                })
            }
        }
    }

    /// Returns the requests that change the session's bearers in the table to `new`. End markers for the tunnels in
    /// `ended` come first.
    pub fn wishes(
        &self,
        new: &Followed,
        ended: &[OuterHeaderCreation],
        own: &[IpAddr],
    ) -> Vec<Wish> {
        let end = |tunnel: &OuterHeaderCreation| {
            let (teid, path) = (tunnel.teid, path(tunnel, own)?);
            Some(Wish::EndMarker { teid, path })
        };
        let is_rule = |matched: &Match| matches!(matched, Match::Rule { .. });
        let mut wishes: Vec<_> = ended.iter().filter_map(end).collect();
        let old = &self.followed;
        let gone = |rules: bool| {
            let gone = old.bearers.keys().filter(|m| !new.bearers.contains_key(m));
            let gone = gone.filter(move |m| is_rule(m) == rules);
            gone.map(|matched| Wish::Remove(*matched))
        };
        wishes.extend(gone(false));
        // Bearers of rules are added before a classifier refers to them, and removed after that reference has ended.
        for rules in [true, false] {
            if !rules {
                for (matched, classified) in new.classified.iter() {
                    let is_known = old
                        .classified
                        .get(matched)
                        .is_some_and(|known| known == classified);
                    if !is_known {
                        let classifier = Some(Arc::clone(&classified.classifier));
                        wishes.push(Wish::Classifier(classified.number, classifier));
                    }
                }
            }
            for (matched, Limited { bearer, limits }) in new.bearers.iter() {
                if is_rule(matched) != rules {
                    continue;
                }
                let old = old.bearers.get(matched);
                match old {
                    Some(old) if old.bearer == *bearer => {}
                    Some(_) => wishes.push(Wish::Put(*bearer)),
                    None => wishes.push(Wish::Add(*bearer)),
                }
                if old.map_or(Limits::default(), |old| old.limits) != *limits {
                    wishes.push(Wish::Limit(*matched, *limits));
                }
            }
        }
        wishes.extend(gone(true));
        for (matched, classified) in old.classified.iter() {
            if !new.classified.contains_key(matched) {
                wishes.push(Wish::Classifier(classified.number, None));
            }
        }
        wishes
    }
}

/// Returns the path of a tunnel: its destination in an IP version in which the gateway has an address, and that
/// address. Returns none if there is no such version.
fn path(creation: &OuterHeaderCreation, own: &[IpAddr]) -> Option<Path> {
    let remotes = [creation.v4.map(IpAddr::V4), creation.v6.map(IpAddr::V6)];
    remotes.into_iter().flatten().find_map(|remote| {
        let same = |local: &&IpAddr| local.is_ipv4() == remote.is_ipv4();
        let local = *own.iter().find(same)?;
        Some(Path { local, remote })
    })
}
