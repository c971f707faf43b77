//! A DPDK device: attached and started, removed when dropped.

use super::environment::{Environment, control};
use super::memory::MbufPool;
use super::reason::{cause, reason};
use super::settings::Settings;
use super::setup::{Losses, Setup};
use crate::{PortError, PortSpec};
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The virtual drivers of DPDK that users are likely to have. `taut ports` lists those that are available.
const VIRTUAL_DRIVERS: [&str; 9] = [
    "af_packet",
    "af_xdp",
    "memif",
    "null",
    "pcap",
    "ring",
    "tap",
    "vhost",
    "virtio",
];

pub(super) struct Device {
    environment: &'static Environment,
    pub(super) port: u16,
    pub(super) driver: String,
    pub(super) rx_ring: u16,
    pub(super) tx_ring: u16,
    /// Offset of the receive timestamp in an mbuf, and the flag of mbufs that have a receive timestamp.
    pub(super) stamp: (i32, u64),
    /// Number of packets that the device refused because its transmit ring was full, over all ports on the device.
    pub(super) refused: AtomicU64,
    /// Pools that the device receives into; they are dropped after the device.
    _pools: Vec<Arc<MbufPool>>,
}

impl Device {
    /// Attaches the device of `spec` and starts it. With one pool, all receive queues use mbufs of that pool. With
    /// several, each pool belongs to one receive queue, and there are as many transmit queues.
    pub(super) fn attach(
        spec: &PortSpec,
        settings: Settings,
        environment: &'static Environment,
        pools: Vec<Arc<MbufPool>>,
    ) -> Result<Self, PortError> {
        let workers = pools.len();
        let mempools: Vec<_> = match &pools[..] {
            [one] => vec![one.pool; usize::from(settings.queues)],
            several => several.iter().map(|pool| pool.pool).collect(),
        };
        let shim = environment.shim;
        let (name, arguments) = name_and_arguments(spec)?;
        let mut setup = request(settings, &mempools, workers);
        let _control = control();
        shim.words();
        // SAFETY: the environment exists; the C strings, the set-up and its pools (as many as it states) are alive
        // during the call; the device keeps the pools, so they outlive it; `control` excludes other threads.
        let rc = unsafe { (shim.add_port)(name.as_ptr(), arguments.as_ptr(), &raw mut setup) };
        let words = shim.words();
        // SAFETY: `request` zeroed the array, and the shim wrote a C string that fits into it.
        let driver = unsafe { CStr::from_ptr(setup.driver.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        if rc == 0 {
            return Ok(Self {
                environment,
                port: setup.port,
                driver,
                rx_ring: setup.rx_ring,
                tx_ring: setup.tx_ring,
                stamp: (setup.stamp_offset, setup.stamp_flag),
                refused: AtomicU64::new(0),
                _pools: pools,
            });
        }
        let step = if setup.step.is_null() {
            String::new()
        } else {
            // SAFETY: not null, so one of the shim's string constants.
            unsafe { CStr::from_ptr(setup.step) }
                .to_string_lossy()
                .into_owned()
        };
        Err(failure(
            spec,
            environment,
            workers,
            &step,
            &driver,
            &words,
            rc,
        ))
    }

    pub(super) fn link_is_up(&self) -> bool {
        // SAFETY: a port of ours that is not removed yet.
        unsafe { (self.environment.shim.link_is_up)(self.port) == 1 }
    }

    /// Returns true if the device is about to be removed from the machine and the kernel waits until this process
    /// releases it.
    pub(super) fn is_leaving(&self) -> bool {
        // SAFETY: a port of ours that is not removed yet.
        unsafe { (self.environment.shim.is_leaving)(self.port) == 1 }
    }

    /// Returns the packets that the device has lost since it was started; None if the driver does not count them.
    pub(super) fn losses(&self) -> Option<Losses> {
        let mut losses = Losses::default();
        // SAFETY: a port of ours that is not removed yet, and memory for the result.
        let rc = unsafe { (self.environment.shim.losses)(self.port, &raw mut losses) };
        (rc == 0).then_some(losses)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _control = control();
        // SAFETY: attached by `attach`, removed once; nobody else uses its number.
        unsafe { (self.environment.shim.remove_port)(self.port) };
        self.environment.shim.words();
    }
}

/// Returns DPDK's name of the device of `spec` and its arguments, as C strings.
fn name_and_arguments(spec: &PortSpec) -> Result<(CString, CString), PortError> {
    let mut arguments = vec![spec.target().to_string()];
    arguments.extend_from_slice(spec.device_arguments());
    let c_string =
        |text: String| CString::new(text).map_err(|_| spec.error("it contains a zero byte"));
    let name = c_string(name_of(spec.target()).to_string())?;
    Ok((name, c_string(arguments.join(","))?))
}

/// Returns the request to `shim.c` to set up a device; the request points to `mempools`.
fn request(settings: Settings, mempools: &[*mut c_void], workers: usize) -> Setup {
    Setup {
        ring: settings.ring,
        queues: mempools.len() as u16,
        tx_queues: workers as u16,
        mtu: settings.mtu,
        rate_mbps: settings.rate_mbps,
        mempools: mempools.as_ptr(),
        stamps: c_int::from(settings.stamps),
        stamp_offset: 0,
        stamp_flag: 0,
        port: 0,
        rx_ring: 0,
        tx_ring: 0,
        step: std::ptr::null(),
        driver: [0; 64],
    }
}

/// Returns DPDK's name of the attached device: `target` without the prefix of a bus.
fn name_of(target: &str) -> &str {
    target
        .strip_prefix("vdev:")
        .or_else(|| target.strip_prefix("pci:"))
        .unwrap_or(target)
}

/// Returns true if the driver of the device needs root: a device on the PCI bus, or an interface of the kernel.
fn takes_root(name: &str) -> bool {
    let of_interface = ["net_tap", "net_af_packet", "net_af_xdp"];
    !name.starts_with("net_") || of_interface.iter().any(|driver| name.starts_with(driver))
}

/// Returns the error for a failed step of attaching a device; the text says what to do.
fn failure(
    spec: &PortSpec,
    environment: &Environment,
    workers: usize,
    step: &str,
    driver: &str,
    words: &str,
    rc: i32,
) -> PortError {
    let name = spec.target();
    let why = reason(words, rc);
    match step {
        "rate" => PortError::missing(
            format!("limiting the rate of {spec}"),
            format!(
                "a driver that limits rates: {driver} does not ({why}); use software pacing (no rate=, no --pacing nic)"
            ),
        ),
        "mtu" => spec.error(format!(
            "mtu: {driver} does not support frames of that length ({why}); use a smaller MTU, or leave mtu= out"
        )),
        "stamps" => spec.error(format!(
            "stamps: {driver} stamps no packets ({why}); leave stamps= out"
        )),
        "rss" if workers > 1 => spec.error(format!(
            "{driver} does not have {workers} queues to spread packets over ({why}); set its number of queues, where it has an argument for that \
             (queues=, qpairs=, queue_count=), or leave out workers"
        )),
        "rss" => spec.error(format!(
            "rss: {driver} cannot spread packets over that many queues ({why}); leave rss= out"
        )),
        _ if rc == -libc::EBUSY && words.is_empty() => spec.error(format!(
            "{name} is in use by another port of this process; use another number ({})",
            renumbered(name)
        )),
        "attaching it" if words.contains("failed to parse device") => spec.error(format!(
            "{} has no device \"{name}\": use a PCI address, or one of {}; more drivers are in the packages librte-net-*",
            environment.shim.version(),
            virtual_drivers(environment)
        )),
        "attaching it" if words.contains("Cannot find device") => {
            spec.error(format!("no such device: {name} (lspci -D lists the addresses)"))
        }
        "attaching it" if takes_root(name_of(name)) && !rustix::process::geteuid().is_root() => {
            PortError::missing(
                format!("opening {spec}"),
                format!("root for this device (run with sudo); without it, DPDK reports: {why}"),
            )
        }
        // Drivers do not report unknown arguments, but return -1.
        "attaching it" if rc == -1 && cause(words).is_none() => spec.error(format!(
            "the driver of {name} refuses its arguments; https://doc.dpdk.org/guides/nics lists them"
        )),
        _ => PortError::system(
            format!("opening {spec}: {step}"),
            std::io::Error::new(kind(rc), why),
        ),
    }
}

/// Returns the I/O error kind for an error number of DPDK. Many drivers return -1 without a specific meaning.
fn kind(rc: i32) -> std::io::ErrorKind {
    if rc == -1 {
        std::io::ErrorKind::Other
    } else {
        std::io::Error::from_raw_os_error(-rc).kind()
    }
}

fn renumbered(name: &str) -> String {
    format!("{}9", name.trim_end_matches(|c: char| c.is_ascii_digit()))
}

fn virtual_drivers(environment: &Environment) -> String {
    let folder = environment.shim.drivers_folder();
    let here = VIRTUAL_DRIVERS.iter().filter(|driver| {
        std::path::Path::new(&folder)
            .join(format!("librte_net_{driver}.so"))
            .exists()
    });
    let names: Vec<_> = here
        .map(|driver| match *driver {
            "virtio" => "net_virtio_user0".to_string(),
            driver => format!("net_{driver}0"),
        })
        .collect();
    names.join(", ")
}
