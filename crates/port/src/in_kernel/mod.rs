//! What ports are to programs in the kernel, which take their place: the interfaces that those take frames from, and the
//! ports that bring what such programs hand up.

#[cfg(all(test, feature = "xdp"))]
mod forward_tests;
mod handed_up;
#[cfg(all(test, feature = "xdp"))]
mod wire_tap_tests;

use crate::{Pairs, Port, PortError, PortSpec};
use taut_xdp::Mode;
use taut_xdp::forward::Entrance;
use taut_xdp::upcall::UpcallPrograms;

/// Backends whose specs name an interface.
const BACKENDS: [&str; 2] = ["af_xdp", "af_packet"];

/// The interfaces of ports, for a [`taut_xdp::forward::KernelForwarder`]. Ports are taken in pairs: what enters the first
/// leaves through the second and the other way round; a last port without a partner gets its own frames back.
///
/// # Errors
/// For a port that is no interface, or that has options beside `mode`; for an interface that is given twice.
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

/// The port that brings what a program hands up of the frames that enter port `number`, and sends out of that
/// port's interface.
///
/// # Errors
/// For a port that is no interface, or one that is not there; for what the machine lacks.
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

/// The modes to try, from a spec that says nothing which the kernel would not do.
fn modes(spec: &PortSpec) -> Result<&'static [Mode], PortError> {
    if !BACKENDS.contains(&spec.backend()) {
        return Err(spec.error(
            "the kernel forwards between interfaces only: write af_xdp:INTERFACE, or leave out in-kernel",
        ));
    }
    if let Some(key) = spec.option_keys().find(|key| *key != "mode") {
        return Err(spec.error(format!(
            "{key} means nothing in the kernel, which takes every frame of every queue: leave it out"
        )));
    }
    Mode::wanted(spec.option("mode")).map_err(|reason| spec.error(reason))
}
