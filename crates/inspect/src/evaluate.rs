//! Evaluates a rule on a packet: first its headers, then its tests of buffers one after the other. If a later test
//! depends on the position of a content, the other occurrences of that content are tried as well.
//!
//! `packet.rs` has the properties of a packet and their tests, `parts.rs` the buffers of a packet, and `data.rs` the
//! calculations with the bytes of a buffer.

mod data;
mod packet;
mod parts;

use crate::buffer::Buffer;
use crate::flow_bits::FlowBits;
use crate::pattern::Regex;
use crate::record::number_of;
use crate::rule::*;
use crate::transform::{self, Transform, transformed};
use data::{aligned, calculated, compares, decode_base64, digits, entropy, find, jump};
use packet::{bits_fit, header_fits};

pub use packet::{MOST_VLANS, Packet, Vlans};
pub use parts::{BodyPart, Message, Parts, Tls};

/// Maximum number of steps of a rule for one packet; a rule that needs more is counted and does not match.
const MOST_STEPS: u32 = 4096;
/// Maximum number of buffers per rule that are transformed or decoded.
pub const MOST_CHANGED: usize = 4;

/// The memory for one transformed buffer.
type Piece = Box<[u8; transform::MOST_BYTES]>;

/// A buffer in the form that a rule tests, and the end of the last match in it.
#[derive(Clone, Copy)]
struct Here<'a> {
    buffer: Buffer,
    instance: u8,
    transforms: &'a [Transform],
    data: &'a [u8],
    end: usize,
}

impl Here<'_> {
    /// Returns true if `step` tests this buffer.
    fn is_of(&self, step: &Step) -> bool {
        step.buffer == self.buffer
            && step.instance == self.instance
            && step.transforms == self.transforms
    }
}

/// The memory that the evaluation of rules needs, for one worker.
#[derive(Debug)]
pub struct Evaluator {
    variables: [i64; MOST_VARIABLES],
    /// Memory for transformed or decoded buffers; each step that needs memory borrows an item.
    pieces: Vec<Piece>,
    steps_left: u32,
    /// Number of rules that needed too many steps, or had to transform a buffer longer than the limit of transforms.
    pub given_up: u64,
}

impl Default for Evaluator {
    fn default() -> Self {
        Self {
            variables: [0; MOST_VARIABLES],
            pieces: (0..MOST_CHANGED)
                .map(|_| Box::new([0; transform::MOST_BYTES]))
                .collect(),
            steps_left: 0,
            given_up: 0,
        }
    }
}

impl Evaluator {
    /// Returns true if a rule matches. The function tests flow bits. After a match, the caller changes these bits and
    /// counts the match against the rule's rate.
    #[inline]
    pub fn fits(
        &mut self,
        rule: &Rule,
        packet: &Packet<'_>,
        parts: &Parts<'_>,
        bits: &FlowBits,
    ) -> bool {
        if !(header_fits(rule, packet) && bits_fit(rule, bits)) {
            return false;
        }
        if rule.steps.is_empty() {
            return true;
        }
        self.steps_left = MOST_STEPS;
        // A rule with a fixed position tests the payload of this packet, without earlier bytes of the stream.
        let mut parts = Parts {
            headers: [packet.ip_header, packet.transport_header],
            ..*parts
        };
        if rule.is_positional && parts.new_from > 0 {
            parts.payload = parts.payload.get(parts.new_from..).unwrap_or_default();
        }
        if rule.steps.len() > 1 && !has_contents(rule, &parts) {
            return false;
        }
        let payload = Here {
            buffer: Buffer::Payload,
            instance: 0,
            transforms: &[],
            data: parts.payload,
            end: 0,
        };
        let fits = self.steps_fit(&rule.steps, &parts, payload);
        if self.steps_left == 0 {
            self.given_up += 1;
            return false;
        }
        fits
    }

    /// Returns true if all tests of `steps` match, beginning in the state `here`.
    fn steps_fit(&mut self, steps: &[Step], parts: &Parts<'_>, here: Here<'_>) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            return true;
        };
        if here.is_of(step) {
            return self.step_fits(step, rest, parts, here);
        }
        // All tests of one selected buffer have to match the same instance of it.
        let first = Parts { from: 0, ..*parts };
        if step.is_absence() && first.buffer(step.buffer).is_none() {
            let others = rest.iter().position(|it| !it.is_beside(step));
            let others = &rest[others.unwrap_or(rest.len())..];
            return self.steps_fit(others, parts, here);
        }
        let mut instances = Some(first);
        while let Some(instance) = instances {
            let Some(data) = instance.buffer(step.buffer) else {
                return false;
            };
            if self.changed_fits(step, rest, parts, data) {
                return true;
            }
            instances = instance.behind(step.buffer).filter(|_| self.has_steps());
        }
        false
    }

    /// Returns true if the test of `step` and those of `rest` match in this instance of a buffer, after the transforms
    /// of `step`.
    fn changed_fits(&mut self, step: &Step, rest: &[Step], parts: &Parts<'_>, data: &[u8]) -> bool {
        let here = Here {
            buffer: step.buffer,
            instance: step.instance,
            transforms: &step.transforms,
            data,
            end: 0,
        };
        if step.transforms.is_empty() {
            return self.step_fits(step, rest, parts, here);
        }
        let Some(mut piece) = self.pieces.pop() else {
            return false;
        };
        let fits = match transformed(&step.transforms, data, &mut piece[..]) {
            Some(data) => self.step_fits(step, rest, parts, Here { data, ..here }),
            None => {
                self.given_up += 1;
                false
            }
        };
        self.pieces.push(piece);
        fits
    }

    /// Returns true if the tests after a `base64_decode` step match.
    fn decoded_fits(
        &mut self,
        text: &[u8],
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let Some(mut piece) = self.pieces.pop() else {
            return false;
        };
        let len = decode_base64(text, &mut piece[..]);
        let decoded = &piece[..len];
        let fits = len > 0 && self.next(rest, &Parts { decoded, ..*parts }, here, here.end);
        self.pieces.push(piece);
        fits
    }

    fn step_fits(&mut self, step: &Step, rest: &[Step], parts: &Parts<'_>, here: Here<'_>) -> bool {
        let Here { data, end, .. } = here;
        match &step.test {
            Test::Content(content) => self.content_fits(content, rest, parts, here),
            Test::Regex {
                regex,
                not,
                relative,
            } => {
                // A relative expression begins at the last match: it cannot see earlier bytes, and `^` matches there.
                let base = if *relative { end } else { 0 };
                self.regex_fits(regex, *not, base, rest, parts, here)
            }
            test @ (Test::Byte { .. }
            | Test::Jump { .. }
            | Test::Extract { .. }
            | Test::Math { .. }) => self
                .behind_number(test, data, end)
                .is_some_and(|end| self.next(rest, parts, here, end)),
            // An absent buffer was handled before this step, so the buffer is present here.
            Test::Absent { or_else } => *or_else && self.next(rest, parts, here, end),
            Test::Base64 {
                bytes,
                offset,
                relative,
            } => {
                let from = offset + if *relative { end } else { 0 };
                let data = data.get(from..).unwrap_or_default();
                let text = &data[..data.len().min(*bytes)];
                self.decoded_fits(text, rest, parts, here)
            }
            test @ (Test::DataAt { .. }
            | Test::Len(_)
            | Test::Number(_)
            | Test::Flags { .. }
            | Test::Entropy { .. }) => {
                self.holds(test, data, end) && self.next(rest, parts, here, end)
            }
        }
    }

    /// Returns the position after a test of a number: after the number if it satisfies the test, or the target of a
    /// jump; none if the test fails. Stores the values of variables.
    #[inline]
    fn behind_number(&mut self, test: &Test, data: &[u8], end: usize) -> Option<usize> {
        match test {
            Test::Byte {
                field,
                how,
                not,
                value,
            } => {
                let (read, _) = self.read(field, data, end)?;
                (compares(i128::from(read), *how, self.operand(*value)) != *not).then_some(end)
            }
            Test::Jump {
                field,
                times,
                align,
                from,
                and,
            } => {
                let (read, behind) = match self.value(field.bytes) {
                    0 => (0, end),
                    _ => self.read(field, data, end)?,
                };
                let base = match from {
                    JumpFrom::Here => behind as i64,
                    JumpFrom::Beginning => 0,
                    JumpFrom::End => data.len() as i64,
                };
                let distance = jump(read, *times, *align);
                // A position before the beginning counts as the beginning.
                let to = base.saturating_add(distance).saturating_add(*and).max(0);
                (to <= data.len() as i64).then_some(to as usize)
            }
            Test::Extract {
                field,
                times,
                align,
                into,
            } => {
                let (read, behind) = self.read(field, data, end)?;
                let number = aligned((read as i64).saturating_mul(*times), *align);
                self.variables[usize::from(*into) % MOST_VARIABLES] = number;
                Some(behind)
            }
            Test::Math {
                field,
                operator,
                value,
                into,
            } => {
                let (read, behind) = self.read(field, data, end)?;
                let result = calculated(read as i64, *operator, self.value(*value))?;
                self.variables[usize::from(*into) % MOST_VARIABLES] = result;
                Some(behind)
            }
            _ => None,
        }
    }

    /// Returns true if `test`, which is about the data as a whole or about one position in the data, matches.
    #[inline]
    fn holds(&self, test: &Test, data: &[u8], end: usize) -> bool {
        match test {
            Test::DataAt {
                at,
                relative,
                to_end,
                not,
            } => {
                let base = if *relative { end as i64 } else { 0 };
                let at = base.saturating_add(self.value(*at));
                let has = (0..data.len() as i64 + i64::from(*to_end)).contains(&at);
                has != *not
            }
            Test::Len(within) => within.fits(data.len() as i64),
            Test::Number(any) => {
                let number = number_of(data).and_then(|number| i64::try_from(number).ok());
                number.is_some_and(|number| any.iter().any(|within| within.fits(number)))
            }
            Test::Flags { set, unset } => {
                number_of(data).is_some_and(|flags| flags & set == *set && flags & unset == 0)
            }
            Test::Entropy {
                offset,
                bytes,
                within,
            } => {
                let behind = data.get(*offset..);
                let counted = match bytes {
                    0 => behind,
                    bytes => behind.and_then(|it| it.get(..*bytes)),
                };
                counted.is_some_and(|it| within.fits(entropy(it)))
            }
            _ => false,
        }
    }

    /// Returns true if a content is at one of its possible positions, and the remaining tests match after it.
    #[inline]
    fn content_fits(
        &mut self,
        content: &Content,
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let Here { data, end, .. } = here;
        let Some((from, to)) = self.window(content, data.len(), end) else {
            return content.not && self.next(rest, parts, here, end);
        };
        let mut at = from;
        loop {
            if !self.has_steps() {
                return false;
            }
            let found = find(content, data, at, to);
            match found {
                _ if content.not => {
                    return found.is_none() && self.next(rest, parts, here, end);
                }
                None => return false,
                Some(found) => {
                    if self.next(rest, parts, here, found + content.bytes.len()) {
                        return true;
                    }
                    if !depends(rest, here) {
                        return false;
                    }
                    at = found + 1;
                }
            }
        }
    }

    /// Returns true if an expression matches the data from `base` on, and the remaining tests match after it.
    fn regex_fits(
        &mut self,
        regex: &Regex,
        not: bool,
        base: usize,
        rest: &[Step],
        parts: &Parts<'_>,
        here: Here<'_>,
    ) -> bool {
        let data = here.data.get(base..).unwrap_or_default();
        let mut at = 0;
        loop {
            if !self.has_steps() {
                return false;
            }
            match regex.find_at(data, at) {
                found if not => {
                    return found.is_none() && self.next(rest, parts, here, here.end);
                }
                None => return false,
                Some((begin, behind)) => {
                    if self.next(rest, parts, here, base + behind) {
                        return true;
                    }
                    if !depends(rest, here) {
                        return false;
                    }
                    at = begin + 1;
                }
            }
        }
    }

    #[inline]
    fn next(&mut self, rest: &[Step], parts: &Parts<'_>, here: Here<'_>, end: usize) -> bool {
        rest.is_empty() || (self.has_steps() && self.steps_fit(rest, parts, Here { end, ..here }))
    }

    fn has_steps(&mut self) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        self.steps_left > 0
    }

    fn value(&self, number: Number) -> i64 {
        match number {
            Number::Is(number) => number,
            Number::Read(variable) => self.variables[usize::from(variable) % MOST_VARIABLES],
        }
    }

    /// Returns the value with which `byte_test` compares a field.
    #[inline]
    fn operand(&self, number: Number) -> i128 {
        // Fields of eight bytes, and numbers that were read from a buffer, are unsigned.
        match number {
            Number::Is(value) => i128::from(value),
            variable @ Number::Read(_) => i128::from(self.value(variable) as u64),
        }
    }

    /// Returns the range of `data` in which the content has to be; none if that range is too small for the content.
    fn window(&self, content: &Content, len: usize, end: usize) -> Option<(usize, usize)> {
        let (base, from, bytes) = if content.is_relative() {
            (end as i64, content.distance, content.within)
        } else {
            (0, content.offset, content.depth)
        };
        let from = base.saturating_add(from.map_or(0, |from| self.value(from)));
        let to = match bytes {
            Some(bytes) => from.saturating_add(self.value(bytes)).min(len as i64),
            None => len as i64,
        };
        let from = from.max(0);
        (from <= to && to - from >= content.bytes.len() as i64)
            .then_some((from as usize, to as usize))
    }

    /// Returns the value of a number in the data, and the position after the number.
    fn read(&self, field: &Field, data: &[u8], end: usize) -> Option<(u64, usize)> {
        let base = if field.relative { end as i64 } else { 0 };
        let at = usize::try_from(base.saturating_add(self.value(field.offset))).ok()?;
        let len = usize::try_from(self.value(field.bytes)).ok()?;
        if len == 0 || len > field.form.most_bytes() {
            return None;
        }
        let bytes = data.get(at..)?.get(..len);
        let (number, behind) = match field.form {
            Form::Big => (
                bytes?
                    .iter()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + len,
            ),
            Form::Little => (
                bytes?
                    .iter()
                    .rev()
                    .fold(0, |all, &byte| all << 8 | u64::from(byte)),
                at + len,
            ),
            Form::Text(base) => {
                let rest = data.get(at..)?;
                let (number, used) = digits(&rest[..rest.len().min(len)], base)?;
                (number, at + used)
            }
        };
        if field.mask == 0 {
            return Some((number, behind));
        }
        Some(((number & field.mask) >> field.mask.trailing_zeros(), behind))
    }
}

/// Returns true if all contents with fixed positions are present. Most packets fail this test, so the search for other
/// contents does not begin.
fn has_contents(rule: &Rule, parts: &Parts<'_>) -> bool {
    let number = |number: Option<Number>, none: i64| match number {
        Some(Number::Is(number)) => Some(number),
        Some(Number::Read(_)) => None,
        None => Some(none),
    };
    rule.needed_steps().all(|step| {
        let Test::Content(content) = &step.test else {
            return true;
        };
        let is_changed = !step.transforms.is_empty() || step.buffer == Buffer::Base64;
        if content.not || content.is_relative() || is_changed {
            return true;
        }
        let (Some(from), Some(depth)) =
            (number(content.offset, 0), number(content.depth, i64::MAX))
        else {
            return true;
        };
        let from = from.max(0);
        parts.buffers(step.buffer).any(|data| {
            let to = from.saturating_add(depth).min(data.len() as i64);
            to - from >= content.bytes.len() as i64
                && find(content, data, from as usize, to as usize).is_some()
        })
    })
}

/// Returns true if the remaining tests depend on the position of the last match: only then are other positions tried.
fn depends(rest: &[Step], here: Here<'_>) -> bool {
    for step in rest {
        if matches!(step.test, Test::Extract { .. } | Test::Math { .. }) {
            return true;
        }
        if !here.is_of(step) {
            return false;
        }
        if step.test.is_relative() {
            return true;
        }
        let moves = match &step.test {
            Test::Content(content) => !content.not,
            Test::Regex { not, .. } => !not,
            Test::Jump { .. } => true,
            _ => false,
        };
        if moves {
            return false;
        }
    }
    false
}
