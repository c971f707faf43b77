//! Applies settings at run time, and reverts them.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::journal::{self, Entry, Journal, JournalHeader};
use super::root::Root;
use super::setting::{Finding, Group, Profile, State};
use super::step::{Step, chosen};
use super::{TuneError, audit, platform};
use crate::cpu_list::format_cpu_list;

/// The result of applying one group of settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The settings were changed, with the number of changes.
    Changed(usize),
    /// All settings of the group already had the intended values.
    AlreadySo,
    /// This machine has no setting of this group.
    NothingHere,
    /// One change was refused, and earlier changes of this group were reverted.
    Refused(String),
}

/// The result of `apply`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The result for each group of settings, in the order in which the groups were applied.
    pub groups: Vec<(Group, Outcome)>,
    /// Notes for the user about applying the settings, one line each.
    pub notes: Vec<String>,
}

/// The result of `revert`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reverted {
    /// The number of changes that were reverted.
    pub restored: usize,
    /// Notes for the user about reverting the settings, one line each.
    pub notes: Vec<String>,
    /// Changes that could not be reverted; they stay in the journal.
    pub refused: Vec<String>,
}

/// Returns the findings of all settings that `apply` can change. Each finding has the steps that would change the
/// setting; none if the setting already has the intended value.
///
/// # Errors
/// [`TuneError::LastCpu`] if no CPU would be left for the system, and [`TuneError::NoCpus`].
pub fn plan(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
) -> Result<Vec<Finding>, TuneError> {
    let online = super::online(root)?;
    if online.is_subset(cpus) {
        return Err(TuneError::LastCpu {
            cpus: format_cpu_list(cpus),
            online: format_cpu_list(&online),
        });
    }
    let mut findings = audit(root, cpus, profile)?.findings;
    findings.retain(|finding| finding.can_be_applied);
    for finding in &mut findings {
        finding.steps.retain(|step| !step.is_done(root));
        if finding.state != State::Bad {
            finding.steps.clear();
        }
    }
    Ok(findings)
}

/// Changes everything that can be changed at run time, group by group. Before each change its old value is written to
/// the journal. Settings that already have the intended value are unchanged, so applying twice is the same as applying
/// once.
///
/// # Errors
/// [`TuneError`]; a refusal by the kernel is not an error, but the [`Outcome`] of its group.
pub fn apply(root: &Root, cpus: &BTreeSet<usize>, profile: Profile) -> Result<Applied, TuneError> {
    let findings = plan(root, cpus, profile)?;
    let mut applied = apply_findings(root, cpus, profile, &findings)?;
    note_what_works_against(root, cpus, profile, &mut applied.notes)?;
    Ok(applied)
}

/// Changes the settings with the given names as [`apply`] does, and no others.
///
/// # Errors
/// The errors of [`apply`].
pub fn apply_only(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    names: &[&str],
) -> Result<Applied, TuneError> {
    let mut findings = plan(root, cpus, profile)?;
    findings.retain(|finding| names.contains(&finding.name.as_str()));
    apply_findings(root, cpus, profile, &findings)
}

/// Makes the given changes through the journal, under the name `name`, all of them or none; [`revert`] undoes them.
/// `cpus` are the CPUs that the changes are for; the journal records them.
///
/// # Errors
/// The errors of [`apply`].
pub fn enact(
    root: &Root,
    cpus: &BTreeSet<usize>,
    name: &str,
    steps: Vec<Step>,
) -> Result<Outcome, TuneError> {
    let finding = Finding {
        name: name.to_owned(),
        group: Group::Isolation,
        state: State::Bad,
        now: String::new(),
        wanted: String::new(),
        change_now: Vec::new(),
        change_at_boot: Vec::new(),
        change_below: String::new(),
        why: String::new(),
        source: String::new(),
        can_be_applied: true,
        steps,
    };
    let applied = apply_findings(root, cpus, Profile::Latency, &[finding])?;
    let outcome = applied
        .groups
        .into_iter()
        .find(|(group, _)| *group == Group::Isolation);
    Ok(outcome.map_or(Outcome::NothingHere, |(_, outcome)| outcome))
}

/// Returns true if the journal has changes of this boot, which [`revert`] would undo.
///
/// # Errors
/// [`TuneError::NotAJournal`], [`TuneError::Journal`].
pub fn is_in_force(root: &Root) -> Result<bool, TuneError> {
    let (head, entries) = journal::read(root)?;
    Ok(head.is_some_and(|head| head.boot == journal::boot(root)) && !entries.is_empty())
}

fn apply_findings(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    findings: &[Finding],
) -> Result<Applied, TuneError> {
    if root.is_machine() && !crate::permissions::is_root() {
        let cpus = format_cpu_list(cpus);
        return Err(TuneError::NotRoot(format!("apply --cpus {cpus}")));
    }
    if let Some(profile) = platform::active_tuned(root) {
        return Err(TuneError::Tuned { profile });
    }
    let head = JournalHeader {
        boot: journal::boot(root),
        cpus: format_cpu_list(cpus),
        profile,
    };
    let mut journal = Journal::open(root)?;
    match &journal.head {
        Some(now) if now.boot == head.boot && *now != head => {
            return Err(TuneError::AppliedOtherwise {
                cpus: now.cpus.clone(),
                profile: format!("{:?}", now.profile).to_lowercase(),
            });
        }
        Some(now) if now.boot == head.boot => {}
        _ => journal.begin(head).map_err(|source| unkept(root, source))?,
    }
    let mut applied = Applied::default();
    for group in Group::ALL {
        let family: Vec<&Finding> = findings.iter().filter(|f| f.group == group).collect();
        let outcome = match family.is_empty() {
            true => Outcome::NothingHere,
            false => apply_group(root, &mut journal, &family, &mut applied.notes)?,
        };
        applied.groups.push((group, outcome));
    }
    if journal.entries.is_empty() {
        journal.remove().map_err(|source| unkept(root, source))?;
    }
    Ok(applied)
}

fn unkept(root: &Root, source: io::Error) -> TuneError {
    TuneError::Journal {
        path: root.path("/run/taut/tune.journal"),
        source,
    }
}

fn apply_group(
    root: &Root,
    journal: &mut Journal,
    family: &[&Finding],
    notes: &mut Vec<String>,
) -> Result<Outcome, TuneError> {
    let mut made: Vec<Entry> = Vec::new();
    let mut stay = 0;
    for finding in family {
        for step in &finding.steps {
            let refused =
                |e: &io::Error| format!("{}: {}: {}", finding.name, step.path(), reason(e));
            let entry = match step.now(root) {
                Ok(before) => Entry {
                    setting: finding.name.clone(),
                    group: finding.group,
                    step: step.clone(),
                    before,
                },
                Err(e) => {
                    return take_back(root, journal, &made, refused(&e));
                }
            };
            note_own_change(journal, &entry, notes);
            journal
                .note(entry.clone())
                .map_err(|source| unkept(root, source))?;
            match step.make(root) {
                Ok(()) => made.push(entry),
                Err(e) if finding.name == "irq-affinity" && is_managed(&e) => {
                    forget(root, journal, &entry)?;
                    stay += 1;
                }
                Err(e) => {
                    let why = refused(&e);
                    made.push(entry);
                    return take_back(root, journal, &made, why);
                }
            }
        }
    }
    if stay > 0 {
        notes.push(format!(
            "irq-affinity: of the interrupts, {stay} stay where they are, as the kernel manages them itself (at boot: isolcpus=managed_irq,domain,CPUS)"
        ));
    }
    Ok(match made.len() {
        0 => Outcome::AlreadySo,
        count => Outcome::Changed(count),
    })
}

/// Adds a note if a value that an earlier `apply` set has changed since.
fn note_own_change(journal: &Journal, entry: &Entry, notes: &mut Vec<String>) {
    // The last entry may be from an `apply` that was killed before it made the change.
    let earlier = journal
        .entries
        .split_last()
        .map_or(&[][..], |(_, earlier)| earlier);
    if matches!(entry.step, Step::Write { .. })
        && earlier.iter().any(|noted| noted.step == entry.step)
    {
        // `revert` still restores the value that the journal recorded first.
        notes.push(format!(
            "{}: {} had changed by itself to {} since it was applied; set again",
            entry.setting,
            entry.step.path(),
            chosen(&entry.before)
        ));
    }
}

/// Returns true if an error means that the kernel does not allow this interrupt to be moved.
fn is_managed(e: &io::Error) -> bool {
    const EPERM: i32 = 1;
    const EIO: i32 = 5;
    matches!(e.raw_os_error(), Some(EIO | EPERM))
}

/// Removes from the journal a change that was not made.
fn forget(root: &Root, journal: &mut Journal, entry: &Entry) -> Result<(), TuneError> {
    let mut entries = journal.entries.clone();
    entries.retain(|noted| noted.step != entry.step);
    journal.keep(entries).map_err(|source| unkept(root, source))
}

/// Undoes the changes made in a group, the last one first.
fn take_back(
    root: &Root,
    journal: &mut Journal,
    made: &[Entry],
    why: String,
) -> Result<Outcome, TuneError> {
    for entry in made.iter().rev() {
        // Changes that cannot be undone stay in the journal, and `revert` reports them.
        let first = journal
            .entries
            .iter()
            .find(|noted| noted.step == entry.step);
        let before = first.map_or(&entry.before, |noted| &noted.before).clone();
        if entry.step.undo(root, &before).is_ok() {
            forget(root, journal, entry)?;
        }
    }
    Ok(Outcome::Refused(why))
}

/// Returns the text of a system error, with an explanation for frequent errors of changing settings.
fn reason(e: &io::Error) -> String {
    match e.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "read-only (a container? apply on the host, or give the container a writable /sys and /proc)".to_owned()
        }
        ErrorKind::PermissionDenied => {
            "not permitted, although root (a container? apply on the host)".to_owned()
        }
        _ => e.to_string(),
    }
}

fn note_what_works_against(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    notes: &mut Vec<String>,
) -> Result<(), TuneError> {
    let findings = audit(root, cpus, profile)?.findings;
    let entrance = cpus
        .first()
        .and_then(|cpu| super::isolation::entrance(root, *cpu));
    if let Some(file) = entrance {
        notes.push(format!(
            "CPU {} is a partition of its own: taut enters it by itself; for other programs, in the shell that starts \
             them: echo $$ > {file}",
            format_cpu_list(cpus)
        ));
    }
    let left: Vec<&str> = findings
        .iter()
        .filter(|f| f.state == State::Bad && !f.change_at_boot.is_empty() && f.steps.is_empty())
        .map(|f| f.name.as_str())
        .collect();
    if !left.is_empty() {
        notes.push(format!(
            "only at boot: {}; see: taut tune apply --cpus {} --boot",
            left.join(", "),
            format_cpu_list(cpus)
        ));
    }
    Ok(())
}

/// Returns the steps that [`revert`] would undo, the last one first, with the old values.
///
/// # Errors
/// [`TuneError::NotAJournal`], [`TuneError::Journal`].
pub fn revert_plan(root: &Root) -> Result<Vec<String>, TuneError> {
    let (head, entries) = journal::read(root)?;
    if head.is_none_or(|head| head.boot != journal::boot(root)) {
        return Ok(Vec::new());
    }
    let command = |entry: &Entry| match &entry.step {
        Step::Write { path, .. } => format!("echo {} > {path}", chosen(&entry.before)),
        Step::Group { path, .. } => format!("rmdir {path}"),
        Step::Card {
            interface,
            letter,
            key,
            shown,
            ..
        } => Step::Card {
            interface: interface.clone(),
            letter: *letter,
            key: key.clone(),
            shown: shown.clone(),
            value: entry.before.clone(),
        }
        .command(),
        Step::Tasks { from, to } => Step::Tasks {
            from: to.clone(),
            to: from.clone(),
        }
        .command(),
        Step::Pause { path, .. } => format!("kill -CONT {}", path.trim_start_matches("/proc/")),
    };
    Ok(entries.iter().rev().map(command).collect())
}

/// Restores every value in the journal, the last change first.
///
/// # Errors
/// [`TuneError`]; changes that the kernel refuses are listed, and stay in the journal.
pub fn revert(root: &Root) -> Result<Reverted, TuneError> {
    if root.is_machine() && !crate::permissions::is_root() {
        return Err(TuneError::NotRoot("revert".to_owned()));
    }
    let mut journal = Journal::open(root)?;
    let mut reverted = Reverted::default();
    if journal.is_stale() {
        reverted.notes.push("the machine was started again since, which brought everything back: nothing is left to revert".to_owned());
        journal.remove().map_err(|source| unkept(root, source))?;
        return Ok(reverted);
    }
    let mut left = Vec::new();
    for entry in journal.entries.iter().rev() {
        let step = &entry.step;
        if let (
            Step::Write {
                path,
                value,
                format,
            },
            Ok(now),
        ) = (step, step.now(root))
            && now != entry.before
            && !format.is_same(&now, value)
        {
            reverted.notes.push(format!(
                "{}: {path} was set to {value}, had changed to {} since, and is {} again",
                entry.setting,
                chosen(&now),
                chosen(&entry.before)
            ));
        }
        match step.undo(root, &entry.before) {
            Ok(()) => reverted.restored += 1,
            // A removed device no longer has these settings.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                reverted
                    .notes
                    .push(format!("{}: {} is gone", entry.setting, step.path()));
            }
            Err(e) => {
                reverted.refused.push(format!(
                    "{}: {}: {}",
                    entry.setting,
                    step.path(),
                    reason(&e)
                ));
                left.push(entry.clone());
            }
        }
    }
    left.reverse();
    if left.is_empty() {
        journal.remove().map_err(|source| unkept(root, source))?;
    } else {
        journal.keep(left).map_err(|source| unkept(root, source))?;
    }
    Ok(reverted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::root::tests::tree;
    use super::super::step::pause;
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    const MACHINE: &[(&str, &str)] = &[
        ("/sys/devices/system/cpu/online", "0-3\n"),
        ("/proc/sys/kernel/random/boot_id", "first\n"),
        ("/proc/irq/9/smp_affinity", "f\n"),
        ("/proc/irq/10/smp_affinity", "1\n"),
        ("/proc/irq/default_smp_affinity", "f\n"),
        ("/proc/sys/kernel/timer_migration", "1\n"),
        ("/proc/sys/vm/swappiness", "60\n"),
        ("/proc/sys/vm/stat_interval", "1\n"),
        ("/sys/kernel/mm/ksm/run", "1\n"),
        ("/proc/sys/net/core/busy_poll", "0\n"),
    ];

    #[test]
    fn only_the_named_settings_are_applied_and_reverted() {
        let (_folder, root) = tree(MACHINE);
        let cpus = BTreeSet::from([3]);
        assert!(!is_in_force(&root).unwrap());
        apply_only(&root, &cpus, Profile::Latency, &["swappiness"]).unwrap();
        assert!(is_in_force(&root).unwrap());
        assert_ne!(root.raw("/proc/sys/vm/swappiness").unwrap(), "60\n");
        assert_eq!(root.raw("/sys/kernel/mm/ksm/run").unwrap(), "1\n");
        assert_eq!(revert(&root).unwrap().restored, 1);
        assert_eq!(root.raw("/proc/sys/vm/swappiness").unwrap(), "60\n");
        assert!(!is_in_force(&root).unwrap());
    }

    /// Returns every file of the synthetic file tree except the journal.
    fn files(folder: &Path) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(
                        path.display().to_string(),
                        fs::read_to_string(path).unwrap(),
                    );
                }
            }
        }
        found.retain(|path, _| !path.contains("/run/taut"));
        found
    }

    fn cpus() -> BTreeSet<usize> {
        BTreeSet::from([3])
    }

    fn changed(applied: &Applied) -> usize {
        let counts = applied.groups.iter().map(|(_, outcome)| match outcome {
            Outcome::Changed(count) => *count,
            _ => 0,
        });
        counts.sum()
    }

    #[test]
    fn irqbalance_is_paused_until_the_tuning_is_reverted() {
        let stat = "77 (irqbalance) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 0\n";
        let mut machine = MACHINE.to_vec();
        machine.extend([("/proc/77/comm", "irqbalance\n"), ("/proc/77/stat", stat)]);
        let (folder, root) = tree(&machine);
        let cpus = BTreeSet::from([2]);
        apply(&root, &cpus, Profile::Latency).unwrap();
        let state = || root.raw("/proc/77/stat").unwrap();
        assert!(state().starts_with("77 (irqbalance) T 1 "), "{}", state());
        assert!(
            revert_plan(&root)
                .unwrap()
                .contains(&"kill -CONT 77".to_owned())
        );
        // Applying twice equals applying once.
        apply(&root, &cpus, Profile::Latency).unwrap();
        assert!(revert(&root).unwrap().refused.is_empty());
        assert_eq!(state(), stat);
        // Before this revert, the daemon has exited and another process has got its number. `revert` must not continue
        // that process.
        apply(&root, &cpus, Profile::Latency).unwrap();
        let other = stat.replace("4242", "9999").replace(") S", ") T");
        fs::write(folder.path().join("proc/77/stat"), &other).unwrap();
        assert!(revert(&root).unwrap().refused.is_empty());
        assert_eq!(state(), other);
    }

    #[test]
    fn a_paused_process_continues_after_the_revert() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let root = Root::machine();
        let step = pause(&root, child.id()).unwrap();
        let before = step.now(&root).unwrap();
        step.make(&root).unwrap();
        let begun = std::time::Instant::now();
        while step.now(&root).unwrap() != "T" {
            assert!(begun.elapsed().as_secs() < 20);
            std::thread::yield_now();
        }
        assert!(step.is_done(&root));
        step.undo(&root, &before).unwrap();
        while step.now(&root).unwrap() == "T" {
            assert!(begun.elapsed().as_secs() < 20);
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(step.now(&root).unwrap(), "gone");
    }

    #[test]
    fn a_repeated_tuning_changes_nothing_and_revert_restores_every_byte() {
        let (folder, root) = tree(MACHINE);
        let before = files(folder.path());
        let applied = apply(&root, &cpus(), Profile::Latency).unwrap();
        assert_eq!(changed(&applied), 7, "{applied:?}");
        assert_eq!(root.text("/proc/irq/9/smp_affinity").unwrap(), "7");
        assert_eq!(root.text("/proc/irq/10/smp_affinity").unwrap(), "1");
        let after = files(folder.path());
        let again = apply(&root, &cpus(), Profile::Latency).unwrap();
        assert_eq!((changed(&again), files(folder.path())), (0, after));
        let reverted = revert(&root).unwrap();
        assert_eq!((reverted.restored, reverted.refused.len()), (7, 0));
        assert_eq!(files(folder.path()), before);
        assert_eq!(revert(&root).unwrap().restored, 0);
    }

    #[test]
    fn the_shared_profile_leaves_machine_wide_settings_unchanged() {
        let (_folder, root) = tree(MACHINE);
        apply(&root, &cpus(), Profile::Shared).unwrap();
        assert_eq!(root.text("/proc/irq/9/smp_affinity").unwrap(), "7");
        assert_eq!(root.text("/proc/sys/vm/swappiness").unwrap(), "60");
        assert_eq!(root.text("/proc/sys/kernel/timer_migration").unwrap(), "1");
    }

    /// Simulates a `kill -9` after each number of changes: between the journal entry and the change, and after the
    /// change.
    #[test]
    fn revert_restores_all_settings_after_a_kill_at_any_change() {
        for made in 0..7 {
            for last_is_made in [false, true] {
                let (folder, root) = tree(MACHINE);
                let before = files(folder.path());
                let plan = plan(&root, &cpus(), Profile::Latency).unwrap();
                let steps: Vec<_> = plan
                    .iter()
                    .flat_map(|f| f.steps.iter().map(move |s| (f, s)))
                    .collect();
                let mut journal = Journal::open(&root).unwrap();
                let head = JournalHeader {
                    boot: "first".into(),
                    cpus: "3".into(),
                    profile: Profile::Latency,
                };
                journal.begin(head).unwrap();
                for (at, (finding, step)) in steps.iter().take(made + 1).enumerate() {
                    let entry = Entry {
                        setting: finding.name.clone(),
                        group: finding.group,
                        step: (*step).clone(),
                        before: step.now(&root).unwrap(),
                    };
                    journal.note(entry).unwrap();
                    if at < made || last_is_made {
                        step.make(&root).unwrap();
                    }
                }
                drop(journal);
                assert!(revert(&root).unwrap().refused.is_empty());
                assert_eq!(files(folder.path()), before);
            }
        }
    }

    #[test]
    fn a_truncated_journal_line_counts_as_no_change() {
        let (folder, root) = tree(MACHINE);
        let before = files(folder.path());
        apply(&root, &cpus(), Profile::Latency).unwrap();
        let path = root.path("/run/taut/tune.journal");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"setting\":\"sw")).unwrap();
        assert!(revert(&root).unwrap().refused.is_empty());
        assert_eq!(files(folder.path()), before);
        // A line that is truncated in the middle of a character does not count as a change either. Later entries must
        // not be appended to the truncated line.
        for cut in [&b"{\"setting\":\"sw"[..], b"{\"setting\":\"\xc3"] {
            apply(&root, &cpus(), Profile::Latency).unwrap();
            let whole = fs::read(&path).unwrap();
            let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
            // The journal without its last line looks as if the last change had not been recorded, so `apply` records
            // it again.
            let noted = lines[..lines.len() - 1].concat();
            fs::write(&path, [&noted, cut].concat()).unwrap();
            apply(&root, &cpus(), Profile::Latency).unwrap();
            let mut journal = Journal::open(&root).unwrap();
            let entry = Entry {
                setting: "of a test".to_string(),
                ..journal.entries[0].clone()
            };
            journal.entries.clear();
            journal.note(entry).unwrap();
            drop(journal);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.lines().last().unwrap().contains("of a test"), "{text}");
            fs::write(&path, &whole).unwrap();
            assert!(revert(&root).unwrap().refused.is_empty());
            assert_eq!(files(folder.path()), before);
        }
        fs::write(&path, "hello\n").unwrap();
        assert!(matches!(
            revert(&root),
            Err(TuneError::NotAJournal { line: 1, .. })
        ));
    }

    #[test]
    fn after_a_reboot_nothing_is_left_to_revert() {
        let (folder, root) = tree(MACHINE);
        apply(&root, &cpus(), Profile::Latency).unwrap();
        fs::write(root.path("/proc/sys/kernel/random/boot_id"), "second\n").unwrap();
        let files_now = files(folder.path());
        let reverted = revert(&root).unwrap();
        assert!(
            reverted.notes[0].contains("nothing is left to revert"),
            "{reverted:?}"
        );
        assert_eq!((reverted.restored, files(folder.path())), (0, files_now));
    }

    #[test]
    fn a_group_of_settings_with_one_refused_change_stays_unchanged() {
        let (folder, root) = tree(MACHINE);
        // A value that cannot be read as a number is not checked; a folder in place of a file refuses the change.
        fs::remove_file(root.path("/proc/irq/default_smp_affinity")).unwrap();
        let before = files(folder.path());
        let mut journal = Journal::open(&root).unwrap();
        let head = JournalHeader {
            boot: "first".into(),
            cpus: "3".into(),
            profile: Profile::Latency,
        };
        journal.begin(head).unwrap();
        let mut family: Vec<Finding> = plan(&root, &cpus(), Profile::Latency).unwrap();
        family.retain(|f| f.group == Group::Interrupts);
        family
            .last_mut()
            .unwrap()
            .steps
            .push(Step::write("/proc/absent", "1"));
        let family: Vec<&Finding> = family.iter().collect();
        let outcome = apply_group(&root, &mut journal, &family, &mut Vec::new()).unwrap();
        assert!(
            matches!(&outcome, Outcome::Refused(why) if why.contains("/proc/absent")),
            "{outcome:?}"
        );
        assert_eq!(files(folder.path()), before);
        assert!(journal.entries.is_empty());
    }

    #[test]
    fn a_value_changed_by_another_program_is_reported() {
        let (_folder, root) = tree(MACHINE);
        apply(&root, &cpus(), Profile::Latency).unwrap();
        fs::write(root.path("/proc/sys/vm/swappiness"), "30\n").unwrap();
        let again = apply(&root, &cpus(), Profile::Latency).unwrap();
        assert!(
            again
                .notes
                .iter()
                .any(|n| n.contains("swappiness") && n.contains("30")),
            "{again:?}"
        );
        fs::write(root.path("/proc/sys/vm/swappiness"), "40\n").unwrap();
        let reverted = revert(&root).unwrap();
        assert!(
            reverted
                .notes
                .iter()
                .any(|n| n.contains("swappiness") && n.contains("40")),
            "{reverted:?}"
        );
        assert_eq!(root.text("/proc/sys/vm/swappiness").unwrap(), "60");
    }

    #[test]
    fn an_impossible_tuning_is_refused_before_any_setting_changes() {
        let (folder, root) = tree(MACHINE);
        let before = files(folder.path());
        let all = (0..4).collect();
        assert!(matches!(
            apply(&root, &all, Profile::Latency),
            Err(TuneError::LastCpu { .. })
        ));
        let number = std::process::id();
        fs::create_dir_all(root.path("/run/tuned")).unwrap();
        fs::create_dir_all(root.path("/etc/tuned")).unwrap();
        fs::create_dir_all(root.path(&format!("/proc/{number}"))).unwrap();
        fs::write(root.path("/run/tuned/tuned.pid"), format!("{number}\n")).unwrap();
        fs::write(root.path("/etc/tuned/active_profile"), "balanced\n").unwrap();
        let refused = apply(&root, &cpus(), Profile::Latency);
        assert!(
            matches!(refused, Err(TuneError::Tuned { .. })),
            "{refused:?}"
        );
        fs::remove_file(root.path("/run/tuned/tuned.pid")).unwrap();
        fs::remove_file(root.path("/etc/tuned/active_profile")).unwrap();
        assert_eq!(files(folder.path()), before);
        apply(&root, &cpus(), Profile::Latency).unwrap();
        let other = apply(&root, &BTreeSet::from([2]), Profile::Latency);
        assert!(
            matches!(other, Err(TuneError::AppliedOtherwise { .. })),
            "{other:?}"
        );
        let _held = Journal::open(&root).unwrap();
        assert!(matches!(revert(&root), Err(TuneError::Busy)));
    }
}
