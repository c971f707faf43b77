//! Splits rule files into rules, and rules into header and options. The meaning of options is in `read.rs`.
//!
//! The parser never guesses at a mistyped rule: a missing semicolon or quote is an error with its position, and no rule
//! absorbs a part of the next one.

/// An error in a file of rules, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {reason}")]
pub struct Mistake {
    /// Line of the error, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Description of the error.
    pub reason: String,
}

/// A rule that was joined from its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    text: String,
    /// Offset of each line in the text, with the line's number.
    lines: Vec<(usize, usize)>,
    /// True if a quote was still open at the end of a line that does not continue in the next one.
    is_torn: bool,
}

impl Joined {
    /// Returns an error at a position of the text.
    pub fn mistake(&self, at: usize, reason: impl Into<String>) -> Mistake {
        let before = self.lines.partition_point(|line| line.0 <= at);
        let (begin, line) = match before.checked_sub(1) {
            Some(last) => self.lines[last],
            None => (0, 1),
        };
        let column = self.text.get(begin..at).map_or(0, |it| it.chars().count());
        Mistake {
            line,
            column: column + 1,
            reason: reason.into(),
        }
    }

    fn push(&mut self, number: usize, line: &str) {
        // The rule is already invalid, so its other lines are ignored.
        if self.is_torn || self.text.len() > LONGEST_RULE {
            return;
        }
        if !self.lines.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), number));
        self.text.push_str(line);
    }
}

/// A rule as written in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<'a> {
    /// Line in which the rule begins, counted from 1.
    pub line: usize,
    /// Words of the header: action, protocol, and what follows them.
    pub header: Vec<Word<'a>>,
    /// Options of the rule, in order.
    pub options: Vec<WrittenOption<'a>>,
}

/// A word and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// Text of the word; a list in brackets is one word.
    pub text: &'a str,
    /// Offset in the text of the rule, for [`Joined::mistake`].
    pub at: usize,
}

/// An option as written in a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenOption<'a> {
    /// Name of the option.
    pub name: &'a str,
    /// Text after the colon; none without a colon.
    pub value: Option<&'a str>,
    /// Offset in the text of the rule, for [`Joined::mistake`].
    pub at: usize,
}

/// Maximum length of a rule in bytes; a longer one is an error.
const LONGEST_RULE: usize = 64 * 1024;

/// Option names that, followed by a colon, are recognised as a new option even if the previous option or its quote is
/// not closed.
const TELLING: [&str; 20] = [
    "byte_test",
    "classtype",
    "content",
    "depth",
    "distance",
    "dsize",
    "flow",
    "flowbits",
    "gid",
    "metadata",
    "msg",
    "offset",
    "pcre",
    "priority",
    "reference",
    "rev",
    "sid",
    "threshold",
    "uricontent",
    "within",
];

/// Joins the lines of a file to rules. A line that ends in a backslash, or within a rule's parentheses, continues in
/// the next, unless a rule begins there. Comments and empty lines are skipped. `is_action` returns true for the words
/// that begin rules.
pub fn joined(text: &str, is_action: &dyn Fn(&str) -> bool) -> Vec<Joined> {
    let mut rules = Vec::new();
    let mut open: Option<(Joined, Scan)> = None;
    for (line, number) in text.lines().zip(1..) {
        let (line, goes_on) = match line.trim_end().strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line.trim_end(), false),
        };
        let is_inside = open.as_ref().is_some_and(|it| it.1.is_inside);
        if begins_rule(line, goes_on, is_action) || is_inside && has_arrow(line) {
            rules.extend(open.take().map(|it| it.0));
        }
        let begin = line.trim_start();
        let is_quoted = |it: &(Joined, Scan)| it.1.quote.is_some();
        let is_comment = begin.starts_with('#') && !open.as_ref().is_some_and(is_quoted);
        if open.is_none() && (is_comment || begin.is_empty()) {
            continue;
        }
        let (rule, scan) = open.get_or_insert_default();
        if !is_comment {
            rule.push(number, line);
            while scan.next(&rule.text).is_some_and(|seen| seen != Seen::End) {}
        }
        rule.is_torn |= !goes_on && scan.quote.is_some();
        if !goes_on && !scan.is_open() {
            rules.extend(open.take().map(|it| it.0));
        }
    }
    rules.extend(open.map(|it| it.0));
    rules
}

/// Returns true if a line looks like the first one of a rule: it begins with an action, and contains a parenthesis
/// unless it continues in the next line (`goes_on`).
fn begins_rule(line: &str, goes_on: bool, is_action: &dyn Fn(&str) -> bool) -> bool {
    let header = header_of(line);
    let first = header.split_whitespace().next();
    let is_header = !header.contains(['"', ';']) && (goes_on || header.len() < line.len());
    is_header && first.is_some_and(is_action)
}

/// Returns true if a line contains `->` or `<>` before a parenthesis, as the first line of a rule does even if its
/// action is mistyped. Lines with options of a rule do not.
fn has_arrow(line: &str) -> bool {
    let header = header_of(line);
    let is_header = !header.contains(['"', ';', '#']) && header.len() < line.len();
    let mut words = header.split_whitespace();
    is_header && words.any(|word| matches!(word, "->" | "<>"))
}

/// Returns the part of a line before a parenthesis.
fn header_of(line: &str) -> &str {
    line.split_once('(').map_or(line, |it| it.0)
}

/// The next item among the options of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// An option from the first offset to the second one, at which its semicolon is.
    Option(usize, usize),
    /// The parenthesis after the last option.
    End,
    /// Text at this offset, which is between a closed quote and the end of the option.
    Behind(usize),
    /// The name of another option, at this offset within an option that is not in quotes, so its semicolon is missing.
    Unended(usize),
    /// The name of another option, at this offset after a semicolon in a quoted value, so the value's closing quote is
    /// probably missing.
    Unquoted(usize),
}

/// An iterator over the options of a rule. When lines are appended to the rule, the iterator continues at its offset.
#[derive(Debug, Default)]
struct Scan {
    /// Offset in the rule's text that is read next.
    at: usize,
    /// True if `at` is after the parenthesis before the options.
    is_inside: bool,
    /// True if `at` is after the parenthesis that ends the options.
    is_ended: bool,
    /// Offset of the current option in the rule's text.
    option: usize,
    /// Offset of the first colon in the current option; none before a colon.
    colon: Option<usize>,
    /// Offset of the open quote in the current option; none if no quote is open.
    quote: Option<usize>,
    /// True if a quote was closed and nothing has followed since.
    is_closed: bool,
    /// True if a backslash precedes the next byte.
    is_escaped: bool,
}

impl Scan {
    /// Returns true if the rule is not complete.
    fn is_open(&self) -> bool {
        self.is_inside && !self.is_ended
    }

    fn next(&mut self, text: &str) -> Option<Seen> {
        while let Some(&byte) = text.as_bytes().get(self.at) {
            self.at += 1;
            if let Some(seen) = self.step(text, self.at - 1, byte) {
                return Some(seen);
            }
        }
        None
    }

    fn step(&mut self, text: &str, at: usize, byte: u8) -> Option<Seen> {
        if !self.is_inside {
            self.is_inside = byte == b'(';
            self.option = at + 1;
            return None;
        }
        let is_escaped = std::mem::take(&mut self.is_escaped);
        if self.is_ended || is_escaped {
            return None;
        }
        match (byte, self.quote) {
            (b'\\', _) => self.is_escaped = true,
            (b'"', Some(quote)) => {
                if self.ends_quote(text, quote, at) {
                    (self.quote, self.is_closed) = (None, true);
                }
            }
            (b':', Some(_)) => {
                let (name, before) = self.name_before(text, at);
                let is_swallowed = before.ends_with(';') && !before.ends_with("\\;");
                let is_telling = TELLING.contains(&text[name..at].trim_end());
                return (is_swallowed && is_telling).then_some(Seen::Unquoted(name));
            }
            (_, Some(_)) => {}
            (b';', None) => {
                let seen = Seen::Option(self.option, at);
                (self.option, self.colon, self.is_closed) = (at + 1, None, false);
                return Some(seen);
            }
            (b')', None) if text[self.option..at].trim_start().is_empty() => {
                self.is_ended = true;
                return Some(Seen::End);
            }
            (byte, None) => return self.bare(text, at, byte),
        }
        None
    }

    /// Handles a byte within an option, outside of quotes or at the beginning of a quote. Returns the item that the
    /// byte completes, if any.
    fn bare(&mut self, text: &str, at: usize, byte: u8) -> Option<Seen> {
        match byte {
            b',' => self.is_closed = false,
            _ if byte.is_ascii_whitespace() => {}
            // The semicolon after the last option is checked later.
            b')' if text[at + 1..].trim_start().is_empty() => {}
            _ if self.is_closed => {
                self.is_closed = false;
                return Some(Seen::Behind(at));
            }
            b'"' => {
                self.quote = Some(at);
                let before = text[self.option..at].trim_end();
                let before = before.trim_end_matches('!').trim_end();
                let last = self.option + before.len().saturating_sub(1);
                if before.ends_with(':') && self.colon != Some(last) {
                    return Some(Seen::Unended(self.name_before(text, last).0));
                }
            }
            b':' if self.colon.is_none() => self.colon = Some(at),
            b':' => {
                let (name, before) = self.name_before(text, at);
                let is_apart = text[..name].ends_with(char::is_whitespace);
                let is_swallowed = is_apart && !before.ends_with(',');
                let is_telling = TELLING.contains(&text[name..at].trim_end());
                return (is_swallowed && is_telling).then_some(Seen::Unended(name));
            }
            _ => {}
        }
        None
    }

    /// Returns the offset of the name before a colon, and the text between the beginning of the current option and the
    /// name, without trailing spaces.
    fn name_before<'a>(&self, text: &'a str, colon: usize) -> (usize, &'a str) {
        let text = &text[self.option..colon];
        let begin = text.trim_end().trim_end_matches(is_of_name).len();
        (self.option + begin, text[..begin].trim_end())
    }

    /// Returns true if a quote closes the quoted text. The expression of `pcre` may contain quotes of its own, so in
    /// `pcre` the text after the quote decides.
    fn ends_quote(&self, text: &str, quote: usize, at: usize) -> bool {
        if !text[self.option..quote].trim_start().starts_with("pcre") {
            return true;
        }
        let behind = text[at + 1..].trim_start();
        let is_last = |behind: &str| behind.trim_start().is_empty();
        let ends_option = behind.starts_with([';', ',']) || is_last(behind);
        if ends_option || behind.strip_prefix(')').is_some_and(is_last) {
            return true;
        }
        // If an option follows a complete expression, the semicolon between them is missing.
        let flags = |c: char| c.is_ascii_alphabetic();
        let before = text[quote + 1..at].trim_end_matches(flags);
        let is_whole = before.len() > 1 && before.ends_with('/') && !before.ends_with("\\/");
        let other = behind.trim_start_matches(is_of_name);
        let is_apart = text[at + 1..].starts_with(char::is_whitespace);
        is_whole
            && is_apart
            && other.len() < behind.len()
            && other.trim_start().starts_with([':', ';'])
    }
}

/// Returns true for characters of option names.
fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Splits a rule into its header and its options.
///
/// # Errors
/// Returns an error if the rule has no options in parentheses, or if quotes or options are not closed.
pub fn split(rule: &Joined) -> Result<Written<'_>, Mistake> {
    let text = &rule.text[..];
    if text.len() > LONGEST_RULE {
        let reason = "a rule of more than 64 KiB; is a parenthesis not closed?";
        return Err(rule.mistake(0, reason));
    }
    let Some(open) = text.find('(') else {
        let reason = "expected options in parentheses, such as (msg:\"...\"; sid:1;)";
        return Err(rule.mistake(0, reason));
    };
    let mut options = Vec::new();
    let mut scan = Scan::default();
    while let Some(seen) = scan.next(text) {
        match seen {
            Seen::Option(from, to) => options.push(option(rule, from, to)?),
            Seen::End => break,
            Seen::Behind(at) => {
                let reason =
                    "text behind a closed quote: expected ; in front of it, or \\\" in quotes";
                return Err(rule.mistake(at, reason));
            }
            Seen::Unended(at) => {
                let reason = "an option within another one: expected ; in front of it";
                return Err(rule.mistake(at, reason));
            }
            Seen::Unquoted(at) => {
                let reason =
                    "an option within quotes: expected a quote before the ; or \\; in quotes";
                return Err(rule.mistake(at, reason));
            }
        }
    }
    if let Some(quote) = scan.quote {
        return Err(rule.mistake(quote, "a quote that is not closed in its line"));
    }
    let end = text.trim_end().len();
    if scan.is_open() {
        return Err(match text[..end].ends_with(')') && end > open + 1 {
            true => rule.mistake(end - 1, "expected ; after the last option"),
            false => rule.mistake(end, "expected ) at the end of the rule"),
        });
    }
    let behind = text[scan.at..end].trim_start().len();
    if behind > 0 {
        return Err(rule.mistake(end - behind, "text after the ) that ends the rule"));
    }
    Ok(Written {
        line: rule.lines.first().map_or(1, |line| line.1),
        header: words(&text[..open]),
        options,
    })
}

/// Returns the option between two offsets.
fn option(rule: &Joined, from: usize, to: usize) -> Result<WrittenOption<'_>, Mistake> {
    let written = rule.text[from..to].trim_start();
    let at = to - written.len();
    let (name, value) = match written.split_once(':') {
        Some((name, value)) => (name.trim_end(), Some(value.trim())),
        None => (written.trim_end(), None),
    };
    if name.is_empty() {
        return Err(rule.mistake(at, "an option without a name"));
    }
    if let Some(other) = name.find(|c| !is_of_name(c)) {
        let gap = name[other..].len() - name[other..].trim_start().len();
        return Err(rule.mistake(
            at + other + gap,
            "expected : or ; after the name of an option",
        ));
    }
    Ok(WrittenOption { name, value, at })
}

/// Returns the words of a header; text in brackets is one word.
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
                    at: from,
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

    const ACTIONS: [&str; 2] = ["alert", "drop"];

    fn rules(text: &str) -> Vec<Joined> {
        joined(text, &|word| ACTIONS.contains(&word))
    }

    fn one(text: &str) -> Joined {
        let rules = rules(text);
        assert_eq!(rules.len(), 1, "{rules:?}");
        rules.into_iter().next().unwrap()
    }

    /// Returns the result of each rule of a text: its number of options, or its error.
    fn said(text: &str) -> Vec<Result<usize, String>> {
        let said = |rule: &Joined| match split(rule) {
            Ok(written) => Ok(written.options.len()),
            Err(mistake) => Err(mistake.to_string()),
        };
        rules(text).iter().map(said).collect()
    }

    #[test]
    fn rules_may_span_lines_and_comments_are_skipped() {
        let text = "# one\n\nalert tcp any any -> any any (msg:\"a (\"; \\\n  sid:1;)\nalert http (\n  msg:\"b\";\n  # not this\n  sid:2; )\n";
        let rules = rules(text);
        let lines: Vec<_> = rules.iter().map(|rule| split(rule).unwrap().line).collect();
        assert_eq!(lines, [3, 5]);
        let text = &rules[1].text;
        assert!(text.ends_with("sid:2; )") && !text.contains("not this"));
    }

    #[test]
    fn options_are_split_only_outside_of_quotes() {
        let rule = one(
            r#"alert tcp [10.0.0.0/8, 1.2.3.4] any -> $HOME_NET [80,8080] (msg:"a; \"b\""; content:"|3b 22|",nocase ; nocase; sid:7;)"#,
        );
        let written = split(&rule).unwrap();
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
        assert_eq!(&rule.text[written.options[3].at..][..3], "sid");
        assert_eq!(
            parts("\"a,b\",nocase, depth 5"),
            ["\"a,b\"", "nocase", "depth 5"]
        );
    }

    #[test]
    fn quotes_within_regular_expressions_do_not_end_the_option() {
        let text = r#"alert tcp any any -> any any (pcre:"/^["']?x;"(y)/Ri"; sid:8;)"#;
        let rules = rules(&format!("{text}\n{text}"));
        assert_eq!(rules.len(), 2);
        let options = split(&rules[0]).unwrap().options;
        assert_eq!(options[0].value, Some(r#""/^["']?x;"(y)/Ri""#));
        assert_eq!(options.len(), 2);
    }

    #[test]
    fn an_unterminated_rule_is_reported_with_line_and_column() {
        let said = |rule: &str| split(&one(rule)).unwrap_err().to_string();
        assert!(said("\nalert tcp any any").starts_with("2:1: expected options"));
        let header = "alert tcp any any -> any any ";
        for (options, place, reason) in [
            ("(sid:1;", "1:37", "expected ) at the end"),
            ("(sid:1)", "1:36", "expected ; after the last"),
            (r#"(sid:1; msg:"a")"#, "1:45", "expected ; after the last"),
            (r#"(msg:"a; x:1;)"#, "1:35", "a quote that is not closed"),
            (r#"(msg:"a\"; sid:1;)"#, "1:41", "an option within quotes"),
            ("(;)", "1:31", "an option without a name"),
            ("(sid:1;) x", "1:39", "text after the )"),
            (
                r#"(msg:"a" content:"b"; sid:1;)"#,
                "1:39",
                "text behind a closed quote",
            ),
            (
                r#"(msg:"a; content:"b"; sid:1;)"#,
                "1:39",
                "an option within quotes",
            ),
            (
                r#"(msg:"ä; x "b"; sid:1;)"#,
                "1:42",
                "text behind a closed quote",
            ),
            (
                r#"(msg:"aä: "b"; sid:1;)"#,
                "1:41",
                "text behind a closed quote",
            ),
            (
                r#"(msg:"a""b"; sid:1;)"#,
                "1:38",
                "text behind a closed quote",
            ),
            (
                r#"(pcre:"/a/i" content:"/b/"; sid:1;)"#,
                "1:43",
                "text behind a closed quote",
            ),
            (
                r#"(pcre:"/a/i" nocase; sid:1;)"#,
                "1:43",
                "text behind a closed quote",
            ),
            (
                r#"(pcre:"/a/i; content:"/b/"; sid:1;)"#,
                "1:43",
                "an option within quotes",
            ),
            (
                r#"(msg:"a; sid:1; content:b"; sid:2;)"#,
                "1:39",
                "an option within quotes",
            ),
            (
                r#"(nocase content:"b"; sid:1;)"#,
                "1:38",
                "expected : or ; after the name",
            ),
            (
                r#"(reference:url,x content:"b"; sid:1;)"#,
                "1:47",
                "an option within another",
            ),
            (
                "(classtype:x rev:2; sid:1;)",
                "1:43",
                "an option within another",
            ),
            (
                r#"(metadata:x y, ttl:"b"; sid:1;)"#,
                "1:45",
                "an option within another",
            ),
        ] {
            let found = said(&format!("{header}{options}"));
            assert!(
                found.starts_with(&format!("{place}: {reason}")),
                "{options}: {found}"
            );
        }
        assert!(said(")(").contains("expected )"));
    }

    #[test]
    fn errors_in_continued_rules_name_their_line_and_column() {
        let text = "alert tcp any any \\\n  -> any any (msg:\"a\"; \\\n\n";
        assert_eq!(
            said(text),
            [Err("2:23: expected ) at the end of the rule".into())]
        );
        let text =
            "\n alert tcp any any -> any any (msg:\"ä\"; \\\n # no\n\tmsg:\"b\" x; \\\nsid:1;)\n";
        let behind = "text behind a closed quote: expected ; in front of it, or \\\" in quotes";
        assert_eq!(said(text), [Err(format!("4:10: {behind}"))]);
        let text = "alert http (\n  msg:\"a\";\n  content: \"b;\n  sid:1;\n)\n";
        assert_eq!(
            said(text),
            [Err("3:12: a quote that is not closed in its line".into())]
        );
        // The rule continues after a backslash.
        assert_eq!(said("alert http (msg:\"a \\\n b\"; sid:1;)"), [Ok(2)]);
    }

    #[test]
    fn a_syntax_error_does_not_affect_adjacent_rules() {
        let good = "alert tcp any any -> any any (msg:\"good\"; sid:1;)";
        for bad in [
            "drop tcp any any -> any any (msg:\"a; sid:1;)",
            "drop tcp any any -> any any (msg:\"a; \\\n sid:1;)",
            "drop tcp any any -> any any (msg:\"a\"; sid:1;",
            "drop tcp any any -> any any (msg:\"a\"; sid:1; \\",
            "drop tcp any any -> any any (msg:\"a; sid:1;) \\",
            "drop tcp any any -> any any (pcre:\"/a/; sid:1;) \\",
            "drop tcp any any -> any any (msg:\"a\"; sid:1",
            "drp tcp any any -> any any (msg:\"a\"; sid:1",
            "drop tcp any any -> any any (msg:\"a\";\n  content:\"b;\n  sid:1;\n)",
            "drop tcp any any -> any any (",
            "drop tcp any any -> any any \\",
        ] {
            let said = said(&format!(
                "{good}\n{bad}\n{good}\n{bad}\nalert http \\\n(sid:2;)"
            ));
            assert_eq!(said.len(), 5, "{bad}: {said:?}");
            assert_eq!(
                (&said[0], &said[2], &said[4]),
                (&Ok(2), &Ok(2), &Ok(1)),
                "{bad}"
            );
            assert!(said[1].is_err() && said[3].is_err(), "{bad}: {said:?}");
        }
    }

    #[test]
    fn a_long_unterminated_rule_yields_one_error_in_little_time() {
        for part in ["\n", "(\n", "\"  \n", ";:\"", "pcre:\"/\"\" ", "a:"] {
            let text = format!("alert http (x{}", part.repeat(50_000));
            let said = said(&text);
            assert!(said.len() == 1 && said[0].is_err(), "{part:?}");
        }
    }
}
