//! The JSON Schemas of what commands print with `--json`: made from the types, and printed by `--json-schema`.

use crate::terminal::watch::SecondLine;
use crate::{
    capture, chain, control, demo, doctor, experiment, functions, ips, model, ports, probe, route,
    script, serve, tune, usage,
};
use clap::{Arg, ArgAction, Command};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use taut_experiment::evaluate::Evaluation;
use taut_experiment::{ReplicationReport, folder, gate};
use taut_host::tune::{Applied, Audit, BootLine, Reverted};
use taut_lab::benchmark::Benchmark;
use taut_lab::control_loop::{self, ControlReport};
use taut_lab::costs::{self, Costs};
use taut_lab::generators::{self, Generators};
use taut_lab::io_cost::{self, IoCost};
use taut_lab::measurement::{FloodSummary, TrafficSummary};
use taut_lab::probe_results::ProbeReport;
use taut_lab::switch_bench::{self, Switched};
use taut_lab::{parallel, report, rfc2544};
use taut_model::{Prediction, model_file, published, scale};
use taut_tap::{LayersReport, TapReport};

/// The option that prints a schema.
const OPTION: &str = "json-schema";

/// Adds a type to the definitions of a generator, and returns a reference to it.
type Make = fn(&mut SchemaGenerator) -> Schema;

/// The JSON that one or more commands print.
struct Output {
    /// Name of the schema, and of its file in docs/reference/schemas.
    name: &'static str,
    commands: &'static [&'static str],
    /// The version, which a removed, renamed or changed field increases, but not a new one.
    version: u32,
    /// True if the command prints a value on each line; false for one value.
    is_lines: bool,
    /// The types of the values.
    types: &'static [Make],
}

/// Describes one value, whose type is one of `types`: which one depends on the options.
const fn one(
    name: &'static str,
    commands: &'static [&'static str],
    version: u32,
    types: &'static [Make],
) -> Output {
    Output {
        name,
        commands,
        version,
        is_lines: false,
        types,
    }
}

/// Describes a value per line, each of one of `types`.
const fn lines(
    name: &'static str,
    commands: &'static [&'static str],
    version: u32,
    types: &'static [Make],
) -> Output {
    Output {
        name,
        commands,
        version,
        is_lines: true,
        types,
    }
}

fn of<T: JsonSchema + ?Sized>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Answers of the control socket of a gateway.
const BEARER_ANSWERS: &[&str] = &[
    "bearer add",
    "bearer remove",
    "bearer load",
    "bearer status",
];

/// Answers of the control socket of a router.
const ROUTE_ANSWERS: &[&str] = &[
    "route add",
    "route del",
    "route load",
    "route show",
    "route status",
];

/// Answers of the control socket of a capture.
const CAPTURE_ANSWERS: &[&str] = &[
    "capture status",
    "capture flows",
    "capture trigger",
    "capture resize",
];

/// Measurements of RFC 2544, all or one of them.
const RFC2544: &[&str] = &[
    "bench rfc2544",
    "bench throughput",
    "bench latency",
    "bench loss",
    "bench back-to-back",
    "bench soak",
];

/// The outputs of all commands with `--json`.
static OUTPUTS: &[Output] = &[
    lines(
        "bearer-list",
        &["bearer list"],
        1,
        &[of::<taut_gateway::BearerText>],
    ),
    one("bearer", BEARER_ANSWERS, 1, &[of::<taut_gateway::Answer>]),
    one(
        "bearer-churn",
        &["bearer churn"],
        1,
        &[of::<taut_gateway::Churned>],
    ),
    one(
        "bench-rfc2544",
        RFC2544,
        rfc2544::Head::SCHEMA,
        &[of::<rfc2544::Summary<'static>>],
    ),
    one(
        "bench-io",
        &["bench io"],
        IoCost::SCHEMA,
        &[of::<io_cost::Summary<'static>>],
    ),
    one(
        "bench-costs",
        &["bench costs"],
        Costs::SCHEMA,
        &[of::<costs::Summary<'static>>],
    ),
    one(
        "bench-generator",
        &["bench generator"],
        Generators::SCHEMA,
        &[of::<generators::Summary<'static>>],
    ),
    one(
        "bench-switch",
        &["bench switch"],
        Switched::SCHEMA,
        &[switch_bench::summary_schema],
    ),
    one(
        "bench-comparison",
        &["bench comparison"],
        taut_results::Experiment::SCHEMA,
        &[of::<report::Summary<'static>>],
    ),
    lines(
        "bench-functions",
        &["bench functions"],
        1,
        &[of::<parallel::Measured>],
    ),
    lines(
        "capture",
        &["capture"],
        1,
        &[of::<capture::run::Line<'static>>],
    ),
    one(
        "capture-answer",
        CAPTURE_ANSWERS,
        1,
        &[of::<taut_functions::record::Answer>],
    ),
    one(
        "capture-list",
        &["capture list"],
        1,
        &[of::<capture::ask::Dumps<'static>>],
    ),
    one(
        "capture-query",
        &["capture query"],
        1,
        &[of::<taut_capture::capture::Found>],
    ),
    one("tap", &["tap", "capture match"], 1, &[of::<TapReport>]),
    one(
        "chain-plan",
        &["chain plan"],
        1,
        &[of::<taut_deploy::Estimate>],
    ),
    one(
        "chain-status",
        &["chain status"],
        1,
        &[of::<Vec<taut_deploy::Status>>],
    ),
    lines("chain-up", &["chain up"], 1, &[of::<chain::Line<'static>>]),
    one(
        "control-challenge",
        &["control challenge"],
        1,
        &[of::<control::challenge::Limits<'static>>],
    ),
    lines(
        "control-controller",
        &["control controller"],
        1,
        &[of::<control::controller::Line>],
    ),
    lines(
        "control-plant",
        &["control plant"],
        control_loop::SCHEMA,
        &[of::<control::live::Event>, of::<ControlReport>],
    ),
    one(
        "control-run",
        &["control run"],
        control_loop::SCHEMA,
        &[of::<ControlReport>],
    ),
    one(
        "control-show",
        &["control show"],
        control_loop::SCHEMA,
        &[of::<ControlReport>, of::<control::show::Plant<'static>>],
    ),
    one(
        "demo",
        &["demo"],
        taut_results::Experiment::SCHEMA,
        &[of::<report::Summary<'static>>, of::<Vec<demo::OfferRow>>],
    ),
    one("doctor", &["doctor"], 1, &[of::<doctor::Results<'static>>]),
    one(
        "experiment-check",
        &["experiment check"],
        1,
        &[of::<taut_experiment::Check>],
    ),
    one(
        "experiment-compare",
        &["experiment compare"],
        1,
        &[of::<taut_experiment::compare::Comparisons>],
    ),
    one(
        "experiment-list",
        &["experiment list"],
        folder::State::SCHEMA,
        &[
            of::<Vec<folder::Found>>,
            of::<Vec<experiment::ReferenceRow>>,
        ],
    ),
    one(
        "experiment-publish",
        &["experiment publish"],
        1,
        &[of::<taut_experiment::publish::Published>],
    ),
    one(
        "experiment-replicate-all",
        &["experiment replicate-all"],
        ReplicationReport::SCHEMA,
        &[of::<ReplicationReport>],
    ),
    one(
        "experiment-robust",
        &["experiment robust"],
        taut_experiment::Robustness::SCHEMA,
        &[of::<Evaluation>, of::<experiment::robust::PlanOutput>],
    ),
    // The experiment of `taut demo` has the summary of a comparison instead.
    one(
        "experiment-run",
        &["experiment run", "experiment resume", "experiment show"],
        folder::State::SCHEMA,
        &[of::<Evaluation>, of::<report::Summary<'static>>],
    ),
    lines(
        "forward",
        &["forward", "vm"],
        1,
        &[of::<taut_engine::Report>],
    ),
    one("functions", &["functions"], 1, &[of::<Vec<functions::Row>>]),
    one(
        "gate",
        &["gate"],
        gate::Outcome::SCHEMA,
        &[of::<gate::Outcome>],
    ),
    lines(
        "generate",
        &["generate"],
        1,
        &[of::<SecondLine>, of::<TrafficSummary>, of::<FloodSummary>],
    ),
    one(
        "ips",
        &["ips status", "ips top", "ips reload"],
        1,
        &[of::<taut_ips::Answer>],
    ),
    one(
        "ips-capacity",
        &["ips capacity"],
        1,
        &[of::<taut_forecast::Capacity>],
    ),
    one(
        "ips-check",
        &["ips check"],
        1,
        &[of::<ips::Checked<'static>>],
    ),
    one(
        "lab-wire",
        &["lab wire"],
        1,
        &[of::<taut_experiment::Wires>],
    ),
    one(
        "model-access",
        &["model access"],
        1,
        &[of::<taut_forecast::Accesses>],
    ),
    one(
        "model-budget",
        &["model budget"],
        1,
        &[of::<model::budget::Answer<'static>>],
    ),
    one(
        "model-check",
        &["model check"],
        1,
        &[of::<model::fit::Checked>, of::<Vec<published::Check>>],
    ),
    one(
        "model-fit",
        &["model fit"],
        model_file::SCHEMA,
        &[of::<model_file::Model>],
    ),
    one(
        "model-overload",
        &["model overload"],
        1,
        &[of::<taut_forecast::TippingPoint>],
    ),
    one(
        "model-plan",
        &["model plan"],
        1,
        &[of::<model::plan::Answer>, of::<Vec<scale::Row>>],
    ),
    one(
        "model-predict",
        &["model predict", "model explain"],
        1,
        &[of::<model::predict::Answer>, of::<Prediction>],
    ),
    one(
        "ports",
        &["ports"],
        1,
        &[of::<Vec<ports::Row>>, of::<Vec<taut_port::Copies>>],
    ),
    one(
        "probe-client",
        &["probe client"],
        1,
        &[of::<ProbeReport>, of::<probe::RateReport>],
    ),
    one("probe-layers", &["probe layers"], 1, &[of::<LayersReport>]),
    lines(
        "probe-server",
        &["probe server"],
        1,
        &[of::<probe::ServerLine>],
    ),
    one(
        "probe-simulate",
        &["probe simulate"],
        1,
        &[of::<probe::simulate::SimulationReport>],
    ),
    one(
        "report",
        &["report"],
        1,
        &[
            of::<TrafficSummary>,
            of::<ProbeReport>,
            of::<TapReport>,
            of::<ControlReport>,
            of::<io_cost::Summary<'static>>,
            of::<generators::Summary<'static>>,
            of::<costs::Summary<'static>>,
            switch_bench::summary_schema,
            of::<rfc2544::Summary<'static>>,
            of::<report::Summary<'static>>,
            of::<Evaluation>,
        ],
    ),
    one("route", ROUTE_ANSWERS, 1, &[of::<taut_router::Answer>]),
    one("route-churn", &["route churn"], 1, &[of::<route::Churned>]),
    lines(
        "route-convert",
        &["route convert"],
        1,
        &[of::<route::ConvertedRoute<'static>>],
    ),
    lines(
        "route-list",
        &["route list"],
        1,
        &[of::<taut_router::RouteText>],
    ),
    one("script", &["script"], 1, &[of::<script::Ended<'static>>]),
    lines("serve", &["serve"], 1, &[of::<serve::Line<'static>>]),
    one(
        "tune-aliasing",
        &["tune aliasing"],
        1,
        &[of::<tune::aliasing::Simulated<'static>>],
    ),
    one(
        "tune-apply",
        &["tune apply"],
        1,
        &[of::<Applied>, of::<BootLine>, of::<Vec<String>>],
    ),
    one("tune-audit", &["tune audit"], 1, &[of::<Audit>]),
    one(
        "tune-noise",
        &["tune noise"],
        1,
        &[of::<tune::noise::Results<'static>>],
    ),
    one(
        "tune-revert",
        &["tune revert"],
        1,
        &[of::<Reverted>, of::<Vec<String>>],
    ),
];

impl Output {
    /// Makes the schema. It describes what is written: fields that may be left out are optional in it.
    fn schema(&self) -> Value {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let mut generator = settings.into_generator();
        let types = self.types.iter();
        let mut types: Vec<Value> = types.map(|make| make(&mut generator).to_value()).collect();
        let mut root = match (types.len(), self.is_lines) {
            (1, _) => types.remove(0),
            (_, true) => json!({ "oneOf": types }),
            (_, false) => json!({ "anyOf": types }),
        };
        let commands: Vec<String> = self
            .commands
            .iter()
            .map(|it| format!("taut {it} --json"))
            .collect();
        let what = match self.is_lines {
            true => "Each line of the output is one such value.",
            false => "The output is one such value.",
        };
        for (key, value) in [
            (
                "$schema",
                json!("https://json-schema.org/draft/2020-12/schema"),
            ),
            (
                "$id",
                json!(format!("urn:taut:{}:{}", self.name, self.version)),
            ),
            ("title", json!(commands.join(", "))),
            ("description", json!(what)),
            ("version", json!(self.version)),
            ("$defs", generator.take_definitions(true).into()),
        ] {
            root[key] = value;
        }
        loosen(&mut root);
        root
    }
}

/// Allows fields that later versions add, and the lack of those that earlier versions did not write: fields that have
/// a default when files are read.
fn loosen(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            for closed in ["additionalProperties", "unevaluatedProperties"] {
                if keys.get(closed) == Some(&Value::Bool(false)) {
                    keys.remove(closed);
                }
            }
            let with_default = defaults(keys);
            if let Some(Value::Array(required)) = keys.get_mut("required") {
                required.retain(|name| !with_default.iter().any(|it| name == it));
            }
            keys.values_mut().for_each(loosen);
        }
        Value::Array(all) => all.iter_mut().for_each(loosen),
        _ => {}
    }
}

/// Returns the names of the fields with a default.
fn defaults(keys: &Map<String, Value>) -> Vec<String> {
    let properties = keys.get("properties").and_then(Value::as_object);
    let with_default = properties.into_iter().flatten();
    with_default
        .filter(|(_, schema)| schema.get("default").is_some())
        .map(|(name, _)| name.clone())
        .collect()
}

/// Returns the output of the command with this path, such as `bench io`.
fn output_of(path: &str) -> Option<&'static Output> {
    OUTPUTS.iter().find(|it| it.commands.contains(&path))
}

/// Adds the option that prints a schema to the commands that have one.
pub fn with_option(command: Command) -> Command {
    fn below(command: Command, path: &str) -> Command {
        let option = Arg::new(OPTION)
            .long(OPTION)
            .action(ArgAction::SetTrue)
            .help("Print the JSON Schema of what --json prints, and do nothing else");
        let command = match output_of(path) {
            Some(_) => command.arg(option),
            None => command,
        };
        command.mut_subcommands(|it| {
            let path = format!("{path} {}", it.get_name());
            below(it, path.trim_start())
        })
    }
    below(command, "")
}

/// Returns the schema that a command line asks for, also without the arguments that the command requires.
pub fn asked(words: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<String> = words.take_while(|word| word != "--").collect();
    let option = format!("--{OPTION}");
    if !words.contains(&option) {
        return None;
    }
    let path = usage::path(&crate::command(), words.into_iter());
    let output = output_of(path.split_once(' ')?.1)?;
    serde_json::to_string_pretty(&output.schema()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fmt::Write;
    use std::path::Path;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/schemas");

    /// The schema that consists of others, and is not stored.
    const UNION: &str = "report";

    /// Commands that have `--json` but no schema.
    const WITHOUT: [(&str, &str); 1] = [("capture stop", "prints nothing")];

    /// Collects the paths of the commands that print JSON.
    fn json_commands(command: &Command, path: &str, found: &mut Vec<String>) {
        let has_json = command
            .get_arguments()
            .any(|it| it.get_long() == Some("json"));
        if has_json && !command.is_subcommand_required_set() {
            found.push(path.to_owned());
        }
        for below in command
            .get_subcommands()
            .filter(|it| it.get_name() != "help")
        {
            let path = format!("{path} {}", below.get_name());
            json_commands(below, path.trim_start(), found);
        }
    }

    #[test]
    fn every_command_with_json_has_a_schema_or_a_reason() {
        let mut command = crate::command();
        command.build();
        let mut found = Vec::new();
        json_commands(&command, "", &mut found);
        found.retain(|path| WITHOUT.iter().all(|(without, _)| without != path));
        found.sort_unstable();
        let mut described: Vec<&str> = OUTPUTS
            .iter()
            .flat_map(|it| it.commands.iter().copied())
            .collect();
        described.sort_unstable();
        assert_eq!(described, found);
    }

    #[test]
    fn a_schema_needs_no_other_argument() {
        let asked = |line: &str| asked(line.split(' ').map(str::to_owned));
        let schema = asked("generate --json-schema").unwrap();
        assert!(schema.contains("urn:taut:generate:1"), "{schema}");
        assert!(
            asked("route --json list --json-schema")
                .unwrap()
                .contains("urn:taut:route-list:1")
        );
        assert_eq!(asked("generate --json"), None);
        assert_eq!(asked("script a.lua -- --json-schema"), None);
        assert_eq!(asked("completions --json-schema"), None);
        assert_eq!(asked("--json-schema"), None);
    }

    /// Collects the names of the definitions to which a schema refers.
    fn references(schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(keys) => {
                if let Some(Value::String(target)) = keys.get("$ref") {
                    found.push(target.strip_prefix("#/$defs/").unwrap().to_owned());
                }
                keys.values().for_each(|it| references(it, found));
            }
            Value::Array(all) => all.iter().for_each(|it| references(it, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_a_schema_has_its_definition() {
        for output in OUTPUTS {
            let schema = output.schema();
            let mut found = Vec::new();
            references(&schema, &mut found);
            for name in found {
                assert!(
                    schema["$defs"].get(&name).is_some(),
                    "{}: {name}",
                    output.name
                );
            }
        }
    }

    #[test]
    fn fields_with_a_default_are_optional_and_new_ones_allowed() {
        let mut schema = json!({"additionalProperties": false, "required": ["a", "b"],
            "properties": {"a": {"default": 1}, "b": {"items": {"additionalProperties": false}}}});
        loosen(&mut schema);
        let want =
            json!({"required": ["b"], "properties": {"a": {"default": 1}, "b": {"items": {}}}});
        assert_eq!(schema, want);
    }

    /// Removes descriptions and the widths of numbers, which are no part of the contract.
    fn without_words(schema: &mut Value) {
        match schema {
            Value::Object(keys) => {
                // The field of a type that has such a name is an object.
                for note in ["description", "format", "minimum", "maximum"] {
                    if keys.get(note).is_some_and(|it| !it.is_object()) {
                        keys.remove(note);
                    }
                }
                keys.values_mut().for_each(without_words);
            }
            Value::Array(all) => all.iter_mut().for_each(without_words),
            _ => {}
        }
    }

    /// Returns the text of a schema's file: a line for each definition.
    fn stored(mut schema: Value) -> String {
        without_words(&mut schema);
        let definitions = schema["$defs"].take();
        schema.as_object_mut().unwrap().remove("$defs");
        let mut text = "{".to_owned();
        for (key, value) in schema.as_object().unwrap() {
            writeln!(text, "{}:{value},", json!(key)).unwrap();
        }
        text += "\"$defs\":{\n";
        let lines = definitions.as_object().unwrap().iter();
        let lines: Vec<String> = lines
            .map(|(name, value)| format!("{}:{value}", json!(name)))
            .collect();
        text += &lines.join(",\n");
        text + "\n}}\n"
    }

    #[test]
    fn reference_schemas_are_those_of_the_types() {
        let folder = Path::new(FOLDER);
        let writes = std::env::var_os("TAUT_WRITE_REFERENCE").is_some();
        if writes {
            std::fs::create_dir_all(folder).unwrap();
        }
        let mut stale = Vec::new();
        let outputs = || OUTPUTS.iter().filter(|it| it.name != UNION);
        for output in outputs() {
            let file = folder.join(format!("{}.json", output.name));
            let text = stored(output.schema());
            if std::fs::read_to_string(&file).ok().as_ref() == Some(&text) {
                continue;
            }
            match writes {
                true => std::fs::write(&file, text).unwrap(),
                false => stale.push(file),
            }
        }
        let count = std::fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!(count, outputs().count(), "files of no command in {FOLDER}");
        assert!(
            stale.is_empty(),
            "`./run reference` writes these; increase `version` if a field was removed or changed: {stale:#?}"
        );
    }
}
