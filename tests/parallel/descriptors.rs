//! Servers without free file descriptors. They wait before they try to accept the next connection, instead of trying
//! all the time, and accept connections again once descriptors are free.

use crate::support::program::{PATIENCE, Program, run};
use crate::support::{scratch, taut};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of descriptors that a server may have open, which is less than its limit on connections.
const DESCRIPTORS: usize = 56;

/// Returns `taut` with a limit on its file descriptors.
fn limited(arguments: &[&str]) -> Command {
    let command = taut(arguments);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n \"$1\"; shift; exec \"$@\"", "sh"])
        .arg(DESCRIPTORS.to_string())
        .arg(command.get_program())
        .args(arguments);
    limited
}

/// Returns the processor time that a thread of the program has used, in hundredths of a second.
fn used(program: &Program, thread: &str) -> u64 {
    let mut tasks = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
    let task = tasks.find_map(|task| {
        let path = task.unwrap().path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        (name.trim() == thread).then_some(path)
    });
    let stat = fs::read_to_string(task.unwrap().join("stat")).unwrap();
    let (_, behind) = stat.rsplit_once(") ").unwrap();
    let field = |number: usize| {
        behind
            .split(' ')
            .nth(number)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    field(11) + field(12)
}

/// Opens more connections than the server has descriptors for, and checks that the server's thread then sleeps. Closes
/// the connections again.
fn exhaust(program: &Program, thread: &str, address: &str) {
    let peers: Vec<_> = (0..80)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", program.id()))
            .unwrap()
            .count()
    };
    let deadline = Instant::now() + PATIENCE;
    while descriptors() < DESCRIPTORS {
        assert!(Instant::now() < deadline, "{} descriptors", descriptors());
        sleep(Duration::from_millis(10));
    }
    let before = used(program, thread);
    sleep(Duration::from_secs(1));
    let used = used(program, thread) - before;
    assert!(used < 30, "{used} hundredths of a second");
    drop(peers);
}

#[test]
fn switches_out_of_file_descriptors_sleep_and_accept_controllers_later() {
    let folder = scratch();
    let address = "127.0.0.1:16657";
    let chain = folder.path().join("chain.toml");
    let text = format!(
        "wait = \"sleep(1ms)\"\nports = [\"memif:{}\"]\n[[function]]\nname = \"switch\"\nopenflow = \"{address}\"\n",
        folder.path().join("socket").display()
    );
    fs::write(&chain, text).unwrap();
    let mut program = Program::start(&mut limited(&["forward", &chain.display().to_string()]));
    // The switch listens before the forwarder has created its rings, which need descriptors too, so the test waits for
    // them.
    program.wait_for_stdout("forwarding");
    let deadline = Instant::now() + PATIENCE;
    let greets = || {
        let mut first = [0];
        let read = TcpStream::connect(address).and_then(|mut peer| {
            peer.set_read_timeout(Some(Duration::from_secs(1)))?;
            peer.read_exact(&mut first)
        });
        read.is_ok() && first == [4]
    };
    for _ in 0..2 {
        while !greets() {
            assert!(Instant::now() < deadline, "{}", program.stderr());
            sleep(Duration::from_millis(20));
        }
        exhaust(&program, "switch", address);
    }
    program.interrupt().success();
}

#[test]
fn probe_servers_out_of_file_descriptors_sleep_and_reply_later() {
    let arguments = [
        "probe",
        "server",
        "--bind",
        "127.0.0.1:0",
        "--transport",
        "tcp",
        "--json",
    ];
    let mut program = Program::start(&mut limited(&arguments));
    program.wait_for_stdout("started");
    let started: serde_json::Value =
        serde_json::from_str(program.stdout().lines().next().unwrap()).unwrap();
    let address = started["address"].as_str().unwrap().to_owned();
    exhaust(&program, "taut", &address);
    let words = [
        "probe",
        "client",
        &address,
        "--transport",
        "tcp",
        "--count",
        "5",
        "--repetitions",
        "1",
    ];
    run(&mut taut(&words)).success();
    program.interrupt().success();
}
