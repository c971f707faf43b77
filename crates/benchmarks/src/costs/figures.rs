//! Figures of this benchmark's page: measured against predicted cycles, residuals over each variable, the bottleneck
//! over the load, and the use of the cycles. (Gallenmüller 2021, Figs. 4.5 and 5.1, redrawn from the fitted models.)

use super::evaluate::{Compared, Evaluation, PortModel};
use super::prediction::{Asked, Question, answer};
use serde_json::json;
use taut_bench::report::Drawn;
use taut_figure::lines::{self, Line};
use taut_figure::marks::{self, Item, Mark, Part};
use taut_figure::{Chart, Scale, Series, Style};
use taut_measure::quantity::{Quantity, share, three_digits};
use taut_model::chain;
use taut_model::resource::bandwidth::{LINES, ethernet_pps};

/// Numbers of cores for which a rate is drawn, as in Fig. 4.5 of Gallenmüller 2021.
const CORES: [u32; 3] = [1, 2, 3];
/// Links whose line rates are drawn, as in Fig. 4.5 of Gallenmüller 2021.
const LINKS: [&str; 3] = ["10G", "40G", "100G"];
/// Link rate in the figure of the use of cycles, as in Fig. 5.1 of Gallenmüller 2021, bit/s.
const SHARES_LINK_BIT_S: f64 = 10e9;
/// Number of points of each curve.
const POINTS: u32 = 48;

/// Draws all figures for which there is data.
pub fn draw(evaluation: &Evaluation<'_>, asked: Option<&Asked>) -> Vec<Drawn> {
    let mut figures = vec![draw_predicted(evaluation), draw_residuals(evaluation)];
    if let Some(asked) = asked {
        let question = asked.question(|slider| slider.first);
        figures.push(draw_binding(evaluation, &question));
        figures.extend(draw_shares(evaluation, &question));
    }
    figures
}

/// Draws the predicted rate over the load, with the other values of `question` held constant. The page's sliders update
/// this figure.
pub fn draw_asked(evaluation: &Evaluation<'_>, question: &Question) -> String {
    let (x, y) = (load_scale(), Scale::log(Quantity::RatePps, [1e5, 3e8]));
    let lines = modelled(evaluation).map(|(index, port)| Line {
        series: Series {
            label: port.port.clone(),
            style: Style::of(index),
        },
        points: rates(evaluation, port, question),
    });
    lines::draw(
        &Chart::new(
            "asked",
            "Predicted rate over the load",
            "The rate that the model of each kind of port predicts over the cycles burnt per packet.",
        ),
        (x, "load (cycles per packet)"),
        (y, "rate (packets/s)"),
        &lines.collect::<Vec<_>>(),
        &[],
    )
}

fn modelled<'a>(
    evaluation: &'a Evaluation<'_>,
) -> impl Iterator<Item = (usize, &'a PortModel)> + 'a {
    let ports = evaluation.ports.iter().enumerate();
    ports.filter(|(_, port)| port.model.is_some())
}

fn load_scale() -> Scale {
    Scale::log(Quantity::Cycles, [10.0, 1e4])
}

/// Returns the predicted rates of a kind of port over the load, in the units of the figure.
fn rates(evaluation: &Evaluation<'_>, port: &PortModel, question: &Question) -> Vec<(f64, f64)> {
    let x = load_scale();
    let hz = evaluation.results.head.tsc_hz;
    let places = (0..=POINTS).map(|step| x.value_at(f64::from(step) / f64::from(POINTS)));
    let rate = |load: f64| {
        let found = answer(port.model.as_ref()?, &at_load(question, load), hz)?;
        Some((load, found.pps[0]))
    };
    places.filter_map(rate).collect()
}

fn at_load(question: &Question, load: f64) -> Question {
    let mut question = question.clone();
    question.at.insert("load_cycles".to_owned(), load);
    question
}

fn series(index: usize, port: &PortModel) -> Series {
    Series {
        label: port.port.clone(),
        // The markers already distinguish the ports in this figure, so their outlines need no dashes.
        style: Style::of(index).solid(),
    }
}

fn tip(run: &Compared) -> String {
    let at: Vec<String> = run
        .at
        .iter()
        .map(|(name, value)| format!("{name} {}", three_digits(*value)))
        .collect();
    let half = if run.held_out {
        "held out"
    } else {
        "fitted to"
    };
    format!(
        "{} cycles measured, {} predicted ({:+.1} %)|{half}|{}",
        three_digits(run.measured_cycles),
        three_digits(run.predicted_cycles),
        100.0 * run.error(),
        at.join("|")
    )
}

fn draw_predicted(evaluation: &Evaluation<'_>) -> Drawn {
    let runs = || evaluation.ports.iter().flat_map(|port| &port.compared);
    let both = runs().flat_map(|run| [run.measured_cycles, run.predicted_cycles]);
    let scale = Scale::log(Quantity::Cycles, both);
    let part = |(index, port)| {
        part_of(
            port,
            ("predicted (cycles)", scale),
            ("measured (cycles)", scale),
            marks::Line::Equal,
            vec![item(index, port, |run| {
                Some((run.predicted_cycles, run.measured_cycles))
            })],
        )
    };
    let parts: Vec<Part<'_>> = modelled(evaluation).map(part).collect();
    let chart = Chart::new(
        "predicted",
        "Measured against predicted cycles",
        "Cycles per packet as measured over those that the model of the port predicts; hollow marks were held out of the fit.",
    );
    Drawn {
        name: "predicted",
        title: "Measured against predicted",
        caption: "Cycles per packet of every run. Filled: runs that the model was fitted to; hollow: runs that it had not seen. \
                  Dashed: measured as predicted."
            .to_owned(),
        svg: marks::draw(&chart, &parts, parts.len().max(1), 290.0),
        data: Some(data(evaluation)),
    }
}

fn part_of<'a>(
    port: &'a PortModel,
    x: (&'a str, Scale),
    y: (&'a str, Scale),
    line: marks::Line,
    items: Vec<Item>,
) -> Part<'a> {
    Part {
        heading: &port.port,
        x,
        y,
        line,
        items,
    }
}

fn item(index: usize, port: &PortModel, at: impl Fn(&Compared) -> Option<(f64, f64)>) -> Item {
    let marks = port.compared.iter().filter_map(|run| {
        Some(Mark {
            at: at(run)?,
            hollow: run.held_out,
            tip: format!("{} run {}|{}", port.port, run.number, tip(run)),
        })
    });
    Item {
        series: series(index, port),
        marks: marks.collect(),
    }
}

/// Returns every run with its prediction, as JSON.
fn data(evaluation: &Evaluation<'_>) -> serde_json::Value {
    let ports = evaluation
        .ports
        .iter()
        .map(|port| json!({"port": port.port, "runs": port.compared}));
    json!({"ports": ports.collect::<Vec<_>>()})
}

/// A variable of the models: its name, the title and the quantity of its axis, and whether the axis is logarithmic.
type VariableAxis = (&'static str, &'static str, Quantity, bool);

/// Returns the residuals of the models over a variable; none if no run has the variable.
fn residuals_over(
    evaluation: &Evaluation<'_>,
    (name, title, quantity, is_log): &VariableAxis,
    y: Scale,
) -> Option<Part<'static>> {
    let of = |run: &Compared| run.at.get(*name).copied();
    let values: Vec<f64> = evaluation
        .ports
        .iter()
        .flat_map(|port| &port.compared)
        .filter_map(of)
        .collect();
    let x = match (quantity, is_log) {
        (Quantity::Packets, _) => Scale::doublings(*quantity, values.iter().copied()),
        // Runs without load do not extend the logarithmic axis: they are drawn at its left edge.
        (_, true) => Scale::log(
            *quantity,
            values.iter().copied().filter(|value| *value > 1.0),
        ),
        (_, false) => Scale::linear_around(*quantity, values.iter().copied()),
    };
    let items = modelled(evaluation)
        .map(|(index, port)| item(index, port, |run| Some((of(run)?, run.error()))));
    (!values.is_empty()).then(|| Part {
        heading: "",
        x: (*title, x),
        y: ("predicted less measured", y),
        line: marks::Line::Zero,
        items: items.collect(),
    })
}

fn draw_residuals(evaluation: &Evaluation<'_>) -> Drawn {
    let errors = || {
        evaluation
            .ports
            .iter()
            .flat_map(|port| &port.compared)
            .map(Compared::error)
    };
    // The axis is symmetric, so that the zero line is in the middle.
    let most = errors()
        .fold(0.0, |most: f64, error| most.max(error.abs()))
        .max(0.01);
    let y = Scale::linear_around(Quantity::Share, [-most, most]);
    let titles = [
        ("load_cycles", "load (cycles)", Quantity::Cycles, true),
        ("hand_overs", "functions less one", Quantity::Number, false),
        ("frame_bytes", "frame (bytes)", Quantity::Number, false),
        ("batch", "packets in a batch", Quantity::Packets, true),
        (
            "line_cycles",
            "a cache line there and back (cycles)",
            Quantity::Cycles,
            true,
        ),
    ];
    debug_assert!(
        titles
            .iter()
            .all(|(name, ..)| chain::VARIABLES.iter().any(|it| it.0 == *name))
    );
    let part = |variable| residuals_over(evaluation, variable, y);
    let parts: Vec<Part<'_>> = titles.iter().filter_map(part).collect();
    let chart = Chart::new(
        "residuals",
        "What is left over each variable",
        "Predicted less measured cycles, as a share of those measured, over each variable of the models.",
    );
    Drawn {
        name: "residuals",
        title: "What the models leave over each variable",
        caption: "Predicted less measured, as a share of the measured. Filled: fitted to; hollow: held out. Whatever slopes or bends along \
                  a variable is a term that the model lacks."
            .to_owned(),
        svg: marks::draw(&chart, &parts, 2, 200.0),
        data: None,
    }
}

/// Returns the rates that each kind of port forwards over the load, for each number of cores.
fn processor_rates(evaluation: &Evaluation<'_>, question: &Question) -> Vec<Line> {
    // The link rate is far above that of every real link, so that only the processor limits the forwarding rate.
    let unlimited = |cores: u32| Question {
        cores,
        link_bit_s: 1e15,
        ..question.clone()
    };
    let of_port = |(index, port): (usize, &PortModel)| {
        CORES.map(|cores| {
            let style = Style::of(index).solid();
            Line {
                series: Series {
                    label: format!("{}, {}", port.port, in_words(cores)),
                    style: match cores {
                        1 => style,
                        2 => style.dashed(),
                        _ => style.dotted(),
                    },
                },
                points: rates(evaluation, port, &unlimited(cores)),
            }
        })
    };
    modelled(evaluation).flat_map(of_port).collect()
}

/// Returns the line rate of each link with frames as in `question`, with the link's name.
fn line_rates(question: &Question) -> Vec<(f64, String)> {
    let frame_bytes = question.at.get("frame_bytes").copied().unwrap_or(64.0);
    let level = |link: &&str| {
        let (name, bit_s) = LINES.iter().find(|(name, _)| name == link)?;
        Some((
            ethernet_pps(*bit_s, frame_bytes).ok()?,
            format!("{name} Ethernet"),
        ))
    };
    LINKS.iter().filter_map(level).collect()
}

fn draw_binding(evaluation: &Evaluation<'_>, question: &Question) -> Drawn {
    let lines = processor_rates(evaluation, question);
    let levels = line_rates(question);
    let rates = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.1);
    let y = Scale::log(
        Quantity::RatePps,
        rates.chain(levels.iter().map(|level| level.0)),
    );
    let svg = lines::draw(
        &Chart::new(
            "binding",
            "What binds over the load",
            "The rate that the processor carries over the load, for 1 to 3 cores, and the line rates of Ethernet.",
        ),
        (load_scale(), "load (cycles per packet)"),
        (y, "rate (packets/s)"),
        &lines,
        &levels,
    );
    Drawn {
        name: "binding",
        title: "What binds over the load",
        caption: format!(
            "Rates that cores of this machine carry as the models say ({}), and what links carry of such frames. Above a \
             link's line the link binds, below it the processor; where they meet no cycle is idle. After Gallenmüller 2021, Fig. 4.5.",
            in_question(question)
        ),
        svg,
        data: None,
    }
}

fn draw_shares(evaluation: &Evaluation<'_>, question: &Question) -> Vec<Drawn> {
    let question = Question {
        cores: 1,
        link_bit_s: SHARES_LINK_BIT_S,
        ..question.clone()
    };
    let drawn =
        modelled(evaluation).filter_map(|(_, port)| draw_shares_of(evaluation, port, &question));
    drawn.collect()
}

/// Returns the areas of a stacked figure: each fraction of the cycles over the load.
fn share_areas(points: &[(f64, [f64; 3])]) -> Vec<Line> {
    let names = ["input and output", "task", "polling without work"];
    let areas = names.iter().enumerate().map(|(index, label)| Line {
        series: Series {
            label: (*label).to_owned(),
            style: Style::of([1, 0, 6][index]).solid(),
        },
        points: points
            .iter()
            .map(|(load, shares)| (*load, shares[index]))
            .collect(),
    });
    areas.collect()
}

/// Draws the fractions of its cycles that a kind of port uses for input and output, task and idle polling. Returns none
/// for kinds of ports without a figure, and where the link is never the limit.
fn draw_shares_of(
    evaluation: &Evaluation<'_>,
    port: &PortModel,
    question: &Question,
) -> Option<Drawn> {
    let (name, title) = match port.port.as_str() {
        "null" => ("shares-null", "What the cycles go into, null ports"),
        "pair" => ("shares-pair", "What the cycles go into, pair ports"),
        "memif" => ("shares-memif", "What the cycles go into, memif ports"),
        _ => return None,
    };
    let hz = evaluation.results.head.tsc_hz;
    let frame_bytes = question.at.get("frame_bytes")?;
    let line_pps = ethernet_pps(question.link_bit_s, *frame_bytes).ok()?;
    // The axis ends at twice the cycles per packet at line rate, so that the knee is left of the middle.
    let x = Scale::linear_from_zero(Quantity::Cycles, [2.0 * hz / line_pps]);
    let step = |step: u32| {
        let load = x.value_at(f64::from(step) / f64::from(POINTS));
        Some((
            load,
            answer(port.model.as_ref()?, &at_load(question, load), hz)?.shares,
        ))
    };
    let points: Vec<(f64, [f64; 3])> = (0..=POINTS).filter_map(step).collect();
    let svg = lines::stacked(
        &Chart::new(
            name,
            title,
            "Shares of a core's cycles that go into input and output, into the task, and into polling without work, over the load.",
        ),
        (x, "load (cycles per packet)"),
        (
            Scale::linear(Quantity::Share, 0.0, 1.0),
            "share of the cycles",
        ),
        &share_areas(&points),
    );
    let error = port.held_out.map_or(String::new(), |errors| {
        format!(" The model errs by {} at the median.", share(errors.median))
    });
    Some(Drawn {
        name,
        title,
        caption: format!(
            "One core offered {} of 10G Ethernet ({}): below the knee it polls what packets leave, beyond it \
             carries fewer packets.{error} After Gallenmüller 2021, Fig. 5.1.",
            Quantity::RatePps.text(line_pps),
            in_question(question)
        ),
        svg,
        data: None,
    })
}

fn in_words(cores: u32) -> String {
    match cores {
        1 => "1 core".to_owned(),
        more => format!("{more} cores"),
    }
}

/// Returns, as text, the values of `question` that stay constant while the load changes.
fn in_question(question: &Question) -> String {
    let value = |name: &str| question.at.get(name).copied().unwrap_or(0.0);
    format!(
        "frames of {} bytes, batches of {}, {} hand-overs between functions",
        value("frame_bytes"),
        value("batch"),
        value("hand_overs")
    )
}
