//! The XDP versions of functions, by name. Each [`Entry`] says which version its function has.

use crate::{entry, functions};
use taut_function::{Entry, KernelVersion, SettingsError, UpcallVersion};
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;

/// Returns the XDP version of the function of that name for frames that leave through port number `port`. A function
/// with programs of its own has [`upcall`] instead.
///
/// # Errors
/// Fails if there is none of that name, if its settings are wrong, or if it cannot run in the kernel.
pub fn in_kernel(
    name: &str,
    table: toml::Table,
    port: usize,
) -> Result<KernelFunction, SettingsError> {
    let entry = entry(name)?;
    // The error names wrong settings first.
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

/// Returns the constructor of the upcall programs of the function of that name, if it has any.
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
    fn every_function_runs_in_the_kernel_or_is_refused_there() {
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
