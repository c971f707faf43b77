//! Requests that this node makes of itself: sent again until they are answered or given up (3GPP TS 29.244
//! section 6.4).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Requests to one peer that may wait for their answers: beyond, it is told nothing more.
const MOST: usize = 4096;

struct Request {
    sequence: u32,
    message: Vec<u8>,
    sent: u32,
    due: Instant,
}

/// Requests to one peer.
#[derive(Default)]
pub(super) struct Requests(VecDeque<Request>);

impl Requests {
    /// Has a request sent with the next look; false if there are too many already.
    pub fn add(&mut self, sequence: u32, message: Vec<u8>, now: Instant) -> bool {
        let has_room = self.0.len() < MOST;
        if has_room {
            self.0.push_back(Request {
                sequence,
                message,
                sent: 0,
                due: now,
            });
        }
        has_room
    }

    /// Takes the request out that was answered; false if there is none.
    pub fn answered(&mut self, sequence: u32) -> bool {
        let place = self.0.iter().position(|it| it.sequence == sequence);
        place.is_some_and(|place| self.0.remove(place).is_some())
    }

    /// Returns what is to be sent now; `given_up` counts those that were sent `repeats` times after the first one.
    pub fn look(
        &mut self,
        now: Instant,
        (time, repeats): (Duration, u32),
        given_up: &mut u64,
    ) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        self.0.retain_mut(|request| {
            if now < request.due {
                return true;
            }
            if request.sent > repeats {
                *given_up += 1;
                return false;
            }
            request.sent += 1;
            request.due = now + time;
            messages.push(request.message.clone());
            true
        });
        messages
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
