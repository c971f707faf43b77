//! What the service of a laboratory receives and sends: plain data in JSON. Times are RFC 3339, UTC.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Nobody uses the node.
    Free,
    /// Somebody has reserved the node.
    Reserved,
    /// An experiment runs on the node.
    Running,
    /// Slurm's state of the node is none of these, such as `down`.
    Other,
}

/// A node of the laboratory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Location of the node, as in experiment files.
    pub at: String,
    /// Number of its processor cores; `null` if the file does not say.
    pub cores: Option<u32>,
    /// Further properties.
    pub properties: BTreeMap<String, serde_json::Value>,
    /// Current state.
    pub state: NodeState,
    /// Name of the user who has the node now.
    pub user: Option<String>,
    /// Time until which the user has it at the latest.
    pub until: Option<String>,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// Number of the reservation; a name where Slurm has the calendar.
    pub id: String,
    /// Name of the user.
    pub user: String,
    /// Names of the nodes.
    pub nodes: BTreeSet<String>,
    /// Begin.
    pub from: String,
    /// End.
    pub until: String,
}

/// A wish to reserve nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// Names of the nodes.
    pub nodes: BTreeSet<String>,
    /// Begin; now if it is missing.
    #[serde(default)]
    pub from: Option<String>,
    /// End; an alternative to `seconds`.
    #[serde(default)]
    pub until: Option<String>,
    /// Duration, s.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// A wish for another end of a reservation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// New end; an alternative to `seconds`.
    #[serde(default)]
    pub until: Option<String>,
    /// Time to add to the current end, s.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// An experiment to run.
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
    /// Variables with other values, as with `taut experiment run --set`.
    #[serde(default)]
    pub set: Vec<(String, String)>,
    /// Number of runs of each combination; as in the file if it is missing.
    #[serde(default)]
    pub repetitions: Option<u32>,
    /// Nodes of the laboratory for roles of the experiment, by role. A role that is not listed gets the node at the
    /// location in the file.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    /// Number of the user's own reservation in which the experiment is to run. If it is missing, this is the current
    /// reservation of all its nodes, or none.
    #[serde(default)]
    pub reservation: Option<u64>,
}

/// State of an experiment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The experiment waits for its nodes.
    Waiting,
    /// The experiment runs.
    Running,
    /// All runs are complete.
    Finished,
    /// Runs are missing; `reason` says why.
    Failed,
    /// A user has cancelled the experiment; its complete runs are kept.
    Cancelled,
}

impl State {
    /// All states.
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

    /// Returns true if nothing more happens to the experiment by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Progress of an experiment.
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

/// An experiment of the laboratory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Experiment {
    /// Number of the experiment.
    pub id: u64,
    /// Name of the user who submitted it.
    pub user: String,
    /// Name of the experiment.
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Names of its nodes.
    pub nodes: BTreeSet<String>,
    /// Number of the reservation in which it runs; `null` if it waits for free nodes.
    pub reservation: Option<u64>,
    /// State.
    pub state: State,
    /// Reason for the state; `null` if there is nothing to say.
    pub reason: Option<String>,
    /// Time of submission.
    pub submitted: String,
    /// Time of the latest start; `null` if it has not started.
    pub started: Option<String>,
    /// Time of the end; `null` if it has not ended.
    pub ended: Option<String>,
    /// Time at which it starts at the latest, if there are no further reservations; `null` if it does not wait.
    pub expected: Option<String>,
    /// Maximum duration, s.
    pub longest_s: u64,
    /// Progress; `null` before the first start.
    pub progress: Option<Progress>,
}

/// A job of Slurm, where it has the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmJob {
    /// Number of the job.
    pub id: String,
    /// Name of the user.
    pub user: String,
    /// Name of the job.
    pub name: String,
    /// Slurm's state of the job, such as `pending`.
    pub state: String,
    /// Slurm's list of its nodes; empty while it waits.
    pub nodes: String,
    /// Slurm's reason for the state; `null` if there is none.
    pub reason: Option<String>,
}

/// The body of a reply with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Reason in one line.
    pub error: String,
}
