//! `taut forward --in-kernel`: attaches XDP programs, and counts frames until it is stopped.

use super::control;
use crate::exit::Failure;
use crate::forward::{Arguments, causes, each_second, json_or_text, lines_of, passed, summary_of};
use crate::terminal::{print, quantity};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taut_engine::{
    Chain, Count, CountersView, Event, Order, Place, Programs, Report, Second, Started,
    UpcallWorker,
};
use taut_port::Link;
use taut_sys::{Clock, at_death};
use taut_xdp::forward::KernelCounters;

/// The running programs, shared by the threads that count their frames and replace them; `None` once the XDP programs
/// have ended.
type Shared = Arc<Mutex<Option<Running>>>;

struct Running {
    // This field is dropped first, so that the programs end before the worker that gets their punted frames.
    programs: Programs,
    beside: Option<UpcallWorker>,
}

impl Running {
    fn counters(&self) -> CountersView {
        let besides = self.beside.as_ref().map(UpcallWorker::counters);
        view(self.programs.counters(), besides.unwrap_or_default())
    }

    fn functions(&self) -> Vec<Count> {
        let besides = self.beside.as_ref().map(UpcallWorker::functions);
        let mut all = self.programs.functions();
        all.extend(besides.unwrap_or_default());
        all
    }
}

pub fn run(chain: &Chain, arguments: &Arguments, signalled: &AtomicBool) -> Result<(), Failure> {
    let in_kernel = chain.in_kernel()?;
    // The functions are prepared before any frame arrives: they configure the kernel.
    let beside = in_kernel
        .upcall()
        .map(|upcall| {
            UpcallWorker::start(chain, upcall, &Clock::calibrate(Duration::from_millis(20)))
        })
        .transpose()?;
    let mut programs = Programs::start(chain, in_kernel)?;
    let names: Vec<_> = chain.ports.iter().map(|p| p.target().to_string()).collect();
    let mut known: Vec<Option<Link>> = vec![None; names.len()];
    let details = programs.details();
    for line in &details {
        print::note(line);
    }
    tell_links(arguments, &names, &mut known, programs.links());
    print_started(&details, arguments.json);
    let shared = Arc::new(Mutex::new(Some(Running { programs, beside })));
    let input = control::listen(arguments, obey(chain, &shared))?;
    // This pipe is closed when a helper thread of the functions next to the programs dies.
    let (died, living) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let living = Mutex::new(Some(living));
    let _deaths = at_death(move || drop(living.lock().map(|mut it| it.take())));
    let watched: Vec<_> = input.iter().chain([&died]).collect();
    let begun = Instant::now();
    let mut before = CountersView::default();
    each_second(arguments, signalled, &watched, |second| {
        let mut shared = lock(&shared);
        let Some(running) = shared.as_mut() else {
            return;
        };
        tell_links(arguments, &names, &mut known, running.programs.links());
        let (now, functions) = (running.counters(), running.functions());
        drop(shared);
        print_second(second, now - before, functions, arguments.json);
        before = now;
    });
    let seconds = begun.elapsed().as_secs_f64();
    let (total, outcomes) = end(&shared);
    print_summary(&total, seconds, &outcomes, arguments.json);
    Failure::of_dead_threads().map_or(Ok(()), Err)
}

fn print_started(details: &[String], json: bool) {
    print::line(json_or_text(
        json,
        || {
            let started = Started {
                place: Some(Place::Kernel),
                directions: details.to_vec(),
                ..Started::default()
            };
            Report::from(Event::Started(started))
        },
        || "forwarding in the kernel".to_string(),
    ));
}

fn print_second(second: u32, during: CountersView, functions: Vec<Count>, json: bool) {
    print::line(json_or_text(
        json,
        || {
            let second = Second {
                second,
                counters: during,
                shares: None,
                workers: Vec::new(),
                functions,
            };
            Report::from(Event::Second(second))
        },
        || {
            format!(
                "{second:>5} s  rx {:>14}  tx {:>14}  dropped {}",
                quantity::rate(during.rx_packets as f64),
                quantity::rate(during.tx_packets as f64),
                causes(&during)
            )
        },
    ));
}

fn print_summary(total: &CountersView, seconds: f64, outcomes: &[(&'static str, u64)], json: bool) {
    print::line(json_or_text(
        json,
        || {
            Report::from(Event::Summary(Box::new(summary_of(
                total, seconds, outcomes,
            ))))
        },
        || {
            format!(
                "{} in {seconds:.1} s ({}); dropped {}{}",
                passed(total),
                quantity::rate(total.tx_packets as f64 / seconds.max(1e-9)),
                causes(total),
                lines_of(outcomes)
            )
        },
    ));
}

/// Ends the XDP programs, and then the worker that processes punted frames. Returns the counters of both, and the
/// outcomes of the functions.
fn end(shared: &Shared) -> (CountersView, Vec<(&'static str, u64)>) {
    // The programs end first, so that no punted frame arrives after the worker's last one.
    let (programs, beside) = lock(shared)
        .take()
        .map(|it| (it.programs, it.beside))
        .unzip();
    let (counted, in_kernel) = programs.map(Programs::end).unwrap_or_default();
    let (besides, mut outcomes) = beside.flatten().map(UpcallWorker::end).unwrap_or_default();
    outcomes.extend(in_kernel);
    (view(counted, besides), outcomes)
}

/// Carries out the commands on standard input until the XDP programs are detached from the interfaces.
fn obey(
    chain: &Chain,
    shared: &Shared,
) -> impl FnMut(Order) -> Result<Report, String> + Send + 'static {
    let (chain, shared) = (chain.clone(), Arc::clone(shared));
    move |asked| {
        let mut shared = lock(&shared);
        let running = shared
            .as_mut()
            .ok_or("the XDP programs are already detached")?;
        let Some(functions) = asked.functions else {
            return Ok(Report {
                event: Event::Counters {
                    counters: running.counters(),
                    ports: running.programs.ports(),
                },
                worker: Some(0),
            });
        };
        let mut next = chain.clone();
        next.functions = functions;
        next.check()?;
        let replaced = running.programs.replace(next.functions);
        let replaced = replaced.map_err(|e| e.to_string())?;
        // The pause is 0: each frame is processed by the old programs or by the new ones.
        Ok(control::updated(&replaced, 0.0).into())
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Option<Running>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the counters of the XDP programs plus `beside`, the counters of the worker that processes punted frames. A
/// counter that neither of them has stays 0.
fn view(counted: KernelCounters, beside: CountersView) -> CountersView {
    CountersView {
        rx_packets: counted.rx_packets,
        rx_bytes: counted.rx_bytes,
        tx_packets: counted.tx_packets + beside.tx_packets,
        tx_bytes: counted.tx_bytes + beside.tx_bytes,
        punted: beside.punted,
        from_slow_path: beside.from_slow_path,
        dropped_by_function: counted.too_short + counted.dropped + beside.dropped_by_function,
        dropped_tx_failed: counted.refused + beside.dropped_tx_failed,
        dropped_rx_overrun: beside.dropped_rx_overrun,
        dropped_too_long: counted.too_long + beside.dropped_too_long,
        ..CountersView::default()
    }
}

fn tell_links(arguments: &Arguments, names: &[String], known: &mut [Option<Link>], now: Vec<Link>) {
    for ((name, known), link) in names.iter().zip(known).zip(now) {
        if known.as_ref() != Some(&link) {
            arguments.tell_link(name, &link);
            *known = Some(link);
        }
    }
}
