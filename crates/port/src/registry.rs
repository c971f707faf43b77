//! Every backend by name, and the textual spec that opens one: `backend:target,key=value,...`.
//!
//! Adding a backend is its folder, one line in [`backends`], and its docs page.

use crate::{
    Handling, PoolHandle, Port, PortError, af_packet, af_xdp, dpdk, memif, null, pair, pcap, tap,
    veth,
};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use taut_settings::suggestion;

/// Returns every backend that this build has.
pub fn backends() -> &'static [Backend] {
    &[
        af_packet::BACKEND,
        af_xdp::BACKEND,
        dpdk::BACKEND,
        memif::BACKEND,
        null::BACKEND,
        pair::BACKEND,
        pcap::BACKEND,
        tap::BACKEND,
    ]
}

/// Slots of a pool beyond what ports hold in their rings: batches in hand and held for a flush.
const POOL_RESERVE: u32 = 2048;

/// Function by which a backend opens a port.
pub type OpenPort = fn(&PortSpec, &mut Resources) -> Result<Box<dyn Port>, PortError>;

/// Share that one of several workers has of a port: opened by it, on its own thread.
pub type Part = Box<dyn FnOnce(&mut Resources) -> Result<Box<dyn Port>, PortError> + Send>;

/// Maker of the parts of a port that another worker may join at any time: that of the worker of a number, the first one
/// first.
pub type Joinable = Box<dyn Fn(usize) -> Result<Part, PortError> + Send>;

/// Way in which several workers share the ports of a backend. Each has a part (queues, rings, a socket of its own) that
/// frames of one flow come to.
#[derive(Clone, Copy)]
pub enum Split {
    /// Workers do not share ports, for this reason.
    Never(&'static str),
    /// Parts are dealt out once; the function makes so many, two or more.
    Parts(fn(&PortSpec, usize) -> Result<Vec<Part>, PortError>),
    /// Parts are made one after the other, also while others are in use.
    Joinable(fn(&PortSpec) -> Result<Joinable, PortError>),
}

/// One kind of port.
#[derive(Clone, Copy)]
pub struct Backend {
    /// The word before the colon.
    pub name: &'static str,
    /// Summary for `taut ports`, one line.
    pub summary: &'static str,
    /// Name of the target in messages ("INTERFACE", "SOCKET-PATH"); empty if there is none.
    pub target: &'static str,
    /// Options: key and what it means.
    pub options: &'static [(&'static str, &'static str)],
    /// Pool slots that a port of this spec holds at most.
    pub frames: fn(&PortSpec) -> u32,
    /// The pool's slots must be aligned powers of two (AF_XDP).
    pub aligned: bool,
    /// Ways of handling packets, one for each kind of port that the backend has.
    pub handling: &'static [Handling],
    /// Whether arguments that are none of the options are kept, in order, for the device behind the backend to judge
    /// ([`PortSpec::device_arguments`]).
    pub passes_on: bool,
    /// Whether the backend's ports can wake a worker that sleeps ([`Port::arm`]).
    pub wakes: bool,
    /// Function that says whether ports of this kind can be opened on this machine: what is there, or what is missing.
    pub probe: fn() -> Result<String, PortError>,
    /// Opens a port.
    pub open: OpenPort,
    /// Way in which several workers share one port.
    pub split: Split,
}

impl Backend {
    /// Whether `KEY=VALUE` sets one of the options.
    fn has_option(&self, argument: Option<(&str, &str)>) -> bool {
        argument.is_some_and(|(key, _)| self.options.iter().any(|(known, _)| *known == key))
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A parsed port spec such as `memif:/run/taut.sock,role=client` or `af_packet:eth0`.
#[derive(Debug, Clone)]
pub struct PortSpec {
    text: String,
    backend: Backend,
    target: String,
    options: BTreeMap<String, String>,
    device_arguments: Vec<String>,
}

impl PortSpec {
    /// Parses a spec.
    ///
    /// # Errors
    /// [`PortError::BadSpec`] for an unknown backend or option, a missing target, a key given twice.
    pub fn parse(text: &str) -> Result<Self, PortError> {
        let names = || {
            backends()
                .iter()
                .map(|b| b.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let Some((name, rest)) = text.split_once(':') else {
            return Err(PortError::bad_spec(
                text,
                format!("write BACKEND:TARGET[,KEY=VALUE...]; backends: {}", names()),
            ));
        };
        let known = || backends().iter().chain([&veth::BACKEND]);
        let Some(backend) = known().find(|b| b.name == name).copied() else {
            return Err(PortError::bad_spec(
                text,
                format!(
                    "no backend \"{name}\"; this build has {}{}",
                    names(),
                    suggestion(name, known().map(|b| b.name))
                ),
            ));
        };
        let mut parts = rest.split(',');
        let mut target = String::new();
        let mut options = BTreeMap::new();
        let mut device_arguments = Vec::new();
        let mut first = true;
        for part in parts.by_ref() {
            match part.split_once('=') {
                None if first => target = part.to_string(),
                argument if backend.passes_on && !first && !backend.has_option(argument) => {
                    device_arguments.push(part.to_string());
                }
                Some((key, value)) => {
                    if !backend.has_option(Some((key, value))) {
                        let known: Vec<_> = backend.options.iter().map(|(k, _)| *k).collect();
                        return Err(PortError::bad_spec(
                            text,
                            format!(
                                "{name} has no option \"{key}\"; it has {}{}",
                                known.join(", "),
                                suggestion(key, known.iter().copied())
                            ),
                        ));
                    }
                    if options.insert(key.to_string(), value.to_string()).is_some() {
                        return Err(PortError::bad_spec(
                            text,
                            format!("\"{key}\" is given twice"),
                        ));
                    }
                }
                None => {
                    return Err(PortError::bad_spec(
                        text,
                        format!("\"{part}\" is not KEY=VALUE"),
                    ));
                }
            }
            first = false;
        }
        if !backend.target.is_empty() && target.is_empty() {
            return Err(PortError::bad_spec(
                text,
                format!("write {name}:{}[,...]", backend.target),
            ));
        }
        Ok(Self {
            text: text.to_string(),
            backend,
            target,
            options,
            device_arguments,
        })
    }

    /// The spec as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The backend's name.
    pub fn backend(&self) -> &'static str {
        self.backend.name
    }

    /// Whether the spec's port can wake a worker that sleeps.
    pub fn wakes(&self) -> bool {
        self.backend.wakes
    }

    /// Whether the spec's port has packets of its own from the moment it is open: a file that is read, or packets made
    /// up. Whatever is behind it must be there first, as an interface takes frames that nobody is there to get.
    pub fn is_source(&self) -> bool {
        match self.backend() {
            "pcap" => self.option("role") != Some("write"),
            "null" => self.option("source").is_some(),
            _ => false,
        }
    }

    /// Returns what stands between the colon and the first comma.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The value of an option, if it was given.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Returns the arguments that the backend passes on to its device, in order, as they were written.
    pub fn device_arguments(&self) -> &[String] {
        &self.device_arguments
    }

    /// The options that were given.
    pub(crate) fn option_keys(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// The value of a numeric option, checked against its range.
    ///
    /// # Errors
    /// [`PortError::BadSpec`] if it is not a number or out of range.
    pub fn number(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, PortError> {
        let Some(value) = self.option(key) else {
            return Ok(None);
        };
        match u64::from_str(value) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.error(format!(
                "{key}={value}: want a number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// The socket file that its port makes and removes again; it stays where a process ends without closing the port.
    pub fn own_socket(&self) -> Option<PathBuf> {
        let serves = self.option("role").unwrap_or("server") == "server";
        (self.backend() == "memif" && serves).then(|| PathBuf::from(&self.target))
    }

    /// An error about this spec.
    pub fn error(&self, reason: impl Into<String>) -> PortError {
        PortError::bad_spec(&self.text, reason)
    }

    /// Opens the port on the calling thread, which then owns it.
    ///
    /// # Errors
    /// What the backend says: bad options, a missing device, no permission.
    pub fn open(&self, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
        (self.backend.open)(self, resources)
    }

    /// Checks whether so many workers can share the port, as far as its spec says.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn check_workers(&self, workers: usize) -> Result<(), PortError> {
        match self.backend.split {
            Split::Never(reason) if workers > 1 => {
                Err(self.error(format!("{workers} workers cannot share it: {reason}")))
            }
            _ => Ok(()),
        }
    }

    /// Readies the port for so many workers, each of which opens its part. With one, that is the whole port.
    ///
    /// # Errors
    /// As [`PortSpec::open`]; when they cannot share it.
    pub fn parts(&self, workers: usize) -> Result<Vec<Part>, PortError> {
        self.check_workers(workers)?;
        match self.backend.split {
            Split::Parts(split) if workers > 1 => split(self, workers),
            Split::Joinable(joinable) if workers > 1 => {
                let part = joinable(self)?;
                (0..workers).map(part).collect()
            }
            _ => {
                let spec = self.clone();
                Ok(vec![Box::new(move |resources| spec.open(resources))])
            }
        }
    }

    /// Readies the port for workers that join one after the other, while those before them run.
    ///
    /// # Errors
    /// As [`PortSpec::open`]; where the number of workers is fixed once the port is open.
    pub fn joinable(&self) -> Result<Joinable, PortError> {
        self.check_joinable()?;
        match self.backend.split {
            Split::Joinable(joinable) => joinable(self),
            _ => Err(self.error("no worker can join it")),
        }
    }

    /// Checks whether workers can join while the port is open.
    ///
    /// # Errors
    /// Names the ports where they can.
    pub fn check_joinable(&self) -> Result<(), PortError> {
        let is_joinable = |backend: &&Backend| matches!(backend.split, Split::Joinable(_));
        if is_joinable(&&self.backend) {
            return Ok(());
        }
        let names = backends().iter().filter(is_joinable).map(|it| it.name);
        let names: Vec<_> = names.collect();
        Err(self.error(format!(
            "no worker can join it while it is open ({} let one join)",
            names.join(", ")
        )))
    }
}

impl FromStr for PortSpec {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        Self::parse(text)
    }
}

impl std::fmt::Display for PortSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Resources that the ports of one worker share: the packet pool, sized for all of them.
pub struct Resources {
    pool: PoolHandle,
    #[cfg(feature = "xdp")]
    xdp: af_xdp::Shared,
    #[cfg(dpdk)]
    dpdk: dpdk::Shared,
}

impl Resources {
    /// A pool large enough that these ports never starve each other.
    ///
    /// # Errors
    /// When the machine has not got the memory.
    pub fn for_ports(specs: &[PortSpec]) -> Result<Self, PortError> {
        let frames: u32 = specs.iter().map(|s| (s.backend.frames)(s)).sum();
        let aligned = specs.iter().any(|s| s.backend.aligned);
        Ok(Self {
            pool: PoolHandle::new(frames + POOL_RESERVE, aligned)?,
            #[cfg(feature = "xdp")]
            xdp: af_xdp::Shared::default(),
            #[cfg(dpdk)]
            dpdk: dpdk::Shared::for_ports(specs),
        })
    }

    /// The shared pool.
    pub fn pool(&self) -> PoolHandle {
        self.pool.clone()
    }

    /// Returns what AF_XDP ports share besides.
    #[cfg(feature = "xdp")]
    pub(crate) fn xdp(&self) -> &af_xdp::Shared {
        &self.xdp
    }

    /// Returns what DPDK ports share besides.
    #[cfg(dpdk)]
    pub(crate) fn dpdk(&self) -> &dpdk::Shared {
        &self.dpdk
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_spec_has_a_backend_a_target_and_options() {
        let spec = PortSpec::parse("memif:/run/x.sock,role=client,id=3").unwrap();
        assert_eq!((spec.backend(), spec.target()), ("memif", "/run/x.sock"));
        assert_eq!(spec.option("role"), Some("client"));
        assert_eq!(spec.number("id", 0..=9).unwrap(), Some(3));
    }

    #[test]
    fn wrong_specs_say_what_would_be_right() {
        for (text, part) in [
            ("eth0", "BACKEND:TARGET"),
            ("nfp:eth0", "no backend \"nfp\""),
            ("memif:", "memif:SOCKET-PATH"),
            ("memif:/x,speed=9", "no option \"speed\""),
            ("memif:/x,id=1,id=2", "given twice"),
            ("memif:/x,client", "not KEY=VALUE"),
        ] {
            let message = PortSpec::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_backend_that_passes_on_keeps_what_is_none_of_its_options_in_order() {
        let text = "dpdk:net_pcap0,rx_pcap=b,ring=64,rx_pcap=a,representor=[0,1]";
        let spec = PortSpec::parse(text).unwrap();
        assert_eq!(
            spec.device_arguments(),
            ["rx_pcap=b", "rx_pcap=a", "representor=[0", "1]"]
        );
        assert_eq!(spec.number("ring", 0..=99).unwrap(), Some(64));
        assert!(PortSpec::parse("dpdk:").is_err());
        assert!(PortSpec::parse("dpdk:x,ring=1,ring=2").is_err());
    }

    #[test]
    fn what_workers_cannot_share_says_so() {
        for (text, workers, part) in [
            (
                "pcap:x.pcap",
                2,
                "2 workers cannot share it: the packets of a file",
            ),
            ("memif:/x", 9, "9 workers: it has 8 rings"),
        ] {
            let spec = PortSpec::parse(text).unwrap();
            let message = spec.parts(workers).err().unwrap().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        let spec = PortSpec::parse("null:").unwrap();
        assert_eq!(spec.parts(5).unwrap().len(), 5);
    }

    #[test]
    fn numbers_are_checked_against_their_range() {
        let spec = PortSpec::parse("null:source=65").unwrap();
        assert!(
            spec.number("source", 0..=64)
                .unwrap_err()
                .to_string()
                .contains("0 to 64")
        );
    }
}
