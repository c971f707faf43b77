//! The load: selects the procedures that are due and their users, and counts the responses. Time is a parameter, in
//! nanoseconds.

use super::account::Account;
use super::gtpc;
use super::mix::{Mix, Procedure};
use super::pfcp::{self, Core, User};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use taut_wire::gtpc::{
    Cause as GtpcCause, ElementType as G, FTeid, Message as GtpcMessage, MessageType as GtpcType,
    Writer as GtpcWriter,
};
use taut_wire::pfcp::{Cause, ElementType as E, Message, MessageType, Seid, Writer as PfcpWriter};

/// The recovery counter in the load's GTP-C messages: an arbitrary number that never changes.
const RECOVERY: u8 = 1;
/// The last sequence number of PFCP and GTP-C that is used, because the highest bit has a special meaning in GTP-C.
const SEQUENCES: u32 = 0x7f_ffff;
/// The maximum number of sessions: each user has an address of 10.0.0.0/8.
pub(super) const MOST_SESSIONS: u32 = (1 << 24) - 2;

/// The protocol of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// PFCP, with messages in the form in which the given core writes them.
    Pfcp(Core),
    /// GTP-C, with messages in the form in which an MME writes them.
    Gtpc,
}

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The protocol of the messages.
    pub protocol: Protocol,
    /// The number of users, 1 to 2^24 - 2.
    pub sessions: u32,
    /// The weights by which procedures are drawn.
    pub mix: Mix,
    /// Procedures started per second; 0 for as many as `window` allows.
    pub rate: u64,
    /// The maximum number of procedures that wait for a response at the same time.
    pub window: usize,
    /// The time after which a request is retransmitted, nanoseconds.
    pub response_ns: u64,
    /// The maximum number of retransmissions of a request.
    pub repeats: u32,
    /// The address of the load generator, as its messages contain it.
    pub own: IpAddr,
    /// The address of the base stations that users' tunnels lead to.
    pub base_station: Ipv4Addr,
    /// Seed of the random choices.
    pub seed: u64,
}

/// The state of a user: without a session, idle, or active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Idle,
    Active,
}

/// The stored data of a user's session. It has only 16 bytes, because there may be millions of users.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// The identifier that the peer gave the session.
    remote: u64,
    /// The number of the user's handovers since the start, from which the identifier of the base station's tunnel is
    /// derived.
    moves: u16,
}

/// A procedure that waits for its response.
#[derive(Debug, Clone, Copy)]
struct Flight {
    procedure: Procedure,
    user: u32,
    from: State,
    begun_ns: u64,
    sent: u32,
}

/// A load in progress.
#[derive(Debug)]
pub struct Load {
    plan: Plan,
    users: Vec<Held>,
    /// The users without a pending procedure: a list for each state, in the order of [`State`].
    free: [Vec<u32>; 3],
    flights: HashMap<u32, Flight>,
    /// The scheduled retransmissions, the earliest first: time in ns, sequence number, and how often the request has
    /// been sent.
    due: VecDeque<(u64, u32, u32)>,
    sequence: u32,
    random: fastrand::Rng,
    account: Account,
    /// The time at which the next procedure is due, nanoseconds, if the load has a rate.
    next_ns: u64,
    /// True in the first phase, in which users only attach.
    is_filling: bool,
    sessions: usize,
}

impl Load {
    /// Creates a load that begins with attaching all users.
    pub fn new(plan: Plan) -> Self {
        let count = plan.sessions.clamp(1, MOST_SESSIONS);
        let mut load = Self {
            users: vec![Held::default(); count as usize],
            free: [Vec::new(), Vec::new(), Vec::new()],
            flights: HashMap::new(),
            due: VecDeque::new(),
            sequence: 0,
            random: fastrand::Rng::with_seed(plan.seed),
            account: Account::default(),
            next_ns: 0,
            is_filling: true,
            sessions: 0,
            plan,
        };
        for user in (0..count).rev() {
            load.put(user, State::Absent);
        }
        load
    }

    /// Returns the number of attached users without a pending procedure.
    pub fn sessions(&self) -> usize {
        self.sessions
    }

    /// Returns true once every user has attached, or the attachment was refused.
    pub fn is_full(&self) -> bool {
        self.free[State::Absent as usize].is_empty() && self.flights.is_empty()
    }

    /// Returns true if no procedure waits for a response.
    pub fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }

    /// Ends the present phase: later procedures are drawn from the mix, and counted from 0. Returns the statistics of
    /// the ended phase.
    pub fn next_phase(&mut self, now_ns: u64) -> Account {
        self.is_filling = false;
        self.next_ns = now_ns;
        std::mem::take(&mut self.account)
    }

    /// Writes the next message that is due into `out`; returns false if none is.
    pub fn next(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        while let Some((due, sequence, sent)) = self.due.front().copied()
            && due <= now_ns
        {
            self.due.pop_front();
            let Some(flight) = self.flights.get_mut(&sequence).filter(|it| it.sent == sent) else {
                continue;
            };
            if flight.sent > self.plan.repeats {
                self.give_up(sequence);
                continue;
            }
            flight.sent += 1;
            let flight = *flight;
            self.account.row(flight.procedure).repeated += 1;
            self.wait_for(sequence, flight.sent, now_ns);
            return self.write(&flight, sequence, out);
        }
        let is_due = self.is_filling || self.plan.rate == 0 || now_ns >= self.next_ns;
        if self.flights.len() >= self.plan.window || !is_due {
            return false;
        }
        let Some((procedure, user, from)) = self.draw() else {
            return false;
        };
        if self.plan.rate > 0 && !self.is_filling {
            self.next_ns += 1_000_000_000 / self.plan.rate;
        }
        let sequence = self.sequence();
        let flight = Flight {
            procedure,
            user,
            from,
            begun_ns: now_ns,
            sent: 1,
        };
        if procedure == Procedure::Handover {
            let moves = &mut self.users[user as usize].moves;
            *moves = moves.wrapping_add(1);
        }
        self.flights.insert(sequence, flight);
        self.account.row(procedure).started += 1;
        self.wait_for(sequence, 1, now_ns);
        self.write(&flight, sequence, out)
    }

    /// Returns the time of the next retransmission or procedure, nanoseconds; none if nothing is due until a response
    /// arrives.
    pub fn next_due(&self) -> Option<u64> {
        let again = self.due.front().map(|it| it.0);
        let has_room = self.flights.len() < self.plan.window;
        let new = (has_room && self.plan.rate > 0 && !self.is_filling).then_some(self.next_ns);
        again.into_iter().chain(new).min()
    }

    /// Processes a message of the peer. Returns the response if the message is a request.
    pub fn heard(&mut self, bytes: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        match self.plan.protocol {
            Protocol::Pfcp(_) => self.heard_pfcp(bytes, now_ns),
            Protocol::Gtpc => self.heard_gtpc(bytes, now_ns),
        }
    }

    fn heard_pfcp(&mut self, bytes: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let message = Message::parse(bytes).ok()?;
        let find = |kind: E| {
            message
                .elements
                .flatten()
                .find(|it| it.element_type == kind)
        };
        let kind = message.message_type;
        let response = match kind {
            MessageType::HEARTBEAT_REQUEST => {
                let mut writer = PfcpWriter::message(kind.response(), None, message.sequence);
                let stamp = stamp_of(self.plan.seed);
                writer.element(E::RECOVERY_TIME_STAMP, &stamp.to_be_bytes());
                Some(writer)
            }
            MessageType::SESSION_REPORT_REQUEST => {
                let number = message.seid.unwrap_or(0).wrapping_sub(1);
                let remote = self.users.get(number as usize).map_or(0, |it| it.remote);
                let sequence = message.sequence;
                let mut writer = PfcpWriter::message(kind.response(), Some(remote), sequence);
                writer.element(E::CAUSE, &[Cause::ACCEPTED.0]);
                Some(writer)
            }
            MessageType::NODE_REPORT_REQUEST => {
                let mut writer = PfcpWriter::message(kind.response(), None, message.sequence);
                let node = taut_wire::pfcp::NodeId(self.plan.own);
                writer.element(E::NODE_ID, &node.emit());
                writer.element(E::CAUSE, &[Cause::ACCEPTED.0]);
                Some(writer)
            }
            _ => None,
        };
        if let Some(response) = response {
            self.account.answered += 1;
            return response.finish().ok();
        }
        let cause = find(E::CAUSE).and_then(|it| it.u8().ok());
        let remote = find(E::F_SEID).and_then(|it| Some(Seid::parse(it.value).ok()?.seid));
        let is_accepted = cause == Some(Cause::ACCEPTED.0);
        self.answered(message.sequence, is_accepted, cause, remote, now_ns);
        None
    }

    fn heard_gtpc(&mut self, bytes: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let (message, _) = GtpcMessage::parse(bytes).ok()?;
        let kind = message.message_type;
        let response = match kind {
            GtpcType::ECHO_REQUEST => {
                let mut writer = GtpcWriter::message(kind.response(), None, message.sequence);
                writer.element(G::RECOVERY, &[RECOVERY]);
                Some(writer)
            }
            GtpcType::DOWNLINK_DATA_NOTIFICATION
            | GtpcType::CREATE_BEARER_REQUEST
            | GtpcType::UPDATE_BEARER_REQUEST
            | GtpcType::DELETE_BEARER_REQUEST => {
                let number = message.teid.unwrap_or(0).wrapping_sub(1);
                let remote = self.users.get(number as usize).map_or(0, |it| it.remote);
                let teid = Some(remote as u32);
                let mut writer = GtpcWriter::message(kind.response(), teid, message.sequence);
                // A notification is accepted. Requests about bearers are rejected, because the load has requested no
                // bearers.
                let is_notice = kind == GtpcType::DOWNLINK_DATA_NOTIFICATION;
                writer.element(G::CAUSE, &[if is_notice { 16 } else { 94 }, 0]);
                Some(writer)
            }
            _ => None,
        };
        if let Some(response) = response {
            self.account.answered += 1;
            return response.finish().ok();
        }
        let find = |kind| message.elements.find(kind, 0).ok().flatten();
        let cause = find(G::CAUSE).and_then(|it| GtpcCause::parse(it.value).ok());
        let remote = find(G::F_TEID).and_then(|it| Some(FTeid::parse(it.value).ok()?.teid));
        let is_accepted = cause.is_some_and(|it| it.value.is_acceptance());
        let cause = cause.map(|it| it.value.0);
        let remote = remote.map(u64::from);
        self.answered(message.sequence, is_accepted, cause, remote, now_ns);
        None
    }

    /// Ends the procedure to which a response belongs.
    fn answered(
        &mut self,
        sequence: u32,
        is_accepted: bool,
        cause: Option<u8>,
        remote: Option<u64>,
        now_ns: u64,
    ) {
        let Some(flight) = self.flights.remove(&sequence) else {
            self.account.unexpected += 1;
            return;
        };
        let row = self.account.row(flight.procedure);
        row.answers.record(now_ns.saturating_sub(flight.begun_ns));
        if !is_accepted {
            row.refused += 1;
            self.account.last_cause = cause;
            // In the first phase, a user whose attachment was refused is not attached again, because the phase would
            // never end.
            if !(self.is_filling && flight.from == State::Absent) {
                self.put(flight.user, flight.from);
            }
            return;
        }
        row.accepted += 1;
        let to = match flight.procedure {
            Procedure::Attach => {
                if let Some(remote) = remote {
                    self.users[flight.user as usize].remote = remote;
                }
                self.sessions += 1;
                State::Idle
            }
            Procedure::Active | Procedure::Handover => State::Active,
            Procedure::Idle => State::Idle,
            Procedure::Detach => {
                self.sessions -= 1;
                State::Absent
            }
        };
        self.put(flight.user, to);
    }

    fn give_up(&mut self, sequence: u32) {
        if let Some(flight) = self.flights.remove(&sequence) {
            self.account.row(flight.procedure).lost += 1;
            if !(self.is_filling && flight.from == State::Absent) {
                self.put(flight.user, flight.from);
            }
        }
    }

    /// Draws a procedure by weight, among those that at least one user can begin, and draws such a user.
    fn draw(&mut self) -> Option<(Procedure, u32, State)> {
        if self.is_filling {
            let user = self.free[State::Absent as usize].pop()?;
            return Some((Procedure::Attach, user, State::Absent));
        }
        let weight = |procedure: Procedure| {
            let free = |state: State| self.free[state as usize].len();
            let has_users = match procedure {
                Procedure::Attach => free(State::Absent) > 0,
                Procedure::Active => free(State::Idle) > 0,
                Procedure::Idle | Procedure::Handover => free(State::Active) > 0,
                Procedure::Detach => free(State::Idle) + free(State::Active) > 0,
            };
            match has_users {
                true => self.plan.mix.0[procedure as usize],
                false => 0,
            }
        };
        let weights = Procedure::ALL.map(weight);
        let sum: u32 = weights.iter().sum();
        let mut drawn = self.random.u32(..sum.max(1));
        let mut chosen = None;
        for (procedure, weight) in Procedure::ALL.into_iter().zip(weights) {
            if drawn < weight {
                chosen = Some(procedure);
                break;
            }
            drawn -= weight;
        }
        let procedure = chosen?;
        let from = match procedure {
            Procedure::Attach => State::Absent,
            Procedure::Active => State::Idle,
            Procedure::Idle | Procedure::Handover => State::Active,
            Procedure::Detach if self.free[State::Idle as usize].is_empty() => State::Active,
            Procedure::Detach => State::Idle,
        };
        let list = &mut self.free[from as usize];
        let place = self.random.usize(..list.len());
        let user = list.swap_remove(place);
        Some((procedure, user, from))
    }

    fn put(&mut self, user: u32, state: State) {
        self.free[state as usize].push(user);
    }

    fn wait_for(&mut self, sequence: u32, sent: u32, now_ns: u64) {
        let due = now_ns + self.plan.response_ns;
        self.due.push_back((due, sequence, sent));
    }

    /// Returns a sequence number that no pending procedure has.
    fn sequence(&mut self) -> u32 {
        loop {
            self.sequence = self.sequence % SEQUENCES + 1;
            if !self.flights.contains_key(&self.sequence) {
                return self.sequence;
            }
        }
    }

    fn write(&self, flight: &Flight, sequence: u32, out: &mut Vec<u8>) -> bool {
        let held = self.users[flight.user as usize];
        // The tunnel identifier is unique: it consists of the user's number, and a bit that each handover changes.
        let tunnel = (flight.user + 1) | (u32::from(held.moves & 1) << 24);
        let user = User {
            number: flight.user,
            address: Ipv4Addr::from_bits(0x0a00_0001 + flight.user),
            remote: held.remote,
            tunnel,
            base_station: self.plan.base_station,
            own: self.plan.own,
        };
        let bytes = match self.plan.protocol {
            Protocol::Pfcp(core) => pfcp::request(core, flight.procedure, &user, sequence).finish(),
            Protocol::Gtpc => gtpc::request(flight.procedure, &user, sequence).finish(),
        };
        *out = bytes.unwrap_or_default();
        true
    }

    /// Returns the request that sets up the association (`begins`) or releases it; none if the protocol has no
    /// associations.
    pub(super) fn greeting(&self, begins: bool) -> Option<Vec<u8>> {
        let kind = match begins {
            true => MessageType::ASSOCIATION_SETUP_REQUEST,
            false => MessageType::ASSOCIATION_RELEASE_REQUEST,
        };
        match self.plan.protocol {
            Protocol::Pfcp(_) => {
                let stamp = stamp_of(self.plan.seed);
                let writer = pfcp::association(kind, self.plan.own, stamp, 0);
                writer.finish().ok()
            }
            Protocol::Gtpc => None,
        }
    }

    /// Makes the load draw only detachments from now on, as fast as the window allows.
    pub(super) fn wind_down(&mut self) {
        self.plan.mix = Mix([0, 0, 0, 0, 1]);
        self.plan.rate = 0;
    }
}

/// Returns the PFCP recovery time stamp of the load, which differs from those of runs with other seeds.
fn stamp_of(seed: u64) -> u32 {
    0xe000_0000 | (seed as u32 & 0x0fff_ffff)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MS: u64 = 1_000_000;

    fn plan(protocol: Protocol) -> Plan {
        Plan {
            protocol,
            sessions: 20,
            mix: Mix::default(),
            rate: 0,
            window: 4,
            response_ns: 100 * MS,
            repeats: 2,
            own: [192, 0, 2, 100].into(),
            base_station: [192, 0, 2, 7].into(),
            seed: 1,
        }
    }

    /// Returns the acceptance of a PFCP request.
    fn accept(bytes: &[u8]) -> Vec<u8> {
        let message = Message::parse(bytes).unwrap();
        let kind = message.message_type.response();
        let mut writer = PfcpWriter::message(kind, Some(1), message.sequence);
        writer.element(E::CAUSE, &[1]);
        let seid = Seid {
            seid: 0x1000 + u64::from(message.sequence),
            v4: None,
            v6: None,
        };
        writer.element(E::F_SEID, &seid.emit());
        writer.finish().unwrap()
    }

    #[test]
    fn the_window_bounds_requests_and_every_answer_ends_one() {
        for core in [Core::Open5gs, Core::Free5gc] {
            let mut load = Load::new(plan(Protocol::Pfcp(core)));
            let (mut now, mut out) = (0, Vec::new());
            let mut under_way = VecDeque::new();
            while !load.is_full() {
                while load.next(now, &mut out) {
                    under_way.push_back(out.clone());
                }
                assert!(under_way.len() <= 4);
                now += MS;
                assert_eq!(
                    load.heard(&accept(&under_way.pop_front().unwrap()), now),
                    None
                );
            }
            assert_eq!(load.sessions(), 20);
            let filled = load.next_phase(now).measured(0.5, 20);
            assert_eq!(
                (filled.procedures, filled.lost, filled.unexpected),
                (20, 0, 0)
            );
            assert_eq!(filled.by_procedure.len(), 1);
            for _ in 0..2000 {
                while load.next(now, &mut out) {
                    under_way.push_back(out.clone());
                }
                now += MS;
                load.heard(&accept(&under_way.pop_front().unwrap()), now);
            }
            let done = load.next_phase(now).measured(2.0, load.sessions());
            assert_eq!((done.procedures, done.refused, done.lost), (2000, 0, 0));
            assert_eq!(done.by_procedure.len(), 5);
            let p50 = done.p50_us.unwrap();
            assert!((2_000.0..6_000.0).contains(&p50), "{p50}");
        }
    }

    #[test]
    fn unanswered_requests_are_repeated_unchanged_and_given_up() {
        for protocol in [Protocol::Pfcp(Core::Open5gs), Protocol::Gtpc] {
            let one = Plan {
                sessions: 1,
                ..plan(protocol)
            };
            let mut load = Load::new(one);
            let (mut first, mut again) = (Vec::new(), Vec::new());
            assert!(load.next(0, &mut first) && !load.next(99 * MS, &mut again));
            for round in 1..=2 {
                assert!(load.next(100 * MS * round, &mut again));
                assert_eq!(first, again);
            }
            assert!(!load.next(300 * MS, &mut again));
            assert!(load.is_full());
            let account = load.next_phase(0).measured(1.0, 0);
            assert_eq!(
                (account.repeated, account.lost, account.procedures),
                (2, 1, 0)
            );
        }
    }

    #[test]
    fn a_rate_spaces_procedures_out() {
        let slow = Plan {
            rate: 100,
            window: 1000,
            ..plan(Protocol::Pfcp(Core::Open5gs))
        };
        let (mut load, mut out) = (Load::new(slow), Vec::new());
        while load.next(0, &mut out) {
            let answer = accept(&out);
            load.heard(&answer, 1);
        }
        load.next_phase(0);
        let mut count = 0;
        for ms in 0..500 {
            while load.next(ms * MS, &mut out) {
                let answer = accept(&out);
                load.heard(&answer, ms * MS);
                count += 1;
            }
        }
        assert_eq!(count, 50);
    }
}
