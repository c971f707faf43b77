//! Summaries of DPDK's log messages about a failure, in one line.

use std::io;

/// The messages that DPDK logs for every failure, so that they explain none.
const EMPTY_WORDS: [&str; 3] = [
    "Driver cannot attach the device",
    "Failed to attach device on primary process",
    "failed to initialize",
];

/// Returns DPDK's message about the cause of a failure ([`cause`]); without such a message, the meaning of the negative
/// error number.
pub(super) fn reason(words: &str, rc: i32) -> String {
    cause(words).unwrap_or_else(|| io::Error::from_raw_os_error(rc.saturating_neg()).to_string())
}

/// Returns the log messages that name a cause, at most two, without DPDK's prefixes; None if no message names one.
pub(super) fn cause(words: &str) -> Option<String> {
    let mut said: Vec<String> = Vec::new();
    for line in words.lines() {
        let line = without_prefix(line.trim().trim_end_matches('.'));
        let is_empty = line.is_empty() || EMPTY_WORDS.iter().any(|empty| line.contains(empty));
        if !is_empty && said.len() < 2 && !said.contains(&line) {
            said.push(line);
        }
    }
    (!said.is_empty()).then(|| said.join("; "))
}

/// Strips the prefix from `EAL: text`, `EAL: FATAL: text` and `eth_from_pcaps(): text`.
fn without_prefix(line: &str) -> String {
    let mut text = line;
    while let Some((prefix, rest)) = text.split_once(": ") {
        let is_name = prefix
            .trim_end_matches("()")
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_label = prefix.ends_with("()") || prefix.chars().all(|c| !c.is_ascii_lowercase());
        if !(is_name && is_label) {
            break;
        }
        text = rest;
    }
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_root_cause_in_a_dpdk_log_is_reported() {
        let words = "eth_from_pcaps(): Couldn't open x.pcap: No such file\nEAL: Driver cannot attach the \
                     device (net_pcap0)\nEAL: Failed to attach device on primary process\n";
        assert_eq!(reason(words, -1), "Couldn't open x.pcap: No such file");
        let words = "EAL: FATAL: Cannot init memory\nEAL: Cannot init memory\n";
        assert_eq!(reason(words, -12), "Cannot init memory");
    }

    #[test]
    fn the_error_number_explains_failures_without_a_logged_cause() {
        assert!(reason("", -libc::ENODEV).contains("No such device"));
        assert!(
            reason("EAL: Driver cannot attach the device (x)\n", -libc::EPERM)
                .contains("permitted")
        );
    }
}
