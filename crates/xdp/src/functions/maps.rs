//! The maps of functions in the kernel: those shared by all directions, and those of one direction.

use super::constants::{CLASS_RULE_BYTES, HOP_BYTES, Program, RULE_BYTES};
use super::nat::{self, Shared};
use super::{DryRun, KernelClassifier, KernelNat, KernelStage, MOST_STAGES};
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
    classifier: Option<KernelClassifier>,
    outcomes: MapHandle,
    /// The number of frames of each class of the classifier, shared by all directions.
    classes: MapHandle,
    /// Maps of the NAT function, which the first loaded program creates.
    nat: OnceCell<Arc<Shared>>,
}

impl KernelFunctions {
    /// Makes the functions of a chain; `directions` has the functions for each egress port. With a classifier a frame
    /// passes only the functions of its class.
    ///
    /// # Errors
    /// There are more than [`MOST_STAGES`] functions, or the machine lacks a requirement.
    pub fn new(
        directions: Vec<Vec<KernelStage>>,
        classifier: Option<KernelClassifier>,
    ) -> Result<Self, Error> {
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
        let outcomes = counts("outcomes", OUTCOMES_BYTES, MOST_STAGES)?;
        let number = classifier.as_ref().map_or(1, KernelClassifier::classes);
        let classes = counts("classes", size_of::<u64>() as u32, number)?;
        Ok(Self {
            directions,
            classifier,
            outcomes,
            classes,
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
        let program = Program::of(stages, self.classifier.as_ref(), to);
        let nat: Option<&KernelNat> = stages.iter().find_map(KernelStage::nat);
        let entries = |bytes: &[u8], each: usize| (bytes.len() / each).max(1) as u32;
        let object = load_adjusted(what, OBJECT, &program.constants, |open| {
            for mut map in open.maps_mut() {
                match map.name().to_string_lossy().as_ref() {
                    "outcomes" => map.reuse_fd(self.outcomes.as_fd())?,
                    "classes" => map.reuse_fd(self.classes.as_fd())?,
                    "class_rules" => {
                        map.set_max_entries(entries(&program.class_rules, CLASS_RULE_BYTES))?;
                    }
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
            .and_then(|()| {
                fill(
                    &object,
                    "class_rules",
                    &program.class_rules,
                    CLASS_RULE_BYTES,
                )
            })
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
        sums(&self.outcomes, number, OUTCOMES_BYTES as usize / 8)
    }

    /// Returns the number of frames of each class, summed over all directions; nothing without a classifier.
    pub fn classes(&self) -> Vec<u64> {
        let number = self
            .classifier
            .as_ref()
            .map_or(0, KernelClassifier::classes);
        (0..number)
            .flat_map(|class| sums(&self.classes, class, 1))
            .collect()
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

/// Makes a map of counters with a copy per CPU, `each` bytes per entry.
fn counts(name: &str, each: u32, entries: usize) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let kind = MapType::PercpuArray;
    MapHandle::create(kind, Some(name), 4, each, entries as u32, &options)
        .map_err(|e| refused(format!("{WHAT}: making the map of {name}"), as_io(e)))
}

/// Returns the `count` counters of an entry, summed over all CPUs.
fn sums(map: &MapHandle, entry: usize, count: usize) -> Vec<u64> {
    let cpus = map.lookup_percpu(&(entry as u32).to_ne_bytes(), MapFlags::ANY);
    let mut sums = vec![0; count];
    for cpu in cpus.ok().flatten().unwrap_or_default() {
        for (sum, count) in sums.iter_mut().zip(cpu.chunks_exact(8)) {
            *sum += u64::from_ne_bytes(count.try_into().unwrap_or_default());
        }
    }
    sums
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
