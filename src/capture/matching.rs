//! `taut capture match`: the delay of packets between two capture points, and the packets lost between them, without
//! timestamps in the packets.

use crate::exit::{self, Failure};
use crate::samples::Samples;
use crate::terminal::{print, quantity};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use taut_bench::measurement::Versions;
use taut_capture::dump::time_in_words;
use taut_capture::filter::Filter;
use taut_capture::matching::{IDENTITY_BYTES, Identify, Ignore, Settings};
use taut_folders::capture_match::write_page_of;
use taut_port::PortSpec;
use taut_results::Origin;
use taut_tap::{
    Delayed, DirectionReport, MatchReport, Matched, PlaceCounts, PlacedTap, RecordedTap,
    RecordingError, TapFolder, TapReport,
};
use taut_xdp::wire_tap::Missed;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  ip netns exec router taut capture match --from eth0 --to eth1
  taut capture match --from eth0 --to eth1 --both --seconds 10 --json --out results/router
  taut capture match before.pcapng after.pcapng --filter 'udp port 53' --ignore addresses

Interfaces are the device's, in the network namespace of the command: packets that arrive at the first and leave through the
second, stamped by the kernel. Packets are matched by a hash of what a device that forwards them leaves alone.
Ends with code 1 if no packet was matched.")]
pub struct Arguments {
    /// Two captures (pcap, pcapng) by one clock, of the first and of the second place; instead of --from and --to
    #[arg(value_name = "FILE", num_args = 2, required_unless_present = "from", conflicts_with_all = ["from", "to"])]
    files: Vec<PathBuf>,
    /// First place: an interface of the device in this network namespace, or a port such as
    /// af_packet:eth0,outgoing=yes
    #[arg(long, value_name = "SPEC", requires = "to")]
    from: Option<String>,
    /// Second place, as for --from: packets leave through this interface
    #[arg(long, value_name = "SPEC", requires = "from")]
    to: Option<String>,
    /// Match both directions: a packet seen first at the second place came from there
    #[arg(long)]
    both: bool,
    /// Packets to match, an expression of pcap-filter(7) (default: all)
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Time from the first place to the second after which a packet counts as lost, in each direction
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time, default_value = "1s")]
    within: Duration,
    /// Parts that the device rewrites: addresses (and checksums), ports (and checksums), or checksums of layer 4 alone;
    /// may be repeated (default: none)
    #[arg(long, value_name = "FIELDS", value_enum)]
    ignore: Vec<Field>,
    /// Bytes after the IP header, or after Ethernet header and tags, that identify a packet; both captures must have
    /// stored them
    #[arg(long, value_name = "N", default_value_t = IDENTITY_BYTES)]
    bytes: usize,
    /// CPU to receive on (default: the scheduler's choice)
    #[arg(long, value_name = "CPU", conflicts_with = "files")]
    core: Option<usize>,
    /// End after this many seconds (default: at Ctrl-C)
    #[arg(long, value_parser = quantity::seconds, conflicts_with = "files")]
    seconds: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Write samples of every packet, histograms, the summary and a report to this folder, which must be new
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Format of the samples in the folder of --out
    #[arg(long, value_enum, default_value = "parquet", requires = "out")]
    samples: Samples,
}

/// Packet fields that matching ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Field {
    Addresses,
    Ports,
    Checksums,
}

/// Time between two passes that match the captured packets.
const PAUSE: Duration = Duration::from_millis(20);

/// Maximum time after the end of the measurement for processing packets that arrived before the end. It limits the wait
/// if packets arrive faster than they are processed.
const MOST_BEHIND: Duration = Duration::from_secs(2);

/// Number of slowest packets that are printed.
const SHOWN: usize = 3;

/// Names of the two capture points if their own names are not valid folder names.
const PLACES: [&str; 2] = ["A", "B"];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let stop = exit::stop_flag()?;
    let begun = SystemTime::now();
    let has = |field| arguments.ignore.contains(&field);
    let identify = Identify {
        ignore: Ignore {
            addresses: has(Field::Addresses),
            ports: has(Field::Ports),
            checksums: has(Field::Checksums),
        },
        bytes: arguments.bytes,
    };
    let filter = arguments.filter.as_deref().map(Filter::new);
    let filter = filter
        .transpose()
        .map_err(|e| Failure::Input(e.to_string()))?;
    let settings = Settings {
        within_ns: u64::try_from(arguments.within.as_nanos()).unwrap_or(u64::MAX),
        both: arguments.both,
        ..Settings::default()
    };
    match (&arguments.from, &arguments.to, arguments.files.as_slice()) {
        (Some(from), Some(to), _) => {
            let specs = specs(from, to, arguments.both)?;
            let shown = [from.clone(), to.clone()];
            let on_link = move |place: usize, link: &taut_port::Link| {
                print::link(&shown[place], link);
            };
            let tap = PlacedTap::start(specs, arguments.core, identify, filter, on_link)?;
            let is_plain = |it: &str| !it.contains([':', '/', ',']);
            let places = match from != to && is_plain(from) && is_plain(to) {
                true => [from.clone(), to.clone()],
                false => PLACES.map(String::from),
            };
            let matched = matched(arguments, &places, settings)?;
            print::note(format_args!("watching {from} and {to}"));
            watch(arguments, tap, matched, stop, begun)
        }
        (_, _, [a, b]) => {
            let mut tap = RecordedTap::open([a, b], identify, filter)?;
            let mut matched = matched(arguments, &PLACES.map(String::from), settings)?;
            let read = tap.each(
                |seen| matched.see(seen.at_b, seen.identity, seen.time_ns),
                || stop.load(Ordering::Relaxed),
            );
            let missed = Missed::default();
            let stopped = stop.load(Ordering::Relaxed);
            let reported = report(arguments, matched, tap.others(), missed, stopped, begun);
            // An error in a file explains other errors, so it is returned first.
            read?;
            reported
        }
        // The parser of the arguments ensures that one of the two forms is given.
        _ => Err(Failure::Input("give --from and --to, or two files".into())),
    }
}

fn matched(
    arguments: &Arguments,
    places: &[String; 2],
    settings: Settings,
) -> Result<Matched, Failure> {
    let folder = arguments.out.as_deref();
    let folder = folder
        .map(|dir| TapFolder::create(dir, arguments.samples.format()))
        .transpose()?;
    Ok(Matched::new(places, settings, folder))
}

/// Parses the ports at both capture points. If `from` is an interface, only its arriving packets are captured; if `to`
/// is an interface, only its departing ones. With `both`, packets of both directions are captured.
fn specs(from: &str, to: &str, both: bool) -> Result<[PortSpec; 2], Failure> {
    let spec = |text: &str, outgoing: &str| {
        let outgoing = if both { "yes" } else { outgoing };
        match text.contains(':') {
            true => PortSpec::parse(text),
            false => PortSpec::parse(&format!(
                "af_packet:{text},outgoing={outgoing},stamps=kernel"
            )),
        }
    };
    Ok([spec(from, "no")?, spec(to, "only")?])
}

/// Matches until the time is over or the user stops the command, and then for the longest time that packets in flight
/// may take.
fn watch(
    arguments: &Arguments,
    mut tap: PlacedTap,
    mut matched: Matched,
    stop: &AtomicBool,
    started: SystemTime,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let is_over = || {
        let end = arguments.seconds.map(Duration::from_secs_f64);
        stop.load(Ordering::Relaxed) || end.is_some_and(|end| begun.elapsed() >= end)
    };
    while !is_over() {
        std::thread::sleep(PAUSE);
        tap.take(|seen| matched.see(seen.at_b, seen.identity, seen.time_ns));
    }
    // Packets captured before this time count, even if this process reads them later.
    let end = SystemTime::now().duration_since(UNIX_EPOCH);
    let end_ns = end.map_or(0, |it| it.as_nanos() as u64);
    matched.close(end_ns);
    let closed = Instant::now();
    let mut is_complete = false;
    while !is_complete || matched.is_waiting() && closed.elapsed() < arguments.within {
        is_complete = tap.complete_ns() >= end_ns || closed.elapsed() >= MOST_BEHIND;
        std::thread::sleep(PAUSE);
        tap.take(|seen| matched.see(seen.at_b, seen.identity, seen.time_ns));
    }
    tap.end(|seen| matched.see(seen.at_b, seen.identity, seen.time_ns));
    let (others, missed) = (tap.others(), tap.missed());
    report(arguments, matched, others, missed, false, started)
}

fn report(
    arguments: &Arguments,
    matched: Matched,
    others: PlaceCounts,
    missed: Missed,
    stopped: bool,
    started: SystemTime,
) -> Result<(), Failure> {
    let origin = Origin {
        started: taut_results::instant(started),
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
        versions: serde_json::to_value(Versions::here()).unwrap_or_default(),
        stopped,
    };
    let (report, written) = matched.finish(others, missed, origin);
    let page = match written {
        Ok(folder) => folder.as_deref().map(write_page_of).transpose(),
        Err(problem) => Err(problem.into()),
    };
    if arguments.json {
        print::json(&report);
    } else {
        show(&report);
        if let Ok(page) = &page {
            print::page(page.as_deref());
        }
    }
    page?;
    match &report.matching {
        Some(matching) if matching.counts.matched > 0 => Ok(()),
        _ => Err(Failure::Limit(nothing(&report))),
    }
}

/// Explains why no packet was matched between the two capture points.
fn nothing(report: &TapReport) -> String {
    let counts = report.matching.as_ref().map(|it| it.counts);
    let counts = counts.unwrap_or_default();
    let unidentified = report
        .matching
        .as_ref()
        .map_or(0, |it| it.others.unidentified);
    let hint = match (counts.seen_a, counts.seen_b) {
        (0, 0) if unidentified > 0 => {
            "the packets are truncated too short: set by --bytes how many bytes after the IP header to compare"
        }
        (0, 0) => "no packet was seen at either point: check the filter and whether traffic flows",
        (0, _) => "no packet was seen at the first point",
        (_, 0) => "no packet was seen at the second point",
        _ => {
            "the packets differ: does the device rewrite them (--ignore), or are the captures truncated (--bytes)?"
        }
    };
    format!("no packet was matched: {hint}")
}

fn show(report: &TapReport) {
    let Some(matching) = &report.matching else {
        return;
    };
    for (at, direction) in report.directions.iter().enumerate() {
        show_direction(direction, matching.median_ns.get(at).copied().flatten());
    }
    show_counts(report, matching);
    for packet in matching.slowest.iter().take(SHOWN) {
        print::line(slow(packet));
    }
    if let Some(kept) = report.samples {
        print::line(format!("samples    {kept} packets written"));
    }
}

fn show_direction(direction: &DirectionReport, median: Option<taut_measure::Interval>) {
    let all = &direction.all;
    if all.entered == 0 {
        print::line(format!("{}: no packet seen", direction.from));
        return;
    }
    let to = direction.to.as_deref().unwrap_or("nowhere");
    print::line(format!(
        "{} to {to}: {} seen, {} matched, {} lost ({}), {} reordered",
        direction.from,
        all.entered,
        all.left,
        all.lost,
        taut_measure::quantity::share(all.lost as f64 / all.entered as f64),
        all.reordered
    ));
    match &all.latency_ns {
        Some(latency) => print::line(format!("delay      {}", quantity::summary(latency))),
        None => print::line("delay      no data: no packet was matched"),
    }
    if let Some(median) = median {
        print::line(format!(
            "median     {} ({})",
            quantity::time(median.point),
            median.words(quantity::time)
        ));
    }
}

fn show_counts(report: &TapReport, matching: &MatchReport) {
    let (counts, missed) = (&matching.counts, report.missed);
    let within = quantity::time(matching.within_ns as f64);
    for (count, what) in [
        (
            report.only_left,
            format!("packets were seen at the second point only, or more than {within} after the first"),
        ),
        (
            counts.ambiguous,
            "packets were seen while an identical packet was in flight: their matches are uncertain".to_string(),
        ),
        (
            counts.gave_up,
            "packets found the matching table full and count neither as matched nor as lost: shorten --within".to_string(),
        ),
        (
            counts.early,
            "packets were seen at the second point first: do they travel in the other direction (--both, --filter)?".to_string(),
        ),
        (
            matching.others.unidentified,
            "frames could not be identified: invalid length, or truncated too short (--bytes)".to_string(),
        ),
        (
            missed.ring_full,
            "observations are missing because this process could not keep up: the loss counts are unreliable".to_string(),
        ),
        (
            missed.unseen,
            "frames were dropped at a full receive ring: their packets count as lost or are missing from all counts".to_string(),
        ),
    ] {
        if count > 0 {
            print::line(format!("{count} {what}"));
        }
    }
}

/// Formats a line about a slow packet.
fn slow(packet: &Delayed) -> String {
    let delay = packet.delay_ns.map(|ns| quantity::time(ns as f64));
    format!(
        "slow       {}, number {} at {}: {}",
        time_in_words(packet.time_ns),
        packet.sequence,
        packet.from,
        delay.unwrap_or_default()
    )
}

impl From<RecordingError> for Failure {
    fn from(e: RecordingError) -> Self {
        match &e {
            RecordingError::File { source, .. } => Self::of_file(source, e.to_string()),
            _ => Self::Input(e.to_string()),
        }
    }
}
