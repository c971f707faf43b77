//! Options with fixed values in the commands of an experiment, such as `--size 64`. An option becomes a variable if a
//! perturbation changes it.

use super::scale::number_and_unit;
use super::{AWAKE, AWAKE_SETTING, Robust, SEED_OFFSET};
use crate::definition::Definition;
use crate::error::{ExperimentError, Source};
use crate::measurement::Task;
use crate::variables::{Values, loop_values};
use serde_json::Value;
use std::ops::Range;
use toml::Spanned;

/// Options of taut that describe traffic, link or device, in contrast to those that describe machine or output.
const PERTURBED: [&str; 21] = [
    "size",
    "rate",
    "ring",
    "slots",
    "burst",
    "batch",
    "interval",
    "count",
    "delay",
    "loss",
    "jitter",
    "latency",
    "window",
    "budget",
    "target",
    "trial",
    "periods",
    "seconds",
    "warm-up",
    "clock-error",
    "feedback-every",
];

/// An option of the commands that has become a variable.
#[derive(Debug, Clone)]
pub(crate) struct SettingOption {
    /// The option with its value in the experiment file, such as `--size 64`.
    pub(crate) name: String,
    /// Name of the experiment variable that replaces the option's fixed value.
    pub(crate) variable: String,
    /// Value of the option in the experiment file.
    pub(crate) value: Value,
}

/// Returns the names of the options with fixed values in the commands, such as `--size 64`, in their order.
pub(super) fn options_of(definition: &Definition, tasks: &[Task]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for text in texts(definition, tasks) {
        for (option, value) in options_in(text) {
            let name = format!("--{option} {}", &text[value]);
            if PERTURBED.contains(&option) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Replaces the values of the options that `robust` perturbs by variables, and returns these options. Also replaces the
/// seeds in commands, and the setting `awake`.
pub(crate) fn replace_options(
    robust: &Robust,
    definition: &mut Definition,
    tasks: &mut [Task],
) -> Vec<SettingOption> {
    let changes = || robust.points.iter().flat_map(|point| &point.changes);
    let mut options: Vec<SettingOption> = Vec::new();
    for name in options_of(definition, tasks) {
        let is_perturbed = changes().any(|change| change.variable() == name);
        if let Some((_, value)) = name.split_once(' ').filter(|_| is_perturbed) {
            options.push(SettingOption {
                variable: format!("robust_{}", options.len() + 1),
                value: Value::from(value),
                name,
            });
        }
    }
    let mut seeds = 0;
    let mut rewritten = |text: &mut Spanned<String>| {
        let (new, with_seed) = with_variables(text.get_ref(), &options);
        seeds += usize::from(with_seed);
        if new != *text.get_ref() {
            *text = Spanned::new(text.span(), new);
        }
    };
    for task in tasks {
        rewritten(&mut task.run);
    }
    for text in definition
        .file
        .iter_mut()
        .filter_map(|file| file.text.as_mut())
    {
        rewritten(text);
    }
    if seeds > 0 {
        options.push(SettingOption {
            name: SEED_OFFSET.to_owned(),
            variable: SEED_OFFSET.to_owned(),
            value: Value::from(0),
        });
    }
    if changes().any(|change| change.variable() == AWAKE_SETTING)
        && let Some(awake) = literal_awake(definition)
    {
        let text = toml::Value::String(format!("{{{{ {AWAKE} }}}}"));
        definition.awake = Some(Spanned::new(0..0, text));
        options.push(SettingOption {
            name: AWAKE_SETTING.to_owned(),
            variable: AWAKE.to_owned(),
            value: Value::from(awake),
        });
    }
    options
}

/// Returns the value of `awake` in the experiment file if it is a constant; `None` if it is a variable or missing.
pub(super) fn literal_awake(definition: &Definition) -> Option<bool> {
    match definition.awake.as_ref().map(Spanned::get_ref) {
        None => Some(false),
        Some(toml::Value::Boolean(awake)) => Some(*awake),
        Some(_) => None,
    }
}

/// Adds the variables that replace options, with the options' values in the experiment file.
pub(super) fn add_values(options: &[SettingOption], values: &mut Values) {
    for option in options {
        values.insert(option.variable.clone(), option.value.clone());
    }
}

fn texts<'a>(definition: &'a Definition, tasks: &'a [Task]) -> impl Iterator<Item = &'a str> {
    let files = definition.file.iter().filter_map(|file| file.text.as_ref());
    let runs = tasks.iter().map(|task| &task.run);
    runs.chain(files).map(|text| text.get_ref().as_str())
}

/// Returns the options in a text whose value is a number, each with the byte range of its value.
fn options_in(text: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    words_after_options(text).filter_map(|(option, value)| {
        let word = &text[value.clone()];
        number_and_unit(word).filter(|(_, unit)| !unit.contains(' '))?;
        Some((option, value))
    })
}

/// Returns the byte ranges of the values of `--seed` in a text: a number, or a variable with its braces.
fn seeds_in(text: &str) -> impl Iterator<Item = Range<usize>> {
    words_after_options(text).filter_map(|(option, value)| {
        if option != "seed" {
            return None;
        }
        let rest = &text[value.start..];
        if let Some(inner) = rest.strip_prefix("{{") {
            let end = inner.find("}}")?;
            let is_name = inner[..end]
                .trim()
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_');
            return is_name.then(|| value.start..value.start + end + 4);
        }
        text[value.clone()]
            .chars()
            .all(|c| c.is_ascii_digit())
            .then_some(value)
    })
}

/// Returns each `--option` in a text with the byte range of the word after it.
fn words_after_options(text: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    text.match_indices("--").filter_map(move |(at, _)| {
        let is_start = text[..at]
            .chars()
            .next_back()
            .is_none_or(|c| c.is_whitespace() || c == '"');
        let rest = &text[at + 2..];
        let length = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-'))?;
        if !is_start || length == 0 || !rest[length..].starts_with([' ', '=']) {
            return None;
        }
        let start = at + 2 + length + 1;
        let ends =
            |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '|' | '&' | ')' | '\\');
        let end = text[start..]
            .find(ends)
            .map_or(text.len(), |end| start + end);
        (end > start).then_some((&rest[..length], start..end))
    })
}

/// Returns the text with the values of the given options replaced by variables, and true if the text contains a seed.
fn with_variables(text: &str, options: &[SettingOption]) -> (String, bool) {
    let mut places: Vec<(Range<usize>, String)> = Vec::new();
    for (option, value) in options_in(text) {
        let name = format!("--{option} {}", &text[value.clone()]);
        if let Some(option) = options.iter().find(|it| it.name == name) {
            places.push((value, format!("{{{{ {} }}}}", option.variable)));
        }
    }
    let seeds: Vec<Range<usize>> = seeds_in(text).collect();
    let has_seed = !seeds.is_empty();
    for place in seeds {
        let seed = text[place.clone()].trim_matches(['{', '}', ' ']).to_owned();
        places.push((place, format!("{{{{ {seed} + {SEED_OFFSET} }}}}")));
    }
    places.sort_by_key(|(place, _)| place.start);
    let mut new = String::with_capacity(text.len());
    let mut done = 0;
    for (place, with) in places {
        new.push_str(&text[done..place.start]);
        new.push_str(&with);
        done = place.end;
    }
    new.push_str(&text[done..]);
    (new, has_seed)
}

/// Checks the names and values in the table `[robust]`.
pub(crate) fn check_robust(
    definition: &Definition,
    tasks: &[Task],
    source: &Source,
) -> Result<(), ExperimentError> {
    let options = options_of(definition, tasks);
    let in_blocks = |name: &String| definition.zip.iter().any(|zip| zip.contains_key(name));
    for (name, value) in &definition.robust {
        let is_loop = definition.loops.contains_key(name) || in_blocks(name);
        let is_known = is_loop
            || definition.variables.contains_key(name)
            || options.contains(name)
            || name == AWAKE_SETTING;
        if !is_known {
            let known = definition.variables.keys().chain(definition.loops.keys());
            let known = known.chain(&options).map(String::as_str);
            let alike = taut_settings::suggestion(name, known);
            return Err(source.wrong(
                value.span(),
                format!("robust: no variable or option `{name}`{alike}"),
            ));
        }
        let is_none = value.get_ref().as_array().is_some_and(Vec::is_empty);
        if let Some(times) = factors_of(value.get_ref()) {
            if times
                .iter()
                .any(|times| !(times.is_finite() && *times > 0.0))
            {
                return Err(source.wrong(value.span(), "robust: factors are above 0"));
            }
        } else if is_loop && !is_none {
            return Err(source.wrong(
                    value.span(),
                    "robust: a variable of a loop takes factors, such as { times = [0.5, 2] }, or [] to keep it",
                ));
        } else if !is_none {
            loop_values(source, value)?;
        }
    }
    Ok(())
}

/// Returns the factors in a value of the form `{ times = [...] }`; `None` for a value of another form.
pub(super) fn factors_of(value: &toml::Value) -> Option<Vec<f64>> {
    let table = value.as_table().filter(|table| table.len() == 1)?;
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|it| it as f64));
    let times = table.get("times")?.as_array()?.iter().map(number);
    times.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_commands_become_variables() {
        let text = "taut probe --size 20 --loss 1% --rate max --seed {{ repetition }} --core 2; x --size 20";
        let found: Vec<String> = options_in(text)
            .map(|(option, value)| format!("{option} {}", &text[value]))
            .collect();
        assert_eq!(found, ["size 20", "loss 1%", "core 2", "size 20"]);
        let size = SettingOption {
            name: "--size 20".to_owned(),
            variable: "robust_1".to_owned(),
            value: Value::from("20"),
        };
        let (new, has_seed) = with_variables(text, &[size]);
        assert_eq!(
            new,
            "taut probe --size {{ robust_1 }} --loss 1% --rate max --seed {{ repetition + robust_seed }} --core 2; x \
             --size {{ robust_1 }}"
        );
        assert!(has_seed);
        assert_eq!(
            with_variables("a --seed 7", &[]).0,
            "a --seed {{ 7 + robust_seed }}"
        );
        assert!(!with_variables("a --seed $7 --seed {{ a * 2 }}", &[]).1);
        assert!(options_in("a--size 20 --size").next().is_none());
    }
}
