//! The parts shared by end-to-end tests: programs that always stop, and `dpdk-testpmd`, one at a time.

// Each test program uses only some of these items.
#![allow(dead_code, clippy::unwrap_used)]

pub mod between;
pub mod browser;
pub mod drivers;
pub mod evasion;
pub mod guest;
pub mod hosts;
pub mod in_kernel;
pub mod json_schema;
pub mod lab;
pub mod leftovers;
pub mod own_functions;
pub mod program;
pub mod refusals;
pub mod testpmd;
pub mod undisturbed;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;

/// Returns the lock that lets only one of these tests run at a time, as two busy programs fill a small machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the lock of a test that needs root, or prints why the test is skipped.
pub fn alone_and_root() -> Option<MutexGuard<'static, ()>> {
    is_root().then(alone)
}

/// Reports whether a test that needs root can run; else prints why it is skipped.
pub fn is_root() -> bool {
    let is = taut_host::permissions::is_root();
    if !is {
        println!("skipped: needs root (network namespaces)");
    }
    is
}

/// Reports whether `program` is on the search path.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Returns the output of a scapy script of tests/data; if scapy is missing, prints why the test is skipped and returns
/// `None`.
pub fn by_scapy(script: &str, arguments: &[&str]) -> Option<String> {
    let mut command = scapy(script)?;
    Some(program::run(command.args(arguments)).success().stdout)
}

/// Returns the command that runs a scapy script of tests/data; if scapy is missing, prints why the test is skipped and
/// returns `None`.
pub fn scapy(script: &str) -> Option<Command> {
    let Some(python) = python_with("scapy") else {
        println!("skipped: needs scapy (package python3-scapy)");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(script);
    let mut command = Command::new(python);
    command.arg(script);
    Some(command)
}

/// Returns a Python that has a module. It may be installed for another Python than the first one on the search path.
pub fn python_with(module: &str) -> Option<&'static str> {
    let has_module = |python: &&str| {
        let import = format!("import {module}");
        let finished = Command::new(python).args(["-c", &import]).output();
        finished.is_ok_and(|it| it.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has_module)
}

/// Decodes pairs of hexadecimal digits.
pub fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = (0..digits.len() / 2).map(|at| &digits[2 * at..2 * at + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// Returns the content of a JSON file.
pub fn json(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the names of the files in a folder.
pub fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Adds the Rust files below `folder` to `found`.
pub fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// Creates a temporary folder that is removed on drop.
pub fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("taut-test-")
        .tempdir()
        .unwrap()
}

/// The options with which a forwarder sleeps while no packets arrive, because other programs need its core.
pub const RESTING: [&str; 2] = ["--wait", "sleep(50us)"];

/// Builds the command of the program under test with `arguments`.
pub fn taut<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(arguments);
    command
}

/// Reports whether [`as_nobody`] can run taut; else prints why the test is skipped.
pub fn as_nobody_works() -> bool {
    let works = taut_host::permissions::is_root()
        && is_installed("setpriv")
        && program::run(&mut as_nobody(&["--version"])).code() == Some(0);
    if !works {
        println!(
            "skipped: needs root, setpriv (package util-linux) and a build folder that all may read"
        );
    }
    works
}

/// Builds the command of the program under test without any privilege.
pub fn as_nobody(arguments: &[&str]) -> Command {
    nobody(&[&[env!("CARGO_BIN_EXE_taut")][..], arguments].concat())
}

/// Builds the command of a program with arguments, without any privilege.
pub fn nobody(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
    ]);
    command.args(words);
    command
}

/// Two memif sockets in a folder of their own.
pub struct Sockets {
    folder: TempDir,
}

impl Sockets {
    pub fn new() -> Self {
        Self { folder: scratch() }
    }

    pub fn paths(&self) -> [PathBuf; 2] {
        ["west.sock", "east.sock"].map(|name| self.folder.path().join(name))
    }

    /// Returns the arguments `--port SPEC` for both sockets. Each port has the memif role `role`, and `options`
    /// (",key=value").
    pub fn ports(&self, role: &str, options: &str) -> Vec<String> {
        let spec = |path: PathBuf| format!("memif:{},role={role}{options}", path.display());
        self.paths()
            .into_iter()
            .flat_map(|path| ["--port".to_string(), spec(path)])
            .collect()
    }
}

/// Returns the role of the peer.
pub fn other(role: &str) -> &'static str {
    if role == "server" { "client" } else { "server" }
}

/// Reports whether a program in this network namespace listens on the socket. The socket's file exists a moment before
/// the program listens.
pub fn is_listened_on(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(3) == Some(ACCEPTS) && fields.nth(3).map(Path::new) == Some(socket)
    })
}
