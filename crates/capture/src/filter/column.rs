//! Finds the position of an error in a filter expression, because libpcap does not report it.
//!
//! If libpcap's reason quotes a name, that name is searched in the expression. Otherwise prefixes of the expression are
//! compiled: the shortest one with the same reason ends at the error. A prefix may have a syntax error only because it
//! is incomplete. For syntax errors, a probe that libpcap's lexer rejects is therefore appended to each prefix. If
//! libpcap reports the lexer's reason, its parser has accepted the prefix.

use std::ops::Range;
use std::time::{Duration, Instant};
use taut_sys::{PacketFilterError, compile_packet_filter};

/// Text that libpcap's lexer rejects for the reason `PROBED`. If libpcap reports another reason, no column is found for
/// syntax errors.
const PROBE: &str = " 1:2:";
const PROBED: &str = "bogus ethernet address 1:2:";
/// Time limit for finding the column of an error: each compiled prefix may wait for the system to look up a name.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length of an expression whose prefixes are tried: libpcap's time is quadratic in the length.
const LONGEST_TRIED_BYTES: usize = 8 << 10;

/// Returns the column of the error with the given reason, counted from 1. If the expression ends too early, the result
/// is the column after its end.
pub(super) fn of(text: &str, reason: &str) -> Option<usize> {
    let at = quoted(text, reason).or_else(|| by_beginnings(text, reason))?;
    Some(text[..at].chars().count() + 1)
}

/// Returns the offset in the expression of the name that libpcap's reason quotes.
fn quoted(text: &str, reason: &str) -> Option<usize> {
    let from = reason.find(['\'', '"'])? + 1;
    let name = reason[from..].split(['\'', '"']).next()?;
    let is_whole = |at: &usize| {
        let before = text[..*at].chars().next_back();
        let behind = text[*at + name.len()..].chars().next();
        !before.is_some_and(is_of_word) && !behind.is_some_and(is_of_word)
    };
    let mut places = text.match_indices(name).map(|(at, _)| at);
    places.find(is_whole).filter(|_| !name.is_empty())
}

fn by_beginnings(text: &str, reason: &str) -> Option<usize> {
    if text.len() > LONGEST_TRIED_BYTES {
        return None;
    }
    let tokens = tokens(text);
    let start = Instant::now();
    let refused = |text: &str| match compile_packet_filter(text, false) {
        Ok(_) => None,
        Err(PacketFilterError::Refused(reason) | PacketFilterError::Missing(reason)) => {
            Some(reason)
        }
    };
    let is_syntax = reason.contains("syntax error");
    if is_syntax && refused(PROBE).as_deref() != Some(PROBED) {
        return None;
    }
    let is_good = |tokens: &[Range<usize>]| {
        let end = tokens.last().map_or(0, |token| token.end);
        if is_syntax {
            refused(&format!("{}{PROBE}", &text[..end])).as_deref() == Some(PROBED)
        } else {
            refused(&text[..end]).as_deref() != Some(reason)
        }
    };
    // Prefixes of up to `good` tokens do not contain the error; prefixes of `bad` or more tokens do.
    let (mut good, mut bad) = (0, tokens.len() + 1);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if start.elapsed() > PATIENCE {
            return None;
        }
        if is_good(&tokens[..middle]) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    match tokens.get(good) {
        Some(token) => Some(token.start),
        None => is_syntax.then(|| text.trim_end().len()),
    }
}

/// Returns the words and signs of an expression: the tokens of libpcap's lexer, or parts of them.
fn tokens(text: &str) -> Vec<Range<usize>> {
    let mut tokens: Vec<Range<usize>> = Vec::new();
    // In brackets a colon separates two numbers, elsewhere it is part of an address.
    let (mut depth, mut is_word) = (0usize, false);
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let before = text[..at].chars().next_back();
        let continues = match tokens.last() {
            Some(last) if last.end == at && is_word => is_of_word(c) || c == ':' && depth == 0,
            Some(last) if last.end == at => matches!(
                (before, c),
                (Some('<'), '<' | '=')
                    | (Some('>'), '>' | '=')
                    | (Some('!' | '='), '=')
                    | (Some('&'), '&')
                    | (Some('|'), '|')
            ),
            _ => false,
        };
        match tokens.last_mut() {
            Some(last) if continues => last.end = end,
            _ if c.is_ascii_whitespace() => {}
            _ => {
                tokens.push(at..end);
                is_word = is_of_word(c) || matches!(c, '\\' | '$') || c == ':' && depth == 0;
            }
        }
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    tokens
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::filter::Filter;

    #[test]
    fn filter_expressions_are_split_into_tokens_of_libpcaps_lexer() {
        let found = |text| {
            let tokens = tokens(text).into_iter();
            tokens
                .map(|token| &text[token])
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (text, as_tokens) in [
            ("src  host 10.0.0.1/24", "src host 10.0.0.1 / 24"),
            (
                "ip[2:2]>=4&&(ip6 or!tcp)",
                "ip [ 2 : 2 ] >= 4 && ( ip6 or ! tcp )",
            ),
            (
                "ip6 host ::1||ether host 1:2:3:4:5:6",
                "ip6 host ::1 || ether host 1:2:3:4:5:6",
            ),
            (
                "ip proto \\tcp or tcp[tcpflags]&tcp-syn!=0",
                "ip proto \\tcp or tcp [ tcpflags ] & tcp-syn != 0",
            ),
            ("é", "é"),
        ] {
            assert_eq!(found(text), as_tokens);
        }
    }

    #[test]
    fn filter_errors_report_the_column_of_the_invalid_token() {
        let table: [(&str, Option<usize>, &str); 28] = [
            ("tcp port", Some(9), "syntax error"),
            ("tcp prt 80", Some(5), "syntax error"),
            ("tcp port 80 80", Some(13), "syntax error"),
            ("foo", Some(1), "syntax error"),
            ("tcp and )", Some(9), "syntax error"),
            ("(tcp or udp", Some(12), "syntax error"),
            ("tcp or udp)", Some(11), "syntax error"),
            ("tcp and  ", Some(8), "syntax error"),
            ("ip[0:2", Some(7), "syntax error"),
            ("ip[0:] = 1", Some(6), "syntax error"),
            ("greater than 5", Some(9), "syntax error"),
            ("é and tcp", Some(1), "syntax error"),
            ("tcp and é", Some(9), "syntax error"),
            ("tcp\nand and udp", Some(9), "syntax error"),
            (
                "tcp[tcpflags] & (tcp-syn|foo) != 0",
                Some(26),
                "syntax error",
            ),
            ("udp port nosuchport", Some(10), "unknown port 'nosuchport'"),
            ("tcp and ip proto foo", Some(18), "unknown ip proto 'foo'"),
            ("tcp portrange 5-x", Some(15), "unknown port in range '5-x'"),
            ("host 300.1.1.1 or tcp", Some(6), "invalid IPv4 address"),
            ("tcp or net 1.2.3.4/24", Some(12), "non-network bits"),
            ("tcp or net 1.2.3.4/40", Some(20), "mask length"),
            (
                "udp or tcp port 70000 or arp",
                Some(17),
                "illegal port number",
            ),
            ("vlan 5000", Some(6), "VLAN tag 5000"),
            ("ip[0:3] = 1", Some(7), "data size"),
            ("tcp and ip[0]/0 = 1", Some(15), "division by zero"),
            ("len > 70000000000", Some(7), "overflows"),
            ("arp and tcp", None, "rejects all packets"),
            ("a\0b", Some(2), "value 0"),
        ];
        for (text, column, says) in table {
            let error = Filter::new(text).unwrap_err();
            if error.is_missing {
                return println!("skipped: needs libpcap");
            }
            assert_eq!(error.column, column, "{error}");
            assert!(error.reason.contains(says), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        // The expression is too long for libpcap, and for display.
        let error = Filter::new(&"tcp or ".repeat(10_000)).unwrap_err();
        assert!(
            error.to_string().len() < 200 && error.reason.contains("65536"),
            "{error}"
        );
    }
}
