//! The texts about a run of a control loop for the terminal and the page: how it ended, and the table next to the
//! published results.

use super::ControlReport;
use super::published_tables::{Column, TABLE_6_3, TABLE_6_4, Table63};
use taut_control::kpi::Delay;
use taut_traffic::control::End;

/// Source of the published results of a robot.
pub const PUBLISHED: &str = "A and B: medians and sums published for NCSbench's robot (Gallenm\u{fc}ller 2021, tables 6.3 and 6.4; 1,400 rounds)";

/// Returns true if a plant that begins hanging down, such as a pendulum, was not upright at the end of its run.
pub fn has_stayed_down(report: &ControlReport) -> bool {
    let model = taut_control::plant::model(&report.plant);
    let begins_down = model.is_some_and(|model| {
        let parts = model.parts();
        parts.start[parts.balance].abs() > parts.bound
    });
    begins_down && report.kpis.erected_s.is_none()
}

/// Returns a sentence with the number of sampling periods, late and lost commands, and how the run ended.
pub fn outcome(report: &ControlReport) -> String {
    let kpis = &report.kpis;
    let end = match report.end {
        End::Periods => kpis
            .erected_s
            .map_or("all periods balanced".to_owned(), |s| {
                format!("erected itself in {s:.2} s and balanced")
            }),
        End::Fallen if has_stayed_down(report) => "did not erect itself".to_owned(),
        End::Fallen => kpis
            .fallen_s
            .map_or("fell".to_owned(), |s| format!("fell after {s:.2} s")),
        End::Gone => "the controller went, the plant was left at 0".to_owned(),
        End::NobodyAnswered => "no command came in time".to_owned(),
        End::Stopped => "stopped".to_owned(),
    };
    format!(
        "{}: {} rounds, {} late, {} lost: {end}",
        report.plant, kpis.rounds, kpis.late, kpis.lost
    )
}

/// Returns how many sequences of successive late or lost commands there were, by length. `2 of 3` means two sequences
/// of three commands. Returns none if there were no such sequences.
pub fn runs(report: &ControlReport) -> Option<String> {
    let runs = report.kpis.runs.iter();
    let runs: Vec<String> = runs
        .map(|(length, times)| format!("{times} of {length}"))
        .collect();
    (!runs.is_empty()).then(|| runs.join(", "))
}

/// Returns true if there are published results for this plant.
pub fn is_published(report: &ControlReport) -> bool {
    report.plant == "robot"
}

/// Returns the names of the rows with sums of balance, travel and inputs, with their units. The unit of inputs is known
/// for the robot only.
fn sum_names(report: &ControlReport) -> [String; 3] {
    let [balance, travel] = &report.units;
    let inputs = if is_published(report) { " (V)" } else { "" };
    [
        format!("sum balance ({balance})"),
        format!("sum travel ({travel})"),
        format!("sum inputs{inputs}"),
    ]
}

/// Returns the column headings and the rows of the table of results: delays in ms, and sums. With `published`, the
/// table has the columns of published results if there are any for this plant.
pub fn rows(report: &ControlReport, published: bool) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let kpis = &report.kpis;
    let mut head = vec!["ms", "median", "q25", "q75", "p99", "max"];
    if published && is_published(report) {
        head.extend(Column::ALL.map(Column::name));
    }
    let medians = |of: fn(&Table63) -> [f64; 4]| TABLE_6_3.map(|column| of(&column)[0]);
    let none = [f64::NAN; 4];
    type Row<'a> = (&'a str, &'a Option<Delay>, [f64; 4]);
    let delays: [Row<'_>; 10] = [
        ("sensing", &kpis.sensing, medians(|it| it.sensing)),
        ("network", &kpis.network, medians(|it| it.network)),
        ("controller", &kpis.controller, medians(|it| it.controller)),
        ("actuating", &kpis.actuating, medians(|it| it.actuating)),
        ("period", &kpis.period, medians(|it| it.period)),
        ("round trip", &kpis.round_trip, none),
        ("cycle", &kpis.cycle, none),
        ("jitter", &kpis.jitter, none),
        ("jitter there", &kpis.jitter_there, none),
        ("jitter back", &kpis.jitter_back, none),
    ];
    let mut rows = Vec::new();
    let mut add = |name: &str, own: Vec<String>, published: [String; 4]| {
        let mut cells = vec![name.to_owned()];
        cells.extend(own);
        cells.resize(6, String::new());
        cells.extend(published);
        cells.truncate(head.len());
        rows.push(cells);
    };
    for (name, delay, published) in delays {
        let Some(delay) = delay else {
            continue;
        };
        let ms = |value: f64| format!("{value:.3}");
        let median = delay.median_ms.map_or("-".to_owned(), |it| ms(it.point));
        let mut own = vec![median];
        own.extend([delay.q25_ms, delay.q75_ms, delay.p99_ms, delay.max_ms].map(ms));
        let text = |value: f64| match value {
            value if value.is_nan() => String::new(),
            value => format!("{value:.2}"),
        };
        add(name, own, published.map(text));
    }
    let sums = [
        (kpis.sum_balance, TABLE_6_4.map(|it| it.pitch)),
        (kpis.sum_travel, TABLE_6_4.map(|it| it.wheels)),
        (kpis.sum_inputs, TABLE_6_4.map(|it| it.volts)),
    ];
    for (name, (sum, published)) in sum_names(report).iter().zip(sums) {
        let text = |value: f64| format!("{value:.1}");
        add(name, vec![text(sum)], published.map(text));
    }
    (head, rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_control::plant;

    fn table(name: &str, published: bool) -> (usize, Vec<String>) {
        let report = ControlReport::new(String::new(), &plant::model(name).unwrap());
        let (head, rows) = rows(&report, published);
        assert!(rows.iter().all(|cells| cells.len() == head.len()));
        let names = rows.iter().map(|cells| cells[0].clone());
        (head.len(), names.collect())
    }

    #[test]
    fn columns_of_sums_have_the_units_of_the_plant() {
        let (columns, names) = table("robot", false);
        assert_eq!(columns, 6);
        let sums = [
            "sum balance (degrees)",
            "sum travel (degrees)",
            "sum inputs (V)",
        ];
        assert_eq!(names, sums);
        assert_eq!(table("robot", true), (10, names));
        let (columns, names) = table("conveyor", true);
        assert_eq!(columns, 6);
        let sums = ["sum balance (m)", "sum travel (m/s)", "sum inputs"];
        assert_eq!(names, sums);
    }
}
