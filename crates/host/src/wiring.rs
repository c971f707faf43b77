//! Network namespaces that stand for machines, joined by veth pairs as by cables.

use crate::command::run;
use crate::netns::TestbedError;
use crate::veth::Namespace;

/// End of a cable: the number of the node, and the interface there.
pub type End<'a> = (usize, &'a str);

/// Namespaces and the cables between them. Dropping it removes all of it.
#[derive(Debug)]
pub struct Wiring {
    namespaces: Vec<Namespace>,
}

impl Wiring {
    /// Makes as many namespaces as there are `nodes`, and the `cables`; all interfaces are up. Nothing has an
    /// address, as on machines that nobody has set up.
    ///
    /// # Errors
    /// [`TestbedError`]; what was built up to the failure is removed.
    pub fn build(nodes: usize, cables: &[[End<'_>; 2]]) -> Result<Self, TestbedError> {
        let namespaces = (0..nodes).map(|_| Namespace::fresh());
        let wiring = Self {
            namespaces: namespaces.collect::<Result<_, _>>()?,
        };
        for cable in cables {
            let [(near, near_interface), (far, far_interface)] = *cable;
            let [near, far] = [near, far].map(|node| wiring.namespace(node));
            run(
                "ip",
                &[
                    &["-n", near, "link", "add", near_interface, "type", "veth"] as &[&str],
                    &["peer", "name", far_interface, "netns", far],
                ]
                .concat(),
            )?;
            for (namespace, interface) in [(near, near_interface), (far, far_interface)] {
                run("ip", &["-n", namespace, "link", "set", interface, "up"])?;
            }
        }
        Ok(wiring)
    }

    /// The namespace of a node.
    #[must_use]
    pub fn namespace(&self, node: usize) -> &str {
        self.namespaces[node].name()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::netns::namespace_names;
    use crate::permissions::can_make_namespaces;

    #[test]
    fn a_cable_joins_two_nodes_and_goes_with_them() {
        if let Err(missing) = can_make_namespaces() {
            println!("skipped: needs {missing}");
            return;
        }
        let wiring = Wiring::build(2, &[[(0, "eth0"), (1, "eth7")]]).unwrap();
        let names = [
            wiring.namespace(0).to_owned(),
            wiring.namespace(1).to_owned(),
        ];
        for (name, interface) in names.iter().zip(["eth0", "eth7"]) {
            run("ip", &["-n", name, "link", "show", interface]).unwrap();
        }
        drop(wiring);
        assert!(names.iter().all(|name| !namespace_names().contains(name)));
    }
}
