//! The first program of an experiment's machine: names the NICs, changes to the root of the disk, and runs commands.

use super::relay::{Frame, MOST_BYTES, Order};
use super::{AGENT, MANAGEMENT, SETTINGS, Settings, UP};
use crate::vm::guest::{line, load_modules, mount_at, said, wait_for};
use crate::vm::image::PROGRAM;
use crate::vm::machine::EVENTS;
use rustix::mount::{MountFlags, mount};
use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Folder that the disk is mounted at before it becomes the root.
const DISK: &str = "/disk";
/// Path of this program below the root of the disk, in memory.
const PROGRAM_ON_DISK: &str = "/run/taut/taut";
/// File systems that a disk may have.
const FILE_SYSTEMS: [&str; 5] = ["ext4", "xfs", "btrfs", "squashfs", "erofs"];
/// Search path of commands.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum length of the line that a command begins with.
const MOST_ORDER_BYTES: u64 = 8 << 20;

/// Runs the machine until the emulator ends.
pub(in crate::vm) fn run() {
    if let Err(error) = set_up().and_then(|(settings, program)| serve(&settings, program)) {
        eprintln!("taut: virtual machine: {error}");
    }
}

/// Prepares the machine. Returns its settings, and the path of this program in its root.
fn set_up() -> io::Result<(Settings, &'static Path)> {
    mount_base("")?;
    load_modules()?;
    let settings: Settings = serde_json::from_slice(&fs::read(SETTINGS)?)?;
    rustix::system::sethostname(settings.name.as_bytes())?;
    for (mac, name) in &settings.interfaces {
        let found = wait_for(&format!("the card {name}"), || interface_with(mac))?;
        ip(&["link", "set", &found, "name", name])?;
        ip(&["link", "set", name, "up"])?;
    }
    ip(&["link", "set", "lo", "up"])?;
    let [a, b, c, d] = AGENT.0;
    let address = format!("{a}.{b}.{c}.{d}/24");
    ip(&["address", "add", &address, "dev", MANAGEMENT])?;
    if !settings.has_disk {
        return Ok((settings, Path::new(PROGRAM)));
    }
    mount_disk()?;
    mount_base(DISK)?;
    let program = format!("{DISK}{PROGRAM_ON_DISK}");
    fs::create_dir_all(Path::new(&program).parent().unwrap_or(Path::new("/")))?;
    fs::copy(PROGRAM, &program).map_err(|e| said(&program, e))?;
    rustix::process::chroot(DISK)?;
    rustix::process::chdir("/")?;
    Ok((settings, Path::new(PROGRAM_ON_DISK)))
}

/// Mounts the file systems that programs expect, below `root`.
fn mount_base(root: &str) -> io::Result<()> {
    for (kind, at) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
    ] {
        mount_at(kind, kind, &format!("{root}{at}"))?;
    }
    for (kind, at) in [("devpts", "/dev/pts"), ("tmpfs", "/dev/shm")] {
        let at = format!("{root}{at}");
        fs::create_dir_all(&at)?;
        // A kernel without one of these still runs most programs.
        let _ = mount_at(kind, kind, &at);
    }
    Ok(())
}

/// Mounts the partition with a root file system, or the whole disk if that has one.
fn mount_disk() -> io::Result<()> {
    fs::create_dir_all(DISK)?;
    let disks = wait_for("the disk", || {
        let names = fs::read_dir("/sys/class/block").ok()?.flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<String> = names.filter(|name| name.starts_with("vd")).collect();
        found.sort();
        (!found.is_empty()).then_some(found)
    })?;
    for name in &disks {
        let device = format!("/dev/{name}");
        for kind in FILE_SYSTEMS {
            let is_mounted = [MountFlags::empty(), MountFlags::RDONLY]
                .iter()
                .any(|flags| mount(&device, DISK, kind, *flags, None::<&CStr>).is_ok());
            if !is_mounted {
                continue;
            }
            let is_root = ["bin/sh", "usr/bin/sh"]
                .iter()
                .any(|shell| Path::new(DISK).join(shell).symlink_metadata().is_ok());
            if is_root {
                return Ok(());
            }
            rustix::mount::unmount(DISK, rustix::mount::UnmountFlags::empty())?;
        }
    }
    Err(io::Error::other(format!(
        "the image has no root file system: none of {} is {} with /bin/sh",
        disks.join(", "),
        FILE_SYSTEMS.join(", ")
    )))
}

/// Returns the name of the interface with this MAC address.
fn interface_with(mac: &str) -> Option<String> {
    let entries = fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| {
        let address = Path::new("/sys/class/net").join(name).join("address");
        fs::read_to_string(address).is_ok_and(|address| address.trim() == mac)
    })
}

fn ip(words: &[&str]) -> io::Result<()> {
    let done = Command::new("/bin/ip").args(words).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "ip {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}

/// Runs a command for each connection.
fn serve(settings: &Settings, program: &Path) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::from(AGENT.0), AGENT.1))?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let mut events = line(EVENTS, OpenOptions::new().write(true))?;
    writeln!(events, "{UP}{}", boot_id.trim())?;
    for stream in listener.incoming() {
        let (token, program) = (settings.token.clone(), program.to_owned());
        let stream = stream?;
        std::thread::spawn(move || {
            // A connection that breaks ends its command; the host sees the break itself.
            let _ = answer(stream, &token, program);
        });
    }
    Ok(())
}

/// Runs the command of a connection.
fn answer(stream: TcpStream, token: &str, program: PathBuf) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream.try_clone()?);
    let mut first = Vec::new();
    (&mut from)
        .take(MOST_ORDER_BYTES)
        .read_until(b'\n', &mut first)?;
    let order: Order = serde_json::from_slice(&first)?;
    if order.token != token {
        return Ok(());
    }
    let to = Mutex::new(stream);
    let send = |frame: &Frame| frame.write(&mut *to.lock().unwrap_or_else(PoisonError::into_inner));
    let started = Command::new(program)
        .args(&order.words)
        .env_clear()
        .env("PATH", SEARCH)
        .env("HOME", "/root")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(e) => {
            send(&Frame::Err(
                format!("taut: cannot start: {e}\n").into_bytes(),
            ))?;
            return send(&Frame::Code(1));
        }
    };
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::spawn(move || {
        if let Some(mut input) = input {
            // A command may end without having read all of its input.
            let _ = pass_input(&mut from, &mut input);
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(output, |bytes| send(&Frame::Out(bytes))));
        scope.spawn(|| pass_on(errors, |bytes| send(&Frame::Err(bytes))));
    });
    let code = child.wait()?.code().unwrap_or(1);
    send(&Frame::Code(u8::try_from(code).unwrap_or(1)))
}

/// Copies the input of a command. `io::copy` would splice, and Linux 6.1 locks a pipe while it waits for the bytes to
/// splice into it, so that the command could not exit.
fn pass_input(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; MOST_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            length => to.write_all(&piece[..length])?,
        }
    }
}

/// Sends a command's output piece by piece with `send`. After a failure the remaining output is read and dropped, so
/// that the command does not block.
fn pass_on(from: Option<impl Read>, send: impl Fn(Vec<u8>) -> io::Result<()>) {
    let Some(mut from) = from else { return };
    let mut piece = vec![0; MOST_BYTES];
    let mut is_heard = true;
    while let Ok(length @ 1..) = from.read(&mut piece) {
        is_heard = is_heard && send(piece[..length].to_vec()).is_ok();
    }
}
