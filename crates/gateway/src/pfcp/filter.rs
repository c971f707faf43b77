//! The filters of a detection rule on the packets of its tunnel or user: SDF filters (3GPP TS 29.244 section 8.2.5),
//! and references by number to filters of other rules of the session.

use super::super::FlowFilter;
use super::element::look;
use super::refusal::Refusal;
use std::collections::BTreeMap;
use taut_wire::pfcp::{Element, ElementType, FailedRule, SdfFilter};

/// The limit on filters of one detection rule.
const MOST_FILTERS: usize = 32;

/// One filter of a detection rule: given in full, or as a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// A filter, and the number by which other rules may refer to it; none if the filter has no number.
    Filter(FlowFilter, Option<u32>),
    /// A reference to the filter with that number, which another rule of the session contains.
    Named(u32),
}

/// The filters of a detection rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filters {
    pub said: Vec<Said>,
    /// True if the rule is for an application. The gateway does not detect applications.
    pub has_application: bool,
}

impl Filters {
    /// Parses the detection information of rule `id`; none if it has no flow filters.
    pub fn of(id: u16, pdi: &Element<'_>) -> Result<Option<Self>, Refusal> {
        let mut filters = Self {
            said: Vec::new(),
            has_application: look(pdi, ElementType::APPLICATION_ID)?.is_some(),
        };
        let failed = Refusal::rule(FailedRule::Pdr(id));
        for element in pdi.group() {
            let element = element?;
            if element.element_type != ElementType::SDF_FILTER {
                continue;
            }
            if filters.said.len() == MOST_FILTERS {
                return Err(failed);
            }
            filters.said.push(said(&element)?.ok_or(failed)?);
        }
        let is_any = filters.has_application || !filters.said.is_empty();
        Ok(is_any.then_some(filters))
    }

    /// Returns the filters to which other rules can refer, each with its number.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &FlowFilter)> {
        self.said.iter().filter_map(|said| match said {
            Said::Filter(filter, Some(number)) => Some((*number, filter)),
            _ => None,
        })
    }

    /// Returns the rule's own filters and the filters that the rule refers to; none if a reference is to an unknown
    /// filter.
    pub fn resolved(&self, known: &BTreeMap<u32, &FlowFilter>) -> Option<Vec<FlowFilter>> {
        let filters = self.said.iter().map(|said| match said {
            Said::Filter(filter, _) => Some(filter.clone()),
            Said::Named(number) => known.get(number).map(|filter| (*filter).clone()),
        });
        filters.collect()
    }
}

/// Parses an SDF filter; none if it is empty, or has only unsupported parts.
fn said(element: &Element<'_>) -> Result<Option<Said>, Refusal> {
    let said = SdfFilter::parse(element.value)?;
    let only_number = SdfFilter {
        id: said.id,
        ..SdfFilter::default()
    };
    if said == only_number {
        return Ok(said.id.map(Said::Named));
    }
    let mut filter = match said.description.map(std::str::from_utf8) {
        None => FlowFilter::default(),
        Some(Err(_)) => return Ok(None),
        Some(Ok(text)) => match FlowFilter::described(text) {
            Err(_) => return Ok(None),
            Ok(filter) => filter,
        },
    };
    filter.traffic_class = said.traffic_class;
    filter.security_parameters = said.security_parameters;
    filter.flow_label = said.flow_label;
    Ok(Some(Said::Filter(filter, said.id)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::pfcp::{Cause, Writer};

    fn read(values: &[Vec<u8>]) -> Result<Option<Filters>, Refusal> {
        let mut pdi = Writer::group();
        for value in values {
            pdi.element(ElementType::SDF_FILTER, value);
        }
        let mut message = Writer::message(taut_wire::pfcp::MessageType(0), None, 0);
        message.grouped(ElementType::PDI, &pdi);
        let bytes = message.finish().unwrap();
        let message = taut_wire::pfcp::Message::parse(&bytes).unwrap();
        Filters::of(7, &message.elements.clone().next().unwrap().unwrap())
    }

    fn described(text: &str, id: Option<u32>) -> Vec<u8> {
        let description = Some(text.as_bytes());
        SdfFilter {
            description,
            id,
            ..SdfFilter::default()
        }
        .emit()
    }

    #[test]
    fn a_filter_can_refer_to_the_filter_of_another_rule() {
        let text = "permit out 17 from 198.51.100.7 5060 to assigned";
        let first = read(&[described(text, Some(9))]).unwrap().unwrap();
        let only = SdfFilter {
            id: Some(9),
            ..SdfFilter::default()
        };
        let second = read(&[only.emit()]).unwrap().unwrap();
        let known: BTreeMap<_, _> = first.numbered().collect();
        let wanted = vec![FlowFilter::described(text).unwrap()];
        assert_eq!(second.resolved(&known), Some(wanted.clone()));
        assert_eq!(first.resolved(&BTreeMap::new()), Some(wanted));
        assert_eq!(second.resolved(&BTreeMap::new()), None);
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn unsupported_filters_fail_their_rule_and_truncated_filters_are_refused() {
        let failed = Err(Refusal::rule(FailedRule::Pdr(7)));
        for value in [
            described("deny out ip from any to any", None),
            described("", Some(3)),
            vec![1, 0, 0, 1, 0xff],
            vec![0, 0],
        ] {
            assert_eq!(read(std::slice::from_ref(&value)), failed, "{value:?}");
        }
        let many = vec![described("permit out ip from any to any", None); MOST_FILTERS + 1];
        assert_eq!(read(&many), failed);
        assert!(read(&many[1..]).is_ok());
        let cut = Err(Refusal::new(Cause::INVALID_LENGTH));
        for value in [
            &[][..],
            &[1],
            &[1, 0],
            &[1, 0, 0],
            &[1, 0, 0, 5, b'p'],
            &[2, 0, 1],
        ] {
            assert_eq!(read(&[value.to_vec()]), cut, "{value:?}");
        }
    }
}
