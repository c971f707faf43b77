//! The buffers of a packet: its payload, its headers, and the message that the payload contains.

use crate::buffer::Buffer;
use crate::certificate::Certificate;
use crate::fingerprint::Fingerprint;
use crate::flow_bits::FlowBits;
use crate::http::Http;
use crate::record::Record;

/// The buffers of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// Payload; for a TCP stream, preceded by some earlier bytes.
    pub payload: &'a [u8],
    /// Offset in `payload` at which the payload of this packet begins.
    pub new_from: usize,
    /// Message of a protocol that the payload contains.
    pub message: Message<'a>,
    /// Bytes of the body of `message` that arrived since rules were last evaluated.
    pub body: BodyPart,
    /// Offset in a record, or in header lines, at which the search for instances of a buffer begins; 0 for callers that
    /// evaluate rules.
    pub from: usize,
    /// Result of `base64_decode` of the rule being evaluated.
    pub decoded: &'a [u8],
    /// IP header, and the header of layer 4.
    pub headers: [&'a [u8]; 2],
}

/// The bytes of a body that arrived since rules were last evaluated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BodyPart {
    /// Offset of the new bytes in the body; rules were evaluated on the bytes before it.
    pub new_from: usize,
    /// True if the body is complete. Only then are rules evaluated that test for the absence of a content.
    pub is_whole: bool,
    /// True if rules are evaluated only on the bytes before the new bytes, to find out whether a rule matched before
    /// the new bytes arrived.
    pub is_before: bool,
}

/// Number of body bytes before the new bytes that are searched again, for rules that need bytes before and after the
/// beginning of the new bytes. When a body ends, all of it is searched again.
const LOOKED_BACK: usize = 16 * 1024;

impl BodyPart {
    /// Returns the offset in the body before which no byte is searched again.
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
    /// The packet has no parsed message.
    #[default]
    None,
    /// An HTTP message.
    Http {
        /// The parser, with both directions of the connection.
        http: &'a Http,
        /// True if the message is a request.
        is_request: bool,
    },
    /// A message of DNS.
    Dns {
        /// Name in the question of the DNS message.
        name: &'a [u8],
        /// True if the message is a response.
        is_response: bool,
    },
    /// The first messages of one TLS endpoint.
    Tls(&'a Tls<'a>),
    /// A message of a protocol whose messages are records.
    Record(&'a Record),
}

/// The parsed first messages of one TLS endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tls<'a> {
    /// Server name in the ClientHello.
    pub server_name: Option<&'a [u8]>,
    /// Fingerprint of the ClientHello.
    pub client: Option<&'a Fingerprint>,
    /// Fingerprint of the ServerHello.
    pub server: Option<&'a Fingerprint>,
    /// A certificate of the server, as sent.
    pub certificate: Option<&'a [u8]>,
    /// Parsed fields of the certificate, if it is the first one and valid.
    pub says: Option<&'a Certificate>,
}

impl Message<'_> {
    /// Returns the halves of rules with `=>` that have matched in the transaction of the message; none for protocols
    /// without transactions.
    pub(crate) fn halves(&self) -> Option<FlowBits> {
        match self {
            Self::Http { http, is_request } => Some(http.halves(*is_request)),
            _ => None,
        }
    }
}

impl<'a> Parts<'a> {
    /// Returns the parts in their state before the new bytes arrived.
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

    /// Returns these parts with `from` set to the position after the first instance of `buffer`; none if a message of
    /// this protocol contains each buffer only once.
    #[inline]
    pub(super) fn behind(self, buffer: Buffer) -> Option<Self> {
        let from = match (self.message, buffer) {
            (_, Buffer::HttpRequestHeader | Buffer::HttpResponseHeader) => {
                self.header_line(buffer)?.1
            }
            (Message::Record(record), _) => record.buffer_from(buffer, self.from)?.1,
            _ => return None,
        };
        Some(Self { from, ..self })
    }

    /// Returns the first header line of a request or a response, without its line end, and the offset after the line.
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
