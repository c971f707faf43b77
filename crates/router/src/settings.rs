//! The settings of a router: as written, and validated.

use super::interface::{Addresses, Interface};
use super::prefix::Prefix;
use super::text::{self, Asked};
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_function::SettingsError;
use taut_port::tap::is_name;
use taut_sys::{LOCAL_TABLE, MAIN_TABLE};
use taut_wire::Mac;

/// The limit on interfaces of a router.
const MOST_INTERFACES: usize = 256;
/// The limit on ports of a chain.
const MOST_PORTS: u8 = 64;
/// The limit on routing tables, each of which takes some 100 MB of memory.
const MOST_TABLES: usize = 16;
/// The VLAN identifiers that a tag can contain for a VLAN (IEEE 802.1Q-2018 section 9.6).
const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;
/// The limit on addresses of one interface.
const MOST_ADDRESSES: usize = 64;
/// The range of an interface's MTU, bytes. The minimum is required by IPv6 (RFC 8200 section 5); the maximum is that of
/// an Ethernet jumbo frame.
const MTU: std::ops::RangeInclusive<u16> = 1280..=9000;
const USUAL_MTU: u16 = 1500;
/// The value of the setting `routes` with which the router takes its routes from the kernel instead of a file.
pub(super) const KERNEL: &str = "kernel";

/// Returns the names of the files of routes in these settings.
pub(super) fn route_files(settings: &toml::Table) -> Vec<&str> {
    let mut files = taut_function::file_names(settings, "routes");
    files.retain(|file| *file != KERNEL);
    files
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default)]
    interface: Vec<WrittenInterface>,
    routes: Option<PathBuf>,
    netns: Option<String>,
    control: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenInterface {
    name: Option<String>,
    port: Option<u8>,
    vlan: Option<u16>,
    table: Option<u32>,
    mac: Option<String>,
    #[serde(default)]
    addresses: Vec<String>,
    mtu: Option<u16>,
    tap: Option<String>,
}

/// The validated [`Settings`].
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub interfaces: Arc<[Interface]>,
    /// The kernel's number of each table, by index; routes in files name their table by this number.
    pub tables: Arc<[u32]>,
    /// The configured routes, without those that follow from the interfaces' addresses.
    pub routes: Arc<[Asked]>,
    /// True if routes, addresses and neighbours come from the kernel.
    pub are_kernels: bool,
    /// The name of the network namespace of the kernel's interfaces; none for the namespace of the process.
    pub namespace: Option<String>,
    /// The path of the control socket; none if there is no control socket.
    pub control: Option<PathBuf>,
}

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let count = self.interface.len();
        if !(1..=MOST_INTERFACES).contains(&count) {
            return Err(SettingsError(format!(
                "interface: expected a [[function.interface]] for each port of the chain or VLAN on it, 1 to \
                {MOST_INTERFACES}, not {count}"
            )));
        }
        let are_kernels = self.routes.as_deref() == Some(Path::new(KERNEL));
        let mut interfaces: Vec<Interface> = Vec::with_capacity(count);
        let mut tables = vec![MAIN_TABLE];
        for (number, written) in self.interface.into_iter().enumerate() {
            let made = interface(number, written, are_kernels, &interfaces, &mut tables);
            let wrong = |reason: String| SettingsError(format!("interface {number}: {reason}"));
            interfaces.push(made.map_err(wrong)?);
        }
        if let Some(name) = &self.netns
            && (name.is_empty() || name.contains('/'))
        {
            return Err(SettingsError(format!(
                "netns: expected the name of a network namespace (see: ip netns), not \"{name}\""
            )));
        }
        let routes = match &self.routes {
            None => Vec::new(),
            Some(_) if are_kernels => Vec::new(),
            Some(path) => {
                let wrong =
                    |reason: String| SettingsError(format!("routes: {}: {reason}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
                text::parse(&text, &interfaces, &tables).map_err(|(line, reason)| {
                    SettingsError(format!("routes: {}:{line}: {reason}", path.display()))
                })?
            }
        };
        Ok(Checked {
            interfaces: interfaces.into(),
            tables: tables.into(),
            routes: routes.into(),
            are_kernels,
            namespace: self.netns,
            control: self.control,
        })
    }
}

/// Validates the interface with index `number`, which must not conflict with the interfaces in `before`. Adds its table
/// to `tables` if it is missing there.
fn interface(
    number: usize,
    written: WrittenInterface,
    is_kernels: bool,
    before: &[Interface],
    tables: &mut Vec<u32>,
) -> Result<Interface, String> {
    let port = match written.port {
        Some(port) => port,
        None => u8::try_from(number).unwrap_or(u8::MAX),
    };
    check_place(port, written.vlan, before)?;
    let table = table(written.table.unwrap_or(MAIN_TABLE), tables)?;
    let name = written.name.unwrap_or_else(|| number.to_string());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!("name: expected a word, not \"{name}\""));
    }
    if before.iter().any(|other| other.name == name) {
        return Err(format!("name: \"{name}\" is used twice"));
    }
    // By default the kernel's interface has the same name as the router's interface.
    let tap = written.tap.or_else(|| is_kernels.then(|| name.clone()));
    if let Some(tap) = &tap {
        check_tap(tap, before)?;
    }
    // The kernel can assign addresses to its own interface, so the settings need none.
    let least = usize::from(tap.is_none());
    let mut own = addresses(&written.addresses, least, table, before)?;
    let mac = mac(written.mac.as_deref(), &own)?;
    if own.own().any(|address| address.is_ipv6()) {
        own.set((IpAddr::V6(link_local(mac)), LINK_LOCAL_LENGTH), true);
    }
    let mtu = written.mtu.unwrap_or(USUAL_MTU);
    if !MTU.contains(&mtu) {
        let (least, most) = (MTU.start(), MTU.end());
        return Err(format!("mtu = {mtu}: expected {least} to {most} bytes"));
    }
    Ok(Interface {
        name,
        port,
        vlan: written.vlan,
        table,
        mac,
        addresses: own,
        mtu,
        tap,
    })
}

/// Parses the MAC address of an interface with the addresses `own`. Without a text, the MAC address is derived from the
/// first IP address, so it differs from that of every other router on the link.
fn mac(text: Option<&str>, own: &Addresses) -> Result<Mac, String> {
    let Some(text) = text else {
        return match own.own().next() {
            Some(IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                Ok(Mac([0x02, 0x74, a, b, c, d]))
            }
            Some(IpAddr::V6(address)) => {
                let [.., a, b, c, d] = address.octets();
                Ok(Mac([0x02, 0x76, a, b, c, d]))
            }
            None => Err("mac: an interface without addresses needs one".to_owned()),
        };
    };
    let mac: Mac = text.parse().map_err(|_| {
        format!("mac: expected an address such as 02:00:00:00:00:01, not \"{text}\"")
    })?;
    if mac.is_multicast() || mac == Mac::default() {
        return Err(format!("mac: {mac} is not a unicast address"));
    }
    Ok(mac)
}

/// Checks that the port and VLAN of an interface are valid, and that no earlier interface uses them.
fn check_place(port: u8, vlan: Option<u16>, before: &[Interface]) -> Result<(), String> {
    if port >= MOST_PORTS {
        return Err(format!(
            "port: a chain has ports 0 to {}, not {port}",
            MOST_PORTS - 1
        ));
    }
    if let Some(vlan) = vlan.filter(|vlan| !VLANS.contains(vlan)) {
        let (least, most) = (VLANS.start(), VLANS.end());
        return Err(format!("vlan = {vlan}: expected {least} to {most}"));
    }
    if let Some(other) = before.iter().find(|it| (it.port, it.vlan) == (port, vlan)) {
        let other = &other.name;
        return Err(match vlan {
            Some(vlan) => format!("vlan {vlan} of port {port} is interface {other} already"),
            None => {
                format!(
                    "port {port} is interface {other} already; another interface on it needs `vlan`"
                )
            }
        });
    }
    Ok(())
}

/// Returns the index of the table with the given number in `tables`, to which it is added if missing.
fn table(id: u32, tables: &mut Vec<u32>) -> Result<u8, String> {
    if id == 0 || id == LOCAL_TABLE {
        return Err(format!(
            "table = {id}: expected a number other than 0 and {LOCAL_TABLE}"
        ));
    }
    let table = tables
        .iter()
        .position(|other| *other == id)
        .unwrap_or_else(|| {
            tables.push(id);
            tables.len() - 1
        });
    if table >= MOST_TABLES {
        return Err(format!(
            "table: the maximum is {MOST_TABLES}, including main"
        ));
    }
    Ok(table as u8)
}

/// Checks that the name of the kernel's interface (tap) is valid and unused.
fn check_tap(tap: &str, before: &[Interface]) -> Result<(), String> {
    if !is_name(tap) {
        return Err(format!(
            "tap: expected the name of an interface to be made, of 1 to 15 letters and digits, not \"{tap}\""
        ));
    }
    if before.iter().any(|it| it.tap.as_deref() == Some(tap)) {
        return Err(format!("tap: \"{tap}\" is used twice"));
    }
    Ok(())
}

/// Parses the addresses of an interface that uses `table`. Fails for fewer than `least` addresses, and if another
/// interface of `table` has one of the addresses or one of their networks.
fn addresses(
    written: &[String],
    least: usize,
    table: u8,
    before: &[Interface],
) -> Result<Addresses, String> {
    let count = written.len();
    if !(least..=MOST_ADDRESSES).contains(&count) {
        return Err(format!(
            "addresses: expected {least} to {MOST_ADDRESSES}, not {count}"
        ));
    }
    let mut own = Addresses::default();
    for text in written {
        let (address, length) = text::address_and_length(text).ok_or_else(|| {
            format!("addresses: expected an address such as 192.0.2.1/24, not \"{text}\"")
        })?;
        if address.is_multicast() || address.is_unspecified() || address.is_loopback() {
            return Err(format!("addresses: {address} is not a unicast address"));
        }
        // In another table, the same address belongs to another host.
        let is_there = |it: &Interface| it.table == table && it.addresses.contains(address);
        if own.contains(address) || before.iter().any(is_there) {
            return Err(format!("addresses: {address} is listed twice"));
        }
        let network = Prefix::of(address, length);
        let has = |it: &&Interface| {
            it.table == table && it.addresses.networks().any(|other| other == network)
        };
        if let Some(other) = before.iter().find(has) {
            return Err(format!(
                "addresses: {network} is on interface {} already",
                other.name
            ));
        }
        own.set((address, length), true);
    }
    Ok(own)
}

/// The prefix length of link-local addresses in bits (RFC 4291 section 2.5.6).
const LINK_LOCAL_LENGTH: u8 = 64;

/// Returns the link-local IPv6 address that a host derives from its MAC address (RFC 4291 appendix A, RFC 2464 section
/// 5).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let mut octets = [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ];
    octets[8] = a ^ 2;
    octets.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_made_of_the_first_address() {
        let of = |text, addresses: &[&str]| {
            let mut own = Addresses::default();
            for address in addresses {
                own.set((address.parse().ok()?, 24), true);
            }
            mac(text, &own).ok().map(|mac| mac.to_string())
        };
        let both = ["10.8.1.254", "2001:db8::1:2"];
        assert_eq!(of(None, &both).as_deref(), Some("02:74:0a:08:01:fe"));
        assert_eq!(of(None, &both[1..]).as_deref(), Some("02:76:00:01:00:02"));
        assert_eq!(of(None, &[]), None);
        let given = "02:00:00:00:00:0a";
        assert_eq!(of(Some(given), &both).as_deref(), Some(given));
        assert_eq!(of(Some("01:00:5e:00:00:01"), &both), None);
    }
}
