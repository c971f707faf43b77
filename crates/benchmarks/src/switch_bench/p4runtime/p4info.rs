//! The parts of a P4Info message that table entries refer to: tables, their match fields, actions and their parameters.
//! (P4Runtime Specification 1.4.1, section 6.4.)

use super::error::P4Error;
use super::protobuf::{Fields, Value, last};

const NAME: &str = "P4Info";

/// The tables and actions of a pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct P4Info {
    pub tables: Vec<Table>,
    pub actions: Vec<Action>,
    /// Tables whose entries have a meter that counts packets.
    pub packet_meters: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub id: u32,
    pub name: String,
    pub alias: String,
    pub keys: Vec<Field>,
    pub actions: Vec<u32>,
    /// True if an action profile selects the actions of entries.
    pub is_indirect: bool,
    /// True if the entries are a part of the pipeline, and cannot be changed.
    pub is_const: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Action {
    pub id: u32,
    pub name: String,
    pub alias: String,
    pub parameters: Vec<Field>,
}

/// A match field of a table, or a parameter of an action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub id: u32,
    pub name: String,
    /// Width of the value, bits; 0 if the controller sends a text in its place.
    pub bits: u32,
    pub kind: Match,
}

/// The kind of a match field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Match {
    #[default]
    Unknown,
    Exact,
    Prefix,
    Ternary,
    Range,
    Optional,
}

impl P4Info {
    /// Reads the binary form of the message.
    ///
    /// # Errors
    /// The message is damaged.
    pub fn read(bytes: &[u8]) -> Result<Self, P4Error> {
        let mut info = Self::default();
        for field in Fields::of(bytes, NAME) {
            match field? {
                (2, value) => info.tables.push(table(value.bytes())?),
                (3, value) => info.actions.push(action(value.bytes())?),
                (8, value) => {
                    let spec = last(value.bytes(), 2, NAME)?.map_or(&[][..], Value::bytes);
                    let counts_packets = last(spec, 1, NAME)?.map(Value::number) == Some(2);
                    let table = last(value.bytes(), 3, NAME)?.map_or(0, Value::number);
                    info.packet_meters
                        .extend(counts_packets.then_some(table as u32));
                }
                _ => {}
            }
        }
        Ok(info)
    }
}

/// Reads id, name and alias of a preamble.
fn preamble(bytes: &[u8]) -> Result<(u32, String, String), P4Error> {
    let text = |field| {
        Ok(last(bytes, field, NAME)?
            .map(Value::text)
            .unwrap_or_default())
    };
    let id = last(bytes, 1, NAME)?.map_or(0, Value::number);
    Ok((id as u32, text(2)?, text(3)?))
}

fn table(bytes: &[u8]) -> Result<Table, P4Error> {
    let mut table = Table::default();
    for field in Fields::of(bytes, NAME) {
        match field? {
            (1, value) => (table.id, table.name, table.alias) = preamble(value.bytes())?,
            (2, value) => table.keys.push(self::field(value.bytes(), true)?),
            (3, value) => {
                let id = last(value.bytes(), 1, NAME)?;
                table.actions.push(id.map_or(0, Value::number) as u32);
            }
            (6, value) => table.is_indirect = value.number() != 0,
            (10, value) => table.is_const = value.number() != 0,
            _ => {}
        }
    }
    Ok(table)
}

fn action(bytes: &[u8]) -> Result<Action, P4Error> {
    let mut action = Action::default();
    for field in Fields::of(bytes, NAME) {
        match field? {
            (1, value) => (action.id, action.name, action.alias) = preamble(value.bytes())?,
            (2, value) => action.parameters.push(self::field(value.bytes(), false)?),
            _ => {}
        }
    }
    Ok(action)
}

/// Reads a match field or a parameter, which have the same numbers for what both have.
fn field(bytes: &[u8], is_key: bool) -> Result<Field, P4Error> {
    let mut read = Field::default();
    for field in Fields::of(bytes, NAME) {
        match field? {
            (1, value) => read.id = value.number() as u32,
            (2, value) => read.name = value.text(),
            (4, value) => read.bits = u32::try_from(value.number()).unwrap_or(u32::MAX),
            (5, value) if is_key => {
                read.kind = match value.number() {
                    2 => Match::Exact,
                    3 => Match::Prefix,
                    4 => Match::Ternary,
                    5 => Match::Range,
                    6 => Match::Optional,
                    _ => Match::Unknown,
                }
            }
            _ => {}
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::text_format::binary;
    use super::*;

    #[test]
    fn tables_actions_and_meters_of_a_pipeline_are_read() {
        let text = "tables { preamble { id: 7 name: \"in.fwd\" alias: \"fwd\" } match_fields { id: 1 \
                    name: \"port\" bitwidth: 9 match_type: TERNARY } action_refs { id: 9 } is_const_table: true } \
                    actions { preamble { id: 9 name: \"send\" } params { id: 2 name: \"p\" bitwidth: 9 } } \
                    direct_meters { preamble { id: 3 } spec { unit: PACKETS } direct_table_id: 7 }";
        let info = P4Info::read(&binary(text).unwrap()).unwrap();
        let table = &info.tables[0];
        assert_eq!((table.id, table.alias.as_str()), (7, "fwd"));
        assert_eq!((table.actions[0], table.is_const), (9, true));
        assert_eq!(
            (table.keys[0].bits, table.keys[0].kind),
            (9, Match::Ternary)
        );
        assert_eq!(info.actions[0].parameters[0].name, "p");
        assert_eq!(info.packet_meters, [7]);
        assert!(P4Info::read(&[0x12, 0x05, 0x0a]).is_err());
    }
}
