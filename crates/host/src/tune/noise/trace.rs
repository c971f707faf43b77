//! Traces the kernel's activity on a CPU by its own trace points, in ticks of the time-stamp counter.
//!
//! Each trace uses a separate trace instance, so other users' tracing is not changed (Linux,
//! Documentation/trace/ftrace.rst). If tracefs is not mounted, it is opened without a mount point, so no mount remains.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::private;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The kernel's trace points that are used if they exist: the folder, and the names or their endings.
const POINTS: [(&str, &[&str]); 6] = [
    ("irq_vectors", &["_entry", "_exit"]),
    (
        "irq",
        &[
            "irq_handler_entry",
            "irq_handler_exit",
            "softirq_entry",
            "softirq_exit",
        ],
    ),
    ("ipi", &["ipi_entry", "ipi_exit"]),
    ("nmi", &["nmi_handler"]),
    ("sched", &["sched_switch"]),
    ("exceptions", &["page_fault_user", "page_fault_kernel"]),
];

/// The memory for unread events per CPU, KB: 0.1 s at 100,000 events per second.
const BUFFER_KB: u32 = 8192;

/// The timeout for a newly started process to close the files that it inherited.
const FORK_PATIENCE: Duration = Duration::from_secs(2);

/// The number of traces that this process has started.
static TRACES: AtomicU32 = AtomicU32::new(0);

/// A running trace. Dropping it ends and removes it.
pub(super) struct Trace {
    folder: PathBuf,
    /// The tracefs that this process opened; `None` if tracefs is mounted.
    _mount: Option<OwnedFd>,
    pipes: Vec<Pipe>,
}

struct Pipe {
    cpu: usize,
    file: File,
    /// The incomplete line at the end of the text that was read.
    rest: Vec<u8>,
}

/// An event in the kernel's trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub ticks: u64,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// The start of an event, with its name.
    Entry(String),
    /// The end of the event that began last.
    Exit,
    /// An event without a duration, with its name.
    Moment(String),
    /// Another task got the CPU; the text is its name.
    Switch(String),
    /// Earlier events were lost, because the trace buffer was full.
    Lost,
}

impl Trace {
    /// Starts to trace the kernel's activity on the CPUs `cpus`.
    pub fn start(cpus: &[usize]) -> io::Result<Self> {
        let (tracefs, mount) = tracefs()?;
        let clocks = fs::read_to_string(tracefs.join("trace_clock"))?;
        if !clocks
            .split_whitespace()
            .any(|clock| clock.trim_matches(['[', ']']) == "x86-tsc")
        {
            return Err(io::Error::other(
                "the kernel's trace clock is not the processor's counter",
            ));
        }
        let instances = tracefs.join("instances");
        remove_orphans(&instances);
        // A process may have several traces.
        let number = TRACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}trace-{number}", private::name_of_this_process());
        let folder = instances.join(name);
        fs::create_dir(&folder)?;
        let mut trace = Self {
            folder,
            _mount: mount,
            pipes: Vec::new(),
        };
        trace.set_up(cpus)?;
        Ok(trace)
    }

    fn set_up(&mut self, cpus: &[usize]) -> io::Result<()> {
        let folder = &self.folder;
        let write = |file: &str, value: &str| fs::write(folder.join(file), value);
        write("trace_clock", "x86-tsc")?;
        write("tracing_on", "0")?;
        write(
            "tracing_cpumask",
            &crate::cpu_list::mask_of_cpus(&cpus.iter().copied().collect()),
        )?;
        for cpu in cpus {
            write(
                &format!("per_cpu/cpu{cpu}/buffer_size_kb"),
                &BUFFER_KB.to_string(),
            )?;
        }
        for (family, ends) in POINTS {
            let entries = fs::read_dir(folder.join("events").join(family))
                .into_iter()
                .flatten();
            for entry in entries.flatten() {
                let name = entry.file_name();
                if ends.iter().any(|end| name.to_string_lossy().ends_with(end)) {
                    fs::write(entry.path().join("enable"), "1")?;
                }
            }
        }
        for cpu in cpus {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
                .open(folder.join(format!("per_cpu/cpu{cpu}/trace_pipe")))?;
            self.pipes.push(Pipe {
                cpu: *cpu,
                file,
                rest: Vec::new(),
            });
        }
        write("tracing_on", "1")
    }

    /// Passes the events since the last call to `event`, each with its CPU. Recent events may be left for the next
    /// call: on a busy machine they arrive faster than they are read.
    pub fn take(&mut self, mut event: impl FnMut(usize, Event)) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let begun = taut_sys::ticks();
        for pipe in &mut self.pipes {
            let mut is_current = false;
            while !is_current {
                match pipe.file.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => pipe.rest.extend_from_slice(&buffer[..count]),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
                let whole = pipe
                    .rest
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1);
                for line in pipe.rest[..whole].split(|byte| *byte == b'\n') {
                    if let Some(found) = parse(&String::from_utf8_lossy(line)) {
                        is_current |= found.ticks >= begun;
                        event(pipe.cpu, found);
                    }
                }
                pipe.rest.drain(..whole);
            }
        }
        Ok(())
    }

    /// Stops the trace; its last events can still be read.
    pub fn stop(&self) {
        let _ = fs::write(self.folder.join("tracing_on"), "0");
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.stop();
        // An instance with open files cannot be removed. A child process that another thread is starting keeps these
        // files open until the child's program is loaded.
        self.pipes.clear();
        let deadline = Instant::now() + FORK_PATIENCE;
        while fs::remove_dir(&self.folder).is_err_and(|e| e.kind() == ErrorKind::ResourceBusy)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the folder of tracefs: its mount point, or a folder of this process's own, with the open mount.
fn tracefs() -> io::Result<(PathBuf, Option<OwnedFd>)> {
    for folder in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        if Path::new(folder).join("instances").exists() {
            return Ok((PathBuf::from(folder), None));
        }
    }
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let folder = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    Ok((folder, Some(mount)))
}

/// Removes the trace instances of killed processes.
fn remove_orphans(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        if private::is_left_behind(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Parses the event in one line of a trace, such as
/// ` taut-7 [001] d.h1. 8143219: local_timer_entry: vector=236`.
fn parse(line: &str) -> Option<Event> {
    if line.contains("[LOST ") || line.contains("LOST EVENTS") {
        return Some(Event {
            ticks: 0,
            what: What::Lost,
        });
    }
    // The task's name may contain anything, including text that looks like the rest of the line.
    let behind = line.match_indices("] ").map(|(at, _)| &line[at + 2..]);
    let (ticks, name, words) = behind.filter_map(head).next()?;
    let rest: Vec<&str> = words.collect();
    let value = |key: &str| {
        rest.iter()
            .find_map(|word| word.strip_prefix(key))
            .unwrap_or("?")
    };
    let what = match name {
        "sched_switch" => {
            let details = rest.join(" ");
            let next = details.split("next_comm=").nth(1)?;
            let next = next.split(" next_pid=").next()?;
            What::Switch(family(next))
        }
        "irq_handler_entry" => {
            What::Entry(format!("interrupt {} ({})", value("irq="), value("name=")))
        }
        "softirq_entry" => {
            let action = value("[action=").trim_end_matches(']');
            What::Entry(format!("soft interrupt {action}"))
        }
        "nmi_handler" => What::Moment("non-maskable interrupt".to_owned()),
        name if name.starts_with("page_fault") => What::Moment("page fault".to_owned()),
        name if name.ends_with("_exit") => What::Exit,
        name => What::Entry(format!(
            "{} interrupt",
            name.strip_suffix("_entry")?.replace('_', " ")
        )),
    };
    Some(Event { ticks, what })
}

/// Parses the time, the name and the rest of an event, from the text after the CPU in a line.
fn head(text: &str) -> Option<(u64, &str, std::str::SplitWhitespace<'_>)> {
    let mut words = text.split_whitespace();
    let _flags = words.next()?;
    let ticks = words.next()?.strip_suffix(':')?.parse().ok()?;
    let name = words.next()?.strip_suffix(':')?;
    Some((ticks, name, words))
}

/// Returns the name of a kernel thread without its number, so that threads of one kind are counted together:
/// `kworker/1:2-mm` becomes `kworker`.
fn family(task: &str) -> String {
    if task.starts_with("swapper") {
        return "idle".to_owned();
    }
    let name = task.split(['/', ' ', ':']).next().unwrap_or(task);
    format!("task {name}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn parsed(line: &str) -> (u64, What) {
        let event = parse(line).unwrap();
        (event.ticks, event.what)
    }

    #[test]
    fn kernel_trace_lines_are_parsed() {
        let line = "            taut-71      [001] d.h1. 814321953: local_timer_entry: vector=236";
        assert_eq!(
            parsed(line),
            (814_321_953, What::Entry("local timer interrupt".into()))
        );
        let line = "            taut-71      [001] d.h1. 7: local_timer_exit: vector=236";
        assert_eq!(parsed(line).1, What::Exit);
        let line =
            "   my [0] task:-71      [001] d.h1. 9: irq_handler_entry: irq=36 name=virtio1-req.0";
        assert_eq!(
            parsed(line).1,
            What::Entry("interrupt 36 (virtio1-req.0)".into())
        );
        let line = " <idle>-0 [011] ..s1. 9: softirq_entry: vec=3 [action=NET_RX]";
        assert_eq!(parsed(line).1, What::Entry("soft interrupt NET_RX".into()));
        let line = " a-1 [001] d..2. 5: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=kworker/1:1 next_pid=2 next_prio=120";
        assert_eq!(parsed(line).1, What::Switch("task kworker".into()));
        let line = " a-1 [001] d..2. 5: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120";
        assert_eq!(parsed(line).1, What::Switch("idle".into()));
        assert_eq!(parsed("CPU:1 [LOST 12 EVENTS]").1, What::Lost);
    }

    #[test]
    fn invalid_trace_lines_are_skipped() {
        for line in [
            "",
            "# tracer: nop",
            "[001]",
            "a-1 [001] d.h1. x: y: z",
            "] ] ]",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_trace_records_task_switches_and_deletes_its_folder() {
        let cpu = crate::choose_cores().device;
        let mut trace = match Trace::start(&[cpu]) {
            Ok(trace) => trace,
            Err(e) => return println!("skipped: needs root and tracefs ({e})"),
        };
        let folder = trace.folder.clone();
        let mut count = 0;
        std::thread::spawn(move || {
            crate::pin_current_thread(cpu).unwrap();
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .join()
        .unwrap();
        trace
            .take(|seen_on, _| {
                assert_eq!(seen_on, cpu);
                count += 1;
            })
            .unwrap();
        // Each sleep causes a task switch.
        assert!(count > 20, "{count}");
        assert!(folder.exists());
        let name = folder.file_name().unwrap().to_owned();
        drop(trace);
        let (again, _mount) = tracefs().unwrap();
        assert!(!again.join("instances").join(name).exists());
    }
}
