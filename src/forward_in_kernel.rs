//! `taut forward --in-kernel`: attaches XDP programs, and counts until it is told to stop.

use crate::exit::Failure;
use crate::forward::{Arguments, causes, each_second, json_or_text, lines_of};
use crate::{print, quantity};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use taut_engine::{Beside, Chain, CountersView};
use taut_port::xdp_forward::{KernelCounters, KernelForwarder};
use taut_port::{Clock, Link};

pub fn run(chain: &Chain, arguments: &Arguments, signalled: &AtomicBool) -> Result<(), Failure> {
    let in_kernel = chain.in_kernel()?;
    // Before any frame comes: its functions say what the kernel is to do.
    let beside = in_kernel
        .gateway()
        .map(|gateway| Beside::start(chain, gateway, &Clock::calibrate(Duration::from_millis(20))))
        .transpose()?;
    let mut forwarder = KernelForwarder::start(&chain.ports, in_kernel.program())?;
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
    each_second(arguments, signalled, &[], |second| {
        tell_links(&names, &mut known, forwarder.links());
        let besides = beside.as_ref().map(Beside::counters).unwrap_or_default();
        let now = view(forwarder.counters(), besides);
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
    let seconds = begun.elapsed().as_secs_f64();
    // The programs go first, so that what they have handed up is all there is.
    let counted = forwarder.end();
    let (besides, mut fates) = beside.map(Beside::end).unwrap_or_default();
    fates.extend(in_kernel.fates());
    let total = view(counted, besides);
    print::line(json_or_text(
        arguments.json,
        || {
            let fates: BTreeMap<_, _> = fates.iter().copied().collect();
            json!({
                "event": "summary", "seconds": seconds, "counters": total, "dropped": total.dropped(),
                "fates": fates
            })
        },
        || {
            format!(
                "forwarded {} of {} packets in {seconds:.1} s ({}); dropped {}{}",
                total.tx_packets,
                total.rx_packets,
                quantity::pps(total.tx_packets as f64 / seconds.max(1e-9)),
                causes(&total),
                lines_of(&fates)
            )
        },
    ));
    Ok(())
}

/// The same words as for a worker; what the kernel has no number for stays 0. What it handed up to the worker beside it
/// went on there.
fn view(counted: KernelCounters, beside: CountersView) -> CountersView {
    CountersView {
        rx_packets: counted.rx_packets,
        rx_bytes: counted.rx_bytes,
        tx_packets: counted.tx_packets + beside.tx_packets,
        tx_bytes: counted.tx_bytes + beside.tx_bytes,
        first_rx_packets: counted.first_rx_packets,
        first_tx_packets: counted.first_tx_packets,
        dropped_by_function: counted.too_short + counted.dropped + beside.dropped_by_function,
        dropped_tx_failed: counted.refused + beside.dropped_tx_failed,
        dropped_rx_overrun: beside.dropped_rx_overrun,
        dropped_too_long: counted.too_long + beside.dropped_too_long,
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
