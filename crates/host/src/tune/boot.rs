//! Settings that only the next boot can change: arguments for the kernel's command line, and the files for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Audit;

/// The arguments that are missing on the kernel's command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootLine {
    /// Arguments that the running kernel was not started with, in the order of the settings.
    pub arguments: Vec<String>,
}

/// For each boot loader: its name, how to add arguments to the kernel's command line, and the command to run
/// afterwards.
pub const LOADERS: [(&str, &str, &str); 2] = [
    (
        "GRUB",
        "append it to GRUB_CMDLINE_LINUX=\"...\" in /etc/default/grub",
        "update-grub   (Fedora, RHEL: grub2-mkconfig -o /boot/grub2/grub.cfg), then reboot",
    ),
    (
        "systemd-boot",
        "append it to the line `options` in /boot/loader/entries/*.conf, and to /etc/kernel/cmdline for later kernels",
        "reboot",
    ),
];

impl BootLine {
    /// Returns the arguments that the audit's findings require.
    #[must_use]
    pub fn of(audit: &Audit) -> Self {
        let mut arguments: Vec<String> = Vec::new();
        for argument in audit.findings.iter().flat_map(|f| &f.change_at_boot) {
            if !arguments.contains(argument) {
                arguments.push(argument.clone());
            }
        }
        Self { arguments }
    }

    /// Returns the arguments in one line, and instructions on how to add them for each boot loader.
    #[must_use]
    pub fn text(&self) -> String {
        if self.arguments.is_empty() {
            return "nothing to add to the kernel's command line".to_owned();
        }
        let places = LOADERS.map(|(name, file, then)| format!("{name}: {file}; then: {then}"));
        format!("{}\n\n{}", self.arguments.join(" "), places.join("\n"))
    }
}
