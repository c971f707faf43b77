//! The chain model: cycles of a packet through a chain of functions, and the rate that follows.
//! (Gallenmüller 2021, section 5.2, eqs. 5.6 and 5.7, Fig. 5.6; eq. 5.8 is a chain of one function, a router.)
//!
//! `c_chain = (e - 1) c_hand-over` for `e` functions, and `f = n (c_IO + c_chain + c_calculation + c_access + c_busy)`.
//! [`crate::access`] gives the cost of accesses; functions on one core share its caches.

use crate::access::{Hierarchy, Structure};
use crate::estimate::{Estimate, WrongValue};
use crate::model_file::{Factor, Shape};
use crate::resource::Costs;
use serde::Serialize;

/// Variables of a run on which the costs of a chain depend, with their units.
pub const VARIABLES: [(&str, &str); 5] = [
    ("load_cycles", "cycles"),
    ("hand_overs", "functions less one"),
    ("frame_bytes", "bytes"),
    ("batch", "packets"),
    ("line_cycles", "cycles"),
];

/// The work of one function on each packet.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Cycles per packet without memory accesses: c_task-calc.
    pub calculation_cycles: Estimate,
    /// The structure that the function accesses at random; `None` if it accesses only data that is always cached.
    pub structure: Option<Structure>,
}

/// A chain of functions on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Cycles of receiving and sending a packet: c_IO.
    pub io_cycles: Estimate,
    /// Cycles for handing one packet over to the next function.
    pub hand_over_cycles: Estimate,
    /// The functions in the order in which packets pass them.
    pub functions: Vec<Function>,
}

/// The cycles of one function per packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionCycles {
    /// Name of the function.
    pub name: String,
    /// Cycles of the function's calculation per packet: c_task-calc.
    pub calculation: Estimate,
    /// Cycles of the function's memory accesses per packet: c_task-access.
    pub access: f64,
}

/// The cycles of a packet by their purpose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChainCycles {
    /// Cycles of receiving and sending: c_IO.
    pub io: Estimate,
    /// Cycles of all hand-overs of a packet together: c_chain.
    pub chain: Estimate,
    /// Cycles of each function.
    pub functions: Vec<FunctionCycles>,
    /// Sum of `io`, `chain` and `functions`.
    pub total: Estimate,
}

impl Chain {
    /// Returns the cycles of a packet through the chain. `memory` may be `None` if no function has a structure: the
    /// measured calculation costs then include the memory accesses.
    ///
    /// # Errors
    /// [`WrongValue`] for invalid structures, and for a function with a structure if `memory` is `None`.
    pub fn cycles(&self, memory: Option<&Hierarchy>) -> Result<ChainCycles, WrongValue> {
        let structures: Vec<Structure> =
            self.functions.iter().filter_map(|f| f.structure).collect();
        let of_accesses = match memory {
            Some(memory) => memory.cycles_shared(&structures)?,
            None if structures.is_empty() => Vec::new(),
            None => {
                return Err(WrongValue {
                    what: "number of levels of memory".to_owned(),
                    found: 0.0,
                    needs: "a hierarchy, for functions with a structure",
                });
            }
        };
        let mut of_accesses = of_accesses.into_iter();
        let mut functions = Vec::new();
        for function in &self.functions {
            let own = function
                .structure
                .map(|s| s.accesses * of_accesses.next().unwrap_or_default());
            functions.push(FunctionCycles {
                name: function.name.clone(),
                calculation: function.calculation_cycles,
                access: own.unwrap_or_default(),
            });
        }
        let hand_overs = self.functions.len().saturating_sub(1) as f64;
        let chain = self.hand_over_cycles.times(hand_overs);
        let mut total = self.io_cycles.plus(chain);
        for function in &functions {
            total = total
                .plus(function.calculation)
                .plus(Estimate::given(function.access)?);
        }
        Ok(ChainCycles {
            io: self.io_cycles,
            chain,
            functions,
            total,
        })
    }
}

impl ChainCycles {
    /// Returns the cycles as costs for the resource model, which computes a machine's highest rate:
    /// [`crate::resource::Machine::carried`].
    ///
    /// # Errors
    /// [`WrongValue`] if the sum of the cycles is not a finite number.
    pub fn costs(&self) -> Result<Costs, WrongValue> {
        let mut task = self.chain;
        for function in &self.functions {
            task = task
                .plus(function.calculation)
                .plus(Estimate::given(function.access)?);
        }
        Ok(Costs::per_packet(self.io, task))
    }
}

/// Returns the candidate sets of terms for a fit of cycles per packet to runs of chains. They are the sets of
/// [`crate::resource::shapes`], each without and with
///
/// - hand-overs between functions (`hand_overs`: number of functions less one), per packet or per batch;
/// - cache lines transferred from the sender's core (`line_cycles`: the round trip of a line). They count per batch
///   (indices of a ring), per packet (its descriptor), per byte (its frame), and in combinations.
///
/// If `memory` is given, with known shares, all sets include accesses to each level (`accesses` per packet, to a
/// structure of `structure_bytes`).
pub fn shapes(memory: Option<&Hierarchy>) -> Vec<Vec<Shape>> {
    let term = |name: &str, unit: &str, factors: &[(&str, f64)]| {
        let factors = factors.iter().map(|(of, power)| Factor::power(of, *power));
        Shape::new(name, unit, factors.collect())
    };
    let hand_over = term("hand_over", "cycles/hand-over", &[("hand_overs", 1.0)]);
    let call = term(
        "hand_over_batch",
        "cycles/hand-over/batch",
        &[("hand_overs", 1.0), ("batch", -1.0)],
    );
    let line_batch = term(
        "line_batch",
        "lines/batch",
        &[("line_cycles", 1.0), ("batch", -1.0)],
    );
    let line = term("line", "lines/packet", &[("line_cycles", 1.0)]);
    let line_byte = term(
        "line_byte",
        "lines/byte",
        &[("line_cycles", 1.0), ("frame_bytes", 1.0)],
    );
    let of_functions = [vec![], vec![hand_over], vec![call]];
    let of_lines = [
        vec![],
        vec![line_batch.clone()],
        vec![line.clone()],
        vec![line_byte.clone()],
        vec![line_batch.clone(), line.clone()],
        vec![line_batch.clone(), line_byte.clone()],
        vec![line_batch, line, line_byte],
    ];
    let mut accesses = memory.map(Hierarchy::shapes).unwrap_or_default();
    for access in &mut accesses {
        access.factors.push(Factor::power("accesses", 1.0));
    }
    let mut sets = Vec::new();
    for set in crate::resource::shapes() {
        for functions in &of_functions {
            for lines in &of_lines {
                sets.push([&set[..], functions, lines, &accesses].concat());
            }
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::access::{PUBLISHED_LOADER_CYCLES, PUBLISHED_SHARE};
    use crate::fit::Spread;
    use crate::model_file::{Fitting, Kind, Method, Provenance, Run, Variable, carried};

    fn given(value: f64) -> Estimate {
        Estimate::given(value).unwrap()
    }

    fn published_memory() -> Hierarchy {
        let memory = Hierarchy::published(PUBLISHED_SHARE).unwrap();
        memory.with_loader(PUBLISHED_LOADER_CYCLES).unwrap()
    }

    fn chain(functions: Vec<Function>) -> Chain {
        Chain {
            io_cycles: given(100.0),
            hand_over_cycles: given(35.0),
            functions,
        }
    }

    fn function(calculation: f64, structure: Option<Structure>) -> Function {
        Function {
            name: "sheep".to_owned(),
            calculation_cycles: given(calculation),
            structure,
        }
    }

    #[test]
    fn a_chain_of_five_empty_functions_costs_four_handoffs() {
        let cycles = chain(vec![function(0.0, None); 5])
            .cycles(Some(&published_memory()))
            .unwrap();
        assert_eq!((cycles.chain.value, cycles.total.value), (140.0, 240.0));
        let one = chain(vec![function(0.0, None)])
            .cycles(Some(&published_memory()))
            .unwrap();
        assert_eq!((one.chain.value, one.total.value), (0.0, 100.0));
    }

    #[test]
    fn published_costs_give_the_recorded_rates() {
        // The expected rates are results of this model with the costs of section 5.2.2, at 3.2 GHz; the section prints
        // none of these rates.
        const CLOCK_MHZ: f64 = 3.2e3;
        let memory = published_memory();
        let mpps = |functions: Vec<Function>| {
            let cycles = chain(functions).cycles(Some(&memory)).unwrap();
            CLOCK_MHZ / cycles.total.value
        };
        let far = |accesses| {
            let bytes = 8.0 * 1024f64.powi(3);
            mpps(vec![function(0.0, Some(Structure { bytes, accesses }))])
        };
        // In `near`, all 100 accesses hit in the same level.
        let near = |level| CLOCK_MHZ / (100.0 + 100.0 * memory.level_cycles(level));
        for (rate, expected) in [
            (mpps(vec![function(0.0, None); 5]), 13.333),
            (near(0), 2.133),
            (near(1), 1.391),
            (near(2), 0.800),
            (far(100.0), 0.12278),
            (far(400.0), 0.030768),
        ] {
            assert!((rate / expected - 1.0).abs() < 0.002, "{rate} {expected}");
        }
    }

    #[test]
    fn each_memory_access_of_a_function_costs_one_memory_latency() {
        let structure = Structure {
            bytes: 8.0 * 1024f64.powi(3),
            accesses: 100.0,
        };
        let cycles = chain(vec![function(0.0, Some(structure))])
            .cycles(Some(&published_memory()))
            .unwrap();
        assert!(
            (cycles.total.value / 26_100.0 - 1.0).abs() < 0.002,
            "{cycles:?}"
        );
        assert_eq!(
            cycles.costs().unwrap().task_cycles.value,
            cycles.functions[0].access
        );
    }

    #[test]
    fn a_chain_needs_a_memory_hierarchy_only_for_structures() {
        let plain = chain(vec![function(500.0, None); 2]);
        assert_eq!(plain.cycles(None).unwrap().total.value, 1135.0);
        let structure = Structure {
            bytes: 1e6,
            accesses: 1.0,
        };
        let error = chain(vec![function(0.0, Some(structure))]).cycles(None);
        assert!(error.unwrap_err().to_string().contains("a hierarchy"));
    }

    #[test]
    fn memory_accesses_cost_more_when_functions_share_the_caches() {
        let structure = Structure {
            bytes: 5e6,
            accesses: 10.0,
        };
        let alone = chain(vec![function(0.0, Some(structure))]);
        let both = chain(vec![
            function(0.0, Some(structure)),
            function(0.0, None),
            function(0.0, Some(structure)),
        ]);
        let of =
            |chain: &Chain| chain.cycles(Some(&published_memory())).unwrap().functions[0].access;
        assert!(of(&both) > 1.5 * of(&alone));
    }

    /// Returns runs of chains of one to ten functions, the first of which burns cycles and makes accesses, with an
    /// error of at most 2 %.
    fn runs() -> Vec<Run> {
        let mut random = fastrand::Rng::with_seed(11);
        let mut runs = Vec::new();
        for (functions, accesses) in (1..=10).flat_map(|e| [(e, 0.0), (e, 10.0), (e, 20.0)]) {
            for power in 12..=27 {
                let bytes = 2f64.powi(power);
                let load = f64::from(functions * 37 % 5) * 400.0;
                let mut all = vec![function(0.0, None); functions as usize];
                all[0] = function(load, Some(Structure { bytes, accesses }));
                let cycles = chain(all)
                    .cycles(Some(&published_memory()))
                    .unwrap()
                    .total
                    .value;
                let variables = [
                    ("load_cycles", load),
                    ("hand_overs", f64::from(functions - 1)),
                    ("accesses", accesses),
                    ("structure_bytes", bytes),
                    ("frame_bytes", 64.0 + f64::from(power % 3) * 400.0),
                    ("batch", f64::from(1 << (functions % 6))),
                ];
                let variables = variables.map(|(name, value)| (name.to_owned(), value));
                runs.push(Run {
                    variables: variables.into(),
                    response: cycles * (0.98 + 0.04 * random.f64()),
                });
            }
        }
        random.shuffle(&mut runs);
        runs
    }

    #[test]
    fn fitting_half_of_the_runs_recovers_all_chain_costs() {
        let variable = |name: &str| Variable {
            name: name.to_owned(),
            unit: String::new(),
        };
        let names = [
            "load_cycles",
            "hand_overs",
            "accesses",
            "structure_bytes",
            "frame_bytes",
            "batch",
        ];
        let fitting = Fitting {
            kind: Kind::Chain,
            response: variable("cycles"),
            variables: names.map(variable).into(),
            sets: carried(shapes(Some(&published_memory())), &runs()),
            method: Method::LeastSquares,
            spread: Spread::Relative,
            confidence: 0.95,
        };
        let runs = runs();
        let (half, other) = runs.split_at(runs.len() / 2);
        let fitted = fitting.fit(half, other, &Provenance::default()).unwrap();
        let errors = fitted.model.errors().unwrap();
        assert!(errors.p95 < 0.025, "{errors:?}");
        let terms = &fitted.model.file().terms;
        assert_eq!(terms.len(), 7, "no term of bytes or batches");
        let truths = [100.0, 1.0, 35.0, 14.0, 22.0, 39.0, 260.0];
        for (term, truth) in terms.iter().zip(truths) {
            let found = &term.coefficient;
            assert!(
                (found.value / truth - 1.0).abs() < 0.04,
                "{found:?} is not {truth}"
            );
        }
    }
}
