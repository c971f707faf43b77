//! Names in an experiment that are used as file names.

/// Maximum length of the name of a node, step, table or figure, bytes. A name of this length with an extension is still
/// a valid file name.
pub(crate) const LONGEST_NAME: usize = 200;

/// Returns true if a name in the experiment can be part of a file name.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain)
}
