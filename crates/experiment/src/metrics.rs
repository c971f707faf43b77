//! Metrics: the numbers that the commands of a run print, by name.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use taut_lab::measurement::TrafficSummary;

/// Returns the numbers in the last JSON object of `output`, each named by its path: `latency.p99_ns`, `sizes.0.rate`.
/// Returns `None` if `output` contains no object.
pub(crate) fn of_json(output: &str) -> Option<BTreeMap<String, f64>> {
    let object = last_object(output)?;
    let mut metrics = BTreeMap::new();
    flatten(&object, String::new(), &mut metrics);
    Some(metrics)
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
            for (name, value) in object {
                flatten(value, below(name), into);
            }
        }
        Value::Array(list) => {
            // Only the first 16 values of a list become metrics: longer lists are series, which stay in the run's
            // files.
            for (index, value) in list.iter().enumerate().take(16) {
                flatten(value, below(&index.to_string()), into);
            }
        }
        Value::Null | Value::String(_) => {}
    }
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
    Some(metrics.into_keys().collect())
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
    fn patterns_take_the_last_match() {
        assert_eq!(of_pattern("rtt=([0-9.]+)", "rtt=1.5 rtt=2.5"), Ok(2.5));
        assert!(of_pattern("rtt=([0-9.]+)", "no").is_err());
        assert!(of_pattern("(x)", "x").is_err());
    }

    #[test]
    fn the_send_delay_is_known_by_its_former_name_too() {
        let names = names_of("taut generate --json").unwrap();
        for name in ["send_delay_ns.p99_ns", "send_slip_ns.p99_ns"] {
            assert!(names.contains(name), "{name}");
        }
    }
}
