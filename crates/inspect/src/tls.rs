//! First messages of a TLS connection: the name of the server in the client's hello (RFC 8446 section 4.1.2, RFC 6066 section 3),
//! and what kinds of messages a packet has. A parser of our own, as all that is wanted is one extension, from bytes that are still
//! coming, without memory.

use crate::dns::Name;

/// What a client's hello says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Name of the server; empty if there is none.
    pub sni: Name,
    /// Version that the hello names, which for TLS 1.3 is that of 1.2.
    pub version: u16,
}

/// How far a hello is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes more are wanted at least.
    More(usize),
    /// All that was looked for was read.
    Done,
}

/// What is wrong with a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFault {
    /// A record or message of another kind.
    OtherMessage,
    /// A length that leads out of what holds it.
    Length,
    /// A name that is longer than any.
    LongName,
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;

/// Bytes of a handshake message that may lie in several records, one behind the other.
struct Handshake<'a> {
    bytes: &'a [u8],
    /// Place in `bytes`.
    at: usize,
    /// Bytes of the record that are left.
    in_record: usize,
}

/// Reading has come to the end of the bytes, or of what may be there.
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
        Ok(byte)
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
            // One byte may open the next record; the rest of it is passed over at once.
            self.byte()?;
            bytes -= 1;
            let many = bytes.min(self.in_record).min(self.bytes.len() - self.at);
            self.at += many;
            self.in_record -= many;
            bytes -= many;
        }
        Ok(())
    }
}

/// Takes bytes off what is left of something; a fault if there are not so many.
fn take(left: &mut usize, bytes: usize) -> Result<(), Stop> {
    *left = left
        .checked_sub(bytes)
        .ok_or(Stop::Fault(TlsFault::Length))?;
    Ok(())
}

/// Reads the client's hello from the first bytes of a connection.
///
/// # Errors
/// What is wrong with them.
pub fn client_hello(bytes: &[u8], hello: &mut ClientHello) -> Result<Progress, TlsFault> {
    hello.sni.clear();
    let mut from = Handshake {
        bytes,
        at: 0,
        in_record: 0,
    };
    match read(&mut from, hello) {
        Ok(()) => Ok(Progress::Done),
        Err(Stop::More(bytes)) => Ok(Progress::More(bytes)),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}

fn read(from: &mut Handshake<'_>, hello: &mut ClientHello) -> Result<(), Stop> {
    if from.byte()? != CLIENT_HELLO {
        return Err(Stop::Fault(TlsFault::OtherMessage));
    }
    let mut left = from.number(3)?;
    take(&mut left, 2 + 32)?;
    hello.version = from.number(2)? as u16;
    from.skip(32)?;
    // Session, cipher suites, compression methods.
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
        // A list with one entry: kind 0, a host name.
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

/// Kinds of messages in a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Records {
    /// Kinds of handshake messages that begin in it, as bits of the places in [`crate::read::TLS_STATES`].
    pub states: u8,
    /// Version of the first record, 0 if there is none.
    pub version: u16,
}

/// Looks at the records of a packet, as far as they begin in it. Handshake messages that are not the first of their record are not
/// seen.
pub fn records(mut bytes: &[u8]) -> Records {
    let mut records = Records::default();
    while let Some(head) = bytes.first_chunk::<5>() {
        let is_record = (20..=24).contains(&head[0]) && head[1] == 3;
        if !is_record {
            break;
        }
        if records.version == 0 {
            records.version = u16::from_be_bytes([head[1], head[2]]);
        }
        if head[0] == HANDSHAKE {
            records.states |= match bytes.get(5) {
                Some(1) => 1,
                Some(2) => 1 << 1,
                Some(16) => 1 << 2,
                Some(12) => 1 << 3,
                _ => 1 << 4,
            };
        }
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        bytes = bytes.get(5 + len..).unwrap_or_default();
    }
    records
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// A hello for that name, in records of so many bytes.
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
    fn the_name_is_found_however_the_hello_is_cut() {
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
    fn lengths_that_lie_are_faults() {
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
    fn records_say_what_a_packet_has() {
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

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..200, byte in any::<u8>()) {
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
