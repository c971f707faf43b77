//! What the memif fuzz target does with its bytes; `cargo test` runs the same over seeded noise.

use taut_port::memif::message::{MESSAGE_BYTES, Message};

/// Decodes one control message. What it says must come through another round unchanged, but for texts
/// that fill their field: those lose a byte to the zero that ends them.
pub fn message(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else {
        return;
    };
    assert_eq!(bytes.len(), MESSAGE_BYTES);
    let encoded = message.encode();
    // Type and numbers lie where they were; what differs is padding, unknown flags and text.
    let numbers = match message {
        Message::Ack | Message::Connect { .. } | Message::Connected { .. } => 0..0,
        Message::Hello { .. } => 34..45,
        Message::Init { .. } => 2..9,
        Message::AddRegion { .. } => 2..12,
        Message::AddRing { .. } => 4..13,
        Message::Disconnect { .. } => 2..6,
    };
    assert_eq!(encoded[..2], bytes[..2]);
    assert_eq!(encoded[numbers.clone()], bytes[numbers]);
    assert_eq!(Message::decode(&encoded), Ok(as_sent(message)));
}

/// The message with its texts cut to what their fields hold beside the ending zero.
fn as_sent(mut message: Message) -> Message {
    match &mut message {
        Message::Hello { name, .. } => cut(name, 32),
        Message::Init { secret, name, .. } => {
            cut(secret, 24);
            cut(name, 32);
        }
        Message::Connect { interface } | Message::Connected { interface } => cut(interface, 32),
        Message::Disconnect { reason, .. } => cut(reason, 96),
        Message::Ack | Message::AddRegion { .. } | Message::AddRing { .. } => {}
    }
    message
}

/// A character that the cut splits is read as the replacement character.
fn cut(text: &mut String, field_bytes: usize) {
    let kept = text.len().min(field_bytes - 1);
    *text = String::from_utf8_lossy(&text.as_bytes()[..kept]).into_owned();
}
