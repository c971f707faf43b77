//! `taut script`: runs a Lua script for the generator.

use crate::exit::{self, Failure};
use crate::terminal::{print, quantity};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use taut_measure::Summary;
use taut_port::PortSpec;
use taut_script::{Counted, LAST_WORDS, Script, ScriptError};
use taut_sys::Clock;

#[derive(Args)]
#[command(
    after_help = "Example:  taut script examples/lua/udp_throughput.lua --port memif:/run/a.sock,role=client -- 1M 64

Scripts are in Lua 5.1 (LuaJIT); docs/reference/lua.md describes the table `taut`, and examples/lua has scripts
to start from. Without --trust, a script can access only the ports given here: no files, programs or network.
Ctrl-C ends the traffic, and the script prints its results; a script that still runs a second later is stopped,
and the process ends two seconds later. Exit code 2: the script failed (the error names file, line and call)."
)]
pub struct Arguments {
    /// Lua script
    file: PathBuf,
    /// Port that the script finds as taut.port(1), taut.port(2) and so on; may be repeated
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// Allow the script files, programs and memory (io, os, require, ffi)
    #[arg(long)]
    trust: bool,
    /// Seconds after which the script is ended (default: never)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    limit_seconds: Option<f64>,
    /// Memory limit of each state of the script, 8 to 1000000 MB
    #[arg(long, value_name = "MB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    memory: u32,
    /// CPU of the script's main state; taut.task names those of tasks
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Seconds to wait for the peers of the ports
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// Print one JSON object with the script's counters and histograms at the end
    #[arg(long)]
    json: bool,
    /// Arguments of the script, in taut.args
    #[arg(last = true)]
    arguments: Vec<String>,
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let ports = arguments
        .port
        .iter()
        .map(|p| PortSpec::parse(p))
        .collect::<Result<Vec<_>, _>>()?;
    let stop = exit::stop_flag()?;
    let script = Script {
        path: arguments.file,
        ports,
        arguments: arguments.arguments,
        trusted: arguments.trust,
        limit: arguments.limit_seconds.map(Duration::from_secs_f64),
        last_words: LAST_WORDS,
        memory_bytes: arguments.memory as usize * 1_000_000,
        wait: Duration::from_secs_f64(arguments.wait),
        core: arguments.core,
        clock: Clock::calibrate(Duration::from_millis(50)),
    };
    if arguments.trust {
        let kept = taut_host::process::adopt_descendants();
        kept.map_err(|e| {
            Failure::Missing(format!("cannot adopt the processes of the script: {e}"))
        })?;
    }
    let ended = script.run(stop);
    let counted = &ended.counted;
    // The counters are printed even if the script failed.
    if ended.outcome.is_ok() || !(counted.counters.is_empty() && counted.histograms.is_empty()) {
        report(counted, arguments.json);
    }
    if ended.is_stuck {
        taut_host::process::end_descendants();
    }
    ended.outcome.map_err(|error| match error {
        ScriptError::Interrupted(text) => Failure::Interrupted(text),
        ScriptError::Missing(text) => Failure::Missing(text),
        error => Failure::Input(error.to_string()),
    })
}

/// The output of `taut script --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Ended<'a> {
    /// Counters and histograms by name, over all tasks; `null` for an empty histogram.
    Summary {
        counters: &'a BTreeMap<String, f64>,
        histograms: BTreeMap<&'a str, Option<Summary>>,
    },
}

/// Prints the counters of the script, summed over all its tasks.
fn report(ended: &Counted, json: bool) {
    if json {
        let histograms = ended.histograms.iter();
        print::json(&Ended::Summary {
            counters: &ended.counters,
            histograms: histograms
                .map(|(name, h)| (name.as_str(), Summary::from_histogram(h)))
                .collect(),
        });
        return;
    }
    for (name, count) in &ended.counters {
        print::line(format!("{name}: {count}"));
    }
    for (name, histogram) in &ended.histograms {
        match Summary::from_histogram(histogram) {
            Some(s) => print::line(format!("{name}: {}", quantity::summary(&s))),
            None => print::line(format!("{name}: no data")),
        }
    }
}
