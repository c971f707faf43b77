//! Flows that a worker remembers: a fixed number, in which one of a few neighbours makes room for a new one, whichever tells least.

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

/// What is done with packets of a flow without asking rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Settled {
    /// They are inspected.
    #[default]
    No,
    /// A rule dropped one.
    Drops,
    /// A rule let one pass, or there was too much.
    Passes,
}

/// A flow.
#[derive(Debug, Default)]
pub(super) struct Flow {
    key: Key,
    /// Whether there is one here.
    is_used: bool,
    /// Whether the lower end is the client: it opened, or sent first.
    pub client_is_low: bool,
    /// Whether the server has answered.
    pub is_answered: bool,
    pub settled: Settled,
    /// Ports that packets of the lower end come in through, and those of the other one.
    ports: [Option<u8>; 2],
    /// Numbers of its connection, if it is one of TCP.
    pub connection: Connection,
    /// Protocol that an inspector knows, once it is known; none also when it is none of them.
    pub application: Option<Application>,
    pub recognition: Recognition,
    /// Whether some of its segments passed unread, as there was too much.
    pub has_unread: bool,
    /// Whether the inspector has had the first bytes of an end, to the server first.
    pub is_fed: [bool; 2],
    pub seen_s: u32,
    pub bits: FlowBits,
    /// Bytes of packets, to the server first.
    pub bytes: [u64; 2],
    pub packets: [u32; 2],
    pub streams: [Stream; 2],
    /// Messages of DNS over TCP, to the server first.
    pub dns: [Framing; 2],
    /// Number of its parser, from 1; 0 for none, [`super::lend::NO_MORE`] if it gets none any more.
    pub parser: u32,
    /// Numbers of its first messages of TLS, to the server first.
    pub flights: [u32; 2],
    /// Number of the flow, for events.
    pub id: u64,
    pub alerts: u32,
}

/// Seconds without packets after which a connection is forgotten that may go on.
const CONNECTION_S: u32 = 3600;
/// Seconds without packets after which a connection is forgotten whose ends have both heard that it is over.
const CLOSED_S: u32 = 2;
/// Seconds without packets after which any other flow is forgotten.
const OTHER_S: u32 = 30;
/// Seconds without packets after which it is forgotten that a rule has dropped a flow that is no connection.
const DROPPED_S: u32 = 60;
/// Seconds for which connections whose opening was not seen are not taken up after one that was known had to make room.
const FORGOTTEN_S: u32 = CONNECTION_S;

impl Flow {
    /// Client and server, and protocol.
    pub fn ends(&self) -> ((u128, u16), (u128, u16), u8) {
        let (low, high) = (self.key.low, self.key.high);
        if self.client_is_low {
            (low, high, self.key.protocol)
        } else {
            (high, low, self.key.protocol)
        }
    }

    /// Whether packets of that end come in through that port. The end of the other side is not believed on this one.
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

    /// Turns its directions: who was taken for the client is the server.
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

    /// Begins anew for another connection between the same ports; streams and parser were given back before.
    pub fn reconnect(&mut self) {
        self.settled = Settled::No;
        self.is_answered = true;
        self.has_unread = false;
        self.bits = FlowBits::default();
        self.forget_application();
    }

    /// Forgets which protocol it is of.
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

    /// Whether both ends are done with it.
    pub fn is_over(&self) -> bool {
        self.is_tcp() && self.connection.may_be_over()
    }

    /// Seconds without packets after which nobody asks for it any more.
    fn patience_s(&self) -> u32 {
        let is_tcp = self.is_tcp();
        match self.settled {
            Settled::Drops if !is_tcp => DROPPED_S,
            Settled::Drops => CONNECTION_S,
            _ if !is_tcp || !self.is_answered => OTHER_S,
            // A reset may have been ignored.
            _ if self.connection.is_closed() => CLOSED_S,
            _ => CONNECTION_S,
        }
    }

    /// How much would be lost with it: a flow that nobody has answered is the first to make room, one that a rule has dropped the
    /// last.
    fn worth(&self) -> u8 {
        match self.settled {
            Settled::Drops => 3,
            _ if !self.is_answered => 0,
            _ if self.is_over() => 1,
            _ => 2,
        }
    }

    /// Bytes of memory that its streams hold.
    pub fn memory_bytes(&self) -> usize {
        self.streams.iter().map(Stream::memory_bytes).sum()
    }
}

/// Flows of a worker.
pub(super) struct Flows {
    flows: Box<[Flow]>,
    /// Parts of hashes, by place: most of what is not it is told by them.
    tags: Box<[[u8; WAYS]]>,
    hash_key: HashKey,
    next_id: u64,
    pub used: usize,
    /// Flows that made room before their time.
    pub forced_out: u64,
    /// When one made room of which something was known.
    forgotten_s: Option<u32>,
    /// Place at which memory was looked for last.
    looked: usize,
}

/// Places that a flow can be at.
const WAYS: usize = 8;
/// Flows that are looked at for one that can do without its memory.
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

    /// Whether a connection had to make room not long ago: one that goes on without having begun may be that one, and nobody knows what
    /// it has brought.
    pub fn has_forgotten(&self, now_s: u32) -> bool {
        self.forgotten_s
            .is_some_and(|it| now_s.wrapping_sub(it) < FORGOTTEN_S)
    }

    /// Has one flow of the next few give the memory of its streams back, but for that at a place: the one that holds most, those first that
    /// are over. What it held is not known any more.
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
            // What came early has been let on, and rules have not seen it in its place.
            if stream.forget(arena) && in_line {
                flow.settled = Settled::Drops;
            }
        }
        true
    }

    /// Returns the place of the flow of that key, if there is one.
    pub fn place_of(&self, key: &Key) -> Option<usize> {
        let hash = key.hash(&self.hash_key);
        let first = ((hash as usize) & (self.tags.len() - 1)) * WAYS;
        let is_it = |place: &usize| self.flows[*place].is_used && self.flows[*place].key == *key;
        (first..first + WAYS).find(is_it)
    }

    /// Finds the flow of that key, or makes room for a new one; `gone` is told of a flow that made room. Returns its place and whether it
    /// is new.
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

    /// Goes through the next few places, and tells of flows that nobody asks for any more, which are gone, and of others that are over.
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
            // Places that are free need not be brought into the cache.
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
    fn flows_that_meet_under_one_key_do_not_under_another() {
        let (one, other) = (HashKey::default(), HashKey::default());
        // Also addresses whose halves make up for each other.
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
