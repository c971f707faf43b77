//! A user plane's end of PFCP: associations, sessions, and an answer to every request (3GPP TS 29.244
//! sections 6.2, 6.3 and 7.4, 7.5).

use super::super::{Control, Match, Refused, Wish};
use super::Filters;
use super::session::{Choose, CreatedPdr, Refusal, Session, look};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};
use taut_wire::Error;
use taut_wire::pfcp::{
    Cause, Element, ElementType, FTeid, Message, MessageType, NodeId, Seid, Writer,
};

/// Seconds from 1900, which recovery time stamps count from (section 8.2.65), to 1970.
const ERA_SECONDS: u64 = 2_208_988_800;
/// Responses that are kept for a peer, should it ask again (section 6.4).
const KEPT_RESPONSES: usize = 512;
/// Tries to find an identifier that is free; with four million of them taken, one in a thousand fails.
const TRIES: usize = 32;
/// What we can do (section 8.2.25): choose tunnel identifiers (FTUP), send end markers (EMPU).
const FEATURES: [u8; 2] = [0x10, 0x01];

/// A request and the response to it.
struct Kept {
    request: Vec<u8>,
    response: Vec<u8>,
}

#[derive(Default)]
struct Peer {
    /// When it last started, once an association was set up.
    association: Option<u32>,
    kept: VecDeque<Kept>,
}

pub(super) struct Node {
    id: IpAddr,
    recovery: u32,
    peers: HashMap<IpAddr, Peer>,
    sessions: HashMap<u64, Session>,
    next_seid: u64,
    random: fastrand::Rng,
    filters: Filters,
}

/// Chooses tunnel identifiers against the table and the sessions under way.
struct Chooser<'a> {
    control: &'a Control,
    taken: BTreeSet<u32>,
    random: &'a mut fastrand::Rng,
}

impl Choose for Chooser<'_> {
    fn teid(&mut self) -> Option<u32> {
        // At random: packets for tunnels of before a restart should not find new ones.
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
}

impl Node {
    /// A node that started now.
    pub fn new(id: IpAddr, peers: &[IpAddr], filters: Filters) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let recovery = (now.map_or(0, |now| now.as_secs()) + ERA_SECONDS) as u32;
        Self {
            id,
            recovery,
            peers: peers.iter().map(|p| (*p, Peer::default())).collect(),
            sessions: HashMap::new(),
            // Numbers of before a restart are not given again.
            next_seid: u64::from(recovery) << 32 | 1,
            random: fastrand::Rng::new(),
            filters,
        }
    }

    /// The response to what a peer sent, if there is to be one.
    pub fn handle(&mut self, bytes: &[u8], from: IpAddr, control: &mut Control) -> Option<Vec<u8>> {
        let peer = self.peers.get(&from)?;
        if let Some(kept) = peer.kept.iter().rev().find(|kept| kept.request == bytes) {
            return Some(kept.response.clone());
        }
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(Error::BadVersion { .. }) => {
                let sequence = Message::sequence_of_other_version(bytes);
                let kind = MessageType::VERSION_NOT_SUPPORTED;
                return Writer::message(kind, None, sequence).finish().ok();
            }
            // Whoever cannot say how long a message is would not understand the answer (section 7.6.2).
            Err(_) => return None,
        };
        let response = self.answer(&message, from, control)?.finish().ok()?;
        let is_heartbeat = message.message_type == MessageType::HEARTBEAT_REQUEST;
        if let Some(peer) = self.peers.get_mut(&from).filter(|_| !is_heartbeat) {
            if peer.kept.len() == KEPT_RESPONSES {
                peer.kept.pop_front();
            }
            let (request, response) = (bytes.to_vec(), response.clone());
            peer.kept.push_back(Kept { request, response });
        }
        Some(response)
    }

    fn answer(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        control: &mut Control,
    ) -> Option<Writer> {
        let response = message.message_type.response();
        let sequence = message.sequence;
        match message.message_type {
            MessageType::HEARTBEAT_REQUEST => {
                self.heard(message, from, control);
                let mut writer = Writer::message(response, None, sequence);
                let stamp = self.recovery.to_be_bytes();
                writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
                Some(writer)
            }
            MessageType::ASSOCIATION_SETUP_REQUEST => {
                let done = self.set_up(message, from, control);
                let mut writer = self.node_response(response, sequence, done);
                let stamp = self.recovery.to_be_bytes();
                writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
                if done.is_ok() {
                    writer.element(ElementType::UP_FUNCTION_FEATURES, &FEATURES);
                }
                Some(writer)
            }
            MessageType::ASSOCIATION_UPDATE_REQUEST => {
                let done = self.associated(from).and_then(|()| node_id(message));
                Some(self.node_response(response, sequence, done))
            }
            MessageType::ASSOCIATION_RELEASE_REQUEST => {
                let done = self.associated(from).and_then(|()| node_id(message));
                if done.is_ok() {
                    self.forget(from, control);
                }
                Some(self.node_response(response, sequence, done))
            }
            MessageType::PFD_MANAGEMENT_REQUEST
            | MessageType::NODE_REPORT_REQUEST
            | MessageType::SESSION_SET_DELETION_REQUEST => {
                let done = Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED));
                Some(self.node_response(response, sequence, done))
            }
            MessageType::SESSION_ESTABLISHMENT_REQUEST => {
                Some(self.establish(message, from, control))
            }
            MessageType::SESSION_MODIFICATION_REQUEST => Some(self.modify(message, from, control)),
            MessageType::SESSION_DELETION_REQUEST => Some(self.delete(message, from, control)),
            MessageType::SESSION_REPORT_REQUEST => {
                let mut writer = Writer::message(response, Some(0), sequence);
                writer.element(ElementType::CAUSE, &[Cause::SERVICE_NOT_SUPPORTED.0]);
                Some(writer)
            }
            // Responses, to requests that we never make, and what is not known (section 7.6.4).
            _ => None,
        }
    }

    fn node_response(
        &self,
        response: MessageType,
        sequence: u32,
        done: Result<(), Refusal>,
    ) -> Writer {
        let mut writer = Writer::message(response, None, sequence);
        writer.element(ElementType::NODE_ID, &NodeId(self.id).emit());
        write_outcome(&mut writer, done);
        writer
    }

    /// Notices that a peer has started anew: its sessions are no more.
    fn heard(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) {
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok().flatten().and_then(|e| e.u32().ok());
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        if let (Some(stamp), Some(known)) = (stamp, known)
            && stamp != known
        {
            self.forget(from, control);
        }
    }

    fn set_up(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        control: &mut Control,
    ) -> Result<(), Refusal> {
        node_id(message)?;
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP)?;
        let missing = Refusal::missing(ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok_or(missing)?.u32()?;
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        let retained = element(message, ElementType::SESSION_RETENTION_INFORMATION)?.is_some();
        // Section 6.2.6.2.2: a new association begins without sessions, unless asked to keep them.
        if known != Some(stamp) || !retained {
            self.forget(from, control);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.association = Some(stamp);
        }
        Ok(())
    }

    fn associated(&self, from: IpAddr) -> Result<(), Refusal> {
        let association = self.peers.get(&from).and_then(|peer| peer.association);
        let refusal = Refusal::new(Cause::NO_ASSOCIATION);
        association.map(|_| ()).ok_or(refusal)
    }

    /// Ends an association and all sessions of a peer.
    fn forget(&mut self, from: IpAddr, control: &mut Control) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.association = None;
            peer.kept.clear();
        }
        let of_peer = |_: &u64, session: &mut Session| session.owner == Some(from);
        for (_, session) in self.sessions.extract_if(of_peer) {
            let wishes: Vec<_> = session.bearers.keys().map(|m| Wish::Remove(*m)).collect();
            if control.grant(&wishes).is_err() {
                // Somebody else has removed some of them: each by itself, then.
                for wish in wishes {
                    let _ = control.grant(&[wish]);
                }
            }
        }
    }

    fn establish(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) -> Writer {
        let response = message.message_type.response();
        let cp_seid = element(message, ElementType::F_SEID);
        let cp_seid = cp_seid.and_then(|e| e.ok_or(Refusal::missing(ElementType::F_SEID)));
        let cp_seid = cp_seid.and_then(|e| Ok(Seid::parse(e.value)?.seid));
        let made = (|| {
            self.associated(from)?;
            node_id(message)?;
            let session = Session::new(self.next_seid, cp_seid?, from);
            for kind in [ElementType::CREATE_PDR, ElementType::CREATE_FAR] {
                element(message, kind)?.ok_or(Refusal::missing(kind))?;
            }
            self.change(session, message, control)
        })();
        let header = Some(cp_seid.unwrap_or(0));
        let mut writer = Writer::message(response, header, message.sequence);
        writer.element(ElementType::NODE_ID, &NodeId(self.id).emit());
        write_outcome(&mut writer, made.as_ref().map(|_| ()).map_err(|e| *e));
        if let Ok((session, created)) = made {
            let seid = session.up_seid;
            self.next_seid += 1;
            self.sessions.insert(seid, session);
            let (v4, v6) = match self.id {
                IpAddr::V4(address) => (Some(address), None),
                IpAddr::V6(address) => (None, Some(address)),
            };
            writer.element(ElementType::F_SEID, &Seid { seid, v4, v6 }.emit());
            write_created(&mut writer, &created);
        }
        writer
    }

    fn modify(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) -> Writer {
        let response = message.message_type.response();
        let Some((seid, mut session)) = self.session(message, from) else {
            return no_session(response, message.sequence);
        };
        let made = (|| {
            // The control plane may move the session to another number of its own.
            if let Some(moved) = element(message, ElementType::F_SEID)? {
                session.cp_seid = Seid::parse(moved.value)?.seid;
            }
            let cp_seid = session.cp_seid;
            let (session, created) = self.change(session, message, control)?;
            Ok((cp_seid, session, created))
        })();
        let before = self.sessions.get(&seid).map_or(0, |s| s.cp_seid);
        let cp_seid = made.as_ref().map_or(before, |made| made.0);
        let mut writer = Writer::message(response, Some(cp_seid), message.sequence);
        write_outcome(&mut writer, made.as_ref().map(|_| ()).map_err(|e| *e));
        if let Ok((_, session, created)) = made {
            self.sessions.insert(seid, session);
            write_created(&mut writer, &created);
        }
        writer
    }

    fn delete(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) -> Writer {
        let response = message.message_type.response();
        let Some((seid, session)) = self.session(message, from) else {
            return no_session(response, message.sequence);
        };
        self.sessions.remove(&seid);
        for matched in session.bearers.keys() {
            // It may have been removed by hand.
            let _ = control.grant(&[Wish::Remove(*matched)]);
        }
        let mut writer = Writer::message(response, Some(session.cp_seid), message.sequence);
        write_outcome(&mut writer, Ok(()));
        writer
    }

    /// The session that a message is about, if it is its sender's.
    fn session(&self, message: &Message<'_>, from: IpAddr) -> Option<(u64, Session)> {
        let seid = message.seid?;
        let session = self.sessions.get(&seid)?;
        (session.owner == Some(from)).then(|| (seid, session.clone()))
    }

    /// The session as the message changes it, with its bearers in the table; nothing happens if it is refused.
    fn change(
        &mut self,
        mut session: Session,
        message: &Message<'_>,
        control: &mut Control,
    ) -> Result<(Session, Vec<CreatedPdr>), Refusal> {
        let mut ended = Vec::new();
        let mut chooser = Chooser {
            control,
            taken: BTreeSet::new(),
            random: &mut self.random,
        };
        let created = session.apply(message.elements, &mut chooser, &mut ended)?;
        let bearers = session.follow(control.own(), self.filters)?;
        let wishes = session.wishes(&bearers, &ended, control.own());
        control.grant(&wishes).map_err(|(_, refused)| {
            Refusal::new(match refused {
                Refused::Full(_) | Refused::TooManyPaths | Refused::TooManyMeters(_) => {
                    Cause::NO_RESOURCES
                }
                Refused::Duplicate(_) | Refused::Unknown(_) => Cause::RULE_FAILURE,
                Refused::Stuck => Cause::SYSTEM_FAILURE,
            })
        })?;
        session.bearers = bearers;
        Ok((session, created))
    }
}

/// The first element of a type in a message, if there is one.
fn element<'a>(
    message: &Message<'a>,
    element_type: ElementType,
) -> Result<Option<Element<'a>>, Refusal> {
    let whole = Element {
        element_type: ElementType(0),
        value: message.elements.0,
    };
    look(&whole, element_type)
}

fn node_id(message: &Message<'_>) -> Result<(), Refusal> {
    let id = element(message, ElementType::NODE_ID)?;
    let id = id.ok_or(Refusal::missing(ElementType::NODE_ID))?;
    match NodeId::is_one(id.value) {
        true => Ok(()),
        false => Err(Refusal::incorrect(ElementType::NODE_ID)),
    }
}

fn write_outcome(writer: &mut Writer, done: Result<(), Refusal>) {
    let Err(refusal) = done else {
        writer.element(ElementType::CAUSE, &[Cause::ACCEPTED.0]);
        return;
    };
    writer.element(ElementType::CAUSE, &[refusal.cause.0]);
    if let Some(offending) = refusal.offending {
        writer.element(ElementType::OFFENDING_IE, &offending.0.to_be_bytes());
    }
    if let Some(failed) = refusal.failed {
        writer.element(ElementType::FAILED_RULE_ID, &failed.emit());
    }
}

fn write_created(writer: &mut Writer, created: &[CreatedPdr]) {
    for CreatedPdr { id, teid } in created {
        let mut group = Writer::group();
        group.element(ElementType::PDR_ID, &id.to_be_bytes());
        debug_assert!(matches!(teid, FTeid::Chosen { .. }));
        group.element(ElementType::F_TEID, &teid.emit());
        writer.grouped(ElementType::CREATED_PDR, &group);
    }
}

fn no_session(response: MessageType, sequence: u32) -> Writer {
    // Section 7.2.2.4.2: the sender's number for it is not known either.
    let mut writer = Writer::message(response, Some(0), sequence);
    writer.element(ElementType::CAUSE, &[Cause::SESSION_NOT_FOUND.0]);
    writer
}
