//! Tasks: threads of a script, each with its return values.

use crate::lock::lock;
use crate::value::Plain;
use std::sync::Mutex;
use std::thread::JoinHandle;

/// Limit on the tasks that were not joined: each task is a thread with its own Lua state.
const MOST: usize = 256;

/// Result of a task: its return values, or the reason of its failure.
pub type Outcome = Result<Vec<Plain>, String>;

/// The tasks of a script; a task's number is its index in this list.
#[derive(Default)]
pub struct Tasks(Mutex<Vec<Option<JoinHandle<Outcome>>>>);

impl Tasks {
    /// Starts a task, which runs `work`. Returns its number.
    ///
    /// # Errors
    /// There are too many tasks, or the system cannot start a thread.
    pub fn start(
        &self,
        name: &str,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<usize, String> {
        let mut tasks = lock(&self.0);
        if tasks.iter().flatten().count() >= MOST {
            return Err(format!(
                "taut.task: {MOST} tasks have not been waited for; wait for some first"
            ));
        }
        let handle = std::thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(work)
            .map_err(|e| e.to_string())?;
        tasks.push(Some(handle));
        Ok(tasks.len() - 1)
    }

    /// Waits for a task and returns its values.
    ///
    /// # Errors
    /// The task failed, or was joined before.
    pub fn join(&self, number: usize) -> Outcome {
        let handle = lock(&self.0).get_mut(number).and_then(Option::take);
        let handle = handle.ok_or_else(|| "this task was waited for before".to_string())?;
        handle
            .join()
            .unwrap_or_else(|_| Err("a task's thread died".to_string()))
    }

    /// Waits for all tasks that were not joined, and returns the first failure.
    ///
    /// # Errors
    /// A task failed.
    pub fn join_all(&self) -> Result<(), String> {
        let mut outcome = Ok(());
        let mut number = 0;
        // The list may grow during the loop, because tasks may start tasks.
        while number < lock(&self.0).len() {
            if lock(&self.0)[number].is_some() {
                outcome = outcome.and(self.join(number).map(|_| ()));
            }
            number += 1;
        }
        outcome
    }
}
