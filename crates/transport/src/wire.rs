//! Packets of the deadline transport, version 1. All numbers are in network byte order, all times in ns.
//!
//! | Offset | Bytes | Field |
//! |---|---|---|
//! | 0 | 1 | magic, `0xD1` |
//! | 1 | 1 | version (high four bits), kind (low four bits) |
//! | 2 | 1 | flags: 1 = feedback follows the header, 2 = a tag of 16 bytes ends the packet |
//! | 3 | 1 | 0 |
//! | 4 | 4 | identifier of the connection |
//! | 8 | 8 | number of the packet, counted from 0 by its sender |
//! | 16 | 8 | sender's clock when it was sent |
//! | 24 | 8 | latest send time received from the other side, by its clock; 0 for none |
//! | 32 | 4 | time since the arrival of that packet; all ones if it is unknown |
//! | 36 | 36 | feedback, if it is flagged: [`Feedback`] |
//!
//! The rest of the packet depends on the kind: [`Hello`] and [`Accept`], [`Data`], [`Repair`], nothing for feedback
//! alone and for a farewell, and a byte with the sender's version for a refusal. Nothing else may follow.

/// Version of the packets.
pub const VERSION: u8 = 1;
/// First byte of each packet.
const MAGIC: u8 = 0xD1;
/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 36;
/// Length of feedback, bytes.
pub const FEEDBACK_BYTES: usize = 36;
/// Length of the fields of a data packet that precede the payload, without header and feedback, bytes.
const DATA_BYTES: usize = 18;
/// Length of a repair's fields without coefficients and sum, bytes.
const REPAIR_BYTES: usize = 9;
/// Length of a tag, bytes.
pub const TAG_BYTES: usize = 16;
/// Length of the fields that precede a message in a coded symbol, bytes: length, deadline and gap.
pub const SYMBOL_BYTES: usize = 14;
/// Limit on the length of a datagram, bytes: the payload of an Ethernet frame, 1500 bytes, minus the IPv4 and UDP
/// headers.
pub const MOST_DATAGRAM_BYTES: usize = 1472;
/// Limit on the length of a message, bytes: the payload of one datagram with only the required fields.
pub const MOST_PAYLOAD_BYTES: usize = MOST_DATAGRAM_BYTES - data_packet_bytes(0);
/// Limit on the coefficients of a repair.
pub const MOST_COEFFICIENTS: usize = 32;
/// Wire value for an unknown time since the arrival of the echoed packet.
const HELD_UNKNOWN: u32 = u32::MAX;

/// Reason why a packet is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The packet is not of this transport.
    #[error("not a packet of this transport")]
    Foreign,
    /// The packet has another version.
    #[error("packet version {0}, this side has version {VERSION}")]
    Version(u8),
    /// The packet is too short or too long.
    #[error("the packet has a wrong length")]
    Length,
    /// A field has an invalid value.
    #[error("a field of the packet has an invalid value")]
    Field,
}

/// Kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A hello, which opens a connection.
    Hello,
    /// An accept, the reply to a hello.
    Accept,
    /// A packet that carries a message.
    Data,
    /// A packet that carries a linear combination of messages.
    Repair,
    /// A packet that carries only feedback.
    Feedback,
    /// A farewell, which ends a connection.
    Farewell,
    /// A refusal, which reports that the version of a hello is not supported.
    Refusal,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Hello,
        Self::Accept,
        Self::Data,
        Self::Repair,
        Self::Feedback,
        Self::Farewell,
        Self::Refusal,
    ];

    fn number(self) -> u8 {
        Self::ALL
            .iter()
            .position(|it| *it == self)
            .unwrap_or_default() as u8
    }
}

/// The header of each packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// True if a tag ends the packet.
    pub is_tagged: bool,
    /// Identifier of the connection.
    pub connection: u32,
    /// Number of the packet, counted from 0 by its sender.
    pub packet: u64,
    /// Send time by the sender's clock, ns.
    pub sent_ns: u64,
    /// The latest send time received from the peer, by the peer's clock, and how long ago the sender received it, ns.
    /// None before the first packet of the peer, or if that time is unknown.
    pub echo: Option<(u64, u32)>,
    /// Feedback on the packets that the sender has received; none if the packet carries none.
    pub feedback: Option<Feedback>,
}

/// Feedback on the packets and messages that a receiver has received. Counts wrap around at 2^32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Highest packet number that has arrived.
    pub largest: u64,
    /// Number of packets that have arrived.
    pub packets: u32,
    /// All messages with numbers below this number have been delivered or discarded.
    pub settled: u64,
    /// Bitmap of the arrived messages among the 64 from `settled` on, the first in the lowest bit.
    pub come: u64,
    /// Messages that have been delivered in time.
    pub in_time: u32,
    /// Messages that were not delivered: too late, or never arrived.
    pub missed: u32,
}

/// The body that opens a connection: settings that the peer needs to receive messages, and 16 random bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hello {
    /// Random bytes of the endpoint that sends the hello or accept.
    pub random: [u8; 16],
    /// Limit on the length of a message, bytes.
    pub payload_bytes: u16,
    /// Limit on the messages that a repair combines; 0 if there are no repairs.
    pub symbols: u8,
    /// Target delay of the sender's messages, ns.
    pub target_ns: u64,
}

/// The reply to a hello: the settings and random bytes of the replying endpoint, and a copy of the hello's random
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accept {
    /// Settings and random bytes of the replying endpoint.
    pub own: Hello,
    /// Random bytes of the hello to which the accept replies.
    pub answers: [u8; 16],
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data<'a> {
    /// Number of the message, counted from 0 by its sender.
    pub source: u64,
    /// Time from sending the packet to the message's deadline, ns.
    pub left_ns: u32,
    /// Time from the previous message's deadline to this message's deadline, ns; all ones for longer times.
    pub gap_ns: u32,
    /// Number of messages before this one that may still arrive.
    pub open: u16,
    /// Payload of the message.
    pub payload: &'a [u8],
}

/// A combination of messages, each preceded by [`SYMBOL_BYTES`]: length (2), deadline by the sender's clock (8), gap
/// (4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair<'a> {
    /// Number of the first combined message.
    pub first: u64,
    /// Coefficients, one for each combined message.
    pub coefficients: &'a [u8],
    /// Linear combination of the messages, without trailing zeros.
    pub sum: &'a [u8],
}

/// The body after a header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body<'a> {
    /// A hello, which opens a connection.
    Hello(Hello),
    /// An accept, the reply to a hello.
    Accept(Accept),
    /// The body is a message.
    Data(Data<'a>),
    /// A combination of messages.
    Repair(Repair<'a>),
    /// Feedback without a message.
    Feedback,
    /// The end of the connection.
    Farewell,
    /// The version that the sender supports.
    Refusal(u8),
}

/// Reads the fields of a packet in sequence.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(WireError::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| WireError::Length)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[it]| it)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Writes the fields of a packet in sequence into memory that is long enough.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..][..field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

/// Returns the connection identifier of a packet, without parsing the rest, so that a program with many connections
/// finds the right one. Returns none for a packet that is too short or not of this transport.
pub fn connection_of(bytes: &[u8]) -> Option<u32> {
    (bytes.first() == Some(&MAGIC)).then_some(())?;
    let number = bytes.get(4..8)?;
    number.try_into().ok().map(u32::from_be_bytes)
}

/// Returns true if the header of a packet has the kind of a hello; the version is not checked.
pub fn is_hello(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MAGIC) && bytes.get(1).is_some_and(|it| it & 15 == 0)
}

/// Parses a packet. A tag is neither checked nor part of the body.
///
/// # Errors
/// Fails with the reason if the packet is invalid.
pub fn parse(bytes: &[u8]) -> Result<(Header, Body<'_>), WireError> {
    let mut reader = Reader(bytes);
    if reader.u8().map_err(|_| WireError::Foreign)? != MAGIC {
        return Err(WireError::Foreign);
    }
    let what = reader.u8()?;
    let kind = Kind::ALL.get(usize::from(what & 15)).copied();
    // A refusal is accepted in any version.
    if what >> 4 != VERSION && kind != Some(Kind::Refusal) {
        return Err(WireError::Version(what >> 4));
    }
    let kind = kind.ok_or(WireError::Field)?;
    let flags = reader.u8()?;
    if flags > 3 || reader.u8()? != 0 {
        return Err(WireError::Field);
    }
    let is_tagged = flags & 2 != 0;
    let connection = reader.u32()?;
    let packet = reader.u64()?;
    let sent_ns = reader.u64()?;
    let (echo_ns, held_ns) = (reader.u64()?, reader.u32()?);
    let echo = (echo_ns != 0 && held_ns != HELD_UNKNOWN).then_some((echo_ns, held_ns));
    let feedback = if flags & 1 != 0 {
        Some(Feedback {
            largest: reader.u64()?,
            packets: reader.u32()?,
            settled: reader.u64()?,
            come: reader.u64()?,
            in_time: reader.u32()?,
            missed: reader.u32()?,
        })
    } else {
        None
    };
    if is_tagged {
        let length = reader.0.len().checked_sub(TAG_BYTES);
        reader.0 = &reader.0[..length.ok_or(WireError::Length)?];
    }
    let body = body(&mut reader, kind, feedback.is_some())?;
    if !reader.0.is_empty() {
        return Err(WireError::Length);
    }
    let header = Header {
        kind,
        is_tagged,
        connection,
        packet,
        sent_ns,
        echo,
        feedback,
    };
    Ok((header, body))
}

/// Parses the body of a packet. A packet of the kind `Feedback` is invalid if it contains no feedback.
#[inline]
fn body<'a>(
    reader: &mut Reader<'a>,
    kind: Kind,
    has_feedback: bool,
) -> Result<Body<'a>, WireError> {
    Ok(match kind {
        Kind::Hello => Body::Hello(hello(reader)?),
        Kind::Accept => Body::Accept(Accept {
            own: hello(reader)?,
            answers: reader.array()?,
        }),
        Kind::Data => {
            let (source, left_ns, gap_ns) = (reader.u64()?, reader.u32()?, reader.u32()?);
            let open = reader.u16()?;
            if u64::from(open) > source || source == u64::MAX {
                return Err(WireError::Field);
            }
            Body::Data(Data {
                source,
                left_ns,
                gap_ns,
                open,
                payload: std::mem::take(&mut reader.0),
            })
        }
        Kind::Repair => {
            let (first, count) = (reader.u64()?, usize::from(reader.u8()?));
            if count == 0 || count > MOST_COEFFICIENTS || first > u64::MAX - 256 {
                return Err(WireError::Field);
            }
            Body::Repair(Repair {
                first,
                coefficients: reader.take(count)?,
                sum: std::mem::take(&mut reader.0),
            })
        }
        Kind::Feedback if !has_feedback => return Err(WireError::Field),
        Kind::Feedback => Body::Feedback,
        Kind::Farewell => Body::Farewell,
        Kind::Refusal => Body::Refusal(reader.u8()?),
    })
}

fn hello(reader: &mut Reader<'_>) -> Result<Hello, WireError> {
    let hello = Hello {
        random: reader.array()?,
        payload_bytes: reader.u16()?,
        symbols: reader.u8()?,
        target_ns: reader.u64()?,
    };
    let fits = usize::from(hello.payload_bytes) <= MOST_PAYLOAD_BYTES;
    let combines = usize::from(hello.symbols) <= MOST_COEFFICIENTS;
    if hello.payload_bytes == 0 || !fits || !combines {
        return Err(WireError::Field);
    }
    Ok(hello)
}

/// Writes a packet, and returns its length, including the space of a tag if there is one.
///
/// # Panics
/// The memory is shorter than the packet; [`MOST_DATAGRAM_BYTES`] is always enough.
pub fn emit(header: &Header, body: &Body<'_>, bytes: &mut [u8]) -> usize {
    let mut writer = Writer { bytes, at: 0 };
    let flags = u8::from(header.feedback.is_some()) | u8::from(header.is_tagged) << 1;
    writer.put(&[MAGIC, VERSION << 4 | header.kind.number(), flags, 0]);
    writer.put(&header.connection.to_be_bytes());
    writer.put(&header.packet.to_be_bytes());
    writer.put(&header.sent_ns.to_be_bytes());
    let (echo_ns, held_ns) = header.echo.unwrap_or((0, HELD_UNKNOWN));
    writer.put(&echo_ns.to_be_bytes());
    writer.put(&held_ns.to_be_bytes());
    if let Some(feedback) = &header.feedback {
        writer.put(&feedback.largest.to_be_bytes());
        writer.put(&feedback.packets.to_be_bytes());
        writer.put(&feedback.settled.to_be_bytes());
        writer.put(&feedback.come.to_be_bytes());
        writer.put(&feedback.in_time.to_be_bytes());
        writer.put(&feedback.missed.to_be_bytes());
    }
    match body {
        Body::Hello(hello) => emit_hello(hello, &mut writer),
        Body::Accept(accept) => {
            emit_hello(&accept.own, &mut writer);
            writer.put(&accept.answers);
        }
        Body::Data(data) => {
            writer.put(&data.source.to_be_bytes());
            writer.put(&data.left_ns.to_be_bytes());
            writer.put(&data.gap_ns.to_be_bytes());
            writer.put(&data.open.to_be_bytes());
            writer.put(data.payload);
        }
        Body::Repair(repair) => {
            writer.put(&repair.first.to_be_bytes());
            writer.put(&[repair.coefficients.len() as u8]);
            writer.put(repair.coefficients);
            writer.put(repair.sum);
        }
        Body::Feedback | Body::Farewell => {}
        Body::Refusal(version) => writer.put(&[*version]),
    }
    writer.at + if header.is_tagged { TAG_BYTES } else { 0 }
}

fn emit_hello(hello: &Hello, writer: &mut Writer<'_>) {
    writer.put(&hello.random);
    writer.put(&hello.payload_bytes.to_be_bytes());
    writer.put(&[hello.symbols]);
    writer.put(&hello.target_ns.to_be_bytes());
}

/// Returns the length of a datagram that carries a message of `payload_bytes` bytes, without feedback and tag.
pub const fn data_packet_bytes(payload_bytes: usize) -> usize {
    HEADER_BYTES + DATA_BYTES + payload_bytes
}

/// Returns the length of a datagram with a repair of `symbols` messages of up to `payload_bytes` bytes, without
/// feedback and tag.
pub const fn repair_packet_bytes(symbols: usize, payload_bytes: usize) -> usize {
    HEADER_BYTES + REPAIR_BYTES + symbols + SYMBOL_BYTES + payload_bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            is_tagged: false,
            connection: 7,
            packet: 9,
            sent_ns: 11,
            echo: Some((13, 15)),
            feedback: None,
        }
    }

    #[test]
    fn length_functions_return_the_length_of_emitted_packets() {
        let payload = [1; 100 + SYMBOL_BYTES];
        let mut bytes = [0; MOST_DATAGRAM_BYTES];
        let mut header = header(Kind::Repair);
        let repair = Body::Repair(Repair {
            first: 1,
            coefficients: &[1; 8],
            sum: &payload,
        });
        assert_eq!(
            emit(&header, &repair, &mut bytes),
            repair_packet_bytes(8, 100)
        );
        header.kind = Kind::Data;
        let data = Body::Data(Data {
            source: 1,
            left_ns: 2,
            gap_ns: 3,
            open: 1,
            payload: &payload[SYMBOL_BYTES..],
        });
        assert_eq!(emit(&header, &data, &mut bytes), data_packet_bytes(100));
        header.is_tagged = true;
        header.feedback = Some(Feedback::default());
        let longer = data_packet_bytes(100) + FEEDBACK_BYTES + TAG_BYTES;
        assert_eq!(emit(&header, &data, &mut bytes), longer);
    }

    #[test]
    fn each_malformed_packet_is_refused_with_the_specific_error() {
        let mut bytes = [0; 200];
        let length = emit(&header(Kind::Farewell), &Body::Farewell, &mut bytes);
        assert_eq!(length, HEADER_BYTES);
        assert!(parse(&bytes[..length]).is_ok());
        for (at, value, wanted) in [
            (0, 0, WireError::Foreign),
            (1, 0x25, WireError::Version(2)),
            (1, 0x1F, WireError::Field),
            (2, 4, WireError::Field),
            (3, 1, WireError::Field),
            (2, 2, WireError::Length),
            (1, 0x14, WireError::Field),
        ] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(parse(&wrong[..length]), Err(wanted), "{at} {value}");
        }
        assert_eq!(parse(&bytes[..length + 1]), Err(WireError::Length));
        assert_eq!(parse(&bytes[..length - 1]), Err(WireError::Length));
        assert_eq!(parse(&[]), Err(WireError::Foreign));
        // A refusal of a later version is accepted.
        let length = emit(&header(Kind::Refusal), &Body::Refusal(2), &mut bytes);
        bytes[1] = 0x26;
        assert_eq!(parse(&bytes[..length]).unwrap().1, Body::Refusal(2));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_parse_without_panics_and_parsed_messages_emit_unchanged(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..8_u8, flags in 0..4_u8,
        ) {
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[MAGIC, VERSION << 4 | kind, flags, 0]);
            }
            if let Ok((header, body)) = parse(&bytes) {
                let mut again = [0; MOST_DATAGRAM_BYTES];
                let length = emit(&header, &body, &mut again);
                prop_assert_eq!(length, bytes.len());
                let (second, second_body) = parse(&again[..length]).unwrap();
                prop_assert_eq!((second, second_body), (header, body));
            }
        }
    }
}
