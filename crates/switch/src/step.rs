//! The encoding of a worker's steps: the kind of the step is in the lowest 8 bits (0 for no step), and the arguments
//! are in the bits above.

use super::key::Field;
use super::scope::Of;

pub const OUTPUT: u64 = 1;
pub const IN_PORT: u64 = 2;
pub const FLOOD: u64 = 3;
pub const NORMAL: u64 = 4;
pub const CONTROLLER: u64 = 5;
pub const QUEUE: u64 = 6;
pub const GROUP: u64 = 7;
pub const METER: u64 = 8;
/// Sets a header field. The argument consists of the index of the field (4 bits), the packets in which the field is set
/// (4 bits), and the value. Addresses are in the next two words instead.
pub const SET: u64 = 9;
pub const DECREMENT_TTL: u64 = 10;
pub const PUSH_VLAN: u64 = 11;
pub const POP_VLAN: u64 = 12;
pub const GOTO: u64 = 13;
/// Clears the packet's action set.
pub const CLEAR: u64 = 14;
pub const ALL: u64 = 15;
/// The bit that marks a step that is written into the action set.
pub const WRITTEN: u64 = 0x80;
/// The mask of the bits of a step that contain its kind.
pub const KIND: u64 = 0x7f;
/// The lowest bit of the argument in a step.
pub const ARGUMENT_AT: u32 = 8;
/// The lowest bit of a field's value in a step of kind [`SET`].
pub const VALUE_AT: u32 = 16;

/// Returns true if the step `word` changes the packet.
#[inline(always)]
pub const fn changes(word: u64) -> bool {
    matches!(word & KIND, SET | DECREMENT_TTL | PUSH_VLAN | POP_VLAN)
}

/// Returns the field that a step sets; none if the index of the field is invalid.
#[inline(always)]
pub fn field(word: u64) -> Option<Field> {
    Field::ALL
        .get((word >> ARGUMENT_AT) as usize & 0xf)
        .copied()
}

/// Returns the packets in which a step sets the field.
#[inline(always)]
pub fn of(word: u64) -> Of {
    let place = (word >> (ARGUMENT_AT + 4)) as usize & 0xf;
    Of::ALL.get(place).copied().unwrap_or(Of::Any)
}

/// Returns true if two more words, with an address, belong to a step.
#[inline(always)]
pub fn is_long(word: u64) -> bool {
    word & KIND == SET && field(word).is_some_and(|field| field.bits() == 128)
}
