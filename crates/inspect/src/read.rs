//! Reads rules: interprets the options of each rule. A rule with an unsupported part is not loaded, unless lenient
//! reading is requested.
//!
//! `interpret.rs` reads one rule: `header.rs` its header, `about.rs`, `contents.rs`, `fields.rs` and `packet.rs` its
//! options, and `buffers.rs` the names of buffers. `finish.rs` checks the rule as a whole. `reader.rs` has the state
//! that all of them share.

mod about;
mod buffers;
mod contents;
mod fields;
mod finish;
mod header;
mod interpret;
mod packet;
mod reader;

use crate::refusal::Refusal;
use crate::rule::Rule;
use crate::syntax::{Joined, Mistake, Written, joined, parts, split};
use crate::variables::Variables;
use contents::MODIFIERS_OF_CONTENT;
use header::action;
use reader::Reader;
use std::collections::{BTreeMap, HashMap};

pub use packet::TLS_STATES;
pub use reader::{Dialect, Names};

/// The settings for reading rules.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Values of the variables for addresses and ports.
    pub variables: Variables,
    /// Syntax of the rules; none for the syntax of most rules in the file.
    pub dialect: Option<Dialect>,
    /// True if commented-out rules are read as well.
    pub with_disabled: bool,
    /// True if a rule with unsupported parts is loaded without them.
    pub is_lenient: bool,
}

/// The result of reading rule files.
#[derive(Debug, Default)]
pub struct Reading {
    /// Rules that can be evaluated.
    pub rules: Vec<Rule>,
    /// Names of flow bits.
    pub names: Names,
    /// The first [`MOST_MISTAKES`] errors, each with the index of its file.
    pub mistakes: Vec<(usize, Mistake)>,
    /// Number of rules that were skipped because of an error.
    pub mistaken: usize,
    /// Unsupported options, each with the identifiers of the rules that were skipped, or loaded only in part, because
    /// of that option.
    pub not_understood: BTreeMap<String, Vec<u32>>,
    /// Number of rules that were skipped because of an unsupported part.
    pub left_out: usize,
    /// Number of rules that were loaded in part: their unsupported options were skipped.
    pub in_part: usize,
    /// Number of rules that were skipped because an earlier rule has the same identifier and generator, and the same or
    /// a later revision.
    pub doubled: usize,
    files: usize,
    known: HashMap<(u32, u32), usize>,
}

/// Maximum number of errors that are stored; further ones are only counted.
pub const MOST_MISTAKES: usize = 10_000;
/// Maximum number of rules; each further rule is an error.
const MOST_RULES: usize = 200_000;

impl Reading {
    /// Reads a rule file and adds its rules to those of earlier files.
    pub fn read(&mut self, text: &str, options: &Options) {
        let file = self.files;
        self.files += 1;
        let text = if options.with_disabled {
            with_disabled(text)
        } else {
            text.to_string()
        };
        let is_action = |word: &str| !matches!(action(word), Err(Refusal::Wrong(_)));
        let rules = joined(&text, &is_action);
        let dialect = options.dialect.unwrap_or_else(|| looks_like(&rules));
        for rule in &rules {
            if let Err(mistake) = self.rule(rule, dialect, options) {
                self.mistaken += 1;
                if self.mistakes.len() < MOST_MISTAKES {
                    self.mistakes.push((file, mistake));
                }
            }
        }
    }

    fn rule(
        &mut self,
        joined: &Joined,
        dialect: Dialect,
        options: &Options,
    ) -> Result<(), Mistake> {
        let written = split(joined)?;
        let mut reader = Reader::new(&mut self.names, dialect, &options.variables);
        let rule = reader
            .rule(&written)
            .map_err(|(at, reason)| joined.mistake(at, reason))?;
        let not_understood = std::mem::take(&mut reader.not_understood);
        let is_whole = not_understood.is_empty();
        for option in not_understood {
            self.not_understood
                .entry(option)
                .or_default()
                .push(rule.about.id);
        }
        if !is_whole {
            if !options.is_lenient {
                self.left_out += 1;
                return Ok(());
            }
            self.in_part += 1;
        }
        let key = (rule.about.group, rule.about.id);
        if let Some(&before) = self.known.get(&key) {
            self.doubled += 1;
            if self.rules[before].about.revision < rule.about.revision {
                self.rules[before] = rule;
            }
            return Ok(());
        }
        if self.rules.len() == MOST_RULES {
            return Err(joined.mistake(0, format!("more than {MOST_RULES} rules")));
        }
        self.known.insert(key, self.rules.len());
        self.rules.push(rule);
        Ok(())
    }
}

/// Returns the text of a rule file with its commented-out rules enabled.
fn with_disabled(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        let bare = line.trim_start().trim_start_matches('#').trim_start();
        let is_rule = action(bare.split_whitespace().next().unwrap_or_default()).is_ok()
            && bare.contains("sid:");
        all.push_str(if is_rule { bare } else { line });
        all.push('\n');
    }
    all
}

/// Returns the syntax of most of the rules, so that a mistyped rule does not change the meaning of the others.
fn looks_like(rules: &[Joined]) -> Dialect {
    let (mut snort, mut suricata) = (0, 0);
    for rule in rules.iter().filter_map(|rule| split(rule).ok()) {
        if is_of_snort(&rule) {
            snort += 1;
        } else if rule
            .options
            .iter()
            .any(|option| option.name.contains('.') || MODIFIERS_OF_CONTENT.contains(&option.name))
        {
            suricata += 1;
        }
    }
    if snort > suricata {
        Dialect::Snort3
    } else {
        Dialect::Suricata
    }
}

/// Returns true if a rule has the syntax of Snort 3. Only that syntax has commas after contents, services, and one-word
/// headers.
fn is_of_snort(rule: &Written<'_>) -> bool {
    rule.header.len() == 2
        || rule
            .options
            .iter()
            .any(|option| match (option.name, option.value) {
                ("content", Some(value)) => parts(value).len() > 1,
                ("service" | "bufferlen", _) => true,
                _ => false,
            })
}

#[cfg(test)]
mod tests;
