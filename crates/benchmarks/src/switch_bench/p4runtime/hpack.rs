//! Header lists of HTTP/2 without a dynamic table (RFC 7541). This side declares a dynamic table of 0 bytes, so that the
//! other side refers only to the static table.

use super::error::P4Error;

/// Indices of the static table (RFC 7541, appendix A).
const STATIC_ENTRIES: u64 = 61;
/// Statuses of HTTP, at indices 8 to 14 of the static table. gRPC uses no other entry of it.
const STATUSES: [&str; 7] = ["200", "204", "206", "304", "400", "404", "500"];
const FIRST_STATUS: usize = 8;
/// Maximum length of a header list after decoding, bytes.
const MOST_BYTES: usize = 1 << 18;
/// Number of symbols of the Huffman code: 256 bytes and the end of a string.
const SYMBOLS: usize = 257;
const LONGEST_BITS: usize = 30;
/// Lengths of the codes of all symbols, bits (RFC 7541, appendix B). The code is canonical, so the lengths define it.
const BITS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// A header: its name and its value. The name is empty if it is in the static table and unknown to gRPC.
pub(super) type Header = (Vec<u8>, Vec<u8>);

const DAMAGED: P4Error = P4Error::Damaged("a header list");

/// Appends a header with a literal name and a literal value.
pub(super) fn write(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        write_length(block, text.len());
        block.extend(text.as_bytes());
    }
}

/// Appends a length in the format of an integer with a prefix of 7 bits (section 5.1).
fn write_length(block: &mut Vec<u8>, length: usize) {
    const MOST: usize = 0x7f;
    if length < MOST {
        block.push(length as u8);
        return;
    }
    block.push(MOST as u8);
    let mut rest = length - MOST;
    while rest >= 0x80 {
        block.push(0x80 | rest as u8);
        rest >>= 7;
    }
    block.push(rest as u8);
}

/// Returns the headers of a complete header block.
///
/// # Errors
/// The block is damaged, too long, or refers to a dynamic table.
pub(super) fn read(mut block: &[u8]) -> Result<Vec<Header>, P4Error> {
    let mut headers = Vec::new();
    let mut length = 0;
    while let Some(first) = block.first().copied() {
        let (prefix_bits, is_indexed) = match first {
            0x80.. => (7, true),
            0x40..0x80 => (6, false),
            0x20..0x40 => {
                // This is a change of the dynamic table's size.
                if integer(&mut block, 5)? != 0 {
                    return Err(DAMAGED);
                }
                continue;
            }
            _ => (4, false),
        };
        let index = integer(&mut block, prefix_bits)?;
        if index > STATIC_ENTRIES || (is_indexed && index == 0) {
            return Err(DAMAGED);
        }
        let (mut name, mut value) = entry(index as usize);
        if index == 0 {
            name = string(&mut block)?;
        }
        if !is_indexed {
            value = string(&mut block)?;
        }
        // RFC 9113 counts 32 more bytes for each header.
        length += name.len() + value.len() + 32;
        if length > MOST_BYTES {
            return Err(DAMAGED);
        }
        headers.push((name, value));
    }
    Ok(headers)
}

fn entry(index: usize) -> Header {
    let status = index
        .checked_sub(FIRST_STATUS)
        .and_then(|at| STATUSES.get(at));
    status.map_or_else(Header::default, |status| {
        (b":status".to_vec(), status.as_bytes().to_vec())
    })
}

/// Reads an integer whose first byte has `prefix_bits` bits of it (section 5.1).
fn integer(block: &mut &[u8], prefix_bits: u32) -> Result<u64, P4Error> {
    let most = (1_u64 << prefix_bits) - 1;
    let mut next = || {
        let (first, rest) = block.split_first().ok_or(DAMAGED)?;
        *block = rest;
        Ok::<u64, P4Error>(u64::from(*first))
    };
    let mut number = next()? & most;
    if number < most {
        return Ok(number);
    }
    for shift in [0, 7, 14, 21, 28] {
        let byte = next()?;
        number += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DAMAGED)
}

/// Reads a string (section 5.2).
fn string(block: &mut &[u8]) -> Result<Vec<u8>, P4Error> {
    let is_coded = block.first().is_some_and(|byte| byte & 0x80 != 0);
    let length = integer(block, 7)?;
    let length = usize::try_from(length).map_err(|_| DAMAGED)?;
    let (text, rest) = block.split_at_checked(length).ok_or(DAMAGED)?;
    *block = rest;
    match is_coded {
        true => decoded(text),
        false => Ok(text.to_vec()),
    }
}

/// Decodes a string with the canonical Huffman code.
fn decoded(text: &[u8]) -> Result<Vec<u8>, P4Error> {
    let mut symbols: Vec<usize> = (0..SYMBOLS).collect();
    symbols.sort_by_key(|symbol| (BITS[*symbol], *symbol));
    let mut many = [0_u32; LONGEST_BITS + 1];
    for bits in BITS {
        many[usize::from(bits)] += 1;
    }
    let mut plain = Vec::new();
    // Codes of a length are consecutive numbers: `first` is the lowest, and `at` its place in the sorted symbols.
    let (mut code, mut bits, mut first, mut at) = (0_u32, 0, 0, 0);
    for bit in text
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1))
    {
        code = code << 1 | u32::from(bit);
        bits += 1;
        first <<= 1;
        let of_length = many.get(bits).copied().ok_or(DAMAGED)?;
        if code - first < of_length {
            let symbol = symbols[at + (code - first) as usize];
            plain.push(u8::try_from(symbol).map_err(|_| DAMAGED)?);
            (code, bits, first, at) = (0, 0, 0, 0);
        } else {
            first += of_length;
            at += of_length as usize;
        }
    }
    // The rest is padding: fewer than 8 bits, all 1.
    match bits < 8 && code == (1 << bits) - 1 {
        true => Ok(plain),
        false => Err(DAMAGED),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_of_the_standards_example_are_decoded() {
        // RFC 7541, appendix C.6.1: a response with Huffman codes.
        let block = b"\x48\x82\x64\x02\x58\x85\xae\xc3\x77\x1a\x4b\x61\x96\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff\x6e\x91\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3";
        let headers = read(block).unwrap();
        assert_eq!(headers[0], (b":status".to_vec(), b"302".to_vec()));
        let values: Vec<&[u8]> = headers[1..].iter().map(|(_, value)| &value[..]).collect();
        let date = b"Mon, 21 Oct 2013 20:13:21 GMT";
        assert_eq!(values, [&b"private"[..], date, b"https://www.example.com"]);
    }

    #[test]
    fn written_headers_are_read_unchanged() {
        for length in [0, 126, 127, 128, 255, 10_000] {
            let (name, value) = ("n".repeat(length), "v".repeat(length));
            let mut block = vec![0x20];
            write(&mut block, &name, &value);
            let expected = (name.into_bytes(), value.into_bytes());
            assert_eq!(read(&block).unwrap(), [expected]);
        }
    }

    #[test]
    fn damaged_header_lists_are_refused() {
        for block in [
            &b"\x80"[..],
            b"\xbe",
            b"\x3f\xff\xff\xff\xff\xff\xff",
            b"\x3e",
            b"\x00\x05name",
            b"\x00\x84\xff\xff\xff\xff\x00",
            b"\x00\x81\x00\x00",
        ] {
            assert!(read(block).is_err(), "{block:?}");
        }
    }
}
