//! The messages of memif's control channel: 128 bytes each, with little-endian fields at fixed offsets, some with a
//! file descriptor. (memif protocol 2.0, as in DPDK's `net_memif` and VPP.)

/// The length of every control message, bytes.
pub const MESSAGE_BYTES: usize = 128;

/// Protocol version 2.0: the major version is in the upper byte, the minor version in the lower one.
pub const VERSION: u16 = 2 << 8;

/// The interface mode for complete Ethernet frames, the only supported one.
pub const MODE_ETHERNET: u8 = 0;

/// The length of a name field in bytes; names are truncated or padded with zeros.
const NAME_BYTES: usize = 32;
const SECRET_BYTES: usize = 24;
const REASON_BYTES: usize = 96;

/// A message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Accepts the previous message.
    Ack,
    /// Hello of the server, with its capabilities.
    Hello {
        /// Name of the server.
        name: String,
        /// Lowest supported version of the protocol.
        min_version: u16,
        /// Highest supported version of the protocol.
        max_version: u16,
        /// Highest supported region index.
        max_region: u16,
        /// Highest server-to-client ring index.
        max_s2c_ring: u16,
        /// Highest client-to-server ring index.
        max_c2s_ring: u16,
        /// Maximum ring size, as a power of two.
        max_log2_ring_size: u8,
    },
    /// Reply of the client, with the requested interface.
    Init {
        /// Version of the protocol to be used.
        version: u16,
        /// Number of the requested interface on this socket.
        id: u32,
        /// Interface mode: [`MODE_ETHERNET`] or another.
        mode: u8,
        /// Secret that the server may require, empty if none.
        secret: String,
        /// Name of the client.
        name: String,
    },
    /// A memory region; its file is passed with the message.
    AddRegion {
        /// Index of the region, counted from 0 in the order of messages.
        index: u16,
        /// Length of the region, bytes.
        size_bytes: u64,
    },
    /// A ring in a region; its interrupt file is passed with the message.
    AddRing {
        /// True if the ring's packets go from client to server, false from server to client.
        client_to_server: bool,
        /// Index of the ring, counted from 0 in each direction.
        index: u16,
        /// Region of the ring.
        region: u16,
        /// Offset of the ring in the region, bytes.
        offset_bytes: u32,
        /// Number of descriptors of the ring, as a power of two.
        log2_ring_size: u8,
    },
    /// End of the client's announcements of regions and rings.
    Connect {
        /// Interface name at the client.
        interface: String,
    },
    /// Acceptance of the connection by the server; packets may pass from then on.
    Connected {
        /// Interface name at the server.
        interface: String,
    },
    /// End of the connection, announced by the client or the server.
    Disconnect {
        /// Error number; 0 if there is none.
        code: u32,
        /// Reason of the disconnection in words.
        reason: String,
    },
}

/// The reason why a message cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message type does not exist in the protocol.
    #[error("unknown message type {0}")]
    UnknownType(u16),
    /// The length of the message is not 128 bytes.
    #[error("message of {0} bytes instead of 128")]
    BadLength(usize),
}

fn u16_at(bytes: &[u8; MESSAGE_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; MESSAGE_BYTES], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; MESSAGE_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn text_at(bytes: &[u8; MESSAGE_BYTES], at: usize, len: usize) -> String {
    let field = &bytes[at..at + len];
    let end = field.iter().position(|&b| b == 0).unwrap_or(len);
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn put(bytes: &mut [u8; MESSAGE_BYTES], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Writes `text` into a field of `len` bytes, truncated so that a zero byte follows it.
fn put_text(bytes: &mut [u8; MESSAGE_BYTES], at: usize, len: usize, text: &str) {
    let n = text.len().min(len - 1);
    bytes[at..at + n].copy_from_slice(&text.as_bytes()[..n]);
}

impl Message {
    /// Decodes a message of the memif control channel.
    ///
    /// # Errors
    /// The length is not 128, or the type is unknown. All other fields are only decoded; the caller has to check them.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes
            .try_into()
            .map_err(|_| MessageError::BadLength(bytes.len()))?;
        Ok(match u16_at(bytes, 0) {
            1 => Self::Ack,
            2 => Self::Hello {
                name: text_at(bytes, 2, NAME_BYTES),
                min_version: u16_at(bytes, 34),
                max_version: u16_at(bytes, 36),
                max_region: u16_at(bytes, 38),
                max_s2c_ring: u16_at(bytes, 40),
                max_c2s_ring: u16_at(bytes, 42),
                max_log2_ring_size: bytes[44],
            },
            3 => Self::Init {
                version: u16_at(bytes, 2),
                id: u32_at(bytes, 4),
                mode: bytes[8],
                secret: text_at(bytes, 9, SECRET_BYTES),
                name: text_at(bytes, 33, NAME_BYTES),
            },
            4 => Self::AddRegion {
                index: u16_at(bytes, 2),
                size_bytes: u64_at(bytes, 4),
            },
            5 => Self::AddRing {
                client_to_server: u16_at(bytes, 2) & 1 != 0,
                index: u16_at(bytes, 4),
                region: u16_at(bytes, 6),
                offset_bytes: u32_at(bytes, 8),
                log2_ring_size: bytes[12],
            },
            6 => Self::Connect {
                interface: text_at(bytes, 2, NAME_BYTES),
            },
            7 => Self::Connected {
                interface: text_at(bytes, 2, NAME_BYTES),
            },
            8 => Self::Disconnect {
                code: u32_at(bytes, 2),
                reason: text_at(bytes, 6, REASON_BYTES),
            },
            other => return Err(MessageError::UnknownType(other)),
        })
    }

    /// Encodes a message. Texts too long for their field are truncated.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut b = [0; MESSAGE_BYTES];
        match self {
            Self::Ack => b[0] = 1,
            Self::Hello {
                name,
                min_version,
                max_version,
                max_region,
                max_s2c_ring,
                max_c2s_ring,
                max_log2_ring_size,
            } => {
                b[0] = 2;
                put_text(&mut b, 2, NAME_BYTES, name);
                put(&mut b, 34, &min_version.to_le_bytes());
                put(&mut b, 36, &max_version.to_le_bytes());
                put(&mut b, 38, &max_region.to_le_bytes());
                put(&mut b, 40, &max_s2c_ring.to_le_bytes());
                put(&mut b, 42, &max_c2s_ring.to_le_bytes());
                b[44] = *max_log2_ring_size;
            }
            Self::Init {
                version,
                id,
                mode,
                secret,
                name,
            } => {
                b[0] = 3;
                put(&mut b, 2, &version.to_le_bytes());
                put(&mut b, 4, &id.to_le_bytes());
                b[8] = *mode;
                put_text(&mut b, 9, SECRET_BYTES, secret);
                put_text(&mut b, 33, NAME_BYTES, name);
            }
            Self::AddRegion { index, size_bytes } => {
                b[0] = 4;
                put(&mut b, 2, &index.to_le_bytes());
                put(&mut b, 4, &size_bytes.to_le_bytes());
            }
            Self::AddRing {
                client_to_server,
                index,
                region,
                offset_bytes,
                log2_ring_size,
            } => {
                b[0] = 5;
                put(&mut b, 2, &u16::from(*client_to_server).to_le_bytes());
                put(&mut b, 4, &index.to_le_bytes());
                put(&mut b, 6, &region.to_le_bytes());
                put(&mut b, 8, &offset_bytes.to_le_bytes());
                b[12] = *log2_ring_size;
            }
            Self::Connect { interface } => {
                b[0] = 6;
                put_text(&mut b, 2, NAME_BYTES, interface);
            }
            Self::Connected { interface } => {
                b[0] = 7;
                put_text(&mut b, 2, NAME_BYTES, interface);
            }
            Self::Disconnect { code, reason } => {
                b[0] = 8;
                put(&mut b, 2, &code.to_le_bytes());
                put_text(&mut b, 6, REASON_BYTES, reason);
            }
        }
        b
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn text(len: usize) -> impl Strategy<Value = String> {
        proptest::collection::vec(b' '..b'~', 0..len).prop_map(|v| String::from_utf8(v).unwrap())
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::Ack),
            (text(31), any::<[u16; 5]>(), any::<u8>()).prop_map(|(name, v, log2)| Message::Hello {
                name,
                min_version: v[0],
                max_version: v[1],
                max_region: v[2],
                max_s2c_ring: v[3],
                max_c2s_ring: v[4],
                max_log2_ring_size: log2,
            }),
            (any::<u16>(), any::<u32>(), any::<u8>(), text(23), text(31)).prop_map(
                |(version, id, mode, secret, name)| Message::Init {
                    version,
                    id,
                    mode,
                    secret,
                    name
                }
            ),
            (any::<u16>(), any::<u64>())
                .prop_map(|(index, size_bytes)| Message::AddRegion { index, size_bytes }),
            (
                any::<bool>(),
                any::<u16>(),
                any::<u16>(),
                any::<u32>(),
                any::<u8>()
            )
                .prop_map(
                    |(client_to_server, index, region, offset_bytes, log2_ring_size)| {
                        Message::AddRing {
                            client_to_server,
                            index,
                            region,
                            offset_bytes,
                            log2_ring_size,
                        }
                    }
                ),
            text(31).prop_map(|interface| Message::Connect { interface }),
            text(31).prop_map(|interface| Message::Connected { interface }),
            (any::<u32>(), text(95))
                .prop_map(|(code, reason)| Message::Disconnect { code, reason }),
        ]
    }

    proptest! {
        #[test]
        fn an_encoded_message_decodes_to_the_same_message(m in message()) {
            prop_assert_eq!(Message::decode(&m.encode()).unwrap(), m);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused_without_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(m) = Message::decode(&bytes) {
                // Decoding loses only padding, so a second round changes nothing more.
                prop_assert_eq!(Message::decode(&m.encode()).ok().map(|_| ()), Some(()));
            }
        }
    }

    #[test]
    fn encoded_fields_have_the_offsets_of_the_memif_protocol() {
        let b = Message::AddRing {
            client_to_server: true,
            index: 0x0102,
            region: 0x0304,
            offset_bytes: 0x0506_0708,
            log2_ring_size: 10,
        }
        .encode();
        assert_eq!(b[..13], [5, 0, 1, 0, 2, 1, 4, 3, 8, 7, 6, 5, 10]);
    }
}
