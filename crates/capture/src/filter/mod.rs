//! Filters: expressions of pcap-filter(7), compiled by libpcap, verified, and evaluated on frames.
//!
//! Filters are evaluated by taut's own interpreter (`program.rs`), which verifies a program of libpcap once, so that it
//! cannot fail afterwards. The needs of a filter are the values that every matching frame contains (`needs.rs`). They
//! show which filters need not be evaluated at all (`many.rs`), and which keys a query on disk searches for.

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

/// The program that accepts every frame (`ret #262144`), as libpcap writes it.
const ACCEPT_ALL: FilterInstruction = FilterInstruction {
    code: 6,
    jt: 0,
    jf: 0,
    k: 262_144,
};

/// A filter of Ethernet frames: a verified program, and the values that matching frames must contain.
#[derive(Debug, Clone)]
pub struct Filter {
    text: String,
    program: Program,
    needs: Needs,
}

/// The error for an invalid filter expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// The text of the invalid filter expression.
    pub text: String,
    /// Position of the error: a character of the expression, counted from 1, or the position after its end. `None` if
    /// the error has no position.
    pub column: Option<usize>,
    /// Description of the error by libpcap.
    pub reason: String,
    /// True if the error is that libpcap is not installed.
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
    /// Compiles a filter expression. The empty expression accepts every frame and needs no libpcap. The system looks up
    /// names of hosts, ports and protocols, which may take as long as a name server does. The time of libpcap itself
    /// grows faster than the square of the length: a list of 300 hosts takes 0.2 s, one of 2000 a minute.
    ///
    /// # Errors
    /// Returns [`FilterError`] if the expression is invalid, matches no frame, compiles to a program that is too long,
    /// or if libpcap is missing.
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

    /// Creates a filter from a program. The text `text` is only stored, not compiled.
    ///
    /// # Errors
    /// Returns [`ProgramError`] if the program is invalid.
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

    /// Returns the expression from which the filter was compiled.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the values that every matching frame contains.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Returns true if the filter matches a frame, which had `wire_bytes` bytes on the wire; the stored frame may be
    /// shorter. `len` in the expression is the length on the wire. A frame does not match if the filter would have to
    /// read bytes that were not stored.
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
