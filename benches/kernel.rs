//! Measures the saturation throughput over veth in one direction, with 64-byte frames and the same generator for all
//! programs, interleaved. Compares `taut forward --in-kernel` with `xdp-bench redirect`, and taut's AF_XDP and
//! AF_PACKET ports with testpmd (io) on DPDK's drivers for the same sockets. Needs root. `cargo bench --bench kernel`
//!
//! For programs in the kernel, the processor time per packet is measured as well, because other programs disturb this
//! time less than the throughput. It is the time of the sending thread (generator and forwarder), or of the kernel's
//! threads.
//!
//! The variable `XDP_BENCH` gives the path of another xdp-bench than the one on the search path. The xdp-bench of
//! xdp-tools 1.5 and older does not load on Linux 6.17 and later, which has fewer trace points.
#![allow(clippy::unwrap_used)]

use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use std::time::Duration;
use taut_host::testbed::{DEVICE_INTERFACES, GENERATOR_INTERFACES};
use taut_host::testpmd::{Memory, Testpmd};
use taut_host::{CorePlan, DeviceProcess, Steering, Testbed};
use taut_measure::ratio_interval;
use taut_port::{Batch, PortSpec, Resources};
use taut_sys::{Clock, ticks};

const REPETITIONS: usize = 9;
const DURATION: Duration = Duration::from_millis(500);

/// The place where the kernel's forwarding code runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// The generator's core runs all of the forwarding code.
    Sender,
    /// Receive packet steering moves the forwarding code to the device's core.
    Steered,
    /// A kernel thread on the device's core runs the forwarding code.
    Thread,
}

#[derive(Clone, Copy)]
enum Program {
    TautInKernel { function: &'static str },
    XdpBench,
    Taut { port: &'static str },
    Testpmd { device: &'static str },
}

struct Forwarder {
    name: &'static str,
    program: Program,
    place: Where,
}

/// The pairs to compare, as indices into [`FORWARDERS`]: a forwarder of taut, then the other project's.
const RATIOS: [(usize, usize); 7] = [(0, 2), (1, 2), (3, 5), (4, 5), (6, 7), (8, 9), (10, 9)];

const FORWARDERS: [Forwarder; 11] = [
    Forwarder {
        name: "taut in kernel, mac-swap, sender's core",
        program: Program::TautInKernel {
            function: "mac-swap",
        },
        place: Where::Sender,
    },
    Forwarder {
        name: "taut in kernel, forward, sender's core",
        program: Program::TautInKernel {
            function: "forward",
        },
        place: Where::Sender,
    },
    Forwarder {
        name: "xdp-bench redirect, sender's core",
        program: Program::XdpBench,
        place: Where::Sender,
    },
    Forwarder {
        name: "taut in kernel, mac-swap, own core",
        program: Program::TautInKernel {
            function: "mac-swap",
        },
        place: Where::Thread,
    },
    Forwarder {
        name: "taut in kernel, forward, own core",
        program: Program::TautInKernel {
            function: "forward",
        },
        place: Where::Thread,
    },
    Forwarder {
        name: "xdp-bench redirect, own core",
        program: Program::XdpBench,
        place: Where::Thread,
    },
    Forwarder {
        name: "taut af_xdp",
        program: Program::Taut { port: "af_xdp" },
        place: Where::Sender,
    },
    Forwarder {
        name: "testpmd net_af_xdp",
        program: Program::Testpmd {
            device: "net_af_xdp",
        },
        place: Where::Sender,
    },
    Forwarder {
        name: "taut af_packet, steered",
        program: Program::Taut { port: "af_packet" },
        place: Where::Steered,
    },
    Forwarder {
        name: "testpmd net_af_packet, steered",
        program: Program::Testpmd {
            device: "net_af_packet",
        },
        place: Where::Steered,
    },
    Forwarder {
        name: "taut af_packet each, steered",
        program: Program::Taut {
            port: "af_packet each",
        },
        place: Where::Steered,
    },
];

impl Forwarder {
    fn command(&self, testbed: &Testbed, core: usize) -> Command {
        let taut = || {
            let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
            command.args(["forward", "--quiet", "--until-stdin-closes"]);
            command
        };
        match self.program {
            Program::TautInKernel { function } => {
                let mut command = taut();
                command.args(["--in-kernel", "--function", function]);
                for interface in DEVICE_INTERFACES {
                    command.args(["--port", &format!("af_xdp:{interface}")]);
                }
                command
            }
            Program::XdpBench => {
                let program = std::env::var("XDP_BENCH").unwrap_or_else(|_| "xdp-bench".into());
                let mut command = testbed.command_in_device("stdbuf");
                command.args(["-oL", &program, "redirect", "--mode", "native"]);
                command.args(["--interval", "1"]);
                command.args(DEVICE_INTERFACES);
                command
            }
            Program::Taut { port } => {
                let (port, flush) = port.split_once(' ').unwrap_or((port, "idle(32)"));
                let mut command = taut();
                command.args(["--core", &core.to_string(), "--flush", flush]);
                for interface in DEVICE_INTERFACES {
                    command.args(["--port", &format!("{port}:{interface}")]);
                }
                command
            }
            Program::Testpmd { device } => {
                let mut command = testbed.command_in_device("stdbuf");
                // The ring has as many frames as taut's.
                let ring = match device {
                    "net_af_packet" => ",blocksz=4096,framesz=2048,framecnt=2048",
                    _ => "",
                };
                let [near, far] = DEVICE_INTERFACES;
                let testpmd = Testpmd {
                    cpu: core,
                    memory: Memory::Usual,
                    devices: &[
                        format!("{device}0,iface={near}{ring}"),
                        format!("{device}1,iface={far}{ring}"),
                    ],
                    mode: "io",
                    buffers: 16384,
                    more: &[],
                };
                command.arg("-oL").args(testpmd.words());
                command
            }
        }
    }

    /// Returns the text that the program prints as soon as it forwards packets.
    fn ready(&self) -> &'static str {
        match self.program {
            // xdp-bench prints this text in its first report.
            Program::XdpBench => "rx/s",
            Program::Testpmd { .. } => "packet forwarding packets/burst",
            _ => "forwarding",
        }
    }

    fn measure(&self, cores: &CorePlan, clock: &Clock) -> Result<Flood, String> {
        let cpu = cores.device;
        let testbed = Testbed::builder()
            .redirects(self.place != Where::Steered)
            .steering(match self.place {
                Where::Sender => Steering::Sender,
                Where::Steered => Steering::PacketSteering { cpu },
                Where::Thread => Steering::KernelThread { cpu },
            })
            .build()
            .map_err(|e| e.to_string())?;
        let folder = tempfile::tempdir().unwrap();
        let command = self.command(&testbed, cpu);
        let mut process = DeviceProcess::start("device", command, cpu, folder.path())
            .map_err(|e| e.to_string())?;
        let ready = self.ready();
        process
            .wait_for_line(|line| line.contains(ready), Duration::from_secs(20))
            .map_err(|e| e.to_string())?;
        let _inside = testbed.enter_generator().map_err(|e| e.to_string())?;
        let specs = GENERATOR_INTERFACES
            .map(|interface| PortSpec::parse(&format!("af_packet:{interface}")).unwrap());
        let flood = flood(&specs, clock, self.cpu_clock())?;
        process.check().map_err(|e| e.to_string())?;
        let _ = process.stop();
        Ok(flood)
    }

    /// Returns a function that reads the processor time, ns, that the program's packets have cost so far; it returns
    /// `None` if that time is unknown.
    fn cpu_clock(&self) -> fn() -> Option<f64> {
        match (self.program, self.place) {
            (Program::TautInKernel { .. } | Program::XdpBench, Where::Sender) => || {
                let time = clock_gettime(ClockId::ThreadCPUTime);
                Some(time.tv_sec as f64 * 1e9 + time.tv_nsec as f64)
            },
            (Program::TautInKernel { .. } | Program::XdpBench, Where::Thread) => kernel_threads_ns,
            _ => || None,
        }
    }
}

/// Returns the processor time, ns, of the kernel threads that receive packets of the device's interfaces.
fn kernel_threads_ns() -> Option<f64> {
    let mut sum = None;
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if name.starts_with("napi/dut") {
            let times = std::fs::read_to_string(process.path().join("schedstat")).ok()?;
            let ns: f64 = times.split(' ').next()?.parse().ok()?;
            sum = Some(sum.unwrap_or(0.0) + ns);
        }
    }
    sum
}

struct Flood {
    packets_per_second: f64,
    cpu_ns_per_packet: Option<f64>,
}

/// Sends as fast as possible from one port, and counts the packets that return at the other port. Counting starts after
/// a tenth of the time. Frames are not parsed: the generator must not be the bottleneck.
fn flood(
    specs: &[PortSpec; 2],
    clock: &Clock,
    cpu_clock: fn() -> Option<f64>,
) -> Result<Flood, String> {
    let mut resources = Resources::for_ports(specs).map_err(|e| e.to_string())?;
    let mut west = specs[0].open(&mut resources).map_err(|e| e.to_string())?;
    let mut east = specs[1].open(&mut resources).map_err(|e| e.to_string())?;
    let pool = resources.pool();
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    let mut turn = |for_time: Duration| {
        let end = ticks() + clock.to_ticks(for_time.as_nanos() as f64) as u64;
        let mut received = 0;
        while ticks() < end {
            if out.is_empty() {
                pool.fill(&mut out, 32, 60);
            }
            west.tx(&mut out);
            received += east.rx(&mut arrived);
            arrived.clear();
        }
        received as f64
    };
    turn(DURATION / 10);
    let before = cpu_clock();
    let received = turn(DURATION);
    let cpu_ns = cpu_clock().zip(before).map(|(now, then)| now - then);
    Ok(Flood {
        packets_per_second: received / DURATION.as_secs_f64(),
        cpu_ns_per_packet: cpu_ns.map(|ns| ns / received.max(1.0)),
    })
}

fn main() {
    let repetitions = std::env::var("REPETITIONS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(REPETITIONS);
    // The first argument selects the pairs with it in their names; arguments of cargo begin with a dash.
    let only = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(100));
    taut_host::pin_current_thread(cores.generator).unwrap();
    let mut floods: Vec<Vec<Option<Flood>>> = FORWARDERS.iter().map(|_| Vec::new()).collect();
    let mut seed = fastrand::Rng::with_seed(1);
    for repetition in 0..repetitions {
        let mut order: Vec<usize> = (0..FORWARDERS.len()).collect();
        seed.shuffle(&mut order);
        order.retain(|i| FORWARDERS[*i].name.contains(&only));
        for i in order {
            let measured = FORWARDERS[i].measure(&cores, &clock);
            if let (Err(e), 0) = (&measured, repetition) {
                println!("{}: {e}", FORWARDERS[i].name);
            }
            floods[i].push(measured.ok());
        }
    }
    println!("over veth, {repetitions} interleaved repetitions of {DURATION:?}");
    println!(
        "{:<42}{:>10}{:>10}{:>10}{:>12}",
        "forwarder, kpkt/s", "min", "median", "max", "CPU ns/pkt"
    );
    for (forwarder, floods) in FORWARDERS.iter().zip(&floods) {
        let sorted = |value: fn(&Flood) -> Option<f64>| {
            let mut values: Vec<f64> = floods.iter().flatten().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let rates = sorted(|f| Some(f.packets_per_second / 1e3));
        let times = sorted(|f| f.cpu_ns_per_packet);
        if let (Some(first), Some(last)) = (rates.first(), rates.last()) {
            let time = times.get(times.len() / 2);
            println!(
                "{:<42}{first:>10.0}{:>10.0}{last:>10.0}{:>12}",
                forwarder.name,
                rates[rates.len() / 2],
                time.map_or("-".to_string(), |t| format!("{t:.0}"))
            );
        } else {
            println!("{:<42} no data", forwarder.name);
        }
    }
    for (ours, theirs) in RATIOS {
        // The ratio compares both programs of one repetition; more than 1 is faster, or cheaper.
        let ratio = |value: fn(&Flood) -> Option<f64>, what: &str| {
            let (over, under): (Vec<f64>, Vec<f64>) = floods[ours]
                .iter()
                .zip(&floods[theirs])
                .filter_map(|(a, b)| Some((value(a.as_ref()?)?, value(b.as_ref()?)?)))
                .unzip();
            let Some(r) = ratio_interval(&over, &under, 0.95) else {
                return;
            };
            println!(
                "{what}, {} / {}: median {:.2} ({}; spread {:.2} to {:.2})",
                FORWARDERS[ours].name,
                FORWARDERS[theirs].name,
                r.median.point,
                r.median.words(|value| format!("{value:.2}")),
                r.min,
                r.max,
            );
        };
        ratio(|f| Some(f.packets_per_second), "rate");
        ratio(
            |f| f.cpu_ns_per_packet.map(|t| 1e9 / t),
            "rate by processor time",
        );
    }
}
