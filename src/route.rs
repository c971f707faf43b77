//! `taut route`: queries a running router (`taut forward` with the function `route`) through its control socket.

use crate::exit::Failure;
use crate::terminal::conversation::{Conversation, read_file};
use crate::terminal::{print, quantity, socket};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use taut_router::{Answer, ConvertError, Converted, MOST_FILE_BYTES, Request, RouteText};
use taut_traffic::Rate;

/// Maximum number of routes that one request changes.
const TOGETHER: usize = 50;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut route --control /run/router.sock add '10.0.0.0/8 via 10.0.1.2' 'blackhole 10.66.0.0/16'
  taut route --control /run/router.sock show 10.3.4.5
  taut route --control /run/router.sock load routes.txt --replace
  taut route --control /run/router.sock list
  taut route --control /run/router.sock del 10.0.0.0/8
  taut route --control /run/router.sock status --json
  taut route --control /run/router.sock churn routes.txt --rate 100k --seconds 10
  taut route convert rib.20261101.0000 --via 10.0.1.2 >routes.txt

A route is a line as `ip route` prints it: PREFIX via ADDRESS [dev INTERFACE], PREFIX dev INTERFACE, or
blackhole, unreachable or prohibit PREFIX. Several next hops are `nexthop via ADDRESS` each. `table N` puts it into another
table than the main one.")]
pub struct Arguments {
    /// Control socket of the router, its setting `control`; not for `convert` (default: that of the only running router
    /// of this user)
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
    /// Print every route
    List,
    /// Print the route of an address, and the neighbours that it leads to
    Show {
        /// Address to look up
        address: IpAddr,
        /// Number of the routing table to look in
        #[arg(long, value_name = "N", default_value_t = taut_sys::MAIN_TABLE)]
        table: u32,
    },
    /// Add routes, in order
    #[command(after_help = "Examples:
  taut route add '10.0.0.0/8 via 10.0.1.2' 'blackhole 10.66.0.0/16'
  taut route add --replace '10.0.0.0/8 nexthop via 10.0.1.2 nexthop via 10.0.1.3 weight 2'
  taut route --control /run/router.sock add 'default via 10.0.1.254'

A route contains spaces, so quote it.")]
    Add {
        /// Routes, as `ip route` prints them
        #[arg(required = true, value_name = "ROUTE")]
        routes: Vec<String>,
        /// Change existing routes instead of rejecting them
        #[arg(long)]
        replace: bool,
    },
    /// Delete routes, in order
    Del {
        /// Prefixes of the routes, such as '10.0.0.0/8' or '10.0.0.0/8 table 100'
        #[arg(required = true, value_name = "PREFIX")]
        prefixes: Vec<String>,
    },
    /// Add the routes of a file, in order
    Load {
        /// File of routes
        file: PathBuf,
        /// Change existing routes instead of rejecting them
        #[arg(long)]
        replace: bool,
    },
    /// Convert an MRT dump, or what `birdc show route` or `vtysh -c 'show ip route'` print, to lines that routers
    /// read
    Convert {
        /// MRT dump, or output of `birdc show route` or `vtysh -c 'show ip route'`; - for standard input
        file: PathBuf,
        /// Neighbour that replaces the table's next hops; several share the routes
        #[arg(long, value_name = "ADDRESS")]
        via: Vec<IpAddr>,
    },
    /// Print the numbers of routes, neighbours and next hops
    Status,
    /// Delete the routes of a file and add them again, repeatedly at a rate, for measurements
    Churn {
        /// File of routes that the router has
        file: PathBuf,
        /// Changes per second
        #[arg(long, value_name = "N", value_parser = changes_per_second)]
        rate: f64,
        /// Seconds to run
        #[arg(long, default_value = "10", value_parser = quantity::seconds)]
        seconds: f64,
    },
}

fn changes_per_second(text: &str) -> Result<f64, String> {
    match text.parse::<Rate>() {
        Ok(Rate::Packets(rate)) if rate > 0.0 => Ok(rate),
        _ => Err("expected changes per second, such as 500 or 20k".to_string()),
    }
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    if let Command::Convert { file, via } = &arguments.command {
        return convert(file, via, arguments.json);
    }
    let start = "start `taut forward` with the function route and its setting control";
    let control = socket::meant(arguments.control.as_deref(), "route", "router", start)?;
    let mut router = Conversation::begin("router", "route", &control)?;
    if let Command::Churn {
        file,
        rate,
        seconds,
    } = &arguments.command
    {
        let text = read_file(file, "routes", MOST_FILE_BYTES)?;
        return churn(&mut router, &arguments, &text, file, (*rate, *seconds));
    }
    let (request, sent) = request(&arguments.command)?;
    let line = router.ask(&request, &sent)?;
    let answer: Answer = router.read(&line)?;
    if !answer.ok {
        return Err(refused(&arguments.command, answer));
    }
    let routes = answer.routes.unwrap_or_default();
    if matches!(arguments.command, Command::List) {
        return print_routes(&mut router, routes, arguments.json);
    }
    if arguments.json {
        print::line(line);
        return Ok(());
    }
    print_answer(&arguments.command, routes, answer);
    Ok(())
}

/// Returns the request for a command, and the file that is sent with the request.
fn request(command: &Command) -> Result<(Request, Vec<u8>), Failure> {
    Ok(match command {
        Command::List => (Request::List {}, Vec::new()),
        Command::Show { address, table } => {
            let (address, table) = (*address, *table);
            (Request::Show { address, table }, Vec::new())
        }
        Command::Add { routes, replace } => {
            let (routes, replace) = (routes.clone(), *replace);
            (Request::Add { routes, replace }, Vec::new())
        }
        Command::Del { prefixes } => {
            let prefixes = prefixes.clone();
            (Request::Remove { prefixes }, Vec::new())
        }
        Command::Load { file, replace } => {
            let sent = read_file(file, "routes", MOST_FILE_BYTES)?;
            let (bytes, replace) = (sent.len() as u64, *replace);
            (Request::Load { bytes, replace }, sent)
        }
        // The caller handles `Convert` and `Churn`.
        Command::Convert { .. } | Command::Churn { .. } | Command::Status => {
            (Request::Status {}, Vec::new())
        }
    })
}

fn print_routes(router: &mut Conversation, routes: usize, is_json: bool) -> Result<(), Failure> {
    for _ in 0..routes {
        let line = router.line()?;
        if is_json {
            print::line(line);
        } else {
            print::line(router.read::<RouteText>(&line)?.route);
        }
    }
    Ok(())
}

/// Prints the router's reply as text (not as JSON).
fn print_answer(command: &Command, routes: usize, answer: Answer) {
    let counted = quantity::counted(routes, "route");
    match command {
        Command::Add { .. } => print::line(format!("{counted} added")),
        Command::Load { .. } => print::line(format!("{counted} loaded")),
        Command::Del { .. } => print::line(format!("{counted} deleted")),
        _ => {}
    }
    if let Some(route) = answer.route {
        print::line(route.route);
    }
    for neighbour in answer.neighbours.unwrap_or_default() {
        print::line(format!(
            "  {} on {}: {}",
            neighbour.address,
            neighbour.interface,
            neighbour.mac.unwrap_or_else(|| "unknown".to_string())
        ));
    }
    for route in answer.covering.unwrap_or_default() {
        print::line(format!("  more specific than {}", route.route));
    }
    if let Some(packets) = answer.packets {
        print::line(format!("  {packets} packets through this next hop"));
    }
    if let Some(status) = answer.status {
        print::line(format!(
            "{} IPv4 routes, {} IPv6 routes; {} of {} next hops",
            status.routes_v4, status.routes_v6, status.next_hops, status.next_hops_most
        ));
        print::line(format!(
            "{} neighbours, {} more unresolved; tables use {} MB",
            status.neighbours,
            status.neighbours_unknown,
            status.table_bytes / 1_000_000
        ));
    }
}

/// A line of `taut route convert --json`.
#[derive(Serialize, JsonSchema)]
pub struct ConvertedRoute<'a> {
    route: &'a str,
}

/// Prints the routes of another program's table, and their number on standard error.
fn convert(file: &Path, via: &[IpAddr], is_json: bool) -> Result<(), Failure> {
    let wrong = |e: ConvertError| Failure::Input(format!("{}: {e}", file.display()));
    let mut input: Box<dyn BufRead> = match file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(
            File::open(file).map_err(|e| wrong(e.into()))?,
        )),
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let mut each = |line: &str| match is_json {
        false => writeln!(output, "{line}"),
        true => {
            let line = serde_json::to_string(&ConvertedRoute { route: line })?;
            writeln!(output, "{line}")
        }
    };
    let converted = taut_router::convert(&mut *input, via, &mut each);
    // A reader that closes the pipe early is no error.
    let flushed = output.flush();
    let Converted { routes, left_out } = match (converted, flushed) {
        (Err(ConvertError::Read(e)), _) | (_, Err(e)) if e.kind() == ErrorKind::BrokenPipe => {
            return Ok(());
        }
        (converted, flushed) => {
            let converted = converted.map_err(wrong)?;
            flushed.map_err(|e| Failure::Input(format!("standard output: {e}")))?;
            converted
        }
    };
    let left_out = match left_out {
        0 => String::new(),
        left_out => format!("; {left_out} skipped: no next hop of their address family"),
    };
    print::note(format!("{routes} routes{left_out}"));
    Ok(())
}

fn refused(command: &Command, answer: Answer) -> Failure {
    let error = answer.error.unwrap_or_default();
    let done = match answer.routes {
        Some(done) if done > 0 => format!("; the {done} before it are in effect"),
        _ => String::new(),
    };
    let file = match (command, answer.line) {
        (Command::Load { file, .. } | Command::Churn { file, .. }, Some(line)) => {
            format!("{}:{line}: ", file.display())
        }
        (Command::Load { file, .. } | Command::Churn { file, .. }, None) => {
            format!("{}: ", file.display())
        }
        _ => String::new(),
    };
    Failure::Input(format!("{file}{error}{done}"))
}

/// Returns the lines of a file that begin a route.
fn routes_of(text: &str) -> Vec<&str> {
    let of_route = |line: &str| !line.starts_with(char::is_whitespace) && !line.starts_with('#');
    text.lines()
        .filter(|line| of_route(line) && !line.trim().is_empty())
        .collect()
}

/// Returns the prefix of a route, with its table if the route names one.
fn prefix_of(route: &str) -> String {
    let kinds = ["unicast", "blackhole", "unreachable", "prohibit"];
    let mut words = route
        .split_whitespace()
        .filter(|word| !kinds.contains(word));
    let prefix = words.next().unwrap_or_default();
    match words.skip_while(|word| *word != "table").nth(1) {
        Some(table) => format!("{prefix} table {table}"),
        None => prefix.to_string(),
    }
}

/// The output of `taut route churn --json`.
#[derive(Serialize, JsonSchema)]
pub struct Churned {
    changes: u64,
    changes_per_second: f64,
    slowest_answer_ms: f64,
}

/// Deletes routes and adds them again, periodically. Missed intervals are skipped; the achieved rate is printed.
fn churn(
    router: &mut Conversation,
    arguments: &Arguments,
    text: &[u8],
    file: &Path,
    (rate, seconds): (f64, f64),
) -> Result<(), Failure> {
    let wrong = |e: &str| Failure::Input(format!("{}: {e}", file.display()));
    let text = std::str::from_utf8(text).map_err(|_| wrong("the file is not UTF-8 text"))?;
    let routes = routes_of(text);
    if routes.is_empty() {
        return Err(wrong("the file contains no route"));
    }
    let mut ask = |request: Request| {
        let line = router.ask(&request, &[])?;
        let answer: Answer = router.read(&line)?;
        if answer.ok {
            return Ok(());
        }
        Err(refused(&arguments.command, answer))
    };
    let begun = Instant::now();
    let (mut changes, mut slowest) = (0_u64, Duration::ZERO);
    let mut rounds = routes.chunks(TOGETHER).cycle();
    while begun.elapsed().as_secs_f64() < seconds {
        let Some(some) = rounds.next() else { break };
        let at = Instant::now();
        ask(Request::Remove {
            prefixes: some.iter().map(|route| prefix_of(route)).collect(),
        })?;
        ask(Request::Add {
            routes: some.iter().map(ToString::to_string).collect(),
            replace: false,
        })?;
        slowest = slowest.max(at.elapsed() / 2);
        changes += 2 * some.len() as u64;
        let due = Duration::from_secs_f64(changes as f64 / rate);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    let elapsed = begun.elapsed().as_secs_f64().max(1e-9);
    let per_second = changes as f64 / elapsed;
    let slowest_ms = slowest.as_secs_f64() * 1e3;
    if arguments.json {
        print::json(&Churned {
            changes,
            changes_per_second: per_second,
            slowest_answer_ms: slowest_ms,
        });
    } else {
        print::line(format!(
            "{changes} changes, {per_second:.0} per second, each in force within {slowest_ms:.1} ms"
        ));
    }
    Ok(())
}
