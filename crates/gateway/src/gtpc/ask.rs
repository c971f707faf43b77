//! A peer's request during processing, the cause of a refusal, and the data for a later response.

use super::context::Endpoint;
use crate::Control;
use crate::pfcp;
use crate::signalling::Sent;
use std::net::SocketAddr;
use std::time::Instant;
use taut_wire::gtpc::{
    Cause, CauseValue, Element, ElementType, Elements, FTeid, Message, MessageType, Writer,
};
use taut_wire::pfcp as sx;

/// The state that the processing of a message may use: the time, the sessions, the table, and the list of messages to
/// send.
pub(super) struct Work<'a> {
    pub now: Instant,
    pub up: &'a mut pfcp::Node,
    pub control: &'a mut Control,
    pub out: &'a mut Vec<Sent>,
}

/// A received request and its sender.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub from: SocketAddr,
    /// The complete message, from which retransmissions are recognised.
    pub bytes: &'a [u8],
    pub message: Message<'a>,
}

impl Ask<'_> {
    /// Returns the data for a response that is sent once another node has responded.
    pub fn later(&self, peer: Endpoint) -> Reply {
        Reply {
            to: self.from,
            teid: peer.teid,
            sequence: self.message.sequence,
            kind: self.message.message_type.response(),
            request: self.bytes.into(),
        }
    }
}

/// The data for a response that is sent later.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub to: SocketAddr,
    /// The TEID of the peer's endpoint.
    pub teid: u32,
    pub sequence: u32,
    pub kind: MessageType,
    /// The request, from which retransmissions are recognised.
    pub request: Box<[u8]>,
}

impl Reply {
    /// Starts the response to the stored request, with its cause.
    pub fn writer(&self, cause: Cause) -> Writer {
        let mut writer = Writer::message(self.kind, Some(self.teid), self.sequence);
        writer.element(ElementType::CAUSE, &cause.emit());
        writer
    }
}

/// The cause with which a request is refused.
pub(super) type Refusal = Cause;

pub(super) fn refusal(value: CauseValue) -> Refusal {
    Cause::new(value)
}

/// Returns a refusal that names an information element as the reason.
pub(super) fn about(value: CauseValue, kind: ElementType, instance: u8) -> Refusal {
    Cause {
        offending: Some((kind, instance)),
        ..Cause::new(value)
    }
}

/// Returns the first information element of the given type and instance, if there is one.
pub(super) fn look(
    elements: Elements<'_>,
    kind: ElementType,
    instance: u8,
) -> Result<Option<Element<'_>>, Refusal> {
    let found = elements.find(kind, instance);
    found.map_err(|_| refusal(CauseValue::INVALID_LENGTH))
}

/// Returns the first information element of the given type and instance; a missing element is a refusal (TS 29.274
/// section 7.7.6).
pub(super) fn need(
    elements: Elements<'_>,
    kind: ElementType,
    instance: u8,
) -> Result<Element<'_>, Refusal> {
    let found = look(elements, kind, instance)?;
    found.ok_or(about(CauseValue::MANDATORY_IE_MISSING, kind, instance))
}

/// Reads the value of an information element by `parse`; a wrong length is a refusal (TS 29.274 section 7.7.7).
pub(super) fn read<'a, T>(
    element: &Element<'a>,
    parse: impl FnOnce(&'a [u8]) -> Result<T, taut_wire::Error>,
) -> Result<T, Refusal> {
    let wrong = about(
        CauseValue::INVALID_LENGTH,
        element.element_type,
        element.instance,
    );
    parse(element.value).map_err(|_| wrong)
}

/// Returns the EPS bearer identity (EBI) in an information element.
pub(super) fn ebi(element: &Element<'_>) -> Result<u8, Refusal> {
    let value = read(element, |value| Element { value, ..*element }.u8())?;
    Ok(value & 0xf)
}

/// Returns the tunnel endpoint in the F-TEID element of the given instance, if there is one. An endpoint without an
/// address or identifier is a refusal.
pub(super) fn end(elements: Elements<'_>, instance: u8) -> Result<Option<FTeid>, Refusal> {
    let Some(element) = look(elements, ElementType::F_TEID, instance)? else {
        return Ok(None);
    };
    let end = read(&element, FTeid::parse)?;
    if end.address().is_none() || end.teid == 0 {
        let wrong = CauseValue::MANDATORY_IE_INCORRECT;
        return Err(about(wrong, ElementType::F_TEID, instance));
    }
    Ok(Some(end))
}

/// Returns the GTP-C cause of a request that the sessions have refused with the given PFCP cause.
pub(super) fn cause_of(cause: sx::Cause) -> Refusal {
    refusal(match cause {
        sx::Cause::NO_RESOURCES => CauseValue::NO_RESOURCES,
        sx::Cause::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED => {
            CauseValue::ALL_DYNAMIC_ADDRESSES_ARE_OCCUPIED
        }
        sx::Cause::SESSION_NOT_FOUND => CauseValue::CONTEXT_NOT_FOUND,
        sx::Cause::RULE_FAILURE => CauseValue::REQUEST_REJECTED,
        sx::Cause::INVALID_F_TEID_ALLOCATION | sx::Cause::SERVICE_NOT_SUPPORTED => {
            CauseValue::PREFERRED_PDN_TYPE_NOT_SUPPORTED
        }
        _ => CauseValue::SYSTEM_FAILURE,
    })
}
