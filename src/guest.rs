//! `taut guest`: the first program of a virtual machine. Only taut runs it.

use crate::exit::Failure;

pub fn run() -> Result<(), Failure> {
    taut_deploy::vm::run_guest().map_err(|e| Failure::Input(e.to_string()))
}
