//! Usage reporting rules and their reports (3GPP TS 29.244 sections 5.2.2 and 7.5.8.3).

use super::super::policing::SharedMeters;
use super::super::usage::{Counted, Usage};
use super::element::look;
use super::refusal::Refusal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_wire::pfcp::{Element, ElementType, Volumes, Writer};

/// The bits of the measurement method (TS 29.244 section 8.2.40).
const MEASURES_TIME: u8 = 1;
const MEASURES_VOLUME: u8 = 2;
/// A bit of the measurement information (TS 29.244 section 8.2.68). If it is set, time is measured from the start of the
/// rule, otherwise from the first packet.
const STARTS_AT_ONCE: u8 = 8;

/// The bits of the reporting triggers (TS 29.244 section 8.2.19). The supported triggers have the same bits in reports.
const PERIODIC: u32 = 1;
const VOLUME_THRESHOLD: u32 = 2;
const TIME_THRESHOLD: u32 = 4;
const VOLUME_QUOTA: u32 = 1 << 8;
const TIME_QUOTA: u32 = 1 << 9;
/// The triggers that occur only in usage reports (TS 29.244 section 8.2.41).
pub(super) const ASKED: u32 = 1 << 7;
pub(super) const ENDED: u32 = 1 << 11;

/// The shortest time between two checks of a usage rule, even if the rule requests a shorter one.
const LEAST: Duration = Duration::from_secs(1);

/// The current time, by all clocks that usage reports need.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub now: Instant,
    /// The current time in seconds since 1900.
    pub date: u32,
    pub clock: SharedMeters,
}

impl Moment {
    /// Returns the time at the cycle count `ticks`, in seconds since 1900.
    fn date_of(&self, ticks: u64) -> u32 {
        self.date
            .wrapping_sub(self.clock.age(ticks).as_secs() as u32)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Urr {
    pub usage: Arc<Usage>,
    method: u8,
    triggers: u32,
    period: Option<Duration>,
    threshold: Volumes,
    time_threshold: Option<Duration>,
    quota: Volumes,
    time_quota: Option<Duration>,
    /// The value of the volume counters when the quota was assigned.
    quota_since: Counted,
    is_quota_told: bool,
    is_time_over: bool,
    /// The part of the time quota that was used before the last report.
    time_used: Duration,
    starts_at_once: bool,
    /// The value of the volume counters at the last report.
    reported: Counted,
    sequence: u32,
    /// The time of the last report, or of the rule's creation.
    since: Instant,
    since_date: u32,
    /// The start of the time measurement; none before the first packet.
    active_since: Option<Instant>,
    /// The time at which the usage rule's next timer expires; none without a running timer.
    pub due: Option<Instant>,
}

impl Urr {
    pub fn new(session: u64, rule: u32, moment: &Moment) -> Self {
        Self {
            usage: Arc::new(Usage::new(session, rule)),
            method: 0,
            triggers: 0,
            period: None,
            threshold: Volumes::default(),
            time_threshold: None,
            quota: Volumes::default(),
            time_quota: None,
            quota_since: Counted::default(),
            is_quota_told: false,
            is_time_over: false,
            time_used: Duration::ZERO,
            starts_at_once: false,
            reported: Counted::default(),
            sequence: 0,
            since: moment.now,
            since_date: moment.date,
            active_since: None,
            due: None,
        }
    }

    /// Returns this rule, changed as the element `rule` requests.
    pub fn with(mut self, rule: &Element<'_>, moment: &Moment) -> Result<Self, Refusal> {
        let seconds = |kind| -> Result<Option<Duration>, Refusal> {
            let element = look(rule, kind)?.map(|e| e.u32()).transpose()?;
            Ok(element.map(|seconds| Duration::from_secs(seconds.into())))
        };
        if let Some(method) = look(rule, ElementType::MEASUREMENT_METHOD)? {
            self.method = method.u8()?;
        }
        if let Some(triggers) = look(rule, ElementType::REPORTING_TRIGGERS)? {
            triggers.u8()?;
            let bytes = triggers.value.iter().take(3).enumerate();
            self.triggers = bytes.fold(0, |sum, (at, byte)| sum | u32::from(*byte) << (8 * at));
        }
        if let Some(period) = seconds(ElementType::MEASUREMENT_PERIOD)? {
            self.period = Some(period.max(LEAST));
        }
        if let Some(volumes) = look(rule, ElementType::VOLUME_THRESHOLD)? {
            self.threshold = Volumes::parse(volumes.value)?;
        }
        if let Some(time) = seconds(ElementType::TIME_THRESHOLD)? {
            self.time_threshold = Some(time.max(LEAST));
        }
        if let Some(volumes) = look(rule, ElementType::VOLUME_QUOTA)? {
            self.quota = Volumes::parse(volumes.value)?;
            (self.quota_since, self.is_quota_told) = (self.usage.counted(), false);
        }
        if let Some(time) = seconds(ElementType::TIME_QUOTA)? {
            self.time_quota = Some(time);
            (self.is_time_over, self.time_used) = (false, Duration::ZERO);
            self.active_since = self.active_since.map(|_| moment.now);
        }
        if let Some(information) = look(rule, ElementType::MEASUREMENT_INFORMATION)? {
            self.starts_at_once = information.u8()? & STARTS_AT_ONCE != 0;
        }
        if self.starts_at_once {
            self.active_since.get_or_insert(moment.now);
        }
        Ok(self)
    }

    /// Activates the volume and time limits at which workers notify and drop, and sets the time of the next check.
    pub fn arm(&mut self, now: Instant) {
        let mut tell_at = [u64::MAX; 3];
        let mut lower = |at: [u64; 3]| {
            for (tell, at) in tell_at.iter_mut().zip(at) {
                *tell = at.min(*tell);
            }
        };
        if self.triggers & VOLUME_THRESHOLD != 0 {
            lower(self.reported.and(&self.threshold));
        }
        let stop_at = self.quota_since.and(&self.quota);
        if self.triggers & VOLUME_QUOTA != 0 && !self.is_quota_told {
            lower(stop_at);
        }
        let waits_for_time = self.time_threshold.is_some() || self.time_quota.is_some();
        if waits_for_time && self.active_since.is_none() {
            // The first packet starts the time measurement, so it causes a notification.
            lower(self.usage.counted().and(&Volumes {
                total: Some(1),
                ..Volumes::default()
            }));
        }
        let due = [
            self.period
                .filter(|_| self.triggers & PERIODIC != 0)
                .map(|period| self.since + period),
            self.threshold_due(),
            self.quota_due(),
        ];
        self.due = due.into_iter().flatten().min().map(|due| due.max(now));
        self.usage.limit(tell_at, stop_at, self.is_time_over);
    }

    fn threshold_due(&self) -> Option<Instant> {
        let time = self
            .time_threshold
            .filter(|_| self.triggers & TIME_THRESHOLD != 0);
        Some(self.active_since? + time?)
    }

    fn quota_due(&self) -> Option<Instant> {
        let time = self.time_quota.filter(|_| !self.is_time_over);
        Some(self.active_since? + time?.saturating_sub(self.time_used))
    }

    /// Returns the triggers of a usage report that is due now; 0 for none.
    pub fn look(&mut self, moment: &Moment) -> u32 {
        let now = moment.now;
        if self.active_since.is_none()
            && let Some(first) = self.usage.first_ticks()
        {
            let begun = now.checked_sub(moment.clock.age(first)).unwrap_or(now);
            self.active_since = Some(begun.max(self.since));
        }
        let counted = self.usage.counted();
        let mut triggers = 0;
        if self.triggers & VOLUME_THRESHOLD != 0 && counted.reaches(&self.threshold, self.reported)
        {
            triggers |= VOLUME_THRESHOLD;
        }
        if self.triggers & VOLUME_QUOTA != 0
            && !self.is_quota_told
            && counted.reaches(&self.quota, self.quota_since)
        {
            self.is_quota_told = true;
            triggers |= VOLUME_QUOTA;
        }
        let is_over = |due: Option<Instant>| due.is_some_and(|due| now >= due);
        if self.triggers & PERIODIC != 0 && is_over(self.period.map(|period| self.since + period)) {
            triggers |= PERIODIC;
        }
        if is_over(self.threshold_due()) {
            triggers |= TIME_THRESHOLD;
        }
        if is_over(self.quota_due()) {
            self.is_time_over = true;
            triggers |= self.triggers & TIME_QUOTA;
        }
        triggers
    }

    /// Returns a report of the usage since the last report, and starts the next reporting period.
    pub fn report(&mut self, triggers: u32, moment: &Moment) -> Writer {
        let mut report = Writer::group();
        report.element(ElementType::URR_ID, &self.usage.rule.to_be_bytes());
        report.element(ElementType::UR_SEQN, &self.sequence.to_be_bytes());
        let triggers = triggers.to_le_bytes();
        report.element(ElementType::USAGE_REPORT_TRIGGER, &triggers[..3]);
        report.element(ElementType::START_TIME, &self.since_date.to_be_bytes());
        report.element(ElementType::END_TIME, &moment.date.to_be_bytes());
        let counted = self.usage.counted();
        let times = self.usage.take_times();
        if self.method & MEASURES_VOLUME != 0 {
            let uplink = counted.uplink - self.reported.uplink;
            let downlink = counted.downlink - self.reported.downlink;
            let volumes = Volumes {
                total: Some(uplink + downlink),
                uplink: Some(uplink),
                downlink: Some(downlink),
            };
            report.element(ElementType::VOLUME_MEASUREMENT, &volumes.emit());
        }
        if self.active_since.is_none()
            && let Some((first, _)) = times
        {
            let begun = moment.now.checked_sub(moment.clock.age(first));
            self.active_since = begun.map(|begun| begun.max(self.since));
        }
        let time = self
            .active_since
            .map(|since| moment.now.saturating_duration_since(since));
        let time = time.unwrap_or_default();
        if self.method & MEASURES_TIME != 0 {
            let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
            report.element(ElementType::DURATION_MEASUREMENT, &seconds.to_be_bytes());
        }
        if let Some((first, last)) = times {
            for (kind, ticks) in [
                (ElementType::TIME_OF_FIRST_PACKET, first),
                (ElementType::TIME_OF_LAST_PACKET, last),
            ] {
                report.element(kind, &moment.date_of(ticks).to_be_bytes());
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.reported = counted;
        self.time_used += time;
        (self.since, self.since_date) = (moment.now, moment.date);
        self.active_since = self.active_since.map(|_| moment.now);
        report
    }
}
