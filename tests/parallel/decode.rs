//! tshark decodes the frames that `taut generate` sends, and finds the expected layers and fields.

use crate::support::between::guess_nothing_over_udp;
use crate::support::program::run;
use crate::support::{is_installed, scratch, taut};
use std::process::Command;

/// A test case: settings, the layers that tshark has to find, and fields with their expected values.
type Case = (
    &'static [&'static str],
    &'static str,
    &'static [(&'static str, &'static str)],
);

const CASES: &[Case] = &[
    (
        &[],
        "eth:ethertype:ip:udp",
        &[
            ("ip.src", "198.18.0.1"),
            ("ip.dst", "198.19.0.1"),
            ("ip.ttl", "64"),
            ("udp.srcport", "31238"),
            ("udp.dstport", "31239"),
        ],
    ),
    (
        &["dst_ip=2001:db8::2", "src_ip=2001:db8::1", "ttl=9"],
        "eth:ethertype:ipv6:udp",
        &[("ipv6.dst", "2001:db8::2"), ("ipv6.hlim", "9")],
    ),
    (
        &["vlan=5"],
        "eth:ethertype:vlan:ethertype:ip:udp",
        &[("vlan.id", "5")],
    ),
    (
        &["protocol=tcp", "dst_port=40000"],
        "eth:ethertype:ip:tcp",
        &[("tcp.dstport", "40000"), ("tcp.flags.ack", "1")],
    ),
    (
        &["protocol=icmp"],
        "eth:ethertype:ip:icmp",
        &[("icmp.type", "8"), ("icmp.checksum.status", "1")],
    ),
    (
        &["protocol=gtpu", "teid=77", "dst_ip=10.45.0.2"],
        "eth:ethertype:ip:udp:gtp:ip:udp",
        &[
            ("gtp.teid", "0x0000004d"),
            ("ip.dst", "198.19.1.1,10.45.0.2"),
        ],
    ),
];

#[test]
fn tshark_reads_every_protocol_and_finds_every_checksum_right() {
    if !is_installed("tshark") {
        println!("skipped: needs tshark");
        return;
    }
    for (settings, layers, fields) in CASES {
        let folder = scratch();
        let capture = folder.path().join("sent.pcap");
        let port = format!("pcap:{},role=write", capture.display());
        let mut command = taut(&["generate", "--port", &port, "--rate", "1k"]);
        command.args(["--seconds", "0.05", "--warm-up", "0", "--max-loss", "1"]);
        command.args(["--size", "128"]);
        for setting in *settings {
            command.args(["--set", setting]);
        }
        // The rate does not matter: code 1 means that the generator was preempted.
        let sent = run(&mut command);
        assert!(sent.stdout.contains("sent 50 of 50 packets"), "{sent:?}");
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&capture);
        for checked in ["ip", "udp", "tcp"] {
            command.args(["-o", &format!("{checked}.check_checksum:TRUE")]);
        }
        guess_nothing_over_udp(&mut command);
        command.args(["-T", "fields", "-E", "occurrence=a"]);
        command.args(["-e", "frame.protocols", "-e", "frame.len"]);
        command.args(["-e", "_ws.malformed", "-e", "ip.checksum.status"]);
        command.args(["-e", "udp.checksum.status", "-e", "tcp.checksum.status"]);
        for (field, _) in *fields {
            command.args(["-e", field]);
        }
        let shown = run(&mut command).success();
        let lines: Vec<&str> = shown.stdout.lines().collect();
        assert!((40..=50).contains(&lines.len()), "{settings:?}: {shown:?}");
        for line in lines {
            let cells: Vec<&str> = line.split('\t').collect();
            let found = cells[0].trim_end_matches(":data");
            assert_eq!(found, *layers, "{settings:?}: {line}");
            // The length excludes the check sequence, which a capture lacks.
            assert_eq!((cells[1], cells[2]), ("124", ""), "{settings:?}: {line}");
            // The checksum statuses are 0 for bad, 1 good, 2 not checked, 3 none (the outer UDP of a tunnel).
            let statuses = cells[3..6].iter().flat_map(|cell| cell.split(','));
            let mut statuses = statuses.filter(|status| !status.is_empty());
            assert!(
                statuses.all(|status| status == "1" || status == "3"),
                "{settings:?}: {line}"
            );
            for ((field, want), cell) in fields.iter().zip(&cells[6..]) {
                assert_eq!(cell, want, "{settings:?}: {field}");
            }
        }
    }
}
