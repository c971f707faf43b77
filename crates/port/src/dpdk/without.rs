//! A substitute for the DPDK backend in builds without it.

#![cfg_attr(dpdk, allow(dead_code))]

use super::settings::Settings;
use crate::{Part, Port, PortError, PortSpec, Resources};

pub(super) fn probe() -> Result<String, PortError> {
    Err(missing("DPDK ports"))
}

pub(super) fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    Settings::of(spec)?;
    Err(missing(&format!("opening {spec}")))
}

pub(super) fn split(spec: &PortSpec, _: usize) -> Result<Vec<Part>, PortError> {
    Settings::of(spec)?;
    Err(missing(&format!("opening {spec}")))
}

fn missing(what: &str) -> PortError {
    let needs = if cfg!(target_feature = "crt-static") {
        "a build with DPDK; this one is static and loads no libraries: take the Debian package, or ./run install"
    } else {
        "a build with DPDK; not built in: apt install libdpdk-dev dpdk, then build again (./run setup)"
    };
    PortError::missing(what, needs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn opening_a_port_without_dpdk_reports_the_required_build() {
        let spec = PortSpec::parse("dpdk:net_null0,size=64").unwrap();
        let mut resources = Resources::for_ports(&[]).unwrap();
        let error = open(&spec, &mut resources).err().unwrap();
        assert!(error.is_missing());
        let message = error.to_string();
        assert!(
            message.contains("dpdk:net_null0") && message.contains("a build with DPDK"),
            "{message}"
        );
        assert!(probe().unwrap_err().is_missing());
    }
}
