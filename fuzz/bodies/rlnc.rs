//! The body of the fuzz target for the network decoder; `cargo test` runs the same body over seeded operations.

use std::cell::RefCell;
use taut_function::{Context, Function};
use taut_functions::rlnc::simulated;
use taut_port::{Batch, PoolHandle};
use taut_wire::UdpFlow;

/// Number of packets in each stream, and number of consecutive streams.
const PACKETS: u64 = 120;
const STREAMS: u64 = 2;
const MOST_OPERATIONS: usize = 96;
const PAYLOAD: usize = 42;
/// Number of packets for which a decoder has memory: more than it buffers for reordering.
const SLOTS: u32 = 128;
/// The number of consecutive coded packets whose loss still leaves the position of the next packet known.
const NEAR: usize = 10;

const CODES: [&str; 2] = [
    "symbols = 6\nredundancy = 0.5",
    "code = \"block\"\nsymbols = 8",
];
const COMMON: &str = "payload = 80\nspan = 32\nseed = 7\n";

thread_local! {
    static CODED: RefCell<(Vec<Vec<Vec<u8>>>, PoolHandle)> = RefCell::new(coded());
}

/// Returns, by code, the coded packets of all streams as real encoders sent them.
fn coded() -> (Vec<Vec<Vec<u8>>>, PoolHandle) {
    let pool = PoolHandle::new(64, false).expect("memory");
    let all = CODES.map(|code| {
        let streams = (0..STREAMS).flat_map(|stream| {
            let mut encoder = function(&format!("encode = [1]\n{code}"));
            let packets = 0..PACKETS;
            let sent: Vec<_> = packets
                .flat_map(|packet| through(&mut *encoder, &pool, &frame(stream * PACKETS + packet)))
                .collect();
            sent
        });
        streams.collect()
    });
    (all.to_vec(), pool)
}

fn function(settings: &str) -> Box<dyn Function> {
    let settings = format!("{COMMON}{settings}");
    let mut function = simulated(settings.parse().expect("settings"), SLOTS).expect("a function");
    function.prepare().expect("memory");
    function
}

/// Returns the payload of packet `number`, with a length of its own.
fn payload(number: u64) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    let fill = |at: u64| (number * 31 + at * 7) as u8 | 1;
    payload.extend((0..11 + number % 50).map(fill));
    payload
}

fn frame(number: u64) -> Vec<u8> {
    let payload = payload(number);
    let mut frame = UdpFlow::default()
        .frame(PAYLOAD + payload.len() + 4)
        .expect("a frame");
    frame[PAYLOAD..].copy_from_slice(&payload);
    frame[40..42].fill(0);
    frame
}

/// Passes a frame, or none, through a function; returns all frames that leave.
fn through(function: &mut dyn Function, pool: &PoolHandle, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    if !frame.is_empty() {
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
    }
    let context = Context {
        to_port: 1,
        ..Context::default()
    };
    function.process(&mut batch, &context);
    (0..batch.len())
        .filter(|i| batch.is_kept(*i))
        .map(|i| batch.packets()[i].bytes().to_vec())
        .collect()
}

struct Link<'a> {
    decoder: Box<dyn Function>,
    pool: &'a PoolHandle,
    is_in_order: bool,
    arrived: u64,
    /// True if a packet was forged. `is_torn` is true if so many packets in a row were lost that later packets leave
    /// before their position is known.
    is_forged: bool,
    is_torn: bool,
    latest: Option<u64>,
}

impl Link<'_> {
    fn arrive(&mut self, frame: &[u8]) {
        let left = through(&mut *self.decoder, self.pool, frame);
        self.arrived += u64::from(!frame.is_empty());
        for frame in left {
            if !self.is_forged {
                self.check(&frame);
            }
        }
        let counted: u64 = (self.decoder.outcomes().iter())
            .filter(|(name, _)| !name.ends_with("above"))
            .map(|(_, count)| count)
            .sum();
        // Packets that are buffered for reordering are counted as well.
        assert_eq!(counted, self.arrived);
        assert!(self.decoder.held() <= 512);
    }

    /// Checks that a decoded frame equals the frame that was encoded, unless a packet was forged.
    fn check(&mut self, frame: &[u8]) {
        let number = frame[PAYLOAD..].first_chunk().copied();
        let number = u64::from_be_bytes(number.expect("a number"));
        assert!(number < STREAMS * PACKETS, "{number}");
        assert_eq!(frame[PAYLOAD..], payload(number), "{number}");
        if self.is_in_order && !self.is_torn {
            assert!(self.latest.is_none_or(|latest| latest < number), "{number}");
            self.latest = Some(number);
        }
    }
}

/// Decodes packets, with two bytes for each operation; returns the number of recovered packets. Packets of a real
/// encoder arrive, are lost, reordered or duplicated. The encoder restarts, and forged packets arrive in between.
pub fn decoder(bytes: &[u8]) -> u64 {
    let Some((choice, operations)) = bytes.split_first() else {
        return 0;
    };
    CODED.with_borrow(|(coded, pool)| {
        let code = usize::from(choice & 1);
        let is_in_order = choice & 2 != 0;
        let order = if is_in_order {
            "order = \"in-order\"\npatience = \"100s\""
        } else {
            ""
        };
        let mut link = Link {
            decoder: function(&format!("encode = [0]\n{}\n{order}", CODES[code])),
            pool,
            is_in_order,
            arrived: 0,
            is_forged: false,
            is_torn: false,
            latest: None,
        };
        let coded = &coded[code];
        let second = coded.len() / STREAMS as usize;
        let (mut next, mut lost_in_a_row) = (0, 0);
        for operation in operations.chunks_exact(2).take(MOST_OPERATIONS) {
            let argument = usize::from(operation[1]);
            link.is_torn |= next >= second;
            match operation[0] % 16 {
                // Several packets arrive in order.
                0..=5 => {
                    for frame in coded.iter().skip(next).take(1 + argument % 8) {
                        // The position of a packet is unknown where the stream of one sender ends and that of the next
                        // one begins.
                        link.is_torn |= next >= second;
                        link.arrive(frame);
                        next += 1;
                    }
                    lost_in_a_row = 0;
                }
                6..=8 => {
                    next += 1 + argument % 3;
                    lost_in_a_row += 1 + argument % 3;
                    link.is_torn |= lost_in_a_row > NEAR;
                }
                // The packet is late or duplicated.
                9 | 10 => {
                    if let Some(frame) = next
                        .checked_sub(1 + argument % 12)
                        .and_then(|at| coded.get(at))
                    {
                        link.arrive(frame);
                    }
                }
                // The sender restarts.
                11 => next = next.max(second),
                12 => link.arrive(&[]),
                _ => {
                    if let Some(frame) = coded.get(next.saturating_sub(argument % 4)) {
                        let mut frame = frame.clone();
                        forge(&mut frame, operation[0], argument);
                        link.is_forged = true;
                        link.arrive(&frame);
                    }
                }
            }
        }
        for _ in 0..4 {
            link.arrive(&[]);
        }
        let outcomes = link.decoder.outcomes();
        let recovered = outcomes
            .iter()
            .filter(|(name, _)| name.starts_with("recovered"));
        recovered.map(|(_, count)| count).sum()
    })
}

/// Changes a header, or a coefficient after it.
fn forge(frame: &mut [u8], how: u8, argument: usize) {
    let number = &mut frame[PAYLOAD + 8..PAYLOAD + 16];
    match how % 8 {
        // The number moves a little, far, or as far as possible.
        0..=2 => number[7] = number[7].wrapping_add(argument as u8),
        3 => number[5] ^= argument as u8,
        4 => number.fill(argument as u8),
        5 => frame[PAYLOAD + 4 + argument % 4] ^= 1 << (argument % 8),
        6 => frame[PAYLOAD + 2 + argument % 2] = argument as u8,
        _ => {
            let at = PAYLOAD + 16 + argument % (frame.len() - PAYLOAD - 16);
            frame[at] ^= argument as u8;
        }
    }
}
