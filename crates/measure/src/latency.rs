//! A latency histogram for the hot loop: fixed memory, no failure, 0.4 % resolution. Its log-linear buckets follow
//! HdrHistogram (G. Tene); V2 logs exchange data with its tools.

use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, IntervalLogWriterError, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializeError, V2DeflateSerializer};

use crate::moments::Moments;
use crate::rank::nearest_rank;

/// Binary logarithm of the number of buckets per power of two: a bucket is never wider than 1/256 of its lowest value.
const BUCKETS_PER_OCTAVE_LOG2: u32 = 8;
/// Maximum number of bits of a value: 2^36 ns is 68.7 s.
const VALUE_BITS: u32 = 36;
const BUCKET_COUNT: usize =
    ((VALUE_BITS - BUCKETS_PER_OCTAVE_LOG2 + 1) as usize) << BUCKETS_PER_OCTAVE_LOG2;

/// A bucket of a histogram: the number of values in `low_ns..=high_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Lowest value of the bucket, ns.
    pub low_ns: u64,
    /// Highest value of the bucket, ns, inclusive.
    pub high_ns: u64,
    /// Number of values in the bucket.
    pub count: u64,
}

/// The counts of latencies in 7,424 log-linear buckets (58 KiB), with exact count, extremes and sums.
///
/// Values up to 511 ns are exact. Above, the width of a bucket is at most 2^-8 (0.4 %) of its value, so a quantile,
/// reported as the bucket's middle, is off by at most 0.2 %. Values above [`LatencyHistogram::HIGHEST_NS`] are counted
/// in the top bucket and as saturated. Minimum, maximum, mean and standard deviation are computed from the values
/// themselves, not from buckets.
///
/// ```
/// let mut latency = taut_measure::LatencyHistogram::new();
/// for ns in [700, 720, 9_000] {
///     latency.record(ns);
/// }
/// assert_eq!(latency.quantile(1.0), Some(9_000));
/// assert_eq!(latency.mean_ns(), Some(3473.3333333333335));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Box<[u64]>,
    saturated: u64,
    moments: Moments,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// Highest value that is not saturated, ns (2^36 - 1, 68.7 s).
    pub const HIGHEST_NS: u64 = (1 << VALUE_BITS) - 1;

    /// Creates an empty histogram; all memory that it will ever use is allocated here.
    pub fn new() -> Self {
        LatencyHistogram {
            counts: vec![0; BUCKET_COUNT].into_boxed_slice(),
            saturated: 0,
            moments: Moments::EMPTY,
        }
    }

    /// Counts one value. Never allocates, never fails.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        let above = u64::from(value_ns > Self::HIGHEST_NS);
        self.saturated = self.saturated.saturating_add(above);
        let count = &mut self.counts[bucket_index(value_ns)];
        *count = count.saturating_add(1);
        self.moments.record(value_ns);
    }

    /// Counts `count` equal values.
    pub fn record_many(&mut self, value_ns: u64, count: u64) {
        if value_ns > Self::HIGHEST_NS {
            self.saturated = self.saturated.saturating_add(count);
        }
        let bucket = &mut self.counts[bucket_index(value_ns)];
        *bucket = bucket.saturating_add(count);
        self.moments.record_many(value_ns, count);
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.saturated = self.saturated.saturating_add(other.saturated);
        self.moments.merge(&other.moments);
    }

    /// Clears all values without freeing the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.saturated = 0;
        self.moments = Moments::EMPTY;
    }

    /// Returns the number of values in the histogram.
    pub fn count(&self) -> u64 {
        self.moments.count
    }

    pub(crate) fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Returns the number of values above [`Self::HIGHEST_NS`], which are all in the top bucket.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// Returns the smallest value, ns, exact; `None` if the histogram is empty.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.moments.min)
    }

    /// Returns the largest value, ns, exact even above [`Self::HIGHEST_NS`]; `None` if the histogram is empty.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.moments.max)
    }

    /// Returns the arithmetic mean, ns, exact; `None` if the histogram is empty.
    pub fn mean_ns(&self) -> Option<f64> {
        self.moments.mean()
    }

    /// Returns the standard deviation of the values, ns, exact; `None` if the histogram is empty. It is computed as for
    /// a population, because all packets are counted.
    pub fn std_ns(&self) -> Option<f64> {
        self.moments.standard_deviation()
    }

    /// Returns the value at quantile `q` by nearest rank, ns; `None` if the histogram is empty or `q` is outside 0..=1.
    ///
    /// The result is the middle of the bucket that contains the rank; at quantiles 0 and 1 it is the exact minimum and
    /// maximum.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        self.value_at_rank(nearest_rank(self.count(), q)?)
    }

    /// Returns the value at the 0-based position `rank` among the sorted values, ns, with the precision of
    /// [`Self::quantile`]; `None` if there are not more than `rank` values.
    pub fn value_at_rank(&self, rank: u64) -> Option<u64> {
        let (min, max) = (self.min_ns()?, self.max_ns()?);
        if rank == 0 {
            return Some(min);
        }
        if rank >= self.count() - 1 {
            return (rank < self.count()).then_some(max);
        }
        let mut below = 0u64;
        let bucket = self.iter().find(|bucket| {
            below = below.saturating_add(bucket.count);
            below > rank
        })?;
        Some(middle(&bucket).clamp(min, max))
    }

    /// Iterates over the non-empty buckets, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> + '_ {
        let filled = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        filled.map(|(index, &count)| {
            let (low_ns, high_ns) = bucket_bounds(index);
            Bucket {
                low_ns,
                high_ns,
                count,
            }
        })
    }

    /// Returns the number of values above `limit_ns`, counted in complete buckets. It is exact for a `limit_ns` up to
    /// 511 ns, and for the highest value of a bucket. For any other limit, the values in the bucket of `limit_ns` are
    /// not counted.
    pub fn count_above(&self, limit_ns: u64) -> u64 {
        if self.moments.max <= limit_ns {
            return 0;
        }
        let above = &self.counts[bucket_index(limit_ns) + 1..];
        above
            .iter()
            .fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Writes the histogram as the only interval of an HdrHistogram log (V2, deflated, base64), which the Java, Python
    /// and Rust HdrHistogram tools read. Values are ns; the log's own clock is in seconds.
    ///
    /// `tag` names the series and must be free of commas, spaces and line ends.
    pub fn write_hlog(
        &self,
        writer: &mut impl Write,
        start_time: SystemTime,
        duration: Duration,
        tag: Option<&str>,
    ) -> Result<(), HlogError> {
        let tag = match tag {
            Some(name) => Some(Tag::new(name).ok_or_else(|| HlogError::BadTag(name.to_owned()))?),
            None => None,
        };
        let since_epoch = start_time.duration_since(SystemTime::UNIX_EPOCH);
        let start = since_epoch.map_err(|_| HlogError::StartBeforeEpoch)?;
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .with_start_time(start_time)
            .begin_log_with(writer, &mut serializer)?;
        log.write_histogram(&Histogram::from(self), start, duration, tag)?;
        Ok(())
    }

    /// Reads an HdrHistogram log, and merges its intervals. Values are ns. Values have the precision of the log, three
    /// significant digits; minimum and maximum are rounded to the bounds of their bucket.
    ///
    /// # Errors
    /// Returns an error if the input is no log, or is damaged.
    pub fn read_hlog(log: &[u8]) -> Result<Self, HlogReadError> {
        let mut all = Self::new();
        let mut found = false;
        for entry in IntervalLogIterator::new(log) {
            let LogEntry::Interval(interval) = entry.map_err(|_| HlogReadError::NotALog)? else {
                continue;
            };
            let encoded = BASE64
                .decode(interval.encoded_histogram())
                .map_err(|_| HlogReadError::Damaged)?;
            if claims_too_much(&encoded) {
                return Err(HlogReadError::Damaged);
            }
            let histogram: Histogram<u64> = Deserializer::new()
                .deserialize(&mut encoded.as_slice())
                .map_err(|_| HlogReadError::Damaged)?;
            all.merge(&Self::from(&histogram));
            found = true;
        }
        if found {
            Ok(all)
        } else {
            Err(HlogReadError::NotALog)
        }
    }
}

/// Maximum size of a decompressed histogram in bytes: it leaves nine bytes for each possible bucket.
const MOST_PAYLOAD_BYTES: u32 = 64 << 20;

/// Returns true if the encoded histogram has an impossible length field. The decoder would allocate up to 4 GiB before
/// it checks the length.
fn claims_too_much(encoded: &[u8]) -> bool {
    let length = |head: &[u8]| {
        head.get(4..8)
            .and_then(|four| four.try_into().ok())
            .map(u32::from_be_bytes)
    };
    let outside = length(encoded).is_some_and(|claimed| claimed as usize > encoded.len());
    let mut head = [0; 8];
    let inside = encoded
        .get(8..)
        .is_some_and(|packed| ZlibDecoder::new(packed).read_exact(&mut head).is_ok());
    outside || (inside && length(&head).is_some_and(|claimed| claimed > MOST_PAYLOAD_BYTES))
}

/// The reason why a histogram log could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HlogReadError {
    /// The text contains no interval, or an invalid line.
    #[error("not an HdrHistogram log")]
    NotALog,
    /// An interval of the log cannot be decoded.
    #[error("the HdrHistogram log is damaged")]
    Damaged,
}

/// The reason why a histogram log could not be written.
#[derive(Debug, thiserror::Error)]
pub enum HlogError {
    /// The tag has a character that separates fields or lines of the log.
    #[error("histogram log tag {0:?} has a comma, space or line end: choose a tag without")]
    BadTag(String),
    /// The start is before 1970, from which the log counts seconds.
    #[error("histogram log starts before 1970: set the machine's clock")]
    StartBeforeEpoch,
    /// Writing to the output failed.
    #[error("cannot write the histogram log: {0}")]
    Io(#[from] io::Error),
    /// The histogram could not be encoded.
    #[error("cannot encode the histogram: {0}")]
    Encode(V2DeflateSerializeError),
}

impl From<IntervalLogWriterError<V2DeflateSerializeError>> for HlogError {
    fn from(error: IntervalLogWriterError<V2DeflateSerializeError>) -> Self {
        match error {
            IntervalLogWriterError::IoError(error) => HlogError::Io(error),
            IntervalLogWriterError::SerializeError(error) => HlogError::Encode(error),
        }
    }
}

impl From<&LatencyHistogram> for Histogram<u64> {
    /// Converts a histogram with three significant digits; the extremes are exact, all other values are bucket middles.
    fn from(latency: &LatencyHistogram) -> Self {
        let mut hdr = Histogram::new_with_bounds(1, LatencyHistogram::HIGHEST_NS, 3)
            .expect("these constant bounds are valid");
        for bucket in latency.iter() {
            let mut count = bucket.count;
            for extreme in [latency.moments.min, latency.moments.max] {
                let value = extreme.min(LatencyHistogram::HIGHEST_NS);
                if count > 0 && (bucket.low_ns..=bucket.high_ns).contains(&value) {
                    hdr.saturating_record(value);
                    count -= 1;
                }
            }
            let value = middle(&bucket).clamp(latency.moments.min, latency.moments.max);
            hdr.saturating_record_n(value, count);
        }
        hdr
    }
}

impl From<&Histogram<u64>> for LatencyHistogram {
    /// Converts a histogram. All values of a bucket count as its middle, so sums are as precise as the source's
    /// buckets.
    fn from(hdr: &Histogram<u64>) -> Self {
        let mut latency = LatencyHistogram::new();
        for step in hdr.iter_recorded() {
            let value = hdr.median_equivalent(step.value_iterated_to());
            latency.record_many(value, step.count_at_value());
        }
        latency
    }
}

#[inline]
fn bucket_index(value_ns: u64) -> usize {
    let value = value_ns.min(LatencyHistogram::HIGHEST_NS);
    // The lowest two octaves have width 1, so small values index themselves without a branch.
    let floor = value | (1 << BUCKETS_PER_OCTAVE_LOG2);
    let shift = 63 - BUCKETS_PER_OCTAVE_LOG2 - floor.leading_zeros();
    ((shift as usize) << BUCKETS_PER_OCTAVE_LOG2) + (value >> shift) as usize
}

fn bucket_bounds(index: usize) -> (u64, u64) {
    let per_octave = 1u64 << BUCKETS_PER_OCTAVE_LOG2;
    let index = index as u64;
    let shift = (index >> BUCKETS_PER_OCTAVE_LOG2).saturating_sub(1);
    let low = (index - shift * per_octave) << shift;
    (low, low + (1 << shift) - 1)
}

fn middle(bucket: &Bucket) -> u64 {
    bucket.low_ns + (bucket.high_ns - bucket.low_ns) / 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use proptest::prelude::*;

    fn of(values: &[u64]) -> LatencyHistogram {
        let mut latency = LatencyHistogram::new();
        values.iter().for_each(|&value| latency.record(value));
        latency
    }

    #[test]
    fn histogram_buckets_cover_the_range_without_gap_or_overlap() {
        let mut next = 0;
        for index in 0..BUCKET_COUNT {
            let (low, high) = bucket_bounds(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!(bucket_index(low), index);
            assert_eq!(bucket_index(high), index);
            assert!((high - low) as f64 <= low as f64 / 256.0);
            next = high + 1;
        }
        assert_eq!(next, LatencyHistogram::HIGHEST_NS + 1);
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles_extremes_or_mean() {
        let latency = LatencyHistogram::new();
        assert_eq!(latency.quantile(0.5), None);
        assert_eq!(latency.min_ns(), None);
        assert_eq!(latency.max_ns(), None);
        assert_eq!(latency.mean_ns(), None);
        assert_eq!(latency.std_ns(), None);
        assert_eq!(latency.count_above(0), 0);
        assert_eq!(latency.iter().count(), 0);
    }

    #[test]
    fn values_beyond_the_range_saturate_and_are_counted() {
        let latency = of(&[5, LatencyHistogram::HIGHEST_NS, 1 << 36, u64::MAX]);
        assert_eq!(latency.saturated(), 2);
        assert_eq!(latency.count(), 4);
        assert_eq!(latency.max_ns(), Some(u64::MAX));
        assert_eq!(latency.iter().last().unwrap().count, 3);
        assert_eq!(latency.count_above(LatencyHistogram::HIGHEST_NS), 0);
    }

    #[test]
    fn mean_and_deviation_do_not_depend_on_buckets() {
        let latency = of(&[1_000_000_001, 1_000_000_003]);
        assert_eq!(latency.mean_ns(), Some(1_000_000_002.0));
        assert_eq!(latency.std_ns(), Some(1.0));
    }

    #[test]
    fn the_count_above_a_limit_below_512_ns_is_exact() {
        let latency = of(&[1, 10, 10, 11, 500, 100_000]);
        assert_eq!(latency.count_above(10), 3);
        assert_eq!(latency.count_above(0), 6);
        assert_eq!(latency.count_above(100_000), 0);
        assert_eq!(latency.count_above(99_000), 1);
    }

    #[test]
    fn quantiles_are_never_outside_the_range_of_the_values() {
        let latency = of(&[1_000_001; 3]);
        assert_eq!(latency.quantile(0.5), Some(1_000_001));
    }

    #[test]
    fn merging_adds_up_the_counts_of_saturated_values() {
        let mut latency = of(&[u64::MAX, 1]);
        latency.merge(&of(&[u64::MAX, u64::MAX]));
        assert_eq!((latency.saturated(), latency.count()), (3, 4));
    }

    #[test]
    fn a_cleared_histogram_equals_a_new_histogram() {
        let mut latency = of(&[1, 2, u64::MAX]);
        latency.clear();
        assert_eq!(latency, LatencyHistogram::new());
    }

    #[test]
    fn huge_counts_neither_overflow_nor_panic() {
        let mut latency = LatencyHistogram::new();
        latency.record_many(u64::MAX, u64::MAX);
        latency.record_many(3, u64::MAX);
        latency.merge(&latency.clone());
        latency.record(3);
        assert!(latency.saturated() > 0);
        assert!(latency.quantile(0.5).is_some());
        assert!(!Histogram::from(&latency).is_empty());
    }

    #[test]
    fn the_hdrhistogram_reader_parses_the_written_log() {
        let values: Vec<u64> = (1..=10_000).map(|i| i * 37).collect();
        let latency = of(&values);
        let mut log = Vec::new();
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        latency
            .write_hlog(&mut log, start, Duration::from_secs(30), Some("idle(32)"))
            .unwrap();

        let intervals: Vec<_> = IntervalLogIterator::new(&log)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        assert_eq!(intervals.len(), 1);
        assert_eq!(intervals[0].tag().unwrap().as_str(), "idle(32)");
        assert_eq!(intervals[0].duration(), Duration::from_secs(30));
        let encoded = decode_base64(intervals[0].encoded_histogram());
        let hdr: Histogram<u64> = Deserializer::new()
            .deserialize(&mut encoded.as_slice())
            .unwrap();
        assert_eq!(hdr.len(), 10_000);
        for q in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let (ours, theirs) = (latency.quantile(q).unwrap(), hdr.value_at_quantile(q));
            let error = (ours as f64 - theirs as f64).abs() / ours as f64;
            assert!(error < 0.006, "q {q}: {ours} against {theirs}");
        }
        assert!((LatencyHistogram::from(&hdr).mean_ns().unwrap() / 185_018.5 - 1.0).abs() < 0.003);
    }

    #[test]
    fn a_log_tag_with_a_separator_is_refused() {
        let mut log = Vec::new();
        let start = SystemTime::UNIX_EPOCH;
        let result = LatencyHistogram::new().write_hlog(
            &mut log,
            start,
            Duration::ZERO,
            Some("full(32, drain)"),
        );
        assert!(matches!(result, Err(HlogError::BadTag(_))));
        assert!(log.is_empty());
    }

    #[test]
    fn errors_of_the_log_writer_are_reported() {
        let mut full: &mut [u8] = &mut [];
        let result = of(&[1]).write_hlog(&mut full, SystemTime::now(), Duration::ZERO, None);
        assert!(matches!(result, Err(HlogError::Io(_))));
    }

    fn decode_base64(text: &str) -> Vec<u8> {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bits, mut held, mut bytes) = (0u32, 0, Vec::new());
        for symbol in text.bytes().filter(|&symbol| symbol != b'=') {
            let value = ALPHABET
                .iter()
                .position(|&letter| letter == symbol)
                .unwrap();
            bits = bits << 6 | value as u32;
            held += 6;
            if held >= 8 {
                held -= 8;
                bytes.push((bits >> held) as u8);
            }
        }
        bytes
    }

    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        let value = (0u32..36, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1));
        prop::collection::vec(value, 1..300)
    }

    proptest! {
        #[test]
        fn quantiles_differ_from_exact_quantiles_by_less_than_one_bucket(values in latencies(), q in 0.0..=1.0f64) {
            let latency = of(&values);
            let mut sorted = values;
            sorted.sort_unstable();
            let exact = sorted[nearest_rank(sorted.len() as u64, q).unwrap() as usize];
            let found = latency.quantile(q).unwrap();
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 / 256.0, "{found} against {exact}");
        }

        #[test]
        fn merged_histograms_equal_one_histogram_of_all_values(a in latencies(), b in latencies()) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(merged, of(&[a, b].concat()));
        }

        #[test]
        fn every_value_is_counted_in_its_bucket(values in latencies()) {
            let latency = of(&values);
            prop_assert_eq!(latency.iter().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
            for bucket in latency.iter() {
                let inside = |value: &&u64| (bucket.low_ns..=bucket.high_ns).contains(value);
                prop_assert_eq!(bucket.count, values.iter().filter(inside).count() as u64);
            }
        }

        #[test]
        fn conversion_to_hdrhistogram_preserves_count_and_extremes(values in latencies()) {
            let latency = of(&values);
            let hdr = Histogram::from(&latency);
            prop_assert_eq!(hdr.len(), latency.count());
            prop_assert!(hdr.equivalent(hdr.max(), latency.max_ns().unwrap()));
            prop_assert!(hdr.equivalent(hdr.min(), latency.min_ns().unwrap()));
        }
    }

    #[test]
    fn hlog_quantiles_read_back_within_the_precision_of_the_format() {
        let mut latency = LatencyHistogram::new();
        (0..5_000_u64).for_each(|i| latency.record(50 + i * i));
        let mut log = Vec::new();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        latency
            .write_hlog(&mut log, start, Duration::from_secs(1), None)
            .unwrap();
        let read = LatencyHistogram::read_hlog(&log).unwrap();
        assert_eq!(read.count(), latency.count());
        for q in [0.0, 0.1, 0.5, 0.99, 1.0] {
            let (a, b) = (read.quantile(q).unwrap(), latency.quantile(q).unwrap());
            assert!(a.abs_diff(b) as f64 <= 0.006 * b as f64, "{q}: {a} {b}");
        }
        // The histogram's length field states 4 GiB, once in plain and once in compressed form.
        let plain: Vec<u8> = [0x1c84_9313_u32, 0xffff_fff0]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&plain).unwrap();
        let packed = packed.finish().unwrap();
        let mut outer = 0x1c84_9314_u32.to_be_bytes().to_vec();
        outer.extend((packed.len() as u32).to_be_bytes());
        outer.extend(packed);
        assert!(claims_too_much(&plain) && claims_too_much(&outer));
        let cut = &log[..log.len() - 30];
        assert!(LatencyHistogram::read_hlog(cut).is_err());
        assert_eq!(
            LatencyHistogram::read_hlog(b"x"),
            Err(HlogReadError::NotALog)
        );
    }
}
