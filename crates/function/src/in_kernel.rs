//! The functions that the kernel can do as well, as XDP programs.

use crate::balance::Balance;
use crate::filter::Filter;
use crate::mac_rewrite::MacRewrite;
use crate::{
    SettingsError, ats, balance, build, filter, forward, gtpu, mac_rewrite, mac_swap, nat,
    settings, xor,
};
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;
use taut_xdp::gateway::GatewaySettings;

/// Those that have a version in the kernel.
const NAMES: [&str; 9] = [
    ats::ENTRY.name,
    balance::ENTRY.name,
    filter::ENTRY.name,
    forward::ENTRY.name,
    gtpu::ENTRY.name,
    mac_rewrite::ENTRY.name,
    mac_swap::ENTRY.name,
    nat::ENTRY.name,
    xor::ENTRY.name,
];

/// What the function of that name does in the kernel to frames that leave through port number `port`; of a gateway
/// there is more to say ([`kernel_gateway`]).
///
/// # Errors
/// When there is none of that name, its settings are wrong, or it cannot run in the kernel.
pub fn in_kernel(
    name: &str,
    table: toml::Table,
    port: usize,
) -> Result<KernelFunction, SettingsError> {
    let is_one = crate::functions().iter().any(|entry| entry.name == name);
    if is_one && !NAMES.contains(&name) {
        return Err(SettingsError(format!(
            "function \"{name}\" cannot run in the kernel ({}); these can: {}",
            why_not(name),
            NAMES.join(", ")
        )));
    }
    // Says what is wrong with the name or the settings.
    build(name, table.clone())?;
    if name == mac_swap::ENTRY.name {
        Ok(KernelFunction::Headers(HeaderChange::SWAP))
    } else if name == forward::ENTRY.name {
        Ok(KernelFunction::Headers(HeaderChange::NONE))
    } else if name == mac_rewrite::ENTRY.name {
        let change = MacRewrite::new(settings(table)?)?.header_change(port);
        Ok(KernelFunction::Headers(change))
    } else if name == gtpu::ENTRY.name {
        gtpu::gateway_settings(table).map(|_| KernelFunction::Headers(HeaderChange::NONE))
    } else if name == xor::ENTRY.name {
        xor::in_kernel(table)
    } else if name == ats::ENTRY.name {
        ats::in_kernel(table)
    } else if name == filter::ENTRY.name {
        Filter::new(settings(table)?)?.in_kernel()
    } else if name == balance::ENTRY.name {
        Ok(Balance::new(settings(table)?)?.in_kernel(port))
    } else {
        nat::in_kernel(table, port)
    }
}

/// What keeps a function out of the kernel.
fn why_not(name: &str) -> &'static str {
    match name {
        "aes" => "XDP programs have no cipher whose keys they may use",
        "burn" | "walk" => "what it costs is meant for a core of its own",
        "impair" => "it keeps packets back, which an XDP program cannot",
        "rlnc" => "it keeps packets and makes new ones, which an XDP program cannot",
        _ => "it has no version there",
    }
}

/// What programs of a gateway need to know of the function of that name; none where it is no gateway. Where a
/// [`taut_xdp::gateway::KernelGateway`] is among what it shares ([`crate::Shared`]), it keeps what it decides by there as
/// well, and the programs pass most packets without it.
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
                "nat" => "outside = [1]\naddress = \"203.0.113.1\"",
                "xor" => "key = 1",
                "filter" => "default = \"drop\"",
                "balance" => "port = 0\nhops = [\"02:00:00:00:00:01\"]",
                _ => "",
            };
            let table = settings.parse().unwrap();
            match in_kernel(entry.name, table, 0) {
                Ok(_) => assert!(NAMES.contains(&entry.name)),
                Err(e) => assert!(!NAMES.contains(&entry.name), "{}: {e}", entry.name),
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
