//! The header between the UDP header and the cipher text: the session of the key, the nonce, and the send time.

/// The mode in which payloads are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Galois/counter mode: payloads are encrypted and authenticated. (NIST SP 800-38D.)
    Gcm,
    /// Counter mode: payloads are encrypted only, so an attacker can change them. (NIST SP 800-38A.)
    Ctr,
}

/// The version in the first byte's upper half. Version 1 had no send time in its header, and one key for both
/// directions.
const VERSION: u8 = 2;

/// The header at the beginning of an encrypted payload. In GCM it is followed by the tag of 16 bytes, then by the
/// cipher text; in CTR by the cipher text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The mode in which the payload after the header is encrypted.
    pub mode: Mode,
    /// The session identifier, which the sender draws when it starts.
    pub session: [u8; 9],
    /// The send time by the sender's clock: since 1970, in units of 2^-16 s, below 2^48.
    pub sent: u64,
    /// The number of the packet in its session, from 0.
    pub number: u64,
}

impl Header {
    /// The length of the header in a packet.
    pub const LEN_BYTES: usize = 24;

    /// Parses the first bytes of a payload. Returns none if these bytes are not a header of this version.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN_BYTES] = payload.first_chunk()?;
        let (first, rest) = bytes.split_first()?;
        let (session, rest) = rest.split_first_chunk()?;
        let ([a, b, c, d, e, f], number) = rest.split_first_chunk()?;
        let mode = match (first >> 4, first & 0xF) {
            (VERSION, 1) => Mode::Gcm,
            (VERSION, 2) => Mode::Ctr,
            _ => return None,
        };
        Some(Self {
            mode,
            session: *session,
            sent: u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]),
            number: u64::from_be_bytes(*number.first_chunk()?),
        })
    }

    /// Returns the header as bytes to be written in front of the cipher text.
    pub fn emit(&self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[0] = VERSION << 4
            | match self.mode {
                Mode::Gcm => 1,
                Mode::Ctr => 2,
            };
        bytes[1..10].copy_from_slice(&self.session);
        bytes[10..16].copy_from_slice(&self.sent.to_be_bytes()[2..]);
        bytes[16..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Returns the epoch of the session's key with which the packet is encrypted.
    pub(super) fn epoch(&self) -> u32 {
        (self.number >> 32) as u32
    }

    /// Returns the nonce. The nonce never repeats with one key, because the upper half of `number` chooses the key.
    /// (NIST SP 800-38D section 8.2.1.)
    pub(super) fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        nonce
    }
}
