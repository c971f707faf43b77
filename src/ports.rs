//! `taut ports`: what is possible on this machine, and why not where not.

use crate::exit::Failure;
use crate::print;
use serde::Serialize;
use taut_port::backends;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  taut ports\n  taut ports --json | jq '.[] | select(.available) | .name'"
)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    available: bool,
    detail: String,
    spec: String,
    summary: &'static str,
    options: Vec<(&'static str, &'static str)>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
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
                options: b.options.to_vec(),
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
        for (key, meaning) in row.options {
            print::line(format!("      {key}=  {meaning}"));
        }
    }
    Ok(())
}
