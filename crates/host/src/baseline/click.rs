//! The Click modular router (Kohler et al., TOCS 2000), if the `click` on the search path is that program.

use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::command::{is_installed, run};
use crate::net::testbed::{DEVICE_MACS, GENERATOR_MACS, mac_text};
use crate::permissions::Missing;

const PROGRAM: &str = "click";

pub(super) const ENTRY: Baseline = Baseline {
    id: "veth-click",
    label: "Click",
    io: "Click",
    note: "the Click modular router in user space on packet sockets, frames untouched; kernel work on the receiving side steered to the device's core (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Through,
    probe,
    steps,
};

pub(super) const ROUTER: Baseline = Baseline {
    id: "veth-click-routing",
    label: "Click routing",
    note: "the Click modular router in user space on packet sockets as a router of IPv4 (TTL and MAC addresses rewritten); kernel work on the receiving side steered to the device's core (RPS)",
    frames: Frames::Routed,
    steps: |place| running(place, routing(&place.ends)),
    ..ENTRY
};

fn probe() -> Result<String, Missing> {
    let missing = |what: String| {
        Missing {
        what,
        how_to_get_it: "build the router from https://github.com/kohler/click (./configure --disable-linuxmodule && make install); Debian's package `click` is something else".to_owned(),
    }
    };
    if !is_installed(PROGRAM) {
        return Err(missing(format!("`{PROGRAM}` is not on the search path")));
    }
    // A different program called `click` may fail at this option, or print any text.
    let said = run(PROGRAM, &["--version"]).unwrap_or_default();
    router_version(&said)
        .map(|version| format!("Click {version}"))
        .ok_or_else(|| missing(format!("`{PROGRAM}` here is not the modular router")))
}

/// Returns the version in the output of `click --version` if it is that of the Click router; `None` for another program
/// called `click`.
fn router_version(said: &str) -> Option<&str> {
    said.lines().next()?.strip_prefix("click (Click) ")
}

fn steps(place: &CommandValues) -> Vec<Step> {
    let [west, east] = &place.ends;
    let half = |from: &str, to: &str| {
        format!(
            "FromDevice({from}, METHOD LINUX, PROMISC true, BURST 32) -> Queue(1000) -> ToDevice({to}, METHOD LINUX, BURST 32);"
        )
    };
    running(place, format!("{} {}", half(west, east), half(east, west)))
}

/// Returns a configuration that checks headers, uses Click's fastest lookup table, decrements the TTL, and has static
/// neighbours.
fn routing(ends: &[String; 2]) -> String {
    let table = "table :: DirectIPLookup(198.18.0.0/16 0, 198.19.0.0/16 1);";
    let ways = ends.iter().enumerate().map(|(number, interface)| {
        let [own, next] = [DEVICE_MACS, GENERATOR_MACS].map(|macs| mac_text(macs[number]));
        format!(
            " FromDevice({interface}, METHOD LINUX, PROMISC true, BURST 32) -> c{number} :: Classifier(12/0800, -) \
             -> Strip(14) -> CheckIPHeader -> table; c{number}[1] -> Discard; \
             table[{number}] -> DecIPTTL -> EtherEncap(0x0800, {own}, {next}) -> Queue(1000) \
             -> ToDevice({interface}, METHOD LINUX, BURST 32);"
        )
    });
    std::iter::once(table.to_owned()).chain(ways).collect()
}

fn running(place: &CommandValues, configuration: String) -> Vec<Step> {
    let socket = place.folder.join("click.sock");
    vec![Step::Keep {
        name: "click",
        line: words(&[
            PROGRAM,
            "--unix-socket",
            &socket.display().to_string(),
            "--expression",
            &configuration,
        ]),
        ready: Ready::Socket(socket),
        owner: Owner::NeedsWatcher,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn the_click_router_is_distinguished_from_other_click_programs() {
        let router =
            "click (Click) 2.1\nCopyright (C) 1999-2001 Massachusetts Institute of Technology\n";
        assert_eq!(router_version(router), Some("2.1"));
        // These are outputs of Debian's package manager of that name, of Python's library, and of a program that
        // failed.
        for other in [
            "click 0.5.0\n",
            "click, version 8.1.3\n",
            "Usage: click COMMAND\n",
            "",
        ] {
            assert_eq!(router_version(other), None, "{other}");
        }
    }

    #[test]
    fn click_forwards_packets_in_both_directions() {
        let place = CommandValues {
            ends: ["dut0", "dut1"].map(str::to_owned),
            cpu: 1,
            folder: "/scratch".into(),
        };
        let line = text(&steps(&place)[0]);
        for part in [
            "click --unix-socket /scratch/click.sock --expression '",
            "FromDevice(dut0, METHOD LINUX, PROMISC true, BURST 32) -> Queue(1000) -> ToDevice(dut1,",
            "FromDevice(dut1, METHOD LINUX, PROMISC true, BURST 32) -> Queue(1000) -> ToDevice(dut0,",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let line = text(&(ROUTER.steps)(&place)[0]);
        let leaves = "table[1] -> DecIPTTL -> EtherEncap(0x0800, 02:00:00:00:01:02, 02:00:00:00:00:02) -> Queue(1000) -> ToDevice(dut1,";
        assert!(line.contains(leaves), "{line}");
    }
}
