//! The router with its fast path in the kernel: XDP programs forward packets by the same routes. The router in the
//! process handles the other packets and all replies.

use super::hop::{BUCKETS, MOST_GROUPS, MOST_HOPS};
use super::interface::Interface;
use super::refusal::Refused;
use super::settings::{KERNEL, Settings};
use std::sync::Arc;
use std::time::Duration;
use taut_function::{SettingsError, UpcallVersion, settings};
use taut_lpm::{NextHop, PrefixV4, PrefixV6, v4};
use taut_sys::HashKey;
use taut_xdp::router::{KernelRouter, RouterInterface, RouterSettings};

/// The maps of the XDP programs; None if the kernel forwards no packets.
pub(super) type Kernel = Option<Arc<KernelRouter>>;

/// The upper bound for the time that an XDP program spends on one packet. Once this time has passed after the removal
/// of a table entry, no program uses the entry.
pub(super) const LONGEST_RUN: Duration = Duration::from_millis(50);

/// The XDP version of the function: the programs and their maps, to which the router in the process copies its routes.
pub(super) const UPCALL: UpcallVersion = UpcallVersion {
    check: |table| router_settings(table).map(drop),
    make: |table, ports, shared| {
        let router = Arc::new(KernelRouter::new(router_settings(table)?, ports)?);
        shared.lock(|kernel| *kernel = Some(Arc::clone(&router)));
        Ok(router)
    },
};

/// Returns the settings that the XDP programs need, derived from the function's settings.
///
/// # Errors
/// Returns the error in the function's settings.
pub(super) fn router_settings(mut table: toml::Table) -> Result<RouterSettings, SettingsError> {
    // Only the control plane reads the routes, of which there may be a million.
    if table.get("routes").and_then(toml::Value::as_str) != Some(KERNEL) {
        table.remove("routes");
    }
    let checked = settings::<Settings>(table)?.check()?;
    let is_plain = |(number, it): (usize, &Interface)| {
        usize::from(it.port) == number && it.vlan.is_none() && it.table == 0
    };
    if !checked.interfaces.iter().enumerate().all(is_plain) {
        return Err(SettingsError(
            "interface: the kernel supports no `vlan`, no `table` and no other order of ports; leave `place` out".to_string(),
        ));
    }
    let interfaces = checked.interfaces.iter().map(|it| RouterInterface {
        mac: it.mac.0,
        mtu: it.mtu,
        listens: it.tap.is_some(),
    });
    Ok(RouterSettings {
        interfaces: interfaces.collect(),
        flow_seed: HashKey::of_process().seed(),
        blocks_v4: v4::MOST_BLOCKS,
        hops: MOST_HOPS,
        shares: MOST_GROUPS * BUCKETS,
    })
}

/// Copies the IPv4 table's entries of a changed prefix to the kernel's table.
pub(super) fn copy_v4(kernel: &KernelRouter, fib: &v4::Fib, prefix: PrefixV4) {
    for index in prefix.network() >> 8..=prefix.last() >> 8 {
        let bits = fib.first_bits(index as usize);
        if let Some(block) = u32::from(bits).checked_sub(NextHop::MOST + 1) {
            let block = block as usize;
            for (last, bits) in fib.block_bits(block).enumerate() {
                kernel.set_in_block_v4(block, last, bits);
            }
        }
        kernel.set_first_v4(index as usize, bits);
    }
}

/// Sets the next hop of an IPv6 prefix in the kernel's table; none removes the prefix.
pub(super) fn set_v6(
    kernel: &KernelRouter,
    prefix: PrefixV6,
    hop: Option<NextHop>,
) -> Result<(), Refused> {
    let hop = hop.map(|hop| hop.index() as u32);
    let set = kernel.set_v6(prefix.network().into(), prefix.length(), hop);
    set.map_err(|e| Refused::Kernel(e.to_string()))
}
