//! Programs that record packets: `taut capture` and third-party ones.

pub mod timemachine;

use std::path::Path;
use std::process::Command;
use taut_host::Testbed;

/// Memory of the socket's ring, MiB, where a program has an option for it.
const SOCKET_MIB: u32 = 64;

/// A program that records packets to files.
pub struct Recorder {
    pub name: &'static str,
    /// The requirements of the program, printed if they are missing.
    pub needs: &'static str,
    /// Reports whether the program is installed.
    pub is_there: fn() -> bool,
    /// Builds the command that records the packets arriving at an interface of the testbed's device into files in a
    /// folder.
    pub command: fn(&Testbed, &str, &Path) -> Command,
}

/// All recorders, taut's first.
pub const RECORDERS: [Recorder; 6] = [
    Recorder {
        name: "taut capture",
        needs: "taut",
        is_there: || true,
        command: |testbed, interface, folder| {
            let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
            // Frames have 2 KiB, so the ring has as many bytes as the rings of the other programs.
            let port = format!("af_packet:{interface},ring={}", SOCKET_MIB << 9);
            command.args(["capture", "--quiet", "--ring", "256M", "--port", &port]);
            // All threads of `taut capture` share one core, as those of the other programs do. The capturing thread
            // therefore sleeps, to leave the core to the writer.
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
            // stenotype does not create these folders itself.
            for place in ["PKT0", "IDX0"] {
                let _ = std::fs::create_dir_all(folder.join(place));
            }
            let mut command = testbed.command_in_device("stenotype");
            // Blocks have 1 MiB; the ring and the queue to the disk share them.
            command.args(["--threads=1", "--blocks=256", "--uid=root", "--gid=root"]);
            command.arg(format!("--iface={interface}"));
            command.arg(format!("--dir={}", folder.display()));
            command
        },
    },
    timemachine::RECORDER,
];
