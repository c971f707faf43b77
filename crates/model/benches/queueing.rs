//! Measures the packets per second that the queueing simulation processes on one core, in the simplest case and with
//! all its features. It prints the median of seven runs, by processor time where the kernel reports it, else by
//! wall-clock time: `cargo bench -p taut-model --bench queueing`.

use std::fs::read_to_string;
use std::hint::black_box;
use std::time::Instant;

use taut_measure::median_interval;
use taut_model::queueing::{
    Arrivals, Flush, Processor, QueueingError, Release, ServiceTime, Vacations, simulate,
};

const PACKETS: u64 = 20_000_000;
const RUNS: u64 = 7;

fn main() -> Result<(), QueueingError> {
    let constant = ServiceTime::constant(100.0)?;
    let poisson = Arrivals::poisson(8e6)?;
    let cases = [
        ("M/D/1", Processor::new(poisson, constant.clone())),
        (
            "D/D/1",
            Processor::new(Arrivals::constant(8e6)?, constant.clone()),
        ),
        (
            "M/M/1",
            Processor::new(poisson, ServiceTime::exponential(100.0)?),
        ),
        ("M/G/1, 1,000 bins", Processor::new(poisson, histogram()?)),
        (
            "ring 1,024, batches of 32, idle(32), timer interrupts",
            Processor::new(poisson, ServiceTime::constant(60.0)?)
                .with_batch_costs(200.0, 100.0)?
                .with_ring(1_024)?
                .with_receive_batch(32, Release::Batch)?
                .with_flush(Flush::Idle { packets: 32 })?
                .with_vacations(Vacations::none().with_periodic(250.0, 8_000.0)?),
        ),
        (
            "M/M/4",
            Processor::new(Arrivals::poisson(32e6)?, ServiceTime::exponential(100.0)?)
                .with_servers(4)?,
        ),
    ];
    for (name, processor) in cases {
        let mut rates = Vec::new();
        for seed in 0..RUNS {
            let (start, start_ns) = (Instant::now(), processor_ns());
            black_box(simulate(black_box(&processor), PACKETS, seed)?);
            let by_clock = start.elapsed().as_nanos() as f64;
            let taken = processor_ns()
                .zip(start_ns)
                .map_or(by_clock, |(end, start)| (end - start) as f64);
            rates.push(PACKETS as f64 / taken * 1e3);
        }
        if let Some(rate) = median_interval(&rates, 0.95) {
            println!(
                "{name}: {:.1} Mpkt/s ({})",
                rate.point,
                rate.words(|mpps| format!("{mpps:.1}"))
            );
        }
    }
    Ok(())
}

fn histogram() -> Result<ServiceTime, QueueingError> {
    let bins: Vec<_> = (0..1_000)
        .map(|n| (50.0 + f64::from(n) / 10.0, 50.1 + f64::from(n) / 10.0, 1.0))
        .collect();
    ServiceTime::from_bins(&bins)
}

/// Returns the processor time that this thread has used, ns, without the time of other threads on the same core; none
/// if the kernel does not report it.
fn processor_ns() -> Option<u64> {
    read_to_string("/proc/thread-self/schedstat")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}
