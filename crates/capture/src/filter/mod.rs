//! Filters: expressions of pcap-filter(7), compiled by libpcap, checked, and asked of frames.
//!
//! Frames are asked about by an interpreter of our own (`program.rs`), so that what libpcap wrote is checked once and
//! cannot go wrong after that. What every accepted frame has in it (`needs.rs`) says which filters need not be asked at
//! all (`many.rs`), and what a search on disk has to look for.

mod column;
mod many;
mod needs;
mod program;
#[cfg(test)]
mod tests;

pub use many::{MOST_FILTERS, Many, Matches, TooManyFilters};
pub use needs::{Constraint, Endpoints, Needs, Place, Size};
pub use program::{MOST_INSTRUCTIONS, Program, ProgramError};

use std::fmt;
use taut_sys::{FilterInstruction, PacketFilterError, compile_packet_filter};

/// Program that accepts every frame (`ret #262144`), as libpcap writes it.
const ACCEPT_ALL: FilterInstruction = FilterInstruction {
    code: 6,
    jt: 0,
    jf: 0,
    k: 262_144,
};

/// Filter of Ethernet frames.
#[derive(Debug, Clone)]
pub struct Filter {
    text: String,
    program: Program,
    needs: Needs,
}

/// Why an expression is no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// The expression.
    pub text: String,
    /// Where it goes wrong: a character of it, from 1, or the one behind its end. Not known of what is wrong with the
    /// expression as a whole.
    pub column: Option<usize>,
    /// What is wrong, in libpcap's words.
    pub reason: String,
    /// Whether it is the machine that lacks libpcap.
    pub is_missing: bool,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const MOST_SHOWN: usize = 80;
        let shown = one_line(self.text.chars().take(MOST_SHOWN));
        let dots = if self.text.chars().nth(MOST_SHOWN).is_some() {
            "..."
        } else {
            ""
        };
        let reason = one_line(self.reason.chars());
        write!(f, "filter `{shown}{dots}`: {reason}")?;
        match self.column {
            Some(column) => write!(f, ", at column {column}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FilterError {}

fn one_line(text: impl Iterator<Item = char>) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.map(shown).collect()
}

impl Filter {
    /// Makes a filter of an expression. That without words accepts every frame and needs no libpcap. Names of hosts,
    /// ports and protocols are looked up by the system, which may take as long as a name server does. libpcap itself
    /// takes time by more than the square of the length: a list of 300 hosts is ready in 0.2 s, one of 2000 in a
    /// minute.
    ///
    /// # Errors
    /// [`FilterError`], where it is no expression, no frame can be accepted, its program is too long, or there is no
    /// libpcap.
    pub fn new(text: &str) -> Result<Self, FilterError> {
        if text.trim_ascii().is_empty() {
            return Self::of_program(text, &[ACCEPT_ALL]).map_err(|e| refused(text, None, &e));
        }
        match compile_packet_filter(text, true) {
            Ok(program) => Self::of_program(text, &program).map_err(|e| refused(text, None, &e)),
            Err(PacketFilterError::Refused(reason)) => {
                let column = column::of(text, &reason);
                let prefix = "can't parse filter expression: ";
                let reason = reason.strip_prefix(prefix).unwrap_or(&reason);
                Err(refused(text, column, &reason))
            }
            Err(missing @ PacketFilterError::Missing(_)) => Err(FilterError {
                is_missing: true,
                ..refused(text, None, &missing)
            }),
        }
    }

    /// Makes a filter of a program, whatever its text says.
    ///
    /// # Errors
    /// [`ProgramError`], where it is none.
    pub fn of_program(
        text: &str,
        instructions: &[FilterInstruction],
    ) -> Result<Self, ProgramError> {
        let ops = program::checked(instructions)?;
        Ok(Self {
            text: text.to_string(),
            needs: Needs::of(&ops),
            program: Program::of(&ops),
        })
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What every frame has in it that the filter accepts.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Whether it accepts a frame, of which more may have been on the wire: then `len` in the expression is the length
    /// there, and what would have to be looked at and was not kept is not accepted.
    #[inline]
    pub fn matches(&self, frame: &[u8], wire_bytes: u32) -> bool {
        self.program.run(frame, wire_bytes) != 0
    }
}

fn refused(text: &str, column: Option<usize>, reason: &impl ToString) -> FilterError {
    FilterError {
        text: text.to_string(),
        column,
        reason: reason.to_string(),
        is_missing: false,
    }
}
