//! DCE/RPC over TCP (C706 chapter 12, [MS-RPCE] 2.2.2): the interfaces that a client binds, and its calls to them.
//!
//! A message is a request or a response, and is reported once all its fragments have arrived, or once its stored bytes
//! have reached their limit. Its stub data is the joined data of all fragments. The stub data includes the object UUID
//! of a call, the authentication trailer, and the first eight bytes of a response: Suricata includes these parts too,
//! and rules rely on them.

use crate::buffer::{Buffer, BufferSet};
use crate::cursor::Cursor;
use crate::findings::Findings;
use crate::framer::{Framed, Framers, Length};
use crate::record::Record;

/// Maximum number of interfaces that are stored for a connection.
const MOST_INTERFACES: usize = 64;
/// Maximum number of calls with pending responses.
const MOST_CALLS: usize = 16;
/// Number of bytes of the common header of all messages.
pub(crate) const HEADER: usize = 16;
/// Length of an interface's UUID in bytes. The next constant is the length of an abstract or transfer syntax
/// identifier: a UUID with a version.
const UUID: usize = 16;
const SYNTAX: usize = UUID + 4;
/// Maximum number of bytes of stub data that are stored for a call.
const MOST_STUB: usize = 16 * 1024;

const REQUEST: u8 = 0;
const RESPONSE: u8 = 2;
const BIND: u8 = 11;
const BIND_ACK: u8 = 12;
const ALTER_CONTEXT: u8 = 14;
const ALTER_CONTEXT_RESPONSE: u8 = 15;
const FIRST_FRAGMENT: u8 = 1;
const LAST_FRAGMENT: u8 = 2;

/// The parser of both directions of a connection.
#[derive(Debug, Default)]
pub struct DceRpc {
    framers: Framers,
    sides: [Side; 2],
    interfaces: Vec<Interface>,
    /// Ring of the latest calls, which wait for their responses.
    calls: [Call; MOST_CALLS],
    made: usize,
}

/// The call that is being assembled in one direction.
#[derive(Debug, Default)]
struct Side {
    stub: Vec<u8>,
    call: Call,
    /// True if the message of the call was already reported.
    is_told: bool,
    record: Record,
}

/// An interface that a client binds.
#[derive(Debug, Clone, Copy)]
struct Interface {
    context: u16,
    /// The interface in the format of [`Buffer::DceInterface`]: UUID, major version, and a byte that is 1 if the
    /// request to bind it was in a first fragment, otherwise 0.
    named: [u8; UUID + 3],
    answer: Answer,
}

/// The reply of a server to the binding of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Accepted,
    Rejected,
}

#[derive(Debug, Clone, Copy, Default)]
struct Call {
    id: u32,
    context: u16,
    opnum: u16,
}

/// The fields of the common header of a DCE/RPC message that the parser needs.
struct Header {
    kind: u8,
    flags: u8,
    is_little: bool,
    call: u32,
}

/// Returns the length of the message at the beginning of the given bytes.
fn length(bytes: &[u8]) -> Length {
    if bytes.first().is_some_and(|&version| version != 5) {
        return Length::Fault;
    }
    match bytes.first_chunk::<10>() {
        None => Length::Unknown,
        Some(head) => match number(head[4], &[head[8], head[9]]) {
            ..16 => Length::Fault,
            len => Length::Bytes(len.into()),
        },
    }
}

/// Returns true if `bytes` may be the beginning of a DCE/RPC stream.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    const MOST_KIND: u8 = 19;
    bytes.get(1).is_none_or(|&minor| minor == 0)
        && bytes.get(2).is_none_or(|&kind| kind <= MOST_KIND)
        && length(bytes) != Length::Fault
}

/// Reads a number of up to four bytes, in the byte order that `representation`, the first byte of the data
/// representation, specifies.
fn number(representation: u8, bytes: &[u8]) -> u32 {
    let fold = |all: u32, &byte: &u8| all << 8 | u32::from(byte);
    match is_little(representation) {
        true => bytes.iter().rev().fold(0, fold),
        false => bytes.iter().fold(0, fold),
    }
}

fn is_little(representation: u8) -> bool {
    representation & 0x10 != 0
}

impl Header {
    fn of(bytes: &[u8]) -> Option<(Self, Cursor<'_>)> {
        let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
        let header = Self {
            kind: head[2],
            flags: head[3],
            is_little: is_little(head[4]),
            call: number(head[4], &head[12..]),
        };
        Some((header, Cursor(rest)))
    }

    fn u16(&self, from: &mut Cursor<'_>) -> Option<u16> {
        let bytes = *from.take(2)?.first_chunk()?;
        Some(match self.is_little {
            true => u16::from_le_bytes(bytes),
            false => u16::from_be_bytes(bytes),
        })
    }

    /// Removes the UUID of an interface from the front of `from`, and returns its bytes in the order of its text form.
    fn uuid(&self, from: &mut Cursor<'_>) -> Option<[u8; UUID]> {
        let mut uuid = *from.take(UUID)?.first_chunk()?;
        if self.is_little {
            for field in [0..4, 4..6, 6..8] {
                uuid[field].reverse();
            }
        }
        Some(uuid)
    }
}

impl DceRpc {
    /// Resets the parser for another connection; its memory is kept.
    pub fn reset(&mut self) {
        self.framers.reset();
        for side in &mut self.sides {
            side.begin(Call::default());
        }
        self.interfaces.clear();
        self.made = 0;
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
    }

    /// Parses the next bytes of a direction and reports each complete call or response.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let Self {
            framers,
            sides,
            interfaces,
            calls,
            made,
        } = self;
        let direction = usize::from(!to_server);
        let mut connection = Connection {
            side: &mut sides[direction],
            interfaces,
            calls,
            made,
        };
        let mut faults = 0;
        let is_lost = framers.push(to_server, data, length, |it| {
            faults += u64::from(connection.message(it, found).is_none());
        });
        found.faults(faults + u64::from(is_lost));
    }
}

impl Side {
    fn begin(&mut self, call: Call) {
        self.stub.clear();
        self.call = call;
        self.is_told = false;
    }
}

/// One direction of a connection, with the state that both directions share.
struct Connection<'a> {
    side: &'a mut Side,
    interfaces: &'a mut Vec<Interface>,
    calls: &'a mut [Call; MOST_CALLS],
    made: &'a mut usize,
}

impl Connection<'_> {
    /// Parses a message; returns none if it is invalid.
    fn message(
        &mut self,
        framed: Framed<'_>,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        let (header, mut rest) = Header::of(framed.bytes)?;
        match header.kind {
            BIND | ALTER_CONTEXT => self.bind(&header, &mut rest),
            BIND_ACK | ALTER_CONTEXT_RESPONSE => self.answers(&header, framed.bytes, &mut rest),
            REQUEST => {
                rest.take(4)?;
                let call = Call {
                    id: header.call,
                    context: header.u16(&mut rest)?,
                    opnum: header.u16(&mut rest)?,
                };
                if header.flags & FIRST_FRAGMENT != 0 {
                    self.calls[*self.made % MOST_CALLS] = call;
                    *self.made += 1;
                }
                self.fragment(&header, call, rest.0, found);
                Some(())
            }
            RESPONSE => {
                let stub = rest.0;
                rest.take(8)?;
                let made = &self.calls[..MOST_CALLS.min(*self.made)];
                let call = made.iter().find(|call| call.id == header.call);
                // Later calls may have replaced the call in the ring.
                let call = *call?;
                self.fragment(&header, call, stub, found);
                Some(())
            }
            _ => Some(()),
        }
    }

    fn bind(&mut self, header: &Header, from: &mut Cursor<'_>) -> Option<()> {
        from.take(8)?;
        let contexts = from.number(1)?;
        from.take(3)?;
        if header.kind == BIND {
            self.interfaces.clear();
        }
        for _ in 0..contexts {
            let context = header.u16(from)?;
            let syntaxes = from.number(1)? as usize;
            from.take(1)?;
            let uuid = header.uuid(from)?;
            let [high, low] = header.u16(from)?.to_be_bytes();
            from.take(2 + syntaxes * SYNTAX)?;
            if self.interfaces.len() == MOST_INTERFACES {
                return None;
            }
            let mut named = [0; UUID + 3];
            named[..UUID].copy_from_slice(&uuid);
            named[UUID..].copy_from_slice(&[high, low, header.flags & FIRST_FRAGMENT]);
            self.interfaces.push(Interface {
                context,
                named,
                answer: Answer::Awaited,
            });
        }
        Some(())
    }

    /// Reads the server's result for each interface, in the order in which the client bound the interfaces.
    fn answers(&mut self, header: &Header, all: &[u8], from: &mut Cursor<'_>) -> Option<()> {
        from.take(8)?;
        let address = header.u16(from)?;
        from.take(address.into())?;
        // The next field is aligned to four bytes from the beginning of the message.
        from.take((all.len() - from.0.len()).next_multiple_of(4) - (all.len() - from.0.len()))?;
        let results = from.number(1)?;
        from.take(3)?;
        let awaited = |it: &&mut Interface| it.answer == Answer::Awaited;
        let mut interfaces = self.interfaces.iter_mut().filter(awaited);
        for _ in 0..results {
            let is_accepted = header.u16(from)? == 0;
            from.take(2 + SYNTAX)?;
            interfaces.next()?.answer = match is_accepted {
                true => Answer::Accepted,
                false => Answer::Rejected,
            };
        }
        Some(())
    }

    /// Adds a fragment of a request or a response to the earlier ones, and reports the message once it is complete.
    fn fragment(
        &mut self,
        header: &Header,
        call: Call,
        stub: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        if header.flags & FIRST_FRAGMENT != 0 || self.side.call.id != call.id {
            self.side.begin(call);
        }
        let side = &mut *self.side;
        let kept = stub.len().min(MOST_STUB - side.stub.len());
        side.stub.extend_from_slice(&stub[..kept]);
        let is_complete = header.flags & LAST_FRAGMENT != 0 || side.stub.len() == MOST_STUB;
        if !is_complete || side.is_told {
            return;
        }
        side.is_told = true;
        let record = &mut side.record;
        record.clear();
        for interface in self.interfaces.iter() {
            if interface.answer == Answer::Accepted && interface.context == call.context {
                record.put(Buffer::DceInterface, &[&interface.named]);
            }
        }
        record.put_number(Buffer::DceOpnum, call.opnum.into());
        record.put(Buffer::DceStub, &[&side.stub]);
        found.tell(record, record.has());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::testing::{Said, numbers, texts, whole_as_cut};

    /// The UUID 367abb81-9844-35f1-ad32-98f038001003 in the bytes of a message: its first three fields are sent least
    /// significant byte first.
    const SENT: [u8; 16] = *b"\x81\xbb\x7a\x36\x44\x98\xf1\x35\xad\x32\x98\xf0\x38\x00\x10\x03";
    const WRITTEN: [u8; 16] = *b"\x36\x7a\xbb\x81\x98\x44\x35\xf1\xad\x32\x98\xf0\x38\x00\x10\x03";

    fn message(kind: u8, flags: u8, call: u32, body: &[u8]) -> Vec<u8> {
        let len = (HEADER + body.len()) as u16;
        let mut message = vec![5, 0, kind, flags, 0x10, 0, 0, 0];
        message.extend(len.to_le_bytes());
        message.extend([0, 0]);
        message.extend(call.to_le_bytes());
        message.extend(body);
        message
    }

    fn bind(contexts: &[(u16, [u8; 16])]) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend([contexts.len() as u8, 0, 0, 0]);
        for (context, uuid) in contexts {
            body.extend(context.to_le_bytes());
            body.extend([1, 0]);
            body.extend(uuid);
            body.extend([2, 0, 0, 0]);
            body.extend([0; SYNTAX]);
        }
        message(BIND, 3, 1, &body)
    }

    fn bind_ack(results: &[u16]) -> Vec<u8> {
        let mut body = vec![0; 8];
        // The address has four bytes, and two bytes align the next field to four bytes.
        body.extend(b"\x04\x00135\x00\x00\x00");
        body.extend([results.len() as u8, 0, 0, 0]);
        for result in results {
            body.extend(result.to_le_bytes());
            body.extend([0; 2 + SYNTAX]);
        }
        message(BIND_ACK, 3, 1, &body)
    }

    fn request(flags: u8, call: u32, context: u16, opnum: u16, stub: &[u8]) -> Vec<u8> {
        let head = [[0; 2], [0; 2], context.to_le_bytes(), opnum.to_le_bytes()].concat();
        message(REQUEST, flags, call, &[&head, stub].concat())
    }

    fn interfaces(said: &Said) -> Vec<&[u8]> {
        let of = said.1.iter().filter(|it| it.0 == Buffer::DceInterface);
        of.map(|it| &it.1[..]).collect()
    }

    #[test]
    fn a_call_has_its_interface_number_and_stub_data() {
        let response = message(RESPONSE, 3, 7, b"\0\0\0\0\0\0\0\0answer");
        let pieces = [
            (true, bind(&[(0, SENT), (1, [7; 16])])),
            (false, bind_ack(&[0, 0])),
            (true, request(3, 7, 0, 15, b"stub")),
            (false, response),
        ];
        let (found, counts) = whole_as_cut(Application::DceRpc, &pieces);
        assert_eq!((counts.told, counts.faults), (2, 0));
        let named = [&WRITTEN[..], &[0, 2, 1]].concat();
        for (said, stub) in found.iter().zip(["stub", "\0\0\0\0\0\0\0\0answer"]) {
            assert_eq!(interfaces(said), [&named[..]]);
            assert_eq!(numbers(said, Buffer::DceOpnum), [15]);
            assert_eq!(texts(said, Buffer::DceStub), [stub]);
        }
    }

    #[test]
    fn calls_do_not_match_interfaces_that_the_server_rejected() {
        let pieces = [
            (true, bind(&[(0, SENT), (1, [7; 16])])),
            (true, request(3, 1, 1, 1, b"")),
            (false, bind_ack(&[2, 0])),
            (true, request(3, 2, 0, 1, b"")),
            (true, request(3, 3, 1, 1, b"")),
        ];
        let (found, _) = whole_as_cut(Application::DceRpc, &pieces);
        let named: Vec<_> = found.iter().map(|said| interfaces(said).len()).collect();
        assert_eq!(named, [0, 0, 1]);
    }

    #[test]
    fn the_fragments_of_a_dcerpc_call_are_reassembled() {
        let pieces = [
            (true, request(1, 1, 0, 4, b"one ")),
            (true, request(0, 1, 0, 4, b"two ")),
            (true, request(2, 1, 0, 4, b"three")),
        ];
        let (found, _) = whole_as_cut(Application::DceRpc, &pieces);
        assert_eq!(found.len(), 1);
        assert_eq!(texts(&found[0], Buffer::DceStub), ["one two three"]);
        // Rules are evaluated once the maximum of stored bytes has arrived.
        let long = request(0, 1, 0, 4, &[7; 9000]);
        let pieces = [(true, [request(1, 1, 0, 4, b""), long.repeat(3)].concat())];
        let (found, _) = whole_as_cut_sparsely(&pieces);
        assert_eq!(found.len(), 1);
        assert_eq!(texts(&found[0], Buffer::DceStub)[0].len(), MOST_STUB);
    }

    fn whole_as_cut_sparsely(pieces: &[(bool, Vec<u8>)]) -> (Vec<Said>, crate::findings::Counts) {
        let mut parser = crate::protocols::Parser::DceRpc(Box::default());
        crate::protocols::testing::read_cut(&mut parser, pieces, &[1460])
    }

    #[test]
    fn an_object_identifier_is_treated_as_stub_data() {
        let with_object = [&[b'o'; UUID][..], b"stub"].concat();
        let pieces = [(true, request(0x83, 1, 0, 4, &with_object))];
        let (found, _) = whole_as_cut(Application::DceRpc, &pieces);
        assert_eq!(texts(&found[0], Buffer::DceStub), ["oooooooooooooooostub"]);
    }

    #[test]
    fn truncated_dcerpc_messages_are_faults() {
        let pieces = [
            (true, message(REQUEST, 3, 1, b"")),
            (true, message(BIND, 3, 1, b"\0\0\0\0\0\0\0\0\x05\0\0\0")),
            (false, message(RESPONSE, 3, 9, &[0; 8])),
            (true, b"\x05\x00\x00\x03\x10\x00\x00\x00\x0f\x00".to_vec()),
            (true, request(3, 1, 0, 4, b"")),
        ];
        let (found, counts) = whole_as_cut(Application::DceRpc, &pieces);
        assert_eq!((found.len(), counts.faults), (0, 4));
    }

    #[test]
    fn too_many_dcerpc_interfaces_in_a_connection_are_a_fault() {
        let many: Vec<_> = (0..100).map(|context| (context, SENT)).collect();
        let (_, counts) = whole_as_cut_sparsely(&[(true, bind(&many))]);
        assert_eq!(counts.faults, 1);
    }
}
