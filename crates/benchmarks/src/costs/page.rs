//! The page of this benchmark: tables, the models with their sliders, figures, and published results.

use super::evaluate::{Evaluation, PortModel};
use super::prediction::{Answer, Asked, Asking, answer};
use super::{Costs, figures};
use askama::Template;
use taut_bench::benchmark::tables::{Cell, Table, plain};
use taut_bench::benchmark::{Benchmark, Shell};
use taut_bench::report::Drawn;
use taut_measure::quantity::{rate, share, three_digits};
use taut_model::published::{self, Check, Verdict};

const HOW: &str = "Each run is a worker on a core of its own, flooded by a generator on another one, at a point of a Latin hypercube over load, \
    functions, frame size and batch. The cost of a packet is what the worker's own account says: the time in rounds that had packets, \
    less what interrupted rounds took beyond what as many packets take on average, by the packets received; the median over slices of 0.1 s, each with the weight of its packets. Before and after \
    each run a cache line is passed to the other core and back some thousand times; a run in which that changed by half, as the hypervisor \
    moved a core, is made again. Every other point is held out of the fits. Terms are chosen by BIC among sets of costs that are \
    not negative.";

#[derive(Template)]
#[template(path = "costs/costs.html")]
struct Page<'a> {
    shell: Shell<'a>,
    tables: &'a [Table],
    ask: Option<Ask>,
    published: Published,
    how: &'a str,
    core_plan: &'a str,
    head: &'static str,
    outcomes: &'static str,
}

/// The data of the models and sliders, and the text that the page shows without a script.
struct Ask {
    rows: Vec<Row>,
    svg: String,
    json: String,
    asked: Asked,
}

struct Row {
    port: String,
    colour: &'static str,
    /// Cells with the names by which the page's script finds them. The script does not change cells without a name.
    cells: Vec<(&'static str, Cell)>,
}

/// Results of this kind that others published.
struct Published {
    groups: Vec<[String; 6]>,
    checks: Vec<CheckRow>,
}

struct CheckRow {
    what: String,
    source: &'static str,
    cells: Vec<Cell>,
}

/// Renders the page of a cost benchmark.
///
/// # Errors
/// Returns an error if the template fails.
pub fn render(
    evaluation: &Evaluation<'_>,
    asked: Option<Asked>,
    tables: &[Table],
    figures: &[Drawn],
) -> Result<String, askama::Error> {
    let results = evaluation.results;
    let page = Page {
        shell: Shell {
            finding: finding(&evaluation.ports),
            ..Shell::of_benchmark(results, figures)
        },
        tables,
        ask: asked.map(|asked| ask(evaluation, asked)),
        published: published(),
        how: HOW,
        core_plan: &results.head.manifest.core_plan,
        head: Costs::DESCRIPTION.head,
        outcomes: Costs::DESCRIPTION.outcomes,
    };
    page.render()
}

/// Returns the result in one sentence.
pub fn finding(ports: &[PortModel]) -> String {
    let errors: Vec<String> = ports
        .iter()
        .filter_map(|port| {
            let errors = port.held_out?;
            let goal = if port.meets_goal == Some(true) {
                "met"
            } else {
                "missed"
            };
            Some(format!(
                "{} by {} (n = {}; goal {}: {goal})",
                port.port,
                share(errors.median),
                errors.count,
                share(port.goal)
            ))
        })
        .collect();
    if errors.is_empty() {
        return "There is no model that could be held to runs.".to_owned();
    }
    format!(
        "Models fitted to one half of the runs miss the cycles of the other half at the median: {}.",
        errors.join(", ")
    )
}

fn ask(evaluation: &Evaluation<'_>, asked: Asked) -> Ask {
    let question = asked.question(|slider| slider.first);
    let row = |asking: &Asking| {
        let port = evaluation
            .ports
            .iter()
            .find(|port| port.port == asking.port);
        let model = port.and_then(|port| port.model.as_ref());
        let found = model.and_then(|model| answer(model, &question, asked.hz));
        let mut cells = found.map_or_else(Vec::new, |found| cells(&found));
        let error = asking
            .errors
            .map_or("–".to_owned(), |errors| share(errors.median));
        // This cell has no name, because the script does not change it.
        cells.insert(cells.len().min(6), ("", plain(error)));
        Row {
            port: asking.port.clone(),
            colour: asking.colour,
            cells,
        }
    };
    // The text is inside a script element, which only "<" could end.
    let json = serde_json::to_string(&asked).unwrap_or_default();
    Ask {
        rows: asked.ports.iter().map(row).collect(),
        svg: figures::draw_asked(evaluation, &question),
        json: json.replace('<', "\\u003c"),
        asked,
    }
}

fn cells(found: &Answer) -> Vec<(&'static str, Cell)> {
    let interval = |[value, low, high]: [f64; 3], text: fn(f64) -> String| {
        let (low, high) = (text(low), text(high));
        // Where the link limits the rate, there is no interval.
        match low == high {
            true => plain(low),
            false => [text(value), format!("{low} to {high}")],
        }
    };
    vec![
        ("cycles", interval(found.cycles, three_digits)),
        ("pps", interval(found.pps, rate)),
        (
            "binds",
            plain(if found.is_processor {
                "processor"
            } else {
                "link"
            }),
        ),
        ("io", plain(share(found.shares[0]))),
        ("task", plain(share(found.shares[1]))),
        ("busy", plain(share(found.shares[2]))),
        (
            "outside",
            plain(if found.is_outside {
                "outside"
            } else {
                "inside"
            }),
        ),
    ]
}

fn published() -> Published {
    // The tables are compiled in, and a test checks that they are complete.
    let checks = published::checks().unwrap_or_default();
    let groups = published::summaries(&checks).into_iter().map(|group| {
        let errors = group.errors;
        [
            group.group.to_owned(),
            errors.count.to_string(),
            share(errors.median),
            share(errors.max),
            format!("{} of {}", errors.count - group.misses, errors.count),
            match group.intervals {
                0 => "–".to_owned(),
                all => format!("{} of {all}", group.covered),
            },
        ]
    });
    Published {
        groups: groups.collect(),
        checks: checks.iter().map(check_row).collect(),
    }
}

fn check_row(check: &Check) -> CheckRow {
    let between = |low: f64, high: f64| match low == high {
        true => three_digits(low),
        false => format!("{} to {}", three_digits(low), three_digits(high)),
    };
    let predicted = &check.predicted;
    let interval = match check.has_interval() {
        true => between(predicted.low, predicted.high),
        false => String::new(),
    };
    CheckRow {
        what: format!("{}: {}", check.group, check.what),
        source: check.source,
        cells: vec![
            [
                between(check.published_low, check.published_high),
                check.unit.to_owned(),
            ],
            [three_digits(predicted.value), interval],
            plain(share(check.relative_error)),
            plain(share(check.limit)),
            plain(match check.verdict {
                Verdict::Holds => "holds",
                Verdict::Misses => "misses",
            }),
        ],
    }
}
