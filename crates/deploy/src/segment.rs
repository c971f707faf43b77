//! Segments of a chain that does not run in one worker: each is a chain of its own that `taut forward` can run, and
//! links connect them.

use crate::classify;
use crate::error::DeployError;
use crate::wires::{Wires, two_ends};
use std::time::Duration;
use taut_engine::{Chain, DEFAULT_BURST, Place, Placement, Stage, Wait};
use taut_port::PortSpec;

/// The waiting policy of a worker that shares its core and has a port or a function without wakeups.
const SHORT_SLEEP: Wait = Wait::Sleep {
    at_most: Duration::from_micros(50),
};

/// A part of a chain, which one worker or one pair of XDP programs runs.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Name: the position of the segment, from 1, and its functions: `2-xor`.
    pub name: String,
    /// The segment as a chain of its own. Port 0 is west, where the chain begins, port 1 is east.
    pub chain: Chain,
}

impl Segment {
    /// Returns the segment's chain file.
    pub fn text(&self) -> String {
        chain_text(&self.chain)
    }
}

/// Returns the functions of each segment of a chain, and their place.
///
/// # Errors
/// A function cannot run in the place that the file sets.
pub fn split(chain: &Chain) -> Result<Vec<(Vec<Stage>, Place)>, DeployError> {
    if chain.placement == Placement::Compact || chain.functions.is_empty() {
        return Ok(vec![(chain.functions.clone(), chain.place)]);
    }
    let mut parts: Vec<(Vec<Stage>, Place)> = Vec::new();
    for (number, stage) in chain.functions.iter().enumerate() {
        let place = classify::place(number, chain)?.place;
        match parts.last_mut() {
            Some((stages, before)) if *before == place && may_share(chain, stages, stage) => {
                stages.push(stage.clone());
            }
            _ => parts.push((vec![stage.clone()], place)),
        }
    }
    Ok(parts)
}

/// Returns true if a function may share a segment with the neighbouring functions `stages`, which run in the same
/// place. Replicas of a function are threads, so a function with replicas has a segment of its own.
fn may_share(chain: &Chain, stages: &[Stage], stage: &Stage) -> bool {
    let mut all = stages.iter().chain([stage]);
    chain.placement == Placement::Hybrid && all.all(|stage| stage.replicas.is_none())
}

/// Returns the segments of a chain, west first. `cores` are the cores of the chain's workers, in the order of the
/// workers; the cores are reused if there are more workers than cores.
///
/// # Errors
/// [`DeployError`] if a function cannot run in the place that the file sets, a port spec is wrong, or the number of
/// links does not match that of segments.
pub fn segments(
    chain: &Chain,
    wires: &Wires,
    cores: &[usize],
) -> Result<Vec<Segment>, DeployError> {
    let parts = split(chain)?;
    let count = parts.len();
    let wired = wires.joints.len() + 1;
    if count != wired {
        return Err(DeployError::Chain(format!(
            "{count} segments, and wires for {wired}: one segment more than wires is needed"
        )));
    }
    if count > 1 {
        two_ends(wires.ends.len())?;
    }
    let workers = parts.iter().filter(|(_, place)| *place == Place::User);
    // A polling worker blocks its core. If the workers need all cores, they must not poll, because the machine has
    // other tasks as well.
    let crowded = chain.placement != Placement::Compact && workers.count() >= cores.len().max(2);
    let mut next_core = cores.iter().cycle();
    let each = parts.into_iter().enumerate().map(|(at, (stages, place))| {
        let specs = port_specs(wires, at, count);
        let ports = specs.iter().map(|spec| PortSpec::parse(spec));
        let does: Vec<_> = stages.iter().map(|stage| stage.name.as_str()).collect();
        let does = match does[..] {
            [] => "forward".to_string(),
            [one] => one.to_string(),
            _ if chain.placement == Placement::Hybrid => match place {
                Place::Kernel => "kernel".to_string(),
                Place::User => "user".to_string(),
            },
            _ => "all".to_string(),
        };
        let mut part = Chain::new(ports.collect::<Result<_, _>>()?, stages);
        part.classification.clone_from(&chain.classification);
        part.place = place;
        part.machine.clone_from(&chain.machine);
        if chain.placement == Placement::Vm && place == Place::Kernel {
            // XDP programs have no worker, but their machine has a core.
            part.machine.get_or_insert_default().core = next_core.next().copied();
        }
        if place == Place::User {
            let core = match chain.placement {
                Placement::Compact => chain.core,
                _ => next_core.next().copied(),
            };
            set_worker(&mut part, chain, core, crowded);
        }
        part.check().map_err(DeployError::Chain)?;
        Ok(Segment {
            name: format!("{}-{does}", at + 1),
            chain: part,
        })
    });
    each.collect()
}

/// Returns the port specs of the segment with index `at` of `count` segments, west first.
fn port_specs(wires: &Wires, at: usize, count: usize) -> Vec<String> {
    if count == 1 {
        return wires.ends.clone();
    }
    let west = (at > 0).then(|| wires.joints[at - 1][1].clone());
    let east = (at + 1 < count).then(|| wires.joints[at][0].clone());
    vec![
        west.unwrap_or_else(|| wires.ends[0].clone()),
        east.unwrap_or_else(|| wires.ends[1].clone()),
    ]
}

/// Sets the core, the waiting policy and other settings of a segment's worker. `crowded` is true if the workers need
/// all cores.
fn set_worker(part: &mut Chain, chain: &Chain, core: Option<usize>, crowded: bool) {
    part.flush = chain.flush;
    part.queue = chain.queue;
    part.burst = chain.burst;
    part.core = core;
    if chain.placement == Placement::Compact {
        part.workers = chain.workers;
        part.cores.clone_from(&chain.cores);
    }
    part.wait = chain.wait;
    if crowded && matches!(chain.wait, Wait::Poll | Wait::Yield) {
        part.wait = Wait::Interrupt;
    }
    if part.wait == Wait::Interrupt
        && chain.placement != Placement::Compact
        && part.check().is_err()
    {
        part.wait = SHORT_SLEEP;
    }
}

/// Returns a function in the format of chain files.
pub(crate) fn function_table(stage: &Stage) -> toml::Table {
    let mut settings = stage.settings.clone();
    settings.insert("name".to_string(), stage.name.clone().into());
    if let Some(replicas) = &stage.replicas
        && let Ok(replicas) = toml::Value::try_from(replicas)
    {
        settings.insert("replicas".to_string(), replicas);
    }
    if let Some(chain) = &stage.chain {
        settings.insert("chain".to_string(), chain.clone().into());
    }
    settings
}

/// Returns the text of an equivalent chain file.
pub(crate) fn chain_text(chain: &Chain) -> String {
    let mut table = toml::Table::new();
    let mut say = |key: &str, value: toml::Value| {
        table.insert(key.to_string(), value);
    };
    let ports = chain.ports.iter().map(|port| port.text().into());
    say("ports", toml::Value::Array(ports.collect()));
    if chain.place == Place::Kernel {
        say("place", "kernel".into());
    } else {
        say("flush", chain.flush.to_string().into());
        say("wait", chain.wait.to_string().into());
        if let Some(queue) = chain.queue.and_then(|it| toml::Value::try_from(it).ok()) {
            say("queue", queue);
        }
        if chain.burst != DEFAULT_BURST {
            say("burst", (chain.burst as i64).into());
        }
        if let Some(core) = chain.core {
            say("core", (core as i64).into());
        }
        if chain.workers > 1 || chain.has_room() {
            say("workers", (chain.workers as i64).into());
        }
        if !chain.cores.is_empty() {
            let cores = chain.cores.iter().map(|core| (*core as i64).into());
            say("cores", toml::Value::Array(cores.collect()));
        }
    }
    if let Some(machine) = chain.machine.as_ref()
        && let Ok(machine) = toml::Value::try_from(machine)
    {
        say("machine", machine);
    }
    if let Some(classes) = &chain.classification {
        say("default", classes.default.clone().into());
        let rules = classes.rules.iter().cloned().map(toml::Value::from);
        say("classifier", toml::Value::Array(rules.collect()));
    }
    let functions = chain.functions.iter().map(function_table);
    let functions: Vec<toml::Value> = functions.map(toml::Value::from).collect();
    if !functions.is_empty() {
        say("function", toml::Value::Array(functions));
    }
    table.to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_functions::FUNCTIONS;

    /// Makes a chain of `functions` from a chain file that begins with `head`.
    pub(crate) fn chain(head: &str, functions: &[&str]) -> Chain {
        let functions: String = functions
            .iter()
            .map(|f| format!("[[function]]\n{f}\n"))
            .collect();
        let text = format!("{head}\nports = [\"null:\", \"null:\"]\n{functions}");
        Chain::parse(&text, "x.toml", FUNCTIONS).unwrap()
    }

    fn wires(joints: usize) -> Wires {
        let joint = |at: usize| {
            ["server", "client"].map(|role| format!("memif:/tmp/wire{at}.sock,role={role}"))
        };
        Wires {
            ends: vec!["null:source=1".to_string(), "null:".to_string()],
            joints: (0..joints).map(joint).collect(),
        }
    }

    const FORWARD: &str = "name = \"forward\"";
    const XOR: &str = "name = \"xor\"\nkey = 7";

    fn ports(segment: &Segment) -> Vec<&str> {
        segment.chain.ports.iter().map(PortSpec::text).collect()
    }

    #[test]
    fn a_chain_in_one_process_is_one_unchanged_segment() {
        let all = chain("core = 3\nwait = \"poll\"", &[FORWARD, XOR]);
        let found = segments(&all, &wires(0), &[0, 1]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(ports(&found[0]), ["null:source=1", "null:"]);
        assert_eq!(found[0].chain.core, Some(3));
        assert_eq!(found[0].chain.wait, Wait::Poll);
        assert_eq!(found[0].chain.functions.len(), 2);
    }

    #[test]
    fn each_process_has_one_function_and_links_to_its_neighbours() {
        let all = chain("placement = \"processes\"", &[FORWARD, XOR, XOR]);
        let found = segments(&all, &wires(2), &[1, 0]).unwrap();
        let names: Vec<_> = found.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["1-forward", "2-xor", "3-xor"]);
        assert_eq!(
            ports(&found[0]),
            ["null:source=1", "memif:/tmp/wire0.sock,role=server"]
        );
        assert_eq!(
            ports(&found[1]),
            [
                "memif:/tmp/wire0.sock,role=client",
                "memif:/tmp/wire1.sock,role=server"
            ]
        );
        assert_eq!(
            ports(&found[2]),
            ["memif:/tmp/wire1.sock,role=client", "null:"]
        );
        let cores: Vec<_> = found.iter().map(|s| s.chain.core).collect();
        assert_eq!(cores, [Some(1), Some(0), Some(1)]);
    }

    #[test]
    fn a_wrong_number_of_links_between_segments_is_refused() {
        for placement in ["threads", "processes", "namespaces"] {
            let all = chain(&format!("placement = \"{placement}\""), &[FORWARD, XOR]);
            for joints in [0, 2] {
                let refused = segments(&all, &wires(joints), &[0, 1]).unwrap_err();
                let message = refused.to_string();
                assert!(message.starts_with("2 segments"), "{message}");
            }
        }
    }

    #[test]
    fn a_chain_in_several_processes_without_two_ports_is_refused() {
        let all = chain("placement = \"processes\"", &[FORWARD, XOR]);
        for ends in [0, 1, 3] {
            let wires = Wires {
                ends: vec!["null:".to_string(); ends],
                ..wires(1)
            };
            let message = segments(&all, &wires, &[0]).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{ends} ports")), "{message}");
        }
    }

    #[test]
    fn workers_that_share_cores_do_not_poll() {
        let all = chain("placement = \"processes\"", &[FORWARD, XOR, XOR]);
        let waits = |cores: &[usize]| -> Vec<Wait> {
            let found = segments(&all, &wires(2), cores).unwrap();
            found.iter().map(|s| s.chain.wait).collect()
        };
        // The port `null` has no wakeups, so the outer two workers sleep.
        assert_eq!(waits(&[0, 1]), [SHORT_SLEEP, Wait::Interrupt, SHORT_SLEEP]);
        assert_eq!(waits(&[0, 1, 2, 3]), [Wait::Poll; 3]);
        let threads = chain("placement = \"threads\"", &[FORWARD, XOR, XOR]);
        let joints = ["pair:0", "pair:1"].map(|joint| [joint, joint].map(str::to_string));
        let ends = ["memif:/tmp/w.sock", "memif:/tmp/e.sock"].map(str::to_string);
        let (ends, joints) = (ends.to_vec(), joints.to_vec());
        let found = segments(&threads, &Wires { ends, joints }, &[0, 1]).unwrap();
        assert!(found.iter().all(|s| s.chain.wait == Wait::Interrupt));
        let said = chain(
            "placement = \"processes\"\nwait = \"sleep(1ms)\"",
            &[FORWARD, XOR, XOR],
        );
        let found = segments(&said, &wires(2), &[0]).unwrap();
        assert!(found.iter().all(|s| s.chain.wait == said.wait));
    }

    #[test]
    fn functions_between_interfaces_run_in_the_kernel_where_possible() {
        let places = |head: &str, functions: &[&str]| -> Vec<Place> {
            let parts = split(&chain(head, functions)).unwrap();
            parts.into_iter().map(|(_, place)| place).collect()
        };
        let burn = "name = \"burn\"\ncycles = 10";
        assert_eq!(
            places("placement = \"namespaces\"", &[FORWARD, burn]),
            [Place::Kernel, Place::User]
        );
        let kept_out = "name = \"forward\"\nplace = \"user\"";
        assert_eq!(
            places("placement = \"namespaces\"", &[kept_out]),
            [Place::User]
        );
        assert_eq!(
            places("placement = \"processes\"", &[FORWARD]),
            [Place::User]
        );
        for (placement, function, part) in [
            ("namespaces", "burn", "cannot run in the kernel"),
            ("processes", "forward", "use placement = \"namespaces\""),
        ] {
            let cycles = if function == "burn" { "cycles = 1" } else { "" };
            let wanted = format!("name = \"{function}\"\nplace = \"kernel\"\n{cycles}");
            let all = chain(&format!("placement = \"{placement}\""), &[&wanted]);
            let message = split(&all).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn neighbours_of_one_place_share_a_unit_in_hybrid_chains() {
        let burn = "name = \"burn\"\ncycles = 10";
        let all = chain(
            "placement = \"hybrid\"",
            &[FORWARD, XOR, burn, burn, FORWARD],
        );
        let found = segments(&all, &wires(2), &[0, 1]).unwrap();
        let units: Vec<_> = found
            .iter()
            .map(|s| (s.name.as_str(), s.chain.place, s.chain.functions.len()))
            .collect();
        assert_eq!(
            units,
            [
                ("1-kernel", Place::Kernel, 2),
                ("2-user", Place::User, 2),
                ("3-forward", Place::Kernel, 1)
            ]
        );
    }

    #[test]
    fn a_function_with_replicas_keeps_a_unit_of_its_own() {
        let replicas = "name = \"burn\"\ncycles = 10\nreplicas = 2";
        let burn = "name = \"burn\"\ncycles = 10";
        let all = chain("placement = \"hybrid\"", &[burn, replicas, burn]);
        assert_eq!(split(&all).unwrap().len(), 3);
    }

    #[test]
    fn machines_of_kernel_and_user_functions_keep_their_settings() {
        let head = "placement = \"vm\"\nmachine = { port = \"dpdk\", cores = 2, kernel = \"/k\" }";
        let all = chain(head, &["name = \"forward\"\nplace = \"kernel\"", XOR]);
        let found = segments(&all, &wires(1), &[1, 0]).unwrap();
        let read = |segment: &Segment| Chain::parse(&segment.text(), "x.toml", FUNCTIONS).unwrap();
        let [kernel, user] = [read(&found[0]), read(&found[1])];
        // XDP programs have no core, so the machine's is set.
        assert_eq!(
            (kernel.core, kernel.machine.clone().unwrap().core),
            (None, Some(1))
        );
        assert_eq!(user.core, Some(0));
        assert_eq!(user.machine, all.machine);
        assert_eq!(kernel.machine.unwrap().kernel, Some("/k".into()));
    }

    #[test]
    fn a_segments_chain_file_parses_to_the_same_settings() {
        let all = chain(
            "placement = \"processes\"\nflush = \"full(32, 100us)\"\nburst = 64\nqueue = { packets = 9, drop = \"codel\" }",
            &[FORWARD, XOR],
        );
        for segment in segments(&all, &wires(1), &[0, 1, 2]).unwrap() {
            let text = segment.text();
            let read = Chain::parse(&text, "x.toml", FUNCTIONS).unwrap();
            assert_eq!(read.functions, segment.chain.functions, "{text}");
            assert_eq!(
                (
                    read.flush, read.queue, read.wait, read.burst, read.core, read.place
                ),
                (
                    segment.chain.flush,
                    segment.chain.queue,
                    segment.chain.wait,
                    segment.chain.burst,
                    segment.chain.core,
                    segment.chain.place
                ),
                "{text}"
            );
        }
    }
}
