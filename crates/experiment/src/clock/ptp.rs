//! Configuration and readings of ptp4l and phc2sys (linuxptp).

use super::{ClockOrder, ClockReading};
use std::path::Path;
use std::process::Command;

/// Returns the configuration of ptp4l.
pub(super) fn config(order: &ClockOrder, folder: &Path) -> String {
    let folder = folder.display();
    let yes = |truth: bool| u8::from(truth);
    format!(
        "[global]\nuds_address {folder}/ptp4l\ntime_stamping {}\nslaveOnly {}\n\
         priority1 {}\nfree_running {}\nlogSyncInterval -3\nlogMinDelayReqInterval -3\nlogAnnounceInterval 0\n\
         step_threshold 0.0001\nsummary_interval 6\n",
        if order.hardware {
            "hardware"
        } else {
            "software"
        },
        yes(!order.is_reference),
        if order.is_reference { 1 } else { 255 },
        yes(!order.adjust || order.is_reference),
    )
}

/// Returns the commands that run ptp4l and, if the network card takes the timestamps, phc2sys, which synchronises the
/// card's clock with the system clock.
pub(super) fn daemons(order: &ClockOrder, folder: &Path) -> Vec<Command> {
    let interface = order.interface.as_deref().unwrap_or_default();
    let mut ptp4l = Command::new("ptp4l");
    ptp4l
        .arg("-m")
        .arg("-f")
        .arg(folder.join("ptp4l.conf"))
        .args(["-i", interface]);
    let mut commands = vec![ptp4l];
    if order.hardware && (order.adjust || order.is_reference) {
        let mut phc2sys = Command::new("phc2sys");
        // The interface's clock follows the system's on the reference node, and leads it on the others.
        let [from, to] = match order.is_reference {
            true => ["CLOCK_REALTIME", interface],
            false => [interface, "CLOCK_REALTIME"],
        };
        phc2sys.args(["-s", from, "-c", to, "-O", "0"]);
        commands.push(phc2sys);
    }
    commands
}

/// Returns the `pmc` command that prints the state of the clock.
pub(super) fn query(folder: &Path) -> Command {
    let mut command = Command::new("pmc");
    command
        .args(["-u", "-b", "0", "-s"])
        .arg(folder.join("ptp4l"));
    command
        .arg("-i")
        .arg(folder.join(format!("pmc.{}", std::process::id())));
    command.args([
        "GET TIME_STATUS_NP",
        "GET CURRENT_DATA_SET",
        "GET PORT_DATA_SET",
    ]);
    command
}

/// Parses the output of `pmc`. `None` if the clock does not follow a grandmaster.
///
/// The bound on the clock's error is the offset plus the path delay. The delay is the mean of both directions, so an
/// asymmetry changes the offset by at most that delay.
pub(super) fn reading(text: &str) -> Option<ClockReading> {
    let value = |name: &str| {
        let mut lines = text.lines().map(str::split_whitespace);
        lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()).flatten())
    };
    let number = |name: &str| {
        let number: f64 = value(name)?.parse().ok()?;
        (number.is_finite() && number.abs() < 1e18).then_some(number)
    };
    // A clock that is only compared stays uncalibrated.
    let follows = matches!(value("portState"), Some("SLAVE" | "UNCALIBRATED"));
    let (offset, delay) = (number("master_offset")?, number("meanPathDelay")?);
    let is_following = follows && value("gmPresent") == Some("true") && delay != 0.0;
    is_following.then_some(ClockReading {
        offset_ns: offset,
        path_delay_ns: delay,
        root_dispersion_ns: 0.0,
        bound_ns: offset.abs() + delay.abs(),
    })
}

/// Returns true if the output shows that ptp4l runs and replies.
pub(super) fn replies(text: &str) -> bool {
    text.contains("portState")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const REPLY: &str = "sending: GET TIME_STATUS_NP\n\
        \t5a5a.5a-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP \n\
        \t\tmaster_offset              -1200\n\t\tingress_time               17\n\t\tgmPresent                  true\n\
        \t5a5a.5a-0 seq 1 RESPONSE MANAGEMENT CURRENT_DATA_SET \n\
        \t\tstepsRemoved     1\n\t\toffsetFromMaster -1200.0\n\t\tmeanPathDelay    3400.0\n\
        \t5a5a.5a-1 seq 2 RESPONSE MANAGEMENT PORT_DATA_SET \n\t\tportState               SLAVE\n";

    #[test]
    fn a_reading_needs_a_port_that_follows_a_grandmaster() {
        let found = reading(REPLY).unwrap();
        assert_eq!((found.offset_ns, found.bound_ns), (-1200.0, 4600.0));
        assert!(replies(REPLY) && !replies("sending: GET PORT_DATA_SET"));
        for (from, to) in [
            ("SLAVE", "LISTENING"),
            ("3400.0", "0.0"),
            ("true", "false"),
            ("3400.0", "x"),
            ("meanPath", "x"),
        ] {
            assert!(reading(&REPLY.replace(from, to)).is_none(), "{from}");
        }
    }
}
