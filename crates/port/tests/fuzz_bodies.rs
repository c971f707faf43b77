//! Runs the body of the memif fuzz target over seeded noise and damaged messages, on the stable toolchain.

#[path = "../../../fuzz/bodies/memif.rs"]
mod memif;

use taut_port::memif::message::{MESSAGE_BYTES, Message, VERSION};

const SEED: u64 = 0x3e31;

/// Good messages with long texts, some with characters that a cut can split.
fn messages() -> Vec<[u8; MESSAGE_BYTES]> {
    let text = |len: usize| "µ→".repeat(len).chars().take(len).collect::<String>();
    [
        Message::Ack,
        Message::Hello {
            name: text(14),
            min_version: VERSION,
            max_version: VERSION,
            max_region: 255,
            max_s2c_ring: 1,
            max_c2s_ring: 2,
            max_log2_ring_size: 14,
        },
        Message::Init {
            version: VERSION,
            id: 0x0102_0304,
            mode: 0,
            secret: text(10),
            name: text(20),
        },
        Message::AddRegion {
            index: 3,
            size_bytes: 0x0102_0304_0506_0708,
        },
        Message::AddRing {
            client_to_server: true,
            index: 1,
            region: 2,
            offset_bytes: 0x0102_0304,
            log2_ring_size: 10,
        },
        Message::Connect {
            interface: text(12),
        },
        Message::Connected {
            interface: text(40),
        },
        Message::Disconnect {
            code: 7,
            reason: text(60),
        },
    ]
    .iter()
    .map(Message::encode)
    .collect()
}

#[test]
fn fuzz_bodies_survive_seeded_noise() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let messages = messages();
    for _ in 0..200_000 {
        let mut bytes = match random.usize(..=messages.len()) {
            // Of any length near the right one, and of a type that is mostly known.
            0 => {
                let length = random.usize(MESSAGE_BYTES - 2..=MESSAGE_BYTES + 2);
                let mut noise: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
                noise[..2].copy_from_slice(&[random.u8(..10), 0]);
                noise
            }
            i => messages[i - 1].to_vec(),
        };
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        // Texts that fill their field to the end.
        if random.u8(..4) == 0 {
            let from = random.usize(2..bytes.len());
            bytes[from..].fill([b'x', 0xc2, 0xff][random.usize(..3)]);
        }
        memif::message(&bytes);
    }
}
