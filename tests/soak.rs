//! Long runs that check for uncounted losses, hangs and growth: `./run soak`. TAUT_SOAK is the fraction of their full
//! length (0.01 is a hundredth). docs/RELIABILITY.md has the results.
#![allow(clippy::unwrap_used)]

mod support;

mod soak {
    mod churn;
    mod evasion;
    mod kills;
    mod lab;
    mod lasting;
    mod packets;
    mod servers;

    use crate::support::program::run;
    use crate::support::{scratch, taut};
    use serde_json::Value;
    use std::fs;

    /// Returns the fraction `TAUT_SOAK` of `whole`, at least 1.
    pub fn share_of(whole: u64) -> u64 {
        let share = std::env::var("TAUT_SOAK").map_or(1.0, |text| text.parse().unwrap());
        ((whole as f64 * share) as u64).max(1)
    }

    /// Returns the number of file descriptors of a process, and its resident memory in kilobytes. Pages of files do not
    /// count: the kernel loads the program's pages at first use, and may evict them at any time.
    pub fn held_by(process: u32) -> (usize, u64) {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let kilobytes = ["RssAnon:", "RssShmem:"].map(|name| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        });
        (descriptors, kilobytes.iter().sum())
    }

    /// Builds a command of taut that sends 128-byte packets with the given fields through the given ports, and prints
    /// JSON.
    pub fn sending(words: &str, ports: &[String], fields: &[&str]) -> Vec<String> {
        let line = format!("{words} --json --size 128");
        let mut line: Vec<String> = line.split(' ').map(str::to_string).collect();
        line.extend(ports.iter().cloned());
        line.extend(
            fields
                .iter()
                .flat_map(|field| ["--set".to_string(), field.to_string()]),
        );
        line
    }

    /// Returns the highest rate, in packets per second, at which the path between the ports loses at most one packet in
    /// a thousand.
    pub fn loss_free_rate(ports: &[String], fields: &[&str]) -> f64 {
        let folder = scratch();
        let out = folder.path().join("bench").display().to_string();
        let search = "bench throughput --trial 0.5 --repetitions 1 --search binary --loss-tolerance 0.001 --precision 0.05";
        let line = sending(&format!("{search} --out {out}"), ports, fields);
        let found = run(&mut taut(&line)).success();
        let found: Value = serde_json::from_str(&found.stdout).unwrap();
        let rate = found["sizes"][0]["throughput"]["mean_pps"].as_f64();
        let rate = rate.unwrap();
        assert!(rate > 0.0, "no rate held");
        rate
    }
}
