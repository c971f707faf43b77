//! One function of a chain with its settings, from a chain file or a command line; construction of the functions; and
//! the reason why a chain cannot be used.

use super::Replication;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_function::Catalog;
use taut_host::affinity::AffinityError;
use taut_port::PortError;
use taut_settings::{SettingsFileError, suggestion};

/// The place where packets are forwarded: user space or kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A worker of this program forwards the packets.
    #[default]
    User,
    /// XDP programs in the kernel forward the packets. Such a chain has neither a flush policy nor a worker.
    Kernel,
}

/// One function of a chain, by name, with its settings. A deserialized stage has an empty catalog, so [`Chain::parse`]
/// and [`Order::parse`] set it.
///
/// [`Chain::parse`]: crate::Chain::parse
/// [`Order::parse`]: crate::Order::parse
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// The function's name.
    pub name: String,
    /// Place (kernel or user space) where the function runs in a chain of several segments; None leaves the choice to
    /// the function's class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Name of the chain that the function belongs to, if a classifier selects the chain of each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Replicas of the function, between which packets are spread; None for one instance in the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replication>,
    /// Settings of the function.
    #[serde(flatten)]
    pub settings: toml::Table,
    /// Catalog in which the name of the function is looked up.
    #[serde(skip)]
    pub catalog: Catalog,
}

impl Stage {
    /// Parses `NAME` or `NAME(KEY=VALUE, ...)`, such as `walk(steps=10, bytes=32 kB)`: the form of a function on the
    /// command line. A value is a number, `true`, `false`, a list of values such as `[1]`, or else text; quotes around
    /// text are removed.
    ///
    /// # Errors
    /// Fails if the text has another form.
    pub fn parse(text: &str, catalog: Catalog) -> Result<Self, ChainError> {
        let wrong = |reason: String| ChainError::Function {
            function: text.to_string(),
            reason,
        };
        let form =
            || wrong("expected NAME or NAME(KEY=VALUE, ...), such as burn(cycles=100)".to_string());
        let (name, inside) = match text.trim().split_once('(') {
            None => (text.trim(), ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(form)?),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(form());
        }
        let mut settings = toml::Table::new();
        for part in parts(inside) {
            let (key, value) = part.split_once('=').ok_or_else(form)?;
            let key = key.trim();
            let value = value_of(value).map_err(|reason| wrong(format!("{key}: {reason}")))?;
            if settings.insert(key.to_string(), value).is_some() {
                return Err(wrong(format!("\"{key}\" is given twice")));
            }
        }
        let replicas = settings.remove("replicas").map(toml::Value::try_into);
        let replicas = replicas
            .transpose()
            .map_err(|e| wrong(format!("replicas: {}", e.message())))?;
        Ok(Self {
            name: name.to_string(),
            place: None,
            chain: None,
            replicas,
            settings,
            catalog,
        })
    }

    /// Returns the settings key that names ports, and its value; None if the settings have no such key.
    fn ports(&self) -> Option<(&'static str, &toml::Value)> {
        let key = self.catalog.entry(&self.name).ok()?.ports?;
        Some((key, self.settings.get(key)?))
    }

    /// Checks that the chain has all ports that the function's settings name.
    pub(super) fn check_ports(&self, ports: usize) -> Result<(), String> {
        let is_beyond = |it: &toml::Value| it.as_integer().is_some_and(|it| it >= ports as i64);
        match self.ports() {
            Some((key, given)) if all_of(given).iter().any(is_beyond) => {
                let there = match ports {
                    0 | 1 => "port 0 only".to_string(),
                    2 => "ports 0 and 1".to_string(),
                    _ => format!("ports 0 to {}", ports - 1),
                };
                Err(format!("{key} = {given}: this chain has {there}"))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the names of ports by their numbers.
    pub(super) fn number_ports(&mut self, names: &[String]) -> Result<(), String> {
        let Some((key, given)) = self.ports() else {
            return Ok(());
        };
        let numbered = numbered_ports(key, given, names)?;
        self.settings.insert(key.to_string(), numbered);
        Ok(())
    }
}

/// Returns the value of the key `key`, a port or a list of ports, with numbers instead of the names of ports.
pub(super) fn numbered_ports(
    key: &str,
    given: &toml::Value,
    names: &[String],
) -> Result<toml::Value, String> {
    let number = |it: &toml::Value| match it.as_str() {
        None => Ok(it.clone()),
        Some(_) if names.is_empty() => Err(format!(
            "{key} = {given}: the ports of this chain have no names: ports = {{ NAME = \"...\", ... }}"
        )),
        Some(name) => match names.iter().position(|known| known == name) {
            Some(at) => Ok(toml::Value::from(at as i64)),
            None => Err(format!(
                "{key} = {given}: no port is named \"{name}\"; the ports are {}{}",
                names.join(", "),
                suggestion(name, names.iter().map(String::as_str))
            )),
        },
    };
    Ok(match given {
        toml::Value::Array(list) => {
            toml::Value::Array(list.iter().map(number).collect::<Result<_, _>>()?)
        }
        one => number(one)?,
    })
}

/// Returns the elements of a list value, or a single value as a list of one element.
fn all_of(value: &toml::Value) -> &[toml::Value] {
    match value {
        toml::Value::Array(list) => list,
        one => std::slice::from_ref(one),
    }
}

/// Splits a text at the commas that are not within brackets; an empty text has no parts.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let each = text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    });
    each.map(str::trim).filter(|part| !part.is_empty())
}

fn value_of(text: &str) -> Result<toml::Value, String> {
    let text = text.trim();
    if text.contains('{') {
        return Err("tables are not supported here: use a chain file".to_string());
    }
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']');
        let list = list.ok_or_else(|| "expected a list to its end: [1]".to_string())?;
        return Ok(toml::Value::Array(
            parts(list).map(value_of).collect::<Result<_, _>>()?,
        ));
    }
    if let Ok(number) = text.parse::<i64>() {
        return Ok(number.into());
    }
    Ok(match text {
        "true" => true.into(),
        "false" => false.into(),
        _ => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => number.into(),
            _ => text.trim_matches('"').into(),
        },
    })
}

/// The reason why a chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The file cannot be read, or its content is invalid.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// A function cannot be made.
    #[error("function \"{function}\": {reason}")]
    Function {
        /// Name of the function, or the text given as its name.
        function: String,
        /// Reason: what is wrong, and what would be right.
        reason: String,
    },
    /// A port spec is wrong.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A worker cannot be pinned to its core.
    #[error(transparent)]
    Core(#[from] AffinityError),
}

impl From<taut_sys::Error> for ChainError {
    fn from(e: taut_sys::Error) -> Self {
        Self::Port(e.into())
    }
}
