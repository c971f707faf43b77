//! `taut forward --control`: lines of JSON on standard input replace the functions of the running worker, or ask for its
//! counters; each is answered by a line on standard output.

use crate::exit::Failure;
use crate::forward::Arguments;
use crate::print;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, PipeReader};
use std::sync::Arc;
use taut_engine::{Chain, Counters, Stage, Updates};
use taut_port::Clock;

/// What a line says: the functions to have from now on, as in a chain file; without them, that counters are wanted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    /// Number of the worker, where there are several.
    #[serde(default)]
    worker: usize,
    functions: Option<Vec<Stage>>,
}

/// Workers whose functions can be replaced: what they run, and what they have counted.
pub(crate) type Controlled = Vec<(Chain, Arc<Updates>, Arc<Counters>)>;

/// If asked to, reads and obeys on a thread of its own for as long as there is a standard input. Returns what is closed
/// at the end of that, if the end is to be the program's as well.
pub(crate) fn listen(
    arguments: &Arguments,
    workers: Controlled,
    clock: Clock,
) -> Result<Option<PipeReader>, Failure> {
    if !arguments.control {
        return Ok(None);
    }
    let (closed, open) =
        std::io::pipe().map_err(|e| Failure::Missing(format!("cannot make a pipe: {e}")))?;
    let obey = move || {
        let _open = open;
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => print::line(answer(&workers, &clock, &line)),
                // Not text: what follows cannot be trusted to be lines.
                Err(e) => {
                    print::line(json!({"event": "refused", "reason": e.to_string()}));
                    return;
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("control".to_string())
        .spawn(obey)
        .map_err(|e| Failure::Missing(format!("cannot start the control thread: {e}")))?;
    Ok(Some(closed).filter(|_| arguments.until_stdin_closes))
}

fn answer(workers: &Controlled, clock: &Clock, line: &str) -> Value {
    let answered = serde_json::from_str::<Update>(line)
        .map_err(|e| format!("want {{\"functions\": [{{\"name\": ...}}, ...]}}: {e}"))
        .and_then(|Update { worker, functions }| {
            let (chain, updates, counters) = workers.get(worker).ok_or_else(|| {
                format!("no worker {worker}: they are 0 to {}", workers.len() - 1)
            })?;
            let Some(functions) = functions else {
                return Ok(
                    json!({"event": "counters", "worker": worker, "counters": counters.read()}),
                );
            };
            let mut next = chain.clone();
            next.functions = functions;
            next.check()?;
            let replaced = updates.replace(next.functions).map_err(|e| e.to_string())?;
            Ok(json!({
                "event": "updated", "kept": replaced.kept, "made": replaced.made,
                "pause_us": clock.to_ns(replaced.pause_ticks) / 1e3
            }))
        });
    answered.unwrap_or_else(|reason| json!({"event": "refused", "reason": reason}))
}
