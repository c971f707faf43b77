//! Fractions of the processors' time between two readings, in the categories of `mpstat` (sysstat). They are computed
//! from the counters of `/proc/stat` (proc_stat(5)), which are in ticks of the kernel's clock (10 ms).

use crate::energy::run_time_s;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The kernel's counters of processor time at one moment.
#[derive(Debug, Clone)]
pub struct CpuReading {
    taken: Instant,
    /// The counters of `/proc/stat` in ticks, by CPU number; `None` is the line with the sum of all CPUs.
    lines: Vec<(Option<usize>, [u64; 10])>,
    own_s: Option<f64>,
}

/// Fractions of a processor's time by kind of use, 0 to 1; their sum is 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuShare {
    /// The fraction of time spent in programs, without guests (virtual machines).
    pub user: f64,
    /// The fraction of time spent in the kernel on behalf of programs.
    pub system: f64,
    /// The fraction of time spent in interrupt handlers.
    pub irq: f64,
    /// The fraction of time spent in soft interrupts, which include most of the kernel's network stack.
    pub softirq: f64,
    /// The fraction of time in which the hypervisor did not run this virtual machine, although it was ready to run.
    pub steal: f64,
    /// The fraction of time spent in virtual machines that run on this machine.
    pub guest: f64,
    /// The fraction of idle time, including waiting for disks.
    pub idle: f64,
}

/// The fractions of the processors' time by kind of use, between two readings of `/proc/stat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuShares {
    /// The time between the readings, s.
    pub seconds: f64,
    /// The fractions of all processors together.
    pub all: CpuShare,
    /// The fractions of each processor, with the processor's number.
    pub cpus: Vec<(usize, CpuShare)>,
    /// The fraction of all processors' time that this process used; `None` if the kernel does not report it.
    pub own: Option<f64>,
}

impl CpuReading {
    /// Reads the counters of processor time from `/proc/stat`.
    ///
    /// # Errors
    /// The file cannot be read, or has no line about processors.
    pub fn take() -> std::io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let lines = lines(&text);
        if lines.is_empty() {
            return Err(std::io::Error::other(
                "/proc/stat has no line of processors",
            ));
        }
        Ok(Self {
            taken: Instant::now(),
            lines,
            own_s: run_time_s(Path::new("/proc/self")),
        })
    }

    /// Returns the fractions of processor time since the reading `before`. Processors that went online or offline in
    /// between are omitted.
    #[must_use]
    pub fn since(&self, before: &Self) -> CpuShares {
        let seconds = self.taken.saturating_duration_since(before.taken);
        let seconds = seconds.as_secs_f64();
        let mut all = CpuShare::default();
        let mut cpus = Vec::new();
        for (cpu, now) in &self.lines {
            let Some((_, then)) = before.lines.iter().find(|(other, _)| other == cpu) else {
                continue;
            };
            let share = CpuShare::between(then, now);
            match cpu {
                None => all = share,
                Some(cpu) => cpus.push((*cpu, share)),
            }
        }
        let own = self.own_s.zip(before.own_s);
        let available = seconds * cpus.len() as f64;
        CpuShares {
            seconds,
            all,
            own: own
                .filter(|_| available > 0.0)
                .map(|(now, then)| (now - then).max(0.0) / available),
            cpus,
        }
    }
}

impl CpuShare {
    fn between(then: &[u64; 10], now: &[u64; 10]) -> Self {
        // Counters of a virtual machine can go backwards.
        let spent: [f64; 10] = std::array::from_fn(|at| now[at].saturating_sub(then[at]) as f64);
        let [
            user,
            nice,
            system,
            idle,
            iowait,
            irq,
            softirq,
            steal,
            guest,
            guest_nice,
        ] = spent;
        // The kernel counts guests as user time as well.
        let user = (user + nice - guest - guest_nice).max(0.0);
        let guest = guest + guest_nice;
        let total = user + system + idle + iowait + irq + softirq + steal + guest;
        if total == 0.0 {
            return Self::default();
        }
        Self {
            user: user / total,
            system: system / total,
            irq: irq / total,
            softirq: softirq / total,
            steal: steal / total,
            guest: guest / total,
            idle: (idle + iowait) / total,
        }
    }
}

fn lines(text: &str) -> Vec<(Option<usize>, [u64; 10])> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = match words.next()? {
            "" => None,
            number => Some(number.parse().ok()?),
        };
        // In the line with the sum of all CPUs, two spaces follow the name. Old kernels print fewer than ten numbers.
        let mut ticks = words.filter(|word| !word.is_empty());
        let ticks =
            std::array::from_fn(|_| ticks.next().and_then(|word| word.parse().ok()).unwrap_or(0));
        Some((cpu, ticks))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    fn reading(text: &str, at: Instant, own_s: f64) -> CpuReading {
        CpuReading {
            taken: at,
            lines: lines(text),
            own_s: Some(own_s),
        }
    }

    #[test]
    fn ticks_become_fractions_and_user_time_excludes_guests() {
        let begun = Instant::now();
        let before = reading(
            "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 100 0 0 100 0 0 0 0 0 0\nintr 5 6\n",
            begun,
            1.0,
        );
        let after = reading(
            "cpu  140 10 20 160 20 10 20 20 30 0\ncpu0 140 10 20 160 20 10 20 20 30 0\ncpu1 1 1 1 1 1 1 1 1 1 1\n",
            begun + Duration::from_secs(2),
            1.5,
        );
        let shares = after.since(&before);
        let all = shares.all;
        // The counters rose by 200 ticks: 50 of user and nice, of which 30 belong to guests.
        assert_eq!((all.user, all.guest), (0.1, 0.15));
        assert_eq!((all.system, all.irq, all.softirq), (0.1, 0.05, 0.1));
        assert_eq!((all.steal, all.idle), (0.1, 0.4));
        assert_eq!(shares.cpus, [(0, all)]);
        assert_eq!((shares.own, shares.seconds), (Some(0.25), 2.0));
    }

    #[test]
    fn the_cpu_time_of_a_busy_loop_is_measured() {
        let before = CpuReading::take().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let shares = CpuReading::take().unwrap().since(&before);
        let all = shares.all;
        let sum = all.user + all.system + all.irq + all.softirq + all.steal + all.guest + all.idle;
        assert!((0.999..1.001).contains(&sum), "{shares:?}");
        assert!(!shares.cpus.is_empty() && all.idle < 1.0, "{shares:?}");
        assert!(shares.own.is_none_or(|own| own > 0.0), "{shares:?}");
    }
}
