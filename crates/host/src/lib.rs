//! The machine: its facts, choice of CPUs, pinning, noise, namespaces, and devices under test.
//!
//! This crate sets up machines and reads their state; no packet passes through it. Linux only.
//!
//! The types to know:
//!
//! - [`Testbed`]: two network namespaces and the veth pairs between them, the generator in one, the device in the
//!   other. It is removed when dropped.
//! - [`DeviceProcess`]: a device under test as a child process that is pinned to a CPU. Dropping the value stops the
//!   device.
//! - [`Baseline`]: a forwarder of another project, as data: its connection, its requirements, and the commands that
//!   start it.
//!
//! A comparison gets two CPUs from [`choose_cores`], builds a [`Testbed`], and starts the device in it as a
//! [`DeviceProcess`] or [`Running`] baseline. It takes a [`Snapshot`] before and after a trial: their difference is the
//! machine's activity during the trial. [`Wiring`] creates the namespaces for the nodes of an experiment; [`tune`]
//! reads and changes the settings of the machine, and records its changes.
//!
//! Begin with `net/testbed.rs` and `process.rs`; then one file of `baseline/`, such as `linux_routing.rs`.

#![forbid(unsafe_code)]

pub mod affinity;
mod awake;
pub mod baseline;
mod command;
mod cpu_list;
pub mod cpu_share;
pub mod doctor;
pub mod energy;
pub mod machine;
pub mod net;
pub mod noise;
mod other_tasks;
pub mod permissions;
pub mod private;
pub mod process;
pub mod signals;
pub mod ssh;
pub mod testpmd;
pub mod topology;
pub mod tune;

pub use affinity::{AffinityError, pin_current_thread, pin_process_group, set_realtime};
pub use awake::Awake;
pub use baseline::{Baseline, BaselineError, Running, baselines};
pub use command::{CommandError, is_installed};
pub use cpu_share::{CpuReading, CpuShare, CpuShares};
pub use energy::{EnergyUse, Meter, MeterError};
pub use machine::{Fact, Machine};
pub use net::{
    Namespace, Steering, SwitchPort, Testbed, TestbedBuilder, TestbedError, Veth, VirtualSwitch,
    WireEnd, Wiring, testbed,
};
pub use noise::{NoiseSource, Snapshot, SystemActivity, most_taken, noise_sources};
pub use other_tasks::TaskTime;
pub use permissions::{Capability, Missing};
pub use process::{DeviceError, DeviceProcess};
pub use signals::{stop_file, stop_flag};
pub use ssh::SshAddress;
pub use topology::{CorePlan, Topology, allowed_cpus, choose_cores, cores_for};
