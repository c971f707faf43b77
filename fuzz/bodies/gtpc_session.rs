//! The body of the fuzz target for GTP-C sessions; `cargo test` runs the same body over seeded noise.
//!
//! Bytes select a sequence of messages of an MME and a PDN gateway, valid and damaged, to a gateway that begins without
//! sessions. After each message, the tables of control plane and data plane must agree, and every limit must hold.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taut_gateway::Detached;
use taut_wire::gtpc::{
    BearerQos, ElementType as E, FTeid, Interface, Message, MessageType as M, Paa, Writer,
};

/// The largest number of messages in one input.
const MOST_STEPS: usize = 64;
const MME: [u8; 4] = [192, 0, 2, 100];
const PGW: [u8; 4] = [192, 0, 2, 50];

thread_local! {
    /// The gateway, reused for all inputs: allocating its memory takes longer than one input.
    static SPEAKING: RefCell<Detached> = RefCell::new(gateway());
}

fn gateway() -> Detached {
    let text = "address = [\"192.0.2.1\", \"2001:db8::1\"]\nbearers = 24\n\
                pools = [\"10.45.0.0/30\", \"2001:db8:45::/63\"]\n[gtpc]\naddress = \"192.0.2.2\"\n\
                peers = [\"192.0.2.100\", \"192.0.2.50\"]\nsessions = 4\nresponse_time = \"1s\"\nrepeats = 1\n\
                echo = \"5s\"\nlost_peers = \"drop\"\nheld = 6\nsession_held = 4\n";
    Detached::new(text.parse().expect("settings")).expect("a gateway")
}

/// Bytes that select messages; zeros once they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }
}

/// The peers of the gateway, with the TEIDs and requests that they have received from it.
struct Peers<'a> {
    bytes: Bytes<'a>,
    sequence: u32,
    teids: Vec<u32>,
    /// Requests of the gateway without a response: destination, and message.
    asked: Vec<(SocketAddr, Vec<u8>)>,
    last: Vec<u8>,
}

impl Peers<'_> {
    fn teid(&mut self) -> u32 {
        let at = usize::from(self.bytes.byte());
        let known = self.teids.get(at % self.teids.len().max(1));
        known.copied().unwrap_or(at as u32)
    }

    fn start(&mut self, kind: M, teid: u32) -> Writer {
        self.sequence += 1;
        Writer::message(kind, Some(teid), self.sequence)
    }

    fn end(&mut self) -> Vec<u8> {
        let teid = u32::from(self.bytes.below(6));
        FTeid::new(Interface::S1U_ENODEB, teid, [192, 0, 2, 7].into()).emit()
    }

    /// Builds a bearer with few kinds of elements.
    fn bearer(&mut self) -> Writer {
        let mut bearer = Writer::group();
        let qos = BearerQos {
            qci: self.bytes.below(10),
            mbr_uplink_kbps: 100,
            ..BearerQos::default()
        };
        bearer
            .element(E::EBI, &[self.bytes.below(5) + 4])
            .element(E::BEARER_QOS, &qos.emit())
            .element(E::CAUSE, &[16, 0]);
        for instance in 0..self.bytes.below(4) {
            let end = self.end();
            bearer.instance(E::F_TEID, instance, &end);
        }
        if self.bytes.below(2) == 1 {
            let aggregate = self.aggregate();
            bearer.element(E::BEARER_TFT, &aggregate);
        }
        bearer
    }

    fn aggregate(&mut self) -> Vec<u8> {
        let id = self.bytes.byte();
        vec![0x21, id & 0x3f, 7, 2, 0x30, self.bytes.below(3)]
    }

    fn create(&mut self) -> Writer {
        let flags = self.bytes.byte();
        let known = if flags & 1 == 1 { self.teid() } else { 0 };
        let is_s11 = flags & 6 != 6;
        let interface = if is_s11 {
            Interface::S11_MME
        } else {
            Interface::S5_SGW_C
        };
        let sender = FTeid::new(interface, 0x77, MME.into());
        let v4 = [10, 45, 0, self.bytes.below(3)];
        let paa = Paa {
            v4: (flags & 8 == 0).then(|| {
                if flags & 16 == 0 {
                    [0; 4].into()
                } else {
                    v4.into()
                }
            }),
            v6: (flags & 32 != 0).then_some((64, std::net::Ipv6Addr::UNSPECIFIED)),
        };
        let mut writer = self.start(M::CREATE_SESSION_REQUEST, known);
        writer
            .element(E::IMSI, &[0, 1, self.bytes.below(3)])
            .element(E::RAT_TYPE, &[6])
            .element(E::F_TEID, &sender.emit())
            .element(E::APN, b"\x08internet")
            .element(E::PAA, &paa.emit())
            .element(E::AMBR, &[0, 0, 0, 9, 0, 0, 0, 9]);
        if flags & 64 != 0 {
            let end = FTeid::new(Interface::S5_PGW_C, 0, PGW.into());
            writer.instance(E::F_TEID, 1, &end.emit());
        }
        for _ in 0..=self.bytes.below(2) {
            let bearer = self.bearer();
            writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
        }
        writer
    }

    /// Builds a message about a user, of few kinds.
    fn about_user(&mut self) -> Writer {
        let kinds = [
            M::MODIFY_BEARER_REQUEST,
            M::RELEASE_ACCESS_BEARERS_REQUEST,
            M::DELETE_SESSION_REQUEST,
            M::BEARER_RESOURCE_COMMAND,
            M::DELETE_BEARER_COMMAND,
            M::CREATE_BEARER_REQUEST,
            M::UPDATE_BEARER_REQUEST,
            M::DELETE_BEARER_REQUEST,
            M::DOWNLINK_DATA_NOTIFICATION_FAILURE_INDICATION,
            M::MODIFY_BEARER_COMMAND,
        ];
        let kind = kinds[usize::from(self.bytes.byte()) % kinds.len()];
        let teid = self.teid();
        let mut writer = self.start(kind, teid);
        let flags = self.bytes.byte();
        if flags & 1 == 0 {
            writer.element(E::EBI, &[self.bytes.below(5) + 4]);
        }
        if flags & 2 != 0 {
            writer.instance(E::EBI, 1, &[self.bytes.below(5) + 4]);
        }
        writer
            .element(E::INDICATION, &[flags & 8])
            .element(E::PTI, &[1]);
        let aggregate = self.aggregate();
        writer.element(E::TAD, &aggregate);
        for _ in 0..self.bytes.below(3) {
            let bearer = self.bearer();
            writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
        }
        writer
    }

    /// Builds the response to a request of the gateway.
    fn response(&mut self) -> Option<(SocketAddr, Writer)> {
        let (to, message) = self.asked.pop()?;
        let (message, _) = Message::parse(&message).ok()?;
        let teid = self.teid();
        let kind = message.message_type.response();
        let mut writer = Writer::message(kind, Some(teid), message.sequence);
        writer.element(E::CAUSE, &[self.bytes.below(3) * 16 + 16, 0]);
        let end = FTeid::new(Interface::S5_PGW_C, 0x501, PGW.into());
        writer.instance(E::F_TEID, 1, &end.emit());
        for _ in 0..self.bytes.below(3) {
            let bearer = self.bearer();
            writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
        }
        Some((to, writer))
    }

    /// Records the TEIDs and the requests in the messages that the gateway has sent.
    fn hear(&mut self, sent: Vec<(SocketAddr, Vec<u8>)>) {
        for (to, bytes) in sent {
            let (message, behind) = Message::parse(&bytes).expect("the gateway sends messages");
            assert!(behind.is_empty());
            let kind = message.message_type;
            if kind == M::CREATE_SESSION_RESPONSE
                && let Ok(Some(end)) = message.elements.find(E::F_TEID, 0)
            {
                self.teids
                    .push(FTeid::parse(end.value).expect("an endpoint").teid);
            }
            let is_request = matches!(
                kind,
                M::ECHO_REQUEST
                    | M::CREATE_SESSION_REQUEST
                    | M::DELETE_SESSION_REQUEST
                    | M::CREATE_BEARER_REQUEST
                    | M::UPDATE_BEARER_REQUEST
                    | M::DELETE_BEARER_REQUEST
                    | M::DOWNLINK_DATA_NOTIFICATION
            );
            if is_request {
                self.asked.push((to, bytes));
            }
        }
        let many = self.asked.len().saturating_sub(16);
        self.asked.drain(..many);
    }
}

/// Runs the messages that the bytes select.
pub fn sessions(bytes: &[u8]) {
    SPEAKING.with_borrow_mut(|gateway| {
        let begun = Instant::now();
        gateway.restart(begun).expect("nothing is left");
        let mut now = begun;
        let mut peers = Peers {
            bytes: Bytes(bytes),
            sequence: 0,
            teids: Vec::new(),
            asked: Vec::new(),
            last: Vec::new(),
        };
        for _ in 0..MOST_STEPS {
            if peers.bytes.0.is_empty() {
                break;
            }
            let from = match peers.bytes.below(4) {
                0 => SocketAddr::from((PGW, 2123)),
                _ => SocketAddr::from((MME, 2123)),
            };
            let (from, message) = match peers.bytes.below(8) {
                0 | 1 => (from, peers.create().finish().ok()),
                2 | 3 => (from, peers.about_user().finish().ok()),
                4 | 5 => match peers.response() {
                    Some((from, writer)) => (from, writer.finish().ok()),
                    None => (from, None),
                },
                6 => {
                    let mut damaged = peers.last.clone();
                    let (at, value) = (usize::from(peers.bytes.byte()), peers.bytes.byte());
                    if let Some(byte) = damaged.get_mut(at) {
                        *byte ^= value;
                    }
                    (from, Some(damaged))
                }
                _ => {
                    now += Duration::from_millis(20 * u64::from(peers.bytes.byte()));
                    gateway.look(now);
                    let sent = gateway.look_gtpc(now);
                    peers.hear(sent);
                    (from, None)
                }
            };
            if let Some(message) = message {
                let sent = gateway.hear_gtpc(&message, from, now);
                peers.hear(sent);
                peers.last = message;
            }
            gateway.take_changes();
            gateway.sessions_hold().expect("sessions");
            gateway.tables_agree().expect("tables");
        }
    });
}
