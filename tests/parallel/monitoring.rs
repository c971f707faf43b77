//! The rules and the dashboard shipped for Prometheus and Grafana use only metrics that taut serves. Prometheus itself
//! loads the rules, scrapes the programs, and fires an alert.

use crate::support::program::{PATIENCE, Program, run};
use crate::support::{is_installed, json, scratch, taut};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use taut_engine::{Count, CountKind, CountersView};
use taut_live::metrics::{
    Endpoint, SegmentView, capture_metrics, chain_metrics, forwarder_metrics, generator_metrics,
};

const RULES: &str = "examples/monitoring/taut-rules.yml";
const RULES_TEST: &str = "tests/data/taut-rules-test.yml";
const DASHBOARD: &str = "examples/monitoring/grafana-dashboard.json";
const SCRAPED: &str = "examples/monitoring/prometheus.yml";
const GATEWAY: &str = r#"
ports = ["null:source=1", "null:"]
wait = "yield"
[[function]]
name = "gtpu"
address = "192.0.2.1"
bearers = 100
"#;

fn yaml(path: &str) -> Value {
    serde_norway::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the metrics that programs of each kind can serve.
fn texts() -> [String; 4] {
    let capture = serde_json::json!({
        "process": 1, "ring_bytes": 1024, "most_bytes": 1024,
        "kept": {"packets": 5, "bytes": 500}, "overwritten": {"packets": 1, "bytes": 100},
        "lost": {"packets": 2, "bytes": 200}, "oldest_ns": null, "now_ns": 1, "passed_over": 0,
        "not_looked_at": 7, "dumping": [], "dumps": [], "trouble": [],
        "triggers": [{"name": "a", "fired": 3, "begun": 2, "limited": 1}],
        "disk": {"folder": "/a", "packets": 4, "lost": 3, "missed": 2, "removed": 1, "error": null},
        "flows": {"room": 100, "known": 10, "forgotten": 20, "top": []},
    });
    let count = |kind| Count {
        function: "ips".to_string(),
        kind,
        name: "x".to_string(),
        about: String::new(),
        count: 1,
    };
    let functions = [
        CountKind::Outcome,
        CountKind::Drop,
        CountKind::Event,
        CountKind::Rule,
    ]
    .map(count);
    let segment = SegmentView {
        name: "1-ips",
        is_up: true,
        restarts: 0,
        lost_while_down: 0,
        links_down: 0,
        counters: &CountersView::default(),
        functions: &functions,
    };
    [
        forwarder_metrics(&CountersView::default(), &functions, 1e9),
        chain_metrics("edge", &[segment]),
        capture_metrics(&serde_json::from_value(capture).unwrap(), &[]),
        generator_metrics(&[]),
    ]
}

/// Returns the names of all samples that taut can serve.
fn given_out() -> BTreeSet<String> {
    let texts = texts();
    let mut names = BTreeSet::new();
    let types = texts.iter().flat_map(|text| text.lines());
    for line in types.filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => panic!("{other}"),
        };
        names.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    names
}

/// Returns the alerts of the Prometheus rules, each with its expression.
fn alerts() -> Vec<(String, String)> {
    let rules = yaml(RULES);
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|it| it["rules"].as_array().unwrap());
    rules
        .map(|rule| {
            let text = |key: &str| rule[key].as_str().unwrap().to_string();
            (text("alert"), text("expr"))
        })
        .collect()
}

/// Returns the expressions of the Grafana dashboard's panels, each with the panel's title.
fn shown() -> Vec<(String, String)> {
    let dashboard = json(Path::new(DASHBOARD));
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().into_iter().flatten();
        found.extend(targets.map(|target| (text(&panel["title"]), text(&target["expr"]))));
    }
    found
}

/// Splits an expression into words outside of quotes and the strings inside quotes.
fn words_of(expression: &str) -> (BTreeSet<&str>, Vec<&str>) {
    let parts: Vec<&str> = expression.split('"').collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let bare = parts.iter().step_by(2);
    let words = bare.flat_map(|part| part.split(move |c| !is_word(c)));
    (
        words.collect(),
        parts.iter().skip(1).step_by(2).copied().collect(),
    )
}

#[test]
fn alert_rules_and_dashboard_query_only_exported_metrics() {
    let given_out = given_out();
    assert!(given_out.contains("taut_forward_received_packets_total"));
    let scraped = yaml(SCRAPED);
    let jobs = scraped["scrape_configs"].as_array().unwrap().iter();
    let jobs: BTreeSet<&str> = jobs.map(|job| job["job_name"].as_str().unwrap()).collect();
    assert_eq!(jobs.len(), 4, "{jobs:?}");
    let dashboard = json(Path::new(DASHBOARD));
    let asked = dashboard["templating"]["list"].as_array().unwrap().iter();
    let asked = asked.filter_map(|it| it["query"]["query"].as_str());
    let asked = asked.map(|query| ("variable".to_string(), query.to_string()));
    let all = [alerts(), shown(), asked.collect()].concat();
    assert!(all.len() > 50, "{}", all.len());
    let mut jobs_seen = BTreeSet::new();
    for (what, expression) in &all {
        let (words, quoted) = words_of(expression);
        let metrics: Vec<_> = words.iter().filter(|it| it.starts_with("taut_")).collect();
        for name in &metrics {
            assert!(given_out.contains(**name), "{what}: no {name} is given out");
        }
        assert!(
            !metrics.is_empty() || words.contains("up"),
            "{what}: {expression} asks for nothing of taut's"
        );
        let named = quoted
            .into_iter()
            .filter(|it| it.starts_with("taut-") && !it.ends_with('+'));
        for job in named {
            assert!(jobs.contains(job), "{what}: no job {job} in {SCRAPED}");
            jobs_seen.insert(job.to_string());
        }
    }
    assert_eq!(jobs_seen.len(), jobs.len(), "{jobs_seen:?}");
}

/// Reports whether Prometheus is installed; else prints why the test is skipped.
fn prometheus() -> bool {
    let is = is_installed("prometheus") && is_installed("promtool");
    if !is {
        println!("skipped: needs prometheus (package prometheus)");
    }
    is
}

#[test]
fn prometheus_accepts_the_alert_rules_and_dashboard_expressions() {
    if !prometheus() {
        return;
    }
    run(Command::new("promtool").args(["check", "rules", RULES])).success();
    // The check includes the rules that the file names.
    run(Command::new("promtool").args(["check", "config", SCRAPED])).success();
    // The dashboard's expressions become recording rules.
    let mut text = "groups:\n- name: dashboard\n  rules:\n".to_string();
    for (number, (_, expression)) in shown().iter().enumerate() {
        let expression = expression
            .replace("$__rate_interval", "1m")
            .replace(['$'], "");
        let expression = serde_json::to_string(&expression).unwrap();
        text += &format!("  - record: shown:{number}\n    expr: {expression}\n");
    }
    let folder = scratch();
    let file = folder.path().join("dashboard.yml");
    fs::write(&file, text).unwrap();
    run(Command::new("promtool").args(["check", "rules"]).arg(&file)).success();
}

#[test]
fn each_alert_fires_only_on_its_own_condition() {
    let cases = yaml(RULES_TEST);
    let cases: BTreeSet<String> = cases["tests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["name"].as_str().unwrap().to_string())
        .collect();
    for (alert, _) in alerts() {
        assert!(
            cases.contains(&alert),
            "{alert} has no case in {RULES_TEST}"
        );
    }
    if prometheus() {
        run(Command::new("promtool").args(["test", "rules", RULES_TEST])).success();
    }
}

#[test]
fn clients_without_openmetrics_get_valid_prometheus_text() {
    if !prometheus() {
        return;
    }
    for text in texts() {
        let endpoint = Endpoint::serve("127.0.0.1:0", move || text.clone()).unwrap();
        let mut client = TcpStream::connect(endpoint.address()).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut checks = promtool.stderr(Stdio::piped()).spawn().unwrap();
        let mut input = checks.stdin.take().unwrap();
        input.write_all(body.as_bytes()).unwrap();
        drop(input);
        let checked = checks.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{said} of {body}");
    }
}

/// Returns the JSON reply to `GET path`; `None` if there is no reply.
fn asked(port: u16, path: &str) -> Option<Value> {
    let mut client = TcpStream::connect(("127.0.0.1", port)).ok()?;
    client.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    // HTTP/1.0 has no chunked encoding.
    write!(client, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

/// Repeats the request for `path` until `is` is true of the JSON reply.
#[track_caller]
fn asked_until(server: &mut Program, port: u16, path: &str, is: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = asked(port, path);
        if answer.as_ref().is_some_and(&is) {
            return;
        }
        let runs = server.is_running();
        assert!(
            runs && Instant::now() < deadline,
            "{path}: {answer:?}; runs: {runs}; {}",
            server.stderr()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn prometheus_scrapes_a_gateway_and_alerts_on_dropped_packets() {
    if !prometheus() {
        return;
    }
    let folder = scratch();
    let chain = folder.path().join("gateway.toml");
    fs::write(&chain, GATEWAY).unwrap();
    // The gateway's port always has packets, and none of them is a user's, so the gateway runs at the lowest priority.
    let own = taut(&["forward"]);
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(own.get_program());
    command.arg("forward").arg(&chain);
    let mut gateway = Program::start(command.args(["--quiet", "--metrics", "127.0.0.1:0"]));
    gateway.wait_for_stderr("/metrics\n");
    let said = gateway.stderr();
    let address = said
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next());

    // The shipped rules wait for a minute or more before they alert.
    let rules = fs::read_to_string(RULES).unwrap();
    fs::write(
        folder.path().join("taut-rules.yml"),
        rules
            .replace("for: 1m", "for: 1s")
            .replace("for: 5m", "for: 1s"),
    )
    .unwrap();
    let config = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}\n\
         rule_files: [taut-rules.yml]\n\
         scrape_configs: [{{job_name: taut-gateway, static_configs: [{{targets: [\"{}\"]}}]}}]\n",
        address.unwrap()
    );
    fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    // This TCP port is free at the moment.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut command = Command::new("prometheus");
    command.current_dir(folder.path()).args([
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        &format!("--web.listen-address=127.0.0.1:{port}"),
    ]);
    let mut server = Program::start(&mut command);

    asked_until(
        &mut server,
        port,
        "/api/v1/targets?state=active",
        |answer| answer["data"]["activeTargets"][0]["health"] == "up",
    );
    let received = "/api/v1/query?query=taut_forward_received_packets_total";
    asked_until(&mut server, port, received, |answer| {
        let value = answer["data"]["result"][0]["value"][1].as_str();
        value.is_some_and(|it| it.parse::<f64>().unwrap() > 0.0)
    });
    let fires = |name: &'static str| {
        move |answer: &Value| {
            let alerts = answer["data"]["alerts"].as_array().into_iter().flatten();
            alerts
                .into_iter()
                .any(|it| it["labels"]["alertname"] == name && it["state"] == "firing")
        }
    };
    asked_until(
        &mut server,
        port,
        "/api/v1/alerts",
        fires("TautGatewayRefuses"),
    );
    // The forwarder counts as saturated, as its port always has packets.
    asked_until(
        &mut server,
        port,
        "/api/v1/alerts",
        fires("TautForwardSaturated"),
    );
    let unknown =
        "/api/v1/query?query=taut_forward_function_packets_total%7Bfunction=%22gtpu%22%7D%3E0";
    asked_until(&mut server, port, unknown, |answer| {
        answer["data"]["result"][0]["metric"]["outcome"].is_string()
    });
    gateway.interrupt().success();
    asked_until(&mut server, port, "/api/v1/alerts", fires("TautGone"));
    server.interrupt().success();
}

/// A chain serves the state of its segments.
#[test]
fn a_chain_exports_the_state_of_its_segments() {
    let folder = scratch();
    let file = folder.path().join("monitored.toml");
    let name = format!("monitored-{}", std::process::id());
    fs::write(
        &file,
        format!(
            "name = \"{name}\"\nports = [\"null:\", \"null:\"]\nplacement = \"processes\"\nwait = \"sleep(5ms)\"\n\
             [[function]]\nname = \"forward\"\n[[function]]\nname = \"mac-swap\"\n"
        ),
    )
    .unwrap();
    let mut chain =
        Program::start(taut(&["chain", "up", "--quiet", "--metrics", "127.0.0.1:0"]).arg(&file));
    chain.wait_for_stdout("up: processes");
    let said = chain.stderr();
    let address = said
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    let mut client = TcpStream::connect(address.unwrap()).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    for segment in ["1-forward", "2-mac-swap"] {
        for line in [
            format!("taut_chain_segment_up{{chain=\"{name}\",segment=\"{segment}\"}} 1"),
            format!("taut_chain_restarts_total{{chain=\"{name}\",segment=\"{segment}\"}} 0"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
    chain.interrupt().success();
    // An address in use is reported before anything starts.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = run(taut(&["chain", "up", "--metrics", &address]).arg(&file));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stdout.is_empty() && refused.stderr.contains(&address),
        "{refused:?}"
    );
}

/// An inspection serves its outcomes and matching rules, alone and as a segment of a chain.
#[test]
fn an_inspection_exports_its_outcomes_and_matching_rules() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    run(&mut taut(&[
        "ips",
        "sample",
        "--traffic",
        &path("in.pcapng"),
    ]))
    .success();
    let rule =
        "alert dns any any -> any any (msg:\"asked\"; dns.query; content:\"host1\"; sid:7;)\n";
    fs::write(path("rules"), rule).unwrap();
    let chain = format!(
        "name = \"inspected-{}\"\nports = [\"pcap:{},repeat=0\", \"null:\"]\n\
         [[function]]\nname = \"ips\"\nrules = [\"{}\"]\n",
        std::process::id(),
        path("in.pcapng"),
        path("rules")
    );
    fs::write(path("inspected.toml"), chain).unwrap();
    let own = taut(&[""; 0]);
    for (words, prefix) in [
        (&["forward"][..], "taut_forward"),
        (&["chain", "up"], "taut_chain"),
    ] {
        // Packets arrive all the time, so the program runs at a low priority to leave the core to others.
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(own.get_program());
        command
            .args(words)
            .args(["--quiet", "--metrics", "127.0.0.1:0"]);
        let mut program = Program::start(command.arg(path("inspected.toml")));
        program.wait_for_stderr("/metrics\n");
        let said = program.stderr();
        let address = said
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split('/').next());
        let address = address.unwrap().to_string();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut client = TcpStream::connect(&address).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            let has = |name: &str, label: &str| {
                let name = format!("{prefix}_{name}_total{{");
                let mut lines = text.lines();
                lines.any(|it| it.starts_with(&name) && it.contains(label) && !it.ends_with(" 0"))
            };
            if has("function_packets", "outcome=\"passed\"")
                && has("function_events", "event=\"alerts\"")
                && has("rule_hits", "rule=\"1:7\",message=\"asked\"")
            {
                break;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
        program.interrupt().success();
    }
}

/// The reasons for dropped packets are printed while a chain runs and when it has ended.
#[test]
fn reasons_for_dropped_packets_are_printed_while_a_chain_runs() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    run(&mut taut(&[
        "ips",
        "sample",
        "--traffic",
        &path("in.pcapng"),
    ]))
    .success();
    let name = format!("dropping-{}", std::process::id());
    let chain = format!(
        "name = \"{name}\"\nports = [\"pcap:{},repeat=0\", \"null:\"]\n\
         [[function]]\nname = \"filter\"\ndefault = \"drop\"\n\
         rules = [{{ action = \"drop\", protocol = \"udp\" }}]\n",
        path("in.pcapng")
    );
    fs::write(path("dropping.toml"), chain).unwrap();
    // Packets arrive all the time, so the program runs at a low priority to leave the core to others.
    let own = taut(&[""; 0]);
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(own.get_program());
    command.args(["chain", "up", "--quiet"]);
    let mut program = Program::start(command.arg(path("dropping.toml")));
    program.wait_for_stdout("up: compact");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = run(&mut taut(&["chain", "status", &name])).success();
        if status
            .stdout
            .contains("\n      dropped by filter: by a rule ")
            && status.stdout.contains(", by default ")
        {
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = run(&mut taut(&["chain", "status", &name, "--json"])).success();
    let all: Value = serde_json::from_str(&status.stdout).unwrap();
    let counts = all[0]["segments"][0]["counts"].as_array().unwrap();
    let of = |outcome: &str| counts.iter().find(|it| it["name"] == outcome).unwrap();
    let dropped = of("dropped by a rule");
    assert_eq!(
        (&dropped["function"], &dropped["kind"]),
        (&"filter".into(), &"drop".into())
    );
    assert!(dropped["count"].as_u64().unwrap() > 0, "{dropped}");
    assert_eq!(of("accepted by a rule")["kind"], "outcome");
    let down = program.interrupt().success();
    assert!(
        down.stdout.contains("dropped by filter: by a rule "),
        "{down:?}"
    );
}
