//! Two hosts with addresses at the ends of a testbed, for programs that know nothing of taut.

use super::program::run;
use std::process::Command;
use taut_host::Testbed;

/// Address of the far host.
pub const FAR: &str = "192.0.2.2";

/// `program` in `namespace`.
pub fn in_namespace(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]);
    command
}

/// Runs `ip` with these words; fails if it does.
#[track_caller]
pub fn ip(line: &str) {
    let finished = run(Command::new("ip").args(line.split(' ')));
    assert_eq!(finished.code(), Some(0), "ip {line}: {finished:?}");
}

/// A namespace of the test, removed when it is dropped.
pub struct Namespace(pub String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Gives the generator's first interface and `far_interface`, which lies in namespace `from`, addresses of
/// one network, each in a namespace of its own, and ARP. Returned is the far one's.
pub fn two_hosts(testbed: &Testbed, from: &str, far_interface: &str) -> Namespace {
    let near = testbed.generator_namespace();
    let far = Namespace(format!("{near}-far"));
    ip(&format!("netns add {}", far.0));
    ip(&format!(
        "-n {from} link set {far_interface} netns {}",
        far.0
    ));
    for (namespace, interface, address) in [
        (near, "gen0", "192.0.2.1/24"),
        (&far.0, far_interface, "192.0.2.2/24"),
    ] {
        ip(&format!("-n {namespace} link set {interface} arp on up"));
        ip(&format!(
            "-n {namespace} addr add {address} dev {interface}"
        ));
    }
    far
}
