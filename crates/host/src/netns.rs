//! A testbed of two network namespaces: the load generator in one, the device under test in the other.
//!
//! ```text
//!   generator namespace            device namespace
//!     gen0 ------- veth ------- dut0 \
//!                                     bridge, or a program, between them
//!     gen1 ------- veth ------- dut1 /
//! ```
//!
//! No interface has an IP address, IPv6 and ARP are off, and so are all offloads: the only frames on
//! the wires are those that are sent on purpose, as they were sent. A veth pair has no transmit queue
//! (`noqueue`), so there is no queue length to set.
//!
//! Names start with `taut-<process number>-`; [`Testbed::sweep_stale`] relies on it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::affinity::set_realtime_of;
use crate::command::{CommandError, run};
use crate::cpu_list::mask_of_cpus;
use crate::permissions::{Missing, can_make_namespaces};

/// The generator's interfaces: it sends on the first and receives on the second.
pub const GENERATOR_INTERFACES: [&str; 2] = ["gen0", "gen1"];
/// The device's interfaces, each the peer of the generator's interface of the same number.
pub const DEVICE_INTERFACES: [&str; 2] = ["dut0", "dut1"];
/// Addresses of the generator's interfaces (locally administered).
pub const GENERATOR_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Addresses of the device's interfaces (locally administered).
pub const DEVICE_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

const BRIDGE: &str = "br0";
/// Folder in which iproute2 keeps the names of namespaces.
const NAMESPACE_FOLDER: &str = "/run/netns";
/// The kernel announces a carrier within milliseconds; this is for a machine under heavy load.
const CARRIER_DEADLINE: Duration = Duration::from_secs(5);

/// Reason why a testbed could not be built or entered.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A program, a kernel feature or a privilege is missing.
    #[error("network namespaces are not possible here: {0}")]
    NotPossible(#[from] Missing),
    /// A set-up program failed.
    #[error("cannot set up the testbed: {0}")]
    Command(#[from] CommandError),
    /// An interface did not come up.
    #[error("interface {interface} in namespace {namespace} did not come up within {waited:?}")]
    NoCarrier {
        /// The namespace.
        namespace: String,
        /// The interface.
        interface: String,
        /// Time that it was given.
        waited: Duration,
    },
    /// The calling thread could not change its namespace.
    #[error("cannot enter network namespace {namespace}: {source}")]
    NotEntered {
        /// The namespace.
        namespace: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Receive processing could not be moved to the CPU asked for.
    #[error("cannot move the receive processing of {interface} to CPU {cpu}: {source}")]
    NotSteered {
        /// The interface.
        interface: &'static str,
        /// The CPU.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
}

/// Place where the kernel processes the frames that arrive at the device's interfaces.
///
/// The receiving end of a veth pair does its work inside the sender's system call, on the sender's
/// CPU: with nothing done about it, a kernel bridge forwards on the generator's time, and the whole
/// path is one CPU's. Either other choice moves that work to the device's CPU, as with two machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Steering {
    /// On the sending CPU: the kernel's own way, the shortest path, and not a device of its own.
    #[default]
    Sender,
    /// Receive packet steering: an interrupt to `cpu`, and the work in its soft interrupts, which come
    /// before any program there. The right one for a kernel bridge and for a program on packet
    /// sockets. Frames that an XDP program takes are not steered. Beyond saturation frames are lost
    /// at `net.core.netdev_max_backlog`.
    PacketSteering {
        /// The device's CPU.
        cpu: usize,
    },
    /// Threaded NAPI: a kernel thread per interface, pinned to `cpu`, where XDP programs run too. It comes
    /// before every program there, as interrupts of a network card would (SCHED_FIFO, of the lowest priority):
    /// in turns with them it loses milliseconds, and at 256 waiting frames, frames. Programs there get at
    /// least the twentieth part of the time that the kernel keeps for them.
    KernelThread {
        /// The device's CPU.
        cpu: usize,
    },
}

/// The commands that join the device's interfaces by a bridge, for a shell in its namespace.
#[must_use]
pub fn bridge_commands() -> Vec<String> {
    let mut commands = vec![format!(
        "ip link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    )];
    for (interface, beyond) in DEVICE_INTERFACES.into_iter().zip(GENERATOR_MACS) {
        let beyond = mac_text(beyond);
        commands.push(format!("ip link set {interface} master {BRIDGE}"));
        commands.push(format!(
            "bridge fdb add {beyond} dev {interface} master static"
        ));
    }
    commands.push(format!("ip link set {BRIDGE} up"));
    commands
}

/// Description of a testbed to build; see [`Testbed::builder`].
#[derive(Debug, Clone, Copy, Default)]
pub struct TestbedBuilder {
    bridge: bool,
    redirects: bool,
    steering: Steering,
}

impl TestbedBuilder {
    /// Sets whether a Linux bridge joins the device's interfaces. It runs no spanning tree, snoops no multicast,
    /// forwards from the first frame, and knows both generator addresses, so that no unicast frame is flooded.
    #[must_use]
    pub fn bridge(mut self, bridge: bool) -> Self {
        self.bridge = bridge;
        self
    }

    /// Sets whether the generator's interfaces take frames that an XDP program in the device's driver redirects to it.
    /// A veth interface takes them only if its far end polls, as it does with GRO on; that changes how the kernel
    /// receives there, so it is not on for other devices.
    #[must_use]
    pub fn redirects(mut self, redirects: bool) -> Self {
        self.redirects = redirects;
        self
    }

    /// Sets where frames for the device are processed.
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Self {
        self.steering = steering;
        self
    }

    /// Builds the testbed, after sweeping what dead processes left. All interfaces are up and have
    /// their carrier when it returns.
    ///
    /// # Errors
    /// [`TestbedError`]; what was built up to the failure is removed.
    pub fn build(self) -> Result<Testbed, TestbedError> {
        can_make_namespaces()?;
        Testbed::sweep_stale()?;
        let testbed = Testbed::with_fresh_names();
        testbed.make_namespaces()?;
        for number in 0..2 {
            testbed.make_pair(number)?;
        }
        if self.bridge {
            testbed.make_bridge()?;
        } else {
            for interface in DEVICE_INTERFACES {
                // A forwarder takes frames addressed to others.
                testbed.set_link(&testbed.device, interface, &["promisc", "on"])?;
            }
        }
        if self.redirects {
            for interface in GENERATOR_INTERFACES {
                run(
                    "ip",
                    &[
                        &["netns", "exec", &testbed.generator] as &[&str],
                        &["ethtool", "-K", interface, "gro", "on"],
                    ]
                    .concat(),
                )?;
            }
        }
        testbed.bring_up()?;
        testbed.wait_for_carriers(self.bridge)?;
        testbed.steer(self.steering)?;
        Ok(testbed)
    }
}

/// Testbed of two namespaces and two veth pairs between them. Dropping it removes all of it.
#[derive(Debug)]
pub struct Testbed {
    generator: String,
    device: String,
}

impl Testbed {
    /// Starts the description of a testbed: without bridge, processing at the sender.
    #[must_use]
    pub fn builder() -> TestbedBuilder {
        TestbedBuilder::default()
    }

    /// The name of the generator's namespace.
    #[must_use]
    pub fn generator_namespace(&self) -> &str {
        &self.generator
    }

    /// The name of the device's namespace.
    #[must_use]
    pub fn device_namespace(&self) -> &str {
        &self.device
    }

    /// Moves the calling thread into the generator's namespace until the guard is dropped. Threads
    /// and sockets made meanwhile belong to that namespace and stay there.
    ///
    /// # Errors
    /// [`TestbedError::NotEntered`].
    pub fn enter_generator(&self) -> Result<NamespaceGuard, TestbedError> {
        NamespaceGuard::enter(&self.generator)
    }

    /// Moves the calling thread into the device's namespace until the guard is dropped.
    ///
    /// # Errors
    /// [`TestbedError::NotEntered`].
    pub fn enter_device(&self) -> Result<NamespaceGuard, TestbedError> {
        NamespaceGuard::enter(&self.device)
    }

    /// Gives the first pair's ends IPv4 addresses with their prefix lengths, generator's end first, and ARP,
    /// for programs that send through the kernel's own stack.
    ///
    /// # Errors
    /// [`TestbedError::Command`].
    pub fn add_addresses(&self, addresses: [&str; 2]) -> Result<(), TestbedError> {
        let ends = [
            (&self.generator, GENERATOR_INTERFACES[0]),
            (&self.device, DEVICE_INTERFACES[0]),
        ];
        for ((namespace, interface), address) in ends.into_iter().zip(addresses) {
            let line = ["-n", namespace, "address", "add", address, "dev", interface];
            run("ip", &line)?;
            // Without it every packet would go to the sender's own MAC address.
            self.set_link(namespace, interface, &["arp", "on"])?;
        }
        Ok(())
    }

    /// A command that runs `program` in the device's namespace, under the process number that it is
    /// started with.
    #[must_use]
    pub fn command_in_device(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.device]).arg(program);
        command
    }

    /// Removes the namespaces of testbeds whose process is dead, as after `kill -9`, and returns their
    /// names. Those of living processes stay, and so do the processes in any of them. Whether a process
    /// lives is asked of this `/proc`: do not share `/run/netns` between containers that each have
    /// their own process numbers.
    ///
    /// # Errors
    /// [`TestbedError::Command`] when a stale namespace cannot be removed.
    pub fn sweep_stale() -> Result<Vec<String>, TestbedError> {
        let stale: Vec<String> = namespace_names()
            .into_iter()
            .filter(|name| owner_of(name).is_some_and(|owner| !is_running(owner)))
            .collect();
        for name in &stale {
            if let Err(error) = remove_namespace(name)
                // Another process may have swept at the same time.
                && namespace_names().contains(name)
            {
                return Err(error.into());
            }
        }
        Ok(stale)
    }

    fn with_fresh_names() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let taken = namespace_names();
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let [generator, device] =
                ["gen", "dut"].map(|end| format!("taut-{}-{number}-{end}", std::process::id()));
            // A dead process of the same number may have left names that no sweep can tell from ours.
            if !taken.contains(&generator) && !taken.contains(&device) {
                return Self { generator, device };
            }
        }
    }

    fn make_namespaces(&self) -> Result<(), CommandError> {
        for namespace in [&self.generator, &self.device] {
            run("ip", &["netns", "add", namespace])?;
            for scope in ["all", "default"] {
                // Absent in a kernel without IPv6.
                let file = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
                run_in(namespace, &format!("[ ! -e {file} ] || echo 1 > {file}"))?;
            }
        }
        Ok(())
    }

    fn make_pair(&self, number: usize) -> Result<(), CommandError> {
        let [generator, device] = [
            (
                &self.generator,
                GENERATOR_INTERFACES[number],
                GENERATOR_MACS[number],
            ),
            (&self.device, DEVICE_INTERFACES[number], DEVICE_MACS[number]),
        ];
        run(
            "ip",
            &[
                &["-n", generator.0, "link", "add", generator.1] as &[&str],
                &["address", &mac_text(generator.2), "type", "veth"],
                &["peer", "name", device.1, "address", &mac_text(device.2)],
                &["netns", device.0],
            ]
            .concat(),
        )?;
        for (namespace, interface, _) in [generator, device] {
            self.set_link(namespace, interface, &["arp", "off"])?;
            run(
                "ip",
                &[
                    &["netns", "exec", namespace, "ethtool", "-K", interface] as &[&str],
                    &["rx", "off", "tx", "off", "sg", "off", "tso", "off"],
                    &["gso", "off", "gro", "off", "rxvlan", "off", "txvlan", "off"],
                ]
                .concat(),
            )?;
        }
        Ok(())
    }

    fn make_bridge(&self) -> Result<(), CommandError> {
        for command in bridge_commands() {
            let mut words = vec!["netns", "exec", &self.device];
            words.extend(command.split(' '));
            run("ip", &words)?;
        }
        Ok(())
    }

    fn bring_up(&self) -> Result<(), CommandError> {
        for (namespace, interfaces) in [
            (&self.generator, GENERATOR_INTERFACES),
            (&self.device, DEVICE_INTERFACES),
        ] {
            for interface in interfaces {
                self.set_link(namespace, interface, &["up"])?;
            }
        }
        Ok(())
    }

    fn set_link(
        &self,
        namespace: &str,
        interface: &str,
        setting: &[&str],
    ) -> Result<(), CommandError> {
        run(
            "ip",
            &[
                &["-n", namespace, "link", "set", interface] as &[&str],
                setting,
            ]
            .concat(),
        )?;
        Ok(())
    }

    /// A frame sent before the carrier is announced is lost without a word.
    fn wait_for_carriers(&self, bridge: bool) -> Result<(), TestbedError> {
        let deadline = Instant::now() + CARRIER_DEADLINE;
        for (namespace, interfaces) in [
            (&self.generator, GENERATOR_INTERFACES),
            (&self.device, DEVICE_INTERFACES),
        ] {
            for interface in interfaces {
                let is_port = bridge && namespace == &self.device;
                while !is_ready(namespace, interface, is_port)? {
                    if Instant::now() >= deadline {
                        return Err(TestbedError::NoCarrier {
                            namespace: namespace.clone(),
                            interface: interface.to_owned(),
                            waited: CARRIER_DEADLINE,
                        });
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
        Ok(())
    }

    fn steer(&self, steering: Steering) -> Result<(), TestbedError> {
        for interface in DEVICE_INTERFACES {
            match steering {
                Steering::Sender => {}
                Steering::PacketSteering { cpu } => {
                    let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
                    run_in(
                        &self.device,
                        &format!("echo {} > {file}", mask_of_cpus(&[cpu].into())),
                    )?;
                }
                Steering::KernelThread { cpu } => {
                    self.give_kernel_thread(interface, cpu)
                        .map_err(|error| match error {
                            ThreadError::Command(error) => error.into(),
                            ThreadError::System(source) => TestbedError::NotSteered {
                                interface,
                                cpu,
                                source,
                            },
                        })?;
                }
            }
        }
        Ok(())
    }

    /// The kernel names its threads after the interface, and testbeds of other processes have
    /// interfaces of the same name: what is new while a lock is held is ours.
    fn give_kernel_thread(&self, interface: &str, cpu: usize) -> Result<(), ThreadError> {
        let lock = File::open(NAMESPACE_FOLDER)?;
        lock.lock()?;
        let before = kernel_threads_of(interface);
        run(
            "ip",
            &[
                &["netns", "exec", &self.device] as &[&str],
                &["ethtool", "-K", interface, "gro", "on"],
            ]
            .concat(),
        )?;
        run_in(
            &self.device,
            &format!("echo 1 > /sys/class/net/{interface}/threaded"),
        )?;
        let mut ours = kernel_threads_of(interface);
        ours.retain(|thread| !before.contains(thread));
        if ours.is_empty() {
            return Err(io::Error::other("the kernel made no thread for it").into());
        }
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        for thread in ours.into_iter().filter_map(Pid::from_raw) {
            sched_setaffinity(Some(thread), &set).map_err(io::Error::from)?;
            set_realtime_of(thread, 1)?;
        }
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // Nobody is left to tell; what stays is swept by the next testbed.
        for namespace in [&self.generator, &self.device] {
            let _ = remove_namespace(namespace);
        }
    }
}

/// Keeps the calling thread in another network namespace; dropping it goes back.
///
/// It belongs to its thread and cannot be sent to another.
#[derive(Debug)]
pub struct NamespaceGuard {
    origin: File,
    of_this_thread: PhantomData<*const ()>,
}

impl NamespaceGuard {
    fn enter(namespace: &str) -> Result<Self, TestbedError> {
        let enter = || {
            let origin = File::open("/proc/thread-self/ns/net")?;
            set_namespace(&File::open(Path::new(NAMESPACE_FOLDER).join(namespace))?)?;
            Ok(Self {
                origin,
                of_this_thread: PhantomData,
            })
        };
        enter().map_err(|source| TestbedError::NotEntered {
            namespace: namespace.to_owned(),
            source,
        })
    }
}

impl Drop for NamespaceGuard {
    fn drop(&mut self) {
        let back = set_namespace(&self.origin);
        // Going on in the wrong namespace would set up and tear down the wrong network.
        assert!(
            back.is_ok() || thread::panicking(),
            "cannot leave a network namespace: {back:?}"
        );
    }
}

enum ThreadError {
    Command(CommandError),
    System(io::Error),
}

impl From<CommandError> for ThreadError {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<io::Error> for ThreadError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

fn set_namespace(namespace: &File) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Runs a line of shell in a namespace: `/sys` and `/proc/sys` there show its own interfaces.
fn run_in(namespace: &str, script: &str) -> Result<String, CommandError> {
    run("ip", &["netns", "exec", namespace, "sh", "-c", script])
}

/// Removes a namespace and the wires that end in it: the kernel would take them down later, and not before the last
/// process that keeps the namespace alive has gone.
pub(crate) fn remove_namespace(name: &str) -> Result<(), CommandError> {
    let wires = run("ip", &["-n", name, "-o", "link", "show", "type", "veth"]).unwrap_or_default();
    for wire in wires.lines().filter_map(interface_in) {
        // The other end may have been in here too.
        let _ = run("ip", &["-n", name, "link", "del", "dev", wire]);
    }
    run("ip", &["netns", "del", name])?;
    Ok(())
}

/// The name in a line of `ip -o link`: `3: west@if4: <BROADCAST...`.
fn interface_in(line: &str) -> Option<&str> {
    line.split(": ").nth(1)?.split('@').next()
}

pub(crate) fn namespace_names() -> BTreeSet<String> {
    fs::read_dir(NAMESPACE_FOLDER)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// The process number in a name of ours: `taut-<process>-<count>-gen`, `-dut` or `-node`.
fn owner_of(name: &str) -> Option<u32> {
    let words: Vec<&str> = name.split('-').collect();
    let ["taut", process, count, "gen" | "dut" | "node"] = words[..] else {
        return None;
    };
    count.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Whether a process runs; one that only waits to be reaped (state Z) does not.
pub(crate) fn is_running(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    })
}

/// The kernel's NAPI threads of interfaces named `interface`, in all namespaces.
fn kernel_threads_of(interface: &str) -> Vec<i32> {
    let prefix = format!("napi/{interface}-");
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let process = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            name.starts_with(&prefix).then_some(process)
        })
        .collect()
}

/// Waits until an interface, in this namespace if none is named, has its carrier: what is sent before is lost.
pub(crate) fn wait_for_carrier(
    namespace: Option<&str>,
    interface: &str,
) -> Result<(), TestbedError> {
    let deadline = Instant::now() + CARRIER_DEADLINE;
    let script = format!("cat /sys/class/net/{interface}/carrier");
    loop {
        let carrier = match namespace {
            Some(namespace) => run_in(namespace, &script)?,
            None => run("sh", &["-c", &script])?,
        };
        if carrier.trim() == "1" {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(TestbedError::NoCarrier {
                namespace: namespace.unwrap_or("(this one)").to_owned(),
                interface: interface.to_owned(),
                waited: CARRIER_DEADLINE,
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Reading `carrier` makes recent kernels announce it at once, where they else take up to a second.
fn is_ready(namespace: &str, interface: &str, is_port: bool) -> Result<bool, CommandError> {
    /// `BR_STATE_FORWARDING` of `linux/if_bridge.h`.
    const FORWARDING: &str = "3";
    let folder = format!("/sys/class/net/{interface}");
    let mut script = format!("cat {folder}/carrier {folder}/operstate");
    if is_port {
        script += &format!(" {folder}/brport/state");
    }
    let state = run_in(namespace, &script)?;
    Ok(match state.lines().collect::<Vec<_>>()[..] {
        ["1", "up"] => true,
        ["1", "up", port_state] => port_state == FORWARDING,
        _ => false,
    })
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner_of("taut-17-0-gen"), Some(17));
        assert_eq!(owner_of("taut-17-3-dut"), Some(17));
        for name in [
            "taut",
            "taut-17",
            "taut-17-0",
            "taut-17-0-other",
            "taut-x-0-gen",
            "taut-17-x-gen",
            "my-taut-17-0-gen",
            "taut-17-0-gen-2",
        ] {
            assert_eq!(owner_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_is_not_running() {
        assert!(is_running(std::process::id()));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(is_running(child.id()));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_running(child.id()) {
            assert!(Instant::now() < deadline, "still counted as running");
            thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }

    #[test]
    fn addresses_are_written_as_ip_reads_them() {
        assert_eq!(mac_text(GENERATOR_MACS[1]), "02:00:00:00:00:02");
    }
}
