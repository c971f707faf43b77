//! Network namespaces of this process: created, entered, and removed, also when their process is dead.

use super::TestbedError;
use crate::command::{CommandError, run, run_lines};
use crate::permissions::can_make_namespaces;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// The folder in which iproute2 stores the names of namespaces.
pub(super) const NAMESPACE_FOLDER: &str = "/run/netns";

/// The role of a namespace, which is the last word of its name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    Generator,
    Device,
    Node,
}

impl Role {
    const ALL: [Self; 3] = [Self::Generator, Self::Device, Self::Node];

    fn word(self) -> &'static str {
        match self {
            Self::Generator => "gen",
            Self::Device => "dut",
            Self::Node => "node",
        }
    }
}

/// A network namespace of this process. Dropping this value removes the namespace. Namespaces left by `kill -9` are
/// removed when a process creates its next namespace, and by [`sweep_stale`].
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Creates a namespace with its loopback interface up.
    ///
    /// # Errors
    /// [`TestbedError`]; no new namespace then remains.
    pub fn fresh() -> Result<Self, TestbedError> {
        let namespace = Self::for_role(Role::Node)?;
        run("ip", &["-n", &namespace.0, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Creates a namespace with all interfaces down.
    pub(super) fn for_role(role: Role) -> Result<Self, TestbedError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        can_make_namespaces()?;
        sweep_stale()?;
        // A dead process with the number of this process may have left namespaces. Their names look like names of this
        // process, so no sweep removes them.
        let taken = namespace_names();
        let name = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("taut-{}-{number}-{}", std::process::id(), role.word());
            if !taken.contains(&name) {
                break name;
            }
        };
        run("ip", &["netns", "add", &name])?;
        Ok(Self(name))
    }

    /// Returns the name of the namespace, as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Moves the calling thread into the namespace until the guard is dropped. Threads and sockets that the thread
    /// creates during this time belong to the namespace, and stay in it.
    ///
    /// # Errors
    /// [`TestbedError::NotEntered`].
    pub fn enter(&self) -> Result<NamespaceGuard, TestbedError> {
        NamespaceGuard::enter(&self.0)
    }

    /// Returns a command that runs `program` in the namespace. The started process becomes the program, so that its
    /// process number is that of the program.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }

    /// Runs lines of shell in the namespace.
    pub(super) fn run(&self, lines: &[String]) -> Result<String, CommandError> {
        run_lines(Some(&self.0), lines)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The error cannot be reported here; the next sweep removes the remains.
        let _ = remove(&self.0);
    }
}

/// Keeps the calling thread in another network namespace; dropping it returns the thread to the previous namespace.
///
/// The guard belongs to its thread and cannot be sent to another thread.
#[derive(Debug)]
pub struct NamespaceGuard {
    origin: File,
    of_this_thread: PhantomData<*const ()>,
}

impl NamespaceGuard {
    fn enter(namespace: &str) -> Result<Self, TestbedError> {
        let enter = || {
            let origin = File::open("/proc/thread-self/ns/net")?;
            set_namespace(&File::open(Path::new(NAMESPACE_FOLDER).join(namespace))?)?;
            Ok(Self {
                origin,
                of_this_thread: PhantomData,
            })
        };
        enter().map_err(|source| TestbedError::NotEntered {
            namespace: namespace.to_owned(),
            source,
        })
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        let back = set_namespace(&self.origin);
        // To continue in the wrong namespace would set up and remove the wrong network.
        assert!(
            back.is_ok() || thread::panicking(),
            "cannot leave a network namespace: {back:?}"
        );
    }
}

/// Returns true if there is a namespace of that name.
#[must_use]
pub fn namespace_exists(name: &str) -> bool {
    namespace_names().contains(name)
}

/// Removes the namespaces of dead processes, as after `kill -9`, and returns their names. Namespaces of running
/// processes remain, and no process is ended.
///
/// A process counts as alive if it is in this process's `/proc`. Containers with separate process numbers must
/// therefore not share `/run/netns`.
///
/// # Errors
/// [`TestbedError::Command`] if a stale namespace cannot be removed.
pub fn sweep_stale() -> Result<Vec<String>, TestbedError> {
    let stale: Vec<String> = namespace_names()
        .into_iter()
        .filter(|name| owner_of(name).is_some_and(|owner| !is_running(owner)))
        .collect();
    for name in &stale {
        if let Err(error) = remove(name)
            // Another process may have swept at the same time.
            && namespace_exists(name)
        {
            return Err(error.into());
        }
    }
    Ok(stale)
}

fn set_namespace(namespace: &File) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Removes a namespace and the links that end in it. The kernel would remove the links later, and not before the last
/// process in the namespace has exited.
fn remove(name: &str) -> Result<(), CommandError> {
    let wires = run("ip", &["-n", name, "-o", "link", "show", "type", "veth"]).unwrap_or_default();
    for wire in wires.lines().filter_map(interface_in) {
        // An error is ignored: if both ends of a link are in this namespace, the link was deleted with its first end.
        let _ = run("ip", &["-n", name, "link", "del", "dev", wire]);
    }
    run("ip", &["netns", "del", name])?;
    Ok(())
}

/// Returns the interface's name in a line of `ip -o link`: `west` in `3: west@if4: <BROADCAST...`.
fn interface_in(line: &str) -> Option<&str> {
    line.split(": ").nth(1)?.split('@').next()
}

fn namespace_names() -> BTreeSet<String> {
    fs::read_dir(NAMESPACE_FOLDER)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Returns the process number in a namespace name of the form `taut-<process>-<count>-<role>`; `None` for other names.
fn owner_of(name: &str) -> Option<u32> {
    let words: Vec<&str> = name.split('-').collect();
    let ["taut", process, count, role] = words[..] else {
        return None;
    };
    Role::ALL.iter().find(|it| it.word() == role)?;
    count.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Returns true if a process runs; a zombie (state Z) does not.
pub(crate) fn is_running(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn only_namespaces_of_taut_have_an_owner_process() {
        assert_eq!(owner_of("taut-17-0-gen"), Some(17));
        assert_eq!(owner_of("taut-17-3-dut"), Some(17));
        assert_eq!(owner_of("taut-17-3-node"), Some(17));
        for name in [
            "taut",
            "taut-17",
            "taut-17-0",
            "taut-17-0-other",
            "taut-x-0-gen",
            "taut-17-x-gen",
            "my-taut-17-0-gen",
            "taut-17-0-gen-2",
        ] {
            assert_eq!(owner_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_is_not_running() {
        assert!(is_running(std::process::id()));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(is_running(child.id()));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_running(child.id()) {
            assert!(Instant::now() < deadline, "still counted as running");
            thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
