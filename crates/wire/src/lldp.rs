//! LLDP announcements (IEEE 802.1AB-2016, clause 8): each describes the device and the port at the opposite end of a
//! cable.

use crate::{Error, EtherType, Mac, view};
use std::net::{Ipv4Addr, Ipv6Addr};

/// EtherType of LLDP.
pub const LLDP: EtherType = EtherType(0x88cc);

/// Types of the elements that are read (IEEE 802.1AB-2016, 8.4.1, Table 8-1).
const END: u8 = 0;
const CHASSIS_ID: u8 = 1;
const PORT_ID: u8 = 2;
const TIME_TO_LIVE: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;
/// Maximum length of a text (name or description) that is stored, bytes.
const LONGEST_TEXT_BYTES: usize = 255;

/// An LLDP announcement: a device, and its port at the opposite end of the cable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lldp {
    /// Identity of the device, as text: a name, or a MAC or IP address.
    pub chassis: String,
    /// Identity of the port, as text.
    pub port: String,
    /// Time for which the announcement is valid, s; 0 if the device withdraws the announcement.
    pub seconds: u16,
    /// Description of the port; empty if there is none.
    pub port_description: String,
    /// Name of the device; empty if there is none.
    pub system_name: String,
}

impl Lldp {
    /// Reads the payload of an LLDP frame; elements of other types are skipped, and control characters in texts are
    /// removed.
    ///
    /// # Errors
    /// `Truncated` if an element ends after the payload; `BadValue` unless chassis, port and time to live come first,
    /// in this order (IEEE 802.1AB-2016, 8.3); `BadLength` for an identity or a time of another length.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut rest = bytes;
        for expected in [CHASSIS_ID, PORT_ID, TIME_TO_LIVE] {
            let (kind, value, after) = element(rest)?;
            if kind != expected {
                return Err(Error::BadValue {
                    what: "type of an LLDP element",
                    value: kind.into(),
                });
            }
            match kind {
                CHASSIS_ID => found.chassis = identity(value, &CHASSIS_KINDS)?,
                PORT_ID => found.port = identity(value, &PORT_KINDS)?,
                _ => found.seconds = time(value)?,
            }
            rest = after;
        }
        while !rest.is_empty() {
            let (kind, value, after) = element(rest)?;
            match kind {
                END => break,
                PORT_DESCRIPTION => found.port_description = text(value),
                SYSTEM_NAME => found.system_name = text(value),
                _ => {}
            }
            rest = after;
        }
        Ok(found)
    }

    /// Returns the name of the device, or else its identity.
    pub fn name(&self) -> &str {
        match self.system_name.as_str() {
            "" => &self.chassis,
            name => name,
        }
    }
}

/// Splits an element off `bytes`: 7 bits of type, 9 bits of length, and the value (IEEE 802.1AB-2016, 8.4). Returns the
/// type, the value, and the bytes after the element.
fn element(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), Error> {
    const WHAT: &str = "LLDP element";
    let (head, rest) = view::take(bytes, 2, WHAT)?;
    let length = usize::from(head[0] & 1) << 8 | usize::from(head[1]);
    let (value, rest) = view::take(rest, length, WHAT)?;
    Ok((head[0] >> 1, value, rest))
}

/// Subtypes of an identity that are a MAC address and a network address; other subtypes are texts.
struct Kinds {
    mac: u8,
    network: u8,
}

/// Subtypes of a chassis's identity (IEEE 802.1AB-2016, 8.5.2.2).
const CHASSIS_KINDS: Kinds = Kinds { mac: 4, network: 5 };
/// Subtypes of a port's identity (IEEE 802.1AB-2016, 8.5.3.2).
const PORT_KINDS: Kinds = Kinds { mac: 3, network: 4 };

fn identity(value: &[u8], kinds: &Kinds) -> Result<String, Error> {
    let (kind, id) = view::take(value, 1, "LLDP identity")?;
    if id.is_empty() || id.len() > LONGEST_TEXT_BYTES {
        return Err(Error::BadLength {
            what: "LLDP identity",
            length: id.len(),
            min: 1,
            max: LONGEST_TEXT_BYTES,
        });
    }
    // The numbers of address families are those of IANA: 1 is IPv4, 2 is IPv6.
    Ok(match (kind[0], id) {
        (kind, mac) if kind == kinds.mac && mac.len() == 6 => {
            let mut octets = [0; 6];
            octets.copy_from_slice(mac);
            Mac(octets).to_string()
        }
        (kind, [1, a, b, c, d]) if kind == kinds.network => {
            Ipv4Addr::new(*a, *b, *c, *d).to_string()
        }
        (kind, [2, address @ ..]) if kind == kinds.network && address.len() == 16 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(address);
            Ipv6Addr::from(octets).to_string()
        }
        (_, id) => text(id),
    })
}

fn time(value: &[u8]) -> Result<u16, Error> {
    match value {
        [high, low, ..] => Ok(u16::from_be_bytes([*high, *low])),
        _ => Err(Error::BadLength {
            what: "LLDP time to live",
            length: value.len(),
            min: 2,
            max: 511,
        }),
    }
}

/// Returns `bytes` as a text without control characters.
fn text(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(LONGEST_TEXT_BYTES)];
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind << 1 | u8::from(value.len() > 255), value.len() as u8];
        bytes.extend(value);
        bytes
    }

    #[test]
    fn an_announcement_names_device_and_port() {
        let announced = [
            tlv(1, &[4, 2, 0, 0, 0, 0, 9]),
            tlv(2, b"\x05swp\x077"),
            tlv(3, &[0, 120]),
            tlv(8, &[9; 300]),
            tlv(4, b"to the generator"),
            tlv(5, b"leaf1"),
            tlv(0, &[]),
            vec![0; 9],
        ]
        .concat();
        let found = Lldp::parse(&announced).unwrap();
        assert_eq!(
            (found.chassis.as_str(), found.port.as_str()),
            ("02:00:00:00:00:09", "swp7")
        );
        assert_eq!((found.seconds, found.name()), (120, "leaf1"));
        assert_eq!(found.port_description, "to the generator");
        let by_address = [
            tlv(1, &[5, 1, 192, 0, 2, 1]),
            tlv(2, &[3, 2, 0, 0, 0, 0, 1]),
            tlv(3, &[0, 0]),
        ];
        let found = Lldp::parse(&by_address.concat()).unwrap();
        assert_eq!(
            (found.name(), found.port.as_str()),
            ("192.0.2.1", "02:00:00:00:00:01")
        );
    }

    #[test]
    fn misordered_or_truncated_announcements_are_refused() {
        let port_first = [tlv(2, b"\x05a"), tlv(1, b"\x07b"), tlv(3, &[0, 1])].concat();
        assert!(matches!(
            Lldp::parse(&port_first),
            Err(Error::BadValue { value: 2, .. })
        ));
        let good = [tlv(1, b"\x07b"), tlv(2, b"\x05a"), tlv(3, &[0, 1])].concat();
        assert!(Lldp::parse(&good).is_ok());
        for length in 0..good.len() {
            assert!(Lldp::parse(&good[..length]).is_err(), "{length}");
        }
        let empty = [tlv(1, b"\x07"), tlv(2, b"\x05a"), tlv(3, &[0, 1])].concat();
        assert!(Lldp::parse(&empty).is_err());
    }
}
