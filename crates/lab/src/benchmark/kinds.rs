//! The list of all kinds of results folders: how each is identified and displayed.

use super::definition::Benchmark;
use super::results::show;
use crate::costs::Costs;
use crate::generators::Generators;
use crate::io_cost::IoCost;
use crate::report::display::Shown;
use crate::report::error::ReportError;
use crate::report::recording;
use crate::switch_bench::Switched;
use crate::{capture_match, comparison, control_loop, probe_results, rfc2544};
use std::path::Path;
use taut_results::has;

/// A kind of results folder.
#[derive(Debug)]
pub struct Kind {
    /// The subcommand of `taut` that writes folders of this kind, such as `bench io`.
    pub command: &'static str,
    known_by: KnownBy,
    show: fn(&Path, Option<usize>) -> Result<Shown, ReportError>,
}

#[derive(Debug)]
enum KnownBy {
    /// Folders of this kind contain a file of this name.
    Head(&'static str),
    /// Folders of this kind pass this test of their contents, because several kinds have a `summary.json`.
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

    /// Writes the report of a folder of this kind, and returns the text for a terminal with `width` columns.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read or written.
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

/// Returns all kinds of results folders except those of `taut experiment`, which depends on this crate. The last kind
/// is the fallback for folders of no other kind.
pub fn kinds() -> &'static [Kind] {
    const KINDS: &[Kind] = &[
        Kind {
            command: "generate",
            known_by: KnownBy::Summary(recording::is_recording),
            show: |dir, _| Ok(Shown::page(recording::write_recording(dir)?)),
        },
        Kind {
            command: "probe client",
            known_by: KnownBy::Summary(probe_results::is_probed),
            show: |dir, _| Ok(Shown::page(probe_results::write(dir)?)),
        },
        Kind {
            command: "capture match",
            known_by: KnownBy::Summary(capture_match::is_matched),
            show: |dir, _| Ok(Shown::page(capture_match::write_page_of(dir)?)),
        },
        Kind {
            command: "control run",
            known_by: KnownBy::Summary(control_loop::is_controlled),
            show: |dir, _| Ok(Shown::page(control_loop::write_report(dir)?)),
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

/// Returns the kind of a results folder.
pub fn kind_of(dir: &Path) -> &'static Kind {
    let kinds = kinds();
    let last = &kinds[kinds.len() - 1];
    kinds.iter().find(|kind| kind.is(dir)).unwrap_or(last)
}
