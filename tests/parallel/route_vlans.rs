//! Routers that carry several networks with the same addresses over one link.

use crate::support::hosts::{Hosts, Transport, ip, ping, received, transfer};
use crate::support::program::Program;

/// Starts a router at one side of the link. The router has a port for each of two hosts, and the link with two VLANs,
/// one of which has its own routing table.
fn router(hosts: &Hosts, number: usize, role: &str) -> Program {
    let far = 3 - number;
    let veth = |host: usize| {
        format!(
            "\"veth:eth0,netns={},address=10.8.{number}.2/24\"",
            hosts.all[host].0
        )
    };
    let link = hosts.folder.path().join("link.sock");
    let link = format!("\"memif:{},role={role}\"", link.display());
    let routes = hosts.folder.path().join(format!("routes-{number}"));
    let text = format!(
        "10.8.{far}.0/24 via 10.8.100.{far} dev seven\n10.8.{far}.0/24 via 10.8.100.{far} dev eight table 100\n"
    );
    std::fs::write(&routes, text).unwrap();
    let interface = |name: &str, more: &str, address: &str| {
        format!(
            "[[function.interface]]\nname = \"{name}\"\n{more}\nmac = \"02:00:00:00:0{number}:01\"\naddresses = [\"{address}\"]\n"
        )
    };
    let own = format!("10.8.{number}.1/24");
    let shared = format!("10.8.100.{number}/24");
    let interfaces = [
        interface("main", "", &own),
        interface("blue", "table = 100", &own),
        interface("seven", "port = 2\nvlan = 7", &shared),
        interface("eight", "port = 2\nvlan = 8\ntable = 100", &shared),
    ];
    let first = 2 * (number - 1);
    hosts.up(
        &format!("router{number}.toml"),
        &format!(
            "wait = \"sleep(50us)\"\nports = [{}, {}, {link}]\n[[function]]\nname = \"route\"\nroutes = \"{}\"\n{}",
            veth(first),
            veth(first + 1),
            routes.display(),
            interfaces.concat()
        ),
    )
}

#[test]
fn vlans_separate_two_networks_of_equal_addresses_on_one_link() {
    let Some(hosts) = Hosts::new(4, &[("ping", "iputils-ping"), ("iperf3", "iperf3")]) else {
        return;
    };
    // Hosts 0 and 1 are at the first router, 2 and 3 at the second one; each pair has the same addresses.
    let routers = [router(&hosts, 1, "server"), router(&hosts, 2, "client")];
    for (number, host) in hosts.all.iter().enumerate() {
        let near = number / 2 + 1;
        ip(&format!(
            "-n {} route add default via 10.8.{near}.1",
            host.0
        ));
    }
    for network in [0, 1] {
        let [near, far] = [network, network + 2].map(|host| &hosts.all[host]);
        ping(near, "10.8.2.2", 5, &["-i", "0.1"], 5);
        ping(far, "10.8.1.2", 3, &["-i", "0.05"], 3);
        transfer(Transport::Tcp, (&far.0, 5201), &near.0, ("10.8.2.2", 5201));
    }
    // Packets of one network do not reach the other one.
    let seen = |host: usize| received(&hosts.all[host].0, "eth0");
    let before = seen(3);
    ping(&hosts.all[0], "10.8.2.2", 20, &["-i", "0.01"], 20);
    assert!(seen(3) - before < 20);
    for router in routers {
        router.interrupt().success();
    }
}
