//! Spreads flows over next hops, so that few flows move when a hop is added or removed. Each bucket of flows belongs to
//! the hop with the highest hash for that bucket. (Rendezvous hashing: Thaler, Ravishankar, IEEE/ACM ToN 1998.)

use serde::Deserialize;
use taut_function::mix::mix;
use taut_function::tuple::{Seen, Tuple};
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, settings,
};
use taut_port::Batch;
use taut_wire::{Ethernet, Mac};
use taut_xdp::functions::{HOP_BUCKETS, KernelFunction};

pub(crate) const ENTRY: Entry = Entry {
    name: "balance",
    summary: "spreads flows over next hops by consistent hashing",
    class: Class::Basic,
    ports: Some("port"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| Ok(Box::new(Balance::new(settings(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::Frames(|table, port| {
        Ok(Balance::new(settings(table)?)?.in_kernel(port))
    }),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "port",
        "required",
        "port, counted from 0, through which balanced packets leave; others pass unchanged",
    ),
    (
        "hops",
        "required",
        "MAC addresses of the next hops, 1 to 1024, in any order",
    ),
    (
        "seed",
        "0",
        "of the hash: forwarders with the same seed choose the same hop for a flow",
    ),
];

/// The number of buckets. It is large enough for a nearly even distribution: with ten hops, within some percent.
const BUCKETS: usize = HOP_BUCKETS;
const MOST_HOPS: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    port: usize,
    hops: Vec<String>,
    #[serde(default)]
    seed: u64,
}

pub(crate) struct Balance {
    port: usize,
    seed: u64,
    hops: Vec<Mac>,
    /// The index of the hop for each bucket. The upper bits of a flow's hash select the bucket.
    buckets: Vec<u16>,
    balanced: u64,
    passed: u64,
    malformed: u64,
}

impl Balance {
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Settings { port, hops, seed } = settings;
        if !(1..=MOST_HOPS).contains(&hops.len()) {
            return Err(SettingsError(format!(
                "hops: expected 1 to {MOST_HOPS} MAC addresses such as \"02:00:00:00:00:01\", not {}",
                hops.len()
            )));
        }
        let mut macs: Vec<Mac> = Vec::with_capacity(hops.len());
        for hop in hops {
            match hop.parse::<Mac>() {
                Ok(mac) if mac.is_multicast() || macs.contains(&mac) => {
                    return Err(SettingsError(format!(
                        "hops: \"{hop}\" is listed twice or is not a unicast address"
                    )));
                }
                Ok(mac) => macs.push(mac),
                Err(_) => {
                    return Err(SettingsError(format!(
                        "hops: \"{hop}\": expected a MAC address such as \"02:00:00:00:00:01\""
                    )));
                }
            }
        }
        Ok(Self {
            port,
            seed,
            buckets: (0..BUCKETS as u64)
                .map(|bucket| highest(bucket, seed, &macs))
                .collect(),
            hops: macs,
            balanced: 0,
            passed: 0,
            malformed: 0,
        })
    }

    /// Returns the settings of the XDP program for frames that leave through port `port`.
    fn in_kernel(&self, port: usize) -> KernelFunction {
        if port != self.port {
            // `outcome` is an index into the list of outcomes.
            return KernelFunction::Passes { outcome: 1 };
        }
        let hop = |bucket: &u16| self.hops[usize::from(*bucket)].0;
        KernelFunction::Balance {
            buckets: self.buckets.iter().map(hop).collect(),
            seed: self.seed,
        }
    }

    #[inline]
    fn hop(&self, tuple: &Tuple) -> Mac {
        let bucket = tuple.flow_hash(self.seed) >> (u64::BITS - BUCKETS.ilog2());
        self.hops[usize::from(self.buckets[bucket as usize])]
    }
}

/// Returns the hop of a bucket: it depends on the hop's address, not on its position in the list.
fn highest(bucket: u64, seed: u64, hops: &[Mac]) -> u16 {
    let drawn = |mac: &Mac| {
        let [a, b, c, d, e, f] = mac.0;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        mix(mix(seed, mac), bucket)
    };
    let highest = hops.iter().enumerate().max_by_key(|(_, mac)| drawn(mac));
    highest.map_or(0, |(number, _)| number as u16)
}

impl Function for Balance {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if context.to_port != self.port && batch.goes_together() {
            self.passed += batch.len() as u64;
            return;
        }
        batch.read_headers();
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            if batch.leaves_through(i, context.to_port) != self.port {
                self.passed += 1;
                continue;
            }
            let headers = batch.headers(i);
            let frame = batch.packet_mut_but_headers(i).bytes_mut();
            match (Seen::of(&headers, frame), Ethernet::new(frame)) {
                // Multicast packets, such as neighbour discovery, keep their destination: they are for all hosts.
                (Seen::Tuple(tuple), Ok(mut ethernet))
                    if !ethernet.destination().is_multicast() =>
                {
                    ethernet.set_destination(self.hop(&tuple));
                    self.balanced += 1;
                }
                (Seen::Tuple(_) | Seen::NoIp, Ok(_)) => self.passed += 1,
                _ => {
                    batch.mark_dropped(i);
                    self.malformed += 1;
                }
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("balanced", self.balanced),
            ("passed: another port, multicast or no IP", self.passed),
            ("dropped: malformed", self.malformed),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;
    use taut_wire::{Headers, UdpFlow};

    const FLOWS: u16 = 20_000;

    fn hops(numbers: impl IntoIterator<Item = u8>) -> Vec<String> {
        let hop = |n| format!("02:00:00:00:00:{n:02x}");
        numbers.into_iter().map(hop).collect()
    }

    fn balance(hops: Vec<String>) -> Balance {
        let settings = Settings {
            port: 1,
            hops,
            seed: 0,
        };
        Balance::new(settings).unwrap()
    }

    fn through(balance: &mut Balance, frame: &[u8], to_port: usize) -> (Vec<u8>, bool) {
        let pool = PoolHandle::new(1, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        let context = Context {
            to_port,
            ..Context::default()
        };
        balance.process(&mut batch, &context);
        (batch.packets()[0].bytes().to_vec(), batch.is_kept(0))
    }

    fn flow(number: u16) -> Vec<u8> {
        let [a, b] = number.to_be_bytes();
        let mut frame = UdpFlow::default().frame(64).unwrap();
        // Source address and port alternate.
        frame[28..30].copy_from_slice(&[a, b / 2]);
        frame[34..36].copy_from_slice(&[0x30, b % 2]);
        frame
    }

    fn tuples() -> Vec<Tuple> {
        let tuple = |number| {
            let flow = flow(number);
            match Seen::of(&Headers::of(&flow), &flow) {
                Seen::Tuple(tuple) => tuple,
                _ => panic!("a flow"),
            }
        };
        (0..FLOWS).map(tuple).collect()
    }

    /// Returns the next hop of each flow, as the last byte of the next hop's address.
    fn places(balance: &Balance, tuples: &[Tuple]) -> Vec<u8> {
        tuples.iter().map(|it| balance.hop(it).0[5]).collect()
    }

    #[test]
    fn flows_spread_evenly_over_the_next_hops() {
        let places = places(&balance(hops(1..=10)), &tuples());
        for hop in 1..=10 {
            let share = places.iter().filter(|&&place| place == hop).count();
            // The mean is 2000 each; a random deviation of 45 is usual.
            assert!((1700..2300).contains(&share), "{hop}: {share}");
        }
    }

    #[test]
    fn removing_a_next_hop_moves_no_other_next_hops_flows() {
        let tuples = tuples();
        let places = |hops| places(&balance(hops), &tuples);
        let ten = places(hops(1..=10));
        let nine = places(hops((1..=10).filter(|&hop| hop != 4)));
        let mut moved = 0;
        for (before, after) in ten.iter().zip(&nine) {
            assert_ne!(*after, 4);
            assert!(before == after || *before == 4);
            moved += u64::from(before != after);
        }
        assert!((1700..2300).contains(&moved), "{moved} of {FLOWS}");
        // When the hop returns, at any position, all flows are as before.
        let back = hops([1, 2, 3, 5, 6, 7, 8, 9, 10, 4]);
        assert_eq!(places(back), ten);
    }

    #[test]
    fn frames_get_a_next_hop_and_fragments_stay_together() {
        let mut balance = balance(hops(1..=10));
        let frame = flow(7);
        let (sent, kept) = through(&mut balance, &frame, 1);
        assert!(kept && sent[..5] == [2, 0, 0, 0, 0] && (1..=10).contains(&sent[5]));
        assert_eq!(sent[6..], frame[6..]);
        let mut seen = std::collections::HashSet::new();
        for (flags, port) in [(0x20, 1), (0x20, 2), (0, 3)] {
            let mut fragment = frame.clone();
            fragment[20..22].copy_from_slice(&[flags, u8::from(flags == 0)]);
            fragment[34..36].copy_from_slice(&[9, port]);
            seen.insert(through(&mut balance, &fragment, 1).0[5]);
        }
        assert_eq!(seen.len(), 1);
    }

    #[test]
    fn packets_without_a_next_hop_pass_and_truncated_packets_drop() {
        let mut balance = balance(hops([1]));
        let frame = flow(1);
        let mut multicast = frame.clone();
        multicast[0] |= 1;
        let mut arp = frame.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        for (frame, port) in [(&frame, 0), (&multicast, 1), (&arp, 1)] {
            assert_eq!(through(&mut balance, frame, port), (frame.clone(), true));
        }
        assert!(!through(&mut balance, &frame[..30], 1).1);
        through(&mut balance, &frame, 1);
        let counts: Vec<u64> = balance.outcomes().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 3, 1]);
    }

    #[test]
    fn invalid_next_hops_are_refused_with_the_reason() {
        let wrong = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
        assert!(wrong("port = 1\nhops = []").contains("1 to 1024"));
        assert!(wrong("port = 1\nhops = [\"x\"]").contains("\"x\""));
        let twice = "port = 1\nhops = [\"02:00:00:00:00:01\", \"02:00:00:00:00:01\"]";
        assert!(wrong(twice).contains("twice"));
        assert!(wrong("hops = []").contains("port"));
    }
}
