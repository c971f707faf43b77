//! Attempts that are repeated only if the machine disturbed them: other processes ran on its cores, its hypervisor took
//! a core away, or the generator reports that it sent late.

use super::program::Finished;
use serde_json::Value;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;
use taut_host::CpuReading;

/// Number of attempts before a test gives up on a busy machine.
const ATTEMPTS: usize = 8;
/// A tick of `/proc/PID/stat`: the kernel shows hundredths of a second on all of Linux's platforms.
const TICK: Duration = Duration::from_millis(10);
/// The processor time of other processes at or above which an attempt counts as disturbed. It is two ticks, as the
/// kernel rounds each process's time.
const OTHERS: Duration = Duration::from_millis(20);
/// The send delay at or above which a generator counts as preempted.
const SENT_LATE: Duration = Duration::from_millis(2);
/// The parent process of all kernel threads.
const KERNEL_THREADS: u32 = 2;

/// An attempt that failed to show the test's claim.
pub enum Complaint {
    /// The claim of the test was violated; the value describes how.
    Violated(String),
    /// A cause outside of taut prevented the attempt from showing the claim.
    Spoilt(String),
}

impl Complaint {
    /// Returns the complaint that `reason`, which is outside of taut, prevented the attempt from showing the claim.
    pub fn spoilt(reason: impl Into<String>) -> Self {
        Self::Spoilt(reason.into())
    }
}

impl From<String> for Complaint {
    fn from(claim: String) -> Self {
        Self::Violated(claim)
    }
}

thread_local! {
    /// The longest send delay of the generators that have ended in the current attempt of this thread.
    static SEND_DELAY: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Stores the send delay of a generator that has ended, for the current attempt.
pub fn note_send_delay(finished: &Finished) {
    let last = finished.stdout.lines().last().unwrap_or_default();
    let summary: Value = serde_json::from_str(last).unwrap_or_default();
    // The first path is that of `taut generate`, the second that of `taut probe`.
    let paths = ["/streams/0/send_delay_ns/max_ns", "/send_delay_ns/max_ns"];
    let delay_ns = paths.into_iter().find_map(|path| summary.pointer(path));
    if let Some(delay_ns) = delay_ns.and_then(Value::as_u64) {
        let delay = Duration::from_nanos(delay_ns);
        SEND_DELAY.set(SEND_DELAY.get().max(delay));
    }
}

/// Makes attempts until one shows the claim. A failed attempt on an undisturbed machine fails the test immediately. If
/// every attempt is disturbed, the claim stays open: the test prints that, and `./run test` counts it separately.
pub fn undisturbed<C: Into<Complaint>>(mut attempt: impl FnMut() -> Result<(), C>) {
    for number in 1..=ATTEMPTS {
        let before = Machine::now();
        SEND_DELAY.set(Duration::ZERO);
        let Err(complaint) = attempt() else {
            return;
        };
        let mut causes = Machine::now().since(&before);
        let delay = SEND_DELAY.get();
        if delay >= SENT_LATE {
            causes.push(format!("a generator sent {delay:.1?} late"));
        }
        match complaint.into() {
            Complaint::Spoilt(reason) => {
                causes.push(reason);
                let causes = causes.join(", ");
                println!("repeated: attempt {number} of {ATTEMPTS}, as {causes}");
            }
            Complaint::Violated(claim) => {
                assert!(
                    !causes.is_empty(),
                    "on a machine that nobody disturbed: {claim}"
                );
                let causes = causes.join(", ");
                println!("repeated: attempt {number} of {ATTEMPTS}, as {causes}: {claim}");
            }
        }
    }
    println!("not measured: machine busy in each of {ATTEMPTS} attempts");
}

/// Processor time used on this machine until now by processes outside of this test program.
pub struct Machine {
    cpus: CpuReading,
    /// Time of each process that this test program did not start, including the process's children that have ended.
    others: HashMap<u32, Duration>,
}

impl Machine {
    pub fn now() -> Self {
        Self {
            cpus: CpuReading::take().unwrap(),
            others: others(),
        }
    }

    /// Describes the processor time that other programs used since `before`.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let shares = self.cpus.since(&before.cpus);
        let elapsed = Duration::from_secs_f64(shares.seconds);
        let ran = self.others.iter().map(|(id, time)| {
            let earlier = before.others.get(id).copied().unwrap_or_default();
            time.saturating_sub(earlier)
        });
        let ran: Duration = ran.sum();
        let mut causes = Vec::new();
        if ran >= OTHERS {
            causes.push(format!("others ran for {ran:.0?} of {elapsed:.1?}"));
        }
        if shares.all.steal > 0.0 {
            let percent = 100.0 * shares.all.steal;
            causes.push(format!("the host took {percent:.2} % of {elapsed:.1?}"));
        }
        causes
    }
}

fn others() -> HashMap<u32, Duration> {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let stat = fs::read_to_string(entry.path().join("stat"));
        if let (Some(id), Ok(stat)) = (id, stat)
            && let Some(process) = parent_and_time(&stat)
        {
            processes.insert(id, process);
        }
    }
    let own = descendants(std::process::id(), &processes);
    processes.retain(|id, (parent, _)| {
        !own.contains(id) && *id != KERNEL_THREADS && *parent != KERNEL_THREADS
    });
    processes.into_iter().map(|(id, it)| (id, it.1)).collect()
}

/// Parses `/proc/PID/stat` (proc(5)). Returns the parent of the process, and its processor time including that of ended
/// children; `None` if the text is invalid.
fn parent_and_time(stat: &str) -> Option<(u32, Duration)> {
    // The name, in brackets, may contain spaces and brackets.
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let times = fields.get(11..15)?;
    let ticks: Option<u32> = times.iter().map(|it| it.parse::<u32>().ok()).sum();
    Some((parent, TICK * ticks?))
}

fn descendants(of: u32, processes: &HashMap<u32, (u32, Duration)>) -> HashSet<u32> {
    let mut found = HashSet::from([of]);
    loop {
        let before = found.len();
        let children = processes.iter().filter(|(_, it)| found.contains(&it.0));
        let children: Vec<u32> = children.map(|(id, _)| *id).collect();
        found.extend(children);
        if found.len() == before {
            return found;
        }
    }
}
