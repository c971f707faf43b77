//! Information elements of PFCP (3GPP TS 29.244 section 8): those that a user plane reads or writes.

use crate::{Error, view};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

const WHAT: &str = "PFCP information element";

/// The type of an information element (TS 29.244 table 8.1.2-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementType(pub u16);

#[allow(missing_docs)] // their names are those of the specification
impl ElementType {
    pub const CREATE_PDR: Self = Self(1);
    pub const PDI: Self = Self(2);
    pub const CREATE_FAR: Self = Self(3);
    pub const FORWARDING_PARAMETERS: Self = Self(4);
    pub const CREATE_URR: Self = Self(6);
    pub const CREATE_QER: Self = Self(7);
    pub const CREATED_PDR: Self = Self(8);
    pub const UPDATE_PDR: Self = Self(9);
    pub const UPDATE_FAR: Self = Self(10);
    pub const UPDATE_FORWARDING_PARAMETERS: Self = Self(11);
    pub const UPDATE_URR: Self = Self(13);
    pub const UPDATE_QER: Self = Self(14);
    pub const REMOVE_PDR: Self = Self(15);
    pub const REMOVE_FAR: Self = Self(16);
    pub const REMOVE_URR: Self = Self(17);
    pub const REMOVE_QER: Self = Self(18);
    pub const CAUSE: Self = Self(19);
    pub const SOURCE_INTERFACE: Self = Self(20);
    pub const F_TEID: Self = Self(21);
    pub const SDF_FILTER: Self = Self(23);
    pub const APPLICATION_ID: Self = Self(24);
    pub const GATE_STATUS: Self = Self(25);
    pub const MBR: Self = Self(26);
    pub const PRECEDENCE: Self = Self(29);
    pub const VOLUME_THRESHOLD: Self = Self(31);
    pub const TIME_THRESHOLD: Self = Self(32);
    pub const REPORTING_TRIGGERS: Self = Self(37);
    pub const REPORT_TYPE: Self = Self(39);
    pub const OFFENDING_IE: Self = Self(40);
    pub const UP_FUNCTION_FEATURES: Self = Self(43);
    pub const APPLY_ACTION: Self = Self(44);
    pub const DOWNLINK_DATA_NOTIFICATION_DELAY: Self = Self(46);
    pub const PFCPSMREQ_FLAGS: Self = Self(49);
    pub const PFCPSRRSP_FLAGS: Self = Self(50);
    pub const PDR_ID: Self = Self(56);
    pub const F_SEID: Self = Self(57);
    pub const NODE_ID: Self = Self(60);
    pub const MEASUREMENT_METHOD: Self = Self(62);
    pub const USAGE_REPORT_TRIGGER: Self = Self(63);
    pub const MEASUREMENT_PERIOD: Self = Self(64);
    pub const VOLUME_MEASUREMENT: Self = Self(66);
    pub const DURATION_MEASUREMENT: Self = Self(67);
    pub const TIME_OF_FIRST_PACKET: Self = Self(69);
    pub const TIME_OF_LAST_PACKET: Self = Self(70);
    pub const VOLUME_QUOTA: Self = Self(73);
    pub const TIME_QUOTA: Self = Self(74);
    pub const START_TIME: Self = Self(75);
    pub const END_TIME: Self = Self(76);
    pub const QUERY_URR: Self = Self(77);
    pub const USAGE_REPORT_IN_MODIFICATION: Self = Self(78);
    pub const USAGE_REPORT_IN_DELETION: Self = Self(79);
    pub const USAGE_REPORT_IN_REQUEST: Self = Self(80);
    pub const URR_ID: Self = Self(81);
    pub const DOWNLINK_DATA_REPORT: Self = Self(83);
    pub const OUTER_HEADER_CREATION: Self = Self(84);
    pub const CREATE_BAR: Self = Self(85);
    pub const UPDATE_BAR: Self = Self(86);
    pub const REMOVE_BAR: Self = Self(87);
    pub const BAR_ID: Self = Self(88);
    pub const UE_IP_ADDRESS: Self = Self(93);
    pub const OUTER_HEADER_REMOVAL: Self = Self(95);
    pub const RECOVERY_TIME_STAMP: Self = Self(96);
    pub const MEASUREMENT_INFORMATION: Self = Self(100);
    pub const NODE_REPORT_TYPE: Self = Self(101);
    pub const USER_PLANE_PATH_FAILURE_REPORT: Self = Self(102);
    pub const REMOTE_GTPU_PEER: Self = Self(103);
    pub const UR_SEQN: Self = Self(104);
    pub const FAR_ID: Self = Self(108);
    pub const QER_ID: Self = Self(109);
    pub const FAILED_RULE_ID: Self = Self(114);
    pub const QFI: Self = Self(124);
    pub const SUGGESTED_BUFFERING_PACKETS_COUNT: Self = Self(140);
    pub const SESSION_RETENTION_INFORMATION: Self = Self(183);
    pub const USER_PLANE_PATH_RECOVERY_REPORT: Self = Self(187);
}

/// The cause in a PFCP response: why a request was accepted or rejected (TS 29.244 section 8.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl Cause {
    pub const ACCEPTED: Self = Self(1);
    pub const SESSION_NOT_FOUND: Self = Self(65);
    pub const MANDATORY_IE_MISSING: Self = Self(66);
    pub const INVALID_LENGTH: Self = Self(68);
    pub const MANDATORY_IE_INCORRECT: Self = Self(69);
    pub const INVALID_F_TEID_ALLOCATION: Self = Self(71);
    pub const NO_ASSOCIATION: Self = Self(72);
    pub const RULE_FAILURE: Self = Self(73);
    pub const NO_RESOURCES: Self = Self(75);
    pub const SERVICE_NOT_SUPPORTED: Self = Self(76);
    pub const SYSTEM_FAILURE: Self = Self(77);
    pub const ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED: Self = Self(79);
}

/// One information element of a PFCP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// Type of the element.
    pub element_type: ElementType,
    /// Value of the element.
    pub value: &'a [u8],
}

/// A sequence of information elements: those of a message, or of a grouped element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements<'a>(pub &'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = || {
            let (kind, rest) = view::header::<_, U16>(self.0, WHAT)?;
            let (length, rest) = view::header::<_, U16>(rest, WHAT)?;
            let (value, rest) = view::take(rest, usize::from(length.get()), WHAT)?;
            let element_type = ElementType(kind.get());
            Ok((
                Element {
                    element_type,
                    value,
                },
                rest,
            ))
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

    /// Returns the first two bytes of the value as a number.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn u16(&self) -> Result<u16, Error> {
        view::header::<_, U16>(self.value, WHAT).map(|(n, _)| n.get())
    }

    /// Returns the first four bytes of the value as a number.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn u32(&self) -> Result<u32, Error> {
        view::header::<_, U32>(self.value, WHAT).map(|(n, _)| n.get())
    }
}

fn v4(bytes: &[u8]) -> Result<(Ipv4Addr, &[u8]), Error> {
    let (address, rest) = view::header::<_, [u8; 4]>(bytes, WHAT)?;
    Ok((Ipv4Addr::from(*address), rest))
}

fn v6(bytes: &[u8]) -> Result<(Ipv6Addr, &[u8]), Error> {
    let (address, rest) = view::header::<_, [u8; 16]>(bytes, WHAT)?;
    Ok((Ipv6Addr::from(*address), rest))
}

/// The IPv4 and the IPv6 address in an element's value, in this order, each of which is present if its flag is set.
type Addresses = (Option<Ipv4Addr>, Option<Ipv6Addr>);

fn addresses(bytes: &[u8], has_v4: bool, has_v6: bool) -> Result<Addresses, Error> {
    let (address_v4, rest) = match has_v4 {
        true => v4(bytes).map(|(address, rest)| (Some(address), rest))?,
        false => (None, bytes),
    };
    let address_v6 = match has_v6 {
        true => Some(v6(rest)?.0),
        false => None,
    };
    Ok((address_v4, address_v6))
}

/// A tunnel endpoint (F-TEID, TS 29.244 section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FTeid {
    /// A tunnel endpoint that is already chosen.
    Chosen {
        /// Tunnel endpoint identifier (TEID).
        teid: u32,
        /// IPv4 address of the endpoint; None if the element contains none.
        v4: Option<Ipv4Addr>,
        /// IPv6 address of the endpoint; None if the element contains none.
        v6: Option<Ipv6Addr>,
    },
    /// A tunnel endpoint that the user plane shall choose.
    Choose {
        /// True if the endpoint shall have an IPv4 address.
        v4: bool,
        /// True if the endpoint shall have an IPv6 address.
        v6: bool,
        /// Choose identifier: all elements of a message that carry the same identifier get the same endpoint. None if
        /// the element carries no identifier.
        id: Option<u8>,
    },
}

impl FTeid {
    /// Parses the encoded value of the element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (flags, rest) = view::header::<_, u8>(value, WHAT)?;
        let (has_v4, has_v6) = (*flags & 1 != 0, *flags & 2 != 0);
        if *flags & 4 != 0 {
            let id = match *flags & 8 != 0 {
                true => Some(*view::header::<_, u8>(rest, WHAT)?.0),
                false => None,
            };
            return Ok(Self::Choose {
                v4: has_v4,
                v6: has_v6,
                id,
            });
        }
        let (teid, rest) = view::header::<_, U32>(rest, WHAT)?;
        let (v4, v6) = addresses(rest, has_v4, has_v6)?;
        let teid = teid.get();
        Ok(Self::Chosen { teid, v4, v6 })
    }

    /// Returns the encoded value of the element.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Chosen { teid, v4, v6 } => {
                let flags = u8::from(v4.is_some()) | u8::from(v6.is_some()) << 1;
                let mut value = vec![flags];
                value.extend(teid.to_be_bytes());
                value.extend(v4.iter().flat_map(Ipv4Addr::octets));
                value.extend(v6.iter().flat_map(Ipv6Addr::octets));
                value
            }
            Self::Choose { v4, v6, id } => {
                let flags = u8::from(*v4) | u8::from(*v6) << 1 | 4 | u8::from(id.is_some()) << 3;
                [flags].into_iter().chain(*id).collect()
            }
        }
    }
}

/// The identifier of a session at one endpoint, and the address of that endpoint (F-SEID, TS 29.244 section 8.2.37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seid {
    /// Session endpoint identifier (SEID).
    pub seid: u64,
    /// IPv4 address of the node that assigned the identifier; None if the element contains none.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address of the node that assigned the identifier; None if the element contains none.
    pub v6: Option<Ipv6Addr>,
}

impl Seid {
    /// Parses the encoded value of the element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (flags, rest) = view::header::<_, u8>(value, WHAT)?;
        let (seid, rest) = view::header::<_, U64>(rest, WHAT)?;
        let (v4, v6) = addresses(rest, *flags & 2 != 0, *flags & 1 != 0)?;
        let seid = seid.get();
        Ok(Self { seid, v4, v6 })
    }

    /// Returns the encoded value of the element.
    pub fn emit(&self) -> Vec<u8> {
        let flags = u8::from(self.v6.is_some()) | u8::from(self.v4.is_some()) << 1;
        let mut value = vec![flags];
        value.extend(self.seid.to_be_bytes());
        value.extend(self.v4.iter().flat_map(Ipv4Addr::octets));
        value.extend(self.v6.iter().flat_map(Ipv6Addr::octets));
        value
    }
}

/// A user's addresses (UE IP address, TS 29.244 section 8.2.62).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UeAddress {
    /// IPv4 address of the user; None if the element contains none.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address of the user; None if the element contains none.
    pub v6: Option<Ipv6Addr>,
    /// True if the user plane shall choose an IPv4 address.
    pub choose_v4: bool,
    /// True if the user plane shall choose an IPv6 prefix.
    pub choose_v6: bool,
}

impl UeAddress {
    /// Parses the encoded value of the element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (flags, rest) = view::header::<_, u8>(value, WHAT)?;
        let (choose_v4, choose_v6) = (*flags & 0x10 != 0, *flags & 0x20 != 0);
        // An element that requests the choice of an address does not contain that address.
        let has_v4 = *flags & 2 != 0 && !choose_v4;
        let (v4, v6) = addresses(rest, has_v4, *flags & 1 != 0 && !choose_v6)?;
        Ok(Self {
            v4,
            v6,
            choose_v4,
            choose_v6,
        })
    }

    /// Returns the encoded value of the element. `is_destination` is true if the address is the destination of packets
    /// to the user (flag S/D).
    pub fn emit(&self, is_destination: bool) -> Vec<u8> {
        let flags = u8::from(self.v6.is_some())
            | u8::from(self.v4.is_some()) << 1
            | u8::from(is_destination) << 2
            | u8::from(self.choose_v4) << 4
            | u8::from(self.choose_v6) << 5;
        let mut value = vec![flags];
        value.extend(self.v4.iter().flat_map(Ipv4Addr::octets));
        value.extend(self.v6.iter().flat_map(Ipv6Addr::octets));
        value
    }
}

/// The outer headers that the user plane adds to packets (TS 29.244 section 8.2.56).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaderCreation {
    /// Tunnel endpoint identifier of the added GTP-U header.
    pub teid: u32,
    /// Destination IPv4 address of the packets; None if the element contains none.
    pub v4: Option<Ipv4Addr>,
    /// Destination IPv6 address of the packets; None if the element contains none.
    pub v6: Option<Ipv6Addr>,
}

impl OuterHeaderCreation {
    /// Parses the encoded value of the element; None if the headers are not those of GTP-U.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Error> {
        let (flags, rest) = view::header::<_, U16>(value, WHAT)?;
        let (gtpu_v4, gtpu_v6) = (flags.get() & 0x0100 != 0, flags.get() & 0x0200 != 0);
        if !gtpu_v4 && !gtpu_v6 {
            return Ok(None);
        }
        let (teid, rest) = view::header::<_, U32>(rest, WHAT)?;
        let (v4, v6) = addresses(rest, gtpu_v4, gtpu_v6)?;
        let teid = teid.get();
        Ok(Some(Self { teid, v4, v6 }))
    }

    /// Returns the encoded value of the element.
    pub fn emit(&self) -> Vec<u8> {
        let flags = u8::from(self.v4.is_some()) | u8::from(self.v6.is_some()) << 1;
        let mut value = vec![flags, 0];
        value.extend(self.teid.to_be_bytes());
        value.extend(self.v4.iter().flat_map(Ipv4Addr::octets));
        value.extend(self.v6.iter().flat_map(Ipv6Addr::octets));
        value
    }
}

/// The maximum bit rates of a QoS enforcement rule (MBR, TS 29.244 section 8.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mbr {
    /// Maximum bit rate of packets from the user, kbit/s of 1000 bits; the lowest 40 bits are written.
    pub uplink_kbps: u64,
    /// Maximum bit rate of packets to the user, kbit/s of 1000 bits; the lowest 40 bits are written.
    pub downlink_kbps: u64,
}

impl Mbr {
    /// Parses the encoded value of the element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (rates, _) = view::header::<_, [[u8; 5]; 2]>(value, WHAT)?;
        let [uplink_kbps, downlink_kbps] =
            rates.map(|rate| rate.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
        Ok(Self {
            uplink_kbps,
            downlink_kbps,
        })
    }

    /// Returns the encoded value of the element.
    pub fn emit(self) -> Vec<u8> {
        let rates = [self.uplink_kbps, self.downlink_kbps].map(u64::to_be_bytes);
        rates.iter().flat_map(|rate| &rate[3..]).copied().collect()
    }
}

/// The identity of a PFCP node (TS 29.244 section 8.2.38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub IpAddr);

impl NodeId {
    /// Returns the encoded value of the element.
    pub fn emit(self) -> Vec<u8> {
        match self.0 {
            IpAddr::V4(address) => [&[0][..], &address.octets()].concat(),
            IpAddr::V6(address) => [&[1][..], &address.octets()].concat(),
        }
    }

    /// Returns true if the value of an element is a valid node identity: an IPv4 or IPv6 address, or a name.
    pub fn is_one(value: &[u8]) -> bool {
        match value {
            [0, address @ ..] => address.len() == 4,
            [1, address @ ..] => address.len() == 16,
            [2, name @ ..] => !name.is_empty(),
            _ => false,
        }
    }
}

/// A rule that could not be created or modified (failed rule ID, TS 29.244 section 8.2.80).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedRule {
    /// A packet detection rule; the value is its identifier.
    Pdr(u16),
    /// A forwarding action rule; the value is its identifier.
    Far(u32),
    /// A QoS enforcement rule; the value is its identifier.
    Qer(u32),
    /// A usage reporting rule; the value is its identifier.
    Urr(u32),
    /// A buffering action rule; the value is its identifier.
    Bar(u8),
}

impl FailedRule {
    /// Returns the encoded value of the element.
    pub fn emit(self) -> Vec<u8> {
        match self {
            Self::Pdr(id) => [&[0][..], &id.to_be_bytes()].concat(),
            Self::Far(id) => [&[1][..], &id.to_be_bytes()].concat(),
            Self::Qer(id) => [&[2][..], &id.to_be_bytes()].concat(),
            Self::Urr(id) => [&[3][..], &id.to_be_bytes()].concat(),
            Self::Bar(id) => vec![4, id],
        }
    }
}

/// A filter for the packets to which a rule applies (SDF filter, TS 29.244 section 8.2.5). Absent fields are not
/// compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SdfFilter<'a> {
    /// Flow description in the syntax of TS 29.212 section 5.4.2; None if the filter contains none.
    pub description: Option<&'a [u8]>,
    /// Type of service or traffic class, and the mask of the compared bits; None if the class is not compared.
    pub traffic_class: Option<(u8, u8)>,
    /// Security parameter index of IPsec; None if the index is not compared.
    pub security_parameters: Option<u32>,
    /// Flow label of IPv6, 20 bits; None if the label is not compared.
    pub flow_label: Option<u32>,
    /// Identifier by which other rules of the session may refer to the filter; None if the filter has no identifier.
    pub id: Option<u32>,
}

impl<'a> SdfFilter<'a> {
    /// Parses the encoded value of the element.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &'a [u8]) -> Result<Self, Error> {
        let (head, mut rest) = view::header::<_, [u8; 2]>(value, WHAT)?;
        let flags = head[0];
        let mut filter = Self::default();
        if flags & 1 != 0 {
            let (length, behind) = view::header::<_, U16>(rest, WHAT)?;
            let (text, behind) = view::take(behind, usize::from(length.get()), WHAT)?;
            (filter.description, rest) = (Some(text), behind);
        }
        if flags & 2 != 0 {
            let (class, behind) = view::header::<_, [u8; 2]>(rest, WHAT)?;
            (filter.traffic_class, rest) = (Some((class[0], class[1])), behind);
        }
        if flags & 4 != 0 {
            let (index, behind) = view::header::<_, U32>(rest, WHAT)?;
            (filter.security_parameters, rest) = (Some(index.get()), behind);
        }
        if flags & 8 != 0 {
            let (label, behind) = view::header::<_, [u8; 3]>(rest, WHAT)?;
            let label = u32::from_be_bytes([0, label[0] & 0xf, label[1], label[2]]);
            (filter.flow_label, rest) = (Some(label), behind);
        }
        if flags & 16 != 0 {
            filter.id = Some(view::header::<_, U32>(rest, WHAT)?.0.get());
        }
        Ok(filter)
    }

    /// Returns the encoded value of the element.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a description is read from an element, whose length has 16 bits"
    )]
    pub fn emit(&self) -> Vec<u8> {
        let flags = u8::from(self.description.is_some())
            | u8::from(self.traffic_class.is_some()) << 1
            | u8::from(self.security_parameters.is_some()) << 2
            | u8::from(self.flow_label.is_some()) << 3
            | u8::from(self.id.is_some()) << 4;
        let mut value = vec![flags, 0];
        if let Some(text) = self.description {
            value.extend((text.len() as u16).to_be_bytes());
            value.extend(text);
        }
        if let Some((class, mask)) = self.traffic_class {
            value.extend([class, mask]);
        }
        value.extend(
            self.security_parameters
                .iter()
                .flat_map(|n| n.to_be_bytes()),
        );
        if let Some(label) = self.flow_label {
            value.extend(&(label & 0xf_ffff).to_be_bytes()[1..]);
        }
        value.extend(self.id.iter().flat_map(|n| n.to_be_bytes()));
        value
    }
}

/// Volumes in bytes: a threshold or a quota (TS 29.244 sections 8.2.13 and 8.2.50), or a measurement (section 8.2.44).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Bytes in both directions together; None if the element contains none.
    pub total: Option<u64>,
    /// Bytes from the user; None if the element contains none.
    pub uplink: Option<u64>,
    /// Bytes to the user; None if the element contains none.
    pub downlink: Option<u64>,
}

impl Volumes {
    /// Parses the encoded value of the element; packet counts after the volumes are ignored.
    ///
    /// # Errors
    /// Returns `Truncated` if the value is too short.
    pub fn parse(value: &[u8]) -> Result<Self, Error> {
        let (flags, mut rest) = view::header::<_, u8>(value, WHAT)?;
        let mut next = |bit: u8| -> Result<Option<u64>, Error> {
            if *flags & bit == 0 {
                return Ok(None);
            }
            let (bytes, behind) = view::header::<_, U64>(rest, WHAT)?;
            rest = behind;
            Ok(Some(bytes.get()))
        };
        Ok(Self {
            total: next(1)?,
            uplink: next(2)?,
            downlink: next(4)?,
        })
    }

    /// Returns the encoded value of the element.
    pub fn emit(&self) -> Vec<u8> {
        let all = [self.total, self.uplink, self.downlink];
        let flags = (0..)
            .zip(&all)
            .map(|(bit, it)| u8::from(it.is_some()) << bit);
        let mut value = vec![flags.sum()];
        value.extend(all.iter().flatten().flat_map(|bytes| bytes.to_be_bytes()));
        value
    }
}

/// Returns the encoded value of an element with the address of a GTP-U peer (remote GTP-U peer, TS 29.244 section
/// 8.2.70).
pub fn emit_gtpu_peer(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => [&[2][..], &address.octets()].concat(),
        IpAddr::V6(address) => [&[1][..], &address.octets()].concat(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_truncated_at_any_length_are_refused() {
        let teid = FTeid::Chosen {
            teid: 5,
            v4: Some(Ipv4Addr::LOCALHOST),
            v6: Some(Ipv6Addr::LOCALHOST),
        };
        let seid = Seid {
            seid: 9,
            v4: Some(Ipv4Addr::LOCALHOST),
            v6: Some(Ipv6Addr::LOCALHOST),
        };
        let creation = OuterHeaderCreation {
            teid: 5,
            v4: Some(Ipv4Addr::LOCALHOST),
            v6: None,
        };
        for length in 0..teid.emit().len() {
            assert!(FTeid::parse(&teid.emit()[..length]).is_err());
        }
        for length in 0..seid.emit().len() {
            assert!(Seid::parse(&seid.emit()[..length]).is_err());
        }
        for length in 0..creation.emit().len() {
            assert!(OuterHeaderCreation::parse(&creation.emit()[..length]).is_err());
        }
        let rates = Mbr {
            uplink_kbps: 1,
            downlink_kbps: 2,
        };
        for length in 0..rates.emit().len() {
            assert!(Mbr::parse(&rates.emit()[..length]).is_err());
        }
        let filter = SdfFilter {
            description: Some(b"permit out ip from any to any"),
            traffic_class: Some((0xb8, 0xfc)),
            security_parameters: Some(7),
            flow_label: Some(9),
            id: Some(3),
        };
        for length in 0..filter.emit().len() {
            assert!(SdfFilter::parse(&filter.emit()[..length]).is_err());
        }
        let volumes = Volumes {
            total: Some(1),
            uplink: Some(2),
            downlink: Some(3),
        };
        for length in 0..volumes.emit().len() {
            assert!(Volumes::parse(&volumes.emit()[..length]).is_err());
        }
        let user = [2, 10, 45, 0, 2];
        assert_eq!(
            UeAddress::parse(&user).unwrap().v4,
            Some([10, 45, 0, 2].into())
        );
        for length in 0..user.len() {
            assert!(UeAddress::parse(&user[..length]).is_err());
        }
        assert!(UeAddress::parse(&[0x10]).unwrap().choose_v4);
        // A UDP/IPv4 header for N6 tunnels is not a GTP-U header.
        assert_eq!(
            OuterHeaderCreation::parse(&[4, 0, 192, 0, 2, 1, 0, 80]),
            Ok(None)
        );
    }

    #[test]
    fn iteration_over_elements_ends_at_a_malformed_element() {
        let bytes = [0, 19, 0, 1, 1, 0, 20, 0, 9, 1];
        let read: Vec<_> = Elements(&bytes).collect();
        assert_eq!(read.len(), 2);
        assert!(read[0].is_ok() && read[1].is_err());
    }

    proptest! {
        #[test]
        fn emitted_typed_elements_parse_to_the_same_fields(
            teid: u32, seid: u64, four: Option<[u8; 4]>, six: Option<[u8; 16]>, id: Option<u8>,
            uplink_kbps in 0u64..1 << 40, downlink_kbps in 0u64..1 << 40,
        ) {
            let filter = SdfFilter {
                description: four.is_some().then_some(&b"permit out ip from any to any"[..]),
                traffic_class: id.map(|id| (id, !id)),
                security_parameters: six.map(|_| teid),
                flow_label: id.map(|_| teid & 0xf_ffff),
                id: four.map(|_| teid),
            };
            let written = filter.emit();
            prop_assert_eq!(SdfFilter::parse(&written), Ok(filter));
            let volumes = Volumes {
                total: id.map(u64::from), uplink: six.map(|_| uplink_kbps), downlink: four.map(|_| seid),
            };
            prop_assert_eq!(Volumes::parse(&volumes.emit()), Ok(volumes));
            let rates = Mbr { uplink_kbps, downlink_kbps };
            prop_assert_eq!(Mbr::parse(&rates.emit()), Ok(rates));
            let (v4, v6) = (four.map(Ipv4Addr::from), six.map(Ipv6Addr::from));
            let chosen = FTeid::Chosen { teid, v4, v6 };
            prop_assert_eq!(FTeid::parse(&chosen.emit()), Ok(chosen));
            let choose = FTeid::Choose { v4: v4.is_some(), v6: v6.is_some(), id };
            prop_assert_eq!(FTeid::parse(&choose.emit()), Ok(choose));
            let seid = Seid { seid, v4, v6 };
            prop_assert_eq!(Seid::parse(&seid.emit()), Ok(seid));
            let creation = OuterHeaderCreation { teid, v4, v6 };
            let some = v4.is_some() || v6.is_some();
            prop_assert_eq!(OuterHeaderCreation::parse(&creation.emit()), Ok(some.then_some(creation)));
        }

        #[test]
        fn random_bytes_do_not_crash_the_element_parsers(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            for element in Elements(&bytes).flatten() {
                let _ = (element.u8(), element.u16(), element.u32(), element.group().count());
            }
            let _ = (FTeid::parse(&bytes), Seid::parse(&bytes), UeAddress::parse(&bytes));
            let _ = (OuterHeaderCreation::parse(&bytes), NodeId::is_one(&bytes), Mbr::parse(&bytes));
            let _ = (SdfFilter::parse(&bytes), Volumes::parse(&bytes));
        }
    }
}
