//! Tests of the gateway as the user plane of a 5G core, from PFCP to packets: sessions, rules, and reports.
//!
//! The exchanges are synthetic, after the known behaviour of the session management functions of Open5GS (2.7) and
//! free5GC (3.4): which elements, in which order, with which values. They were not recorded from those programs.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use taut_function::{Context, Passage, Punted};
use taut_gateway::Detached;
use taut_port::{Batch, PoolHandle};
use taut_wire::gtpu::{Extensions, MessageType, PDU_SESSION_CONTAINER, PduSession};
use taut_wire::pfcp::{
    Cause, ElementType as E, Elements, FTeid, Mbr, Message, MessageType as M, OuterHeaderCreation,
    SdfFilter, Seid, Volumes, Writer,
};
use taut_wire::{Gtpu, GtpuRepr, Protocol, Tunnel, Udp, UdpFlow};

const SMF: &str = "192.0.2.100";
const GNB: [u8; 4] = [192, 0, 2, 7];
const USER: &str = "10.45.0.2";
const SERVER: &str = "198.51.100.7";
const ACCESS: u8 = 0;
const CORE: u8 = 1;
const FORWARD: u8 = 2;
const BUFFER_AND_NOTIFY: u8 = 0x0c;

type Element = (E, Vec<u8>);

/// A gateway with a test as its control plane, and as the sender and receiver of its users' packets.
struct Upf {
    gateway: Detached,
    pool: PoolHandle,
    now: Instant,
    sequence: u32,
    /// The frames that the gateway itself has created, and their egress ports.
    made: Vec<(usize, Vec<u8>)>,
}

/// The information elements of a PFCP message, and its session.
#[derive(Debug)]
struct Heard {
    kind: u8,
    seid: Option<u64>,
    elements: Vec<Element>,
}

impl Heard {
    fn read(bytes: &[u8]) -> Self {
        let message = Message::parse(bytes).unwrap();
        let elements = message.elements.map(|it| it.unwrap());
        Self {
            kind: message.message_type.0,
            seid: message.seid,
            elements: elements
                .map(|it| (it.element_type, it.value.to_vec()))
                .collect(),
        }
    }

    fn all(&self, kind: E) -> Vec<&[u8]> {
        let found = self.elements.iter().filter(|it| it.0 == kind);
        found.map(|it| &it.1[..]).collect()
    }

    #[track_caller]
    fn get(&self, kind: E) -> &[u8] {
        self.all(kind)
            .first()
            .unwrap_or_else(|| panic!("{kind:?} is not in {self:?}"))
    }

    #[track_caller]
    fn accepted(self) -> Self {
        self.cause(Cause::ACCEPTED)
    }

    #[track_caller]
    fn cause(self, cause: Cause) -> Self {
        assert_eq!(self.get(E::CAUSE), [cause.0], "{self:?}");
        self
    }

    fn seid(&self) -> u64 {
        Seid::parse(self.get(E::F_SEID)).unwrap().seid
    }

    /// Returns the TEID that the gateway chose for a detection rule.
    fn teid(&self, rule: u16) -> u32 {
        let created = self.all(E::CREATED_PDR).into_iter();
        let mut teids = created.filter_map(|value| {
            let id = inside(value, E::PDR_ID).unwrap();
            let FTeid::Chosen { teid, .. } = FTeid::parse(&inside(value, E::F_TEID)?).unwrap()
            else {
                return None;
            };
            (id == rule.to_be_bytes()).then_some(teid)
        });
        teids.next().unwrap()
    }
}

/// Returns the value of the first element of a type in a group; none if the group has no such element.
fn inside(group: &[u8], kind: E) -> Option<Vec<u8>> {
    let mut elements = Elements(group).map(|it| it.unwrap());
    elements
        .find(|it| it.element_type == kind)
        .map(|it| it.value.to_vec())
}

/// Parses a usage report: rule, sequence number, triggers, total, uplink and downlink volume.
fn usage(report: &[u8]) -> (u32, u32, u32, (u64, u64, u64)) {
    let word = |kind| u32::from_be_bytes(inside(report, kind).unwrap().try_into().unwrap());
    let triggers = inside(report, E::USAGE_REPORT_TRIGGER).unwrap();
    let triggers = triggers
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u32::from(*byte));
    let volumes = Volumes::parse(&inside(report, E::VOLUME_MEASUREMENT).unwrap()).unwrap();
    let volumes = (
        volumes.total.unwrap(),
        volumes.uplink.unwrap(),
        volumes.downlink.unwrap(),
    );
    assert!(word(E::START_TIME) <= word(E::END_TIME));
    (word(E::URR_ID), word(E::UR_SEQN), triggers, volumes)
}

fn group(kind: E, elements: &[Element]) -> Element {
    let mut group = Writer::group();
    for (kind, value) in elements {
        group.element(*kind, value);
    }
    // The value follows the headers of message and element.
    let mut outer = Writer::message(M(0), None, 0);
    outer.grouped(kind, &group);
    (kind, outer.finish().unwrap()[12..].to_vec())
}

fn number(kind: E, number: u32) -> Element {
    (kind, number.to_be_bytes().to_vec())
}

fn sdf(text: &str) -> Element {
    let filter = SdfFilter {
        description: Some(text.as_bytes()),
        ..SdfFilter::default()
    };
    (E::SDF_FILTER, filter.emit())
}

fn user(is_destination: bool) -> Element {
    let IpAddr::V4(address) = USER.parse().unwrap() else {
        panic!("IPv4");
    };
    let flags = if is_destination { 6 } else { 2 };
    (E::UE_IP_ADDRESS, [&[flags][..], &address.octets()].concat())
}

fn choose(id: Option<u8>) -> Element {
    let teid = FTeid::Choose {
        v4: true,
        v6: false,
        id,
    };
    (E::F_TEID, teid.emit())
}

fn pdr(kind: E, id: u16, precedence: u32, pdi: &[Element], rest: &[Element]) -> Element {
    let mut all = vec![
        (E::PDR_ID, id.to_be_bytes().to_vec()),
        number(E::PRECEDENCE, precedence),
        group(E::PDI, pdi),
    ];
    all.extend(rest.iter().cloned());
    group(kind, &all)
}

fn tunnel(teid: u32) -> Element {
    let creation = OuterHeaderCreation {
        teid,
        v4: Some(GNB.into()),
        v6: None,
    };
    (E::OUTER_HEADER_CREATION, creation.emit())
}

fn far(id: u32, action: u8, rest: &[Element]) -> Element {
    let mut all = vec![number(E::FAR_ID, id), (E::APPLY_ACTION, vec![action])];
    all.extend(rest.iter().cloned());
    group(E::CREATE_FAR, &all)
}

fn update_far(id: u32, action: u8, teid: Option<u32>) -> Element {
    let mut all = vec![number(E::FAR_ID, id), (E::APPLY_ACTION, vec![action])];
    let parameters = teid.map(|teid| group(E::UPDATE_FORWARDING_PARAMETERS, &[tunnel(teid)]));
    all.extend(parameters);
    group(E::UPDATE_FAR, &all)
}

fn volume(kind: E, total: Option<u64>, uplink: Option<u64>, downlink: Option<u64>) -> Element {
    let volumes = Volumes {
        total,
        uplink,
        downlink,
    };
    (kind, volumes.emit())
}

fn urr(kind: E, id: u32, method: u8, triggers: [u8; 3], rest: &[Element]) -> Element {
    let mut all = vec![
        number(E::URR_ID, id),
        (E::MEASUREMENT_METHOD, vec![method]),
        (E::REPORTING_TRIGGERS, triggers.to_vec()),
    ];
    all.extend(rest.iter().cloned());
    group(kind, &all)
}

fn qer(id: u32, gates: u8, qfi: u8, kbps: u64) -> Element {
    let rates = Mbr {
        uplink_kbps: kbps,
        downlink_kbps: kbps,
    };
    let all = [
        number(E::QER_ID, id),
        (E::GATE_STATUS, vec![gates]),
        (E::MBR, rates.emit()),
        (E::QFI, vec![qfi]),
    ];
    group(E::CREATE_QER, &all)
}

/// Returns a session as Open5GS' SMF sets it up for IPv4: downlink, uplink by a chosen tunnel, both directions to the
/// SMF itself. It has one URR with a volume threshold, one QER with the default flow, and one BAR. Downlink packets are
/// buffered until the base station is known.
fn open5gs(threshold: u64) -> Vec<Element> {
    let instance = (E(22), b"\x08internet".to_vec());
    let removal = (E::OUTER_HEADER_REMOVAL, vec![0]);
    let of_flow = [number(E::URR_ID, 1), number(E::QER_ID, 1)];
    let [urr_1, qer_1] = of_flow.clone();
    vec![
        pdr(
            E::CREATE_PDR,
            1,
            255,
            &[
                (E::SOURCE_INTERFACE, vec![CORE]),
                instance.clone(),
                user(true),
            ],
            &[number(E::FAR_ID, 1), urr_1.clone(), qer_1.clone()],
        ),
        pdr(
            E::CREATE_PDR,
            2,
            255,
            &[
                (E::SOURCE_INTERFACE, vec![ACCESS]),
                choose(Some(5)),
                instance.clone(),
                user(false),
                (E::QFI, vec![1]),
            ],
            &[removal.clone(), number(E::FAR_ID, 2), urr_1, qer_1],
        ),
        pdr(
            E::CREATE_PDR,
            3,
            255,
            &[(E::SOURCE_INTERFACE, vec![3]), choose(None)],
            &[removal.clone(), number(E::FAR_ID, 1)],
        ),
        pdr(
            E::CREATE_PDR,
            4,
            1,
            &[
                (E::SOURCE_INTERFACE, vec![ACCESS]),
                choose(Some(5)),
                instance,
                user(false),
                sdf("permit out 58 from ff02::2/128 to assigned"),
            ],
            &[removal, number(E::FAR_ID, 3)],
        ),
        far(1, BUFFER_AND_NOTIFY, &[(E::BAR_ID, vec![1])]),
        far(
            2,
            FORWARD,
            &[group(E::FORWARDING_PARAMETERS, &[(E(42), vec![1])])],
        ),
        far(
            3,
            FORWARD,
            &[group(
                E::FORWARDING_PARAMETERS,
                &[(E(42), vec![3]), tunnel(1)],
            )],
        ),
        urr(
            E::CREATE_URR,
            1,
            2,
            [2, 0, 0],
            &[volume(E::VOLUME_THRESHOLD, Some(threshold), None, None)],
        ),
        qer(1, 0, 1, 1_000_000),
        group(E::CREATE_BAR, &[(E::BAR_ID, vec![1])]),
        (E(113), vec![1]),
    ]
}

impl Upf {
    fn new(settings: &str) -> Self {
        Self::with("bearers = 200", settings)
    }

    /// Creates a test setup with the settings `gateway` of the gateway and the additional settings `settings` of PFCP.
    fn with(gateway: &str, settings: &str) -> Self {
        let text = format!(
            "address = [\"192.0.2.1\", \"2001:db8::1\"]\n{gateway}\n\
             pfcp = {{ address = \"192.0.2.2\", peers = [\"{SMF}\"]{settings} }}"
        );
        let now = Instant::now();
        let mut upf = Self {
            gateway: Detached::new(text.parse().unwrap()).unwrap(),
            pool: PoolHandle::new(256, false).unwrap(),
            now,
            sequence: 0,
            made: Vec::new(),
        };
        upf.gateway.restart(now).unwrap();
        let node = (E::NODE_ID, vec![0, 192, 0, 2, 100]);
        let stamp = number(E::RECOVERY_TIME_STAMP, 0xe000_0001);
        upf.ask(M::ASSOCIATION_SETUP_REQUEST, None, &[node, stamp])
            .accepted();
        upf
    }

    fn smf() -> SocketAddr {
        SocketAddr::new(SMF.parse().unwrap(), 8805)
    }

    fn ask(&mut self, kind: M, seid: Option<u64>, elements: &[Element]) -> Heard {
        self.sequence += 1;
        let mut writer = Writer::message(kind, seid, self.sequence);
        for (kind, value) in elements {
            writer.element(*kind, value);
        }
        let bytes = writer.finish().unwrap();
        let response = self.gateway.hear(&bytes, Self::smf(), self.now).unwrap();
        self.gateway.take_changes();
        self.gateway.sessions_hold().unwrap();
        self.gateway.tables_agree().unwrap();
        let heard = Heard::read(&response);
        assert_eq!(heard.kind, kind.0 + 1);
        heard
    }

    fn establish(&mut self, rules: &[Element]) -> Heard {
        let seid = Seid {
            seid: 0x77,
            v4: Some([192, 0, 2, 100].into()),
            v6: None,
        };
        let head = [
            (E::NODE_ID, vec![0, 192, 0, 2, 100]),
            (E::F_SEID, seid.emit()),
        ];
        self.ask(
            M::SESSION_ESTABLISHMENT_REQUEST,
            Some(0),
            &[&head, rules].concat(),
        )
    }

    fn modify(&mut self, seid: u64, rules: &[Element]) -> Heard {
        self.ask(M::SESSION_MODIFICATION_REQUEST, Some(seid), rules)
    }

    fn delete(&mut self, seid: u64) -> Heard {
        self.ask(M::SESSION_DELETION_REQUEST, Some(seid), &[])
    }

    /// Returns the frames that the gateway forwards after `frames` have arrived at port `from_port`.
    fn pass(&mut self, frames: &[Vec<u8>], from_port: usize) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        for frame in frames {
            let mut packet = self.pool.take(frame.len() as u16).unwrap();
            packet.bytes_mut().copy_from_slice(frame);
            batch.push(packet);
        }
        let context = Context {
            from_port,
            to_port: 1 - from_port,
            now_ticks: taut_sys::ticks(),
            ports: 2,
        };
        self.gateway.process(&mut batch, &context);
        let mut punted = Batch::new();
        batch.settle(&mut punted);
        for (index, packet) in punted.packets().iter().enumerate() {
            let punted = Punted {
                frame: packet.bytes(),
                from_port,
                cause: punted.cause(index),
            };
            let made = &mut self.made;
            let mut send = |way: Passage, frame: &[u8]| {
                let port = way.to_port;
                made.push((port, frame.to_vec()));
                true
            };
            assert!(self.gateway.answer(&punted, &mut send), "{punted:?}");
        }
        let frames = batch
            .packets()
            .iter()
            .map(|it| it.bytes().to_vec())
            .collect();
        batch.clear();
        frames
    }

    fn up(&mut self, frame: Vec<u8>) -> usize {
        self.pass(&[frame], 0).len()
    }

    fn down(&mut self, frame: Vec<u8>) -> Vec<Tunnelled> {
        self.pass(&[frame], 1)
            .iter()
            .map(|it| Tunnelled::read(it))
            .collect()
    }

    /// Returns the requests that the gateway sends once `time` has passed. Each gets a response, which contains `flags`
    /// unless they are 0.
    fn told_after(&mut self, time: Duration, flags: u8) -> Vec<Heard> {
        self.now += time;
        let sent = self.gateway.look(self.now);
        let mut heard = Vec::new();
        for (to, bytes) in sent {
            assert_eq!(to, Self::smf());
            let message = Message::parse(&bytes).unwrap();
            let (kind, sequence) = (message.message_type.response(), message.sequence);
            let mut seid = None;
            if message.seid.is_some() {
                seid = Some(1);
            }
            let mut answer = Writer::message(kind, seid, sequence);
            answer.element(E::CAUSE, &[1]);
            if flags != 0 {
                answer.element(E::PFCPSRRSP_FLAGS, &[flags]);
            }
            heard.push(Heard::read(&bytes));
            let answer = answer.finish().unwrap();
            assert_eq!(self.gateway.hear(&answer, to, self.now), None);
        }
        heard.retain(|it| it.kind != M::HEARTBEAT_REQUEST.0);
        heard
    }

    fn told(&mut self) -> Vec<Heard> {
        self.told_after(Duration::ZERO, 0)
    }

    fn count(&mut self, name: &str) -> u64 {
        let outcomes = self.gateway.control().outcomes();
        outcomes.iter().find(|it| it.0 == name).unwrap().1
    }

    fn signalling(&self, name: &str) -> u64 {
        let counts = self.gateway.signalling();
        counts.iter().find(|it| it.0 == name).unwrap().1
    }
}

/// A frame of the test whose tunnel headers were removed.
#[derive(Debug, PartialEq, Eq)]
struct Tunnelled {
    teid: u32,
    qfi: Option<u8>,
    /// The last byte of the user packet, by which a test recognises the packet.
    mark: u8,
}

impl Tunnelled {
    fn read(frame: &[u8]) -> Self {
        let udp = Udp::new(&frame[34..]).unwrap();
        let gtpu = Gtpu::new(udp.payload()).unwrap();
        Self {
            teid: gtpu.teid(),
            qfi: gtpu.pdu_session().map(|it| it.qfi),
            mark: *gtpu.payload().last().unwrap(),
        }
    }
}

/// Returns a server's frame to the user, whose last byte is `mark`; the user packet has 86 bytes.
fn to_user(source_port: u16, mark: u8) -> Vec<u8> {
    let flow = UdpFlow {
        src_ip: SERVER.parse().unwrap(),
        dst_ip: USER.parse().unwrap(),
        src_port: source_port,
        ..UdpFlow::default()
    };
    let mut frame = flow.frame(104).unwrap();
    *frame.last_mut().unwrap() = mark;
    frame
}

const USER_BYTES: u64 = 86;

/// Returns the user's frame to a server in a tunnel, with a QoS flow mark or without; the user packet has 86 bytes.
fn from_user(teid: u32, port: u16, qfi: Option<u8>) -> Vec<u8> {
    let flow = UdpFlow {
        src_ip: USER.parse().unwrap(),
        dst_ip: SERVER.parse().unwrap(),
        dst_port: port,
        ..UdpFlow::default()
    };
    let inner = flow.frame(104).unwrap();
    let outer = Tunnel {
        teid,
        src_ip: GNB.into(),
        dst_ip: "192.0.2.1".parse().unwrap(),
    };
    // A packet without a PDU session container is built by the ordinary frame builder.
    let Some(qfi) = qfi else {
        let flow = UdpFlow { ..flow };
        return flow
            .frame_as(Protocol::Udp, Some(&outer), 104 + 36)
            .unwrap();
    };
    let container = PduSession { uplink: true, qfi }.emit();
    let repr = GtpuRepr {
        message_type: MessageType::G_PDU,
        teid,
        sequence: None,
        n_pdu: None,
        extensions: Some(Extensions {
            first: PDU_SESSION_CONTAINER,
            bytes: &container,
        }),
        payload_len_bytes: inner.len() - 14,
    };
    let mut message = vec![0; repr.header_len_bytes() + inner.len() - 14];
    repr.emit(&mut message)
        .unwrap()
        .payload_mut()
        .copy_from_slice(&inner[14..]);
    let mut frame = vec![0; 14 + 28 + message.len()];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = taut_wire::Ipv4Repr {
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: taut_wire::IpProtocol::UDP,
        source: GNB.into(),
        destination: [192, 0, 2, 1].into(),
        options: &[],
        payload_len_bytes: 8 + message.len(),
    };
    let udp = taut_wire::UdpRepr {
        source_port: 2152,
        destination_port: 2152,
        payload_len_bytes: message.len(),
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    let mut udp = udp.emit(ip.payload_mut()).unwrap();
    udp.payload_mut().copy_from_slice(&message);
    frame
}

#[test]
fn an_open5gs_session_buffers_notifies_forwards_counts_and_reports() {
    let mut upf = Upf::new("");
    let made = upf.establish(&open5gs(1000)).accepted();
    assert_eq!(made.seid, Some(0x77));
    let (seid, teid) = (made.seid(), made.teid(2));
    assert_eq!(made.teid(4), teid, "one CHOOSE ID, one tunnel");
    // The base station is not known yet: packets are buffered, and the SMF gets one report.
    for mark in 1..=3 {
        assert_eq!(upf.down(to_user(53, mark)), []);
    }
    assert_eq!(upf.gateway.kept(), 3);
    let told = upf.told();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].kind, told[0].seid),
        (M::SESSION_REPORT_REQUEST.0, Some(0x77))
    );
    assert_eq!(told[0].get(E::REPORT_TYPE), [1]);
    let of_rule = inside(told[0].get(E::DOWNLINK_DATA_REPORT), E::PDR_ID);
    assert_eq!(of_rule, Some(vec![0, 1]));
    assert_eq!(upf.down(to_user(53, 4)), []);
    assert!(upf.told().is_empty());
    assert_eq!(upf.signalling("packets held"), 4);
    // The base station is known now: buffered packets leave in order, before new packets.
    upf.modify(seid, &[update_far(1, FORWARD, Some(0x20))])
        .accepted();
    let out = upf.down(to_user(53, 5));
    let marks: Vec<_> = out.iter().map(|it| it.mark).collect();
    assert_eq!(marks, [1, 2, 3, 4, 5]);
    assert!(out.iter().all(|it| (it.teid, it.qfi) == (0x20, Some(1))));
    assert_eq!(upf.gateway.kept(), 0);
    // Uplink packets come with the session's QoS flow, with another one, and with none.
    assert_eq!(upf.up(from_user(teid, 53, Some(1))), 1);
    assert_eq!(upf.up(from_user(teid, 53, Some(2))), 0);
    assert_eq!(upf.up(from_user(teid, 53, None)), 0);
    assert_eq!(upf.count("wrong QoS flow"), 2);
    // No report is due before the threshold. Five packets have passed down and one up; six more down follow.
    assert!(upf.told().is_empty());
    for mark in 6..=11 {
        assert_eq!(upf.down(to_user(53, mark)).len(), 1);
    }
    let told = upf.told();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].get(E::REPORT_TYPE), [2]);
    let report = usage(told[0].get(E::USAGE_REPORT_IN_REQUEST));
    let volumes = (12 * USER_BYTES, USER_BYTES, 11 * USER_BYTES);
    assert_eq!(report, (1, 0, 2, volumes));
    // The session ends with a report of the usage since the last report.
    assert_eq!(upf.up(from_user(teid, 53, Some(1))), 1);
    let ended = upf.delete(seid).accepted();
    let report = usage(ended.get(E::USAGE_REPORT_IN_DELETION));
    assert_eq!(report, (1, 1, 1 << 11, (USER_BYTES, USER_BYTES, 0)));
    assert_eq!(upf.gateway.control().occupancy().0, 0);
    assert_eq!(upf.up(from_user(teid, 53, Some(1))), 0);
}

/// Returns a session as free5GC's SMF sets it up: given or chosen tunnel, filters for all packets, and two QERs
/// (session and flow). Its URRs have a period, and thresholds for either direction.
fn free5gc() -> Vec<Element> {
    let all = sdf("permit out ip from any to assigned");
    let instance = (E(22), b"internet".to_vec());
    let named = [
        number(E::URR_ID, 1),
        number(E::URR_ID, 2),
        number(E::QER_ID, 1),
        number(E::QER_ID, 2),
    ];
    let rest = |far: u32, removal: bool| {
        let removal = removal.then(|| (E::OUTER_HEADER_REMOVAL, vec![0]));
        let mut all: Vec<_> = removal.into_iter().collect();
        all.push(number(E::FAR_ID, far));
        all.extend(named.iter().cloned());
        all
    };
    vec![
        pdr(
            E::CREATE_PDR,
            1,
            255,
            &[
                (E::SOURCE_INTERFACE, vec![ACCESS]),
                choose(None),
                instance.clone(),
                user(false),
                all.clone(),
            ],
            &rest(1, true),
        ),
        pdr(
            E::CREATE_PDR,
            2,
            255,
            &[(E::SOURCE_INTERFACE, vec![CORE]), instance, user(true), all],
            &rest(2, false),
        ),
        far(
            1,
            FORWARD,
            &[group(E::FORWARDING_PARAMETERS, &[(E(42), vec![1])])],
        ),
        far(
            2,
            FORWARD,
            &[group(
                E::FORWARDING_PARAMETERS,
                &[(E(42), vec![0]), tunnel(0x20)],
            )],
        ),
        qer(1, 0, 9, 1_000_000),
        qer(2, 0, 9, 200_000),
        // This URR reports volume and time every ten seconds.
        urr(
            E::CREATE_URR,
            1,
            3,
            [1, 0, 0],
            &[number(E::MEASUREMENT_PERIOD, 10)],
        ),
        // This URR has a threshold and a quota for the downlink.
        urr(
            E::CREATE_URR,
            2,
            2,
            [2, 1, 0],
            &[
                volume(E::VOLUME_THRESHOLD, None, None, Some(3 * USER_BYTES)),
                volume(E::VOLUME_QUOTA, None, None, Some(5 * USER_BYTES)),
            ],
        ),
        group(
            E::CREATE_BAR,
            &[
                (E::BAR_ID, vec![1]),
                (E::DOWNLINK_DATA_NOTIFICATION_DELAY, vec![2]),
                (E::SUGGESTED_BUFFERING_PACKETS_COUNT, vec![2]),
            ],
        ),
    ]
}

#[test]
fn a_free5gc_session_reports_usage_and_stops_at_its_quota() {
    let mut upf = Upf::new("");
    let made = upf.establish(&free5gc()).accepted();
    let (seid, teid) = (made.seid(), made.teid(1));
    assert_eq!(upf.up(from_user(teid, 80, Some(9))), 1);
    let mut passed = 0;
    for mark in 0..8 {
        passed += upf.down(to_user(80, mark)).len();
    }
    assert_eq!((passed, upf.count("over the quota")), (5, 3));
    // Packets without that QoS flow match none of the rules; the quota stops uplink as well.
    assert_eq!(upf.up(from_user(teid, 80, Some(9))), 0);
    let told = upf.told();
    assert_eq!(told.len(), 1, "{told:?}");
    let report = usage(told[0].get(E::USAGE_REPORT_IN_REQUEST));
    // The threshold and the quota were both reached before the next check.
    let volumes = (6 * USER_BYTES, USER_BYTES, 5 * USER_BYTES);
    assert_eq!(report, (2, 0, 2 | 1 << 8, volumes));
    // A new quota lets packets pass again.
    let more = [
        number(E::URR_ID, 2),
        volume(E::VOLUME_QUOTA, None, None, Some(2 * USER_BYTES)),
    ];
    upf.modify(seid, &[group(E::UPDATE_URR, &more)]).accepted();
    assert_eq!(upf.down(to_user(80, 9)).len(), 1);
    // The periodic rule sends one report every ten seconds, with the usage of that period.
    assert!(upf.told_after(Duration::from_secs(9), 0).is_empty());
    let told = upf.told_after(Duration::from_secs(1), 0);
    assert_eq!(told.len(), 1, "{told:?}");
    let report = told[0].get(E::USAGE_REPORT_IN_REQUEST);
    let volumes = (7 * USER_BYTES, USER_BYTES, 6 * USER_BYTES);
    assert_eq!(usage(report), (1, 0, 1, volumes));
    assert!(inside(report, E::TIME_OF_FIRST_PACKET).is_some());
    let told = upf.told_after(Duration::from_secs(10), 0);
    let report = told[0].get(E::USAGE_REPORT_IN_REQUEST);
    assert_eq!(usage(report), (1, 1, 1, (0, 0, 0)));
    assert!(inside(report, E::TIME_OF_FIRST_PACKET).is_none());
    let time = inside(report, E::DURATION_MEASUREMENT).unwrap();
    assert_eq!(time, 10_u32.to_be_bytes());
    // Reports are sent on request, for one rule or for all rules, and when a rule is removed.
    let asked = upf.modify(seid, &[group(E::QUERY_URR, &[number(E::URR_ID, 2)])]);
    let asked = asked.accepted();
    let report = usage(asked.get(E::USAGE_REPORT_IN_MODIFICATION));
    assert_eq!(report, (2, 1, 1 << 7, (USER_BYTES, 0, USER_BYTES)));
    let asked = upf
        .modify(seid, &[(E::PFCPSMREQ_FLAGS, vec![4])])
        .accepted();
    assert_eq!(asked.all(E::USAGE_REPORT_IN_MODIFICATION).len(), 2);
    let gone = group(E::REMOVE_URR, &[number(E::URR_ID, 2)]);
    let asked = upf.modify(seid, std::slice::from_ref(&gone)).accepted();
    let report = usage(asked.get(E::USAGE_REPORT_IN_MODIFICATION));
    assert_eq!((report.0, report.2), (2, 1 << 11));
    let again = upf.modify(seid, &[gone]).cause(Cause::RULE_FAILURE);
    assert_eq!(again.get(E::FAILED_RULE_ID), [3, 0, 0, 0, 2]);
    // Without the quota, all packets pass.
    for mark in 0..4 {
        assert_eq!(upf.down(to_user(80, mark)).len(), 1);
    }
    assert_eq!(
        upf.delete(seid)
            .accepted()
            .all(E::USAGE_REPORT_IN_DELETION)
            .len(),
        1
    );
}

#[test]
fn a_flow_has_its_own_tunnel_gate_and_qfi() {
    let mut upf = Upf::new("");
    let made = upf.establish(&free5gc()).accepted();
    let (seid, teid) = (made.seid(), made.teid(1));
    let dns = |precedence: u32, kind: E| {
        pdr(
            kind,
            11,
            precedence,
            &[
                (E::SOURCE_INTERFACE, vec![CORE]),
                user(true),
                sdf("permit out 17 from 198.51.100.0/24 53,5353-5360 to assigned"),
            ],
            &[number(E::FAR_ID, 11), number(E::QER_ID, 11)],
        )
    };
    let blocked = pdr(
        E::CREATE_PDR,
        12,
        20,
        &[
            (E::SOURCE_INTERFACE, vec![ACCESS]),
            sdf("permit out 17 from 198.51.100.7/32 7 to 10.45.0.2"),
        ],
        &[number(E::FAR_ID, 1), number(E::QER_ID, 12)],
    );
    let rules = [
        dns(20, E::CREATE_PDR),
        blocked,
        far(
            11,
            FORWARD,
            &[group(E::FORWARDING_PARAMETERS, &[tunnel(0x30)])],
        ),
        qer(11, 0, 5, 0),
        qer(12, 0b0101, 5, 0),
    ];
    upf.modify(seid, &rules).accepted();
    let way = |upf: &mut Upf, port: u16| {
        let out = upf.down(to_user(port, 0));
        (out[0].teid, out[0].qfi.unwrap())
    };
    assert_eq!(way(&mut upf, 53), (0x30, 5));
    assert_eq!(way(&mut upf, 5355), (0x30, 5));
    assert_eq!(way(&mut upf, 5361), (0x20, 9));
    assert_eq!(upf.up(from_user(teid, 7, None)), 0);
    assert_eq!(upf.count("gate closed"), 1);
    assert_eq!(upf.up(from_user(teid, 8, None)), 1);
    // A rule after the rule for all packets is never evaluated.
    upf.modify(seid, &[dns(300, E::UPDATE_PDR)]).accepted();
    assert_eq!(way(&mut upf, 53), (0x20, 9));
    // A session without a default rule: unmatched packets are dropped and counted.
    upf.delete(seid).accepted();
    let only = [dns(20, E::CREATE_PDR), rules[2].clone(), rules[3].clone()];
    upf.establish(&only).accepted();
    assert_eq!(way(&mut upf, 53), (0x30, 5));
    assert_eq!(upf.down(to_user(80, 0)), []);
    assert_eq!(upf.count("no rule takes it"), 1);
}

#[test]
fn a_flow_obeys_its_rate_and_usage_excludes_dropped_packets() {
    let mut upf = Upf::new("");
    let mut rules = free5gc();
    rules.push(pdr(
        E::CREATE_PDR,
        11,
        20,
        &[
            (E::SOURCE_INTERFACE, vec![CORE]),
            user(true),
            sdf("permit out 17 from any 53 to assigned"),
        ],
        &[
            number(E::FAR_ID, 2),
            number(E::QER_ID, 11),
            number(E::URR_ID, 11),
        ],
    ));
    rules.push(qer(11, 0, 5, 8));
    rules.push(urr(E::CREATE_URR, 11, 2, [0, 0, 0], &[]));
    let seid = upf.establish(&rules).accepted().seid();
    let mut passed = 0;
    for _ in 0..300 {
        passed += upf.down(to_user(53, 0)).len() as u64;
    }
    // 15000 bytes pass in a burst, and then a thousand a second.
    assert!((170..250).contains(&passed), "{passed}");
    assert_eq!(upf.count("over the rate"), 300 - passed);
    let ended = upf.delete(seid).accepted();
    let reports = ended.all(E::USAGE_REPORT_IN_DELETION);
    let report = reports
        .into_iter()
        .map(usage)
        .find(|it| it.0 == 11)
        .unwrap();
    let bytes = passed * USER_BYTES;
    assert_eq!(report.3, (bytes, 0, bytes));
}

#[test]
fn buffering_obeys_the_limit_and_notification_delay_of_the_smf() {
    let mut upf = Upf::new(", held = 3, session_held = 100");
    let seid = upf.establish(&free5gc()).accepted().seid();
    let bar = |rest: &[Element]| {
        let mut all = vec![
            number(E::FAR_ID, 2),
            (E::APPLY_ACTION, vec![BUFFER_AND_NOTIFY]),
        ];
        all.extend(rest.iter().cloned());
        group(E::UPDATE_FAR, &all)
    };
    // The rule names a BAR that does not exist.
    let refused = upf.modify(seid, &[bar(&[(E::BAR_ID, vec![9])])]);
    let refused = refused.cause(Cause::RULE_FAILURE);
    assert_eq!(refused.get(E::FAILED_RULE_ID), [1, 0, 0, 0, 2]);
    upf.modify(seid, &[bar(&[(E::BAR_ID, vec![1])])]).accepted();
    // At most two packets are buffered, as the SMF suggests; the report comes 100 ms after the first one.
    for mark in 0..4 {
        assert_eq!(upf.down(to_user(80, mark)), []);
    }
    assert_eq!((upf.gateway.kept(), upf.count("no room to hold")), (2, 2));
    assert!(upf.told_after(Duration::from_millis(0), 0).is_empty());
    assert!(upf.told_after(Duration::from_millis(99), 0).is_empty());
    assert_eq!(upf.told_after(Duration::from_millis(1), 0).len(), 1);
    assert!(upf.told_after(Duration::from_secs(5), 0).is_empty());
    // The SMF requests a drop; the next packet causes a report again.
    upf.modify(seid, &[(E::PFCPSMREQ_FLAGS, vec![1])])
        .accepted();
    assert_eq!(
        (upf.gateway.kept(), upf.count("dropped from buffer")),
        (0, 2)
    );
    assert_eq!(upf.down(to_user(80, 0)), []);
    assert!(upf.told().is_empty());
    // The SMF may also request the drop in its response to the report.
    let told = upf.told_after(Duration::from_millis(100), 0);
    assert_eq!(told[0].get(E::REPORT_TYPE), [1]);
    // The SMF suggests more packets than the limit on all buffered packets, so that limit applies.
    let open = [
        (E::BAR_ID, vec![1]),
        (E::SUGGESTED_BUFFERING_PACKETS_COUNT, vec![200]),
    ];
    upf.modify(seid, &[group(E::UPDATE_BAR, &open)]).accepted();
    for mark in 1..9 {
        assert_eq!(upf.down(to_user(80, mark)), []);
    }
    assert_eq!(
        (upf.gateway.kept(), upf.count("no room to hold")),
        (3, 2 + 6)
    );
    // A drop action, or the end of the session, leaves no packet.
    upf.modify(seid, &[update_far(2, 1, None)]).accepted();
    assert_eq!(
        (upf.gateway.kept(), upf.count("dropped from buffer")),
        (0, 5)
    );
    upf.modify(seid, &[bar(&[])]).accepted();
    assert_eq!(upf.down(to_user(80, 0)), []);
    assert_eq!(upf.gateway.kept(), 1);
    upf.delete(seid).accepted();
    assert_eq!(
        (upf.gateway.kept(), upf.count("dropped from buffer")),
        (0, 6)
    );
    assert!(upf.told_after(Duration::from_secs(1), 0).is_empty());
}

#[test]
fn a_usage_report_is_retransmitted_a_limited_number_of_times() {
    let mut upf = Upf::new(", response_time = \"1s\", repeats = 2, heartbeat = \"none\"");
    upf.establish(&open5gs(1000)).accepted();
    assert_eq!(upf.down(to_user(53, 1)), []);
    let mut sent = Vec::new();
    for _ in 0..6 {
        sent.extend(upf.gateway.look(upf.now));
        upf.now += Duration::from_millis(500);
    }
    assert_eq!(sent.len(), 3, "at 0, 1 and 2 s");
    assert!(sent.iter().all(|it| *it == sent[0]));
    assert_eq!(upf.signalling("reports given up"), 0);
    assert!(upf.gateway.look(upf.now).is_empty());
    assert_eq!(upf.signalling("reports given up"), 1);
    assert_eq!(upf.signalling("downlink data reports"), 1);
}

#[test]
fn time_quotas_start_with_the_first_packet_and_stop_traffic() {
    let mut upf = Upf::new("");
    let mut rules = free5gc();
    rules.retain(|it| it.0 != E::CREATE_URR);
    rules.push(urr(
        E::CREATE_URR,
        1,
        1,
        [4, 0, 0],
        &[number(E::TIME_THRESHOLD, 3)],
    ));
    rules.push(urr(
        E::CREATE_URR,
        2,
        3,
        [0, 2, 0],
        &[number(E::TIME_QUOTA, 5)],
    ));
    upf.establish(&rules).accepted();
    assert!(
        upf.told_after(Duration::from_secs(60), 0).is_empty(),
        "nothing passed yet"
    );
    assert_eq!(upf.down(to_user(80, 0)).len(), 1);
    assert!(upf.told_after(Duration::from_secs(1), 0).is_empty());
    let told = upf.told_after(Duration::from_secs(3), 0);
    let report = told[0].get(E::USAGE_REPORT_IN_REQUEST);
    assert_eq!(inside(report, E::USAGE_REPORT_TRIGGER), Some(vec![4, 0, 0]));
    assert_eq!(upf.down(to_user(80, 0)).len(), 1);
    let told = upf.told_after(Duration::from_secs(2), 0);
    let triggers: Vec<_> = told
        .iter()
        .map(|it| inside(it.get(E::USAGE_REPORT_IN_REQUEST), E::USAGE_REPORT_TRIGGER).unwrap())
        .collect();
    assert!(triggers.contains(&vec![0, 2, 0]), "{triggers:?}");
    assert_eq!(upf.down(to_user(80, 0)), []);
    assert_eq!(upf.count("over the quota"), 1);
}

#[test]
fn a_lost_base_station_is_reported_and_handled_as_configured() {
    for (setting, left) in [("keep", 1), ("drop", 0)] {
        let mut upf = Upf::with(
            "bearers = 200\ntunnels = [0]",
            &format!(
                ", heartbeat = \"none\", echo = \"60s\", echo_time = \"3s\", echo_repeats = 2, lost_peers = \"{setting}\""
            ),
        );
        // No packet has passed yet.
        upf.establish(&free5gc()).accepted();
        // Usage reports are sent at the same time, so only node reports are selected.
        let nodes = |upf: &mut Upf, seconds| {
            let mut told = upf.told_after(Duration::from_secs(seconds), 0);
            told.retain(|it| it.kind == M::NODE_REPORT_REQUEST.0);
            told
        };
        let echo = |upf: &mut Upf| {
            upf.gateway.take_changes();
            // The next batch from either port carries the echo requests to the tunnel port.
            for from_port in [0, 1] {
                assert!(upf.pass(&[], from_port).is_empty());
            }
            let sent = std::mem::take(&mut upf.made);
            let echoes = sent.iter().map(|(port, frame)| {
                assert_eq!(*port, 0);
                assert_eq!(frame[30..34], GNB);
                let udp = Udp::new(&frame[34..]).unwrap();
                let gtpu = Gtpu::new(udp.payload()).unwrap();
                assert_eq!(gtpu.message_type(), MessageType::ECHO_REQUEST);
                gtpu.sequence().unwrap()
            });
            echoes.collect::<Vec<_>>()
        };
        let answered = |upf: &mut Upf, sequence: u16| {
            assert_eq!(upf.up(echo_response(GNB, sequence)), 0);
        };
        assert!(nodes(&mut upf, 0).is_empty());
        assert!(echo(&mut upf).is_empty());
        assert!(nodes(&mut upf, 60).is_empty());
        assert_eq!(echo(&mut upf), [1]);
        answered(&mut upf, 1);
        assert!(nodes(&mut upf, 0).is_empty());
        assert!(nodes(&mut upf, 59).is_empty());
        assert!(echo(&mut upf).is_empty());
        // The next two requests get no response.
        assert!(nodes(&mut upf, 1).is_empty());
        assert_eq!(echo(&mut upf), [2]);
        // This response does not count: its request was answered before.
        answered(&mut upf, 1);
        assert!(nodes(&mut upf, 3).is_empty());
        assert_eq!(echo(&mut upf), [3]);
        let told = nodes(&mut upf, 3);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].kind, M::NODE_REPORT_REQUEST.0);
        assert_eq!(told[0].get(E::NODE_REPORT_TYPE), [1]);
        let peer = inside(
            told[0].get(E::USER_PLANE_PATH_FAILURE_REPORT),
            E::REMOTE_GTPU_PEER,
        );
        assert_eq!(peer, Some([&[2][..], &GNB].concat()));
        assert_eq!(upf.signalling("path failures"), 1);
        assert_eq!(upf.signalling("sessions"), left);
        assert!(echo(&mut upf).is_empty());
        if left == 1 {
            assert_eq!(upf.signalling("tunnel peers lost"), 1);
            nodes(&mut upf, 60);
            assert_eq!(echo(&mut upf), [4]);
            answered(&mut upf, 4);
            let told = nodes(&mut upf, 0);
            assert_eq!(told[0].get(E::NODE_REPORT_TYPE), [2]);
            assert_eq!(upf.signalling("tunnel peers lost"), 0);
        }
        upf.gateway.sessions_hold().unwrap();
        assert_eq!(upf.count("unrequested echo response"), 1);
    }
}

/// Returns an echo response of a base station to the gateway.
fn echo_response(from: [u8; 4], sequence: u16) -> Vec<u8> {
    let mut message = [0; 14];
    let length = taut_wire::gtpu::emit_echo_response(sequence, &mut message).unwrap();
    let flow = UdpFlow {
        src_ip: IpAddr::from(from),
        dst_ip: "192.0.2.1".parse().unwrap(),
        src_port: 2152,
        dst_port: 2152,
        ..UdpFlow::default()
    };
    let mut frame = flow.frame(64).unwrap();
    frame[40..42].fill(0);
    frame[42..42 + length].copy_from_slice(&message[..length]);
    frame
}

#[test]
fn unsolicited_echo_responses_suppress_no_usage_report() {
    let mut upf = Upf::new(", heartbeat = \"none\", echo = \"60s\"");
    let seid = upf.establish(&open5gs(1)).accepted().seid();
    upf.modify(seid, &[update_far(1, FORWARD, Some(0x20))])
        .accepted();
    // The number of echo responses, from the base station and from untrusted sources, which exceeds the ring to the
    // PFCP thread.
    const MANY: u16 = 5000;
    for sequence in 0..MANY {
        let from = match sequence % 2 {
            0 => GNB,
            _ => [198, 51, 100, sequence as u8],
        };
        assert_eq!(upf.up(echo_response(from, sequence)), 0);
    }
    assert_eq!(upf.down(to_user(80, 0)).len(), 1);
    let told = upf.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].get(E::REPORT_TYPE), [2]);
    assert_eq!(upf.count("unrequested echo response"), u64::from(MANY));
}

/// Returns the rules of a session of one tunnel and one user, with the forwarding rule `downlink` and the QoS
/// enforcement rules `qers` for the downlink.
fn simple(downlink: Element, qers: &[Element]) -> Vec<Element> {
    let named = (1..=qers.len()).map(|id| number(E::QER_ID, id as u32));
    let mut rest = vec![number(E::FAR_ID, 1)];
    rest.extend(named);
    let to_user = [(E::SOURCE_INTERFACE, vec![CORE]), user(true)];
    let mut rules = vec![pdr(E::CREATE_PDR, 1, 1, &to_user, &rest), downlink];
    rules.extend(qers.iter().cloned());
    rules
}

#[test]
fn forwarding_rules_that_drop_or_buffer_may_have_teid_zero() {
    const DROP: u8 = 1;
    let mut upf = Upf::new("");
    for action in [DROP, BUFFER_AND_NOTIFY] {
        let zeros = group(E::FORWARDING_PARAMETERS, &[(E(42), vec![0]), tunnel(0)]);
        let rules = simple(far(1, action, &[zeros]), &[]);
        let seid = upf.establish(&rules).accepted().seid();
        assert_eq!(upf.down(to_user(80, 1)), []);
        upf.modify(seid, &[update_far(1, FORWARD, Some(0x20))])
            .accepted();
        let left = upf.down(to_user(80, 2));
        assert_eq!(left.first().map(|it| it.teid), Some(0x20));
        upf.modify(seid, &[update_far(1, action, Some(0))])
            .accepted();
        assert_eq!(upf.down(to_user(80, 3)), []);
        upf.modify(seid, &[update_far(1, FORWARD, Some(0))])
            .cause(Cause::RULE_FAILURE);
        // The session no longer has the old tunnel.
        upf.modify(seid, &[update_far(1, FORWARD, None)]).accepted();
        assert_eq!(upf.down(to_user(80, 4)), []);
        upf.delete(seid).accepted();
    }
    assert_eq!(upf.signalling("refused for a rule"), 2);
}

#[test]
fn the_first_nonzero_qfi_of_the_qers_marks_the_packets() {
    let mut upf = Upf::new("");
    let forwards = || {
        far(
            1,
            FORWARD,
            &[group(E::FORWARDING_PARAMETERS, &[tunnel(0x20)])],
        )
    };
    for (flows, mark) in [(&[0, 9][..], 9), (&[9, 0], 9), (&[7, 9], 7), (&[0], 0)] {
        let numbered = (1..).zip(flows);
        let qers: Vec<_> = numbered
            .map(|(id, flow)| qer(id, 0, *flow, 1_000_000))
            .collect();
        let made = upf.establish(&simple(forwards(), &qers)).accepted();
        let left = upf.down(to_user(80, 1));
        assert_eq!(left[0].qfi, Some(mark), "{flows:?}");
        upf.delete(made.seid()).accepted();
    }
}

#[test]
fn refusals_are_counted_by_their_causes() {
    let mut upf = Upf::new("");
    upf.modify(77, &[]).cause(Cause::SESSION_NOT_FOUND);
    upf.delete(77).cause(Cause::SESSION_NOT_FOUND);
    upf.establish(&[]).cause(Cause::MANDATORY_IE_MISSING);
    upf.ask(M::PFD_MANAGEMENT_REQUEST, None, &[])
        .cause(Cause::SERVICE_NOT_SUPPORTED);
    let node = (E::NODE_ID, vec![0, 192, 0, 2, 100]);
    upf.ask(M::ASSOCIATION_RELEASE_REQUEST, None, &[node])
        .accepted();
    upf.establish(&free5gc()).cause(Cause::NO_ASSOCIATION);
    for (name, count) in [
        ("refused for want of the session", 2),
        ("refused for an element", 1),
        ("refused as not supported", 1),
        ("refused for want of an association", 1),
        ("refused for want of resources", 0),
        ("refused for a rule", 0),
        ("refused for a failure", 0),
    ] {
        assert_eq!(upf.signalling(name), count, "{name}");
    }
}

/// Returns the peak memory of this process so far, bytes.
fn peak_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

#[test]
fn rules_for_all_tunnels_are_counted_before_creation() {
    const EACH: u16 = 1000;
    let mut upf = Upf::with("bearers = 5000", ", rules = 4096, sessions = 1");
    let seid = upf.establish(&[
        pdr(
            E::CREATE_PDR,
            1,
            1,
            &[(E::SOURCE_INTERFACE, vec![ACCESS]), choose(None)],
            &[number(E::FAR_ID, 1)],
        ),
        far(1, 1, &[]),
    ]);
    let seid = seid.accepted().seid();
    let tunnels: Vec<_> = (2..=EACH)
        .map(|id| {
            let pdi = [(E::SOURCE_INTERFACE, vec![ACCESS]), choose(None)];
            pdr(E::CREATE_PDR, id, 9, &pdi, &[number(E::FAR_ID, 1)])
        })
        .collect();
    for part in tunnels.chunks(500) {
        upf.modify(seid, part).accepted();
    }
    let before = peak_bytes();
    let of_all: Vec<_> = (1..EACH)
        .map(|id| {
            let text = format!("permit out 17 from any {id} to any");
            let pdi = [(E::SOURCE_INTERFACE, vec![ACCESS]), sdf(&text)];
            pdr(E::CREATE_PDR, EACH + id, 1, &pdi, &[number(E::FAR_ID, 1)])
        })
        .collect();
    upf.modify(seid, &of_all[..600]).cause(Cause::NO_RESOURCES);
    // 600,000 bearers, one for each rule and tunnel, would take some hundred MB; other tests run at the same time.
    assert!(peak_bytes() < before + (100 << 20));
    upf.modify(seid, &of_all[..2]).accepted();
}

/// The number of datagrams that a socket of the default size can buffer.
const ROOM: usize = 200;

#[test]
fn ten_thousand_sessions_reporting_every_second_lose_no_report() {
    const SESSIONS: u32 = 10_000;
    let mut upf = Upf::with("bearers = 50000", ", heartbeat = \"none\"");
    let period = [number(E::MEASUREMENT_PERIOD, 1)];
    for session in 0..SESSIONS {
        let address = session.to_be_bytes();
        let user = [&[6, 10][..], &address[1..]].concat();
        let rules = [
            pdr(
                E::CREATE_PDR,
                1,
                1,
                &[(E::SOURCE_INTERFACE, vec![CORE]), (E::UE_IP_ADDRESS, user)],
                &[number(E::FAR_ID, 1), number(E::URR_ID, 1)],
            ),
            far(1, 1, &[]),
            urr(E::CREATE_URR, 1, 2, [1, 0, 0], &period),
        ];
        let seid = Seid {
            seid: u64::from(session) + 1,
            v4: Some([192, 0, 2, 100].into()),
            v6: None,
        };
        let mut message = Writer::message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), session + 9);
        message.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
        message.element(E::F_SEID, &seid.emit());
        for (kind, value) in &rules {
            message.element(*kind, value);
        }
        let message = message.finish().unwrap();
        let response = upf.gateway.hear(&message, Upf::smf(), upf.now).unwrap();
        Heard::read(&response).accepted();
        upf.gateway.take_changes();
    }
    const SECONDS: u32 = 3;
    let (mut reports, mut sent) = (vec![0; SESSIONS as usize + 1], 0);
    // The queues are the buffers of two sockets: of the control plane, and of the gateway.
    let (mut asked, mut answers) = (VecDeque::new(), VecDeque::new());
    for _ in 0..SECONDS {
        upf.now += Duration::from_secs(1);
        asked.extend(upf.gateway.look(upf.now));
        loop {
            assert!(asked.len() <= ROOM && answers.len() <= ROOM);
            // The control plane handles a few at a time, and the PFCP thread runs after each.
            for (_, bytes) in asked.drain(..asked.len().min(7)) {
                let message = Message::parse(&bytes).unwrap();
                reports[message.seid.unwrap() as usize] += 1;
                sent += 1;
                let kind = message.message_type.response();
                let mut answer = Writer::message(kind, Some(1), message.sequence);
                answer.element(E::CAUSE, &[1]);
                answers.push_back(answer.finish().unwrap());
            }
            let Some(answer) = answers.pop_front() else {
                if !upf.gateway.is_behind() {
                    break;
                }
                asked.extend(upf.gateway.look(upf.now));
                continue;
            };
            assert_eq!(upf.gateway.hear(&answer, Upf::smf(), upf.now), None);
            let more = match upf.gateway.is_behind() {
                true => upf.gateway.look(upf.now),
                false => upf.gateway.due(upf.now),
            };
            asked.extend(more);
        }
    }
    assert!(reports[1..].iter().all(|it| *it == SECONDS));
    assert_eq!(sent, SECONDS * SESSIONS);
    assert_eq!(upf.signalling("reports given up"), 0);
}

#[test]
fn invalid_elements_are_refused_with_a_cause_and_change_nothing() {
    let mut upf = Upf::new(", rules = 40");
    let seid = upf.establish(&free5gc()).accepted().seid();
    let before = upf.gateway.control().occupancy();
    let id = |id: u32| number(E::URR_ID, id);
    let with_filter = |value: Vec<u8>| {
        let pdi = [
            (E::SOURCE_INTERFACE, vec![CORE]),
            user(true),
            (E::SDF_FILTER, value),
        ];
        pdr(E::CREATE_PDR, 20, 1, &pdi, &[number(E::FAR_ID, 1)])
    };
    let described = |text: &str| sdf(text).1;
    let named = |element: Element| {
        let pdi = [(E::SOURCE_INTERFACE, vec![CORE]), user(true)];
        pdr(E::CREATE_PDR, 20, 1, &pdi, &[number(E::FAR_ID, 1), element])
    };
    let missing = |element: E| {
        (
            Cause::MANDATORY_IE_MISSING,
            E::OFFENDING_IE,
            element.0.to_be_bytes().to_vec(),
        )
    };
    let failed = |value: &[u8]| (Cause::RULE_FAILURE, E::FAILED_RULE_ID, value.to_vec());
    let cut = || {
        (
            Cause::INVALID_LENGTH,
            E::CAUSE,
            vec![Cause::INVALID_LENGTH.0],
        )
    };
    let full = || (Cause::NO_RESOURCES, E::CAUSE, vec![Cause::NO_RESOURCES.0]);
    let method = || (E::MEASUREMENT_METHOD, vec![2]);
    let triggers = || (E::REPORTING_TRIGGERS, vec![2, 0]);
    let filters = |count: usize| {
        let mut pdi = vec![(E::SOURCE_INTERFACE, vec![CORE]), user(true)];
        pdi.resize(2 + count, sdf("permit out 17 from any 1 to any"));
        pdi
    };
    let many = filters(33);
    let many = pdr(E::CREATE_PDR, 20, 1, &many, &[number(E::FAR_ID, 1)]);
    for (what, element, (cause, kind, value)) in [
        (
            "URR without ID",
            group(E::CREATE_URR, &[method(), triggers()]),
            missing(E::URR_ID),
        ),
        (
            "URR without method",
            group(E::CREATE_URR, &[id(7), triggers()]),
            missing(E::MEASUREMENT_METHOD),
        ),
        (
            "URR without triggers",
            group(E::CREATE_URR, &[id(7), method()]),
            missing(E::REPORTING_TRIGGERS),
        ),
        (
            "triggers of no length",
            urr(E::CREATE_URR, 7, 2, [0; 3], &[]),
            (Cause::ACCEPTED, E::CAUSE, vec![1]),
        ),
        (
            "triggers cut",
            group(
                E::CREATE_URR,
                &[id(7), method(), (E::REPORTING_TRIGGERS, vec![])],
            ),
            cut(),
        ),
        (
            "method cut",
            group(
                E::CREATE_URR,
                &[id(7), (E::MEASUREMENT_METHOD, vec![]), triggers()],
            ),
            cut(),
        ),
        (
            "threshold cut",
            urr(
                E::CREATE_URR,
                7,
                2,
                [2, 0, 0],
                &[(E::VOLUME_THRESHOLD, vec![1, 0])],
            ),
            cut(),
        ),
        (
            "quota cut",
            urr(
                E::CREATE_URR,
                7,
                2,
                [0, 1, 0],
                &[(E::VOLUME_QUOTA, vec![7, 0, 0, 0, 0, 0, 0, 0, 1])],
            ),
            cut(),
        ),
        (
            "period cut",
            urr(
                E::CREATE_URR,
                7,
                2,
                [1, 0, 0],
                &[(E::MEASUREMENT_PERIOD, vec![0, 1])],
            ),
            cut(),
        ),
        (
            "unknown URR updated",
            group(E::UPDATE_URR, &[id(99)]),
            failed(&[3, 0, 0, 0, 99]),
        ),
        (
            "unknown URR asked for",
            group(E::QUERY_URR, &[id(99)]),
            failed(&[3, 0, 0, 0, 99]),
        ),
        ("unknown URR named", named(id(99)), failed(&[0, 0, 20])),
        (
            "BAR without ID",
            group(E::CREATE_BAR, &[]),
            missing(E::BAR_ID),
        ),
        (
            "BAR ID cut",
            group(E::CREATE_BAR, &[(E::BAR_ID, vec![])]),
            cut(),
        ),
        (
            "delay cut",
            group(
                E::CREATE_BAR,
                &[
                    (E::BAR_ID, vec![3]),
                    (E::DOWNLINK_DATA_NOTIFICATION_DELAY, vec![]),
                ],
            ),
            cut(),
        ),
        (
            "unknown BAR updated",
            group(E::UPDATE_BAR, &[(E::BAR_ID, vec![9])]),
            failed(&[4, 9]),
        ),
        (
            "unknown BAR removed",
            group(E::REMOVE_BAR, &[(E::BAR_ID, vec![9])]),
            failed(&[4, 9]),
        ),
        ("filter cut", with_filter(vec![1, 0, 0, 9, b'p']), cut()),
        (
            "filter that denies",
            with_filter(described("deny out ip from any to any")),
            failed(&[0, 0, 20]),
        ),
        (
            "filter the wrong way",
            with_filter(described("permit in ip from any to any")),
            failed(&[0, 0, 20]),
        ),
        (
            "filter with options",
            with_filter(described("permit out 6 from any to any established")),
            failed(&[0, 0, 20]),
        ),
        (
            "filter of another rule that is not there",
            with_filter(vec![16, 0, 0, 0, 0, 9]),
            failed(&[0, 0, 20]),
        ),
        (
            "filter that says nothing",
            with_filter(vec![0, 0]),
            failed(&[0, 0, 20]),
        ),
        ("too many filters", many, failed(&[0, 0, 20])),
        ("flags cut", (E::PFCPSMREQ_FLAGS, vec![]), cut()),
        (
            "more rules than there may be",
            pdr(E::CREATE_PDR, 20, 1, &filters(30), &[number(E::FAR_ID, 1)]),
            full(),
        ),
    ] {
        let answer = upf.modify(seid, &[element]);
        assert_eq!(answer.get(E::CAUSE), [cause.0], "{what}: {answer:?}");
        assert_eq!(answer.get(kind), value, "{what}");
        if cause != Cause::ACCEPTED {
            assert_eq!(upf.gateway.control().occupancy(), before, "{what}");
        }
    }
    assert_eq!(upf.down(to_user(80, 0)).len(), 1);
}

/// A random detection rule: the port range of the remote endpoint, and the precedence value.
type Ruled = ((u16, u16), u32);

fn flow_rules(kind: E, rules: &[Ruled]) -> Vec<Element> {
    let mut all = Vec::new();
    for (id, ((first, last), precedence)) in (1_u16..).zip(rules) {
        let text = format!("permit out 17 from 198.51.100.0/24 {first}-{last} to assigned");
        let pdi = [(E::SOURCE_INTERFACE, vec![CORE]), user(true), sdf(&text)];
        let far_id = u32::from(id);
        all.push(pdr(
            kind,
            id,
            *precedence,
            &pdi,
            &[number(E::FAR_ID, far_id)],
        ));
        if kind == E::CREATE_PDR {
            let to = group(E::FORWARDING_PARAMETERS, &[tunnel(0x100 + far_id)]);
            all.push(far(far_id, FORWARD, &[to]));
        }
    }
    all
}

/// Returns the TEID of the tunnel in which a packet from a port leaves: that of the matching rule with the lowest
/// precedence value. Among equal values the lowest rule number decides. Returns none if no rule matches.
fn wanted(rules: &[Ruled], port: u16) -> Option<u32> {
    let numbered = (1_u32..).zip(rules);
    let fitting = numbered.filter(|(_, ((first, last), _))| (*first..=*last).contains(&port));
    let first = fitting.min_by_key(|(id, (_, precedence))| (*precedence, *id));
    first.map(|(id, _)| 0x100 + id)
}

thread_local! {
    static RULED: std::cell::RefCell<Upf> = std::cell::RefCell::new(Upf::new(""));
}

proptest::proptest! {
    /// Under random changes of the rules, each packet leaves in the tunnel of the matching rule of the lowest
    /// precedence value. Unmatched packets are counted as "no rule takes it".
    #[test]
    fn each_packet_uses_the_matching_rule_of_lowest_precedence_value(
        rules in proptest::collection::vec(((1u16..40, 0u16..20), 0u32..4), 1..12),
        later in proptest::collection::vec(((1u16..40, 0u16..20), 0u32..4), 1..12),
        ports in proptest::collection::vec(1u16..64, 1..20),
    ) {
        RULED.with_borrow_mut(|upf| {
            let of = |all: Vec<((u16, u16), u32)>| -> Vec<Ruled> {
                let ruled = |((first, more), precedence)| ((first, first + more), precedence);
                all.into_iter().map(ruled).collect()
            };
            let (mut rules, later) = (of(rules), of(later));
            let seid = upf.establish(&flow_rules(E::CREATE_PDR, &rules)).accepted().seid();
            for round in 0..2 {
                for port in &ports {
                    let before = upf.count("no rule takes it");
                    let out = upf.down(to_user(*port, 0));
                    let found = out.first().map(|it| it.teid);
                    assert_eq!(found, wanted(&rules, *port), "port {port} of {rules:?}");
                    let untaken = upf.count("no rule takes it") - before;
                    assert_eq!(untaken, u64::from(found.is_none()));
                }
                if round == 0 {
                    let many = rules.len().min(later.len());
                    rules[..many].copy_from_slice(&later[..many]);
                    let changes = flow_rules(E::UPDATE_PDR, &rules[..many]);
                    upf.modify(seid, &changes).accepted();
                }
            }
            upf.delete(seid).accepted();
        });
    }
}

/// Returns a session whose user gets an address from the gateway, by the flags of its element.
fn session_of_pool(flags: u8) -> Vec<Element> {
    vec![
        pdr(
            E::CREATE_PDR,
            1,
            255,
            &[
                (E::SOURCE_INTERFACE, vec![CORE]),
                (E::UE_IP_ADDRESS, vec![flags | 4]),
            ],
            &[number(E::FAR_ID, 1)],
        ),
        pdr(
            E::CREATE_PDR,
            2,
            255,
            &[
                (E::SOURCE_INTERFACE, vec![ACCESS]),
                choose(None),
                (E::UE_IP_ADDRESS, vec![flags]),
            ],
            &[number(E::FAR_ID, 2)],
        ),
        far(
            1,
            FORWARD,
            &[group(E::FORWARDING_PARAMETERS, &[tunnel(0x20)])],
        ),
        far(2, FORWARD, &[]),
    ]
}

#[test]
fn addresses_from_pools_are_given_until_they_are_exhausted() {
    let mut upf = Upf::with(
        "bearers = 200\npools = [\"10.45.0.0/30\", \"2001:db8:45::/64\"]",
        "",
    );
    let given = |heard: &Heard| {
        let created = heard.all(E::CREATED_PDR).into_iter();
        let mut users = created.filter_map(|value| inside(value, E::UE_IP_ADDRESS));
        users.next().unwrap()
    };
    let first = upf.establish(&session_of_pool(0x10)).accepted();
    assert_eq!(given(&first), [2, 10, 45, 0, 1]);
    // Both rules have the user's address: packets to it are for the user, and packets from the user's tunnel must come
    // from it.
    assert_eq!(upf.count("decapsulated"), 0);
    assert_eq!(upf.up(from_user(first.teid(2), 80, None)), 0);
    assert_eq!(upf.count("user packet from a wrong source"), 1);
    let second = upf.establish(&session_of_pool(0x10)).accepted();
    assert_eq!(given(&second), [2, 10, 45, 0, 2]);
    assert_eq!(upf.down(to_user(80, 1)).len(), 1);
    assert_eq!(upf.up(from_user(second.teid(2), 80, None)), 1);
    let full = Cause::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED;
    upf.establish(&session_of_pool(0x10)).cause(full);
    let sixth = upf.establish(&session_of_pool(0x20)).accepted();
    let prefix = "2001:db8:45::".parse::<std::net::Ipv6Addr>().unwrap();
    assert_eq!(given(&sixth), [&[1][..], &prefix.octets()].concat());
    // The pool of one IP version is exhausted, so the address of the other version is released.
    upf.delete(second.seid()).accepted();
    upf.establish(&session_of_pool(0x30)).cause(full);
    let again = upf.establish(&session_of_pool(0x10)).accepted();
    assert_eq!(given(&again), [2, 10, 45, 0, 2]);
}

#[test]
fn without_a_pool_addresses_are_not_chosen() {
    let mut upf = Upf::new("");
    let refused = upf.establish(&session_of_pool(0x10));
    refused.cause(Cause::SERVICE_NOT_SUPPORTED);
}

#[test]
fn the_source_check_can_be_disabled() {
    for (setting, passed) in [("", 0), ("\nsource_check = false", 1)] {
        let pools = "bearers = 200\npools = [\"10.46.0.0/30\"]";
        let mut upf = Upf::with(&format!("{pools}{setting}"), "");
        let made = upf.establish(&session_of_pool(0x10)).accepted();
        assert_eq!(upf.up(from_user(made.teid(2), 80, None)), passed);
    }
}
