//! `taut model fit` and `check`: models fitted to measured runs, and their errors.

use super::predict;
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::time::SystemTime;
use taut_figure::table;
use taut_forecast::{Described, Table, What, fit, keep, load};
use taut_measure::quantity::{plain, share};
use taut_model::estimate::Errors;
use taut_model::model_file::{Kind, Run, Term};
use taut_model::published::{self, Summary};
use taut_results::instant;

/// The kind of model to fit.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Named {
    /// Chosen by the columns of the results
    Auto,
    /// Cycles of a packet as a function of load, bytes and batch
    Resource,
    /// Cycles of a packet as a function of load, bytes, batch and the functions of a chain
    Chain,
    /// Cycles of one memory access, by the size of the structure
    Access,
    /// Time of a frame as a function of its bytes
    Wlan,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model fit results/load --model resource --response cycles -o load.toml
  taut model fit runs.csv --column burn=load_cycles --where ports=null -o null.toml
  taut model fit wlan.csv --model wlan

RESULTS are CSV files with a row for each run, or folders of experiments after taut experiment show. Columns that models know:
load_cycles, frame_bytes, batch, functions, structure_bytes, bytes; cycles or time_us (or pps) is what was measured. Terms are
chosen by BIC, never more than the runs carry; half of the runs, drawn by --seed, are held out to find the error.")]
pub struct Arguments {
    /// CSV files with a row per run, or folders of experiments after `taut experiment show`
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Model to fit
    #[arg(long, value_enum, default_value = "auto")]
    model: Named,
    /// Column of the measured value (default: cycles; of wlan time_us)
    #[arg(long, value_name = "COLUMN")]
    response: Option<String>,
    /// Use COLUMN as the column NAME that the model knows; may be repeated
    #[arg(long, value_name = "COLUMN=NAME")]
    column: Vec<String>,
    /// Use only runs whose column has this value; may be repeated
    #[arg(long = "where", value_name = "COLUMN=VALUE")]
    only: Vec<String>,
    /// Use Huber's regression, which limits the influence of outliers
    #[arg(long)]
    robust: bool,
    /// Seed that selects the runs that are held out to test the fit
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Machine file with the caches of an access model (default: this machine's)
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// File to write the model to
    #[arg(short, long, value_name = "MODEL.toml")]
    output: Option<PathBuf>,
    /// Print the model as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model check null.toml results/other
  taut model check --published")]
pub struct CheckArguments {
    /// Model file
    #[arg(required_unless_present = "published")]
    model: Option<PathBuf>,
    /// Runs that the model has not seen: CSV files and folders of experiments
    #[arg(required_unless_present = "published")]
    results: Vec<PathBuf>,
    /// Use COLUMN as the column NAME that the model knows; may be repeated
    #[arg(long, value_name = "COLUMN=NAME")]
    column: Vec<String>,
    /// Use only runs whose column has this value; may be repeated
    #[arg(long = "where", value_name = "COLUMN=VALUE")]
    only: Vec<String>,
    /// Check all models against figures that others have published; not with MODEL
    #[arg(long, conflicts_with_all = ["model", "results"])]
    published: bool,
    /// Exit with code 1 if the median error is larger than this: 0.05 or 5%
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    max_error: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let table = read(&arguments.results, &arguments.column, &arguments.only)?;
    let what = What {
        kind: match arguments.model {
            Named::Auto => None,
            Named::Resource => Some(Kind::Resource),
            Named::Chain => Some(Kind::Chain),
            Named::Access => Some(Kind::Access),
            Named::Wlan => Some(Kind::Wlan),
        },
        response: arguments.response.clone(),
        robust: arguments.robust,
        seed: arguments.seed,
        confidence: 0.95,
        date: instant(SystemTime::now()),
        machine: match &arguments.machine {
            Some(path) => Described::load(path)?,
            None => Described::here(),
        },
    };
    let fitted = fit(&table, &what)?;
    let file = fitted.model.file();
    if let Some(path) = &arguments.output {
        keep(&fitted.model, path)?;
    }
    if arguments.json {
        print::json(&fitted.model);
        return Ok(());
    }
    print::line(format!(
        "{:?} model of {} runs: {} in {}, R\u{b2} {:.4}",
        file.kind, fitted.fit.rows, file.response.name, file.response.unit, file.r_squared
    ));
    print_terms(&file.terms);
    for tried in &fitted.tried {
        let said = match &tried.outcome {
            Ok(criteria) => format!("BIC {:.1}, AIC {:.1}", criteria.bic, criteria.aic),
            Err(why) => why.to_string(),
        };
        print::line(format!("tried {}: {said}", tried.terms.join(" + ")));
    }
    for errors in &file.errors {
        print::line(format!("error     {}", predict::words(errors)));
    }
    if file.kind == Kind::Wlan {
        print_implementation(&file.terms);
    }
    if let Some(path) = &arguments.output {
        print::line(format!("model: {}", path.display()));
    }
    Ok(())
}

fn print_terms(fitted: &[Term]) {
    let mut terms = table::plain();
    terms.set_header(["term", "value", "95 % interval", "unit"]);
    for term in fitted {
        terms.add_row([
            term.shape.name.clone(),
            plain(term.coefficient.value),
            format!(
                "{} to {}",
                plain(term.coefficient.low),
                plain(term.coefficient.high)
            ),
            term.shape.unit.clone(),
        ]);
    }
    table::set_columns(&mut terms, None);
    print::line(table::text(terms, &[], None).trim_end());
}

/// Prints the time per packet (t_impl) by which a fitted wireless model exceeds the published line of 802.11g. Prints
/// nothing for other models.
fn print_implementation(terms: &[Term]) {
    let packet = terms.iter().find(|term| term.shape.name == "packet");
    let line = taut_model::link::wlan::Line::PUBLISHED;
    if let Some(packet) = packet {
        print::line(format!(
            "beyond the published line of 802.11g (0.15 us a byte and 162.43 us): {:.1} us a packet (t_impl; {:.1} to {:.1})",
            packet.coefficient.value - line.us_per_packet,
            packet.coefficient.low - line.us_per_packet,
            packet.coefficient.high - line.us_per_packet
        ));
    }
}

fn read(results: &[PathBuf], columns: &[String], only: &[String]) -> Result<Table, Failure> {
    let pair = |text: &String| {
        let (left, right) = text.split_once('=').ok_or_else(|| {
            Failure::Input(format!(
                "\"{text}\": expected two names with = between them"
            ))
        })?;
        Ok::<_, Failure>((left.trim().to_owned(), right.trim().to_owned()))
    };
    let mut table = Table::read(results)?;
    for text in only {
        let (column, value) = pair(text)?;
        table.keep(&column, &value)?;
    }
    for text in columns {
        let (from, to) = pair(text)?;
        table.rename(&from, &to)?;
    }
    Ok(table)
}

/// The JSON output of `taut model check`.
#[derive(Serialize, JsonSchema)]
pub struct Checked {
    errors: Errors,
    outside: usize,
}

pub fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    if arguments.published {
        return check_published(arguments);
    }
    let Some(path) = &arguments.model else {
        return Err(Failure::Input(
            "no model is given: name its file".to_owned(),
        ));
    };
    let model = load(path)?;
    let mut table = read(&arguments.results, &arguments.column, &arguments.only)?;
    table.derive();
    let (mut runs, mut outside) = (Vec::new(), 0);
    for row in &table.rows {
        let file = model.file();
        let response = row.numbers.get(&file.response.name).copied();
        let response = response.ok_or_else(|| {
            Failure::Input(format!(
                "no column \"{}\", which the model predicts; name it with --column",
                file.response.name
            ))
        })?;
        let known = |name: &String| file.ranges.iter().any(|range| range.variable == *name);
        let variables = row.numbers.iter().filter(|(name, _)| known(name));
        let run = Run {
            variables: variables
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            response,
        };
        let predicted = model.predict(&run.variables)?;
        outside += usize::from(!predicted.outside.is_empty());
        runs.push(run);
    }
    let errors = model.check(&runs)?;
    let errors = errors
        .ok_or_else(|| Failure::Input("a run measured 0: it has no relative error".to_owned()))?;
    if arguments.json {
        print::json(&Checked { errors, outside });
    } else {
        print::line(format!("error     {}", predict::words(&errors)));
        if outside > 0 {
            print::line(format!(
                "{outside} runs are outside the range that the model was fitted to"
            ));
        }
    }
    let fitted_to = &model.file().data;
    let seen = table
        .sources
        .iter()
        .any(|source| fitted_to.iter().any(|its| its.sha256 == source.sha256));
    if seen && !arguments.json {
        print::line(
            "note: the model was fitted to some or all of these runs: the error is too small",
        );
    }
    within(arguments.max_error, errors.median)
}

fn check_published(arguments: &CheckArguments) -> Result<(), Failure> {
    let checks = published::checks().map_err(|e| Failure::Missing(e.to_string()))?;
    if arguments.json {
        print::json(&checks);
        return Ok(());
    }
    let summaries: Vec<Summary> = published::summaries(&checks);
    print_groups(&summaries);
    for check in checks
        .iter()
        .filter(|check| check.verdict == published::Verdict::Misses)
    {
        print::line(format!(
            "misses: {}: {} of {} {}, published {} to {}",
            check.what,
            plain(check.predicted.value),
            check.source,
            check.unit,
            plain(check.published_low),
            plain(check.published_high)
        ));
    }
    let worst = summaries
        .iter()
        .map(|summary| summary.errors.median)
        .fold(0.0, f64::max);
    within(arguments.max_error, worst)
}

fn print_groups(summaries: &[Summary]) {
    let mut groups = table::plain();
    groups.set_header([
        "published",
        "figures",
        "median error",
        "most",
        "within their limit",
        "intervals that cover",
    ]);
    for summary in summaries {
        groups.add_row([
            summary.group.to_owned(),
            summary.errors.count.to_string(),
            share(summary.errors.median),
            share(summary.errors.max),
            format!(
                "{} of {}",
                summary.errors.count - summary.misses,
                summary.errors.count
            ),
            match summary.intervals {
                0 => "-".to_owned(),
                all => format!("{} of {all}", summary.covered),
            },
        ]);
    }
    table::set_columns(&mut groups, None);
    print::line(
        table::text(
            groups,
            &[(5, "intervals that cover"), (3, "most")],
            table::terminal_width(),
        )
        .trim_end(),
    );
}

fn within(limit: Option<f64>, median: f64) -> Result<(), Failure> {
    match limit {
        Some(limit) if median > limit => Err(Failure::Limit(format!(
            "the median error is {}, more than the {} allowed",
            share(median),
            share(limit)
        ))),
        _ => Ok(()),
    }
}
