//! What a rule asks, once it is read.

use crate::buffer::{Application, Buffer};
use crate::pattern::Regex;
use crate::ranges::Ranges;
use crate::transform::Transform;
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
    /// Protocols above layer 4 of which its flow must not be one, once it is known.
    pub not_applications: Vec<Application>,
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
    /// Whether a match is written down although the rule lets pass.
    pub is_told: bool,
    /// Whether the rest of the flow passes without being looked at, unless the packet is dropped.
    pub bypasses: bool,
    /// How often it has to fit, or is written down.
    pub rate: Option<Rate>,
    /// The part of a rule with `=>` that the response has to fit. [`crate::compile::RuleSet`] makes a rule of its own of it.
    pub response: Option<Box<Rule>>,
    /// The numbers of the two halves of a rule with `=>`, where this rule is one of them.
    pub half: Option<Half>,
    /// Who it is.
    pub about: About,
}

/// One half of a rule about a request and its response: it counts once the other one has fitted as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Half {
    /// Number of this half.
    pub own: u16,
    /// Number of the other half.
    pub other: u16,
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
    /// Whether bytes of a stream are asked about in their order only, and never a packet by itself.
    pub only_stream: bool,
    /// Whether the rule says more of the flow than a direction, so that it is about packets where it asks for no contents.
    pub is_of_packets: bool,
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

/// Comparison with a number that need not be whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// Smallest number that fits.
    pub least: f64,
    /// Largest number that fits.
    pub most: f64,
    /// Whether these two fit as well as what is between them.
    pub with_ends: bool,
    /// Whether all others fit instead.
    pub not: bool,
}

impl Measure {
    /// Says whether that number fits.
    pub fn fits(&self, number: f64) -> bool {
        let is_within = match self.with_ends {
            true => (self.least..=self.most).contains(&number),
            false => self.least < number && number < self.most,
        };
        is_within != self.not
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
    /// Version of IP, 4 or 6.
    IpVersion(u8),
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
    /// Something that is odd about the packet, a bit of [`crate::anomaly::Anomaly`] each; inverted if `not`.
    Anomaly {
        /// Bits of which one has to be set.
        bits: u64,
        /// Whether none of them may be set.
        not: bool,
    },
    /// Number of a VLAN of the frame.
    VlanId {
        /// Number.
        id: Within,
        /// Tags that it is asked of.
        of: VlanTags,
    },
    /// Number of VLAN tags of the frame.
    VlanLayers(Within),
    /// Bytes of the stream so far, and one for each end's SYN ([`crate::evaluate::Packet::stream_bytes`]).
    StreamBytes {
        /// Ends that have sent them.
        ends: Ends,
        /// How many.
        bytes: Within,
    },
    /// Packets of the flow so far, with this one.
    FlowPackets {
        /// Ends that have sent them.
        ends: Ends,
        /// How many.
        packets: Within,
    },
    /// Bytes of those packets.
    FlowBytes {
        /// Ends that have sent them.
        ends: Ends,
        /// How many.
        bytes: Within,
    },
}

/// VLAN tags of which something is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanTags {
    /// One of them.
    Any,
    /// All of them, and there is one.
    All,
    /// The one at that place, 0 the outermost, -1 the innermost.
    At(i8),
}

/// Ends of a flow of which something is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The client.
    Client,
    /// The server.
    Server,
    /// Each of them.
    Both,
    /// One of them.
    Either,
}

impl Ends {
    /// Says whether those that count fit, by what the client's end and the server's have to say.
    pub fn fit(self, [client, server]: [bool; 2]) -> bool {
        match self {
            Self::Client => client,
            Self::Server => server,
            Self::Both => client && server,
            Self::Either => client || server,
        }
    }
}

/// What a rule asks of a buffer, or does with it.
#[derive(Debug, Clone)]
pub struct Step {
    /// Buffer.
    pub buffer: Buffer,
    /// Changes to what is in the buffer, in order; the test sees what comes of them.
    pub transforms: Vec<Transform>,
    /// Number of the instance, of a buffer that a message may have several of: steps with the same number have to fit the same one.
    pub instance: u8,
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
    /// The number that the buffer holds fits one of these.
    Number(Vec<Within>),
    /// Bits of the number that the buffer holds.
    Flags {
        /// Those that are set.
        set: u64,
        /// Those that are not set.
        unset: u64,
    },
    /// How evenly its bytes are spread over all values, in bits of entropy for each byte.
    Entropy {
        /// Place from which bytes count.
        offset: usize,
        /// How many of them do; all if 0.
        bytes: usize,
        /// Comparison.
        within: Measure,
    },
    /// Whether the buffer is not there. It is the first test of its buffer.
    Absent {
        /// Whether the rule goes on with the other tests of the buffer where it is there; else it does not fit then.
        or_else: bool,
    },
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
    /// Bytes, 1 to 8, of digits 1 to 20.
    pub bytes: Number,
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

impl Form {
    /// Most bytes that a number takes in that form; of digits, as many as the longest number of 64 bits has.
    pub fn most_bytes(self) -> usize {
        match self {
            Self::Big | Self::Little => 8,
            Self::Text(_) => 20,
        }
    }
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
            Self::Len(_) | Self::Number(_) | Self::Flags { .. } => true,
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
            Self::Len(_)
            | Self::Number(_)
            | Self::Flags { .. }
            | Self::Entropy { .. }
            | Self::Absent { .. } => false,
        }
    }
}

impl Step {
    /// Returns whether both steps test the same instance of the same buffer with the same transforms.
    #[inline]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.instance == other.instance
            && self.transforms == other.transforms
    }

    /// Returns whether the step is an `absent` test.
    #[inline]
    pub fn is_absence(&self) -> bool {
        matches!(self.test, Test::Absent { .. })
    }
}

impl Rule {
    /// Returns what it wants to be odd about a packet, as bits.
    pub fn anomalies(&self) -> u64 {
        let wanted = self.headers.iter().map(|test| match test {
            HeaderTest::Anomaly { bits, not: false } => *bits,
            _ => 0,
        });
        wanted.fold(0, |all, bits| all | bits)
    }

    /// Returns the steps that look into a buffer that has to be there.
    pub fn needed_steps(&self) -> impl Iterator<Item = &Step> {
        let mut lacking = None;
        // Steps of one buffer are side by side, and that about its absence is the first of them.
        self.steps.iter().filter(move |step| {
            if step.is_absence() {
                lacking = Some(*step);
            }
            !lacking.is_some_and(|it| it.is_beside(step))
        })
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
    /// Written down when it has fitted `count` times, then each time that this has become so many times as much.
    Backoff {
        /// Factor, at least 2.
        multiplier: u32,
    },
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
    /// Packets of a flow.
    Flow,
}
