//! Computes and checks tags, which show that a packet is from a holder of the key and belongs to this connection.
//!
//! Tags are HMAC-SHA-256 (RFC 2104), truncated to 16 bytes. A connection's keys are derived from the shared key and 16
//! random bytes of each endpoint. Packets of one connection are therefore invalid in another, and each direction has
//! its own key.

use crate::side::Side;
use crate::wire::TAG_BYTES;
use ring::hmac::{self, HMAC_SHA256, Key};

/// Valid lengths of a shared key, bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// The master key that both endpoints share.
#[derive(Clone)]
pub struct Master(Key);

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master").finish_non_exhaustive()
    }
}

/// The length of a key is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key must have 16 to 64 bytes, not {0}")]
pub struct MasterError(pub usize);

impl Master {
    /// Makes the key from unpredictable bytes.
    ///
    /// # Errors
    /// The key is too short or too long.
    pub fn new(bytes: &[u8]) -> Result<Self, MasterError> {
        if !KEY_BYTES.contains(&bytes.len()) {
            return Err(MasterError(bytes.len()));
        }
        Ok(Self(Key::new(HMAC_SHA256, bytes)))
    }

    /// Writes the tag at the end of a hello.
    pub(crate) fn seal(&self, packet: &mut [u8]) {
        seal(&self.0, packet);
    }

    /// Returns true if a hello has the correct tag.
    pub(crate) fn is_right(&self, packet: &[u8]) -> bool {
        is_right(&self.0, packet)
    }
}

/// Keys of a connection.
#[derive(Clone)]
pub(crate) struct Keys {
    own: Key,
    other: Key,
}

impl Keys {
    pub(crate) fn new(master: &Master, side: Side, opener: &[u8; 16], answerer: &[u8; 16]) -> Self {
        let direction = |name: u8| {
            let mut context = hmac::Context::with_key(&master.0);
            context.update(b"taut deadline transport 1");
            context.update(opener);
            context.update(answerer);
            context.update(&[name]);
            Key::new(HMAC_SHA256, context.sign().as_ref())
        };
        let (opener, answerer) = (direction(0), direction(1));
        match side {
            Side::Opener => Self {
                own: opener,
                other: answerer,
            },
            Side::Answerer => Self {
                own: answerer,
                other: opener,
            },
        }
    }

    pub(crate) fn seal(&self, packet: &mut [u8]) {
        seal(&self.own, packet);
    }

    pub(crate) fn is_right(&self, packet: &[u8]) -> bool {
        is_right(&self.other, packet)
    }
}

fn seal(key: &Key, packet: &mut [u8]) {
    let (said, tag) = packet.split_at_mut(packet.len() - TAG_BYTES);
    tag.copy_from_slice(&hmac::sign(key, said).as_ref()[..TAG_BYTES]);
}

/// Returns true if a packet ends with its correct tag. The comparison takes constant time.
fn is_right(key: &Key, packet: &[u8]) -> bool {
    let Some(length) = packet.len().checked_sub(TAG_BYTES) else {
        return false;
    };
    let (said, tag) = packet.split_at(length);
    let wanted = hmac::sign(key, said);
    let differ = wanted.as_ref()[..TAG_BYTES].iter().zip(tag);
    differ.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_authentication_tag_is_valid_for_only_one_packet() {
        let master = Master::new(&[7; 32]).unwrap();
        let [opener, answerer] =
            [Side::Opener, Side::Answerer].map(|side| Keys::new(&master, side, &[1; 16], &[2; 16]));
        let mut packet = vec![5; 60];
        opener.seal(&mut packet);
        assert!(answerer.is_right(&packet) && !opener.is_right(&packet));
        let next = Keys::new(&master, Side::Answerer, &[1; 16], &[3; 16]);
        assert!(!next.is_right(&packet));
        for at in 0..packet.len() {
            packet[at] ^= 1;
            assert!(!answerer.is_right(&packet), "{at}");
            packet[at] ^= 1;
        }
        assert!(!answerer.is_right(&[0; 5]));
        assert_eq!(Master::new(&[1; 15]).unwrap_err(), MasterError(15));
    }
}
