//! Network namespaces that represent machines, connected by veth links like cables.

use super::TestbedError;
use super::namespace::Namespace;
use super::veth::WireEnd;

/// One end of a link: the index of the node, and the name of the interface in the node's namespace.
pub type End<'a> = (usize, &'a str);

/// Network namespaces and the veth links between them. Dropping this value removes all of them.
#[derive(Debug)]
pub struct Wiring {
    namespaces: Vec<Namespace>,
}

impl Wiring {
    /// Creates one namespace for each of `nodes` nodes, and the links in `wires`. All interfaces are up, but have no
    /// addresses, as on machines that are not configured.
    ///
    /// # Errors
    /// [`TestbedError`]; the parts built until then are removed.
    pub fn build(nodes: usize, wires: &[[End<'_>; 2]]) -> Result<Self, TestbedError> {
        let namespaces = (0..nodes).map(|_| Namespace::fresh());
        let wiring = Self {
            namespaces: namespaces.collect::<Result<_, _>>()?,
        };
        for wire in wires {
            let ends = wire.map(|(node, name)| WireEnd::new(Some(wiring.namespace(node)), name));
            let [near, far] = &ends;
            near.run(&[near.join("", far, ""), near.set_link("up")])?;
            far.run(&[far.set_link("up")])?;
        }
        Ok(wiring)
    }

    /// Returns the name of the namespace of a node; `node` is the node's index.
    #[must_use]
    pub fn namespace(&self, node: usize) -> &str {
        self.namespaces[node].name()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::net::namespace_exists;
    use crate::permissions::can_make_namespaces;

    #[test]
    fn a_veth_pair_joins_two_namespaces_until_dropped() {
        if let Err(missing) = can_make_namespaces() {
            println!("skipped: needs {missing}");
            return;
        }
        let wiring = Wiring::build(2, &[[(0, "eth0"), (1, "eth7")]]).unwrap();
        let names = [0, 1].map(|node| wiring.namespace(node).to_owned());
        for (name, interface) in names.iter().zip(["eth0", "eth7"]) {
            assert!(WireEnd::new(Some(name), interface).exists());
        }
        drop(wiring);
        assert!(!names.iter().any(|name| namespace_exists(name)));
    }
}
