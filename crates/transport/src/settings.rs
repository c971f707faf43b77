//! The settings of a connection.

use crate::wire::{
    Hello, MOST_COEFFICIENTS, MOST_DATAGRAM_BYTES, TAG_BYTES, data_packet_bytes,
    repair_packet_bytes,
};

/// Longest target delay, ns: the remaining time is transmitted in 32 bits.
const LONGEST_TARGET_NS: u64 = 4_000_000_000;

/// Redundancy that is sent in advance, before a loss is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coding {
    /// No redundancy: lost messages are retransmitted, if there is time.
    Off,
    /// Blocks of `symbols` messages, each followed by its repairs.
    Block {
        /// Number of messages in a block.
        symbols: usize,
        /// Number of repairs per message.
        redundancy: f64,
    },
    /// Repairs of the latest messages, spread evenly.
    Window {
        /// Number of messages that a repair combines.
        symbols: usize,
        /// Number of repairs per message. None adapts the number to the loss ratio; it is then 0 without loss.
        redundancy: Option<f64>,
    },
}

impl Coding {
    /// Returns the largest number of messages that a repair combines.
    pub fn symbols(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Block { symbols, .. } | Self::Window { symbols, .. } => symbols,
        }
    }
}

/// Prior knowledge of the difference between both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// Nothing is known: bounds of the difference are computed from the packets. The receiver then treats a deadline as
    /// earlier, by the shortest delay of the opposite direction, so that no message is delivered late.
    Own,
    /// The clocks differ by at most this number of ns: 0 on one machine, more between machines with PTP.
    Shared(u64),
}

/// The settings of a connection. Each endpoint has its own settings for the messages that it sends; the receiver learns
/// the target delay with each message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Time from accepting a message to its deadline, ns.
    pub target_ns: u64,
    /// Receive window, ns: the receiver delivers a message when this time is left until its deadline. A short window
    /// equalises the delays of messages; a window as long as the target delay minimises the delays.
    pub window_ns: u64,
    /// Redundancy of sent messages.
    pub coding: Coding,
    /// Number of packets after which the receiver sends feedback, unless one of its own messages carries the feedback
    /// earlier; 1 acknowledges each packet.
    pub feedback_every: u32,
    /// Limit on the length of a message, bytes.
    pub payload_bytes: usize,
    /// Limit on the messages that either endpoint buffers.
    pub kept: usize,
    /// Prior knowledge of the clocks.
    pub clocks: Clocks,
    /// Limit on the relative drift of the two clocks, parts per million.
    pub drift_ppm: u32,
    /// Required fraction of messages that arrive in time; the application gets a notice when fewer do.
    pub in_time: f64,
    /// Time without a packet after which the peer counts as gone, ns.
    pub silence_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            target_ns: 10_000_000,
            window_ns: 10_000_000,
            coding: Coding::Window {
                symbols: 8,
                redundancy: None,
            },
            feedback_every: 8,
            payload_bytes: 1380,
            kept: 1024,
            clocks: Clocks::Own,
            drift_ppm: 200,
            in_time: 0.97,
            silence_ns: 10_000_000_000,
        }
    }
}

/// A setting is invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WrongSettings {
    /// The target delay is out of range; the value is the configured delay, ns.
    #[error("target delay {0} ns: must be 10us to 4s")]
    Target(u64),
    /// The length of messages is out of range.
    #[error("messages of {bytes} bytes: use 1 to {most} here, so that they fit into a datagram")]
    Payload {
        /// Configured length, bytes.
        bytes: usize,
        /// Largest length with the configured code and key, bytes.
        most: usize,
    },
    /// The limit on buffered messages is out of range; the value is the configured limit.
    #[error("the buffer must hold 16 to 65536 messages, not {0}")]
    Kept(usize),
    /// The feedback interval is 0 packets.
    #[error("feedback must be sent after 1 packet or more, not after 0")]
    Feedback,
    /// The required fraction of messages in time is not 0 to 1; the value is the configured fraction.
    #[error("the fraction of messages that must arrive in time is {0}: expected 0 to 1")]
    InTime(f64),
    /// The number of messages that a repair combines is out of range.
    #[error("a repair combines 1 to {most} messages, not {symbols}", most = MOST_COEFFICIENTS)]
    Symbols {
        /// Configured number of messages.
        symbols: usize,
    },
    /// The redundancy of the code is invalid.
    #[error(transparent)]
    Code(#[from] taut_code::WrongScheme),
}

impl Settings {
    /// Returns the largest length of a message, bytes, with this code, with or without a key.
    pub fn most_payload_bytes(coding: Coding, is_keyed: bool) -> usize {
        let around = match coding {
            Coding::Off => data_packet_bytes(0),
            coding => data_packet_bytes(0).max(repair_packet_bytes(coding.symbols(), 0)),
        };
        let tag = if is_keyed { TAG_BYTES } else { 0 };
        MOST_DATAGRAM_BYTES.saturating_sub(around + tag)
    }

    /// Makes the hello of an endpoint.
    pub(crate) fn hello(&self, random: [u8; 16]) -> Hello {
        Hello {
            random,
            payload_bytes: self.payload_bytes as u16,
            symbols: match self.coding {
                Coding::Off => 0,
                coding => coding.symbols() as u8,
            },
            target_ns: self.target_ns,
        }
    }

    /// Checks the settings, with or without a key.
    ///
    /// # Errors
    /// [`WrongSettings`] names the invalid setting.
    pub fn check(&self, is_keyed: bool) -> Result<(), WrongSettings> {
        if !(10_000..=LONGEST_TARGET_NS).contains(&self.target_ns) {
            return Err(WrongSettings::Target(self.target_ns));
        }
        if !(16..=65_536).contains(&self.kept) {
            return Err(WrongSettings::Kept(self.kept));
        }
        if self.feedback_every == 0 {
            return Err(WrongSettings::Feedback);
        }
        if !(0.0..=1.0).contains(&self.in_time) {
            return Err(WrongSettings::InTime(self.in_time));
        }
        let symbols = self.coding.symbols();
        let most = MOST_COEFFICIENTS.min(self.kept / 2);
        if self.coding != Coding::Off && !(1..=most).contains(&symbols) {
            return Err(WrongSettings::Symbols { symbols });
        }
        let most = Self::most_payload_bytes(self.coding, is_keyed);
        if !(1..=most).contains(&self.payload_bytes) {
            let bytes = self.payload_bytes;
            return Err(WrongSettings::Payload { bytes, most });
        }
        Ok(())
    }
}
