//! Idle cores that look out for work instead of halting, for as long as somebody asks.
//! (Linux, Documentation/admin-guide/pm/cpuidle.rst, power management quality of service.)

use std::fs::File;
use std::io::{self, Write};

const REQUESTS: &str = "/dev/cpu_dma_latency";

/// The longest time that a core may take to wake up, us.
const LONGEST_WAKE_UP_US: i32 = 0;

/// A request to the kernel that no core of this machine halts. It ends when this is dropped, however the process ends.
#[derive(Debug)]
pub struct Awake {
    _request: File,
}

impl Awake {
    /// Asks the kernel.
    ///
    /// # Errors
    /// It does not take requests, or not from this user.
    pub fn ask() -> io::Result<Self> {
        let mut request = requests()?;
        request.write_all(&LONGEST_WAKE_UP_US.to_ne_bytes())?;
        Ok(Self { _request: request })
    }

    /// Returns why this process cannot ask, in a few words; none if it can.
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

    /// Returns what holds now: the least of all requests, us.
    fn longest_us() -> i32 {
        let mut now = [0; 4];
        let mut file = File::open(REQUESTS).unwrap();
        file.read_exact(&mut now).unwrap();
        i32::from_ne_bytes(now)
    }

    #[test]
    fn a_request_holds_until_it_is_dropped() {
        if let Some(why) = Awake::why_not() {
            println!("skipped: needs cores that can be kept awake: {why}");
            return;
        }
        let request = Awake::ask().unwrap();
        assert_eq!(longest_us(), 0);
        drop(request);
        // Another program may ask for the same; it cannot be told apart.
        if longest_us() == 0 {
            println!("skipped: needs a machine on which nobody else keeps cores awake");
        }
    }
}
