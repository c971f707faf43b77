//! A framework that is set up for a series of trials. The transport and the generator remain set up, and the forwarder
//! is restarted for each [`Work`].

use super::{Framework, Program, Transport};
use crate::benchmark::{Failed, Rig};
use crate::device::scratch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_engine::{Chain, Counters, CountersView, Flush, Stage, Worker};
use taut_functions::FUNCTIONS;
use taut_host::testbed::{DEVICE_INTERFACES, GENERATOR_INTERFACES};
use taut_host::testpmd::{self, Memory, Testpmd};
use taut_host::{DeviceProcess, Steering, Testbed};
use taut_port::{BATCH_CAPACITY, PortSpec, Resources};
use taut_sys::{Clock, Event, EventCounters, EventCounts};
use taut_traffic::{Flood, Flow, Instrument, Stream, Summaries, Tally, Trial as Rated};
use taut_wire::UdpFlow;

/// Timeout for the start of a forwarder. It is long because a forwarder whose packets walk through a list of gigabytes
/// first creates the list.
const START_PATIENCE: Duration = Duration::from_secs(90);
/// Timeout until the links of a started forwarder are up.
const LINK_PATIENCE: Duration = Duration::from_secs(10);
/// Duration of the traffic before each count, which brings caches and page tables into their steady state.
const WARM_UP: Duration = Duration::from_millis(15);

/// The work of the forwarder for every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Number of cycles that the forwarder burns for each packet.
    pub burn_cycles: u32,
    /// Number of links that each packet follows through a linked list in memory, and the size of the list in bytes;
    /// none for no walk.
    pub walk: Option<(u32, u64)>,
    /// Number of functions that forward packets unchanged, before all other functions.
    #[serde(default, skip_serializing_if = "is_none")]
    pub forwards: u32,
    /// Maximum number of packets per receive call.
    pub burst: usize,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            burn_cycles: 0,
            walk: None,
            forwards: 0,
            burst: taut_engine::DEFAULT_BURST,
        }
    }
}

impl Work {
    /// Returns the forwarder's flush policy: packets that are received together are sent together.
    fn flush(&self) -> Flush {
        Flush::Idle {
            n: self.burst.min(BATCH_CAPACITY),
        }
    }

    fn functions(&self) -> Vec<String> {
        let mut functions = vec!["forward".to_string(); self.forwards as usize];
        if self.burn_cycles > 0 {
            functions.push(format!("burn(cycles={})", self.burn_cycles));
        }
        if let Some((steps, bytes)) = self.walk {
            functions.push(format!("walk(steps={steps}, bytes={bytes})"));
        }
        functions
    }
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// Hardware events per packet in the thread that handles the packets.
pub type Events = BTreeMap<Event, f64>;

/// The statistics that the forwarder itself reports when it ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Cycles of loop iterations with packets, divided by the number of sent packets; none if the forwarder does not
    /// report them.
    pub busy_cycles: Option<f64>,
    /// Packets per received burst; none if the forwarder does not report them.
    pub average_batch: Option<f64>,
    /// Sent packets per second: over the complete run time of `taut forward`, but over the busy time of testpmd; none
    /// if unknown. Without a generator, this rate is the throughput.
    pub pps: Option<f64>,
}

/// A framework that is set up for trials. The fields are dropped in their order, so ports are dropped before the
/// namespaces that contain them.
pub struct Session<'a> {
    rig: Rig<'a>,
    framework: &'a Framework,
    frame_size_bytes: usize,
    instrument: Option<Instrument>,
    ends: [String; 2],
    _inside: Option<taut_host::net::NamespaceGuard>,
    testbed: Option<Testbed>,
    scratch: tempfile::TempDir,
}

impl<'a> Session<'a> {
    /// Sets up transport and generator on the calling thread. The thread is pinned to the generator's core and, for
    /// veth, stays in the generator's namespace for the lifetime of the session. The frame length includes the check
    /// sequence.
    ///
    /// # Errors
    /// Returns an error if the machine lacks what the transport needs.
    pub fn open(
        rig: Rig<'a>,
        framework: &'a Framework,
        frame_size_bytes: usize,
    ) -> Result<Self, Failed> {
        let scratch = scratch::folder()?;
        taut_host::pin_current_thread(rig.cores.generator)?;
        let in_scratch =
            ["west.sock", "east.sock"].map(|s| scratch.path().join(s).display().to_string());
        let mut session = Self {
            rig,
            framework,
            frame_size_bytes,
            instrument: None,
            ends: in_scratch.clone(),
            _inside: None,
            testbed: None,
            scratch,
        };
        match framework.transport {
            Transport::Nothing => {}
            Transport::Memif => {
                session.open_instrument(in_scratch.map(|s| format!("memif:{s}")))?
            }
            Transport::Pair => {
                session.ends = ["west", "east"].map(|n| format!("{n}-{}", std::process::id()));
            }
            Transport::Veth => {
                // Frames cannot be steered to another core here: XDP sees them before the steering, on the sender's
                // core.
                let steering = if framework.ports[0].contains("af_xdp") {
                    Steering::Sender
                } else {
                    Steering::PacketSteering {
                        cpu: rig.cores.device,
                    }
                };
                let testbed = Testbed::builder().steering(steering).build()?;
                session._inside = Some(testbed.enter_generator()?);
                session.testbed = Some(testbed);
                session.ends = DEVICE_INTERFACES.map(str::to_string);
                session.open_instrument(GENERATOR_INTERFACES.map(|i| format!("af_packet:{i}")))?;
            }
        }
        Ok(session)
    }

    fn open_instrument(&mut self, specs: [String; 2]) -> Result<(), Failed> {
        let specs = [PortSpec::parse(&specs[0])?, PortSpec::parse(&specs[1])?];
        let stream = Stream::new(&UdpFlow::default(), self.frame_size_bytes)
            .map_err(|e| Failed::Broken(e.to_string()))?;
        self.instrument = Some(Instrument::open(&specs, stream, self.rig.clock)?);
        Ok(())
    }

    /// Returns the packet I/O framework that this session measures.
    pub fn framework(&self) -> &'a Framework {
        self.framework
    }

    /// Returns a callback that notes an attempt at a trial in which no packet came through; its argument is the number
    /// of the attempt. The next attempt takes twice as long.
    pub fn repeats(&self) -> impl Fn(u32) + use<'a> {
        let (repeats, framework) = (self.rig.repeats, self.framework);
        move |attempt| {
            let why = format!("attempt {attempt}: no packet was forwarded");
            repeats.note(framework.label.clone(), why);
        }
    }

    /// Starts the forwarder with `work`, waits for its links, calls `measure`, and stops the forwarder. Returns the
    /// result of `measure` and the forwarder's own statistics.
    ///
    /// # Errors
    /// Returns an error if the forwarder does not start, forwards no packet or exits early, or if `stop` is set.
    pub fn with_forwarder<T>(
        &mut self,
        work: &Work,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut Generator<'_>) -> T,
    ) -> Result<(T, Own), Failed> {
        if self.framework.transport == Transport::Pair {
            // A pair of ports cannot be reused after one of its ports was closed.
            self.instrument = None;
            self.open_instrument(self.ends.clone().map(|end| format!("pair:{end}")))?;
        }
        let mut forwarder = Forwarder::start(self, work)?;
        let mut instrument = self.instrument.take();
        let measured = match &mut instrument {
            Some(instrument) => instrument
                .wait_for_links(LINK_PATIENCE, stop)
                .map_err(Failed::from)
                .and_then(|()| wait_for_packets(instrument, stop)),
            None => Ok(()),
        }
        .map(|()| {
            measure(&mut Generator {
                instrument: instrument.as_mut(),
                counters: forwarder.event_counters(),
                account: forwarder.account(),
                clock: self.rig.clock,
                stop,
            })
        });
        self.instrument = instrument;
        let alive = forwarder.check(stop);
        // The forwarder is stopped in every case, because a thread would never end by itself.
        let own = forwarder.stop();
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        // The error of a forwarder that died is more useful than the loss of its packets.
        alive?;
        Ok((measured?, own?))
    }
}

/// Sends a few packets until some come through, because a link may be up before the program behind it polls.
fn wait_for_packets(instrument: &mut Instrument, stop: &AtomicBool) -> Result<(), Failed> {
    let little = Flood {
        rate_pps: Some(20e3),
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(2),
        share: None,
    };
    let begun = Instant::now();
    while instrument.flood(little, stop).received == 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        if begun.elapsed() > LINK_PATIENCE {
            return Err(Failed::Broken(format!(
                "links are up, but no packet was forwarded in {} s",
                LINK_PATIENCE.as_secs()
            )));
        }
    }
    Ok(())
}

/// The load generator while a forwarder runs.
pub struct Generator<'a> {
    instrument: Option<&'a mut Instrument>,
    /// Hardware counters of the thread that handles the packets, if the machine has any.
    counters: Option<EventCounters>,
    /// Counters of the forwarder if it is a worker in this process; none for another program.
    account: Option<Arc<Counters>>,
    clock: Clock,
    stop: &'a AtomicBool,
}

impl Generator<'_> {
    /// Returns the counters of a forwarder that is a worker in this process, which are updated every 0.1 s; none for
    /// other forwarders.
    pub fn account(&self) -> Option<CountersView> {
        self.account.as_ref().map(|counters| counters.read())
    }

    /// Sends for `duration` at `rate_pps`, or at the highest rate that the transport accepts; returns the counts. If
    /// the framework has no generator, the method only waits, because the forwarder counts its own packets.
    pub fn flood(&mut self, rate_pps: Option<f64>, duration: Duration) -> Flow {
        match &mut self.instrument {
            Some(instrument) => instrument.flood(
                Flood {
                    rate_pps,
                    warm_up: WARM_UP,
                    duration,
                    share: None,
                },
                self.stop,
            ),
            None => {
                let end = Instant::now() + duration + WARM_UP;
                while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Flow::default()
            }
        }
    }

    /// Sends as [`Generator::flood`] does, and also returns the forwarder's hardware events during that time.
    pub fn flood_counted(
        &mut self,
        rate_pps: Option<f64>,
        duration: Duration,
    ) -> (Flow, Option<EventCounts>) {
        let read = |counters: &Option<EventCounters>| counters.as_ref()?.read().ok();
        let before = read(&self.counters);
        let flow = self.flood(rate_pps, duration);
        let counted = read(&self.counters).zip(before);
        (flow, counted.map(|(after, before)| after.since(&before)))
    }

    /// Sends at `rate_pps` and measures the latency of every packet; none if the framework has no generator.
    pub fn latency(&mut self, rate_pps: f64, duration: Duration) -> Option<(Tally, Summaries)> {
        let instrument = self.instrument.as_mut()?;
        let mut record = Summaries::new(&self.clock);
        let trial = |duration| Rated { rate_pps, duration };
        instrument.run(trial(WARM_UP), &mut Summaries::new(&self.clock), self.stop);
        let tally = instrument.run(trial(duration), &mut record, self.stop);
        Some((tally, record))
    }
}

/// A running forwarder.
enum Forwarder {
    Process {
        process: DeviceProcess,
        output: std::path::PathBuf,
        program: Program,
        hz: f64,
    },
    Thread {
        stop: Arc<AtomicBool>,
        thread: std::thread::JoinHandle<Result<CountersView, Failed>>,
        /// Packet counters of the worker; none if it did not start.
        account: Option<Arc<Counters>>,
        hz: f64,
    },
}

impl Forwarder {
    fn start(session: &Session<'_>, work: &Work) -> Result<Self, Failed> {
        let Session { rig, framework, .. } = session;
        let ports = framework.ports_on(
            session.ends.each_ref().map(String::as_str),
            work.burst,
            session.frame_size_bytes,
        );
        if framework.program == Program::TautThread {
            return Self::start_thread(rig, &ports, work);
        }
        let program = match framework.program {
            Program::Testpmd => std::path::Path::new(testpmd::PROGRAM),
            _ => rig.program,
        };
        let mut command = match &session.testbed {
            Some(testbed) => testbed.command_in_device(program),
            None => Command::new(program),
        };
        match framework.program {
            Program::Testpmd => {
                testpmd_arguments(&mut command, &ports, work, rig.cores.device);
                // testpmd does not delete its run-time files.
                command.env("RUNTIME_DIRECTORY", session.scratch.path());
            }
            _ => taut_arguments(&mut command, &ports, work, rig.cores.device),
        }
        let folder = session.scratch.path();
        let mut process = DeviceProcess::start("device", command, rig.cores.device, folder)?;
        let ready = |line: &str| line.contains("\"started\"") || line.contains("packet forwarding");
        process.wait_for_line(ready, START_PATIENCE)?;
        Ok(Self::Process {
            process,
            output: folder.join("device.stdout"),
            program: framework.program,
            hz: rig.clock.hz,
        })
    }

    /// Starts a worker with the functions of `work` on a thread of this process.
    fn start_thread(rig: &Rig<'_>, ports: &[String; 2], work: &Work) -> Result<Self, Failed> {
        let stop = Arc::new(AtomicBool::new(false));
        let functions = work
            .functions()
            .into_iter()
            .map(|f| Stage::parse(&f, FUNCTIONS));
        let chain = Chain {
            flush: work.flush(),
            burst: work.burst,
            core: Some(rig.cores.device),
            ..Chain::new(
                vec![PortSpec::parse(&ports[0])?, PortSpec::parse(&ports[1])?],
                functions.collect::<Result<_, _>>()?,
            )
        };
        let (clock, core, until) = (rig.clock, rig.cores.device, Arc::clone(&stop));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let worker = std::thread::Builder::new().name("worker".to_string());
        let thread = worker.spawn(move || {
            taut_host::pin_current_thread(core)?;
            let mut resources = Resources::for_ports(&chain.ports)?;
            let ports = chain.ports.iter().map(|p| p.open(&mut resources));
            let ports = ports.collect::<Result<_, _>>()?;
            let mut worker = Worker::new(ports, chain.build_functions()?, chain.flush, &clock);
            worker.set_burst(chain.burst);
            let counters = worker.counters();
            let _ = ready.send(Arc::clone(&counters));
            worker.run(&until);
            Ok(counters.read())
        })?;
        // A thread that failed has closed the channel, and returns the reason when it is joined.
        let account = is_ready.recv().ok();
        Ok(Self::Thread {
            stop,
            thread,
            account,
            hz: rig.clock.hz,
        })
    }

    /// Returns the hardware counters of the thread that handles the packets; none if the machine has none.
    fn event_counters(&self) -> Option<EventCounters> {
        let process = match self {
            Self::Process { process, .. } => process.id(),
            Self::Thread { .. } => std::process::id(),
        };
        // In the processes of both taut and DPDK, the thread that handles packets is called a worker.
        let thread = taut_host::process::thread_named(process, "worker")?;
        EventCounters::open(Some(thread), &Event::HARDWARE).ok()
    }

    fn account(&self) -> Option<Arc<Counters>> {
        match self {
            Self::Process { .. } => None,
            Self::Thread { account, .. } => account.clone(),
        }
    }

    fn check(&mut self, stop: &AtomicBool) -> Result<(), Failed> {
        match self {
            Self::Process { process, .. } if !stop.load(Ordering::Relaxed) => Ok(process.check()?),
            _ => Ok(()),
        }
    }

    fn stop(self) -> Result<Own, Failed> {
        match self {
            Self::Process {
                process,
                output,
                program,
                hz,
            } => {
                process.stop()?;
                let text = std::fs::read_to_string(&output)?;
                let said = match program {
                    Program::Testpmd => testpmd_says(&text, hz),
                    _ => taut_says(&text),
                };
                said.ok_or_else(|| {
                    Failed::Broken("it exited without printing its counters".to_string())
                })
            }
            Self::Thread {
                stop, thread, hz, ..
            } => {
                stop.store(true, Ordering::Relaxed);
                let counters = thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok(own(&counters, hz))
            }
        }
    }
}

fn own(c: &CountersView, hz: f64) -> Own {
    let packets = c.tx_packets as f64;
    Own {
        busy_cycles: (packets > 0.0).then(|| c.busy_ticks as f64 / packets),
        average_batch: (c.batches > 0).then(|| c.average_batch()),
        pps: (c.total_ticks > 0).then(|| packets * hz / c.total_ticks as f64),
    }
}

fn taut_arguments(command: &mut Command, ports: &[String; 2], work: &Work, core: usize) {
    command.arg("forward");
    for port in ports {
        command.args(["--port", port]);
    }
    for function in work.functions() {
        command.args(["--function", &function]);
    }
    command.args(["--burst", &work.burst.to_string()]);
    command.args(["--flush", &work.flush().to_string()]);
    command.args(["--core", &core.to_string()]);
    command.args(["--json", "--quiet", "--until-stdin-closes"]);
}

/// Parses the summary that `taut forward --json` prints; none if the output contains no complete summary.
fn taut_says(output: &str) -> Option<Own> {
    let line = output
        .lines()
        .rev()
        .find(|line| line.contains("\"summary\""))?;
    let summary: serde_json::Value = serde_json::from_str(line).ok()?;
    let counters = &summary["counters"];
    let count = |name: &str| counters[name].as_f64();
    let packets = count("tx_packets")?;
    Some(Own {
        busy_cycles: (packets > 0.0)
            .then(|| summary["busy_ticks_per_packet"].as_f64())
            .flatten(),
        average_batch: summary["average_batch"].as_f64(),
        pps: Some(packets * summary["tsc_hz"].as_f64()? / count("total_ticks")?),
    })
}

fn testpmd_arguments(command: &mut Command, devices: &[String; 2], work: &Work, core: usize) {
    let burst = format!("--burst={}", work.burst);
    let testpmd = Testpmd {
        cpu: core,
        memory: Memory::Shared,
        devices,
        mode: "io",
        buffers: 8192,
        more: &["--record-core-cycles", &burst],
    };
    command.args(&testpmd.words()[1..]);
}

/// Parses the last statistics that `dpdk-testpmd` prints; `hz` is the frequency of its cycles. The program takes too
/// long to start for a measurement from outside, so the throughput is computed from the program's busy time. If its
/// devices create the frames, the program is busy all the time.
fn testpmd_says(output: &str, hz: f64) -> Option<Own> {
    let all = output
        .rsplit("Accumulated forward statistics for all ports")
        .next()?;
    let after = |name: &str| {
        let digits = all.split(name).nth(1)?.trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.');
        digits[..end.unwrap_or(digits.len())].parse::<f64>().ok()
    };
    let busy_cycles = after("CPU cycles/packet=").filter(|cycles| *cycles > 0.0);
    after("TX-packets:").map(|_| Own {
        busy_cycles,
        average_batch: None,
        pps: busy_cycles.map(|cycles| hz / cycles),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cycles_and_batch_sizes_are_read_from_the_taut_summary() {
        let text = "{\"event\":\"started\"}\n{\"event\":\"summary\",\"average_batch\":31.5,\"busy_ticks_per_packet\":80.5,\
            \"counters\":{\"tx_packets\":1000,\"total_ticks\":260000},\"tsc_hz\":2.6e9}\n";
        let own = taut_says(text).unwrap();
        assert_eq!(
            (own.busy_cycles, own.average_batch),
            (Some(80.5), Some(31.5))
        );
        assert!((own.pps.unwrap() - 1e7).abs() < 1.0);
        assert_eq!(taut_says("{\"event\":\"started\"}\n"), None);
    }

    #[test]
    fn cycles_and_rates_are_read_from_the_last_testpmd_statistics() {
        let text = "RX-packets: 1 TX-packets: 1\n\
            +++ Accumulated forward statistics for all ports+++\n\
            RX-packets: 3000           RX-dropped: 0\n  TX-packets: 2000           TX-dropped: 0\n\
            CPU cycles/packet=15.05 (total cycles=31 / total io packets=2) at 2600 MHz Clock\n";
        let own = testpmd_says(text, 2.6e9).unwrap();
        assert_eq!(
            (own.busy_cycles, own.pps),
            (Some(15.05), Some(2.6e9 / 15.05))
        );
        assert_eq!(testpmd_says("EAL: no\n", 2.6e9), None);
    }

    #[test]
    fn the_functions_for_synthetic_work_have_valid_settings() {
        let work = Work {
            burn_cycles: 50,
            walk: Some((10, 4096)),
            forwards: 2,
            burst: 8,
        };
        for function in work.functions() {
            let stage = Stage::parse(&function, FUNCTIONS).unwrap();
            taut_functions::build(&stage.name, stage.settings).unwrap();
        }
        assert!(Work::default().functions().is_empty());
    }
}
