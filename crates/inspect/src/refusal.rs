//! Reasons why a part of a rule is not read: it is wrong, or means what cannot be done here.

/// Reason why a rule is not loaded, or an option has no meaning here.
pub(crate) enum Refusal {
    /// It is wrong.
    Wrong(String),
    /// It means something that cannot be done here.
    NotUnderstood,
    /// The same, where the name of the option does not say what that is.
    Unable(String),
    /// It is an option that is not known.
    Unknown,
}

pub(crate) type Read<T> = Result<T, Refusal>;
/// What was read, or a place in the text of the rule and what is wrong there.
pub(crate) type Placed<T> = Result<T, (usize, String)>;

pub(crate) fn unable<T>(what: impl Into<String>) -> Read<T> {
    Err(Refusal::Unable(what.into()))
}

pub(crate) fn wrong<T>(reason: impl Into<String>) -> Read<T> {
    Err(Refusal::Wrong(reason.into()))
}
