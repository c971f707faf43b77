//! The body of the fuzz target for encrypted sessions; `cargo test` runs the same body over seeded operations.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::{Context, Function};
use taut_functions::aes::simulated;
use taut_port::{Batch, PoolHandle};
use taut_wire::UdpFlow;

/// Number of senders.
const SENDERS: usize = 3;
/// Number of packets stored for replay.
const RECORDED: usize = 48;
const MOST_OPERATIONS: usize = 32;
/// The idle time during which a session is still stored, ms.
const KEPT_MS: u64 = 1000;
/// The tolerated clock difference, ms; [`AHEAD_MS`] has the actual difference of each sender's clock, ms.
const CLOCK_ERROR_MS: u64 = 100;
const AHEAD_MS: [i64; SENDERS] = [0, 60, -80];
/// The number of bytes by which a datagram grows, and the offset of its payload.
const GROWS: usize = 40;
const PAYLOAD: usize = 42;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(1_700_000_000_000) };
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fn clock() -> Duration {
    Duration::from_millis(NOW_MS.get())
}

/// A receiver, and the senders of its packets.
struct World {
    _folder: tempfile::TempDir,
    key: PathBuf,
    pool: PoolHandle,
    receiver: Box<dyn Function>,
    /// Number of packets that earlier receivers counted; `passed` is the number of packets that all receivers accepted.
    counted: u64,
    passed: u64,
    begun_ms: u64,
    senders: Vec<Box<dyn Function>>,
    /// The time at which the current receiver last accepted a packet of each sender's session.
    heard_ms: [u64; SENDERS],
    /// Recorded packets, each with a flag that is true if the packet was accepted.
    recorded: Vec<(Vec<u8>, bool)>,
    next: u64,
    delivered: HashSet<u64>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("key");
        std::fs::write(&key, "0123456789abcdef".repeat(2)).expect("a key");
        use std::os::unix::fs::PermissionsExt;
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&key, own).expect("a key of one's own");
        Self {
            _folder: folder,
            pool: PoolHandle::new(2, false).expect("memory"),
            receiver: made(&key, "a"),
            counted: 0,
            passed: 0,
            begun_ms: NOW_MS.get(),
            senders: (0..SENDERS).map(|_| made(&key, "b")).collect(),
            heard_ms: [0; SENDERS],
            key,
            recorded: Vec::new(),
            next: 0,
            delivered: HashSet::new(),
        }
    }

    /// Passes a frame through a function; returns the frame that leaves, if any.
    fn through(&self, function: &mut dyn Function, frame: &[u8], out: bool) -> Option<Vec<u8>> {
        let mut batch = Batch::new();
        self.pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        let context = Context {
            now_ticks: NOW_MS.get() << 20,
            from_port: usize::from(!out),
            to_port: usize::from(out),
            ports: 2,
        };
        function.process(&mut batch, &context);
        let is_kept = batch.is_kept(0);
        is_kept.then(|| batch.packets()[0].bytes().to_vec())
    }

    /// Sends a packet of this sender, with a timestamp of the sender's clock.
    fn send(&mut self, sender: usize) -> Vec<u8> {
        let mut frame = UdpFlow::default().frame(PAYLOAD + 34).expect("a frame");
        frame[PAYLOAD..][..8].copy_from_slice(&self.next.to_be_bytes());
        // The checksum is cleared: only the payload counts.
        frame[40..42].fill(0);
        self.next += 1;
        let mut function = std::mem::replace(&mut self.senders[sender], Box::new(Nobody));
        let true_ms = NOW_MS.get();
        NOW_MS.set(true_ms.saturating_add_signed(AHEAD_MS[sender]));
        let sent = self.through(&mut *function, &frame, true);
        NOW_MS.set(true_ms);
        self.senders[sender] = function;
        sent.expect("encrypted")
    }

    /// Passes a frame to the receiver and returns true if the receiver accepted it. Checks that no payload is accepted
    /// twice or without having been sent.
    fn arrive(&mut self, frame: &[u8]) -> bool {
        let mut receiver = std::mem::replace(&mut self.receiver, Box::new(Nobody));
        let taken = self.through(&mut *receiver, frame, false);
        self.receiver = receiver;
        self.passed += 1;
        if let Some(taken) = &taken {
            assert_eq!(taken.len() + GROWS, frame.len());
            let number = taken[PAYLOAD..].first_chunk().copied();
            let number = u64::from_be_bytes(number.expect("a number"));
            assert!(number < self.next, "nobody sent it");
            assert!(self.delivered.insert(number), "{number} was taken already");
        }
        assert_eq!(self.counted + counted(&*self.receiver), self.passed);
        taken.is_some()
    }

    fn restart(&mut self) {
        self.counted += counted(&*self.receiver);
        self.receiver = made(&self.key, "a");
        self.begun_ms = NOW_MS.get();
        self.heard_ms = [0; SENDERS];
    }

    /// Reports whether packets sent now must be accepted: their timestamps are later than any that an earlier receiver
    /// may have accepted.
    fn has_begun(&self, sender: usize) -> bool {
        let stamp = NOW_MS.get().saturating_add_signed(AHEAD_MS[sender]);
        stamp > self.begun_ms + CLOCK_ERROR_MS + 1
    }
}

/// A function that does nothing, in the place of a function that is processing a packet.
struct Nobody;

impl Function for Nobody {
    fn process(&mut self, _: &mut Batch, _: &Context) {}
}

fn made(key: &std::path::Path, end: &str) -> Box<dyn Function> {
    let settings = format!(
        "encrypt = [1]\nend = \"{end}\"\nclock_error = \"{CLOCK_ERROR_MS}ms\"\nkey_file = {key:?}"
    );
    let mut function =
        simulated(settings.parse().expect("settings"), clock, 4).expect("a function");
    function.prepare().expect("memory");
    function
}

fn counted(function: &dyn Function) -> u64 {
    function.outcomes().iter().map(|(_, count)| count).sum()
}

/// Runs a session, two bytes for each operation; returns the number of accepted packets.
///
/// Senders send, restart, and are recorded. Recorded packets arrive late, again, changed or back at their sender. The
/// receiver restarts, sessions are forged, and time passes. No packet is accepted twice or forged, packets in time are
/// accepted, and every packet is counted once.
pub fn session(bytes: &[u8]) -> usize {
    WORLD.with_borrow_mut(|world| {
        // Only recorded packets can arrive again.
        let oldest = world.next.saturating_sub(2 * RECORDED as u64);
        world.delivered.retain(|number| *number >= oldest);
        let before = world.delivered.len();
        for operation in bytes.chunks_exact(2).take(MOST_OPERATIONS) {
            operate(world, operation[0], usize::from(operation[1]));
        }
        world.delivered.len() - before
    })
}

fn operate(world: &mut World, operation: u8, argument: usize) {
    let sender = argument % SENDERS;
    match operation % 16 {
        0..=4 => {
            let sent = world.send(sender);
            let is_known = world.heard_ms[sender] + KEPT_MS > NOW_MS.get();
            let is_live = is_known && world.has_begun(sender);
            let is_taken = world.arrive(&sent);
            assert!(is_taken || !is_live, "a live session goes on");
            if is_taken {
                world.heard_ms[sender] = NOW_MS.get();
            }
            record(world, sent, is_taken);
        }
        // The packet is delayed for longer, or lost.
        5 | 6 => {
            let sent = world.send(sender);
            record(world, sent, false);
        }
        7..=9 if !world.recorded.is_empty() => {
            let at = argument % world.recorded.len();
            let (frame, was_taken) = world.recorded[at].clone();
            let is_taken = world.arrive(&frame);
            assert!(!(is_taken && was_taken), "repeated");
            world.recorded[at].1 |= is_taken;
        }
        10 if !world.recorded.is_empty() => {
            let at = argument % world.recorded.len();
            let (mut frame, _) = world.recorded[at].clone();
            let byte = PAYLOAD + 1 + argument % (frame.len() - PAYLOAD - 1);
            frame[byte] ^= 1 << (argument % 8);
            assert!(!world.arrive(&frame), "changed at {byte}");
        }
        // The packet is sent back to any sender.
        11 if !world.recorded.is_empty() => {
            let (frame, _) = world.recorded[argument % world.recorded.len()].clone();
            let mut function = std::mem::replace(&mut world.senders[sender], Box::new(Nobody));
            assert_eq!(world.through(&mut *function, &frame, false), None);
            world.senders[sender] = function;
        }
        12 if !world.recorded.is_empty() => {
            // A flood of packets arrives that belong to sessions of no sender, with timestamps that the receiver
            // accepts.
            let (frame, _) = world.recorded[argument % world.recorded.len()].clone();
            for number in 0..argument as u64 % 8 {
                let mut frame = frame.clone();
                let stamp = (NOW_MS.get() << 16) / 1000;
                frame[PAYLOAD + 1..][..8].copy_from_slice(&(number ^ 0xF0F0).to_be_bytes());
                frame[PAYLOAD + 10..][..6].copy_from_slice(&stamp.to_be_bytes()[2..]);
                assert!(!world.arrive(&frame), "made up");
            }
        }
        // Only every fourth such operation restarts a sender, because creating a function takes longer than all other
        // operations.
        13 if argument.is_multiple_of(4) => {
            world.senders[sender] = made(&world.key, "b");
            world.heard_ms[sender] = 0;
        }
        14 if argument.is_multiple_of(8) => world.restart(),
        _ => NOW_MS.set(NOW_MS.get() + 1 + argument as u64),
    }
}

fn record(world: &mut World, sent: Vec<u8>, is_taken: bool) {
    let at = world.next as usize % RECORDED;
    match world.recorded.get_mut(at) {
        Some(place) => *place = (sent, is_taken),
        None => world.recorded.push((sent, is_taken)),
    }
}
