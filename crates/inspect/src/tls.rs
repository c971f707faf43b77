//! First messages of a TLS connection: the server name in the ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3),
//! and the kinds of messages in a packet. Taut has its own parser because it must read one extension from incomplete
//! bytes without allocating memory.

use crate::dns::Name;

/// The parsed ClientHello.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Server name (SNI) in the ClientHello; empty if there is none.
    pub sni: Name,
    /// Version in the ClientHello, which for TLS 1.3 is that of TLS 1.2.
    pub version: u16,
}

/// The progress of reading a ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed; the value is their minimum number.
    More(usize),
    /// All required fields of the ClientHello were read.
    Done,
}

/// A fault of a ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFault {
    /// A record or a message of another type than expected.
    OtherMessage,
    /// A length that exceeds the enclosing field.
    Length,
    /// A name that is longer than the maximum.
    LongName,
}

/// The next item among the first messages of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A ClientHello was read.
    Hello,
    /// More bytes are needed; the value is their minimum number.
    More(usize),
    /// The maximum number of messages of a connection was read.
    Over,
}

/// Maximum number of messages of a connection that are read.
pub const MOST_MESSAGES: usize = 8;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;

/// Bytes of a handshake message that may be split over several successive records.
struct Handshake<'a> {
    bytes: &'a [u8],
    /// Offset in `bytes` of the next byte to read.
    at: usize,
    /// Remaining bytes of the current record.
    in_record: usize,
    /// Number of bytes of the handshake message that were read.
    read: usize,
}

/// The reason why reading stopped: the bytes ended, or they are invalid.
enum Stop {
    More(usize),
    Fault(TlsFault),
}

impl Handshake<'_> {
    fn byte(&mut self) -> Result<u8, Stop> {
        while self.in_record == 0 {
            let Some(head) = self
                .bytes
                .get(self.at..)
                .and_then(|rest| rest.first_chunk::<5>())
            else {
                return Err(Stop::More(self.at + 5 - self.bytes.len()));
            };
            if head[0] != HANDSHAKE {
                return Err(Stop::Fault(TlsFault::OtherMessage));
            }
            self.in_record = usize::from(u16::from_be_bytes([head[3], head[4]]));
            if self.in_record == 0 {
                return Err(Stop::Fault(TlsFault::Length));
            }
            self.at += 5;
        }
        let byte = *self.bytes.get(self.at).ok_or(Stop::More(1))?;
        self.at += 1;
        self.in_record -= 1;
        self.read += 1;
        Ok(byte)
    }

    /// Skips records between two messages that contain no handshake message and have no meaning (RFC 8446 appendix
    /// D.4).
    fn pass_over_others(&mut self) -> Result<(), Stop> {
        while self.in_record == 0 && self.bytes.get(self.at) == Some(&CHANGE_CIPHER_SPEC) {
            let rest = &self.bytes[self.at..];
            let Some(head) = rest.first_chunk::<5>() else {
                return Err(Stop::More(5 - rest.len()));
            };
            let end = 5 + usize::from(u16::from_be_bytes([head[3], head[4]]));
            if rest.len() < end {
                return Err(Stop::More(end - rest.len()));
            }
            self.at += end;
        }
        Ok(())
    }

    fn number(&mut self, bytes: usize) -> Result<usize, Stop> {
        let mut number = 0;
        for _ in 0..bytes {
            number = number << 8 | usize::from(self.byte()?);
        }
        Ok(number)
    }

    fn skip(&mut self, mut bytes: usize) -> Result<(), Stop> {
        while bytes > 0 {
            // Reading one byte may open the next record; the other bytes of that record are skipped in one step.
            self.byte()?;
            bytes -= 1;
            let many = bytes.min(self.in_record).min(self.bytes.len() - self.at);
            self.at += many;
            self.in_record -= many;
            self.read += many;
            bytes -= many;
        }
        Ok(())
    }
}

/// Subtracts bytes from a remaining length; returns a fault if fewer remain.
fn take(left: &mut usize, bytes: usize) -> Result<(), Stop> {
    *left = left
        .checked_sub(bytes)
        .ok_or(Stop::Fault(TlsFault::Length))?;
    Ok(())
}

/// Reads the ClientHello from the first bytes of a connection.
///
/// # Errors
/// Returns the fault of the bytes as a ClientHello.
pub fn client_hello(bytes: &[u8], hello: &mut ClientHello) -> Result<Progress, TlsFault> {
    match Hellos::default().next(bytes, hello)? {
        Next::More(bytes) => Ok(Progress::More(bytes)),
        Next::Hello | Next::Over => Ok(Progress::Done),
    }
}

/// The position among the first messages of a client. All ClientHellos are found, also if several share a record or a
/// segment, as after a retry (RFC 8446 section 4.1.4). Other messages between them are skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hellos {
    /// Offset in the bytes of the connection. The next fields are the remaining bytes of the record, and of the partly
    /// read message, at that offset.
    at: usize,
    in_record: usize,
    in_message: usize,
    messages: usize,
}

impl Hellos {
    /// Continues reading: `bytes` are all bytes of the connection from its beginning, of which the earlier ones are
    /// unchanged.
    ///
    /// # Errors
    /// Returns the fault of the bytes. Nothing after a fault can be read.
    pub fn next(&mut self, bytes: &[u8], hello: &mut ClientHello) -> Result<Next, TlsFault> {
        hello.sni.clear();
        loop {
            let mut from = Handshake {
                bytes,
                at: self.at,
                in_record: self.in_record,
                read: 0,
            };
            let found = self.message(&mut from, hello);
            match found {
                // The next call starts again at the same offset, with more bytes.
                Err(Stop::More(bytes)) => return Ok(Next::More(bytes)),
                Err(Stop::Fault(fault)) => return Err(fault),
                Ok(is_hello) => {
                    (self.at, self.in_record) = (from.at, from.in_record);
                    self.messages += 1;
                    match is_hello {
                        true => return Ok(Next::Hello),
                        false if self.messages >= MOST_MESSAGES => return Ok(Next::Over),
                        false => {}
                    }
                }
            }
        }
    }

    /// Skips the rest of the previous message, and reads the next message if it is a ClientHello. Returns true if a
    /// ClientHello was read.
    fn message(&mut self, from: &mut Handshake<'_>, hello: &mut ClientHello) -> Result<bool, Stop> {
        from.skip(self.in_message)?;
        if self.messages >= MOST_MESSAGES {
            self.in_message = 0;
            return Ok(false);
        }
        from.pass_over_others()?;
        from.read = 0;
        let kind = from.byte()?;
        if kind != CLIENT_HELLO && self.messages == 0 {
            return Err(Stop::Fault(TlsFault::OtherMessage));
        }
        let len = from.number(3)?;
        if kind == CLIENT_HELLO {
            read(from, len, hello)?;
        }
        // The subtraction cannot underflow, because no more bytes of a message are read than it has.
        self.in_message = (HEADER + len).saturating_sub(from.read);
        Ok(kind == CLIENT_HELLO)
    }
}

/// Number of bytes of a handshake message before its body.
const HEADER: usize = 4;

/// Reads a ClientHello after its header, up to the server name. The ClientHello has `left` bytes.
fn read(from: &mut Handshake<'_>, mut left: usize, hello: &mut ClientHello) -> Result<(), Stop> {
    take(&mut left, 2 + 32)?;
    hello.version = from.number(2)? as u16;
    from.skip(32)?;
    // Skips session ID, cipher suites and compression methods.
    for width in [1, 2, 1] {
        take(&mut left, width)?;
        let len = from.number(width)?;
        take(&mut left, len)?;
        from.skip(len)?;
    }
    if left == 0 {
        return Ok(());
    }
    take(&mut left, 2)?;
    let mut extensions = from.number(2)?;
    take(&mut left, extensions)?;
    while extensions > 0 {
        take(&mut extensions, 4)?;
        let (kind, mut len) = (from.number(2)? as u16, from.number(2)?);
        take(&mut extensions, len)?;
        if kind != SERVER_NAME {
            from.skip(len)?;
            continue;
        }
        // The extension is a list with one entry: type 0, a host name.
        take(&mut len, 2 + 1 + 2)?;
        from.skip(2)?;
        let is_host = from.byte()? == 0;
        let name = from.number(2)?;
        take(&mut len, name)?;
        if !is_host {
            return Ok(());
        }
        for _ in 0..name {
            let byte = from.byte()?;
            if !hello.sni.extend(&[byte]) {
                return Err(Stop::Fault(TlsFault::LongName));
            }
        }
        return Ok(());
    }
    Ok(())
}

/// The kinds of TLS messages in a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Records {
    /// Kinds of handshake messages that begin in the packet, as bits with the indices of [`crate::read::TLS_STATES`].
    pub states: u8,
    /// Version of the first record, 0 if there is none.
    pub version: u16,
}

/// Reads the records that begin in a packet and the handshake messages that begin in those, up to [`MOST_IN_A_PACKET`].
pub fn records(mut bytes: &[u8]) -> Records {
    let mut records = Records::default();
    // State of the current handshake message: remaining bytes of its length field, the length read so far, and
    // remaining bytes of its body.
    let (mut of_length, mut length, mut left) = (0, 0, 0);
    let mut messages = 0;
    while let Some(head) = bytes.first_chunk::<5>() {
        let is_record = (20..=24).contains(&head[0]) && head[1] == 3;
        if !is_record {
            break;
        }
        if records.version == 0 {
            records.version = u16::from_be_bytes([head[1], head[2]]);
        }
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let body = &bytes[5..];
        bytes = body.get(len..).unwrap_or_default();
        if head[0] != HANDSHAKE {
            continue;
        }
        let body = &body[..len.min(body.len())];
        let mut at = 0;
        while let Some(&byte) = body.get(at) {
            if of_length > 0 {
                of_length -= 1;
                length = length << 8 | usize::from(byte);
                left = if of_length == 0 { length } else { 0 };
                at += 1;
            } else if left > 0 {
                let many = left.min(body.len() - at);
                left -= many;
                at += many;
            } else {
                messages += 1;
                if messages > MOST_IN_A_PACKET {
                    return records;
                }
                records.states |= match byte {
                    1 => 1,
                    2 => 1 << 1,
                    16 => 1 << 2,
                    12 => 1 << 3,
                    _ => 1 << 4,
                };
                (of_length, length) = (3, 0);
                at += 1;
            }
        }
    }
    records
}

/// Maximum number of handshake messages of a packet that are read.
pub const MOST_IN_A_PACKET: usize = 64;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns a ClientHello for the given name, in records with the given number of bytes.
    fn hello(name: &[u8], record: usize) -> Vec<u8> {
        let with_len = |width: usize, bytes: &[u8]| {
            [&(bytes.len() as u32).to_be_bytes()[4 - width..], bytes].concat()
        };
        let sni = with_len(2, &[&[0][..], &with_len(2, name)].concat());
        let extensions = [
            &[0, 23, 0, 0][..],
            &[0, 0],
            &with_len(2, &sni),
            &[0, 43, 0, 1, 9],
        ]
        .concat();
        let body = [
            &[3, 3][..],
            &[7; 32],
            &with_len(1, &[1; 32]),
            &with_len(2, &[0x13, 1, 0x13, 2]),
            &with_len(1, &[0]),
            &with_len(2, &extensions),
        ]
        .concat();
        let message = [&[1][..], &with_len(3, &body)].concat();
        message
            .chunks(record)
            .flat_map(|part| [&[22, 3, 1][..], &with_len(2, part)].concat())
            .collect()
    }

    #[test]
    fn the_server_name_is_parsed_at_any_record_size() {
        for record in [1, 7, 100, 16_000] {
            let bytes = hello(b"Example.org", record);
            let mut read = ClientHello::default();
            assert_eq!(client_hello(&bytes, &mut read), Ok(Progress::Done));
            assert_eq!((&read.sni[..], read.version), (&b"Example.org"[..], 0x0303));
            for cut in 0..bytes.len() {
                let progress = client_hello(&bytes[..cut], &mut read).unwrap();
                assert!(
                    progress == Progress::Done
                        || matches!(progress, Progress::More(n) if n > 0 && cut + n <= bytes.len())
                );
            }
        }
    }

    #[test]
    fn invalid_lengths_and_messages_other_than_client_hello_are_faults() {
        let mut read = ClientHello::default();
        let mut bytes = hello(b"a.b", 16_000);
        assert_eq!(
            client_hello(b"GET / HTTP/1.1", &mut read),
            Err(TlsFault::OtherMessage)
        );
        bytes[43] = 255;
        assert_eq!(client_hello(&bytes, &mut read), Err(TlsFault::Length));
        assert_eq!(
            client_hello(&hello(&[b'a'; 300], 16_000), &mut read),
            Err(TlsFault::LongName)
        );
    }

    #[test]
    fn record_types_and_version_of_a_packet_are_parsed() {
        let both = [hello(b"a", 16_000), vec![23, 3, 3, 0, 2, 1, 2]].concat();
        assert_eq!(
            records(&both),
            Records {
                states: 1,
                version: 0x0301
            }
        );
        assert_eq!(records(b"GET / HTTP/1.1"), Records::default());
    }

    #[test]
    fn several_client_hellos_in_a_stream_are_found_in_order() {
        let other = [22, 3, 3, 0, 6, 24, 0, 0, 2, 7, 7];
        let cipher = [20, 3, 3, 0, 1, 1];
        let parts = [
            &hello(b"one.example", 60)[..],
            &cipher,
            &other,
            &hello(b"two.example", 16_000),
        ];
        let bytes = parts.concat();
        for cut in [bytes.len(), parts[0].len(), parts[0].len() + 8, 90] {
            let (mut hellos, mut read) = (Hellos::default(), ClientHello::default());
            let mut names = Vec::new();
            for end in [cut, bytes.len()] {
                loop {
                    match hellos.next(&bytes[..end], &mut read).unwrap() {
                        Next::Hello => names.push(String::from_utf8_lossy(&read.sni).into_owned()),
                        Next::More(more) => {
                            assert!(more > 0);
                            break;
                        }
                        Next::Over => panic!("so few"),
                    }
                }
            }
            assert_eq!(names, ["one.example", "two.example"], "{cut}");
        }
        // One record contains more ClientHellos than are read.
        let one = &hello(b"a.example", 16_000)[5..];
        let many = one.repeat(20);
        let record = [&[22, 3, 1][..], &(many.len() as u16).to_be_bytes(), &many].concat();
        let (mut hellos, mut read) = (Hellos::default(), ClientHello::default());
        let mut found = 0;
        while hellos.next(&record, &mut read) == Ok(Next::Hello) {
            assert_eq!(&read.sni[..], b"a.example");
            found += 1;
        }
        assert_eq!(found, MOST_MESSAGES);
        assert_eq!(hellos.next(&record, &mut read), Ok(Next::Over));
    }

    #[test]
    fn each_handshake_message_of_a_record_sets_its_state_bit() {
        // A ServerHello, a ServerKeyExchange and a ServerHelloDone are in one record, and then split into three
        // records.
        let messages = [2, 0, 0, 2, 1, 1, 12, 0, 0, 3, 1, 1, 1, 14, 0, 0, 0];
        let with_len = |bytes: &[u8]| [&[22, 3, 3, 0, bytes.len() as u8][..], bytes].concat();
        let whole = with_len(&messages);
        assert_eq!(records(&whole).states, 1 << 1 | 1 << 3 | 1 << 4);
        let cut: Vec<u8> = messages.chunks(7).flat_map(with_len).collect();
        assert_eq!(records(&cut).states, 1 << 1 | 1 << 3 | 1 << 4);
        // The lengths far exceed the available bytes.
        assert_eq!(records(&with_len(&[2, 255, 255, 255, 1, 1])).states, 1 << 1);
        assert_eq!(records(&[22, 3, 3, 255, 255, 2]).states, 1 << 1);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..200, byte in any::<u8>()) {
            let mut read = ClientHello::default();
            let _ = client_hello(&bytes, &mut read);
            let mut damaged = hello(b"example.com", 50);
            let at = at % damaged.len();
            damaged[at] = byte;
            let _ = client_hello(&damaged, &mut read);
            let _ = records(&damaged);
        }
    }
}
