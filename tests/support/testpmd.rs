//! DPDK's own forwarder and generator, `dpdk-testpmd`, with its memif driver, controlled through its prompt.

use super::program::{Finished, Program};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The memory options. testpmd's main thread runs on the generator's core, its forwarding thread on the device's core.
const MEMORY: &[&str] = &["--no-huge", "-m", "256"];

/// The options for memory that the program at the other end of a link can map, as zero copy requires.
const LENT_MEMORY: &[&str] = &["-m", "64", "--in-memory", "--single-file-segments"];

/// A running `dpdk-testpmd`, killed on drop.
pub struct Testpmd {
    program: Program,
    /// The folder of testpmd's run-time files, which testpmd does not remove itself.
    _folder: TempDir,
}

/// The packet counters of a port of testpmd, or the sums over all ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub rx: u64,
    pub tx: u64,
}

/// Reports whether testpmd is installed with its memif driver; prints a line if not.
pub fn is_here() -> bool {
    let driver = ["/usr/lib", "/usr/local/lib"]
        .iter()
        .any(|root| has_driver(Path::new(root), 3));
    if !super::is_installed("dpdk-testpmd") || !driver {
        println!(
            "skipped: needs dpdk-testpmd with net_memif (packages dpdk-dev and librte-net-memif)"
        );
        return false;
    }
    true
}

/// Reports whether `megabytes` of huge pages of 2 MB are free; prints a line if not.
pub fn has_huge_pages(megabytes: usize) -> bool {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let pages = megabytes / 2;
    let enough = free.ok().and_then(|f| f.trim().parse().ok()).unwrap_or(0) >= pages;
    if !enough {
        println!("skipped: needs {pages} free huge pages of 2 MB (./run setup)");
    }
    enough
}

fn has_driver(folder: &Path, depth: u32) -> bool {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("librte_net_memif.so")
                || (depth > 0
                    && entry.file_type().is_ok_and(|t| t.is_dir())
                    && has_driver(&entry.path(), depth - 1))
        })
}

impl Testpmd {
    /// Starts testpmd with a memif port of `role` on each socket, and waits for its prompt. A client gives up on a
    /// socket without a listener, so the peer has to be started first.
    pub fn start(role: &str, sockets: &[impl AsRef<Path>]) -> Self {
        let mut testpmd = Self::launch(MEMORY, role, "", sockets, &[]);
        testpmd.program.wait_for_stdout("testpmd> ");
        testpmd
    }

    /// Starts a memif client that forwards in `mode` from the beginning. With `zero_copy`, its frames are in its own
    /// memory.
    pub fn start_forwarding_client(
        mode: &str,
        zero_copy: bool,
        sockets: &[impl AsRef<Path>],
    ) -> Self {
        let (memory, options) = if zero_copy {
            (LENT_MEMORY, ",rsize=12,zero-copy=yes")
        } else {
            (MEMORY, ",rsize=12")
        };
        // Packets that arrived before testpmd forwards are kept.
        let arguments = [
            "--auto-start",
            "--no-flush-rx",
            &format!("--forward-mode={mode}"),
        ];
        let mut testpmd = Self::launch(memory, "client", options, sockets, &arguments);
        testpmd
            .program
            .wait_for_stdout("packet forwarding packets/burst");
        testpmd
    }

    /// Starts testpmd on the given devices (`net_vhost0,iface=PATH`), forwarding from one to the other in `mode`. The
    /// peer can map testpmd's memory, which needs huge pages ([`has_huge_pages`]).
    pub fn start_devices(mode: &str, devices: &[String]) -> Self {
        // Packets that arrived before testpmd forwards are kept.
        let arguments = [
            "--auto-start",
            "--no-flush-rx",
            &format!("--forward-mode={mode}"),
        ];
        let mut testpmd = Self::launch_devices(LENT_MEMORY, devices, &arguments);
        testpmd
            .program
            .wait_for_stdout("packet forwarding packets/burst");
        testpmd
    }

    fn launch(
        memory: &[&str],
        role: &str,
        options: &str,
        sockets: &[impl AsRef<Path>],
        arguments: &[&str],
    ) -> Self {
        let devices: Vec<_> = sockets
            .iter()
            .enumerate()
            .map(|(number, socket)| {
                format!(
                    "net_memif{number},role={role},id=0,socket={},socket-abstract=no{options}",
                    socket.as_ref().display()
                )
            })
            .collect();
        Self::launch_devices(memory, &devices, arguments)
    }

    fn launch_devices(memory: &[&str], devices: &[String], arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!(
            "taut-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = super::scratch();
        let cores = taut_host::choose_cores();
        let mut command = Command::new("stdbuf");
        command
            // testpmd's output is line buffered, also to a file.
            .args(["-oL", "dpdk-testpmd"])
            .env("RUNTIME_DIRECTORY", folder.path())
            .args(memory)
            .args(["--no-pci", "--no-telemetry", "--lcores"])
            .arg(format!("0@{},1@{}", cores.generator, cores.device))
            .arg(format!("--file-prefix={prefix}"));
        for device in devices {
            command.arg(format!("--vdev={device}"));
        }
        command
            .args(["--", "-i", "--nb-cores=1", "--total-num-mbufs=16384"])
            .args(arguments);
        if devices.len() == 1 {
            // A packet leaves through the port that received it.
            command.arg("--port-topology=loop");
        }
        Self {
            program: Program::start(&mut command),
            _folder: folder,
        }
    }

    /// Sends testpmd a command.
    pub fn say(&mut self, command: &str) {
        self.program.say(command);
    }

    /// Starts forwarding in `mode` (`io`, `macswap`, `txonly`, ...), and waits until testpmd forwards.
    pub fn forward(&mut self, mode: &str) {
        self.begin(mode, "start");
    }

    /// Works like [`Testpmd::forward`], and injects 32 packets into each port, which circulate from then on.
    pub fn forward_burst(&mut self, mode: &str) {
        self.begin(mode, "start tx_first");
    }

    fn begin(&mut self, mode: &str, start: &str) {
        let begins = format!("{mode} packet forwarding packets/burst");
        let before = self.program.stdout().matches(&begins).count();
        self.say(&format!("set fwd {mode}"));
        self.say(start);
        self.program
            .wait_until(start, |out, _| out.matches(&begins).count() > before);
    }

    /// Stops forwarding; returns the numbers of packets that testpmd received and sent.
    pub fn stop(&mut self) -> Counted {
        const TITLE: &str = "Accumulated forward statistics for all ports";
        const END: &str = "\nDone.";
        let before = self.program.stdout().matches(TITLE).count();
        self.say("stop");
        let block = |out: &str| {
            let block = out.split(TITLE).nth(before + 1)?;
            block.contains(END).then(|| block.to_string())
        };
        self.program
            .wait_until("stop", |out, _| block(out).is_some());
        let block = block(&self.program.stdout()).unwrap();
        let number = |name: &str| {
            let digits = block
                .split(name)
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next());
            digits
                .and_then(|d| d.parse().ok())
                .unwrap_or_else(|| panic!("no {name} in {block}"))
        };
        Counted {
            rx: number("RX-packets:"),
            tx: number("TX-packets:"),
        }
    }

    /// Reports whether testpmd still runs.
    pub fn is_running(&mut self) -> bool {
        self.program.is_running()
    }

    /// Returns testpmd's output up to now.
    pub fn output(&self) -> String {
        self.program.stdout() + &self.program.stderr()
    }

    /// Sends testpmd SIGKILL.
    pub fn kill(self) -> Finished {
        self.program.kill()
    }
}
