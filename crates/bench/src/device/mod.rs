//! Devices under test: the list of all devices, the devices among them that this machine supports, and the set-up of a
//! device.
//!
//! A [`Device`] is `taut forward` in one of its forms, the kernel, a loop of the generator, or a baseline
//! ([`taut_host::baseline`]). The demo, the benchmarks, `taut generate --device` and experiments all measure devices of
//! this one list ([`offers`]). A [`DeviceUnderTest`] is a device of the list, or any existing device behind two ports.

mod error;
mod router;
pub(crate) mod scratch;
mod set_up;
mod under_test;
mod variant;

pub use error::RunError;
pub use scratch::Notes;
pub use set_up::{Site, flow_through, ports_to, with_instrument};
pub use under_test::{DeviceUnderTest, UnknownDevice};

use std::path::Path;
use std::time::Duration;
use taut_engine::Flush;
use taut_host::baseline::{Baseline, Frames, Reach, baselines};
use taut_host::permissions::{Missing, can_make_namespaces};
use taut_host::testbed::bridge_commands;
use taut_port::backends;
use taut_results::{DeviceInfo, Kind, LeftOut, Transport};

/// The flush policy `full` with the values of Stylianopoulos et al., DEBS 2020: 32 packets, drained every 100 µs.
const FULL: Flush = Flush::Full {
    n: 32,
    drain: Duration::from_micros(100),
};
const EVERY: Flush = Flush::Every {
    period: Duration::from_micros(50),
};
const IDLE: Flush = Flush::Idle { n: 32 };

/// The kind of a device and its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// `taut forward` over memif.
    Memif {
        /// Flush policy of the forwarder.
        flush: Flush,
    },
    /// No device: the generator's two memif ports are connected to each other.
    MemifLoop,
    /// The Linux bridge between two veth pairs.
    Bridge,
    /// `taut forward` between two veth pairs, on AF_PACKET sockets.
    AfPacket {
        /// Flush policy of the forwarder.
        flush: Flush,
    },
    /// `taut forward` between two veth pairs, on AF_XDP sockets.
    AfXdp {
        /// Flush policy of the forwarder.
        flush: Flush,
    },
    /// `taut forward --in-kernel` between two veth pairs, with XDP programs.
    Kernel,
    /// No device: the generator is at both ends of one veth pair.
    VethLoop,
    /// A forwarder of another project.
    Baseline(&'static Baseline),
}

/// A device that taut can set up and measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name of the device's folder.
    pub id: String,
    /// The device's name on the command line, valid in every working directory.
    pub spec: String,
    /// The device's name in the tables of reports.
    pub label: String,
    /// The kind of device.
    pub kind: DeviceKind,
    /// Further options of `taut forward`, given after the device's name.
    more: Vec<String>,
    /// True if the device routes between the generator's two networks.
    routes: bool,
}

impl Device {
    pub(crate) fn new(id: &str, kind: DeviceKind) -> Self {
        let label = match kind {
            DeviceKind::Memif { flush } => flush.to_string(),
            DeviceKind::AfPacket { flush } => format!("AF_PACKET {flush}"),
            DeviceKind::AfXdp { flush } => format!("AF_XDP {flush}"),
            DeviceKind::Bridge => "Linux bridge".to_string(),
            DeviceKind::Kernel => "XDP redirect".to_string(),
            DeviceKind::MemifLoop | DeviceKind::VethLoop => "generator loop".to_string(),
            DeviceKind::Baseline(baseline) => baseline.label.to_string(),
        };
        Self {
            id: id.to_string(),
            spec: id.to_string(),
            label,
            kind,
            more: Vec::new(),
            routes: false,
        }
    }

    /// Returns this device as a router of IPv4 and IPv6, with the function `route`.
    fn router(mut self) -> Self {
        self.routes = true;
        self.label = match self.label.split_once(' ') {
            Some((io, _)) if self.transport() == Transport::Veth => format!("{io} route"),
            _ => "route".to_string(),
        };
        self
    }

    /// Returns this device with further options of `taut forward`. The device's new name, `spec`, contains them.
    pub(crate) fn with_more(mut self, spec: String, more: Vec<String>) -> Self {
        (self.spec, self.more) = (spec, more);
        self.label.push_str(&self.more_in_words());
        self
    }

    /// Returns the options of `taut forward` without dashes, each after a space: ` burst 64`.
    fn more_in_words(&self) -> String {
        let words = self.more.iter().map(|word| word.trim_start_matches("--"));
        words.map(|word| format!(" {word}")).collect()
    }

    /// Returns the name of the transport, followed by the name of the device in tables.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.transport().name(), self.label)
    }

    /// Returns true if frames enter and leave the device on veth interfaces that a wiretap can observe.
    pub(crate) fn on_wires(&self) -> bool {
        match self.kind {
            DeviceKind::Bridge | DeviceKind::AfPacket { .. } | DeviceKind::AfXdp { .. } => true,
            DeviceKind::Baseline(baseline) => baseline.on_interfaces(),
            // A wiretap does not see frames that XDP programs redirect.
            DeviceKind::Memif { .. }
            | DeviceKind::MemifLoop
            | DeviceKind::VethLoop
            | DeviceKind::Kernel => false,
        }
    }

    /// Returns true if the device can log the interruptions of its core, as taut's workers can.
    pub fn notes_interruptions(&self) -> bool {
        self.flush().is_some()
    }

    /// Returns the kind of frames that the device forwards.
    pub fn frames(&self) -> Frames {
        match self.kind {
            DeviceKind::Baseline(baseline) => baseline.frames,
            _ if self.routes => Frames::Routed,
            _ => Frames::Through,
        }
    }

    /// Returns the transport between generator and device.
    pub fn transport(&self) -> Transport {
        match self.kind {
            DeviceKind::Memif { .. } | DeviceKind::MemifLoop => Transport::Memif,
            DeviceKind::Baseline(baseline) => match baseline.reach {
                Reach::Memif { .. } => Transport::Memif,
                Reach::Vhost => Transport::Vhost,
                Reach::Veth { .. } => Transport::Veth,
            },
            _ => Transport::Veth,
        }
    }

    pub(crate) fn flush(&self) -> Option<Flush> {
        match self.kind {
            DeviceKind::Memif { flush }
            | DeviceKind::AfPacket { flush }
            | DeviceKind::AfXdp { flush } => Some(flush),
            _ => None,
        }
    }

    /// Returns the version of the device on this machine, or other evidence that the device is available; none if a
    /// requirement is missing.
    pub fn found_here(&self) -> Option<String> {
        probe(self).ok()
    }

    /// Returns the kind of packet input and output of the device, and the note about it in the manifest.
    fn io_and_note(&self) -> (&'static str, &'static str) {
        match self.kind {
            DeviceKind::Memif { .. } => (
                "memif",
                "client on both links with one packet pool: frames are forwarded without a copy",
            ),
            DeviceKind::MemifLoop => (
                "memif",
                "one hop instead of two, both ends on the generator's core",
            ),
            DeviceKind::Bridge => (
                "bridge",
                "kernel work steered to the device's core by receive packet steering (RPS), which wakes it by an interrupt",
            ),
            DeviceKind::AfPacket { .. } => (
                "AF_PACKET",
                "kernel work on the receiving side steered to the device's core (RPS); mapped rings, TPACKET_V2",
            ),
            DeviceKind::AfXdp { .. } => (
                "AF_XDP",
                "the XDP program runs on the sender's core (XDP frames cannot be steered); copy mode, as veth has no other",
            ),
            DeviceKind::Kernel => (
                "XDP",
                "XDP programs in a kernel thread on the device's core (threaded NAPI); the generator's ends have GRO on, without which veth takes no redirected frames",
            ),
            DeviceKind::VethLoop => (
                "AF_PACKET",
                "one veth hop instead of two, both ends on the generator's core",
            ),
            DeviceKind::Baseline(baseline) => (baseline.io, baseline.note),
        }
    }

    /// Returns the command that sets the device up, with placeholders for its two sockets or interfaces and for its
    /// folder.
    fn shown_command(&self) -> Vec<String> {
        match self.kind {
            DeviceKind::Bridge => one_after_the_other(&bridge_commands()),
            DeviceKind::Baseline(baseline) => {
                let core = taut_host::choose_cores().device;
                one_after_the_other(&baseline.commands(core, Path::new("FOLDER")))
            }
            _ => self
                .arguments(
                    ["SOCKET-OR-INTERFACE-1", "SOCKET-OR-INTERFACE-2"],
                    None,
                    Path::new("FOLDER"),
                )
                .map(|arguments| {
                    std::iter::once("taut".to_string())
                        .chain(arguments)
                        .collect()
                })
                .unwrap_or_default(),
        }
    }

    /// Returns the device's entry in the manifest.
    pub fn info(&self) -> DeviceInfo {
        let (io, note) = self.io_and_note();
        DeviceInfo {
            id: self.id.to_string(),
            label: self.label.clone(),
            transport: self.transport(),
            kind: match self.kind {
                DeviceKind::MemifLoop | DeviceKind::VethLoop => Kind::Calibration,
                _ => Kind::Forwarder,
            },
            // Flush policies are compared only between devices that differ in nothing else, so other options are part
            // of this name.
            io: format!(
                "{io}{}{}",
                if self.routes { " route" } else { "" },
                self.more_in_words()
            ),
            flush: self.flush().map(|f| f.to_string()),
            flush_wait_ns: match self.flush() {
                Some(Flush::Full { drain: t, .. } | Flush::Every { period: t }) => {
                    u64::try_from(t.as_nanos()).ok()
                }
                _ => None,
            },
            command: self.shown_command(),
            note: if self.routes {
                format!(
                    "{note}; the function route (TTL and MAC addresses rewritten), its neighbours found by ARP"
                )
            } else {
                note.to_string()
            },
        }
    }

    /// Returns the arguments of `taut` that start this device on two sockets or interfaces, with its files in `folder`;
    /// none for devices that are not `taut forward`.
    pub(crate) fn arguments(
        &self,
        ends: [&str; 2],
        core: Option<usize>,
        folder: &Path,
    ) -> Option<Vec<String>> {
        let ports = match self.kind {
            DeviceKind::Memif { .. } => ends.map(|e| format!("memif:{e},role=client")),
            DeviceKind::AfPacket { .. } => ends.map(|e| format!("af_packet:{e}")),
            DeviceKind::AfXdp { .. } | DeviceKind::Kernel => ends.map(|e| format!("af_xdp:{e}")),
            DeviceKind::MemifLoop
            | DeviceKind::Bridge
            | DeviceKind::VethLoop
            | DeviceKind::Baseline(_) => return None,
        };
        let mut arguments = vec!["forward".to_string()];
        if self.routes {
            arguments.push(router::path(folder).display().to_string());
        }
        arguments.extend_from_slice(&self.more);
        for port in ports {
            arguments.extend(["--port".to_string(), port]);
        }
        if let Some(flush) = self.flush() {
            arguments.extend(["--flush".to_string(), flush.to_string()]);
        }
        if self.kind == DeviceKind::Kernel {
            arguments.push("--in-kernel".to_string());
        } else if let Some(core) = core {
            arguments.extend(["--core".to_string(), core.to_string()]);
        }
        Some(arguments)
    }
}

/// Joins command lines into one command line for a shell, which runs them one after the other.
fn one_after_the_other(lines: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        words.extend(line.split(' ').map(String::from));
        // A background command already ends with `&`, which also separates it from the next command.
        if at + 1 < lines.len()
            && !line.ends_with('&')
            && let Some(last) = words.last_mut()
        {
            last.push(';');
        }
    }
    words
}

/// A device, and whether this machine supports it.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The offered device.
    pub device: Device,
    /// The version of the device or other evidence that it is available, or else the missing requirement.
    pub here: Result<String, Missing>,
}

/// The devices to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// All devices are measured.
    All,
    /// Only the named devices are measured.
    Named(Vec<Device>),
}

impl Choice {
    /// Parses `all`, or ids separated by commas, in their order, with options of `taut forward` after them.
    /// `memif-idle,memif,flush=full(32, 100us),burst=64` is two devices.
    ///
    /// # Errors
    /// Returns a line that names the error and the valid values.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let list: Vec<Device> = all();
        let mut devices: Vec<Device> = Vec::new();
        for words in variant::split(text)? {
            let device = variant::parse(&words, &list)?;
            // A device that is named twice is measured once.
            if devices.iter().all(|d| d.full_name() != device.full_name()) {
                devices.push(device);
            }
        }
        if devices.is_empty() {
            return Err(
                "no device named; give ids of taut demo --list-devices, separated by commas, or all"
                    .to_string(),
            );
        }
        Ok(Self::Named(devices))
    }

    /// Returns the selected devices.
    fn devices(&self) -> Vec<Device> {
        match self {
            Self::All => all(),
            Self::Named(devices) => devices.clone(),
        }
    }
}

/// Returns all devices in the order of reports: memif first, and the loops of the generator last in each group.
fn all() -> Vec<Device> {
    let others = |transport: Transport| {
        let devices = baselines()
            .iter()
            .map(|baseline| Device::new(baseline.id, DeviceKind::Baseline(baseline)));
        devices.filter(move |device| device.transport() == transport)
    };
    let own = Device::new;
    let usual = Flush::default();
    let mut devices = vec![
        own("memif-full", DeviceKind::Memif { flush: FULL }),
        own("memif-every", DeviceKind::Memif { flush: EVERY }),
        own("memif-each", DeviceKind::Memif { flush: Flush::Each }),
        own("memif-idle", DeviceKind::Memif { flush: IDLE }),
        own("memif-route", DeviceKind::Memif { flush: usual }).router(),
    ];
    devices.extend(others(Transport::Memif));
    devices.push(own("memif-loop", DeviceKind::MemifLoop));
    devices.extend(others(Transport::Vhost));
    devices.extend([
        own("veth-bridge", DeviceKind::Bridge),
        own(
            "veth-af-packet-each",
            DeviceKind::AfPacket { flush: Flush::Each },
        ),
        own("veth-af-packet-idle", DeviceKind::AfPacket { flush: IDLE }),
        own("veth-af-xdp-each", DeviceKind::AfXdp { flush: Flush::Each }),
        own("veth-af-xdp-idle", DeviceKind::AfXdp { flush: IDLE }),
        own("veth-xdp-redirect", DeviceKind::Kernel),
        own(
            "veth-af-packet-route",
            DeviceKind::AfPacket { flush: usual },
        )
        .router(),
        own("veth-af-xdp-route", DeviceKind::AfXdp { flush: usual }).router(),
    ]);
    devices.extend(others(Transport::Veth));
    devices.push(own("veth-loop", DeviceKind::VethLoop));
    devices
}

/// Returns the ids of all devices, whether or not this machine supports them.
pub fn ids() -> Vec<String> {
    all().into_iter().map(|device| device.id).collect()
}

/// Returns all devices, and whether this machine supports them.
pub fn offers() -> Vec<Offer> {
    all()
        .into_iter()
        .map(|device| Offer {
            here: probe(&device),
            device,
        })
        .collect()
}

fn probe(device: &Device) -> Result<String, Missing> {
    if device.transport() == Transport::Veth {
        can_make_namespaces()?;
    }
    match device.kind {
        DeviceKind::Baseline(baseline) => {
            let found = baseline.probe()?;
            if baseline.reach == Reach::Vhost {
                probe_port("dpdk")?;
            }
            Ok(found)
        }
        DeviceKind::AfPacket { .. } => probe_port("af_packet"),
        // Forwarding in the kernel has the same requirements as AF_XDP sockets.
        DeviceKind::AfXdp { .. } | DeviceKind::Kernel => probe_port("af_xdp"),
        DeviceKind::Bridge => Ok("the kernel's".to_string()),
        DeviceKind::Memif { .. } | DeviceKind::MemifLoop | DeviceKind::VethLoop => {
            Ok("part of taut".to_string())
        }
    }
}

fn probe_port(backend: &str) -> Result<String, Missing> {
    let missing = |what: String| Missing {
        what,
        how_to_get_it: "see taut ports".to_string(),
    };
    match backends().iter().find(|b| b.name == backend) {
        Some(found) => (found.probe)().map_err(|e| missing(e.to_string())),
        None => Err(missing("this build has no such port".to_string())),
    }
}

/// Returns the selected devices that this machine supports, and the others with the reason. Devices with the same
/// reason share one entry.
pub fn chosen(choice: &Choice) -> (Vec<Device>, Vec<LeftOut>) {
    let mut devices = Vec::new();
    let mut missing: Vec<(Missing, Vec<Device>)> = Vec::new();
    for device in choice.devices() {
        match probe(&device) {
            Ok(_) => devices.push(device),
            Err(why) => match missing.iter_mut().find(|(same, _)| *same == why) {
                Some((_, others)) => others.push(device),
                None => missing.push((why, vec![device])),
            },
        }
    }
    let left_out = missing.into_iter().map(|(why, absent)| LeftOut {
        what: together(&absent, &devices),
        why: why.what,
        how: why.how_to_get_it,
    });
    let left_out = left_out.collect();
    (devices, left_out)
}

/// Joins the names of absent devices of one transport: `veth Linux bridge, Linux routing`. The text begins with
/// `everything over` if several are absent and no device of the transport is `present`.
fn together(absent: &[Device], present: &[Device]) -> String {
    let Some(transport) = absent.first().map(Device::transport) else {
        return String::new();
    };
    let labels: Vec<&str> = absent.iter().map(|device| device.label.as_str()).collect();
    let labels = labels.join(", ");
    if labels.contains(", ") && present.iter().all(|d| d.transport() != transport) {
        format!("everything over {}: {labels}", transport.name())
    } else {
        format!("{} {labels}", transport.name())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_and_names_of_devices_are_unique() {
        let devices = all();
        let ids: BTreeSet<_> = devices.iter().map(|d| &d.id).collect();
        let names: BTreeSet<_> = devices.iter().map(Device::full_name).collect();
        assert_eq!((ids.len(), names.len()), (devices.len(), devices.len()));
        assert!(
            devices
                .iter()
                .any(|d| d.full_name() == "memif full(32, 100us)")
        );
    }

    #[test]
    fn devices_are_grouped_by_transport_with_the_loop_device_last() {
        let transports: Vec<_> = all().iter().map(Device::transport).collect();
        assert!(transports.is_sorted(), "{transports:?}");
        for (id, transport) in [
            ("memif-loop", Transport::Memif),
            ("veth-loop", Transport::Veth),
        ] {
            let last = all()
                .into_iter()
                .rfind(|device| device.transport() == transport);
            assert_eq!(last.map(|device| device.id).as_deref(), Some(id));
        }
    }

    #[test]
    fn devices_are_chosen_by_their_names() {
        let ids = |choice: &Choice| -> Vec<String> {
            choice.devices().into_iter().map(|d| d.id).collect()
        };
        assert_eq!(Choice::All.devices().len(), all().len());
        let named = Choice::parse("veth-routing, memif-idle,memif-idle").unwrap();
        assert_eq!(ids(&named), ["veth-routing", "memif-idle"], "as named");
        let variants = Choice::parse("veth-bridge,memif,flush=full(8, 1ms),burst=64,memif-loop");
        assert_eq!(
            ids(&variants.unwrap()),
            [
                "veth-bridge",
                "memif,flush=full(8,1ms),burst=64",
                "memif-loop"
            ]
        );
    }

    #[test]
    fn the_error_for_an_unknown_device_names_the_device() {
        let unknown = Choice::parse("memif-idle,vpp").unwrap_err();
        assert!(unknown.contains("unknown device `vpp`"), "{unknown}");
        assert!(unknown.contains("--list-devices"), "{unknown}");
        assert!(Choice::parse(" ,").unwrap_err().contains("no device named"));
        assert_eq!(Choice::parse("all"), Ok(Choice::All));
    }

    #[test]
    fn the_commands_of_a_device_form_one_shell_line() {
        let lines = ["a b", "c &", "d e"].map(String::from);
        assert_eq!(one_after_the_other(&lines).join(" "), "a b; c & d e");
        let bridge = Device::new("veth-bridge", DeviceKind::Bridge)
            .info()
            .command
            .join(" ");
        assert!(
            bridge.starts_with("ip link add br0 type bridge"),
            "{bridge}"
        );
        assert!(bridge.ends_with("; ip link set br0 up"), "{bridge}");
    }

    #[test]
    fn devices_skipped_for_the_same_reason_form_one_entry() {
        let devices =
            ["veth-bridge", "veth-loop"].map(|id| all().into_iter().find(|d| d.id == id).unwrap());
        assert_eq!(
            together(&devices, &[]),
            "everything over veth: Linux bridge, generator loop"
        );
        let [bridge, rest] = devices;
        assert_eq!(together(&[bridge], &[rest]), "veth Linux bridge");
    }
}
