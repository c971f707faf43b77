//! Reasons why a part of a rule is not read: it is invalid, or taut does not support it.

/// The reason why a rule is not loaded, or why an option has no meaning here.
pub(crate) enum Refusal {
    /// The text is invalid.
    Wrong(String),
    /// Taut does not support the option.
    NotUnderstood,
    /// Taut does not support the value of the option; the text describes it.
    Unable(String),
    /// The option is unknown.
    Unknown,
}

pub(crate) type Read<T> = Result<T, Refusal>;
/// A result, or the position in the text of the rule and the error there.
pub(crate) type Placed<T> = Result<T, (usize, String)>;

pub(crate) fn unable<T>(what: impl Into<String>) -> Read<T> {
    Err(Refusal::Unable(what.into()))
}

pub(crate) fn wrong<T>(reason: impl Into<String>) -> Read<T> {
    Err(Refusal::Wrong(reason.into()))
}
