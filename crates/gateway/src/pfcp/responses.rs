//! The responses to a peer's requests, stored for as long as the peer may retransmit the requests (3GPP TS 29.244
//! section 6.4). A retransmitted request gets the same response, and its effect is not repeated.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The memory in bytes of a stored response in addition to its own bytes: its entries in the map and in the queue, and
/// their spare capacity.
const BYTES_BESIDE: usize = 256;

/// The key of a peer's request: source port and sequence number. A retransmission has the same key.
type Key = (u16, u32);

struct Kept {
    /// The digest of the request, by a hash with a random key, so that no other request can be made to match.
    digest: u64,
    response: Box<[u8]>,
    number: u64,
}

struct Queued {
    until: Instant,
    key: Key,
    number: u64,
    bytes: usize,
}

/// The stored responses to the requests of one peer.
pub(in super::super) struct Responses {
    /// The responses by key of the request. The map is a tree, because a hash table with frequent insertions and
    /// removals is resized at unpredictable moments.
    by_request: BTreeMap<Key, Kept>,
    /// The keys of the stored responses, oldest response first.
    queue: VecDeque<Queued>,
    digests: RandomState,
    next_number: u64,
    bytes: usize,
    most_bytes: usize,
    time: Duration,
}

impl Responses {
    /// Creates an empty store; each response is stored for `time`, and all responses together use at most `most_bytes`
    /// bytes.
    pub fn new(time: Duration, most_bytes: usize) -> Self {
        Self {
            by_request: BTreeMap::new(),
            queue: VecDeque::new(),
            digests: RandomState::new(),
            next_number: 0,
            bytes: 0,
            most_bytes,
            time,
        }
    }

    /// Returns the stored response if the request was answered already; none for a new request.
    pub fn find(&mut self, key: Key, request: &[u8], now: Instant) -> Option<Vec<u8>> {
        while self.queue.front().is_some_and(|oldest| oldest.until < now) {
            self.forget_oldest();
        }
        let kept = self.by_request.get(&key)?;
        (kept.digest == self.digests.hash_one(request)).then(|| kept.response.to_vec())
    }

    /// Stores a response; returns how many of the oldest responses were removed early to make space for it.
    pub fn keep(&mut self, key: Key, request: &[u8], response: &[u8], now: Instant) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let kept = Kept {
            digest: self.digests.hash_one(request),
            response: response.into(),
            number,
        };
        let bytes = BYTES_BESIDE + response.len();
        self.by_request.insert(key, kept);
        self.bytes += bytes;
        self.queue.push_back(Queued {
            until: now + self.time,
            key,
            number,
            bytes,
        });
        let mut forgotten = 0;
        while self.bytes > self.most_bytes {
            forgotten += u64::from(self.forget_oldest());
        }
        forgotten
    }

    pub fn clear(&mut self) {
        (self.by_request, self.queue, self.bytes) = (BTreeMap::new(), VecDeque::new(), 0);
    }

    /// Returns an upper bound of the memory of all stored responses, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes the oldest response. Returns true if it was still stored: not replaced by a later response to the same
    /// key.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.queue.pop_front() else {
            return false;
        };
        self.bytes -= oldest.bytes;
        let kept = self.by_request.get(&oldest.key);
        let is_there = kept.is_some_and(|kept| kept.number == oldest.number);
        if is_there {
            self.by_request.remove(&oldest.key);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(12);

    #[test]
    fn responses_are_stored_until_their_timeout_despite_later_responses() {
        let mut responses = Responses::new(TIME, 1 << 24);
        let begun = Instant::now();
        for sequence in 0..10_000 {
            let request = [sequence as u8, 1];
            let forgotten = responses.keep((9, sequence), &request, &[sequence as u8], begun);
            assert_eq!(forgotten, 0);
        }
        let late = begun + TIME;
        assert_eq!(responses.find((9, 7), &[7, 1], late), Some(vec![7]));
        // The first request comes from another port. The second is a new request with the sequence number of an old
        // one.
        assert_eq!(responses.find((8, 7), &[7, 1], late), None);
        assert_eq!(responses.find((9, 7), &[7, 2], late), None);
        let too_late = late + Duration::from_nanos(1);
        assert_eq!(responses.find((9, 9999), &[15, 1], too_late), None);
        assert_eq!((responses.bytes(), responses.by_request.len()), (0, 0));
    }

    #[test]
    fn the_oldest_responses_are_removed_and_counted_at_the_limit() {
        let room = 3 * (BYTES_BESIDE + 10);
        let mut responses = Responses::new(TIME, room);
        let now = Instant::now();
        let forgotten: Vec<_> = (0..5)
            .map(|sequence| responses.keep((9, sequence), &[], &[0; 10], now))
            .collect();
        assert_eq!(forgotten, [0, 0, 0, 1, 1]);
        assert!(responses.bytes() <= room);
        let found = [0, 1, 2, 3, 4].map(|s| responses.find((9, s), &[], now).is_some());
        assert_eq!(found, [false, false, true, true, true]);
        // A replaced response uses memory until it is removed, and is not counted.
        for _ in 0..3 {
            responses.keep((9, 4), &[1], &[0; 10], now);
        }
        assert_eq!(responses.keep((9, 5), &[1], &[0; 10], now), 0);
        // A response that needs more than all of the memory is not stored.
        assert_eq!(responses.keep((9, 6), &[1], &vec![0; room], now), 3);
        assert_eq!((responses.bytes(), responses.by_request.len()), (0, 0));
    }
}
