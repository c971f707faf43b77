//! The decoder for packets that leave the coded part of the path.

use super::following::{Following, StreamRelation};
use super::header::{Header, Kind, LEN_BYTES};
use super::order::{InOrder, Turn};
use super::outcome::{Counts, Verdict};
use super::queue::Own;
use super::settings::Settings;
use super::symbol::{self, Recovered};
use taut_code::{Combination, Decoder, Refused};
use taut_function::datagram::Datagram;
use taut_port::{Batch, Packet};
use taut_wire::Ethernet;

pub(super) struct Decode {
    decoder: Decoder,
    following: Following,
    most_payload_bytes: usize,
    symbol: Vec<u8>,
    /// The buffer that puts packets into order, if packets have to leave in order.
    order: Option<InOrder>,
}

impl Decode {
    pub(super) fn new(settings: &Settings) -> Self {
        let size = settings.symbol_bytes();
        Self {
            decoder: Decoder::new(size, settings.span()),
            following: Following::new(settings.span()),
            most_payload_bytes: settings.payload,
            symbol: vec![0; size],
            order: (settings.patience()).map(|patience| InOrder::new(settings.span(), patience)),
        }
    }

    pub(super) fn handle(
        &mut self,
        packet: &mut Packet,
        datagram: &Datagram,
        port: usize,
        own: &mut Own,
        counts: &mut Counts,
    ) -> Verdict {
        let header = match Header::of(&packet.bytes()[datagram.payload()], counts) {
            Ok(header) => header,
            Err(verdict) => return verdict,
        };
        let relation = self.following.see(&header);
        if let StreamRelation::Begins { missed } = relation {
            let before = self.decoder.account().lost;
            self.decoder.begin_again();
            self.order.iter_mut().for_each(InOrder::begin_again);
            counts.lose(self.decoder.account().lost - before);
            counts.lose(missed);
        }
        let verdict = match (header.kind, relation) {
            (Kind::Source, _) => self.source(packet, datagram, header, relation, port, own, counts),
            (Kind::Repair(_), StreamRelation::Late | StreamRelation::Elsewhere) => {
                counts.elsewhere += 1;
                Verdict::Ends
            }
            (Kind::Repair(count), _) => {
                self.repair(packet, datagram, header, count, port, own, counts);
                Verdict::Ends
            }
        };
        let end = self.decoder.range().end;
        self.following.reached((end > 0).then_some(end));
        verdict
    }

    #[expect(clippy::too_many_arguments, reason = "one packet and what it touches")]
    fn source(
        &mut self,
        packet: &mut Packet,
        datagram: &Datagram,
        header: Header,
        relation: StreamRelation,
        port: usize,
        own: &mut Own,
        counts: &mut Counts,
    ) -> Verdict {
        if datagram.payload().len() - LEN_BYTES > self.most_payload_bytes {
            counts.broken += 1;
            return Verdict::Ends;
        }
        let length = symbol::write(packet.bytes(), datagram, LEN_BYTES, &mut self.symbol);
        datagram.remove(packet, LEN_BYTES, &own.pool);
        match relation {
            StreamRelation::Present | StreamRelation::Begins { .. } => {}
            StreamRelation::Late if self.order.is_some() => {
                counts.late += 1;
                return Verdict::Ends;
            }
            StreamRelation::Late | StreamRelation::Elsewhere => {
                counts.uncoded += 1;
                return Verdict::Goes;
            }
        }
        let Self {
            decoder,
            symbol,
            most_payload_bytes,
            order,
            ..
        } = self;
        let before = decoder.account().lost;
        let like = packet.bytes();
        let taken = decoder.source(header.number, &symbol[..length], |number, symbol| {
            let packet = recovered(symbol, *most_payload_bytes, like, own);
            send(number, packet, order.as_mut(), port, own, counts);
        });
        counts.lose(decoder.account().lost - before);
        let verdict = match (order, taken) {
            (Some(_), Err(Refused::TooOld)) => {
                counts.late += 1;
                Verdict::Ends
            }
            (Some(order), Ok(_)) => {
                order.advance_to(decoder.range().start);
                in_turn(header.number, packet, order, own, counts)
            }
            // A packet that is useless for decoding passes like any other.
            _ => Verdict::Goes,
        };
        counts.uncoded += u64::from(verdict == Verdict::Goes);
        verdict
    }

    #[expect(clippy::too_many_arguments, reason = "one packet and what it touches")]
    fn repair(
        &mut self,
        packet: &Packet,
        datagram: &Datagram,
        header: Header,
        count: u8,
        port: usize,
        own: &mut Own,
        counts: &mut Counts,
    ) {
        let rest = &packet.bytes()[datagram.payload()][LEN_BYTES..];
        let (coefficients, sum) = rest.split_at(usize::from(count));
        let combination = Combination {
            first: header.number,
            coefficients,
            sum,
        };
        let most = self.most_payload_bytes;
        let like = packet.bytes();
        let before = self.decoder.account().lost;
        let order = &mut self.order;
        let taken = self.decoder.combination(&combination, |number, symbol| {
            let packet = recovered(symbol, most, like, own);
            send(number, packet, order.as_mut(), port, own, counts);
        });
        counts.lose(self.decoder.account().lost - before);
        match taken {
            Ok(_) => counts.repairs_used += 1,
            Err(Refused::TooOld | Refused::TooFarAhead) => counts.elsewhere += 1,
            Err(_) => counts.broken += 1,
        }
        if let (Some(order), Ok(_)) = (order, taken) {
            order.advance_to(self.decoder.range().start);
        }
    }

    /// Adds the packets that are due now; called after each batch.
    pub(super) fn release(&mut self, batch: &mut Batch, counts: &mut Counts) {
        if let Some(order) = &mut self.order {
            order.release(batch, counts);
        }
    }
}

/// Passes a source packet if it is next in order. Otherwise a copy waits, so that the port can reuse the packet's
/// buffer.
fn in_turn(
    number: u64,
    packet: &Packet,
    order: &mut InOrder,
    own: &mut Own,
    counts: &mut Counts,
) -> Verdict {
    match order.turn(number) {
        Turn::Now => {
            order.went(number);
            return Verdict::Goes;
        }
        Turn::Past => counts.late += 1,
        Turn::Later => {
            let bytes = packet.bytes();
            if let Some(mut copy) = own.pool.take(bytes.len() as u16) {
                copy.bytes_mut().copy_from_slice(bytes);
                order.keep(number, copy);
                counts.uncoded += 1;
                counts.waited += 1;
            } else {
                counts.no_room += 1;
            }
        }
    }
    Verdict::Ends
}

/// Returns a recovered packet with the Ethernet header of `like`; none if there is no memory.
fn recovered(
    symbol: &[u8],
    most_payload_bytes: usize,
    like: &[u8],
    own: &mut Own,
) -> Option<Packet> {
    let mut header = [0; 22];
    let recovered = Recovered::of(symbol, most_payload_bytes)?;
    let ethernet = ethernet_like(like, recovered.is_v4(), &mut header)?;
    let length = ethernet.len() + recovered.len_bytes();
    let mut packet = own.pool.take(length as u16)?;
    let frame = packet.bytes_mut();
    frame[..ethernet.len()].copy_from_slice(ethernet);
    recovered.write(&mut frame[ethernet.len()..]).ok()?;
    Some(packet)
}

/// Sends a recovered packet: in its order if packets leave in order, otherwise immediately.
fn send(
    number: u64,
    packet: Option<Packet>,
    order: Option<&mut InOrder>,
    port: usize,
    own: &mut Own,
    counts: &mut Counts,
) {
    let sent = match (packet, order) {
        (None, _) => false,
        (Some(packet), None) => own.put(port, packet),
        (Some(_), Some(order)) if order.turn(number) == Turn::Past => {
            counts.late += 1;
            return;
        }
        (Some(packet), Some(order)) => {
            order.keep(number, packet);
            true
        }
    };
    if sent {
        counts.recovered += 1;
    } else {
        counts.lose(1);
    }
}

/// Returns the Ethernet header of the frame `like`, with the EtherType of IPv4 if `is_v4`, and otherwise that of IPv6.
fn ethernet_like<'a>(like: &[u8], is_v4: bool, header: &'a mut [u8; 22]) -> Option<&'a [u8]> {
    let length = Ethernet::new(like).ok()?.header_len_bytes();
    let header = header.get_mut(..length)?;
    header.copy_from_slice(&like[..length]);
    let kind: [u8; 2] = if is_v4 { [0x08, 0x00] } else { [0x86, 0xDD] };
    header[length - 2..].copy_from_slice(&kind);
    Some(header)
}
