//! A switch with rules from other programs: Open vSwitch's `ovs-ofctl`, and a controller that sends raw bytes.

use crate::support::drivers::ofctl;
use crate::support::hosts::{Hosts, Namespace, ping, pinged};
use crate::support::program::{Program, run};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Starts a switch between hosts, which have the addresses 10.9.0.1, 10.9.0.2, ..., with the given settings of the
/// function.
fn switch(hosts: &Hosts, settings: &str) -> Program {
    let ports = hosts.all.iter().zip(1..);
    let ports =
        ports.map(|(host, at)| format!("veth:eth0,netns={},address=10.9.0.{at}/24", host.0));
    let ports: Vec<_> = ports.collect();
    let chain = format!(
        "wait = \"sleep(50us)\"\nports = {ports:?}\n[[function]]\nname = \"switch\"\n{settings}\n"
    );
    hosts.up("openflow.toml", &chain)
}

/// Reports whether the second host replies to the first one's echo requests.
fn answers(host: &Namespace) -> bool {
    let words = ["-c", "2", "-i", "0.1", "-W", "1", "10.9.0.2"];
    pinged(host, &words).code() == Some(0)
}

#[test]
fn ovs_ofctl_changes_flow_entries_and_reads_counters_and_errors() {
    let needs = [
        ("ping", "iputils-ping"),
        ("ovs-ofctl", "openvswitch-common"),
    ];
    let Some(hosts) = Hosts::new(3, &needs) else {
        return;
    };
    let address = "127.0.0.1:16653";
    let up = switch(&hosts, &format!("openflow = \"{address}\""));
    let ctl = |words: &[&str]| run(&mut ofctl(address, words));
    // There are no rules: nothing passes.
    assert!(!answers(&hosts.all[0]));
    for rule in [
        "priority=5,in_port=1,ip,nw_dst=10.9.0.2,cookie=7,actions=output:2",
        "priority=5,in_port=2,ip,actions=dec_ttl,output:1",
        "priority=4,arp,actions=flood",
    ] {
        ctl(&["add-flow", rule]).success();
    }
    ping(&hosts.all[0], "10.9.0.2", 3, &["-i", "0.05"], 3);
    let flows = ctl(&["dump-flows", "cookie=7/-1"]).success().stdout;
    // The packets that waited for the MAC address of the second host have arrived by then.
    let counted = |name: &str| -> usize {
        let (_, behind) = flows.split_once(name).unwrap();
        behind.split(',').next().unwrap().parse().unwrap()
    };
    let (packets, bytes) = (counted("n_packets="), counted("n_bytes="));
    assert!(
        (3..=5).contains(&packets) && bytes == 98 * packets,
        "{flows}"
    );
    assert!(
        flows.contains("priority=5,ip,in_port=1,nw_dst=10.9.0.2"),
        "{flows}"
    );
    assert!(!flows.contains("arp"), "{flows}");
    // The packets go through a group, and a meter that drops large ones.
    ctl(&[
        "add-group",
        "group_id=1,type=ff,bucket=watch_port:2,actions=output:2",
    ])
    .success();
    ctl(&["mod-flows", "cookie=7/-1,actions=group:1"]).success();
    assert!(answers(&hosts.all[0]));
    ctl(&[
        "add-meter",
        "meter=1,pktps,burst,bands=type=drop,rate=1,burst_size=1",
    ])
    .success();
    ctl(&["mod-flows", "cookie=7/-1,actions=meter:1,group:1"]).success();
    let burst = ["-c", "10", "-i", "0.01", "-W", "1", "10.9.0.2"];
    assert!(
        pinged(&hosts.all[0], &burst)
            .stdout
            .contains(" packet loss")
    );
    let meter = ctl(&["meter-stats", "meter=1"]).success().stdout;
    assert!(meter.contains("packet_in_count:10"), "{meter}");
    assert!(!meter.contains("0: packet_count:0 "), "{meter}");
    // Deleting the group deletes the rule that refers to it.
    ctl(&["del-groups"]).success();
    assert!(!answers(&hosts.all[0]));
    let flows = ctl(&["dump-flows"]).success().stdout;
    assert!(!flows.contains("cookie=0x7"), "{flows}");
    for (rule, want) in [
        ("actions=output:9", "OFPBAC_BAD_OUT_PORT"),
        ("ip,actions=output:1,dec_ttl", "OFPBAC_UNSUPPORTED_ORDER"),
        ("actions=group:77", "OFPBAC_BAD_OUT_GROUP"),
        ("actions=meter:77,output:1", "OFPMMFC_UNKNOWN_METER"),
    ] {
        let told = ctl(&["add-flow", rule]);
        assert!(
            told.stderr.contains(want) || told.stdout.contains(want),
            "{rule}: {told:?}"
        );
    }
    ctl(&["add-flow", "hard_timeout=1,actions=drop"]).success();
    ctl(&["del-flows", "arp"]).success();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while ctl(&["dump-flows"])
        .success()
        .stdout
        .contains("hard_timeout")
    {
        assert!(std::time::Instant::now() < deadline, "the rule stays");
    }
    // A client with invalid messages is disconnected, and no other one is affected.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stranger
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut heard = Vec::new();
    stranger.read_to_end(&mut heard).ok();
    let features = ctl(&["show"]).success().stdout;
    assert!(
        features.contains("n_tables:64") && features.contains("3(port2)"),
        "{features}"
    );
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// Runs a controller that sends every packet-in through all ports except the packet's ingress port.
fn hub(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let say = |stream: &mut TcpStream, kind: u8, body: &[u8]| {
        let mut message = vec![4, kind];
        message.extend((8 + body.len() as u16).to_be_bytes());
        message.extend([0, 0, 0, 1]);
        message.extend(body);
        stream.write_all(&message)
    };
    say(&mut stream, 0, &[]).unwrap();
    let mut head = [0; 8];
    while stream.read_exact(&mut head).is_ok() {
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]])) - 8];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        if head[1] == 2 && say(&mut stream, 3, &body).is_err() {
            return;
        }
        if head[1] != 10 {
            continue;
        }
        // The frame follows the match, which contains the ingress port.
        let (port, frame) = (&body[24..28], &body[34..]);
        let flood = [0, 0, 0, 16, 0xff, 0xff, 0xff, 0xfb, 0, 0, 0, 0, 0, 0, 0, 0];
        let out = [
            &[0xff; 4][..],
            port,
            &[0, 16, 0, 0, 0, 0, 0, 0],
            &flood,
            frame,
        ]
        .concat();
        if say(&mut stream, 13, &out).is_err() {
            return;
        }
    }
}

#[test]
fn a_controller_forwards_packets_and_may_reconnect() {
    let Some(hosts) = Hosts::new(2, &[("ping", "iputils-ping")]) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = format!("controller = \"{address}\"\nmiss = \"controller\"");
    let up = switch(&hosts, &settings);
    let controller = std::thread::spawn(move || {
        hub(&listener);
        listener
    });
    ping(&hosts.all[0], "10.9.0.2", 5, &["-i", "0.05"], 5);
    up.interrupt().success();
    // The next switch finds the controller at the same address.
    let listener = controller.join().unwrap();
    let up = switch(&hosts, &settings);
    let controller = std::thread::spawn(move || hub(&listener));
    ping(&hosts.all[0], "10.9.0.2", 3, &["-i", "0.05"], 3);
    up.interrupt().success();
    controller.join().unwrap();
}
