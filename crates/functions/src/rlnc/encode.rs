//! The encoder for packets that enter the coded part of the path.

use super::header::{Header, Kind};
use super::outcome::{Counts, Verdict};
use super::queue::Own;
use super::settings::Settings;
use super::symbol;
use std::time::{Duration, Instant};
use taut_code::{Encoder, WrongScheme};
use taut_function::datagram::Datagram;
use taut_port::Packet;

pub(super) struct Encode {
    encoder: Encoder,
    session: u32,
    most_payload_bytes: usize,
    symbol: Vec<u8>,
    /// The headers of the latest source packet: repair packets copy them.
    like: Vec<u8>,
    datagram: Option<Datagram>,
    /// True if the latest source packet arrived in the current batch.
    is_new: bool,
    /// The arrival time of the latest source packet's batch; none after the open block was flushed.
    open_since: Option<Instant>,
}

impl Encode {
    pub(super) fn new(settings: &Settings, seed: u64) -> Result<Self, WrongScheme> {
        let size = settings.symbol_bytes();
        Ok(Self {
            encoder: Encoder::new(settings.scheme(), size, settings.density, seed)?,
            // The session was not used before, so that a decoder detects that numbers restart.
            session: fastrand::u32(..),
            most_payload_bytes: settings.payload,
            symbol: vec![0; size],
            like: Vec::with_capacity(256),
            datagram: None,
            is_new: false,
            open_since: None,
        })
    }

    pub(super) fn handle(
        &mut self,
        packet: &mut Packet,
        datagram: &Datagram,
        port: usize,
        own: &mut Own,
        counts: &mut Counts,
    ) -> Verdict {
        if datagram.payload().len() > self.most_payload_bytes {
            counts.too_long += 1;
            return Verdict::Goes;
        }
        let length = symbol::write(packet.bytes(), datagram, 0, &mut self.symbol);
        self.like.clear();
        self.like
            .extend_from_slice(&packet.bytes()[..datagram.payload().start]);
        self.datagram = Some(*datagram);
        let header = Header {
            kind: Kind::Source,
            session: self.session,
            number: self.encoder.next_number(),
        };
        if !datagram.insert(packet, &header.bytes(), &own.pool) {
            counts.no_room += 1;
            return Verdict::Ends;
        }
        self.encoder.push(&self.symbol[..length]);
        counts.coded += 1;
        self.is_new = true;
        self.send_repairs(port, own, counts);
        Verdict::Goes
    }

    fn send_repairs(&mut self, port: usize, own: &mut Own, counts: &mut Counts) {
        let Some(datagram) = self.datagram else {
            return;
        };
        while let Some(repair) = self.encoder.next_repair() {
            if own.send_repair(port, &self.like, &datagram, self.session, &repair) {
                counts.repairs_sent += 1;
            }
        }
    }

    /// Returns true if repair packets may still follow after an idle time.
    pub(super) fn owes(&self) -> bool {
        self.open_since.is_some() || self.is_new
    }

    /// Ends a block, or sends the pending repair packets of a window, after an idle time; called after each batch.
    pub(super) fn flush_when_idle(
        &mut self,
        is_idle: bool,
        after: Duration,
        port: usize,
        own: &mut Own,
        counts: &mut Counts,
    ) {
        if std::mem::take(&mut self.is_new) {
            self.open_since = Some(Instant::now());
        }
        if !is_idle || self.open_since.is_none_or(|since| since.elapsed() < after) {
            return;
        }
        self.open_since = None;
        self.encoder.flush();
        self.send_repairs(port, own, counts);
    }
}
