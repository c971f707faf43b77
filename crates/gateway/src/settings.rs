//! The settings of a gateway: as written, and validated.

use super::bearer::MOST_BEARERS;
use super::buffer::HeldInAll;
use super::table::Matching;
use super::{gtpc, pfcp};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;
use taut_function::SettingsError;
use taut_function::macs::{self, Macs};

/// The smallest MTU in bytes, which every IPv6 link supports (RFC 8200 section 5).
const LEAST_MTU: usize = 1280;

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected an IP address such as \"192.0.2.1\", or a list of them"
)]
enum Addresses {
    One(IpAddr),
    Several(Vec<IpAddr>),
}

/// The treatment of frames that do not concern the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Others {
    #[default]
    Drop,
    Forward,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    address: Addresses,
    #[serde(default = "usual_bearers")]
    pub bearers: usize,
    #[serde(default)]
    pub matching: Matching,
    #[serde(default = "usual_mtu")]
    pub mtu: usize,
    #[serde(default)]
    pub others: Others,
    pub mac: Option<macs::Text>,
    pub load: Option<PathBuf>,
    pub control: Option<PathBuf>,
    pub pfcp: Option<pfcp::Settings>,
    pub gtpc: Option<gtpc::Settings>,
    /// The prefixes from which users get addresses.
    #[serde(default)]
    pools: Vec<String>,
    /// True if user packets from tunnels are dropped unless they come from the address of the tunnel's user.
    #[serde(default = "usual_source_check")]
    source_check: bool,
    /// The numbers of the ports for tunnel packets; all of them by default.
    pub tunnels: Option<Vec<usize>>,
}

fn usual_bearers() -> usize {
    100_000
}

fn usual_mtu() -> usize {
    1500
}

fn usual_source_check() -> bool {
    true
}

/// The validated [`Settings`].
pub(super) struct Checked {
    pub own: Vec<IpAddr>,
    /// The addresses to which no user packet is forwarded: the gateway's own, and those of PFCP and GTP-C.
    pub closed: Vec<IpAddr>,
    pub macs: Macs,
    /// The validated settings of sessions, by PFCP or GTP-C; none if there are no sessions.
    pub sessions: Option<pfcp::Terms>,
    pub gtpc: Option<gtpc::Terms>,
    pub settings: Settings,
}

impl Settings {
    pub fn check(mut self) -> Result<Checked, SettingsError> {
        let own = match &self.address {
            Addresses::One(address) => vec![*address],
            Addresses::Several(addresses) => addresses.clone(),
        };
        let wrong = |text: String| Err(SettingsError(text));
        if own.is_empty() || own.iter().any(|a| a.is_unspecified() || a.is_multicast()) {
            return wrong("address: expected the gateway's own address, or several".to_string());
        }
        if !(1..=MOST_BEARERS).contains(&self.bearers) {
            return wrong(format!("bearers: expected 1 to {MOST_BEARERS}"));
        }
        if !(LEAST_MTU..=65_535).contains(&self.mtu) {
            return wrong(format!("mtu: expected {LEAST_MTU} to 65535 bytes"));
        }
        if let Some(tunnels) = &self.tunnels {
            let is_twice = |(place, port)| tunnels[..place].contains(port);
            if tunnels.is_empty() || tunnels.iter().enumerate().any(is_twice) {
                return wrong(format!(
                    "tunnels = {tunnels:?}: expected the numbers of the ports that tunnels come in by, each once, such as [0]; \
                     without, they come in by all"
                ));
            }
        }
        let (sessions, gtpc) = self.check_sessions().map_err(SettingsError)?;
        let mut closed = own.clone();
        let of_pfcp = sessions.iter().flat_map(pfcp::Terms::own);
        for address in of_pfcp.chain(gtpc.iter().map(|it| it.node)) {
            if !closed.contains(&address) {
                closed.push(address);
            }
        }
        let macs = Macs::new("mac", self.mac.take())?;
        let settings = self;
        Ok(Checked {
            own,
            closed,
            macs,
            sessions,
            gtpc,
            settings,
        })
    }

    /// Returns the validated settings of sessions, and those of GTP-C.
    fn check_sessions(&self) -> Result<(Option<pfcp::Terms>, Option<gtpc::Terms>), String> {
        let pools = self.pools.iter().map(|text| text.parse());
        let common = pfcp::Common {
            bearers: self.bearers,
            has_local_sessions: self.gtpc.is_some(),
            pools: pools.collect::<Result<_, _>>()?,
            checks_sources: self.source_check,
        };
        let pfcp = self.pfcp.as_ref().map(|pfcp| pfcp.check(&common));
        let pfcp = pfcp.transpose()?;
        let gtpc = self.gtpc.as_ref().map(|gtpc| gtpc.check(&common));
        let gtpc = gtpc.transpose()?;
        if let (Some(pfcp), Some(gtpc)) = (&pfcp, &gtpc)
            && pfcp.socket == gtpc.socket
        {
            return Err("gtpc: address: PFCP has this address and port".to_string());
        }
        let local = |terms: &gtpc::Terms| terms.of_sessions(&common);
        let sessions = pfcp.or_else(|| gtpc.as_ref().map(local));
        if sessions.is_none() && !self.pools.is_empty() {
            return Err(
                "pools: only sessions of pfcp or gtpc take addresses from pools".to_string(),
            );
        }
        Ok((sessions, gtpc))
    }

    /// Returns the limit on the packets that all workers buffer together, with a counter of these packets.
    pub fn held(&self) -> HeldInAll {
        let of_pfcp = self.pfcp.as_ref().map(pfcp::Settings::held);
        let of_gtpc = self.gtpc.as_ref().map(gtpc::Settings::held);
        HeldInAll::new(of_pfcp.max(of_gtpc).unwrap_or(0))
    }

    /// Returns the number of bearers that may have meters: all bearers if there are sessions, which assign meters,
    /// otherwise none.
    pub fn metered_bearers(&self) -> usize {
        match self.pfcp.is_some() || self.gtpc.is_some() {
            true => self.bearers,
            false => 0,
        }
    }

    /// Returns the number of bearers whose packets may be checked for their source addresses.
    pub fn checked_bearers(&self) -> usize {
        match self.source_check {
            true => self.metered_bearers(),
            false => 0,
        }
    }
}
