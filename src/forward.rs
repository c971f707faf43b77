//! `taut forward`: runs a data plane on one core until it is told to stop or its input files end.

use crate::exit::{self, Failure};
use crate::{forward_control, forward_in_kernel, forward_threads, print, quantity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::PipeReader;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use taut_engine::{
    Chain, Counters, CountersView, DEFAULT_BURST, End, Flush, NOT_IN_KERNEL, Place, Placement,
    Stage, Updates, Wait, Worker,
};
use taut_function::Watcher;
use taut_lab::metrics::{Endpoint, forwarder_metrics};
use taut_port::{Clock, InterruptionLog, Link, PortSpec, Resources};

#[derive(clap::Args)]
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
    /// Chain file (TOML), or several: a worker each, which `pair` ports can join; or put the chain together with the
    /// options below
    #[arg(conflicts_with = "function")]
    pub(crate) chain: Vec<PathBuf>,
    /// A port, such as memif:/run/a.sock or af_packet:eth0 (`taut ports` lists them); give two, or one; instead of those
    /// of the chain file
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// A function that every packet passes: forward, mac-swap, burn(cycles=N), walk(steps=K, bytes=SIZE)
    #[arg(long, value_name = "NAME(KEY=VALUE...)")]
    function: Vec<String>,
    /// Forward inside the kernel, by XDP programs on the interfaces; no worker, no flush, no core
    #[arg(long)]
    in_kernel: bool,
    /// When held packets are sent: full(N, TIME), each, every(TIME), idle(N) (default: idle(32))
    #[arg(long)]
    flush: Option<Flush>,
    /// What is done while no packets come: poll, yield, sleep(TIME), interrupt (default: poll)
    #[arg(long, value_name = "POLICY")]
    wait: Option<Wait>,
    /// Packets taken from a port at a time at most, 1 to 256 (default: 32)
    #[arg(long, value_name = "N")]
    burst: Option<usize>,
    /// Core to run on
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Stop after this many seconds
    #[arg(long, value_parser = quantity::seconds)]
    pub(crate) seconds: Option<f64>,
    /// Print JSON: one object at the start, one a second, one at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Give out the counters as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS", conflicts_with = "in_kernel")]
    metrics: Option<String>,
    /// Note when the core was taken away in a file that `taut generate --device-interruptions` reads (64 Ki latest)
    #[arg(long, value_name = "FILE", conflicts_with = "in_kernel")]
    interruptions: Option<PathBuf>,
    /// No counters until the summary at the end
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Stop when standard input closes: for programs that start taut and must not leave it behind
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// Replace the functions as lines on standard input say: {"functions": [{"name": "xor", "key": 7}]}, of several
    /// workers with "worker": NUMBER; each is answered by a line. With --until-stdin-closes, a worker that has come to the
    /// end of its files says so, and keeps its ports open until then
    #[arg(long, hide = true)]
    pub(crate) control: bool,
}

impl Arguments {
    /// Whether an option is given that can only be meant for a single worker.
    pub(crate) fn of_one_worker(&self) -> bool {
        !self.port.is_empty()
            || self.in_kernel
            || self.flush.is_some()
            || self.wait.is_some()
            || self.burst.is_some()
            || self.core.is_some()
            || self.metrics.is_some()
            || self.interruptions.is_some()
    }
}

/// How often a worker that has nothing left to do looks whether its ports may close, where nobody wakes it.
const STOP_LOOK: Duration = Duration::from_millis(100);

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let signalled = exit::stop_flag()?;
    if arguments.chain.len() > 1 {
        return forward_threads::run(&arguments, signalled);
    }
    let chain = put_together(&arguments)?;
    if chain.place == Place::Kernel {
        for (option, given) in [
            ("--metrics", arguments.metrics.is_some()),
            ("--interruptions", arguments.interruptions.is_some()),
        ] {
            if given {
                let text = format!("{option}: only of a worker; a chain in the kernel has none");
                return Err(Failure::Input(text));
            }
        }
        return forward_in_kernel::run(&chain, &arguments, signalled);
    }
    let clock = Clock::calibrate(Duration::from_millis(20));
    let shown = Arc::new(OnceLock::<Arc<Counters>>::new());
    let _endpoint = metrics_endpoint(&arguments, Arc::clone(&shown))?;
    let log = arguments.interruptions.as_ref();
    let log = log.map(|path| InterruptionLog::create(path, clock.hz));
    let log = log.transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (started, has_started) = mpsc::channel();
    // Closed by the worker's end, so that waiting for the next second ends too.
    let (ended, running) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    // Who is at its standard input says when nobody needs what the worker's ports have sent any more.
    let stays = arguments.control && arguments.until_stdin_closes;
    let is_done = Arc::new(AtomicBool::new(false));
    let worker = {
        let (chain, stop, is_done) = (chain.clone(), Arc::clone(&stop), Arc::clone(&is_done));
        let at_end = {
            let stop = Arc::clone(&stop);
            move |end: &End| {
                let stays = stays && *end == End::Done;
                is_done.store(stays, Ordering::Relaxed);
                drop(running);
                while stays && !stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(STOP_LOOK);
                }
            }
        };
        std::thread::Builder::new()
            .name("worker".to_string())
            .spawn(move || work(&chain, &clock, log, &stop, &started, at_end))
            .map_err(|e| Failure::Missing(format!("cannot start the worker thread: {e}")))?
    };
    let (counters, updates) = begun(&has_started, signalled)?;
    // Set once, here.
    let _ = shown.set(Arc::clone(&counters));
    print::line(json_or_text(
        arguments.json,
        || {
            json!({"event": "started", "flush": chain.flush.to_string(), "wait": chain.wait.to_string(),
            "core": chain.core})
        },
        || format!("forwarding, flush {}, wait {}", chain.flush, chain.wait),
    ));

    let controlled = vec![(chain.clone(), updates, Arc::clone(&counters))];
    let obey = forward_control::of_workers(controlled, clock);
    let input = forward_control::listen(&arguments, obey)?;
    let watched: Vec<_> = input.iter().chain([&ended]).collect();
    let begun = Instant::now();
    let mut before = CountersView::default();
    each_second(&arguments, signalled, &watched, |second| {
        let now = counters.read();
        print::line(json_or_text(
            arguments.json,
            || line_json(second, now - before),
            || line(second, now - before),
        ));
        before = now;
    });
    if is_done.load(Ordering::Relaxed) {
        print::line(json!({"event": "done", "counters": counters.read()}));
        let watched: Vec<_> = input.iter().collect();
        wait(signalled, &watched, false, None);
    }
    stop.store(true, Ordering::Relaxed);
    worker.thread().unpark();
    let (end, fates) = worker.join().unwrap_or_default();
    let total = counters.read();
    let seconds = begun.elapsed().as_secs_f64();
    print::line(json_or_text(
        arguments.json,
        || summary_json(&total, seconds, &clock, &fates),
        || summary(&total, seconds, &fates),
    ));
    match end {
        Some(End::Broken(port, breakdown)) => Err(Failure::of_port(&chain.ports[port], &breakdown)),
        _ => Ok(()),
    }
}

/// The endpoint, if one is asked for; zeros until the worker has started.
fn metrics_endpoint(
    arguments: &Arguments,
    shown: Arc<OnceLock<Arc<Counters>>>,
) -> Result<Option<Endpoint>, Failure> {
    let Some(address) = &arguments.metrics else {
        return Ok(None);
    };
    let endpoint = Endpoint::serve(address, move || {
        let counters = shown.get().map(|counters| counters.read());
        forwarder_metrics(&counters.unwrap_or_default())
    })?;
    print::note(format_args!(
        "metrics at http://{}/metrics",
        endpoint.address()
    ));
    Ok(Some(endpoint))
}

/// Calls `report` once a second, unless it is to be quiet, until the time is over, a signal comes, or the
/// other side of one of `ended` is closed.
pub(crate) fn each_second(
    arguments: &Arguments,
    signalled: &AtomicBool,
    ended: &[&PipeReader],
    mut report: impl FnMut(u32),
) {
    let begun = Instant::now();
    let mut second = 0_u32;
    loop {
        let next = begun + Duration::from_secs(u64::from(second) + 1);
        let end = arguments
            .seconds
            .map(|s| begun + Duration::from_secs_f64(s));
        let deadline = if arguments.quiet {
            end
        } else {
            Some(end.map_or(next, |e| e.min(next)))
        };
        let watch_stdin = arguments.until_stdin_closes && !arguments.control;
        if wait(signalled, ended, watch_stdin, deadline) || end.is_some_and(|e| Instant::now() >= e)
        {
            return;
        }
        if !arguments.quiet && Instant::now() >= next {
            second += 1;
            report(second);
        }
    }
}

/// The chain from the file or from the options.
fn put_together(arguments: &Arguments) -> Result<Chain, Failure> {
    let ports = arguments.port.iter().map(|p| PortSpec::parse(p));
    let ports: Vec<PortSpec> = ports.collect::<Result<_, _>>()?;
    let mut chain = match arguments.chain.first() {
        Some(path) => {
            let mut chain = load(path)?;
            if !ports.is_empty() {
                chain.ports = ports;
            }
            chain
        }
        None => {
            let functions = arguments
                .function
                .iter()
                .map(|text| text.parse::<Stage>())
                .collect::<Result<_, _>>()?;
            Chain::new(ports, functions)
        }
    };
    chain.flush = arguments.flush.unwrap_or(chain.flush);
    chain.wait = arguments.wait.unwrap_or(chain.wait);
    chain.burst = arguments.burst.unwrap_or(chain.burst);
    chain.core = arguments.core.or(chain.core);
    chain
        .check()
        .map_err(|e| Failure::Input(format!("{e}; see taut forward --help")))?;
    if arguments.in_kernel {
        chain.place = Place::Kernel;
    }
    if chain.place == Place::Kernel
        && (chain.core.is_some()
            || chain.flush != Flush::default()
            || chain.wait != Wait::default()
            || chain.burst != DEFAULT_BURST)
    {
        return Err(Failure::Input(NOT_IN_KERNEL.to_string()));
    }
    Ok(chain)
}

/// The chain of a file, if one worker is to run all of it.
pub(crate) fn load(path: &Path) -> Result<Chain, Failure> {
    let chain = Chain::load(path)?;
    if chain.placement == Placement::Compact {
        return Ok(chain);
    }
    Err(Failure::Input(format!(
        "{0}: its placement takes several workers: taut chain up {0}",
        path.display()
    )))
}

/// What there is of a worker that has begun.
pub(crate) type Started = (Arc<Counters>, Arc<Updates>);

/// What a worker says when it begins. An error of opening ports comes through the channel; a closed channel means that it
/// panicked.
pub(crate) fn begun(
    has_started: &mpsc::Receiver<Result<Started, Failure>>,
    signalled: &AtomicBool,
) -> Result<Started, Failure> {
    let started = has_started.recv();
    let started =
        started.map_err(|_| Failure::Missing("a worker died while it started".to_string()))?;
    started.map_err(|failure| match signalled.load(Ordering::Relaxed) {
        true => Failure::Interrupted("stopped before anything was forwarded".to_string()),
        false => failure,
    })
}

/// How a worker ended, if it began, and what became of packets in its functions.
pub(crate) type Ended = (Option<End>, Vec<(&'static str, u64)>);

/// The worker thread: opens everything where it will be used, says so, and runs; its ports are open until `at_end` returns.
pub(crate) fn work(
    chain: &Chain,
    clock: &Clock,
    log: Option<InterruptionLog>,
    stop: &AtomicBool,
    started: &mpsc::Sender<Result<Started, Failure>>,
    at_end: impl FnOnce(&End),
) -> Ended {
    match set_up(chain, clock) {
        Ok(mut worker) => {
            if let Some(log) = log {
                worker.log_interruptions(log);
            }
            let updates = worker.updates(&chain.functions);
            let _ = started.send(Ok((worker.counters(), updates)));
            let end = worker.run(stop);
            at_end(&end);
            (Some(end), worker.fates())
        }
        Err(e) => {
            let _ = started.send(Err(e));
            Ended::default()
        }
    }
}

fn set_up(chain: &Chain, clock: &Clock) -> Result<Worker, Failure> {
    if let Some(core) = chain.core {
        taut_host::affinity::pin_current_thread(core).map_err(|e| Failure::Input(e.to_string()))?;
    }
    let mut resources = Resources::for_ports(&chain.ports)?;
    let mut ports = Vec::new();
    for spec in &chain.ports {
        let port = spec.open(&mut resources)?;
        if !port.details().is_empty() {
            print::note(format_args!("{spec}: {}", port.details()));
        }
        ports.push(port);
    }
    let watcher = Watcher {
        stop: exit::stop_flag()?,
        tell: &|text| print::note(text),
    };
    let functions = chain.build_functions_watched(&watcher)?;
    let mut worker = Worker::new(ports, functions, chain.flush, clock);
    worker.set_pool(resources.pool());
    worker.set_burst(chain.burst);
    worker.set_wait(chain.wait, clock);
    worker.start_slow_path()?;
    let names: Vec<String> = chain.ports.iter().map(|p| p.text().to_string()).collect();
    worker.on_link_change(move |port, link| match link {
        Link::Up => print::note(format_args!("{}: up", names[port])),
        Link::Down(why) => print::note(format_args!("{}: down: {why}", names[port])),
    });
    Ok(worker)
}

/// Waits until `deadline`, a signal, the end of one of `ended`, or (if asked) of standard input; true means stop.
pub(crate) fn wait(
    signalled: &AtomicBool,
    ended: &[&PipeReader],
    watch_stdin: bool,
    deadline: Option<Instant>,
) -> bool {
    let stdin = std::io::stdin();
    loop {
        if signalled.load(Ordering::Relaxed) {
            return true;
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left.is_some_and(|l| l.is_zero()) {
            return false;
        }
        // A signal ends the sleep: the kernel gives it to the main thread, which this is.
        let timeout = left.map(|l| Timespec {
            tv_sec: l.as_secs() as i64,
            tv_nsec: i64::from(l.subsec_nanos()),
        });
        let mut watched: Vec<PollFd<'_>> = ended
            .iter()
            .map(|pipe| pipe.as_fd())
            .chain(watch_stdin.then(|| stdin.as_fd()))
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
            .collect();
        if poll(&mut watched, timeout.as_ref()).is_ok_and(|n| n > 0) {
            // Nothing is ever written to the pipes.
            let mut pipes = watched.iter().take(ended.len());
            if pipes.any(|pipe| !pipe.revents().is_empty()) {
                return true;
            }
            let mut byte = [0];
            if rustix::io::read(stdin.as_fd(), &mut byte).is_ok_and(|n| n == 0) {
                return true;
            }
        }
    }
}

pub(crate) fn json_or_text(
    json: bool,
    as_json: impl FnOnce() -> serde_json::Value,
    as_text: impl FnOnce() -> String,
) -> String {
    if json {
        as_json().to_string()
    } else {
        as_text()
    }
}

pub(crate) fn causes(c: &CountersView) -> String {
    let parts: Vec<String> = c
        .dropped_causes()
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(cause, n)| format!("{cause} {n}"))
        .collect();
    if parts.is_empty() {
        "0".to_string()
    } else {
        parts.join(", ")
    }
}

pub(crate) fn line(second: u32, c: CountersView) -> String {
    format!(
        "{second:>5} s  rx {:>14}  tx {:>14}  dropped {}  batch {:.1}  {}",
        quantity::pps(c.rx_packets as f64),
        quantity::pps(c.tx_packets as f64),
        causes(&c),
        c.average_batch(),
        worked(&c)
    )
}

/// How the worker spent its time.
fn worked(c: &CountersView) -> String {
    let asleep = match c.sleeps {
        0 => String::new(),
        _ => format!(", asleep {:.1} %", c.asleep() * 100.0),
    };
    format!("busy {:.1} %{asleep}", c.busy() * 100.0)
}

pub(crate) fn line_json(second: u32, c: CountersView) -> serde_json::Value {
    json!({"event": "second", "second": second, "counters": c, "average_batch": c.average_batch(), "busy": c.busy(),
        "asleep": c.asleep(), "interrupted": c.interrupted()})
}

pub(crate) fn summary(c: &CountersView, seconds: f64, fates: &[(&'static str, u64)]) -> String {
    format!(
        "forwarded {} of {} packets in {seconds:.1} s ({}); dropped {}; average batch {:.1}; {}; interrupted {} times, {:.2} % of the time{}",
        c.tx_packets,
        c.rx_packets,
        quantity::pps(c.tx_packets as f64 / seconds.max(1e-9)),
        causes(c),
        c.average_batch(),
        worked(c),
        c.interruptions,
        c.interrupted() * 100.0,
        lines_of(fates)
    )
}

/// What became of packets in functions that tell, a line for each cause that there was.
pub(crate) fn lines_of(fates: &[(&'static str, u64)]) -> String {
    let fates = fates.iter().filter(|(_, n)| *n > 0);
    fates.map(|(fate, n)| format!("\n  {fate} {n}")).collect()
}

pub(crate) fn summary_json(
    c: &CountersView,
    seconds: f64,
    clock: &Clock,
    fates: &[(&'static str, u64)],
) -> serde_json::Value {
    let fates: BTreeMap<_, _> = fates.iter().copied().collect();
    let per_packet = c.busy_ticks as f64 / c.tx_packets.max(1) as f64;
    json!({
        "event": "summary", "seconds": seconds, "counters": c, "dropped": c.dropped(),
        "average_batch": c.average_batch(), "busy": c.busy(), "asleep": c.asleep(),
        "interrupted": c.interrupted(),
        "fates": fates, "busy_ticks_per_packet": per_packet, "tsc_hz": clock.hz
    })
}
