//! Reasons why a part of a rule is refused: it is invalid, or taut does not support it.

/// The reason why a rule or an option is refused.
pub(crate) enum Refusal {
    /// The text of the rule or option is invalid.
    Wrong(String),
    /// Taut does not support the option.
    NotUnderstood,
    /// Taut does not support the value of the option; the text describes it.
    Unable(String),
    /// The rule option is unknown.
    Unknown,
}

pub(crate) type Read<T> = Result<T, Refusal>;
/// A result, or an error with its offset in the text of the rule.
pub(crate) type Placed<T> = Result<T, (usize, String)>;

pub(crate) fn unable<T>(what: impl Into<String>) -> Read<T> {
    Err(Refusal::Unable(what.into()))
}

pub(crate) fn wrong<T>(reason: impl Into<String>) -> Read<T> {
    Err(Refusal::Wrong(reason.into()))
}
