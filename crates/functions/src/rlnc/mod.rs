//! Random linear network coding of UDP packets: repair packets recover lost ones without retransmission, and hops in
//! between can recode without decoding. (Xiang et al., JSAC 2019; the code itself is `taut_code`.)
//!
//! Source packets leave immediately with a header of 16 bytes, and repair packets follow with the same addresses. The
//! decoder at the other end of the path removes headers as packets arrive. Recovered packets leave as soon as they are
//! known, or all packets leave in order.

mod decode;
mod encode;
mod following;
mod header;
mod order;
mod outcome;
mod queue;
mod recode;
mod settings;
mod symbol;
#[cfg(test)]
mod tests;

use decode::Decode;
use encode::Encode;
use header::LEN_BYTES;
use outcome::{Counts, Verdict};
use queue::{MOST_WAITING, Own};
use recode::Recode;
use settings::{DIRECTIONS, Settings};
use std::collections::VecDeque;
use std::time::Duration;
use taut_function::datagram::Seen;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, KernelVersion, Needs, SettingsError, settings,
};
use taut_port::{Batch, PoolHandle};
use taut_settings::duration;

pub(crate) const ENTRY: Entry = Entry {
    name: "rlnc",
    summary: "is network coding: recovers lost UDP packets from repair packets",
    class: Class::Advanced,
    ports: Some("encode"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| simulated(table, SLOTS),
    in_kernel: KernelVersion::No(
        "it keeps packets and makes new ones, which an XDP program cannot",
    ),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "encode",
        "`[]`",
        "ports that coded packets leave through; packets through other ports are decoded",
    ),
    (
        "recode",
        "false",
        "a hop: in both directions received repair packets are replaced by new combinations, and more are added",
    ),
    (
        "code",
        "`window`",
        "`window`: repair packets of the latest packets, spread evenly; `block`: repair packets after each block, \
         of all of it",
    ),
    (
        "symbols",
        "8, `block` 32",
        "packets that a repair packet covers, 1 to 255; at a hop, packets that it stores",
    ),
    (
        "redundancy",
        "0.25",
        "repair packets per source packet, up to 4",
    ),
    ("density", "1", "fraction of nonzero coefficients"),
    (
        "span",
        "64, or 4 times `symbols`",
        "packets that the decoder looks back, up to 1024: more for reordering; older ones are lost",
    ),
    (
        "payload",
        "1400",
        "longest UDP payload that is coded, bytes; longer ones pass uncoded",
    ),
    (
        "flush",
        "`2ms`",
        "idle time after which packets without repair get it",
    ),
    (
        "order",
        "`as-decoded`",
        "`in-order`: decoded packets leave in send order; they wait for a missing one while it can be recovered, \
         at most `patience`",
    ),
    (
        "patience",
        "`20ms`",
        "maximum wait for a missing packet with `in-order`",
    ),
    ("seed", "random", "of the coefficients"),
];

/// Builds the function with `slots` buffers of its own, for simulations.
///
/// # Errors
/// Fails as [`crate::build`] does.
pub fn simulated(table: toml::Table, slots: u32) -> Result<Box<dyn Function>, SettingsError> {
    Ok(Box::new(Rlnc::new(settings(table)?, slots)?))
}

/// The number of buffers for the function's own packets, which wait for a batch or are being sent.
const SLOTS: u32 = 2048;

/// The treatment of packets that leave through one port.
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
    /// The treatment of packets, by egress port; none before the first packet to the port.
    directions: Vec<Option<Box<Direction>>>,
    counts: Counts,
}

impl Rlnc {
    fn new(settings: Settings, slots: u32) -> Result<Self, SettingsError> {
        settings.check()?;
        let flush_after = duration(&settings.flush).ok_or_else(|| {
            let text = &settings.flush;
            SettingsError(format!("flush = \"{text}\": expected a time, such as 2ms"))
        })?;
        let pool = PoolHandle::new(slots, false).map_err(|e| SettingsError(e.to_string()))?;
        let largest = LEN_BYTES + 255 + settings.symbol_bytes() + 100;
        if largest > pool.room() {
            return Err(SettingsError(format!(
                "payload = {}: its repair symbols do not fit into a packet buffer; use at most {}",
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
            // The settings were checked at the start.
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

    fn needs(&self) -> Needs {
        Needs {
            empty_batches: EmptyBatches::Polls,
            forgets_ports: true,
            ..Needs::default()
        }
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
