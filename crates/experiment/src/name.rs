//! Names in an experiment that become those of files.

/// The longest name of a node, step, table or figure, bytes: with an ending it is still that of a file.
pub(crate) const LONGEST_NAME: usize = 200;

/// Whether a name of the experiment can be part of the name of a file.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain)
}
