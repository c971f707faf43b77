//! The counts of PFCP messages, sessions and peers, for status requests.

use crate::counted::counted;

counted! {
    /// Current sessions: a gauge rather than a count.
    Sessions: "sessions",
    /// Messages from an address that belongs to no configured peer.
    Stranger: "from strangers",
    /// Datagrams that are no PFCP message of any version.
    Unreadable: "unreadable",
    /// Retransmitted requests, which get the same response.
    SentAgain: "requests sent again",
    /// Stored responses that were removed early for lack of memory.
    Forgotten: "responses forgotten early",
    /// Requests for sessions or rules above a limit, or for an address of an exhausted pool (causes 75, 79).
    Full: "refused for want of resources",
    /// Requests about an unknown session (cause 65).
    NoSession: "refused for want of the session",
    /// Requests of a peer without an association (cause 72).
    NoAssociation: "refused for want of an association",
    /// Requests with a rule that is invalid, or refers to an unknown rule (cause 73).
    WrongRule: "refused for a rule",
    /// Requests with a missing or wrong information element, or one of wrong length (causes 66, 68, 69).
    WrongElement: "refused for an element",
    /// Requests for unsupported features (causes 71 and 76).
    Unsupported: "refused as not supported",
    /// Requests that failed because the data plane or the kernel accepts no changes (cause 77).
    Failed: "refused for a failure",
    /// Heartbeats without a response after all retransmissions.
    Unanswered: "heartbeats unanswered",
    /// Peers that exceeded the idle limit and lost their sessions.
    Silent: "peers silent",
    /// Peers that have restarted, so that their sessions ended.
    Restarted: "peers restarted",
    /// Packets that are buffered now: a gauge rather than a count.
    Held: "packets held",
    /// Usage reports that no request of the control plane asked for.
    UsageReports: "usage reports",
    /// Reports of packets that are buffered for a user who has to be reached first.
    DownlinkReports: "downlink data reports",
    /// Requests of this node without a response after all retransmissions, or discarded because too many requests
    /// waited.
    GivenUp: "reports given up",
    /// Tunnel peers that do not respond now: a gauge rather than a count.
    LostPeers: "tunnel peers lost",
    /// Number of times that a tunnel peer stopped responding.
    PathFailures: "path failures",
}
