//! Network coding: random linear codes over GF(2^8), systematic, in blocks or over a sliding window, recoded at
//! any hop. No I/O.
//!
//! A *symbol* is what one packet carries, of the coder's size in bytes. Source symbols are numbered from 0 (`u64`).
//! A *combination* of a range of source symbols is their sum, each multiplied by a coefficient. A block code and a
//! sliding window differ only in which ranges they combine, so there is one [`Decoder`] for both. (T. Ho et al., "A
//! Random Linear Network Coding Approach to Multicast", 2006; Xiang et al., JSAC 2019, for block 32 and window 8.)

pub mod coefficients;
pub mod combination;
pub mod decoder;
pub mod encoder;
pub mod field;
pub mod kernel;
pub mod recoder;

pub use coefficients::Coefficients;
pub use combination::Combination;
pub use decoder::{Account, Decoder, Refused, reach};
pub use encoder::{Encoder, Scheme, WrongScheme};
pub use recoder::Recoder;

/// Source symbols that one combination can have a part of.
pub const MOST_COMBINED: usize = 255;
