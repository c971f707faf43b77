//! `taut-quic`: `taut probe` over QUIC datagrams, as a separate program, so that taut itself needs no QUIC. Trains,
//! replies and output are taut's; only the transport differs. `cargo build --release` here, then `taut experiment run
//! transport-comparison --set quic=PATH`.

mod messages;

use clap::Parser;
use messages::QuicMessages;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_folders::probe_results::ProbeAccount;
use taut_results::Origin;
use taut_traffic::messages::any_address_to;
use taut_traffic::probe::{ProbeServer, ProbeSession, Train};

#[derive(Parser)]
#[command(about = "Probes over QUIC datagrams, as taut probe sends them")]
enum What {
    /// Send probes back to their source, until the process is ended
    Server { bind: SocketAddr },
    /// Send probes, and print the results as JSON
    Client(Client),
}

#[derive(clap::Args)]
struct Client {
    server: SocketAddr,
    #[arg(long, default_value = "5ms", value_parser = time)]
    interval: Duration,
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(16..=1_400))]
    size: u16,
    #[arg(long, default_value_t = 500)]
    count: u32,
    #[arg(long, default_value_t = 1)]
    repetitions: u32,
    #[arg(long, value_parser = time)]
    budget: Option<Duration>,
    #[arg(long, default_value = "1s", value_parser = time)]
    patience: Duration,
    /// Accepted as by `taut probe client`; has no effect, as the output is always JSON
    #[arg(long)]
    json: bool,
}

/// The longest wait for the server.
const WAIT: Duration = Duration::from_secs(10);

/// Parses a time in the form of taut's options, such as 2ms.
fn time(text: &str) -> Result<Duration, String> {
    let time = taut_settings::duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "want a time above 0, such as 800us or 5ms".to_owned())
}

fn main() -> ExitCode {
    let done = match What::parse() {
        What::Server { bind } => serve(bind),
        What::Client(client) => ask(&client),
    };
    match done {
        Ok(code) => code,
        Err(e) => {
            eprintln!("taut-quic: {e}");
            ExitCode::from(3)
        }
    }
}

fn serve(bind: SocketAddr) -> Result<ExitCode, Box<dyn Error>> {
    let server = ProbeServer::by(Box::new(QuicMessages::open(bind)?));
    let started = serde_json::json!({"event": "started", "address": server.address()?});
    println!("{started}");
    let never = AtomicBool::new(false);
    server.run(&never);
    Ok(ExitCode::SUCCESS)
}

fn ask(client: &Client) -> Result<ExitCode, Box<dyn Error>> {
    let train = Train {
        interval: client.interval,
        size_bytes: usize::from(client.size),
        count: client.count,
        patience: client.patience,
    };
    let never = AtomicBool::new(false);
    let messages = Box::new(QuicMessages::open(any_address_to(client.server))?);
    let mut session =
        ProbeSession::connect_by(messages, client.server, train.size_bytes, WAIT, &never)?;
    let mut account = ProbeAccount::new(client.budget);
    for _ in 0..client.repetitions {
        account.add(&session.send_train(&train, &never)?);
    }
    session.leave();
    let report = account.report(client.server, &train, None, Origin::default());
    let mut printed = serde_json::to_value(&report)?;
    printed["transport"] = "quic".into();
    println!("{printed}");
    Ok(if report.probes.received == 0 {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}
