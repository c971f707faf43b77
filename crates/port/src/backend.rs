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

/// The number of pool slots in addition to those for the ports' rings: for batches in progress and transmit buffers.
const POOL_RESERVE: u32 = 2048;

/// The function by which a backend opens a port.
pub type OpenPort = fn(&PortSpec, &mut Resources) -> Result<Box<dyn Port>, PortError>;

/// One worker's part of a port, which the worker opens on its own thread.
pub type Part = Box<dyn FnOnce(&mut Resources) -> Result<Box<dyn Port>, PortError> + Send>;

/// A function that makes the part of the worker with the given index. Workers may join at any time, in the order of
/// their indices.
pub type Joinable = Box<dyn Fn(usize) -> Result<Part, PortError> + Send>;

/// The way in which several workers share the ports of a backend. Each worker has a part of the port (queues, rings, a
/// socket of its own). A part receives all frames of the flows that belong to its worker.
#[derive(Clone, Copy)]
pub enum Split {
    /// Workers cannot share a port; the text is the reason.
    Never(&'static str),
    /// All parts of a port are opened in one call, for two or more workers; the value is the function that opens them.
    Parts(fn(&PortSpec, usize) -> Result<Vec<Part>, PortError>),
    /// Parts are made one after the other, also while workers use earlier parts.
    Joinable(fn(&PortSpec) -> Result<Joinable, PortError>),
}

/// A kind of port.
#[derive(Clone, Copy)]
pub struct Backend {
    /// Name of the backend: the word before the colon of a spec.
    pub name: &'static str,
    /// One-line summary for `taut ports`.
    pub summary: &'static str,
    /// Name of the target in messages ("INTERFACE", "SOCKET-PATH"); empty if there is none.
    pub target: &'static str,
    /// Options of a spec: the key and the meaning of each.
    pub options: &'static [(&'static str, &'static str)],
    /// Function that returns the maximum number of pool slots that a port of this spec uses.
    pub frames: fn(&PortSpec) -> u32,
    /// True if the size of a pool slot must be a power of two and each slot aligned to it (AF_XDP).
    pub aligned: bool,
    /// Handling of packets (memory and copies), with one entry for each kind of port of the backend.
    pub handling: &'static [Handling],
    /// True if the backend accepts arguments other than its own options. They are stored in order and passed to the
    /// driver of the port's device, which checks them ([`PortSpec::device_arguments`]; only DPDK).
    pub passes_on: bool,
    /// True if the backend's ports can wake a sleeping worker ([`Port::arm`]).
    pub wakes: bool,
    /// Function that checks whether ports of this kind can be opened on this machine. It returns a description of the
    /// available resources, or an error that names the missing one.
    pub probe: fn() -> Result<String, PortError>,
    /// Function that opens a port.
    pub open: OpenPort,
    /// The way in which several workers share one port.
    pub split: Split,
    /// The peer with which ports of this kind exchange packets.
    pub attachment: Attachment,
    /// Typical cycles of receiving and sending a packet, for estimates on machines that cannot measure these ports.
    /// None for ports that can be measured anywhere. The values were measured once, on virtual Ethernet and a virtual
    /// machine (docs/runs/measured/io-costs.toml); the value for DPDK is published.
    pub typical_cycles: Option<f64>,
    /// Function that returns the specs of two connected ports of one process, for measurements. Its arguments are a
    /// name and a frame size in bytes. None if there are no such ports.
    pub loop_back: Option<fn(&str, usize) -> [String; 2]>,
}

/// The peer with which ports of a backend exchange packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// No peer: packets are generated and discarded.
    Nothing,
    /// An existing network interface of the namespace.
    Interface,
    /// A network interface of the namespace that does not exist yet; the port creates it.
    NewInterface,
    /// A device that the port takes from the kernel.
    Device,
    /// One end of a veth pair, which a chain creates.
    Veth,
    /// Another process, over a socket and shared memory.
    Process,
    /// Another port of the same process, or files.
    Inside,
}

impl Attachment {
    /// Returns true if XDP programs can pass frames to the peer, or if there is no peer yet.
    pub fn may_be_interface(self) -> bool {
        !matches!(self, Self::Process | Self::Inside)
    }

    /// Returns true if the port opens an interface or device that exists only in the current network namespace, so that
    /// another namespace cannot use it.
    pub fn is_of_namespace(self) -> bool {
        matches!(self, Self::Interface | Self::NewInterface | Self::Device)
    }
}

impl Backend {
    /// Returns true if the pair (KEY, VALUE) sets one of the backend's options.
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
    /// Parses the spec of a port of this backend; `rest` is the text after name and colon.
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

    /// Returns the spec as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the backend's name.
    pub fn backend(&self) -> &'static str {
        self.backend.name
    }

    /// Returns the backend of the port.
    pub fn kind(&self) -> &Backend {
        &self.backend
    }

    /// Returns the description of the resource, such as an interface, that only one port can use at a time. None if the
    /// port can be shared.
    pub fn exclusive(&self) -> Option<String> {
        let target = &self.target;
        match self.backend.attachment {
            Attachment::Nothing => None,
            Attachment::Interface | Attachment::NewInterface => Some(format!("interface {target}")),
            Attachment::Device | Attachment::Inside => Some(format!("{} {target}", self.backend())),
            Attachment::Veth => Some(match self.option("netns") {
                Some(namespace) => format!("interface {target} in namespace {namespace}"),
                None => format!("interface {target}"),
            }),
            Attachment::Process => Some(format!(
                "{} socket {target}, id {}",
                self.backend(),
                self.option("id").unwrap_or("0")
            )),
        }
    }

    /// Returns true if the spec's port can wake a sleeping worker.
    pub fn wakes(&self) -> bool {
        self.backend.wakes
    }

    /// Returns true if the port has packets from the moment it is open: a file, or generated packets. The ports that
    /// receive its packets must be started first, because an interface accepts frames even if no program receives them.
    pub fn is_source(&self) -> bool {
        match self.backend() {
            "pcap" => self.option("role") != Some("write"),
            "null" => self.option("source").is_some(),
            _ => false,
        }
    }

    /// Returns the text between the colon and the first comma.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the value of an option, if it was given.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Returns the arguments that the backend passes on to the driver of its device, in order, as written.
    pub fn device_arguments(&self) -> &[String] {
        &self.device_arguments
    }

    /// Returns the keys of the options that were given.
    pub(crate) fn option_keys(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// Returns the value of a numeric option, checked against its range.
    ///
    /// # Errors
    /// [`PortError::BadSpec`] if the value is not a number or out of range.
    pub fn number(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, PortError> {
        let Some(value) = self.option(key) else {
            return Ok(None);
        };
        match u64::from_str(value) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.error(format!(
                "{key}={value}: expected a number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// Returns the path of the socket file that the port creates and removes; None for all ports but memif servers. The
    /// file stays if the process ends without closing the port.
    pub fn own_socket(&self) -> Option<PathBuf> {
        let serves = self.option("role").unwrap_or("server") == "server";
        (self.backend() == "memif" && serves).then(|| PathBuf::from(&self.target))
    }

    /// Returns an error about this spec, with the given reason.
    pub fn error(&self, reason: impl Into<String>) -> PortError {
        PortError::bad_spec(&self.text, reason)
    }

    /// Returns how workers share the port.
    pub(crate) fn split(&self) -> Split {
        self.backend.split
    }

    /// Opens the port on the calling thread, which then owns it.
    ///
    /// # Errors
    /// Returns the backend's error: bad options, a missing device, no permission.
    pub fn open(&self, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
        (self.backend.open)(self, resources)
    }

    /// Checks whether `workers` workers can share the port. The check uses only the spec, so opening the port may still
    /// fail.
    ///
    /// # Errors
    /// The error says why the workers cannot share the port.
    pub fn check_workers(&self, workers: usize) -> Result<(), PortError> {
        match self.backend.split {
            Split::Never(reason) if workers > 1 => {
                Err(self.error(format!("{workers} workers cannot share it: {reason}")))
            }
            _ => Ok(()),
        }
    }

    /// Prepares the port for `workers` workers, and returns the part that each of them opens. With one worker, the part
    /// is the complete port.
    ///
    /// # Errors
    /// The errors are those of [`PortSpec::open`]; it also fails if the workers cannot share the port.
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

/// The resources that the ports of one worker share: the packet pool, sized for all of them.
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
    /// Makes a pool that is large enough for all ports: no port runs out of buffers because another port uses them.
    ///
    /// # Errors
    /// The machine has not enough memory.
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

    /// Returns the shared pool.
    pub fn pool(&self) -> PoolHandle {
        self.pool.clone()
    }

    /// Returns the additional state that AF_XDP ports share.
    #[cfg(feature = "xdp")]
    pub(crate) fn xdp(&self) -> &XdpShared {
        &self.xdp
    }

    /// Returns the additional state that DPDK ports share.
    #[cfg(dpdk)]
    pub(crate) fn dpdk(&self) -> &DpdkShared {
        &self.dpdk
    }

    /// Returns the specs of all ports that share these resources.
    #[cfg(dpdk)]
    pub(crate) fn specs(&self) -> &[PortSpec] {
        &self.specs
    }
}
