//! `taut probe`: round trips between ordinary sockets, as an application measures them on a path.

mod layers;
pub mod simulate;

use crate::exit::{self, Failure};
use crate::forward;
use crate::samples::Samples;
use crate::terminal::Bar;
use crate::terminal::{print, quantity};
use crate::transport::TransportOptions;
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use taut_bench::benchmark::Observer;
use taut_bench::measurement::Versions;
use taut_folders::probe_results::{ProbeAccount, ProbeFolder, ProbeReport};
use taut_host::{CpuReading, CpuShare, CpuShares};
use taut_measure::{
    EXCEED_RATIO, Interval, Limit, Method, ThroughputSearch, ThroughputSettings,
    mean_beside_median, median_interval,
};
use taut_results::Origin;
use taut_traffic::messages::Transport;
use taut_traffic::probe::{
    Answered, DEFAULT_PORT, MOST_BYTES, Over, ProbeError, ProbeServer, ProbeSession, SearchedRate,
    Train, search_rate,
};
use taut_transport::Notice;
use taut_wire::PROBE_BYTES;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Send probes back to their source
    Server(Server),
    /// Send probes to a server and measure their round trips, or the highest rate without loss
    Client(Client),
    /// Send messages between two sides in virtual time, over a simulated path or a medium
    Simulate(simulate::Arguments),
    /// Print where the time of messages went, from captures at both ends
    Layers(layers::Arguments),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut probe server
  ip netns exec far taut probe server --bind 192.0.2.2:8621 --json

Replies to every well-formed probe with a packet of the same size, and to nothing else. Ctrl-C ends the server
with a summary.")]
struct Server {
    /// Address and port to receive probes at (default: port 8621 of all addresses, IPv6 and IPv4)
    #[arg(long, value_name = "ADDRESS:PORT")]
    bind: Option<SocketAddr>,
    #[command(flatten)]
    transport: TransportOptions,
    /// End when standard input closes, for programs that start taut and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Print JSON: one object at the start, one at the end
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut probe client 192.0.2.2                              500 probes of 256 bytes, 5 ms apart, 50 times: 2 minutes
  taut probe client 192.0.2.2 --size 1400 --budget 350us --cpu --out results/chain
  taut probe client [2001:db8::2]:9000 --count 100 --repetitions 6 --json
  taut probe client 192.0.2.2 --search-rate --repetitions 5

Needs `taut probe server` at the other end. Probes are UDP datagrams of ordinary sockets, sent at their
intended times regardless of replies. Ends with code 1 if no reply arrived.")]
struct Client {
    /// Host or address of the server, with a port unless that is 8621
    server: String,
    /// Time from one probe to the next, such as 5ms
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = quantity::some_time)]
    interval: Duration,
    /// Payload of a probe in bytes, at least 16
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u16).range(PROBE_BYTES as i64..=MOST_BYTES as i64))]
    size: u16,
    /// Probes of a repetition, 1 to 10000000
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Repetitions, 1 to 100000; with --search-rate: searches (default: 50; with --search-rate 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repetitions: Option<u32>,
    /// Report the fraction of probes that came back within this time, such as 350us; not with --search-rate
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time, conflicts_with = "search_rate")]
    budget: Option<Duration>,
    /// Report the processor time of this machine during the measurement: user, system, softirq, guest, steal, idle
    #[arg(long)]
    cpu: bool,
    /// Search for the highest rate at which no probe is lost or reordered; not with --interval, --count or --out
    #[arg(long, conflicts_with_all = ["interval", "count", "out"])]
    search_rate: bool,
    /// With --search-rate: highest offered rate, probes per second
    #[arg(long, value_name = "PPS", default_value_t = 1e6, value_parser = probes_per_second, requires = "search_rate")]
    max_rate: f64,
    /// With --search-rate: length of each trial in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = quantity::seconds, requires = "search_rate")]
    trial: f64,
    /// Report stages of the round trip by kernel timestamps: to the interface's queue, to its driver, away, to the
    /// client; not with --search-rate
    #[arg(long, conflicts_with = "search_rate")]
    stages: bool,
    #[command(flatten)]
    transport: TransportOptions,
    /// Time to wait for replies after the last probe of a repetition
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = quantity::some_time)]
    patience: Duration,
    /// Seconds to wait for the server
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Write samples of every probe, histogram, summary and a report to this folder, which must be new
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Format of the samples in the folder of --out
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
}

impl Client {
    fn over(&self) -> Result<Over, Failure> {
        let over = self.transport.over(usize::from(self.size))?;
        if self.stages && over.transport != Transport::Udp {
            return Err(Failure::Input(
                "--stages: timestamps exist for datagrams only; use --transport udp".to_owned(),
            ));
        }
        Ok(Over {
            stamps_departures: self.stages,
            ..over
        })
    }
}

/// Default number of repetitions; with `--search-rate`, the default is [`SEARCHES`].
const REPETITIONS: u32 = 50;
const SEARCHES: u32 = 5;

/// The lowest rate that a search tries, probes per second.
const LOWEST_RATE_PPS: f64 = 100.0;

/// Time between two progress lines of a search for a rate, whose trials are too short for a line each.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Precision of a search for a rate, as a fraction of that rate.
const SEARCH_PRECISION: f64 = 0.05;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Server(arguments) => serve(arguments),
        What::Client(arguments) => ask(arguments),
        What::Simulate(arguments) => simulate::run(arguments),
        What::Layers(arguments) => layers::run(arguments),
    }
}

fn probes_per_second(text: &str) -> Result<f64, String> {
    match text.parse::<taut_traffic::Rate>() {
        Ok(taut_traffic::Rate::Packets(pps)) if (LOWEST_RATE_PPS * 2.0..=1e8).contains(&pps) => {
            Ok(pps)
        }
        _ => Err("expected 200 to 100M probes per second, such as 50k".to_string()),
    }
}

/// A line of `taut probe server --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ServerLine {
    /// The server has started and replies to probes that arrive at `address`.
    Started { address: SocketAddr },
    /// The server has ended; CPU times are those of this process, `null` without probes.
    Summary {
        probes: Answered,
        cpu_per_probe_ns: Option<f64>,
        cpu_per_packet_ns: Option<f64>,
    },
}

fn serve(arguments: &Server) -> Result<(), Failure> {
    let signalled = exit::stop_flag()?;
    let over = arguments.transport.over_longest()?;
    let server = match arguments.bind {
        Some(address) => {
            ProbeServer::bind_over(address, &over).map_err(|e| (address.to_string(), e))
        }
        // One socket serves IPv4 and IPv6; a machine without IPv6 uses an IPv4 socket.
        None => ProbeServer::bind_over(([0_u16; 8], DEFAULT_PORT).into(), &over)
            .or_else(|_| ProbeServer::bind_over(([0_u8; 4], DEFAULT_PORT).into(), &over))
            .map_err(|e| (format!("port {DEFAULT_PORT}"), e)),
    };
    let server = server.map_err(|(what, e)| {
        Failure::Input(format!(
            "cannot listen at {what}: {e}; try another --bind ADDRESS:PORT"
        ))
    })?;
    let address = server
        .address()
        .map_err(|e| Failure::Missing(e.to_string()))?;
    print::line(forward::json_or_text(
        arguments.json,
        || ServerLine::Started { address },
        || format!("answering probes at {address}"),
    ));
    let stop = AtomicBool::new(false);
    let own_ns = cpu_time_ns();
    let answered = std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&stop));
        forward::wait(signalled, &[], arguments.until_stdin_closes, None);
        stop.store(true, Ordering::Relaxed);
        running
            .join()
            .map_err(|_| Failure::Missing("the reply thread died".to_string()))
    })?;
    let spent_ns = cpu_time_ns().saturating_sub(own_ns) as f64;
    let each = |count: u64| (count > 0).then(|| spent_ns / count as f64);
    let (per_probe_ns, per_packet_ns) = (each(answered.answered), each(answered.packets));
    print::line(forward::json_or_text(
        arguments.json,
        || ServerLine::Summary {
            probes: answered,
            cpu_per_probe_ns: per_probe_ns,
            cpu_per_packet_ns: per_packet_ns,
        },
        || {
            format!(
                "replied to {} probes; no reply: {} malformed datagrams, {} that the kernel did not send",
                answered.answered, answered.malformed, answered.not_sent
            )
        },
    ));
    Ok(())
}

/// Parses an address that a person has written.
fn address_of(text: &str) -> Result<SocketAddr, Failure> {
    if let Some((_, port)) = text.rsplit_once(':')
        && !port.is_empty()
        && port.bytes().all(|digit| digit.is_ascii_digit())
        && port.parse::<u16>().is_err()
    {
        return Err(Failure::Input(format!(
            "{text}: port {port}: expected 1 to 65535"
        )));
    }
    let with_port = text.to_socket_addrs();
    let found = match with_port {
        Ok(found) => Ok(found.collect::<Vec<_>>()),
        Err(_) => (text.trim_matches(['[', ']']), DEFAULT_PORT)
            .to_socket_addrs()
            .map(Iterator::collect),
    };
    match found {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses[0]),
        Ok(_) => Err(Failure::Input(format!("{text}: the name has no address"))),
        Err(e) => Err(Failure::Input(format!(
            "{text}: {e}; expected a host or an address, such as 192.0.2.2 or [2001:db8::2]:8621"
        ))),
    }
}

fn ask(arguments: &Client) -> Result<(), Failure> {
    let server = address_of(&arguments.server)?;
    let stop = exit::stop_flag()?;
    if arguments.search_rate {
        return search(arguments, server, stop);
    }
    let train = Train {
        interval: arguments.interval,
        size_bytes: usize::from(arguments.size),
        count: arguments.count,
        patience: arguments.patience,
    };
    let count = arguments.repetitions.unwrap_or(REPETITIONS);
    let over = arguments.over()?;
    let mut session = connect(arguments, server, &over, stop)?;
    let cpu = Cpu::start(arguments.cpu)?;
    let folder = match &arguments.out {
        Some(dir) => Some(ProbeFolder::create(dir, arguments.samples.format())?),
        None => None,
    };
    let account = ProbeAccount::new(arguments.budget);
    let own_ns = cpu_time_ns();
    let mut repetitions = Repetitions {
        account,
        folder,
        begun: (SystemTime::now(), Instant::now()),
        failed: None,
        stopped: false,
    };
    if let Err(e) = repetitions.send(&mut session, &train, count, stop) {
        repetitions.failed = Some(Failure::Missing(format!(
            "cannot send {} bytes to {server}: {e}",
            train.size_bytes
        )));
    }
    let origin = repetitions.origin();
    let account = &repetitions.account;
    let mut report = account.report(server, &train, cpu.stop()?, origin);
    report.transport = over.transport;
    report.connection = session.counts();
    let spent_ns = cpu_time_ns().saturating_sub(own_ns) as f64;
    report.cpu_per_probe_ns =
        (report.probes.sent > 0).then(|| spent_ns / report.probes.sent as f64);
    print_notices(&mut session);
    session.leave();
    repetitions.finish(report, arguments.json)
}

/// The repetitions of a measurement.
struct Repetitions {
    account: ProbeAccount,
    folder: Option<ProbeFolder>,
    begun: (SystemTime, Instant),
    /// The error that kept later repetitions from being sent; `None` if all were sent.
    failed: Option<Failure>,
    /// True if the user stopped the measurement before its last repetition.
    stopped: bool,
}

impl Repetitions {
    /// Sends `count` trains, each of which is the probes of one repetition, and shows the progress. Stops early if
    /// `stop` is set.
    fn send(
        &mut self,
        session: &mut ProbeSession,
        train: &Train,
        count: u32,
        stop: &AtomicBool,
    ) -> std::io::Result<()> {
        let mut bar = Bar::new();
        for repetition in 0..count {
            let one = train.interval.saturating_mul(train.count);
            bar.progress(
                one.saturating_mul(repetition),
                one.saturating_mul(count),
                &format!("repetition {} of {count}", repetition + 1),
            );
            let sent = session.send_train(train, stop);
            let result = sent.inspect_err(|_| bar.clear())?;
            self.account.add(&result);
            if let Some(folder) = &mut self.folder {
                folder.write(&result);
            }
            self.stopped = result.stopped || repetition + 1 < count && stop.load(Ordering::Relaxed);
            if self.stopped {
                break;
            }
        }
        bar.clear();
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin {
            started: taut_results::instant(self.begun.0),
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
            versions: serde_json::to_value(Versions::here()).unwrap_or_default(),
            stopped: self.stopped || self.failed.is_some(),
        }
    }

    /// Writes the files of the results folder, and prints the report on the repetitions.
    fn finish(self, mut report: ProbeReport, json: bool) -> Result<(), Failure> {
        if report.probes.sent == 0 {
            if let Some(folder) = self.folder {
                folder.discard();
            }
            return Err(self.failed.unwrap_or_else(|| {
                Failure::Interrupted("stopped before anything was sent".to_string())
            }));
        }
        let (rtt, folder, begun) = (self.account.rtt(), self.folder, self.begun);
        let written = folder.map(|it| it.finish(&mut report, rtt, begun.0, begun.1.elapsed()));
        let page = written.transpose();
        if json {
            print::json(&report);
        } else {
            print_report(&report);
            if let Ok(page) = &page {
                print::page(page.as_deref());
            }
        }
        page?;
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if report.probes.received == 0 {
            return Err(Failure::Limit("no reply arrived".to_string()));
        }
        Ok(())
    }
}

fn print_notices(session: &mut ProbeSession) {
    while let Some(notice) = session.told() {
        if let Some(text) = words_of(notice) {
            eprintln!("taut: {text}");
        }
    }
}

fn connect(
    arguments: &Client,
    server: SocketAddr,
    over: &Over,
    stop: &AtomicBool,
) -> Result<ProbeSession, Failure> {
    let wait = Duration::from_secs_f64(arguments.wait);
    Ok(ProbeSession::connect_over(
        server,
        over,
        usize::from(arguments.size),
        wait,
        stop,
    )?)
}

/// Describes a transport's notice in words; `None` for a notice of normal operation.
fn words_of(notice: Notice) -> Option<String> {
    match notice {
        Notice::Connected(_) | Notice::Left => None,
        Notice::OutOfReach(0.0) => {
            Some("the target delay cannot be met: the path delay alone exceeds it".to_string())
        }
        Notice::OutOfReach(share) => Some(format!(
            "the target delay is missed: {:.1} % of the latest messages arrived in time",
            share * 100.0
        )),
        Notice::InReach(share) => Some(format!(
            "the target delay is met again: {:.1} % of the latest messages arrived in time",
            share * 100.0
        )),
        Notice::Silent => Some("the server no longer replies".to_string()),
        Notice::Refused(version) => Some(format!(
            "the server uses version {version} of the transport, this client another"
        )),
    }
}

/// Returns the CPU time that this process has used, ns.
fn cpu_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The CPU counters, if the user requests them.
struct Cpu(Option<CpuReading>);

impl Cpu {
    fn start(wanted: bool) -> Result<Self, Failure> {
        let reading = wanted.then(CpuReading::take).transpose();
        reading.map(Self).map_err(unreadable)
    }

    fn stop(self) -> Result<Option<CpuShares>, Failure> {
        let Some(before) = self.0 else {
            return Ok(None);
        };
        let now = CpuReading::take().map_err(unreadable)?;
        Ok(Some(now.since(&before)))
    }
}

fn unreadable(e: std::io::Error) -> Failure {
    Failure::Missing(format!("cannot read the CPU times: {e}"))
}

fn print_report(report: &ProbeReport) {
    print_counts(report);
    print_times(report);
    if let Some(budget) = &report.budget {
        print::line(format!(
            "budget      {:.3} % within {}",
            budget.share * 100.0,
            quantity::time(budget.ns as f64)
        ));
    }
    if let Some(ns) = report.cpu_per_probe_ns {
        print::line(format!(
            "CPU time    {} of this client for each probe and its reply",
            quantity::time(ns)
        ));
    }
    if let Some(cpu) = &report.cpu {
        show_cpu(cpu);
    }
    if let Some(counts) = &report.connection {
        let sent = &counts.sent;
        let repaired = counts.received.repaired;
        print::line(format!(
            "transport   {} messages in {} packets; {} retransmitted, {} repairs sent, {repaired} replies repaired, {} not sent because they \
             would have been late",
            sent.messages,
            counts.packets_sent,
            sent.again + sent.asked,
            sent.repairs,
            sent.not_sent
        ));
    }
    if let Some(samples) = report.samples {
        print::line(format!("samples     {samples} probes written"));
    }
}

fn print_counts(report: &ProbeReport) {
    let counts = &report.probes;
    print::line(format!(
        "sent {} probes of {} bytes, {} apart, to {}; received {}",
        counts.sent,
        report.size_bytes,
        quantity::time(report.interval_ns as f64),
        report.server,
        counts.received
    ));
    print::line(format!(
        "lost {}, duplicate {}, reordered {}, late {}, malformed {}, refused by the kernel {}, unreachable {}",
        counts.lost,
        counts.duplicate,
        counts.reordered,
        counts.late,
        counts.malformed,
        counts.refused,
        counts.unreachable
    ));
}

fn print_times(report: &ProbeReport) {
    for (name, summary) in [
        ("round trip", &report.rtt_ns),
        ("wake-up   ", &report.wake_up_ns),
        ("from due  ", &report.rtt_from_intended_ns),
        ("send delay", &report.send_delay_ns),
    ] {
        let text = summary
            .as_ref()
            .map_or("no data".to_string(), quantity::summary);
        print::line(format!("{name}  {text}"));
    }
    if let Some(stages) = &report.stages {
        for (name, summary) in [
            ("  stack   ", &stages.sender_ns),
            ("  driver  ", &stages.driver_ns),
            ("  away    ", &stages.away_ns),
            ("  back    ", &stages.receiver_ns),
        ] {
            print::line(format!("{name}  {}", quantity::summary(summary)));
        }
    }
    if let Some(mean) = &report.rtt_mean_ns {
        print::line(format!(
            "mean        {} (median repetition: {})",
            quantity::time(mean.point),
            mean.words(quantity::time)
        ));
    }
}

fn show_cpu(cpu: &CpuShares) {
    let line = |share: &CpuShare| {
        let percent = [
            ("user", share.user),
            ("system", share.system),
            ("irq", share.irq),
            ("softirq", share.softirq),
            ("steal", share.steal),
            ("guest", share.guest),
            ("idle", share.idle),
        ];
        percent.map(|(name, share)| format!("{name} {:.1}", share * 100.0))
    };
    let own = cpu.own.map_or(String::new(), |own| {
        format!("; this client {:.1}", own * 100.0)
    });
    print::line(format!(
        "CPUs (%)    all: {}{own}",
        line(&cpu.all).join("  ")
    ));
    for (number, share) in &cpu.cpus {
        print::line(format!(
            "              {number}: {}",
            line(share).join("  ")
        ));
    }
}

/// The output of `--search-rate --json`.
#[derive(Serialize, JsonSchema)]
pub struct RateReport {
    server: SocketAddr,
    size_bytes: usize,
    /// Mean rate over the searches that found a rate, in probes per second, with the confidence interval of the median;
    /// `None` if no search found one. The next field is the median.
    rate_pps: Option<Interval>,
    rate_median_pps: Option<Interval>,
    /// The mean rate `rate_pps`, in bits of payload per second; `None` if no search found a rate.
    payload_bit_per_s: Option<f64>,
    /// Number of searches in which the client limited the rate: the path may carry more.
    limited_by_client: usize,
    searches: Vec<SearchedRate>,
    cpu: Option<CpuShares>,
}

impl RateReport {
    fn of(
        server: SocketAddr,
        size_bytes: usize,
        searches: Vec<SearchedRate>,
        cpu: Option<CpuShares>,
    ) -> Self {
        let rates: Vec<f64> = searches.iter().filter_map(|s| s.found.rate_pps).collect();
        let by_client = |search: &&SearchedRate| search.found.limited_by == Limit::Generator;
        let mean = mean_beside_median(&rates, CONFIDENCE);
        Self {
            server,
            size_bytes,
            payload_bit_per_s: mean.map(|mean| mean.point * size_bytes as f64 * 8.0),
            rate_pps: mean,
            rate_median_pps: median_interval(&rates, CONFIDENCE),
            limited_by_client: searches.iter().filter(by_client).count(),
            searches,
            cpu,
        }
    }
}

/// Confidence level of the median's interval, which needs at least six searches.
const CONFIDENCE: f64 = 0.95;

fn search_settings(arguments: &Client) -> ThroughputSettings {
    ThroughputSettings {
        method: Method::Mlr,
        min_pps: LOWEST_RATE_PPS,
        max_pps: arguments.max_rate,
        precision: SEARCH_PRECISION,
        loss_tolerance: 0.0,
        trial_seconds: arguments.trial,
        votes: 3,
        exceed_ratio: EXCEED_RATIO,
    }
}

fn search(arguments: &Client, server: SocketAddr, stop: &AtomicBool) -> Result<(), Failure> {
    let settings = search_settings(arguments);
    let size_bytes = usize::from(arguments.size);
    let over = arguments.over()?;
    let repetitions = arguments.repetitions.unwrap_or(SEARCHES);
    // Invalid settings are refused before the server is contacted.
    let fresh =
        ThroughputSearch::new(settings).map_err(|e| Failure::Input(format!("--trial: {e}")))?;
    let mut session = connect(arguments, server, &over, stop)?;
    let cpu = Cpu::start(arguments.cpu)?;
    let mut bar = Bar::new();
    let mut searches = Vec::new();
    for number in 0..repetitions {
        let one = Duration::from_secs_f64(fresh.estimate_seconds());
        let (mut spent, mut told) = (Duration::ZERO, None::<Instant>);
        let found = search_rate(&mut session, fresh.clone(), size_bytes, stop, |wanted| {
            if told.is_none_or(|told| told.elapsed() >= BETWEEN_LINES) {
                told = Some(Instant::now());
                bar.progress(
                    one * number + spent.min(one),
                    one * repetitions,
                    &format!(
                        "search {} of {repetitions}: {}",
                        number + 1,
                        quantity::rate(wanted.rate_pps)
                    ),
                );
            }
            spent += Duration::from_secs_f64(wanted.seconds);
        })
        .map_err(|e| Failure::Missing(format!("cannot send to {server}: {e}")))?;
        if stop.load(Ordering::Relaxed) {
            bar.clear();
            return Err(Failure::Interrupted(
                "stopped before the searches ended".to_string(),
            ));
        }
        searches.push(found);
    }
    bar.clear();
    let report = RateReport::of(server, size_bytes, searches, cpu.stop()?);
    if arguments.json {
        print::json(&report);
    } else {
        show_rates(&report);
    }
    if report.rate_pps.is_none() {
        return Err(Failure::Limit(format!(
            "no rate of at least {LOWEST_RATE_PPS} probes per second passed: each had losses or reordering"
        )));
    }
    Ok(())
}

fn show_rates(report: &RateReport) {
    for search in &report.searches {
        let found = search
            .found
            .rate_pps
            .map_or("none".to_string(), quantity::rate);
        let limit = match search.found.limited_by {
            Limit::Device => "the path",
            Limit::Generator => "this client",
            Limit::Range => "--max-rate",
        };
        print::line(format!(
            "highest rate without loss and reordering: {found}, limited by {limit} ({} trials, {} reordered in total)",
            search.found.trials.len(),
            search.reordered
        ));
    }
    if let (Some(mean), Some(bits)) = (&report.rate_pps, report.payload_bit_per_s) {
        print::line(format!(
            "mean        {} (median search: {}), {:.3} Mbit/s of payload in probes of {} bytes",
            quantity::rate(mean.point),
            mean.words(quantity::rate),
            bits / 1e6,
            report.size_bytes
        ));
    }
    if let Some(cpu) = &report.cpu {
        show_cpu(cpu);
    }
}

impl From<ProbeError> for Failure {
    fn from(e: ProbeError) -> Self {
        match e {
            ProbeError::Stopped => Self::Interrupted(e.to_string()),
            other => Self::Missing(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn server_addresses_parse_with_and_without_a_port() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:8621"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:8621"),
            ("[::1]", "[::1]:8621"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(address_of(text).unwrap(), address.parse().unwrap());
        }
        assert!(matches!(address_of("1.2.3.4.5"), Err(Failure::Input(_))));
    }
}
