//! The display of a running generator each second: a line, a JSON object or the dashboard, and its metrics.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_live::metrics::{Endpoint, Exposition, generator_metrics};
use taut_live::{Asked, Dashboard, View};
use taut_results::SampleThread;
use taut_traffic::{Interval, StreamView};

/// Timeout for a stream to deliver the samples of a second.
const PATIENCE: Duration = Duration::from_millis(50);

/// The shortest last interval that is shown as a second of its own. The last interval ends with the generator, slightly
/// before a full second.
const LAST_SECOND: Duration = Duration::from_millis(500);

/// The interval at which a dashboard checks for keys.
const KEYS: Duration = Duration::from_millis(100);

/// The kind of display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No display of the seconds; only the metrics are updated.
    Nothing,
    Lines,
    Json,
    Dashboard,
}

/// The text that the metrics endpoint serves.
pub type MetricsText = Arc<Mutex<String>>;

/// Serves the output of `render`, if an address is given, and prints that address.
pub fn serve_metrics(
    address: Option<&str>,
    render: impl Fn() -> String + Send + Sync + 'static,
) -> Result<Option<Endpoint>, Failure> {
    let Some(address) = address else {
        return Ok(None);
    };
    let endpoint = Endpoint::serve(address, render)?;
    print::note(format_args!(
        "metrics at http://{}/metrics",
        endpoint.address()
    ));
    Ok(Some(endpoint))
}

/// Starts the metrics endpoint, if an address is given, and returns the endpoint with the text that it serves.
pub fn endpoint(address: Option<&str>) -> Result<(Option<Endpoint>, Option<MetricsText>), Failure> {
    // The text is well-formed before the first update as well.
    let text = MetricsText::new(Mutex::new(Exposition::new().finish()));
    let given_out = Arc::clone(&text);
    let endpoint = serve_metrics(address, move || {
        given_out
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    })?;
    let text = endpoint.is_some().then_some(text);
    Ok((endpoint, text))
}

/// The current step of a measurement of several trials, and an estimate of the remaining time.
#[derive(Debug, Default)]
pub struct Status {
    pub doing: String,
    pub left: Duration,
}

/// The streams to watch, and the kind of display.
pub struct Watch<'a> {
    pub look: Look,
    pub title: String,
    pub planned_seconds: f64,
    /// The status of a measurement of several trials: its remaining time is shown instead of that derived from
    /// `planned_seconds`. `None` for a measurement of one trial.
    pub status: Option<&'a Mutex<Status>>,
    pub metrics: Option<MetricsText>,
    pub samples: &'a [SampleThread],
    pub stop: &'a AtomicBool,
}

impl Watch<'_> {
    /// Shows the streams each second, from the first message on the channel `running` until its sender is dropped. If
    /// the generator fails before it starts, no message arrives and nothing is shown.
    pub fn run(&self, streams: &mut [StreamView], running: &Receiver<()>) {
        self.publish(streams);
        if running.recv().is_err() {
            return;
        }
        let mut dashboard = match self.look {
            Look::Dashboard => match Dashboard::open() {
                Ok(dashboard) => Some(dashboard),
                Err(e) => {
                    print::note(format_args!("no dashboard on this terminal: {e}"));
                    None
                }
            },
            Look::Nothing | Look::Lines | Look::Json => None,
        };
        streams.iter_mut().for_each(StreamView::start);
        let begun = Instant::now();
        let mut told = vec![false; self.samples.len()];
        let mut second = 0_u32;
        self.draw(&mut dashboard, begun, streams);
        loop {
            let next = begun + Duration::from_secs(u64::from(second) + 1);
            if self.wait(running, begun, next, &mut dashboard, streams) {
                let since = begun
                    .elapsed()
                    .saturating_sub(Duration::from_secs(second.into()));
                if since >= LAST_SECOND {
                    streams.iter_mut().for_each(|it| it.look(Duration::ZERO));
                    self.publish(streams);
                    self.say(second + 1, streams, None);
                }
                return;
            }
            second += 1;
            streams.iter().for_each(StreamView::ask);
            for stream in &mut *streams {
                stream.look(PATIENCE);
            }
            self.publish(streams);
            if dashboard.is_some() {
                self.draw(&mut dashboard, begun, streams);
                continue;
            }
            for (thread, told) in self.samples.iter().zip(&mut told) {
                if let Some(problem) = thread.problem().filter(|_| !*told) {
                    print::note(format_args!(
                        "{problem}; no more samples are written, the run continues"
                    ));
                    *told = true;
                }
            }
            // `last` is `None` unless the first stream collects intervals.
            let last = streams.first().and_then(|stream| stream.last.as_deref());
            self.say(second, streams, last);
        }
    }

    /// Prints one line about a second; `last` is the first stream's interval of that second.
    fn say(&self, second: u32, streams: &[StreamView], last: Option<&Interval>) {
        match self.look {
            Look::Json => print::json(&json_line(second, streams)),
            Look::Lines | Look::Dashboard => print::line(line(second, streams, last)),
            Look::Nothing => {}
        }
    }

    /// Waits until `next`; returns true if the generator has ended before that time.
    fn wait(
        &self,
        running: &Receiver<()>,
        begun: Instant,
        next: Instant,
        dashboard: &mut Option<Dashboard>,
        streams: &[StreamView],
    ) -> bool {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let Some(screen) = dashboard else {
                return running.recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
            };
            if running.try_recv() == Err(TryRecvError::Disconnected) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            match screen.keys(left.min(KEYS)) {
                Ok(Asked::Quit) => self.stop.store(true, Ordering::Relaxed),
                Ok(Asked::Stream) => self.draw(dashboard, begun, streams),
                Ok(Asked::Nothing) => {}
                // The dashboard ends because the terminal is closed; a signal reports that as well, so no error is
                // returned.
                Err(_) => *dashboard = None,
            }
        }
    }

    fn draw(&self, dashboard: &mut Option<Dashboard>, begun: Instant, streams: &[StreamView]) {
        let Some(screen) = dashboard else {
            return;
        };
        let problems = self.samples.iter().filter_map(SampleThread::problem);
        let problems: Vec<String> = problems.map(String::from).collect();
        let elapsed_seconds = begun.elapsed().as_secs_f64();
        let status = self.status.map(|status| {
            let status = status.lock().unwrap_or_else(PoisonError::into_inner);
            (status.doing.clone(), status.left.as_secs_f64())
        });
        let view = View {
            title: &self.title,
            elapsed_seconds,
            planned_seconds: status
                .as_ref()
                .map_or(self.planned_seconds, |(_, left)| elapsed_seconds + left),
            doing: status.as_ref().map(|(doing, _)| doing.as_str()),
            streams,
            problems: &problems,
        };
        if screen.show(&view).is_err() {
            *dashboard = None;
        }
    }

    fn publish(&self, streams: &[StreamView]) {
        if let Some(metrics) = &self.metrics {
            let text = generator_metrics(streams);
            *metrics.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
    }
}

fn sum(streams: &[StreamView], of: fn(&StreamView) -> u64) -> u64 {
    streams.iter().map(of).sum()
}

/// The JSON line about a second of a running generator.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum SecondLine {
    /// The packets of all streams in the second.
    Second {
        second: u32,
        sent: u64,
        received: u64,
    },
}

fn json_line(second: u32, streams: &[StreamView]) -> SecondLine {
    SecondLine::Second {
        second,
        sent: sum(streams, |s| s.last_counts.sent),
        received: sum(streams, |s| s.last_counts.received),
    }
}

fn line(second: u32, streams: &[StreamView], last: Option<&Interval>) -> String {
    let seconds = streams.first().map_or(1.0, |stream| stream.last_seconds);
    let rate = |count: u64| quantity::rate(count as f64 / seconds.max(1e-3));
    let mut line = format!(
        "{second:>5} s  sent {:>14}  received {:>14}",
        rate(sum(streams, |s| s.last_counts.sent)),
        rate(sum(streams, |s| s.last_counts.received))
    );
    if let Some(last) = last {
        let at = |q| {
            let ns = last.latency.quantile(q);
            ns.map_or("-".to_string(), |ns| quantity::time(ns as f64))
        };
        line += &format!(
            "  missing {}  latency p50 {}  p99 {}  max {}",
            sum(streams, |s| s.total.missing),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    line
}
