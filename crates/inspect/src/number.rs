//! The syntax of numbers in rules, and of comparisons with a number.

use crate::refusal::{Read, wrong};
use crate::rule::Within;

pub(crate) fn number<T: TryFrom<i64>>(text: &str) -> Read<T> {
    signed(text).and_then(|number| {
        T::try_from(number).or_else(|_| wrong(format!("{number} is too much or too little")))
    })
}

pub(crate) fn signed(text: &str) -> Read<i64> {
    let text = text.trim().trim_matches('"');
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let read = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    match read {
        Ok(number) if !digits.starts_with(['-', '+']) => Ok(minus * number),
        _ => wrong(format!("{text:?}: expected a number")),
    }
}

/// Reads a comparison: `5`, `>5`, `<=5`, `!5`, `5<>9` (exclusive), `5<=>9` (inclusive), `5-9` (inclusive in Snort,
/// exclusive in Suricata).
pub(crate) fn within(text: &str, with_ends: bool) -> Read<Within> {
    let (not, text) = negated(text);
    let is = |least, most| Ok(Within { least, most, not });
    let next_to = |text: &str, step: i64| match signed(text)?.checked_add(step) {
        Some(number) => Ok(number),
        None => wrong(format!("{text} is too much")),
    };
    if let Some((least, most)) = text.split_once("<=>") {
        return is(signed(least)?, signed(most)?);
    }
    if let Some((least, most)) = text.split_once("<>") {
        return is(next_to(least, 1)?, next_to(most, -1)?);
    }
    if let Some(least) = text.strip_prefix(">=") {
        return is(signed(least)?, i64::MAX);
    }
    if let Some(most) = text.strip_prefix("<=") {
        return is(i64::MIN, signed(most)?);
    }
    if let Some(least) = text.strip_prefix('>') {
        return is(next_to(least, 1)?, i64::MAX);
    }
    if let Some(most) = text.strip_prefix('<') {
        return is(i64::MIN, next_to(most, -1)?);
    }
    let text = text.strip_prefix('=').unwrap_or(text);
    if let Some((least, most)) = text.trim().split_once('-')
        && !least.is_empty()
    {
        let less = i64::from(!with_ends);
        return is(next_to(least, less)?, next_to(most, -less)?);
    }
    let one = signed(text)?;
    is(one, one)
}

/// Splits off a leading `!`; returns whether there was one, and the other text.
pub(crate) fn negated(value: &str) -> (bool, &str) {
    match value.trim().strip_prefix('!') {
        Some(value) => (true, value.trim()),
        None => (false, value.trim()),
    }
}
