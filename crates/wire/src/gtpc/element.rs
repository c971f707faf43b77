//! Information elements of GTP-C (3GPP TS 29.274 section 8): those that a gateway reads or writes.

use crate::{Error, view};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::byteorder::big_endian::{U16, U32};

const WHAT: &str = "GTP-C information element";

/// The type of an information element (TS 29.274 table 8.1-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementType(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl ElementType {
    pub const IMSI: Self = Self(1);
    pub const CAUSE: Self = Self(2);
    pub const RECOVERY: Self = Self(3);
    pub const APN: Self = Self(71);
    pub const AMBR: Self = Self(72);
    pub const EBI: Self = Self(73);
    pub const INDICATION: Self = Self(77);
    pub const PCO: Self = Self(78);
    pub const PAA: Self = Self(79);
    pub const BEARER_QOS: Self = Self(80);
    pub const FLOW_QOS: Self = Self(81);
    pub const RAT_TYPE: Self = Self(82);
    pub const SERVING_NETWORK: Self = Self(83);
    pub const BEARER_TFT: Self = Self(84);
    pub const TAD: Self = Self(85);
    pub const F_TEID: Self = Self(87);
    pub const DELAY_VALUE: Self = Self(92);
    pub const BEARER_CONTEXT: Self = Self(93);
    pub const CHARGING_ID: Self = Self(94);
    pub const PDN_TYPE: Self = Self(99);
    pub const PTI: Self = Self(100);
    pub const APN_RESTRICTION: Self = Self(127);
    pub const SELECTION_MODE: Self = Self(128);
    pub const ARP: Self = Self(155);
}

/// The value of a GTP-C cause: why a request was accepted or rejected (TS 29.274 section 8.4, table 8.4-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseValue(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl CauseValue {
    pub const REQUEST_ACCEPTED: Self = Self(16);
    pub const PARTIALLY_ACCEPTED: Self = Self(17);
    pub const NEW_PDN_TYPE_DUE_TO_NETWORK_PREFERENCE: Self = Self(18);
    pub const CONTEXT_NOT_FOUND: Self = Self(64);
    pub const INVALID_MESSAGE_FORMAT: Self = Self(65);
    pub const INVALID_LENGTH: Self = Self(67);
    pub const SERVICE_NOT_SUPPORTED: Self = Self(68);
    pub const MANDATORY_IE_INCORRECT: Self = Self(69);
    pub const MANDATORY_IE_MISSING: Self = Self(70);
    pub const SYSTEM_FAILURE: Self = Self(72);
    pub const NO_RESOURCES: Self = Self(73);
    pub const SEMANTIC_ERROR_IN_TFT: Self = Self(74);
    pub const SYNTACTIC_ERROR_IN_TFT: Self = Self(75);
    pub const PREFERRED_PDN_TYPE_NOT_SUPPORTED: Self = Self(83);
    pub const ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED: Self = Self(84);
    pub const REQUEST_REJECTED: Self = Self(94);
    pub const REMOTE_PEER_NOT_RESPONDING: Self = Self(100);
    pub const CONDITIONAL_IE_MISSING: Self = Self(103);
    pub const INVALID_REPLY_FROM_REMOTE_PEER: Self = Self(107);

    /// Returns true if the cause means that the request was granted, in whole or in part (16 to 63).
    pub fn is_acceptance(self) -> bool {
        (16..64).contains(&self.0)
    }
}

/// A GTP-C cause, and the information element that a rejection is about (TS 29.274 section 8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Value of the cause: why the request was accepted or rejected.
    pub value: CauseValue,
    /// True if the cause comes from the remote node (flag CS): a PDN gateway that is reached through a serving gateway.
    pub is_remote: bool,
    /// The type and the instance of the offending element, if the rejection is about one.
    pub offending: Option<(ElementType, u8)>,
}

impl Cause {
    /// Creates a cause of this node without an offending element.
    pub fn new(value: CauseValue) -> Self {
        Self {
            value,
            is_remote: false,
            offending: None,
        }
    }

    /// Reads a cause from the value of its element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (head, rest) = view::header::<_, [u8; 2]>(value, WHAT)?;
        let offending = match rest {
            [kind, _, _, instance, ..] => Some((ElementType(*kind), *instance & 0xf)),
            _ => None,
        };
        Ok(Self {
            value: CauseValue(head[0]),
            is_remote: head[1] & 1 != 0,
            offending,
        })
    }

    /// Writes the cause as the value of its element.
    pub fn emit(&self) -> Vec<u8> {
        let mut value = vec![self.value.0, u8::from(self.is_remote)];
        if let Some((kind, instance)) = self.offending {
            value.extend([kind.0, 0, 0, instance & 0xf]);
        }
        value
    }
}

/// One information element of a GTP-C message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// Type of the element.
    pub element_type: ElementType,
    /// Instance, 0 to 15, which distinguishes elements of one type in a message.
    pub instance: u8,
    /// Value of the element.
    pub value: &'a [u8],
}

/// A sequence of information elements: those of a message, or of a grouped element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements<'a>(pub &'a [u8]);

impl<'a> Elements<'a> {
    /// Returns the first element with a type and an instance; None if there is none before the first malformed element.
    ///
    /// # Errors
    /// Returns `Truncated` if the length of an element before the found one goes past the end.
    pub fn find(self, kind: ElementType, instance: u8) -> Result<Option<Element<'a>>, Error> {
        for element in self {
            let element = element?;
            if element.element_type == kind && element.instance == instance {
                return Ok(Some(element));
            }
        }
        Ok(None)
    }

    /// Returns the elements with a type and an instance, in order. A malformed element ends the sequence.
    pub fn all(self, kind: ElementType, instance: u8) -> impl Iterator<Item = Element<'a>> {
        self.map_while(Result::ok)
            .filter(move |it| it.element_type == kind && it.instance == instance)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = || {
            let (kind, rest) = view::header::<_, u8>(self.0, WHAT)?;
            let (length, rest) = view::header::<_, U16>(rest, WHAT)?;
            let (instance, rest) = view::header::<_, u8>(rest, WHAT)?;
            let (value, rest) = view::take(rest, usize::from(length.get()), WHAT)?;
            let element = Element {
                element_type: ElementType(*kind),
                instance: *instance & 0xf,
                value,
            };
            Ok((element, rest))
        };
        match split() {
            Ok((element, rest)) => {
                self.0 = rest;
                Some(Ok(element))
            }
            Err(e) => {
                self.0 = &[];
                Some(Err(e))
            }
        }
    }
}

impl<'a> Element<'a> {
    /// Returns the elements that a grouped element contains.
    pub fn group(&self) -> Elements<'a> {
        Elements(self.value)
    }

    /// Returns the first byte of the value: a flag byte or a small number.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is empty.
    pub fn u8(&self) -> Result<u8, Error> {
        view::header::<_, u8>(self.value, WHAT).map(|(n, _)| *n)
    }
}

/// The interface, such as S11, that a tunnel endpoint belongs to (TS 29.274 section 8.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl Interface {
    pub const S1U_ENODEB: Self = Self(0);
    pub const S1U_SGW: Self = Self(1);
    pub const S5_SGW_U: Self = Self(4);
    pub const S5_PGW_U: Self = Self(5);
    pub const S5_SGW_C: Self = Self(6);
    pub const S5_PGW_C: Self = Self(7);
    pub const S11_MME: Self = Self(10);
    pub const S11_SGW: Self = Self(11);
}

/// A fully qualified endpoint of a tunnel: of user packets or of control messages (F-TEID, TS 29.274 section 8.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FTeid {
    /// The interface that the endpoint belongs to.
    pub interface: Interface,
    /// Tunnel endpoint identifier (TEID).
    pub teid: u32,
    /// IPv4 address of the endpoint; None if the element contains none.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address of the endpoint; None if the element contains none.
    pub v6: Option<Ipv6Addr>,
}

impl FTeid {
    /// Creates a tunnel endpoint with one address.
    pub fn new(interface: Interface, teid: u32, address: IpAddr) -> Self {
        let (v4, v6) = match address {
            IpAddr::V4(address) => (Some(address), None),
            IpAddr::V6(address) => (None, Some(address)),
        };
        Self {
            interface,
            teid,
            v4,
            v6,
        }
    }

    /// Returns the address of the endpoint, IPv4 first; None if the element contains none.
    pub fn address(&self) -> Option<IpAddr> {
        let v6 = self.v6.map(IpAddr::V6);
        self.v4.map(IpAddr::V4).or(v6)
    }

    /// Reads a tunnel endpoint from the value of an F-TEID element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (flags, rest) = view::header::<_, u8>(value, WHAT)?;
        let (teid, rest) = view::header::<_, U32>(rest, WHAT)?;
        let (v4, rest) = match *flags & 0x80 != 0 {
            true => view::header::<_, [u8; 4]>(rest, WHAT).map(|(a, rest)| (Some(*a), rest))?,
            false => (None, rest),
        };
        let v6 = match *flags & 0x40 != 0 {
            true => Some(*view::header::<_, [u8; 16]>(rest, WHAT)?.0),
            false => None,
        };
        Ok(Self {
            interface: Interface(*flags & 0x3f),
            teid: teid.get(),
            v4: v4.map(Ipv4Addr::from),
            v6: v6.map(Ipv6Addr::from),
        })
    }

    /// Writes the tunnel endpoint as the value of an F-TEID element.
    pub fn emit(&self) -> Vec<u8> {
        let flags = u8::from(self.v4.is_some()) << 7 | u8::from(self.v6.is_some()) << 6;
        let mut value = vec![flags | self.interface.0 & 0x3f];
        value.extend(self.teid.to_be_bytes());
        value.extend(self.v4.iter().flat_map(Ipv4Addr::octets));
        value.extend(self.v6.iter().flat_map(Ipv6Addr::octets));
        value
    }
}

/// The addresses of a user (PDN address allocation, TS 29.274 section 8.14). An unspecified address requests one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paa {
    /// IPv4 address of the user; None if the PDN type has none.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix of the user with its length in bits, and interface identifier; None if the PDN type has none.
    pub v6: Option<(u8, Ipv6Addr)>,
}

impl Paa {
    /// PDN type IPv4 (TS 29.274 section 8.34).
    pub const V4: u8 = 1;
    /// PDN type IPv6 (TS 29.274 section 8.34).
    pub const V6: u8 = 2;
    /// PDN type of both IP versions (TS 29.274 section 8.34).
    pub const V4V6: u8 = 3;

    /// Reads the addresses from the value of a PAA element; None if the PDN type is none of IPv4, IPv6 and both.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Error> {
        let (kind, rest) = view::header::<_, u8>(value, WHAT)?;
        let kind = *kind & 7;
        if !(Self::V4..=Self::V4V6).contains(&kind) {
            return Ok(None);
        }
        let (v6, rest) = match kind != Self::V4 {
            true => {
                let (length, rest) = view::header::<_, u8>(rest, WHAT)?;
                let (address, rest) = view::header::<_, [u8; 16]>(rest, WHAT)?;
                (Some((*length, Ipv6Addr::from(*address))), rest)
            }
            false => (None, rest),
        };
        let v4 = match kind != Self::V6 {
            true => Some(Ipv4Addr::from(*view::header::<_, [u8; 4]>(rest, WHAT)?.0)),
            false => None,
        };
        Ok(Some(Self { v4, v6 }))
    }

    /// Writes the addresses as the value of a PAA element.
    pub fn emit(&self) -> Vec<u8> {
        let kind = u8::from(self.v4.is_some()) | u8::from(self.v6.is_some()) << 1;
        let mut value = vec![kind];
        if let Some((length, address)) = self.v6 {
            value.push(length);
            value.extend(address.octets());
        }
        value.extend(self.v4.iter().flat_map(Ipv4Addr::octets));
        value
    }
}

/// The quality of service of a bearer (TS 29.274 section 8.15). Rates are in kbit/s of 1000 bits, 40 bits each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BearerQos {
    /// Allocation and retention priority (ARP), in the bit layout of TS 29.274 section 8.86.
    pub arp: u8,
    /// QoS class identifier (TS 23.203 table 6.1.7-A); classes 1 to 4 have guaranteed rates.
    pub qci: u8,
    /// Maximum bit rate of packets from the user; 0 for bearers without guaranteed rates.
    pub mbr_uplink_kbps: u64,
    /// Maximum bit rate of packets to the user.
    pub mbr_downlink_kbps: u64,
    /// Guaranteed bit rate of packets from the user.
    pub gbr_uplink_kbps: u64,
    /// Guaranteed bit rate of packets to the user.
    pub gbr_downlink_kbps: u64,
}

impl BearerQos {
    /// Reads the quality of service from the value of its element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (head, rest) = view::header::<_, [u8; 2]>(value, WHAT)?;
        let (rates, _) = view::header::<_, [[u8; 5]; 4]>(rest, WHAT)?;
        let [
            mbr_uplink_kbps,
            mbr_downlink_kbps,
            gbr_uplink_kbps,
            gbr_downlink_kbps,
        ] = rates.map(|rate| rate.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
        Ok(Self {
            arp: head[0],
            qci: head[1],
            mbr_uplink_kbps,
            mbr_downlink_kbps,
            gbr_uplink_kbps,
            gbr_downlink_kbps,
        })
    }

    /// Writes the quality of service as the value of its element.
    pub fn emit(&self) -> Vec<u8> {
        let rates = [
            self.mbr_uplink_kbps,
            self.mbr_downlink_kbps,
            self.gbr_uplink_kbps,
            self.gbr_downlink_kbps,
        ]
        .map(u64::to_be_bytes);
        let mut value = vec![self.arp, self.qci];
        value.extend(rates.iter().flat_map(|rate| &rate[3..]));
        value
    }
}

/// The aggregate maximum bit rates of a user's bearers without guaranteed rates (TS 29.274 section 8.7), kbit/s of 1000
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ambr {
    /// Maximum total bit rate of packets from the user.
    pub uplink_kbps: u32,
    /// Maximum total bit rate of packets to the user.
    pub downlink_kbps: u32,
}

impl Ambr {
    /// Reads the aggregate maximum bit rates from the value of their element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (rates, _) = view::header::<_, [U32; 2]>(value, WHAT)?;
        Ok(Self {
            uplink_kbps: rates[0].get(),
            downlink_kbps: rates[1].get(),
        })
    }

    /// Writes the aggregate maximum bit rates as the value of their element.
    pub fn emit(&self) -> Vec<u8> {
        let rates = [self.uplink_kbps, self.downlink_kbps].map(u32::to_be_bytes);
        rates.concat()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_have_the_layout_of_the_specification() {
        let teid = FTeid::new(Interface::S11_MME, 0x1122_3344, [192, 0, 2, 9].into());
        let bytes = [0x8a, 0x11, 0x22, 0x33, 0x44, 192, 0, 2, 9];
        assert_eq!(teid.emit(), bytes);
        assert_eq!(FTeid::parse(&bytes), Ok(teid));
        let paa = Paa {
            v4: Some([10, 45, 0, 2].into()),
            v6: None,
        };
        assert_eq!(paa.emit(), [1, 10, 45, 0, 2]);
        assert_eq!(Paa::parse(&[1, 10, 45, 0, 2]), Ok(Some(paa)));
        let cause = Cause {
            offending: Some((ElementType::F_TEID, 1)),
            ..Cause::new(CauseValue::MANDATORY_IE_MISSING)
        };
        assert_eq!(cause.emit(), [70, 0, 87, 0, 0, 1]);
        assert_eq!(Cause::parse(&[70, 0, 87, 0, 0, 1]), Ok(cause));
        let qos = BearerQos {
            qci: 1,
            mbr_uplink_kbps: 0x01_0000_0002,
            ..BearerQos::default()
        };
        assert_eq!(qos.emit()[..7], [0, 1, 1, 0, 0, 0, 2]);
        assert_eq!(qos.emit().len(), 22);
    }

    #[test]
    fn truncated_values_are_refused() {
        let both = Paa {
            v4: Some([10, 45, 0, 2].into()),
            v6: Some((64, Ipv6Addr::LOCALHOST)),
        };
        let teid = FTeid {
            interface: Interface::S1U_SGW,
            teid: 7,
            v4: both.v4,
            v6: Some(Ipv6Addr::LOCALHOST),
        };
        for (whole, parses) in [
            (
                both.emit(),
                (|it| Paa::parse(it).is_ok()) as fn(&[u8]) -> bool,
            ),
            (teid.emit(), |it| FTeid::parse(it).is_ok()),
            (BearerQos::default().emit(), |it| {
                BearerQos::parse(it).is_ok()
            }),
            (Ambr::default().emit(), |it| Ambr::parse(it).is_ok()),
        ] {
            assert!(parses(&whole));
            assert!((0..whole.len()).all(|end| !parses(&whole[..end])));
        }
        assert_eq!(Paa::parse(&[4]), Ok(None));
    }
}
