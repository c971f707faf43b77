//! Ports for XDP programs in the kernel: the interfaces that the programs receive from, and the ports for frames that
//! the programs pass up.

#[cfg(all(test, feature = "xdp"))]
mod forward_tests;
mod handed_up;
#[cfg(all(test, feature = "xdp"))]
mod wire_tap_tests;

use crate::{Pairs, Port, PortError, PortSpec};
use taut_xdp::Mode;
use taut_xdp::forward::Entrance;
use taut_xdp::upcall::UpcallPrograms;

/// The backends whose specs name an interface.
const BACKENDS: [&str; 2] = ["af_xdp", "af_packet"];

/// Returns the interfaces of ports, for a [`taut_xdp::forward::KernelForwarder`]. Ports are taken in pairs: frames that
/// enter one port of a pair leave through the other. If the number of ports is odd, frames that enter the last port
/// leave through it again.
///
/// # Errors
/// A port is not an interface or has options other than `mode`, or an interface is given twice.
pub fn entrances(specs: &[PortSpec]) -> Result<Vec<Entrance>, PortError> {
    let entrance = |(number, spec): (usize, &PortSpec)| {
        let modes = modes(spec)?;
        let first = specs[..number].iter().any(|s| s.target() == spec.target());
        if first {
            return Err(spec.error("the interface is given twice"));
        }
        Ok(Entrance {
            interface: spec.target().to_string(),
            modes,
            to: Pairs::of(specs.len()).partner(number),
        })
    };
    specs.iter().enumerate().map(entrance).collect()
}

/// Returns the port for frames that an XDP program passes to user space after they entered port `number`. The returned
/// port sends through the interface of port `number`.
///
/// # Errors
/// The port is not an interface or the interface does not exist, or the machine lacks a requirement such as a
/// privilege.
pub fn handed_up(
    programs: &dyn UpcallPrograms,
    number: usize,
    spec: &PortSpec,
) -> Result<Box<dyn Port>, PortError> {
    modes(spec)?;
    Ok(Box::new(handed_up::HandedUpPort::new(
        programs, number, spec,
    )?))
}

/// Returns the XDP modes to try, in order. Fails if the spec has options other than `mode`.
fn modes(spec: &PortSpec) -> Result<&'static [Mode], PortError> {
    if !BACKENDS.contains(&spec.backend()) {
        return Err(spec.error(
            "the kernel forwards between interfaces only: write af_xdp:INTERFACE, or leave out in-kernel",
        ));
    }
    if let Some(key) = spec.option_keys().find(|key| *key != "mode") {
        return Err(spec.error(format!(
            "{key} has no effect in the kernel, which receives every frame of every queue: leave it out"
        )));
    }
    Mode::wanted(spec.option("mode")).map_err(|reason| spec.error(reason))
}
