//! The known properties of a machine: of this one, from the kernel, or of one that a file describes. (Gallenmüller
//! 2021, Table 4.1.)

use crate::ForecastError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::Duration;
use taut_deploy::origin;
use taut_model::access::{Hierarchy, Inclusion, Level};
use taut_model::estimate::Estimate;
use taut_model::io_costs::IoCosts;
use taut_model::resource::bandwidth::{line_bit_s, memory_bit_s, pcie_bit_s};
use taut_model::resource::{Costs, Machine};
use taut_sys::Clock;

/// Assumed cycles of an access to each cache and to memory if they were not measured. The values for the caches are
/// from Gallenmüller 2021, Table 4.2. The value for memory was measured on the machines of this table.
const ASSUMED_LEVEL_CYCLES: [f64; 3] = [4.0, 12.0, 29.0];
const ASSUMED_MEMORY_CYCLES: f64 = 250.0;

/// A machine as a TOML file describes it. A property without a key is unknown, and limits nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Name of the machine, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of cores that forward packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Clock of the cores, GHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
    /// Fraction of each core's time for other work, 0 to 1: c_other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<f64>,
    /// Total rate of the links through which packets leave: `10G`, `2x25G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Packet rate limit of the NIC, millions of packets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_mpps: Option<f64>,
    /// PCI Express of the NICs, as generation and lanes: `3x8`; for several NICs: `2x 3x8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<String>,
    /// Memory, as megatransfers per second and channels: `3200x2` is two channels of 3200 MT/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Data rate in one direction between CPU sockets, for packets that have to cross it: `77G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interconnect: Option<String>,
    /// Cycles that packets cost; `None` if they are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<CostsFile>,
    /// Costs of the machine's ports, as measured by `taut bench io`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoCosts>,
    /// Caches of a core, the smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheFile>,
    /// Cycles of an access to memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_cycles: Option<f64>,
    /// True (the default) if a cache also holds the contents of smaller caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inclusive: Option<bool>,
}

/// Costs of packets, in cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostsFile {
    /// Cycles per packet for receiving and sending: c_IO.
    pub io: f64,
    /// Cycles per packet for its processing: c_task.
    #[serde(default)]
    pub task: f64,
    /// Cycles per byte of a packet.
    #[serde(default)]
    pub byte: f64,
    /// Cycles per batch, shared by its packets.
    #[serde(default)]
    pub batch: f64,
}

/// A cache, as a machine file describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheFile {
    /// Size of the cache, KiB.
    pub kib: f64,
    /// Cycles of an access that hits the cache.
    pub cycles: f64,
}

impl CostsFile {
    /// Returns the costs as estimates without an interval, because their uncertainty is unknown.
    ///
    /// # Errors
    /// A cost is negative or not finite.
    pub fn exact(&self) -> Result<Costs, ForecastError> {
        Ok(Costs {
            io_cycles: Estimate::given(self.io)?,
            task_cycles: Estimate::given(self.task)?,
            byte_cycles: Estimate::given(self.byte)?,
            batch_cycles: Estimate::given(self.batch)?,
        })
    }
}

impl Described {
    /// Reads a machine file.
    ///
    /// # Errors
    /// The file cannot be read, or has an invalid value.
    pub fn load(path: &Path) -> Result<Self, ForecastError> {
        let text = fs::read_to_string(path).map_err(|source| ForecastError::File {
            path: path.to_owned(),
            source,
        })?;
        let described: Self = toml::from_str(&text)
            .map_err(|e| ForecastError::Wrong(format!("{}: {}", path.display(), one_line(&e))))?;
        // An invalid value is reported when the file is read, with its key.
        described
            .machine()
            .and_then(|_| described.hierarchy())
            .and_then(|_| Ok(described.io.as_ref().map_or(Ok(()), IoCosts::check)?))
            .map_err(|e| ForecastError::Wrong(format!("{}: {e}", path.display())))?;
        Ok(described)
    }

    /// Returns a description of this machine with the properties that the kernel reports. Cycles are those of the
    /// time-stamp counter, as everywhere in taut.
    pub fn here() -> Self {
        let machine = taut_host::Machine::read();
        let clock = Clock::calibrate(Duration::from_millis(10));
        let (line_mbit_s, pcie) = links();
        let caches = machine
            .caches
            .iter()
            .filter(|cache| cache.kind != "Instruction");
        Self {
            name: machine.cpu_model.as_ref().map(|fact| fact.value.clone()),
            cores: machine.cores.and_then(|cores| u32::try_from(cores).ok()),
            ghz: Some(clock.hz / 1e9),
            line: line_mbit_s.map(|mbit_s| format!("{}G", mbit_s / 1e3)),
            pcie,
            caches: caches
                .enumerate()
                .map(|(at, cache)| CacheFile {
                    kib: cache.size_bytes as f64 / 1024.0,
                    cycles: *ASSUMED_LEVEL_CYCLES
                        .get(at)
                        .unwrap_or(&ASSUMED_MEMORY_CYCLES),
                })
                .collect(),
            ..Self::default()
        }
    }

    /// Returns this description, in which the known properties of `other` replace the properties of `self`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            name: other.name.or(self.name),
            cores: other.cores.or(self.cores),
            ghz: other.ghz.or(self.ghz),
            other: other.other.or(self.other),
            line: other.line.or(self.line),
            card_mpps: other.card_mpps.or(self.card_mpps),
            pcie: other.pcie.or(self.pcie),
            memory: other.memory.or(self.memory),
            interconnect: other.interconnect.or(self.interconnect),
            costs: other.costs.or(self.costs),
            io: other.io.or(self.io),
            caches: match other.caches.is_empty() {
                true => self.caches,
                false => other.caches,
            },
            memory_cycles: other.memory_cycles.or(self.memory_cycles),
            inclusive: other.inclusive.or(self.inclusive),
        }
    }

    /// Returns the machine for the resource model. If the number of cores is unknown, it has one core.
    ///
    /// # Errors
    /// The clock is unknown, or a value is invalid.
    pub fn machine(&self) -> Result<Machine, ForecastError> {
        let ghz = self.ghz.ok_or_else(|| {
            ForecastError::Wrong(
                "the clock is unknown: give it with --ghz, or `ghz` in the machine file".to_owned(),
            )
        })?;
        let other = self.other.unwrap_or(0.0);
        if !(0.0..1.0).contains(&other) {
            return Err(ForecastError::Wrong(format!(
                "other = {other}: expected the share of a core that goes to other things, at least 0 and below 1"
            )));
        }
        let rates = |text: &Option<String>, read: fn(&str) -> Option<f64>, wanted: &str| {
            let text = text.as_deref();
            let read = text.map(|text| {
                read(text)
                    .ok_or_else(|| ForecastError::Wrong(format!("\"{text}\": expected {wanted}")))
            });
            read.transpose()
        };
        let machine = Machine::new(self.cores.unwrap_or(1), ghz * 1e9)?;
        Ok(Machine {
            other_cycles_per_s: other * machine.clock_hz,
            ethernet_bit_s: rates(&self.line, bit_rate, "a line such as 10G or 2x25G")?,
            card_pps: self.card_mpps.map(|mpps| mpps * 1e6),
            pcie_bit_s: rates(
                &self.pcie,
                pcie,
                "PCI Express as generation x lanes, such as 3x8",
            )?,
            memory_bit_s: rates(
                &self.memory,
                memory,
                "memory as MT/s x channels, such as 3200x2",
            )?,
            interconnect_bit_s: rates(&self.interconnect, bit_rate, "a rate such as 77G")?,
            ..machine
        })
    }

    /// Returns the cost of receiving and sending a packet through `port` in full batches, and a text that states the
    /// origin of the cost.
    ///
    /// # Errors
    /// No such port was measured on the machine.
    pub fn io(&self, port: &str) -> Result<(Estimate, String), ForecastError> {
        let Some(io) = &self.io else {
            return Err(ForecastError::Wrong(format!(
                "--io {port}: expected cycles, or with --machine a port of a machine file that taut bench io wrote (machine.toml)"
            )));
        };
        let Some(found) = io.of(port) else {
            let there: Vec<&str> = io.ports.iter().map(|it| it.port.as_str()).collect();
            return Err(ForecastError::Wrong(format!(
                "--io {port}: the machine file has {}",
                there.join(", ")
            )));
        };
        Ok((
            found.batch.estimate()?,
            format!("c_IO of {}, {}", found.port, origin(io)),
        ))
    }

    /// Returns the machine's caches, or `None` if they are unknown.
    ///
    /// # Errors
    /// The sizes of the caches do not ascend, or a value is invalid.
    pub fn hierarchy(&self) -> Result<Option<Hierarchy>, ForecastError> {
        if self.caches.is_empty() {
            return Ok(None);
        }
        let levels = self.caches.iter().enumerate().map(|(at, cache)| Level {
            name: format!("L{}", at + 1),
            size_bytes: cache.kib * 1024.0,
            latency_cycles: cache.cycles,
            share: 1.0,
            steepness: 1.0,
        });
        let inclusion = match self.inclusive {
            Some(false) => Inclusion::Exclusive,
            _ => Inclusion::Inclusive,
        };
        let memory = self.memory_cycles.unwrap_or(ASSUMED_MEMORY_CYCLES);
        Ok(Some(Hierarchy::new(levels.collect(), memory, inclusion)?))
    }
}

/// Returns the TOML reader's message with its lines joined to one.
pub(crate) fn one_line(error: &toml::de::Error) -> String {
    error.message().lines().collect::<Vec<_>>().join(" ")
}

/// Returns a rate such as `10G`, `2x25G` or `100Gbit/s`, in bit/s, or `None` if the text is not a rate.
pub fn bit_rate(text: &str) -> Option<f64> {
    let (times, each) = match text.split_once(['x', 'X']) {
        Some((times, each)) => (times.trim().parse::<u32>().ok()?, each.trim()),
        None => (1, text.trim()),
    };
    let each = each.strip_suffix("bit/s").unwrap_or(each);
    let bit_s = line_bit_s(each).or_else(|| {
        let units = [("M", 1e6), ("G", 1e9), ("T", 1e12)];
        let (number, factor) = units
            .iter()
            .find_map(|(unit, factor)| Some((each.strip_suffix(unit)?, factor)))?;
        number.parse::<f64>().ok().map(|number| number * factor)
    })?;
    (times > 0 && bit_s.is_finite() && bit_s > 0.0).then(|| f64::from(times) * bit_s)
}

fn pcie(text: &str) -> Option<f64> {
    let (cards, link) = match text.split_once(' ') {
        Some((cards, link)) => (cards.trim_end_matches('x').parse::<u32>().ok()?, link),
        None => (1, text),
    };
    let (generation, lanes) = link.trim().split_once('x')?;
    let each = pcie_bit_s(generation.parse().ok()?, lanes.parse().ok()?)?;
    (cards > 0).then(|| f64::from(cards) * each)
}

fn memory(text: &str) -> Option<f64> {
    let (transfers, channels) = text.split_once('x')?;
    memory_bit_s(transfers.parse().ok()?, channels.parse().ok()?).ok()
}

/// Finds the NIC of this machine with the fastest link. Returns the rate of that link, Mbit/s, and the NIC's bus; each
/// is `None` if it is unknown.
fn links() -> (Option<f64>, Option<String>) {
    let interfaces = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let text = |path: &Path| {
        fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let cards = interfaces.filter_map(|interface| {
        let speed = text(&interface.path().join("speed"))?.parse::<f64>().ok()?;
        let device = interface.path().join("device");
        (speed > 0.0 && device.exists()).then_some((speed, device))
    });
    let Some((speed, device)) = cards.max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return (None, None);
    };
    // "8.0 GT/s PCIe" is the third generation.
    let generation = text(&device.join("current_link_speed")).and_then(|speed| {
        match speed.split_whitespace().next()? {
            "2.5" => Some(1),
            "5.0" => Some(2),
            "8.0" => Some(3),
            "16.0" => Some(4),
            "32.0" => Some(5),
            _ => None,
        }
    });
    let lanes = text(&device.join("current_link_width"));
    (
        Some(speed),
        generation
            .zip(lanes)
            .map(|(generation, lanes)| format!("{generation}x{lanes}")),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_with_units_and_multipliers_are_parsed() {
        for (text, bit_s) in [
            ("10G", 10e9),
            ("2x25G", 50e9),
            ("100Gbit/s", 100e9),
            ("1.5T", 1.5e12),
            ("77G", 77e9),
        ] {
            assert_eq!(bit_rate(text), Some(bit_s), "{text}");
        }
        for wrong in [
            "", "G", "x10G", "0x10G", "-1G", "NaNG", "infG", "10", "10Q", "\u{65e5}",
        ] {
            assert_eq!(bit_rate(wrong), None, "{wrong}");
        }
        assert_eq!(pcie("3x8").map(|rate| (rate / 1e9).round()), Some(63.0));
        assert_eq!(pcie("2x 3x8").map(|rate| (rate / 1e9).round()), Some(126.0));
        assert_eq!((pcie("3x7"), pcie("8"), memory("3200")), (None, None, None));
        assert_eq!(memory("1600x2"), Some(204.8e9));
    }

    #[test]
    fn machine_files_leave_missing_values_unknown_and_refuse_wrong_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.toml");
        let text = "ghz = 3.3\nline = \"10G\"\n[costs]\nio = 100\ntask = 350\n\
            [[caches]]\nkib = 32\ncycles = 4\n[[caches]]\nkib = 256\ncycles = 12\n";
        fs::write(&path, text).unwrap();
        let machine = Described::load(&path).unwrap();
        let known = machine.machine().unwrap();
        assert_eq!(
            (known.cores, known.ethernet_bit_s, known.pcie_bit_s),
            (1, Some(10e9), None)
        );
        assert_eq!(machine.hierarchy().unwrap().unwrap().levels().len(), 2);
        for (wrong, says) in [
            ("ghz = 3.3\nspeed = 1\n", "unknown field `speed`"),
            ("ghz = nan\n", "a clock"),
            ("ghz = 3\nother = 1.5\n", "other = 1.5"),
            ("ghz = 3\nline = \"fast\"\n", "expected a line such as 10G"),
            ("ghz = 3\ncores = 0\n", "cores"),
            ("cores = 2\n", "the clock is unknown"),
            (
                "ghz = 3\n[io]\nmeasured = \"x\"\nframe_bytes = 64\n[[io.port]]\nport = \"memif\"\n\
                 batch = { cycles = nan, low = 1, high = 1, coverage = 0, count = 1 }\n",
                "cycles of input and output",
            ),
            (
                "ghz = 3\n[[caches]]\nkib = 9\ncycles = 4\n[[caches]]\nkib = 8\ncycles = 4\n",
                "a cache",
            ),
        ] {
            fs::write(&path, wrong).unwrap();
            let error = Described::load(&path).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.contains("machine.toml"),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn the_local_machine_is_described_and_values_can_be_overridden() {
        let here = Described::here();
        assert!(here.machine().is_ok(), "{here:?}");
        let asked = here.clone().with(Described {
            line: Some("10G".to_owned()),
            cores: Some(7),
            ..Described::default()
        });
        assert_eq!((asked.cores, asked.ghz), (Some(7), here.ghz));
    }
}
