//! A testbed of two network namespaces: the load generator in one, the device under test in the other.
//!
//! ```text
//!   generator namespace            device namespace
//!     gen0 ------- veth ------- dut0 \
//!                                     bridge, or a program, between them
//!     gen1 ------- veth ------- dut1 /
//! ```
//!
//! Interfaces have no IP addresses, and IPv6, ARP and all offloads are off. The only frames on the links are therefore
//! those that are sent on purpose, unchanged. A veth pair has no transmit queue (`noqueue`), so there is no queue
//! length to set.

use super::TestbedError;
use super::namespace::{NAMESPACE_FOLDER, Namespace, NamespaceGuard, Role};
use super::veth::{WireEnd, ipv6_off, wait_until_ready};
use crate::affinity::set_realtime_of;
use crate::command::CommandError;
use crate::cpu_list::mask_of_cpus;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::process::Command;

/// The generator's interfaces: the generator transmits on the first and receives on the second.
pub const GENERATOR_INTERFACES: [&str; 2] = ["gen0", "gen1"];
/// The device's interfaces, each the peer of the generator's interface of the same number.
pub const DEVICE_INTERFACES: [&str; 2] = ["dut0", "dut1"];
/// The MAC addresses of the generator's interfaces (locally administered).
pub const GENERATOR_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The MAC addresses of the device's interfaces (locally administered).
pub const DEVICE_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

const BRIDGE: &str = "br0";

/// The CPU and the mechanism with which the kernel processes frames that arrive at the device's interfaces.
///
/// By default ([`Steering::Sender`]), frames are received inside the sender's system call, on the sender's CPU. A
/// kernel bridge then uses the generator's time, and the whole path runs on one CPU. The other variants move that work
/// to the device's CPU, as with two machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Steering {
    /// Processing on the CPU of the sender: the kernel's default and the shortest path, but without a separate CPU for
    /// the device.
    #[default]
    Sender,
    /// Receive packet steering: the frames are processed on `cpu` in its soft interrupts, which have precedence over
    /// any program there. Steering suits a kernel bridge and a program on packet sockets. Frames that an XDP program
    /// receives are not steered. Beyond saturation, frames are lost at `net.core.netdev_max_backlog`.
    PacketSteering {
        /// The CPU of the device under test, which processes the frames.
        cpu: usize,
    },
    /// Threaded NAPI: one kernel thread per interface, pinned to `cpu`, where XDP programs run too. The thread has
    /// precedence over every program on that CPU, as interrupts of a NIC would have (SCHED_FIFO with the lowest
    /// priority). With the same priority as those programs, the thread would wait for them for milliseconds, and frames
    /// would be lost when more than 256 wait. Programs on that CPU get at least 5 % of the time, which the kernel
    /// reserves for them.
    KernelThread {
        /// The CPU of the device under test, to which the kernel thread is pinned.
        cpu: usize,
    },
}

/// Returns the shell commands that join the device's interfaces by a bridge. They have to run in the device's
/// namespace.
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

/// The description of a testbed to build; see [`Testbed::builder`].
#[derive(Debug, Clone, Copy, Default)]
pub struct TestbedBuilder {
    bridge: bool,
    redirects: bool,
    steering: Steering,
}

impl TestbedBuilder {
    /// Sets whether a Linux bridge joins the device's interfaces. The bridge runs no spanning tree, snoops no
    /// multicast, and forwards from the first frame. It knows both generator addresses, so that no unicast frame is
    /// flooded.
    #[must_use]
    pub fn bridge(mut self, bridge: bool) -> Self {
        self.bridge = bridge;
        self
    }

    /// Sets whether the generator's interfaces accept frames that an XDP program in the device's driver redirects to
    /// them. The kernel delivers such frames only if the generator's end of the veth pair polls, as it does with GRO
    /// on. GRO changes how the generator's interfaces receive, so it stays off for other devices.
    #[must_use]
    pub fn redirects(mut self, redirects: bool) -> Self {
        self.redirects = redirects;
        self
    }

    /// Sets where the kernel processes frames that arrive at the device's interfaces.
    #[must_use]
    pub fn steering(mut self, steering: Steering) -> Self {
        self.steering = steering;
        self
    }

    /// Builds the testbed, after removing the remains of dead processes. All interfaces are up and have their carrier
    /// when it returns.
    ///
    /// # Errors
    /// [`TestbedError`]; the parts built until then are removed.
    pub fn build(self) -> Result<Testbed, TestbedError> {
        let testbed = Testbed {
            generator: Namespace::for_role(Role::Generator)?,
            device: Namespace::for_role(Role::Device)?,
        };
        let ends = [testbed.generator_ends(), testbed.device_ends()];
        let [generator_ends, device_ends] = &ends;
        let quiet = ["all", "default"].map(ipv6_off);
        // The device's ends of the links are created in the device's namespace.
        testbed.device.run(&quiet)?;
        let mut generator: Vec<String> = quiet.into();
        for (number, (near, far)) in generator_ends.iter().zip(device_ends).enumerate() {
            let [near_mac, far_mac] = [GENERATOR_MACS, DEVICE_MACS]
                .map(|macs| format!("address {}", mac_text(macs[number])));
            generator.push(near.join(&near_mac, far, &far_mac));
        }
        generator.extend(generator_ends.iter().flat_map(prepare));
        if self.redirects {
            generator.extend(generator_ends.iter().map(|end| end.offload("gro on")));
        }
        generator.extend(generator_ends.iter().map(|end| end.set_link("up")));
        testbed.generator.run(&generator)?;
        let mut device: Vec<String> = device_ends.iter().flat_map(prepare).collect();
        if self.bridge {
            device.extend(bridge_commands());
        } else {
            // A forwarder must also receive frames that are addressed to other hosts.
            device.extend(device_ends.iter().map(|end| end.set_link("promisc on")));
        }
        device.extend(device_ends.iter().map(|end| end.set_link("up")));
        testbed.device.run(&device)?;
        for ends in &ends {
            wait_until_ready(ends)?;
        }
        testbed.steer(self.steering)?;
        Ok(testbed)
    }
}

/// A testbed of two namespaces and two veth pairs between them. Dropping it removes the namespaces and the veth pairs.
#[derive(Debug)]
pub struct Testbed {
    generator: Namespace,
    device: Namespace,
}

impl Testbed {
    /// Returns a builder for a testbed without a bridge and with frames processed on the sending CPU.
    #[must_use]
    pub fn builder() -> TestbedBuilder {
        TestbedBuilder::default()
    }

    /// Returns the name of the generator's namespace.
    #[must_use]
    pub fn generator_namespace(&self) -> &str {
        self.generator.name()
    }

    /// Returns the name of the device's namespace.
    #[must_use]
    pub fn device_namespace(&self) -> &str {
        self.device.name()
    }

    /// Moves the calling thread into the generator's namespace until the guard is dropped. Threads and sockets created
    /// there belong to that namespace and stay there.
    ///
    /// # Errors
    /// [`TestbedError::NotEntered`].
    pub fn enter_generator(&self) -> Result<NamespaceGuard, TestbedError> {
        self.generator.enter()
    }

    /// Moves the calling thread into the device's namespace until the guard is dropped.
    ///
    /// # Errors
    /// [`TestbedError::NotEntered`].
    pub fn enter_device(&self) -> Result<NamespaceGuard, TestbedError> {
        self.device.enter()
    }

    /// Enables ARP on both ends of the first veth pair, and sets their IPv4 addresses with prefix lengths, the
    /// generator's first. These addresses are for programs that send through the kernel's own stack.
    ///
    /// # Errors
    /// [`TestbedError::Command`].
    pub fn add_addresses(&self, addresses: [&str; 2]) -> Result<(), TestbedError> {
        let [near, _] = self.generator_ends();
        let [device, _] = self.device_ends();
        // Without ARP every packet would be sent to the sender's own MAC address.
        address([near, device], addresses, "arp on")
    }

    /// Moves the generator's second interface to a new namespace, which is returned. Also enables ARP on both generator
    /// interfaces, and sets their IPv4 addresses with prefix lengths. The addresses are for programs in the two
    /// namespaces that communicate through the device by the kernel's own stack.
    ///
    /// # Errors
    /// [`TestbedError`].
    pub fn part(&self, addresses: [&str; 2]) -> Result<Namespace, TestbedError> {
        let far = Namespace::fresh()?;
        let [near_end, moved] = self.generator_ends();
        moved.run(&[moved.set_link(&format!("netns {}", far.name()))])?;
        let far_end = WireEnd::new(Some(far.name()), GENERATOR_INTERFACES[1]);
        address([near_end, far_end], addresses, "arp on up")?;
        Ok(far)
    }

    /// Returns a command that runs `program` in the device's namespace. The started process becomes the program, so
    /// that its process number is that of the program.
    #[must_use]
    pub fn command_in_device(&self, program: impl AsRef<OsStr>) -> Command {
        self.device.command(program)
    }

    fn generator_ends(&self) -> [WireEnd; 2] {
        GENERATOR_INTERFACES.map(|name| WireEnd::new(Some(self.generator.name()), name))
    }

    fn device_ends(&self) -> [WireEnd; 2] {
        DEVICE_INTERFACES.map(|name| WireEnd::new(Some(self.device.name()), name))
    }

    fn steer(&self, steering: Steering) -> Result<(), TestbedError> {
        for interface in DEVICE_INTERFACES {
            match steering {
                Steering::Sender => {}
                Steering::PacketSteering { cpu } => {
                    let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
                    let mask = mask_of_cpus(&[cpu].into());
                    self.device.run(&[format!("echo {mask} > {file}")])?;
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

    /// Pins the kernel's NAPI thread of `interface` to `cpu`. The kernel names the thread after the interface, and
    /// testbeds of other processes have interfaces of the same name. A lock therefore excludes other testbeds: threads
    /// that appear while it is held belong to this testbed.
    fn give_kernel_thread(&self, interface: &str, cpu: usize) -> Result<(), ThreadError> {
        let lock = File::open(NAMESPACE_FOLDER)?;
        lock.lock()?;
        let before = kernel_threads_of(interface);
        self.device.run(&[
            format!("ethtool -K {interface} gro on"),
            format!("echo 1 > /sys/class/net/{interface}/threaded"),
        ])?;
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

/// Returns the kernel's NAPI threads of interfaces named `interface`, in all namespaces.
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

/// Returns a MAC address in the notation of `ip`.
#[must_use]
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the shell commands that set up one end of a testbed's link so that the link transfers frames unchanged.
fn prepare(end: &WireEnd) -> [String; 2] {
    let offloads = "rx off tx off sg off tso off gso off gro off rxvlan off txvlan off";
    [end.set_link("arp off"), end.offload(offloads)]
}

/// Sets the IP address of each interface in `ends`, and the link settings `flags`, such as `arp on`.
fn address(ends: [WireEnd; 2], addresses: [&str; 2], flags: &str) -> Result<(), TestbedError> {
    for (end, address) in ends.iter().zip(addresses) {
        end.run(&[end.give_address(address), end.set_link(flags)])?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_written_in_the_format_of_ip() {
        assert_eq!(mac_text(GENERATOR_MACS[1]), "02:00:00:00:00:02");
    }
}
