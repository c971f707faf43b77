//! Configuration and readings of chronyd (chrony.conf(5), chronyc(1)).

use super::{ClockOrder, ClockReading};
use std::path::Path;
use std::process::Command;

/// UDP port of the reference node: the machine's own service keeps port 123.
const PORT: u16 = 11_123;
/// NTP stratum that the reference node announces, whose clock is correct by definition.
const STRATUM: u8 = 8;

/// Returns the configuration of chronyd.
pub(super) fn config(order: &ClockOrder, folder: &Path) -> String {
    let folder = folder.display();
    let mut lines = vec![
        format!("bindcmdaddress {folder}/chronyd.sock"),
        format!("pidfile {folder}/chronyd.pid"),
        "cmdport 0".to_owned(),
    ];
    match &order.address {
        // Polls every second. The clock is stepped to the reference at first, and then slewed only.
        Some(address) => lines.extend([
            format!("server {address} port {PORT} iburst minpoll 0 maxpoll 0 xleave"),
            "port 0".to_owned(),
            "makestep 0.0001 3".to_owned(),
        ]),
        None => lines.extend([
            format!("port {PORT}"),
            "allow".to_owned(),
            format!("local stratum {STRATUM}"),
        ]),
    }
    lines.join("\n") + "\n"
}

/// Returns the command that runs chronyd in the foreground.
pub(super) fn daemon(order: &ClockOrder, folder: &Path) -> Command {
    let mut command = Command::new("chronyd");
    command
        .args(["-d", "-u", "root", "-f"])
        .arg(folder.join("chrony.conf"));
    if !order.adjust || order.is_reference {
        // The reference keeps its clock as it is.
        command.arg("-x");
    }
    command
}

/// Returns the `chronyc` command that prints the state of the clock.
pub(super) fn query(folder: &Path) -> Command {
    let mut command = Command::new("chronyc");
    command
        .arg("-h")
        .arg(folder.join("chronyd.sock"))
        .args(["-c", "-n", "tracking"]);
    command
}

/// Parses the output of `chronyc -c tracking`. `None` if the clock is not synchronised.
///
/// The bound on the clock's error is computed as in chronyc(1): offset + root dispersion + half of the root delay.
pub(super) fn reading(text: &str) -> Option<ClockReading> {
    let fields: Vec<&str> = text.trim().split(',').collect();
    let seconds = |index: usize| {
        let value: f64 = fields.get(index)?.parse().ok()?;
        (value.is_finite() && value.abs() < 1e9).then_some(value * 1e9)
    };
    let is_synchronised = fields.len() == 14 && fields.get(13) != Some(&"Not synchronised");
    let (offset, delay, dispersion) = (seconds(4)?, seconds(10)?, seconds(11)?);
    is_synchronised.then_some(ClockReading {
        offset_ns: offset,
        path_delay_ns: delay,
        root_dispersion_ns: dispersion,
        bound_ns: offset.abs() + dispersion.abs() + delay.abs() / 2.0,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_bound_is_offset_dispersion_and_half_the_delay() {
        let line = "0A000001,10.0.0.1,9,1.0,-0.000001500,0.000002,0.000003,1.5,0.1,0.2,0.000040,0.000010,1.0,Normal\n";
        let reading = reading(line).unwrap();
        assert_eq!(reading.offset_ns.round(), -1500.0);
        assert_eq!(reading.bound_ns.round(), 1500.0 + 10_000.0 + 20_000.0);
        for wrong in [
            "",
            "506 Cannot talk to daemon",
            &line.replace("Normal", "Not synchronised"),
            &line.replace("0.000040", "nan"),
        ] {
            assert!(super::reading(wrong).is_none(), "{wrong}");
        }
    }
}
