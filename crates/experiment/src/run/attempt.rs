//! An attempt at a run: its folder, its record, and its running commands.

use super::END_PATIENCE;
use super::time::Time;
use crate::agent::STOPPED;
use crate::folder::RunRecord;
use crate::measurement::Task;
use crate::node::StepUnderWay;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use taut_host::Wiring;

/// A run that is being made.
pub(super) struct Making {
    pub(super) folder: PathBuf,
    pub(super) began: Instant,
    /// Time at which `plan.limit` expires. The limit starts when all nodes are in their known state.
    pub(super) deadline: Instant,
    pub(super) wiring: Option<Wiring>,
    pub(super) background: Vec<Running>,
    /// Tasks whose output contains metrics, each with the names of metrics and the patterns that extract them.
    pub(super) outputs: Vec<(Task, Vec<(String, String)>)>,
    /// True if no core may enter an idle state during the run.
    pub(super) awake: bool,
    pub(super) record: RunRecord,
}

/// A running command on a node.
pub(super) struct Running {
    pub(super) name: String,
    pub(super) step: Box<dyn StepUnderWay>,
    pub(super) time: Time,
    pub(super) began: Instant,
    /// Index of the command in the run's record.
    pub(super) command: usize,
}

impl Running {
    /// Returns the exit code of the command, if it has exited.
    pub(super) fn ended(&mut self) -> Option<i32> {
        self.step.wait(Duration::ZERO)
    }

    /// Ends the command: closes its input, and kills it if it does not exit.
    pub(super) fn stop(mut self, making: &mut Making) {
        self.step.close();
        let code = self.step.wait(END_PATIENCE).unwrap_or_else(|| {
            self.step.kill();
            STOPPED
        });
        self.note_end(making, code);
    }

    pub(super) fn note_end(&self, making: &mut Making, code: i32) {
        if let Some(record) = making.record.commands.get_mut(self.command) {
            record.exit_code = Some(code);
            record.seconds = self.time.since(self.began).as_secs_f64();
        }
    }
}
