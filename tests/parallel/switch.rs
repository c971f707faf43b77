//! A switch between four hosts that know nothing of it.

use crate::support::hosts::{Hosts, Transport, ping, transfer};

#[test]
fn four_hosts_reach_each_other_and_hear_what_is_for_all() {
    let Some(hosts) = Hosts::new(4, &[("ping", "iputils-ping"), ("iperf3", "iperf3")]) else {
        return;
    };
    let ports = hosts.all.iter().zip(1..);
    let ports =
        ports.map(|(host, at)| format!("veth:eth0,netns={},address=10.8.0.{at}/24", host.0));
    let ports: Vec<_> = ports.collect();
    let up = hosts.up(
        "switch.toml",
        &format!("wait = \"sleep(50us)\"\nports = {ports:?}\n[[function]]\nname = \"switch\"\n"),
    );
    for (from, to) in [(0, 4), (1, 3), (2, 1), (3, 2)] {
        ping(
            &hosts.all[from],
            &format!("10.8.0.{to}"),
            5,
            &["-i", "0.02"],
            5,
        );
    }
    transfer(
        Transport::Tcp,
        (&hosts.all[3].0, 5201),
        &hosts.all[1].0,
        ("10.8.0.4", 5201),
    );
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}
