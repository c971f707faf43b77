//! Sizes of memory: `32 kB`, `8GB`, or a number of bytes.

use serde::Deserialize;

/// A number of bytes. `kB`, `MB`, `GB` and `TB` are powers of 1024, as for caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Size {
    /// The size in bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a size such as \"32 kB\", or a number of bytes"
)]
enum Written {
    Bytes(u64),
    Text(String),
}

impl TryFrom<Written> for Size {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Bytes(bytes) => Ok(Self { bytes }),
            Written::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("\"{text}\": expected a size such as \"32 kB\", \"8 MB\" or \"2 GB\"");
        let text_only = text.trim();
        let at = text_only
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text_only.len());
        let (number, unit) = text_only.split_at(at);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" | "kib" | "k" => 1 << 10,
            "mb" | "mib" | "m" => 1 << 20,
            "gb" | "gib" | "g" => 1 << 30,
            "tb" | "tib" | "t" => 1 << 40,
            _ => return Err(wrong()),
        };
        let bytes = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor));
        bytes.map(|bytes| Self { bytes }).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_and_without_a_unit() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4 kB", 4096),
            ("4kb", 4096),
            ("8 MB", 8 << 20),
            ("8GB", 8 << 30),
            ("1 GiB", 1 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size { bytes }), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_an_example() {
        for text in ["", "big", "4 PB", "1.5 kB", "-4", "99999999999 GB"] {
            let message = text.parse::<Size>().err().unwrap_or_default();
            assert!(message.contains("such as \"32 kB\""), "{text}: {message}");
        }
    }
}
