//! The interface between the switch and an OpenFlow session: the state of the switch, and the effects of messages.

use crate::action::Action;
use crate::control::{Control, Kept, RuleId};
use crate::facts::Facts;

/// The reasons why a rule was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Gone {
    Idle = 0,
    Hard = 1,
    Deleted = 2,
    WithGroup = 3,
}

/// The state of the switch that a session uses, and the effects of messages other than changed rules.
pub(in super::super) struct Plant<'a> {
    pub control: &'a mut Control,
    /// The number of ports of the chain.
    pub ports: usize,
    /// The links and counters of the ports.
    pub facts: &'a Facts,
    pub datapath: u64,
    /// The largest generation number of a controller that became master; none before the first one.
    pub generation: &'a mut Option<u64>,
    /// The packets that the controller sends.
    pub sent: &'a mut Vec<PacketOut>,
    /// The removed rules that need a notification.
    pub removed: &'a mut Vec<(RuleId, Kept, Gone)>,
    /// True if another controller has become the master.
    pub deposed: &'a mut bool,
}

/// A packet that a controller sends.
#[derive(Debug, PartialEq)]
pub(in super::super) struct PacketOut {
    /// The port that counts as the packet's ingress port; none if the controller specifies no port.
    pub in_port: Option<u8>,
    pub actions: Vec<Action>,
    pub through_tables: bool,
    pub frame: Vec<u8>,
}

/// The reasons why a controller gets a packet. (Section 7.4.1.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Why {
    /// Only the table-miss rule matches.
    NoMatch = 0,
    /// An action of a rule sends the packet to the controller.
    Action = 1,
}

/// The metadata of a packet that is sent to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Shown {
    /// The ingress port, if any.
    pub in_port: Option<u8>,
    pub table: u8,
    pub why: Why,
    /// The cookie of the rule that has sent the packet.
    pub cookie: u64,
    /// True if an action of a rule or of a message has sent the packet.
    pub has_rule: bool,
}
