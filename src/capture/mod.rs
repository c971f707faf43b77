//! `taut capture`: keeps the packets of the last seconds in memory and writes what a trigger is about, and asks a
//! capture that runs.

mod ask;
mod flows;
mod live;
mod matching;
mod page;
mod run;
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

Packets end here: a capture forwards nothing. To record what a chain forwards, add the function record to the chain; the
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
    /// Interfaces to capture from, both directions of each
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Ports to capture from, such as memif:/run/a.sock or af_xdp:eth0 (`taut ports` lists them)
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// Memory for packets, such as 4G (default: half of what is free)
    #[arg(long, value_name = "SIZE")]
    ring: Option<Size>,
    /// Size that the ring can be told to grow to (default: it cannot)
    #[arg(long, value_name = "SIZE")]
    most: Option<Size>,
    /// Bytes that are kept of each frame (default: all)
    #[arg(long, value_name = "BYTES")]
    snap: Option<u32>,
    /// Write a file for each time that a trigger begins into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "write")]
    dump: Option<PathBuf>,
    /// Write packets into one file, or - for standard output: those of --filter, or those of the triggers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Packets that are written all the time, an expression as tcpdump has them; '' is all of them
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// A trigger that packets fire, and which of them are written; may be repeated. An empty expression: only who asks
    #[arg(long, value_name = "NAME=EXPRESSION")]
    trigger: Vec<String>,
    /// A script in Lua that sees packets, remembers numbers of their flows, and has triggers fire; may be repeated
    #[arg(long, value_name = "FILE")]
    analyse: Vec<PathBuf>,
    /// How long before a trigger fires packets are written (default: 5s)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    before: Option<Duration>,
    /// How long after a trigger fires packets are written (default: 1s)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    after: Option<Duration>,
    /// Bytes that are written of each flow at most (default: all)
    #[arg(long, value_name = "SIZE")]
    cutoff: Option<Size>,
    /// Size at which a file in the folder ends and the next one begins
    #[arg(long, value_name = "SIZE", requires = "dump")]
    roll_size: Option<Size>,
    /// Time of packets after which a file in the folder ends and the next one begins
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time, requires = "dump")]
    roll_time: Option<Duration>,
    /// Keep all packets in this folder, the oldest go first
    #[arg(long, value_name = "FOLDER", requires = "disk_size")]
    disk: Option<PathBuf>,
    /// Size of that folder
    #[arg(long, value_name = "SIZE", requires = "disk")]
    disk_size: Option<Size>,
    /// Compress the files of --dump and --disk by zstd. One of --write is if its name ends in .zst
    #[arg(long)]
    zstd: bool,
    /// Tell so many flows apart, and show which of them send most
    #[arg(long, value_name = "N")]
    flows: Option<u32>,
    /// Socket by which others ask the capture (default: one that they find by themselves)
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Give out what is counted as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Show what happens as a page, with a button for each trigger, at http://ADDRESS, such as 127.0.0.1:9101; a port alone is one of
    /// this machine. Who reaches another address can fire triggers as well
    #[arg(long, value_name = "ADDRESS")]
    page: Option<String>,
    /// Whose times packets have: ticks of the processor, or kernel, which stamps each one that arrives at an interface
    #[arg(long, value_enum, default_value_t)]
    stamps: Stamps,
    /// What is done while no packets come: poll, yield, sleep(TIME), interrupt (default: poll)
    #[arg(long, value_name = "POLICY")]
    wait: Option<Wait>,
    /// Core to capture on
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Workers that share the ports, each on a core of its own (default: one)
    #[arg(long, value_name = "N", conflicts_with = "core")]
    workers: Option<usize>,
    /// Stop after this many seconds
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Show a dashboard: rate, losses, triggers and flows
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    live: bool,
    /// Print JSON: the state once a second, and at the end
    #[arg(long)]
    json: bool,
    /// Nothing until the end
    #[arg(long)]
    quiet: bool,
}

/// Whose times packets have.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Stamps {
    #[default]
    Ticks,
    Kernel,
}

/// The capture that is asked.
#[derive(clap::Args)]
struct Asked {
    /// Its control socket (default: that of the one capture of this user that runs)
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What flows are sorted by.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Sort {
    #[default]
    Bytes,
    Packets,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write packets of the past, from memory and disk, into a file
    Query {
        /// Packets wanted, an expression as tcpdump has them
        #[arg(value_name = "EXPRESSION")]
        filter: String,
        /// Time of the first: how long ago, as -5s, -10m, -2h, or a moment, as 2026-11-25T15:00:00Z (default: the
        /// oldest)
        #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
        from: Option<u64>,
        /// Time of the last (default: now)
        #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
        to: Option<u64>,
        /// File to write, or - for standard output
        #[arg(long, value_name = "FILE", default_value = "-")]
        write: PathBuf,
        /// Ask the packets that an earlier capture has left in this folder
        #[arg(long, value_name = "FOLDER", conflicts_with = "control")]
        disk: Option<PathBuf>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Match packets between two places, or two capture files: how long each took from one to the other, and which were lost
    Match(matching::Arguments),
    /// List the files that triggers have had written
    List {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print what was kept and lost, how far memory reaches back, and what triggers have done
    Status {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print the flows that send most at the moment, of a capture with --flows
    Flows {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
        /// What they are sorted by
        #[arg(long, value_enum, default_value_t)]
        sort: Sort,
        #[command(flatten)]
        asked: Asked,
    },
    /// Have a trigger fire
    Trigger {
        /// Its name
        name: String,
        /// Why, as the file is to say
        #[arg(long, value_name = "TEXT", default_value = "")]
        cause: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// Make the ring larger or smaller while packets come: the oldest go first
    Resize {
        /// Its size, such as 2G
        size: Size,
        #[command(flatten)]
        asked: Asked,
    },
    /// End a capture; what triggers still write is written
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

/// Reads a moment, nanoseconds since 1970: RFC 3339, or how long ago.
fn moment(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{text}\": want how long ago, such as -5s, -10m or -2h, or a moment, such as 2026-11-25T15:00:00Z"
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
    fn moments_are_times_of_day_or_ago() {
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
