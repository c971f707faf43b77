//! What an application asks of a connection.

use crate::wire::{
    Hello, MOST_COEFFICIENTS, MOST_DATAGRAM_BYTES, TAG_BYTES, data_packet_bytes,
    repair_packet_bytes,
};

/// Longest target delay, ns: what is left of it travels in 32 bits.
const LONGEST_TARGET_NS: u64 = 4_000_000_000;

/// Redundancy that is sent before anything is known to be lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coding {
    /// None: what is lost is sent again, if there is time.
    Off,
    /// Blocks of so many messages, each followed by its repairs.
    Block {
        /// Messages of a block.
        symbols: usize,
        /// Repairs for each message.
        redundancy: f64,
    },
    /// Repairs of the latest messages, spread evenly.
    Window {
        /// Messages that a repair combines.
        symbols: usize,
        /// Repairs for each message; none follows the share that is lost, and is 0 where nothing is.
        redundancy: Option<f64>,
    },
}

impl Coding {
    /// Messages that a repair combines at most.
    pub fn symbols(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Block { symbols, .. } | Self::Window { symbols, .. } => symbols,
        }
    }
}

/// What is known of the clocks of both sides beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// Nothing: bounds of their difference come from the packets. A message is then taken for late by the shortest time that the
    /// way back has taken too early, so that none is delivered late.
    Own,
    /// They differ by so many ns at most, as those of one machine (0), or of machines with PTP.
    Shared(u64),
}

/// What an application asks of a connection. Both sides have settings of their own for what they send; the receiver learns the
/// target delay with each message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Time from handing a message over until it has to be delivered, ns.
    pub target_ns: u64,
    /// The receiver delivers a message when so much of its time is left at most, ns: a short window makes delays even, one as
    /// long as the target makes them short.
    pub window_ns: u64,
    /// Redundancy of what is sent.
    pub coding: Coding,
    /// Packets after which the receiver answers, unless it has something to send anyhow; 1 answers each.
    pub feedback_every: u32,
    /// Bytes of a message at most.
    pub payload_bytes: usize,
    /// Messages that either side keeps at a time.
    pub kept: usize,
    /// What is known of the clocks.
    pub clocks: Clocks,
    /// How far the rates of both clocks may differ, parts per million.
    pub drift_ppm: u32,
    /// Share of the messages that has to come in time; the application is told when fewer do.
    pub in_time: f64,
    /// Silence after which the other side is taken for gone, ns.
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

/// Settings that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WrongSettings {
    /// The target delay.
    #[error("a target delay is 10us to 4s, not {0} ns")]
    Target(u64),
    /// The length of messages.
    #[error("a message has 1 to {most} bytes here, so that it fits into a datagram, not {bytes}")]
    Payload {
        /// Bytes asked for.
        bytes: usize,
        /// Most that fit with this code and with or without a key.
        most: usize,
    },
    /// The number of messages kept.
    #[error("16 to 65536 messages are kept, not {0}")]
    Kept(usize),
    /// The answers.
    #[error("the receiver answers after 1 packet or more, not after 0")]
    Feedback,
    /// The share in time.
    #[error("the share that has to come in time is 0 to 1, not {0}")]
    InTime(f64),
    /// The code.
    #[error("a repair combines 1 to {most} messages, not {symbols}", most = MOST_COEFFICIENTS)]
    Symbols {
        /// Messages asked for.
        symbols: usize,
    },
    /// The redundancy of the code.
    #[error(transparent)]
    Code(#[from] taut_code::WrongScheme),
}

impl Settings {
    /// Bytes of a message at most, with this code, with or without a key.
    pub fn most_payload_bytes(coding: Coding, is_keyed: bool) -> usize {
        let around = match coding {
            Coding::Off => data_packet_bytes(0),
            coding => data_packet_bytes(0).max(repair_packet_bytes(coding.symbols(), 0)),
        };
        let tag = if is_keyed { TAG_BYTES } else { 0 };
        MOST_DATAGRAM_BYTES.saturating_sub(around + tag)
    }

    /// Makes what a side says of itself.
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

    /// Sees whether they can be, with or without a key.
    ///
    /// # Errors
    /// [`WrongSettings`] says which cannot.
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
