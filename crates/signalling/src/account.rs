//! The results of signalling procedures: counts and response times.

use super::mix::Procedure;
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::LatencyHistogram;

/// The counts and response times of the procedures of one kind.
#[derive(Debug, Default)]
pub struct Row {
    /// Number of procedures that were started.
    pub started: u64,
    /// Number of procedures that the peer accepted.
    pub accepted: u64,
    /// Number of procedures that the peer refused, each with a cause.
    pub refused: u64,
    /// Requests that were retransmitted.
    pub repeated: u64,
    /// Procedures without a response after all retransmissions.
    pub lost: u64,
    /// Times from the first request of a procedure to its response, nanoseconds.
    pub answers: LatencyHistogram,
}

/// The counts and response times of all procedures in a phase of the load.
#[derive(Debug, Default)]
pub struct Account {
    rows: [Row; 5],
    /// Requests of the peer to which the load responded: reports, notifications, heartbeats, echo requests.
    pub answered: u64,
    /// Received messages that belong to no pending request.
    pub unexpected: u64,
    /// The cause in the last response that refused a procedure.
    pub last_cause: Option<u8>,
}

impl Account {
    /// Returns the statistics of a kind of procedure, to be changed.
    pub fn row(&mut self, procedure: Procedure) -> &mut Row {
        &mut self.rows[procedure as usize]
    }

    /// Returns the number of accepted procedures of all kinds.
    pub fn accepted(&self) -> u64 {
        self.rows.iter().map(|row| row.accepted).sum()
    }

    /// Returns the results of a phase of `seconds` seconds, at the end of which there were `sessions` sessions.
    pub fn measured(&self, seconds: f64, sessions: usize) -> Measured {
        let mut all = LatencyHistogram::new();
        self.rows.iter().for_each(|row| all.merge(&row.answers));
        let sum = |of: fn(&Row) -> u64| self.rows.iter().map(of).sum();
        let row = |(procedure, row): (Procedure, &Row)| ProcedureRow {
            procedure: procedure.name(),
            accepted: row.accepted,
            refused: row.refused,
            repeated: row.repeated,
            lost: row.lost,
            p50_us: micros(&row.answers, 0.5),
            p99_us: micros(&row.answers, 0.99),
        };
        let rows = Procedure::ALL.into_iter().zip(&self.rows);
        Measured {
            seconds,
            sessions,
            procedures: self.accepted(),
            procedures_per_second: self.accepted() as f64 / seconds.max(1e-9),
            refused: sum(|row| row.refused),
            last_cause: self.last_cause,
            repeated: sum(|row| row.repeated),
            lost: sum(|row| row.lost),
            answered: self.answered,
            unexpected: self.unexpected,
            p50_us: micros(&all, 0.5),
            p99_us: micros(&all, 0.99),
            max_us: all.max_ns().map(|ns| ns as f64 / 1e3),
            by_procedure: rows.filter(|it| it.1.started > 0).map(row).collect(),
        }
    }
}

fn micros(histogram: &LatencyHistogram, quantile: f64) -> Option<f64> {
    histogram.quantile(quantile).map(|ns| ns as f64 / 1e3)
}

/// The results of a phase of the load.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Measured {
    /// The length of the phase in seconds.
    pub seconds: f64,
    /// The number of sessions at the end of the phase.
    pub sessions: usize,
    /// The number of accepted procedures of all kinds.
    pub procedures: u64,
    /// The number of accepted procedures per second.
    pub procedures_per_second: f64,
    /// The number of refused procedures.
    pub refused: u64,
    /// The cause of the last refusal; none if no procedure was refused.
    pub last_cause: Option<u8>,
    /// The number of retransmitted requests.
    pub repeated: u64,
    /// The number of procedures without a response after all retransmissions.
    pub lost: u64,
    /// The number of the peer's requests to which the load responded: reports, notifications, heartbeats, echo
    /// requests.
    pub answered: u64,
    /// The number of received messages that belong to no pending request, such as second responses after a
    /// retransmission.
    pub unexpected: u64,
    /// The median time from a request to its response, microseconds; none without responses.
    pub p50_us: Option<f64>,
    /// The 99th percentile of the time from a request to its response, microseconds; none without responses.
    pub p99_us: Option<f64>,
    /// The longest time from a request to its response, microseconds; none without responses.
    pub max_us: Option<f64>,
    /// The results of each kind of procedure.
    pub by_procedure: Vec<ProcedureRow>,
}

/// The results of one kind of procedure.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ProcedureRow {
    /// The name of the procedure, such as `attach`.
    pub procedure: &'static str,
    /// The number of accepted procedures of this kind.
    pub accepted: u64,
    /// The number of refused procedures of this kind.
    pub refused: u64,
    /// The number of requests of this kind that were retransmitted.
    pub repeated: u64,
    /// The number of procedures of this kind without a response after all retransmissions.
    pub lost: u64,
    /// The median time from a request to its response, microseconds; none without responses.
    pub p50_us: Option<f64>,
    /// The 99th percentile of the time from a request to its response, microseconds; none without responses.
    pub p99_us: Option<f64>,
}
