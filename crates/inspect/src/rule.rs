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
    /// The packet is dropped, and both endpoints get a reset.
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
    /// Any protocol over IP.
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
    /// Action on packets that match the rule.
    pub action: Action,
    /// Protocol in the header of the rule.
    pub protocol: Protocol,
    /// Protocols above layer 4, one of which the flow must have; an empty list means any protocol.
    pub applications: Vec<Application>,
    /// Protocols above layer 4 that the flow must not have, once its protocol is known.
    pub not_applications: Vec<Application>,
    /// Protocols above layer 4 whose flows match the rule on any port.
    pub services: Vec<Application>,
    /// Addresses and ports of the sender.
    pub source: Side,
    /// Addresses and ports of the receiver.
    pub destination: Side,
    /// True if the rule also matches with sender and receiver exchanged.
    pub both_ways: bool,
    /// Test of the flow's direction and state.
    pub flow: FlowTest,
    /// Tests of the packet's headers.
    pub headers: Vec<HeaderTest>,
    /// Tests of buffers, in order.
    pub steps: Vec<Step>,
    /// True if the rule fixes a position in the payload, so that it is evaluated on each packet alone. Other rules also
    /// see the bytes of the stream before the packet.
    pub is_positional: bool,
    /// Tests and changes of the flow's bits.
    pub bits: Vec<FlowBit>,
    /// Tests and changes of host bits.
    pub host_bits: Vec<HostBit>,
    /// True if the rule only sets bits, so that its matches are not logged.
    pub is_silent: bool,
    /// True if matches are logged although the action is to pass.
    pub is_told: bool,
    /// True if the rest of the flow bypasses the inspection after a match, unless the packet is dropped.
    pub bypasses: bool,
    /// The rate at which the rule has to match before it takes effect, or the limit on how often matches are logged;
    /// none if every match counts.
    pub rate: Option<Rate>,
    /// The tests of a rule with `=>` that the response has to pass; none for a rule without `=>`.
    /// [`crate::compile::RuleSet`] makes a separate rule of these tests.
    pub response: Option<Box<Rule>>,
    /// The numbers of the flow bits that record matches of both halves, if this rule is one half of a rule with `=>`.
    pub half: Option<Half>,
    /// Identity, message and metadata of the rule.
    pub about: About,
}

/// One half of a rule about a request and its response, which takes effect once the other half has matched too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Half {
    /// Bit number of this half.
    pub own: u16,
    /// Bit number of the other half.
    pub other: u16,
}

/// Addresses and ports of the sender or the receiver.
#[derive(Debug, Clone)]
pub struct Side {
    /// Addresses; IPv4 addresses are mapped into IPv6.
    pub addresses: Arc<Ranges>,
    /// Ports of the endpoint.
    pub ports: Arc<Ranges>,
}

/// The identity and the description of a rule, as users read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Generator identifier (`gid`), 1 if the rule has none.
    pub group: u32,
    /// Rule identifier (`sid`).
    pub id: u32,
    /// Revision of the rule (`rev`).
    pub revision: u32,
    /// Message (`msg`).
    pub message: String,
    /// Class of attack (`classtype`).
    pub class: String,
    /// Priority, 1 the highest; 0 if the rule has none.
    pub priority: u8,
    /// References, each with its kind and its location.
    pub references: Vec<(String, String)>,
    /// Metadata, as pairs of key and value.
    pub metadata: Vec<(String, String)>,
    /// Line of the rule in its file, counted from 1.
    pub line: usize,
}

/// The test of a flow's direction and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowTest {
    /// Direction of the packet: true for to the server, none for both directions.
    pub to_server: Option<bool>,
    /// Required value of "both endpoints have sent packets", or for TCP of "the handshake is complete"; none if the
    /// rule does not test it.
    pub established: Option<bool>,
    /// True if the rule is evaluated only on the ordered bytes of a stream, and never on a single packet.
    pub only_stream: bool,
    /// True if the rule tests a property of the flow that may change from packet to packet. Without contents, such a
    /// rule is evaluated for each packet.
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
    /// Returns true if the comparison holds for the number.
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
    /// True if the smallest and the largest number belong to the range.
    pub with_ends: bool,
    /// True if the comparison holds for numbers outside the range instead.
    pub not: bool,
}

impl Measure {
    /// Returns true if the comparison holds for the number.
    pub fn fits(&self, number: f64) -> bool {
        let is_within = match self.with_ends {
            true => (self.least..=self.most).contains(&number),
            false => self.least < number && number < self.most,
        };
        is_within != self.not
    }
}

/// A comparison of the bits of a header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Bits that the header field is expected to have.
    pub bits: u8,
    /// Mask of the bits that are compared.
    pub looked_at: u8,
    /// Kind of comparison.
    pub how: BitsHow,
}

/// A kind of comparison of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitsHow {
    /// Exactly the expected bits are set.
    Exactly,
    /// All expected bits are set; other bits may be set too.
    All,
    /// At least one of the expected bits is set.
    Any,
    /// None of the expected bits is set.
    None,
}

impl Bits {
    /// Returns true if the comparison holds for the value of the field.
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

/// A test of the headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderTest {
    /// Comparison with the number of payload bytes of the packet.
    PayloadLen(Within),
    /// Comparison of the flags of TCP.
    TcpFlags(Bits),
    /// Required sequence number of TCP.
    TcpSequence(u32),
    /// Required acknowledgement number of TCP.
    TcpAcknowledgement(u32),
    /// Comparison with the window field of TCP.
    TcpWindow(Within),
    /// Comparison with the time to live, or hop limit.
    Ttl(Within),
    /// Comparison with the identification field of IPv4.
    IpId(Within),
    /// Comparison with the type of service, or traffic class.
    Tos(Within),
    /// Comparison with the protocol number after the IP header.
    IpProtocol(Within),
    /// Required version of IP, 4 or 6.
    IpVersion(u8),
    /// Comparison of the fragment flags of IPv4: 1 more, 2 do not fragment, 4 reserved.
    FragmentBits(Bits),
    /// Comparison with the fragment offset, in units of eight bytes.
    FragmentOffset(Within),
    /// The IPv4 header has an option of this type; `None` means any option.
    IpOption(Option<u8>),
    /// Source and destination address are equal.
    SameAddresses,
    /// Comparison with the type of ICMP.
    IcmpType(Within),
    /// Comparison with the code of ICMP.
    IcmpCode(Within),
    /// Required identifier of an ICMP echo.
    IcmpId(u16),
    /// Required sequence number of an ICMP echo.
    IcmpSequence(u16),
    /// Comparison of the kinds of TLS messages in the packet, one bit each ([`crate::evaluate::Packet::tls`]).
    TlsState(Bits),
    /// Required version of the TLS records in the packet.
    TlsVersion(u16),
    /// The packet has at least one of the given anomalies, or with `not`, none of the given anomalies.
    Anomaly {
        /// Anomalies, one bit of [`crate::anomaly::Anomaly`] each.
        bits: u64,
        /// True if the test holds when the packet has none of the anomalies.
        not: bool,
    },
    /// Test of the VLAN identifiers of the frame.
    VlanId {
        /// Comparison with a VLAN identifier.
        id: Within,
        /// Tags whose identifiers are compared.
        of: VlanTags,
    },
    /// Comparison with the number of VLAN tags of the frame.
    VlanLayers(Within),
    /// Test of the number of bytes of the stream up to and including this packet, plus one for each endpoint's SYN
    /// ([`crate::evaluate::Packet::stream_bytes`]).
    StreamBytes {
        /// Endpoints whose bytes are counted.
        ends: Ends,
        /// Comparison with the number of bytes.
        bytes: Within,
    },
    /// Test of the number of packets of the flow up to and including this packet.
    FlowPackets {
        /// Endpoints whose packets are counted.
        ends: Ends,
        /// Comparison with the number of packets.
        packets: Within,
    },
    /// Test of the number of bytes of the flow's packets up to and including this packet.
    FlowBytes {
        /// Endpoints whose bytes are counted.
        ends: Ends,
        /// Comparison with the number of bytes.
        bytes: Within,
    },
}

/// The VLAN tags of a frame to which a test applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanTags {
    /// At least one tag has to match.
    Any,
    /// All tags have to match, and there must be at least one.
    All,
    /// One tag has to match; the value is its position (0 is the outermost tag, -1 the innermost).
    At(i8),
}

/// The endpoints of a flow to which the test of a count applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The test applies to the client of the flow.
    Client,
    /// The test applies to the server of the flow.
    Server,
    /// Both endpoints: the count of each has to match.
    Both,
    /// At least one endpoint: its count has to match.
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
    /// Number of the buffer's instance, if a message may contain several: steps with the same number have to match the
    /// same instance.
    pub instance: u8,
    /// Test of the buffer.
    pub test: Test,
}

/// A number that is a constant of the rule, or that an earlier step has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// The number is a constant of the rule.
    Is(i64),
    /// The value of the variable with this index, which [`Test::Extract`] or [`Test::Math`] has stored.
    Read(u8),
}

/// Maximum number of variables of a rule.
pub const MOST_VARIABLES: usize = 8;

/// A test of a buffer.
#[derive(Debug, Clone)]
pub enum Test {
    /// The buffer contains the given bytes.
    Content(Content),
    /// The buffer matches a regular expression.
    Regex {
        /// The regular expression to search for.
        regex: Arc<Regex>,
        /// True if the test holds when the expression does not match.
        not: bool,
        /// True if the search begins at the end of the last match.
        relative: bool,
    },
    /// A number in the buffer satisfies a comparison.
    Byte {
        /// Location and encoding of the number in the buffer.
        field: Field,
        /// Kind of comparison.
        how: Comparison,
        /// True if the test holds when the comparison fails.
        not: bool,
        /// Number with which the number in the buffer is compared.
        value: Number,
    },
    /// The position moves by the value of a number in the buffer.
    Jump {
        /// Location and encoding of the number in the buffer.
        field: Field,
        /// Factor by which the number is multiplied.
        times: i64,
        /// True if the distance is rounded up to a multiple of four bytes.
        align: bool,
        /// Position at which the distance begins.
        from: JumpFrom,
        /// Number of bytes that is added to the distance.
        and: i64,
    },
    /// A number in the buffer is stored in a variable.
    Extract {
        /// Location and encoding of the number in the buffer.
        field: Field,
        /// Factor by which the number is multiplied.
        times: i64,
        /// Multiple to which the number is rounded up; 1 for no rounding.
        align: i64,
        /// Index of the variable that stores the number.
        into: u8,
    },
    /// The result of a calculation with a number in the buffer is stored in a variable.
    Math {
        /// Location and encoding of the number, which is the first operand.
        field: Field,
        /// Operator, one of `+ - * / < >`; the last two are shifts.
        operator: u8,
        /// Second operand of the calculation.
        value: Number,
        /// Index of the variable that stores the result.
        into: u8,
    },
    /// The buffer has a byte at a position.
    DataAt {
        /// Position in the buffer at which there must be a byte.
        at: Number,
        /// True if the position counts from the end of the last match.
        relative: bool,
        /// True if the position after the last byte counts too. In Suricata, a relative test also holds if exactly `at`
        /// bytes follow the last match.
        to_end: bool,
        /// True if the test holds when the buffer has no byte at the position.
        not: bool,
    },
    /// Comparison with the length of the buffer.
    Len(Within),
    /// The number in the buffer satisfies at least one of the given comparisons.
    Number(Vec<Within>),
    /// The bits `set` of the number in the buffer are set, and the bits `unset` are clear.
    Flags {
        /// Bits that have to be set.
        set: u64,
        /// Bits that have to be clear.
        unset: u64,
    },
    /// Test of the entropy of bytes of the buffer, in bits per byte.
    Entropy {
        /// Offset of the first byte that is evaluated.
        offset: usize,
        /// Number of bytes that are evaluated; 0 for all bytes after the offset.
        bytes: usize,
        /// Comparison with the entropy.
        within: Measure,
    },
    /// The buffer is absent. This is the first test of its buffer.
    Absent {
        /// True if the rule may also match with a present buffer, which the later steps then test. If false, the rule
        /// matches only without the buffer.
        or_else: bool,
    },
    /// Decodes Base64 in the buffer; [`Buffer::Base64`] then contains the result.
    Base64 {
        /// Maximum number of encoded bytes that are read.
        bytes: usize,
        /// Offset of the encoded bytes.
        offset: usize,
        /// True if the offset counts from the end of the last match.
        relative: bool,
    },
}

/// The position from which a jump counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JumpFrom {
    /// The jump starts at the end of the number.
    Here,
    /// The jump starts at the beginning of the buffer.
    Beginning,
    /// The jump starts at the end of the buffer.
    End,
}

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The number in the buffer is less than the operand.
    Less,
    /// The number in the buffer is greater than the operand.
    Greater,
    /// The number in the buffer equals the operand.
    Equal,
    /// The number in the buffer is less than or equal to the operand.
    AtMost,
    /// The number in the buffer is greater than or equal to the operand.
    AtLeast,
    /// The bitwise AND of the number and the operand is not 0.
    And,
    /// The exclusive or of the number and the operand is not 0.
    Xor,
}

/// A number in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Length of the number: 1 to 8 bytes, or 1 to 20 digits.
    pub bytes: Number,
    /// Offset of the number in the buffer.
    pub offset: Number,
    /// True if the offset counts from the end of the last match.
    pub relative: bool,
    /// Encoding of the number.
    pub form: Form,
    /// Mask that is applied to the number, before the result is shifted right until the lowest bit of the mask is bit
    /// 0. The mask 0 means all bits.
    pub mask: u64,
}

/// The encoding of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Binary, most significant byte first.
    Big,
    /// Binary, least significant byte first.
    Little,
    /// Digits to base 8, 10 or 16, or 0 for the base that a prefix `0x` or `0` gives.
    Text(u8),
}

impl Form {
    /// Returns the maximum length in bytes of a number in this encoding: 8 for binary numbers, and 20 for text (the
    /// number of digits of the largest 64-bit number).
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
    /// Bytes to search for; in lower case if the search ignores case.
    pub bytes: Box<[u8]>,
    /// True if the search ignores the case of ASCII letters.
    pub any_case: bool,
    /// True if the test holds when the bytes do not occur.
    pub not: bool,
    /// Start of the range that is searched, counted from the beginning of the buffer.
    pub offset: Option<Number>,
    /// Length of the range after `offset` in which the content has to be.
    pub depth: Option<Number>,
    /// Start of the range that is searched, counted from the end of the last match.
    pub distance: Option<Number>,
    /// Length of the range after `distance` in which the content has to be.
    pub within: Option<Number>,
    /// True if the bytes must be at the end of the buffer.
    pub at_end: bool,
    /// True if the rule selects this content as its pattern (`fast_pattern`).
    pub is_fast: bool,
}

impl Content {
    /// Returns true if the search begins at the end of the last match.
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }
}

impl Test {
    /// Returns true if the result depends on the position of the bytes in the buffer.
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

    /// Returns true if the result depends on the end of the last match.
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

    /// Returns the steps whose buffers have to be present for the rule to match.
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
    /// Test: all of the bits are set, or with `any` one of them.
    IsSet {
        /// Numbers of the flow bits ([`crate::read::Names`]).
        bits: Vec<u16>,
        /// True if one set bit is enough.
        any: bool,
    },
    /// Test: none of the bits is set.
    IsNotSet(Vec<u16>),
    /// Change: the bits are set.
    Set(Vec<u16>),
    /// Change: the bits are cleared.
    Unset(Vec<u16>),
    /// Change: the bits are inverted.
    Toggle(Vec<u16>),
}

/// A test of a bit of a host, or a change of that bit after a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBit {
    /// Number of the host bit ([`crate::read::Names`]).
    pub bit: u16,
    /// Host, or pair of hosts, to which the bit belongs.
    pub track: Track,
    /// Test or change of the host bit.
    pub verb: HostBitVerb,
}

/// The test of a bit of a host, or the change of that bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostBitVerb {
    /// Test: the bit is set.
    IsSet,
    /// Test: the bit is not set.
    IsNotSet,
    /// Change: the bit is set; the value is the time in seconds until the bit expires.
    Set(u32),
    /// Change: the bit is cleared.
    Unset,
    /// Change: a clear bit is set for this number of seconds, and a set bit is cleared.
    Toggle(u32),
}

impl HostBit {
    /// Returns true for a test, false for a change.
    pub fn asks(&self) -> bool {
        matches!(self.verb, HostBitVerb::IsSet | HostBitVerb::IsNotSet)
    }
}

/// The number of times that a rule has to match within a period before it takes effect, or the limit on how many
/// matches are logged in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Effect of reaching `count`.
    pub kind: RateKind,
    /// Packets whose matches are counted together.
    pub track: Track,
    /// Number of matches within a period.
    pub count: u32,
    /// Period in seconds.
    pub seconds: u32,
}

/// The effect of counting a rule's matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKind {
    /// The rule takes effect only after `count` matches in a period (`detection_filter`).
    Filter,
    /// The first `count` matches of a period are logged.
    Limit,
    /// Every `count`th match of a period is logged.
    Every,
    /// Only the `count`th match of a period is logged.
    Once,
    /// The `count`th match of a period is logged, and then each match whose number is that of the last logged match
    /// times `multiplier`.
    Backoff {
        /// Factor between the numbers of two logged matches, at least 2.
        multiplier: u32,
    },
}

/// The packets whose matches are counted together, or the owner of a host bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// Matches are counted for packets from the same sender.
    Source,
    /// Matches are counted for packets to the same receiver.
    Destination,
    /// Matches are counted for packets between the same two hosts.
    Both,
    /// Matches are counted for all packets together.
    Rule,
    /// Matches are counted for packets of the same flow.
    Flow,
}
