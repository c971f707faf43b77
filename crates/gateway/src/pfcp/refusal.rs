//! The reason for refusing a PFCP request, as the response reports it.

use taut_wire::pfcp::{Cause, ElementType, FailedRule};

/// The reason for refusing a PFCP request, as the response reports it: the cause, and the element or rule concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub cause: Cause,
    pub offending: Option<ElementType>,
    pub failed: Option<FailedRule>,
}

impl Refusal {
    pub fn new(cause: Cause) -> Self {
        Self {
            cause,
            offending: None,
            failed: None,
        }
    }

    pub fn missing(element_type: ElementType) -> Self {
        Self {
            offending: Some(element_type),
            ..Self::new(Cause::MANDATORY_IE_MISSING)
        }
    }

    pub fn incorrect(element_type: ElementType) -> Self {
        Self {
            offending: Some(element_type),
            ..Self::new(Cause::MANDATORY_IE_INCORRECT)
        }
    }

    pub fn rule(failed: FailedRule) -> Self {
        Self {
            failed: Some(failed),
            ..Self::new(Cause::RULE_FAILURE)
        }
    }
}

/// A wrong length inside an information element becomes a refusal.
impl From<taut_wire::Error> for Refusal {
    fn from(_: taut_wire::Error) -> Self {
        Self::new(Cause::INVALID_LENGTH)
    }
}
