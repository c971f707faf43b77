//! `taut forward --control`: lines of JSON on standard input. A line replaces the functions of the running worker or of
//! the XDP programs in the kernel, or requests the counters. The reply to each line is a line on standard output.

use crate::exit::Failure;
use crate::forward::Arguments;
use crate::terminal::print;
use std::io::{BufRead, PipeReader};
use std::sync::Arc;
use taut_engine::{Chain, Event, Exchange, Order, Replaced, Report};
use taut_functions::FUNCTIONS;
use taut_sys::Clock;

/// Chains whose functions can be replaced, each with access to its workers.
pub(crate) type Controlled = Vec<(Chain, Arc<Exchange>)>;

/// Reads standard input on a thread of its own, if requested, and calls `obey` for each line, which returns a reply or
/// rejects the line. Returns a pipe that is closed at the end of input, if the end of input must also end the
/// program.
pub(crate) fn listen(
    arguments: &Arguments,
    mut obey: impl FnMut(Order) -> Result<Report, String> + Send + 'static,
) -> Result<Option<PipeReader>, Failure> {
    if !arguments.control {
        return Ok(None);
    }
    let (closed, open) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let read = move || {
        let _open = open;
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => print::report(&answer(&line, &mut obey)),
                // The input is not text, so later input may not consist of lines.
                Err(e) => {
                    print::report(&refused(e.to_string()));
                    return;
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("control".to_string())
        .spawn(read)
        .map_err(|e| Failure::Missing(format!("cannot start the control thread: {e}")))?;
    Ok(Some(closed).filter(|_| arguments.until_stdin_closes))
}

fn answer(line: &str, obey: &mut impl FnMut(Order) -> Result<Report, String>) -> Report {
    let answered = Order::parse(line, FUNCTIONS)
        .map_err(|e| format!("expected {{\"functions\": [{{\"name\": ...}}, ...]}}: {e}"))
        .and_then(obey);
    answered.unwrap_or_else(refused)
}

fn refused(reason: String) -> Report {
    Event::Refused { reason }.into()
}

/// Applies a command to the workers of the chains; `joins` adds a worker and returns its core.
pub(crate) fn of_workers(
    workers: Controlled,
    clock: Clock,
    joins: impl Fn(&Exchange) -> Result<usize, String>,
) -> impl FnMut(Order) -> Result<Report, String> {
    move |order| {
        let Order {
            worker, functions, ..
        } = order;
        let (chain, exchange) = workers.get(worker).ok_or_else(|| {
            format!(
                "no worker {worker}: workers are numbered 0 to {}",
                workers.len() - 1
            )
        })?;
        if order.add_worker {
            let core = joins(exchange)?;
            return Ok(Event::Joined { core }.into());
        }
        let Some(functions) = functions else {
            return Ok(Report {
                event: Event::Counters {
                    counters: exchange.sum(),
                    ports: exchange.ports(),
                },
                worker: Some(worker),
            });
        };
        let mut next = chain.clone();
        next.functions = functions;
        next.check()?;
        let replaced = exchange
            .replace(&next.functions)
            .map_err(|e| e.to_string())?;
        let pause_us = clock.to_ns(replaced.pause_ticks) / 1e3;
        Ok(updated(&replaced, pause_us).into())
    }
}

pub(crate) fn updated(replaced: &Replaced, pause_us: f64) -> Event {
    Event::Updated {
        kept: replaced.kept,
        made: replaced.made,
        pause_us,
    }
}
