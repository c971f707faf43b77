//! Tasks: threads with Lua states of their own.

use crate::api::State;
use crate::run::{Shared, lock};
use crate::value::Plain;
use mlua::MultiValue;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Tasks at most that nobody has waited for: each is a thread with a state of its own.
const MOST: usize = 256;

/// Result of a task: what it returned, or why it failed.
type Outcome = Result<Vec<Plain>, String>;

/// The tasks of a script, by number.
#[derive(Default)]
pub struct Tasks(Mutex<Vec<Option<JoinHandle<Outcome>>>>);

impl Tasks {
    /// Starts a task: the script's top level, then its function `name`. Returns its number.
    ///
    /// # Errors
    /// When there are too many, or the system gives no thread.
    pub fn start(
        &self,
        shared: &Arc<Shared>,
        core: Option<usize>,
        name: String,
        arguments: Vec<Plain>,
    ) -> Result<usize, String> {
        let mut tasks = lock(&self.0);
        if tasks.iter().flatten().count() >= MOST {
            return Err(format!(
                "taut.task: {MOST} tasks that nobody waited for; wait for some first"
            ));
        }
        let shared = Arc::clone(shared);
        let handle = std::thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(move || {
                work(&shared, core, &name, &arguments).map_err(|text| {
                    let text = format!("{text} (in task {name})");
                    shared.fail(&text);
                    text
                })
            })
            .map_err(|e| e.to_string())?;
        tasks.push(Some(handle));
        Ok(tasks.len() - 1)
    }

    /// Waits for a task.
    ///
    /// # Errors
    /// Why it failed; that it was waited for before.
    pub fn join(&self, number: usize) -> Outcome {
        let handle = lock(&self.0).get_mut(number).and_then(Option::take);
        let handle = handle.ok_or_else(|| "this task was waited for before".to_string())?;
        handle
            .join()
            .unwrap_or_else(|_| Err("a task's thread died".to_string()))
    }

    /// Waits for all tasks that nobody waited for; the first failure counts.
    ///
    /// # Errors
    /// Why a task failed.
    pub fn join_all(&self) -> Result<(), String> {
        let mut outcome = Ok(());
        let mut number = 0;
        // Tasks may start tasks.
        while number < lock(&self.0).len() {
            if lock(&self.0)[number].is_some() {
                outcome = outcome.and(self.join(number).map(|_| ()));
            }
            number += 1;
        }
        outcome
    }
}

fn work(shared: &Arc<Shared>, core: Option<usize>, name: &str, arguments: &[Plain]) -> Outcome {
    if let Some(core) = core {
        taut_host::pin_current_thread(core).map_err(|e| e.to_string())?;
    }
    let run = || -> mlua::Result<Vec<Plain>> {
        let state = State::new(shared)?;
        state.load_task()?;
        let function: mlua::Function = state.lua().globals().get(name)?;
        let mut values = MultiValue::new();
        for argument in arguments {
            values.push_back(argument.in_state(state.lua())?);
        }
        let returned: MultiValue = function.call(values)?;
        returned.iter().map(Plain::of).collect()
    };
    run().map_err(|e| shared.explain(&e))
}
