//! The models asked at a point: what a page says there, and all that its sliders need to ask them elsewhere. The script computes
//! what [`Answer`] says by the same terms; before it lets anybody move a slider it works out the answers in [`Asked::known`].

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

/// The term whose cycles are a function's own; all others are input and output.
const TASK: &str = "load_cycles";

/// Cores that a slider goes up to, and the links that it offers, bit/s.
const MOST_CORES: u32 = 16;
const LINKS_BIT_S: [f64; 6] = [1e9, 10e9, 25e9, 40e9, 100e9, 200e9];

/// Where sliders stand first, as far as the models were fitted there: variables, then cores and link.
const FIRST: [(&str, f64); 4] = [
    (TASK, 100.0),
    ("hand_overs", 0.0),
    ("frame_bytes", 64.0),
    ("batch", 32.0),
];
/// So fast that the processors are seen to differ.
const FIRST_LINK_BIT_S: f64 = 100e9;

/// Frame sizes of RFC 2544 and what lies between the first ones, bytes.
const FRAMES_BYTES: [f64; 11] = [
    64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 1280.0, 1518.0,
];

/// What sliders need.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    /// Cycles per second of a core.
    pub hz: f64,
    /// Bytes on the wire beside a frame.
    pub overhead_bytes: f64,
    /// Variable whose cycles are the task's.
    pub task: &'static str,
    /// Models of the kinds of ports that have one.
    pub ports: Vec<Asking>,
    /// What can be moved.
    pub sliders: Vec<Slider>,
    /// Answers for the script to find again.
    pub known: Vec<Known>,
}

/// A model as a script can ask it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asking {
    /// Id of its kind of port.
    pub port: String,
    /// Colour that it has in the figures.
    pub colour: &'static str,
    /// Terms.
    pub terms: Vec<AskedTerm>,
    /// Covariance of their coefficients.
    pub covariance: Vec<Vec<f64>>,
    /// Standard errors that an interval reaches to each side.
    pub reach: f64,
    /// Standard deviation of residuals; as a share of the prediction where `relative`.
    pub residual_std: f64,
    /// Whether residuals grow with the prediction.
    pub relative: bool,
    /// Variables that it was fitted on, from and to.
    pub ranges: Vec<(String, f64, f64)>,
    /// Errors that it is known to make.
    pub errors: Option<Errors>,
}

/// A term: its coefficient, and the variables that it is multiplied by with their exponents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AskedTerm {
    /// Coefficient.
    pub value: f64,
    /// Variables and exponents.
    pub factors: Vec<(String, f64)>,
}

/// Something that can be moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slider {
    /// Variable of the models, or `cores` or `link_bit_s`.
    pub name: &'static str,
    /// What a person reads.
    pub label: &'static str,
    /// Values that it can take.
    pub values: Vec<f64>,
    /// The same as people read them.
    pub texts: Vec<String>,
    /// Number of the value that it stands at first.
    pub first: usize,
}

impl Slider {
    /// What it stands at first, as people read it.
    pub fn first_text(&self) -> &str {
        self.texts.get(self.first).map_or("", String::as_str)
    }

    /// Number of its last value.
    pub fn last(&self) -> usize {
        self.values.len().saturating_sub(1)
    }
}

/// A machine and packets to ask about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Question {
    /// Variables of the models.
    pub at: Variables,
    /// Cores that forward.
    pub cores: u32,
    /// The link.
    pub link_bit_s: f64,
}

/// What a model says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Answer {
    /// Cycles of a packet, and the interval of a single run.
    pub cycles: [f64; 3],
    /// Packets per second, and its interval.
    pub pps: [f64; 3],
    /// Whether the processor binds, and not the link.
    pub is_processor: bool,
    /// Shares of the cycles at that rate: input and output, task, polling without work.
    pub shares: [f64; 3],
    /// Whether the model was not fitted there.
    pub is_outside: bool,
}

/// A question and its answer, for a script to try itself on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Known {
    /// Number of the model in [`Asked::ports`].
    pub port: usize,
    /// What is asked.
    #[serde(flatten)]
    pub question: Question,
    /// What the model says.
    #[serde(flatten)]
    pub answer: Answer,
}

impl Asked {
    /// Returns what a page's sliders need. None without a model.
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

    /// Returns the question that the sliders ask when each stands at one of its values: by default at the first one.
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

    /// Questions with all sliders at the first value, at their ends, and in between.
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

/// Returns what a model says of a question. None if it cannot be asked there.
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

/// None without a model, and for one with terms that are no powers.
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

/// Returns the number of the value nearest to the wanted one among those that all models were fitted around.
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

/// The way of a cache line, if it is a term of a model; from the shortest to the longest that a model was fitted on.
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
    // No step is rounded out of what was measured.
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

    /// As sliders.js: the sum of terms and the interval, of what is on the page alone.
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
    fn what_the_page_holds_gives_what_the_model_says() {
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
        // Sliders at one end at least ask beyond what was measured.
        assert!(asked.known.iter().any(|known| known.answer.is_outside));
    }

    #[test]
    fn sliders_begin_with_a_usual_packet_and_the_usual_way_of_a_line() {
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
        // A packet that both models know.
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
    fn without_a_model_there_is_nothing_to_ask() {
        let mut results = made_up::results();
        results.outcomes.clear();
        assert_eq!(Asked::of(&Evaluation::of(&results)), None);
    }
}
