//! The user plane's side of PFCP: associations, sessions, and a response to every request (3GPP TS 29.244 sections 6.2,
//! 6.3 and 7.4, 7.5). The state is here; `node/answer.rs` and `node/sessions.rs` respond to messages, and
//! `node/reports.rs` does the work that no message requests, such as heartbeats and reports.

mod answer;
mod local;
mod reports;
mod sessions;

use super::super::pools::Pools;
use super::super::{Control, Match, Refused, Wish};
use super::counts::{Counted, Counts};
use super::echo::Echoes;
use super::element::look;
use super::refusal::Refusal;
use super::requests::Requests;
use super::responses::Responses;
use super::session::Session;
use super::settings::Terms;
use super::urr::Moment;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use taut_wire::pfcp::{Cause, Element, ElementType, Message, NodeId, Writer};

/// The seconds from 1900, the epoch of recovery time stamps (TS 29.244 section 8.2.65), to 1970.
const ERA_SECONDS: u64 = 2_208_988_800;

struct Peer {
    /// The destination address of messages to the peer.
    address: SocketAddr,
    /// The peer's recovery time stamp, which is the time of its last start; none without an association.
    association: Option<u32>,
    responses: Responses,
    /// The number of the peer's sessions.
    sessions: usize,
    /// The number of bearers that the peer's sessions have in the table.
    bearers: usize,
    /// The time of the peer's last message.
    heard: Instant,
    next_heartbeat: Instant,
    /// The heartbeat request that waits for a response, if any.
    heartbeat: Option<Heartbeat>,
    /// The requests to the peer that are queued or wait for a response.
    requests: Requests,
}

struct Heartbeat {
    sequence: u32,
    sent: u32,
    /// The time at which the heartbeat request is sent again, or abandoned.
    due: Instant,
}

pub(in super::super) struct Node {
    terms: Terms,
    recovery: u32,
    peers: HashMap<IpAddr, Peer>,
    sessions: HashMap<u64, Session>,
    /// The number of sessions without an owner: sessions that have ended, but whose bearers could not be removed yet.
    ended: usize,
    next_seid: u64,
    next_sequence: u32,
    timers: Timers,
    /// The pending notifications of buffered packets: time at which each is sent, session and forwarding rule.
    delays: BTreeSet<(Instant, u64, u32)>,
    echoes: Echoes,
    /// True if more work is pending than one pass processes.
    is_behind: bool,
    /// The random number generator for tunnel identifiers.
    pub random: fastrand::Rng,
    /// The pools of user addresses.
    pools: Pools,
    /// The notifications to the gateway's own control plane (GTP-C) about its sessions.
    told: VecDeque<Told>,
    counts: Arc<Counts>,
}

/// The owner of the sessions of the gateway's own control plane (GTP-C). No datagram comes from this address.
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A notification about a session of the gateway's own control plane. The session is named by the identifier that the
/// control plane gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Told {
    /// Packets are buffered for a forwarding rule of the session.
    Buffered {
        /// The identifier of the session.
        session: u64,
        /// The identifier of the forwarding rule.
        far: u32,
    },
    /// The session has ended, because a peer of its tunnels is lost.
    Ended(u64),
}

/// The time of the next check of each usage rule with a timer, by session and rule.
#[derive(Debug, Default)]
struct Timers(BTreeSet<(Instant, u64, u32)>);

impl Timers {
    /// Replaces the time of a usage rule's next check: removes the time `before` and adds the time `after`.
    fn replace(
        &mut self,
        before: Option<Instant>,
        after: Option<Instant>,
        (session, rule): (u64, u32),
    ) {
        if let Some(before) = before {
            self.0.remove(&(before, session, rule));
        }
        if let Some(after) = after {
            self.0.insert((after, session, rule));
        }
    }

    /// Removes the times of all usage rules of a session.
    fn forget(&mut self, session: Option<&Session>) {
        if let Some(session) = session {
            for (rule, due) in session.timers() {
                self.0.remove(&(due, session.up_seid, rule));
            }
        }
    }

    fn next_until(&mut self, now: Instant) -> Option<(u64, u32)> {
        let (_, session, rule) = *self.0.first().filter(|first| first.0 <= now)?;
        self.0.pop_first();
        Some((session, rule))
    }
}

impl Node {
    /// Creates a PFCP node whose start time is `now`.
    pub fn new(terms: &Terms, counts: Arc<Counts>, now: Instant) -> Self {
        let date = SystemTime::now().duration_since(UNIX_EPOCH);
        let recovery = (date.map_or(0, |date| date.as_secs()) + ERA_SECONDS) as u32;
        let peer = |address: &SocketAddr| Peer {
            address: *address,
            association: None,
            responses: Responses::new(terms.repeats_end_after(), terms.response_bytes),
            sessions: 0,
            bearers: 0,
            heard: now,
            next_heartbeat: now,
            heartbeat: None,
            requests: Requests::new(terms.peer_sessions),
        };
        let local = terms.has_local_sessions.then_some((LOCAL, 0).into());
        let peers = terms.peers.iter().copied().chain(local);
        let peers = peers.map(|address| (address.ip(), peer(&address)));
        Self {
            terms: terms.clone(),
            recovery,
            peers: peers.collect(),
            sessions: HashMap::new(),
            ended: 0,
            // Identifiers from before a restart are not reused.
            next_seid: u64::from(recovery) << 32 | 1,
            next_sequence: 1,
            timers: Timers::default(),
            delays: BTreeSet::new(),
            echoes: Echoes::default(),
            is_behind: false,
            random: fastrand::Rng::new(),
            pools: Pools::new(&terms.pools),
            told: VecDeque::new(),
            counts,
        }
    }

    /// Returns true if an address is that of a configured peer; otherwise counts the packet.
    pub fn knows(&self, from: SocketAddr) -> bool {
        let knows = from.ip() != LOCAL && self.peers.contains_key(&from.ip());
        if !knows {
            self.counts.add(Counted::Stranger, 1);
        }
        knows
    }

    /// Checks that the table has the bearers of all sessions with their rate limits, and returns the TEID or user
    /// address of each bearer.
    ///
    /// # Errors
    /// Returns a description of the first bearer that is missing from the table, or differs in it.
    pub fn check(&self, control: &Control) -> Result<Vec<Match>, String> {
        let bytes = self.peers.values().map(|peer| peer.responses.bytes());
        if bytes.max().unwrap_or(0) > self.terms.response_bytes {
            return Err("more responses than there is memory for".to_string());
        }
        if self.sessions.len() > self.terms.sessions {
            return Err(format!("{} sessions", self.sessions.len()));
        }
        let given: usize = self.sessions.values().map(|it| it.given.len()).sum();
        if given != self.pools.given() {
            return Err(format!("{} user addresses, of {given}", self.pools.given()));
        }
        let timers: usize = self.sessions.values().map(|it| it.timers().count()).sum();
        if timers != self.timers.0.len() {
            return Err(format!("{} timers, of {timers}", self.timers.0.len()));
        }
        for (address, peer) in &self.peers {
            let all = self.sessions.values();
            let own: Vec<_> = all.filter(|s| s.owner == Some(*address)).collect();
            let bearers = own
                .iter()
                .map(|session| session.followed.bearers.len())
                .sum();
            if (own.len(), bearers) != (peer.sessions, peer.bearers)
                || own.len() > self.terms.peer_sessions
                || bearers > self.terms.peer_bearers
            {
                return Err(format!(
                    "{} sessions, {bearers} bearers of {address}",
                    own.len()
                ));
            }
        }
        let mut all = Vec::new();
        for session in self.sessions.values() {
            if session.rules() > self.terms.rules {
                return Err(format!("{} rules in one session", session.rules()));
            }
            for classified in session.followed.classified.values() {
                let found = control.classifier(classified.number);
                if !found.is_some_and(|found| Arc::ptr_eq(found, &classified.classifier)) {
                    return Err(format!("{found:?} for {classified:?}"));
                }
            }
            for (matched, limited) in session.followed.bearers.iter() {
                let found = (control.get(*matched), control.limits(*matched));
                if found != (Some(limited.bearer), limited.limits) {
                    return Err(format!("{found:?} for {limited:?}"));
                }
                all.push(*matched);
            }
        }
        Ok(all)
    }

    fn moment(&self, now: Instant, control: &Control) -> Moment {
        let date = SystemTime::now().duration_since(UNIX_EPOCH);
        let date = date.map_or(0, |date| date.as_secs()) + ERA_SECONDS;
        Moment {
            now,
            date: date as u32,
            clock: control.meters(),
        }
    }

    fn write_outcome(&self, writer: &mut Writer, done: Result<(), Refusal>) {
        let Err(refusal) = done else {
            writer.element(ElementType::CAUSE, &[Cause::ACCEPTED.0]);
            return;
        };
        self.counts.add(refused(refusal.cause), 1);
        writer.element(ElementType::CAUSE, &[refusal.cause.0]);
        if let Some(offending) = refusal.offending {
            writer.element(ElementType::OFFENDING_IE, &offending.0.to_be_bytes());
        }
        if let Some(failed) = refusal.failed {
            writer.element(ElementType::FAILED_RULE_ID, &failed.emit());
        }
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
            peer.heartbeat = None;
            peer.responses.clear();
            peer.requests.clear();
            (peer.sessions, peer.bearers) = (0, 0);
        }
        for session in self.sessions.values_mut() {
            if session.owner == Some(from) {
                session.owner = None;
                self.ended += 1;
            }
        }
        self.sweep(control);
    }

    /// Removes the bearers of sessions without an owner from the table, and forgets the sessions. While the data plane
    /// accepts no changes, the sessions stay for the next attempt.
    fn sweep(&mut self, control: &mut Control) {
        let (mut is_stuck, timers, pools) = (false, &mut self.timers, &mut self.pools);
        self.sessions.retain(|_, session| {
            if session.owner.is_none() && !is_stuck {
                is_stuck = clear(session, control).is_err();
                if !is_stuck {
                    timers.forget(Some(session));
                    session.given.iter().for_each(|it| pools.release(*it));
                }
                return is_stuck;
            }
            true
        });
        let ended = self.sessions.values().filter(|s| s.owner.is_none());
        self.ended = if is_stuck { ended.count() } else { 0 };
    }

    /// Ends all sessions that send through tunnels to the given address.
    fn drop_sessions_to(&mut self, remote: IpAddr, control: &mut Control) {
        let mut lost = Vec::new();
        for session in self.sessions.values_mut() {
            if session.sends_to(remote)
                && let Some(owner) = session.owner.take()
            {
                self.ended += 1;
                lost.push((owner, session.followed.bearers.len()));
                if owner == LOCAL {
                    self.told.push_back(Told::Ended(session.cp_seid));
                }
            }
        }
        for (owner, bearers) in lost {
            self.count(owner, (1, bearers), (0, 0));
        }
        self.sweep(control);
    }

    /// Updates a peer's totals: subtracts the numbers of sessions and bearers in `before`, and adds those in `after`.
    fn count(&mut self, owner: IpAddr, before: (usize, usize), after: (usize, usize)) {
        if let Some(peer) = self.peers.get_mut(&owner) {
            peer.sessions = peer.sessions + after.0 - before.0;
            peer.bearers = peer.bearers + after.1 - before.1;
        }
    }

    /// Returns the identifier and the state of the session that a message is about, if the session belongs to the
    /// sender.
    fn session(&self, message: &Message<'_>, from: IpAddr) -> Option<(u64, Session)> {
        let seid = message.seid?;
        let session = self.sessions.get(&seid)?;
        (session.owner == Some(from)).then(|| (seid, session.clone()))
    }
}

/// Removes a session's bearers from the table; some of them may already have been removed through the control socket.
///
/// # Errors
/// Fails if the worker accepts no changes; some bearers may then remain in the table.
fn clear(session: &Session, control: &mut Control) -> Result<(), Refused> {
    let mut wishes: Vec<_> = session
        .followed
        .bearers
        .keys()
        .map(|m| Wish::Remove(*m))
        .collect();
    let numbers = session.followed.classified.values().map(|it| it.number);
    wishes.extend(numbers.map(|number| Wish::Classifier(number, None)));
    match control.grant(&wishes) {
        Err((_, Refused::Unknown(_))) => {}
        done => return done.map_err(|(_, refused)| refused),
    }
    for wish in wishes {
        match control.grant(&[wish]) {
            Ok(()) | Err((_, Refused::Unknown(_))) => {}
            Err((_, refused)) => return Err(refused),
        }
    }
    Ok(())
}

/// Returns the first information element of a type in a message, if there is one.
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

/// Returns the counter for requests that are refused with the given cause.
fn refused(cause: Cause) -> Counted {
    match cause {
        Cause::NO_RESOURCES | Cause::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED => Counted::Full,
        Cause::SESSION_NOT_FOUND => Counted::NoSession,
        Cause::NO_ASSOCIATION => Counted::NoAssociation,
        Cause::RULE_FAILURE => Counted::WrongRule,
        Cause::MANDATORY_IE_MISSING | Cause::MANDATORY_IE_INCORRECT | Cause::INVALID_LENGTH => {
            Counted::WrongElement
        }
        Cause::INVALID_F_TEID_ALLOCATION | Cause::SERVICE_NOT_SUPPORTED => Counted::Unsupported,
        _ => Counted::Failed,
    }
}

fn node_id(message: &Message<'_>) -> Result<(), Refusal> {
    let id = element(message, ElementType::NODE_ID)?;
    let id = id.ok_or(Refusal::missing(ElementType::NODE_ID))?;
    match NodeId::is_one(id.value) {
        true => Ok(()),
        false => Err(Refusal::incorrect(ElementType::NODE_ID)),
    }
}
