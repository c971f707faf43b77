//! The parser of frames for address translation; it runs before the lookups of a batch.

use super::outcome::Outcome;
use taut_wire::{Fault, Headers, IpProtocol, Layer3, Tcp, Udp};

/// The protocol to which the ports belong. ICMP queries have an identifier in place of ports (RFC 5508).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Udp,
    Tcp,
    Icmp,
}

impl Class {
    /// Returns the offset of the checksum, bytes from the header's beginning.
    pub fn checksum_at(self) -> usize {
        match self {
            Self::Udp => 6,
            Self::Tcp => 16,
            Self::Icmp => 2,
        }
    }
}

/// The bits of flags in the TCP header; this one is FIN.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// An IPv4 address and a port, or the identifier of an ICMP query in place of the port.
pub(crate) type Endpoint = (u32, u16);

/// The fields of a TCP header that the connection state needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// The sequence number after the segment.
    pub end: u32,
}

/// A packet with ports, complete or quoted by an ICMP error. Offsets are in bytes from the frame's beginning.
// The structure is small, because there is one for each packet of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub ip: u16,
    pub transport: u16,
    /// The offset after the packet's last byte in the frame.
    pub end: u16,
    pub class: Class,
    pub source: Endpoint,
    pub destination: Endpoint,
}

/// The kind of a frame for the translator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Flow(Flow),
    /// An ICMP error, and the packet that it is about.
    Error {
        ip: u16,
        icmp: u16,
        source: u32,
        destination: u32,
        about: Flow,
    },
    Settled(Outcome),
}

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
/// The minimum number of bytes of a transport header that an ICMP error quotes (RFC 792).
const QUOTED: usize = 8;

impl Seen {
    /// Parses a frame, with a fast path for usual frames.
    #[inline(always)]
    pub fn of(frame: &[u8]) -> Self {
        match Headers::usual(frame) {
            Some(headers) => Self::read(&headers, frame).unwrap_or_else(Self::Settled),
            None => Self::any(frame),
        }
    }

    /// Parses a frame of any form, without the fast path for usual frames.
    #[inline(never)]
    fn any(frame: &[u8]) -> Self {
        Self::read(&Headers::of(frame), frame).unwrap_or_else(Self::Settled)
    }

    #[inline(always)]
    fn read(headers: &Headers, frame: &[u8]) -> Result<Self, Outcome> {
        match (headers.layer3(), headers.fault()) {
            (_, Some(Fault::Ethernet)) | (Layer3::Ipv4, Some(Fault::Ip)) => {
                return Err(Outcome::Malformed);
            }
            (Layer3::Ipv4, _) => {}
            _ => return Err(Outcome::Passed),
        }
        if headers.is_fragment() {
            return Err(Outcome::Fragment);
        }
        let (at, transport) = (headers.ip(), headers.transport());
        let payload = headers.transport_in(frame);
        let addresses = frame.get(at + 12..).and_then(|it| it.first_chunk());
        let [a, b, c, d, e, f, g, h] = *addresses.ok_or(Outcome::Malformed)?;
        let source = u32::from_be_bytes([a, b, c, d]);
        let destination = u32::from_be_bytes([e, f, g, h]);
        let (class, ports) = match headers.protocol() {
            IpProtocol::UDP => {
                let udp = Udp::new(payload).map_err(|_| Outcome::Malformed)?;
                (Class::Udp, (udp.source_port(), udp.destination_port()))
            }
            IpProtocol::TCP => {
                Tcp::new(payload).map_err(|_| Outcome::Malformed)?;
                (Class::Tcp, ports_of(payload))
            }
            IpProtocol::ICMP => {
                if payload.len() < QUOTED {
                    return Err(Outcome::Malformed);
                }
                match payload[0] {
                    ECHO_REPLY | ECHO_REQUEST => {
                        let identifier = u16::from_be_bytes([payload[4], payload[5]]);
                        (Class::Icmp, (identifier, identifier))
                    }
                    UNREACHABLE | SOURCE_QUENCH | TIME_EXCEEDED | PARAMETER_PROBLEM => {
                        let about = quoted(payload, transport)?;
                        return Ok(Self::Error {
                            ip: at as u16,
                            icmp: transport as u16,
                            source,
                            destination,
                            about,
                        });
                    }
                    _ => return Err(Outcome::Protocol),
                }
            }
            _ => return Err(Outcome::Protocol),
        };
        Ok(Self::Flow(Flow {
            ip: at as u16,
            transport: transport as u16,
            end: headers.end() as u16,
            class,
            source: (source, ports.0),
            destination: (destination, ports.1),
        }))
    }
}

impl Flow {
    /// Returns the fields that the connection state needs. The packet must be TCP and not quoted in an ICMP error.
    #[inline]
    pub fn segment(&self, frame: &[u8]) -> Segment {
        Segment::of(&frame[usize::from(self.transport)..usize::from(self.end)])
    }
}

impl Segment {
    /// Parses a TCP segment whose header was checked to be complete.
    fn of(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let flags = bytes[13];
        let header_len = usize::from(bytes[12] >> 4) * 4;
        // SYN and FIN use a number each (RFC 9293 section 3.4). The length saturates at 0, because a memif peer may
        // have changed the header length since the check.
        let len = (bytes.len().saturating_sub(header_len)) as u32
            + u32::from(flags & SYN != 0)
            + u32::from(flags & FIN != 0);
        Self {
            flags,
            sequence: word(4),
            acknowledgement: word(8),
            end: word(4).wrapping_add(len),
        }
    }
}

/// Returns source and destination port at the beginning of a header of at least 8 bytes.
fn ports_of(header: &[u8]) -> (u16, u16) {
    (
        u16::from_be_bytes([header[0], header[1]]),
        u16::from_be_bytes([header[2], header[3]]),
    )
}

/// Returns the packet that an ICMP error quotes, which may be truncated.
#[cold]
fn quoted(icmp: &[u8], icmp_at: usize) -> Result<Flow, Outcome> {
    let inner = &icmp[QUOTED..];
    let at = icmp_at + QUOTED;
    let header_len = match inner.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 15) * 4,
        _ => return Err(Outcome::Malformed),
    };
    if header_len < 20 || inner.len() < header_len + QUOTED {
        return Err(Outcome::Malformed);
    }
    if u16::from_be_bytes([inner[6], inner[7]]) & 0x1fff != 0 {
        return Err(Outcome::Fragment);
    }
    let (header, transport) = inner.split_at(header_len);
    let (class, ports) = match IpProtocol(header[9]) {
        IpProtocol::UDP => (Class::Udp, ports_of(transport)),
        IpProtocol::TCP => (Class::Tcp, ports_of(transport)),
        IpProtocol::ICMP if [ECHO_REPLY, ECHO_REQUEST].contains(&transport[0]) => {
            let identifier = u16::from_be_bytes([transport[4], transport[5]]);
            (Class::Icmp, (identifier, identifier))
        }
        _ => return Err(Outcome::Protocol),
    };
    let address = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    Ok(Flow {
        ip: at as u16,
        transport: (at + header_len) as u16,
        end: (icmp_at + icmp.len()) as u16,
        class,
        source: (address(12), ports.0),
        destination: (address(16), ports.1),
    })
}
