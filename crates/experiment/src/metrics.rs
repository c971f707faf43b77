//! Metrics: the numbers that the commands of a run print, by name.

use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use taut_bench::measurement::TrafficSummary;
use taut_host::SystemActivity;

/// Maximum number of values of a list that become metrics, beginning with the first one. Further values, as in a
/// series, stay only in the run's files.
const MOST_OF_A_LIST: usize = 16;

/// Maximum number of other programs that a run names for one measurement.
const MOST_PROGRAMS: usize = 4;

/// Returns the numbers in the last JSON object of `output`, each named by its path: `latency.p99_ns`, `sizes.0.rate`.
/// The names of the first stream of `taut generate` lack the prefix `streams.0.`. Returns `None` if `output` contains
/// no object.
pub(crate) fn of_json(output: &str) -> Option<BTreeMap<String, f64>> {
    let object = last_object(output)?;
    let mut metrics = BTreeMap::new();
    flatten(&object, String::new(), &mut metrics);
    Some(metrics)
}

/// Returns the names of the other programs that used the most processor time, from the last JSON object of `output`:
/// from each `activity` of a machine, and each list `taken_by`.
pub(crate) fn programs_of(output: &str) -> Vec<String> {
    let mut programs = Vec::new();
    if let Some(object) = last_object(output) {
        add_programs(&object, &mut programs);
    }
    programs
}

fn add_programs(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let found = match name.as_str() {
                    "activity" => SystemActivity::deserialize(value).map(|it| it.busiest()),
                    "taken_by" => Vec::deserialize(value),
                    _ => {
                        add_programs(value, into);
                        continue;
                    }
                };
                let new = found.unwrap_or_default().into_iter();
                into.extend(new.take(MOST_PROGRAMS));
            }
        }
        Value::Array(list) => {
            for value in list.iter().take(MOST_OF_A_LIST) {
                add_programs(value, into);
            }
        }
        _ => {}
    }
}

/// Returns the whole output if it is a JSON object, otherwise its last line that is a JSON object.
fn last_object(output: &str) -> Option<Value> {
    let object = |text: &str| {
        serde_json::from_str::<Value>(text)
            .ok()
            .filter(Value::is_object)
    };
    object(output).or_else(|| output.lines().rev().find_map(object))
}

fn flatten(value: &Value, path: String, into: &mut BTreeMap<String, f64>) {
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match value {
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                into.insert(path, number);
            }
        }
        Value::Bool(truth) => {
            into.insert(path, f64::from(u8::from(*truth)));
        }
        Value::Object(object) => {
            let is_summary = value["event"] == "summary";
            for (name, value) in object {
                match value {
                    Value::Array(streams) if is_summary && name == "streams" => {
                        flatten_streams(streams, &path, into);
                    }
                    _ => flatten(value, below(name), into),
                }
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate().take(MOST_OF_A_LIST) {
                flatten(value, below(&index.to_string()), into);
            }
        }
        Value::Null | Value::String(_) => {}
    }
}

/// Adds the numbers of the streams in a summary; `path` is the prefix of their names. Names of the first stream lack
/// `streams.0.`, because most traffic has only one stream.
fn flatten_streams(streams: &[Value], path: &str, into: &mut BTreeMap<String, f64>) {
    let dot = if path.is_empty() { "" } else { "." };
    for (index, stream) in streams.iter().enumerate().take(MOST_OF_A_LIST) {
        let path = match index {
            0 if stream.is_object() => path.to_owned(),
            _ => format!("{path}{dot}streams.{index}"),
        };
        flatten(stream, path, into);
    }
}

/// Returns the value of a metric. A metric of the first stream is also found by a name with `streams.0.`.
pub(crate) fn find(metrics: &BTreeMap<String, f64>, name: &str) -> Option<f64> {
    let found = metrics.get(name);
    found
        .or_else(|| metrics.get(&without_first_stream(name)?))
        .copied()
}

/// Returns the name of the known metric to which `name` refers; `None` if there is no such metric. For a metric of the
/// first stream, it is the name without `streams.0.` if that name is known.
pub(crate) fn known_name(name: &str, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let short = without_first_stream(name).filter(|short| is_known(short));
    short.or_else(|| is_known(name).then(|| name.to_owned()))
}

/// Returns the name of a metric of the first stream without `streams.0.`; `None` for other metrics.
fn without_first_stream(name: &str) -> Option<String> {
    let (before, after) = name.split_once("streams.0.")?;
    (before.is_empty() || before.ends_with('.')).then(|| format!("{before}{after}"))
}

/// Returns the names of the numbers that a command prints as JSON, with 0 as the index of every list; `None` for
/// unknown commands.
pub(crate) fn names_of(command: &str) -> Option<BTreeSet<String>> {
    let mut words = command.split_whitespace();
    if (words.next(), words.next()) != (Some("taut"), Some("generate"))
        || ["--rate max", "--cores"]
            .iter()
            .any(|it| command.contains(it))
    {
        return None;
    }
    let mut metrics = BTreeMap::new();
    flatten(&TrafficSummary::example_json(), String::new(), &mut metrics);
    Some(metrics.keys().map(|name| without_indices(name)).collect())
}

/// Returns a metric's name in which the index of every list is replaced by 0.
pub(crate) fn without_indices(name: &str) -> String {
    let parts = name.split('.');
    let is_index = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = parts
        .map(|part| if is_index(part) { "0" } else { part })
        .collect();
    parts.join(".")
}

/// Returns the number that the pattern's first group matches, at the last match in `output`.
pub(crate) fn of_pattern(pattern: &str, output: &str) -> Result<f64, String> {
    let regex = regex_lite::Regex::new(pattern).map_err(|e| e.to_string())?;
    let found = regex
        .captures_iter(output)
        .last()
        .and_then(|captures| captures.get(1))
        .ok_or_else(|| format!("nothing in its output matches `{pattern}`"))?;
    found
        .as_str()
        .parse()
        .map_err(|_| format!("`{}` is not a number", found.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metrics_are_named_by_their_path_in_json() {
        let output = "starting\n{\"second\":1}\n{\"a\":{\"b\":2.5,\"c\":\"x\"},\"ok\":true,\"l\":[1,{\"d\":4}],\"n\":null}\n";
        let metrics = of_json(output).unwrap();
        let expected = [("a.b", 2.5), ("l.0", 1.0), ("l.1.d", 4.0), ("ok", 1.0)];
        assert_eq!(
            metrics,
            expected
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        );
        assert_eq!(of_json("{\n \"a\": 1\n}").unwrap()["a"], 1.0);
        assert_eq!(of_json("nothing"), None);
    }

    #[test]
    fn programs_that_took_a_core_are_found_in_json() {
        let output = r#"{"activity": {"duration_ms": 1000, "cores": [], "context_switches": 0, "involuntary_switches": 0,
            "load_average_before": null, "others": [{"name": "cc1", "ms": 500}, {"name": "sshd", "ms": 1}]},
            "deep": [{"taken_by": ["ld"]}]}"#;
        assert_eq!(programs_of(output), ["cc1", "ld"]);
        assert!(programs_of(r#"{"activity": 3, "taken_by": 4}"#).is_empty());
        assert!(programs_of("nothing").is_empty());
    }

    #[test]
    fn metrics_of_the_first_stream_have_short_names() {
        let summary = r#"{"event":"summary","seed":7,"streams":[{"lost":1,"tally":{"sent":5}},{"lost":2}],"inside":{"lost":3}}"#;
        let metrics = of_json(summary).unwrap();
        let expected = [
            ("inside.lost", 3.0),
            ("lost", 1.0),
            ("seed", 7.0),
            ("streams.1.lost", 2.0),
            ("tally.sent", 5.0),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(metrics, BTreeMap::from(expected));
        // Versions up to 0.2 print the first stream's fields twice.
        let former = r#"{"event":"summary","lost":1,"streams":[{"lost":1}]}"#;
        let lost = BTreeMap::from([("lost".to_owned(), 1.0)]);
        assert_eq!(of_json(former).unwrap(), lost);
        // Lists of other commands keep their names.
        for other in [
            r#"{"streams":[{"lost":1}]}"#,
            r#"{"event":"second","streams":[{"lost":1}]}"#,
        ] {
            assert_eq!(of_json(other).unwrap()["streams.0.lost"], 1.0);
        }
        let numbers = of_json(r#"{"event":"summary","streams":[4,5]}"#).unwrap();
        assert_eq!((numbers["streams.0"], numbers["streams.1"]), (4.0, 5.0));
    }

    #[test]
    fn metrics_of_the_first_stream_are_found_by_both_names() {
        let short: BTreeMap<_, _> = [("a.lost".to_owned(), 1.0), ("lost".to_owned(), 2.0)].into();
        assert_eq!(find(&short, "a.streams.0.lost"), Some(1.0));
        assert_eq!(find(&short, "streams.0.lost"), Some(2.0));
        assert_eq!(find(&short, "lost"), Some(2.0));
        assert_eq!(find(&short, "streams.1.lost"), None);
        assert_eq!(find(&short, "upstreams.0.lost"), None);
        let long: BTreeMap<_, _> = [("streams.0.lost".to_owned(), 3.0)].into();
        assert_eq!(find(&long, "streams.0.lost"), Some(3.0));
        let known = |known: &BTreeMap<String, f64>, name: &str| {
            known_name(name, |name| known.contains_key(name))
        };
        assert_eq!(known(&short, "streams.0.lost").unwrap(), "lost");
        assert_eq!(known(&long, "streams.0.lost").unwrap(), "streams.0.lost");
        assert_eq!(known(&long, "lost"), None);
    }

    #[test]
    fn metric_names_of_every_stream_are_known() {
        let names = names_of("taut generate --json").unwrap();
        for name in [
            "latency_ns.p99_ns",
            "streams.0.latency_ns.p99_ns",
            "streams.1.latency_ns.p99_ns",
            "streams.15.tally.sent",
        ] {
            assert!(names.contains(&without_indices(name)), "{name}");
        }
        assert!(!names.contains(&without_indices("streams.1.latency")));
        assert_eq!(names_of("taut generate --rate max --json"), None);
    }

    #[test]
    fn a_metric_pattern_uses_its_last_match_in_the_output() {
        assert_eq!(of_pattern("rtt=([0-9.]+)", "rtt=1.5 rtt=2.5"), Ok(2.5));
        assert!(of_pattern("rtt=([0-9.]+)", "no").is_err());
        assert!(of_pattern("(x)", "x").is_err());
    }

    #[test]
    fn send_delay_metrics_are_also_found_by_their_former_name() {
        let names = names_of("taut generate --json").unwrap();
        for name in ["send_delay_ns.p99_ns", "send_slip_ns.p99_ns"] {
            assert!(names.contains(name), "{name}");
        }
    }
}
