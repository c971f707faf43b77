//! The requests of this node. They are retransmitted until they are answered or abandoned (3GPP TS 29.244 section 6.4).
//! A window limits the unanswered requests, so that the socket buffer of neither this node nor the peer overflows.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The limit on waiting requests to one peer: this number per session of the peer, and at least [`MOST`]. Further
/// reports are lost.
const MOST_OF_SESSION: usize = 2;
const MOST: usize = 4096;
/// The window of requests to one peer: the maximum number of sent and unanswered ones. A default socket buffer has
/// space for twice this number.
pub(super) const WINDOW: usize = 128;

struct Request {
    message: Vec<u8>,
    sent: u32,
}

/// This node's requests to one peer.
pub(super) struct Requests {
    most: usize,
    /// The requests that wait for their first transmission, with their sequence numbers.
    new: VecDeque<(u32, Vec<u8>)>,
    /// The requests that were sent and not answered.
    sent: BTreeMap<u32, Request>,
    /// The pending retransmissions, soonest first, because all requests have the same timeout: time, sequence number,
    /// and how often the request had been sent.
    due: VecDeque<(Instant, u32, u32)>,
}

impl Requests {
    /// Creates the queue for a peer with up to `sessions` sessions.
    pub fn new(sessions: usize) -> Self {
        Self {
            most: MOST.max(MOST_OF_SESSION * sessions),
            new: VecDeque::new(),
            sent: BTreeMap::new(),
            due: VecDeque::new(),
        }
    }

    /// Queues a request to the peer; returns false if the limit on waiting requests is reached.
    pub fn add(&mut self, sequence: u32, message: Vec<u8>) -> bool {
        let has_room = self.new.len() + self.sent.len() < self.most;
        if has_room {
            self.new.push_back((sequence, message));
        }
        has_room
    }

    /// Removes an answered request; returns false if no sent request has that sequence number.
    pub fn answered(&mut self, sequence: u32) -> bool {
        self.sent.remove(&sequence).is_some()
    }

    /// Returns the next message that is to be sent to the peer now, if there is one. `given_up` counts the requests
    /// that were retransmitted `repeats` times without a response.
    pub fn next(
        &mut self,
        now: Instant,
        (time, repeats): (Duration, u32),
        given_up: &mut u64,
    ) -> Option<Vec<u8>> {
        while let Some((due, sequence, times)) = self.due.front().copied()
            && due <= now
        {
            self.due.pop_front();
            let Some(request) = self.sent.get_mut(&sequence).filter(|it| it.sent == times) else {
                continue;
            };
            if request.sent > repeats {
                *given_up += 1;
                self.sent.remove(&sequence);
                continue;
            }
            request.sent += 1;
            self.due.push_back((now + time, sequence, request.sent));
            return Some(request.message.clone());
        }
        if self.sent.len() >= WINDOW {
            return None;
        }
        let (sequence, message) = self.new.pop_front()?;
        if self.due.len() >= 4 * WINDOW {
            // Most of the queued retransmissions belong to answered requests, so these entries are removed to bound the
            // queue.
            let sent = &self.sent;
            let waits =
                |at: &(Instant, u32, u32)| sent.get(&at.1).is_some_and(|it| it.sent == at.2);
            self.due.retain(waits);
        }
        let request = Request {
            message: message.clone(),
            sent: 1,
        };
        self.sent.insert(sequence, request);
        self.due.push_back((now + time, sequence, 1));
        Some(message)
    }

    pub fn clear(&mut self) {
        self.new.clear();
        self.sent.clear();
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(3);

    fn taken(requests: &mut Requests, now: Instant, given_up: &mut u64) -> Vec<u8> {
        let next = || requests.next(now, (TIME, 1), given_up);
        std::iter::from_fn(next).map(|message| message[0]).collect()
    }

    #[test]
    fn the_number_of_requests_without_reply_is_limited() {
        let (mut requests, mut given_up) = (Requests::new(0), 0);
        let now = Instant::now();
        for sequence in 0..MOST as u32 {
            assert!(requests.add(sequence, vec![sequence as u8]));
        }
        assert!(!requests.add(MOST as u32, vec![0]));
        let first = taken(&mut requests, now, &mut given_up);
        assert_eq!(first, (0..WINDOW as u8).collect::<Vec<_>>());
        assert!(taken(&mut requests, now, &mut given_up).is_empty());
        assert!(requests.answered(5) && !requests.answered(5));
        assert!(requests.add(MOST as u32, vec![7]));
        assert_eq!(taken(&mut requests, now, &mut given_up), [WINDOW as u8]);
        // All requests except the answered one are retransmitted, then given up, and other requests follow.
        let again = taken(&mut requests, now + TIME, &mut given_up);
        assert_eq!((again.len(), given_up), (WINDOW, 0));
        let others = taken(&mut requests, now + 2 * TIME, &mut given_up);
        assert_eq!((others.len(), given_up), (WINDOW, WINDOW as u64));
        // However many requests are answered in time, only the requests in transit are stored.
        requests.clear();
        for sequence in 0..MOST as u32 {
            requests.add(sequence, vec![1]);
            taken(&mut requests, now + 2 * TIME, &mut given_up);
            requests.answered(sequence);
            assert!(requests.due.len() <= 4 * WINDOW);
        }
        requests.clear();
        assert!(taken(&mut requests, now + 9 * TIME, &mut given_up).is_empty());
    }
}
