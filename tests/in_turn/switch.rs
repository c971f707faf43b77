//! A switch between four hosts that know nothing of it.

use crate::support::hosts::{Namespace, Transport, in_namespace, ip, transfer};
use crate::support::program::{Program, run};
use crate::support::{alone_and_root, is_installed, scratch, taut};
use std::fs;

#[test]
fn four_hosts_reach_each_other_and_hear_what_is_for_all() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("ping") || !is_installed("iperf3") {
        println!("skipped: needs ping and iperf3 (packages iputils-ping and iperf3)");
        return;
    }
    let folder = scratch();
    let name = folder.path().file_name().unwrap().to_string_lossy();
    let hosts: Vec<Namespace> = (1..=4)
        .map(|number| Namespace(format!("{name}-{number}")))
        .collect();
    let mut ports = Vec::new();
    for (host, number) in hosts.iter().zip(1..) {
        ip(&format!("netns add {}", host.0));
        ports.push(format!(
            "veth:eth0,netns={},address=10.8.0.{number}/24",
            host.0
        ));
    }
    let file = folder.path().join("switch.toml");
    let chain =
        format!("wait = \"sleep(50us)\"\nports = {ports:?}\n[[function]]\nname = \"switch\"\n");
    fs::write(&file, chain).unwrap();
    let mut up = Program::start(taut(&["chain", "up", "--json"]).arg(&file));
    up.wait_for_stdout("\"up\"");
    for (from, to) in [(0, 4), (1, 3), (2, 1), (3, 2)] {
        let to = format!("10.8.0.{to}");
        let mut command = in_namespace(&hosts[from].0, "ping");
        let finished = run(command.args(["-c", "5", "-i", "0.02", "-W", "10", &to]));
        assert!(finished.stdout.contains(" 5 received"), "{finished:?}");
    }
    transfer(
        Transport::Tcp,
        (&hosts[3].0, 5201),
        &hosts[1].0,
        ("10.8.0.4", 5201),
    );
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}
