//! The setting `mtu` of functions that make packets longer.

use serde::Deserialize;

/// The maximum length of an IP packet that leaves the function, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Mtu(pub usize);

impl Default for Mtu {
    fn default() -> Self {
        Self(1500)
    }
}

impl TryFrom<i64> for Mtu {
    type Error = String;

    fn try_from(bytes: i64) -> Result<Self, String> {
        match usize::try_from(bytes) {
            Ok(bytes @ 576..=65_535) => Ok(Self(bytes)),
            _ => Err(format!("mtu = {bytes}: expected 576 to 65535 bytes")),
        }
    }
}
