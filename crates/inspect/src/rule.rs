//! The parsed form of a rule: its action, header, flow tests, buffer tests and metadata.

use crate::buffer::{Application, Buffer};
use crate::pattern::Regex;
use crate::ranges::Ranges;
use crate::transform::Transform;
use std::sync::Arc;

/// The action that a rule takes on a packet that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The packet passes and no other rule is evaluated.
    Pass,
    /// The packet is dropped, and so are later packets of its flow.
    Drop,
    /// The packet is dropped, and both ends are notified.
    Reject,
    /// The packet passes and the match is logged.
    Alert,
}

impl Action {
    /// Returns the name of the action in rules.
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

/// A parsed rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Action on packets that match.
    pub action: Action,
    /// Protocol in the header of the rule.
    pub protocol: Protocol,
    /// Protocols above layer 4, one of which the flow must have; an empty list stands for any.
    pub applications: Vec<Application>,
    /// Protocols above layer 4 that the flow must not have, once its protocol is known.
    pub not_applications: Vec<Application>,
    /// Protocols above layer 4 whose flows match on any port.
    pub services: Vec<Application>,
    /// Addresses and ports of the sender.
    pub source: Side,
    /// Addresses and ports of the receiver.
    pub destination: Side,
    /// True if the rule also matches with sender and receiver exchanged.
    pub both_ways: bool,
    /// Test of the flow.
    pub flow: FlowTest,
    /// Tests of the headers.
    pub headers: Vec<HeaderTest>,
    /// Tests of buffers, in order.
    pub steps: Vec<Step>,
    /// True if the rule fixes a position in the payload, so that it is evaluated on each packet alone. Other rules also
    /// see the preceding bytes of the stream.
    pub is_positional: bool,
    /// Tests and changes of the flow's bits.
    pub bits: Vec<FlowBit>,
    /// Tests and changes of the bits of hosts.
    pub host_bits: Vec<HostBit>,
    /// True if the rule only sets bits, so that no match is logged.
    pub is_silent: bool,
    /// True if a match is logged although the action of the rule is to pass.
    pub is_told: bool,
    /// True if the rest of the flow passes without inspection, unless the packet is dropped.
    pub bypasses: bool,
    /// The rate at which the rule has to match, or at which matches are logged.
    pub rate: Option<Rate>,
    /// The part of a rule with `=>` that the response has to match. [`crate::compile::RuleSet`] turns it into a rule of
    /// its own.
    pub response: Option<Box<Rule>>,
    /// The numbers of the two halves of a rule with `=>`, where this rule is one of them.
    pub half: Option<Half>,
    /// Identity, message and metadata of the rule.
    pub about: About,
}

/// One half of a rule about a request and its response; it counts once the other half has matched too.
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
    /// Addresses; IPv4 addresses are mapped into IPv6.
    pub addresses: Arc<Ranges>,
    /// Ports.
    pub ports: Arc<Ranges>,
}

/// The identity and the description of a rule, as users read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Generator number (`gid`), 1 if the rule has none.
    pub group: u32,
    /// Number of the rule.
    pub id: u32,
    /// Revision.
    pub revision: u32,
    /// Message.
    pub message: String,
    /// Class of attack.
    pub class: String,
    /// Priority, 1 the highest; 0 if the rule has none.
    pub priority: u8,
    /// References, each a kind and a location.
    pub references: Vec<(String, String)>,
    /// Metadata, each a key and a value.
    pub metadata: Vec<(String, String)>,
    /// Line in its file, counted from 1.
    pub line: usize,
}

/// The test of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowTest {
    /// Direction: to the server or to the client.
    pub to_server: Option<bool>,
    /// True if both ends have sent packets; for TCP, whether the handshake is complete.
    pub established: Option<bool>,
    /// True if the rule sees only the ordered bytes of a stream, and never a single packet.
    pub only_stream: bool,
    /// True if the rule tests more of the flow than its direction, so that without contents it is evaluated for each
    /// packet.
    pub is_of_packets: bool,
}

/// A comparison with an integer range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within {
    /// Smallest number in the range.
    pub least: i64,
    /// Largest number in the range.
    pub most: i64,
    /// True if the numbers outside the range match instead.
    pub not: bool,
}

impl Within {
    /// Returns true if the number matches.
    #[inline]
    pub fn fits(&self, number: i64) -> bool {
        (self.least..=self.most).contains(&number) != self.not
    }
}

/// A comparison with a range of numbers that need not be integers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// Smallest number in the range.
    pub least: f64,
    /// Largest number in the range.
    pub most: f64,
    /// True if the two ends of the range match as well.
    pub with_ends: bool,
    /// True if the numbers outside the range match instead.
    pub not: bool,
}

impl Measure {
    /// Returns true if the number matches.
    pub fn fits(&self, number: f64) -> bool {
        let is_within = match self.with_ends {
            true => (self.least..=self.most).contains(&number),
            false => self.least < number && number < self.most,
        };
        is_within != self.not
    }
}

/// The bits of a header field that a rule compares, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Expected bits.
    pub bits: u8,
    /// Mask of the bits that are compared.
    pub looked_at: u8,
    /// Kind of comparison.
    pub how: BitsHow,
}

/// A kind of comparison of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitsHow {
    /// Exactly these bits are set.
    Exactly,
    /// All of these bits are set; other bits may be set too.
    All,
    /// At least one of these bits is set.
    Any,
    /// None of these bits is set.
    None,
}

impl Bits {
    /// Returns true if the field matches.
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

/// A test of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderTest {
    /// Number of payload bytes of this packet.
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
    /// Protocol after the IP header.
    IpProtocol(Within),
    /// Version of IP, 4 or 6.
    IpVersion(u8),
    /// Flags of the fragment: 1 more, 2 do not fragment, 4 reserved.
    FragmentBits(Bits),
    /// Offset of the fragment, in units of eight bytes.
    FragmentOffset(Within),
    /// An option of the IPv4 header by its type; `None` matches any option.
    IpOption(Option<u8>),
    /// Source and destination address are equal.
    SameAddresses,
    /// Type of ICMP.
    IcmpType(Within),
    /// Code of ICMP.
    IcmpCode(Within),
    /// Identifier of an ICMP echo.
    IcmpId(u16),
    /// Sequence number of an ICMP echo.
    IcmpSequence(u16),
    /// Kinds of TLS messages in this packet, one bit each ([`crate::evaluate::Packet::tls`]); inverted if `not`.
    TlsState(Bits),
    /// Version of TLS records in this packet.
    TlsVersion(u16),
    /// An anomaly of the packet, one bit of [`crate::anomaly::Anomaly`] each; inverted if `not`.
    Anomaly {
        /// Bits, at least one of which has to be set.
        bits: u64,
        /// True if none of the bits may be set.
        not: bool,
    },
    /// Number of a VLAN of the frame.
    VlanId {
        /// VLAN number.
        id: Within,
        /// Tags that are tested.
        of: VlanTags,
    },
    /// Number of VLAN tags of the frame.
    VlanLayers(Within),
    /// Bytes of the stream so far, plus one for each end's SYN ([`crate::evaluate::Packet::stream_bytes`]).
    StreamBytes {
        /// The endpoints whose bytes the option is about.
        ends: Ends,
        /// Number of bytes.
        bytes: Within,
    },
    /// Packets of the flow so far, including this one.
    FlowPackets {
        /// The endpoints whose packets the option is about.
        ends: Ends,
        /// Number of packets.
        packets: Within,
    },
    /// Bytes of the packets of the flow so far, including this one.
    FlowBytes {
        /// The endpoints whose bytes the option is about.
        ends: Ends,
        /// Number of bytes.
        bytes: Within,
    },
}

/// The VLAN tags of a frame that a test applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanTags {
    /// At least one tag.
    Any,
    /// All tags, at least one.
    All,
    /// The tag at this position: 0 is the outermost, -1 the innermost.
    At(i8),
}

/// The ends of a flow that a count applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The client.
    Client,
    /// The server.
    Server,
    /// Both ends, each on its own.
    Both,
    /// At least one of the two ends.
    Either,
}

impl Ends {
    /// Returns true if the results for the client and for the server satisfy the test.
    pub fn fit(self, [client, server]: [bool; 2]) -> bool {
        match self {
            Self::Client => client,
            Self::Server => server,
            Self::Both => client && server,
            Self::Either => client || server,
        }
    }
}

/// One test of a buffer, or one operation on it.
#[derive(Debug, Clone)]
pub struct Step {
    /// Buffer that is tested.
    pub buffer: Buffer,
    /// Transforms of the buffer, in order; the test sees their result.
    pub transforms: Vec<Transform>,
    /// Number of the instance, for buffers with several instances in a message: steps with the same number have to
    /// match the same instance.
    pub instance: u8,
    /// The test itself.
    pub test: Test,
}

/// A number that is a constant of the rule, or that an earlier step has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// A constant.
    Is(i64),
    /// The value of the variable with this index, which [`Test::Extract`] or [`Test::Math`] has read.
    Read(u8),
}

/// Maximum number of variables of a rule.
pub const MOST_VARIABLES: usize = 8;

/// A test of a buffer.
#[derive(Debug, Clone)]
pub enum Test {
    /// Bytes that the buffer contains.
    Content(Content),
    /// A regular expression.
    Regex {
        /// The expression.
        regex: Arc<Regex>,
        /// True if the expression must not match.
        not: bool,
        /// True if the search begins after the last match.
        relative: bool,
    },
    /// A number in the buffer that is compared with another.
    Byte {
        /// Number that is read.
        field: Field,
        /// Kind of comparison.
        how: Comparison,
        /// True if the option holds when the comparison fails.
        not: bool,
        /// Number to compare with.
        value: Number,
    },
    /// A number in the buffer by which the position moves.
    Jump {
        /// Number that is read.
        field: Field,
        /// Factor.
        times: i64,
        /// True if the distance is rounded up to a multiple of four bytes.
        align: bool,
        /// Position from which the distance counts.
        from: JumpFrom,
        /// Bytes added to the distance.
        and: i64,
    },
    /// A number in the buffer that is stored in a variable.
    Extract {
        /// Number that is read.
        field: Field,
        /// Factor.
        times: i64,
        /// Multiple to which the number is rounded up; 1 for no rounding.
        align: i64,
        /// Index of the variable.
        into: u8,
    },
    /// A number in the buffer that is the operand of a calculation, the result of which is stored in a variable.
    Math {
        /// Number that is read.
        field: Field,
        /// Operator, one of `+ - * / < >`; the last two are shifts.
        operator: u8,
        /// Second operand.
        value: Number,
        /// Index of the variable.
        into: u8,
    },
    /// Data exists at a position.
    DataAt {
        /// Position.
        at: Number,
        /// True if the position counts from the last match.
        relative: bool,
        /// True if the position after the last byte counts too. In Suricata, exactly this many bytes after the last
        /// match are enough.
        to_end: bool,
        /// True if there must be no data.
        not: bool,
    },
    /// Length of the buffer.
    Len(Within),
    /// The number in the buffer is in one of these ranges.
    Number(Vec<Within>),
    /// Bits of the number in the buffer.
    Flags {
        /// Bits that are set.
        set: u64,
        /// Bits that are not set.
        unset: u64,
    },
    /// Entropy of the bytes, in bits per byte.
    Entropy {
        /// Offset of the first byte that counts.
        offset: usize,
        /// Number of bytes that count; 0 for all.
        bytes: usize,
        /// Range of the entropy.
        within: Measure,
    },
    /// The buffer is absent. This is the first test of its buffer.
    Absent {
        /// True if a present buffer is tested by the other steps. If false, the rule does not match if the buffer is
        /// present.
        or_else: bool,
    },
    /// Decodes Base64 from here on; [`Buffer::Base64`] contains the result.
    Base64 {
        /// Maximum number of encoded bytes that are read.
        bytes: usize,
        /// Offset of the encoded bytes.
        offset: usize,
        /// True if the offset counts from the last match.
        relative: bool,
    },
}

/// The position from which a jump counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JumpFrom {
    /// The end of the number.
    Here,
    /// The beginning of the buffer.
    Beginning,
    /// The end of the buffer.
    End,
}

/// A comparison of two numbers.
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
    /// The numbers have common bits.
    And,
    /// The exclusive or of the numbers is not 0.
    Xor,
}

/// A number in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Number of bytes, 1 to 8; of digits, 1 to 20.
    pub bytes: Number,
    /// Offset of the number.
    pub offset: Number,
    /// True if the offset counts from the last match.
    pub relative: bool,
    /// Encoding of the number.
    pub form: Form,
    /// Mask of the bits that count, which are shifted down to the lowest; 0 for all.
    pub mask: u64,
}

/// The encoding of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Most significant byte first.
    Big,
    /// Least significant byte first.
    Little,
    /// Digits to base 8, 10 or 16, or 0 for the base that a prefix `0x` or `0` gives.
    Text(u8),
}

impl Form {
    /// Returns the maximum number of bytes of a number in this encoding; for digits, the number of digits of the
    /// longest 64-bit number.
    pub fn most_bytes(self) -> usize {
        match self {
            Self::Big | Self::Little => 8,
            Self::Text(_) => 20,
        }
    }
}

/// Bytes that a rule searches for.
#[derive(Debug, Clone)]
pub struct Content {
    /// Bytes; in lower case if the search ignores case.
    pub bytes: Box<[u8]>,
    /// True if the search ignores the case of ASCII letters.
    pub any_case: bool,
    /// True if the bytes must not occur.
    pub not: bool,
    /// Start of the search, counted from the beginning of the buffer.
    pub offset: Option<Number>,
    /// Number of bytes after `offset` within which the content must be.
    pub depth: Option<Number>,
    /// Start of the search, counted from the end of the last match.
    pub distance: Option<Number>,
    /// Number of bytes after `distance` within which the content must be.
    pub within: Option<Number>,
    /// True if the bytes must be at the end of the buffer.
    pub at_end: bool,
    /// True if the rule selects this content as its pattern (`fast_pattern`).
    pub is_fast: bool,
}

impl Content {
    /// Returns true if the search begins at the last match.
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }
}

impl Test {
    /// Returns true if the result depends on positions in the buffer.
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

    /// Returns true if the result depends on where the last match ended.
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
    /// Returns true if both steps test the same instance of the same buffer with the same transforms.
    #[inline]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.instance == other.instance
            && self.transforms == other.transforms
    }

    /// Returns true if the step is an `absent` test.
    #[inline]
    pub fn is_absence(&self) -> bool {
        matches!(self.test, Test::Absent { .. })
    }
}

impl Rule {
    /// Returns the anomalies that the rule tests, as bits.
    pub fn anomalies(&self) -> u64 {
        let wanted = self.headers.iter().map(|test| match test {
            HeaderTest::Anomaly { bits, not: false } => *bits,
            _ => 0,
        });
        wanted.fold(0, |all, bits| all | bits)
    }

    /// Returns the steps that test a buffer which has to be present.
    pub fn needed_steps(&self) -> impl Iterator<Item = &Step> {
        let mut lacking = None;
        // Steps of one buffer are adjacent, and the test for its absence is the first of them.
        self.steps.iter().filter(move |step| {
            if step.is_absence() {
                lacking = Some(*step);
            }
            !lacking.is_some_and(|it| it.is_beside(step))
        })
    }
}

/// A test of bits of the flow, or a change of them after a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowBit {
    /// All or any of the bits are set.
    IsSet {
        /// Numbers of the bits ([`crate::read::Names`]).
        bits: Vec<u16>,
        /// True if one of the bits is enough.
        any: bool,
    },
    /// None of the bits is set.
    IsNotSet(Vec<u16>),
    /// The bits are set.
    Set(Vec<u16>),
    /// The bits are cleared.
    Unset(Vec<u16>),
    /// The bits are inverted.
    Toggle(Vec<u16>),
}

/// A test of a bit of a host, or a change of it after a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBit {
    /// Number of the bit ([`crate::read::Names`]).
    pub bit: u16,
    /// Host or pair of hosts that has the bit.
    pub track: Track,
    /// Test or change.
    pub verb: HostBitVerb,
}

/// The test of a bit of a host, or the change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostBitVerb {
    /// The bit is set.
    IsSet,
    /// The bit is not set.
    IsNotSet,
    /// The bit is set for this number of seconds.
    Set(u32),
    /// The bit is cleared.
    Unset,
    /// The bit is set for this number of seconds if it was clear, and cleared if it was set.
    Toggle(u32),
}

impl HostBit {
    /// Returns true for tests, which change nothing.
    pub fn asks(&self) -> bool {
        matches!(self.verb, HostBitVerb::IsSet | HostBitVerb::IsNotSet)
    }
}

/// The number of times that a rule has to match within a time before it acts, or the limit on how often it is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Kind of the rate.
    pub kind: RateKind,
    /// Packets that are counted together.
    pub track: Track,
    /// Count.
    pub count: u32,
    /// Time in seconds.
    pub seconds: u32,
}

/// The kind of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKind {
    /// The rule matches only after `count` matches (`detection_filter`).
    Filter,
    /// The rule is logged up to `count` times.
    Limit,
    /// The rule is logged every `count`th time.
    Every,
    /// The rule is logged once, at the `count`th match.
    Once,
    /// The rule is logged at the `count`th match, then each time that the count has grown by `multiplier`.
    Backoff {
        /// Factor, at least 2.
        multiplier: u32,
    },
}

/// The packets that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// Packets of a sender.
    Source,
    /// Packets to a receiver.
    Destination,
    /// Packets between two hosts.
    Both,
    /// All packets.
    Rule,
    /// Packets of a flow.
    Flow,
}
