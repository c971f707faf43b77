//! Variables for addresses and ports in rules (`$HOME_NET`, `$HTTP_PORTS`), and lists of them.

use crate::ranges::Ranges;
use crate::syntax::parts;
use std::collections::BTreeMap;

/// The values of variables, as text in the language of rules. No variable has a value by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    addresses: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
}

/// Maximum nesting of lists and of variables that refer to variables.
const DEEPEST: usize = 16;

impl Variables {
    /// Reads variables with their values: ports if a name ends in `_PORTS` or `_PORT`, otherwise addresses. Variables
    /// may refer to each other in any order; of two variables with the same name, the last one counts.
    ///
    /// # Errors
    /// Returns the wrong variable, and the error in it or in a variable that it refers to.
    pub fn new<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let mut variables = Self::default();
        for (name, text) in all {
            let name = name.trim().trim_start_matches('$');
            if name.is_empty() || name.contains(|c| !is_of_name(c)) {
                return Err(format!("{name:?}: expected a name such as HOME_NET"));
            }
            let kind = if name.ends_with("_PORTS") || name.ends_with("_PORT") {
                &mut variables.ports
            } else {
                &mut variables.addresses
            };
            kind.insert(name.to_string(), text.to_string());
        }
        let of = |name: &String, reason: String| format!("{name}: {reason}");
        for (name, text) in &variables.addresses {
            variables.addresses(text).map_err(|it| of(name, it))?;
        }
        for (name, text) in &variables.ports {
            variables.ports(text).map_err(|it| of(name, it))?;
        }
        Ok(variables)
    }

    /// Reads addresses: `any`, an address, a network, a variable, a list in brackets; a `!` before any of them means
    /// all other addresses.
    ///
    /// # Errors
    /// Returns a description of the error in the text.
    pub fn addresses(&self, text: &str) -> Result<Ranges, String> {
        let one = |text: &str| {
            Ranges::addresses(text).ok_or_else(|| {
                format!(
                    "{text:?}: expected an address, a network, a list or a name such as $HOME_NET"
                )
            })
        };
        read(text, &self.addresses, &one, DEEPEST)
    }

    /// Reads ports, in the same form as [`Self::addresses`] reads addresses.
    ///
    /// # Errors
    /// Returns a description of the error in the text.
    pub fn ports(&self, text: &str) -> Result<Ranges, String> {
        let one = |text: &str| {
            Ranges::ports(text)
                .ok_or_else(|| format!("{text:?}: expected a port, a range such as 1024:, a list or a name such as $HTTP_PORTS"))
        };
        read(text, &self.ports, &one, DEEPEST)
    }
}

/// Returns true for characters of variable names.
fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn read(
    text: &str,
    names: &BTreeMap<String, String>,
    one: &dyn Fn(&str) -> Result<Ranges, String>,
    deep: usize,
) -> Result<Ranges, String> {
    let text = text.trim();
    let Some(deeper) = deep.checked_sub(1) else {
        return Err(format!(
            "{text}: a variable that refers to itself, or too deeply nested lists"
        ));
    };
    if let Some(other) = text.strip_prefix('!') {
        return Ok(read(other, names, one, deeper)?.not());
    }
    if text.eq_ignore_ascii_case("any") {
        return Ok(Ranges::all());
    }
    if let Some(name) = text.strip_prefix('$') {
        let meaning = names.get(name).ok_or_else(|| {
            format!("${name} is not defined: set it in `variables` or with --variable")
        })?;
        return read(meaning, names, one, deeper);
    }
    let Some(list) = text.strip_prefix('[') else {
        return one(text);
    };
    let list = list
        .strip_suffix(']')
        .ok_or_else(|| format!("{text}: expected ] at the end of the list"))?;
    // The set contains the numbers that are in an item of the list, and in no item after a `!`. If each item has a `!`,
    // the set contains all other numbers.
    let (mut within, mut but) = (None::<Ranges>, Ranges::default());
    for part in parts(list) {
        match part.strip_prefix('!') {
            Some(part) => but = but.or(&read(part, names, one, deeper)?),
            None => {
                let part = read(part, names, one, deeper)?;
                within = Some(within.map_or(part.clone(), |all| all.or(&part)));
            }
        }
    }
    Ok(within.unwrap_or_else(Ranges::all).and(&but.not()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nested_variables_and_negated_lists_are_resolved() {
        let variables = Variables::new([
            ("EXTERNAL_NET", "!$HOME_NET"),
            ("DNS_SERVERS", "$HOME_NET"),
            ("HOME_NET", "[10.0.0.0/8,192.168.0.0/16]"),
            ("HTTP_PORTS", "[80,8080]"),
        ])
        .unwrap();
        assert!(variables.ports("$HTTP_PORTS").unwrap().has(8080));
        let home = variables.addresses("$HOME_NET").unwrap();
        assert_eq!(variables.addresses("!$EXTERNAL_NET").unwrap(), home);
        let but = variables.addresses("[$HOME_NET,!10.1.0.0/16]").unwrap();
        let lan = Ranges::addresses("10.1.2.3").unwrap();
        assert!(!home.and(&lan).is_empty() && but.and(&lan).is_empty());
        assert!(variables.addresses("$DNS_SERVERS").unwrap() == home);
        let ports = variables.ports("[80,!80]").unwrap();
        assert!(ports.is_empty());
        assert!(variables.ports("![1:1024]").unwrap().has(0));
    }

    #[test]
    fn unknown_and_invalid_variables_are_reported_by_name() {
        let none = Variables::default();
        for text in [
            "$HOME_NET",
            "[10.0.0.0/8,!$EXTERNAL_NET]",
            "!$DNS_SERVERS",
            "$",
        ] {
            let said = none.addresses(text).unwrap_err();
            assert!(said.contains("is not defined"), "{said}");
        }
        for text in ["$HTTP_PORTS", "[22,$SSH_PORTS]"] {
            let said = none.ports(text).unwrap_err();
            assert!(said.contains("is not defined"), "{said}");
        }
        let said = none.addresses("[10.0.0.0/8").unwrap_err();
        assert!(said.contains("expected ]"), "{said}");
        for text in ["[80,http]", "65536", "[80,]", "[]", "!", "", "+80", "9:8"] {
            let said = none.ports(text).unwrap_err();
            assert!(said.contains("expected a port"), "{said}");
        }
        let wrong = |name, text| Variables::new([("HOME_NET", "any"), (name, text)]).unwrap_err();
        assert!(
            wrong("HOME_NET", "$HOME_NET")
                .contains("HOME_NET: $HOME_NET: a variable that refers to itself")
        );
        assert!(
            wrong("SIP_PORTS", "$HTTP_PORTS").contains("SIP_PORTS: $HTTP_PORTS is not defined")
        );
        assert!(wrong("DNS_SERVERS", "10.0.0.300").contains("DNS_SERVERS: \"10.0.0.300\""));
        assert!(wrong("A B", "any").contains("expected a name"));
    }
}
