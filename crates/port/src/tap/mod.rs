//! The port `tap` on a tap interface that it creates. Packets sent through the port arrive at the interface, and
//! packets that the kernel sends through the interface are received from the port.
//!
//! Each frame takes a system call, because the kernel has no other interface here. The kernel copies directly from and
//! to packet memory, so no frame is copied in user space.

mod beside;
mod device;
#[cfg(test)]
mod tests;

pub use beside::Tap;
pub use device::is_name;

use crate::{
    Attachment, Backend, Batch, Handling, Link, PoolHandle, Port, PortCounters, PortError, PortSpec,
};
use crate::{Joinable, Part, Receives, Resources, Sends, Split};
use device::{Device, Settings};
use rustix::io::{Errno, read, write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use taut_sys::Alarm;
use taut_sys::interface::{self, ETHERNET_HEADER_BYTES, Interface};

/// The backend of specs `tap:NAME[,address=A.B.C.D/N][,mac=XX:XX:XX:XX:XX:XX][,mtu=N][,queue=N]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "tap",
    summary: "a kernel interface made on the spot, gone with the command; needs root or CAP_NET_ADMIN",
    target: "NAME",
    options: &[
        (
            "address",
            "IPv4 address and prefix length of the interface, as 10.1.1.1/24 (default: none)",
        ),
        (
            "mac",
            "its MAC address, as 02:00:00:00:00:01 (default: the kernel's choice)",
        ),
        ("mtu", "its MTU in bytes, 68 to 1900 (default 1500)"),
        (
            "queue",
            "frames that the kernel keeps until they are received, 1 to 65536 (default 1000)",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPool,
        sends: Sends::FromAnywhere,
    }],
    passes_on: false,
    wakes: true,
    probe: device::probe,
    open,
    split: Split::Joinable(joinable),
    attachment: Attachment::NewInterface,
    typical_cycles: Some(15_000.0),
    loop_back: None,
};

struct TapPort {
    name: String,
    device: Device,
    pool: PoolHandle,
    interface: Interface,
    counters: PortCounters,
}

fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    let device = Device::create(&what(spec), spec.target(), &settings(spec, false)?)?;
    open_device(spec, device, resources)
}

/// Makes a queue of the interface for each worker.
fn joinable(spec: &PortSpec) -> Result<Joinable, PortError> {
    let (spec, what, settings) = (spec.clone(), what(spec), settings(spec, true)?);
    Ok(Box::new(move |worker| {
        let device = match worker {
            0 => Device::create(&what, spec.target(), &settings)?,
            _ => Device::queue(&what, spec.target(), &settings)?,
        };
        let spec = spec.clone();
        Ok(
            Box::new(move |resources: &mut Resources| open_device(&spec, device, resources))
                as Part,
        )
    }))
}

fn what(spec: &PortSpec) -> String {
    format!("opening {spec}")
}

fn settings(spec: &PortSpec, has_queues: bool) -> Result<Settings, PortError> {
    let name = spec.target();
    if !is_name(name) {
        return Err(spec.error(format!(
            "\"{name}\" is not a valid interface name: expected 1 to 15 letters, digits, -, _ or ."
        )));
    }
    Ok(Settings {
        mac: spec.option("mac").map(|text| mac(spec, text)).transpose()?,
        address: spec
            .option("address")
            .map(|text| address(spec, text))
            .transpose()?,
        mtu_bytes: spec.number("mtu", 68..=1900)?.unwrap_or(1500) as u32,
        queue_frames: spec.number("queue", 1..=65536)?.unwrap_or(1000) as u32,
        has_queues,
    })
}

fn open_device(
    spec: &PortSpec,
    device: Device,
    resources: &mut Resources,
) -> Result<Box<dyn Port>, PortError> {
    let interface = Interface::find(device.lookup(), spec.target())
        .map_err(|e| PortError::system(what(spec), e))?;
    Ok(Box::new(TapPort {
        name: spec.target().to_string(),
        device,
        pool: resources.pool(),
        interface,
        counters: PortCounters::default(),
    }))
}

/// Parses a MAC address, which must be unicast and not zero.
fn mac(spec: &PortSpec, text: &str) -> Result<[u8; 6], PortError> {
    let mut octets = text.split(':').map(|part| {
        let two = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        two.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    });
    let mut mac = [0; 6];
    for octet in &mut mac {
        *octet = octets.next().flatten().ok_or_else(|| wrong_mac(spec))?;
    }
    let of_one = mac[0] & 1 == 0 && mac != [0; 6];
    if octets.next().is_some() || !of_one {
        return Err(wrong_mac(spec));
    }
    Ok(mac)
}

fn wrong_mac(spec: &PortSpec) -> PortError {
    spec.error("mac: expected a unicast address, as 02:00:00:00:00:01")
}

fn address(spec: &PortSpec, text: &str) -> Result<(Ipv4Addr, u32), PortError> {
    text.split_once('/')
        .and_then(|(address, bits)| Some((address.parse().ok()?, bits.parse().ok()?)))
        .filter(|(_, bits)| *bits <= 32)
        .ok_or_else(|| {
            spec.error("address: expected an IPv4 address and a prefix length, as 10.1.1.1/24")
        })
}

impl Port for TapPort {
    fn fits(&self, frame: &[u8]) -> bool {
        interface::fits(frame, self.interface.mtu_bytes)
    }

    fn rx(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        while batch.room() > 0 {
            let room = self.pool.room() as u16;
            let Some(mut packet) = self.pool.take(room) else {
                break;
            };
            match read(self.device.file(), packet.bytes_mut()) {
                // The kernel does not distinguish a frame that fills the buffer from a truncated one.
                Ok(n) if n >= usize::from(room) => self.counters.rx_too_long += 1,
                Ok(n) => {
                    packet.truncate(n as u16);
                    self.counters.rx_bytes += n as u64;
                    batch.push(packet);
                }
                // There is no frame, or the interface was deleted, which `link` reports.
                Err(_) => break,
            }
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        received
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let mut taken = 0;
        for packet in batch.packets() {
            let frame = packet.bytes();
            if frame.len() < ETHERNET_HEADER_BYTES {
                self.counters.tx_failed += 1;
            } else if !interface::fits(frame, self.interface.mtu_bytes) {
                self.counters.tx_too_long += 1;
            } else {
                match write(self.device.file(), frame) {
                    Ok(_) => {
                        self.counters.tx_packets += 1;
                        self.counters.tx_bytes += frame.len() as u64;
                    }
                    // The kernel is short of memory, or the interface is down or deleted: the packets stay with the
                    // caller.
                    Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::IO | Errno::BADFD) => {
                        break;
                    }
                    Err(_) => self.counters.tx_failed += 1,
                }
            }
            taken += 1;
        }
        batch.drop_front(taken);
        taken
    }

    fn link(&mut self) -> Link {
        match Interface::find(self.device.lookup(), &self.name) {
            Ok(now) => {
                self.interface = now;
                now.passes(&self.name).into()
            }
            // The interface was renamed or moved to another namespace, but still belongs to this port.
            Err(_) if self.device.exists() => Link::Up,
            Err(error) => Link::Down(interface::lost(&self.name, &error)),
        }
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        alarm.watch(self.device.file().as_fd());
        true
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }
}
