//! Asks a rule about a packet: its headers, then its tests of buffers, one after the other, with the other places at which a content
//! is if a later test depends on where it was.

use crate::buffer::{Application, Buffer};
use crate::certificate::Certificate;
use crate::fingerprint::Fingerprint;
use crate::http::Http;
use crate::read::BASE64_BYTES;
use crate::rule::*;

/// What rules can ask of a packet besides its buffers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packet<'a> {
    /// Protocol behind the IP header.
    pub protocol: u8,
    /// Sender; addresses of IPv4 are mapped.
    pub source: u128,
    /// Receiver.
    pub destination: u128,
    /// Port of the sender; of protocols without ports 0.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Bytes of payload of this packet.
    pub payload_len: usize,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification of IPv4.
    pub ip_id: u16,
    /// Flags of the fragment: 1 more, 2 do not fragment, 4 reserved.
    pub fragment_bits: u8,
    /// Place of the fragment, in units of eight bytes.
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
    /// Kinds of TLS messages that begin in this packet, as bits of the places in [`crate::read::TLS_STATES`].
    pub tls: u8,
    /// Version of its TLS records, 0 for none.
    pub tls_version: u16,
    /// Bytes of its stream so far with those of this packet, and one for a SYN: to the server first.
    pub stream_bytes: [u32; 2],
    /// Whether it goes to the server of its flow.
    pub to_server: bool,
    /// Whether both sides of the flow have spoken.
    pub established: bool,
    /// Protocol of the flow that an inspector knows.
    pub application: Option<Application>,
}

/// Buffers of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// Payload; of a TCP stream with some bytes in front that came before.
    pub payload: &'a [u8],
    /// Place in it at which the payload of this packet begins.
    pub new_from: usize,
    /// Message of a protocol that is read in it.
    pub message: Message<'a>,
}

/// Message of a protocol above layer 4.
#[derive(Debug, Clone, Copy, Default)]
pub enum Message<'a> {
    /// There is none.
    #[default]
    None,
    /// One of HTTP.
    Http {
        /// Both directions of its connection.
        http: &'a Http,
        /// Whether it is a request.
        is_request: bool,
    },
    /// A query of DNS, by the name that it asks for.
    DnsQuery(&'a [u8]),
    /// First messages of an end of TLS.
    Tls(&'a Tls<'a>),
}

/// What is known of the first messages of an end of TLS.
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
    /// What it says, if it is the first one and can be read.
    pub says: Option<&'a Certificate>,
}

impl<'a> Parts<'a> {
    /// Returns a buffer, if there is one.
    #[inline]
    pub fn buffer(&self, buffer: Buffer) -> Option<&'a [u8]> {
        if buffer == Buffer::Payload {
            return Some(self.payload);
        }
        match self.message {
            Message::None => None,
            Message::Http { http, is_request } => http.buffer_of(is_request, buffer),
            Message::DnsQuery(name) => (buffer == Buffer::DnsQuery).then_some(name),
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

/// Bits of a flow that rules set: eight at most at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowBits([u16; 8]);

impl FlowBits {
    /// Says whether a bit is set.
    #[inline]
    pub fn has(&self, bit: u16) -> bool {
        self.0.contains(&(bit + 1))
    }

    /// Sets it; false if there is no room.
    pub fn set(&mut self, bit: u16) -> bool {
        self.has(bit)
            || match self.0.iter_mut().find(|it| **it == 0) {
                Some(free) => {
                    *free = bit + 1;
                    true
                }
                None => false,
            }
    }

    /// Sets it no longer.
    pub fn unset(&mut self, bit: u16) {
        self.0
            .iter_mut()
            .filter(|it| **it == bit + 1)
            .for_each(|it| *it = 0);
    }
}

/// Steps of a rule for one packet; a rule that needs more is taken for not fitting, and counted.
const MOST_STEPS: u32 = 4096;
/// Longest buffer in front of which a dot can be put.
const LONGEST_DOTTED: usize = 255;

/// Memory that asking rules needs, of one worker.
#[derive(Debug)]
pub struct Evaluator {
    variables: [i64; MOST_VARIABLES],
    /// What was decoded from Base64; lent to the tests that look into it.
    decoded: Option<Box<[u8; BASE64_BYTES]>>,
    decoded_len: usize,
    steps_left: u32,
    /// Rules that needed too many steps.
    pub given_up: u64,
}

impl Default for Evaluator {
    fn default() -> Self {
        Self {
            variables: [0; MOST_VARIABLES],
            decoded: Some(Box::new([0; BASE64_BYTES])),
            decoded_len: 0,
            steps_left: 0,
            given_up: 0,
        }
    }
}

impl Evaluator {
    /// Says whether a rule fits; rates and bits of the flow are the caller's business, but for bits that it asks for.
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
        self.decoded_len = 0;
        // A rule that says where in the payload something is means that of the packet.
        let mut parts = *parts;
        if rule.is_positional && parts.new_from > 0 {
            parts.payload = parts.payload.get(parts.new_from..).unwrap_or_default();
        }
        if rule.steps.len() > 1 && !has_contents(rule, &parts) {
            return false;
        }
        let fits = self.steps_fit(&rule.steps, &parts, (Buffer::Payload, false), 0);
        if self.steps_left == 0 {
            self.given_up += 1;
            return false;
        }
        fits
    }

    /// Whether the tests fit from here on, the last match having ended at `end` in the buffer `last`.
    fn steps_fit(
        &mut self,
        steps: &[Step],
        parts: &Parts<'_>,
        last: (Buffer, bool),
        end: usize,
    ) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return true;
        };
        let place = (step.buffer, step.dotted);
        let end = if place == last { end } else { 0 };
        if step.buffer == Buffer::Base64 {
            let Some(decoded) = self.decoded.take() else {
                return false;
            };
            let fits = self.step_fits(step, rest, parts, &decoded[..self.decoded_len], end);
            self.decoded = Some(decoded);
            return fits;
        }
        let Some(data) = parts.buffer(step.buffer) else {
            return false;
        };
        if step.dotted {
            if data.len() > LONGEST_DOTTED {
                return false;
            }
            let mut dotted = [0; LONGEST_DOTTED + 1];
            dotted[0] = b'.';
            dotted[1..][..data.len()].copy_from_slice(data);
            return self.step_fits(step, rest, parts, &dotted[..=data.len()], end);
        }
        self.step_fits(step, rest, parts, data, end)
    }

    fn step_fits(
        &mut self,
        step: &Step,
        rest: &[Step],
        parts: &Parts<'_>,
        data: &[u8],
        end: usize,
    ) -> bool {
        let place = (step.buffer, step.dotted);
        match &step.test {
            Test::Content(content) => {
                let Some((from, to)) = self.window(content, data.len(), end) else {
                    return content.not && self.next(rest, parts, place, end);
                };
                let mut at = from;
                loop {
                    if !self.has_steps() {
                        return false;
                    }
                    let found = find(content, data, at, to);
                    match found {
                        _ if content.not => {
                            return found.is_none() && self.next(rest, parts, place, end);
                        }
                        None => return false,
                        Some(found) => {
                            if self.next(rest, parts, place, found + content.bytes.len()) {
                                return true;
                            }
                            if !depends(rest, place) {
                                return false;
                            }
                            at = found + 1;
                        }
                    }
                }
            }
            Test::Regex {
                regex,
                not,
                relative,
            } => {
                // A relative one begins behind the last match: nothing in front is seen, and `^` fits there.
                let base = if *relative { end } else { 0 };
                let data = data.get(base..).unwrap_or_default();
                let mut at = 0;
                loop {
                    if !self.has_steps() {
                        return false;
                    }
                    match regex.find_at(data, at) {
                        found if *not => {
                            return found.is_none() && self.next(rest, parts, place, end);
                        }
                        None => return false,
                        Some((begin, behind)) => {
                            if self.next(rest, parts, place, base + behind) {
                                return true;
                            }
                            if !depends(rest, place) {
                                return false;
                            }
                            at = begin + 1;
                        }
                    }
                }
            }
            Test::Byte {
                field,
                how,
                not,
                value,
            } => {
                let Some((read, _)) = self.read(field, data, end) else {
                    return false;
                };
                // Fields of eight bytes have no sign.
                let (read, value) = (i128::from(read), i128::from(self.value(*value)));
                let fits = match how {
                    Comparison::Less => read < value,
                    Comparison::Greater => read > value,
                    Comparison::Equal => read == value,
                    Comparison::AtMost => read <= value,
                    Comparison::AtLeast => read >= value,
                    Comparison::And => read & value != 0,
                    Comparison::Xor => read ^ value != 0,
                };
                fits != *not && self.next(rest, parts, place, end)
            }
            Test::Jump {
                field,
                times,
                align,
                from,
                and,
            } => {
                let read = if field.bytes == 0 {
                    Some((0, end))
                } else {
                    self.read(field, data, end)
                };
                let Some((read, behind)) = read else {
                    return false;
                };
                let mut distance = i64::try_from(read)
                    .unwrap_or(i64::MAX)
                    .saturating_mul(*times);
                if *align && distance % 4 != 0 {
                    distance = distance.saturating_add(4 - distance % 4);
                }
                let base = match from {
                    JumpFrom::Here => behind as i64,
                    JumpFrom::Beginning => 0,
                    JumpFrom::End => data.len() as i64,
                };
                let to = base.saturating_add(distance).saturating_add(*and);
                (0..=data.len() as i64).contains(&to) && self.next(rest, parts, place, to as usize)
            }
            Test::Extract {
                field,
                times,
                align,
                into,
            } => {
                let Some((read, behind)) = self.read(field, data, end) else {
                    return false;
                };
                let number = (read as i64).saturating_mul(*times);
                let over = number.rem_euclid(*align);
                let number = if over == 0 {
                    number
                } else {
                    number.saturating_add(align - over)
                };
                self.variables[usize::from(*into) % MOST_VARIABLES] = number;
                self.next(rest, parts, place, behind)
            }
            Test::Math {
                field,
                operator,
                value,
                into,
            } => {
                let Some((read, behind)) = self.read(field, data, end) else {
                    return false;
                };
                let (read, value) = (read as i64, self.value(*value));
                let by = u32::try_from(value).unwrap_or(64);
                let result = match operator {
                    b'+' => Some(read.saturating_add(value)),
                    b'-' => Some(read.saturating_sub(value)),
                    b'*' => Some(read.saturating_mul(value)),
                    b'/' => read.checked_div(value),
                    b'<' => Some(read.checked_shl(by).unwrap_or(0)),
                    _ => Some(read.checked_shr(by).unwrap_or(0)),
                };
                let Some(result) = result else {
                    return false;
                };
                self.variables[usize::from(*into) % MOST_VARIABLES] = result;
                self.next(rest, parts, place, behind)
            }
            Test::DataAt {
                at,
                relative,
                to_end,
                not,
            } => {
                let base = if *relative { end as i64 } else { 0 };
                let at = base.saturating_add(self.value(*at));
                let has = (0..data.len() as i64 + i64::from(*to_end)).contains(&at);
                has != *not && self.next(rest, parts, place, end)
            }
            Test::Len(within) => {
                within.fits(data.len() as i64) && self.next(rest, parts, place, end)
            }
            Test::Base64 {
                bytes,
                offset,
                relative,
            } => {
                let from = offset + if *relative { end } else { 0 };
                let data = data.get(from..).unwrap_or_default();
                let Some(decoded) = &mut self.decoded else {
                    return false;
                };
                self.decoded_len = decode_base64(&data[..data.len().min(*bytes)], &mut decoded[..]);
                self.decoded_len > 0 && self.next(rest, parts, place, end)
            }
        }
    }

    #[inline]
    fn next(&mut self, rest: &[Step], parts: &Parts<'_>, last: (Buffer, bool), end: usize) -> bool {
        rest.is_empty() || (self.has_steps() && self.steps_fit(rest, parts, last, end))
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

    /// Where the content has to lie, from and to; nowhere if it has no room.
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

    /// The number of a field and the place behind it.
    fn read(&self, field: &Field, data: &[u8], end: usize) -> Option<(u64, usize)> {
        let base = if field.relative { end as i64 } else { 0 };
        let at = usize::try_from(base.saturating_add(self.value(field.offset))).ok()?;
        let bytes = data.get(at..)?.get(..usize::from(field.bytes));
        let (number, behind) = match field.form {
            Form::Big => (
                bytes?
                    .iter()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + usize::from(field.bytes),
            ),
            Form::Little => (
                bytes?
                    .iter()
                    .rev()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + usize::from(field.bytes),
            ),
            Form::Text(base) => {
                let rest = data.get(at..)?;
                let (number, used) =
                    digits(&rest[..rest.len().min(usize::from(field.bytes))], base)?;
                (number, at + used)
            }
        };
        if field.mask == 0 {
            return Some((number, behind));
        }
        Some(((number & field.mask) >> field.mask.trailing_zeros(), behind))
    }
}

/// Whether contents that lie at places of their own are where they have to be: most packets fail here, before any other place of a
/// content is tried.
fn has_contents(rule: &Rule, parts: &Parts<'_>) -> bool {
    let number = |number: Option<Number>, none: i64| match number {
        Some(Number::Is(number)) => Some(number),
        Some(Number::Read(_)) => None,
        None => Some(none),
    };
    rule.steps.iter().all(|step| {
        let Test::Content(content) = &step.test else {
            return true;
        };
        if content.not || content.is_relative() || step.dotted || step.buffer == Buffer::Base64 {
            return true;
        }
        let Some(data) = parts.buffer(step.buffer) else {
            return false;
        };
        let (Some(from), Some(depth)) =
            (number(content.offset, 0), number(content.depth, i64::MAX))
        else {
            return true;
        };
        let from = from.max(0);
        let to = from.saturating_add(depth).min(data.len() as i64);
        to - from >= content.bytes.len() as i64
            && find(content, data, from as usize, to as usize).is_some()
    })
}

/// Reads a number in digits, white space in front: the number and the bytes that it takes.
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

/// Decodes Base64 until something else comes; line ends are passed over (RFC 2045 section 6.8). Returns the bytes that came of it.
fn decode_base64(text: &[u8], into: &mut [u8]) -> usize {
    let (mut bits, mut n, mut len) = (0u32, 0, 0);
    for &byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\r' | b'\n' => continue,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        n += 6;
        if n >= 8 {
            n -= 8;
            let Some(place) = into.get_mut(len) else {
                break;
            };
            *place = (bits >> n) as u8;
            len += 1;
        }
    }
    len
}

/// Whether what follows depends on where the last match was: only then other places are tried.
fn depends(rest: &[Step], place: (Buffer, bool)) -> bool {
    for step in rest {
        if matches!(step.test, Test::Extract { .. } | Test::Math { .. }) {
            return true;
        }
        if (step.buffer, step.dotted) != place {
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

/// Place of the content in `data[at..to]`, from the beginning of `data`.
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
        HeaderTest::StreamBytes { ends, bytes } => {
            let [client, server] = packet.stream_bytes.map(|it| bytes.fits(it.into()));
            is_tcp
                && match ends {
                    StreamEnds::Client => client,
                    StreamEnds::Server => server,
                    StreamEnds::Both => client && server,
                    StreamEnds::Either => client || server,
                }
        }
    }
}

/// Whether there is an option of that type among those of an IPv4 header (RFC 791 section 3.1).
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
