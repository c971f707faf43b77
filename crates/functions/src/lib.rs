//! The catalog of all network functions of taut ([`FUNCTIONS`]), and the code of the small functions.
//!
//! A new function needs a file like `forward.rs` or `mac_swap.rs`, with its tests at the bottom, and a line in
//! [`FUNCTIONS`]. Large functions are crates: `taut-gateway`, `taut-ips`, `taut-router`, `taut-switch`.
//!
//! A chain file names functions; [`build`] finds the [`Entry`](taut_function::Entry) of each function and makes the
//! function from its settings. Begin with `mac_swap.rs`, then `filter.rs`; `nat/` is larger. `plugin.rs` and `lua.rs`
//! are for functions that are not part of taut.

#![forbid(unsafe_code)]

pub mod aes;
mod ats;
mod balance;
pub mod burn;
mod filter;
mod forward;
mod impair;
#[cfg(test)]
mod in_kernel;
#[cfg(test)]
mod lose;
#[cfg(feature = "large")]
mod lua;
mod mac_rewrite;
mod mac_swap;
mod medium;
mod nat;
#[cfg(feature = "large")]
mod plugin;
#[cfg(feature = "large")]
pub mod record;
mod resequence;
pub mod rlnc;
mod walk;
mod xor;

use taut_function::{Catalog, Function, SettingsError};

/// The name of the count of packets that were dropped because a Lua script failed.
pub const SCRIPT_FAILED: &str = "dropped: the script failed";

/// The functions of taut, in the order of their names.
pub static FUNCTIONS: Catalog = Catalog(&[
    aes::ENTRY,
    ats::ENTRY,
    balance::ENTRY,
    burn::ENTRY,
    filter::ENTRY,
    forward::ENTRY,
    #[cfg(feature = "large")]
    taut_gateway::ENTRY,
    #[cfg(feature = "large")]
    taut_router::host::ENTRY,
    impair::ENTRY,
    #[cfg(feature = "large")]
    taut_ips::ENTRY,
    #[cfg(feature = "large")]
    lua::ENTRY,
    mac_rewrite::ENTRY,
    mac_swap::ENTRY,
    medium::ENTRY,
    nat::ENTRY,
    #[cfg(feature = "large")]
    plugin::ENTRY,
    #[cfg(feature = "large")]
    record::ENTRY,
    resequence::ENTRY,
    rlnc::ENTRY,
    #[cfg(feature = "large")]
    taut_router::ENTRY,
    #[cfg(feature = "large")]
    taut_switch::ENTRY,
    walk::ENTRY,
    xor::ENTRY,
]);

/// Returns the function called `name` in [`FUNCTIONS`], made from the settings in `table`.
///
/// # Errors
/// Fails as [`Catalog::build`] does.
pub fn build(name: &str, table: toml::Table) -> Result<Box<dyn Function>, SettingsError> {
    FUNCTIONS.build(name, table)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;
    use taut_function::Context;
    use taut_port::Batch;

    #[test]
    fn the_contributing_page_contains_the_tested_example_function() {
        let (page, file) = (
            include_str!("../../../CONTRIBUTING.md"),
            include_str!("lose.rs"),
        );
        assert!(page.contains(&format!("```rust\n{file}```")));
    }

    #[test]
    fn errors_name_unknown_functions_and_unknown_settings() {
        let message =
            |r: Result<Box<dyn Function>, SettingsError>| r.err().map(|e| e.0).unwrap_or_default();
        assert!(
            message(build("snort", toml::Table::new()))
                .contains("there are aes, ats, balance, burn, filter, ")
        );
        assert!(message(build("xro", toml::Table::new())).contains("did you mean `xor`?"));
        assert!(!message(build("日本", toml::Table::new())).contains("did you mean"));
        assert!(!message(build("zzzz", toml::Table::new())).contains("did you mean"));
        let table = toml::Table::from_iter([("speed".to_string(), toml::Value::Integer(9))]);
        assert!(message(build("forward", table)).contains("speed"));
    }

    #[test]
    fn every_function_accepts_exactly_its_documented_settings() {
        for entry in FUNCTIONS.0.iter().chain([&lose::ENTRY]) {
            let keys = entry.settings.iter().flat_map(|it| it.0.split(", "));
            let described: BTreeSet<&str> = keys.collect();
            let table = toml::Table::from_iter([("no-key".to_string(), true.into())]);
            let SettingsError(error) = (entry.build)(table).err().unwrap();
            assert!(error.contains("`no-key`"), "{}: {error}", entry.name);
            let named = error.split('`').skip(3).step_by(2);
            let mut accepted: BTreeSet<&str> = named.collect();
            if entry.name == "medium" {
                // The error does not list the key `file`, which replaces all other keys.
                accepted.insert("file");
            }
            assert_eq!(described, accepted, "{}: {error}", entry.name);
        }
    }

    #[test]
    fn packets_dropped_by_an_earlier_function_are_unchanged_and_uncounted() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "0123456789abcdef".repeat(2)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let aes = |port| format!("encrypt = [{port}]\nkey_file = \"{}\"", key.display());
        for (name, settings) in [
            ("aes", aes(0)),
            ("aes", aes(1)),
            ("ats", String::new()),
            (
                "balance",
                "port = 1\nhops = [\"02:00:00:00:00:01\"]".to_string(),
            ),
            ("filter", "default = \"drop\"\nrules = []".to_string()),
            ("resequence", "number = [1]".to_string()),
            ("rlnc", "encode = [1]".to_string()),
            ("xor", "key = 90".to_string()),
        ] {
            let mut function = build(name, settings.parse().unwrap()).unwrap();
            function.prepare().unwrap();
            let frame = taut_wire::UdpFlow::default().frame(100).unwrap();
            let pool = taut_port::PoolHandle::new(4, false).unwrap();
            let mut batch = Batch::new();
            pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packets_mut()[0].bytes_mut().copy_from_slice(&frame);
            batch.mark_dropped(0);
            let context = Context {
                to_port: 1,
                ..Context::default()
            };
            function.process(&mut batch, &context);
            assert_eq!(batch.packets()[0].bytes(), frame, "{name}");
            let counted: u64 = function.outcomes().iter().map(|outcome| outcome.1).sum();
            assert_eq!(counted, 0, "{name}: {:?}", function.outcomes());
        }
    }
}
