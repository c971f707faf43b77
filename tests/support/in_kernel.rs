//! `taut forward`, in the kernel or in user space, between two veth interfaces whose peers the test opens.

use super::between::send;
use super::program::Program;
use std::time::{Duration, Instant};
use taut_host::Testbed;
use taut_port::{Batch, Port, PortSpec, Resources};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the number of packets that the kernel dropped because a core's backlog was full. All namespaces share the
/// backlog: flooding a link in one namespace causes losses in others.
pub fn backlog_drops() -> u64 {
    let lines = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let dropped = lines
        .lines()
        .filter_map(|line| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok());
    dropped.sum()
}

/// The running program, and ports on the peers of its interfaces.
pub struct InKernel {
    pub program: Program,
    ports: Vec<Box<dyn Port>>,
    resources: Resources,
    pub testbed: Testbed,
    _folder: TempDir,
}

impl InKernel {
    /// Starts the program with functions in the syntax of a chain file, which is stored in `folder`. Its XDP programs
    /// are native if the peer interfaces accept redirected frames, otherwise generic. The program accepts other
    /// functions on its standard input.
    pub fn start(redirects: bool, functions: &str, folder: TempDir) -> Self {
        let head = "place = \"kernel\"\nports = [\"af_xdp:dut0\", \"af_xdp:dut1\"]\n";
        Self::start_as(head, redirects, functions, folder)
    }

    /// Starts the program like [`InKernel::start`], with `head` as the first lines of the chain file, for example to
    /// run the functions in user space.
    pub fn start_as(head: &str, redirects: bool, functions: &str, folder: TempDir) -> Self {
        let testbed = Testbed::builder().redirects(redirects).build().unwrap();
        let path = folder.path().join("chain.toml");
        std::fs::write(&path, format!("{head}{functions}")).unwrap();
        let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
        command
            .args(["forward", "--json", "--quiet", "--control"])
            .arg(path);
        let mut program = Program::start(&mut command);
        program.wait_until("both links up", |stdout, _| {
            stdout.matches("\"down\":null").count() >= 2
        });
        let inside = testbed.enter_generator().unwrap();
        let specs = ["af_packet:gen0", "af_packet:gen1"].map(|s| PortSpec::parse(s).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let ports = specs.iter().map(|s| s.open(&mut resources).unwrap());
        let ports = ports.collect();
        drop(inside);
        Self {
            program,
            ports,
            resources,
            testbed,
            _folder: folder,
        }
    }

    /// Sends frames into a port, and receives the expected number of frames from each port.
    pub fn pass(
        &mut self,
        frames: &[Vec<u8>],
        from: usize,
        wanted: [usize; 2],
    ) -> [Vec<Vec<u8>>; 2] {
        send(&mut *self.ports[from], &self.resources.pool(), frames);
        let mut out = [Vec::new(), Vec::new()];
        let deadline = Instant::now() + PATIENCE;
        while (out[0].len() < wanted[0] || out[1].len() < wanted[1]) && Instant::now() < deadline {
            for (port, out) in self.ports.iter_mut().zip(&mut out) {
                let mut batch = Batch::new();
                port.rx(&mut batch);
                out.extend(batch.packets().iter().map(|p| p.bytes().to_vec()));
            }
        }
        out
    }
}
