//! The measurements that each switch supports, with the reason for each unsupported point.

use super::device::Switch;
use super::openflow::Asked;
use super::p4runtime::{Pipeline, to_network};
use super::part::{Does, Matching, Order, Part};
use super::topology::Wires;

/// Maximum number of rules that a person is asked to enter.
const MOST_BY_HAND: u32 = 10;
const MOST_IN_KERNEL: u32 = 63;
/// Maximum number of cables (veth pairs) between ports of an AF_XDP switch. Each port needs buffers of its own, which
/// the kernel locks in memory.
const MOST_AF_XDP_CABLES: u32 = 8;
/// Number of copies that a switch makes of each background packet.
pub(super) const COPIES: u32 = 3;

impl Switch {
    /// Returns the reason why the switch does not support a point; none if the switch does. The reason is empty for a
    /// point that only serves for comparison with other points, if the switch has no equivalent of that point.
    pub(super) fn cannot(&self, part: Part, wires: &Wires) -> Option<&'static str> {
        const ONLY_FLOODS: &str = "a bridge has no rules: it sends from port to port";
        match (self, part) {
            (Self::Taut, _) => None,
            (Self::TautAfXdp, Part::Qos { .. }) => {
                Some("wires of the kernel drop what they have no room for: nothing waits in it")
            }
            (Self::TautAfXdp, Part::Amplify { cables }) if cables > MOST_AF_XDP_CABLES => {
                Some("it gets 8 cables at most, as each port has packet memory of its own")
            }
            (Self::TautAfXdp, _) => None,
            (Self::TautInKernel, Part::Qos { .. }) => Some("programs in the kernel have no queues"),
            (Self::TautInKernel, Part::Insertion { .. }) => {
                Some("in the kernel, rules come from a file and do not change")
            }
            (Self::TautInKernel, Part::Rules { rules, .. }) if rules > MOST_IN_KERNEL => {
                Some("there are 63 rules in the kernel at most")
            }
            (Self::TautInKernel, Part::Actions { does }) if does != Does::Output => {
                Some("but for sending and addresses of stations, the process does it")
            }
            (Self::TautInKernel, _) => None,
            (Self::OpenVSwitch, Part::Qos { .. }) => {
                Some("its user-space datapath has no queues of strict priority")
            }
            (Self::Bridge, Part::Qos { .. } | Part::Insertion { .. } | Part::Actions { .. }) => {
                Some(ONLY_FLOODS)
            }
            (Self::Bridge, Part::Rules { matching, .. }) if matching != Matching::Plain => {
                Some(ONLY_FLOODS)
            }
            (Self::Bridge, _) => None,
            (
                _,
                Part::Rules {
                    matching: Matching::Plain,
                    ..
                },
            ) => Some(""),
            (Self::OpenVSwitch, _) => None,
            (Self::P4Runtime(_), _) => match wires.pipeline() {
                Some(pipeline) => missing_in(pipeline, part),
                None => Some("its pipeline is unknown"),
            },
            (Self::OpenFlow(_) | Self::ByHand, Part::Qos { .. })
                if wires.return_pps().is_none() =>
            {
                Some("the topology file does not give the rate of the return port (return_pps)")
            }
            (Self::OpenFlow(_) | Self::ByHand, Part::Qos { .. })
                if wires.feeds() < COPIES as usize =>
            {
                Some("background needs 2 cables, or 3 links to the amplifier")
            }
            (Self::ByHand, Part::Insertion { .. }) => {
                Some("the time that a person takes is not a property of the switch")
            }
            (Self::ByHand, Part::Rules { rules, .. }) if rules > MOST_BY_HAND => {
                Some("more than 10 rules are not made by hand")
            }
            (Self::OpenFlow(_) | Self::ByHand, _) => None,
        }
    }
}

/// Returns the reason why a P4 pipeline does not support a point; none if it does.
fn missing_in(pipeline: &Pipeline, part: Part) -> Option<&'static str> {
    const NO_PORT: &str = "no [[p4.table]] matches the ingress port alone";
    const NO_ADDRESS: &str = "no [[p4.table]] matches single destination addresses";
    const NO_PREFIX: &str = "no [[p4.table]] matches networks";
    const PORT: u32 = 1;
    let to_address = to_network(PORT, 32);
    let of_port = Asked {
        in_port: Some(PORT),
        ..Asked::default()
    };
    let to_service = Asked {
        udp_dst: Some(1),
        ..of_port
    };
    let needs = |asked: &Asked, reason| (!pipeline.matches(asked)).then_some(reason);
    match part {
        Part::Hops { .. } => needs(&of_port, NO_PORT),
        Part::Rules { matching, .. } => match matching {
            Matching::Prefix => needs(&to_network(PORT, 24), NO_PREFIX),
            Matching::Plain | Matching::Exact => needs(&to_address, NO_ADDRESS),
        },
        Part::Insertion { order } => match order {
            _ if !pipeline.matches(&to_address) => Some(NO_ADDRESS),
            Order::Equal => None,
            _ => (!pipeline.has_priorities(&to_address)).then_some("its table has no priorities"),
        },
        Part::Actions { does } => match does {
            Does::Output => needs(&to_service, "no [[p4.table]] matches the UDP port"),
            Does::Meter if pipeline.matches(&to_service) => (!pipeline.has_meters(&to_service))
                .then_some("its table has no direct meter of packets"),
            Does::Meter => Some("no [[p4.table]] matches the UDP port"),
            _ => Some("P4 pipelines have no common actions except sending and dropping"),
        },
        Part::Qos { .. } | Part::Amplify { .. } => {
            Some("P4Runtime has no queues, and taut makes no multicast groups by it")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::switch_bench::part::{Lengths, Order};
    use crate::switch_bench::topology::Topology;
    use taut_results::Mode;

    fn topology(text: &str) -> Option<Topology> {
        Some(toml::from_str(text).unwrap())
    }

    #[test]
    fn an_unsupported_measurement_of_a_switch_has_a_reason() {
        let wires = Wires::default();
        let rules = |matching, rules| Part::Rules { matching, rules };
        let insertion = Part::Insertion {
            order: Order::Equal,
        };
        let qos = Part::Qos {
            load_percent: 0,
            priority: true,
        };
        let actions = Part::Actions { does: Does::Meter };
        let network = Switch::OpenFlow("h:1".to_string());
        for (switch, part, can) in [
            (&Switch::Taut, qos, true),
            (&Switch::TautAfXdp, qos, false),
            (&Switch::TautAfXdp, Part::Amplify { cables: 23 }, false),
            (&Switch::TautInKernel, Part::Amplify { cables: 23 }, true),
            (&Switch::TautInKernel, rules(Matching::Exact, 1), true),
            (&Switch::TautInKernel, rules(Matching::Exact, 1_000), false),
            (&Switch::TautInKernel, actions, false),
            (&Switch::OpenVSwitch, qos, false),
            (&Switch::OpenVSwitch, rules(Matching::Exact, 1), true),
            (&Switch::Bridge, Part::Hops { loops: 3 }, true),
            (&Switch::Bridge, Part::Amplify { cables: 3 }, true),
            (&Switch::Bridge, rules(Matching::Plain, 0), true),
            (&Switch::Bridge, rules(Matching::Exact, 1), false),
            (&Switch::Bridge, actions, false),
            (&network, qos, false),
            (&network, insertion, true),
            (&Switch::ByHand, insertion, false),
            (&Switch::ByHand, rules(Matching::Exact, 1), true),
            (&Switch::ByHand, rules(Matching::Exact, 1_000), false),
        ] {
            let why = switch.cannot(part, &wires);
            assert_eq!(why.is_none(), can, "{switch} {part:?}: {why:?}");
        }
        let file = topology(
            "cables = [[2, 3], [4, 5]]\n[generator]\nfirst = 1\nsecond = 6\nreturn_pps = 1e5\n",
        );
        let wires = Wires::new(file, None, &[]).unwrap();
        assert_eq!(network.cannot(qos, &wires), None);
        assert!(Lengths::of(Mode::Quick).parts(|_| true).contains(&qos));
    }
}
