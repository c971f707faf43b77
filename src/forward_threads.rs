//! `taut forward` with several chain files: a worker thread each, in one process, so that `pair` ports can join them.

use crate::exit::Failure;
use crate::forward::{
    Arguments, Ended, begun, each_second, json_or_text, line, line_json, load, summary,
    summary_json, work,
};
use crate::{forward_control, print};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use taut_engine::{Chain, Counters, CountersView, End, Place, Updates};
use taut_port::Clock;

/// A worker, and what it was made from.
struct Started {
    name: String,
    chain: Chain,
    counters: Arc<Counters>,
    updates: Arc<Updates>,
    thread: JoinHandle<Ended>,
}

/// Tells all workers to stop when the thread that has it panics: a chain with a hole carries nothing.
struct StopAll(Arc<AtomicBool>);

impl Drop for StopAll {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

pub fn run(arguments: &Arguments, signalled: &AtomicBool) -> Result<(), Failure> {
    if arguments.of_one_worker() {
        return Err(Failure::Input(
            "with several chain files, each says for itself: leave out --port, --in-kernel, --flush, --wait, --burst, \
             --core, --metrics and --interruptions"
                .to_string(),
        ));
    }
    let chains = arguments.chain.iter().map(|path| {
        let chain = load(path)?;
        match chain.place {
            Place::User => Ok((name_of(path), chain)),
            Place::Kernel => Err(Failure::Input(format!(
                "{}: place = \"kernel\": run it by a taut forward of its own",
                path.display()
            ))),
        }
    });
    let chains: Vec<(String, Chain)> = chains.collect::<Result<_, Failure>>()?;
    let clock = Clock::calibrate(Duration::from_millis(20));
    let stop = Arc::new(AtomicBool::new(false));
    // Closed by the end of the last worker.
    let (ended, running) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let mut workers: Vec<Started> = Vec::new();
    for (name, chain) in chains {
        let (started, has_started) = mpsc::channel();
        let running = running
            .try_clone()
            .map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
        let (work_on, told) = (chain.clone(), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name(format!("worker {name}"))
            .spawn(move || {
                let _stop_all = StopAll(Arc::clone(&told));
                work(&work_on, &clock, None, &told, &started, |_| drop(running))
            })
            .map_err(|e| Failure::Missing(format!("cannot start a worker thread: {e}")))?;
        match begun(&has_started, signalled) {
            Ok((counters, updates)) => workers.push(Started {
                name,
                chain,
                counters,
                updates,
                thread,
            }),
            Err(failure) => {
                stop.store(true, Ordering::Relaxed);
                for worker in workers {
                    let _ = worker.thread.join();
                }
                return Err(failure);
            }
        }
    }
    drop(running);
    for (number, worker) in workers.iter().enumerate() {
        let Started { name, chain, .. } = worker;
        print::line(json_or_text(
            arguments.json,
            || {
                json!({"event": "started", "worker": number, "flush": chain.flush.to_string(),
                    "wait": chain.wait.to_string(), "core": chain.core})
            },
            || {
                format!(
                    "{name}: forwarding, flush {}, wait {}",
                    chain.flush, chain.wait
                )
            },
        ));
    }
    let controlled = workers.iter();
    let controlled = controlled.map(|worker| {
        let (updates, counters) = (&worker.updates, &worker.counters);
        (
            worker.chain.clone(),
            Arc::clone(updates),
            Arc::clone(counters),
        )
    });
    let obey = forward_control::of_workers(controlled.collect(), clock);
    let input = forward_control::listen(arguments, obey)?;
    let watched: Vec<_> = input.iter().chain([&ended]).collect();
    let begun = Instant::now();
    let mut before = vec![CountersView::default(); workers.len()];
    each_second(arguments, signalled, &watched, |second| {
        for (number, (worker, before)) in workers.iter().zip(&mut before).enumerate() {
            let now = worker.counters.read();
            print::line(json_or_text(
                arguments.json,
                || of_worker(number, line_json(second, now - *before)),
                || format!("{:<12}{}", worker.name, line(second, now - *before)),
            ));
            *before = now;
        }
    });
    stop.store(true, Ordering::Relaxed);
    let mut broken = None;
    for (number, worker) in workers.into_iter().enumerate() {
        let joined = worker.thread.join();
        let total = worker.counters.read();
        let seconds = begun.elapsed().as_secs_f64();
        let Ok((end, fates)) = joined else {
            let text = format!("{}: its worker died", worker.name);
            broken = Some(Failure::Missing(text));
            continue;
        };
        print::line(json_or_text(
            arguments.json,
            || of_worker(number, summary_json(&total, seconds, &clock, &fates)),
            || format!("{:<12}{}", worker.name, summary(&total, seconds, &fates)),
        ));
        if let Some(End::Broken(port, breakdown)) = end {
            broken = Some(Failure::of_port(&worker.chain.ports[port], &breakdown));
        }
    }
    broken.map_or(Ok(()), Err)
}

fn of_worker(number: usize, mut event: Value) -> Value {
    event["worker"] = number.into();
    event
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}
