//! `taut lab wire`: finds out which interfaces of nodes are connected.

use crate::exit::{self, Failure};
use crate::terminal::print;
use crate::terminal::quantity;
use std::time::Duration;
use taut_experiment::{LinkEndText, WireRequest, find_wires};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut lab wire gen=ssh://root@10.0.0.1 dut=ssh://root@10.0.0.2
  taut lab wire here=local dut=ssh://root@dut --only here:eth1 --only dut:eth0 --json
  taut lab wire a=netns:left b=netns:right --seconds 35    also neighbours that speak LLDP

Each node sends frames of EtherType 0x88b5 on its interfaces, which must be up, and all listen: needs root or
CAP_NET_RAW there.")]
pub struct Arguments {
    /// Nodes, each as NAME=ADDRESS: local, ssh://user@host:port or netns:NAME
    #[arg(required = true, value_name = "NODE", value_parser = node)]
    nodes: Vec<(String, String)>,
    /// Send only on this interface, as NODE:INTERFACE; may be repeated (default: all that are up)
    #[arg(long, value_name = "END", value_parser = end)]
    only: Vec<LinkEndText>,
    /// Seconds to send and listen; devices announce themselves by LLDP every 30 s
    #[arg(long, default_value_t = 2.0, value_parser = quantity::seconds)]
    seconds: f64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn node(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').unwrap_or((text, text));
    match name.is_empty() || address.is_empty() {
        true => Err("expected NAME=ADDRESS, such as dut=ssh://root@10.0.0.2".to_owned()),
        false => Ok((name.to_owned(), address.to_owned())),
    }
}

fn end(text: &str) -> Result<LinkEndText, String> {
    match text.split_once(':') {
        Some((node, interface)) if !node.is_empty() && !interface.is_empty() => Ok(LinkEndText {
            node: node.to_owned(),
            interface: interface.to_owned(),
        }),
        _ => Err("expected NODE:INTERFACE, such as dut:eth0".to_owned()),
    }
}

/// Prints the cables between the nodes.
pub fn wire(arguments: &Arguments) -> Result<(), Failure> {
    let request = WireRequest {
        nodes: arguments.nodes.clone(),
        only: arguments.only.clone(),
        time: Duration::from_secs_f64(arguments.seconds.clamp(0.1, 600.0)),
        program: exit::own_program()?,
    };
    let wires = find_wires(&request, exit::stop_flag()?)?;
    match arguments.json {
        true => print::json(&wires),
        false => print::line(wires.to_string().trim_end()),
    }
    Ok(())
}
