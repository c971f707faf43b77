//! The list of backends, and parsing of the backend in a spec: `backend:target,key=value,...`.
//!
//! A new backend needs its folder, one line in [`backends`], and its docs page.

use crate::backend::{Backend, Joinable, PortSpec, Split};
use crate::error::PortError;
use crate::{af_packet, af_xdp, dpdk, memif, null, pair, pcap, tap, veth};
use std::str::FromStr;
use taut_settings::suggestion;

/// Returns all backends of this build.
pub fn backends() -> &'static [Backend] {
    &[
        af_packet::BACKEND,
        af_xdp::BACKEND,
        dpdk::BACKEND,
        memif::BACKEND,
        null::BACKEND,
        pair::BACKEND,
        pcap::BACKEND,
        tap::BACKEND,
    ]
}

impl PortSpec {
    /// Parses the spec of a port.
    ///
    /// # Errors
    /// [`PortError::BadSpec`] for an unknown backend or option, a missing target, a key given twice.
    pub fn parse(text: &str) -> Result<Self, PortError> {
        let names = || {
            backends()
                .iter()
                .map(|b| b.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let Some((name, rest)) = text.split_once(':') else {
            return Err(PortError::bad_spec(
                text,
                format!("write BACKEND:TARGET[,KEY=VALUE...]; backends: {}", names()),
            ));
        };
        let known = || backends().iter().chain([&veth::BACKEND]);
        let Some(backend) = known().find(|b| b.name == name).copied() else {
            return Err(PortError::bad_spec(
                text,
                format!(
                    "no backend \"{name}\"; this build has {}{}",
                    names(),
                    suggestion(name, known().map(|b| b.name))
                ),
            ));
        };
        Self::of(text, backend, rest)
    }

    /// Prepares the port for workers that join one after the other, while earlier ones run.
    ///
    /// # Errors
    /// The errors are those of [`PortSpec::open`]; it also fails if the number of workers is fixed once the port is
    /// open.
    pub fn joinable(&self) -> Result<Joinable, PortError> {
        self.check_joinable()?;
        match self.split() {
            Split::Joinable(joinable) => joinable(self),
            _ => Err(self.error("no worker can join it")),
        }
    }

    /// Checks whether workers can join while the port is open.
    ///
    /// # Errors
    /// The error names the kinds of ports that support this.
    pub fn check_joinable(&self) -> Result<(), PortError> {
        let is_joinable = |split: Split| matches!(split, Split::Joinable(_));
        if is_joinable(self.split()) {
            return Ok(());
        }
        let names = backends()
            .iter()
            .filter(|it| is_joinable(it.split))
            .map(|it| it.name);
        let names: Vec<_> = names.collect();
        Err(self.error(format!(
            "no worker can join it while it is open (only {} allow that)",
            names.join(", ")
        )))
    }
}

impl FromStr for PortSpec {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_spec_has_a_backend_a_target_and_options() {
        let spec = PortSpec::parse("memif:/run/x.sock,role=client,id=3").unwrap();
        assert_eq!((spec.backend(), spec.target()), ("memif", "/run/x.sock"));
        assert_eq!(spec.option("role"), Some("client"));
        assert_eq!(spec.number("id", 0..=9).unwrap(), Some(3));
    }

    #[test]
    fn errors_of_invalid_port_specs_explain_the_valid_form() {
        for (text, part) in [
            ("eth0", "BACKEND:TARGET"),
            ("nfp:eth0", "no backend \"nfp\""),
            ("memif:", "memif:SOCKET-PATH"),
            ("memif:/x,speed=9", "no option \"speed\""),
            ("memif:/x,id=1,id=2", "given twice"),
            ("memif:/x,client", "not KEY=VALUE"),
        ] {
            let message = PortSpec::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_dpdk_port_passes_unknown_options_to_the_device() {
        let text = "dpdk:net_pcap0,rx_pcap=b,ring=64,rx_pcap=a,representor=[0,1]";
        let spec = PortSpec::parse(text).unwrap();
        assert_eq!(
            spec.device_arguments(),
            ["rx_pcap=b", "rx_pcap=a", "representor=[0", "1]"]
        );
        assert_eq!(spec.number("ring", 0..=99).unwrap(), Some(64));
        assert!(PortSpec::parse("dpdk:").is_err());
        assert!(PortSpec::parse("dpdk:x,ring=1,ring=2").is_err());
    }

    #[test]
    fn a_port_refuses_too_many_workers_with_a_reason() {
        for (text, workers, part) in [
            (
                "pcap:x.pcap",
                2,
                "2 workers cannot share it: the packets of a file",
            ),
            ("memif:/x", 9, "9 workers: the maximum is 8 rings"),
        ] {
            let spec = PortSpec::parse(text).unwrap();
            let message = spec.parts(workers).err().unwrap().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        let spec = PortSpec::parse("null:").unwrap();
        assert_eq!(spec.parts(5).unwrap().len(), 5);
    }

    #[test]
    fn numbers_are_checked_against_their_range() {
        let spec = PortSpec::parse("null:source=65").unwrap();
        assert!(
            spec.number("source", 0..=64)
                .unwrap_err()
                .to_string()
                .contains("0 to 64")
        );
    }
}
