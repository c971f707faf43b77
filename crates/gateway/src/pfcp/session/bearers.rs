//! The bearers and classifiers that a session needs in the table, and how they are collected by tunnel and user.

use super::super::refusal::Refusal;
use crate::classifier::{Choice, MOST_CHOICES};
use crate::sorted::Sorted;
use crate::{Action, Bearer, Classifier, Limits, Match};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use taut_wire::pfcp::{Cause, FailedRule};

/// A bearer, and the rate limits of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Limited {
    pub bearer: Bearer,
    pub limits: Limits,
}

/// The classifier of the packets of one tunnel or user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Classified {
    pub number: u32,
    /// The position of each detection rule in the classifier, by the identifier of the detection rule.
    places: BTreeMap<u16, u8>,
    pub classifier: Arc<Classifier>,
}

/// The bearers and classifiers derived from a session's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Followed {
    pub bearers: Sorted<Match, Limited>,
    pub classified: Sorted<Match, Classified>,
}

/// A detection rule of a tunnel or a user: its number, its filters, and its bearer.
pub(super) type Detection = (u16, Choice, Limited);

/// The detection rules of each tunnel and user of a session, in order of evaluation.
pub(super) struct Detections {
    pub(super) of_match: BTreeMap<Match, Vec<Detection>>,
    /// The number of bearers that these rules need.
    pub(super) bearers: usize,
    pub(super) most_bearers: usize,
}

impl Detections {
    /// Adds a rule to its tunnel or user. `users` are the users that the rule itself names.
    pub(super) fn add(
        &mut self,
        id: u16,
        limited: Limited,
        choice: &Choice,
        users: &[IpAddr],
    ) -> Result<(), Refusal> {
        let matched = limited.bearer.matched;
        if matched.key() == 0 {
            return Err(Refusal::rule(FailedRule::Pdr(id)));
        }
        let list = self.of_match.entry(matched).or_default();
        // A rule that matches all packets hides all later rules, which are therefore omitted.
        if list.last().is_some_and(|(_, last, _)| last.takes_all()) {
            return Ok(());
        }
        // The number of bearers may be as large as the product of rules and tunnels, so the limit is checked before a
        // bearer is added.
        self.bearers += 1;
        if list.len() == MOST_CHOICES || self.bearers > self.most_bearers {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        let mut choice = choice.clone();
        let mut filters = choice.filters.iter();
        if filters.any(|filter| filter.takes_all(users)) {
            choice.filters.clear();
        }
        list.push((id, choice, limited));
        Ok(())
    }
}

impl Followed {
    /// Adds the bearers of a tunnel or a user with several rules, or with one rule that needs more than a bearer
    /// offers. `before` is the previous classifier.
    pub(super) fn classify(
        &mut self,
        matched: Match,
        number: u32,
        mut list: Vec<Detection>,
        before: Option<&Classified>,
    ) -> Result<(), Refusal> {
        let none = BTreeMap::new();
        let known = before.map_or(&none, |before| &before.places);
        let places = places(list.iter().map(|(id, ..)| *id), known)?;
        for (id, choice, limited) in &mut list {
            choice.place = places[id];
            limited.bearer.matched = Classifier::match_of(number, choice.place);
            self.bearers.insert(limited.bearer.matched, *limited);
        }
        let classifying = Limited {
            bearer: Bearer {
                matched,
                action: Action::Classify { number },
            },
            limits: Limits::default(),
        };
        self.bearers.insert(matched, classifying);
        let classifier = Classifier(list.into_iter().map(|(_, choice, _)| choice).collect());
        // An unchanged classifier is not replaced: workers keep the one that they have.
        let classifier = match before {
            Some(before) if *before.classifier == classifier => Arc::clone(&before.classifier),
            _ => Arc::new(classifier),
        };
        let classified = Classified {
            number,
            places,
            classifier,
        };
        self.classified.insert(matched, classified);
        Ok(())
    }
}

/// Returns the positions of detection rules in the classifier; a rule that already has a position keeps it.
fn places(
    ids: impl Iterator<Item = u16>,
    known: &BTreeMap<u16, u8>,
) -> Result<BTreeMap<u16, u8>, Refusal> {
    let ids: BTreeSet<u16> = ids.collect();
    if ids.len() > MOST_CHOICES {
        return Err(Refusal::new(Cause::NO_RESOURCES));
    }
    let mut places: BTreeMap<u16, u8> = BTreeMap::new();
    places.extend(known.iter().filter(|(id, _)| ids.contains(id)));
    let taken: BTreeSet<u8> = places.values().copied().collect();
    let mut free = (0..=u8::MAX).filter(|place| !taken.contains(place));
    for id in ids {
        if !places.contains_key(&id)
            && let Some(place) = free.next()
        {
            places.insert(id, place);
        }
    }
    Ok(places)
}
