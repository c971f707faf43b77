//! Programs that record packets: `taut capture` and those of others.

pub mod timemachine;

use std::path::Path;
use std::process::Command;
use taut_host::Testbed;

/// Memory of the socket's ring, MiB, where a program can be told.
const SOCKET_MIB: u32 = 64;

/// A program that records.
pub struct Recorder {
    pub name: &'static str,
    /// What it takes, for who has not got it.
    pub needs: &'static str,
    /// Whether it is there.
    pub is_there: fn() -> bool,
    /// Has it record what arrives at an interface of the testbed's device into files in a folder.
    pub command: fn(&Testbed, &str, &Path) -> Command,
}

/// All of them, ours first.
pub const RECORDERS: [Recorder; 6] = [
    Recorder {
        name: "taut capture",
        needs: "taut",
        is_there: || true,
        command: |testbed, interface, folder| {
            let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
            // Frames of 2 KiB: a ring of as many bytes as the others'.
            let port = format!("af_packet:{interface},ring={}", SOCKET_MIB << 9);
            command.args(["capture", "--quiet", "--ring", "256M", "--port", &port]);
            // All of its threads have one core, as the others have: who writes needs it as well.
            command.args(["--wait", "sleep(50us)"]);
            command.arg("--write").arg(folder.join("all.pcapng"));
            command.arg("--control").arg(folder.join("control"));
            command
        },
    },
    Recorder {
        name: "tcpdump",
        needs: "tcpdump (package tcpdump)",
        is_there: || taut_host::is_installed("tcpdump"),
        command: |testbed, interface, folder| {
            let mut command = testbed.command_in_device("tcpdump");
            let kib = (SOCKET_MIB << 10).to_string();
            command.args(["-n", "-i", interface, "-B", &kib, "-Z", "root", "-w"]);
            command.arg(folder.join("all.pcap"));
            command
        },
    },
    Recorder {
        name: "dumpcap",
        needs: "dumpcap (package wireshark-common)",
        is_there: || taut_host::is_installed("dumpcap"),
        command: |testbed, interface, folder| {
            let mut command = testbed.command_in_device("dumpcap");
            command.args(["-q", "-i", interface, "-B", &SOCKET_MIB.to_string(), "-w"]);
            command.arg(folder.join("all.pcapng"));
            command
        },
    },
    Recorder {
        name: "netsniff-ng",
        needs: "netsniff-ng (package netsniff-ng)",
        is_there: || taut_host::is_installed("netsniff-ng"),
        command: |testbed, interface, folder| {
            let mut command = testbed.command_in_device("netsniff-ng");
            let ring = format!("{SOCKET_MIB}MiB");
            command.args(["--silent", "--in", interface, "--ring-size", &ring, "--out"]);
            command.arg(folder.join("all.pcap"));
            command
        },
    },
    Recorder {
        name: "stenotype",
        needs: "stenotype (package stenographer)",
        is_there: || taut_host::is_installed("stenotype"),
        command: |testbed, interface, folder| {
            // Places that it does not make itself.
            for place in ["PKT0", "IDX0"] {
                let _ = std::fs::create_dir_all(folder.join(place));
            }
            let mut command = testbed.command_in_device("stenotype");
            // Blocks are of 1 MiB; those of the ring and of what waits for the disk are the same.
            command.args(["--threads=1", "--blocks=256", "--uid=root", "--gid=root"]);
            command.arg(format!("--iface={interface}"));
            command.arg(format!("--dir={}", folder.display()));
            command
        },
    },
    timemachine::RECORDER,
];
