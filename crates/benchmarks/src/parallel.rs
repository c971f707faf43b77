//! The time of a packet in a function when several threads run it in parallel. Each thread has a function, memory and
//! packets of its own, and all share this machine's processors under the scheduler. (Xiang et al., JSAC 2019, Fig. 13.)
//!
//! Packets are processed one at a time, without input and output. Times are wall-clock times: with more threads than
//! processors a packet also waits for other threads, and the figure shows this wait. A repetition has a minimum length,
//! so that the scheduler switches between all threads many times.

use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_engine::{Stage, functions_ticks};
use taut_figure::table;
use taut_function::{Context, Function};
use taut_measure::quantity;
use taut_measure::{Interval, LatencyHistogram, Summary, mean_beside_median};
use taut_port::{Batch, PoolHandle};
use taut_sys::Clock;
use taut_wire::UdpFlow;

/// Bytes in front of the payload: Ethernet, IPv4, UDP.
const HEADER_BYTES: usize = 42;

/// Bytes of the Ethernet frame check sequence, which frames in memory do not have.
const CHECK_BYTES: usize = 4;

/// Number of buffers in each thread's pool.
const SLOTS: u32 = 512;

/// Number of packets that each thread processes in a repetition before the count begins.
const WARM_UP: u64 = 500;

/// Minimum length of a repetition.
const LEAST: Duration = Duration::from_millis(100);
/// Minimum length of a repetition per thread: several time slices of the scheduler. It is multiplied by the number of
/// threads.
const LEAST_EACH: Duration = Duration::from_millis(20);

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The functions that every packet passes, in order.
    pub functions: Vec<Stage>,
    /// Number of threads that run at the same time.
    pub instances: usize,
    /// UDP payload, bytes.
    pub size_bytes: usize,
    /// Minimum number of packets of each thread in a repetition.
    pub packets: u64,
    /// Number of repetitions of the measurement.
    pub repetitions: u32,
}

impl Plan {
    /// Returns the minimum duration of the measurement.
    pub fn least(&self) -> Duration {
        self.repetitions * LEAST.max(LEAST_EACH * self.instances as u32)
    }
}

/// The processing times that were measured with several threads at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// Number of threads that ran at the same time.
    pub instances: usize,
    /// UDP payload, bytes.
    pub size_bytes: usize,
    /// Minimum number of packets of each thread in a repetition.
    pub packets: u64,
    /// Number of repetitions of the measurement.
    pub repetitions: u32,
    /// Number of processors that the threads could use.
    pub cpus: usize,
    /// Time per packet, over all threads and repetitions; none without packets.
    pub processing_ns: Option<Summary>,
    /// Mean of the repetitions' means, with the confidence interval of the median of these means; none without packets.
    pub mean_ns: Option<Interval>,
    /// Number of packets that the functions dropped.
    pub dropped: u64,
}

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ParallelError {
    /// A function cannot be created, or there is no memory for it; the value is the message.
    #[error("{0}")]
    Function(String),
    /// No frame can have a payload of this size, bytes.
    #[error("{0} bytes of payload: expected 18 to 9170")]
    Size(usize),
}

/// Returns a line for each measurement, for a terminal with `width` columns.
pub fn text_table(all: &[Measured], width: Option<usize>) -> String {
    let mut table = table::plain();
    table.set_header([
        "payload",
        "side by\nside",
        "packets",
        "dropped",
        "time of a\npacket: avg",
        "\nmin",
        "\np50",
        "\np99",
        "\np99.9",
        "\nmax",
        "median of the\nrepetitions' means",
    ]);
    for measured in all {
        let times = measured.processing_ns.as_ref();
        let exact = |value: fn(&Summary) -> f64| {
            times.map_or_else(|| "-".to_owned(), |times| quantity::time(value(times)))
        };
        let percentile = |value: fn(&Summary) -> Option<u64>| {
            let value = times.map(|times| value(times).map(|ns| quantity::time(ns as f64)));
            value.map_or_else(
                || "-".to_owned(),
                |value| value.unwrap_or_else(|| "n/a".to_owned()),
            )
        };
        table.add_row([
            format!("{} bytes", measured.size_bytes),
            measured.instances.to_string(),
            times.map_or(0, |times| times.count).to_string(),
            measured.dropped.to_string(),
            exact(|times| times.avg_ns),
            exact(|times| times.min_ns as f64),
            percentile(|times| times.p50_ns),
            percentile(|times| times.p99_ns),
            percentile(|times| times.p99_9_ns),
            exact(|times| times.max_ns as f64),
            measured
                .mean_ns
                .map_or_else(|| "-".to_owned(), |mean| mean.words(quantity::time)),
        ]);
    }
    table::set_columns(&mut table, Some(0));
    let least_important = [
        (5, "min"),
        (8, "p99.9"),
        (2, "packets"),
        (6, "p50"),
        (9, "max"),
        (3, "dropped"),
    ];
    table::text(table, &least_important, width)
}

/// Runs a measurement. If `stop` is set during it, the result is incomplete.
///
/// # Errors
/// Returns a [`ParallelError`] if a function cannot be created or gets no memory, or if a frame cannot have the size.
pub fn measure(plan: &Plan, clock: &Clock, stop: &AtomicBool) -> Result<Measured, ParallelError> {
    let frame = UdpFlow::default()
        .frame(plan.size_bytes + HEADER_BYTES + CHECK_BYTES)
        .map_err(|_| ParallelError::Size(plan.size_bytes))?;
    // Invalid settings are reported before threads wait for each other.
    build(&plan.functions)?;
    let mut all = LatencyHistogram::new();
    let mut means = Vec::new();
    let mut dropped = 0;
    for _ in 0..plan.repetitions {
        let (one, lost) = repeat(plan, &frame, clock, stop)?;
        means.extend(one.mean_ns());
        all.merge(&one);
        dropped += lost;
    }
    Ok(Measured {
        instances: plan.instances,
        size_bytes: plan.size_bytes,
        packets: plan.packets,
        repetitions: plan.repetitions,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        processing_ns: Summary::from_histogram(&all),
        mean_ns: mean_beside_median(&means, 0.95),
        dropped,
    })
}

fn build(functions: &[Stage]) -> Result<Vec<Box<dyn Function>>, ParallelError> {
    let failed = |e: String| ParallelError::Function(e);
    let one = |stage: &Stage| {
        let mut function = taut_functions::build(&stage.name, stage.settings.clone())
            .map_err(|e| failed(format!("function \"{}\": {e}", stage.name)))?;
        function
            .prepare()
            .map_err(|e| failed(format!("function \"{}\": {e}", stage.name)))?;
        Ok(function)
    };
    functions.iter().map(one).collect()
}

/// Runs all threads once, and returns the times of all packets and the number of dropped packets.
fn repeat(
    plan: &Plan,
    frame: &[u8],
    clock: &Clock,
    stop: &AtomicBool,
) -> Result<(LatencyHistogram, u64), ParallelError> {
    let ready = Barrier::new(plan.instances);
    let at_work = AtomicUsize::new(plan.instances);
    let least = LEAST.max(LEAST_EACH * plan.instances as u32);
    let sum = Mutex::new((LatencyHistogram::new(), 0));
    std::thread::scope(|scope| {
        let work = || {
            let working = Working(&at_work);
            let made = build(&plan.functions).and_then(|functions| {
                let pool = PoolHandle::new(SLOTS, false)
                    .map_err(|e| ParallelError::Function(e.to_string()))?;
                Ok((functions, pool))
            });
            // Failed threads also wait here, because the other threads wait until all threads have arrived.
            ready.wait();
            let (functions, pool) = made?;
            let mut one = Instance {
                functions,
                pool,
                frame,
                clock,
                stop,
                batch: Batch::new(),
                dropped: 0,
            };
            let times = one.run(plan.packets, least, working);
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.0.merge(&times);
            sum.1 += one.dropped;
            Ok(())
        };
        let threads: Vec<_> = (0..plan.instances).map(|_| scope.spawn(work)).collect();
        let died = || Err(ParallelError::Function("a thread died".to_string()));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| died()))
            .collect::<Result<Vec<()>, _>>()
    })?;
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// A guard that counts its thread as working until the thread has processed its minimum number of packets, or panics.
struct Working<'a>(&'a AtomicUsize);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The function, the memory and the packets of one thread.
struct Instance<'a> {
    functions: Vec<Box<dyn Function>>,
    pool: PoolHandle,
    frame: &'a [u8],
    clock: &'a Clock,
    stop: &'a AtomicBool,
    batch: Batch,
    dropped: u64,
}

impl Instance<'_> {
    /// Processes `packets` packets or more, for at least `least`, and continues until every thread has done so.
    /// Otherwise the last thread would have a processor for itself.
    fn run(&mut self, packets: u64, least: Duration, working: Working<'_>) -> LatencyHistogram {
        let mut times = LatencyHistogram::new();
        for _ in 0..WARM_UP {
            self.handle_one();
        }
        self.dropped = 0;
        let begun = Instant::now();
        while (times.count() < packets || begun.elapsed() < least)
            && !self.stop.load(Ordering::Relaxed)
        {
            self.handle_some(&mut times);
        }
        let at_work = working.0;
        drop(working);
        while at_work.load(Ordering::Relaxed) > 0 {
            self.handle_some(&mut times);
        }
        times
    }

    /// Processes a few packets between checks of the time and of the other threads.
    fn handle_some(&mut self, times: &mut LatencyHistogram) {
        for _ in 0..10 {
            let spent_ticks = self.handle_one();
            times.record(self.clock.to_ns(spent_ticks) as u64);
        }
    }

    /// Processes a packet in all functions, and returns the number of cycles that this took.
    fn handle_one(&mut self) -> u64 {
        self.pool.fill(&mut self.batch, 1, self.frame.len() as u16);
        for packet in self.batch.packets_mut() {
            packet.bytes_mut().copy_from_slice(self.frame);
        }
        let context = Context {
            to_port: 1,
            ports: 2,
            ..Context::default()
        };
        let spent = functions_ticks(&mut self.functions, &mut self.batch, context, 1);
        self.dropped += u64::from(self.batch.dropped());
        self.batch.clear();
        spent
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;
    use taut_functions::FUNCTIONS;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn plan(functions: &[&str], instances: usize) -> Plan {
        Plan {
            functions: functions
                .iter()
                .map(|f| Stage::parse(f, FUNCTIONS).unwrap())
                .collect(),
            instances,
            size_bytes: 256,
            packets: 300,
            repetitions: 2,
        }
    }

    #[test]
    fn processing_times_of_all_threads_are_measured() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let measured = measure(&plan(&["xor(key=90)", "forward"], 3), &clock, &NEVER).unwrap();
        let summary = measured.processing_ns.unwrap();
        assert!(summary.count >= 1800, "{summary:?}");
        assert_eq!(measured.dropped, 0);
        let mean = measured.mean_ns.unwrap();
        assert!(mean.low <= mean.point && mean.point > 0.0);
    }

    #[test]
    fn the_burn_function_raises_the_measured_processing_time() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let least_ns = |function: &str| {
            let measured = measure(&plan(&[function], 1), &clock, &NEVER).unwrap();
            measured.processing_ns.unwrap().min_ns as f64
        };
        // A core may run faster than its time-stamp counter, but not three times as fast.
        let burnt_ns = least_ns("burn(cycles=100000)") - least_ns("forward");
        assert!(burnt_ns > clock.to_ns(100_000) / 3.0, "{burnt_ns}");
    }

    #[test]
    fn invalid_plans_are_refused_with_the_reason() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let wrong = measure(&plan(&["xor(key=900)"], 2), &clock, &NEVER).unwrap_err();
        assert!(wrong.to_string().contains("0 to 255"), "{wrong}");
        let mut long = plan(&["forward"], 1);
        long.size_bytes = 10_000;
        assert!(
            measure(&long, &clock, &NEVER)
                .unwrap_err()
                .to_string()
                .contains("10000 bytes")
        );
    }
}
