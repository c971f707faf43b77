//! Testbeds of real namespaces: frames cross, nothing is left behind, and others' testbeds stay unchanged.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};
use taut_host::{DeviceProcess, Steering, Testbed, choose_cores, permissions};

/// The tests compare the machine before and after, so only one runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone_and_root() -> Option<MutexGuard<'static, ()>> {
    if !permissions::is_root() {
        println!("skipped: needs root (network namespaces)");
        return None;
    }
    Some(
        ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()),
    )
}

fn namespaces() -> BTreeSet<String> {
    fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Returns the interfaces with a testbed's names in the namespace of the tests, where none should be.
fn links() -> BTreeSet<String> {
    fs::read_dir("/sys/class/net")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ["gen0", "gen1", "dut0", "dut1", "br0"].contains(&name.as_str()))
        .collect()
}

fn ours() -> BTreeSet<String> {
    let mine = format!("taut-{}-", std::process::id());
    namespaces()
        .into_iter()
        .filter(|name| name.starts_with(&mine))
        .collect()
}

fn in_device(testbed: &Testbed, line: &str) -> String {
    let output = testbed
        .command_in_device("sh")
        .args(["-c", line])
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Sends `count` datagrams out of gen0 to the address of gen1, and returns how many arrived at gen1.
fn cross(testbed: &Testbed, count: usize) -> usize {
    const PAYLOAD: &[u8] = b"taut testbed frame";
    let namespace = testbed.generator_namespace();
    ip(&format!(
        "-n {namespace} addr replace 192.0.2.1/24 dev gen0"
    ));
    ip(&format!(
        "-n {namespace} neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 nud permanent dev gen0"
    ));
    let guard = testbed.enter_generator().unwrap();
    // The socket is bound to a protocol and to no interface, so it receives frames of every interface, and none that
    // are sent.
    let ipv4 = Protocol::from_raw(u32::from(0x0800_u16.to_be()).try_into().unwrap());
    let incoming = socket(AddressFamily::PACKET, SocketType::RAW, Some(ipv4)).unwrap();
    let outgoing = UdpSocket::bind("192.0.2.1:0").unwrap();
    drop(guard);
    let mut received = 0;
    for _ in 0..count {
        outgoing.send_to(PAYLOAD, "192.0.2.2:9").unwrap();
        let mut waiting = [PollFd::new(&incoming, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        if poll(&mut waiting, Some(&patience)).unwrap() == 0 {
            break;
        }
        let mut frame = [0_u8; 2048];
        let (_, length) = recv(&incoming, &mut frame[..], RecvFlags::empty()).unwrap();
        assert_eq!(frame[..6], [2, 0, 0, 0, 0, 2]);
        assert!(
            frame[..length]
                .windows(PAYLOAD.len())
                .any(|part| part == PAYLOAD)
        );
        received += 1;
    }
    received
}

/// Returns the NET_RX soft interrupts by CPU.
fn receive_softirqs() -> BTreeMap<usize, u64> {
    let table = fs::read_to_string("/proc/softirqs").unwrap();
    let line = table.lines().find(|line| line.contains("NET_RX:")).unwrap();
    line.split_whitespace()
        .skip(1)
        .map(|count| count.parse().unwrap())
        .enumerate()
        .collect()
}

#[test]
fn frames_cross_the_bridge_and_teardown_removes_every_link() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let links_before = links();
    let testbed = Testbed::builder().bridge(true).build().unwrap();
    assert_eq!(ours().len(), 2);
    assert_eq!(cross(&testbed, 10), 10);
    // Known addresses are not flooded: no frame returned to its ingress port or to the bridge.
    let up = in_device(&testbed, "cat /sys/class/net/br0/statistics/rx_packets");
    assert_eq!(up.trim(), "0");
    drop(testbed);
    assert_eq!(ours(), BTreeSet::new());
    assert_eq!(links(), links_before);
}

#[test]
fn interfaces_without_a_device_receive_nothing_and_have_offloads_disabled() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    for interface in ["dut0", "dut1"] {
        let count = format!("cat /sys/class/net/{interface}/statistics/rx_packets");
        assert_eq!(in_device(&testbed, &count).trim(), "0", "{interface}");
        let features = in_device(&testbed, &format!("ethtool -k {interface}"));
        for feature in [
            "generic-receive-offload",
            "generic-segmentation-offload",
            "tcp-segmentation-offload",
            "tx-checksumming",
            "rx-checksumming",
        ] {
            assert!(
                features.contains(&format!("{feature}: off")),
                "{interface} {feature}: {features}"
            );
        }
    }
}

/// Returns the number of the kernel's NAPI threads with real-time priority.
fn realtime_kernel_threads() -> usize {
    let processes = fs::read_dir("/proc").unwrap();
    let stats = processes.filter_map(|p| fs::read_to_string(p.ok()?.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let (name, fields) = stat.rsplit_once(')').unwrap();
            // The field is number 41 of the line; the fields after the name start with the third.
            name.contains("(napi/dut") && fields.split_whitespace().nth(38) == Some("1")
        })
        .count()
}

#[test]
fn receive_processing_moves_to_the_devices_cpu() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let cores = choose_cores();
    if cores.is_shared() {
        println!("skipped: needs two CPUs");
        return;
    }
    let frames = 200;
    for steering in [
        Steering::PacketSteering { cpu: cores.device },
        Steering::KernelThread { cpu: cores.device },
    ] {
        let testbed = Testbed::builder()
            .bridge(true)
            .steering(steering)
            .build()
            .unwrap();
        if matches!(steering, Steering::KernelThread { .. }) {
            assert!(realtime_kernel_threads() >= 2, "one for each interface");
        }
        let before = receive_softirqs();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                taut_host::pin_current_thread(cores.generator).unwrap();
                assert_eq!(cross(&testbed, frames), frames);
            });
        });
        // Each frame raises one soft interrupt on the device's CPU, because the CPU that forwards also serves gen1's
        // end. Soft interrupts that other programs raise at the same time are merged, so not all are required.
        let on_device = receive_softirqs()[&cores.device] - before[&cores.device];
        assert!(on_device >= frames as u64 / 2, "{steering:?}: {on_device}");
    }
}

#[test]
fn a_device_process_runs_in_its_namespace_with_its_pid() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = testbed.command_in_device("sh");
    command.args(["-c", "echo $$ $(ls /sys/class/net); exec sleep 1000"]);
    let cpu = choose_cores().device;
    let mut device = DeviceProcess::start("device", command, cpu, folder.path()).unwrap();
    let line = device
        .wait_for_line(|_| true, Duration::from_secs(60))
        .unwrap();
    assert_eq!(line, format!("{} dut0 dut1 lo", device.id()));
    device.check().unwrap();
    // The device gets SIGINT, or SIGTERM if a shell started the tests in the background, where SIGINT is ignored.
    assert!(matches!(device.stop().unwrap().signal(), Some(2 | 15)));
}

#[test]
fn the_guard_returns_to_the_previous_network_namespace() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let here = || fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = here();
    let testbed = Testbed::builder().build().unwrap();
    let generator = testbed.enter_generator().unwrap();
    let in_generator = here();
    let device = testbed.enter_device().unwrap();
    assert!(![&before, &in_generator].contains(&&here()));
    drop(device);
    assert_eq!(here(), in_generator);
    drop(generator);
    assert_eq!(here(), before);
}

#[test]
fn two_testbeds_can_exist_at_the_same_time() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let first = Testbed::builder().bridge(true).build().unwrap();
    let second = Testbed::builder().bridge(true).build().unwrap();
    assert_eq!(ours().len(), 4);
    drop(first);
    assert_eq!(cross(&second, 1), 1);
}

#[test]
fn only_namespaces_of_exited_processes_are_removed() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let mut dead = Command::new("true").spawn().unwrap();
    let mut living = Command::new("sleep")
        .arg("1000")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    dead.wait().unwrap();
    let stale = format!("taut-{}-0-gen", dead.id());
    let others = [
        format!("taut-{}-0-dut", living.id()),
        format!("taut-{}-0-mine", dead.id()),
    ];
    for name in others.iter().chain([&stale]) {
        ip(&format!("netns add {name}"));
    }
    let swept = taut_host::net::sweep_stale();
    let after = namespaces();
    for name in others.iter().filter(|name| after.contains(*name)) {
        ip(&format!("netns del {name}"));
    }
    living.kill().unwrap();
    living.wait().unwrap();
    // The namespaces are removed here, or by another program that builds a testbed at this moment.
    swept.unwrap();
    assert!(!after.contains(&stale));
    assert!(others.iter().all(|name| after.contains(name)), "{after:?}");
}

#[test]
fn a_new_testbed_removes_the_testbed_of_a_killed_process() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    // This test is also the program that is killed: with this variable set, it builds a testbed and waits.
    if std::env::var_os("TAUT_TEST_BUILD_AND_WAIT").is_some() {
        let _testbed = Testbed::builder().bridge(true).build().unwrap();
        std::thread::sleep(Duration::from_secs(1000));
        return;
    }
    let mut killed = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_new_testbed_removes_the_testbed_of_a_killed_process",
        ])
        .env("TAUT_TEST_BUILD_AND_WAIT", "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let prefix = format!("taut-{}-", killed.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_device = |name: &String| name.starts_with(&prefix) && name.ends_with("-dut");
    while !namespaces().iter().any(is_device) {
        assert!(Instant::now() < deadline, "the child built nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // A process that was starting when it was killed may add its namespace a moment later.
    while namespaces().iter().any(|it| it.starts_with(&prefix)) {
        assert!(Instant::now() < deadline, "still there");
        drop(Testbed::builder().build().unwrap());
    }
    assert_eq!(ours(), BTreeSet::new());
}
