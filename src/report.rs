//! `taut report`: makes the report and the figures again from a results folder.

use crate::exit::Failure;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Example:  taut report results/demo-2026-11-21T08-15-00Z")]
pub struct Arguments {
    /// Results folder, as `taut demo`, `taut bench`, `taut generate --out`, `taut probe client --out` or `taut experiment` has written it
    dir: PathBuf,
    /// Print the summary as JSON instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.dir.join("state.json").is_file() {
        return crate::experiment::show(&arguments.dir, false, false, arguments.json);
    }
    if taut_lab::report::is_recording(&arguments.dir) {
        return crate::generate::show(&arguments.dir, arguments.json);
    }
    if taut_lab::probed::is_probed(&arguments.dir) {
        return crate::probe::show(&arguments.dir, arguments.json);
    }
    if taut_lab::io_cost::is_io_cost(&arguments.dir) {
        return crate::bench::show(&arguments.dir, arguments.json);
    }
    if taut_lab::generators::is_generators(&arguments.dir) {
        return crate::generators::show(&arguments.dir, arguments.json);
    }
    if taut_lab::rfc2544::is_rfc2544(&arguments.dir) {
        return crate::rfc2544::show(&arguments.dir, arguments.json);
    }
    crate::demo::show(&arguments.dir, arguments.json)
}
