//! Compares the frames that nodes report with the links of the experiment file.

use super::probe::{InterfaceState, LinkReport, Sighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One end of a link: a node's role and its interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LinkEndText {
    /// Role of the node.
    pub node: String,
    /// Name of the interface.
    pub interface: String,
}

impl std::fmt::Display for LinkEndText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.node, self.interface)
    }
}

/// A link of the experiment file on which frames passed in both directions before the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProvenLink {
    /// The two ends of the link.
    pub between: [LinkEndText; 2],
    /// True if there is no switch between the ends.
    pub direct: bool,
    /// The LLDP announcements at the ends, as text, beginning with the neighbour of the first end.
    pub neighbours: Vec<String>,
}

/// The links of an experiment file after their test.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) proven: Vec<ProvenLink>,
    /// One sentence for each link that differs from the experiment file.
    pub(crate) faults: Vec<String>,
}

/// Checks the links by the reports of the nodes, which are given by role.
pub(crate) fn judge(links: &[[LinkEndText; 2]], reports: &BTreeMap<String, LinkReport>) -> Judged {
    let mut judged = Judged::default();
    for link in links {
        let [near, far] = link;
        let there = sighting(reports, near, far);
        let back = sighting(reports, far, near);
        if let (Some(there), Some(back)) = (there, back) {
            judged.proven.push(ProvenLink {
                between: link.clone(),
                direct: there.direct && back.direct,
                neighbours: link
                    .iter()
                    .flat_map(|end| neighbours(reports, end))
                    .collect(),
            });
            continue;
        }
        let mut reasons: Vec<String> = link.iter().filter_map(|end| state(reports, end)).collect();
        if reasons.is_empty() {
            for (from, to, seen) in [(near, far, there), (far, near, back)] {
                reasons.push(match seen {
                    Some(_) => format!("frames of {from} arrive at {to}"),
                    None => missed(links, reports, from, to),
                });
            }
        }
        judged
            .faults
            .push(format!("link {near}-{far}: {}", reasons.join("; ")));
    }
    judged
}

/// Returns the report at the end `to` about frames that the end `from` sent; `None` if no such frame arrived.
fn sighting<'a>(
    reports: &'a BTreeMap<String, LinkReport>,
    from: &LinkEndText,
    to: &LinkEndText,
) -> Option<&'a Sighting> {
    let sightings = &reports.get(&to.node)?.sightings;
    sightings
        .iter()
        .find(|it| it.at == to.interface && it.node == from.node && it.interface == from.interface)
}

/// Returns the reason why an interface cannot be the end of any link; `None` if it can.
fn state(reports: &BTreeMap<String, LinkReport>, end: &LinkEndText) -> Option<String> {
    let report = reports.get(&end.node)?;
    match report.interfaces.get(&end.interface) {
        None => Some(format!(
            "{} has no Ethernet interface {} (it has {})",
            end.node,
            end.interface,
            report.names()
        )),
        Some(InterfaceState::Down) => {
            Some(format!("{end} is down: ip link set {} up", end.interface))
        }
        Some(InterfaceState::NoCarrier) => Some(format!(
            "{end} has no carrier: no cable, or its other end is down"
        )),
        Some(InterfaceState::Up) => None,
    }
}

/// Returns a sentence about a link on which no frame arrived. It names the interfaces at which frames of `from` arrive
/// instead, although the file connects `from` to `to`. A node may have several roles; the sentence names the roles that
/// the file uses.
fn missed(
    links: &[[LinkEndText; 2]],
    reports: &BTreeMap<String, LinkReport>,
    from: &LinkEndText,
    to: &LinkEndText,
) -> String {
    let all = reports.iter().flat_map(|(role, report)| {
        let of_end = report
            .sightings
            .iter()
            .filter(|it| it.node == from.node && it.interface == from.interface);
        of_end.map(move |it| LinkEndText {
            node: role.clone(),
            interface: it.at.clone(),
        })
    });
    let mut places: Vec<LinkEndText> = all.collect();
    let is_named = |end: &LinkEndText| links.iter().flatten().any(|it| it == end);
    if places.iter().any(is_named) {
        places.retain(is_named);
    }
    match places.as_slice() {
        [] => format!("frames of {from} arrive nowhere"),
        places => {
            let places: Vec<String> = places.iter().map(ToString::to_string).collect();
            format!(
                "frames of {from} arrive at {}, not at {to}",
                places.join(" and ")
            )
        }
    }
}

fn neighbours<'a>(
    reports: &'a BTreeMap<String, LinkReport>,
    end: &'a LinkEndText,
) -> impl Iterator<Item = String> + 'a {
    let of_node = reports.get(&end.node).into_iter();
    let all = of_node.flat_map(|report| &report.neighbours);
    all.filter(|it| it.at == end.interface).map(move |it| {
        let about = match it.description.as_str() {
            "" => String::new(),
            text => format!(" ({text})"),
        };
        format!("{end} sees {} port {}{about} by LLDP", it.name, it.port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> LinkEndText {
        let (node, interface) = text.split_once(':').unwrap_or_default();
        LinkEndText {
            node: node.to_owned(),
            interface: interface.to_owned(),
        }
    }

    /// Returns reports of nodes whose interfaces are all up; each text `from>to` in `arrived` is a frame that arrived.
    fn reports(arrived: &[&str]) -> BTreeMap<String, LinkReport> {
        let mut reports: BTreeMap<String, LinkReport> = BTreeMap::new();
        for node in ["gen", "dut", "dut2"] {
            let interfaces = ["eth0", "eth1"].map(|name| (name.to_owned(), InterfaceState::Up));
            let report = reports.entry(node.to_owned()).or_default();
            report.interfaces = interfaces.into();
        }
        for pair in arrived {
            let (from, to) = pair.split_once('>').unwrap_or_default();
            let (from, to) = (end(from), end(to));
            let report = reports.entry(to.node).or_default();
            report.sightings.push(Sighting {
                at: to.interface,
                node: from.node,
                interface: from.interface,
                direct: true,
                is_heard: false,
            });
        }
        reports
    }

    fn fault(link: [&str; 2], reports: &BTreeMap<String, LinkReport>) -> String {
        let judged = judge(&[link.map(end)], reports);
        judged.faults.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn wrong_cables_are_named_by_both_ends() {
        let link = ["gen:eth1", "dut:eth0"];
        let good = reports(&["gen:eth1>dut:eth0", "dut:eth0>gen:eth1"]);
        let judged = judge(&[link.map(end)], &good);
        assert!(judged.faults.is_empty() && judged.proven[0].direct);
        let crossed = reports(&["gen:eth1>dut2:eth0", "dut:eth0>gen:eth0"]);
        assert_eq!(
            fault(link, &crossed),
            "link gen:eth1-dut:eth0: frames of gen:eth1 arrive at dut2:eth0, not at dut:eth0; frames of dut:eth0 \
             arrive at gen:eth0, not at gen:eth1"
        );
        let one_way = reports(&["gen:eth1>dut:eth0"]);
        assert_eq!(
            fault(link, &one_way),
            "link gen:eth1-dut:eth0: frames of gen:eth1 arrive at dut:eth0; frames of dut:eth0 arrive nowhere"
        );
    }

    #[test]
    fn interfaces_that_are_down_or_missing_are_named() {
        let mut all = reports(&[]);
        let of_gen = &mut all.entry("gen".to_owned()).or_default().interfaces;
        of_gen.insert("eth1".to_owned(), InterfaceState::Down);
        of_gen.insert("eth0".to_owned(), InterfaceState::NoCarrier);
        assert!(
            fault(["gen:eth1", "dut:eth0"], &all)
                .ends_with("gen:eth1 is down: ip link set eth1 up")
        );
        assert!(fault(["gen:eth0", "dut:eth0"], &all).contains("gen:eth0 has no carrier"));
        let missing = fault(["gen:eth9", "dut:eth0"], &all);
        assert!(
            missing.contains("gen has no Ethernet interface eth9 (it has eth0, eth1)"),
            "{missing}"
        );
    }
}
