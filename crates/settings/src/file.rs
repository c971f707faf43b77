//! Errors in a file of settings: their position, and their description in words of the file instead of those of the
//! parser.

use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reason why a file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsFileError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system reported.
        source: std::io::Error,
    },
    /// The file has an invalid value.
    #[error("{place}: {reason}")]
    Wrong {
        /// Path of the file, with line and column if they are known.
        place: String,
        /// The fault, and the valid values.
        reason: String,
    },
}

impl SettingsFileError {
    /// Returns the text of the file.
    ///
    /// # Errors
    /// The error is `Unreadable`, or `Wrong` if the file is no text.
    pub fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => Self::Wrong {
                place: path.display().to_string(),
                reason: "is not a text file: expected TOML in UTF-8".to_string(),
            },
            _ => Self::Unreadable {
                path: path.to_path_buf(),
                source,
            },
        })
    }

    /// Parses a TOML file as a value.
    ///
    /// # Errors
    /// The errors are those of [`Self::read`], and `Wrong` for other contents.
    pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T, Self> {
        let text = Self::read(path)?;
        toml::from_str(&text).map_err(|e| Self::of_toml(&text, &path.display().to_string(), &e))
    }

    /// Makes an error in `text`, the contents of file `name`, at the byte offset `at` if it is known.
    pub fn wrong(text: &str, name: &str, at: Option<usize>, reason: impl AsRef<str>) -> Self {
        let place = at.and_then(|at| text.get(..at.min(text.len())));
        Self::Wrong {
            place: place.map_or_else(
                || name.to_string(),
                |before| {
                    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
                    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
                    format!("{name}:{line}:{column}")
                },
            ),
            reason: reason.as_ref().trim().replace('\n', " "),
        }
    }

    /// Makes an error from an error of the TOML parser in `text`, the contents of file `name`.
    pub fn of_toml(text: &str, name: &str, error: &toml::de::Error) -> Self {
        Self::wrong(text, name, error.span().map(|s| s.start), in_words(error))
    }
}

/// Returns the entry of `known` that is nearest to `word`, as the end of a sentence; empty if none is near.
///
/// ```
/// assert_eq!(taut_settings::suggestion("xro", ["aes", "xor"]), "; did you mean `xor`?");
/// assert_eq!(taut_settings::suggestion("日本", ["aes", "xor"]), "");
/// ```
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let length = word.chars().count();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min()
        // A suggestion must have at least one character in common with the word.
        .filter(|(distance, _)| *distance <= 1 + length / 4 && *distance < length)
        .map(|(_, candidate)| format!("; did you mean `{candidate}`?"))
        .unwrap_or_default()
}

/// Describes an error of the TOML parser in the terms of the settings file, not of Rust types. If the key is known, the
/// description begins with it, so that [`place_in`] finds the key.
pub fn in_words(error: &toml::de::Error) -> String {
    let message = error.message();
    // Without the input text, the parser's message ends with the path of keys instead of a quoted line.
    let mut bare = error.clone();
    bare.set_input(None);
    let bare = bare.to_string();
    let keys = bare
        .strip_prefix(message)
        .and_then(|rest| rest.trim().strip_prefix("in `")?.strip_suffix('`'));
    let mut keys: Vec<&str> = keys.map_or_else(Vec::new, |keys| keys.split('.').collect());
    if error.span().is_some() {
        // The position in the file identifies the outer keys, so only the last key is needed.
        keys = keys.split_off(keys.len().saturating_sub(1));
    }
    let key = keys.last().copied().unwrap_or_default();
    let outer = |keys: &[&str]| {
        keys.iter()
            .map(|key| format!("{key}: "))
            .collect::<String>()
    };
    let ticked: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if let (Some(wrong), Some((_, known))) = (
        message.strip_prefix("unknown field `"),
        ticked.split_first(),
    ) {
        let keys = if error.span().is_some() {
            &[]
        } else {
            &keys[..]
        };
        return format!("{}{}", outer(keys), unknown_key(wrong, ticked[0], known));
    }
    if message.starts_with("missing field `") {
        let keys = if error.span().is_some() {
            &[]
        } else {
            &keys[..]
        };
        return format!("{}the key `{}` is missing", outer(keys), ticked[0]);
    }
    let (value, want) = value_and_want(message, key, &ticked);
    let before = outer(&keys[..keys.len().saturating_sub(1)]);
    match (key, value) {
        // The message of one of the project's own types already begins with the key.
        _ if !key.is_empty() && want.starts_with(key) => format!("{before}{want}"),
        ("", None) => want,
        ("", Some(value)) => format!("{value}: expected {want}"),
        (_, Some(value)) => format!("{before}{key} = {value}: expected {want}"),
        // The message of one of the project's own types begins with the value.
        (_, None) if want.starts_with('"') => format!("{before}{key} = {want}"),
        (_, None) => format!("{before}{key}: {want}"),
    }
}

/// Describes an unknown key: `wrong` is the parser's message from the key's `name` on, and `known` are the valid keys.
fn unknown_key(wrong: &str, name: &str, known: &[&str]) -> String {
    let expected = wrong
        .strip_prefix(name)
        .and_then(|w| w.strip_prefix("`, expected "));
    let want = expected.map_or_else(
        || ": none are allowed here".to_string(),
        |expected| format!(": expected {expected}"),
    );
    format!(
        "unknown key `{name}`{want}{}",
        suggestion(name, known.iter().copied())
    )
}

/// Returns the invalid value, if the message contains one, and the valid values.
fn value_and_want(message: &str, key: &str, ticked: &[&str]) -> (Option<String>, String) {
    if message.starts_with("unknown variant `") {
        return unknown_variant(ticked);
    }
    let Some((given, expected)) = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        .or_else(|| message.strip_prefix("invalid length "))
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return (None, want_alone(message).to_string());
    };
    let number = ["integer `", "floating point `"]
        .iter()
        .find_map(|kind| given.strip_prefix(kind)?.strip_suffix('`'));
    let text = given.strip_prefix("string ");
    let boolean = given
        .strip_prefix("boolean `")
        .and_then(|it| it.strip_suffix('`'));
    let value = number.or(text).or(boolean);
    let want = match expected {
        "u8" => "a whole number from 0 to 255".to_string(),
        "u16" => "a whole number from 0 to 65535".to_string(),
        "u32" => "a whole number from 0 to 4294967295".to_string(),
        "u64" | "usize" => "a whole number, 0 or more".to_string(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_string(),
        "f32" | "f64" => "a number".to_string(),
        "a boolean" => "true or false".to_string(),
        "a string" | "path string" => match number.or(boolean) {
            Some(value) => format!("a text in quotes: \"{value}\""),
            None => "a text in quotes".to_string(),
        },
        "a sequence" => match value {
            Some(value) => format!("a list: [{value}]"),
            None if given == "map" && !key.is_empty() => {
                format!("a list: write `[[{key}]]`, with two brackets, or `{key} = [...]`")
            }
            None => "a list".to_string(),
        },
        "a map" => "a table of keys and values".to_string(),
        it if it.starts_with("struct ") => "a table of keys and values".to_string(),
        it => it.to_string(),
    };
    match value {
        Some(value) => (Some(value.to_string()), want),
        None => {
            let given = match given {
                "map" => ", not a table",
                "sequence" => ", not a list",
                _ => "",
            };
            let given = if want.contains("write `") { "" } else { given };
            (None, format!("expected {want}{given}"))
        }
    }
}

/// Returns the invalid value and the valid values; `ticked` has the invalid value first.
fn unknown_variant(ticked: &[&str]) -> (Option<String>, String) {
    let known = ticked.get(1..).unwrap_or_default();
    let names: Vec<_> = known.iter().map(|name| format!("\"{name}\"")).collect();
    let wrong = ticked.first().copied().unwrap_or_default();
    let meant = suggestion(wrong, known.iter().copied());
    let want = match &names[..] {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => names.concat(),
    } + &meant;
    (Some(format!("\"{wrong}\"")), want)
}

/// Returns the description of an error whose message contains no invalid value.
fn want_alone(message: &str) -> &str {
    match message {
        "invalid IP address syntax" => "expected an IP address such as \"192.0.2.1\"",
        "invalid IPv4 address syntax" => "expected an IPv4 address such as \"192.0.2.1\"",
        "invalid IPv6 address syntax" => "expected an IPv6 address such as \"2001:db8::1\"",
        "invalid socket address syntax" | "invalid IPv4 socket address syntax" => {
            "expected an address with a port, such as \"192.0.2.1:80\""
        }
        _ if message.starts_with("data did not match any variant") => {
            "expected a value of another kind"
        }
        _ => message,
    }
}

/// Returns the position of the key with which `reason` begins, in the `number`-th `[[table]]` of `text`, counted from
/// 0. A reason begins with the key, as in `rate = 7: ...`, or with the lists around the key and then the key. For
/// example, `rules 3: protocol = ...` is about the third entry of the list `rules`. Returns none if the reason is about
/// the table as a whole.
pub fn place_in(text: &str, table: &str, number: usize, reason: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let tables = entry(document.get_ref(), table)?.1.get_ref().as_array()?;
    let mut value: &Spanned<DeValue<'_>> = tables.get(number)?;
    let mut place = None;
    let mut rest = reason;
    while let Some(keys) = value.get_ref().as_table() {
        if let Some(unknown) = rest.strip_prefix("unknown key `") {
            let key = unknown.split('`').next().unwrap_or_default();
            return entry(keys, key).map(|(key, _)| key.span().start).or(place);
        }
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (key, after) = rest.split_at(rest.find(|c| !is_key(c)).unwrap_or(rest.len()));
        let Some((_, found)) = entry(keys, key) else {
            break;
        };
        value = found;
        rest = after;
        if let Some(list) = value.get_ref().as_array()
            && let Some((index, after)) = rest.trim_start().split_once(':')
            && let Ok(index @ 1..) = index.parse::<usize>()
            && let Some(element) = list.get(index - 1)
        {
            value = element;
            rest = after;
        }
        place = Some(value.span().start);
        rest = rest.trim_start_matches([':', ' ']);
    }
    place
}

fn entry<'t, 'i>(
    table: &'t DeTable<'i>,
    key: &str,
) -> Option<(
    &'t Spanned<toml::de::DeString<'i>>,
    &'t Spanned<DeValue<'i>>,
)> {
    table.iter().find(|(name, _)| name.get_ref() == key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde::Deserialize;

    #[test]
    fn an_error_is_one_line_with_file_line_and_column() {
        let wrong =
            |at| SettingsFileError::wrong("a\nbä c\nd", "x.toml", at, "two\nlines").to_string();
        assert_eq!(wrong(Some(6)), "x.toml:2:4: two lines");
        assert_eq!(wrong(Some(0)), "x.toml:1:1: two lines");
        assert_eq!(wrong(None), "x.toml: two lines");
        let missing = SettingsFileError::read(Path::new("/nowhere/x.toml"));
        let message = missing.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message.starts_with("/nowhere/x.toml: "), "{message}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0xff, 0xfe, 0]).unwrap();
        let message = SettingsFileError::read(file.path())
            .unwrap_err()
            .to_string();
        assert!(
            message.ends_with("is not a text file: expected TOML in UTF-8"),
            "{message}"
        );
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Colour {
        Red,
        DarkBlue,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code)]
    enum Either {
        Number(u64),
        List(Vec<u64>),
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        depth: u32,
    }

    impl Default for Inner {
        fn default() -> Self {
            Self { depth: 1 }
        }
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[allow(dead_code)]
    struct Settings {
        burst: usize,
        priority: u8,
        share: f64,
        fast: bool,
        rate: String,
        ports: Vec<u16>,
        function: Vec<Inner>,
        colour: Option<Colour>,
        either: Option<Either>,
        inner: Inner,
        path: PathBuf,
        ip: Option<std::net::IpAddr>,
    }

    #[test]
    fn parser_errors_quote_the_setting_and_the_expected_value() {
        for (text, in_file) in [
            (
                "burst = -1",
                "burst = -1: expected a whole number, 0 or more",
            ),
            (
                "priority = 256",
                "priority = 256: expected a whole number from 0 to 255",
            ),
            (
                "priority = \"7\"",
                "priority = \"7\": expected a whole number from 0 to 255",
            ),
            ("share = \"a\"", "share = \"a\": expected a number"),
            ("fast = 1", "fast = 1: expected true or false"),
            (
                "rate = 50000",
                "rate = 50000: expected a text in quotes: \"50000\"",
            ),
            ("rate = [1]", "rate: expected a text in quotes, not a list"),
            ("path = 5", "path = 5: expected a text in quotes: \"5\""),
            ("ports = 1", "ports = 1: expected a list: [1]"),
            (
                "[function]\ndepth = 1",
                "function: expected a list: write `[[function]]`, with two brackets, or `function = [...]`",
            ),
            (
                "colour = \"rod\"",
                "colour = \"rod\": expected \"red\" or \"dark-blue\"; did you mean `red`?",
            ),
            ("either = \"a\"", "either: expected a value of another kind"),
            (
                "ip = \"here\"",
                "ip: expected an IP address such as \"192.0.2.1\"",
            ),
            (
                "inner = 5",
                "inner = 5: expected a table of keys and values",
            ),
        ] {
            let error = toml::from_str::<Settings>(text).unwrap_err();
            assert_eq!(in_words(&error), in_file, "{text}");
            let table: toml::Table = text.parse().unwrap();
            let error = table.try_into::<Settings>().unwrap_err();
            assert_eq!(in_words(&error), in_file, "{text}, as a table");
        }
        let nested: toml::Table = "inner = { depth = -1 }".parse().unwrap();
        let error = nested.try_into::<Settings>().unwrap_err();
        let said = "inner: depth = -1: expected a whole number from 0 to 4294967295";
        assert_eq!(in_words(&error), said);
        let error = toml::from_str::<Settings>("[inner]\ndepht = 1").unwrap_err();
        let said = "unknown key `depht`: expected `depth`; did you mean `depth`?";
        assert_eq!(in_words(&error), said);
        #[derive(Debug, Deserialize)]
        struct Needs {
            #[allow(dead_code)]
            name: String,
        }
        let error = toml::from_str::<Needs>("").unwrap_err();
        assert_eq!(in_words(&error), "the key `name` is missing");
    }

    #[test]
    fn an_error_is_located_at_the_value_in_its_table() {
        let text =
            "[[f]]\na = 1\n[[f]]\nlong = { deep = 2 }\nrules = [\n  { p = 1 },\n  { p = 2 },\n]\n";
        let place = |number, reason: &str| {
            place_in(text, "f", number, reason).map(|at| text[at..].lines().next().unwrap())
        };
        assert_eq!(place(0, "a = 1: expected 2"), Some("1"));
        assert_eq!(place(1, "long: deep = 2: expected 3"), Some("2 }"));
        assert_eq!(
            place(1, "unknown key `long`: expected a"),
            Some("long = { deep = 2 }")
        );
        assert_eq!(place(1, "rules 2: p = 2: expected 3"), Some("2 },"));
        assert_eq!(
            place(1, "rules 2: unknown key `p`: expected q"),
            Some("p = 2 },")
        );
        assert_eq!(place(1, "rules 9: p = 2: expected 3"), Some("["));
        assert_eq!(place(1, "something else"), None);
        assert_eq!(place(7, "a = 1"), None);
    }

    #[test]
    fn a_suggestion_is_made_only_for_similar_words() {
        let meant = |word| suggestion(word, ["aes", "flush", "repetitions", "xor"]);
        assert_eq!(meant("flsh"), "; did you mean `flush`?");
        assert_eq!(meant("repetition"), "; did you mean `repetitions`?");
        for far in ["日本", "x", "zzzz", "", "f"] {
            assert_eq!(meant(far), "", "{far}");
        }
    }
}
