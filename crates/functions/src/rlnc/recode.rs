//! The recoder of a hop: it replaces arriving repair packets by new ones, combined from all stored packets, and sends
//! additional repair packets.

use super::following::{Following, StreamRelation};
use super::header::{Header, Kind, LEN_BYTES};
use super::outcome::{Counts, Verdict};
use super::queue::Own;
use super::settings::Settings;
use super::symbol;
use taut_code::{Combination, Recoder};
use taut_function::datagram::Datagram;
use taut_port::Packet;

pub(super) struct Recode {
    recoder: Recoder,
    following: Following,
    /// One more than the number of the newest stored source packet.
    newest: u64,
    most_payload_bytes: usize,
    redundancy: f64,
    credit: f64,
    symbol: Vec<u8>,
}

impl Recode {
    pub(super) fn new(settings: &Settings, seed: u64) -> Self {
        let (size, packets) = (settings.symbol_bytes(), settings.symbols());
        Self {
            recoder: Recoder::new(size, packets, seed),
            following: Following::new(settings.span()),
            newest: 0,
            most_payload_bytes: settings.payload,
            redundancy: settings.redundancy,
            credit: 0.0,
            symbol: vec![0; size],
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
        let payload = &packet.bytes()[datagram.payload()];
        let header = match Header::of(payload, counts) {
            Ok(header) => header,
            Err(verdict) => return verdict,
        };
        let rest = &payload[LEN_BYTES..];
        let is_source = header.kind == Kind::Source;
        match self.following.see(&header) {
            StreamRelation::Present => {}
            StreamRelation::Begins { .. } => {
                self.recoder.begin_again();
                self.newest = 0;
            }
            // A packet of a stream that is not recoded passes unchanged.
            StreamRelation::Late | StreamRelation::Elsewhere => {
                counts.recoded += 1;
                return Verdict::Goes;
            }
        }
        let taken = match header.kind {
            Kind::Source if rest.len() <= self.most_payload_bytes => {
                let length = symbol::write(packet.bytes(), datagram, LEN_BYTES, &mut self.symbol);
                self.recoder
                    .push_source(header.number, &self.symbol[..length])
            }
            Kind::Source => Err(taut_code::Refused::TooLong),
            Kind::Repair(count) => {
                let (coefficients, sum) = rest.split_at(usize::from(count));
                self.recoder.push(&Combination {
                    first: header.number,
                    coefficients,
                    sum,
                })
            }
        };
        if taken.is_err() {
            self.following
                .reached((self.newest > 0).then_some(self.newest));
            counts.broken += 1;
            return Verdict::Ends;
        }
        self.newest = self.newest.max(header.end());
        self.following.reached(Some(self.newest));
        counts.recoded += 1;
        self.credit += if is_source { self.redundancy } else { 1.0 };
        while self.credit >= 1.0 {
            self.credit -= 1.0;
            if let Some(repair) = self.recoder.combine() {
                let sent = own.send_repair(port, packet.bytes(), datagram, header.session, &repair);
                counts.repairs_sent += u64::from(sent);
            }
        }
        if is_source {
            Verdict::Goes
        } else {
            Verdict::Ends
        }
    }
}
