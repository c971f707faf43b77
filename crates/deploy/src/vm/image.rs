//! The initial file system of a virtual machine. It contains this program and its libraries, the kernel's modules, the
//! chain file, and the files and variables that its functions name.

use super::archive::Archive;
use super::kernel::Module;
use super::libraries::{libraries, read};
use super::ports;
use crate::{DeployError, function_files};
use std::path::Path;
use taut_engine::Stage;

/// Path of the program inside a virtual machine.
pub(super) const PROGRAM: &str = "/taut";
pub(super) const MODULES: &str = "/modules";
pub(super) const CHAIN: &str = "/etc/taut/chain.toml";
/// Path of the file with the arguments of `taut forward`, one per line.
pub(super) const ARGUMENTS: &str = "/etc/taut/arguments";
/// Path of the file with variables as `NAME=VALUE`, one per line.
pub(super) const ENVIRONMENT: &str = "/etc/taut/environment";
/// Path of the file with the PCI addresses of the NICs for DPDK, one per line.
pub(super) const DEVICES: &str = "/etc/taut/devices";

/// Contents of a virtual machine.
pub(super) struct Contents<'a> {
    /// Path on the host of the executable of taut.
    pub(super) program: &'a Path,
    /// Modules in load order.
    pub(super) modules: &'a [Module],
    /// The chain file's text.
    pub(super) chain: &'a str,
    /// The chain's functions, whose files and variables are copied.
    pub(super) functions: &'a [Stage],
    /// Arguments of `taut forward`, after the chain file.
    pub(super) arguments: &'a [String],
    /// PCI addresses of the NICs for DPDK.
    pub(super) devices: &'a [String],
}

impl Contents<'_> {
    /// Makes the archive with the files of the virtual machine.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn image(&self) -> Result<Vec<u8>, DeployError> {
        let mut archive = Archive::default();
        for folder in ["proc", "sys", "dev", "run", "tmp", "var", "var/run"] {
            archive.folder(folder);
        }
        archive.file(Path::new(PROGRAM), 0o755, &read(self.program)?);
        for library in libraries(self.program)? {
            archive.file(&library, 0o755, &read(&library)?);
        }
        if !self.devices.is_empty() {
            ports::add_dpdk(&mut archive)?;
        }
        for (number, module) in self.modules.iter().enumerate() {
            // Modules are loaded in the order of their file names.
            let name = format!("{MODULES}/{number:02}-{}.ko", module.name);
            archive.file(Path::new(&name), 0o644, &module.content);
        }
        for path in function_files::files(self.functions) {
            archive.file(&path, 0o600, &read(&path)?);
        }
        let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect();
        let arguments: String = lines(self.arguments);
        let devices: String = lines(self.devices);
        let environment: String = lines(&with_values(function_files::variables(self.functions)));
        for (path, text) in [
            (CHAIN, self.chain),
            (ARGUMENTS, &arguments),
            (ENVIRONMENT, &environment),
            (DEVICES, &devices),
        ] {
            archive.file(Path::new(path), 0o600, text.as_bytes());
        }
        Ok(archive.finish())
    }
}

/// Returns `NAME=VALUE` for each of the environment variables in `names` that is set.
fn with_values(names: Vec<String>) -> Vec<String> {
    let with_value = |name: String| {
        let value = std::env::var(&name).ok()?;
        Some(format!("{name}={value}"))
    };
    names.into_iter().filter_map(with_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variables_without_a_value_are_omitted() {
        let found = with_values(vec!["PATH".to_string(), "TAUT_NO_SUCH".to_string()]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("PATH=/"), "{found:?}");
    }
}
