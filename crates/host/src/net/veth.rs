//! Veth links created one by one, each removed when it is dropped.

use super::TestbedError;
use super::namespace::is_running;
use crate::command::{CommandError, run, run_lines};
use crate::ssh::quote_if_needed;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for a carrier. The kernel announces the carrier within milliseconds. The timeout is longer for machines
/// under heavy load.
const CARRIER_DEADLINE: Duration = Duration::from_secs(5);

/// One end of a veth link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireEnd {
    /// The namespace of the end's interface; `None` is the namespace of this process.
    pub namespace: Option<String>,
    /// The name of the end's interface.
    pub interface: String,
}

impl WireEnd {
    /// Describes the interface with the given name in a namespace; the interface need not exist.
    #[must_use]
    pub fn new(namespace: Option<&str>, interface: &str) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            interface: interface.to_owned(),
        }
    }

    /// Describes a new interface in this process's namespace. Its unique name contains the process number.
    #[must_use]
    pub fn own() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::new(None, &format!("taut{}-{number}", std::process::id()))
    }

    /// Returns true if the interface exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.ip(&["link", "show", "dev", &self.interface]).is_ok()
    }

    /// Returns the line of shell that sets an IP address of the interface, with its prefix length.
    pub(super) fn give_address(&self, address: &str) -> String {
        let [address, name] = [address, &self.interface].map(quote_if_needed);
        format!("ip address add {address} dev {name}")
    }

    fn ip(&self, words: &[&str]) -> Result<String, CommandError> {
        match &self.namespace {
            Some(namespace) => run("ip", &[&["-n", namespace.as_str()], words].concat()),
            None => run("ip", words),
        }
    }

    /// Runs lines of shell in the namespace of the end.
    pub(super) fn run(&self, lines: &[String]) -> Result<String, CommandError> {
        run_lines(self.namespace.as_deref(), lines)
    }

    /// Returns the line of shell that changes settings of the interface by `ip link set`.
    pub(super) fn set_link(&self, settings: &str) -> String {
        format!(
            "ip link set dev {} {settings}",
            quote_if_needed(&self.interface)
        )
    }

    /// Returns the line of shell that switches offloads of the interface on or off, for a program that needs frames as
    /// they were sent.
    pub(super) fn offload(&self, settings: &str) -> String {
        format!("ethtool -K {} {settings}", quote_if_needed(&self.interface))
    }

    /// Returns the shell command that creates a link from this end to `far`, with separate settings for each end. Both
    /// ends are initially down.
    pub(super) fn join(&self, settings: &str, far: &Self, far_settings: &str) -> String {
        let [near_name, far_name] = [self, far].map(|end| quote_if_needed(&end.interface));
        // If no namespace were given, the far end would be created in the near end's namespace.
        let namespace = match (&self.namespace, &far.namespace) {
            (near, far) if near == far => String::new(),
            (_, Some(far)) => format!(" netns {}", quote_if_needed(far)),
            (_, None) => format!(" netns {}", std::process::id()),
        };
        format!(
            "ip link add name {near_name} {settings} type veth peer name {far_name} {far_settings}{namespace}"
        )
    }

    /// Returns the shell commands that disable ARP and IPv6 on the interface, so that only frames of programs are sent
    /// there.
    fn be_quiet(&self) -> [String; 2] {
        [
            ipv6_off(&self.interface),
            self.set_link("arp off promisc on"),
        ]
    }

    /// Returns the lines of shell that set the interface up.
    fn set_up(&self, takes_redirects: bool) -> [String; 2] {
        // Offloads are disabled, so that programs read frames as they are on the link, with their checksums. Only GRO
        // stays enabled if the link accepts redirected frames, because the kernel needs it to deliver them.
        let gro = if takes_redirects { "on" } else { "off" };
        [
            self.offload(&format!("tx off gro {gro}")),
            self.set_link("up"),
        ]
    }
}

/// Returns the line of shell that disables IPv6 for an interface, for `all`, or with `default` for interfaces created
/// later. The line has no effect on a kernel without IPv6.
pub(super) fn ipv6_off(interface: &str) -> String {
    let file = quote_if_needed(&format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"));
    format!("[ ! -e {file} ] || echo 1 > {file}")
}

/// Waits until interfaces of one namespace are up, have their carrier, and forward if they are ports of a bridge.
/// Frames sent earlier would be lost without an error. Reading the file `carrier` makes recent kernels announce the
/// carrier immediately; without that, the announcement takes up to one second.
pub(super) fn wait_until_ready(ends: &[WireEnd]) -> Result<(), TestbedError> {
    /// The value of a bridge port's state in which the port forwards: `BR_STATE_FORWARDING` of `linux/if_bridge.h`.
    const FORWARDING: &str = "3";
    let Some(namespace) = ends.first().map(|end| &end.namespace) else {
        return Ok(());
    };
    let deadline = Instant::now() + CARRIER_DEADLINE;
    let lines: Vec<String> = ends
        .iter()
        .map(|end| {
            let folder = quote_if_needed(&format!("/sys/class/net/{}", end.interface));
            format!(
                "echo $(cat {folder}/carrier {folder}/operstate; cat {folder}/brport/state 2>&-)"
            )
        })
        .collect();
    loop {
        let states = run_lines(namespace.as_deref(), &lines)?;
        let ready =
            |state: &str| state == "1 up" || state.strip_prefix("1 up ") == Some(FORWARDING);
        let mut states = ends.iter().zip(states.lines());
        let Some((late, _)) = states.find(|(_, state)| !ready(state)) else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            return Err(TestbedError::NoCarrier {
                namespace: namespace.as_deref().unwrap_or("(this one)").to_owned(),
                interface: late.interface.clone(),
                waited: CARRIER_DEADLINE,
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A veth link. Dropping it removes both ends.
#[derive(Debug)]
pub struct Veth(WireEnd);

impl Veth {
    /// Makes a link between two programs, which transfers only the frames that they send. With `takes_redirects`, the
    /// programs may be XDP programs that redirect frames into the link; packet sockets then receive frames that the
    /// kernel has merged (GRO).
    ///
    /// # Errors
    /// [`TestbedError`]; no part of the link then remains.
    pub fn between(
        near: &WireEnd,
        far: &WireEnd,
        takes_redirects: bool,
    ) -> Result<Self, TestbedError> {
        Self::make(
            [near, far],
            takes_redirects,
            1,
            [near.be_quiet().into(), far.be_quiet().into()],
        )
    }

    /// Makes a link from a program at the near end to the network stack at `far`, which gets `address` with its prefix
    /// length. Each end has the given number of queues, over which flows are spread.
    ///
    /// # Errors
    /// [`TestbedError`]; no part of the link then remains.
    pub fn to_host(
        near: &WireEnd,
        far: &WireEnd,
        takes_redirects: bool,
        address: Option<&str>,
        queues: usize,
    ) -> Result<Self, TestbedError> {
        let address = address.map(|address| far.give_address(address));
        let far_lines = address.into_iter().collect();
        Self::make(
            [near, far],
            takes_redirects,
            queues,
            [near.be_quiet().into(), far_lines],
        )
    }

    /// Makes a veth link. The shell commands in `prepare`, near end first, run before each end is set up.
    fn make(
        [near, far]: [&WireEnd; 2],
        takes_redirects: bool,
        queues: usize,
        prepare: [Vec<String>; 2],
    ) -> Result<Self, TestbedError> {
        let each = format!("numtxqueues {queues} numrxqueues {queues}");
        near.run(&[near.join(&each, far, &each)])?;
        let wire = Self(near.clone());
        for (end, first) in [near, far].into_iter().zip(prepare) {
            end.run(&[first, end.set_up(takes_redirects).into()].concat())?;
        }
        for end in [near, far] {
            wait_until_ready(std::slice::from_ref(end))?;
        }
        Ok(wire)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // The interface may already have been removed, together with a namespace.
        let _ = self.0.ip(&["link", "del", "dev", &self.0.interface]);
    }
}

/// Removes the links with names of dead processes ([`WireEnd::own`]), and returns their interfaces' names.
pub fn sweep_stale_wires() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner_of(name).is_some_and(|owner| !is_running(owner)))
        .filter(|name| run("ip", &["link", "del", "dev", name]).is_ok())
        .collect()
}

/// Returns the process number in an interface name of the form `taut<process>-<count>`; `None` for other names.
fn owner_of(interface: &str) -> Option<u32> {
    let (process, count) = interface.strip_prefix("taut")?.split_once('-')?;
    count.parse::<u32>().ok()?;
    process.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::net::{Namespace, namespace_exists};
    use crate::permissions::can_make_namespaces;

    #[test]
    fn only_interfaces_of_taut_have_an_owner_process() {
        assert_eq!(owner_of("taut17-0"), Some(17));
        assert!(WireEnd::own().interface.len() <= 15);
        for name in [
            "taut",
            "taut17",
            "taut-17-0",
            "taut17-x",
            "eth0",
            "xtaut17-0",
        ] {
            assert_eq!(owner_of(name), None, "{name}");
        }
    }

    #[test]
    fn veth_pairs_connect_any_namespaces_and_are_deleted_when_dropped() {
        if let Err(missing) = can_make_namespaces() {
            println!("skipped: needs {missing}");
            return;
        }
        let (one, two) = (Namespace::fresh().unwrap(), Namespace::fresh().unwrap());
        let here = WireEnd::own();
        let ends = [
            (here.clone(), WireEnd::new(Some(one.name()), "eth0")),
            (WireEnd::new(Some(one.name()), "east"), WireEnd::own()),
            (
                WireEnd::new(Some(one.name()), "wire"),
                WireEnd::new(Some(two.name()), "wire"),
            ),
            (
                WireEnd::new(Some(two.name()), "a"),
                WireEnd::new(Some(two.name()), "b"),
            ),
            (WireEnd::own(), WireEnd::own()),
        ];
        for (near, far) in &ends {
            let wire = Veth::to_host(near, far, true, Some("192.0.2.1/24"), 1).unwrap();
            assert!(near.exists() && far.exists(), "{near:?} {far:?}");
            drop(wire);
            assert!(!near.exists() && !far.exists(), "{near:?} {far:?}");
        }
        assert!(!sweep_stale_wires().contains(&here.interface));
        let names = [one.name().to_owned(), two.name().to_owned()];
        // A running process keeps the near end's namespace alive, as after `kill -9` of the namespace's creator.
        // Nevertheless, the link must disappear immediately.
        let far = WireEnd::own();
        let near = WireEnd::new(Some(one.name()), "west");
        std::mem::forget(Veth::to_host(&near, &far, true, None, 1).unwrap());
        let mut inside = std::process::Command::new("ip");
        let inside = inside.args(["netns", "exec", one.name(), "sleep", "60"]);
        let mut inside = inside.spawn().unwrap();
        drop((one, two));
        assert!(!far.exists());
        inside.kill().unwrap();
        inside.wait().unwrap();
        assert!(!names.iter().any(|name| namespace_exists(name)));
    }
}
