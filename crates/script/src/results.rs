//! Results that `taut.run` returns: counts, latencies and gaps as Lua tables.

use mlua::{Lua, Table};
use taut_measure::Summary;
use taut_port::PortCounters;
use taut_traffic::{Summaries, Tally};

/// Names of a port's counters, in the order of [`PortCounters::counts`]. The last counter, `tx_full`, has no name here,
/// because the caller of the port counts it.
const COUNTERS: [&str; 9] = [
    "rx_packets",
    "rx_bytes",
    "tx_packets",
    "tx_bytes",
    "rx_overrun",
    "rx_malformed",
    "rx_too_long",
    "tx_too_long",
    "tx_failed",
];

/// Returns the results of a trial as a table: the first stream's at the top level, and each stream's under `streams`.
pub fn results(
    lua: &Lua,
    names: &[String],
    tallies: &[Tally],
    records: &[Summaries],
) -> mlua::Result<Table> {
    let streams = lua.create_table()?;
    let total = lua.create_table()?;
    for (index, (tally, record)) in tallies.iter().zip(records).enumerate() {
        let result = lua.create_table()?;
        fill(lua, &result, tally, record)?;
        result.set("name", names[index].as_str())?;
        streams.set(index + 1, &result)?;
        streams.set(names[index].as_str(), &result)?;
        if index == 0 {
            fill(lua, &total, tally, record)?;
        }
    }
    if records.is_empty() {
        let tally = tallies.first().copied().unwrap_or_default();
        total.set("foreign", tally.foreign)?;
        total.set("corrupt", tally.corrupt)?;
        total.set("stopped", tally.stopped)?;
    }
    total.set("streams", streams)?;
    Ok(total)
}

fn fill(lua: &Lua, to: &Table, tally: &Tally, record: &Summaries) -> mlua::Result<()> {
    // Refused packets took a sequence number but never left.
    let account = record.sequence.finish(tally.sent + tally.refused);
    for (key, count) in [
        ("owed", tally.owed),
        ("sent", tally.sent),
        ("received", tally.received),
        ("lost", account.lost.saturating_sub(tally.refused)),
        ("refused", tally.refused),
        ("unsent", tally.unsent),
        ("duplicate", account.duplicate),
        ("reordered", account.reordered),
        ("corrupt", tally.corrupt),
        ("foreign", tally.foreign),
    ] {
        to.set(key, count)?;
    }
    to.set("seconds", tally.seconds)?;
    to.set("sent_pps", tally.sent as f64 / tally.seconds)?;
    to.set("received_pps", tally.received as f64 / tally.seconds)?;
    to.set("behind", tally.generator_behind())?;
    to.set("stopped", tally.stopped)?;
    to.set(
        "latency",
        summary(lua, Summary::from_histogram(&record.latency))?,
    )?;
    // `slip` is the former name of `send_delay`, which scripts may use until 0.3.
    for name in ["send_delay", "slip"] {
        to.set(
            name,
            summary(lua, Summary::from_histogram(&record.send_delay))?,
        )?;
    }
    if let Some(jitter) = record.jitter.summary() {
        let table = lua.create_table()?;
        table.set("avg_ns", jitter.avg_ns)?;
        table.set("max_ns", jitter.max_ns)?;
        to.set("jitter", table)?;
    }
    if let Some(gaps) = record.gaps.summary() {
        let table = lua.create_table()?;
        table.set("asked_ns", gaps.asked_gap_ns)?;
        table.set("mean_ns", gaps.mean_gap_ns)?;
        table.set("median_error_ns", gaps.median_absolute_error_ns)?;
        table.set("mse_ns2", gaps.mean_squared_error_ns2)?;
        table.set("count", gaps.count)?;
        to.set("gap", table)?;
    }
    Ok(())
}

/// Returns the counters of each port during a trial, in a table with the port's number, from 1.
pub fn counts(
    lua: &Lua,
    ports: &[usize],
    before: &[PortCounters],
    after: &[PortCounters],
) -> mlua::Result<Table> {
    let all = lua.create_table()?;
    for (at, (before, after)) in before.iter().zip(after).enumerate() {
        let of = lua.create_table()?;
        of.set("index", ports[at] + 1)?;
        let counts = after.counts().into_iter().zip(before.counts());
        for (name, (after, before)) in COUNTERS.iter().zip(counts) {
            of.set(*name, after.saturating_sub(before))?;
        }
        all.set(at + 1, of)?;
    }
    Ok(all)
}

/// Returns a summary as a table; nil if nothing was measured.
pub fn summary(lua: &Lua, summary: Option<Summary>) -> mlua::Result<Option<Table>> {
    let Some(s) = summary else {
        return Ok(None);
    };
    let table = lua.create_table()?;
    table.set("count", s.count)?;
    table.set("min_ns", s.min_ns)?;
    table.set("avg_ns", s.avg_ns)?;
    table.set("p50_ns", s.p50_ns)?;
    table.set("p90_ns", s.p90_ns)?;
    table.set("p95_ns", s.p95_ns)?;
    table.set("p99_ns", s.p99_ns)?;
    table.set("p99_9_ns", s.p99_9_ns)?;
    table.set("p99_99_ns", s.p99_99_ns)?;
    table.set("max_ns", s.max_ns)?;
    table.set("std_ns", s.std_ns)?;
    Ok(Some(table))
}
