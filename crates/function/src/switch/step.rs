//! Steps of a worker: their kinds in the lowest 8 bits, of which 0 is none, and what else they hold.

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
/// The field's number in the next 4 bits, of which packets in those behind, its value above; addresses in the two steps behind.
pub const SET: u64 = 9;
pub const DECREMENT_TTL: u64 = 10;
pub const PUSH_VLAN: u64 = 11;
pub const POP_VLAN: u64 = 12;
pub const GOTO: u64 = 13;
/// What the packet takes along is forgotten.
pub const CLEAR: u64 = 14;
pub const ALL: u64 = 15;
/// Bit of what the packet takes along.
pub const WRITTEN: u64 = 0x80;
/// Bits of the kind.
pub const KIND: u64 = 0x7f;
/// Place of what belongs to it.
pub const ARGUMENT_AT: u32 = 8;
/// Place of a field's value.
pub const VALUE_AT: u32 = 16;

/// Whether a step changes the packet.
#[inline(always)]
pub const fn changes(word: u64) -> bool {
    matches!(word & KIND, SET | DECREMENT_TTL | PUSH_VLAN | POP_VLAN)
}

/// The field that a step sets.
#[inline(always)]
pub fn field(word: u64) -> Option<Field> {
    Field::ALL
        .get((word >> ARGUMENT_AT) as usize & 0xf)
        .copied()
}

/// The packets of which it sets that.
#[inline(always)]
pub fn of(word: u64) -> Of {
    let place = (word >> (ARGUMENT_AT + 4)) as usize & 0xf;
    Of::ALL.get(place).copied().unwrap_or(Of::Any)
}

/// Whether two more words belong to a step.
#[inline(always)]
pub fn is_long(word: u64) -> bool {
    word & KIND == SET && field(word).is_some_and(|field| field.bits() == 128)
}
