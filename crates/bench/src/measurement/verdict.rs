//! Checks whether the traffic of a measurement was sent as requested, and came back.

use super::summary::StreamSummary;
use super::summary::Streams;
use crate::report::recording::LEAST_SENT;
use taut_measure::quantity;

/// Maximum ratio of the actual to the requested duration of a trial. At this ratio, packets were sent at the fraction
/// [`LEAST_SENT`] of the requested rate.
const MOST_LATE: f64 = 1.0 / LEAST_SENT;
/// Time that a trial may last beyond the duration that [`MOST_LATE`] allows, s: the length of a typical interruption on
/// a busy machine. Such a delay does not show that the generator could not offer the rate.
const LATE_AT_LEAST_SECONDS: f64 = 0.25;

/// A limit that the traffic of a measurement violated.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum LimitMissed {
    /// The generator could not offer the requested rate.
    #[error(
        "requested {}, but the generator could not keep up: {unsent} of {owed} packets were never sent{}",
        quantity::rate(*asked_pps),
        if *starved { ", because its packet memory is used up: the device buffers the earlier packets" } else { "" }
    )]
    Unsent {
        /// Requested packets per second, all streams together.
        asked_pps: f64,
        /// Number of packets that were never sent.
        unsent: u64,
        /// Number of packets that the schedule contained.
        owed: u64,
        /// True if the generator ran out of packet buffers.
        starved: bool,
    },
    /// The generator sent too slowly because its core was taken away by other tasks.
    #[error(
        "requested {}, but the machine preempted the generator: {} sent; give it a core of its own (--core, taut \
        tune audit), or request less",
        quantity::rate(*asked_pps),
        quantity::rate(*sent_pps)
    )]
    Late {
        /// Requested packets per second of the delayed stream.
        asked_pps: f64,
        /// Packets per second that the delayed stream sent.
        sent_pps: f64,
    },
    /// More packets were lost or refused than allowed.
    #[error("{:.4} % lost, more than the {:.4} % allowed", share * 100.0, limit * 100.0)]
    Loss {
        /// Fraction of the offered packets that were lost or refused.
        share: f64,
        /// Maximum fraction that may be lost or refused.
        limit: f64,
    },
    /// No packet came back.
    #[error("no packet came back, so nothing was measured (--max-loss 1 if none should)")]
    Nothing,
    /// All packets that came back were modified.
    #[error(
        "no packet came back unchanged, so nothing was measured: {foreign} received packets were modified or come \
        from another sender (--max-loss 1 if that is intended)"
    )]
    NothingUnchanged {
        /// Number of received packets that are not unchanged packets of the generator.
        foreign: u64,
    },
}

/// Returns the fraction of the offered packets that were lost or refused; none if no packets were offered. Packets that
/// the generator was too slow to send were not offered.
pub(super) fn lost_share(lost: u64, refused: u64, sent: u64) -> Option<f64> {
    let offered = sent + refused;
    (offered > 0).then(|| (lost + refused) as f64 / offered as f64)
}

/// Checks that the traffic was sent as requested, for `seconds`, and that it came back, except for at most the fraction
/// `max_loss`. Without `max_loss`, it is enough that a packet came back; it must be unchanged if packets carry
/// timestamps.
pub(super) fn verdict(
    streams: &Streams,
    seconds: f64,
    max_loss: Option<f64>,
) -> Result<(), LimitMissed> {
    if streams.iter().any(|s| s.tally.stopped) {
        return Ok(());
    }
    let sum = |of: fn(&StreamSummary) -> u64| streams.iter().map(of).sum::<u64>();
    let unsent = sum(|s| s.tally.unsent);
    if unsent > 0 {
        return Err(LimitMissed::Unsent {
            asked_pps: streams.iter().map(|s| s.asked_pps).sum(),
            unsent,
            owed: sum(|s| s.tally.owed),
            starved: sum(|s| s.tally.starved) > 0,
        });
    }
    let longest = seconds * MOST_LATE + LATE_AT_LEAST_SECONDS;
    if let Some(late) = streams.iter().find(|s| s.tally.seconds > longest) {
        return Err(LimitMissed::Late {
            asked_pps: late.asked_pps,
            sent_pps: late.tally.sent as f64 / late.tally.seconds,
        });
    }
    let came_back = sum(|s| s.tally.received);
    let foreign = sum(|s| s.tally.foreign);
    let measured = || streams.iter().filter(|s| s.measured);
    let share = if measured().next().is_none() {
        // No stream identifies its packets, so the loss is the number of sent packets minus that of returned packets.
        let sent = sum(|s| s.tally.sent);
        lost_share(sent.saturating_sub(foreign), sum(|s| s.tally.refused), sent)
    } else {
        lost_share(
            measured().filter_map(|s| s.lost).sum(),
            measured().map(|s| s.tally.refused).sum(),
            measured().map(|s| s.tally.sent).sum(),
        )
    };
    match (max_loss, share) {
        (Some(limit), Some(share)) if share > limit => Err(LimitMissed::Loss { share, limit }),
        (None, _) if came_back + foreign == 0 => Err(LimitMissed::Nothing),
        (None, _) if came_back == 0 && measured().next().is_some() => {
            Err(LimitMissed::NothingUnchanged { foreign })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_traffic::Tally;

    fn stream(sent: u64, received: u64, seconds: f64) -> StreamSummary {
        StreamSummary {
            name: "traffic".to_string(),
            asked_pps: 1000.0,
            sent_pps: None,
            measured: true,
            lost_share: None,
            received_pps: None,
            tally: Tally {
                owed: sent,
                sent,
                received,
                seconds,
                ..Tally::default()
            },
            lost: Some(sent - received),
            latency_ns: None,
            latency_from_intended_ns: None,
            kernel_stamps: None,
            budget: None,
            jitter_ns: None,
            send_delay_ns: None,
            send_slip_ns: None,
            sequence: None,
            send_gap_ns: None,
            interrupted_send_gap_ns: None,
            samples: None,
            slowest: None,
        }
    }

    #[test]
    fn the_loss_ratio_is_relative_to_the_offered_packets() {
        assert_eq!(lost_share(10, 30, 70), Some(0.4));
        assert_eq!(lost_share(0, 5, 0), Some(1.0));
        assert_eq!(lost_share(0, 0, 0), None);
    }

    #[test]
    fn unsent_packets_and_lost_packets_violate_separate_limits() {
        let of = |first: StreamSummary, max_loss| {
            let others = Vec::new();
            verdict(&Streams { first, others }, 1.0, max_loss)
        };
        assert_eq!(of(stream(1000, 1000, 1.0), None), Ok(()));
        assert_eq!(of(stream(1000, 900, 1.0), None), Ok(()));
        let lossy = of(stream(1000, 900, 1.0), Some(0.05));
        assert_eq!(
            lossy,
            Err(LimitMissed::Loss {
                share: 0.1,
                limit: 0.05
            })
        );
        assert_eq!(of(stream(1000, 900, 1.0), Some(0.1)), Ok(()));
        assert_eq!(of(stream(1000, 0, 1.0), None), Err(LimitMissed::Nothing));
        assert_eq!(of(stream(1000, 0, 1.0), Some(1.0)), Ok(()));
        let late = of(stream(1000, 1000, 2.0), None);
        assert!(matches!(late, Err(LimitMissed::Late { sent_pps, .. }) if sent_pps == 500.0));
        let mut changed = stream(1000, 0, 1.0);
        changed.tally.foreign = 7;
        let changed = of(changed, None);
        assert_eq!(changed, Err(LimitMissed::NothingUnchanged { foreign: 7 }));
        let mut behind = stream(1000, 1000, 1.0);
        (behind.tally.unsent, behind.tally.owed) = (5, 1005);
        let said = of(behind, None).unwrap_err().to_string();
        assert!(
            said.ends_with("5 of 1005 packets were never sent"),
            "{said}"
        );
    }
}
