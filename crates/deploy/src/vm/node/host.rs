//! Starts the emulator of an experiment's machine, and keeps it until the experiment ends.

use super::{AGENT, Card, MANAGEMENT, MANAGEMENT_MAC, NodeMachine, SETTINGS, Settings, UP};
use crate::DeployError;
use crate::vm::archive::Archive;
use crate::vm::image::{MODULES, PROGRAM};
use crate::vm::kernel::{Kernel, WANTED};
use crate::vm::libraries::{libraries_of, read};
use crate::vm::machine::{
    Accelerator, Machine, can_make_machines, common_arguments, in_memory, kernel_line,
};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_host::Missing;

/// Programs of this host that a machine without a disk has, if they are installed here.
const PROGRAMS: &str = "sh ip awk bridge cat chmod cp cut date dd devlink dmesg echo env ethtool expr false find grep \
    head hostname id kill ln ls mkdir mknod mount mv nproc nstat ping printf ps pwd readlink rm sed seq sleep sort ss \
    stat sync sysctl tail taskset tc tee test timeout touch tr true umount uname uniq wc which xargs";
/// Programs of this host that a machine without a disk requires.
const NEEDED: [&str; 2] = ["sh", "ip"];
/// Further kernel modules of a machine with a disk; some of them may be missing.
const DISK_MODULES: [&str; 6] = ["virtio_blk", "ext4", "xfs", "btrfs", "squashfs", "erofs"];
/// Timeout for a reply of the emulator's monitor.
const MONITOR: Duration = Duration::from_secs(20);

/// Runs a machine until standard input closes, or the machine ends. When the agent of the machine runs, it prints `up
/// ADDRESS TOKEN BOOT_ID`.
///
/// # Errors
/// This host lacks a requirement, or the machine ended.
pub fn keep_machine(spec: &NodeMachine, program: &Path) -> Result<(), DeployError> {
    can_make_machines()?;
    let kernel = Kernel::find_with(&wanted_modules(spec.card, spec.image.is_some()))?;
    let token = token().map_err(|e| DeployError::system("cannot make a token", e))?;
    let archive = contents(spec, &kernel, program, &token)?;
    let image = in_memory(&archive)
        .map_err(|e| DeployError::system("cannot keep the machine's image in memory", e))?;
    drop(archive);
    // The emulator ends with this thread, so the end of the input is waited for by another one.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let words = arguments(spec, Accelerator::best(), &kernel, image.as_raw_fd());
    let mut machine = Machine::spawn(&words, None)?;
    drop(image);
    while let Some(line) = machine.line() {
        if let Some(boot_id) = line.strip_prefix(UP) {
            let port = forwarded_port(machine.control_socket())
                .map_err(|e| DeployError::system("no reply of the emulator", e))?;
            let mut out = io::stdout().lock();
            writeln!(out, "up 127.0.0.1:{port} {token} {boot_id}")
                .and_then(|()| out.flush())
                .map_err(|e| DeployError::system("cannot write", e))?;
        }
    }
    Err(machine.died())
}

/// Returns the names of the modules that a machine loads.
fn wanted_modules(card: Card, has_disk: bool) -> Vec<&'static str> {
    let mut wanted = WANTED.to_vec();
    wanted.push(card.module());
    wanted.extend(has_disk.then_some(DISK_MODULES[0]));
    wanted
}

/// Returns 128 random bits in hexadecimal digits.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(taut_results::hex(&bytes))
}

/// Makes the initial file system of the machine.
fn contents(
    spec: &NodeMachine,
    kernel: &Kernel,
    program: &Path,
    token: &str,
) -> Result<Vec<u8>, DeployError> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "run", "tmp", "root", "var"] {
        archive.folder(folder);
    }
    let has_disk = spec.image.is_some();
    let mut files = vec![(PathBuf::from(PROGRAM), program.to_owned())];
    for name in PROGRAMS.split_whitespace() {
        match find_program(name) {
            Some(found) if !has_disk || NEEDED.contains(&name) => {
                files.push((Path::new("/bin").join(name), found));
            }
            None if NEEDED.contains(&name) => {
                return Err(Missing {
                    what: format!("virtual machines need `{name}`"),
                    how_to_get_it: "apt-get install dash iproute2".to_owned(),
                }
                .into());
            }
            _ => {}
        }
    }
    let sources: Vec<&Path> = files.iter().map(|(_, source)| source.as_path()).collect();
    let mut libraries = libraries_of(&sources)?;
    libraries.sort();
    libraries.dedup();
    files.extend(
        libraries
            .into_iter()
            .map(|library| (library.clone(), library)),
    );
    for (target, source) in &files {
        archive.file(target, 0o755, &read(source)?);
    }
    let mut modules = kernel.modules(&wanted_modules(spec.card, has_disk))?;
    for name in DISK_MODULES.iter().filter(|_| has_disk) {
        // A kernel without the file system of the image is reported by the machine.
        for module in kernel.modules(&[name]).unwrap_or_default() {
            if modules.iter().all(|known| known.name != module.name) {
                modules.push(module);
            }
        }
    }
    for (number, module) in modules.iter().enumerate() {
        let name = format!("{MODULES}/{number:02}-{}.ko", module.name);
        archive.file(Path::new(&name), 0o644, &module.content);
    }
    if let Ok(release) = fs::read("/etc/os-release") {
        archive.file(Path::new("/etc/os-release"), 0o644, &release);
    }
    let cables = spec.cables.iter();
    let cables = cables.map(|end| (end.mac.clone(), end.interface.clone()));
    let management = (MANAGEMENT_MAC.to_owned(), MANAGEMENT.to_owned());
    let settings = Settings {
        name: spec.name.clone(),
        token: token.to_owned(),
        interfaces: std::iter::once(management).chain(cables).collect(),
        has_disk,
    };
    let settings = serde_json::to_vec(&settings)
        .map_err(|e| DeployError::system("cannot write the machine's settings", e))?;
    archive.file(Path::new(SETTINGS), 0o600, &settings);
    Ok(archive.finish())
}

/// Returns the path of a program of this host.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    let mut found = folders.iter().chain(&system).map(|it| it.join(name));
    found.find(|path| path.is_file())
}

/// Returns the emulator's arguments.
fn arguments(
    spec: &NodeMachine,
    accelerator: Accelerator,
    kernel: &Kernel,
    image: i32,
) -> Vec<String> {
    let mut words = common_arguments(
        accelerator,
        spec.memory_mb,
        kernel,
        image,
        &(kernel_line() + " -- guest"),
    );
    let [a, b, c, d] = AGENT.0;
    let management = Card::Virtio.device();
    words.extend(
        [
            "-smp",
            &spec.cores.to_string(),
            "-mon",
            "chardev=control,mode=readline",
            "-netdev",
            &format!(
                "user,id=mgmt,restrict=on,hostfwd=tcp:127.0.0.1:0-{a}.{b}.{c}.{d}:{}",
                AGENT.1
            ),
            "-device",
            &format!("{management},netdev=mgmt,mac={MANAGEMENT_MAC},romfile="),
        ]
        .map(str::to_owned),
    );
    for (number, end) in spec.cables.iter().enumerate() {
        let [socket, peer] = [&end.socket, &end.peer].map(|path| escaped(path));
        words.extend([
            "-netdev".to_owned(),
            format!(
                "dgram,id=net{number},local.type=unix,local.path={socket},remote.type=unix,remote.path={peer}"
            ),
            "-device".to_owned(),
            format!(
                "{},netdev=net{number},mac={},addr={:#x},romfile=",
                spec.card.device(),
                end.mac,
                0x10 + number
            ),
        ]);
    }
    if let Some(disk) = &spec.image {
        let format = match disk.extension().is_some_and(|end| end == "qcow2") {
            true => "qcow2",
            false => "raw",
        };
        words.extend([
            "-drive".to_owned(),
            format!(
                "file={},if=none,id=root,snapshot=on,format={format}",
                escaped(disk)
            ),
            "-device".to_owned(),
            "virtio-blk-pci,drive=root".to_owned(),
        ]);
    }
    words
}

/// Returns a path as part of an option of QEMU, which parses two commas as one.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Asks the emulator's monitor for the port of this host that leads to the machine's agent.
fn forwarded_port(monitor: &mut UnixStream) -> io::Result<u16> {
    monitor.set_read_timeout(Some(MONITOR))?;
    monitor.write_all(b"info usernet\n")?;
    let mut lines = BufReader::new(monitor);
    loop {
        let mut line = Vec::new();
        if lines.by_ref().take(1 << 16).read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(port) = port_in(&String::from_utf8_lossy(&line)) {
            return Ok(port);
        }
    }
}

/// Returns the port in a line of `info usernet` such as `TCP[HOST_FORWARD]  11  127.0.0.1 41235  10.0.2.15 7  0 0`.
fn port_in(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace();
    words.find(|word| word.ends_with("[HOST_FORWARD]"))?;
    words.nth(2)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::vm::node::CableEnd;

    #[test]
    fn the_forwarded_port_is_parsed_from_the_monitor() {
        let line =
            "  TCP[HOST_FORWARD]  11       127.0.0.1 41235       10.0.2.15     7     0     0";
        assert_eq!(port_in(line), Some(41235));
        assert_eq!(
            port_in("  Protocol[State]    FD  Source Address  Port"),
            None
        );
        assert_eq!(port_in("TCP[HOST_FORWARD] 1 x"), None);
    }

    #[test]
    fn cards_cables_and_disk_become_arguments_of_the_emulator() {
        let spec = NodeMachine {
            name: "dut".into(),
            cores: 2,
            memory_mb: 768,
            card: Card::E1000e,
            cables: vec![CableEnd {
                interface: "west".into(),
                mac: "52:54:00:74:61:01".into(),
                socket: "/run/a,b".into(),
                peer: "/run/c".into(),
            }],
            image: Some("/images/debian.qcow2".into()),
        };
        let kernel = Kernel::of(Path::new("/kernels/6.1/vmlinuz"));
        let line = arguments(&spec, Accelerator::Software, &kernel, 7).join(" ");
        for part in [
            "-smp 2",
            "size=768M",
            "restrict=on,hostfwd=tcp:127.0.0.1:0-10.0.2.15:7",
            "local.path=/run/a,,b,remote.type=unix,remote.path=/run/c",
            "e1000e,netdev=net0,mac=52:54:00:74:61:01,addr=0x10",
            "file=/images/debian.qcow2,if=none,id=root,snapshot=on,format=qcow2",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(wanted_modules(Card::E1000e, true).contains(&"virtio_blk"));
    }
}
