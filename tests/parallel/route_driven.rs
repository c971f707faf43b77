//! Routers that use the kernel's routes, which unmodified routing daemons set.

use crate::support::drivers::{bird, birdc, networks};
use crate::support::hosts::{Hosts, Namespace, in_namespace, ip, ping, received};
use crate::support::program::{PATIENCE, Program, run};
use crate::support::taut;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const BIRD: (&str, &str) = ("bird", "bird2");
const FRR: &str = "/usr/lib/frr";

/// An address behind host b, announced by OSPF.
const BEHIND_B: &str = "10.99.0.1";

/// Reports whether the daemons of FRR are installed; else prints why the test is skipped.
fn has_frr() -> bool {
    let is_there = ["zebra", "ospfd", "bgpd"]
        .iter()
        .all(|daemon| Path::new(FRR).join(daemon).exists());
    if !is_there {
        println!("skipped: needs FRR (package frr)");
    }
    is_there
}

#[track_caller]
fn wait_until(what: &str, mut seen: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !seen() {
        assert!(begun.elapsed() < PATIENCE, "never came to {what}");
        sleep(Duration::from_millis(50));
    }
    begun.elapsed()
}

/// A router between host a and host b, and the namespace whose kernel has the router's routes.
struct Kernels<'a> {
    hosts: &'a Hosts,
    chain: Program,
    /// The folder of the daemons' files.
    folder: PathBuf,
    daemons: Vec<Program>,
}

impl<'a> Kernels<'a> {
    /// Uses host 0 as host a, host 1 as host b, and host 2 for the kernel's routes.
    fn new(hosts: &'a Hosts, ports: &str, interfaces: &str) -> Self {
        for host in &hosts.all {
            ip(&format!("-n {} link set lo up", host.0));
        }
        // FRR runs as another user, which has to write to the folder.
        let folder = hosts.folder.path().join("daemons");
        fs::create_dir(&folder).unwrap();
        for (folder, mode) in [(hosts.folder.path(), 0o755), (&folder, 0o777)] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
        let control = hosts.folder.path().join("control.sock");
        let chain = format!(
            "wait = \"sleep(50us)\"\nports = [{ports}]\n[[function]]\nname = \"route\"\nroutes = \"kernel\"\n\
             netns = \"{}\"\ncontrol = \"{}\"\n{interfaces}",
            hosts.all[2].0,
            control.display()
        );
        Self {
            chain: hosts.up("router.toml", &chain),
            hosts,
            folder,
            daemons: Vec::new(),
        }
    }

    /// Creates a router with an interface to each of the two hosts.
    fn between(hosts: &'a Hosts) -> Self {
        let ports = [("10.8.1.2/24", 0), ("10.8.2.2/24", 1)];
        let veth = |(address, host): (&str, usize)| veth(&hosts.all[host], "eth0", address);
        Self::new(hosts, &ports.map(veth).join(", "), INTERFACES)
    }

    fn host(&self, number: usize) -> &Namespace {
        &self.hosts.all[number]
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Starts BIRD on a host.
    fn bird(&mut self, host: usize, config: &str) {
        let daemon = bird(
            self.host(host),
            &self.folder,
            &format!("bird-{host}"),
            config,
        );
        self.daemons.push(daemon);
    }

    /// Starts daemons of FRR on a host, zebra first.
    fn frr(&mut self, host: usize, daemons: &[(&str, &str)]) {
        let zebra = self.path(&format!("zserv-{host}.sock"));
        for (name, config) in daemons {
            let [file, pid] = ["conf", "pid"].map(|end| self.path(&format!("{name}-{host}.{end}")));
            fs::write(&file, config).unwrap();
            let sockets = self.path(&format!("vty-{host}"));
            let _ = fs::create_dir(&sockets);
            fs::set_permissions(&sockets, fs::Permissions::from_mode(0o777)).unwrap();
            let mut command = in_namespace(&self.host(host).0, &format!("{FRR}/{name}"));
            command.args([
                "-f",
                &file,
                "-i",
                &pid,
                "-z",
                &zebra,
                "--vty_socket",
                &sockets,
                "-P",
                "0",
            ]);
            self.daemons.push(Program::start(&mut command));
            if *name == "zebra" {
                wait_until("zebra's socket", || Path::new(&zebra).exists());
            }
        }
    }

    fn route(&self, arguments: &[&str]) -> String {
        let control = self.hosts.folder.path().join("control.sock");
        let mut command = taut(&["route", "--control"]);
        run(command.arg(control).args(arguments)).stdout
    }

    fn status(&self, name: &str) -> u64 {
        let text = self.route(&["status", "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        answer["status"][name].as_u64().unwrap_or_default()
    }

    /// Reports whether `route` is the best route to the first address of its network. (A list of all routes would be
    /// long.)
    fn has(&self, route: &str) -> bool {
        let mut words = route.split(' ');
        let network = words.find_map(|word| word.split_once('/'));
        let (address, _) = network.unwrap();
        self.route(&["show", address]).lines().next() == Some(route)
    }

    /// Stops the daemons and the router, and checks that the chain ends without an error.
    fn end(self) {
        let ended = self.chain.interrupt().success();
        let left = run(in_namespace(&self.hosts.all[2].0, "ip").args(["link", "show"]));
        assert!(!left.stdout.contains("lan"), "{left:?} {ended:?}");
    }
}

fn veth(host: &Namespace, interface: &str, address: &str) -> String {
    format!("\"veth:{interface},netns={},address={address}\"", host.0)
}

const INTERFACES: &str = "[[function.interface]]\nname = \"lan\"\nmac = \"02:00:00:00:00:0a\"\n\
    addresses = [\"10.8.1.1/24\", \"fd00:1::1/64\"]\n\
    [[function.interface]]\nname = \"wan\"\nmac = \"02:00:00:00:00:0b\"\naddresses = [\"10.8.2.1/24\", \"fd00:2::1/64\"]\n";

const OSPF_BIRD: &str = "hello 1; dead count 3;";
const OSPF_FRR: &str = " ip ospf hello-interval 1\n ip ospf dead-interval 3\n";

/// Returns the configuration by which host a announces networks by BGP.
fn announcer(count: u32) -> String {
    format!(
        "router id 10.8.1.2;\nprotocol device {{ }}\nprotocol static {{ ipv4;\n{}}}\n\
         protocol bgp {{ local 10.8.1.2 as 65001; neighbor 10.8.1.1 as 65000; hold time 9; connect delay time 1;\n\
         ipv4 {{ import all; export all; next hop self; }}; }}\n",
        networks(count)
    )
}

/// Reports whether host b has a route to host a through the router.
fn has_way_back(kernels: &Kernels<'_>) -> bool {
    let mut command = in_namespace(&kernels.host(1).0, "ip");
    let routes = run(command.args(["route", "get", "10.8.1.2"]));
    routes.stdout.contains("via 10.8.2.1")
}

/// Checks that routes arrive by BGP and OSPF, that packets follow the routes, and that a link failure removes them.
fn routes_come_and_go(kernels: &Kernels<'_>, count: u32) {
    let before = kernels.status("routes_v4");
    let most = u64::from(count);
    wait_until("the routes of BGP", || kernels.status("routes_v4") >= most);
    assert!(before < most);
    let behind = format!("{BEHIND_B}/32 via 10.8.2.2 dev wan");
    wait_until("the route of OSPF", || kernels.has(&behind));
    let shown = kernels.route(&["show", "20.0.7.9"]);
    assert!(
        shown.starts_with("20.0.7.0/24 via 10.8.1.2 dev lan\n"),
        "{shown}"
    );
    // The echo requests go through the router, to the router, and from the router.
    let a = kernels.host(0);
    ip(&format!("-n {} route add {BEHIND_B} via 10.8.1.1", a.0));
    wait_until("the way back", || has_way_back(kernels));
    ping(a, BEHIND_B, 5, &["-i", "0.05"], 5);
    let shown = kernels.route(&["show", BEHIND_B]);
    assert!(shown.contains("packets through this next hop"), "{shown}");
    assert!(!shown.contains("  0 packets"), "{shown}");
    ping(a, "10.8.1.1", 3, &["-i", "0.05"], 3);
    ping(kernels.host(2), BEHIND_B, 3, &["-i", "0.05"], 3);
    // The cable is cut: the kernel's interface loses its carrier, and the daemon removes the routes.
    ip(&format!("-n {} link set eth0 down", kernels.host(1).0));
    wait_until("a route less", || !kernels.has(&behind));
    let link = run(in_namespace(&kernels.host(2).0, "ip").args(["link", "show", "wan"]));
    assert!(link.stdout.contains("NO-CARRIER"), "{link:?}");
    assert!(kernels.status("routes_v4") >= most);
    ip(&format!("-n {} link set eth0 up", kernels.host(1).0));
    wait_until("the route again", || kernels.has(&behind));
    wait_until("the way back again", || has_way_back(kernels));
    ping(a, BEHIND_B, 3, &["-i", "0.05"], 3);
}

#[test]
fn the_router_follows_kernel_routes_that_bird_installs() {
    let Some(hosts) = Hosts::new(3, &[BIRD, ("ping", "iputils-ping")]) else {
        return;
    };
    if !has_frr() {
        return;
    }
    let mut kernels = Kernels::between(&hosts);
    ip(&format!(
        "-n {} address add {BEHIND_B}/32 dev lo",
        hosts.all[1].0
    ));
    kernels.bird(
        2,
        &format!(
            "router id 10.8.1.1;\nprotocol device {{ scan time 1; }}\n\
             protocol kernel {{ ipv4 {{ export all; import none; }}; merge paths on; }}\n\
             protocol bgp {{ local 10.8.1.1 as 65000; neighbor 10.8.1.2 as 65001; hold time 9; connect delay time 1;\n\
             ipv4 {{ import all; export none; }}; }}\n\
             protocol ospf v2 {{ ipv4 {{ import all; export none; }}; area 0 {{ interface \"wan\" {{ {OSPF_BIRD} }};\n\
             interface \"lan\" {{ stub; }}; }}; }}\n"
        ),
    );
    kernels.bird(0, &announcer(30_000));
    let ospf = format!(
        "interface eth0\n{OSPF_FRR}router ospf\n ospf router-id 10.8.2.2\n network 10.8.2.0/24 area 0\n network 10.99.0.0/16 area 0\n"
    );
    kernels.frr(1, &[("zebra", "hostname b\n"), ("ospfd", &ospf)]);
    routes_come_and_go(&kernels, 30_000);
    kernels.end();
}

#[test]
fn the_router_follows_kernel_routes_that_frr_installs() {
    let Some(hosts) = Hosts::new(3, &[BIRD, ("ping", "iputils-ping")]) else {
        return;
    };
    if !has_frr() {
        return;
    }
    let mut kernels = Kernels::between(&hosts);
    ip(&format!(
        "-n {} address add {BEHIND_B}/32 dev lo",
        hosts.all[1].0
    ));
    let ospf = format!(
        "interface wan\n{OSPF_FRR}router ospf\n ospf router-id 10.8.1.1\n network 10.8.2.0/24 area 0\n network 10.8.1.0/24 area 0\n \
         passive-interface lan\n"
    );
    let bgp = "router bgp 65000\n bgp router-id 10.8.1.1\n no bgp ebgp-requires-policy\n neighbor 10.8.1.2 remote-as 65001\n \
               neighbor 10.8.1.2 timers connect 1\n";
    kernels.frr(
        2,
        &[("zebra", "hostname r\n"), ("ospfd", &ospf), ("bgpd", bgp)],
    );
    kernels.bird(0, &announcer(5_000));
    kernels.bird(
        1,
        &format!(
            "router id 10.8.2.2;\nprotocol device {{ scan time 1; }}\nprotocol kernel {{ ipv4 {{ export all; import none; }}; }}\n\
             protocol ospf v2 {{ ipv4 {{ import all; export none; }}; area 0 {{ interface \"eth0\" {{ {OSPF_BIRD} }};\n\
             interface \"lo\" {{ stub; }}; }}; }}\n"
        ),
    );
    routes_come_and_go(&kernels, 5_000);
    // The output of vtysh is converted to a table that another router can load.
    let printed = kernels.path("printed");
    let mut command = Command::new("vtysh");
    command.args([
        "--vty_socket",
        &kernels.path("vty-2"),
        "-c",
        "show ip route",
    ]);
    fs::write(&printed, run(&mut command).success().stdout).unwrap();
    let lines = converted(&printed, &[]);
    assert!(lines.len() >= 5_000, "{}", lines.len());
    for line in [
        format!("{BEHIND_B}/32 via 10.8.2.2 dev wan"),
        "20.0.7.0/24 via 10.8.1.2 dev lan".to_string(),
    ] {
        assert!(lines.contains(&line), "{line}: {:?}", &lines[..10]);
    }
    kernels.end();
}

/// Returns the output of `taut route convert` for a file, sorted.
fn converted(file: &str, via: &[&str]) -> Vec<String> {
    let via = via.iter().flat_map(|via| ["--via", via]);
    let finished = run(taut(&["route", "convert", file]).args(via)).success();
    let mut lines: Vec<String> = finished.stdout.lines().map(ToString::to_string).collect();
    lines.sort();
    assert!(
        finished.stderr.contains(&format!("{} routes", lines.len())),
        "{finished:?}"
    );
    lines
}

#[test]
fn routing_tables_dumped_by_bird_are_converted() {
    let Some(hosts) = Hosts::new(1, &[BIRD]) else {
        return;
    };
    let host = &hosts.all[0];
    let name = |name: &str| hosts.folder.path().join(name).display().to_string();
    let [dump, printed] = ["dump.mrt", "printed"].map(name);
    for line in [
        "link set lo up",
        "address add 10.8.1.1/24 dev lo",
        "address add fd00:1::1/64 dev lo",
    ] {
        ip(&format!("-n {} {line}", host.0));
    }
    let routes = (0..2_000).fold(String::new(), |mut text, number| {
        let hop = 2 + number % 3;
        let _ = writeln!(
            text,
            "route 30.{}.{}.0/24 via 10.8.1.{hop};",
            number / 256,
            number % 256
        );
        text
    });
    let six = "route 2001:db8:1::/48 via fd00:1::9;\nroute 2001:db8:2::/48 via fd00:1::8;\n";
    let text = format!(
        "router id 10.8.1.1;\nprotocol device {{ }}\nprotocol direct {{ ipv4; ipv6; }}\n\
         protocol static {{ ipv4;\n{routes}}}\nprotocol static {{ ipv6;\n{six}}}\n"
    );
    let folder = hosts.folder.path();
    let control = folder.join("bird.ctl");
    let _bird = bird(host, folder, "bird", &text);
    wait_until("BIRD", || control.exists());
    let birdc = |words: &str| run(&mut birdc(&control, words));
    wait_until("its routes", || {
        birdc("show route count")
            .stdout
            .contains("Total: 2004 of 2004 routes")
    });
    fs::write(&printed, birdc("show route").stdout).unwrap();
    let of_bird = converted(&printed, &[]);
    assert_eq!(of_bird.len(), 2_004, "{of_bird:?}");
    assert!(
        of_bird.contains(&"30.0.9.0/24 via 10.8.1.2 dev lo".to_string()),
        "{of_bird:?}"
    );
    for table in ["master4", "master6"] {
        let finished = birdc(&format!("mrt dump table \"{table}\" to \"{dump}\""));
        assert_eq!(finished.code(), Some(0), "{finished:?}");
        let lines = converted(&dump, &["10.8.1.77", "fd00:1::77"]);
        let (count, line) = match table {
            "master4" => (2_000, "30.0.9.0/24 via 10.8.1.77"),
            _ => (2, "2001:db8:1::/48 via fd00:1::77"),
        };
        assert!(lines.len() >= count, "{table}: {lines:?}");
        assert!(lines.contains(&line.to_string()), "{table}: {lines:?}");
    }
    // A truncated file is refused in one line.
    let bytes = fs::read(&dump).unwrap();
    fs::write(&dump, &bytes[..bytes.len() - 3]).unwrap();
    let refused = run(&mut taut(&["route", "convert", &dump]));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("the input is truncated"),
        "{refused:?}"
    );
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
}

/// Returns three counts at the receiver of UDP flows by `iperf3`: datagrams, lost datagrams, and reordered datagrams.
fn counted(server: &Namespace, client: &Namespace, to: &str) -> [u64; 3] {
    let mut command = in_namespace(&server.0, "iperf3");
    command.args(["--server", "--one-off", "--forceflush", "--bind", to]);
    let mut serving = Program::start(&mut command);
    serving.wait_for_stdout("Server listening");
    let mut command = in_namespace(&client.0, "iperf3");
    command.args([
        "--client",
        to,
        "--udp",
        "--bitrate",
        "2M",
        "--parallel",
        "16",
    ]);
    command.args([
        "--time",
        "1",
        "--length",
        "500",
        "--json",
        "--get-server-output",
    ]);
    let finished = run(&mut command);
    assert_eq!(finished.code(), Some(0), "{finished:?}");
    serving.finish();
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let streams = report["end"]["streams"].as_array().unwrap();
    ["packets", "lost_packets", "out_of_order"].map(|name| {
        let of_stream = |stream: &serde_json::Value| stream["udp"][name].as_u64().unwrap();
        streams.iter().map(of_stream).sum()
    })
}

#[test]
fn flows_spread_over_four_next_hops_and_stay_in_order() {
    let Some(hosts) = Hosts::new(3, &[("iperf3", "iperf3"), ("ping", "iputils-ping")]) else {
        return;
    };
    let (a, b) = (&hosts.all[0], &hosts.all[1]);
    let mut ports = vec![veth(a, "eth0", "10.8.1.2/24")];
    let mut interfaces =
        "[[function.interface]]\nname = \"lan\"\nmac = \"02:00:00:00:00:0a\"\naddresses = [\"10.8.1.1/24\"]\n".to_string();
    for link in 0..4 {
        ports.push(veth(
            b,
            &format!("eth{link}"),
            &format!("10.8.{}.2/24", 10 + link),
        ));
        let _ = write!(
            interfaces,
            "[[function.interface]]\nname = \"wan{link}\"\nmac = \"02:00:00:00:01:0{link}\"\naddresses = [\"10.8.{}.1/24\"]\n",
            10 + link
        );
    }
    let kernels = Kernels::new(&hosts, &ports.join(", "), &interfaces);
    ip(&format!("-n {} address add {BEHIND_B}/32 dev lo", b.0));
    ip(&format!("-n {} route add default via 10.8.1.1", a.0));
    ip(&format!("-n {} route add 10.8.1.0/24 via 10.8.10.1", b.0));
    let hops = (0..4).map(|link| format!(" nexthop via 10.8.{0}.2 dev wan{link}", 10 + link));
    ip(&format!(
        "-n {} route add {BEHIND_B}{}",
        hosts.all[2].0,
        hops.collect::<String>()
    ));
    wait_until("a route of four next hops", || {
        kernels.route(&["show", BEHIND_B]).matches("on wan").count() == 4
    });
    wait_until("four neighbours", || {
        !kernels.route(&["show", BEHIND_B]).contains("unknown")
    });
    ping(a, BEHIND_B, 3, &["-i", "0.05"], 3);
    let received = |link: u32| received(&b.0, &format!("eth{link}"));
    let before = [0, 1, 2, 3].map(received);
    let [sent, lost, out_of_order] = counted(b, a, BEHIND_B);
    let after = [0, 1, 2, 3].map(received);
    assert!(sent >= 1_000, "{sent}");
    assert_eq!((lost, out_of_order), (0, 0));
    let shares: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    // With sixteen flows, at least three links carry packets, except in about one of a hundred runs.
    assert!(
        shares.iter().filter(|share| **share > 50).count() >= 3,
        "{shares:?}"
    );
    // One link is cut: its flows move, and losses stop once the failure is known.
    ip(&format!("-n {} link set eth1 down", b.0));
    wait_until("three next hops that are there", || {
        kernels
            .route(&["show", BEHIND_B])
            .contains("on wan1: unknown")
            || kernels.route(&["show", BEHIND_B]).matches("on wan").count() == 3
    });
    let [_, lost, out_of_order] = counted(b, a, BEHIND_B);
    assert_eq!((lost, out_of_order), (0, 0));
    kernels.end();
}

#[test]
fn a_router_that_follows_kernel_routes_refuses_manual_changes() {
    let Some(hosts) = Hosts::new(3, &[]) else {
        return;
    };
    let kernels = Kernels::between(&hosts);
    let control = hosts.folder.path().join("control.sock");
    let refused = run(taut(&["route", "--control"])
        .arg(&control)
        .args(["add", "10.1.0.0/16 via 10.8.1.2"]));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("the routes are the kernel's"),
        "{refused:?}"
    );
    // All routes change at the same time, more than the kernel may be able to report; then all are deleted.
    let kernel = &hosts.all[2].0;
    let mut batch = String::new();
    for number in 0..20_000_u32 {
        let [_, b, c, d] = (number << 4).to_be_bytes();
        let _ = writeln!(batch, "route add 30.{b}.{c}.{d}/28 via 10.8.2.2");
    }
    let file = hosts.folder.path().join("batch");
    fs::write(&file, batch).unwrap();
    let mut command = Command::new("ip");
    run(command.args(["-n", kernel, "-batch"]).arg(&file)).success();
    let all = |text: &str| kernels.route(&["list"]).matches(text).count();
    wait_until("all of them", || all("via 10.8.2.2 dev wan") == 20_000);
    // An interface that goes down removes its routes, and the kernel reports none of the IPv4 ones.
    ip(&format!("-n {kernel} link set wan down"));
    wait_until("none of them", || all("dev wan") == 0);
    ip(&format!("-n {kernel} link set wan up"));
    wait_until("the network of the interface", || {
        kernels.has("10.8.2.0/24 dev wan")
    });
    // The interface has lost its IPv6 addresses permanently.
    ip(&format!(
        "-n {kernel} address add fd00:2::1/64 dev wan nodad"
    ));
    for (add, shown) in [
        ("blackhole 10.66.0.0/16", "blackhole 10.66.0.0/16"),
        ("prohibit 10.67.0.0/16 metric 7", "prohibit 10.67.0.0/16"),
        (
            "2001:db8:5::/48 via fd00:2::2",
            "2001:db8:5::/48 via fd00:2::2 dev wan",
        ),
        (
            "10.68.0.0/16 via inet6 fd00:2::2",
            "10.68.0.0/16 via fd00:2::2 dev wan",
        ),
    ] {
        ip(&format!("-n {kernel} route add {add}"));
        wait_until(shown, || kernels.has(shown));
        ip(&format!("-n {kernel} route del {add}"));
        wait_until("one less", || !kernels.has(shown));
    }
    kernels.end();
}
