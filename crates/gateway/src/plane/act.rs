//! The bearers' actions on single packets, messages without a user packet, and the outcomes of packets that no bearer
//! forwards (3GPP TS 29.281).

use super::super::answer;
use super::super::bearer::{Kind, Path, Sources};
use super::super::event::Event;
use super::super::outcome::Outcome;
use super::super::parser::{Seen, Tunnelled};
use super::super::rewrite;
use super::super::settings::Others;
use super::super::slot::Slot;
use super::Plane;
use taut_function::Context;
use taut_port::{Batch, Packet, Punt};
use taut_wire::gtpu::MessageType;
use taut_wire::{Ethernet, Gtpu, resolution};

impl Plane {
    /// Returns the number of user bytes of a departing packet, and the outcome under which the packet is counted. None
    /// for a packet without user bytes, such as an end marker.
    #[inline(always)]
    pub(super) fn user_bytes(
        &self,
        packet: &Packet,
        seen: &Seen,
        bearer: &Slot,
    ) -> Option<(u16, Outcome)> {
        match (seen, bearer.kind()) {
            (Seen::Tunnelled(seen), Kind::Relay) if seen.message != MessageType::G_PDU => None,
            (Seen::Tunnelled(seen), Kind::Relay) => {
                Some((seen.end - seen.payload, Outcome::Relayed))
            }
            (Seen::Tunnelled(seen), _) => {
                Some((packet.len() as u16 - seen.ip, Outcome::Decapsulated))
            }
            (Seen::Plain { ip, .. }, _) => {
                let path = self.paths.get(bearer.path);
                let added = path.map_or(0, |path| rewrite::overhead(bearer, &path));
                let bytes = packet.len() as u16 - ip - added as u16;
                Some((bytes, Outcome::Encapsulated))
            }
            _ => None,
        }
    }

    /// Counts a packet that no bearer forwards under its outcome, and marks the packet as punted or dropped unless it
    /// passes.
    #[inline(never)]
    pub(super) fn left_out(
        &mut self,
        batch: &mut Batch,
        index: usize,
        outcome: Outcome,
        slot: &Slot,
        context: &Context,
    ) {
        let packet = &batch.packets()[index];
        let outcome = match (outcome, self.others) {
            (Outcome::Other | Outcome::UnknownUser, _) if self.is_asked(packet, context) => {
                Outcome::NeighbourAnswered
            }
            (Outcome::Other | Outcome::UnknownUser, Others::Forward) => Outcome::Passed,
            (outcome, _) => outcome,
        };
        self.counts[outcome as usize] += 1;
        if let Some(cause) = self.answered_as(outcome, slot) {
            batch.mark_punted(index, cause);
        } else if outcome != Outcome::Passed {
            batch.mark_dropped(index);
        }
    }

    /// Processes a packet that arrives in a tunnel; returns its outcome.
    #[inline(always)]
    pub(super) fn tunnelled(
        &mut self,
        packet: &mut Packet,
        seen: &Tunnelled,
        slot: &Slot,
        context: &Context,
    ) -> Outcome {
        let is_user_packet = seen.message == MessageType::G_PDU;
        if !is_user_packet && seen.message != MessageType::END_MARKER {
            return self.message(packet, seen, context);
        }
        if slot.key == 0 {
            // A late end marker is legitimate (TS 29.281 section 7.3.2).
            return match is_user_packet {
                true => Outcome::UnknownTeid,
                false => Outcome::UnknownTeidUntold,
            };
        }
        match slot.kind() {
            Kind::Relay => match self.paths.take(slot.path, context.to_port) {
                Some(path) => match rewrite::relay(packet, seen, slot, &path, &self.pool) {
                    Ok(()) => Outcome::Relayed,
                    Err(outcome) => outcome,
                },
                None => Outcome::ToldToDrop,
            },
            Kind::Decapsulate if !is_user_packet => Outcome::Consumed,
            Kind::Decapsulate => {
                let sources = self.sources_of(slot);
                match rewrite::decapsulate(packet, seen, &self.closed, sources.as_ref()) {
                    Ok(()) => Outcome::Decapsulated,
                    Err(outcome) => outcome,
                }
            }
            Kind::Hold => Outcome::NotHeld,
            Kind::Block => Outcome::GateClosed,
            // `classify` handles packets of a classifier.
            Kind::Drop | Kind::Encapsulate | Kind::Classify => Outcome::ToldToDrop,
        }
    }

    /// Returns the addresses that packets of a bearer must come from; none if they are not checked.
    #[inline(always)]
    fn sources_of(&self, slot: &Slot) -> Option<Sources> {
        let place = (slot.teid as usize).checked_sub(1)?;
        Some(self.sources.get(place).copied().unwrap_or_default())
    }

    /// Processes an IP packet to a user, which arrives without a tunnel; returns its outcome.
    #[inline(always)]
    pub(super) fn plain(
        &mut self,
        packet: &mut Packet,
        ip: usize,
        slot: &Slot,
        context: &Context,
    ) -> Outcome {
        if slot.key == 0 {
            return Outcome::UnknownUser;
        }
        match slot.kind() {
            Kind::Encapsulate => {}
            Kind::Hold => return Outcome::NotHeld,
            Kind::Block => return Outcome::GateClosed,
            _ => return Outcome::ToldToDrop,
        }
        let Some(path) = self.paths.take(slot.path, context.to_port) else {
            return Outcome::ToldToDrop;
        };
        match rewrite::encapsulate(packet, ip, slot, &path, self.mtu, &self.pool) {
            Ok(()) => Outcome::Encapsulated,
            Err(outcome) => outcome,
        }
    }

    /// Processes a GTP-U message without a user packet, such as an echo request; returns its outcome.
    #[cold]
    fn message(&mut self, packet: &Packet, seen: &Tunnelled, context: &Context) -> Outcome {
        match seen.message {
            MessageType::ECHO_REQUEST => {
                self.hear(packet, seen, context);
                Outcome::EchoAnswered
            }
            MessageType::ECHO_RESPONSE => {
                let number = self.hear(packet, seen, context);
                let message = packet.bytes().get(usize::from(seen.gtpu)..);
                let sequence = message.and_then(|it| Gtpu::new(it).ok()?.sequence());
                let is_answer = number
                    .zip(sequence)
                    .is_some_and(|(number, sequence)| self.paths.peers.is_answer(number, sequence));
                if is_answer && let Some((remote, _)) = answer::ends(packet.bytes(), seen) {
                    // If the ring is full, the event is lost, and the peer gets another echo request.
                    let _ = self.receiver.events.push(Event::Echoed { remote });
                }
                match is_answer {
                    true => Outcome::Consumed,
                    false => Outcome::EchoUnasked,
                }
            }
            MessageType::ERROR_INDICATION => Outcome::ErrorIndication,
            _ => Outcome::UnknownMessage,
        }
    }

    /// Records the ingress port and MAC addresses of the frame's sender if the frame arrived at a tunnel port. Returns
    /// the path number if there is a tunnel to the sender.
    #[inline(never)]
    pub(super) fn hear(&self, packet: &Packet, seen: &Tunnelled, context: &Context) -> Option<u16> {
        let frame = packet.bytes();
        let (remote, local) = answer::ends(frame, seen)?;
        let number = self.paths.number(&Path { local, remote })?;
        let ethernet = Ethernet::new(frame).ok()?;
        let macs = (ethernet.source(), ethernet.destination());
        self.paths.peers.hear(number, context.from_port, macs);
        Some(number)
    }

    /// Returns true if the frame requests the MAC address of one of the gateway's addresses, at a port with a known MAC
    /// address.
    #[inline]
    fn is_asked(&self, packet: &Packet, context: &Context) -> bool {
        self.macs.of(context.from_port).is_some()
            && resolution::may_be_about_neighbours(packet.bytes())
            && resolution::asked(packet.bytes()).is_some_and(|address| self.own.has(address))
    }

    /// Returns the punt cause for a packet with the given outcome; none if the slow path sends no reply to it.
    #[inline]
    fn answered_as(&self, outcome: Outcome, slot: &Slot) -> Option<Punt> {
        match outcome {
            Outcome::EchoAnswered => Some(Punt::Local),
            Outcome::NeighbourAnswered => Some(Punt::Neighbour),
            Outcome::UnknownTeid => Some(Punt::Unknown),
            Outcome::TooBig => {
                let path = self.paths.get(slot.path)?;
                let fits = self.mtu - rewrite::overhead(slot, &path);
                Some(Punt::TooBig(fits as u16))
            }
            _ => None,
        }
    }
}
