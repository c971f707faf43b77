//! The lines that `taut forward` prints, as text or as JSON.

use super::chains::Chains;
use crate::terminal::quantity;
use serde::Serialize;
use std::collections::BTreeMap;
use taut_engine::{AtPort, Chain, CountersView, Event, Exchange, Report, Started, Summary};

pub(super) fn started(chain: &Chain) -> Event {
    let are_several = chain.workers > 1;
    Event::Started(Started {
        flush: Some(chain.flush.to_string()),
        wait: Some(chain.wait.to_string()),
        core: chain.core,
        workers: are_several.then_some(chain.workers),
        cores: if are_several {
            chain.cores.clone()
        } else {
            Vec::new()
        },
        ..Started::default()
    })
}

/// Returns the counters of each worker if there are several workers, otherwise an empty list.
pub(super) fn of_several(each: &[CountersView]) -> Vec<CountersView> {
    if each.len() > 1 {
        each.to_vec()
    } else {
        Vec::new()
    }
}

/// Wraps an event for output. If there are several chains, the index of its chain, `number`, is added.
pub(super) fn of_chain(chains: &Chains, number: usize, event: Event) -> Report {
    let worker = (chains.len() > 1).then_some(number);
    Report { event, worker }
}

/// Prefixes a line with `name`, the name of its chain file; `None` if there is only one chain.
pub(super) fn named(name: &Option<String>, line: String) -> String {
    match name {
        Some(name) => format!("{name:<12}{line}"),
        None => line,
    }
}

/// Returns the packet counters of each port.
pub(crate) fn at_ports(chain: &Chain, exchange: &Exchange) -> Vec<AtPort> {
    let mut queues = exchange.queues().into_iter();
    let ports = chain.ports.iter().zip(exchange.ports());
    ports
        .map(|(spec, counters)| AtPort {
            port: spec.text().to_string(),
            counters,
            queues: queues.next().unwrap_or_default(),
        })
        .collect()
}

pub(super) fn busy_of_each(each: &[CountersView]) -> String {
    if each.len() < 2 {
        return String::new();
    }
    let each: Vec<_> = each
        .iter()
        .map(|it| format!("{:.0} %", it.busy() * 100.0))
        .collect();
    format!(" ({})", each.join(", "))
}

pub(crate) fn json_or_text<T: Serialize>(
    json: bool,
    as_json: impl FnOnce() -> T,
    as_text: impl FnOnce() -> String,
) -> String {
    if json {
        serde_json::to_string(&as_json()).unwrap_or_default()
    } else {
        as_text()
    }
}

pub(crate) fn causes(c: &CountersView) -> String {
    let parts: Vec<String> = c
        .dropped_causes()
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(cause, n)| format!("{cause} {n}"))
        .collect();
    if parts.is_empty() {
        "0".to_string()
    } else {
        parts.join(", ")
    }
}

pub(super) fn line(second: u32, c: CountersView) -> String {
    format!(
        "{second:>5} s  rx {:>14}  tx {:>14}  dropped {}  batch {:.1}  {}",
        quantity::rate(c.rx_packets as f64),
        quantity::rate(c.tx_packets as f64),
        causes(&c),
        c.average_batch(),
        worked(&c)
    )
}

/// Describes how the worker spent its time.
fn worked(c: &CountersView) -> String {
    let asleep = match c.sleeps {
        0 => String::new(),
        _ => format!(", asleep {:.1} %", c.asleep() * 100.0),
    };
    format!("busy {:.1} %{asleep}", c.busy() * 100.0)
}

pub(super) fn summary(c: &CountersView, seconds: f64, outcomes: &[(&'static str, u64)]) -> String {
    format!(
        "{} in {seconds:.1} s ({}); dropped {}; average batch {:.1}; {}; interrupted {}, {:.2} % of the time{}",
        passed(c),
        quantity::rate(c.tx_packets as f64 / seconds.max(1e-9)),
        causes(c),
        c.average_batch(),
        worked(c),
        quantity::counted(c.interruptions, "time"),
        c.interrupted() * 100.0,
        lines_of(outcomes)
    )
}

/// Describes how many packets arrived and left. More may leave than arrive, as functions and the slow path create
/// packets.
pub(crate) fn passed(c: &CountersView) -> String {
    let (came, sent) = (c.rx_packets, c.tx_packets);
    match c.from_slow_path {
        0 if sent <= came => format!("forwarded {sent} of {came} packets"),
        0 => format!("received {came} packets, sent {sent}"),
        from => format!("received {came} packets, sent {sent} ({from} from the slow path)"),
    }
}

/// Describes the outcomes that functions report, with a line for each cause that occurred.
pub(crate) fn lines_of(outcomes: &[(&'static str, u64)]) -> String {
    let outcomes = outcomes.iter().filter(|(_, n)| *n > 0);
    outcomes
        .map(|(outcome, n)| format!("\n  {outcome} {n}"))
        .collect()
}

/// Returns the fields that every summary contains.
pub(crate) fn summary_of(
    c: &CountersView,
    seconds: f64,
    outcomes: &[(&'static str, u64)],
) -> Summary {
    let outcomes: BTreeMap<String, u64> = outcomes
        .iter()
        .map(|(outcome, n)| (outcome.to_string(), *n))
        .collect();
    Summary {
        seconds,
        counters: *c,
        dropped: c.dropped(),
        outcomes,
        died: taut_sys::dead_threads()
            .into_iter()
            .map(|it| it.name)
            .collect(),
        ..Summary::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_functions_create_are_not_counted_as_forwarded() {
        let line = |rx_packets, tx_packets, from_slow_path| {
            passed(&CountersView {
                rx_packets,
                tx_packets,
                from_slow_path,
                ..CountersView::default()
            })
        };
        assert_eq!(line(48, 43, 0), "forwarded 43 of 48 packets");
        assert_eq!(line(43, 48, 0), "received 43 packets, sent 48");
        let created = "received 43 packets, sent 48 (5 from the slow path)";
        assert_eq!(line(43, 48, 5), created);
    }
}
