//! The JSON Schemas of what commands print with `--json`. Tests make them from the types and compare them with the
//! files in docs/reference/schemas; `--json-schema` prints those files.

use crate::terminal::watch::SecondLine;
use crate::{
    capture, chain, control, demo, doctor, experiment, functions, ips, lab, model, ports, probe,
    route, script, serve, tune, usage,
};
use clap::{Arg, ArgAction, Command};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;
use taut_bench::benchmark::Benchmark;
use taut_bench::measurement::{FloodSummary, TrafficSummary};
use taut_benchmarks::ablation::{self, Ablation};
use taut_benchmarks::costs::{self, Costs};
use taut_benchmarks::fit::{self, Fit};
use taut_benchmarks::generators::{self, Generators};
use taut_benchmarks::io_cost::{self, IoCost};
use taut_benchmarks::parallel;
use taut_benchmarks::switch_bench::{self, Switched};
use taut_comparison::report;
use taut_experiment::evaluate::Evaluation;
use taut_experiment::{ReplicationReport, folder, gate};
use taut_folders::control_loop::{self, ControlReport};
use taut_folders::probe_results::ProbeReport;
use taut_host::tune::{Applied, Audit, BootLine, Reverted};
use taut_model::{Prediction, model_file, published, scale};
use taut_tap::{LayersReport, TapReport};
use taut_testbed::api;

/// The name of the option that prints the JSON Schema of a command's output.
const OPTION: &str = "json-schema";

/// Adds a type to the definitions of a generator, and returns a reference to it.
type Make = fn(&mut SchemaGenerator) -> Schema;

/// The name and the text of each file in docs/reference/schemas.
static STORED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/schemas.rs"));

/// The JSON that one or more commands print.
struct Output {
    /// Name of the schema, and of its file in docs/reference/schemas.
    name: &'static str,
    commands: &'static [&'static str],
    /// True if the command prints a value on each line; false for one value.
    is_lines: bool,
    #[cfg(test)]
    made_of: MadeOf,
}

/// The version and the types from which a schema is made. Only tests have this data, as the code that makes schemas of
/// all types is large.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests make schemas"))]
struct MadeOf {
    /// The version, which increases when a field is removed, renamed or changed, but not when a field is added.
    version: u32,
    /// The types of the JSON values that the command prints.
    types: &'static [Make],
}

/// Describes an output of one JSON value, whose type is one of `types`: which one depends on the options.
const fn one(
    name: &'static str,
    commands: &'static [&'static str],
    version: u32,
    types: &'static [Make],
) -> Output {
    output(name, commands, false, MadeOf { version, types })
}

/// Describes an output of one JSON value per line, each of one of the `types`.
const fn lines(
    name: &'static str,
    commands: &'static [&'static str],
    version: u32,
    types: &'static [Make],
) -> Output {
    output(name, commands, true, MadeOf { version, types })
}

#[cfg_attr(
    not(test),
    expect(unused_variables, reason = "only tests make schemas")
)]
const fn output(
    name: &'static str,
    commands: &'static [&'static str],
    is_lines: bool,
    made_of: MadeOf,
) -> Output {
    Output {
        name,
        commands,
        is_lines,
        #[cfg(test)]
        made_of,
    }
}

fn of<T: JsonSchema + ?Sized>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The commands that print replies of a gateway's control socket.
const BEARER_ANSWERS: &[&str] = &[
    "bearer add",
    "bearer remove",
    "bearer load",
    "bearer status",
];

/// The commands that print replies of a router's control socket.
const ROUTE_ANSWERS: &[&str] = &[
    "route add",
    "route del",
    "route load",
    "route show",
    "route status",
];

/// The commands that print replies of a capture's control socket.
const CAPTURE_ANSWERS: &[&str] = &[
    "capture status",
    "capture flows",
    "capture trigger",
    "capture resize",
];

/// The commands that print measurements of RFC 2544, all or one of them.
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
        taut_rfc2544::Head::SCHEMA,
        &[of::<taut_rfc2544::Summary<'static>>],
    ),
    one(
        "bench-io",
        &["bench io"],
        IoCost::DESCRIPTION.schema,
        &[of::<io_cost::Summary<'static>>],
    ),
    one(
        "bench-costs",
        &["bench costs"],
        Costs::DESCRIPTION.schema,
        &[of::<costs::Summary<'static>>],
    ),
    one(
        "bench-generator",
        &["bench generator"],
        Generators::DESCRIPTION.schema,
        &[of::<generators::Summary<'static>>],
    ),
    one(
        "bench-switch",
        &["bench switch"],
        Switched::DESCRIPTION.schema,
        &[switch_bench::summary_schema],
    ),
    one(
        "bench-comparison",
        &["bench comparison"],
        taut_results::Experiment::SCHEMA,
        &[of::<report::Summary<'static>>],
    ),
    one(
        "bench-signalling",
        &["bench signalling"],
        1,
        &[of::<crate::bench::signalling::Report>],
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
    one(
        "capture-stop",
        &["capture stop"],
        1,
        &[of::<capture::ask::Stopped>],
    ),
    one("tap", &["tap", "capture match"], 1, &[of::<TapReport>]),
    one(
        "chain-plan",
        &["chain plan"],
        1,
        &[of::<taut_deploy::Estimate>, of::<chain::Placements>],
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
        "experiment-boot-files",
        &["experiment boot-files"],
        1,
        &[of::<Vec<taut_experiment::BootFiles>>],
    ),
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
        &[of::<experiment::publishing::PublishReport>],
    ),
    one(
        "experiment-replicate-all",
        &["experiment replicate-all"],
        ReplicationReport::SCHEMA,
        &[of::<ReplicationReport>],
    ),
    one(
        "experiment-fetch",
        &["experiment fetch"],
        1,
        &[of::<experiment::remote::Fetched>],
    ),
    lines(
        "experiment-watch",
        &[
            "experiment submit",
            "experiment watch",
            "experiment cancel",
            "experiment retry",
        ],
        1,
        &[of::<api::Experiment>],
    ),
    one(
        "experiment-robust",
        &["experiment robust"],
        taut_experiment::Robustness::SCHEMA,
        &[of::<Evaluation>, of::<experiment::robust::PlanOutput>],
    ),
    // The experiment of `taut demo` prints the summary of a comparison instead of an evaluation.
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
        "lab-calendar",
        &["lab calendar"],
        1,
        &[of::<Vec<api::Reservation>>],
    ),
    one("lab-nodes", &["lab nodes"], 1, &[of::<Vec<api::Node>>]),
    one(
        "lab-queue",
        &["lab queue"],
        1,
        &[of::<Vec<api::Experiment>>],
    ),
    one(
        "lab-reservation",
        &["lab reserve", "lab extend", "lab release"],
        1,
        &[of::<api::Reservation>],
    ),
    lines("lab-serve", &["lab serve"], 1, &[of::<lab::Line<'static>>]),
    one("lab-token", &["lab token"], 1, &[of::<lab::Token<'static>>]),
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
        "model-combined",
        &["model combined"],
        1,
        &[of::<model::combined::Answer>],
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
            of::<ablation::Summary<'static>>,
            of::<fit::Summary<'static>>,
            of::<taut_rfc2544::Summary<'static>>,
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
    one(
        "tune-ablate",
        &["tune ablate"],
        Ablation::DESCRIPTION.schema,
        &[of::<ablation::Summary<'static>>],
    ),
    one("tune-audit", &["tune audit"], 1, &[of::<Audit>]),
    one(
        "tune-fit",
        &["tune fit"],
        Fit::DESCRIPTION.schema,
        &[of::<fit::Summary<'static>>],
    ),
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

/// Returns the output of the command with the given path, such as `bench io`.
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

/// Returns the schema that a command line requests, even if arguments that the command requires are missing.
pub fn asked(words: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<String> = words.take_while(|word| word != "--").collect();
    let option = format!("--{OPTION}");
    if !words.contains(&option) {
        return None;
    }
    let path = usage::path(&crate::command(), words.into_iter());
    let output = output_of(path.split_once(' ')?.1)?;
    let (_, text) = STORED.iter().find(|(name, _)| *name == output.name)?;
    let mut schema: Value = serde_json::from_str(text).ok()?;
    schema["description"] = match output.is_lines {
        true => "Each line of the output is one such value.".into(),
        false => "The output is one such value.".into(),
    };
    serde_json::to_string_pretty(&schema).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use schemars::generate::SchemaSettings;
    use serde_json::{Map, json};
    use std::fmt::Write;
    use std::path::Path;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/schemas");

    /// Makes the schema of an output as commands write it: fields that may be omitted are optional.
    fn made(output: &Output) -> Value {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let mut generator = settings.into_generator();
        let types = output.made_of.types.iter();
        let mut types: Vec<Value> = types.map(|make| make(&mut generator).to_value()).collect();
        let mut root = match (types.len(), output.is_lines) {
            (1, _) => types.remove(0),
            (_, true) => json!({ "oneOf": types }),
            (_, false) => json!({ "anyOf": types }),
        };
        let commands: Vec<String> = output
            .commands
            .iter()
            .map(|it| format!("taut {it} --json"))
            .collect();
        for (key, value) in [
            (
                "$schema",
                json!("https://json-schema.org/draft/2020-12/schema"),
            ),
            (
                "$id",
                json!(format!(
                    "urn:taut:{}:{}",
                    output.name, output.made_of.version
                )),
            ),
            ("title", json!(commands.join(", "))),
            ("version", json!(output.made_of.version)),
            ("$defs", generator.take_definitions(true).into()),
        ] {
            root[key] = value;
        }
        loosen(&mut root);
        root
    }

    /// Makes a schema accept fields that later versions add, and the absence of fields that earlier versions did not
    /// write: those that have a default when files are read.
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

    /// Returns the names of the fields in a schema that have a default.
    fn defaults(keys: &Map<String, Value>) -> Vec<String> {
        let properties = keys.get("properties").and_then(Value::as_object);
        let with_default = properties.into_iter().flatten();
        with_default
            .filter(|(_, schema)| schema.get("default").is_some())
            .map(|(name, _)| name.clone())
            .collect()
    }

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
    fn every_command_with_json_has_a_schema() {
        let mut command = crate::command();
        command.build();
        let mut found = Vec::new();
        json_commands(&command, "", &mut found);
        found.sort_unstable();
        let mut described: Vec<&str> = OUTPUTS
            .iter()
            .flat_map(|it| it.commands.iter().copied())
            .collect();
        described.sort_unstable();
        assert_eq!(described, found);
    }

    #[test]
    fn option_json_schema_needs_no_other_argument() {
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
            let schema = made(output);
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
    fn schemas_allow_new_fields_and_omitted_fields_with_defaults() {
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
                // A keyword of the schema is removed; a property of the same name is a schema itself, and thus an
                // object.
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
    fn the_stored_reference_schemas_match_the_types() {
        let folder = Path::new(FOLDER);
        let writes = std::env::var_os("TAUT_WRITE_REFERENCE").is_some();
        if writes {
            std::fs::create_dir_all(folder).unwrap();
        }
        let mut stale = Vec::new();
        let experiment = folder.with_file_name("experiment-schema.json");
        let experiment = (experiment, taut_experiment::schema() + "\n");
        let outputs = OUTPUTS.iter();
        let outputs =
            outputs.map(|it| (folder.join(format!("{}.json", it.name)), stored(made(it))));
        for (file, text) in outputs.chain([experiment]) {
            if std::fs::read_to_string(&file).ok().as_ref() == Some(&text) {
                continue;
            }
            match writes {
                true => std::fs::write(&file, text).unwrap(),
                false => stale.push(file),
            }
        }
        let count = std::fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!(count, OUTPUTS.len(), "files of no command in {FOLDER}");
        assert!(
            stale.is_empty(),
            "`./run reference` writes these; increase `version` if a field was removed or changed: {stale:#?}"
        );
    }
}
