//! The agent's part of a link test: sends frames on the interfaces of this machine, and reports the frames that arrive.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};
use taut_sys::LinkSocket;
use taut_wire::link_probe::{LINK_PROBE, NEAREST_BRIDGE, TOKEN_BYTES};
use taut_wire::lldp::LLDP;
use taut_wire::{Ethernet, LinkEnd, LinkProbe, Lldp, Mac};

/// Interval between two test frames on an interface.
const INTERVAL: Duration = Duration::from_millis(20);
/// Number of frames that are sent after all links are confirmed, so that the other ends get the confirmation too.
const FAREWELL: u32 = 3;
/// Maximum number of entries in a report of arrived frames: far more than the interfaces of a machine.
const MOST_SIGHTINGS: usize = 4096;
/// Type of Ethernet interfaces in /sys/class/net/NAME/type (linux/if_arp.h).
const ETHERNET: &str = "1";

/// A request to probe the links of this machine.
#[derive(Debug)]
pub struct ProbeRequest {
    /// Name of this node in the test frames.
    pub node: String,
    /// Token that distinguishes the frames of this test from others, in hexadecimal digits.
    pub token: String,
    /// Interfaces to test. The test ends when each of them has received frames from its other end, and the other end
    /// has confirmed frames from it.
    pub proven: Vec<String>,
    /// Interfaces that frames are sent on. If the list is empty, frames are sent on the interfaces to test, or else on
    /// all Ethernet interfaces that are up.
    pub sending: Vec<String>,
    /// Maximum duration of the test.
    pub time: Duration,
}

/// The interfaces of a node, and the test frames that arrived on them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Ethernet interfaces of the node, by name.
    pub interfaces: BTreeMap<String, InterfaceState>,
    /// Arrived test frames, one entry for each pair of receiving and sending interface.
    pub sightings: Vec<Sighting>,
    /// Neighbours that announce themselves by LLDP frames.
    pub neighbours: Vec<NeighbourReport>,
}

/// State of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterfaceState {
    /// The interface is up and has a carrier.
    Up,
    /// The interface is up and has no carrier.
    NoCarrier,
    /// The interface is switched off.
    Down,
}

/// Test frames of one sending interface that arrived on an interface of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// The interface of this node on which the frames arrived.
    pub at: String,
    /// Name of the node that sent the frames.
    pub node: String,
    /// Interface of the other node that sent the frames.
    pub interface: String,
    /// True if a frame arrived that bridges do not forward: the interfaces are connected by a cable without a switch.
    pub direct: bool,
    /// True if the sender reports that it has received frames from the interface `at`.
    pub is_heard: bool,
}

/// A neighbour that announces itself by LLDP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourReport {
    /// The interface of this node on which the announcement arrived.
    pub at: String,
    /// Name of the neighbour in its announcement, or else its identifier.
    pub name: String,
    /// Port of the neighbour from which it sent the announcement.
    pub port: String,
    /// Description of the neighbour's port; may be empty.
    pub description: String,
}

/// An Ethernet interface of this machine.
#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
    mac: Mac,
    state: InterfaceState,
}

/// Probes the links of this machine.
///
/// # Errors
/// The token is invalid, packet sockets are not permitted, or the interfaces cannot be listed.
pub fn probe_links(request: &ProbeRequest) -> io::Result<LinkReport> {
    let token = token_of(&request.token)?;
    let interfaces = interfaces()?;
    let socket = open(LINK_PROBE.0)?;
    let announcements = open(LLDP.0)?;
    for interface in &interfaces {
        // An interface that has just disappeared is reported as missing.
        let _ = socket.join(interface.index, NEAREST_BRIDGE.0);
        let _ = announcements.join(interface.index, NEAREST_BRIDGE.0);
    }
    let named = match request.sending.is_empty() {
        true => &request.proven,
        false => &request.sending,
    };
    let is_sending = |interface: &&Interface| match named.is_empty() {
        true => interface.state == InterfaceState::Up,
        false => named.contains(&interface.name),
    };
    let mut probing = Probing {
        request,
        token,
        sending: interfaces.iter().filter(is_sending).collect(),
        all: &interfaces,
        socket,
        announcements,
        report: LinkReport::default(),
    };
    probing.run()?;
    let mut report = probing.report;
    report.interfaces = interfaces
        .iter()
        .map(|it| (it.name.clone(), it.state))
        .collect();
    Ok(report)
}

struct Probing<'a> {
    request: &'a ProbeRequest,
    token: [u8; TOKEN_BYTES],
    sending: Vec<&'a Interface>,
    all: &'a [Interface],
    socket: LinkSocket,
    announcements: LinkSocket,
    report: LinkReport,
}

impl Probing<'_> {
    fn run(&mut self) -> io::Result<()> {
        let end = Instant::now() + self.request.time;
        let mut left_after_confirmation = FAREWELL;
        while Instant::now() < end && left_after_confirmation > 0 {
            self.send();
            self.receive(end.min(Instant::now() + INTERVAL))?;
            if self.is_confirmed() {
                left_after_confirmation -= 1;
            }
        }
        Ok(())
    }

    /// Returns true if each interface to test has received frames from its other end, and the other end has confirmed
    /// frames from it.
    fn is_confirmed(&self) -> bool {
        let names = &self.request.proven;
        let is_heard = |name: &String| {
            let mut sightings = self.report.sightings.iter();
            sightings.any(|it| it.at == *name && it.is_heard)
        };
        !names.is_empty() && names.iter().all(is_heard)
    }

    /// Sends two frames on each interface: one that switches forward, and one that only the other end of the cable
    /// receives.
    fn send(&self) {
        for interface in &self.sending {
            let mut sightings = self.report.sightings.iter();
            let heard = sightings.find(|it| it.at == interface.name);
            let probe = LinkProbe {
                token: self.token,
                from: LinkEnd {
                    node: &self.request.node,
                    interface: &interface.name,
                },
                hears: heard.map(|it| LinkEnd {
                    node: &it.node,
                    interface: &it.interface,
                }),
            };
            for destination in [Mac::BROADCAST, NEAREST_BRIDGE] {
                if let Ok(frame) = probe.frame(interface.mac, destination) {
                    // A send error needs no report: an interface that is down has no sightings.
                    let _ = self.socket.send(interface.index, &frame);
                }
            }
        }
    }

    fn receive(&mut self, until: Instant) -> io::Result<()> {
        let mut bytes = [0; 2048];
        while let Some(arrival) = self.socket.receive(&mut bytes, until)? {
            self.note(
                arrival.interface,
                &bytes[..arrival.len_bytes.min(bytes.len())],
            );
            // The deadline is also checked between frames, so that a flood of frames cannot prolong the test.
            if Instant::now() >= until {
                break;
            }
        }
        while let Some(arrival) = self.announcements.receive(&mut bytes, Instant::now())? {
            let frame = &bytes[..arrival.len_bytes.min(bytes.len())];
            self.note_neighbour(arrival.interface, frame);
            if Instant::now() >= until + INTERVAL {
                break;
            }
        }
        Ok(())
    }

    fn name_of(&self, index: u32) -> Option<&str> {
        let interface = self.all.iter().find(|it| it.index == index)?;
        Some(&interface.name)
    }

    fn note(&mut self, index: u32, frame: &[u8]) {
        let Ok(probe) = LinkProbe::of_frame(frame) else {
            return;
        };
        let Some(at) = self.name_of(index).map(ToOwned::to_owned) else {
            return;
        };
        if probe.token != self.token {
            return;
        }
        let direct = frame[..6] == NEAREST_BRIDGE.0;
        let is_heard = probe
            .hears
            .is_some_and(|end| end.node == self.request.node && end.interface == at);
        let sightings = &mut self.report.sightings;
        let is_full = sightings.len() >= MOST_SIGHTINGS;
        let known = sightings.iter_mut().find(|it| {
            it.at == at && it.node == probe.from.node && it.interface == probe.from.interface
        });
        match known {
            Some(known) => {
                known.direct |= direct;
                known.is_heard |= is_heard;
            }
            None if !is_full => sightings.push(Sighting {
                at,
                node: probe.from.node.to_owned(),
                interface: probe.from.interface.to_owned(),
                direct,
                is_heard,
            }),
            None => {}
        }
    }

    fn note_neighbour(&mut self, index: u32, frame: &[u8]) {
        let payload = Ethernet::new(frame)
            .ok()
            .filter(|it| it.ethertype() == LLDP);
        let announced = payload.and_then(|view| Lldp::parse(view.payload()).ok());
        let at = self.name_of(index).map(ToOwned::to_owned);
        if let Some((at, announced)) = at.zip(announced) {
            let neighbour = NeighbourReport {
                at,
                name: announced.name().to_owned(),
                port: announced.port,
                description: announced.port_description,
            };
            let neighbours = &mut self.report.neighbours;
            if !neighbours.contains(&neighbour) && neighbours.len() < MOST_SIGHTINGS {
                neighbours.push(neighbour);
            }
        }
    }
}

fn open(ethertype: u16) -> io::Result<LinkSocket> {
    LinkSocket::open(ethertype).map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            e.kind(),
            "to prove links, taut needs root or CAP_NET_RAW (setcap cap_net_raw+ep on its program)",
        ),
        _ => e,
    })
}

fn token_of(text: &str) -> io::Result<[u8; TOKEN_BYTES]> {
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the token is 32 hexadecimal digits",
        )
    };
    let mut token = [0; TOKEN_BYTES];
    if text.len() != 2 * TOKEN_BYTES || !text.is_ascii() {
        return Err(wrong());
    }
    for (byte, at) in token.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(token)
}

/// Returns the Ethernet interfaces of this network namespace. Bridges are skipped, because a frame that a bridge
/// receives has arrived on one of its ports.
fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let path = entry?.path();
        let read =
            |name: &str| fs::read_to_string(path.join(name)).map(|text| text.trim().to_owned());
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .map(ToOwned::to_owned);
        let mac = read("address").ok().and_then(|text| text.parse().ok());
        let index = read("ifindex").ok().and_then(|text| text.parse().ok());
        let is_ethernet = read("type").is_ok_and(|kind| kind == ETHERNET);
        if let (Some(name), Some(mac), Some(index), true) = (name, mac, index, is_ethernet)
            && !path.join("bridge").exists()
        {
            found.push(Interface {
                name,
                index,
                mac,
                state: state_of(
                    &read("flags").unwrap_or_default(),
                    read("carrier").ok().as_deref(),
                ),
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Returns the state of an interface from its flags (netdevice(7)) and its carrier, which is unknown while it is down.
fn state_of(flags: &str, carrier: Option<&str>) -> InterfaceState {
    const UP: u32 = 1;
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    match carrier {
        _ if flags & UP == 0 => InterfaceState::Down,
        Some("1") => InterfaceState::Up,
        _ => InterfaceState::NoCarrier,
    }
}

impl LinkReport {
    /// Returns the names of the other Ethernet interfaces, for a message that one is missing.
    pub(crate) fn names(&self) -> String {
        let names: BTreeSet<&str> = self.interfaces.keys().map(String::as_str).collect();
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.into_iter().collect::<Vec<_>>().join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_and_states_of_interfaces_are_read() {
        assert_eq!(token_of(&"0f".repeat(16)).unwrap(), [15; 16]);
        for wrong in ["", "0f", &"0g".repeat(16), &"ä".repeat(16)] {
            assert!(token_of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(state_of("0x1003", Some("1")), InterfaceState::Up);
        assert_eq!(state_of("0x1003", Some("0")), InterfaceState::NoCarrier);
        assert_eq!(state_of("0x1002", None), InterfaceState::Down);
    }
}
