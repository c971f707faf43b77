//! SIP over UDP and TCP (RFC 3261 chapters 7 and 18). A message is the head of a request or a response.
//!
//! Header fields have short names, too (section 7.3.3). Each line of a field is an instance of the field's buffer, the
//! text that rules search; continued lines are joined. Over TCP the length of a body is in `Content-Length`, and a
//! message without that header has no body.

use crate::buffer::{Buffer, BufferSet};
use crate::findings::Findings;
use crate::framer::{Framers, Length, MOST_MESSAGE};
use crate::record::Record;
use memchr::{memchr, memmem};

/// Header fields that fill a buffer, each with its name and its short name.
const FIELDS: [(&[u8], &[u8], Buffer); 6] = [
    (b"from", b"f", Buffer::SipFrom),
    (b"to", b"t", Buffer::SipTo),
    (b"via", b"v", Buffer::SipVia),
    (b"user-agent", b"", Buffer::SipUserAgent),
    (b"content-type", b"c", Buffer::SipContentType),
    (b"content-length", b"l", Buffer::SipContentLength),
];
/// The methods that identify a stream as SIP (RFC 3261, 3262, 3311, 3428, 3515, 3903, 6086 and 6665).
pub(crate) const METHODS: [&[u8]; 14] = [
    b"INVITE",
    b"ACK",
    b"BYE",
    b"CANCEL",
    b"OPTIONS",
    b"REGISTER",
    b"PRACK",
    b"UPDATE",
    b"MESSAGE",
    b"REFER",
    b"PUBLISH",
    b"INFO",
    b"SUBSCRIBE",
    b"NOTIFY",
];
/// Maximum length of a request's method in bytes; longer words belong to other protocols.
const MOST_METHOD: usize = 32;

/// The parser of both directions of a connection over TCP; over UDP each datagram is a message.
#[derive(Debug, Default)]
pub struct Sip {
    framers: Framers,
    record: Record,
}

/// The parts of the first line of a SIP message.
enum FirstLine<'a> {
    Request {
        method: &'a [u8],
        uri: &'a [u8],
        protocol: &'a [u8],
    },
    Response {
        protocol: &'a [u8],
        code: &'a [u8],
        reason: &'a [u8],
    },
}

impl Sip {
    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        self.framers.reset();
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
    }

    /// Parses the next bytes of a direction over TCP and reports each message.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let Self { framers, record } = self;
        let is_lost = framers.push(to_server, data, length, |it| {
            // Empty lines between messages keep connections open (RFC 5626 section 4.4.1).
            if !is_line_end(it.bytes[0]) {
                tell(record, it.bytes, found);
            }
        });
        found.faults(u64::from(is_lost));
    }

    /// Parses a datagram and reports the message in it.
    pub fn datagram(&mut self, data: &[u8], found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        let kept = &data[..data.len().min(MOST_MESSAGE)];
        let begin = kept.iter().position(|&byte| !is_line_end(byte));
        if let Some(begin) = begin {
            tell(&mut self.record, &kept[begin..], found);
        }
    }
}

/// Returns true if `bytes` begins a SIP message; none if more bytes are needed to decide.
fn is_sip(bytes: &[u8]) -> Option<bool> {
    let end = memchr(b'\n', bytes)?;
    Some(first_line(without_line_end(&bytes[..end])).is_some())
}

/// Returns the length of the message at the beginning of `bytes`, or of the empty lines if `bytes` begins with empty
/// lines.
fn length(bytes: &[u8]) -> Length {
    match bytes.iter().position(|&byte| !is_line_end(byte)) {
        None if bytes.is_empty() => return Length::Unknown,
        None => return Length::Bytes(bytes.len() as u64),
        Some(0) => {}
        Some(empty) => return Length::Bytes(empty as u64),
    }
    match is_sip(bytes) {
        None => return Length::Unknown,
        Some(false) => return Length::Fault,
        Some(true) => {}
    }
    let Some(head) = head_len(bytes) else {
        return Length::Unknown;
    };
    let mut lines = Lines(&bytes[..head]);
    let body = lines.find_map(|line| match field(line) {
        Some((Buffer::SipContentLength, value)) => Some(decimal(value)),
        _ => None,
    });
    match body.unwrap_or(Some(0)) {
        Some(body) => Length::Bytes(body.saturating_add(head as u64)),
        None => Length::Fault,
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn without_line_end(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the number of bytes up to and including the first empty line; none without an empty line.
fn head_len(bytes: &[u8]) -> Option<usize> {
    let ends =
        [&b"\n\r\n"[..], b"\n\n"].map(|end| memmem::find(bytes, end).map(|at| at + end.len()));
    ends.into_iter().flatten().min()
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The lines of a head, each without its line end.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = memchr(b'\n', self.0).unwrap_or(self.0.len());
        let line = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        Some(without_line_end(line))
    }
}

fn first_line(line: &[u8]) -> Option<FirstLine<'_>> {
    let first = memchr(b' ', line)?;
    let (word, rest) = (&line[..first], &line[first + 1..]);
    if word.starts_with(b"SIP/") {
        let end = memchr(b' ', rest).unwrap_or(rest.len());
        let code = &rest[..end];
        let is_code = code.len() == 3 && code.iter().all(u8::is_ascii_digit);
        return is_code.then_some(FirstLine::Response {
            protocol: word,
            code,
            reason: rest.get(end + 1..).unwrap_or_default(),
        });
    }
    let last = memchr::memrchr(b' ', rest)?;
    let (uri, protocol) = (&rest[..last], &rest[last + 1..]);
    let is_method = !word.is_empty()
        && word.len() <= MOST_METHOD
        && word.iter().all(|byte| byte.is_ascii_graphic());
    (is_method && protocol.starts_with(b"SIP/")).then_some(FirstLine::Request {
        method: word,
        uri,
        protocol,
    })
}

/// Returns the buffer of a header line and its value, if it has one.
fn field(line: &[u8]) -> Option<(Buffer, &[u8])> {
    let colon = memchr(b':', line)?;
    let name = line[..colon].trim_ascii();
    let is = |other: &[u8]| !other.is_empty() && name.eq_ignore_ascii_case(other);
    let (_, _, buffer) = FIELDS
        .iter()
        .find(|(long, short, _)| is(long) || is(short))?;
    Some((*buffer, line[colon + 1..].trim_ascii()))
}

/// Parses a message and reports it.
fn tell(record: &mut Record, message: &[u8], found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
    let head = head_len(message).unwrap_or(message.len());
    let mut lines = Lines(&message[..head]);
    let line = lines.next().unwrap_or_default();
    let Some(first) = first_line(line) else {
        return found.faults(1);
    };
    record.clear();
    match first {
        FirstLine::Request {
            method,
            uri,
            protocol,
        } => {
            record.put(Buffer::SipRequestLine, &[line]);
            record.put(Buffer::SipMethod, &[method]);
            record.put(Buffer::SipUri, &[uri]);
            record.put(Buffer::SipProtocol, &[protocol]);
        }
        FirstLine::Response {
            protocol,
            code,
            reason,
        } => {
            record.put(Buffer::SipResponseLine, &[line]);
            record.put(Buffer::SipProtocol, &[protocol]);
            record.put(Buffer::SipStatusCode, &[code]);
            record.put(Buffer::SipStatusMessage, &[reason]);
        }
    }
    let mut is_open = false;
    for line in lines {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            if is_open {
                record.extend(b" ");
                record.extend(line.trim_ascii());
            }
            continue;
        }
        let known = field(line);
        is_open = known.is_some();
        if let Some((buffer, value)) = known {
            record.put(buffer, &[value]);
        }
    }
    found.tell(record, record.has());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::Datagrams;
    use crate::protocols::testing::{texts, whole_as_cut};

    const INVITE: &[u8] = b"INVITE sip:bob@example.org SIP/2.0\r\n\
        Via: SIP/2.0/TCP one\r\nv: SIP/2.0/TCP two\r\nFrom: Alice\r\n <sip:a@example.org>\r\n\
        t: <sip:bob@example.org>\r\nUser-Agent: phone\r\nc: application/sdp\r\n\
        Content-Length: 5\r\n\r\nv=0\r\n";
    const OK: &[u8] = b"SIP/2.0 200 All right\r\nTo: x\r\n\r\n";

    #[test]
    fn sip_requests_and_responses_are_parsed_at_any_split() {
        let pieces = [
            (true, [b"\r\n\r\n", INVITE, b"\r\n", INVITE].concat()),
            (false, [OK, OK].concat()),
        ];
        let (found, counts) = whole_as_cut(Application::Sip, &pieces);
        assert_eq!((found.len(), counts.faults), (4, 0));
        for (buffer, text) in [
            (Buffer::SipMethod, &["INVITE"][..]),
            (Buffer::SipUri, &["sip:bob@example.org"]),
            (
                Buffer::SipRequestLine,
                &["INVITE sip:bob@example.org SIP/2.0"],
            ),
            (Buffer::SipProtocol, &["SIP/2.0"]),
            (Buffer::SipVia, &["SIP/2.0/TCP one", "SIP/2.0/TCP two"]),
            (Buffer::SipFrom, &["Alice <sip:a@example.org>"]),
            (Buffer::SipTo, &["<sip:bob@example.org>"]),
            (Buffer::SipUserAgent, &["phone"]),
            (Buffer::SipContentType, &["application/sdp"]),
            (Buffer::SipContentLength, &["5"]),
            (Buffer::SipStatusCode, &[]),
        ] {
            assert_eq!(texts(&found[1], buffer), text, "{buffer:?}");
        }
        for (buffer, text) in [
            (Buffer::SipResponseLine, &["SIP/2.0 200 All right"][..]),
            (Buffer::SipStatusCode, &["200"]),
            (Buffer::SipStatusMessage, &["All right"]),
            (Buffer::SipProtocol, &["SIP/2.0"]),
            (Buffer::SipMethod, &[]),
        ] {
            assert_eq!(texts(&found[3], buffer), text, "{buffer:?}");
        }
    }

    #[test]
    fn each_sip_datagram_is_parsed_as_one_message() {
        let mut parsers = Datagrams::default();
        let mut methods = Vec::new();
        let mut read = |datagram: &[u8]| {
            parsers.read(Application::Sip, true, datagram, |record, _| {
                methods.extend(record.buffer(Buffer::SipMethod).map(<[u8]>::to_vec));
            })
        };
        assert_eq!(read(INVITE).told, 1);
        // The next datagrams are a head without an end, and empty lines that keep a connection open.
        assert_eq!(read(b"OPTIONS sip:b SIP/2.0\r\nTo: x").told, 1);
        assert_eq!(read(b"\r\n\r\n"), Default::default());
        assert_eq!(read(b"no such thing\r\n").faults, 1);
        assert_eq!(read(&INVITE.repeat(100)).told, 1);
        assert_eq!(methods, [&b"INVITE"[..], b"OPTIONS", b"INVITE"]);
    }

    #[test]
    fn an_invalid_content_length_is_a_fault() {
        for length in ["-1", "99999999999999999999", "x", ""] {
            let head = format!("BYE sip:b SIP/2.0\r\nContent-Length: {length}\r\n\r\n");
            let (found, counts) = whole_as_cut(Application::Sip, &[(true, head.into_bytes())]);
            assert_eq!((found.len(), counts.faults), (0, 1));
        }
    }
}
