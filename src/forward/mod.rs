//! `taut forward`: runs a data plane on one core until it is stopped or its input files end.

mod arguments;
mod chains;
mod control;
mod in_kernel;
mod lines;

pub use arguments::Arguments;
pub(crate) use chains::choose_cores;
pub(crate) use lines::{at_ports, causes, json_or_text, lines_of, passed, summary_of};

use crate::exit::{self, Failure};
use crate::terminal::print;
use crate::terminal::socket::Links;
use crate::terminal::watch::serve_metrics;
use chains::{Chains, chains};
use lines::{busy_of_each, line, named, of_chain, of_several, started, summary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use taut_engine::{
    Chain, CountersView, End, Event, Exchange, Place, Second, Shares, Start, Summary, Team,
};
use taut_functions::SCRIPT_FAILED;
use taut_live::metrics::{Endpoint, forwarder_metrics};
use taut_port::Link;
use taut_sys::{Clock, InterruptionLog};

/// The interval at which a worker whose input files have ended checks whether it may close its ports, if nothing wakes
/// it.
const STOP_LOOK: Duration = Duration::from_millis(100);

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let signalled = exit::stop_flag()?;
    let chains = chains(&arguments)?;
    let _links = Links::of(chains.iter().flat_map(|(_, chain)| &chain.functions));
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
    // The last worker closes this pipe when it ends, which also ends the wait for the next second.
    let (ended, running) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let ending = Arc::new(Ending::of(&arguments, &chains, running));
    let teams = start_teams(&arguments, &chains, clock, signalled, &ending, log)?;
    let exchanges: Vec<_> = teams.iter().map(Team::exchange).collect();
    // An error is ignored: the value is set only here, once.
    let _ = shown.set(Arc::clone(&exchanges[0]));
    print_started(&arguments, &chains);

    let input = listen(&arguments, &chains, &exchanges, clock, &ending)?;
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

/// Starts the thread that carries out the commands on standard input, if requested. Returns a pipe as
/// [`control::listen`] does.
fn listen(
    arguments: &Arguments,
    chains: &Chains,
    exchanges: &[Arc<Exchange>],
    clock: Clock,
    ending: &Arc<Ending>,
) -> Result<Option<PipeReader>, Failure> {
    let controlled = chains.iter().zip(exchanges);
    let controlled = controlled.map(|((_, chain), exchange)| (chain.clone(), Arc::clone(exchange)));
    let joins = {
        let ending = Arc::clone(ending);
        move |exchange: &Exchange| {
            ending.left.fetch_add(1, Ordering::AcqRel);
            exchange.add_worker().map_err(|e| {
                ending.one_less();
                e.to_string()
            })
        }
    };
    let obey = control::of_workers(controlled.collect(), clock, joins);
    control::listen(arguments, obey)
}

/// Forwards in the kernel, which has no workers and therefore no per-worker options.
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
            let text = format!("{option}: needs a worker, but a chain in the kernel has none");
            return Err(Failure::Input(text));
        }
    }
    in_kernel::run(chain, arguments, signalled)
}

/// Starts the workers of each chain; if a worker fails to start, all workers are stopped.
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

/// The running chains, and the data from which lines about them are printed.
struct Forwarding<'a> {
    arguments: &'a Arguments,
    chains: &'a Chains,
    /// The exchange with the workers of each chain.
    exchanges: &'a [Arc<Exchange>],
    clock: Clock,
    /// Start of the first one-second interval for which counters are printed.
    begun: Instant,
}

impl Forwarding<'_> {
    /// Prints the activity of a chain's workers in one second. `before` has the workers' counters at the start of the
    /// second; on return it has those at the end of the second.
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

    /// Waits for the workers, whose stop flag is already set, and prints the totals of each chain.
    ///
    /// # Errors
    /// A port failed, a worker panicked, a helper thread of the workers died, or a script failed.
    fn finish(&self, teams: Vec<Team>) -> Result<(), Failure> {
        let (mut failed, mut of_scripts) = (None, 0);
        for (number, team) in teams.into_iter().enumerate() {
            let (ends, outcomes) = team.join();
            self.print_summary(number, &outcomes);
            of_scripts += failed_in_scripts(&outcomes);
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
        // A supervisor would restart a process that fails at its end.
        let is_supervised = self.arguments.control && self.arguments.until_stdin_closes;
        let failed = failed.or_else(Failure::of_dead_threads);
        match failed.or_else(|| failure_of_scripts(of_scripts).filter(|_| !is_supervised)) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// Returns the number of packets that are dropped because a script failed on them.
fn failed_in_scripts(outcomes: &[(&'static str, u64)]) -> u64 {
    let failed = outcomes.iter().filter(|it| it.0 == SCRIPT_FAILED);
    failed.map(|it| it.1).sum()
}

/// Returns the failure of scripts that failed on `packets` packets; `None` if there are no such packets.
fn failure_of_scripts(packets: u64) -> Option<Failure> {
    (packets > 0).then(|| {
        Failure::Input(format!(
            "{packets} packets were dropped because a script failed on them: correct it as the message above says"
        ))
    })
}

/// The shared state of all workers, by which each decides when to close its ports.
struct Ending {
    /// The number of workers that are running or starting.
    left: AtomicUsize,
    /// True if workers that have no more packets to process keep their ports open until they are stopped.
    stays: bool,
    /// True if all workers that have ended had no more packets to process.
    all_done: AtomicBool,
    /// True if `stays` is true and all workers have ended with no more packets to process.
    is_done: AtomicBool,
    stop: Arc<AtomicBool>,
    running: Mutex<Option<PipeWriter>>,
}

impl Ending {
    /// Creates the state for the workers of `chains`; the pipe `running` is closed when the last worker ends.
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

    /// Records the end of a worker, on the worker's thread. The worker's ports stay open until this function returns.
    fn of_worker(&self, end: &End) {
        let is_done = *end == End::Done;
        self.all_done.fetch_and(is_done, Ordering::AcqRel);
        self.one_less();
        while self.stays && is_done && !self.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(STOP_LOOK);
        }
    }

    /// Counts down the running workers, when one has ended or failed to start.
    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let all_done = self.all_done.load(Ordering::Acquire);
            self.is_done
                .store(self.stays && all_done, Ordering::Release);
            drop(self.running.lock().map(|mut it| it.take()));
        }
    }
}

/// Starts the metrics endpoint of the forwarder if an address is given; its counters are zero until the workers have
/// started.
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

/// Calls `report` once a second, unless output is quiet. Returns when the requested run time is over, a signal arrives,
/// or the other end of one of the pipes `ended` is closed.
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

/// Waits until `deadline`, a signal, the closing of one of the pipes `ended`, or (if requested) the end of standard
/// input. Returns true if the program must stop.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_dropped_by_script_errors_fail_the_command() {
        let outcomes = [("passed", 3), (SCRIPT_FAILED, 2), (SCRIPT_FAILED, 4)];
        assert_eq!(failed_in_scripts(&outcomes), 6);
        let failure = failure_of_scripts(6);
        assert!(matches!(&failure, Some(Failure::Input(text)) if text.starts_with("6 packets")));
        assert!(failure_of_scripts(0).is_none());
    }
}
