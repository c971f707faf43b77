//! A process that reverts the settings when the process that changed them ends, however it ends.

use crate::exit::{self, Failure};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A child process that reverts the settings at the end of its standard input, which the kernel closes when this
/// process ends.
pub struct Guard(Child);

impl Guard {
    /// Starts the guard process in a separate process group, so that Ctrl-C at the terminal does not reach it.
    pub fn start() -> Result<Self, Failure> {
        let mut command = Command::new(exit::own_program()?);
        command
            .args(["tune", "revert", "--at-end-of-input"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let child = command.spawn();
        child.map(Self).map_err(|e| {
            Failure::Missing(format!(
                "cannot start the process that reverts the settings if this one is killed: {e}"
            ))
        })
    }

    /// Lets the guard process revert the settings that are still changed, and waits for its end.
    pub fn end(mut self) {
        drop(self.0.stdin.take());
        // Whatever it could not revert is in the journal, and `taut tune audit` shows it.
        let _ = self.0.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Waits for the end of the standard input. Ignores the signals that end a terminal's programs, so that only the
/// process at the other end of the pipe decides.
pub fn wait_for_end_of_input() -> Result<(), Failure> {
    exit::stop_flag()?;
    let mut input = std::io::stdin().lock();
    std::io::copy(&mut input, &mut std::io::sink())
        .map(|_| ())
        .map_err(|e| Failure::Missing(format!("standard input: {e}")))
}
