//! What a running generator shows each second: a line, a JSON object or the dashboard, and its metrics.

use crate::{print, quantity};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_lab::live::{Dashboard, View};
use taut_lab::metrics::generator_metrics;
use taut_lab::results::SampleThread;
use taut_traffic::StreamView;

/// How long to wait for a stream to hand over what it has gathered.
const PATIENCE: Duration = Duration::from_millis(50);

/// How often a dashboard looks for keys.
const KEYS: Duration = Duration::from_millis(100);

/// How it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Lines,
    Json,
    Dashboard,
}

/// The text that the metrics endpoint gives out.
pub type MetricsText = Arc<Mutex<String>>;

/// What is watched, and how.
pub struct Watch<'a> {
    pub look: Look,
    pub title: String,
    pub planned_seconds: f64,
    pub metrics: Option<MetricsText>,
    pub samples: &'a [SampleThread],
    pub stop: &'a AtomicBool,
}

impl Watch<'_> {
    /// Shows every second from the message of `running` on until its other side is gone. Nothing comes if
    /// the generator fails before it starts.
    pub fn run(&self, streams: &mut [StreamView], running: &Receiver<()>) {
        self.publish(streams);
        if running.recv().is_err() {
            return;
        }
        let mut dashboard = match self.look {
            Look::Dashboard => match Dashboard::open() {
                Ok(dashboard) => Some(dashboard),
                Err(e) => {
                    eprintln!("taut: no dashboard on this terminal: {e}");
                    None
                }
            },
            Look::Lines | Look::Json => None,
        };
        streams.iter_mut().for_each(StreamView::start);
        let begun = Instant::now();
        let mut told = vec![false; self.samples.len()];
        let mut second = 0_u32;
        self.draw(&mut dashboard, begun, streams);
        loop {
            let next = begun + Duration::from_secs(u64::from(second) + 1);
            if self.wait(running, next, &mut dashboard) {
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
                    eprintln!("taut: {problem}; no more samples are written, the run goes on");
                    *told = true;
                }
            }
            if self.look == Look::Json {
                print::line(json_line(second, streams));
            } else {
                print::line(line(second, streams));
            }
        }
    }

    /// Waits until `next`; true if the generator has ended before.
    fn wait(
        &self,
        running: &Receiver<()>,
        next: Instant,
        dashboard: &mut Option<Dashboard>,
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
            match screen.quit_asked(left.min(KEYS)) {
                Ok(true) => self.stop.store(true, Ordering::Relaxed),
                Ok(false) => {}
                // The terminal has gone; a signal says so as well.
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
        let view = View {
            title: &self.title,
            elapsed_seconds: begun.elapsed().as_secs_f64(),
            planned_seconds: self.planned_seconds,
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

fn json_line(second: u32, streams: &[StreamView]) -> serde_json::Value {
    json!({"event": "second", "second": second,
        "sent": sum(streams, |s| s.last_counts.sent), "received": sum(streams, |s| s.last_counts.received)})
}

fn line(second: u32, streams: &[StreamView]) -> String {
    let mut line = format!(
        "{second:>5} s  sent {:>14}  received {:>14}",
        quantity::pps(sum(streams, |s| s.last_counts.sent) as f64),
        quantity::pps(sum(streams, |s| s.last_counts.received) as f64)
    );
    // The first stream's, where somebody gathers them.
    if let Some(last) = streams.first().and_then(|stream| stream.last.as_ref()) {
        let at = |q| {
            let ns = last.latency.quantile(q);
            ns.map_or("-".to_string(), |ns| quantity::ns(ns as f64))
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
