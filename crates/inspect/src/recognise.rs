//! Recognises the protocol of a stream from the first bytes of its endpoints. Protocols are tested in a fixed order. A
//! match with a protocol is valid only after all protocols before it are excluded, so the result does not depend on how
//! the bytes are split.

use crate::buffer::Application;
use crate::http::token::is_token;
use crate::{dcerpc, http2, ike, mqtt, ntp, sip};

/// Maximum number of bytes at the start of each direction that are examined. If they do not identify the protocol, the
/// direction counts as unrecognised.
pub const MOST_BYTES: usize = 256;

/// The result of recognising a stream's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The protocol of the stream is recognised.
    Yes(Application),
    /// The first bytes of the stream identify no protocol.
    No,
    /// More bytes of either endpoint are needed.
    More,
}

/// The result of testing the first bytes of an endpoint for one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guess {
    Yes,
    No,
    More,
}

/// A test of the first bytes of an endpoint; the first argument is true if they are sent to the server.
type Test = fn(bool, &[u8]) -> Guess;

/// The protocols that are recognised by first bytes, each with its test, in the order of testing: the most reliable
/// tests come first.
const PROTOCOLS: [(Application, Test); 10] = [
    (Application::Tls, tls),
    (Application::Ssh, ssh),
    (Application::Smb, smb),
    (Application::Smtp, smtp),
    (Application::Ftp, ftp),
    (Application::Http2, http2),
    (Application::DceRpc, dcerpc),
    (Application::Mqtt, mqtt),
    (Application::Sip, sip),
    (Application::Http, http),
];

/// The recognition of one stream's protocol from the first bytes of both endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recognition {
    answer: Option<Answer>,
    /// By endpoint, the client first: true if the first bytes of the endpoint identify no protocol.
    is_silent: [bool; 2],
    /// The protocol of the stream's ports, which is the result once the bytes of one endpoint identify no protocol;
    /// none if no protocol belongs to these ports.
    by_port: Option<Application>,
    is_at_limit: bool,
}

impl Recognition {
    /// Begins the recognition for a stream. `by_port` is the protocol of the stream's ports, if any.
    pub fn new(by_port: Option<Application>) -> Self {
        Self {
            by_port,
            ..Self::default()
        }
    }

    /// Restarts the recognition of both endpoints, for another stream between the same ports.
    pub fn restart(&mut self) {
        *self = Self::new(self.by_port);
    }

    /// Examines the first bytes of a direction: `first` contains all received bytes from the first one on. Bytes after
    /// [`MOST_BYTES`] are not needed.
    ///
    /// A result other than [`Answer::More`] is final; later bytes of both endpoints do not change it.
    pub fn push(&mut self, to_server: bool, first: &[u8]) -> Answer {
        if let Some(answer) = self.answer {
            return answer;
        }
        let end = usize::from(!to_server);
        if self.is_silent[end] {
            return Answer::More;
        }
        match of_end(to_server, first) {
            Answer::Yes(application) => self.settle(Answer::Yes(application)),
            Answer::More if first.len() < MOST_BYTES => Answer::More,
            unknown => {
                self.is_silent[end] = true;
                self.is_at_limit |= unknown == Answer::More;
                match (self.by_port, self.is_silent) {
                    (Some(application), _) => self.settle(Answer::Yes(application)),
                    (None, [true, true]) => self.settle(Answer::No),
                    (None, _) => Answer::More,
                }
            }
        }
    }

    fn settle(&mut self, answer: Answer) -> Answer {
        self.answer = Some(answer);
        answer
    }

    /// Returns true if the first bytes of the stream identify no protocol.
    pub fn has_failed(&self) -> bool {
        self.answer == Some(Answer::No)
    }

    /// Returns true if the first [`MOST_BYTES`] of a direction were not enough to identify its protocol.
    pub fn is_at_limit(&self) -> bool {
        self.is_at_limit
    }

    /// Returns true if this endpoint may still identify the protocol, so that its first bytes have to be stored.
    pub fn needs(&self, to_server: bool) -> bool {
        self.answer.is_none() && !self.is_silent[usize::from(!to_server)]
    }
}

/// Returns the result for the first bytes of one endpoint.
fn of_end(to_server: bool, first: &[u8]) -> Answer {
    let first = &first[..first.len().min(MOST_BYTES)];
    for (application, test) in PROTOCOLS {
        match test(to_server, first) {
            Guess::Yes => return Answer::Yes(application),
            Guess::More => return Answer::More,
            Guess::No => {}
        }
    }
    Answer::No
}

/// Tests whether the bytes begin with `word`, in any case of letters.
fn begins(bytes: &[u8], word: &[u8]) -> Guess {
    let len = bytes.len().min(word.len());
    match bytes[..len].eq_ignore_ascii_case(&word[..len]) {
        true if len == word.len() => Guess::Yes,
        true => Guess::More,
        false => Guess::No,
    }
}

/// Tests whether the bytes begin with one of the given words.
fn begins_any(bytes: &[u8], words: &[&[u8]]) -> Guess {
    let mut all = Guess::No;
    for word in words {
        match begins(bytes, word) {
            Guess::Yes => return Guess::Yes,
            Guess::More => all = Guess::More,
            Guess::No => {}
        }
    }
    all
}

/// Tests for a TLS handshake record (RFC 8446 section 5.1), or a hello in the form of SSLv2 (RFC 5246 appendix E.2).
fn tls(to_server: bool, bytes: &[u8]) -> Guess {
    match *bytes {
        [22, 3, _, ..] => Guess::Yes,
        [] | [22] | [22, 3] => Guess::More,
        // A hello in the form of SSLv2 has a length with its highest bit set, type 1, and a version.
        [high, _, 1, 3, ..] | [high, _, 1, 0, 2, ..] if to_server && high & 0x80 != 0 => Guess::Yes,
        [high] | [high, _] | [high, _, 1] | [high, _, 1, 0] if to_server && high & 0x80 != 0 => {
            Guess::More
        }
        _ => Guess::No,
    }
}

/// Tests for the version line of SSH (RFC 4253 section 4.2).
fn ssh(_: bool, bytes: &[u8]) -> Guess {
    match bytes.starts_with(&b"SSH-"[..bytes.len().min(4)]) {
        true if bytes.len() >= 4 => Guess::Yes,
        true => Guess::More,
        false => Guess::No,
    }
}

/// Tests for a NetBIOS session message or direct TCP message that contains the signature of SMB.
fn smb(_: bool, bytes: &[u8]) -> Guess {
    match *bytes {
        [0, _, _, _, 0xfd..=0xff, b'S', b'M', b'B', ..] => Guess::Yes,
        [] | [0] | [0, _] | [0, _, _] | [0, _, _, _] => Guess::More,
        [0, _, _, _, 0xfd..=0xff, ref mark @ ..] if mark.len() < 3 => begins(mark, b"SMB"),
        _ => Guess::No,
    }
}

/// Tests for the greeting of an SMTP client (RFC 5321 section 4.1.1.1).
fn smtp(to_server: bool, bytes: &[u8]) -> Guess {
    match to_server {
        true => begins_any(bytes, &[b"EHLO", b"HELO"]),
        false => Guess::No,
    }
}

/// Tests for the first commands of FTP clients, and for common greetings of FTP servers.
fn ftp(to_server: bool, bytes: &[u8]) -> Guess {
    const COMMANDS: [&[u8]; 5] = [b"USER ", b"PASS ", b"PORT ", b"FEAT", b"AUTH TLS"];
    match to_server {
        true => begins_any(bytes, &COMMANDS),
        false => begins(bytes, b"220 ("),
    }
}

/// Tests for the preface of a client with prior knowledge of HTTP/2 (RFC 9113 section 3.4).
fn http2(to_server: bool, bytes: &[u8]) -> Guess {
    match to_server {
        true => begins(bytes, &http2::PREFACE[..16]),
        false => Guess::No,
    }
}

/// Tests for a message of DCE/RPC over TCP, by its header.
fn dcerpc(to_server: bool, bytes: &[u8]) -> Guess {
    if !to_server || !dcerpc::may_begin(bytes) {
        return Guess::No;
    }
    match bytes.len() >= dcerpc::HEADER {
        true => Guess::Yes,
        false => Guess::More,
    }
}

/// Tests for the CONNECT packet of an MQTT client, by the protocol name in it.
fn mqtt(to_server: bool, bytes: &[u8]) -> Guess {
    let [0x10, rest @ ..] = bytes else {
        return match to_server && bytes.is_empty() {
            true => Guess::More,
            false => Guess::No,
        };
    };
    match mqtt::variable(rest) {
        _ if !to_server => Guess::No,
        Some((_, taken)) => begins_any(&rest[taken..], &[b"\0\x04MQTT", b"\0\x06MQIsdp"]),
        None if rest.len() < mqtt::MOST_LENGTH => Guess::More,
        None => Guess::No,
    }
}

/// Tests for a SIP request, by its target, or a SIP response; empty lines may precede either.
fn sip(_: bool, bytes: &[u8]) -> Guess {
    const TARGETS: [&[u8]; 3] = [b"sip:", b"sips:", b"tel:"];
    let Some(begin) = bytes.iter().position(|byte| !b"\r\n".contains(byte)) else {
        return Guess::More;
    };
    let line = &bytes[begin..];
    if let known @ (Guess::Yes | Guess::More) = begins(line, b"SIP/") {
        return known;
    }
    match memchr::memchr(b' ', line) {
        Some(end) if sip::METHODS.contains(&&line[..end]) => begins_any(&line[end + 1..], &TARGETS),
        None if sip::METHODS.iter().any(|method| method.starts_with(line)) => Guess::More,
        _ => Guess::No,
    }
}

/// Returns the protocol of a datagram between `ports`, recognised by its bytes: NTP and IKE only at their own ports,
/// SIP at any port. Returns none for other protocols.
pub fn of_datagram(to_server: bool, ports: [u16; 2], bytes: &[u8]) -> Option<Application> {
    let is_between = |port| ports.contains(&port);
    if is_between(ntp::PORT) && ntp::is_message(bytes) {
        return Some(Application::Ntp);
    }
    let is_of_ike = is_between(ike::PORT) || is_between(ike::PORT_BEHIND_NAT);
    if is_of_ike && ike::is_message(ports, bytes) {
        return Some(Application::Ike);
    }
    // The first byte of most other datagrams excludes SIP.
    let may_be_sip = |first: &u8| first.is_ascii_alphabetic() || b"\r\n".contains(first);
    let first = &bytes[..bytes.len().min(MOST_BYTES)];
    let is_sip = bytes.first().is_some_and(may_be_sip) && sip(to_server, first) == Guess::Yes;
    is_sip.then_some(Application::Sip)
}

/// Tests for a request line or a response line, as lenient servers and clients accept it: after empty lines, with any
/// word as method, in any case of letters.
fn http(_: bool, bytes: &[u8]) -> Guess {
    let begin = bytes.iter().position(|byte| !b"\r\n".contains(byte));
    let Some(line) = begin.map(|begin| &bytes[begin..]) else {
        return Guess::More;
    };
    match begins(line, b"HTTP/") {
        Guess::No => {}
        known => return known,
    }
    let Some(end) = line.iter().position(|&byte| !is_token(byte)) else {
        return Guess::More;
    };
    if end == 0 || !b" \t".contains(&line[end]) {
        return Guess::No;
    }
    if end >= 3 && line[..end].iter().all(u8::is_ascii_uppercase) {
        return Guess::Yes;
    }
    // Ordinary text also begins with words, so the target or the version decides.
    let (rest, is_whole) = match line[end..].iter().position(|&byte| byte == b'\n') {
        Some(line_end) => (&line[end..end + line_end], true),
        None => (&line[end..], false),
    };
    let target = rest.trim_ascii_start();
    let has = |word: &[u8]| memchr::memmem::find(target, word).is_some();
    if matches!(target.first(), Some(b'/' | b'*')) || has(b"://") || has(b" HTTP/") {
        return Guess::Yes;
    }
    match is_whole {
        true => Guess::No,
        false => Guess::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns examples: direction (true for to the server), first bytes, and the expected result.
    fn examples() -> Vec<(bool, Vec<u8>, Answer)> {
        let yes = Answer::Yes;
        let long_lines = b"\r\n".repeat(MOST_BYTES / 2);
        let text: [(bool, &[u8], Answer); 52] = [
            (true, b"GET / HTTP/1.1\r\n", yes(Application::Http)),
            (true, b"GET /\r\n", yes(Application::Http)),
            (true, b"\r\n\r\nGET / HTTP/1.1\r\n", yes(Application::Http)),
            (true, b"\n\nget / HTTP/1.1\r\n", yes(Application::Http)),
            (true, b"get /\n", yes(Application::Http)),
            (true, b"VERSION-CONTROL /x HTTP/1.1", yes(Application::Http)),
            (true, b"M-SEARCH * HTTP/1.1", yes(Application::Http)),
            (true, b"X\t http://a/ HTTP/1.1", yes(Application::Http)),
            (true, b"x! y HTTP/1.1\r\n", yes(Application::Http)),
            (true, b"ANYTHING goes", yes(Application::Http)),
            (true, b"gets nothing\r\n / HTTP/1.1", Answer::No),
            (true, b"Hello, / HTTP/1.1", Answer::No),
            (true, b" GET / HTTP/1.1", Answer::No),
            (false, b"HTTP/1.1 200 OK\r\n", yes(Application::Http)),
            (false, b"\r\nhttp/1.0 200", yes(Application::Http)),
            (false, b"HTTP 200", yes(Application::Http)),
            (true, b"\x16\x03\x01\x02\x00\x01", yes(Application::Tls)),
            (false, b"\x16\x03\x03\x00\x7a\x02", yes(Application::Tls)),
            (true, b"\x16\x02\x01\x02\x00\x01", Answer::No),
            (true, b"\x80\x2e\x01\x03\x01\x00", yes(Application::Tls)),
            (true, b"\x80\x2e\x01\x00\x02\x00", yes(Application::Tls)),
            (true, b"\x80\x2e\x01\x00\x03\x00", Answer::No),
            (true, b"\x80\x2e\x02\x00\x02\x00", Answer::No),
            (false, b"\x80\x2e\x01\x03\x01\x00", Answer::No),
            (true, b"SSH-2.0-x\r\n", yes(Application::Ssh)),
            (false, b"SSH-1.99-x\r\n", yes(Application::Ssh)),
            (true, b"ssh-2.0-x\r\n", Answer::No),
            (true, b"\0\0\0\x2f\xffSMB\x72", yes(Application::Smb)),
            (false, b"\0\0\0\x2f\xfeSMB@", yes(Application::Smb)),
            (true, b"\0\0\0\x2f\xfdSMB@", yes(Application::Smb)),
            (true, b"\0\0\0\x2f\xfeSMX@", Answer::No),
            (true, b"EHLO a\r\n", yes(Application::Smtp)),
            (true, b"helo a\r\n", yes(Application::Smtp)),
            (false, b"EHLO a\r\n", yes(Application::Http)),
            (true, b"USER a\r\n", yes(Application::Ftp)),
            (true, b"feat\r\n", yes(Application::Ftp)),
            (true, b"AUTH TLS\r\n", yes(Application::Ftp)),
            (false, b"220 (vsFTPd 3.0.3)\r\n", yes(Application::Ftp)),
            (false, b"220 mail.example ESMTP\r\n", Answer::No),
            (true, b"\x05\x01\0", Answer::No),
            (true, b"PRI * HTTP/2.0\r\n\r\n", yes(Application::Http2)),
            (true, b"\x10\x10\0\x04MQTT\x04", yes(Application::Mqtt)),
            (
                true,
                b"\x10\x80\x01\0\x06MQIsdp\x03",
                yes(Application::Mqtt),
            ),
            (true, b"\x10\x10\0\x04MQTX\x04", Answer::No),
            (true, b"\x10\xff\xff\xff\xff\0\x04MQTT", Answer::No),
            (
                true,
                b"\x05\0\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0",
                yes(Application::DceRpc),
            ),
            (true, b"\x05\0\x0b\x03\x10\0\0\0\x0f\0\0\0", Answer::No),
            (
                true,
                b"\r\nOPTIONS sip:a@b SIP/2.0\r\n",
                yes(Application::Sip),
            ),
            (true, b"INVITE tel:1 SIP/2.0\r\n", yes(Application::Sip)),
            (false, b"SIP/2.0 200 OK\r\n", yes(Application::Sip)),
            (true, b"OPTIONS * HTTP/1.1\r\n", yes(Application::Http)),
            (true, &long_lines, Answer::More),
        ];
        let own = text.map(|(to_server, bytes, answer)| (to_server, bytes.to_vec(), answer));
        own.into()
    }

    #[test]
    fn a_recognised_protocol_stays_the_same_when_more_bytes_arrive() {
        for (to_server, bytes, answer) in examples() {
            let mut is_decided = false;
            for len in 0..=bytes.len() {
                let now = of_end(to_server, &bytes[..len]);
                let text = String::from_utf8_lossy(&bytes[..len]);
                assert!(
                    now == answer || (now == Answer::More && !is_decided),
                    "{text:?}: {now:?}"
                );
                is_decided |= now != Answer::More;
            }
            assert_eq!(of_end(to_server, &bytes), answer);
        }
    }

    #[test]
    fn sip_datagrams_are_recognised() {
        let sip = b"REGISTER sip:a SIP/2.0\r\n";
        let of = |to_server, bytes: &[u8]| of_datagram(to_server, [5060, 123], bytes);
        assert_eq!(of(true, sip), Some(Application::Sip));
        assert_eq!(of(false, b"SIP/2.0 100 Trying"), Some(Application::Sip));
        assert_eq!(of(true, b"\r\n\r\n"), None);
        assert_eq!(of(true, b""), None);
    }

    #[test]
    fn ntp_and_ike_datagrams_are_recognised_at_their_ports() {
        let ntp = [0x1b; 48];
        assert_eq!(of_datagram(true, [9, 123], &ntp), Some(Application::Ntp));
        assert_eq!(of_datagram(false, [123, 9], &ntp), Some(Application::Ntp));
        assert_eq!(of_datagram(true, [9, 124], &ntp), None);
        let mut ike = [0; 32];
        (ike[21], ike[31]) = (0x10, 28);
        assert_eq!(of_datagram(true, [9, 4500], &ike), Some(Application::Ike));
        assert_eq!(
            of_datagram(true, [9, 500], &ike[4..]),
            Some(Application::Ike)
        );
        assert_eq!(of_datagram(true, [9, 500], &ike), None);
        assert_eq!(of_datagram(true, [9, 501], &ike[4..]), None);
    }

    #[test]
    fn bytes_of_one_direction_decide_the_protocol_of_both_directions() {
        let mut recognition = Recognition::new(None);
        assert_eq!(recognition.push(false, b"220 mail\r\n"), Answer::More);
        assert!(recognition.needs(true) && !recognition.needs(false));
        assert_eq!(recognition.push(true, b"EH"), Answer::More);
        assert_eq!(
            recognition.push(true, b"EHLO x"),
            Answer::Yes(Application::Smtp)
        );
        assert_eq!(
            recognition.push(false, b"HTTP/1.1 "),
            Answer::Yes(Application::Smtp)
        );
        let mut recognition = Recognition::new(None);
        assert_eq!(recognition.push(true, b"\x05\x01\0"), Answer::More);
        assert_eq!(recognition.push(false, b"\x05\0"), Answer::No);
        assert!(!recognition.needs(true) && !recognition.is_at_limit());
    }

    #[test]
    fn ports_decide_the_protocol_when_bytes_are_ambiguous() {
        let mut recognition = Recognition::new(Some(Application::Dns));
        assert_eq!(recognition.push(true, b"\0\x1d"), Answer::More);
        assert_eq!(
            recognition.push(true, b"\0\x1d\x12\x34\x01"),
            Answer::Yes(Application::Dns)
        );
        let mut recognition = Recognition::new(Some(Application::Dns));
        assert_eq!(
            recognition.push(true, b"GET /"),
            Answer::Yes(Application::Http)
        );
    }

    #[test]
    fn recognition_stops_at_the_byte_limit() {
        let mut recognition = Recognition::new(None);
        let lines = [b'\n'; MOST_BYTES];
        assert_eq!(recognition.push(true, &lines[1..]), Answer::More);
        assert!(!recognition.is_at_limit());
        assert_eq!(recognition.push(true, &lines), Answer::More);
        assert!(recognition.is_at_limit() && !recognition.needs(true));
        assert_eq!(recognition.push(false, b"\0nothing"), Answer::No);
    }
}
