//! The `requires` option: the version, features and keywords that a rule needs in the program that loads it.

use crate::number::number;
use crate::refusal::{Read, wrong};

/// Version of Suricata whose rule language taut supports.
const VERSION: [u32; 3] = [8, 0, 6];
/// Features of Suricata that taut supports.
const FEATURES: [&str; 1] = ["ja3"];

/// Returns the first requirement in `value` that is not met; none if all are met. `knows` returns true for supported
/// keywords.
///
/// # Errors
/// Returns an error if a version is invalid.
pub(crate) fn unmet(value: &str, knows: impl Fn(&str) -> bool) -> Read<Option<String>> {
    for part in value.split(',').map(str::trim) {
        let (kind, what) = part.split_once(' ').unwrap_or((part, ""));
        let is_met = match kind {
            "version" => has_version(what)?,
            "feature" => FEATURES.contains(&what.trim()),
            "keyword" => !what.is_empty() && knows(what.trim()),
            _ => false,
        };
        if !is_met {
            return Ok(Some(format!("requires {part}")));
        }
    }
    Ok(None)
}

/// Returns true if [`VERSION`] is in one of the ranges, which are separated by bars.
fn has_version(ranges: &str) -> Read<bool> {
    for range in ranges.split('|') {
        let mut is_in = true;
        let mut words = range.split_whitespace();
        let mut has_any = false;
        while let Some(word) = words.next() {
            let at = word.find(|it: char| it.is_ascii_digit());
            let (how, version) = match at {
                Some(at) => word.split_at(at),
                None => (word, words.next().unwrap_or_default()),
            };
            let version = version_of(version)?;
            is_in &= match how {
                ">=" => VERSION >= version,
                ">" => VERSION > version,
                "<=" => VERSION <= version,
                "<" => VERSION < version,
                _ => return wrong(format!("{how:?}: expected >=, >, <= or <, and a version")),
            };
            has_any = true;
        }
        if !has_any {
            return wrong("expected a version, such as >= 8.0.0");
        }
        if is_in {
            return Ok(true);
        }
    }
    Ok(false)
}

fn version_of(text: &str) -> Read<[u32; 3]> {
    let mut version = [0; 3];
    for (place, part) in text.split('.').enumerate() {
        let Some(here) = version.get_mut(place) else {
            return wrong(format!("{text:?}: expected a version, such as 8.0.0"));
        };
        *here = number(part)?;
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;

    #[test]
    fn unmet_version_and_feature_requirements_are_detected() {
        for (value, is_met) in [
            ("version >= 8.0.0", true),
            ("version >= 8.0.7", false),
            ("version >=7 <8 | >= 8.0.6", true),
            ("version >= 7 < 8", false),
            ("version > 8.0.6", false),
            ("feature ja3", true),
            ("feature lua", false),
            ("keyword nothing", false),
            ("keyword", false),
            ("version >= 8, keyword some", true),
            ("version >= 8, foo bar", false),
        ] {
            let unmet = unmet(value, |it| it == "some").ok();
            assert_eq!(unmet.map(|it| it.is_none()), Some(is_met), "{value}");
        }
        for value in [
            "version",
            "version 8",
            "version >= 8.x",
            "version >= 1.2.3.4",
        ] {
            assert!(
                matches!(unmet(value, |_| true), Err(Refusal::Wrong(_))),
                "{value}"
            );
        }
    }
}
