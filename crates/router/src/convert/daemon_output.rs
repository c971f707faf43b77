//! Routing tables as daemons print them: `birdc show route` of BIRD 2, `vtysh -c 'show ip route'` and `'show ipv6
//! route'` of FRR.

use super::{ConvertError, LONGEST_LINE, Lead, Leads, Lines};
use crate::prefix::Prefix;
use crate::text::address_and_length;
use std::io::{BufRead, Read};
use std::net::IpAddr;

/// The daemon whose output is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Printer {
    Bird,
    Frr,
}

/// BIRD's words for route types. A type without a next hop has the corresponding word of `ip route`; a type with next
/// hops has none.
const BIRD_KINDS: [(&str, Option<&str>); 4] = [
    ("unicast", None),
    ("blackhole", Some("blackhole")),
    ("unreachable", Some("unreachable")),
    ("prohibited", Some("prohibit")),
];

/// A parsed route that later lines of the input may continue.
struct Open {
    prefix: Prefix,
    leads: Option<Leads>,
    /// True if the daemon selected this route as the best one of its network.
    is_best: bool,
}

impl Open {
    fn add(&mut self, hop: Lead) {
        match &mut self.leads {
            Some(Leads::To(all)) => all.push(hop),
            Some(_) => {}
            none => *none = Some(Leads::To(vec![hop])),
        }
    }
}

/// Parses all lines of a daemon's output, and passes their routes to `lines`.
pub(super) fn read(input: &mut dyn BufRead, lines: &mut Lines<'_>) -> Result<(), ConvertError> {
    let mut printer = None;
    let mut open: Option<Open> = None;
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let read = (&mut *input)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes)?;
        if read == 0 {
            break;
        }
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) if (read as u64) < LONGEST_LINE => text.trim_end(),
            _ if printer.is_none() => return Err(ConvertError::Unknown),
            _ => {
                let reason = "it is no text, or too long".to_string();
                return Err(ConvertError::Line { number, reason });
            }
        };
        if text.trim().is_empty() {
            continue;
        }
        let Some(by) = printer.or_else(|| printer_of(text)) else {
            return Err(ConvertError::Unknown);
        };
        printer = Some(by);
        let begun = match by {
            Printer::Bird => bird(text, &mut open),
            Printer::Frr => frr(text, &mut open),
        };
        let begun = begun.map_err(|reason| ConvertError::Line { number, reason })?;
        if let Some(next) = begun {
            close(open.replace(next), lines)?;
        }
    }
    if printer.is_none() {
        return Err(ConvertError::Unknown);
    }
    close(open, lines)
}

fn close(open: Option<Open>, lines: &mut Lines<'_>) -> Result<(), ConvertError> {
    if let Some(Open {
        prefix,
        leads: Some(leads),
        is_best: true,
    }) = open
    {
        lines.write(prefix, &leads)?;
    }
    Ok(())
}

fn printer_of(line: &str) -> Option<Printer> {
    let is_bird = line.starts_with("BIRD ") || line.starts_with("Table ");
    let has_kind = || {
        BIRD_KINDS
            .iter()
            .any(|(word, _)| line.contains(&format!(" {word} [")))
    };
    if is_bird || has_kind() {
        return Some(Printer::Bird);
    }
    let is_frr = line.starts_with("Codes:") || frr_route(line).is_some();
    is_frr.then_some(Printer::Frr)
}

/// Parses a prefix as daemons print it.
fn prefix(word: &str) -> Option<Prefix> {
    let (address, length) = word
        .contains('/')
        .then(|| address_and_length(word))
        .flatten()?;
    Some(Prefix::of(address, length))
}

/// Parses a line of BIRD's output; returns the route that begins with this line, if any.
fn bird(line: &str, open: &mut Option<Open>) -> Result<Option<Open>, String> {
    if line.starts_with("BIRD ") || line.starts_with("Table ") {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    match first {
        "via" => {
            let text = words.next().unwrap_or_default();
            let address = text.parse::<IpAddr>();
            let address = address.map_err(|_| format!("via: expected an address, not '{text}'"))?;
            let device = (words.next() == Some("on")).then(|| words.next()).flatten();
            let weight = words.find(|it| *it == "weight").and(words.next());
            if let Some(open) = open {
                open.add(Lead {
                    address,
                    device: device.map(ToString::to_string),
                    weight: weight.map(ToString::to_string),
                });
            }
            return Ok(None);
        }
        "dev" => {
            if let (Some(open), Some(device)) = (open, words.next()) {
                open.leads = Some(Leads::Connected(device.to_string()));
            }
            return Ok(None);
        }
        _ => {}
    }
    let is_indented = line.starts_with(char::is_whitespace);
    let kind_of = |word: &str| BIRD_KINDS.iter().find(|(kind, _)| *kind == word);
    if is_indented {
        return match kind_of(first) {
            // This is another route of the same network, but not the best one; later lines belong to this route.
            Some(_) => Ok(open.as_ref().map(|open| Open {
                prefix: open.prefix,
                leads: None,
                is_best: false,
            })),
            // These lines are attributes, which `birdc show route all` prints.
            None => Ok(None),
        };
    }
    let prefix = prefix(first).ok_or_else(|| format!("expected a prefix, not '{first}'"))?;
    let word = words.next().unwrap_or_default();
    let (_, nowhere) = kind_of(word).ok_or_else(|| format!("'{word}' is not understood"))?;
    Ok(Some(Open {
        prefix,
        leads: nowhere.map(Leads::Nowhere),
        is_best: true,
    }))
}

/// Returns the codes at the start of a line of FRR's output that begins a route, and the text after them.
fn frr_route(line: &str) -> Option<(&str, &str)> {
    let (codes, rest) = line.split_at_checked(4)?;
    let mut letters = codes.chars();
    let is_route =
        letters.next()?.is_ascii_uppercase() && letters.all(|it| " >*qrbot".contains(it));
    let first = rest.split_whitespace().next()?;
    (is_route && prefix(first).is_some()).then_some((codes, rest))
}

/// Parses a line of FRR's output; returns the route that begins with this line, if any. A star marks a next hop in use.
fn frr(line: &str, open: &mut Option<Open>) -> Result<Option<Open>, String> {
    let is_used = line.get(..4).is_some_and(|codes| codes.contains('*'));
    if let Some((_, rest)) = frr_route(line) {
        let word = rest.split_whitespace().next().unwrap_or_default();
        let prefix = prefix(word).ok_or_else(|| format!("expected a prefix, not '{word}'"))?;
        let mut route = Open {
            prefix,
            leads: None,
            is_best: true,
        };
        if is_used {
            frr_leads(rest, &mut route)?;
        }
        return Ok(Some(route));
    }
    if is_used && let Some(open) = open {
        frr_leads(line, open)?;
    }
    Ok(None)
}

fn frr_leads(text: &str, route: &mut Open) -> Result<(), String> {
    if let Some((_, device)) = text.split_once("is directly connected, ") {
        let device = device.split(',').next().unwrap_or_default();
        route.leads = Some(Leads::Connected(device.trim().to_string()));
    } else if text.contains("unreachable (blackhole)") {
        route.leads = Some(Leads::Nowhere("blackhole"));
    } else if text.contains("unreachable (ICMP admin") {
        route.leads = Some(Leads::Nowhere("prohibit"));
    } else if text.contains(" unreachable") {
        route.leads = Some(Leads::Nowhere("unreachable"));
    } else if let Some((_, via)) = text.split_once("via ") {
        let weight = via.split_once(", weight ").map(|(_, rest)| rest);
        let weight = weight.and_then(|rest| rest.split(',').next());
        let mut parts = via.split(',').map(str::trim);
        let word = parts.next().unwrap_or_default();
        let address = word.split(' ').next().unwrap_or_default();
        let address = address
            .parse::<IpAddr>()
            .map_err(|_| format!("via: expected an address, not '{address}'"))?;
        let device = parts
            .next()
            .filter(|it| !it.starts_with("weight") && !it.contains(':'));
        route.add(Lead {
            address,
            device: device.map(ToString::to_string),
            weight: weight.map(ToString::to_string),
        });
    }
    Ok(())
}
