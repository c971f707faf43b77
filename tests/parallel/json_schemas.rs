//! Tests that what commands print, and files of earlier versions, fit the schemas that `--json-schema` prints.

use crate::support::json_schema::misfits;
use crate::support::program::run;
use crate::support::{scratch, taut};
use serde_json::{Value, json};
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Command lines that end within seconds, on any machine.
const PRINTED: [&str; 20] = [
    "functions",
    "ports",
    "ports --matrix",
    "doctor",
    "demo --list-devices",
    "tune audit",
    "tune aliasing --rate 10k --latency 10us --interrupt 250/s:5us --for 1s",
    "model budget --calvin",
    "model check --published",
    "model predict --io 80 --ghz 2 --line 10G",
    "probe simulate --count 100",
    "probe simulate --count 100 --transport udp",
    "control run --virtual --periods 100",
    "control challenge --axis delay --seeds 1 --periods 100",
    "control show robot",
    "chain status",
    "experiment check stylianopoulos-fig2 --offline",
    "ips check sample.rules",
    "bench functions --function xor(key=90) --packets 1000 --repetitions 2",
    "forward --port null:source=32 --port null: --seconds 1",
];

/// Returns the schema of a command line.
fn schema(line: &str) -> Value {
    let words: Vec<&str> = line.split(' ').chain(["--json-schema"]).collect();
    let printed = run(&mut taut(&words)).success().stdout;
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn printed_json_fits_the_schema_of_its_command() {
    let folder = scratch();
    let rules = run(&mut taut(&["ips", "sample"])).success().stdout;
    std::fs::write(folder.path().join("sample.rules"), rules).unwrap();
    for line in PRINTED {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let ended = run(taut(&words).current_dir(folder.path()));
        let values = serde_json::Deserializer::from_str(&ended.stdout).into_iter();
        let values: Vec<Value> = values.collect::<Result<_, _>>().unwrap();
        assert!(!values.is_empty(), "{line}: {ended:?}");
        let schema = schema(line);
        for value in values {
            let misfits = misfits(&schema, &value);
            assert!(misfits.is_empty(), "{line}: {misfits:#?} of {value}");
        }
    }
}

#[test]
fn files_of_earlier_versions_fit_the_schemas_of_this_version() {
    for (file, line) in [
        ("docs/runs/replication.json", "experiment replicate-all"),
        ("crates/bench/src/measurement/example.json", "generate"),
        ("crates/bench/src/measurement/example.json", "report"),
    ] {
        let text = std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
        let misfits = misfits(&schema(line), &serde_json::from_str(&text).unwrap());
        assert!(misfits.is_empty(), "{file}: {misfits:#?}");
    }
}

#[test]
fn missing_fields_and_wrong_types_violate_a_schema() {
    let schema = schema("route convert");
    assert_eq!(misfits(&schema, &json!({"route": "x", "new": 1})), [""; 0]);
    for wrong in [json!({}), json!({"route": 1}), json!("x"), Value::Null] {
        assert_eq!(misfits(&schema, &wrong).len(), 1, "{wrong}");
    }
}
