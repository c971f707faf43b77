//! The device under test: ports to one that is there already, or one that taut sets up and takes down.

use crate::comparison::run::{RunError, Site, flow_through, with_instrument};
use crate::comparison::{Choice, Device, chosen};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_host::netns::GENERATOR_INTERFACES;
use taut_port::PortSpec;
use taut_traffic::{Instrument, Plan as StreamPlan, Sizes, Stream, Traffic};

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

impl DeviceUnderTest {
    /// The device of the comparison called `id`.
    ///
    /// # Errors
    /// When none is called so, or this machine cannot have it.
    pub fn named(id: &str) -> Result<Self, UnknownDevice> {
        let choice = Choice::parse(id).map_err(UnknownDevice::Name)?;
        if !matches!(&choice, Choice::Named(ids) if ids.len() == 1) {
            let line =
                "--device: one device at a time; taut demo --list-devices shows those there are";
            return Err(UnknownDevice::Name(line.to_string()));
        }
        let (devices, left_out) = chosen(&choice);
        if let Some(device) = devices.into_iter().next() {
            return Ok(Self::Made(Box::new(device)));
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

    /// What it is and how to have it by itself.
    pub(super) fn note(&self) -> String {
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
    pub(super) fn wires(&self) -> Result<Vec<String>, String> {
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

    /// Frames of `size` that get through it.
    pub(super) fn traffic(
        &self,
        size: &Sizes,
        fields: &[(String, String)],
    ) -> Result<Traffic, String> {
        let size_text = size.to_string();
        match self {
            Self::Made(device) if fields.is_empty() => Stream::of(StreamPlan {
                flow: flow_through(device.frames(), false),
                sizes: size.clone(),
                ..StreamPlan::default()
            })
            .map(Traffic::from)
            .map_err(|e| e.to_string()),
            Self::Made(_) => Err(
                "--set: the frames of a --device are made so that they get through it; give --port for others"
                    .to_string(),
            ),
            Self::Ports(_) => {
                let mut settings = vec![("size", size_text.as_str())];
                settings.extend(fields.iter().map(|(key, value)| (key.as_str(), value.as_str())));
                Traffic::of_settings(&settings)
            }
        }
    }

    /// Connects an instrument with it and measures, on a thread pinned to the generator's core.
    pub(super) fn measure<T: Send>(
        &self,
        site: &Site<'_>,
        traffic: &Traffic,
        patience: Duration,
        stop: &AtomicBool,
        measure: impl FnOnce(&mut Instrument) -> Result<T, RunError> + Send,
    ) -> Result<T, RunError> {
        let specs = match self {
            Self::Made(device) => return with_instrument(site, device, traffic, stop, measure),
            Self::Ports(specs) => specs,
        };
        let on_generator = || {
            taut_host::pin_current_thread(site.cores.generator)
                .map_err(|e| RunError::Device(e.to_string()))?;
            let mut instrument = Instrument::open(specs, traffic.clone(), site.clock)?;
            instrument.wait_for_links(patience, stop)?;
            measure(&mut instrument)
        };
        let done = std::thread::scope(|scope| scope.spawn(on_generator).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
