//! Properties of a library that are read from its file, without running it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Length of the start of an ELF file up to the field with its processor (System V ABI, "Object Files").
const HEADER_BYTES: usize = 20;

/// ELF class of 64-bit files, and ELF data encoding of little-endian files.
const IS_64_BIT: u8 = 2;
const IS_LITTLE_ENDIAN: u8 = 1;

/// ELF type of shared libraries.
const SHARED: u16 = 3;

/// Kind of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A shared library for this machine.
    Ours,
    /// A shared library for another machine; the value is the name of that machine.
    For(String),
    /// Any other file.
    Other,
}

/// Determines the kind of a file.
pub(crate) fn kind(path: &Path) -> io::Result<Kind> {
    let mut header = Vec::new();
    File::open(path)?
        .take(HEADER_BYTES as u64)
        .read_to_end(&mut header)?;
    Ok(kind_of(&header))
}

/// The ELF identifier of this program's processor; none if taut knows no identifier for that processor.
pub(crate) const OURS: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

fn kind_of(header: &[u8]) -> Kind {
    let (Some(rest), HEADER_BYTES) = (header.strip_prefix(b"\x7fELF"), header.len()) else {
        return Kind::Other;
    };
    let (is_64_bit, is_little_endian) = (rest[0] == IS_64_BIT, rest[1] == IS_LITTLE_ENDIAN);
    let number = |at: usize| match is_little_endian {
        true => u16::from_le_bytes([header[at], header[at + 1]]),
        false => u16::from_be_bytes([header[at], header[at + 1]]),
    };
    let machine = number(18);
    if number(16) != SHARED {
        return Kind::Other;
    }
    let is_ours = OURS.is_none_or(|ours| ours == machine);
    if is_64_bit && is_little_endian && is_ours {
        return Kind::Ours;
    }
    let bits = if is_64_bit { "" } else { ", 32 bits" };
    Kind::For(format!("{}{bits}", machine_name(machine)))
}

/// Returns the name of the processor with this ELF identifier.
pub(crate) fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86".to_string(),
        40 => "ARM".to_string(),
        62 => "x86-64".to_string(),
        183 => "AArch64".to_string(),
        243 => "RISC-V".to_string(),
        other => format!("processor {other} of ELF"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, order: u8, kind: u16, machine: u16) -> Vec<u8> {
        let number = |it: u16| match order {
            IS_LITTLE_ENDIAN => it.to_le_bytes(),
            _ => it.to_be_bytes(),
        };
        let mut header = b"\x7fELF".to_vec();
        header.extend([class, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        header.extend([number(kind), number(machine)].concat());
        header
    }

    #[test]
    fn the_elf_header_identifies_libraries_for_other_processors() {
        let ours = OURS.unwrap_or(62);
        assert_eq!(kind_of(&header(2, 1, 3, ours)), Kind::Ours);
        for (file, said) in [
            (header(2, 1, 3, 243), "RISC-V"),
            (header(1, 1, 3, 40), "ARM, 32 bits"),
            (header(1, 1, 3, 3), "x86, 32 bits"),
            (header(2, 2, 3, 21), "processor 21 of ELF"),
        ] {
            assert_eq!(kind_of(&file), Kind::For(said.to_string()));
        }
        let whole = header(2, 1, 3, ours);
        for other in [
            &b""[..],
            b"\x7fELF",
            b"#!/bin/sh\nexit 0 # is no library",
            &whole[..19],
            // These are a program and an object file for the linker.
            &header(2, 1, 2, ours),
            &header(2, 1, 1, ours),
        ] {
            assert_eq!(kind_of(other), Kind::Other);
        }
    }
}
