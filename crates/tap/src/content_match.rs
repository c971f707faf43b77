//! Measures a device by the content of packets: matches observations at two places, for traffic without timestamp
//! records.

use super::collection::Collected;
use super::files::TapFolder;
use super::report::{Delayed, MatchReport, PlaceCounts, TapReport};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use taut_capture::matching::{Identity, Matcher, Outcome, Settings};
use taut_measure::{Crossed, Interval, quantile_interval_ranks};
use taut_results::{Origin, ResultsError};
use taut_xdp::wire_tap::Missed;

/// Maximum number of slowest packets, and maximum number of lost packets, whose times are stored.
const WORST: usize = 100;

/// Probability with which the confidence interval covers the median.
const CONFIDENCE: f64 = 0.95;

/// The packets observed at two places, which are matched until [`Matched::finish`].
pub struct Matched {
    matcher: Matcher,
    settings: Settings,
    collected: Collected,
    worst: Worst,
    /// Time, ns since 1970; packets that are first observed after it are ignored.
    closed_ns: u64,
}

#[derive(Default)]
struct Worst {
    /// Slowest packets, the least delayed on top: delay, time, index, and whether the packet is from the second place.
    slowest: BinaryHeap<Reverse<(u64, u64, u64, bool)>>,
    lost: Vec<(u64, u64, bool)>,
}

impl Matched {
    /// Matches packets between the two given places; every packet is written into `folder`, if there is one.
    pub fn new(places: &[String; 2], settings: Settings, folder: Option<TapFolder>) -> Self {
        Self {
            matcher: Matcher::new(settings),
            settings,
            collected: Collected::new(places, folder),
            worst: Worst::default(),
            closed_ns: u64::MAX,
        }
    }

    /// Processes the observation of a packet: at the second place if `at_b`, otherwise at the first one.
    pub fn see(&mut self, at_b: bool, identity: Identity, time_ns: u64) {
        let Self {
            matcher,
            settings,
            collected,
            worst,
            closed_ns,
        } = self;
        if time_ns >= *closed_ns && !matcher.is_awaited(at_b, identity) {
            return;
        }
        collected.see(time_ns);
        let mut each = |outcome| note(outcome, settings.both, collected, worst);
        match at_b {
            false => matcher.at_a(identity, time_ns, &mut each),
            true => matcher.at_b(identity, time_ns, &mut each),
        }
    }

    /// Ignores packets that are first observed after `at_ns` (ns since 1970); packets in flight at that time may still
    /// arrive.
    pub fn close(&mut self, at_ns: u64) {
        self.closed_ns = at_ns;
    }

    /// Returns true if a packet was observed at one place and may still arrive at the other.
    pub fn is_waiting(&self) -> bool {
        self.matcher.open().0 > 0 || self.settings.both && self.matcher.open().1 > 0
    }

    /// Completes the summary, and closes the folder's files; returns the folder's path, if there is one. Packets still
    /// in flight count as lost.
    ///
    /// # Errors
    /// A file could not be written; the report is complete nevertheless.
    pub fn finish(
        mut self,
        others: PlaceCounts,
        missed: Missed,
        origin: Origin,
    ) -> (TapReport, Result<Option<PathBuf>, ResultsError>) {
        let Self {
            matcher,
            settings,
            collected,
            worst,
            ..
        } = &mut self;
        matcher.finish(&mut |outcome| note(outcome, settings.both, collected, worst));
        let counts = matcher.counts();
        let only_left = if settings.both { 0 } else { counts.extra };
        let mut report = collected.report(only_left, missed);
        if !settings.both {
            report.directions.truncate(1);
        }
        let medians = collected.sides.iter().take(report.directions.len());
        let medians = medians.map(|side| median(&side.latency)).collect();
        let name = |from_b: bool| collected.interfaces[usize::from(from_b)].clone();
        // Ascending order of the reversed values is descending order of delays.
        let slowest = std::mem::take(&mut worst.slowest).into_sorted_vec();
        let slowest = slowest.into_iter();
        report.matching = Some(MatchReport {
            counts,
            others,
            within_ns: settings.within_ns,
            median_ns: medians,
            slowest: slowest
                .map(|Reverse((delay_ns, time_ns, sequence, from_b))| Delayed {
                    from: name(from_b),
                    sequence,
                    time_ns,
                    delay_ns: Some(delay_ns),
                })
                .collect(),
            lost_packets: worst
                .lost
                .iter()
                .map(|&(time_ns, sequence, from_b)| Delayed {
                    from: name(from_b),
                    sequence,
                    time_ns,
                    delay_ns: None,
                })
                .collect(),
            origin,
        });
        let folder = self.collected.folder.as_ref();
        let folder = folder.map(|it| it.path().to_path_buf());
        let (report, written) = self.collected.finish(report);
        (report, written.map(|()| folder))
    }
}

/// Records whether a packet arrived, was lost, or could not be matched.
fn note(outcome: Outcome, both: bool, collected: &mut Collected, worst: &mut Worst) {
    let (from_b, sequence, entered_ns, left, reordered) = match outcome {
        Outcome::Matched {
            from_b,
            number,
            time_ns,
            delay_ns,
            reordered,
        } => {
            // A packet that arrived too early was in flight for less than the clocks' uncertainty.
            let delay_ns = u64::try_from(delay_ns).unwrap_or(0);
            let slowest = &mut worst.slowest;
            slowest.push(Reverse((delay_ns, time_ns, number, from_b)));
            if slowest.len() > WORST {
                slowest.pop();
            }
            let to = usize::from(!from_b);
            (from_b, number, time_ns, Some((to, delay_ns)), reordered)
        }
        Outcome::Lost { number, time_ns } => (false, number, time_ns, None, false),
        Outcome::Extra { number, time_ns } if both => (true, number, time_ns, None, false),
        Outcome::Extra { .. } => return,
    };
    if left.is_none() && worst.lost.len() < WORST {
        worst.lost.push((entered_ns, sequence, from_b));
    }
    collected.add(&Crossed {
        flow: 0,
        sequence,
        side: usize::from(from_b),
        entered_ns,
        left,
        arrivals: 1,
        departures: u8::from(left.is_some()),
        reordered,
    });
}

/// Returns the median with its confidence interval, at the resolution of the histogram; none if there are too few
/// packets.
fn median(latency: &taut_measure::LatencyHistogram) -> Option<Interval> {
    let ranks = quantile_interval_ranks(latency.count(), 0.5, CONFIDENCE)?;
    let at = |rank| latency.value_at_rank(rank).map(|ns| ns as f64);
    Some(Interval {
        low: at(ranks.low)?,
        point: latency.quantile(0.5)? as f64,
        high: at(ranks.high)?,
        confidence: ranks.coverage,
        count: latency.count(),
        method: taut_measure::IntervalMethod::OrderStatistics,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{RecordedTap, RecordingError};
    use std::path::Path;
    use taut_capture::matching::Identify;
    use taut_capture::pcapng;
    use taut_capture::record::{Facts, Record};
    use taut_results::PacketFormat;
    use taut_wire::UdpFlow;

    const BEGUN_NS: u64 = 1_700_000_000_000_000_000;

    /// Writes a capture of packets (number, time, whether it is truncated to 60 bytes).
    fn capture(path: &Path, packets: &[(u8, u64, bool)]) {
        let mut bytes = Vec::new();
        pcapng::section(&mut bytes, &pcapng::Section::default());
        pcapng::interface(&mut bytes, "a", 0);
        for (number, time_ns, is_cut) in packets {
            let mut frame = UdpFlow::default().frame(200).unwrap();
            frame[50] = *number;
            let facts = Facts {
                time_ns: BEGUN_NS + time_ns,
                wire_bytes: frame.len() as u32,
                ..Facts::default()
            };
            let kept = if *is_cut { 60 } else { frame.len() };
            let frame = &frame[..kept];
            pcapng::packet(&mut bytes, &Record { facts, frame }, "");
        }
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn two_captures_are_matched_and_the_results_are_stored() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, out] = ["a.pcapng", "b.pcapng", "out"].map(|it| dir.path().join(it));
        let before = (0..100).map(|it| (it, 10_000 * u64::from(it), it % 2 == 0));
        let mut before: Vec<_> = before.collect();
        // Each packet is truncated in one of the two captures.
        let after = before.iter().filter(|it| it.0 != 7);
        let mut after: Vec<_> = after
            .map(|it| (it.0, it.1 + 500 + u64::from(it.0), !it.2))
            .collect();
        after.push((200, 3_000_000, false));
        before.push((201, 4_000_000, true));
        capture(&a, &before);
        capture(&b, &after);
        let identify = Identify {
            bytes: 26,
            ..Identify::default()
        };
        let mut tap = RecordedTap::open([&a, &b], identify, None).unwrap();
        let folder = TapFolder::create(&out, Some(PacketFormat::Csv)).unwrap();
        let places = ["A", "B"].map(String::from);
        let mut matched = Matched::new(&places, Settings::default(), Some(folder));
        tap.each(
            |seen| matched.see(seen.at_b, seen.identity, seen.time_ns),
            || false,
        )
        .unwrap();
        assert!(matched.is_waiting());
        let missed = Missed {
            ring_full: 0,
            unseen: 3,
        };
        let (report, folder) = matched.finish(tap.others(), missed, Origin::default());
        assert_eq!(folder.unwrap().unwrap(), out);
        let matching = report.matching.as_ref().unwrap();
        let counts = &matching.counts;
        assert_eq!(
            (counts.matched, counts.lost, counts.extra, counts.seen_a),
            (99, 2, 1, 101)
        );
        let slowest = &matching.slowest[0];
        assert_eq!((slowest.sequence, slowest.delay_ns), (99, Some(599)));
        assert_eq!(matching.lost_packets[0].time_ns, BEGUN_NS + 70_000);
        let median = matching.median_ns[0].unwrap();
        assert!(
            median.low <= median.point && median.point <= median.high,
            "{median:?}"
        );
        assert!(report.directions.len() == 1 && report.samples == Some(101));
        // By default, a frame is identified by more bytes than the truncated frames have.
        let mut tap = RecordedTap::open([&a, &b], Identify::default(), None).unwrap();
        tap.each(|_| (), || false).unwrap();
        assert_eq!(tap.others().unidentified, 50 + 49 + 1);
    }

    #[test]
    fn errors_distinguish_truncated_damaged_and_missing_captures() {
        let dir = tempfile::tempdir().unwrap();
        let [whole, cut, other] = ["whole", "cut", "other"].map(|it| dir.path().join(it));
        capture(&whole, &[(1, 1, false), (2, 2, false)]);
        let bytes = std::fs::read(&whole).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() - 10]).unwrap();
        std::fs::write(&other, "no capture").unwrap();
        let read = |file: &Path| {
            let tap = RecordedTap::open([&whole, file], Identify::default(), None);
            tap.and_then(|mut tap| tap.each(|_| (), || false))
        };
        assert!(read(&whole).is_ok());
        assert!(matches!(
            read(&cut),
            Err(RecordingError::CutOff { number: 1, .. })
        ));
        assert!(matches!(read(&other), Err(RecordingError::Damaged { .. })));
        let none = dir.path().join("none");
        assert!(matches!(read(&none), Err(RecordingError::File { .. })));
    }
}
