//! Makes commands from the tables `[device]`, `[traffic]` and `[measure]` of an experiment file; a user can type the
//! same command lines.

use crate::counters::Counter;
use crate::definition::{Definition, DeviceUnderTest, Measure, Quantity, Step, TrafficDefinition};
use crate::error::{ExperimentError, Source};
use indexmap::IndexMap;
use std::fmt::Write;
use toml::Spanned;

/// A command that each run executes, before its variables are filled in.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Name of the task in logs.
    pub(crate) name: String,
    /// Prefix of the names of the task's metrics; may be empty.
    pub(crate) prefix: String,
    /// Role of the node that runs the task; `None` if the experiment has only one node.
    pub(crate) node: Option<Spanned<String>>,
    pub(crate) run: Spanned<String>,
    pub(crate) background: bool,
    pub(crate) ready: Option<Spanned<String>>,
    /// Quantities that are counted while the task runs.
    pub(crate) counters: Vec<Counter>,
    pub(crate) json: bool,
    pub(crate) extract: IndexMap<String, Spanned<String>>,
    /// Exit codes other than 0 with which the task still has a result. Exit code 1 of taut means that a limit was not
    /// met.
    pub(crate) allowed: Vec<i32>,
}

/// Returns all commands of a run, in the order of execution.
pub(crate) fn tasks(
    definition: &Definition,
    source: &Source,
) -> Result<Vec<Task>, ExperimentError> {
    let mut tasks = Vec::new();
    if let Some(measure) = &definition.measure {
        measurements(definition, source, &measure.what, &mut tasks)?;
    } else if definition.device.is_some() || definition.traffic.is_some() {
        return Err(source.wrong_somewhere(
            "[device] and [traffic] are given, but nothing is measured: add [measure] with what = [\"latency\"]",
        ));
    }
    for (index, step) in definition.step.iter().enumerate() {
        tasks.push(of_step(step, index));
    }
    for task in &mut tasks {
        task.counters.extend(&definition.counters);
        task.counters.sort_unstable();
        task.counters.dedup();
    }
    if tasks.is_empty() {
        return Err(source.wrong_somewhere(
            "nothing is done in a run: add [device], [traffic] and [measure], or a [[step]]",
        ));
    }
    Ok(tasks)
}

fn of_step(step: &Step, index: usize) -> Task {
    Task {
        name: step
            .name
            .clone()
            .unwrap_or_else(|| format!("step-{}", index + 1)),
        prefix: step
            .name
            .as_ref()
            .map(|name| format!("{name}."))
            .unwrap_or_default(),
        node: step.node.clone(),
        run: step.run.clone(),
        background: step.background || step.ready.is_some(),
        ready: step.ready.clone(),
        counters: step.counters.clone(),
        json: step.json,
        extract: step.extract.clone(),
        allowed: Vec::new(),
    }
}

fn measurements(
    definition: &Definition,
    source: &Source,
    what: &[Quantity],
    tasks: &mut Vec<Task>,
) -> Result<(), ExperimentError> {
    let nothing = Default::default();
    let traffic = definition.traffic.as_ref().unwrap_or(&nothing);
    let device = definition.device.as_ref().ok_or_else(|| {
        source.wrong_somewhere("[measure] needs a [device] with an id or a chain")
    })?;
    if device.tap && !what.contains(&Quantity::Latency) {
        return Err(source.wrong_somewhere(
            "tap = true watches latency, and [measure] has none: add \"latency\" to `what`",
        ));
    }
    let (span, through) = match (&device.id, &device.chain) {
        (Some(id), None) => {
            if let Some(ports) = traffic.ports.first() {
                return Err(source.wrong(
                    ports.span(),
                    "a device with an id is set up with its ports: leave traffic.ports out",
                ));
            }
            (id.span(), format!("--device {}", quoted(id.get_ref())))
        }
        (None, Some(chain)) => {
            if traffic.ports.is_empty() || traffic.ports.len() > 2 {
                return Err(source.wrong(
                    chain.span(),
                    "a device with a chain file is reached through traffic.ports: one, or two",
                ));
            }
            tasks.push(forwarding(device, chain));
            (chain.span(), options_of_ports(traffic))
        }
        _ => return Err(source.wrong_somewhere("[device] has either an id or a chain")),
    };
    for quantity in what {
        if *quantity == Quantity::Comparison {
            check_comparison(definition, source, span.clone())?;
        }
        let run = command(definition, traffic, *quantity, &through);
        let run = Spanned::new(span.clone(), run);
        tasks.push(measurement(traffic, *quantity, run));
    }
    match &definition.measure {
        Some(measure) => check_options(measure, source),
        None => Ok(()),
    }
}

/// Returns the task that forwards packets through a chain file while other tasks measure.
fn forwarding(device: &DeviceUnderTest, chain: &Spanned<String>) -> Task {
    let span = chain.span();
    let run = format!("taut forward {}", quoted(chain.get_ref()));
    Task {
        name: "device".into(),
        prefix: String::new(),
        node: device
            .node
            .clone()
            .map(|node| Spanned::new(span.clone(), node)),
        run: Spanned::new(span.clone(), run),
        background: true,
        ready: Some(Spanned::new(span, "forwarding".to_owned())),
        counters: Vec::new(),
        json: false,
        extract: IndexMap::new(),
        allowed: Vec::new(),
    }
}

/// Returns the options for the ports at which traffic is sent and received.
fn options_of_ports(traffic: &TrafficDefinition) -> String {
    let ports: Vec<String> = traffic
        .ports
        .iter()
        .map(|port| format!("--port {}", quoted(port.get_ref())))
        .collect();
    ports.join(" ")
}

/// Returns the task that measures `quantity` with the command `run`.
fn measurement(traffic: &TrafficDefinition, quantity: Quantity, run: Spanned<String>) -> Task {
    let name = quantity.name();
    Task {
        name: name.into(),
        prefix: if quantity == Quantity::Latency {
            String::new()
        } else {
            format!("{name}.")
        },
        node: traffic
            .node
            .clone()
            .map(|node| Spanned::new(run.span(), node)),
        run,
        background: false,
        ready: None,
        counters: Vec::new(),
        json: true,
        extract: IndexMap::new(),
        allowed: vec![1],
    }
}

/// Returns the command that measures a quantity of the device. `through` contains the options that identify the device
/// or its ports.
fn command(
    definition: &Definition,
    traffic: &TrafficDefinition,
    quantity: Quantity,
    through: &str,
) -> String {
    let name = quantity.name();
    let mut run = match quantity {
        Quantity::Latency => format!("taut generate {through}"),
        _ => format!("taut bench {name} {through}"),
    };
    let mut add = |option: &str, text: &str| {
        let _ = write!(run, " --{option} {}", quoted(text));
    };
    if let Some(size) = &traffic.size {
        add("size", &text_of(size));
    }
    for set in &traffic.set {
        add("set", set.get_ref());
    }
    if matches!(quantity, Quantity::Latency | Quantity::Comparison) {
        for (option, value) in [("rate", &traffic.rate), ("seconds", &traffic.seconds)] {
            if let Some(value) = value {
                add(option, &text_of(value));
            }
        }
    }
    if quantity == Quantity::Latency {
        if let Some(pattern) = &traffic.pattern {
            add("pattern", pattern.get_ref());
        }
        if let Some(file) = &traffic.file {
            let _ = write!(run, " {}", quoted(file.get_ref()));
        }
        if definition.device.as_ref().is_some_and(|device| device.tap) {
            run.push_str(" --tap");
        }
    }
    if let Some(more) = definition
        .measure
        .as_ref()
        .and_then(|m| m.options.get(name))
    {
        let _ = write!(run, " {}", more.get_ref());
    }
    let _ = write!(run, " --json --out {name}");
    run
}

/// Refuses options for quantities that the file does not measure.
fn check_options(measure: &Measure, source: &Source) -> Result<(), ExperimentError> {
    let known: Vec<&str> = measure.what.iter().map(|what| what.name()).collect();
    if let Some((name, options)) = measure
        .options
        .iter()
        .find(|(name, _)| !known.contains(&name.as_str()))
    {
        return Err(source.wrong(
            options.span(),
            format!(
                "options for `{name}`, which is not measured: `what` has {}",
                known.join(", ")
            ),
        ));
    }
    Ok(())
}

/// Refuses settings that a comparison does not support, because it identifies devices by id and defines its own frames.
fn check_comparison(
    definition: &Definition,
    source: &Source,
    span: std::ops::Range<usize>,
) -> Result<(), ExperimentError> {
    let has_id = definition.device.as_ref().is_some_and(|it| it.id.is_some());
    if !has_id {
        return Err(source.wrong(
            span,
            "`comparison` needs a device with an id: one of taut demo --list-devices",
        ));
    }
    let traffic = definition.traffic.as_ref();
    if traffic.is_some_and(|it| {
        it.size.is_some() || it.pattern.is_some() || it.file.is_some() || !it.set.is_empty()
    }) {
        return Err(source.wrong(
            span,
            "`comparison` takes the rate and the seconds of [traffic] only: leave the rest out, or measure `latency` and `throughput`",
        ));
    }
    Ok(())
}

/// Returns a text of the experiment file, quoted so that the shell reads it as one word whatever values its variables
/// have.
fn quoted(text: &str) -> String {
    if text.contains("{{") || text.contains("{%") {
        format!("{{% filter quote %}}{text}{{% endfilter %}}")
    } else {
        taut_host::ssh::quote_if_needed(text)
    }
}

pub(crate) fn text_of(value: &Spanned<toml::Value>) -> String {
    match value.get_ref() {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{Changes, Experiment};
    use std::path::Path;

    fn parse(text: &str) -> Result<Experiment, String> {
        Experiment::parse(text, "e.toml", Path::new("."), &Changes::default())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn options_with_blanks_stay_single_arguments_of_the_command() {
        let experiment = parse(
            r#"
title = "t"
[loop]
device = ["memif,flush=full(32, 100us)"]
[device]
id = "{{ device }}"
[traffic]
rate = "100k"
set = ["dst_port=1-2 random"]
[measure]
what = ["latency", "throughput"]
options = { throughput = "--quick" }
"#,
        )
        .unwrap();
        let commands = experiment.check().unwrap().commands;
        let scripts: Vec<&str> = commands
            .iter()
            .map(|command| command.script.as_str())
            .collect();
        assert_eq!(
            scripts,
            [
                "taut generate --device 'memif,flush=full(32, 100us)' --set 'dst_port=1-2 random' --rate 100k --json --out latency",
                "taut bench throughput --device 'memif,flush=full(32, 100us)' --set 'dst_port=1-2 random' --quick --json --out throughput",
            ]
        );
    }
}
