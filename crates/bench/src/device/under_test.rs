//! The device under test: ports to an existing device, or a device that taut sets up and removes.

use super::error::RunError;
use super::scratch::{self, Notes};
use super::set_up::{Site, flow_through, with_instrument};
use super::{Choice, Device, chosen};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_host::testbed::GENERATOR_INTERFACES;
use taut_port::{Attachment, PortSpec};
use taut_traffic::{Instrument, Sizes, Traffic};
use taut_wire::UdpFlow;

/// The device that is measured.
#[derive(Debug, Clone)]
pub enum DeviceUnderTest {
    /// An existing device behind the generator's ports: the first port sends, the last port receives.
    Ports(Vec<PortSpec>),
    /// A device that taut sets up for the measurement.
    Made(Box<Device>),
}

/// The reason why a named device is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownDevice {
    /// The text is not the name of exactly one device; the string is the error message.
    #[error("{0}")]
    Name(String),
    /// This machine lacks a requirement of the device.
    #[error("{what}: {why} ({how})")]
    Missing {
        /// The device whose requirement is missing.
        what: String,
        /// The requirement that is missing.
        why: String,
        /// The instruction for installing the requirement.
        how: String,
    },
}

impl Device {
    /// Returns the device called `id`, or `taut forward` with the options that follow the name.
    ///
    /// # Errors
    /// Returns an error if `id` is not the name of exactly one device, or this machine does not support the device.
    pub fn named(id: &str) -> Result<Self, UnknownDevice> {
        let choice = Choice::parse(id).map_err(UnknownDevice::Name)?;
        if !matches!(&choice, Choice::Named(devices) if devices.len() == 1) {
            let line = "--device: one device at a time; taut demo --list-devices lists the devices";
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
    /// Returns true if taut sets the device up.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Made(_))
    }

    /// Returns the device's name for the titles of reports.
    pub fn name(&self) -> String {
        match self {
            Self::Ports(ports) => {
                let names: Vec<&str> = ports.iter().map(PortSpec::text).collect();
                format!("the device behind {}", names.join(" and "))
            }
            Self::Made(device) => device.full_name(),
        }
    }

    /// Creates a log for the interruptions of a device that taut sets up; none for a device that does not write a log.
    ///
    /// # Errors
    /// Returns an error if the log cannot be created.
    pub fn notes(&self) -> Result<Option<Notes>, RunError> {
        let notes_itself = matches!(self, Self::Made(made) if made.notes_interruptions());
        notes_itself.then(Notes::new).transpose()
    }

    /// Returns a description of the device, with the command that starts it.
    pub fn note(&self) -> String {
        match self {
            Self::Ports(_) => "was there already".to_string(),
            Self::Made(device) => {
                let info = device.info();
                format!("{}: {} ({})", info.io, info.note, info.command.join(" "))
            }
        }
    }

    /// Returns the names of the generator's interfaces of the veth pairs to the device, which a wiretap can observe.
    ///
    /// # Errors
    /// Returns an error if the device is not connected by veth pairs.
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
                    (spec.kind().attachment == Attachment::Interface)
                        .then(|| spec.target().to_string())
                        .ok_or_else(|| format!("{needs}; {spec} is not one"))
                });
                names.collect()
            }
        }
    }

    /// Returns the addresses of frames that the device forwards.
    pub fn flow(&self) -> UdpFlow {
        match self {
            Self::Made(device) => flow_through(device.frames(), false),
            Self::Ports(_) => UdpFlow::default(),
        }
    }

    /// Returns traffic of frames of `size` that the device forwards. `fields` overrides the fields of these frames.
    ///
    /// # Errors
    /// Returns an error if a field does not exist or its value is invalid.
    pub fn traffic(&self, size: &Sizes, fields: &[(String, String)]) -> Result<Traffic, String> {
        let size = size.to_string();
        let fields = fields.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let settings: Vec<_> = std::iter::once(("size", size.as_str()))
            .chain(fields)
            .collect();
        Traffic::of_settings_over(&self.flow(), &settings)
    }

    /// Connects a load generator and calls `measure`, on a separate thread that is pinned to the generator's core. A
    /// device that taut set up is removed in every case. `patience` is the timeout until the peers of the ports are
    /// connected.
    ///
    /// # Errors
    /// Returns an error if there is no connection, the device dies, or `measure` returns an error.
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
