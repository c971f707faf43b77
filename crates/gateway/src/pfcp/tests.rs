#![allow(clippy::unwrap_used)]

mod scapy;

use super::super::buffer::HeldInAll;
use super::super::change::Change;
use super::super::change::{Receiver, changes};
use super::super::peers::Peers;
use super::super::policing::SharedMeters;
use super::super::{Action, Bearer, Classifier, Limits, Match, Path, Together, Wish};
use super::*;
use crate::Control;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_wire::pfcp::{
    Cause, ElementType as E, FTeid, Mbr, Message, MessageType as M, OuterHeaderCreation, Seid,
    Writer,
};

const SMF: &str = "192.0.2.100";
const OWN: &str = "192.0.2.1";
const GNB: [u8; 4] = [192, 0, 2, 7];
const USER: [u8; 4] = [10, 45, 0, 2];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node under test, its table, and a simulated session management function (SMF) that sends requests to the node.
struct Core {
    node: Node,
    control: Control,
    receiver: Receiver,
    sequence: u32,
    now: Instant,
    counts: Arc<Counts>,
}

/// A parsed PFCP response.
#[derive(Debug)]
struct Response {
    kind: u8,
    seid: Option<u64>,
    elements: Vec<(E, Vec<u8>)>,
}

impl Response {
    fn read(bytes: &[u8], sequence: u32) -> Self {
        let message = Message::parse(bytes).unwrap();
        assert_eq!(message.sequence, sequence);
        let elements = message.elements.map(|e| e.unwrap());
        Self {
            kind: message.message_type.0,
            seid: message.seid,
            elements: elements
                .map(|e| (e.element_type, e.value.to_vec()))
                .collect(),
        }
    }

    fn get(&self, kind: E) -> &[u8] {
        let found = self.elements.iter().find(|(k, _)| *k == kind);
        &found
            .unwrap_or_else(|| panic!("{kind:?} is not in {self:?}"))
            .1
    }

    #[track_caller]
    fn cause(&self, cause: Cause) -> &Self {
        assert_eq!(self.get(E::CAUSE), [cause.0], "{self:?}");
        self
    }

    fn up_seid(&self) -> u64 {
        Seid::parse(self.get(E::F_SEID)).unwrap().seid
    }

    /// Returns the tunnel identifiers that the gateway chose, each with the number of its detection rule.
    fn created(&self) -> Vec<(u16, u32)> {
        let of = |value: &[u8]| {
            let group = taut_wire::pfcp::Elements(value);
            let all: Vec<_> = group.map(Result::unwrap).collect();
            let FTeid::Chosen { teid, v4, .. } = FTeid::parse(all[1].value).unwrap() else {
                panic!("not chosen");
            };
            assert_eq!(IpAddr::from(v4.unwrap()), ip(OWN));
            (all[0].u16().unwrap(), teid)
        };
        let created = self.elements.iter().filter(|(k, _)| *k == E::CREATED_PDR);
        created.map(|(_, value)| of(value)).collect()
    }
}

fn group(elements: &[(E, &[u8])]) -> Writer {
    let mut group = Writer::group();
    for (kind, value) in elements {
        group.element(*kind, value);
    }
    group
}

/// The packets that a detection rule matches.
#[derive(Default, Clone, Copy)]
struct Detects<'a> {
    source: u8,
    teid: Option<FTeid>,
    user: bool,
    filter: Option<&'a str>,
    removal: Option<u8>,
    urr: Option<u32>,
}

fn pdr(
    kind: E,
    id: u16,
    precedence: u32,
    detects: Detects<'_>,
    far: u32,
    qers: impl IntoIterator<Item = u32>,
) -> Writer {
    let mut pdi = group(&[(E::SOURCE_INTERFACE, &[detects.source])]);
    if let Some(teid) = detects.teid {
        pdi.element(E::F_TEID, &teid.emit());
    }
    // The network instance is skipped.
    pdi.element(E(22), b"\x08internet");
    if detects.user {
        // The address is the destination if packets come from the network.
        let flags = if detects.source == 0 { 2 } else { 6 };
        pdi.element(E::UE_IP_ADDRESS, &[&[flags][..], &USER].concat());
    }
    if let Some(filter) = detects.filter {
        let length = (filter.len() as u16).to_be_bytes();
        pdi.element(
            E::SDF_FILTER,
            &[&[1, 0][..], &length, filter.as_bytes()].concat(),
        );
    }
    let mut rule = group(&[
        (E::PDR_ID, &id.to_be_bytes()),
        (E::PRECEDENCE, &precedence.to_be_bytes()),
    ]);
    rule.grouped(E::PDI, &pdi);
    if let Some(removal) = detects.removal {
        rule.element(E::OUTER_HEADER_REMOVAL, &[removal]);
    }
    rule.element(E::FAR_ID, &far.to_be_bytes());
    if let Some(urr) = detects.urr {
        rule.element(E::URR_ID, &urr.to_be_bytes());
    }
    for qer in qers {
        rule.element(E::QER_ID, &qer.to_be_bytes());
    }
    let mut outer = Writer::group();
    outer.grouped(kind, &rule);
    outer
}

fn creation(teid: u32, remote: [u8; 4]) -> Vec<u8> {
    let v4 = Some(remote.into());
    OuterHeaderCreation { teid, v4, v6: None }.emit()
}

fn far(id: u32, action: u8, to: u8, tunnel: Option<(u32, [u8; 4])>) -> Writer {
    let mut parameters = group(&[(E(42), &[to])]);
    if let Some((teid, remote)) = tunnel {
        parameters.element(E::OUTER_HEADER_CREATION, &creation(teid, remote));
    }
    let mut rule = group(&[(E::FAR_ID, &id.to_be_bytes()), (E::APPLY_ACTION, &[action])]);
    rule.grouped(E::FORWARDING_PARAMETERS, &parameters);
    let mut outer = Writer::group();
    outer.grouped(E::CREATE_FAR, &rule);
    outer
}

/// Returns an update of forwarding rule `id` that sends the downlink through `tunnel`, as Open5GS writes it.
/// `end_marker` requests an end marker for the earlier tunnel.
fn move_far(id: u32, tunnel: (u32, [u8; 4]), end_marker: bool) -> Writer {
    let mut parameters = group(&[(E::OUTER_HEADER_CREATION, &creation(tunnel.0, tunnel.1))]);
    if end_marker {
        parameters.element(E::PFCPSMREQ_FLAGS, &[2]);
    }
    let mut rule = group(&[(E::FAR_ID, &id.to_be_bytes()), (E::APPLY_ACTION, &[2])]);
    rule.grouped(E::UPDATE_FORWARDING_PARAMETERS, &parameters);
    let mut outer = Writer::group();
    outer.grouped(E::UPDATE_FAR, &rule);
    outer
}

fn qer(kind: E, id: u32, gates: u8) -> Writer {
    let rule = group(&[
        (E::QER_ID, &id.to_be_bytes()),
        (E::GATE_STATUS, &[gates]),
        (E::QFI, &[9]),
    ]);
    let mut outer = Writer::group();
    outer.grouped(kind, &rule);
    outer
}

/// Returns a QoS enforcement rule with uplink and downlink rates in kbit/s, and with gates if the rule is new.
fn limit(kind: E, id: u32, uplink_kbps: u64, downlink_kbps: u64) -> Writer {
    let rates = Mbr {
        uplink_kbps,
        downlink_kbps,
    };
    let mut rule = group(&[(E::QER_ID, &id.to_be_bytes()), (E::MBR, &rates.emit())]);
    if kind == E::CREATE_QER {
        rule.element(E::GATE_STATUS, &[0]);
    }
    // The guaranteed rate is accepted.
    rule.element(E(27), &rates.emit());
    let mut outer = Writer::group();
    outer.grouped(kind, &rule);
    outer
}

const CHOOSE: FTeid = FTeid::Choose {
    v4: true,
    v6: false,
    id: Some(5),
};

/// Returns the rules that Open5GS sends for a session, in its order. Four detection rules come first, two of which
/// share a chosen tunnel. Forwarding rules for each direction and for the control plane, usage rules and QoS rules
/// follow.
fn open5gs_session() -> Vec<Writer> {
    let access = Detects {
        source: 0,
        teid: Some(CHOOSE),
        user: true,
        removal: Some(6),
        urr: Some(1),
        ..Detects::default()
    };
    let core = Detects {
        source: 1,
        user: true,
        urr: Some(1),
        ..Detects::default()
    };
    let control = Detects {
        source: 3,
        teid: Some(FTeid::Choose {
            v4: true,
            v6: false,
            id: None,
        }),
        removal: Some(6),
        ..Detects::default()
    };
    let solicitation = Detects {
        filter: Some("permit out 58 from ff02::2/128 to assigned"),
        ..access
    };
    let mut urr = Writer::group();
    urr.grouped(
        E::CREATE_URR,
        &group(&[
            (E::URR_ID, &1_u32.to_be_bytes()),
            (E(62), &[2]),
            (E(37), &[0, 0, 0]),
        ]),
    );
    vec![
        pdr(E::CREATE_PDR, 1, 255, core, 1, Some(1)),
        pdr(E::CREATE_PDR, 2, 255, access, 2, Some(1)),
        pdr(E::CREATE_PDR, 3, 255, control, 1, None),
        pdr(E::CREATE_PDR, 4, 1, solicitation, 3, None),
        // Before the base station is known, the rule buffers and notifies.
        far(1, 0x0c, 0, None),
        far(2, 2, 1, None),
        far(3, 2, 3, Some((1, [192, 0, 2, 100]))),
        urr,
        qer(E::CREATE_QER, 1, 0),
    ]
}

impl Core {
    fn new(room: usize) -> Self {
        Self::with(room, "")
    }

    /// Creates a test setup with space for `room` bearers, and with `settings` in addition to the address and the
    /// peers.
    fn with(room: usize, settings: &str) -> Self {
        let (mut sender, receiver) = changes(None).unwrap();
        sender.ring.patience = Duration::ZERO;
        let text =
            format!("address = \"{OWN}\"\npeers = [\"{SMF}\", \"2001:db8::100\"]\n{settings}");
        let common = Common {
            bearers: room,
            has_local_sessions: false,
            pools: Vec::new(),
            checks_sources: false,
        };
        let terms = toml::from_str::<Settings>(&text).unwrap().check(&common);
        let (now, counts) = (Instant::now(), Arc::new(Counts::default()));
        Self {
            node: Node::new(&terms.unwrap(), Arc::clone(&counts), now),
            control: Control::new(
                vec![ip(OWN)],
                room,
                sender,
                Together {
                    meters: SharedMeters::new(room),
                    held: HeldInAll::new(16),
                    peers: Peers::new(),
                },
            ),
            receiver,
            sequence: 0,
            now,
            counts,
        }
    }

    fn counted(&self, name: &str) -> u64 {
        let counts = self.counts.read();
        counts.iter().find(|count| count.0 == name).unwrap().1
    }

    /// Returns the messages that the node sends without a request once `time` has passed.
    fn later(&mut self, time: Duration) -> Vec<(SocketAddr, Vec<u8>)> {
        self.now += time;
        self.node.look(self.now, &mut self.control)
    }

    /// Passes a message to the node and returns the response; the worker applies no changes.
    fn handle(&mut self, bytes: &[u8], from: &str) -> Option<Vec<u8>> {
        let from = SocketAddr::new(ip(from), 40_000);
        if !self.node.knows(from) {
            return None;
        }
        self.node.handle(bytes, from, self.now, &mut self.control)
    }

    fn associated(room: usize) -> Self {
        let mut core = Self::new(room);
        core.associate(0xe000_0001).cause(Cause::ACCEPTED);
        core
    }

    fn raw(&mut self, bytes: &[u8], from: &str) -> Option<Vec<u8>> {
        let response = self.handle(bytes, from);
        self.take_changes();
        response
    }

    fn take_changes(&mut self) {
        self.changes();
    }

    fn message(&mut self, kind: M, seid: Option<u64>, parts: &[Writer]) -> Vec<u8> {
        self.sequence += 1;
        let mut writer = Writer::message(kind, seid, self.sequence);
        for part in parts {
            // Each part contains complete elements, which are copied one by one.
            let bytes = part_bytes(part);
            for element in taut_wire::pfcp::Elements(&bytes) {
                let element = element.unwrap();
                writer.element(element.element_type, element.value);
            }
        }
        writer.finish().unwrap()
    }

    fn ask(&mut self, kind: M, seid: Option<u64>, parts: &[Writer]) -> Response {
        let bytes = self.message(kind, seid, parts);
        let response = self.raw(&bytes, SMF).unwrap();
        let response = Response::read(&response, self.sequence);
        assert_eq!(response.kind, kind.0 + 1);
        response
    }

    fn associate(&mut self, stamp: u32) -> Response {
        let setup = group(&[
            (E::NODE_ID, &[0, 192, 0, 2, 100]),
            (E::RECOVERY_TIME_STAMP, &stamp.to_be_bytes()),
            (E(89), &[0]),
        ]);
        self.ask(M::ASSOCIATION_SETUP_REQUEST, None, &[setup])
    }

    fn establish(&mut self, rules: Vec<Writer>) -> Response {
        let bytes = self.establishment(rules);
        let response = self.raw(&bytes, SMF).unwrap();
        Response::read(&response, self.sequence)
    }

    /// Returns the request for a session with the given rules.
    fn establishment(&mut self, rules: Vec<Writer>) -> Vec<u8> {
        let seid = Seid {
            seid: 0x77,
            v4: Some([192, 0, 2, 100].into()),
            v6: None,
        };
        let head = group(&[
            (E::NODE_ID, &[0, 192, 0, 2, 100]),
            (E::F_SEID, &seid.emit()),
        ]);
        let parts: Vec<_> = [head]
            .into_iter()
            .chain(rules)
            .chain([group(&[(E(113), &[1])])])
            .collect();
        self.message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), &parts)
    }

    fn modify(&mut self, seid: u64, parts: &[Writer]) -> Response {
        self.ask(M::SESSION_MODIFICATION_REQUEST, Some(seid), parts)
    }

    /// Returns the match of the last rule in the classifier of `matched`, or `matched` itself if it has no classifier.
    fn last(&self, matched: Match) -> Match {
        match self.control.get(matched).map(|bearer| bearer.action) {
            Some(Action::Classify { number }) => {
                let classifier = self.control.classifier(number).unwrap();
                Classifier::match_of(number, classifier.0.last().unwrap().place)
            }
            _ => matched,
        }
    }

    /// Returns the actions of all rules in the classifier of a match, in order.
    fn actions(&self, matched: Match) -> Vec<Action> {
        let Some(Action::Classify { number }) = self.control.get(matched).map(|it| it.action)
        else {
            panic!("{matched:?} is not classified");
        };
        let choices = self.control.classifier(number).unwrap().0.iter();
        let rules = choices.map(|choice| Classifier::match_of(number, choice.place));
        rules
            .map(|rule| self.control.get(rule).unwrap().action)
            .collect()
    }

    fn action(&self, matched: Match) -> Option<Action> {
        let bearer = self.control.get(self.last(matched));
        bearer.map(|bearer| bearer.action)
    }

    fn limits(&self, matched: Match) -> Limits {
        self.control.limits(self.last(matched))
    }

    /// Returns all changes that the control plane has sent and the worker has not applied.
    fn changes(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        let mut before = 1;
        while before != all.len() {
            before = all.len();
            self.receiver.ring.take(|change| all.push(change));
        }
        all
    }

    /// Returns the rate limits in kbit/s of a bearer, each with the number of its QoS enforcement rule.
    fn kbps(&self, matched: Match) -> Vec<(u32, u64)> {
        let limits = self.limits(matched).into_iter().flatten();
        limits
            .map(|limit| (limit.meter.rule, limit.kbps.get()))
            .collect()
    }

    fn count(&self) -> usize {
        self.control.occupancy().0
    }
}

/// Returns the bytes of an unfinished group. The group is finished as part of a message, from which its bytes are
/// copied.
fn part_bytes(part: &Writer) -> Vec<u8> {
    let mut writer = Writer::message(M(0), None, 0);
    writer.grouped(E(1), part);
    let bytes = writer.finish().unwrap();
    bytes[12..].to_vec()
}

const USER_MATCH: Match = Match::User(IpAddr::V4(std::net::Ipv4Addr::new(10, 45, 0, 2)));

fn to(remote: [u8; 4]) -> Path {
    Path {
        local: ip(OWN),
        remote: remote.into(),
    }
}

#[test]
fn an_open5gs_session_is_established_handed_over_and_deleted() {
    let mut core = Core::associated(100);
    let made = core.establish(open5gs_session());
    made.cause(Cause::ACCEPTED);
    assert_eq!(made.seid, Some(0x77));
    let created = made.created();
    let ids: Vec<_> = created.iter().map(|c| c.0).collect();
    assert_eq!(ids, [2, 3, 4]);
    assert_eq!(created[0].1, created[2].1, "one CHOOSE ID, one tunnel");
    assert_ne!(created[0].1, created[1].1);
    let uplink = Match::Teid(created[0].1);
    assert_eq!(core.action(uplink), Some(Action::Decapsulate));
    assert_eq!(core.action(USER_MATCH), Some(Action::Hold));
    // Two tunnels or users are classified by one rule each, and one by two rules.
    assert_eq!(core.count(), 7);
    // The base station has responded.
    let seid = made.up_seid();
    core.modify(seid, &[move_far(1, (0x20, GNB), false)])
        .cause(Cause::ACCEPTED);
    let down = |teid, remote| Action::Encapsulate {
        teid,
        qfi: Some(9),
        path: to(remote),
    };
    assert_eq!(core.action(USER_MATCH), Some(down(0x20, GNB)));
    // The handover has an end marker on the old path.
    let bytes = core.message(
        M::SESSION_MODIFICATION_REQUEST,
        Some(seid),
        &[move_far(1, (0x30, [192, 0, 2, 8]), true)],
    );
    let response = core.handle(&bytes, SMF).unwrap();
    Response::read(&response, core.sequence).cause(Cause::ACCEPTED);
    let changes = core.changes();
    let at = |wanted: fn(&Change) -> bool| changes.iter().position(wanted).unwrap();
    let end = at(|c| matches!(c, Change::EndMarker { teid: 0x20, .. }));
    let set = at(|c| matches!(c, Change::Set(slot) if slot.teid == 0x30));
    assert!(end < set);
    assert_eq!(core.action(USER_MATCH), Some(down(0x30, [192, 0, 2, 8])));
    // Gates close and open.
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0b0101)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.action(USER_MATCH), Some(Action::Block));
    assert_eq!(core.action(uplink), Some(Action::Block));
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0b0100)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.action(uplink), Some(Action::Block));
    assert_eq!(core.action(USER_MATCH), Some(down(0x30, [192, 0, 2, 8])));
    // Undefined values mean closed (section 8.2.7).
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0b0010)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.action(uplink), Some(Action::Decapsulate));
    assert_eq!(core.action(USER_MATCH), Some(Action::Block));
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.action(uplink), Some(Action::Decapsulate));
    let ended = core.ask(M::SESSION_DELETION_REQUEST, Some(seid), &[]);
    ended.cause(Cause::ACCEPTED);
    assert_eq!((ended.seid, core.count()), (Some(0x77), 0));
    core.ask(M::SESSION_DELETION_REQUEST, Some(seid), &[])
        .cause(Cause::SESSION_NOT_FOUND);
}

#[test]
fn an_old_tunnel_gets_one_end_marker_even_without_traffic() {
    let mut core = Core::associated(100);
    let its_users = Detects {
        source: 1,
        ..Detects::default()
    };
    // One tunnel has two forwarding rules; the second rule is that of a single flow.
    let mut rules = open5gs_session();
    rules.push(pdr(E::CREATE_PDR, 5, 256, its_users, 5, Some(1)));
    rules.push(far(5, 0x0c, 0, None));
    let seid = core.establish(rules).up_seid();
    let mut move_both = |to: (u32, [u8; 4]), gates: u8| {
        let parts = [
            move_far(1, to, true),
            move_far(5, to, true),
            qer(E::UPDATE_QER, 1, gates),
        ];
        let bytes = core.message(M::SESSION_MODIFICATION_REQUEST, Some(seid), &parts);
        let response = core.handle(&bytes, SMF);
        Response::read(&response.unwrap(), core.sequence).cause(Cause::ACCEPTED);
        let changes = core.changes().into_iter();
        let ended = changes.filter_map(|change| match change {
            Change::EndMarker { teid, .. } => Some(teid),
            _ => None,
        });
        ended.collect::<Vec<u32>>()
    };
    assert!(move_both((0x20, GNB), 0).is_empty(), "there was none");
    assert!(move_both((0x20, GNB), 0).is_empty(), "it stays");
    assert_eq!(move_both((0x30, GNB), 0b0101), [0x20]);
    // No packet has passed the closed gate since the last move; the end marker is sent all the same.
    assert_eq!(move_both((0x40, GNB), 0b0101), [0x30]);
}

#[test]
fn maximum_bit_rates_apply_per_direction_until_qer_removal() {
    let mut core = Core::associated(100);
    let mut rules = open5gs_session();
    rules.pop();
    rules.push(limit(E::CREATE_QER, 1, 1000, 2000));
    let made = core.establish(rules);
    made.cause(Cause::ACCEPTED);
    let seid = made.up_seid();
    let uplink = Match::Teid(made.created()[0].1);
    assert_eq!(core.kbps(uplink), [(1, 1000)]);
    assert_eq!(core.kbps(USER_MATCH), [(1, 2000)]);
    let of_control = Match::Teid(made.created()[1].1);
    assert_eq!(core.kbps(of_control), []);
    // The base station responds, and the user moves to another base station: the meter stays.
    let meter = core.limits(USER_MATCH);
    for (teid, end_marker) in [(0x20, false), (0x30, true)] {
        core.modify(seid, &[move_far(1, (teid, GNB), end_marker)])
            .cause(Cause::ACCEPTED);
        assert_eq!(core.limits(USER_MATCH), meter);
    }
    // Elements that an update omits stay: the gate in the first update, the rates in the second one.
    core.modify(seid, &[limit(E::UPDATE_QER, 1, 1000, 500)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.kbps(USER_MATCH), [(1, 500)]);
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0b0101)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.action(USER_MATCH), Some(Action::Block));
    core.modify(seid, &[qer(E::UPDATE_QER, 1, 0)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.kbps(USER_MATCH), [(1, 500)]);
    // A rate of 0 means that there is no limit; the other direction keeps its rate.
    core.modify(seid, &[limit(E::UPDATE_QER, 1, 1000, 0)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.kbps(USER_MATCH), []);
    assert_eq!(core.kbps(uplink), [(1, 1000)]);
    // A truncated rule changes nothing.
    let id = 1_u32.to_be_bytes();
    let mut short = Writer::group();
    let cut = group(&[(E::QER_ID, &id), (E::MBR, &[0; 9])]);
    short.grouped(E::UPDATE_QER, &cut);
    core.modify(seid, &[short]).cause(Cause::INVALID_LENGTH);
    assert_eq!(core.kbps(uplink), [(1, 1000)]);
    // A rule that detection rules name cannot be removed; another replaces it.
    let mut gone = Writer::group();
    gone.grouped(E::REMOVE_QER, &group(&[(E::QER_ID, &id)]));
    core.modify(seid, &[gone.clone()])
        .cause(Cause::RULE_FAILURE);
    assert_eq!(core.kbps(uplink), [(1, 1000)]);
    let its = |source| Detects {
        source,
        ..Detects::default()
    };
    let parts = [
        gone,
        limit(E::CREATE_QER, 2, 3000, 4000),
        pdr(E::UPDATE_PDR, 1, 255, its(1), 1, Some(2)),
        pdr(E::UPDATE_PDR, 2, 255, its(0), 2, Some(2)),
    ];
    core.modify(seid, &parts).cause(Cause::ACCEPTED);
    assert_eq!(core.kbps(uplink), [(2, 3000)]);
    assert_eq!(core.kbps(USER_MATCH), [(2, 4000)]);
    core.ask(M::SESSION_DELETION_REQUEST, Some(seid), &[])
        .cause(Cause::ACCEPTED);
    assert_eq!((core.kbps(uplink), core.kbps(USER_MATCH)), (vec![], vec![]));
}

#[test]
fn flows_obey_two_rate_limits_and_three_limits_are_refused() {
    let mut core = Core::associated(100);
    let up = Detects {
        source: 0,
        teid: Some(FTeid::Chosen {
            teid: 0x10,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
        }),
        ..Detects::default()
    };
    let down = Detects {
        source: 1,
        user: true,
        ..Detects::default()
    };
    let with = |rules: &[u32]| {
        vec![
            pdr(E::CREATE_PDR, 1, 255, up, 1, rules.iter().copied()),
            pdr(E::CREATE_PDR, 2, 255, down, 2, rules.iter().copied()),
            far(1, 2, 1, None),
            far(2, 2, 0, Some((0x20, GNB))),
            limit(E::CREATE_QER, 1, 1000, 2000),
            limit(E::CREATE_QER, 2, 300, 400),
            qer(E::CREATE_QER, 3, 0),
            limit(E::CREATE_QER, 4, 1, 1),
        ]
    };
    core.establish(with(&[1, 2, 3, 4]))
        .cause(Cause::RULE_FAILURE);
    assert_eq!(core.count(), 0);
    let made = core.establish(with(&[1, 2, 3]));
    made.cause(Cause::ACCEPTED);
    assert_eq!(core.kbps(Match::Teid(0x10)), [(1, 1000), (2, 300)]);
    assert_eq!(core.kbps(USER_MATCH), [(1, 2000), (2, 400)]);
    // The meters of a restarted control plane end with its sessions.
    core.associate(2).cause(Cause::ACCEPTED);
    assert_eq!((core.count(), core.kbps(USER_MATCH)), (0, vec![]));
}

#[test]
fn a_free5gc_session_uses_the_tunnels_chosen_by_the_smf() {
    let mut core = Core::associated(100);
    let given = FTeid::Chosen {
        teid: 0x10,
        v4: Some([192, 0, 2, 1].into()),
        v6: None,
    };
    let access = Detects {
        source: 0,
        teid: Some(given),
        user: true,
        filter: Some("permit out ip from any to assigned"),
        removal: Some(0),
        urr: None,
    };
    let core_side = Detects {
        source: 1,
        user: true,
        filter: Some("permit out ip from any to assigned"),
        ..Detects::default()
    };
    let made = core.establish(vec![
        pdr(E::CREATE_PDR, 1, 255, access, 1, Some(1)),
        pdr(E::CREATE_PDR, 2, 255, core_side, 2, Some(1)),
        far(1, 2, 1, None),
        far(2, 1, 0, None),
        qer(E::CREATE_QER, 1, 0),
    ]);
    made.cause(Cause::ACCEPTED);
    assert_eq!(made.created(), []);
    assert_eq!(core.action(Match::Teid(0x10)), Some(Action::Decapsulate));
    assert_eq!(core.action(USER_MATCH), Some(Action::Drop));
    core.modify(made.up_seid(), &[move_far(2, (0x20, GNB), false)])
        .cause(Cause::ACCEPTED);
    assert!(matches!(
        core.action(USER_MATCH),
        Some(Action::Encapsulate { teid: 0x20, .. })
    ));
    // Another session must not use the same tunnel or user.
    let rules = vec![
        pdr(E::CREATE_PDR, 1, 255, access, 1, None),
        far(1, 2, 1, None),
    ];
    core.establish(rules).cause(Cause::RULE_FAILURE);
    assert_eq!(core.count(), 2);
}

#[test]
fn rules_for_single_flows_need_no_tunnel_or_user_address() {
    let mut core = Core::associated(100);
    let seid = core.establish(open5gs_session()).up_seid();
    core.modify(seid, &[move_far(1, (0x20, GNB), false)])
        .cause(Cause::ACCEPTED);
    let before = core.action(USER_MATCH);
    let flow = Detects {
        source: 1,
        filter: Some("permit out 17 from 198.51.100.7 5060 to assigned"),
        ..Detects::default()
    };
    let up = Detects { source: 0, ..flow };
    let parts = [
        pdr(E::CREATE_PDR, 11, 20, flow, 11, Some(2)),
        pdr(E::CREATE_PDR, 12, 20, up, 12, Some(2)),
        far(11, 2, 0, Some((0x20, GNB))),
        far(12, 2, 1, None),
        qer(E::CREATE_QER, 2, 0),
    ];
    core.modify(seid, &parts).cause(Cause::ACCEPTED);
    assert_eq!(
        core.action(USER_MATCH),
        before,
        "the rule for all packets still decides"
    );
    let remove = |kind, id_kind, id: &[u8]| {
        let mut outer = Writer::group();
        outer.grouped(kind, &group(&[(id_kind, id)]));
        outer
    };
    let id = 11_u16.to_be_bytes();
    core.modify(seid, &[remove(E::REMOVE_PDR, E::PDR_ID, &id)])
        .cause(Cause::ACCEPTED);
    let again = core.modify(seid, &[remove(E::REMOVE_PDR, E::PDR_ID, &id)]);
    again.cause(Cause::RULE_FAILURE);
    assert_eq!(again.get(E::FAILED_RULE_ID), [0, 0, 11]);
    // An update that omits the tunnel keeps it.
    let uplink: Vec<_> = core
        .control
        .bearers()
        .filter(|b| b.action == Action::Decapsulate)
        .collect();
    let access = Detects {
        source: 0,
        removal: Some(6),
        ..Detects::default()
    };
    core.modify(seid, &[pdr(E::UPDATE_PDR, 2, 200, access, 2, None)])
        .cause(Cause::ACCEPTED);
    let now: Vec<Bearer> = core
        .control
        .bearers()
        .filter(|b| b.action == Action::Decapsulate)
        .collect();
    assert_eq!(now, uplink);
}

#[test]
fn a_flow_takes_its_own_path_by_rule_precedence() {
    let mut core = Core::associated(100);
    let seid = core.establish(open5gs_session()).up_seid();
    core.modify(seid, &[move_far(1, (0x20, GNB), false)])
        .cause(Cause::ACCEPTED);
    let others = core.action(USER_MATCH).unwrap();
    let flow = Detects {
        source: 1,
        filter: Some("permit out 17 from 198.51.100.7 5060 to assigned"),
        ..Detects::default()
    };
    let up = Detects { source: 0, ..flow };
    let other = Detects {
        filter: Some("permit out 6 from any 80,443 to assigned"),
        ..flow
    };
    let parts = [
        pdr(E::CREATE_PDR, 11, 20, flow, 11, None),
        pdr(E::CREATE_PDR, 12, 20, up, 2, Some(2)),
        pdr(E::CREATE_PDR, 13, 10, other, 13, None),
        far(11, 2, 0, Some((0x40, GNB))),
        far(13, 1, 0, None),
        qer(E::CREATE_QER, 2, 0b0101),
    ];
    core.modify(seid, &parts).cause(Cause::ACCEPTED);
    let to = |teid| Action::Encapsulate {
        teid,
        qfi: None,
        path: to(GNB),
    };
    assert_eq!(core.actions(USER_MATCH), [Action::Drop, to(0x40), others]);
    core.node.check(&core.control).unwrap();
    // The order of the rules is reversed and one rule is removed: the other rules keep their positions.
    let before = core.changes();
    assert!(before.is_empty());
    core.modify(seid, &[pdr(E::UPDATE_PDR, 13, 30, other, 13, None)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.actions(USER_MATCH), [to(0x40), Action::Drop, others]);
    let mut gone = Writer::group();
    let id = 11_u16.to_be_bytes();
    gone.grouped(E::REMOVE_PDR, &group(&[(E::PDR_ID, &id)]));
    core.modify(seid, &[gone]).cause(Cause::ACCEPTED);
    assert_eq!(core.actions(USER_MATCH), [Action::Drop, others]);
    core.node.check(&core.control).unwrap();
    // A rule after one for all packets is never evaluated.
    core.modify(seid, &[pdr(E::UPDATE_PDR, 13, 300, other, 13, None)])
        .cause(Cause::ACCEPTED);
    assert_eq!(core.actions(USER_MATCH), [others]);
    core.ask(M::SESSION_DELETION_REQUEST, Some(seid), &[])
        .cause(Cause::ACCEPTED);
    assert_eq!((core.count(), core.control.classifiers().len()), (0, 0));
}

#[test]
fn an_application_rule_is_refused_or_matched_last_as_configured() {
    for (settings, cause) in [
        ("", Cause::RULE_FAILURE),
        ("applications = \"ignore\"", Cause::ACCEPTED),
    ] {
        let mut core = Core::with(100, settings);
        core.associate(1).cause(Cause::ACCEPTED);
        let seid = core.establish(open5gs_session()).up_seid();
        let others = core.action(USER_MATCH);
        let pdi = group(&[(E::SOURCE_INTERFACE, &[1]), (E::APPLICATION_ID, b"video")]);
        let mut rule = group(&[(E::PDR_ID, &[0, 11]), (E::PRECEDENCE, &[0, 0, 0, 1])]);
        rule.grouped(E::PDI, &pdi);
        rule.element(E::FAR_ID, &11_u32.to_be_bytes());
        let mut outer = Writer::group();
        outer.grouped(E::CREATE_PDR, &rule);
        let answer = core.modify(seid, &[outer, far(11, 1, 0, None)]);
        answer.cause(cause);
        if cause == Cause::RULE_FAILURE {
            assert_eq!(answer.get(E::FAILED_RULE_ID), [0, 0, 11]);
        }
        assert_eq!(core.action(USER_MATCH), others);
    }
}

#[test]
fn invalid_requests_are_refused_with_their_cause_and_change_nothing() {
    let mut core = Core::associated(3);
    let user = Detects {
        source: 1,
        user: true,
        ..Detects::default()
    };
    let access = Detects {
        teid: Some(CHOOSE),
        removal: Some(6),
        ..Detects::default()
    };
    let head = || group(&[(E::NODE_ID, &[0, 192, 0, 2, 100])]);
    // These elements are mandatory.
    let refused = core.ask(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), &[head()]);
    refused.cause(Cause::MANDATORY_IE_MISSING);
    assert_eq!(refused.get(E::OFFENDING_IE), E::F_SEID.0.to_be_bytes());
    let refused = core.establish(vec![far(1, 2, 0, None)]);
    assert_eq!(refused.get(E::OFFENDING_IE), E::CREATE_PDR.0.to_be_bytes());
    assert_eq!(refused.seid, Some(0x77));
    let mut rule = Writer::group();
    rule.grouped(E::CREATE_QER, &group(&[(E::QER_ID, &[0, 0, 0, 1])]));
    let refused = core.establish(vec![
        pdr(E::CREATE_PDR, 7, 1, user, 1, None),
        far(1, 2, 0, None),
        rule,
    ]);
    refused.cause(Cause::MANDATORY_IE_MISSING);
    assert_eq!(refused.get(E::OFFENDING_IE), E::GATE_STATUS.0.to_be_bytes());
    // The filter is truncated.
    let mut pdi = group(&[(E::SOURCE_INTERFACE, &[1])]);
    pdi.element(E::SDF_FILTER, &[1, 0, 0, 9, b'p']);
    let mut rule = group(&[(E::PDR_ID, &[0, 7]), (E::PRECEDENCE, &[0; 4])]);
    rule.grouped(E::PDI, &pdi);
    rule.element(E::FAR_ID, &[0, 0, 0, 1]);
    let mut cut = Writer::group();
    cut.grouped(E::CREATE_PDR, &rule);
    core.establish(vec![cut, far(1, 2, 0, None)])
        .cause(Cause::INVALID_LENGTH);
    // The detection rule refers to a forwarding rule that does not exist.
    let refused = core.establish(vec![
        pdr(E::CREATE_PDR, 7, 1, user, 9, None),
        far(1, 2, 0, None),
    ]);
    refused.cause(Cause::RULE_FAILURE);
    assert_eq!(refused.get(E::FAILED_RULE_ID), [0, 0, 7]);
    // The outer headers to remove are not those of GTP-U.
    let odd = Detects {
        removal: Some(2),
        ..access
    };
    core.establish(vec![
        pdr(E::CREATE_PDR, 7, 1, odd, 1, None),
        far(1, 2, 0, None),
    ])
    .cause(Cause::RULE_FAILURE);
    // The tunnel is IPv6 only, and this gateway has no IPv6 address.
    let six = Detects {
        teid: Some(FTeid::Choose {
            v4: false,
            v6: true,
            id: None,
        }),
        ..access
    };
    core.establish(vec![
        pdr(E::CREATE_PDR, 7, 1, six, 1, None),
        far(1, 2, 0, None),
    ])
    .cause(Cause::INVALID_F_TEID_ALLOCATION);
    // The rule has no action.
    core.establish(vec![
        pdr(E::CREATE_PDR, 7, 1, access, 1, None),
        far(1, 0, 0, None),
    ])
    .cause(Cause::RULE_FAILURE);
    // A length inside a group is wrong.
    let mut broken = Writer::group();
    broken.element(E::CREATE_FAR, &[0, 108, 0, 9, 1]);
    core.establish(vec![pdr(E::CREATE_PDR, 7, 1, access, 1, None), broken])
        .cause(Cause::INVALID_LENGTH);
    assert_eq!(core.count(), 0);
    // The table is full.
    let rules = |n: u16| {
        (0..n)
            .map(|i| {
                let teid = Some(FTeid::Choose {
                    v4: true,
                    v6: false,
                    id: None,
                });
                pdr(E::CREATE_PDR, i, 1, Detects { teid, ..access }, 1, None)
            })
            .chain([far(1, 2, 1, None)])
            .collect()
    };
    core.establish(rules(4)).cause(Cause::NO_RESOURCES);
    assert_eq!(core.count(), 0);
    let seid = core.establish(rules(3)).cause(Cause::ACCEPTED).up_seid();
    // A modification that fails half-way leaves the session unchanged.
    let parts = [
        far(1, 1, 0, None),
        pdr(E::UPDATE_PDR, 99, 1, access, 1, None),
    ];
    core.modify(seid, &parts).cause(Cause::RULE_FAILURE);
    assert!(
        core.control
            .bearers()
            .all(|b| b.action == Action::Decapsulate)
    );
    core.modify(seid + 1, &[]).cause(Cause::SESSION_NOT_FOUND);
    for kind in [
        M::PFD_MANAGEMENT_REQUEST,
        M::NODE_REPORT_REQUEST,
        M::SESSION_SET_DELETION_REQUEST,
        M::SESSION_REPORT_REQUEST,
    ] {
        core.ask(kind, None, &[head()])
            .cause(Cause::SERVICE_NOT_SUPPORTED);
    }
    core.ask(M::ASSOCIATION_UPDATE_REQUEST, None, &[head()])
        .cause(Cause::ACCEPTED);
    core.ask(M::ASSOCIATION_SETUP_REQUEST, None, &[head()])
        .cause(Cause::MANDATORY_IE_MISSING);
    let odd = group(&[(E::NODE_ID, &[7, 1])]);
    core.ask(M::ASSOCIATION_SETUP_REQUEST, None, &[odd])
        .cause(Cause::MANDATORY_IE_INCORRECT);
}

#[test]
fn sessions_exist_only_within_an_association() {
    let mut core = Core::new(100);
    core.establish(open5gs_session())
        .cause(Cause::NO_ASSOCIATION);
    core.associate(1);
    core.establish(open5gs_session()).cause(Cause::ACCEPTED);
    assert_eq!(core.count(), 7);
    let head = group(&[(E::NODE_ID, &[0, 192, 0, 2, 100])]);
    core.ask(
        M::ASSOCIATION_RELEASE_REQUEST,
        None,
        std::slice::from_ref(&head),
    )
    .cause(Cause::ACCEPTED);
    assert_eq!(core.count(), 0);
    core.ask(M::ASSOCIATION_RELEASE_REQUEST, None, &[head])
        .cause(Cause::NO_ASSOCIATION);
}

#[test]
fn sessions_end_when_a_peer_or_the_gateway_restarts() {
    let mut core = Core::associated(100);
    core.establish(open5gs_session()).cause(Cause::ACCEPTED);
    let heartbeat = |stamp: u32| group(&[(E::RECOVERY_TIME_STAMP, &stamp.to_be_bytes())]);
    // The same time stamp means no restart.
    let mine = core.ask(M::HEARTBEAT_REQUEST, None, &[heartbeat(0xe000_0001)]);
    let mine = mine.get(E::RECOVERY_TIME_STAMP).to_vec();
    assert_eq!(core.count(), 7);
    core.ask(M::HEARTBEAT_REQUEST, None, &[heartbeat(0xe000_0002)]);
    assert_eq!(core.count(), 0);
    core.establish(open5gs_session())
        .cause(Cause::NO_ASSOCIATION);
    let again = core.associate(0xe000_0002);
    assert_eq!(
        again.get(E::RECOVERY_TIME_STAMP),
        mine,
        "we did not start anew"
    );
    assert_eq!(again.get(E::UP_FUNCTION_FEATURES), [0x12, 1]);
    core.establish(open5gs_session()).cause(Cause::ACCEPTED);
    // A second association begins without sessions.
    core.associate(0xe000_0002);
    assert_eq!(core.count(), 0);
    // The gateway restarts: its time stamp differs after at most a second, and old sessions are not found.
    let seid = core.establish(open5gs_session()).up_seid();
    let begun = Instant::now();
    let mut newer = loop {
        let waited = begun.elapsed();
        let mut newer = Core::associated(100);
        if newer.associate(5).get(E::RECOVERY_TIME_STAMP) != mine {
            break newer;
        }
        assert!(
            waited <= Duration::from_secs(1),
            "the same after {waited:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    newer.modify(seid, &[]).cause(Cause::SESSION_NOT_FOUND);
    assert_ne!(newer.establish(open5gs_session()).up_seid(), seid);
}

#[test]
fn a_retransmitted_request_gets_a_reply_and_executes_once() {
    let mut core = Core::associated(100);
    let made = core.establish(open5gs_session());
    let bytes = core.message(M::SESSION_DELETION_REQUEST, Some(made.up_seid()), &[]);
    let first = core.raw(&bytes, SMF).unwrap();
    assert_eq!(core.raw(&bytes, SMF).unwrap(), first);
    Response::read(&first, core.sequence).cause(Cause::ACCEPTED);
}

#[test]
fn unknown_peers_are_ignored_and_sessions_belong_to_their_peer() {
    let mut core = Core::associated(100);
    let seid = core.establish(open5gs_session()).up_seid();
    let bytes = core.message(M::SESSION_DELETION_REQUEST, Some(seid), &[]);
    assert_eq!(core.raw(&bytes, "192.0.2.66"), None);
    assert_eq!(core.counted("from strangers"), 1);
    let other = core.raw(&bytes, "2001:db8::100").unwrap();
    Response::read(&other, core.sequence).cause(Cause::SESSION_NOT_FOUND);
    assert_eq!(core.count(), 7);
}

#[test]
fn unsupported_pfcp_versions_get_a_reply_and_invalid_messages_none() {
    let mut core = Core::associated(100);
    let mut bytes = core.message(M::HEARTBEAT_REQUEST, None, &[]);
    bytes[0] = 0x40;
    let told = core.raw(&bytes, SMF).unwrap();
    assert_eq!(told[..4], [0x20, 11, 0, 4]);
    let response = core.message(M::HEARTBEAT_RESPONSE, None, &[]);
    assert_eq!(core.raw(&response, SMF), None);
    let unknown = core.message(M(99), None, &[]);
    assert_eq!(core.raw(&unknown, SMF), None);
    assert_eq!(core.raw(&[], SMF), None);
    assert_eq!(core.raw(&[0x20, 1, 0, 99, 0], SMF), None);
}

#[test]
fn damaged_requests_never_panic_and_leave_a_consistent_table() {
    let mut core = Core::associated(50);
    let mut random = fastrand::Rng::with_seed(11);
    let seid = core.establish(open5gs_session()).up_seid();
    let establish = {
        let seid = Seid {
            seid: 0x77,
            v4: None,
            v6: None,
        };
        let head = group(&[
            (E::NODE_ID, &[0, 192, 0, 2, 100]),
            (E::F_SEID, &seid.emit()),
        ]);
        let parts: Vec<_> = [head].into_iter().chain(open5gs_session()).collect();
        core.message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), &parts)
    };
    let modify = core.message(
        M::SESSION_MODIFICATION_REQUEST,
        Some(seid),
        &[move_far(1, (0x20, GNB), true), qer(E::UPDATE_QER, 1, 0)],
    );
    let cases = [establish, modify];
    for case in &cases {
        for length in 0..case.len() {
            // The length in the message header is adjusted, so that the message is complete but its contents are
            // truncated.
            let mut cut = case[..length].to_vec();
            if length > 4 {
                let length = (length as u16 - 4).to_be_bytes();
                cut[2..4].copy_from_slice(&length);
            }
            core.raw(&cut, SMF);
        }
    }
    for _ in 0..5000 {
        let mut bytes = cases[random.usize(..2)].clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(4..bytes.len());
            bytes[at] = random.u8(..);
        }
        core.raw(&bytes, SMF);
    }
    let head = group(&[(E::NODE_ID, &[0, 192, 0, 2, 100])]);
    core.associate(77).cause(Cause::ACCEPTED);
    assert_eq!(core.count(), 0);
    core.ask(M::ASSOCIATION_RELEASE_REQUEST, None, &[head])
        .cause(Cause::ACCEPTED);
}

#[test]
fn a_session_continues_while_the_data_plane_accepts_no_changes() {
    let mut core = Core::associated(10_000);
    let seid = core.establish(open5gs_session()).up_seid();
    // The changes fill the ring; the worker applies none of them.
    let fill: Vec<_> = (1..6000)
        .map(|teid| {
            let matched = Match::Teid(teid);
            Wish::Add(Bearer {
                matched,
                action: Action::Drop,
            })
        })
        .collect();
    core.control.grant(&fill).unwrap();
    let bytes = core.message(M::SESSION_DELETION_REQUEST, Some(seid), &[]);
    let refused = core.handle(&bytes, SMF).unwrap();
    Response::read(&refused, core.sequence).cause(Cause::SYSTEM_FAILURE);
    // The session's peer leaves as well: its remaining bearers are removed from the table when that is possible.
    let head = group(&[(E::NODE_ID, &[0, 192, 0, 2, 100])]);
    let bytes = core.message(M::ASSOCIATION_RELEASE_REQUEST, None, &[head]);
    core.handle(&bytes, SMF).unwrap();
    core.later(Duration::ZERO);
    assert_eq!(core.count(), 5999 + 7);
    core.take_changes();
    core.later(Duration::ZERO);
    core.take_changes();
    assert_eq!(core.count(), 5999);
    assert_eq!(core.counted("sessions"), 0);
}

/// Returns the rules of a session of one tunnel with the identifier `teid` and one forwarding rule.
fn small_session(teid: u32) -> Vec<Writer> {
    let access = Detects {
        teid: Some(FTeid::Chosen {
            teid,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
        }),
        ..Detects::default()
    };
    vec![
        pdr(E::CREATE_PDR, 1, 1, access, 1, None),
        far(1, 2, 1, None),
    ]
}

#[test]
fn each_peer_has_reserved_sessions_and_bearers() {
    const OTHER: &str = "2001:db8::100";
    let mut core = Core::with(10, "sessions = 4\n");
    core.associate(1).cause(Cause::ACCEPTED);
    // Each peer has half of both limits: two sessions, and five bearers.
    let first = core.establish(small_session(1)).up_seid();
    core.establish(small_session(2)).cause(Cause::ACCEPTED);
    core.establish(small_session(3)).cause(Cause::NO_RESOURCES);
    let more = |ids: std::ops::RangeInclusive<u16>| {
        let tunnel = |id| {
            let teid = 100 + u32::from(id);
            let v4 = Some([192, 0, 2, 1].into());
            let access = Detects {
                teid: Some(FTeid::Chosen { teid, v4, v6: None }),
                ..Detects::default()
            };
            pdr(E::CREATE_PDR, id, 1, access, 1, None)
        };
        ids.map(tunnel).collect::<Vec<_>>()
    };
    core.modify(first, &more(2..=5)).cause(Cause::NO_RESOURCES);
    core.modify(first, &more(2..=4)).cause(Cause::ACCEPTED);
    assert_eq!(core.count(), 5);
    core.node.check(&core.control).unwrap();
    // The other peer can use its half even after the first peer has used its own.
    let setup = group(&[
        (E::NODE_ID, &[0, 192, 0, 2, 101]),
        (E::RECOVERY_TIME_STAMP, &[0, 0, 0, 1]),
    ]);
    let cause = |core: &mut Core, bytes: &[u8], wanted| {
        let response = core.raw(bytes, OTHER).unwrap();
        Response::read(&response, core.sequence).cause(wanted);
    };
    let bytes = core.message(M::ASSOCIATION_SETUP_REQUEST, None, &[setup]);
    cause(&mut core, &bytes, Cause::ACCEPTED);
    for (teid, wanted) in [
        (4, Cause::ACCEPTED),
        (5, Cause::ACCEPTED),
        (6, Cause::NO_RESOURCES),
    ] {
        let bytes = core.establishment(small_session(teid));
        cause(&mut core, &bytes, wanted);
    }
    // Released resources are available to the same peer again.
    core.ask(M::SESSION_DELETION_REQUEST, Some(first), &[])
        .cause(Cause::ACCEPTED);
    core.establish(small_session(7)).cause(Cause::ACCEPTED);
    core.node.check(&core.control).unwrap();
}

#[test]
fn sessions_and_rules_beyond_their_limits_are_refused() {
    let mut core = Core::with(100, "sessions = 2\npeer_sessions = 2\nrules = 4\n");
    core.associate(1).cause(Cause::ACCEPTED);
    let seids = [1, 2].map(|teid| {
        let made = core.establish(small_session(teid));
        made.cause(Cause::ACCEPTED).up_seid()
    });
    core.establish(small_session(3)).cause(Cause::NO_RESOURCES);
    assert_eq!((core.count(), core.counted("sessions")), (2, 2));
    // Two more rules fit, three do not; a detection rule counts with the rules that it names.
    let more = |from: u32, to| (from..to).map(|id| far(id, 2, 0, None)).collect::<Vec<_>>();
    core.modify(seids[0], &more(2, 5))
        .cause(Cause::NO_RESOURCES);
    let named = [
        pdr(E::UPDATE_PDR, 1, 1, Detects::default(), 1, [1]),
        qer(E::CREATE_QER, 1, 0),
    ];
    core.modify(seids[0], &named).cause(Cause::ACCEPTED);
    core.modify(seids[0], &more(2, 3))
        .cause(Cause::NO_RESOURCES);
    core.modify(seids[1], &more(2, 4)).cause(Cause::ACCEPTED);
    // After a removal there is space for another session.
    core.ask(M::SESSION_DELETION_REQUEST, Some(seids[0]), &[])
        .cause(Cause::ACCEPTED);
    core.establish(small_session(3)).cause(Cause::ACCEPTED);
    assert_eq!(core.counted("refused for want of resources"), 3);
}

#[test]
fn a_late_retransmission_gets_the_original_response_until_the_timeout() {
    let mut core = Core::with(100, "response_time = \"1s\"\nrepeats = 3\n");
    core.associate(1).cause(Cause::ACCEPTED);
    let seid = core.establish(small_session(1)).up_seid();
    let bytes = core.message(M::SESSION_DELETION_REQUEST, Some(seid), &[]);
    let first = core.raw(&bytes, SMF).unwrap();
    for _ in 0..2000 {
        core.modify(7, &[]).cause(Cause::SESSION_NOT_FOUND);
    }
    // The time covers the last retransmission, and the wait until its sender gives up.
    for time_ms in [3000, 1000] {
        core.now += Duration::from_millis(time_ms);
        assert_eq!(core.raw(&bytes, SMF).unwrap(), first);
    }
    assert_eq!(core.counted("requests sent again"), 2);
    core.now += Duration::from_millis(1);
    let late = core.raw(&bytes, SMF).unwrap();
    Response::read(&late, core.sequence - 2000).cause(Cause::SESSION_NOT_FOUND);
}

/// Returns the heartbeat response with the given sequence number and recovery time stamp.
fn pulse(sequence: u32, stamp: u32) -> Vec<u8> {
    let mut writer = Writer::message(M::HEARTBEAT_RESPONSE, None, sequence);
    writer.element(E::RECOVERY_TIME_STAMP, &stamp.to_be_bytes());
    writer.finish().unwrap()
}

const BEATING: &str = "heartbeat = \"10s\"\nresponse_time = \"1s\"\nrepeats = 2\n";

#[test]
fn heartbeats_are_sent_to_associated_peers_and_retransmitted() {
    let second = Duration::from_secs(1);
    let mut core = Core::with(100, BEATING);
    assert!(core.later(20 * second).is_empty(), "nobody is associated");
    let stamp = core.associate(5);
    let stamp = stamp.get(E::RECOVERY_TIME_STAMP).to_vec();
    assert!(core.later(9 * second).is_empty());
    let sent = core.later(second);
    let to = SocketAddr::new(ip(SMF), 8805);
    assert_eq!((sent.len(), sent[0].0), (1, to));
    let message = Message::parse(&sent[0].1).unwrap();
    assert_eq!(message.message_type, M::HEARTBEAT_REQUEST);
    let sequence = message.sequence;
    assert_eq!(
        Response::read(&sent[0].1, sequence).get(E::RECOVERY_TIME_STAMP),
        stamp
    );
    // Two retransmissions follow, then the heartbeat is given up, and the next heartbeat is sent.
    assert!(core.later(second / 2).is_empty());
    assert_eq!(core.later(second / 2), sent);
    assert_eq!(core.later(second), sent);
    assert!(core.later(second).is_empty());
    assert_eq!(core.counted("heartbeats unanswered"), 1);
    assert!(core.later(9 * second).is_empty());
    let next = core.later(second);
    let sequence = Message::parse(&next[0].1).unwrap().sequence;
    assert_ne!(next, sent);
    // A response of another peer does not count.
    core.raw(&pulse(sequence, 5), "2001:db8::100");
    core.raw(&pulse(sequence + 1, 5), SMF);
    assert_eq!(core.later(second), next);
    assert_eq!(core.raw(&pulse(sequence, 5), SMF), None);
    assert!(core.later(9 * second).is_empty());
    assert_eq!(core.later(second).len(), 1);
    assert_eq!(core.counted("heartbeats unanswered"), 1);
}

#[test]
fn a_heartbeat_response_of_a_restarted_peer_deletes_its_sessions() {
    let mut core = Core::with(100, BEATING);
    core.associate(5).cause(Cause::ACCEPTED);
    core.establish(small_session(1)).cause(Cause::ACCEPTED);
    for (stamp, left) in [(5, 1), (6, 0)] {
        let sent = core.later(Duration::from_secs(10));
        let sequence = Message::parse(&sent[0].1).unwrap().sequence;
        core.raw(&pulse(sequence, stamp), SMF);
        assert_eq!(
            (core.count(), core.counted("sessions")),
            (left, left as u64)
        );
    }
    assert_eq!(core.counted("peers restarted"), 1);
    assert!(core.later(Duration::from_secs(60)).is_empty());
    core.establish(small_session(1))
        .cause(Cause::NO_ASSOCIATION);
}

#[test]
fn the_sessions_of_an_idle_peer_end_only_if_configured() {
    let second = Duration::from_secs(1);
    for (silence, left) in [("", 1), ("silence = \"30s\"\n", 0)] {
        let mut core = Core::with(100, &format!("{BEATING}{silence}"));
        core.associate(5).cause(Cause::ACCEPTED);
        core.establish(small_session(1)).cause(Cause::ACCEPTED);
        core.later(29 * second);
        // Every message of the peer restarts its idle time.
        core.ask(M::HEARTBEAT_REQUEST, None, &[]);
        core.later(29 * second);
        assert_eq!(core.count(), 1);
        core.later(second);
        core.take_changes();
        assert_eq!(core.count(), left, "{silence}");
        assert_eq!(core.counted("peers silent"), 1 - left as u64);
    }
}
