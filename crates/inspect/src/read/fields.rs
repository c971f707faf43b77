//! Options that read numbers from the bytes of a buffer: `byte_test`, `byte_jump`, `byte_extract` and `byte_math`.

use super::reader::Reader;
use crate::number::{negated, number, signed};
use crate::refusal::{Read, Refusal, wrong};
use crate::rule::*;
use crate::syntax::parts;

/// Number of digits of the longest 64-bit number.
const LONGEST_NUMBER: i64 = 20;

impl Reader<'_> {
    fn field(&self, bytes: &str, offset: &str) -> Read<Field> {
        let bytes = self.number_or_name(bytes)?;
        if let Number::Is(bytes) = bytes
            && !(1..=10).contains(&bytes)
        {
            return wrong(format!("{bytes} bytes: expected 1 to 10"));
        }
        Ok(Field {
            bytes,
            offset: self.number_or_name(offset)?,
            relative: false,
            form: Form::Big,
            mask: 0,
        })
    }

    /// Reads a number field as [`Reader::field`] does, but with a length of `none` bytes if the length is given as 0.
    fn field_or(&self, bytes: &str, none: i64, offset: &str) -> Read<Field> {
        if self.number_or_name(bytes)? != Number::Is(0) {
            return self.field(bytes, offset);
        }
        Ok(Field {
            bytes: Number::Is(none),
            ..self.field("1", offset)?
        })
    }

    pub(super) fn byte_test(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, operator, value, offset, more @ ..] = &parts[..] else {
            return wrong("expected bytes, operator, value, place");
        };
        let (not, operator) = negated(operator);
        let how = match operator {
            "<" => Comparison::Less,
            ">" => Comparison::Greater,
            "=" | "" => Comparison::Equal,
            "<=" => Comparison::AtMost,
            ">=" => Comparison::AtLeast,
            "&" => Comparison::And,
            "^" => Comparison::Xor,
            _ => return wrong(format!("{operator:?}: expected <, >, =, <=, >=, & or ^")),
        };
        let mut field = if more.iter().any(|part| part.starts_with("string")) {
            // The field extends over all digits that follow.
            self.field_or(bytes, LONGEST_NUMBER, offset)?
        } else {
            self.field(bytes, offset)?
        };
        for part in more {
            field_option(&mut field, part)?;
        }
        check(field)?;
        let test = Test::Byte {
            field,
            how,
            not,
            value: self.number_or_name(value)?,
        };
        self.push(test, rule);
        Ok(())
    }

    pub(super) fn byte_jump(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, offset, more @ ..] = &parts[..] else {
            return wrong("expected bytes, place");
        };
        let mut field = self.field_or(bytes, 0, offset)?;
        let (mut times, mut align, mut from, mut and) = (1, false, JumpFrom::Here, 0);
        for part in more {
            match part
                .split_once([' '])
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("multiplier", value)) => times = number(value)?,
                Some(("post_offset", value)) => and = signed(value)?,
                None if *part == "align" => align = true,
                None if *part == "from_beginning" => from = JumpFrom::Beginning,
                None if *part == "from_end" => from = JumpFrom::End,
                _ => field_option(&mut field, part)?,
            }
        }
        if field.bytes != Number::Is(0) {
            check(field)?;
        }
        self.push(
            Test::Jump {
                field,
                times,
                align,
                from,
                and,
            },
            rule,
        );
        Ok(())
    }

    pub(super) fn byte_extract(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, offset, name, more @ ..] = &parts[..] else {
            return wrong("expected bytes, place, name");
        };
        let mut field = self.field(bytes, offset)?;
        let (mut times, mut align) = (1, 1);
        for part in more {
            match part.split_once(' ') {
                Some(("multiplier", value)) => times = number(value)?,
                Some(("align", value)) => align = number::<i64>(value)?.clamp(1, 4),
                _ => field_option(&mut field, part)?,
            }
        }
        check(field)?;
        let into = self.variable(name)?;
        self.push(
            Test::Extract {
                field,
                times,
                align,
                into,
            },
            rule,
        );
        Ok(())
    }

    pub(super) fn byte_math(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (mut bytes, mut offset, mut operator, mut value_, mut name) = ("", "0", "", "", "");
        let mut more = Vec::new();
        for part in parts(value) {
            match part
                .split_once([' ', ':'])
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("bytes", value)) => bytes = value,
                Some(("offset", value)) => offset = value,
                Some(("oper", value)) => operator = value,
                Some(("rvalue", value)) => value_ = value,
                Some(("result", value)) => name = value,
                Some(("endian", value)) => more.push(value),
                _ => more.push(part),
            }
        }
        let operator = match operator {
            "+" => b'+',
            "-" => b'-',
            "*" => b'*',
            "/" => b'/',
            "<<" => b'<',
            ">>" => b'>',
            _ => return wrong(format!("oper {operator:?}: expected +, -, *, /, << or >>")),
        };
        if name.is_empty() {
            return wrong("expected a result");
        }
        let mut field = self.field(bytes, offset)?;
        for part in more {
            field_option(&mut field, part)?;
        }
        check(field)?;
        let value = self.number_or_name(value_)?;
        let into = self.variable(name)?;
        self.push(
            Test::Math {
                field,
                operator,
                value,
                into,
            },
            rule,
        );
        Ok(())
    }
}

fn field_option(field: &mut Field, part: &str) -> Read<()> {
    let text = |base| Form::Text(base);
    match part {
        "relative" => field.relative = true,
        "big" | "string" if part == "big" => field.form = Form::Big,
        "little" => field.form = Form::Little,
        // A prefix determines the base of the digits, unless the rule specifies the base.
        "string" => field.form = text(0),
        "hex" => field.form = text(16),
        "dec" => field.form = text(10),
        "oct" => field.form = text(8),
        "string,hex" => field.form = text(16),
        "string,dec" => field.form = text(10),
        // This is the byte order that the DCE/RPC message announces; practically all implementations send
        // little-endian.
        "dce" => field.form = Form::Little,
        _ => match part.split_once(' ') {
            Some(("bitmask", mask)) => field.mask = signed(mask)? as u64,
            Some(("string", base)) => return field_option(field, base.trim()),
            _ => return Err(Refusal::NotUnderstood),
        },
    }
    Ok(())
}

fn check(field: Field) -> Read<()> {
    match field.bytes {
        Number::Is(bytes) if bytes > field.form.most_bytes() as i64 => wrong(format!(
            "{bytes} bytes: expected 1 to {}",
            field.form.most_bytes()
        )),
        _ => Ok(()),
    }
}
