//! `taut ports`: the features that this machine supports, and the reasons for missing ones.

use crate::exit::Failure;
use crate::terminal::print;
use schemars::JsonSchema;
use serde::Serialize;
use taut_port::{Backend, backends, copies};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  taut ports\n  taut ports --json | jq '.[] | select(.available) | .name'\n  taut ports --matrix"
)]
pub struct Arguments {
    /// Print how often a frame is copied in user space between any two ports
    #[arg(long)]
    matrix: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct Row {
    name: &'static str,
    available: bool,
    detail: String,
    spec: String,
    summary: &'static str,
    /// Sources of the port's receive timestamps other than software.
    stamps: &'static str,
    options: Vec<(&'static str, &'static str)>,
    /// The methods that can pace generated traffic.
    pacing: Vec<&'static str>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.matrix {
        matrix(arguments.json);
        return Ok(());
    }
    let rows: Vec<Row> = backends()
        .iter()
        .map(|b| {
            let probed = (b.probe)();
            Row {
                name: b.name,
                available: probed.is_ok(),
                detail: probed.unwrap_or_else(|e| e.to_string()),
                spec: format!("{}:{}", b.name, b.target),
                summary: b.summary,
                stamps: stamps(b),
                options: b.options.to_vec(),
                pacing: pacing(b),
            }
        })
        .collect();
    if arguments.json {
        print::line(serde_json::to_string_pretty(&rows).unwrap_or_default());
        return Ok(());
    }
    for row in rows {
        print::line(format!(
            "{:<4}{:<28}{}",
            if row.available { "yes" } else { "no" },
            row.spec,
            row.summary
        ));
        print::line(format!("    {}", row.detail));
        print::line(format!("    pacing: {}", row.pacing.join(", ")));
        print::line(format!(
            "    receive timestamps: software, when a receive call returns; others: {}",
            row.stamps
        ));
        for (key, meaning) in row.options {
            print::line(format!("      {key}=  {meaning}"));
        }
    }
    Ok(())
}

/// Returns the sources of receive timestamps of a backend's ports, other than software.
fn stamps(backend: &Backend) -> &'static str {
    let option = backend.options.iter().find(|(key, _)| *key == "stamps");
    match option.map(|(_, meaning)| meaning.split(':').next().unwrap_or_default()) {
        Some("kernel") => "kernel, with stamps=kernel; hardware: no data",
        Some(_) => {
            "hardware, with stamps=hardware, where the driver timestamps every packet; sampled (PTP): no data"
        }
        None => "no data",
    }
}

/// Returns the values of `taut generate --pacing` that make sense on a backend's ports.
fn pacing(backend: &Backend) -> Vec<&'static str> {
    let limits_rate = backend.options.iter().any(|(key, _)| *key == "rate");
    let nic = limits_rate.then_some("nic (where the card's driver limits rates)");
    ["software", "fill"].into_iter().chain(nic).collect()
}

/// Prints the number of copies of a packet between every two kinds of ports: a row for each ingress kind, a column for
/// each egress kind.
fn matrix(json: bool) {
    const FIRST_WIDTH: usize = 14;
    const WIDTH: usize = 11;
    let cells = copies(backends());
    if json {
        print::line(serde_json::to_string_pretty(&cells).unwrap_or_default());
        return;
    }
    // A kind consists of a backend's name and, after a comma, a variant of that backend.
    let parts = |kind: &str| {
        let (name, variant) = kind.split_once(',').unwrap_or((kind, ""));
        let variant = variant.split_once('=').map_or(variant, |(_, value)| value);
        (name.to_string(), variant.to_string())
    };
    let Some(first) = cells.first() else { return };
    let columns: Vec<_> = cells
        .iter()
        .take_while(|cell| cell.from == first.from)
        .map(|cell| parts(&cell.to))
        .collect();
    let heading = |of: &dyn Fn(&(String, String)) -> String| {
        let names: String = columns
            .iter()
            .map(|column| format!("{:>WIDTH$}", of(column)))
            .collect();
        format!("{:FIRST_WIDTH$}{names}", "")
    };
    print::line(
        "Copies of a frame in user space, from the port of the row to the port of the column:\n",
    );
    print::line(heading(&|(name, _)| name.clone()));
    print::line(heading(&|(_, variant)| variant.clone()));
    for row in cells.chunks(columns.len()) {
        let (name, variant) = parts(&row[0].from);
        let numbers: String = row
            .iter()
            .map(|cell| format!("{:>WIDTH$}", cell.copies))
            .collect();
        print::line(format!(
            "{:FIRST_WIDTH$}{numbers}",
            format!("{name} {variant}")
        ));
    }
    print::line("\nCopies by the kernel or a device are not counted.");
}
