//! What a rule asks, once it is read.

use crate::buffer::{Application, Buffer};
use crate::pattern::Regex;
use crate::ranges::Ranges;
use std::sync::Arc;

/// What becomes of a packet that a rule fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The packet passes and no other rule is asked.
    Pass,
    /// It is dropped, and so is what follows in its flow.
    Drop,
    /// It is dropped, and both sides are told.
    Reject,
    /// It passes and the match is written down.
    Alert,
}

impl Action {
    /// Returns its name in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Alert => "alert",
        }
    }
}

/// Protocol in the header of a rule, up to layer 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// All of IP.
    Ip,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
}

/// A rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// What becomes of what fits.
    pub action: Action,
    /// Protocol of its header.
    pub protocol: Protocol,
    /// Protocols above layer 4 of which its flow has to be one. Empty: any.
    pub applications: Vec<Application>,
    /// Protocols above layer 4 whose flows need not be on its ports.
    pub services: Vec<Application>,
    /// Addresses and ports of the sender.
    pub source: Side,
    /// Addresses and ports of the receiver.
    pub destination: Side,
    /// Whether sender and receiver may be the other way round.
    pub both_ways: bool,
    /// What it asks of the flow.
    pub flow: FlowTest,
    /// What it asks of the headers.
    pub headers: Vec<HeaderTest>,
    /// What it asks of buffers, in order.
    pub steps: Vec<Step>,
    /// Whether it says where in the payload something has to be, so that it is asked of a packet by itself; others are asked of what came
    /// before in its stream, too.
    pub is_positional: bool,
    /// What it asks of the flow's bits and does to them.
    pub bits: Vec<FlowBit>,
    /// What it asks of the bits of hosts and does to them.
    pub host_bits: Vec<HostBit>,
    /// Whether it only sets bits: no match is written down.
    pub is_silent: bool,
    /// How often it has to fit, or is written down.
    pub rate: Option<Rate>,
    /// Who it is.
    pub about: About,
}

/// Addresses and ports of one side.
#[derive(Debug, Clone)]
pub struct Side {
    /// Addresses, those of IPv4 mapped.
    pub addresses: Arc<Ranges>,
    /// Ports.
    pub ports: Arc<Ranges>,
}

/// What people read of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Generator, 1 where it is not said.
    pub group: u32,
    /// Number of the rule.
    pub id: u32,
    /// Revision.
    pub revision: u32,
    /// Message.
    pub message: String,
    /// Class of attack.
    pub class: String,
    /// Priority, 1 the highest; 0 where it is not said.
    pub priority: u8,
    /// References, kind and place.
    pub references: Vec<(String, String)>,
    /// Metadata, key and value.
    pub metadata: Vec<(String, String)>,
    /// Line of its file, from 1.
    pub line: usize,
}

/// What a rule asks of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowTest {
    /// Direction: to the server or to the client.
    pub to_server: Option<bool>,
    /// Whether both sides have spoken (of TCP: the handshake is over).
    pub established: Option<bool>,
}

/// Comparison with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within {
    /// Smallest number that fits.
    pub least: i64,
    /// Largest number that fits.
    pub most: i64,
    /// Whether all others fit instead.
    pub not: bool,
}

impl Within {
    /// Says whether that number fits.
    #[inline]
    pub fn fits(&self, number: i64) -> bool {
        (self.least..=self.most).contains(&number) != self.not
    }
}

/// Bits of a header field and how many of them have to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Bits.
    pub bits: u8,
    /// Bits that are looked at.
    pub looked_at: u8,
    /// How they are compared.
    pub how: BitsHow,
}

/// How bits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitsHow {
    /// These and no others.
    Exactly,
    /// All of these, others as they like.
    All,
    /// At least one of these.
    Any,
    /// None of these.
    None,
}

impl Bits {
    /// Says whether the field fits.
    #[inline]
    pub fn fits(&self, field: u8) -> bool {
        match self.how {
            BitsHow::Exactly => field & self.looked_at == self.bits,
            BitsHow::All => field & self.bits == self.bits,
            BitsHow::Any => field & self.bits != 0,
            BitsHow::None => field & self.bits == 0,
        }
    }
}

/// What a rule asks of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderTest {
    /// Bytes of payload of this packet.
    PayloadLen(Within),
    /// Flags of TCP.
    TcpFlags(Bits),
    /// Sequence number of TCP.
    TcpSequence(u32),
    /// Acknowledgement number of TCP.
    TcpAcknowledgement(u32),
    /// Window of TCP.
    TcpWindow(Within),
    /// Time to live, or hop limit.
    Ttl(Within),
    /// Identification of IPv4.
    IpId(Within),
    /// Type of service, or traffic class.
    Tos(Within),
    /// Protocol behind the IP header.
    IpProtocol(Within),
    /// Flags of the fragment: 1 more, 2 do not fragment, 4 reserved.
    FragmentBits(Bits),
    /// Place of the fragment, in units of eight bytes.
    FragmentOffset(Within),
    /// An option of the IPv4 header by its type; none: any.
    IpOption(Option<u8>),
    /// Whether both addresses are the same.
    SameAddresses,
    /// Type of ICMP.
    IcmpType(Within),
    /// Code of ICMP.
    IcmpCode(Within),
    /// Identifier of an ICMP echo.
    IcmpId(u16),
    /// Sequence number of an ICMP echo.
    IcmpSequence(u16),
    /// Kinds of TLS messages in this packet, a bit each ([`crate::evaluate::Packet::tls`]); inverted if `not`.
    TlsState(Bits),
    /// Version of TLS records in this packet.
    TlsVersion(u16),
    /// Bytes of the stream so far, and one for each end's SYN ([`crate::evaluate::Packet::stream_bytes`]).
    StreamBytes {
        /// Ends that have sent them.
        ends: StreamEnds,
        /// How many.
        bytes: Within,
    },
}

/// Ends of a stream whose bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnds {
    /// The client.
    Client,
    /// The server.
    Server,
    /// Each of them.
    Both,
    /// One of them.
    Either,
}

/// What a rule asks of a buffer, or does with it.
#[derive(Debug, Clone)]
pub struct Step {
    /// Buffer.
    pub buffer: Buffer,
    /// Whether a dot is put in front of what is in the buffer.
    pub dotted: bool,
    /// Test.
    pub test: Test,
}

/// A number that is written in the rule, or that an earlier step has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Written.
    Is(i64),
    /// Read by [`Test::Extract`] or [`Test::Math`] into the variable of that number.
    Read(u8),
}

/// Most variables of a rule.
pub const MOST_VARIABLES: usize = 8;

/// What is asked of a buffer.
#[derive(Debug, Clone)]
pub enum Test {
    /// Bytes that are in it.
    Content(Content),
    /// A regular expression.
    Regex {
        /// The expression.
        regex: Arc<Regex>,
        /// Whether it must not fit.
        not: bool,
        /// Whether it begins behind the last match.
        relative: bool,
    },
    /// A number in it, compared.
    Byte {
        /// Number.
        field: Field,
        /// Comparison.
        how: Comparison,
        /// Whether it must not fit.
        not: bool,
        /// Other number.
        value: Number,
    },
    /// A number in it by which the place moves on.
    Jump {
        /// Number.
        field: Field,
        /// Factor.
        times: i64,
        /// Whether the distance is made a multiple of four bytes.
        align: bool,
        /// Where the place is counted from.
        from: JumpFrom,
        /// Bytes more.
        and: i64,
    },
    /// A number in it that is kept.
    Extract {
        /// Number.
        field: Field,
        /// Factor.
        times: i64,
        /// Multiple of this many bytes that it is rounded up to; 1 for none.
        align: i64,
        /// Variable.
        into: u8,
    },
    /// A number in it that is reckoned with and kept.
    Math {
        /// Number.
        field: Field,
        /// Operator, one of `+ - * / < >`, the last two shifts.
        operator: u8,
        /// Other number.
        value: Number,
        /// Variable.
        into: u8,
    },
    /// Whether there is data at a place.
    DataAt {
        /// Place.
        at: Number,
        /// Whether it is counted from the last match.
        relative: bool,
        /// Whether the place behind the last byte counts, too: in Suricata so many bytes behind the last match are
        /// enough.
        to_end: bool,
        /// Whether there must be none.
        not: bool,
    },
    /// Length of the buffer.
    Len(Within),
    /// Decodes Base64 from here on; [`Buffer::Base64`] has what comes of it.
    Base64 {
        /// Most bytes that are read.
        bytes: usize,
        /// Place.
        offset: usize,
        /// Whether it is counted from the last match.
        relative: bool,
    },
}

/// Place from which a jump is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JumpFrom {
    /// Behind the number.
    Here,
    /// Beginning of the buffer.
    Beginning,
    /// End of the buffer.
    End,
}

/// Comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Less.
    Less,
    /// Greater.
    Greater,
    /// Equal.
    Equal,
    /// Less or equal.
    AtMost,
    /// Greater or equal.
    AtLeast,
    /// Bits in common.
    And,
    /// Bits in common after exclusive or.
    Xor,
}

/// A number in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Bytes, 1 to 10.
    pub bytes: u8,
    /// Place.
    pub offset: Number,
    /// Whether the place is counted from the last match.
    pub relative: bool,
    /// Form.
    pub form: Form,
    /// Bits that count, shifted down to the lowest; all if 0.
    pub mask: u64,
}

/// Form in which a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Most significant byte first.
    Big,
    /// Least significant byte first.
    Little,
    /// Digits of that base: 8, 10, 16, or 0 for what `0x` and `0` in front say.
    Text(u8),
}

/// Bytes that are looked for.
#[derive(Debug, Clone)]
pub struct Content {
    /// Bytes; in lower case if the case does not count.
    pub bytes: Box<[u8]>,
    /// Whether the case of letters of ASCII does not count.
    pub any_case: bool,
    /// Whether they must not be there.
    pub not: bool,
    /// Place from which they are looked for, from the beginning.
    pub offset: Option<Number>,
    /// Bytes from there in which they have to be.
    pub depth: Option<Number>,
    /// Place from which they are looked for, from the last match.
    pub distance: Option<Number>,
    /// Bytes from there in which they have to be.
    pub within: Option<Number>,
    /// Whether they have to be at the end of the buffer.
    pub at_end: bool,
    /// Whether the rule wants them to be looked for first.
    pub is_fast: bool,
}

impl Content {
    /// Says whether they are looked for from the last match.
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }
}

impl Test {
    /// Says whether it depends on where in the buffer something is.
    pub fn is_positional(&self) -> bool {
        match self {
            Self::Content(content) => {
                content.offset.is_some() || content.depth.is_some() || content.at_end
            }
            Self::Regex {
                regex, relative, ..
            } => !relative && regex.is_anchored(),
            Self::Len(_) => true,
            _ => !self.is_relative(),
        }
    }

    /// Says whether it depends on where the last match ended.
    pub fn is_relative(&self) -> bool {
        match self {
            Self::Content(content) => content.is_relative(),
            Self::Regex { relative, .. }
            | Self::DataAt { relative, .. }
            | Self::Base64 { relative, .. } => *relative,
            Self::Byte { field, .. }
            | Self::Jump { field, .. }
            | Self::Extract { field, .. }
            | Self::Math { field, .. } => field.relative,
            Self::Len(_) => false,
        }
    }
}

/// What a rule asks of bits of the flow, or does to them once it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowBit {
    /// All or any of them are set.
    IsSet {
        /// Names, by number ([`crate::read::Names`]).
        bits: Vec<u16>,
        /// Whether one is enough.
        any: bool,
    },
    /// None of them is set.
    IsNotSet(Vec<u16>),
    /// They are set.
    Set(Vec<u16>),
    /// They are no longer set.
    Unset(Vec<u16>),
    /// Those that are set no longer are, and the other way round.
    Toggle(Vec<u16>),
}

/// What a rule asks of a bit of a host, or does to it once it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBit {
    /// Number of its name ([`crate::read::Names`]).
    pub bit: u16,
    /// Whose bit it is.
    pub track: Track,
    /// What is asked or done.
    pub verb: HostBitVerb,
}

/// What is asked of a bit of a host, or done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostBitVerb {
    /// It is set.
    IsSet,
    /// It is not set.
    IsNotSet,
    /// It is set for so many seconds.
    Set(u32),
    /// It is no longer set.
    Unset,
    /// It is set for so many seconds if it was not, and the other way round.
    Toggle(u32),
}

impl HostBit {
    /// Says whether it only asks.
    pub fn asks(&self) -> bool {
        matches!(self.verb, HostBitVerb::IsSet | HostBitVerb::IsNotSet)
    }
}

/// How often a rule has to fit within a time before it does anything, or how often it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Kind.
    pub kind: RateKind,
    /// What is counted together.
    pub track: Track,
    /// Count.
    pub count: u32,
    /// Time in seconds.
    pub seconds: u32,
}

/// Kind of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKind {
    /// Fits from one more than `count` times on (`detection_filter`).
    Filter,
    /// Written down `count` times at most.
    Limit,
    /// Written down every `count`th time.
    Every,
    /// Written down once, when it has fitted `count` times.
    Once,
}

/// What is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// Packets of a sender.
    Source,
    /// Packets to a receiver.
    Destination,
    /// Packets between two.
    Both,
    /// All packets.
    Rule,
}
