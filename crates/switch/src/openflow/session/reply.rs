//! A reply to a multipart request while it is written: its parts (messages), and the entries of short replies.
//! (OpenFlow 1.3.5, section 7.3.5.)

use super::super::asked::Asked;
use super::super::entries::{write_abilities, write_age, write_port};
use super::super::kinds::{HEADER, kind};
use super::super::plant::Plant;
use super::super::wire::Writer;
use super::Session;
use crate::group::MOST_GROUPS;
use crate::meter::MOST_METERS;
use crate::table::TABLES;
use std::ops::Range;

/// The limit on the length of one part (message) of a reply, in bytes: a longer reply continues in another part.
const PART_BYTES: usize = 60_000;

/// A multipart reply that is being written.
pub(super) struct Reply<'a> {
    pub(super) session: &'a mut Session,
    xid: u32,
    kind: u16,
    /// The offset in the output of the part that is being written; none if no part has begun.
    start: Option<usize>,
    /// The entry of the reply that is being written.
    entry: Writer,
}

impl<'a> Reply<'a> {
    pub(super) fn new(session: &'a mut Session, xid: u32, kind: u16) -> Self {
        Self {
            session,
            xid,
            kind,
            start: None,
            entry: Writer::default(),
        }
    }

    /// Adds an entry, which is shorter than [`PART_BYTES`], to the current part, or to a new one if it does not fit.
    pub(super) fn entry(&mut self, write: impl FnOnce(&mut Writer)) {
        self.entry.0.clear();
        write(&mut self.entry);
        let length = |start| self.session.output.0.len() - start + self.entry.0.len();
        if self.start.is_some_and(|start| length(start) > PART_BYTES) {
            self.pause();
        }
        self.begin();
        self.session.output.0.extend_from_slice(&self.entry.0);
    }

    fn begin(&mut self) {
        if self.start.is_none() {
            let start = self.session.begin(kind::MULTIPART_REPLY, self.xid);
            self.session.output.u16(self.kind).u16(0).zeros(4);
            self.start = Some(start);
        }
    }

    /// Ends the current part of the reply, and marks that more parts follow.
    pub(super) fn pause(&mut self) {
        if let Some(start) = self.start.take() {
            self.session.output.0[start + HEADER + 3] = 1;
            self.session.end(start);
        }
    }

    /// Ends the reply with its last part.
    pub(super) fn finish(mut self) {
        self.begin();
        if let Some(start) = self.start {
            self.session.end(start);
        }
    }
}

/// Methods that write the entries of short replies.
impl Reply<'_> {
    /// Adds the description of the switch.
    pub(super) fn description(&mut self) {
        self.entry(|writer| {
            writer.text("taut", 256).text(std::env::consts::ARCH, 256);
            writer.text(concat!("taut ", env!("CARGO_PKG_VERSION")), 256);
            writer.text("none", 32).text("switch", 256);
        });
    }

    /// Adds the sum of the counts of the rules that a request selects.
    pub(super) fn sum_of_rules(&mut self, asked: &Asked, plant: &Plant<'_>) {
        let rules = plant
            .control
            .rules()
            .filter(|(_, kept)| asked.fits(&kept.rule));
        let (mut packets, mut bytes, mut many) = (0_u64, 0_u64, 0);
        for (id, _) in rules {
            let count = plant.control.count(id);
            packets = packets.saturating_add(count.0);
            bytes = bytes.saturating_add(count.1);
            many += 1;
        }
        self.entry(|writer| {
            writer.u64(packets).u64(bytes).u32(many).zeros(4);
        });
    }

    /// Adds the number of rules and of lookups of each table.
    pub(super) fn rules_of_tables(&mut self, plant: &Plant<'_>) {
        let mut active = [0_u32; TABLES as usize];
        for (_, kept) in plant.control.rules() {
            if let Some(many) = active.get_mut(usize::from(kept.rule.table)) {
                *many += 1;
            }
        }
        for (table, many) in (0..).zip(active) {
            let (looked_up, matched) = plant.facts.table_counts[usize::from(table)].read();
            self.entry(|writer| {
                writer
                    .u8(table)
                    .zeros(3)
                    .u32(many)
                    .u64(looked_up)
                    .u64(matched);
            });
        }
    }

    /// Adds the counters of the given ports.
    pub(super) fn counts_of_ports(&mut self, ports: Range<u8>, plant: &Plant<'_>) {
        for port in ports {
            let [received, sent] = plant.facts.port_counts(port);
            let age = plant.facts.begun.elapsed();
            self.entry(|writer| {
                writer.u32(u32::from(port) + 1).zeros(4);
                writer
                    .u64(received.0)
                    .u64(sent.0)
                    .u64(received.1)
                    .u64(sent.1);
                // The chain counts losses on the link, so the other eight counters are unknown here.
                (0..8).for_each(|_| {
                    writer.u64(u64::MAX);
                });
                write_age(writer, age);
            });
        }
    }

    /// Adds the features that groups support.
    pub(super) fn abilities_of_groups(&mut self) {
        self.entry(|writer| {
            // All four group types are supported, and so are weights and the liveness of ports. The actions are bits by
            // action number.
            writer.u32(0b1111).u32(0b0011);
            (0..4).for_each(|_| {
                writer.u32(MOST_GROUPS as u32);
            });
            let actions = 1 | 1 << 17 | 1 << 18 | 1 << 21 | 1 << 23 | 1 << 24 | 1 << 25;
            for actions in [1 | 1 << 21, actions, actions, actions] {
                writer.u32(actions);
            }
        });
    }

    /// Adds the features that meters support.
    pub(super) fn abilities_of_meters(&mut self) {
        self.entry(|writer| {
            // Meters support drop bands, rates in kbit/s and in packets, bursts, and statistics; each meter has one
            // band.
            writer
                .u32(MOST_METERS as u32)
                .u32(1 << 1)
                .u32(0b1111)
                .u8(1)
                .u8(0)
                .zeros(2);
        });
    }

    /// Adds the features of each table.
    pub(super) fn abilities_of_tables(&mut self, plant: &Plant<'_>) {
        let room = u32::try_from(plant.control.room()).unwrap_or(u32::MAX);
        for table in 0..TABLES {
            self.entry(|writer| {
                let start = writer.0.len();
                writer
                    .u16(0)
                    .u8(table)
                    .zeros(5)
                    .text(&format!("table{table}"), 32);
                writer.u64(0).u64(0).u32(0).u32(room);
                write_abilities(writer, table);
                writer.length_at(start, start);
            });
        }
    }

    /// Adds the descriptions of the given ports and the state of their links.
    pub(super) fn links_of_ports(&mut self, ports: Range<u8>, plant: &Plant<'_>) {
        for port in ports {
            let is_up = plant.facts.is_up(port);
            self.entry(|writer| write_port(writer, port, is_up));
        }
    }
}
