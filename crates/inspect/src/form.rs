//! Checks the form of options and headers before their meaning is read. The checks cover options that need a value,
//! have none or occur at most once, number ranges, and protocols that only other programs support.

use crate::refusal::{Placed, Read, wrong};
use crate::rule::Within;
use crate::syntax::WrittenOption;

/// The largest number of one byte.
pub(crate) const BYTE: i64 = u8::MAX as i64;
/// The largest number of two bytes.
pub(crate) const SHORT: i64 = u16::MAX as i64;
/// The largest number of a VLAN (IEEE 802.1Q).
pub(crate) const VLAN: i64 = 0xfff;
/// The largest offset of an IPv4 fragment, in units of eight bytes (RFC 791 section 3.1).
pub(crate) const FRAGMENT_OFFSET: i64 = 0x1fff;

/// Options that need a value, and whose own parsers do not report a missing value.
const WITH_VALUE: [&str; 14] = [
    "app-layer-protocol",
    "classtype",
    "detection_filter",
    "flags",
    "flow",
    "fragbits",
    "metadata",
    "msg",
    "reference",
    "service",
    "ssl_version",
    "tcp.flags",
    "threshold",
    "tls.version",
];

/// Rule options that must not have a value.
const WITHOUT_VALUE: [&str; 8] = [
    "bypass",
    "dotprefix",
    "endswith",
    "noalert",
    "nocase",
    "rawbytes",
    "sameip",
    "startswith",
];

/// Options that may occur at most once in a rule.
const ONCE: [&str; 9] = [
    "classtype",
    "detection_filter",
    "flow",
    "gid",
    "msg",
    "priority",
    "rev",
    "sid",
    "threshold",
];

/// Protocols that rules for Snort or Suricata may name, but that taut does not support.
const ELSEWHERE: [&str; 41] = [
    "arp",
    "bittorrent-dht",
    "dhcp",
    "dnp3",
    "doh2",
    "enip",
    "esp",
    "ether",
    "file",
    "ftp-data",
    "gre",
    "icmpv6-pkt",
    "imap",
    "irc",
    "jabber",
    "krb5",
    "ldap",
    "llmnr",
    "mdns",
    "modbus",
    "msn",
    "netbios",
    "netflow",
    "nfs",
    "pgsql",
    "pkthdr",
    "pop3",
    "quic",
    "rdp",
    "rfb",
    "rpc",
    "s7comm",
    "sctp",
    "snmp",
    "telnet",
    "template",
    "tftp",
    "user",
    "vxlan",
    "websocket",
    "wireguard",
];

/// Returns true if Snort or Suricata supports rules for `protocol`.
pub(crate) fn is_known_elsewhere(protocol: &str) -> bool {
    ELSEWHERE.contains(&protocol)
}

/// Returns true for an action with a scope after a colon, as in Suricata's firewall rules (`drop:flow`).
pub(crate) fn is_scoped(action: &str) -> bool {
    let action = action.split_once(':').map(|it| it.0);
    matches!(
        action,
        Some("accept" | "alert" | "drop" | "pass" | "reject")
    )
}

/// Checks the form of a rule's options.
pub(crate) fn check(options: &[WrittenOption<'_>]) -> Placed<()> {
    for (number, option) in options.iter().enumerate() {
        let is_again = || options[..number].iter().any(|it| it.name == option.name);
        let reason = if ONCE.contains(&option.name) && is_again() {
            Some("it is given twice")
        } else {
            wrong_with(option)
        };
        if let Some(reason) = reason {
            return Err((option.at, format!("{}: {reason}", option.name)));
        }
    }
    Ok(())
}

/// Returns a description of the error in the form of an option, if there is one.
fn wrong_with(option: &WrittenOption<'_>) -> Option<&'static str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match (option.name, option.value) {
        (_, Some("")) => Some("expected a value after the colon"),
        (name, None) if WITH_VALUE.contains(&name) => Some("expected a value"),
        (name, Some(_)) if WITHOUT_VALUE.contains(&name) => Some("expected no value"),
        ("msg", Some(value))
            if value.len() < 2 || !value.starts_with('"') || !value.ends_with('"') =>
        {
            Some("expected a text in quotes")
        }
        ("classtype", Some(value)) if value.contains(|c| !is_of_word(c)) => {
            Some("expected one word")
        }
        ("reference", Some(value)) if value.split(',').any(|part| part.trim().is_empty()) => {
            Some("expected a kind and a place, such as url,example.org")
        }
        _ => None,
    }
}

/// Checks that the numbers of a comparison are from 0 to `most`, and that some number in that range satisfies it.
pub(crate) fn up_to(most: i64, asked: Within) -> Read<Within> {
    let can_be = |end: i64, open: i64| end == open || (0..=most).contains(&end);
    if !can_be(asked.least, i64::MIN) || !can_be(asked.most, i64::MAX) {
        return match most {
            i64::MAX => wrong("expected a number of at least 0"),
            most => wrong(format!("expected numbers from 0 to {most}")),
        };
    }
    if asked.least > asked.most {
        return wrong("there is no such number");
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::read::{Options, Reading};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn read(text: &str) -> Reading {
        let mut reading = Reading::default();
        reading.read(text, &Options::default());
        reading
    }

    /// Returns the error of `rule`, which is read as the second of three lines. The other two lines are valid rules.
    fn mistake(rule: &str) -> String {
        let beside =
            |id| format!("alert udp any any -> any any (content:\"a\"; nocase; sid:{id};)");
        let reading = read(&format!("{}\n{rule}\n{}", beside(1), beside(3)));
        let ids: Vec<_> = reading.rules.iter().map(|it| it.about.id).collect();
        assert_eq!((&ids[..], reading.left_out), (&[1, 3][..], 0), "{rule}");
        assert_eq!((reading.mistakes.len(), reading.mistaken), (1, 1), "{rule}");
        reading.mistakes[0].1.to_string()
    }

    const HEADER: &str = "drop icmp any any -> any any ";

    #[test]
    fn invalid_rule_options_are_errors_with_their_position() {
        for (option, reason) in [
            ("itype:999", "itype: expected numbers from 0 to 255"),
            ("itype:-1", "itype: expected numbers from 0 to 255"),
            ("itype:>255", "itype: expected numbers from 0 to 255"),
            ("icode:256", "icode: expected numbers from 0 to 255"),
            ("icode:0<>300", "icode: expected numbers from 0 to 255"),
            ("ttl:<257", "ttl: expected numbers from 0 to 255"),
            ("ttl:9-3", "ttl: there is no such number"),
            ("tos:!256", "tos: expected numbers from 0 to 255"),
            ("id:65536", "id: expected numbers from 0 to 65535"),
            ("window:65536", "window: expected numbers from 0 to 65535"),
            ("vlan.id:4096", "vlan.id: expected numbers from 0 to 4095"),
            ("vlan.id:1,3", "vlan.id: tag 3: expected -3 to 2"),
            ("vlan.layers:4", "vlan.layers: expected numbers from 0 to 3"),
            (
                "fragoffset:8192",
                "fragoffset: expected numbers from 0 to 8191",
            ),
            ("ip_proto:256", "ip_proto: expected numbers from 0 to 255"),
            ("icmp_id:65536", "icmp_id: 65536 is too much"),
            ("dsize:65536", "dsize: expected numbers from 0 to 65535"),
            ("dsize:<0", "dsize: expected numbers from 0 to 65535"),
            ("dsize:5<>6", "dsize: there is no such number"),
            (
                "dsize:>9223372036854775807",
                "dsize: 9223372036854775807 is too much",
            ),
            (
                "urilen:>9223372036854775807",
                "urilen: 9223372036854775807 is too much",
            ),
            ("bsize:<0", "bsize: expected a number of at least 0"),
            ("content:", "content: expected a value after the colon"),
            ("nocase:", "nocase: expected a value after the colon"),
            ("nocase:1", "nocase: expected no value"),
            ("flags", "flags: expected a value"),
            ("msg", "msg: expected a value"),
            ("msg:a", "msg: expected a text in quotes"),
            ("msg:\"", "a quote that is not closed"),
            ("classtype:a b", "classtype: expected one word"),
            ("reference:url,", "reference: expected a kind and a place"),
            (
                "flowbits:isset,a|",
                "flowbits: expected a bit name on both sides of each | or &",
            ),
            (
                "xbits:set,,track ip_src",
                "xbits: expected the name of the host bit after its operation",
            ),
            ("content:\"\"", "content: no bytes"),
            ("sid:3", "sid: it is given twice"),
            ("rev:2", "rev: it is given twice"),
        ] {
            let said = mistake(&format!("{HEADER}(sid:2; rev:1; {option};)"));
            let column = if option == "msg:\"" { 49 } else { 45 };
            assert!(
                said.starts_with(&format!("2:{column}: {reason}")),
                "{option}: {said}"
            );
            // If the option is on a line of its own, the error names that line.
            let said = mistake(&format!("{HEADER}(sid:2; rev:1; \\\n  {option};)"));
            let column = column - 42;
            assert!(
                said.starts_with(&format!("3:{column}: {reason}")),
                "{option}: {said}"
            );
        }
        for option in ["itype:255", "ttl:<256", "dsize:>65534", "tos:0", "flags:0"] {
            let reading = read(&format!("{HEADER}({option}; sid:2;)"));
            assert_eq!((reading.rules.len(), reading.mistaken), (1, 0), "{option}");
        }
    }

    #[test]
    fn invalid_rule_headers_are_errors_with_their_position() {
        for (header, column, reason) in [
            (
                "drop udp $HOME_NET any -> any any",
                10,
                "$HOME_NET is not defined",
            ),
            (
                "drop udp any any -> any $HTTP_PORTS",
                25,
                "$HTTP_PORTS is not defined",
            ),
            (
                "drop udp any any -> any 65536",
                25,
                "\"65536\": expected a port",
            ),
            (
                "drop udp any any -> any +80",
                25,
                "\"+80\": expected a port",
            ),
            ("drop udp any !any -> any 80", 14, "!any: it is empty"),
            ("drop udp any any -> !any 80", 21, "!any: it is empty"),
            (
                "drop udp any any -> 10.0.0.256 80",
                21,
                "\"10.0.0.256\": expected an address",
            ),
            ("drop udp any any -> any", 6, "expected addresses and ports"),
            (
                "drop udp any any ~> any any",
                18,
                "\"~>\": expected ->, <> or =>",
            ),
            ("drop upd any any -> any any", 6, "unknown protocol \"upd\""),
            ("dorp udp any any -> any any", 1, "\"dorp\": expected alert"),
        ] {
            let said = mistake(&format!("{header} (content:\"a\"; sid:2;)"));
            assert!(
                said.starts_with(&format!("2:{column}: {reason}")),
                "{header}: {said}"
            );
        }
    }

    #[test]
    fn rules_with_unsupported_protocols_or_hooks_are_skipped() {
        for (protocol, why) in [
            ("snmp", "snmp: not a protocol that taut reads"),
            ("krb5", "krb5: not a protocol that taut reads"),
            ("tcp:flow_start", "hook tcp:flow_start"),
        ] {
            let reading = read(&format!("alert {protocol} any any -> any any (sid:5;)"));
            assert_eq!((reading.left_out, reading.mistaken), (1, 0), "{protocol}");
            assert_eq!(reading.not_understood[why], [5]);
        }
    }

    #[test]
    fn rules_with_firewall_actions_are_skipped() {
        for action in ["accept:hook", "drop:flow"] {
            let reading = read(&format!("{action} tcp any any -> any any (sid:5;)"));
            assert_eq!((reading.left_out, reading.mistaken), (1, 0), "{action}");
            assert_eq!(reading.not_understood[&format!("action {action}")], [5]);
        }
    }

    #[test]
    fn rule_errors_beyond_a_limit_are_counted_without_a_message() {
        let reading = read(&"x\n".repeat(crate::read::MOST_MISTAKES + 7));
        assert_eq!(reading.mistakes.len(), crate::read::MOST_MISTAKES);
        assert_eq!(reading.mistaken, crate::read::MOST_MISTAKES + 7);
    }

    /// Text that is inserted into rules, or replaces a part of them.
    const PIECES: [&str; 22] = [
        "\"",
        ";",
        "\\",
        "(",
        ")",
        ":",
        ",",
        "!",
        "#",
        "$X",
        "|",
        "/",
        " ",
        "ä",
        "content:\"a\"",
        "->",
        "pcre:\"/",
        "\\\"",
        "; sid:",
        "99999999999999999999",
        "alert udp ",
        "\u{0}",
    ];

    proptest! {
        #[test]
        fn damaging_a_rule_does_not_affect_other_rules(
            which in 0usize..crate::sample::RULES,
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..9, 0..PIECES.len() + 1), 1..5),
        ) {
            let text = crate::sample::rules();
            let mut lines: Vec<String> = text.lines().skip(1).map(str::to_string).collect();
            // Only a few neighbours of the edited rule are read, because reading takes most of the time of this test.
            let from = which.saturating_sub(3);
            lines = lines.drain(from..(which + 4).min(crate::sample::RULES)).collect();
            let edited = which - from;
            let rule = &mut lines[edited];
            for (place, less, piece) in edits {
                let ends: Vec<usize> = rule.char_indices().map(|it| it.0).collect();
                let begin = if ends.is_empty() { 0 } else { *place.get(&ends) };
                let end = ends.iter().copied().find(|&it| it >= begin + less).unwrap_or(rule.len());
                rule.replace_range(begin..end, PIECES.get(piece).copied().unwrap_or_default());
            }
            let number = |at: usize| 9_000_001 + (from + at) as u32;
            let reading = read(&lines.join("\n"));
            let found: BTreeSet<u32> = reading.rules.iter().map(|it| it.about.id).collect();
            for other in (0..lines.len()).filter(|&it| it != edited) {
                prop_assert!(found.contains(&number(other)), "{}", lines[edited]);
            }
            prop_assert!(reading.rules.len() <= lines.len());
            let all = reading.rules.len() + reading.left_out + reading.mistaken + reading.doubled;
            let is_none = lines[edited].trim_start().starts_with('#') || lines[edited].trim().is_empty();
            prop_assert!(all >= lines.len() - usize::from(is_none), "{}", lines[edited]);
        }
    }
}
