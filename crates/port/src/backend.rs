//! The description of a backend, the spec of a port, and the resources that the ports of one worker share.

#[cfg(feature = "xdp")]
use crate::af_xdp::Shared as XdpShared;
#[cfg(dpdk)]
use crate::dpdk::Shared as DpdkShared;
use crate::error::PortError;
use crate::handling::Handling;
use crate::pool::PoolHandle;
use crate::port::Port;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use taut_settings::suggestion;

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
    /// The spec of a port of this backend, whose name and colon `rest` follows.
    ///
    /// # Errors
    /// [`PortError::BadSpec`] for an unknown option, a missing target, a key given twice.
    pub(crate) fn of(text: &str, backend: Backend, rest: &str) -> Result<Self, PortError> {
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
                                "{} has no option \"{key}\"; it has {}{}",
                                backend.name,
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
                format!("write {}:{}[,...]", backend.name, backend.target),
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

    /// The way in which workers share the port.
    pub(crate) fn split(&self) -> Split {
        self.backend.split
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
    xdp: XdpShared,
    #[cfg(dpdk)]
    dpdk: DpdkShared,
    #[cfg(dpdk)]
    specs: Vec<PortSpec>,
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
            xdp: XdpShared::default(),
            #[cfg(dpdk)]
            dpdk: DpdkShared::default(),
            #[cfg(dpdk)]
            specs: specs.to_vec(),
        })
    }

    /// The shared pool.
    pub fn pool(&self) -> PoolHandle {
        self.pool.clone()
    }

    /// Returns what AF_XDP ports share besides.
    #[cfg(feature = "xdp")]
    pub(crate) fn xdp(&self) -> &XdpShared {
        &self.xdp
    }

    /// Returns what DPDK ports share besides.
    #[cfg(dpdk)]
    pub(crate) fn dpdk(&self) -> &DpdkShared {
        &self.dpdk
    }

    /// Returns the specs of all ports that share it.
    #[cfg(dpdk)]
    pub(crate) fn specs(&self) -> &[PortSpec] {
        &self.specs
    }
}
