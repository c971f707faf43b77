//! Runs a Lua script on packets.

use crate::SCRIPT_FAILED;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::names::lasting;
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Member, Needs, SettingsError, Shared, Spread,
    settings,
};
use taut_lua::{Call, FunctionScript, Host, LIMIT};
use taut_port::{Batch, PortError};
use taut_sys::Clock;

pub(crate) const ENTRY: Entry = Entry {
    name: "lua",
    summary: "runs a Lua script of yours",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |settings| taut_function::file_names(settings, "file"),
    build: |table| {
        let settings: Settings = settings(table)?;
        FunctionScript::check(&settings.file).map_err(|e| SettingsError(format!("file: {e}")))?;
        Ok(Box::new(Lua {
            settings,
            member: Member::default(),
            script: None,
        }) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("scripts run in user space"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    ("file", "required", "the script"),
    ("settings", "`{}`", "a table: `taut.settings` of the script"),
    (
        "sends",
        "`false`",
        "`true`: the script may choose the egress port of a packet (`packet:send_to`). The chain may then have \
         any number of ports, but no `rlnc`",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    file: PathBuf,
    /// The table of settings that the script receives.
    #[serde(default)]
    settings: toml::Table,
    /// True if the script may choose egress ports.
    #[serde(default)]
    sends: bool,
}

struct Lua {
    settings: Settings,
    member: Member,
    /// The script of this worker. It is none before `prepare`, because a function that is created only to describe
    /// itself must run no script.
    script: Option<FunctionScript>,
}

impl Lua {
    /// Starts the Lua script on the packets of this worker.
    fn start(&mut self) -> Result<(), String> {
        if self.script.is_none() {
            let host = Host {
                settings: &self.settings.settings,
                worker: self.member.number,
                workers: self.member.of,
                sends: self.settings.sends,
                hz: Clock::calibrate(Duration::from_millis(2)).hz,
                limit: LIMIT,
            };
            self.script = Some(FunctionScript::start(&self.settings.file, &host)?);
        }
        Ok(())
    }
}

/// Prints an error that occurred in a script while it processed packets.
#[cold]
fn say(line: &str) {
    eprintln!("taut: lua: {line}");
}

impl Function for Lua {
    #[inline]
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let Some(script) = &mut self.script else {
            return;
        };
        let call = Call {
            now_ticks: context.now_ticks,
            from_port: context.from_port,
            to_port: context.to_port,
            ports: context.ports,
        };
        if let Some(line) = script.process(batch, &call) {
            say(&line);
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            chooses_ports: self.settings.sends,
            ..Needs::default()
        }
    }

    fn join(&mut self, member: Member, _: &Shared) -> Result<(), SettingsError> {
        self.member = member;
        self.start().map_err(SettingsError)
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.start()
            .map_err(|e| PortError::system("function \"lua\"", std::io::Error::other(e)))
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let Some(script) = &self.script else {
            return Vec::new();
        };
        let counts = script.counts();
        let mut outcomes = vec![
            ("passed", counts.kept()),
            ("dropped by the script", counts.dropped),
            ("punted by the script", counts.punted),
            (SCRIPT_FAILED, counts.failed),
        ];
        let named = script.counters().into_iter();
        outcomes.extend(named.map(|(name, count)| (lasting(&name), count)));
        outcomes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    fn built(settings: &str) -> Result<Box<dyn Function>, SettingsError> {
        (ENTRY.build)(settings.parse().unwrap())
    }

    #[test]
    fn a_script_processes_packets_and_invalid_scripts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            format!("file = \"{}\"", path.display())
        };
        let script = "#!/usr/bin/taut\nlocal some = taut.counter(taut.settings.name)\n\
            function process(batch) some:add(batch.n) batch[1]:drop() end";
        let good = file("good.lua", script) + "\nsettings = { name = \"some\" }\nsends = true";
        let mut function = built(&good).unwrap();
        assert!(function.needs().chooses_ports && function.outcomes().is_empty());
        function.prepare().unwrap();
        let pool = PoolHandle::new(8, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 60);
        function.process(&mut batch, &Context::default());
        let want = [
            ("passed", 2),
            ("dropped by the script", 1),
            ("punted by the script", 0),
            ("dropped: the script failed", 0),
            ("some", 3),
        ];
        assert_eq!(function.outcomes(), want);
        for (settings, said) in [
            ("", "`file`"),
            ("file = \"/none.lua\"", "file: cannot read /none.lua: "),
            (
                &file("bad.lua", "\nx = = 1"),
                "bad.lua:2: unexpected symbol",
            ),
            ("file = \"x.lua\"\nfiel = 1", "fiel"),
        ] {
            let wrong = built(settings).err().unwrap().0;
            assert!(wrong.contains(said), "{wrong}");
        }
        let idle = file("idle.lua", "local x = 1");
        let wrong = built(&idle)
            .unwrap()
            .join(Member::default(), &Shared::default());
        assert!(
            wrong
                .unwrap_err()
                .0
                .contains("has no function process(batch)")
        );
    }
}
