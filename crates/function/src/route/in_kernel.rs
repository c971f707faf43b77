//! The router with its fast path in the kernel: the same routes there, the rest of its packets and all answers here.

use super::control::Refused;
use super::hop::{BUCKETS, MOST_GROUPS, MOST_HOPS};
use super::settings::{Prefix, Settings};
use crate::{SettingsError, UpcallVersion, settings};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use taut_lpm::NextHop;
use taut_xdp::router::{KernelRouter, RouterInterface, RouterSettings};

/// The maps of the programs, where packets pass in the kernel.
pub(super) type Kernel = Option<Arc<KernelRouter>>;

/// A program is done with a packet long before, and looks at nothing that has been taken out of the maps since then.
pub(super) const LONGEST_RUN: Duration = Duration::from_millis(50);

/// The programs: their maps are what the router in the process keeps its routes in as well.
pub(super) const UPCALL: UpcallVersion = UpcallVersion {
    check: |table| router_settings(table).map(drop),
    make: |table, ports, shared| {
        let router = Arc::new(KernelRouter::new(router_settings(table)?, ports)?);
        shared.lock(|kernel| *kernel = Some(Arc::clone(&router)));
        Ok(router)
    },
};

/// Returns what the programs have to know of these settings.
///
/// # Errors
/// What is wrong with them.
pub(super) fn router_settings(mut table: toml::Table) -> Result<RouterSettings, SettingsError> {
    // Who decides reads them; there may be a million.
    table.remove("routes");
    let checked = settings::<Settings>(table)?.check()?;
    let interfaces = checked.interfaces.iter().map(|it| RouterInterface {
        mac: it.mac.0,
        mtu: it.mtu,
    });
    Ok(RouterSettings {
        interfaces: interfaces.collect(),
        hops: MOST_HOPS,
        shares: MOST_GROUPS * BUCKETS,
    })
}

/// Lets the route of a prefix lead to a next hop in the kernel; none takes it out.
pub(super) fn lead(
    kernel: &KernelRouter,
    prefix: Prefix,
    hop: Option<NextHop>,
) -> Result<(), Refused> {
    let (address, length) = match prefix {
        Prefix::V4(it) => (IpAddr::V4(it.network().into()), it.length()),
        Prefix::V6(it) => (IpAddr::V6(it.network().into()), it.length()),
    };
    let led = kernel.lead(address, length, hop.map(|hop| hop.index() as u32));
    led.map_err(|e| Refused::Kernel(e.to_string()))
}
