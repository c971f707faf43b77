//! Chooses the place of each function of a chain, with the reason. A function runs in the kernel if its class, its
//! settings and the links between the segments allow it, otherwise in user space. A chain file may set another place.
//! (Xiang et al., JSAC 2019, section III.)

use crate::DeployError;
use schemars::JsonSchema;
use serde::Serialize;
use taut_engine::{Chain, Place, Placement};
use taut_function::Class;

/// Place of a function (kernel or user space), with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Placed {
    /// Class: the part of a packet that the function uses.
    #[serde(serialize_with = "class_name")]
    #[schemars(with = "String")]
    pub class: Class,
    /// Place where the function runs: kernel or user space.
    #[serde(serialize_with = "place_name")]
    #[schemars(with = "String")]
    pub place: Place,
    /// Reason why the function runs in the kernel or in user space, in a sentence.
    pub why: String,
}

fn class_name<S: serde::Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(class.name())
}

fn place_name<S: serde::Serializer>(place: &Place, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match place {
        Place::User => "user",
        Place::Kernel => "kernel",
    })
}

/// Returns the place of each function of the chain, in the order of its file.
///
/// # Errors
/// A function does not exist, or cannot run in the place that the file sets.
pub fn classify(chain: &Chain) -> Result<Vec<Placed>, DeployError> {
    let numbers = 0..chain.functions.len();
    numbers.map(|number| place(number, chain)).collect()
}

/// Returns the place of the function with the given index in the chain.
pub(crate) fn place(number: usize, chain: &Chain) -> Result<Placed, DeployError> {
    let stage = &chain.functions[number];
    let refused = |reason: String| DeployError::Function {
        function: stage.name.clone(),
        reason,
    };
    let in_kernel = || {
        if stage.replicas.is_some() {
            return Err("it has replicas, which are threads".to_string());
        }
        let known = stage
            .catalog
            .in_kernel(&stage.name, stage.settings.clone(), 0);
        known.map(drop).map_err(|e| e.to_string())
    };
    stage.check().map_err(|e| match e {
        taut_engine::ChainError::Function { reason, .. } => refused(reason),
        other => other.into(),
    })?;
    // The catalog has an entry with the class, as the function was just made from that entry.
    let class = stage
        .catalog
        .entry(&stage.name)
        .map_or(Class::Advanced, |entry| entry.class);
    let (name, means) = (class.name(), class.means());
    let placed = |place: Place, why: String| Ok(Placed { class, place, why });

    let between = between(chain.placement);
    let all_in_kernel = chain.placement == Placement::Compact && chain.place == Place::Kernel;
    match stage.place {
        Some(Place::User) if all_in_kernel => Err(refused(
            "place = \"user\" of a function, but the file has the whole chain in the kernel: leave one of them out, or \
             use placement = \"namespaces\""
                .to_string(),
        )),
        Some(Place::User) => placed(Place::User, "the file says so".to_string()),
        Some(Place::Kernel) if chain.placement == Placement::Vm => {
            // The NICs of a machine are interfaces of its kernel, whatever the ends of the chain are.
            in_kernel().map_err(refused)?;
            placed(Place::Kernel, "the file says so".to_string())
        }
        Some(Place::Kernel) if chain.placement.is_in_namespaces() || all_in_kernel => {
            match beside(number, chain) {
                Some(end) if !all_in_kernel => Err(format!("place = \"kernel\": {end}; use veth:INTERFACE there, or place = \"user\"")),
                _ => in_kernel(),
            }
            .map_err(refused)?;
            placed(Place::Kernel, "the file says so".to_string())
        }
        Some(Place::Kernel) => Err(refused(format!(
            "place = \"kernel\" needs interfaces on both sides, but {between}: use placement = \"namespaces\" or \"vm\""
        ))),
        None if all_in_kernel => {
            in_kernel().map_err(refused)?;
            placed(Place::Kernel, "the file has the whole chain in the kernel".to_string())
        }
        None if class == Class::Advanced => placed(Place::User, format!("{name}: {means}")),
        None if !chain.placement.is_in_namespaces() => {
            placed(Place::User, format!("{name}, but {between}"))
        }
        None => match beside(number, chain).map_or_else(in_kernel, Err) {
            Ok(()) => placed(Place::Kernel, format!("{name}: {means}")),
            Err(reason) => placed(Place::User, format!("{name}, but {reason}")),
        },
    }
}

/// Returns why the function with the given index cannot run in the kernel: an outer port of the chain next to it is not
/// an interface. None if all such ports are interfaces.
fn beside(number: usize, chain: &Chain) -> Option<String> {
    let first = (number == 0).then(|| chain.ports.first()).flatten();
    let is_last = number + 1 == chain.functions.len();
    let last = is_last.then(|| chain.ports.last()).flatten();
    let mut ends = first.into_iter().chain(last);
    let end = ends.find(|port| !port.kind().attachment.may_be_interface())?;
    Some(format!(
        "the adjacent port \"{}\" is not an interface",
        end.text()
    ))
}

/// Returns how a placement connects segments, as the reason why none of its segments can run in the kernel.
fn between(placement: Placement) -> &'static str {
    match placement {
        Placement::Compact => "one worker has the whole chain",
        Placement::Threads => "threads are joined by rings of one process",
        Placement::Processes => "processes are joined by memif",
        Placement::Namespaces | Placement::Hybrid => "namespaces are joined by interfaces",
        Placement::Vm => "virtual machines are joined by vhost-user",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;
    use taut_functions::FUNCTIONS;

    fn placed(head: &str, function: &str) -> Result<Placed, DeployError> {
        let text = format!("{head}\nports = [\"null:\", \"null:\"]\n[[function]]\n{function}\n");
        let chain = Chain::parse(&text, "x.toml", FUNCTIONS).unwrap();
        classify(&chain).map(|mut all| all.remove(0))
    }

    const NAMESPACES: &str = "placement = \"namespaces\"";

    #[test]
    fn functions_next_to_a_pcap_port_stay_in_user_space() {
        let chain = |place: &str| {
            let forward = format!("[[function]]\nname = \"forward\"\n{place}\n");
            let text = format!(
                "{NAMESPACES}\nports = [\"pcap:a.pcap\", \"veth:east\"]\n{}",
                forward.repeat(2)
            );
            Chain::parse(&text, "x.toml", FUNCTIONS).unwrap()
        };
        let all = classify(&chain("")).unwrap();
        assert_eq!((all[0].place, all[1].place), (Place::User, Place::Kernel));
        assert!(all[0].why.contains("\"pcap:a.pcap\" is not an interface"));
        let error = classify(&chain("place = \"kernel\""))
            .unwrap_err()
            .to_string();
        assert!(error.contains("use veth:INTERFACE there"), "{error}");
    }

    #[test]
    fn cheap_functions_between_network_interfaces_run_in_the_kernel() {
        let forward = placed(NAMESPACES, "name = \"forward\"").unwrap();
        assert_eq!(
            (forward.class, forward.place),
            (Class::Elementary, Place::Kernel)
        );
        let swap = placed(NAMESPACES, "name = \"mac-swap\"").unwrap();
        assert_eq!((swap.class, swap.place), (Class::Basic, Place::Kernel));
        assert!(swap.why.starts_with("basic: headers"), "{}", swap.why);
        for placement in ["compact", "threads", "processes", "vm"] {
            let head = format!("placement = \"{placement}\"");
            let there = placed(&head, "name = \"mac-swap\"").unwrap();
            assert_eq!(there.place, Place::User, "{placement}");
            assert!(there.why.contains("basic, but "), "{}", there.why);
        }
    }

    #[test]
    fn functions_in_a_machine_run_in_its_kernel_on_request() {
        let there = placed(
            "placement = \"vm\"",
            "name = \"mac-swap\"\nplace = \"kernel\"",
        )
        .unwrap();
        assert_eq!(there.place, Place::Kernel);
        let wrong = "name = \"burn\"\ncycles = 1\nplace = \"kernel\"";
        let message = placed("placement = \"vm\"", wrong).unwrap_err().to_string();
        assert!(message.contains("cannot run in the kernel"), "{message}");
    }

    #[test]
    fn functions_of_class_advanced_stay_in_user_space() {
        for function in [
            "name = \"burn\"\ncycles = 5",
            "name = \"rlnc\"",
            "name = \"impair\"",
        ] {
            let there = placed(NAMESPACES, function).unwrap();
            assert_eq!((there.class, there.place), (Class::Advanced, Place::User));
            assert!(there.why.starts_with("advanced: "), "{}", there.why);
        }
    }

    #[test]
    fn functions_with_settings_that_xdp_lacks_stay_in_user_space() {
        let linear = "name = \"gtpu\"\naddress = \"192.0.2.1\"\nmatching = \"linear\"";
        let there = placed(NAMESPACES, linear).unwrap();
        assert_eq!(there.place, Place::User);
        assert!(there.why.contains("supports only hash"), "{}", there.why);
    }

    #[test]
    fn a_chain_file_can_override_the_placement_of_a_function() {
        let kept = placed(NAMESPACES, "name = \"forward\"\nplace = \"user\"").unwrap();
        assert_eq!(
            (kept.place, kept.why.as_str()),
            (Place::User, "the file says so")
        );
        for (head, function, part) in [
            (
                NAMESPACES,
                "name = \"burn\"\ncycles = 1\nplace = \"kernel\"",
                "cannot run in the kernel",
            ),
            (
                "",
                "name = \"forward\"\nplace = \"kernel\"",
                "use placement = \"namespaces\"",
            ),
            (
                "place = \"kernel\"",
                "name = \"forward\"\nplace = \"user\"",
                "the whole chain in the kernel",
            ),
        ] {
            let message = placed(head, function).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
            assert!(!message.contains('\n'), "one line: {message}");
        }
        let whole = placed("place = \"kernel\"", "name = \"forward\"").unwrap();
        assert_eq!(whole.place, Place::Kernel);
    }

    #[test]
    fn the_documentation_lists_every_function_under_its_class() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page =
            std::fs::read_to_string(docs.join("explanation/where-functions-run.md")).unwrap();
        for entry in FUNCTIONS.0 {
            let (name, class) = (format!("`{}`", entry.name), entry.class.name());
            let rows = page
                .lines()
                .filter(|line| line.contains(&name) && line.starts_with('|'));
            let known = [Class::Elementary, Class::Basic, Class::Advanced].map(Class::name);
            let first = rows.filter_map(|row| row.split('|').nth(1).map(str::trim));
            let classes: Vec<_> = first.filter(|first| known.contains(first)).collect();
            assert_eq!(classes, [class], "{name}");
        }
    }
}
