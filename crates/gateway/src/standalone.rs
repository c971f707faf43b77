//! A gateway without sockets, threads and clocks, which runs only when its caller calls it. Tests and fuzz targets use
//! it to check that its tables agree after any input.

use super::pfcp::{Counts, Node};
use super::{Control, Gateway, Match, Plane, Settings, Wish};
use super::{gtpc, signalling::Sent};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use taut_function::{Context, Function, Handler, Punted, Send, settings};
use taut_port::Batch;

/// The data plane and control plane of a gateway, and PFCP and GTP-C if they are configured.
pub struct Detached {
    gateway: Gateway,
    plane: Plane,
    slow: Option<Box<dyn Handler>>,
    control: Control,
    node: Option<Node>,
    gtpc: Option<gtpc::Node>,
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").finish_non_exhaustive()
    }
}

impl Detached {
    /// Creates a gateway from the function's settings. Sockets that the settings name are not opened.
    ///
    /// # Errors
    /// Returns the error in the settings, or the requirement that the machine lacks.
    pub fn new(table: toml::Table) -> Result<Self, String> {
        let settings: Settings = settings(table).map_err(|e| e.0)?;
        let mut gateway = Gateway::new(settings.check().map_err(|e| e.0)?);
        let mut control = gateway.start().map_err(|e| e.to_string())?;
        control.never_wait();
        let plane = gateway.plane.take().ok_or("no data path")?;
        let mut detached = Self {
            slow: gateway.handler(),
            gateway,
            plane,
            control,
            node: None,
            gtpc: None,
        };
        detached.restart(Instant::now())?;
        Ok(detached)
    }

    /// Restarts the gateway without bearers, associations and sessions. Its random choices then repeat those of the
    /// first start.
    ///
    /// # Errors
    /// Returns the part of the earlier state that could not be removed.
    pub fn restart(&mut self, now: Instant) -> Result<(), String> {
        let all: Vec<_> = self.control.bearers().collect();
        let mut all: Vec<_> = all.iter().map(|b| Wish::Remove(b.matched)).collect();
        let classifiers = self.control.classifiers();
        all.extend(
            classifiers
                .into_iter()
                .map(|number| Wish::Classifier(number, None)),
        );
        self.control.grant(&all).map_err(|e| e.1.to_string())?;
        self.take_changes();
        while self.control.event().is_some() {}
        self.gtpc = self.gateway.checked.gtpc.as_ref().map(|terms| {
            let counts = Arc::new(gtpc::Counts::default());
            self.control.gtpc = Some(Arc::clone(&counts));
            let mut gtpc = gtpc::Node::new(terms, counts, now);
            gtpc.random = fastrand::Rng::with_seed(2);
            gtpc
        });
        self.node = self.gateway.checked.sessions.as_ref().map(|terms| {
            let counts = Arc::new(Counts::default());
            self.control.signalling = Some(Arc::clone(&counts));
            let mut node = Node::new(terms, counts, now);
            node.random = fastrand::Rng::with_seed(1);
            node
        });
        match (self.control.in_use(), self.kept()) {
            ((0, 0, 0), 0) => Ok(()),
            left => Err(format!(
                "bearers, paths, meters and packets of none: {left:?}"
            )),
        }
    }

    /// Processes a batch in the data plane as [`taut_function::Function::process`] does.
    pub fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.plane.process(batch, context);
    }

    /// Sends the slow path's reply to a punted packet as [`Handler::handle`] does.
    pub fn answer(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        let slow = self.slow.as_mut();
        slow.is_some_and(|slow| slow.handle(punted, send))
    }

    /// Returns the number of packets that wait only for a batch, as [`taut_function::Function::held`] does.
    pub fn held(&self) -> usize {
        self.plane.held_back()
    }

    /// Returns the number of packets that are buffered until their users are reached.
    pub fn kept(&self) -> usize {
        self.plane.held.len()
    }

    /// Returns the control plane of the bearers.
    pub fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Processes a PFCP message; returns the response, if there is one.
    pub fn hear(&mut self, message: &[u8], from: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        let node = self.node.as_mut().filter(|node| node.knows(from))?;
        node.handle(message, from, now, &mut self.control)
    }

    /// Processes a GTP-C datagram; returns the messages that it causes, with their destinations.
    pub fn hear_gtpc(&mut self, datagram: &[u8], from: SocketAddr, now: Instant) -> Vec<Sent> {
        let mut messages = Vec::new();
        if let (Some(gtpc), Some(node)) = (&mut self.gtpc, &mut self.node)
            && gtpc.knows(from)
        {
            gtpc.handle(datagram, from, now, node, &mut self.control, &mut messages);
        }
        messages
    }

    /// Runs the timers of GTP-C, after those of PFCP; returns the messages that are due, with their destinations.
    pub fn look_gtpc(&mut self, now: Instant) -> Vec<Sent> {
        let mut messages = Vec::new();
        if let (Some(gtpc), Some(node)) = (&mut self.gtpc, &mut self.node) {
            gtpc.look(now, node, &mut self.control, &mut messages);
        }
        messages
    }

    /// Runs the timers of PFCP; returns the messages that are due, with their destinations.
    pub fn look(&mut self, now: Instant) -> Vec<(SocketAddr, Vec<u8>)> {
        let node = self.node.as_mut();
        node.map_or_else(Vec::new, |node| node.look(now, &mut self.control))
    }

    /// Returns the gateway's own PFCP requests that are due, with their destinations. A response makes space for more
    /// of them.
    pub fn due(&mut self, now: Instant) -> Vec<(SocketAddr, Vec<u8>)> {
        let node = self.node.as_mut();
        node.map_or_else(Vec::new, |node| node.due(now))
    }

    /// Returns true if more PFCP work is pending than one pass processes.
    pub fn is_behind(&self) -> bool {
        self.node.as_ref().is_some_and(Node::is_behind)
    }

    /// Makes the data plane apply every pending change.
    pub fn take_changes(&mut self) {
        while self.plane.take_changes() {}
    }

    /// Returns the number of packets counted under all outcomes together.
    pub fn counted(&self) -> u64 {
        self.plane.counts.iter().sum()
    }

    /// Returns the counts of PFCP messages, each with its name.
    pub fn signalling(&self) -> Vec<(&'static str, u64)> {
        let counts = self.control.signalling.as_ref();
        counts.map_or_else(Vec::new, |counts| counts.read())
    }

    /// Returns the counts of GTP-C messages, each with its name.
    pub fn signalling_gtpc(&self) -> Vec<(&'static str, u64)> {
        let counts = self.control.gtpc.as_ref();
        counts.map_or_else(Vec::new, |counts| counts.read())
    }

    /// Checks that the data plane and the control plane agree on every bearer, once all changes are applied.
    ///
    /// # Errors
    /// Returns a description of the first difference.
    pub fn tables_agree(&self) -> Result<(), String> {
        let (table, paths) = (&self.plane.table, &self.plane.paths);
        let (len, room) = self.control.occupancy();
        if table.len() != len || len > room {
            return Err(format!(
                "{} bearers, of {len}, room for {room}",
                table.len()
            ));
        }
        for bearer in self.control.bearers() {
            let key = bearer.matched.key();
            let slot = table.get(key).ok_or(format!("no {bearer:?}"))?;
            let path = paths.get(slot.path).filter(|_| slot.path != 0);
            if let super::Action::Classify { number } = bearer.action {
                let place = (number as usize).wrapping_sub(1);
                let found = self.plane.classifiers.get(place).and_then(Option::as_ref);
                let wanted = self.control.classifier(number);
                let is_same = |(a, b)| Arc::ptr_eq(a, b);
                if !found.zip(wanted).is_some_and(is_same) {
                    return Err(format!("{found:?} for {wanted:?}"));
                }
            }
            let place = (slot.teid as usize).wrapping_sub(1);
            let sources = self.plane.sources.get(place).copied();
            if bearer.sources().is_some() && sources != bearer.sources() {
                return Err(format!("{sources:?} for {bearer:?}"));
            }
            if slot.key != key || path != bearer.path() {
                return Err(format!("{slot:?} on {path:?} for {bearer:?}"));
            }
            let meters = self.control.meters_of(key);
            let found = self.plane.policing.meters_of(key);
            if meters != found || slot.is_metered() != (meters != super::policing::UNMETERED) {
                return Err(format!("{slot:?} by {found:?}, not {meters:?}"));
            }
        }
        Ok(())
    }

    /// Checks that the sessions of peers are within their limits, and that the table has the bearers of all sessions
    /// and no others.
    ///
    /// # Errors
    /// Returns a description of the first violated limit or of a wrong bearer.
    pub fn sessions_hold(&self) -> Result<(), String> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        let matches: Vec<Match> = node.check(&self.control)?;
        if let Some(gtpc) = &self.gtpc {
            gtpc.check(node)?;
        }
        let (len, _) = self.control.occupancy();
        let classified = self.control.bearers();
        let classified = classified
            .filter(|it| matches!(it.action, super::Action::Classify { .. }))
            .count();
        if classified != self.control.classifiers().len() {
            return Err(format!(
                "{classified} tunnels and users are classified, by other classifiers"
            ));
        }
        if matches.len() != len {
            return Err(format!("{len} bearers, {} of sessions", matches.len()));
        }
        Ok(())
    }
}
