//! The one list of what results folders there are: how each is known, and how it is shown.

use super::definition::Benchmark;
use super::results::show;
use crate::costs::Costs;
use crate::generators::Generators;
use crate::io_cost::IoCost;
use crate::report::display::Shown;
use crate::report::error::ReportError;
use crate::report::recording;
use crate::switched::Switched;
use crate::{comparison, controlled, matched, probed, rfc2544};
use std::path::Path;
use taut_results::has;

/// A kind of results folder.
#[derive(Debug)]
pub struct Kind {
    /// Command that writes such folders, without `taut`.
    pub command: &'static str,
    known_by: KnownBy,
    show: fn(&Path, Option<usize>) -> Result<Shown, ReportError>,
}

#[derive(Debug)]
enum KnownBy {
    /// A file of this name.
    Head(&'static str),
    /// What its summary says.
    Summary(fn(&Path) -> bool),
}

impl Kind {
    const fn of<B: Benchmark>() -> Self {
        Self {
            command: B::COMMAND,
            known_by: KnownBy::Head(B::HEAD),
            show: show::<B>,
        }
    }

    /// Writes the report of a folder of this kind, and returns what to show on a terminal of so many columns.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn show(&self, dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
        (self.show)(dir, width)
    }

    fn is(&self, dir: &Path) -> bool {
        match self.known_by {
            KnownBy::Head(name) => has(dir, name),
            KnownBy::Summary(is) => is(dir),
        }
    }
}

/// All kinds of results folders but those of `taut experiment`, which are above this crate. A folder that is of no other kind
/// is the last one's.
pub fn kinds() -> &'static [Kind] {
    const KINDS: &[Kind] = &[
        Kind {
            command: "generate",
            known_by: KnownBy::Summary(recording::is_recording),
            show: |dir, _| Ok(Shown::page(recording::write_recording(dir)?)),
        },
        Kind {
            command: "probe client",
            known_by: KnownBy::Summary(probed::is_probed),
            show: |dir, _| Ok(Shown::page(probed::write(dir)?)),
        },
        Kind {
            command: "capture match",
            known_by: KnownBy::Summary(matched::is_matched),
            show: |dir, _| Ok(Shown::page(matched::write_page_of(dir)?)),
        },
        Kind {
            command: "control run",
            known_by: KnownBy::Summary(controlled::is_controlled),
            show: |dir, _| Ok(Shown::page(controlled::write_report(dir)?)),
        },
        Kind::of::<IoCost>(),
        Kind::of::<Generators>(),
        Kind::of::<Costs>(),
        Kind::of::<Switched>(),
        Kind {
            command: "bench rfc2544",
            known_by: KnownBy::Head(rfc2544::HEAD),
            show: rfc2544::show,
        },
        Kind {
            command: "bench comparison",
            known_by: KnownBy::Head(comparison::HEAD),
            show: comparison::show,
        },
    ];
    KINDS
}

/// The kind of a results folder.
pub fn kind_of(dir: &Path) -> &'static Kind {
    let kinds = kinds();
    let last = &kinds[kinds.len() - 1];
    kinds.iter().find(|kind| kind.is(dir)).unwrap_or(last)
}
