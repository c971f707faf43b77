//! Text form of protobuf messages, for P4Info files: a text becomes the binary message, which `p4info.rs` reads.
//! (<https://protobuf.dev/reference/protobuf/textformat-spec/>)

use super::protobuf::Message;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Fields of `p4/config/v1/p4info.proto` and `p4types.proto` of P4Runtime 1.4, one per line.
const FIELDS: &str = include_str!("p4info.csv");
/// Maximum depth of messages in messages.
const MOST_DEEP: u32 = 32;

/// The number of a field, and its type in [`FIELDS`], by message and field.
type Schema = HashMap<(&'static str, &'static str), (u32, &'static str)>;

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let rows = FIELDS.lines().skip(1).filter_map(|line| {
        let mut cells = line.split(',');
        let key = (cells.next()?, cells.next()?);
        Some((key, (cells.next()?.parse().ok()?, cells.next()?)))
    });
    rows.collect()
});

/// The position in a text, and the reason why the text is no P4Info there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub line: usize,
    pub why: String,
}

/// Returns the binary form of a P4Info message.
///
/// # Errors
/// The text is not in the format, or has an unknown field.
pub(super) fn binary(text: &str) -> Result<Vec<u8>, Wrong> {
    let mut reader = Reader { text, at: 0 };
    let message = reader.message("P4Info", None, 0);
    message.map(|it| it.0).map_err(|why| Wrong {
        line: 1 + text[..reader.at].matches('\n').count(),
        why,
    })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips spaces and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            match trimmed.starts_with('#') {
                true => self.at += trimmed.find('\n').unwrap_or(trimmed.len()),
                false => return,
            }
        }
    }

    fn accepts(&mut self, mark: char) -> bool {
        self.skip();
        let is_there = self.rest().starts_with(mark);
        if is_there {
            self.at += mark.len_utf8();
        }
        is_there
    }

    /// Reads a word: a name or a number.
    fn word(&mut self) -> Result<&'a str, String> {
        self.skip();
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.+".contains(c);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if end == 0 {
            let found = rest.chars().next();
            let found = found.map_or("the end".to_string(), |c| c.escape_debug().to_string());
            return Err(format!("expected a name or a number, found {found}"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// Reads fields until the mark `end`, or until the end of the text.
    fn message(&mut self, of: &str, end: Option<char>, deep: u32) -> Result<Message, String> {
        if deep > MOST_DEEP {
            return Err("messages are too deep".to_string());
        }
        let mut message = Message::default();
        loop {
            self.skip();
            match end {
                None if self.rest().is_empty() => return Ok(message),
                Some(end) if self.accepts(end) => return Ok(message),
                _ => {}
            }
            let name = self.word()?;
            let unknown = || format!("{of} has no field {name}");
            let (number, kind) = *SCHEMA.get(&(of, name)).ok_or_else(unknown)?;
            let is_list = {
                self.accepts(':');
                self.accepts('[')
            };
            loop {
                if is_list && self.accepts(']') {
                    break;
                }
                message = self.value(message, number, kind, deep)?;
                if !is_list {
                    break;
                }
                self.accepts(',');
            }
            let _ = self.accepts(';') || self.accepts(',');
        }
    }

    fn value(
        &mut self,
        message: Message,
        field: u32,
        kind: &str,
        deep: u32,
    ) -> Result<Message, String> {
        match kind {
            "bytes" => Ok(message.bytes(field, &self.string()?)),
            "bool" => match self.word()? {
                "true" | "True" | "t" | "1" => Ok(message.number(field, 1)),
                "false" | "False" | "f" | "0" => Ok(message),
                other => Err(format!("expected true or false, found {other}")),
            },
            "number" => {
                let word = self.word()?;
                let number = number(word).ok_or_else(|| format!("{word} is no number"))?;
                Ok(message.number(field, number))
            }
            kind => match kind.strip_prefix("enum ") {
                Some(values) => {
                    let word = self.word()?;
                    let mut known = values.split(';').filter_map(|it| it.split_once('='));
                    let named = known.find(|(name, _)| *name == word);
                    // The value 0 of an enumeration is its default, and is not in the list.
                    let number = named.and_then(|(_, number)| number.parse().ok());
                    let number = number.or_else(|| word.parse().ok()).unwrap_or(0);
                    Ok(message.number(field, number))
                }
                None => {
                    let end = match (self.accepts('{'), self.accepts('<')) {
                        (true, _) => '}',
                        (false, true) => '>',
                        (false, false) => return Err("expected {".to_string()),
                    };
                    let inner = self.message(kind, Some(end), deep + 1)?;
                    Ok(message.message(field, &inner))
                }
            },
        }
    }

    /// Reads a string in quotes. Adjacent strings are joined.
    fn string(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut is_first = true;
        loop {
            let quote = match (self.accepts('"'), self.accepts('\'')) {
                (true, _) => b'"',
                (false, true) => b'\'',
                (false, false) if is_first => return Err("expected a text in quotes".to_string()),
                (false, false) => return Ok(bytes),
            };
            is_first = false;
            let rest = self.rest().as_bytes();
            let mut at = 0;
            loop {
                match rest.get(at) {
                    None | Some(b'\n') => return Err("a text has no end".to_string()),
                    Some(b'\\') => at += escaped(&rest[at..], &mut bytes).ok_or("\\: unknown")?,
                    Some(byte) if *byte == quote => break,
                    Some(byte) => {
                        bytes.push(*byte);
                        at += 1;
                    }
                }
            }
            self.at += at + 1;
        }
    }
}

/// Decodes an escape sequence, and returns its length.
fn escaped(text: &[u8], bytes: &mut Vec<u8>) -> Option<usize> {
    let digits = |from: usize, most: usize, radix: u32| {
        let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
        let many = text.get(from..)?.iter().take(most).take_while(is_digit);
        let many = many.count();
        let digits = std::str::from_utf8(&text[from..from + many]).ok()?;
        Some((u32::from_str_radix(digits, radix).ok()? as u8, from + many))
    };
    let (byte, length) = match text.get(1)? {
        b'n' => (b'\n', 2),
        b'r' => (b'\r', 2),
        b't' => (b'\t', 2),
        b'x' | b'X' => digits(2, 2, 16)?,
        b'0'..=b'7' => digits(1, 3, 8)?,
        other @ (b'"' | b'\'' | b'\\' | b'?') => (*other, 2),
        _ => return None,
    };
    bytes.push(byte);
    Some(length)
}

/// Parses a number in decimal, hexadecimal or octal. A negative number becomes its two's complement.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix('-') {
        Some(positive) => natural_number(positive).map(u64::wrapping_neg),
        None => natural_number(word),
    }
}

fn natural_number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if word.len() > 1 && word.starts_with('0') => u64::from_str_radix(word, 8).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_type_of_the_schema_is_known() {
        let messages: Vec<&str> = SCHEMA.keys().map(|(message, _)| *message).collect();
        assert_eq!(SCHEMA.len(), FIELDS.lines().count() - 1);
        let empty = ["P4BoolType", "P4ErrorType", "ActionProfile_SumOfWeights"];
        for (_, kind) in SCHEMA.values() {
            let is_known = ["number", "bool", "bytes"].contains(kind)
                || kind.starts_with("enum ")
                || messages.contains(kind)
                || empty.contains(kind)
                || *kind == "P4NewTypeTranslation_SdnString";
            assert!(is_known, "{kind}");
        }
    }

    #[test]
    fn texts_become_the_same_bytes_as_with_protoc() {
        let text = "# proto-file: p4info.proto\ntables { preamble { id: 0x21 name: \"a\" 'b\\x41' } \
                    match_fields < id: 1 match_type: LPM > direct_resource_ids: [1, 300]; size: -1 }";
        // `protoc --encode=p4.config.v1.P4Info` packs the two numbers, which readers accept unpacked too.
        let expected = b"\x12\x1f\x0a\x07\x08\x21\x12\x03abA\
            \x12\x04\x08\x01\x28\x03\x38\x01\x38\xac\x02\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(binary(text).unwrap(), expected);
    }

    #[test]
    fn errors_in_a_text_name_the_line() {
        for (text, line, why) in [
            ("tables {", 1, "expected a name"),
            ("\ntable {}", 2, "P4Info has no field table"),
            ("tables: 1", 1, "expected {"),
            ("tables { size: x }", 1, "x is no number"),
            ("tables { size: --1 }", 1, "--1 is no number"),
            ("tables {\npreamble { name: \"a }\n", 2, "a text has no end"),
            ("tables { is_const_table: maybe }", 1, "expected true"),
        ] {
            let wrong = binary(text).unwrap_err();
            assert_eq!(wrong.line, line, "{text}: {wrong:?}");
            assert!(wrong.why.contains(why), "{text}: {wrong:?}");
        }
    }
}
