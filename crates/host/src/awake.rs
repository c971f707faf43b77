//! A request to the kernel that idle cores poll instead of halting. (Linux, Documentation/admin-guide/pm/cpuidle.rst,
//! power management quality of service.)

use std::fs::File;
use std::io::{self, Write};

const REQUESTS: &str = "/dev/cpu_dma_latency";

/// The requested maximum wakeup time of a core, us.
const LONGEST_WAKE_UP_US: i32 = 0;

/// A request to the kernel that no core of this machine halts. The request ends when this value is dropped, or when the
/// process ends for any reason.
#[derive(Debug)]
pub struct Awake {
    _request: File,
}

impl Awake {
    /// Asks the kernel that idle cores poll instead of halting; the request lasts until the returned value is dropped.
    ///
    /// # Errors
    /// The kernel does not support requests, or does not accept them from this user.
    pub fn ask() -> io::Result<Self> {
        let mut request = requests()?;
        request.write_all(&LONGEST_WAKE_UP_US.to_ne_bytes())?;
        Ok(Self { _request: request })
    }

    /// Returns the reason why this process cannot make a request, in a few words; `None` if it can.
    pub fn why_not() -> Option<String> {
        let refused = requests().err()?;
        Some(match refused.kind() {
            io::ErrorKind::PermissionDenied => "that needs root".to_owned(),
            _ => format!("{REQUESTS}: {refused}"),
        })
    }
}

fn requests() -> io::Result<File> {
    File::options().write(true).open(REQUESTS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;

    /// Returns the maximum wakeup time of cores now in force, us: the minimum over the requests of all programs.
    fn longest_us() -> i32 {
        let mut now = [0; 4];
        let mut file = File::open(REQUESTS).unwrap();
        file.read_exact(&mut now).unwrap();
        i32::from_ne_bytes(now)
    }

    #[test]
    fn cores_stay_awake_until_the_request_is_dropped() {
        if let Some(why) = Awake::why_not() {
            println!("skipped: needs cores that can be kept awake: {why}");
            return;
        }
        let request = Awake::ask().unwrap();
        assert_eq!(longest_us(), 0);
        drop(request);
        // Another program may have made the same request; the kernel does not show who made it.
        if longest_us() == 0 {
            println!("skipped: needs a machine on which nobody else keeps cores awake");
        }
    }
}
