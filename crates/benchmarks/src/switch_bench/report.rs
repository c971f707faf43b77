//! The report of a results folder of this benchmark.

use super::evaluate::{Evaluation, Row};
use super::{Results, Switched, figures};
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::tables::{self, Cell, Table, plain};
use taut_bench::benchmark::{Estimate, highest};
use taut_bench::report::ReportError;
use taut_measure::Limit;
use taut_measure::quantity::{rate, ratio, share, time};

const HOW: &str = "The generator has two ports of the switch; others are joined by cables. Rules are made over OpenFlow where the switch can hear \
    it. A switch is set up anew for each point, and points take turns.";

/// Writes the report into the results folder `dir`.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub(super) fn write(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
    let evaluation = Evaluation::of(results);
    let figures = figures::draw(&evaluation);
    let finding = finding(&evaluation);
    let tables = all_tables(&evaluation);
    tables::report::<Switched>(
        dir,
        results,
        &evaluation,
        (&finding, HOW),
        &tables,
        &figures,
    )
}

/// Returns the tables and the result for a terminal.
pub(super) fn text(results: &Results, width: Option<usize>) -> String {
    let evaluation = Evaluation::of(results);
    let tables = tables::text(&all_tables(&evaluation), width);
    format!("{tables}\n{}\n", finding(&evaluation))
}

/// Returns the result in one or two sentences.
fn finding(evaluation: &Evaluation<'_>) -> String {
    let mut said = Vec::new();
    if let Some(amplifier) = evaluation.amplifier {
        let label = amplifier.label();
        said.push(format!(
            "{label} stands before it and multiplies traffic: its own latency is in all times"
        ));
    }
    for row in &evaluation.switches {
        let label = row.switch.label();
        match &row.line {
            Some(line) if line.per_loop_ns.low > 0.0 => said.push(format!(
                "{label}: a pass takes {} ({} to {}, R² {:.5}) on top of {}",
                time(line.per_loop_ns.value),
                time(line.per_loop_ns.low),
                time(line.per_loop_ns.high),
                line.r_squared,
                time(line.without_ns.value)
            )),
            Some(_) => said.push(format!(
                "{label}: the medians scatter too much to tell what a pass takes"
            )),
            None => {}
        }
        if let Some(factor) = row.qos_factor {
            said.push(format!(
                "{label}: at the highest background real-time packets take {} times as long without priority as with it",
                ratio(factor).trim_end_matches('×')
            ));
        }
    }
    match said.is_empty() {
        true => "The tables say what was measured.".to_string(),
        false => format!("{}.", said.join("; ")),
    }
}

fn cell(estimate: &Option<Estimate>, text: fn(f64) -> String) -> Cell {
    match estimate {
        None => plain("–"),
        Some(it) => [text(it.point), it.short(text)],
    }
}

/// Returns the cell of a table with a highest rate, with `>=` before it if the generator was the limit.
fn rate_cell(pps: &Option<Estimate>, limited_by: Option<Limit>) -> Cell {
    let [text, beside] = cell(pps, rate);
    [
        highest::in_table(&text, limited_by.unwrap_or(Limit::Device)),
        beside,
    ]
}

fn number(value: Option<f64>, text: fn(f64) -> String) -> Cell {
    plain(value.map_or("–".to_string(), text))
}

/// Returns a name as in JSON.
fn name(of: &impl Serialize) -> Cell {
    let name = serde_json::to_value(of).ok();
    plain(
        name.and_then(|it| it.as_str().map(str::to_string))
            .unwrap_or_default(),
    )
}

fn table<T>(
    evaluation: &Evaluation<'_>,
    title: &str,
    head: &[&str],
    rows: fn(&Row) -> &Vec<T>,
    cells: impl Fn(&T) -> Vec<Cell>,
) -> Table {
    let of_switch = |row: &Row| -> Vec<Vec<Cell>> {
        let label = plain(row.switch.label());
        let cells = rows(row).iter().map(&cells);
        cells
            .map(|cells| std::iter::once(label.clone()).chain(cells).collect())
            .collect()
    };
    Table {
        title: title.to_string(),
        head: std::iter::once("switch")
            .chain(head.iter().copied())
            .map(str::to_string)
            .collect(),
        rows: evaluation.switches.iter().flat_map(of_switch).collect(),
        brief_from: Some(1),
        ..Table::default()
    }
}

/// Returns all tables in the order of the report.
fn all_tables(evaluation: &Evaluation<'_>) -> Vec<Table> {
    vec![
        hops(evaluation),
        rules(evaluation),
        qos(evaluation),
        insertion(evaluation),
        on_wire(evaluation),
        amplify(evaluation),
        actions(evaluation),
        compared(evaluation),
    ]
}

/// Returns the table of the latency over the number of cables.
fn hops(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Latency over cables",
        &["cables", "least", "p50", "p99", "p99 less least", "lost"],
        |row| &row.hops,
        |row| {
            vec![
                plain(row.loops.to_string()),
                cell(&row.min_ns, time),
                cell(&row.p50_ns, time),
                cell(&row.p99_ns, time),
                cell(&row.spread_ns, time),
                plain(share(row.lost)),
            ]
        },
    )
}

/// Returns the table of rates and latencies over the number of rules.
fn rules(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Rules",
        &[
            "asked",
            "rules",
            "rate",
            "of plain",
            "p50",
            "p99",
            "time to make one",
        ],
        |row| &row.rules,
        |row| {
            vec![
                name(&row.matching),
                plain(row.rules.to_string()),
                rate_cell(&row.pps, row.limited_by),
                number(row.of_plain, ratio),
                cell(&row.p50_ns, time),
                cell(&row.p99_ns, time),
                cell(&row.rule_ns, time),
            ]
        },
    )
}

/// Returns the table of real-time packets with background traffic, with priority and without.
fn qos(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Real-time packets beside background",
        &[
            "background",
            "priority",
            "p50",
            "p99",
            "highest",
            "lost",
            "background p50",
        ],
        |row| &row.qos,
        |row| {
            vec![
                plain(format!("{} %", row.load_percent)),
                plain(if row.priority { "yes" } else { "no" }),
                cell(&row.p50_ns, time),
                cell(&row.p99_ns, time),
                cell(&row.max_ns, time),
                plain(share(row.lost)),
                cell(&row.background_p50_ns, time),
            ]
        },
    )
}

/// Returns the table of the time until the switch replies to the barrier after a rule.
fn insertion(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Time until a rule is in force, by barriers",
        &[
            "priorities",
            "made p50",
            "p99",
            "first tenth",
            "last tenth",
            "modified p50",
            "deleted p50",
        ],
        |row| &row.insertion,
        |row| {
            vec![
                name(&row.order),
                cell(&row.barrier_p50_ns, time),
                cell(&row.barrier_p99_ns, time),
                cell(&row.first_tenth_ns, time),
                cell(&row.last_tenth_ns, time),
                cell(&row.modified_barrier_p50_ns, time),
                cell(&row.deleted_barrier_p50_ns, time),
            ]
        },
    )
}

/// Returns the table of the time until packets obey a rule.
fn on_wire(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Time until a rule is in force, by packets",
        &[
            "priorities",
            "made: first packet",
            "its barrier",
            "modified: first packet",
            "its barrier",
            "deleted: last packet",
            "its barrier",
        ],
        |row| &row.insertion,
        |row| {
            vec![
                name(&row.order),
                cell(&row.appeared_ns, time),
                cell(&row.appeared_barrier_ns, time),
                cell(&row.modified_ns, time),
                cell(&row.modified_barrier_ns, time),
                cell(&row.vanished_ns, time),
                cell(&row.vanished_barrier_ns, time),
            ]
        },
    )
}

/// Returns the table of one stream that goes through all ports.
fn amplify(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "One stream through all ports",
        &[
            "cables",
            "copies",
            "came back",
            "most lost",
            "highest rate in",
            "out",
            "most lost then",
        ],
        |row| &row.amplify,
        |row| {
            vec![
                plain(row.cables.to_string()),
                plain(row.copies.to_string()),
                cell(&row.fold, ratio),
                plain(share(row.most_lost)),
                cell(&row.most_in_pps, rate),
                cell(&row.most_out_pps, rate),
                plain(share(row.most_lost_at_most)),
            ]
        },
    )
}

/// Returns the table of the costs of actions.
fn actions(evaluation: &Evaluation<'_>) -> Table {
    table(
        evaluation,
        "Actions",
        &["does", "rate", "costs", "p50", "p99"],
        |row| &row.actions,
        |row| {
            vec![
                name(&row.does),
                rate_cell(&row.pps, row.limited_by),
                number(row.costs_ns, time),
                cell(&row.p50_ns, time),
                cell(&row.p99_ns, time),
            ]
        },
    )
}

/// Returns the table that compares the first switch with each of the other switches.
fn compared(evaluation: &Evaluation<'_>) -> Table {
    Table {
        title: match evaluation.switches.first() {
            Some(first) => format!("{} against others", first.switch.label()),
            None => "Against others".to_string(),
        },
        caption: "Above 1 where the first switch is better.".to_string(),
        head: ["what", "against", "times as good"]
            .map(str::to_string)
            .to_vec(),
        rows: evaluation
            .ratios
            .iter()
            .map(|it| {
                let ends = format!("{} to {}, n = {}", ratio(it.low), ratio(it.high), it.pairs);
                vec![
                    plain(it.what.clone()),
                    plain(it.beside.label()),
                    [ratio(it.ratio), ends],
                ]
            })
            .collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::outcome::{Amplified, Latency, OnWire, Seen, Trial};
    use super::super::part::{Lengths, Matching, Part};
    use super::super::{Facts, Switch, Switched, Wires};
    use crate::made_up::head;
    use std::path::Path;
    use taut_bench::benchmark::{Benchmark, show};
    use taut_measure::{Limit, Summary};
    use taut_results::{Mode, write_json};

    fn latency(ns: u64) -> Latency {
        let samples: Vec<u64> = (0..2_000).map(|at| ns + at / 40).collect();
        Latency {
            latency: Summary::from_samples(&samples).unwrap(),
            lost: 0.0,
        }
    }

    fn seen(switch: &Switch, part: Part, repetition: u32) -> Seen {
        let slower = if *switch == Switch::Taut { 1.0 } else { 4.0 };
        let jitter = u64::from(repetition);
        let rate = |pps: f64, rule_ns| Seen::Rate {
            pps: pps / slower,
            limited_by: (*switch == Switch::Taut).then_some(Limit::Generator),
            latency: latency(2_000 + jitter),
            rule_ns,
        };
        match part {
            Part::Hops { loops } => Seen::Latency(latency(1_000 + 250 * u64::from(loops) + jitter)),
            Part::Rules { matching, rules } => rate(
                1e7 / (1.0 + f64::from(rules) / 1e5),
                (matching != Matching::Plain).then_some(900.0 * slower),
            ),
            Part::Qos {
                load_percent,
                priority,
            } => Seen::Classes {
                real_time: latency(match (load_percent, priority) {
                    (300, false) => 16_000_000,
                    _ => 8_000,
                }),
                background: (load_percent > 0).then(|| latency(16_000_000)),
            },
            Part::Insertion { .. } => {
                let barriers = |ns: f64| -> Vec<f64> {
                    (0..200).map(|it| slower * (ns + f64::from(it))).collect()
                };
                let on_wire = |ns: f64| OnWire {
                    wire_ns: vec![slower * ns; 5],
                    barrier_ns: vec![slower * 20_000.0; 5],
                };
                Seen::Insertion {
                    barrier_ns: [20_000.0, 15_000.0, 10_000.0].map(barriers),
                    made: on_wire(30_000.0),
                    modified: on_wire(28_000.0),
                    deleted: on_wire(25_000.0),
                    unseen: 0,
                }
            }
            Part::Amplify { cables } => {
                let copies = 2 * cables + 1;
                let amplified = |lost: f64| Amplified {
                    in_pps: 1e4,
                    out_pps: 1e4 * f64::from(copies),
                    fold: f64::from(copies),
                    lost: vec![lost; 2 * cables as usize],
                };
                Seen::Amplified {
                    copies,
                    easy: amplified(0.0),
                    most: amplified(0.25),
                }
            }
            Part::Actions { .. } => rate(8e6, None),
        }
    }

    const SWITCHES: [Switch; 2] = [Switch::Taut, Switch::OpenVSwitch];

    fn write(dir: &Path) {
        let folder = dir.join(Switched::DESCRIPTION.outcomes);
        std::fs::create_dir_all(&folder).unwrap();
        let facts = Facts {
            switches: SWITCHES
                .map(|switch| (switch, "version 1".to_string()))
                .to_vec(),
            amplifier: None,
        };
        write_json(
            &dir.join(Switched::DESCRIPTION.head),
            &head(Switched::DESCRIPTION.schema, facts),
        )
        .unwrap();
        for part in Lengths::of(Mode::Default).parts(|_| true) {
            for switch in SWITCHES {
                if switch.cannot(part, &Wires::default()).is_some() {
                    continue;
                }
                for repetition in 1..=3 {
                    let trial = Trial {
                        switch: switch.clone(),
                        part,
                        repetition,
                        seen: seen(&switch, part, repetition),
                    };
                    let name = format!(
                        "{}-{}-{}-{repetition}.json",
                        switch.file_name(),
                        part.measurement(),
                        part.point()
                    );
                    write_json(&folder.join(name), &trial).unwrap();
                }
            }
        }
    }

    #[test]
    fn the_report_contains_the_expected_tables_and_summary_numbers() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let shown = show::<Switched>(folder.path(), None).unwrap();
        for part in ["a pass takes 250 ns", "exact", "group-failover", "4.00×"] {
            assert!(shown.text.contains(part), "{part}: {}", shown.text);
        }
        let page = std::fs::read_to_string(&shown.page).unwrap();
        assert!(page.contains("as published") && !page.contains("NaN"));
        let summary = std::fs::read_to_string(folder.path().join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        let taut = &summary["switches"][0];
        let slope = taut["line"]["per_loop_ns"]["value"].as_f64().unwrap();
        assert!((slope - 250.0).abs() < 0.1, "{slope}");
        let factor = taut["qos_factor"].as_f64().unwrap();
        assert!((1_900.0..2_010.0).contains(&factor), "{factor}");
        assert_eq!(taut["amplify"][2]["copies"], 47);
        assert_eq!(taut["rules"][0]["limited_by"], "generator");
        assert!(shown.text.contains(">= 10.0 Mpkt/s"), "{}", shown.text);
        assert_eq!(taut["amplify"][0]["most_lost_at_most"], 0.25);
        let insertion = &taut["insertion"][0];
        assert_eq!(insertion["modified_ns"]["median"], 28_000.0);
        assert_eq!(insertion["vanished_barrier_ns"]["median"], 20_000.0);
        let other = &summary["switches"][1];
        assert!(other["qos"].as_array().unwrap().is_empty() && other["qos_factor"].is_null());
        let ratios = summary["ratios"].as_array().unwrap();
        let of = |what: &str| {
            let found = ratios.iter().find(|it| it["what"] == what);
            found.unwrap()["ratio"].as_f64().unwrap()
        };
        for what in [
            "rules exact-1000: rate",
            "rules prefix-100000: rules made together",
            "insertion equal: barrier",
            "insertion equal: barrier, modified",
            "insertion decreasing: first packet",
        ] {
            assert!((of(what) - 4.0).abs() < 1e-9, "{what}: {}", of(what));
        }
        // The same folder must give the same page.
        show::<Switched>(folder.path(), None).unwrap();
        assert_eq!(page, std::fs::read_to_string(&shown.page).unwrap());
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        crate::strangers::check(folder.path(), |dir| {
            show::<Switched>(dir, None).map(|it| it.page)
        });
    }

    #[test]
    fn an_empty_results_folder_still_yields_a_page() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        std::fs::remove_dir_all(folder.path().join(Switched::DESCRIPTION.outcomes)).unwrap();
        std::fs::create_dir(folder.path().join(Switched::DESCRIPTION.outcomes)).unwrap();
        let shown = show::<Switched>(folder.path(), None).unwrap();
        assert!(shown.text.contains("The tables say"), "{}", shown.text);
    }
}
