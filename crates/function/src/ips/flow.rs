//! Flows that a worker remembers: a fixed number, in which the oldest of a few neighbours makes room for a new one.

use crate::mix::mix;
use taut_inspect::buffer::Application;
use taut_inspect::dns::Framing;
use taut_inspect::evaluate::FlowBits;
use taut_inspect::stream::Stream;

/// The two ends of a flow, the lower one first, and its protocol: the same for packets of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Key {
    low: (u128, u16),
    high: (u128, u16),
    protocol: u8,
}

impl Key {
    /// The key of a packet, and whether it comes from the lower end.
    pub fn of(source: (u128, u16), destination: (u128, u16), protocol: u8) -> (Self, bool) {
        let from_low = source <= destination;
        let (low, high) = if from_low {
            (source, destination)
        } else {
            (destination, source)
        };
        (
            Self {
                low,
                high,
                protocol,
            },
            from_low,
        )
    }

    fn hash(&self) -> u64 {
        let fold = |it: u128| (it ^ (it >> 64)) as u64;
        let ports = u64::from(self.low.1) << 16 | u64::from(self.high.1);
        mix(
            mix(fold(self.low.0), ports) ^ fold(self.high.0),
            u64::from(self.protocol),
        )
    }
}

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
    /// Whether the lower end is the client: it sent first.
    pub client_is_low: bool,
    /// Whether the server has answered.
    pub is_answered: bool,
    /// Whether both ends have said that they are done, or one has broken off.
    pub is_over: bool,
    /// Whether who sends to the server has said so, and who sends to the client.
    pub is_done: [bool; 2],
    pub settled: Settled,
    /// Protocol that an inspector knows, once it is known; none also when it is none of them.
    pub application: Option<Application>,
    /// Whether it is known that it is none.
    pub is_opaque: bool,
    /// Whether the server has greeted as one of SMTP or FTP does: what the client says tells.
    pub is_greeted: bool,
    pub seen_s: u32,
    pub bits: FlowBits,
    /// Bytes of packets, to the server first.
    pub bytes: [u64; 2],
    pub packets: [u32; 2],
    pub streams: [Stream; 2],
    /// Messages of DNS over TCP, to the server first.
    pub dns: [Framing; 2],
    /// Number of its parser of HTTP, from 1; 0 for none.
    pub parser: u32,
    /// Numbers of its first messages of TLS, to the server first.
    pub flights: [u32; 2],
    /// Number of the flow, for events.
    pub id: u64,
    pub alerts: u32,
}

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

    /// Begins anew for another connection between the same ports, whose client is at the lower end or not; streams
    /// and parser were given back before.
    pub fn reconnect(&mut self, client_is_low: bool) {
        self.client_is_low = client_is_low;
        self.is_over = false;
        self.is_done = [false; 2];
        self.is_answered = false;
        self.application = None;
        self.is_opaque = false;
        self.is_greeted = false;
        self.bits = FlowBits::default();
        self.dns = Default::default();
    }

    /// Seconds without packets after which nobody asks for it any more.
    fn patience_s(&self) -> u32 {
        match (self.key.protocol, self.is_over, self.is_answered) {
            (6, true, _) => 2,
            (6, false, true) => 300,
            _ => 30,
        }
    }
}

/// Flows of a worker.
pub(super) struct Flows {
    flows: Box<[Flow]>,
    /// Parts of hashes, by place: most of what is not it is told by them.
    tags: Box<[[u8; WAYS]]>,
    next_id: u64,
    pub used: usize,
    /// Flows that made room before their time.
    pub forced_out: u64,
}

/// Places that a flow can be at.
const WAYS: usize = 8;

impl Flows {
    pub fn new(most: usize, first_id: u64) -> Self {
        let most = most.next_power_of_two().max(WAYS);
        Self {
            flows: (0..most).map(|_| Flow::default()).collect(),
            tags: vec![[0; WAYS]; most / WAYS].into(),
            next_id: first_id,
            used: 0,
            forced_out: 0,
        }
    }

    /// Finds the flow of that key, or makes room for a new one; `gone` is told of a flow that made room. Returns its place and whether it
    /// is new.
    pub fn find(&mut self, key: &Key, now_s: u32, gone: impl FnOnce(&mut Flow)) -> (usize, bool) {
        let hash = key.hash();
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
        let free = ways
            .iter()
            .position(|flow| !flow.is_used || age(flow) > flow.patience_s());
        let way = free.unwrap_or_else(|| (0..WAYS).max_by_key(|&way| age(&ways[way])).unwrap_or(0));
        self.forced_out += u64::from(free.is_none());
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

    pub fn at(&mut self, place: usize) -> &mut Flow {
        &mut self.flows[place]
    }

    /// Goes through the next few places, and tells of flows that are over.
    pub fn sweep(
        &mut self,
        from: usize,
        places: usize,
        now_s: u32,
        mut gone: impl FnMut(&mut Flow),
    ) -> usize {
        let most = self.flows.len();
        for place in from..(from + places).min(most) {
            let flow = &mut self.flows[place];
            if flow.is_used && now_s.wrapping_sub(flow.seen_s) > flow.patience_s() {
                gone(flow);
                *flow = Flow::default();
                self.tags[place / WAYS][place % WAYS] = 0;
                self.used -= 1;
            }
        }
        if from + places >= most {
            0
        } else {
            from + places
        }
    }
}
