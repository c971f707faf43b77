//! Options about the bytes of a buffer: contents and their modifiers, expressions, lengths, Base64 and entropy.
//! `fields.rs` has the options that read numbers.

use super::reader::{Dialect, Reader, number_or_name};
use crate::buffer::Buffer;
use crate::number::{negated, number, signed};
use crate::pattern::{Flags, Regex};
use crate::refusal::{Read, Refusal, unable, wrong};
use crate::rule::*;
use crate::syntax::{WrittenOption, parts};
use std::sync::Arc;

/// Options that modify the content before them.
pub(super) const MODIFIERS_OF_CONTENT: [&str; 8] = [
    "nocase",
    "depth",
    "offset",
    "distance",
    "within",
    "fast_pattern",
    "startswith",
    "endswith",
];

/// Maximum number of bytes that `base64_decode` decodes.
const BASE64_BYTES: usize = 1024;

impl Reader<'_> {
    /// Reads an option about the bytes of a buffer. Returns false for other options.
    pub(super) fn payload(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "content" | "uricontent" => self.content(option.name, value, rule)?,
            name if MODIFIERS_OF_CONTENT.contains(&name) => {
                let Some(content) = last_content(rule) else {
                    return wrong("expected a content option before this modifier");
                };
                modify(content, option.name, value, &self.variable_names)?;
            }
            "pcre" => self.regex(value, rule)?,
            "byte_test" => self.byte_test(value, rule)?,
            "byte_jump" => self.byte_jump(value, rule)?,
            "byte_extract" => self.byte_extract(value, rule)?,
            "byte_math" => self.byte_math(value, rule)?,
            "isdataat" => self.data_at(value, rule)?,
            "absent" => self.absent(value, rule)?,
            "entropy" => self.push(entropy(value)?, rule),
            "bufferlen" | "bsize" => {
                let value = value.split(',').next().unwrap_or_default();
                self.push(Test::Len(self.up_to(i64::MAX, value)?), rule);
            }
            "urilen" => {
                let (value, kind) = value.split_once(',').unwrap_or((value, "raw"));
                let buffer = if kind.trim() == "norm" {
                    Buffer::HttpUri
                } else {
                    Buffer::HttpRawUri
                };
                rule.steps.push(Step {
                    buffer,
                    transforms: Vec::new(),
                    instance: 0,
                    test: Test::Len(self.up_to(i64::MAX, value)?),
                });
            }
            "base64_decode" => self.push(base64(value)?, rule),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses the rule option `isdataat`.
    fn data_at(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (not, value) = negated(value);
        let parts = parts(value);
        for part in &parts[1..] {
            if !matches!(*part, "relative" | "rawbytes") {
                return Err(Refusal::NotUnderstood);
            }
        }
        let relative = parts.contains(&"relative");
        let test = Test::DataAt {
            at: self.number_or_name(parts[0])?,
            relative,
            to_end: relative && self.dialect == Dialect::Suricata,
            not,
        };
        self.push(test, rule);
        Ok(())
    }

    /// Reads `absent`: adds a test for the absence of the selected buffer.
    fn absent(&self, value: &str, rule: &mut Rule) -> Read<()> {
        if self.dialect != Dialect::Suricata {
            return Err(Refusal::NotUnderstood);
        }
        let or_else = match value {
            "" => false,
            "or_else" => true,
            _ => return wrong(format!("{value:?}: expected or_else or nothing")),
        };
        if self.buffer == Buffer::Payload {
            return wrong("no buffer before it");
        }
        if !self.buffer.may_be_absent() {
            return unable("absent after a buffer that does not support it");
        }
        self.push(Test::Absent { or_else }, rule);
        Ok(())
    }

    fn content(&mut self, name: &str, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let (not, quoted) = negated(parts[0]);
        let content = Content {
            bytes: bytes(quoted)?.into(),
            any_case: false,
            not,
            offset: None,
            depth: None,
            distance: None,
            within: None,
            at_end: false,
            is_fast: false,
        };
        if content.bytes.is_empty() {
            return wrong("no bytes");
        }
        let buffer = if name == "uricontent" {
            Buffer::HttpUri
        } else {
            self.buffer
        };
        rule.steps.push(Step {
            buffer,
            transforms: self.transforms_of(buffer),
            instance: self.instance_of(buffer),
            test: Test::Content(content),
        });
        for part in &parts[1..] {
            let (name, value) = part.split_once([' ', ':']).unwrap_or((part, ""));
            if let Some(content) = last_content(rule) {
                modify(content, name, value.trim(), &self.variable_names)?;
            }
        }
        Ok(())
    }

    fn regex(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (not, quoted) = negated(value);
        let (expression, letters) = delimited(quoted)?;
        if letters.contains(',') {
            return unable("pcre that stores its matches");
        }
        let (mut flags, mut relative, mut buffer) = (Flags::default(), false, self.buffer);
        for letter in letters.chars() {
            match letter {
                'i' => flags.any_case = true,
                's' => flags.dot_all = true,
                'm' => flags.lines = true,
                'x' => flags.spaced = true,
                'A' => flags.anchored = true,
                'E' => flags.very_end = true,
                'G' => flags.lazy = true,
                'R' => relative = true,
                'O' => {}
                'B' => buffer = Buffer::Payload,
                'U' => buffer = Buffer::HttpUri,
                'I' => buffer = Buffer::HttpRawUri,
                'P' => buffer = Buffer::HttpClientBody,
                'Q' => buffer = Buffer::HttpServerBody,
                'H' => buffer = Buffer::HttpHeader,
                'D' => buffer = Buffer::HttpRawHeader,
                'M' => buffer = Buffer::HttpMethod,
                'C' => buffer = Buffer::HttpCookie,
                'K' => buffer = Buffer::HttpRawCookie,
                'S' => buffer = Buffer::HttpStatusCode,
                'Y' => buffer = Buffer::HttpStatusMessage,
                'V' => buffer = Buffer::HttpUserAgent,
                'W' => buffer = Buffer::HttpHost,
                _ => return wrong(format!("no flag {letter:?}")),
            }
        }
        // Rule files may escape a quote, a semicolon or a colon unnecessarily.
        let expression = expression.replace("\\\"", "\"").replace("\\;", ";");
        let regex = Regex::new(&expression, flags).or_else(wrong)?;
        rule.steps.push(Step {
            buffer,
            transforms: self.transforms_of(buffer),
            instance: self.instance_of(buffer),
            test: Test::Regex {
                regex: Arc::new(regex),
                not,
                relative,
            },
        });
        Ok(())
    }
}

/// Returns the expression between the delimiters of `pcre`, and the letters of its flags.
fn delimited(quoted: &str) -> Read<(&str, &str)> {
    let in_quotes = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let Some(inner) = in_quotes.or(Some(quoted).filter(|it| it.starts_with('/'))) else {
        return wrong("expected an expression in quotes, such as \"/a+/i\"");
    };
    // An `m` may precede other delimiters, as in Perl.
    let (delimiter, body) = match inner.strip_prefix('m') {
        Some(rest) => (
            rest.chars().next().unwrap_or('/'),
            rest.get(1..).unwrap_or_default(),
        ),
        None => ('/', inner.strip_prefix('/').unwrap_or_default()),
    };
    let Some((expression, letters)) = body.rsplit_once(delimiter) else {
        return wrong("expected an expression between slashes, such as \"/a+/i\"");
    };
    Ok((expression, letters))
}

/// Parses the rule option `base64_decode`.
fn base64(value: &str) -> Read<Test> {
    let (mut bytes, mut offset, mut relative) = (BASE64_BYTES, 0, false);
    for part in parts(value).into_iter().filter(|part| !part.is_empty()) {
        match part.split_once(' ') {
            Some(("bytes", value)) => bytes = number::<usize>(value)?.min(BASE64_BYTES),
            Some(("offset", value)) => offset = number(value)?,
            None if part == "relative" => relative = true,
            _ => return wrong(format!("{part:?}: expected bytes, offset or relative")),
        }
    }
    Ok(Test::Base64 {
        bytes,
        offset,
        relative,
    })
}

/// Reads `entropy`: the range of bytes, and a comparison of their entropy in bits per byte.
fn entropy(value: &str) -> Read<Test> {
    let (mut offset, mut bytes, mut within) = (0, 0, None);
    for part in parts(value) {
        match part
            .split_once(' ')
            .map(|(name, value)| (name, value.trim()))
        {
            Some(("offset", value)) => offset = signed(value)?,
            Some(("bytes", value)) => bytes = signed(value)?,
            Some(("value", value)) => within = Some(measure(value)?),
            _ => return wrong(format!("{part:?}: expected bytes, offset or value")),
        }
    }
    let Some(within) = within else {
        return wrong("expected a value, such as value > 7.5");
    };
    let count = |number: i64| usize::try_from(number).unwrap_or(0);
    Ok(Test::Entropy {
        offset: count(offset),
        bytes: count(bytes),
        within,
    })
}

/// Reads a comparison with a decimal number: `4.5`, `>4`, `<=4`, `!=4`, `4-5` (exclusive) and `!4-5`.
fn measure(text: &str) -> Read<Measure> {
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => wrong(format!("{text:?}: expected a number, such as 4.5")),
    };
    let is = |least, most, with_ends| {
        Ok(Measure {
            least,
            most,
            with_ends,
            not: false,
        })
    };
    let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
    if let Some(text) = text.strip_prefix(">=") {
        return is(number(text)?, high, true);
    }
    if let Some(text) = text.strip_prefix("<=") {
        return is(low, number(text)?, true);
    }
    if let Some(text) = text.strip_prefix('>') {
        return is(number(text)?, high, false);
    }
    if let Some(text) = text.strip_prefix('<') {
        return is(low, number(text)?, false);
    }
    let (not, text) = negated(text);
    let ends = text.split_once("<>").or_else(|| text.split_once('-'));
    let (least, most, with_ends) = match ends {
        Some((least, most)) => (number(least)?, number(most)?, false),
        None => {
            let number = number(text.strip_prefix('=').unwrap_or(text))?;
            (number, number, true)
        }
    };
    if least > most || (least == most && !with_ends) {
        return wrong("there is no such number");
    }
    Ok(Measure {
        least,
        most,
        with_ends,
        not,
    })
}

fn last_content(rule: &mut Rule) -> Option<&mut Content> {
    rule.steps
        .iter_mut()
        .rev()
        .find_map(|step| match &mut step.test {
            Test::Content(content) => Some(content),
            _ => None,
        })
}

fn modify(content: &mut Content, name: &str, value: &str, variables: &[String]) -> Read<()> {
    let place = |value: &str| number_or_name(value, variables).map(Some);
    match name {
        "nocase" => {
            content.any_case = true;
            content.bytes.make_ascii_lowercase();
        }
        "offset" => content.offset = place(value)?,
        "depth" => content.depth = place(value)?,
        "distance" => content.distance = place(value)?,
        "within" => content.within = place(value)?,
        "startswith" => {
            content.offset = Some(Number::Is(0));
            content.depth = Some(Number::Is(content.bytes.len() as i64));
        }
        "endswith" => content.at_end = true,
        "fast_pattern" => content.is_fast = true,
        // These options select the part of a content that is searched for first, which does not change the result.
        "fast_pattern_offset" | "fast_pattern_length" | "rawbytes" => {}
        _ => return wrong(format!("{name:?} is nothing that a content can have")),
    }
    for (bytes, name) in [(content.depth, "depth"), (content.within, "within")] {
        if let Some(Number::Is(bytes)) = bytes
            && bytes < content.bytes.len() as i64
        {
            return wrong(format!("{name} {bytes}: shorter than the content itself"));
        }
    }
    Ok(())
}

/// Returns the bytes of a content: text, with hexadecimal bytes between vertical bars.
pub(super) fn bytes(quoted: &str) -> Read<Vec<u8>> {
    let Some(inner) = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"')) else {
        return wrong("expected bytes in quotes, such as \"GET |0d 0a|\"");
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let (mut in_hex, mut half) = (false, None::<u8>);
    let mut each = inner.bytes();
    while let Some(byte) = each.next() {
        match byte {
            b'|' => {
                if half.is_some() {
                    return wrong("half a byte between bars");
                }
                in_hex = !in_hex;
            }
            _ if in_hex => match (char::from(byte).to_digit(16), half) {
                (Some(digit), None) => half = Some(digit as u8),
                (Some(digit), Some(high)) => {
                    bytes.push(high << 4 | digit as u8);
                    half = None;
                }
                (None, None) if byte.is_ascii_whitespace() => {}
                _ => return wrong("expected hexadecimal numbers of two digits between bars"),
            },
            b'\\' => bytes.extend(each.next()),
            _ => bytes.push(byte),
        }
    }
    if in_hex {
        return wrong("a bar that is not closed");
    }
    Ok(bytes)
}
