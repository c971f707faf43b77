//! The first messages of one TLS endpoint, reassembled from the records that contain them (RFC 8446 section 5.1).

use crate::tls::TlsFault;

/// Maximum number of message bytes that are stored.
pub const FLIGHT_BYTES: usize = 16 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const SERVER_HELLO_DONE: u8 = 14;
/// Length in bytes of a record header; the next constant is that of a message header.
const RECORD_HEAD: usize = 5;
const MESSAGE_HEAD: usize = 4;

/// The received first messages of one TLS endpoint.
#[derive(Debug)]
pub struct Flight {
    bytes: Box<[u8; FLIGHT_BYTES]>,
    len: usize,
    /// Offset after the header of the last message that was read. `at` is the offset of the next message.
    from: usize,
    at: usize,
    /// Received bytes of a record header, and their number. `in_record` is the number of missing bytes of the record.
    head: [u8; RECORD_HEAD],
    head_len: usize,
    in_record: usize,
    /// True if no more bytes of the endpoint are accepted.
    is_closed: bool,
    /// True if the last relevant message was read, or cannot arrive any more.
    is_over: bool,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; FLIGHT_BYTES]),
            len: 0,
            from: 0,
            at: 0,
            head: [0; RECORD_HEAD],
            head_len: 0,
            in_record: 0,
            is_closed: false,
            is_over: false,
        }
    }
}

/// The handshake messages that rules need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ClientHello of a client.
    ClientHello,
    /// ServerHello of a server.
    ServerHello,
    /// Certificates of a server.
    Certificates,
}

/// Certificates, each with a length prefix (RFC 5246 section 7.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificates<'a>(&'a [u8]);

impl<'a> Iterator for Certificates<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<3>()?;
        let (certificate, rest) = rest.split_at_checked(number(*len))?;
        self.0 = rest;
        Some(certificate)
    }
}

impl Flight {
    /// Clears the messages for another connection.
    pub fn begin(&mut self) {
        (self.len, self.from, self.at) = (0, 0, 0);
        (self.head_len, self.in_record) = (0, 0);
        (self.is_closed, self.is_over) = (false, false);
    }

    /// Accepts the next bytes of the connection, in order.
    ///
    /// # Errors
    /// Returns a fault if a record is invalid, or if there are more bytes than fit. Messages before the fault can be
    /// read, later ones cannot.
    pub fn push(&mut self, mut data: &[u8]) -> Result<(), TlsFault> {
        while !data.is_empty() && !self.is_closed {
            if self.in_record > 0 {
                let (part, rest) = data.split_at(data.len().min(self.in_record));
                let taken = part.len().min(FLIGHT_BYTES - self.len);
                self.bytes[self.len..][..taken].copy_from_slice(&part[..taken]);
                self.len += taken;
                if taken < part.len() {
                    self.is_closed = true;
                    return Err(TlsFault::Length);
                }
                self.in_record -= part.len();
                data = rest;
                continue;
            }
            let (part, rest) = data.split_at(data.len().min(RECORD_HEAD - self.head_len));
            self.head[self.head_len..][..part.len()].copy_from_slice(part);
            self.head_len += part.len();
            data = rest;
            if self.head_len < RECORD_HEAD {
                break;
            }
            self.head_len = 0;
            let [kind, major, _, high, low] = self.head;
            // Bytes after a record of another type are encrypted, or are not part of a handshake.
            self.is_closed = kind != HANDSHAKE;
            self.in_record = usize::from(u16::from_be_bytes([high, low]));
            if kind == HANDSHAKE && (major != 3 || self.in_record == 0) {
                self.is_closed = true;
                return Err(TlsFault::OtherMessage);
            }
        }
        Ok(())
    }

    /// Advances to the next complete relevant message and returns its kind; none if no such message is complete yet.
    pub fn go_on(&mut self) -> Option<Kind> {
        while !self.is_over {
            let rest = &self.bytes[self.at..self.len];
            let ([kind, len @ ..], body) = rest.split_first_chunk::<MESSAGE_HEAD>()?;
            let (kind, len) = (*kind, number(*len));
            if body.len() < len {
                // A message that does not fit cannot become complete.
                self.is_over |= self.at + MESSAGE_HEAD + len > FLIGHT_BYTES;
                return None;
            }
            self.from = self.at + MESSAGE_HEAD;
            self.at = self.from + len;
            self.is_over |= matches!(kind, CLIENT_HELLO | CERTIFICATE | SERVER_HELLO_DONE);
            return Some(match kind {
                CLIENT_HELLO => Kind::ClientHello,
                SERVER_HELLO => Kind::ServerHello,
                CERTIFICATE => Kind::Certificates,
                _ => continue,
            });
        }
        None
    }

    /// Returns the current message, without its header.
    pub fn message(&self) -> &[u8] {
        &self.bytes[self.from..self.at]
    }

    /// Returns the certificates in the current message, if it has any.
    pub fn certificates(&self) -> Certificates<'_> {
        Certificates(self.message().get(3..).unwrap_or_default())
    }

    /// Returns the first ServerHello that was read, without its message header.
    pub fn server_hello(&self) -> Option<&[u8]> {
        let ([kind, len @ ..], body) = self.bytes[..self.at].split_first_chunk::<MESSAGE_HEAD>()?;
        body.get(..number(*len)).filter(|_| *kind == SERVER_HELLO)
    }

    /// Returns true if no relevant message can follow.
    pub fn is_over(&self) -> bool {
        self.is_closed || self.is_over
    }
}

fn number(bytes: [u8; 3]) -> usize {
    bytes
        .iter()
        .fold(0, |it, byte| it << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
    }

    fn records(bytes: &[u8], size: usize) -> Vec<u8> {
        let record =
            |part: &[u8]| [&[22, 3, 3][..], &(part.len() as u16).to_be_bytes(), part].concat();
        bytes.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn tls_handshake_messages_are_reassembled_from_any_records_and_segments() {
        let list = [&[0, 0, 9][..], &[0, 0, 2, 8, 8], &[0, 0, 1, 9]].concat();
        let messages = [
            message(2, b"hello"),
            message(11, &list),
            message(12, b"keys"),
            message(14, b""),
        ]
        .concat();
        for record in [1, 3, 7, 1000] {
            let bytes = records(&messages, record);
            for segment in [1, 2, 5, 1000] {
                let mut flight = Flight::default();
                flight.begin();
                let mut found = Vec::new();
                for part in bytes.chunks(segment) {
                    flight.push(part).unwrap();
                    while let Some(kind) = flight.go_on() {
                        match kind {
                            Kind::ServerHello => found.push(flight.message().to_vec()),
                            Kind::Certificates => {
                                found.extend(flight.certificates().map(<[u8]>::to_vec));
                            }
                            Kind::ClientHello => panic!("there is none"),
                        }
                    }
                }
                let want = [b"hello".to_vec(), vec![8, 8], vec![9]];
                assert_eq!(found, want, "{record} {segment}");
                assert!(flight.is_over());
            }
        }
    }

    #[test]
    fn encrypted_or_oversized_messages_end_the_parsing_of_tls_handshakes() {
        let mut flight = Flight::default();
        let hello = records(&message(2, b"hello"), 1000);
        flight
            .push(&[&hello[..], &[20, 3, 3, 0, 1, 1]].concat())
            .unwrap();
        assert_eq!(flight.go_on(), Some(Kind::ServerHello));
        assert_eq!(flight.message(), b"hello");
        assert_eq!(flight.server_hello(), Some(&b"hello"[..]));
        assert!(flight.go_on().is_none() && flight.is_over());
        flight.begin();
        assert_eq!(
            flight.push(b"\x16\x02\x00\x00\x05hello"),
            Err(TlsFault::OtherMessage)
        );
        flight.begin();
        flight.push(&records(&[11, 1, 0, 0], 1000)).unwrap();
        assert!(!flight.is_over());
        assert!(flight.go_on().is_none() && flight.is_over());
        flight.begin();
        let many = records(&message(0, &[0; 12_000]).repeat(2), 10_000);
        assert_eq!(flight.push(&many), Err(TlsFault::Length));
        assert!(flight.is_over());
        // The lengths exceed the list.
        assert_eq!(Certificates(&[0, 0, 2, 8]).count(), 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
            in_records in any::<bool>(),
        ) {
            let mut flight = Flight::default();
            for part in parts {
                let part = if in_records { records(&part, 50) } else { part };
                let _ = flight.push(&part);
                while flight.go_on().is_some() {
                    let bytes = flight.certificates().map(<[u8]>::len).sum::<usize>();
                    assert!(bytes <= FLIGHT_BYTES);
                    let _ = flight.server_hello();
                }
            }
        }
    }
}
