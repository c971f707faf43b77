//! `taut bench signalling`: control procedures of many users, by PFCP or GTP-C, against a user plane or gateway.

use crate::exit::{self, Failure};
use crate::terminal::print;
use crate::terminal::quantity;
use schemars::JsonSchema;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{SystemTime, UNIX_EPOCH};
use taut_signalling::{Core, DriveError, Load, Measured, Mix, Plan, ProcedureRow, Protocol, drive};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench signalling --pfcp 192.0.2.2 --sessions 10000
  taut bench signalling --gtpc 192.0.2.2 --procedures attach=1,idle=2,active=2,detach=1 --rate 5000 --json

All users attach first, then procedures are drawn from the mix. User traffic beside: `taut generate`.")]
pub struct Arguments {
    /// Address of a user plane (UPF, SGW-U, PGW-U), with a port unless that is 8805
    #[arg(long, value_name = "ADDRESS", value_parser = pfcp_socket, required_unless_present = "gtpc", conflicts_with = "gtpc")]
    pfcp: Option<SocketAddr>,
    /// Address of a gateway on S11, with a port unless that is 2123
    #[arg(long, value_name = "ADDRESS", value_parser = gtpc_socket)]
    gtpc: Option<SocketAddr>,
    /// Local address, with a port unless that is the protocol's (default: the one that packets leave from)
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// Mobile core whose PFCP messages are imitated
    #[arg(long, value_name = "CORE", default_value = "open5gs", value_parser = ["open5gs", "free5gc"])]
    core: String,
    /// Users, 1 to 16777214, with the addresses from 10.0.0.1 on
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=16_777_214))]
    sessions: u32,
    /// Procedures and their weights, of attach, active, idle, handover, detach
    #[arg(
        long,
        value_name = "NAME=WEIGHT,...",
        default_value = "attach=1,active=4,idle=4,handover=2,detach=1"
    )]
    procedures: Mix,
    /// Procedures per second, 0 to 100000000; 0: as many as the window allows
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    rate: u64,
    /// Procedures that may wait for a response, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    window: u16,
    /// Time in seconds after all users are attached
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = quantity::seconds)]
    seconds: f64,
    /// Time in seconds after which a request is sent again
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = quantity::seconds)]
    response_time: f64,
    /// How often a request is sent again, 0 to 10
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=10))]
    repeats: u32,
    /// Address of the base stations, to which packets to users are sent
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.7")]
    base_station: Ipv4Addr,
    /// Process of the gateway on this machine, whose memory per session is printed
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Leave the sessions at the end
    #[arg(long)]
    keep: bool,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// The results that `taut bench signalling --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// The protocol: `pfcp` or `gtpc`.
    protocol: &'static str,
    /// The mobile core whose PFCP messages are imitated.
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<String>,
    /// The number of users.
    users: u32,
    /// The rates and times of the phase in which all users attach.
    attached: Measured,
    /// The rates and times of the phase in which procedures are drawn at random by their weights.
    mixed: Measured,
    /// The growth of the gateway's resident memory while users attached, bytes per session; none without `--process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes_per_session: Option<f64>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (protocol, to) = match (arguments.pfcp, arguments.gtpc) {
        (Some(to), _) => {
            let core = match arguments.core.as_str() {
                "free5gc" => Core::Free5gc,
                _ => Core::Open5gs,
            };
            (Protocol::Pfcp(core), to)
        }
        (None, Some(to)) => (Protocol::Gtpc, to),
        (None, None) => return Err(Failure::Input("--pfcp or --gtpc: expected one".to_string())),
    };
    let from = own_address(arguments.from.as_deref(), to)?;
    let mut load = Load::new(Plan {
        protocol,
        sessions: arguments.sessions,
        mix: arguments.procedures,
        rate: arguments.rate,
        window: arguments.window.into(),
        response_ns: (arguments.response_time * 1e9) as u64,
        repeats: arguments.repeats,
        own: from.ip(),
        base_station: arguments.base_station,
        // With the current time in the seed, the recovery time stamp differs from that of earlier runs.
        seed: arguments.seed ^ now() << 8,
    });
    let memory = || arguments.process.map(resident).transpose();
    let before = memory()?;
    let mut filled = Ok(None);
    let (seconds, keep) = (arguments.seconds, arguments.keep);
    let stop = exit::stop_flag()?;
    let ends = (from, to);
    let driven = drive(&mut load, ends, seconds, keep, stop, |_| filled = memory())?;
    let sessions = driven.filled.sessions.max(1) as f64;
    let grown = filled?.zip(before).map(|(after, before)| after - before);
    let report = Report {
        protocol: match protocol {
            Protocol::Pfcp(_) => "pfcp",
            Protocol::Gtpc => "gtpc",
        },
        core: matches!(protocol, Protocol::Pfcp(_)).then(|| arguments.core.clone()),
        users: arguments.sessions,
        attached: driven.filled,
        mixed: driven.measured,
        memory_bytes_per_session: grown.map(|bytes| bytes / sessions),
    };
    show(&report, arguments.json)?;
    let phases = [&report.attached, &report.mixed];
    if phases.iter().any(|it| it.lost + it.refused > 0) {
        return Err(Failure::Limit(
            "procedures were refused, or got no response".to_string(),
        ));
    }
    Ok(())
}

fn show(report: &Report, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let text = serde_json::to_string(report).map_err(|e| Failure::Missing(e.to_string()))?;
        print::line(text);
        return Ok(());
    }
    let phases = [("attaching", &report.attached), ("mixed", &report.mixed)];
    for (name, phase) in phases {
        print::line(format!(
            "{name}: {} procedures in {:.2} s, {:.0} per second; answers {} (p50), {} (p99), {} (longest)",
            phase.procedures,
            phase.seconds,
            phase.procedures_per_second,
            micros(phase.p50_us),
            micros(phase.p99_us),
            micros(phase.max_us),
        ));
        let cause = phase.last_cause.map(|it| format!(" (last cause {it})"));
        print::line(format!(
            "  sent again {}, refused {}{}, without response {}; sessions {}",
            phase.repeated,
            phase.refused,
            cause.unwrap_or_default(),
            phase.lost,
            phase.sessions,
        ));
    }
    for row in &report.mixed.by_procedure {
        let ProcedureRow {
            procedure,
            accepted,
            p50_us,
            p99_us,
            ..
        } = row;
        let (p50, p99) = (micros(*p50_us), micros(*p99_us));
        print::line(format!(
            "  {procedure}: {accepted}, {p50} (p50), {p99} (p99)"
        ));
    }
    if let Some(bytes) = report.memory_bytes_per_session {
        print::line(format!("memory: {bytes:.0} bytes per session"));
    }
    Ok(())
}

fn micros(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |us| format!("{us:.0} us"))
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    let date = SystemTime::now().duration_since(UNIX_EPOCH);
    date.map_or(0, |date| date.as_secs())
}

fn pfcp_socket(text: &str) -> Result<SocketAddr, String> {
    socket(text, taut_wire::pfcp::UDP_PORT)
}

fn gtpc_socket(text: &str) -> Result<SocketAddr, String> {
    socket(text, taut_wire::gtpc::UDP_PORT)
}

fn socket(text: &str, port: u16) -> Result<SocketAddr, String> {
    let whole = text.parse().ok();
    let usual = || Some((text.parse::<IpAddr>().ok()?, port).into());
    let wrong = || "expected an address such as 192.0.2.2 or 192.0.2.2:9000".to_string();
    whole.or_else(usual).ok_or_else(wrong)
}

/// Returns the address that packets are sent from. If `text` names no port, the port is that of `to`; without `text`,
/// it is 0.
fn own_address(text: Option<&str>, to: SocketAddr) -> Result<SocketAddr, Failure> {
    if let Some(text) = text {
        let wrong = |e| Failure::Input(format!("--from {text}: {e}"));
        return socket(text, to.port()).map_err(wrong);
    }
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let route = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        socket.local_addr()
    };
    let own = route().map_err(|e| Failure::Missing(format!("{to}: {e}")))?;
    Ok((own.ip(), 0).into())
}

/// Returns the resident memory of a process in bytes.
fn resident(process: u32) -> Result<f64, Failure> {
    let path = format!("/proc/{process}/statm");
    let wrong = |e: &dyn std::fmt::Display| Failure::Input(format!("--process {process}: {e}"));
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(&e))?;
    let pages = text.split_whitespace().nth(1);
    let pages: Option<f64> = pages.and_then(|it| it.parse().ok());
    let pages = pages.ok_or_else(|| wrong(&"no memory"))?;
    Ok(pages * rustix::param::page_size() as f64)
}

impl From<DriveError> for Failure {
    fn from(e: DriveError) -> Self {
        Self::Missing(e.to_string())
    }
}
