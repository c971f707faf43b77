//! The formats of values in files and options, and the messages about errors in them.
//!
//! Times ([`duration`]) and sizes of memory ([`Size`]) are written with their units. The error for an invalid file is a
//! [`SettingsFileError`], which names the file, the line and the column. [`in_words`] describes an error of the TOML
//! parser in words of the file, [`place_in`] finds the key to which an error refers, and [`suggestion`] asks "did you
//! mean". Crates that read settings return these errors unchanged.
//!
//! Begin with `file.rs`. The only input or output is that [`SettingsFileError::read`] and [`shared_key`] read the given
//! file.

#![forbid(unsafe_code)]

mod duration;
mod file;
mod key;
mod size;

pub use duration::duration;
pub use file::{SettingsFileError, in_words, place_in, suggestion};
pub use key::{key_of_hex, shared_key};
pub use size::Size;
