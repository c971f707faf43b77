//! The counts of GTP-C messages and peers, for status requests.

use crate::counted::counted;

counted! {
    /// Current connections of users: a gauge rather than a count.
    Sessions: "sessions",
    /// Messages from an address that belongs to no configured peer.
    Stranger: "from strangers",
    /// Datagrams that are no complete GTP-C message, unknown messages, and responses without a request.
    Unreadable: "unreadable",
    /// Messages of another version of GTP.
    OtherVersion: "of another version",
    /// Piggybacked messages in a combination that TS 29.274 section 5.5.1 does not allow.
    Piggybacked: "piggybacked in vain",
    /// Retransmitted requests, which get the same response.
    SentAgain: "requests sent again",
    /// Stored responses that were removed early for lack of memory.
    Forgotten: "responses forgotten early",
    /// Requests about an unknown user or bearer (cause 64).
    NoContext: "refused for want of the session",
    /// Requests with a missing or wrong information element, or one of wrong length (causes 67, 69, 70, 103).
    WrongElement: "refused for an element",
    /// Requests above a limit, or for an address of an exhausted pool (causes 73, 84).
    Full: "refused for want of resources",
    /// Requests for unsupported features (causes 68, 83).
    Unsupported: "refused as not supported",
    /// Requests that were refused for another reason.
    Failed: "refused for a failure",
    /// Requests of this node that were retransmitted.
    Repeated: "own requests sent again",
    /// Requests of this node without a response after all retransmissions.
    GivenUp: "own requests given up",
    /// Notifications of packets for idle users.
    Notified: "downlink data notifications",
    /// Peers that do not respond to echo requests now: a gauge rather than a count.
    LostPeers: "peers lost",
    /// Peers that have restarted, so that their sessions ended.
    Restarted: "peers restarted",
}
