//! The experiment file: what a person writes, as plain data. (The pos workflow: Gallenmüller, dissertation,
//! TU München 2021, chapter 2.)

use crate::claim::Claim;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// One experiment: nodes, variables, what is done in each run, and what is made of the results.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// One line that names the experiment.
    pub title: String,
    /// What it is for, what it is held against.
    #[serde(default)]
    pub about: String,
    /// Idle cores of all nodes look out for work instead of halting, while commands of a run are there: true, false, or a
    /// variable that is either.
    #[schemars(with = "Option<Scalar>")]
    pub awake: Option<Spanned<toml::Value>>,
    /// Variables of all nodes and runs: `{{ name }}` in any text below.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, Scalar>")]
    pub variables: IndexMap<String, Spanned<toml::Value>>,
    /// Variables that take every value in turn; several make every combination.
    #[serde(default, rename = "loop")]
    #[schemars(with = "IndexMap<String, LoopValues>")]
    pub loops: IndexMap<String, Spanned<toml::Value>>,
    /// Variables that change together: the first values, then the second ones, and so on. Each block is
    /// combined with the loops and the other blocks.
    #[serde(default)]
    #[schemars(with = "Vec<IndexMap<String, LoopValues>>")]
    pub zip: Vec<IndexMap<String, Spanned<toml::Value>>>,
    /// Names of environment variables whose values the commands get but the results never show.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub secrets: Vec<Spanned<String>>,
    /// How often, in which order, for how long.
    #[serde(default)]
    pub plan: Schedule,
    /// The machines, by the names of their roles. Without any there is one, `local`.
    #[serde(default)]
    pub nodes: IndexMap<String, NodeDefinition>,
    /// Wires between local nodes, which then are network namespaces, made anew for each run.
    #[serde(default)]
    pub link: Vec<Link>,
    /// Files that every run finds in its folder, their `{{ variables }}` filled in.
    #[serde(default)]
    pub file: Vec<FileDefinition>,
    /// The device under test.
    pub device: Option<DeviceUnderTest>,
    /// What is sent through it.
    pub traffic: Option<TrafficDefinition>,
    /// What is measured of it.
    pub measure: Option<Measure>,
    /// Commands of each run, one after the other, after those that measure the device.
    #[serde(default)]
    pub step: Vec<Step>,
    /// Tables of the report.
    #[serde(default)]
    pub table: Vec<TableDefinition>,
    /// Figures of the report.
    #[serde(default)]
    pub figure: Vec<FigureDefinition>,
    /// What the results are held against.
    #[serde(default)]
    pub claim: Vec<Claim>,
}

/// A time as it is written: with its unit, and so a text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "want a time in quotes, such as \"60s\"")]
enum Time {
    Text(String),
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Time::deserialize(from).map(|Time::Text(text)| text)
}

/// The value of a variable.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any number.
    Float(f64),
    /// A text; it may use other variables.
    Text(String),
}

/// The values of a loop variable: a list, or a range.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LoopValues {
    /// These, in this order.
    List(Vec<Scalar>),
    /// From one number to another, both included.
    Range(Range),
}

/// Numbers from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first.
    pub from: f64,
    /// The last, unless the steps miss it.
    pub to: f64,
    /// The distance of two; or say how many `steps`.
    pub by: Option<f64>,
    /// How many numbers there are.
    pub steps: Option<u32>,
    /// How they are spaced.
    #[serde(default)]
    pub scale: RangeScale,
}

/// How the numbers of a range are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeScale {
    /// Evenly.
    #[default]
    Linear,
    /// By equal factors.
    Log,
}

/// How often, in which order, for how long.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Runs of each combination of the loop variables.
    pub repetitions: u32,
    /// The order of the runs.
    pub order: Order,
    /// Seed of the order, and of the variable `seed` of each run.
    pub seed: u64,
    /// Repetitions made first and not counted, so that caches and governors are as they will stay.
    pub warm_up: u32,
    /// Longest time that a run may take, such as `60s`; it is ended then and counts as failed.
    #[serde(deserialize_with = "time")]
    pub limit: String,
    /// How often a run that failed is tried in all.
    pub attempts: u32,
    /// Conditions that a combination must meet to be run, such as `size * rate < 1e9`.
    #[schemars(with = "Vec<String>")]
    pub only: Vec<Spanned<String>>,
    /// More repetitions until a metric is known well enough.
    pub until: Option<Until>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            repetitions: 3,
            order: Order::Interleaved,
            seed: 1,
            warm_up: 0,
            limit: "60s".to_owned(),
            attempts: 1,
            only: Vec::new(),
            until: None,
        }
    }
}

/// The order of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Every combination once, in an order drawn by the seed, then every one again: what drifts hits all of
    /// them alike.
    #[default]
    Interleaved,
    /// All runs in one order drawn by the seed.
    Random,
    /// All repetitions of the first combination, then those of the second.
    Sequential,
}

/// When a combination has been repeated often enough: the 95 % interval of the metric's median is narrow.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// The metric, such as `latency_ns.p99_ns`.
    pub metric: String,
    /// Half the interval's width as a share of its middle: 0.05 for 5 %.
    pub within: f64,
    /// No more runs of a combination than this.
    pub at_most: u32,
}

/// A machine that takes part.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeDefinition {
    /// Where it is: `local`, `ssh://user@host:port`, or `slurm` for one that the cluster allocates.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub at: Option<Spanned<String>>,
    /// Features that an allocated machine must have, as Slurm's `--constraint` takes them.
    pub features: Option<String>,
    /// Variables of this node: `{{ name }}` in its own commands, `{{ nodes.role.name }}` in all.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, Scalar>")]
    pub variables: IndexMap<String, Spanned<toml::Value>>,
    /// Command of this machine that brings the node to a known state before each run, such as a reboot into an
    /// image; the node may be away for `boot_limit` then.
    pub reset: Option<String>,
    /// How long a node may take to answer again after its reset, such as `300s`.
    pub boot_limit: Option<String>,
    /// Commands on the node at the beginning of each run.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub setup: Vec<Spanned<String>>,
}

/// A wire between two local nodes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its ends as `node:interface`.
    #[schemars(with = "[String; 2]")]
    pub between: [Spanned<String>; 2],
}

/// A file in the folder of each run, on every node.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDefinition {
    /// Its name there.
    pub name: String,
    /// Its contents.
    #[schemars(with = "Option<String>")]
    pub text: Option<Spanned<String>>,
    /// Or the file that holds them, beside the experiment file.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
}

/// The device under test: one that taut sets up on one machine, or a data plane on a node.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceUnderTest {
    /// One of `taut demo --list-devices`, set up and taken down by the measurement.
    #[schemars(with = "Option<String>")]
    pub id: Option<Spanned<String>>,
    /// Or a chain file that `taut forward` runs on `node`.
    #[schemars(with = "Option<String>")]
    pub chain: Option<Spanned<String>>,
    /// The role of its node.
    pub node: Option<String>,
    /// Watch its wires too: latency of the device only, in `metrics `inside.*` and samples `latency/inside`.
    #[serde(default)]
    pub tap: bool,
}

/// The traffic, as options of `taut generate`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrafficDefinition {
    /// The role of the node that sends and receives.
    pub node: Option<String>,
    /// Its ports, where the device is on another node: the first sends, the last receives.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub ports: Vec<Spanned<String>>,
    /// A traffic file; the rest then is in there.
    #[schemars(with = "Option<String>")]
    pub file: Option<Spanned<String>>,
    /// Rate, such as `100k` or `1Gbit/s`.
    #[schemars(with = "Option<Scalar>")]
    pub rate: Option<Spanned<toml::Value>>,
    /// Frame size in bytes, or a mix.
    #[schemars(with = "Option<Scalar>")]
    pub size: Option<Spanned<toml::Value>>,
    /// Spacing, such as `poisson`.
    #[schemars(with = "Option<String>")]
    pub pattern: Option<Spanned<String>>,
    /// Fields and their values, such as `dst_port=1024-2048`.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub set: Vec<Spanned<String>>,
    /// How many seconds.
    #[schemars(with = "Option<Scalar>")]
    pub seconds: Option<Spanned<toml::Value>>,
}

/// What is measured.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// In this order.
    pub what: Vec<Quantity>,
    /// Further options of the commands, such as `throughput = "--quick"`.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, String>")]
    pub options: IndexMap<String, Spanned<String>>,
}

/// Something that is measured of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Latency of every packet of the traffic, loss, jitter: `taut generate`.
    Latency,
    /// The highest loss-free rate: `taut bench throughput`.
    Throughput,
    /// Loss over the offered rate: `taut bench loss`.
    Loss,
    /// The longest loss-free burst: `taut bench back-to-back`.
    BackToBack,
    /// Latency at the rate, then the highest loss-free rate, `taut bench comparison`.
    Comparison,
}

impl Quantity {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Loss => "loss",
            Self::BackToBack => "back-to-back",
            Self::Comparison => "comparison",
        }
    }
}

/// A command of each run.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in logs and, with `json`, in front of its metrics.
    pub name: Option<String>,
    /// The role of its node; not needed where there is one node only.
    #[schemars(with = "Option<String>")]
    pub node: Option<Spanned<String>>,
    /// For the shell, in the run's folder on that node. Files left there are collected.
    #[schemars(with = "String")]
    pub run: Spanned<String>,
    /// It stays while the steps after it run, and is ended with the run.
    #[serde(default)]
    pub background: bool,
    /// In the background: text in a line of its output that says that it is ready.
    #[schemars(with = "Option<String>")]
    pub ready: Option<Spanned<String>>,
    /// The numbers in the last JSON object that it prints become metrics.
    #[serde(default)]
    pub json: bool,
    /// Metrics found in its output: names and patterns whose first group is the number.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, String>")]
    pub extract: IndexMap<String, Spanned<String>>,
}

/// A table of the report: a row per combination of variables, a column per metric.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableDefinition {
    /// Name of its file.
    pub name: String,
    /// Its heading.
    #[serde(default)]
    pub title: String,
    /// Variables that make the rows; all loop variables unless told.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub rows: Vec<Spanned<String>>,
    /// Metrics: median of the runs with its interval: 95 % or more from six runs on.
    #[schemars(with = "Vec<String>")]
    pub metrics: Vec<Spanned<String>>,
}

/// A figure of the report.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureDefinition {
    /// Name of its file.
    pub name: String,
    /// Its heading.
    #[serde(default)]
    pub title: String,
    /// What it looks like.
    pub kind: FigureKind,
    /// Variables whose combinations make the curves, boxes or bars.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub by: Vec<Spanned<String>>,
    /// Line, scatter, heat map: the variable or metric along the horizontal axis.
    #[schemars(with = "Option<String>")]
    pub x: Option<Spanned<String>>,
    /// Line, scatter, box: the metric. Heat map: the variable along the vertical axis.
    #[schemars(with = "Option<String>")]
    pub y: Option<Spanned<String>>,
    /// Heat map: the metric that gives the colour.
    #[schemars(with = "Option<String>")]
    pub value: Option<Spanned<String>>,
    /// Histogram, CDF, percentiles: the folder of the samples in each run; `latency` unless told.
    #[schemars(with = "Option<String>")]
    pub samples: Option<Spanned<String>>,
    /// Axes with equal factors instead of equal steps: `x`, `y` or `xy`.
    #[serde(default)]
    pub log: LogAxes,
    /// Only runs that meet this condition.
    #[schemars(with = "Option<String>")]
    pub only: Option<Spanned<String>>,
    /// Stack: the metrics that add up, from left to right.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub parts: Vec<Spanned<String>>,
    /// Line, CDF, stack: what was published, shown beside the runs.
    #[serde(default)]
    pub published: Vec<Published>,
}

/// Published values beside those of the runs.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What it is called in the figure.
    pub name: String,
    /// Document, and section, figure or table.
    #[serde(default)]
    pub source: String,
    /// Line, CDF: pairs of values along both axes; of a CDF the latency in ns, and the share of packets up to it.
    #[serde(default)]
    pub points: Vec<(f64, f64)>,
    /// Stack: a value for each part; `nan` where none is known.
    #[serde(default)]
    pub values: Vec<f64>,
}

/// What a figure looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// How often each latency came.
    Histogram,
    /// The share of packets up to each latency.
    Cdf,
    /// Quartiles and whiskers of the runs' metric.
    Box,
    /// Median of the runs over a variable, with its interval: 95 % or more from six runs on.
    Line,
    /// One point per run.
    Scatter,
    /// A colour per pair of variables.
    HeatMap,
    /// Latency over the percentile, nines evenly spaced.
    Percentiles,
    /// Metrics that add up, side by side: where time goes. Medians of the runs.
    Stack,
}

/// Axes with equal factors instead of equal steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogAxes {
    /// None.
    #[default]
    None,
    /// The horizontal one.
    X,
    /// The vertical one.
    Y,
    /// Both.
    Xy,
}
