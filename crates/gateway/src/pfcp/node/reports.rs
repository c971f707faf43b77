//! The work of the node that no request triggers: heartbeats, reports to control planes, and the supervision of peers
//! (3GPP TS 29.244 sections 6.2.2, 7.4.5 and 7.5.8.3).

use super::super::counts::Counted;
use super::super::echo::Became;
use super::super::urr::Moment;
use super::{Heartbeat, LOCAL, Node, Told};
use crate::Control;
use crate::event::Event;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use taut_wire::pfcp::{ElementType, MessageType, NodeId, Writer, emit_gtpu_peer};

/// The mask of sequence numbers, which have 24 bits (TS 29.244 section 7.2.2.2).
const SEQUENCE_MASK: u32 = 0xff_ffff;
/// Types of session reports (TS 29.244 section 8.2.21), and of node reports (section 8.2.69).
const DOWNLINK_DATA: u8 = 1;
const USAGE: u8 = 2;
const PATH_FAILURE: u8 = 1;
const PATH_RECOVERY: u8 = 2;
/// The number of events and timers that are processed before the next message: the table is locked during this, and
/// messages of peers wait.
const MOST_AT_A_TIME: usize = 512;

impl Node {
    /// Runs the timers: returns due heartbeats (TS 29.244 section 6.2.2) with their destinations, and ends the
    /// associations of idle peers.
    pub fn look(&mut self, now: Instant, control: &mut Control) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut messages = Vec::new();
        let mut silent = Vec::new();
        for (address, peer) in &mut self.peers {
            if peer.association.is_none() {
                continue;
            }
            let silence = now.saturating_duration_since(peer.heard);
            if self.terms.silence.is_some_and(|most| silence >= most) {
                silent.push(*address);
                continue;
            }
            let Some(interval) = self.terms.heartbeat else {
                continue;
            };
            let sequence = match &mut peer.heartbeat {
                None if now < peer.next_heartbeat => continue,
                Some(asked) if now < asked.due => continue,
                Some(asked) if asked.sent > self.terms.repeats => {
                    self.counts.add(Counted::Unanswered, 1);
                    peer.heartbeat = None;
                    peer.next_heartbeat = now + interval;
                    continue;
                }
                Some(asked) => {
                    asked.sent += 1;
                    asked.due = now + self.terms.response_time;
                    asked.sequence
                }
                None => {
                    let sequence = self.next_sequence;
                    self.next_sequence = (sequence + 1) & SEQUENCE_MASK;
                    peer.heartbeat = Some(Heartbeat {
                        sequence,
                        sent: 1,
                        due: now + self.terms.response_time,
                    });
                    sequence
                }
            };
            let mut writer = Writer::message(MessageType::HEARTBEAT_REQUEST, None, sequence);
            let stamp = self.recovery.to_be_bytes();
            writer.element(ElementType::RECOVERY_TIME_STAMP, &stamp);
            messages.extend(writer.finish().ok().map(|message| (peer.address, message)));
        }
        self.look_at_packets(now, control);
        messages.extend(self.due(now));
        for address in silent {
            self.counts.add(Counted::Silent, 1);
            self.forget(address, control);
        }
        if self.ended > 0 {
            self.sweep(control);
        }
        self.counts.set(Counted::Sessions, self.sessions.len());
        messages
    }

    /// Returns the requests of this node that are due, with their destinations: retransmissions first, and then new
    /// requests up to the limit of the window. A response makes space in the window, so this function is called again
    /// after each response.
    pub fn due(&mut self, now: Instant) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut messages, mut given_up) = (Vec::new(), 0);
        let again = (self.terms.response_time, self.terms.repeats);
        for peer in self.peers.values_mut() {
            while let Some(message) = peer.requests.next(now, again, &mut given_up) {
                messages.push((peer.address, message));
            }
        }
        if given_up > 0 {
            self.counts.add(Counted::GivenUp, given_up);
        }
        messages
    }

    /// Returns true if more work is pending than one pass processes, so that the next pass is due immediately.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Reports the events of workers, usage timers and tunnel peers to control planes.
    fn look_at_packets(&mut self, now: Instant, control: &mut Control) {
        let moment = self.moment(now, control);
        let mut left = MOST_AT_A_TIME;
        while left > 0 {
            left -= 1;
            match control.event() {
                None => break,
                Some(Event::Used { session, rule }) => self.look_at_usage(session, rule, &moment),
                Some(Event::Held { session, rule }) => {
                    let delay = self.sessions.get(&session).and_then(|it| it.delay(rule));
                    if let Some(delay) = delay {
                        self.delays.insert((now + delay, session, rule));
                    }
                }
                Some(Event::Echoed { remote }) => {
                    let echo = self.terms.echo;
                    let became = echo.and_then(|echo| self.echoes.answered(remote, now, &echo));
                    self.tell_of_peer(became);
                }
            }
        }
        while left > 0
            && let Some((session, rule)) = self.timers.next_until(now)
        {
            left -= 1;
            self.look_at_usage(session, rule, &moment);
        }
        self.is_behind = left == 0;
        while let Some((due, session, rule)) = self.delays.first().copied()
            && due <= now
        {
            self.delays.pop_first();
            self.tell_of_downlink(session, rule);
        }
        if let Some(echo) = self.terms.echo {
            for became in self.echoes.look(now, &echo, control) {
                self.tell_of_peer(Some(became));
                if let Became::Lost(remote) = became
                    && echo.drops_sessions
                {
                    self.drop_sessions_to(remote, control);
                }
            }
            self.counts.set(Counted::LostPeers, self.echoes.lost());
        }
        self.counts.set(Counted::Held, control.held.waiting());
    }

    fn look_at_usage(&mut self, seid: u64, rule: u32, moment: &Moment) {
        let Some(session) = self.sessions.get_mut(&seid) else {
            return;
        };
        let Some(urr) = session.urr(rule) else {
            return;
        };
        let before = urr.due;
        let triggers = urr.look(moment);
        let report = (triggers != 0).then(|| urr.report(triggers, moment));
        urr.arm(moment.now);
        let after = urr.due;
        self.timers.replace(before, after, (seid, rule));
        if let Some(report) = report {
            self.counts.add(Counted::UsageReports, 1);
            let kind = ElementType::USAGE_REPORT_IN_REQUEST;
            self.report(seid, USAGE, kind, &report);
        }
    }

    /// Notifies the control plane of packets buffered for a forwarding rule, if the rule still buffers packets.
    fn tell_of_downlink(&mut self, seid: u64, rule: u32) {
        let Some(session) = self.sessions.get(&seid) else {
            return;
        };
        if session.delay(rule).is_none() {
            return;
        }
        if session.owner == Some(LOCAL) {
            let (session, far) = (session.cp_seid, rule);
            self.told.push_back(Told::Buffered { session, far });
            return;
        }
        let mut report = Writer::group();
        for id in session.detected_for(rule) {
            report.element(ElementType::PDR_ID, &id.to_be_bytes());
        }
        self.counts.add(Counted::DownlinkReports, 1);
        let kind = ElementType::DOWNLINK_DATA_REPORT;
        self.report(seid, DOWNLINK_DATA, kind, &report);
    }

    /// Sends a report about a session to its control plane.
    fn report(&mut self, seid: u64, report_type: u8, kind: ElementType, report: &Writer) {
        let Some(session) = self.sessions.get(&seid) else {
            return;
        };
        let (to, cp_seid) = (session.owner, session.cp_seid);
        let request = MessageType::SESSION_REPORT_REQUEST;
        let sequence = self.sequence();
        let mut writer = Writer::message(request, Some(cp_seid), sequence);
        writer.element(ElementType::REPORT_TYPE, &[report_type]);
        writer.grouped(kind, report);
        self.request(to, sequence, writer);
    }

    fn sequence(&mut self) -> u32 {
        let sequence = self.next_sequence;
        self.next_sequence = (sequence + 1) & SEQUENCE_MASK;
        sequence
    }

    fn request(&mut self, to: Option<IpAddr>, sequence: u32, writer: Writer) {
        let peer = to.and_then(|to| self.peers.get_mut(&to));
        let message = writer.finish().ok();
        let is_under_way = peer
            .zip(message)
            .is_some_and(|(peer, message)| peer.requests.add(sequence, message));
        self.counts.add(Counted::GivenUp, u64::from(!is_under_way));
    }

    /// Notifies all associated peers that a tunnel peer was lost, or responds again (TS 29.244 section 7.4.5).
    fn tell_of_peer(&mut self, became: Option<Became>) {
        let (report_type, kind, remote) = match became {
            None => return,
            Some(Became::Lost(remote)) => {
                self.counts.add(Counted::PathFailures, 1);
                (
                    PATH_FAILURE,
                    ElementType::USER_PLANE_PATH_FAILURE_REPORT,
                    remote,
                )
            }
            Some(Became::Found(remote)) => (
                PATH_RECOVERY,
                ElementType::USER_PLANE_PATH_RECOVERY_REPORT,
                remote,
            ),
        };
        let peers = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.association.is_some());
        let peers: Vec<IpAddr> = peers.map(|(address, _)| *address).collect();
        for to in peers {
            let sequence = self.sequence();
            let mut writer = Writer::message(MessageType::NODE_REPORT_REQUEST, None, sequence);
            writer.element(ElementType::NODE_ID, &NodeId(self.terms.node_id).emit());
            writer.element(ElementType::NODE_REPORT_TYPE, &[report_type]);
            let mut report = Writer::group();
            report.element(ElementType::REMOTE_GTPU_PEER, &emit_gtpu_peer(remote));
            writer.grouped(kind, &report);
            self.request(Some(to), sequence, writer);
        }
    }
}
