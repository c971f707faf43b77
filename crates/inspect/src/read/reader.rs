//! The state of reading one rule, which options of all families use: the selected buffer, the variables that were read,
//! and the unsupported parts.

use crate::buffer::Buffer;
use crate::form;
use crate::number::{signed, within};
use crate::refusal::{Read, wrong};
use crate::rule::*;
use crate::transform::Transform;
use crate::variables::Variables;
use std::collections::HashMap;

/// The syntax of a rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Snort 3: `http_uri; content:"x",nocase;`.
    Snort3,
    /// Suricata, and Snort 2: `content:"x"; nocase; http_uri;` or `http.uri; content:"x"; nocase;`.
    Suricata,
}

/// The names of flow bits and host bits, each with its bit number.
#[derive(Debug, Default, Clone)]
pub struct Names {
    numbers: HashMap<String, u16>,
}

impl Names {
    pub(super) fn number(&mut self, name: &str) -> Option<u16> {
        let next = u16::try_from(self.numbers.len())
            .ok()
            .filter(|&it| it < u16::MAX)?;
        Some(*self.numbers.entry(name.to_string()).or_insert(next))
    }

    /// Returns the number of names of bits.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if no bit has a name.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

/// Names of buffers that apply to the content before them, in Suricata's older syntax; all other buffer names apply to
/// the contents after them.
const MODIFIERS: [&str; 14] = [
    "http_method",
    "http_uri",
    "http_raw_uri",
    "http_version",
    "http_header",
    "http_raw_header",
    "http_cookie",
    "http_raw_cookie",
    "http_host",
    "http_user_agent",
    "http_client_body",
    "http_server_body",
    "http_stat_code",
    "http_stat_msg",
];

pub(super) struct Reader<'a> {
    pub(super) names: &'a mut Names,
    pub(super) dialect: Dialect,
    pub(super) variables: &'a Variables,
    /// Buffer that the next tests of the rule apply to.
    pub(super) buffer: Buffer,
    /// Transforms of the selected buffer. The next field is the number of the buffer's instance.
    pub(super) transforms: Vec<Transform>,
    instance: u8,
    /// Text about the hook in the header, such as `hook http:request_line`, for the error if no buffer of a message is
    /// tested; none without a hook.
    pub(super) hook: Option<String>,
    /// Names of the variables of byte_extract and byte_math.
    pub(super) variable_names: Vec<String>,
    pub(super) not_understood: Vec<String>,
    /// True if the header of the rule has `=>`: the rule is about a request and its response.
    pub(super) is_of_transactions: bool,
    /// Message that the selected buffer belongs to in a rule with `=>`, if the rule specifies it: true for the request.
    pub(super) side: Option<bool>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(names: &'a mut Names, dialect: Dialect, variables: &'a Variables) -> Self {
        Self {
            names,
            dialect,
            variables,
            buffer: Buffer::Payload,
            transforms: Vec::new(),
            instance: 0,
            hook: None,
            variable_names: Vec::new(),
            not_understood: Vec::new(),
            is_of_transactions: false,
            side: None,
        }
    }

    /// Selects the buffer for the next contents, or in the older syntax for the content before.
    pub(super) fn select(&mut self, buffer: Buffer, name: &str, rule: &mut Rule) -> Read<()> {
        let is_modifier = self.dialect == Dialect::Suricata && MODIFIERS.contains(&name);
        if is_modifier {
            let is_content = |step: &Step| matches!(step.test, Test::Content(_));
            let Some(last) = rule.steps.iter().rposition(is_content) else {
                return wrong("expected a content option before this modifier");
            };
            // Tests that depend on that content, and follow it, move to the same buffer.
            let before = std::mem::replace(&mut rule.steps[last].buffer, buffer);
            for step in &mut rule.steps[last + 1..] {
                let follows = step.test.is_relative() && !is_sought(&step.test);
                if follows && step.buffer == before {
                    step.buffer = buffer;
                }
            }
            return Ok(());
        }
        (self.buffer, self.side) = (buffer, None);
        self.transforms.clear();
        // If the buffer is selected again, the new tests may match another instance of it.
        let of_it = rule.steps.iter().filter(|step| step.buffer == buffer);
        let last = of_it.map(|step| step.instance).max();
        self.instance = match last {
            Some(last) if buffer.has_instances() => last.saturating_add(1),
            _ => 0,
        };
        Ok(())
    }

    pub(super) fn push(&self, test: Test, rule: &mut Rule) {
        let (mut buffer, mut transforms) = (self.buffer, self.transforms.clone());
        let mut instance = self.instance;
        // Without a selected buffer, a test relative to the last match applies to the buffer of that match.
        if self.dialect == Dialect::Suricata && buffer == Buffer::Payload && test.is_relative() {
            let last = rule.steps.iter().rev().find(|step| is_sought(&step.test));
            if let Some(last) = last {
                (buffer, transforms) = (last.buffer, last.transforms.clone());
                instance = last.instance;
            }
        }
        rule.steps.push(Step {
            buffer,
            transforms,
            instance,
            test,
        });
    }

    /// Returns the transforms that apply to `buffer`: the selected transforms if `buffer` is the selected buffer,
    /// otherwise none.
    pub(super) fn transforms_of(&self, buffer: Buffer) -> Vec<Transform> {
        match buffer == self.buffer {
            true => self.transforms.clone(),
            false => Vec::new(),
        }
    }

    /// Returns the instance number for `buffer`: the selected number if `buffer` is the selected buffer, otherwise 0.
    pub(super) fn instance_of(&self, buffer: Buffer) -> u8 {
        match buffer == self.buffer {
            true => self.instance,
            false => 0,
        }
    }

    pub(super) fn up_to(&self, most: i64, text: &str) -> Read<Within> {
        form::up_to(most, within(text, self.dialect == Dialect::Snort3)?)
    }

    pub(super) fn number_or_name(&self, text: &str) -> Read<Number> {
        number_or_name(text, &self.variable_names)
    }

    pub(super) fn variable(&mut self, name: &str) -> Read<u8> {
        let place = self.variable_names.iter().position(|known| known == name);
        let place = place.unwrap_or_else(|| {
            self.variable_names.push(name.to_string());
            self.variable_names.len() - 1
        });
        if place >= MOST_VARIABLES {
            return wrong(format!("more than {MOST_VARIABLES} variables"));
        }
        Ok(place as u8)
    }
}

/// Returns true if a test searches for a match, to which the positions of later tests can be relative.
fn is_sought(test: &Test) -> bool {
    matches!(test, Test::Content(_) | Test::Regex { .. })
}

pub(super) fn number_or_name(text: &str, variables: &[String]) -> Read<Number> {
    if let Some(variable) = variables.iter().position(|known| known == text.trim()) {
        return Ok(Number::Read(variable as u8));
    }
    signed(text).map(Number::Is).or_else(|_| {
        wrong(format!(
            "{text:?}: expected a number, or the name of one that was read before"
        ))
    })
}
