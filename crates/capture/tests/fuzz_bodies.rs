//! Runs the bodies of this crate's fuzz targets on inputs that are corrupted at random with fixed seeds, on the stable
//! toolchain.

#[path = "../../../fuzz/bodies/capture_disk.rs"]
mod capture_disk;
#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/packet_filter.rs"]
mod packet_filter;

const SEED: u64 = 0xf117;
const INSTRUCTIONS: u8 = 13;
const FRAME_BYTES: usize = 60;

/// Returns `udp dst port 7 and ip`, as libpcap writes it, with additional scratch memory and arithmetic; and a frame
/// that it accepts.
fn good() -> Vec<u8> {
    let program: [(u16, u8, u8, u32); INSTRUCTIONS as usize] = [
        (0x28, 0, 0, 12),
        (0x15, 0, 10, 0x800),
        (0x30, 0, 0, 23),
        (0x02, 0, 0, 3),
        (0x15, 0, 7, 17),
        (0x28, 0, 0, 20),
        (0x45, 5, 0, 0x1fff),
        (0xb1, 0, 0, 14),
        (0x48, 0, 0, 16),
        (0x54, 0, 0, 0xffff),
        (0x15, 0, 1, 7),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
    ];
    let mut bytes = vec![INSTRUCTIONS];
    for (code, jt, jf, k) in program {
        bytes.extend(code.to_be_bytes());
        bytes.extend([jt, jf]);
        bytes.extend(k.to_be_bytes());
    }
    let mut frame = [0; FRAME_BYTES];
    (frame[12], frame[14], frame[23], frame[37]) = (8, 0x45, 17, 7);
    bytes.extend(frame);
    bytes
}

#[test]
fn running_randomly_damaged_filter_programs_never_panics() {
    const CODES: [u8; 12] = [
        0x20, 0x40, 0x50, 0x61, 0x81, 0x3c, 0x64, 0x07, 0x87, 0x05, 0x1d, 0x16,
    ];
    let good = good();
    assert_eq!(packet_filter::program(&good), Some(true));
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut programs = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(..bytes.len());
            bytes[at] = match random.u8(..3) {
                0 => random.u8(..),
                1 => random.u8(..16),
                _ => random.choice(CODES).unwrap_or(0),
            };
        }
        bytes.truncate(random.usize(good.len() - FRAME_BYTES..=good.len()));
        programs += u32::from(packet_filter::program(&bytes).is_some());
    }
    // Most programs stay valid, because most damage is to the frame or to numbers.
    assert!(programs > 5000, "{programs}");
}

#[test]
fn reading_randomly_damaged_disk_rings_never_panics() {
    // Fuzzing found this input: an index that makes a query read one block again and again.
    capture_disk::ring(&[0x32, 0xc7, 0x7a, 0x41, 0x60]);
    let mut random = fastrand::Rng::with_seed(0x3e31);
    for _ in 0..500 {
        let mut noise: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        if let Some(kind) = noise.first_mut() {
            // Most changes are applied to valid files.
            *kind |= [2, 2, 0][random.usize(..3)];
        }
        capture_disk::ring(&noise);
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("capture_disk", capture_disk::ring);
    corpus::replay("packet_filter", packet_filter::program);
}
