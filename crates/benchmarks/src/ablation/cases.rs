//! The settings that can be switched on this machine, and the cases: the sets of settings that are on in a trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use taut_host::tune::{self, Finding, Outcome, Profile, Root, State, TuneError};
use taut_measure::screening;

/// A setting that trials switch on and off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// The name of the setting, as `taut tune explain` knows it.
    pub name: String,
    /// The value of the setting when it is off: as the machine was found.
    pub off: String,
    /// The value of the setting when it is on: the one that the profile wants.
    pub on: String,
}

/// A setting that cannot be switched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fixed {
    /// The name of the setting.
    pub name: String,
    /// The reason why the setting cannot be switched.
    pub why: String,
}

/// A set of settings that are on in a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The name of the case: `as-found`, `alone-` and a setting, or `design-` and the number of a run.
    pub name: String,
    /// The names of the settings that are on.
    pub on: Vec<String>,
}

/// The name of the case in which no setting is on.
pub const AS_FOUND: &str = "as-found";

impl Case {
    /// Returns the name of the case in which only `setting` is on.
    pub fn alone(setting: &str) -> String {
        format!("alone-{setting}")
    }

    /// Returns the name of the case for a run of the screening design, counted from 0.
    pub fn in_design(run: usize) -> String {
        format!("design-{:03}", run + 1)
    }

    /// Returns the cases of a repetition: no setting on, each setting alone, and the runs of the screening design; none
    /// if `settings` is empty.
    pub fn all(settings: &[String]) -> Option<Vec<Self>> {
        let design = screening::design(settings.len())?;
        let as_found = Self {
            name: AS_FOUND.to_string(),
            on: Vec::new(),
        };
        let alone = settings.iter().map(|setting| Self {
            name: Self::alone(setting),
            on: vec![setting.clone()],
        });
        let runs = design.iter().enumerate().map(|(at, run)| Self {
            name: Self::in_design(at),
            on: run
                .iter()
                .zip(settings)
                .filter(|(is_on, _)| **is_on)
                .map(|(_, setting)| setting.clone())
                .collect(),
        });
        Some(std::iter::once(as_found).chain(alone).chain(runs).collect())
    }
}

/// Returns the settings that can be switched for `cpus`, and all others with the reason. To find out, each setting is
/// changed and restored once. `only` contains the names of the requested settings; if it is empty, all settings are
/// requested.
///
/// # Errors
/// The settings cannot be read, or this user may not change them.
pub fn switchable(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    only: &[String],
) -> Result<(Vec<Settings>, Vec<Fixed>), TuneError> {
    let with_steps = tune::plan(root, cpus, profile)?;
    let changes = |name: &str| {
        let found = with_steps.iter().find(|finding| finding.name == name);
        found.is_some_and(|finding| finding.commands().next().is_some())
    };
    let (mut settings, mut fixed) = (Vec::new(), Vec::new());
    for finding in tune::audit(root, cpus, profile)?.findings {
        if !only.is_empty() && !only.contains(&finding.name) {
            continue;
        }
        let refused = match changes(&finding.name) {
            false => Some(reason(&finding)),
            true => refusal(root, cpus, profile, &finding.name)?,
        };
        match refused {
            Some(why) => fixed.push(Fixed {
                name: finding.name,
                why,
            }),
            None => settings.push(Settings {
                name: finding.name,
                off: finding.now,
                on: finding.wanted,
            }),
        }
    }
    for surplus in settings.drain(settings.len().min(screening::MOST_FACTORS)..) {
        let most = screening::MOST_FACTORS;
        fixed.push(Fixed {
            name: surplus.name,
            why: format!("a design has at most {most} settings; choose with --only"),
        });
    }
    Ok((settings, fixed))
}

/// Changes and restores a setting. Returns the kernel's reason if it refused, otherwise none.
fn refusal(
    root: &Root,
    cpus: &BTreeSet<usize>,
    profile: Profile,
    name: &str,
) -> Result<Option<String>, TuneError> {
    let applied = tune::apply_only(root, cpus, profile, &[name]);
    let reverted = tune::revert(root)?;
    let mut refused = applied?
        .groups
        .into_iter()
        .filter_map(|(_, outcome)| match outcome {
            Outcome::Refused(why) => Some(why),
            _ => None,
        });
    Ok(refused
        .next()
        .or_else(|| reverted.refused.into_iter().next()))
}

/// Returns the reason why a setting cannot be switched at run time.
fn reason(finding: &Finding) -> String {
    match finding.state {
        State::NotHere => format!("not on this machine: {}", finding.now),
        State::Unknown => format!("its value is unknown: {}", finding.now),
        State::Ok => format!("on as the machine was found: {}", finding.now),
        State::Bad if !finding.change_at_boot.is_empty() => {
            format!("only at boot: {}", finding.change_at_boot.join(" "))
        }
        State::Bad if !finding.change_now.is_empty() => {
            format!("only by hand: {}", finding.change_now.join("; "))
        }
        State::Bad if !finding.change_below.is_empty() => {
            format!("only below the kernel: {}", finding.change_below)
        }
        State::Bad => format!("cannot be changed: {}", finding.now),
    }
}
