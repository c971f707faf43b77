//! Long runs in which nothing may be lost uncounted, hang or grow: `./run soak`. A share of their full length is asked for
//! by TAUT_SOAK (0.01 is a hundredth). docs/RELIABILITY.md has what came of them.
#![allow(clippy::unwrap_used)]

mod support;

mod soak {
    mod churn;
    mod killed;
    mod packets;

    use std::fs;

    /// That share of `whole`, at least one.
    pub fn share_of(whole: u64) -> u64 {
        let share = std::env::var("TAUT_SOAK").map_or(1.0, |text| text.parse().unwrap());
        ((whole as f64 * share) as u64).max(1)
    }

    /// What a process holds: file descriptors, and resident memory in kilobytes.
    pub fn held_by(process: u32) -> (usize, u64) {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        (descriptors, kilobytes)
    }
}
