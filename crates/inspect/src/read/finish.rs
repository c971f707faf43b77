//! The last step of reading a rule, after all of its options: orders its tests, and checks the rule as a whole. A rule
//! about a request and its response is split into two halves.

use super::reader::{Dialect, Reader};
use crate::buffer::{Application, Buffer};
use crate::evaluate::MOST_CHANGED;
use crate::refusal::Placed;
use crate::rule::*;

/// Maximum number of steps of a rule.
const MOST_STEPS: usize = 64;

impl Reader<'_> {
    /// Returns the finished rule, after all of its options were read.
    pub(super) fn finished(&mut self, mut rule: Rule) -> Placed<Rule> {
        if rule.steps.len() > MOST_STEPS {
            return Err((0, format!("more than {MOST_STEPS} tests of contents")));
        }
        if self.dialect == Dialect::Suricata {
            // Tests of one buffer become adjacent, even if they are separated in the rule.
            let first_beside = |step| rule.steps.iter().position(|it| it.is_beside(step));
            let order: Vec<_> = rule.steps.iter().map(first_beside).collect();
            let mut placed: Vec<_> = order.into_iter().zip(rule.steps).collect();
            placed.sort_by_key(|(place, step)| (*place, !step.is_absence()));
            rule.steps = placed.into_iter().map(|(_, step)| step).collect();
        }
        check_absences(&rule.steps).map_err(|reason| (0, reason))?;
        if changed_of(&rule.steps) > MOST_CHANGED {
            return Err((
                0,
                format!("more than {MOST_CHANGED} buffers that are changed or decoded"),
            ));
        }
        let in_payload = |step: &&Step| step.buffer == Buffer::Payload;
        rule.is_positional |= rule
            .steps
            .iter()
            .filter(in_payload)
            .any(|step| step.test.is_positional())
            || rule
                .headers
                .iter()
                .any(|test| matches!(test, HeaderTest::PayloadLen(_)));
        self.not_understood.extend(never_fits(&mut rule));
        let asks_messages = |step: &Step| step.buffer.application().is_some();
        if let Some(hook) = self.hook.take()
            && !rule.steps.iter().any(asks_messages)
        {
            self.not_understood.push(format!("{hook} without a buffer"));
        }
        Ok(rule)
    }
}

/// Checks that a buffer which must be absent has no other test, and that a buffer which may be absent has another test.
fn check_absences(steps: &[Step]) -> Result<(), String> {
    for (place, step) in steps.iter().enumerate() {
        let Test::Absent { or_else } = step.test else {
            continue;
        };
        let has_other = |it: &Step| it.is_beside(step) && !it.is_absence();
        let rest = steps.get(place + 1..).unwrap_or_default();
        match (or_else, rest.iter().any(has_other)) {
            (false, true) => {
                return Err("absent: expected no other test of that buffer".to_string());
            }
            (true, false) => return Err("absent: expected a test after or_else".to_string()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the number of buffers of a rule that are transformed or decoded.
fn changed_of(steps: &[Step]) -> usize {
    let mut before = None;
    let mut changed = 0;
    for step in steps {
        let place = (step.buffer, &step.transforms);
        let is_new = before.replace(place) != Some(place);
        changed += usize::from(is_new && !step.transforms.is_empty());
        changed += usize::from(matches!(step.test, Test::Base64 { .. }));
    }
    changed
}

/// Splits a rule about a request and its response. `rule` keeps the tests of the request; the returned rule has the
/// tests of the response. `sides` has an entry for each test: true for the request, false for the response, none if the
/// rule does not specify it.
///
/// # Errors
/// Returns the reason why the rule is not supported.
pub(super) fn split_by_side(rule: &mut Rule, sides: &[Option<bool>]) -> Result<Rule, String> {
    if !rule.applications.contains(&Application::Http) {
        return Err("of another protocol than HTTP/1".to_string());
    }
    if rule.flow.to_server.is_some() {
        return Err("with a direction".to_string());
    }
    if !rule.headers.is_empty() {
        return Err("with tests of headers".to_string());
    }
    let (mut of_request, mut of_response) = (Vec::new(), Vec::new());
    for (step, side) in rule.steps.iter().zip(sides) {
        match step.buffer.to_server().or(*side) {
            Some(true) => of_request.push(step.clone()),
            Some(false) => of_response.push(step.clone()),
            None => {
                let what = "with a buffer that both messages have: add to_server or to_client";
                return Err(what.to_string());
            }
        }
    }
    if of_request.is_empty() || of_response.is_empty() {
        return Err("without buffers of both messages".to_string());
    }
    // For HTTP/2, the parser does not match responses with requests, so the rule applies only to HTTP/1.x.
    rule.applications = vec![Application::Http];
    rule.flow.to_server = Some(true);
    let mut response = rule.clone();
    std::mem::swap(&mut response.source, &mut response.destination);
    response.flow.to_server = Some(false);
    (rule.steps, response.steps) = (of_request, of_response);
    Ok(response)
}

/// Limits the protocols of a rule to those that have all buffers of the rule; returns the reason if the rule can never
/// match.
fn never_fits(rule: &mut Rule) -> Option<String> {
    for step in &rule.steps {
        let of = step.buffer.applications();
        let (Some(of_buffer), Some(of_rule)) = (of.first(), rule.applications.first()) else {
            rule.applications.extend(of);
            continue;
        };
        if !rule.applications.iter().any(|it| of.contains(it)) {
            return Some(format!(
                "a buffer of {} in a rule about {}",
                of_buffer.name(),
                of_rule.name()
            ));
        }
        rule.applications.retain(|it| of.contains(it));
    }
    let is_carried = |it: &Application| match rule.protocol {
        Protocol::Ip => true,
        Protocol::Tcp => !matches!(it, Application::Ntp | Application::Ike),
        Protocol::Udp => matches!(
            it,
            Application::Dns | Application::Sip | Application::Ntp | Application::Ike
        ),
        Protocol::Icmp => false,
    };
    if let Some(first) = rule.applications.first()
        && !rule.applications.iter().any(is_carried)
    {
        return Some(format!(
            "{} over another protocol than its own",
            first.name()
        ));
    }
    let directions = rule.steps.iter().map(|step| step.buffer.to_server());
    let directions = directions.chain([rule.flow.to_server]);
    let mut known = directions.flatten();
    let first = known.next();
    if known.any(|it| Some(it) != first) {
        return Some("buffers of the other direction".to_string());
    }
    // An absent buffer does not determine the direction.
    if rule.steps.iter().any(Step::is_absence) {
        rule.flow.to_server = first;
    }
    None
}
