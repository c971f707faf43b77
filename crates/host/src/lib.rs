//! The machine under us: facts, core choice, pinning, noise, namespaces, devices under test.
//!
//! Everything here is set-up and reading; nothing is on the path of a packet. Linux only.

pub mod affinity;
mod awake;
pub mod baseline;
mod command;
mod cpu_list;
pub mod cpu_share;
pub mod energy;
pub mod machine;
pub mod netns;
pub mod noise;
pub mod permissions;
pub mod private;
pub mod process;
pub mod signals;
pub mod testpmd;
pub mod topology;
pub mod tune;
pub mod veth;
pub mod virtual_switch;
pub mod wiring;

pub use affinity::{AffinityError, pin_current_thread, pin_process_group, set_realtime};
pub use awake::Awake;
pub use baseline::{Baseline, BaselineError, Running, baselines};
pub use command::{CommandError, is_installed};
pub use cpu_share::{CpuReading, CpuShare, CpuShares};
pub use energy::{EnergyUse, Meter, MeterError};
pub use machine::{Fact, Machine};
pub use netns::{Steering, Testbed, TestbedBuilder, TestbedError};
pub use noise::{NoiseSource, Snapshot, SystemActivity, noise_sources};
pub use permissions::{Capability, Missing};
pub use process::{DeviceError, DeviceProcess};
pub use signals::{stop_file, stop_flag};
pub use topology::{CorePlan, Topology, allowed_cpus, choose_cores, cores_for};
pub use veth::{Namespace, Veth, WireEnd};
pub use virtual_switch::{SwitchPort, VirtualSwitch};
pub use wiring::Wiring;
