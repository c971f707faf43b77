//! DPDK ports and AF_XDP on NICs: on those that QEMU emulates in a virtual machine, and on a real NIC if `TAUT_CARD`
//! names it.

use crate::support::guest::{self, Card, Far, Guest, address};
use crate::support::program::Program;
use crate::support::{alone, taut};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The variable with the PCI address of a real NIC, which is bound as for any DPDK port.
const CARD: &str = "TAUT_CARD";
/// The variable with the port at the other end of the NIC's cable: any port of this machine, such as `af_packet:eth5`.
const FAR: &str = "TAUT_CARD_FAR";

/// The timeout for programs in emulated machines.
const EMULATED: Duration = Duration::from_secs(120);

const E1000E: usize = 0;
const VMXNET3: usize = 1;
/// Index of a NIC with two queues, and a hash that spreads flows over them.
const VIRTIO: usize = 2;
/// Index of a NIC that stays with the kernel's driver, for AF_XDP.
const KERNELS: usize = 3;

const CARDS: [Card; 4] = [
    Card {
        kind: "e1000e",
        queues: 1,
    },
    Card {
        kind: "vmxnet3",
        queues: 1,
    },
    Card {
        kind: "virtio-net-pci,mq=on,rss=on,vectors=6",
        queues: 2,
    },
    Card {
        kind: "virtio-net-pci",
        queues: 1,
    },
];

/// The machine, real or virtual, that runs taut on the NIC, one program at a time.
enum Place {
    Machine(Box<Guest>),
    Here(Option<Program>),
}

impl Place {
    fn start(&mut self, arguments: &[&str]) {
        match self {
            Self::Machine(guest) => guest.start(arguments),
            Self::Here(program) => *program = Some(Program::start(&mut taut(arguments))),
        }
    }

    /// Starts a forwarder with the given ports, and waits until its links are up. The forwarder sleeps while no packets
    /// arrive.
    fn forward(&mut self, more: &[&str], ports: &[&str]) {
        let mut arguments = vec!["forward", "--json", "--wait", "sleep(50us)"];
        arguments.extend(more);
        arguments.extend(ports.iter().flat_map(|port| ["--port", port]));
        self.start(&arguments);
        self.wait_until("links that are up", |said| {
            said.matches(": up").count() >= ports.len()
        });
    }

    /// Returns the standard output and the standard error of the forwarder up to now.
    fn said(&mut self) -> [String; 2] {
        match self {
            Self::Machine(guest) => guest.said(),
            Self::Here(program) => {
                let program = program.as_ref().unwrap();
                [program.stdout(), program.stderr()]
            }
        }
    }

    /// Waits until `seen` is true of the forwarder's standard error.
    #[track_caller]
    fn wait_until(&mut self, what: &str, mut seen: impl FnMut(&str) -> bool) {
        let deadline = Instant::now() + EMULATED;
        loop {
            let [_, stderr] = self.said();
            if seen(&stderr) {
                return;
            }
            let code = match self {
                Self::Machine(guest) => guest.code(),
                Self::Here(program) => (!program.as_mut().unwrap().is_running()).then_some(-1),
            };
            assert!(
                code.is_none() && Instant::now() < deadline,
                "never came to {what} ({code:?}): {stderr}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the forwarder and returns its summary.
    #[track_caller]
    fn end(&mut self) -> Value {
        let stdout = match self {
            Self::Machine(guest) => {
                guest.interrupt();
                let deadline = Instant::now() + EMULATED;
                let code = loop {
                    if let Some(code) = guest.code() {
                        break code;
                    }
                    assert!(Instant::now() < deadline, "{:?}", guest.said());
                    thread::sleep(Duration::from_millis(20));
                };
                let [stdout, stderr] = guest.said();
                assert_eq!(code, 0, "{stdout}{stderr}");
                stdout
            }
            Self::Here(program) => program.take().unwrap().interrupt().success().stdout,
        };
        let last = stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last:?}"))
    }
}

fn count(summary: &Value, name: &str) -> u64 {
    summary["counters"][name].as_u64().unwrap()
}

/// Builds a frame to an address, with an EtherType that nothing else sends.
fn frame(to: [u8; 6], number: u16, length: usize) -> Vec<u8> {
    let mut frame = [
        &to[..],
        &[2, 0, 0, 0, 0, 1],
        &[0x88, 0xb5],
        &number.to_be_bytes(),
    ]
    .concat();
    let place = frame.len();
    frame.extend((place..length).map(|at| (at * 7 + usize::from(number)) as u8));
    frame
}

const OTHERS: [u8; 6] = [2, 0, 0, 0, 0x99, 0x99];

/// Builds frames of all lengths to all kinds of addresses, most of them addresses of other hosts; the last frame has a
/// VLAN tag.
fn frames() -> Vec<Vec<u8>> {
    let group = [1, 0, 0x5e, 1, 2, 3];
    let addresses = [OTHERS, OTHERS, [0xff; 6], group];
    let lengths = [60, 61, 64, 127, 128, 255, 512, 1000, 1024, 1500, 1513, 1514];
    let all = lengths
        .into_iter()
        .flat_map(|length| addresses.map(|to| (to, length)));
    let mut all: Vec<_> = all
        .zip(0..)
        .map(|((to, length), number)| frame(to, number, length))
        .collect();
    let mut tagged = frame(OTHERS, 900, 1514);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    all.push(tagged);
    all
}

/// Builds UDP packets over IPv4: `each` packets of each of `number` flows, interleaved.
fn flows(number: u8, each: u16) -> Vec<Vec<u8>> {
    let packet = |flow: u8, turn: u16| {
        let mut packet = frame(OTHERS, turn, 60);
        packet[12..14].copy_from_slice(&[8, 0]);
        let header = [
            0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, flow, 10, 0, 1, flow,
        ];
        packet[14..34].copy_from_slice(&header);
        let sum: u32 = header
            .chunks(2)
            .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        packet[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        packet[34..42].copy_from_slice(&[0x10, flow, 0x20, flow, 0, 26, 0, 0]);
        packet[42..44].copy_from_slice(&turn.to_be_bytes());
        packet
    };
    (0..each)
        .flat_map(|turn| (0..number).map(move |flow| packet(flow, turn)))
        .collect()
}

/// Sends frames through `from`, a few at a time, and receives the same number of frames from `to`, or from `from` if
/// `to` is none. Returns the received frames.
#[track_caller]
fn carried(from: &mut Far, mut to: Option<&mut Far>, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut sent, mut came) = (0, Vec::new());
    let deadline = Instant::now() + EMULATED;
    while came.len() < frames.len() {
        while sent < frames.len().min(came.len() + 16) && from.send(&frames[sent]) {
            sent += 1;
        }
        let more = match &mut to {
            Some(to) => to.receive(),
            None => from.receive(),
        };
        if more.is_empty() {
            assert!(Instant::now() < deadline, "{} of {sent} came", came.len());
            thread::sleep(Duration::from_millis(1));
        }
        came.extend(more);
    }
    came
}

/// Sends frames with [`carried`], and checks that they arrive intact and in order.
#[track_caller]
fn pass(from: &mut Far, to: Option<&mut Far>, frames: &[Vec<u8>]) {
    let came = carried(from, to, frames);
    for (number, (came, sent)) in came.iter().zip(frames).enumerate() {
        assert!(
            came == sent,
            "frame {number}: {came:x?} instead of {sent:x?}"
        );
    }
}

/// Checks that a forwarder with a single port returns all frames, whatever their destination, and counts them.
fn gives_back(place: &mut Place, port: &str, far: &mut Far) {
    let frames = frames();
    place.forward(&[], &[port]);
    pass(far, None, &frames);
    let summary = place.end();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    for (name, wanted) in [
        ("rx_packets", frames.len()),
        ("tx_packets", frames.len()),
        ("rx_bytes", bytes),
        ("tx_bytes", bytes),
        ("dropped_malformed", 0),
        ("dropped_tx_failed", 0),
    ] {
        assert_eq!(
            count(&summary, name),
            wanted as u64,
            "{port}: {name}: {summary}"
        );
    }
}

/// Checks that a port for long frames forwards frames that are longer than the default.
fn takes_long_frames(place: &mut Place, port: &str, far: &mut Far) {
    place.forward(&[], &[&format!("{port},mtu=2022")]);
    // The longest frame that the far end sends.
    let longest = frame(OTHERS, 1, 1984);
    pass(far, None, &[longest, frame(OTHERS, 2, 60)]);
    place.end();
}

/// Checks that the flows of a NIC spread over the queues of two workers, and over two queues of one worker.
fn spreads(place: &mut Place, card: &str, far: &mut Far) {
    let packets = flows(32, 4);
    let sorted = |mut packets: Vec<Vec<u8>>| {
        packets.sort();
        packets
    };
    for (more, port) in [
        (&["--workers", "2"][..], card.to_string()),
        (&[], format!("{card},rss=2")),
    ] {
        place.forward(more, &[&port]);
        let came = carried(far, None, &packets);
        assert!(
            sorted(came) == sorted(packets.clone()),
            "{port}: others than were sent"
        );
        let summary = place.end();
        assert_eq!(
            count(&summary, "rx_packets"),
            packets.len() as u64,
            "{summary}"
        );
        if let Some(workers) = summary["workers"].as_array() {
            let shares: Vec<_> = workers.iter().map(|it| it["rx_packets"].as_u64()).collect();
            assert!(
                shares.iter().all(|share| *share > Some(0)),
                "{shares:?}: {summary}"
            );
        }
    }
}

/// Returns the virtual machine in which taut runs; panics if taut runs on the real machine.
fn machine(place: &mut Place) -> &mut Guest {
    match place {
        Place::Machine(guest) => guest,
        Place::Here(_) => panic!("no machine of ours"),
    }
}

/// Binds a NIC to the driver for user space.
fn bind(place: &mut Place, card: usize, driver: &str) {
    machine(place).run(&format!("bind {} {driver}", address(card)));
}

/// Checks that a port reports an unplugged and reconnected cable, and that packets pass again.
fn tells_its_link(place: &mut Place, card: usize, far: &mut Far) {
    place.forward(&[], &[&dpdk(card)]);
    for round in 1..3 {
        for (up, said) in [(false, ": down: no link on"), (true, ": up")] {
            let name = format!("card{card}");
            machine(place).tell("set_link", json!({"name": name, "up": up}));
            let wanted = round + usize::from(up);
            place.wait_until(said, |stderr| stderr.matches(said).count() >= wanted);
        }
        pass(far, None, &frames()[..8]);
    }
    place.end();
}

/// Checks that taut releases a NIC that is unplugged while packets flow, reports the removal, and continues.
fn is_unplugged(place: &mut Place, more: &[&str], card: usize, far: &mut Far) {
    let port = dpdk(card);
    place.forward(more, &[&port]);
    pass(far, None, &frames()[..8]);
    machine(place).tell("device_del", json!({"id": format!("card{card}")}));
    place.wait_until("the end of the card", |stderr| {
        for number in 0..64 {
            far.send(&frame(OTHERS, number, 60));
        }
        far.receive();
        stderr.contains("was removed from this machine")
    });
    machine(place).monitored(|said| {
        said["event"] == "DEVICE_DELETED" && said["data"]["device"] == format!("card{card}")
    });
    assert!(machine(place).code().is_none(), "taut goes on");
    let summary = place.end();
    assert!(count(&summary, "rx_packets") >= 8, "{summary}");
}

/// Returns the user-space driver of a NIC. vmxnet3 needs a different one, as QEMU's vmxnet3 never comes up behind its
/// IOMMU.
fn driver(card: usize) -> &'static str {
    if card == VMXNET3 {
        "uio_pci_generic"
    } else {
        "vfio-pci"
    }
}

fn dpdk(card: usize) -> String {
    format!("dpdk:{}", address(card))
}

#[test]
fn emulated_nics_of_a_virtual_machine_pass_the_port_checks() {
    if std::env::var_os("TAUT_EMULATED_CARDS").is_none() {
        println!(
            "skipped: needs TAUT_EMULATED_CARDS=1 (boots a machine by software, which takes minutes)"
        );
        return;
    }
    if let Some(missing) = guest::why_not() {
        println!("skipped: needs {missing}");
        return;
    }
    let _turn = alone();
    let guest = Guest::boot(&CARDS);
    let mut fars = [E1000E, VMXNET3, VIRTIO, KERNELS].map(|card| guest.far(card));
    let mut place = Place::Machine(Box::new(guest));

    for card in [E1000E, VMXNET3, VIRTIO] {
        bind(&mut place, card, driver(card));
        gives_back(&mut place, &dpdk(card), &mut fars[card]);
        takes_long_frames(&mut place, &dpdk(card), &mut fars[card]);
        tells_its_link(&mut place, card, &mut fars[card]);
    }
    spreads(&mut place, &dpdk(VIRTIO), &mut fars[VIRTIO]);

    place.forward(&[], &[&dpdk(E1000E), &dpdk(VMXNET3)]);
    let [west, east, ..] = &mut fars;
    pass(west, Some(east), &frames());
    pass(east, Some(west), &frames());
    place.end();

    bind(&mut place, E1000E, "uio_pci_generic");
    gives_back(&mut place, &dpdk(E1000E), &mut fars[E1000E]);

    let interface = format!("/sys/bus/pci/devices/{}/virtio*/net", address(KERNELS));
    let interface = machine(&mut place).run(&format!("cd {interface}; echo *"));
    let interface = interface.trim();
    machine(&mut place).run(&format!("ip link set {interface} promisc on up"));
    gives_back(
        &mut place,
        &format!("af_xdp:{interface},mode=native"),
        &mut fars[KERNELS],
    );

    // The NIC gets the driver vfio-pci, because the other driver does not report that a NIC was removed.
    bind(&mut place, E1000E, "vfio-pci");
    is_unplugged(&mut place, &[], E1000E, &mut fars[E1000E]);
    is_unplugged(&mut place, &["--workers", "2"], VIRTIO, &mut fars[VIRTIO]);
}

/// A real NIC passes the checks of this file that need no virtual machine and do not unplug the NIC.
#[test]
fn a_physical_nic_passes_the_port_checks() {
    let named = |variable: &str| {
        std::env::var(variable)
            .ok()
            .filter(|value| !value.is_empty())
    };
    let (Some(card), Some(far)) = (named(CARD), named(FAR)) else {
        println!(
            "skipped: needs {CARD}=0000:01:00.0 {FAR}=af_packet:eth5 (a card, and what its cable leads to)"
        );
        return;
    };
    let _turn = alone();
    let mut far = Far::open(&far);
    let mut place = Place::Here(None);
    let port = format!("dpdk:{card}");
    gives_back(&mut place, &port, &mut far);
    takes_long_frames(&mut place, &port, &mut far);
    spreads(&mut place, &port, &mut far);
}
