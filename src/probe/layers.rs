//! `taut probe layers`: the time that messages spend in each layer, from captures at both ends.

use crate::exit::Failure;
use crate::terminal::{print, quantity};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use taut_tap::{LayeredWay, LayersError, LayersReport, layers};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  ip netns exec near taut capture eth0 --write near.pcapng --filter udp --stamps kernel &
  ip netns exec far taut capture eth0 --write far.pcapng --filter udp --stamps kernel &
  ip netns exec near taut probe client 192.0.2.2 --transport deadline
  taut probe layers near.pcapng far.pcapng

For both ends on this machine, as in two namespaces: stamps of captures are set beside those in the packets, by one clock. Captures
have to begin before the client does.")]
pub struct Arguments {
    /// Captures (pcap, pcapng) at the client's interface and at the server's
    #[arg(value_name = "FILE", num_args = 2, required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let [near, far] = arguments.files.as_slice() else {
        return Err(Failure::Input("expected two captures".to_owned()));
    };
    let report = layers([near, far], ahead_ns()).map_err(|e| match e {
        LayersError::Recording(_) => Failure::Input(e.to_string()),
        _ => Failure::Limit(e.to_string()),
    })?;
    if arguments.json {
        print::json(&report);
    } else {
        show(&report);
    }
    Ok(())
}

/// Returns the difference between the capture clock and the packet clock, ns; positive if the capture clock is ahead.
/// Each attempt reads the capture clock between two reads of the packet clock. The attempt with the shortest time
/// between these two reads counts; its error is at most half of that time.
fn ahead_ns() -> i64 {
    let read_ns = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    };
    let looks = (0..64).map(|_| {
        let before = read_ns(ClockId::Monotonic);
        let day = read_ns(ClockId::Realtime);
        let after = read_ns(ClockId::Monotonic);
        (after - before, day - (before + after) / 2)
    });
    looks.min().map_or(0, |(_, ahead_ns)| ahead_ns)
}

fn show(report: &LayersReport) {
    for (name, way) in [("there", &report.there), ("back", &report.back)] {
        print::line(format!(
            "{name:<6} {} of {} messages have all timestamps{}",
            way.stamped,
            way.messages,
            contradicting(way)
        ));
        let stages = [
            ("transport of the sender", &way.sender_ns),
            ("to its interface", &way.out_ns),
            ("between interfaces", &way.medium_ns),
            ("to the receiver's transport", &way.in_ns),
            ("transport of the receiver", &way.receiver_ns),
            ("total", &way.took_ns),
        ];
        for (stage, summary) in stages {
            if let Some(summary) = summary {
                let text = quantity::summary(summary);
                print::line(format!("       {stage:<28} {text}"));
            }
        }
    }
    if report.not_remembered > 0 {
        print::note(format_args!(
            "{} packets exceeded the memory for packets and are skipped",
            report.not_remembered
        ));
    }
}

fn contradicting(way: &LayeredWay) -> String {
    match way.contradicting {
        0 => String::new(),
        count => format!("; those of {count} contradict each other and are skipped"),
    }
}
