//! The bodies of the fuzz targets for the gateway; `cargo test` runs the same bodies over seeded noise.
//!
//! Bytes select a sequence of operations on a gateway that begins without sessions. After each operation, the tables of
//! control plane and data plane must agree, every limit must hold, and every frame must be counted once.
#![allow(dead_code)] // each target uses one of the bodies

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use taut_function::{Context, Punted};
use taut_gateway::{Action, Bearer, Detached, Limit, Match, MeterName, Path, Refused, Wish};
use taut_port::{Batch, PoolHandle, Punt};
use taut_wire::pfcp::{
    ElementType as E, FTeid, Mbr, Message, MessageType as M, OuterHeaderCreation, SdfFilter, Seid,
    Volumes, Writer,
};
use taut_wire::{
    EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, Protocol, Tunnel, Udp, UdpFlow,
};

/// The largest number of operations in one input.
const MOST_STEPS: usize = 64;
/// Maximum length of a frame, bytes.
const MOST_FRAME: usize = 1600;
/// The largest number of rules in a session.
const RULES: usize = 12;

/// Two peers, and an address that is not a peer.
const PEERS: [[u8; 4]; 3] = [[192, 0, 2, 100], [192, 0, 2, 101], [192, 0, 2, 66]];

thread_local! {
    /// The gateway, reused for all inputs: allocating its memory takes longer than one input.
    static SPEAKING: RefCell<Detached> = RefCell::new(gateway(&format!(
        "pfcp = {{ address = \"192.0.2.2\", peers = [\"192.0.2.100\", \"192.0.2.101\"], sessions = 3, rules = {RULES}, \
         response_time = \"1s\", repeats = 1, heartbeat = \"5s\", silence = \"30s\", held = 6, session_held = 4, \
         echo = \"3s\", echo_time = \"500ms\", echo_repeats = 2, lost_peers = \"drop\" }}"
    )));
    static PASSING: RefCell<Passing> = RefCell::new(Passing::new());
}

fn gateway(settings: &str) -> Detached {
    let text = format!("address = [\"192.0.2.1\", \"2001:db8::1\"]\nbearers = 24\n{settings}");
    Detached::new(text.parse().expect("settings")).expect("a gateway")
}

/// Bytes that select operations; zeros once they are used up.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// The control planes, with the state from which their next messages are built.
struct Planes<'a> {
    bytes: Bytes<'a>,
    now: Instant,
    sequence: u32,
    last: Vec<u8>,
    seids: Vec<u64>,
    /// TEIDs that the gateway chose for the control planes.
    teids: Vec<u32>,
}

impl Planes<'_> {
    fn message(&mut self, kind: M, seid: Option<u64>) -> Writer {
        self.sequence += 1;
        let mut writer = Writer::message(kind, seid, self.sequence);
        writer.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
        writer
    }

    fn stamped(&mut self, kind: M) -> Writer {
        let stamp = self.bytes.below(3);
        let mut writer = self.message(kind, None);
        writer.element(E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, stamp]);
        if stamp == 2 && self.bytes.below(2) == 1 {
            writer.element(E::SESSION_RETENTION_INFORMATION, &[]);
        }
        writer
    }

    fn seid(&mut self) -> u64 {
        let at = usize::from(self.bytes.byte());
        let known = self.seids.get(at % self.seids.len().max(1));
        known.copied().unwrap_or(at as u64)
    }

    /// Builds packets of a few users, flows and tunnels; returns them with the port that they enter.
    fn frames(&mut self) -> (Vec<Vec<u8>>, usize) {
        let port = usize::from(self.bytes.below(2));
        let mut frames = Vec::new();
        for _ in 0..=self.bytes.below(8) {
            let (what, last) = (self.bytes.byte(), self.bytes.below(6));
            let flow = |source: [u8; 4], destination: [u8; 4]| UdpFlow {
                src_ip: source.into(),
                dst_ip: destination.into(),
                src_port: 53 + u16::from(what & 1),
                dst_port: 53 + u16::from(what >> 1 & 1),
                ..UdpFlow::default()
            };
            let (user, server) = ([10, 45, 0, last], [198, 51, 100, what >> 2 & 1]);
            let frame = match what >> 3 & 3 {
                0 => {
                    let teids: Vec<u32> = self.teids.iter().copied().chain(1..8).collect();
                    let tunnel = Tunnel {
                        teid: teids[usize::from(what >> 5) % teids.len()],
                        src_ip: [192, 0, 2, 7].into(),
                        dst_ip: [192, 0, 2, 1].into(),
                    };
                    flow(user, server).frame_as(Protocol::Udp, Some(&tunnel), 140)
                }
                _ => flow(server, user).frame(90),
            };
            let mut frame = frame.expect("a frame");
            if what == 0xff {
                // The packet is too short for its type to be recognised.
                frame.truncate(20 + usize::from(last));
            }
            if what >> 5 == 7
                && let Some(message) = frame.get_mut(43)
            {
                *message = last % 3 + 1;
            }
            frames.push(frame);
        }
        (frames, port)
    }

    /// Builds a usage rule, with few kinds of limits.
    fn urr(&mut self, id: u8) -> Writer {
        let flags = self.bytes.byte();
        let mut urr = element(E::URR_ID, &[0, 0, 0, id]);
        urr.element(E::MEASUREMENT_METHOD, &[flags & 3]);
        urr.element(E::REPORTING_TRIGGERS, &[flags & 7, flags >> 3 & 3]);
        let volumes = Volumes {
            total: (flags & 8 != 0).then_some(u64::from(self.bytes.byte())),
            uplink: None,
            downlink: (flags & 16 != 0).then_some(u64::from(self.bytes.byte())),
        };
        let short = [0, 0, 0, flags & 7];
        let volumes = volumes.emit();
        let limit = match flags >> 5 {
            0 => None,
            1 => Some((E::MEASUREMENT_PERIOD, &short[..])),
            2 => Some((E::TIME_THRESHOLD, &short[..])),
            3 => Some((E::TIME_QUOTA, &short[..])),
            4 | 5 => Some((E::VOLUME_QUOTA, &volumes[..])),
            _ => Some((E::VOLUME_THRESHOLD, &volumes[..])),
        };
        if let Some((kind, value)) = limit {
            urr.element(kind, value);
        }
        urr
    }

    fn bar(&mut self, id: u8) -> Writer {
        let mut bar = element(E::BAR_ID, &[id]);
        bar.element(E::DOWNLINK_DATA_NOTIFICATION_DELAY, &[self.bytes.below(9)]);
        bar.element(E::SUGGESTED_BUFFERING_PACKETS_COUNT, &[self.bytes.below(9)]);
        bar
    }

    /// Builds rules to create, change or remove, with few different numbers, tunnels and users.
    fn rules(&mut self, writer: &mut Writer, is_new: bool) {
        for _ in 0..self.bytes.below(7) {
            let what = self.bytes.below(if is_new { 7 } else { 17 });
            let id = self.bytes.below(5);
            let id32 = [0, 0, 0, id];
            let (kind, group) = match what {
                0..=1 => (E::CREATE_PDR, self.pdr(id)),
                2..=3 => (E::CREATE_FAR, self.far(id)),
                4 => (E::CREATE_QER, self.qer(id)),
                5 => (E::CREATE_URR, self.urr(id)),
                6 => (E::CREATE_BAR, self.bar(id)),
                7 => (E::UPDATE_PDR, self.pdr(id)),
                8 => (E::UPDATE_FAR, self.far(id)),
                9 => (E::UPDATE_QER, self.qer(id)),
                10 => (E::UPDATE_URR, self.urr(id)),
                11 => (E::REMOVE_URR, element(E::URR_ID, &id32)),
                12 => (E::QUERY_URR, element(E::URR_ID, &id32)),
                13 => match id % 2 {
                    0 => (E::UPDATE_BAR, self.bar(id)),
                    _ => (E::REMOVE_BAR, element(E::BAR_ID, &[id])),
                },
                14 => (E::PFCPSMREQ_FLAGS, Writer::group()),
                15 => (E::REMOVE_PDR, element(E::PDR_ID, &[0, id])),
                _ => match id % 2 {
                    0 => (E::REMOVE_FAR, element(E::FAR_ID, &id32)),
                    _ => (E::REMOVE_QER, element(E::QER_ID, &id32)),
                },
            };
            match kind {
                E::PFCPSMREQ_FLAGS => writer.element(kind, &[id]),
                _ => writer.grouped(kind, &group),
            };
        }
    }

    fn pdr(&mut self, id: u8) -> Writer {
        let flags = self.bytes.byte();
        let mut pdi = element(E::SOURCE_INTERFACE, &[flags & 1]);
        let teid = match flags >> 1 & 3 {
            0 => None,
            1 => Some(FTeid::Choose {
                v4: true,
                v6: flags & 0x80 != 0,
                id: (flags & 0x40 != 0).then_some(id),
            }),
            _ => Some(FTeid::Chosen {
                teid: u32::from(self.bytes.below(8)),
                v4: Some([192, 0, 2, 1].into()),
                v6: None,
            }),
        };
        if let Some(teid) = teid {
            pdi.element(E::F_TEID, &teid.emit());
        }
        if flags & 8 != 0 {
            pdi.element(E::UE_IP_ADDRESS, &[2, 10, 45, 0, self.bytes.below(6)]);
        }
        if flags & 0x30 == 0x30 {
            let which = self.bytes.below(8);
            let description = match which & 3 {
                0 => Some(&b"permit out ip from any to assigned"[..]),
                1 => Some(&b"permit out 17 from 198.51.100.0/31 53 to 10.45.0.0/30"[..]),
                2 => Some(&b"permit out 17 from any 1-53,60 to any 54"[..]),
                _ => None,
            };
            let filter = SdfFilter {
                description,
                id: (which & 4 != 0).then_some(7),
                ..SdfFilter::default()
            };
            pdi.element(E::SDF_FILTER, &filter.emit());
            if which == 6 {
                pdi.element(E::QFI, &[9]);
            }
        }
        let mut pdr = element(E::PDR_ID, &[0, id]);
        pdr.element(E::PRECEDENCE, &[0, 0, 0, flags]);
        pdr.grouped(E::PDI, &pdi);
        pdr.element(E::FAR_ID, &[0, 0, 0, self.bytes.below(5)]);
        for _ in 0..self.bytes.below(4) {
            pdr.element(E::QER_ID, &[0, 0, 0, self.bytes.below(5)]);
        }
        for _ in 0..self.bytes.below(3) {
            pdr.element(E::URR_ID, &[0, 0, 0, self.bytes.below(5)]);
        }
        pdr
    }

    fn far(&mut self, id: u8) -> Writer {
        let flags = self.bytes.byte();
        let mut far = element(E::FAR_ID, &[0, 0, 0, id]);
        far.element(E::APPLY_ACTION, &[[2, 2, 1, 12][usize::from(flags & 3)]]);
        if flags & 0xc0 == 0xc0 {
            far.element(E::BAR_ID, &[self.bytes.below(3)]);
        }
        if flags & 4 != 0 {
            let creation = OuterHeaderCreation {
                teid: u32::from(flags >> 5),
                v4: Some([192, 0, 2, 7 + (flags >> 3 & 3)].into()),
                v6: None,
            };
            let mut parameters = element(E::OUTER_HEADER_CREATION, &creation.emit());
            parameters.element(E::PFCPSMREQ_FLAGS, &[flags >> 4 & 2]);
            far.grouped(E::FORWARDING_PARAMETERS, &parameters);
            far.grouped(E::UPDATE_FORWARDING_PARAMETERS, &parameters);
        }
        far
    }

    fn qer(&mut self, id: u8) -> Writer {
        let flags = self.bytes.byte();
        let mut qer = element(E::QER_ID, &[0, 0, 0, id]);
        qer.element(E::GATE_STATUS, &[flags >> 4]);
        if flags & 3 != 0 {
            let rates = Mbr {
                uplink_kbps: u64::from(flags & 1) * 1000,
                downlink_kbps: u64::from(flags & 6) * 1000,
            };
            qer.element(E::MBR, &rates.emit());
        }
        qer
    }

    /// Returns the next message; `None` if the next step is not a message.
    fn next(&mut self) -> Option<Vec<u8>> {
        let finished = |writer: Writer| writer.finish().ok();
        match self.bytes.below(16) {
            0 => finished(self.stamped(M::ASSOCIATION_SETUP_REQUEST)),
            1 => finished(self.stamped(M::HEARTBEAT_REQUEST)),
            2 => {
                // The gateway's own messages are numbered from 1 on.
                self.sequence = u32::from(self.bytes.below(4));
                finished(self.stamped(M::HEARTBEAT_RESPONSE))
            }
            3 => finished(self.message(M::ASSOCIATION_RELEASE_REQUEST, None)),
            4..=7 => {
                let seid = Seid {
                    seid: 7,
                    v4: Some([192, 0, 2, 100].into()),
                    v6: None,
                };
                let mut writer = self.message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0));
                writer.element(E::F_SEID, &seid.emit());
                if self.bytes.below(2) == 0 {
                    usual(&mut writer, self.bytes.byte());
                }
                self.rules(&mut writer, true);
                finished(writer)
            }
            8..=10 => {
                let seid = self.seid();
                let mut writer = self.message(M::SESSION_MODIFICATION_REQUEST, Some(seid));
                self.rules(&mut writer, false);
                finished(writer)
            }
            11 => {
                let seid = self.seid();
                finished(self.message(M::SESSION_DELETION_REQUEST, Some(seid)))
            }
            12 => Some(self.last.clone()),
            13 => {
                let mut damaged = self.last.clone();
                let at = usize::from(self.bytes.byte());
                let byte = self.bytes.byte();
                if let Some(place) = damaged.get_mut(at) {
                    *place = byte;
                }
                Some(damaged)
            }
            14 => {
                let count = usize::from(self.bytes.byte());
                Some(self.bytes.take(count).to_vec())
            }
            _ => {
                self.now += Duration::from_millis(400) * u32::from(self.bytes.byte());
                None
            }
        }
    }

    fn learn(&mut self, response: &[u8]) {
        let response = Message::parse(response).expect("a message");
        let asked = Message::parse(&self.last).map(|m| (m.sequence, m.message_type.response()));
        if let Ok(asked) = asked {
            assert_eq!((response.sequence, response.message_type), asked);
        }
        for element in response.elements {
            let element = element.expect("an element");
            if element.element_type == E::CREATED_PDR {
                let teids = element
                    .group()
                    .flatten()
                    .filter_map(|it| FTeid::parse(it.value).ok());
                self.teids.extend(teids.filter_map(|it| match it {
                    FTeid::Chosen { teid, .. } => Some(teid),
                    FTeid::Choose { .. } => None,
                }));
            }
            if element.element_type == E::F_SEID {
                self.seids
                    .extend(Seid::parse(element.value).map(|seid| seid.seid));
            }
        }
    }
}

/// Builds a valid session: one tunnel chosen by the gateway, and up to seven forwarding rules.
fn usual(writer: &mut Writer, rules: u8) {
    let choose = FTeid::Choose {
        v4: true,
        v6: false,
        id: None,
    };
    let mut pdi = element(E::SOURCE_INTERFACE, &[0]);
    pdi.element(E::F_TEID, &choose.emit());
    let mut pdr = element(E::PDR_ID, &[0, 9]);
    pdr.element(E::PRECEDENCE, &[0, 0, 0, 9]);
    pdr.grouped(E::PDI, &pdi);
    pdr.element(E::FAR_ID, &[0, 0, 0, 9]);
    writer.grouped(E::CREATE_PDR, &pdr);
    for id in 9..=9 + rules % 8 {
        let mut far = element(E::FAR_ID, &[0, 0, 0, id]);
        far.element(E::APPLY_ACTION, &[2]);
        writer.grouped(E::CREATE_FAR, &far);
    }
}

fn element(kind: E, value: &[u8]) -> Writer {
    let mut group = Writer::group();
    group.element(kind, value);
    group
}

/// Sends PFCP messages from several peers, one of them unknown, to a gateway with a small table.
pub fn sessions(bytes: &[u8]) {
    SPEAKING.with_borrow_mut(|gateway| {
        let mut planes = Planes {
            bytes: Bytes(bytes),
            now: Instant::now(),
            sequence: 100,
            last: Vec::new(),
            seids: Vec::new(),
            teids: Vec::new(),
        };
        gateway.restart(planes.now).expect("an empty table");
        let pool = PoolHandle::new(64, false).expect("memory");
        for _ in 0..MOST_STEPS {
            if planes.bytes.0.is_empty() {
                break;
            }
            let from = PEERS[usize::from(planes.bytes.below(8)).saturating_sub(5)];
            let from = SocketAddr::new(IpAddr::from(from), 8805);
            if let Some(message) = planes.next() {
                planes.last = message;
                let response = gateway.hear(&planes.last, from, planes.now);
                if let Some(response) = response {
                    assert_ne!(from.ip(), IpAddr::from(PEERS[2]), "a stranger is answered");
                    planes.learn(&response);
                }
            }
            for (to, request) in gateway.look(planes.now) {
                let message = Message::parse(&request).expect("a message");
                let kind = message.message_type;
                assert_ne!(to.ip(), IpAddr::from(PEERS[2]));
                if kind == M::HEARTBEAT_REQUEST {
                    continue;
                }
                let session = match kind {
                    M::SESSION_REPORT_REQUEST => planes.seids.last().copied(),
                    M::NODE_REPORT_REQUEST => None,
                    other => panic!("{other:?} of ourselves"),
                };
                // Some reports get a response, and some of those responses drop the buffered packets.
                if planes.bytes.below(2) == 0 {
                    let mut answer = Writer::message(kind.response(), session, message.sequence);
                    answer.element(E::CAUSE, &[1]);
                    answer.element(E::PFCPSRRSP_FLAGS, &[planes.bytes.below(2)]);
                    let answer = answer.finish().expect("short");
                    assert_eq!(gateway.hear(&answer, to, planes.now), None);
                }
            }
            if planes.bytes.below(2) == 0 {
                let (frames, from_port) = planes.frames();
                pass_sorted(gateway, &pool, &frames, from_port);
            }
            gateway.take_changes();
            gateway
                .sessions_hold()
                .expect("sessions that have what they say");
            gateway.tables_agree().expect("tables that agree");
        }
    });
}

/// Passes frames and checks that each is counted once or buffered.
fn pass_sorted(gateway: &mut Detached, pool: &PoolHandle, frames: &[Vec<u8>], from_port: usize) {
    let mut batch = Batch::new();
    for frame in frames {
        let mut packet = pool.take(frame.len() as u16).expect("room");
        packet.bytes_mut().copy_from_slice(frame);
        batch.push(packet);
    }
    // Pending changes of the slow path are applied first, as they may drop and count buffered packets.
    gateway.take_changes();
    let before = gateway.counted() + gateway.kept() as u64;
    let context = Context {
        from_port,
        to_port: 1 - from_port,
        now_ticks: 1,
        ports: 2,
    };
    gateway.process(&mut batch, &context);
    let after = gateway.counted() + gateway.kept() as u64;
    assert_eq!(after, before + frames.len() as u64);
    for place in 0..batch.len() {
        if batch.is_kept(place) {
            whole(batch.packets()[place].bytes());
        }
    }
    batch.clear();
}

/// A gateway, and the frames that are passed through it.
struct Passing {
    gateway: Detached,
    pool: PoolHandle,
    frames: Vec<Vec<u8>>,
    now: Instant,
}

impl Passing {
    fn new() -> Self {
        let pfcp = "pfcp = { address = \"192.0.2.2\", peers = [\"192.0.2.100\"] }";
        let settings = format!("tunnels = [0]\nmac = \"02:00:00:00:00:a0\"\n{pfcp}");
        Self {
            gateway: gateway(&settings),
            pool: PoolHandle::new(64, false).expect("memory"),
            frames: frames(),
            now: Instant::now(),
        }
    }

    /// Passes a few frames to one port.
    fn pass(&mut self, bytes: &mut Bytes<'_>) {
        let from_port = usize::from(bytes.below(2));
        let mut batch = Batch::new();
        for _ in 0..=bytes.below(4) {
            let kind = usize::from(bytes.below(10));
            let own = &mut *bytes;
            let mut frame = match self.frames.get(kind) {
                Some(frame) => frame.clone(),
                None => {
                    let count = usize::from(own.byte());
                    own.take(count).to_vec()
                }
            };
            // Some frames get another tunnel, others are damaged.
            if let Some(last) = frame.get_mut(49).filter(|_| kind < 4) {
                *last = own.below(8);
            }
            if own.below(4) == 0 {
                let (at, byte) = (usize::from(own.byte()), own.byte());
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame.truncate(MOST_FRAME);
            let mut packet = self.pool.take(frame.len() as u16).expect("room");
            packet.bytes_mut().copy_from_slice(&frame);
            batch.push(packet);
        }
        self.process(&mut batch, from_port);
    }

    fn process(&mut self, batch: &mut Batch, from_port: usize) {
        let arrived = batch.len() as u64;
        let before = self.gateway.counted();
        let context = Context {
            from_port,
            to_port: 1 - from_port,
            now_ticks: 0,
            ports: 2,
        };
        self.gateway.process(batch, &context);
        assert_eq!(self.gateway.counted(), before + arrived);
        for place in 0..batch.len() {
            if batch.is_kept(place) {
                whole(batch.packets()[place].bytes());
            }
        }
        let mut punted = Batch::new();
        batch.settle(&mut punted);
        for (place, packet) in punted.packets().iter().enumerate() {
            let punted = Punted {
                frame: packet.bytes(),
                from_port,
                cause: punted.cause(place),
            };
            // Replies leave through the port of their request; other frames that the gateway creates leave through
            // either port.
            let is_answer = !matches!(punted.cause, Punt::Made { .. });
            let is_for_it = self.gateway.answer(&punted, &mut |way, frame| {
                let port = way.to_port;
                assert!(port == from_port || port < 2 && !is_answer);
                whole(frame);
                true
            });
            assert!(is_for_it, "{punted:?}");
        }
        batch.clear();
    }

    fn change(&mut self, bytes: &mut Bytes<'_>) {
        let wishes: Vec<_> = (0..=bytes.below(4)).map(|_| wish(bytes)).collect();
        let before = self.gateway.control().occupancy().0;
        match self.gateway.control().grant(&wishes) {
            Ok(()) => {}
            Err((number, refused)) => {
                assert!(number < wishes.len());
                assert!(!matches!(refused, Refused::Stuck | Refused::Kernel(_)));
                assert_eq!(self.gateway.control().occupancy().0, before);
            }
        }
    }
}

/// Checks that every length field in a frame that leaves is correct.
fn whole(frame: &[u8]) {
    let ethernet = Ethernet::new(frame).expect("a frame");
    let (payload, is_gtpu) = match ethernet.ethertype() {
        EtherType::IPV4 => {
            let ip = Ipv4::new(ethernet.payload()).expect("IPv4");
            let is_gtpu = ip.protocol() == IpProtocol::UDP && !ip.is_fragment();
            let from_us = ip.source().octets()[..3] == [192, 0, 2];
            if from_us {
                ip.verify_checksum().expect("a right checksum");
            }
            (ip.payload().to_vec(), is_gtpu && from_us)
        }
        EtherType::IPV6 => {
            let ip = Ipv6::new(ethernet.payload()).expect("IPv6");
            let is_udp = ip.next_header() == IpProtocol::UDP;
            let from_us = ip.source().octets()[..4] == [0x20, 1, 0xd, 0xb8];
            (ip.payload().to_vec(), is_udp && from_us)
        }
        _ => return,
    };
    if is_gtpu
        && let Ok(udp) = Udp::new(&payload[..])
        && udp.source_port() == 2152
    {
        Gtpu::new(udp.payload()).expect("GTP-U");
    }
}

/// Draws a request about one of a few bearers.
fn wish(bytes: &mut Bytes<'_>) -> Wish {
    let what = bytes.byte();
    let number = bytes.below(8);
    let matched = match what & 3 {
        0 => Match::User([10, 45, 0, number % 4].into()),
        1 => Match::User(IpAddr::from([0x2001, 0xdb8, 0x45, 0, 0, 0, 0, 2_u16])),
        _ => Match::Teid(u32::from(number) + 1),
    };
    let path = match number & 4 {
        0 => Path {
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 7 + number].into(),
        },
        _ => Path {
            local: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1_u16]),
            remote: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7_u16]),
        },
    };
    let teid = u32::from(what) + 1;
    let action = match (bytes.below(6), matched) {
        (0..=2, Match::User(_)) => Action::Encapsulate {
            teid,
            qfi: (what & 8 != 0).then_some(9),
            path,
        },
        (0..=1, Match::Teid(_)) => Action::Relay { teid, path },
        (2, Match::Teid(_)) => Action::Decapsulate,
        (3, _) => Action::Drop,
        (4, _) => Action::Hold,
        _ => Action::Block,
    };
    let bearer = Bearer { matched, action };
    match what >> 4 {
        0..=4 => Wish::Add(bearer),
        5..=8 => Wish::Put(bearer),
        9..=11 => Wish::Remove(matched),
        12..=13 => {
            let limit = |rule: u8| {
                let meter = MeterName {
                    session: 1,
                    rule: u32::from(rule),
                    is_uplink: true,
                };
                let kbps = NonZeroU64::new(u64::from(rule >> 1) * 100)?;
                Some(Limit { meter, kbps })
            };
            Wish::Limit(matched, [limit(number), limit(number ^ 1)])
        }
        _ => Wish::EndMarker { teid, path },
    }
}

/// Returns frames into and out of tunnels, over both IP versions, a user's packet to the gateway itself, and an echo
/// request.
fn frames() -> Vec<Vec<u8>> {
    let flow = |source: &str, destination: &str| UdpFlow {
        src_ip: source.parse().expect("an address"),
        dst_ip: destination.parse().expect("an address"),
        ..UdpFlow::default()
    };
    let tunnelled = |own: &str, inner: UdpFlow| {
        let tunnel = Tunnel {
            teid: 1,
            src_ip: if own.contains(':') {
                "2001:db8::7"
            } else {
                "192.0.2.7"
            }
            .parse()
            .expect("an address"),
            dst_ip: own.parse().expect("an address"),
        };
        let framed = inner.frame_as(Protocol::Udp, Some(&tunnel), 140);
        framed.expect("a frame")
    };
    let v4 = || flow("10.45.0.2", "198.19.0.1");
    let v6 = || flow("2001:db8:45::2", "2001:db8:99::1");
    let mut echo = tunnelled("192.0.2.1", v4());
    echo[43] = 1;
    vec![
        tunnelled("192.0.2.1", v4()),
        tunnelled("192.0.2.1", v6()),
        tunnelled("192.0.2.1", flow("10.45.0.2", "192.0.2.2")),
        tunnelled("192.0.2.1", flow("2001:db8:45::2", "2001:db8::1")),
        tunnelled("2001:db8::1", v4()),
        flow("198.19.0.1", "10.45.0.2").frame(80).expect("a frame"),
        flow("198.19.0.1", "10.45.0.3")
            .frame(1514)
            .expect("a frame"),
        flow("2001:db8:99::1", "2001:db8:45::2")
            .frame(90)
            .expect("a frame"),
        echo,
    ]
}

/// Passes frames on both ports, and changes bearers between them.
pub fn sequence(bytes: &[u8]) {
    PASSING.with_borrow_mut(|passing| {
        let mut bytes = Bytes(bytes);
        passing
            .gateway
            .restart(passing.now)
            .expect("an empty table");
        for _ in 0..MOST_STEPS {
            if bytes.0.is_empty() {
                break;
            }
            match bytes.below(4) {
                0 => passing.change(&mut bytes),
                1 => {
                    passing.gateway.take_changes();
                    passing.gateway.tables_agree().expect("tables that agree");
                }
                _ => passing.pass(&mut bytes),
            }
        }
        passing.gateway.take_changes();
        passing.gateway.tables_agree().expect("tables that agree");
        // Frames that the gateway creates leave through either port, so both ports are processed, one after the other.
        let mut rounds = 0;
        while passing.gateway.held() > 0 {
            passing.process(&mut Batch::new(), rounds % 2);
            rounds += 1;
            assert!(rounds < 1000, "answers that never leave");
        }
        assert_eq!(passing.pool.outstanding(), 0);
    });
}
