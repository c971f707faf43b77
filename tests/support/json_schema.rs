//! A validator of JSON for the part of JSON Schema that `--json-schema` prints. Any other keyword is an error.

use serde_json::{Map, Value};

/// Keywords that do not restrict a value, or that every value of our types satisfies.
const NOTES: [&str; 12] = [
    "$defs",
    "$id",
    "$schema",
    "default",
    "description",
    "format",
    "maximum",
    "minimum",
    "title",
    "unevaluatedProperties",
    "uniqueItems",
    "version",
];

/// Returns the places at which a value does not fit a schema, each with the reason.
pub fn misfits(root: &Value, value: &Value) -> Vec<String> {
    let mut check = Check {
        root,
        misfits: Vec::new(),
    };
    check.value(root, value, "");
    check.misfits
}

struct Check<'a> {
    root: &'a Value,
    misfits: Vec<String>,
}

impl Check<'_> {
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let mut check = Check {
            root: self.root,
            misfits: Vec::new(),
        };
        check.value(schema, value, "");
        check.misfits.is_empty()
    }

    fn must(&mut self, holds: bool, at: &str, what: &str) {
        if !holds {
            self.misfits.push(format!("{at}: {what}"));
        }
    }

    fn value(&mut self, schema: &Value, value: &Value, at: &str) {
        let Value::Object(keys) = schema else {
            return self.must(schema == &Value::Bool(true), at, "allowed by no schema");
        };
        for (keyword, wanted) in keys {
            let list = || wanted.as_array().unwrap().iter();
            match keyword.as_str() {
                "$ref" => {
                    let target = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                    self.value(self.root.pointer(target).unwrap(), value, at);
                }
                "type" => self.of_type(wanted, value, at),
                "const" => self.must(value == wanted, at, &format!("not {wanted}")),
                "enum" => self.must(list().any(|it| it == value), at, &format!("not {wanted}")),
                "allOf" => list().for_each(|it| self.value(it, value, at)),
                "anyOf" => {
                    let any = list().any(|it| self.fits(it, value));
                    self.must(any, at, &format!("fits no alternative: {value}"));
                }
                "oneOf" => {
                    let count = list().filter(|it| self.fits(it, value)).count();
                    let what = format!("fits {count} alternatives: {value}");
                    self.must(count == 1, at, &what);
                }
                "required" | "properties" | "additionalProperties" | "patternProperties" => {
                    self.object(keyword, keys, value, at);
                }
                "items" | "prefixItems" | "minItems" | "maxItems" => {
                    self.array(keyword, keys, value, at);
                }
                note => assert!(NOTES.contains(&note), "{note}: unknown keyword at {at}"),
            }
        }
    }

    fn of_type(&mut self, wanted: &Value, value: &Value, at: &str) {
        let is = |name: &Value| match name.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other}: unknown type"),
        };
        let holds = match wanted {
            Value::Array(names) => names.iter().any(is),
            name => is(name),
        };
        self.must(holds, at, &format!("no {wanted}: {value}"));
    }

    fn object(&mut self, keyword: &str, schema: &Map<String, Value>, value: &Value, at: &str) {
        let Value::Object(fields) = value else { return };
        let wanted = &schema[keyword];
        if keyword == "required" {
            for name in wanted.as_array().unwrap() {
                let name = name.as_str().unwrap();
                self.must(fields.contains_key(name), at, &format!("no field {name}"));
            }
            return;
        }
        let is_named = |name: &str| {
            schema
                .get("properties")
                .is_some_and(|it| it.get(name).is_some())
        };
        let has_pattern = |name: &str| {
            schema.contains_key("patternProperties") && name.bytes().all(|it| it.is_ascii_digit())
        };
        for (name, field) in fields {
            let at = format!("{at}/{name}");
            match keyword {
                "properties" if is_named(name) => self.value(&wanted[name], field, &at),
                // Schemas of taut have patterns only for names that are numbers.
                "patternProperties" if has_pattern(name) => {
                    let of_number = wanted.as_object().unwrap().values().next().unwrap();
                    self.value(of_number, field, &at);
                }
                "additionalProperties" if !is_named(name) && !has_pattern(name) => {
                    self.value(wanted, field, &at);
                }
                _ => {}
            }
        }
    }

    fn array(&mut self, keyword: &str, schema: &Map<String, Value>, value: &Value, at: &str) {
        let Value::Array(all) = value else { return };
        let wanted = &schema[keyword];
        let count = all.len() as u64;
        let before = schema.get("prefixItems").and_then(Value::as_array);
        let before = before.map_or(0, Vec::len);
        match keyword {
            "minItems" => self.must(count >= wanted.as_u64().unwrap(), at, "too short"),
            "maxItems" => self.must(count <= wanted.as_u64().unwrap(), at, "too long"),
            "prefixItems" => {
                for (number, (item, of)) in all.iter().zip(wanted.as_array().unwrap()).enumerate() {
                    self.value(of, item, &format!("{at}/{number}"));
                }
            }
            _ => {
                for (number, item) in all.iter().enumerate().skip(before) {
                    self.value(wanted, item, &format!("{at}/{number}"));
                }
            }
        }
    }
}
