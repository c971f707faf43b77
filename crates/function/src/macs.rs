//! Settings that are a MAC address, or one for each port.

use crate::SettingsError;
use serde::Deserialize;
use taut_wire::ethernet::Mac;

/// The form of the setting: one address for all packets, or a list with one for each egress port.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a MAC address such as \"02:00:00:00:00:01\", or a list of them"
)]
pub enum Text {
    /// One MAC address for all packets.
    One(String),
    /// A list of MAC addresses, one for each egress port.
    Each(Vec<String>),
}

/// The MAC addresses that a function sets, by egress port.
#[derive(Debug, Clone)]
pub enum Macs {
    /// No address is replaced: the frame keeps its MAC addresses.
    Keep,
    /// All packets get the same MAC address.
    One(Mac),
    /// Packets get the MAC address of their egress port; packets to a port without an entry keep their address.
    Each(Vec<Mac>),
}

impl Macs {
    /// Parses the MAC addresses that are the value of setting `key`.
    ///
    /// # Errors
    /// The error names the text that is not a MAC address.
    pub fn new(key: &str, text: Option<Text>) -> Result<Self, SettingsError> {
        let parse = |text: String| {
            text.parse().map_err(|_| {
                SettingsError(format!(
                    "{key} = \"{text}\": expected a MAC address such as \"02:00:00:00:00:01\""
                ))
            })
        };
        match text {
            None => Ok(Self::Keep),
            Some(Text::One(text)) => parse(text).map(Self::One),
            Some(Text::Each(texts)) => texts
                .into_iter()
                .map(parse)
                .collect::<Result<_, _>>()
                .map(Self::Each),
        }
    }

    /// Returns the new address of packets that leave through a port, or none if the old one stays.
    #[inline(always)]
    pub fn of(&self, port: usize) -> Option<Mac> {
        match self {
            Self::Keep => None,
            Self::One(mac) => Some(*mac),
            Self::Each(macs) => macs.get(port).copied(),
        }
    }
}
