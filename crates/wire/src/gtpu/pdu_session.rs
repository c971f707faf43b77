//! The PDU session container: the extension header with the 5G QoS flow of a packet (3GPP TS 38.415 section 5.5.2; its
//! position in the chain: TS 29.281 section 5.2.2.7).

use super::{Extension, Gtpu};
use zerocopy::ByteSlice;

/// The type of the extension header that is a PDU session container (TS 29.281 section 5.2.1, figure 5.2.1-3).
pub const PDU_SESSION_CONTAINER: u8 = 0x85;

/// The length of the shortest PDU session container in bytes, including its length field and the type of the next
/// header.
pub const PDU_SESSION_LEN_BYTES: usize = 4;

/// The largest QoS flow identifier, which has 6 bits (TS 38.415 section 5.5.3.3).
pub const MOST_QFI: u8 = 63;

/// The content of a PDU session container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduSession {
    /// True if the packet goes towards the network (PDU type 1), false if it goes towards the user (PDU type 0).
    pub uplink: bool,
    /// QoS flow identifier, 0 to [`MOST_QFI`].
    pub qfi: u8,
}

impl PduSession {
    /// Reads the PDU session container from an extension header; None if the header is no PDU session container with a
    /// known PDU type.
    #[inline]
    pub fn of(extension: Extension<'_>) -> Option<Self> {
        if extension.kind != PDU_SESSION_CONTAINER {
            return None;
        }
        let &[kind, flow, ..] = extension.content else {
            return None;
        };
        let uplink = match kind >> 4 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let qfi = flow & MOST_QFI;
        Some(Self { uplink, qfi })
    }

    /// Returns the container's bytes as the last extension header of a chain. The type [`PDU_SESSION_CONTAINER`], which
    /// precedes these bytes in the chain, is not included.
    #[inline]
    pub fn emit(self) -> [u8; PDU_SESSION_LEN_BYTES] {
        [1, u8::from(self.uplink) << 4, self.qfi & MOST_QFI, 0]
    }
}

impl<B: ByteSlice> Gtpu<B> {
    /// Returns the PDU session container, if the packet has one.
    pub fn pdu_session(&self) -> Option<PduSession> {
        self.extensions()?.find_map(PduSession::of)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::gtpu::{Extensions, GtpuRepr, MessageType};
    use proptest::prelude::*;

    #[test]
    fn unknown_extensions_and_pdu_types_yield_no_pdu_session() {
        for (kind, content) in [(0xc0, [0, 9]), (0x85, [0x20, 9]), (0x85, [0xf0, 9])] {
            let extension = Extension {
                kind,
                content: &content,
            };
            assert_eq!(PduSession::of(extension), None);
        }
        // The first two bytes have further bits, and the container is longer, as base stations send it.
        let long = Extension {
            kind: PDU_SESSION_CONTAINER,
            content: &[0x1f, 0xc9, 1, 2, 3, 4],
        };
        let (uplink, qfi) = (true, 9);
        assert_eq!(PduSession::of(long), Some(PduSession { uplink, qfi }));
    }

    proptest! {
        #[test]
        fn emitted_pdu_session_containers_parse_to_the_same_session(uplink: bool, qfi in 0..=MOST_QFI, payload in 0usize..9) {
            let session = PduSession { uplink, qfi };
            let bytes = session.emit();
            let repr = GtpuRepr {
                message_type: MessageType::G_PDU, teid: 7, sequence: None, n_pdu: None,
                extensions: Some(Extensions { first: PDU_SESSION_CONTAINER, bytes: &bytes }),
                payload_len_bytes: payload,
            };
            let mut buffer = [0; 64];
            prop_assert_eq!(repr.emit(&mut buffer).unwrap().pdu_session(), Some(session));
        }
    }
}
