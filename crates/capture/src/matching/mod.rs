//! Matching: packets seen at two places are brought together by what they hold, so that the delay and the losses of any
//! device between are known for traffic without stamps. (MoonSniff does so by a part of each packet.)
//!
//! [`Identify`] makes an [`Identity`] of the bytes that a forwarding device leaves alone; a [`Matcher`] takes identities and
//! times of both places and says of each packet how long it took, or that it was lost.

mod identity;
mod matcher;

pub use identity::{IDENTITY_BYTES, Identify, Identity, Ignore};
pub use matcher::{Counts, Matcher, Outcome, Settings};
