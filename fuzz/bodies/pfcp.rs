//! The body of the fuzz target for PFCP; `cargo test` runs the same body over seeded noise.

use taut_wire::pfcp::{
    Elements, FTeid, Mbr, Message, NodeId, OuterHeaderCreation, SdfFilter, Seid, UeAddress,
    Volumes, Writer,
};

/// Parses a message as a user plane would, writes it again and parses the result.
pub fn message(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else {
        let _ = Message::sequence_of_other_version(bytes);
        return;
    };
    let mut writer = Writer::message(message.message_type, message.seid, message.sequence);
    let mut whole = true;
    for element in message.elements {
        match element {
            Ok(element) => {
                typed(element.value);
                walk(element.group(), 3);
                writer.element(element.element_type, element.value);
            }
            Err(_) => whole = false,
        }
    }
    let again = writer.finish().expect("no longer than what was read");
    let read = Message::parse(&again).expect("what was written is one");
    if whole {
        assert_eq!(read, message);
    }
}

fn walk(elements: Elements<'_>, depth: usize) {
    for element in elements.flatten() {
        typed(element.value);
        let _ = (element.u8(), element.u16(), element.u32());
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
    if let Ok(seid) = Seid::parse(value) {
        assert_eq!(Seid::parse(&seid.emit()), Ok(seid));
    }
    if let Ok(Some(creation)) = OuterHeaderCreation::parse(value) {
        assert_eq!(
            OuterHeaderCreation::parse(&creation.emit()),
            Ok(Some(creation))
        );
    }
    if let Ok(rates) = Mbr::parse(value) {
        assert_eq!(Mbr::parse(&rates.emit()), Ok(rates));
    }
    if let Ok(filter) = SdfFilter::parse(value) {
        assert_eq!(SdfFilter::parse(&filter.emit()), Ok(filter));
    }
    if let Ok(volumes) = Volumes::parse(value) {
        assert_eq!(Volumes::parse(&volumes.emit()), Ok(volumes));
    }
    if let Ok(user) = UeAddress::parse(value) {
        assert_eq!(UeAddress::parse(&user.emit(false)), Ok(user));
    }
    let _ = NodeId::is_one(value);
}
