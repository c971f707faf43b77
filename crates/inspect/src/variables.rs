//! Names for addresses and ports that rules use (`$HOME_NET`, `$HTTP_PORTS`), and lists of them.

use crate::ranges::Ranges;
use crate::syntax::parts;
use std::collections::BTreeMap;

/// Names and what they stand for, as text in the language of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variables {
    addresses: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
}

/// Lists within lists, and names that stand for names.
const DEEPEST: usize = 16;

/// Addresses that rule files take for known; all of them any address, until somebody says otherwise.
const ADDRESSES: &[(&str, &str)] = &[
    ("HOME_NET", "any"),
    ("EXTERNAL_NET", "any"),
    ("HTTP_SERVERS", "$HOME_NET"),
    ("SMTP_SERVERS", "$HOME_NET"),
    ("SQL_SERVERS", "$HOME_NET"),
    ("DNS_SERVERS", "$HOME_NET"),
    ("TELNET_SERVERS", "$HOME_NET"),
    ("SSH_SERVERS", "$HOME_NET"),
    ("FTP_SERVERS", "$HOME_NET"),
    ("SIP_SERVERS", "$HOME_NET"),
    ("ORACLE_SERVERS", "$HOME_NET"),
    ("AIM_SERVERS", "$EXTERNAL_NET"),
    ("DC_SERVERS", "$HOME_NET"),
    ("DNP3_SERVER", "$HOME_NET"),
    ("DNP3_CLIENT", "$HOME_NET"),
    ("MODBUS_SERVER", "$HOME_NET"),
    ("MODBUS_CLIENT", "$HOME_NET"),
    ("ENIP_SERVER", "$HOME_NET"),
    ("ENIP_CLIENT", "$HOME_NET"),
];

/// Ports that rule files take for known.
const PORTS: &[(&str, &str)] = &[
    (
        "HTTP_PORTS",
        "[80,81,311,591,593,2301,2381,2809,3128,3702,5000,7001,7777,7779,8000,8008,8028,8080,8088,8118,8123,8180,8181,8243,8280,8888,9090,9091,9443,9999,11371]",
    ),
    ("SHELLCODE_PORTS", "!80"),
    ("ORACLE_PORTS", "1024:"),
    ("SSH_PORTS", "22"),
    ("FTP_PORTS", "[21,2100,3535]"),
    ("SIP_PORTS", "[5060,5061,5600]"),
    ("FILE_DATA_PORTS", "[$HTTP_PORTS,110,143]"),
    ("MAIL_PORTS", "[110,143]"),
    ("GTP_PORTS", "[2123,2152,3386]"),
    ("DNP3_PORTS", "20000"),
    ("MODBUS_PORTS", "502"),
    ("GENEVE_PORTS", "6081"),
    ("VXLAN_PORTS", "4789"),
    ("TEREDO_PORTS", "3544"),
];

impl Default for Variables {
    fn default() -> Self {
        let map = |list: &[(&str, &str)]| {
            let each = list.iter().map(|it| (it.0.to_string(), it.1.to_string()));
            each.collect()
        };
        Self {
            addresses: map(ADDRESSES),
            ports: map(PORTS),
        }
    }
}

impl Variables {
    /// Has a name stand for addresses or, if it ends in `_PORTS` or `_PORT`, for ports; what it stood for before is
    /// forgotten.
    ///
    /// # Errors
    /// What is wrong with the text, or with what it refers to.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let name = name.trim_start_matches('$');
        if name.ends_with("_PORTS") || name.ends_with("_PORT") {
            self.ports.insert(name.to_string(), text.to_string());
            self.ports(text).map(drop)
        } else {
            self.addresses.insert(name.to_string(), text.to_string());
            self.addresses(text).map(drop)
        }
    }

    /// Reads addresses: `any`, an address, a network, a name, a list in brackets, each with `!` for all others.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn addresses(&self, text: &str) -> Result<Ranges, String> {
        let one = |text: &str| {
            Ranges::addresses(text).ok_or_else(|| {
                format!("{text:?}: want an address, a network, a list or a name such as $HOME_NET")
            })
        };
        read(text, &self.addresses, &one, DEEPEST)
    }

    /// Reads ports, likewise.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn ports(&self, text: &str) -> Result<Ranges, String> {
        let one = |text: &str| {
            Ranges::ports(text)
                .ok_or_else(|| format!("{text:?}: want a port, a range such as 1024:, a list or a name such as $HTTP_PORTS"))
        };
        read(text, &self.ports, &one, DEEPEST)
    }
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
            "{text}: a name that stands for itself, or lists within too many lists"
        ));
    };
    if let Some(other) = text.strip_prefix('!') {
        return Ok(read(other, names, one, deeper)?.not());
    }
    if text.eq_ignore_ascii_case("any") {
        return Ok(Ranges::all());
    }
    if let Some(name) = text.strip_prefix('$') {
        let meaning = names
            .get(name)
            .ok_or_else(|| format!("${name} stands for nothing: say what it is in `variables`"))?;
        return read(meaning, names, one, deeper);
    }
    let Some(list) = text.strip_prefix('[') else {
        return one(text);
    };
    let list = list
        .strip_suffix(']')
        .ok_or_else(|| format!("{text}: want ] at the end of the list"))?;
    // What is in one of the list, and in none of those behind a `!`. If all are behind a `!`: all others.
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
    fn lists_and_names_are_put_together() {
        let mut variables = Variables::default();
        variables
            .set("HOME_NET", "[10.0.0.0/8,192.168.0.0/16]")
            .unwrap();
        variables.set("EXTERNAL_NET", "!$HOME_NET").unwrap();
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
    fn what_cannot_be_is_said() {
        let mut variables = Variables::default();
        assert!(
            variables
                .addresses("$NOBODY")
                .unwrap_err()
                .contains("stands for nothing")
        );
        assert!(
            variables
                .addresses("[10.0.0.0/8")
                .unwrap_err()
                .contains("want ]")
        );
        assert!(
            variables
                .ports("[80,http]")
                .unwrap_err()
                .contains("want a port")
        );
        assert!(variables.set("HOME_NET", "$EXTERNAL_NET").is_ok());
        assert!(
            variables
                .set("EXTERNAL_NET", "$HOME_NET")
                .unwrap_err()
                .contains("itself")
        );
    }
}
