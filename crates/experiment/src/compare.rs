//! Comparison of two experiments: the differences between their environments, the differences between their metrics
//! with size and uncertainty, and overlaid figures.

use crate::build::{BASE, BUILD, HEAD};
use crate::definition::{FigureDefinition, FigureKind};
use crate::error::ExperimentError;
use crate::evaluate::draw::{Figure, draw};
use crate::evaluate::selection::{Runs, key_of, number};
use crate::evaluate::table::quantity_of;
use crate::experiment::Experiment;
use crate::folder::{Folder, State, nodes_of};
use crate::limit::Limit;
use crate::metrics::known_name;
use crate::variables::Values;
use crate::variables::text_of;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_bench::report::flatten;
use taut_figure::table;
use taut_measure::quantity::{Quantity, counted, plain};
use taut_measure::{Comparison, Finding, judge};
use taut_settings::suggestion;

/// Coverage of the confidence intervals, which is reached with six runs or more. With fewer runs the actual coverage is
/// printed.
const CONFIDENCE: f64 = 0.95;
/// Maximum probability that at least one of the comparisons is falsely reported as "differs".
pub(crate) const LEVEL: f64 = 0.05;

/// Options of a comparison: which metrics are compared, and which limits are checked.
#[derive(Debug, Default)]
pub struct Wanted {
    /// True to compare all metrics, not only those that the experiment file names.
    pub all: bool,
    /// Limits on the deterioration of metrics.
    pub limits: Vec<MetricLimit>,
}

/// Limit on the deterioration of a metric from A to B.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct MetricLimit {
    /// Name of the metric.
    pub metric: String,
    /// Change by which the metric may be worse in B, relative to A.
    #[serde(flatten)]
    pub limit: Limit,
}

impl std::str::FromStr for MetricLimit {
    type Err = String;

    /// Parses a limit such as `latency.p99_ns 10%`. A sign states which direction is worse, as in `score -5%`. Without
    /// a sign, lower is worse for packet rates, and higher for all other metrics.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.trim().rsplit_once(' ');
        let parsed = parts.and_then(|(metric, change)| {
            let metric = metric.trim();
            let less_is_worse = quantity_of(metric) == Quantity::RatePps;
            let limit = Limit::parse(change, less_is_worse).ok()?;
            (!metric.is_empty()).then(|| Self {
                metric: metric.to_owned(),
                limit,
            })
        });
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is not a limit: give a metric and a share, such as 'latency_ns.p99_ns 10%'; 'score -5%' \
                where lower is worse"
            )
        })
    }
}

/// One of the two experiments in a comparison.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Side {
    /// Folder of the results.
    pub folder: PathBuf,
    /// State of the experiment: its progress, version of taut, and plan.
    pub state: State,
    /// Number of the experiment's runs that were compared.
    pub runs: usize,
    #[serde(skip)]
    facts: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(skip)]
    variables: BTreeMap<String, String>,
    #[serde(skip)]
    tasks: Vec<String>,
}

/// A difference between the environments of two experiments.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Difference {
    /// Name of the fact that differs.
    pub what: String,
    /// Value of the fact in A.
    pub a: String,
    /// Value of the fact in B.
    pub b: String,
}

/// Comparison of a metric in one combination of the loop variables.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Compared {
    /// Combination of the loop variables.
    pub variables: Values,
    /// Name of the metric.
    pub metric: String,
    /// Medians of A and B, their difference, and the effect size.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// p-value after correction for the number of comparisons (Holm); `None` if there is no p-value.
    pub corrected_p_value: Option<f64>,
    /// Conclusion: whether the metric differs.
    pub finding: Finding,
}

/// Result of checking a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// Yes: at least a part of the confidence interval of the change is within the limit.
    Yes,
    /// No: the whole confidence interval of the change is beyond the limit.
    No,
    /// Unknown: there is no confidence interval, because there are too few runs.
    Unknown,
}

/// A limit on the deterioration of a metric, and the result of checking it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Judgement {
    /// The limit that was checked.
    #[serde(flatten)]
    pub limit: MetricLimit,
    /// Combination of the loop variables in which the limit was checked.
    pub variables: Values,
    /// Result of the check.
    pub kept: Kept,
    /// Result of the check as a sentence.
    pub text: String,
}

/// Comparison of two experiments.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Comparisons {
    /// The experiment A, with which B is compared.
    pub a: Side,
    /// The experiment B, which is compared with A.
    pub b: Side,
    /// Differences between the environments.
    pub environment: Vec<Difference>,
    /// Warning that the two experiments began more than an hour apart; none if they did not.
    pub apart: Option<String>,
    /// Combinations of the loop variables that only experiment A has, then those that only B has.
    pub only_in: [Vec<Values>; 2],
    /// The compared metrics in each combination of the loop variables that both experiments have.
    pub metrics: Vec<Compared>,
    /// Limits on the deterioration of metrics, and the results of checking them.
    pub limits: Vec<Judgement>,
    /// Problems to report: damaged files, metrics without values.
    pub problems: Vec<String>,
    /// Overlaid figures of both experiments.
    #[serde(skip)]
    pub figures: Vec<Figure>,
}

/// A results folder that was read with the data that a comparison needs.
pub(crate) struct Loaded {
    pub(crate) experiment: Experiment,
    pub(crate) runs: Runs,
    side: Side,
    problems: Vec<String>,
}

impl Loaded {
    /// Reads a results folder. With `verify`, runs whose files have changed are skipped, and reported as problems.
    pub(crate) fn read(dir: &Path, verify: bool) -> Result<Self, ExperimentError> {
        let folder = Folder::open(dir)?;
        let experiment = folder.experiment()?;
        let mut runs = Runs::load(&folder)?;
        let mut problems = Vec::new();
        if verify {
            let mut damaged = BTreeSet::new();
            for run in &runs.runs {
                let found = match folder.damaged(run) {
                    Ok(found) => found,
                    Err(e) => vec![e.to_string()],
                };
                if !found.is_empty() {
                    damaged.insert(run.id.clone());
                    problems.extend(
                        found
                            .into_iter()
                            .map(|what| format!("run {} is left out: {what}", run.id)),
                    );
                }
            }
            runs.without(&damaged);
        }
        let variant = &experiment.variants[0];
        let side = Side {
            folder: dir.to_owned(),
            state: folder.state()?,
            runs: runs.runs.len(),
            facts: nodes_of(&folder)
                .into_iter()
                .map(|(role, facts)| (role, facts_of(&facts)))
                .collect(),
            variables: variant
                .variables
                .iter()
                .filter(|(name, _)| !variant.loops.contains_key(*name))
                .map(|(name, value)| (name.clone(), text_of(value)))
                .chain(experiment.nodes.iter().flat_map(|(role, node)| {
                    node.variables
                        .iter()
                        .map(move |(name, value)| (format!("{role}.{name}"), text_of(value)))
                }))
                .collect(),
            tasks: experiment
                .tasks
                .iter()
                .map(|task| format!("{}: {}", task.name, task.run.get_ref().trim()))
                .collect(),
        };
        Ok(Self {
            experiment,
            runs,
            side,
            problems,
        })
    }
}

/// Returns those known metrics that the experiment file names.
fn named(experiment: &Experiment, known: &BTreeSet<&str>) -> Vec<String> {
    let definition = &experiment.definition;
    let plain = definition.shown_metrics();
    let claims = definition
        .claim
        .iter()
        .flat_map(|claim| claim.value.get_ref().split(['\'', '"']));
    let until = definition
        .plan
        .until
        .iter()
        .map(|until| until.metric.as_str());
    let mut names: Vec<String> = Vec::new();
    for name in plain.chain(claims).chain(until) {
        if let Some(name) = known_name(name, |name| known.contains(name))
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Returns all metrics of the runs.
fn metrics_of(runs: &Runs) -> BTreeSet<&str> {
    let names = runs.runs.iter().flat_map(|run| run.metrics.keys());
    names.map(String::as_str).collect()
}

/// The combinations of loop variables that have runs: key, values of the variables, and indices of the runs.
type Combinations = Vec<(String, Values, Vec<usize>)>;

fn combinations_of(runs: &Runs) -> Combinations {
    let mut places = std::collections::HashMap::new();
    let mut combinations = Combinations::new();
    for (index, run) in runs.runs.iter().enumerate() {
        let place = *places
            .entry(key_of(&run.variables))
            .or_insert_with_key(|key| {
                combinations.push((key.clone(), run.variables.clone(), Vec::new()));
                combinations.len() - 1
            });
        combinations[place].2.push(index);
    }
    combinations
}

/// Returns the values of a metric in the runs with the indices `members`.
fn values_of(runs: &Runs, members: &[usize], metric: &str) -> Vec<f64> {
    let members = members.iter();
    members
        .filter_map(|index| number(&runs.runs[*index], metric))
        .collect()
}

/// Compares the metrics in each combination that both groups of runs have. A metric that only one group has is added to
/// `problems`, with the group's name from `names`.
fn compare_runs(
    [(a, of_a), (b, of_b)]: [(&Runs, &Combinations); 2],
    names: [&str; 2],
    metrics: &[String],
    problems: &mut Vec<String>,
) -> Vec<Compared> {
    let in_b: BTreeMap<&str, &Vec<usize>> = of_b
        .iter()
        .map(|(key, _, members)| (key.as_str(), members))
        .collect();
    let mut found = Vec::new();
    for (key, variables, members) in of_a {
        let Some(twins) = in_b.get(key.as_str()) else {
            continue;
        };
        for metric in metrics {
            let (in_a, in_b) = (values_of(a, members, metric), values_of(b, twins, metric));
            match taut_measure::compare(&in_a, &in_b, CONFIDENCE) {
                Some(comparison) => found.push((variables.clone(), metric.clone(), comparison)),
                None if in_a.is_empty() != in_b.is_empty() => problems.push(format!(
                    "{metric}: only {} has it{}",
                    names[usize::from(in_a.is_empty())],
                    of(variables)
                )),
                None => {}
            }
        }
    }
    if found.is_empty() {
        problems.push(
            "nothing to compare: no combination of the loop variables with metrics is in both"
                .to_owned(),
        );
    }
    with_findings(found)
}

/// Returns those facts about a node that do not change between runs, by name.
fn facts_of(facts: &crate::agent::Facts) -> BTreeMap<String, String> {
    let mut value = serde_json::to_value(facts).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        // The kernel moves interrupts by itself, so a single row states that their affinity differs, instead of a row
        // per interrupt.
        fields.remove("interrupt_affinity");
    }
    flatten(&value)
        .into_iter()
        .filter(|(name, _)| !name.ends_with(": source") && !name.ends_with(": free"))
        .map(|(name, value)| {
            let name = name.strip_prefix("machine: ").unwrap_or(&name);
            (
                name.strip_suffix(": value").unwrap_or(name).to_owned(),
                value,
            )
        })
        .collect()
}

/// Compares the results in two folders.
///
/// # Errors
/// One of the folders cannot be read, or a limit names a metric that neither experiment has.
pub fn compare(a: &Path, b: &Path, wanted: &Wanted) -> Result<Comparisons, ExperimentError> {
    compare_loaded(
        &Loaded::read(a, true)?,
        &Loaded::read(b, true)?,
        wanted,
        true,
    )
}

/// Compares two loaded results; figures are made from the files of the runs.
pub(crate) fn compare_loaded(
    a: &Loaded,
    b: &Loaded,
    wanted: &Wanted,
    figures: bool,
) -> Result<Comparisons, ExperimentError> {
    let mut problems: Vec<String> = [("A", a), ("B", b)]
        .into_iter()
        .flat_map(|(name, side)| {
            side.problems
                .iter()
                .map(move |problem| format!("{name}: {problem}"))
        })
        .collect();
    let metrics = metrics(a, b, wanted)?;
    let (of_a, of_b) = (combinations_of(&a.runs), combinations_of(&b.runs));
    let both = [(&a.runs, &of_a), (&b.runs, &of_b)];
    let metrics = compare_runs(both, ["A", "B"], &metrics, &mut problems);
    Ok(Comparisons {
        environment: environment(&a.side, &b.side),
        apart: apart(&a.side.state.started, &b.side.state.started),
        only_in: [lacking(&of_a, &of_b), lacking(&of_b, &of_a)],
        limits: judgements(&wanted.limits, &metrics),
        metrics,
        figures: if figures {
            overlaid(a, b, &mut problems)
        } else {
            Vec::new()
        },
        problems,
        a: a.side.clone(),
        b: b.side.clone(),
    })
}

/// Returns the values of the combinations that are in `these` and not in `others`.
fn lacking(these: &Combinations, others: &Combinations) -> Vec<Values> {
    let there: BTreeSet<&str> = others.iter().map(|(key, ..)| key.as_str()).collect();
    let lacking = these
        .iter()
        .filter(|(key, ..)| !there.contains(key.as_str()));
    lacking.map(|(_, values, _)| values.clone()).collect()
}

/// Adds the conclusion to each comparison of a metric. The p-values are corrected for the number of comparisons.
fn with_findings(found: Vec<(Values, String, Comparison)>) -> Vec<Compared> {
    let comparisons: Vec<Comparison> = found.iter().map(|(_, _, c)| c.clone()).collect();
    found
        .into_iter()
        .zip(judge(&comparisons, LEVEL))
        .map(|((variables, metric, comparison), judged)| Compared {
            variables,
            metric,
            comparison,
            corrected_p_value: judged.corrected_p_value,
            finding: judged.finding,
        })
        .collect()
}

/// Checks each limit in all combinations that have the limit's metric.
fn judgements(limits: &[MetricLimit], metrics: &[Compared]) -> Vec<Judgement> {
    limits
        .iter()
        .flat_map(|limit| {
            metrics
                .iter()
                .filter(|compared| compared.metric == limit.metric)
                .map(|compared| judgement(limit, compared))
        })
        .collect()
}

fn metrics(a: &Loaded, b: &Loaded, wanted: &Wanted) -> Result<Vec<String>, ExperimentError> {
    let (in_a, in_b) = (metrics_of(&a.runs), metrics_of(&b.runs));
    let known: BTreeSet<&str> = in_a.union(&in_b).copied().collect();
    let mut names = Vec::new();
    if !wanted.all {
        names = named(&a.experiment, &in_a);
        for name in named(&b.experiment, &in_b) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        names = known.iter().map(|name| (*name).to_owned()).collect();
    }
    for limit in &wanted.limits {
        if known_name(&limit.metric, |name| known.contains(name)).is_none() {
            return Err(ExperimentError::Unknown(format!(
                "no run has the metric `{}`{}",
                limit.metric,
                suggestion(&limit.metric, known.iter().copied())
            )));
        }
        if !names.contains(&limit.metric) {
            names.push(limit.metric.clone());
        }
    }
    Ok(names)
}

/// Formats values as ` (size 64, mode a)`, or as an empty text without values.
fn of(variables: &Values) -> String {
    if variables.is_empty() {
        return String::new();
    }
    format!(" ({})", words(variables))
}

/// Formats values as `size 64, mode a`.
pub(crate) fn words(variables: &Values) -> String {
    let words: Vec<String> = variables
        .iter()
        .map(|(name, value)| format!("{name} {}", text_of(value)))
        .collect();
    words.join(", ")
}

fn judgement(of_metric: &MetricLimit, compared: &Compared) -> Judgement {
    let comparison = &compared.comparison;
    let limit = of_metric.limit;
    let sign = if limit.less_is_worse { -1.0 } else { 1.0 };
    // The change at the better bound of the interval counts, relative to A's median: a limit is exceeded only if the
    // whole interval is beyond it.
    let change = match (&comparison.ratio, &comparison.difference) {
        (Some(ratio), _) => {
            let end = if limit.less_is_worse {
                ratio.high
            } else {
                ratio.low
            };
            Some(sign * (end - 1.0) > limit.share)
        }
        (None, Some(difference)) => {
            let end = if limit.less_is_worse {
                difference.high
            } else {
                difference.low
            };
            Some(sign * end > limit.share * comparison.medians[0].abs())
        }
        (None, None) => None,
    };
    let kept = match change {
        Some(true) => Kept::No,
        Some(false) => Kept::Yes,
        None => Kept::Unknown,
    };
    let quantity = quantity_of(&of_metric.metric);
    let [a, b] = comparison.medians.map(|value| quantity.text(value));
    let text = format!(
        "{}{}: {} by more than {} %: {a} in A, {b} in B{}",
        of_metric.metric,
        of(&compared.variables),
        match kept {
            Kept::No => "worse",
            Kept::Yes => "not shown to be worse",
            Kept::Unknown => "too few runs to tell whether it is worse",
        },
        plain(limit.share * 100.0),
        comparison
            .ratio
            .as_ref()
            .map_or_else(String::new, |ratio| format!(
                ", ratio {}",
                ratio.short(plain)
            )),
    );
    Judgement {
        limit: of_metric.clone(),
        variables: compared.variables.clone(),
        kept,
        text,
    }
}

/// Minimum time between the beginnings of two experiments with which a comparison warns of it.
const FAR_APART: Duration = Duration::from_secs(3_600);

/// Returns a warning if two experiments, given by their start times, are far apart in time.
fn apart(a: &str, b: &str) -> Option<String> {
    let (a, b) = (taut_results::moment(a)?, taut_results::moment(b)?);
    let distance = a.duration_since(b).or_else(|_| b.duration_since(a)).ok()?;
    (distance >= FAR_APART).then(|| {
        let hours = distance.as_secs_f64() / 3_600.0;
        let time = if hours < 48.0 {
            format!("{hours:.0} h")
        } else {
            format!("{:.0} days", hours / 24.0)
        };
        format!(
            "A and B began {time} apart: a change of the machine in between looks like a difference. To compare two builds, interleave \
             them: taut gate."
        )
    })
}

/// Returns the differences between the environments of two experiments.
fn environment(a: &Side, b: &Side) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut hold = |what: String, a: &str, b: &str| {
        if a != b {
            found.push(Difference {
                what,
                a: a.to_owned(),
                b: b.to_owned(),
            });
        }
    };
    hold("title".into(), &a.state.title, &b.state.title);
    hold("taut".into(), &a.state.taut_version, &b.state.taut_version);
    hold("plan".into(), &a.state.fingerprint, &b.state.fingerprint);
    hold("commands".into(), &a.tasks.join("\n"), &b.tasks.join("\n"));
    maps("variable ", &a.variables, &b.variables, &mut hold);
    let roles: BTreeSet<&String> = a.facts.keys().chain(b.facts.keys()).collect();
    let none = BTreeMap::new();
    for role in roles {
        let [of_a, of_b] = [a, b].map(|side| side.facts.get(role).unwrap_or(&none));
        facts_differ(&format!("node {role}: "), of_a, of_b, &mut hold);
    }
    found
}

/// Compares the facts about a node. Facts that only one of the two versions of taut records are skipped, because they
/// do not show a difference of the machines.
fn facts_differ(
    prefix: &str,
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
    hold: &mut impl FnMut(String, &str, &str),
) {
    let kind = |name: &str| name.split(": ").next().unwrap_or(name).to_owned();
    let [in_a, in_b] =
        [a, b].map(|side| side.keys().map(|name| kind(name)).collect::<BTreeSet<_>>());
    let alone = a.is_empty() || b.is_empty();
    let [a, b] = [(a, &in_b), (b, &in_a)].map(|(side, other)| {
        let both = side
            .iter()
            .filter(|(name, _)| alone || other.contains(&kind(name)));
        both.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    });
    maps(prefix, &a, &b, hold);
}

fn maps(
    prefix: &str,
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
    hold: &mut impl FnMut(String, &str, &str),
) {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        let text =
            |map: &BTreeMap<String, String>| map.get(name).map_or("–", String::as_str).to_owned();
        hold(format!("{prefix}{name}"), &text(a), &text(b));
    }
}

/// Returns the differences between the machines, without those of the version of taut. With `pseudonyms`, differences
/// of host names are also skipped.
pub(crate) fn machines_differ(differences: &[Difference], pseudonyms: bool) -> Vec<&Difference> {
    differences
        .iter()
        .filter(|difference| {
            difference.what.starts_with("node ")
                && !difference.what.ends_with(": taut version")
                && !(pseudonyms && difference.what.ends_with(": host name"))
        })
        .collect()
}

fn overlaid(a: &Loaded, b: &Loaded, problems: &mut Vec<String>) -> Vec<Figure> {
    let both = Runs::overlay(&a.runs, &b.runs);
    let mut figures = Vec::new();
    let mut add = |figure: &FigureDefinition, runs: &Runs| match draw(&a.experiment, figure, runs) {
        Ok(drawn) => figures.push(drawn),
        Err(reason) => problems.push(format!("figure {}: {reason}", figure.name)),
    };
    for figure in &a.experiment.definition.figure {
        if figure.kind == FigureKind::HeatMap {
            for (name, side) in [("A", a), ("B", b)] {
                let title = if figure.title.is_empty() {
                    &figure.name
                } else {
                    &figure.title
                };
                let of_side = FigureDefinition {
                    name: format!("{}-{name}", figure.name),
                    title: format!("{name}: {title}"),
                    ..figure.clone()
                };
                add(&of_side, &side.runs);
            }
        } else {
            add(figure, &both);
        }
    }
    figures
}

/// Returns the conclusion on a metric as text.
pub(crate) fn finding(finding: &Finding) -> String {
    match finding {
        Finding::Differs => "differs".to_owned(),
        Finding::NotShown => "not shown".to_owned(),
        Finding::TooFewRuns { needed } => format!("too few runs ({needed} needed)"),
    }
}

impl Compared {
    /// Returns the cells of a printed row: combination, metric, A, B, ratio or difference, effect, p, conclusion.
    pub(crate) fn cells(&self) -> [String; 8] {
        let quantity = quantity_of(&self.metric);
        let comparison = &self.comparison;
        let change = match (&comparison.ratio, &comparison.difference) {
            (Some(ratio), _) => format!("×{} ({})", plain(ratio.point), ratio.short(plain)),
            (None, Some(difference)) => {
                let signed = |value: f64| {
                    let text = quantity.text(value.abs());
                    if value < 0.0 {
                        format!("-{text}")
                    } else {
                        format!("+{text}")
                    }
                };
                format!(
                    "{} ({})",
                    signed(difference.point),
                    difference.short(signed)
                )
            }
            (None, None) => "–".to_owned(),
        };
        [
            words(&self.variables),
            self.metric.clone(),
            quantity.text(comparison.medians[0]),
            quantity.text(comparison.medians[1]),
            change,
            format!("{:+.2}", comparison.cliffs_delta),
            self.corrected_p_value.map_or_else(
                || "–".to_owned(),
                |p| {
                    if p < 0.001 {
                        "< 0.001".to_owned()
                    } else {
                        format!("{p:.3}")
                    }
                },
            ),
            finding(&self.finding),
        ]
    }
}

/// Headings of the columns of [`Compared::cells`].
pub(crate) const HEADINGS: [&str; 8] = [
    "of",
    "metric",
    "A",
    "B",
    "B/A",
    "Cliff's delta",
    "p",
    "finding",
];

/// Comparison of the two builds of an experiment with `--against`, in each combination of the other loop variables.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Builds {
    /// Version of the build `base`.
    pub base: String,
    /// The compared metrics; A is the build `base`, and B is the build `head`.
    pub metrics: Vec<Compared>,
    /// Problems to report, such as metrics that only one build has.
    pub problems: Vec<String>,
}

/// Headings of the columns of [`Compared::cells`] for two builds.
pub(crate) const BUILD_HEADINGS: [&str; 8] = [
    "of",
    "metric",
    "base",
    "head",
    "head/base",
    "Cliff's delta",
    "p",
    "finding",
];

impl Builds {
    /// Compares the two builds by the metrics that the experiment file names, or by all metrics if it names none.
    /// Returns `None` without another build, and without runs.
    pub(crate) fn of(experiment: &Experiment, runs: &Runs) -> Option<Self> {
        let base = experiment.against.as_ref().filter(|_| !runs.is_empty())?;
        let [a, b] = [BASE, HEAD].map(|build| {
            let mut runs = runs.of_build(build);
            // The combinations of both builds are the same apart from the build itself.
            for run in &mut runs.runs {
                run.variables.shift_remove(BUILD);
            }
            runs
        });
        let known = metrics_of(runs);
        let mut names = named(experiment, &known);
        if names.is_empty() {
            names = known.iter().map(|name| (*name).to_owned()).collect();
        }
        let mut problems = Vec::new();
        let (of_a, of_b) = (combinations_of(&a), combinations_of(&b));
        let both = [(&a, &of_a), (&b, &of_b)];
        let metrics = compare_runs(both, [BASE, HEAD], &names, &mut problems);
        Some(Self {
            base: base.version.clone(),
            metrics,
            problems,
        })
    }

    /// Returns the result of the comparison in a sentence.
    pub fn lead(&self) -> String {
        lead_of(&self.metrics)
    }
}

impl std::fmt::Display for Builds {
    /// Formats the comparison for a terminal.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "builds: head compared with base ({})", self.base)?;
        writeln!(f, "{}\n", self.lead())?;
        f.write_str(&rows(&self.metrics, BUILD_HEADINGS))?;
        for problem in &self.problems {
            writeln!(f, "note: {problem}")?;
        }
        Ok(())
    }
}

/// Returns compared metrics as a table for a terminal.
fn rows(metrics: &[Compared], headings: [&str; 8]) -> String {
    let mut table = table::plain();
    table.set_header(headings);
    for compared in metrics {
        table.add_row(compared.cells());
    }
    let least_important = [(5, "Cliff's delta"), (6, "p"), (0, "of")];
    table::text(table, &least_important, table::terminal_width())
}

/// Returns the result of a comparison in a sentence.
fn lead_of(metrics: &[Compared]) -> String {
    let found = |wanted: fn(&Finding) -> bool| {
        let metrics = metrics.iter();
        metrics.filter(|one| wanted(&one.finding)).count()
    };
    let all = metrics.len();
    let too_few = found(|finding| matches!(finding, Finding::TooFewRuns { .. }));
    let differ = found(|finding| *finding == Finding::Differs);
    let needed = metrics.iter().filter_map(|one| match one.finding {
        Finding::TooFewRuns { needed } => Some(needed),
        _ => None,
    });
    match needed.max() {
        Some(needed) if too_few == all => {
            let runs = metrics.iter().flat_map(|one| one.comparison.runs);
            format!(
                "Too few runs to test {}: {needed} per combination are needed on each side, the fewest are {}.",
                counted(all, "metric"),
                runs.min().unwrap_or(0)
            )
        }
        _ => format!(
            "{differ} of {all} compared metrics {}.",
            if differ == 1 { "differs" } else { "differ" }
        ),
    }
}

impl Comparisons {
    /// Returns the result of the comparison in a sentence.
    pub fn lead(&self) -> String {
        lead_of(&self.metrics)
    }
}

impl std::fmt::Display for Comparisons {
    /// Formats the comparison for a terminal.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, side) in [("A", &self.a), ("B", &self.b)] {
            writeln!(
                f,
                "{name}: {} ({}, {}): {}",
                side.folder.display(),
                counted(side.runs, "run"),
                side.state.started,
                side.state.title
            )?;
        }
        writeln!(f, "\n{}\n", self.lead())?;
        if self.environment.is_empty() {
            writeln!(f, "Same plan, commands, versions and machines.")?;
        } else {
            writeln!(f, "Differences in setup:")?;
            for difference in &self.environment {
                let flat = |text: &str| text.replace('\n', " | ");
                writeln!(
                    f,
                    "  {}: {} -> {}",
                    difference.what,
                    flat(&difference.a),
                    flat(&difference.b)
                )?;
            }
        }
        if let Some(apart) = &self.apart {
            writeln!(f, "{apart}")?;
        }
        for (name, variants) in ["A", "B"].into_iter().zip(&self.only_in) {
            for values in variants {
                writeln!(f, "only in {name}: {}", words(values))?;
            }
        }
        writeln!(f)?;
        f.write_str(&rows(&self.metrics, HEADINGS))?;
        for judgement in &self.limits {
            writeln!(f, "limit: {}", judgement.text)?;
        }
        for problem in &self.problems {
            writeln!(f, "note: {problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn experiments_that_began_hours_apart_are_reported() {
        let at = |time: &str| format!("2026-11-30T{time}:00Z");
        assert_eq!(apart(&at("10:00"), &at("10:59")), None);
        let text = apart(&at("13:00"), &at("10:00")).unwrap();
        assert!(text.starts_with("A and B began 3 h apart"), "{text}");
        let days = apart("2026-11-01T00:00:00Z", &at("00:00")).unwrap();
        assert!(days.contains("29 days apart"), "{days}");
        assert_eq!(apart("", &at("10:00")), None);
    }

    fn differing(a: serde_json::Value, b: serde_json::Value) -> Vec<String> {
        let [a, b] = [a, b].map(|machine| {
            facts_of(&crate::agent::Facts {
                taut_version: "0.1.0".into(),
                architecture: "x86_64".into(),
                system: String::new(),
                host_name: "lab".into(),
                machine,
                firmware: BTreeMap::new(),
                interrupt_affinity: BTreeMap::new(),
            })
        });
        let mut found = Vec::new();
        facts_differ("node n: ", &a, &b, &mut |what, a, b| {
            if a != b {
                found.push(format!("{what}: {a} -> {b}"));
            }
        });
        found
    }

    #[test]
    fn firmware_changes_are_reported_and_unrecorded_facts_are_not() {
        let machine = |bios: &str, microcode: &str, card: &str| {
            let fact = |value: &str| serde_json::json!({ "value": value, "source": "/sys/x" });
            serde_json::json!({
                "kernel_release": fact("6.1.0"),
                "bios_version": fact(bios),
                "board_version": null,
                "microcode": fact(microcode),
                "network_cards": { "ens1": { "driver": "ice", "firmware_version": card, "source": "/sys/y" } },
            })
        };
        let now = machine("1.9.2", "0xd0003f5", "4.20");
        assert!(differing(now.clone(), now.clone()).is_empty());
        assert_eq!(
            differing(now.clone(), machine("1.10.2", "0xd000404", "4.40")),
            [
                "node n: bios version: 1.9.2 -> 1.10.2",
                "node n: microcode: 0xd0003f5 -> 0xd000404",
                "node n: network cards: ens1: firmware version: 4.20 -> 4.40",
            ]
        );
        // These results are from a version of taut that did not record facts about firmware and network cards.
        let before =
            serde_json::json!({ "kernel_release": { "value": "6.1.0", "source": "/proc" } });
        assert!(differing(before, now.clone()).is_empty());
        // In these results, the network card is missing because it was removed.
        let mut without = now.clone();
        without["network_cards"] = serde_json::json!({});
        let found = differing(now, without);
        assert!(
            found
                .iter()
                .any(|one| one.contains("ens1: driver: ice -> \u{2013}")),
            "{found:?}"
        );
    }

    fn limit(text: &str) -> Result<MetricLimit, String> {
        text.parse()
    }

    #[test]
    fn metric_name_or_sign_determines_the_direction_of_a_limit() {
        let less_is_worse = |text: &str| limit(text).unwrap().limit.less_is_worse;
        let found = limit("latency.p99_ns 10%").unwrap();
        assert_eq!((found.limit.less_is_worse, found.limit.share), (false, 0.1));
        assert!(less_is_worse("throughput.rate_pps 5%"));
        assert!(less_is_worse("score -5%"));
        assert!(!less_is_worse("rate_pps +0.05"));
        for wrong in ["", "p99", "p99 x", "p99 10%%", " 10%", "p99 nan", "p99 10"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn too_few_runs_are_reported_with_the_number_needed() {
        let values = [1.0, 2.0];
        let compared = |finding| Compared {
            variables: Values::new(),
            metric: "x_ns".to_owned(),
            comparison: taut_measure::compare(&values, &values, CONFIDENCE).unwrap(),
            corrected_p_value: None,
            finding,
        };
        let few = [compared(Finding::TooFewRuns { needed: 6 })];
        assert_eq!(
            lead_of(&few),
            "Too few runs to test 1 metric: 6 per combination are needed on each side, the fewest are 2."
        );
        let one = [compared(Finding::Differs), compared(Finding::NotShown)];
        assert_eq!(lead_of(&one), "1 of 2 compared metrics differs.");
    }

    fn judged(limit_text: &str, a: &[f64], b: &[f64]) -> Kept {
        let limit = limit(limit_text).unwrap();
        let compared = Compared {
            variables: Values::new(),
            metric: limit.metric.clone(),
            comparison: taut_measure::compare(a, b, CONFIDENCE).unwrap(),
            corrected_p_value: None,
            finding: Finding::NotShown,
        };
        judgement(&limit, &compared).kept
    }

    #[test]
    fn limits_are_compared_with_the_better_end_of_the_interval() {
        let a = [100.0, 101.0, 99.0, 102.0, 98.0];
        let twice = a.map(|value| value * 2.0);
        assert_eq!(judged("x_ns 10%", &a, &twice), Kept::No);
        assert_eq!(judged("x_ns 150%", &a, &twice), Kept::Yes);
        assert_eq!(judged("x_ns 10%", &twice, &a), Kept::Yes);
        assert_eq!(judged("x_pps 10%", &twice, &a), Kept::No);
        assert_eq!(judged("x_ns 10%", &a[..2], &twice), Kept::Unknown);
        assert_eq!(
            judged("lost 10%", &[0.0; 5], &[3.0, 4.0, 5.0, 3.0, 4.0]),
            Kept::No
        );
        assert_eq!(judged("lost 10%", &[0.0; 5], &[0.0; 5]), Kept::Yes);
    }
}
