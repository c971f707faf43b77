//! Tests of the gateway as its own control plane, from GTP-C to packets, in virtual time.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use taut_function::Context;
use taut_gateway::Detached;
use taut_port::{Batch, PoolHandle};
use taut_wire::gtpc::{
    BearerQos, Cause, CauseValue as V, Element, ElementType as E, FTeid, Interface, Message,
    MessageType as M, Paa, Writer,
};
use taut_wire::{Gtpu, Ipv4, Protocol, Tunnel, UdpFlow};

const MME: &str = "192.0.2.100:2123";
const OTHER_MME: &str = "192.0.2.101:2123";
const PGW: &str = "192.0.2.50:2123";
const NODE: [u8; 4] = [192, 0, 2, 2];
const ENB: [u8; 4] = [192, 0, 2, 7];
const SERVER: &str = "198.51.100.7";
const T3: Duration = Duration::from_secs(3);

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A message that the gateway has sent.
#[derive(Debug, Clone, PartialEq)]
struct Heard {
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Heard {
    fn message(&self) -> Message<'_> {
        Message::parse(&self.bytes).unwrap().0
    }

    fn kind(&self) -> M {
        self.message().message_type
    }

    #[track_caller]
    fn get(&self, kind: E, instance: u8) -> Element<'_> {
        let found = self.message().elements.find(kind, instance).unwrap();
        found.unwrap_or_else(|| panic!("{kind:?} is not in {self:?}"))
    }

    #[track_caller]
    fn cause(&self, value: V) -> &Self {
        let cause = Cause::parse(self.get(E::CAUSE, 0).value).unwrap();
        assert_eq!(cause.value, value, "{self:?}");
        self
    }

    fn end(&self, instance: u8) -> FTeid {
        FTeid::parse(self.get(E::F_TEID, instance).value).unwrap()
    }

    /// Returns the tunnel endpoint of the given instance in the first bearer context of the message.
    fn bearer_end(&self, instance: u8) -> FTeid {
        let group = self.get(E::BEARER_CONTEXT, 0).group();
        let end = group.find(E::F_TEID, instance).unwrap().unwrap();
        FTeid::parse(end.value).unwrap()
    }

    fn user(&self) -> Ipv4Addr {
        Paa::parse(self.get(E::PAA, 0).value)
            .unwrap()
            .unwrap()
            .v4
            .unwrap()
    }
}

/// A gateway with a test as its peers (MME, PDN gateway), and as the sender and receiver of its users' packets.
struct Net {
    gateway: Detached,
    pool: PoolHandle,
    now: Instant,
    sequence: u32,
}

/// The parts of an MME's request for a connection.
#[derive(Clone)]
struct Wish {
    imsi: u8,
    ebi: u8,
    address: [u8; 4],
    pgw: Option<[u8; 4]>,
    teid: u32,
}

const WISH: Wish = Wish {
    imsi: 1,
    ebi: 5,
    address: [0; 4],
    pgw: None,
    teid: 0x100,
};

fn enb(teid: u32) -> Vec<u8> {
    FTeid::new(Interface::S1U_ENODEB, teid, ENB.into()).emit()
}

impl Net {
    fn new(settings: &str) -> Self {
        let text = format!(
            "address = \"192.0.2.1\"\nbearers = 40\npools = [\"10.45.0.0/29\"]\n{settings}\n[gtpc]\n\
             address = \"192.0.2.2\"\npeers = [\"192.0.2.100\", \"192.0.2.101\", \"192.0.2.50\"]\nsessions = 12\n\
             held = 8\nsession_held = 4\necho = \"60s\"\n"
        );
        let now = Instant::now();
        let mut gateway = Detached::new(text.parse().unwrap()).unwrap();
        gateway.restart(now).unwrap();
        Self {
            gateway,
            pool: PoolHandle::new(256, false).unwrap(),
            now,
            sequence: 0,
        }
    }

    fn check(&mut self) {
        self.gateway.take_changes();
        self.gateway.sessions_hold().unwrap();
        self.gateway.tables_agree().unwrap();
    }

    fn raw(&mut self, bytes: &[u8], from: &str) -> Vec<Heard> {
        let sent = self.gateway.hear_gtpc(bytes, socket(from), self.now);
        self.check();
        let heard = |(to, bytes)| Heard { to, bytes };
        sent.into_iter().map(heard).collect()
    }

    fn start(&mut self, kind: M, teid: u32) -> Writer {
        self.sequence += 1;
        Writer::message(kind, Some(teid), self.sequence)
    }

    /// Sends a message of the MME to the gateway; returns the only message that the gateway sends because of it.
    #[track_caller]
    fn ask(&mut self, writer: Writer) -> Heard {
        let bytes = writer.finish().unwrap();
        let mut heard = self.raw(&bytes, MME);
        assert_eq!(heard.len(), 1, "{heard:?}");
        heard.remove(0)
    }

    /// Advances the virtual time; returns the messages that the gateway sends then.
    fn wait(&mut self, time: Duration) -> Vec<Heard> {
        self.now += time;
        self.gateway.look(self.now);
        let sent = self.gateway.look_gtpc(self.now);
        self.check();
        let heard = |(to, bytes)| Heard { to, bytes };
        sent.into_iter().map(heard).collect()
    }

    fn create(&mut self, wish: &Wish) -> Writer {
        let mut writer = self.start(M::CREATE_SESSION_REQUEST, 0);
        let sender = FTeid::new(Interface::S11_MME, wish.teid, [192, 0, 2, 100].into());
        let paa = Paa {
            v4: Some(wish.address.into()),
            v6: None,
        };
        writer
            .element(E::IMSI, &[0, 1, 1, 0, 0, 0, 0, wish.imsi])
            .element(E::RAT_TYPE, &[6])
            .element(E::F_TEID, &sender.emit());
        if let Some(pgw) = wish.pgw {
            let end = FTeid::new(Interface::S5_PGW_C, 0, pgw.into());
            writer.instance(E::F_TEID, 1, &end.emit());
        }
        let mut bearer = Writer::group();
        let qos = BearerQos {
            qci: 9,
            ..BearerQos::default()
        };
        bearer
            .element(E::EBI, &[wish.ebi])
            .element(E::BEARER_QOS, &qos.emit());
        writer
            .element(E::APN, b"\x08internet")
            .element(E::PDN_TYPE, &[1])
            .element(E::PAA, &paa.emit())
            .element(E::AMBR, &[0, 0, 0xff, 0, 0, 0, 0xff, 0])
            .grouped(E::BEARER_CONTEXT, 0, &bearer)
            .element(E::RECOVERY, &[7]);
        writer
    }

    fn attach(&mut self, wish: &Wish) -> Heard {
        let writer = self.create(wish);
        let heard = self.ask(writer);
        assert_eq!(heard.message().teid, Some(wish.teid));
        heard.cause(V::REQUEST_ACCEPTED);
        heard
    }

    fn modify(&mut self, teid: u32, ebi: u8, end: u32) -> Heard {
        let mut writer = self.start(M::MODIFY_BEARER_REQUEST, teid);
        let mut bearer = Writer::group();
        bearer.element(E::EBI, &[ebi]).element(E::F_TEID, &enb(end));
        writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
        self.ask(writer)
    }

    fn release(&mut self, teid: u32) -> Heard {
        let writer = self.start(M::RELEASE_ACCESS_BEARERS_REQUEST, teid);
        self.ask(writer)
    }

    fn detach(&mut self, teid: u32, ebi: u8) -> Heard {
        let mut writer = self.start(M::DELETE_SESSION_REQUEST, teid);
        writer.element(E::EBI, &[ebi]);
        self.ask(writer)
    }

    /// Returns the frames that the gateway forwards after `frame` has arrived at port `from_port`.
    fn pass(&mut self, frame: &[u8], from_port: usize) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        let mut packet = self.pool.take(frame.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(frame);
        batch.push(packet);
        self.process(&mut batch, from_port)
    }

    fn process(&mut self, batch: &mut Batch, from_port: usize) -> Vec<Vec<u8>> {
        let context = Context {
            from_port,
            to_port: 1 - from_port,
            now_ticks: taut_sys::ticks(),
            ports: 2,
        };
        self.gateway.process(batch, &context);
        batch.settle(&mut Batch::new());
        let frames = batch.packets().iter().map(|it| it.bytes().to_vec());
        let frames = frames.collect();
        batch.clear();
        frames
    }

    /// Sends a packet from `user` in a tunnel to the gateway; returns true if the gateway forwards it without the
    /// tunnel.
    fn up(&mut self, teid: u32, user: Ipv4Addr) -> bool {
        let tunnel = Tunnel {
            teid,
            src_ip: ENB.into(),
            dst_ip: [192, 0, 2, 1].into(),
        };
        let flow = flow(user.into(), SERVER.parse().unwrap());
        let frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 140).unwrap();
        let left = self.pass(&frame, 0);
        assert!(left.len() < 2);
        left.iter().any(|it| source(it) == user)
    }

    /// Sends a packet to a user; returns the TEID of the tunnel in which the gateway forwards it, if it does.
    fn down(&mut self, user: Ipv4Addr, port: u16) -> Option<u32> {
        let mut flow = flow(SERVER.parse().unwrap(), user.into());
        flow.src_port = port;
        let left = self.pass(&flow.frame(90).unwrap(), 1);
        left.first().map(|it| Gtpu::new(&it[42..]).unwrap().teid())
    }

    /// Returns the TEIDs of the tunnels in which buffered packets leave.
    fn released(&mut self) -> Vec<u32> {
        let left = self.process(&mut Batch::new(), 1);
        let teid = |it: &Vec<u8>| Gtpu::new(&it[42..]).unwrap().teid();
        left.iter().map(teid).collect()
    }

    fn counted(&self, name: &str) -> u64 {
        let counts = self.gateway.signalling_gtpc();
        counts.iter().find(|it| it.0 == name).unwrap().1
    }
}

fn flow(from: IpAddr, to: IpAddr) -> UdpFlow {
    UdpFlow {
        src_ip: from,
        dst_ip: to,
        ..UdpFlow::default()
    }
}

fn source(frame: &[u8]) -> Ipv4Addr {
    Ipv4::new(&frame[14..]).unwrap().source()
}

#[test]
fn a_user_attaches_goes_idle_is_paged_and_detaches() {
    let mut net = Net::new("");
    let made = net.attach(&WISH);
    let (teid, user, up) = (made.end(0).teid, made.user(), made.bearer_end(0));
    assert_eq!(made.end(0).address(), Some(NODE.into()));
    assert_eq!(user, Ipv4Addr::new(10, 45, 0, 1));
    assert_eq!(up.address(), Some([192, 0, 2, 1].into()));
    assert!(net.up(up.teid, user));
    // The base station is still unknown, so packets are buffered.
    assert_eq!(net.down(user, 1), None);
    net.modify(teid, 5, 0x20).cause(V::REQUEST_ACCEPTED);
    assert_eq!(net.released(), [0x20]);
    assert_eq!(net.down(user, 1), Some(0x20));
    // The user goes idle. The first packet is reported, once.
    net.release(teid).cause(V::REQUEST_ACCEPTED);
    assert_eq!((net.down(user, 1), net.down(user, 1)), (None, None));
    let due = net.wait(Duration::from_millis(50));
    let [notice] = &due
        .iter()
        .filter(|it| it.kind() != M::ECHO_REQUEST)
        .collect::<Vec<_>>()[..]
    else {
        panic!("{due:?}");
    };
    assert_eq!(notice.kind(), M::DOWNLINK_DATA_NOTIFICATION);
    assert_eq!(notice.message().teid, Some(WISH.teid));
    assert_eq!(notice.get(E::EBI, 0).value, [5]);
    let sequence = notice.message().sequence;
    let kind = M::DOWNLINK_DATA_NOTIFICATION_ACKNOWLEDGE;
    let mut ack = Writer::message(kind, Some(teid), sequence);
    ack.element(E::CAUSE, &[16, 0]);
    assert_eq!(net.raw(&ack.finish().unwrap(), MME), []);
    net.modify(teid, 5, 0x21).cause(V::REQUEST_ACCEPTED);
    assert_eq!(net.released(), [0x21, 0x21]);
    assert_eq!(net.counted("sessions"), 1);
    net.detach(teid, 5).cause(V::REQUEST_ACCEPTED);
    assert_eq!(
        (net.gateway.control().occupancy().0, net.counted("sessions")),
        (0, 0)
    );
    assert!(!net.up(up.teid, user));
    net.detach(teid, 5).cause(V::CONTEXT_NOT_FOUND);
}

#[test]
fn packets_of_an_unreachable_user_are_dropped() {
    let mut net = Net::new("");
    let made = net.attach(&WISH);
    let (teid, user) = (made.end(0).teid, made.user());
    net.release(teid);
    let notices = |due: Vec<Heard>| {
        let is_one = |it: &&Heard| it.kind() == M::DOWNLINK_DATA_NOTIFICATION;
        due.iter().filter(is_one).cloned().collect::<Vec<_>>()
    };
    assert_eq!(net.down(user, 1), None);
    assert_eq!(notices(net.wait(Duration::from_millis(50))).len(), 1);
    // The MME does not respond: after three retransmissions the packets are dropped.
    for _ in 0..3 {
        assert_eq!(notices(net.wait(T3)).len(), 1);
    }
    assert_eq!(notices(net.wait(T3)).len(), 0);
    assert_eq!(net.gateway.kept(), 0);
    assert_eq!(net.down(user, 1), None);
    let again = notices(net.wait(Duration::from_millis(50)));
    let sequence = again[0].message().sequence;
    let kind = M::DOWNLINK_DATA_NOTIFICATION_ACKNOWLEDGE;
    let mut ack = Writer::message(kind, Some(teid), sequence);
    ack.element(E::CAUSE, &[87, 0]);
    net.raw(&ack.finish().unwrap(), MME);
    assert_eq!(net.gateway.kept(), 0);
    // The MME may also accept the notification, and report the failure later in a message of its own.
    assert_eq!(net.down(user, 1), None);
    assert_eq!(notices(net.wait(Duration::from_millis(50))).len(), 1);
    let mut failed = net.start(M::DOWNLINK_DATA_NOTIFICATION_FAILURE_INDICATION, teid);
    failed.element(E::CAUSE, &[87, 0]);
    net.raw(&failed.finish().unwrap(), MME);
    assert_eq!(net.gateway.kept(), 0);
}

#[test]
fn a_repeated_request_gets_the_same_response() {
    let mut net = Net::new("");
    let request = net.create(&WISH).finish().unwrap();
    let first = net.raw(&request, MME);
    let occupied = net.gateway.control().occupancy().0;
    assert_eq!(net.raw(&request, MME), first);
    assert_eq!(net.gateway.control().occupancy().0, occupied);
    assert_eq!(net.counted("requests sent again"), 1);
    // After the time for retransmissions, the same request counts as a new one, which replaces the user's connection.
    net.wait(T3 * 4 + Duration::from_millis(1));
    let again = net.raw(&request, MME);
    assert_ne!(again[0].end(0).teid, first[0].end(0).teid);
    assert_eq!(net.gateway.control().occupancy().0, occupied);
}

#[test]
fn packets_from_other_sources_than_the_user_are_dropped() {
    for (settings, passes) in [("", false), ("source_check = false", true)] {
        let mut net = Net::new(settings);
        let made = net.attach(&WISH);
        let teid = made.bearer_end(0).teid;
        assert!(net.up(teid, made.user()));
        assert_eq!(net.up(teid, [10, 45, 0, 77].into()), passes);
        let name = "user packet from a wrong source";
        let outcomes = net.gateway.control().outcomes();
        let wrong = outcomes.iter().find(|it| it.0 == name).unwrap().1;
        assert_eq!(wrong, u64::from(!passes));
    }
}

#[test]
fn an_exhausted_pool_refuses_connections_with_its_own_cause() {
    let mut net = Net::new("");
    let mut made = Vec::new();
    for imsi in 0..6 {
        let wish = Wish { imsi, ..WISH };
        made.push(net.attach(&wish));
    }
    let mut users: Vec<_> = made.iter().map(Heard::user).collect();
    users.dedup();
    assert_eq!(users.len(), 6);
    let wish = Wish { imsi: 9, ..WISH };
    let writer = net.create(&wish);
    net.ask(writer).cause(V::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED);
    // A static address needs no pool, but may not be another user's.
    let wish = Wish {
        address: [10, 45, 0, 2],
        ..wish
    };
    let writer = net.create(&wish);
    net.ask(writer).cause(V::REQUEST_REJECTED);
    let wish = Wish {
        address: [10, 46, 0, 2],
        ..wish
    };
    assert_eq!(net.attach(&wish).user(), Ipv4Addr::new(10, 46, 0, 2));
    net.detach(made[2].end(0).teid, 5);
    let wish = Wish { imsi: 10, ..WISH };
    assert_eq!(net.attach(&wish).user(), users[2]);
}

#[test]
fn wrong_messages_get_the_causes_of_the_specification() {
    let mut net = Net::new("");
    // Mandatory elements that are missing are named.
    let whole = net.create(&WISH).finish().unwrap();
    for (kind, instance, cause) in [
        (E::RAT_TYPE, 0, V::MANDATORY_IE_MISSING),
        (E::F_TEID, 0, V::MANDATORY_IE_MISSING),
        (E::APN, 0, V::MANDATORY_IE_MISSING),
        (E::PAA, 0, V::CONDITIONAL_IE_MISSING),
        (E::BEARER_CONTEXT, 0, V::MANDATORY_IE_MISSING),
    ] {
        let mut writer = net.start(M::CREATE_SESSION_REQUEST, 0);
        for element in Message::parse(&whole).unwrap().0.elements.flatten() {
            if element.element_type != kind {
                writer.copied(&element);
            }
        }
        let heard = net.ask(writer);
        heard.cause(cause);
        let cause = Cause::parse(heard.get(E::CAUSE, 0).value).unwrap();
        assert_eq!(cause.offending, Some((kind, instance)));
    }
    // One element is too short, and the other has a wrong value.
    for (kind, value, cause) in [
        (E::PAA, &[1, 10][..], V::INVALID_LENGTH),
        (E::PAA, &[4], V::MANDATORY_IE_INCORRECT),
        (
            E::F_TEID,
            &[0x8a, 0, 0, 0, 0, 1, 2, 3, 4],
            V::MANDATORY_IE_INCORRECT,
        ),
        (
            E::F_TEID,
            &[0x9f, 0, 0, 0, 9, 1, 2, 3, 4],
            V::MANDATORY_IE_INCORRECT,
        ),
    ] {
        let mut writer = net.start(M::CREATE_SESSION_REQUEST, 0);
        for element in Message::parse(&whole).unwrap().0.elements.flatten() {
            match element.element_type == kind {
                true => writer.element(kind, value),
                false => writer.copied(&element),
            };
        }
        net.ask(writer).cause(cause);
    }
    let unknown = net.start(M::MODIFY_BEARER_REQUEST, 0x99);
    net.ask(unknown).cause(V::CONTEXT_NOT_FOUND);
    let unsupported = net.start(M::SUSPEND_NOTIFICATION, 0x99);
    net.ask(unsupported).cause(V::SERVICE_NOT_SUPPORTED);
    // A message of another version gets a version-not-supported indication. Invalid and unknown messages get no
    // response.
    let mut other = whole.clone();
    other[0] = 0x28;
    assert_eq!(net.raw(&other, MME)[0].kind(), M::VERSION_NOT_SUPPORTED);
    let mut unknown = whole.clone();
    unknown[1] = 250;
    for silent in [&whole[..whole.len() - 1], &whole[..3], &unknown] {
        assert_eq!(net.raw(silent, MME), []);
    }
    assert_eq!(net.raw(&whole, "192.0.2.66:2123"), []);
    assert_eq!(net.counted("from strangers"), 1);
    assert_eq!(net.gateway.control().occupancy().0, 0);
}

#[test]
fn piggybacked_messages_that_do_not_belong_together_are_ignored() {
    let mut net = Net::new("");
    let mut both = net.create(&WISH).finish().unwrap();
    both[0] |= 0x10;
    let second = Wish { imsi: 2, ..WISH };
    both.extend(net.create(&second).finish().unwrap());
    let heard = net.raw(&both, MME);
    assert_eq!(heard.len(), 1);
    assert_eq!(
        (net.counted("sessions"), net.counted("piggybacked in vain")),
        (1, 1)
    );
}

/// Returns a traffic aggregate with a filter for UDP from port 53 of the server's network.
fn aggregate() -> Vec<u8> {
    vec![
        0x21, 0x31, 7, 14, 0x10, 198, 51, 100, 0, 255, 255, 255, 0, 0x30, 17, 0x50, 0, 53,
    ]
}

#[test]
fn a_dedicated_bearer_takes_the_packets_of_its_filters() {
    let mut net = Net::new("");
    let made = net.attach(&WISH);
    let (teid, user) = (made.end(0).teid, made.user());
    net.modify(teid, 5, 0x20);
    let mut command = net.start(M::BEARER_RESOURCE_COMMAND, teid);
    command
        .element(E::EBI, &[5])
        .element(E::PTI, &[3])
        .element(E::TAD, &aggregate())
        .element(E::FLOW_QOS, &BearerQos::default().emit()[1..]);
    let asked = net.ask(command);
    assert_eq!(asked.kind(), M::CREATE_BEARER_REQUEST);
    assert_eq!(asked.get(E::PTI, 0).value, [3]);
    let up = asked.bearer_end(0);
    // The default bearer carries all packets until the MME has responded.
    assert_eq!(
        (net.down(user, 53), net.down(user, 80)),
        (Some(0x20), Some(0x20))
    );
    let kind = M::CREATE_BEARER_RESPONSE;
    let mut response = Writer::message(kind, Some(teid), asked.message().sequence);
    let mut bearer = Writer::group();
    bearer
        .element(E::EBI, &[6])
        .element(E::CAUSE, &[16, 0])
        .instance(E::F_TEID, 0, &enb(0x30))
        .instance(E::F_TEID, 1, &up.emit());
    response
        .element(E::CAUSE, &[16, 0])
        .grouped(E::BEARER_CONTEXT, 0, &bearer);
    assert_eq!(net.raw(&response.finish().unwrap(), MME), []);
    assert_eq!(
        (net.down(user, 53), net.down(user, 80)),
        (Some(0x30), Some(0x20))
    );
    assert!(net.up(up.teid, user) && !net.up(up.teid, [10, 45, 0, 9].into()));
    // A handover moves the dedicated bearer alone.
    net.modify(teid, 6, 0x31).cause(V::REQUEST_ACCEPTED);
    assert_eq!(
        (net.down(user, 53), net.down(user, 80)),
        (Some(0x31), Some(0x20))
    );
    let mut command = net.start(M::DELETE_BEARER_COMMAND, teid);
    let mut bearer = Writer::group();
    bearer.element(E::EBI, &[6]);
    command.grouped(E::BEARER_CONTEXT, 0, &bearer);
    let asked = net.ask(command);
    assert_eq!(asked.kind(), M::DELETE_BEARER_REQUEST);
    assert_eq!(asked.get(E::EBI, 1).value, [6]);
    let kind = M::DELETE_BEARER_RESPONSE;
    let mut response = Writer::message(kind, Some(teid), asked.message().sequence);
    response.element(E::CAUSE, &[16, 0]);
    net.raw(&response.finish().unwrap(), MME);
    assert_eq!(net.down(user, 53), Some(0x20));
    assert!(!net.up(up.teid, user));
}

#[test]
fn a_peer_that_restarts_loses_its_users_and_no_others() {
    let mut net = Net::new("");
    let mut echo = Writer::message(M::ECHO_REQUEST, None, 1);
    echo.element(E::RECOVERY, &[7]);
    let heard = net.raw(&echo.clone().finish().unwrap(), MME);
    assert_eq!(heard[0].kind(), M::ECHO_RESPONSE);
    heard[0].get(E::RECOVERY, 0);
    net.attach(&WISH);
    let mut other = Writer::message(M::ECHO_REQUEST, None, 1);
    other.element(E::RECOVERY, &[8]);
    net.raw(&other.clone().finish().unwrap(), OTHER_MME);
    assert_eq!(net.counted("sessions"), 1);
    // The restart counter of the attached user's MME has changed.
    net.raw(&other.finish().unwrap(), MME);
    assert_eq!(
        (net.counted("sessions"), net.counted("peers restarted")),
        (0, 1)
    );
    assert_eq!(net.gateway.control().occupancy().0, 0);
}

#[test]
fn a_peer_without_echo_responses_is_lost() {
    for (choice, left) in [("", 1), ("lost_peers = \"drop\"", 0)] {
        // The text ends with the table `gtpc`, to which the setting belongs.
        let text = format!(
            "address = \"192.0.2.1\"\nbearers = 9\npools = [\"10.45.0.0/29\"]\n[gtpc]\naddress = \"192.0.2.2\"\n\
             peers = [\"192.0.2.100\"]\n{choice}\n"
        );
        let mut net = Net::new("");
        net.gateway = Detached::new(text.parse().unwrap()).unwrap();
        net.gateway.restart(net.now).unwrap();
        net.attach(&WISH);
        assert_eq!(net.wait(Duration::ZERO)[0].kind(), M::ECHO_REQUEST);
        for _ in 0..3 {
            assert_eq!(net.wait(T3).len(), 1);
        }
        net.wait(T3);
        assert_eq!(net.counted("peers lost"), 1);
        assert_eq!(net.counted("sessions"), left);
        // After a response, the peer no longer counts as lost.
        let asked = net.wait(Duration::from_secs(60));
        let sequence = asked[0].message().sequence;
        let response = Writer::message(M::ECHO_RESPONSE, None, sequence);
        net.raw(&response.finish().unwrap(), MME);
        net.wait(Duration::ZERO);
        assert_eq!(net.counted("peers lost"), 0);
    }
}

/// Answers the request for a connection as a PDN gateway.
fn pgw_answers(net: &mut Net, asked: &Heard, cause: u8) -> Vec<Heard> {
    let sgw = asked.end(0);
    assert_eq!(sgw.interface, Interface::S5_SGW_C);
    let kind = M::CREATE_SESSION_RESPONSE;
    let mut response = Writer::message(kind, Some(sgw.teid), asked.message().sequence);
    response.element(E::CAUSE, &[cause, 0]);
    let address = [192, 0, 2, 50].into();
    let control = FTeid::new(Interface::S5_PGW_C, 0x501, address);
    response.instance(E::F_TEID, 1, &control.emit());
    response.element(E::PAA, &[1, 10, 99, 0, 1]);
    let mut bearer = Writer::group();
    let user = FTeid::new(Interface::S5_PGW_U, 0x502, address);
    bearer
        .element(E::EBI, &[5])
        .element(E::CAUSE, &[16, 0])
        .instance(E::F_TEID, 2, &user.emit());
    response.grouped(E::BEARER_CONTEXT, 0, &bearer);
    net.raw(&response.finish().unwrap(), PGW)
}

/// Returns the TEID and the destination of the tunnel into which a packet in the tunnel `teid` is relayed, if it is.
fn relayed(net: &mut Net, teid: u32, port: usize) -> Option<(u32, Ipv4Addr)> {
    let tunnel = Tunnel {
        teid,
        src_ip: ENB.into(),
        dst_ip: [192, 0, 2, 1].into(),
    };
    let flow = flow([10, 99, 0, 1].into(), SERVER.parse().unwrap());
    let frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 140).unwrap();
    let left = net.pass(&frame, port);
    let frame = left.first()?;
    let to = Ipv4::new(&frame[14..]).unwrap().destination();
    Some((Gtpu::new(&frame[42..]).unwrap().teid(), to))
}

#[test]
fn a_serving_gateway_relays_between_base_station_and_pdn_gateway() {
    let mut net = Net::new("");
    let wish = Wish {
        pgw: Some([192, 0, 2, 50]),
        ..WISH
    };
    let request = net.create(&wish).finish().unwrap();
    let asked = net.raw(&request, MME).remove(0);
    assert_eq!(
        (asked.to, asked.kind()),
        (socket(PGW), M::CREATE_SESSION_REQUEST)
    );
    let s5 = asked.bearer_end(2);
    // The MME's retransmission is ignored, because the PDN gateway has not responded yet; the gateway retransmits its
    // own request.
    assert_eq!(net.raw(&request, MME), []);
    let again = net.wait(T3);
    assert!(again.contains(&asked));
    let made = pgw_answers(&mut net, &asked, 16).remove(0);
    assert_eq!(made.to, socket(MME));
    made.cause(V::REQUEST_ACCEPTED);
    assert_eq!(made.user(), Ipv4Addr::new(10, 99, 0, 1));
    assert_eq!(net.raw(&request, MME), std::slice::from_ref(&made));
    let (teid, s1) = (made.end(0).teid, made.bearer_end(0));
    net.modify(teid, 5, 0x20);
    let pgw = Ipv4Addr::new(192, 0, 2, 50);
    assert_eq!(relayed(&mut net, s1.teid, 0), Some((0x502, pgw)));
    assert_eq!(relayed(&mut net, s5.teid, 1), Some((0x20, ENB.into())));
    // The PDN gateway adds a bearer.
    let mut create = net.start(M::CREATE_BEARER_REQUEST, asked.end(0).teid);
    let mut bearer = Writer::group();
    let core = FTeid::new(Interface::S5_PGW_U, 0x503, pgw.into());
    bearer
        .element(E::EBI, &[0])
        .element(E::BEARER_TFT, &aggregate())
        .instance(E::F_TEID, 1, &core.emit())
        .element(E::BEARER_QOS, &BearerQos::default().emit());
    create
        .element(E::EBI, &[5])
        .grouped(E::BEARER_CONTEXT, 0, &bearer);
    let asked = net.raw(&create.finish().unwrap(), PGW).remove(0);
    assert_eq!(
        (asked.to, asked.kind()),
        (socket(MME), M::CREATE_BEARER_REQUEST)
    );
    let up = asked.bearer_end(0);
    let kind = M::CREATE_BEARER_RESPONSE;
    let mut response = Writer::message(kind, Some(teid), asked.message().sequence);
    let mut bearer = Writer::group();
    bearer
        .element(E::EBI, &[6])
        .element(E::CAUSE, &[16, 0])
        .instance(E::F_TEID, 0, &enb(0x30));
    response
        .element(E::CAUSE, &[16, 0])
        .grouped(E::BEARER_CONTEXT, 0, &bearer);
    let told = net.raw(&response.finish().unwrap(), MME).remove(0);
    assert_eq!(
        (told.to, told.kind()),
        (socket(PGW), M::CREATE_BEARER_RESPONSE)
    );
    assert_eq!(told.message().teid, Some(0x501));
    let down = told.bearer_end(2);
    assert_eq!(relayed(&mut net, up.teid, 0), Some((0x503, pgw)));
    assert_eq!(relayed(&mut net, down.teid, 1), Some((0x30, ENB.into())));
    // The PDN gateway deletes the bearer, and the MME deletes the connection.
    let mut delete = net.start(M::DELETE_BEARER_REQUEST, told.message().teid.unwrap());
    delete.instance(E::EBI, 1, &[6]);
    let unknown = net.raw(&delete.clone().finish().unwrap(), PGW).remove(0);
    unknown.cause(V::CONTEXT_NOT_FOUND);
    let mut delete = net.start(M::DELETE_BEARER_REQUEST, teid);
    delete.instance(E::EBI, 1, &[6]);
    let asked = net.raw(&delete.finish().unwrap(), PGW).remove(0);
    let kind = M::DELETE_BEARER_RESPONSE;
    let mut response = Writer::message(kind, Some(teid), asked.message().sequence);
    response.element(E::CAUSE, &[16, 0]);
    let told = net.raw(&response.finish().unwrap(), MME).remove(0);
    assert_eq!(
        (told.to, told.kind()),
        (socket(PGW), M::DELETE_BEARER_RESPONSE)
    );
    assert_eq!(relayed(&mut net, up.teid, 0), None);
    let mut end = net.start(M::DELETE_SESSION_REQUEST, teid);
    end.element(E::EBI, &[5]).element(E::INDICATION, &[8, 0]);
    let asked = net.raw(&end.finish().unwrap(), MME).remove(0);
    assert_eq!(
        (asked.to, asked.kind()),
        (socket(PGW), M::DELETE_SESSION_REQUEST)
    );
    let kind = M::DELETE_SESSION_RESPONSE;
    let mut response = Writer::message(kind, Some(teid), asked.message().sequence);
    response.element(E::CAUSE, &[16, 0]);
    let told = net.raw(&response.finish().unwrap(), PGW).remove(0);
    assert_eq!(told.to, socket(MME));
    told.cause(V::REQUEST_ACCEPTED);
    assert_eq!(net.gateway.control().occupancy().0, 0);
}

#[test]
fn a_silent_or_refusing_pdn_gateway_leaves_no_connection() {
    let mut net = Net::new("");
    let wish = Wish {
        pgw: Some([192, 0, 2, 50]),
        ..WISH
    };
    let request = net.create(&wish).finish().unwrap();
    net.raw(&request, MME);
    for _ in 0..3 {
        let due = net.wait(T3);
        assert!(due.iter().any(|it| it.kind() == M::CREATE_SESSION_REQUEST));
    }
    let due = net.wait(T3);
    let told = due
        .iter()
        .find(|it| it.kind() == M::CREATE_SESSION_RESPONSE);
    told.unwrap().cause(V::REMOTE_PEER_NOT_RESPONDING);
    assert_eq!(net.counted("sessions"), 0);
    let request = net.create(&wish).finish().unwrap();
    let asked = net.raw(&request, MME).remove(0);
    let told = pgw_answers(&mut net, &asked, 92).remove(0);
    told.cause(V(92));
    assert_eq!(
        told.get(E::CAUSE, 0).value[1] & 1,
        1,
        "the cause is the other node's"
    );
    assert_eq!(net.gateway.control().occupancy().0, 0);
}

/// An event of a simulated network that loses, repeats and delays messages.
#[derive(Debug, Clone)]
enum Step {
    Attach {
        imsi: u8,
        ebi: u8,
        is_relayed: bool,
    },
    Modify {
        user: u8,
        ebi: u8,
        end: u32,
    },
    Release {
        user: u8,
    },
    Detach {
        user: u8,
        ebi: u8,
        tells: bool,
    },
    Resource {
        user: u8,
    },
    DeleteBearer {
        user: u8,
        ebi: u8,
    },
    Down {
        user: u8,
    },
    /// The message that arrived `back` messages earlier arrives at the gateway again.
    Again {
        back: u8,
    },
    /// The oldest unanswered request of the gateway to a peer gets a response, or is lost.
    Answer {
        is_accepted: bool,
        is_lost: bool,
    },
    Restart {
        counter: u8,
    },
    Wait {
        ms: u16,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..4, 5u8..7, any::<bool>())
            .prop_map(|(imsi, ebi, is_relayed)| Step::Attach { imsi, ebi, is_relayed }),
        3 => (0u8..4, 5u8..8, 1u32..5).prop_map(|(user, ebi, end)| Step::Modify { user, ebi, end }),
        2 => (0u8..4).prop_map(|user| Step::Release { user }),
        2 => (0u8..4, 5u8..7, any::<bool>())
            .prop_map(|(user, ebi, tells)| Step::Detach { user, ebi, tells }),
        2 => (0u8..4).prop_map(|user| Step::Resource { user }),
        1 => (0u8..4, 5u8..8).prop_map(|(user, ebi)| Step::DeleteBearer { user, ebi }),
        3 => (0u8..4).prop_map(|user| Step::Down { user }),
        2 => (1u8..6).prop_map(|back| Step::Again { back }),
        4 => (any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(is_accepted, is_lost)| Step::Answer { is_accepted, is_lost }),
        1 => (0u8..2).prop_map(|counter| Step::Restart { counter }),
        2 => (0u16..9000).prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Returns a peer's answer to a request of the gateway.
fn answer(asked: &Heard, is_accepted: bool, teid: u32) -> Vec<u8> {
    let message = asked.message();
    let kind = message.message_type.response();
    let mut writer = Writer::message(kind, Some(teid), message.sequence);
    writer.element(E::CAUSE, &[if is_accepted { 16 } else { 94 }, 0]);
    let address = [192, 0, 2, 50].into();
    let control = FTeid::new(Interface::S5_PGW_C, 0x501, address);
    writer.instance(E::F_TEID, 1, &control.emit());
    let mut bearer = Writer::group();
    let is_new = message.message_type == M::CREATE_BEARER_REQUEST;
    let end = FTeid::new(Interface::S5_PGW_U, 0x502, address);
    bearer
        .element(E::EBI, &[if is_new { 7 } else { 5 }])
        .element(E::CAUSE, &[16, 0])
        .instance(E::F_TEID, 0, &enb(0x40))
        .instance(E::F_TEID, 2, &end.emit());
    writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
    writer.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn tables_agree_after_lost_repeated_and_late_messages(steps in steps()) {
        let mut net = Net::new("");
        let mut teids = [0_u32; 4];
        let (mut sent, mut heard): (Vec<Vec<u8>>, Vec<Heard>) = (Vec::new(), Vec::new());
        for step in steps {
            let of = |user: u8| teids[usize::from(user)];
            let message = match step {
                Step::Attach { imsi, ebi, is_relayed } => {
                    let pgw = is_relayed.then_some([192, 0, 2, 50]);
                    Some(net.create(&Wish { imsi, ebi, pgw, ..WISH }))
                }
                Step::Modify { user, ebi, end } => {
                    let mut writer = net.start(M::MODIFY_BEARER_REQUEST, of(user));
                    let mut bearer = Writer::group();
                    bearer.element(E::EBI, &[ebi]).element(E::F_TEID, &enb(end));
                    writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
                    Some(writer)
                }
                Step::Release { user } => {
                    Some(net.start(M::RELEASE_ACCESS_BEARERS_REQUEST, of(user)))
                }
                Step::Detach { user, ebi, tells } => {
                    let mut writer = net.start(M::DELETE_SESSION_REQUEST, of(user));
                    writer.element(E::EBI, &[ebi]);
                    writer.element(E::INDICATION, &[if tells { 8 } else { 0 }]);
                    Some(writer)
                }
                Step::Resource { user } => {
                    let mut writer = net.start(M::BEARER_RESOURCE_COMMAND, of(user));
                    writer.element(E::EBI, &[5]).element(E::PTI, &[3]).element(E::TAD, &aggregate());
                    Some(writer)
                }
                Step::DeleteBearer { user, ebi } => {
                    let mut writer = net.start(M::DELETE_BEARER_COMMAND, of(user));
                    let mut bearer = Writer::group();
                    bearer.element(E::EBI, &[ebi]);
                    writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
                    Some(writer)
                }
                Step::Restart { counter } => {
                    let mut writer = Writer::message(M::ECHO_REQUEST, None, 1);
                    writer.element(E::RECOVERY, &[counter]);
                    Some(writer)
                }
                Step::Down { user } => {
                    net.down([10, 45, 0, 1 + user].into(), 53);
                    None
                }
                Step::Again { back } => {
                    let place = sent.len().checked_sub(usize::from(back));
                    if let Some(bytes) = place.map(|place| sent[place].clone()) {
                        heard.extend(net.raw(&bytes, MME));
                    }
                    None
                }
                Step::Answer { is_accepted, is_lost } => {
                    let is_asked = |it: &Heard| !matches!(it.kind().0, 2 | 33 | 35 | 37 | 171 | 67 | 69);
                    if let Some(place) = heard.iter().position(is_asked) {
                        let asked = heard.remove(place);
                        if !is_lost {
                            let from = asked.to.to_string();
                            let bytes = answer(&asked, is_accepted, of(0));
                            heard.extend(net.raw(&bytes, &from));
                        }
                    }
                    None
                }
                Step::Wait { ms } => {
                    heard.extend(net.wait(Duration::from_millis(ms.into())));
                    None
                }
            };
            if let Some(writer) = message {
                let bytes = writer.finish().unwrap();
                let answers = net.raw(&bytes, MME);
                if let Step::Attach { imsi, .. } = step
                    && let Some(made) = answers.first()
                    && made.kind() == M::CREATE_SESSION_RESPONSE
                    && let Ok(Some(end)) = made.message().elements.find(E::F_TEID, 0)
                {
                    teids[usize::from(imsi)] = FTeid::parse(end.value).unwrap().teid;
                }
                sent.push(bytes);
                heard.extend(answers);
            }
        }
        // Once everything has timed out, no bearer waits for a peer.
        for _ in 0..6 {
            net.wait(T3);
        }
        net.check();
    }
}
