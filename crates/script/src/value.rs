//! Values that are passed from one Lua state to another: numbers, texts, booleans, and tables of these.

use mlua::{Lua, Value};

/// A copy of a Lua value, outside of any state.
#[derive(Debug, Clone, PartialEq)]
pub enum Plain {
    /// The value nil.
    Nil,
    /// A boolean.
    Truth(bool),
    /// A number.
    Number(f64),
    /// A string of bytes.
    Text(Vec<u8>),
    /// The keys and values of a table.
    Table(Vec<(Plain, Plain)>),
}

/// Limit on the depth of nested tables: a deeper table is assumed to contain itself.
const DEEPEST: usize = 32;
/// Limit on the size of a copy, bytes. A copy does not count towards Lua's memory limit, and a table that occurs
/// several times is copied each time.
const MOST_BYTES: usize = 64 << 20;

impl Plain {
    /// Copies a value out of its state.
    ///
    /// # Errors
    /// The value is a function, or another value that belongs to one state.
    pub fn of(value: &Value) -> mlua::Result<Self> {
        Self::at(value, 0, &mut 0)
    }

    /// Copies a value that is nested in `depth` tables; `taken` is the number of bytes copied before this value.
    fn at(value: &Value, depth: usize, taken: &mut usize) -> mlua::Result<Self> {
        *taken += size_of::<Self>() + value.as_string().map_or(0, |text| text.as_bytes().len());
        if *taken > MOST_BYTES {
            return Err(mlua::Error::runtime(format!(
                "values passed between tasks: the maximum is {} MB; a table counts each time that it occurs",
                MOST_BYTES >> 20
            )));
        }
        Ok(match value {
            Value::Nil => Self::Nil,
            Value::Boolean(truth) => Self::Truth(*truth),
            Value::Integer(number) => Self::Number(*number as f64),
            Value::Number(number) => Self::Number(*number),
            Value::String(text) => Self::Text(text.as_bytes().to_vec()),
            Value::Table(table) if depth < DEEPEST => {
                let mut pairs = Vec::new();
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pairs.push((
                        Self::at(&key, depth + 1, taken)?,
                        Self::at(&value, depth + 1, taken)?,
                    ));
                }
                Self::Table(pairs)
            }
            other => {
                return Err(mlua::Error::runtime(format!(
                    "a {} cannot be passed between tasks: expected numbers, texts, or tables of these",
                    other.type_name()
                )));
            }
        })
    }

    /// Makes the value in a Lua state.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn in_state(&self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Self::Nil => Value::Nil,
            Self::Truth(truth) => Value::Boolean(*truth),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::String(lua.create_string(text)?),
            Self::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.in_state(lua)?, value.in_state(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_copied_between_lua_states_but_functions_are_refused() {
        let (from, to) = (Lua::new(), Lua::new());
        let value: Value = from.load("return {1, 'x', {deep = true}}").eval().unwrap();
        let copy = Plain::of(&value).unwrap().in_state(&to).unwrap();
        to.globals().set("copy", copy).unwrap();
        let right: bool = to
            .load("return copy[1] == 1 and copy[2] == 'x' and copy[3].deep")
            .eval()
            .unwrap();
        assert!(right);
        for wrong in ["return print", "local t = {} t.t = t return t"] {
            let value: Value = from.load(wrong).eval().unwrap();
            assert!(Plain::of(&value).is_err(), "{wrong}");
        }
    }
}
