//! A generator: sends a second of packets through the first port, and prints how many came back through the
//! last port, and their latencies. `cargo run -p taut-traffic --example generator -- 100000 pair:loop pair:loop`

use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_port::PortSpec;
use taut_sys::Clock;
use taut_traffic::{Instrument, Summaries, Traffic, Trial};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rate_pps = arguments
        .next()
        .ok_or("say a rate, packets per second, and ports")?
        .parse()?;
    let ports: Result<Vec<_>, _> = arguments.map(|it| PortSpec::parse(&it)).collect();
    let clock = Clock::calibrate(Duration::from_millis(10));
    let traffic = Traffic::of_settings(&[("size", "64")])?;
    let mut instrument = Instrument::open(&ports?, traffic, clock)?;
    let mut seen = Summaries::new(&clock);
    let duration = Duration::from_secs(1);
    let tally = instrument.run(
        Trial { rate_pps, duration },
        &mut seen,
        &AtomicBool::new(false),
    );
    let p99 = seen.latency.quantile(0.99);
    println!(
        "{} sent, {} received, p99 {:?} ns",
        tally.sent, tally.received, p99
    );
    Ok(())
}
