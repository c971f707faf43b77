//! Responses to this node's requests, retransmissions, echo requests, and lost peers (3GPP TS 29.274 sections 7.1 and
//! 7.6, TS 23.007 sections 18 and 20).

use super::ask::{Ask, Work, refusal};
use super::context::of_number;
use super::counts::Counted;
use super::node::Node;
use super::pending::{Awaited, Due};
use crate::Control;
use crate::pfcp::{self, Told};
use crate::signalling::Sent;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use taut_wire::gtpc::{Cause, CauseValue, ElementType, Message, MessageType, Writer};

impl Node {
    /// Runs the timers of GTP-C. Messages that are due are added to `out`.
    pub fn look(
        &mut self,
        now: Instant,
        up: &mut pfcp::Node,
        control: &mut Control,
        out: &mut Vec<Sent>,
    ) {
        let mut work = Work {
            now,
            up,
            control,
            out,
        };
        while let Some(told) = work.up.told() {
            match told {
                Told::Buffered { session, far } => self.notify(session, far, &mut work),
                Told::Ended(session) => {
                    let (teid, ebi) = of_number(session);
                    self.end_connection(teid, ebi, &mut work);
                }
            }
        }
        let (time, repeats) = (self.terms.response_time, self.terms.repeats);
        while let Some(due) = self.pending.next(now, time, repeats) {
            match due {
                Due::Again(sent) => {
                    self.counts.add(Counted::Repeated, 1);
                    work.out.push(sent);
                }
                Due::GivenUp(to, awaited) => {
                    self.counts.add(Counted::GivenUp, 1);
                    self.given_up(to, awaited, &mut work);
                }
            }
        }
        self.echo(&mut work);
        let lost = self.peers.values().filter(|peer| peer.is_lost).count();
        self.counts.set(Counted::LostPeers, lost);
        self.counts.set(Counted::Sessions, self.connections);
    }

    /// Sends the echo requests that are due.
    fn echo(&mut self, work: &mut Work<'_>) {
        let Some(interval) = self.terms.echo else {
            return;
        };
        let due = self.peers.iter().filter(|it| it.1.next_echo <= work.now);
        let due: Vec<IpAddr> = due.map(|it| *it.0).collect();
        for address in due {
            let sequence = self.sequence();
            if let Some(peer) = self.peers.get_mut(&address) {
                peer.next_echo = work.now + interval;
                let mut writer = Writer::message(MessageType::ECHO_REQUEST, None, sequence);
                writer.element(ElementType::RECOVERY, &[self.restart]);
                let Ok(message) = writer.finish() else {
                    continue;
                };
                let again = work.now + self.terms.response_time;
                let sent = (peer.address, message);
                work.out
                    .push(self.pending.add(sent, sequence, again, Awaited::Echo));
            }
        }
    }

    /// Reads the restart counter of a message. A changed counter means that the peer has lost its users, whose
    /// connections then end here too.
    pub(super) fn recovered(&mut self, ask: &Ask<'_>, work: &mut Work<'_>) {
        let Ok(Some(element)) = ask.message.elements.find(ElementType::RECOVERY, 0) else {
            return;
        };
        let (Ok(counter), Some(peer)) = (element.u8(), self.peers.get_mut(&ask.from.ip())) else {
            return;
        };
        let before = peer.restart.replace(counter);
        if before.is_some_and(|before| before != counter) {
            self.counts.add(Counted::Restarted, 1);
            self.forget_peer(ask.from.ip(), work);
        }
    }

    /// Ends all connections through a peer.
    fn forget_peer(&mut self, address: IpAddr, work: &mut Work<'_>) {
        let mut ended = Vec::new();
        for (teid, context) in &self.contexts {
            for pdn in &context.pdns {
                let of_gateway = pdn.pgw.is_some_and(|it| it.address == address);
                if of_gateway || context.peer.address == address {
                    ended.push((*teid, pdn.ebi));
                }
            }
        }
        for awaited in self.pending.take_all(address) {
            self.failed(awaited, work);
        }
        for (teid, ebi) in ended {
            self.end_connection(teid, ebi, work);
        }
    }

    /// Processes the response to a request of this node.
    pub(super) fn answered(
        &mut self,
        awaited: Awaited,
        message: &Message<'_>,
        from: IpAddr,
        work: &mut Work<'_>,
    ) {
        let cause = message.elements.find(ElementType::CAUSE, 0).ok().flatten();
        let cause = cause.and_then(|it| Cause::parse(it.value).ok());
        let is_accepted = cause.is_some_and(|it| it.value.is_acceptance());
        match awaited {
            Awaited::Echo => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.is_lost = false;
                }
            }
            Awaited::Notification { teid } => {
                if !is_accepted {
                    self.unreachable(teid, work);
                }
            }
            Awaited::Created {
                teid,
                link,
                bearers,
                reply,
            } => {
                let message = Some(message).filter(|_| is_accepted);
                self.created(teid, link, bearers, reply.as_ref(), message, work);
            }
            Awaited::Removed {
                teid,
                link,
                bearers,
                reply,
            } => {
                // The bearers end whatever the MME responds: if it refuses, it does not know them or cannot use them.
                self.remove_bearers(teid, link, &bearers, work);
                if let Some(reply) = reply {
                    self.pass_back(&reply, message, work);
                }
            }
            Awaited::Changed { reply } => self.pass_back(&reply, message, work),
            Awaited::Session { teid, link, reply } => {
                self.gateway_answered(teid, link, &reply, message, work);
            }
            Awaited::SessionEnd { teid, link, reply } => {
                self.end_link(teid, link, work);
                let accepted = refusal(CauseValue::REQUEST_ACCEPTED);
                self.reply(&reply, reply.writer(accepted), work);
            }
        }
    }

    /// Gives up a request of this node, because the peer does not respond.
    fn given_up(&mut self, to: SocketAddr, awaited: Awaited, work: &mut Work<'_>) {
        if matches!(awaited, Awaited::Echo) {
            let Some(peer) = self.peers.get_mut(&to.ip()) else {
                return;
            };
            peer.is_lost = true;
            if self.terms.drops_sessions {
                self.forget_peer(to.ip(), work);
            }
            return;
        }
        self.failed(awaited, work);
    }

    /// Ends the operation, such as the creation of a bearer, for which a failed request of this node was sent.
    fn failed(&mut self, awaited: Awaited, work: &mut Work<'_>) {
        let silent = refusal(CauseValue::REMOTE_PEER_NOT_RESPONDING);
        match awaited {
            Awaited::Echo => {}
            Awaited::Notification { teid } => self.unreachable(teid, work),
            Awaited::Created {
                teid,
                link,
                bearers,
                reply,
            } => self.created(teid, link, bearers, reply.as_ref(), None, work),
            Awaited::Removed {
                teid,
                link,
                bearers,
                reply,
            } => {
                self.remove_bearers(teid, link, &bearers, work);
                if let Some(reply) = reply {
                    self.reply_refusal(&reply, silent, work);
                }
            }
            Awaited::Changed { reply } => self.reply_refusal(&reply, silent, work),
            Awaited::Session { teid, link, reply } => {
                self.end_link(teid, link, work);
                self.reply_refusal(&reply, silent, work);
            }
            Awaited::SessionEnd { teid, link, reply } => {
                self.end_link(teid, link, work);
                let accepted = refusal(CauseValue::REQUEST_ACCEPTED);
                self.reply(&reply, reply.writer(accepted), work);
            }
        }
    }
}
