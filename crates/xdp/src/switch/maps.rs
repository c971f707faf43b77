//! The maps that the switch's programs of all interfaces share; one of them has the counters of frames by outcome.

use super::{MOST_PORTS, MOST_RULES, SwitchCounts, SwitchRule, Verdict, WORDS};
use crate::forward::HeaderChange;
use crate::functions::DryRun;
use crate::program::{as_io, load_adjusted, refused};
use crate::upcall::UpcallPrograms;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::io;
use std::os::fd::AsFd;
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_switch.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_switch.bpf.o"));

const WHAT: &str = "a switch in the kernel";
/// Size of `struct rule` in the XDP program.
const RULE_BYTES: usize = 2 * 8 * WORDS + 3 * 4 + 2 * 6;
/// Number of counts in `struct outcomes` of the XDP program.
const OUTCOMES: usize = 4;
/// Size in bytes of the ring in which frames of one interface wait for the process: space for 512 frames.
const UP_BYTES: u32 = 2 << 20;

/// The switch's maps in the kernel, which frees them when no program and no process uses them any more.
#[derive(Debug)]
pub struct KernelSwitch {
    many: usize,
    reads_headers: bool,
    ports: usize,
    rules: MapHandle,
    outcomes: MapHandle,
    /// Rings through which programs pass frames up to the process, one per port.
    up: Vec<MapHandle>,
}

impl KernelSwitch {
    /// Makes maps for `ports` ports with the given rules, in order of precedence. `reads_headers` is true if the rules
    /// match more than the port and MAC addresses.
    ///
    /// # Errors
    /// There are more ports or rules than the XDP programs support, or the machine lacks a requirement.
    pub fn new(rules: &[SwitchRule], reads_headers: bool, ports: usize) -> Result<Self, Error> {
        if ports > MOST_PORTS || rules.len() > MOST_RULES {
            let text = format!("at most {MOST_PORTS} ports and {MOST_RULES} rules");
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        let number = size_of::<u32>();
        let up = (0..ports).map(|_| make(MapType::RingBuf, "up", (0, 0), UP_BYTES));
        let of_rules = make(
            MapType::Array,
            "rules",
            (number, RULE_BYTES),
            MOST_RULES as u32,
        )?;
        for (place, rule) in (0_u32..).zip(rules) {
            let put = of_rules.update(&place.to_ne_bytes(), &bytes(rule), MapFlags::ANY);
            put.map_err(|e| refused(format!("{WHAT}: writing its rules"), as_io(e)))?;
        }
        let counts = (number, 8 * OUTCOMES);
        Ok(Self {
            many: rules.len(),
            reads_headers,
            ports,
            rules: of_rules,
            outcomes: make(MapType::PercpuArray, "outcomes", counts, 1)?,
            up: up.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the number of frames with each outcome, without frames that were passed up.
    pub fn counts(&self) -> SwitchCounts {
        let cpus = self.outcomes.lookup_percpu(&[0; 4], MapFlags::ANY);
        let mut sums = [0; OUTCOMES];
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            for (sum, count) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(count.try_into().unwrap_or_default());
            }
        }
        let [sent, stopped, missed, too_much] = sums;
        SwitchCounts {
            sent,
            stopped,
            missed,
            too_much,
        }
    }

    /// Loads the XDP program for frames that enter through a port, without attaching it to an interface.
    ///
    /// # Errors
    /// The machine lacks a requirement of the XDP program.
    pub fn dry_run(&self, from: usize) -> Result<DryRun, Error> {
        DryRun::new(self.load_for(WHAT, from)?, self.ports)
    }

    fn load_for(&self, what: &str, from: usize) -> Result<Object, Error> {
        let numbers = [from, self.ports, self.many, usize::from(self.reads_headers)];
        let constants = numbers.map(|number| (number as u32).to_ne_bytes());
        load_adjusted(what, OBJECT, constants.as_flattened(), |open| {
            for mut map in open.maps_mut() {
                let shared = match map.name().to_string_lossy().as_ref() {
                    "rules" => &self.rules,
                    "outcomes" => &self.outcomes,
                    "up" => &self.up[from],
                    _ => continue,
                };
                map.reuse_fd(shared.as_fd())?;
            }
            Ok(())
        })
    }
}

impl UpcallPrograms for KernelSwitch {
    fn load(
        &self,
        what: &str,
        _: HeaderChange,
        (from, _): (usize, usize),
    ) -> Result<Object, Error> {
        self.load_for(what, from)
    }

    fn ring(&self, from: usize) -> &MapHandle {
        &self.up[from]
    }

    fn sends(&self) -> bool {
        true
    }
}

/// Returns the bytes of `struct rule` in the XDP program.
fn bytes(rule: &SwitchRule) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RULE_BYTES);
    for words in [rule.value, rule.mask] {
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }
    let (verdict, exit, addresses) = match rule.verdict {
        Verdict::Up => (0, 0, [None, None]),
        Verdict::Send {
            port,
            destination,
            source,
        } => (1, port, [destination, source]),
        Verdict::Flood => (2, 0, [None, None]),
        Verdict::Drop => (3, 0, [None, None]),
        Verdict::Miss => (4, 0, [None, None]),
    };
    let sets = u32::from(addresses[0].is_some()) | u32::from(addresses[1].is_some()) << 1;
    for number in [verdict, exit, sets] {
        bytes.extend(u32::to_ne_bytes(number));
    }
    for address in addresses {
        bytes.extend(address.unwrap_or_default());
    }
    bytes
}

/// Makes a map with keys and values of the given sizes.
fn make(
    kind: MapType,
    name: &str,
    (key, value): (usize, usize),
    entries: u32,
) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let (key, value) = (key as u32, value as u32);
    MapHandle::create(kind, Some(name), key, value, entries, &options)
        .map_err(|e| refused(format!("{WHAT}: making the map of {name}"), as_io(e)))
}
