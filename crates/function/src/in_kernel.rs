//! What the functions that the kernel can do as well, as XDP programs, are there. Which those are, each says in its
//! [`Entry`](crate::Entry).

use crate::{Entry, SettingsError, Shared, entry, functions};
use std::sync::Arc;
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;
use taut_xdp::upcall::UpcallPrograms;

/// What does the same as a function inside the kernel.
#[derive(Clone, Copy)]
pub enum KernelVersion {
    /// Nothing, for this reason.
    No(&'static str),
    /// What this makes of its settings, for the frames that leave through the port of that number.
    Frames(fn(toml::Table, usize) -> Result<KernelFunction, SettingsError>),
    /// Programs of its own, which hand up what they do not decide.
    Upcall(UpcallVersion),
}

/// Programs of a function's own, and what says whether they can be.
#[derive(Clone, Copy)]
pub struct UpcallVersion {
    /// Says what is wrong with the settings, or cannot be in the kernel.
    pub check: fn(toml::Table) -> Result<(), SettingsError>,
    /// Makes the programs for that many ports. Who has the functions beside them made then gives these the same
    /// [`Shared`], where they find what they keep what they decide by in.
    pub make: fn(toml::Table, usize, &Shared) -> UpcallMade,
}

/// Programs that were made, or the reason why not.
pub type UpcallMade = Result<Arc<dyn UpcallPrograms>, UpcallError>;

/// Reason why there are no programs that hand frames up.
#[derive(Debug, thiserror::Error)]
pub enum UpcallError {
    /// The settings are wrong, or cannot be in the kernel.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The machine lacks something.
    #[error(transparent)]
    System(#[from] taut_sys::Error),
}

/// Returns what the function of that name does in the kernel to frames that leave through port number `port`; those of
/// one that has programs of its own are what [`upcall`] makes.
///
/// # Errors
/// When there is none of that name, its settings are wrong, or it cannot run in the kernel.
pub fn in_kernel(
    name: &str,
    table: toml::Table,
    port: usize,
) -> Result<KernelFunction, SettingsError> {
    let entry = entry(name)?;
    // Says what is wrong with the settings.
    let check = || (entry.build)(table.clone());
    match entry.in_kernel {
        KernelVersion::No(why) => {
            let can = |entry: &&Entry| !matches!(entry.in_kernel, KernelVersion::No(_));
            let names: Vec<_> = functions().iter().filter(can).map(|it| it.name).collect();
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

/// Returns what makes the programs of the function of that name, where they hand up what they do not decide.
pub fn upcall(name: &str) -> Option<UpcallVersion> {
    match entry(name).map(|entry| entry.in_kernel) {
        Ok(KernelVersion::Upcall(upcall)) => Some(upcall),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_function_either_runs_in_the_kernel_or_is_named_as_one_that_does_not() {
        for entry in functions() {
            let settings = match entry.name {
                "mac-rewrite" => "source = \"02:00:00:00:00:aa\"",
                "gtpu" => "address = \"192.0.2.1\"",
                "route" => {
                    "interface = [{ mac = \"02:00:00:00:00:01\", addresses = [\"192.0.2.1/24\"] }]"
                }
                "nat" => "outside = [1]\naddress = \"203.0.113.1\"",
                "xor" => "key = 1",
                "filter" => "default = \"drop\"",
                "switch" => "rule = [{ in_port = 0, actions = [\"output:1\"] }]",
                "balance" => "port = 0\nhops = [\"02:00:00:00:00:01\"]",
                _ => "",
            };
            let table = settings.parse().unwrap();
            let runs_there = !matches!(entry.in_kernel, KernelVersion::No(_));
            match in_kernel(entry.name, table, 0) {
                Ok(_) => assert!(runs_there, "{}", entry.name),
                Err(e) => assert!(!runs_there, "{}: {e}", entry.name),
            }
        }
        let error = in_kernel("snort", toml::Table::new(), 0).unwrap_err();
        assert!(error.0.contains("no function \"snort\""));
        let linear = "address = \"192.0.2.1\"\nmatching = \"linear\"".parse();
        let error = in_kernel("gtpu", linear.unwrap(), 0).unwrap_err();
        assert!(error.0.contains("hash only"), "{error}");
        let error = in_kernel("burn", "cycles = 100".parse().unwrap(), 0).unwrap_err();
        assert!(
            error
                .0
                .contains("\"burn\" cannot run in the kernel (what it costs is")
        );
    }
}
