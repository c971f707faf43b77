//! `taut capture`: stores the packets of the last seconds in memory, writes the packets that a trigger selects, and
//! queries a running capture.

pub mod ask;
mod flows;
mod live;
mod matching;
mod page;
pub mod run;
mod watch;

use crate::exit::Failure;
use crate::terminal::quantity;
use std::path::PathBuf;
use std::time::Duration;
use taut_engine::Wait;
use taut_settings::Size;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  taut capture eth0 --dump dumps --trigger dns='udp port 53' --before 5s --after 1s
  taut capture eth0 --write - --filter 'tcp port 443' | tshark -r -
  taut capture eth0 eth1 --ring 4G --disk /var/tmp/packets --disk-size 100G
  taut capture eth0 --dump dumps --trigger ttl --analyse ttl.lua
  taut capture query 'host 10.1.2.3 and udp' --from -2m --write found.pcapng
  taut capture trigger by-hand
  taut capture status

taut capture does not forward packets. To record what a chain forwards, add the function record to the chain; the
commands that ask a capture work with that, too.
Expressions are those of tcpdump (man pcap-filter). Times are nanoseconds of the kernel's clock, from the processor's ticks."
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    capture: Capture,
}

#[derive(clap::Args)]
struct Capture {
    /// Interfaces to capture from, both directions of each (default: none)
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Port of any backend, such as memif:/run/a.sock or af_xdp:eth0 (see `taut ports`), whose received packets are
    /// captured; may be repeated
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// Memory for packets, such as 4G: the first 256 MB immediately, the rest within seconds (default: half of the free
    /// memory)
    #[arg(long, value_name = "SIZE")]
    ring: Option<Size>,
    /// Maximum size for `taut capture resize` (default: as --ring)
    #[arg(long, value_name = "SIZE")]
    most: Option<Size>,
    /// Snap length: bytes that are stored of each frame (default: all)
    #[arg(long, value_name = "BYTES")]
    snap: Option<u32>,
    /// Folder for dumps, one file each time that a trigger fires; not with --write
    #[arg(long, value_name = "FOLDER", conflicts_with = "write")]
    dump: Option<PathBuf>,
    /// Write packets to one file, or - for standard output: those of --filter, or those of the triggers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Packets that are written from the start, an expression of pcap-filter(7); '' is all of them (default: all,
    /// with --write)
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Trigger that fires on each packet of the expression, NAME alone on request only; writes the packets around that
    /// time; may be repeated
    #[arg(long, value_name = "NAME=EXPRESSION")]
    trigger: Vec<String>,
    /// Packets that triggers write, an expression of pcap-filter(7) (default: all)
    #[arg(long, value_name = "EXPRESSION", requires = "trigger")]
    keep: Option<String>,
    /// Analyser: a Lua script that sees packets, remembers numbers per flow and fires triggers; may be repeated
    #[arg(long, value_name = "FILE")]
    analyse: Vec<PathBuf>,
    /// Write the packets that arrived up to this time before a trigger fires (default: 5s)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    before: Option<Duration>,
    /// Write the packets that arrive up to this time after a trigger fires (default: 1s)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    after: Option<Duration>,
    /// Maximum bytes of each flow that a trigger writes, such as 1M (default: all)
    #[arg(long, value_name = "SIZE")]
    cutoff: Option<Size>,
    /// Size at which a file of --dump ends and the next one begins (default: none)
    #[arg(long, value_name = "SIZE", requires = "dump")]
    roll_size: Option<Size>,
    /// Time of packets after which a file of --dump ends and the next one begins (default: none)
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time, requires = "dump")]
    roll_time: Option<Duration>,
    /// Folder that stores all packets, the oldest deleted first; with --disk-size (default: none)
    #[arg(long, value_name = "FOLDER", requires = "disk_size")]
    disk: Option<PathBuf>,
    /// Size of the folder of --disk, index included
    #[arg(long, value_name = "SIZE", requires = "disk")]
    disk_size: Option<Size>,
    /// Compress the files of --dump and --disk by zstd; a file of --write is compressed if its name ends in .zst
    #[arg(long)]
    zstd: bool,
    /// Number of flows to track, of which those that send most are shown (default: none)
    #[arg(long, value_name = "N")]
    flows: Option<u32>,
    /// Control socket for requests (default: one that commands of this user find)
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve the counters as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; port 0 takes a free port
    /// and prints it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Serve a page with the state and a button for each trigger at http://ADDRESS, such as 9101 (this machine only);
    /// anyone who reaches it can fire triggers
    #[arg(long, value_name = "ADDRESS")]
    page: Option<String>,
    /// Clock of the timestamps: ticks of the processor, or kernel, which timestamps each frame that arrives at an
    /// INTERFACE
    #[arg(long, value_enum, default_value_t)]
    stamps: Stamps,
    /// Waiting policy, while no packets arrive: poll, yield, sleep(TIME), interrupt (default: poll)
    #[arg(long, value_name = "POLICY")]
    wait: Option<Wait>,
    /// CPU to capture on (default: the scheduler's choice)
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Workers that share the queues of the ports, each on a CPU of its own; not with --core (default: 1)
    #[arg(long, value_name = "N", conflicts_with = "core")]
    workers: Option<usize>,
    /// Stop after this many seconds (default: at Ctrl-C)
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Show a dashboard: rate, losses, triggers and flows; not with --json or --quiet
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    live: bool,
    /// Print the state as JSON once a second, and at the end
    #[arg(long)]
    json: bool,
    /// Print nothing until the end
    #[arg(long)]
    quiet: bool,
}

/// The source of packet timestamps.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Stamps {
    #[default]
    Ticks,
    Kernel,
}

/// The running capture that a query is sent to.
#[derive(clap::Args)]
struct Asked {
    /// Control socket of the capture (default: that of the only running capture of this user)
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The sort key of flows.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Sort {
    #[default]
    Bytes,
    Packets,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write earlier packets, from memory and disk, to a file
    Query {
        /// Packets to write, an expression of pcap-filter(7)
        #[arg(value_name = "EXPRESSION")]
        filter: String,
        /// Time of the first packet: an age such as -5s, -10m, -2h, or a moment such as 2026-11-25T15:00:00Z
        /// (default: the oldest)
        #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
        from: Option<u64>,
        /// Time of the last packet, as for --from (default: now)
        #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
        to: Option<u64>,
        /// File to write, or - for standard output
        #[arg(long, value_name = "FILE", default_value = "-")]
        write: PathBuf,
        /// Read the folder of an ended capture instead; not with --control
        #[arg(long, value_name = "FOLDER", conflicts_with = "control")]
        disk: Option<PathBuf>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Match packets between two places, or two capture files: the delay of each, and which were lost
    Match(matching::Arguments),
    /// List the files that triggers have written
    List {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print packets kept and lost, the age of the oldest, and what triggers have done
    Status {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print the flows that send most now, of a capture with --flows
    Flows {
        /// Maximum number of flows that are printed, up to 1000
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
        /// Order of the flows
        #[arg(long, value_enum, default_value_t)]
        sort: Sort,
        #[command(flatten)]
        asked: Asked,
    },
    /// Fire a trigger
    Trigger {
        /// Name of the trigger
        name: String,
        /// Cause that the file's comment states
        #[arg(long, value_name = "TEXT", default_value = "")]
        cause: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// Resize the ring while packets arrive: the oldest are deleted first
    Resize {
        /// Size of the ring, such as 2G
        size: Size,
        #[command(flatten)]
        asked: Asked,
    },
    /// End a capture, after pending dumps are written
    Stop {
        #[command(flatten)]
        asked: Asked,
    },
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        Some(command) => ask::run(command),
        None => run::run(&arguments.capture),
    }
}

/// Parses a time, as ns since 1970-01-01: RFC 3339, or a duration before now.
fn moment(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{text}\": expected a time ago, such as -5s, -10m or -2h, or a date and time, such as 2026-11-25T15:00:00Z"
        )
    };
    let time = match text.strip_prefix('-') {
        Some(ago) => {
            let ago = humantime::parse_duration(ago).map_err(|_| wrong())?;
            std::time::SystemTime::now()
                .checked_sub(ago)
                .ok_or_else(wrong)?
        }
        None if text == "now" => std::time::SystemTime::now(),
        None => humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?,
    };
    let since = time
        .duration_since(std::time::UNIX_EPOCH)
        .map_err(|_| wrong())?;
    u64::try_from(since.as_nanos()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn capture_times_parse_as_dates_or_as_durations_ago() {
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(1_000_000_000));
        assert_eq!(moment("1970-01-01 00:00:01.5"), Ok(1_500_000_000));
        let (ago, now) = (moment("-2m").unwrap(), moment("now").unwrap());
        assert!(
            (120_000_000_000..=121_000_000_000).contains(&(now - ago)),
            "{ago} {now}"
        );
        for wrong in ["", "-", "yesterday", "5s", "-5 parsecs", "-99999999y"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
