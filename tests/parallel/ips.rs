//! An inspection between two unmodified hosts: a web server and its clients.

use crate::support::hosts::{Hosts, Namespace, in_namespace, ping};
use crate::support::program::{Finished, Program, run};
use crate::support::{is_installed, scratch, taut};
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn tshark_parses_the_sample_traffic_without_errors() {
    if !is_installed("tshark") {
        println!("skipped: needs tshark");
        return;
    }
    let folder = scratch();
    let file = folder.path().join("mixed.pcapng");
    let said = run(taut(&["ips", "sample", "--traffic"]).arg(&file)).success();
    let mut shown = Command::new("tshark");
    shown.args([
        "-o",
        "tcp.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]);
    shown.args([
        "-T",
        "fields",
        "-e",
        "frame.protocols",
        "-e",
        "dns.qry.name",
        "-e",
        "http.request.uri",
    ]);
    shown.args([
        "-e",
        "tls.handshake.extensions_server_name",
        "-e",
        "_ws.malformed",
        "-e",
        "tcp.checksum.status",
        "-e",
        "udp.checksum.status",
    ]);
    let shown = run(shown.arg("-r").arg(&file)).success().stdout;
    let frames = shown.lines().count();
    assert!(
        said.stdout.starts_with(&format!("{frames} frames in ")),
        "{said:?}"
    );
    for part in [
        "host31.example.net",
        "/news/31/index.html?from=start",
        "shop31.example.net",
    ] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    for line in shown.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[4], "", "malformed: {line}");
        // A checksum status of 1 means good.
        assert!(fields[5] == "1" || fields[6] == "1", "checksum: {line}");
    }
}

#[test]
fn ips_check_counts_invalid_rules_and_reports_line_and_column() {
    let folder = scratch();
    let file = folder.path().join("local.rules");
    let rules = "alert udp any any -> any 53 (msg:\"good\"; sid:1;)\n\
                 drop udp any any -> any 53 (msg:\"no semicolon\" content:\"zzzz\"; sid:2;)\n\
                 drop udp $HOME_NET any -> any 53 (sid:3;)\n\
                 alert krb5 any any -> any any (sid:4;)\n";
    fs::write(&file, rules).unwrap();
    let said = run(taut(&["ips", "check"]).arg(&file));
    assert_eq!(said.code(), Some(2), "{said:?}");
    let counts = "1 of 4 rules load (25.0 %), 1 skipped, 2 with errors";
    assert!(said.stdout.contains(counts), "{said:?}");
    let said = run(taut(&["ips", "check", "--json"]).arg(&file));
    let json = said.last_json();
    assert_eq!(json["mistaken"], 2);
    let place = |at: usize| {
        (
            json["mistakes"][at]["line"].as_u64(),
            json["mistakes"][at]["column"].as_u64(),
        )
    };
    assert_eq!(place(0), (Some(2), Some(48)));
    assert_eq!(place(1), (Some(3), Some(10)));
    let known = [
        "ips",
        "check",
        "--json",
        "--variable",
        "HOME_NET=10.0.0.0/8",
    ];
    assert_eq!(run(taut(&known).arg(&file)).last_json()["mistaken"], 1);
}

/// A Python script that sends a UDP datagram from 10.45.0.2 in a G-PDU (GTP-U packet).
const TUNNELLED: &str = "
import socket, struct
udp = struct.pack('>HHHH', 4000, 9, 13, 0) + b'inner'
def head(checksum):
    return struct.pack('>BBHHHBBH4s4s', 0x45, 0, 33, 1, 0, 64, 17, checksum, bytes([10, 45, 0, 2]), bytes([192, 0, 2, 9]))
ip = head(0xffff - sum(struct.unpack('>10H', head(0))) % 0xffff)
gtp = struct.pack('>BBHI', 0x30, 255, 33, 7)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(gtp + ip + udp, ('10.7.0.2', 2152))
";

fn fetch(host: &Namespace, path: &str) -> Finished {
    let mut command = in_namespace(&host.0, "curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "3",
        "--user-agent",
        "test/1",
    ]);
    run(command.arg(format!("http://10.7.0.2:8000/{path}")))
}

#[test]
fn only_traffic_that_the_rules_allow_reaches_the_server() {
    let tools = [
        ("ping", "iputils-ping"),
        ("curl", "curl"),
        ("python3", "python3"),
    ];
    let Some(hosts) = Hosts::new(2, &tools) else {
        return;
    };
    let folder = hosts.folder.path();
    let [client, server] = [0, 1].map(|at| &hosts.all[at]);
    let rules = "drop http any any -> any any (msg:\"dropped\"; flow:to_server,established; http.uri; content:\"/secret\"; sid:1;)\n\
                 reject tcp any any -> any any (msg:\"rejected\"; flow:to_server,established; content:\"GET /refused\"; sid:2;)\n\
                 alert http any any -> any any (msg:\"seen\"; flow:to_client; http.stat_code; content:\"404\"; sid:3;)\n\
                 drop icmp any any -> any any (msg:\"large ping\"; itype:8; dsize:>900; dsize:<1500; sid:4;)\n\
                 drop icmp any any -> any any (msg:\"pattern over fragments\"; content:\"|fe ed fe ed|\"; sid:5;)\n\
                 alert udp 10.45.0.0/16 any -> any 9 (msg:\"in a tunnel\"; content:\"inner\"; sid:6;)\n";
    fs::write(folder.join("local.rules"), rules).unwrap();
    fs::write(folder.join("page"), "all is well").unwrap();
    let chain = format!(
        "wait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={},address=10.7.0.1/24\", \"veth:eth0,netns={},address=10.7.0.2/24\"]\n\
         [[function]]\nname = \"ips\"\ninner = true\nrules = [\"{folder}/local.rules\"]\n\
         events = \"{folder}/eve.json\"\nalerts = \"{folder}/alerts.pcapng\"\ncontrol = \"{folder}/sock\"\n",
        client.0,
        server.0,
        folder = folder.display()
    );
    let up = hosts.up("ips.toml", &chain);
    let mut serve = in_namespace(&server.0, "python3");
    serve.args([
        "-u",
        "-m",
        "http.server",
        "8000",
        "--bind",
        "10.7.0.2",
        "--directory",
    ]);
    let mut serving = Program::start(serve.arg(folder));
    serving.wait_for_stdout("Serving HTTP");

    assert_eq!(fetch(client, "page").success().stdout, "all is well");
    ping(client, "10.7.0.2", 3, &["-i", "0.02"], 3);
    ping(client, "10.7.0.2", 3, &["-i", "0.02", "-s", "1000"], 0);
    // Each request has two fragments.
    ping(client, "10.7.0.2", 3, &["-i", "0.02", "-s", "2500"], 3);
    ping(
        server,
        "10.7.0.1",
        3,
        &["-i", "0.02", "-s", "1600", "-p", "feed"],
        0,
    );
    // A user's packet in a tunnel is inspected.
    let mut tunnelled = in_namespace(&client.0, "python3");
    run(tunnelled.args(["-c", TUNNELLED])).success();
    assert!(fetch(client, "nothing").success().stdout.contains("404"));
    // The rule also matches the same path in another encoding.
    let dropped = fetch(client, "x/../%73ecret");
    assert_eq!(
        dropped.code(),
        Some(28),
        "no answer within its time: {dropped:?}"
    );
    let refused = fetch(client, "refused");
    assert_eq!(
        refused.code(),
        Some(56),
        "broken off by a reset: {refused:?}"
    );
    assert_eq!(fetch(client, "page").success().stdout, "all is well");

    let mut status = Command::new(env!("CARGO_BIN_EXE_taut"));
    status
        .args(["ips", "status", "--json", "--control"])
        .arg(folder.join("sock"));
    let status = run(&mut status).success().last_json();
    assert_eq!(status["rules"]["rules"], 6, "{status}");
    assert_eq!(status["outcomes"]["rejected"], 1, "{status}");
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    // SIGINT may be ignored by programs that a script starts in the background.
    let served = serving.kill();
    assert!(served.stderr.contains("GET /page"), "{served:?}");
    assert!(
        !served.stderr.contains("secret") && !served.stderr.contains("refused"),
        "{served:?}"
    );
    let eve = fs::read_to_string(folder.join("eve.json")).unwrap();
    assert!(eve.contains("\"src_ip\":\"10.45.0.2\""), "{eve}");
    let lines = eve
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut found: Vec<_> = lines
        .filter(|it| it["event_type"] == "alert")
        .map(|it| {
            (
                it["alert"]["signature_id"].as_u64().unwrap(),
                it["alert"]["action"].as_str().unwrap().to_string(),
            )
        })
        .collect();
    found.sort();
    found.dedup();
    let want = [
        (1, "blocked"),
        (2, "blocked"),
        (3, "allowed"),
        (4, "blocked"),
        (5, "blocked"),
        (6, "allowed"),
    ];
    assert_eq!(found, want.map(|(id, action)| (id, action.to_string())));
    if is_installed("tshark") {
        let mut shown = Command::new("tshark");
        shown.args([
            "-T",
            "fields",
            "-e",
            "frame.comment",
            "-e",
            "http.request.uri",
            "-e",
            "icmp.type",
        ]);
        let shown = run(shown.arg("-r").arg(folder.join("alerts.pcapng")))
            .success()
            .stdout;
        for part in [
            "1:1:0 dropped (blocked)\t/",
            "1:2:0 rejected (blocked)\t/refused",
            "1:3:0 seen\t",
            "1:4:0 large ping (blocked)\t\t8",
        ] {
            assert!(shown.contains(part), "no {part} in {shown}");
        }
    }
}

/// Sends the ClientHello of OpenSSL to an OpenSSL server by TLS 1.2, and closes the connection.
fn greet(client: &Namespace) {
    let mut greet = in_namespace(&client.0, "openssl");
    greet.args(["s_client", "-connect", "10.7.0.2:4433", "-tls1_2"]);
    run(greet.args(["-servername", "device.example.org"])).success();
}

#[test]
fn tls_certificates_and_fingerprints_agree_with_openssl_and_tshark() {
    let tools = [
        ("openssl", "openssl"),
        ("tcpdump", "tcpdump"),
        ("tshark", "tshark"),
    ];
    let Some(hosts) = Hosts::new(2, &tools) else {
        return;
    };
    let folder = hosts.folder.path();
    let [client, server] = [0, 1].map(|at| &hosts.all[at]);
    let path = |name: &str| folder.join(name).display().to_string();
    let mut make = Command::new("openssl");
    make.args([
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
    ]);
    make.args(["-keyout", &path("key"), "-out", &path("certificate")]);
    make.args(["-set_serial", "0xab12cd"]);
    run(make.args([
        "-subj",
        "/C=DE/O=Some Makers/CN=device.example.org/emailAddress=a@example.org",
    ]))
    .success();
    let rules = "alert tls any any -> any any (flow:to_client; tls.cert_subject; \
        content:\"C=DE, O=Some Makers, CN=device.example.org, Email=a@example.org\"; startswith; endswith; sid:1;)\n\
        alert tls any any -> any any (tls.cert_issuer; content:\"O=Some Makers\"; sid:2;)\n\
        alert tls any any -> any any (tls.cert_serial; content:\"00:AB:12:CD\"; bsize:11; sid:3;)\n\
        alert tls any any -> any any (tls.certs; content:\"|55 04 03 0c 12|device.example.org\"; sid:4;)\n";
    fs::write(path("local.rules"), rules).unwrap();
    let chain = format!(
        "wait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={},address=10.7.0.1/24\", \"veth:eth0,netns={},address=10.7.0.2/24\"]\n\
         [[function]]\nname = \"ips\"\nrules = [\"{folder}/local.rules\"]\n\
         events = \"{folder}/eve.json\"\nalerts = \"{folder}/alerts.pcapng\"\ncontrol = \"{folder}/sock\"\n",
        client.0,
        server.0,
        folder = folder.display()
    );
    let up = hosts.up("ips.toml", &chain);
    let mut serve = in_namespace(&server.0, "openssl");
    serve.args(["s_server", "-accept", "4433"]);
    serve.args(["-key", &path("key"), "-cert", &path("certificate")]);
    let mut serving = Program::start(&mut serve);
    serving.wait_for_stdout("ACCEPT");
    let mut capture = in_namespace(&client.0, "tcpdump");
    capture.args([
        "-i",
        "eth0",
        "-U",
        "--immediate-mode",
        "-w",
        &path("seen.pcap"),
    ]);
    let mut capturing = Program::start(capture.args(["tcp", "port", "4433"]));
    capturing.wait_for_stderr("listening on");
    greet(client);
    let fields = |field: &str| {
        let mut shown = Command::new("tshark");
        shown.args(["-r", &path("seen.pcap"), "-T", "fields", "-e", field]);
        let shown = run(&mut shown).stdout;
        shown.split_whitespace().next().map(str::to_string)
    };
    let has_all = |_: &str, _: &str| fields("tls.handshake.ja3s").is_some();
    capturing.wait_until("both hellos in tcpdump's file", has_all);
    capturing.interrupt().success();
    let fingerprint = |field: &str| fields(field).unwrap();
    let rules = format!(
        "{rules}alert tls any any -> any any (ja3.hash; content:\"{}\"; sid:5;)\n\
         alert tls any any -> any any (ja3.string; content:\"{}\"; startswith; endswith; sid:6;)\n\
         alert tls any any -> any any (ja3s.hash; content:\"{}\"; sid:7;)\n\
         alert tls any any -> any any (ja3s.string; content:\"{}\"; startswith; endswith; sid:8;)\n",
        fingerprint("tls.handshake.ja3"),
        fingerprint("tls.handshake.ja3_full"),
        fingerprint("tls.handshake.ja3s"),
        fingerprint("tls.handshake.ja3s_full"),
    );
    fs::write(path("local.rules"), rules).unwrap();
    run(&mut taut(&["ips", "reload", "--control", &path("sock")])).success();
    greet(client);
    up.interrupt().success();
    serving.kill();
    let eve = fs::read_to_string(path("eve.json")).unwrap();
    let mut found: Vec<_> = eve
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|it| it["alert"]["signature_id"].as_u64())
        .collect();
    found.sort_unstable();
    assert_eq!(found, [1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8], "{eve}");
}
