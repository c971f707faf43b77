//! `taut lab`: a laboratory of several machines.

pub mod wire;

use crate::exit::Failure;
use clap::Subcommand;

#[derive(clap::Args)]
#[command(after_help = "Example:  taut lab wire gen=ssh://root@10.0.0.1 dut=ssh://root@10.0.0.2")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Find out which interfaces of nodes are connected by cables
    Wire(wire::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Wire(arguments) => wire::wire(arguments),
    }
}
