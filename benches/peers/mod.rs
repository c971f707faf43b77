//! The devices that benches compare: `taut forward` and DPDK's testpmd over memif.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use taut_host::{CorePlan, DeviceProcess};
use taut_port::{Batch, PortSpec, Resources};
use taut_sys::Clock;

/// The memif role of the device; the generator has the opposite role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// A forwarder between two memif links.
#[derive(Debug, Clone)]
pub struct Forwarder {
    pub name: &'static str,
    pub role: Role,
    pub program: Program,
}

#[derive(Debug, Clone)]
pub enum Program {
    Taut { flush: &'static str },
    Testpmd { zero_copy: bool },
}

const RING: u32 = 1024;

impl Forwarder {
    fn command(&self, sockets: [&str; 2], core: usize) -> Command {
        let role = match self.role {
            Role::Client => "client",
            Role::Server => "server",
        };
        match self.program {
            Program::Taut { flush } => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
                command.arg("forward").args([
                    "--flush",
                    flush,
                    "--core",
                    &core.to_string(),
                    "--quiet",
                    "--json",
                    "--until-stdin-closes",
                ]);
                for socket in sockets {
                    command.args(["--port", &format!("memif:{socket},role={role},ring={RING}")]);
                }
                command
            }
            Program::Testpmd { zero_copy } => {
                let mut command = Command::new("dpdk-testpmd");
                let lcores = format!("0@{core},1@{core}");
                command.args(["--no-pci", "--lcores", &lcores]);
                if zero_copy {
                    command.args(["--in-memory", "--single-file-segments", "-m", "128"]);
                } else {
                    command.args([
                        "--no-huge",
                        "-m",
                        "128",
                        "--file-prefix",
                        &format!("taut{}", std::process::id()),
                    ]);
                }
                for (i, socket) in sockets.iter().enumerate() {
                    let zero_copy = if zero_copy { ",zero-copy=yes" } else { "" };
                    command.arg(format!(
                        "--vdev=net_memif{i},role={role},id=0,socket={socket},socket-abstract=no,rsize={}{zero_copy}",
                        RING.ilog2()
                    ));
                }
                command.args([
                    "--",
                    "--forward-mode=io",
                    "--auto-start",
                    "--total-num-mbufs=8192",
                    "--nb-cores=1",
                ]);
                command
            }
        }
    }
}

/// A running forwarder, and the generator's two ports, which are connected to the forwarder.
pub struct Bench {
    pub process: DeviceProcess,
    pub specs: [PortSpec; 2],
    folder: tempfile::TempDir,
}

/// Starts `forwarder` on the device's core.
pub fn start(forwarder: &Forwarder, cores: &CorePlan) -> Result<Bench, String> {
    let folder = tempfile::Builder::new()
        .prefix("taut-bench-")
        .tempdir()
        .unwrap();
    let sockets = ["west.sock", "east.sock"].map(|s| folder.path().join(s).display().to_string());
    let other = match forwarder.role {
        Role::Client => "server",
        Role::Server => "client",
    };
    let specs = sockets
        .clone()
        .map(|s| PortSpec::parse(&format!("memif:{s},role={other},ring={RING}")).unwrap());
    let command = forwarder.command([&sockets[0], &sockets[1]], cores.device);
    let process = DeviceProcess::start(forwarder.name, command, cores.device, folder.path())
        .map_err(|e| e.to_string())?;
    Ok(Bench {
        process,
        specs,
        folder,
    })
}

impl Bench {
    /// Returns the device's standard output.
    pub fn output(self, name: &str) -> String {
        let path = self.folder.path().join(format!("{name}.stdout"));
        let _ = self.process.stop();
        std::fs::read_to_string(path).unwrap_or_default()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Sends as fast as possible from one port and counts the packets that return at the other, for `duration` after a
/// warm-up of a tenth of `duration`. Frames are not parsed: the generator must not be the bottleneck. Returns packets
/// per second.
pub fn flood(specs: &[PortSpec; 2], clock: &Clock, duration: Duration) -> Result<f64, String> {
    let mut resources = Resources::for_ports(specs).map_err(|e| e.to_string())?;
    let mut west = specs[0].open(&mut resources).map_err(|e| e.to_string())?;
    let mut east = specs[1].open(&mut resources).map_err(|e| e.to_string())?;
    let begun = Instant::now();
    while !(west.link().is_up() && east.link().is_up()) {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(format!("no link: {:?} {:?}", west.link(), east.link()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let pool = resources.pool();
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    let ticks = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
    let start = taut_sys::ticks() + ticks(duration / 10);
    let end = start + ticks(duration);
    let mut received = 0_u64;
    loop {
        let now = taut_sys::ticks();
        if out.is_empty() {
            pool.fill(&mut out, 32, 60);
        }
        west.tx(&mut out);
        let n = east.rx(&mut arrived);
        arrived.clear();
        if now >= end {
            break;
        }
        if now >= start {
            received += n as u64;
        }
    }
    Ok(received as f64 / duration.as_secs_f64())
}
