//! A virtual machine: QEMU with KVM if the processor supports it, otherwise emulated.

use super::image::{Contents, PROGRAM};
use super::kernel::{Kernel, WANTED};
use super::ports::{
    FIRST_SLOT, HUGE_PAGES, PASSED_THROUGH, USER_SPACE_DRIVER, check_passed_through, dpdk_devices,
    passed_through,
};
use crate::DeployError;
use crate::lines::next_line;
use rustix::fs::MemfdFlags;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_engine::{Chain, MachineSettings, Place};
use taut_host::{Missing, is_installed};

const EMULATOR: &str = "qemu-system-x86_64";
/// Prefix of a machine's last line; the exit code of its `taut forward` follows.
pub(super) const ENDED: &str = "taut-guest ended ";
/// Names of the serial lines between the machine and the process that started it.
pub(super) const EVENTS: &str = "taut.events";
pub(super) const CONTROL: &str = "taut.control";
/// Memory of a machine, MB: this program twice (packed and unpacked), packet buffers, the kernel.
const MEMORY_MB: u32 = 512;
/// Memory of a machine with DPDK ports, MB: half of it is huge pages.
const DPDK_MEMORY_MB: u32 = 1024;
/// The virtual core that runs only the function, if a machine has two cores.
const FUNCTION_CORE: usize = 1;
/// Timeout for a machine to end on request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The execution engine of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor executes the instructions.
    Kvm,
    /// A program emulates the instructions: tens of times slower, so that measured times do not apply to a real
    /// machine.
    Software,
}

impl Accelerator {
    /// Returns [`Self::Kvm`] if the processor supports virtual machines and this process may use KVM. Where KVM itself
    /// is emulated, as inside some virtual machines, it exists without support of the processor, and is slower than
    /// QEMU.
    pub fn best() -> Self {
        match Self::why_not_the_processor() {
            None => Self::Kvm,
            Some(_) => Self::Software,
        }
    }

    /// Returns the reason why this host's processor cannot execute the instructions of a virtual machine, as a clause;
    /// none if it can.
    pub fn why_not_the_processor() -> Option<String> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo");
        if !cpuinfo.is_ok_and(|text| virtualizes(&text)) {
            return Some("/proc/cpuinfo has neither vmx nor svm".to_owned());
        }
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        kvm.err().map(|e| format!("/dev/kvm: {e}"))
    }

    /// Returns the accelerator's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Software => "emulated",
        }
    }
}

/// Returns true if a processor reports Intel's or AMD's virtualization.
fn virtualizes(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| {
        flags
            .split_whitespace()
            .any(|flag| flag == "vmx" || flag == "svm")
    })
}

/// Description of a virtual machine.
#[derive(Debug)]
pub struct MachineSpec<'a> {
    /// Chain of the machine. Its `core` is the core of this host on which the machine runs.
    pub chain: &'a Chain,
    /// The vhost-user sockets of the machine's NICs, `eth0` first; the machine listens at them. A PCI address instead of
    /// a socket is a NIC or virtual function of this host, which the machine gets whole.
    pub cards: &'a [PathBuf],
    /// Arguments of the machine's `taut forward`, after the chain file.
    pub arguments: &'a [String],
    /// Execution engine of the machine.
    pub accelerator: Accelerator,
    /// Path of the executable of taut.
    pub program: &'a Path,
}

/// A virtual machine that runs, or waits for connections to its NICs. The machine ends when this value is dropped or
/// when the thread that started the machine ends.
#[derive(Debug)]
pub struct Machine {
    emulator: Child,
    /// Thread that copies the console to standard error.
    console: Option<JoinHandle<()>>,
    control: UnixStream,
    lines: BufReader<ChildStdout>,
    /// Core of this host for the machine's second core, once the machine has started it.
    function_core: Option<usize>,
}

/// Checks whether virtual machines can run here.
///
/// # Errors
/// A requirement is missing.
pub fn can_make_machines() -> Result<(), Missing> {
    let missing = |what: &str, package: &str| Missing {
        what: format!("virtual machines need {what}"),
        how_to_get_it: format!("apt-get install --no-install-recommends {package}"),
    };
    if !cfg!(target_arch = "x86_64") {
        return Err(Missing {
            what: "virtual machines are made for x86-64 only".to_string(),
            how_to_get_it: "use placement = \"namespaces\"".to_string(),
        });
    }
    if !is_installed(EMULATOR) {
        return Err(missing(&format!("`{EMULATOR}`"), "qemu-system-x86"));
    }
    if !is_installed("setpriv") {
        return Err(missing("`setpriv`", "util-linux"));
    }
    Ok(())
}

impl Machine {
    /// Starts a virtual machine. It boots once its NICs are all connected.
    ///
    /// The calling thread must not exit, because the machine ends with that thread. The call pins the thread to the
    /// machine's core.
    ///
    /// # Errors
    /// The host lacks a requirement, or a file cannot be read.
    pub fn start(spec: &MachineSpec<'_>) -> Result<Self, DeployError> {
        can_make_machines()?;
        let mut inside = spec.chain.clone();
        let settings = inside.machine.take().unwrap_or_default();
        let kernel = match &settings.kernel {
            Some(file) => Kernel::of_file(
                file,
                settings.kernel_sha256.as_deref(),
                settings.modules.as_deref(),
            )?,
            None => Kernel::find()?,
        };
        let core = inside.core.take().or(settings.core);
        let function_core = core.filter(|_| settings.cores() == 2);
        pin(core, &settings)?;
        if settings.cores() == 2 && inside.place == Place::User && inside.workers == 1 {
            inside.core = Some(FUNCTION_CORE);
        }
        let devices = dpdk_devices(&inside.ports);
        let mut wanted = WANTED.to_vec();
        wanted.extend((!devices.is_empty()).then_some(USER_SPACE_DRIVER));
        let mut passed = spec.cards.iter().filter_map(|card| passed_through(card));
        passed.clone().try_for_each(check_passed_through)?;
        if passed.next().is_some() {
            let has = |name: &&str| kernel.modules(&[name]).is_ok();
            wanted.extend(PASSED_THROUGH.into_iter().filter(has));
        }
        let contents = Contents {
            program: spec.program,
            devices: &devices,
            modules: &kernel.modules(&wanted)?,
            chain: &crate::segment::chain_text(&inside),
            functions: &inside.functions,
            arguments: spec.arguments,
        };
        let image = in_memory(&contents.image()?)
            .map_err(|e| DeployError::system("cannot keep the machine's image in memory", e))?;
        Self::spawn(&arguments(spec, &kernel, image.as_raw_fd()), function_core)
    }

    /// Starts the emulator with these arguments. Its standard input is the far end of the control socket. The thread of
    /// the machine's second core is pinned to `function_core` of this machine, if there is one.
    pub(super) fn spawn(
        arguments: &[String],
        function_core: Option<usize>,
    ) -> Result<Self, DeployError> {
        let cannot = |e| DeployError::system(format!("cannot start {EMULATOR}"), e);
        let (control, far_end) = UnixStream::pair().map_err(cannot)?;
        // The emulator ends with this thread, whatever ends the thread. Only this process handles Ctrl-C at the
        // terminal.
        let mut emulator = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", EMULATOR])
            .args(arguments)
            .process_group(0)
            .stdin(OwnedFd::from(far_end))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        // The console is piped through this process. If the machine wrote directly to this process's standard error, a
        // file to which standard error is redirected would be truncated.
        let console = emulator.stderr.take().map(|console| {
            std::thread::spawn(move || {
                let mut console = BufReader::new(console);
                while let Some(line) = next_line(&mut console) {
                    // The kernel's last line would hide the reason why a machine ended.
                    if line.ends_with("] reboot: Power down") {
                        continue;
                    }
                    // A single write keeps the line intact among other programs' lines.
                    let line = format!("{}\n", told(&line));
                    eprint!("{line}");
                }
            })
        });
        let Some(output) = emulator.stdout.take() else {
            return Err(cannot(std::io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self {
            emulator,
            console,
            control,
            lines: BufReader::new(output),
            function_core,
        })
    }

    /// Returns the next line that the machine writes; none after its end.
    pub(super) fn line(&mut self) -> Option<String> {
        next_line(&mut self.lines)
    }

    /// Returns the near end of the control socket.
    pub(super) fn control_socket(&mut self) -> &mut UnixStream {
        &mut self.control
    }

    /// Returns a handle to the standard input of the machine's `taut forward`. The machine ends when this input is
    /// closed.
    ///
    /// # Errors
    /// The system cannot open more files.
    pub fn control(&self) -> std::io::Result<Control> {
        self.control.try_clone().map(Control)
    }

    /// Passes each output line of the machine's `taut forward` to `line` until the machine ends; then returns the exit
    /// code.
    ///
    /// # Errors
    /// The machine ended without an exit code.
    pub fn relay(&mut self, mut line: impl FnMut(&str)) -> Result<i32, DeployError> {
        loop {
            let Some(said) = next_line(&mut self.lines) else {
                return Err(self.died());
            };
            // The machine runs, so all of its cores have their threads.
            if let Some(core) = self.function_core.take() {
                pin_function_core(self.emulator.id(), core);
            }
            match said.strip_prefix(ENDED) {
                Some(code) => {
                    self.wait();
                    return Ok(code.parse().unwrap_or(1));
                }
                None => line(&said),
            }
        }
    }

    pub(super) fn died(&mut self) -> DeployError {
        let status = self.wait();
        let status = status.map_or_else(|| "it hung".to_string(), |status| status.to_string());
        let why =
            format!("it exited before its work was done ({status}); its console output is above");
        DeployError::system("virtual machine", std::io::Error::other(why))
    }

    /// Waits until the machine has powered off, and returns the emulator's exit status; none after the timeout. A
    /// machine that is still running ends when it is dropped.
    fn wait(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.emulator.try_wait() {
                // The last lines of the console say why a machine died.
                if let Some(console) = self.console.take() {
                    let _ = console.join();
                }
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

/// The standard input of a machine's `taut forward`.
#[derive(Debug)]
pub struct Control(UnixStream);

impl Control {
    /// Writes bytes to the standard input of the machine's `taut forward`.
    ///
    /// # Errors
    /// The machine has ended.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Closes the input for all handles, which ends the machine.
    pub fn close(&self) {
        // An error is ignored: the input may already be closed.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Pins the calling thread to the core of the machine, or of the machine's system if the machine has two cores.
fn pin(core: Option<usize>, settings: &MachineSettings) -> Result<(), DeployError> {
    let Some(core) = core else {
        return Ok(());
    };
    let others = || taut_host::allowed_cpus().into_iter().find(|it| *it != core);
    let system = match settings.cores() {
        1 => None,
        _ => settings.system_core.or_else(others),
    };
    let pinned = taut_host::pin_current_thread(system.unwrap_or(core));
    pinned.map_err(|e| DeployError::Chain(format!("core: {e}")))
}

/// Pins the thread of an emulator that runs the machine's second core; the emulator names its threads.
fn pin_function_core(emulator: u32, core: usize) {
    let name = format!("CPU {FUNCTION_CORE}/");
    let tasks = std::fs::read_dir(format!("/proc/{emulator}/task"));
    let found = tasks.into_iter().flatten().flatten().find_map(|task| {
        let its_name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        its_name.starts_with(&name).then(|| Pid::from_raw(id))?
    });
    let mut only = CpuSet::new();
    only.set(core);
    let pinned = found.map(|thread| sched_setaffinity(Some(thread), &only));
    if !matches!(pinned, Some(Ok(()))) {
        eprintln!("taut: virtual machine: cannot pin its second core to core {core}");
    }
}

/// Returns the arguments with which every machine's kernel starts this program.
pub(super) fn kernel_line() -> String {
    format!("console=ttyS0 quiet loglevel=3 panic=-1 rdinit={PROGRAM}")
}

/// Returns the arguments of the kernel of a machine that runs a chain.
fn kernel_arguments(chain: &Chain) -> String {
    let mut line = kernel_line();
    let two = chain.machine.as_ref().is_some_and(|it| it.cores() == 2);
    if two {
        // XDP programs run where the NICs interrupt, workers where they are pinned to.
        let interrupted = match chain.place {
            Place::Kernel => FUNCTION_CORE,
            Place::User => 0,
        };
        line += &format!(
            " isolcpus=managed_irq,domain,{FUNCTION_CORE} nohz_full={FUNCTION_CORE} rcu_nocbs={FUNCTION_CORE} \
             irqaffinity={interrupted}"
        );
    }
    if !dpdk_devices(&chain.ports).is_empty() {
        line += &format!(" hugepages={HUGE_PAGES}");
    }
    line + " -- guest"
}

/// Converts a line of a machine's console or emulator into a message for users. A line without such a message is
/// returned unchanged.
fn told(line: &str) -> String {
    let socket = line
        .split_once("waiting for connection on: disconnected:unix:")
        .and_then(|(_, rest)| rest.strip_suffix(",server=on"));
    match socket {
        Some(socket) => format!("taut: virtual machine: waits for a switch to connect to {socket}"),
        None => line.to_string(),
    }
}

/// Makes an unnamed file in memory, which is freed when the last process closes it. Child processes inherit it.
pub(super) fn in_memory(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("taut", MemfdFlags::empty())?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Returns the emulator's arguments.
fn arguments(spec: &MachineSpec<'_>, kernel: &Kernel, image: i32) -> Vec<String> {
    // Without KVM, QEMU 7.2 crashes on message-signalled interrupts of vhost-user NICs; a line interrupt works as well.
    let interrupts = match spec.accelerator {
        Accelerator::Kvm => "",
        Accelerator::Software => ",vectors=0",
    };
    let settings = spec.chain.machine.clone().unwrap_or_default();
    let memory_mb = settings.memory_mb.unwrap_or_else(|| {
        if dpdk_devices(&spec.chain.ports).is_empty() {
            MEMORY_MB
        } else {
            DPDK_MEMORY_MB
        }
    });
    let append = kernel_arguments(spec.chain);
    let mut words = common_arguments(spec.accelerator, memory_mb, kernel, image, &append);
    words.extend([
        // Threads of the emulator get names, by which that of a core is found.
        "-name".to_owned(),
        "taut,debug-threads=on".to_owned(),
        "-smp".to_owned(),
        settings.cores().to_string(),
        "-device".to_owned(),
        format!("virtserialport,chardev=control,name={CONTROL}"),
    ]);
    for (number, socket) in spec.cards.iter().enumerate() {
        words.extend(card_arguments(number, socket, interrupts));
    }
    words
}

/// Returns the emulator's arguments for any machine of this program: memory, kernel, initial file system, console, and a
/// serial line for events. The character device `control` is the emulator's standard input. `append` is the kernel's
/// command line.
pub(super) fn common_arguments(
    accelerator: Accelerator,
    memory_mb: u32,
    kernel: &Kernel,
    image: i32,
    append: &str,
) -> Vec<String> {
    let (accelerator, processor) = match accelerator {
        Accelerator::Kvm => ("kvm", "host"),
        Accelerator::Software => ("tcg", "max"),
    };
    [
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-cpu",
        processor,
        "-m",
        &format!("{memory_mb}M"),
        // The memory is shared, as the peers of the NICs read and write there.
        "-object",
        &format!("memory-backend-memfd,id=memory,size={memory_mb}M,share=on"),
        "-machine",
        &format!("q35,accel={accelerator},memory-backend=memory"),
        "-kernel",
        &kernel.file.display().to_string(),
        "-initrd",
        &format!("/proc/self/fd/{image}"),
        "-append",
        append,
        "-chardev",
        "file,id=console,path=/proc/self/fd/2,append=on",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        "socket,id=control,fd=0",
        "-chardev",
        "file,id=events,path=/proc/self/fd/1,append=on",
        "-device",
        &format!("virtserialport,chardev=events,name={EVENTS}"),
    ]
    .map(str::to_owned)
    .into()
}

/// Returns the emulator's arguments for a NIC; `interrupts` is a further option of an emulated NIC.
fn card_arguments(number: usize, card: &Path, interrupts: &str) -> Vec<String> {
    // Machines enumerate their NICs in the order of these addresses.
    let slot = FIRST_SLOT + number;
    if let Some(address) = passed_through(card) {
        return vec![
            "-device".to_owned(),
            format!("vfio-pci,host={address},addr={slot:#x}"),
        ];
    }
    // Frames arrive unsegmented and with checksums: offloads that a program would have to complete are off.
    let off = [
        "csum",
        "gso",
        "guest_csum",
        "guest_tso4",
        "guest_tso6",
        "guest_ecn",
        "guest_ufo",
        "host_tso4",
        "host_tso6",
        "host_ecn",
        "host_ufo",
        "mrg_rxbuf",
    ]
    .map(|feature| format!(",{feature}=off"))
    .concat();
    // QEMU parses one comma in a value as the start of the next option, and two commas as one comma.
    let socket = card.display().to_string().replace(',', ",,");
    vec![
        "-chardev".to_owned(),
        format!("socket,id=card{number},path={socket},server=on"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net{number},chardev=card{number}"),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=net{number},addr={slot:#x},romfile={interrupts}{off}"),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use taut_functions::FUNCTIONS;

    #[test]
    fn virtualization_support_is_parsed_from_cpu_flags() {
        assert!(virtualizes("model name\t: x\nflags\t\t: fpu svm tsc\n"));
        assert!(!virtualizes(
            "flags\t\t: fpu hypervisor svm_lock\nbugs: svm\n"
        ));
    }

    #[test]
    fn qemu_messages_about_waiting_for_a_switch_are_reworded() {
        let line = "qemu-system-x86_64: -chardev socket,id=card0,path=/a,server=on: info: QEMU waiting for connection on: \
                    disconnected:unix:/a,server=on";
        assert_eq!(
            told(line),
            "taut: virtual machine: waits for a switch to connect to /a"
        );
        assert_eq!(told("Kernel panic"), "Kernel panic");
    }

    #[test]
    fn virtual_nics_stay_in_order_and_share_the_guest_memory() {
        let chain = Chain::parse("ports = [\"null:\"]", "x.toml", FUNCTIONS).unwrap();
        let cards = ["/run/west.sock".into(), "/run/a,b.sock".into()];
        let spec = MachineSpec {
            chain: &chain,
            cards: &cards,
            arguments: &[],
            accelerator: Accelerator::Software,
            program: Path::new("/usr/bin/taut"),
        };
        let kernel = Kernel::of(Path::new("/kernels/6.1/vmlinuz"));
        let line = arguments(&spec, &kernel, 7).join(" ");
        for part in [
            "q35,accel=tcg,memory-backend=memory",
            "share=on",
            "-initrd /proc/self/fd/7",
            "path=/run/west.sock,server=on",
            "path=/run/a,,b.sock,server=on",
            "netdev=net0,addr=0x10,romfile=,vectors=0,csum=off",
            "netdev=net1,addr=0x11",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("isolcpus"), "{line}");
        let passed = card_arguments(1, Path::new("0000:01:10.0"), "");
        assert_eq!(passed, ["-device", "vfio-pci,host=0000:01:10.0,addr=0x11"]);
    }

    #[test]
    fn the_second_virtual_core_is_isolated_for_the_function() {
        let line = |text: &str| {
            let text = format!("{text}\n[machine]\ncores = 2\n");
            kernel_arguments(&Chain::parse(&text, "x.toml", FUNCTIONS).unwrap())
        };
        let user = line("ports = [\"dpdk:0000:00:10.0\"]");
        for part in [
            "isolcpus=managed_irq,domain,1",
            "nohz_full=1",
            "irqaffinity=0",
            "hugepages=128 -- guest",
        ] {
            assert!(user.contains(part), "{part}: {user}");
        }
        let kernel = line("place = \"kernel\"\nports = [\"af_packet:eth0\"]");
        assert!(kernel.contains("irqaffinity=1 -- guest"), "{kernel}");
    }
}
