//! The messages that scapy has made (tests/data/scapy_messages.py), for tests.
#![allow(clippy::unwrap_used)]

const MESSAGES: &str = include_str!("../../../tests/data/scapy_messages.txt");

/// Returns all messages with a name that begins with `family`, in the order of the file. Each has the remainder of its
/// name, and its bytes.
pub fn messages(family: &str) -> Vec<(&'static str, Vec<u8>)> {
    let of_line = |line: &'static str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let name = name.strip_prefix(family)?;
        let bytes = hex.as_bytes().chunks(2).map(|digits| {
            let digits = std::str::from_utf8(digits).unwrap();
            u8::from_str_radix(digits, 16).unwrap()
        });
        Some((name, bytes.collect()))
    };
    MESSAGES.lines().filter_map(of_line).collect()
}
