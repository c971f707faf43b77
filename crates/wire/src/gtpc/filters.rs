//! Traffic flow templates: the filters that choose the packets of a dedicated bearer (3GPP TS 24.008 section
//! 10.5.6.12, in the bearer TFT of TS 29.274 section 8.19).

use crate::{Error, view};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::byteorder::big_endian::{U16, U32};

const WHAT: &str = "traffic flow template";

/// The operation of a traffic flow template, such as creating it or adding filters (TS 24.008 section 10.5.6.12, octet
/// 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficFlowOperation(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl TrafficFlowOperation {
    pub const CREATE_NEW_TFT: Self = Self(1);
    pub const DELETE_EXISTING_TFT: Self = Self(2);
    pub const ADD_PACKET_FILTERS: Self = Self(3);
    pub const REPLACE_PACKET_FILTERS: Self = Self(4);
    pub const DELETE_PACKET_FILTERS: Self = Self(5);

    /// Returns true if a template with this operation has complete filters, not only their identifiers.
    fn has_filters(self) -> bool {
        matches!(
            self,
            Self::CREATE_NEW_TFT | Self::ADD_PACKET_FILTERS | Self::REPLACE_PACKET_FILTERS
        )
    }
}

/// The direction of the packets that a filter is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Packets to the user. Filters of senders before release 7 have this direction too.
    Downlink,
    /// Packets from the user.
    Uplink,
    /// Packets of both directions.
    #[default]
    Both,
}

/// One packet filter. Absent fields are not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Identifier of the filter in its template, 0 to 15.
    pub id: u8,
    /// Direction of the packets that the filter is for.
    pub direction: Direction,
    /// Precedence: filters of lower values are compared first.
    pub precedence: u8,
    /// Address of the user's peer, and the length of its compared prefix in bits.
    pub remote: Option<(IpAddr, u8)>,
    /// Address of the user, and the length of its compared prefix in bits.
    pub local: Option<(IpAddr, u8)>,
    /// IP protocol number, such as 17 for UDP.
    pub protocol: Option<u8>,
    /// First and last port of the user.
    pub local_ports: Option<(u16, u16)>,
    /// First and last port of the user's peer.
    pub remote_ports: Option<(u16, u16)>,
    /// Security parameter index of IPsec.
    pub security_parameters: Option<u32>,
    /// Type of service or traffic class, and the mask of the compared bits.
    pub traffic_class: Option<(u8, u8)>,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: Option<u32>,
}

impl PacketFilter {
    /// Returns the filter with the components in `bytes` added.
    fn with(mut self, mut bytes: &[u8]) -> Result<Self, Error> {
        while !bytes.is_empty() {
            let (kind, rest) = view::header::<_, u8>(bytes, WHAT)?;
            bytes = match *kind {
                0x10..=0x23 => self.read_address(*kind, rest)?,
                0x40..=0x51 => self.read_ports(*kind, rest)?,
                kind => self.read_other(kind, rest)?,
            };
        }
        Ok(self)
    }

    /// Reads an address with its mask or prefix length into the filter. Returns the bytes after this component.
    fn read_address<'a>(&mut self, kind: u8, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        match kind {
            0x10 | 0x11 => {
                let (both, rest) = view::header::<_, [[u8; 4]; 2]>(bytes, WHAT)?;
                let length = prefix(u32::from_be_bytes(both[1]).into(), 32)?;
                let end = Some((Ipv4Addr::from(both[0]).into(), length));
                *self.end(kind == 0x10) = end;
                Ok(rest)
            }
            0x20 => {
                let (both, rest) = view::header::<_, [[u8; 16]; 2]>(bytes, WHAT)?;
                let length = prefix(u128::from_be_bytes(both[1]), 128)?;
                self.remote = Some((Ipv6Addr::from(both[0]).into(), length));
                Ok(rest)
            }
            0x21 | 0x23 => {
                let (address, rest) = view::header::<_, [u8; 16]>(bytes, WHAT)?;
                let (length, rest) = view::header::<_, u8>(rest, WHAT)?;
                if *length > 128 {
                    return Err(wrong(usize::from(*length), 128));
                }
                *self.end(kind == 0x21) = Some((Ipv6Addr::from(*address).into(), *length));
                Ok(rest)
            }
            other => Err(wrong(usize::from(other), 0x80)),
        }
    }

    /// Reads a port, or a range of ports, into the filter. Returns the bytes after this component.
    fn read_ports<'a>(&mut self, kind: u8, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        match kind {
            0x40 | 0x50 => {
                let (port, rest) = view::header::<_, U16>(bytes, WHAT)?;
                *self.ports(kind == 0x50) = Some((port.get(), port.get()));
                Ok(rest)
            }
            0x41 | 0x51 => {
                let (ports, rest) = view::header::<_, [U16; 2]>(bytes, WHAT)?;
                let (first, last) = (ports[0].get(), ports[1].get());
                if first > last {
                    return Err(wrong(usize::from(first), usize::from(last)));
                }
                *self.ports(kind == 0x51) = Some((first, last));
                Ok(rest)
            }
            other => Err(wrong(usize::from(other), 0x80)),
        }
    }

    /// Reads a component that is neither an address nor a port into the filter. Returns the bytes after this component.
    fn read_other<'a>(&mut self, kind: u8, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        match kind {
            0x30 => {
                let (protocol, rest) = view::header::<_, u8>(bytes, WHAT)?;
                self.protocol = Some(*protocol);
                Ok(rest)
            }
            0x60 => {
                let (index, rest) = view::header::<_, U32>(bytes, WHAT)?;
                self.security_parameters = Some(index.get());
                Ok(rest)
            }
            0x70 => {
                let (class, rest) = view::header::<_, [u8; 2]>(bytes, WHAT)?;
                self.traffic_class = Some((class[0], class[1]));
                Ok(rest)
            }
            0x80 => {
                let (label, rest) = view::header::<_, [u8; 3]>(bytes, WHAT)?;
                let label = u32::from_be_bytes([0, label[0] & 0xf, label[1], label[2]]);
                self.flow_label = Some(label);
                Ok(rest)
            }
            other => Err(wrong(usize::from(other), 0x80)),
        }
    }

    fn end(&mut self, is_remote: bool) -> &mut Option<(IpAddr, u8)> {
        match is_remote {
            true => &mut self.remote,
            false => &mut self.local,
        }
    }

    fn ports(&mut self, is_remote: bool) -> &mut Option<(u16, u16)> {
        match is_remote {
            true => &mut self.remote_ports,
            false => &mut self.local_ports,
        }
    }
}

/// A traffic flow template: an operation and the filters to which it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficFlow<'a> {
    /// Operation on the filters of the bearer.
    pub operation: TrafficFlowOperation,
    /// Number of filters in the template, 0 to 15.
    count: u8,
    list: &'a [u8],
}

impl<'a> TrafficFlow<'a> {
    /// Reads the template from the value of its element. The filters are checked when they are read.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is empty.
    pub fn parse(value: &'a [u8]) -> Result<Self, Error> {
        let (head, list) = view::header::<_, u8>(value, WHAT)?;
        Ok(Self {
            operation: TrafficFlowOperation(*head >> 5),
            count: *head & 0xf,
            list,
        })
    }

    /// Returns the filters; in a template that deletes filters they have only an identifier. An error is the last item:
    /// `Truncated` if the filters go past the end, `BadLength` for an unknown component or a mask that is no prefix.
    pub fn filters(self) -> impl Iterator<Item = Result<PacketFilter, Error>> + use<'a> {
        let (mut left, mut list) = (self.count, self.list);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let next = self.next(&mut list);
            if next.is_err() {
                left = 0;
            }
            Some(next)
        })
    }

    fn next(self, list: &mut &'a [u8]) -> Result<PacketFilter, Error> {
        let (head, rest) = view::header::<_, u8>(*list, WHAT)?;
        let filter = PacketFilter {
            id: *head & 0xf,
            direction: match *head >> 4 & 3 {
                2 => Direction::Uplink,
                3 => Direction::Both,
                _ => Direction::Downlink,
            },
            ..PacketFilter::default()
        };
        if !self.operation.has_filters() {
            *list = rest;
            return Ok(filter);
        }
        let (sizes, rest) = view::header::<_, [u8; 2]>(rest, WHAT)?;
        let (components, rest) = view::take(rest, usize::from(sizes[1]), WHAT)?;
        *list = rest;
        let precedence = sizes[0];
        PacketFilter {
            precedence,
            ..filter
        }
        .with(components)
    }
}

fn wrong(length: usize, max: usize) -> Error {
    Error::BadLength {
        what: WHAT,
        length,
        min: 0,
        max,
    }
}

/// Returns the length of the prefix that a mask of `bits` bits selects; fails if the mask is no prefix.
fn prefix(mask: u128, bits: u32) -> Result<u8, Error> {
    let length = mask.count_ones();
    let is_prefix = length == 0 || mask == u128::MAX >> (128 - length) << (bits - length);
    match is_prefix {
        true => Ok(u8::try_from(length).unwrap_or(128)),
        false => Err(wrong(length as usize, bits as usize)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A template that creates one filter for UDP from port 53 of 198.51.100.0/24 to ports 1000 to 2000.
    const CREATE: [u8; 24] = [
        0x21, 0x31, 7, 20, 0x10, 198, 51, 100, 0, 255, 255, 255, 0, 0x30, 17, 0x41, 3, 232, 7, 208,
        0x50, 0, 53, 0x30,
    ];

    #[test]
    fn a_filter_of_a_template_is_read() {
        let mut bytes = CREATE.to_vec();
        bytes.push(17);
        bytes[3] = 21;
        let flow = TrafficFlow::parse(&bytes).unwrap();
        assert_eq!(flow.operation, TrafficFlowOperation::CREATE_NEW_TFT);
        let filters: Vec<_> = flow.filters().map(Result::unwrap).collect();
        let want = PacketFilter {
            id: 1,
            direction: Direction::Both,
            precedence: 7,
            remote: Some(([198, 51, 100, 0].into(), 24)),
            protocol: Some(17),
            local_ports: Some((1000, 2000)),
            remote_ports: Some((53, 53)),
            ..PacketFilter::default()
        };
        assert_eq!(filters, [want]);
        for end in 1..bytes.len() {
            let cut = TrafficFlow::parse(&bytes[..end]).unwrap();
            assert!(cut.filters().any(|it| it.is_err()), "{end}");
        }
    }

    #[test]
    fn masks_with_holes_and_unknown_components_are_errors() {
        for (at, value) in [(10, 0), (4, 0x99), (3, 255)] {
            let mut bytes = CREATE.to_vec();
            bytes.push(17);
            bytes[3] = 21;
            bytes[at] = value;
            let flow = TrafficFlow::parse(&bytes).unwrap();
            assert!(flow.filters().next().unwrap().is_err(), "{at}");
            assert!(flow.filters().count() == 1);
        }
        assert_eq!(prefix(0, 32), Ok(0));
        assert_eq!(prefix(u128::MAX, 128), Ok(128));
        assert_eq!(prefix(0xffff_ffff, 32), Ok(32));
    }

    #[test]
    fn a_deletion_names_filters_by_identifier() {
        let flow = TrafficFlow::parse(&[0xa2, 1, 5]).unwrap();
        let ids: Vec<_> = flow.filters().map(|it| it.unwrap().id).collect();
        assert_eq!(ids, [1, 5]);
    }
}
