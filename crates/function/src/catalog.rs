//! A catalog of functions, in which the engine looks up the function names of a chain. `taut-functions` has the catalog
//! of taut; a program that uses the engine as a library can supply its own catalog.

use crate::{Entry, Function, KernelVersion, SettingsError, UpcallVersion};
use taut_settings::suggestion;
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;

/// The functions that a chain can name; the default catalog is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Catalog(pub &'static [Entry]);

/// Catalogs are equal if they are the same list in memory.
impl PartialEq for Catalog {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Catalog {
    /// Returns the entry of the function called `name`.
    ///
    /// # Errors
    /// Fails if no function has that name; the error lists the known names.
    pub fn entry(self, name: &str) -> Result<&'static Entry, SettingsError> {
        let found = self.0.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| {
            let known: Vec<_> = self.0.iter().map(|entry| entry.name).collect();
            let meant = suggestion(name, known.iter().copied());
            SettingsError(format!(
                "no function \"{name}\"; there are {}{meant}",
                known.join(", ")
            ))
        })
    }

    /// Returns the function called `name`, made from the settings in `table`.
    ///
    /// # Errors
    /// Fails if no function has that name, or if the settings are wrong.
    pub fn build(self, name: &str, table: toml::Table) -> Result<Box<dyn Function>, SettingsError> {
        (self.entry(name)?.build)(table)
    }

    /// Returns the XDP version of the function called `name` for frames that leave through the port with index `port`.
    /// For a function with XDP programs of its own, use [`Catalog::upcall`] instead.
    ///
    /// # Errors
    /// Fails if no function has that name, if its settings are wrong, or if it cannot run in the kernel.
    pub fn in_kernel(
        self,
        name: &str,
        table: toml::Table,
        port: usize,
    ) -> Result<KernelFunction, SettingsError> {
        let entry = self.entry(name)?;
        // Wrong settings are reported first, even if the function cannot run in the kernel.
        let check = || (entry.build)(table.clone());
        match entry.in_kernel {
            KernelVersion::No(why) => {
                let can = self.0.iter().filter(|entry| entry.runs_in_kernel());
                let names: Vec<_> = can.map(|entry| entry.name).collect();
                Err(SettingsError(format!(
                    "function \"{name}\" cannot run in the kernel ({why}); these can: {}",
                    names.join(", ")
                )))
            }
            KernelVersion::Frames(make) => check().and_then(|_| make(table, port)),
            KernelVersion::Upcall(upcall) => check()
                .and_then(|_| (upcall.check)(table))
                .map(|()| KernelFunction::Headers(HeaderChange::NONE)),
        }
    }

    /// Returns the constructor of the upcall programs of the function called `name`; None if the function has no upcall
    /// programs.
    pub fn upcall(self, name: &str) -> Option<UpcallVersion> {
        match self.entry(name).map(|entry| entry.in_kernel) {
            Ok(KernelVersion::Upcall(upcall)) => Some(upcall),
            _ => None,
        }
    }
}
