//! The XDP router treats and counts every frame like the router in user space. The tests need root and XDP, and print a
//! line if those are missing.

#[path = "../../../functions/tests/frames/mod.rs"]
mod frames;

use super::*;
use crate::in_kernel::router_settings;
use std::cell::RefCell;
use std::rc::Rc;
use taut_xdp::functions::DryRun;
use taut_xdp::router::KernelRouter;
use taut_xdp::upcall::HandedUp;

const ROUTES: &str = "default via 10.0.1.254
default via 2001:db8:1::254
10.9.0.0/16 via 10.0.2.254
10.50.0.0/16 proto static
\tnexthop via 10.0.1.2 dev wan weight 1
\tnexthop via 10.0.1.3 dev wan weight 1
\tnexthop via 10.0.2.2 dev 2 weight 1
2001:db8:50::/48 proto static
\tnexthop via 2001:db8:1::2 dev wan weight 1
\tnexthop via 2001:db8:2::2 dev 2 weight 1
blackhole 10.66.0.0/16
unreachable 10.67.0.0/16
prohibit 10.68.0.0/16
blackhole 2001:db8:66::/48
unreachable 2001:db8:67::/48
prohibit 2001:db8:68::/48
10.66.7.0/24 via 10.0.1.9
";

/// IPv4 addresses of every kind that a router distinguishes.
const ADDRESSES_V4: [&str; 20] = [
    "192.0.2.1",
    "10.9.1.1",
    "10.50.0.1",
    "10.50.7.200",
    "10.66.0.1",
    "10.66.7.1",
    "10.67.0.1",
    "10.68.0.1",
    "10.0.0.1",
    "10.0.1.1",
    "10.0.1.9",
    "10.0.1.77",
    "10.0.2.255",
    "0.1.2.3",
    "127.0.0.1",
    "224.0.0.5",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "169.254.1.1",
];
const ADDRESSES_V6: [&str; 16] = [
    "2001:db8:99::1",
    "2001:db8:50::1",
    "2001:db8:50:7::200",
    "2001:db8:66::1",
    "2001:db8:67::1",
    "2001:db8:68::1",
    "2001:db8::1",
    "2001:db8:1::1",
    "2001:db8:1::9",
    "2001:db8:1::77",
    "::",
    "::1",
    "fe80::1",
    "fe80::ff:fea0",
    "ff02::1",
    "ff05::2",
];

/// The treatment of a frame before the slow path: forwarded, dropped or punted.
#[derive(Debug, PartialEq)]
enum Verdict {
    Forwarded(usize, Vec<u8>),
    Punted(taut_port::Punt),
    Dropped,
}

/// The router in user space and the XDP router, whose treatment of frames is compared.
struct Both {
    in_user_space: Bench,
    beside: Bench,
    kernel: Arc<KernelRouter>,
    /// The XDP program of each port, by port number.
    programs: Vec<DryRun>,
    rings: Vec<HandedUp>,
    handed_up: Rc<RefCell<Vec<Vec<u8>>>>,
    ticks: u64,
}

impl Both {
    /// Creates both routers. Returns none, and prints a line, if XDP programs cannot be loaded.
    fn new(routes: &str) -> Option<Self> {
        let kernel = match KernelRouter::new(router_settings(SETTINGS.parse().unwrap()).unwrap(), 3)
        {
            Ok(kernel) => Arc::new(kernel),
            Err(e) if e.is_missing() => {
                println!("skipped: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        };
        let handed_up = Rc::<RefCell<Vec<Vec<u8>>>>::default();
        let ring = |port| {
            let brought = Rc::clone(&handed_up);
            let take = move |frame: Option<&[u8]>| {
                brought.borrow_mut().push(frame.unwrap().to_vec());
            };
            HandedUp::new("a test", &*kernel, port, take).unwrap()
        };
        Some(Self {
            in_user_space: Bench::new(routes),
            beside: Bench::beside(routes, Some(&kernel)),
            programs: (0..3).map(|port| kernel.dry_run(port).unwrap()).collect(),
            rings: (0..3).map(ring).collect(),
            handed_up,
            kernel,
            ticks: 0,
        })
    }

    fn hear(&mut self, port: usize, who: &str, at: Mac) {
        self.in_user_space.hear(port, who, at);
        self.beside.hear(port, who, at);
    }

    fn control(&self, change: impl Fn(&mut Control)) {
        for bench in [&self.in_user_space, &self.beside] {
            let control = &bench.router.deciding.as_ref().unwrap().control;
            change(&mut control.lock().unwrap());
        }
    }

    /// Passes a frame through both routers, and compares the results. Returns the verdict, and true if the XDP program
    /// decided without the worker.
    fn pass(&mut self, from: usize, frame: &[u8]) -> (Verdict, bool) {
        // The time since the last packet is long, so the slow path's limit admits the frame.
        self.ticks += 1 << 30;
        let wanted = verdict(self.in_user_space.pass_at(self.ticks, from, frame));
        let counted = |kernel: &KernelRouter| kernel.outcomes().iter().sum::<u64>();
        let before = counted(&self.kernel);
        let left = self.programs[from].pass(frame, 1).unwrap().frame;
        let decided = counted(&self.kernel) > before;
        let got = match (left, decided) {
            (Some(left), _) => {
                let port = OWN.iter().position(|own| own.0 == left[6..12]);
                Verdict::Forwarded(port.unwrap(), left)
            }
            (None, true) => Verdict::Dropped,
            (None, false) => {
                assert_eq!(self.rings[from].show(1), 1, "{frame:02x?}");
                let up = self.handed_up.borrow_mut().pop().unwrap();
                assert_eq!(up, frame);
                verdict(self.beside.pass_at(self.ticks, from, &up))
            }
        };
        assert_eq!(got, wanted, "from port {from}: {frame:02x?}");
        (got, decided)
    }

    fn compare_counts(&self) {
        let of_worker = |bench: &Bench| bench.router.outcomes()[..OUTCOMES.len()].to_vec();
        assert_eq!(of_worker(&self.beside), of_worker(&self.in_user_space));
    }
}

fn verdict(fate: Fate) -> Verdict {
    match fate {
        Fate::Forwarded((port, frame)) => Verdict::Forwarded(port, frame),
        Fate::Slow(cause, _) => Verdict::Punted(cause),
        Fate::Dropped => Verdict::Dropped,
    }
}

/// Sets another source (if `is_source` is true) or destination address of a frame, and the correct IPv4 header
/// checksum.
fn towards(frame: &mut [u8], address: IpAddr, is_source: bool) {
    match address {
        IpAddr::V4(address) if frame.len() >= 34 => {
            let at = if is_source { 26 } else { 30 };
            frame[at..at + 4].copy_from_slice(&address.octets());
            right(frame);
        }
        IpAddr::V6(address) if frame.len() >= 54 => {
            let at = if is_source { 22 } else { 38 };
            frame[at..at + 16].copy_from_slice(&address.octets());
        }
        _ => {}
    }
}

/// Sets the correct checksum in an IPv4 header without options.
fn right(frame: &mut [u8]) {
    if frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && let Ok(mut ip) = Ipv4::new(&mut frame[14..])
    {
        ip.fill_checksum();
    }
}

/// Returns frames, each with its ingress port: all EtherTypes to the router's MAC addresses, every kind of destination,
/// invalid sources, low hop limits, and malformed headers.
fn all_frames() -> Vec<(usize, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(22);
    let mut all = Vec::new();
    for mut frame in frames::frames() {
        let from = random.usize(..3);
        if random.u8(..) < 240 {
            frame[..6].copy_from_slice(&OWN[from].0);
        }
        let destination: IpAddr = match frame.get(12..14) {
            Some([0x86, 0xdd]) => ip(random.choice(ADDRESSES_V6).unwrap()),
            _ => ip(random.choice(ADDRESSES_V4).unwrap()),
        };
        // The frame is added unchanged, and also with a right checksum, which a damaged frame may lack.
        all.push((from, frame.clone()));
        if frame.len() < 34 {
            continue;
        }
        towards(&mut frame, destination, false);
        if random.u8(..) < 30 {
            let hops = if destination.is_ipv4() { 22 } else { 21 };
            frame[hops] = random.u8(..3);
            right(&mut frame);
        }
        if random.u8(..) < 30 {
            let source = match destination {
                IpAddr::V4(_) => random.choice(ADDRESSES_V4),
                IpAddr::V6(_) => random.choice(ADDRESSES_V6),
            };
            towards(&mut frame, ip(source.unwrap()), true);
        }
        all.push((from, frame));
    }
    for port in 0..3 {
        for who in ["10.0.0.99", "10.0.1.99", "2001:db8:1::99"] {
            let question = question(port, ip(who), mac(99));
            // The frames are broadcast, for the router alone, and for another host.
            all.push((port, question.clone()));
            for to in [OWN[port], OWN[(port + 1) % 3], mac(5)] {
                all.push((port, [&to.0, &question[6..]].concat()));
            }
        }
    }
    all
}

#[test]
fn every_frame_has_the_same_outcome_in_kernel_and_worker() {
    let Some(mut both) = Both::new(ROUTES) else {
        return;
    };
    for (port, who, at) in [
        (1, "10.0.1.254", 0xfe),
        (1, "2001:db8:1::254", 0xfd),
        (2, "10.0.2.254", 0xfc),
        (1, "10.0.1.2", 2),
        (1, "10.0.1.3", 3),
        (2, "10.0.2.2", 4),
        (1, "2001:db8:1::2", 5),
        (2, "2001:db8:2::2", 6),
        (1, "10.0.1.9", 9),
        (1, "2001:db8:1::9", 10),
    ] {
        both.hear(port, who, mac(at));
    }
    let all = all_frames();
    assert!(all.len() > 15_000);
    let (mut forwarded, mut dropped, mut causes) = ([0; 3], 0, Vec::new());
    for (from, frame) in &all {
        match both.pass(*from, frame) {
            (Verdict::Forwarded(port, _), decided) => {
                forwarded[port] += 1;
                // The program decides about all frames except rare ones with options or truncated extension headers.
                assert!(decided || frame[14] != 0x45, "{frame:02x?}");
            }
            (Verdict::Dropped, _) => dropped += 1,
            (Verdict::Punted(cause), _) => causes.push(std::mem::discriminant(&cause)),
        }
    }
    let seen = [
        taut_port::Punt::Neighbour,
        taut_port::Punt::Local,
        taut_port::Punt::TooBig(0),
        taut_port::Punt::TimeExceeded,
        taut_port::Punt::Unresolved,
        taut_port::Punt::Unreachable,
        taut_port::Punt::Prohibited,
    ];
    for cause in seen {
        assert!(
            causes.contains(&std::mem::discriminant(&cause)),
            "{cause:?}"
        );
    }
    assert!(forwarded[1].min(forwarded[2]) > 100 && dropped > 1000);
    both.compare_counts();
}

#[test]
fn route_changes_have_the_same_effect_in_kernel_and_worker() {
    let Some(mut both) = Both::new(
        "10.50.0.0/16 proto static\n\tnexthop via 10.0.1.2 dev wan\n\tnexthop via 10.0.2.2 dev 2\n",
    ) else {
        return;
    };
    let flows: Vec<_> = (0..100_u8)
        .map(|last| datagram(0, "10.0.0.7", &format!("10.50.0.{last}"), 80))
        .collect();
    let ports = |both: &mut Both| -> [usize; 4] {
        let mut counts = [0; 4];
        for frame in &flows {
            match both.pass(0, frame) {
                (Verdict::Forwarded(port, _), true) => counts[port] += 1,
                (Verdict::Punted(_), false) => counts[3] += 1,
                other => panic!("{other:?}"),
            }
        }
        counts
    };
    // The states are: no neighbour is known, then one, then both; then one neighbour moves, and one disappears.
    assert_eq!(ports(&mut both), [0, 0, 0, 100]);
    both.hear(1, "10.0.1.2", mac(2));
    assert_eq!(ports(&mut both), [0, 100, 0, 0]);
    both.hear(2, "10.0.2.2", mac(4));
    let [0, one, two, 0] = ports(&mut both) else {
        panic!("all are forwarded");
    };
    assert!(one.min(two) > 20, "{one} {two}");
    both.hear(2, "10.0.2.2", mac(5));
    assert_eq!(ports(&mut both), [0, one, two, 0]);
    both.control(|control| control.forget((2, ip("10.0.2.2"))));
    assert_eq!(ports(&mut both), [0, 100, 0, 0]);
    // Longer prefixes of both families are added and removed.
    let mut random = fastrand::Rng::with_seed(5);
    both.hear(1, "2001:db8:1::2", mac(6));
    let ways = [
        Target::via((1, ip("10.0.1.2"))),
        Target::Blackhole,
        Target::Prohibited,
        Target::Local,
    ];
    for _ in 0..2_000 {
        let bits: [u8; 2] = random.u16(..).to_be_bytes();
        let is_v4 = random.bool();
        let (address, most) = match is_v4 {
            true => (IpAddr::from([10, 50, bits[0], bits[1]]), 32),
            false => (ip(&format!("2001:db8:{:x}::{:x}", bits[0], bits[1])), 128),
        };
        let prefix = Prefix::of(address, random.u8(8..=most));
        let mut target = random.choice(&ways).unwrap().clone();
        if !is_v4 && matches!(target, Target::Neighbours(_)) {
            target = Target::via((1, ip("2001:db8:1::2")));
        }
        let goes = random.u8(..3) == 0;
        both.control(|control| match goes {
            true => drop(control.remove(prefix).unwrap()),
            false => control.set(prefix, target.clone()).unwrap(),
        });
        let from = if is_v4 { "10.0.0.7" } else { "2001:db8::7" };
        both.pass(0, &datagram(0, from, &address.to_string(), 80));
        both.control(|control| drop(control.tick(Instant::now())));
    }
    both.compare_counts();
}

#[test]
fn a_punt_flood_leaves_ring_space_for_neighbour_requests() {
    let Some(mut both) = Both::new("") else {
        return;
    };
    let trouble = datagram(0, "10.0.0.7", "10.0.1.9", 100);
    both.programs[0].pass(&trouble, 2_000).unwrap();
    let name = "dropped: more than the slow path is given";
    let place = OUTCOMES.iter().position(|it| *it == name).unwrap();
    let excess = both.kernel.outcomes()[place];
    assert!((1_700..1_800).contains(&excess), "{excess}");
    both.programs[0]
        .pass(&question(0, ip("10.0.0.9"), mac(9)), 1)
        .unwrap();
    let shown = std::iter::repeat_with(|| both.rings[0].show(64));
    let shown: usize = shown.take_while(|shown| *shown > 0).sum();
    assert_eq!(shown as u64, 2_000 - excess + 1);
    let last = both.handed_up.borrow().last().cloned();
    assert_eq!(last, Some(question(0, ip("10.0.0.9"), mac(9))));
}
