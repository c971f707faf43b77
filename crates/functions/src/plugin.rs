//! Runs a shared library on packets, through a C interface: `crates/plugin/include/taut_function.h`.

use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::names::lasting;
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Member, Needs, SettingsError, Shared, Spread,
    settings,
};
use taut_plugin::{Call, Library, LibraryError, State};
use taut_port::{Batch, Direction, PortError};
use taut_sys::Clock;

pub(crate) const ENTRY: Entry = Entry {
    name: "plugin",
    summary: "runs a shared library of yours",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |settings| taut_function::file_names(settings, "file"),
    build: |table| {
        let settings: Settings = settings(table)?;
        Library::check(&settings.file).map_err(|e| SettingsError(format!("file: {e}")))?;
        Ok(Box::new(Plugin {
            settings,
            member: Member::default(),
            state: None,
        }) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("a library is made for user space"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "file",
        "required",
        "the library; without a slash, one of the current folder",
    ),
    ("settings", "empty", "text that the library gets"),
    (
        "sends",
        "`false`",
        "`true`: the library may choose the egress port of a packet. The chain may then have any number of ports, \
         but no `rlnc`",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    file: PathBuf,
    /// The settings text that the library receives.
    #[serde(default)]
    settings: String,
    /// True if the library may choose egress ports.
    #[serde(default)]
    sends: bool,
}

struct Plugin {
    settings: Settings,
    member: Member,
    /// The state of the library, for this worker. It is none before `prepare`, because a function that is created only
    /// to describe itself must run no library code.
    state: Option<State>,
}

impl Plugin {
    /// Loads the shared library and creates its state for this worker.
    fn make(&mut self) -> Result<(), LibraryError> {
        if self.state.is_none() {
            let library = Library::load(&self.settings.file)?;
            let clock = Clock::calibrate(Duration::from_millis(2));
            let Member { number, of } = self.member;
            self.state = Some(library.make(&self.settings.settings, (number, of), clock.hz)?);
        }
        Ok(())
    }
}

impl Function for Plugin {
    #[inline]
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let Some(state) = &mut self.state else {
            return;
        };
        let call = Call {
            ticks: context.now_ticks,
            in_port: context.from_port as u32,
            out_port: context.to_port as u32,
            ports: context.ports as u32,
            direction: match Direction::from_port(context.from_port) {
                Direction::Out => 0,
                Direction::Back => 1,
            },
        };
        state.process(batch, &call, self.settings.sends);
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
        // The library is loaded here, because most errors come from settings rather than from the machine.
        self.make().map_err(|e| SettingsError(e.to_string()))
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.make()
            .map_err(|e| PortError::system("function \"plugin\"", std::io::Error::other(e)))
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let counts = state.counts();
        let mut outcomes = vec![
            ("passed", counts.kept()),
            ("dropped by the plugin", counts.dropped),
            ("punted by the plugin", counts.punted),
            ("dropped: no such verdict", counts.wrong_verdict),
            (
                "dropped: outside of the packet's memory",
                counts.wrong_place,
            ),
            ("dropped: no such port to send to", counts.wrong_port),
        ];
        let named = state.counters();
        outcomes.extend(named.map(|(name, count)| (lasting(name), count)));
        outcomes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn built(settings: &str) -> Result<Box<dyn Function>, SettingsError> {
        (ENTRY.build)(settings.parse().unwrap())
    }

    #[test]
    fn invalid_plugin_settings_are_refused_with_the_reason() {
        for (settings, said) in [
            ("", "`file`"),
            ("file = \"/none.so\"", "file: cannot read /none.so: "),
            (
                "file = \"/proc/self/status\"",
                "file: /proc/self/status is not a shared library",
            ),
            ("file = \"x.so\"\nsetings = \"\"", "setings"),
            ("file = \"x.so\"\nsettings = 7", "settings"),
        ] {
            let wrong = built(settings).err().unwrap().0;
            assert!(wrong.contains(said), "{wrong}");
        }
    }
}
