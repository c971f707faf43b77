#![allow(clippy::unwrap_used)]

use super::cases::{AS_FOUND, Case};
use super::*;
use crate::tail::{PERCENTILES, Percentile};
use taut_results::write_json;

const SETTINGS: [&str; 4] = ["governor", "ksm", "swappiness", "watchdog"];
const PACKETS: u64 = 1_000_000;

fn names() -> Vec<String> {
    SETTINGS.map(str::to_string).to_vec()
}

/// Returns the trials of a synthetic machine on which each setting multiplies the tail latency by its ratio.
fn machine(ratios: [f64; 4], repetitions: u32, random: &mut fastrand::Rng) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for repetition in 1..=repetitions {
        for case in Case::all(&names()).unwrap() {
            let on = SETTINGS.iter().zip(ratios);
            let on = on.filter(|(name, _)| case.on.iter().any(|on| on == *name));
            let effect: f64 = on.map(|(_, ratio)| ratio).product();
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            // One trial in ten meets something else on the machine.
            let other = if random.f64() < 0.1 { 2.5 } else { 1.0 };
            let tail_ns = 40_000.0 * effect * (0.15 * normal).exp() * other;
            outcomes.push(Outcome {
                case: case.name,
                repetition,
                tail: made_up_tail(tail_ns, PACKETS),
            });
        }
    }
    outcomes
}

fn verdicts(outcomes: &[Outcome], measure: Measure) -> Vec<Verdict> {
    let rows = judge(&names(), outcomes, measure, PERCENTILES[0]);
    rows.iter().map(|row| row.verdict).collect()
}

#[test]
fn settings_with_an_effect_are_found_and_others_are_not() {
    let mut random = fastrand::Rng::with_seed(2);
    let outcomes = machine([0.5, 1.0, 1.6, 1.0], 9, &mut random);
    let (lowers, raises, none) = (Verdict::Lowers, Verdict::Raises, Verdict::NotShown);
    for measure in [Measure::Tail, Measure::LongestGap] {
        assert_eq!(verdicts(&outcomes, measure), [lowers, none, raises, none]);
    }
    assert_eq!(verdicts(&outcomes, Measure::Energy), [Verdict::NoData; 4]);
    let row = &judge(&names(), &outcomes, Measure::Tail, PERCENTILES[0])[0];
    let design = row.in_design.as_ref().unwrap().ratio;
    assert!(design.low < 0.5 && 0.5 < design.high, "{design:?}");
}

#[test]
fn a_machine_on_which_nothing_matters_yields_few_statements() {
    let mut random = fastrand::Rng::with_seed(7);
    const TRIES: u32 = 60;
    let any = (0..TRIES).filter(|_| {
        let outcomes = machine([1.0; 4], 9, &mut random);
        let said = verdicts(&outcomes, Measure::LongestGap);
        said.iter().any(|verdict| *verdict != Verdict::NotShown)
    });
    // Four standard errors above 5 %.
    assert!(any.count() <= 9);
}

#[test]
fn effects_that_depend_on_other_settings_are_not_simplified() {
    // Alone, the setting halves the tail; in the design, others turn that round.
    let mut random = fastrand::Rng::with_seed(3);
    let mut outcomes = machine([1.8, 1.0, 1.0, 1.0], 9, &mut random);
    for outcome in &mut outcomes {
        if outcome.case == Case::alone("governor") {
            outcome.tail = made_up_tail(15_000.0, PACKETS);
        }
    }
    assert_eq!(verdicts(&outcomes, Measure::Tail)[0], Verdict::Depends);
}

#[test]
fn incomplete_repetitions_and_short_trials_state_less() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut outcomes = machine([0.5, 1.0, 1.0, 1.0], 1, &mut random);
    outcomes.retain(|outcome| outcome.case != Case::in_design(3));
    assert_eq!(verdicts(&outcomes, Measure::Tail), [Verdict::TooFew; 4]);
    outcomes[0].tail = made_up_tail(1e4, 100_000);
    assert_eq!(effects::percentile(&outcomes), Some(PERCENTILES[1]));
    assert_eq!(effects::percentile(&[]), None::<Percentile>);
}

#[test]
fn cases_include_as_found_each_setting_and_the_design() {
    let cases = Case::all(&names()).unwrap();
    assert_eq!(cases.len(), 1 + 4 + 16);
    assert_eq!((cases[0].name.as_str(), cases[0].on.len()), (AS_FOUND, 0));
    assert_eq!(cases[2].on, ["ksm"]);
    let on = cases[5..].iter().filter(|it| it.on.contains(&names()[1]));
    assert_eq!(on.count(), 8);
    assert_eq!(Case::all(&[]), None);
}

/// Returns a synthetic tree of `/proc` and `/sys` with the given files.
fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root = Root::at(folder.path());
    (folder, root)
}

const MACHINE: &[(&str, &str)] = &[
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/nohz_full", "\n"),
    ("proc/sys/vm/swappiness", "60\n"),
    ("sys/kernel/mm/ksm/run", "1\n"),
    ("proc/sys/vm/stat_interval", "1\n"),
];

#[test]
fn fixed_settings_are_named_with_the_reason() {
    let (folder, root) = tree(MACHINE);
    let cpus = BTreeSet::from([3]);
    let (settings, fixed) = switchable(&root, &cpus, Profile::Latency, &[]).unwrap();
    assert_eq!(settings.len() + fixed.len(), tune::settings().count());
    let switched = settings.iter().find(|it| it.name == "swappiness").unwrap();
    assert_eq!(switched.off, "60");
    let why = |name: &str| {
        let found = fixed.iter().find(|it| it.name == name);
        found.map(|it| it.why.clone()).unwrap()
    };
    assert!(why("tickless").starts_with("only at boot: nohz_full=3"));
    assert!(why("governor").starts_with("not on this machine"));
    let text = std::fs::read_to_string(folder.path().join("proc/sys/vm/swappiness"));
    assert_eq!(text.unwrap(), "60\n");
    let only = [String::from("swappiness")];
    let (one, rest) = switchable(&root, &cpus, Profile::Latency, &only).unwrap();
    assert_eq!((one.len(), rest.len()), (1, 0));
}

#[test]
fn settings_are_restored_however_a_trial_ends() {
    let (folder, root) = tree(MACHINE);
    let cpus = BTreeSet::from([3]);
    let text = || std::fs::read_to_string(folder.path().join("proc/sys/vm/swappiness")).unwrap();
    let on = |measure: &dyn Fn() -> Result<String, Failed>| {
        with_settings(&root, &cpus, Profile::Latency, &["swappiness"], measure)
    };
    let during = on(&|| Ok(text())).unwrap();
    assert_ne!(during, "60\n");
    assert_eq!(text(), "60\n");
    assert!(on(&|| Err(Failed::Stopped)).is_err());
    assert_eq!(text(), "60\n");
    let panicked = std::panic::catch_unwind(|| {
        let root = Root::at(folder.path());
        let ends = || -> Result<(), Failed> { panic!("ended") };
        with_settings(&root, &cpus, Profile::Latency, &["swappiness"], ends)
    });
    assert!(panicked.is_err());
    assert_eq!(text(), "60\n");
}

/// Writes a results folder of a synthetic machine.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let settings = names().into_iter().map(|name| Switched {
        name,
        off: "0".to_string(),
        on: "1".to_string(),
    });
    let facts = Facts {
        device: "memif idle".to_string(),
        rate_pps: 200e3,
        cpus: "1".to_string(),
        profile: Some(Profile::Latency),
        settings: settings.collect(),
        fixed: vec![Fixed {
            name: "tickless".to_string(),
            why: "only at boot: nohz_full=1".to_string(),
        }],
        cases: Case::all(&names()).unwrap(),
    };
    let head = crate::made_up::head(Ablation::DESCRIPTION.schema, facts);
    write_json(&dir.path().join(Ablation::DESCRIPTION.head), &head).unwrap();
    std::fs::create_dir(dir.path().join("trials")).unwrap();
    for outcome in machine([0.5, 1.0, 1.0, 1.0], 3, &mut random) {
        let name = format!("trials/{}-{}.json", outcome.case, outcome.repetition);
        write_json(&dir.path().join(name), &outcome).unwrap();
    }
    dir
}

#[test]
fn the_page_names_settings_that_matter_and_those_not_switched() {
    let dir = folder();
    let shown = taut_bench::benchmark::show::<Ablation>(dir.path(), None).unwrap();
    let page = std::fs::read_to_string(&shown.page).unwrap();
    for part in [
        "p99.999: governor lowers it to",
        "energy: no data (no RAPL here)",
        "only at boot: nohz_full=1",
        "Which settings matter on this machine",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(shown.text.contains("governor"), "{}", shown.text);
    let summary = std::fs::read_to_string(dir.path().join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["effects"].as_array().unwrap().len(), 12);
    assert_eq!(summary["effects"][0]["verdict"], "lowers");
}

#[test]
fn malicious_ablation_folders_reach_nothing_outside() {
    crate::strangers::check(folder().path(), |dir| {
        taut_bench::benchmark::show::<Ablation>(dir, None).map(|shown| shown.page)
    });
}
