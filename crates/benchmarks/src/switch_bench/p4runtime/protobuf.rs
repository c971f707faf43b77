//! Fields of protobuf messages: the wire format, without code generated from descriptions of messages.

use super::error::P4Error;

const NUMBER: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message(pub Vec<u8>);

impl Message {
    /// Adds a number. Zero is the default of every field, and is not sent.
    pub fn number(mut self, field: u32, number: u64) -> Self {
        if number != 0 {
            self.varint(u64::from(field) << 3 | NUMBER);
            self.varint(number);
        }
        self
    }

    /// Adds a string, bytes or a message.
    pub fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Adds a message.
    pub fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(0x80 | number as u8);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the number; 0 if the field has another type.
    pub fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }

    /// Returns the bytes; none if the field has another type.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Returns the text, with a mark in place of what is not UTF-8.
    pub fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

/// The fields of a received message, in order. It ends after the first error.
pub(super) struct Fields<'a> {
    left: &'a [u8],
    /// Name of the message in errors.
    name: &'static str,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8], name: &'static str) -> Self {
        Self {
            left: message,
            name,
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.left.split_first()?;
            self.left = rest;
            number |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.left.split_at_checked(length)?;
        self.left = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match key & 7 {
            NUMBER => Value::Number(self.varint()?),
            BYTES => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            FIXED_64 => Value::Bytes(self.take(8)?),
            FIXED_32 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), P4Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.left = &[];
        }
        Some(field.ok_or(P4Error::Damaged(self.name)))
    }
}

/// Returns the last value of a field; none if the message does not have the field.
pub(super) fn last<'a>(
    message: &'a [u8],
    field: u32,
    name: &'static str,
) -> Result<Option<Value<'a>>, P4Error> {
    let mut found = None;
    for it in Fields::of(message, name) {
        let (number, value) = it?;
        if number == field {
            found = Some(value);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn written_fields_are_read_unchanged() {
        let inner = Message::default().number(3, u64::MAX);
        let message = Message::default().number(1, 300).number(2, 0);
        let message = message.bytes(100, b"text").message(4, &inner);
        assert_eq!(message.0[..3], [8, 0xac, 2]);
        let fields: Result<Vec<_>, _> = Fields::of(&message.0, "a message").collect();
        let expected = [
            (1, Value::Number(300)),
            (100, Value::Bytes(b"text")),
            (4, Value::Bytes(&inner.0)),
        ];
        assert_eq!(fields.unwrap(), expected);
    }

    #[test]
    fn damaged_messages_are_refused() {
        for bytes in [
            &[0x08][..],
            &[0x00, 0x01],
            &[0x0a, 0x05, 1, 2],
            &[0x0b],
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ] {
            assert!(Fields::of(bytes, "a message").any(|it| it.is_err()));
        }
    }
}
