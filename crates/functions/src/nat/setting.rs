//! The settings of a translator, and their validation.

use super::parser::Class;
use super::table::{Choice, key};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use taut_function::{Member, SettingsError, each};
use taut_sys::HashKey;

/// The limit on the number of outside addresses.
pub(super) const MOST_ADDRESSES: usize = 16;
const MOST_MAPPINGS: i64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    outside: Vec<usize>,
    address: Addresses,
    #[serde(default = "ports")]
    ports: String,
    #[serde(default = "mappings")]
    mappings: i64,
    #[serde(default = "mappings_per_host")]
    mappings_per_host: i64,
    udp_timeout: Option<String>,
    tcp_timeout: Option<String>,
    tcp_closing_timeout: Option<String>,
    icmp_timeout: Option<String>,
    #[serde(default)]
    forward: Vec<toml::Table>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected an IPv4 address such as \"203.0.113.1\", or a list of them"
)]
enum Addresses {
    One(Ipv4Addr),
    Several(Vec<Ipv4Addr>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forward {
    protocol: ForwardProtocol,
    /// The outside address of the mapping; by default, the first outside address of the settings.
    address: Option<Ipv4Addr>,
    port: u16,
    to: SocketAddrV4,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ForwardProtocol {
    Tcp,
    Udp,
}

fn ports() -> String {
    "1024-65535".to_string()
}

fn mappings() -> i64 {
    65_536
}

/// Returns the default limit on the mappings of a host: a sixteenth of the default table.
fn mappings_per_host() -> i64 {
    4096
}

/// The times without packets from inside after which mappings end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub udp: Duration,
    pub tcp: Duration,
    pub tcp_closing: Duration,
    pub icmp: Duration,
}

/// A permanent mapping that the settings define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Static {
    pub slot: u32,
    pub inside: u64,
}

/// The validated settings of the translator.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(super) outside: Vec<usize>,
    pub(super) choice: Choice,
    pub(super) timeouts: Times,
    pub(super) most: usize,
    pub(super) per_host: u32,
    pub(super) forwards: Vec<Static>,
}

impl Settings {
    pub(crate) fn check(self) -> Result<Checked, SettingsError> {
        let wrong = |text: String| Err(SettingsError(text));
        if self.outside.is_empty() {
            return wrong(
                "outside = []: expected the numbers of the ports whose side is outside: [1]"
                    .to_string(),
            );
        }
        let addresses = match self.address {
            Addresses::One(address) => vec![address],
            Addresses::Several(addresses) => addresses,
        };
        check_addresses(&addresses)?;
        let (first_port, last_port) = port_range(&self.ports)?;
        for (key, count) in [
            ("mappings", self.mappings),
            ("mappings_per_host", self.mappings_per_host),
        ] {
            if !(1..=MOST_MAPPINGS).contains(&count) {
                return wrong(format!("{key} = {count}: expected 1 to {MOST_MAPPINGS}"));
            }
        }
        let time = |key: &str, text: Option<String>, otherwise_s: u64| match text {
            None => Ok(Duration::from_secs(otherwise_s)),
            Some(text) => match taut_settings::duration(&text) {
                Some(time) if time >= Duration::from_secs(1) => Ok(time),
                _ => Err(SettingsError(format!(
                    "{key} = \"{text}\": expected 1s to 86400s, such as \"{otherwise_s}s\""
                ))),
            },
        };
        let choice = Choice {
            addresses: addresses.iter().map(|it| it.to_bits()).collect(),
            first_port,
            last_port,
            // All workers have the same seed, because each worker computes which worker owns a host.
            seed: self.seed.unwrap_or_else(|| HashKey::of_process().seed()),
            member: Member::default(),
        };
        let most = self.mappings as usize;
        Ok(Checked {
            forwards: forwards(each("forward", self.forward, Ok)?, &choice, most)?,
            outside: self.outside,
            // The defaults are those that the RFCs recommend, or their minimum.
            timeouts: Times {
                udp: time("udp_timeout", self.udp_timeout, 300)?,
                tcp: time("tcp_timeout", self.tcp_timeout, 7440)?,
                tcp_closing: time("tcp_closing_timeout", self.tcp_closing_timeout, 240)?,
                icmp: time("icmp_timeout", self.icmp_timeout, 60)?,
            },
            most,
            per_host: self.mappings_per_host as u32,
            choice,
        })
    }
}

/// Checks the number of the outside addresses, and that each is a unicast address and listed once.
fn check_addresses(addresses: &[Ipv4Addr]) -> Result<(), SettingsError> {
    let wrong = |text: String| Err(SettingsError(text));
    if !(1..=MOST_ADDRESSES).contains(&addresses.len()) {
        return wrong(format!(
            "address: expected 1 to {MOST_ADDRESSES} IPv4 addresses, not {}",
            addresses.len()
        ));
    }
    for (number, it) in addresses.iter().enumerate() {
        if it.is_multicast() || it.is_broadcast() || it.is_unspecified() || it.is_loopback() {
            return wrong(format!("address \"{it}\" is not a unicast address"));
        }
        if addresses[..number].contains(it) {
            return wrong(format!("address \"{it}\" is listed twice"));
        }
    }
    Ok(())
}

fn port_range(ports: &str) -> Result<(u16, u16), SettingsError> {
    let range = ports.split_once('-').and_then(|(first, last)| {
        let range: (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (range.0 < range.1).then_some(range)
    });
    range.ok_or_else(|| {
        SettingsError(format!(
            "ports = \"{ports}\": expected a range of two or more, such as \"1024-65535\""
        ))
    })
}

fn forwards(
    list: Vec<Forward>,
    choice: &Choice,
    most: usize,
) -> Result<Vec<Static>, SettingsError> {
    if list.len() > most {
        return Err(SettingsError(format!(
            "forward: {} mappings: the maximum is {most}",
            list.len()
        )));
    }
    let mut made: Vec<Static> = Vec::new();
    for (index, it) in list.into_iter().enumerate() {
        let wrong = |text: String| Err(SettingsError(format!("forward {}: {text}", index + 1)));
        let number = match it.address {
            None => Some(0),
            Some(address) => choice.number(address.to_bits()),
        };
        let Some(number) = number else {
            return wrong("its address is none of the outside ones".to_string());
        };
        let class = match it.protocol {
            ForwardProtocol::Tcp => Class::Tcp,
            ForwardProtocol::Udp => Class::Udp,
        };
        let new = Static {
            slot: choice.slot(class, number, it.port),
            inside: key(class, (it.to.ip().to_bits(), it.to.port())),
        };
        if made.iter().any(|it| it.slot == new.slot) {
            return wrong(format!("port {} is forwarded already", it.port));
        }
        if made.iter().any(|it| it.inside == new.inside) {
            return wrong(format!("{} has an outside port already", it.to));
        }
        made.push(new);
    }
    Ok(made)
}
