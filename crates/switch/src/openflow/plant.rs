//! The interface between the switch and an OpenFlow session: the state of the switch, and the effects of messages.

use crate::action::Action;
use crate::control::{Control, Kept, RuleId};
use crate::facts::Facts;

/// The reason why a rule was removed, as the notification to controllers reports it.
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
    /// The largest generation number of a controller that became master; none before the first master.
    pub generation: &'a mut Option<u64>,
    /// The packets that the controller has sent, to be executed by the caller.
    pub sent: &'a mut Vec<PacketOut>,
    /// The removed rules whose removal is to be notified to controllers.
    pub removed: &'a mut Vec<(RuleId, Kept, Gone)>,
    /// True if this session's controller has become the master, so that the master before it is deposed.
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

/// The reason why a controller gets a packet. (OpenFlow 1.3.5, section 7.4.1.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Why {
    /// The packet matches only the table-miss rule.
    NoMatch = 0,
    /// An action of a rule sends the packet to the controller.
    Action = 1,
}

/// The metadata of a packet that is sent to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Shown {
    /// The ingress port of the packet, if any.
    pub in_port: Option<u8>,
    pub table: u8,
    pub why: Why,
    /// The cookie of the rule that has sent the packet.
    pub cookie: u64,
    /// True if an action of a rule or of a message has sent the packet; false for a packet without a matching rule.
    pub has_rule: bool,
}
