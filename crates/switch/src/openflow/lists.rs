//! Actions, instructions and buckets as OpenFlow encodes them. (OpenFlow 1.3.5, sections 7.2.4, 7.2.5 and 7.3.4.3.)

use super::fields::{check_fields_set, read_set, write_set};
use super::wire::{Reader, Writer, Wrong};
use crate::action::{Action, ActionsError, CUSTOMER_TAG, Instructions, SERVICE_TAG, To, steps};
use crate::group::{Bucket, MOST_BUCKETS};
use crate::key::{Field, Key};
use crate::refusal::Refused;
use crate::scope::Of;
use crate::table::TABLES;
use taut_wire::EtherType;

/// The reserved numbers of ports and groups in OpenFlow messages.
pub(super) mod reserved {
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const TABLE: u32 = 0xffff_fff9;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const ALL: u32 = 0xffff_fffc;
    pub const CONTROLLER: u32 = 0xffff_fffd;
    pub const ANY: u32 = 0xffff_ffff;
    /// The group number that means every group, or no particular group.
    pub const ALL_GROUPS: u32 = 0xffff_fffc;
}

const OUTPUT: u16 = 0;
const PUSH_VLAN: u16 = 17;
const POP_VLAN: u16 = 18;
const SET_QUEUE: u16 = 21;
const GROUP: u16 = 22;
const SET_TTL: u16 = 23;
const DECREMENT_TTL: u16 = 24;
const SET_FIELD: u16 = 25;

/// The OpenFlow types of the supported actions.
pub(super) const ACTIONS: [u16; 8] = [
    OUTPUT,
    PUSH_VLAN,
    POP_VLAN,
    SET_QUEUE,
    GROUP,
    SET_TTL,
    DECREMENT_TTL,
    SET_FIELD,
];

/// The result of parsing a list of actions from a message.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Listed {
    pub actions: Vec<Action>,
    /// True if the packet has to pass through the tables (only for packets that a controller sends).
    pub through_tables: bool,
}

/// Converts a port number from a message, counted from 1, to the index of a port of the chain; none if the chain does
/// not have that port.
pub(super) fn port(number: u32, ports: usize) -> Option<u8> {
    let port = u8::try_from(number.checked_sub(1)?).ok()?;
    (usize::from(port) < ports).then_some(port)
}

/// Returns the port number with which messages name the destination of an output action.
pub(super) fn number_of(to: To) -> u32 {
    match to {
        To::Port(port) => u32::from(port) + 1,
        To::InPort => reserved::IN_PORT,
        To::Flood => reserved::FLOOD,
        To::All => reserved::ALL,
        To::Normal => reserved::NORMAL,
        To::Controller => reserved::CONTROLLER,
    }
}

/// Parses actions of a message until no bytes are left.
pub(super) fn read_actions(mut reader: Reader<'_>, ports: usize) -> Result<Listed, Wrong> {
    let mut listed = Listed::default();
    while !reader.is_empty() {
        let bad = Wrong::BAD_ACTION_LENGTH;
        let head = reader.bytes(4, bad)?;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if length % 8 != 0 {
            return Err(bad);
        }
        let body = reader.bytes(length.checked_sub(4).ok_or(bad)?, bad)?;
        match read_action(kind, body, ports)? {
            Some(action) => listed.actions.push(action),
            None => listed.through_tables = true,
        }
    }
    Ok(listed)
}

/// Parses the body of an action of type `kind`; returns none for an output to the tables.
fn read_action(kind: u16, body: &[u8], ports: usize) -> Result<Option<Action>, Wrong> {
    let bad = Wrong::BAD_ACTION_LENGTH;
    let exact = |bytes: usize| (body.len() == bytes).then_some(()).ok_or(bad);
    let mut body = Reader(body);
    Ok(Some(match kind {
        OUTPUT => {
            exact(12)?;
            let Some(to) = destination_of(body.u32()?, ports)? else {
                return Ok(None);
            };
            Action::Output(to, body.u16()?)
        }
        PUSH_VLAN => {
            exact(4)?;
            let kind = EtherType(body.u16()?);
            if ![CUSTOMER_TAG, SERVICE_TAG].contains(&kind) {
                return Err(Wrong::BAD_ARGUMENT);
            }
            Action::PushVlan(kind)
        }
        POP_VLAN => {
            exact(4)?;
            Action::PopVlan
        }
        SET_QUEUE => {
            exact(4)?;
            let queue = u8::try_from(body.u32()?).ok().filter(|queue| *queue < 8);
            Action::Queue(queue.ok_or(Wrong::BAD_QUEUE)?)
        }
        GROUP => {
            exact(4)?;
            Action::Group(body.u32()?)
        }
        SET_TTL => {
            exact(4)?;
            let ttl = u128::from(body.u8()?);
            Action::Set(Field::Ttl, Of::Ip, ttl)
        }
        DECREMENT_TTL => {
            exact(4)?;
            Action::DecrementTtl
        }
        SET_FIELD => {
            let (field, of, value) = read_set(body.0)?;
            let action = Action::Set(field, of, value);
            if steps(&[action], 0).is_err() {
                return Err(Wrong::BAD_SET_TYPE);
            }
            action
        }
        _ => return Err(Wrong::BAD_ACTION),
    }))
}

/// Returns the destination of an output action that a port number in a message names; none for the tables.
fn destination_of(number: u32, ports: usize) -> Result<Option<To>, Wrong> {
    Ok(Some(match number {
        reserved::IN_PORT => To::InPort,
        reserved::NORMAL => To::Normal,
        reserved::FLOOD => To::Flood,
        reserved::ALL => To::All,
        reserved::CONTROLLER => To::Controller,
        reserved::TABLE => return Ok(None),
        number => To::Port(port(number, ports).ok_or(Wrong::BAD_OUT_PORT)?),
    }))
}

/// Writes actions to a message; steps that are no OpenFlow action (meters, tables) are omitted.
pub(super) fn write_actions<'a>(
    writer: &mut Writer,
    actions: impl IntoIterator<Item = &'a Action>,
) {
    for action in actions {
        let start = writer.0.len();
        let short = |writer: &mut Writer, kind: u16, argument: u32| {
            writer.u16(kind).u16(8).u32(argument);
        };
        match *action {
            Action::Output(to, most) => {
                writer.u16(OUTPUT).u16(16).u32(number_of(to)).u16(most);
                writer.zeros(6);
            }
            Action::Queue(queue) => short(writer, SET_QUEUE, u32::from(queue)),
            Action::Group(id) => short(writer, GROUP, id),
            Action::DecrementTtl => short(writer, DECREMENT_TTL, 0),
            Action::PushVlan(kind) => short(writer, PUSH_VLAN, u32::from(kind.0) << 16),
            Action::PopVlan => short(writer, POP_VLAN, 0),
            Action::Set(Field::Ttl, _, ttl) => short(writer, SET_TTL, (ttl as u32) << 24),
            Action::Set(field, of, value) => {
                writer.u16(SET_FIELD).u16(0);
                write_set(writer, field, of, value);
                writer.pad(start);
                writer.length_at(start, start + 2);
            }
            Action::Meter(_) | Action::Goto(_) => {}
        }
    }
}

const GOTO: u16 = 1;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
const METER: u16 = 6;

/// The OpenFlow types of the supported instructions.
pub(super) const INSTRUCTIONS: [u16; 5] =
    [GOTO, WRITE_ACTIONS, APPLY_ACTIONS, CLEAR_ACTIONS, METER];

/// Parses the instructions of a rule with this match until no bytes are left.
pub(super) fn read_instructions(
    mut reader: Reader<'_>,
    ports: usize,
    (mut value, mut mask): (Key, Key),
) -> Result<Instructions, Wrong> {
    let (mut meter, mut goto) = (None, None);
    let mut does = Instructions::default();
    let bad = Wrong::BAD_INSTRUCTION_LENGTH;
    while !reader.is_empty() {
        let head = reader.bytes(4, bad)?;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if length % 8 != 0 {
            return Err(bad);
        }
        let mut body = Reader(reader.bytes(length.checked_sub(4).ok_or(bad)?, bad)?);
        match kind {
            GOTO => {
                let table = body.u8()?;
                if table >= TABLES {
                    return Err(Wrong::BAD_NEXT_TABLE);
                }
                goto = Some(Action::Goto(table));
            }
            METER => meter = Some(Action::Meter(body.u32()?)),
            APPLY_ACTIONS | WRITE_ACTIONS => {
                body.bytes(4, bad)?;
                let listed = read_actions(body, ports)?;
                if listed.through_tables {
                    return Err(Wrong::BAD_OUT_PORT);
                }
                match kind {
                    APPLY_ACTIONS => does.apply = listed.actions,
                    _ => does.write = listed.actions,
                }
            }
            CLEAR_ACTIONS => does.clears = true,
            2 => return Err(Wrong::UNSUPPORTED_INSTRUCTION),
            _ => return Err(Wrong::BAD_INSTRUCTION),
        }
    }
    check_fields_set(&does.apply, (&mut value, &mut mask))?;
    // An action set changes tags before it sets fields. (Section 5.10.)
    let mut written = does.write.clone();
    written.sort_by_key(|action| match action {
        Action::PopVlan => 0,
        Action::PushVlan(_) => 1,
        _ => 2,
    });
    check_fields_set(&written, (&mut value, &mut mask))?;
    if let Some(meter) = meter {
        does.apply.insert(0, meter);
    }
    does.apply.extend(goto);
    Ok(does)
}

pub(super) fn write_instructions(writer: &mut Writer, does: &Instructions) {
    for action in &does.apply {
        if let Action::Meter(id) = action {
            writer.u16(METER).u16(8).u32(*id);
        }
    }
    write_list(writer, APPLY_ACTIONS, &does.apply);
    if does.clears {
        writer.u16(CLEAR_ACTIONS).u16(8).zeros(4);
    }
    write_list(writer, WRITE_ACTIONS, &does.write);
    if let Some(Action::Goto(table)) = does.apply.last() {
        writer.u16(GOTO).u16(8).u8(*table).zeros(3);
    }
}

/// Writes an instruction of type `kind` with actions, if there are any actions.
fn write_list(writer: &mut Writer, kind: u16, actions: &[Action]) {
    let is_action = |action: &Action| !matches!(action, Action::Meter(_) | Action::Goto(_));
    if actions.iter().any(is_action) {
        let start = writer.0.len();
        writer.u16(kind).u16(0).zeros(4);
        write_actions(writer, actions);
        writer.length_at(start, start + 2);
    }
}

pub(super) fn read_buckets(mut reader: Reader<'_>, ports: usize) -> Result<Vec<Bucket>, Wrong> {
    let mut buckets = Vec::new();
    while !reader.is_empty() {
        if buckets.len() == MOST_BUCKETS {
            return Err(Wrong::OUT_OF_BUCKETS);
        }
        let length = usize::from(reader.u16()?);
        let body = length.checked_sub(2).ok_or(Wrong::BAD_BUCKET)?;
        let mut body = Reader(reader.bytes(body, Wrong::BAD_BUCKET)?);
        let (weight, watch, group) = (body.u16()?, body.u32()?, body.u32()?);
        body.skip(4)?;
        if group != reserved::ANY {
            return Err(Wrong::WATCH_UNSUPPORTED);
        }
        let watch = match watch {
            reserved::ANY => None,
            number => Some(port(number, ports).ok_or(Wrong::BAD_WATCH)?),
        };
        let listed = read_actions(body, ports)?;
        buckets.push(Bucket {
            weight,
            watch,
            actions: listed.actions,
        });
    }
    Ok(buckets)
}

pub(super) fn write_buckets(writer: &mut Writer, buckets: &[Bucket]) {
    for bucket in buckets {
        let start = writer.0.len();
        let watch = bucket
            .watch
            .map_or(reserved::ANY, |port| u32::from(port) + 1);
        writer
            .u16(0)
            .u16(bucket.weight)
            .u32(watch)
            .u32(reserved::ANY)
            .zeros(4);
        write_actions(writer, &bucket.actions);
        writer.length_at(start, start);
    }
}

/// Returns the error reply for a refused rule.
pub(super) fn of_rule(refused: Refused) -> Wrong {
    match refused {
        Refused::TableFull | Refused::TooManyMasks => Wrong::TABLE_FULL,
        Refused::NoSuchTable => Wrong::BAD_TABLE,
        Refused::Actions(ActionsError::GoesBack) => Wrong::BAD_NEXT_TABLE,
        Refused::Actions(ActionsError::TooMany) => Wrong::TOO_MANY_ACTIONS,
        Refused::Actions(_) => Wrong::UNSUPPORTED_ORDER,
        Refused::NoSuchGroup => Wrong::BAD_OUT_GROUP,
        Refused::NoSuchMeter => Wrong::UNKNOWN_METER,
        _ => Wrong::FLOW_FAILED,
    }
}

/// Returns the error reply for a refused group.
pub(super) fn of_group(refused: Refused) -> Wrong {
    match refused {
        Refused::Exists => Wrong::GROUP_EXISTS,
        Refused::NoSuchGroup => Wrong::UNKNOWN_GROUP,
        Refused::TooMany => Wrong::OUT_OF_GROUPS,
        Refused::Chained => Wrong::CHAINING_UNSUPPORTED,
        Refused::NotOneBucket | Refused::BadBucket => Wrong::BAD_BUCKET,
        Refused::NoWeight => Wrong::INVALID_GROUP,
        Refused::WatchesNothing => Wrong::BAD_WATCH,
        other => of_rule(other),
    }
}

/// Returns the error reply for a refused meter.
pub(super) fn of_meter(refused: Refused) -> Wrong {
    match refused {
        Refused::Exists => Wrong::METER_EXISTS,
        Refused::NoSuchMeter => Wrong::UNKNOWN_METER,
        Refused::TooMany => Wrong::OUT_OF_METERS,
        Refused::NoRate => Wrong::BAD_RATE,
        _ => Wrong::METER_FAILED,
    }
}
