//! Verdicts on the claims of an experiment under each perturbation, and the claims whose verdict flips.

use super::{BASELINE, Margin, Perturbation, Point, Robust};
use crate::error::ExperimentError;
use crate::evaluate::formula::{Formulas, of_perturbation};
use crate::evaluate::selection::Runs;
use crate::evaluate::verdict::{Verdict, VerdictKind, verdict};
use crate::experiment::Experiment;
use crate::folder::Folder;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write;
use taut_measure::quantity::{counted, plain};
use taut_results::{write_json, write_whole};

/// Robustness of an experiment: its claims under each perturbation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Robustness {
    /// Version of the layout of `robustness.json`.
    pub schema: u32,
    /// The result of all perturbations in a sentence.
    pub lead: String,
    /// The perturbations, and those that were skipped.
    pub robust: Robust,
    /// Number of repetitions of the baseline, the unperturbed experiment.
    pub repetitions: u32,
    /// The claims of the experiment, with their outcomes.
    pub claims: Vec<JudgedClaim>,
}

/// The outcomes of a claim under each perturbation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JudgedClaim {
    /// Text of the claim.
    pub text: String,
    /// The published result, as text; empty for a claim of the experiment's own.
    pub published: String,
    /// The condition of the claim that is tested.
    pub condition: String,
    /// The result for the claim in the unperturbed experiment.
    pub before: Tested,
    /// The results for the claim, one for each perturbation.
    pub after: Vec<Tested>,
}

/// The result for a claim under one perturbation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Tested {
    /// Name of the perturbation; `none` for the unperturbed experiment.
    pub perturbation: String,
    /// The outcome for the claim, compared with the unperturbed experiment.
    pub outcome: Outcome,
    /// Verdict on the claim under this perturbation.
    pub verdict: VerdictKind,
    /// Value of the claim's formula.
    pub value: Option<f64>,
    /// Confidence interval of the value.
    pub interval: Option<[f64; 2]>,
    /// Number of repetitions that the value is based on.
    pub repetitions: usize,
    /// Margin of the claim: distance from the interval of the value to the bound of the condition.
    pub margin: Option<Margin>,
    /// Reason why there is no verdict; empty if there is one.
    pub note: String,
}

/// Result of comparing the verdicts on a claim with and without a perturbation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The condition of the claim is met both with and without the perturbation.
    Holds,
    /// The condition is met neither with nor without the perturbation.
    Fails,
    /// The condition is met either only with or only without the perturbation.
    Flips,
    /// Only a part of the value's confidence interval meets the condition, with or without the perturbation.
    Unclear,
    /// The claim's formula has no value, or other programs disturbed the runs.
    NoData,
}

impl Outcome {
    /// Returns the outcome in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Flips => "flips",
            Self::Unclear => "unclear",
            Self::NoData => "no data",
        }
    }

    /// Returns the CSS class of the outcome's cell on a page.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Holds => "good",
            Self::Flips => "bad",
            Self::Fails | Self::Unclear | Self::NoData => "open",
        }
    }

    /// Returns the outcome for a claim from its verdicts without and with the perturbation.
    fn of(before: VerdictKind, after: VerdictKind) -> Self {
        match (is_met(before), is_met(after)) {
            (Ok(true), Ok(true)) => Self::Holds,
            (Ok(false), Ok(false)) => Self::Fails,
            (Ok(_), Ok(_)) => Self::Flips,
            (_, Err(after)) => after,
            (Err(before), _) => before,
        }
    }
}

/// Returns whether the condition of a claim is met; if that is unknown, the error is the outcome to report.
fn is_met(kind: VerdictKind) -> Result<bool, Outcome> {
    match kind {
        VerdictKind::Same | VerdictKind::SameDirection | VerdictKind::Holds => Ok(true),
        VerdictKind::Opposite | VerdictKind::Fails => Ok(false),
        VerdictKind::Unclear => Err(Outcome::Unclear),
        VerdictKind::NoData | VerdictKind::NotMeasured => Err(Outcome::NoData),
    }
}

impl Tested {
    fn of(perturbation: &str, verdict: &Verdict, before: VerdictKind) -> Self {
        let outcome = Outcome::of(before, verdict.verdict);
        Self {
            perturbation: perturbation.to_owned(),
            outcome,
            verdict: verdict.verdict,
            value: verdict.value,
            interval: verdict.interval,
            repetitions: verdict.repetitions,
            margin: Margin::of(verdict),
            note: if verdict.verdict.is_told() {
                String::new()
            } else {
                verdict.note.clone()
            },
        }
    }

    /// Returns outcome and margin as text: `holds +35 %`.
    pub fn cell(&self) -> String {
        match self.margin {
            Some(margin) => format!("{} {margin}", self.outcome.name()),
            None => self.outcome.name().to_owned(),
        }
    }

    /// Returns the value with its interval, as text.
    pub fn here(&self) -> String {
        match (self.value, self.interval) {
            (Some(value), Some([low, high])) => {
                format!("{} ({} to {})", plain(value), plain(low), plain(high))
            }
            (Some(value), None) => plain(value),
            (None, _) => "–".to_owned(),
        }
    }
}

impl JudgedClaim {
    /// Returns the results under the perturbations that reverse the outcome of the claim (it flips).
    pub fn flips(&self) -> impl Iterator<Item = &Tested> {
        self.after.iter().filter(|it| it.outcome == Outcome::Flips)
    }
}

impl Robustness {
    /// Version of the layout of `robustness.json` that this program writes.
    pub const SCHEMA: u32 = 1;

    /// Judges the claims of an experiment under each perturbation; `None` if it has no perturbations.
    pub(crate) fn of(experiment: &Experiment, runs: &Runs) -> Option<Self> {
        let robust = experiment.robust.as_ref()?;
        let repetitions = experiment.definition.plan.repetitions;
        let baseline = of_perturbation(experiment, runs, BASELINE, None);
        let points: Vec<(&Point, Formulas)> = robust
            .points
            .iter()
            .map(|point| match point.of_baseline(repetitions) {
                Some(fewer) => (
                    point,
                    of_perturbation(experiment, runs, BASELINE, Some(fewer)),
                ),
                None => (point, of_perturbation(experiment, runs, &point.name, None)),
            })
            .collect();
        let claims = experiment.definition.claim.iter().map(|claim| {
            let before = verdict(&baseline, claim);
            let kind = before.verdict;
            let after = points
                .iter()
                .map(|(point, formulas)| Tested::of(&point.name, &verdict(formulas, claim), kind));
            JudgedClaim {
                text: claim.text.clone(),
                published: claim.published_text(),
                condition: claim.condition(),
                after: after.collect(),
                before: Tested::of(BASELINE, &before, kind),
            }
        });
        let claims: Vec<JudgedClaim> = claims.collect();
        Some(Self {
            schema: Self::SCHEMA,
            lead: lead(&claims, robust),
            robust: robust.clone(),
            repetitions,
            claims,
        })
    }

    /// Writes `robustness.json`, `robustness.csv` and `robustness.md` into a results folder.
    pub(crate) fn write(&self, folder: &Folder) -> Result<(), ExperimentError> {
        let dir = folder.path();
        write_json(&dir.join("robustness.json"), self)?;
        write_whole(&dir.join("robustness.csv"), self.csv().as_bytes())?;
        Ok(write_whole(
            &dir.join("robustness.md"),
            self.markdown().as_bytes(),
        )?)
    }

    /// Returns the number of outcomes that are equal in both results, and the number of outcomes that exist in both.
    pub(crate) fn agreement(&self, other: &Self) -> [usize; 2] {
        let mut counts = [0; 2];
        let known = |tested: &Tested| {
            matches!(
                tested.outcome,
                Outcome::Holds | Outcome::Fails | Outcome::Flips
            )
        };
        for (here, there) in self.claims.iter().zip(&other.claims) {
            for (here, there) in here.after.iter().zip(&there.after) {
                if known(here) && known(there) {
                    counts[1] += 1;
                    counts[0] += usize::from(here.outcome == there.outcome);
                }
            }
        }
        counts
    }

    /// Returns each claim that flips, with the perturbation under which it flips.
    pub fn flips(&self) -> impl Iterator<Item = (&JudgedClaim, &Tested)> {
        let claims = self.claims.iter();
        claims.flat_map(|claim| claim.flips().map(move |tested| (claim, tested)))
    }

    /// Returns the outcomes as CSV, with one line per claim and perturbation.
    fn csv(&self) -> String {
        let mut out = csv::Writer::from_writer(Vec::new());
        let head = [
            "claim",
            "perturbation",
            "outcome",
            "verdict",
            "value",
            "low",
            "high",
            "repetitions",
            "condition",
            "bound",
            "margin",
            "margin_share",
        ];
        let number = |value: Option<f64>| value.map_or_else(String::new, |it| it.to_string());
        // Writing to memory does not fail.
        let _ = out.write_record(head);
        for claim in &self.claims {
            for tested in std::iter::once(&claim.before).chain(&claim.after) {
                let [low, high] = tested.interval.map_or([None; 2], |it| it.map(Some));
                let margin = tested.margin;
                let _ = out.write_record([
                    claim.text.clone(),
                    tested.perturbation.clone(),
                    tested.outcome.name().to_owned(),
                    tested.verdict.name().to_owned(),
                    number(tested.value),
                    number(low),
                    number(high),
                    tested.repetitions.to_string(),
                    claim.condition.clone(),
                    number(margin.map(|it| it.bound)),
                    number(margin.map(|it| it.distance)),
                    number(margin.and_then(|it| it.share)),
                ]);
            }
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }

    /// Returns the result as Markdown: a sentence, and a table with a row per perturbation and a column per claim.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n\n", self.lead);
        for (number, claim) in self.claims.iter().enumerate() {
            let _ = writeln!(
                text,
                "{}. {} (`{}`)",
                number + 1,
                claim.text,
                claim.condition
            );
        }
        text.push_str("\n| Perturbation |");
        for number in 1..=self.claims.len() {
            let _ = write!(text, " {number} |");
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(self.claims.len()));
        for row in self.rows() {
            let name = row[0].perturbation.replace('|', "\\|");
            let _ = write!(text, "\n| {name} |");
            for tested in row {
                let _ = write!(text, " {} |", tested.cell());
            }
        }
        text.push('\n');
        text
    }

    /// Returns the outcomes, one row per perturbation and one entry per claim. The first row is without perturbation;
    /// single perturbations and then pairs follow.
    pub fn rows(&self) -> Vec<Vec<&Tested>> {
        let points = self.claims.first().map_or(0, |claim| claim.after.len());
        let before = self.claims.iter().map(|claim| &claim.before).collect();
        let after = (0..points).map(|index| {
            let claims = self.claims.iter();
            claims.filter_map(|claim| claim.after.get(index)).collect()
        });
        std::iter::once(before)
            .chain(after)
            .filter(|row: &Vec<&Tested>| !row.is_empty())
            .collect()
    }
}

impl std::fmt::Display for Robustness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, claim) in self.claims.iter().enumerate() {
            writeln!(f, "{}. {} [{}]", number + 1, claim.text, claim.condition)?;
        }
        let mut table = taut_figure::table::plain();
        let numbers = (1..=self.claims.len()).map(|number| number.to_string());
        table.set_header(std::iter::once("perturbation".to_owned()).chain(numbers));
        for row in self.rows() {
            let cells = row.iter().map(|tested| tested.cell());
            table.add_row(std::iter::once(row[0].perturbation.clone()).chain(cells));
        }
        taut_figure::table::set_columns(&mut table, None);
        let width = taut_figure::table::terminal_width();
        writeln!(f, "{}", taut_figure::table::text(table, &[], width))?;
        for (claim, after) in self.flips() {
            writeln!(
                f,
                "flips under {}: {}: {} {}, then {} {}",
                after.perturbation,
                claim.text,
                claim.before.here(),
                claim.before.verdict.name(),
                after.here(),
                after.verdict.name()
            )?;
        }
        write!(f, "{}", self.lead)
    }
}

fn lead(claims: &[JudgedClaim], robust: &Robust) -> String {
    let told: Vec<&JudgedClaim> = claims
        .iter()
        .filter(|claim| is_met(claim.before.verdict).is_ok())
        .collect();
    let stable = |claim: &&&JudgedClaim| {
        claim
            .after
            .iter()
            .all(|it| matches!(it.outcome, Outcome::Holds | Outcome::Fails))
    };
    let flip = |claim: &&&JudgedClaim| claim.flips().next().is_some();
    let (stable, flip) = (
        told.iter().filter(stable).count(),
        told.iter().filter(flip).count(),
    );
    let pairs = robust.points.iter().filter(|point| point.is_pair()).count();
    let mut lead = format!(
        "Of {} {} with a verdict, {stable} {} the same under all of {} and {}; {flip} {} under at least one; {} unclear \
         or without data under some.",
        told.len(),
        if told.len() == 1 { "claim" } else { "claims" },
        if stable == 1 { "is" } else { "are" },
        counted(robust.points.len() - pairs, "single perturbation"),
        counted(pairs, "pair"),
        if flip == 1 { "flips" } else { "flip" },
        match told.len() - stable - flip {
            1 => "1 is".to_owned(),
            count => format!("{count} are"),
        },
    );
    let open = claims.len() - told.len();
    if open > 0 {
        let _ = write!(
            lead,
            " Without a verdict in the experiment as it is: {open}."
        );
    }
    let of_seed = robust
        .points
        .iter()
        .filter(|point| point.changes == [Perturbation::Seed]);
    for seed in of_seed {
        let by_chance = claims.iter().flat_map(JudgedClaim::flips);
        let by_chance = by_chance.filter(|it| it.perturbation == seed.name).count();
        if by_chance > 0 {
            let _ = write!(
                lead,
                " {by_chance} {} under {} alone: not repeatable here.",
                if by_chance == 1 { "flips" } else { "flip" },
                seed.name
            );
        }
    }
    lead
}
