//! The list of all kinds of results folders: how each is identified and displayed.

use std::path::Path;
use taut_bench::benchmark::{Benchmark, show};
use taut_bench::report::{ReportError, Shown, is_recording, write_recording};
use taut_benchmarks::ablation::Ablation;
use taut_benchmarks::costs::Costs;
use taut_benchmarks::fit::Fit;
use taut_benchmarks::generators::Generators;
use taut_benchmarks::io_cost::IoCost;
use taut_benchmarks::switch_bench::Switched;
use taut_folders::{capture_match, control_loop, probe_results};
use taut_results::has;

/// A kind of results folder.
#[derive(Debug)]
pub struct Kind {
    known_by: KnownBy,
    show: fn(&Path, Option<usize>) -> Result<Shown, ReportError>,
}

#[derive(Debug)]
enum KnownBy {
    /// The name of a file that every folder of this kind contains.
    Head(&'static str),
    /// A test of the contents, for kinds of folders that all have a `summary.json`.
    Summary(fn(&Path) -> bool),
}

impl Kind {
    const fn of<B: Benchmark>() -> Self {
        Self {
            known_by: KnownBy::Head(B::DESCRIPTION.head),
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

/// Returns all kinds of results folders except those of `taut experiment`. The last kind is the fallback for folders of
/// no other kind.
fn kinds() -> &'static [Kind] {
    static KINDS: &[Kind] = &[
        // `taut generate`
        Kind {
            known_by: KnownBy::Summary(is_recording),
            show: |dir, _| Ok(Shown::page(write_recording(dir)?)),
        },
        // `taut probe client`
        Kind {
            known_by: KnownBy::Summary(probe_results::is_probed),
            show: |dir, _| Ok(Shown::page(probe_results::write(dir)?)),
        },
        // `taut capture match`
        Kind {
            known_by: KnownBy::Summary(capture_match::is_matched),
            show: |dir, _| Ok(Shown::page(capture_match::write_page_of(dir)?)),
        },
        // `taut control run`
        Kind {
            known_by: KnownBy::Summary(control_loop::is_controlled),
            show: |dir, _| Ok(Shown::page(control_loop::write_report(dir)?)),
        },
        Kind::of::<IoCost>(),
        Kind::of::<Generators>(),
        Kind::of::<Costs>(),
        Kind::of::<Switched>(),
        // `taut tune ablate`
        Kind::of::<Ablation>(),
        // `taut tune fit`
        Kind::of::<Fit>(),
        // `taut bench rfc2544`
        Kind {
            known_by: KnownBy::Head(taut_rfc2544::HEAD),
            show: taut_rfc2544::show,
        },
        // `taut bench comparison`
        Kind {
            known_by: KnownBy::Head(taut_comparison::HEAD),
            show: taut_comparison::show,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_kind_of_a_folder_is_identified_by_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let last = kinds().last().unwrap();
        assert!(std::ptr::eq(kind_of(folder.path()), last));
        for kind in kinds() {
            let KnownBy::Head(name) = kind.known_by else {
                continue;
            };
            let head = folder.path().join(name);
            std::fs::write(&head, "{}").unwrap();
            assert!(std::ptr::eq(kind_of(folder.path()), kind), "{name}");
            std::fs::remove_file(head).unwrap();
        }
    }
}
