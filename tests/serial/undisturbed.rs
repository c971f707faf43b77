//! Repeated attempts of a measurement detect whether other programs use the machine.

use crate::support::alone;
use crate::support::program::run;
use crate::support::undisturbed::Machine;
use std::process::Command;
use std::time::Duration;

#[test]
fn cpu_time_of_unrelated_processes_is_detected() {
    let _turn = alone();
    let before = Machine::now();
    // The parent of this process ends immediately, so the process is no child of this test.
    let stranger = "timeout 0.2 sh -c 'while :; do :; done' >/dev/null 2>&1 &";
    run(Command::new("sh").args(["-c", stranger])).success();
    std::thread::sleep(Duration::from_millis(400));
    let causes = Machine::now().since(&before);
    assert!(causes[0].starts_with("others ran for "), "{causes:?}");
}
