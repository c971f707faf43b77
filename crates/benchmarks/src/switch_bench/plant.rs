//! A switch that is set up for a trial, with the generator at both ends and cables between its own ports. If another
//! switch multiplies traffic, it is between the generator and the measured switch.

use super::device::Switch;
use super::keeper::{Keeper, Person, Ports, RuleFile, no_controller};
use super::openflow::{Action, Address, Asked, Controller, Rule};
use super::p4runtime::{Client, Pipeline};
use super::topology::{Leads, Topology, Wires, Wiring};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_bench::benchmark::{Failed, Rig};
use taut_host::baseline::{Baseline, management_socket, start_cabled};
use taut_host::net::{NamespaceGuard, Steering};
use taut_host::testbed::{DEVICE_INTERFACES, GENERATOR_INTERFACES};
use taut_host::{DeviceProcess, Running, Testbed, Veth, WireEnd, allowed_cpus};
use taut_port::PortSpec;
use taut_traffic::{Instrument, Traffic};

/// Timeout until the links of a switch are up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of slots in the ring of an AF_XDP port at the end of a cable between two ports of the switch. The number is
/// small because each port needs packet memory.
const CABLE_RING: u32 = 256;
/// A port without a link, for unused port numbers.
const NOWHERE: &str = "null:";

/// A switch to set up, with the shared resources of the benchmark and the wiring.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub rig: &'a Rig<'a>,
    pub switch: &'a Switch,
    pub wires: &'a Wires,
}

/// The queues of every port of a switch: their size and number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queues {
    pub packets: usize,
    pub priorities: usize,
}

/// The configuration of a switch that a trial requires.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub wiring: Wiring,
    /// Number of rules that the switch must be able to store.
    pub rules: u32,
    /// Flush policy of the switch; `None` is the default.
    pub flush: Option<&'static str>,
    /// Maximum number of packets per receive call; `None` is the default.
    pub burst: Option<usize>,
    pub queues: Option<Queues>,
    /// Descriptors of the ring to the generator's second port; `None` is the default.
    pub return_ring: Option<u32>,
    /// True if the device is a forwarder between two ports instead of a switch.
    pub is_plain: bool,
}

impl Layout {
    /// Returns the layout of a switch with this wiring.
    pub fn of(wiring: Wiring) -> Self {
        Self {
            wiring,
            rules: 0,
            flush: None,
            burst: None,
            queues: None,
            return_ring: None,
            is_plain: false,
        }
    }

    /// Returns the chain file of this switch, which listens for controllers at a port of this machine.
    fn chain(&self, spec: impl Fn(u32, Leads) -> String, openflow: u16) -> String {
        let numbers: Vec<u32> = match self.is_plain {
            true => vec![self.wiring.first, self.wiring.last],
            false => (1..=self.wiring.ports().into_iter().max().unwrap_or(0)).collect(),
        };
        let ports = numbers.into_iter();
        let ports = ports.map(|port| spec(port, self.wiring.leads(port)));
        let mut text = format!("ports = {:?}\n", ports.collect::<Vec<_>>());
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
            text.push_str(&function(openflow));
            // The table gets twice the size, because a nearly full table is slow to search.
            if self.rules > 0 {
                let _ = writeln!(text, "most_rules = {}", 2 * self.rules.max(8_192));
            }
        }
        text
    }

    /// Returns the spec of a port over memif.
    fn over_memif(&self, folder: &Path, leads: Leads) -> String {
        let [west, east] = Baseline::sockets(folder);
        let ring = self.return_ring;
        match leads {
            Leads::ToFirst => format!("memif:{},role=client", west.display()),
            Leads::ToLast => {
                let ring = ring.map_or(String::new(), |ring| format!(",ring={ring}"));
                format!("memif:{},role=client{ring}", east.display())
            }
            Leads::Along(cable) => format!("pair:cable{cable}"),
            Leads::ToAmplifier(link) => {
                format!("memif:{},role=client", link_socket(folder, link).display())
            }
            Leads::Nowhere => NOWHERE.to_string(),
        }
    }

    /// Returns the spec of a port on an interface.
    fn over_af_xdp(&self, port: u32, leads: Leads) -> String {
        match leads {
            Leads::Nowhere => NOWHERE.to_string(),
            Leads::Along(_) => {
                format!("af_xdp:{},ring={CABLE_RING}", interface(&self.wiring, port))
            }
            _ => format!("af_xdp:{}", interface(&self.wiring, port)),
        }
    }

    /// Returns the chain file of the amplifier of this switch, if it has one. `shares` is true if the amplifier runs on
    /// the switch's core.
    fn amplifier_chain(&self, folder: &Path, openflow: u16, shares: bool) -> Option<String> {
        let before = self.wiring.before.as_ref()?;
        let [west, _] = Baseline::sockets(folder);
        let most = before.links.iter().map(|[own, _]| *own).max()?;
        let ports = (1..=most.max(before.first)).map(|port| {
            let link = before.links.iter().position(|[own, _]| *own == port);
            match link {
                Some(link) => format!("memif:{},role=server", link_socket(folder, link).display()),
                None if port == before.first => format!("memif:{},role=client", west.display()),
                None => NOWHERE.to_string(),
            }
        });
        let mut text = format!("ports = {:?}\n", ports.collect::<Vec<_>>());
        if shares {
            text.push_str("wait = \"interrupt\"\n");
        }
        text.push_str(&function(openflow));
        Some(text)
    }
}

fn link_socket(folder: &Path, link: usize) -> PathBuf {
    folder.join(format!("link{link}.sock"))
}

fn function(openflow: u16) -> String {
    format!(
        "[[function]]\nname = \"switch\"\nopenflow = \"{}:{openflow}\"\n",
        Ipv4Addr::LOCALHOST
    )
}

/// Returns the name of the interface of a port, in the namespace of the switch.
fn interface(wiring: &Wiring, port: u32) -> String {
    match wiring.leads(port) {
        Leads::ToFirst => DEVICE_INTERFACES[0].to_string(),
        Leads::ToLast => DEVICE_INTERFACES[1].to_string(),
        _ => format!("p{port}"),
    }
}

/// A running switch with the generator connected to both ends of its path.
pub(super) struct Plant {
    pub instrument: Instrument,
    keeper: Option<Keeper>,
    amplifier: Option<Keeper>,
}

impl Plant {
    /// Returns the source of the switch's rules.
    ///
    /// # Errors
    /// Returns an error if the device is a forwarder without rules.
    pub fn keeper(&mut self) -> Result<&mut Keeper, Failed> {
        let none = || Failed::Broken("a plain forwarder has no rules".to_string());
        self.keeper.as_mut().ok_or_else(none)
    }

    /// Returns the controller of the switch.
    ///
    /// # Errors
    /// Returns an error if the source of the rules is not a controller.
    pub fn controller(&mut self) -> Result<&mut Keeper, Failed> {
        let keeper = self.keeper()?;
        match keeper.is_controller() {
            true => Ok(keeper),
            false => Err(no_controller()),
        }
    }

    /// Returns the controller of the switch for use in another thread.
    ///
    /// # Errors
    /// The errors are those of [`Plant::controller`].
    pub fn take_controller(&mut self) -> Result<Keeper, Failed> {
        self.controller()?;
        self.keeper.take().ok_or_else(no_controller)
    }

    /// Takes the controller back from the other thread.
    pub fn give_controller(&mut self, controller: Keeper) {
        self.keeper = Some(controller);
    }

    /// Returns the source of the rules of the switch that multiplies traffic, which may be the measured one.
    pub fn amplifier(&mut self) -> Result<&mut Keeper, Failed> {
        match self.amplifier {
            Some(_) => self.amplifier.as_mut().ok_or(Failed::Stopped),
            None => self.keeper(),
        }
    }
}

/// The parts of a running switch. Fields are dropped in order: the generator before its links.
struct Standing {
    instrument: Instrument,
    running: Vec<Running>,
    rules: Made,
    amplifier: Made,
    _inside: Option<NamespaceGuard>,
    wires: Option<KernelWires>,
}

/// The mechanism by which rules are added to a switch.
enum Made {
    Not,
    At(Address),
    ByP4Runtime(SocketAddr, Arc<Pipeline>),
    ByBridge(Ports),
    ByFile(RuleFile),
    ByPerson,
}

/// The veth pairs of a switch.
struct KernelWires {
    // Cables are dropped before the namespaces of their ends.
    _cables: Vec<Veth>,
    testbed: Testbed,
}

impl KernelWires {
    /// Creates the veth pairs. With `redirects`, their ends accept frames that XDP programs redirect to them.
    fn new(wiring: &Wiring, steering: Steering, redirects: bool) -> Result<Self, Failed> {
        let testbed = Testbed::builder();
        let testbed = testbed.redirects(redirects).steering(steering).build()?;
        let end =
            |port: u32| WireEnd::new(Some(testbed.device_namespace()), &interface(wiring, port));
        let cables = wiring.cables.iter();
        let cables = cables.map(|[near, far]| Veth::between(&end(*near), &end(*far), redirects));
        let cables = cables.collect::<Result<_, _>>()?;
        Ok(Self {
            _cables: cables,
            testbed,
        })
    }
}

/// Sets the switch of `site` up, with its files in `folder`.
fn stand(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    folder: &Path,
) -> Result<Standing, Failed> {
    match site.switch {
        Switch::Taut => taut_over_memif(site, layout, traffic, folder),
        Switch::TautAfXdp => taut_over_af_xdp(site, layout, traffic, folder),
        Switch::TautInKernel => taut_in_kernel(site, layout, traffic, folder),
        Switch::OpenVSwitch => open_vswitch(site, layout, traffic, folder),
        Switch::Bridge => bridge(site, layout, traffic),
        Switch::OpenFlow(_) | Switch::P4Runtime(_) | Switch::ByHand => elsewhere(site, traffic),
    }
}

/// Sets a switch up, calls `measure`, and removes the switch. The calling thread is pinned to the generator's core. The
/// switch has no rules at first; existing rules of a switch on the network are deleted.
pub(super) fn with_switch<T>(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    stop: &AtomicBool,
    measure: impl FnOnce(&mut Plant) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let scratch = taut_host::private::scratch()?;
    taut_host::pin_current_thread(site.rig.cores.generator)?;
    let Standing {
        instrument,
        mut running,
        rules,
        amplifier,
        _inside,
        wires,
    } = stand(site, layout, traffic, scratch.path())?;
    let mut plant = Plant {
        instrument,
        keeper: None,
        amplifier: None,
    };
    let made = (rules, amplifier, wires.as_ref());
    let measured = connect(&mut plant, site, layout, made, stop).and_then(|()| measure(&mut plant));
    let Plant {
        instrument,
        keeper,
        amplifier,
    } = plant;
    for mut keeper in [keeper, amplifier].into_iter().flatten() {
        if !site.switch.is_set_up() {
            // An error of this clean-up is ignored, because an earlier error is more useful.
            let _ = keeper.leave();
        }
    }
    // The error of a switch that died is more useful than the loss of its packets.
    let is_stopped = stop.load(Ordering::Relaxed);
    if !is_stopped {
        running.iter_mut().try_for_each(Running::check)?;
    }
    let stopped = |running: Vec<Running>| running.into_iter().try_for_each(Running::stop);
    match site.switch {
        // The switch is stopped while its links are up: DPDK's memif driver may crash when a peer leaves a busy port.
        Switch::OpenVSwitch => {
            stopped(running)?;
            drop(instrument);
        }
        _ => {
            drop(instrument);
            stopped(running)?;
        }
    }
    if is_stopped {
        return Err(Failed::Stopped);
    }
    measured
}

/// Starts `taut forward` with a chain file.
fn forward(
    mut command: Command,
    (name, text): (&str, &str),
    core: usize,
    folder: &Path,
) -> Result<Running, Failed> {
    let file = folder.join(format!("{name}.toml"));
    std::fs::write(&file, text)?;
    command.arg("forward").arg(&file);
    command.args(["--core", &core.to_string()]);
    command.args(["--quiet", "--until-stdin-closes"]);
    let mut process = DeviceProcess::start(name, command, core, folder)?;
    process.wait_for_line(|line| line.starts_with("forwarding"), PATIENCE)?;
    Ok(Running::from(process))
}

fn taut_over_memif(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    folder: &Path,
) -> Result<Standing, Failed> {
    let rig = site.rig;
    let core = rig.cores.device;
    let sockets = Baseline::sockets(folder).map(|socket| format!("memif:{}", socket.display()));
    let instrument = open(&sockets, traffic, rig)?;
    let at = |port| Made::At(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()));
    let mut running = Vec::new();
    let mut amplifier = Made::Not;
    let port = free_port()?;
    let another = spare_core(rig);
    if let Some(chain) = layout.amplifier_chain(folder, port, another.is_none()) {
        let chain = ("amplifier", chain.as_str());
        let core = another.unwrap_or(core);
        running.push(forward(Command::new(rig.program), chain, core, folder)?);
        amplifier = at(port);
    }
    let port = free_port()?;
    let spec = |_, leads| layout.over_memif(folder, leads);
    let mut chain = layout.chain(spec, port);
    if !running.is_empty() && another.is_none() {
        chain.insert_str(0, "wait = \"yield\"\n");
    }
    let chain = ("device", chain.as_str());
    running.push(forward(Command::new(rig.program), chain, core, folder)?);
    Ok(Standing {
        instrument,
        running,
        rules: if layout.is_plain { Made::Not } else { at(port) },
        amplifier,
        _inside: None,
        wires: None,
    })
}

fn taut_over_af_xdp(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    folder: &Path,
) -> Result<Standing, Failed> {
    let rig = site.rig;
    let wires = KernelWires::new(&layout.wiring, Steering::Sender, false)?;
    // Controllers connect over the namespace's own loopback interface.
    let mut up = wires.testbed.command_in_device("ip");
    up.args(["link", "set", "lo", "up"]).status()?;
    // No other program listens in this namespace.
    const PORT: u16 = 6653;
    let chain = layout.chain(|port, leads| layout.over_af_xdp(port, leads), PORT);
    let command = wires.testbed.command_in_device(rig.program);
    let chain = ("device", chain.as_str());
    let running = forward(command, chain, rig.cores.device, folder)?;
    let inside = wires.testbed.enter_generator()?;
    let specs = GENERATOR_INTERFACES.map(|name| format!("af_packet:{name}"));
    Ok(Standing {
        instrument: open(&specs, traffic, rig)?,
        running: vec![running],
        rules: match layout.is_plain {
            true => Made::Not,
            false => Made::At(Address::Tcp((Ipv4Addr::LOCALHOST, PORT).into())),
        },
        amplifier: Made::Not,
        _inside: Some(inside),
        wires: Some(wires),
    })
}

fn taut_in_kernel(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    folder: &Path,
) -> Result<Standing, Failed> {
    let rig = site.rig;
    let cpu = rig.cores.device;
    let wires = KernelWires::new(&layout.wiring, Steering::KernelThread { cpu }, true)?;
    let most = layout.wiring.ports().into_iter().max().unwrap_or(0);
    let numbers: Vec<u32> = match layout.is_plain {
        true => vec![layout.wiring.first, layout.wiring.last],
        false => (1..=most).collect(),
    };
    let ports = numbers.iter();
    let ports: Vec<String> = ports
        .map(|port| format!("af_xdp:{}", interface(&layout.wiring, *port)))
        .collect();
    let mut file = RuleFile {
        namespace: wires.testbed.device_namespace().to_string(),
        program: rig.program.to_path_buf(),
        core: cpu,
        folder: folder.to_path_buf(),
        chain: format!("place = \"kernel\"\nports = {ports:?}\n"),
        interfaces: numbers
            .iter()
            .map(|port| (*port, interface(&layout.wiring, *port)))
            .collect(),
        running: None,
    };
    if layout.is_plain {
        file.rules([])?;
    }
    let inside = wires.testbed.enter_generator()?;
    let specs = GENERATOR_INTERFACES.map(|name| format!("af_packet:{name}"));
    Ok(Standing {
        instrument: open(&specs, traffic, rig)?,
        running: Vec::new(),
        rules: Made::ByFile(file),
        amplifier: Made::Not,
        _inside: Some(inside),
        wires: Some(wires),
    })
}

fn open_vswitch(
    site: Site<'_>,
    layout: &Layout,
    traffic: Traffic,
    folder: &Path,
) -> Result<Standing, Failed> {
    let rig = site.rig;
    let cables = layout.wiring.cables.len();
    let running = start_cabled(cables, rig.cores.device, folder)?;
    let specs = Baseline::sockets(folder)
        .map(|socket| format!("memif:{},role=client,queues=2", socket.display()));
    Ok(Standing {
        instrument: open(&specs, traffic, rig)?,
        running: vec![running],
        rules: Made::At(Address::Unix(management_socket(folder))),
        amplifier: Made::Not,
        _inside: None,
        wires: None,
    })
}

fn bridge(site: Site<'_>, layout: &Layout, traffic: Traffic) -> Result<Standing, Failed> {
    let rig = site.rig;
    let cpu = rig.cores.device;
    let wires = KernelWires::new(&layout.wiring, Steering::PacketSteering { cpu }, false)?;
    let numbers = layout.wiring.ports().into_iter();
    let ports = Ports {
        namespace: wires.testbed.device_namespace().to_string(),
        interfaces: numbers
            .map(|port| (port, interface(&layout.wiring, port)))
            .collect(),
    };
    let inside = wires.testbed.enter_generator()?;
    let specs = GENERATOR_INTERFACES.map(|name| format!("af_packet:{name}"));
    Ok(Standing {
        instrument: open(&specs, traffic, rig)?,
        running: Vec::new(),
        rules: Made::ByBridge(ports),
        amplifier: Made::Not,
        _inside: Some(inside),
        wires: Some(wires),
    })
}

/// Connects the generator to a switch that is not set up by this machine.
fn elsewhere(site: Site<'_>, traffic: Traffic) -> Result<Standing, Failed> {
    let topology: Option<&Topology> = site.wires.topology.as_ref();
    let ports = topology.and_then(|it| it.generator.ports.as_ref());
    let none = || Failed::Broken("the ports that lead to it are unknown".to_string());
    let made = |switch: &Switch| match switch {
        Switch::ByHand => Ok(Made::ByPerson),
        Switch::P4Runtime(_) => {
            let pipeline = site.wires.pipeline().cloned();
            let pair = switch.p4runtime_address().transpose();
            let pair = pair.map_err(Failed::Broken)?.zip(pipeline);
            let none = || Failed::Broken("its pipeline is unknown".to_string());
            let (address, pipeline) = pair.ok_or_else(none)?;
            Ok(Made::ByP4Runtime(address, pipeline))
        }
        other => other.address().map(Made::At).map_err(Failed::Broken),
    };
    let amplifier = site.wires.amplifier.as_ref();
    Ok(Standing {
        instrument: open(ports.ok_or_else(none)?, traffic, site.rig)?,
        running: Vec::new(),
        rules: made(site.switch)?,
        amplifier: amplifier.map(made).transpose()?.unwrap_or(Made::Not),
        _inside: None,
        wires: None,
    })
}

fn open(specs: &[String; 2], traffic: Traffic, rig: &Rig<'_>) -> Result<Instrument, Failed> {
    let specs = [PortSpec::parse(&specs[0])?, PortSpec::parse(&specs[1])?];
    Ok(Instrument::open(&specs, traffic, rig.clock)?)
}

/// Waits for the links of a switch and for the source of its rules, and deletes all existing rules.
fn connect(
    plant: &mut Plant,
    site: Site<'_>,
    layout: &Layout,
    (rules, amplifier, wires): (Made, Made, Option<&KernelWires>),
    stop: &AtomicBool,
) -> Result<(), Failed> {
    plant.instrument.wait_for_links(PATIENCE, stop)?;
    let keeper = |made: Made, ports: &[u32], switch: &Switch| -> Result<_, Failed> {
        Ok(match made {
            Made::Not => None,
            Made::ByBridge(ports) => Some(Keeper::Bridge(ports)),
            Made::ByFile(file) => Some(Keeper::File(file)),
            Made::ByPerson => Some(Keeper::Person(Person::new(switch.label()))),
            Made::ByP4Runtime(address, pipeline) => {
                let client = Client::connect(address, pipeline, taut_host::stop_flag()?)?;
                Some(Keeper::P4Runtime(Box::new(client)))
            }
            Made::At(address) => {
                // A connection stays in the namespace in which it was made.
                let _there = match (wires, &address) {
                    (Some(wires), Address::Tcp(_)) => Some(wires.testbed.enter_device()?),
                    _ => None,
                };
                let mut controller = Controller::connect(&address, ports, PATIENCE)?;
                controller.clear()?;
                Some(Keeper::OpenFlow(controller))
            }
        })
    };
    let wiring = &layout.wiring;
    plant.keeper = keeper(rules, &wiring.ports(), site.switch)?;
    if let (Some(before), Some(switch)) = (&wiring.before, &site.wires.amplifier) {
        let mut own = vec![before.first];
        own.extend(before.links.iter().map(|[own, _]| *own));
        let mut amplifier = keeper(amplifier, &own, switch)?;
        if let Some(amplifier) = &mut amplifier {
            // Until it gets other rules, the amplifier forwards all packets over the first link.
            let link = before.links.first().map(|[own, _]| Action::Output(*own));
            amplifier.rules([sending(before.first, link.into_iter().collect())], stop)?;
        }
        plant.amplifier = amplifier;
    }
    Ok(())
}

/// Returns a rule that applies `actions` to packets from port `in_port`, with the port number as cookie.
pub(super) fn sending(in_port: u32, actions: Vec<Action>) -> Rule {
    Rule {
        priority: 100,
        cookie: u64::from(in_port),
        asked: Asked {
            in_port: Some(in_port),
            ..Asked::default()
        },
        meter: None,
        actions,
    }
}

/// Returns a core that neither generator nor switch uses; none if there is no such core.
fn spare_core(rig: &Rig<'_>) -> Option<usize> {
    let taken = [rig.cores.generator, rig.cores.device];
    allowed_cpus().into_iter().find(|cpu| !taken.contains(cpu))
}

/// Returns an unused TCP port.
fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_engine::Chain;
    use taut_functions::FUNCTIONS;

    fn read(text: &str) -> Chain {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("switch.toml");
        std::fs::write(&file, text).unwrap();
        Chain::load(&file, FUNCTIONS).unwrap()
    }

    fn ports(chain: &Chain) -> Vec<&str> {
        chain.ports.iter().map(PortSpec::text).collect()
    }

    fn over_memif(layout: &Layout) -> String {
        let folder = Path::new("/tmp");
        layout.chain(|_, leads| layout.over_memif(folder, leads), 6653)
    }

    #[test]
    fn a_layout_writes_a_chain_file_with_ports_in_order() {
        let layout = Layout {
            rules: 100_000,
            flush: Some("each"),
            burst: Some(4),
            queues: Some(Queues {
                packets: 64,
                priorities: 2,
            }),
            return_ring: Some(32),
            ..Layout::of(Wiring::built_in(2, 0))
        };
        let chain = read(&over_memif(&layout));
        assert_eq!(
            ports(&chain),
            [
                "memif:/tmp/west.sock,role=client",
                "pair:cable0",
                "pair:cable0",
                "pair:cable1",
                "pair:cable1",
                "memif:/tmp/east.sock,role=client,ring=32",
            ]
        );
        assert_eq!((chain.burst, chain.functions.len()), (4, 1));
        assert_eq!(chain.queue.map(|queue| queue.priorities), Some(2));
        for stage in &chain.functions {
            stage.check().unwrap();
        }
    }

    #[test]
    fn chain_files_use_the_port_numbers_of_the_topology_file() {
        let wiring = Wiring {
            first: 4,
            last: 1,
            cables: vec![[6, 2]],
            before: None,
        };
        let layout = Layout::of(wiring);
        let chain = read(&over_memif(&layout));
        assert_eq!(
            ports(&chain),
            [
                "memif:/tmp/east.sock,role=client",
                "pair:cable0",
                "null:",
                "memif:/tmp/west.sock,role=client",
                "null:",
                "pair:cable0",
            ]
        );
        let text = layout.chain(|port, leads| layout.over_af_xdp(port, leads), 6653);
        assert!(
            text.contains("[\"af_xdp:dut1\", \"af_xdp:p2,ring=256\", \"null:\", \"af_xdp:dut0\"")
        );
    }

    #[test]
    fn every_amplifier_link_connects_to_a_port_of_the_switch() {
        let layout = Layout::of(Wiring::built_in(0, 3));
        let folder = Path::new("/tmp");
        let amplifier = layout.amplifier_chain(folder, 6653, true).unwrap();
        let chain = read(&amplifier);
        assert_eq!(
            ports(&chain),
            [
                "memif:/tmp/west.sock,role=client",
                "memif:/tmp/link0.sock,role=server",
                "memif:/tmp/link1.sock,role=server",
                "memif:/tmp/link2.sock,role=server",
            ]
        );
        let chain = read(&over_memif(&layout));
        assert_eq!(
            ports(&chain),
            [
                "memif:/tmp/link0.sock,role=client",
                "memif:/tmp/link1.sock,role=client",
                "memif:/tmp/link2.sock,role=client",
                "memif:/tmp/east.sock,role=client",
            ]
        );
        let alone = Layout::of(Wiring::built_in(1, 0));
        assert!(alone.amplifier_chain(folder, 6653, false).is_none());
    }

    #[test]
    fn a_plain_layout_has_two_ports_and_no_switch() {
        let chain = read(&over_memif(&Layout {
            is_plain: true,
            ..Layout::of(Wiring::built_in(0, 0))
        }));
        assert_eq!((chain.ports.len(), chain.functions.len()), (2, 0));
    }
}
