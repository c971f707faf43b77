//! The requests and replies of a laboratory's service: plain data in JSON. Times are RFC 3339, UTC.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// State of a node in the laboratory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// No user has reserved the node, and no experiment uses it.
    Free,
    /// A user has reserved the node.
    Reserved,
    /// An experiment runs on the node.
    Running,
    /// Any other state that Slurm reports for the node, such as `down`.
    Other,
}

/// A node of the laboratory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Location of the node, as in experiment files.
    pub at: String,
    /// Number of processor cores of the node; `null` if the laboratory's file does not state it.
    pub cores: Option<u32>,
    /// Further properties of the node from the laboratory's file, for people who choose a node.
    pub properties: BTreeMap<String, serde_json::Value>,
    /// Current state of the node.
    pub state: NodeState,
    /// Name of the user who has reserved the node or runs an experiment on it; `null` if unknown or none.
    pub user: Option<String>,
    /// Latest time at which the user's reservation or experiment on the node ends; `null` if unknown or none.
    pub until: Option<String>,
}

/// A reservation of nodes for one user, from a begin to an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// Number of the reservation; its name if Slurm manages the reservations.
    pub id: String,
    /// Name of the user for whom the nodes are reserved.
    pub user: String,
    /// Names of the reserved nodes.
    pub nodes: BTreeSet<String>,
    /// Begin of the reservation, RFC 3339.
    pub from: String,
    /// End of the reservation, RFC 3339.
    pub until: String,
}

/// A request to reserve nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// Names of the nodes to reserve.
    pub nodes: BTreeSet<String>,
    /// Begin of the reservation, RFC 3339; the time of the request if it is missing.
    #[serde(default)]
    pub from: Option<String>,
    /// End of the reservation, RFC 3339; an alternative to `seconds`.
    #[serde(default)]
    pub until: Option<String>,
    /// Duration of the reservation, s; an alternative to `until`.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// A request to change the end of a reservation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// New end of the reservation, RFC 3339; an alternative to `seconds`.
    #[serde(default)]
    pub until: Option<String>,
    /// Time to add to the current end of the reservation, s; an alternative to `until`.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// A request to run an experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// Name of the experiment: letters, digits, `-` and `_`.
    pub name: String,
    /// Text of the experiment file.
    pub text: String,
    /// Contents of the files that the experiment file names.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Names of variables of the experiment file and their new values, as with `taut experiment run --set`.
    #[serde(default)]
    pub set: Vec<(String, String)>,
    /// Number of runs of each combination of the loop variables; the number in the experiment file if it is missing.
    #[serde(default)]
    pub repetitions: Option<u32>,
    /// Names of the laboratory's nodes by role of the experiment. A role that is not listed gets the node at the
    /// location in the experiment file.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Number of the user's own reservation in which the experiment is to run. By default it is a current reservation
    /// that has all nodes of the experiment, if there is one.
    #[serde(default)]
    pub reservation: Option<u64>,
}

/// State of a submitted experiment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The experiment waits until its nodes are free.
    Waiting,
    /// The experiment runs.
    Running,
    /// All runs of the experiment are complete.
    Finished,
    /// Some runs of the experiment are missing; the field `reason` of the experiment gives the cause.
    Failed,
    /// A user has cancelled the experiment; its complete runs remain.
    Cancelled,
}

impl State {
    /// All states of an experiment.
    pub(crate) const ALL: [Self; 5] = [
        Self::Waiting,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns the state as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if the service does not change the state by itself: finished, failed or cancelled.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Progress of an experiment: numbers of its runs by state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Number of complete runs.
    pub done: u64,
    /// Number of planned runs.
    pub planned: u64,
    /// Number of runs whose last attempt failed.
    pub failed: u64,
    /// Names of the runs in progress.
    pub making: Vec<String>,
}

/// An experiment that was submitted to the laboratory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Experiment {
    /// Number of the experiment.
    pub id: u64,
    /// Name of the user who submitted the experiment.
    pub user: String,
    /// Name of the experiment.
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Names of the nodes that the experiment uses.
    pub nodes: BTreeSet<String>,
    /// Number of the reservation in which the experiment runs; `null` if it uses nodes that are not reserved.
    pub reservation: Option<u64>,
    /// State of the experiment.
    pub state: State,
    /// Reason for the state of the experiment; `null` if the state has no special reason.
    pub reason: Option<String>,
    /// Time at which the experiment was submitted, RFC 3339.
    pub submitted: String,
    /// Time at which the experiment last started, RFC 3339; `null` if it has not started.
    pub started: Option<String>,
    /// Time at which the experiment ended, RFC 3339; `null` if it has not ended.
    pub ended: Option<String>,
    /// Latest time at which the experiment starts if no reservations are added, RFC 3339; `null` if it does not wait.
    pub expected: Option<String>,
    /// Maximum duration of the experiment, s.
    pub longest_s: u64,
    /// Progress of the experiment's runs; `null` before its first start.
    pub progress: Option<Progress>,
}

/// A job in Slurm's queue, if Slurm manages the laboratory's nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmJob {
    /// Number of the job in Slurm.
    pub id: String,
    /// Name of the user who submitted the job.
    pub user: String,
    /// Name of the job in Slurm.
    pub name: String,
    /// Slurm's state of the job, such as `pending`.
    pub state: String,
    /// Slurm's list of the job's nodes; empty while the job waits.
    pub nodes: String,
    /// Slurm's reason for the state of the job; `null` if Slurm reports none.
    pub reason: Option<String>,
}

/// The body of a reply with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Reason for the error, in one line.
    pub error: String,
}
