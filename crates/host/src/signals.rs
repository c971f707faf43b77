//! A stop flag for the whole program, set by Ctrl-C and similar signals, so that long work ends cleanly.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, iterator::Signals, low_level};

/// Exit status that a shell reports for a program ended by Ctrl-C: 128 + SIGINT.
const EXIT_STATUS_INTERRUPTED: i32 = 130;

/// The interval within which a SIGINT after another signal counts as part of one request to stop. `timeout` and some
/// wrappers of commands send one signal to the process and one to its group, although the user has not pressed Ctrl-C
/// twice.
const TWICE_WITHIN: Duration = Duration::from_millis(300);

/// Returns the flag that SIGINT, SIGTERM or SIGHUP sets; the first call installs the handlers.
///
/// Read the flag with `Ordering::Relaxed` in every loop that may take a noticeable time. When the flag is set, return
/// the results collected by then. A SIGINT that arrives 300 ms or more after the first signal (an impatient Ctrl-C)
/// ends the process immediately with status 130. Its remains are removed by the next [`crate::net::sweep_stale`].
///
/// # Errors
/// The error of the system if a handler cannot be installed.
pub fn stop_flag() -> io::Result<&'static AtomicBool> {
    Ok(&stop()?.flag)
}

/// Returns a file that reaches its end once the flag of [`stop_flag`] is set, for threads that wait in `poll`. The
/// signal itself does not always interrupt `poll`, because it may arrive at another thread, or just before the call.
///
/// # Errors
/// The errors are those of [`stop_flag`].
pub fn stop_file() -> io::Result<BorrowedFd<'static>> {
    Ok(stop()?.file.as_fd())
}

struct Stop {
    flag: Arc<AtomicBool>,
    file: PipeReader,
}

fn stop() -> io::Result<&'static Stop> {
    static STOP: OnceLock<Result<Stop, io::ErrorKind>> = OnceLock::new();
    match STOP.get_or_init(|| install().map_err(|error| error.kind())) {
        Ok(stop) => Ok(stop),
        Err(kind) => Err(io::Error::from(*kind)),
    }
}

fn install() -> io::Result<Stop> {
    let (file, open) = io::pipe()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut first = None;
            let mut open = Some(open);
            for signal in signals.forever() {
                // The handler has set the flag already; closing the pipe makes the file of `stop_file` reach its end.
                drop(open.take());
                let first = *first.get_or_insert_with(Instant::now);
                if signal == SIGINT && first.elapsed() >= TWICE_WITHIN {
                    low_level::exit(EXIT_STATUS_INTERRUPTED);
                }
            }
        })?;
    Ok(Stop { flag: stop, file })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    #[test]
    fn a_hangup_signal_sets_the_stop_flag() {
        let flag = stop_flag().unwrap();
        assert!(!flag.load(Ordering::Relaxed));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP)
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !flag.load(Ordering::Relaxed) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(flag.load(Ordering::Relaxed));
        let mut byte = [0];
        assert_eq!(rustix::io::read(stop_file().unwrap(), &mut byte), Ok(0));
        assert!(std::ptr::eq(flag, stop_flag().unwrap()));
    }
}
