//! DPDK's own example `l2fwd`, over memif, built where Debian's package puts its source: as shipped, with a buffer of 32 packets
//! and a drain timer, and with a buffer of one packet by its own constant. (Stylianopoulos et al., DEBS 2020, section 3.1.)

use super::l3fwd;
use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::permissions::Missing;
use crate::testpmd::Memory;
use std::path::Path;

/// The source of the example, of Debian's package `dpdk-doc`.
const SOURCE: &str = "/usr/share/dpdk/examples/l2fwd/main.c";

pub(super) const BUFFERED: Baseline = Baseline {
    id: "memif-l2fwd",
    label: "l2fwd",
    io: "l2fwd",
    note: "DPDK's example l2fwd as shipped: a buffer of 32 packets that is sent when it is full, or after 100 us; MAC addresses untouched; server on both links: it copies each frame into its own memory and out again",
    reach: Reach::Memif { tx_rings: 1 },
    frames: Frames::Through,
    probe,
    steps: |place| steps(place, ""),
};

pub(super) const UNBUFFERED: Baseline = Baseline {
    id: "memif-l2fwd-unbuffered",
    label: "l2fwd unbuffered",
    note: "as l2fwd, with MAX_PKT_BURST 1 in its source: each packet is sent at once, and taken by itself",
    steps: |place| {
        steps(
            place,
            "s/^#define MAX_PKT_BURST 32/#define MAX_PKT_BURST 1/",
        )
    },
    ..BUFFERED
};

fn probe() -> Result<String, Missing> {
    if !Path::new(SOURCE).exists() {
        return Err(Missing {
            what: format!("no {SOURCE}"),
            how_to_get_it: "apt-get install --no-install-recommends dpdk-doc".to_owned(),
        });
    }
    l3fwd::probe()
}

fn steps(place: &CommandValues, change: &str) -> Vec<Step> {
    let [source, program] =
        ["l2fwd.c", "l2fwd"].map(|name| place.folder.join(name).display().to_string());
    // It looks for its links every tenth of a second, and forwards nothing before: the generator would send into that.
    let sooner = "s/^#define CHECK_INTERVAL 100/#define CHECK_INTERVAL 1/;s/^#define MAX_CHECK_TIME 90/#define MAX_CHECK_TIME 9000/";
    let flags = "$(pkg-config --cflags --libs libdpdk)";
    let build = format!(
        "sed '{sooner};{change}' {SOURCE} > {source} && cc -O3 -march=native -DALLOW_EXPERIMENTAL_API -o {program} {source} {flags}"
    );
    let mut line = words(&[
        "env",
        &format!("RUNTIME_DIRECTORY={}", place.folder.display()),
        "stdbuf",
        "-oL",
        &program,
        "--no-pci",
        "--no-telemetry",
        "--lcores",
        &format!("0@{}", place.cpu),
    ]);
    line.extend(Memory::Usual.words_here());
    for (number, end) in place.ends.iter().enumerate() {
        line.push(format!(
            "--vdev=net_memif{number},role=server,id=0,socket={end},socket-abstract=no"
        ));
    }
    line.extend(words(&[
        "--",
        "-p",
        "0x3",
        "-q",
        "2",
        "-T",
        "0",
        "--no-mac-updating",
    ]));
    vec![
        Step::Run(words(&["sh", "-c", &build])),
        Step::Keep {
            name: "l2fwd",
            line,
            // Then it waits for its links, which come up with the generator.
            ready: Ready::LineStart("Port 1, MAC address"),
            owner: Owner::NeedsWatcher,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn it_is_built_as_shipped_or_with_a_buffer_of_one() {
        let place = CommandValues {
            ends: ["/scratch/w", "/scratch/e"].map(str::to_owned),
            cpu: 3,
            folder: "/scratch".into(),
        };
        let lines = |baseline: &Baseline| -> Vec<String> {
            (baseline.steps)(&place).iter().map(text).collect()
        };
        let (shipped, changed) = (lines(&BUFFERED), lines(&UNBUFFERED));
        assert!(!shipped[0].contains("MAX_PKT_BURST"), "{shipped:?}");
        assert!(changed[0].contains("MAX_PKT_BURST 1/"), "{changed:?}");
        for part in [
            "--lcores 0@3",
            "--vdev=net_memif1,role=server,id=0,socket=/scratch/e,",
            "-- -p 0x3 -q 2",
        ] {
            assert!(shipped[1].contains(part), "{part}: {shipped:?}");
        }
    }
}
