//! `taut control show`, and the output about a run that is common to all control commands.

use super::options::named;
use crate::exit::Failure;
use crate::terminal::print;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use taut_control::controller::gain_of;
use taut_control::steps::eigenvalues;
use taut_figure::table;
use taut_folders::control_loop::{
    ControlReport, HEAD, PUBLISHED, is_published, outcome, rows, runs,
};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control show results/lossy
  taut control show robot
  taut control show plant.toml

Of a plant: its poles, its gains, and with which constant delay they leave it stable.")]
pub struct Arguments {
    /// Folder of `taut control run --out`, name of a plant, or plant file
    what: String,
    /// Show the results published for the real robot next to those of a run
    #[arg(long)]
    published: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of `taut control show --json` about a plant.
#[derive(Serialize, JsonSchema)]
pub struct Plant<'a> {
    plant: &'a str,
    period_ns: u64,
    states: &'a [String],
    /// Real and imaginary part of each pole.
    poles_per_s: &'a [[f64; 2]],
    /// A row of gains for each input.
    gain: &'a [Vec<f64>],
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let folder = Path::new(&arguments.what);
    if folder.is_dir() {
        if !folder.join(HEAD).exists() {
            return Err(Failure::Input(format!(
                "{}: no {HEAD} here; name a folder that `taut control run --out` has written",
                folder.display()
            )));
        }
        let found = ControlReport::read(folder)?;
        return report(&found, arguments.published, arguments.json);
    }
    let model = named(&arguments.what)?;
    let gain = gain_of(&model)?;
    let poles = eigenvalues(model.a()).unwrap_or_default();
    let rows: Vec<Vec<f64>> = gain
        .row_iter()
        .map(|row| row.iter().copied().collect())
        .collect();
    if arguments.json {
        print::json(&Plant {
            plant: model.name(),
            period_ns: model.period_ns(),
            states: &model.parts().states,
            poles_per_s: &poles,
            gain: &rows,
        });
        return Ok(());
    }
    print::line(format!(
        "{}: {} states, {} inputs, {} sensors, a period of {} ms",
        model.name(),
        model.states(),
        model.inputs(),
        model.parts().sensors.len(),
        model.period_ns() as f64 / 1e6
    ));
    let poles: Vec<String> = poles
        .iter()
        .map(|[re, im]| {
            if im.abs() < 1e-9 {
                format!("{re:.3}")
            } else {
                format!("{re:.3}{im:+.3}i")
            }
        })
        .collect();
    print::line(format!("poles (1/s): {}", poles.join(", ")));
    for row in rows {
        let gains: Vec<String> = row.iter().map(|it| format!("{it:.6}")).collect();
        print::line(format!("gains: {}", gains.join(", ")));
    }
    Ok(())
}

/// Shows a run, with published results next to its own if `published` is true and there are any for its plant.
pub fn report(report: &ControlReport, published: bool, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(report);
        print::line(text.map_err(|e| Failure::Missing(e.to_string()))?);
        return Ok(());
    }
    print::line(outcome(report));
    if let Some(runs) = runs(report) {
        print::line(format!("runs of late or lost commands: {runs}"));
    }
    let mut lines = table::plain();
    let (head, rows) = rows(report, published);
    lines.set_header(head);
    for row in rows {
        lines.add_row(row);
    }
    table::set_columns(&mut lines, Some(1));
    let least = [
        (5, "max"),
        (9, "B wireless"),
        (8, "B wired"),
        (7, "A wireless"),
        (6, "A wired"),
    ];
    let text = table::text(lines, &least, table::terminal_width());
    for line in text.lines() {
        print::line(line);
    }
    if published && is_published(report) && report.kpis.rounds > 0 {
        print::line(PUBLISHED);
    }
    let datagrams = &report.plant_datagrams;
    let strange = datagrams.malformed + datagrams.strangers + datagrams.not_asked;
    if strange > 0 {
        let complaint = report.complaint.as_ref();
        print::line(format!(
            "ignored datagrams: {} malformed{}, {} from other senders, {} not requested",
            datagrams.malformed,
            complaint.map_or(String::new(), |it| format!(" ({it})")),
            datagrams.strangers,
            datagrams.not_asked
        ));
    }
    if report.missed > 0 {
        print::line(format!(
            "{} periods without a reading: this process was delayed",
            report.missed
        ));
    }
    Ok(())
}
