//! The arguments of `taut forward`.

use crate::terminal::{print, quantity};
use std::path::PathBuf;
use taut_engine::{Flush, Wait};
use taut_port::Link;

#[derive(Clone, clap::Args)]
#[command(after_help = "Examples:
  taut forward chain.toml
  taut forward --port memif:/tmp/west.sock,role=client --port memif:/tmp/east.sock,role=client --core 1
  taut forward --port null:source=32 --port null: --function 'burn(cycles=100)' --seconds 1
  taut forward --port af_xdp:eth1 --port af_xdp:eth2 --flush 'idle(32)' --seconds 10 --json
  taut forward --port pcap:in.pcap --port pcap:out.pcap,role=write --function mac-swap
  taut forward --in-kernel --port af_xdp:eth1 --port af_xdp:eth2

The second example is the other side of the first one of `taut generate --help`, in any order.
Packets that enter the first port leave through the second and the other way round; a single port
gets its packets back. Counters are printed once a second; Ctrl-C ends with a summary, and so does the
end of the files that are read.")]
pub struct Arguments {
    /// Chain files (TOML), one worker each, joined by `pair` ports; not with --function
    #[arg(conflicts_with = "function")]
    pub(crate) chain: Vec<PathBuf>,
    /// Port, such as memif:/run/a.sock or af_packet:eth0 (see `taut ports`): an even number of ports, or a single one
    /// that packets also leave through (default: those of the chain file)
    #[arg(long, value_name = "SPEC")]
    pub(super) port: Vec<String>,
    /// Function that every packet passes, with its settings: forward, mac-swap, burn(cycles=N); may be repeated
    /// (default: none)
    #[arg(long, value_name = "NAME(KEY=VALUE...)")]
    pub(super) function: Vec<String>,
    /// Forward by XDP programs in the kernel; not with --flush, --wait, --burst, --core, --workers, --metrics or
    /// --interruptions
    #[arg(long)]
    pub(super) in_kernel: bool,
    /// When buffered packets are sent: full(N, TIME), each, every(TIME), idle(N) (default: idle(32))
    #[arg(long)]
    pub(super) flush: Option<Flush>,
    /// Waiting policy, while no packets arrive: poll, yield, sleep(TIME), interrupt (default: poll)
    #[arg(long, value_name = "POLICY")]
    pub(super) wait: Option<Wait>,
    /// Maximum number of packets taken from a port at a time, 1 to 256 (default: 32)
    #[arg(long, value_name = "N")]
    pub(super) burst: Option<usize>,
    /// CPU to run on (default: the scheduler's choice)
    #[arg(long, value_name = "CPU")]
    pub(super) core: Option<usize>,
    /// Workers that share the ports, each on a CPU of its own, 1 to 64; not in the kernel (default: 1, or as many as
    /// --cores)
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<usize>,
    /// CPUs of the workers, such as 2,3; not with --core (default: those that disturb each other least)
    #[arg(
        long,
        value_name = "CPU,...",
        value_delimiter = ',',
        conflicts_with = "core"
    )]
    pub(super) cores: Vec<usize>,
    /// Stop after this many seconds (default: at Ctrl-C, or when all input files are read)
    #[arg(long, value_parser = quantity::seconds)]
    pub(crate) seconds: Option<f64>,
    /// Print JSON, one object per line: at the start, each second, at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve the counters as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; port 0 takes a free port
    /// and prints it
    #[arg(long, value_name = "ADDRESS", conflicts_with = "in_kernel")]
    pub(super) metrics: Option<String>,
    /// Write the worker's latest 65,536 interruptions to this file, for `taut generate --device-interruptions`; one
    /// worker, not in the kernel
    #[arg(long, value_name = "FILE", conflicts_with = "in_kernel")]
    pub(super) interruptions: Option<PathBuf>,
    /// Print no counters until the summary at the end
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Stop when standard input closes: for programs that start taut and must not leave it behind
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// Replace the functions as requested by lines on standard input: {"functions": [{"name": "xor", "key": 7}]}, with
    /// "worker": NUMBER for one of several workers; each line gets a reply line. With --until-stdin-closes, a worker at
    /// the end of its files reports that, and keeps its ports open until standard input closes
    #[arg(long, hide = true)]
    pub(crate) control: bool,
}

impl Arguments {
    /// Reports whether an option is set that applies to one chain only, and not to several chain files.
    pub(super) fn of_one_worker(&self) -> bool {
        !self.port.is_empty()
            || self.in_kernel
            || self.flush.is_some()
            || self.wait.is_some()
            || self.burst.is_some()
            || self.core.is_some()
            || self.workers.is_some()
            || !self.cores.is_empty()
            || self.metrics.is_some()
            || self.interruptions.is_some()
    }

    /// Reports that the link of a port went up or down, as text or as JSON.
    pub(crate) fn tell_link(&self, port: &str, link: &Link) {
        // A supervisor shows what it reads from standard error as the reason why the worker died.
        if !self.control {
            print::link(port, link);
        }
        if self.json || self.control {
            print::link_report(port, link);
        }
    }
}
