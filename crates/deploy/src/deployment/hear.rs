//! Processes the messages of a chain's processes.

use super::{BACK_OFF, Deployment};
use crate::process::{Said, Word};
use crate::status::Condition;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use taut_engine::{CountKind, Event, Report};

/// Running time after which the death of a process no longer counts as a failed start.
const SETTLED: Duration = Duration::from_secs(10);

impl Deployment {
    /// Processes a message of a process; returns true if the process ended.
    pub(super) fn hear(&mut self, word: Word) -> bool {
        let kept = &mut self.processes[word.process];
        if word.start != kept.starts {
            return false;
        }
        match word.what {
            Said::Event(line) => {
                let Ok(report) = serde_json::from_str(&line) else {
                    return false;
                };
                self.hear_event(word.process, report)
            }
            Said::Told(line) => {
                kept.said = line.strip_prefix("taut: ").unwrap_or(&line).to_string();
                false
            }
            Said::Ended => {
                self.hear_end(word.process);
                true
            }
        }
    }

    /// Processes an event that a process reports; returns true if the process has read all its capture files.
    fn hear_event(&mut self, process: usize, report: Report) -> bool {
        let Report { event, worker } = report;
        let segments = self.segments.iter_mut();
        let mut segments = segments.filter(|s| s.process == process);
        if let Event::Link { port, down } = event {
            for of in segments {
                of.links.insert(port.clone(), down.clone());
            }
            return false;
        }
        let Some(of) = segments.find(|s| s.worker == worker.unwrap_or(0)) else {
            return false;
        };
        match event {
            Event::Started(_) => of.condition = Condition::Up,
            Event::Second(second) => {
                of.now = of.now + second.counters;
                of.counts = second.functions;
            }
            Event::Counters { counters, ports } => {
                of.told = counters;
                if let Some(drain) = &mut self.drain
                    && drain.segment == process
                {
                    drain.hear(&ports, Instant::now());
                }
                self.fill_gaps(process, &ports);
            }
            Event::Done { counters, ports } => {
                of.condition = Condition::Ended;
                of.now = counters;
                of.at_end = ports;
                return true;
            }
            Event::Summary(summary) => {
                of.now = summary.counters;
                of.counts
                    .retain(|it| !matches!(it.kind, CountKind::Outcome | CountKind::Drop));
                of.counts.extend(summary.functions);
            }
            Event::Updated { .. } | Event::Joined { .. } => self.answer = Some(Ok(())),
            Event::Refused { reason } => self.answer = Some(Err(reason)),
            Event::Link { .. } => {}
        }
        false
    }

    /// Handles the exit of a process: marks its segments as ended, or schedules a restart of the process.
    fn hear_end(&mut self, process: usize) {
        let kept = &mut self.processes[process];
        let segments = self.segments.iter_mut();
        let segments = segments.filter(|s| s.process == process);
        let status = kept.running.take().and_then(|mut process| process.status());
        let well = status.is_some_and(|status| status.success());
        let mut was_done = true;
        for of in segments {
            was_done &= of.condition == Condition::Ended;
            of.condition = if well || was_done {
                Condition::Ended
            } else {
                Condition::Down
            };
            of.links.clear();
            // The counts start again from 0 after a restart. Without a restart they are final and stay.
            if of.condition == Condition::Down {
                of.counts.clear();
            }
            of.count_as_told();
            of.before = of.before + std::mem::take(&mut of.now);
        }
        // A process that has read its file must not read it again.
        if !well && !was_done {
            let signal = status.and_then(|status| status.signal());
            kept.last_words = match signal {
                Some(signal) => format!("ended by signal {signal}"),
                None => std::mem::take(&mut kept.said),
            };
            if kept.since.elapsed() >= SETTLED {
                kept.back_off = BACK_OFF[0];
            }
            kept.due = Some(Instant::now() + kept.back_off);
            kept.back_off = (kept.back_off * 2).min(BACK_OFF[1]);
            self.open_gaps(process);
        }
    }
}
