//! Requests that establish, modify and delete sessions, with their bearers in the table (3GPP TS 29.244 sections 6.3
//! and 7.5).

use super::super::refusal::Refusal;
use super::super::session::{Asked, Choose, CreatedPdr, Session};
use super::super::urr::Moment;
use super::{Node, clear, element, node_id};
use crate::pools::Pools;
use crate::{Control, Match, Refused};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taut_wire::pfcp::{
    Cause, ElementType, Elements, FTeid, Message, MessageType, NodeId, Seid, Writer,
};

/// The number of attempts to find a free tunnel identifier. With four million identifiers in use, one attempt in a
/// thousand chooses a used one.
const TRIES: usize = 32;

/// Chooses tunnel identifiers that neither the table nor pending sessions use.
struct Chooser<'a> {
    control: &'a Control,
    taken: BTreeSet<u32>,
    random: &'a mut fastrand::Rng,
    pools: &'a mut Pools,
    /// The user addresses that were taken from pools for the request.
    given: Vec<IpAddr>,
}

impl Choose for Chooser<'_> {
    fn teid(&mut self) -> Option<u32> {
        // The choice is random: packets for tunnels from before a restart should not match new tunnels.
        let teid = (0..TRIES).map(|_| self.random.u32(1..)).find(|teid| {
            self.control.get(Match::Teid(*teid)).is_none() && !self.taken.contains(teid)
        })?;
        self.taken.insert(teid);
        Some(teid)
    }

    fn v4(&self) -> Option<Ipv4Addr> {
        let own = self.control.own().iter();
        own.copied().find_map(|a| match a {
            IpAddr::V4(a) => Some(a),
            IpAddr::V6(_) => None,
        })
    }

    fn v6(&self) -> Option<Ipv6Addr> {
        let own = self.control.own().iter();
        own.copied().find_map(|a| match a {
            IpAddr::V6(a) => Some(a),
            IpAddr::V4(_) => None,
        })
    }

    fn user(&mut self, is_v4: bool) -> Result<IpAddr, Refusal> {
        if !self.pools.has(is_v4) {
            return Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED));
        }
        let address = self.pools.take(is_v4, self.control);
        let address = address.ok_or(Refusal::new(Cause::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED))?;
        self.given.push(address);
        Ok(address)
    }
}

impl Node {
    pub(super) fn establish(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        control: &mut Control,
        moment: &Moment,
    ) -> Writer {
        let response = message.message_type.response();
        let cp_seid = element(message, ElementType::F_SEID);
        let cp_seid = cp_seid.and_then(|e| e.ok_or(Refusal::missing(ElementType::F_SEID)));
        let cp_seid = cp_seid.and_then(|e| Ok(Seid::parse(e.value)?.seid));
        let made = (|| {
            self.associated(from)?;
            if self.sessions.len() >= self.terms.sessions
                || self.sessions_of(from) >= self.terms.peer_sessions
            {
                return Err(Refusal::new(Cause::NO_RESOURCES));
            }
            node_id(message)?;
            let session = Session::new(self.next_seid, cp_seid?, from);
            for kind in [ElementType::CREATE_PDR, ElementType::CREATE_FAR] {
                element(message, kind)?.ok_or(Refusal::missing(kind))?;
            }
            self.change(session, message.elements, control, moment)
        })();
        let header = Some(cp_seid.unwrap_or(0));
        let mut writer = Writer::message(response, header, message.sequence);
        writer.element(ElementType::NODE_ID, &NodeId(self.terms.node_id).emit());
        self.write_outcome(&mut writer, made.as_ref().map(|_| ()).map_err(|e| *e));
        if let Ok((session, asked)) = made {
            let seid = session.up_seid;
            self.next_seid += 1;
            self.put(seid, session);
            let (v4, v6) = match self.terms.node_id {
                IpAddr::V4(address) => (Some(address), None),
                IpAddr::V6(address) => (None, Some(address)),
            };
            writer.element(ElementType::F_SEID, &Seid { seid, v4, v6 }.emit());
            write_created(&mut writer, &asked.created);
        }
        writer
    }

    pub(super) fn modify(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        control: &mut Control,
        moment: &Moment,
    ) -> Writer {
        let response = message.message_type.response();
        let Some((seid, mut session)) = self.session(message, from) else {
            return self.no_session(response, message.sequence);
        };
        let made = (|| {
            // The control plane may change its own identifier of the session.
            if let Some(moved) = element(message, ElementType::F_SEID)? {
                session.cp_seid = Seid::parse(moved.value)?.seid;
            }
            let cp_seid = session.cp_seid;
            let (session, asked) = self.change(session, message.elements, control, moment)?;
            Ok((cp_seid, session, asked))
        })();
        let before = self.sessions.get(&seid).map_or(0, |s| s.cp_seid);
        let cp_seid = made.as_ref().map_or(before, |made| made.0);
        let mut writer = Writer::message(response, Some(cp_seid), message.sequence);
        self.write_outcome(&mut writer, made.as_ref().map(|_| ()).map_err(|e| *e));
        if let Ok((_, session, asked)) = made {
            self.put(seid, session);
            write_created(&mut writer, &asked.created);
            for report in &asked.reports {
                writer.grouped(ElementType::USAGE_REPORT_IN_MODIFICATION, report);
            }
        }
        writer
    }

    pub(super) fn delete(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        control: &mut Control,
        moment: &Moment,
    ) -> Writer {
        let response = message.message_type.response();
        let Some((seid, mut session)) = self.session(message, from) else {
            return self.no_session(response, message.sequence);
        };
        let done = clear(&session, control);
        let mut reports = Vec::new();
        if done.is_ok() {
            // Packets that are still being processed count in the last reports as well.
            let _ = control.settle();
            reports = session.last_reports(moment);
            self.remove(seid, from);
        }
        let mut writer = Writer::message(response, Some(session.cp_seid), message.sequence);
        let done = done.map_err(|_| Refusal::new(Cause::SYSTEM_FAILURE));
        self.write_outcome(&mut writer, done);
        for report in &reports {
            writer.grouped(ElementType::USAGE_REPORT_IN_DELETION, report);
        }
        writer
    }

    fn no_session(&self, response: MessageType, sequence: u32) -> Writer {
        // The session is unknown, and so is the identifier that the sender gave it: the response has identifier 0
        // (section 7.2.2.4.2).
        let mut writer = Writer::message(response, Some(0), sequence);
        self.write_outcome(&mut writer, Err(Refusal::new(Cause::SESSION_NOT_FOUND)));
        writer
    }

    /// Stores the current state of a session.
    pub(super) fn put(&mut self, seid: u64, session: Session) {
        let (owner, bearers) = (session.owner, session.followed.bearers.len());
        let after: Vec<_> = session.timers().collect();
        let before = self.sessions.insert(seid, session);
        self.timers.forget(before.as_ref());
        for (rule, due) in after {
            self.timers.replace(None, Some(due), (seid, rule));
        }
        if let Some(owner) = owner {
            let before = before.map_or((0, 0), |before| (1, before.followed.bearers.len()));
            self.count(owner, before, (1, bearers));
        }
    }

    pub(super) fn sessions_of(&self, owner: IpAddr) -> usize {
        self.peers.get(&owner).map_or(0, |peer| peer.sessions)
    }

    /// Forgets a session whose bearers are no longer in the table.
    pub(super) fn remove(&mut self, seid: u64, owner: IpAddr) {
        let Some(gone) = self.sessions.remove(&seid) else {
            return;
        };
        self.timers.forget(Some(&gone));
        gone.given.iter().for_each(|it| self.pools.release(*it));
        self.count(owner, (1, gone.followed.bearers.len()), (0, 0));
    }

    /// Applies the elements of a message to the session and to its bearers in the table. A refused message changes
    /// nothing.
    pub(super) fn change(
        &mut self,
        session: Session,
        elements: Elements<'_>,
        control: &mut Control,
        moment: &Moment,
    ) -> Result<(Session, Asked), Refusal> {
        let mut given = Vec::new();
        let made = self.change_with(session, elements, control, moment, &mut given);
        if made.is_err() {
            given.into_iter().for_each(|it| self.pools.release(it));
        }
        made
    }

    /// Implements [`Self::change`]. `given` gets the addresses that were taken from pools, even if the change fails.
    fn change_with(
        &mut self,
        mut session: Session,
        elements: Elements<'_>,
        control: &mut Control,
        moment: &Moment,
        given: &mut Vec<IpAddr>,
    ) -> Result<(Session, Asked), Refusal> {
        let mut chooser = Chooser {
            control,
            taken: BTreeSet::new(),
            random: &mut self.random,
            pools: &mut self.pools,
            given: Vec::new(),
        };
        let asked = session.apply(elements, &mut chooser, self.terms.rules, moment);
        given.append(&mut chooser.given);
        let asked = asked?;
        let own = control.own().to_vec();
        let number = |taken: &[u32]| control.classifier_number(taken);
        let peer = session.owner.and_then(|owner| self.peers.get(&owner));
        let others = peer.map_or(0, |peer| peer.bearers) - session.followed.bearers.len();
        let most = self.terms.peer_bearers.saturating_sub(others);
        let followed = session.follow(&own, &self.terms, most, number)?;
        if followed.bearers.len() > most {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        let mut wishes = session.wishes(&followed, &asked.ended, &own);
        if asked.drops_held {
            wishes.extend(session.forget_held());
        }
        control.grant(&wishes).map_err(|(_, refused)| {
            Refusal::new(match refused {
                Refused::Full(_)
                | Refused::TooManyPaths
                | Refused::TooManyMeters(_)
                | Refused::TooManyClassifiers => Cause::NO_RESOURCES,
                Refused::Duplicate(_) | Refused::Unknown(_) => Cause::RULE_FAILURE,
                Refused::Stuck | Refused::Kernel(_) => Cause::SYSTEM_FAILURE,
            })
        })?;
        session.followed = followed;
        session.arm(&self.terms, moment);
        if asked.drops_held {
            session.tell_again();
        }
        Ok((session, asked))
    }
}

fn write_created(writer: &mut Writer, created: &[CreatedPdr]) {
    for CreatedPdr { id, teid, user } in created {
        let mut group = Writer::group();
        group.element(ElementType::PDR_ID, &id.to_be_bytes());
        if let Some(teid) = teid {
            debug_assert!(matches!(teid, FTeid::Chosen { .. }));
            group.element(ElementType::F_TEID, &teid.emit());
        }
        if let Some(user) = user {
            group.element(ElementType::UE_IP_ADDRESS, &user.emit(false));
        }
        writer.grouped(ElementType::CREATED_PDR, &group);
    }
}
