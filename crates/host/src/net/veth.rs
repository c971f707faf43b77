//! Veth wires made one by one, each gone when it is dropped.

use super::TestbedError;
use super::namespace::is_running;
use crate::command::{CommandError, run};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The kernel announces a carrier within milliseconds; this is for a machine under heavy load.
const CARRIER_DEADLINE: Duration = Duration::from_secs(5);

/// End of a wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireEnd {
    /// The namespace that it is in; that of this process without one.
    pub namespace: Option<String>,
    /// Name of the end's interface.
    pub interface: String,
}

impl WireEnd {
    /// An interface in a namespace.
    #[must_use]
    pub fn new(namespace: Option<&str>, interface: &str) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            interface: interface.to_owned(),
        }
    }

    /// An interface of this process's namespace whose name tells whose it is.
    #[must_use]
    pub fn own() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::new(None, &format!("taut{}-{number}", std::process::id()))
    }

    /// Whether there is such an interface.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.ip(&["link", "show", "dev", &self.interface]).is_ok()
    }

    /// Gives it an IP address with its prefix length.
    ///
    /// # Errors
    /// [`CommandError`], as for a text that is no address.
    pub fn give_address(&self, address: &str) -> Result<(), CommandError> {
        self.ip(&["address", "add", address, "dev", &self.interface])
            .map(drop)
    }

    fn ip(&self, words: &[&str]) -> Result<String, CommandError> {
        match &self.namespace {
            Some(namespace) => run("ip", &[&["-n", namespace.as_str()], words].concat()),
            None => run("ip", words),
        }
    }

    /// Changes settings of the interface.
    pub(super) fn set_link(&self, settings: &[&str]) -> Result<(), CommandError> {
        self.ip(&[&["link", "set", "dev", &self.interface], settings].concat())
            .map(drop)
    }

    /// Makes a wire from here to `far`, each end with settings of its own, both down.
    pub(super) fn join(
        &self,
        settings: &[&str],
        far: &Self,
        far_settings: &[&str],
    ) -> Result<(), CommandError> {
        let mut words = [&["link", "add", "name", &self.interface], settings].concat();
        words.extend(["type", "veth", "peer", "name", &far.interface]);
        words.extend(far_settings);
        // Without a namespace it would be in that of the near end.
        let here = std::process::id().to_string();
        match (&self.namespace, &far.namespace) {
            (near, far) if near == far => {}
            (_, Some(far)) => words.extend(["netns", far.as_str()]),
            (_, None) => words.extend(["netns", &here]),
        }
        self.ip(&words).map(drop)
    }

    /// Waits until the interface is up and has its carrier, and forwards if it is the port of a bridge: what is sent
    /// before is lost without a word. Reading `carrier` makes recent kernels announce it at once, where they else take up
    /// to a second.
    pub(super) fn wait_until_ready(&self) -> Result<(), TestbedError> {
        /// `BR_STATE_FORWARDING` of `linux/if_bridge.h`.
        const FORWARDING: &str = "3";
        let deadline = Instant::now() + CARRIER_DEADLINE;
        let folder = format!("/sys/class/net/{}", self.interface);
        let state = format!("{folder}/brport/state");
        let script =
            format!("cat {folder}/carrier {folder}/operstate; [ ! -e {state} ] || cat {state}");
        loop {
            let state = self.inside("sh", &["-c", &script])?;
            match state.lines().collect::<Vec<_>>()[..] {
                ["1", "up"] | ["1", "up", FORWARDING] => return Ok(()),
                _ if Instant::now() >= deadline => {
                    return Err(TestbedError::NoCarrier {
                        namespace: self.namespace.as_deref().unwrap_or("(this one)").to_owned(),
                        interface: self.interface.clone(),
                        waited: CARRIER_DEADLINE,
                    });
                }
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Runs a program where the end is.
    pub(super) fn inside(&self, program: &str, words: &[&str]) -> Result<String, CommandError> {
        match &self.namespace {
            Some(namespace) => run(
                "ip",
                &[&["netns", "exec", namespace.as_str(), program], words].concat(),
            ),
            None => run(program, words),
        }
    }

    /// The only frames are those that programs send on purpose: no ARP, no IPv6.
    fn be_quiet(&self) -> Result<(), CommandError> {
        let off = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.interface);
        // Absent in a kernel without IPv6.
        self.inside("sh", &["-c", &format!("[ ! -e {off} ] || echo 1 > {off}")])?;
        self.set_link(&["arp", "off", "promisc", "on"])
    }

    fn set_up(&self, takes_redirects: bool) -> Result<(), CommandError> {
        // Frames are on the wire as programs there read them, with their checksums.
        let gro = if takes_redirects { "on" } else { "off" };
        self.inside("ethtool", &["-K", &self.interface, "tx", "off", "gro", gro])?;
        self.set_link(&["up"])
    }
}

/// A veth wire. Dropping it removes it, both ends.
#[derive(Debug)]
pub struct Veth(WireEnd);

impl Veth {
    /// A wire between two programs of ours: nothing is on it but what they send. With `takes_redirects`, that may be XDP
    /// programs that redirect frames into it; packet sockets then see frames that the kernel has put together (GRO).
    ///
    /// # Errors
    /// [`TestbedError`]; nothing is left then.
    pub fn between(
        near: &WireEnd,
        far: &WireEnd,
        takes_redirects: bool,
    ) -> Result<Self, TestbedError> {
        Self::make(near, far, takes_redirects, 1, || {
            near.be_quiet()?;
            far.be_quiet()
        })
    }

    /// A wire from a program of ours to the network stack at `far`, which gets `address`, with its prefix length. Each end has
    /// so many queues, over which flows are spread.
    ///
    /// # Errors
    /// [`TestbedError`]; nothing is left then.
    pub fn to_host(
        near: &WireEnd,
        far: &WireEnd,
        takes_redirects: bool,
        address: Option<&str>,
        queues: usize,
    ) -> Result<Self, TestbedError> {
        Self::make(near, far, takes_redirects, queues, || {
            near.be_quiet()?;
            address.map_or(Ok(()), |address| far.give_address(address))
        })
    }

    fn make(
        near: &WireEnd,
        far: &WireEnd,
        takes_redirects: bool,
        queues: usize,
        prepare: impl FnOnce() -> Result<(), CommandError>,
    ) -> Result<Self, TestbedError> {
        let queues = queues.to_string();
        let each = ["numtxqueues", &queues, "numrxqueues", &queues];
        near.join(&each, far, &each)?;
        let wire = Self(near.clone());
        prepare()?;
        for end in [near, far] {
            end.set_up(takes_redirects)?;
        }
        for end in [near, far] {
            end.wait_until_ready()?;
        }
        Ok(wire)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // It may have gone with a namespace.
        let _ = self.0.ip(&["link", "del", "dev", &self.0.interface]);
    }
}

/// Removes the wires whose names say that they belong to a process that is dead ([`WireEnd::own`]), and returns their
/// interfaces' names.
pub fn sweep_stale_wires() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner_of(name).is_some_and(|owner| !is_running(owner)))
        .filter(|name| run("ip", &["link", "del", "dev", name]).is_ok())
        .collect()
}

/// The process number in a name of ours: `taut<process>-<count>`.
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
    fn only_our_own_interfaces_have_an_owner() {
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
    fn wires_are_made_between_any_two_namespaces_and_go_when_dropped() {
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
        // Wires go at once with a namespace that somebody keeps alive, as after `kill -9` of who made both.
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
