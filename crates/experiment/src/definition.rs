//! The experiment file as plain data. (The pos workflow: Gallenmüller, dissertation, TU München 2021, chapter 2.)

use crate::claim::Claim;
use crate::clock::ClockMethod;
use crate::counters::Counter;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// One experiment: nodes, variables, the commands of each run, and the evaluation of the results.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// One line that names the experiment.
    pub title: String,
    /// Purpose of the experiment, and what its results are compared with.
    #[serde(default)]
    pub about: String,
    /// True if idle cores of all nodes poll for work instead of halting while commands of a run are running: true,
    /// false, or a variable with such a value.
    #[schemars(with = "Option<Scalar>")]
    pub awake: Option<Spanned<toml::Value>>,
    /// Quantities that are counted while each command of a run runs, such as `cycles`.
    #[serde(default)]
    pub counters: Vec<Counter>,
    /// Variables of all nodes and runs: `{{ name }}` in any text of the file.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, Scalar>")]
    pub variables: IndexMap<String, Spanned<toml::Value>>,
    /// Variables that iterate over their values; several of them form every combination.
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
    /// Repetitions, order and duration of the runs.
    #[serde(default)]
    pub plan: Schedule,
    /// The machines by role. Without any there is one node, `local`.
    #[serde(default)]
    pub nodes: IndexMap<String, NodeDefinition>,
    /// Links between nodes. Local nodes with links that are no cables are network namespaces that are created for each
    /// run.
    #[serde(default)]
    pub link: Vec<Link>,
    /// Files in the folder of every run, with their `{{ variables }}` filled in.
    #[serde(default)]
    pub file: Vec<FileDefinition>,
    /// The device under test.
    pub device: Option<DeviceUnderTest>,
    /// The traffic that is sent through the device.
    pub traffic: Option<TrafficDefinition>,
    /// The quantities that are measured.
    pub measure: Option<Measure>,
    /// Commands of each run, in order; they run after the commands that measure the device.
    #[serde(default)]
    pub step: Vec<Step>,
    /// Tables of the report.
    #[serde(default)]
    pub table: Vec<TableDefinition>,
    /// Figures of the report.
    #[serde(default)]
    pub figure: Vec<FigureDefinition>,
    /// The claims that the results are compared with.
    #[serde(default)]
    pub claim: Vec<Claim>,
    /// Programs that evaluate all runs, in order, after the last run.
    #[serde(default)]
    pub evaluate: Vec<EvaluationStep>,
    /// Values that `taut experiment robust` tries, by variable, or by option of a command such as `--size 64`.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, RobustValues>")]
    pub robust: IndexMap<String, Spanned<toml::Value>>,
}

impl Definition {
    /// Returns the names of the metrics in tables and figures, in the order of the file.
    pub(crate) fn shown_metrics(&self) -> impl Iterator<Item = &str> {
        let tables = self.table.iter().flat_map(|table| &table.metrics);
        let figures = self.figure.iter().flat_map(|figure| {
            let axes = [&figure.x, &figure.y, &figure.value].into_iter().flatten();
            axes.chain(&figure.parts)
        });
        tables.chain(figures).map(|name| name.get_ref().as_str())
    }
}

/// A time as written in the file: a text with a number and a unit, such as `60s`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a time in quotes, such as \"60s\"")]
enum Time {
    Text(String),
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Time::deserialize(from).map(|Time::Text(text)| text)
}

/// The value of a variable in an experiment file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// True or false.
    Bool(bool),
    /// A value that is a whole number.
    Integer(i64),
    /// A value that may have a fractional part.
    Float(f64),
    /// A text, in which other variables may occur.
    Text(String),
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(truth) => truth.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The values of a loop variable: a list, or a range.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LoopValues {
    /// The listed values, in their order.
    List(Vec<Scalar>),
    /// A range of numbers, both ends included.
    Range(Range),
}

/// A range of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first number of the range.
    pub from: f64,
    /// The last number. If no step reaches it exactly, the range ends below it.
    pub to: f64,
    /// Difference between two successive numbers of the range; an alternative to `steps`.
    pub by: Option<f64>,
    /// Number of values in the range.
    pub steps: Option<u32>,
    /// Spacing of the numbers.
    #[serde(default)]
    pub scale: RangeScale,
}

/// Spacing of the numbers of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeScale {
    /// Successive numbers have equal differences.
    #[default]
    Linear,
    /// Successive numbers have equal ratios.
    Log,
}

/// Repetitions, order and duration of the runs.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Number of runs of each combination of the loop variables.
    pub repetitions: u32,
    /// The order of the runs.
    pub order: Order,
    /// Seed of the order, and of the variable `seed` of each run.
    pub seed: u64,
    /// Repetitions that run first and are not counted, so that caches and governors reach their steady state.
    pub warm_up: u32,
    /// Maximum duration of a run, such as `60s`. A longer run is ended and counts as failed.
    #[serde(deserialize_with = "time")]
    pub limit: String,
    /// Maximum number of attempts at a run.
    pub attempts: u32,
    /// Conditions that a combination must meet to be run, such as `size * rate < 1e9`.
    #[schemars(with = "Vec<String>")]
    pub only: Vec<Spanned<String>>,
    /// For each variable, the values whose combinations run all repetitions before all other combinations.
    #[schemars(with = "IndexMap<String, Vec<Scalar>>")]
    pub first: IndexMap<String, Spanned<Vec<toml::Value>>>,
    /// Condition that adds repetitions until the interval of a metric's median is narrow.
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
            first: IndexMap::new(),
            until: None,
        }
    }
}

/// The order of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each repetition runs every combination once, in an order drawn from the seed. Drift thus affects all
    /// combinations alike.
    #[default]
    Interleaved,
    /// All runs are in one order drawn from the seed.
    Random,
    /// All repetitions of the first combination come first, then those of the second, and so on.
    Sequential,
}

impl Order {
    /// Returns the name of the order in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// Condition that ends the repetitions of a combination: the 95 % interval of the metric's median is narrow.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// The metric, such as `latency_ns.p99_ns`.
    pub metric: String,
    /// Maximum ratio of half the interval's width to the interval's middle: 0.05 for 5 %.
    pub within: f64,
    /// Maximum number of runs of a combination.
    pub at_most: u32,
}

/// A machine that takes part in the experiment.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeDefinition {
    /// Location of the node: `local`, `ssh://user@host:port`, `vm` for a virtual machine that the experiment makes, or
    /// `slurm` for a node that the cluster allocates.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub at: Option<Spanned<String>>,
    /// Features that an allocated machine must have, in the notation of Slurm's `--constraint`.
    pub features: Option<String>,
    /// Variables of this node: `{{ name }}` in its own commands, `{{ nodes.role.name }}` in all commands.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, Scalar>")]
    pub variables: IndexMap<String, Spanned<toml::Value>>,
    /// Properties of the virtual machine, for a node with `at = "vm"`.
    pub vm: Option<VmDefinition>,
    /// How the node is booted into a known state: by a command of this machine, or by the address of its power
    /// interface (`ipmi://`, `redfish://` or `snmp://`). For a node at `vm` it is `boot`. A run fails if its node at
    /// `ssh://` has not booted.
    pub reset: Option<String>,
    /// The runs before which the node is reset.
    #[serde(default)]
    pub reset_before: ResetBefore,
    /// The image that the node boots over the network. A run fails if the node has booted another image.
    pub boot: Option<BootDefinition>,
    /// Maximum time from a reset until the node replies again, such as `300s`.
    pub boot_limit: Option<String>,
    /// Synchronisation of the node's clock during each run.
    pub clock: Option<ClockDefinition>,
    /// Facts that the node must have, by their names in the record of a run, such as `bios_version = "2.1"`. A run
    /// fails on a node with other facts.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, String>")]
    pub wants: IndexMap<String, Spanned<String>>,
    /// Commands on the node before its first run, and again after each boot.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub setup_once: Vec<Spanned<String>>,
    /// Commands on the node at the beginning of each run.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub setup: Vec<Spanned<String>>,
}

/// Synchronisation of a node's clock.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockDefinition {
    /// Method of synchronisation: `chrony` (NTP) or `ptp` (linuxptp).
    pub by: ClockMethod,
    /// The role of the reference node, whose clock this node follows; none for the reference node itself.
    #[schemars(with = "Option<String>")]
    pub reference: Option<Spanned<String>>,
    /// Address of the reference node for `chrony`; by default the address in its `at`.
    #[schemars(with = "Option<String>")]
    pub address: Option<Spanned<String>>,
    /// Interface of this node on the link to the other nodes, for `ptp`.
    #[schemars(with = "Option<String>")]
    pub interface: Option<Spanned<String>>,
    /// True if the network card takes the timestamps (hardware timestamps), for `ptp`.
    #[serde(default)]
    pub hardware: bool,
    /// False to measure the error of the clock without setting the clock.
    #[serde(default = "yes")]
    pub adjust: bool,
    /// Maximum error of the clock when the run begins.
    #[serde(default = "clock_bound", deserialize_with = "time")]
    pub bound: String,
    /// Time within which the bound must be met; the run fails otherwise.
    #[serde(default = "clock_within", deserialize_with = "time")]
    pub within: String,
}

fn yes() -> bool {
    true
}

fn clock_bound() -> String {
    "100us".to_owned()
}

fn clock_within() -> String {
    "60s".to_owned()
}

/// The runs before which a node is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResetBefore {
    /// The node is reset before every run.
    #[default]
    EachRun,
    /// The node is reset once, before the first run that this call makes.
    FirstRun,
}

/// An image that a node boots over the network, from the user's boot server.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootDefinition {
    /// MAC address of the network card that the node boots from.
    pub mac: String,
    /// The kernel of the image.
    pub kernel: BootFile,
    /// Initial file systems of the image, in the order in which they are loaded.
    #[serde(default)]
    pub initrd: Vec<BootFile>,
    /// Command line of the kernel.
    #[serde(default)]
    pub arguments: String,
}

/// A file of an image that a node boots.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootFile {
    /// Path of the file on this machine.
    pub file: String,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
}

/// Properties of a virtual machine.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VmDefinition {
    /// Disk image with the root file system, raw or `.qcow2`, which is not changed. Without it, the machine has a shell
    /// and a few programs of this machine.
    pub image: Option<String>,
    /// SHA-256 of the image, in hexadecimal digits.
    pub sha256: Option<String>,
    /// Model of the virtual machine's network cards, one for each link.
    #[schemars(with = "Option<VmCard>")]
    pub card: taut_deploy::vm::Card,
    /// Number of cores of the virtual machine.
    #[schemars(with = "Option<u32>")]
    pub cores: Option<std::num::NonZeroU32>,
    /// Memory of the virtual machine, MB.
    pub memory_mb: Option<u32>,
}

/// Model of the network cards of a virtual machine.
#[derive(JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(dead_code, reason = "only the schema of another crate's type")]
enum VmCard {
    /// The paravirtual network card virtio-net.
    Virtio,
    /// Intel 82574L, 1 Gbit/s.
    E1000e,
    /// Intel 82576, 1 Gbit/s; needs QEMU 8.
    Igb,
}

/// A link between two nodes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two ends of the link, each as `node:interface`.
    #[schemars(with = "[String; 2]")]
    pub between: [Spanned<String>; 2],
    /// True for a real cable, which is not made but tested before each run. It is always true if a node is on another
    /// machine. Links between virtual machines are made once, and tested too.
    #[serde(default)]
    pub cable: bool,
}

/// A file in the folder of each run, on every node.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDefinition {
    /// The name of the file in the run's folder.
    pub name: String,
    /// The contents of the file.
    #[schemars(with = "Option<String>")]
    pub text: Option<Spanned<String>>,
    /// Alternative to `text`: the name of a file next to the experiment file that has the contents.
    #[schemars(with = "Option<String>")]
    pub from: Option<Spanned<String>>,
}

/// The device under test: a device that taut sets up on one machine, or a chain on a node.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceUnderTest {
    /// Id of a device from `taut demo --list-devices`; the measurement sets up the device and removes it.
    #[schemars(with = "Option<String>")]
    pub id: Option<Spanned<String>>,
    /// Alternative to `id`: a chain file that `taut forward` runs on `node`.
    #[schemars(with = "Option<String>")]
    pub chain: Option<Spanned<String>>,
    /// The role of the node that runs the chain of `chain`.
    pub node: Option<String>,
    /// True to observe the links of the device with a wiretap too. This gives the latency of the device alone, in the
    /// metrics `inside.*` and the samples `latency/inside`.
    #[serde(default)]
    pub tap: bool,
}

/// The traffic of a measurement, as options of `taut generate`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrafficDefinition {
    /// The role of the node that sends and receives the traffic.
    pub node: Option<String>,
    /// The ports of that node, if the device is on another node: the first port sends, the last port receives.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub ports: Vec<Spanned<String>>,
    /// Name of a traffic file; it replaces all other settings of the traffic.
    #[schemars(with = "Option<String>")]
    pub file: Option<Spanned<String>>,
    /// Offered rate, such as `100k` or `1Gbit/s`.
    #[schemars(with = "Option<Scalar>")]
    pub rate: Option<Spanned<toml::Value>>,
    /// Frame size in bytes, or a mix of sizes such as `imix`.
    #[schemars(with = "Option<Scalar>")]
    pub size: Option<Spanned<toml::Value>>,
    /// Pattern of the intended send times, such as `poisson`.
    #[schemars(with = "Option<String>")]
    pub pattern: Option<Spanned<String>>,
    /// Header fields and their values, such as `dst_port=1024-2048`.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub set: Vec<Spanned<String>>,
    /// Duration of the traffic, s.
    #[schemars(with = "Option<Scalar>")]
    pub seconds: Option<Spanned<toml::Value>>,
}

/// The measured quantities.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Measured quantities, in the order of measurement.
    pub what: Vec<Quantity>,
    /// Further options of the commands, such as `throughput = "--quick"`.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, String>")]
    pub options: IndexMap<String, Spanned<String>>,
}

/// A quantity of a device that an experiment can measure.
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
    /// Latency at the offered rate, then the highest loss-free rate: `taut bench comparison`.
    Comparison,
}

impl Quantity {
    /// Returns the name of the quantity in files.
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
    /// The name of the command in logs and, with `json`, the prefix of its metrics.
    pub name: Option<String>,
    /// The role of the node that runs the command; optional if there is only one node.
    #[schemars(with = "Option<String>")]
    pub node: Option<Spanned<String>>,
    /// Shell command in the run's folder on that node. Files left in the folder are collected.
    #[schemars(with = "String")]
    pub run: Spanned<String>,
    /// True if the command keeps running during the following steps, and ends with the run.
    #[serde(default)]
    pub background: bool,
    /// For a background step: a text in the line that the command prints when it is ready.
    #[schemars(with = "Option<String>")]
    pub ready: Option<Spanned<String>>,
    /// Quantities that are counted while the command runs, in addition to those of all commands.
    #[serde(default)]
    pub counters: Vec<Counter>,
    /// True if the numbers in the last JSON object that the command prints become metrics.
    #[serde(default)]
    pub json: bool,
    /// Metrics in the output of the command: their names, and patterns whose first group is the number.
    #[serde(default)]
    #[schemars(with = "IndexMap<String, String>")]
    pub extract: IndexMap<String, Spanned<String>>,
}

/// A program that evaluates the results of all runs after the last run.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvaluationStep {
    /// The name of the step, of its logs, and of the folder of its outputs.
    pub name: String,
    /// Shell command in the results folder; its outputs belong into the folder `$TAUT_OUT`.
    #[schemars(with = "String")]
    pub run: Spanned<String>,
    /// Names of files next to the experiment file that the command needs, such as scripts.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub files: Vec<Spanned<String>>,
    /// Maximum duration of the step, such as `60s`.
    #[serde(default = "evaluation_limit", deserialize_with = "time")]
    pub limit: String,
}

fn evaluation_limit() -> String {
    "300s".to_owned()
}

/// A table of the report: a row per combination of variables, a column per metric.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableDefinition {
    /// The name of the table's file.
    pub name: String,
    /// The heading of the table.
    #[serde(default)]
    pub title: String,
    /// Variables that form the rows; by default all loop variables.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub rows: Vec<Spanned<String>>,
    /// Metrics of the columns. A cell is the median over the runs with its confidence interval, of 95 % or more from
    /// six runs on.
    #[schemars(with = "Vec<String>")]
    pub metrics: Vec<Spanned<String>>,
}

/// A figure of the report.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureDefinition {
    /// The name of the figure's file.
    pub name: String,
    /// The heading of the figure.
    #[serde(default)]
    pub title: String,
    /// The kind of the figure.
    pub kind: FigureKind,
    /// Variables whose combinations form the curves, boxes or bars.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub by: Vec<Spanned<String>>,
    /// The variable or metric on the horizontal axis, in kinds `line`, `scatter` and `heat-map`.
    #[schemars(with = "Option<String>")]
    pub x: Option<Spanned<String>>,
    /// Metric on the vertical axis, in kinds `line`, `scatter` and `box`; in a heat map, the variable on the vertical
    /// axis.
    #[schemars(with = "Option<String>")]
    pub y: Option<Spanned<String>>,
    /// Heat map: the metric that determines the colour.
    #[schemars(with = "Option<String>")]
    pub value: Option<Spanned<String>>,
    /// Histogram, CDF, percentiles: the folder of the samples in each run; `latency` by default. Scatter: a CSV file in
    /// each run, with a point in each row; `x` and `y` are names of its columns.
    #[schemars(with = "Option<String>")]
    pub samples: Option<Spanned<String>>,
    /// Logarithmic axes: `x`, `y` or `xy`.
    #[serde(default)]
    pub log: LogAxes,
    /// Condition on the runs that the figure shows.
    #[schemars(with = "Option<String>")]
    pub only: Option<Spanned<String>>,
    /// Metrics of a figure of kind `stack` that add up, from left to right.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub parts: Vec<Spanned<String>>,
    /// Line, CDF, stack: published values that are drawn next to the runs.
    #[serde(default)]
    pub published: Vec<Published>,
}

/// Published values that the figure shows next to the measured ones.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The name of the published values in the figure.
    pub name: String,
    /// The document from which the values are, with section, figure or table.
    #[serde(default)]
    pub source: String,
    /// Line, CDF: pairs of values along both axes; for a CDF the latency in ns, and the fraction of packets up to it.
    #[serde(default)]
    pub points: Vec<(f64, f64)>,
    /// Stack: a value for each part; `nan` for an unknown value.
    #[serde(default)]
    pub values: Vec<f64>,
}

/// The kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// The frequency of each latency.
    Histogram,
    /// The cumulative fraction of packets with at most each latency.
    Cdf,
    /// Quartiles and whiskers of a metric over the runs, as a box plot.
    Box,
    /// Median of a metric over the runs, plotted over a variable, with its confidence interval, of 95 % or more from
    /// six runs on.
    Line,
    /// One point per run, at the values of two metrics or variables.
    Scatter,
    /// A metric as a colour, for each pair of values of two variables.
    HeatMap,
    /// Latency over the percentile; 90, 99, 99.9 and so on are evenly spaced.
    Percentiles,
    /// Metrics that add up, such as parts of a latency, side by side in one bar; each is the median over the runs.
    Stack,
}

/// Logarithmic axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogAxes {
    /// No axis is logarithmic.
    #[default]
    None,
    /// The horizontal axis is logarithmic.
    X,
    /// The vertical axis is logarithmic.
    Y,
    /// Both axes are logarithmic.
    Xy,
}

/// Values that `taut experiment robust` gives a variable, in place of its default perturbations.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum RobustValues {
    /// A list of values for the variable; an empty list keeps the variable as it is.
    List(Vec<Scalar>),
    /// A range of numbers as values for the variable.
    Range(Range),
    /// Factors by which the variable's value is multiplied; for a loop variable, all its values.
    Times {
        /// The factors by which the value is multiplied.
        times: Vec<f64>,
    },
}
