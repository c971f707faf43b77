//! Gates that open for each direction at set times within a cycle.

use super::settings::{Gates, MediumError, ns, wrong};

#[derive(Debug)]
pub(super) struct GatePlan {
    cycle_ns: u64,
    open: [Vec<(u64, u64)>; 2],
    pub(super) ns_per_byte: f64,
    pub(super) delay_ns: u64,
    pub(super) free_ns: [u64; 2],
}

impl GatePlan {
    /// Returns the first time at or after `from_ns` at which the gate is open for at least `takes_ns`.
    pub(super) fn opens_ns(&self, way: usize, from_ns: u64, takes_ns: u64) -> u64 {
        let cycle = from_ns / self.cycle_ns;
        for cycle in cycle..cycle + 3 {
            let begins = cycle * self.cycle_ns;
            for (open, close) in &self.open[way] {
                let at_ns = from_ns.max(begins + open);
                if at_ns + takes_ns <= begins + close {
                    return at_ns;
                }
            }
        }
        // This frame is longer than any window; windows too short for Ethernet frames were refused when the settings
        // were read.
        from_ns
    }
}

pub(super) fn gate_plan(gates: &Gates) -> Result<GatePlan, MediumError> {
    let cycle_ns = ns("gates.cycle_us", gates.cycle_us, 1.0)?;
    if !(1.0..=1e6).contains(&gates.mbit_per_s) {
        return wrong(format!(
            "gates.mbit_per_s = {}: expected 1 to 1000000",
            gates.mbit_per_s
        ));
    }
    let ns_per_byte = 8e3 / gates.mbit_per_s;
    let longest_ns = (1_538.0 * ns_per_byte).ceil() as u64;
    let windows = |key: &str, windows: &[(f64, f64)]| {
        let (mut open, mut last_ns, mut longest) = (Vec::new(), 0, 0);
        for (from_us, to_us) in windows {
            let (from_ns, to_ns) = (ns(key, *from_us, 0.0)?, ns(key, *to_us, 0.0)?);
            if from_ns < last_ns || to_ns <= from_ns || to_ns > cycle_ns {
                return wrong(format!(
                    "{key}: {from_us} to {to_us} us: expected times in order, within the cycle"
                ));
            }
            longest = longest.max(to_ns - from_ns);
            last_ns = to_ns;
            open.push((from_ns, to_ns));
        }
        if longest < longest_ns {
            return wrong(format!(
                "{key}: expected a window of {longest_ns} ns or more, so that every frame fits"
            ));
        }
        Ok(open)
    };
    let open = [
        windows("gates.first", &gates.first)?,
        windows("gates.second", &gates.second)?,
    ];
    Ok(GatePlan {
        cycle_ns,
        open,
        ns_per_byte,
        delay_ns: ns("gates.delay_us", gates.delay_us, 0.0)?,
        free_ns: [0; 2],
    })
}
