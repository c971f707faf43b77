//! The first program inside a virtual machine: prepares the machine, runs `taut forward`, and powers the machine off.

use super::image::{ARGUMENTS, CHAIN, DEVICES, ENVIRONMENT, MODULES, PROGRAM};
use super::machine::{CONTROL, ENDED, EVENTS};
use super::ports::USER_SPACE_DRIVER;
use rustix::mount::{MountFlags, mount};
use rustix::system::RebootCommand;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for devices to appear after their drivers have been loaded.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs as the first program of a virtual machine. It returns only if this program is not the first one.
///
/// # Errors
/// This process is not the first program of a virtual machine that [`super::Machine`] has started.
pub fn run_guest() -> io::Result<()> {
    let is_first = std::process::id() == 1;
    if is_first && Path::new(super::node::SETTINGS).exists() {
        super::node::run_guest();
        rustix::system::reboot(RebootCommand::PowerOff)?;
        return Ok(());
    }
    if !is_first || !Path::new(CHAIN).exists() {
        return Err(io::Error::other(
            "this is what runs first in a virtual machine: start one with taut chain up",
        ));
    }
    let code = forward().unwrap_or_else(|error| {
        eprintln!("taut: virtual machine: {error}");
        3
    });
    if let Ok(mut events) = line(EVENTS, OpenOptions::new().write(true)) {
        // An error is ignored: even without this line, the process that started the machine detects the machine's end.
        let _ = writeln!(events, "{ENDED}{code}");
    }
    rustix::system::reboot(RebootCommand::PowerOff)?;
    Ok(())
}

/// Runs `taut forward` to its end; returns its exit code.
fn forward() -> io::Result<i32> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_at(kind, kind, at)?;
    }
    load_modules()?;
    let control = line(CONTROL, OpenOptions::new().read(true))?;
    let events = line(EVENTS, OpenOptions::new().write(true))?;
    if fs::read_to_string("/sys/kernel/realtime").is_ok_and(|text| text.trim() == "1") {
        eprintln!("taut: virtual machine: its kernel is a real-time one (PREEMPT_RT)");
    }
    use_all_cores();
    let devices = fs::read_to_string(DEVICES)?;
    if !devices.is_empty() {
        // DPDK loads nothing from below a folder that all users may write.
        fs::set_permissions("/", PermissionsExt::from_mode(0o755))?;
    }
    for device in devices.lines() {
        give_to_dpdk(device).map_err(|e| said(device, e))?;
    }
    // Without NICs for DPDK all of them are interfaces, which appear when their driver is ready.
    let interfaces = if devices.is_empty() {
        cards()?
    } else {
        interfaces()
    };
    for interface in interfaces {
        taut_sys::interface::switch_on(&interface).map_err(|e| said(&interface, e))?;
    }
    let mut command = Command::new(PROGRAM);
    command.args(["forward", CHAIN, "--until-stdin-closes"]);
    command.args(fs::read_to_string(ARGUMENTS)?.lines());
    for variable in fs::read_to_string(ENVIRONMENT)?.lines() {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    command
        .stdin(control)
        .stdout(events)
        .stderr(Stdio::inherit());
    let status = command.status()?;
    Ok(status.code().unwrap_or(1))
}

/// Mounts a file system; one that the kernel has mounted there already is no error.
pub(super) fn mount_at(source: &str, kind: &str, at: &str) -> io::Result<()> {
    match mount(source, at, kind, MountFlags::empty(), None::<&CStr>) {
        Err(error) if error != rustix::io::Errno::BUSY => Err(said(at, error.into())),
        _ => Ok(()),
    }
}

pub(super) fn load_modules() -> io::Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(MODULES)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    for file in files {
        rustix::system::finit_module(File::open(&file)?, c"", 0)
            .map_err(|e| said(&file.display().to_string(), e.into()))?;
    }
    Ok(())
}

/// Allows this process and those that it starts to run on isolated cores too.
fn use_all_cores() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    // An error is ignored: the worker's own pinning reports it.
    let _ = sched_setaffinity(None, &all);
}

/// Gives a NIC, by its PCI address, to the driver that lets DPDK access it.
fn give_to_dpdk(address: &str) -> io::Result<()> {
    let device = Path::new("/sys/bus/pci/devices").join(address);
    fs::write(device.join("driver_override"), USER_SPACE_DRIVER)?;
    if device.join("driver").exists() {
        fs::write(device.join("driver/unbind"), address)?;
    }
    fs::write("/sys/bus/pci/drivers_probe", address)
}

/// Returns the names of all interfaces except the loopback.
fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name != "lo").collect()
}

/// Returns the names of all interfaces except the loopback. Waits until at least one exists.
fn cards() -> io::Result<Vec<String>> {
    wait_for("a network card", || {
        Some(interfaces()).filter(|cards| !cards.is_empty())
    })
}

/// Opens the serial line called `name`.
pub(super) fn line(name: &str, options: &OpenOptions) -> io::Result<File> {
    let folder = Path::new("/sys/class/virtio-ports");
    let device = wait_for(name, || {
        fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
            let its_name = fs::read_to_string(entry.path().join("name")).ok()?;
            let device = Path::new("/dev").join(entry.file_name());
            (its_name.trim() == name && device.exists()).then_some(device)
        })
    })?;
    options.open(device)
}

pub(super) fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> io::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::other(format!("{what} did not appear")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn said(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
