//! The bodies of the fuzz targets for control loops; `cargo test` runs the same bodies over seeded noise and damage.
#![allow(dead_code)] // each target uses one of the bodies

use taut_control::controller::Settings;
use taut_control::plant::model_of_file;
use taut_control::protocol::MOST_BYTES;
use taut_control::{Controller, Format, Message, Scenario, Shape, simulate};

/// Reads a plant file, and controls the plant for some periods if there is a controller for it.
pub fn plant(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(model) = model_of_file(text, "plant.toml") else {
        return;
    };
    if Controller::new(&model, Settings::default()).is_ok() {
        let mut scenario = Scenario::new(model);
        scenario.station.periods = 20;
        scenario.link.loss = 0.3;
        simulate(&scenario).expect("there is a controller");
    }
}

/// Parses a datagram as either side would, in both formats; writes the result and parses it again.
pub fn message(bytes: &[u8]) {
    let shape = Shape {
        sensors: 3,
        inputs: 2,
    };
    for format in [Format::Ncsbench, Format::Taut] {
        let Ok(message) = format.parse(bytes, shape, 35_000_000) else {
            continue;
        };
        let mut again = [0; MOST_BYTES];
        let length = match &message {
            Message::Report(report) => format.emit_report(report, shape, &mut again),
            Message::Command(command, stamps) => {
                format.emit_command(command, stamps, shape, &mut again)
            }
            Message::Farewell => format.emit_farewell(shape, &mut again),
        };
        let read = format.parse(&again[..length], shape, 35_000_000);
        let read = read.expect("what was written is a message");
        if format == Format::Taut {
            assert_eq!(read, message);
        }
        if let (Message::Command(read, _), Message::Command(sent, _)) = (&read, &message) {
            assert_eq!(read.sequence, sent.sequence);
        }
    }
}
