//! Frames by which `taut` verifies a link: each names the node and interface that sent it, and the node and interface
//! from which its sender has received such frames. EtherType: Local Experimental 1 (IEEE 802-2014, 9.2.3).

use crate::{Error, EtherType, Ethernet, EthernetRepr, Mac, Vlan, view};

/// EtherType of the frames that verify a link.
pub const LINK_PROBE: EtherType = EtherType(0x88b5);
/// Destination MAC address that bridges do not forward (IEEE 802.1Q, Table 8-1, nearest bridge): a frame with this
/// address has passed no bridge, only a cable.
pub const NEAREST_BRIDGE: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]);

/// Length of the token that distinguishes the frames of one test from those of others, bytes.
pub const TOKEN_BYTES: usize = 16;
/// Maximum length of a node's name, bytes.
pub const LONGEST_NODE_BYTES: usize = 64;
/// Maximum length of an interface's name, bytes.
pub const LONGEST_INTERFACE_BYTES: usize = 15;

/// First bytes of the payload; the last of them is the version of the format.
const MAGIC: [u8; 5] = *b"taut\x01";
/// Minimum length of a frame without its frame check sequence, bytes.
const SHORTEST_FRAME_BYTES: usize = 60;

/// One end of a link: a node and its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEnd<'a> {
    /// Name of the node: 1 to 64 bytes.
    pub node: &'a str,
    /// Name of the interface: 1 to 15 bytes.
    pub interface: &'a str,
}

/// The payload of a frame that verifies a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkProbe<'a> {
    /// Token of the test, which distinguishes its frames from those of other tests.
    pub token: [u8; TOKEN_BYTES],
    /// End of the link that sends the frame.
    pub from: LinkEnd<'a>,
    /// End of the link from which the sender has received a frame on this interface; `None` if it has received none.
    pub hears: Option<LinkEnd<'a>>,
}

impl<'a> LinkProbe<'a> {
    /// Reads the payload of a frame that verifies a link; bytes after it are padding.
    ///
    /// # Errors
    /// `Truncated` for a payload that ends early; `BadValue` if the payload is of another protocol, or a name is no
    /// printable ASCII; `BadLength` for a name that is empty or too long.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        const WHAT: &str = "link probe";
        let (magic, rest) = view::take(bytes, MAGIC.len(), WHAT)?;
        if magic != MAGIC {
            return Err(Error::BadValue {
                what: "magic of a link probe",
                value: magic[0].into(),
            });
        }
        let (token, rest) = view::take(rest, TOKEN_BYTES, WHAT)?;
        let (from, rest) = end(rest)?;
        let (is_hearing, rest) = view::take(rest, 1, WHAT)?;
        let hears = match is_hearing[0] {
            0 => None,
            1 => Some(end(rest)?.0),
            value => {
                return Err(Error::BadValue {
                    what: "flag of a link probe",
                    value: value.into(),
                });
            }
        };
        let mut own = [0; TOKEN_BYTES];
        own.copy_from_slice(token);
        Ok(Self {
            token: own,
            from,
            hears,
        })
    }

    /// Returns the frame with this payload, padded to the minimum length.
    ///
    /// # Errors
    /// `BadLength` or `BadValue` for a name that [`LinkProbe::parse`] refuses.
    pub fn frame(&self, source: Mac, destination: Mac) -> Result<Vec<u8>, Error> {
        let mut payload = MAGIC.to_vec();
        payload.extend(self.token);
        push(&mut payload, self.from)?;
        payload.push(u8::from(self.hears.is_some()));
        if let Some(hears) = self.hears {
            push(&mut payload, hears)?;
        }
        let header = EthernetRepr {
            destination,
            source,
            vlan: Vlan::default(),
            ethertype: LINK_PROBE,
        };
        let start = header.header_len_bytes();
        let mut frame = vec![0; SHORTEST_FRAME_BYTES.max(start + payload.len())];
        header.emit(&mut frame)?;
        frame[start..start + payload.len()].copy_from_slice(&payload);
        Ok(frame)
    }

    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// The errors of [`LinkProbe::parse`]; `BadValue` for another EtherType.
    pub fn of_frame(frame: &'a [u8]) -> Result<Self, Error> {
        let view = Ethernet::new(frame)?;
        if view.ethertype() != LINK_PROBE {
            return Err(Error::BadValue {
                what: "EtherType of a link probe",
                value: view.ethertype().0.into(),
            });
        }
        let start = view.header_len_bytes();
        Self::parse(frame.get(start..).unwrap_or_default())
    }
}

/// Reads the names of the node and interface of a link's end from the front of `bytes`. Returns the end and the bytes
/// after the names.
fn end(bytes: &[u8]) -> Result<(LinkEnd<'_>, &[u8]), Error> {
    let (node, rest) = name(bytes, LONGEST_NODE_BYTES)?;
    let (interface, rest) = name(rest, LONGEST_INTERFACE_BYTES)?;
    Ok((LinkEnd { node, interface }, rest))
}

fn name(bytes: &[u8], most: usize) -> Result<(&str, &[u8]), Error> {
    let (length, rest) = view::take(bytes, 1, "name in a link probe")?;
    let (name, rest) = view::take(rest, length[0].into(), "name in a link probe")?;
    Ok((checked(name, most)?, rest))
}

/// Returns a name as text, after a check of its length and characters.
fn checked(name: &[u8], most: usize) -> Result<&str, Error> {
    const WHAT: &str = "name in a link probe";
    if name.is_empty() || name.len() > most {
        return Err(Error::BadLength {
            what: WHAT,
            length: name.len(),
            min: 1,
            max: most,
        });
    }
    match name.iter().find(|byte| !byte.is_ascii_graphic()) {
        Some(byte) => Err(Error::BadValue {
            what: WHAT,
            value: (*byte).into(),
        }),
        None => Ok(std::str::from_utf8(name).unwrap_or_default()),
    }
}

fn push(payload: &mut Vec<u8>, end: LinkEnd<'_>) -> Result<(), Error> {
    for (name, most) in [
        (end.node, LONGEST_NODE_BYTES),
        (end.interface, LONGEST_INTERFACE_BYTES),
    ] {
        let name = checked(name.as_bytes(), most)?;
        payload.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        payload.extend(name.as_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn link_probes_are_read_back_from_their_frames() {
        let from = LinkEnd {
            node: "gen",
            interface: "eth1",
        };
        let hears = LinkEnd {
            node: "a-node-with-a-long-name-of-its-own",
            interface: "enp129s0f1np1",
        };
        for hears in [None, Some(hears)] {
            let probe = LinkProbe {
                token: [7; TOKEN_BYTES],
                from,
                hears,
            };
            let frame = probe.frame(Mac([2; 6]), NEAREST_BRIDGE).unwrap();
            assert!(frame.len() >= 60);
            assert_eq!(frame[..6], NEAREST_BRIDGE.0);
            assert_eq!(LinkProbe::of_frame(&frame), Ok(probe));
        }
        for wrong in ["", "with space", &"x".repeat(65)] {
            let probe = LinkProbe {
                token: [0; TOKEN_BYTES],
                from: LinkEnd {
                    node: wrong,
                    ..from
                },
                hears: None,
            };
            assert!(
                probe.frame(Mac::default(), Mac::BROADCAST).is_err(),
                "{wrong}"
            );
        }
    }
}
