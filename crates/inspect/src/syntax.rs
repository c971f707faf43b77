//! Splits rule files into rules, and rules into header and options. What options mean is said in `read.rs`.

/// Mistake in a file of rules, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {reason}")]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1. In a rule over several lines that of the line where it begins.
    pub column: usize,
    /// What is wrong, in words.
    pub reason: String,
}

/// Rule as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<'a> {
    /// Line that it begins in, from 1.
    pub line: usize,
    /// Words of the header: action, protocol, and what follows them.
    pub header: Vec<Word<'a>>,
    /// Options in order.
    pub options: Vec<WrittenOption<'a>>,
}

/// A word and the column at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// The word; a list in brackets is one.
    pub text: &'a str,
    /// Column in characters, from 1.
    pub column: usize,
}

/// An option as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenOption<'a> {
    /// Its name.
    pub name: &'a str,
    /// What follows the colon.
    pub value: Option<&'a str>,
    /// Column in characters, from 1.
    pub column: usize,
}

/// Longest rule in bytes; what is longer is a mistake and no rule.
const LONGEST_RULE: usize = 64 * 1024;

/// Lines of a file put together to rules: a line that ends in a backslash, or whose parentheses are open, goes on in the next.
/// Comments and empty lines are left out. Each comes with the line it begins in.
pub fn joined(text: &str) -> Vec<(usize, String)> {
    let mut rules = Vec::new();
    let mut rule: Option<(usize, String)> = None;
    for (line, number) in text.lines().zip(1..) {
        let (line, goes_on) = match line.trim_end().strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line.trim_end(), false),
        };
        match &mut rule {
            None => {
                let begins = line.trim_start();
                if begins.is_empty() || begins.starts_with('#') {
                    continue;
                }
                rule = Some((number, line.to_string()));
            }
            Some((_, rule)) => {
                // A comment within a rule of several lines.
                if !line.trim_start().starts_with('#') {
                    rule.push(' ');
                    rule.push_str(line);
                }
            }
        }
        let done = |rule: &str| !goes_on && (rule.len() > LONGEST_RULE || !is_open(rule));
        if rule.as_ref().is_some_and(|(_, rule)| done(rule)) {
            rules.extend(rule.take());
        }
    }
    rules.extend(rule);
    rules
}

/// Whether its parentheses are open at its end. Those in quotes do not count.
fn is_open(rule: &str) -> bool {
    let (mut quoted, mut escaped, mut depth) = (false, false, 0i32);
    for (at, byte) in rule.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' if quoted => quoted = !ends_quote(&rule[at + 1..]),
            b'"' => quoted = true,
            b'(' if !quoted => depth += 1,
            b')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    depth > 0
}

/// Whether a quote ends a text that is in quotes, by what follows it: in expressions of rule files some stand by themselves.
fn ends_quote(behind: &str) -> bool {
    let behind = behind.trim();
    behind.is_empty() || behind == ")" || behind.starts_with([';', ','])
}

/// Splits a rule into its header and its options.
///
/// # Errors
/// When it has no options in parentheses, or quotes or options are not ended.
pub fn split(line: usize, rule: &str) -> Result<Written<'_>, Mistake> {
    let mistake = |at: usize, reason: &str| Mistake {
        line,
        column: rule
            .get(..at)
            .map_or(1, |before| before.chars().count() + 1),
        reason: reason.to_string(),
    };
    if rule.len() > LONGEST_RULE {
        return Err(mistake(
            0,
            "a rule of more than 64 KiB; is a parenthesis not closed?",
        ));
    }
    let open = rule.find('(').ok_or_else(|| {
        mistake(
            0,
            "want options in parentheses, such as (msg:\"...\"; sid:1;)",
        )
    })?;
    let end = rule.trim_end().len();
    if !rule[..end].ends_with(')') || end <= open + 1 {
        return Err(mistake(end, "want ) at the end of the rule"));
    }
    let header = words(&rule[..open]);
    let body = &rule[open + 1..end - 1];
    let mut options = Vec::new();
    let (mut quoted, mut escaped, mut from) = (false, false, 0);
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' if quoted => quoted = !ends_quote(&body[at + 1..]),
            b'"' => quoted = true,
            b';' if !quoted => {
                let written = &body[from..at];
                let begin = from + (written.len() - written.trim_start().len());
                let (name, value) = match written.split_once(':') {
                    Some((name, value)) => (name.trim(), Some(value.trim())),
                    None => (written.trim(), None),
                };
                if name.is_empty() {
                    return Err(mistake(open + 1 + begin, "an option without a name"));
                }
                let column = rule[..open + 1 + begin].chars().count() + 1;
                options.push(WrittenOption {
                    name,
                    value,
                    column,
                });
                from = at + 1;
            }
            _ => {}
        }
    }
    if quoted {
        return Err(mistake(open + 1 + from, "a quote that is not closed"));
    }
    if !body[from..].trim().is_empty() {
        return Err(mistake(end - 1, "want ; behind the last option"));
    }
    Ok(Written {
        line,
        header,
        options,
    })
}

/// The words of a header; what is in brackets is one word.
fn words(header: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let (mut depth, mut begin) = (0i32, None);
    for (at, c) in header.char_indices().chain([(header.len(), ' ')]) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        let is_end = (c.is_whitespace() && depth <= 0) || at == header.len();
        match begin {
            None if !is_end => begin = Some(at),
            Some(from) if is_end => {
                words.push(Word {
                    text: &header[from..at],
                    column: header[..from].chars().count() + 1,
                });
                begin = None;
            }
            _ => {}
        }
    }
    words
}

/// Splits a value at the commas that are neither in quotes nor in brackets.
pub fn parts(value: &str) -> Vec<&str> {
    let (mut quoted, mut escaped, mut depth, mut from) = (false, false, 0i32, 0);
    let mut parts = Vec::new();
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'[' if !quoted => depth += 1,
            b']' if !quoted => depth -= 1,
            b',' if !quoted && depth <= 0 => {
                parts.push(value[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(value[from..].trim());
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rules_go_on_over_lines_and_comments_do_not_count() {
        let text = "# one\n\nalert tcp any any -> any any (msg:\"a (\"; \\\n  sid:1;)\nalert http (\n  msg:\"b\";\n  # not this\n  sid:2; )\n";
        let rules = joined(text);
        assert_eq!(rules.iter().map(|rule| rule.0).collect::<Vec<_>>(), [3, 5]);
        assert!(rules[1].1.ends_with("sid:2; )") && !rules[1].1.contains("not this"));
    }

    #[test]
    fn options_are_split_where_no_quotes_are() {
        let rule = r#"alert tcp [10.0.0.0/8, 1.2.3.4] any -> $HOME_NET [80,8080] (msg:"a; \"b\""; content:"|3b 22|",nocase ; nocase; sid:7;)"#;
        let written = split(3, rule).unwrap();
        let words: Vec<_> = written.header.iter().map(|word| word.text).collect();
        assert_eq!(
            words,
            [
                "alert",
                "tcp",
                "[10.0.0.0/8, 1.2.3.4]",
                "any",
                "->",
                "$HOME_NET",
                "[80,8080]"
            ]
        );
        let options: Vec<_> = written
            .options
            .iter()
            .map(|it| (it.name, it.value))
            .collect();
        assert_eq!(options[0], ("msg", Some(r#""a; \"b\"""#)));
        assert_eq!(options[1], ("content", Some("\"|3b 22|\",nocase")));
        assert_eq!(options[2..], [("nocase", None), ("sid", Some("7"))]);
        assert_eq!(&rule[written.options[3].column - 1..][..3], "sid");
        // As rule files have it: a quote in an expression.
        let rule = r#"alert tcp any any -> any any (pcre:"/^["']?x;"(y)/Ri"; sid:8;)"#;
        let options = split(1, rule).unwrap().options;
        assert_eq!(options[0].value, Some(r#""/^["']?x;"(y)/Ri""#));
        assert_eq!(
            (options.len(), joined(&format!("{rule}\n{rule}")).len()),
            (2, 2)
        );
        assert_eq!(
            parts("\"a,b\",nocase, depth 5"),
            ["\"a,b\"", "nocase", "depth 5"]
        );
    }

    #[test]
    fn what_is_not_ended_is_said_with_its_place() {
        let said = |rule: &str| split(9, rule).unwrap_err().to_string();
        assert!(said("alert tcp any any").starts_with("9:1: want options"));
        assert!(said("alert tcp any any -> any any (sid:1;").contains("want )"));
        assert!(said("alert tcp any any -> any any (sid:1)").contains("want ; behind"));
        assert!(said("alert tcp any any -> any any (msg:\"a; sid:1;)").contains("quote"));
        assert!(said("alert tcp any any -> any any (;)").starts_with("9:31: an option without"));
        assert!(said(")(").contains("want )"));
    }
}
