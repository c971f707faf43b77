//! Chooses the perturbations of an experiment that fit into the allowed time, in a fixed order.

use super::options::{factors_of, literal_awake, options_of};
use super::scale::{number_and_unit, scaled};
use super::spread::name_in;
use super::{AWAKE_SETTING, BASELINE, Perturbation, Point, Robust};
use crate::changes::Changes;
use crate::definition::{Definition, Order, Scalar};
use crate::error::ExperimentError;
use crate::experiment::{Experiment, Variant};
use crate::variables::{loop_values, plain};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use taut_host::Awake;
use toml::Spanned;

/// Default factors by which a number is perturbed. The larger factor is tried first, because a larger value is more
/// often valid.
const FACTORS: [f64; 2] = [2.0, 0.5];
/// Lowest number of repetitions to which a plan is shortened.
const FEWEST_REPETITIONS: u32 = 3;
/// Maximum number of pairs of perturbations whose duration is estimated.
const MOST_PAIRS: usize = 300;
/// Time of a run in addition to its traffic, s.
const OVERHEAD_S: f64 = 0.8;
/// Duration of the traffic of `taut generate` without an option for the duration, s.
const DEFAULT_TRAFFIC_S: f64 = 10.0;
/// Words in names of variables whose numbers are positions, identifiers or programs. Such numbers are not multiplied.
const NO_QUANTITIES: [&str; 10] = [
    "core", "cpu", "port", "queue", "worker", "thread", "node", "numa", "seed", "version",
];

/// The chosen perturbations of an experiment, and the experiment with them.
#[derive(Debug)]
pub struct RobustPlan {
    /// The experiment with its perturbations.
    pub experiment: Experiment,
    /// The changes to the experiment file that add the perturbations.
    pub changes: Changes,
    /// Expected total duration of all runs.
    pub expected: Duration,
    /// Number of repetitions in the file, if the plan has fewer; `None` if the plan has the same number.
    pub shortened_from: Option<u32>,
}

/// A perturbation that may become part of the plan.
struct Candidate {
    point: Point,
    seconds: f64,
}

/// Chooses the perturbations of an experiment: each variable by itself, and as many pairs as fit into the time
/// `within`. The order of pairs is drawn from `seed`. `open` opens the experiment with the given changes.
///
/// # Errors
/// The experiment cannot be opened, has no claim, or takes longer than `within` with a single perturbation.
pub fn choose(
    open: &dyn Fn(&Changes) -> Result<Experiment, ExperimentError>,
    changes: &Changes,
    within: Duration,
    seed: u64,
) -> Result<RobustPlan, ExperimentError> {
    let mut robust = Robust {
        seed,
        within_s: within.as_secs_f64(),
        ..Robust::default()
    };
    let with = |robust: &Robust, repetitions: Option<u32>| Changes {
        robust: Some(robust.clone()),
        repetitions: repetitions.or(changes.repetitions),
        ..changes.clone()
    };
    let plain = open(&with(&robust, None))?;
    if plain.definition.claim.is_empty() {
        return Err(plain.source.wrong_somewhere(
            "no [[claim]]: taut experiment robust tests claims; add at least one",
        ));
    }
    let asked = plain.definition.plan.repetitions;
    let baseline_s = plain.seconds_of(BASELINE);
    // An impossible change, such as one that leaves a formula without a value, is skipped, and its reason is recorded.
    let seconds_of = |point: &Point, left_out: &mut Vec<String>| {
        let alone = Robust {
            points: vec![point.clone()],
            ..Robust::default()
        };
        match open(&with(&alone, None)) {
            Ok(experiment) => Some(experiment.seconds_of(&point.name)),
            Err(e) => {
                left_out.push(format!("{}: {e}", point.name));
                None
            }
        }
    };
    let mut singles = Vec::new();
    for point in single_points(&plain, &mut robust.left_out) {
        if let Some(seconds) = seconds_of(&point, &mut robust.left_out) {
            singles.push(Candidate { point, seconds });
        }
    }
    let all_s = baseline_s + singles.iter().map(|it| it.seconds).sum::<f64>();
    let repetitions = fitting(asked, all_s, within, changes.repetitions.is_some());
    let each = f64::from(repetitions);
    let mut left_s = robust.within_s - baseline_s * each;
    for Candidate { point, seconds } in singles {
        take(&mut robust, point, seconds * each, &mut left_s);
    }
    for point in of_repetitions(repetitions) {
        let more = point.repetitions().unwrap_or(0);
        let runs = if point.of_baseline(repetitions).is_some() {
            0
        } else {
            more
        };
        take(
            &mut robust,
            point,
            baseline_s * f64::from(runs),
            &mut left_s,
        );
    }
    if robust
        .points
        .iter()
        .all(|point| point.of_baseline(repetitions).is_some())
    {
        return Err(ExperimentError::Unknown(format!(
            "one perturbation and the experiment itself take about {:.0} s, {repetitions} repetitions each: more than \
             --within {:.0}s; give it more time, or fewer --repetitions",
            2.0 * baseline_s * each,
            robust.within_s
        )));
    }
    let mut tried = 0;
    for pair in pairs(&robust.points, seed) {
        tried += 1;
        if left_s < baseline_s * each * 0.5 || tried > MOST_PAIRS {
            break;
        }
        let Some(seconds) = seconds_of(&pair, &mut Vec::new()) else {
            continue;
        };
        if seconds * each <= left_s {
            left_s -= seconds * each;
            robust.points.push(pair);
        }
    }
    let changes = with(&robust, Some(repetitions));
    Ok(RobustPlan {
        experiment: open(&changes)?,
        changes,
        expected: Duration::from_secs_f64((robust.within_s - left_s).max(0.0)),
        shortened_from: (repetitions < asked).then_some(asked),
    })
}

/// Adds a perturbation to the plan if its runs fit into the remaining time.
fn take(robust: &mut Robust, point: Point, seconds: f64, left_s: &mut f64) {
    if seconds <= *left_s {
        *left_s -= seconds;
        robust.points.push(point);
    } else {
        robust
            .left_out
            .push(format!("{}: takes about {seconds:.0} s more", point.name));
    }
}

/// Returns the number of repetitions with which all single perturbations fit into the time `within`, but at least the
/// minimum of [`FEWEST_REPETITIONS`]. A fixed number stays unchanged.
fn fitting(asked: u32, all_s: f64, within: Duration, is_fixed: bool) -> u32 {
    let fit = (within.as_secs_f64() / all_s.max(1e-3)).floor().min(1e6) as u32;
    match is_fixed {
        true => asked,
        false => fit.clamp(FEWEST_REPETITIONS.min(asked), asked),
    }
}

/// Returns the single perturbations in the order in which they are added to the plan.
fn single_points(experiment: &Experiment, left_out: &mut Vec<String>) -> Vec<Point> {
    let definition = &experiment.definition;
    let mut points = vec![Point::of(vec![Perturbation::Seed])];
    let mut later = Vec::new();
    for (name, changes) in of_variables(experiment, left_out) {
        let own = definition.robust.contains_key(&name);
        for (index, change) in changes.into_iter().enumerate() {
            let point = Point::of(vec![change]);
            // The first change of every variable comes before the second change of any variable.
            if index == 0 || own {
                points.push(point);
            } else {
                later.push(point);
            }
        }
    }
    points.append(&mut later);
    let runs = experiment.variants.len() as u64 * u64::from(definition.plan.repetitions);
    if runs > 1 {
        points.insert(
            1,
            Point::of(vec![Perturbation::Order {
                order: other(definition.plan.order),
            }]),
        );
    }
    points
}

fn other(order: Order) -> Order {
    match order {
        Order::Sequential => Order::Interleaved,
        Order::Interleaved | Order::Random => Order::Sequential,
    }
}

fn of_repetitions(repetitions: u32) -> Vec<Point> {
    let numbers = [repetitions / 2, repetitions * 2];
    let numbers = numbers.into_iter().filter(|number| *number > 0);
    numbers
        .map(|repetitions| Point::of(vec![Perturbation::Repetitions { repetitions }]))
        .collect()
}

/// Returns the changes of each variable and of each fixed setting, in the order of the file.
fn of_variables(
    experiment: &Experiment,
    left_out: &mut Vec<String>,
) -> Vec<(String, Vec<Perturbation>)> {
    let definition = &experiment.definition;
    let conditions = used_by_conditions(experiment);
    let mut found: Vec<(String, Vec<Perturbation>)> = Vec::new();
    let variables = definition.variables.iter();
    let loops = definition
        .loops
        .iter()
        .chain(definition.zip.iter().flatten());
    for (name, value) in variables {
        let values = plain(value.get_ref()).into_iter().collect();
        found.push((
            name.clone(),
            changes_of(experiment, name, values, &conditions),
        ));
    }
    for (name, value) in loops {
        let values = values_of_loop(experiment, value);
        found.push((
            name.clone(),
            changes_of(experiment, name, values, &conditions),
        ));
    }
    for name in options_of(definition, &experiment.tasks) {
        let value = name.split_once(' ').map(|(_, value)| Value::from(value));
        let values = value.into_iter().collect();
        let changes = changes_of(experiment, &name, values, &conditions);
        found.push((name, changes));
    }
    found.extend(of_awake(definition, left_out));
    found.retain(|(_, changes)| !changes.is_empty());
    found
}

/// Returns the change of `awake`, if the file sets it to a constant and this machine can keep its cores awake.
fn of_awake(
    definition: &Definition,
    left_out: &mut Vec<String>,
) -> Option<(String, Vec<Perturbation>)> {
    let awake = literal_awake(definition)?;
    let name = AWAKE_SETTING.to_owned();
    let own = definition.robust.get(&name);
    if own.is_some_and(|own| own.get_ref().as_array().is_some_and(Vec::is_empty)) {
        return None;
    }
    if let Some(why) = Awake::why_not() {
        left_out.push(format!("{name}: {why}"));
        return None;
    }
    let change = Perturbation::Value {
        variable: name.clone(),
        value: Scalar::Bool(!awake),
    };
    Some((name, vec![change]))
}

fn values_of_loop(experiment: &Experiment, value: &Spanned<toml::Value>) -> Vec<Value> {
    match value.get_ref() {
        toml::Value::Array(list) => list.iter().filter_map(plain).collect(),
        _ => loop_values(&experiment.source, value).unwrap_or_default(),
    }
}

/// Returns the variables in the conditions that select combinations; a changed value of such a variable would select
/// other combinations.
fn used_by_conditions(experiment: &Experiment) -> BTreeSet<String> {
    let conditions = experiment.definition.plan.only.iter();
    conditions
        .filter_map(|only| {
            experiment
                .templates
                .used_in_expression(&experiment.source, only)
                .ok()
        })
        .flatten()
        .collect()
}

/// Returns the changes of a variable with the given values in the file; a loop variable has several values.
fn changes_of(
    experiment: &Experiment,
    name: &str,
    values: Vec<Value>,
    conditions: &BTreeSet<String>,
) -> Vec<Perturbation> {
    if let Some(own) = experiment.definition.robust.get(name) {
        return of_file(experiment, name, own);
    }
    let lower = name.to_ascii_lowercase();
    if NO_QUANTITIES.iter().any(|part| lower.contains(part)) {
        return Vec::new();
    }
    if let [Value::Bool(switch)] = values[..] {
        let change = Perturbation::Value {
            variable: name.to_owned(),
            value: Scalar::Bool(!switch),
        };
        return if conditions.contains(name) {
            Vec::new()
        } else {
            vec![change]
        };
    }
    let is_number = |value: &Value| match value {
        Value::Number(_) => true,
        Value::String(text) => number_and_unit(text).is_some(),
        _ => false,
    };
    if values.is_empty() || !values.iter().all(is_number) {
        return Vec::new();
    }
    let changes = |times: &f64| {
        values
            .iter()
            .any(|value| scaled(name, value, *times).is_some())
    };
    let factors = FACTORS.into_iter().filter(|times| changes(times));
    factors
        .map(|times| Perturbation::Scale {
            variable: name.to_owned(),
            times,
        })
        .collect()
}

/// Returns the changes of the variable `name` that the table `[robust]` of the experiment file defines.
fn of_file(experiment: &Experiment, name: &str, own: &Spanned<toml::Value>) -> Vec<Perturbation> {
    let variable = name.to_owned();
    if let Some(times) = factors_of(own.get_ref()) {
        let scale = |times| Perturbation::Scale {
            variable: variable.clone(),
            times,
        };
        return times.into_iter().map(scale).collect();
    }
    let values = values_of_loop(experiment, own);
    let scalars = values
        .into_iter()
        .filter_map(|value| serde_json::from_value(value).ok());
    scalars
        .map(|value| Perturbation::Value {
            variable: variable.clone(),
            value,
        })
        .collect()
}

/// Returns the pairs of single perturbations of different variables, in an order drawn from the seed.
fn pairs(singles: &[Point], seed: u64) -> Vec<Point> {
    let is_of_variable = |change: &&Perturbation| {
        matches!(
            change,
            Perturbation::Scale { .. } | Perturbation::Value { .. }
        )
    };
    let changes: Vec<&Perturbation> = singles
        .iter()
        .flat_map(|point| &point.changes)
        .filter(is_of_variable)
        .collect();
    let mut pairs = Vec::new();
    for (index, first) in changes.iter().enumerate() {
        for second in &changes[index + 1..] {
            if first.variable() != second.variable() {
                pairs.push(Point::of(vec![(*first).clone(), (*second).clone()]));
            }
        }
    }
    fastrand::Rng::with_seed(seed).shuffle(&mut pairs);
    pairs
}

impl Experiment {
    /// Returns the total expected duration of the runs under a perturbation, one run per combination, s.
    fn seconds_of(&self, point: &str) -> f64 {
        let variants = self.variants.iter();
        let of_point = variants.filter(|variant| name_in(&variant.loops) == point);
        of_point.map(|variant| self.run_seconds(variant)).sum()
    }

    /// Returns the expected duration of a run, s: the traffic times in its commands, and a constant overhead.
    fn run_seconds(&self, variant: &Variant) -> f64 {
        let mut seconds = OVERHEAD_S;
        for task in self.tasks.iter().filter(|task| !task.background) {
            let role = self.role_of(task.node.as_ref()).ok();
            let values = self.context(variant, role, "v1-r1", 1);
            let filled = self.templates.fill(task.run.get_ref(), &values);
            seconds += filled.map_or(0.0, |script| seconds_in(&script));
        }
        seconds.min(self.limit.as_secs_f64())
    }
}

/// Returns the duration in seconds that the options of a script request.
fn seconds_in(script: &str) -> f64 {
    let mut words = script
        .split(|c: char| c.is_whitespace() || c == '=' || c == '"')
        .peekable();
    let mut seconds = 0.0;
    while let Some(word) = words.next() {
        if matches!(word, "--seconds" | "--warm-up" | "--trial")
            && let Some(number) = words
                .peek()
                .and_then(|text| text.trim_end_matches('s').parse::<f64>().ok())
            && (0.0..1e6).contains(&number)
        {
            seconds += number;
        }
    }
    if seconds == 0.0 && script.contains("taut generate ") {
        return DEFAULT_TRAFFIC_S;
    }
    seconds
}
