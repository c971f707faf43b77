//! Responses to the messages of peers: heartbeats and associations (3GPP TS 29.244 sections 6.2 and 7.4) here, requests
//! about sessions in `sessions.rs`.

use super::super::counts::Counted;
use super::super::refusal::Refusal;
use super::{Node, element, node_id};
use crate::Control;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use taut_wire::Error;
use taut_wire::pfcp::{Cause, ElementType, Message, MessageType, NodeId, Writer};

/// The features of this node (TS 29.244 section 8.2.25): delayed downlink data notification (DDND), choice of tunnel
/// identifiers (FTUP) and end markers (EMPU).
const FEATURES: [u8; 2] = [0x12, 0x01];
/// The features of this node if it has a pool of user addresses: those of [`FEATURES`], and choice of user addresses
/// (UEIP).
const FEATURES_WITH_POOLS: [u8; 4] = [0x12, 0x01, 0x04, 0];
/// The flag in a peer's response to a report that requests a drop of the buffered packets (TS 29.244 section 8.2.32).
const DROP_BUFFERED: u8 = 1;

impl Node {
    /// Returns the response to a peer's message, if there is one.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        from: SocketAddr,
        now: Instant,
        control: &mut Control,
    ) -> Option<Vec<u8>> {
        let peer = self.peers.get_mut(&from.ip())?;
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(Error::BadVersion { .. }) => {
                let sequence = Message::sequence_of_other_version(bytes);
                let kind = MessageType::VERSION_NOT_SUPPORTED;
                return Writer::message(kind, None, sequence).finish().ok();
            }
            // A sender that writes a wrong length could not parse the response (section 7.6.2).
            Err(_) => {
                self.counts.add(Counted::Unreadable, 1);
                return None;
            }
        };
        peer.heard = now;
        let key = (from.port(), message.sequence);
        if let Some(response) = peer.responses.find(key, bytes, now) {
            self.counts.add(Counted::SentAgain, 1);
            return Some(response);
        }
        let response = self.answer(&message, from.ip(), now, control);
        self.counts.set(Counted::Sessions, self.sessions.len());
        let response = response?.finish().ok()?;
        let is_heartbeat = message.message_type == MessageType::HEARTBEAT_REQUEST;
        if let Some(peer) = self.peers.get_mut(&from.ip()).filter(|_| !is_heartbeat) {
            let forgotten = peer.responses.keep(key, bytes, &response, now);
            self.counts.add(Counted::Forgotten, forgotten);
        }
        Some(response)
    }

    /// Processes a peer's response to a report.
    fn reported(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) {
        let peer = self.peers.get_mut(&from);
        if !peer.is_some_and(|peer| peer.requests.answered(message.sequence)) {
            return;
        }
        let flags = element(message, ElementType::PFCPSRRSP_FLAGS);
        let flags = flags.ok().flatten().and_then(|flags| flags.u8().ok());
        if let Some((_, session)) = self.session(message, from)
            && flags.is_some_and(|flags| flags & DROP_BUFFERED != 0)
            && control.grant(&session.forget_held()).is_ok()
        {
            session.tell_again();
        }
    }

    fn answer(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        now: Instant,
        control: &mut Control,
    ) -> Option<Writer> {
        let response = message.message_type.response();
        let sequence = message.sequence;
        match message.message_type {
            MessageType::HEARTBEAT_REQUEST => {
                self.heard(message, from, control);
                let mut writer = Writer::message(response, None, sequence);
                let stamp = self.recovery.to_be_bytes();
                writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
                Some(writer)
            }
            MessageType::ASSOCIATION_SETUP_REQUEST => {
                let done = self.set_up(message, from, now, control);
                let mut writer = self.node_response(response, sequence, done);
                let stamp = self.recovery.to_be_bytes();
                writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
                if done.is_ok() {
                    let features: &[u8] = match self.terms.pools.is_empty() {
                        true => &FEATURES,
                        false => &FEATURES_WITH_POOLS,
                    };
                    writer.element(ElementType::UP_FUNCTION_FEATURES, features);
                }
                Some(writer)
            }
            MessageType::ASSOCIATION_UPDATE_REQUEST => {
                let done = self.associated(from).and_then(|()| node_id(message));
                Some(self.node_response(response, sequence, done))
            }
            MessageType::ASSOCIATION_RELEASE_REQUEST => {
                let done = self.associated(from).and_then(|()| node_id(message));
                if done.is_ok() {
                    self.forget(from, control);
                }
                Some(self.node_response(response, sequence, done))
            }
            MessageType::PFD_MANAGEMENT_REQUEST
            | MessageType::NODE_REPORT_REQUEST
            | MessageType::SESSION_SET_DELETION_REQUEST => {
                let done = Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED));
                Some(self.node_response(response, sequence, done))
            }
            MessageType::HEARTBEAT_RESPONSE => {
                let peer = self.peers.get_mut(&from)?;
                if peer.heartbeat.take_if(|h| h.sequence == sequence).is_some() {
                    peer.next_heartbeat = now + self.terms.heartbeat?;
                    self.heard(message, from, control);
                }
                None
            }
            _ => self.answer_about_sessions(message, from, now, control),
        }
    }

    fn answer_about_sessions(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        now: Instant,
        control: &mut Control,
    ) -> Option<Writer> {
        match message.message_type {
            MessageType::SESSION_ESTABLISHMENT_REQUEST => {
                let moment = self.moment(now, control);
                Some(self.establish(message, from, control, &moment))
            }
            MessageType::SESSION_MODIFICATION_REQUEST => {
                let moment = self.moment(now, control);
                Some(self.modify(message, from, control, &moment))
            }
            MessageType::SESSION_DELETION_REQUEST => {
                let moment = self.moment(now, control);
                Some(self.delete(message, from, control, &moment))
            }
            MessageType::SESSION_REPORT_RESPONSE | MessageType::NODE_REPORT_RESPONSE => {
                self.reported(message, from, control);
                None
            }
            MessageType::SESSION_REPORT_REQUEST => {
                let response = message.message_type.response();
                let mut writer = Writer::message(response, Some(0), message.sequence);
                self.write_outcome(&mut writer, Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED)));
                Some(writer)
            }
            // These are responses to requests that this node never sends, and unknown messages (section 7.6.4).
            _ => None,
        }
    }

    fn node_response(
        &self,
        response: MessageType,
        sequence: u32,
        done: Result<(), Refusal>,
    ) -> Writer {
        let mut writer = Writer::message(response, None, sequence);
        writer.element(ElementType::NODE_ID, &NodeId(self.terms.node_id).emit());
        self.write_outcome(&mut writer, done);
        writer
    }

    /// Records that a message of a peer has arrived. Detects a restart of the peer by the message, and then ends the
    /// peer's sessions.
    fn heard(&mut self, message: &Message<'_>, from: IpAddr, control: &mut Control) {
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok().flatten().and_then(|e| e.u32().ok());
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        if let (Some(stamp), Some(known)) = (stamp, known)
            && stamp != known
        {
            self.counts.add(Counted::Restarted, 1);
            self.forget(from, control);
        }
    }

    fn set_up(
        &mut self,
        message: &Message<'_>,
        from: IpAddr,
        now: Instant,
        control: &mut Control,
    ) -> Result<(), Refusal> {
        node_id(message)?;
        let stamp = element(message, ElementType::RECOVERY_TIME_STAMP)?;
        let missing = Refusal::missing(ElementType::RECOVERY_TIME_STAMP);
        let stamp = stamp.ok_or(missing)?.u32()?;
        let known = self.peers.get(&from).and_then(|peer| peer.association);
        let retained = element(message, ElementType::SESSION_RETENTION_INFORMATION)?.is_some();
        // Section 6.2.6.2.2: a new association begins without sessions, unless the request retains them.
        if known != Some(stamp) || !retained {
            let restarted = known.is_some_and(|known| known != stamp);
            self.counts.add(Counted::Restarted, u64::from(restarted));
            self.forget(from, control);
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.association = Some(stamp);
            peer.heartbeat = None;
            peer.next_heartbeat = self.terms.heartbeat.map_or(now, |interval| now + interval);
        }
        Ok(())
    }
}
