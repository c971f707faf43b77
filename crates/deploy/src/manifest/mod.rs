//! Descriptions of a chain for running it on other machines: Kubernetes, OpenStack.
//!
//! Each function becomes a unit of its own, a pod or a server, with two network interfaces, `west` and `east`. There is
//! a network between two functions, and one at each end of the chain, to which other machines attach.

mod document;
mod kubernetes;
mod openstack;
mod unit;

pub use document::Document;
pub use kubernetes::KubernetesOptions;

use crate::segment::{Segment, segments};
use crate::wires::Wires;
use crate::{DeployError, function_files};
use std::path::Path;
use taut_engine::{Chain, Place, Placement};
use unit::{INTERFACES, Unit, Units};

/// Returns the objects that run `chain`, called `name`, on Kubernetes.
///
/// # Errors
/// A function cannot run in a pod.
pub fn kubernetes(
    chain: &Chain,
    name: &str,
    options: &KubernetesOptions,
) -> Result<Vec<Document>, DeployError> {
    kubernetes::documents(&units(chain, name)?, options)
}

/// Returns the Heat template that runs `chain`, called `name`, on OpenStack.
///
/// # Errors
/// A function cannot run in a server.
pub fn openstack(chain: &Chain, name: &str) -> Result<Document, DeployError> {
    openstack::document(&units(chain, name)?)
}

fn units(chain: &Chain, name: &str) -> Result<Units, DeployError> {
    let mut apart = chain.clone();
    apart.placement = Placement::Processes;
    apart.place = Place::User;
    for stage in &mut apart.functions {
        if stage.place.take() == Some(Place::Kernel) {
            return Err(DeployError::Function {
                function: stage.name.clone(),
                reason: "place = \"kernel\" is for namespaces on one machine: leave it out"
                    .to_string(),
            });
        }
    }
    if apart.functions.is_empty() {
        return Err(DeployError::Chain(
            "the chain has no function: nothing to run".to_string(),
        ));
    }
    let count = apart.functions.len();
    let port = |end: usize| format!("af_packet:{}", INTERFACES[end]);
    let wires = Wires {
        ends: vec![port(0), port(1)],
        joints: vec![[port(1), port(0)]; count - 1],
    };
    // Each unit has its own processors, so none is shared; their numbers are unknown here.
    let plenty: Vec<usize> = (0..=count + 1).collect();
    let chain_name = label(name);
    let unit = |(at, mut segment): (usize, Segment)| {
        segment.chain.core = None;
        segment.chain.cores.clear();
        Ok(Unit {
            name: format!("{chain_name}-{}", label(&segment.name)),
            networks: [at, at + 1],
            chain: segment.text(),
            files: files(&segment)?,
            variables: function_files::variables(&segment.chain.functions),
        })
    };
    let all = segments(&apart, &wires, &plenty)?.into_iter().enumerate();
    let all = all.map(unit).collect::<Result<_, DeployError>>()?;
    Ok(Units {
        chain: chain_name,
        all,
    })
}

fn files(segment: &Segment) -> Result<Vec<String>, DeployError> {
    let text = |path: &Path| match path.to_str() {
        Some(text) if path.is_absolute() => Ok(text.to_string()),
        _ => Err(DeployError::Function {
            function: segment.name.clone(),
            reason: format!(
                "{} is on this machine: use the absolute path that the file will have there",
                path.display()
            ),
        }),
    };
    function_files::files(&segment.chain.functions)
        .iter()
        .map(|path| text(path))
        .collect()
}

/// Converts a name into one that Kubernetes and OpenStack accept: lower-case letters, digits, and hyphens between them
/// (RFC 1123).
fn label(name: &str) -> String {
    let plain = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() { c } else { '-' }
    };
    let name: String = name.chars().map(plain).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "chain" } else { name }.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use taut_engine::Stage;
    use taut_functions::FUNCTIONS;

    pub(super) fn chain(functions: &[&str]) -> Chain {
        let functions = functions
            .iter()
            .map(|text| Stage::parse(text, FUNCTIONS).unwrap())
            .collect();
        let mut chain =
            Chain::parse("ports = [\"null:\", \"null:\"]", "x.toml", FUNCTIONS).unwrap();
        chain.functions = functions;
        chain
    }

    #[test]
    fn each_function_becomes_one_pod_or_server_between_two_networks() {
        let all = chain(&["forward", "xor(key=7)"]);
        let units = units(&all, "My Edge!").unwrap();
        assert_eq!(units.chain, "my-edge");
        assert_eq!(units.networks(), 3);
        let names: Vec<_> = units.all.iter().map(|unit| unit.name.as_str()).collect();
        assert_eq!(names, ["my-edge-1-forward", "my-edge-2-xor"]);
        assert_eq!(units.all[1].networks, [1, 2]);
        let inside = Chain::parse(&units.all[1].chain, "x.toml", FUNCTIONS).unwrap();
        let ports: Vec<_> = inside.ports.iter().map(|port| port.text()).collect();
        assert_eq!(ports, ["af_packet:west", "af_packet:east"]);
        assert_eq!(inside.core, None, "who runs it says which");
        assert_eq!(inside.wait, taut_engine::Wait::Poll);
    }

    #[test]
    fn chains_that_a_manifest_cannot_express_are_refused() {
        let mut kernel = chain(&["forward"]);
        kernel.functions[0].place = Some(Place::Kernel);
        for (chain, part) in [(kernel, "leave it out"), (chain(&[]), "no function")] {
            let message = units(&chain, "x").err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn any_chain_name_becomes_a_valid_kubernetes_label() {
        assert_eq!(label("Edge_2.toml"), "edge-2-toml");
        assert_eq!(label("--"), "chain");
        assert_eq!(label(&"x".repeat(99)).len(), 40);
    }
}
