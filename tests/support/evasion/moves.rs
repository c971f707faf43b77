//! Evasions: ways to send a stream such that an inspector reads other bytes than the receiver does. They are drawn at
//! random, or parsed from text.

use super::attacks::{Attack, Encoding, Form, Target, payload, random_form};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Longest silence of a fast case, ms; cases with longer silences are sent together.
const LONG: u16 = 100;
/// The time after which an inspection forgets an ended connection, ms.
const FORGOTTEN: u16 = 3200;

/// The reason why the receiver ignores a segment, or the next router drops a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Broken {
    TcpChecksum,
    /// The checksum of the IPv4 header is wrong; IPv6 has none.
    IpChecksum,
    /// The packet expires at the router before the receiver.
    TimeToLive,
    /// The sequence number is far before the receive window.
    OldNumber,
    /// The sequence number is far after the receive window.
    FarNumber,
    /// The sequence number is within the receive window, but is not the next expected one.
    NearNumber,
    /// The segment acknowledges bytes that were never sent.
    FarAcknowledgement,
    NoAcknowledgement,
    /// The segment is signed with a key that the receiver lacks (RFC 2385).
    Signed,
    /// The timestamp is older than that of an earlier segment (RFC 7323, PAWS).
    OldTimestamp,
    /// The data offset is 16 bytes, which is less than a TCP header.
    ShortHeader,
}

/// Segments with the source address of the peer, which arrive through the wrong port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spoofed {
    Reset,
    End,
    SynAck,
    Data,
}

/// The order of a packet's fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    Forward,
    Backward,
    /// The last fragment comes first, then the others in order.
    LastFirst,
}

/// The fragmentation of a packet into IP fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Length of a fragment in units of 8 bytes.
    pub eights: u8,
    pub order: Order,
    /// True if each fragment is sent twice.
    pub twice: bool,
    /// `None` if fragments do not overlap; true if overlapping bytes differ between fragments.
    pub overlap: Option<bool>,
}

/// An evasion: an action by which the sender changes the stream. `which` is the index of a segment, `at` a position in
/// thousandths of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    Split {
        at: u16,
    },
    Pieces {
        bytes: u8,
    },
    Swap {
        one: u8,
        other: u8,
    },
    Backward,
    Repeat {
        which: u8,
    },
    /// A segment begins earlier or ends later, and thus overlaps its neighbours. The additional bytes are the correct
    /// ones, or others.
    Overlap {
        which: u8,
        before: u8,
        after: u8,
        other: bool,
    },
    /// Two segments for the same position in the stream, one of them with other bytes; the receiver uses the first one.
    Contradict {
        which: u8,
        first: bool,
    },
    /// Other bytes in a segment that the receiver ignores.
    Decoy {
        which: u8,
        broken: Broken,
        first: bool,
    },
    /// A reset (TCP RST) that the receiver ignores.
    Reset {
        which: u8,
        broken: Broken,
    },
    /// An end of the connection (TCP FIN) that the receiver ignores.
    End {
        which: u8,
        broken: Broken,
    },
    Urgent {
        at: u16,
    },
    KeepAlive {
        which: u8,
        bytes: u8,
    },
    Fragments {
        which: u8,
        cut: Cut,
    },
    Spoof {
        which: u8,
        what: Spoofed,
    },
    /// A SYN with another sequence number within the connection, or a SYN+ACK.
    SynAgain {
        which: u8,
        ack: bool,
    },
    /// A SYN that the receiver ignores, with another sequence number, before the connection opens.
    DecoySyn {
        broken: Broken,
    },
    /// An earlier connection between the same ports, opened and reset.
    OpenedBefore,
    /// The client sends the server's SYN+ACK first.
    SynAckFirst,
    /// Bytes in the SYN: the first bytes of the stream, or other bytes; with or without TCP fast open.
    SynData {
        bytes: u8,
        other: bool,
        fast_open: bool,
    },
    NoTimestamps,
    Window {
        bytes: u16,
    },
    Silence {
        which: u8,
        milliseconds: u16,
    },
    /// The stream is sent again in a new connection between the same ports.
    Reopen,
    Http(Form),
}

impl Move {
    /// Returns the kind of the evasion, as the table names it.
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        let word = |text: &str| text.split([' ', '{', '(']).next().unwrap().to_string();
        match self {
            Self::Decoy { broken, .. } => format!("Decoy {broken:?}"),
            Self::Reset { broken, .. } => format!("Reset {broken:?}"),
            Self::End { broken, .. } => format!("End {broken:?}"),
            Self::DecoySyn { broken } => format!("DecoySyn {broken:?}"),
            Self::Spoof { what, .. } => format!("Spoof {what:?}"),
            Self::Http(form) => format!("Http {}", word(&format!("{form:?}"))),
            Self::Fragments { cut, .. } => match cut.overlap {
                None => "Fragments".to_string(),
                Some(other) => {
                    format!("Fragments overlap {}", if other { "other" } else { "same" })
                }
            },
            Self::Overlap { other: true, .. } => "Overlap other".to_string(),
            _ => word(&text),
        }
    }

    /// Reports whether the change also occurs with an honest network and sender.
    fn is_honest(&self) -> bool {
        match self {
            Self::Split { .. }
            | Self::Pieces { .. }
            | Self::Swap { .. }
            | Self::Backward
            | Self::Repeat { .. }
            | Self::NoTimestamps => true,
            Self::KeepAlive { bytes, .. } => *bytes == 0,
            Self::Overlap { other, .. } => !other,
            Self::Fragments { cut, .. } => cut.overlap.is_none() && cut.eights > 2,
            Self::Http(form) => matches!(
                form,
                Form::Chunked(..) | Form::Pipelined(_) | Form::ManyHeaders | Form::Query
            ),
            _ => false,
        }
    }
}

/// An attack with the evasions that hide it, or a harmless stream with changes that an honest network makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub seed: u64,
    pub target: Target,
    pub attack: Attack,
    pub v6: bool,
    #[serde(default)]
    pub benign: bool,
    pub moves: Vec<Move>,
}

impl Case {
    /// Draws the attack or harmless stream that belongs to a seed.
    pub fn random(seed: u64, is_benign: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (target, attack) = random_attack(&mut rng);
        let wanted = rng.usize(1..=5);
        let mut case = Self {
            seed,
            target,
            attack,
            v6: rng.bool(),
            benign: is_benign,
            moves: Vec::new(),
        };
        while case.moves.len() < wanted {
            let is_form = attack != Attack::Stream && rng.u8(0..4) == 0;
            let next = match is_form {
                true => Move::Http(random_form(&mut rng)),
                false => random_move(&mut rng),
            };
            if is_benign && !next.is_honest() {
                continue;
            }
            case.moves.push(next);
            // A silence follows, in which an inspection forgets a connection that seems to have ended.
            if let (Move::Reset { which, .. } | Move::End { which, .. }, 0) = (next, rng.u8(0..12))
            {
                case.moves.push(Move::Silence {
                    which,
                    milliseconds: FORGOTTEN,
                });
            }
        }
        case
    }

    /// Returns true if the case has a silence of more than [`LONG`].
    pub fn is_long(&self) -> bool {
        let long =
            |it: &Move| matches!(it, Move::Silence { milliseconds, .. } if *milliseconds > LONG);
        self.moves.iter().any(long)
    }

    /// Returns the sender's stream.
    pub fn payload(&self) -> Vec<u8> {
        let form = |it: &Move| match it {
            Move::Http(form) => Some(*form),
            _ => None,
        };
        let forms: Vec<Form> = self.moves.iter().filter_map(form).collect();
        payload(self.attack, &forms, self.benign, self.seed)
    }
}

fn random_attack(rng: &mut Rng) -> (Target, Attack) {
    let of_all = [Target::Nginx, Target::Apache, Target::Python, Target::Node];
    let with_body = [Target::Nginx, Target::Python, Target::Node];
    let encodings = [
        Encoding::Identity,
        Encoding::Gzip,
        Encoding::Deflate,
        Encoding::Br,
    ];
    match rng.u8(0..10) {
        0..3 => (Target::Socket, Attack::Stream),
        3 => (Target::UrgentInline, Attack::Stream),
        4 if rng.bool() => (Target::Client, Attack::Stream),
        4 => (Target::Client, Attack::Answer),
        5..7 => (one_of(rng, &of_all), Attack::Path),
        7..9 => (one_of(rng, &with_body), Attack::Body),
        _ => (Target::Node, Attack::Response(one_of(rng, &encodings))),
    }
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(0..all.len())]
}

/// Defects that make every receiver ignore a segment, whatever it contains.
const DAMAGED: [Broken; 5] = [
    Broken::TcpChecksum,
    Broken::IpChecksum,
    Broken::TimeToLive,
    Broken::Signed,
    Broken::ShortHeader,
];
const WRONG_NUMBERS: [Broken; 2] = [Broken::OldNumber, Broken::FarNumber];
const WRONG_OTHERS: [Broken; 3] = [
    Broken::FarAcknowledgement,
    Broken::NoAcknowledgement,
    Broken::OldTimestamp,
];

fn random_move(rng: &mut Rng) -> Move {
    let which = rng.u8(0..8);
    match rng.u8(0..40) {
        0..5 => Move::Split {
            at: rng.u16(0..1000),
        },
        5..7 => Move::Pieces {
            bytes: rng.u8(1..60),
        },
        7..9 => Move::Swap {
            one: which,
            other: rng.u8(0..8),
        },
        9 => Move::Backward,
        10 => Move::Repeat { which },
        11..13 => Move::Overlap {
            which,
            before: rng.u8(0..20),
            after: rng.u8(0..20),
            other: rng.bool(),
        },
        13 => Move::Contradict {
            which,
            first: rng.bool(),
        },
        14 => Move::Urgent {
            at: rng.u16(0..1000),
        },
        15 => Move::KeepAlive {
            which,
            bytes: rng.u8(0..2),
        },
        16..20 => Move::Fragments {
            which,
            cut: random_cut(rng),
        },
        20..31 => random_lie(rng, which),
        _ => random_way(rng, which),
    }
}

/// Draws an additional segment that the receiver ignores.
fn random_lie(rng: &mut Rng, which: u8) -> Move {
    let of_data = [&DAMAGED[..], &WRONG_NUMBERS, &WRONG_OTHERS].concat();
    let near = [Broken::NearNumber];
    match rng.u8(0..11) {
        0..5 => Move::Decoy {
            which,
            broken: one_of(rng, &of_data),
            first: rng.u8(0..4) > 0,
        },
        5..8 => Move::Reset {
            which,
            broken: one_of(rng, &[&DAMAGED[..], &WRONG_NUMBERS, &near].concat()),
        },
        8..10 => Move::End {
            which,
            broken: one_of(rng, &[&of_data[..], &near].concat()),
        },
        _ => Move::Spoof {
            which,
            what: one_of(
                rng,
                &[Spoofed::Reset, Spoofed::End, Spoofed::SynAck, Spoofed::Data],
            ),
        },
    }
}

/// Draws an evasion that affects the connection instead of single segments, such as how it is opened, a pause, or its
/// window.
fn random_way(rng: &mut Rng, which: u8) -> Move {
    match rng.u8(0..9) {
        0 => Move::SynAgain {
            which,
            ack: rng.bool(),
        },
        1 => Move::DecoySyn {
            broken: one_of(rng, &DAMAGED),
        },
        2 => Move::OpenedBefore,
        3 => Move::SynAckFirst,
        4..6 => Move::SynData {
            bytes: rng.u8(1..100),
            other: rng.bool(),
            fast_open: rng.bool(),
        },
        6 => Move::NoTimestamps,
        7 => match rng.u8(0..8) {
            0 => Move::Silence {
                which,
                milliseconds: FORGOTTEN,
            },
            1..3 => Move::Window { bytes: 0 },
            3..5 => Move::Window {
                bytes: rng.u16(1..2000),
            },
            _ => Move::Silence {
                which,
                milliseconds: rng.u16(5..=LONG),
            },
        },
        _ => Move::Reopen,
    }
}

fn random_cut(rng: &mut Rng) -> Cut {
    let orders = [Order::Forward, Order::Backward, Order::LastFirst];
    let overlaps = [None, None, None, Some(false), Some(true)];
    Cut {
        // A fragment with the complete payload is an atomic fragment.
        eights: if rng.u8(0..4) == 0 {
            255
        } else {
            rng.u8(1..30)
        },
        order: one_of(rng, &orders),
        twice: rng.u8(0..4) == 0,
        overlap: one_of(rng, &overlaps),
    }
}
