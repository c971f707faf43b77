//! Runs the bodies of this crate's fuzz targets on seeded random bytes and damaged input, on the stable toolchain.

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/memif.rs"]
mod memif;
#[path = "../../../fuzz/bodies/memif_rings.rs"]
mod memif_rings;
#[path = "../../../fuzz/bodies/pcap.rs"]
mod pcap;

use taut_port::memif::message::{MESSAGE_BYTES, Message, VERSION};

const SEED: u64 = 0x3e31;

/// Returns valid messages with long texts, some with characters that truncation can split.
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

/// Returns a capture of a few frames: pcap in both units, or pcapng with two interfaces and unknown blocks, in either
/// byte order.
fn capture(random: &mut fastrand::Rng) -> Vec<u8> {
    let (big, pcapng) = (random.bool(), random.bool());
    let u32 = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let u16 = |value: u16| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let total = u32(padded as u32 + 12);
        let mut bytes = [&u32(kind)[..], &total, body].concat();
        bytes.resize(8 + padded, 0);
        [bytes, total.to_vec()].concat()
    };
    let mut file = if pcapng {
        let section = [&u32(0x1a2b_3c4d)[..], &u16(1), &u16(0), &[0xff; 8]].concat();
        let option = [
            &u16(9)[..],
            &u16(1),
            &[[6, 9, 0x80 | 30][random.usize(..3)], 0, 0, 0],
        ]
        .concat();
        let interface = [&u16(1)[..], &u16(0), &u32(0), &option].concat();
        [
            block(0x0a0d_0d0a, &section),
            block(1, &interface),
            block(1, &interface),
        ]
        .concat()
    } else {
        let magic = [0xa1b2_c3d4, 0xa1b2_3c4d][random.usize(..2)];
        [&u32(magic)[..], &u16(2), &u16(4), &[0; 12], &u32(1)].concat()
    };
    for _ in 0..random.usize(..30) {
        // Some frames are long enough to cross from one block of the reader into the next.
        let longest = [80, 1514, 17_000][random.usize(..3)];
        let frame = vec![random.u8(..); random.usize(..longest)];
        let len = frame.len() as u32;
        let whole = len + u32::from(random.u8(..) == 0);
        let (kind, head) = match random.usize(..6) {
            0 => (3, u32(whole).to_vec()),
            1 => (random.u32(..), Vec::new()),
            n => {
                let interface = u32(n as u32 & 1);
                let time = [u32(random.u32(..9)), u32(random.u32(..))].concat();
                (6, [&interface[..], &time, &u32(len), &u32(whole)].concat())
            }
        };
        if pcapng {
            file.extend(block(kind, &[head, frame].concat()));
        } else {
            let time = [u32(random.u32(..)), u32(random.u32(..))].concat();
            file.extend([&time[..], &u32(len), &u32(whole), &frame].concat());
        }
    }
    file
}

#[test]
fn randomly_damaged_captures_never_panic() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..3_000 {
        let mut bytes = capture(&mut random);
        pcap::capture(&bytes);
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..bytes.len() * 4));
        pcap::capture(&bytes);
    }
    for _ in 0..20_000 {
        let mut noise: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
        let magic = [0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0x0a0d_0d0a][random.usize(..3)];
        if noise.len() > 4 {
            noise[..4].copy_from_slice(&magic.to_le_bytes());
        }
        pcap::capture(&noise);
    }
}

#[test]
fn random_actions_of_a_memif_peer_cause_no_panic() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..10_000 {
        let noise: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
        memif_rings::rings(&noise);
    }
}

#[test]
fn randomly_damaged_memif_messages_never_panic() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let messages = messages();
    for _ in 0..200_000 {
        let mut bytes = match random.usize(..=messages.len()) {
            // A message of any length near the correct one, usually with a known type.
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

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("memif_message", memif::message);
    corpus::replay("memif_rings", memif_rings::rings);
    corpus::replay("pcap_capture", pcap::capture);
}
