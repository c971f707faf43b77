//! A table of the GTP-U peers, indexed by path, for frames that the gateway creates. An entry has the ingress port of
//! the peer's last frame, the peer's MAC address, the last egress port to the peer, and the unanswered echo requests.
//!
//! All workers share the table, because any worker may receive frames of a peer. Each word is independent, and an old
//! value is acceptable for a moment, so no memory ordering is needed (`Relaxed` throughout).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use taut_wire::Mac;

/// The number of possible paths: numbers of 16 bits, of which 0 is unused.
const PATHS: usize = 1 << 16;
/// The number of possible port numbers of the chain.
const PORTS: usize = 1 << 8;
/// The number of bits of a MAC address in a word of the table.
const MAC_DIGITS: u32 = 48;
const MAC_MASK: u64 = (1 << MAC_DIGITS) - 1;
/// The bit that marks a stored 64-bit word of a peer's entry as valid.
const IS_KNOWN: u64 = 1 << 63;
/// The bit that is set in the word with a peer's echo requests if the second-to-last request is unanswered, too.
const IS_SECOND_KNOWN: u64 = 1 << 62;

/// The port and MAC addresses for frames to a tunnel peer, learned from the peer's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// The ingress port of the peer's last frame.
    pub port: usize,
    /// The source MAC address of the peer's last frame.
    pub mac: Mac,
    /// The destination MAC address of frames that arrive at `port`.
    pub own: Mac,
}

#[derive(Debug, Default)]
struct Known {
    /// The ingress port and the source MAC address of the peer's last frame.
    heard: AtomicU64,
    /// The sequence numbers of the last two echo requests to the peer that are unanswered.
    asked: AtomicU64,
    /// The last egress port to the peer, plus one; 0 for none.
    left: AtomicU16,
}

#[derive(Debug)]
struct All {
    /// The entries of the peers, by path number.
    paths: Box<[Known]>,
    /// The destination MAC addresses of peers' frames, by port.
    own: [AtomicU64; PORTS],
}

#[derive(Debug, Clone)]
pub(super) struct Peers(Arc<All>);

impl Peers {
    pub fn new() -> Self {
        Self(Arc::new(All {
            paths: (0..PATHS).map(|_| Known::default()).collect(),
            own: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }

    /// Clears the state under a path number that is reassigned to another path.
    pub fn forget(&self, path: u16) {
        let known = &self.0.paths[usize::from(path)];
        known.heard.store(0, Ordering::Relaxed);
        known.asked.store(0, Ordering::Relaxed);
        known.left.store(0, Ordering::Relaxed);
    }

    /// Records that a frame of the path's peer arrived at the given port, from one MAC address to another.
    pub fn hear(&self, path: u16, port: usize, (from, to): (Mac, Mac)) {
        let Some(own) = self.0.own.get(port) else {
            return;
        };
        let heard = IS_KNOWN | (port as u64) << MAC_DIGITS | number(from);
        write(&self.0.paths[usize::from(path)].heard, heard);
        write(own, number(to));
    }

    /// Returns the port and MAC addresses learned from the last frame of the path's peer; none if there was no such
    /// frame.
    pub fn heard(&self, path: u16) -> Option<Heard> {
        let word = self.0.paths[usize::from(path)]
            .heard
            .load(Ordering::Relaxed);
        let port = (word >> MAC_DIGITS) as u8;
        (word & IS_KNOWN != 0).then(|| Heard {
            port: usize::from(port),
            mac: mac(word),
            own: mac(self.0.own[usize::from(port)].load(Ordering::Relaxed)),
        })
    }

    /// Records that packets of the path leave through the given port.
    pub fn leaves(&self, path: u16, port: usize) {
        let port = u16::try_from(port).ok().and_then(|it| it.checked_add(1));
        let left = &self.0.paths[usize::from(path)].left;
        left.store(port.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the last egress port of the path, if there is one.
    pub fn left(&self, path: u16) -> Option<usize> {
        let left = self.0.paths[usize::from(path)].left.load(Ordering::Relaxed);
        usize::from(left).checked_sub(1)
    }

    /// Records an echo request to the path's peer.
    pub fn ask(&self, path: u16, sequence: u16) {
        let asked = &self.0.paths[usize::from(path)].asked;
        let before = asked.load(Ordering::Relaxed);
        let before = match before & IS_KNOWN {
            0 => 0,
            _ => IS_SECOND_KNOWN | (before & 0xffff) << 16,
        };
        asked.store(IS_KNOWN | before | u64::from(sequence), Ordering::Relaxed);
    }

    /// Returns true if an echo response of the given sequence number is the first reply to one of the last two
    /// requests.
    pub fn is_answer(&self, path: u16, sequence: u16) -> bool {
        let asked = &self.0.paths[usize::from(path)].asked;
        let word = asked.load(Ordering::Relaxed);
        let is_it = |bit: u64, at: u32| word & bit != 0 && (word >> at) as u16 == sequence;
        (is_it(IS_KNOWN, 0) || is_it(IS_SECOND_KNOWN, 16))
            && asked
                .compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Writes a shared word only if its value changes: an unnecessary write would remove the cache line from other cores.
fn write(to: &AtomicU64, word: u64) {
    if to.load(Ordering::Relaxed) != word {
        to.store(word, Ordering::Relaxed);
    }
}

fn number(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn mac(word: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = (word & MAC_MASK).to_be_bytes();
    Mac([a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const TO: Mac = Mac([0xfe, 1, 2, 3, 4, 5]);

    #[test]
    fn port_and_mac_of_a_peer_are_stored_until_removal() {
        let peers = Peers::new();
        assert_eq!((peers.heard(9), peers.left(9)), (None, None));
        peers.hear(9, 0, (TO, FROM));
        peers.hear(9, 254, (FROM, TO));
        peers.leaves(9, 0);
        let heard = Heard {
            port: 254,
            mac: FROM,
            own: TO,
        };
        assert_eq!((peers.heard(9), peers.left(9)), (Some(heard), Some(0)));
        assert_eq!((peers.heard(8), peers.left(u16::MAX)), (None, None));
        // No port has that number.
        peers.hear(8, 256, (FROM, TO));
        assert_eq!(peers.heard(8), None);
        peers.forget(9);
        assert_eq!((peers.heard(9), peers.left(9)), (None, None));
    }

    #[test]
    fn duplicate_echo_responses_and_responses_to_old_requests_are_ignored() {
        let peers = Peers::new();
        assert!(!peers.is_answer(9, 0), "nobody has asked");
        peers.ask(9, 0);
        assert!(!peers.is_answer(9, 1) && !peers.is_answer(8, 0));
        assert!(peers.is_answer(9, 0) && !peers.is_answer(9, 0));
        for sequence in [5, 6, u16::MAX] {
            peers.ask(9, sequence);
        }
        assert!(!peers.is_answer(9, 5));
        assert!(peers.is_answer(9, 6) && !peers.is_answer(9, u16::MAX));
    }
}
