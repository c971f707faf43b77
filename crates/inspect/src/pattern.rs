//! Regular expressions of rules. The `regex` crate evaluates, in linear time, the expressions that have the same
//! meaning in that crate as in PCRE. PCRE2 evaluates all others, with limits.

use std::sync::atomic::{AtomicU64, Ordering};

/// A regular expression of a rule.
#[derive(Debug)]
pub enum Regex {
    /// An expression that the `regex` crate evaluates in linear time.
    Linear(regex::bytes::Regex),
    /// An expression with look-around, back-references or similar constructs, which PCRE2 evaluates up to a maximum
    /// number of steps.
    Backtracking {
        /// The compiled expression.
        regex: pcre2::bytes::Regex,
        /// Number of searches that reached the maximum number of steps.
        given_up: AtomicU64,
    },
}

/// Maximum number of steps of one PCRE2 search.
const MOST_STEPS: u32 = 20_000;
/// Maximum heap memory of one PCRE2 search, in KiB.
const MOST_HEAP_KIB: u32 = 1024;
/// Maximum size of an expression that is compiled for linear time, in bytes.
const MOST_COMPILED_BYTES: usize = 1 << 20;

/// The flags of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// Letters match in either case.
    pub any_case: bool,
    /// A dot matches line ends too.
    pub dot_all: bool,
    /// `^` and `$` also match at the beginning and the end of each line.
    pub lines: bool,
    /// White space in the expression is ignored.
    pub spaced: bool,
    /// The expression has to match at the beginning of the data.
    pub anchored: bool,
    /// `$` matches only at the end of the data, and not before a last line end.
    pub very_end: bool,
    /// Repetitions match as few bytes as possible.
    pub lazy: bool,
}

impl Regex {
    /// Compiles a regular expression.
    ///
    /// # Errors
    /// Returns a description of the error in the expression.
    pub fn new(expression: &str, flags: Flags) -> Result<Self, String> {
        let ending;
        let expression = if flags.very_end && !flags.lines {
            ending = at_very_end(expression);
            &ending
        } else {
            expression
        };
        if means_the_same(expression, flags)
            && let Ok(regex) = regex::bytes::RegexBuilder::new(expression)
                .unicode(false)
                .case_insensitive(flags.any_case)
                .dot_matches_new_line(flags.dot_all)
                .multi_line(flags.lines)
                .ignore_whitespace(flags.spaced)
                .swap_greed(flags.lazy)
                .size_limit(MOST_COMPILED_BYTES)
                .build()
        {
            return Ok(Self::Linear(regex));
        }
        let inner = [(flags.lazy, "(?U)"), (flags.anchored, "\\G")];
        let inner: String = inner.iter().filter(|it| it.0).map(|it| it.1).collect();
        let limited =
            format!("(*LIMIT_MATCH={MOST_STEPS})(*LIMIT_HEAP={MOST_HEAP_KIB}){inner}{expression}");
        let regex = pcre2::bytes::RegexBuilder::new()
            .caseless(flags.any_case)
            .dotall(flags.dot_all)
            .multi_line(flags.lines)
            .extended(flags.spaced)
            .jit_if_available(true)
            .build(&limited)
            .map_err(|e| e.to_string())?;
        Ok(Self::Backtracking {
            regex,
            given_up: AtomicU64::new(0),
        })
    }

    /// Finds the first match in `haystack` that begins at `from` or later, and returns its range. Look-behind sees the
    /// bytes before `from` as well.
    #[inline]
    pub fn find_at(&self, haystack: &[u8], from: usize) -> Option<(usize, usize)> {
        if from > haystack.len() {
            return None;
        }
        match self {
            Self::Linear(regex) => regex
                .find_at(haystack, from)
                .map(|it| (it.start(), it.end())),
            Self::Backtracking { regex, given_up } => match regex.find_at(haystack, from) {
                Ok(found) => found.map(|it| (it.start(), it.end())),
                Err(_) => {
                    given_up.fetch_add(1, Ordering::Relaxed);
                    None
                }
            },
        }
    }

    /// Returns true if the expression can match only at the beginning or only at the end of the data, judged by its
    /// first and last character.
    pub fn is_anchored(&self) -> bool {
        let expression = match self {
            Self::Linear(regex) => regex.as_str(),
            Self::Backtracking { regex, .. } => regex
                .as_str()
                .rsplit("*LIMIT_HEAP")
                .next()
                .unwrap_or_default(),
        };
        let ends = ["\\z", "\\Z"];
        expression.contains(['^', '$'])
            || ends.iter().any(|end| expression.contains(end))
            || expression.contains("\\A")
            || expression.contains("\\G")
    }

    /// Returns the number of searches that reached the maximum number of steps; such a search counts as no match.
    pub fn given_up(&self) -> u64 {
        match self {
            Self::Linear(_) => 0,
            Self::Backtracking { given_up, .. } => given_up.load(Ordering::Relaxed),
        }
    }
}

/// Returns the expression with each unescaped `$` replaced, so that it matches only at the very end of the data
/// ([`Flags::very_end`]). That flag has no effect in multi-line mode.
fn at_very_end(expression: &str) -> String {
    let (mut in_class, mut escaped) = (false, false);
    let mut ending = String::with_capacity(expression.len() + 1);
    for sign in expression.chars() {
        match sign {
            '$' if !in_class && !escaped => ending.push_str("\\z"),
            _ => ending.push(sign),
        }
        match sign {
            _ if escaped => {}
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
        escaped = sign == '\\' && !escaped;
    }
    ending
}

/// Returns true if the expression certainly has the same meaning in the `regex` crate as in PCRE.
fn means_the_same(expression: &str, flags: Flags) -> bool {
    // In PCRE, `$` also matches before a line end that is the last byte.
    if flags.anchored || (expression.contains('$') && !flags.lines) {
        return false;
    }
    // In multi-line mode PCRE's `$` does not match between CR and LF either, but `^` does not match after the last line
    // end.
    let mut in_class = false;
    let mut escaped = false;
    let mut before = 0;
    for byte in expression.bytes() {
        if escaped {
            escaped = false;
            // `\<` and `\>` are word boundaries in the `regex` crate, but plain characters in PCRE.
            if matches!(byte, b'<' | b'>') {
                return false;
            }
            before = 0;
            continue;
        }
        match byte {
            b'\\' => escaped = true,
            b'[' if in_class => return false,
            b'[' => in_class = true,
            b']' if in_class && matches!(before, b'[' | b'^') => return false,
            b']' => in_class = false,
            b'&' | b'-' | b'~' if in_class && before == byte => return false,
            _ => {}
        }
        before = byte;
    }
    expression.is_ascii()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn regex(expression: &str) -> Regex {
        Regex::new(expression, Flags::default()).unwrap()
    }

    #[test]
    fn expressions_beyond_the_linear_engine_use_the_backtracking_engine() {
        assert!(matches!(regex("a+b"), Regex::Linear(_)));
        for expression in ["a(?=b)", r"(a)\1", "a$", "[[a]", r"a\h"] {
            assert!(
                matches!(regex(expression), Regex::Backtracking { .. }),
                "{expression}"
            );
        }
        assert_eq!(regex("a(?=b)").find_at(b"ccab", 0), Some((2, 3)));
        assert_eq!(regex("b$").find_at(b"ab\n", 0), Some((1, 2)));
        assert_eq!(regex(r"\xff\x00").find_at(b"a\xff\x00", 0), Some((1, 3)));
        assert!(Regex::new("a(", Flags::default()).is_err());
    }

    #[test]
    fn evaluation_of_an_expression_stops_after_excessive_backtracking() {
        let regex = regex(r"^(a+)+\1?$");
        assert_eq!(regex.find_at(&[&[b'a'; 40][..], b"b"].concat(), 0), None);
        assert_eq!(regex.given_up(), 1);
    }

    #[test]
    fn expression_flags_have_the_meaning_of_pcre() {
        let with = |expression, flags| Regex::new(expression, flags).unwrap();
        let flags = Flags {
            any_case: true,
            dot_all: true,
            ..Flags::default()
        };
        assert!(with("a.B", flags).find_at(b"A\nb", 0).is_some());
        let anchored = Flags {
            anchored: true,
            ..Flags::default()
        };
        assert_eq!(with("b", anchored).find_at(b"ab", 0), None);
        assert_eq!(with("b", anchored).find_at(b"ab", 1), Some((1, 2)));
        let very_end = Flags {
            very_end: true,
            ..Flags::default()
        };
        for (text, fits) in [(&b"a$b"[..], true), (b"a$b\n", false)] {
            assert_eq!(with(r"[$]b$", very_end).find_at(text, 0).is_some(), fits);
            assert_eq!(
                with(r"(?=b)*\$b$", very_end).find_at(text, 0).is_some(),
                fits
            );
        }
        let lazy = Flags {
            lazy: true,
            ..Flags::default()
        };
        assert_eq!(with("a+", lazy).find_at(b"aaa", 0), Some((0, 1)));
    }
}
