//! A latency budget: an end-to-end target divided into terms, and the unused remainder. CALVIN (Xiang et al., IEEE JSAC
//! 2019), figure 2, divides 1 ms into such terms.

use super::LinkError;
use crate::estimate::{not_negative, positive};

/// The purpose of a term of a latency budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Time in a sensor or actuator, with its own electronics.
    Device,
    /// Access to a shared medium, and transmission on it.
    Air,
    /// Time to put the bits of a frame onto a wire.
    Serialisation,
    /// Time that signals travel through a medium.
    Propagation,
    /// Time in network functions and servers.
    Processing,
    /// Time that a packet waits for other packets in a queue.
    Queueing,
}

/// A part of a latency budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Name of the term.
    pub name: String,
    /// Purpose of the term.
    pub kind: Kind,
    /// Part of the target that the term uses, us.
    pub value_us: f64,
    /// Source of the value: a measurement, a model, a paper.
    pub source: String,
}

/// A latency budget: a target, and the terms into which it is divided.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    target_us: f64,
    terms: Vec<Term>,
}

/// The result of comparing the terms of a latency budget with its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    /// The budget is met; the value is the unused time, us.
    Remains(f64),
    /// The budget is exceeded; the value is the excess, us.
    Exceeded(f64),
}

impl Budget {
    /// Returns a budget of `target_us` without terms.
    ///
    /// # Errors
    /// The target is not a finite number above zero.
    pub fn new(target_us: f64) -> Result<Self, LinkError> {
        Ok(Self {
            target_us: positive("the target of a budget", target_us)?,
            terms: Vec::new(),
        })
    }

    /// Returns the budget with one more term.
    ///
    /// # Errors
    /// The value is negative or not finite.
    pub fn with(
        mut self,
        name: &str,
        kind: Kind,
        value_us: f64,
        source: &str,
    ) -> Result<Self, LinkError> {
        let value_us = not_negative("a term of a budget", value_us)?;
        self.terms.push(Term {
            name: name.to_owned(),
            kind,
            value_us,
            source: source.to_owned(),
        });
        Ok(self)
    }

    /// Returns CALVIN's budget of 1 ms from sensor to actuator, as figure 2 of the paper (Xiang et al., JSAC 2019)
    /// divides it.
    pub fn calvin() -> Self {
        let terms = [
            ("sensor", Kind::Device, 100.0),
            ("air, sensor to base station", Kind::Air, 100.0),
            ("fibre, 2 x 25 km", Kind::Propagation, 250.0),
            ("edge cloud", Kind::Processing, 350.0),
            ("air, base station to actuator", Kind::Air, 100.0),
            ("actuator", Kind::Device, 100.0),
        ];
        let terms = terms.map(|(name, kind, value_us)| Term {
            name: name.to_owned(),
            kind,
            value_us,
            source: "Xiang et al. 2019, figure 2".to_owned(),
        });
        Self {
            target_us: 1_000.0,
            terms: terms.into(),
        }
    }

    /// Returns the target, us.
    pub fn target_us(&self) -> f64 {
        self.target_us
    }

    /// Returns the terms in the order in which they were given.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns the sum of the terms, us.
    pub fn spent_us(&self) -> f64 {
        self.terms.iter().map(|term| term.value_us).sum()
    }

    /// Returns the sum of the terms of one kind, us.
    pub fn spent_on_us(&self, kind: Kind) -> f64 {
        self.terms
            .iter()
            .filter(|term| term.kind == kind)
            .map(|term| term.value_us)
            .sum()
    }

    /// Returns the unused time of the budget, or its excess.
    pub fn standing(&self) -> Standing {
        let remains = self.target_us - self.spent_us();
        // Sums of decimal fractions have rounding errors, so a tiny excess counts as met.
        if remains >= -self.target_us * 1e-12 {
            Standing::Remains(remains.max(0.0))
        } else {
            Standing::Exceeded(-remains)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::link::propagation::Medium;

    #[test]
    fn terms_of_calvins_budget_add_up_to_one_millisecond() {
        let budget = Budget::calvin();
        assert_eq!(budget.spent_us(), 1_000.0);
        assert_eq!(budget.standing(), Standing::Remains(0.0));
        assert_eq!(budget.spent_on_us(Kind::Air), 200.0);
        assert_eq!(budget.terms().len(), 6);
    }

    #[test]
    fn a_budget_reports_the_remaining_time_or_the_excess() {
        let fibre = Medium::Fibre.delay_us(40.0).unwrap();
        let budget = Budget::new(500.0)
            .unwrap()
            .with("fibre", Kind::Propagation, fibre, "index 1.468")
            .unwrap();
        let Standing::Remains(left) = budget.standing() else {
            panic!("exceeded")
        };
        assert!((left - (500.0 - 195.9)).abs() < 0.1, "{left}");
        let budget = budget
            .with("server", Kind::Processing, 400.0, "measured")
            .unwrap();
        let Standing::Exceeded(by) = budget.standing() else {
            panic!("not exceeded")
        };
        assert!((by - 95.9).abs() < 0.1, "{by}");
    }

    #[test]
    fn ten_tenths_of_a_budget_do_not_exceed_the_budget() {
        let mut budget = Budget::new(1.0).unwrap();
        for _ in 0..10 {
            budget = budget.with("part", Kind::Device, 0.1, "a test").unwrap();
        }
        assert!(
            matches!(budget.standing(), Standing::Remains(_)),
            "{:?}",
            budget.standing()
        );
    }

    #[test]
    fn negative_and_undefined_terms_are_refused() {
        for bad in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(Budget::new(bad).is_err());
            assert!(
                Budget::new(1.0)
                    .unwrap()
                    .with("part", Kind::Air, bad, "a test")
                    .is_err()
            );
        }
        assert!(Budget::new(0.0).is_err());
    }
}
