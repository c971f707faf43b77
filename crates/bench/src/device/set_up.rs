//! Sets a device up, connects the load generator to it, and removes it again.

use super::error::RunError;
use super::{Device, DeviceKind, router, scratch};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_host::baseline::{Baseline, Frames, ROUTED_HOSTS, Reach};
use taut_host::testbed::{DEVICE_INTERFACES, DEVICE_MACS, GENERATOR_INTERFACES, GENERATOR_MACS};
use taut_host::{DeviceProcess, Running, Steering, Testbed};
use taut_port::PortSpec;
use taut_sys::Clock;
use taut_traffic::{Instrument, Summaries, Traffic, Trial};
use taut_wire::{Mac, UdpFlow};

/// Timeout until the links of a device are up.
const PATIENCE: Duration = Duration::from_secs(5);

fn io(what: &str) -> impl FnOnce(std::io::Error) -> RunError + '_ {
    move |e| RunError::Device(format!("{what}: {e}"))
}

/// The environment in which a device is set up.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The `taut` program.
    pub program: &'a Path,
    /// The generator's core; none lets the scheduler choose.
    pub generator_core: Option<usize>,
    /// The core of a device that taut sets up.
    pub device_core: usize,
    /// The clock of the timestamps.
    pub clock: Clock,
    /// True if a wiretap must be able to observe the frames that the generator sends.
    pub tapped: bool,
    /// File in which a device of taut logs the interruptions of its core; none for no log.
    pub interruptions: Option<&'a Path>,
}

impl Site<'_> {
    /// Pins the calling thread, which runs the generator, to the generator's core.
    pub(crate) fn pin(&self) -> Result<(), RunError> {
        let Some(core) = self.generator_core else {
            return Ok(());
        };
        Ok(taut_host::pin_current_thread(core)?)
    }

    /// Returns the spec of a generator's port. If a wiretap must observe sent frames, the spec of an AF_PACKET port
    /// gets the option for that.
    fn port(&self, spec: String) -> String {
        if self.tapped && spec.starts_with("af_packet:") {
            return spec + ",qdisc=yes";
        }
        spec
    }
}

/// Sets `device` up, connects a load generator to it, measures, and removes the device. All of this runs on a separate
/// thread, which is pinned to the generator's core and is in the generator's namespace if there is one.
///
/// # Errors
/// Returns an error if the device cannot be set up, dies, or `measure` returns an error.
pub fn with_instrument<T: Send>(
    site: &Site<'_>,
    device: &Device,
    traffic: &Traffic,
    stop: &AtomicBool,
    measure: impl FnOnce(&mut Instrument) -> Result<T, RunError> + Send,
) -> Result<T, RunError> {
    let done = std::thread::scope(|scope| {
        scope
            .spawn(|| set_up_and_measure(site, device, traffic, stop, measure))
            .join()
    });
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn set_up_and_measure<T>(
    site: &Site<'_>,
    device: &Device,
    traffic: &Traffic,
    stop: &AtomicBool,
    measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
) -> Result<T, RunError> {
    let scratch = scratch::folder().map_err(io("making a folder for sockets"))?;
    let set_up = SetUp {
        site,
        device,
        traffic,
        folder: scratch.path(),
        stop,
    };
    match device.kind {
        DeviceKind::Memif { .. } => set_up.over_memif(measure),
        DeviceKind::MemifLoop => set_up.memif_loop(measure),
        DeviceKind::Bridge => set_up.bridge(measure),
        DeviceKind::AfPacket { .. } | DeviceKind::AfXdp { .. } | DeviceKind::Kernel => {
            set_up.over_veth(measure)
        }
        DeviceKind::Baseline(baseline) => set_up.baseline(baseline, measure),
        DeviceKind::VethLoop => set_up.veth_loop(measure),
    }
}

/// A device, and the settings for setting it up.
struct SetUp<'a> {
    site: &'a Site<'a>,
    device: &'a Device,
    traffic: &'a Traffic,
    /// Temporary folder for the sockets of the device.
    folder: &'a Path,
    stop: &'a AtomicBool,
}

impl SetUp<'_> {
    /// Measures `taut forward` over memif.
    fn over_memif<T>(
        &self,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let socket = |name: &str| self.folder.join(name).display().to_string();
        let sockets = [socket("west.sock"), socket("east.sock")];
        self.site.pin()?;
        let instrument = self.open(&sockets.clone().map(|s| format!("memif:{s}")))?;
        let command = Command::new(self.site.program);
        let process = self.start(command, [&sockets[0], &sockets[1]])?;
        self.watch(instrument, process.into(), measure)
    }

    /// Measures the generator's two memif ports connected to each other, without a device.
    fn memif_loop<T>(
        &self,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let socket = self.folder.join("loop.sock").display().to_string();
        self.site.pin()?;
        let instrument = self.open(&[
            format!("memif:{socket}"),
            format!("memif:{socket},role=client"),
        ])?;
        self.watch(instrument, Running::default(), measure)
    }

    /// Measures the Linux bridge between two veth pairs.
    fn bridge<T>(
        &self,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let cpu = self.site.device_core;
        let testbed = Testbed::builder()
            .bridge(true)
            .steering(Steering::PacketSteering { cpu })
            .build()?;
        let _inside = testbed.enter_generator()?;
        self.site.pin()?;
        let instrument = self.open(&self.packet_sockets())?;
        self.watch(instrument, Running::default(), measure)
    }

    /// Measures `taut forward` between two veth pairs.
    fn over_veth<T>(
        &self,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let cpu = self.site.device_core;
        let steering = match self.device.kind {
            DeviceKind::AfPacket { .. } => Steering::PacketSteering { cpu },
            DeviceKind::Kernel => Steering::KernelThread { cpu },
            _ => Steering::Sender,
        };
        let testbed = Testbed::builder()
            .redirects(self.device.kind == DeviceKind::Kernel)
            .steering(steering)
            .build()?;
        let command = testbed.command_in_device(self.site.program);
        let process = self.start(command, DEVICE_INTERFACES)?;
        let _inside = testbed.enter_generator()?;
        self.site.pin()?;
        let instrument = self.open(&self.packet_sockets())?;
        self.watch(instrument, process.into(), measure)
    }

    /// Measures a forwarder of another project.
    fn baseline<T>(
        &self,
        baseline: &Baseline,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let cpu = self.site.device_core;
        let testbed = baseline
            .on_interfaces()
            .then(|| {
                let steering = baseline.steering(cpu);
                Testbed::builder().steering(steering).build()
            })
            .transpose()?;
        let running = baseline.start(testbed.as_ref(), cpu, self.folder)?;
        let _inside = testbed.as_ref().map(Testbed::enter_generator).transpose()?;
        self.site.pin()?;
        let ports = ports_to(baseline, self.folder).map(|spec| self.site.port(spec));
        let instrument = self.open(&ports)?;
        self.watch(instrument, running, |instrument| {
            if baseline.reach == Reach::Vhost {
                until_it_passes(instrument, &self.site.clock, self.stop);
            }
            measure(instrument)
        })
    }

    /// Measures the generator at both ends of one veth pair, without a device.
    fn veth_loop<T>(
        &self,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let testbed = Testbed::builder().build()?;
        let _inside = testbed.enter_generator()?;
        self.site.pin()?;
        let ends = [GENERATOR_INTERFACES[0], DEVICE_INTERFACES[0]];
        let specs = ends.map(|i| format!("af_packet:{i}"));
        let specs = [PortSpec::parse(&specs[0])?, PortSpec::parse(&specs[1])?];
        let (traffic, clock) = (self.traffic.clone(), self.site.clock);
        // The far end of the veth pair is in the device's namespace. A socket stays in the namespace in which it was
        // opened.
        let instrument = Instrument::open_with(&specs, traffic, clock, |index, open| {
            let _far = if index == 1 {
                Some(testbed.enter_device()?)
            } else {
                None
            };
            open().map_err(RunError::from)
        })?;
        self.watch(instrument, Running::default(), measure)
    }

    /// Opens the generator's ports from their specs, and connects a load generator to them.
    fn open(&self, specs: &[String]) -> Result<Instrument, RunError> {
        let specs = specs
            .iter()
            .map(|s| PortSpec::parse(s))
            .collect::<Result<Vec<_>, _>>()?;
        let traffic = self.traffic.clone();
        Ok(Instrument::open(&specs, traffic, self.site.clock)?)
    }

    /// Returns the specs of the generator's AF_PACKET ports on its interfaces.
    fn packet_sockets(&self) -> [String; 2] {
        GENERATOR_INTERFACES.map(|i| self.site.port(format!("af_packet:{i}")))
    }

    /// Starts `taut forward` on the given sockets or interfaces, and waits until it is ready.
    fn start(&self, mut command: Command, ends: [&str; 2]) -> Result<DeviceProcess, RunError> {
        if self.device.routes {
            router::write(self.folder).map_err(io("writing the router's chain file"))?;
        }
        let cpu = self.site.device_core;
        let arguments = self.device.arguments(ends, Some(cpu), self.folder);
        command.args(arguments.unwrap_or_default());
        if let Some(path) = self.site.interruptions {
            command.arg("--interruptions").arg(path);
        }
        command.args(["--quiet", "--until-stdin-closes"]);
        let mut process = DeviceProcess::start("device", command, cpu, self.folder)?;
        process.wait_for_line(|line| line.starts_with("forwarding"), PATIENCE)?;
        Ok(process)
    }

    /// Measures a device that has been set up, checks that it is still alive, and removes it.
    fn watch<T>(
        &self,
        mut instrument: Instrument,
        mut running: Running,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let measured = instrument
            .wait_for_links(PATIENCE, self.stop)
            .map_err(RunError::from)
            .and_then(|()| measure(&mut instrument));
        // The error of a device that died is more useful than the loss of its packets.
        if !self.stop.load(Ordering::Relaxed) {
            running.check()?;
        }
        let over_memif = match self.device.kind {
            DeviceKind::Baseline(baseline) => matches!(baseline.reach, Reach::Memif { .. }),
            _ => false,
        };
        if over_memif {
            // The device is stopped while its links are up: DPDK's memif driver may crash when a peer leaves a busy
            // port.
            running.stop()?;
        } else {
            drop(instrument);
            running.stop()?;
        }
        measured
    }
}

/// Returns the frames that a device forwards from the generator's first port to its second, or in the other direction
/// if `back`.
pub fn flow_through(frames: Frames, back: bool) -> UdpFlow {
    let (from, to) = if back { (1, 0) } else { (0, 1) };
    let plain = UdpFlow {
        src_mac: Mac(GENERATOR_MACS[from]),
        dst_mac: Mac(GENERATOR_MACS[to]),
        src_ip: ROUTED_HOSTS[from].into(),
        dst_ip: ROUTED_HOSTS[to].into(),
        ..UdpFlow::default()
    };
    match frames {
        Frames::Through => plain,
        Frames::Routed => UdpFlow {
            dst_mac: Mac(DEVICE_MACS[from]),
            ..plain
        },
        Frames::SameUdpPorts => UdpFlow {
            src_port: plain.dst_port,
            ..plain
        },
    }
}

/// Returns the specs of the generator's ports to a baseline that was started with `folder`.
pub fn ports_to(baseline: &Baseline, folder: &Path) -> [String; 2] {
    let sockets = Baseline::sockets(folder).map(|socket| socket.display().to_string());
    match baseline.reach {
        Reach::Veth { .. } => GENERATOR_INTERFACES.map(|name| format!("af_packet:{name}")),
        Reach::Memif { tx_rings } => {
            sockets.map(|socket| format!("memif:{socket},role=client,queues={tx_rings}"))
        }
        Reach::Vhost => [0, 1].map(|number| {
            format!(
                "dpdk:net_virtio_user{number},path={},queue_size=1024",
                sockets[number]
            )
        }),
    }
}

/// Sends a few packets until all of them come back, or the timeout expires. Open vSwitch drops packets in the first 0.2
/// s after a vhost-user link is up, because it sets up its queues again.
fn until_it_passes(instrument: &mut Instrument, clock: &Clock, stop: &AtomicBool) {
    let trickle = Trial {
        rate_pps: 1000.0,
        duration: Duration::from_millis(20),
    };
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE && !stop.load(Ordering::Relaxed) {
        let tally = instrument.run(trickle, &mut Summaries::new(clock), stop);
        if tally.received == trickle.packets() {
            break;
        }
    }
}
