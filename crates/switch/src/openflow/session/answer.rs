//! A session's responses to the messages of its peer. (OpenFlow 1.3.5, sections 6 and 7.)

use super::super::asked::{Asked, Listing, Subject};
use super::super::changes::{flow_mod, group_mod, meter_mod, packet_out};
use super::super::entries::{write_flow, write_group, write_meter};
use super::super::kinds::{HEADER, VERSION, kind, multipart};
use super::super::lists::{self, of_rule, reserved};
use super::super::plant::Plant;
use super::super::wire::{Reader, Wrong};
use super::reply::Reply;
use super::{Over, Role, Session, TOLD};
use crate::table::TABLES;
use std::ops::Range;
use std::time::Instant;

/// The number of rule visits after which the processing of a peer's messages is suspended, so that other peers are
/// served.
const MOST_LOOKED: u64 = 1 << 16;

impl Session {
    /// Processes the peer's bytes, which arrive in arbitrary pieces, and continues with earlier messages until a limit
    /// is reached.
    pub fn take(&mut self, bytes: &[u8], now: Instant, plant: &mut Plant<'_>) -> Result<(), Over> {
        if !bytes.is_empty() {
            (self.heard, self.is_asked) = (now, false);
            self.input.extend_from_slice(bytes);
        }
        let input = std::mem::take(&mut self.input);
        let mut left = &input[..];
        let heard = self.hear(&mut left, plant);
        let many = input.len() - left.len();
        self.input = input;
        self.input.drain(..many);
        // Changes that arrived together come into force together.
        plant.control.tell();
        heard
    }

    fn hear(&mut self, left: &mut &[u8], plant: &mut Plant<'_>) -> Result<(), Over> {
        let begun = plant.control.looked();
        loop {
            self.list(plant);
            let is_enough = plant.control.looked() - begun >= MOST_LOOKED;
            if is_enough || self.is_full() || self.listing.is_some() {
                return Ok(());
            }
            let Some(head) = left.first_chunk::<HEADER>() else {
                return Ok(());
            };
            let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
            if length < HEADER {
                return Err(Over("a message is shorter than its header"));
            }
            if !self.has_greeted && head[1] != kind::HELLO {
                // An error reply does not need the complete message.
                let whole = left.get(..length).unwrap_or(left);
                let xid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                self.refuse(Wrong::BAD_VERSION, xid, whole);
                return Err(Over("its first message is not HELLO"));
            }
            let Some((message, rest)) = left.split_at_checked(length) else {
                return Ok(());
            };
            *left = rest;
            self.message(message, plant)?;
        }
    }

    fn message(&mut self, message: &[u8], plant: &mut Plant<'_>) -> Result<(), Over> {
        let mut reader = Reader(message);
        let head = |reader: &mut Reader<'_>| {
            Ok::<_, Wrong>((reader.u8()?, reader.u8()?, reader.u16()?, reader.u32()?))
        };
        let Ok((version, kind, _, xid)) = head(&mut reader) else {
            return Err(Over("a message is shorter than its header"));
        };
        if kind == kind::HELLO {
            return self.greet(version, xid, reader);
        }
        if version != VERSION {
            self.refuse(Wrong::BAD_VERSION, xid, message);
            return Ok(());
        }
        if let Err(wrong) = self.answer(kind, xid, reader, plant) {
            self.refuse(wrong, xid, message);
        }
        Ok(())
    }

    fn greet(&mut self, version: u8, xid: u32, mut reader: Reader<'_>) -> Result<(), Over> {
        // Without a list of versions, the peer supports the version in the header and all lower versions.
        let mut speaks = version >= VERSION;
        if let (Ok(1), Ok(length), Ok(bits)) = (reader.u16(), reader.u16(), reader.u32()) {
            speaks = length >= 8 && bits >> VERSION & 1 == 1;
        }
        if !speaks {
            let start = self.begin(kind::ERROR, xid);
            self.output.u16(0).u16(0);
            self.output.0.extend(b"this switch speaks OpenFlow 1.3");
            self.end(start);
            return Err(Over("it does not support OpenFlow 1.3"));
        }
        self.has_greeted = true;
        Ok(())
    }

    fn refuse(&mut self, Wrong(kind, code): Wrong, xid: u32, message: &[u8]) {
        let start = self.begin(kind::ERROR, xid);
        self.output.u16(kind).u16(code);
        self.output.0.extend(&message[..message.len().min(64)]);
        self.end(start);
    }

    fn answer(
        &mut self,
        kind: u8,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        if is_change(kind) && self.role == Role::Slave {
            return Err(Wrong::IS_SLAVE);
        }
        match kind {
            kind::ERROR | kind::ECHO_REPLY | kind::TABLE_MOD => Ok(()),
            kind::ECHO_REQUEST => {
                let start = self.begin(kind::ECHO_REPLY, xid);
                self.output.0.extend(reader.0);
                self.end(start);
                Ok(())
            }
            kind::FEATURES_REQUEST => {
                self.send_features(xid, plant.datapath);
                Ok(())
            }
            kind::GET_CONFIG => {
                let start = self.begin(kind::CONFIG, xid);
                self.output.u16(0).u16(self.most_shown);
                self.end(start);
                Ok(())
            }
            kind::SET_CONFIG => self.set_config(reader),
            kind::GET_ASYNC => {
                self.send_told(xid);
                Ok(())
            }
            kind::SET_ASYNC => self.set_told(reader),
            kind::BARRIER_REQUEST => {
                plant.control.settle().map_err(of_rule)?;
                let start = self.begin(kind::BARRIER_REPLY, xid);
                self.end(start);
                Ok(())
            }
            kind::ROLE_REQUEST => self.role(xid, reader, plant),
            kind::FLOW_MOD => flow_mod(&mut reader, plant),
            kind::GROUP_MOD => group_mod(&mut reader, plant),
            kind::METER_MOD => meter_mod(&mut reader, plant),
            kind::PACKET_OUT => packet_out(&mut reader, plant),
            kind::PORT_MOD => Err(Wrong::PORT_MOD_FORBIDDEN),
            kind::MULTIPART_REQUEST => self.multipart(xid, reader, plant),
            kind::EXPERIMENTER => Err(Wrong::BAD_EXPERIMENTER),
            _ => Err(Wrong::BAD_TYPE),
        }
    }

    fn send_features(&mut self, xid: u32, datapath: u64) {
        // The bits are statistics of flows, tables, ports and groups.
        const CAPABILITIES: u32 = 1 | 2 | 4 | 8;
        let start = self.begin(kind::FEATURES_REPLY, xid);
        self.output.u64(datapath).u32(0).u8(TABLES).u8(0).zeros(2);
        self.output.u32(CAPABILITIES).u32(0);
        self.end(start);
    }

    fn set_config(&mut self, mut reader: Reader<'_>) -> Result<(), Wrong> {
        let (flags, most_shown) = (reader.u16()?, reader.u16()?);
        // Fragments are neither dropped nor reassembled.
        if flags != 0 {
            return Err(Wrong::BAD_CONFIG_FLAGS);
        }
        self.most_shown = most_shown;
        Ok(())
    }

    /// Replies to a request for the reasons for which the peer is notified.
    fn send_told(&mut self, xid: u32) {
        let start = self.begin(kind::ASYNC, xid);
        for reasons in self.told.as_flattened() {
            self.output.u32(*reasons);
        }
        self.end(start);
    }

    fn set_told(&mut self, mut reader: Reader<'_>) -> Result<(), Wrong> {
        let mut told = TOLD;
        for reasons in told.as_flattened_mut() {
            *reasons = reader.u32()?;
        }
        self.told = told;
        Ok(())
    }

    fn role(
        &mut self,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        let role = reader.u32()?;
        reader.skip(4)?;
        let generation = reader.u64()?;
        if matches!(role, 2 | 3) {
            // Generation numbers wrap around. (Section 6.3.5.)
            let is_stale = |known: u64| (generation.wrapping_sub(known) as i64) < 0;
            if plant.generation.is_some_and(is_stale) {
                return Err(Wrong::STALE_ROLE);
            }
            *plant.generation = Some(generation);
        }
        self.role = match role {
            0 => self.role,
            1 => Role::Equal,
            2 => {
                *plant.deposed = true;
                Role::Master
            }
            3 => Role::Slave,
            _ => return Err(Wrong::BAD_ROLE),
        };
        let start = self.begin(kind::ROLE_REPLY, xid);
        let generation = plant.generation.unwrap_or(u64::MAX);
        self.output.u32(self.role as u32).zeros(4).u64(generation);
        self.end(start);
        Ok(())
    }

    /// Replies to a multipart message. Short replies are written immediately, long ones in parts as the peer reads.
    fn multipart(
        &mut self,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        let (kind, flags) = (reader.u16()?, reader.u16()?);
        reader.skip(4)?;
        // A request of several parts would set table features, which is unsupported.
        if flags != 0 {
            return Err(Wrong::BAD_MULTIPART);
        }
        if let Some(what) = Subject::of(kind, &mut reader, plant)? {
            self.listing = Some(Listing {
                xid,
                kind,
                what,
                next: 0,
            });
            return Ok(());
        }
        let mut reply = Reply::new(self, xid, kind);
        match kind {
            multipart::DESC => reply.description(),
            multipart::AGGREGATE => reply.sum_of_rules(&Asked::read(&mut reader)?, plant),
            multipart::TABLE => reply.rules_of_tables(plant),
            multipart::PORT_STATS => {
                reply.counts_of_ports(wanted_ports(reader.u32()?, plant.ports)?, plant);
            }
            // The reply has no entries, because the chain itself counts queues.
            multipart::QUEUE => {}
            multipart::GROUP_FEATURES => reply.abilities_of_groups(),
            multipart::METER_FEATURES => reply.abilities_of_meters(),
            // Table features cannot be set, only listed.
            multipart::TABLE_FEATURES if !reader.is_empty() => return Err(Wrong::BAD_MULTIPART),
            multipart::TABLE_FEATURES => reply.abilities_of_tables(plant),
            multipart::PORT_DESC => {
                reply.links_of_ports(wanted_ports(reserved::ANY, plant.ports)?, plant);
            }
            _ => return Err(Wrong::BAD_MULTIPART),
        }
        reply.finish();
        Ok(())
    }

    /// Continues a reply in parts, up to the limits on output and on visited rules.
    fn list(&mut self, plant: &Plant<'_>) {
        let Some(mut listing) = self.listing.take() else {
            return;
        };
        let kind = listing.kind;
        let begun = plant.control.looked();
        let mut reply = Reply::new(self, listing.xid, kind);
        let is_whole = loop {
            if reply.session.is_full() || plant.control.looked() - begun >= MOST_LOOKED {
                break false;
            }
            let next = &mut listing.next;
            let has_more = match &listing.what {
                Subject::Rules(asked) => plant.control.next_rules(next, |id, kept| {
                    if asked.fits(&kept.rule) {
                        let count = plant.control.count(id);
                        reply.entry(|writer| write_flow(writer, kept, count));
                    }
                }),
                Subject::Groups(one, uses) => match plant.control.next_group(*next) {
                    Some((group, state)) => {
                        if one.is_none_or(|id| id == group.id) {
                            let used = uses.get(&group.id).copied().unwrap_or(0);
                            reply.entry(|writer| write_group(writer, kind, group, state, used));
                        }
                        let behind = group.id.checked_add(1);
                        *next = behind.unwrap_or_default();
                        behind.is_some()
                    }
                    None => false,
                },
                Subject::Meters(one, uses) => match plant.control.next_meter(*next) {
                    Some((meter, state)) => {
                        if one.is_none_or(|id| id == meter.id) {
                            let used = uses.get(&meter.id).copied().unwrap_or(0);
                            reply.entry(|writer| write_meter(writer, kind, meter, state, used));
                        }
                        let behind = meter.id.checked_add(1);
                        *next = behind.unwrap_or_default();
                        behind.is_some()
                    }
                    None => false,
                },
            };
            if !has_more {
                break true;
            }
        };
        if is_whole {
            reply.finish();
        } else {
            reply.pause();
            self.listing = Some(listing);
        }
    }
}

/// Returns true if messages of the given kind change the switch, which a slave controller may not do.
fn is_change(kind: u8) -> bool {
    matches!(
        kind,
        kind::FLOW_MOD
            | kind::GROUP_MOD
            | kind::METER_MOD
            | kind::PACKET_OUT
            | kind::PORT_MOD
            | kind::TABLE_MOD
    )
}

fn wanted_ports(asked: u32, ports: usize) -> Result<Range<u8>, Wrong> {
    match asked {
        reserved::ANY => Ok(0..ports.min(255) as u8),
        number => {
            let port = lists::port(number, ports).ok_or(Wrong(1, 11))?;
            Ok(port..port + 1)
        }
    }
}
