//! Variables: loop values, templates, and conditions.

use crate::definition::{Range, RangeScale};
use crate::error::{ExperimentError, Source};
use indexmap::IndexMap;
use minijinja::{Environment, UndefinedBehavior};
use serde_json::Value;
use std::collections::BTreeSet;
use taut_host::ssh::quote_if_needed;
use taut_settings::{in_words, suggestion};
use toml::Spanned;

/// Names and values of variables, in the order of the file.
pub type Values = IndexMap<String, Value>;

/// Maximum number of values that a loop variable has.
const MOST_VALUES: usize = 100_000;

/// Maximum number of combinations of all loops.
const MOST_COMBINATIONS: usize = 1_000_000;
/// Maximum memory of the values of all combinations together, bytes.
const MOST_BYTES: usize = 512 << 20;
/// Maximum length of a text after its variables are filled in, bytes.
const LONGEST_TEXT: usize = 1 << 20;
/// Maximum number of steps in the evaluation of a template or a condition: far more than hand-written texts need.
pub(crate) const MOST_STEPS: u64 = 1_000_000;
/// Maximum number of variables in a chain in which each refers to the next one.
const DEEPEST: usize = 100;

/// Names of the variables that taut sets in every run.
pub(crate) const GIVEN: [&str; 5] = ["run", "repetition", "seed", "nodes", "node"];

/// Parses the value of a variable in the experiment file that is not a loop variable.
pub(crate) fn scalar(
    source: &Source,
    value: &Spanned<toml::Value>,
) -> Result<Value, ExperimentError> {
    plain(value.get_ref()).ok_or_else(|| {
        source.wrong(
            value.span(),
            "a variable is a text, a number, true or false; lists and ranges belong under [loop]",
        )
    })
}

/// Returns a plain value of the file: a text, a number, true or false; `None` for another kind of value.
pub(crate) fn plain(value: &toml::Value) -> Option<Value> {
    Some(match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => serde_json::Number::from_f64(*number).map(Value::Number)?,
        toml::Value::Boolean(truth) => Value::from(*truth),
        _ => return None,
    })
}

/// Parses the values of a loop variable.
pub(crate) fn loop_values(
    source: &Source,
    value: &Spanned<toml::Value>,
) -> Result<Vec<Value>, ExperimentError> {
    let wrong = |reason: &str| source.wrong(value.span(), reason);
    let values = match value.get_ref() {
        toml::Value::Array(list) => list
            .iter()
            .map(plain)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| wrong("the values of a loop are texts, numbers, true or false"))?,
        toml::Value::Table(table) => {
            let range: Range = toml::Value::Table(table.clone())
                .try_into()
                .map_err(|e: toml::de::Error| wrong(&in_words(&e)))?;
            range_values(&range).map_err(|reason| wrong(&reason))?
        }
        _ => {
            return Err(wrong(
                "a loop takes a list, such as [1, 2, 3], or a range, such as { from = 1, to = 9, by = 2 }",
            ));
        }
    };
    let mut seen = BTreeSet::new();
    if values.is_empty() {
        return Err(wrong("a loop needs at least one value"));
    }
    if let Some(twice) = values.iter().find(|v| !seen.insert(v.to_string())) {
        return Err(wrong(&format!(
            "{twice} is listed twice; use plan.repetitions for repeated runs"
        )));
    }
    Ok(values)
}

fn range_values(range: &Range) -> Result<Vec<Value>, String> {
    let Range {
        from,
        to,
        by,
        steps,
        scale,
    } = *range;
    if !(from.is_finite() && to.is_finite())
        || (scale == RangeScale::Log && !(from > 0.0 && to > 0.0))
    {
        return Err(
            "a range goes from a number to a number, both above 0 where scale = \"log\"".into(),
        );
    }
    let count = match (by, steps) {
        (Some(by), None) if scale == RangeScale::Linear && by != 0.0 && (to - from) / by >= 0.0 => {
            (((to - from) / by + 1e-9).floor() as usize).saturating_add(1)
        }
        (None, Some(steps)) if steps >= 2 || (steps == 1 && from == to) => steps as usize,
        (Some(_), None) if scale == RangeScale::Log => {
            return Err("a range with scale = \"log\" takes `steps`, not `by`".into());
        }
        (Some(_), None) => return Err("`by` must lead from `from` to `to`".into()),
        (None, Some(_)) => {
            return Err("`steps` counts the values, both ends included: 2 or more".into());
        }
        _ => return Err("a range takes either `by` or `steps`".into()),
    };
    if count > MOST_VALUES {
        return Err(format!(
            "{count} values: the maximum for one loop is {MOST_VALUES}"
        ));
    }
    let at = |index: usize| match (by, scale) {
        (Some(by), _) => from + by * index as f64,
        (None, _) if count == 1 => from,
        (None, RangeScale::Linear) => from + (to - from) * index as f64 / (count - 1) as f64,
        (None, RangeScale::Log) => from * (to / from).powf(index as f64 / (count - 1) as f64),
    };
    let whole = [Some(from), Some(to), by]
        .into_iter()
        .flatten()
        .all(|x| x.fract() == 0.0);
    let mut values: Vec<Value> = (0..count)
        .map(at)
        // Ranges between integers yield integers, as frames and packets are counted.
        .map(|x| {
            if whole && x.abs() < 9e15 {
                Value::from(x.round() as i64)
            } else {
                Value::from(x)
            }
        })
        .collect();
    values.dedup();
    Ok(values)
}

/// Returns every combination of the values of loops and blocks, in the order of the file; the last loop changes
/// fastest.
pub(crate) fn combinations(
    source: &Source,
    loops: &IndexMap<String, Spanned<toml::Value>>,
    zips: &[IndexMap<String, Spanned<toml::Value>>],
) -> Result<Vec<Values>, ExperimentError> {
    let mut blocks: Vec<Vec<Values>> = Vec::new();
    for (name, value) in loops {
        let one = |v: Value| Values::from([(name.clone(), v)]);
        blocks.push(loop_values(source, value)?.into_iter().map(one).collect());
    }
    for zip in zips {
        let rows = rows_of_zip(source, zip)?;
        if !rows.is_empty() {
            blocks.push(rows);
        }
    }
    check_size(source, &blocks)?;
    let mut all = vec![Values::new()];
    for block in &blocks {
        all = all
            .iter()
            .flat_map(|before| {
                block.iter().map(move |row| {
                    let mut together = before.clone();
                    together.extend(row.clone());
                    together
                })
            })
            .collect();
    }
    Ok(all)
}

/// Returns the combinations of values in a block of variables that change together.
fn rows_of_zip(
    source: &Source,
    zip: &IndexMap<String, Spanned<toml::Value>>,
) -> Result<Vec<Values>, ExperimentError> {
    let mut rows: Vec<Values> = Vec::new();
    for (name, value) in zip {
        let values = loop_values_of_zip(source, value)?;
        if rows.is_empty() {
            rows.resize(values.len(), Values::new());
        }
        if rows.len() != values.len() {
            return Err(source.wrong(
                value.span(),
                format!(
                    "{} values here, {} before: variables that change together need equally many",
                    values.len(),
                    rows.len()
                ),
            ));
        }
        for (row, value) in rows.iter_mut().zip(values) {
            row.insert(name.clone(), value);
        }
    }
    Ok(rows)
}

/// Checks the number of all combinations of `blocks`, and the memory that they need.
fn check_size(source: &Source, blocks: &[Vec<Values>]) -> Result<(), ExperimentError> {
    let total = blocks
        .iter()
        .fold(1_usize, |total, block| total.saturating_mul(block.len()));
    if total > MOST_COMBINATIONS {
        return Err(source.wrong_somewhere(format!(
            "the loops make more than {MOST_COMBINATIONS} combinations"
        )));
    }
    let longest: usize = blocks
        .iter()
        .filter_map(|block| block.iter().map(size_of_values).max())
        .sum();
    if total.saturating_mul(longest) > MOST_BYTES {
        return Err(source.wrong_somewhere(format!(
            "the loops make {total} combinations of up to {longest} bytes: more than {MOST_BYTES} bytes in all"
        )));
    }
    Ok(())
}

/// Returns the values of a variable in a block of variables that change together; unlike in a loop, values may repeat.
fn loop_values_of_zip(
    source: &Source,
    value: &Spanned<toml::Value>,
) -> Result<Vec<Value>, ExperimentError> {
    if let toml::Value::Array(list) = value.get_ref() {
        let values: Option<Vec<Value>> = list.iter().map(plain).collect();
        return match values {
            Some(values) if !values.is_empty() => Ok(values),
            _ => Err(source.wrong(
                value.span(),
                "a block takes lists of texts, numbers, true or false",
            )),
        };
    }
    loop_values(source, value)
}

/// Evaluator of templates and conditions.
#[derive(Debug)]
pub(crate) struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    pub(crate) fn new() -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_keep_trailing_newline(true);
        environment.set_fuel(Some(MOST_STEPS));
        environment.add_filter("quote", |text: String| quote_if_needed(&text));
        Self { environment }
    }

    /// Returns the names of the variables that a template uses; variables of nodes have dots, such as
    /// `nodes.device.address`.
    pub(crate) fn used(
        &self,
        source: &Source,
        text: &Spanned<String>,
    ) -> Result<BTreeSet<String>, ExperimentError> {
        if !is_template(text.get_ref()) {
            return Ok(BTreeSet::new());
        }
        let template = self
            .environment
            .template_from_str(text.get_ref())
            .map_err(|e| source.wrong(text.span(), message(&e)))?;
        Ok(template.undeclared_variables(true).into_iter().collect())
    }

    /// Returns the names of variables that a condition or formula uses.
    pub(crate) fn used_in_expression(
        &self,
        source: &Source,
        text: &Spanned<String>,
    ) -> Result<BTreeSet<String>, ExperimentError> {
        let expression = self
            .environment
            .compile_expression(text.get_ref())
            .map_err(|e| source.wrong(text.span(), message(&e)))?;
        Ok(expression.undeclared_variables(true).into_iter().collect())
    }

    /// Returns the template with its variables filled in.
    pub(crate) fn fill(&self, text: &str, values: &Value) -> Result<String, String> {
        if !is_template(text) {
            return Ok(text.to_owned());
        }
        let mut out = Limited(Vec::new());
        self.environment
            .template_from_str(text)
            .and_then(|template| template.render_captured_to(values, &mut out).map(drop))
            .map_err(|e| {
                if out.0.len() > LONGEST_TEXT {
                    format!("it becomes longer than {LONGEST_TEXT} bytes")
                } else {
                    message(&e)
                }
            })?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }

    /// Returns whether a condition holds.
    pub(crate) fn holds(&self, condition: &str, values: &Values) -> Result<bool, String> {
        let value = self
            .environment
            .compile_expression(condition)
            .and_then(|expression| expression.eval(values))
            .map_err(|e| message(&e))?;
        Ok(value.is_true())
    }

    /// Fills in all variables whose texts refer to other variables.
    pub(crate) fn resolve(
        &self,
        source: &Source,
        values: &Values,
        spans: &IndexMap<String, std::ops::Range<usize>>,
    ) -> Result<Values, ExperimentError> {
        let mut done = Values::new();
        for name in values.keys() {
            self.resolve_one(source, name, values, spans, &mut done, &mut Vec::new())?;
        }
        // The values are in the order of the file.
        Ok(values
            .keys()
            .filter_map(|name| Some((name.clone(), done.get(name)?.clone())))
            .collect())
    }

    fn resolve_one(
        &self,
        source: &Source,
        name: &str,
        values: &Values,
        spans: &IndexMap<String, std::ops::Range<usize>>,
        done: &mut Values,
        path: &mut Vec<String>,
    ) -> Result<(), ExperimentError> {
        if done.contains_key(name) {
            return Ok(());
        }
        let span = spans.get(name).cloned().unwrap_or_default();
        if path.iter().any(|before| before == name) {
            path.push(name.to_owned());
            return Err(source.wrong(
                span,
                format!("variables need each other: {}", path.join(" -> ")),
            ));
        }
        if path.len() == DEEPEST {
            return Err(source.wrong(
                span,
                format!("`{name}` is nested too deeply: more than {DEEPEST} variables refer to each other in sequence"),
            ));
        }
        let Some(value) = values.get(name) else {
            return Ok(());
        };
        let Some(text) = value.as_str().filter(|text| is_template(text)) else {
            done.insert(name.to_owned(), value.clone());
            return Ok(());
        };
        path.push(name.to_owned());
        let spanned = Spanned::new(span.clone(), text.to_owned());
        for other in self.used(source, &spanned)? {
            if !values.contains_key(&other) {
                return Err(unknown(
                    source,
                    span,
                    &other,
                    values.keys().map(String::as_str),
                ));
            }
            self.resolve_one(source, &other, values, spans, done, path)?;
        }
        path.pop();
        let filled = self
            .fill(text, &serde_json::to_value(&*done).unwrap_or_default())
            .map_err(|reason| source.wrong(span, reason))?;
        done.insert(name.to_owned(), Value::from(filled));
        Ok(())
    }
}

/// Output of a template, limited to the maximum length.
struct Limited(Vec<u8>);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // One byte more than the limit is stored, so that a single write that is too long is detected too.
        let kept = bytes
            .len()
            .min((LONGEST_TEXT + 1).saturating_sub(self.0.len()));
        self.0.extend_from_slice(&bytes[..kept]);
        if self.0.len() > LONGEST_TEXT {
            return Err(std::io::Error::other("too long"));
        }
        Ok(kept)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the approximate memory that the values of variables use, bytes.
pub(crate) fn size_of_values(values: &Values) -> usize {
    let of =
        |(name, value): (&String, &Value)| 64 + name.len() + value.as_str().map_or(0, str::len);
    values.iter().map(of).sum()
}

/// Returns the message that a variable does not exist.
pub(crate) fn unknown<'a>(
    source: &Source,
    span: std::ops::Range<usize>,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> ExperimentError {
    source.wrong(
        span,
        format!("unknown variable `{name}`{}", suggestion(name, known)),
    )
}

fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|mark| text.contains(mark))
}

/// Returns the message for an error in a template or a formula.
pub(crate) fn message(error: &minijinja::Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), ToOwned::to_owned)
}

/// Returns a value as text.
pub(crate) fn text_of(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values_of(text: &str) -> Result<Vec<Value>, String> {
        #[derive(serde::Deserialize)]
        struct One {
            x: Spanned<toml::Value>,
        }
        let one: One = toml::from_str(text).unwrap();
        let source = Source {
            name: "e.toml".into(),
            text: text.into(),
        };
        loop_values(&source, &one.x).map_err(|e| e.to_string())
    }

    #[test]
    fn ranges_include_both_ends() {
        let of = |text: &str| serde_json::to_string(&values_of(text).unwrap()).unwrap();
        assert_eq!(of("x = { from = 1, to = 9, by = 4 }"), "[1,5,9]");
        assert_eq!(of("x = { from = 1, to = 8, by = 4 }"), "[1,5]");
        assert_eq!(
            of("x = { from = 0.5, to = 1.5, steps = 3 }"),
            "[0.5,1.0,1.5]"
        );
        assert_eq!(
            of("x = { from = 1, to = 1000, steps = 4, scale = 'log' }"),
            "[1,10,100,1000]"
        );
        assert_eq!(of("x = { from = 9, to = 1, by = -4 }"), "[9,5,1]");
        assert_eq!(of("x = ['a', 2, true]"), r#"["a",2,true]"#);
    }

    #[test]
    fn invalid_loops_are_reported_with_line_and_column() {
        for (text, part) in [
            ("x = []", "at least one"),
            ("x = [1, 1]", "1 is listed twice"),
            ("x = 3", "takes a list"),
            ("x = { from = 1, to = 9 }", "either"),
            ("x = { from = 1, to = 9, by = 0 }", "must lead"),
            ("x = { from = 1, to = 9, by = -1 }", "must lead"),
            (
                "x = { from = 0, to = 9, steps = 3, scale = 'log' }",
                "above 0",
            ),
            ("x = { from = 1, to = 9, step = 3 }", "unknown key `step`"),
            (
                "x = { from = 1, to = 1e9, by = 1 }",
                "the maximum for one loop",
            ),
            ("x = [[1]]", "texts, numbers"),
        ] {
            let message = values_of(text).unwrap_err();
            assert!(
                message.contains(part) && message.starts_with("e.toml:1:5: "),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn variables_are_resolved_in_any_order_and_cycles_are_refused() {
        let templates = Templates::new();
        let source = Source {
            name: "e.toml".into(),
            text: String::new(),
        };
        let values = Values::from([
            ("a".into(), Value::from("{{ b }}-{{ c }}")),
            ("b".into(), Value::from("b{{ c }}")),
            ("c".into(), Value::from(7)),
        ]);
        let resolved = templates
            .resolve(&source, &values, &IndexMap::new())
            .unwrap();
        assert_eq!(resolved["a"], "b7-7");
        let cycle = Values::from([
            ("a".into(), Value::from("{{ b }}")),
            ("b".into(), Value::from("{{ a }}")),
        ]);
        let message = templates
            .resolve(&source, &cycle, &IndexMap::new())
            .unwrap_err()
            .to_string();
        assert!(message.contains("a -> b -> a"), "{message}");
    }

    #[test]
    fn quoted_words_pass_through_a_shell_unchanged() {
        for word in [
            "plain",
            "",
            "two words",
            "it's",
            "$HOME",
            "a\nb",
            "full(32, 100us)",
        ] {
            let out = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quote_if_needed(word)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), word);
        }
    }
}
