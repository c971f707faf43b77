//! DPDK's own example `l2fwd`, over memif: as shipped, with a buffer of 32 packets and a drain timer, and compiled with
//! a buffer of one packet. (Stylianopoulos et al., DEBS 2020, section 3.1.)

use super::dpdk_example::{build, line, probe};
use super::step::{Owner, Ready};
use super::{Baseline, CommandValues, Frames, Reach, Step};

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

fn steps(place: &CommandValues, change: &str) -> Vec<Step> {
    let own = ["-p", "0x3", "-q", "2", "-T", "0", "--no-mac-updating"];
    vec![
        build(place, "l2fwd", change, &[]),
        Step::Keep {
            name: "l2fwd",
            line: line(place, "l2fwd", &own),
            // After this line the program waits for its links, which come up when the generator starts.
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
    fn l2fwd_is_built_with_the_default_burst_or_one_packet() {
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
