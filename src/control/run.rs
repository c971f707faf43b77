//! `taut control run`: plant and controller of a control loop, over sockets or in virtual time.

use super::live::{Event, Live};
use super::options::{LinkOptions, Loop, LoopOptions, within_an_hour};
use super::over::{Between, Over, Virtual};
use super::{plant, show};
use crate::exit::{self, Failure};
use crate::terminal::quantity;
use crate::transport::TransportOptions;
use std::path::PathBuf;
use std::time::Duration;
use taut_control::controller::LatePlan;
use taut_control::protocol::MOST_BYTES;
use taut_control::{Kpis, Record, Scenario, Standing, simulate};
use taut_folders::control_loop::{self, ControlReport, Node, ScenarioParts, Sides, write_report};
use taut_host::cores_for;
use taut_results::refuse_results;
use taut_traffic::control::End;
use taut_traffic::messages::Transport;
use taut_traffic::probe;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut control run --periods 200
  taut control run --virtual --loss 5% --burst 3 --out results/lossy
  taut control run --over medium:radio.toml --transport deadline
  taut control run --virtual --over medium:radio.toml --transport deadline --period 3.25ms --target 1ms
  taut control run --plant-in west --controller-in east --at 10.9.0.2 --live
  taut control run --controller-in ssh://root@10.1.2.3 --at 10.1.2.3

With --over, plant and controller get separate namespaces (root only), connected by a shared channel (a medium file), by the
functions of a chain file (its ports are ignored), or by another switch, such as device:veth-ovs (Open vSwitch). In virtual
time only a shared channel can connect them, and messages have 192 bytes. The last example but one uses an existing
connection between two network namespaces, such as a chain of `taut chain up`; --at is the controller's address there. Over
SSH both sides have separate clocks, so the delays of the two directions are unknown. Ends with code 1 if the plant fell.")]
pub struct Arguments {
    #[command(flatten)]
    options: LoopOptions,
    #[command(flatten)]
    transport: TransportOptions,
    /// Run in virtual time, in one process: a thousand times as fast
    #[arg(long = "virtual")]
    is_virtual: bool,
    #[command(flatten)]
    link: LinkOptions,
    /// In virtual time: time from reading to sending
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    sensing: Option<Duration>,
    /// In virtual time: time from receiving a report to sending its command
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    processing: Option<Duration>,
    /// CPUs of plant and controller, such as 1,2 (default: those that disturb each other least)
    #[arg(
        long,
        value_name = "CPU,CPU",
        value_delimiter = ',',
        conflicts_with = "is_virtual"
    )]
    cores: Vec<usize>,
    /// Network between plant and controller: medium:FILE (a shared channel), chain:FILE (the functions of a chain), or
    /// device:ID (a switch that is not taut's, such as veth-ovs)
    #[arg(
        long,
        value_name = "KIND:NAME",
        conflicts_with_all = ["plant_in", "controller_in", "at"]
    )]
    over: Option<Over>,
    /// Draw the plant on a terminal, or print a line each second; not with --json or --virtual
    #[arg(long, conflicts_with_all = ["is_virtual", "json"])]
    live: bool,
    /// Network namespace of the plant (default: that of the command)
    #[arg(long, value_name = "NAME", conflicts_with = "is_virtual")]
    plant_in: Option<String>,
    /// Network namespace of the controller, or another machine with taut on its search path; needs --at
    #[arg(
        long,
        value_name = "NAME|ssh://USER@HOST:PORT",
        conflicts_with = "is_virtual",
        requires = "at"
    )]
    controller_in: Option<String>,
    /// Address of the controller (default: the loopback interface)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "is_virtual")]
    at: Option<std::net::IpAddr>,
    /// Write summary.json and rounds.csv to this folder, which must be new
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Show the results published for the real robot next to those of the run
    #[arg(long)]
    published: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The number of sampling periods, in addition to the requested ones, that a plant may need before the first command
/// arrives.
const LYING_ROUNDS: u64 = 1_000;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let of = arguments.options.of_loop(arguments.is_virtual)?;
    let mut over = arguments.transport.over(MOST_BYTES)?;
    let late = arguments.options.late_plan(&mut over)?;
    if arguments.is_virtual && arguments.over.is_none() && over.transport != Transport::Udp {
        return Err(Failure::Input(
            "--transport: with --virtual, needs a channel: --over medium:FILE".to_owned(),
        ));
    }
    if let Some(out) = &arguments.out {
        refuse_results(out)?;
    }
    let words = std::env::args().collect::<Vec<_>>().join(" ");
    let mut report = ControlReport::new(words, &of.model);
    report.settings = arguments.options.as_json(&of);
    report.settings["transport"] = serde_json::json!(over.transport);
    if late.is_some() {
        report.settings["late"] = serde_json::json!(late);
    }
    if let Some(over) = &arguments.over {
        report.settings["over"] = over.to_string().into();
    }
    report.is_virtual = arguments.is_virtual;
    report.scenario = Some(described(arguments, &of, &report));
    let deadline_ns = of.station.bound_ns;
    let (report, records, too_late_ns) = if arguments.is_virtual {
        in_virtual_time(arguments, of, (&over, late), report)?
    } else {
        let (report, records) = over_sockets(arguments, &of, report)?;
        (report, records, None)
    };
    if let Some(out) = &arguments.out {
        report.write(out, &records)?;
        write_report(out)?;
    }
    show::report(&report, arguments.published, arguments.json)?;
    if arguments.is_virtual && report.end == End::NobodyAnswered {
        return Err(Failure::Limit(nobody_answered(too_late_ns, deadline_ns)));
    }
    plant::verdict(&report)
}

/// Describes the scenario of a run in its six parts.
fn described(arguments: &Arguments, of: &Loop, report: &ControlReport) -> ScenarioParts {
    let settings = &report.settings;
    let word = |name: &str| settings[name].as_str().unwrap_or_default().to_owned();
    let over = arguments.over.as_ref().map(ToString::to_string);
    let link = arguments
        .link
        .given()
        .map(|_| "delays and losses of settings.link");
    let known = |fact: &Option<taut_host::Fact<String>>| {
        let fact = fact.as_ref().map(|it| it.value.clone());
        fact.unwrap_or_else(|| "unknown".to_owned())
    };
    let nodes = [&arguments.plant_in, &arguments.controller_in];
    let nodes = nodes.map(|it| it.as_deref().unwrap_or("here"));
    let machine = taut_host::Machine::read();
    ScenarioParts {
        application: format!(
            "taut {}: plant {}, controller {}, filter {}, period {} ms",
            env!("CARGO_PKG_VERSION"),
            of.model.name(),
            super::options::word(of.controller.strategy),
            super::options::word(of.controller.filter),
            of.model.period_ns() as f64 / 1e6
        ),
        network_stack: format!("messages {} by {}", word("protocol"), word("transport")),
        topology: match (&over, arguments.is_virtual) {
            (Some(over), true) => format!("plant and controller at {over}"),
            (Some(over), false) => format!("two namespaces joined by {over}"),
            (None, true) => "plant and controller joined by a link".to_owned(),
            (None, false) => format!("plant {}, controller {}", nodes[0], nodes[1]),
        },
        environment: match arguments.is_virtual {
            true => "simulated plant in virtual time".to_owned(),
            false => "simulated plant in real time".to_owned(),
        },
        interference: over
            .or(link.map(str::to_owned))
            .unwrap_or_else(|| "none".to_owned()),
        hardware: format!(
            "{}, kernel {}",
            known(&machine.cpu_model),
            known(&machine.kernel_release)
        ),
    }
}

/// Explains why no command arrived in time during a run in virtual time.
fn nobody_answered(too_late_ns: Option<u64>, deadline_ns: u64) -> String {
    match too_late_ns {
        Some(ns) => format!(
            "every command arrived too late: {} after its reading at best, but the deadline is {}; shorten --delay, or apply \
             commands when they arrive (--apply arrival)",
            quantity::time(ns as f64),
            quantity::time(deadline_ns as f64)
        ),
        None => {
            "no command arrived: all rounds were lost; see --loss, --burst and --over".to_owned()
        }
    }
}

fn in_virtual_time(
    arguments: &Arguments,
    of: Loop,
    (by, late): (&probe::Over, Option<LatePlan>),
    mut report: ControlReport,
) -> Result<(ControlReport, Vec<Record>, Option<u64>), Failure> {
    let inputs = of.model.inputs();
    let mut link = arguments.link.settings()?;
    if let Some(over) = &arguments.over {
        if !link.recorded_ns.is_empty() {
            return Err(Failure::Input(
                "--as-recorded: replaces the network between plant and controller; omit --over"
                    .to_owned(),
            ));
        }
        let rounds = Virtual {
            by,
            period_ns: of.model.period_ns(),
            rounds: of.station.periods + LYING_ROUNDS,
            late_target_ns: late.map(|it| it.target_ns),
            seed: of.seed,
        };
        let exchanged = rounds.rounds(over)?;
        (link.recorded_ns, link.noticed) = (exchanged.recorded_ns, exchanged.noticed);
    }
    let scenario = Scenario {
        controller: of.controller,
        late,
        station: of.station,
        link,
        sensing_ns: within_an_hour(arguments.sensing),
        processing_ns: within_an_hour(arguments.processing),
        push: None,
        seed: of.seed,
        model: of.model,
    };
    report.settings["link"] = serde_json::json!(scenario.link);
    report.settings["sensing_ns"] = scenario.sensing_ns.into();
    report.settings["processing_ns"] = scenario.processing_ns.into();
    let found = simulate(&scenario)?;
    report.kpis = Kpis::of(&found.records, inputs, true, found.fallen_ns)
        .with_erected(&found.records, found.erected_ns);
    report.end = match found.fallen_ns {
        Some(_) => End::Fallen,
        None if found.records.is_empty() => End::NobodyAnswered,
        None => End::Periods,
    };
    Ok((report, found.records, found.too_late_ns))
}

fn over_sockets(
    arguments: &Arguments,
    of: &Loop,
    report: ControlReport,
) -> Result<(ControlReport, Vec<Record>), Failure> {
    refuse_virtual_options(arguments)?;
    let cores = cores(arguments)?;
    let between = arguments.over.as_ref().map(Between::lay).transpose()?;
    let (namespaces, at) = match &between {
        Some(between) => (between.namespaces(), Some(between.controller())),
        None => (
            [arguments.plant_in.clone(), arguments.controller_in.clone()],
            arguments.at,
        ),
    };
    let nodes = nodes_of(namespaces)?;
    let to_plant = match at {
        None => "127.0.0.1:0",
        Some(at) if at.is_ipv4() => "0.0.0.0:0",
        Some(_) => "[::]:0",
    };
    let at = at.unwrap_or([127, 0, 0, 1].into());
    let sides = Sides {
        program: exit::own_program()?,
        options: [arguments.options.words(), arguments.transport.words()].concat(),
        watched: arguments.live,
        cores,
        nodes,
        addresses: [
            std::net::SocketAddr::new(at, 0).to_string(),
            to_plant.to_owned(),
        ],
        inputs: of.model.inputs(),
    };
    let title = match &arguments.over {
        Some(over) => format!("{} over {over}", of.model.name()),
        None => of.model.name().to_owned(),
    };
    let mut live = arguments.live.then(|| Live::open(of, title, false));
    let mut standing = Standing::default();
    let found = control_loop::run(&sides, report, exit::stop_flag()?, |line| {
        if let Some(Ok(Event::Standing(now))) = line.map(serde_json::from_str) {
            standing = now;
        }
        live.as_mut().is_some_and(|live| live.show(&standing))
    });
    // The terminal is restored before anything is printed.
    drop(live);
    Ok(found?)
}

fn refuse_virtual_options(arguments: &Arguments) -> Result<(), Failure> {
    let times = [
        ("--sensing", arguments.sensing),
        ("--processing", arguments.processing),
    ];
    let time = times.iter().find_map(|(name, it)| it.map(|_| *name));
    if let Some(name) = arguments.link.given().or(time) {
        return Err(Failure::Input(format!(
            "{name}: needs --virtual; over sockets, impair the network itself, such as by a chain with the function \
             impair"
        )));
    }
    Ok(())
}

/// Returns the core of the plant, then that of the controller.
fn cores(arguments: &Arguments) -> Result<[usize; 2], Failure> {
    match arguments.cores[..] {
        [plant, controller] => Ok([plant, controller]),
        // Without two suitable cores, plant and controller share one: the controller works while the plant waits.
        [] => match cores_for(2).as_deref() {
            Some([plant, controller]) => Ok([*plant, *controller]),
            _ => Ok([taut_host::allowed_cpus().first().copied().unwrap_or(0); 2]),
        },
        _ => Err(Failure::Input(
            "--cores: expected two, the plant's and the controller's, such as 1,2".to_owned(),
        )),
    }
}

/// Returns the nodes of the plant and of the controller.
fn nodes_of(names: [Option<String>; 2]) -> Result<[Node; 2], Failure> {
    let node = |name: Option<String>| match name {
        Some(name) if name.starts_with("ssh://") => {
            let address = name
                .parse()
                .map_err(|e| Failure::Input(format!("{name}: {e}")));
            address.map(Node::Ssh)
        }
        Some(name) => Ok(Node::Namespace(name)),
        None => Ok(Node::Here),
    };
    let [plant, controller] = names;
    let nodes = [node(plant)?, node(controller)?];
    if let Node::Ssh(_) = nodes[0] {
        return Err(Failure::Input(
            "--plant-in: results are written on the plant's machine; start `taut control run` there, with --controller-in for this \
             machine"
                .to_owned(),
        ));
    }
    for node in &nodes {
        let Node::Namespace(name) = node else {
            continue;
        };
        if !taut_host::net::namespace_exists(name) {
            return Err(Failure::Input(format!(
                "{name}: no such network namespace; `ip netns` lists those that exist"
            )));
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_distinguish_late_commands_from_lost_commands() {
        let late = nobody_answered(Some(40_000_000), 29_000_000);
        for part in [
            "40.0 ms after its reading",
            "the deadline is 29.0 ms",
            "--delay",
        ] {
            assert!(late.contains(part), "no {part:?} in {late:?}");
        }
        let lost = nobody_answered(None, 29_000_000);
        assert!(lost.contains("lost") && lost.contains("--loss"), "{lost}");
    }
}
