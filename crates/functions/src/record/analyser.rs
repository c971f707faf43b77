//! Analysers in Lua.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use taut_capture::analyser::{self, Analyser, Fired, TOGETHER, Trouble, bytes_for};
use taut_capture::filter::Filter;
use taut_capture::record::{DROPPED, PUNTED, Record};
use taut_lua::{AnalyserHost, AnalyserScript, LIMIT, PacketFacts};
use taut_port::{Batch, PoolHandle};
use taut_sys::available_bytes;

/// The validated settings of an analyser.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub file: PathBuf,
    pub filter: Filter,
    pub flows: usize,
    pub settings: toml::Table,
}

impl Checked {
    /// Returns the settings with which the capture starts the analyser, which may fire these triggers.
    pub fn settings(&self, triggers: &[String]) -> analyser::Settings {
        let (checked, triggers) = (self.clone(), triggers.to_vec());
        analyser::Settings {
            name: name_of(&self.file),
            filter: self.filter.clone(),
            flows: self.flows,
            make: Box::new(move || {
                let made = Lua::start(&checked, &triggers)?;
                Ok(Box::new(made) as Box<dyn Analyser>)
            }),
        }
    }
}

/// Returns the script's name, from its file.
fn name_of(file: &Path) -> String {
    let name = file.file_stem().unwrap_or(file.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A script, and the copies of packets that it receives.
struct Lua {
    name: String,
    script: AnalyserScript,
    pool: PoolHandle,
    batch: Batch,
    facts: Vec<PacketFacts>,
    times: Vec<u64>,
    has_failed: bool,
}

impl Lua {
    fn start(checked: &Checked, triggers: &[String]) -> Result<Self, String> {
        let host = AnalyserHost {
            settings: &checked.settings,
            triggers,
            limit: LIMIT,
        };
        let script = AnalyserScript::start(&checked.file, &host)?;
        let bytes = bytes_for(checked.flows, script.numbers()) as u64;
        if let Some(free) = available_bytes().filter(|free| bytes > *free) {
            return Err(format!(
                "{}: {} flows with {} numbers each need {} MB, but {} MB of memory are free: use fewer",
                checked.file.display(),
                checked.flows,
                script.numbers(),
                bytes >> 20,
                free >> 20
            ));
        }
        let pool = PoolHandle::new(TOGETHER as u32, false).map_err(|e| e.to_string())?;
        Ok(Self {
            name: name_of(&checked.file),
            script,
            pool,
            batch: Batch::new(),
            facts: Vec::with_capacity(TOGETHER),
            times: Vec::with_capacity(TOGETHER),
            has_failed: false,
        })
    }
}

impl Analyser for Lua {
    fn numbers(&self) -> usize {
        self.script.numbers()
    }

    fn take(&mut self, record: &Record<'_>, flow: Option<(usize, u8)>) {
        let facts = &record.facts;
        // The script gets a copy, because it may write to the frame. The copy of a long frame has only the frame's
        // start.
        let kept = record.frame.len().min(self.pool.room());
        let Some(mut packet) = self.pool.take(kept as u16) else {
            return;
        };
        packet.bytes_mut().copy_from_slice(&record.frame[..kept]);
        self.batch.push(packet);
        self.facts.push(PacketFacts {
            seconds: facts.time_ns as f64 / 1e9,
            wire_bytes: facts.wire_bytes,
            port: facts.port,
            is_dropped: facts.flags & DROPPED != 0,
            is_punted: facts.flags & PUNTED != 0,
            flow,
        });
        self.times.push(facts.time_ns);
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.script.counters().into_iter().collect()
    }

    fn look(&mut self, rows: &mut [f64], fire: &mut dyn FnMut(Fired)) -> Result<(), Trouble> {
        let looked = self.script.see(&mut self.batch, &self.facts, rows);
        for asked in self.script.asked() {
            let name = &self.name;
            let cause = match asked.cause.as_str() {
                "" => format!("analyser {name}"),
                cause => format!("analyser {name}: {cause}"),
            };
            fire(Fired {
                trigger: asked.trigger,
                time_ns: self.times[asked.packet],
                cause,
            });
        }
        self.batch.clear();
        self.facts.clear();
        self.times.clear();
        looked.map_err(|failure| {
            let is_first = !std::mem::replace(&mut self.has_failed, true);
            if is_first || failure.is_over {
                say(&failure.why, failure.is_over);
            }
            Trouble {
                why: failure.why,
                is_over: failure.is_over,
            }
        })
    }
}

/// Reports an error of a script that occurred while packets passed. `is_over` is true if the error ends the script.
#[cold]
fn say(why: &str, is_over: bool) {
    let more = match is_over {
        true => "; the capture goes on without it",
        false => "; packets behind that are not analysed, up to 64 at a time",
    };
    eprintln!("taut: capture: {why}{more}");
}
