//! The bodies of the fuzz targets for memif's rings: they act as the peer on the shared memory, in both roles.

use std::cell::RefCell;
use std::collections::VecDeque;
use taut_port::memif::by_hand::{
    DataPath, Descriptor, Direction, FLAG_NEXT, MIN_LOG2_RING_SIZE, REGION_BYTES, Role,
};
use taut_port::{Batch, PoolHandle};

const RING: u16 = 1 << MIN_LOG2_RING_SIZE;

/// Number of buffers in the pool: enough for two full rings and some delayed packets.
const SLOTS: u32 = 160;

/// The largest number of delayed batches.
const HELD: usize = 8;

thread_local! {
    static POOL: RefCell<Option<PoolHandle>> = const { RefCell::new(None) };
}

/// Returns the next byte, or 0 at the end.
fn byte(bytes: &mut &[u8]) -> u8 {
    bytes.split_off_first().copied().unwrap_or(0)
}

/// Draws a 16-bit number: near 0, near the maximum, or any.
fn index(bytes: &mut &[u8]) -> u16 {
    let first = byte(bytes);
    match first {
        0..128 => u16::from(first),
        128..192 => u16::MAX - u16::from(first - 128),
        _ => u16::from_le_bytes([first, byte(bytes)]),
    }
}

/// Draws a buffer that is mostly within the region, or at its end.
fn descriptor(bytes: &mut &[u8]) -> Descriptor {
    let kind = byte(bytes);
    Descriptor {
        flags: if kind & 1 != 0 { FLAG_NEXT } else { 0 },
        region: u16::from(kind >> 1 & 7 == 7) * index(bytes),
        length: match kind >> 4 & 3 {
            0 => u32::from(byte(bytes)),
            1 => 1984 - 128 + u32::from(byte(bytes)),
            2 => 65_536 - 128 + u32::from(byte(bytes)),
            _ => u32::from_le_bytes([0; 4].map(|_: u8| byte(bytes))),
        },
        offset: match kind >> 6 {
            0 | 1 => 64 * u32::from(byte(bytes)),
            2 => REGION_BYTES as u32 - 128 + u32::from(byte(bytes)),
            _ => u32::from_le_bytes([0; 4].map(|_: u8| byte(bytes))),
        },
    }
}

/// Acts as a peer that may do anything to the rings, between calls of a data path that delays packets for a while.
pub fn rings(mut bytes: &[u8]) {
    let role = if byte(&mut bytes) & 1 == 0 {
        Role::Server
    } else {
        Role::Client
    };
    let pool = POOL.with_borrow_mut(|pool| {
        pool.get_or_insert_with(|| PoolHandle::new(SLOTS, false).expect("memory for packets"))
            .clone()
    });
    let mut path = DataPath::new(role, pool.clone(), MIN_LOG2_RING_SIZE).expect("memory for rings");
    let mut held = VecDeque::with_capacity(HELD + 1);
    let mut moved = [0_u16; 2];
    while !bytes.is_empty() {
        let step = byte(&mut bytes);
        let direction = if step & 0x80 == 0 {
            Direction::Received
        } else {
            Direction::Sent
        };
        let at = &mut moved[direction as usize];
        match step & 15 {
            0 => {
                *at = index(&mut bytes);
                path.move_index(direction, *at);
            }
            1..5 => {
                *at = at.wrapping_add(u16::from(step >> 2 & 0x1f));
                path.move_index(direction, *at);
            }
            5 => path.move_our_index(direction, index(&mut bytes)),
            6 => path.sleep(step & 16 != 0),
            7..9 => {
                let place = index(&mut bytes);
                path.describe(direction, place, descriptor(&mut bytes));
            }
            9 => {
                let same = descriptor(&mut bytes);
                (0..RING).for_each(|place| path.describe(direction, place, same));
            }
            10 | 11 => {
                let mut batch = Batch::limited(1 + usize::from(step >> 2));
                let received = path.rx(&mut batch);
                assert_eq!(received, batch.len());
                held.push_back(batch);
            }
            12 => {
                let mut batch = Batch::new();
                pool.fill(&mut batch, usize::from(step >> 2), 1984);
                path.tx(&mut batch);
                held.push_back(batch);
            }
            13 => {
                if let Some(mut batch) = held.pop_front() {
                    path.tx(&mut batch);
                }
            }
            14 => drop(held.pop_back()),
            _ => drop(held.pop_front()),
        }
        if held.len() > HELD {
            held.pop_front();
        }
        check(&path, &held);
    }
    // Packets in the peer's memory keep the connection open. The disconnect is complete only without such packets.
    let in_place = path.in_place();
    assert_eq!(path.disconnect(), in_place == 0);
    held.clear();
    assert!(path.disconnect());
    assert_eq!(
        (pool.outstanding(), pool.available()),
        (0, SLOTS as usize),
        "everything is given back"
    );
}

fn check(path: &DataPath, held: &VecDeque<Batch>) {
    let mut in_place = 0;
    for packet in held.iter().flat_map(Batch::packets) {
        assert!(path.holds(packet), "outside the shared memory");
        in_place += usize::from(path.is_in_place(packet));
    }
    assert_eq!(path.in_place(), in_place, "the ledger");
    assert!(in_place <= usize::from(RING), "more than the ring has");
}
