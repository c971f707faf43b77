//! Compares the flush policies of `taut forward` over memif at 100 kpkt/s with 64-byte frames, interleaved, and prints
//! the cache-line ping-pong of the same minute. `cargo bench --bench flush`
#![allow(clippy::unwrap_used)]

mod peers;

use peers::{Forwarder, Program, Role, start};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_measure::{Summary, ratio_interval};
use taut_sys::Clock;
use taut_traffic::{Instrument, Sampled, Stream, Summaries, Trial, ping_pong, sampler_of_all};
use taut_wire::UdpFlow;

/// Repetitions of `idle` and `each`, which are compared closely; other policies are measured in every fourth
/// repetition.
const REPETITIONS: usize = 60;
const DURATION: Duration = Duration::from_millis(500);
const RATE_PPS: f64 = 100_000.0;
/// Packets of a slice of 10 ms. A preemption for milliseconds spoils the 99th percentile of a whole repetition, but not
/// the median of the percentiles of slices.
const SLICE_PACKETS: usize = 1_000;

/// The results of one repetition.
struct Measured {
    whole: Summary,
    slice_p99_ns: f64,
}

fn main() {
    let taut = |name, flush| Forwarder {
        name,
        role: Role::Client,
        program: Program::Taut { flush },
    };
    let forwarders = [
        taut("idle", "idle(32)"),
        taut("each", "each"),
        taut("full", "full(32,100us)"),
        taut("every", "every(50us)"),
    ];
    let cores = taut_host::choose_cores();
    let clock = Clock::calibrate(Duration::from_millis(200));
    taut_host::pin_current_thread(cores.generator).unwrap();
    let mut measured: [Vec<Measured>; 4] = Default::default();
    let mut floor = Vec::new();
    let mut seed = fastrand::Rng::with_seed(1);
    for repetition in 0..REPETITIONS {
        let other = cores.device;
        floor.push(
            ping_pong(&clock, 2_000, move || {
                taut_host::pin_current_thread(other).unwrap()
            })
            .p50_ns,
        );
        let compared = if repetition % 4 == 0 {
            forwarders.len()
        } else {
            2
        };
        let mut order: Vec<usize> = (0..compared).collect();
        seed.shuffle(&mut order);
        for i in order {
            measured[i].push(measure(&forwarders[i], &cores, clock));
        }
    }
    println!(
        "round trip over memif at 100 kpkt/s, 64-byte frames, interleaved repetitions of {DURATION:?}, medians over them"
    );
    println!(
        "{:<8}{:>4}{:>10}{:>10}{:>14}{:>10}{:>10}{:>12}",
        "flush", "n", "avg ns", "p50 ns", "slice p99 ns", "p99 ns", "p99.9 ns", "max ns"
    );
    let column = |i: usize, figure: fn(&Measured) -> f64| -> Vec<f64> {
        measured[i].iter().map(figure).collect()
    };
    let figures: [fn(&Measured) -> f64; 6] = [
        |m| m.whole.avg_ns,
        |m| m.whole.p50_ns.unwrap_or(0) as f64,
        |m| m.slice_p99_ns,
        |m| m.whole.p99_ns.unwrap_or(0) as f64,
        |m| m.whole.p99_9_ns.unwrap_or(0) as f64,
        |m| m.whole.max_ns as f64,
    ];
    for (i, forwarder) in forwarders.iter().enumerate() {
        let m: Vec<f64> = figures.iter().map(|f| median(column(i, *f))).collect();
        println!(
            "{:<8}{:>4}{:>10.0}{:>10.0}{:>14.0}{:>10.0}{:>10.0}{:>12.0}",
            forwarder.name,
            measured[i].len(),
            m[0],
            m[1],
            m[2],
            m[3],
            m[4],
            m[5]
        );
    }
    println!("cache-line ping-pong: p50 {:.0} ns", median(floor.clone()));
    let show = |what: &str, a: Vec<f64>, b: Vec<f64>| {
        if let Some(r) = ratio_interval(&a, &b, 0.95) {
            println!(
                "{what}: {:.3} ({}; spread {:.3} to {:.3})",
                r.median.point,
                r.median.words(|value| format!("{value:.3}")),
                r.min,
                r.max
            );
        }
    };
    show(
        "p50 of idle / each",
        column(0, figures[1]),
        column(1, figures[1]),
    );
    show(
        "p99 of idle / each, typical 10 ms slice",
        column(0, figures[2]),
        column(1, figures[2]),
    );
    show(
        "p99 of idle / each, whole repetition",
        column(0, figures[3]),
        column(1, figures[3]),
    );
    // `full` was measured in every fourth repetition, so it is compared with `each` of the same repetitions.
    let each_of_these = |figure| column(1, figure).into_iter().step_by(4).collect();
    show(
        "average of full / each",
        column(2, figures[0]),
        each_of_these(figures[0]),
    );
    show(
        "p50 of full / each",
        column(2, figures[1]),
        each_of_these(figures[1]),
    );
    show(
        "p50 of idle / ping-pong",
        column(0, figures[1]),
        floor.clone(),
    );
    show("p50 of each / ping-pong", column(1, figures[1]), floor);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(forwarder: &Forwarder, cores: &taut_host::CorePlan, clock: Clock) -> Measured {
    let never = AtomicBool::new(false);
    let bench = start(forwarder, cores).unwrap();
    let mut instrument = Instrument::open(
        &bench.specs,
        Stream::new(&UdpFlow::default(), 64).unwrap(),
        clock,
    )
    .unwrap();
    instrument
        .wait_for_links(Duration::from_secs(5), &never)
        .unwrap();
    instrument.run(
        Trial {
            rate_pps: RATE_PPS,
            duration: Duration::from_millis(50),
        },
        &mut Summaries::new(&clock),
        &never,
    );
    let trial = Trial {
        rate_pps: RATE_PPS,
        duration: DURATION,
    };
    let (mut record, blocks) = sampler_of_all(trial.packets());
    instrument.run(trial, &mut record, &never);
    record.finish();
    let mut latencies: Vec<u64> = Vec::new();
    while let Some(block) = blocks.next() {
        let ticks = block.packets.iter().filter_map(Sampled::latency_ticks);
        latencies.extend(ticks.map(|ticks| clock.to_ns(u64::from(ticks)) as u64));
    }
    drop(instrument);
    let slices = latencies
        .chunks(SLICE_PACKETS)
        .filter_map(|slice| Some(Summary::from_samples(slice)?.p99_ns? as f64))
        .collect();
    Measured {
        whole: Summary::from_samples(&latencies).unwrap(),
        slice_p99_ns: median(slices),
    }
}
