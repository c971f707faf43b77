//! The port `dpdk`: a device, its data path, and the memory of its packets.

use super::device::Device;
use super::environment::{Environment, environment};
use super::library::{Shim, shim};
use super::memory::{MbufPool, Memory};
use super::path::{Counts, Path};
use super::settings::{Settings, mbufs_in_rings};
use super::setup::Losses;
use crate::{
    BATCH_CAPACITY, Batch, Link, Part, Port, PortCounters, PortError, PortSpec, Resources,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use taut_sys::StampClock;

/// The drivers whose error counters include refused packets, although these stay with the caller and are not lost.
const COUNT_REFUSED: [&str; 2] = ["net_af_xdp", "net_tap"];

struct DpdkPort {
    shim: &'static Shim,
    path: Box<Path>,
    /// Receive timestamps of the last receive call; empty unless configured.
    stamps: Box<[u64]>,
    stamped: usize,
    /// Device, set when the last worker has opened its port. It is dropped before the memory, because a device holds
    /// mbufs until it is closed.
    device: Arc<OnceLock<Device>>,
    memory: Memory,
    /// Index of the worker among those that share the device; worker 0 counts the device's losses.
    worker: u16,
    /// True if the data path `path` has been set up for the device.
    has_begun: bool,
    /// True if the port has released its device, because the kernel announced that the device will be removed.
    is_gone: bool,
    /// Number of this port's refused packets that are already included in `Device::refused`.
    told_refused: u64,
    /// Maximum number of this port's packets in use at a time: the number of mbufs in the pool.
    most: usize,
    name: String,
    arguments: Vec<String>,
    counted: Counted,
}

/// Sums of the device's own loss counters. The sums continue when the device resets those counters (`net_memif` does so
/// when a link breaks).
#[derive(Default)]
struct Counted {
    before: Losses,
    sum: Losses,
}

impl Counted {
    fn update(&mut self, now: Losses) -> Losses {
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let (before, sum) = (self.before, &mut self.sum);
        sum.missed += grown(now.missed, before.missed);
        sum.no_mbuf += grown(now.no_mbuf, before.no_mbuf);
        sum.rx_errors += grown(now.rx_errors, before.rx_errors);
        sum.tx_errors += grown(now.tx_errors, before.tx_errors);
        self.before = now;
        *sum
    }
}

/// Loads DPDK but does not start it, because that would take huge pages and time.
pub(super) fn probe() -> Result<String, PortError> {
    let shim = shim()?;
    let folder = shim.drivers_folder();
    let drivers = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("librte_net_") && name.ends_with(".so"))
        .count();
    if drivers == 0 {
        return Err(PortError::missing(
            "DPDK ports",
            format!("drivers in {folder}: apt install 'librte-net-*'"),
        ));
    }
    Ok(format!("{}, {drivers} network drivers", shim.version()))
}

pub(super) fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    let opening = Opening::new(spec, 1)?;
    Ok(Box::new(DpdkPort::open(&opening, 0, resources)?))
}

/// Prepares the parts of a port for several workers: a queue of the same device and its own packet memory for each.
pub(super) fn split(spec: &PortSpec, workers: usize) -> Result<Vec<Part>, PortError> {
    for (option, why) in [
        ("rss", "each worker has a queue of its own"),
        ("rate", "it is of one queue"),
    ] {
        if spec.option(option).is_some() {
            return Err(spec.error(format!(
                "{option}: {why}; leave it out with {workers} workers"
            )));
        }
    }
    let opening = Arc::new(Opening::new(spec, workers)?);
    let part = |worker| {
        let opening = Arc::clone(&opening);
        let part = move |resources: &mut Resources| {
            let port = DpdkPort::open(&opening, worker, resources)?;
            Ok(Box::new(port) as Box<dyn Port>)
        };
        Box::new(part) as Part
    };
    Ok((0..workers as u16).map(part).collect())
}

/// The state that the workers of a device share while they open it, one after the other.
struct Opening {
    spec: PortSpec,
    settings: Settings,
    workers: usize,
    /// Pools of the workers that have opened the device.
    pools: Mutex<Vec<Arc<MbufPool>>>,
    device: Arc<OnceLock<Device>>,
}

impl Opening {
    fn new(spec: &PortSpec, workers: usize) -> Result<Self, PortError> {
        Ok(Self {
            spec: spec.clone(),
            settings: Settings::of(spec)?,
            workers,
            pools: Mutex::default(),
            device: Arc::default(),
        })
    }

    /// Adds the memory of one more worker, for the worker's queue. The device starts when the last worker is added.
    fn add(
        &self,
        environment: &'static Environment,
        pool: &Arc<MbufPool>,
    ) -> Result<(), PortError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.push(Arc::clone(pool));
        if pools.len() < self.workers {
            return Ok(());
        }
        let pools = std::mem::take(&mut *pools);
        let device = Device::attach(&self.spec, self.settings, environment, pools)?;
        // The last worker sets the device, once.
        let _ = self.device.set(device);
        Ok(())
    }
}

/// Returns the clock of a device's timestamps.
fn clock_of(driver: &str, arguments: &[String]) -> StampClock {
    let on_interface = |argument: &String| {
        ["iface=", "rx_iface=", "rx_iface_in="]
            .iter()
            .any(|key| argument.starts_with(key))
    };
    // libpcap passes on the kernel's timestamps, in microseconds; those of a file are arbitrary.
    if driver == "net_pcap" && arguments.iter().any(on_interface) {
        StampClock::Realtime { unit_ns: 1000 }
    } else {
        StampClock::Unknown
    }
}

impl DpdkPort {
    /// Opens the port of one worker. The workers open their ports in the order of their indices.
    fn open(opening: &Opening, worker: u16, resources: &mut Resources) -> Result<Self, PortError> {
        let Opening { spec, settings, .. } = opening;
        let environment = environment()?;
        let memory = resources.dpdk().memory(mbufs_in_rings(resources.specs()))?;
        opening.add(environment, &memory.pool)?;
        let mut stamps: Box<[u64]> = if settings.stamps {
            Box::new([0; BATCH_CAPACITY])
        } else {
            Box::default()
        };
        let path = Box::new(Path {
            port: 0,
            queues: settings.queues,
            next_queue: worker,
            tx_queue: worker,
            mempool: memory.pool.pool,
            base: environment.base,
            ledger: memory.ledger.raw().as_ptr(),
            stamps: if settings.stamps {
                stamps.as_mut_ptr()
            } else {
                std::ptr::null_mut()
            },
            stamp_flag: 0,
            stamp_offset: 0,
            counts: Counts::default(),
        });
        let most = memory.pool.mbufs as usize;
        let mut port = Self {
            shim: environment.shim,
            path,
            stamps,
            stamped: 0,
            device: Arc::clone(&opening.device),
            memory,
            worker,
            has_begun: false,
            is_gone: false,
            told_refused: 0,
            most,
            name: spec.target().to_string(),
            arguments: spec.device_arguments().to_vec(),
            counted: Counted::default(),
        };
        port.begin();
        Ok(port)
    }

    /// Prepares the data path once the device is available; returns true if packets can be sent and received.
    #[inline(always)]
    fn is_ready(&mut self) -> bool {
        self.has_begun || self.begin()
    }

    #[cold]
    fn begin(&mut self) -> bool {
        if let Some(device) = self.device.get() {
            self.path.port = device.port;
            (self.path.stamp_offset, self.path.stamp_flag) = device.stamp;
            self.has_begun = true;
        }
        self.has_begun
    }

    /// Releases the device. The device is closed, and can be removed from the machine, when the last of its workers has
    /// released it. Packets received from it stay valid, because their memory does not belong to the device.
    #[cold]
    fn let_go(&mut self) {
        // Reads the device's loss counters for the last time.
        self.counters();
        self.has_begun = false;
        self.is_gone = true;
        self.device = Arc::default();
    }
}

impl Port for DpdkPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        if !self.is_ready() {
            return 0;
        }
        let ledger = &self.memory.ledger;
        if ledger.has_returned() {
            self.memory.give_back();
        }
        let room = batch.room().min(self.most - ledger.outstanding());
        self.stamped = 0;
        if room == 0 {
            return 0;
        }
        // SAFETY: the path belongs to a started device, and its queues are used only by this thread; the batch has the
        // space. The shim writes packets that are in mbufs; each packet owns its mbuf until its slot is returned, and
        // is counted out below. The ledger exists as long as these packets, and keeps the memory.
        let n = unsafe {
            batch.append_with(|to| {
                usize::from((self.shim.receive)(&raw mut *self.path, to, room as u16))
            })
        };
        ledger.count_out(n as u32);
        self.stamped = n;
        n
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if !self.is_ready() {
            return 0;
        }
        let ledger = &self.memory.ledger;
        let packets = batch.packets();
        let mut own = 0;
        // SAFETY: as in `rx`; packets of the ledger are mbufs that only these packets own, and the other packets are
        // only read.
        let taken = usize::from(unsafe {
            let len = packets.len() as u16;
            (self.shim.transmit)(&raw mut *self.path, packets.as_ptr(), len, &raw mut own)
        });
        if usize::from(own) == taken {
            batch.take_front(taken, |packet| {
                packet.into_slot();
            });
        } else {
            batch.take_front(taken, |packet| {
                if ledger.owns(&packet) {
                    packet.into_slot();
                }
            });
        }
        ledger.hand_over(u32::from(own));
        taken
    }

    fn link(&mut self) -> Link {
        if self.device.get().is_some_and(Device::is_leaving) {
            self.let_go();
        }
        match self.device.get() {
            Some(device) if device.link_is_up() => Link::Up,
            Some(_) => Link::Down(format!(
                "no link on {}: its other end is not up yet",
                self.name
            )),
            None if self.is_gone => Link::Down(format!(
                "{} was removed from this machine: start again once it is replaced",
                self.name
            )),
            None => Link::Down("the other workers have not joined yet".to_string()),
        }
    }

    fn counters(&mut self) -> PortCounters {
        let counts = self.path.counts;
        let mut losses = self.counted.sum;
        if let Some(device) = self.device.get() {
            let more = counts.tx_refused - self.told_refused;
            let refused = device.refused.fetch_add(more, Ordering::Relaxed) + more;
            self.told_refused = counts.tx_refused;
            // The device counts losses over all of its queues.
            if self.worker == 0 {
                if let Some(now) = device.losses() {
                    losses = self.counted.update(now);
                }
                if COUNT_REFUSED.contains(&device.driver.as_str()) {
                    losses.tx_errors = losses.tx_errors.saturating_sub(refused);
                }
            }
        }
        PortCounters {
            rx_packets: counts.rx_packets,
            rx_bytes: counts.rx_bytes,
            // A packet that a device accepted and then lost was not sent.
            tx_packets: counts.tx_packets.saturating_sub(losses.tx_errors),
            tx_bytes: counts.tx_bytes,
            rx_overrun: losses.missed + losses.no_mbuf,
            rx_malformed: losses.rx_errors,
            rx_too_long: counts.rx_too_long,
            tx_too_long: counts.tx_too_long,
            tx_failed: losses.tx_errors,
            ..PortCounters::default()
        }
    }

    fn arrival_stamps(&self) -> &[u64] {
        self.stamps.get(..self.stamped).unwrap_or_default()
    }

    fn stamp_clock(&self) -> Option<StampClock> {
        let device = self.device.get()?;
        (!self.stamps.is_empty()).then(|| clock_of(&device.driver, &self.arguments))
    }

    fn details(&self) -> String {
        let Some(Device {
            driver,
            rx_ring,
            tx_ring,
            ..
        }) = self.device.get()
        else {
            return String::new();
        };
        let pages = if self.memory.pool.environment.on_huge_pages {
            "huge pages"
        } else {
            "ordinary pages"
        };
        format!(
            "driver {driver} of {}, {rx_ring} receive and {tx_ring} transmit descriptors, packet memory on {pages}",
            self.shim.version()
        )
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        // This thread can still return mbufs to the pool one by one; the mbufs of packets that are dropped later are
        // freed with the pool.
        self.memory.give_back();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_queues_of_an_rss_device_are_polled_round_robin() {
        let spec = PortSpec::parse("dpdk:net_null100,rss=3,copy=0").unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        let opening = Opening::new(&spec, 1).unwrap();
        let mut port = DpdkPort::open(&opening, 0, &mut resources).unwrap();
        let mut batch = Batch::new();
        for next in [1, 2, 0, 1] {
            assert_eq!(port.rx(&mut batch), BATCH_CAPACITY);
            assert_eq!(port.path.next_queue, next);
            assert_eq!(port.tx(&mut batch), BATCH_CAPACITY);
        }
    }

    #[test]
    fn every_worker_has_its_own_queue_until_the_device_closes() {
        let spec = PortSpec::parse("dpdk:net_null101,copy=0").unwrap();
        let parts = spec.parts(3).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (go, gone) = (std::sync::Barrier::new(3), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for (number, part) in parts.into_iter().enumerate() {
                let (tell, go, gone, spec) = (tell.clone(), &go, &gone, &spec);
                scope.spawn(move || {
                    let mut resources = Resources::for_ports(std::slice::from_ref(spec)).unwrap();
                    let mut port = part(&mut resources).unwrap();
                    let mut batch = Batch::new();
                    // Until the last worker has opened its port, no packets are received or sent.
                    assert_eq!(port.rx(&mut batch) > 0, number == 2);
                    assert_eq!(port.link().is_up(), number == 2);
                    tell.send(()).unwrap();
                    go.wait();
                    for _ in 0..1000 {
                        batch.clear();
                        assert_eq!(port.rx(&mut batch), BATCH_CAPACITY);
                        assert_eq!(port.tx(&mut batch), BATCH_CAPACITY);
                    }
                    let sent = port.counters().tx_packets;
                    // The ports close in any order.
                    std::thread::sleep(std::time::Duration::from_millis(10 * (3 - number as u64)));
                    drop(port);
                    gone.lock().unwrap().push(sent);
                });
                // The ports open one after the other.
                told.recv().unwrap();
            }
        });
        assert_eq!(gone.into_inner().unwrap(), [64_000; 3]);
        // The device is closed too, so its name can be used again.
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        assert!(spec.open(&mut resources).unwrap().link().is_up());
    }

    #[test]
    fn options_that_conflict_with_several_workers_are_refused() {
        for (text, part) in [
            (
                "dpdk:net_null102,rss=2",
                "each worker has a queue of its own",
            ),
            ("dpdk:net_null102,rate=100", "it is of one queue"),
        ] {
            let spec = PortSpec::parse(text).unwrap();
            let message = spec.parts(2).err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn only_live_captures_have_timestamps_of_a_known_clock() {
        let kernel = StampClock::Realtime { unit_ns: 1000 };
        for (driver, argument, clock) in [
            ("net_pcap", "iface=eth0", kernel),
            ("net_pcap", "rx_iface=eth0", kernel),
            ("net_pcap", "rx_pcap=a.pcap", StampClock::Unknown),
            ("net_ring", "iface=eth0", StampClock::Unknown),
        ] {
            assert_eq!(clock_of(driver, &[argument.to_string()]), clock);
        }
    }

    #[test]
    fn counters_continue_after_a_device_restarts() {
        let missed = |missed| Losses {
            missed,
            ..Losses::default()
        };
        let mut counted = Counted::default();
        assert_eq!(counted.update(missed(5)).missed, 5);
        assert_eq!(counted.update(missed(7)).missed, 7);
        assert_eq!(counted.update(missed(2)).missed, 9);
    }
}
