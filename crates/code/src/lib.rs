//! Network coding: random linear codes over GF(2^8), systematic, in blocks or over a sliding window, recoded at any
//! hop. The crate does no I/O.
//!
//! A *symbol* is the content of one packet, of the coder's size in bytes. Source symbols are numbered from 0 (`u64`). A
//! *combination* of a range of source symbols is the sum of these symbols, each multiplied by a coefficient. A block
//! code and a sliding window differ only in the ranges that they combine, so there is one [`Decoder`] for both. (T. Ho
//! et al., "A Random Linear Network Coding Approach to Multicast", 2006; Xiang et al., JSAC 2019, for block 32 and
//! window 8.)
//!
//! The types to know: [`Encoder`] sends source symbols unchanged and makes repairs, which are combinations of them,
//! according to its [`Scheme`]. [`Decoder`] stores source symbols and [`Combination`]s until it can solve for the
//! missing symbols. [`Recoder`] combines the packets that pass a hop, without decoding them.
//!
//! The function `rlnc` in `taut-functions` uses these types, and defines how packets carry combinations. The types use
//! [`kernel`], which implements the two expensive operations by vector instructions, and [`field`], which contains the
//! arithmetic and its tables.
//!
//! Begin with `encoder.rs`, then `decoder.rs`.

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

/// Largest number of source symbols in one combination.
pub const MOST_COMBINED: usize = 255;
