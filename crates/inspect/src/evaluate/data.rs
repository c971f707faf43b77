//! Calculations on the bytes of a buffer for the tests in a rule: reading numbers, arithmetic, entropy, Base64, and the
//! search for a content.

use crate::rule::{Comparison, Content};
use crate::transform::{Decoder, Letter};

/// Returns true if the number `read` from a buffer satisfies the comparison with `value`.
pub(super) fn compares(read: i128, how: Comparison, value: i128) -> bool {
    match how {
        Comparison::Less => read < value,
        Comparison::Greater => read > value,
        Comparison::Equal => read == value,
        Comparison::AtMost => read <= value,
        Comparison::AtLeast => read >= value,
        Comparison::And => read & value != 0,
        Comparison::Xor => read ^ value != 0,
    }
}

/// Returns the distance of a jump: the number `read` from the buffer, multiplied by `times`, rounded up to four bytes
/// if `align`.
pub(super) fn jump(read: u64, times: i64, align: bool) -> i64 {
    let distance = i64::try_from(read)
        .unwrap_or(i64::MAX)
        .saturating_mul(times);
    match distance % 4 {
        over if align && over != 0 => distance.saturating_add(4 - over),
        _ => distance,
    }
}

/// Returns a number, rounded up to a multiple of `align`.
#[inline]
pub(super) fn aligned(number: i64, align: i64) -> i64 {
    let over = number.rem_euclid(align);
    if over == 0 {
        number
    } else {
        number.saturating_add(align - over)
    }
}

/// Returns the result of `byte_math` with the number `read` from the buffer; none for a division by 0.
pub(super) fn calculated(read: i64, operator: u8, value: i64) -> Option<i64> {
    let by = u32::try_from(value).unwrap_or(64);
    match operator {
        b'+' => Some(read.wrapping_add(value)),
        b'-' => Some(read.wrapping_sub(value)),
        b'*' => Some(read.wrapping_mul(value)),
        b'/' => (read as u64)
            .checked_div(value as u64)
            .map(|number| number as i64),
        b'<' => Some(read.checked_shl(by).unwrap_or(0)),
        _ => Some((read as u64).checked_shr(by).unwrap_or(0) as i64),
    }
}

/// Returns the entropy of bytes, in bits per byte, from the frequency of each value (Shannon 1948, section 6).
pub(super) fn entropy(data: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    data.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let len = data.len() as f64;
    let shares = counts.into_iter().filter(|&it| it > 0);
    shares
        .map(|count| f64::from(count) / len)
        .fold(0.0, |all, share| all - share * share.log2())
}

/// Reads a number in digits after optional white space; returns the number and the length of the text read.
pub(super) fn digits(text: &[u8], base: u8) -> Option<(u64, usize)> {
    let begin = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let rest = &text[begin..];
    let hex = rest.len() > 2 && rest[0] == b'0' && matches!(rest[1], b'x' | b'X');
    let (base, skip) = match base {
        0 | 16 if hex => (16, 2),
        0 if rest[0] == b'0' => (8, 0),
        0 => (10, 0),
        base => (u32::from(base), 0),
    };
    let mut number = 0u64;
    let mut used = 0;
    for &byte in &rest[skip..] {
        let Some(digit) = char::from(byte).to_digit(base) else {
            break;
        };
        number = number
            .saturating_mul(u64::from(base))
            .saturating_add(u64::from(digit));
        used += 1;
    }
    (used > 0).then_some((number, begin + skip + used))
}

/// Decodes Base64 up to the first byte that is not in the alphabet; line ends are skipped (RFC 2045 section 6.8).
/// Returns the number of decoded bytes.
pub(super) fn decode_base64(text: &[u8], into: &mut [u8]) -> usize {
    let mut decoder = Decoder::default();
    let mut len = 0;
    for &letter in text {
        match decoder.push(letter) {
            Letter::Byte(byte) => {
                let Some(place) = into.get_mut(len) else {
                    break;
                };
                *place = byte;
                len += 1;
            }
            Letter::None if !matches!(letter, b'\r' | b'\n') => break,
            Letter::Nothing | Letter::None => {}
        }
    }
    len
}

/// Returns the offset in `data` at which the content begins, if it occurs in `data[at..to]`.
#[inline]
pub(super) fn find(content: &Content, data: &[u8], at: usize, to: usize) -> Option<usize> {
    let bytes = &content.bytes[..];
    if content.at_end {
        let begin = data.len().checked_sub(bytes.len())?;
        let fits = if content.any_case {
            data[begin..].eq_ignore_ascii_case(bytes)
        } else {
            data[begin..] == *bytes
        };
        return (begin >= at && to == data.len() && fits).then_some(begin);
    }
    let within = data.get(at..to)?;
    if !content.any_case {
        return memchr::memmem::find(within, bytes).map(|found| at + found);
    }
    let last = within.len().checked_sub(bytes.len())?;
    let (lower, upper) = (bytes[0], bytes[0].to_ascii_uppercase());
    memchr::memchr2_iter(lower, upper, &within[..=last])
        .find(|&begin| within[begin..begin + bytes.len()].eq_ignore_ascii_case(bytes))
        .map(|found| at + found)
}
