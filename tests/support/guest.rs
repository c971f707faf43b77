//! A virtual machine for tests: Debian's kernel and, in memory only, a shell, taut, and DPDK with its drivers. QEMU
//! emulates its NICs; the other ends of their cables are tap interfaces in a namespace of the test.

use super::program::Program;
use super::scratch;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use taut_deploy::vm::{Accelerator, Archive, Kernel, Module, can_make_machines, libraries};
use taut_host::{Namespace, is_installed};
use taut_port::{Batch, Port, PortSpec, Resources};
use tempfile::TempDir;

/// The timeout of any step: the machine is emulated, on cores that other programs use.
const PATIENCE: Duration = Duration::from_secs(120);

const EMULATOR: &str = "qemu-system-x86_64";

/// Programs in the virtual machine, in addition to the shell.
const PROGRAMS: [&str; 9] = [
    "mount", "insmod", "ln", "mkdir", "cat", "sleep", "ip", "chmod", "taut",
];

/// The kernel modules to load, in order.
const MODULES: [&str; 8] = [
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "af_packet",
    "vfio_pci",
    "vfio_iommu_type1",
    "uio_pci_generic",
    "vmxnet3",
];

/// Parts of DPDK that are loaded when it starts: buses, memory, and drivers of the NICs.
const PARTS: [&str; 6] = [
    "bus_pci",
    "bus_vdev",
    "mempool_ring",
    "net_e1000",
    "net_virtio",
    "net_vmxnet3",
];

/// The init program, which prepares the machine and then runs each line that it receives from the test.
const INIT: &str = r#"#!/bin/sh
export PATH=/bin
# DPDK loads nothing from below a folder that all may write.
chmod 755 /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# Cards say only what the test has them say.
for which in all default; do
    echo 1 >/proc/sys/net/ipv6/conf/$which/disable_ipv6
done
for module in /modules/*; do
    insmod "$module"
done
echo 128 >/proc/sys/vm/nr_hugepages
mkdir -p PARTS
for library in /lib/*/librte_bus_* /lib/*/librte_mempool_* /lib/*/librte_net_*; do
    ln -s "$library" "PARTS/${library##*/}.so"
done
# The driver that a card is to have.
bind() {
    card=/sys/bus/pci/devices/$1
    if [ -e "$card/driver" ]; then
        echo "$1" >"$card/driver/unbind"
    fi
    echo "$2" >"$card/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
    [ -e "/sys/bus/pci/drivers/$2/$1" ]
}
until [ -e /dev/vport1p1 ] || [ -e /dev/vport0p1 ]; do
    sleep 0.05
done
for port in /dev/vport*p1; do
    exec 3<>"$port"
done
echo ready >&3
while read -r line <&3; do
    (eval "$line") >/tmp/said 2>&1 </dev/null 3<&-
    code=$?
    cat /tmp/said >&3
    printf '\nended %s\n' "$code" >&3
done
"#;

/// A NIC of the virtual machine: QEMU's name for its model, with options.
pub struct Card {
    pub kind: &'static str,
    pub queues: usize,
}

/// Returns the PCI address of the NIC with the given index. Each NIC has its own PCI port, as only such NICs can be
/// unplugged.
pub fn address(number: usize) -> String {
    format!("0000:{:02x}:00.0", 1 + number)
}

/// A running virtual machine, which ends on drop.
pub struct Guest {
    emulator: Program,
    shell: BufReader<UnixStream>,
    monitor: BufReader<UnixStream>,
    console: PathBuf,
    started: usize,
    pub namespace: Namespace,
    _folder: TempDir,
}

/// The other end of a NIC's cable: a port on its tap interface.
pub struct Far {
    pub port: Box<dyn Port>,
    pub resources: Resources,
}

impl Far {
    pub fn open(spec: &str) -> Self {
        let spec = PortSpec::parse(spec).unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        let port = spec.open(&mut resources).unwrap();
        Self { port, resources }
    }

    /// Sends a frame; returns false if there is no space for it.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let mut batch = Batch::new();
        self.resources
            .pool()
            .fill(&mut batch, 1, frame.len() as u16);
        match batch.packets_mut() {
            [packet] => packet.bytes_mut().copy_from_slice(frame),
            _ => return false,
        }
        self.port.tx(&mut batch) == 1
    }

    /// Returns the frames that have arrived.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.port.rx(&mut batch);
        batch.packets().iter().map(|p| p.bytes().to_vec()).collect()
    }
}

/// Returns the requirement of a virtual machine that this host lacks, as the reason to skip a test.
pub fn why_not() -> Option<String> {
    if !super::is_root() {
        return Some("root (network namespaces)".to_string());
    }
    if let Err(missing) = can_make_machines() {
        return Some(missing.to_string());
    }
    let kernel = match Kernel::find() {
        Ok(kernel) => kernel,
        Err(missing) => return Some(missing.to_string()),
    };
    if let Err(missing) = kernel.modules(&MODULES) {
        return Some(missing.to_string());
    }
    if let Some(program) = PROGRAMS[..8].iter().find(|program| !is_installed(program)) {
        return Some(format!("`{program}`, to put it into a virtual machine"));
    }
    let Some(folder) = parts_folder() else {
        return Some("DPDK's drivers (packages librte-net-*)".to_string());
    };
    let missing = PARTS
        .iter()
        .find(|part| library_of(&folder, part).is_none());
    missing.map(|part| format!("DPDK's {part} (packages librte-net-*)"))
}

/// Returns the library file of a DPDK part, under its soname: a library with two names would be loaded twice. Returns
/// `None` if the part is not installed.
fn library_of(parts: &Path, part: &str) -> Option<PathBuf> {
    let name = fs::read_link(parts.join(format!("librte_{part}.so"))).ok()?;
    let library = Path::new("/lib/x86_64-linux-gnu").join(name);
    library.exists().then_some(library)
}

/// Returns the folder from which DPDK loads its parts; `None` if DPDK is not installed.
fn parts_folder() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib/x86_64-linux-gnu/dpdk").ok()?;
    let folders = entries.flatten().map(|entry| entry.path());
    folders
        .filter(|path| {
            path.file_name()
                .is_some_and(|it| it.to_string_lossy().starts_with("pmds-"))
        })
        .max()
}

/// Builds the file system that the kernel unpacks into memory.
fn image(modules: &[Module], scratch: &Path) -> Vec<u8> {
    let mut archive = Archive::default();
    let parts = parts_folder().unwrap();
    for folder in ["proc", "sys", "dev", "tmp", "run", "var/run"] {
        archive.folder(folder);
    }
    let init = INIT.replace("PARTS", &parts.display().to_string());
    archive.file(Path::new("/init"), 0o755, init.as_bytes());
    let mut wanted = BTreeSet::new();
    for name in PROGRAMS.iter().chain(&["sh"]) {
        let file = if *name == "taut" {
            // A stripped program is read and unpacked in half the time.
            let bare = scratch.join("taut");
            let stripped = Command::new("strip")
                .arg("-o")
                .arg(&bare)
                .arg(env!("CARGO_BIN_EXE_taut"))
                .status();
            if stripped.is_ok_and(|status| status.success()) {
                bare
            } else {
                PathBuf::from(env!("CARGO_BIN_EXE_taut"))
            }
        } else {
            let folders = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"];
            let files = folders.map(|folder| Path::new(folder).join(name));
            files.into_iter().find(|file| file.is_file()).unwrap()
        };
        let inside = Path::new("/bin").join(name);
        archive.file(&inside, 0o755, &fs::read(&file).unwrap());
        wanted.extend(libraries(&file).unwrap());
    }
    for part in PARTS {
        let library = library_of(&parts, part).unwrap();
        wanted.extend(libraries(&library).unwrap());
        wanted.insert(library);
    }
    for library in wanted {
        archive.file(&library, 0o755, &fs::read(&library).unwrap());
    }
    for (number, module) in modules.iter().enumerate() {
        let name = format!("/modules/{number:02}-{}.ko", module.name);
        archive.file(Path::new(&name), 0o644, &module.content);
    }
    archive.finish()
}

impl Guest {
    /// Boots a virtual machine with the given NICs, and waits until its shell accepts lines.
    pub fn boot(cards: &[Card]) -> Self {
        let kernel = Kernel::find().unwrap();
        let folder = scratch();
        let at = |name: &str| folder.path().join(name);
        let image = image(&kernel.modules(&MODULES).unwrap(), folder.path());
        fs::write(at("image"), image).unwrap();
        let namespace = Namespace::fresh().unwrap();
        let inside = namespace.enter().unwrap();
        // With IPv6, the kernel would send router solicitations by itself.
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        drop(inside);
        let ip = |line: &str| {
            let done = Command::new("ip")
                .args(["-n", namespace.name()])
                .args(line.split(' '))
                .status();
            assert!(done.is_ok_and(|status| status.success()), "ip {line}");
        };
        // The kernel kills QEMU when this thread ends, however the thread ends.
        let mut command = namespace.command("setpriv");
        command.args(["--pdeathsig", "KILL", EMULATOR]);
        let accelerator = match Accelerator::best() {
            Accelerator::Kvm => "kvm",
            Accelerator::Software => "tcg",
        };
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]);
        command.args([
            "-machine",
            &format!("q35,kernel-irqchip=split,accel={accelerator}"),
            "-cpu",
            "max",
        ]);
        // Debian's vfio-pci refuses NICs that could write to any memory, so the machine has an IOMMU.
        command.args(["-device", "intel-iommu,intremap=on,aw-bits=48"]);
        command.args(["-smp", "2", "-m", "1280M"]);
        command.arg("-kernel").arg(&kernel.file);
        command.arg("-initrd").arg(at("image"));
        command.args([
            "-append",
            "console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init intel_iommu=on iommu=pt",
        ]);
        command.args(["-serial", &format!("file:{}", at("console").display())]);
        command.args(["-device", "virtio-serial-pci,addr=0x3"]);
        let socket = |name: &str| format!("path={},server=on,wait=off", at(name).display());
        command.args(["-chardev", &format!("socket,id=shell,{}", socket("shell"))]);
        command.args(["-device", "virtserialport,chardev=shell,name=shell"]);
        command.args([
            "-chardev",
            &format!("socket,id=monitor,{}", socket("monitor")),
        ]);
        command.args(["-mon", "chardev=monitor,mode=control"]);
        for (number, card) in cards.iter().enumerate() {
            let several = if card.queues > 1 { " multi_queue" } else { "" };
            ip(&format!(
                "tuntap add card{number} mode tap vnet_hdr{several}"
            ));
            ip(&format!("link set card{number} mtu 4000 up"));
            let queues = if card.queues > 1 {
                format!(",queues={}", card.queues)
            } else {
                String::new()
            };
            let port = format!(
                "pcie-root-port,id=port{number},chassis={number},addr={:#x}",
                4 + number
            );
            command.args([
                "-device",
                &port,
                "-netdev",
                &format!("tap,id=net{number},ifname=card{number},script=no,downscript=no,vhost=off{queues}"),
                "-device",
                &format!(
                    "{},id=card{number},bus=port{number},netdev=net{number},mac=02:00:00:00:01:{number:02x},romfile=",
                    card.kind
                ),
            ]);
        }
        let mut emulator = Program::start(&mut command);
        let mut connect = |name: &str| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                match UnixStream::connect(at(name)) {
                    Ok(stream) => break stream,
                    Err(error) => {
                        assert!(
                            emulator.is_running() && Instant::now() < deadline,
                            "{name}: {error}: {}",
                            emulator.stderr()
                        );
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        };
        let [shell, monitor] = ["shell", "monitor"].map(|name| {
            let stream = connect(name);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            BufReader::new(stream)
        });
        let mut guest = Self {
            emulator,
            shell,
            monitor,
            console: at("console"),
            started: 0,
            namespace,
            _folder: folder,
        };
        // QEMU sends a greeting first, and accepts other commands only after `qmp_capabilities`.
        guest.monitored(|said| said["QMP"].is_object());
        guest.tell("qmp_capabilities", json!({}));
        guest.heard("ready");
        guest
    }

    /// Reads lines from the machine up to one that begins with `begins`. Returns the lines before it, and that line.
    fn heard(&mut self, begins: &str) -> (String, String) {
        let mut before = String::new();
        loop {
            let mut line = String::new();
            let got = self.shell.read_line(&mut line);
            if !matches!(got, Ok(1..)) {
                let console = fs::read_to_string(&self.console).unwrap_or_default();
                panic!(
                    "the machine says nothing ({got:?}); its console: {console}; {}",
                    self.emulator.stderr()
                );
            }
            if line.starts_with(begins) {
                return (before, line);
            }
            before.push_str(&line);
        }
    }

    /// Runs a line of the shell to its end; returns its exit code and output.
    pub fn ask(&mut self, line: &str) -> (i32, String) {
        assert!(!line.contains('\n'));
        writeln!(self.shell.get_mut(), "{line}").unwrap();
        let (said, end) = self.heard("ended ");
        let code = end.trim_start_matches("ended ").trim().parse().unwrap();
        (code, said.strip_suffix('\n').unwrap_or(&said).to_string())
    }

    /// Runs a line that has to succeed; returns its output.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> String {
        let (code, said) = self.ask(line);
        assert_eq!(code, 0, "{line}: {said}; console: {}", self.console());
        said
    }

    pub fn console(&self) -> String {
        fs::read_to_string(&self.console).unwrap_or_default()
    }

    /// Starts taut in the background. [`Guest::said`] and [`Guest::code`] refer to the taut that was started last.
    pub fn start(&mut self, arguments: &[&str]) {
        self.started += 1;
        let files = format!("/tmp/{}", self.started);
        let words: Vec<_> = arguments.iter().map(|word| format!("'{word}'")).collect();
        self.run(&format!(
            "(taut {} >{files}.out 2>{files}.err; echo $? >{files}.code) & :",
            words.join(" ")
        ));
    }

    /// Returns the standard output and the standard error of the taut that was started last, up to now.
    pub fn said(&mut self) -> [String; 2] {
        let number = self.started;
        ["out", "err"].map(|end| self.ask(&format!("cat /tmp/{number}.{end}")).1)
    }

    /// Returns the exit code of the last started taut, if it has ended.
    pub fn code(&mut self) -> Option<i32> {
        let (failed, code) = self.ask(&format!("cat /tmp/{}.code", self.started));
        code.trim().parse().ok().filter(|_| failed == 0)
    }

    /// Sends SIGINT to all processes called taut, as Ctrl-C does.
    pub fn interrupt(&mut self) {
        self.run(
            "for p in /proc/[0-9]*; do \
             if read -r name <$p/comm && [ \"$name\" = taut ]; then kill -INT ${p#/proc/}; fi; done 2>/dev/null; :",
        );
    }

    /// Sends QEMU a command; returns the reply.
    pub fn tell(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{line}").unwrap();
        let answer =
            self.monitored(|said| said.get("return").is_some() || said.get("error").is_some());
        assert!(answer.get("error").is_none(), "{command}: {answer}");
        answer["return"].clone()
    }

    /// Waits for a message of QEMU for which `wanted` is true, and returns the message.
    #[track_caller]
    pub fn monitored(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let got = self.monitor.read_line(&mut line);
            assert!(
                matches!(got, Ok(1..)),
                "QEMU says no more ({got:?}); console: {}",
                self.console()
            );
            let said: Value = serde_json::from_str(&line).unwrap();
            if wanted(&said) {
                return said;
            }
        }
    }

    /// Returns the other end of a NIC's cable.
    pub fn far(&self, card: usize) -> Far {
        let _inside = self.namespace.enter().unwrap();
        Far::open(&format!("af_packet:card{card}"))
    }
}
