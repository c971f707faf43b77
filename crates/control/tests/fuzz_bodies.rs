//! Runs the body of this crate's fuzz target over seeded noise and corrupted inputs, on the stable toolchain.

#[path = "../../../fuzz/bodies/control.rs"]
mod control;
#[path = "../../../fuzz/bodies/damage.rs"]
mod damage;

use taut_control::protocol::{Command, MOST_BYTES, SLOTS};
use taut_control::{Format, Report, Shape, Stage, Stamps};

const ROBOT: Shape = Shape {
    sensors: 3,
    inputs: 2,
};

fn messages() -> Vec<Vec<u8>> {
    let mut stamps = Stamps::default();
    stamps.set(Stage::Read, 1);
    let report = Report {
        sequence: 1,
        read_ns: 1,
        stamps,
        previous: None,
        offset: 0.5,
        applied: [1.0, 2.0],
        readings: [3.0; 6],
    };
    let command = Command {
        sequence: 1,
        time_ns: 2,
        inputs: [[1.0; 2]; SLOTS],
    };
    let mut all = Vec::new();
    for format in [Format::Ncsbench, Format::Taut] {
        let mut bytes = [0; MOST_BYTES];
        let length = format.emit_report(&report, ROBOT, &mut bytes);
        all.push(bytes[..length].to_vec());
        let length = format.emit_command(&command, &stamps, ROBOT, &mut bytes);
        all.push(bytes[..length].to_vec());
        let length = format.emit_farewell(ROBOT, &mut bytes);
        all.push(bytes[..length].to_vec());
    }
    all
}

#[test]
fn parsing_randomly_damaged_messages_never_panics() {
    let mut random = fastrand::Rng::with_seed(0x7AFF);
    for message in messages() {
        for _ in 0..5_000 {
            let mut damaged = message.clone();
            for _ in 0..random.usize(1..6) {
                if damaged.is_empty() {
                    break;
                }
                let at = random.usize(..damaged.len());
                match random.u8(..4) {
                    0 => damaged[at] = random.u8(..),
                    1 => damaged[at] ^= 1 << random.u8(..8),
                    2 => damaged.truncate(at),
                    _ => damaged.push(random.u8(..)),
                }
            }
            control::message(&damaged);
        }
    }
}

#[test]
fn parsing_random_bytes_of_any_length_never_panics() {
    let mut random = fastrand::Rng::with_seed(0x7AFF);
    for _ in 0..20_000 {
        let noise: Vec<u8> = (0..random.usize(..520)).map(|_| random.u8(..)).collect();
        control::message(&noise);
    }
}

#[test]
fn damaged_plant_files_and_extreme_numbers_cause_no_panic() {
    let whole = include_str!("../src/plant/drone-axis.toml");
    let mut random = fastrand::Rng::with_seed(0x7AFF);
    for _ in 0..300 {
        control::plant(&damage::damaged(whole, &mut random));
    }
    // Each number of the file is replaced, one after another.
    for extreme in ["0.0", "-1e9", "1e9", "1e-9", "1e5"] {
        for (at, _) in whole
            .match_indices("25.0")
            .chain(whole.match_indices("1500.0"))
            .chain(whole.match_indices("1.0"))
        {
            let length = whole[at..]
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(1);
            let text = format!("{}{extreme}{}", &whole[..at], &whole[at + length..]);
            control::plant(text.as_bytes());
        }
    }
}
