//! The requests of this node. They are retransmitted until a response arrives or they are given up (3GPP TS 29.274
//! section 7.6).

use super::ask::Reply;
use super::context::{Bearer, Link};
use crate::signalling::Sent;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The key of a request of this node: the peer and the sequence number.
type Key = (IpAddr, u32);

/// The kind of a pending request, with the data for processing its response. `teid` is this node's endpoint of the
/// user.
#[derive(Debug, Clone)]
pub(super) enum Awaited {
    /// An echo request.
    Echo,
    /// A notification that packets for an idle user are buffered.
    Notification { teid: u32 },
    /// New bearers, which exist in the table already. `reply` is the deferred response to the PDN gateway that
    /// requested them.
    Created {
        teid: u32,
        link: Link,
        bearers: Vec<Bearer>,
        reply: Option<Reply>,
    },
    /// The removal of bearers, or of a whole connection if there are none in `bearers`.
    Removed {
        teid: u32,
        link: Link,
        bearers: Vec<u8>,
        reply: Option<Reply>,
    },
    /// A change of bearers that this node only relays between its peers.
    Changed { reply: Reply },
    /// The creation of a connection at the PDN gateway.
    Session { teid: u32, link: Link, reply: Reply },
    /// The end of a connection at the PDN gateway.
    SessionEnd { teid: u32, link: Link, reply: Reply },
}

struct Request {
    to: SocketAddr,
    message: Vec<u8>,
    sent: u32,
    due: Instant,
    awaited: Awaited,
}

/// The requests of this node that wait for a response.
#[derive(Default)]
pub(super) struct Pending {
    requests: HashMap<Key, Request>,
    due: BTreeSet<(Instant, Key)>,
}

/// A request of this node that is due for retransmission, or to be given up.
pub(super) enum Due {
    Again(Sent),
    GivenUp(SocketAddr, Awaited),
}

impl Pending {
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Records a request that is sent now; it is retransmitted at the time `due`.
    pub fn add(
        &mut self,
        (to, message): Sent,
        sequence: u32,
        due: Instant,
        awaited: Awaited,
    ) -> Sent {
        let key = (to.ip(), sequence);
        let request = Request {
            to,
            message: message.clone(),
            sent: 1,
            due,
            awaited,
        };
        self.due.insert((due, key));
        if let Some(before) = self.requests.insert(key, request) {
            self.due.remove(&(before.due, key));
        }
        (to, message)
    }

    /// Removes the request that a response answers; none if there is no such request.
    pub fn take(&mut self, from: IpAddr, sequence: u32) -> Option<Awaited> {
        let key = (from, sequence);
        let request = self.requests.remove(&key)?;
        self.due.remove(&(request.due, key));
        Some(request.awaited)
    }

    /// Removes the pending requests to a peer, which has restarted; returns their kinds.
    pub fn take_all(&mut self, from: IpAddr) -> Vec<Awaited> {
        let keys: Vec<_> = self.requests.keys().filter(|it| it.0 == from).collect();
        let sequences: Vec<_> = keys.into_iter().map(|it| it.1).collect();
        let taken = sequences.into_iter();
        taken.filter_map(|it| self.take(from, it)).collect()
    }

    /// Returns the next request that is due: for retransmission after `time`, or given up after `repeats`
    /// retransmissions.
    pub fn next(&mut self, now: Instant, time: Duration, repeats: u32) -> Option<Due> {
        let (due, key) = *self.due.first().filter(|first| first.0 <= now)?;
        self.due.remove(&(due, key));
        let request = self.requests.get_mut(&key)?;
        if request.sent > repeats {
            let request = self.requests.remove(&key)?;
            return Some(Due::GivenUp(request.to, request.awaited));
        }
        request.sent += 1;
        request.due = now + time;
        self.due.insert((request.due, key));
        Some(Due::Again((request.to, request.message.clone())))
    }
}
