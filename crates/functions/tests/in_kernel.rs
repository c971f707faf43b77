//! Tests that functions in the kernel treat and count every frame like functions in user space. Ten thousand valid,
//! truncated and damaged frames pass through both. The tests need root and XDP; without these, the tests only print a
//! line.
#![allow(clippy::unwrap_used)]

mod frames;

use frames::{FRAMES, STAMPS, frames, without_stamps};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use taut_function::{Context, Function};
use taut_functions::{FUNCTIONS, build};
use taut_port::{Batch, PoolHandle};
use taut_wire::{Ethernet, IpProtocol, Ipv4, Ipv4Repr, UdpFlow};
use taut_xdp::functions::{DryRun, KernelFunctions, KernelStage};

/// The tolerance between the timestamps that user space and then the kernel give to a frame.
const TOLERANCE_NS: u64 = 2_000_000_000;

/// A chain in user space and in the kernel.
struct Both {
    functions: Vec<Box<dyn Function>>,
    kernel: KernelFunctions,
    /// The XDP programs of the chain, by egress port.
    programs: [DryRun; 2],
    pool: PoolHandle,
}

impl Both {
    /// Creates both chains. Returns none, and prints a line, if XDP programs cannot be loaded.
    fn new(chain: &[(&str, &str)]) -> Option<Self> {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let stage = |port, (number, (name, text)): (usize, &(&str, &str))| KernelStage {
            number,
            function: FUNCTIONS.in_kernel(name, table(text), port).unwrap(),
        };
        let directions = [0, 1].map(|port| {
            let numbered = chain.iter().enumerate();
            numbered.map(|it| stage(port, it)).collect::<Vec<_>>()
        });
        let kernel = match KernelFunctions::new(directions.to_vec(), None) {
            Ok(kernel) => kernel,
            Err(e) if e.is_missing() => {
                println!("skipped: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        };
        let functions = chain.iter().map(|(name, text)| {
            let mut function = build(name, table(text)).unwrap();
            function.prepare().unwrap();
            function
        });
        Some(Self {
            functions: functions.collect(),
            programs: [0, 1].map(|to| kernel.dry_run(to).unwrap()),
            kernel,
            pool: PoolHandle::new(4, false).unwrap(),
        })
    }

    /// Returns the frame as it leaves user space; none if it is dropped there.
    fn in_user_space(&mut self, frame: &[u8], to: usize) -> Option<Vec<u8>> {
        let mut batch = Batch::new();
        let mut packet = self.pool.take(frame.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(frame);
        batch.push(packet);
        let context = Context {
            now_ticks: taut_sys::ticks(),
            from_port: 1 - to,
            to_port: to,
            ports: 2,
        };
        for function in &mut self.functions {
            function.process(&mut batch, &context);
            batch.settle(&mut Batch::new());
        }
        batch.packets().first().map(|it| it.bytes().to_vec())
    }

    /// Passes a frame through both chains, and compares the results.
    fn pass(
        &mut self,
        frame: &[u8],
        to: usize,
        alike: fn(&[u8], &[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let want = self.in_user_space(frame, to);
        let got = self.programs[to].pass(frame, 1).unwrap().frame;
        let same = match (&want, &got) {
            (Some(want), Some(got)) => alike(want, got),
            (want, got) => want == got,
        };
        assert!(
            same,
            "to {to}: {frame:02x?}\nuser space: {want:02x?}\nkernel: {got:02x?}"
        );
        want
    }

    fn compare(&mut self, frames: &[Vec<u8>], to: usize, alike: fn(&[u8], &[u8]) -> bool) {
        for frame in frames {
            self.pass(frame, to, alike);
        }
        self.compare_counts();
    }

    fn compare_counts(&self) {
        for (number, function) in self.functions.iter().enumerate() {
            let want = function.outcomes();
            let got = self.kernel.outcomes(number);
            for (outcome, (name, count)) in want.iter().enumerate() {
                assert_eq!(got[outcome], *count, "function {number}: {name}");
            }
            assert!(got[want.len()..].iter().all(|count| *count == 0));
        }
    }
}

fn same(want: &[u8], got: &[u8]) -> bool {
    want == got
}

/// Returns true if two frames are equal except for the timestamps at the end of UDP payloads, which differ little, and
/// their checksum.
fn same_but_for_stamps(want: &[u8], got: &[u8]) -> bool {
    if want == got {
        return true;
    }
    let (want, want_stamps) = without_stamps(want);
    let (got, got_stamps) = without_stamps(got);
    let near = |(a, b): (&u64, &u64)| a.abs_diff(*b) < TOLERANCE_NS;
    want == got && want_stamps.iter().zip(&got_stamps).all(near) && got_stamps[0] <= got_stamps[1]
}

const FILTER: &str = r#"
default = "accept"
rules = [
    { action = "drop", source = "10.0.0.5" },
    { action = "accept", protocol = "udp", source = "10.0.0.0/28", destination_port = "50-53" },
    { action = "drop", destination = "2001:db8:1::/124", source_port = "1000-1006" },
    { action = "drop", protocol = "icmp" },
    { action = "accept", protocol = 6, destination = "192.0.2.0/27" },
    { action = "drop", source = "10.0.0.0/8", source_port = 1031 },
    { action = "drop", destination_port = "57" },
]
"#;
const BALANCE: &str = "port = 1\nseed = 3\nhops = [\"02:00:00:00:00:01\", \"02:00:00:00:00:02\", \"02:00:00:00:00:03\"]";

#[test]
fn xor_in_the_kernel_equals_xor_in_user_space() {
    for key in [0x5a, 0, 255] {
        let key = format!("key = {key}");
        let Some(mut both) = Both::new(&[("xor", &key)]) else {
            return;
        };
        both.compare(&frames(), 1, same);
    }
}

#[test]
fn xor_changes_the_longest_native_xdp_frames_completely() {
    let Some(both) = Both::new(&[("xor", "key = 90")]) else {
        return;
    };
    for size in 3380..3420 {
        let mut frame = UdpFlow::default().frame(size).unwrap();
        fastrand::Rng::with_seed(size as u64).fill(&mut frame[42..]);
        let once = both.programs[1].pass(&frame, 1).unwrap().frame.unwrap();
        assert!(
            once[42..]
                .iter()
                .zip(&frame[42..])
                .all(|(a, b)| a ^ b == 90)
        );
        assert_eq!(once[..40], frame[..40]);
        let twice = both.programs[1].pass(&once, 1).unwrap().frame;
        assert_eq!(twice, Some(frame));
    }
}

#[test]
fn ats_in_the_kernel_equals_user_space_except_for_timestamps() {
    for settings in ["", "mtu = 600", "mtu = 9000"] {
        let Some(mut both) = Both::new(&[("ats", settings)]) else {
            return;
        };
        both.compare(&frames(), 1, same_but_for_stamps);
    }
}

#[test]
fn ats_appends_timestamps_to_frames_without_tailroom() {
    let Some(both) = Both::new(&[("ats", "mtu = 9000")]) else {
        return;
    };
    // A page has space for frames of 3520 bytes next to the kernel's reserved parts.
    for len in 3480..=3520 {
        let mut frame = UdpFlow::default().frame(len + 4).unwrap();
        fastrand::Rng::with_seed(len as u64).fill(&mut frame[42..]);
        let passed = both.programs[1].pass(&frame, 1).unwrap().frame;
        let (got, _) = without_stamps(&passed.unwrap());
        assert_eq!(got.len(), frame.len() + STAMPS);
        assert_eq!(got[42..frame.len()], frame[42..]);
        assert_eq!(got[..16], frame[..16]);
    }
    assert_eq!(both.kernel.outcomes(0)[3], 0);
}

#[test]
fn filter_in_the_kernel_equals_user_space_with_maximum_rules() {
    let many: String = (0..4096)
        .map(|n| {
            format!(
                "{{ action = \"drop\", source = \"10.0.{}.{}\" }},",
                n / 100,
                n % 100 * 2
            )
        })
        .collect();
    let many = format!("default = \"drop\"\nrules = [{many}]");
    for settings in [FILTER, "default = \"drop\"", &many] {
        let Some(mut both) = Both::new(&[("filter", settings)]) else {
            return;
        };
        both.compare(&frames(), 0, same);
    }
}

#[test]
fn balance_in_the_kernel_equals_user_space_in_both_directions() {
    for to in [0, 1] {
        let Some(mut both) = Both::new(&[("balance", BALANCE)]) else {
            return;
        };
        both.compare(&frames(), to, same);
    }
}

const NAT: &str = "outside = [1]\naddress = [\"203.0.113.1\", \"203.0.113.2\"]\nseed = 1\n";

/// Returns a reply from the receiver of a translated frame: addresses and ports are swapped, which changes no checksum.
fn answer(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let ip = Ethernet::new(&frame[..]).unwrap().header_len_bytes();
    let header = ip + Ipv4::new(&frame[ip..]).unwrap().header_len_bytes();
    frame[ip + 12..ip + 20].rotate_left(4);
    if frame[ip + 9] != 1 {
        frame[header..header + 4].rotate_left(2);
    }
    frame
}

/// Returns an ICMP error that quotes up to 89 bytes of the packet `about`. It is from the host `from`, or, if `from` is
/// none, from a router to the packet's sender.
fn error(about: &[u8], random: &mut fastrand::Rng, from: Option<[u8; 4]>) -> Vec<u8> {
    let at = Ethernet::new(about).unwrap().header_len_bytes();
    let about = &about[at..];
    let kind = *random.choice(&[3, 4, 11, 12, 5]).unwrap();
    let quoted = &about[..random.usize(20..90).min(about.len())];
    let mut frame = vec![0; 42 + quoted.len()];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let (source, destination) = match from {
        Some(host) => (host, [198, 51, 100, 7]),
        None => ([198, 51, 100, 7], *about[12..].first_chunk().unwrap()),
    };
    let ip = Ipv4Repr {
        traffic_class: 0,
        identification: 7,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: IpProtocol::ICMP,
        source: source.into(),
        destination: destination.into(),
        options: &[],
        payload_len_bytes: 8 + quoted.len(),
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    ip.payload_mut()[0] = kind;
    ip.payload_mut()[8..].copy_from_slice(quoted);
    frame
}

fn damaged(frame: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..random.usize(1..3) {
        let at = random.usize(12..frame.len().min(90));
        frame[at] = random.u8(..);
    }
    frame
}

#[test]
fn nat_in_the_kernel_equals_user_space_in_both_directions() {
    for more in [
        "forward = [{ protocol = \"udp\", port = 53, to = \"10.0.0.7:1007\" }]",
        "ports = \"2000-2059\"",
        "mappings = 40",
        "mappings_per_host = 1",
    ] {
        let Some(mut both) = Both::new(&[("nat", &format!("{NAT}{more}"))]) else {
            return;
        };
        let mut random = fastrand::Rng::with_seed(3);
        for frame in frames() {
            let Some(sent) = both.pass(&frame, 1, same) else {
                continue;
            };
            if sent == frame || random.u8(..) > 100 {
                continue;
            }
            // These are replies to translated frames, and errors about frames and replies.
            let back = answer(&sent);
            both.pass(&damaged(&back, &mut random), 0, same);
            both.pass(&error(&sent, &mut random, None), 0, same);
            let about = error(&sent, &mut random, None);
            both.pass(&damaged(&about, &mut random), 0, same);
            let Some(came) = both.pass(&back, 0, same) else {
                continue;
            };
            if Ipv4::new(&came[14..]).is_ok() {
                let about = error(&came, &mut random, Some([10, 0, 0, 9]));
                both.pass(&about, 1, same);
                both.pass(&damaged(&about, &mut random), 1, same);
            }
        }
        both.compare_counts();
        let counts: BTreeMap<_, _> = both.functions[0].outcomes().into_iter().collect();
        let seen = |name: &str| assert!(counts[name] > 20, "{name}: {counts:?}");
        for name in [
            "translated to outside",
            "translated to inside",
            "translated: ICMP error",
            "passed: no IPv4",
            "dropped: no mapping",
            "dropped: another protocol",
            "dropped: malformed",
        ] {
            seen(name);
        }
        match more {
            "mappings = 40" => seen("dropped: table full"),
            "mappings_per_host = 1" => seen("dropped: its host has too many mappings"),
            "ports = \"2000-2059\"" => seen("dropped: no port free"),
            _ => {}
        }
    }
}

/// Returns a TCP segment or UDP datagram without options. Its checksum field is 0, which is wrong for TCP and means no
/// checksum for UDP.
fn packet_of(from: ([u8; 4], u16), to: ([u8; 4], u16), tcp: Option<(u8, u32, u32)>) -> Vec<u8> {
    let len = if tcp.is_some() { 20 } else { 8 } + 10;
    let mut frame = vec![0; 34 + len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = Ipv4Repr {
        traffic_class: 0,
        identification: 7,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: if tcp.is_some() {
            IpProtocol::TCP
        } else {
            IpProtocol::UDP
        },
        source: from.0.into(),
        destination: to.0.into(),
        options: &[],
        payload_len_bytes: len,
    };
    let mut ip = ip.emit(&mut frame[14..]).unwrap();
    let bytes = ip.payload_mut();
    bytes[..2].copy_from_slice(&from.1.to_be_bytes());
    bytes[2..4].copy_from_slice(&to.1.to_be_bytes());
    match tcp {
        Some((flags, sequence, acknowledgement)) => {
            bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
            bytes[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
            bytes[12] = 5 << 4;
            bytes[13] = flags;
        }
        None => bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes()),
    }
    frame
}

/// Returns the outside source of a translated frame.
fn source_of(frame: &[u8]) -> ([u8; 4], u16) {
    let port = u16::from_be_bytes([frame[34], frame[35]]);
    (*frame[26..].first_chunk().unwrap(), port)
}

const PEER: ([u8; 4], u16) = ([198, 51, 100, 7], 443);

#[test]
fn tcp_state_of_nat_in_the_kernel_equals_user_space() {
    let settings = format!("{NAT}tcp_closing_timeout = \"1s\"\n");
    let Some(mut both) = Both::new(&[("nat", &settings)]) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(11);
    let mut outside = Vec::new();
    // The range of sequence numbers is small, so that some numbers are the expected ones.
    for number in 0..400_u16 {
        let inside = ([10, 0, 1, number as u8], 2000 + number);
        let first = packet_of(inside, PEER, Some((2, 100, 0)));
        let mapped = source_of(&both.pass(&first, 1, same).unwrap());
        outside.push(mapped);
        for _ in 0..random.usize(..12) {
            let flags = *random
                .choice(&[16, 16, 16, 2, 18, 1, 17, 4, 20, 0])
                .unwrap();
            let numbers = [100, 101, 111, 121];
            let (sequence, acknowledgement) =
                (numbers[random.usize(..4)], numbers[random.usize(..4)]);
            let tcp = Some((flags, sequence, acknowledgement));
            if random.bool() {
                both.pass(&packet_of(inside, PEER, tcp), 1, same);
            } else {
                both.pass(&packet_of(PEER, mapped, tcp), 0, same);
            }
        }
    }
    // Opening and closing connections have timed out then, and open ones have not.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    let mut live = 0;
    for mapped in &outside {
        let data = packet_of(PEER, *mapped, Some((16, 1, 1)));
        live += usize::from(both.pass(&data, 0, same).is_some());
    }
    both.compare_counts();
    assert!((50..350).contains(&live), "{live}");
}

#[test]
fn two_cpus_that_create_mappings_concurrently_leak_no_mapping() {
    const MOST: usize = 24_000;
    let settings =
        format!("outside = [1]\naddress = \"203.0.113.1\"\nseed = 1\nmappings_per_host = {MOST}\n");
    let Some(both) = Both::new(&[("nat", &settings)]) else {
        return;
    };
    // A translated packet comes from a new endpoint, so one frame makes a chain of mappings if repeated. Programs on
    // several CPUs meet at the end of the chain, because following existing mappings is faster than creating them.
    let first = packet_of(([10, 0, 0, 9], 1000), PEER, None);
    let programs: Vec<DryRun> = (0..2).map(|_| both.kernel.dry_run(1).unwrap()).collect();
    let start = std::sync::Barrier::new(programs.len());
    std::thread::scope(|scope| {
        for (cpu, program) in programs.into_iter().enumerate() {
            let (first, start) = (&first, &start);
            scope.spawn(move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                // If this process may not run there, the threads may meet less often.
                let _ = sched_setaffinity(None, &one);
                start.wait();
                program.pass(first, 3 * MOST as u32).unwrap()
            });
        }
    });
    // A single program with the same frames makes the maximum number of mappings; all are different, and each has its
    // reverse.
    let mut frame = first;
    let mut seen = std::collections::BTreeSet::new();
    while let Some(sent) = both.programs[1].pass(&frame, 1).unwrap().frame {
        let outside = source_of(&sent);
        assert!(seen.insert(outside));
        let came = both.programs[0].pass(&packet_of(PEER, outside, None), 1);
        let came = came.unwrap().frame.unwrap();
        let (address, port) = source_of(&frame);
        assert_eq!(came[30..34], address);
        assert_eq!(came[36..38], port.to_be_bytes());
        frame = sent;
    }
    assert_eq!(seen.len(), MOST + 1);
}

/// Measures the time of NAT's XDP program for each new flow when the table has no space or no free ports.
#[test]
#[ignore = "a measurement: cargo test --release -p taut-functions --test in_kernel flood -- --ignored --nocapture"]
fn kernel_nat_time_per_flow_is_measured_during_a_flood() {
    for (what, more) in [
        ("full table", "mappings = 16384\n"),
        ("ports taken", "mappings = 1000000\nports = \"1024-5119\"\n"),
    ] {
        let settings = format!("outside = [1]\naddress = \"203.0.113.1\"\nseed = 1\n{more}");
        let Some(both) = Both::new(&[("nat", &settings)]) else {
            return;
        };
        let mut number = 0_u32;
        let mut pass = |flows: u32| {
            let mut sum_ns = 0;
            for _ in 0..flows {
                number += 1;
                let [_, b, c, d] = number.to_be_bytes();
                let frame = packet_of(([10, b, c, d], number as u16), PEER, None);
                sum_ns += both.programs[1].pass(&frame, 1).unwrap().duration_ns;
            }
            sum_ns / u64::from(flows)
        };
        let filling = pass(16_384);
        let flood: Vec<_> = (0..5).map(|_| pass(20_000)).collect();
        let known = packet_of(([10, 0, 0, 1], 1), PEER, None);
        let known_ns = (0..20_000).map(|_| both.programs[1].pass(&known, 1).unwrap().duration_ns);
        let known_ns = known_ns.sum::<u64>() / 20_000;
        println!("{what}: filling {filling} ns, flood {flood:?} ns, a known flow {known_ns} ns");
        println!("{:?}", both.kernel.outcomes(0));
    }
}

#[test]
fn function_chains_in_the_kernel_equal_chains_in_user_space() {
    for chain in [
        &[
            ("xor", "key = 9"),
            ("filter", FILTER),
            ("mac-swap", ""),
            ("balance", BALANCE),
            ("ats", ""),
        ][..],
        &[
            ("balance", BALANCE),
            ("mac-rewrite", "source = \"02:00:00:00:00:aa\""),
            ("filter", "default = \"accept\""),
            ("filter", FILTER),
        ],
        &[("xor", "key = 1"); 16],
        &[
            ("filter", "default = \"accept\""),
            ("nat", "outside = [1]\naddress = \"203.0.113.1\"\nseed = 4"),
            ("ats", ""),
        ],
    ] {
        let Some(mut both) = Both::new(chain) else {
            return;
        };
        both.compare(&frames(), 1, same_but_for_stamps);
    }
}

#[test]
fn kernel_chains_of_more_than_16_functions_are_refused() {
    let stage = |number| KernelStage {
        number,
        function: FUNCTIONS
            .in_kernel("xor", "key = 1".parse().unwrap(), 1)
            .unwrap(),
    };
    let error = KernelFunctions::new(vec![(0..17).map(stage).collect()], None).unwrap_err();
    assert!(
        error.to_string().contains("at most 16 functions"),
        "{error}"
    );
}

#[test]
fn test_frames_produce_every_xor_outcome_over_1000_times() {
    let mut kinds = BTreeMap::new();
    let mut xor = build("xor", "key = 1".parse().unwrap()).unwrap();
    let frames = frames();
    assert_eq!(frames.len(), FRAMES);
    let pool = PoolHandle::new(1, false).unwrap();
    for frame in &frames {
        let mut batch = Batch::new();
        let mut packet = pool.take(frame.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(frame);
        batch.push(packet);
        xor.process(&mut batch, &Context::default());
    }
    kinds.extend(xor.outcomes());
    assert!(kinds.values().all(|count| *count > 1000), "{kinds:?}");
}
