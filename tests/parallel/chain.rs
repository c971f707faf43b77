//! `taut chain`: chains over threads, processes and namespaces carry the packets of unmodified programs, continue after
//! one of their processes dies, and leave nothing behind.

use crate::support::hosts::{Namespace, ip};
use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone_and_root, scratch, taut};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Two hosts with addresses, and a folder for the file of a chain that connects them.
struct TwoHosts {
    name: String,
    west: Namespace,
    east: Namespace,
    folder: TempDir,
}

const FUNCTIONS: &str = "[[function]]\nname = \"forward\"\n\
    [[function]]\nname = \"xor\"\nkey = 7\nplace = \"user\"\n\
    [[function]]\nname = \"xor\"\nkey = 7\nplace = \"user\"\n";

impl TwoHosts {
    fn new(what: &str) -> Self {
        let name = format!("t{}-{what}", std::process::id());
        let host = |side: &str| {
            let namespace = Namespace(format!("{name}-{side}"));
            ip(&format!("netns add {}", namespace.0));
            namespace
        };
        Self {
            west: host("w"),
            east: host("e"),
            folder: scratch(),
            name,
        }
    }

    fn file(&self, head: &str, functions: &str) -> PathBuf {
        let path = self.folder.path().join("chain.toml");
        let text = format!(
            "name = \"{}\"\n{head}\nports = [\n\"veth:eth0,netns={},address=10.9.0.1/24\",\n\
             \"veth:eth0,netns={},address=10.9.0.2/24\"]\n{functions}",
            self.name, self.west.0, self.east.0
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts the chain between the two hosts and waits until it is up.
    fn up(&self, head: &str, functions: &str) -> Program {
        let file = self.file(head, functions);
        let mut up = Program::start(taut(&["chain", "up", "--json"]).arg(&file));
        up.wait_for_stdout("\"event\":\"up\"");
        up
    }

    fn status(&self) -> serde_json::Value {
        let finished = run(&mut taut(&["chain", "status", &self.name, "--json"])).success();
        let all: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        all[0].clone()
    }

    fn run_folder(&self) -> PathBuf {
        Path::new("/run/taut/chains").join(&self.name)
    }
}

/// Runs `action` on a thread in the network namespace.
fn inside<T: Send>(namespace: &str, action: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            let file = fs::File::open(Path::new("/run/netns").join(namespace)).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
                .unwrap();
            action()
        });
        entered.join().unwrap()
    })
}

/// Opens a datagram socket of a host, at port 7.
fn socket(namespace: &str, address: &str) -> UdpSocket {
    inside(namespace, || {
        let socket = UdpSocket::bind((address, 7)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        socket
    })
}

/// Sends `count` numbered datagrams in each direction, each until it has arrived, and checks that they arrive intact.
fn exchange(stage: &TwoHosts, count: u32) {
    let west = socket(&stage.west.0, "10.9.0.1");
    let east = socket(&stage.east.0, "10.9.0.2");
    let deadline = Instant::now() + PATIENCE;
    for (from, to, address) in [(&west, &east, "10.9.0.2:7"), (&east, &west, "10.9.0.1:7")] {
        for number in 0..count {
            // A stall of the machine, or ARP at the start, may lose a datagram, which is then sent again.
            loop {
                let payload = [&number.to_be_bytes()[..], &[0xa5; 96]].concat();
                from.send_to(&payload, address).unwrap();
                let mut got = [0; 200];
                match to.recv(&mut got) {
                    Ok(bytes) if got[..4] == number.to_be_bytes() => {
                        assert_eq!(&got[..bytes], &payload, "what arrives is what was sent");
                        break;
                    }
                    // A late packet of the previous round is skipped.
                    Ok(_) => {}
                    Err(_) => assert!(Instant::now() < deadline, "{address}: {number} lost"),
                }
            }
        }
    }
}

/// Waits until `is` returns true; fails with a message about `what` otherwise.
#[track_caller]
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "never came to: {what}");
        sleep(Duration::from_millis(20));
    }
}

fn exists(pid: u64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn pids(status: &serde_json::Value) -> Vec<u64> {
    let segments = status["segments"].as_array().unwrap();
    segments
        .iter()
        .map(|s| s["pid"].as_u64().unwrap())
        .collect()
}

/// Returns the name, the functions and the process number of each segment of the chain.
fn made_of(status: &serde_json::Value) -> Vec<[&serde_json::Value; 3]> {
    let segments = status["segments"].as_array().unwrap().iter();
    segments
        .map(|s| ["name", "functions", "pid"].map(|key| &s[key]))
        .collect()
}

fn no_panic(finished: &Finished) {
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

fn interface_of(namespace: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(["-n", namespace, "link", "show", "eth0"]);
    run(&mut command).code() == Some(0)
}

/// Returns the names of namespaces and links that contain this process number.
fn left_of(pid: u32) -> Vec<String> {
    let names = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    let mut left = names("/run/netns");
    left.retain(|name| name.starts_with(&format!("taut-{pid}-")));
    let mut links = names("/sys/class/net");
    links.retain(|name| name.starts_with(&format!("taut{pid}-")));
    left.extend(links);
    left
}

#[test]
fn every_placement_forwards_datagrams_and_cleans_up() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for (placement, segments) in [
        ("compact", 1),
        ("threads", 3),
        ("processes", 3),
        ("namespaces", 3),
    ] {
        let stage = TwoHosts::new(placement);
        let up = stage.up(&format!("placement = \"{placement}\""), FUNCTIONS);
        exchange(&stage, 50);
        let status = stage.status();
        assert_eq!(status["placement"], placement);
        assert_eq!(
            status["segments"].as_array().unwrap().len(),
            segments,
            "{status}"
        );
        let pids = pids(&status);
        assert!(pids.iter().all(|pid| exists(*pid)), "{status}");
        let supervisor = up.id();
        let finished = up.interrupt().success();
        no_panic(&finished);
        let last = finished.last_json();
        assert_eq!(last["event"], "down");
        for segment in last["status"]["segments"].as_array().unwrap() {
            let count = |name: &str| segment["counters"][name].as_u64().unwrap();
            assert!(count("rx_packets") >= 100, "{placement}: {last}");
            assert!(count("tx_packets") >= 100, "{placement}: {last}");
            assert_eq!(segment["restarts"], 0, "{placement}: {last}");
        }
        assert!(
            !pids.iter().any(|pid| exists(*pid)),
            "{placement}: {status}"
        );
        assert!(!interface_of(&stage.west.0), "{placement}");
        assert!(!stage.run_folder().exists(), "{placement}");
        assert_eq!(left_of(supervisor), Vec::<String>::new(), "{placement}");
    }
}

#[test]
fn a_deleted_link_of_a_chain_is_reported_as_down() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for placement in ["compact", "namespaces"] {
        let stage = TwoHosts::new(placement);
        let up = stage.up(&format!("placement = \"{placement}\""), FUNCTIONS);
        exchange(&stage, 2);
        assert_eq!(
            stage.status()["segments"][0]["links_down"],
            serde_json::json!({})
        );
        let [namespace, interface] = [&stage.west.0, "eth0"];
        let mut cut = Command::new("ip");
        run(cut.args(["-n", namespace, "link", "del", interface])).success();
        wait_until("the cut is seen", || {
            let status = stage.status();
            let down = status["segments"][0]["links_down"].as_object();
            down.is_some_and(|down| down.len() == 1)
        });
        let shown = run(&mut taut(&["chain", "status", &stage.name])).success();
        assert!(shown.stdout.contains(" down: "), "{shown:?}");
        no_panic(&up.interrupt().success());
    }
}

#[test]
fn a_killed_segment_restarts_while_its_neighbours_continue() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for placement in ["processes", "namespaces"] {
        let stage = TwoHosts::new(placement);
        let up = stage.up(&format!("placement = \"{placement}\""), FUNCTIONS);
        exchange(&stage, 5);
        let before = pids(&stage.status());
        for victim in [1, 0, 2] {
            let pid = Pid::from_raw(pids(&stage.status())[victim] as i32).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            wait_until("started again", || {
                let status = stage.status();
                let segment = &status["segments"][victim];
                segment["restarts"].as_u64().unwrap() > 0 && segment["condition"] == "up"
            });
            exchange(&stage, 5);
        }
        let after = pids(&stage.status());
        assert!(
            before.iter().zip(&after).all(|(b, a)| b != a),
            "{before:?} {after:?}"
        );
        let status = stage.status();
        for segment in status["segments"].as_array().unwrap() {
            assert_eq!(segment["restarts"], 1, "{placement}: {status}");
            assert_eq!(segment["last_words"], "ended by signal 9");
        }
        no_panic(&up.interrupt().success());
    }
}

/// A guard that sets a stop flag when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends numbered datagrams from west to east at a steady rate while `action` runs. Returns the number of sent
/// datagrams, and the number of those that arrived, each once and in order.
fn under_traffic(stage: &TwoHosts, action: impl FnOnce()) -> (u64, u64) {
    const GAP: Duration = Duration::from_micros(500);
    /// Time without arrivals after which outstanding datagrams count as lost.
    const SILENCE: Duration = Duration::from_secs(1);
    exchange(stage, 1);
    let west = socket(&stage.west.0, "10.9.0.1");
    let east = socket(&stage.east.0, "10.9.0.2");
    let stop = AtomicBool::new(false);
    // The number of datagrams; it is known once all are sent.
    let all = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                west.send_to(&sent.to_be_bytes(), "10.9.0.2:7").unwrap();
                sent += 1;
                sleep(GAP);
            }
            all.store(sent, Ordering::Relaxed);
            sent
        });
        let receiver = scope.spawn(|| {
            let (mut came, mut next) = (0, 0);
            let mut got = [0; 8];
            let mut last = Instant::now();
            loop {
                if east.recv(&mut got).is_ok() {
                    let number = u64::from_be_bytes(got);
                    assert!(number >= next, "{number} came after {next}");
                    next = number + 1;
                    came += 1;
                    last = Instant::now();
                    continue;
                }
                // Nothing has arrived for a moment, so the last datagram has arrived before or is lost.
                let has_last = next == all.load(Ordering::Relaxed);
                if has_last || stop.load(Ordering::Relaxed) && last.elapsed() > SILENCE {
                    return came;
                }
            }
        });
        {
            // The threads must also end if the action fails.
            let _stops = Stops(&stop);
            action();
        }
        (sender.join().unwrap(), receiver.join().unwrap())
    })
}

#[test]
fn functions_are_exchanged_under_traffic_and_no_packet_is_lost() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let first = |function: &str| format!("[[function]]\n{function}\nplace = \"user\"\n{FUNCTIONS}");
    let burn = |cycles: u32| first(&format!("name = \"burn\"\ncycles = {cycles}"));
    for placement in ["compact", "threads", "processes", "namespaces"] {
        let head = format!("placement = \"{placement}\"");
        let stage = TwoHosts::new(placement);
        let up = stage.up(&head, &burn(1));
        // A stall of the machine may fill a socket's buffer.
        undisturbed(|| {
            let before = pids(&stage.status());
            let (sent, came) = under_traffic(&stage, || {
                for round in 0..6 {
                    let functions = match round % 3 {
                        0 => burn(20 + round),
                        1 => first("name = \"forward\""),
                        _ => burn(1),
                    };
                    let file = stage.file(&head, &functions);
                    run(taut(&["chain", "update"]).arg(&file)).success();
                    sleep(Duration::from_millis(50));
                }
            });
            assert_eq!(pids(&stage.status()), before, "nothing is started anew");
            if sent == came {
                Ok(())
            } else {
                Err(format!("{placement}: {came} of {sent} came"))
            }
        });
        let file = stage.file(&head, &first("name = \"forward\""));
        run(taut(&["chain", "update"]).arg(&file)).success();
        let status = stage.status();
        assert_eq!(status["segments"][0]["functions"][0], "forward", "{status}");
        // Invalid changes are refused in one line, and nothing changes.
        let refused = |head: &str, functions: &str, part: &str| {
            let finished = run(taut(&["chain", "update"]).arg(stage.file(head, functions)));
            assert_eq!(finished.code(), Some(2), "{finished:?}");
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
            assert!(finished.stderr.contains(part), "{part}: {finished:?}");
            assert_eq!(made_of(&stage.status()), made_of(&status));
        };
        refused(
            &format!("{head}\nburst = 7"),
            &burn(1),
            "its burst differs from that of the running chain",
        );
        let more = burn(1) + "[[function]]\nname = \"forward\"\n";
        if placement != "compact" {
            refused(&head, FUNCTIONS, "3 segments instead of 4");
            refused(&head, &more, "5 segments instead of 4");
        } else {
            for functions in [FUNCTIONS, more.as_str()] {
                let file = stage.file(&head, functions);
                run(taut(&["chain", "update"]).arg(&file)).success();
            }
        }
        exchange(&stage, 2);
        no_panic(&up.interrupt().success());
    }
}

#[test]
fn kernel_functions_are_replaced_under_traffic_without_loss() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let found = taut_port::backends().iter().find(|b| b.name == "af_xdp");
    if let Some(Err(why)) = found.map(|backend| (backend.probe)()) {
        println!("skipped: needs XDP: {why}");
        return;
    }
    let filter = |port: u32| {
        format!(
            "[[function]]\nname = \"filter\"\ndefault = \"accept\"\n\
             rules = [{{ action = \"drop\", protocol = \"udp\", destination_port = {port} }}]\n"
        )
    };
    let forward = "[[function]]\nname = \"forward\"\n";
    // Each list applies its key twice, which restores a packet. A packet that met the old and the new key once each
    // would arrive with another number.
    let two_keys = |key: u32| format!("[[function]]\nname = \"xor\"\nkey = {key}\n").repeat(2);
    for (head, first, others) in [
        (
            "placement = \"namespaces\"",
            filter(9) + forward,
            [forward.repeat(2), filter(10) + forward],
        ),
        (
            "place = \"kernel\"",
            two_keys(7),
            [two_keys(200), filter(9) + &two_keys(3)],
        ),
    ] {
        let stage = TwoHosts::new("kernel");
        let up = stage.up(head, &first);
        let before = pids(&stage.status());
        let mut last = 0;
        // A stall of the machine may fill a socket's buffer.
        undisturbed(|| {
            let (sent, came) = under_traffic(&stage, || {
                for round in 0..6 {
                    let functions = [&others[0], &others[1], &first][round % 3];
                    let finished =
                        run(taut(&["chain", "update"]).arg(stage.file(head, functions))).success();
                    assert!(finished.stdout.contains("kernel"), "{finished:?}");
                    sleep(Duration::from_millis(50));
                }
            });
            last += sent;
            if sent == came {
                Ok(())
            } else {
                Err(format!("{head}: {came} of {sent} came"))
            }
        });
        assert_eq!(pids(&stage.status()), before, "nothing is started anew");
        // The new functions take effect.
        let functions = match head.starts_with("place ") {
            true => filter(7) + &two_keys(3),
            false => filter(7) + forward,
        };
        run(taut(&["chain", "update"]).arg(stage.file(head, &functions))).success();
        let status = stage.status();
        assert_eq!(status["segments"][0]["functions"][0], "filter", "{status}");
        let west = socket(&stage.west.0, "10.9.0.1");
        let east = socket(&stage.east.0, "10.9.0.2");
        west.send_to(b"to nobody", "10.9.0.2:7").unwrap();
        assert!(east.recv(&mut [0; 9]).is_err(), "port 7 is dropped now");
        // Invalid changes are refused in one line, and nothing changes.
        let refused = |head: &str, functions: &str, part: &str| {
            let finished = run(taut(&["chain", "update"]).arg(stage.file(head, functions)));
            assert_eq!(finished.code(), Some(2), "{finished:?}");
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
            assert!(finished.stderr.contains(part), "{part}: {finished:?}");
            assert_eq!(made_of(&stage.status()), made_of(&status));
        };
        if head.starts_with("place ") {
            let burn = "[[function]]\nname = \"burn\"\ncycles = 1\n";
            refused(head, burn, "cannot run in the kernel");
            let gateway = "[[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\n";
            refused(head, gateway, "in the kernel it cannot be replaced");
            refused(
                "",
                forward,
                "its place differs from that of the running chain",
            );
        } else {
            for (functions, part) in [
                (filter(7), "1 segment instead of 2"),
                (filter(7) + &forward.repeat(2), "3 segments instead of 2"),
            ] {
                refused(head, &functions, part);
            }
            let moved = filter(7) + "[[function]]\nname = \"forward\"\nplace = \"user\"\n";
            refused(head, &moved, "from user space to the kernel or back");
        }
        drop((west, east));
        let down = up.interrupt().success();
        no_panic(&down);
        let down = down.last_json();
        for segment in down["status"]["segments"].as_array().unwrap() {
            let came = segment["counters"]["rx_packets"].as_u64().unwrap();
            assert!(came >= last, "counts go on: {came} of {last}: {down}");
        }
    }
}

#[test]
fn packets_lost_while_a_segment_is_down_are_counted() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    const DEATHS: u64 = 4;
    let stage = TwoHosts::new("lost");
    let up = stage.up("placement = \"processes\"", FUNCTIONS);
    let (sent, came) = under_traffic(&stage, || {
        for deaths in 1..=DEATHS {
            let pid = Pid::from_raw(pids(&stage.status())[1] as i32).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            wait_until("started again", || {
                let segment = &stage.status()["segments"][1];
                segment["restarts"].as_u64().unwrap() >= deaths && segment["condition"] == "up"
            });
            // The cables are connected again, and packets pass.
            sleep(Duration::from_millis(500));
        }
    });
    let missing = (sent - came) as f64;
    let status = stage.status();
    let counted = status["segments"][1]["lost_while_down"].as_u64().unwrap() as f64;
    assert!(
        missing > 1000.0,
        "it was down for 1.5 s and more: {missing}"
    );
    // The counts are approximate: counters are published ten times a second, and packets in the dead process are not
    // counted. After the reconnection, packets meet a full ring while the new process waits for its core. The preceding
    // segment counts those as its own drops.
    let full = &status["segments"][0]["counters"]["dropped_tx_full"];
    let full = full.as_u64().unwrap() as f64;
    assert!(
        counted > 1000.0 && counted / missing < 1.5 && (counted + full) / missing > 0.5,
        "{counted} and {full} of {missing}: {status}"
    );
    assert_eq!(status["segments"][0]["lost_while_down"], 0, "{status}");
    no_panic(&up.interrupt().success());
}

#[test]
fn killing_a_supervisor_ends_all_processes_of_its_chain() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for placement in ["processes", "namespaces", "compact"] {
        let stage = TwoHosts::new(placement);
        let up = stage.up(&format!("placement = \"{placement}\""), FUNCTIONS);
        let pids = pids(&stage.status());
        let supervisor = up.id();
        up.kill();
        wait_until("its processes are gone", || {
            !pids.iter().any(|pid| exists(*pid))
        });
        let finished = run(&mut taut(&["chain", "status", &stage.name]));
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        if placement != "compact" {
            let finished = run(&mut taut(&["chain", "down", &stage.name])).success();
            assert!(finished.stdout.contains("cleaned up"), "{finished:?}");
            assert!(!stage.run_folder().exists());
            assert_eq!(left_of(supervisor), Vec::<String>::new());
            assert!(!interface_of(&stage.west.0), "{placement}");
        }
        // Starting the chain again removes the remains of the killed supervisor.
        let up = stage.up(&format!("placement = \"{placement}\""), FUNCTIONS);
        assert_eq!(left_of(supervisor), Vec::<String>::new());
        exchange(&stage, 2);
        no_panic(&up.interrupt().success());
    }
}

#[test]
fn a_detached_chain_runs_until_chain_down_stops_it() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let stage = TwoHosts::new("detached");
    let file = stage.file("placement = \"processes\"", FUNCTIONS);
    let up = run(taut(&["chain", "up", "--detach"]).arg(&file)).success();
    assert!(up.stdout.contains("3 segments"), "{up:?}");
    exchange(&stage, 5);
    let again = run(taut(&["chain", "up", "--detach"]).arg(&file));
    assert_eq!(again.code(), Some(2), "{again:?}");
    assert_eq!(again.stderr.lines().count(), 1, "{again:?}");
    assert!(again.stderr.contains("is up already"), "{again:?}");
    let supervisor = stage.status()["supervisor"].as_u64().unwrap();
    let down = run(&mut taut(&["chain", "down", &stage.name])).success();
    assert!(down.stdout.contains("2-xor"), "{down:?}");
    assert!(!stage.run_folder().exists());
    wait_until("the supervisor is gone", || !exists(supervisor));
    assert!(!interface_of(&stage.east.0));
    let down = run(&mut taut(&["chain", "down", &stage.name]));
    assert_eq!(down.code(), Some(2), "{down:?}");
}

#[test]
fn the_log_of_a_killed_detached_supervisor_remains_readable() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let stage = TwoHosts::new("log");
    let log = stage.run_folder().join("supervisor.log");
    let file = stage.file("placement = \"processes\"", FUNCTIONS);
    for is_killed in [true, false] {
        run(taut(&["chain", "up", "--detach"]).arg(&file)).success();
        let status = stage.status();
        let supervisor = status["supervisor"].as_u64().unwrap();
        let victim = if is_killed {
            supervisor
        } else {
            // A segment that cannot be restarted ends the chain.
            let of_segment = stage.run_folder().join("2-xor.log");
            fs::remove_file(&of_segment).unwrap();
            fs::create_dir(&of_segment).unwrap();
            pids(&status)[1]
        };
        kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL).unwrap();
        wait_until("the supervisor is gone", || !exists(supervisor));
        for command in ["status", "down"] {
            let asked = run(&mut taut(&["chain", command, &stage.name]));
            if command == "down" {
                assert!(asked.success().stdout.contains("cleaned up"));
                continue;
            }
            assert_eq!(asked.code(), Some(2), "{asked:?}");
            assert_eq!(asked.stderr.lines().count(), 1, "{asked:?}");
            let want = format!("has died (log: {})", log.display());
            assert!(asked.stderr.contains(&want), "{asked:?}");
            let said = fs::read_to_string(&log).unwrap();
            assert_eq!(said.contains("cannot write"), !is_killed, "{said}");
        }
        assert!(!stage.run_folder().exists());
        assert!(!interface_of(&stage.west.0));
    }
}

#[test]
fn invalid_chains_cause_one_line_errors_and_create_no_interfaces() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let stage = TwoHosts::new("wrong");
    let refused = |head: &str, functions: &str, part: &str| {
        let file = stage.file(head, functions);
        let up = Program::start(taut(&["chain", "up"]).arg(&file));
        let supervisor = up.id();
        let finished = up.finish();
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
        assert!(!stage.run_folder().exists());
        assert_eq!(left_of(supervisor), Vec::<String>::new());
        assert!(!interface_of(&stage.west.0));
    };
    let spread = "placement = \"namespaces\"";
    refused(
        spread,
        "[[function]]\nname = \"xro\"\n",
        "did you mean `xor`?",
    );
    refused(
        spread,
        "[[function]]\nname = \"burn\"\ncycles = 1\nplace = \"kernel\"\n",
        "cannot run in the kernel",
    );
    refused(
        "placement = \"processes\"\ncore = 1000",
        FUNCTIONS,
        "core 1000 is not among those",
    );
    // Only the process of a segment can notice that an interface does not exist.
    let file = stage.file(spread, FUNCTIONS);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&stage.east.0, "taut-no-such")).unwrap();
    let finished = run(taut(&["chain", "up"]).arg(&file));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(
        finished.stderr.contains("ip netns add taut-no-such"),
        "{finished:?}"
    );
    let finished = run(taut(&["forward"]).arg(stage.file(spread, FUNCTIONS)));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(finished.stderr.contains("taut chain up"), "{finished:?}");
}

/// Writes a capture of numbered frames, and returns the frames.
fn capture(path: &Path, count: u32) -> Vec<Vec<u8>> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut frames = Vec::new();
    for number in 0..count {
        let mut frame = vec![0x5a; 60 + number as usize % 900];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame);
        frames.push(frame);
    }
    fs::write(path, file).unwrap();
    frames
}

/// Returns the frames of a capture that taut has written.
fn captured(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap();
    let (mut at, mut frames) = (24, Vec::new());
    while let Some(len) = file.get(at + 8..at + 12) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        frames.push(file[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// Runs a chain with `placement` from a capture file of `count` frames to another file, until the chain ends by itself.
/// With `backwards`, the frames pass from the second port to the first. Checks that each segment receives what the
/// previous one has sent, or that the previous one counts the difference as dropped.
fn read_to_the_end(placement: &str, count: u32, backwards: bool) {
    // The middle function is slower than the file's reader, so many packets are in flight when the file ends.
    let functions = "[[function]]\nname = \"forward\"\n\
        [[function]]\nname = \"burn\"\ncycles = 50000\n\
        [[function]]\nname = \"forward\"\n";
    let folder = scratch();
    let [from, to] = ["from.pcap", "to.pcap"].map(|name| folder.path().join(name));
    let frames = capture(&from, count);
    let mut ports = [
        format!("pcap:{}", from.display()),
        format!("pcap:{},role=write", to.display()),
    ];
    if backwards {
        ports.reverse();
    }
    let name = format!("t{}-file", std::process::id());
    let file = folder.path().join("chain.toml");
    let head = format!("name = \"{name}\"\nplacement = \"{placement}\"\nports = {ports:?}\n");
    fs::write(&file, head + functions).unwrap();
    let up = Program::start(taut(&["chain", "up", "--json", "--quiet"]).arg(&file));
    let supervisor = up.id();
    let finished = up.finish().success();
    no_panic(&finished);
    assert_eq!(finished.stderr, "", "{placement}");
    assert!(!Path::new("/run/taut/chains").join(&name).exists());
    assert_eq!(left_of(supervisor), Vec::<String>::new(), "{placement}");
    let down = finished.last_json();
    assert_eq!(down["event"], "down");
    let mut way: Vec<_> = down["status"]["segments"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    for segment in &way {
        assert_eq!(segment["condition"], "ended", "{down}");
        assert_eq!(segment["restarts"], 0, "{down}");
    }
    if backwards {
        way.reverse();
    }
    let counted =
        |segment: &serde_json::Value, name: &str| segment["counters"][name].as_u64().unwrap();
    assert_eq!(counted(way[0], "tx_packets"), u64::from(count), "{down}");
    let came = captured(&to);
    let last = way[way.len() - 1];
    assert_eq!(came.len() as u64, counted(last, "tx_packets"), "{down}");
    let mut read = frames.iter();
    assert!(came.iter().all(|frame| read.any(|one| one == frame)));
    for pair in way.windows(2) {
        // The ring between two segments may have been full, and packets dropped there are counted.
        let sent = counted(pair[0], "tx_packets");
        let got = counted(pair[1], "rx_packets") + counted(pair[1], "dropped_rx_overrun");
        assert_eq!(got, sent, "{placement}: {down}");
    }
}

#[test]
fn a_chain_ends_after_forwarding_all_packets_of_its_file() {
    let root = alone_and_root();
    let _turn = root.is_none().then(crate::support::alone);
    for backwards in [false, true] {
        for placement in ["compact", "threads", "processes"] {
            read_to_the_end(placement, 3000, backwards);
        }
        if root.is_some() {
            // The links between namespaces have space for only 200 packets.
            read_to_the_end("namespaces", 200, backwards);
        }
    }
}
