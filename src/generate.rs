//! `taut generate`: makes traffic at a constant rate and measures what comes back.

use crate::exit::Failure;
use crate::{print, quantity};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use taut_measure::{SequenceReport, Summary};
use taut_port::{Clock, PortCounters, PortSpec};
use taut_traffic::{Instrument, Record, Stream, Summaries, Tally, Trial};
use taut_wire::UdpFlow;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut generate --port memif:/tmp/west.sock --port memif:/tmp/east.sock --rate 100k --seconds 10
  taut generate --port af_packet:eth1 --port af_packet:eth2 --rate 1M --size 128 --json

The first port sends, the last one receives (one port does both). Every packet carries a stamp;
latency is the round trip from the stamp to the arrival. Ends with code 1 if the rate could not be
offered or more was lost than --max-loss allows.")]
pub struct Arguments {
    /// A port, such as memif:/run/a.sock or af_packet:eth0 (`taut ports` lists them); once or twice
    #[arg(long, value_name = "SPEC", required = true)]
    port: Vec<String>,
    /// Packets per second: 100k, 1.5M, 14880952
    #[arg(long, default_value = "100k", value_parser = quantity::rate)]
    rate: f64,
    /// Frame size in bytes, frame check sequence included: 64 to 9216
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// How many seconds to send
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    seconds: f64,
    /// Core to run on
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// How many seconds to wait for the other side of the ports
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// How long to send before the measurement, so that caches, rings and peers are as they will stay
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = quantity::seconds)]
    warm_up: f64,
    /// Share of packets that may be lost or refused before the command ends with code 1: 0.001 is 0.1 %
    #[arg(long, value_name = "SHARE")]
    max_loss: Option<f64>,
    /// Print one JSON object a second, and one at the end
    #[arg(long)]
    json: bool,
}

/// What the loop tells the printing thread.
#[derive(Default)]
struct Progress {
    stamped: AtomicU64,
    refused: AtomicU64,
    received: AtomicU64,
}

/// Keeps summaries and tells how far it got.
struct Watched {
    summaries: Summaries,
    progress: Arc<Progress>,
    refused: u64,
    received: u64,
}

impl Record for Watched {
    #[inline(always)]
    fn sent(&mut self, sequence: u64, slip_ticks: u64) {
        self.progress.stamped.store(sequence + 1, Ordering::Relaxed);
        self.summaries.sent(sequence, slip_ticks);
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
        self.refused += 1;
        self.progress.refused.store(self.refused, Ordering::Relaxed);
        self.summaries.refused(sequence);
    }

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64) {
        self.received += 1;
        self.progress
            .received
            .store(self.received, Ordering::Relaxed);
        self.summaries.received(sequence, latency_ticks);
    }
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    if arguments.port.len() > 2 {
        return Err(Failure::Input(
            "give one or two --port: one to send, one to receive".to_string(),
        ));
    }
    let specs = arguments
        .port
        .iter()
        .map(|p| PortSpec::parse(p))
        .collect::<Result<Vec<_>, _>>()?;
    let stream = Stream::new(&UdpFlow::default(), arguments.size)
        .map_err(|e| Failure::Input(format!("--size {}: {e}", arguments.size)))?;
    let job = Job {
        specs,
        stream,
        clock: Clock::calibrate(Duration::from_millis(50)),
        trial: Trial {
            rate_pps: arguments.rate,
            duration: Duration::from_secs_f64(arguments.seconds),
        },
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        core: arguments.core,
        wait: Duration::from_secs_f64(arguments.wait),
    };
    let stop = taut_host::stop_flag()
        .map_err(|e| Failure::Missing(format!("cannot watch for Ctrl-C: {e}")))?;
    let progress = Arc::new(Progress::default());
    let (started, has_started) = mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let generator = scope.spawn(|| job.run(stop, &progress, started));
        print_each_second(&progress, &has_started, arguments.json);
        generator
            .join()
            .unwrap_or_else(|_| Err(Failure::Missing("the generator thread died".to_string())))
    })?;
    report(&arguments, &outcome)
}

/// What the generator thread is to do.
struct Job {
    specs: Vec<PortSpec>,
    stream: Stream,
    clock: Clock,
    trial: Trial,
    warm_up: Duration,
    core: Option<usize>,
    wait: Duration,
}

/// What it found.
struct Outcome {
    tally: Tally,
    summaries: Summaries,
    ports: Vec<PortCounters>,
}

impl Job {
    /// Says so through `started` once the measurement begins; the channel closes when it ends.
    fn run(
        &self,
        stop: &AtomicBool,
        progress: &Arc<Progress>,
        started: mpsc::Sender<()>,
    ) -> Result<Outcome, Failure> {
        if let Some(core) = self.core {
            taut_host::pin_current_thread(core).map_err(|e| Failure::Input(e.to_string()))?;
        }
        let mut instrument = Instrument::open(&self.specs, self.stream.clone(), self.clock)?;
        instrument.wait_for_links(self.wait, stop)?;
        if !self.warm_up.is_zero() {
            let warm_up = Trial {
                rate_pps: self.trial.rate_pps,
                duration: self.warm_up,
            };
            instrument.run(warm_up, &mut Summaries::new(&self.clock), stop);
        }
        let mut record = Watched {
            summaries: Summaries::new(&self.clock),
            progress: Arc::clone(progress),
            refused: 0,
            received: 0,
        };
        let _ = started.send(());
        let tally = instrument.run(self.trial, &mut record, stop);
        Ok(Outcome {
            tally,
            summaries: record.summaries,
            ports: instrument.counters(),
        })
    }
}

fn print_each_second(progress: &Progress, started: &mpsc::Receiver<()>, json: bool) {
    // Nothing comes if the generator fails before it starts.
    if started.recv().is_err() {
        return;
    }
    let (mut second, mut sent, mut received) = (0_u64, 0, 0);
    let mut next = Instant::now() + Duration::from_secs(1);
    while started.recv_timeout(next.saturating_duration_since(Instant::now()))
        == Err(mpsc::RecvTimeoutError::Timeout)
    {
        next += Duration::from_secs(1);
        second += 1;
        let refused = progress.refused.load(Ordering::Relaxed);
        let now = (
            progress
                .stamped
                .load(Ordering::Relaxed)
                .saturating_sub(refused),
            progress.received.load(Ordering::Relaxed),
        );
        let (tx, rx) = (now.0.saturating_sub(sent), now.1 - received);
        (sent, received) = now;
        if json {
            let event = json!({"event": "second", "second": second, "sent": tx, "received": rx});
            print::line(event);
        } else {
            print::line(format!(
                "{second:>5} s  sent {:>14}  received {:>14}",
                quantity::pps(tx as f64),
                quantity::pps(rx as f64)
            ));
        }
    }
}

fn report(arguments: &Arguments, outcome: &Outcome) -> Result<(), Failure> {
    let Outcome {
        tally,
        summaries,
        ports,
    } = outcome;
    let latency = Summary::from_histogram(&summaries.latency);
    let slip = Summary::from_histogram(&summaries.slip);
    let jitter = summaries.jitter.summary();
    // Refused packets took a sequence number but never left.
    let account = summaries.sequence.finish(tally.sent + tally.refused);
    let lost = account.lost.saturating_sub(tally.refused);
    if arguments.json {
        print::line(
            json!({"event": "summary", "asked_pps": arguments.rate, "tally": tally, "lost": lost,
                "latency_ns": latency, "jitter_ns": jitter, "send_slip_ns": slip, "sequence": account,
                "ports": ports}),
        );
    } else {
        print_text(
            tally,
            lost,
            latency.as_ref(),
            slip.as_ref(),
            jitter.as_ref(),
            &account,
        );
        print_port_losses(&arguments.port, ports);
    }
    if tally.stopped {
        return Ok(());
    }
    if tally.generator_behind() {
        return Err(Failure::Limit(format!(
            "asked for {}, but the generator could not keep up: {} of {} packets were never sent",
            quantity::pps(arguments.rate),
            tally.unsent,
            tally.owed
        )));
    }
    let share = (lost + tally.refused) as f64 / tally.owed as f64;
    match arguments.max_loss {
        Some(limit) if share > limit => Err(Failure::Limit(format!(
            "{:.4} % lost, more than the {:.4} % allowed",
            share * 100.0,
            limit * 100.0
        ))),
        None if tally.received == 0 => Err(Failure::Limit(
            "nothing came back, so nothing was measured (--max-loss 1 if nothing is meant to)"
                .to_string(),
        )),
        _ => Ok(()),
    }
}

/// Says what was lost inside the ports, where the wire is not to blame.
fn print_port_losses(names: &[String], ports: &[PortCounters]) {
    for (name, c) in names.iter().zip(ports) {
        let losses = [
            ("received while its ring was full", c.rx_overrun),
            ("received with an impossible description", c.rx_malformed),
            ("received too long for a buffer", c.rx_too_long),
            ("too long to send on this link", c.tx_too_long),
            ("refused by the kernel or the peer", c.tx_failed),
        ];
        for (what, n) in losses.into_iter().filter(|(_, n)| *n > 0) {
            print::line(format!("{name}: {n} {what}"));
        }
    }
}

fn print_text(
    tally: &Tally,
    lost: u64,
    latency: Option<&Summary>,
    slip: Option<&Summary>,
    jitter: Option<&taut_measure::JitterSummary>,
    account: &SequenceReport,
) {
    print::line(format!(
        "sent {} of {} packets in {:.3} s ({}), received {}",
        tally.sent,
        tally.owed,
        tally.seconds,
        quantity::pps(tally.sent as f64 / tally.seconds),
        tally.received
    ));
    print::line(format!(
        "lost {lost}, refused by a full ring {}, never sent {}, duplicate {}, reordered {}, corrupt {}, foreign {}",
        tally.refused,
        tally.unsent,
        account.duplicate,
        account.reordered,
        tally.corrupt,
        tally.foreign
    ));
    match latency {
        Some(l) => print::line(format!("latency    {}", quantity::summary(l))),
        None => print::line("latency    no data: nothing came back"),
    }
    if let Some(j) = jitter {
        print::line(format!(
            "jitter     avg {}  max {}",
            quantity::ns(j.avg_ns),
            quantity::ns(j.max_ns as f64)
        ));
    }
    if let Some(s) = slip {
        print::line(format!("send slip  {}", quantity::summary(s)));
    }
}
