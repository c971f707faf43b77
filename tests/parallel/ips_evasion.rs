//! Attacks that are hidden from an inspection, and harmless streams through it, checked by the bytes that receivers
//! get.

use crate::support::evasion::moves::Case;
use crate::support::evasion::{Oracle, Outcome, Table, harmed, inspection, known, line, prove};
use crate::support::hosts::{Hosts, Namespace, in_namespace, ip};
use crate::support::program::{Program, run};
use std::fs;
use std::path::Path;

const ATTACKS: u64 = 1000;
const HARMLESS: u64 = 300;
/// The text that marks an alert of a rule in an inspection's event log.
const ALERT: &str = "\"event_type\":\"alert\"";

#[test]
fn no_evasion_delivers_forbidden_content_to_a_receiver() {
    let Some(mut oracle) = Oracle::new(inspection) else {
        return;
    };
    let known: Vec<Case> = known()
        .into_iter()
        .filter(|case| oracle.can(case))
        .collect();
    let outcomes = oracle.run(&known);
    let handed = known
        .iter()
        .zip(outcomes)
        .filter(|(_, it)| *it == Outcome::Handed);
    for (case, _) in handed.clone() {
        println!("known: {}", line(case));
    }
    let got_through = handed.count();
    prove(oracle, 0..ATTACKS);
    assert_eq!(got_through, 0, "known evasions got through: see above");
}

/// Most attacks reach the receiver if there is no inspection, which shows that the evasions do not break the attacks.
#[test]
fn most_attacks_reach_the_receiver_without_an_inspection() {
    let Some(mut oracle) = Oracle::new(|_| "[[function]]\nname = \"forward\"\n".to_string()) else {
        return;
    };
    let cases: Vec<Case> = (0..200)
        .map(|seed| Case::random(seed, false))
        .filter(|it| oracle.can(it))
        .collect();
    let mut table = Table::default();
    let outcomes = oracle.run(&cases);
    oracle.end();
    cases
        .iter()
        .zip(&outcomes)
        .for_each(|(case, outcome)| table.count(case, *outcome));
    table.print();
    let handed = outcomes.iter().filter(|it| **it == Outcome::Handed).count();
    assert!(2 * handed > cases.len(), "only {handed} of {}", cases.len());
}

#[test]
fn harmless_streams_arrive_complete_and_raise_no_alert() {
    let Some(mut oracle) = Oracle::new(inspection) else {
        return;
    };
    let harmed = harmed(&mut oracle, 0..HARMLESS);
    let events = oracle.end();
    assert!(harmed.is_empty(), "{}", harmed.join("\n"));
    let alerts: Vec<&String> = events.iter().filter(|it| it.contains(ALERT)).collect();
    assert!(alerts.is_empty(), "{alerts:?}");
}

const FILES: [(&str, usize); 5] = [
    ("none", 0),
    ("one", 1),
    ("page", 1_400),
    ("picture", 100_000),
    ("film", 3_000_000),
];

/// Serves a folder, compressed for clients that accept it.
fn serve(server: &Namespace, folder: &Path) -> Program {
    let own = folder.display();
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid {own}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log {own}/requests.log;\n\
         gzip on;\ngzip_types *;\nclient_body_temp_path {own}/body;\nproxy_temp_path {own}/proxy;\n\
         fastcgi_temp_path {own}/fastcgi;\nuwsgi_temp_path {own}/uwsgi;\nscgi_temp_path {own}/scgi;\n\
         server {{ listen [::]:80 ipv6only=off; root {own}/files; }}\n}}\n"
    );
    fs::write(folder.join("nginx.conf"), configuration).unwrap();
    let mut serve = in_namespace(&server.0, "nginx");
    serve
        .arg("-p")
        .arg(folder)
        .arg("-e")
        .arg(folder.join("errors.log"))
        .arg("-c")
        .arg(folder.join("nginx.conf"));
    let mut serving = Program::start(&mut serve);
    serving.wait_for_listener(80);
    serving
}

/// Returns the output of curl for one or more files over one connection.
fn download(client: &Namespace, options: &[&str], urls: &[String], folder: &Path) -> Vec<u8> {
    let got = folder.join("got");
    let mut command = in_namespace(&client.0, "curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "50",
        "--output",
        "-",
    ]);
    command.args(options);
    for url in &urls[1..] {
        command.args(["--output", "-"]).arg(url);
    }
    command
        .arg(&urls[0])
        .arg("--stderr")
        .arg(folder.join("complaints"));
    command.stdout(fs::File::create(&got).unwrap());
    let status = command.status().unwrap();
    assert!(
        status.success(),
        "{command:?}: {:?}",
        fs::read_to_string(folder.join("complaints"))
    );
    fs::read(got).unwrap()
}

#[test]
fn transfers_complete_despite_loss_duplicates_and_reordering() {
    let tools = [
        ("nginx", "nginx-light"),
        ("curl", "curl"),
        ("python3", "python3"),
    ];
    let Some(hosts) = Hosts::new(2, &tools) else {
        return;
    };
    let folder = hosts.folder.path();
    let [client, server] = [0, 1].map(|at| &hosts.all[at]);
    let chain = format!(
        "wait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={},address=10.7.0.1/24\", \"veth:eth0,netns={},address=10.7.0.2/24\"]\n\
         [[function]]\nname = \"impair\"\nloss = 0.005\nduplicate = 0.01\nreorder = 0.01\n{}",
        client.0,
        server.0,
        inspection(folder)
    );
    let up = hosts.up("harmless.toml", &chain);
    ip(&format!(
        "-n {} address add fd00:7::1/64 dev eth0 nodad",
        client.0
    ));
    ip(&format!(
        "-n {} address add fd00:7::2/64 dev eth0 nodad",
        server.0
    ));
    let mut rng = fastrand::Rng::with_seed(7);
    fs::create_dir(folder.join("files")).unwrap();
    let files = FILES.map(|(name, length)| {
        let bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
        fs::write(folder.join("files").join(name), &bytes).unwrap();
        (name, bytes)
    });
    let _serving = serve(server, folder);
    let url = |host: &str, name: &str| format!("http://{host}/{name}");
    for (name, bytes) in &files {
        for host in ["10.7.0.2", "[fd00:7::2]"] {
            for options in [&[][..], &["--compressed"], &["--http1.0"]] {
                let got = download(client, options, &[url(host, name)], folder);
                assert!(
                    got == *bytes,
                    "{name} of {host} {options:?}: {} bytes",
                    got.len()
                );
            }
        }
    }
    // All twenty downloads use one connection.
    let (page, urls) = (&files[2].1, vec![url("10.7.0.2", "page"); 20]);
    assert!(
        download(client, &[], &urls, folder) == page.repeat(20),
        "kept alive"
    );
    let mut pipeline = in_namespace(&client.0, "python3");
    let pipelined = run(pipeline.args(["-c", PIPELINE])).success();
    assert_eq!(pipelined.stdout.trim(), "20 answers");
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    let events = fs::read_to_string(folder.join("eve.json")).unwrap();
    assert!(!events.contains(ALERT), "{events}");
}

/// A Python script that sends twenty requests over one connection before it reads the first reply.
const PIPELINE: &str = "
import socket
stream = socket.create_connection(('10.7.0.2', 80))
request = b'GET /page HTTP/1.1\\r\\nHost: it\\r\\n'
stream.sendall((request + b'\\r\\n') * 19 + request + b'Connection: close\\r\\n\\r\\n')
got = b''.join(iter(lambda: stream.recv(65536), b''))
print(got.count(b'HTTP/1.1 200 OK'), 'answers')
";
