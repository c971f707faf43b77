//! The port: a device, its data path, and the memory its packets lie in.

use super::Settings;
use super::device::{Device, Losses};
use super::environment::environment;
use super::library::{Shim, shim};
use super::memory::Memory;
use super::path::{Counts, Path};
use crate::{
    BATCH_CAPACITY, Batch, Link, Port, PortCounters, PortError, PortSpec, Relayed, Resources,
    StampClock,
};
use std::any::Any;

/// Drivers whose error counter counts again what they refused and the caller still has.
const COUNT_REFUSED: [&str; 2] = ["net_af_xdp", "net_tap"];

struct DpdkPort {
    shim: &'static Shim,
    path: Box<Path>,
    /// Receive stamps of the last call; none unless asked for.
    stamps: Box<[u64]>,
    stamped: usize,
    stamp_clock: Option<StampClock>,
    // Before the memory: a device holds mbufs until it is closed.
    device: Device,
    memory: Memory,
    /// Packets that may be out at a time: the ledger has no room for more.
    most: usize,
    name: String,
    counted: Counted,
}

/// The device's own counters, added up over their restarts (`net_memif` begins again when a link breaks).
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

/// Loads DPDK but does not start it, which would take huge pages and a while.
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
    Ok(Box::new(DpdkPort::open(spec, resources)?))
}

/// Whose clock a device stamps by.
fn clock_of(driver: &str, arguments: &[String]) -> StampClock {
    let on_interface = |argument: &String| {
        ["iface=", "rx_iface=", "rx_iface_in="]
            .iter()
            .any(|key| argument.starts_with(key))
    };
    // libpcap hands on the kernel's stamps, in microseconds; those of a file are of any time.
    if driver == "net_pcap" && arguments.iter().any(on_interface) {
        StampClock::Realtime { unit_ns: 1000 }
    } else {
        StampClock::Unknown
    }
}

impl DpdkPort {
    fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Self, PortError> {
        let settings = Settings::of(spec)?;
        let environment = environment()?;
        let memory = resources.dpdk().memory()?;
        let device = Device::attach(spec, settings, &memory.pool)?;
        let mut stamps: Box<[u64]> = if settings.stamps {
            Box::new([0; BATCH_CAPACITY])
        } else {
            Box::default()
        };
        let path = Box::new(Path {
            port: device.port,
            queues: settings.queues,
            next_queue: 0,
            mempool: memory.pool.pool,
            base: environment.base,
            ledger: memory.ledger.raw().as_ptr(),
            stamps: if settings.stamps {
                stamps.as_mut_ptr()
            } else {
                std::ptr::null_mut()
            },
            stamp_flag: device.stamp.1,
            stamp_offset: device.stamp.0,
            counts: Counts::default(),
        });
        let most = memory.pool.mbufs as usize;
        let stamp_clock = settings
            .stamps
            .then(|| clock_of(&device.driver, spec.device_arguments()));
        Ok(Self {
            shim: environment.shim,
            path,
            stamps,
            stamped: 0,
            stamp_clock,
            device,
            memory,
            most,
            name: spec.target().to_string(),
            counted: Counted::default(),
        })
    }
}

impl Port for DpdkPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let ledger = &self.memory.ledger;
        if ledger.has_returned() {
            self.memory.give_back();
        }
        let room = batch.room().min(self.most - ledger.outstanding());
        self.stamped = 0;
        if room == 0 {
            return 0;
        }
        // SAFETY: the path is that of a started device of this thread; the batch has the room; the
        // shim writes packets that lie in mbufs, which are theirs until their slot is returned, and
        // which are counted out below; the ledger lives as long as they do, and keeps the memory.
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
        let ledger = &self.memory.ledger;
        let packets = batch.packets();
        let mut own = 0;
        // SAFETY: as in `rx`; packets of the ledger are mbufs that nobody else has, and the others are
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

    #[inline]
    fn relay(&mut self, out: &mut dyn Port) -> Option<Relayed> {
        let out = out.as_any()?.downcast_mut::<Self>()?;
        let mut refused = 0;
        // SAFETY: two paths of started devices of this thread; mbufs go from the one to the other and
        // are never seen here.
        let received =
            unsafe { (self.shim.relay)(&raw mut *self.path, &raw mut *out.path, &raw mut refused) };
        Some(Relayed {
            received: usize::from(received),
            refused: usize::from(refused),
        })
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn link(&mut self) -> Link {
        if self.device.link_is_up() {
            Link::Up
        } else {
            Link::Down(format!(
                "no link on {}: nobody at its other end yet",
                self.name
            ))
        }
    }

    fn counters(&mut self) -> PortCounters {
        let counts = self.path.counts;
        let mut losses = match self.device.losses() {
            Some(now) => self.counted.update(now),
            None => self.counted.sum,
        };
        if COUNT_REFUSED.contains(&self.device.driver.as_str()) {
            losses.tx_errors = losses.tx_errors.saturating_sub(counts.tx_refused);
        }
        PortCounters {
            rx_packets: counts.rx_packets,
            rx_bytes: counts.rx_bytes,
            // What a device took and then lost was not handed over.
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
        self.stamp_clock
    }

    fn details(&self) -> String {
        let Device {
            driver,
            rx_ring,
            tx_ring,
            ..
        } = &self.device;
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
        // While there is a thread that may: packets dropped from now on go with the pool.
        self.memory.give_back();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_queues_of_a_device_that_spreads_are_received_from_in_turn() {
        let spec = PortSpec::parse("dpdk:net_null100,rss=3,copy=0").unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        let mut port = DpdkPort::open(&spec, &mut resources).unwrap();
        let mut batch = Batch::new();
        for next in [1, 2, 0, 1] {
            assert_eq!(port.rx(&mut batch), BATCH_CAPACITY);
            assert_eq!(port.path.next_queue, next);
            assert_eq!(port.tx(&mut batch), BATCH_CAPACITY);
        }
    }

    #[test]
    fn only_what_is_captured_now_is_stamped_by_a_known_clock() {
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
    fn counters_of_a_device_that_starts_again_go_on() {
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
