//! Suricata inline between two packet sockets: it copies accepted packets from one interface to the other.

use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::command::{is_installed, run};
use crate::permissions::Missing;

const PROGRAM: &str = "suricata";
/// The rules of `taut ips sample`, so that Suricata and taut apply the same rules.
const RULES: &str = include_str!("../../../../tests/data/suricata/sample.rules");

pub(super) const ENTRY: Baseline = Baseline {
    id: "veth-suricata",
    label: "Suricata",
    io: "AF_PACKET",
    note: "Suricata in line on packet sockets (copy-mode ips), without rules; kernel work on the receiving side steered to the device's core (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Through,
    probe,
    steps: |place| running(place, "# None.\n"),
};

pub(super) const WITH_RULES: Baseline = Baseline {
    id: "veth-suricata-rules",
    label: "Suricata 300 rules",
    note: "Suricata in line on packet sockets (copy-mode ips), with the 300 rules that `taut ips sample` prints; kernel work on the receiving side steered to the device's core (RPS)",
    steps: |place| running(place, RULES),
    ..ENTRY
};

fn probe() -> Result<String, Missing> {
    let missing = |what: &str| Missing {
        what: what.to_owned(),
        how_to_get_it: "apt-get install suricata".to_owned(),
    };
    if !is_installed(PROGRAM) {
        return Err(missing("`suricata` is not on the search path"));
    }
    let said = run(PROGRAM, &["-V"]).unwrap_or_default();
    version(&said)
        .map(|version| format!("Suricata {version}"))
        .ok_or_else(|| missing("`suricata` here does not say its version"))
}

/// Returns the version in the output of `suricata -V`.
fn version(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("Suricata version ")?;
    rest.split_whitespace().next()
}

fn running(place: &CommandValues, rules: &'static str) -> Vec<Step> {
    let [settings, classes, file] = ["suricata.yaml", "classification.config", "device.rules"]
        .map(|name| place.folder.join(name));
    let text = |path: &std::path::Path| path.display().to_string();
    let [west, east] = &place.ends;
    let mut lines = vec!["%YAML 1.1".to_owned(), "---".to_owned()];
    lines.extend([
        format!("classification-file: {}", text(&classes)),
        "exception-policy: ignore".to_owned(),
        "stream: { inline: yes, midstream: true, checksum-validation: no }".to_owned(),
        "af-packet:".to_owned(),
    ]);
    for (number, (here, there)) in [(west, east), (east, west)].into_iter().enumerate() {
        lines.push(format!(
            "  - {{ interface: {here}, copy-iface: {there}, copy-mode: ips, cluster-id: {}, cluster-type: cluster_flow, \
             threads: 1, defrag: no, use-mmap: yes, tpacket-v3: no, checksum-checks: no }}",
            90 + number
        ));
    }
    let write = format!("printf '%s\\n' \"$@\" > {}", text(&settings));
    let mut script = words(&["sh", "-c", &write, "sh"]);
    script.extend(lines);
    vec![
        Step::Run(script),
        Step::Write(
            classes,
            "config classification: misc-activity,Misc activity,3\n",
        ),
        Step::Write(file.clone(), rules),
        Step::Keep {
            name: PROGRAM,
            line: words(&[
                PROGRAM,
                "--af-packet",
                "--runmode",
                "workers",
                "-c",
                &text(&settings),
                "-S",
                &text(&file),
                "-l",
                &text(&place.folder),
            ]),
            ready: Ready::LineStart("Notice: threads: Threads created"),
            owner: Owner::NeedsWatcher,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn suricata_forwards_packets_of_each_interface_to_the_other_interface() {
        let place = CommandValues {
            ends: ["dut0", "dut1"].map(str::to_owned),
            cpu: 1,
            folder: "/scratch".into(),
        };
        let line = text(&(WITH_RULES.steps)(&place)[0]);
        for part in [
            "interface: dut0, copy-iface: dut1, copy-mode: ips, cluster-id: 90",
            "interface: dut1, copy-iface: dut0, copy-mode: ips, cluster-id: 91",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn the_suricata_version_is_parsed_from_its_output() {
        let said = "This is Suricata version 8.0.6 RELEASE\n";
        assert_eq!(version(said), Some("8.0.6"));
        assert_eq!(version("suricata: command not found"), None);
    }
}
