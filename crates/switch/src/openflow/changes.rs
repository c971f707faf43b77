//! Messages that change rules, groups and meters, and packets that a controller sends. (OpenFlow 1.3.5, sections 7.3.4
//! and 7.3.7.)

use super::asked::{ALL_TABLES, Asked};
use super::fields::read_match;
use super::kinds::NO_BUFFER;
use super::lists::{
    self, of_group, of_meter, of_rule, read_actions, read_buckets, read_instructions, reserved,
};
use super::plant::{Gone, PacketOut, Plant};
use super::wire::{Reader, Wrong};
use crate::action::{Action, ETHERNET_BYTES, Instructions, TAG_BYTES};
use crate::control::{Control, Rule, RuleId};
use crate::group::{Group, GroupKind};
use crate::meter::{Limit, Meter};
use crate::refusal::Refused;
use crate::table::TABLES;

/// The maximum length of a frame from a controller, so that it fits into the ring to the worker.
pub(super) const MOST_FRAME_BYTES: usize = 1984;

/// The flags in a message that adds a rule: the first requests a check for overlapping rules, the second resets the
/// counts.
const CHECK_OVERLAP: u16 = 2;
const RESET_COUNTS: u16 = 4;

pub(super) fn flow_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (cookie, cookie_mask) = (reader.u64()?, reader.u64()?);
    let (table, command) = (reader.u8()?, reader.u8()?);
    let (idle_s, hard_s, priority) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (buffer, out_port, out_group, flags) =
        (reader.u32()?, reader.u32()?, reader.u32()?, reader.u16()?);
    reader.skip(2)?;
    let (value, mask) = read_match(reader)?;
    let is_deletion = matches!(command, 3 | 4);
    let does = match is_deletion {
        // A delete command ignores the instructions.
        true => Instructions::default(),
        false => read_instructions(*reader, plant.ports, (value, mask))?,
    };
    if buffer != NO_BUFFER && !is_deletion {
        return Err(Wrong::BUFFER_UNKNOWN);
    }
    if table >= TABLES && !(is_deletion && table == ALL_TABLES) {
        return Err(Wrong::BAD_TABLE);
    }
    let asked = Asked {
        table: (table != ALL_TABLES).then_some(table),
        out_port: (is_deletion && out_port != reserved::ANY).then_some(out_port),
        out_group: (is_deletion && out_group != reserved::ANY).then_some(out_group),
        cookie,
        cookie_mask,
        value,
        mask,
    };
    let control = &mut *plant.control;
    let strict = matches!(command, 2 | 4).then_some(priority);
    match command {
        0 => {
            let rule = Rule {
                table,
                priority,
                value,
                mask,
                does,
                cookie,
                flags,
                idle_s,
                hard_s,
            };
            add_rule(control, rule)
        }
        1 | 2 => {
            let rules = selected(control, &asked, strict);
            change_rules(control, rules, &does, flags)
        }
        3 | 4 => {
            let rules = selected(control, &asked, strict);
            remove_rules(plant, rules);
            Ok(())
        }
        _ => Err(Wrong::BAD_FLOW_COMMAND),
    }
}

/// Returns the rules that a change or a deletion selects. With a priority `strict`, these are the rules with exactly
/// the requested match at that priority. Otherwise, these are the rules with an equal or narrower match.
fn selected(control: &Control, asked: &Asked, strict: Option<u16>) -> Vec<RuleId> {
    if let (Some(priority), Some(table)) = (strict, asked.table) {
        let same = control.same(table, priority, &asked.value, &asked.mask);
        let fits = |id: &RuleId| control.rule(*id).is_some_and(|kept| asked.fits(&kept.rule));
        return same.into_iter().filter(fits).collect();
    }
    let rules = control.rules().filter(|(_, kept)| {
        let rule = &kept.rule;
        let is_same = |priority: u16| {
            (rule.priority, rule.value, rule.mask) == (priority, asked.value, asked.mask)
        };
        asked.fits(rule) && strict.is_none_or(is_same)
    });
    rules.map(|(id, _)| id).collect()
}

/// Adds a rule, or replaces the rule with the same match. The flags of the rule determine whether overlapping rules are
/// refused, and whether the counts are reset.
fn add_rule(control: &mut Control, rule: Rule) -> Result<(), Wrong> {
    if rule.flags & CHECK_OVERLAP != 0 && control.overlaps(&rule) {
        return Err(Wrong::OVERLAP);
    }
    let keeps_counts = rule.flags & RESET_COUNTS == 0;
    control.replace(rule, keeps_counts).map_err(of_rule)
}

/// Replaces the instructions of the given rules.
fn change_rules(
    control: &mut Control,
    rules: Vec<RuleId>,
    does: &Instructions,
    flags: u16,
) -> Result<(), Wrong> {
    for id in rules {
        control.change(id, does.clone()).map_err(of_rule)?;
        if flags & RESET_COUNTS != 0 {
            control.clear_count(id);
        }
    }
    Ok(())
}

fn remove_rules(plant: &mut Plant<'_>, rules: Vec<RuleId>) {
    for id in rules {
        if let Some(kept) = plant.control.remove(id) {
            plant.removed.push((id, kept, Gone::Deleted));
        }
    }
}

pub(super) fn group_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (command, kind) = (reader.u16()?, reader.u8()?);
    reader.skip(1)?;
    let id = reader.u32()?;
    if command == 2 {
        let gone = plant
            .control
            .remove_groups(|it| id == reserved::ALL_GROUPS || it == id);
        let gone = gone
            .into_iter()
            .map(|(id, kept)| (id, kept, Gone::WithGroup));
        plant.removed.extend(gone);
        return Ok(());
    }
    if id >= 0xffff_ff00 {
        return Err(Wrong::INVALID_GROUP);
    }
    let kind = match kind {
        0 => GroupKind::All,
        1 => GroupKind::Select,
        2 => GroupKind::Indirect,
        3 => GroupKind::FastFailover,
        _ => return Err(Wrong::BAD_GROUP_TYPE),
    };
    let group = Group {
        id,
        kind,
        buckets: read_buckets(*reader, plant.ports)?,
    };
    match command {
        0 => plant.control.add_group(group).map_err(of_group),
        1 => plant.control.change_group(group).map_err(of_group),
        _ => Err(Wrong::BAD_GROUP_COMMAND),
    }
}

pub(super) fn meter_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (command, flags, id) = (reader.u16()?, reader.u16()?, reader.u32()?);
    if command == 2 {
        let gone = plant
            .control
            .remove_meters(|it| id == reserved::ANY || it == id);
        let gone = gone.into_iter().map(|(id, kept)| (id, kept, Gone::Deleted));
        plant.removed.extend(gone);
        return Ok(());
    }
    if id == 0 || id > 0xffff_0000 {
        return Err(Wrong::INVALID_METER);
    }
    let (kind, length) = (reader.u16()?, reader.u16()?);
    let (rate, burst) = (reader.u32()?, reader.u32()?);
    if kind != 1 || length != 16 {
        return Err(Wrong::BAD_BAND);
    }
    reader.skip(4)?;
    if !reader.is_empty() {
        return Err(Wrong::OUT_OF_BANDS);
    }
    let rate = match flags & 3 {
        0 | 1 => Limit::Kbps(rate),
        2 => Limit::Pps(rate),
        _ => return Err(Wrong::BAD_METER_FLAGS),
    };
    let meter = Meter {
        id,
        rate,
        burst: (flags & 4 != 0).then_some(burst),
    };
    match command {
        0 => plant.control.add_meter(meter).map_err(of_meter),
        1 => plant.control.change_meter(meter).map_err(of_meter),
        _ => Err(Wrong::BAD_METER_COMMAND),
    }
}

pub(super) fn packet_out(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (buffer, in_port, length) = (reader.u32()?, reader.u32()?, reader.u16()?);
    reader.skip(6)?;
    if buffer != NO_BUFFER {
        return Err(Wrong::BUFFER_UNKNOWN);
    }
    let actions = Reader(reader.bytes(usize::from(length), Wrong::BAD_LENGTH)?);
    let lists::Listed {
        actions,
        through_tables,
    } = read_actions(actions, plant.ports)?;
    crate::action::steps(&actions, 0).map_err(|why| of_rule(Refused::Actions(why)))?;
    let is_push = |action: &&Action| matches!(action, Action::PushVlan(_));
    let longest = reader.0.len() + TAG_BYTES * actions.iter().filter(is_push).count();
    if reader.0.len() < ETHERNET_BYTES || longest > MOST_FRAME_BYTES {
        return Err(Wrong::BAD_PACKET);
    }
    plant.sent.push(PacketOut {
        in_port: lists::port(in_port, plant.ports),
        actions,
        through_tables,
        frame: reader.0.to_vec(),
    });
    Ok(())
}
