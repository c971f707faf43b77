//! A script that is a function of a chain: its state, and the handling of its packets.

use crate::watch::Watch;
use crate::{LuaState, Number, explain, line_of};
use mlua::{Error, Function, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use taut_port::{Batch, Punt};

/// Time limit for the processing of a batch, and for the script's top level.
pub const LIMIT: Duration = Duration::from_secs(1);

/// Memory limit of a script, bytes.
pub const MOST_BYTES: usize = 64 << 20;

/// Maximum number of counters of a script.
const MOST_COUNTERS: usize = 64;
/// Maximum length of a counter's name, characters.
const LONGEST_NAME: usize = 60;

/// Mark that `function.lua` sets on packets to drop.
const DROP: u8 = 1;
/// Mark that `function.lua` sets on packets to send to the slow path.
const PUNT: u8 = 2;

/// The settings with which a script starts.
#[derive(Debug, Clone)]
pub struct Host<'a> {
    /// Settings in the chain file that are passed to the script.
    pub settings: &'a toml::Table,
    /// Index of the worker that runs the script, from 0.
    pub worker: usize,
    /// Number of workers that run the script.
    pub workers: usize,
    /// True if the script may send packets to ports of its choice.
    pub sends: bool,
    /// Ticks of the worker's clock per second.
    pub hz: f64,
    /// Time limit for the processing of a batch, and for the script's top level: [`LIMIT`].
    pub limit: Duration,
}

/// The values common to all packets of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Call {
    /// Time at which the worker began the batch, in ticks.
    pub now_ticks: u64,
    /// Index of the ingress port.
    pub from_port: usize,
    /// Index of the default egress port.
    pub to_port: usize,
    /// Number of ports of the chain.
    pub ports: usize,
}

/// Numbers of packets of a script by outcome. `seen` counts each packet, and at most one of the other fields counts it
/// too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets for the script, including those that it did not get because it had failed.
    pub seen: u64,
    /// Packets that the script dropped.
    pub dropped: u64,
    /// Packets that the script sent to the slow path.
    pub punted: u64,
    /// Packets that were dropped because the script failed on them, or had failed before.
    pub failed: u64,
}

impl Counts {
    /// Returns the number of packets that were neither dropped nor sent to the slow path.
    pub fn kept(&self) -> u64 {
        self.seen - self.dropped - self.punted - self.failed
    }
}

/// Counters of a script by name.
pub(crate) type Counters = Rc<RefCell<Vec<(String, Number)>>>;

/// A script that sees the packets of one worker.
pub struct FunctionScript {
    state: Rc<LuaState>,
    /// Lua function that calls the script's `process` with a batch.
    with_batch: Function,
    process: Function,
    watch: Watch,
    names: Names,
    counters: Counters,
    counts: Counts,
    seconds_per_tick: f64,
    /// True if an error was already reported; only the first error is reported.
    has_failed: bool,
    /// True if the script exceeded its time limit: it is not called again.
    is_stopped: bool,
}

impl std::fmt::Debug for FunctionScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FunctionScript").finish_non_exhaustive()
    }
}

/// The parts of messages about a script: its name in Lua's messages, its path, and its time limit.
pub(crate) struct Names {
    chunk: String,
    pub(crate) path: String,
    limit: Duration,
}

impl Names {
    pub(crate) fn of(path: &Path, limit: Duration) -> Self {
        // Lua truncates longer names.
        let chunk = path.file_name().unwrap_or_default().to_string_lossy();
        Self {
            chunk: chunk.chars().take(40).collect(),
            path: path.display().to_string(),
            limit,
        }
    }

    pub(crate) fn explain(&self, error: &Error) -> String {
        let memory = format!(
            "not enough memory: a function in Lua has {} MB",
            MOST_BYTES >> 20
        );
        explain(error, &self.chunk, &self.path, &memory)
    }

    /// Returns the message for a script that was stopped.
    pub(crate) fn explain_end(&self, error: &Error) -> String {
        let said = self.explain(error);
        let place = said.split(": stopped").next().unwrap_or(&said);
        format!(
            "{place}: did not finish within {} s",
            self.limit.as_secs_f64()
        )
    }
}

pub(crate) fn wrong(text: impl std::fmt::Display) -> Error {
    Error::runtime(text)
}

/// Returns the text of a script file.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let source = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    // The first line may name the interpreter.
    Ok(match source.strip_prefix("#!") {
        Some(rest) => format!("--{rest}"),
        None => source,
    })
}

/// Returns the script's text as a chunk that Lua can load.
pub(crate) fn chunk<'a>(
    state: &LuaState,
    source: &'a str,
    names: &Names,
) -> mlua::chunk::Chunk<'a> {
    state
        .lua()
        .load(source)
        .set_name(format!("@{}", names.chunk))
        .set_mode(mlua::chunk::ChunkMode::Text)
}

impl FunctionScript {
    /// Checks that the file exists and is Lua, without running it.
    ///
    /// # Errors
    /// The error describes the fault in one line.
    pub fn check(path: &Path) -> Result<(), String> {
        let (source, names) = (read(path)?, Names::of(path, LIMIT));
        let state = LuaState::new(false).map_err(|e| names.explain(&e))?;
        let read = chunk(&state, &source, &names).into_function();
        read.map(drop).map_err(|e| names.explain(&e))
    }

    /// Starts the script of a file: runs its top level, and finds its function `process`.
    ///
    /// # Errors
    /// The error describes the fault in one line.
    pub fn start(path: &Path, host: &Host<'_>) -> Result<Self, String> {
        Self::start_source(&read(path)?, path, host)
    }

    /// Starts a script like [`FunctionScript::start`], from its text; the path is only for messages.
    ///
    /// # Errors
    /// The errors are those of [`FunctionScript::start`].
    pub fn start_source(source: &str, path: &Path, host: &Host<'_>) -> Result<Self, String> {
        let names = Names::of(path, host.limit);
        let inside = |error: Error| names.explain(&error);
        let state = Rc::new(LuaState::new(false).map_err(inside)?);
        let counters = Counters::default();
        let with_batch = prepare(&state, &counters, host).map_err(inside)?;
        let mut watch = Watch::start(state.ends(), host.limit).map_err(|e| e.to_string())?;
        let top_level = chunk(&state, source, &names);
        watch.begin();
        let done = top_level.exec();
        let is_ended = watch.end();
        done.map_err(|e| match is_ended {
            true => names.explain_end(&e),
            false => names.explain(&e),
        })?;
        let process = state.lua().globals().raw_get::<Value>("process");
        let Value::Function(process) = process.map_err(inside)? else {
            return Err(format!(
                "{}: has no function process(batch), which sees the packets",
                names.path
            ));
        };
        Ok(Self {
            state,
            with_batch,
            process,
            watch,
            names,
            counters,
            counts: Counts::default(),
            seconds_per_tick: 1.0 / host.hz,
            has_failed: false,
            is_stopped: false,
        })
    }

    /// Runs the script on the unmarked packets of a batch. If the script fails, all of these packets are dropped. At
    /// the first failure, a line with the reason is returned; later it is none.
    #[inline]
    pub fn process(&mut self, batch: &mut Batch, call: &Call) -> Option<String> {
        if self.is_stopped {
            return self.drop_all(batch, "");
        }
        let (with_batch, process) = (&self.with_batch, &self.process);
        let seconds = call.now_ticks as f64 * self.seconds_per_tick;
        let work = |n: usize| {
            let ports = (call.from_port, call.to_port, call.ports);
            with_batch.call::<()>((process, n, ports.0, ports.1, ports.2, seconds))
        };
        self.watch.begin();
        let lent = self.state.lend_batch(batch, work);
        let is_ended = self.watch.end();
        let (done, lending) = lent?;
        if let Err(error) = done {
            return self.fail(batch, &error, is_ended);
        }
        let counts = &mut self.counts;
        counts.seen += lending.places().len() as u64;
        self.state.said(&lending, |place, mark, port| {
            if let Some(port) = port {
                batch.send_to(place, port);
            }
            match mark {
                DROP => {
                    counts.dropped += 1;
                    batch.mark_dropped(place);
                }
                PUNT => {
                    counts.punted += 1;
                    batch.mark_punted(place, Punt::Local);
                }
                _ => {}
            }
        });
        None
    }

    #[cold]
    fn fail(&mut self, batch: &mut Batch, error: &Error, is_ended: bool) -> Option<String> {
        self.is_stopped = is_ended;
        let said = match (is_ended, self.has_failed) {
            (true, _) => {
                let said = self.names.explain_end(error);
                format!("{said}: it is not called again, and all packets are dropped here")
            }
            (false, true) => String::new(),
            (false, false) => {
                let said = self.names.explain(error);
                format!(
                    "{said}; the packets of that batch are dropped, and of any other where it fails"
                )
            }
        };
        self.has_failed = true;
        self.drop_all(batch, &said)
    }

    /// Drops the unmarked packets; returns the message `said`, or none if it is empty.
    #[cold]
    fn drop_all(&mut self, batch: &mut Batch, said: &str) -> Option<String> {
        for index in 0..batch.len() {
            if batch.is_kept(index) {
                batch.mark_dropped(index);
                self.counts.seen += 1;
                self.counts.failed += 1;
            }
        }
        (!said.is_empty()).then(|| said.to_string())
    }

    /// Returns the packets by outcome.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the script's counters and their values.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.counters.borrow();
        let each = counters.iter();
        each.map(|(name, number)| (name.clone(), number.get() as u64))
            .collect()
    }
}

/// Adds taut's functions to the script's Lua state. Returns the function that calls the script with a batch.
fn prepare(state: &Rc<LuaState>, counters: &Counters, host: &Host<'_>) -> mlua::Result<Function> {
    let lua = state.lua();
    let packets = state.packets()?;
    let counter = counter(state, counters)?;
    let seen = lua.create_table()?;
    seen.set("settings", settings(lua, host.settings)?)?;
    seen.set("worker", host.worker)?;
    seen.set("workers", host.workers)?;
    seen.set("sends", host.sends)?;
    seen.set("print", lua.create_function(print)?)?;
    let with_batch = lua
        .load(include_str!("function.lua"))
        .set_name("=taut")
        .call((state.memory(), packets, counter, seen))?;
    lua.set_memory_limit(MOST_BYTES)?;
    Ok(with_batch)
}

/// Makes the Lua function by which a script gets the counter with a given name.
pub(crate) fn counter(state: &Rc<LuaState>, counters: &Counters) -> mlua::Result<Function> {
    let (weak, counters) = (Rc::downgrade(state), Rc::clone(counters));
    let make = state.lua().create_function(move |_, name: String| {
        let length = name.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || name.contains(char::is_control) {
            return Err(wrong(format!(
                "taut.counter: expected a name of 1 to {LONGEST_NAME} printable characters"
            )));
        }
        if counters.borrow().len() == MOST_COUNTERS {
            return Err(wrong(format!(
                "taut.counter: the maximum per function is {MOST_COUNTERS}"
            )));
        }
        let state = weak.upgrade().ok_or_else(|| wrong("the chain has ended"))?;
        let (number, read, write) = state.number()?;
        counters.borrow_mut().push((name, number));
        Ok((read, write))
    })?;
    state.counters(make)
}

/// Converts a table of a chain file to Lua.
pub(crate) fn settings(lua: &Lua, table: &toml::Table) -> mlua::Result<Table> {
    let made = lua.create_table()?;
    for (key, value) in table {
        made.raw_set(key.as_str(), setting(lua, value)?)?;
    }
    Ok(made)
}

fn setting(lua: &Lua, value: &toml::Value) -> mlua::Result<Value> {
    Ok(match value {
        toml::Value::String(text) => Value::String(lua.create_string(text)?),
        toml::Value::Integer(number) => Value::Number(*number as f64),
        toml::Value::Float(number) => Value::Number(*number),
        toml::Value::Boolean(truth) => Value::Boolean(*truth),
        toml::Value::Datetime(time) => Value::String(lua.create_string(time.to_string())?),
        toml::Value::Array(list) => {
            let made = lua.create_table()?;
            for value in list {
                made.raw_push(setting(lua, value)?)?;
            }
            Value::Table(made)
        }
        toml::Value::Table(table) => Value::Table(settings(lua, table)?),
    })
}

/// Prints on standard error, as standard output may be read by programs.
pub(crate) fn print(lua: &Lua, values: MultiValue) -> mlua::Result<()> {
    let line = line_of(lua, values)?;
    // Forwarding continues even if standard error is closed.
    let _ = std::io::stderr().lock().write_all(&line);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
