//! `taut bench switch`: a complete switch, measured through two ports of the generator.

use super::InTurns;
use crate::exit::Failure;
use std::path::PathBuf;
use taut_benchmarks::switch_bench::{Switch, Switched, Topology, Wires};
use taut_results::Mode;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench switch                      taut's own switch, under a minute
  taut bench switch --only hops --only qos
  taut bench switch taut openvswitch --only rules --full --out results/rules
  taut bench switch openflow:192.0.2.1:6653 --topology wires.toml --only hops
  taut bench switch taut --amplifier taut --only amplify

The generator uses two ports of the switch; cables join other ports, and rules send packets through them repeatedly. Devices:
  taut          taut's switch over memif; cables are pairs of ports in it
  taut-af-xdp   the same on AF_XDP sockets, with veth links
  taut-in-kernel  the same by XDP programs, with rules from a file: no insertion, no qos, 63 rules at most
  openvswitch   Open vSwitch in user space, with DPDK's memif driver
  bridge        the Linux bridge, which sends from port to port: no rules, so only hops, amplify and its plain rate
  openflow:HOST:PORT  any switch with OpenFlow 1.3; all of its rules are removed; needs --topology
  p4runtime:HOST:PORT  any switch with P4Runtime, without TLS; needs --topology with [p4]: its pipeline and tables
  by-hand       a switch that you configure: the rules of each point are printed, and Enter continues; needs --topology
Measurements, by the names that --only takes:
  hops       latency over the number of cables that packets go through: what a pass costs, by least squares
  rules      rate and latency with 1 to 100,000 rules (1,000,000 with --full), exact and by prefix, beside plain forwarding
  qos        latency of real-time packets beside background that overloads the port they leave through, with priority and without
  insertion  time until a rule is in force, modified, gone: until the barrier is answered, until packets obey
  amplify    one stream sent through all ports: load and loss of each
  actions    what meters, fields that are set, tags and groups cost
Ends with tables, report.html and figures.")]
pub struct Arguments {
    /// Switches, interleaved: taut, taut-af-xdp, taut-in-kernel, openvswitch, bridge, openflow:HOST:PORT,
    /// p4runtime:HOST:PORT, by-hand
    #[arg(value_name = "DEVICE", default_value = "taut")]
    devices: Vec<Switch>,
    /// TOML file: ports of the switch that cables join, and that lead to the generator; required for openflow:,
    /// p4runtime: and by-hand (default: built in)
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Another switch that multiplies traffic before the measured one: taut before taut, one on the network or
    /// by-hand before another (default: none)
    #[arg(long, value_name = "DEVICE")]
    amplifier: Option<Switch>,
    #[command(flatten)]
    common: InTurns,
    /// More points, longer trials, 10 repetitions: about an hour; not with --quick
    #[arg(long, conflicts_with = "quick")]
    full: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut devices = arguments.devices.clone();
    // A device named twice is measured once.
    let mut known = Vec::new();
    devices.retain(|device| {
        let is_new = !known.contains(device);
        known.push(device.clone());
        is_new
    });
    let topology = arguments.topology.as_deref().map(Topology::read);
    let topology = topology
        .transpose()
        .map_err(|e| Failure::Input(format!("--topology: {e}")))?;
    let wires = Wires::new(topology, arguments.amplifier.clone(), &devices);
    let switched = Switched::new(devices, wires.map_err(Failure::Input)?);
    match arguments.full {
        true => arguments.common.run_in(Mode::Full, switched, 0.01),
        false => arguments.common.run(switched, 0.01),
    }
}
