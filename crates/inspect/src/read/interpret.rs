//! Interprets one rule: first its header, then each of its options. The other files of this module interpret the
//! options.

use super::buffers::{buffer_of, header_of, transform_of};
use super::finish::split_by_side;
use super::header::action;
use super::packet::checksum;
use super::reader::{Dialect, Names, Reader};
use crate::ranges::Ranges;
use crate::refusal::{Placed, Read, Refusal, wrong};
use crate::rule::*;
use crate::syntax::{Written, WrittenOption};
use crate::transform::MOST_TRANSFORMS;
use crate::{anomaly, form, keywords};
use std::sync::Arc;

impl Reader<'_> {
    /// Returns true if the option `name` is supported with at least one value.
    pub(super) fn knows(&self, name: &str) -> bool {
        let mut names = Names::default();
        let mut other = Reader::new(&mut names, self.dialect, self.variables);
        let option = WrittenOption {
            name,
            value: None,
            at: 0,
        };
        let read = other.option(&option, &mut no_rule(Action::Alert, 0));
        !matches!(read, Err(Refusal::Unknown))
    }

    pub(super) fn rule(&mut self, written: &Written<'_>) -> Placed<Rule> {
        let Some(first) = written.header.first() else {
            return Err((0, "expected an action, such as alert".to_string()));
        };
        let action = match action(first.text) {
            Ok(action) => action,
            Err(Refusal::Wrong(reason)) => return Err((first.at, reason)),
            Err(_) => {
                self.not_understood.push(format!("action {}", first.text));
                Action::Alert
            }
        };
        let mut rule = no_rule(action, written.line);
        self.header(&written.header, &mut rule)?;
        form::check(&written.options)?;
        let mut sides = Vec::new();
        for option in &written.options {
            match self.option(option, &mut rule) {
                Ok(()) => {}
                Err(Refusal::Wrong(reason)) => {
                    return Err((option.at, format!("{}: {reason}", option.name)));
                }
                Err(Refusal::NotUnderstood | Refusal::Unknown) => {
                    self.not_understood.push(option.name.to_string());
                }
                Err(Refusal::Unable(what)) => self.not_understood.push(what),
            }
            sides.resize(rule.steps.len(), self.side);
        }
        if rule.about.id == 0 {
            return Err((0, "a rule needs its number: sid:1;".to_string()));
        }
        if self.is_of_transactions {
            match split_by_side(&mut rule, &sides) {
                Ok(response) => rule.response = Some(Box::new(self.finished(response)?)),
                Err(reason) => self.not_understood.push(format!("=> {reason}")),
            }
        }
        self.finished(rule)
    }

    fn option(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<()> {
        let value = option.value.unwrap_or_default();
        if self.is_of_transactions
            && let Some(side) = side_of(value)
            && let Some(buffer) = buffer_of(option.name, "")?
        {
            if buffer.to_server().is_some_and(|it| it != side) {
                return wrong("a buffer of the other message");
            }
            self.select(buffer, option.name, rule)?;
            self.side = Some(side);
            return Ok(());
        }
        if let Some(buffer) = buffer_of(option.name, value)? {
            return self.select(buffer, option.name, rule);
        }
        if let Some((buffer, header)) = header_of(option.name) {
            rule.headers.extend(header);
            return self.select(buffer, option.name, rule);
        }
        if let Some(transform) = transform_of(option.name, value)? {
            if self.transforms.len() == MOST_TRANSFORMS {
                return wrong(format!("more than {MOST_TRANSFORMS} changes to a buffer"));
            }
            self.transforms.push(transform);
            return Ok(());
        }
        // Snort has another syntax for the values of these options.
        if self.dialect == Dialect::Suricata
            && let Some(steps) = keywords::steps_of(option.name, value)?
        {
            rule.steps.extend(steps);
            return Ok(());
        }
        if self.about(option, rule)?
            || self.payload(option, rule)?
            || self.about_headers(option, rule)?
        {
            return Ok(());
        }
        match anomaly::checksum(option.name) {
            Some((version, protocol)) => checksum(version, protocol, value, rule),
            None => Err(Refusal::Unknown),
        }
    }
}

/// Reads the message that a buffer belongs to in a rule with `=>`: true for the request, false for the response, none
/// for an invalid value.
fn side_of(value: &str) -> Option<bool> {
    match value.trim() {
        "to_server" => Some(true),
        "to_client" => Some(false),
        _ => None,
    }
}

/// Returns a rule without tests.
fn no_rule(action: Action, line: usize) -> Rule {
    Rule {
        action,
        protocol: Protocol::Ip,
        applications: Vec::new(),
        not_applications: Vec::new(),
        services: Vec::new(),
        source: any_side(),
        destination: any_side(),
        both_ways: false,
        flow: FlowTest::default(),
        headers: Vec::new(),
        steps: Vec::new(),
        is_positional: false,
        bits: Vec::new(),
        host_bits: Vec::new(),
        is_silent: false,
        is_told: false,
        bypasses: false,
        rate: None,
        response: None,
        half: None,
        about: About {
            group: 1,
            line,
            ..About::default()
        },
    }
}

fn any_side() -> Side {
    Side {
        addresses: Arc::new(Ranges::all()),
        ports: Arc::new(Ranges::all()),
    }
}
