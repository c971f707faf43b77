//! Random linear network coding of UDP packets: repairs sent along make lost packets good without asking for them
//! again, and hops in between can combine anew without decoding. (Xiang et al., JSAC 2019; the code itself is
//! `taut_code`.)
//!
//! Source packets go out at once with a header of 16 bytes, repairs follow in packets of the same addresses. At
//! the other end headers are taken off as packets come, and what repairs give back leaves as soon as it is known, or
//! all leave in their order.

mod decode;
mod encode;
mod following;
mod header;
mod order;
mod recode;
mod symbol;
#[cfg(test)]
mod tests;

use crate::datagram::{Datagram, Seen};
use crate::{Class, Context, Entry, Function, KernelVersion, SettingsError, settings};
use decode::Decode;
use encode::Encode;
use header::{Header, LEN_BYTES};
use recode::Recode;
use serde::Deserialize;
use std::collections::VecDeque;
use std::time::Duration;
use taut_code::{Combination, Encoder, Scheme};
use taut_port::{Batch, Packet, PoolHandle};
use taut_settings::duration;
use taut_wire::{Ethernet, IpProtocol, Ipv4, Ipv6, Udp};

pub(crate) const ENTRY: Entry = Entry {
    name: "rlnc",
    summary: "network coding: makes lost UDP packets good by repairs sent along; encodes, decodes and recodes",
    class: Class::Advanced,
    ports: Some("encode"),
    build: |table| simulated(table, SLOTS),
    in_kernel: KernelVersion::No(
        "it keeps packets and makes new ones, which an XDP program cannot",
    ),
};

/// The function with memory for `slots` packets of its own, for simulations.
///
/// # Errors
/// As [`crate::build`].
pub fn simulated(table: toml::Table, slots: u32) -> Result<Box<dyn Function>, SettingsError> {
    Ok(Box::new(Rlnc::new(settings(table)?, slots)?))
}

/// Packets of its own that may wait, or be on their way.
const SLOTS: u32 = 2048;
const MOST_WAITING: usize = 512;

/// Ports that packets leave through; each is a direction of its own.
const DIRECTIONS: usize = 64;

/// Least span that a decoder looks back on.
const LEAST_SPAN: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Code {
    Window,
    Block,
}

/// Order in which decoded packets leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    AsDecoded,
    InOrder,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// Ports that coded packets leave through.
    encode: Vec<usize>,
    /// Combine anew what passes, in all directions.
    recode: bool,
    code: Code,
    symbols: Option<usize>,
    redundancy: f64,
    density: f64,
    span: Option<usize>,
    payload: usize,
    flush: String,
    order: Order,
    patience: String,
    seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            encode: Vec::new(),
            recode: false,
            code: Code::Window,
            symbols: None,
            redundancy: 0.25,
            density: 1.0,
            span: None,
            payload: 1400,
            flush: "2ms".to_string(),
            order: Order::AsDecoded,
            patience: "20ms".to_string(),
            seed: None,
        }
    }
}

impl Settings {
    fn symbols(&self) -> usize {
        self.symbols.unwrap_or(match self.code {
            Code::Window => 8,
            Code::Block => 32,
        })
    }

    fn scheme(&self) -> Scheme {
        let (symbols, redundancy) = (self.symbols(), self.redundancy);
        match self.code {
            Code::Window => Scheme::Window {
                symbols,
                redundancy,
            },
            Code::Block => Scheme::Block {
                symbols,
                redundancy,
            },
        }
    }

    fn symbol_bytes(&self) -> usize {
        symbol::HEAD_BYTES + self.payload
    }

    fn span(&self) -> usize {
        self.span.unwrap_or(LEAST_SPAN.max(4 * self.symbols()))
    }

    /// Returns how long decoded packets wait for those before them; none if they do not.
    fn patience(&self) -> Option<Duration> {
        duration(&self.patience).filter(|_| self.order == Order::InOrder)
    }

    fn check(&self) -> Result<(), SettingsError> {
        let wrong = |text: String| Err(SettingsError(text));
        Encoder::new(self.scheme(), 1, 1.0, 0).map_err(|e| SettingsError(e.to_string()))?;
        if self.recode && !self.encode.is_empty() {
            return wrong(
                "encode and recode: a hop either ends the code or combines anew; leave one out"
                    .into(),
            );
        }
        if self.recode && self.order == Order::InOrder {
            return wrong("order = \"in-order\": packets get their order where they are decoded; leave it out with recode".into());
        }
        if duration(&self.patience).is_none() {
            let patience = &self.patience;
            return wrong(format!(
                "patience = \"{patience}\": want a time, such as 20ms"
            ));
        }
        if let Some(port) = self.encode.iter().find(|port| **port >= DIRECTIONS) {
            return wrong(format!(
                "encode = [{port}]: ports are numbered from 0 to {}",
                DIRECTIONS - 1
            ));
        }
        if !(self.density > 0.0 && self.density <= 1.0) {
            let density = self.density;
            return wrong(format!(
                "density = {density}: want a share of the coefficients, up to 1"
            ));
        }
        if !(1..=8192).contains(&self.payload) {
            return wrong(format!("payload = {}: want 1 to 8192 bytes", self.payload));
        }
        let (span, symbols) = (self.span(), self.symbols());
        if !(symbols..=1024).contains(&span) {
            return wrong(format!(
                "span = {span}: want {symbols} (what a repair covers) to 1024 packets"
            ));
        }
        Ok(())
    }
}

/// Counts of what became of packets.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    coded: u64,
    repairs_sent: u64,
    uncoded: u64,
    repairs_used: u64,
    recovered: u64,
    lost: u64,
    recoded: u64,
    other: u64,
    too_long: u64,
    not_coded: u64,
    malformed: u64,
    broken: u64,
    elsewhere: u64,
    no_room: u64,
    late: u64,
    waited: u64,
    overdue: u64,
}

impl Counts {
    /// Numbers of packets may be forged.
    fn lose(&mut self, packets: u64) {
        self.lost = self.lost.saturating_add(packets);
    }
}

/// Verdict on a packet that was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Goes,
    Ends,
}

/// Packets of its own: from which memory, and which wait for a batch that leaves through their port.
struct Own {
    pool: PoolHandle,
    /// Packets that wait, by outgoing port.
    waiting: Vec<VecDeque<Packet>>,
}

impl Own {
    /// Puts a packet in line. False where there are too many already.
    fn put(&mut self, port: usize, packet: Packet) -> bool {
        let waiting = &mut self.waiting[port];
        let fits = waiting.len() < MOST_WAITING;
        if fits {
            waiting.push_back(packet);
        }
        fits
    }

    /// Puts what leaves through `port` into the batch, as far as that has room.
    fn release(&mut self, port: usize, batch: &mut Batch) {
        let fits = batch.room().min(self.waiting[port].len());
        for packet in self.waiting[port].drain(..fits) {
            batch.push(packet);
        }
    }

    /// Sends a repair in a packet of the same addresses as `like`. False where there is no room.
    fn send_repair(
        &mut self,
        port: usize,
        like: &[u8],
        datagram: &Datagram,
        session: u32,
        repair: &Combination<'_>,
    ) -> bool {
        let Combination {
            first,
            coefficients,
            sum,
        } = repair;
        let keep = datagram.udp + 8;
        let length = keep + LEN_BYTES + coefficients.len() + sum.len();
        if length > self.pool.room() {
            return false;
        }
        let Some(mut packet) = self.pool.take(length as u16) else {
            return false;
        };
        let header = Header {
            kind: header::Kind::Repair(coefficients.len() as u8),
            session,
            number: *first,
        };
        let frame = packet.bytes_mut();
        frame[..keep].copy_from_slice(&like[..keep]);
        let (front, rest) = frame[keep..].split_at_mut(LEN_BYTES);
        front.copy_from_slice(&header.bytes());
        let (front, rest) = rest.split_at_mut(coefficients.len());
        front.copy_from_slice(coefficients);
        rest.copy_from_slice(sum);
        complete(frame, datagram).is_ok() && self.put(port, packet)
    }
}

/// Sets lengths and checksums of a datagram that now ends where the frame does.
fn complete(frame: &mut [u8], datagram: &Datagram) -> Result<(), taut_wire::Error> {
    let udp_len = datagram.ends_with(frame).length();
    let at = datagram.udp - datagram.ip;
    let bytes = &mut frame[datagram.ip..];
    let pseudo_header = if datagram.is_v4 {
        let mut ip = Ipv4::new(&mut *bytes)?;
        ip.fill_checksum();
        ip.pseudo_header(udp_len)
    } else {
        Ipv6::new(&*bytes)?.pseudo_header(IpProtocol::UDP, udp_len.into())
    };
    Udp::new(&mut bytes[at..])?.fill_checksum(pseudo_header);
    Ok(())
}

/// Treatment of packets that leave through one port.
enum Direction {
    Encode(Encode),
    Decode(Decode),
    Recode(Recode),
}

struct Rlnc {
    settings: Settings,
    flush_after: Duration,
    seed: u64,
    own: Own,
    /// Treatment by outgoing port; made when its first packet comes.
    directions: Vec<Option<Box<Direction>>>,
    counts: Counts,
}

impl Rlnc {
    fn new(settings: Settings, slots: u32) -> Result<Self, SettingsError> {
        settings.check()?;
        let flush_after = duration(&settings.flush).ok_or_else(|| {
            let text = &settings.flush;
            SettingsError(format!("flush = \"{text}\": want a time, such as 2ms"))
        })?;
        let pool = PoolHandle::new(slots, false).map_err(|e| SettingsError(e.to_string()))?;
        let largest = LEN_BYTES + 255 + settings.symbol_bytes() + 100;
        if largest > pool.room() {
            return Err(SettingsError(format!(
                "payload = {}: repairs of it do not fit into a packet here; want at most {}",
                settings.payload,
                settings.payload - (largest - pool.room())
            )));
        }
        Ok(Self {
            flush_after,
            seed: settings.seed.unwrap_or_else(|| fastrand::u64(..)),
            settings,
            own: Own {
                pool,
                waiting: (0..DIRECTIONS).map(|_| VecDeque::new()).collect(),
            },
            directions: (0..DIRECTIONS).map(|_| None).collect(),
            counts: Counts::default(),
        })
    }

    fn direction(settings: &Settings, seed: u64, port: usize) -> Option<Direction> {
        // Each direction has coefficients of its own.
        let seed = seed.wrapping_add(port as u64);
        if settings.recode {
            Some(Direction::Recode(Recode::new(settings, seed)))
        } else if settings.encode.contains(&port) {
            // Checked when it was made.
            Encode::new(settings, seed).ok().map(Direction::Encode)
        } else {
            Some(Direction::Decode(Decode::new(settings)))
        }
    }
}

impl Function for Rlnc {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let port = context.to_port % DIRECTIONS;
        let Self {
            settings,
            seed,
            own,
            directions,
            counts,
            flush_after,
        } = self;
        let place = &mut directions[port];
        if place.is_none() {
            if batch.is_empty() {
                return;
            }
            *place = Self::direction(settings, *seed, port).map(Box::new);
            own.waiting[port].reserve(MOST_WAITING);
        }
        let Some(direction) = place.as_deref_mut() else {
            return;
        };
        let arrived = batch.len();
        for i in 0..arrived {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            let packet = batch.packet_mut(i);
            let verdict = match Seen::of(&headers, packet.bytes()) {
                Seen::Datagram(datagram) => match direction {
                    Direction::Encode(it) => it.handle(packet, &datagram, port, own, counts),
                    Direction::Decode(it) => it.handle(packet, &datagram, port, own, counts),
                    Direction::Recode(it) => it.handle(packet, &datagram, port, own, counts),
                },
                Seen::Other => {
                    counts.other += 1;
                    Verdict::Goes
                }
                Seen::Malformed => {
                    counts.malformed += 1;
                    Verdict::Ends
                }
            };
            if verdict == Verdict::Ends {
                batch.mark_dropped(i);
            }
        }
        match direction {
            Direction::Encode(it) => {
                it.flush_when_idle(arrived == 0, *flush_after, port, own, counts);
            }
            Direction::Decode(it) => it.release(batch, counts),
            Direction::Recode(_) => {}
        }
        own.release(port, batch);
    }

    fn holds_packets(&self) -> bool {
        true
    }

    fn forgets_ports(&self) -> bool {
        true
    }

    fn held(&self) -> usize {
        let owes = |direction: &Option<Box<Direction>>| match direction.as_deref() {
            Some(Direction::Encode(it)) => usize::from(it.owes()),
            _ => 0,
        };
        let waiting: usize = self.own.waiting.iter().map(VecDeque::len).sum();
        waiting + self.directions.iter().map(owes).sum::<usize>()
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counts;
        vec![
            ("coded", c.coded),
            ("uncoded", c.uncoded),
            ("recoded", c.recoded),
            ("passed: no whole UDP datagram", c.other),
            ("passed: too long to be coded", c.too_long),
            ("passed: not coded", c.not_coded),
            ("repairs taken in", c.repairs_used),
            ("dropped: malformed", c.malformed),
            ("dropped: broken coding header", c.broken),
            ("dropped: repair of elsewhere", c.elsewhere),
            ("dropped: no memory", c.no_room),
            ("dropped: behind its turn", c.late),
            ("repairs sent, beside the above", c.repairs_sent),
            ("recovered, beside the above", c.recovered),
            ("lost for good, beside the above", c.lost),
            ("waited for its turn, beside the above", c.waited),
            ("not waited for any longer, beside the above", c.overdue),
        ]
    }
}

/// The Ethernet header of a frame with the type of the other IP version, if need be.
fn ethernet_like<'a>(like: &[u8], is_v4: bool, header: &'a mut [u8; 22]) -> Option<&'a [u8]> {
    let length = Ethernet::new(like).ok()?.header_len_bytes();
    let header = header.get_mut(..length)?;
    header.copy_from_slice(&like[..length]);
    let kind: [u8; 2] = if is_v4 { [0x08, 0x00] } else { [0x86, 0xDD] };
    header[length - 2..].copy_from_slice(&kind);
    Some(header)
}
