//! `taut bench switch`: a whole switch measured by two ports of the generator.

use super::InTurns;
use crate::exit::Failure;
use taut_lab::switched::{Switch, Switched};
use taut_results::Mode;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench switch                      taut's own switch, under a minute
  taut bench switch --only hops --only qos
  taut bench switch taut openvswitch --only rules --full --out results/rules

The generator has two ports of the switch; all others are joined by cables, through which rules send packets again and again. Rules
are made over OpenFlow, whoever wrote the switch. Measurements, by the names that --only takes:
  hops       latency over the number of cables that packets go through: what a pass costs, by least squares
  rules      rate and latency with 1 to 100,000 rules (1,000,000 with --full), exact and by prefix, beside plain forwarding
  qos        latency of real-time packets beside background that overloads the port they leave through, with priority and without
  insertion  time until a rule is in force: until the barrier is answered, until the first packet obeys
  amplify    one stream sent through all ports: load and loss of each
  actions    what meters, fields that are set, tags and groups cost
Ends with tables, report.html and figures.")]
pub struct Arguments {
    /// Switches that take turns: taut (over memif), openvswitch (user space, DPDK's memif)
    #[arg(value_name = "DEVICE", default_value = "taut", value_parser = device)]
    devices: Vec<Switch>,
    #[command(flatten)]
    common: InTurns,
    /// More points, longer and more often: about an hour
    #[arg(long, conflicts_with = "quick")]
    full: bool,
}

fn device(text: &str) -> Result<Switch, String> {
    let found = Switch::ALL.into_iter().find(|switch| switch.id() == text);
    found.ok_or_else(|| format!("there are {}", Switch::ALL.map(Switch::id).join(" and ")))
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut devices = arguments.devices.clone();
    // One named twice is measured once.
    let mut known = Vec::new();
    devices.retain(|device| {
        let is_new = !known.contains(device);
        known.push(*device);
        is_new
    });
    let switched = Switched::new(devices);
    match arguments.full {
        true => arguments.common.run_in(Mode::Full, switched, 0.01),
        false => arguments.common.run(switched, 0.01),
    }
}
