//! Packets whose tunnel or user has a classifier: the first matching rule names their bearer, and usage rules count
//! them (3GPP TS 29.244 sections 5.2.1 and 5.2.2).

use super::super::bearer::{Kind, Match};
use super::super::buffer::Held;
use super::super::classifier::{Choice, Classifier, Unclassified};
use super::super::event::Event;
use super::super::flow::Looked;
use super::super::outcome::Outcome;
use super::super::parser::Seen;
use super::super::slot::Slot;
use super::Plane;
use std::sync::Arc;
use taut_function::Context;
use taut_port::Batch;
use taut_wire::gtpu::MessageType;
use taut_wire::{Gtpu, Headers};

/// The remaining steps for a classified packet after the action of its bearer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Behind {
    pub(super) is_metered: bool,
    /// True if usage rules count the packet.
    pub(super) is_used: bool,
    /// True if a copy of the packet is buffered and the packet leaves the batch.
    pub(super) is_held: bool,
}

impl Plane {
    /// Applies the classifier of a tunnel or user to a packet. Before the call, `slot` is the bearer of the tunnel or
    /// user. After the call, it is the bearer of the matching rule.
    #[inline(never)]
    pub(super) fn classify(
        &mut self,
        batch: &mut Batch,
        index: usize,
        seen: &Seen,
        slot: &mut Slot,
        context: &Context,
    ) -> Behind {
        let number = slot.teid;
        let place = (number as usize).wrapping_sub(1);
        let Some(classifier) = self.classifiers.get(place).and_then(Option::as_ref) else {
            self.left_out(batch, index, Outcome::ToldToDrop, slot, context);
            return Behind::default();
        };
        let chosen = choose(classifier, seen, batch, index);
        let choice = match chosen {
            Ok(place) => &classifier.0[place],
            Err(unclassified) => {
                let outcome = match unclassified {
                    Unclassified::NoRule => Outcome::NoRule,
                    Unclassified::WrongFlow => Outcome::WrongFlow,
                };
                self.left_out(batch, index, outcome, slot, context);
                return Behind::default();
            }
        };
        let key = Classifier::match_of(number, choice.place).key();
        *slot = self.table.get(key).unwrap_or_default();
        let is_counted = !choice.usages.is_empty();
        if is_counted && choice.usages.iter().any(|usage| usage.is_spent()) {
            self.left_out(batch, index, Outcome::OverQuota, slot, context);
            return Behind::default();
        }
        let is_behind = !self.is_draining && self.held.is_key_due(key);
        if slot.kind() == Kind::Hold || is_behind {
            let held = choice.held.clone().or_else(|| self.held.held_of(key));
            let frame = batch.packets()[index].bytes();
            if self.hold(held, key, frame, context.to_port) {
                return Behind {
                    is_held: true,
                    ..Behind::default()
                };
            }
            self.left_out(batch, index, Outcome::NoRoomToHold, slot, context);
            return Behind::default();
        }
        let packet = &mut batch.packets_mut()[index];
        let outcome = match seen {
            Seen::Tunnelled(tunnelled) => self.tunnelled(packet, tunnelled, slot, context),
            Seen::Plain { ip, .. } => self.plain(packet, usize::from(*ip), slot, context),
            _ => Outcome::ToldToDrop,
        };
        if matches!(
            outcome,
            Outcome::Relayed | Outcome::Encapsulated | Outcome::Decapsulated
        ) {
            self.counts[outcome as usize] += 1;
            return Behind {
                is_metered: slot.is_metered(),
                is_used: is_counted,
                is_held: false,
            };
        }
        self.left_out(batch, index, outcome, slot, context);
        Behind::default()
    }

    /// Buffers a copy of a frame in the state of its rule, and notifies the control plane if a notification is due.
    /// Returns false if the rule buffers nothing, or if there is not enough space.
    #[inline(always)]
    fn hold(&mut self, held: Option<Arc<Held>>, key: u64, frame: &[u8], to_port: usize) -> bool {
        held.is_some_and(|held| {
            if held.is_to_tell() {
                let (session, rule) = (held.session, held.rule);
                let told = self.receiver.events.push(Event::Held { session, rule });
                if told.is_err() {
                    held.tell_again();
                }
            }
            self.held.hold(key, frame, &held, to_port)
        })
    }

    /// Counts the departing packets, one bit each, in the usage counters of their rules.
    #[inline(never)]
    pub(super) fn count_usage(
        &mut self,
        batch: &Batch,
        mut used: u64,
        seen: &[Seen],
        bearers: &[Slot],
        now_ticks: u64,
    ) {
        while used != 0 {
            let index = used.trailing_zeros() as usize;
            used &= used - 1;
            let Match::Rule { number, place } = Match::of_key(bearers[index].key) else {
                continue;
            };
            let bytes = self.user_bytes(&batch.packets()[index], &seen[index], &bearers[index]);
            let Some((bytes, _)) = bytes.filter(|_| batch.is_kept(index)) else {
                continue;
            };
            let classifier = self.classifiers.get((number as usize).wrapping_sub(1));
            let choices = classifier.and_then(Option::as_ref).map(|it| &it.0[..]);
            let choice = choices.and_then(|all| all.iter().find(|it| it.place == place));
            let Some(choice) = choice else {
                continue;
            };
            for usage in &choice.usages {
                if usage.count(choice.is_uplink, bytes.into(), now_ticks) {
                    let (session, rule) = (usage.session, usage.rule);
                    let told = self.receiver.events.push(Event::Used { session, rule });
                    if told.is_err() {
                        usage.tell_again();
                    }
                }
            }
        }
    }
}

/// Returns the index of the rule of a classifier that matches a packet.
#[inline(always)]
fn choose(
    classifier: &Classifier,
    seen: &Seen,
    batch: &mut Batch,
    index: usize,
) -> Result<usize, Unclassified> {
    match seen {
        // An end marker belongs to no flow: it takes the path of the last rule.
        Seen::Tunnelled(it) if it.message != MessageType::G_PDU => classifier
            .0
            .len()
            .checked_sub(1)
            .ok_or(Unclassified::NoRule),
        Seen::Tunnelled(it) => {
            let frame = batch.packets()[index].bytes();
            let headers = || Headers::inside(frame, usize::from(it.payload));
            classifier.choose(
                || Looked::of(&headers(), frame, true),
                || {
                    Gtpu::new(frame.get(usize::from(it.gtpu)..)?)
                        .ok()?
                        .pdu_session()
                        .map(|it| it.qfi)
                },
            )
        }
        _ => {
            let is_asked = !classifier.0.first().is_some_and(Choice::takes_all);
            let headers = match is_asked {
                true => batch.headers(index),
                false => Headers::default(),
            };
            let frame = batch.packets()[index].bytes();
            classifier.choose(|| Looked::of(&headers, frame, false), || None)
        }
    }
}
