//! Measures the cost in cycles of matching a packet that is observed at two places: two identities (hashes) and two
//! calls of the matcher. There are 32, a thousand and a hundred thousand packets in flight. `cargo bench -p
//! taut-capture --bench matching`.
#![allow(clippy::unwrap_used)]

use etherparse::PacketBuilder;
use std::hint::black_box;
use taut_capture::matching::{Identify, Identity, Matcher, Settings};
use taut_sys::ticks;

const REPETITIONS: usize = 15;
const PACKETS: usize = 200_000;
const LENGTHS: [usize; 3] = [64, 512, 1518];
const UNDER_WAY: [usize; 3] = [32, 1_000, 100_000];
/// Number of different frames, more than fit the first-level cache.
const FRAMES: usize = 256;

fn frames(len: usize) -> Vec<Vec<u8>> {
    let frame = |number: usize| {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1000 + number as u16, 53);
        let mut frame = Vec::new();
        // The lengths include a check sequence of 4 bytes.
        builder
            .write(&mut frame, &vec![number as u8; len - 46])
            .unwrap();
        frame
    };
    (0..FRAMES).map(frame).collect()
}

/// Returns the number of cycles to compute the identity of one frame.
fn identities(frames: &[Vec<u8>]) -> f64 {
    let identify = Identify::default();
    let begun = ticks();
    for at in 0..PACKETS {
        let frame = &frames[at % FRAMES];
        black_box(identify.of(black_box(frame), frame.len() as u32));
    }
    (ticks() - begun) as f64 / PACKETS as f64
}

/// Returns the cycles per frame to find the timestamp of a measurement packet, as a trigger of the kind `late` does.
/// The frames contain a timestamp if `stamped` is true.
fn stamps(frames: &[Vec<u8>], stamped: bool) -> f64 {
    let mut frames = frames.to_vec();
    if stamped {
        for (at, frame) in frames.iter_mut().enumerate() {
            let layout = taut_wire::StampLayout::new(frame).unwrap();
            layout.write(frame, 0, at as u64, ticks()).unwrap();
        }
    }
    let begun = ticks();
    for at in 0..PACKETS {
        black_box(taut_wire::claimed_stamp(black_box(&frames[at % FRAMES])));
    }
    (ticks() - begun) as f64 / PACKETS as f64
}

/// Returns the cycles to match one packet: one call of `at_a` and one of `at_b`, while `under_way` other packets wait
/// to be matched.
fn matches(under_way: usize) -> f64 {
    let identities: Vec<_> = (0..PACKETS + under_way)
        .map(|at| Identity([(at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15), at as u64]))
        .collect();
    let mut matcher = Matcher::new(Settings::default());
    let mut count = 0_u64;
    let mut each = |_| count += 1;
    for (at, identity) in identities[..under_way].iter().enumerate() {
        matcher.at_a(*identity, at as u64, &mut each);
    }
    let begun = ticks();
    for at in 0..PACKETS {
        let time_ns = (under_way + at) as u64;
        matcher.at_a(identities[under_way + at], time_ns, &mut each);
        matcher.at_b(identities[at], time_ns, &mut each);
    }
    let taken = (ticks() - begun) as f64 / PACKETS as f64;
    assert_eq!(count, PACKETS as u64);
    taken
}

fn report(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    println!(
        "{name}: {:.0} ticks ({:.0} to {:.0}, n = {n})",
        values[n / 2],
        values[0],
        values[n - 1]
    );
}

fn main() {
    for len in LENGTHS {
        let frames = frames(len);
        let values = (0..REPETITIONS).map(|_| identities(&frames)).collect();
        report(&format!("identity of {len} bytes"), values);
        for (stamped, which) in [(true, "with"), (false, "without")] {
            let values = (0..REPETITIONS).map(|_| stamps(&frames, stamped)).collect();
            report(
                &format!("look for a stamp, {len} bytes {which} one"),
                values,
            );
        }
    }
    for under_way in UNDER_WAY {
        let values = (0..REPETITIONS).map(|_| matches(under_way)).collect();
        report(
            &format!("a packet at both places, {under_way} under way"),
            values,
        );
    }
}
