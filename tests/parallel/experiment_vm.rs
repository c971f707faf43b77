//! An experiment on two virtual machines with a link: its steps run there, frames pass the link, files come back.

use crate::support::program::Program;
use crate::support::{scratch, taut};
use std::fs;
use std::time::Duration;
use taut_deploy::vm::can_make_machines;

/// Time for two machines to boot by software beside other tests.
const LIMIT: Duration = Duration::from_secs(300);
const TWO: &str = r#"
title = "Two virtual machines"
[plan]
repetitions = 1
limit = "120s"
[nodes.gen]
at = "vm"
setup_once = ["ip address add 10.9.0.1/24 dev left"]
[nodes.dut]
at = "vm"
setup_once = ["ip address add 10.9.0.2/24 dev right", "hostname > name"]
[[link]]
between = ["gen:left", "dut:right"]
[[step]]
name = "ping"
node = "gen"
run = "ping -c 3 -i 0.2 10.9.0.2"
extract = { received = '(\d+) received' }
[[step]]
node = "dut"
run = "taut --version && uname -n"
"#;

#[test]
fn an_experiment_runs_on_two_virtual_machines_with_a_link() {
    if std::env::var_os("TAUT_EMULATED_NODES").is_none() {
        println!(
            "skipped: needs TAUT_EMULATED_NODES=1, as two machines by software take half a minute"
        );
        return;
    }
    if let Err(missing) = can_make_machines() {
        println!("skipped: needs {missing}");
        return;
    }
    let folder = scratch();
    let file = folder.path().join("two.toml");
    fs::write(&file, TWO).unwrap();
    let mut command = taut(&["experiment", "run"]);
    let out = folder.path().join("out");
    command.arg(&file).arg("--out").arg(&out);
    Program::start(&mut command).finish_within(LIMIT).success();
    let text = fs::read_to_string(out.join("runs/v1-r1/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["metrics"]["received"], 3.0);
    assert_eq!(record["links"][0]["direct"], true);
    let name = fs::read_to_string(out.join("runs/v1-r1/dut/name")).unwrap();
    assert_eq!(name, "dut\n");
}
