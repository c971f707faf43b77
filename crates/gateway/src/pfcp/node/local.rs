//! Sessions of the gateway's own control plane, GTP-C, which writes the same rules as a remote control plane, but sends
//! no messages.

use super::super::refusal::Refusal;
use super::super::session::{CreatedPdr, Session};
use super::{LOCAL, Node, Told, clear};
use crate::Control;
use std::time::Instant;
use taut_wire::pfcp::{Cause, Writer};

impl Node {
    /// Creates a session with the rules in `rules`; `cp_seid` is the session's number in the control plane. Returns the
    /// session's number in this node, and the identifiers and addresses that the gateway has chosen.
    ///
    /// # Errors
    /// Returns the PFCP cause with which the request of a remote control plane would be refused.
    pub fn establish_local(
        &mut self,
        cp_seid: u64,
        rules: &Writer,
        now: Instant,
        control: &mut Control,
    ) -> Result<(u64, Vec<CreatedPdr>), Cause> {
        let is_full = self.sessions.len() >= self.terms.sessions
            || self.sessions_of(LOCAL) >= self.terms.peer_sessions;
        if is_full {
            return Err(Cause::NO_RESOURCES);
        }
        let seid = self.next_seid;
        let session = Session::new(seid, cp_seid, LOCAL);
        let created = self.put_local(session, rules, now, control)?;
        self.next_seid += 1;
        Ok((seid, created))
    }

    /// Changes a session by the rules in `rules`, as a request of a remote control plane does.
    ///
    /// # Errors
    /// Returns the PFCP cause of the refusal as [`Self::establish_local`] does; a refused change has no effect.
    pub fn modify_local(
        &mut self,
        seid: u64,
        rules: &Writer,
        now: Instant,
        control: &mut Control,
    ) -> Result<Vec<CreatedPdr>, Cause> {
        let session = self.sessions.get(&seid);
        let session = session.filter(|it| it.owner == Some(LOCAL)).cloned();
        let session = session.ok_or(Cause::SESSION_NOT_FOUND)?;
        self.put_local(session, rules, now, control)
    }

    /// Ends a session, unless it has ended already. If the data plane accepts no changes now, the session ends once it
    /// accepts changes again.
    pub fn delete_local(&mut self, seid: u64, control: &mut Control) {
        let Some(session) = self.sessions.get_mut(&seid) else {
            return;
        };
        if session.owner != Some(LOCAL) {
            return;
        }
        if clear(session, control).is_ok() {
            self.remove(seid, LOCAL);
            return;
        }
        session.owner = None;
        let bearers = session.followed.bearers.len();
        self.ended += 1;
        self.count(LOCAL, (1, bearers), (0, 0));
    }

    /// Returns true if there is a pool of user addresses of this IP version.
    pub fn has_pool(&self, is_v4: bool) -> bool {
        self.pools.has(is_v4)
    }

    /// Returns the numbers of all sessions of the gateway's own control plane, each with the control plane's number for
    /// it.
    pub fn local_sessions(&self) -> impl Iterator<Item = (u64, u64)> {
        let sessions = self.sessions.values();
        sessions
            .filter(|it| it.owner == Some(LOCAL))
            .map(|it| (it.up_seid, it.cp_seid))
    }

    /// Returns the next notification about a session of the gateway's own control plane.
    pub fn told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    fn put_local(
        &mut self,
        session: Session,
        rules: &Writer,
        now: Instant,
        control: &mut Control,
    ) -> Result<Vec<CreatedPdr>, Cause> {
        let (moment, seid) = (self.moment(now, control), session.up_seid);
        let made = self.change(session, rules.elements(), control, &moment);
        let (session, asked) = made.map_err(|refusal: Refusal| refusal.cause)?;
        self.put(seid, session);
        Ok(asked.created)
    }
}
