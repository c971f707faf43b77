//! The cost of receiving and sending a packet on a machine, by port, as measured by `taut bench io`: c_IO. Date and
//! machine are included, so that a prediction can state the age of these costs. (Gallenmüller 2021, section 5.1.5.)

use crate::estimate::{Estimate, WrongValue, not_negative, positive, share};
use serde::{Deserialize, Serialize};

/// Costs of the ports of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoCosts {
    /// Time of the measurement, RFC 3339.
    pub measured: String,
    /// Processor of the machine. `None` if it reports no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Fraction of the core that other tasks took during the measurement, 0 to 1. `None` if it was not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<f64>,
    /// Frame length in the measurement, check sequence included, bytes.
    pub frame_bytes: u32,
    /// Costs by port.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortCosts>,
}

/// Costs of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortCosts {
    /// Prefix of the specs of ports with these costs: `memif`, or `dpdk:net_memif`.
    pub port: String,
    /// Cost of receiving a packet on one port and sending it on another, in full batches.
    pub batch: Cycles,
    /// Cost of receiving and sending a packet if packets arrive one by one. `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Cycles>,
}

/// Time-stamp counter cycles per packet, summarised over repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cycles {
    /// Median of the repetitions.
    pub cycles: f64,
    /// Lower end of the median's interval.
    pub low: f64,
    /// Upper end of the median's interval.
    pub high: f64,
    /// Probability that an interval computed in this manner covers the true median, 0 to 1.
    pub coverage: f64,
    /// Number of repetitions that are summarised.
    pub count: u64,
}

impl Cycles {
    /// Returns the cycles as an estimate for the models.
    ///
    /// # Errors
    /// [`WrongValue`] for invalid numbers.
    pub fn estimate(&self) -> Result<Estimate, WrongValue> {
        positive("cycles of input and output", self.cycles)?;
        not_negative("cycles of input and output", self.low)?;
        not_negative("cycles of input and output", self.high)?;
        share("coverage of an interval", self.coverage)?;
        // The interval of a single repetition has length 0 and confidence 0.
        Estimate::new(self.cycles, self.low, self.high, self.coverage)
    }
}

impl IoCosts {
    /// Returns the costs of the port with the given spec, from the entry with the longest matching prefix; `None` if no
    /// prefix matches.
    pub fn of(&self, spec: &str) -> Option<&PortCosts> {
        let begins = |costs: &&PortCosts| {
            spec.strip_prefix(costs.port.as_str())
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        };
        let found = self.ports.iter().filter(begins);
        found.max_by_key(|costs| costs.port.len())
    }

    /// Checks that all costs and fractions are valid.
    ///
    /// # Errors
    /// [`WrongValue`] for the first invalid number.
    pub fn check(&self) -> Result<(), WrongValue> {
        if let Some(taken) = self.taken {
            share("share of a core that others took", taken)?;
        }
        for costs in &self.ports {
            costs.batch.estimate()?;
            costs.alone.map(|alone| alone.estimate()).transpose()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cycles(cycles: f64) -> Cycles {
        Cycles {
            cycles,
            low: 0.9 * cycles,
            high: 1.1 * cycles,
            coverage: 0.9375,
            count: 5,
        }
    }

    fn costs() -> IoCosts {
        let port = |port: &str, value| PortCosts {
            port: port.to_owned(),
            batch: cycles(value),
            alone: None,
        };
        IoCosts {
            measured: "2026-11-25T03:00:00Z".to_owned(),
            cpu: None,
            taken: Some(0.01),
            frame_bytes: 64,
            ports: vec![port("af_packet", 4000.0), port("dpdk:net_memif", 90.0)],
        }
    }

    #[test]
    fn port_costs_are_found_by_the_prefix_of_the_spec() {
        let costs = costs();
        let of = |spec| costs.of(spec).map(|found| found.batch.cycles);
        assert_eq!(of("af_packet:eth0"), Some(4000.0));
        assert_eq!(of("dpdk:net_memif0,role=client"), Some(90.0));
        assert_eq!(
            (of("af_packet_v9:x"), of("dpdk:0000:01:00.0")),
            (None, None)
        );
    }

    #[test]
    fn invalid_cycle_costs_are_refused() {
        assert!(costs().check().is_ok());
        for wrong in [f64::NAN, -1.0, 0.0] {
            let mut costs = costs();
            costs.ports[0].batch.cycles = wrong;
            assert!(costs.check().is_err(), "{wrong}");
        }
        let mut costs = costs();
        costs.ports[1].alone = Some(Cycles {
            high: 1.0,
            ..cycles(9.0)
        });
        assert!(costs.check().is_err());
    }

    #[test]
    fn the_interval_of_a_single_repetition_has_no_confidence() {
        let single = Cycles {
            coverage: 0.0,
            ..cycles(9.0)
        };
        assert!(single.estimate().unwrap().confidence < 1e-300);
    }
}
