//! `taut control show`, and what all of them show of a run.

use super::options::named;
use crate::exit::Failure;
use crate::terminal::print;
use std::path::Path;
use taut_control::controller::gain_of;
use taut_control::kpi::Delay;
use taut_control::steps::eigenvalues;
use taut_figure::table;
use taut_lab::controlled::{Column, ControlReport, HEAD, TABLE_6_3, TABLE_6_4};
use taut_traffic::control::End;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control show results/lossy
  taut control show robot
  taut control show plant.toml

Of a plant: its poles, its gains, and with which constant delay they leave it stable.")]
pub struct Arguments {
    /// A folder of `taut control run --out`, a plant or a plant file
    what: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
        return report(&ControlReport::read(folder)?, arguments.json);
    }
    let model = named(&arguments.what)?;
    let gain = gain_of(&model)?;
    let poles = eigenvalues(model.a()).unwrap_or_default();
    let rows: Vec<Vec<f64>> = gain
        .row_iter()
        .map(|row| row.iter().copied().collect())
        .collect();
    if arguments.json {
        let text = serde_json::json!({
            "plant": model.name(),
            "period_ns": model.period_ns(),
            "states": model.parts().states,
            "poles_per_s": poles,
            "gain": rows,
        });
        print::line(text);
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

/// Shows a run.
pub fn report(report: &ControlReport, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(report);
        print::line(text.map_err(|e| Failure::Missing(e.to_string()))?);
        return Ok(());
    }
    let kpis = &report.kpis;
    let end = match report.end {
        End::Periods => "all periods balanced".to_owned(),
        End::Fallen => kpis
            .fallen_s
            .map_or("fell".to_owned(), |s| format!("fell after {s:.2} s")),
        End::Gone => "the controller went, the plant was left at 0".to_owned(),
        End::NobodyAnswered => "no command came".to_owned(),
        End::Stopped => "stopped".to_owned(),
    };
    print::line(format!(
        "{}: {} rounds, {} late, {} lost: {end}",
        report.plant, kpis.rounds, kpis.late, kpis.lost
    ));
    let runs: Vec<String> = kpis
        .runs
        .iter()
        .map(|(length, times)| format!("{times} of {length}"))
        .collect();
    if !runs.is_empty() {
        print::line(format!("runs of late or lost: {}", runs.join(", ")));
    }
    // Published figures are of the robot.
    let is_robot = report.plant == "robot";
    let mut lines = table::plain();
    let mut head = vec!["ms", "median", "q25", "q75", "p99", "max"];
    if is_robot {
        head.extend(Column::ALL.map(Column::name));
    }
    lines.set_header(head);
    let published = |row: fn(&taut_lab::controlled::Table63) -> [f64; 4]| {
        TABLE_6_3.iter().map(move |column| row(column)[0])
    };
    type Row<'a> = (&'a str, &'a Option<Delay>, Vec<f64>);
    let rows: [Row<'_>; 8] = [
        (
            "sensing",
            &kpis.sensing,
            published(|it| it.sensing).collect(),
        ),
        (
            "network",
            &kpis.network,
            published(|it| it.network).collect(),
        ),
        (
            "controller",
            &kpis.controller,
            published(|it| it.controller).collect(),
        ),
        (
            "actuating",
            &kpis.actuating,
            published(|it| it.actuating).collect(),
        ),
        ("period", &kpis.period, published(|it| it.period).collect()),
        ("round trip", &kpis.round_trip, Vec::new()),
        ("cycle", &kpis.cycle, Vec::new()),
        ("jitter", &kpis.jitter, Vec::new()),
    ];
    for (name, delay, published) in rows {
        let Some(delay) = delay else {
            continue;
        };
        let ms = |value: f64| format!("{value:.3}");
        let median = delay.median_ms.map_or("-".to_owned(), |it| ms(it.point));
        let mut cells = vec![name.to_owned(), median];
        cells.extend([delay.q25_ms, delay.q75_ms, delay.p99_ms, delay.max_ms].map(ms));
        if is_robot {
            cells.extend(published.iter().map(|it| format!("{it:.2}")));
            cells.resize(10, String::new());
        }
        lines.add_row(cells);
    }
    let sums = [
        (
            "sum balance",
            kpis.sum_balance,
            TABLE_6_4.map(|it| it.pitch),
        ),
        ("sum travel", kpis.sum_travel, TABLE_6_4.map(|it| it.wheels)),
        ("sum inputs", kpis.sum_inputs, TABLE_6_4.map(|it| it.volts)),
    ];
    for (name, sum, published) in sums {
        let mut cells = vec![name.to_owned(), format!("{sum:.1}")];
        cells.resize(6, String::new());
        if is_robot {
            cells.extend(published.map(|it| format!("{it:.1}")));
        }
        lines.add_row(cells);
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
    if is_robot && kpis.rounds > 0 {
        print::line(
            "A and B: medians and sums published for NCSbench's robot (Gallenm\u{fc}ller 2021, tables 6.3 and 6.4; 1,400 rounds)",
        );
    }
    let datagrams = &report.plant_datagrams;
    let strange = datagrams.malformed + datagrams.strangers + datagrams.not_asked;
    if strange > 0 {
        let complaint = report.complaint.as_ref();
        print::line(format!(
            "not followed: {} datagrams that are no messages{}, {} of strangers, {} that nobody asked for",
            datagrams.malformed,
            complaint.map_or(String::new(), |it| format!(" ({it})")),
            datagrams.strangers,
            datagrams.not_asked
        ));
    }
    if report.missed > 0 {
        print::line(format!(
            "{} periods without a reading: this process was held up",
            report.missed
        ));
    }
    Ok(())
}
