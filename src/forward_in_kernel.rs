//! `taut forward --in-kernel`: attaches XDP programs, and counts until it is told to stop.

use crate::exit::Failure;
use crate::forward::{Arguments, causes, each_second, json_or_text};
use crate::{print, quantity};
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use taut_engine::{Chain, CountersView};
use taut_port::Link;
use taut_port::xdp_forward::{KernelCounters, KernelForwarder};

pub fn run(chain: &Chain, arguments: &Arguments, signalled: &AtomicBool) -> Result<(), Failure> {
    let mut forwarder = KernelForwarder::start(&chain.ports, &chain.header_changes()?)?;
    let names: Vec<_> = chain.ports.iter().map(|p| p.target().to_string()).collect();
    let mut known: Vec<Option<Link>> = vec![None; names.len()];
    let details = forwarder.details();
    for line in &details {
        eprintln!("taut: {line}");
    }
    tell_links(&names, &mut known, forwarder.links());
    print::line(json_or_text(
        arguments.json,
        || json!({"event": "started", "place": "kernel", "directions": details}),
        || "forwarding in the kernel".to_string(),
    ));
    let begun = Instant::now();
    let mut before = CountersView::default();
    each_second(arguments, signalled, None, |second| {
        tell_links(&names, &mut known, forwarder.links());
        let now = view(forwarder.counters());
        let during = now - before;
        print::line(json_or_text(
            arguments.json,
            || json!({"event": "second", "second": second, "counters": during}),
            || {
                format!(
                    "{second:>5} s  rx {:>14}  tx {:>14}  dropped {}",
                    quantity::pps(during.rx_packets as f64),
                    quantity::pps(during.tx_packets as f64),
                    causes(&during)
                )
            },
        ));
        before = now;
    });
    let total = view(forwarder.counters());
    let seconds = begun.elapsed().as_secs_f64();
    print::line(json_or_text(
        arguments.json,
        || {
            json!({
                "event": "summary", "seconds": seconds, "counters": total, "dropped": total.dropped()
            })
        },
        || {
            format!(
                "forwarded {} of {} packets in {seconds:.1} s ({}); dropped {}",
                total.tx_packets,
                total.rx_packets,
                quantity::pps(total.tx_packets as f64 / seconds.max(1e-9)),
                causes(&total)
            )
        },
    ));
    Ok(())
}

/// The same words as for a worker; what the kernel has no number for stays 0.
fn view(counted: KernelCounters) -> CountersView {
    CountersView {
        rx_packets: counted.rx_packets,
        rx_bytes: counted.rx_bytes,
        tx_packets: counted.tx_packets,
        tx_bytes: counted.tx_bytes,
        dropped_by_function: counted.too_short,
        dropped_tx_failed: counted.refused,
        ..CountersView::default()
    }
}

fn tell_links(names: &[String], known: &mut [Option<Link>], now: Vec<Link>) {
    for ((name, known), link) in names.iter().zip(known).zip(now) {
        if known.as_ref() == Some(&link) {
            continue;
        }
        match &link {
            Link::Up => eprintln!("taut: {name}: up"),
            Link::Down(why) => eprintln!("taut: {name}: down: {why}"),
        }
        *known = Some(link);
    }
}
