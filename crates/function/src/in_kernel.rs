//! The functions that the kernel can do as well, as XDP programs: those that only look at addresses.

use crate::mac_rewrite::MacRewrite;
use crate::{SettingsError, build, forward, mac_rewrite, mac_swap, settings};
use taut_port::xdp_forward::HeaderChange;

/// Those that have a version in the kernel.
const NAMES: [&str; 3] = [
    forward::ENTRY.name,
    mac_swap::ENTRY.name,
    mac_rewrite::ENTRY.name,
];

/// What the function of that name does to frames that leave through port number `port`.
///
/// # Errors
/// When there is none of that name, its settings are wrong, or it cannot run in the kernel.
pub fn in_kernel(
    name: &str,
    table: toml::Table,
    port: usize,
) -> Result<HeaderChange, SettingsError> {
    // Says what is wrong with the name or the settings.
    build(name, table.clone())?;
    if name == mac_swap::ENTRY.name {
        Ok(HeaderChange::SWAP)
    } else if name == forward::ENTRY.name {
        Ok(HeaderChange::NONE)
    } else if name == mac_rewrite::ENTRY.name {
        Ok(MacRewrite::new(settings(table)?)?.header_change(port))
    } else {
        Err(SettingsError(format!(
            "function \"{name}\" cannot run in the kernel; these can: {}",
            NAMES.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::functions;

    #[test]
    fn every_function_either_runs_in_the_kernel_or_is_named_as_one_that_does_not() {
        for entry in functions() {
            let table = if entry.name == "mac-rewrite" {
                "source = \"02:00:00:00:00:aa\"".parse().unwrap()
            } else {
                toml::Table::new()
            };
            match in_kernel(entry.name, table, 0) {
                Ok(_) => assert!(NAMES.contains(&entry.name)),
                Err(e) => assert!(!NAMES.contains(&entry.name), "{}: {e}", entry.name),
            }
        }
        let error = in_kernel("nat", toml::Table::new(), 0).unwrap_err();
        assert!(error.0.contains("no function \"nat\""));
        let error = in_kernel("burn", "cycles = 100".parse().unwrap(), 0).unwrap_err();
        assert!(
            error
                .0
                .contains("\"burn\" cannot run in the kernel; these can: forward, ")
        );
    }
}
