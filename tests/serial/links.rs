//! Links between nodes: they are verified before a run, a wrong cable is reported with both of its ends, and `taut lab
//! wire` finds crossed and dead cables.

use crate::support::program::Program;
use crate::support::{alone_and_root, scratch, taut};
use std::fs;
use std::process::Command;
use taut_host::Wiring;

fn ip(arguments: &[&str]) {
    assert!(
        Command::new("ip")
            .args(arguments)
            .status()
            .unwrap()
            .success()
    );
}

/// Returns `taut` with these arguments, to be run in a namespace.
fn inside(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    let taut = taut(arguments);
    command.arg(taut.get_program()).args(taut.get_args());
    command
}

#[test]
fn crossed_and_dead_wires_are_found() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let ends = [
        [(0, "eth1"), (2, "eth0")],
        [(0, "eth2"), (1, "eth0")],
        [(0, "eth3"), (1, "eth3")],
    ];
    let wiring = Wiring::build(3, &ends).unwrap();
    let [gen_ns, dut, dut2] = [0, 1, 2].map(|node| wiring.namespace(node));
    ip(&["-n", dut, "link", "set", "eth3", "down"]);
    let nodes = [("gen", gen_ns), ("dut", dut), ("dut2", dut2)];
    let nodes = nodes.map(|(name, namespace)| format!("{name}=netns:{namespace}"));
    let mut words: Vec<&str> = vec!["lab", "wire", "--seconds", "0.6", "--json"];
    words.extend(nodes.iter().map(String::as_str));
    let found = Program::start(&mut taut(&words)).finish().success();
    let found: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    let end = |value: &serde_json::Value| {
        format!(
            "{}:{}",
            value["node"].as_str().unwrap(),
            value["interface"].as_str().unwrap()
        )
    };
    let wires = found["wires"].as_array().unwrap().iter().map(|wire| {
        let both = if wire["both_ways"] == true {
            "<->"
        } else {
            "-->"
        };
        assert_eq!(wire["direct"], true, "{wire}");
        format!(
            "{} {both} {}",
            end(&wire["between"][0]),
            end(&wire["between"][1])
        )
    });
    let mut wires: Vec<String> = wires.collect();
    wires.sort();
    assert_eq!(wires, ["dut2:eth0 <-> gen:eth1", "dut:eth0 <-> gen:eth2"]);
    let unconnected = found["unconnected"].as_array().unwrap().iter();
    let unconnected: Vec<String> = unconnected
        .map(|it| format!("{} {}", end(&it[0]), it[1].as_str().unwrap()))
        .collect();
    assert_eq!(unconnected, ["dut:eth3 down", "gen:eth3 no carrier"]);
}

#[test]
fn a_wrong_cable_fails_the_run_and_names_both_ends() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let wiring = Wiring::build(1, &[[(0, "a0"), (0, "b1")], [(0, "a1"), (0, "b0")]]).unwrap();
    let namespace = wiring.namespace(0);
    let place = scratch();
    let file = |name: &str, far: [&str; 2]| {
        let links: String = ["a0", "a1"]
            .iter()
            .zip(far)
            .map(|(a, b)| format!("[[link]]\nbetween = [\"a:{a}\", \"b:{b}\"]\ncable = true\n"))
            .collect();
        let text = format!(
            "title = \"t\"\n[plan]\nrepetitions = 1\n[nodes.a]\n[nodes.b]\n{links}[[step]]\nnode = \"a\"\nrun = \"true\"\n"
        );
        fs::write(place.path().join(name), text).unwrap();
    };
    file("good.toml", ["b1", "b0"]);
    file("wrong.toml", ["b0", "b1"]);
    let run = |name: &str, out: &str| {
        let mut command = inside(namespace, &["experiment", "run", name, "--out", out]);
        Program::start(command.current_dir(place.path())).finish()
    };
    run("good.toml", "good").success();
    let record = fs::read_to_string(place.path().join("good/runs/v1-r1/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["links"].as_array().unwrap().len(), 2, "{record}");
    let wrong = run("wrong.toml", "wrong");
    assert_eq!(wrong.code(), Some(1), "{wrong:?}");
    let named = "link a:a0-b:b0: frames of a:a0 arrive at b:b1, not at b:b0; frames of b:b0 arrive at a:a1, not at a:a0";
    assert!(wrong.stderr.contains(named), "{wrong:?}");
}
