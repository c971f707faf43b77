//! The Python package runs the program and reads its results, and its types are complete.

use crate::support::program::{PATIENCE, Program, run};
use crate::support::{alone, is_installed, taut};
use std::process::Command;

#[test]
fn the_python_package_passes_its_tests_with_this_program() {
    if !is_installed("python3") {
        return println!("skipped: needs python3");
    }
    let _turn = alone();
    let program = taut::<&str>(&[]).get_program().to_owned();
    let mut command = Command::new("python3");
    command
        .args([
            "-B",
            "-W",
            "error",
            "-m",
            "unittest",
            "-v",
            "tests/test_taut.py",
        ])
        .current_dir("python")
        .env("PYTHONPATH", ".")
        .env("TAUT", program);
    Program::start(&mut command)
        .finish_within(4 * PATIENCE)
        .success();
}

#[test]
fn the_types_of_the_python_package_satisfy_pyright() {
    let checkers = ["pyright", "basedpyright"];
    let Some(checker) = checkers.into_iter().find(|it| is_installed(it)) else {
        return println!("skipped: needs pyright or basedpyright");
    };
    let mut command = Command::new(checker);
    let finished = run(command.args(["--project", "python"]));
    assert_eq!(finished.code(), Some(0), "{}", finished.stdout);
}
