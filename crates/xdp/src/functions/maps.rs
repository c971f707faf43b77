//! The maps of functions in the kernel: those shared by all directions, and those of one direction.

use super::constants::{HOP_BYTES, Program, RULE_BYTES};
use super::nat::{self, Shared};
use super::{DryRun, KernelNat, KernelStage, MOST_STAGES};
use crate::program::{as_io, load_adjusted, map, refused};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, OpenObject};
use std::cell::OnceCell;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use taut_sys::Error;

/// The object file that build.rs compiles from `ebpf/xdp_functions.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp_functions.bpf.o"));

const WHAT: &str = "functions in the kernel";
/// Size of `struct outcomes` in the XDP program: a count for each outcome.
const OUTCOMES_BYTES: u32 = 16 * 8;

/// The functions of a chain in the kernel, with their maps. The kernel frees the maps when no program and no process
/// uses them any more.
#[derive(Debug)]
pub struct KernelFunctions {
    /// The functions for each egress port, in order.
    directions: Vec<Vec<KernelStage>>,
    outcomes: MapHandle,
    /// Maps of the NAT function, which the first loaded program creates.
    nat: OnceCell<Arc<Shared>>,
}

impl KernelFunctions {
    /// Makes the functions of a chain; `directions` has the functions for each egress port.
    ///
    /// # Errors
    /// There are more than [`MOST_STAGES`] functions, or the machine lacks a requirement.
    pub fn new(directions: Vec<Vec<KernelStage>>) -> Result<Self, Error> {
        let most = directions.iter().map(Vec::len).max().unwrap_or(0);
        let numbers = directions.iter().flatten().map(|stage| stage.number);
        if most > MOST_STAGES || numbers.max().is_some_and(|n| n >= MOST_STAGES) {
            let text = format!("at most {MOST_STAGES} functions: run the chain in user space");
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        if directions
            .iter()
            .any(|it| it.iter().filter_map(KernelStage::nat).count() > 1)
        {
            let text = "at most one nat: run the chain in user space";
            return Err(Error::system(WHAT, io::Error::other(text)));
        }
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let outcomes = MapHandle::create(
            MapType::PercpuArray,
            Some("outcomes"),
            4,
            OUTCOMES_BYTES,
            MOST_STAGES as u32,
            &options,
        )
        .map_err(|e| refused(format!("{WHAT}: making the map of outcomes"), as_io(e)))?;
        Ok(Self {
            directions,
            outcomes,
            nat: OnceCell::new(),
        })
    }

    /// Takes over the state of functions in `before`: `kept[i]` is the index in `before` of function `i`, if that
    /// function continues. Such functions keep their seeds, and NAT its mappings. Call this method before the first
    /// program is loaded.
    pub fn keep(&mut self, before: &Self, kept: &[Option<usize>]) {
        for (stages, old) in self.directions.iter_mut().zip(&before.directions) {
            for stage in stages {
                let number = kept.get(stage.number).copied().flatten();
                let Some(same) = old.iter().find(|old| Some(old.number) == number) else {
                    continue;
                };
                stage.function = same.function.clone();
                if let (Some(_), Some(known)) = (stage.nat(), before.nat.get()) {
                    // Setting fails if the other direction has already set the same maps.
                    let _ = self.nat.set(Arc::clone(known));
                }
            }
        }
    }

    /// Loads the XDP program for the frames that leave through the port with index `to`, and connects the XDP program
    /// to the chain's maps. `adjust` may change the object before the object is loaded.
    pub(crate) fn load(
        &self,
        what: &str,
        to: usize,
        adjust: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Object, Error> {
        let stages = self.directions.get(to).map_or(&[][..], Vec::as_slice);
        let program = Program::of(stages);
        let nat: Option<&KernelNat> = stages.iter().find_map(KernelStage::nat);
        let entries = |bytes: &[u8], each: usize| (bytes.len() / each).max(1) as u32;
        let object = load_adjusted(what, OBJECT, &program.constants, |open| {
            for mut map in open.maps_mut() {
                match map.name().to_string_lossy().as_ref() {
                    "outcomes" => map.reuse_fd(self.outcomes.as_fd())?,
                    "rules" => map.set_max_entries(entries(&program.rules, RULE_BYTES))?,
                    "buckets" => map.set_max_entries(entries(&program.buckets, HOP_BYTES))?,
                    _ => {
                        if let Some(nat) = nat {
                            nat::adjust(&mut map, nat, self.nat.get().map(Arc::as_ref))?;
                        }
                    }
                }
            }
            adjust(open)
        })?;
        fill(&object, "rules", &program.rules, RULE_BYTES)
            .and_then(|()| fill(&object, "buckets", &program.buckets, HOP_BYTES))
            .map_err(|e| Error::system(what, e))?;
        if let (Some(nat), None) = (nat, self.nat.get()) {
            let shared = Shared::of(&object, nat).map_err(|e| Error::system(what, e))?;
            let _ = self.nat.set(Arc::new(shared));
        }
        Ok(object)
    }

    /// Returns the number of packets with each outcome of the function at index `number` in the chain, summed over both
    /// directions.
    pub fn outcomes(&self, number: usize) -> Vec<u64> {
        let key = (number as u32).to_ne_bytes();
        let cpus = self.outcomes.lookup_percpu(&key, MapFlags::ANY);
        let mut sums = vec![0; OUTCOMES_BYTES as usize / 8];
        for cpu in cpus.ok().flatten().unwrap_or_default() {
            for (sum, count) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(count.try_into().unwrap_or_default());
            }
        }
        sums
    }

    /// Loads the XDP program for the frames that leave through the port with index `to`, without attaching it to an
    /// interface. Tests and measurements of the XDP program's cost use this.
    ///
    /// # Errors
    /// The machine lacks a requirement of the XDP program.
    pub fn dry_run(&self, to: usize) -> Result<DryRun, Error> {
        DryRun::new(self.load(WHAT, to, |_| Ok(()))?, 1)
    }
}

/// Fills an array map from its first entry; each entry has `each` bytes.
fn fill(object: &Object, name: &str, bytes: &[u8], each: usize) -> io::Result<()> {
    let count = bytes.len() / each;
    if count == 0 {
        return Ok(());
    }
    let keys: Vec<u8> = (0..count as u32).flat_map(u32::to_ne_bytes).collect();
    map(object, name)?
        .update_batch(&keys, bytes, count as u32, MapFlags::ANY, MapFlags::ANY)
        .map_err(as_io)
}
