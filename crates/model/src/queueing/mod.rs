//! Queues of packets at a core: latency and loss from arrivals, service times, batches, ring and interruptions.
//! Kleinrock, Queueing Systems; Tijms, A First Course in Stochastic Models; each file names its own source.
//!
//! [`closed_form`] and [`crommelin`] hold exact results; [`simulate()`] covers all other cases, and its tests compare
//! it with the exact results. Times are in ns, rates in packets per second.
//!
//! ```
//! use taut_model::queueing::{Arrivals, Flush, Processor, Release, ServiceTime, Vacations, replicate};
//!
//! // 1 Mpkt/s as they come, 700 ns each, a timer interrupt of 8 us 250 times a second.
//! let processor = Processor::new(Arrivals::poisson(1e6)?, ServiceTime::constant(700.0)?)
//!     .with_ring(1_024)?
//!     .with_receive_batch(32, Release::Packet)?
//!     .with_flush(Flush::Idle { packets: 32 })?
//!     .with_vacations(Vacations::none().with_periodic(250.0, 8_000.0)?);
//! let found = replicate(&processor, 20_000, 6, 1)?;
//! let p99 = found.quantile_ns(0.99).unwrap();
//! assert!(p99.low < p99.point && (4_000.0..9_000.0).contains(&p99.point), "{p99:?}");
//! assert_eq!(found.loss().unwrap().point, 0.0);
//! # Ok::<(), taut_model::queueing::QueueingError>(())
//! ```

pub mod arrivals;
pub mod batches;
pub mod capacity;
pub mod closed_form;
pub mod crommelin;
mod exponential;
pub mod moments;
pub mod observer;
pub mod processor;
pub mod replicate;
pub mod saturation;
pub mod service;
pub mod simulate;
pub mod vacations;

pub use arrivals::Arrivals;
pub use capacity::{Effort, HighestRate, LatencyBound, highest_rate};
pub use moments::ServiceMoments;
pub use observer::Observer;
pub use processor::{Flush, Processor, Release};
pub use replicate::{Replicated, replicate};
pub use service::ServiceTime;
pub use simulate::{Run, simulate};
pub use vacations::Vacations;

use crate::estimate::WrongValue;

const NS_PER_S: f64 = 1e9;

/// Reason why a queue is invalid or has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QueueingError {
    /// A value that is not a number, or invalid for its quantity.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// A list or a count is empty.
    #[error("{what} must be at least 1")]
    Empty {
        /// Name of the list or count.
        what: &'static str,
    },
    /// Bins or quantiles are not in ascending order.
    #[error("{what} must ascend: value number {index} is below the one before it")]
    Unordered {
        /// Name of the list.
        what: &'static str,
        /// 0-based index of the value that is out of order.
        index: usize,
    },
    /// More work arrives than the servers can process, so there is no steady state.
    #[error("no steady state at a utilisation of {utilisation:.3}: it must be below 1")]
    Unstable {
        /// Rate of arriving work, as a share of the servers' capacity.
        utilisation: f64,
    },
    /// Interruptions take the entire core.
    #[error("interruptions take {share:.3} of the core: must be below 1")]
    NeverAvailable {
        /// Share of time that interruptions take.
        share: f64,
    },
    /// A search found no result between its limits `low` and `high`.
    #[error("{what}: no solution between {low} and {high}")]
    OutOfReach {
        /// Name of the quantity searched for.
        what: &'static str,
        /// Lower limit of the search.
        low: f64,
        /// Upper limit of the search.
        high: f64,
    },
}

/// Returns `count` if it is at least one.
pub(crate) fn at_least_one<T: Default + PartialEq>(
    what: &'static str,
    count: T,
) -> Result<T, QueueingError> {
    if count == T::default() {
        return Err(QueueingError::Empty { what });
    }
    Ok(count)
}

/// Returns `utilisation` if it is below one, so that a steady state exists.
pub(crate) fn stable(utilisation: f64) -> Result<f64, QueueingError> {
    if utilisation < 1.0 {
        Ok(utilisation)
    } else {
        Err(QueueingError::Unstable { utilisation })
    }
}
