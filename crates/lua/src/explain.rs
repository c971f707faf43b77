//! Formats messages of scripts as lines: errors with file, line, description and call, and printed values.

use mlua::{Function, Lua, LuaString, MultiValue};

/// Describes an error in a script in one line. Lua calls the script `chunk`, the user calls it `path`; `memory` is the
/// message for exhausted memory.
pub fn explain(error: &mlua::Error, chunk: &str, path: &str, memory: &str) -> String {
    let mut traceback = String::new();
    let text = message(error, &mut traceback).unwrap_or_else(|| memory.to_string());
    let (text, trace) = match text.split_once("\nstack traceback:") {
        Some((text, trace)) => (text.to_string(), format!("{trace}\n{traceback}")),
        None => (text, traceback),
    };
    let text = text.trim().replace('\n', " ");
    // Lua's own messages name the line; those of host functions do not.
    let place = place_in(&text, chunk).map(|(place, rest)| (place.to_string(), rest.to_string()));
    let (place, text) = match place {
        Some(found) => found,
        None => {
            let text = text.strip_prefix("taut:").map_or(text.as_str(), |rest| {
                rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':')
                    .trim_start()
            });
            match trace.lines().find_map(|line| place_in(line.trim(), chunk)) {
                Some((place, _)) => (place.to_string(), text.to_string()),
                None => return format!("{path}: {text}"),
            }
        }
    };
    let call = trace.lines().find_map(|line| {
        let (found, call) = place_in(line.trim(), chunk)?;
        (found == place).then_some(call.trim())
    });
    let call = call.filter(|call| !call.is_empty() && !text.contains(*call));
    let line = place.rsplit(':').next().unwrap_or_default();
    match call {
        Some(call) => format!("{path}:{line}: {text} ({})", call.replace(chunk, path)),
        None => format!("{path}:{line}: {text}"),
    }
}

/// Returns `CHUNK:LINE` at the start of a text, and the text after it; none if the text does not begin with
/// `CHUNK:LINE`.
fn place_in<'a>(text: &'a str, chunk: &str) -> Option<(&'a str, &'a str)> {
    let rest = text.strip_prefix(chunk)?.strip_prefix(':')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let after = rest[digits..].strip_prefix(':')?;
    let length = chunk.len() + 1 + digits;
    (digits > 0).then_some((&text[..length], after.trim_start()))
}

/// Returns the innermost message; none for exhausted memory, for which Lua cannot name a line. Appends the tracebacks
/// found on the way to `traceback`, innermost first.
fn message(error: &mlua::Error, traceback: &mut String) -> Option<String> {
    Some(match error {
        mlua::Error::CallbackError {
            traceback: trace,
            cause,
        } => {
            let text = message(cause, traceback);
            traceback.push('\n');
            traceback.push_str(trace);
            return text;
        }
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::MemoryError(_) => return None,
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::WithContext { context, cause } => {
            format!("{context}: {}", message(cause, traceback)?)
        }
        mlua::Error::BadArgument { cause, .. } => return message(cause, traceback),
        other => other.to_string(),
    })
}

/// Returns the line that Lua's own `print` would write for the given values.
///
/// # Errors
/// A `__tostring` of a value fails.
pub fn line_of(lua: &Lua, values: MultiValue) -> mlua::Result<Vec<u8>> {
    let tostring: Function = lua.globals().get("tostring")?;
    let mut line = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            line.push(b'\t');
        }
        let text: LuaString = tostring.call(value)?;
        line.extend_from_slice(&text.as_bytes());
    }
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_line_is_found_in_the_message_or_traceback() {
        let own = mlua::Error::RuntimeError(
            "a.lua:3: attempt to index nil\nstack traceback:\n\ta.lua:3: in function 'craft'\n"
                .into(),
        );
        assert_eq!(
            explain(&own, "a.lua", "dir/a.lua", ""),
            "dir/a.lua:3: attempt to index nil (in function 'craft')"
        );
        let hosts = mlua::Error::RuntimeError(
            "udp.ttl: expected a number\nstack traceback:\n\t[C]: in function 'error'\n\ttaut:9: in function \
            <taut:4>\n\ta.lua:12: in main chunk\n"
                .into(),
        );
        assert_eq!(
            explain(&hosts, "a.lua", "a.lua", ""),
            "a.lua:12: udp.ttl: expected a number (in main chunk)"
        );
        let memory = mlua::Error::MemoryError("not enough memory".into());
        let said = explain(&memory, "a.lua", "a.lua", "no memory is left");
        assert_eq!(said, "a.lua: no memory is left");
    }
}
