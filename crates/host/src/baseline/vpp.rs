//! VPP, the vector packet processor (fd.io), as a router over memif.

use super::linux_routing::{HOSTS, NETWORKS};
use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::command::{is_installed, run};
use crate::net::testbed::{DEVICE_MACS, GENERATOR_MACS, mac_text};
use crate::permissions::Missing;

const PROGRAM: &str = "vpp";

pub(super) const ENTRY: Baseline = Baseline {
    id: "memif-vpp",
    label: "VPP",
    io: "VPP",
    note: "IPv4 forwarding of VPP in its one thread (TTL and MAC addresses rewritten), with its default table; server on both links",
    reach: Reach::Memif { tx_rings: 1 },
    frames: Frames::Routed,
    probe,
    steps,
};

fn probe() -> Result<String, Missing> {
    let missing = |what: &str| Missing {
        what: what.to_owned(),
        how_to_get_it:
            "see https://fd.io/docs/vpp: apt-get install vpp vpp-plugin-core from its packages"
                .to_owned(),
    };
    if !is_installed(PROGRAM) {
        return Err(missing("`vpp` is not on the search path"));
    }
    let said = run("vpp", &["--version"]).unwrap_or_default();
    match said.lines().next().filter(|line| line.starts_with("vpp v")) {
        Some(version) => Ok(version.trim().to_owned()),
        None => Err(missing("`vpp` here is not the packet processor")),
    }
}

fn steps(place: &CommandValues) -> Vec<Step> {
    let [socket, commands, log] =
        ["cli.sock", "vpp.exec", "vpp.log"].map(|name| place.folder.join(name));
    let write = format!("printf '%s\\n' \"$@\" > {}", commands.display());
    let mut script = words(&["sh", "-c", &write, "sh"]);
    script.extend(configuration(place));
    let path = |path: &std::path::Path| path.display().to_string();
    let (socket_text, cpu) = (path(&socket), place.cpu);
    vec![
        Step::Run(script),
        Step::Keep {
            name: "vpp",
            line: words(&[
                PROGRAM,
                "unix",
                "{",
                "nodaemon",
                "log",
                &path(&log),
                "cli-listen",
                &socket_text,
                "runtime-dir",
                &path(&place.folder),
                "startup-config",
                &path(&commands),
                "}",
                "api-segment",
                "{",
                "prefix",
                &format!("taut{}", std::process::id()),
                "}",
                "cpu",
                "{",
                "main-core",
                &cpu.to_string(),
                "}",
                "plugins",
                "{",
                "plugin",
                "default",
                "{",
                "disable",
                "}",
                "plugin",
                "memif_plugin.so",
                "{",
                "enable",
                "}",
                "}",
            ]),
            ready: Ready::Socket(socket),
            owner: Owner::NeedsWatcher,
        },
    ]
}

/// Returns the commands that VPP runs at its start: they create an interface on each link.
fn configuration(place: &CommandValues) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, end) in place.ends.iter().enumerate() {
        let [own, next] = [DEVICE_MACS, GENERATOR_MACS].map(|macs| mac_text(macs[number]));
        let (id, interface) = (number + 1, format!("memif{}/0", number + 1));
        let (network, host) = (NETWORKS[number], HOSTS[number]);
        lines.extend([
            format!("create memif socket id {id} filename {end}"),
            format!("create interface memif socket-id {id} id 0 master hw-addr {own}"),
            format!("set interface ip address {interface} {network}"),
            format!("set interface state {interface} up"),
            format!("set ip neighbor static {interface} {host} {next}"),
        ]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn each_vpp_interface_gets_a_network_and_a_static_neighbour() {
        let place = CommandValues {
            ends: ["/scratch/w", "/scratch/e"].map(str::to_owned),
            cpu: 1,
            folder: "/scratch".into(),
        };
        let lines: Vec<String> = steps(&place).iter().map(text).collect();
        for part in [
            "'create memif socket id 2 filename /scratch/e'",
            "'create interface memif socket-id 2 id 0 master hw-addr 02:00:00:00:01:02'",
            "'set interface ip address memif2/0 198.19.255.254/16'",
            "'set ip neighbor static memif2/0 198.19.0.1 02:00:00:00:00:02'",
        ] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        assert!(
            lines[1].contains("startup-config /scratch/vpp.exec"),
            "{lines:?}"
        );
    }
}
