//! The body of the stateful fuzz target for NAT: frames pass in both directions while a virtual clock advances. A model
//! that observes both sides checks the function. `cargo test` runs the same body over seeded noise.

use std::cell::RefCell;
use taut_function::{Context, Function};
use taut_functions::build;
use taut_port::{Batch, PoolHandle};
use taut_sys::Clock;
use taut_wire::Sum;

const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const RST: u8 = 4;
const OUTSIDE: [u8; 4] = [203, 0, 113, 1];
/// An inside server with a static mapping for this port.
const SERVER: Endpoint = ([10, 255, 0, 1], 8080);
const SERVER_PORT: u16 = 80;
const PER_HOST: usize = 6;
/// The maximum number of steps in an input.
const STEPS: usize = 200;

/// Address, and port or identifier.
type Endpoint = ([u8; 4], u16);

/// A mapping, as the model has observed it on both sides.
struct Seen {
    protocol: u8,
    inside: Endpoint,
    outside: Endpoint,
    /// The time of the last packet that certainly refreshed the mapping, and the time of the last one that may have,
    /// ticks.
    kept: u64,
    touched: u64,
}

struct World {
    nat: Box<dyn Function>,
    pool: PoolHandle,
    /// Number of ticks per second.
    second: u64,
    now: u64,
    /// Index of the current input. Inside addresses differ between inputs, as the mappings of the previous input are
    /// not all released yet.
    input: u16,
    most: usize,
    seen: Vec<Seen>,
}

thread_local! {
    /// A world with enough ports and mappings, and one that runs out of them. They are reused for all inputs:
    /// allocating their memory takes longer than an input.
    static WORLDS: RefCell<[World; 2]> = RefCell::new([
        World::new(8192, "1024-65535"),
        World::new(24, "1024-1033"),
    ]);
}

/// Runs the steps that the bytes select: frames in both directions, errors about them, fragments, damage, time.
pub fn sequence(bytes: &[u8]) {
    let mut bytes = bytes.iter().copied();
    let Some(first) = bytes.next() else {
        return;
    };
    WORLDS.with_borrow_mut(|worlds| {
        let world = &mut worlds[usize::from(first & 3 == 3)];
        world.begin();
        for _ in 0..STEPS {
            if world.step(&mut bytes).is_none() {
                break;
            }
        }
    });
}

impl World {
    fn new(most: usize, ports: &str) -> Self {
        let settings = format!(
            "outside = [1]\naddress = \"203.0.113.1\"\nports = \"{ports}\"\nmappings = {most}\nseed = 1\n\
             mappings_per_host = {PER_HOST}\nudp_timeout = \"1s\"\nicmp_timeout = \"1s\"\ntcp_timeout = \"8s\"\n\
             tcp_closing_timeout = \"2s\"\n\
             forward = [{{ protocol = \"tcp\", port = 80, to = \"10.255.0.1:8080\" }}]\n"
        );
        let mut nat = build("nat", settings.parse().expect("settings")).expect("a function");
        nat.prepare().expect("memory");
        Self {
            nat,
            pool: PoolHandle::new(1, false).expect("memory"),
            second: Clock::calibrate(std::time::Duration::from_millis(20)).hz as u64,
            now: 0,
            input: 0,
            most,
            seen: Vec::new(),
        }
    }

    /// Begins an input after all mappings have expired.
    fn begin(&mut self) {
        self.now += 60 * self.second;
        self.input = self.input.wrapping_add(1);
        self.seen.clear();
    }

    fn step(&mut self, bytes: &mut impl Iterator<Item = u8>) -> Option<()> {
        let mut next = || bytes.next();
        let (what, who, how) = (next()?, next()?, next()?);
        let protocol = [UDP, TCP, TCP, ICMP][usize::from(who & 3)];
        let [input_high, input_low] = self.input.to_be_bytes();
        let host = [10, input_high & 127, input_low, who >> 2 & 3];
        let inside = if who >> 4 == 15 {
            SERVER
        } else {
            (host, 5000 + u16::from(who >> 4))
        };
        let peer = ([198, 51, 100, how & 3], 443);
        let known = self.seen.get(usize::from(who) % self.seen.len().max(1));
        let (protocol, outside) = match known {
            Some(it) if what & 0x10 != 0 => (it.protocol, it.outside),
            _ if who == 255 => (TCP, (OUTSIDE, SERVER_PORT)),
            _ => (protocol, (OUTSIDE, 1024 + u16::from(how))),
        };
        let numbers = [how >> 2 & 7, how >> 5].map(|it| 100 + 10 * u32::from(it));
        let flags = what >> 5 | (what << 4 & 0x10);
        match what & 15 {
            0..=4 => {
                let frame = packet(protocol, inside, peer, flags, numbers);
                self.leaves(&frame, what & 0x10 != 0);
            }
            5..=7 => {
                let frame = packet(protocol, peer, outside, flags, numbers);
                self.comes(&frame);
            }
            8 => {
                let quoted = packet(protocol, outside, peer, flags, numbers);
                let quoted = &quoted[14..14 + 28 + usize::from(how >> 4)];
                self.comes_back(&error(peer.0, outside.0, 3 + 8 * (how & 1), quoted));
            }
            9 => {
                let quoted = packet(protocol, peer, inside, flags, numbers);
                let quoted = &quoted[14..14 + 28 + usize::from(how >> 4)];
                self.pass(&error(inside.0, peer.0, 3, quoted), 1);
            }
            10 | 11 => {
                let to_port = usize::from(what >> 4 & 1);
                let mut frame = match to_port {
                    1 => packet(protocol, inside, peer, flags, numbers),
                    _ => packet(protocol, peer, outside, flags, numbers),
                };
                if what & 15 == 10 {
                    frame[20] = 0x20 | how & 0x1f;
                    assert!(self.pass(&frame, to_port).is_none());
                } else {
                    self.damaged(&mut frame, to_port, next()?, next()?);
                }
            }
            12 | 13 => self.now += self.second * u64::from(how) / 512,
            14 => self.now += self.second * u64::from(how) / 16,
            _ => self.now += u64::from(how),
        }
        Some(())
    }

    /// Passes a frame through NAT; returns `None` if it is dropped. Checks that the frame is counted once, and that
    /// correct checksums stay correct.
    fn pass(&mut self, frame: &[u8], to_port: usize) -> Option<Vec<u8>> {
        let before = counted(&*self.nat);
        let mut batch = Batch::new();
        self.pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        let context = Context {
            now_ticks: self.now,
            from_port: 1 - to_port,
            to_port,
            ports: 2,
        };
        self.nat.process(&mut batch, &context);
        assert_eq!(counted(&*self.nat), before + 1);
        let after = batch.packets()[0].bytes();
        assert_eq!(after.len(), frame.len());
        if !batch.is_kept(0) {
            return None;
        }
        if are_checksums_right(frame) {
            assert!(are_checksums_right(after), "{frame:02x?}\n{after:02x?}");
        }
        Some(after.to_vec())
    }

    /// Returns true if a mapping certainly exists, and false if it may have expired.
    fn is_surely_live(&self, it: &Seen) -> bool {
        let age = self.now - it.kept;
        age < self.second * if it.protocol == TCP { 18 } else { 9 } / 10
    }

    fn is_surely_dead(&self, it: &Seen) -> bool {
        let age = self.now - it.touched;
        // A reset just before the timeout gives a TCP connection its closing time in addition.
        age > self.second * if it.protocol == TCP { 110 } else { 11 } / 10
    }

    /// Sends a valid packet from inside, answered or not.
    fn leaves(&mut self, frame: &[u8], is_answered: bool) {
        let (protocol, inside, peer) = ends(frame);
        let Some(sent) = self.pass(frame, 1) else {
            let known = self
                .seen
                .iter()
                .find(|it| it.inside == inside && it.protocol == protocol);
            assert!(known.is_none_or(|it| !self.is_surely_live(it)));
            assert!(inside != SERVER || protocol != TCP);
            return;
        };
        assert_eq!(ends(&sent).2.0, peer.0);
        self.left(frame, &sent);
        if is_answered {
            let mut answer = sent;
            answer[26..34].rotate_left(4);
            if protocol != ICMP {
                answer[34..38].rotate_left(2);
            }
            let came = self.pass(&answer, 0).expect("an answer");
            assert_eq!(ends(&came).2, inside);
            assert_eq!(ends(&came).1.0, peer.0);
        }
    }

    /// Passes a truncated frame, or one with a changed byte.
    fn damaged(&mut self, frame: &mut Vec<u8>, to_port: usize, at: u8, value: u8) {
        let at = 12 + usize::from(at) % (frame.len() - 12);
        // The byte at 14 is not changed, and the frame is truncated instead: a wrong header length would move the
        // ports, which this check does not follow.
        if at == 14 {
            frame.truncate(usize::from(value) % frame.len());
            assert!(self.pass(frame, to_port).is_none());
            return;
        }
        frame[at] = value;
        let sent = self.pass(frame, to_port);
        let has_ports =
            frame[12..14] == [8, 0] && (frame[23] != ICMP || frame[34] == 0 || frame[34] == 8);
        if let (Some(sent), true, 1) = (sent, has_ports, to_port) {
            self.left(frame, &sent);
        }
    }

    /// Checks a packet that was translated from inside to outside.
    fn left(&mut self, frame: &[u8], sent: &[u8]) {
        let (protocol, inside, _) = ends(frame);
        let (_, outside, _) = ends(sent);
        assert_eq!(outside.0, OUTSIDE);
        if protocol == TCP && inside == SERVER {
            assert_eq!(outside.1, SERVER_PORT);
            return;
        }
        assert!(outside.1 >= 1024);
        let now = self.now;
        let overlaps =
            |it: &Seen| it.protocol == protocol && (it.inside == inside) != (it.outside == outside);
        for it in self.seen.iter().filter(|it| overlaps(it)) {
            let other = (it.inside, it.outside);
            assert!(
                !self.is_surely_live(it),
                "{inside:?} {outside:?}, {other:?}"
            );
        }
        self.seen.retain(|it| !overlaps(it));
        let same = |it: &&mut Seen| it.protocol == protocol && it.inside == inside;
        if let Some(it) = self.seen.iter_mut().find(same) {
            it.touched = now;
            // A reset refreshes nothing.
            if protocol != TCP || frame[47] & RST == 0 {
                it.kept = now;
            }
        } else {
            self.seen.push(Seen {
                protocol,
                inside,
                outside,
                kept: now,
                touched: now,
            });
        }
        let live = || self.seen.iter().filter(|it| self.is_surely_live(it));
        assert!(live().count() < self.most);
        let of_host = live().filter(|it| it.inside.0 == inside.0);
        assert!(of_host.count() <= PER_HOST);
    }

    /// Sends a valid packet from outside.
    fn comes(&mut self, frame: &[u8]) {
        let came = self.pass(frame, 0);
        let (protocol, _, outside) = ends(frame);
        self.goes_to(protocol, outside, came.map(|it| ends(&it).2));
    }

    /// Sends an ICMP error from outside.
    fn comes_back(&mut self, frame: &[u8]) {
        let came = self.pass(frame, 0);
        let quoted = |it: &[u8]| ends(&[&it[..14], &it[42..], &[0; 20]].concat());
        let (protocol, outside, _) = quoted(frame);
        let to = came.map(|it| {
            let (_, inside, _) = quoted(&it);
            assert_eq!(it[30..34], inside.0);
            inside
        });
        self.goes_to(protocol, outside, to);
    }

    /// Checks that a packet to an outside endpoint was sent to the inside endpoint `to`, or was dropped.
    fn goes_to(&self, protocol: u8, outside: Endpoint, to: Option<Endpoint>) {
        if protocol == TCP && outside == (OUTSIDE, SERVER_PORT) {
            assert_eq!(to, Some(SERVER));
            return;
        }
        let its = |it: &&Seen| it.protocol == protocol && it.outside == outside;
        match (self.seen.iter().find(its), to) {
            (Some(it), Some(to)) => {
                assert_eq!(it.inside, to);
                assert!(!self.is_surely_dead(it));
            }
            (Some(it), None) => assert!(!self.is_surely_live(it)),
            (None, Some(to)) => panic!("{to:?} never had {outside:?}"),
            (None, None) => {}
        }
    }
}

fn counted(nat: &dyn Function) -> u64 {
    nat.outcomes().iter().map(|(_, count)| count).sum()
}

/// Builds a frame of Ethernet and IPv4 with right checksums.
fn packet(
    protocol: u8,
    from: Endpoint,
    to: Endpoint,
    flags: u8,
    [sequence, acknowledgement]: [u32; 2],
) -> Vec<u8> {
    let mut transport = Vec::with_capacity(32);
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let checksum_at = match protocol {
        UDP => {
            transport.extend(ports);
            transport.extend([0, 24, 0, 0]);
            6
        }
        TCP => {
            transport.extend(ports);
            transport.extend(sequence.to_be_bytes());
            transport.extend(acknowledgement.to_be_bytes());
            transport.extend([5 << 4, flags, 4, 0, 0, 0, 0, 0]);
            16
        }
        _ => {
            // An ICMP echo has one identifier instead of two ports. It belongs to the inside or translated endpoint,
            // not to the outside peer, whose address begins with 198.
            let identifier = if from.0[0] == 198 { to.1 } else { from.1 };
            let kind = if from.0[0] == 198 { 0 } else { 8 };
            transport.extend([kind, 0, 0, 0]);
            transport.extend(identifier.to_be_bytes());
            transport.extend([0, 1]);
            2
        }
    };
    transport.resize(24, 7);
    let mut frame = headers(protocol, from.0, to.0, transport.len());
    let pseudo = if protocol == ICMP {
        Sum::ZERO
    } else {
        pseudo(&frame[14..34], transport.len())
    };
    let checksum = match pseudo.combine(Sum::of(&transport)).checksum() {
        // A UDP checksum of 0 means that there is no checksum, so a sum of 0 is sent as 0xffff.
        0 if protocol == UDP => 0xffff,
        it => it,
    };
    transport[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(transport);
    frame
}

/// Builds an ICMP error of type `kind` that quotes the beginning of a packet.
fn error(from: [u8; 4], to: [u8; 4], kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut icmp = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend(quoted);
    let checksum = Sum::of(&icmp).checksum();
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = headers(ICMP, from, to, icmp.len());
    frame.extend(icmp);
    frame
}

fn headers(protocol: u8, from: [u8; 4], to: [u8; 4], len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(34 + len);
    frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    frame.extend((20 + len as u16).to_be_bytes());
    frame.extend([0, 7, 0, 0, 64, protocol, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    let checksum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn pseudo(ip: &[u8], len: usize) -> Sum {
    Sum::of(&ip[12..20])
        .add_u16(u16::from(ip[9]))
        .add_u16(len as u16)
}

/// Returns protocol, source and destination of a frame that has the format of [`packet`].
fn ends(frame: &[u8]) -> (u8, Endpoint, Endpoint) {
    let address = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ports = match frame[23] {
        ICMP => [port(38); 2],
        _ => [port(34), port(36)],
    };
    (frame[23], (address(26), ports[0]), (address(30), ports[1]))
}

/// Checks the checksums of the IP header and of its payload, for frames of IPv4 without options.
fn are_checksums_right(frame: &[u8]) -> bool {
    if frame.len() < 42 || frame[12..15] != [8, 0, 0x45] {
        return false;
    }
    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    if len < 28 || frame.len() < 14 + len {
        return false;
    }
    let (ip, transport) = frame[14..14 + len].split_at(20);
    let start = match ip[9] {
        UDP if transport[6..8] == [0, 0] => return false,
        ICMP => Sum::ZERO,
        _ => pseudo(ip, transport.len()),
    };
    Sum::of(ip).checksum() == 0 && start.combine(Sum::of(transport)).checksum() == 0
}
