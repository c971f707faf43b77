#![allow(clippy::unwrap_used)]

use super::*;
use crate::ablation::made_up_tail;
use taut_results::write_json;

const BOUND_NS: f64 = 50_000.0;

fn facts() -> Facts {
    Facts {
        device: "memif idle".to_string(),
        rate_pps: 200e3,
        bound_ns: BOUND_NS,
        asked: "p99.999".to_string(),
        percentile: "p99.999".to_string(),
        bulk: vec!["stress".to_string()],
        cpus: BTreeSet::from([0, 1, 2]),
        forwarder_cpu: 1,
        ways: vec![Way::Free, Way::Cpus],
    }
}

/// Returns six trials of a level of bulk load. Unconfined load takes the forwarder's CPU; otherwise the load has little
/// effect.
fn trials(way: Way, level: u32) -> Vec<Outcome> {
    let trial = |repetition| {
        let each = if way == Way::Free { 20_000.0 } else { 1_000.0 };
        let tail_ns = 20_000.0 + each * f64::from(level) + 100.0 * f64::from(repetition);
        let mut tail = made_up_tail(tail_ns, 1_000_000);
        tail.longest_gap_ns = Some(tail_ns as u64);
        Outcome {
            way,
            level,
            repetition,
            bulk_cpus: f64::from(level) / 8.0,
            tail,
        }
    };
    (1..=6).map(trial).collect()
}

fn searched() -> Vec<Outcome> {
    let facts = facts();
    let mut outcomes = trials(Way::Free, 0);
    for way in facts.ways.clone() {
        while let Some(level) = decide::next(&levels(&facts, &outcomes, way), BOUND_NS) {
            outcomes.extend(trials(way, level));
        }
    }
    outcomes
}

/// Returns a results folder of the search.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let head = crate::made_up::head(Fit::DESCRIPTION.schema, facts());
    write_json(&dir.path().join(Fit::DESCRIPTION.head), &head).unwrap();
    std::fs::create_dir(dir.path().join("trials")).unwrap();
    for it in searched() {
        let name = format!("trials/{}-{}-{}.json", it.way.id(), it.level, it.repetition);
        write_json(&dir.path().join(name), &it).unwrap();
    }
    dir
}

#[test]
fn the_page_names_the_best_way_and_what_limits_others() {
    let dir = folder();
    let shown = taut_bench::benchmark::show::<Fit>(dir.path(), None).unwrap();
    let wanted = "p99.999 within 50.0 µs: the most bulk load is 1.00 CPU";
    assert!(shown.text.contains(wanted), "{}", shown.text);
    let page = std::fs::read_to_string(&shown.page).unwrap();
    for part in [
        "12.5 % of its CPUs is held, 25.0 % is not",
        "the load takes the forwarder&#39;s CPU for longer",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn malicious_fit_folders_reach_nothing_outside() {
    crate::strangers::check(folder().path(), |dir| {
        taut_bench::benchmark::show::<Fit>(dir, None).map(|shown| shown.page)
    });
}

#[test]
fn bulk_load_spares_the_forwarders_cpu_only_where_asked() {
    let facts = facts();
    assert_eq!(facts.cpus_of(Way::Idle), BTreeSet::from([0, 1, 2]));
    assert_eq!(facts.cpus_of(Way::CpusIdle), BTreeSet::from([0, 2]));
}

#[test]
fn all_confinement_methods_share_the_trials_without_bulk_load() {
    let facts = facts();
    let outcomes = trials(Way::Free, 0);
    for way in [Way::Free, Way::Cpus] {
        assert_eq!(levels(&facts, &outcomes, way).len(), 1);
        assert_eq!(
            decide::next(&levels(&facts, &outcomes, way), BOUND_NS),
            Some(LEVELS)
        );
    }
}
