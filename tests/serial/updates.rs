//! `taut forward --control`: functions are replaced while packets flow, and no packet is lost.

use crate::support::program::Program;
use crate::support::undisturbed::undisturbed;
use crate::support::{Sockets, alone, taut};
use serde_json::{Value, json};

/// Returns the replies to updates so far.
fn answers(program: &Program) -> Vec<Value> {
    let lines = program.stdout();
    let lines = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let is_answer =
        |line: &Value| ["updated", "refused"].contains(&line["event"].as_str().unwrap());
    lines.filter(is_answer).collect()
}

fn update(program: &mut Program, line: &str) -> Value {
    let before = answers(program).len();
    program.say(line);
    program.wait_until("an answer", |stdout, _| {
        let count = |event: &str| stdout.matches(&format!("\"event\":\"{event}\"")).count();
        count("updated") + count("refused") > before
    });
    answers(program).pop().unwrap()
}

fn forwarder(sockets: &Sockets, more: &[&str]) -> Program {
    let ports = sockets.ports("client", "");
    let mut words = vec![
        "forward",
        "--json",
        "--quiet",
        "--control",
        "--until-stdin-closes",
    ];
    words.extend(ports.iter().map(String::as_str));
    words.extend(more);
    let mut program = Program::start(&mut taut(&words));
    program.wait_for_stdout("started");
    program
}

#[test]
fn a_chain_is_updated_under_traffic_without_loss() {
    let _turn = alone();
    // A generator that is preempted for long finds a full ring and loses packets, which is not the forwarder's fault.
    undisturbed(|| {
        let sockets = Sockets::new();
        let mut program = forwarder(&sockets, &["--function", "mac-swap"]);
        let ports = sockets.ports("server", "");
        let mut words = vec!["generate", "--json", "--rate", "5k", "--seconds", "1.5"];
        words.extend(["--max-loss", "0"]);
        words.extend(ports.iter().map(String::as_str));
        let mut generator = Program::start(&mut taut(&words));
        // In the first list, the same key is applied twice, which restores payloads.
        let lists = [
            json!([{"name": "xor", "key": 7}, {"name": "mac-swap"}, {"name": "xor", "key": 7}]),
            json!([]),
            json!([{"name": "mac-swap"}, {"name": "rlnc", "encode": [1]}, {"name": "rlnc"}]),
            json!([{"name": "forward"}, {"name": "mac-swap"}]),
        ];
        let mut updates = 0;
        while generator.is_running() {
            let functions = &lists[updates % lists.len()];
            let answer = update(&mut program, &json!({"functions": functions}).to_string());
            assert_eq!(answer["event"], "updated", "{answer}");
            assert!(answer["pause_us"].as_f64().unwrap() > 0.0, "{answer}");
            updates += 1;
        }
        assert!(updates > 10, "{updates}");
        let stream = generator.finish().first_stream();
        program.close_input();
        let total = program.finish().success().last_json();
        let changed = total["outcomes"]["changed"].as_u64();
        assert!(changed > Some(0), "{total} after {updates}");
        assert_eq!(stream["tally"]["corrupt"], 0, "{stream}");
        match stream["lost"].as_u64().unwrap() {
            0 => Ok(()),
            lost => Err(format!("{lost} lost: {stream}; {total}")),
        }
    });
}

#[test]
fn a_wrong_update_is_refused_and_changes_nothing() {
    let sockets = Sockets::new();
    let mut program = forwarder(&sockets, &["--wait", "interrupt"]);
    for (line, reason) in [
        (
            r#"{"functions": [{"name": "fowrard"}]}"#,
            "no function \"fowrard\"",
        ),
        (
            r#"{"functions": [{"name": "xor", "key": 300}]}"#,
            "function \"xor\"",
        ),
        (
            r#"{"functions": [{"name": "impair"}]}"#,
            "nothing wakes the worker",
        ),
        (r#"{"functions": 3}"#, "expected {\"functions\""),
        ("hello", "expected {\"functions\""),
    ] {
        let answer = update(&mut program, line);
        assert_eq!(answer["event"], "refused", "{answer}");
        let said = answer["reason"].as_str().unwrap();
        assert!(said.contains(reason), "{said}");
        assert!(!said.contains('\n'), "one line: {said}");
    }
    let answer = update(
        &mut program,
        r#"{"functions": [{"name": "xor", "key": 3}]}"#,
    );
    assert_eq!(
        (&answer["event"], &answer["made"]),
        (&json!("updated"), &json!(1))
    );
    program.close_input();
    program.finish().success();
}
