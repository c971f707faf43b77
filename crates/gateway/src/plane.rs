//! The data plane of a worker: its copy of the table, its state, and the changes that it applies between batches.
//! `plane/pass.rs` has the path of a batch through the data plane.

mod act;
mod classify;
mod pass;

use super::answer::{Messages, Way};
use super::bearer::{Bearer, Kind, Sources, is_of_rule};
use super::buffer::HeldPackets;
use super::change::{Change, Receiver};
use super::classifier::Classifier;
use super::control::{Control, Wish};
use super::kernel::Kernel;
use super::known_paths::KnownPaths;
use super::outcome::{Counts, OUTCOMES, Outcome};
use super::parser::Own;
use super::policing::Policing;
use super::settings::{Checked, Others};
use super::state::Together;
use super::table::Table;
use std::sync::Arc;
use taut_function::macs::Macs;
use taut_port::{Batch, PoolHandle, PortError};

/// The number of buffers in the gateway's own pool, for end markers and for frames that grow beyond a port's headroom.
const POOL_SLOTS: u32 = 2048;

/// The data plane of a worker.
pub(super) struct Plane {
    pub(super) table: Table,
    pub(super) paths: KnownPaths,
    pub(super) policing: Policing,
    pub(super) own: Own,
    /// The addresses to which no user packet is forwarded, such as those of the gateway.
    closed: Own,
    /// The numbers of the ports for tunnel packets; None if all ports are for tunnel packets.
    tunnels: Option<Vec<usize>>,
    /// The MAC address of each port, for replies to ARP requests for the port's own addresses.
    macs: Macs,
    mtu: usize,
    others: Others,
    pub(super) pool: PoolHandle,
    /// The messages that wait for the slow path to send them.
    pub(super) messages: Messages,
    pub(super) receiver: Receiver,
    pub(super) counts: Counts,
    kernel: Kernel,
    /// The classifiers, indexed by number minus 1.
    pub(super) classifiers: Vec<Option<Arc<Classifier>>>,
    /// The source addresses that packets from tunnels must have, indexed by number minus 1.
    pub(super) sources: Vec<Sources>,
    pub(super) held: HeldPackets,
    /// True while released packets pass through the data plane; they must not be buffered again.
    is_draining: bool,
    /// Packets that are temporarily removed from the batch that is being processed.
    aside: Batch,
    /// The number of processed batches. The number selects one packet of each batch, from which the port and MAC
    /// addresses of the packet's peer are learned.
    batches: usize,
}

impl Plane {
    pub(super) fn new(
        checked: &Checked,
        receiver: Receiver,
        kernel: Kernel,
        Together {
            meters,
            held,
            peers,
        }: Together,
    ) -> Result<Self, PortError> {
        let settings = &checked.settings;
        let own = Own::new(&checked.own);
        Ok(Self {
            classifiers: vec![None; settings.metered_bearers()],
            sources: vec![Sources::default(); settings.checked_bearers()],
            held: HeldPackets::new(held)?,
            is_draining: false,
            aside: Batch::new(),
            batches: 0,
            table: Table::of_gateway(settings.matching, settings.bearers, &checked.own),
            paths: KnownPaths::new(&own, peers),
            policing: Policing::new(settings.metered_bearers(), meters),
            own,
            closed: Own::new(&checked.closed),
            tunnels: settings.tunnels.clone(),
            macs: checked.macs.clone(),
            mtu: settings.mtu,
            others: settings.others,
            pool: PoolHandle::new(POOL_SLOTS, false)?,
            messages: Messages::new(),
            receiver,
            counts: [0; OUTCOMES.len()],
            kernel,
        })
    }

    /// Loads the bearers of a file, all or none; errors name the line.
    pub(super) fn load(
        &mut self,
        control: &mut Control,
        bearers: &[(usize, Bearer)],
    ) -> Result<(), (usize, String)> {
        /// The number of bearers of a file that are added as one set of changes. The changes of a set fit into the ring
        /// to the worker, even if each bearer needs a new path.
        const AT_A_TIME: usize = 1024;
        for part in bearers.chunks(AT_A_TIME) {
            let wishes: Vec<_> = part.iter().map(|(_, bearer)| Wish::Add(*bearer)).collect();
            let granted = control.grant(&wishes);
            granted.map_err(|(number, e)| (part[number].0, e.to_string()))?;
            while self.take_changes() {}
        }
        Ok(())
    }

    /// Applies one of the changes that copy the current state of the table to an additional worker.
    pub(super) fn copy(&mut self, change: Change) {
        match change {
            Change::Set(slot) => drop(self.table.set(slot)),
            Change::Path(number, path) => self.paths.set(number, path),
            Change::Sources(number, sources) => set_at(&mut self.sources, number, sources),
            Change::Police { key, meters } => self.policing.assign(key, meters),
            Change::Classifier { number, classifier } => {
                set_at(&mut self.classifiers, number, classifier)
            }
            // These changes are no part of a table's state.
            Change::Remove(_)
            | Change::Meter { .. }
            | Change::EndMarker { .. }
            | Change::Echo { .. }
            | Change::Forget(_) => {}
        }
    }

    /// Returns the number of created messages and released packets, which wait only for a batch to leave with.
    pub(super) fn held_back(&self) -> usize {
        self.messages.len() + self.held.due()
    }

    /// Applies a few of the pending changes of the bearer table; returns true if there were any.
    #[inline(always)]
    pub(super) fn take_changes(&mut self) -> bool {
        let mut any = false;
        let (table, paths) = (&mut self.table, &mut self.paths);
        let policing = &mut self.policing;
        let (messages, pool) = (&mut self.messages, &self.pool);
        let (kernel, tunnels) = (&self.kernel, self.tunnels.as_deref());
        let (classifiers, held) = (&mut self.classifiers, &mut self.held);
        let sources_of = &mut self.sources;
        let mut in_vain = 0;
        self.receiver.ring.take(|change| {
            any = true;
            match change {
                Change::Set(slot) => {
                    let has_room = table.set(slot);
                    debug_assert!(has_room, "whoever decides has counted");
                    if is_of_rule(slot.key) && held.len() != 0 {
                        match slot.kind() {
                            Kind::Hold => {}
                            Kind::Encapsulate | Kind::Relay | Kind::Decapsulate => {
                                held.release(slot.key);
                            }
                            _ => in_vain += held.forget(slot.key),
                        }
                    }
                }
                Change::Remove(key) => {
                    table.remove(key);
                    if is_of_rule(key) && held.len() != 0 {
                        in_vain += held.forget(key);
                    }
                }
                Change::Forget(key) => in_vain += held.forget(key),
                Change::Classifier { number, classifier } => {
                    set_at(classifiers, number, classifier)
                }
                Change::Echo { path, sequence } => {
                    paths.peers.ask(path, sequence);
                    if let Some(way) = way_to(path, paths, kernel, tunnels) {
                        messages.add_echo(pool, &way, sequence);
                    }
                }
                Change::Path(number, path) => paths.set(number, path),
                Change::Sources(number, sources) => set_at(sources_of, number, sources),
                // The control plane has already applied this change.
                Change::Meter { .. } => {}
                Change::Police { key, meters } => policing.assign(key, meters),
                Change::EndMarker { path, teid } => {
                    if let Some(way) = way_to(path, paths, kernel, tunnels) {
                        messages.add_end_marker(pool, &way, teid);
                    }
                }
            }
        });
        if in_vain != 0 {
            self.counts[Outcome::HeldInVain as usize] += in_vain as u64;
            self.receiver.outcomes.publish(&self.counts);
        }
        any
    }
}

/// Returns the egress port and MAC addresses for a frame that the gateway sends to a path's peer. The port is the one
/// at which the peer's last frame arrived. If there is no such frame, it is the port that packets to the peer last
/// used, or else the first port; it is always a tunnel port. The MAC addresses are known if the peer's last frame
/// arrived at that port.
#[cold]
fn way_to(
    number: u16,
    paths: &KnownPaths,
    kernel: &Kernel,
    tunnels: Option<&[usize]>,
) -> Option<Way> {
    let path = paths.get(number)?;
    let is_of_tunnels = |port: &usize| tunnels.is_none_or(|ports| ports.contains(port));
    let first = tunnels
        .and_then(|ports| ports.first().copied())
        .unwrap_or(0);
    let heard = paths.peers.heard(number);
    let heard = heard.filter(|it| is_of_tunnels(&it.port));
    let left = || {
        let in_kernel = kernel.as_ref().and_then(|it| it.port_of(number));
        let left = in_kernel.or_else(|| paths.peers.left(number));
        left.filter(is_of_tunnels)
    };
    let port = heard.map(|it| it.port).or_else(left).unwrap_or(first);
    Some(Way {
        port: u8::try_from(port).ok()?,
        path,
        macs: heard.map_or_else(Default::default, |it| (it.own, it.mac)),
    })
}

/// Stores a value under its number, which begins at 1.
fn set_at<T>(all: &mut [T], number: u32, value: T) {
    if let Some(place) = all.get_mut((number as usize).wrapping_sub(1)) {
        *place = value;
    }
}
