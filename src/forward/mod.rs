//! `taut forward`: runs a data plane on one core until it is stopped or its input files end.

mod control;
mod in_kernel;

use crate::exit::{self, Failure};
use crate::terminal::watch::serve_metrics;
use crate::terminal::{print, quantity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use taut_engine::{
    AtPort, Chain, CountersView, DEFAULT_BURST, End, Event, Exchange, Flush, NOT_IN_KERNEL, Place,
    Placement, Report, Second, Shares, Stage, Start, Started, Summary, Team, Wait,
};
use taut_live::metrics::{Endpoint, forwarder_metrics};
use taut_port::{Link, PortSpec};
use taut_sys::{Clock, InterruptionLog};

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
    /// Port, such as memif:/run/a.sock or af_packet:eth0 (see `taut ports`): an even number, or one that packets also
    /// leave through (default: those of the chain file)
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// Function that every packet passes, with its settings: forward, mac-swap, burn(cycles=N); may be repeated
    /// (default: none)
    #[arg(long, value_name = "NAME(KEY=VALUE...)")]
    function: Vec<String>,
    /// Forward by XDP programs in the kernel; not with --flush, --wait, --burst, --core, --workers, --metrics or
    /// --interruptions
    #[arg(long)]
    in_kernel: bool,
    /// When buffered packets are sent: full(N, TIME), each, every(TIME), idle(N) (default: idle(32))
    #[arg(long)]
    flush: Option<Flush>,
    /// Waiting policy, while no packets arrive: poll, yield, sleep(TIME), interrupt (default: poll)
    #[arg(long, value_name = "POLICY")]
    wait: Option<Wait>,
    /// Maximum number of packets taken from a port at a time, 1 to 256 (default: 32)
    #[arg(long, value_name = "N")]
    burst: Option<usize>,
    /// CPU to run on (default: the scheduler's choice)
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Workers that share the ports, each on a CPU of its own, 1 to 64; not in the kernel (default: 1, or as many as
    /// --cores)
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// CPUs of the workers, such as 2,3; not with --core (default: those that disturb each other least)
    #[arg(
        long,
        value_name = "CPU,...",
        value_delimiter = ',',
        conflicts_with = "core"
    )]
    cores: Vec<usize>,
    /// Stop after this many seconds (default: at Ctrl-C, or when all input files are read)
    #[arg(long, value_parser = quantity::seconds)]
    pub(crate) seconds: Option<f64>,
    /// Print JSON, one object per line: at the start, each second, at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve the counters as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; port 0 takes a free port
    /// and prints it
    #[arg(long, value_name = "ADDRESS", conflicts_with = "in_kernel")]
    metrics: Option<String>,
    /// Write the worker's latest 65,536 interruptions to this file, for `taut generate --device-interruptions`; one
    /// worker, not in the kernel
    #[arg(long, value_name = "FILE", conflicts_with = "in_kernel")]
    interruptions: Option<PathBuf>,
    /// Print no counters until the summary at the end
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
    /// Reports whether an option is set that applies to a single worker only.
    pub(crate) fn of_one_worker(&self) -> bool {
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

/// The interval at which a worker without work checks whether its ports may close, if nothing wakes it.
const STOP_LOOK: Duration = Duration::from_millis(100);

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let signalled = exit::stop_flag()?;
    let chains = chains(&arguments)?;
    if let [(_, chain)] = &chains[..]
        && chain.place == Place::Kernel
    {
        return run_in_kernel(chain, &arguments, signalled);
    }
    let clock = Clock::calibrate(Duration::from_millis(20));
    let shown = Arc::new(OnceLock::<Arc<Exchange>>::new());
    let _endpoint = metrics_endpoint(&arguments, Arc::clone(&shown), clock)?;
    let log = arguments.interruptions.as_ref();
    let log = log.map(|path| InterruptionLog::create(path, clock.hz));
    let log = log.transpose()?;
    // The last worker closes this when it ends, which also ends the wait for the next second.
    let (ended, running) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let ending = Arc::new(Ending::of(&arguments, &chains, running));
    let teams = start_teams(&arguments, &chains, clock, signalled, &ending, log)?;
    let exchanges: Vec<_> = teams.iter().map(Team::exchange).collect();
    // Set once, here.
    let _ = shown.set(Arc::clone(&exchanges[0]));
    print_started(&arguments, &chains);

    let controlled = chains.iter().zip(&exchanges);
    let controlled = controlled.map(|((_, chain), exchange)| (chain.clone(), Arc::clone(exchange)));
    let joins = {
        let ending = Arc::clone(&ending);
        move |exchange: &Exchange| {
            ending.left.fetch_add(1, Ordering::AcqRel);
            exchange.add_worker().map_err(|e| {
                ending.one_less();
                e.to_string()
            })
        }
    };
    let obey = control::of_workers(controlled.collect(), clock, joins);
    let input = control::listen(&arguments, obey)?;
    let forwarding = Forwarding {
        arguments: &arguments,
        chains: &chains,
        exchanges: &exchanges,
        clock,
        begun: Instant::now(),
    };
    let watched: Vec<_> = input.iter().chain([&ended]).collect();
    let mut before: Vec<_> = exchanges
        .iter()
        .map(|it| vec![CountersView::default(); it.each().len()])
        .collect();
    each_second(&arguments, signalled, &watched, |second| {
        for (number, before) in before.iter_mut().enumerate() {
            forwarding.print_second(number, second, before);
        }
    });
    if ending.is_done.load(Ordering::Relaxed) {
        let done = Event::Done {
            counters: exchanges[0].sum(),
            ports: exchanges[0].ports(),
        };
        print::report(&done.into());
        let watched: Vec<_> = input.iter().collect();
        wait(signalled, &watched, false, None);
    }
    ending.stop.store(true, Ordering::Relaxed);
    forwarding.finish(teams)
}

/// Forwards in the kernel, which has no workers and so no per-worker options.
fn run_in_kernel(
    chain: &Chain,
    arguments: &Arguments,
    signalled: &'static AtomicBool,
) -> Result<(), Failure> {
    for (option, given) in [
        ("--metrics", arguments.metrics.is_some()),
        ("--interruptions", arguments.interruptions.is_some()),
    ] {
        if given {
            let text = format!("{option}: only of a worker; a chain in the kernel has none");
            return Err(Failure::Input(text));
        }
    }
    in_kernel::run(chain, arguments, signalled)
}

/// Starts the workers of each chain; if one fails to start, all are stopped.
fn start_teams(
    arguments: &Arguments,
    chains: &Chains,
    clock: Clock,
    signalled: &'static AtomicBool,
    ending: &Arc<Ending>,
    mut log: Option<InterruptionLog>,
) -> Result<Vec<Team>, Failure> {
    let at_end = {
        let ending = Arc::clone(ending);
        move |end: &End| ending.of_worker(end)
    };
    let tell_link = {
        let arguments = arguments.clone();
        move |port: &str, link: &Link| arguments.tell_link(port, link)
    };
    let start = Start {
        clock,
        stop: Arc::clone(&ending.stop),
        given_up: signalled,
        tell: Arc::new(|text| print::note(text)),
        tell_link: Arc::new(tell_link),
        at_end: Arc::new(at_end),
    };
    let mut teams = Vec::new();
    for (name, chain) in chains {
        let thread = name
            .as_ref()
            .map_or("worker".to_string(), |name| format!("worker {name}"));
        match Team::start(chain, &thread, &start, log.take()) {
            Ok(team) => teams.push(team),
            Err(e) => {
                ending.stop.store(true, Ordering::Relaxed);
                for team in teams {
                    team.join();
                }
                return Err(match signalled.load(Ordering::Relaxed) {
                    true => {
                        let text = "stopped before anything was forwarded";
                        Failure::Interrupted(text.to_string())
                    }
                    false => e.into(),
                });
            }
        }
    }
    Ok(teams)
}

/// Prints that each chain forwards, and in which mode.
fn print_started(arguments: &Arguments, chains: &Chains) {
    for (number, (name, chain)) in chains.iter().enumerate() {
        let line = || {
            let text = format!("forwarding, flush {}, wait {}", chain.flush, chain.wait);
            match chain.workers {
                1 => text,
                _ => format!(
                    "{text}, {} workers on cores {:?}",
                    chain.workers, chain.cores
                ),
            }
        };
        print::line(json_or_text(
            arguments.json,
            || of_chain(chains, number, started(chain)),
            || match name {
                Some(name) => format!("{name}: {}", line()),
                None => line(),
            },
        ));
    }
}

/// The running chains, for the lines printed about them.
struct Forwarding<'a> {
    arguments: &'a Arguments,
    chains: &'a Chains,
    /// The exchange with the workers of each chain.
    exchanges: &'a [Arc<Exchange>],
    clock: Clock,
    /// Time from which seconds are counted.
    begun: Instant,
}

impl Forwarding<'_> {
    /// Prints the activity of a chain's workers in one second; updates `before`, their counters, from the second's
    /// start to its end.
    fn print_second(&self, number: usize, second: u32, before: &mut Vec<CountersView>) {
        let exchange = &self.exchanges[number];
        let now = exchange.each();
        // Workers may have been added.
        before.resize(now.len(), CountersView::default());
        let passed: Vec<_> = now
            .iter()
            .zip(&*before)
            .map(|(now, before)| *now - *before)
            .collect();
        let sum = passed.iter().copied().sum();
        print::line(json_or_text(
            self.arguments.json,
            || {
                let event = Event::Second(Second {
                    second,
                    counters: sum,
                    shares: Some(Shares::of(&sum)),
                    workers: of_several(&passed),
                    functions: exchange.functions(),
                });
                of_chain(self.chains, number, event)
            },
            || {
                named(
                    &self.chains[number].0,
                    line(second, sum) + &busy_of_each(&passed),
                )
            },
        ));
        *before = now;
    }

    /// Prints the totals of a chain whose workers have ended.
    fn print_summary(&self, number: usize, outcomes: &[(&'static str, u64)]) {
        let (name, chain) = &self.chains[number];
        let exchange = &self.exchanges[number];
        let each = exchange.each();
        let total: CountersView = each.iter().copied().sum();
        let seconds = self.begun.elapsed().as_secs_f64();
        print::line(json_or_text(
            self.arguments.json,
            || {
                let per_packet = total.busy_ticks as f64 / total.tx_packets.max(1) as f64;
                let summary = Summary {
                    shares: Some(Shares::of(&total)),
                    busy_ticks_per_packet: Some(per_packet),
                    tsc_hz: Some(self.clock.hz),
                    ports: at_ports(chain, exchange),
                    workers: of_several(&each),
                    functions: exchange.functions(),
                    ..summary_of(&total, seconds, outcomes)
                };
                of_chain(self.chains, number, Event::Summary(Box::new(summary)))
            },
            || named(name, summary(&total, seconds, outcomes)),
        ));
    }

    /// Waits for the workers, which have been told to stop, and prints the totals of each chain.
    ///
    /// # Errors
    /// A port failed, a worker panicked, or a helper thread of the workers died.
    fn finish(&self, teams: Vec<Team>) -> Result<(), Failure> {
        let mut failed = None;
        for (number, team) in teams.into_iter().enumerate() {
            let (ends, outcomes) = team.join();
            self.print_summary(number, &outcomes);
            let (name, chain) = &self.chains[number];
            let mut failures = ends.into_iter().filter_map(|end| match end {
                Some(End::Broken(port, why)) => Some(Failure::of_port(&chain.ports[port], &why)),
                None => {
                    let of = name
                        .as_ref()
                        .map_or(String::new(), |name| format!("{name}: "));
                    Some(Failure::Missing(format!("{of}a worker died")))
                }
                _ => None,
            });
            failed = failures.next_back().or(failed);
        }
        let failed = failed.or_else(Failure::of_dead_threads);
        failed.map_or(Ok(()), Err)
    }
}

/// The shared state that decides when workers close their ports.
struct Ending {
    /// The number of workers that have not ended.
    left: AtomicUsize,
    /// True if workers without further work keep their ports open until they are told to stop.
    stays: bool,
    /// True if all workers that have ended so far had no work left.
    all_done: AtomicBool,
    /// True if all workers are out of work.
    is_done: AtomicBool,
    stop: Arc<AtomicBool>,
    running: Mutex<Option<PipeWriter>>,
}

impl Ending {
    /// Creates the state; `running` is closed when the last worker ends.
    fn of(arguments: &Arguments, chains: &Chains, running: PipeWriter) -> Self {
        Self {
            left: AtomicUsize::new(chains.iter().map(|(_, chain)| chain.workers).sum()),
            // With --control the supervisor at standard input decides when ports may close.
            stays: arguments.control && arguments.until_stdin_closes && chains.len() == 1,
            all_done: AtomicBool::new(true),
            is_done: AtomicBool::new(false),
            stop: Arc::new(AtomicBool::new(false)),
            running: Mutex::new(Some(running)),
        }
    }

    /// Records the end of a worker, on its thread; the worker's ports stay open until this returns.
    fn of_worker(&self, end: &End) {
        let is_done = *end == End::Done;
        self.all_done.fetch_and(is_done, Ordering::AcqRel);
        self.one_less();
        while self.stays && is_done && !self.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(STOP_LOOK);
        }
    }

    /// Counts a worker that has ended or failed to start.
    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let all_done = self.all_done.load(Ordering::Acquire);
            self.is_done
                .store(self.stays && all_done, Ordering::Release);
            drop(self.running.lock().map(|mut it| it.take()));
        }
    }
}

/// The chains to run, with their file names if there are several.
type Chains = Vec<(Option<String>, Chain)>;

fn chains(arguments: &Arguments) -> Result<Chains, Failure> {
    if arguments.chain.len() < 2 {
        let mut chain = put_together(arguments)?;
        choose_cores(&mut chain)?;
        if chain.workers > 1 && arguments.interruptions.is_some() {
            return Err(Failure::Input(
                "--interruptions: of one worker only".to_string(),
            ));
        }
        return Ok(vec![(None, chain)]);
    }
    if arguments.of_one_worker() {
        return Err(Failure::Input(
            "with several chain files, each says for itself: leave out --port, --in-kernel, --flush, --wait, --burst, \
             --core, --workers, --cores, --metrics and --interruptions"
                .to_string(),
        ));
    }
    let chains = arguments.chain.iter().map(|path| {
        let mut chain = load(path)?;
        if chain.place == Place::Kernel {
            return Err(Failure::Input(format!(
                "{}: place = \"kernel\": run it by a taut forward of its own",
                path.display()
            )));
        }
        choose_cores(&mut chain)?;
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        Ok((Some(stem.to_string_lossy().into_owned()), chain))
    });
    chains.collect()
}

/// Assigns a core to each of several workers if the chain does not.
pub(crate) fn choose_cores(chain: &mut Chain) -> Result<(), Failure> {
    if chain.workers > 1 && chain.cores.is_empty() {
        chain.cores = taut_host::cores_for(chain.workers).ok_or_else(|| {
            let cores = taut_host::allowed_cpus().len();
            Failure::Input(format!(
                "workers = {}: each takes a core of its own, and this process may use {cores} \
                 (/proc/self/status, Cpus_allowed_list); want {cores} or fewer, or allow it more cores (taskset)",
                chain.workers,
            ))
        })?;
    }
    Ok(())
}

fn started(chain: &Chain) -> Event {
    let are_several = chain.workers > 1;
    Event::Started(Started {
        flush: Some(chain.flush.to_string()),
        wait: Some(chain.wait.to_string()),
        core: chain.core,
        workers: are_several.then_some(chain.workers),
        cores: if are_several {
            chain.cores.clone()
        } else {
            Vec::new()
        },
        ..Started::default()
    })
}

/// Returns the counters of each worker if there are several, else an empty list.
fn of_several(each: &[CountersView]) -> Vec<CountersView> {
    if each.len() > 1 {
        each.to_vec()
    } else {
        Vec::new()
    }
}

/// Adds the number of the chain file to an event if there are several chains.
fn of_chain(chains: &Chains, number: usize, event: Event) -> Report {
    let worker = (chains.len() > 1).then_some(number);
    Report { event, worker }
}

/// Prefixes a line with the name of its chain file if there are several.
fn named(name: &Option<String>, line: String) -> String {
    match name {
        Some(name) => format!("{name:<12}{line}"),
        None => line,
    }
}

/// Returns the counters of each port.
pub(crate) fn at_ports(chain: &Chain, exchange: &Exchange) -> Vec<AtPort> {
    let mut queues = exchange.queues().into_iter();
    let ports = chain.ports.iter().zip(exchange.ports());
    ports
        .map(|(spec, counters)| AtPort {
            port: spec.text().to_string(),
            counters,
            queues: queues.next().unwrap_or_default(),
        })
        .collect()
}

fn busy_of_each(each: &[CountersView]) -> String {
    if each.len() < 2 {
        return String::new();
    }
    let each: Vec<_> = each
        .iter()
        .map(|it| format!("{:.0} %", it.busy() * 100.0))
        .collect();
    format!(" ({})", each.join(", "))
}

/// Starts the metrics endpoint if it is requested; it shows zeros until the workers have started.
fn metrics_endpoint(
    arguments: &Arguments,
    shown: Arc<OnceLock<Arc<Exchange>>>,
    clock: Clock,
) -> Result<Option<Endpoint>, Failure> {
    serve_metrics(arguments.metrics.as_deref(), move || {
        let shown = shown.get();
        let counters = shown.map(|exchange| exchange.sum()).unwrap_or_default();
        let functions = shown.map(|exchange| exchange.functions());
        forwarder_metrics(&counters, &functions.unwrap_or_default(), clock.hz)
    })
}

/// Calls `report` once a second, unless output is quiet, until the time is over, a signal arrives, or the other side of
/// one of `ended` is closed.
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

/// Builds the chain from the file or from the options.
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
    if !arguments.cores.is_empty() {
        chain.workers = arguments.cores.len();
        chain.cores.clone_from(&arguments.cores);
        chain.core = None;
    }
    if let Some(workers) = arguments.workers {
        chain.workers = workers;
        if chain.cores.len() != workers && arguments.cores.is_empty() {
            chain.cores.clear();
        }
    }
    chain
        .check()
        .map_err(|e| Failure::Input(format!("{e}; see taut forward --help")))?;
    if arguments.in_kernel {
        chain.place = Place::Kernel;
    }
    if chain.place == Place::Kernel
        && (chain.core.is_some()
            || chain.workers > 1
            || chain.flush != Flush::default()
            || chain.queue.is_some()
            || chain.wait != Wait::default()
            || chain.burst != DEFAULT_BURST)
    {
        return Err(Failure::Input(NOT_IN_KERNEL.to_string()));
    }
    Ok(chain)
}

/// Loads the chain of a file that one worker is to run completely.
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

/// Waits until `deadline`, a signal, the end of one of `ended`, or (if requested) of standard input; true means stop.
pub(crate) fn wait(
    signalled: &AtomicBool,
    ended: &[&PipeReader],
    watch_stdin: bool,
    deadline: Option<Instant>,
) -> bool {
    let stdin = std::io::stdin();
    // The signal handler is installed, so this file exists.
    let stopped = taut_host::stop_file().ok();
    loop {
        if signalled.load(Ordering::Relaxed) {
            return true;
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left.is_some_and(|l| l.is_zero()) {
            return false;
        }
        let timeout = left.map(|l| Timespec {
            tv_sec: l.as_secs() as i64,
            tv_nsec: i64::from(l.subsec_nanos()),
        });
        let mut watched: Vec<PollFd<'_>> = ended
            .iter()
            .map(|pipe| pipe.as_fd())
            .chain(stopped)
            .chain(watch_stdin.then(|| stdin.as_fd()))
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
            .collect();
        if poll(&mut watched, timeout.as_ref()).is_ok_and(|n| n > 0) {
            // Nothing is ever written to the pipes.
            let mut pipes = watched.iter().take(ended.len() + stopped.iter().len());
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

pub(crate) fn json_or_text<T: Serialize>(
    json: bool,
    as_json: impl FnOnce() -> T,
    as_text: impl FnOnce() -> String,
) -> String {
    if json {
        serde_json::to_string(&as_json()).unwrap_or_default()
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
        quantity::rate(c.rx_packets as f64),
        quantity::rate(c.tx_packets as f64),
        causes(&c),
        c.average_batch(),
        worked(&c)
    )
}

/// Describes how the worker spent its time.
fn worked(c: &CountersView) -> String {
    let asleep = match c.sleeps {
        0 => String::new(),
        _ => format!(", asleep {:.1} %", c.asleep() * 100.0),
    };
    format!("busy {:.1} %{asleep}", c.busy() * 100.0)
}

pub(crate) fn summary(c: &CountersView, seconds: f64, outcomes: &[(&'static str, u64)]) -> String {
    format!(
        "{} in {seconds:.1} s ({}); dropped {}; average batch {:.1}; {}; interrupted {} times, {:.2} % of the time{}",
        passed(c),
        quantity::rate(c.tx_packets as f64 / seconds.max(1e-9)),
        causes(c),
        c.average_batch(),
        worked(c),
        c.interruptions,
        c.interrupted() * 100.0,
        lines_of(outcomes)
    )
}

/// Describes how many packets arrived and left. More may leave than arrive, as functions and the slow path create some.
pub(crate) fn passed(c: &CountersView) -> String {
    let (came, sent) = (c.rx_packets, c.tx_packets);
    match c.from_slow_path {
        0 if sent <= came => format!("forwarded {sent} of {came} packets"),
        0 => format!("received {came} packets, sent {sent}"),
        from => format!("received {came} packets, sent {sent} ({from} from the slow path)"),
    }
}

/// Describes the outcomes that functions report, with a line for each cause that occurred.
pub(crate) fn lines_of(outcomes: &[(&'static str, u64)]) -> String {
    let outcomes = outcomes.iter().filter(|(_, n)| *n > 0);
    outcomes
        .map(|(outcome, n)| format!("\n  {outcome} {n}"))
        .collect()
}

/// Returns the fields that every summary contains.
pub(crate) fn summary_of(
    c: &CountersView,
    seconds: f64,
    outcomes: &[(&'static str, u64)],
) -> Summary {
    let outcomes: BTreeMap<String, u64> = outcomes
        .iter()
        .map(|(outcome, n)| (outcome.to_string(), *n))
        .collect();
    Summary {
        seconds,
        counters: *c,
        dropped: c.dropped(),
        outcomes,
        died: taut_sys::dead_threads()
            .into_iter()
            .map(|it| it.name)
            .collect(),
        ..Summary::default()
    }
}
