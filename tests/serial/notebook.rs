//! The notebook in the examples redraws figures of a results folder.

use crate::support::program::{PATIENCE, Program, run};
use crate::support::{alone, is_installed, json, scratch, taut};
use std::fs;
use std::path::Path;
use std::process::Command;

const NOTEBOOK: &str = "examples/notebook.ipynb";

/// Returns the code of the notebook: all code cells, joined in order.
fn code() -> String {
    let notebook = json(Path::new(NOTEBOOK));
    let cells = notebook["cells"].as_array().unwrap().iter();
    let code = cells.filter(|cell| cell["cell_type"] == "code");
    let lines = code.flat_map(|cell| {
        assert_eq!(cell["outputs"].as_array().unwrap().len(), 0, "{cell}");
        let lines = cell["source"].as_array().unwrap().iter();
        lines.map(|line| line.as_str().unwrap())
    });
    lines.collect()
}

#[test]
fn the_notebook_draws_figures_from_a_demo_results_folder() {
    const IMPORTS: &str = "import pandas, matplotlib";
    if !is_installed("python3")
        || run(Command::new("python3").args(["-c", IMPORTS])).code() != Some(0)
    {
        return println!("skipped: needs python3 with pandas and matplotlib");
    }
    let _turn = alone();
    let folder = scratch();
    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    let devices = "memif-idle,memif-loop";
    let mut command = taut(&["demo", "--quick", "--devices", devices, "--out"]);
    Program::start(command.arg(results.join("demo-test")))
        .finish_within(2 * PATIENCE)
        .success();
    let mut command = Command::new("python3");
    command.args(["-c", &code()]).current_dir(folder.path());
    // There is no screen, and no file in the home folder.
    command
        .env("MPLBACKEND", "Agg")
        .env("MPLCONFIGDIR", folder.path());
    Program::start(&mut command)
        .finish_within(2 * PATIENCE)
        .success();
    let drawn = |figure: &str| fs::read_to_string(folder.path().join(figure)).unwrap();
    let percentiles = drawn("percentiles.svg");
    for label in ["memif idle(32)", "memif generator loop"] {
        assert!(percentiles.contains(label), "{label}");
    }
    // On a busy machine there may be no usable trial of a device.
    assert!(drawn("load.svg").contains("offered, Mpkt/s"));
}
