//! Evaluates a rule on a packet: first its headers, then its tests of buffers one after the other. If a later test
//! depends on where a content is, its other occurrences are tried as well.

use crate::buffer::{Application, Buffer};
use crate::certificate::Certificate;
use crate::fingerprint::Fingerprint;
use crate::flow_bits::FlowBits;
use crate::http::Http;
use crate::pattern::Regex;
use crate::record::{Record, number_of};
use crate::rule::*;
use crate::transform::{self, Decoder, Letter, Transform, transformed};

/// The properties of a packet that rules test, apart from its buffers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packet<'a> {
    /// Protocol after the IP header.
    pub protocol: u8,
    /// Address of the sender; IPv4 addresses are mapped into IPv6.
    pub source: u128,
    /// Address of the receiver.
    pub destination: u128,
    /// Port of the sender; 0 for protocols without ports.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Number of payload bytes of this packet.
    pub payload_len: usize,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification of IPv4.
    pub ip_id: u16,
    /// Flags of the fragment: 1 more, 2 do not fragment, 4 reserved.
    pub fragment_bits: u8,
    /// Offset of the fragment, in units of eight bytes.
    pub fragment_offset: u16,
    /// Options of the IPv4 header.
    pub ip_options: &'a [u8],
    /// Flags of TCP.
    pub tcp_flags: u8,
    /// Sequence number of TCP.
    pub tcp_sequence: u32,
    /// Acknowledgement number of TCP.
    pub tcp_acknowledgement: u32,
    /// Window of TCP.
    pub tcp_window: u16,
    /// Type and code of ICMP.
    pub icmp: (u8, u8),
    /// Identifier and sequence number of an ICMP echo.
    pub icmp_echo: Option<(u16, u16)>,
    /// Kinds of TLS messages that begin in this packet, as bits with the indices of [`crate::read::TLS_STATES`].
    pub tls: u8,
    /// Version of its TLS records, 0 if there are none.
    pub tls_version: u16,
    /// Bytes of its stream so far, including this packet, plus one for a SYN: to the server first.
    pub stream_bytes: [u32; 2],
    /// Header of IP, with its options or extension headers.
    pub ip_header: &'a [u8],
    /// Header of TCP, UDP or ICMP.
    pub transport_header: &'a [u8],
    /// Identifier of the packet's flow.
    pub flow: u64,
    /// Packets of its flow so far, including this one: to the server first.
    pub flow_packets: [u32; 2],
    /// Bytes of the packets of its flow so far, including this one: to the server first.
    pub flow_bytes: [u64; 2],
    /// VLAN tags of its frame.
    pub vlans: Vlans,
    /// Anomalies of the packet, one bit of [`crate::anomaly::Anomaly`] each.
    pub anomalies: u64,
    /// True if the payload is inspected as part of its stream.
    pub is_in_stream: bool,
    /// True if it is sent to the server of its flow.
    pub to_server: bool,
    /// True if both ends of the flow have sent packets.
    pub established: bool,
    /// Application protocol of the flow, if it is one with an inspector.
    pub application: Option<Application>,
    /// True if the first bytes of the flow identify no protocol.
    pub is_unrecognised: bool,
}

/// Maximum number of VLAN tags of a frame.
pub const MOST_VLANS: usize = 2;

/// The VLAN numbers of a frame, the outermost in the lowest bits, and their count in the highest bits. They fit one
/// word, which is copied with each packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vlans(u32);

const VLAN_BITS: usize = 12;
const LEN_AT: usize = 24;

impl Vlans {
    /// Adds the number of an inner tag; tags beyond [`MOST_VLANS`] are ignored.
    pub fn push(&mut self, id: u16) {
        let len = self.len();
        if len < MOST_VLANS {
            self.0 |= u32::from(id & 0xfff) << (VLAN_BITS * len);
            self.0 += 1 << LEN_AT;
        }
    }

    fn len(self) -> usize {
        (self.0 >> LEN_AT) as usize
    }

    /// Returns the VLAN numbers, the outermost first.
    pub fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.len()).map(move |at| (self.0 >> (VLAN_BITS * at)) as u16 & 0xfff)
    }

    /// Returns true if the number of a VLAN matches.
    fn fit(self, id: &Within, of: VlanTags) -> bool {
        let fits = |it: u16| id.fits(it.into());
        match of {
            VlanTags::Any => self.ids().any(fits),
            VlanTags::All => self.len() > 0 && self.ids().all(fits),
            VlanTags::At(place) => {
                let from = if place < 0 { self.len() as i8 } else { 0 };
                let place = usize::try_from(from + place).ok();
                place.and_then(|it| self.ids().nth(it)).is_some_and(fits)
            }
        }
    }
}

/// The buffers of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// Payload; for a TCP stream, preceded by some earlier bytes.
    pub payload: &'a [u8],
    /// Offset in it at which the payload of this packet begins.
    pub new_from: usize,
    /// Message of a protocol that the payload contains.
    pub message: Message<'a>,
    /// New part of the body of that message.
    pub body: BodyPart,
    /// Position in a record, or in header lines, from which instances of buffers are searched; 0 for callers that
    /// evaluate rules.
    pub from: usize,
    /// Bytes that a rule has decoded from Base64.
    pub decoded: &'a [u8],
    /// IP header, and the header after it.
    pub headers: [&'a [u8]; 2],
}

/// The new part of a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BodyPart {
    /// Offset in the body at which it begins; rules were evaluated on the bytes before it.
    pub new_from: usize,
    /// True if the body is complete. Rules that test for an absent content are evaluated only then.
    pub is_whole: bool,
    /// True if rules see only the earlier bytes.
    pub is_before: bool,
}

/// Number of body bytes before the new part that are searched again, for rules that match only with bytes on both
/// sides. At the end of a body all of it is searched again.
const LOOKED_BACK: usize = 16 * 1024;

impl BodyPart {
    /// Returns the offset before which nothing is searched again.
    pub(crate) fn seen(&self) -> usize {
        match self.is_whole {
            true => 0,
            false => self.new_from.saturating_sub(LOOKED_BACK),
        }
    }
}

/// A message of a protocol above layer 4.
#[derive(Debug, Clone, Copy, Default)]
pub enum Message<'a> {
    /// No message.
    #[default]
    None,
    /// An HTTP message.
    Http {
        /// Both directions of its connection.
        http: &'a Http,
        /// True if it is a request.
        is_request: bool,
    },
    /// A message of DNS.
    Dns {
        /// Name in the question.
        name: &'a [u8],
        /// True if the message is a response.
        is_response: bool,
    },
    /// The first messages of one end of a TLS connection.
    Tls(&'a Tls<'a>),
    /// A message of another protocol.
    Record(&'a Record),
}

/// The parsed first messages of one end of a TLS connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tls<'a> {
    /// Name of the server in the client's hello.
    pub server_name: Option<&'a [u8]>,
    /// Fingerprint of the client's hello.
    pub client: Option<&'a Fingerprint>,
    /// Fingerprint of the server's hello.
    pub server: Option<&'a Fingerprint>,
    /// A certificate of the server, as sent.
    pub certificate: Option<&'a [u8]>,
    /// Parsed fields of the certificate, if it is the first one and valid.
    pub says: Option<&'a Certificate>,
}

impl Message<'_> {
    /// Returns the halves of rules that have matched in the transaction of the message; none for protocols without
    /// transactions.
    pub(crate) fn halves(&self) -> Option<FlowBits> {
        match self {
            Self::Http { http, is_request } => Some(http.halves(*is_request)),
            _ => None,
        }
    }
}

impl<'a> Parts<'a> {
    /// Returns the parts as they were before the new bytes arrived.
    pub fn before(&self) -> Self {
        let payload = self.payload.get(..self.new_from).unwrap_or_default();
        Self {
            payload,
            new_from: 0,
            body: BodyPart {
                is_before: true,
                ..self.body
            },
            ..*self
        }
    }

    /// Returns all instances of a buffer.
    #[inline]
    pub fn buffers(&self, buffer: Buffer) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = Some(*self);
        std::iter::from_fn(move || {
            let parts = rest.take()?;
            let found = parts.buffer(buffer)?;
            rest = parts.behind(buffer);
            Some(found)
        })
    }

    /// Returns the parts after the first instance of a buffer; none for messages that contain each buffer once.
    #[inline]
    fn behind(self, buffer: Buffer) -> Option<Self> {
        let from = match (self.message, buffer) {
            (_, Buffer::HttpRequestHeader | Buffer::HttpResponseHeader) => {
                self.header_line(buffer)?.1
            }
            (Message::Record(record), _) => record.buffer_from(buffer, self.from)?.1,
            _ => return None,
        };
        Some(Self { from, ..self })
    }

    /// Returns the first header line of a request or a response, without its line end, and the position after it.
    fn header_line(&self, buffer: Buffer) -> Option<(&'a [u8], usize)> {
        let is_request = match self.message {
            Message::Http { is_request, .. } => is_request,
            Message::Record(record) => record.buffer(Buffer::HttpStatusCode).is_none(),
            _ => return None,
        };
        if is_request != (buffer == Buffer::HttpRequestHeader) {
            return None;
        }
        let lines = Self { from: 0, ..*self }.buffer(Buffer::HttpHeader)?;
        let rest = lines.get(self.from..).filter(|it| !it.is_empty())?;
        let len = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest.get(..len)?;
        Some((
            line.strip_suffix(b"\r").unwrap_or(line),
            self.from + len + 1,
        ))
    }

    /// Returns the first instance of a buffer, if there is one.
    #[inline]
    pub fn buffer(&self, buffer: Buffer) -> Option<&'a [u8]> {
        match buffer {
            Buffer::Payload => return Some(self.payload),
            Buffer::IpHeader => return Some(self.headers[0]),
            Buffer::TransportHeader => return Some(self.headers[1]),
            Buffer::Base64 => return (!self.decoded.is_empty()).then_some(self.decoded),
            Buffer::HttpRequestHeader | Buffer::HttpResponseHeader => {
                return self.header_line(buffer).map(|it| it.0);
            }
            _ => {}
        }
        match self.message {
            Message::None => None,
            Message::Http { http, is_request } => {
                let of_end = match (buffer, is_request) {
                    (Buffer::FileData, true) => Buffer::HttpClientBody,
                    (Buffer::FileData, false) => Buffer::HttpServerBody,
                    (other, _) => other,
                };
                let bytes = http.buffer_of(is_request, of_end)?;
                match self.body.is_before && buffer.is_body() {
                    true => bytes.get(..self.body.new_from),
                    false => Some(bytes),
                }
            }
            Message::Dns { name, is_response } => match buffer {
                Buffer::DnsQuery => (!is_response).then_some(name),
                Buffer::DnsQuestion => Some(name),
                _ => None,
            },
            Message::Record(record) if buffer == Buffer::FileData => {
                let body = record.buffer_from(Buffer::HttpClientBody, self.from);
                Some(
                    body.or_else(|| record.buffer_from(Buffer::HttpServerBody, self.from))?
                        .0,
                )
            }
            Message::Record(record) => Some(record.buffer_from(buffer, self.from)?.0),
            Message::Tls(tls) => match buffer {
                Buffer::TlsSni => tls.server_name,
                Buffer::TlsCertificates => tls.certificate,
                Buffer::TlsSubject => tls.says.map(|it| &it.subject[..]),
                Buffer::TlsIssuer => tls.says.map(|it| &it.issuer[..]),
                Buffer::TlsSerial => tls.says.map(|it| &it.serial[..]),
                Buffer::Ja3Hash => tls.client.map(Fingerprint::hash),
                Buffer::Ja3String => tls.client.map(Fingerprint::text),
                Buffer::Ja3sHash => tls.server.map(Fingerprint::hash),
                Buffer::Ja3sString => tls.server.map(Fingerprint::text),
                _ => None,
            },
        }
    }
}

/// Maximum number of steps of a rule for one packet; a rule that needs more is counted and does not match.
const MOST_STEPS: u32 = 4096;
/// Maximum number of buffers of a rule that are transformed or decoded.
pub const MOST_CHANGED: usize = 4;

/// The memory for one transformed buffer.
type Piece = Box<[u8; transform::MOST_BYTES]>;

/// A buffer as a rule tests it, and the end of the last match in it.
#[derive(Clone, Copy)]
struct Here<'a> {
    buffer: Buffer,
    instance: u8,
    transforms: &'a [Transform],
    data: &'a [u8],
    end: usize,
}

impl Here<'_> {
    /// Returns true if a step tests this buffer.
    fn is_of(&self, step: &Step) -> bool {
        step.buffer == self.buffer
            && step.instance == self.instance
            && step.transforms == self.transforms
    }
}

/// The memory that the evaluation of rules needs, for one worker.
#[derive(Debug)]
pub struct Evaluator {
    variables: [i64; MOST_VARIABLES],
    /// Memory for transformed or decoded buffers; the steps that test them borrow it.
    pieces: Vec<Piece>,
    steps_left: u32,
    /// Number of rules that needed too many steps, or tested a transformed buffer that is too long for a transform.
    pub given_up: u64,
}

impl Default for Evaluator {
    fn default() -> Self {
        Self {
            variables: [0; MOST_VARIABLES],
            pieces: (0..MOST_CHANGED)
                .map(|_| Box::new([0; transform::MOST_BYTES]))
                .collect(),
            steps_left: 0,
            given_up: 0,
        }
    }
}

impl Evaluator {
    /// Returns true if a rule matches. The caller handles rates and changes of flow bits; this only tests the bits.
    #[inline]
    pub fn fits(
        &mut self,
        rule: &Rule,
        packet: &Packet<'_>,
        parts: &Parts<'_>,
        bits: &FlowBits,
    ) -> bool {
        if !(header_fits(rule, packet) && bits_fit(rule, bits)) {
            return false;
        }
        if rule.steps.is_empty() {
            return true;
        }
        self.steps_left = MOST_STEPS;
        // A rule that fixes a position in the payload refers to the payload of the packet.
        let mut parts = Parts {
            headers: [packet.ip_header, packet.transport_header],
            ..*parts
        };
        if rule.is_positional && parts.new_from > 0 {
            parts.payload = parts.payload.get(parts.new_from..).unwrap_or_default();
        }
        if rule.steps.len() > 1 && !has_contents(rule, &parts) {
            return false;
        }
        let payload = Here {
            buffer: Buffer::Payload,
            instance: 0,
            transforms: &[],
            data: parts.payload,
            end: 0,
        };
        let fits = self.steps_fit(&rule.steps, &parts, payload);
        if self.steps_left == 0 {
            self.given_up += 1;
            return false;
        }
        fits
    }

    /// Returns true if the tests match from here on.
    fn steps_fit(&mut self, steps: &[Step], parts: &Parts<'_>, here: Here<'_>) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return true;
        };
        if here.is_of(step) {
            return self.step_fits(step, rest, parts, here);
        }
        // All tests of a buffer after one selection have to match the same instance of it.
        let first = Parts { from: 0, ..*parts };
        if step.is_absence() && first.buffer(step.buffer).is_none() {
            let others = rest.iter().position(|it| !it.is_beside(step));
            let others = &rest[others.unwrap_or(rest.len())..];
            return self.steps_fit(others, parts, here);
        }
        let mut instances = Some(first);
        while let Some(instance) = instances {
            let Some(data) = instance.buffer(step.buffer) else {
                return false;
            };
            if self.changed_fits(step, rest, parts, data) {
                return true;
            }
            instances = instance.behind(step.buffer).filter(|_| self.has_steps());
        }
        false
    }

    /// Returns true if the tests match from here on with this instance of a buffer, after the transforms of the step.
    fn changed_fits(&mut self, step: &Step, rest: &[Step], parts: &Parts<'_>, data: &[u8]) -> bool {
        let here = Here {
            buffer: step.buffer,
            instance: step.instance,
            transforms: &step.transforms,
            data,
            end: 0,
        };
        if step.transforms.is_empty() {
            return self.step_fits(step, rest, parts, here);
        }
        let Some(mut piece) = self.pieces.pop() else {
            return false;
        };
        let fits = match transformed(&step.transforms, data, &mut piece[..]) {
            Some(data) => self.step_fits(step, rest, parts, Here { data, ..here }),
            None => {
                self.given_up += 1;
                false
            }
        };
        self.pieces.push(piece);
        fits
    }

    /// Returns true if the tests after a `base64_decode` step match.
    fn decoded_fits(
        &mut self,
        text: &[u8],
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let Some(mut piece) = self.pieces.pop() else {
            return false;
        };
        let len = decode_base64(text, &mut piece[..]);
        let decoded = &piece[..len];
        let fits = len > 0 && self.next(rest, &Parts { decoded, ..*parts }, here, here.end);
        self.pieces.push(piece);
        fits
    }

    fn step_fits(&mut self, step: &Step, rest: &[Step], parts: &Parts<'_>, here: Here<'_>) -> bool {
        let Here { data, end, .. } = here;
        match &step.test {
            Test::Content(content) => self.content_fits(content, rest, parts, here),
            Test::Regex {
                regex,
                not,
                relative,
            } => {
                // A relative expression begins at the last match: nothing before it is visible, and `^` matches there.
                let base = if *relative { end } else { 0 };
                self.regex_fits(regex, *not, base, rest, parts, here)
            }
            test @ (Test::Byte { .. }
            | Test::Jump { .. }
            | Test::Extract { .. }
            | Test::Math { .. }) => self
                .behind_number(test, data, end)
                .is_some_and(|end| self.next(rest, parts, here, end)),
            // The buffer is present here.
            Test::Absent { or_else } => *or_else && self.next(rest, parts, here, end),
            Test::Base64 {
                bytes,
                offset,
                relative,
            } => {
                let from = offset + if *relative { end } else { 0 };
                let data = data.get(from..).unwrap_or_default();
                let text = &data[..data.len().min(*bytes)];
                self.decoded_fits(text, rest, parts, here)
            }
            test @ (Test::DataAt { .. }
            | Test::Len(_)
            | Test::Number(_)
            | Test::Flags { .. }
            | Test::Entropy { .. }) => {
                self.holds(test, data, end) && self.next(rest, parts, here, end)
            }
        }
    }

    /// Returns the position after a number that satisfies a test, or the position that it leads to; stores numbers for
    /// variables.
    #[inline]
    fn behind_number(&mut self, test: &Test, data: &[u8], end: usize) -> Option<usize> {
        match test {
            Test::Byte {
                field,
                how,
                not,
                value,
            } => {
                let (read, _) = self.read(field, data, end)?;
                // Fields of eight bytes have no sign, nor do numbers that were read.
                let value = match *value {
                    Number::Is(value) => i128::from(value),
                    variable @ Number::Read(_) => i128::from(self.value(variable) as u64),
                };
                (compares(i128::from(read), *how, value) != *not).then_some(end)
            }
            Test::Jump {
                field,
                times,
                align,
                from,
                and,
            } => {
                let (read, behind) = match self.value(field.bytes) {
                    0 => (0, end),
                    _ => self.read(field, data, end)?,
                };
                let base = match from {
                    JumpFrom::Here => behind as i64,
                    JumpFrom::Beginning => 0,
                    JumpFrom::End => data.len() as i64,
                };
                let distance = jump(read, *times, *align);
                // Positions before the beginning are the beginning.
                let to = base.saturating_add(distance).saturating_add(*and).max(0);
                (to <= data.len() as i64).then_some(to as usize)
            }
            Test::Extract {
                field,
                times,
                align,
                into,
            } => {
                let (read, behind) = self.read(field, data, end)?;
                let number = (read as i64).saturating_mul(*times);
                let over = number.rem_euclid(*align);
                let number = if over == 0 {
                    number
                } else {
                    number.saturating_add(align - over)
                };
                self.variables[usize::from(*into) % MOST_VARIABLES] = number;
                Some(behind)
            }
            Test::Math {
                field,
                operator,
                value,
                into,
            } => {
                let (read, behind) = self.read(field, data, end)?;
                let result = calculated(read as i64, *operator, self.value(*value))?;
                self.variables[usize::from(*into) % MOST_VARIABLES] = result;
                Some(behind)
            }
            _ => None,
        }
    }

    /// Returns true if a test of all the data, or of one position in it, holds.
    #[inline]
    fn holds(&self, test: &Test, data: &[u8], end: usize) -> bool {
        match test {
            Test::DataAt {
                at,
                relative,
                to_end,
                not,
            } => {
                let base = if *relative { end as i64 } else { 0 };
                let at = base.saturating_add(self.value(*at));
                let has = (0..data.len() as i64 + i64::from(*to_end)).contains(&at);
                has != *not
            }
            Test::Len(within) => within.fits(data.len() as i64),
            Test::Number(any) => {
                let number = number_of(data).and_then(|number| i64::try_from(number).ok());
                number.is_some_and(|number| any.iter().any(|within| within.fits(number)))
            }
            Test::Flags { set, unset } => {
                number_of(data).is_some_and(|flags| flags & set == *set && flags & unset == 0)
            }
            Test::Entropy {
                offset,
                bytes,
                within,
            } => {
                let behind = data.get(*offset..);
                let counted = match bytes {
                    0 => behind,
                    bytes => behind.and_then(|it| it.get(..*bytes)),
                };
                counted.is_some_and(|it| within.fits(entropy(it)))
            }
            _ => false,
        }
    }

    /// Returns true if a content is at one of its possible positions, and the remaining tests match after it.
    #[inline]
    fn content_fits(
        &mut self,
        content: &Content,
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let Here { data, end, .. } = here;
        let Some((from, to)) = self.window(content, data.len(), end) else {
            return content.not && self.next(rest, parts, here, end);
        };
        let mut at = from;
        loop {
            if !self.has_steps() {
                return false;
            }
            let found = find(content, data, at, to);
            match found {
                _ if content.not => {
                    return found.is_none() && self.next(rest, parts, here, end);
                }
                None => return false,
                Some(found) => {
                    if self.next(rest, parts, here, found + content.bytes.len()) {
                        return true;
                    }
                    if !depends(rest, here) {
                        return false;
                    }
                    at = found + 1;
                }
            }
        }
    }

    /// Returns true if an expression matches the data from `base` on, and the remaining tests match after it.
    fn regex_fits(
        &mut self,
        regex: &Regex,
        not: bool,
        base: usize,
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let data = here.data.get(base..).unwrap_or_default();
        let mut at = 0;
        loop {
            if !self.has_steps() {
                return false;
            }
            match regex.find_at(data, at) {
                found if not => {
                    return found.is_none() && self.next(rest, parts, here, here.end);
                }
                None => return false,
                Some((begin, behind)) => {
                    if self.next(rest, parts, here, base + behind) {
                        return true;
                    }
                    if !depends(rest, here) {
                        return false;
                    }
                    at = begin + 1;
                }
            }
        }
    }

    #[inline]
    fn next(&mut self, rest: &[Step], parts: &Parts<'_>, here: Here<'_>, end: usize) -> bool {
        rest.is_empty() || (self.has_steps() && self.steps_fit(rest, parts, Here { end, ..here }))
    }

    fn has_steps(&mut self) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        self.steps_left > 0
    }

    fn value(&self, number: Number) -> i64 {
        match number {
            Number::Is(number) => number,
            Number::Read(variable) => self.variables[usize::from(variable) % MOST_VARIABLES],
        }
    }

    /// Returns the range in which the content has to be; none if it does not fit.
    fn window(&self, content: &Content, len: usize, end: usize) -> Option<(usize, usize)> {
        let (base, from, bytes) = if content.is_relative() {
            (end as i64, content.distance, content.within)
        } else {
            (0, content.offset, content.depth)
        };
        let from = base.saturating_add(from.map_or(0, |from| self.value(from)));
        let to = match bytes {
            Some(bytes) => from.saturating_add(self.value(bytes)).min(len as i64),
            None => len as i64,
        };
        let from = from.max(0);
        (from <= to && to - from >= content.bytes.len() as i64)
            .then_some((from as usize, to as usize))
    }

    /// Returns the number of a field and the position after it.
    fn read(&self, field: &Field, data: &[u8], end: usize) -> Option<(u64, usize)> {
        let base = if field.relative { end as i64 } else { 0 };
        let at = usize::try_from(base.saturating_add(self.value(field.offset))).ok()?;
        let len = usize::try_from(self.value(field.bytes)).ok()?;
        if len == 0 || len > field.form.most_bytes() {
            return None;
        }
        let bytes = data.get(at..)?.get(..len);
        let (number, behind) = match field.form {
            Form::Big => (
                bytes?
                    .iter()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + len,
            ),
            Form::Little => (
                bytes?
                    .iter()
                    .rev()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + len,
            ),
            Form::Text(base) => {
                let rest = data.get(at..)?;
                let (number, used) = digits(&rest[..rest.len().min(len)], base)?;
                (number, at + used)
            }
        };
        if field.mask == 0 {
            return Some((number, behind));
        }
        Some(((number & field.mask) >> field.mask.trailing_zeros(), behind))
    }
}

/// Returns true if the contents with fixed positions are present. Most packets fail here, before any other position of
/// a content is tried.
fn has_contents(rule: &Rule, parts: &Parts<'_>) -> bool {
    let number = |number: Option<Number>, none: i64| match number {
        Some(Number::Is(number)) => Some(number),
        Some(Number::Read(_)) => None,
        None => Some(none),
    };
    rule.needed_steps().all(|step| {
        let Test::Content(content) = &step.test else {
            return true;
        };
        let is_changed = !step.transforms.is_empty() || step.buffer == Buffer::Base64;
        if content.not || content.is_relative() || is_changed {
            return true;
        }
        let (Some(from), Some(depth)) =
            (number(content.offset, 0), number(content.depth, i64::MAX))
        else {
            return true;
        };
        let from = from.max(0);
        parts.buffers(step.buffer).any(|data| {
            let to = from.saturating_add(depth).min(data.len() as i64);
            to - from >= content.bytes.len() as i64
                && find(content, data, from as usize, to as usize).is_some()
        })
    })
}

/// Returns true if a number that was read satisfies the comparison.
fn compares(read: i128, how: Comparison, value: i128) -> bool {
    match how {
        Comparison::Less => read < value,
        Comparison::Greater => read > value,
        Comparison::Equal => read == value,
        Comparison::AtMost => read <= value,
        Comparison::AtLeast => read >= value,
        Comparison::And => read & value != 0,
        Comparison::Xor => read ^ value != 0,
    }
}

/// Returns the distance of a jump by a number that was read, `align`ed to four bytes.
fn jump(read: u64, times: i64, align: bool) -> i64 {
    let distance = i64::try_from(read)
        .unwrap_or(i64::MAX)
        .saturating_mul(times);
    match distance % 4 {
        over if align && over != 0 => distance.saturating_add(4 - over),
        _ => distance,
    }
}

/// Returns the result of an operation of `byte_math`; none of a division by 0.
fn calculated(read: i64, operator: u8, value: i64) -> Option<i64> {
    let by = u32::try_from(value).unwrap_or(64);
    match operator {
        b'+' => Some(read.wrapping_add(value)),
        b'-' => Some(read.wrapping_sub(value)),
        b'*' => Some(read.wrapping_mul(value)),
        b'/' => (read as u64)
            .checked_div(value as u64)
            .map(|number| number as i64),
        b'<' => Some(read.checked_shl(by).unwrap_or(0)),
        _ => Some((read as u64).checked_shr(by).unwrap_or(0) as i64),
    }
}

/// Returns the entropy of bytes, in bits per byte, from the frequency of each value (Shannon 1948, section 6).
fn entropy(data: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    data.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let len = data.len() as f64;
    let shares = counts.into_iter().filter(|&it| it > 0);
    shares
        .map(|count| f64::from(count) / len)
        .fold(0.0, |all, share| all - share * share.log2())
}

/// Reads a number in digits after optional white space; returns the number and the bytes that it takes.
fn digits(text: &[u8], base: u8) -> Option<(u64, usize)> {
    let begin = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let rest = &text[begin..];
    let hex = rest.len() > 2 && rest[0] == b'0' && matches!(rest[1], b'x' | b'X');
    let (base, skip) = match base {
        0 | 16 if hex => (16, 2),
        0 if rest[0] == b'0' => (8, 0),
        0 => (10, 0),
        base => (u32::from(base), 0),
    };
    let mut number = 0u64;
    let mut used = 0;
    for &byte in &rest[skip..] {
        let Some(digit) = char::from(byte).to_digit(base) else {
            break;
        };
        number = number
            .saturating_mul(u64::from(base))
            .saturating_add(u64::from(digit));
        used += 1;
    }
    (used > 0).then_some((number, begin + skip + used))
}

/// Decodes Base64 up to the first other byte; line ends are skipped (RFC 2045 section 6.8). Returns the number of
/// decoded bytes.
fn decode_base64(text: &[u8], into: &mut [u8]) -> usize {
    let mut decoder = Decoder::default();
    let mut len = 0;
    for &letter in text {
        match decoder.push(letter) {
            Letter::Byte(byte) => {
                let Some(place) = into.get_mut(len) else {
                    break;
                };
                *place = byte;
                len += 1;
            }
            Letter::None if !matches!(letter, b'\r' | b'\n') => break,
            Letter::Nothing | Letter::None => {}
        }
    }
    len
}

/// Returns true if the remaining tests depend on where the last match was: only then other positions are tried.
fn depends(rest: &[Step], here: Here<'_>) -> bool {
    for step in rest {
        if matches!(step.test, Test::Extract { .. } | Test::Math { .. }) {
            return true;
        }
        if !here.is_of(step) {
            return false;
        }
        if step.test.is_relative() {
            return true;
        }
        let moves = match &step.test {
            Test::Content(content) => !content.not,
            Test::Regex { not, .. } => !not,
            Test::Jump { .. } => true,
            _ => false,
        };
        if moves {
            return false;
        }
    }
    false
}

/// Returns the position of the content in `data[at..to]`, counted from the beginning of `data`.
#[inline]
fn find(content: &Content, data: &[u8], at: usize, to: usize) -> Option<usize> {
    let bytes = &content.bytes[..];
    if content.at_end {
        let begin = data.len().checked_sub(bytes.len())?;
        let fits = if content.any_case {
            data[begin..].eq_ignore_ascii_case(bytes)
        } else {
            data[begin..] == *bytes
        };
        return (begin >= at && to == data.len() && fits).then_some(begin);
    }
    let within = data.get(at..to)?;
    if !content.any_case {
        return memchr::memmem::find(within, bytes).map(|found| at + found);
    }
    let last = within.len().checked_sub(bytes.len())?;
    let (lower, upper) = (bytes[0], bytes[0].to_ascii_uppercase());
    memchr::memchr2_iter(lower, upper, &within[..=last])
        .find(|&begin| within[begin..begin + bytes.len()].eq_ignore_ascii_case(bytes))
        .map(|found| at + found)
}

#[inline]
fn header_fits(rule: &Rule, packet: &Packet<'_>) -> bool {
    if rule.flow.to_server.is_some_and(|it| it != packet.to_server)
        || rule
            .flow
            .established
            .is_some_and(|it| it != packet.established)
        || (rule.flow.only_stream && !packet.is_in_stream)
    {
        return false;
    }
    if !rule.applications.is_empty()
        && !packet
            .application
            .is_some_and(|it| rule.applications.contains(&it))
    {
        return false;
    }
    if !rule.not_applications.is_empty()
        && match packet.application {
            Some(application) => rule.not_applications.contains(&application),
            None => !packet.is_unrecognised,
        }
    {
        return false;
    }
    let protocol_fits = match rule.protocol {
        Protocol::Ip => true,
        Protocol::Tcp => packet.protocol == 6,
        Protocol::Udp => packet.protocol == 17,
        Protocol::Icmp => matches!(packet.protocol, 1 | 58),
    };
    let any_port = packet
        .application
        .is_some_and(|it| rule.services.contains(&it));
    let side_fits = |side: &Side, address: u128, port: u16| {
        side.addresses.has(address) && (any_port || side.ports.has(u128::from(port)))
    };
    let one_way = side_fits(&rule.source, packet.source, packet.source_port)
        && side_fits(
            &rule.destination,
            packet.destination,
            packet.destination_port,
        );
    let way_fits = one_way
        || (rule.both_ways
            && side_fits(&rule.source, packet.destination, packet.destination_port)
            && side_fits(&rule.destination, packet.source, packet.source_port));
    protocol_fits && way_fits && rule.headers.iter().all(|test| test_fits(test, packet))
}

fn test_fits(test: &HeaderTest, packet: &Packet<'_>) -> bool {
    let is_tcp = packet.protocol == 6;
    let is_icmp = matches!(packet.protocol, 1 | 58);
    match test {
        HeaderTest::PayloadLen(within) => within.fits(packet.payload_len as i64),
        HeaderTest::TcpFlags(bits) => is_tcp && bits.fits(packet.tcp_flags),
        HeaderTest::TcpSequence(number) => is_tcp && packet.tcp_sequence == *number,
        HeaderTest::TcpAcknowledgement(number) => is_tcp && packet.tcp_acknowledgement == *number,
        HeaderTest::TcpWindow(within) => is_tcp && within.fits(packet.tcp_window.into()),
        HeaderTest::Ttl(within) => within.fits(packet.ttl.into()),
        HeaderTest::IpId(within) => within.fits(packet.ip_id.into()),
        HeaderTest::Tos(within) => within.fits(packet.tos.into()),
        HeaderTest::IpProtocol(within) => within.fits(packet.protocol.into()),
        HeaderTest::IpVersion(version) => {
            let is_mapped = packet.source >> 32 == 0xffff;
            is_mapped == (*version == 4)
        }
        HeaderTest::Anomaly { bits, not } => (packet.anomalies & bits != 0) != *not,
        HeaderTest::FragmentBits(bits) => Bits {
            looked_at: bits.looked_at & 7,
            ..*bits
        }
        .fits(packet.fragment_bits),
        HeaderTest::FragmentOffset(within) => within.fits(packet.fragment_offset.into()),
        HeaderTest::IpOption(wanted) => has_option(packet.ip_options, *wanted),
        HeaderTest::SameAddresses => packet.source == packet.destination,
        HeaderTest::IcmpType(within) => is_icmp && within.fits(packet.icmp.0.into()),
        HeaderTest::IcmpCode(within) => is_icmp && within.fits(packet.icmp.1.into()),
        HeaderTest::IcmpId(number) => packet.icmp_echo.is_some_and(|it| it.0 == *number),
        HeaderTest::IcmpSequence(number) => packet.icmp_echo.is_some_and(|it| it.1 == *number),
        HeaderTest::TlsState(bits) => packet.tls_version != 0 && bits.fits(packet.tls),
        HeaderTest::TlsVersion(version) => packet.tls_version == *version,
        HeaderTest::VlanId { id, of } => packet.vlans.fit(id, *of),
        HeaderTest::VlanLayers(within) => within.fits(packet.vlans.len() as i64),
        HeaderTest::StreamBytes { ends, bytes } => {
            is_tcp && ends.fit(packet.stream_bytes.map(|it| bytes.fits(it.into())))
        }
        HeaderTest::FlowPackets { ends, packets } => {
            ends.fit(packet.flow_packets.map(|it| packets.fits(it.into())))
        }
        HeaderTest::FlowBytes { ends, bytes } => {
            ends.fit(packet.flow_bytes.map(|it| bytes.fits(it as i64)))
        }
    }
}

/// Returns true if an IPv4 header has an option of that type among its options (RFC 791 section 3.1).
fn has_option(mut options: &[u8], wanted: Option<u8>) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        if wanted.is_none_or(|it| it == kind) {
            return true;
        }
        options = match (kind, rest.first()) {
            (0, _) => return false,
            (1, _) => rest,
            (_, Some(&len)) if len >= 2 => options.get(usize::from(len)..).unwrap_or_default(),
            _ => return false,
        };
    }
    false
}

fn bits_fit(rule: &Rule, bits: &FlowBits) -> bool {
    rule.bits.iter().all(|test| match test {
        FlowBit::IsSet {
            bits: wanted,
            any: true,
        } => wanted.iter().any(|&bit| bits.has(bit)),
        FlowBit::IsSet {
            bits: wanted,
            any: false,
        } => wanted.iter().all(|&bit| bits.has(bit)),
        FlowBit::IsNotSet(wanted) => !wanted.iter().any(|&bit| bits.has(bit)),
        _ => true,
    })
}
