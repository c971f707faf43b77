//! `taut tune`: shows and changes the settings of this machine that matter for latency, measures their effects and the
//! machine's noise.

mod ablate;
pub(crate) mod aliasing;
mod fit;
mod guard;
pub mod noise;

use crate::exit::Failure;
use crate::terminal::print;
use std::collections::BTreeSet;
use std::path::PathBuf;
use taut_host::tune::{
    self, Applied, Audit, BootLine, Finding, Outcome, Profile, Root, State, TuneError,
};

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Print the state of every setting that matters for latency, its cost, and how to change it
    Audit(AuditArguments),
    /// Change what can be changed at run time; every old value is written to a journal first
    Apply(ApplyArguments),
    /// Undo the changes of `taut tune apply`
    Revert(RevertArguments),
    /// Measure which settings matter here: each switched on and off, alone and together with others
    Ablate(ablate::Arguments),
    /// Find the most bulk load beside a latency-critical forwarder within a bound on its tail
    Fit(fit::Arguments),
    /// Keep CPUs and memory busy (the built-in load of fit)
    #[command(hide = true)]
    Bulk(fit::BulkArguments),
    /// Measure what interrupts a busy loop on these CPUs: how often, how long, the cause
    Noise(noise::Arguments),
    /// Simulate what periodic interrupts do to packets at a constant rate
    Aliasing(aliasing::Arguments),
    /// Print everything about a setting, or the names of all
    Explain(ExplainArguments),
}

#[derive(clap::Args)]
struct On {
    /// Profile: the goal of the settings
    #[arg(long, value_enum, default_value = "latency")]
    profile: ProfileName,
    /// Tree of proc, sys and run to work on, such as a copy from another machine, instead of those of this machine
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/",
        hide_default_value = true
    )]
    root: PathBuf,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut tune audit --cpus 1
  taut tune audit --cpus 2-5 --profile shared
  taut tune audit --check --json | jq -r '.findings[] | select(.state == \"bad\") | .name'

Changes nothing and needs no root; what only root can read is unknown without.")]
struct AuditArguments {
    /// CPUs to be quiet, such as 1 or 2-3,6; `device`: the CPU that measurements give to the device under test
    /// (default: the last one)
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    #[command(flatten)]
    on: On,
    /// Exit with code 1 if a setting is bad
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo taut tune apply --cpus 1
  taut tune apply --cpus 1 --dry-run      the commands that it would run
  taut tune apply --cpus 1 --boot         the kernel arguments for what only a boot can change

A group of settings is changed as a whole or not at all. What is as wanted already stays untouched. Values last until
taut tune revert or the next boot.")]
struct ApplyArguments {
    /// CPUs to be quiet, such as 1 or 2-3,6; `device`: the CPU that measurements give to the device under test; at
    /// least one CPU must remain for the system
    #[arg(long, value_name = "LIST")]
    cpus: String,
    #[command(flatten)]
    on: On,
    /// Print the commands and change nothing; needs no root
    #[arg(long)]
    dry_run: bool,
    /// Print the missing arguments of the kernel's command line, and where they go for GRUB and systemd-boot; not
    /// with --dry-run
    #[arg(long, conflicts_with = "dry_run")]
    boot: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  sudo taut tune revert

Works from the journal, so also after an apply that was killed midway. After a reboot there is nothing to revert.")]
struct RevertArguments {
    /// Print the commands and change nothing; needs no root
    #[arg(long)]
    dry_run: bool,
    /// Tree of proc, sys and run to work on, such as a copy from another machine, instead of those of this machine
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/",
        hide_default_value = true
    )]
    root: PathBuf,
    /// Wait for the end of the standard input before reverting
    #[arg(long, hide = true, conflicts_with = "dry_run")]
    at_end_of_input: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  taut tune explain irq-affinity")]
struct ExplainArguments {
    /// Name of a setting (default: list the names)
    setting: Option<String>,
    /// Print all settings as one page of Markdown; not with SETTING
    #[arg(long, conflicts_with = "setting")]
    all: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ProfileName {
    /// The shortest tail on the CPUs, whatever it costs in power, memory and others' speed
    Latency,
    /// The highest throughput
    Throughput,
    /// Quiet CPUs without harm to other users of the machine
    Shared,
}

impl From<ProfileName> for Profile {
    fn from(name: ProfileName) -> Self {
        match name {
            ProfileName::Latency => Self::Latency,
            ProfileName::Throughput => Self::Throughput,
            ProfileName::Shared => Self::Shared,
        }
    }
}

impl From<TuneError> for Failure {
    fn from(e: TuneError) -> Self {
        match e {
            TuneError::NotAList(_)
            | TuneError::NoSuchCpu { .. }
            | TuneError::LastCpu { .. }
            | TuneError::AppliedOtherwise { .. } => Self::Input(e.to_string()),
            other => Self::Missing(other.to_string()),
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Audit(arguments) => audit(arguments),
        What::Apply(arguments) => apply(arguments),
        What::Revert(arguments) => revert(arguments),
        What::Ablate(arguments) => ablate::run(arguments),
        What::Fit(arguments) => fit::run(arguments),
        What::Bulk(arguments) => fit::bulk(arguments),
        What::Noise(arguments) => noise::run(arguments),
        What::Aliasing(arguments) => aliasing::run(arguments),
        What::Explain(arguments) => explain(arguments),
    }
}

fn json(what: &impl serde::Serialize) {
    print::line(serde_json::to_string_pretty(what).unwrap_or_default());
}

fn audit(arguments: &AuditArguments) -> Result<(), Failure> {
    let root = Root::at(&arguments.on.root);
    let cpus = match &arguments.cpus {
        Some(list) => cpus_of(&root, list)?,
        None => tune::default_cpus(&root)?,
    };
    let audit = tune::audit(&root, &cpus, arguments.on.profile.into())?;
    if arguments.json {
        json(&audit);
    } else {
        print_audit(&audit);
    }
    match audit.bad() {
        bad if bad > 0 && arguments.check => {
            Err(Failure::Limit(format!("settings to improve: {bad}")))
        }
        _ => Ok(()),
    }
}

fn print_audit(audit: &Audit) {
    print::line(
        "By effect on latency, largest first: how long a setting delays packets, and how often.",
    );
    for finding in audit.by_effect() {
        print_finding(finding);
    }
    let count = |state| audit.findings.iter().filter(|f| f.state == state).count();
    print::line(format!(
        "\nCPU {}, profile {}: {} to improve, {} ok, {} unknown, {} not on this machine.",
        audit.cpus,
        format!("{:?}", audit.profile).to_lowercase(),
        count(State::Bad),
        count(State::Ok),
        count(State::Unknown),
        count(State::NotHere)
    ));
    if !audit.as_root {
        print::line("Without root some files cannot be read: sudo taut tune audit reports more.");
    }
    print::line(format!(
        "Change what can be changed now: sudo taut tune apply --cpus {}; explanations: taut tune explain NAME",
        audit.cpus
    ));
}

fn print_finding(finding: &Finding) {
    const SHOWN_COMMANDS: usize = 2;
    let change = match (finding.state, finding.wanted.as_str()) {
        (State::NotHere | State::Ok, _) | (_, "") => finding.now.clone(),
        (_, wanted) => format!("{}; wanted: {wanted}", finding.now),
    };
    print::line(format!(
        "  {:<9} {:<30} {change}",
        finding.state, finding.name
    ));
    if !matches!(finding.state, State::Bad | State::Unknown) {
        return;
    }
    let line = |title: &str, text: &str| print::line(format!("  {:<9}   {title:<8} {text}", ""));
    if finding.state == State::Bad {
        line("why", &finding.why);
    }
    for command in finding.change_now.iter().take(SHOWN_COMMANDS) {
        line("now", command);
    }
    if finding.change_now.len() > SHOWN_COMMANDS {
        let more = finding.change_now.len() - SHOWN_COMMANDS;
        line(
            "",
            &format!("and {more} more of this kind (taut tune apply --dry-run)"),
        );
    }
    if !finding.change_at_boot.is_empty() {
        line("boot", &finding.change_at_boot.join(" "));
    }
    if !finding.change_below.is_empty() {
        line("below", &finding.change_below);
    }
    line("source", &finding.source);
}

/// Parses a list of CPUs; `device` means the CPU that a device under test gets.
fn cpus_of(root: &Root, list: &str) -> Result<BTreeSet<usize>, Failure> {
    match list {
        "device" => Ok(BTreeSet::from([taut_host::choose_cores().device])),
        list => Ok(tune::online_cpus(root, list)?),
    }
}

fn apply(arguments: &ApplyArguments) -> Result<(), Failure> {
    let root = Root::at(&arguments.on.root);
    let cpus = cpus_of(&root, &arguments.cpus)?;
    let profile = arguments.on.profile.into();
    // The plan is made for --boot as well, because it rejects a list that leaves no CPU for the system.
    let plan = tune::plan(&root, &cpus, profile)?;
    if arguments.boot {
        let line = BootLine::of(&tune::audit(&root, &cpus, profile)?);
        if arguments.json {
            json(&line);
        } else {
            print::line(line.text());
        }
        return Ok(());
    }
    if arguments.dry_run {
        print_plan(&plan, arguments.json);
        return Ok(());
    }
    let applied = tune::apply(&root, &cpus, profile)?;
    if arguments.json {
        json(&applied);
    } else {
        print_applied(&applied, &cpus);
    }
    let refused: Vec<String> = applied
        .groups
        .iter()
        .filter_map(|(group, outcome)| match outcome {
            Outcome::Refused(why) => Some(format!("{group} ({why})")),
            _ => None,
        })
        .collect();
    match refused.len() {
        0 => Ok(()),
        _ => Err(Failure::Missing(format!(
            "not changed: {}",
            refused.join("; ")
        ))),
    }
}

fn print_plan(plan: &[Finding], as_json: bool) {
    let commands: Vec<String> = plan.iter().flat_map(Finding::commands).collect();
    if as_json {
        return json(&commands);
    }
    if commands.is_empty() {
        print::line("# nothing to change");
    }
    for finding in plan {
        let mut commands = finding.commands().peekable();
        if commands.peek().is_some() {
            print::line(format!("# {}", finding.name));
        }
        for command in commands {
            print::line(command);
        }
    }
}

fn print_applied(applied: &Applied, cpus: &BTreeSet<usize>) {
    for (group, outcome) in &applied.groups {
        let text = match outcome {
            Outcome::Changed(1) => "1 change".to_owned(),
            Outcome::Changed(count) => format!("{count} changes"),
            Outcome::AlreadySo => "already set".to_owned(),
            Outcome::NothingHere => "nothing to change on this machine".to_owned(),
            Outcome::Refused(why) => format!("not changed: {why}"),
        };
        print::line(format!("{:<11} {text}", group.to_string()));
    }
    for note in &applied.notes {
        print::line(format!("note: {note}"));
    }
    let first = cpus.first().copied().unwrap_or_default();
    print::line(format!(
        "\nUndo everything: sudo taut tune revert. Compare before and after: taut tune noise --cpus {first}"
    ));
}

fn revert(arguments: &RevertArguments) -> Result<(), Failure> {
    let root = Root::at(&arguments.root);
    if arguments.dry_run {
        let commands = tune::revert_plan(&root)?;
        if arguments.json {
            json(&commands);
        } else if commands.is_empty() {
            print::line("# nothing to revert");
        } else {
            print::line(commands.join("\n"));
        }
        return Ok(());
    }
    if arguments.at_end_of_input {
        guard::wait_for_end_of_input()?;
    }
    let reverted = tune::revert(&root)?;
    if arguments.json {
        json(&reverted);
    } else {
        for note in &reverted.notes {
            print::line(format!("note: {note}"));
        }
        print::line(match reverted.restored {
            0 => "nothing to revert".to_owned(),
            1 => "1 change reverted".to_owned(),
            count => format!("{count} changes reverted"),
        });
    }
    match reverted.refused.len() {
        0 => Ok(()),
        _ => Err(Failure::Missing(format!(
            "not reverted, and still in the journal: {}",
            reverted.refused.join("; ")
        ))),
    }
}

fn explain(arguments: &ExplainArguments) -> Result<(), Failure> {
    if arguments.all {
        print::line(tune::pages().trim_end());
        return Ok(());
    }
    let Some(name) = &arguments.setting else {
        for setting in tune::settings() {
            print::line(format!("{:<30} {}", setting.name, setting.what));
        }
        return Ok(());
    };
    let found = tune::settings().find(|setting| setting.name == name);
    let setting = found.ok_or_else(|| {
        Failure::Input(format!(
            "no setting is named `{name}`; taut tune explain lists all settings"
        ))
    })?;
    print::line(tune::page(setting).trim_end());
    Ok(())
}
