//! The GTP-C node: its users, its peers, and the processing of datagrams (3GPP TS 29.274 sections 7.6 and 7.7).

use super::ask::{Ask, Refusal, Reply, Work, about, refusal};
use super::context::{Context, Endpoint};
use super::counts::{Counted, Counts};
use super::pending::{Awaited, Pending};
use super::settings::Terms;
use crate::Control;
use crate::pfcp::{self, RESPONSE_BYTES, Responses};
use crate::signalling::Sent;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use taut_wire::Error;
use taut_wire::gtpc::{Cause, CauseValue, ElementType, FTeid, Message, MessageType, Writer};

/// The limit on sequence numbers of this node's requests: the highest bit is for requests that a command has triggered
/// (TS 29.274 section 7.6).
const SEQUENCES: u32 = 1 << 23;
/// The number of this node's requests that may wait for responses, in addition to one per session.
const MOST_PENDING: usize = 4096;

pub(super) struct Peer {
    /// The destination of requests to the peer.
    pub address: SocketAddr,
    /// The peer's restart counter; none until the peer has sent it.
    pub restart: Option<u8>,
    pub responses: Responses,
    pub next_echo: Instant,
    /// True if the peer does not respond to echo requests.
    pub is_lost: bool,
}

/// The control plane of the gateway's sessions.
pub(in super::super) struct Node {
    pub(super) terms: Terms,
    /// This node's restart counter.
    pub(super) restart: u8,
    pub(super) peers: HashMap<IpAddr, Peer>,
    /// The users, by the TEID of this node's endpoint for control messages about each.
    pub(super) contexts: HashMap<u32, Context>,
    /// The control TEID of each user: by the identity, the interface, and on S5/S8 the default bearer.
    pub(super) users: HashMap<UserKey, u32>,
    /// The number of connections of all users.
    pub(super) connections: usize,
    pub(super) pending: Pending,
    /// The received requests whose response is deferred: peer, port and sequence number.
    under_way: HashSet<(IpAddr, u16, u32)>,
    next_sequence: u32,
    /// The random number generator for tunnel identifiers.
    pub random: fastrand::Rng,
    pub(super) counts: Arc<Counts>,
}

/// The identity of a user, true on S11, and on S5/S8 the default bearer (0 on S11).
pub(super) type UserKey = (Vec<u8>, bool, u8);

impl Node {
    /// Creates a GTP-C node whose start time is `now`.
    pub fn new(terms: &Terms, counts: Arc<Counts>, now: Instant) -> Self {
        let date = SystemTime::now().duration_since(UNIX_EPOCH);
        let peer = |address: &SocketAddr| Peer {
            address: *address,
            restart: None,
            responses: Responses::new(terms.repeats_end_after(), RESPONSE_BYTES),
            next_echo: now,
            is_lost: false,
        };
        let peers = terms.peers.iter();
        Self {
            terms: terms.clone(),
            // The counter only has to differ from that before the restart.
            restart: date.map_or(0, |date| date.as_secs()) as u8,
            peers: peers.map(|address| (address.ip(), peer(address))).collect(),
            contexts: HashMap::new(),
            users: HashMap::new(),
            connections: 0,
            pending: Pending::default(),
            under_way: HashSet::new(),
            next_sequence: 1,
            random: fastrand::Rng::new(),
            counts,
        }
    }

    /// Returns true if an address is that of a configured peer; otherwise counts the packet.
    pub fn knows(&self, from: SocketAddr) -> bool {
        let knows = self.peers.contains_key(&from.ip());
        if !knows {
            self.counts.add(Counted::Stranger, 1);
        }
        knows
    }

    /// Processes a datagram of a peer. Messages that it causes are added to `out`.
    pub fn handle(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        up: &mut pfcp::Node,
        control: &mut Control,
        out: &mut Vec<Sent>,
    ) {
        let mut work = Work {
            now,
            up,
            control,
            out,
        };
        let (message, behind) = match Message::parse(datagram) {
            Ok(parsed) => parsed,
            Err(error) => return self.unparsed(datagram, from, error, &mut work),
        };
        let bytes = &datagram[..datagram.len() - behind.len()];
        let first = Ask {
            from,
            bytes,
            message,
        };
        self.one(&first, &mut work);
        if message.has_piggybacked {
            self.piggybacked(message.message_type, behind, from, &mut work);
        }
        self.counts.set(Counted::Sessions, self.connections);
    }

    /// Responds to a datagram that cannot be parsed (TS 29.274 sections 7.7.2 and 7.7.3).
    fn unparsed(&mut self, datagram: &[u8], from: SocketAddr, error: Error, work: &mut Work<'_>) {
        let kind = MessageType(datagram.get(1).copied().unwrap_or(0));
        if !matches!(error, Error::BadVersion { .. }) {
            // A sender that writes a wrong length could not parse the response.
            return self.counts.add(Counted::Unreadable, 1);
        }
        self.counts.add(Counted::OtherVersion, 1);
        // The response to this indication would be the same indication, so the two nodes would never stop.
        if kind != MessageType::VERSION_NOT_SUPPORTED {
            let sequence = Message::sequence_of_unparsed(datagram);
            let writer = Writer::message(MessageType::VERSION_NOT_SUPPORTED, None, sequence);
            work.out.extend(writer.finish().ok().map(|it| (from, it)));
        }
    }

    /// Processes the message that is piggybacked on a message of type `first`, if TS 29.274 section 5.5.1 allows both
    /// in one datagram. Other piggybacked messages are ignored, because their sender repeats the request in a datagram
    /// of its own.
    fn piggybacked(
        &mut self,
        first: MessageType,
        bytes: &[u8],
        from: SocketAddr,
        work: &mut Work<'_>,
    ) {
        let in_vain = |node: &Self| node.counts.add(Counted::Piggybacked, 1);
        let Ok((message, behind)) = Message::parse(bytes) else {
            return in_vain(self);
        };
        let pair = (first, message.message_type);
        let is_allowed =
            pair == (
                MessageType::CREATE_SESSION_RESPONSE,
                MessageType::CREATE_BEARER_REQUEST,
            ) || pair
                == (
                    MessageType::CREATE_BEARER_RESPONSE,
                    MessageType::MODIFY_BEARER_REQUEST,
                );
        if !is_allowed || message.has_piggybacked {
            return in_vain(self);
        }
        let ask = Ask {
            from,
            bytes: &bytes[..bytes.len() - behind.len()],
            message,
        };
        if behind.is_empty() {
            return self.one(&ask, work);
        }
        in_vain(self);
        let cause = refusal(CauseValue(105));
        self.refuse(&ask, cause, work);
    }

    /// Processes one message of a datagram: the first one, or the piggybacked one.
    fn one(&mut self, ask: &Ask<'_>, work: &mut Work<'_>) {
        self.recovered(ask, work);
        let kind = ask.message.message_type;
        if is_response(kind) {
            let awaited = self.pending.take(ask.from.ip(), ask.message.sequence);
            let Some(awaited) = awaited else {
                return self.counts.add(Counted::Unreadable, 1);
            };
            return self.answered(awaited, &ask.message, ask.from.ip(), work);
        }
        if kind == MessageType::ECHO_REQUEST {
            let mut writer = Writer::message(kind.response(), None, ask.message.sequence);
            writer.element(ElementType::RECOVERY, &[self.restart]);
            let response = writer.finish().ok();
            return work.out.extend(response.map(|it| (ask.from, it)));
        }
        if !is_request(kind) {
            return self.counts.add(Counted::Unreadable, 1);
        }
        let key = (ask.from.port(), ask.message.sequence);
        let known = self
            .peers
            .get_mut(&ask.from.ip())
            .and_then(|peer| peer.responses.find(key, ask.bytes, work.now));
        if let Some(response) = known {
            self.counts.add(Counted::SentAgain, 1);
            return work.out.push((ask.from, response));
        }
        if self.under_way.contains(&(ask.from.ip(), key.0, key.1)) {
            return self.counts.add(Counted::SentAgain, 1);
        }
        match self.request(ask, work) {
            Ok(Some(writer)) => {
                self.respond(ask.from, ask.message.sequence, ask.bytes, writer, work)
            }
            Ok(None) => {}
            Err(cause) => self.refuse(ask, cause, work),
        }
    }

    /// Executes a request. Returns the response; none if the response is deferred, or if the message has no response.
    fn request(&mut self, ask: &Ask<'_>, work: &mut Work<'_>) -> Result<Option<Writer>, Refusal> {
        match ask.message.message_type {
            MessageType::CREATE_SESSION_REQUEST => self.create_session(ask, work),
            MessageType::DELETE_SESSION_REQUEST => self.delete_session(ask, work),
            MessageType::MODIFY_BEARER_REQUEST => self.modify_bearer(ask, work),
            MessageType::RELEASE_ACCESS_BEARERS_REQUEST => self.release_access_bearers(ask, work),
            MessageType::BEARER_RESOURCE_COMMAND => self.bearer_resource(ask, work),
            MessageType::DELETE_BEARER_COMMAND => self.delete_bearer_command(ask, work),
            MessageType::CREATE_BEARER_REQUEST => self.relay_new_bearers(ask, work),
            MessageType::UPDATE_BEARER_REQUEST => self.relay_changed_bearers(ask, work),
            MessageType::DELETE_BEARER_REQUEST => self.relay_removed_bearers(ask, work),
            MessageType::DOWNLINK_DATA_NOTIFICATION_FAILURE_INDICATION => {
                self.unreachable(ask.message.teid.unwrap_or(0), work);
                Ok(None)
            }
            _ => Err(refusal(CauseValue::SERVICE_NOT_SUPPORTED)),
        }
    }

    /// Returns the user that a request is about.
    pub(super) fn context(&mut self, ask: &Ask<'_>) -> Result<(u32, &mut Context), Refusal> {
        let teid = ask.message.teid.unwrap_or(0);
        let context = self.contexts.get_mut(&teid);
        let context = context.ok_or(refusal(CauseValue::CONTEXT_NOT_FOUND))?;
        Ok((teid, context))
    }

    /// Sends a response, and stores it in case the request is retransmitted.
    fn respond(
        &mut self,
        to: SocketAddr,
        sequence: u32,
        request: &[u8],
        writer: Writer,
        work: &mut Work<'_>,
    ) {
        self.under_way.remove(&(to.ip(), to.port(), sequence));
        let Ok(response) = writer.finish() else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&to.ip()) {
            let key = (to.port(), sequence);
            let forgotten = peer.responses.keep(key, request, &response, work.now);
            self.counts.add(Counted::Forgotten, forgotten);
        }
        work.out.push((to, response));
    }

    /// Sends a deferred response.
    pub(super) fn reply(&mut self, reply: &Reply, writer: Writer, work: &mut Work<'_>) {
        self.respond(reply.to, reply.sequence, &reply.request, writer, work);
    }

    /// Refuses a request whose response was deferred.
    pub(super) fn reply_refusal(&mut self, reply: &Reply, cause: Cause, work: &mut Work<'_>) {
        self.counts.add(counted(cause.value), 1);
        self.reply(reply, reply.writer(cause), work);
    }

    /// Records that the response to a request is deferred, so that retransmissions of the request are ignored.
    pub(super) fn put_off(&mut self, ask: &Ask<'_>) {
        let (from, sequence) = (ask.from, ask.message.sequence);
        self.under_way.insert((from.ip(), from.port(), sequence));
    }

    fn refuse(&mut self, ask: &Ask<'_>, cause: Cause, work: &mut Work<'_>) {
        self.counts.add(counted(cause.value), 1);
        let kind = ask.message.message_type.response();
        let teid = self.peer_teid(ask);
        let mut writer = Writer::message(kind, Some(teid), ask.message.sequence);
        writer.element(ElementType::CAUSE, &cause.emit());
        self.respond(ask.from, ask.message.sequence, ask.bytes, writer, work);
    }

    /// Returns the TEID of the endpoint at the sender of a request for messages about the request's user, 0 if it is
    /// not known.
    fn peer_teid(&self, ask: &Ask<'_>) -> u32 {
        let context = ask.message.teid.and_then(|it| self.contexts.get(&it));
        if let Some(context) = context {
            let of_gateway = context.pdns.iter().filter_map(|pdn| pdn.pgw);
            let mut of_sender = of_gateway.filter(|it| it.address == ask.from.ip());
            let found = of_sender
                .next()
                .filter(|_| context.peer.address != ask.from.ip());
            return found.unwrap_or(context.peer).teid;
        }
        let sender = ask.message.elements.find(ElementType::F_TEID, 0);
        let sender = sender.ok().flatten();
        sender
            .and_then(|it| FTeid::parse(it.value).ok())
            .map_or(0, |it| it.teid)
    }

    /// Sends a request of this node to a peer. Fails if too many requests wait for responses.
    pub(super) fn send(
        &mut self,
        to: Endpoint,
        sequence: u32,
        writer: Writer,
        awaited: Awaited,
        work: &mut Work<'_>,
    ) -> Result<(), Refusal> {
        if self.pending.len() >= MOST_PENDING + self.terms.sessions {
            return Err(refusal(CauseValue::NO_RESOURCES));
        }
        let peer = self.peers.get(&to.address);
        let peer = peer.ok_or(refusal(CauseValue::REMOTE_PEER_NOT_RESPONDING))?;
        let message = writer.finish();
        let message = message.map_err(|_| refusal(CauseValue::SYSTEM_FAILURE))?;
        let due = work.now + self.terms.response_time;
        let sent = (peer.address, message);
        work.out
            .push(self.pending.add(sent, sequence, due, awaited));
        Ok(())
    }

    /// Returns the next sequence number for a request of this node.
    pub(super) fn sequence(&mut self) -> u32 {
        let sequence = self.next_sequence;
        self.next_sequence = (sequence + 1) % SEQUENCES;
        sequence
    }

    /// Returns an unused TEID for control messages.
    pub(super) fn new_teid(&mut self) -> u32 {
        loop {
            let teid = self.random.u32(1..);
            if !self.contexts.contains_key(&teid) {
                return teid;
            }
        }
    }

    /// Checks that users, connections and sessions are consistent.
    ///
    /// # Errors
    /// Returns a description of the first inconsistency.
    pub fn check(&self, up: &pfcp::Node) -> Result<(), String> {
        let mut sessions: HashMap<u64, u64> = up.local_sessions().collect();
        for (teid, context) in &self.contexts {
            if context.pdns.is_empty() {
                return Err(format!("{context:?} without a connection"));
            }
            for pdn in &context.pdns {
                let number = super::context::number(*teid, pdn.ebi);
                if sessions.remove(&pdn.seid) != Some(number) {
                    return Err(format!("{pdn:?} without its session"));
                }
            }
        }
        let connections: usize = self.contexts.values().map(|it| it.pdns.len()).sum();
        if connections != self.connections {
            return Err(format!(
                "{} connections, of {connections}",
                self.connections
            ));
        }
        match sessions.is_empty() {
            true => Ok(()),
            false => Err(format!("sessions of no connection: {sessions:?}")),
        }
    }
}

fn is_response(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::ECHO_RESPONSE
            | MessageType::CREATE_SESSION_RESPONSE
            | MessageType::DELETE_SESSION_RESPONSE
            | MessageType::CREATE_BEARER_RESPONSE
            | MessageType::UPDATE_BEARER_RESPONSE
            | MessageType::DELETE_BEARER_RESPONSE
            | MessageType::DOWNLINK_DATA_NOTIFICATION_ACKNOWLEDGE
    )
}

/// Returns true for requests and commands to which this node responds, if only by a refusal.
fn is_request(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::CREATE_SESSION_REQUEST
            | MessageType::MODIFY_BEARER_REQUEST
            | MessageType::DELETE_SESSION_REQUEST
            | MessageType::CHANGE_NOTIFICATION_REQUEST
            | MessageType::MODIFY_BEARER_COMMAND
            | MessageType::DELETE_BEARER_COMMAND
            | MessageType::BEARER_RESOURCE_COMMAND
            | MessageType::DOWNLINK_DATA_NOTIFICATION_FAILURE_INDICATION
            | MessageType::CREATE_BEARER_REQUEST
            | MessageType::UPDATE_BEARER_REQUEST
            | MessageType::DELETE_BEARER_REQUEST
            | MessageType::SUSPEND_NOTIFICATION
            | MessageType::RESUME_NOTIFICATION
            | MessageType::CREATE_INDIRECT_FORWARDING_REQUEST
            | MessageType::DELETE_INDIRECT_FORWARDING_REQUEST
            | MessageType::RELEASE_ACCESS_BEARERS_REQUEST
            | MessageType::MODIFY_ACCESS_BEARERS_REQUEST
    )
}

/// Returns the counter for requests that are refused with this cause.
fn counted(cause: CauseValue) -> Counted {
    match cause {
        CauseValue::CONTEXT_NOT_FOUND => Counted::NoContext,
        CauseValue::INVALID_LENGTH
        | CauseValue::MANDATORY_IE_INCORRECT
        | CauseValue::MANDATORY_IE_MISSING
        | CauseValue::CONDITIONAL_IE_MISSING => Counted::WrongElement,
        CauseValue::NO_RESOURCES | CauseValue::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED => Counted::Full,
        CauseValue::SERVICE_NOT_SUPPORTED | CauseValue::PREFERRED_PDN_TYPE_NOT_SUPPORTED => {
            Counted::Unsupported
        }
        _ => Counted::Failed,
    }
}

/// Returns the refusal of a bearer that the user does not have.
pub(super) fn no_bearer(instance: u8) -> Refusal {
    about(CauseValue::CONTEXT_NOT_FOUND, ElementType::EBI, instance)
}
