//! A second Ctrl-C ends a program that ignores the first, with the status of an interrupt.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taut_host::stop_flag;

const AS_CHILD: &str = "TAUT_TEST_HEEDS_NOTHING";

/// Runs as the program under test: this test program, started with an environment variable set. Prints a line when the
/// stop flag is set, and continues to run.
fn stubborn_child() -> ! {
    let flag = stop_flag().unwrap();
    eprintln!("ready");
    while !flag.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    eprintln!("flag set");
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

fn start() -> (Child, impl FnMut(&str)) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "a_second_signal_ends_a_program_that_ignores_the_first",
        ])
        .env(AS_CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let wait_for = move |expected: &str| {
        assert!(
            lines.any(|line| line.unwrap() == expected),
            "the child never said `{expected}`"
        );
    };
    (child, wait_for)
}

#[test]
fn a_second_signal_ends_a_program_that_ignores_the_first() {
    if std::env::var_os(AS_CHILD).is_some() {
        stubborn_child();
    }
    std::thread::scope(|scope| {
        for first in [Signal::INT, Signal::TERM, Signal::HUP] {
            scope.spawn(move || ends_at_the_second(first));
        }
    });
}

/// Checks that a program which ignores the signal `first` ends at a SIGINT that follows more than 300 ms later, but not
/// at one that follows immediately.
fn ends_at_the_second(first: Signal) {
    let (mut child, mut wait_for) = start();
    let pid = Pid::from_child(&child);
    wait_for("ready");
    kill_process(pid, first).unwrap();
    wait_for("flag set");
    // Two signals in immediate succession count as one stop.
    kill_process(pid, Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(child.try_wait().unwrap(), None, "{first:?}");
    kill_process(pid, Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        (status.code(), status.signal()),
        (Some(130), None),
        "{first:?}"
    );
}
