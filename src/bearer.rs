//! `taut bearer`: queries a running gateway (`taut forward` with the function `gtpu`) through its control socket.

use crate::exit::Failure;
use crate::terminal::conversation::{Conversation, read_file};
use crate::terminal::{print, quantity, socket};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::time::Instant;
use taut_gateway::{Answer, BearerText, CSV_HEADER, MOST_FILE_BYTES, Request, bearers_of, churn};
use taut_traffic::Rate;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bearer --control /run/gateway.sock add 0x10,relay,0x20,192.0.2.9
  taut bearer --control /run/gateway.sock add 10.45.0.2,encapsulate,0x20,192.0.2.9,9 0x11,decapsulate
  taut bearer --control /run/gateway.sock load bearers.csv
  taut bearer --control /run/gateway.sock list
  taut bearer --control /run/gateway.sock remove 0x10 10.45.0.2
  taut bearer --control /run/gateway.sock status --json
  taut bearer --control /run/gateway.sock churn bearers.csv --rate 94000 --seconds 10

A bearer is a line of CSV: match,action,teid,remote,qfi,local; fields at its end may be left out. `match` is the TEID
that packets arrive with, or a user's address; `action` is relay, encapsulate, decapsulate, drop, hold or block.")]
pub struct Arguments {
    /// Control socket of the gateway, its setting `control` (default: that of the only running gateway of this user)
    #[arg(long, value_name = "SOCKET", global = true)]
    control: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add bearers, all or none
    Add {
        /// Bearers, each a line of CSV
        #[arg(required = true, value_name = "BEARER")]
        bearers: Vec<String>,
        /// Change existing bearers instead of rejecting them
        #[arg(long)]
        replace: bool,
    },
    /// Remove bearers, all or none
    Remove {
        /// TEIDs or users' addresses of the bearers
        #[arg(required = true, value_name = "MATCH")]
        matches: Vec<String>,
    },
    /// Print every bearer as CSV
    List,
    /// Add the bearers of a CSV file, all or none
    Load {
        /// CSV file of bearers
        file: PathBuf,
        /// Change existing bearers instead of rejecting them
        #[arg(long)]
        replace: bool,
    },
    /// Print the number of bearers, and the outcomes of packets
    Status,
    /// Replace the bearers of a CSV file repeatedly at a rate: the signalling of many users, for measurements
    Churn {
        /// CSV file of bearers
        file: PathBuf,
        /// Changes per second
        #[arg(long, value_name = "N", value_parser = changes_per_second)]
        rate: f64,
        /// Seconds to run; ends with the gateway in any case
        #[arg(long, default_value = "10", value_parser = quantity::seconds)]
        seconds: f64,
        /// Seconds to wait for the gateway
        #[arg(long, default_value = "0", value_parser = quantity::seconds)]
        wait: f64,
    },
}

fn changes_per_second(text: &str) -> Result<f64, String> {
    match text.parse::<Rate>() {
        Ok(Rate::Packets(rate)) => Ok(rate),
        _ => Err("expected changes per second, such as 500 or 20k".to_string()),
    }
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let control = arguments.control.as_deref();
    if let Command::Churn {
        file,
        rate,
        seconds,
        wait,
    } = &arguments.command
    {
        return churned(control, arguments.json, file, *rate, *seconds, *wait);
    }
    let (request, file) = request(&arguments.command)?;
    let mut gateway = begin(control)?;
    let line = gateway.ask(&request, &file)?;
    let answer: Answer = gateway.read(&line)?;
    if !answer.ok {
        return Err(refused(&arguments.command, answer));
    }
    let bearers = answer.bearers.unwrap_or_default();
    if matches!(arguments.command, Command::List) {
        return print_bearers(&mut gateway, bearers, arguments.json);
    }
    if arguments.json {
        print::line(line);
        return Ok(());
    }
    let counted = quantity::counted(bearers, "bearer");
    match &arguments.command {
        Command::Add { bearers: lines, .. } => {
            print::line(format!("{counted} added"));
            lines
                .iter()
                .filter_map(|line| of_network(line))
                .for_each(print::note);
        }
        Command::Load { .. } => {
            print::line(format!("{counted} loaded"));
            print_note_of_networks(&file);
        }
        Command::Remove { .. } => print::line(format!("{counted} removed")),
        Command::Status | Command::List | Command::Churn { .. } => print_status(answer),
    }
    Ok(())
}

/// Connects to the gateway with the given control socket, or to the only running gateway of this user.
fn begin(control: Option<&Path>) -> Result<Conversation, Failure> {
    let start = "start `taut forward` with the function gtpu and its setting control";
    let control = socket::meant(control, "gtpu", "gateway", start)?;
    Conversation::begin("gateway", "gtpu", &control)
}

fn refused(command: &Command, answer: Answer) -> Failure {
    let error = answer.error.unwrap_or_default();
    let file = match (command, answer.line) {
        (Command::Load { file, .. }, Some(line)) => format!("{}:{line}: ", file.display()),
        (Command::Load { file, .. }, None) => format!("{}: ", file.display()),
        _ => String::new(),
    };
    Failure::Input(format!("{file}{error}"))
}

fn print_bearers(gateway: &mut Conversation, bearers: usize, json: bool) -> Result<(), Failure> {
    if !json {
        print::line(CSV_HEADER);
    }
    for _ in 0..bearers {
        let line = gateway.line()?;
        if json {
            print::line(line);
        } else {
            print::line(gateway.read::<BearerText>(&line)?);
        }
    }
    Ok(())
}

/// Prints a note about the first bearer of the file that covers a complete network.
fn print_note_of_networks(file: &[u8]) {
    let text = String::from_utf8_lossy(file);
    let mut of_networks = text.lines().filter_map(of_network);
    if let Some(first) = of_networks.next() {
        let more = match of_networks.count() {
            0 => String::new(),
            more => format!(" (and {more} more such lines)"),
        };
        print::note(format_args!("{first}{more}"));
    }
}

fn print_status(answer: Answer) {
    let bearers = answer.bearers.unwrap_or_default();
    let room = answer.room.unwrap_or_default();
    print::line(format!("{bearers} bearers, capacity {room}"));
    let packets = answer.packets.unwrap_or_default();
    for (outcome, count) in packets.iter().filter(|(_, count)| **count > 0) {
        print::line(format!("  {outcome} {count}"));
    }
    for (name, counts) in [("PFCP", answer.pfcp), ("GTP-C", answer.gtpc)] {
        let Some(counts) = counts else {
            continue;
        };
        print::line(name);
        for (what, count) in counts.iter().filter(|(_, count)| **count > 0) {
            print::line(format!("  {what} {count}"));
        }
    }
}

/// Returns the request for a command, and the file that is sent with the request.
fn request(command: &Command) -> Result<(Request, Vec<u8>), Failure> {
    Ok(match command {
        Command::Add { bearers, replace } => {
            let bearers: Result<_, _> = bearers
                .iter()
                .map(|line| {
                    let wrong = |e: String| Failure::Input(format!("\"{line}\": {e}"));
                    line.parse().map_err(wrong)
                })
                .collect();
            let (bearers, replace) = (bearers?, *replace);
            (Request::Add { bearers, replace }, Vec::new())
        }
        Command::Remove { matches } => {
            let matches = matches.clone();
            (Request::Remove { matches }, Vec::new())
        }
        Command::List => (Request::List {}, Vec::new()),
        // This command sends its own requests.
        Command::Status | Command::Churn { .. } => (Request::Status {}, Vec::new()),
        Command::Load { file, replace } => {
            let text = read_file(file, "bearers", MOST_FILE_BYTES)?;
            let (bytes, replace) = (text.len() as u64, *replace);
            (Request::Load { bytes, replace }, text)
        }
    })
}

/// Returns a note that a bearer covers the user's complete /64 network, because an IPv6 user has a /64 network. Returns
/// `None` unless the bearer's line names a single address within such a network.
fn of_network(line: &str) -> Option<String> {
    let user: Ipv6Addr = line.split(',').next()?.trim().parse().ok()?;
    let network = Ipv6Addr::from_bits(user.to_bits() >> 64 << 64);
    (network != user)
        .then(|| format!("{user}: a user has a /64, so this bearer covers {network}/64"))
}

fn churned(
    control: Option<&Path>,
    as_json: bool,
    file: &Path,
    rate: f64,
    seconds: f64,
    wait: f64,
) -> Result<(), Failure> {
    let wrong = |e: String| Failure::Input(format!("{}:{e}", file.display()));
    let text = read_file(file, "bearers", MOST_FILE_BYTES)?;
    let text =
        String::from_utf8(text).map_err(|_| wrong(" the file is not UTF-8 text".to_string()))?;
    let bearers = bearers_of(&text).map_err(|(line, e)| wrong(format!("{line}: {e}")))?;
    if bearers.is_empty() {
        return Err(wrong(" the file contains no bearer".to_string()));
    }
    let deadline = Instant::now() + Duration::from_secs_f64(wait);
    let gateway = loop {
        match begin(control) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            begun => break begun?,
        }
    };
    let churned = churn(
        gateway.stream(),
        &bearers,
        rate,
        Duration::from_secs_f64(seconds),
    );
    let churned = churned.map_err(|e| Failure::Input(e.to_string()))?;
    if as_json {
        print::json(&churned);
    } else {
        print::line(format!(
            "{} changes, {:.0} per second, each in force within {:.1} ms",
            churned.changes, churned.changes_per_second, churned.slowest_answer_ms
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_bearer_is_reported_with_its_64_bit_prefix() {
        let said = of_network("2001:db8::9,encapsulate,0x20,192.0.2.9");
        let want = "2001:db8::9: a user has a /64, so this bearer covers 2001:db8::/64";
        assert_eq!(said.as_deref(), Some(want));
        for line in [
            "2001:db8::,drop",
            "2001:db8::/64,drop",
            "10.0.0.9,drop",
            "0x10,drop",
            "",
        ] {
            assert_eq!(of_network(line), None, "{line}");
        }
    }
}
