//! Builds the example in C with its Makefile and runs both of its sides; also compiles the header as C++.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
// The import makes cargo build the libraries.
use taut_deadline as _;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A server process, which is killed if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the folder of the libraries.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

fn built(folder: &Path) -> PathBuf {
    let example = Path::new(HERE).join("../../examples/transport-c");
    for name in ["Makefile", "echo.c"] {
        std::fs::copy(example.join(name), folder.join(name)).unwrap();
    }
    let done = Command::new("make")
        .arg("-s")
        .arg(format!("INCLUDE={HERE}/include"))
        .arg(format!("LIBRARY={}", libraries().display()))
        .arg("CFLAGS=-Werror -std=c99 -pedantic")
        .current_dir(folder)
        .status();
    assert!(done.unwrap().success());
    folder.join("echo")
}

#[test]
fn the_c_client_gets_echoed_messages_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let echo = built(folder.path());
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let server = Command::new(&echo)
        .args(["server", &port])
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Server(server.unwrap());
    let mut said = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "listening");
    let client = Command::new(&echo)
        .args(["client", "127.0.0.1", &port, "300"])
        .output();
    let client = client.unwrap();
    let told = String::from_utf8_lossy(&client.stdout).into_owned();
    // Some messages may be late on a busy machine.
    let numbers: Vec<u64> = told
        .split(|sign: char| !sign.is_ascii_digit())
        .filter_map(|it| it.parse().ok())
        .collect();
    let [sent, in_time, back] = numbers[..] else {
        panic!("{client:?}");
    };
    assert!(sent == 300 && in_time > 0 && back > 0, "{told}");
    let echoed = said.next().unwrap().unwrap();
    assert!(echoed.starts_with("echoed "), "{echoed}");
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn invalid_c_example_arguments_cause_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let echo = built(folder.path());
    for (words, part) in [
        (&["client"][..], "expected: server PORT"),
        (&["client", "nowhere", "9", "1"], "no IPv4 address"),
    ] {
        let finished = Command::new(&echo).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&finished.stderr);
        assert_eq!(finished.status.code(), Some(2));
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn the_header_compiles_as_c_and_as_cpp() {
    for (compiler, language) in [("cc", "c"), ("clang", "c++")] {
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
        command.args(["-x", language, "include/taut_deadline.h"]);
        match command.current_dir(HERE).status() {
            Ok(done) => assert!(done.success(), "{compiler}"),
            Err(_) => println!("skipped: needs {compiler}"),
        }
    }
}
