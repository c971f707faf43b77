//! A Lua state with the table `taut`: the Rust side of its functions.

use crate::counts::{Cell, Recorded, StateNumber, record};
use crate::lock::lock;
use crate::meeting::Meeting;
use crate::results::{counts, results};
use crate::script::Shared;
use crate::tasks::Outcome;
use crate::value::Plain;
use mlua::{Error, Function, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use taut_lua::{Lent, LuaState, line_of, locate};
use taut_measure::LatencyHistogram;
use taut_port::{Packet, PortSpec};
use taut_settings::suggestion;
use taut_sys::ticks;
use taut_traffic::{
    Arrival, Hand, Instrument, Pacing, Pattern, Rate, Replies, Stream, Summaries, Traffic, Trial,
    TrialError, fill_checksums,
};

/// Longest trial in seconds: four months.
const LONGEST_SECONDS: f64 = 1e7;

/// Time for which tasks that end together receive after all have sent everything.
const SETTLE: Duration = Duration::from_millis(20);

/// A Lua state of a script.
pub struct State {
    core: Rc<Core>,
}

/// Data shared by the functions of a Lua state.
struct Core {
    state: LuaState,
    shared: Arc<Shared>,
    number: StateNumber,
    /// Lua function that calls a given function of the script with a batch; none while the state is being made or
    /// dropped.
    with_batch: RefCell<Option<Function>>,
    /// The open ports, as indices from 0, and the load generator that uses them; none if no port is open.
    instrument: RefCell<Option<(Vec<usize>, Instrument)>>,
    /// Socket files of the open ports.
    sockets: RefCell<Vec<PathBuf>>,
    /// True while a task's top level is running.
    loads_task: RefCell<bool>,
}

fn wrong(text: impl std::fmt::Display) -> Error {
    Error::runtime(text)
}

fn has_ended() -> Error {
    wrong("the script has ended")
}

impl State {
    /// Makes a state that has not read the script yet.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn new(shared: &Arc<Shared>) -> mlua::Result<Self> {
        let state = LuaState::new(shared.script.trusted)?;
        let number = shared.watch(state.ends());
        let core = Rc::new(Core {
            state,
            shared: Arc::clone(shared),
            number,
            with_batch: RefCell::default(),
            instrument: RefCell::default(),
            sockets: RefCell::default(),
            loads_task: RefCell::new(false),
        });
        // From here on, dropping this value closes the ports and frees the Lua state, also after an error below.
        let state = Self { core };
        let core = &state.core;
        let host = host(core)?;
        let packets = core.state.packets()?;
        let counter = core.state.counters(counter(core)?)?;
        let with_batch: Function = core
            .state
            .lua()
            .load(include_str!("taut.lua"))
            .set_name("=taut")
            .call((core.state.memory(), packets, counter, host))?;
        *core.with_batch.borrow_mut() = Some(with_batch);
        core.state
            .lua()
            .set_memory_limit(shared.script.memory_bytes)?;
        Ok(state)
    }

    pub fn lua(&self) -> &Lua {
        self.core.state.lua()
    }

    /// Runs the script's top level.
    ///
    /// # Errors
    /// The script fails.
    pub fn load(&self) -> mlua::Result<()> {
        let shared = &self.core.shared;
        self.lua()
            .load(shared.source.as_str())
            .set_name(format!("@{}", shared.chunk))
            .set_mode(mlua::chunk::ChunkMode::Text)
            .exec()
    }
}

impl State {
    /// Runs the script's top level in a task.
    ///
    /// # Errors
    /// The errors are those of [`State::load`].
    pub fn load_task(&self) -> mlua::Result<()> {
        self.core.loads_task.replace(true);
        let loaded = self.load();
        self.core.loads_task.replace(false);
        loaded
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The functions in the Lua state own the core, and the core owns the Lua state. Breaking this cycle frees both.
        self.core.close_ports();
        self.core.with_batch.borrow_mut().take();
        self.core.shared.forget(self.core.number);
    }
}

impl Core {
    fn count(&self, name: String, cell: Cell) -> mlua::Result<()> {
        let mut counts = lock(&self.shared.counts);
        counts.add(self.number, name, cell).map_err(wrong)
    }

    /// Opens the ports, and records their socket files, so that the files can be deleted later.
    fn open_ports(&self, ports: &[PortSpec], traffic: Traffic) -> Result<Instrument, TrialError> {
        self.forget_sockets();
        let opened = Instrument::open(ports, traffic, self.shared.script.clock)?;
        let sockets: Vec<_> = ports.iter().filter_map(PortSpec::own_socket).collect();
        lock(&self.shared.sockets).extend_from_slice(&sockets);
        *self.sockets.borrow_mut() = sockets;
        Ok(opened)
    }

    fn close_ports(&self) {
        self.instrument.borrow_mut().take();
        self.forget_sockets();
    }

    fn forget_sockets(&self) {
        let gone = std::mem::take(&mut *self.sockets.borrow_mut());
        lock(&self.shared.sockets).retain(|socket| !gone.contains(socket));
    }

    /// Returns the load generator on the given ports: the existing one, if its ports are the same, otherwise a new one.
    fn instrument_at(
        &self,
        open: Option<(Vec<usize>, Instrument)>,
        ports: &[usize],
        traffic: Traffic,
    ) -> mlua::Result<Instrument> {
        match open {
            Some((at, mut instrument)) if at == ports => {
                instrument.set_traffic(traffic).map_err(wrong)?;
                Ok(instrument)
            }
            // The ports of the old load generator are closed first, because the new ports may include them.
            other => {
                drop(other);
                let specs: Vec<_> = ports
                    .iter()
                    .map(|port| self.shared.script.ports.get(*port).cloned())
                    .collect::<Option<_>>()
                    .ok_or_else(|| wrong("taut.run: expected ports from taut.port"))?;
                self.open_ports(&specs, traffic)
                    .map_err(|error| self.trial_error(error))
            }
        }
    }

    /// Converts an error of a trial to a Lua error, and records whether the machine lacks something for the trial.
    fn trial_error(&self, error: TrialError) -> Error {
        let lacking = match &error {
            TrialError::Port(error) => error.is_missing(),
            TrialError::NoLink { .. } | TrialError::NoGateway { .. } => true,
            TrialError::Stopped => false,
        };
        self.shared.lacking.store(lacking, Ordering::Relaxed);
        wrong(format!("taut.run: {error}"))
    }
}

/// Makes the table of Rust functions that `taut.lua` uses.
fn host(core: &Rc<Core>) -> mlua::Result<Table> {
    let lua = core.state.lua();
    let host = lua.create_table()?;
    let script = &core.shared.script;
    host.set(
        "args",
        lua.create_sequence_from(script.arguments.iter().map(String::as_str))?,
    )?;
    host.set("ports", script.ports.len())?;
    let trusted = script.trusted;

    let shared = Arc::clone(&core.shared);
    host.set(
        "port",
        lua.create_function(move |_, index: f64| {
            let spec = shared.script.ports.get((index as usize).wrapping_sub(1));
            spec.map(|spec| spec.text().to_string()).ok_or_else(|| {
                let n = shared.script.ports.len();
                wrong(format!(
                    "taut.port({index}): {n} ports were given with --port, counted from 1"
                ))
            })
        })?,
    )?;
    host.set(
        "check_stream",
        lua.create_function(move |_, (settings, beside): (Table, Option<Vec<String>>)| {
            let made = stream(&settings, 0, trusted).map(|_| ());
            made.map_err(|error| with_options(error, &beside.unwrap_or_default()))
        })?,
    )?;
    host.set(
        "unknown_key",
        lua.create_function(|_, (what, key, known): (String, String, Vec<String>)| {
            Ok(format!(
                "{what}: unknown key `{key}`: expected one of `{}`{}",
                known.join("`, `"),
                suggestion(&key, known.iter().map(String::as_str))
            ))
        })?,
    )?;
    host.set("print", lua.create_function(print)?)?;
    add_clock(core, &host)?;
    add_tasks(core, &host)?;

    add_histograms(core, &host)?;
    let weak = Rc::downgrade(core);
    host.set(
        "run",
        lua.create_function(move |lua, (options, streams): (Table, Table)| {
            let core = weak.upgrade().ok_or_else(has_ended)?;
            run(&core, lua, &options, &streams)
        })?,
    )?;
    Ok(host)
}

/// Makes the Lua function by which a script gets the counter with a given name.
fn counter(core: &Rc<Core>) -> mlua::Result<Function> {
    let weak = Rc::downgrade(core);
    core.state.lua().create_function(move |_, name: String| {
        let core = weak.upgrade().ok_or_else(has_ended)?;
        let (number, read, write) = core.state.number()?;
        core.count(name, Cell::Counter(number))?;
        Ok((read, write))
    })
}

fn add_clock(core: &Rc<Core>, host: &Table) -> mlua::Result<()> {
    let lua = core.state.lua();
    let clock = core.shared.script.clock;
    host.set(
        "now",
        lua.create_function(move |_, ()| Ok(clock.to_ns(ticks()) / 1e9))?,
    )?;
    let shared = Arc::clone(&core.shared);
    host.set(
        "running",
        lua.create_function(move |_, ()| Ok(!shared.halt.load(Ordering::Relaxed)))?,
    )?;
    let shared = Arc::clone(&core.shared);
    host.set(
        "sleep",
        lua.create_function(move |_, seconds: f64| {
            let until = Instant::now() + Duration::try_from_secs_f64(seconds).map_err(wrong)?;
            while !shared.halt.load(Ordering::Relaxed) && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(10)));
            }
            Ok(())
        })?,
    )
}

fn add_histograms(core: &Rc<Core>, host: &Table) -> mlua::Result<()> {
    let lua = core.state.lua();
    let weak = Rc::downgrade(core);
    host.set(
        "histogram",
        lua.create_function(move |lua, name: String| {
            let core = weak.upgrade().ok_or_else(has_ended)?;
            let histogram = Arc::new(Mutex::new(LatencyHistogram::new()));
            let to = Arc::clone(&histogram);
            let samples = core
                .state
                .samples(move |values| record(&mut lock(&to), values))?;
            let recorded = Recorded {
                histogram: Arc::clone(&histogram),
                pending: samples.pending,
            };
            core.count(name, Cell::Histogram(recorded))?;
            let quantile =
                lua.create_function(move |_, q: f64| Ok(lock(&histogram).quantile(q)))?;
            Ok((samples.record, samples.flush, quantile))
        })?,
    )
}

fn add_tasks(core: &Rc<Core>, host: &Table) -> mlua::Result<()> {
    let lua = core.state.lua();
    let (weak, shared) = (Rc::downgrade(core), Arc::clone(&core.shared));
    host.set(
        "task",
        lua.create_function(
            move |_, (core, name, arguments): (Option<usize>, String, MultiValue)| {
                if weak.upgrade().is_some_and(|core| *core.loads_task.borrow()) {
                    return Err(wrong(
                        "taut.task: each task runs the file's top level, and so would start itself again: move it into \
                         the function main",
                    ));
                }
                let arguments: Vec<_> = arguments.iter().map(Plain::of).collect::<Result<_, _>>()?;
                let (its_shared, its_name) = (Arc::clone(&shared), name.clone());
                let work = move || {
                    task(&its_shared, core, &its_name, &arguments).map_err(|text| {
                        let text = format!("{text} (in task {its_name})");
                        its_shared.fail(&text);
                        text
                    })
                };
                shared.tasks.start(&name, work).map_err(wrong)
            },
        )?,
    )?;
    let shared = Arc::clone(&core.shared);
    host.set(
        "wait",
        lua.create_function(move |lua, number: usize| {
            let returned = shared.tasks.join(number).map_err(wrong)?;
            let values: mlua::Result<Vec<Value>> =
                returned.iter().map(|value| value.in_state(lua)).collect();
            values.map(MultiValue::from_vec)
        })?,
    )
}

/// Runs a task: makes a new Lua state, runs the script's top level in it, and calls the script's function `name`.
fn task(shared: &Arc<Shared>, core: Option<usize>, name: &str, arguments: &[Plain]) -> Outcome {
    if let Some(core) = core {
        taut_host::pin_current_thread(core).map_err(|e| e.to_string())?;
    }
    let run = || -> mlua::Result<Vec<Plain>> {
        let state = State::new(shared)?;
        state.load_task()?;
        let function: Function = state.lua().globals().get(name)?;
        let mut values = MultiValue::new();
        for argument in arguments {
            values.push_back(argument.in_state(state.lua())?);
        }
        let returned: MultiValue = function.call(values)?;
        returned.iter().map(Plain::of).collect()
    };
    run().map_err(|e| shared.explain(&e))
}

/// Prints like Lua's own `print`, but ignores write errors, such as a pipe that its reader has closed.
fn print(lua: &Lua, values: MultiValue) -> mlua::Result<()> {
    let line = line_of(lua, values)?;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&line).and_then(|()| out.flush());
    Ok(())
}

/// Returns a text or a number in the format of traffic files; none for other values.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.to_string_lossy()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Makes the stream of a table with the keys of traffic files; `index` is its index in its trial, from 0. Streams of an
/// untrusted script read no files.
fn stream(settings: &Table, index: usize, trusted: bool) -> mlua::Result<Stream> {
    let mut texts = Vec::new();
    for pair in settings.pairs::<Value, Value>() {
        let (key, value) = pair?;
        let (Value::String(key), Some(value)) = (&key, text_of(&value)) else {
            let key = text_of(&key).unwrap_or_else(|| key.type_name().to_string());
            return Err(wrong(format!(
                "taut.stream: {key}: expected a text or a number, as in traffic files"
            )));
        };
        let key = key.to_string_lossy();
        if key == "pattern" && !trusted && Pattern::names_a_file(&value) {
            return Err(wrong(
                "taut.stream: pattern = \"trace(FILE)\" reads a file: give --trust",
            ));
        }
        texts.push((key, value));
    }
    if !texts.iter().any(|(key, _)| key == "name") {
        texts.push(("name".to_string(), format!("stream {}", index + 1)));
    }
    let texts: Vec<(&str, &str)> = texts
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let traffic = Traffic::of_settings(&texts).map_err(|e| wrong(format!("taut.stream: {e}")))?;
    traffic
        .streams()
        .first()
        .cloned()
        .ok_or_else(|| wrong("no stream"))
}

/// Adds the keys in `beside`, which are valid in addition to those of a stream, to an error about an unknown key.
fn with_options(error: Error, beside: &[String]) -> Error {
    let text = match &error {
        Error::RuntimeError(text) if !beside.is_empty() => text.as_str(),
        _ => return error,
    };
    let Some((_, unknown)) = text.split_once("unknown key `") else {
        return error;
    };
    let (key, rest) = unknown.split_once('`').unwrap_or_default();
    // The suggestion is recomputed, because a key in `beside` may be the closest one.
    let rest = rest.split(';').next().unwrap_or_default();
    let of_stream: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let known = beside
        .iter()
        .map(String::as_str)
        .chain(of_stream.iter().copied());
    wrong(format!(
        "taut.send: unknown key `{key}`: expected `{}`, or, of the stream, {}{}",
        beside.join("`, `"),
        of_stream
            .iter()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<_>>()
            .join(", "),
        suggestion(key, known)
    ))
}

/// Returns the index, from 0, of the port that the option `key` names, or `otherwise` without that option.
fn port_of(options: &Table, key: &str, otherwise: usize) -> mlua::Result<usize> {
    match options.get::<Value>(key)? {
        Value::Nil => Ok(otherwise),
        Value::Table(port) => match port.get::<Option<usize>>("index")? {
            Some(index) if index > 0 => Ok(index - 1),
            _ => Err(wrong(format!(
                "taut.run: {key}: expected a port from taut.port"
            ))),
        },
        _ => Err(wrong(format!(
            "taut.run: {key}: expected a port from taut.port"
        ))),
    }
}

fn seconds(options: &Table, key: &str, otherwise: f64) -> mlua::Result<Duration> {
    let value = options.get::<Option<f64>>(key)?.unwrap_or(otherwise);
    if !(0.0..=LONGEST_SECONDS).contains(&value) {
        return Err(wrong(format!(
            "taut.run: {key} = {value}: expected seconds, such as 10 or 0.5"
        )));
    }
    Ok(Duration::from_secs_f64(value))
}

/// Runs one trial, as `taut.run` describes it.
fn run(core: &Core, lua: &Lua, options: &Table, streams: &Table) -> mlua::Result<Table> {
    let script = &core.shared.script;
    let ports = ports_of(options, script.ports.len())?;
    let Sending {
        traffic,
        names,
        crafts,
        stamps,
    } = Sending::of(streams, script.trusted)?;
    let trial = trial_of(options, &traffic)?;
    let pacing = pacing(options)?;
    let listen = optional_seconds(options, "listen")?;
    let together = options.get::<Option<usize>>("together")?;
    let warm_up = seconds(options, "warm_up", 0.0)?;
    let wait = seconds(options, "wait", script.wait.as_secs_f64())?;
    let halt = &core.shared.halt;
    let mut slot = core.instrument.try_borrow_mut().map_err(|_| {
        wrong("taut.run: a trial is running already (called from craft or on_receive)")
    })?;
    let open = core.instrument_at(slot.take(), &ports, traffic)?;
    let (ports, instrument) = slot.insert((ports, open));
    instrument.set_pacing(pacing);
    instrument.set_listen(listen.or(together.map(|_| SETTLE)));
    if let Some(seed) = options.get::<Option<u64>>("seed")? {
        instrument.set_seed(seed);
    }
    instrument
        .wait_for_links(wait, halt)
        .map_err(|error| core.trial_error(error))?;
    let with_batch = core.with_batch.borrow().clone();
    let mut hand = ScriptHand {
        state: &core.state,
        with_batch: with_batch.ok_or_else(has_ended)?,
        crafts,
        stamps,
        on_receive: options.get("on_receive")?,
        error: None,
        meeting: together.map(|_| &core.shared.meeting),
        has_sent: false,
    };
    if !warm_up.is_zero() && !names.is_empty() {
        let warm_up = Trial {
            duration: warm_up,
            ..trial
        };
        hand.warm_up(instrument, warm_up, halt);
    }
    if let Some(tasks) = together {
        instrument.make_ready();
        core.shared.meeting.wait_for(tasks, halt);
    }
    let before = instrument.counters();
    let mut records: Vec<Summaries> = names
        .iter()
        .map(|_| Summaries::new(&script.clock))
        .collect();
    let tallies = if hand.error.is_none() {
        instrument.run_with(trial, &mut records, &mut hand, halt)
    } else {
        Vec::new()
    };
    // A trial that ended early has sent all that it will send.
    hand.has_sent();
    let seed = instrument.seed();
    if let Some(error) = hand.error {
        return Err(error);
    }
    let found = results(lua, &names, &tallies, &records)?;
    found.set("seed", seed)?;
    found.set("replies_lost", instrument.replies_lost())?;
    found.set(
        "ports",
        counts(lua, ports, &before, &instrument.counters())?,
    )?;
    Ok(found)
}

/// Returns the duration, or the time, that the option `key` names; none without that option.
fn optional_seconds(options: &Table, key: &str) -> mlua::Result<Option<Duration>> {
    match options.get::<Value>(key)? {
        Value::Nil => Ok(None),
        _ => seconds(options, key, 0.0).map(Some),
    }
}

/// Returns the method of pacing that the options name.
fn pacing(options: &Table) -> mlua::Result<Pacing> {
    let name = options.get::<Option<String>>("pacing")?;
    match name.as_deref() {
        None | Some("software") => Ok(Pacing::Software),
        Some("nic") => Ok(Pacing::Nic),
        Some("fill") => {
            let line = options.get::<Value>("line")?;
            match text_of(&line).map(|text| text.parse()) {
                Some(Ok(Rate::Layer1Bits(bits) | Rate::Layer2Bits(bits))) => Ok(Pacing::Fill {
                    line_bits_per_s: bits,
                }),
                _ => Err(wrong(
                    "taut.run: pacing = \"fill\": expected line, such as \"1Gbit/s\"",
                )),
            }
        }
        Some(other) => Err(wrong(format!(
            "taut.run: pacing: \"{other}\": expected \"software\", \"fill\" or \"nic\""
        ))),
    }
}

/// Returns the indices (from 0) of a trial's ports: the sender's, and the receiver's if it is another port.
fn ports_of(options: &Table, count: usize) -> mlua::Result<Vec<usize>> {
    if count == 0 {
        return Err(wrong("taut.run: no ports; give one or two with --port"));
    }
    let send = port_of(options, "send", 0)?;
    let receive = port_of(
        options,
        "receive",
        if options.get::<Value>("send")?.is_nil() {
            count - 1
        } else {
            send
        },
    )?;
    let mut ports = vec![send];
    if receive != send {
        ports.push(receive);
    }
    Ok(ports)
}

/// The traffic of a trial, and the script's functions for each stream's packets.
struct Sending {
    traffic: Traffic,
    names: Vec<String>,
    crafts: Vec<Option<Function>>,
    stamps: Vec<bool>,
}

impl Sending {
    /// Reads the streams of a trial.
    fn of(streams: &Table, trusted: bool) -> mlua::Result<Self> {
        let (mut made, mut crafts, mut stamps) = (Vec::new(), Vec::new(), Vec::new());
        for (index, table) in streams.sequence_values::<Table>().enumerate() {
            let table = table?;
            made.push(stream(&table.get("settings")?, index, trusted)?);
            crafts.push(table.get::<Option<Function>>("craft")?);
            stamps.push(table.get::<Option<bool>>("stamp")?.unwrap_or(true));
        }
        let traffic = if made.is_empty() {
            Traffic::none()
        } else {
            Traffic::of(made).map_err(wrong)?
        };
        let names = traffic
            .streams()
            .iter()
            .map(|s| s.name().to_string())
            .collect();
        Ok(Self {
            traffic,
            names,
            crafts,
            stamps,
        })
    }
}

/// Returns the trial that the options describe: its rate and its duration.
fn trial_of(options: &Table, traffic: &Traffic) -> mlua::Result<Trial> {
    let rate_pps = match options.get::<Value>("rate")? {
        Value::Nil => 100_000.0,
        value => {
            let text = text_of(&value)
                .ok_or_else(|| wrong("taut.run: rate: expected a rate such as 1M"))?;
            let rate: Rate = text.parse().map_err(|e| wrong(format!("taut.run: {e}")))?;
            rate.packets_per_second(traffic.average_bytes())
                .map_err(|e| wrong(format!("taut.run: {e}")))?
        }
    };
    let trial = Trial {
        rate_pps,
        duration: seconds(options, "seconds", 1.0)?,
    };
    if trial.duration.is_zero() {
        return Err(wrong("taut.run: seconds: expected more than 0"));
    }
    Ok(trial)
}

/// The script's interface to a trial.
struct ScriptHand<'a> {
    state: &'a LuaState,
    with_batch: Function,
    crafts: Vec<Option<Function>>,
    stamps: Vec<bool>,
    on_receive: Option<Function>,
    error: Option<Error>,
    /// The barrier of the tasks whose trials begin and end together; none for a trial of a single task.
    meeting: Option<&'a Meeting>,
    has_sent: bool,
}

impl ScriptHand<'_> {
    /// Records that this task has sent all packets of its trial.
    fn has_sent(&mut self) {
        if let (Some(meeting), false) = (self.meeting, self.has_sent) {
            meeting.has_sent();
            self.has_sent = true;
        }
    }

    /// Sends packets that are not counted; the script gets none of the packets that arrive.
    fn warm_up(&mut self, instrument: &mut Instrument, trial: Trial, halt: &AtomicBool) {
        let (listener, meeting) = (self.on_receive.take(), self.meeting.take());
        let mut nothing: [Summaries; 0] = [];
        instrument.run_with(trial, &mut nothing, self, halt);
        (self.on_receive, self.meeting) = (listener, meeting);
    }
}

impl Hand for ScriptHand<'_> {
    fn crafts(&self, stream: usize) -> bool {
        self.crafts.get(stream).is_some_and(Option::is_some)
    }

    fn stamps(&self, stream: usize) -> bool {
        self.stamps.get(stream).is_some_and(|stamps| *stamps)
    }

    fn craft(&mut self, stream: usize, packets: &mut [Packet]) {
        let Some(Some(craft)) = self.crafts.get(stream) else {
            return;
        };
        if self.error.is_some() || packets.is_empty() {
            return;
        }
        let n = packets.len();
        let about = |_: usize, frame: &[u8]| Lent {
            headers: locate(frame),
            stamp: None,
            arrived_ns: -1.0,
            port_stamp: -1.0,
        };
        let work = || self.with_batch.call::<()>((craft, n));
        let (done, _) = self.state.lend(packets, about, work);
        self.error = done.err();
    }

    fn arrived(&mut self, packets: &mut [Packet], arrivals: &[Arrival]) -> Replies {
        let Some(on_receive) = &self.on_receive else {
            return Replies::default();
        };
        if self.error.is_some() {
            return Replies::default();
        }
        let n = packets.len();
        let about = |index: usize, frame: &[u8]| Lent {
            headers: locate(frame),
            stamp: arrivals[index]
                .stamp
                .map(|(stream, sequence, ns)| (stream + 1, sequence, ns.max(0.0))),
            arrived_ns: arrivals[index].at_ns,
            port_stamp: arrivals[index].port_stamp.map_or(-1.0, |at| at as f64),
        };
        let work = || self.with_batch.call::<()>((on_receive, n));
        let (done, [back, on]) = self.state.lend(packets, about, work);
        self.error = done.err();
        for (index, packet) in packets.iter_mut().enumerate() {
            if (back | on) & 1 << index != 0 {
                fill_checksums(packet.bytes_mut());
            }
        }
        Replies { back, on }
    }

    fn is_stopped(&self) -> bool {
        self.error.is_some()
    }

    fn all_have_sent(&mut self) -> bool {
        self.has_sent();
        self.meeting.is_none_or(Meeting::all_have_sent)
    }

    fn listens(&self) -> bool {
        self.on_receive.is_some()
    }
}
