//! The gateway with its fast path in the kernel. XDP programs forward packets by the gateway's bearers. The taut
//! process handles the packets that the programs do not forward, and sends all replies.

use super::bearer::is_of_rule;
use super::change::{Change, Mirror};
use super::policing::{METERS_PER_BEARER, UNMETERED};
use super::settings::{Checked, Others, Settings};
use super::slot::Slot;
use super::table::Matching;
use std::io;
use std::sync::Arc;
use taut_function::{SettingsError, UpcallVersion, settings};
use taut_xdp::gateway::{GatewaySettings, KernelBearer, KernelGateway, MOST_OWN};

/// The XDP programs of the gateway. The taut process stores the gateway's bearers in the programs' maps as well as in
/// its own table.
pub(super) const UPCALL: UpcallVersion = UpcallVersion {
    check: |table| gateway_settings(table).map(drop),
    make: |table, ports, shared| {
        let gateway = Arc::new(KernelGateway::new(gateway_settings(table)?, ports)?);
        shared.lock(|kernel| *kernel = Some(Arc::clone(&gateway)));
        Ok(gateway)
    },
};

/// Returns the settings that the XDP programs need.
///
/// # Errors
/// Fails if a setting is wrong, or if the XDP programs do not support a setting.
fn gateway_settings(table: toml::Table) -> Result<GatewaySettings, SettingsError> {
    let settings: Settings = settings(table)?;
    let answers_neighbours = settings.mac.is_some();
    let Checked {
        own,
        closed,
        settings,
        ..
    } = settings.check()?;
    let wrong = |text: &str| Err(SettingsError(text.to_string()));
    if settings.matching != Matching::Hash {
        return wrong("matching: the kernel supports only hash: leave it out");
    }
    let v4 = own.iter().filter(|address| address.is_ipv4()).count();
    if v4.max(own.len() - v4) > MOST_OWN {
        return wrong(&format!(
            "address: in the kernel a gateway has {MOST_OWN} of each IP version at most"
        ));
    }
    Ok(GatewaySettings {
        closed: closed[own.len()..].to_vec(),
        own,
        tunnels: settings.tunnels.clone(),
        bearers: settings.bearers,
        meters: settings.metered_bearers() * METERS_PER_BEARER,
        checked: settings.checked_bearers(),
        mtu: settings.mtu,
        passes_others: settings.others == Others::Forward,
        answers_neighbours,
    })
}

impl Mirror for Arc<KernelGateway> {
    fn make(&self, change: &Change) -> io::Result<()> {
        match *change {
            // Packets that need a classifier are passed to the worker by an upcall.
            Change::Set(Slot { key, .. }) | Change::Remove(key) | Change::Police { key, .. }
                if is_of_rule(key) =>
            {
                Ok(())
            }
            Change::Set(slot) => self.set(slot.key, bearer(slot)),
            Change::Remove(key) => gone(self.remove(key)),
            Change::Path(number, path) => self.set_path(number, path.local, path.remote),
            Change::Sources(number, sources) => self.set_sources(number, sources.v4, sources.v6),
            Change::Meter { number, cost } => self.set_meter(number, cost),
            Change::Police {
                key,
                meters: UNMETERED,
            } => gone(self.unmeter(key)),
            Change::Police { key, meters } => self.meter(key, meters),
            // The worker sends these messages itself.
            Change::EndMarker { .. }
            | Change::Echo { .. }
            | Change::Classifier { .. }
            | Change::Forget(_) => Ok(()),
        }
    }
}

/// Returns the result of a removal, with the removal of a missing entry as a success.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn bearer(slot: Slot) -> KernelBearer {
    KernelBearer {
        teid: slot.teid,
        path: slot.path,
        qfi: slot.qfi,
        action: slot.action,
    }
}
