//! Routes as text, a line each, as `ip route` prints them: `PREFIX via ADDRESS dev INTERFACE`.

use super::interface::Interface;
use super::neighbours::At;
use super::prefix::{Network, Prefix};
use std::net::IpAddr;
use taut_sys::MAIN_TABLE;

/// The target of a route: neighbours, connected hosts, the router itself, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Packets go to neighbours: a single neighbour, or several at the same distance.
    Neighbours(Vec<Way>),
    /// Packets go directly to hosts on the link of the interface with this number.
    Connected(u8),
    /// Packets are for the router itself.
    Local,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are dropped, and senders get "unreachable".
    Unreachable,
    /// Packets are dropped, and senders get "prohibited".
    Prohibited,
}

#[cfg(test)]
impl Target {
    /// Returns the target of a route that leads to one neighbour.
    pub fn via(at: At) -> Self {
        Self::Neighbours(vec![Way { at, weight: 1 }])
    }
}

/// A next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Way {
    pub at: At,
    /// The weight of the next hop relative to the other next hops of the route.
    pub weight: u16,
}

/// The largest weight of a next hop, as in `ip route`.
const MOST_WEIGHT: u16 = 256;

/// A route as a line of text requests it: the network and the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub network: Network,
    pub target: Target,
}

/// The words of `ip route` that are followed by a value and do not affect forwarding.
const SKIPPED: [&str; 14] = [
    "proto", "scope", "src", "metric", "pref", "table", "error", "mtu", "advmss", "hoplimit",
    "expires", "realm", "realms", "nhid",
];
/// The words of `ip route` without a value that do not affect forwarding.
const FLAGS: [&str; 6] = ["onlink", "linkdown", "dead", "offload", "trap", "pervasive"];

/// Parses routes; empty lines and comments after `#` are skipped. The error has the number of the wrong line, from 1,
/// and a description.
pub(super) fn parse(
    text: &str,
    interfaces: &[Interface],
    tables: &[u32],
) -> Result<Vec<Asked>, (usize, String)> {
    let mut routes: Vec<(usize, Asked)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let said = line.split('#').next().unwrap_or_default();
        let is_continued = said.starts_with(char::is_whitespace);
        let mut words = said.split_whitespace().peekable();
        match words.peek() {
            None => continue,
            // `ip route` writes each of several next hops on a separate line.
            Some(&"nexthop") if is_continued => {
                let Some((_, route)) = routes.last_mut() else {
                    return Err((number, "next hop without a route before it".to_string()));
                };
                let neighbours = neighbours(words, interfaces, route.network);
                let more = neighbours.map_err(|reason| (number, reason))?;
                match &mut route.target {
                    Target::Neighbours(all) => all.extend(more),
                    _ => {
                        return Err((number, format!("{} has no next hops", route.network.prefix)));
                    }
                }
            }
            Some(_) => {
                let route = route(words, interfaces, tables).map_err(|reason| (number, reason))?;
                routes.push((number, route));
            }
        }
    }
    for (number, route) in &routes {
        if matches!(&route.target, Target::Neighbours(all) if all.is_empty()) {
            return Err((
                *number,
                format!(
                    "{}: expected `via ADDRESS` or `dev INTERFACE`",
                    route.network.prefix
                ),
            ));
        }
    }
    Ok(routes.into_iter().map(|(_, route)| route).collect())
}

/// Parses an address and a prefix length. Without a length, the prefix contains only the address.
pub(super) fn address_and_length(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => most,
        Some(length) => length.parse().ok().filter(|length| *length <= most)?,
    };
    Some((address, length))
}

fn route<'a>(
    words: impl Iterator<Item = &'a str> + Clone,
    interfaces: &[Interface],
    tables: &[u32],
) -> Result<Asked, String> {
    let mut words = words.peekable();
    let kind = match words.peek().copied() {
        Some("blackhole") => Some(Target::Blackhole),
        Some("unreachable") => Some(Target::Unreachable),
        Some("prohibit") => Some(Target::Prohibited),
        _ => None,
    };
    if kind.is_some() || words.peek() == Some(&"unicast") {
        words.next();
    }
    let text = words.next().unwrap_or_default();
    let prefix = prefix(text, words.clone())?;
    let table = table(words.clone(), tables)?;
    let network = Network { table, prefix };
    if let Some(target) = kind {
        return Ok(Asked { network, target });
    }
    let said: Vec<&str> = words.collect();
    let has_next_hop = said.iter().any(|word| *word == "via" || *word == "nexthop");
    let target = if has_next_hop || !said.contains(&"dev") {
        Target::Neighbours(neighbours(said.into_iter(), interfaces, network)?)
    } else {
        Target::Connected(device(said.into_iter(), interfaces)?)
    };
    Ok(Asked { network, target })
}

/// Returns the index of the table whose number follows the word `table` in `words`; without that word, the index of the
/// main table.
fn table<'a>(mut words: impl Iterator<Item = &'a str>, tables: &[u32]) -> Result<u8, String> {
    if !words.any(|word| word == "table") {
        return Ok(0);
    }
    let text = words.next().unwrap_or_default();
    let id = match text {
        "main" => Some(MAIN_TABLE),
        text => text.parse().ok(),
    };
    let at = id.and_then(|id| tables.iter().position(|table| *table == id));
    at.map(|at| at as u8).ok_or_else(|| {
        let names: Vec<_> = tables.iter().map(ToString::to_string).collect();
        format!(
            "table: unknown table '{text}'; the tables are {}",
            names.join(", ")
        )
    })
}

/// Parses the network of a route's line: a prefix, and a table if it is not the main one.
pub(super) fn network(text: &str, tables: &[u32]) -> Result<Network, String> {
    let mut words = text.split_whitespace();
    let prefix = prefix(words.next().unwrap_or_default(), std::iter::empty())?;
    let table = table(words, tables)?;
    Ok(Network { table, prefix })
}

/// Parses a prefix. The word `default` is the IPv6 default route if one of `words`, the remainder of the line, is an
/// IPv6 address, otherwise the IPv4 one.
pub(super) fn prefix<'a>(
    text: &str,
    mut words: impl Iterator<Item = &'a str>,
) -> Result<Prefix, String> {
    if text == "default" {
        let is_v6 = words.any(|word| word.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6()));
        let zero = if is_v6 {
            IpAddr::from([0_u16; 8])
        } else {
            IpAddr::from([0_u8; 4])
        };
        return Ok(Prefix::of(zero, 0));
    }
    let wrong = || {
        // The shell splits a route without quotes into its words.
        let hint = match text {
            "" | "via" | "dev" | "nexthop" | "table" => {
                "; on a command line, quote each route: 'PREFIX via ADDRESS'"
            }
            _ => "",
        };
        format!("expected a prefix such as 192.0.2.0/24, not '{text}'{hint}")
    };
    let (address, length) = address_and_length(text).ok_or_else(wrong)?;
    let prefix = Prefix::of(address, length);
    let first = match prefix {
        Prefix::V4(prefix) => IpAddr::V4(prefix.network().into()),
        Prefix::V6(prefix) => IpAddr::V6(prefix.network().into()),
    };
    if first != address {
        return Err(format!(
            "bits beyond the prefix length must be 0: write {prefix}, not {text}"
        ));
    }
    Ok(prefix)
}

/// Parses the neighbours of a route from the words of its line. A neighbour without `dev INTERFACE` is on the interface
/// whose network contains its address.
fn neighbours<'a>(
    words: impl Iterator<Item = &'a str>,
    interfaces: &[Interface],
    Network { table, prefix }: Network,
) -> Result<Vec<Way>, String> {
    let mut found: Vec<(Option<u8>, IpAddr, u16)> = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        match word {
            "nexthop" => {}
            "via" => found.push((None, via(&mut words, prefix)?, 1)),
            "dev" => {
                let name = words.next().unwrap_or_default();
                let port = port(name, interfaces)?;
                match found.last_mut() {
                    Some(last) => last.0 = Some(port),
                    None => return Err("expected `via ADDRESS` before `dev`".to_string()),
                }
            }
            "weight" => {
                let text = words.next().unwrap_or_default();
                let weight = text.parse().ok();
                let weight = weight.filter(|weight| (1..=MOST_WEIGHT).contains(weight));
                let weight = weight
                    .ok_or_else(|| format!("weight: expected 1 to {MOST_WEIGHT}, not '{text}'"))?;
                match found.last_mut() {
                    Some(last) => last.2 = weight,
                    None => return Err("expected `via ADDRESS` before `weight`".to_string()),
                }
            }
            word if SKIPPED.contains(&word) => {
                words.next();
            }
            word if FLAGS.contains(&word) => {}
            word => {
                return Err(format!(
                    "'{word}' is not understood; a route is `PREFIX via ADDRESS [dev INTERFACE]`"
                ));
            }
        }
    }
    found
        .into_iter()
        .map(|found| way(found, interfaces, table))
        .collect()
}

/// Parses the address that follows `via`; the name of its address family may precede it.
fn via<'a>(words: &mut impl Iterator<Item = &'a str>, prefix: Prefix) -> Result<IpAddr, String> {
    let mut text = words.next().unwrap_or_default();
    if matches!(text, "inet" | "inet6") {
        text = words.next().unwrap_or_default();
    }
    let address = text.parse::<IpAddr>();
    let address = address.map_err(|_| format!("via: expected an address, not '{text}'"))?;
    if address.is_ipv4() != matches!(prefix, Prefix::V4(_)) {
        return Err(format!("via: {address} is of another family than {prefix}"));
    }
    Ok(address)
}

/// Makes a next hop of an interface, an address and a weight. Without an interface, the next hop is on the interface
/// whose network contains the address.
fn way(
    (port, address, weight): (Option<u8>, IpAddr, u16),
    interfaces: &[Interface],
    table: u8,
) -> Result<Way, String> {
    let near = |it: &Interface| it.table == table && it.addresses.are_near(address);
    let port = port.or_else(|| interfaces.iter().position(near).map(|at| at as u8));
    let own = |it: &Interface| it.table == table && it.addresses.contains(address);
    match port {
        _ if interfaces.iter().any(own) => Err(format!("via: {address} is the router's own")),
        Some(port) => Ok(Way {
            at: (port, address),
            weight,
        }),
        None => Err(format!(
            "via: {address} is in no network of an interface; name one with `dev INTERFACE`"
        )),
    }
}

fn device<'a>(
    mut words: impl Iterator<Item = &'a str>,
    interfaces: &[Interface],
) -> Result<u8, String> {
    let mut found = None;
    while let Some(word) = words.next() {
        match word {
            "dev" => found = Some(port(words.next().unwrap_or_default(), interfaces)?),
            word if SKIPPED.contains(&word) => {
                words.next();
            }
            word if FLAGS.contains(&word) => {}
            word => {
                return Err(format!(
                    "'{word}' is not understood; a route is `PREFIX dev INTERFACE`"
                ));
            }
        }
    }
    found.ok_or_else(|| "expected `dev INTERFACE`".to_string())
}

/// Returns a route as a line that [`parse`] reads. A route to the router itself begins with `local`.
pub(super) fn text_of(
    Network { table, prefix }: Network,
    target: &Target,
    interfaces: &[Interface],
    tables: &[u32],
) -> String {
    let text = text_in_main(prefix, target, interfaces);
    match tables.get(usize::from(table)) {
        Some(id) if table > 0 => format!("{text} table {id}"),
        _ => text,
    }
}

fn text_in_main(prefix: Prefix, target: &Target, interfaces: &[Interface]) -> String {
    let name = |port: u8| {
        interfaces
            .get(usize::from(port))
            .map_or("-", |it| it.name.as_str())
    };
    match target {
        Target::Neighbours(all) => {
            let word = if all.len() > 1 { "nexthop via" } else { "via" };
            let are_alike = all.iter().all(|way| way.weight == all[0].weight);
            let hops = all.iter().map(|way| {
                let (port, address) = way.at;
                let weight = match are_alike {
                    true => String::new(),
                    false => format!(" weight {}", way.weight),
                };
                format!(" {word} {address} dev {}{weight}", name(port))
            });
            format!("{prefix}{}", hops.collect::<String>())
        }
        Target::Connected(port) => format!("{prefix} dev {}", name(*port)),
        Target::Local => format!("local {prefix}"),
        Target::Blackhole => format!("blackhole {prefix}"),
        Target::Unreachable => format!("unreachable {prefix}"),
        Target::Prohibited => format!("prohibit {prefix}"),
    }
}

fn port(name: &str, interfaces: &[Interface]) -> Result<u8, String> {
    let at = interfaces.iter().position(|it| it.name == name);
    at.map(|at| at as u8).ok_or_else(|| {
        let names: Vec<_> = interfaces.iter().map(|it| it.name.as_str()).collect();
        format!(
            "dev: unknown interface '{name}'; the interfaces are {}",
            names.join(", ")
        )
    })
}
