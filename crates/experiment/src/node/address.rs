//! Addresses of nodes.

use taut_host::SshAddress;

/// Address of a node, which defines how commands reach its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// The node is this machine.
    Local,
    /// The node is reached with the system's `ssh`.
    Ssh(SshAddress),
    /// The node is allocated by Slurm.
    Slurm,
    /// The node is a virtual machine on this machine, made by the experiment.
    Vm,
}

impl NodeAddress {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "local" => return Ok(Self::Local),
            "slurm" => return Ok(Self::Slurm),
            "vm" => return Ok(Self::Vm),
            _ => {}
        }
        if !text.starts_with("ssh://") {
            return Err("a node is `local`, `vm`, `ssh://user@host:port` or `slurm`".to_owned());
        }
        text.parse().map(Self::Ssh)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn node_addresses_are_parsed_and_invalid_addresses_are_refused() {
        assert_eq!(NodeAddress::parse("local"), Ok(NodeAddress::Local));
        assert_eq!(NodeAddress::parse("vm"), Ok(NodeAddress::Vm));
        let address = "ssh://root@dut:2222".parse().unwrap();
        assert_eq!(
            NodeAddress::parse("ssh://root@dut:2222"),
            Ok(NodeAddress::Ssh(address))
        );
        for wrong in ["dut", "ssh://", "ssh://a:b", "ssh://-oProxyCommand=x", ""] {
            assert!(NodeAddress::parse(wrong).is_err(), "{wrong}");
        }
    }
}
