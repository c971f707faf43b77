//! The notebook in the examples measures Figure 2 of a paper with the Python package.

use crate::support::program::{Finished, PATIENCE, Program};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, is_installed, json, scratch};
use std::fs;
use std::path::Path;
use std::process::Command;

const NOTEBOOK: &str = "examples/notebook.ipynb";

/// Returns the code of the notebook: all code cells, joined in order.
fn code() -> String {
    let notebook = json(Path::new(NOTEBOOK));
    let cells = notebook["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 10);
    let code = cells.iter().filter(|cell| cell["cell_type"] == "code");
    let lines = code.flat_map(|cell| {
        assert_eq!(cell["outputs"].as_array().unwrap().len(), 0, "{cell}");
        let lines = cell["source"].as_array().unwrap().iter();
        lines.map(|line| line.as_str().unwrap())
    });
    lines.collect()
}

#[test]
fn the_notebook_measures_figure_2_in_an_empty_folder() {
    if !is_installed("python3") {
        return println!("skipped: needs python3");
    }
    let _turn = alone();
    undisturbed(|| {
        let folder = scratch();
        let finished = execute(folder.path());
        match finished.code() {
            Some(0) => check(&finished, folder.path()),
            _ => Err(format!("{finished:?}")),
        }
    });
}

/// Runs the notebook in a folder, with this program and the package of this clone.
fn execute(folder: &Path) -> Finished {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let mut command = Command::new("python3");
    command
        .args(["-B", "-c", &code()])
        .current_dir(folder)
        .env("PYTHONPATH", package)
        .env("TAUT", env!("CARGO_BIN_EXE_taut"));
    // There is no screen, and no file in the home folder.
    command.env("MPLBACKEND", "Agg").env("MPLCONFIGDIR", folder);
    Program::start(&mut command).finish_within(4 * PATIENCE)
}

/// Checks the printed table and claims, and the drawn figure. The medians alone can depend on the machine.
fn check(finished: &Finished, folder: &Path) -> Result<(), String> {
    let table: Vec<&str> = finished.stdout.lines().collect();
    let row = |forwarder: &str| -> Vec<f64> {
        let row = table.iter().find_map(|line| line.strip_prefix(forwarder));
        let row = row.unwrap_or_else(|| panic!("{forwarder}: {finished:?}"));
        row.split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect()
    };
    let (buffered, unbuffered) = (row("buffered "), row("unbuffered "));
    assert_eq!((buffered.len(), buffered[3]), (4, 56.1), "{finished:?}");
    assert_eq!((unbuffered.len(), unbuffered[3]), (4, 5.7), "{finished:?}");
    assert_eq!(row("loop-back ").len(), 3, "{finished:?}");
    let claim = "Without the buffer the average latency is several times lower";
    assert!(finished.stdout.contains(claim), "{finished:?}");
    let results = folder.join(table[0]);
    assert!(results.join("report.html").is_file());
    let drawn = folder.join("fig2.svg");
    if drawn.is_file() {
        assert!(fs::read_to_string(drawn).unwrap().contains("<svg"));
    } else {
        assert!(results.join("figures/cdf.svg").is_file());
    }
    match buffered[1] > unbuffered[1] {
        true => Ok(()),
        false => Err(format!("without the buffer it is slower: {finished:?}")),
    }
}
