//! The models' predictions on the page, and the data from which its sliders compute further predictions. A *question*
//! is a machine and its traffic, as set by the sliders; an *answer* is the prediction of a model for a question. The
//! script computes an [`Answer`] from the same terms; it checks itself with [`Asked::known`] before it enables the
//! sliders.

use super::evaluate::{Evaluation, PortModel};
use serde::Serialize;
use taut_figure::Style;
use taut_measure::median;
use taut_model::Errors;
use taut_model::chain;
use taut_model::fit::Spread;
use taut_model::model_file::{Factor, Model, Variables};
use taut_model::resource::bandwidth::WIRE_OVERHEAD_BYTES;
use taut_model::resource::{Machine, Packets, Resource};

/// The model's term for the cycles of a packet's task; all other terms are input and output.
const TASK: &str = "load_cycles";

/// The highest number of cores that a user can choose with the slider of cores.
const MOST_CORES: u32 = 16;
const LINKS_BIT_S: [f64; 6] = [1e9, 10e9, 25e9, 40e9, 100e9, 200e9];

/// Initial values of the sliders, limited to the ranges of the model's fit: variables, then cores and link.
const FIRST: [(&str, f64); 4] = [
    (TASK, 100.0),
    ("hand_overs", 0.0),
    ("frame_bytes", 64.0),
    ("batch", 32.0),
];
/// Initial link rate of the sliders, bit/s. Such a link is faster than the processors, so that the rates of the ports
/// differ.
const FIRST_LINK_BIT_S: f64 = 100e9;

/// Frame sizes from RFC 2544 in bytes, with one additional size between each two of them up to 1024.
const FRAMES_BYTES: [f64; 11] = [
    64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 1280.0, 1518.0,
];

/// The data from which the page's sliders compute predictions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    /// Cycles per second of a core (frequency of the time-stamp counter).
    pub hz: f64,
    /// Bytes per frame on the link in addition to the frame itself.
    pub overhead_bytes: f64,
    /// Name of the variable that contains the cycles of the functions.
    pub task: &'static str,
    /// The models, for the kinds of ports that have one.
    pub ports: Vec<Asking>,
    /// The sliders of the page.
    pub sliders: Vec<Slider>,
    /// Questions with known predictions, with which the script checks itself.
    pub known: Vec<Known>,
}

/// A model in the form that a script can evaluate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asking {
    /// Id of the kind of port.
    pub port: String,
    /// Colour of the model in the figures.
    pub colour: &'static str,
    /// Terms of the model.
    pub terms: Vec<AskedTerm>,
    /// Covariance matrix of the coefficients.
    pub covariance: Vec<Vec<f64>>,
    /// Half the width of a prediction's confidence interval, divided by the standard error of the prediction.
    pub reach: f64,
    /// Standard deviation of the model's residuals: in cycles, or as a fraction of the prediction if `relative`.
    pub residual_std: f64,
    /// True if the model's residuals grow with the prediction.
    pub relative: bool,
    /// Ranges of the variables in the model's fit: name, lowest and highest value.
    pub ranges: Vec<(String, f64, f64)>,
    /// Errors of the model; none if they are not known.
    pub errors: Option<Errors>,
}

/// A term of a model: coefficient, and the variables that it is multiplied by, with their exponents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AskedTerm {
    /// The coefficient of the term.
    pub value: f64,
    /// The variables that the coefficient is multiplied by, with their exponents.
    pub factors: Vec<(String, f64)>,
}

/// A slider of the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slider {
    /// Variable of the models, or `cores` or `link_bit_s`.
    pub name: &'static str,
    /// The label of the slider for readers.
    pub label: &'static str,
    /// The values to which the slider can be set.
    pub values: Vec<f64>,
    /// The values of the slider, formatted for readers.
    pub texts: Vec<String>,
    /// Index of the slider's initial value.
    pub first: usize,
}

impl Slider {
    /// Returns the slider's initial value, formatted for readers.
    pub fn first_text(&self) -> &str {
        self.texts.get(self.first).map_or("", String::as_str)
    }

    /// Returns the index of the slider's last value.
    pub fn last(&self) -> usize {
        self.values.len().saturating_sub(1)
    }
}

/// The number of cores, the link and the traffic for which the models predict a rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Question {
    /// Values of the models' variables.
    pub at: Variables,
    /// Number of cores that forward.
    pub cores: u32,
    /// Link rate, bit/s.
    pub link_bit_s: f64,
}

/// The prediction of a model for a [`Question`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Answer {
    /// Cycles per packet: the prediction, and the lower and upper end of its interval for a single run.
    pub cycles: [f64; 3],
    /// Packets per second: the prediction, and the lower and upper end of its interval.
    pub pps: [f64; 3],
    /// True if the processor limits the predicted rate, false if the link does.
    pub is_processor: bool,
    /// Fractions of the processor's cycles at the predicted rate: input and output, task, and polling without work.
    pub shares: [f64; 3],
    /// True if a value of the question is outside of the ranges to which the model was fitted.
    pub is_outside: bool,
}

/// A question and its answer, with which a script checks itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Known {
    /// Index of the model in [`Asked::ports`].
    pub port: usize,
    /// The question that the script has to answer.
    #[serde(flatten)]
    pub question: Question,
    /// The model's answer to the question.
    #[serde(flatten)]
    pub answer: Answer,
}

impl Asked {
    /// Returns the data for the sliders of a page, or none without a model.
    pub fn of(evaluation: &Evaluation<'_>) -> Option<Self> {
        let hz = evaluation.results.head.tsc_hz;
        let ports = evaluation.ports.iter().enumerate();
        let ports: Vec<Asking> = ports.filter_map(asking).collect();
        if ports.is_empty() {
            return None;
        }
        let mut asked = Self {
            hz,
            overhead_bytes: WIRE_OVERHEAD_BYTES,
            task: TASK,
            sliders: sliders(evaluation, &ports),
            ports,
            known: Vec::new(),
        };
        let models = evaluation
            .ports
            .iter()
            .filter(|port| asking((0, port)).is_some());
        for (port, model) in models.filter_map(|port| port.model.as_ref()).enumerate() {
            for question in asked.questions() {
                let answer = answer(model, &question, hz);
                asked.known.extend(answer.map(|answer| Known {
                    port,
                    question,
                    answer,
                }));
            }
        }
        Some(asked)
    }

    /// Returns the question for the present positions of the sliders. `standing` returns the index of the value at
    /// which each slider is set.
    pub fn question(&self, standing: impl Fn(&Slider) -> usize) -> Question {
        let mut question = Question {
            at: Variables::new(),
            cores: 1,
            link_bit_s: FIRST_LINK_BIT_S,
        };
        for slider in &self.sliders {
            let value = slider.values.get(standing(slider)).copied().unwrap_or(0.0);
            match slider.name {
                "cores" => question.cores = value as u32,
                "link_bit_s" => question.link_bit_s = value,
                name => {
                    question.at.insert(name.to_owned(), value);
                }
            }
        }
        question
    }

    /// Returns questions with all sliders at their initial values, at their first and last values, and in between.
    fn questions(&self) -> Vec<Question> {
        let stands: [fn(&Slider) -> usize; 4] = [
            |slider| slider.first,
            |_| 0,
            |slider| slider.last(),
            |slider| slider.last() / 2,
        ];
        stands
            .into_iter()
            .map(|stand| self.question(stand))
            .collect()
    }
}

/// Returns the prediction of a model, or none if it is not defined for the question.
pub fn answer(model: &Model, question: &Question, hz: f64) -> Option<Answer> {
    let known = &model.file().ranges;
    let asked = question.at.iter();
    let asked = asked.filter(|(name, _)| known.iter().any(|range| range.variable == **name));
    let at: Variables = asked.map(|(name, value)| (name.clone(), *value)).collect();
    let cycles = model.predict(&at).ok()?;
    let frame_bytes = *question.at.get("frame_bytes")?;
    let packets = Packets::new(frame_bytes, *question.at.get("batch")?).ok()?;
    let machine = Machine {
        ethernet_bit_s: Some(question.link_bit_s),
        ..Machine::new(question.cores, hz).ok()?
    };
    let carried = machine.carried_by_model(&cycles, &packets).ok()?;
    let (estimate, pps) = (cycles.estimate, carried.highest.estimate);
    let of_task = model
        .file()
        .terms
        .iter()
        .filter(|term| is_task(&term.shape.factors));
    let of_task =
        of_task.filter_map(|term| Some(term.coefficient.value * term.shape.value(&at).ok()?));
    let available = f64::from(question.cores) * hz;
    let task = pps.value * of_task.sum::<f64>() / available;
    let all = pps.value * estimate.value / available;
    Some(Answer {
        cycles: [estimate.value, estimate.low, estimate.high],
        pps: [pps.value, pps.low, pps.high],
        is_processor: carried.binding == Resource::Processor,
        shares: [all - task, task, (1.0 - all).max(0.0)],
        is_outside: !cycles.outside.is_empty(),
    })
}

fn is_task(factors: &[Factor]) -> bool {
    factors.iter().any(|factor| factor.variable() == TASK)
}

/// Returns the model for the script; none without a model, or if a term is not a product of powers.
fn asking((index, port): (usize, &PortModel)) -> Option<Asking> {
    let model = port.model.as_ref()?;
    let file = model.file();
    let power = |factor: &Factor| match factor {
        Factor::Power { variable, power } => Some((variable.clone(), *power)),
        Factor::Level { .. } => None,
    };
    let terms = file.terms.iter().map(|term| {
        Some(AskedTerm {
            value: term.coefficient.value,
            factors: term
                .shape
                .factors
                .iter()
                .map(power)
                .collect::<Option<_>>()?,
        })
    });
    let ranges = file.ranges.iter();
    Some(Asking {
        port: port.port.clone(),
        colour: Style::of(index).colour,
        terms: terms.collect::<Option<_>>()?,
        covariance: file.covariance.clone(),
        reach: model.reach().ok()?,
        residual_std: file.residual_std,
        relative: file.spread == Spread::Relative,
        ranges: ranges
            .map(|it| (it.variable.clone(), it.min, it.max))
            .collect(),
        errors: model.errors(),
    })
}

fn sliders(evaluation: &Evaluation<'_>, ports: &[Asking]) -> Vec<Slider> {
    let plain = |value: f64| value.to_string();
    let cycles: Vec<f64> = (0..=36)
        .map(|step| 10_f64.powf(1.0 + f64::from(step) / 12.0).round())
        .collect();
    let batches: Vec<f64> = (0..=8).map(|power| f64::from(1 << power)).collect();
    let loads = [0.0].into_iter().chain(cycles).collect();
    let hand_overs = (0..=9).map(f64::from).collect();
    let mut all = vec![
        slider(TASK, "load, cycles per packet", loads, plain),
        slider(
            "hand_overs",
            "functions that pass it on, less one",
            hand_overs,
            plain,
        ),
        slider("frame_bytes", "frame, bytes", FRAMES_BYTES.to_vec(), plain),
        slider("batch", "packets in a batch", batches, plain),
    ];
    for (name, value) in FIRST {
        if let Some(slider) = all.iter_mut().find(|slider| slider.name == name) {
            slider.first = first(&slider.values, ports, name, value);
        }
    }
    all.extend(line_slider(evaluation, ports));
    let cores = (1..=MOST_CORES).map(f64::from).collect();
    all.push(slider("cores", "cores", cores, plain));
    let gigabits = |bit_s: f64| format!("{}G", bit_s / 1e9);
    let mut link = slider("link_bit_s", "link, bit/s", LINKS_BIT_S.to_vec(), gigabits);
    link.first = nearest(&link.values, FIRST_LINK_BIT_S);
    all.push(link);
    all
}

/// Returns the index of the value nearest to `wanted` among those within the ranges of all models.
fn first(values: &[f64], ports: &[Asking], name: &str, wanted: f64) -> usize {
    let ranges = (ports.iter()).flat_map(|port| port.ranges.iter().filter(|range| range.0 == name));
    let inside: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| {
            ranges
                .clone()
                .all(|(_, least, most)| (least..=most).contains(&value))
        })
        .collect();
    match inside.get(nearest(&inside, wanted)) {
        Some(value) => nearest(values, *value),
        None => nearest(values, wanted),
    }
}

/// Returns the slider for the round-trip cycles of a cache line; none if no model has that term. The slider covers the
/// range of the fits.
fn line_slider(evaluation: &Evaluation<'_>, ports: &[Asking]) -> Option<Slider> {
    let (name, _) = chain::VARIABLES[4];
    let mut factors = ports
        .iter()
        .flat_map(|port| &port.terms)
        .flat_map(|term| &term.factors);
    if !factors.any(|(variable, _)| variable == name) {
        return None;
    }
    let ranges = || {
        ports
            .iter()
            .flat_map(|port| &port.ranges)
            .filter(|(of, ..)| of == name)
    };
    let least = ranges().map(|range| range.1).fold(f64::INFINITY, f64::min);
    let most = ranges().map(|range| range.2).fold(0.0, f64::max);
    let step = |step: u32| least * (most / least).powf(f64::from(step) / 12.0);
    // Rounding must not move a step out of the measured range.
    let steps = (0..=12).map(|number| step(number).clamp(least, most));
    let values: Vec<f64> = steps.collect();
    let compared = evaluation.ports.iter().flat_map(|port| &port.compared);
    let usual: Vec<f64> = compared
        .filter_map(|run| run.at.get(name).copied())
        .collect();
    let first = nearest(&values, median(&usual).unwrap_or(least));
    let text = |value: f64| format!("{value:.0}");
    Some(Slider {
        first,
        ..slider(
            name,
            "a cache line to the other core and back, cycles",
            values,
            text,
        )
    })
}

fn slider(
    name: &'static str,
    label: &'static str,
    values: Vec<f64>,
    text: impl Fn(f64) -> String,
) -> Slider {
    Slider {
        name,
        label,
        texts: values.iter().map(|value| text(*value)).collect(),
        values,
        first: 0,
    }
}

fn nearest(values: &[f64], to: f64) -> usize {
    let away = |(_, value): &(usize, &f64)| (**value - to).abs();
    let found = values
        .iter()
        .enumerate()
        .min_by(|a, b| away(a).total_cmp(&away(b)));
    found.map_or(0, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::made_up;
    use super::*;

    /// Computes the sum of the terms and the interval as `sliders.js` does, only from the data on the page.
    fn cycles(port: &Asking, at: &Variables) -> [f64; 3] {
        let of = |term: &AskedTerm| -> f64 {
            let powers = term
                .factors
                .iter()
                .map(|(name, power)| at[name].powf(*power));
            powers.product()
        };
        let x: Vec<f64> = port.terms.iter().map(of).collect();
        let value: f64 = port
            .terms
            .iter()
            .zip(&x)
            .map(|(term, x)| term.value * x)
            .sum();
        let own: f64 = (0..x.len())
            .flat_map(|i| (0..x.len()).map(move |j| (i, j)))
            .map(|(i, j)| x[i] * port.covariance[i][j] * x[j])
            .sum();
        let scatter = port.residual_std * if port.relative { value } else { 1.0 };
        let half = port.reach * (own.max(0.0) + scatter * scatter).sqrt();
        let value = value.max(0.0);
        [value, (value - half).max(0.0), value + half]
    }

    #[test]
    fn the_page_computes_the_cycles_and_rates_of_the_model() {
        let results = made_up::results();
        let evaluation = Evaluation::of(&results);
        let asked = Asked::of(&evaluation).unwrap();
        assert_eq!(asked.ports.len(), 2);
        assert_eq!(asked.known.len(), 8, "{:?}", asked.known);
        for known in &asked.known {
            let found = cycles(&asked.ports[known.port], &known.question.at);
            for (found, said) in found.into_iter().zip(known.answer.cycles) {
                assert!(
                    (found - said).abs() <= 1e-9 * said.max(1.0),
                    "{known:?}: {found}"
                );
            }
            let link = known.question.link_bit_s
                / ((known.question.at["frame_bytes"] + asked.overhead_bytes) * 8.0);
            let processor = f64::from(known.question.cores) * asked.hz / found[0];
            assert!((known.answer.pps[0] / link.min(processor) - 1.0).abs() < 1e-9);
            assert_eq!(known.answer.is_processor, processor <= link);
            let all: f64 = known.answer.shares.iter().sum();
            assert!((all - 1.0).abs() < 1e-9, "{known:?}");
        }
        // Questions with all sliders at one end are outside of the measured range.
        assert!(asked.known.iter().any(|known| known.answer.is_outside));
    }

    #[test]
    fn sliders_start_within_the_measured_range_of_every_model() {
        let results = made_up::results();
        let evaluation = Evaluation::of(&results);
        let asked = Asked::of(&evaluation).unwrap();
        let texts: Vec<(&str, &str)> = asked
            .sliders
            .iter()
            .map(|it| (it.name, it.first_text()))
            .collect();
        assert_eq!(texts[..2], [("load_cycles", "100"), ("hand_overs", "0")]);
        assert_eq!((texts[2].0, texts[3]), ("frame_bytes", ("batch", "32")));
        assert_eq!(texts[4].0, "line_cycles");
        assert_eq!(texts[5..], [("cores", "1"), ("link_bit_s", "100G")]);
        // The initial question is within the measured ranges of both models.
        let first = asked.question(|slider| slider.first);
        for port in &evaluation.ports {
            let answer = answer(port.model.as_ref().unwrap(), &first, asked.hz).unwrap();
            assert!(!answer.is_outside, "{first:?}");
        }
        for slider in &asked.sliders {
            assert_eq!(slider.values.len(), slider.texts.len());
            assert!(
                slider.values.windows(2).all(|pair| pair[0] < pair[1]),
                "{slider:?}"
            );
        }
    }

    #[test]
    fn predictions_are_unavailable_without_a_model() {
        let mut results = made_up::results();
        results.outcomes.clear();
        assert_eq!(Asked::of(&Evaluation::of(&results)), None);
    }
}
