//! The flow table of a worker. It has a fixed size. A new flow replaces the least valuable one of a few neighbouring
//! slots.

use super::key::Key;
use super::normalise::TCP;
use taut_inspect::arena::Arena;
use taut_inspect::buffer::Application;
use taut_inspect::dns::Framing;
use taut_inspect::flow_bits::FlowBits;
use taut_inspect::recognise::Recognition;
use taut_inspect::stream::Stream;
use taut_inspect::tcp::Connection;
use taut_sys::HashKey;

/// The decision for later packets of a flow, which applies without evaluating rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Settled {
    /// There is no decision: later packets are inspected.
    #[default]
    No,
    /// Later packets are dropped, because a rule dropped an earlier packet.
    Drops,
    /// Later packets pass, because a rule passed an earlier packet or because of overload.
    Passes,
}

/// An entry of the flow table.
#[derive(Debug, Default)]
pub(super) struct Flow {
    key: Key,
    /// True if the slot is in use.
    is_used: bool,
    /// True if the client is the lower endpoint of the [`Key`]. The client is the endpoint that opened the connection,
    /// or sent the first packet.
    pub client_is_low: bool,
    /// True if the server has replied.
    pub is_answered: bool,
    pub settled: Settled,
    /// The ingress ports at which packets of the lower and of the higher endpoint arrive; none before the first packet.
    ports: [Option<u8>; 2],
    /// The TCP state of the flow, if it is a connection.
    pub connection: Connection,
    /// The detected protocol; none if it is not detected yet or not supported.
    pub application: Option<Application>,
    pub recognition: Recognition,
    /// True if some segments of the flow passed without inspection because of overload.
    pub has_unread: bool,
    /// For each direction, to the server first: true if the inspector has received the first bytes of the direction.
    pub is_fed: [bool; 2],
    pub seen_s: u32,
    pub bits: FlowBits,
    /// The number of bytes in packets of the flow, to the server first.
    pub bytes: [u64; 2],
    pub packets: [u32; 2],
    pub streams: [Stream; 2],
    /// The DNS message framing of each TCP direction, to the server first.
    pub dns: [Framing; 2],
    /// The number, from 1, of the parser that the flow has borrowed; 0 for none, [`super::lend::NO_MORE`] if the flow
    /// is not parsed any more.
    pub parser: u32,
    /// The numbers, from 1, of the borrowed reassembly buffers for first TLS messages, to the server first; 0 for none.
    pub flights: [u32; 2],
    /// The identifier of the flow in events.
    pub id: u64,
    pub alerts: u32,
}

/// The timeout of an open connection, in seconds without packets.
const CONNECTION_S: u32 = 3600;
/// The timeout of a connection that both endpoints have closed, in seconds without packets.
const CLOSED_S: u32 = 2;
/// The timeout of any other flow, in seconds without packets.
const OTHER_S: u32 = 30;
/// The timeout of a flow that is not a connection and that a rule has dropped, in seconds without packets.
const DROPPED_S: u32 = 60;
/// The time after the eviction of a known connection, in seconds, during which connections without an observed opening
/// are refused.
const FORGOTTEN_S: u32 = CONNECTION_S;

impl Flow {
    /// Returns address and port of the client, those of the server, and the protocol.
    pub fn ends(&self) -> ((u128, u16), (u128, u16), u8) {
        let (low, high) = (self.key.low, self.key.high);
        if self.client_is_low {
            (low, high, self.key.protocol)
        } else {
            (high, low, self.key.protocol)
        }
    }

    /// Returns true if packets of the lower (`is_low`) or higher endpoint may arrive at `port`, and then stores that
    /// port. An endpoint with a known port must not move to the port of the opposite endpoint.
    pub fn comes_from(&mut self, is_low: bool, port: u8) -> bool {
        let (own, other) = (usize::from(!is_low), usize::from(is_low));
        match self.ports[own] {
            Some(known) if known == port => true,
            Some(_) if self.ports[other] == Some(port) => false,
            _ => {
                self.ports[own] = Some(port);
                true
            }
        }
    }

    /// Reverses the directions of the flow: client and server are exchanged.
    pub fn turn(&mut self) {
        self.client_is_low = !self.client_is_low;
        self.connection.turn();
        self.is_fed.swap(0, 1);
        self.bytes.swap(0, 1);
        self.packets.swap(0, 1);
        self.streams.swap(0, 1);
        self.dns.swap(0, 1);
        self.flights.swap(0, 1);
    }

    /// Restarts the flow for another connection between the same ports. The caller has released streams and parser.
    pub fn reconnect(&mut self) {
        self.settled = Settled::No;
        self.is_answered = true;
        self.has_unread = false;
        self.bits = FlowBits::default();
        self.forget_application();
    }

    /// Clears the detected protocol.
    pub fn forget_application(&mut self) {
        self.application = None;
        self.recognition.restart();
        self.is_fed = [false; 2];
        self.dns = Default::default();
    }

    pub fn has_ports(&self) -> bool {
        self.key.low.1 | self.key.high.1 != 0
    }

    pub fn is_tcp(&self) -> bool {
        self.key.protocol == TCP
    }

    /// Returns true if both endpoints have closed the connection.
    pub fn is_over(&self) -> bool {
        self.is_tcp() && self.connection.may_be_over()
    }

    /// Returns the timeout of the flow, in seconds without packets.
    fn patience_s(&self) -> u32 {
        let is_tcp = self.is_tcp();
        match self.settled {
            Settled::Drops if !is_tcp => DROPPED_S,
            Settled::Drops => CONNECTION_S,
            _ if !is_tcp || !self.is_answered => OTHER_S,
            // A reset does not shorten the timeout, because the receiver may have ignored it.
            _ if self.connection.is_closed() => CLOSED_S,
            _ => CONNECTION_S,
        }
    }

    /// Returns the eviction rank of a flow: flows without a reply have the lowest rank and are evicted first, flows
    /// that a rule has dropped are evicted last.
    fn worth(&self) -> u8 {
        match self.settled {
            Settled::Drops => 3,
            _ if !self.is_answered => 0,
            _ if self.is_over() => 1,
            _ => 2,
        }
    }

    /// Returns the memory that the flow's streams use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.streams.iter().map(Stream::memory_bytes).sum()
    }
}

/// The flow table of a worker.
pub(super) struct Flows {
    flows: Box<[Flow]>,
    /// A part of each flow's hash, by slot. A flow with another key usually has another tag, so a search does not read
    /// the entry of that flow.
    tags: Box<[[u8; WAYS]]>,
    hash_key: HashKey,
    next_id: u64,
    pub used: usize,
    /// The number of flows that were evicted before their timeout.
    pub forced_out: u64,
    /// The time, in seconds, of the last eviction of a flow with TCP state; none before the first one.
    forgotten_s: Option<u32>,
    /// The slot at which the last search for memory to release ended.
    looked: usize,
}

/// The number of neighbouring slots in which a flow can be stored.
const WAYS: usize = 8;
/// The number of slots that one search for memory to release visits.
const LOOKED: usize = 64;

impl Flows {
    pub fn new(most: usize, first_id: u64) -> Self {
        let most = most.next_power_of_two().max(WAYS);
        Self {
            flows: (0..most).map(|_| Flow::default()).collect(),
            tags: vec![[0; WAYS]; most / WAYS].into(),
            hash_key: HashKey::default(),
            next_id: first_id,
            used: 0,
            forced_out: 0,
            forgotten_s: None,
            looked: 0,
        }
    }

    /// Returns true if a connection was evicted recently. A connection without an observed opening may then be the
    /// evicted one, and its earlier data is unknown.
    pub fn has_forgotten(&self, now_s: u32) -> bool {
        self.forgotten_s
            .is_some_and(|it| now_s.wrapping_sub(it) < FORGOTTEN_S)
    }

    /// Releases the stream memory of one of the next few flows, except the flow in slot `but`: a closed flow, or else
    /// the flow that uses most memory. Returns false if none of them has memory. Retransmissions can no longer be
    /// compared with the released data.
    pub fn make_room(&mut self, arena: &mut Arena, but: usize, in_line: bool) -> bool {
        let most = self.flows.len();
        let places = (0..LOOKED).map(|it| (self.looked + it) % most);
        let weight = |flow: &Flow| match flow.is_over() {
            true => flow.memory_bytes() << 8,
            false => flow.memory_bytes(),
        };
        let held = places.filter(|&place| place != but && self.flows[place].is_used);
        let found = held.max_by_key(|&place| weight(&self.flows[place]));
        self.looked = (self.looked + LOOKED) % most;
        let Some(place) = found.filter(|&place| self.flows[place].memory_bytes() > 0) else {
            return false;
        };
        let flow = &mut self.flows[place];
        for stream in &mut flow.streams {
            // Early data has already passed, and the rules can no longer evaluate it in order, so the flow is dropped.
            if stream.forget(arena) && in_line {
                flow.settled = Settled::Drops;
            }
        }
        true
    }

    /// Returns the slot of the flow with `key`, if the table has it.
    pub fn place_of(&self, key: &Key) -> Option<usize> {
        let hash = key.hash(&self.hash_key);
        let first = ((hash as usize) & (self.tags.len() - 1)) * WAYS;
        let is_it = |place: &usize| self.flows[*place].is_used && self.flows[*place].key == *key;
        (first..first + WAYS).find(is_it)
    }

    /// Finds the flow with `key`, or adds it; calls `gone` with the flow that is evicted for it. Returns the slot, and
    /// true if the flow is new.
    pub fn find(&mut self, key: &Key, now_s: u32, gone: impl FnOnce(&mut Flow)) -> (usize, bool) {
        let hash = key.hash(&self.hash_key);
        let bucket = (hash as usize) & (self.tags.len() - 1);
        let tag = (hash >> 56) as u8 | 1;
        let first = bucket * WAYS;
        for way in 0..WAYS {
            if self.tags[bucket][way] == tag {
                let flow = &self.flows[first + way];
                if flow.is_used && flow.key == *key {
                    let is_old = now_s.wrapping_sub(flow.seen_s) > flow.patience_s();
                    if is_old {
                        self.begin(first + way, key, tag, now_s, gone);
                    }
                    return (first + way, is_old);
                }
            }
        }
        let age = |flow: &Flow| now_s.wrapping_sub(flow.seen_s);
        let ways = &self.flows[first..first + WAYS];
        let is_old = |flow: &Flow| age(flow) > flow.patience_s();
        let free = self.tags[bucket].iter().position(|&tag| tag == 0);
        let free = free.or_else(|| ways.iter().position(is_old));
        let way = free.unwrap_or_else(|| {
            let least = |&way: &usize| (3 - ways[way].worth(), age(&ways[way]));
            (0..WAYS).max_by_key(least).unwrap_or(0)
        });
        if free.is_none() {
            self.forced_out += 1;
            let flow = &ways[way];
            if flow.is_tcp() && flow.worth() > 0 {
                self.forgotten_s = Some(now_s);
            }
        }
        self.begin(first + way, key, tag, now_s, gone);
        (first + way, true)
    }

    fn begin(
        &mut self,
        place: usize,
        key: &Key,
        tag: u8,
        now_s: u32,
        gone: impl FnOnce(&mut Flow),
    ) {
        let flow = &mut self.flows[place];
        if flow.is_used {
            gone(flow);
        } else {
            self.used += 1;
        }
        *flow = Flow {
            key: *key,
            is_used: true,
            seen_s: now_s,
            id: self.next_id,
            ..Flow::default()
        };
        self.next_id += 1;
        self.tags[place / WAYS][place % WAYS] = tag;
    }

    pub fn seen_s(&self, place: usize) -> u32 {
        self.flows[place].seen_s
    }

    pub fn at(&mut self, place: usize) -> &mut Flow {
        &mut self.flows[place]
    }

    /// Checks `places` slots from the slot `from` on. Calls `tell` with each expired flow (second argument true), which
    /// is then removed, and with each closed flow that stays. Returns the slot at which the next check starts.
    pub fn sweep(
        &mut self,
        from: usize,
        places: usize,
        now_s: u32,
        mut tell: impl FnMut(&mut Flow, bool),
    ) -> usize {
        let most = self.flows.len();
        for place in from..(from + places).min(most) {
            let tag = &mut self.tags[place / WAYS][place % WAYS];
            // Free slots need not be brought into the cache.
            if *tag == 0 {
                continue;
            }
            let flow = &mut self.flows[place];
            let age = now_s.wrapping_sub(flow.seen_s);
            if age > flow.patience_s() {
                tell(flow, true);
                *flow = Flow::default();
                *tag = 0;
                self.used -= 1;
            } else if flow.is_over() && age > CLOSED_S {
                tell(flow, false);
            }
        }
        if from + places >= most {
            0
        } else {
            from + places
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colliding_flows_rarely_collide_again_with_another_hash_key() {
        let (one, other) = (HashKey::default(), HashKey::default());
        // The addresses include some whose two halves cancel each other out in a simple hash.
        let flow = |number: u128| {
            let source = (number << 64 | (number ^ 7), 1_000);
            Key::of(source, (7, 80), 6, 0).0
        };
        let place = |key: &HashKey, number| flow(number).hash(key) & 0x3ff;
        let meets = |key: &HashKey, number| place(key, number) == place(key, 1);
        let chosen: Vec<u128> = (1..100_000).filter(|number| meets(&one, *number)).collect();
        assert!((40..200).contains(&chosen.len()), "{}", chosen.len());
        let met = chosen.iter().filter(|number| meets(&other, **number));
        assert!(met.count() < 20);
    }
}
