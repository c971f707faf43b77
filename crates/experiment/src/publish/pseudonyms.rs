//! Replaces names of machines and people, and addresses, in texts. A name or address has the same pseudonym everywhere,
//! so that commands remain consistent. Addresses of one network stay in one network. The first 24 bits of an IPv4
//! address become those of a documentation or benchmark network. The first 64 bits of an IPv6 address become those of a
//! network under 2001:db8::/32. (RFC 5737, RFC 2544 appendix C, RFC 3849, RFC 7042 section 2.1.1.)

use regex_lite::{Captures, Regex};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Pseudonyms for the names and addresses in a publication.
#[derive(Debug)]
pub(super) struct Pseudonyms {
    /// Names of machines and people, and their pseudonyms.
    names: BTreeMap<String, String>,
    any_name: Option<Regex>,
    home: Regex,
    ipv4: Regex,
    colons: Regex,
    networks: BTreeMap<[u8; 3], [u8; 3]>,
    prefixes: BTreeMap<[u16; 4], [u16; 4]>,
    hosts: BTreeMap<[u16; 4], u16>,
    macs: BTreeMap<String, String>,
    /// Names that the experiment also uses as words; they are not replaced.
    pub(super) kept: Vec<String>,
}

impl Pseudonyms {
    /// Makes pseudonyms for `names`; names that are in `words` are not replaced.
    pub(super) fn new(
        machines: &BTreeSet<String>,
        people: &BTreeSet<String>,
        words: &BTreeSet<String>,
    ) -> Result<Self, String> {
        let mut names = BTreeMap::new();
        let mut kept = Vec::new();
        for (kind, all) in [("host", machines), ("user", people)] {
            let plain = ["localhost", "root", "taut", ""];
            for name in all.iter().filter(|name| !plain.contains(&name.as_str())) {
                if words.contains(name) {
                    kept.push(name.clone());
                } else if !names.contains_key(name) {
                    let number = names
                        .values()
                        .filter(|p: &&String| p.starts_with(kind))
                        .count()
                        + 1;
                    names.insert(name.clone(), format!("{kind}-{number}"));
                }
            }
        }
        let regex = |pattern: &str| Regex::new(pattern).map_err(|e| e.to_string());
        let mut longest_first: Vec<&String> = names.keys().collect();
        longest_first.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let alternatives: Vec<String> = longest_first
            .iter()
            .map(|name| regex_lite::escape(name))
            .collect();
        Ok(Self {
            any_name: if names.is_empty() {
                None
            } else {
                Some(regex(&format!(r"\b(?:{})\b", alternatives.join("|")))?)
            },
            home: regex(r"/home/([A-Za-z0-9_][A-Za-z0-9._-]*)")?,
            ipv4: regex(r"[0-9A-Za-z.]*\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b")?,
            colons: regex(r"[0-9A-Za-z:]*:[0-9A-Fa-f]*:[0-9A-Za-z:]*")?,
            names,
            networks: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            hosts: BTreeMap::new(),
            macs: BTreeMap::new(),
            kept,
        })
    }

    /// Returns the text with all names and addresses replaced by pseudonyms.
    pub(super) fn text(&mut self, text: &str) -> String {
        let colons = self.colons.clone();
        let text = colons.replace_all(text, |found: &Captures<'_>| self.with_colons(&found[0]));
        let ipv4 = self.ipv4.clone();
        let text = ipv4.replace_all(&text, |found: &Captures<'_>| self.with_dots(&found[0]));
        let home = self.home.clone();
        let text = home.replace_all(&text, |found: &Captures<'_>| {
            format!("/home/{}", self.person(&found[1]))
        });
        match &self.any_name {
            Some(any) => any
                .replace_all(&text, |found: &Captures<'_>| self.names[&found[0]].clone())
                .into_owned(),
            None => text.into_owned(),
        }
    }

    fn person(&mut self, name: &str) -> String {
        if name.starts_with("user-") {
            return name.to_owned();
        }
        let number = self
            .names
            .values()
            .filter(|p| p.starts_with("user-"))
            .count()
            + 1;
        self.names
            .entry(name.to_owned())
            .or_insert_with(|| format!("user-{number}"))
            .clone()
    }

    /// Returns the pseudonym of `word` if it is a MAC or IPv6 address; any other word with colons is returned
    /// unchanged.
    fn with_colons(&mut self, word: &str) -> String {
        let inner = if word.contains("::") {
            word
        } else {
            word.trim_matches(':')
        };
        let replaced = if is_mac(inner) {
            self.mac(&inner.to_ascii_lowercase())
        } else if let Ok(address) = inner.parse::<Ipv6Addr>() {
            self.ipv6(address)
        } else {
            return word.to_owned();
        };
        word.replacen(inner, &replaced, 1)
    }

    fn mac(&mut self, mac: &str) -> String {
        if mac == "ff:ff:ff:ff:ff:ff"
            || mac == "00:00:00:00:00:00"
            || mac.starts_with("00:00:5e:00:53:")
        {
            return mac.to_owned();
        }
        let number = self.macs.len() + 1;
        self.macs
            .entry(mac.to_owned())
            .or_insert_with(|| match u8::try_from(number) {
                Ok(number) => format!("00:00:5e:00:53:{number:02x}"),
                // The documentation range is exhausted: locally administered addresses follow.
                Err(_) => format!(
                    "02:00:00:00:{:02x}:{:02x}",
                    (number >> 8) & 0xff,
                    number & 0xff
                ),
            })
            .clone()
    }

    fn ipv6(&mut self, address: Ipv6Addr) -> String {
        let s = address.segments();
        if address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || s[..2] == [0x2001, 0xdb8]
        {
            return address.to_string();
        }
        let host = if s[4..] == [0; 4] {
            0
        } else {
            let number = u16::try_from(self.hosts.len() + 1).unwrap_or(u16::MAX);
            *self.hosts.entry([s[4], s[5], s[6], s[7]]).or_insert(number)
        };
        let network = u16::try_from(self.prefixes.len() + 1).unwrap_or(u16::MAX);
        let p = if s[0] == 0xfe80 {
            [0xfe80, 0, 0, 0]
        } else {
            *self
                .prefixes
                .entry([s[0], s[1], s[2], s[3]])
                .or_insert([0x2001, 0xdb8, 0, network])
        };
        Ipv6Addr::new(p[0], p[1], p[2], p[3], 0, 0, 0, host).to_string()
    }

    /// Returns the pseudonym of `word` if it is an IPv4 address that may identify a machine; any other word with dots,
    /// such as a version or 127.0.0.1, is returned unchanged.
    fn with_dots(&mut self, word: &str) -> String {
        let Ok(address) = word.parse::<Ipv4Addr>() else {
            return word.to_owned();
        };
        let [a, b, c, d] = address.octets();
        let told = address.is_loopback()
            || address.is_unspecified()
            || address.is_broadcast()
            || address.is_multicast()
            || address.is_documentation()
            || a == 255
            || (a == 198 && (b == 18 || b == 19));
        if told {
            return word.to_owned();
        }
        let number = self.networks.len();
        let [a, b, c] = *self.networks.entry([a, b, c]).or_insert(match number {
            0 => [192, 0, 2],
            1 => [198, 51, 100],
            2 => [203, 0, 113],
            more => [198, 18 + u8::from(more >= 259), ((more - 3) % 256) as u8],
        });
        Ipv4Addr::new(a, b, c, d).to_string()
    }

    /// Returns descriptions of the replacements, one for each kind of name or address.
    pub(super) fn replaced(&self) -> Vec<String> {
        let named = |kind: &str| self.names.values().filter(|p| p.starts_with(kind)).count();
        [
            (named("host"), "host names by host-1 and so on"),
            (named("user"), "user names by user-1 and so on"),
            (
                self.networks.len(),
                "IPv4 networks by 192.0.2.0/24 and others for documentation",
            ),
            (
                self.prefixes.len() + self.hosts.len(),
                "IPv6 networks and hosts by those of 2001:db8::/32",
            ),
            (
                self.macs.len(),
                "MAC addresses by 00:00:5e:00:53:01 and so on",
            ),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{what} ({count})"))
        .collect()
    }
}

fn is_mac(word: &str) -> bool {
    word.len() == 17
        && word.split(':').count() == 6
        && word
            .split(':')
            .all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn equal_names_and_addresses_get_equal_pseudonyms() {
        let mut p = Pseudonyms::new(
            &names(&["lab7", "lab7-b", "dut"]),
            &names(&["ada", "root"]),
            &names(&["dut"]),
        )
        .unwrap();
        for (text, expected) in [
            (
                "ssh ada@lab7-b from lab7, labs",
                "ssh user-1@host-2 from host-1, labs",
            ),
            (
                "/home/grace/x /home/ada/y root",
                "/home/user-2/x /home/user-1/y root",
            ),
            (
                "ip addr add 10.7.0.1/24; via 10.7.0.254 10.8.0.1:53.",
                "ip addr add 192.0.2.1/24; via 192.0.2.254 198.51.100.1:53.",
            ),
            (
                "127.0.0.1 255.255.255.0 1.2.3.4.5 v1.2.3.4 999.1.1.1 198.18.0.1",
                "127.0.0.1 255.255.255.0 1.2.3.4.5 v1.2.3.4 999.1.1.1 198.18.0.1",
            ),
            (
                "lladdr 3C:52:82:aa:bb:cc, ff:ff:ff:ff:ff:ff 3c:52:82:aa:bb:cc:",
                "lladdr 00:00:5e:00:53:01, ff:ff:ff:ff:ff:ff 00:00:5e:00:53:01:",
            ),
            (
                "fd00:1::7/64 fd00:1::/64 ::1 12:34:56 std::fs fe80::3e52:82ff:feaa:bbcc",
                "2001:db8:0:1::1/64 2001:db8:0:1::/64 ::1 12:34:56 std::fs fe80::2",
            ),
            ("the dut", "the dut"),
        ] {
            assert_eq!(p.text(text), expected);
        }
        assert_eq!(p.kept, ["dut"]);
        assert_eq!(p.replaced().len(), 5);
    }

    #[test]
    fn pseudonyms_are_not_replaced_again() {
        let mut p = Pseudonyms::new(&names(&["lab7"]), &names(&["ada"]), &names(&[])).unwrap();
        let once = p.text("ada@lab7 10.1.2.3 3c:52:82:aa:bb:cc fd00::1 /home/ada");
        assert_eq!(p.text(&once), once);
    }
}
