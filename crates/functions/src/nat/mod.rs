//! Source NAT with port translation: hosts inside share the outside addresses. (RFC 3022; RFC 4787 for UDP, RFC 5382
//! for TCP, RFC 5508 for ICMP.) Mappings are endpoint-independent, and every outside host may reply through them.

mod connection;
mod hosts;
mod outcome;
mod parser;
mod rewrite;
mod setting;
mod table;
#[cfg(test)]
mod tests;

use connection::{Connection, state};
use outcome::{OUTCOMES, Outcome};
use parser::{Class as Protocol, Flow, Seen};
use rewrite::{End, replace, replace_error};
use setting::Checked;
pub(crate) use setting::Settings;
use std::time::Duration;
use table::{Refused, Table, Timeouts, key};
use taut_function::{
    ANY, Class, Context, Entry, Function, KernelVersion, Member, Needs, SettingsError, Shared,
    Spread, settings,
};
use taut_port::{BATCH_CAPACITY, Batch, Packet, PortError};
use taut_sys::Clock;
use taut_xdp::functions::{KernelFunction, KernelNat};

pub(crate) const ENTRY: Entry = Entry {
    name: "nat",
    summary: "is a source NAT with ports: inside hosts share outside addresses",
    class: Class::Basic,
    ports: Some("outside"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        let checked = settings::<Settings>(table)?.check()?;
        Ok(Box::new(Nat {
            checked,
            table: None,
            seen: Vec::with_capacity(BATCH_CAPACITY),
            counts: [0; OUTCOMES.len()],
        }) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Frames(in_kernel),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "outside",
        "required",
        "outside ports of the chain, counted from 0",
    ),
    (
        "address",
        "required",
        "outside IPv4 address, or a list of up to 16",
    ),
    (
        "ports",
        "`\"1024-65535\"`",
        "outside ports to choose from, for UDP, TCP and ICMP each",
    ),
    (
        "mappings",
        "65536",
        "maximum number of mappings, up to 1048576",
    ),
    (
        "mappings_per_host",
        "4096",
        "maximum per inside address (RFC 6888, REQ-4), up to 1048576; those of `forward` do not count",
    ),
    (
        "udp_timeout",
        "`\"300s\"`",
        "a mapping ends this long after the last packet from inside, 1 s to 86400 s",
    ),
    (
        "tcp_timeout",
        "`\"7440s\"`",
        "the same for an open TCP connection",
    ),
    (
        "tcp_closing_timeout",
        "`\"240s\"`",
        "the same for one that opens, that its inside host has ended (FIN), or that was reset",
    ),
    ("icmp_timeout", "`\"60s\"`", "the same for ICMP echo"),
    (
        "forward",
        "`[]`",
        "servers inside, with permanent mappings: `protocol` (`tcp` or `udp`), `port` outside, `to` inside, and \
         `address` if it is not the first one",
    ),
    (
        "seed",
        "random",
        "of the choice of ports: the same seed gives the same ports",
    ),
];

/// The duration of the clock calibration. A short one suffices, because timeouts are whole seconds.
const CALIBRATION: Duration = Duration::from_millis(5);

struct Nat {
    checked: Checked,
    table: Option<Table>,
    /// The kind of each packet of a batch, and the slot of its flow's mapping, none if the flow has no mapping. The
    /// list is large, so its memory is reused.
    seen: Vec<(Seen, Option<u32>)>,
    counts: [u64; OUTCOMES.len()],
}

/// Returns the version of the function that runs in the XDP program for frames that leave through port `port`.
fn in_kernel(table: toml::Table, port: usize) -> Result<KernelFunction, SettingsError> {
    let checked = settings::<Settings>(table)?.check()?;
    let is_outwards = checked.outside.contains(&port);
    let Checked {
        choice,
        timeouts,
        most,
        per_host,
        forwards,
        ..
    } = checked;
    let nat = KernelNat {
        sweep: choice.sweep_interval(),
        addresses: choice.addresses,
        ports: (choice.first_port, choice.last_port),
        seed: choice.seed,
        mappings: most,
        mappings_per_host: per_host,
        host_buckets: hosts::buckets(most),
        udp: timeouts.udp,
        tcp: timeouts.tcp,
        tcp_closing: timeouts.tcp_closing,
        icmp: timeouts.icmp,
        forwards: forwards.iter().map(|it| (it.slot, it.inside)).collect(),
    };
    Ok(KernelFunction::Nat {
        is_outwards,
        nat: nat.into(),
    })
}

impl Nat {
    /// Translates a frame from inside to outside; `found` is the slot of the flow's mapping, if it had one before this
    /// batch.
    fn outwards(
        table: &mut Table,
        frame: &mut [u8],
        seen: &Seen,
        found: Option<u32>,
        now: u64,
    ) -> Outcome {
        match seen {
            Seen::Settled(outcome) => *outcome,
            Seen::Flow(flow) => {
                if table.choice.number(flow.destination.0).is_some() {
                    return Outcome::Hairpin;
                }
                let inside = key(flow.class, flow.source);
                let found = found.filter(|slot| table.mapping(*slot).inside == inside);
                // An earlier packet of the batch may have created or ended the mapping.
                let found = found.or_else(|| table.find(inside));
                let made = found.map_or_else(|| table.make(flow.class, inside, now), Ok);
                let slot = match made {
                    Ok(slot) => slot,
                    Err(Refused::NoPort) => return Outcome::NoPort,
                    Err(Refused::Full) => return Outcome::TableFull,
                    Err(Refused::HostFull) => return Outcome::HostFull,
                };
                let is_live = table.is_live(slot, now);
                let mapping = table.mapping_mut(slot);
                if !is_live {
                    // The mapping has timed out: the host gets the same port again, and all other state restarts.
                    mapping.last_used = now;
                    mapping.connection = Connection::default();
                }
                if flow.class != Protocol::Tcp || mapping.connection.left(&flow.segment(frame)) {
                    mapping.last_used = now;
                }
                replace(frame, flow, End::Source, table.choice.endpoint(slot));
                Outcome::ToOutside
            }
            Seen::Error {
                ip,
                icmp,
                source,
                destination,
                about,
            } => {
                if table.choice.number(*destination).is_some() {
                    return Outcome::Hairpin;
                }
                let slot = table.find(key(about.class, about.destination));
                let Some(slot) = slot.filter(|slot| table.is_live(*slot, now)) else {
                    return Outcome::NoMapping;
                };
                let outside = table.choice.endpoint(slot);
                let change = replace(frame, about, End::Destination, outside);
                let addresses = (*source, outside.0);
                replace_error(frame, (*ip, *icmp), End::Source, addresses, change);
                Outcome::Error
            }
        }
    }

    /// Translates a frame from outside to inside.
    fn inwards(table: &mut Table, frame: &mut [u8], seen: &Seen, now: u64) -> Outcome {
        match seen {
            Seen::Settled(outcome) => *outcome,
            Seen::Flow(flow) => {
                let Some(number) = table.choice.number(flow.destination.0) else {
                    return Outcome::NotOurs;
                };
                let slot = table.choice.slot(flow.class, number, flow.destination.1);
                if !table.is_live(slot, now) {
                    return Outcome::NoMapping;
                }
                let mapping = table.mapping_mut(slot);
                if flow.class == Protocol::Tcp && mapping.connection.came(&flow.segment(frame)) {
                    mapping.last_used = now;
                }
                replace(frame, flow, End::Destination, mapping.endpoint());
                Outcome::ToInside
            }
            Seen::Error {
                ip,
                icmp,
                destination,
                about,
                ..
            } => {
                let number = table.choice.number(*destination);
                let Some(number) = number.filter(|_| about.source.0 == *destination) else {
                    return Outcome::NotOurs;
                };
                let slot = table.choice.slot(about.class, number, about.source.1);
                if !table.is_live(slot, now) {
                    return Outcome::NoMapping;
                }
                let inside = table.mapping(slot).endpoint();
                let change = replace(frame, about, End::Source, inside);
                let addresses = (*destination, inside.0);
                replace_error(frame, (*ip, *icmp), End::Destination, addresses, change);
                Outcome::Error
            }
        }
    }
}

impl Nat {
    /// Returns the index of the worker that owns a frame's flow; none if every worker may process the frame.
    fn home(&self, seen: &Seen, is_outwards: bool) -> Option<usize> {
        let choice = &self.checked.choice;
        if is_outwards {
            let host = match seen {
                Seen::Flow(flow) => flow.source.0,
                Seen::Error { about, .. } => about.destination.0,
                Seen::Settled(_) => return None,
            };
            return Some(choice.home_of_host(host));
        }
        let (class, outside) = match seen {
            Seen::Flow(flow) => (flow.class, flow.destination),
            Seen::Error { about, .. } => (about.class, about.source),
            Seen::Settled(_) => return None,
        };
        let slot = choice.slot(class, choice.number(outside.0)?, outside.1);
        let forwards = &self.checked.forwards;
        Some(match forwards.binary_search_by_key(&slot, |it| it.slot) {
            Ok(at) => choice.home_of_host((forwards[at].inside >> 16) as u32),
            Err(_) => choice.home_of_port(outside.1),
        })
    }
}

impl Function for Nat {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Homes,
            ..Needs::default()
        }
    }

    fn join(&mut self, member: Member, _: &Shared) -> Result<(), SettingsError> {
        let checked = &mut self.checked;
        let choice = &mut checked.choice;
        choice.member = member;
        let (first, last) = (
            usize::from(choice.first_port),
            usize::from(choice.last_port),
        );
        if member.of > 1 && last + 1 - first < 2 * member.of {
            return Err(SettingsError(format!(
                "ports = \"{first}-{last}\": {} workers need {} or more",
                member.of,
                2 * member.of
            )));
        }
        checked.forwards.sort_by_key(|it| it.slot);
        // Every table contains all static mappings, so that no table assigns their ports to other flows.
        let fixed = checked.forwards.len();
        checked.most = fixed + (checked.most - fixed).div_ceil(member.of);
        Ok(())
    }

    fn homes(&self, batch: &Batch, context: &Context, homes: &mut [u8; BATCH_CAPACITY]) {
        let is_outwards = self.checked.outside.contains(&context.to_port);
        for (packet, home) in batch.packets().iter().zip(homes) {
            let found = self.home(&Seen::of(packet.bytes()), is_outwards);
            *home = found.map_or(ANY, |home| home as u8);
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let clock = Clock::calibrate(CALIBRATION);
        let ticks = |time: Duration| clock.to_ticks(time.as_nanos() as f64) as u64;
        let Checked {
            choice,
            timeouts,
            most,
            per_host,
            forwards,
            ..
        } = &self.checked;
        let timeouts = Timeouts {
            udp: ticks(timeouts.udp),
            tcp: ticks(timeouts.tcp),
            tcp_closing: ticks(timeouts.tcp_closing),
            icmp: ticks(timeouts.icmp),
            sweep: ticks(choice.sweep_interval()),
        };
        let mut table = Table::new(choice.clone(), timeouts, *most, *per_host);
        for forward in forwards {
            let connection = Connection::of(state::STATIC);
            table.put(forward.slot, forward.inside, 0, connection);
        }
        self.table = Some(table);
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let Some(table) = &mut self.table else {
            return;
        };
        let outside = &self.checked.outside;
        // An earlier function may have sent packets of a batch to different ports.
        let goes_together = batch.goes_together();
        let usually = outside.contains(&context.to_port);
        let is_outwards = |batch: &Batch, index: usize| match goes_together {
            true => usually,
            false => outside.contains(&batch.leaves_through(index, context.to_port)),
        };
        let now = context.now_ticks;
        let seen = &mut self.seen;
        seen.clear();
        // The batch's own cache of headers is not used: each header is read only once here, and every passing packet
        // changes.
        let packets = batch.packets().iter().map(Packet::bytes);
        seen.extend(packets.map(|frame| (Seen::of(frame), None)));
        if usually || !goes_together {
            // All lookups run together, so that their misses overlap.
            for (seen, found) in &mut *seen {
                if let Seen::Flow(Flow { class, source, .. }) = seen {
                    *found = table.find(key(*class, *source));
                }
            }
        }
        for (i, (seen, found)) in seen.iter().enumerate() {
            if !batch.is_kept(i) {
                continue;
            }
            let is_outwards = is_outwards(batch, i);
            let frame = batch.packets_mut()[i].bytes_mut();
            let outcome = if is_outwards {
                Self::outwards(table, frame, seen, *found, now)
            } else {
                Self::inwards(table, frame, seen, now)
            };
            self.counts[outcome as usize] += 1;
            if !outcome.is_sent() {
                batch.mark_dropped(i);
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.counts).collect()
    }
}
