//! The selections in OpenFlow requests: the rules to which a change or a statistics request applies, and the items that
//! a long reply lists.

use super::fields::read_match;
use super::kinds::multipart;
use super::lists::{self, reserved};
use super::plant::Plant;
use super::wire::{Reader, Wrong};
use crate::action::Action;
use crate::control::{Control, Rule};
use crate::key::Key;
use std::collections::HashMap;

/// The table number that means all tables.
pub(super) const ALL_TABLES: u8 = 0xff;

/// The rules that an OpenFlow message selects: by table, output, cookie and match.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) table: Option<u8>,
    pub(super) out_port: Option<u32>,
    pub(super) out_group: Option<u32>,
    pub(super) cookie: u64,
    pub(super) cookie_mask: u64,
    pub(super) value: Key,
    pub(super) mask: Key,
}

impl Asked {
    /// Reads the selection of rules in a statistics request.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Wrong> {
        let table = reader.u8()?;
        reader.skip(3)?;
        let (out_port, out_group) = (reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let (cookie, cookie_mask) = (reader.u64()?, reader.u64()?);
        let (value, mask) = read_match(reader)?;
        Ok(Self {
            table: (table != ALL_TABLES).then_some(table),
            out_port: (out_port != reserved::ANY).then_some(out_port),
            out_group: (out_group != reserved::ANY).then_some(out_group),
            cookie,
            cookie_mask,
            value,
            mask,
        })
    }

    /// Returns true if the rule's match is equal to the selection or narrower, and the rule has the requested output.
    pub(super) fn fits(&self, rule: &Rule) -> bool {
        let leads_to = |port: u32| {
            rule.does.all().any(|action| match action {
                Action::Output(to, _) => lists::number_of(*to) == port,
                _ => false,
            })
        };
        self.table.is_none_or(|table| table == rule.table)
            && rule.mask.and(&self.mask) == self.mask
            && rule.value.and(&self.mask) == self.value
            && (rule.cookie ^ self.cookie) & self.cookie_mask == 0
            && self.out_port.is_none_or(leads_to)
            && self
                .out_group
                .is_none_or(|id| rule.does.all().any(|it| *it == Action::Group(id)))
    }
}

/// A reply that consists of several messages (parts). Further parts are written only as the peer reads, so that little
/// output is pending for any number of rules.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) xid: u32,
    pub(super) kind: u16,
    pub(super) what: Subject,
    /// The identifier of the rule, group or meter with which the reply continues.
    pub(super) next: u32,
}

/// The items that a long reply lists.
#[derive(Debug)]
pub(super) enum Subject {
    Rules(Asked),
    /// All groups, or the one with this identifier, and for each group the number of rules that use it.
    Groups(Option<u32>, HashMap<u32, u32>),
    Meters(Option<u32>, HashMap<u32, u32>),
}

impl Subject {
    /// Returns the items that a long reply to a request lists; none for short replies.
    pub(super) fn of(
        kind: u16,
        reader: &mut Reader<'_>,
        plant: &Plant<'_>,
    ) -> Result<Option<Self>, Wrong> {
        let one = |asked: u32, all: u32| (asked != all).then_some(asked);
        Ok(Some(match kind {
            multipart::FLOW => Self::Rules(Asked::read(reader)?),
            multipart::GROUP | multipart::GROUP_DESC => {
                let asked = match kind {
                    multipart::GROUP => reader.u32()?,
                    _ => reserved::ALL_GROUPS,
                };
                let uses = uses(plant.control, |action| match action {
                    Action::Group(id) => Some(*id),
                    _ => None,
                });
                Self::Groups(one(asked, reserved::ALL_GROUPS), uses)
            }
            multipart::METER | multipart::METER_CONFIG => {
                let asked = reader.u32()?;
                let uses = uses(plant.control, |action| match action {
                    Action::Meter(id) => Some(*id),
                    _ => None,
                });
                Self::Meters(one(asked, reserved::ANY), uses)
            }
            _ => return Ok(None),
        }))
    }
}

/// Returns, for each group or meter, the number of rules that use it. `of` finds the group or meter of an action.
fn uses(control: &Control, of: impl Fn(&Action) -> Option<u32>) -> HashMap<u32, u32> {
    let mut uses = HashMap::new();
    for (_, kept) in control.rules() {
        for id in kept.rule.does.all().filter_map(&of) {
            *uses.entry(id).or_default() += 1;
        }
    }
    uses
}
