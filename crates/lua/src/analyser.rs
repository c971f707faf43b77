//! A script that analyses captured packets: it gets the packets one by one, stores numbers for their flows, and fires
//! triggers.

use crate::function::{Counters, Names, chunk, counter, print, read, settings, wrong};
use crate::watch::Watch;
use crate::{FunctionScript, LuaState, MOST_BYTES, Numbers};
use mlua::{Error, Function, LuaString, Table, Value};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use taut_port::{BATCH_CAPACITY, Batch};

/// Maximum number of numbers per flow that a script can store.
pub const MOST_NUMBERS: usize = 32;

/// Maximum number of triggers that a script can fire for the packets of a batch.
const MOST_ASKED: usize = 1024;
/// Maximum length of the reason for a trigger, characters.
const LONGEST_CAUSE: usize = 200;

/// Number of values per packet that `analyser.lua` reads.
const EACH: usize = 6;

/// The settings with which an analyser starts.
#[derive(Debug, Clone)]
pub struct AnalyserHost<'a> {
    /// Settings for the script.
    pub settings: &'a toml::Table,
    /// Names of the triggers that the script can fire.
    pub triggers: &'a [String],
    /// Time limit for the processing of a batch, and for the script's top level: [`crate::LIMIT`].
    pub limit: Duration,
}

/// Metadata of a captured packet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PacketFacts {
    /// Capture time, seconds since 1970-01-01.
    pub seconds: f64,
    /// Length of the packet's frame on the wire, bytes.
    pub wire_bytes: u32,
    /// Index of the packet's ingress port.
    pub port: u8,
    /// True if an earlier function has dropped or punted the packet.
    pub is_dropped: bool,
    /// True if an earlier function has punted the packet.
    pub is_punted: bool,
    /// Index of the row with the numbers of the packet's flow, from 0, and the endpoint of the flow that sent the
    /// packet, 0 or 1. A packet without a flow has none.
    pub flow: Option<(usize, u8)>,
}

/// A trigger that a script has fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Index of the trigger in [`AnalyserHost::triggers`].
    pub trigger: usize,
    /// Index of the packet in its batch for which the script fired the trigger.
    pub packet: usize,
    /// Reason that the script gave, for messages.
    pub cause: String,
}

/// A failure of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Description in one line; if a failure repeats, the description is the same as before.
    pub why: String,
    /// True if the script exceeded its time limit: it must not be called again.
    pub is_over: bool,
}

/// A script that sees captured packets.
pub struct AnalyserScript {
    state: Rc<LuaState>,
    /// Lua function that calls the script's `analyse` for each packet.
    see: Function,
    analyse: Function,
    watch: Watch,
    names: Names,
    /// Values of packets, followed by the numbers of flows.
    numbers: Numbers,
    each: usize,
    asked: Rc<RefCell<Vec<Asked>>>,
    counters: Counters,
}

impl std::fmt::Debug for AnalyserScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnalyserScript").finish_non_exhaustive()
    }
}

impl AnalyserScript {
    /// Checks that the file exists and is Lua, without running it.
    ///
    /// # Errors
    /// The error describes the fault in one line.
    pub fn check(path: &Path) -> Result<(), String> {
        FunctionScript::check(path)
    }

    /// Starts the script of a file: runs its top level, and finds its function `analyse` and its table `flow`.
    ///
    /// # Errors
    /// The error describes the fault in one line.
    pub fn start(path: &Path, host: &AnalyserHost<'_>) -> Result<Self, String> {
        Self::start_source(&read(path)?, path, host)
    }

    /// Starts a script like [`AnalyserScript::start`], from its text; the path is only for messages.
    ///
    /// # Errors
    /// The errors are those of [`AnalyserScript::start`].
    pub fn start_source(
        source: &str,
        path: &Path,
        host: &AnalyserHost<'_>,
    ) -> Result<Self, String> {
        let names = Names::of(path, host.limit);
        let inside = |error: Error| names.explain(&error);
        let state = Rc::new(LuaState::new(false).map_err(inside)?);
        let counters = Counters::default();
        let asked = Rc::default();
        let (ready, see) = prepare(&state, &counters, &asked, host).map_err(inside)?;
        let mut watch = Watch::start(state.ends(), host.limit).map_err(|e| e.to_string())?;
        let top_level = chunk(&state, source, &names);
        watch.begin();
        let done = top_level.exec();
        let is_ended = watch.end();
        done.map_err(|e| match is_ended {
            true => names.explain_end(&e),
            false => names.explain(&e),
        })?;
        let globals = state.lua().globals();
        let analyse = globals.raw_get::<Value>("analyse").map_err(inside)?;
        let Value::Function(analyse) = analyse else {
            return Err(format!(
                "{}: has no function analyse(packet, flow), which sees the packets",
                names.path
            ));
        };
        let remembered = remembered(globals.raw_get("flow").map_err(inside)?);
        let remembered = remembered.map_err(|e| format!("{}: flow: {e}", names.path))?;
        let each = remembered.len();
        let (numbers, get, set) = state
            .numbers(BATCH_CAPACITY * (EACH + each))
            .map_err(inside)?;
        ready.call::<()>((remembered, get, set)).map_err(inside)?;
        Ok(Self {
            state,
            see,
            analyse,
            watch,
            names,
            numbers,
            each,
            asked,
            counters,
        })
    }

    /// Returns the count of numbers that the script stores for each flow.
    pub fn numbers(&self) -> usize {
        self.each
    }

    /// Runs the script on the unmarked packets of a batch, one after the other. `facts` are their metadata; `rows` are
    /// the numbers of their flows, [`AnalyserScript::numbers`] for each packet; the script changes them.
    ///
    /// # Errors
    /// The script fails. The later packets are then not processed, and the script's earlier changes remain.
    ///
    /// # Panics
    /// There are fewer facts than packets, or more rows than a batch has packets.
    pub fn see(
        &mut self,
        batch: &mut Batch,
        facts: &[PacketFacts],
        rows: &mut [f64],
    ) -> Result<(), Failure> {
        assert_eq!(batch.len(), facts.len());
        let behind = BATCH_CAPACITY * EACH;
        assert!(rows.len() <= BATCH_CAPACITY * self.each);
        for (slot, it) in facts.iter().enumerate() {
            let fate = match (it.is_dropped, it.is_punted) {
                (true, _) => 1.0,
                (_, true) => 2.0,
                _ => 0.0,
            };
            let (row, side) = match it.flow {
                Some((row, end)) => (row as f64, f64::from(end) + 1.0),
                None => (-1.0, 0.0),
            };
            let (wire_bytes, port) = (f64::from(it.wire_bytes), f64::from(it.port));
            let numbers = [it.seconds, wire_bytes, port, fate, side, row];
            for (at, number) in numbers.into_iter().enumerate() {
                self.numbers.set(slot * EACH + at, number);
            }
        }
        for (at, number) in rows.iter().enumerate() {
            self.numbers.set(behind + at, *number);
        }
        let (see, analyse) = (&self.see, &self.analyse);
        let work = |n: usize| see.call::<()>((analyse, n));
        self.watch.begin();
        let lent = self.state.lend_batch(batch, work);
        let is_ended = self.watch.end();
        for (at, number) in rows.iter_mut().enumerate() {
            *number = self.numbers.get(behind + at);
        }
        match lent {
            Some((Err(error), _)) => Err(self.failure(&error, is_ended)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn failure(&self, error: &Error, is_over: bool) -> Failure {
        let why = match is_over {
            true => format!("{}: it is not called again", self.names.explain_end(error)),
            false => self.names.explain(error),
        };
        Failure { why, is_over }
    }

    /// Returns the triggers that the script has fired since the last call.
    pub fn asked(&mut self) -> Vec<Asked> {
        self.asked.take()
    }

    /// Returns the script's counters and their values.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.counters.borrow();
        let each = counters.iter();
        each.map(|(name, number)| (name.clone(), number.get() as u64))
            .collect()
    }
}

/// Adds taut's functions to the script's Lua state. Returns the functions that make rows and that pass packets to the
/// script.
fn prepare(
    state: &Rc<LuaState>,
    counters: &Counters,
    asked: &Rc<RefCell<Vec<Asked>>>,
    host: &AnalyserHost<'_>,
) -> mlua::Result<(Function, Function)> {
    let lua = state.lua();
    let packets = state.packets()?;
    let counter = counter(state, counters)?;
    let (asked, known) = (Rc::clone(asked), host.triggers.to_vec());
    let fire = lua.create_function(
        move |_, (packet, name, cause): (usize, LuaString, LuaString)| {
            let name = name.to_string_lossy();
            let Some(trigger) = known.iter().position(|it| *it == *name) else {
                return Err(wrong(match known.is_empty() {
                    true => format!("trigger: no trigger {name}: none is configured"),
                    false => format!(
                        "trigger: no trigger {name}: the triggers are {}",
                        known.join(", ")
                    ),
                }));
            };
            let mut asked = asked.borrow_mut();
            if asked.len() == MOST_ASKED {
                return Err(wrong(format!(
                    "trigger: {MOST_ASKED} times at most for {BATCH_CAPACITY} packets"
                )));
            }
            let cause = cause.to_string_lossy();
            let printable = cause.chars().filter(|it| !it.is_control());
            asked.push(Asked {
                trigger,
                packet,
                cause: printable.take(LONGEST_CAUSE).collect(),
            });
            Ok(())
        },
    )?;
    let seen = lua.create_table()?;
    seen.set("settings", settings(lua, host.settings)?)?;
    seen.set("print", lua.create_function(print)?)?;
    let made = lua
        .load(include_str!("analyser.lua"))
        .set_name("=taut")
        .call((packets, counter, fire, seen))?;
    lua.set_memory_limit(MOST_BYTES)?;
    Ok(made)
}

/// Returns the names of the numbers that a script stores for each flow, from its table `flow`.
fn remembered(table: Option<Table>) -> Result<Vec<String>, String> {
    let Some(table) = table else {
        return Ok(Vec::new());
    };
    let names: mlua::Result<Vec<String>> = table.sequence_values().collect();
    let names = names.map_err(|_| "expected a list of names".to_string())?;
    if names.len() > MOST_NUMBERS {
        return Err(format!("expected at most {MOST_NUMBERS} names"));
    }
    for (at, name) in names.iter().enumerate() {
        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        if name.is_empty()
            || name.starts_with(|it: char| it.is_ascii_digit())
            || !name.chars().all(is_name)
        {
            return Err(format!(
                "\"{name}\": expected names of letters, digits and _"
            ));
        }
        if names[..at].contains(name) {
            return Err(format!("\"{name}\" is listed twice"));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::function::tests::datagrams;
    use taut_port::PoolHandle;

    fn start_within(source: &str, limit: Duration) -> Result<AnalyserScript, String> {
        let settings = "most = 2".parse().unwrap();
        let triggers = ["ttl".to_string(), "other".to_string()];
        let host = AnalyserHost {
            settings: &settings,
            triggers: &triggers,
            limit,
        };
        AnalyserScript::start_source(source, Path::new("dir/x.lua"), &host)
    }

    fn start(source: &str) -> Result<AnalyserScript, String> {
        start_within(source, Duration::from_secs(10))
    }

    fn facts(flow: Option<(usize, u8)>) -> PacketFacts {
        PacketFacts {
            seconds: 5.5,
            wire_bytes: 1000,
            port: 3,
            flow,
            ..PacketFacts::default()
        }
    }

    #[test]
    fn a_script_stores_numbers_per_flow_and_fires_triggers() {
        let source = "flow = { 'packets', 'ports' }\n\
            local strays = taut.counter('strays')\n\
            function analyse(packet, flow)\n\
                assert(packet.seconds == 5.5 and packet.wire_len == 1000 and packet.port == 3)\n\
                assert(packet.len < packet.wire_len and packet.ip4.ttl == 64)\n\
                if not flow then strays:add() assert(packet.side == 0 and packet.fate == nil) return end\n\
                flow.packets = flow.packets + 1\n\
                flow.ports = flow.ports + packet.udp.dst_port * packet.side\n\
                if flow.packets == taut.settings.most then trigger('ttl', 'two\\nof ' .. flow.ports) end\n\
                if packet.fate == 'dropped' then taut.trigger('other') end\n\
            end\n";
        let mut script = start(source).unwrap();
        assert_eq!(script.numbers(), 2);
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = datagrams(&pool, 4);
        let mut seen = [Some((1, 0)), Some((0, 1)), None, Some((1, 1))].map(facts);
        seen[1].is_dropped = true;
        let mut rows = [7.0, 100.0, 0.0, 0.0];
        script.see(&mut batch, &seen, &mut rows).unwrap();
        assert_eq!(rows, [8.0, 104.0, 2.0, 1.0 + 4.0 * 2.0]);
        let asked = |trigger, packet, cause: &str| Asked {
            trigger,
            packet,
            cause: cause.to_string(),
        };
        assert_eq!(script.asked(), [asked(1, 1, ""), asked(0, 3, "twoof 9")]);
        assert!(script.asked().is_empty());
        assert_eq!(script.counters(), [("strays".to_string(), 1)]);
    }

    #[test]
    fn script_errors_are_reported_in_one_line() {
        for (source, said) in [
            (
                "local x = 1",
                "dir/x.lua: has no function analyse(packet, flow)",
            ),
            (
                "flow = { 1, {} } function analyse() end",
                "flow: expected a list of names",
            ),
            (
                "flow = { 'a b' } function analyse() end",
                "flow: \"a b\": expected names",
            ),
            (
                "flow = { 'a', 'a' } function analyse() end",
                "\"a\" is listed twice",
            ),
            (
                "trigger('ttl') function analyse() end",
                "only while a packet is looked at",
            ),
            ("io.open('/etc/passwd')", "dir/x.lua:1:"),
        ] {
            let wrong = start(source).err().unwrap();
            assert!(
                wrong.contains(said) && !wrong.contains('\n'),
                "{source}: {wrong}"
            );
        }
        let pool = PoolHandle::new(64, false).unwrap();
        for (body, said) in [
            (
                "trigger('ttll')",
                "no trigger ttll: the triggers are ttl, other",
            ),
            ("trigger(1)", "expected the name of a trigger"),
            ("flow.bytes = 1", "a flow has no bytes"),
            (
                "flow.packets = 'many'",
                "flow.packets: expected a number, got string",
            ),
            (
                "for _ = 1, 2000 do trigger('ttl') end",
                "1024 times at most for 64 packets",
            ),
            ("packet:u8(60)", "are not in a packet of 60 bytes"),
            (
                "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end",
                "not enough memory",
            ),
        ] {
            let source =
                format!("flow = {{ 'packets' }}\nfunction analyse(packet, flow) {body} end");
            let mut script = start(&source).unwrap();
            let mut batch = datagrams(&pool, 1);
            let failed = script.see(&mut batch, &[facts(Some((0, 0)))], &mut [1.0]);
            let failed = failed.unwrap_err();
            assert!(
                !failed.is_over && failed.why.contains(said),
                "{body}: {}",
                failed.why
            );
            assert!(failed.why.starts_with("dir/x.lua:"), "{}", failed.why);
            script.asked();
        }
    }

    #[test]
    fn a_script_in_an_endless_loop_is_stopped() {
        let limit = Duration::from_millis(20);
        let wrong = start_within("while true do end", limit).err().unwrap();
        assert!(wrong.contains("did not finish within 0.02 s"), "{wrong}");
        let source = "flow = { 'n' } function analyse(_, flow) flow.n = 3 while true do end end";
        let mut script = start_within(source, limit).unwrap();
        let pool = PoolHandle::new(64, false).unwrap();
        let mut rows = [0.0];
        let failed = script.see(&mut datagrams(&pool, 1), &[facts(Some((0, 0)))], &mut rows);
        let failed = failed.unwrap_err();
        assert!(
            failed.is_over && failed.why.contains("not called again"),
            "{}",
            failed.why
        );
        assert_eq!(rows, [3.0]);
    }
}
