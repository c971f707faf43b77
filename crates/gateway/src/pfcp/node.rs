//! The user plane's end of PFCP: associations, sessions, and a response to every request (3GPP TS 29.244 sections 6.2,
//! 6.3 and 7.4, 7.5).

use super::super::event::Event;
use super::super::{Control, Match, Refused, Wish};
use super::counts::{Counted, Counts};
use super::echo::{Became, Echoes};
use super::element::look;
use super::refusal::Refusal;
use super::requests::Requests;
use super::responses::Responses;
use super::session::{Asked, Choose, CreatedPdr, Session};
use super::settings::Terms;
use super::urr::Moment;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use taut_wire::Error;
use taut_wire::pfcp::{
    Cause, Element, ElementType, FTeid, Message, MessageType, NodeId, Seid, Writer, emit_gtpu_peer,
};

/// The seconds from 1900, the epoch of recovery time stamps (section 8.2.65), to 1970.
const ERA_SECONDS: u64 = 2_208_988_800;
/// The mask of sequence numbers, which have 24 bits (section 7.2.2.2).
const SEQUENCE_MASK: u32 = 0xff_ffff;
/// The number of attempts to find a free identifier; with four million of them taken, one search in a thousand fails.
const TRIES: usize = 32;
/// The features of this node (section 8.2.25): delayed downlink data notification (DDND), choice of tunnel identifiers
/// (FTUP) and end markers (EMPU).
const FEATURES: [u8; 2] = [0x12, 0x01];
/// Report types (section 8.2.21), flags of a response to one (section 8.2.32), node report types (section 8.2.69).
const DOWNLINK_DATA: u8 = 1;
const USAGE: u8 = 2;
const DROP_BUFFERED: u8 = 1;
const PATH_FAILURE: u8 = 1;
const PATH_RECOVERY: u8 = 2;
/// The number of events and timers that are processed before the next message: the table is locked during this, and
/// messages of peers wait.
const MOST_AT_A_TIME: usize = 512;

struct Peer {
    /// The address to which the peer's messages go.
    address: SocketAddr,
    /// The time at which the peer last started, once an association was set up.
    association: Option<u32>,
    responses: Responses,
    /// The number of the peer's sessions.
    sessions: usize,
    /// The number of bearers in the table of its sessions.
    bearers: usize,
    /// The time of the peer's last message.
    heard: Instant,
    next_heartbeat: Instant,
    /// The heartbeat without a response.
    heartbeat: Option<Heartbeat>,
    /// Our requests without a response.
    requests: Requests,
}

struct Heartbeat {
    sequence: u32,
    sent: u32,
    /// The time at which the heartbeat is sent again, or given up.
    due: Instant,
}

pub(in super::super) struct Node {
    terms: Terms,
    recovery: u32,
    peers: HashMap<IpAddr, Peer>,
    sessions: HashMap<u64, Session>,
    /// The number of sessions without an owner, with bearers that could not be removed yet.
    ended: usize,
    next_seid: u64,
    next_sequence: u32,
    timers: Timers,
    /// The pending notifications of buffered packets: time, session and forwarding rule.
    delays: BTreeSet<(Instant, u64, u32)>,
    echoes: Echoes,
    /// True if more work is pending than is done at a time.
    is_behind: bool,
    /// The source of tunnel identifiers.
    pub random: fastrand::Rng,
    counts: Arc<Counts>,
}

/// The time of the next check of each usage rule with a timer, by session and rule.
#[derive(Debug, Default)]
struct Timers(BTreeSet<(Instant, u64, u32)>);

impl Timers {
    /// Replaces the time of a rule.
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

    /// Removes the times of all rules of a session.
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

/// The choice of tunnel identifiers that neither the table nor pending sessions use.
struct Chooser<'a> {
    control: &'a Control,
    taken: BTreeSet<u32>,
    random: &'a mut fastrand::Rng,
}

impl Choose for Chooser<'_> {
    fn teid(&mut self) -> Option<u32> {
        // The choice is random: packets for tunnels from before a restart should not match new ones.
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
    /// Creates a node that starts now.
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
        let peers = terms
            .peers
            .iter()
            .map(|address| (address.ip(), peer(address)));
        Self {
            terms: terms.clone(),
            recovery,
            peers: peers.collect(),
            sessions: HashMap::new(),
            ended: 0,
            // Numbers from before a restart are not reused.
            next_seid: u64::from(recovery) << 32 | 1,
            next_sequence: 1,
            timers: Timers::default(),
            delays: BTreeSet::new(),
            echoes: Echoes::default(),
            is_behind: false,
            random: fastrand::Rng::new(),
            counts,
        }
    }

    /// Returns true if an address is one of the peers'; packets of others are counted.
    pub fn knows(&self, from: SocketAddr) -> bool {
        let knows = self.peers.contains_key(&from.ip());
        if !knows {
            self.counts.add(Counted::Stranger, 1);
        }
        knows
    }

    /// Checks that the table has the bearers of all sessions with their rate limits, and returns the TEID or user address of
    /// each.
    ///
    /// # Errors
    /// The first bearer that the table lacks or has otherwise.
    pub fn check(&self, control: &Control) -> Result<Vec<Match>, String> {
        let bytes = self.peers.values().map(|peer| peer.responses.bytes());
        if bytes.max().unwrap_or(0) > self.terms.response_bytes {
            return Err("more responses than there is memory for".to_string());
        }
        if self.sessions.len() > self.terms.sessions {
            return Err(format!("{} sessions", self.sessions.len()));
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
            for sorted in session.followed.sorted.values() {
                let found = control.sorting(sorted.number);
                if !found.is_some_and(|found| Arc::ptr_eq(found, &sorted.sorting)) {
                    return Err(format!("{found:?} for {sorted:?}"));
                }
            }
            for (matched, limited) in &session.followed.bearers {
                let found = (control.get(*matched), control.limits(*matched));
                if found != (Some(limited.bearer), limited.limits) {
                    return Err(format!("{found:?} for {limited:?}"));
                }
                all.push(*matched);
            }
        }
        Ok(all)
    }

    /// Returns the response to a peer's message, if there is one.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        from: SocketAddr,
        now: Instant,
        control: &mut Control,
    ) -> Option<Vec<u8>> {
        let peer = self.peers.get_mut(&from.ip())?;
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(Error::BadVersion { .. }) => {
                let sequence = Message::sequence_of_other_version(bytes);
                let kind = MessageType::VERSION_NOT_SUPPORTED;
                return Writer::message(kind, None, sequence).finish().ok();
            }
            // A sender of a wrong length could not parse the response (section 7.6.2).
            Err(_) => {
                self.counts.add(Counted::Unreadable, 1);
                return None;
            }
        };
        peer.heard = now;
        let key = (from.port(), message.sequence);
        if let Some(response) = peer.responses.find(key, bytes, now) {
            self.counts.add(Counted::SentAgain, 1);
            return Some(response);
        }
        let response = self.answer(&message, from.ip(), now, control);
        self.counts.set(Counted::Sessions, self.sessions.len());
        let response = response?.finish().ok()?;
        let is_heartbeat = message.message_type == MessageType::HEARTBEAT_REQUEST;
        if let Some(peer) = self.peers.get_mut(&from.ip()).filter(|_| !is_heartbeat) {
            let forgotten = peer.responses.keep(key, bytes, &response, now);
            self.counts.add(Counted::Forgotten, forgotten);
        }
        Some(response)
    }

    /// Runs the timers: returns due heartbeats (section 6.2.2) with their destinations, and ends the associations of
    /// idle peers.
    pub fn look(&mut self, now: Instant, control: &mut Control) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut messages = Vec::new();
        let mut silent = Vec::new();
        for (address, peer) in &mut self.peers {
            if peer.association.is_none() {
                continue;
            }
            let silence = now.saturating_duration_since(peer.heard);
            if self.terms.silence.is_some_and(|most| silence >= most) {
                silent.push(*address);
                continue;
            }
            let Some(interval) = self.terms.heartbeat else {
                continue;
            };
            let sequence = match &mut peer.heartbeat {
                None if now < peer.next_heartbeat => continue,
                Some(asked) if now < asked.due => continue,
                Some(asked) if asked.sent > self.terms.repeats => {
                    self.counts.add(Counted::Unanswered, 1);
                    peer.heartbeat = None;
                    peer.next_heartbeat = now + interval;
                    continue;
                }
                Some(asked) => {
                    asked.sent += 1;
                    asked.due = now + self.terms.response_time;
                    asked.sequence
                }
                None => {
                    let sequence = self.next_sequence;
                    self.next_sequence = (sequence + 1) & SEQUENCE_MASK;
                    peer.heartbeat = Some(Heartbeat {
                        sequence,
                        sent: 1,
                        due: now + self.terms.response_time,
                    });
                    sequence
                }
            };
            let mut writer = Writer::message(MessageType::HEARTBEAT_REQUEST, None, sequence);
            let stamp = self.recovery.to_be_bytes();
            writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
            messages.extend(writer.finish().ok().map(|message| (peer.address, message)));
        }
        self.look_at_packets(now, control);
        messages.extend(self.due(now));
        for address in silent {
            self.counts.add(Counted::Silent, 1);
            self.forget(address, control);
        }
        if self.ended > 0 {
            self.sweep(control);
        }
        self.counts.set(Counted::Sessions, self.sessions.len());
        messages
    }

    /// Returns the requests of this node that are due, with their destinations. They are retransmissions, and new
    /// requests as far as the peer has answered earlier ones. Call this again after a response, which makes space for
    /// more.
    pub fn due(&mut self, now: Instant) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut messages, mut given_up) = (Vec::new(), 0);
        let again = (self.terms.response_time, self.terms.repeats);
        for peer in self.peers.values_mut() {
            while let Some(message) = peer.requests.next(now, again, &mut given_up) {
                messages.push((peer.address, message));
            }
        }
        if given_up > 0 {
            self.counts.add(Counted::GivenUp, given_up);
        }
        messages
    }

    /// Returns true if more work is pending than is done at a time, so that the next check is due at once.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Reports the events of workers, timers and tunnel peers.
    fn look_at_packets(&mut self, now: Instant, control: &mut Control) {
        let moment = self.moment(now, control);
        let mut left = MOST_AT_A_TIME;
        while left > 0 {
            left -= 1;
            match control.event() {
                None => break,
                Some(Event::Used { session, rule }) => self.look_at_usage(session, rule, &moment),
                Some(Event::Held { session, rule }) => {
                    let delay = self.sessions.get(&session).and_then(|it| it.delay(rule));
                    if let Some(delay) = delay {
                        self.delays.insert((now + delay, session, rule));
                    }
                }
                Some(Event::Echoed { remote }) => {
                    let echo = self.terms.echo;
                    let became = echo.and_then(|echo| self.echoes.answered(remote, now, &echo));
                    self.tell_of_peer(became);
                }
            }
        }
        while left > 0
            && let Some((session, rule)) = self.timers.next_until(now)
        {
            left -= 1;
            self.look_at_usage(session, rule, &moment);
        }
        self.is_behind = left == 0;
        while let Some((due, session, rule)) = self.delays.first().copied()
            && due <= now
        {
            self.delays.pop_first();
            self.tell_of_downlink(session, rule);
        }
        if let Some(echo) = self.terms.echo {
            for became in self.echoes.look(now, &echo, control) {
                self.tell_of_peer(Some(became));
                if let Became::Lost(remote) = became
                    && echo.drops_sessions
                {
                    self.drop_sessions_to(remote, control);
                }
            }
            self.counts.set(Counted::LostPeers, self.echoes.lost());
        }
        self.counts.set(Counted::Held, control.held.waiting());
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

    fn look_at_usage(&mut self, seid: u64, rule: u32, moment: &Moment) {
        let Some(session) = self.sessions.get_mut(&seid) else {
            return;
        };
        let Some(urr) = session.urr(rule) else {
            return;
        };
        let before = urr.due;
        let triggers = urr.look(moment);
        let report = (triggers != 0).then(|| urr.report(triggers, moment));
        urr.arm(moment.now);
        let after = urr.due;
        self.timers.replace(before, after, (seid, rule));
        if let Some(report) = report {
            self.counts.add(Counted::UsageReports, 1);
            let kind = ElementType::USAGE_REPORT_IN_REQUEST;
            self.report(seid, USAGE, kind, &report);
        }
    }

    /// Notifies the control plane of packets buffered for a forwarding rule, if it still buffers them.
    fn tell_of_downlink(&mut self, seid: u64, rule: u32) {
        let Some(session) = self.sessions.get(&seid) else {
            return;
        };
        if session.delay(rule).is_none() {
            return;
        }
        let mut report = Writer::group();
        for id in session.detected_for(rule) {
            report.element(ElementType::PDR_ID, &id.to_be_bytes());
        }
        self.counts.add(Counted::DownlinkReports, 1);
        let kind = ElementType::DOWNLINK_DATA_REPORT;
        self.report(seid, DOWNLINK_DATA, kind, &report);
    }

    /// Sends a report about a session to its control plane.
    fn report(&mut self, seid: u64, report_type: u8, kind: ElementType, report: &Writer) {
        let Some(session) = self.sessions.get(&seid) else {
            return;
        };
        let (to, cp_seid) = (session.owner, session.cp_seid);
        let request = MessageType::SESSION_REPORT_REQUEST;
        let sequence = self.sequence();
        let mut writer = Writer::message(request, Some(cp_seid), sequence);
        writer.element(ElementType::REPORT_TYPE, &[report_type]);
        writer.grouped(kind, report);
        self.request(to, sequence, writer);
    }

    fn sequence(&mut self) -> u32 {
        let sequence = self.next_sequence;
        self.next_sequence = (sequence + 1) & SEQUENCE_MASK;
        sequence
    }

    fn request(&mut self, to: Option<IpAddr>, sequence: u32, writer: Writer) {
        let peer = to.and_then(|to| self.peers.get_mut(&to));
        let message = writer.finish().ok();
        let is_under_way = peer
            .zip(message)
            .is_some_and(|(peer, message)| peer.requests.add(sequence, message));
        self.counts.add(Counted::GivenUp, u64::from(!is_under_way));
    }

    /// Notifies all associated peers that a tunnel peer was lost, or responds again (section 7.4.5).
    fn tell_of_peer(&mut self, became: Option<Became>) {
        let (report_type, kind, remote) = match became {
            None => return,
            Some(Became::Lost(remote)) => {
                self.counts.add(Counted::PathFailures, 1);
                (
                    PATH_FAILURE,
                    ElementType::USER_PLANE_PATH_FAILURE_REPORT,
                    remote,
                )
            }
            Some(Became::Found(remote)) => (
                PATH_RECOVERY,
                ElementType::USER_PLANE_PATH_RECOVERY_REPORT,
                remote,
            ),
        };
        let peers = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.association.is_some());
        let peers: Vec<IpAddr> = peers.map(|(address, _)| *address).collect();
        for to in peers {
            let sequence = self.sequence();
            let mut writer = Writer::message(MessageType::NODE_REPORT_REQUEST, None, sequence);
            writer.element(ElementType::NODE_ID, &NodeId(self.terms.node_id).emit());
            writer.element(ElementType::NODE_REPORT_TYPE, &[report_type]);
            let mut report = Writer::group();
            report.element(ElementType::REMOTE_GTPU_PEER, &emit_gtpu_peer(remote));
            writer.grouped(kind, &report);
            self.request(Some(to), sequence, writer);
        }
    }

    /// Ends all sessions that send through tunnels to that address.
    fn drop_sessions_to(&mut self, remote: IpAddr, control: &mut Control) {
        let mut lost = Vec::new();
        for session in self.sessions.values_mut() {
            if session.sends_to(remote)
                && let Some(owner) = session.owner.take()
            {
                self.ended += 1;
                lost.push((owner, session.followed.bearers.len()));
            }
        }
        for (owner, bearers) in lost {
            self.count(owner, (1, bearers), (0, 0));
        }
        self.sweep(control);
    }

    /// Processes a peer's response to a report.
    fn reported(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) {
        let peer = self.peers.get_mut(&from);
        if !peer.is_some_and(|peer| peer.requests.answered(message.sequence)) {
            return;
        }
        let flags = element(message, ElementType::PFCPSRRSP_FLAGS);
        let flags = flags.ok().flatten().and_then(|flags| flags.u8().ok());
        if let Some((_, session)) = self.session(message, from)
            && flags.is_some_and(|flags| flags & DROP_BUFFERED != 0)
            && control.grant(&session.forget_held()).is_ok()
        {
            session.tell_again();
        }
    }

    fn answer(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        now: Instant,
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
                let done = self.set_up(message, from, now, control);
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
                let moment = self.moment(now, control);
                Some(self.establish(message, from, control, &moment))
            }
            MessageType::SESSION_MODIFICATION_REQUEST => {
                let moment = self.moment(now, control);
                Some(self.modify(message, from, control, &moment))
            }
            MessageType::SESSION_DELETION_REQUEST => {
                let moment = self.moment(now, control);
                Some(self.delete(message, from, control, &moment))
            }
            MessageType::SESSION_REPORT_RESPONSE | MessageType::NODE_REPORT_RESPONSE => {
                self.reported(message, from, control);
                None
            }
            MessageType::SESSION_REPORT_REQUEST => {
                let mut writer = Writer::message(response, Some(0), sequence);
                self.write_outcome(&mut writer, Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED)));
                Some(writer)
            }
            MessageType::HEARTBEAT_RESPONSE => {
                let peer = self.peers.get_mut(&from)?;
                if peer.heartbeat.take_if(|h| h.sequence == sequence).is_some() {
                    peer.next_heartbeat = now + self.terms.heartbeat?;
                    self.heard(message, from, control);
                }
                None
            }
            // These are responses to requests that this node never sends, and unknown messages (section 7.6.4).
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
        writer.element(ElementType::NODE_ID, &NodeId(self.terms.node_id).emit());
        self.write_outcome(&mut writer, done);
        writer
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

    fn no_session(&self, response: MessageType, sequence: u32) -> Writer {
        // Section 7.2.2.4.2: the sender's identifier of the session is not known either.
        let mut writer = Writer::message(response, Some(0), sequence);
        self.write_outcome(&mut writer, Err(Refusal::new(Cause::SESSION_NOT_FOUND)));
        writer
    }

    /// Detects that a peer has restarted: its sessions end.
    fn heard(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) {
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok().flatten().and_then(|e| e.u32().ok());
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        if let (Some(stamp), Some(known)) = (stamp, known)
            && stamp != known
        {
            self.counts.add(Counted::Restarted, 1);
            self.forget(from, control);
        }
    }

    fn set_up(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        now: Instant,
        control: &mut Control,
    ) -> Result<(), Refusal> {
        node_id(message)?;
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP)?;
        let missing = Refusal::missing(ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok_or(missing)?.u32()?;
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        let retained = element(message, ElementType::SESSION_RETENTION_INFORMATION)?.is_some();
        // Section 6.2.6.2.2: a new association begins without sessions, unless the request retains them.
        if known != Some(stamp) || !retained {
            let restarted = known.is_some_and(|known| known != stamp);
            self.counts.add(Counted::Restarted, u64::from(restarted));
            self.forget(from, control);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.association = Some(stamp);
            peer.heartbeat = None;
            peer.next_heartbeat = self.terms.heartbeat.map_or(now, |interval| now + interval);
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
    /// accepts no changes, they stay for the next attempt.
    fn sweep(&mut self, control: &mut Control) {
        let (mut is_stuck, timers) = (false, &mut self.timers);
        self.sessions.retain(|_, session| {
            if session.owner.is_none() && !is_stuck {
                is_stuck = clear(session, control).is_err();
                if !is_stuck {
                    timers.forget(Some(session));
                }
                return is_stuck;
            }
            true
        });
        let ended = self.sessions.values().filter(|s| s.owner.is_none());
        self.ended = if is_stuck { ended.count() } else { 0 };
    }

    fn establish(
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
            self.change(session, message, control, moment)
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

    fn modify(
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
            let (session, asked) = self.change(session, message, control, moment)?;
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

    fn delete(
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
            // Packets still being processed are counted as well.
            let _ = control.settle();
            reports = session.last_reports(moment);
            let gone = self.sessions.remove(&seid);
            self.timers.forget(gone.as_ref());
            self.count(from, (1, session.followed.bearers.len()), (0, 0));
        }
        let mut writer = Writer::message(response, Some(session.cp_seid), message.sequence);
        let done = done.map_err(|_| Refusal::new(Cause::SYSTEM_FAILURE));
        self.write_outcome(&mut writer, done);
        for report in &reports {
            writer.grouped(ElementType::USAGE_REPORT_IN_DELETION, report);
        }
        writer
    }

    /// Stores the current state of a session.
    fn put(&mut self, seid: u64, session: Session) {
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

    /// Updates the counts of a peer's sessions and bearers from the earlier to the new values.
    fn count(&mut self, owner: IpAddr, before: (usize, usize), after: (usize, usize)) {
        if let Some(peer) = self.peers.get_mut(&owner) {
            peer.sessions = peer.sessions + after.0 - before.0;
            peer.bearers = peer.bearers + after.1 - before.1;
        }
    }

    fn sessions_of(&self, owner: IpAddr) -> usize {
        self.peers.get(&owner).map_or(0, |peer| peer.sessions)
    }

    /// Returns the session that a message is about, if it belongs to the sender.
    fn session(&self, message: &Message<'_>, from: IpAddr) -> Option<(u64, Session)> {
        let seid = message.seid?;
        let session = self.sessions.get(&seid)?;
        (session.owner == Some(from)).then(|| (seid, session.clone()))
    }

    /// Changes the session by the message, with its bearers in the table; nothing happens if it is refused.
    fn change(
        &mut self,
        mut session: Session,
        message: &Message<'_>,
        control: &mut Control,
        moment: &Moment,
    ) -> Result<(Session, Asked), Refusal> {
        let mut chooser = Chooser {
            control,
            taken: BTreeSet::new(),
            random: &mut self.random,
        };
        let asked = session.apply(message.elements, &mut chooser, self.terms.rules, moment)?;
        let own = control.own().to_vec();
        let number = |taken: &[u32]| control.sorting_number(taken);
        let peer = session.owner.and_then(|owner| self.peers.get(&owner));
        let others = peer.map_or(0, |peer| peer.bearers) - session.followed.bearers.len();
        let most = self.terms.peer_bearers.saturating_sub(others);
        let followed = session.follow(&own, self.terms.applications, most, number)?;
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
                | Refused::TooManySortings => Cause::NO_RESOURCES,
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

/// Removes a session's bearers from the table; some may have been removed by hand.
///
/// # Errors
/// Fails if the worker accepts no changes; some bearers may then be left.
fn clear(session: &Session, control: &mut Control) -> Result<(), Refused> {
    let mut wishes: Vec<_> = session
        .followed
        .bearers
        .keys()
        .map(|m| Wish::Remove(*m))
        .collect();
    let numbers = session.followed.sorted.values().map(|it| it.number);
    wishes.extend(numbers.map(|number| Wish::Sorting(number, None)));
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

/// Returns the first element of a type in a message, if there is one.
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

/// Returns the counter of a request that was refused for that cause.
fn refused(cause: Cause) -> Counted {
    match cause {
        Cause::NO_RESOURCES => Counted::Full,
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

fn write_created(writer: &mut Writer, created: &[CreatedPdr]) {
    for CreatedPdr { id, teid } in created {
        let mut group = Writer::group();
        group.element(ElementType::PDR_ID, &id.to_be_bytes());
        debug_assert!(matches!(teid, FTeid::Chosen { .. }));
        group.element(ElementType::F_TEID, &teid.emit());
        writer.grouped(ElementType::CREATED_PDR, &group);
    }
}
