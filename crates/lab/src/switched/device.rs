//! A switch set up for a trial: its ports are memif links to the generator and cables that lead from one of its ports to another.

use super::openflow::{Address, Controller};
use crate::benchmark::{Failed, Rig};
use crate::device::scratch;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_host::baseline::{Baseline, BaselineError, management_socket, probe_cabled, start_cabled};
use taut_host::{DeviceProcess, Running};
use taut_port::PortSpec;
use taut_results::LeftOut;
use taut_traffic::{Instrument, Traffic};

/// How long a switch may take until its links are up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of the port to the generator's first one. (OpenFlow counts from 1.)
pub(super) const WEST: u32 = 1;

impl From<BaselineError> for Failed {
    fn from(e: BaselineError) -> Self {
        Self::Broken(e.to_string())
    }
}

/// A switch that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// The function `switch` of `taut forward`.
    Taut,
    /// Open vSwitch with its user-space datapath and DPDK.
    OpenVSwitch,
}

impl Switch {
    /// Every switch that there is.
    pub const ALL: [Self; 2] = [Self::Taut, Self::OpenVSwitch];

    /// Name of the switch on the command line and in files.
    pub fn id(self) -> &'static str {
        match self {
            Self::Taut => "taut",
            Self::OpenVSwitch => "openvswitch",
        }
    }

    /// Name of the switch in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Taut => "taut",
            Self::OpenVSwitch => "Open vSwitch",
        }
    }

    /// Version that this machine has, or what is missing.
    pub(super) fn found(self) -> Result<String, LeftOut> {
        match self {
            Self::Taut => Ok(format!("taut {}", env!("CARGO_PKG_VERSION"))),
            Self::OpenVSwitch => probe_cabled().map_err(|missing| LeftOut {
                what: self.label().to_string(),
                why: missing.what,
                how: missing.how_to_get_it,
            }),
        }
    }
}

/// Queues of every port of a switch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queues {
    pub packets: usize,
    pub priorities: usize,
}

/// What a trial wants of a switch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Cables between two ports of the switch.
    pub cables: u32,
    /// Rules that there must be room for.
    pub rules: u32,
    /// Flush policy; None is the usual one.
    pub flush: Option<&'static str>,
    /// Packets taken from a port at a time at most; None is as many as usual.
    pub burst: Option<usize>,
    pub queues: Option<Queues>,
    /// Descriptors of the ring to the generator's second port; None is as many as usual.
    pub return_ring: Option<u32>,
    /// No switch at all: a forwarder between the two ports.
    pub is_plain: bool,
}

impl Layout {
    pub const TWO_PORTS: Self = Self {
        cables: 0,
        rules: 0,
        flush: None,
        burst: None,
        queues: None,
        return_ring: None,
        is_plain: false,
    };

    /// Number of the port to the generator's second one.
    pub fn east(&self) -> u32 {
        2 + 2 * self.cables
    }

    /// Numbers of the two ports that cable `number`, counted from 0, leads from and to.
    pub fn cable(&self, number: u32) -> [u32; 2] {
        [2 + 2 * number, 3 + 2 * number]
    }

    fn ports(&self) -> usize {
        2 + 2 * self.cables as usize
    }

    /// The chain file that makes taut such a switch, which waits for controllers at a port of this machine.
    fn chain(&self, [west, east]: [&Path; 2], openflow: u16) -> String {
        let ring = self.return_ring;
        let ring = ring.map_or(String::new(), |ring| format!(",ring={ring}"));
        let mut ports = vec![format!("memif:{},role=client", west.display())];
        for cable in 0..self.cables {
            ports.extend([format!("pair:cable{cable}"), format!("pair:cable{cable}")]);
        }
        ports.push(format!("memif:{},role=client{ring}", east.display()));
        let mut text = format!("ports = {ports:?}\n");
        if let Some(flush) = self.flush {
            let _ = writeln!(text, "flush = \"{flush}\"");
        }
        if let Some(burst) = self.burst {
            let _ = writeln!(text, "burst = {burst}");
        }
        if let Some(Queues {
            packets,
            priorities,
        }) = self.queues
        {
            let _ = writeln!(
                text,
                "[queue]\npackets = {packets}\npriorities = {priorities}"
            );
        }
        if !self.is_plain {
            let _ = writeln!(
                text,
                "[[function]]\nname = \"switch\"\nopenflow = \"{}:{openflow}\"",
                Ipv4Addr::LOCALHOST
            );
            // As many again: a table that is nearly full is slow to search.
            if self.rules > 0 {
                let _ = writeln!(text, "most_rules = {}", 2 * self.rules.max(8_192));
            }
        }
        text
    }
}

/// A switch that runs, with the generator on both sides of it.
pub(super) struct Plant {
    pub instrument: Instrument,
    controller: Option<Controller>,
}

impl Plant {
    /// Controller of the switch.
    ///
    /// # Errors
    /// When it is a forwarder without rules.
    pub fn controller(&mut self) -> Result<&mut Controller, Failed> {
        let none = || Failed::Broken("a plain forwarder has no rules".to_string());
        self.controller.as_mut().ok_or_else(none)
    }

    /// Controller of the switch, to be given to another thread.
    ///
    /// # Errors
    /// As [`Plant::controller`].
    pub fn take_controller(&mut self) -> Result<Controller, Failed> {
        let none = || Failed::Broken("a plain forwarder has no rules".to_string());
        self.controller.take().ok_or_else(none)
    }
}

/// Sets a switch up on the calling thread, which it pins to the generator's core, has `measure` measure with it, and takes it down
/// again. It has no rules to begin with.
pub(super) fn with_switch<T>(
    rig: &Rig<'_>,
    (switch, layout): (Switch, &Layout),
    traffic: Traffic,
    stop: &AtomicBool,
    measure: impl FnOnce(&mut Plant) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let scratch = scratch::folder()?;
    let folder = scratch.path();
    let core = rig.cores.device;
    taut_host::pin_current_thread(rig.cores.generator)?;
    let sockets = Baseline::sockets(folder);
    let open = |more: &str, traffic: Traffic| -> Result<Instrument, Failed> {
        let spec = |socket: &Path| PortSpec::parse(&format!("memif:{}{more}", socket.display()));
        let specs = [spec(&sockets[0])?, spec(&sockets[1])?];
        Ok(Instrument::open(&specs, traffic, rig.clock)?)
    };
    let (instrument, mut running, address) = match switch {
        Switch::Taut => {
            let instrument = open("", traffic)?;
            let port = free_port()?;
            let file = folder.join("switch.toml");
            std::fs::write(&file, layout.chain([&sockets[0], &sockets[1]], port))?;
            let mut command = Command::new(rig.program);
            command.arg("forward").arg(&file);
            command.args(["--core", &core.to_string()]);
            command.args(["--quiet", "--until-stdin-closes"]);
            let mut process = DeviceProcess::start("device", command, core, folder)?;
            process.wait_for_line(|line| line.starts_with("forwarding"), PATIENCE)?;
            let address = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
            (instrument, Running::from(process), address)
        }
        Switch::OpenVSwitch => {
            let running = start_cabled(layout.cables as usize, core, folder)?;
            let address = Address::Unix(management_socket(folder));
            (open(",role=client,queues=2", traffic)?, running, address)
        }
    };
    let mut plant = Plant {
        instrument,
        controller: None,
    };
    let measured = connect(&mut plant, layout, &address, stop).and_then(|()| measure(&mut plant));
    let Plant {
        instrument,
        controller,
    } = plant;
    drop(controller);
    // A switch that died explains itself better than the packets that did not come back.
    let is_stopped = stop.load(Ordering::Relaxed);
    if !is_stopped {
        running.check()?;
    }
    match switch {
        // While its links are up: DPDK's memif driver may crash when a peer leaves a busy port.
        Switch::OpenVSwitch => {
            running.stop()?;
            drop(instrument);
        }
        Switch::Taut => {
            drop(instrument);
            running.stop()?;
        }
    }
    if is_stopped {
        return Err(Failed::Stopped);
    }
    measured
}

/// Waits for the links of a switch, and for its controller if it has one; takes out all rules.
fn connect(
    plant: &mut Plant,
    layout: &Layout,
    address: &Address,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    plant.instrument.wait_for_links(PATIENCE, stop)?;
    if !layout.is_plain {
        let mut controller = Controller::connect(address, layout.ports(), PATIENCE)?;
        controller.clear()?;
        plant.controller = Some(controller);
    }
    Ok(())
}

/// A TCP port that nobody has.
fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_engine::Chain;

    fn read(layout: &Layout) -> Chain {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("switch.toml");
        let sockets = ["/tmp/west.sock", "/tmp/east.sock"].map(Path::new);
        std::fs::write(&file, layout.chain(sockets, 6653)).unwrap();
        Chain::load(&file).unwrap()
    }

    #[test]
    fn a_layout_is_a_chain_file_with_ports_in_the_order_of_their_numbers() {
        let layout = Layout {
            cables: 2,
            rules: 100_000,
            flush: Some("each"),
            burst: Some(4),
            queues: Some(Queues {
                packets: 64,
                priorities: 2,
            }),
            return_ring: Some(32),
            is_plain: false,
        };
        let chain = read(&layout);
        let ports: Vec<&str> = chain.ports.iter().map(PortSpec::text).collect();
        assert_eq!(
            ports,
            [
                "memif:/tmp/west.sock,role=client",
                "pair:cable0",
                "pair:cable0",
                "pair:cable1",
                "pair:cable1",
                "memif:/tmp/east.sock,role=client,ring=32",
            ]
        );
        assert_eq!((layout.cable(1), layout.east()), ([4, 5], 6));
        assert_eq!((chain.burst, chain.functions.len()), (4, 1));
        assert_eq!(chain.queue.map(|queue| queue.priorities), Some(2));
        for stage in &chain.functions {
            stage.check().unwrap();
        }
    }

    #[test]
    fn without_rules_there_is_no_switch() {
        let chain = read(&Layout {
            is_plain: true,
            ..Layout::TWO_PORTS
        });
        assert_eq!((chain.ports.len(), chain.functions.len()), (2, 0));
    }
}
