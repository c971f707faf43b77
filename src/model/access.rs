//! `taut model access`: the cost of random accesses on this machine, measured and as predicted by the access model.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use std::path::PathBuf;
use std::time::Duration;
use taut_figure::table;
use taut_forecast::{Accesses, Described, accesses};
use taut_measure::quantity::{bytes, share, three_digits};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model access
  taut model access --at 4194304 --json

Walks through lists of many sizes on one core (the function walk), takes the quietest block of each, and fits sizes and latencies of
the caches to them. The ideal model has all of each cache for the list; the fitted one is held to sizes that it was not fitted to.")]
pub struct Arguments {
    /// Size to measure in addition to the others, 4096 to 8589934592 bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(4096..=8_589_934_592))]
    at: Option<u64>,
    /// Time of measurement for each size
    #[arg(long, default_value = "40ms", value_parser = quantity::duration)]
    time: Duration,
    /// Machine file (TOML) with the caches (default: this machine's)
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine = match &arguments.machine {
        Some(path) => Described::load(path)?,
        None => Described::here(),
    };
    let found = accesses(&machine, arguments.at, arguments.time)?;
    if arguments.json {
        print::json(&found);
    } else {
        show(&found);
    }
    Ok(())
}

fn show(found: &Accesses) {
    let mut points = table::plain();
    points.set_header(["list", "level", "measured", "scatter", "ideal", "fitted"]);
    for point in &found.points {
        points.add_row([
            bytes(point.bytes as f64),
            point.level.clone(),
            three_digits(point.measured),
            share(point.scatter),
            three_digits(point.ideal),
            three_digits(point.fitted),
        ]);
    }
    table::set_columns(&mut points, None);
    print::line("cycles per access:");
    print::line(table::text(points, &[], None).trim_end());
    let mut levels = table::plain();
    levels.set_header([
        "level",
        "sizes",
        "ideal off by",
        "at most",
        "fitted off by",
        "at most",
    ]);
    for (level, errors) in &found.levels {
        levels.add_row([
            level.clone(),
            errors.count.to_string(),
            share(errors.ideal),
            share(errors.ideal_most),
            share(errors.fitted),
            share(errors.fitted_most),
        ]);
    }
    table::set_columns(&mut levels, None);
    print::line(
        "\nmedian and largest error of each level; those of the fitted model are on held-out sizes:",
    );
    print::line(table::text(levels, &[], None).trim_end());
    for level in &found.fitted {
        let shape = level.share.zip(level.steepness);
        let shape = shape.map_or_else(String::new, |(part, steep)| {
            format!(
                ", of which a list can use {}, step {}",
                share(part),
                three_digits(steep)
            )
        });
        print::line(format!(
            "{}: {} cycles{shape}",
            level.level,
            three_digits(level.cycles)
        ));
    }
}
