//! `taut generate`: makes traffic at a constant rate and measures what comes back.

use crate::exit::Failure;
use crate::quantity;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use taut_measure::{SequenceReport, Summary};
use taut_port::{Clock, PortSpec};
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
    sent: AtomicU64,
    received: AtomicU64,
}

/// Keeps summaries and tells how far it got.
struct Watched {
    summaries: Summaries,
    progress: Arc<Progress>,
    received: u64,
}

impl Record for Watched {
    #[inline(always)]
    fn sent(&mut self, sequence: u64, slip_ticks: u64) {
        self.progress.sent.store(sequence + 1, Ordering::Relaxed);
        self.summaries.sent(sequence, slip_ticks);
    }

    #[inline(always)]
    fn refused(&mut self, sequence: u64) {
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
    let stop = taut_host::stop_flag()
        .map_err(|e| Failure::Missing(format!("cannot watch for Ctrl-C: {e}")))?;
    let clock = Clock::calibrate(Duration::from_millis(50));
    let trial = Trial {
        rate_pps: arguments.rate,
        duration: Duration::from_secs_f64(arguments.seconds),
    };
    let progress = Arc::new(Progress::default());
    let done = AtomicBool::new(false);
    let wait = Duration::from_secs_f64(arguments.wait);

    let (tally, record) = std::thread::scope(|scope| {
        let generator = scope.spawn(|| -> Result<(Tally, Summaries), Failure> {
            let result = generate(
                &specs,
                stream,
                clock,
                trial,
                arguments.core,
                wait,
                stop,
                &progress,
            );
            done.store(true, Ordering::Release);
            result
        });
        print_each_second(&progress, &done, arguments.json);
        generator
            .join()
            .unwrap_or_else(|_| Err(Failure::Missing("the generator thread died".to_string())))
    })?;
    report(&arguments, &tally, &record)
}

#[allow(clippy::too_many_arguments)]
fn generate(
    specs: &[PortSpec],
    stream: Stream,
    clock: Clock,
    trial: Trial,
    core: Option<usize>,
    wait: Duration,
    stop: &AtomicBool,
    progress: &Arc<Progress>,
) -> Result<(Tally, Summaries), Failure> {
    if let Some(core) = core {
        taut_host::pin_current_thread(core).map_err(|e| Failure::Input(e.to_string()))?;
    }
    let mut instrument = Instrument::open(specs, stream, clock)?;
    instrument.wait_for_links(wait, stop)?;
    let mut record = Watched {
        summaries: Summaries::new(&clock),
        progress: Arc::clone(progress),
        received: 0,
    };
    let tally = instrument.run(trial, &mut record, stop);
    Ok((tally, record.summaries))
}

fn print_each_second(progress: &Progress, done: &AtomicBool, json: bool) {
    let (mut second, mut sent, mut received) = (0_u64, 0, 0);
    let mut next = std::time::Instant::now() + Duration::from_secs(1);
    while !done.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(10));
        let now = (
            progress.sent.load(Ordering::Relaxed),
            progress.received.load(Ordering::Relaxed),
        );
        if now.0 == 0 {
            // Seconds count from the first packet, not from waiting for the other side.
            next = std::time::Instant::now() + Duration::from_secs(1);
        } else if std::time::Instant::now() >= next {
            next += Duration::from_secs(1);
            second += 1;
            let (tx, rx) = (now.0 - sent, now.1 - received);
            (sent, received) = now;
            if json {
                println!(
                    "{}",
                    json!({"event": "second", "second": second, "sent": tx, "received": rx})
                );
            } else {
                println!(
                    "{second:>5} s  sent {:>14}  received {:>14}",
                    quantity::pps(tx as f64),
                    quantity::pps(rx as f64)
                );
            }
        }
    }
}

fn report(arguments: &Arguments, tally: &Tally, record: &Summaries) -> Result<(), Failure> {
    let latency = Summary::from_histogram(&record.latency);
    let slip = Summary::from_histogram(&record.slip);
    let jitter = record.jitter.summary();
    // Refused packets took a sequence number but never left.
    let account = record.sequence.finish(tally.sent + tally.refused);
    let lost = account.lost.saturating_sub(tally.refused);
    if arguments.json {
        println!(
            "{}",
            json!({"event": "summary", "asked_pps": arguments.rate, "tally": tally, "lost": lost,
                "latency_ns": latency, "jitter_ns": jitter, "send_slip_ns": slip, "sequence": account})
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
        _ => Ok(()),
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
    println!(
        "sent {} of {} packets in {:.3} s ({}), received {}",
        tally.sent,
        tally.owed,
        tally.seconds,
        quantity::pps(tally.sent as f64 / tally.seconds),
        tally.received
    );
    println!(
        "lost {lost}, refused by a full ring {}, never sent {}, duplicate {}, reordered {}, corrupt {}, foreign {}",
        tally.refused,
        tally.unsent,
        account.duplicate,
        account.reordered,
        tally.corrupt,
        tally.foreign
    );
    match latency {
        Some(l) => println!("latency    {}", quantity::summary(l)),
        None => println!("latency    no data: nothing came back"),
    }
    if let Some(j) = jitter {
        println!(
            "jitter     avg {}  max {}",
            quantity::ns(j.avg_ns),
            quantity::ns(j.max_ns as f64)
        );
    }
    if let Some(s) = slip {
        println!("send slip  {}", quantity::summary(s));
    }
}
