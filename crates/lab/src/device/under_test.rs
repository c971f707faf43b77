//! The device under test: ports to one that is there already, or one that taut sets up and takes down.

use super::error::RunError;
use super::scratch::{self, Notes};
use super::set_up::{Site, flow_through, with_instrument};
use super::{Choice, Device, chosen};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_host::testbed::GENERATOR_INTERFACES;
use taut_port::PortSpec;
use taut_traffic::{Instrument, Sizes, Traffic};
use taut_wire::UdpFlow;

/// What is measured.
#[derive(Debug, Clone)]
pub enum DeviceUnderTest {
    /// One that is there already, behind these ports: the first sends, the last receives.
    Ports(Vec<PortSpec>),
    /// One of the comparison's, made for the measurement.
    Made(Box<Device>),
}

/// Why a device of the comparison cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownDevice {
    /// None is called so.
    #[error("{0}")]
    Name(String),
    /// This machine lacks something for it.
    #[error("{what}: {why} ({how})")]
    Missing {
        /// Which.
        what: String,
        /// What is missing.
        why: String,
        /// How to get it.
        how: String,
    },
}

impl Device {
    /// The device called `id`, or what `taut forward` makes of the options behind it.
    ///
    /// # Errors
    /// When none is called so, or this machine cannot have it.
    pub fn named(id: &str) -> Result<Self, UnknownDevice> {
        let choice = Choice::parse(id).map_err(UnknownDevice::Name)?;
        if !matches!(&choice, Choice::Named(devices) if devices.len() == 1) {
            let line =
                "--device: one device at a time; taut demo --list-devices shows those there are";
            return Err(UnknownDevice::Name(line.to_string()));
        }
        let (devices, left_out) = chosen(&choice);
        if let Some(device) = devices.into_iter().next() {
            return Ok(device);
        }
        let missing = left_out.into_iter().next();
        Err(missing.map_or_else(
            || UnknownDevice::Name(format!("no device {id}")),
            |m| UnknownDevice::Missing {
                what: m.what,
                why: m.why,
                how: m.how,
            },
        ))
    }
}

impl DeviceUnderTest {
    /// Whether taut sets it up.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Made(_))
    }

    /// Its name in titles.
    pub fn name(&self) -> String {
        match self {
            Self::Ports(ports) => {
                let names: Vec<&str> = ports.iter().map(PortSpec::text).collect();
                format!("the device behind {}", names.join(" and "))
            }
            Self::Made(device) => device.full_name(),
        }
    }

    /// Where one that is made notes when its core was taken away; none for one that does not.
    ///
    /// # Errors
    /// When there is no room for the notes.
    pub fn notes(&self) -> Result<Option<Notes>, RunError> {
        let notes_itself = matches!(self, Self::Made(made) if made.notes_interruptions());
        notes_itself.then(Notes::new).transpose()
    }

    /// What it is and how to have it by itself.
    pub(crate) fn note(&self) -> String {
        match self {
            Self::Ports(_) => "was there already".to_string(),
            Self::Made(device) => {
                let info = device.info();
                format!("{}: {} ({})", info.io, info.note, info.command.join(" "))
            }
        }
    }

    /// The generator's ends of the veth wires to it, which a tap can watch.
    ///
    /// # Errors
    /// Where it is not reached through such.
    pub fn wires(&self) -> Result<Vec<String>, String> {
        let needs = "--tap: needs a device behind veth interfaces";
        match self {
            Self::Made(device) if device.on_wires() => {
                Ok(GENERATOR_INTERFACES.map(str::to_string).to_vec())
            }
            Self::Made(_) => Err(format!(
                "{needs}, such as veth-bridge; this one shares memory with the generator, or redirects in XDP"
            )),
            Self::Ports(specs) => {
                let names = specs.iter().map(|spec| {
                    let kernels = matches!(spec.backend(), "af_packet" | "af_xdp");
                    kernels
                        .then(|| spec.target().to_string())
                        .ok_or_else(|| format!("{needs}, and {spec} is none"))
                });
                names.collect()
            }
        }
    }

    /// The addresses of frames that get through it.
    pub fn flow(&self) -> UdpFlow {
        match self {
            Self::Made(device) => flow_through(device.frames(), false),
            Self::Ports(_) => UdpFlow::default(),
        }
    }

    /// Frames of `size` that get through it, unless `fields` says otherwise.
    pub(crate) fn traffic(
        &self,
        size: &Sizes,
        fields: &[(String, String)],
    ) -> Result<Traffic, String> {
        let size = size.to_string();
        let fields = fields.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let settings: Vec<_> = std::iter::once(("size", size.as_str()))
            .chain(fields)
            .collect();
        Traffic::of_settings_over(&self.flow(), &settings)
    }

    /// Connects an instrument with it and measures, on a thread of its own on the generator's core. A device that
    /// is made is taken down again however that ends; `patience` is that for the other side of ports.
    ///
    /// # Errors
    /// When there is no connection, the device dies, or `measure` says so.
    pub fn measure<T: Send>(
        &self,
        site: &Site<'_>,
        traffic: &Traffic,
        patience: Duration,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError> + Send,
    ) -> Result<T, RunError> {
        let specs = match self {
            Self::Made(device) => {
                scratch::sweep_left_behind();
                return with_instrument(site, device, traffic, stop, measure);
            }
            Self::Ports(specs) => specs,
        };
        let on_generator = || {
            site.pin()?;
            let mut instrument = Instrument::open(specs, traffic.clone(), site.clock)?;
            instrument.wait_for_links(patience, stop)?;
            measure(&mut instrument)
        };
        let done = std::thread::scope(|scope| scope.spawn(on_generator).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
