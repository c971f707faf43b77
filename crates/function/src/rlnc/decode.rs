//! Packets on their way out of the code.

use super::header::{Header, Kind, LEN_BYTES};
use super::symbol::{self, Recovered};
use super::{Counts, Own, Settings, Verdict, ethernet_like};
use crate::datagram::Datagram;
use taut_code::{Combination, Decoder};
use taut_port::Packet;

/// Packets in a row of another session before it takes the place of the present one: a forged packet ends none.
const PROOF: u32 = 4;

pub(super) struct Decode {
    decoder: Decoder,
    session: Sessions,
    most_payload_bytes: usize,
    symbol: Vec<u8>,
}

/// Whose numbers count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sessions {
    present: Option<u32>,
    /// Another one, and how many packets of it came since the last of the present one.
    other: (u32, u32),
}

/// What a packet's session says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Session {
    Present,
    /// From now on, the present one.
    Begins,
    Strange,
}

impl Sessions {
    pub(super) fn see(&mut self, session: u32) -> Session {
        if self.present == Some(session) {
            self.other.1 = 0;
            return Session::Present;
        }
        self.other = match self.other {
            (other, seen) if other == session => (other, seen + 1),
            _ => (session, 1),
        };
        if self.present.is_none() || self.other.1 >= PROOF {
            self.present = Some(session);
            self.other.1 = 0;
            return Session::Begins;
        }
        Session::Strange
    }
}

impl Decode {
    pub(super) fn new(settings: &Settings) -> Self {
        let size = settings.symbol_bytes();
        Self {
            decoder: Decoder::new(size, settings.span()),
            session: Sessions::default(),
            most_payload_bytes: settings.payload,
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
        let header = match Header::of(&packet.bytes()[datagram.payload()], counts) {
            Ok(header) => header,
            Err(verdict) => return verdict,
        };
        let session = self.session.see(header.session);
        if session == Session::Begins {
            self.decoder.begin_again();
        }
        let is_ours = session != Session::Strange;
        match header.kind {
            Kind::Source => self.source(packet, datagram, header, is_ours, port, own, counts),
            Kind::Repair(count) => {
                if is_ours {
                    self.repair(packet, datagram, header, count, port, own, counts);
                } else {
                    counts.broken += 1;
                }
                Verdict::Ends
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one packet and what it touches")]
    fn source(
        &mut self,
        packet: &mut Packet,
        datagram: &Datagram,
        header: Header,
        is_ours: bool,
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
        counts.uncoded += 1;
        if !is_ours {
            return Verdict::Goes;
        }
        let Self {
            decoder,
            symbol,
            most_payload_bytes,
            ..
        } = self;
        let before = decoder.account().lost;
        let like = packet.bytes();
        // What cannot be used for others is a good packet all the same.
        let _ = decoder.source(header.number, &symbol[..length], |_, symbol| {
            send(symbol, *most_payload_bytes, like, port, own, counts);
        });
        counts.lost += decoder.account().lost - before;
        Verdict::Goes
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
        let taken = self.decoder.combination(&combination, |_, symbol| {
            send(symbol, most, like, port, own, counts);
        });
        counts.lost += self.decoder.account().lost - before;
        match taken {
            Ok(_) => counts.repairs_used += 1,
            Err(_) => counts.broken += 1,
        }
    }
}

/// Sends a recovered packet, its Ethernet header that of `like`.
fn send(
    symbol: &[u8],
    most_payload_bytes: usize,
    like: &[u8],
    port: usize,
    own: &mut Own,
    counts: &mut Counts,
) {
    let mut header = [0; 22];
    let made = Recovered::of(symbol, most_payload_bytes).and_then(|recovered| {
        let ethernet = ethernet_like(like, recovered.is_v4(), &mut header)?;
        let length = ethernet.len() + recovered.len_bytes();
        let mut packet = own.pool.take(length as u16)?;
        let frame = packet.bytes_mut();
        frame[..ethernet.len()].copy_from_slice(ethernet);
        recovered.write(&mut frame[ethernet.len()..]).ok()?;
        Some(packet)
    });
    if made.is_some_and(|packet| own.put(port, packet)) {
        counts.recovered += 1;
    } else {
        counts.lost += 1;
    }
}
