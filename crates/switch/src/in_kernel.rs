//! The rules of a switch that XDP programs apply: rules that send frames unchanged, or with other MAC addresses. The
//! worker applies all other rules.

use super::action::{Action, To};
use super::control::{Control, Rule};
use super::key::{Field, Key};
use super::settings::{Checked, Miss, Settings};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use taut_function::{SettingsError, UpcallVersion, settings};
use taut_xdp::switch::{KernelSwitch, MOST_RULES, SwitchRule, Verdict};

/// The XDP programs of the switch; none if frames do not pass in the kernel.
pub(super) type Kernel = Option<Arc<KernelSwitch>>;

pub(super) const UPCALL: UpcallVersion = UpcallVersion {
    check: |table| rules(table, 0).map(drop),
    make: |table, ports, shared| {
        let (rules, reads_headers) = rules(table, ports)?;
        let switch = Arc::new(KernelSwitch::new(&rules, reads_headers, ports)?);
        shared.lock(|kernel: &mut Kernel| *kernel = Some(Arc::clone(&switch)));
        Ok(switch)
    },
};

/// Returns the rules for the kernel, in order of evaluation. The flag is true if the rules compare other fields than
/// ports and MAC addresses. `ports` is the number of ports of the switch, 0 if it is unknown.
///
/// # Errors
/// Returns the error in the settings, or the part of the rules that the kernel does not support.
pub(super) fn rules(
    table: toml::Table,
    ports: usize,
) -> Result<(Vec<SwitchRule>, bool), SettingsError> {
    let read: Settings = settings(table)?;
    let no = |text: &str| Err(SettingsError(text.to_string()));
    if read.openflow.is_some() || read.controller.is_some() {
        return no(
            "openflow: in the kernel, rules come from the file; leave `openflow` and `controller` out",
        );
    }
    let Checked { control, miss, .. } = read.check()?;
    let Some(control) = control else {
        return no("rule: the kernel does not learn addresses; give a rule");
    };
    if control.is_timed() {
        return no(
            "idle_timeout: in the kernel, rules do not expire; leave it and `hard_timeout` out",
        );
    }
    let rules = in_order(&control, miss, ports);
    if rules.len() > MOST_RULES {
        return Err(SettingsError(format!(
            "rule: the maximum in the kernel is {}",
            MOST_RULES - 1
        )));
    }
    let asked = rules
        .iter()
        .fold(Key::default(), |asked, rule| asked.or(&Key(rule.mask)));
    Ok((rules, !asked.is_outermost()))
}

/// Returns the rules of the first table in descending order of priority, followed by a rule for unmatched frames.
fn in_order(control: &Control, miss: Miss, ports: usize) -> Vec<SwitchRule> {
    let of_first = control.rules().map(|(_, kept)| &kept.rule);
    let mut rules: Vec<&Rule> = of_first.filter(|rule| rule.table == 0).collect();
    rules.sort_by_key(|rule| Reverse(rule.priority));
    let rules = rules.into_iter().map(|rule| SwitchRule {
        value: rule.value.0,
        mask: rule.mask.0,
        verdict: verdict(rule, ports),
    });
    let miss = SwitchRule {
        value: Key::default().0,
        mask: Key::default().0,
        verdict: match miss {
            Miss::Drop => Verdict::Miss,
            Miss::Normal | Miss::Controller => Verdict::Up,
        },
    };
    rules.chain([miss]).collect()
}

fn verdict(rule: &Rule, ports: usize) -> Verdict {
    let (mut destination, mut source) = (None, None);
    let mut actions = rule.does.apply.as_slice();
    while let [Action::Set(field, _, value), rest @ ..] = actions {
        let [_, _, mac @ ..] = (*value as u64).to_be_bytes();
        match field {
            Field::EthDestination => destination = Some(mac),
            Field::EthSource => source = Some(mac),
            _ => return Verdict::Up,
        }
        actions = rest;
    }
    let in_port = (rule.mask.get(Field::InPort) == Field::InPort.whole())
        .then(|| rule.value.get(Field::InPort));
    match actions {
        [Action::Output(To::Port(port), _)]
            if in_port.is_some_and(|it| it != u128::from(*port)) =>
        {
            Verdict::Send {
                port: u32::from(*port),
                destination,
                source,
            }
        }
        // Outputs to all other ports have the effect of a flood.
        outputs
            if is_all_others(outputs, in_port, ports)
                && destination.is_none()
                && source.is_none() =>
        {
            Verdict::Flood
        }
        [Action::Output(To::Flood, _)] if destination.is_none() && source.is_none() => {
            Verdict::Flood
        }
        [] if destination.is_none() && source.is_none() => Verdict::Drop,
        // These actions include outputs that could lead back to the ingress port.
        _ => Verdict::Up,
    }
}

/// Returns true if the only effect of the actions is that packets from port `in_port` are sent through all other ports.
fn is_all_others(actions: &[Action], in_port: Option<u128>, ports: usize) -> bool {
    let outputs = actions.iter().map(|action| match action {
        Action::Output(To::Port(port), _) => Some(u128::from(*port)),
        _ => None,
    });
    let outputs: Option<BTreeSet<u128>> = outputs.collect();
    let (Some(outputs), Some(in_port)) = (outputs, in_port) else {
        return false;
    };
    let others = (0..ports as u128).filter(|port| *port != in_port);
    ports > 2 && outputs.len() == actions.len() && outputs.into_iter().eq(others)
}
