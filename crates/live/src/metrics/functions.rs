//! What functions count for others, as OpenMetrics.

use super::{Exposition, Kind};
use taut_engine::{Count, CountKind};

/// Labels of whose counts they are, and the counts.
type Labelled<'a> = (&'a [(&'a str, &'a str)], &'a [Count]);

/// Appends a family for each kind of count that there is, below names that begin with `prefix`: counts of several,
/// each with labels of its own.
pub(super) fn function_metrics(text: &mut Exposition, prefix: &str, each: &[Labelled<'_>]) {
    let families = [
        (
            CountKind::Outcome,
            "function_packets",
            "packets",
            "outcome",
            "Seen by functions that tell what became of them, by outcome.",
        ),
        (
            CountKind::Event,
            "function_events",
            "",
            "event",
            "Of functions that tell, by event.",
        ),
        (
            CountKind::Rule,
            "rule_hits",
            "",
            "rule",
            "Packets that a rule fitted, since rules were read.",
        ),
    ];
    for (kind, name, unit, label, help) in families {
        let mut all = each.iter().flat_map(|(_, counts)| counts.iter());
        if !all.any(|it| it.kind == kind) {
            continue;
        }
        text.family(&format!("{prefix}_{name}"), Kind::Counter, unit, help);
        for (labels, counts) in each {
            for count in counts.iter().filter(|it| it.kind == kind) {
                let own = [
                    ("function", &*count.function),
                    (label, &*count.name),
                    ("message", &*count.about),
                ];
                let own = if count.about.is_empty() {
                    &own[..2]
                } else {
                    &own[..]
                };
                text.sample(&[*labels, own].concat(), count.count as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(kind: CountKind, name: &str, about: &str) -> Count {
        Count {
            function: "ips".to_string(),
            kind,
            name: name.to_string(),
            about: about.to_string(),
            count: 3,
        }
    }

    #[test]
    fn each_kind_is_a_family_and_none_is_nothing() {
        let counts = [
            count(CountKind::Outcome, "passed", ""),
            count(CountKind::Rule, "1:7", "a \"bad\" name"),
        ];
        let mut text = Exposition::new();
        let labels = [("segment", "1-ips")];
        function_metrics(
            &mut text,
            "taut_chain",
            &[(&labels, &counts), (&labels, &[])],
        );
        let want = "# TYPE taut_chain_function_packets counter\n# UNIT taut_chain_function_packets packets\n\
            # HELP taut_chain_function_packets Seen by functions that tell what became of them, by outcome.\n\
            taut_chain_function_packets_total{segment=\"1-ips\",function=\"ips\",outcome=\"passed\"} 3\n\
            # TYPE taut_chain_rule_hits counter\n\
            # HELP taut_chain_rule_hits Packets that a rule fitted, since rules were read.\n\
            taut_chain_rule_hits_total{segment=\"1-ips\",function=\"ips\",rule=\"1:7\",message=\"a \\\"bad\\\" name\"} 3\n\
            # EOF\n";
        assert_eq!(text.finish(), want);
        let mut text = Exposition::new();
        function_metrics(&mut text, "taut_forward", &[(&[], &[])]);
        assert_eq!(text.finish(), "# EOF\n");
    }
}
