//! What people write into files and options, and how they are told what is wrong with it.
//!
//! Times ([`duration`]) and sizes of memory ([`Size`]) are written with their units. A file of settings that cannot be
//! used is a [`SettingsFileError`], which names the file, the line and the column; [`in_words`] says what the TOML reader
//! has found in words of the file, [`place_in`] finds the key that a complaint is about, and [`suggestion`] asks
//! "did you mean". Crates that read settings hand these errors on as they are.
//!
//! Begin with `file.rs`. The only input or output is that [`SettingsFileError::read`] and [`shared_key`] read the file that they
//! are given.

#![forbid(unsafe_code)]

mod duration;
mod file;
mod key;
mod size;

pub use duration::duration;
pub use file::{SettingsFileError, in_words, place_in, suggestion};
pub use key::{key_of_hex, shared_key};
pub use size::Size;
