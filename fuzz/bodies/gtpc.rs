//! The body of the fuzz target for GTP-C; `cargo test` runs the same body over seeded noise.

use taut_wire::gtpc::{Ambr, BearerQos, Cause, Elements, FTeid, Message, Paa, TrafficFlow, Writer};

/// Parses a message as a gateway would, writes it again and parses the result.
pub fn message(bytes: &[u8]) {
    let Ok((message, behind)) = Message::parse(bytes) else {
        let _ = Message::sequence_of_unparsed(bytes);
        return;
    };
    assert!(behind.len() < bytes.len());
    let mut writer = Writer::message(message.message_type, message.teid, message.sequence);
    let mut whole = true;
    for element in message.elements {
        match element {
            Ok(element) => {
                typed(element.value);
                walk(element.group(), 3);
                let found = message
                    .elements
                    .find(element.element_type, element.instance);
                assert!(matches!(found, Ok(Some(_))));
                writer.copied(&element);
            }
            Err(_) => whole = false,
        }
    }
    let again = writer.finish().expect("no longer than what was read");
    let (read, behind) = Message::parse(&again).expect("what was written is one");
    assert!(behind.is_empty());
    if whole {
        // Spare bits are written as 0.
        assert!(read.elements.eq(message.elements));
    }
}

fn walk(elements: Elements<'_>, depth: usize) {
    for element in elements.flatten() {
        typed(element.value);
        let _ = element.u8();
        if depth > 0 {
            walk(element.group(), depth - 1);
        }
    }
}

/// Checks that every parsed value is the same after it is written and parsed again.
fn typed(value: &[u8]) {
    if let Ok(teid) = FTeid::parse(value) {
        assert_eq!(FTeid::parse(&teid.emit()), Ok(teid));
    }
    if let Ok(Some(paa)) = Paa::parse(value) {
        assert_eq!(Paa::parse(&paa.emit()), Ok(Some(paa)));
    }
    if let Ok(qos) = BearerQos::parse(value) {
        assert_eq!(BearerQos::parse(&qos.emit()), Ok(qos));
    }
    if let Ok(rates) = Ambr::parse(value) {
        assert_eq!(Ambr::parse(&rates.emit()), Ok(rates));
    }
    if let Ok(cause) = Cause::parse(value) {
        assert_eq!(Cause::parse(&cause.emit()), Ok(cause));
    }
    if let Ok(flow) = TrafficFlow::parse(value) {
        assert!(flow.filters().count() <= 15);
    }
}
