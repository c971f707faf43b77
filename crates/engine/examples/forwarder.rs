//! A forwarder between two ports that swaps MAC addresses and runs until standard input closes.
//! `cargo run -p taut-engine --example forwarder -- af_packet:eth1 af_packet:eth2`

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_engine::{Chain, Stage, Start, Team};
use taut_functions::FUNCTIONS;
use taut_port::PortSpec;
use taut_sys::Clock;

static GIVEN_UP: AtomicBool = AtomicBool::new(false);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ports: Result<Vec<_>, _> = std::env::args()
        .skip(1)
        .map(|it| PortSpec::parse(&it))
        .collect();
    let chain = Chain::new(ports?, vec![Stage::parse("mac-swap", FUNCTIONS)?]);
    chain.check()?;
    let stop = Arc::new(AtomicBool::new(false));
    let start = Start {
        clock: Clock::calibrate(Duration::from_millis(10)),
        stop: Arc::clone(&stop),
        given_up: &GIVEN_UP,
        tell: Arc::new(|line| eprintln!("{line}")),
        tell_link: Arc::new(|port, link| eprintln!("{port}: {link:?}")),
        at_end: Arc::new(|_| ()),
    };
    let team = Team::start(&chain, "worker", &start, None)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let counted = team.exchange().sum();
    stop.store(true, Ordering::Relaxed);
    team.join();
    println!(
        "{} packets in, {} out",
        counted.rx_packets, counted.tx_packets
    );
    Ok(())
}
