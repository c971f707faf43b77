//! The energy and processor time of a measurement: joules from a counter or meter, and processor time, which the kernel
//! always counts.
//!
//! Joules are from the processor's own counters (RAPL, which Linux shows as `powercap`) or from a command that reads a
//! meter. Where there is neither, the result states that: nothing is estimated.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::other_tasks::{is_below, stat_fields};

/// The folder in which the kernel shows RAPL's counters, including those of AMD processors.
const POWERCAP: &str = "sys/class/powercap";
/// Timeout of a meter's command.
const METER_PATIENCE: Duration = Duration::from_secs(5);
/// The maximum power of a processor package, W. A counter is not usable if it could wrap more than once between two
/// readings at this power.
const MOST_WATTS: f64 = 500.0;

/// A meter's command cannot be used; the text is the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "meter `{command}`: {reason}; expected a command that prints the joules counted so far, as one number"
)]
pub struct MeterError {
    command: String,
    reason: String,
}

/// A meter of energy.
#[derive(Debug, Clone)]
pub enum Meter {
    /// The RAPL counters of the processor packages.
    Rapl(Vec<Zone>),
    /// A command that prints the joules counted up to now.
    Command(String),
    /// There is no energy meter; the text is the reason.
    Nothing(String),
}

/// An energy counter of RAPL, of one processor package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// The kernel's name of the counter, such as `package-0`.
    name: String,
    /// The file with the counter's value, microjoules.
    energy: PathBuf,
    /// The value after which the counter starts again from 0, microjoules.
    range_uj: u64,
}

impl Meter {
    /// Returns the meter with RAPL's counters, or [`Meter::Nothing`] with the reason if they cannot be used.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::rapl_under(Path::new("/"))
    }

    fn rapl_under(root: &Path) -> Self {
        let text = |file: PathBuf| fs::read_to_string(file).map(|text| text.trim().to_owned());
        let mut zones = Vec::new();
        for entry in fs::read_dir(root.join(POWERCAP))
            .into_iter()
            .flatten()
            .flatten()
        {
            let (folder, id) = (entry.path(), entry.file_name());
            // Packages are intel-rapl:0; their counters include those of their subzones (intel-rapl:0:1).
            let package = id.to_str().and_then(|id| id.strip_prefix("intel-rapl:"));
            if package.is_none_or(|number| number.contains(':')) {
                continue;
            }
            let range = text(folder.join("max_energy_range_uj"));
            let range_uj = range.ok().and_then(|text| text.parse().ok());
            let (Ok(name), Some(range_uj)) = (text(folder.join("name")), range_uj) else {
                continue;
            };
            let energy = folder.join("energy_uj");
            match fs::read_to_string(&energy) {
                // The counter of the whole platform (psys) includes the packages.
                Ok(_) if name.starts_with("package") => zones.push(Zone {
                    name,
                    energy,
                    range_uj,
                }),
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Self::Nothing("RAPL needs root".to_owned());
                }
                _ => {}
            }
        }
        zones.sort_by(|a, b| a.name.cmp(&b.name));
        if zones.is_empty() {
            return Self::Nothing("no RAPL here".to_owned());
        }
        Self::Rapl(zones)
    }

    /// Makes a meter from a command for `sh` that prints the joules counted up to now. The command is run once as a
    /// check.
    ///
    /// # Errors
    /// The command fails, takes more than 5 s or prints something other than a number.
    pub fn command(line: &str) -> Result<Self, MeterError> {
        ask(line)?;
        Ok(Self::Command(line.to_owned()))
    }

    /// Reads the meter's energy counters.
    fn read(&self) -> Result<Joules, String> {
        match self {
            Self::Nothing(why) => Err(why.clone()),
            Self::Command(line) => ask(line).map(Joules::Meter).map_err(|e| e.to_string()),
            Self::Rapl(zones) => {
                let count = |zone: &Zone| {
                    let text = fs::read_to_string(&zone.energy);
                    let number = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
                    number.ok_or_else(|| format!("{} cannot be read", zone.energy.display()))
                };
                let counts: Result<_, _> = zones.iter().map(count).collect();
                counts.map(Joules::Rapl)
            }
        }
    }

    /// Returns the joules between two readings `seconds` apart.
    fn between(&self, before: &Joules, after: &Joules, seconds: f64) -> Result<f64, String> {
        match (self, before, after) {
            (Self::Rapl(zones), Joules::Rapl(before), Joules::Rapl(after)) => {
                let mut joules = 0.0;
                for ((zone, before), after) in zones.iter().zip(before).zip(after) {
                    let range_j = zone.range_uj as f64 / 1e6;
                    if seconds * MOST_WATTS > range_j {
                        return Err(format!(
                            "RAPL's counter of {range_j:.0} J may have wrapped more than once: measure for {:.0} s at most",
                            range_j / MOST_WATTS
                        ));
                    }
                    let used_uj = if after >= before {
                        after - before
                    } else {
                        (zone.range_uj - before).saturating_add(*after)
                    };
                    joules += used_uj as f64 / 1e6;
                }
                Ok(joules)
            }
            (_, Joules::Meter(before), Joules::Meter(after)) if after >= before => {
                Ok(after - before)
            }
            _ => Err("the meter counted backwards".to_owned()),
        }
    }

    /// Returns the description of the meter, or the reason why there is none.
    fn source(&self) -> String {
        match self {
            Self::Rapl(zones) => {
                let names: Vec<_> = zones.iter().map(|zone| zone.name.as_str()).collect();
                format!("RAPL {}", names.join(", "))
            }
            Self::Command(line) => format!("meter `{line}`"),
            Self::Nothing(why) => no_data(why),
        }
    }
}

fn no_data(why: &str) -> String {
    format!("no data ({why})")
}

/// A reading of an energy meter.
#[derive(Debug, Clone)]
enum Joules {
    /// The counter of each RAPL zone (processor package), microjoules.
    Rapl(Vec<u64>),
    Meter(f64),
}

/// Runs a meter's command; returns the joules that the command prints.
fn ask(line: &str) -> Result<f64, MeterError> {
    let error = |reason: String| MeterError {
        command: line.to_owned(),
        reason,
    };
    let mut child = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| error(e.to_string()))?;
    let deadline = Instant::now() + METER_PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => break None,
        }
    };
    let Some(status) = status else {
        // The process may have ended after the last check; the kill then fails, which does no harm.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        return Err(error(format!("no reply within {METER_PATIENCE:?}")));
    };
    if !status.success() {
        return Err(error(format!("it failed ({status})")));
    }
    // A child of the command that still runs may keep the pipe open, so this reads once and does not wait for the end.
    let mut text = [0; 64];
    let stdout = child.stdout.take();
    let read = stdout.and_then(|mut stdout| stdout.read(&mut text).ok());
    let text = &text[..read.unwrap_or(0)];
    let text = String::from_utf8_lossy(text).trim().to_owned();
    let joules = text
        .parse()
        .ok()
        .filter(|j: &f64| j.is_finite() && *j >= 0.0);
    joules.ok_or_else(|| error(format!("it printed \"{text}\"")))
}

/// Processor time of the processes that this process has started, and of their descendants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// Processor time in user and kernel mode, s: to the nanosecond if the kernel counts that precisely.
    pub cpu_s: f64,
    /// Processor time in user mode, s, in steps of the kernel's clock tick (10 ms).
    pub user_s: f64,
    /// Processor time in the kernel on behalf of these processes, s, in steps of the kernel's clock tick (10 ms).
    pub system_s: f64,
}

impl CpuTime {
    /// Reads the processor time of the processes that this process has started; `None` if it has not started any.
    fn of_children(root: &Path) -> Option<Self> {
        let proc = root.join("proc");
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let mut parents = BTreeMap::new();
        let mut times = BTreeMap::new();
        for entry in fs::read_dir(&proc).into_iter().flatten().flatten() {
            let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|id| id.parse::<u32>().ok())
            else {
                continue;
            };
            let Some(fields) = stat_fields(&entry.path()) else {
                continue;
            };
            let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
            parents.insert(id, field(4) as u32);
            times.insert(id, [field(14), field(15)]);
        }
        let own = if root == Path::new("/") {
            std::process::id()
        } else {
            1
        };
        let is_child = |id: u32| id != own && is_below(id, own, |id| parents.get(&id).copied());
        let mut sum: Option<Self> = None;
        for (id, [user, system]) in times.into_iter().filter(|(id, _)| is_child(*id)) {
            let sum = sum.get_or_insert_default();
            let (user_s, system_s) = (
                user as f64 / ticks_per_second,
                system as f64 / ticks_per_second,
            );
            sum.user_s += user_s;
            sum.system_s += system_s;
            sum.cpu_s += run_time_s(&proc.join(id.to_string())).unwrap_or(user_s + system_s);
        }
        sum
    }

    fn since(self, before: Self) -> Self {
        let less = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            cpu_s: less(self.cpu_s, before.cpu_s),
            user_s: less(self.user_s, before.user_s),
            system_s: less(self.system_s, before.system_s),
        }
    }
}

/// Returns the processor time of all threads of a process, s, to the nanosecond; `None` if the kernel does not report
/// that.
pub(crate) fn run_time_s(process: &Path) -> Option<f64> {
    let mut sum_ns = 0_u64;
    for task in fs::read_dir(process.join("task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        sum_ns += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    (sum_ns > 0).then_some(sum_ns as f64 / 1e9)
}

/// Returns the idle time of a CPU since the boot, including waiting for disks, s.
fn idle_s(root: &Path, cpu: usize) -> Option<f64> {
    let text = fs::read_to_string(root.join("proc/stat")).ok()?;
    let name = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let field = |at: usize| line.split_whitespace().nth(at)?.parse::<u64>().ok();
    let ticks = field(3)? + field(4)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The state of the meter and of the processor time counters at one moment.
#[derive(Debug)]
pub struct Reading {
    taken: Instant,
    joules: Result<Joules, String>,
    children: Option<CpuTime>,
    idle_s: Option<f64>,
}

/// The energy and processor time used between two readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnergyUse {
    /// The time between the readings, s.
    pub seconds: f64,
    /// The mean power that the meter `source` measured, W; `None` without a meter.
    pub watts: Option<f64>,
    /// The energy that the meter `source` measured, J; `None` without a meter.
    pub joules: Option<f64>,
    /// The meter of the energy, or the reason why there is none.
    pub source: String,
    /// The processor time of the device's processes; `None` if this process did not start the device.
    pub device_cpu: Option<CpuTime>,
    /// `device_cpu.cpu_s` per second of the measurement: 1 is one core during the whole time; `None` without
    /// `device_cpu`.
    pub device_cpu_share: Option<f64>,
    /// The fraction of the time in which the CPU of the device under test was not idle, including the work of other
    /// programs; `None` if the CPU is unknown.
    pub device_core_busy_share: Option<f64>,
}

impl Reading {
    /// Reads `meter`, the processor time of the processes that this process has started, and the idle time of the core
    /// `device_cpu`, if one is given.
    #[must_use]
    pub fn take(meter: &Meter, device_cpu: Option<usize>) -> Self {
        Self::take_under(Path::new("/"), meter, device_cpu)
    }

    fn take_under(root: &Path, meter: &Meter, device_cpu: Option<usize>) -> Self {
        Self {
            joules: meter.read(),
            children: CpuTime::of_children(root),
            idle_s: device_cpu.and_then(|cpu| idle_s(root, cpu)),
            taken: Instant::now(),
        }
    }

    /// Returns the energy and processor time used since the reading `before`.
    #[must_use]
    pub fn since(&self, before: &Self, meter: &Meter) -> EnergyUse {
        let elapsed = self.taken.saturating_duration_since(before.taken);
        let seconds = elapsed.as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let joules = match (&before.joules, &self.joules) {
            (Ok(before), Ok(now)) => meter.between(before, now, seconds),
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
        };
        let device_cpu = self.children.zip(before.children);
        let device_cpu = device_cpu.map(|(now, before)| now.since(before));
        let idle_s = self
            .idle_s
            .zip(before.idle_s)
            .map(|(now, before)| now - before);
        EnergyUse {
            seconds,
            source: joules
                .as_ref()
                .map_or_else(|why| no_data(why), |_| meter.source()),
            watts: joules.as_ref().ok().map(|joules| per_second(*joules)),
            joules: joules.ok(),
            device_cpu,
            device_cpu_share: device_cpu.map(|cpu| per_second(cpu.cpu_s)),
            device_core_busy_share: idle_s.map(|idle| (1.0 - per_second(idle)).clamp(0.0, 1.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tempfile::TempDir;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Makes a folder like `powercap` with the zones of two processor packages, of the cores of one package, and of the
    /// platform.
    fn powercap() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (zone, name, energy) in [
            ("intel-rapl:0", "package-0", "1000000"),
            ("intel-rapl:0:0", "core", "700000"),
            ("intel-rapl:1", "package-1", "5000000000"),
            ("intel-rapl:2", "psys", "123"),
            ("intel-rapl-mmio:0", "package-0", "1000000"),
        ] {
            let folder = format!("{POWERCAP}/{zone}");
            write(root.path(), &format!("{folder}/name"), &format!("{name}\n"));
            write(
                root.path(),
                &format!("{folder}/energy_uj"),
                &format!("{energy}\n"),
            );
            write(
                root.path(),
                &format!("{folder}/max_energy_range_uj"),
                "5000000100\n",
            );
        }
        root
    }

    fn used_with(root: &Path, meter: &Meter, between: impl FnOnce(), seconds: f64) -> EnergyUse {
        let before = Reading::take_under(root, meter, Some(1));
        between();
        let mut after = Reading::take_under(root, meter, Some(1));
        after.taken = before.taken + Duration::from_secs_f64(seconds);
        after.since(&before, meter)
    }

    #[test]
    fn energy_of_all_packages_is_summed_across_counter_wraps() {
        let root = powercap();
        let meter = Meter::rapl_under(root.path());
        let set = |zone: &str, energy: &str| {
            write(root.path(), &format!("{POWERCAP}/{zone}/energy_uj"), energy);
        };
        let change = || {
            set("intel-rapl:0", "4000000\n");
            set("intel-rapl:1", "999900\n");
        };
        let used = used_with(root.path(), &meter, change, 2.0);
        // The first counter rose by 3 J. The second rose by 100 uJ to the end of its range, and by 999,900 uJ after
        // that.
        assert_eq!(used.joules, Some(4.0));
        assert_eq!(used.watts, Some(2.0));
        assert_eq!(used.source, "RAPL package-0, package-1");
    }

    #[test]
    fn an_energy_counter_that_may_have_wrapped_twice_is_ignored() {
        let root = powercap();
        let meter = Meter::rapl_under(root.path());
        let used = used_with(root.path(), &meter, || (), 3600.0);
        assert_eq!((used.watts, used.joules), (None, None));
        assert!(
            used.source.contains("measure for 10 s at most"),
            "{}",
            used.source
        );
    }

    #[test]
    fn the_reason_is_reported_when_no_energy_counter_exists() {
        let root = tempfile::tempdir().unwrap();
        let meter = Meter::rapl_under(root.path());
        let used = used_with(root.path(), &meter, || (), 1.0);
        assert_eq!(
            (used.watts, used.joules, used.device_cpu),
            (None, None, None)
        );
        assert_eq!(used.source, "no data (no RAPL here)");
    }

    #[test]
    fn an_energy_counter_that_becomes_unreadable_is_ignored() {
        let root = powercap();
        let meter = Meter::rapl_under(root.path());
        let energy = format!("{POWERCAP}/intel-rapl:0/energy_uj");
        let used = used_with(
            root.path(),
            &meter,
            || write(root.path(), &energy, "lots"),
            1.0,
        );
        assert_eq!(used.watts, None);
        assert!(
            used.source
                .contains("intel-rapl:0/energy_uj cannot be read"),
            "{}",
            used.source
        );
    }

    #[test]
    fn the_energy_is_the_difference_of_two_meter_readings() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("joules");
        fs::write(&file, "100.5\n").unwrap();
        let meter = Meter::command(&format!("cat {}", file.display())).unwrap();
        let used = used_with(
            folder.path(),
            &meter,
            || fs::write(&file, "130.5").unwrap(),
            10.0,
        );
        assert_eq!((used.joules, used.watts), (Some(30.0), Some(3.0)));
        assert!(used.source.starts_with("meter `cat "), "{}", used.source);
        let backwards = used_with(
            folder.path(),
            &meter,
            || fs::write(&file, "1").unwrap(),
            10.0,
        );
        assert_eq!(backwards.joules, None);
        assert!(
            backwards.source.contains("backwards"),
            "{}",
            backwards.source
        );
    }

    #[test]
    fn an_unusable_energy_meter_is_refused_with_the_expected_format() {
        for (command, part) in [
            ("exit 3", "it failed (exit status: 3)"),
            ("sleep 1000", "no reply within 5s"),
            ("echo 12 W", "it printed \"12 W\""),
            ("echo NaN", "it printed \"NaN\""),
            ("echo -1", "it printed \"-1\""),
            ("true", "it printed \"\""),
            ("/no/such/meter", "it failed"),
        ] {
            let message = Meter::command(command).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
            assert!(
                message.contains("joules counted so far, as one number"),
                "{message}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
        // The meter does not wait for a background child of the command that keeps the output open.
        let begun = Instant::now();
        assert!(Meter::command("echo 5; sleep 3 &").is_ok());
        assert!(begun.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn processor_time_includes_all_descendants_and_no_other_process() {
        let root = tempfile::tempdir().unwrap();
        let process = |id: u32, parent: u32, user: u64, system: u64| {
            let stat =
                format!("{id} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20\n");
            write(root.path(), &format!("proc/{id}/stat"), &stat);
        };
        // Process 1 is this one, 2 its child, 3 its grandchild, and 9 is unrelated.
        process(1, 0, 900, 900);
        process(2, 1, 100, 10);
        process(3, 2, 10, 5);
        process(9, 0, 7000, 7000);
        write(root.path(), "proc/2/task/2/schedstat", "1100000000 5 6\n");
        write(root.path(), "proc/2/task/4/schedstat", "250000000 5 6\n");
        write(
            root.path(),
            "proc/stat",
            "cpu  0 0 0 0\ncpu1 5 5 5 100 10 0 0 0 0 0\n",
        );
        let change = || {
            process(2, 1, 150, 60);
            process(3, 2, 11, 5);
            write(root.path(), "proc/2/task/2/schedstat", "2100000000 5 6\n");
            write(
                root.path(),
                "proc/stat",
                "cpu  0 0 0 0\ncpu1 5 5 5 150 10 0 0 0 0 0\n",
            );
        };
        let meter = Meter::Nothing("no RAPL here".to_owned());
        let used = used_with(root.path(), &meter, change, 2.0);
        let cpu = used.device_cpu.unwrap();
        // The time of process 2 is from its threads' schedstat, and the time of process 3 from its ticks of 10 ms.
        assert!((cpu.cpu_s - 1.01).abs() < 1e-9, "{cpu:?}");
        assert!((cpu.user_s - 0.51).abs() < 1e-9, "{cpu:?}");
        assert!((cpu.system_s - 0.5).abs() < 1e-9, "{cpu:?}");
        assert!((used.device_cpu_share.unwrap() - 0.505).abs() < 1e-9);
        assert!((used.device_core_busy_share.unwrap() - 0.75).abs() < 1e-9);
    }

    #[test]
    fn cpu_time_of_a_busy_child_process_is_counted() {
        let meter = Meter::Nothing("none".to_owned());
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let before = Reading::take(&meter, None);
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut used = before.since(&before, &meter);
        while used.device_cpu.unwrap().cpu_s < 0.02 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            used = Reading::take(&meter, None).since(&before, &meter);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used.device_cpu.unwrap().cpu_s >= 0.02, "{used:?}");
    }
}
