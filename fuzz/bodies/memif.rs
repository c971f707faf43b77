//! The body of the fuzz target for memif messages; `cargo test` runs the same body over seeded noise.

use taut_port::memif::message::{MESSAGE_BYTES, Message};

/// Decodes one control message, and checks that it stays unchanged when encoded and decoded again. Texts that fill
/// their field are an exception: they lose a byte to the terminating zero.
pub fn message(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else {
        return;
    };
    assert_eq!(bytes.len(), MESSAGE_BYTES);
    let encoded = message.encode();
    // Type and numbers are encoded at the same positions; only padding, unknown flags and text may differ.
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

/// Returns the message with its texts truncated to their fields, without the terminating zero.
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

/// Truncates a text to a field. A character that is split is replaced by the replacement character.
fn cut(text: &mut String, field_bytes: usize) {
    let kept = text.len().min(field_bytes - 1);
    *text = String::from_utf8_lossy(&text.as_bytes()[..kept]).into_owned();
}
