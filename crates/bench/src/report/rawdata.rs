//! JSON values as rows of a table.

use serde_json::Value;

/// The text that a table shows for an empty list or object.
pub(crate) const NONE: &str = "none";

/// Returns a JSON value as pairs of name and text. Nested names are joined by `: `.
pub fn flatten(value: &Value) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    collect("", value, &mut rows);
    rows
}

fn collect(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let below = |part: &str| {
        if name.is_empty() {
            part.replace('_', " ")
        } else {
            format!("{name}: {}", part.replace('_', " "))
        }
    };
    match value {
        Value::Object(fields) if fields.is_empty() => rows.push((name.to_owned(), NONE.to_owned())),
        Value::Array(values) if values.is_empty() => rows.push((name.to_owned(), NONE.to_owned())),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(part, value)| collect(&below(part), value, rows)),
        Value::Array(values)
            if values
                .iter()
                .any(|value| value.is_object() || value.is_array()) =>
        {
            values
                .iter()
                .enumerate()
                .for_each(|(index, value)| collect(&below(&(index + 1).to_string()), value, rows));
        }
        Value::Array(values) => rows.push((
            name.to_owned(),
            values.iter().map(scalar).collect::<Vec<_>>().join(", "),
        )),
        _ => rows.push((name.to_owned(), scalar(value))),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_json_is_flattened_into_rows() {
        let value = serde_json::json!({"cpu": {"model_name": "x", "cores": [0, 1]}, "smt": false, "caches": [{"kB": 32}],
            "gone": null, "cards": {}, "isolated": []});
        let rows = flatten(&value);
        let text: Vec<String> = rows
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            text,
            [
                "caches: 1: kB=32",
                "cards=none",
                "cpu: cores=0, 1",
                "cpu: model name=x",
                "gone=unknown",
                "isolated=none",
                "smt=no"
            ]
        );
    }
}
