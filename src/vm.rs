//! `taut vm`: runs a chain file in a virtual machine with vhost-user sockets as NICs.

use crate::exit::{self, Failure};
use crate::terminal::{print, quantity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_deploy::vm::{Accelerator, Control, Machine, MachineSpec};
use taut_engine::Chain;
use taut_functions::FUNCTIONS;

/// Timeout for a virtual machine to end after the request to do so.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval at which the stop flag is checked.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

#[derive(clap::Args)]
#[command(after_help = "Example:
  taut vm chain.toml --card /run/west.sock --card /run/east.sock

The machine contains only this program; its cards are eth0 and eth1, so the file has
  ports = [\"af_packet:eth0\", \"af_packet:eth1\"]
and its `core` is the core that the machine runs on. The machine listens on the sockets, and boots once a switch with
vhost-user ports has connected to all of them. Ctrl-C ends it.")]
pub struct Arguments {
    /// Chain file (TOML), as seen inside the machine
    chain: PathBuf,
    /// vhost-user socket of a network card, or PCI address of a card or virtual function that vfio-pci has; once for
    /// each card, the first is eth0 in the machine
    #[arg(long, required = true, value_name = "SOCKET")]
    card: Vec<PathBuf>,
    /// Emulate the processor in software, even where it has virtualisation: tens of times slower
    #[arg(long)]
    emulate: bool,
    /// Stop after this many seconds of forwarding (default: at Ctrl-C)
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Print JSON: one object at the start, one a second, one at the end
    #[arg(long)]
    json: bool,
    /// Print no counters until the summary at the end
    #[arg(long)]
    quiet: bool,
    /// Stop when standard input closes: for programs that start taut and must not leave it behind
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    /// Standard input holds lines for the `taut forward` inside
    #[arg(long, hide = true)]
    control: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chain = Chain::load(&arguments.chain, FUNCTIONS)?;
    let stop = exit::stop_flag()?;
    let accelerator = if arguments.emulate {
        Accelerator::Software
    } else {
        Accelerator::best()
    };
    let program = exit::own_program()?;
    let mut machine = Machine::start(&MachineSpec {
        chain: &chain,
        cards: &arguments.card,
        arguments: &inner_arguments(arguments),
        accelerator,
        program: &program,
    })?;
    let why = Accelerator::why_not_the_processor().filter(|_| !arguments.emulate);
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    print::note(format_args!("virtual machine: {}{why}", accelerator.name()));
    let seen = Arc::new(AtomicBool::new(false));
    let mut control = machine
        .control()
        .map_err(|e| Failure::Missing(format!("cannot reach the virtual machine: {e}")))?;
    {
        let seen = Arc::clone(&seen);
        let (passes_on, ends) = (arguments.control, arguments.until_stdin_closes);
        std::thread::spawn(move || {
            let to = passes_on.then_some(&mut control);
            wait_for_the_end(stop, to, ends);
            end(&control, &seen);
        });
    }
    let code = machine.relay(|line| {
        seen.store(true, Ordering::Relaxed);
        print::line(line);
    })?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Returns the arguments of the `taut forward` inside the virtual machine.
fn inner_arguments(arguments: &Arguments) -> Vec<String> {
    let mut inner = Vec::new();
    if arguments.json {
        inner.push("--json".to_string());
    }
    if arguments.control {
        inner.push("--control".to_string());
    }
    if arguments.quiet {
        inner.push("--quiet".to_string());
    }
    if let Some(seconds) = arguments.seconds {
        inner.push(format!("--seconds={seconds}"));
    }
    inner
}

/// Copies standard input to `control`, if given. Returns at a signal or, if requested, at the end of standard input.
fn wait_for_the_end(stop: &AtomicBool, mut control: Option<&mut Control>, ends: bool) {
    let stdin = std::io::stdin();
    let mut open = ends || control.is_some();
    while !stop.load(Ordering::Relaxed) {
        if !open {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let mut watched = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        if poll(&mut watched, Some(&LOOK)).is_ok_and(|n| n > 0) {
            let mut bytes = [0; 4096];
            match (rustix::io::read(stdin.as_fd(), &mut bytes), &mut control) {
                (Ok(0) | Err(_), _) if ends => return,
                (Ok(0) | Err(_), _) => open = false,
                (Ok(length), Some(control)) => {
                    // A failed write is ignored: the end of the machine is detected separately.
                    let _ = control.write(&bytes[..length]);
                }
                (Ok(_), None) => {}
            }
        }
    }
}

/// Ends the virtual machine and then this process; a machine that does not react is killed with the process.
fn end(control: &Control, seen: &AtomicBool) {
    control.close();
    let deadline = Instant::now() + PATIENCE;
    while seen.load(Ordering::Relaxed) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The machine has not booted, or hangs. The emulator dies with this process.
    std::process::exit(130);
}
