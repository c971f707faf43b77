//! The counters that functions publish, as OpenMetrics.

use super::exposition::one_word;
use super::{Exposition, Kind};
use taut_engine::{Count, CountKind};

/// The labels that name the owner of counters, such as a segment, and the owner's counters.
type Labelled<'a> = (&'a [(&'a str, &'a str)], &'a [Count]);

/// Appends a family for each kind of counter, with names that begin with `prefix`. `each` contains the counters of
/// several owners, with the labels of each owner.
pub(super) fn function_metrics(text: &mut Exposition, prefix: &str, each: &[Labelled<'_>]) {
    let families: [(&[CountKind], &str, &str, &str, &str); 3] = [
        (
            &[CountKind::Outcome, CountKind::Drop],
            "function_packets",
            "packets",
            "outcome",
            "Seen by functions that tell what became of them, by outcome.",
        ),
        (
            &[CountKind::Event],
            "function_events",
            "",
            "event",
            "Of functions that tell, by event.",
        ),
        (
            &[CountKind::Rule],
            "rule_hits",
            "",
            "rule",
            "Packets that a rule fitted, since rules were read.",
        ),
    ];
    for (kinds, name, unit, label, help) in families {
        let mut all = each.iter().flat_map(|(_, counts)| counts.iter());
        if !all.any(|it| kinds.contains(&it.kind)) {
            continue;
        }
        text.family(&format!("{prefix}_{name}"), Kind::Counter, unit, help);
        for (labels, counts) in each {
            for (function, name, about, count) in in_one_word(counts, kinds) {
                let own = [("function", function), (label, &*name), ("message", about)];
                let own = if about.is_empty() {
                    &own[..2]
                } else {
                    &own[..]
                };
                text.sample(&[*labels, own].concat(), count as f64);
            }
        }
    }
}

/// Returns the counters whose kind is in `kinds`, each as function, name, description and count. The words of a name
/// are joined to one word. Counters whose names thus become equal are summed, because no two samples may have the same
/// labels.
fn in_one_word<'a>(
    counts: &'a [Count],
    kinds: &[CountKind],
) -> Vec<(&'a str, String, &'a str, u64)> {
    let mut sums: Vec<(&str, String, &str, u64)> = Vec::new();
    for count in counts.iter().filter(|it| kinds.contains(&it.kind)) {
        // The name of a rule is its number, which needs no change. Rules are not compared with each other, because
        // there may be thousands of them.
        let name = match count.kind {
            CountKind::Rule => count.name.clone(),
            _ => one_word(&count.name),
        };
        let same = |sum: &&mut (&str, String, &str, u64)| {
            count.kind != CountKind::Rule && sum.0 == count.function && sum.1 == name
        };
        match sums.iter_mut().find(same) {
            Some(sum) => sum.3 += count.count,
            None => sums.push((&count.function, name, &count.about, count.count)),
        }
    }
    sums
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
    fn each_count_kind_has_a_separate_metric_family() {
        let counts = [
            count(CountKind::Outcome, "passed", ""),
            count(CountKind::Drop, "slow path: no route", ""),
            count(CountKind::Drop, "slow path: (no) route", ""),
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
            taut_chain_function_packets_total{segment=\"1-ips\",function=\"ips\",outcome=\"slow_path_no_route\"} 6\n\
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
