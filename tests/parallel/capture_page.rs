//! Tests of a running capture's page with curl: the page and its state, triggers, and flows compared with the sent
//! packets.

use crate::support::hosts::{Hosts, in_namespace, ping};
use crate::support::program::{Finished, Program, run};
use crate::support::taut;
use std::path::Path;

#[test]
fn a_page_displays_a_capture_and_a_token_guards_triggers() {
    let tools = [("ping", "iputils-ping"), ("curl", "curl")];
    let Some(hosts) = Hosts::new(2, &tools) else {
        return;
    };
    hosts.join_two();
    let one = hosts.all[0].0.clone();
    let folder = hosts.folder.path();
    let (control, dumps) = (folder.join("sock"), folder.join("dumps"));
    let mut capture = in_namespace(&one, env!("CARGO_BIN_EXE_taut"));
    capture.args(["capture", "eth0", "--ring", "64M", "--flows", "1000"]);
    capture.args([
        "--trigger",
        "by-hand",
        "--wait",
        "sleep(50us)",
        "--page",
        "0",
    ]);
    capture.args(["--metrics", "127.0.0.1:0", "--trigger", "ttl", "--analyse"]);
    capture.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/capture/ttl.lua"
    ));
    capture.arg("--dump").arg(&dumps);
    capture.arg("--control").arg(&control);
    let mut capturing = Program::start(&mut capture);
    capturing.wait_for_stdout("capturing");
    ping(&hosts.all[0], "10.8.0.2", 5, &["-i", "0.02"], 5);
    let said = capturing.stderr();
    let address = |what: &str| {
        let line = said.lines().find_map(|it| it.strip_prefix(what));
        line.unwrap().to_string()
    };
    let page = address("taut: page at ");
    assert!(page.starts_with("http://127.0.0.1:"), "{page}");
    let curl = |arguments: &[&str]| -> Finished {
        let mut curl = in_namespace(&one, "curl");
        run(curl.args(["--silent", "--max-time", "20"]).args(arguments))
    };
    // The page loads no other file.
    let html = curl(&["--fail", &page]).success().stdout;
    assert!(html.contains("Analysers") && !html.contains("src="));
    assert!(html.contains("Fire") && !html.contains("src="), "{html}");
    let token = html.split("const token = \"").nth(1).unwrap();
    let token = token.split('"').next().unwrap();
    let status = format!("{page}status");
    let echoes = |status: &serde_json::Value| {
        let flows = status["flows"]["top"].as_array().unwrap().clone();
        let of_ping = flows.into_iter().find(|it| it["protocol"] == 1);
        of_ping.map(|it| (it["packets"].clone(), it["addresses"].clone()))
    };
    // The test repeats the request until the state contains the flow. More than five echoes exist if a reply was late.
    let ends = serde_json::json!(["10.8.0.1", "10.8.0.2"]);
    capturing.wait_until("the flow of the pings", |_, _| {
        let state = curl(&["--fail", &status]).success().last_json();
        assert_eq!(state["ports"][0]["rx_overrun"], 0, "{state}");
        // The analyser has recorded the flow of the pings as well.
        let known = state["analysers"][0]["known"].as_u64().unwrap();
        let is_it = |(packets, of): (serde_json::Value, serde_json::Value)| {
            packets.as_u64() >= Some(10) && of == ends
        };
        known > 0 && echoes(&state).is_some_and(is_it)
    });
    let trigger = format!("{page}trigger/by-hand");
    let code = |arguments: &[&str]| {
        let told = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        curl(&[&told, arguments].concat()).success().stdout
    };
    let header = format!("X-Taut-Token: {token}");
    assert_eq!(code(&["--request", "POST", &trigger]), "403");
    assert_eq!(
        code(&["--data", "a=b", "--header", "X-Taut-Token: 0", &trigger]),
        "403"
    );
    let named = ["--header", "Host: example.org", &page];
    assert_eq!(code(&named), "421");
    let nobody = format!("{page}trigger/nobody");
    assert_eq!(
        code(&["--request", "POST", "--header", &header, &nobody]),
        "404"
    );
    let fired = |control: &Path| {
        let asked = run(taut(&["capture", "status", "--json", "--control"]).arg(control));
        asked.success().last_json()["status"]["triggers"][0]["fired"].clone()
    };
    assert_eq!(fired(&control), 0);
    assert_eq!(
        code(&["--request", "POST", "--header", &header, &trigger]),
        "200"
    );
    capturing.wait_for_stdout(" by-hand: ");
    assert_eq!(fired(&control), 1);
    let metrics = curl(&["--fail", &address("taut: metrics at ")])
        .success()
        .stdout;
    assert!(
        metrics.contains("taut_capture_triggers_fired_total{trigger=\"by-hand\"} 1"),
        "{metrics}"
    );
    let is_known = |line: &str| {
        let flows = "taut_capture_analyser_known_flows{analyser=\"ttl\",number=\"1\"} ";
        line.strip_prefix(flows).is_some_and(|count| count != "0")
    };
    assert!(metrics.lines().any(is_known), "{metrics}");
    let flows = |more: &[&str]| {
        let mut asked = taut(&["capture", "flows", "--control"]);
        run(asked.arg(&control).args(more)).success()
    };
    let shown = flows(&["--sort", "packets"]).stdout;
    assert!(shown.contains("capacity 1000, 0 forgotten"), "{shown}");
    let most = flows(&["--most", "0", "--json"]).last_json();
    assert_eq!(most["flows"]["top"], serde_json::json!([]), "{most}");
    let ended = capturing.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}
