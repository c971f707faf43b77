//! The machine: topology, affinity, noise, namespaces, devices under test.
