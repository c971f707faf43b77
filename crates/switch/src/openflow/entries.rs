//! The entries of replies, as OpenFlow encodes them: rules, groups, meters, ports, and the features of tables.
//! (OpenFlow 1.3.5, section 7.3.5.)

use super::fields::{write_fields, write_match};
use super::kinds::multipart;
use super::lists::{ACTIONS, INSTRUCTIONS, write_buckets, write_instructions};
use super::wire::Writer;
use crate::action::Action;
use crate::control::Kept;
use crate::group::{Group, GroupKind};
use crate::meter::{Limit, Meter};
use crate::scope::Of;
use crate::shape::{GroupState, MeterState};
use crate::table::TABLES;
use std::time::Duration;

pub(super) fn write_group(
    writer: &mut Writer,
    kind: u16,
    group: &Group,
    state: &GroupState,
    used: u32,
) {
    let start = writer.0.len();
    if kind == multipart::GROUP_DESC {
        writer
            .u16(0)
            .u8(group_type(group.kind))
            .zeros(1)
            .u32(group.id);
        write_buckets(writer, &group.buckets);
    } else {
        let (packets, bytes) = state.count.read();
        writer.u16(0).zeros(2).u32(group.id).u32(used).zeros(4);
        writer.u64(packets).u64(bytes);
        write_age(writer, state.made.elapsed());
        for bucket in &state.buckets {
            let (packets, bytes) = bucket.count.read();
            writer.u64(packets).u64(bytes);
        }
    }
    writer.length_at(start, start);
}

pub(super) fn write_meter(
    writer: &mut Writer,
    kind: u16,
    meter: &Meter,
    state: &MeterState,
    used: u32,
) {
    let start = writer.0.len();
    if kind == multipart::METER_CONFIG {
        let (rate, flag) = match meter.rate {
            Limit::Kbps(rate) => (rate, 1),
            Limit::Pps(rate) => (rate, 2),
        };
        let burst = if meter.burst.is_some() { 4 } else { 0 };
        writer.u16(0).u16(flag | burst).u32(meter.id);
        writer.u16(1).u16(16).u32(rate);
        writer.u32(meter.burst.unwrap_or(0)).zeros(4);
        writer.length_at(start, start);
    } else {
        let (came, dropped) = (state.came.read(), state.dropped.read());
        writer.u32(meter.id).u16(0).zeros(6).u32(used);
        writer.u64(came.0).u64(came.1);
        write_age(writer, state.made.elapsed());
        writer.u64(dropped.0).u64(dropped.1);
        writer.length_at(start, start + 4);
    }
}

pub(super) fn write_flow(writer: &mut Writer, kept: &Kept, count: (u64, u64)) {
    let (start, rule) = (writer.0.len(), &kept.rule);
    let age = kept.made.elapsed();
    writer
        .u16(0)
        .u8(rule.table)
        .zeros(1)
        .u32(age.as_secs() as u32)
        .u32(age.subsec_nanos());
    writer
        .u16(rule.priority)
        .u16(rule.idle_s)
        .u16(rule.hard_s)
        .u16(rule.flags)
        .zeros(4);
    writer.u64(rule.cookie).u64(count.0).u64(count.1);
    write_match(writer, &rule.value, &rule.mask);
    write_instructions(writer, &rule.does);
    writer.length_at(start, start);
}

/// Writes the description of a port as an entry of a reply.
pub(super) fn write_port(writer: &mut Writer, port: u8, is_up: bool) {
    writer.u32(u32::from(port) + 1).zeros(4);
    writer.0.extend([2, 0, 0, 0, 0, port]);
    writer.zeros(2).text(&format!("port{port}"), 16);
    // The state is "link down" or "live".
    writer.u32(0).u32(if is_up { 4 } else { 1 });
    writer.zeros(24);
}

/// Writes a duration as seconds and the remaining nanoseconds.
pub(super) fn write_age(writer: &mut Writer, age: Duration) {
    writer.u32(age.as_secs() as u32).u32(age.subsec_nanos());
}

/// Writes the features of the table with number `table`; all tables have the same features.
pub(super) fn write_abilities(writer: &mut Writer, table: u8) {
    let mut property = |kind: u16, write: &dyn Fn(&mut Writer)| {
        let start = writer.0.len();
        writer.u16(kind).u16(0);
        write(writer);
        writer.length_at(start, start + 2);
        writer.pad(start);
    };
    let kinds = |kinds: &'static [u16]| {
        move |writer: &mut Writer| {
            for kind in kinds {
                writer.u16(*kind).u16(4);
            }
        }
    };
    property(0, &kinds(&INSTRUCTIONS));
    property(2, &|writer| {
        writer.0.extend(table + 1..TABLES);
    });
    property(4, &kinds(&ACTIONS));
    property(6, &kinds(&ACTIONS));
    for kind in [8, 10] {
        property(kind, &|writer| write_fields(writer, |_| true));
    }
    for kind in [12, 14] {
        let can_be_set = |field| crate::action::steps(&[Action::Set(field, Of::Any, 0)], 0).is_ok();
        property(kind, &|writer| write_fields(writer, can_be_set));
    }
}

fn group_type(kind: GroupKind) -> u8 {
    match kind {
        GroupKind::All => 0,
        GroupKind::Select => 1,
        GroupKind::Indirect => 2,
        GroupKind::FastFailover => 3,
    }
}
