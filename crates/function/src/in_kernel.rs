//! The functions that the kernel can do as well, as XDP programs: those that only look at addresses, and the gateway.

use crate::mac_rewrite::MacRewrite;
use crate::{SettingsError, build, forward, gtpu, mac_rewrite, mac_swap, settings};
use taut_port::xdp_forward::HeaderChange;
use taut_port::xdp_gateway::GatewaySettings;

/// Those that have a version in the kernel.
const NAMES: [&str; 4] = [
    forward::ENTRY.name,
    gtpu::ENTRY.name,
    mac_swap::ENTRY.name,
    mac_rewrite::ENTRY.name,
];

/// What the function of that name does to the addresses of frames that leave through port number `port`.
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
    } else if name == gtpu::ENTRY.name {
        gtpu::gateway_settings(table).map(|_| HeaderChange::NONE)
    } else {
        Err(SettingsError(format!(
            "function \"{name}\" cannot run in the kernel; these can: {}",
            NAMES.join(", ")
        )))
    }
}

/// What programs of a gateway need to know of the function of that name; none where it is no gateway.
///
/// # Errors
/// When its settings are wrong, or cannot be in the kernel.
pub fn kernel_gateway(
    name: &str,
    table: toml::Table,
) -> Result<Option<GatewaySettings>, SettingsError> {
    (name == gtpu::ENTRY.name)
        .then(|| gtpu::gateway_settings(table))
        .transpose()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::functions;

    #[test]
    fn every_function_either_runs_in_the_kernel_or_is_named_as_one_that_does_not() {
        for entry in functions() {
            let settings = match entry.name {
                "mac-rewrite" => "source = \"02:00:00:00:00:aa\"",
                "gtpu" => "address = \"192.0.2.1\"",
                _ => "",
            };
            let table = settings.parse().unwrap();
            match in_kernel(entry.name, table, 0) {
                Ok(_) => assert!(NAMES.contains(&entry.name)),
                Err(e) => assert!(!NAMES.contains(&entry.name), "{}: {e}", entry.name),
            }
        }
        let error = in_kernel("nat", toml::Table::new(), 0).unwrap_err();
        assert!(error.0.contains("no function \"nat\""));
        let linear = "address = \"192.0.2.1\"\nmatching = \"linear\"".parse();
        let error = in_kernel("gtpu", linear.unwrap(), 0).unwrap_err();
        assert!(error.0.contains("hash only"), "{error}");
        let error = in_kernel("burn", "cycles = 100".parse().unwrap(), 0).unwrap_err();
        assert!(
            error
                .0
                .contains("\"burn\" cannot run in the kernel; these can: forward, ")
        );
    }
}
