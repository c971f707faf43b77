//! The cost of packet inspection on this machine, and the rate at which the receive ring begins to fill. The function
//! `ips` processes packets from memory, without any port, and the overload model computes the rate from the cost.
//! (Gallenmüller 2021, section 5.4.4, eq. 5.10.)
//!
//! The paper uses as t_CPU the median latency of lonely packets (packets that arrive alone). Here it is the mean time
//! of packets in full batches, the time on a busy core. In each round, the function processes all frames of one kind of
//! traffic once. A batch that takes much longer in one round than in the others was interrupted.

use crate::ForecastError;
use crate::overload::{Taken, published_errors};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};
use taut_engine::{functions_ticks, look_ticks};
use taut_function::{Context, Function};
use taut_inspect::trace;
use taut_ips::looking;
use taut_measure::rank::nearest_rank;
use taut_measure::{median, median_interval};
use taut_model::estimate::{Estimate, Prediction};
use taut_model::overload::Overload;
use taut_model::queueing::{Arrivals, Processor, Release, ServiceTime, Vacations, replicate};
use taut_port::{BATCH_CAPACITY, Batch, PoolHandle};
use taut_sys::Clock;

/// Lengths of the frames to port 53, check sequence included, bytes.
pub const FRAME_BYTES: [usize; 6] = [64, 128, 256, 512, 1024, 1518];
/// Number of frames of one size, which differ only in a counter.
const FRAMES: u64 = 256;
/// Fractions of R_max at which latency is reported.
pub const LOADS: [f64; 4] = [0.1, 0.5, 0.8, 0.95];
/// Number of runs for each kind of traffic; the runs' mean times give the interval. Each run loads the rules again and
/// has its own memory; runs of all kinds of traffic are interleaved.
const MEASURED: usize = 6;
/// Minimum number of measured rounds in a run.
const LEAST_ROUNDS: usize = 2;
/// Maximum number of measured rounds in a run.
const MOST_ROUNDS: usize = 4096;
/// Number of warm-up rounds before the measured rounds of a run.
const WARM_UP: usize = 3;
/// Time by which a batch must exceed its usual time to count as interrupted, ns; [`TIMES_USUAL`] must be exceeded too.
const SHORTEST_INTERRUPTION_NS: f64 = 1000.0;
/// Multiple of its usual time that a batch must exceed to count as interrupted.
const TIMES_USUAL: f64 = 4.0;
/// Fraction of the core's time that interruptions may take before a note mentions them.
const DISTURBED: f64 = 0.05;
/// Number of packets in each simulation of latency.
const PACKETS: u64 = 30_000;
const RUNS: u64 = 3;
const SEED: u64 = 1;
const CONFIDENCE: f64 = 0.95;

/// The parameters of a measurement of packet inspection.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Settings of the function `ips`, as in a chain file. Events are not written, and no control socket is opened.
    pub settings: toml::Table,
    /// Maximum number of packets received at a time, at most 64.
    pub burst: usize,
    /// Length of the receive ring in which packets wait, packets.
    pub queue: usize,
    /// Time for receiving and sending a packet, which is added to the inspection, ns.
    pub io_ns: f64,
    /// Length of the measurement for each kind of traffic.
    pub duration: Duration,
}

/// The result of a measurement of packet inspection.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Capacity {
    /// Number of rules that the function `ips` loaded.
    pub rules: usize,
    /// Packets in a full batch.
    pub burst: usize,
    /// Length of the receive ring, packets.
    pub queue: usize,
    /// The configured time for receiving and sending a packet, ns.
    pub io_ns: f64,
    /// The results by kind of traffic.
    pub traffic: Vec<OfTraffic>,
    /// Notes for the reader about the meaning of the results.
    pub notes: Vec<String>,
}

/// The result for one kind of traffic.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OfTraffic {
    /// Name of the traffic: `port 53` or `mixed`.
    pub name: &'static str,
    /// Mean length of a frame, check sequence included, bytes.
    pub frame_bytes: f64,
    /// Number of packets of this kind of traffic that were timed.
    pub packets: u64,
    /// Fraction of the timed packets that were matched against rules, 0 to 1.
    pub inspected: f64,
    /// The times of packets that arrive alone: median, 99th percentile and maximum.
    pub alone: Alone,
    /// Mean time of a packet in full batches, ns.
    pub busy_ns: Estimate,
    /// Interruptions of the core during the measurement of this kind of traffic.
    pub interruptions: Taken,
    /// The highest rate that a core sustains: R_max.
    pub highest: Prediction,
    /// Time that a packet waits if it takes the last free slot of the receive ring, ns.
    pub ring_ns: f64,
    /// Latency at the fractions [`LOADS`] of R_max.
    pub latency: Vec<AtLoad>,
}

/// Times of packets that arrive alone, ns. The time of a packet is its median over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Alone {
    /// Median time of a packet that arrives alone, ns.
    pub p50_ns: f64,
    /// 99th percentile of the times of packets that arrive alone, ns.
    pub p99_ns: f64,
    /// Largest time of a packet that arrives alone, ns.
    pub max_ns: f64,
}

/// Latency at a fraction of R_max, with random (Poisson) arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct AtLoad {
    /// Rate as a fraction of R_max.
    pub share: f64,
    /// Offered rate, packets per second.
    pub rate_pps: f64,
    /// Median latency, ns.
    pub p50_ns: f64,
    /// 99th percentile of the latency, ns.
    pub p99_ns: f64,
    /// 99.9th percentile of the latency, ns.
    pub p99_9_ns: f64,
    /// Fraction of the packets that arrived at a full receive ring and were lost.
    pub loss: f64,
}

/// Measures the inspection with each kind of traffic, and evaluates the models. `told` is called with a progress line
/// for each run.
///
/// # Errors
/// Settings or rules are invalid, the machine lacks memory, or interruptions take the entire core.
pub fn capacity(asked: &Inspection, mut told: impl FnMut(&str)) -> Result<Capacity, ForecastError> {
    let clock = Clock::calibrate(Duration::from_millis(20));
    let mut kinds = Vec::new();
    for size in FRAME_BYTES {
        kinds.push(("port 53", trace::counters(size, FRAMES)));
    }
    kinds.push(("mixed", trace::mixed()));
    let mut all = Vec::new();
    for (name, frames) in kinds {
        let frames = frames.map_err(|e| ForecastError::Wrong(format!("traffic {name}: {e}")))?;
        all.push(Kind {
            name,
            frames,
            runs: Vec::new(),
            inspected: 0.0,
        });
    }
    let mut rules = 0;
    for run in 1..=MEASURED {
        let wrong = |e: &dyn std::fmt::Display| ForecastError::Wrong(e.to_string());
        let (mut looking, read) = looking(asked.settings.clone()).map_err(|e| wrong(&e))?;
        rules = read.rules;
        told(&format!("run {run} of {MEASURED}"));
        for kind in &mut all {
            // Flows that the function stored for one kind of traffic must not affect the next kind.
            let mut function = looking.function().map_err(|e| wrong(&e))?;
            function.prepare().map_err(|e| wrong(&e))?;
            let part = asked.duration / (2 * MEASURED as u32);
            let mut rounds = |burst| Rounds::of(&mut function, &kind.frames, burst, part);
            let alone = rounds(1)?;
            let busy = rounds(asked.burst.clamp(1, BATCH_CAPACITY))?;
            kind.runs.push(Run { alone, busy });
            kind.inspected += inspected(&*function) / MEASURED as f64;
        }
    }
    let mut traffic = Vec::new();
    for kind in all {
        let found = Found::of(&kind.runs, &clock)?;
        traffic.push(found.predict(asked, kind.name, kind.frame_bytes(), kind.inspected)?);
    }
    Ok(Capacity {
        rules,
        burst: asked.burst,
        queue: asked.queue,
        io_ns: asked.io_ns,
        notes: notes(asked, rules, &traffic),
        traffic,
    })
}

/// A kind of traffic, with its runs of the measurement.
struct Kind {
    name: &'static str,
    frames: Vec<Vec<u8>>,
    runs: Vec<Run>,
    /// Fraction of the packets that were matched against rules.
    inspected: f64,
}

impl Kind {
    /// Returns the mean length of a frame, check sequence included, bytes.
    fn frame_bytes(&self) -> f64 {
        let bytes: usize = self.frames.iter().map(Vec::len).sum();
        // The check sequence is not in memory.
        bytes as f64 / self.frames.len() as f64 + 4.0
    }
}

/// Returns the fraction of the packets that were matched against rules.
fn inspected(function: &dyn Function) -> f64 {
    let (mut all, mut asked) = (0, 0);
    for (name, count) in function.outcomes() {
        all += count;
        if matches!(
            name,
            "passed" | "dropped_by_rule" | "rejected" | "passed_over_time" | "dropped_over_time"
        ) {
            asked += count;
        }
    }
    asked as f64 / f64::max(all as f64, 1.0)
}

fn notes(asked: &Inspection, rules: usize, traffic: &[OfTraffic]) -> Vec<String> {
    let mut notes = Vec::new();
    if rules == 0 {
        notes.push("there are no rules: this is the engine alone".to_owned());
    }
    if asked.io_ns == 0.0 {
        let text = "of the inspection alone: say by --io what a port and the worker take for a packet \
                    (`taut bench io` measures it)";
        notes.push(text.to_owned());
    }
    let taken = traffic.iter().map(|it| it.interruptions.share);
    let taken = taken.fold(0.0, f64::max);
    if taken > DISTURBED {
        notes.push(format!(
            "something took {:.0} % of the core meanwhile: measure on a quiet one (--core, `taut tune noise`)",
            100.0 * taken
        ));
    }
    let text = "packets lie in the caches, as a port's do that were just received; a core whose caches others use \
                takes longer";
    notes.push(text.to_owned());
    if let Some(least) = traffic
        .iter()
        .min_by(|one, other| one.inspected.total_cmp(&other.inspected))
        .filter(|it| it.inspected < 0.9)
    {
        notes.push(format!(
            "rules were asked about {:.0} % of {} only, as flows passed or were dropped as a whole: \
             other traffic costs more",
            100.0 * least.inspected,
            least.name
        ));
    }
    notes
}

/// The measurements of one kind of traffic in a run: packets alone, and packets in full batches.
struct Run {
    alone: Rounds,
    busy: Rounds,
}

/// The clock ticks that each batch took in each measured round.
#[derive(Debug, Clone, PartialEq)]
struct Rounds {
    /// Number of packets in each batch of a round.
    packets: Vec<usize>,
    /// Clock ticks that batches took, by round, then by batch.
    ticks: Vec<Vec<u64>>,
}

impl Rounds {
    /// Passes the frames to the function repeatedly, in batches of `burst`.
    fn of(
        function: &mut Box<dyn Function>,
        frames: &[Vec<u8>],
        burst: usize,
        duration: Duration,
    ) -> Result<Self, ForecastError> {
        let pool = PoolHandle::new(2 * BATCH_CAPACITY as u32, false)
            .map_err(|e| ForecastError::Wrong(e.to_string()))?;
        // Measured times include two clock reads, whose time is subtracted.
        let empty = look_ticks();
        let mut batch = Batch::new();
        let mut rounds: Vec<Vec<u64>> = Vec::new();
        let began = Instant::now();
        for number in 0..WARM_UP + MOST_ROUNDS {
            if number >= WARM_UP + LEAST_ROUNDS && began.elapsed() >= duration {
                break;
            }
            let mut round = Vec::with_capacity(frames.len().div_ceil(burst));
            for part in frames.chunks(burst) {
                for frame in part {
                    let Some(mut packet) = pool.take(frame.len() as u16) else {
                        continue;
                    };
                    packet.bytes_mut().copy_from_slice(frame);
                    batch.push(packet);
                }
                let context = Context {
                    to_port: 1,
                    ports: 2,
                    ..Context::default()
                };
                let function = std::slice::from_mut(function);
                let spent = functions_ticks(function, &mut batch, context, 1);
                round.push(spent.saturating_sub(empty));
                batch.clear();
            }
            if number >= WARM_UP {
                rounds.push(round);
            }
        }
        Ok(Self {
            packets: frames.chunks(burst).map(<[Vec<u8>]>::len).collect(),
            ticks: rounds,
        })
    }

    /// Returns the usual ticks of each batch: the median over the rounds.
    fn usual(&self) -> Vec<f64> {
        let of_batch = |at: usize| {
            let all: Vec<f64> = self.ticks.iter().map(|round| round[at] as f64).collect();
            median(&all).unwrap_or(0.0)
        };
        (0..self.packets.len()).map(of_batch).collect()
    }
}

/// The evaluation of the measured rounds of all runs.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    packets: u64,
    /// Time of each packet that arrived alone, ns.
    alone_ns: Vec<f64>,
    busy_ns: Estimate,
    /// Lengths of the interruptions, ns.
    interruptions_ns: Vec<f64>,
    seen_ns: f64,
}

impl Found {
    fn of(runs: &[Run], clock: &Clock) -> Result<Self, ForecastError> {
        let ns = 1e9 / clock.hz;
        let (mut interruptions_ns, mut seen_ns, mut packets) = (Vec::new(), 0.0, 0);
        // The interval is computed from the mean time per packet of each run, in full batches.
        let mut means = Vec::new();
        for run in runs {
            for rounds in [&run.alone, &run.busy] {
                let mut own_ns = 0.0;
                let usual = rounds.usual();
                for round in &rounds.ticks {
                    for (&took, &usual) in round.iter().zip(&usual) {
                        let (took, usual) = (took as f64 * ns, usual * ns);
                        seen_ns += took;
                        let limit = SHORTEST_INTERRUPTION_NS.max((TIMES_USUAL - 1.0) * usual);
                        if took - usual > limit {
                            interruptions_ns.push(took - usual);
                            own_ns += usual;
                        } else {
                            own_ns += took;
                        }
                    }
                }
                let given = rounds.ticks.len() * rounds.packets.iter().sum::<usize>();
                packets += given as u64;
                if std::ptr::eq(rounds, &run.busy) {
                    means.push(own_ns / f64::max(given as f64, 1.0));
                }
            }
        }
        let usual: Vec<Vec<f64>> = runs.iter().map(|run| run.alone.usual()).collect();
        let of_packet = |at: usize| {
            let of_runs: Vec<f64> = usual
                .iter()
                .filter_map(|run| run.get(at).copied())
                .collect();
            median(&of_runs).unwrap_or(0.0) * ns
        };
        let alone_ns: Vec<f64> = (0..usual.first().map_or(0, Vec::len))
            .map(of_packet)
            .collect();
        let interval = median_interval(&means, CONFIDENCE)
            .ok_or_else(|| ForecastError::Wrong("no packet was measured".to_owned()))?;
        let busy_ns = Estimate::new(
            interval.point,
            interval.low.min(interval.point),
            interval.high.max(interval.point),
            interval.confidence,
        )?;
        Ok(Self {
            packets,
            alone_ns,
            busy_ns,
            interruptions_ns,
            seen_ns,
        })
    }

    /// Returns the quantiles of the times of packets that arrive alone.
    fn alone(&self) -> Alone {
        let mut sorted = self.alone_ns.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let rank = nearest_rank(sorted.len() as u64, q);
            rank.map_or(0.0, |rank| sorted[rank as usize])
        };
        Alone {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: at(1.0),
        }
    }

    fn predict(
        self,
        asked: &Inspection,
        name: &'static str,
        frame_bytes: f64,
        inspected: f64,
    ) -> Result<OfTraffic, ForecastError> {
        let taken_ns: f64 = self.interruptions_ns.iter().sum();
        let interruptions = Taken {
            per_second: self.interruptions_ns.len() as f64 / self.seen_ns.max(1.0) * 1e9,
            share: taken_ns / self.seen_ns.max(1.0),
        };
        let model = Overload {
            cpu_us: self.busy_ns.map(|ns| (ns + asked.io_ns) / 1e3),
            interrupted_us_per_s: 1e6 * interruptions.share,
        };
        let highest = model.highest_rate(published_errors());
        let highest_pps = highest.estimate.value;
        let mut vacations = Vacations::none();
        if !self.interruptions_ns.is_empty() {
            let lengths = ServiceTime::from_samples(&self.interruptions_ns)?;
            vacations = vacations.with_random(interruptions.per_second, lengths)?;
        }
        // The distribution has the shape that was measured with lonely packets, shifted so that its mean is the mean
        // time on a busy core.
        let mean_ns = self.alone_ns.iter().sum::<f64>() / self.alone_ns.len().max(1) as f64;
        let service = ServiceTime::from_samples(&self.alone_ns)?
            .shifted(self.busy_ns.value + asked.io_ns - mean_ns)?;
        let latency = at_loads(asked, &service, &vacations, highest_pps)?;
        Ok(OfTraffic {
            name,
            frame_bytes,
            packets: self.packets,
            inspected,
            alone: self.alone(),
            busy_ns: self.busy_ns,
            interruptions,
            ring_ns: asked.queue as f64 / highest_pps * 1e9,
            highest,
            latency,
        })
    }
}

/// Simulates the latency at each of the [`LOADS`].
fn at_loads(
    asked: &Inspection,
    service: &ServiceTime,
    vacations: &Vacations,
    highest_pps: f64,
) -> Result<Vec<AtLoad>, ForecastError> {
    let mut latency = Vec::new();
    for share in LOADS {
        let rate_pps = share * highest_pps;
        let processor = Processor::new(Arrivals::poisson(rate_pps)?, service.clone())
            .with_ring(asked.queue)?
            .with_receive_batch(asked.burst, Release::Batch)?
            .with_vacations(vacations.clone());
        let found = replicate(&processor, PACKETS, RUNS, SEED)?;
        let quantile = |q: f64| found.latency.quantile(q).unwrap_or(0) as f64;
        latency.push(AtLoad {
            share,
            rate_pps,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p99_9_ns: quantile(0.999),
            loss: found.loss().map_or(0.0, |loss| loss.point),
        });
    }
    Ok(latency)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A clock with one tick per nanosecond.
    const CLOCK: Clock = Clock {
        hz: 1e9,
        error_ppm: 0.0,
    };

    fn asked(queue: usize) -> Inspection {
        Inspection {
            settings: toml::Table::new(),
            burst: 4,
            queue,
            io_ns: 0.0,
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn r_max_is_uninterrupted_time_divided_by_time_per_packet() {
        // Two packets of 900 and 1,100 ns alone, and 1,600 ns together; one round in twelve is interrupted for 12 us.
        let run = || Run {
            alone: Rounds {
                packets: vec![1, 1],
                ticks: vec![vec![900, 1100]; 2],
            },
            busy: Rounds {
                packets: vec![2],
                ticks: vec![vec![1600]; 2],
            },
        };
        let mut runs: Vec<Run> = (0..6).map(|_| run()).collect();
        let found = Found::of(&runs, &CLOCK).unwrap();
        assert_eq!(found.packets, 48);
        assert_eq!((found.busy_ns.value, found.busy_ns.high), (800.0, 800.0));
        let quiet = found.predict(&asked(1000), "mixed", 64.0, 1.0).unwrap();
        assert!((quiet.highest.estimate.value - 1.25e6).abs() < 1.0);
        assert!((quiet.ring_ns - 800_000.0).abs() < 1.0);
        assert_eq!((quiet.alone.p50_ns, quiet.alone.max_ns), (900.0, 1100.0));
        runs[2].alone.ticks[1][0] += 12_000;
        runs[2].alone.ticks.push(vec![900, 1100]);
        runs[1].alone.ticks.pop();
        let found = Found::of(&runs, &CLOCK).unwrap();
        assert_eq!(found.interruptions_ns, [12_000.0]);
        let share = 12_000.0 / (12.0 * 2000.0 + 12.0 * 1600.0 + 12_000.0);
        let held_up = found.predict(&asked(1000), "mixed", 64.0, 1.0).unwrap();
        assert!((held_up.interruptions.share - share).abs() < 1e-9);
        let expected = (1.0 - share) * 1.25e6;
        assert!((held_up.highest.estimate.value - expected).abs() < 1.0);
        // At rates closer to R_max, packets wait longer: at most for a full ring and the packets that are being
        // processed.
        let of = |at: usize| held_up.latency[at];
        assert!(of(0).p50_ns < of(2).p50_ns && of(2).p50_ns < of(3).p50_ns);
        assert!((of(3).rate_pps - 0.95 * expected).abs() < 1.0);
    }

    #[test]
    fn confidence_intervals_are_computed_from_runs_and_not_from_repetitions() {
        // Runs of 800 to 850 ns, each repeatable to the nanosecond.
        let run = |number: u64| Run {
            alone: Rounds {
                packets: vec![1],
                ticks: vec![vec![900]; 100],
            },
            busy: Rounds {
                packets: vec![2],
                ticks: vec![vec![1600 + 20 * number]; 100],
            },
        };
        let runs: Vec<Run> = (0..6).map(run).collect();
        let found = Found::of(&runs, &CLOCK).unwrap().busy_ns;
        assert_eq!((found.low, found.value, found.high), (800.0, 825.0, 850.0));
        assert!(found.confidence > 0.95, "{found:?}");
        let one = Found::of(&runs[..1], &CLOCK).unwrap().busy_ns;
        assert_eq!((one.value, one.confidence), (800.0, 0.0));
    }

    #[test]
    fn input_and_output_time_is_added_to_the_packet_cost() {
        let rounds = || Rounds {
            packets: vec![1],
            ticks: vec![vec![400]; 12],
        };
        let run = Run {
            alone: rounds(),
            busy: rounds(),
        };
        let found = Found::of(&[run], &CLOCK).unwrap();
        let with_io = Inspection {
            io_ns: 100.0,
            ..asked(64)
        };
        let of = found.predict(&with_io, "mixed", 64.0, 1.0).unwrap();
        assert!((of.highest.estimate.value - 2e6).abs() < 1.0);
        assert!((of.ring_ns - 32_000.0).abs() < 1.0);
        assert!(of.latency[0].p50_ns >= 500.0, "{of:?}");
    }

    #[test]
    fn this_machine_is_measured_with_every_kind_of_traffic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        std::fs::write(&path, taut_inspect::sample::rules()).unwrap();
        // Each of 42 inspections has its own memory; the traffic fits into a part of the usual memory.
        let settings = format!(
            "rules = [{path:?}]\nflows = 8192\nmemory = \"8 MB\"\nhead_limit = \"8 KiB\"\nbody_limit = \"8 KiB\"\n"
        );
        let asked = Inspection {
            settings: settings.parse().unwrap(),
            ..asked(512)
        };
        let mut told = 0;
        let found = capacity(&asked, |_| told += 1).unwrap();
        assert_eq!((found.rules, told), (taut_inspect::sample::RULES, 6));
        assert_eq!(found.traffic.len(), 7);
        for of in &found.traffic {
            assert!(of.inspected > 0.9 && of.packets >= 24 * FRAMES, "{of:?}");
            assert!(of.alone.p50_ns > 0.0 && of.busy_ns.value > 0.0, "{of:?}");
            assert!(of.highest.estimate.value > 100.0 && of.ring_ns > 0.0);
            assert_eq!(of.latency.len(), LOADS.len());
        }
        assert_eq!(found.traffic[0].frame_bytes, 64.0);
        let wrong = Inspection {
            settings: [("rulse".to_owned(), toml::Value::Boolean(true))]
                .into_iter()
                .collect(),
            ..asked
        };
        let error = capacity(&wrong, |_| {}).unwrap_err().to_string();
        assert!(error.contains("rulse"), "{error}");
    }
}
